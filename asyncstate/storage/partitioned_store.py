"""The stores of consecutive partitions as one store, for a task that runs several of them.

Owns: ``PartitionedStore``, and ``split_changes``, which gives each partition its part of a task's changes.
Invariant: partitions have ascending, disjoint ranges of key groups, so their stores one after the other are in key
order; broadcast state, whose keys come after all groups, is the same in each of them. Must not import rocksdict.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter

from asyncstate.codec import BROADCAST_GROUP
from asyncstate.storage.keyed_store import Change, ChangeColumns, KeyedStore, SortedChanges, StoreStatistics
from asyncstate.storage.spill import changes_from


class PartitionedStore(KeyedStore):
    """Reads ``stores`` as one; ``starts`` has the first key group of each, as bytes. Each of them is changed and closed
    by its own lease."""

    def __init__(self, stores: Sequence[KeyedStore], starts: Sequence[bytes]) -> None:
        self._stores = stores
        self._starts = starts
        self.version = stores[0].version

    def _owner(self, key: bytes) -> int:
        return max(bisect_right(self._starts, key) - 1, 0)

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, None when it is absent."""
        return self._stores[self._owner(key)].get(key)

    def get_many(self, keys: list[bytes], piece_keys: int = 0) -> list[bytes | None]:
        """Return the values of the keys, in their order, None where absent."""
        values: list[bytes | None] = [None] * len(keys)
        for store, places in self._split(keys):
            found = store.get_many([keys[at] for at in places], piece_keys)
            for at, value in zip(places, found, strict=True):
                values[at] = value
        return values

    def scan(self, start: bytes, end: bytes | None, limit: int) -> list[tuple[bytes, bytes]]:
        """Return at most ``limit`` entries with start <= key < end, ascending; end None: to the last key."""
        page: list[tuple[bytes, bytes]] = []
        for owner in range(self._owner(start), len(self._stores)):
            # Without this bound it would continue with the broadcast state, which the last one has, too.
            following = self._starts[owner + 1] if owner + 1 < len(self._stores) else None
            is_last = following is None or (end is not None and end <= following)
            page += self._stores[owner].scan(start, end if is_last else following, limit - len(page))
            if is_last or len(page) >= limit:
                break
        return page

    def cold(self, positions: list[bytes]) -> list[bytes]:
        """Those of ``positions`` at which a scan would now wait for a device."""
        split = self._split(positions)
        return [one for store, places in split for one in store.cold([positions[at] for at in places])]

    def warm(self, positions: list[bytes]) -> None:
        """Load what a scan reads at ``positions`` (sorted)."""
        for store, places in self._split(positions):
            store.warm([positions[at] for at in places])

    def _split(self, keys: list[bytes]) -> Iterator[tuple[KeyedStore, list[int]]]:
        """The stores that ``keys`` belong to, with the places of their keys."""
        owners = list(map(self._owner, keys))
        for owner, places in groupby(sorted(range(len(keys)), key=owners.__getitem__), owners.__getitem__):
            yield self._stores[owner], list(places)

    @property
    def warm_positions_max(self) -> int:
        """How many positions can be loaded at the same time."""
        return min(store.warm_positions_max for store in self._stores)

    @property
    def block_bytes(self) -> int:
        """How many bytes one read of the device returns."""
        return self._stores[0].block_bytes

    def apply(self, changes: SortedChanges, version: int) -> None:
        """Never called: each store gets its part with the next lease."""
        raise AssertionError("changes are committed by partition")

    def statistics(self) -> StoreStatistics:
        """Never called: each lease reports its own store."""
        raise AssertionError("statistics are those of a partition's store")

    def close(self) -> None:
        """See ``KeyedStore``; the leases close the stores."""


def split_changes(changes: SortedChanges, starts: Sequence[bytes]) -> Iterator[SortedChanges]:
    """The part of ``changes`` of each partition, by the first key group of each; all get those of broadcast state."""
    bounds = [*starts[1:], BROADCAST_GROUP]
    if isinstance(changes, ChangeColumns):
        keys, values = changes.sorted_keys, changes.values
        for first, end, shared in _cuts(lambda key: bisect_left(keys, key), bounds):
            yield ChangeColumns([*keys[first:end], *keys[shared:]], [*values[first:end], *values[shared:]])
    elif isinstance(changes, list):
        listed: list[Change] = changes
        for first, end, shared in _cuts(lambda key: bisect_left(listed, key, key=itemgetter(0)), bounds):
            yield [*listed[first:end], *listed[shared:]]
    else:
        yield from (_Part(changes, *own) for own in zip(starts, bounds, strict=True))


def _cuts(place: Callable[[bytes], int], bounds: Sequence[bytes]) -> Iterator[tuple[int, int, int]]:
    """For each partition the first and the end of its own changes, and the first that all have."""
    first, shared = 0, place(bounds[-1])
    for bound in bounds:
        end = place(bound)
        yield first, end, shared
        first = end


class _Part:
    """The changes of one partition, of more than memory holds."""

    def __init__(self, changes: SortedChanges, start: bytes, end: bytes) -> None:
        self._changes = changes
        self._start = start
        self._end = end

    def __iter__(self) -> Iterator[Change]:
        for change in changes_from(self._changes, self._start):
            if change[0] >= self._end:
                break
            yield change
        yield from changes_from(self._changes, BROADCAST_GROUP)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __bool__(self) -> bool:
        return next(iter(self), None) is not None  # the length takes all of them
