"""An HTTP service as the source of a lookup join, key by key.

Owns: ``HttpLookup``.
Invariant: one session per task, opened and closed on the event loop of the calls. A request goes only to the origin
of the given address; no text contains a credential.
Must not import anything of ``asyncstate`` but ``display``, ``durations``, ``errors`` and ``lookups.lookup_source``;
aiohttp only where it is opened.
"""

from __future__ import annotations

import asyncio
import json
import math
import string
import time
import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlsplit

import pyarrow as pa

from asyncstate.codec.from_python import is_blob
from asyncstate.display import HIDDEN, without_secrets
from asyncstate.durations import Seconds, seconds
from asyncstate.errors import ConfigurationError, OperatorError
from asyncstate.lookups.lookup_source import Key, Lookup, Rows

_REDIRECTS: Final = (301, 302, 303, 307, 308)
_REDIRECTS_MAX: Final = 5
_PAUSE_MAX: Final = 86_400.0
"""Seconds; a service may ask for more than a clock can represent."""
_MIB: Final = 1 << 20
_PLAIN_HEADERS: Final = {"accept", "accept-encoding", "accept-language", "content-type", "user-agent"}
_WINDOW_BITS: Final = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}


def json_rows(status: int, body: bytes) -> Rows:
    """A JSON list of objects, or one object; none for null and for status 404. Other statuses are an OperatorError."""
    if status == 404:
        return []
    if not 200 <= status < 300:
        answer = body[:200].decode(errors="replace")
        raise OperatorError(f"the service answers with status {status}: {answer}")
    found: Any = json.loads(body)
    if found is None:
        return []
    return found if isinstance(found, list) else [found]


