"""The local phase of an operator in Python: rows put together before they go to partitions.

Owns: ``put_together``, with pyarrow. The harness runs it on what is pushed, a task on the output of an operator whose
rows go to another one.
Invariant: rows come out in order of arrival of the first row of each; those of one call are put together with each
other and with no others.
Must not import Spark.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from asyncstate.changelog import RowKind
from asyncstate.codec import KeyBatch
from asyncstate.codec.times import event_times
from asyncstate.local_phase import (
    LOCAL_MET,
    LOCAL_ROWS,
    LOCAL_SET,
    LOW_BITS,
    NOT_FINITE,
    LocalColumn,
    LocalFunction,
    LocalPhase,
    LocalValues,
    local_name,
)
from asyncstate.operator import InputSpec
from asyncstate.runtime.spec import InputBatch

Int64Array = npt.NDArray[np.int64]

_NO_TIME = np.iinfo(np.int64).min
"""The part of rows without an event time."""


def put_together(given: InputBatch, spec: InputSpec, max_parallelism: int) -> InputBatch:
    """``given`` after the local phase of ``spec``."""
    assert spec.local is not None
    batch, values = given.batch, spec.local.values
    codec = spec.key_codec(max_parallelism)
    keys = codec.group([batch.column(name) for name in spec.key], num_rows=batch.num_rows)
    keys = keys.in_namespaces(_parts(batch, spec, spec.local))
    if values is None:
        made = [_aggregates(given, spec, _Rows(keys))]
    else:
        sets = [_Rows(keys.with_user_keys([batch.column(name) for name in names])) for names in values.sets]
        made = [_with_values(given, spec, rows, values, at) for at, rows in enumerate(sets)]
    schema = spec.row_schema
    rows = pa.concat_batches([_filled(columns, schema) for columns in made])
    return InputBatch(rows, None, given.input_index)


class _Rows:
    """The rows of each of ``size`` unique keys: ``groups`` (n), numbered in order of arrival of their first rows."""

    def __init__(self, keys: KeyBatch) -> None:
        self.columns = keys.columns
        self.size = len(keys)
        self._order = np.argsort(keys.first_rows())
        numbers = np.empty(self.size, np.int32)
        numbers[self._order] = np.arange(self.size)
        self.groups = pa.array(numbers[keys.inverse])

    def unique(self, columns: Sequence[pa.Array]) -> list[pa.Array]:
        """Columns of the unique keys, a row a group."""
        order = pa.array(self._order)
        return [column.take(order) for column in columns]


def _aggregates(given: InputBatch, spec: InputSpec, rows: _Rows) -> dict[str, pa.Array]:
    """The columns that every phase has, by name."""
    assert spec.local is not None
    batch, groups, signs = given.batch, rows.groups, _signs(given)
    columns = _keys(batch, spec, rows)
    columns[LOCAL_ROWS] = _reduced(groups, pa.array(np.ones(batch.num_rows, np.int64)), "sum")
    for index, column in enumerate(spec.local.columns):
        columns[local_name(index)] = _aggregated(column, batch, groups, signs)
    return columns


def _keys(batch: pa.RecordBatch, spec: InputSpec, rows: _Rows) -> dict[str, pa.Array]:
    columns = dict(zip(spec.key, rows.unique(rows.columns[: len(spec.key)]), strict=True))
    if spec.event_time is not None:
        columns.setdefault(spec.event_time, _reduced(rows.groups, batch.column(spec.event_time), "max"))
    return columns


def _with_values(
    given: InputBatch, spec: InputSpec, rows: _Rows, values: LocalValues, at: int
) -> dict[str, pa.Array]:
    """The columns of the rows of a set of values, by name."""
    columns = _aggregates(given, spec, rows) if at == 0 else _keys(given.batch, spec, rows)
    found = rows.unique(rows.columns[len(spec.key) :])
    columns |= {values.column(at, place): column for place, column in enumerate(found)}
    columns.setdefault(LOCAL_ROWS, pa.array(np.zeros(rows.size, np.int64)))
    columns[LOCAL_SET] = pa.array(np.full(rows.size, at, np.int32))
    columns[LOCAL_MET] = _met(given.batch, rows, values.conditions)
    return columns


def _met(batch: pa.RecordBatch, rows: _Rows, conditions: Sequence[str]) -> pa.Array:
    met = np.zeros(rows.size, np.int64)
    for bit, name in enumerate(conditions):
        flags = _reduced(rows.groups, batch.column(name).fill_null(False), "any")
        met |= flags.to_numpy(zero_copy_only=False).astype(np.int64) << bit
    return pa.array(met)


def _filled(columns: dict[str, pa.Array], schema: pa.Schema) -> pa.RecordBatch:
    """The columns as a batch of ``schema``, with nulls for those that are not there."""
    size = len(columns[LOCAL_ROWS])
    arrays = [
        columns[field.name].cast(field.type) if field.name in columns else pa.nulls(size, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _parts(batch: pa.RecordBatch, spec: InputSpec, phase: LocalPhase) -> Int64Array:
    parts = np.zeros(batch.num_rows, np.int64)
    if spec.event_time is None:
        return parts
    times = batch.column(spec.event_time)
    valid = pc.is_valid(times).to_numpy(zero_copy_only=False)
    if phase.slices is not None:
        parts[valid] = (event_times(times.drop_null()) - phase.slices.offset) // phase.slices.step
    parts[~valid] = _NO_TIME
    return parts


def _signs(given: InputBatch) -> Int64Array:
    kinds = np.zeros(given.batch.num_rows, np.int8) if given.kinds is None else given.kinds
    taken_back = (kinds == RowKind.UPDATE_BEFORE) | (kinds == RowKind.DELETE)
    return np.where(taken_back, -1, 1)


def _aggregated(column: LocalColumn, batch: pa.RecordBatch, groups: pa.Array, signs: Int64Array) -> pa.Array:
    values = pa.array(signs) if column.column is None else batch.column(column.column)
    if column.condition is not None:
        met = batch.column(column.condition).fill_null(False)
        values = pc.if_else(met, values, pa.scalar(None, values.type))
    if column.function in (LocalFunction.MIN, LocalFunction.MAX):
        return _extreme(groups, values, column.function)
    return _reduced(groups, _summands(column, values, signs), "sum")


def _summands(column: LocalColumn, values: pa.Array, signs: Int64Array) -> pa.Array:
    if column.function is LocalFunction.COUNT:
        return pa.array(signs, mask=pc.is_null(values).to_numpy(zero_copy_only=False))
    if column.function in NOT_FINITE:
        wanted = (
            pc.is_nan(values)
            if column.function is LocalFunction.COUNT_NAN
            else pc.equal(values, NOT_FINITE[column.function])
        )
        return pa.array(signs, mask=~pc.fill_null(wanted, False).to_numpy(zero_copy_only=False))
    if column.function is LocalFunction.SUM_FINITE:
        values = pc.if_else(pc.is_finite(values), values, pa.scalar(0, values.type))
    if column.function is LocalFunction.SUM_HIGH:
        values = pc.shift_right(values, LOW_BITS)
    elif column.function is LocalFunction.SUM_LOW:
        values = pc.bit_wise_and(values, (1 << LOW_BITS) - 1)
    else:
        values = values.cast(column.type)
    return pc.if_else(pa.array(signs < 0), pc.negate(values), values)


def _extreme(groups: pa.Array, values: pa.Array, function: LocalFunction) -> pa.Array:
    """Arrow passes over NaN in both; it is the largest float."""
    found = _reduced(groups, values, function.value)
    if not pa.types.is_floating(values.type):
        return found
    is_nan = pc.is_nan(values)
    # A group is NaN if any of its values is, for the largest, or if all of them are, for the smallest.
    which = _reduced(groups, is_nan, "any" if function is LocalFunction.MAX else "all")
    return pc.if_else(pc.fill_null(which, False), pa.scalar(float("nan"), values.type), found)


def _reduced(groups: pa.Array, values: pa.Array, function: str) -> pa.Array:
    """``function`` over the values that are not null, a row a group by its number; null without a value."""
    table = pa.table({"group": groups, "value": values}).group_by("group", use_threads=False)
    found = table.aggregate([("value", function)]).combine_chunks()
    # Groups come nearly in order of their first rows: where hashes of many collide, Arrow numbers them otherwise.
    place = np.empty(found.num_rows, np.int64)
    place[found.column("group").to_numpy()] = np.arange(found.num_rows)
    return found.column(f"value_{function}").combine_chunks().take(pa.array(place))
