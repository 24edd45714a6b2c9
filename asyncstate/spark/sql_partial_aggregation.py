"""Partial aggregation of an operator in Catalyst: rows of a key are aggregated before the exchange by key group.

Owns: ``partial_aggregate``, the SQL of ``PartialAggregation``, and ``first_rows``, that of ``PartialLimit``.
Invariant: the result has a row for each key, slice and presence of an event time, with the columns of
``InputSpec.row_schema``; columns are compared as the state compares them, since ``input_spec`` refuses other collations
than UTF8_BINARY; whatever the session's ANSI mode and time zone, nothing overflows and no time shifts.
Must not import runtime or storage.

Spark's own aggregation does it: rows are aggregated in each task, exchanged by Spark's hash of the key, and aggregated
again. So there is a second exchange, of few rows, and only Spark's public interface is used. Alternatives measured
(decision 0024): only the first half of Catalyst's plan, which takes planner internals and is as quick; and
``mapInArrow`` with pyarrow, which carries every row into Python and back and gains nothing.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import TimestampNTZType

from asyncstate.changelog import ROW_KIND_COLUMN, ROW_KIND_TEXTS, RowKind
from asyncstate.errors import SchemaError
from asyncstate.operator import InputSpec
from asyncstate.partial_aggregation import (
    LOCAL_MET,
    LOCAL_ROWS,
    LOCAL_SET,
    LOW_BITS,
    NOT_FINITE,
    LimitColumn,
    LocalColumn,
    LocalFunction,
    LocalValues,
    PartialAggregation,
    PartialLimit,
    local_name,
)
from asyncstate.spark.column_types import quoted
from asyncstate.spark.compatibility import aggregated
from asyncstate.spark.task_errors import marked

_PART: Final = "__asyncstate_local_part"
"""A grouping column in addition to the key: the slice of a row, or whether it has an event time."""


def partial_aggregate(df: DataFrame, spec: InputSpec, parallelism: int) -> DataFrame:
    """The rows of ``df`` after the partial aggregation of ``spec``; they come in at most ``parallelism`` partitions."""
    assert spec.local is not None
    if spec.changelog:
        df = _checked_kinds(df, spec)
    keys, values = [quoted(name) for name in spec.key], spec.local.values
    if spec.event_time is not None:
        df = df.selectExpr("*", f"{_part(df, spec, spec.local)} as {_PART}")
        keys.append(_PART)
    sets = [keys]
    if values is not None:
        # Under separate names, since a column may be in several sets and in the key.
        df = df.selectExpr("*", *(f"{quoted(of)} as {name}" for name, of in values.columns))
        sets = [
            [*keys, *(values.column(index, place) for place in range(len(columns)))]
            for index, columns in enumerate(values.sets)
        ]
        keys = [*keys, *(name for name, _ in values.columns)]
    found = aggregated(df, keys, sets, _aggregates(spec, spec.local))
    if not keys:
        found = found.where(f"{LOCAL_ROWS} > 0")  # without rows SQL still returns one row
    # Spark's own exchange has as many partitions as the session says, by default 200.
    return found.coalesce(parallelism)


def first_rows(df: DataFrame, limit: PartialLimit) -> DataFrame:
    """The first rows of ``df``: Spark takes those of each partition, and then those of all partitions."""
    ordered = df.orderBy(*(_sort_column(one) for one in limit.order)) if limit.order else df
    return ordered.limit(limit.rows)


def _sort_column(one: LimitColumn) -> Column:
    direction, nulls = "desc" if one.descending else "asc", "first" if one.nulls_first else "last"
    sort: Column = getattr(sf.col(quoted(one.column)), f"{direction}_nulls_{nulls}")()
    return sort


def _part(df: DataFrame, spec: InputSpec, phase: PartialAggregation) -> str:
    name = str(spec.event_time)
    time = quoted(name)
    if phase.slices is None:
        return f"isnull({time})"
    if isinstance(df.schema[name].dataType, TimestampNTZType):
        # Differences are the same in every time zone, casts are not.
        time = f"(({time} - timestamp_ntz'1970-01-01 00:00:00') div interval '0.000001' second)"
    else:
        time = f"unix_micros({time})"
    # The slice's number: floor((time - offset) / step), without an intermediate overflow.
    step, offset = f"{phase.slices.step}L", f"{phase.slices.offset % phase.slices.step}L"
    return f"{time} div {step} - if({time} % {step} < 0, 1, 0) - if(pmod({time}, {step}) < {offset}, 1, 0)"


def _aggregates(spec: InputSpec, phase: PartialAggregation) -> list[str]:
    columns = {LOCAL_ROWS: "count(1)"}
    columns |= {local_name(at): _aggregate(column, spec) for at, column in enumerate(phase.columns)}
    values = phase.values
    if values is not None and len(values.sets) > 1:  # only rows of the first set have them
        first = f"grouping({values.column(0, 0)}) = 0"
        columns = {name: f"if({first}, {text}, null)" for name, text in columns.items()}
        columns[LOCAL_ROWS] = f"coalesce({columns[LOCAL_ROWS]}, 0L)"
    if values is not None:
        columns |= {LOCAL_SET: _set_of(values), LOCAL_MET: _met(values)}
    if spec.event_time is not None and spec.event_time not in spec.key:
        columns[quoted(spec.event_time)] = f"max({quoted(spec.event_time)})"
    return [f"{text} as {name}" for name, text in columns.items()]


def _set_of(values: LocalValues) -> str:
    others = range(1, len(values.sets))
    return "0" + "".join(f" + {at} * (1 - grouping({values.column(at, 0)}))" for at in others)


def _met(values: LocalValues) -> str:
    bits = [f"if({quoted(name)}, {1 << at}L, 0L)" for at, name in enumerate(values.conditions)]
    return f"bit_or({' | '.join(bits)})" if bits else "0L"


def _aggregate(column: LocalColumn, spec: InputSpec) -> str:
    value = "" if column.column is None else quoted(column.column)
    conditions = [] if column.condition is None else [quoted(column.condition)]
    if column.function in NOT_FINITE:
        conditions += [f"{value} = double('{NOT_FINITE[column.function]}')"]  # in Spark NaN equals NaN
        called = f"sum({_signed('1L', spec)})"
    elif column.function is LocalFunction.COUNT:
        conditions += [f"{value} is not null"] if value else []
        called = f"sum({_signed('1L', spec)})" if spec.changelog else "count(1)"
    elif column.function in (LocalFunction.MIN, LocalFunction.MAX):
        called = f"{column.function.value}({value})"
    else:
        called = f"sum({_signed(_summand(column, value), spec)})"
    return called + (f" filter (where {' and '.join(conditions)})" if conditions else "")


def _summand(column: LocalColumn, value: str) -> str:
    if column.function is LocalFunction.SUM_HIGH:
        return f"shiftright({value}, {LOW_BITS})"
    if column.function is LocalFunction.SUM_LOW:
        return f"({value} & {(1 << LOW_BITS) - 1}L)"
    if pa.types.is_decimal(column.type):
        return value  # a sum has ten digits more
    if column.function is LocalFunction.SUM_FINITE:
        value = f"if(abs({value}) < double('inf'), {value}, 0)"  # NaN is larger than infinity
    return f"cast({value} as {'double' if pa.types.is_floating(column.type) else 'bigint'})"


def _signed(value: str, spec: InputSpec) -> str:
    if not spec.changelog:
        return value
    retracted = _texts(RowKind.UPDATE_BEFORE, RowKind.DELETE)
    return f"if({ROW_KIND_COLUMN} in ({retracted}), -{value}, {value})"


def _checked_kinds(df: DataFrame, spec: InputSpec) -> DataFrame:
    """``df``, failing where a row's kind is invalid or null."""
    error = marked(
        SchemaError(
            f"{spec.name}: column '{ROW_KIND_COLUMN}' has a value that is not a row kind; write one of "
            f"{', '.join(ROW_KIND_TEXTS)}, or drop the column if every row is an insert"
        )
    )
    known = f"{ROW_KIND_COLUMN} in ({_texts(*RowKind)})"
    return df.where(f"if({known}, true, raise_error(cast(X'{error.encode().hex()}' as string)))")


def _texts(*kinds: RowKind) -> str:
    return ", ".join(f"'{kind.text}'" for kind in kinds)
