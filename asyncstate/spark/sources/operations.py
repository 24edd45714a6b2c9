"""Sources with flat rows: the table's columns, and a column that names the operation.

Owns: ``operation_column`` and ``delta_change_feed``, a special case of it.
Invariant: a word that the mapping does not have is malformed, never +I.
Must not import runtime, storage or execution.

Source: Delta Lake's change data feed; CDC exports with an operation column.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql import DataFrame

from asyncstate.changelog import ROW_KIND_COLUMN, ROW_KIND_TEXTS
from asyncstate.errors import ConfigurationError, SchemaError
from asyncstate.spark.column_types import quoted
from asyncstate.spark.facts import with_marked, without
from asyncstate.spark.sources.malformed import (
    Malformed,
    as_map,
    check_mode,
    mark_of,
    only_malformed,
    raised,
    text,
)

_PROBLEM: Final = "__asyncstate_problem"
_QUOTE: Final = text("operation '")
_CHANGE_TYPE: Final = "_change_type"
_CHANGE_TYPES: Final = {
    "insert": "+I",
    "update_preimage": "-U",
    "update_postimage": "+U",
    "delete": "-D",
}


def operation_column(
    df: DataFrame, column: str, kinds: Mapping[str, str], *, malformed: Malformed = "fail"
) -> DataFrame:
    """``df`` with a ``row_kind`` in place of ``column``, whose words (as text) ``kinds`` maps to +I, -U, +U and -D.

    ``malformed``: the treatment of rows with an unknown word or none: "fail" ends the query with an example, "drop"
    leaves them out, "only" returns only them, with the reason in the column ``malformed``. Raises SchemaError and
    ConfigurationError before any row is read.
    """
    return _operations("operation_column", df, column, kinds, malformed)


def delta_change_feed(df: DataFrame, *, malformed: Malformed = "fail") -> DataFrame:
    """The changelog in a change data feed of Delta Lake, read with ``readChangeFeed``: the table's columns,
    ``_commit_version`` (pass it as ``sequence``) and ``row_kind``.

    ``_commit_timestamp`` is left out: it would make a row and its retraction differ. Raises SchemaError if the feed's
    columns are missing.
    """
    changes = _operations("delta_change_feed", df, _CHANGE_TYPE, _CHANGE_TYPES, malformed)
    if "_commit_version" not in df.columns:
        raise SchemaError(
            "delta_change_feed: the input has no column '_commit_version'; read the table with "
            ".option('readChangeFeed', 'true')"
        )
    return changes if malformed == "only" else without(changes, "_commit_timestamp")


def _operations(
    source: str, df: DataFrame, column: str, kinds: Mapping[str, str], malformed: str
) -> DataFrame:
    check_mode(source, malformed)
    _check(source, df, column, kinds)
    word = f"cast({quoted(column)} as string)"
    kind = f"try_element_at({as_map(kinds)}, {word})"
    unknown = text(f"' in column '{column}' is not one of {', '.join(kinds)}")
    problem = f"concat({_QUOTE}, coalesce({word}, 'null'), {unknown})"
    row = f"to_json(struct({', '.join(map(quoted, df.columns))}))"
    if malformed == "only":
        judged = df.selectExpr("*", f"if({kind} is null, {problem}, null) as {_PROBLEM}")
        return only_malformed(judged, df.columns, _PROBLEM)
    others = [quoted(name) for name in df.columns if name != column]

    def changes(row_kind: str, *more: str) -> DataFrame:
        return df.selectExpr(*others, f"{row_kind} as {ROW_KIND_COLUMN}", *more)

    if malformed == "fail":
        return changes(f"coalesce({kind}, {raised(source, problem, row)})")
    good = changes(kind).where(f"{ROW_KIND_COLUMN} is not null")
    if not df.isStreaming:
        return good
    mark = mark_of(df.columns, f"if({kind} is null, {problem}, null)", row)
    return with_marked(good, changes(f"coalesce({kind}, '+I')", mark))


def _check(source: str, df: DataFrame, column: str, kinds: Mapping[str, str]) -> None:
    if column not in df.columns:
        raise SchemaError(
            f"{source}: the input has no column '{column}'; its columns are: {', '.join(df.columns)}"
        )
    kinds_there = [name for name in df.columns if name.lower() == ROW_KIND_COLUMN and name != column]
    if kinds_there:
        raise SchemaError(
            f"{source}: the input has a column '{kinds_there[0]}' already, so it is a changelog; drop or rename it"
        )
    given: object = kinds
    if not isinstance(given, Mapping) or not all(isinstance(word, str) for word in given):
        raise ConfigurationError(
            f"{source}: kinds is {kinds!r}; give a dict from the values of '{column}' to {', '.join(ROW_KIND_TEXTS)}"
        )
    strange = [kind for kind in kinds.values() if kind not in ROW_KIND_TEXTS]
    if strange or not kinds:
        raise ConfigurationError(
            f"{source}: kinds maps to {strange[0]!r}; row kinds are {', '.join(ROW_KIND_TEXTS)}"
            if strange
            else f"{source}: kinds is empty; map each word of '{column}' to one of {', '.join(ROW_KIND_TEXTS)}"
        )
