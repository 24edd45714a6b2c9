"""An HTTP service as the place that a lookup join asks, key by key.

Owns: ``HttpLookup``.
Invariant: one client a task, opened on the event loop of the calls and closed there.
Must not import anything of ``asyncstate`` but ``lookups.base``; httpx only where it is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from asyncstate.lookups.base import Key, Lookup, Rows

if TYPE_CHECKING:
    import httpx


def json_rows(response: httpx.Response) -> Rows:
    """A JSON list of objects, or one object; none for null and for status 404. Raises httpx.HTTPStatusError."""
    if response.status_code == 404:
        return []
    found: Any = response.raise_for_status().json()
    if found is None:
        return []
    return found if isinstance(found, list) else [found]


@dataclass
class HttpLookup(Lookup):
    """GET ``url``, in which ``{0}``, ``{1}`` stand for the values of the key, quoted.

    ``parse`` makes the rows of a response; it raises what is to fail, or to be retried. ``connections``: at most so
    many at once, beside the bound of calls. ``timeout``: seconds of one GET. Keys of one request of the operator are
    asked for one after the other: leave its ``batch`` at 1. Needs ``httpx``.
    """

    url: str
    parse: Callable[[httpx.Response], Rows] = json_rows
    headers: Mapping[str, str] = field(default_factory=dict)
    connections: int = 32  # the pool of httpx costs more time with each one
    timeout: float = 10.0

    async def open(self) -> None:
        """See ``Lookup``."""
        import httpx

        limits = httpx.Limits(max_connections=self.connections, max_keepalive_connections=self.connections)
        self._client = httpx.AsyncClient(headers=dict(self.headers), limits=limits, timeout=self.timeout)

    async def close(self) -> None:
        """See ``Lookup``."""
        await self._client.aclose()

    async def lookup(self, keys: Sequence[Key]) -> list[Rows]:
        """See ``Lookup``."""
        return [self.parse(await self._client.get(self._url(key))) for key in keys]

    def _url(self, key: Key) -> str:
        return self.url.format(*(quote(str(value), safe="") for value in key))
