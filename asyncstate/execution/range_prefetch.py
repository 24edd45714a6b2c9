"""Pages of key ranges, read in parallel with other work: list gets load their blocks before they are scanned.

Owns: ``RangeReads``, which pages wait and for which blocks.
Invariant: every requested page is answered once, by a scan on the task's thread; that its blocks are loaded before is
a hint, so a missing block costs a wait and nothing else. No more positions are in flight than the store can keep
loaded.

Block boundaries are unknown. A page begins at its start, and a small range ends in the same block or in that of its
end; if it goes on after some entries, these show how far apart keys are, and so about where the next blocks are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, Final

from asyncstate.execution.reads import ListGet, ReadRequest, Reads, Values
from asyncstate.futures import StateFuture
from asyncstate.state_backend import Page
from asyncstate.storage import MemTable

_ENTRIES_A_READ: Final = (
    16  # take about as long as a get; so many are read before a page is known to be longer
)
_READS_A_SEEK: Final = 4  # a seek in memory, per run, takes 8 to 15 us, a get 2 to 5
_BEHIND_HEAD_MAX: Final = 64  # positions: with more, large values would evict each other
_AFTER: Final = b"\x00"
_position = itemgetter(0)

Answer = Callable[["RangeRequest"], None]


class RangeRequest:
    """One page, start <= key < end, that waits for ``missing`` positions, and its record. ``key``: its start."""

    __slots__ = ("end", "entries", "future", "head_is_read", "key", "limit", "missing", "record")

    def __init__(self, start: bytes, end: bytes, limit: int, record: Any) -> None:
        self.key = start
        self.end = end
        self.limit = limit
        self.record = record
        self.future: StateFuture[Page]
        self.entries: Page = []
        self.head_is_read = False
        self.missing = 0


class RangeChunk(ReadRequest):
    """Positions whose blocks are loaded by one list get, and for each the request that waits for it."""

    __slots__ = ("_landed", "_requests")

    def __init__(
        self,
        positions: list[bytes],
        requests: list[RangeRequest],
        landed: Callable[[list[RangeRequest]], None],
    ) -> None:
        super().__init__(positions)
        self._requests = requests
        self._landed = landed

    def arrived(self, start: int, values: Values) -> None:
        """See ``ReadRequest``; there are no values."""
        self._landed(self._requests)

    def about(self, start: int) -> tuple[bytes, Any]:
        """The error context of the keys from ``start`` on: a store key, and the requesting record (or None)."""
        request = self._requests[start]
        return request.key, request.record


class RangeReads:
    """Pages that wait. ``answer`` is called with each one whose blocks have been loaded, and calls ``go_on``."""

    def __init__(self, overlay: MemTable, reads: Reads, answer: Answer) -> None:
        self._overlay = overlay
        self._reads = reads
        self._answer = answer
        self._waiting: deque[tuple[bytes, RangeRequest]] = deque()
        self._under_way = 0
        self._chunk = 1
        self.warmed = 0
        """Positions whose blocks were loaded before a scan reached them."""

    # -- one page -------------------------------------------------------------------------------------

    def begin(self, request: RangeRequest, wait: bool = False) -> bool:
        """Read the page if all of its blocks are loaded, else request the missing ones: True if the page is complete.

        ``wait``: treat the first position as not loaded, whatever the store reports.
        """
        positions = [request.key, request.end]
        return self._wait_for(request, self._overlay.store.cold(positions) or (positions[:1] if wait else []))

    def go_on(self, request: RangeRequest) -> bool:
        """The missing blocks are loaded: True if the whole page is in ``entries`` now. Raises StoreError."""
        entries = request.entries
        if request.head_is_read:
            start = entries[-1][0] + _AFTER
            entries += self._overlay.scan_on(start, request.end, request.limit - len(entries))
            return True
        asked = min(_ENTRIES_A_READ, request.limit)
        entries += self._overlay.scan(request.key, request.end, asked)
        if len(entries) < asked or asked == request.limit:
            return True
        request.head_is_read = True
        positions = next_positions(
            entries, request.key, request.end, request.limit, self._entries_a_block(entries)
        )
        return self._wait_for(request, self._overlay.store.cold(positions))

    def _wait_for(self, request: RangeRequest, cold: Sequence[bytes]) -> bool:
        request.missing = len(cold)
        if not cold:
            return self.go_on(request)
        self._waiting.extend((position, request) for position in cold)
        return False

    def _entries_a_block(self, entries: Page) -> int:
        size_bytes = sum(len(key) + len(value) for key, value in entries)
        return max(1, self._overlay.store.block_bytes * len(entries) // size_bytes)

    # -- list gets --------------------------------------------------------------------------------------

    @property
    def can_send(self) -> bool:
        """Whether positions wait for which there is room."""
        return bool(self._waiting) and self._under_way < self._overlay.store.warm_positions_max

    @property
    def has_full_chunk(self) -> bool:
        """Whether enough positions wait to fill a list get."""
        return len(self._waiting) >= self._chunk and self.can_send

    def send(self) -> None:
        """Send waiting positions, as far as there is room."""
        gets: list[ListGet] = []
        loaded_max, reads = self._overlay.store.warm_positions_max, self._reads
        size = self._chunk = reads.pacer.chunk_positions(len(self._waiting), loaded_max, reads.threads)
        room = loaded_max - self._under_way
        while self._waiting and room > 0:
            taken = sorted(
                (self._waiting.popleft() for _ in range(min(size, room, len(self._waiting)))), key=_position
            )
            room -= len(taken)
            chunk = RangeChunk(
                [position for position, _ in taken], [request for _, request in taken], self._arrived
            )
            gets.append(ListGet(chunk.keys, chunk, 0, self._overlay.warm_store))
        sent = sum(len(get.keys) for get in gets)
        self._under_way += sent
        self.warmed += sent
        if gets:
            reads.send(gets)

    def _arrived(self, requests: list[RangeRequest]) -> None:
        """A position of each of ``requests`` is loaded."""
        self._under_way -= len(requests)
        for request in requests:
            request.missing -= 1
            if not request.missing:
                self._answer(request)


def reads_in(page: Page) -> int:
    """How many gets a scan of ``page`` costs, if all of it is in memory."""
    return _READS_A_SEEK + len(page) // _ENTRIES_A_READ


def next_positions(entries: Page, start: bytes, end: bytes, limit: int, entries_a_step: int) -> list[bytes]:
    """Estimated positions of every ``entries_a_step``-th entry after ``entries``, the first of a page of ``limit``.

    As if all keys were at equal distances, as numbers and times often are.
    """
    at = next(place for place, (one, other) in enumerate(zip(start, end, strict=False)) if one != other)
    width = max(len(key) for key, _ in entries) - at
    first, last, top = (_number(key, at, width) for key in (entries[0][0], entries[-1][0], end))
    step = (last - first) * entries_a_step // (len(entries) - 1)
    if step <= 0:
        return []
    count = min((limit - len(entries)) // entries_a_step + 1, _BEHIND_HEAD_MAX)
    places = range(last + step, min(top, last + count * step + 1), step)
    return [start[:at] + place.to_bytes(width, "big") + _AFTER for place in places]


def _number(key: bytes, at: int, width: int) -> int:
    return int.from_bytes(key[at : at + width].ljust(width, _AFTER), "big")