@dataclass(repr=False)
class HttpLookup(Lookup):
    """GET ``url``, in which ``{0}``, ``{1}`` are replaced by the values of the key, quoted.

    ``parse`` makes the rows from a status and a body; it raises errors for answers that are to fail, or to be retried.
    ``timeout`` of one GET: seconds, a text or a timedelta. Keys of one request of the operator are requested one after
    the other: leave its ``batch`` at 1. Needs aiohttp (``asyncstate[http]``).

    Bounds, in addition to that of calls: ``connections`` at once per partition; ``requests_per_second`` of the job
    (None: no bound), of which each partition may use its part: it sends in time slots of its own, across micro-batches
    and restarts. ``response_bytes_max``: of an answer, also after it is unpacked (gzip, deflate); a longer one is an
    error.

    A ``Retry-After`` of the service delays all requests of the partition, and the next attempt of ``retry=``. A
    redirect is followed to the same scheme, host and port, at most five times; one to elsewhere is an error, and
    nothing is sent there. A value that would lead to another path, ``.``, ``..`` or an empty text, is refused with an
    OperatorError. Header values, passwords and query parameters are not in ``repr`` and not in errors.

    Raises ConfigurationError for invalid settings.
    """

    url: str
    parse: Callable[[int, bytes], Rows] = json_rows
    headers: Mapping[str, str] = field(default_factory=dict)
    connections: int = 100
    timeout: Seconds = 10.0
    requests_per_second: float | None = None
    response_bytes_max: int = 16 * _MIB

    def __post_init__(self) -> None:
        self.timeout = seconds(self.timeout, "HttpLookup", "timeout", above_zero=True)
        self._check()
        self._share = 0.0, 1.0
        self._pace = Pace(None)

    def _check(self) -> None:
        given: object = self.url
        try:
            parts = urlsplit(str(given))
            names = [name for _, name, _, _ in string.Formatter().parse(str(given)) if name is not None]
        except ValueError:
            parts, names = urlsplit(""), ["?"]
        plain = all(name.isdecimal() for name in names)
        if not (isinstance(given, str) and parts.scheme in ("http", "https") and parts.hostname and plain):
            raise ConfigurationError(
                f"HttpLookup: url is {without_secrets(repr(given))}; give an address that begins with http:// or "
                "https://, with {0}, {1} as placeholders for the values of the key"
            )
        if "{" in parts.netloc:
            raise ConfigurationError("HttpLookup: the host of url has a placeholder; give a fixed host")
        headers: object = self.headers
        if not isinstance(headers, Mapping):
            raise ConfigurationError(
                "HttpLookup: headers is not a dict; give a dict from names of headers to their values"
            )
        for name in ("connections", "response_bytes_max", "requests_per_second"):
            value: Any = getattr(self, name)
            if value is None and name == "requests_per_second":
                continue
            if type(value) not in (int, float) or not value > 0:
                raise ConfigurationError(f"HttpLookup: {name} is {value!r}; give a number above 0")

    def __repr__(self) -> str:
        headers = (
            f", headers={{{', '.join(f'{name!r}: {HIDDEN}' for name in self.headers)}}}"
            if self.headers
            else ""
        )
        return f"HttpLookup({without_secrets(self.url)!r}{headers})"

    def check(self, keys: Any, columns: Any) -> None:
        """See ``Lookup``: the address has a place for values of the key, none that the key does not have, and each has
        one text."""
        asked = [int(name) for _, name, _, _ in string.Formatter().parse(self.url) if name]
        if not asked:
            raise ConfigurationError(
                "HttpLookup: url has no placeholder, so every key would get the answer to the same request; write {0} "
                "where the first value of the key belongs"
            )
        if max(asked) >= len(keys):
            raise ConfigurationError(
                f"HttpLookup: url has a placeholder {{{max(asked)}}}, but {len(keys)} values are sent: "
                f"{', '.join(keys.names)}; placeholders count from 0"
            )
        for at in asked:
            kind = keys.field(at).type
            if pa.types.is_nested(kind) or is_blob(kind):
                raise ConfigurationError(
                    f"HttpLookup: '{keys.field(at).name}' of type {kind} has no text in an address; convert it to a "
                    "string"
                )

    def take_share(self, start: float, size: float) -> None:
        """Use this part of ``requests_per_second``; called in each task before ``open``."""
        self._share = start, size

    async def open(self) -> None:
        """Create clients and connections; runs on the event loop of the calls, before the first request of a task."""
        try:
            import aiohttp
        except ImportError as error:
            raise ConfigurationError(
                "HttpLookup needs aiohttp; install it with: pip install 'asyncstate[http]'"
            ) from error
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self.connections),
            headers={"Accept-Encoding": "gzip, deflate", **self.headers},
            timeout=aiohttp.ClientTimeout(total=seconds(self.timeout, "HttpLookup", "timeout")),
            auto_decompress=False,
        )
        self._pace = Pace(self.requests_per_second, *self._share)

    async def close(self) -> None:
        """Close what ``open`` created; runs on the same event loop, also when the task fails."""
        await self._session.close()

    async def lookup(self, keys: Sequence[Key]) -> list[Rows]:
        """The rows of each key, in the order of ``keys``; None means no rows."""
        return [await self._rows(key) for key in keys]

    async def _rows(self, key: Key) -> Rows:
        """The rows of ``key``. Raises the errors of ``parse``, and OperatorError for requests that fail."""
        import aiohttp

        address = self._address(key)
        try:
            status, headers, body = await self._answer(address)
        except TimeoutError:
            raise OperatorError(
                f"the service did not answer within {self.timeout} seconds; give a longer timeout= of HttpLookup"
            ) from None
        except aiohttp.ClientError as error:  # its text has the address
            raise OperatorError(self._hidden(f"{type(error).__name__}: {error}")) from None
        try:
            return self.parse(status, body)
        except Exception as error:
            wait = _retry_after(headers.get("Retry-After"))
            if wait:
                self._pace.hold(wait)
            if self._hidden(str(error)) != str(error):
                error = OperatorError(self._hidden(str(error)))
            with suppress(AttributeError):  # an exception with slots
                error.retry_after = wait  # type: ignore[attr-defined]
            raise error from None

    def _address(self, key: Key) -> str:
        values = [quote(str(value), safe="") for value in key]
        address = self.url.format(*values)
        before = self.url.partition("?")[0].partition("#")[0].split("/")[3:]
        after = address.partition("?")[0].partition("#")[0].split("/")[3:]
        for template, segment in zip(before, after, strict=True):
            if template != segment and segment in (".", "..", ""):
                raise OperatorError(
                    f"a value of key {key!r} makes the path segment {segment!r}, which would request another "
                    "resource; filter such rows out with where=, or send the value as a parameter, ?name={0}"
                )
        return address

    async def _answer(self, address: str) -> tuple[int, Mapping[str, str], bytes]:
        """Status, headers and unpacked body of the last answer, after redirects."""
        from yarl import URL

        url = URL(address, encoded=True)
        for _ in range(_REDIRECTS_MAX + 1):
            await self._pace.turn()
            async with self._session.get(url, allow_redirects=False) as response:
                place = response.headers.get("Location") if response.status in _REDIRECTS else None
                if place is None:
                    return response.status, response.headers, await self._body(response)
                target = url.join(URL(place))
            if not target.host or target.origin() != url.origin():
                raise OperatorError(
                    f"the service redirects to another host ({target.scheme}://{target.host or ''}), which a lookup "
                    "does not follow; give that address as url"
                )
            url = target
        raise OperatorError(f"the service redirects more than {_REDIRECTS_MAX} times")

    async def _body(self, response: Any) -> bytes:
        most = self.response_bytes_max
        packed = bytearray()
        async for chunk in response.content.iter_chunked(1 << 16):
            packed += chunk
            if len(packed) > most:
                raise self._too_long()
        coding = response.headers.get("Content-Encoding", "identity").strip().lower()
        if coding in ("identity", "") or not packed:
            return bytes(packed)
        if coding not in _WINDOW_BITS:
            raise OperatorError(
                f"the service compresses its answer with {coding!r}; only gzip and deflate are supported"
            )
        body, left = bytearray(), bytes(packed)
        while left:  # gzip may have several members
            unpacking = zlib.decompressobj(_WINDOW_BITS[coding])
            try:
                body += unpacking.decompress(left, most + 1 - len(body))
            except zlib.error as error:
                raise OperatorError(f"the service's answer is not valid {coding}: {error}") from error
            if len(body) > most:
                raise self._too_long()
            if not unpacking.eof:
                raise OperatorError(f"the service's answer is not valid {coding}: it ends too early")
            left = unpacking.unused_data.lstrip(b"\0")  # padding
        return bytes(body)

    def _too_long(self) -> OperatorError:
        return OperatorError(
            f"the service's answer has more than {self.response_bytes_max} bytes; request less, or raise "
            "response_bytes_max of HttpLookup"
        )

    def _hidden(self, text: str) -> str:
        """``text`` without the secrets of the address and the headers."""
        parts = urlsplit(self.url)
        secrets = [value for name, value in self.headers.items() if name.lower() not in _PLAIN_HEADERS]
        secrets += [word for value in secrets for word in value.split()]
        secrets += [value for _, value in parse_qsl(parts.query) if "{" not in value]
        secrets += [parts.password or ""]
        for secret in sorted({one for one in secrets if len(one) > 3}, key=len, reverse=True):
            text = text.replace(secret, HIDDEN)
        return without_secrets(text)


