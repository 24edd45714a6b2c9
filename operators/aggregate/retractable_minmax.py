"""Minima and maxima of retractable values: the values of each key, with the count of each.

Owns: ``Multiset`` and its state, a log of (value, count) rows per key.
Invariant: summed over the log, the counts are the net changes of the key; the state column of the extreme is
the smallest (largest) value with a positive sum, or null.
Must not import anything of ``asyncstate`` but ``codec``, ``futures``, ``operator`` and ``state``.

The whole log of a key is read only if its current extreme is retracted, or if the log has grown to twice the number
of remaining values; it is then rewritten without the rows that cancel out. All other changes are appended without a
read, so the cost of a bundle does not grow with the number of a key's values.

Source: Flink's ``MinWithRetractAggFunction``, which keeps the same counts in a MapView.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from asyncstate.codec import KeyBatch
from asyncstate.codec.sorting import rows_by
from asyncstate.futures import StateFuture, completed_future
from asyncstate.operator import OperatorContext
from asyncstate.state.columnar.list_blocks import ListHeads
from asyncstate.state.columnar.list_columns import ListColumns, ListColumnState, ListColumnStateDescriptor
from asyncstate.state.columnar.state_columns import ColumnState

from ..core.arrays import BoolArray, Int8Array, Int64Array, run_begins
from ..core.row_kinds import distinct
from ..core.segments import Groups, group_extreme, pair_extreme, value_order
from .accumulators import Extreme
from .aggregator import counted_rows

_SPARE_ROWS = 64
"""Rows a log may have in excess of twice the remaining values: those of one head."""


class ValueCounts(NamedTuple):
    """m rows in order of (key, value): the key's index, the value, and its count (not 0, may be < 0)."""

    owners: Int64Array
    values: pa.Array
    counts: Int64Array

    @staticmethod
    def netted(owners: npt.NDArray[np.integer], values: pa.Array, counts: Int64Array) -> ValueCounts:
        """Rows in any order, summed by key and value, without those that cancel out."""
        if not len(owners):
            return ValueCounts(np.empty(0, np.int64), values, counts)
        codes = value_order(values)
        order = rows_by(owners, codes)
        sorted_owners: Int64Array = owners[order].astype(np.int64)
        starts = np.flatnonzero(run_begins(sorted_owners, codes[order]))
        sums = np.add.reduceat(counts[order], starts)
        kept = starts[sums != 0]
        return ValueCounts(sorted_owners[kept], values.take(pa.array(order[kept])), sums[sums != 0])

    def chosen(self, mask: BoolArray) -> ValueCounts:
        """The rows where ``mask`` (m) is true."""
        return ValueCounts(self.owners[mask], self.values.filter(pa.array(mask)), self.counts[mask])

    def extremes(self, keys: int, largest: bool) -> pa.Array:
        """Per key, the largest or smallest value with a positive count; null without one."""
        there = self.chosen(self.counts > 0)
        if not len(there.owners):
            return pa.nulls(keys, self.values.type)
        found, ids = np.unique(there.owners, return_inverse=True)
        best = group_extreme(there.values, Groups.of_ids(ids, len(found)), largest)
        rows = np.zeros(keys, np.int64)
        rows[found] = np.arange(len(found))
        missing = np.ones(keys, np.bool_)
        missing[found] = False
        return best.take(pa.array(rows, mask=missing))


class Multiset:
    """The values of one (column, condition); serves a minimum and a maximum at once.

    ``extremes`` lists the state columns it determines: (index in the plan's states, largest?). ``count`` is the
    index of the state column with the number of values.
    """

    def __init__(self, part: Extreme, count: int) -> None:
        self._part = part
        self.count = count
        self.extremes: list[tuple[int, bool]] = []
        suffix = part.name.partition(".")[2]
        self.schema = pa.schema([pa.field("value", part.type), pa.field("count", pa.int64())])
        self.state_name = f"values.{suffix}"

    def changes(self, batch: pa.RecordBatch, keys: KeyBatch, signs: Int8Array) -> ValueCounts:
        """The net changes of a bundle's rows; ``signs`` (n) is +1, -1, or 0 for rows that are ignored."""
        mask = counted_rows(batch, (self._part.column,), self._part.condition, signs)
        values = batch.column(self._part.column)
        if mask is None or mask.all():
            return ValueCounts.netted(keys.inverse, values, signs.astype(np.int64))
        return ValueCounts.netted(
            keys.inverse[mask], values.filter(pa.array(mask)), signs[mask].astype(np.int64)
        )

    def open(self, context: OperatorContext, time_first: bool = False) -> MultisetState:
        """Declare the state; ``time_first`` if its keys have namespaces."""
        descriptor = ListColumnStateDescriptor(
            self.state_name, self.schema, fixed_fields=True, time_first=time_first
        )
        return MultisetState(self, context.get_state(descriptor))


