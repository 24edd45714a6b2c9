"""A table of an SQLite database.

Owns: ``SqliteTarget``.
Invariant: a write is one transaction; values that SQLite's affinities or collations would change are refused before.
Must not import pyspark.

Source: Datatypes In SQLite (affinity, collating sequences), UPSERT, The ON CONFLICT Clause of SQLite's documentation.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.types as kinds

from asyncstate.driver.write_marks import UNKNOWN, Origin, is_written
from asyncstate.errors import ConfigurationError, SchemaError, StoreError
from asyncstate.locations import absolute
from asyncstate.spark.sinks.column_checks import (
    duration_texts,
    integer_in_float,
    is_bytes,
    is_text,
    json_texts,
    no_json,
    plain,
)
from asyncstate.spark.sinks.sql import (
    BATCHES,
    DELETES,
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
from asyncstate.spark.sinks.target import TargetChanges, check_keys, check_no_nan, check_text

_EXACT: Final = " COLLATE BINARY"
_COLUMNS: Final = (
    'SELECT name, type, "notnull", dflt_value, pk, hidden FROM pragma_table_xinfo(?) WHERE hidden <> 1'
)
_TABLE: Final = (
    "SELECT type, sql FROM sqlite_master WHERE type IN ('table', 'view') AND name = ? COLLATE NOCASE"
)
_TRIGGERS: Final = "SELECT count(*) FROM sqlite_master WHERE type = 'trigger' AND tbl_name = ? COLLATE NOCASE"
_INDEXES: Final = 'SELECT name, partial FROM pragma_index_list(?) WHERE "unique"'
_INDEX: Final = "SELECT cid, name, coll FROM pragma_index_xinfo(?) WHERE key"
_KEY: Final = "job = ? AND writer = ? AND table_name = ?"
_MARK: Final = f"SELECT batch_id, checkpoint, driver FROM asyncstate_batches WHERE {_KEY}"


class _Table(NamedTuple):
    """The database's description of a table."""

    columns: dict[str, TargetColumn]
    unique: list[Unique]
    collations: dict[frozenset[str], dict[str, str]]
    """By unique index, the collations of its columns."""
    has_triggers: bool


class SqliteTarget:
    """``table`` of the database file ``path``. Times, durations and decimals are stored as texts, lists, structs and
    maps as JSON, booleans as 0 and 1."""

    def __init__(self, path: str | Path, table: str) -> None:
        given: object = path
        if not isinstance(given, str | Path) or not str(given).strip() or "\0" in str(given):
            raise ConfigurationError(
                f"SqliteTarget: path {path!r} is not a path; give the file of an SQLite database"
            )
        self.path = absolute(str(path))
        self.table = check_text("SqliteTarget", "table", table)

    @property
    def place(self) -> str:
        """The table, as errors name it."""
        return f"table {self.table}"

    def check(self, schema: pa.Schema, keys: tuple[str, ...]) -> None:
        """See ``Target``; also refuses a file that is not there or is no database, and one that is locked."""
        check_keys(self._shown, schema, keys)
        self._check_file(schema, keys)

    def check_append(self, schema: pa.Schema) -> None:
        """See ``AppendTarget``. The table needs no key; a row that breaks a unique index fails its micro-batch."""
        self._check_file(schema, ())

    def append(self, writer: str, batch_id: int, rows: pa.Table, origin: Origin = UNKNOWN) -> bool:
        """Insert the rows, and the mark of the micro-batch, in one transaction; False if it was written before."""
        return self.write(writer, batch_id, TargetChanges.appended(rows), origin)

    def _check_file(self, schema: pa.Schema, keys: tuple[str, ...]) -> None:
        with self._connected() as database:
            self._check(_described(database, self.table), schema, keys)
            database.execute("BEGIN IMMEDIATE")
            database.execute("ROLLBACK")

    def write(self, writer: str, batch_id: int, changes: TargetChanges, origin: Origin = UNKNOWN) -> bool:
        """Write the changes, and that ``batch_id`` of ``origin`` is the last one of ``writer``, together; False if it
        has been written already, as ``is_written`` decides."""
        names, keys = changes.upserts.column_names, changes.keys
        with self._connected() as database:
            database.execute("BEGIN IMMEDIATE")
            table = _described(database, self.table)
            self._check(table, changes.upserts.schema, keys)
            check_values(self._shown, changes, table.columns)
            check_no_nan(self._shown, changes)
            database.execute(BATCHES)
            key = [origin.job, writer, self.table]
            mark = mark_from_row(database.execute(_MARK, key).fetchone())
            if is_written(self._shown, writer, batch_id, origin, mark):
                return False
            exact = {
                name: _EXACT for name in keys if _is_stored_as_text(changes.upserts.schema.field(name).type)
            }
            # A conflict clause of the table itself would drop or replace rows without an error.
            sql = statements(identifier(self.table), names, keys, exact, "INSERT OR ABORT")
            self._run(database, sql, changes, table.has_triggers)
            database.execute(
                "INSERT OR REPLACE INTO asyncstate_batches VALUES (?, ?, ?, ?, ?, ?)",
                [*key, *row_of_mark(origin, batch_id)],
            )
            database.execute("COMMIT")
        return True

    def _run(
        self, database: sqlite3.Connection, sql: Statements, changes: TargetChanges, has_triggers: bool
    ) -> None:
        for statement in sql.stage:
            database.execute(statement)
        _insert(database, UPSERTS, changes.upserts)
        if changes.deletes.num_rows:
            _insert(database, DELETES, changes.deletes)
            database.execute(sql.delete)
            if has_triggers:
                check_gone(self._shown, database.execute(sql.gone).fetchone()[0])
        check_count(self._shown, database.execute(sql.upsert).rowcount, changes.upserts.num_rows)

    @property
    def _shown(self) -> str:
        return f"{self.path}, table {self.table}"

    def _check(self, table: _Table, schema: pa.Schema, keys: tuple[str, ...]) -> None:
        def reason(field: pa.Field, is_key: bool) -> str | None:
            if is_key and _is_stored_as_text(field.type):
                collations = table.collations.get(frozenset(keys), {})
                other = collations.get(field.name, "BINARY")
                if other != "BINARY":
                    return f"it treats different strings as one key (COLLATE {other}); make it COLLATE BINARY"
            return _reason(field.type, _affinity(table.columns[field.name].kind))

        check_table(self._shown, schema, keys, table.columns, table.unique, reason)

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        """A separate connection, which rolls back what is not committed. The file must exist."""
        path = Path(self.path)
        if not path.is_file():
            raise StoreError(f"{self.path}: there is no such file; give the file of an SQLite database")
        try:
            connection = sqlite3.connect(
                f"{path.absolute().as_uri()}?mode=rw", uri=True, isolation_level=None
            )
            with closing(connection):
                yield connection
        except sqlite3.Error as error:
            raise StoreError(f"{self._shown}: {error}; nothing was written") from error


