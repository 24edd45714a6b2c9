"""A table of a MySQL or MariaDB database.

Owns: ``MySqlTarget``; needs PyMySQL (``pip install 'asyncstate[mysql]'``).
Invariant: a write is one transaction; statements that MySQL commits implicitly (new tables) run before it.
Must not import pyspark.

Source: INSERT ... ON DUPLICATE KEY UPDATE of MySQL.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from asyncstate.driver.write_marks import UNKNOWN, Origin, is_written
from asyncstate.errors import ConfigurationError, SchemaError, StoreError
from asyncstate.spark.sinks.mysql_types import MySqlType, reason_against, sent, text_rules
from asyncstate.spark.sinks.sql import (
    DELETES,
    NO_MARK,
    UPSERTS,
    Statements,
    TargetColumn,
    Unique,
    check_table,
    check_values,
    mark_from_row,
    row_of_mark,
)
from asyncstate.spark.sinks.target import TargetChanges, check_keys, check_no_nan, check_text, extra

if TYPE_CHECKING:
    from pymysql.cursors import Cursor

_TEXT: Final = "CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL"
_BATCHES: Final = (
    f"CREATE TABLE IF NOT EXISTS asyncstate_batches (job varchar(255) {_TEXT}, writer varchar(255) {_TEXT}, "
    f"table_name varchar(64) {_TEXT}, batch_id bigint NOT NULL, checkpoint varchar(64) {_TEXT}, "
    f"driver varchar(64) {_TEXT}, PRIMARY KEY (job, writer, table_name)) ENGINE = InnoDB"
)
_COLUMNS: Final = (
    "SELECT column_name, column_type, is_nullable, column_default, extra, data_type, numeric_precision, numeric_scale, "
    "datetime_precision, character_maximum_length, character_octet_length, collation_name "
    "FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = %s ORDER BY ordinal_position"
)
_UNIQUE: Final = (
    "SELECT index_name, column_name, sub_part FROM information_schema.statistics WHERE table_schema = DATABASE() AND "
    "table_name = %s AND non_unique = 0 ORDER BY index_name, seq_in_index"
)
_NAMED: Final = "table_schema = DATABASE() AND table_name = %s"
_TABLE: Final = f"SELECT table_type, engine FROM information_schema.tables WHERE {_NAMED}"
# Without strict mode MySQL stores the nearest value that fits, and only warns. Without the other one it stores the
# next number for a 0 in a column with AUTO_INCREMENT.
_SESSION: Final = (
    "SET SESSION time_zone = '+00:00', SESSION sql_mode = CONCAT_WS(',', NULLIF(@@SESSION.sql_mode, ''), "
    "'STRICT_ALL_TABLES,NO_AUTO_VALUE_ON_ZERO')"
)
_KEY: Final = "job = %s AND writer = %s AND table_name = %s"


class _Table(NamedTuple):
    """The database's description of a table."""

    columns: dict[str, TargetColumn]
    types: dict[str, MySqlType]
    unique: list[Unique]
    engine: str | None


