"""The SQL that databases have in common: from a staged table of changes into the target table.

Owns: ``Statements``, those of SQLite and PostgreSQL; ``TargetColumn``, ``Unique`` and the refusal of what a table
cannot take; the check of a micro-batch's values.
Invariant: names are always quoted.
Must not import pyspark.

Source: INSERT ... ON CONFLICT of PostgreSQL and SQLite.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from asyncstate.driver.write_marks import Mark, Origin
from asyncstate.errors import OperatorError, SchemaError, StoreError
from asyncstate.spark.sinks.column_checks import is_text
from asyncstate.spark.sinks.target import TargetChanges, check_columns, check_keys

BATCHES: Final = (
    "CREATE TABLE IF NOT EXISTS asyncstate_batches (job text NOT NULL, writer text NOT NULL, table_name text NOT NULL, "
    "batch_id bigint NOT NULL, checkpoint text NOT NULL, driver text NOT NULL, "
    "PRIMARY KEY (job, writer, table_name))"
)
UPSERTS: Final = "asyncstate_upserts"
DELETES: Final = "asyncstate_deletes"
_UUID: Final = "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"
NO_MARK: Final = -1
"""The micro-batch of a mark that exists only to be locked, before the first write."""


class TargetColumn(NamedTuple):
    """A column of a table. ``kind``: its type as the database shows it; ``required``: it takes no null; ``filled``: a
    row may omit it; ``computed``: a row must omit it.

    For texts: the maximum length, in ``characters`` or ``bytes_max`` of UTF-8; ``no_blanks``: no trailing blanks;
    ``is_uuid``: a UUID as the database shows it. Databases silently cut and rewrite other texts.
    """

    name: str
    kind: str
    required: bool = False
    filled: bool = True
    computed: bool = False
    characters: int | None = None
    bytes_max: int | None = None
    no_blanks: bool = False
    is_uuid: bool = False


class Unique(NamedTuple):
    """A unique index over ``columns``; ``wrong``: why upserts cannot use it."""

    name: str
    columns: frozenset[str]
    wrong: str = ""


def row_of_mark(origin: Origin, batch_id: int) -> tuple[int, str, str]:
    """The row of ``asyncstate_batches`` after a micro-batch is written: the inverse of ``mark_from_row``."""
    return batch_id, origin.checkpoint, origin.driver


def mark_from_row(row: tuple[int, str, str] | None) -> Mark | None:
    """The mark that a row of ``asyncstate_batches`` holds."""
    return None if row is None or row[0] == NO_MARK else Mark(*row)


class Statements(NamedTuple):
    """The statements of one table. ``stage``: two temporary tables; then ``delete`` and ``upsert`` from them; ``gone``
    counts rows that should have been deleted. Of rows that are appended only one is staged, and ``delete`` is empty."""

    stage: tuple[str, ...]
    delete: str
    gone: str
    upsert: str


def statements(
    table: str,
    columns: Sequence[str],
    keys: Sequence[str],
    exact: Mapping[str, str] | None = None,
    insert: str = "INSERT",
) -> Statements:
    """``table`` as SQL names it; without ``keys`` rows are appended. ``exact``: by key column, the clause that makes
    comparisons equal those of its index."""
    exact = exact or {}
    listed, by = ", ".join(map(identifier, columns)), ", ".join(map(identifier, keys))
    staged = f"CREATE TEMPORARY TABLE {UPSERTS} AS SELECT {listed} FROM {table} WHERE false"
    into = f"{insert} INTO {table} ({listed}) SELECT {listed} FROM {UPSERTS} WHERE true"
    if not keys:
        return Statements((staged,), "", "", into)
    conflict = ", ".join(identifier(name) + exact.get(name, "") for name in keys)
    others = [identifier(name) for name in columns if name not in keys]
    # A row that has only a key is rewritten, so that the database counts it.
    changed = others or [identifier(keys[0])]
    change = f"UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in changed)}"
    same = " AND ".join(
        f"{table}.{identifier(name)}{exact.get(name, '')} = gone.{identifier(name)}" for name in keys
    )
    there = f"EXISTS (SELECT 1 FROM {DELETES} AS gone WHERE {same})"
    return Statements(
        (
            staged,
            f"CREATE TEMPORARY TABLE {DELETES} AS SELECT {by} FROM {table} WHERE false",
        ),
        f"DELETE FROM {table} WHERE {there}",
        f"SELECT count(*) FROM {table} WHERE {there}",
        f"{into} ON CONFLICT ({conflict}) DO {change}",
    )


def identifier(name: str) -> str:
    """A name in SQL."""
    return '"' + name.replace('"', '""') + '"'


Reason = Callable[[pa.Field, bool], str | None]
"""Why the table's column of that name does not preserve the values of a field, as a key or not; None if it does."""


