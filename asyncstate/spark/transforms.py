"""Nodes of a dataflow that process one row at a time, as DataFrames.

Owns: ``transformed``; ``highest_time``, the SQL that observes event times.
Invariant: nothing runs here; Spark computes such rows as part of the plan that reads them.
Must not import runtime's tasks or storage.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import TimestampNTZType

from asyncstate.changelog import ROW_KIND_COLUMN
from asyncstate.dataflow import Transform, Union
from asyncstate.errors import SchemaError
from asyncstate.runtime import LATEST_EVENT_TIME
from asyncstate.spark.arrow_columns import kept_where, with_arrow_columns
from asyncstate.spark.column_types import quoted
from asyncstate.spark.facts import insertions


def transformed(node: Transform | Union, inputs: Sequence[DataFrame], kinds: bool = False) -> DataFrame:
    """The rows of a node that Spark computes; ``kinds``: a selection has ``row_kind`` in addition to its columns."""
    if isinstance(node, Union):
        if any(ROW_KIND_COLUMN in df.columns for df in inputs):
            inputs = [insertions(df) for df in inputs]
        return functools.reduce(DataFrame.unionByName, inputs)
    if node.kind == "transform":
        return _transformed(node, inputs)
    (df,) = inputs
    if node.kind == "where":
        (condition,) = node.expressions
        return df.where(condition) if _is_sql(condition) else kept_where(df, condition)
    if node.kind == "drop":
        return _dropped(df, node.expressions)
    return _with_columns(df, node) if node.kind == "with_columns" else _selected(df, node, kinds)


def highest_time(df: DataFrame, event_time: str) -> str:
    """SQL of the highest event time in ``df`` that may move a watermark, microseconds."""
    time = f"unix_micros({quoted(event_time)})"
    if isinstance(df.schema[event_time].dataType, TimestampNTZType):
        # Differences are the same in every time zone, casts are not.
        time = f"(({quoted(event_time)} - timestamp_ntz'1970-01-01 00:00:00') div interval '0.000001' second)"
    return f"max(case when {time} <= {LATEST_EVENT_TIME}L then {time} end)"


def _transformed(node: Transform, inputs: Sequence[DataFrame]) -> DataFrame:
    (function,) = node.expressions
    found = function(*inputs)
    if not isinstance(found, DataFrame) or found.isStreaming:
        raise SchemaError(f"the function returned {found!r}; return a DataFrame derived from its arguments")
    return found


def _with_columns(df: DataFrame, node: Transform) -> DataFrame:
    df, named = _computed(df, node.named)
    hidden = [_hidden(name) for name, one in node.named.items() if not _is_sql(one)]
    return df.withColumns(named).drop(*hidden)


def _selected(df: DataFrame, node: Transform, kinds: bool) -> DataFrame:
    df, named = _computed(df, node.named)
    columns = [_column(one) for one in node.expressions]
    columns += [one.alias(name) for name, one in named.items()]
    return df.select(*columns, ROW_KIND_COLUMN) if kinds else df.select(*columns)


def _computed(df: DataFrame, named: Mapping[str, Any]) -> tuple[DataFrame, dict[str, Column]]:
    """``df`` with hidden columns for the functions among ``named``, and the column of each name. All of them are
    computed from the columns of ``df``."""
    functions = {name: one for name, one in named.items() if not _is_sql(one)}
    if functions:
        df = with_arrow_columns(df, {_hidden(name): one for name, one in functions.items()})
    return df, {
        name: sf.col(quoted(_hidden(name))) if name in functions else _column(one)
        for name, one in named.items()
    }


def _hidden(name: str) -> str:
    return f"asyncstate:{name}"


def _dropped(df: DataFrame, names: tuple[str, ...]) -> DataFrame:
    missing = [name for name in names if name not in df.columns]
    if missing:
        raise SchemaError(
            f"there is no column '{missing[0]}' to drop; the columns are {', '.join(df.columns)}"
        )
    return df.drop(*names)


def _is_sql(expression: object) -> bool:
    return isinstance(expression, str | Column)


def _column(expression: Any) -> Column:
    return sf.expr(expression) if isinstance(expression, str) else expression
