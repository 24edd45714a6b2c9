"""The net change of a micro-batch's changelog: for sinks that shuffle, where rows have no order.

Owns: ``netted`` and ``last_changes``, over DataFrames with a ``row_kind`` column.
Invariant: both treat rows as a set, so the order in which Spark delivers them does not matter.
Must not import runtime, storage or execution.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from asyncstate.changelog import (
    ROW_KIND_COLUMN,
    ROW_KIND_TEXTS,
    Changelog,
    RowKind,
    has_kinds,
    upserts_way_out,
)
from asyncstate.errors import OperatorError, SchemaError
from asyncstate.spark.column_types import quoted
from asyncstate.spark.facts import known_changes
from asyncstate.spark.task_errors import marked_in_sql

_COUNT = "__asyncstate_count"
_ROWS = "__asyncstate_rows"


def netted(rows: DataFrame) -> DataFrame:
    """The net change that the changelog ``rows`` of one micro-batch are: +I for added rows, -D for removed rows.

    Rows that are retracted and inserted again, or inserted and retracted, are no change and are left out. Raises
    SchemaError for columns that Spark cannot group by (maps, variants) and for rows without a ``row_kind`` column.
    """
    names = _columns(rows)
    kind = f"if({_COUNT} > 0, '+I', '-D') as {ROW_KIND_COLUMN}"
    times = f"explode(sequence(1L, abs({_COUNT})))"
    counted = _counted(rows, names).selectExpr("*", times).drop("col")
    return counted.selectExpr(*map(quoted, names), kind)


def last_changes(rows: DataFrame, key: str | Sequence[str], changes: Changelog | None = None) -> DataFrame:
    """One row for each ``key`` that the changelog ``rows`` of one micro-batch change: the new one, as +U, or the
    removed one, as -D.

    Write these rows into a table with this primary key. ``changes``: the changelog mode of the rows; by default what is
    known of the DataFrame, if ``apply`` has returned it, else a changelog that retracts the previous row before each
    change. Upserts by this key have one change per key, which is returned. ``key`` must be a unique key of the rows:
    where a key is left with several rows, reading the result fails. Raises SchemaError as ``netted``, for a key that is
    no column, and for upserts by another key.
    """
    known = known_changes(rows) if changes is None else changes
    names = _columns(rows, compares=not known.is_upsert)
    keys = [key] if isinstance(key, str) else list(key)
    missing = [name for name in keys if name not in names]
    if missing or not keys:
        raise SchemaError(
            f"last_changes: the rows have no column '{', '.join(missing)}'; their columns are: {', '.join(names)}"
            if missing
            else "last_changes: key is empty; give the columns that identify a row"
        )
    check_table_key("last_changes", known, keys)
    row = ", ".join(map(quoted, names))
    by_key = rows.repartition(*map(quoted, keys))
    # Rows of a key are shuffled together once, which serves both groupings.
    counted = (
        by_key.selectExpr("*", f"{_added()} as {_COUNT}") if known.is_upsert else _counted(by_key, names)
    )
    several = f"count(*) as {_ROWS}" if known.is_upsert else f"sum(greatest({_COUNT}, 0L)) as {_ROWS}"
    last = counted.groupBy(*map(quoted, keys)).agg(
        sf.expr(f"max_by(struct({row}, {_COUNT}), {_COUNT}) as last"), sf.expr(several)
    )
    of_key = ", ".join(f"last.{quoted(name)}" for name in keys)
    shown = f"to_json(struct({of_key}), map('ignoreNullFields', 'false'))"
    message = f"concat('the key ', {shown}, ' has ', {_ROWS}, {_several(known)})"
    error = f"raise_error({marked_in_sql(message, OperatorError)})"
    kind = f"if({_ROWS} > 1, {error}, if(last.{_COUNT} > 0, '+U', '-D')) as {ROW_KIND_COLUMN}"
    return last.selectExpr(*(f"last.{quoted(name)} as {quoted(name)}" for name in names), kind)


def check_table_key(owner: str, changes: Changelog, keys: Sequence[str]) -> None:
    """Raise SchemaError for upserts by another key than that of the table."""
    if changes.is_upsert and not changes.upserts_by(keys):
        columns = ", ".join(keys)
        raise SchemaError(
            f"{owner}: the rows{f' of {changes.origin}' if changes.origin else ''} are {changes.text}, but the table "
            f"has the key ({columns}): a replaced row could not be found there. Give the table the key of the rows, "
            f"or {upserts_way_out(changes)} and add UpsertMaterialize() with key=({columns}) downstream"
        )


def _several(changes: Changelog) -> str:
    """In SQL the problem of a key with several rows."""
    if changes.is_upsert:
        return (
            "' changes in one micro-batch, whose order is not known; add ChangelogNormalize with a sequence "
            "upstream'"
        )
    return (
        "' rows at once, but a table with this primary key can have only one; add UpsertMaterialize (or Deduplicate) "
        "with the key upstream, or give the table a key that identifies a row'"
    )


def _counted(rows: DataFrame, names: Sequence[str]) -> DataFrame:
    """Each distinct row with its number of inserts minus retractions, where that is not 0."""
    counts = rows.groupBy(*map(quoted, names)).agg(sf.expr(f"sum({_added()}) as {_COUNT}"))
    return counts.where(f"{_COUNT} != 0")


def _added() -> str:
    """In SQL: 1 for a row that is added, -1 for one that is removed; reading a row of no such kind fails."""
    added, removed = (
        ", ".join(f"'{kind.text}'" for kind in RowKind if kind.is_accumulate is adds)
        for adds in (True, False)
    )
    shown = f"coalesce(concat('\\'', {ROW_KIND_COLUMN}, '\\''), 'null')"
    problem = (
        f"concat('column \\'{ROW_KIND_COLUMN}\\' has the value ', {shown}, '; write one of "
        f"{', '.join(ROW_KIND_TEXTS)}, or drop the column if every row is an insert')"
    )
    return (
        f"case when {ROW_KIND_COLUMN} in ({added}) then 1 when {ROW_KIND_COLUMN} in ({removed}) then -1 "
        f"else raise_error({marked_in_sql(problem)}) end"
    )


def _columns(rows: DataFrame, compares: bool = True) -> list[str]:
    """The columns without ``row_kind``; ``compares``: all of them must be groupable."""
    if not has_kinds(rows.columns):
        raise SchemaError(
            f"the rows have no '{ROW_KIND_COLUMN}' column, so they are not a changelog; give the DataFrame that "
            "`apply` returned"
        )
    for field in rows.schema if compares else ():
        if field.dataType.typeName() in ("map", "variant"):
            raise SchemaError(
                f"column '{field.name}' is of type {field.dataType.simpleString()}, which Spark cannot compare; "
                "cast it, or drop it first"
            )
    return [name for name in rows.columns if name != ROW_KIND_COLUMN]
