"""A table of a PostgreSQL database.

Owns: ``PostgresTarget``; needs psycopg (``pip install 'asyncstate[postgres]'``).
Invariant: a write is one transaction; rows are sent by COPY into temporary tables, so that they cross the network once.
Must not import pyspark.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
from pyarrow import csv

from asyncstate.driver.write_marks import UNKNOWN, Origin, is_written
from asyncstate.errors import ConfigurationError, SchemaError, StoreError
from asyncstate.spark.sinks.postgres_types import PostgresType, copied, reason_against, text_rules
from asyncstate.spark.sinks.sql import (
    BATCHES,
    DELETES,
    NO_MARK,
    UPSERTS,
    Statements,
    TargetColumn,
    Unique,
    check_count,
    check_gone,
    check_table,
    check_values,
    identifier,
    mark_from_row,
    row_of_mark,
    statements,
)
from asyncstate.spark.sinks.target import TargetChanges, check_keys, check_text, extra

if TYPE_CHECKING:
    import psycopg

_PORTS: Final = re.compile(r"[0-9, ]*")
# COPY sends UTF-8, and NULL for a null in an array: with other settings it would store other values.
_SESSION: Final = (
    "SET LOCAL client_encoding = 'UTF8'; SET LOCAL array_nulls = on; SET LOCAL TIME ZONE 'UTC'; "
    "SET LOCAL DateStyle = 'ISO, YMD'; SET LOCAL IntervalStyle = postgres"
)
_TABLE: Final = """
    SELECT c.relkind::text,
        c.relhastriggers OR c.relhasrules OR c.relrowsecurity OR EXISTS (SELECT FROM pg_partition_tree(c.oid) p
            JOIN pg_class part ON part.oid = p.relid WHERE part.relhastriggers),
        current_setting('transaction_read_only') = 'on',
        array_remove(ARRAY[
            CASE WHEN has_any_column_privilege(c.oid, 'SELECT') THEN NULL ELSE 'SELECT' END,
            CASE WHEN has_any_column_privilege(c.oid, 'INSERT') THEN NULL ELSE 'INSERT' END,
            CASE WHEN has_any_column_privilege(c.oid, 'UPDATE') THEN NULL ELSE 'UPDATE' END,
            CASE WHEN has_table_privilege(c.oid, 'DELETE') THEN NULL ELSE 'DELETE' END], NULL),
        to_regclass('asyncstate_batches') IS NULL AND NOT has_schema_privilege(current_schema(), 'CREATE')
    FROM pg_class c WHERE c.oid = to_regclass(%s)
"""
_COLUMNS: Final = """
    WITH RECURSIVE base AS (
        SELECT a.attnum, a.atttypid AS type, a.atttypmod AS modifier, a.attcollation AS collation
        FROM pg_attribute a WHERE a.attrelid = to_regclass(%(table)s) AND a.attnum > 0 AND NOT a.attisdropped
        UNION ALL
        SELECT b.attnum, t.typbasetype, t.typtypmod, b.collation FROM base b JOIN pg_type t ON t.oid = b.type
        WHERE t.typtype = 'd')
    SELECT a.attname::text, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.atthasdef OR a.attidentity <> '',
        a.attgenerated <> '' OR a.attidentity = 'a', t.typname::text, b.modifier, t.typcategory::text,
        e.typname::text, e.typcategory::text, c.collisdeterministic IS FALSE
    FROM base b JOIN pg_attribute a ON a.attrelid = to_regclass(%(table)s) AND a.attnum = b.attnum
    JOIN pg_type t ON t.oid = b.type AND t.typtype <> 'd'
    LEFT JOIN pg_type e ON e.oid = t.typelem AND t.typcategory = 'A'
    LEFT JOIN pg_collation c ON c.oid = b.collation
    ORDER BY a.attnum
"""
_UNIQUE: Final = """
    SELECT c.relname::text, ARRAY(
            SELECT a.attname::text FROM generate_series(0, i.indnkeyatts - 1) n
            JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[n]),
        CASE WHEN i.indpred IS NOT NULL THEN 'it is partial'
            WHEN EXISTS (SELECT FROM generate_series(0, i.indnkeyatts - 1) n WHERE i.indkey[n] = 0)
                THEN 'it is on an expression'
            WHEN NOT i.indimmediate THEN 'it is deferrable'
            WHEN NOT i.indisvalid THEN 'it is not valid'
            WHEN EXISTS (SELECT FROM unnest(i.indcollation::oid[]) o JOIN pg_collation p ON p.oid = o
                    WHERE NOT p.collisdeterministic) THEN 'its collation treats different strings as one key'
            ELSE '' END
    FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
    WHERE i.indrelid = to_regclass(%s) AND i.indisunique
