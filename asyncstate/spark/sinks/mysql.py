"""A table of a MySQL or MariaDB database.

Owns: ``MySqlTarget``; needs PyMySQL (``pip install 'asyncstate[mysql]'``).
Invariant: a write is one transaction; what MySQL would commit on its way (new tables) comes before it.
Must not import pyspark.

Source: INSERT ... ON DUPLICATE KEY UPDATE of MySQL.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from asyncstate.errors import SchemaError, StoreError
from asyncstate.spark.sinks.sql import DELETES, UPSERTS, Statements, check_table
from asyncstate.spark.sinks.target import Changes, extra, is_written

if TYPE_CHECKING:
    from pymysql.cursors import Cursor

_BATCHES: Final = (
    "CREATE TABLE IF NOT EXISTS asyncstate_batches (writer varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin "
    "PRIMARY KEY, batch_id bigint NOT NULL) ENGINE = InnoDB"
)
_COLUMNS: Final = (
    "SELECT column_name FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = %s "
    "ORDER BY ordinal_position"
)
_UNIQUE: Final = (
    "SELECT index_name, column_name FROM information_schema.statistics WHERE table_schema = DATABASE() AND "
    "table_name = %s AND non_unique = 0 ORDER BY index_name, seq_in_index"
)
_ENGINE: Final = (
    "SELECT engine FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = %s"
)


class MySqlTarget:
    """``table`` of the database that ``connection`` names: what PyMySQL's ``connect`` takes, such as
    ``{"host": "db", "user": "etl", "password": "...", "database": "shop"}``. Times are written in UTC."""

    def __init__(self, connection: dict[str, Any], table: str) -> None:
        self.connection = connection
        self.table = table

    def check(self, schema: pa.Schema, keys: tuple[str, ...]) -> None:
        """See ``Target``; also refuses tables without transactions, and those with a second unique key, by which
        MySQL would replace other rows than those of ``keys``."""
        with self._cursor() as cursor:
            columns = [name for (name,) in _all(cursor, _COLUMNS, self.table)]
            found = _all(cursor, _UNIQUE, self.table)
            engine = _all(cursor, _ENGINE, self.table)
        unique = {index: [name for _, name in rows] for index, rows in groupby(found, lambda row: row[0])}
        check_table(self.table, schema, keys, columns, list(unique.values()))
        others = [index for index, names in unique.items() if set(names) != set(keys)]
        if others:
            raise SchemaError(
                f"table {self.table} has a second unique key ({', '.join(others)}), by which MySQL's upserts would "
                "replace rows of other keys; make it a plain index, or write by it"
            )
        if engine[0][0] != "InnoDB":
            raise SchemaError(
                f"table {self.table} is of the engine {engine[0][0]}, which has no transactions; alter it "
                "to InnoDB"
            )

    def write(self, writer: str, batch_id: int, changes: Changes) -> bool:
        """See ``Target``."""
        sql = statements(self.table, changes.upserts.column_names, changes.keys)
        with self._cursor() as cursor:
            for statement in (_BATCHES, *sql.stage):
                cursor.execute(statement)
            cursor.execute("INSERT IGNORE INTO asyncstate_batches VALUES (%s, -1)", [writer])
            found = _all(
                cursor, "SELECT batch_id FROM asyncstate_batches WHERE writer = %s FOR UPDATE", writer
            )
            if is_written(f"table {self.table}", writer, batch_id, found[0][0]):
                return False
            _insert(cursor, DELETES, changes.deletes)
            _insert(cursor, UPSERTS, changes.upserts)
            cursor.execute(sql.delete)
            cursor.execute(sql.upsert)
            cursor.execute(
                "UPDATE asyncstate_batches SET batch_id = %s WHERE writer = %s", [batch_id, writer]
            )
            cursor.connection.commit()
        return True

    @contextmanager
    def _cursor(self) -> Iterator[Cursor]:
        """On a connection of its own, which takes back what is not committed."""
        with extra("mysql", "MySqlTarget"):
            import pymysql
        try:
            connection = pymysql.connect(
                **{"charset": "utf8mb4", **self.connection, "init_command": "SET time_zone = '+00:00'"}
            )
            with connection, connection.cursor() as cursor:
                yield cursor
        except pymysql.Error as error:
            raise StoreError(f"table {self.table}: {error}; nothing was written") from error


def statements(table: str, columns: Sequence[str], keys: Sequence[str]) -> Statements:
    """Those of a table."""
    name, listed, by = _identifier(table), ", ".join(map(_identifier, columns)), list(map(_identifier, keys))
    changed = [_identifier(column) for column in columns if column not in keys]
    change = (
        ", ".join(f"{column} = VALUES({column})" for column in changed) or f"{name}.{by[0]} = {name}.{by[0]}"
    )
    same = " AND ".join(f"{name}.{column} = gone.{column}" for column in by)
    return Statements(
        (
            f"CREATE TEMPORARY TABLE {UPSERTS} AS SELECT {listed} FROM {name} WHERE false",
            f"CREATE TEMPORARY TABLE {DELETES} AS SELECT {', '.join(by)} FROM {name} WHERE false",
        ),
        f"DELETE {name} FROM {name} JOIN {DELETES} AS gone ON {same}",
        f"INSERT INTO {name} ({listed}) SELECT {listed} FROM {UPSERTS} ON DUPLICATE KEY UPDATE {change}",
    )


def _identifier(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _all(cursor: Cursor, sql: str, argument: str) -> list[tuple[Any, ...]]:
    cursor.execute(sql, [argument])
    return list(cursor.fetchall())


def _insert(cursor: Cursor, table: str, rows: pa.Table) -> None:
    if not rows.num_rows:
        return
    columns = [_plain(column).to_pylist() for column in rows.columns]
    places = ", ".join(["%s"] * len(columns))
    cursor.executemany(f"INSERT INTO {table} VALUES ({places})", list(zip(*columns, strict=True)))


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Times without their zone, in UTC."""
    kind = column.type
    return column.cast(pa.timestamp(kind.unit)) if pa.types.is_timestamp(kind) else column
