"""DISTINCT: how often each key has each value, so that only the first and the last of equal rows count.

Owns: ``DistinctValues`` and its state, ``distinct.<columns>``, by key and value; ``first_of_values``, for rows without
such a state.
Invariant: a value counts once, from the first row with it until the last one is retracted, separately for each
condition: aggregates with different filters share the entry of a value, but not its counts. Over inserts only, the
state has a mark per condition; over a changelog, a count.
Must not import anything of ``asyncstate`` but ``codec``, ``futures``, ``operator`` and ``state``.

Source: Flink's ``DistinctAggCodeGen``, which keeps such entries in a MapView.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from asyncstate.codec import KeyBatch
from asyncstate.codec.key_batch import UserKeyBatch
from asyncstate.futures import StateFuture
from asyncstate.operator import OperatorContext
from asyncstate.state.columnar.column_maps import ColumnMapState, ColumnMapStateDescriptor
from asyncstate.state.columnar.state_columns import Columns, ColumnState

from ..core.arrays import BoolArray, Int8Array, Int64Array, last_of, row_ids
from .aggregator import chosen_rows


class DistinctValues:
    """The values of one or more ``columns``, for each of the ``conditions`` under which they are counted.

    Null is a value like any other.
    """

    def __init__(self, columns: tuple[str, ...], schema: pa.Schema) -> None:
        self.columns = columns
        self.conditions: list[str | None] = []
        self.key_schema = pa.schema([schema.field(name) for name in columns])

    def under(self, condition: str | None) -> int:
        """The index of a condition; a new one is added."""
        if condition not in self.conditions:
            self.conditions.append(condition)
        return self.conditions.index(condition)

    def open(self, context: OperatorContext, counted: bool, time_first: bool = False) -> DistinctState:
        """Declare the state; ``counted`` if rows are retracted, ``time_first`` if keys have namespaces."""
        kind = pa.int64() if counted else pa.bool_()
        name = "count" if counted else "seen"
        fields = [
            pa.field(name if condition is None else f"{name}.where.{condition}", kind, nullable=False)
            for condition in self.conditions
        ]
        descriptor = ColumnMapStateDescriptor(
            f"distinct.{','.join(self.columns)}",
            self.key_schema,
            pa.schema(fields),
            fixed_fields=True,
            time_first=time_first,
        )
        return DistinctState(self, context.get_state(descriptor), kind)


class ReadValues(NamedTuple):
    """The pairs of key and value in the rows of a bundle, and the previous count of each: one array per condition."""

    pairs: UserKeyBatch
    counts: list[Int64Array]

    def without(self, gone: BoolArray) -> ReadValues:
        """The same, as if the keys where ``gone`` (u) is true had no values."""
        lost = gone[self.pairs.key_index]
        return self._replace(counts=[np.where(lost, 0, counts) for counts in self.counts])


class DistinctState:
    """How often the keys have the values."""

    def __init__(self, values: DistinctValues, state: ColumnMapState, kind: pa.DataType) -> None:
        self._values = values
        self._state = state
        self._kind = kind

    def async_read(
        self, batch: pa.RecordBatch, keys: KeyBatch, index: npt.NDArray[np.integer] | None = None
    ) -> StateFuture[ReadValues]:
        """A future of the stored counts of the rows' values: one list get. ``index`` as in ``with_user_keys``."""
        pairs = keys.with_user_keys([batch.column(name) for name in self._values.columns], index)
        return self._state.async_get(pairs).then_apply(lambda stored: ReadValues(pairs, self._counts(stored)))

    def update(self, read: ReadValues, batch: pa.RecordBatch, signs: Int8Array | None) -> list[Int8Array]:
        """Count the rows; return for each condition the signs (n): +1 for a row with which a value appears, -1 for one
        with which it disappears, else 0."""
        all_added = np.ones(batch.num_rows, np.int8) if signs is None else signs
        shown, new = [], []
        for condition, counts in zip(self._values.conditions, read.counts, strict=True):
            mask = chosen_rows(batch, (), condition)
            weights = all_added if mask is None else np.where(mask, all_added, 0).astype(np.int8)
            after = _after(counts, read.pairs, weights)
            shown.append(_turning(counts, after, read.pairs, weights))
            new.append(after)
        self._write(read, new)
        return shown

    def remove(self, keys: KeyBatch) -> None:
        """Remove the values of ``keys``."""
        self._state.remove_all(keys)

    def expire_with(self, state: ColumnState) -> None:
        """Expire the values together with the rows of the same keys in ``state``."""
        state.cascade_expiry(self._state)

    def _counts(self, stored: Columns) -> list[Int64Array]:
        absent = False if self._kind == pa.bool_() else 0
        return [stored.numpy(field, absent).astype(np.int64) for field in range(len(self._values.conditions))]

    def _write(self, read: ReadValues, new: list[Int64Array]) -> None:
        stored = [self._as_stored(counts) for counts in new]
        changed, there = np.zeros(len(read.pairs), np.bool_), np.zeros(len(read.pairs), np.bool_)
        for old, column in zip(map(self._as_stored, read.counts), stored, strict=True):
            changed |= old != column
            there |= column != 0
        if changed.any():
            columns = [pa.array(column[changed], self._kind) for column in stored]
            self._state.write(read.pairs.select(changed), columns, there[changed])

    def _as_stored(self, counts: Int64Array) -> BoolArray | Int64Array:
        return counts > 0 if self._kind == pa.bool_() else counts


def _after(counts: Int64Array, pairs: UserKeyBatch, weights: Int8Array) -> Int64Array:
    """The count of each pair after the rows, at least 0."""
    added = np.bincount(pairs.inverse, weights, len(pairs)).astype(np.int64)
    after: Int64Array = np.maximum(counts + added, 0)
    return after


def _turning(old: Int64Array, new: Int64Array, pairs: UserKeyBatch, weights: Int8Array) -> Int8Array:
    """Signs (n): +1 for the first added row of each pair that appears, -1 for the first retracted row of each pair that
    disappears, else 0."""
    shown = np.zeros(len(weights), np.int8)
    for sign, changed in ((1, (old == 0) & (new > 0)), (-1, (old > 0) & (new == 0))):
        if changed.any():
            rows = np.flatnonzero((weights == sign) & changed[pairs.inverse])[::-1]
            first = last_of(pairs.inverse[rows], rows, len(pairs))
            shown[first[changed]] = sign
    return shown


def first_of_values(values: DistinctValues, batch: pa.RecordBatch, owners: Int64Array) -> list[Int8Array]:
    """Signs (n) for each condition: +1 for the first row of each owner and value, 0 for the others."""
    ids = row_ids([batch.column(name) for name in values.columns], owners)
    signs = []
    for condition in values.conditions:
        mask = chosen_rows(batch, (), condition)
        rows = np.arange(len(ids)) if mask is None else np.flatnonzero(mask)
        first = np.zeros(len(ids), np.int8)
        first[rows[np.unique(ids[rows], return_index=True)[1]]] = 1
        signs.append(first)
    return signs