class Pace:
    """When requests of one partition may begin: in its time slots, and not while the service asks for a pause.

    ``per_second``: requests of all partitions together (None: no bound). Time is divided into slots of ``1 / size /
    per_second`` seconds, in which the partition may send one request, at the point ``start``: partitions of equal sizes
    so take turns. The slots follow the wall clock, hence a request in the next micro-batch, in another process or after
    a restart is in another slot. ``clock`` and ``wall_clock``: seconds; ``sleep``: an awaitable.
    """

    def __init__(
        self,
        per_second: float | None,
        start: float = 0.0,
        size: float = 1.0,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._slot = 1 / (size * per_second) if per_second else 0.0
        self._clock, self._sleep = clock, sleep
        # The wall clock is read once: it may be set back, after which a request would wait for long.
        self._offset = (start * self._slot - wall_clock() + clock()) % self._slot if self._slot else 0.0
        self._not_before = -math.inf

    async def turn(self) -> None:
        """Wait until a request may begin."""
        now = self._clock()
        begin = max(now, self._not_before)
        if self._slot:
            begin = self._offset + math.ceil((begin - self._offset) / self._slot) * self._slot
            self._not_before = begin + self._slot / 2  # the next slot, whatever is rounded
        if begin > now:
            await self._sleep(begin - now)

    def hold(self, wait: float) -> None:
        """Start no request for ``wait`` seconds; those that wait fail after their ``timeout``."""
        self._not_before = max(self._not_before, self._clock() + wait)


def _retry_after(value: str | None) -> float:
    """The seconds of the header, which has seconds or a date; 0 for none."""
    if value is None:
        return 0.0
    if value.strip().isdecimal():
        return min(float(value), _PAUSE_MAX)
    try:
        moment = parsedate_to_datetime(value)
    except ValueError:
        return 0.0
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return min(max(0.0, (moment - datetime.now(UTC)).total_seconds()), _PAUSE_MAX)