class MySqlTarget:
    """``table`` of the database that ``connection`` names: the arguments of PyMySQL's ``connect``, such as
    ``{"host": "db", "user": "etl", "password": "...", "database": "shop"}``.

    Times are written in UTC, lists, structs and maps as JSON; the sink's session is in strict mode and without
    autocommit."""

    def __init__(self, connection: dict[str, Any], table: str) -> None:
        if not isinstance(connection, Mapping):
            raise ConfigurationError(
                "MySqlTarget: connection is not a dict; give the arguments of PyMySQL's connect, such as {'host': "
                "'db', 'user': 'etl', 'password': '...', 'database': 'shop'}"
            )
        self.connection = connection
        self.table = check_text("MySqlTarget", "table", table)

    @property
    def place(self) -> str:
        """The table, as errors name it."""
        return f"table {self.table}"

    def check(self, schema: pa.Schema, keys: tuple[str, ...]) -> None:
        """See ``Target``; also refuses tables without transactions, and those with a second unique key, by which
        MySQL would replace other rows than those of ``keys``."""
        check_keys(self.place, schema, keys)
        with self._cursor() as cursor:
            self._check(self._described(cursor), schema, keys)

    def check_append(self, schema: pa.Schema) -> None:
        """See ``AppendTarget``. The table needs no key; a row that breaks a unique index fails its micro-batch."""
        with self._cursor() as cursor:
            self._check(self._described(cursor), schema, ())

    def append(self, writer: str, batch_id: int, rows: pa.Table, origin: Origin = UNKNOWN) -> bool:
        """Insert the rows, and the mark of the micro-batch, in one transaction; False if it was written before."""
        return self.write(writer, batch_id, TargetChanges.appended(rows), origin)

    def write(self, writer: str, batch_id: int, changes: TargetChanges, origin: Origin = UNKNOWN) -> bool:
        """Write the changes, and that ``batch_id`` of ``origin`` is the last one of ``writer``, together; False if it
        has been written already, as ``is_written`` decides."""
        sql = statements(self.table, changes.upserts.column_names, changes.keys)
        key = [origin.job, writer, self.table]
        with self._cursor() as cursor:
            table = self._described(cursor)
            self._check(table, changes.upserts.schema, changes.keys)
            check_values(self.place, changes, table.columns)
            check_no_nan(self.place, changes)
            for statement in (_BATCHES, *sql.stage):
                cursor.execute(statement)
            cursor.execute(
                "INSERT IGNORE INTO asyncstate_batches VALUES (%s, %s, %s, %s, '', '')", [*key, NO_MARK]
            )
            found = _all(
                cursor,
                f"SELECT batch_id, checkpoint, driver FROM asyncstate_batches WHERE {_KEY} FOR UPDATE",
                *key,
            )
            if is_written(self.place, writer, batch_id, origin, mark_from_row(found[0])):
                return False
            _insert(cursor, UPSERTS, changes.upserts, table.types)
            if changes.deletes.num_rows:
                _insert(cursor, DELETES, changes.deletes, table.types)
                cursor.execute(sql.delete)
            cursor.execute(sql.upsert)
            cursor.execute(
                f"UPDATE asyncstate_batches SET batch_id = %s, checkpoint = %s, driver = %s WHERE {_KEY}",
                [*row_of_mark(origin, batch_id), *key],
            )
            cursor.connection.commit()
        return True

    def _described(self, cursor: Cursor) -> _Table:
        relations = _all(cursor, _TABLE, self.table)
        if not relations:
            return _Table({}, {}, [], None)
        kind, engine = relations[0]
        if kind != "BASE TABLE":
            raise SchemaError(f"{self.place} is a {kind.lower()}; name a table")
        columns, types = dict[str, TargetColumn](), dict[str, MySqlType]()
        for name, shown, nullable, default, more, *details in _all(cursor, _COLUMNS, self.table):
            types[name] = own = MySqlType(shown, *details)
            required = nullable == "NO"
            computed = "GENERATED" in more.upper().replace("DEFAULT_GENERATED", "")
            filled = not required or default is not None or computed or "auto_increment" in more.lower()
            text = shown if own.collation is None else f"{shown} COLLATE {own.collation}"
            columns[name] = TargetColumn(name, text, required, filled, computed)._replace(**text_rules(own))
        parts = groupby(_all(cursor, _UNIQUE, self.table), lambda row: row[0])
        return _Table(columns, types, [_unique(index, list(rows)) for index, rows in parts], engine)

    def _check(self, table: _Table, schema: pa.Schema, keys: tuple[str, ...]) -> None:
        def reason(field: pa.Field, is_key: bool) -> str | None:
            return reason_against(field.type, table.types[field.name], is_key)

        check_table(self.place, schema, keys, table.columns, table.unique, reason)
        others = [one.name for one in table.unique if one.columns != frozenset(keys) or one.wrong]
        if keys and others:
            raise SchemaError(
                f"table {self.table} has a second unique key ({', '.join(others)}), by which MySQL's upserts would "
                "replace rows of other keys; make it a plain index, or use it as the sink's keys"
            )
        if table.engine != "InnoDB":
            raise SchemaError(
                f"table {self.table} uses the engine {table.engine}, which has no transactions; change it to InnoDB"
            )

    @contextmanager
    def _cursor(self) -> Iterator[Cursor]:
        """A cursor on a separate connection, which rolls back what is not committed."""
        with extra("mysql", "MySqlTarget"):
            import pymysql
        try:
            connection = pymysql.connect(**{"charset": "utf8mb4", **self.connection, "autocommit": False})
        except (TypeError, ValueError) as error:
            raise ConfigurationError(
                f"MySqlTarget: PyMySQL does not accept the connection ({type(error).__name__}: {error}); give host, "
                "user, password and database"
            ) from error
        except pymysql.Error as error:
            raise StoreError(f"table {self.table}: {error}; nothing was written") from error
        try:
            with connection, connection.cursor() as cursor:
                cursor.execute(_SESSION)
                yield cursor
        except pymysql.Error as error:
            raise StoreError(f"table {self.table}: {error}; nothing was written") from error


def _unique(index: str, parts: Sequence[tuple[str, str | None, int | None]]) -> Unique:
    names = frozenset(name for _, name, _ in parts if name is not None)
    prefixes = [f"{name}({length})" for _, name, length in parts if length is not None]
    if any(name is None for _, name, _ in parts):
        return Unique(index, names, "it is on an expression")
    return Unique(index, names, f"it covers only a prefix ({', '.join(prefixes)})" if prefixes else "")


def statements(table: str, columns: Sequence[str], keys: Sequence[str]) -> Statements:
    """The statements for a table; without ``keys`` rows are appended."""
    name, listed, by = _identifier(table), ", ".join(map(_identifier, columns)), list(map(_identifier, keys))
    staged = f"CREATE TEMPORARY TABLE {UPSERTS} AS SELECT {listed} FROM {name} WHERE false"
    into = f"INSERT INTO {name} ({listed}) SELECT {listed} FROM {UPSERTS}"
    if not keys:
        return Statements((staged,), "", "", into)
    changed = [_identifier(column) for column in columns if column not in keys]
    change = (
        ", ".join(f"{column} = VALUES({column})" for column in changed) or f"{name}.{by[0]} = {name}.{by[0]}"
    )
    same = " AND ".join(f"{name}.{column} = gone.{column}" for column in by)
    return Statements(
        (
            staged,
            f"CREATE TEMPORARY TABLE {DELETES} AS SELECT {', '.join(by)} FROM {name} WHERE false",
        ),
        f"DELETE {name} FROM {name} JOIN {DELETES} AS gone ON {same}",
        f"SELECT count(*) FROM {name} JOIN {DELETES} AS gone ON {same}",
        f"{into} ON DUPLICATE KEY UPDATE {change}",
    )


def _identifier(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _all(cursor: Cursor, sql: str, *arguments: str) -> list[tuple[Any, ...]]:
    cursor.execute(sql, arguments)
    return list(cursor.fetchall())


def _insert(cursor: Cursor, table: str, rows: pa.Table, types: Mapping[str, MySqlType]) -> None:
    if not rows.num_rows:
        return
    columns = [sent(name, rows.column(name)) for name in rows.column_names]
    places = ", ".join(["%s"] * len(columns))
    cursor.executemany(f"INSERT INTO {table} VALUES ({places})", list(zip(*columns, strict=True)))
