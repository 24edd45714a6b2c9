"""The writes of a micro-batch: in a dict up to a bound, in sorted runs on disk beyond it, as a delta at the end.

Owns: WriteBuffer, and SizeEstimator, which estimates how much memory they take. Invariants: ``entries`` stays the same
dict, because others write with its own method; a key, once written, stays in it up to the next spill (a delete stores
None), so the dict's insertion order shows which keys are new. Buffered columns precede every entry in ``entries`` and
are within the bound by themselves. The limit counts as reached only by a count of all entries. Until then, new entries
are estimated from a sample; old ones, which may have got larger values, are counted again once all of them may have.
Must not import rocksdict, lease or the memtable.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, islice
from operator import itemgetter, lt
from typing import Final

from sortedcontainers import SortedList

from asyncstate.codec import STATE_ID_AT, STATE_PREFIX_BYTES
from asyncstate.metrics import Bytes, Count, Limit, MaxGauge
from asyncstate.storage.keyed_store import Change, ChangeColumns, KeyedStore, SortedChanges
from asyncstate.storage.spill import SpilledChanges, SpilledWrites, WriteBound
from asyncstate.storage.value_cache import ENTRY_OVERHEAD_BYTES, Entries, size_of

_key = itemgetter(0)

_SAMPLED: Final = 64  # of the new entries; some microseconds
_RECOUNT_ROWS: Final = 2  # rows per entry after which all are counted: old keys may have got larger values
_LOOKS: Final = 16  # while the writes grow by the limit
_FIRST_ROW_BYTES: Final = (
    64 << 10
)  # assumed size of a row's writes before any was seen: the first check is early


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteStatistics:
    """The writes of a micro-batch. Before ``changes``, what was spilled and then written again counts twice.

    ``changes``: entries written or deleted, ``change_bytes`` long. ``spills``: moves to disk of ``spilled_bytes`` of
    keys and values. ``write_cache_bytes_peak``: memory of writes, estimated, within ``write_cache_bytes_limit`` (None:
    without a bound).
    """

    changes: Count
    change_bytes: Bytes
    spills: Count
    spilled_bytes: Bytes
    write_cache_bytes_peak: MaxGauge
    write_cache_bytes_limit: Limit | None


class WriteBuffer:
    """Writes over ``store``; without a bound all of them stay in memory."""

    def __init__(self, store: KeyedStore, bound: WriteBound | None) -> None:
        self.entries: Entries = {}
        self.meter = SizeEstimator(self.entries, sys.maxsize if bound is None else bound.limit_bytes)
        self.spilled: SpilledWrites | None = None
        """What has been spilled, over the store; None before the first spill."""
        self._store = store
        self._bound = bound
        self._sorted: SortedList = SortedList()
        self._spilled_bytes = self._peak_bytes = 0
        self._held: ChangeColumns | None = None
        self._finished: list[ChangeColumns] = []
        self._held_bytes = self._finished_bytes = 0
        self._entries_bytes: int | None = None
        self._changes: SpilledChanges | None = None
        self._union: tuple[int, int] | None = None

    def hold(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> bool:
        """Buffer columns of writes if they are the first in memory, sorted, and within the bound; True if so.

        The last bundle of a micro-batch is written and not read again, so its keys need no dict and no sorting. A
        reader must call ``settle`` first. The caller gives up the sequences.
        """
        if not keys or self._held or self.entries or not all(map(lt, keys, islice(keys, 1, None))):
            return False
        size_bytes = size_of(keys, values)
        if self._bound is not None and size_bytes > self._bound.limit_bytes:
            return False
        self._held, self._held_bytes = ChangeColumns(keys, values), size_bytes
        return True

    def finish(self, keys: Sequence[bytes], values: Sequence[bytes | None], size_bytes: int) -> bool:
        """Buffer the last writes of a state as they are: sorted, each key once, newer than all others of these keys,
        and not read again. False if all writes together exceed the memory bound, or did before: then write them like
        all others, so that they can be spilled. The caller gives up the sequences."""
        size_bytes += ENTRY_OVERHEAD_BYTES * len(keys)
        in_memory = self.meter.size_bytes + self._held_bytes + self._finished_bytes
        if self._bound is not None and (
            self.spilled is not None or in_memory + size_bytes > self._bound.limit_bytes
        ):
            self._write_finished()
            return False
        # A state may have written before, as a cache does with rows that it evicts: of two values the newer one counts.
        if self._held is not None and _state_of(self._held.sorted_keys) == _state_of(keys):
            self.settle()
            self.meter.look(0)
        self._finished.append(ChangeColumns(keys, values))
        self._finished_bytes += size_bytes
        return True

    def _write_finished(self) -> None:
        """Move the final writes of states to all other writes; otherwise they would outlive a spill."""
        if self._finished:
            self.settle()
            for piece in self._finished:
                self.entries.update(piece)
            self._finished, self._finished_bytes = [], 0

    def settle(self) -> None:
        """Merge buffered columns into ``entries``, whose own values are newer."""
        if self._held is None:
            return
        newer = self.entries.copy()
        self.entries.clear()
        self.entries.update(self._held)
        self.entries.update(newer)
        self._held, self._held_bytes = None, 0

    def scan(self, start: bytes, end: bytes | None, count: int) -> list[Change]:
        """The first ``count`` writes in memory with start <= key < end."""
        # Keys leave the dict only all at once, so those written since the last scan are its last ones: point-only
        # states keep no list of them, and a scan after few writes examines few.
        if new := len(self.entries) - len(self._sorted):
            self._sorted.update(islice(reversed(self.entries), new))
        keys = list(islice(self._sorted.irange(start, end, inclusive=(True, False)), count))
        return list(zip(keys, map(self.entries.__getitem__, keys), strict=True))

    def spill(self) -> SpilledWrites | None:
        """Write what is in memory to disk; call ``clear`` next. None when there is nothing to do.

        Raises StoreError with nothing lost.
        """
        assert self._held is None, (
            "buffered columns precede the entries: they are materialized before the entries move"
        )
        if self._bound is None:
            return None
        self._write_finished()
        if not self.entries:
            return None
        if self.spilled is None:
            self.spilled = SpilledWrites(self._store, self._bound)
        self.spilled.add(self._sorted_entries())
        self._entries_bytes = size_in_memory(self.entries)
        return self.spilled

    def readable_bytes(self) -> int:
        """Estimated memory of the writes that may be read; walks over them, except after ``spill`` and
        ``changes``."""
        found = self._entries_bytes
        return self._held_bytes + (size_in_memory(self.entries) if found is None else found)

    def clear(self) -> None:
        """Release what has been spilled."""
        in_memory = self.readable_bytes()
        self._spilled_bytes += in_memory - ENTRY_OVERHEAD_BYTES * len(self.entries)
        self._peak_bytes = max(self._peak_bytes, in_memory)
        self.entries.clear()
        self._sorted.clear()
        self._entries_bytes = None
        self.meter.emptied()

    def changes(self) -> SortedChanges:
        """All writes sorted by key; None marks a delete. All in memory, unless writes have been spilled.

        The end of the micro-batch: nothing may be written after it.
        """
        pieces = self._finished if self._held is None else [self._held, *self._finished]
        if not self.entries and self.spilled is None and pieces:
            # No key is in two of the parts, each of which is sorted: sorting merges them. See ``finish``.
            return pieces[0] if len(pieces) == 1 else sorted(chain.from_iterable(pieces), key=_key)
        self.settle()
        self._entries_bytes = size_in_memory(self.entries)
        if self.spilled is not None:
            assert not self._finished, "final writes were spilled or written"
            self._changes = SpilledChanges(self.spilled, self.entries, sorted(self.entries))
            return self._changes
        if not self._finished:
            return self._sorted_entries()
        writes = self.entries.copy()  # final writes are not visible to others
        for piece in self._finished:
            writes.update(piece)
        self._union = len(writes), size_in_memory(writes) - ENTRY_OVERHEAD_BYTES * len(writes)
        return sorted(writes.items(), key=_key)

    def _sorted_entries(self) -> list[Change]:
        if len(self._sorted) == len(self.entries):
            return list(zip(self._sorted, map(self.entries.__getitem__, self._sorted), strict=True))
        # With their values: looking each up afterwards takes longer than sorting, because of processor cache misses.
        return sorted(self.entries.items(), key=_key)

    def statistics(self) -> WriteStatistics:
        """The statistics of this micro-batch."""
        in_memory = self.readable_bytes() + self._finished_bytes
        if self._changes is not None:
            changes, change_bytes = self._changes.totals
        elif self._union is not None:
            changes, change_bytes = self._union
        else:
            held = 0 if self._held is None else len(self._held)
            entries = len(self.entries) + held + sum(map(len, self._finished))
            changes = entries + (0 if self.spilled is None else self.spilled.entries)
            change_bytes = self._spilled_bytes + in_memory - ENTRY_OVERHEAD_BYTES * entries
        return WriteStatistics(
            changes=changes,
            change_bytes=change_bytes,
            spills=0 if self.spilled is None else self.spilled.runs,
            spilled_bytes=self._spilled_bytes,
            write_cache_bytes_peak=max(self._peak_bytes, in_memory),
            write_cache_bytes_limit=None if self._bound is None else self._bound.limit_bytes,
        )


class SizeEstimator:
    """Keeps an estimate of the size of ``writes``, including the overhead of a dict entry.

    Writes go into a dict by its own method, so no code sees them one by one. The estimate is checked between slices of
    rows and after bundles; a check costs some microseconds on average, whatever the number of writes.
    """

    def __init__(self, writes: Entries, limit_bytes: int) -> None:
        self.size_bytes = 0.0
        """The estimate as of the last check."""
        self._writes = writes
        self._limit_bytes = limit_bytes
        self._row_bytes = float(_FIRST_ROW_BYTES)
        self.emptied()

    def emptied(self) -> None:
        """The writes have been moved away."""
        self.size_bytes, self._entries, self._rows = 0.0, 0, 0
        self._exceeded = False

    def look(
        self,
        rows: int,
        keys: Sequence[bytes] | None = None,
        values: Sequence[bytes | None] | None = None,
    ) -> bool:
        """Count what ``rows`` rows have written; True when all writes together exceed the limit.

        ``keys`` and ``values``: what they have written, where known; without values they were deletes.
        """
        before, self._rows = self.size_bytes, self._rows + rows
        new = len(self._writes) - self._entries
        if new > 0:
            self.size_bytes += _scaled(keys, values, new) if keys else self._newest(new)
            self._entries += new
        if self._rows > _RECOUNT_ROWS * self._entries or self.size_bytes > self._limit_bytes:
            self._count_all()
        if rows:
            self._row_bytes = max((self.size_bytes - before) / rows, self._row_bytes / 2)
        return self._exceeded

    def rows_to_look(self, rows_max: int) -> int:
        """After how many rows to check again, at most ``rows_max``: fewer the more they write."""
        share = self._limit_bytes / _LOOKS
        return rows_max if share >= rows_max * self._row_bytes else max(1, int(share / self._row_bytes))

    def _count_all(self) -> None:
        if self._exceeded:
            return  # until they are moved away
        self.size_bytes, self._rows = size_in_memory(self._writes), 0
        self._exceeded = self.size_bytes > self._limit_bytes

    def _newest(self, count: int) -> float:
        """The size of the ``count`` newest entries."""
        sampled = min(count, _SAMPLED)
        keys = list(islice(reversed(self._writes), sampled))
        return size_of(keys, islice(reversed(self._writes.values()), sampled)) * count / sampled


def _state_of(keys: Sequence[bytes]) -> bytes:
    """The id of the one state that ``keys``, at least one, belong to."""
    return keys[0][STATE_ID_AT:STATE_PREFIX_BYTES]


def size_in_memory(entries: Entries) -> int:
    """Estimated memory of all ``entries``; walks them."""
    return size_of(entries, entries.values())


def _scaled(keys: Sequence[bytes], values: Sequence[bytes | None] | None, count: int) -> float:
    """The estimated size of ``count`` entries, from a sample of those given at equal distances."""
    step = -(-len(keys) // _SAMPLED)
    sampled = keys[::step]
    return size_of(sampled, () if values is None else values[::step]) * count / len(sampled)
