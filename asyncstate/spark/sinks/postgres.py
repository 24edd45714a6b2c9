"""A table of a PostgreSQL database.

Owns: ``PostgresTarget``; needs psycopg (``pip install 'asyncstate[postgres]'``).
Invariant: a write is one transaction; rows come by COPY into temporary tables, so that they cross the network once.
Must not import pyspark.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import csv

from asyncstate.errors import StoreError
from asyncstate.spark.sinks.sql import BATCHES, DELETES, LAST, UPSERTS, check_table, identifier, statements
from asyncstate.spark.sinks.target import Changes, extra, is_written

if TYPE_CHECKING:
    import psycopg

_UNIQUE = """
    SELECT array_agg(a.attname::text) FROM pg_index i
    JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey)
    WHERE i.indrelid = to_regclass(%s) AND i.indisunique AND i.indpred IS NULL GROUP BY i.indexrelid
"""
_COLUMNS = """
    SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped
    ORDER BY attnum
"""


class PostgresTarget:
    """``table`` (``"schema.table"``, too) of the database ``conninfo``, such as ``"host=db dbname=shop user=etl"``."""

    def __init__(self, conninfo: str, table: str) -> None:
        self.conninfo = conninfo
        self.table = ".".join(map(identifier, table.split(".")))

    def check(self, schema: pa.Schema, keys: tuple[str, ...]) -> None:
        """See ``Target``."""
        with self._connected() as database:
            columns = [name for (name,) in database.execute(_COLUMNS, [self.table]).fetchall()]
            unique = [names for (names,) in database.execute(_UNIQUE, [self.table]).fetchall()]
        check_table(self.table, schema, keys, columns, unique)

    def write(self, writer: str, batch_id: int, changes: Changes) -> bool:
        """See ``Target``."""
        sql = statements(self.table, changes.upserts.column_names, changes.keys)
        with self._connected() as database, database.cursor() as cursor:
            cursor.execute(BATCHES)
            # The lock on the writer's row, which has to be there: of two drivers the second waits and finds it written.
            cursor.execute("INSERT INTO asyncstate_batches VALUES (%s, -1) ON CONFLICT DO NOTHING", [writer])
            found = cursor.execute(f"{LAST}%s FOR UPDATE", [writer]).fetchone()
            if is_written(f"table {self.table}", writer, batch_id, found[0] if found else None):
                return False
            for statement in sql.stage:
                cursor.execute(statement)
            _copy(cursor, DELETES, changes.deletes)
            _copy(cursor, UPSERTS, changes.upserts)
            cursor.execute(sql.delete)
            cursor.execute(sql.upsert)
            cursor.execute(
                "UPDATE asyncstate_batches SET batch_id = %s WHERE writer = %s", [batch_id, writer]
            )
        return True

    @contextmanager
    def _connected(self) -> Iterator[psycopg.Connection[Any]]:
        """A transaction on a connection of its own."""
        with extra("postgres", "PostgresTarget"):
            import psycopg
        try:
            with psycopg.connect(self.conninfo) as database:
                yield database
        except psycopg.Error as error:
            raise StoreError(f"table {self.table}: {str(error).strip()}; nothing was written") from error


def _copy(cursor: psycopg.Cursor[Any], table: str, rows: pa.Table) -> None:
    buffer = io.BytesIO()
    plain = pa.table([_plain(column) for column in rows.columns], rows.column_names)
    csv.write_csv(plain, buffer, csv.WriteOptions(include_header=False))  # a null is empty, a text has quotes
    with cursor.copy(f"COPY {table} FROM STDIN (FORMAT csv)") as copy:
        copy.write(buffer.getbuffer())


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """As PostgreSQL reads it in a CSV."""
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        hexed = [None if one is None else f"\\x{one.hex()}" for one in column.to_pylist()]
        return pa.chunked_array([pa.array(hexed, pa.string())])
    return column.cast(pa.string()) if pa.types.is_decimal(column.type) else column
