"""What is known of the rows of a DataFrame: it travels with the DataFrame that an operator, or a reader, has returned.

Owns: ``with_changes`` and ``known_changes``; ``mark_of``, which the column ``row_kind`` keeps whatever Spark makes of
the rows; ``source_facts``, what a source declares; ``insertions``, which gives kinds to rows; ``both``, one after the
other.
Invariant: of a DataFrame made of another one, by whatever Spark has, nothing is taken for known that Spark may have
undone; rows that were upserts are never taken for anything else.
Must not import runtime, storage or execution.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as sf

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

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_CHANGES: Final = "_asyncstate_changes"
_MARK: Final = "asyncstate.changes"
_MARKS: Final = re.compile(rf'"{re.escape(_MARK)}":"((?:[^"\\]|\\.)*)"')
_UPSERT: Final = ChangelogMode.UPSERT.text
_INSERT_ONLY: Final = ChangelogMode.INSERT_ONLY.text


def mark_of(changes: Changelog) -> dict[str, str]:
    """The metadata of ``row_kind`` in rows that are ``changes``."""
    return {_MARK: changes.text}


def marked(df: DataFrame, changes: Changelog) -> DataFrame:
    """``with_changes``, with the mark that stays with the rows."""
    return with_changes(df.withMetadata(ROW_KIND_COLUMN, mark_of(changes)), changes)


def with_changes(df: DataFrame, changes: Changelog) -> DataFrame:
    """The rows of ``df``, with what is known of them; another object if something else was known of this one."""
    if df.__dict__.get(_CHANGES, changes) != changes:
        df = df.select("*")
    df.__dict__[_CHANGES] = changes
    return df


def known_changes(df: DataFrame, what: str = "") -> Changelog:
    """What is known of the rows of ``df``; if nothing is, rows with kinds are changes that take back whole rows.
    Raises SchemaError as ``has_kinds``, and for rows that Spark has made of upserts."""
    kinds = has_kinds(
        df.schema.fieldNames(), what
    )  # the schema is kept; the columns would be a call into the JVM
    found: Any = df.__dict__.get(_CHANGES)
    if isinstance(found, Changelog):
        return found
    if not kinds:
        return INSERT_ONLY
    upserts = _made_of_upserts(df)
    if upserts is not None:
        raise SchemaError(
            f"{what or 'the rows'}: Spark has made these rows of others that are {upserts}, and what became of their "
            "key is not known: say what they are with changes=Changelog.upsert(...), or put ChangelogNormalize() "
            "before Spark's transformation"
        )
    return INSERT_ONLY if _only_insertions(df) else RETRACT


def _made_of_upserts(df: DataFrame) -> str | None:
    """What the rows were, in words, where some of those that Spark has made ``df`` of were upserts."""
    own, kept = _own_mark(df), _kept_marks(df)
    found = [own] if len(kept) == 1 else [own, *(mark for marks in kept for mark in marks)]
    return next((mark for mark in found if mark is not None and mark.startswith(_UPSERT)), None)


def _only_insertions(df: DataFrame) -> bool:
    """Whether ``df`` was made of the rows of one operator, which are insertions, without other kinds."""
    own, kept = _own_mark(df), _kept_marks(df)
    marks = [own, *kept[0]] if len(kept) == 1 and kept[0] else []
    return bool(marks) and all(mark is not None and mark.startswith(_INSERT_ONLY) for mark in marks)


def _own_mark(df: DataFrame) -> str | None:
    """The mark that ``row_kind`` has kept, as long as it is the column that it was."""
    found: str | None = df.schema[ROW_KIND_COLUMN].metadata.get(_MARK)
    return found


def _kept_marks(df: DataFrame) -> list[list[str]]:
    """The marks of the rows of operators that ``df`` reads, of each where they are kept; those of other tables are
    nobody's word. In a union the first one's mark hides the others."""
    leaves: Any = df._jdf.queryExecution().analyzed().collectLeaves()
    found = []
    for number in range(leaves.size()):
        schema = str(leaves.apply(number).schema().json())
        found.append(_MARKS.findall(schema) if f'"{OUTPUT}"' in schema else [])
    return found


def both(first: DataFrame, then: DataFrame, key: Key | None) -> DataFrame:
    """The rows of both; ``key``: they are upserts by it, of which ``then`` replaces those of ``first``."""
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
    """The mode and the primary key of a source: those that are declared, or the ones that the reader of ``df`` knows.

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
                f"source '{source}': Spark has made its rows of others that are {upserts}, and what became of their "
                "key is not known: say what they are with mode='upsert' and primary_key=..., or transform the stream "
                "that source returns, which keeps what is known"
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
        f"source '{source}': {said}, but its reader was given upsert_key, so its rows are {known.text}; leave {said} "
        "out, or read it without upsert_key"
    )


def insertions(df: DataFrame) -> DataFrame:
    """``df`` with kinds: rows that have none are insertions."""
    if ROW_KIND_COLUMN in df.columns:
        return df
    return df.selectExpr("*", f"'{RowKind.INSERT.text}' as {ROW_KIND_COLUMN}")