"""
_RIGHTS_TO_APPEND: Final = ("SELECT", "INSERT")
_KEY: Final = "job = %s AND writer = %s AND table_name = %s"


class _Table(NamedTuple):
    """The database's description of a table."""

    columns: dict[str, TargetColumn]
    types: dict[str, PostgresType]
    unique: list[Unique]
    may_keep: bool
    """Whether triggers, also of a partition, rules or row security may keep rows that are deleted."""


class PostgresTarget:
    """``table`` (``"schema.table"``, too) of the database ``conninfo``, such as ``"host=db dbname=shop user=etl"``.

    Times are written in UTC, lists into arrays, lists, structs and maps into json and jsonb."""

    def __init__(self, conninfo: str, table: str) -> None:
        if not isinstance(conninfo, str):
            raise ConfigurationError(
                "PostgresTarget: conninfo is not a string; give one such as 'host=db dbname=shop user=etl'"
            )
        self.conninfo = conninfo
        self.table = ".".join(map(identifier, check_text("PostgresTarget", "table", table).split(".")))

    @property
    def place(self) -> str:
        """The table, as errors name it."""
        return f"table {self.table}"

    def check(self, schema: pa.Schema, keys: tuple[str, ...]) -> None:
        """See ``Target``; also refuses what is not a table, and rights that are missing."""
        check_keys(self.place, schema, keys)
        with self._connected() as database:
            self._check(self._described(database, keys), schema, keys)

    def check_append(self, schema: pa.Schema) -> None:
        """See ``AppendTarget``. The table needs no key; a row that breaks a unique index fails its micro-batch."""
        with self._connected() as database:
            self._check(self._described(database, ()), schema, ())

    def append(self, writer: str, batch_id: int, rows: pa.Table, origin: Origin = UNKNOWN) -> bool:
        """Insert the rows, and the mark of the micro-batch, in one transaction; False if it was written before."""
        return self.write(writer, batch_id, TargetChanges.appended(rows), origin)

    def write(self, writer: str, batch_id: int, changes: TargetChanges, origin: Origin = UNKNOWN) -> bool:
        """Write the changes, and that ``batch_id`` of ``origin`` is the last one of ``writer``, together; False if it
        has been written already, as ``is_written`` decides."""
        sql = statements(self.table, changes.upserts.column_names, changes.keys)
        key = (origin.job, writer, self.table)
        with self._connected() as database, database.cursor() as cursor:
            table = self._described(database, changes.keys)
            self._check(table, changes.upserts.schema, changes.keys)
            check_values(self.place, changes, table.columns)
            cursor.execute(BATCHES)
            # The lock on the writer's row, which must exist: of two drivers the second waits and finds it written.
            nothing = (*key, NO_MARK, "", "")
            cursor.execute(
                "INSERT INTO asyncstate_batches VALUES (%s, %s, %s, %s, %s, %s) ON CONFLICT DO NOTHING",
                nothing,
            )
            mark: Any = cursor.execute(
                f"SELECT batch_id, checkpoint, driver FROM asyncstate_batches WHERE {_KEY} FOR UPDATE", key
            ).fetchone()
            if is_written(self.place, writer, batch_id, origin, mark_from_row(mark)):
                return False
            self._run(cursor, sql, changes, table)
            cursor.execute(
                f"UPDATE asyncstate_batches SET batch_id = %s, checkpoint = %s, driver = %s WHERE {_KEY}",
                (*row_of_mark(origin, batch_id), *key),
            )
        return True

    def _run(
        self, cursor: psycopg.Cursor[Any], sql: Statements, changes: TargetChanges, table: _Table
    ) -> None:
        for statement in sql.stage:
            cursor.execute(statement)
        _copy(cursor, UPSERTS, changes.upserts, table.types)
        if changes.deletes.num_rows:
            _copy(cursor, DELETES, changes.deletes, table.types)
            cursor.execute(sql.delete)
            found = cursor.execute(sql.gone).fetchone() if table.may_keep else None
            check_gone(self.place, found[0] if found else 0)
        check_count(self.place, cursor.execute(sql.upsert).rowcount, changes.upserts.num_rows)

    def _described(self, database: psycopg.Connection[Any], keys: tuple[str, ...]) -> _Table:
        """The table. Raises for what cannot be written by ``keys``, or appended to if there are none."""
        found = database.execute(_TABLE, [self.table]).fetchone()
        if found is None:
            return _Table({}, {}, [], False)
        kind, may_keep, is_read_only, lacking, no_batches = found
        if kind not in ("r", "p"):
            raise SchemaError(
                f"{self.place} is not a table but another relation (kind {kind!r}); name a table"
            )
        if is_read_only:
            raise StoreError(f"{self.place}: the database is read-only; name a server that accepts writes")
        lacking = [right for right in lacking if keys or right in _RIGHTS_TO_APPEND]
        if lacking:
            raise StoreError(f"{self.place}: the user lacks the privilege to {', '.join(lacking)}; grant it")
        if no_batches:
            raise StoreError(
                f"{self.place}: the user cannot create the table asyncstate_batches, which records written "
                "micro-batches; create it for the user, or grant CREATE on the schema"
            )
        columns, types = dict[str, TargetColumn](), dict[str, PostgresType]()
        for name, shown, required, has_default, computed, *details in database.execute(
            _COLUMNS, {"table": self.table}
        ).fetchall():
            types[name] = own = PostgresType(*details)
            filled = has_default or computed or not required
            columns[name] = TargetColumn(name, shown, required, filled, computed)._replace(**text_rules(own))
        unique = [
            Unique(index, frozenset(names), wrong)
            for index, names, wrong in database.execute(_UNIQUE, [self.table]).fetchall()
        ]
        return _Table(columns, types, unique, may_keep)

    def _check(self, table: _Table, schema: pa.Schema, keys: tuple[str, ...]) -> None:
        def reason(field: pa.Field, is_key: bool) -> str | None:
            return reason_against(field.type, table.types[field.name], is_key)

        check_table(self.place, schema, keys, table.columns, table.unique, reason)

    @contextmanager
    def _connected(self) -> Iterator[psycopg.Connection[Any]]:
        """A transaction on a separate connection."""
        with extra("postgres", "PostgresTarget"):
            import psycopg
        password = _checked_password(self.conninfo)
        try:
            with psycopg.connect(self.conninfo) as database:
                database.execute(_SESSION)
                yield database
        except psycopg.Error as error:
            text = str(error).strip()
            shown = text.replace(password, "***") if password else text
            raise StoreError(f"{self.place}: {shown}; nothing was written") from (
                None if shown != text else error
            )


