"""Facts known about the rows of a DataFrame; they travel with the DataFrame that an operator, or a reader, has
returned.

Owns: ``with_changes`` and ``known_changes``; ``with_marked`` and ``marked_rows``, for rows that a reader drops;
``mark_of``, which the column ``row_kind`` keeps through Spark's operations; ``source_facts``, the declarations of a
source; ``insertions``, which gives kinds to rows; ``both``, one DataFrame after the other.
Invariant: for a DataFrame derived from another one by any Spark operation, no fact is assumed that Spark may have
invalidated; rows that were upserts are never treated as anything else.
Must not import runtime, storage or execution.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as sf
from pyspark.sql.types import StructField, StructType

from asyncstate.changelog import (
    INSERT_ONLY,
    RETRACT,
    ROW_KIND_COLUMN,
    Changelog,
    ChangelogMode,
    Key,
    RowKind,
    has_kinds,
)
from asyncstate.dataflow.changelog_inference import declared_key, declared_mode
from asyncstate.errors import JobError, SchemaError
from asyncstate.spark.column_types import OUTPUT, quoted
from asyncstate.spark.compatibility import is_connect, leaf_schemas

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_CHANGES: Final = "_asyncstate_changes"
_DROPS: Final = "asyncstate_drops"
_WITH_DROPPED: Final = "_asyncstate_with_dropped"
_MARK: Final = "asyncstate.changes"
_LOCAL: Final = "asyncstate.local"
_MARKS: Final = re.compile(rf'"{re.escape(_MARK)}":"((?:[^"\\]|\\.)*)"')
_UPSERT: Final = ChangelogMode.UPSERT.text
_INSERT_ONLY: Final = ChangelogMode.INSERT_ONLY.text


def mark_of(changes: Changelog) -> dict[str, str]:
    """The metadata of ``row_kind`` in rows with changelog mode ``changes``."""
    return {_MARK: changes.text}


def local_rows(struct: StructType) -> StructType:
    """``struct``, the columns of rows that an operator has emitted in this process, with ``row_kind`` marked so."""
    fields = [
        StructField(one.name, one.dataType, one.nullable, {**(one.metadata or {}), _LOCAL: True})
        if one.name == ROW_KIND_COLUMN
        else one
        for one in struct
    ]
    return StructType(fields)


def marked(df: DataFrame, changes: Changelog) -> DataFrame:
    """``with_changes``, which also marks ``row_kind`` in the rows."""
    return with_changes(df.withMetadata(ROW_KIND_COLUMN, mark_of(changes)), changes)


def with_changes(df: DataFrame, changes: Changelog) -> DataFrame:
    """The rows of ``df``, with their changelog mode attached; a new object if ``df`` has another mode attached."""
    if df.__dict__.get(_CHANGES, changes) != changes:
        df = df.select("*")
    df.__dict__[_CHANGES] = changes
    return df


def with_marked(df: DataFrame, rows: DataFrame) -> DataFrame:
    """``df``, which a reader returns without the rows that it drops; ``rows``: with them, marked by ``DROPPED``. The
    alias stays in Spark's plan until it is optimized, so that ``drops_unseen`` finds it."""
    found = df.alias(_DROPS)
    if _CHANGES in df.__dict__:
        found.__dict__[_CHANGES] = df.__dict__[_CHANGES]
    found.__dict__[_WITH_DROPPED] = rows
    return found


def without(df: DataFrame, column: str) -> DataFrame:
    """``df`` without a column, with the dropped rows that are known of it."""
    both = marked_rows(df)
    return df.drop(column) if both is None else with_marked(df.drop(column), both.drop(column))


def drops_unseen(df: DataFrame) -> bool:
    """Whether Spark has derived ``df`` from rows of a reader that drops others. Unknown over Spark Connect."""
    if is_connect(df):
        return False
    plan: Any = df._jdf.queryExecution().analyzed()
    return f"SubqueryAlias {_DROPS}" in str(plan.toString())


def marked_rows(df: DataFrame) -> DataFrame | None:
    """The rows of ``df`` and those that its reader has dropped, marked by ``DROPPED``; None if it drops none, or if
    Spark has derived ``df`` from what the reader returned."""
    return df.__dict__.get(_WITH_DROPPED)