class MultisetState:
    """A Multiset with its stored logs."""

    def __init__(self, multiset: Multiset, logs: ListColumnState) -> None:
        self.multiset = multiset
        self._logs = logs

    def prefetch(self, keys: KeyBatch) -> None:
        """Start to load the data that ``async_heads`` reads."""
        self._logs.prefetch(keys)

    def remove(self, keys: KeyBatch) -> None:
        """Remove the values of ``keys``."""
        self._logs.remove(keys)

    def async_heads(self, keys: KeyBatch) -> StateFuture[ListHeads]:
        """A future of the sizes of the logs of ``keys``, to pass to ``update``."""
        return self._logs.async_heads(keys)

    def expire_with(self, state: ColumnState) -> None:
        """Expire the logs together with the rows of the same keys in ``state``."""
        state.cascade_expiry(self._logs)

    def forget(self, keys: KeyBatch, heads: ListHeads, expired: BoolArray) -> ListHeads:
        """Remove the logs, if any, of the keys that are ``expired`` (u); return the heads without them."""
        expired = expired & (heads.counts > 0)
        if not expired.any():
            return heads
        self._logs.remove(keys.select(expired), heads.select(expired))
        return heads.without(expired)

    def update(
        self, keys: KeyBatch, heads: ListHeads, changes: ValueCounts, new: list[pa.Array]
    ) -> StateFuture[None]:
        """Write ``changes`` and update the extremes in ``new``, the merged states of the u keys.

        The log of a key whose row count is 0 is removed.
        """
        alive = new[0].to_numpy() > 0
        dead = ~alive
        if dead.any():
            self._logs.remove(keys.select(dead), heads.select(dead))
            changes = changes.chosen(alive[changes.owners])
        self._raise_extremes(changes, new)
        rewritten = self._to_rewrite(heads, changes, new) & alive
        appended = changes.chosen(~rewritten[changes.owners])
        self._append(keys, heads, appended)
        if not rewritten.any():
            return completed_future(None)
        position = np.flatnonzero(rewritten)
        read = self._logs.async_rows(heads.select(rewritten))
        return read.then_accept(lambda log: self._rewrite(keys, heads, position, log, changes, new))

    def _raise_extremes(self, changes: ValueCounts, new: list[pa.Array]) -> None:
        for index, largest in self.multiset.extremes:
            new[index] = pair_extreme(new[index], changes.extremes(len(new[0]), largest), largest)

    def _to_rewrite(self, heads: ListHeads, changes: ValueCounts, new: list[pa.Array]) -> BoolArray:
        added = np.bincount(changes.owners, minlength=len(new[0]))
        left = new[self.multiset.count].to_numpy()
        rewritten: BoolArray = (added > 0) & (heads.counts + added > 2 * np.maximum(left, 0) + _SPARE_ROWS)
        taken = changes.chosen(changes.counts < 0)
        owners = pa.array(taken.owners)
        for index, _ in self.multiset.extremes:
            hit = ~distinct([taken.values], [new[index].take(owners)], len(owners))
            rewritten[taken.owners[hit]] = True
        return rewritten

    def _rewrite(
        self,
        keys: KeyBatch,
        heads: ListHeads,
        position: Int64Array,
        log: ListColumns,
        changes: ValueCounts,
        new: list[pa.Array],
    ) -> None:
        chosen = np.zeros(len(keys), np.bool_)
        chosen[position] = True
        added = changes.chosen(chosen[changes.owners])
        rows = ValueCounts.netted(
            np.concatenate([position[log.key_index], added.owners]),
            pa.concat_arrays([log.columns[0], added.values]),
            np.concatenate([log.columns[1].to_numpy(), added.counts]),
        )
        for index, largest in self.multiset.extremes:
            found = rows.extremes(len(keys), largest)
            new[index] = pa.concat_arrays([new[index], found]).take(
                pa.array(np.arange(len(keys)) + np.where(chosen, len(keys), 0))
            )
        local = np.cumsum(chosen) - 1
        self._logs.put(
            keys.select(chosen),
            [rows.values, pa.array(rows.counts)],
            local[rows.owners],
            heads.select(chosen),
        )

    def _append(self, keys: KeyBatch, heads: ListHeads, rows: ValueCounts) -> None:
        if len(rows.owners):
            self._logs.append(keys, [rows.values, pa.array(rows.counts)], rows.owners, heads)
