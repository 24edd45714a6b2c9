"""An HTTP service as the place that a lookup join asks, key by key.

Owns: ``HttpLookup``.
Invariant: one session a task, opened on the event loop of the calls and closed there.
Must not import anything of ``asyncstate`` but ``errors`` and ``lookups.base``; aiohttp only where it is opened.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from asyncstate.durations import Seconds, seconds
from asyncstate.errors import ConfigurationError, OperatorError
from asyncstate.lookups.base import Key, Lookup, Rows


def json_rows(status: int, body: bytes) -> Rows:
    """A JSON list of objects, or one object; none for null and for status 404. OperatorError for other statuses."""
    if status == 404:
        return []
    if not 200 <= status < 300:
        answer = body[:200].decode(errors="replace")
        raise OperatorError(f"the service answers with status {status}: {answer}")
    found: Any = json.loads(body)
    if found is None:
        return []
    return found if isinstance(found, list) else [found]


@dataclass
class HttpLookup(Lookup):
    """GET ``url``, in which ``{0}``, ``{1}`` stand for the values of the key, quoted.

    ``parse`` makes the rows of a status and a body; it raises what is to fail, or to be retried. ``connections``: at
    most so many at once, beside the bound of calls. ``timeout`` of one GET: seconds, a text or a timedelta. Keys of
    one request of the operator are asked for one after the other: leave its ``batch`` at 1. Needs aiohttp
    (``asyncstate[http]``).
    """

    url: str
    parse: Callable[[int, bytes], Rows] = json_rows
    headers: Mapping[str, str] = field(default_factory=dict)
    connections: int = 100
    timeout: Seconds = 10.0

    def __post_init__(self) -> None:
        self.timeout = seconds(self.timeout, "HttpLookup", "timeout", above_zero=True)

    async def open(self) -> None:
        """See ``Lookup``."""
        try:
            import aiohttp
        except ImportError as error:
            raise ConfigurationError(
                "HttpLookup needs aiohttp; install it with: pip install 'asyncstate[http]'"
            ) from error
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self.connections),
            headers=self.headers,
            timeout=aiohttp.ClientTimeout(total=seconds(self.timeout, "HttpLookup", "timeout")),
        )

    async def close(self) -> None:
        """See ``Lookup``."""
        await self._session.close()

    async def lookup(self, keys: Sequence[Key]) -> list[Rows]:
        """See ``Lookup``."""
        quoted = ([quote(str(value), safe="") for value in key] for key in keys)
        return [await self._get(self.url.format(*values)) for values in quoted]

    async def _get(self, url: str) -> Rows:
        from yarl import URL

        async with self._session.get(URL(url, encoded=True)) as response:
            return self.parse(response.status, await response.read())
