"""The local phase of an operator in Python: rows put together before they go to partitions.

Owns: ``put_together``, with pyarrow. The harness runs it on what is pushed, a task on the output of an operator whose
rows go to another one.
Invariant: rows come out in order of arrival of the first row of each; those of one call are put together with each
other and with no others.
Must not import Spark.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from asyncstate.changelog import RowKind
from asyncstate.local_phase import LOCAL_ROWS, LOW_BITS, LocalColumn, LocalFunction, LocalPhase, local_name
from asyncstate.operator import InputSpec
from asyncstate.runtime.rows import microseconds
from asyncstate.runtime.spec import InputBatch

Int64Array = npt.NDArray[np.int64]

_NO_TIME = np.iinfo(np.int64).min
"""The part of rows without an event time."""


def put_together(given: InputBatch, spec: InputSpec, max_parallelism: int) -> InputBatch:
    """``given`` after the local phase of ``spec``."""
    assert spec.local is not None
    batch = given.batch
    codec = spec.key_codec(max_parallelism)
    keys = codec.group([batch.column(name) for name in spec.key], num_rows=batch.num_rows)
    keys = keys.in_namespaces(_parts(batch, spec, spec.local))
    groups = pa.array(keys.inverse, pa.int32())
    signs = _signs(given)
    order = pa.array(np.sort(keys.first_rows()))  # of each group its first row, in order of arrival
    ids = groups.take(order)
    columns = dict(zip(spec.key, (column.take(ids) for column in keys.columns), strict=True))
    if spec.event_time is not None:
        columns.setdefault(spec.event_time, _reduced(groups, batch.column(spec.event_time), "max"))
    columns[LOCAL_ROWS] = _reduced(groups, pa.array(np.ones(batch.num_rows, np.int64)), "sum")
    for index, column in enumerate(spec.local.columns):
        columns[local_name(index)] = _aggregated(column, batch, groups, signs)
    schema = spec.row_schema
    return InputBatch(
        pa.RecordBatch.from_arrays(
            [columns[name].cast(schema.field(name).type) for name in schema.names], schema=schema
        ),
        None,
        given.input_index,
    )


def _parts(batch: pa.RecordBatch, spec: InputSpec, phase: LocalPhase) -> Int64Array:
    parts = np.zeros(batch.num_rows, np.int64)
    if spec.event_time is None:
        return parts
    times = batch.column(spec.event_time)
    valid = pc.is_valid(times).to_numpy(zero_copy_only=False)
    if phase.slices is not None:
        parts[valid] = (microseconds(times.drop_null()) - phase.slices.offset) // phase.slices.step
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
    """``function`` over the values that are not null, a row a group in order of arrival; null without a value."""
    table = pa.table({"group": groups, "value": values}).group_by("group", use_threads=False)
    return table.aggregate([("value", function)]).column(f"value_{function}").combine_chunks()
