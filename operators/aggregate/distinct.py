"""DISTINCT: how often each key has each value, so that only the first and the last of equal ones count.

Owns: ``DistinctValues`` and its state, ``distinct.<columns>``, by key and value.
Invariant: a value counts once from the first row that has it on until the last one is taken back; aggregates of other
columns or with another condition know nothing of it. Over inserts alone the state is a set of values, over a changelog
it has counts.
Must not import anything of ``asyncstate`` but ``codec``, ``futures``, ``operator`` and ``state``.

Source: Flink's ``DistinctAggCodeGen``, which keeps the counts in a MapView; here aggregates with different filters
share nothing of it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from asyncstate.codec import KeyBatch
from asyncstate.codec.key_batch import UserKeyBatch
from asyncstate.futures import StateFuture
from asyncstate.operator import OperatorContext
from asyncstate.state.column_maps import ColumnMapState, ColumnMapStateDescriptor
from asyncstate.state.columns import Columns, ColumnState
from operators.aggregate.aggregator import chosen_rows
from operators.core.arrays import BoolArray, Int8Array, Int64Array, IntArray, take_rows

_COUNT = pa.schema([pa.field("count", pa.int64(), nullable=False)])
_MARK = pa.schema([])


class DistinctValues:
    """The values of one or more ``columns`` in the rows that meet ``condition``. Null is a value like others."""

    def __init__(self, columns: tuple[str, ...], condition: str | None, schema: pa.Schema) -> None:
        self.columns = columns
        self.condition = condition
        self.key_schema = pa.schema([schema.field(name) for name in columns])
        suffix = f".where.{condition}" if condition else ""
        self.state_name = f"distinct.{','.join(columns)}{suffix}"

    def open(self, context: OperatorContext, counted: bool, time_first: bool = False) -> DistinctState:
        """Declare the state; ``counted`` where rows are taken back, ``time_first`` where keys have namespaces."""
        descriptor = ColumnMapStateDescriptor(
            self.state_name,
            self.key_schema,
            _COUNT if counted else _MARK,
            fixed_fields=True,
            time_first=time_first,
        )
        return DistinctState(self, context.get_state(descriptor), counted)


class ReadValues(NamedTuple):
    """The pairs of key and value that m ``rows`` of a bundle have, and how often each was there."""

    rows: Int64Array
    pairs: UserKeyBatch
    counts: Int64Array

    def without(self, gone: BoolArray) -> ReadValues:
        """As if the keys that are ``gone`` (u) had no values."""
        return self._replace(counts=np.where(gone[self.pairs.key_index], 0, self.counts))


class DistinctState:
    """How often the keys have the values."""

    def __init__(self, values: DistinctValues, state: ColumnMapState, counted: bool) -> None:
        self._values = values
        self._state = state
        self._counted = counted

    def async_read(self, batch: pa.RecordBatch, keys: KeyBatch) -> StateFuture[ReadValues]:
        """A future of what is known of the values of the rows: one list get."""
        mask = chosen_rows(batch, (), self._values.condition)
        rows = np.arange(batch.num_rows) if mask is None else np.flatnonzero(mask)
        columns = take_rows([batch.column(name) for name in self._values.columns], rows)
        pairs = keys.with_user_keys(columns, keys.inverse[rows])
        return self._state.async_get(pairs).then_apply(
            lambda stored: ReadValues(rows, pairs, self._counts(stored))
        )

    def _counts(self, stored: Columns) -> Int64Array:
        return (stored.numpy(0) if self._counted else stored.present).astype(np.int64)

    def update(self, read: ReadValues, signs: Int8Array | None, num_rows: int) -> Int8Array:
        """Count the rows, and tell (n) which of them count: +1 where a value comes, -1 where it goes, else 0."""
        rows, pair = read.rows, read.pairs.inverse
        weights = np.ones(len(rows), np.int64) if signs is None else signs[rows].astype(np.int64)
        old = read.counts
        new = np.maximum(old + _summed(pair, weights, len(old)), 0)
        self._write(read.pairs, old, new)
        shown = np.zeros(num_rows, np.int8)
        for sign, changed in ((1, (old == 0) & (new > 0)), (-1, (old > 0) & (new == 0))):
            candidates = np.flatnonzero((weights == sign) & changed[pair])
            _, first = np.unique(pair[candidates], return_index=True)
            shown[rows[candidates[first]]] = sign
        return shown

    def _write(self, pairs: UserKeyBatch, old: Int64Array, new: Int64Array) -> None:
        if not self._counted:
            come = (old == 0) & (new > 0)
            if come.any():
                self._state.put(pairs.select(come), [])
            return
        changed = old != new
        if changed.any():
            self._state.write(pairs.select(changed), [pa.array(new[changed])], new[changed] > 0)

    def remove(self, keys: KeyBatch) -> None:
        """Forget the values of ``keys``."""
        self._state.remove_all(keys)

    def expire_with(self, state: ColumnState) -> None:
        """Have the values go when the rows of the same keys in ``state`` expire."""
        state.take_along(self._state)


def _summed(ids: IntArray, weights: Int64Array, count: int) -> Int64Array:
    sums = np.zeros(count, np.int64)
    np.add.at(sums, ids, weights)
    return sums
