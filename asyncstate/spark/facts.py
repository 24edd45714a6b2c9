"""What is known of the rows of a DataFrame: it travels with the DataFrame that an operator, or a reader, has returned.

Owns: ``with_changes`` and ``known_changes``; ``source_facts``, what a source declares; ``insertions``, which gives
kinds to rows; ``both``, one after the other.
Invariant: a DataFrame made of another one, by whatever Spark has, carries nothing of it.
Must not import runtime, storage or execution.
"""

from __future__ import annotations

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
from asyncstate.dataflow.changes import declared_key, declared_mode
from asyncstate.errors import JobError
from asyncstate.spark.columns import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_CHANGES: Final = "_asyncstate_changes"


def with_changes(df: DataFrame, changes: Changelog) -> DataFrame:
    """The rows of ``df``, with what is known of them; another object if something else was known of this one."""
    if df.__dict__.get(_CHANGES, changes) != changes:
        df = df.select("*")
    df.__dict__[_CHANGES] = changes
    return df


def known_changes(df: DataFrame, what: str = "") -> Changelog:
    """What is known of the rows of ``df``; if nothing is, rows with kinds are changes that take back whole rows.
    Raises SchemaError as ``has_kinds``."""
    kinds = has_kinds(
        df.schema.fieldNames(), what
    )  # the schema is kept; the columns would be a call into the JVM
    found: Any = df.__dict__.get(_CHANGES)
    if isinstance(found, Changelog):
        return found
    return RETRACT if kinds else INSERT_ONLY


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