def _checked_password(conninfo: str) -> str:
    """The password. Raises ConfigurationError for a text whose parts libpq would take for other settings, which it
    would show."""
    from psycopg import ProgrammingError
    from psycopg.conninfo import conninfo_to_dict

    parts: dict[str, str] | None = None
    with suppress(ProgrammingError, UnicodeError):
        parts = {name: str(value) for name, value in conninfo_to_dict(conninfo).items()}
    if parts is None or not _PORTS.fullmatch(parts.get("port", "")) or "@" in parts.get("host", ""):
        raise ConfigurationError(
            "PostgresTarget: conninfo cannot be read; quote values with blanks or quotes (password='a b'), and write "
            "%40 for @, %2F for / and %3A for : in the password of a URI. It is not shown because it may contain a "
            "password"
        )
    return parts.get("password", "")


def _copy(cursor: psycopg.Cursor[Any], table: str, rows: pa.Table, types: dict[str, PostgresType]) -> None:
    if not rows.num_rows:
        return
    buffer = io.BytesIO()
    columns = [copied(name, rows.column(name), types[name]) for name in rows.column_names]
    given = pa.table(columns, rows.column_names)
    csv.write_csv(given, buffer, csv.WriteOptions(include_header=False))  # a null is empty, a text has quotes
    with cursor.copy(f"COPY {table} FROM STDIN (FORMAT csv)") as copy:
        copy.write(buffer.getbuffer())