def _described(database: sqlite3.Connection, table: str) -> _Table:
    found = database.execute(_TABLE, [table]).fetchone()
    if found is None:
        return _Table({}, [], {}, False)
    kind, sql = found
    if kind == "view" or sql.upper().startswith("CREATE VIRTUAL"):
        raise SchemaError(f"table {table} is a {'view' if kind == 'view' else 'virtual table'}; name a table")
    columns, key = dict[str, TargetColumn](), list[str]()
    for name, declared, not_null, default, place, hidden in database.execute(_COLUMNS, [table]):
        fills_itself = place and declared.upper() == "INTEGER"
        filled = not not_null or default is not None or bool(fills_itself)
        columns[name] = TargetColumn(name, declared or "no type", bool(not_null), filled, bool(hidden))
        key += [name] if place else []
    unique, collations = list[Unique](), dict[frozenset[str], dict[str, str]]()
    for index, partial in list(database.execute(_INDEXES, [table])):
        parts = list(database.execute(_INDEX, [index]))
        names = frozenset(name for _, name, _ in parts if name is not None)
        wrong = "it is partial" if partial else ""
        if any(place < 0 for place, _, _ in parts):
            wrong = "it is on an expression"
        unique.append(Unique(index, names, wrong))
        if not wrong:
            of = {name: coll for _, name, coll in parts}
            if all(coll == "BINARY" for coll in of.values()) or names not in collations:
                collations[names] = of
    if len(key) == 1 and columns[key[0]].kind.upper() == "INTEGER":
        columns[key[0]] = columns[key[0]]._replace(required=True)  # it has a number where a row has null
        unique.append(Unique("the primary key", frozenset(key)))
    return _Table(columns, unique, collations, bool(database.execute(_TRIGGERS, [table]).fetchone()[0]))


def _affinity(declared: str) -> str:
    """Section 3.1 of Datatypes In SQLite. A column without a type, or of ANY in a strict table, has none."""
    text = declared.upper()
    if "INT" in text:
        return "INTEGER"
    if any(part in text for part in ("CHAR", "CLOB", "TEXT")):
        return "TEXT"
    if "BLOB" in text or declared == "no type":
        return "NONE"
    return "REAL" if any(part in text for part in ("REAL", "FLOA", "DOUB")) else "NUMERIC"


def _reason(kind: pa.DataType, affinity: str) -> str | None:
    """Why a column of the affinity changes values of the type. A text that is not a number stays text."""
    numeric = affinity in ("INTEGER", "NUMERIC", "REAL")
    if is_text(kind):
        return (
            "strings that look like numbers become numbers there ('007' is 7); declare it text"
            if numeric
            else None
        )
    if kinds.is_decimal(kind):
        return (
            "decimals are written as strings, but become floats there; declare it text" if numeric else None
        )
    if kinds.is_integer(kind):
        exact = affinity != "REAL" or integer_in_float(kind, 64)
        return None if exact else "large integers become floats there; declare it integer"
    if kinds.is_floating(kind):
        return "floats lose digits as text; declare it real" if affinity == "TEXT" else None
    if kinds.is_nested(kind):
        what = no_json(kind)
        return (
            None if what is None else f"JSON cannot represent {what}; convert it to a string before the sink"
        )
    if kinds.is_boolean(kind) or kinds.is_temporal(kind) or is_bytes(kind) or kinds.is_null(kind):
        return None if not pa.types.is_interval(kind) else "cast it to a string before the sink"
    return "SQLite cannot represent it; cast it before the sink"


def _is_stored_as_text(kind: pa.DataType) -> bool:
    return is_text(kind) or kinds.is_decimal(kind) or kinds.is_temporal(kind) or kinds.is_nested(kind)


def _insert(database: sqlite3.Connection, table: str, rows: pa.Table) -> None:
    columns = [_plain(name, rows.column(name)) for name in rows.column_names]
    places = ", ".join("?" * len(columns))
    database.executemany(f"INSERT INTO {table} VALUES ({places})", zip(*columns, strict=True))


def _plain(name: str, column: pa.ChunkedArray) -> list[Any]:
    kind = column.type
    if kinds.is_duration(kind):
        return list(duration_texts(column))
    if kinds.is_nested(kind):
        return list(json_texts(name, column))
    texts = kinds.is_temporal(kind) or kinds.is_decimal(kind)
    values: list[Any] = (plain(column).cast(pa.string()) if texts else column).to_pylist()
    return values