def check_table(
    place: str,
    schema: pa.Schema,
    keys: Sequence[str],
    columns: Mapping[str, TargetColumn],
    unique: Sequence[Unique],
    reason: Reason,
) -> None:
    """Raise SchemaError unless rows of ``schema`` fit into a table that has ``columns``, and one of its ``unique``
    indexes supports upserts by ``keys``; without keys rows are appended."""
    if not columns:
        what = f"a primary key ({', '.join(keys)})" if keys else "the columns of the rows"
        raise SchemaError(f"{place} does not exist; create it with {what}")
    if keys:
        check_keys(place, schema, keys)
    check_columns(place, schema, columns)
    for name in schema.names:
        if columns[name].computed:
            raise SchemaError(
                f"{place}: column '{name}' is computed by the database; drop it before the sink"
            )
    lacking = [one.name for one in columns.values() if not one.filled and one.name not in schema.names]
    if lacking:
        raise SchemaError(
            f"{place}: column '{lacking[0]}' is NOT NULL without a default, and the rows do not have it; add it before "
            "the sink, or give it a default"
        )
    over = [one for one in unique if one.columns == frozenset(keys)]
    if keys and all(one.wrong for one in over):
        why = "".join(f"; {one.name} is none, since {one.wrong}" for one in over)
        raise SchemaError(
            f"{place} has no primary key or unique index over ({', '.join(keys)}) for upserts; create one, so that "
            f"they find their rows{why}"
        )
    for field in schema:
        is_key = field.name in keys
        why_not = reason(field, is_key)
        if why_not is not None:
            raise SchemaError(
                f"{place}: {'key ' if is_key else ''}column '{field.name}' of type {field.type} does not fit "
                f"{columns[field.name].kind}: {why_not}"
            )


def check_values(place: str, changes: TargetChanges, columns: Mapping[str, TargetColumn]) -> None:
    """Raise OperatorError for nulls and texts that the table's columns do not store unchanged."""
    for table in (changes.upserts, changes.deletes):
        for name, column in zip(table.column_names, table.columns, strict=True):
            if columns[name].required and column.null_count:
                raise OperatorError(
                    f"{place}: column '{name}' is NOT NULL, but null in {column.null_count} rows; fill it or filter "
                    "them out before the sink; nothing was written"
                )
            if is_text(column.type):
                _check_texts(place, columns[name], column)


def _check_texts(place: str, column: TargetColumn, texts: pa.ChunkedArray) -> None:
    wrong: list[tuple[str, pa.ChunkedArray]] = []
    if column.characters is not None:
        wrong.append(("is too long for it", pc.greater(pc.utf8_length(texts), column.characters)))
    if column.bytes_max is not None:
        wrong.append(("is too long for it", pc.greater(pc.binary_length(texts), column.bytes_max)))
    if column.no_blanks:
        wrong.append(("ends with a blank, which the column drops", pc.ends_with(texts, " ")))
    if column.is_uuid:
        what = "is not a UUID in lower case with hyphens, and would be read back as another string"
        wrong.append((what, pc.invert(pc.match_substring_regex(texts, _UUID))))
    for what, found in wrong:
        if pc.any(found).as_py():
            first = str(texts.filter(found)[0].as_py())
            shown = first if len(first) <= 60 else f"{first[:60]}..."
            raise OperatorError(
                f"{place}: column '{column.name}' is {column.kind}, and {shown!r} {what}; change the column, or the "
                "string before the sink; nothing was written"
            )


def check_count(place: str, count: int, rows: int) -> None:
    """Raise StoreError unless the database reports as many written rows as it was given."""
    if count != rows:
        raise StoreError(
            f"{place}: the database wrote {count} of {rows} rows: a trigger, a rule or a conflict clause of the table "
            "drops the others. Remove it, or filter these rows out before the sink; nothing was written"
        )


def check_gone(place: str, count: int) -> None:
    """Raise StoreError if deleted rows still exist."""
    if count:
        raise StoreError(
            f"{place}: {count} rows still exist after they were deleted: a trigger, a rule or a row security policy "
            "of the table keeps them. Remove it, or filter these deletions out before the sink; nothing was written"
        )
