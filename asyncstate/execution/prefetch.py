"""Prefetching for coming records: the counterpart, at record grain, of a bundle's prefetch.

Owns: ``ReadAhead`` and ``UpcomingRows``: which states are prefetched, for which rows, and how far.
Invariant: a hint only. Prefetched values are in the memtable below writes and cache, where every read looks; a record
that finds nothing there reads as it would without prefetching.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import filterfalse
from typing import Final

from asyncstate.codec import STATE_ID_AT, STATE_PREFIX_BYTES
from asyncstate.execution.reads import ReadRequest, Reads, Values
from asyncstate.state_backend import WriteBackCache
from asyncstate.storage import MemTable

BLOCK_ROWS: Final = 1_000
"""Rows that are prefetched together."""

PREFETCH_ROWS_MIN: Final = 100
"""For fewer rows, prefetching from a quick store costs more than it saves."""

_WANTED_SHARE: Final = 0.5  # of the rows: so many have waited for a read of a state's own key
_USED_SHARE: Final = 0.5  # of the prefetched keys: so many have then been read by records
_USED_SHARE_QUICK: Final = 0.75  # of a quick store: a wasted read costs more than a useful one saves
_UNKNOWN_SHARE: Final = 0.25  # keys that memory does not know, of the rows; for fewer, not with a quick store
_REST_BLOCKS_MAX: Final = 64
_ABSENT_SHARE: Final = 0.5  # of the keys read: a quick store detects an absent key by a filter in memory
_INTERESTS_MAX: Final = 64
_PLACES_MAX: Final = 10 * BLOCK_ROWS


@dataclass(slots=True)
class AccessPattern:
    """How records access one state: whether it is prefetched, and after how many blocks that may be tried again."""

    wanted: bool = False
    rest: int = 0
    next_rest: int = 1


Place = tuple[bytes, bytes]
"""A location in the state of a key: the state's id, and what follows the key in the store key (nothing, a map key, a
namespace)."""

AccessPatterns = dict[tuple[int, Place], AccessPattern]
"""By kind of rows; kept between the micro-batches of an operator, whose records behave alike."""


class AheadRead(ReadRequest):
    """The keys of one location for the rows of a block. A store that has become slow should be noticed within it."""

    __slots__ = ("_ahead", "_pattern", "spills")

    growth = 1

    def __init__(self, ahead: ReadAhead, pattern: AccessPattern, keys: list[bytes], spills: int) -> None:
        super().__init__(keys)
        self._ahead = ahead
        self._pattern = pattern
        self.spills = spills

    def arrived(self, start: int, values: Values) -> None:
        """Take the values of the keys from position ``start`` on, which then no longer count as missing."""
        self._ahead.arrived(self, self.keys[start : start + len(values)], values)

    def enough(self, values: Values) -> bool:
        """See ``ReadRequest``: a quick store finds out by a filter in memory that a key is absent."""
        if values.count(None) <= _ABSENT_SHARE * len(values):
            return False
        self._pattern.wanted = False
        return True


@dataclass(slots=True)
class AheadBlock:
    """Rows that are prefetched together, by key group and key; ``read``: which reads were started, and for what."""

    kind: int
    groups: Sequence[bytes]
    keys: Sequence[bytes]
    read: dict[Place, AheadRead] = field(default_factory=dict)

    @property
    def missing(self) -> bool:
        """Whether some reads are still running."""
        return any(read.missing for read in self.read.values())


class ReadAhead:
    """Prefetches for coming rows what recent rows had to wait for: states of their keys, and entries that many read.

    A record-grain operator decides for itself what it reads; but usually each row reads the same states of its key.
    Those can be read for many rows at once, in large list gets; when a row arrives, its chain of futures then runs
    through without a wait. ``access_patterns`` is what earlier micro-batches have taught, and it learns on. ``caches``
    are those of the states: what they know is not read.

    A slow store is read on other threads, for as many rows as may be in flight. A quick one is read here, block by
    block, since a key of a list get costs about half of a single get.
    """

    def __init__(
        self,
        overlay: MemTable,
        reads: Reads,
        rows_ahead: int,
        access_patterns: AccessPatterns | None = None,
        caches: Sequence[WriteBackCache] = (),
    ) -> None:
        self.rows_ahead = rows_ahead
        self._overlay = overlay
        self._reads = reads
        self._caches = caches
        self._access_patterns: AccessPatterns = access_patterns if access_patterns is not None else {}
        self._waited: Counter[Place] = Counter()
        self._on_the_way: set[bytes] = set()
        self.keys_read = self.keys_unused = 0
        """Keys that were prefetched; those of them that no record read."""

    def waited(self, key: bytes, encoded_key: bytes, times: int = 1) -> None:
        """Count a read of ``key`` from the store by a record, whose key it contains, ``times`` times."""
        end = STATE_PREFIX_BYTES + len(encoded_key)
        if key[STATE_PREFIX_BYTES:end] == encoded_key:
            self._waited[key[STATE_ID_AT:STATE_PREFIX_BYTES], key[end:]] += times
            if len(self._waited) > _PLACES_MAX:
                self._waited.clear()  # each record reads a different entry

    @property
    def rows_under_way(self) -> int:
        """For how many further rows reads may be in flight: none while the store is quick."""
        return self.rows_ahead if self._reads.pacer.waits_for_device else 0

    def wanted(self, kind: int) -> list[Place]:
        """Where to prefetch for rows of this kind."""
        return [
            place for (of, place), pattern in self._access_patterns.items() if of == kind and pattern.wanted
        ]

    def learn(self, kind: int, rows: int) -> None:
        """Learn from what the last ``rows`` rows, of this kind, have waited for."""
        for place, count in self._waited.items():
            pattern = self._access_patterns.get((kind, place))
            if pattern is not None and pattern.rest:
                pattern.rest -= 1
            elif count >= _WANTED_SHARE * rows:
                self._pattern_of(kind, place).wanted = True
        self._waited.clear()

    def _pattern_of(self, kind: int, place: Place) -> AccessPattern:
        if (kind, place) not in self._access_patterns and len(self._access_patterns) >= _INTERESTS_MAX:
            for known in [known for known, pattern in self._access_patterns.items() if not pattern.wanted]:
                del self._access_patterns[known]  # e.g. windows of long ago
        return self._access_patterns.setdefault((kind, place), AccessPattern())

    def read(self, block: AheadBlock) -> None:
        """Start reading, for the rows of ``block``, the wanted states that have not been read for them."""
        for place in self.wanted(block.kind):
            if place not in block.read:
                state_id, suffix = place
                rows = zip(block.groups, block.keys, strict=True)
                keys = dict.fromkeys([group + state_id + key + suffix for group, key in rows])
                unknown: Iterable[bytes] = self._overlay.unknown(keys)
                for cache in self._caches:
                    unknown = filterfalse(cache.knows, unknown)
                coming = [key for key in unknown if key not in self._on_the_way]
                pattern = self._pattern_of(block.kind, place)
                if len(coming) < _UNKNOWN_SHARE * len(block.keys) and not self._reads.pacer.waits_for_device:
                    pattern.wanted = False
                    continue
                coming.sort()
                read = block.read[place] = AheadRead(self, pattern, coming, self._overlay.spills)
                self._read(read)

    def _read(self, read: AheadRead) -> None:
        # All blocks being read share the threads, so a list get may be as long as if they were one.
        self._reads.read(read, together=max(1, self.rows_ahead // BLOCK_ROWS))
        self.keys_read += len(read.keys)
        if read.missing:
            self._on_the_way.update(read.keys[-read.missing :])

    def arrived(self, read: AheadRead, keys: Sequence[bytes], values: Values) -> None:
        """Values have arrived. Those older than a spill of writes are dropped: they may contradict what was spilled."""
        if self._on_the_way:
            self._on_the_way.difference_update(keys)
        if read.spills == self._overlay.spills:
            self._overlay.keep_read_ahead(keys, values)

    def end(self, block: AheadBlock) -> None:
        """The block's rows have been processed: values that they did not read are dropped, and counted."""
        used_share = _USED_SHARE if self._reads.pacer.waits_for_device else _USED_SHARE_QUICK
        for place, read in block.read.items():
            unused = self._overlay.drop_read_ahead(read.keys)
            self.keys_unused += unused
            pattern = self._pattern_of(block.kind, place)
            if unused > (1 - used_share) * len(read.keys):
                pattern.wanted = False
                pattern.rest = pattern.next_rest
                pattern.next_rest = min(2 * pattern.next_rest, _REST_BLOCKS_MAX)
            else:
                pattern.next_rest = 1


