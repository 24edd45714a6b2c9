"""A table of an SQLite database.

Owns: ``SqliteTarget``.
Invariant: a write is one transaction.
Must not import pyspark.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa

from asyncstate.errors import StoreError
from asyncstate.spark.sinks.sql import BATCHES, DELETES, LAST, UPSERTS, check_table, identifier, statements
from asyncstate.spark.sinks.target import Changes, is_written


class SqliteTarget:
    """``table`` of the database file ``path``. Times and decimals are stored as texts, booleans as 0 and 1."""

    def __init__(self, path: str | Path, table: str) -> None:
        self.path = str(path)
        self.table = table

    def check(self, schema: pa.Schema, keys: tuple[str, ...]) -> None:
        """See ``Target``."""
        with closing(self._connected()) as database:
            columns = list(database.execute("SELECT name, pk FROM pragma_table_info(?)", [self.table]))
            indexes = list(
                database.execute(
                    'SELECT name FROM pragma_index_list(?) WHERE "unique" AND NOT partial', [self.table]
                )
            )
            unique = [
                [name for (name,) in database.execute("SELECT name FROM pragma_index_info(?)", index)]
                for index in indexes
            ]
        unique.append([name for name, place in columns if place])
        check_table(self.table, schema, keys, [name for name, _ in columns], unique)

    def write(self, writer: str, batch_id: int, changes: Changes) -> bool:
        """See ``Target``."""
        sql = statements(identifier(self.table), changes.upserts.column_names, changes.keys)
        with closing(self._connected()) as database:
            try:
                database.execute("BEGIN IMMEDIATE")
                database.execute(BATCHES)
                found = database.execute(LAST + "?", [writer]).fetchone()
                if is_written(f"{self.path}, table {self.table}", writer, batch_id, found and found[0]):
                    return False
                for statement in sql.stage:
                    database.execute(statement)
                _insert(database, DELETES, changes.deletes)
                _insert(database, UPSERTS, changes.upserts)
                database.execute(sql.delete)
                database.execute(sql.upsert)
                database.execute(
                    "INSERT INTO asyncstate_batches VALUES (?, ?) ON CONFLICT (writer) DO UPDATE SET batch_id = "
                    "excluded.batch_id",
                    [writer, batch_id],
                )
                database.execute("COMMIT")
            except sqlite3.Error as error:
                raise StoreError(f"{self.path}, table {self.table}: {error}; nothing was written") from error
        return True

    def _connected(self) -> sqlite3.Connection:
        try:
            return sqlite3.connect(self.path, isolation_level=None)
        except sqlite3.Error as error:
            raise StoreError(f"{self.path}: {error}; give the file of an SQLite database") from error


def _insert(database: sqlite3.Connection, table: str, rows: pa.Table) -> None:
    columns = [_plain(column) for column in rows.columns]
    places = ", ".join("?" * len(columns))
    database.executemany(f"INSERT INTO {table} VALUES ({places})", zip(*columns, strict=True))


def _plain(column: pa.ChunkedArray) -> list[Any]:
    kind = column.type
    texts = pa.types.is_temporal(kind) or pa.types.is_decimal(kind)
    values: list[Any] = (column.cast(pa.string()) if texts else column).to_pylist()
    return values