def known_changes(df: DataFrame, what: str = "") -> Changelog:
    """The changelog mode known of the rows of ``df``; if none is, rows with kinds are changes that retract whole rows.
    Raises SchemaError as ``has_kinds``, and for rows that Spark has derived from upserts."""
    kinds = has_kinds(
        df.schema.fieldNames(), what
    )  # the schema is cached; the columns would be a call into the JVM
    found: Any = df.__dict__.get(_CHANGES)
    if isinstance(found, Changelog):
        return found
    if not kinds:
        return INSERT_ONLY
    upserts = _made_of_upserts(df)
    if upserts is not None:
        raise SchemaError(
            f"{what or 'the rows'}: Spark derived these rows from others that are {upserts}, and their key is no "
            "longer known: declare it with changes=Changelog.upsert(...), or put ChangelogNormalize() before Spark's "
            "transformation"
        )
    return INSERT_ONLY if _only_insertions(df) else RETRACT


def _made_of_upserts(df: DataFrame) -> str | None:
    """A description of the upserts that Spark has derived ``df`` from, if there are any."""
    own, kept = _own_mark(df), _kept_marks(df)
    found = [own] if len(kept) == 1 else [own, *(mark for marks in kept for mark in marks)]
    return next((mark for mark in found if mark is not None and mark.startswith(_UPSERT)), None)


def _only_insertions(df: DataFrame) -> bool:
    """Whether ``df`` was derived from the rows of one operator that emits only insertions."""
    own, kept = _own_mark(df), _kept_marks(df)
    marks = [own, *kept[0]] if len(kept) == 1 and kept[0] else []
    return bool(marks) and all(mark is not None and mark.startswith(_INSERT_ONLY) for mark in marks)


def _own_mark(df: DataFrame) -> str | None:
    """The mark in the metadata of ``row_kind``, which is there as long as Spark passes the column through unchanged."""
    found: str | None = df.schema[ROW_KIND_COLUMN].metadata.get(_MARK)
    return found


def _kept_marks(df: DataFrame) -> list[list[str]]:
    """For each operator whose rows ``df`` reads, the marks of these rows where they are kept; marks of other tables are
    not trusted. In a union the first one's mark hides the others."""
    ours = f'"{OUTPUT}"', f'"{_LOCAL}"'
    return [
        _MARKS.findall(schema) if any(one in schema for one in ours) else [] for schema in leaf_schemas(df)
    ]


def both(first: DataFrame, then: DataFrame, key: Key | None) -> DataFrame:
    """The rows of both; ``key``: they are upserts by it, and ``then`` replaces rows of ``first``."""
    if key is None:
        return first.union(then)
    names = [f"asyncstate_key_{number}" for number in range(len(key))]
    newer = then.selectExpr(
        "1 as asyncstate_newer", *(f"{quoted(own)} as {name}" for own, name in zip(key, names, strict=True))
    )
    same = [f"{quoted(own)} <=> {name}" for own, name in zip(key, names, strict=True)]
    return first.join(newer.distinct(), sf.expr(" and ".join(["true", *same])), "left_anti").union(then)


def source_facts(
    source: str,
    df: DataFrame,
    mode: ChangelogMode | str | None,
    changelog: bool | None,
    primary_key: str | Sequence[str] | None,
) -> tuple[ChangelogMode | str | None, str | Sequence[str] | None]:
    """The mode and the primary key of a source: the declared ones, or those that the reader of ``df`` has attached.

    Raises JobError where they disagree.
    """
    known: Any = df.__dict__.get(_CHANGES)
    if (
        not isinstance(known, Changelog)
        and mode is None
        and changelog is None
        and ROW_KIND_COLUMN in df.columns
    ):
        upserts = _made_of_upserts(df)
        if upserts is not None:
            raise JobError(
                f"source '{source}': Spark derived its rows from others that are {upserts}, and their key is no "
                "longer known: declare it with mode='upsert' and primary_key=..., or transform the stream that "
                "source returns, which keeps the key"
            )
    if not isinstance(known, Changelog) or known.upsert_key is None:
        return mode, primary_key
    declared = declared_mode(source, mode, None)
    key = declared_key(source, primary_key)
    if changelog is False or declared not in (None, ChangelogMode.UPSERT):
        said = "changelog=False" if declared is None else f"mode={declared.text!r}"
    elif key is not None and set(key) != set(known.upsert_key):
        said = f"primary_key={primary_key!r}"
    else:
        return ChangelogMode.UPSERT, known.upsert_key
    raise JobError(
        f"source '{source}': {said}, but its reader got upsert_key, so its rows are {known.text}; leave {said} out, "
        "or read it without upsert_key"
    )


def insertions(df: DataFrame) -> DataFrame:
    """``df`` with kinds: rows without a kind become insertions."""
    if ROW_KIND_COLUMN in df.columns:
        return df
    return df.selectExpr("*", f"'{RowKind.INSERT.text}' as {ROW_KIND_COLUMN}")
