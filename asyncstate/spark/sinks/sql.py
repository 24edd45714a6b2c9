"""The SQL that databases have in common: from a staged table of changes into the one that is written.

Owns: ``Statements``, those of SQLite and PostgreSQL, the refusal of what a database's column cannot take.
Invariant: names are always quoted.
Must not import pyspark.

Source: INSERT ... ON CONFLICT of PostgreSQL and SQLite.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

import pyarrow as pa

from asyncstate.errors import SchemaError
from asyncstate.spark.sinks.target import check_columns

BATCHES: Final = (
    "CREATE TABLE IF NOT EXISTS asyncstate_batches (writer text PRIMARY KEY, batch_id bigint NOT NULL)"
)
UPSERTS: Final = "asyncstate_upserts"
DELETES: Final = "asyncstate_deletes"
LAST: Final = "SELECT batch_id FROM asyncstate_batches WHERE writer = "


class Statements(NamedTuple):
    """Those of one table. ``stage``: two temporary tables; then ``delete`` and ``upsert`` from them."""

    stage: tuple[str, str]
    delete: str
    upsert: str


def statements(table: str, columns: Sequence[str], keys: Sequence[str]) -> Statements:
    """``table`` as SQL names it."""
    listed, by = ", ".join(map(identifier, columns)), ", ".join(map(identifier, keys))
    others = [identifier(name) for name in columns if name not in keys]
    change = (
        f"UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in others)}" if others else "NOTHING"
    )
    same = " AND ".join(f"{table}.{identifier(name)} = gone.{identifier(name)}" for name in keys)
    return Statements(
        (
            f"CREATE TEMPORARY TABLE {UPSERTS} AS SELECT {listed} FROM {table} WHERE false",
            f"CREATE TEMPORARY TABLE {DELETES} AS SELECT {by} FROM {table} WHERE false",
        ),
        f"DELETE FROM {table} WHERE EXISTS (SELECT 1 FROM {DELETES} AS gone WHERE {same})",
        f"INSERT INTO {table} ({listed}) SELECT {listed} FROM {UPSERTS} WHERE true ON CONFLICT ({by}) DO {change}",
    )


def identifier(name: str) -> str:
    """A name in SQL."""
    return '"' + name.replace('"', '""') + '"'


def check_table(
    table: str,
    schema: pa.Schema,
    keys: Sequence[str],
    known: Collection[str],
    unique: Sequence[Collection[str]],
) -> None:
    """Raise SchemaError unless ``table`` has the columns ``schema``, and one of its ``unique`` keys is ``keys``."""
    if not known:
        raise SchemaError(f"table {table} does not exist; create it with a primary key ({', '.join(keys)})")
    check_columns(f"table {table}", schema, keys, known)
    for field in schema:
        if pa.types.is_nested(field.type):
            raise SchemaError(
                f"table {table}: column '{field.name}' is of type {field.type}, which the sink does not write; make a "
                "text of it with to_json"
            )
    if set(keys) not in [set(names) for names in unique]:
        raise SchemaError(
            f"table {table} has no primary key or unique index over ({', '.join(keys)}); create one, or upserts would "
            "not find their row"
        )