class UpcomingRows:
    """The rows of one input batch, or a page of timers, whose records are being made in order.

    Rows of one ``kind``, an input or timers, read alike. The runner calls ``at`` before it makes the records of each
    ``BLOCK_ROWS`` rows, from row 0 on, and ``done`` when all records have been passed on.
    """

    def __init__(
        self,
        ahead: ReadAhead,
        wait: Callable[[AheadBlock], None],
        kind: int,
        groups: Sequence[bytes],
        keys: Sequence[bytes],
    ) -> None:
        self._ahead = ahead
        self._wait = wait
        self._kind = kind
        self._groups = groups
        self._keys = keys
        self._coming: deque[AheadBlock] = deque()
        self._passed: deque[AheadBlock] = deque()
        self._next_row = 0

    def at(self, row: int) -> None:
        """The records of ``BLOCK_ROWS`` rows from ``row`` on are made next: starts the reads of the blocks ahead, and
        waits for those of this one."""
        ahead = self._ahead
        if row:
            ahead.learn(self._kind, BLOCK_ROWS)
        # Records may be in flight for as many rows as are prefetched, and still read.
        while len(self._passed) * BLOCK_ROWS > ahead.rows_under_way:
            ahead.end(self._passed.popleft())
        distance = ahead.rows_under_way if ahead.wanted(self._kind) else 0
        self._announce(min(len(self._keys), row + distance + BLOCK_ROWS))
        for coming in self._coming:
            ahead.read(coming)
        block = self._coming.popleft()
        self._passed.append(block)
        if block.missing:
            self._wait(block)

    def _announce(self, until: int) -> None:
        while self._next_row < until:
            rows = slice(self._next_row, self._next_row + BLOCK_ROWS)
            self._coming.append(AheadBlock(self._kind, self._groups[rows], self._keys[rows]))
            self._next_row += BLOCK_ROWS

    def done(self) -> None:
        """All records have been passed on."""
        if self._keys:
            self._ahead.learn(self._kind, len(self._keys) % BLOCK_ROWS or BLOCK_ROWS)
        while self._passed:
            self._ahead.end(self._passed.popleft())
