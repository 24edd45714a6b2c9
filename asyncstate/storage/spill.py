"""This micro-batch's writes that did not fit into memory: on the worker's disk, over the committed store.

Owns: ``SpilledWrites``, ``SpilledChanges``, ``WriteBound``, and the merge of newer entries over older ones in key order
(``scan_over``), with no more than a page of either in memory. Invariants: a key reads as it was last spilled, else as
committed; a run becomes visible as a whole or not at all; the committed store is not touched.
Runs are entries of a scratch store that belongs to the attempt: a value with one byte before it, a delete as no bytes
at all, so that it differs from a key that was not written. Must not import rocksdict, lease or the memtable.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Final

from asyncstate.errors import StoreError
from asyncstate.storage.keyed_store import Change, ChangeColumns, KeyedStore, SortedChanges

_LIVE: Final = b"\x01"
_DELETED: Final = b""
_PAGE_ENTRIES: Final = 4096
_NEWER_MIN: Final = 64  # minimum page of the newer layer: finding its start costs most

Entry = tuple[bytes, bytes]
NewerScan = Callable[[bytes, bytes | None, int], Sequence[Change]]
"""The first entries in a range, deletes included; fewer than requested means that there are no more."""
OlderScan = Callable[[bytes, bytes | None, int], list[Entry]]


@dataclass(frozen=True, slots=True)
class WriteBound:
    """How much memory (bytes, estimated) a micro-batch's writes may take, and where further writes go.

    ``open_scratch`` opens an empty store for this attempt alone in ``place``; it is called at most once, and the
    creator of the bound closes the store.
    """

    limit_bytes: int
    open_scratch: Callable[[], KeyedStore]
    place: str


class SpilledWrites:
    """What lies below the writes in memory once some have been spilled. Reads may come from several threads."""

    def __init__(self, below: KeyedStore, bound: WriteBound) -> None:
        self._below = below
        self._place = bound.place
        try:
            self._scratch = bound.open_scratch()
        except StoreError as error:
            raise self._failed(error) from error
        self.runs = 0
        self.entries = 0
        """Entries of all runs: a key counts once in each run that has it."""

    def add(self, changes: SortedChanges) -> None:
        """Add a run of sorted changes, each key once, over the earlier ones. On StoreError nothing is added."""
        try:
            self._scratch.apply(_Marked(changes), self.runs)
        except StoreError as error:
            raise self._failed(error) from error
        self.runs += 1
        self.entries += len(changes)

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, None when it is absent."""
        marked = self._scratch.get(key)
        return self._below.get(key) if marked is None else _unmarked(marked)

    def get_many(self, keys: list[bytes], piece_keys: int = 0) -> list[bytes | None]:
        """Return the values of the keys, in their order, None where absent."""
        found = self._scratch.get_many(keys, piece_keys)
        if None not in found:
            return [_unmarked(marked) for marked in found]  # type: ignore[arg-type]
        unknown = [index for index, marked in enumerate(found) if marked is None]
        if len(unknown) == len(keys):
            return self._below.get_many(keys, piece_keys)
        committed = self._below.get_many([keys[index] for index in unknown], piece_keys)
        values = [None if marked is None else _unmarked(marked) for marked in found]
        for index, value in zip(unknown, committed, strict=True):
            values[index] = value
        return values

    def apply_writes(
        self, keys: list[bytes], values: Sequence[bytes | None], piece_keys: int
    ) -> list[bytes | None]:
        """Apply the writes spilled by now to ``values``, which were read for ``keys`` at some earlier time."""
        found = self._scratch.get_many(keys, piece_keys)
        return [
            value if marked is None else _unmarked(marked)
            for marked, value in zip(found, values, strict=True)
        ]

    def scan(self, start: bytes, end: bytes | None, limit: int) -> list[tuple[bytes, bytes]]:
        """Return at most ``limit`` entries with start <= key < end, ascending; end None: to the last key."""
        return scan_over(self._spilled, self._below.scan, start, end, limit)

    def cold(self, positions: list[bytes]) -> list[bytes]:
        """Those of ``positions`` (keys that are not stored) at which a scan would now wait for a device."""
        return sorted({*self._scratch.cold(positions), *self._below.cold(positions)})

    def warm(self, positions: list[bytes]) -> None:
        """Load what a scan reads at ``positions`` (sorted); a hint, for threads other than the scanning one."""
        self._scratch.warm(positions)
        self._below.warm(positions)

    @property
    def warm_positions_max(self) -> int:
        """See ``KeyedStore``; the two share what memory there is."""
        return max(1, min(self._scratch.warm_positions_max, self._below.warm_positions_max) // 2)

    @property
    def block_bytes(self) -> int:
        """How many bytes one read of the device returns; 0 for a store that has none."""
        return self._below.block_bytes

    def pages(self, start: bytes) -> Iterator[Sequence[Change]]:
        """All spilled changes with key >= start, sorted, each key once."""
        while page := self._spilled(start, None, _PAGE_ENTRIES):
            yield page
            if len(page) < _PAGE_ENTRIES:
                return
            start = page[-1][0] + b"\0"

    def _spilled(self, start: bytes, end: bytes | None, limit: int) -> Sequence[Change]:
        return [(key, _unmarked(marked)) for key, marked in self._scratch.scan(start, end, limit)]

    def _failed(self, error: StoreError) -> StoreError:
        return StoreError(
            f"writes of this micro-batch could not be spilled to {self._place}: {error.__cause__ or error}. Free "
            "space on that disk, put async-state.local-dir on a larger one, or raise async-state.write-cache-size if "
            "memory allows"
        )


class SpilledChanges:
    """A micro-batch's changes, sorted, each key once: runs with the ``writes`` in memory applied over them.

    Can be iterated any number of times, each time from disk, with a page in memory. Nothing may be written meanwhile.
    """

    def __init__(
        self, spilled: SpilledWrites, writes: Mapping[bytes, bytes | None], keys: Sequence[bytes]
    ) -> None:
        self._spilled = spilled
        self._writes = writes
        self._keys = keys
        self._totals: tuple[int, int] | None = None

    def __iter__(self) -> Iterator[Change]:
        count = size_bytes = 0
        for change in self.starting_at(b""):
            count += 1
            size_bytes += len(change[0]) + len(change[1] or b"")
            yield change
        self._totals = count, size_bytes

    def starting_at(self, start: bytes) -> Iterator[Change]:
        """The changes with key >= start."""
        keys = self._keys[bisect_left(self._keys, start) :] if start else self._keys
        return changes_over(self._writes, keys, self._spilled.pages(start))

    def __len__(self) -> int:
        return self.totals[0]

    def __bool__(self) -> bool:
        return True  # something was spilled

    @property
    def totals(self) -> tuple[int, int]:
        """Number of changes, and bytes of their keys and values. Known after a complete iteration."""
        if self._totals is None:
            for _ in self:
                pass
        assert self._totals is not None
        return self._totals


def changes_from(changes: SortedChanges, start: bytes) -> Iterable[Change]:
    """The sorted ``changes`` with key >= start, without iterating over those before."""
    if isinstance(changes, SpilledChanges | ChangeColumns):
        return changes.starting_at(start)
    listed = changes if isinstance(changes, list) else list(changes)
    return listed[bisect_left(listed, start, key=itemgetter(0)) :]


class _Marked:
    """Changes encoded for a run: none of them is a delete of the scratch store."""

    def __init__(self, changes: SortedChanges) -> None:
        self._changes = changes

    def __iter__(self) -> Iterator[Change]:
        return ((key, _DELETED if value is None else _LIVE + value) for key, value in self._changes)

    def __len__(self) -> int:
        return len(self._changes)


def _unmarked(marked: bytes) -> bytes | None:
    return marked[1:] if marked else None


def scan_over(newer: NewerScan, older: OlderScan, start: bytes, end: bytes | None, limit: int) -> list[Entry]:
    """Return at most ``limit`` entries with start <= key < end, ascending, ``newer`` applied over ``older``."""
    found: list[Entry] = []
    page: list[Entry] = []
    more = True
    while len(found) < limit:
        wanted = limit - len(found)
        # Not once for each page of deletes: a seek passes over all that RocksDB has deleted.
        if more and not page:
            page = older(start, end, wanted)
            more = len(page) == wanted
        asked = max(wanted, _NEWER_MIN)
        merged, reached = _merge(page, more, newer(start, end, asked), asked)
        found += merged
        if reached is None:
            break
        start = reached + b"\0"
        page = page[bisect_right(page, reached, key=itemgetter(0)) :]
    return found[:limit]


def _merge(
    page: list[Entry], page_full: bool, mine: Sequence[Change], asked: int
) -> tuple[list[Entry], bytes | None]:
    """Merge two pages; also return up to which key both are complete, None for all."""
    if not mine:
        return page, page[-1][0] if page_full else None
    ends = ([page[-1][0]] if page_full else []) + ([mine[-1][0]] if len(mine) >= asked else [])
    reached = min(ends) if ends else None
    merged: dict[bytes, bytes | None] = dict(page)
    merged.update(mine)
    live = sorted((key, value) for key, value in merged.items() if value is not None)
    if reached is not None:
        live = [entry for entry in live if entry[0] <= reached]
    return live, reached


def changes_over(
    newer: Mapping[bytes, bytes | None], keys: Sequence[bytes], older: Iterable[Sequence[Change]]
) -> Iterator[Change]:
    """Yield the entries of ``older``, pages in key order, with those of ``newer`` under its sorted ``keys`` over them.

    Deletes of both are entries; each key comes once.
    """
    position = 0
    for page in older:
        stop = bisect_right(keys, page[-1][0], position)
        if stop == position:
            yield from page
            continue
        merged = dict(page)
        merged.update((key, newer[key]) for key in keys[position:stop])
        yield from sorted(merged.items())
        position = stop
    for key in keys[position:]:
        yield key, newer[key]
