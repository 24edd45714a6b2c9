"""What a micro-batch's changelog comes to: for sinks that shuffle, where rows have no order.

Owns: ``netted`` and ``last_changes``, over DataFrames with a ``row_kind`` column.
Invariant: both look at rows as a set, so the order in which Spark brings them does not matter.
Must not import runtime, storage or execution.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from asyncstate.changelog import ROW_KIND_COLUMN
from asyncstate.errors import SchemaError
from asyncstate.spark.columns import quoted

_COUNT = "__asyncstate_count"
_ADDED = f"if({ROW_KIND_COLUMN} in ('+I', '+U'), 1, -1)"


def netted(rows: DataFrame) -> DataFrame:
    """The net change that the changelog ``rows`` of one micro-batch are: +I for rows that come, -D for rows that go.

    Rows that are taken back and come again, or come and are taken back, are no change and are left out. Raises
    SchemaError for columns that Spark cannot group by (maps, variants) and for rows without a ``row_kind`` column.
    """
    names = _columns(rows)
    kind = f"if({_COUNT} > 0, '+I', '-D') as {ROW_KIND_COLUMN}"
    times = f"explode(sequence(1L, abs({_COUNT})))"
    counted = _counted(rows, names).selectExpr("*", times).drop("col")
    return counted.selectExpr(*map(quoted, names), kind)


def last_changes(rows: DataFrame, key: str | Sequence[str]) -> DataFrame:
    """One row for each ``key`` that the changelog ``rows`` of one micro-batch change: the new one, as +U, or the one
    that is gone, as -D.

    This is what to write into a table with this primary key. ``key`` must be a unique key of the rows; where it is
    not, one of the rows is taken. Raises SchemaError as ``netted``, and for a key that is no column.
    """
    names = _columns(rows)
    keys = [key] if isinstance(key, str) else list(key)
    missing = [name for name in keys if name not in names]
    if missing or not keys:
        raise SchemaError(
            f"last_changes: the rows have no column '{', '.join(missing)}'; their columns are: {', '.join(names)}"
            if missing
            else "last_changes: key names no column; give those that identify a row"
        )
    row = ", ".join(map(quoted, names))
    # Rows of a key are brought together once, which serves both groupings.
    last = (
        _counted(rows.repartition(*map(quoted, keys)), names)
        .groupBy(*map(quoted, keys))
        .agg(sf.expr(f"max_by(struct({row}, {_COUNT}), {_COUNT}) as last"))
    )
    kind = f"if(last.{_COUNT} > 0, '+U', '-D') as {ROW_KIND_COLUMN}"
    return last.selectExpr(*(f"last.{quoted(name)} as {quoted(name)}" for name in names), kind)


def _counted(rows: DataFrame, names: Sequence[str]) -> DataFrame:
    """Each distinct row with how many more times it comes than it goes, where that is not 0."""
    counts = rows.groupBy(*map(quoted, names)).agg(sf.expr(f"sum({_ADDED}) as {_COUNT}"))
    return counts.where(f"{_COUNT} != 0")


def _columns(rows: DataFrame) -> list[str]:
    if ROW_KIND_COLUMN not in rows.columns:
        raise SchemaError(
            f"the rows have no '{ROW_KIND_COLUMN}' column, so they are no changelog; give what `apply` returned"
        )
    for field in rows.schema:
        if field.dataType.typeName() in ("map", "variant"):
            raise SchemaError(
                f"column '{field.name}' is of type {field.dataType.simpleString()}, which Spark cannot compare; "
                "cast it, or drop it first"
            )
    return [name for name in rows.columns if name != ROW_KIND_COLUMN]
