"""Targets of upserts: what is written, once, whatever happens between writing and committing."""

from __future__ import annotations

import datetime
import itertools
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("pyspark")

from asyncstate.errors import JobError, OperatorError, SchemaError, StoreError
from asyncstate.spark.sinks import Changes, PostgresTarget, SqliteTarget
from asyncstate.spark.sinks.upserts import changes_of
from tests.sinks.postgres import INITDB, MISSING, server

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("total", pa.decimal128(10, 2))])
TABLE = "CREATE TABLE totals (id bigint PRIMARY KEY, name text, total numeric(10, 2))"


class Database:
    """A target and the way to look at its database."""

    def __init__(self, kind: str, place: str) -> None:
        self.kind, self.place = kind, place

    def target(self, table: str = "totals") -> Any:
        return SqliteTarget(self.place, table) if self.kind == "sqlite" else PostgresTarget(self.place, table)

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        if self.kind == "sqlite":
            with sqlite3.connect(self.place) as database:
                return list(database.execute(statement))
        import psycopg

        with psycopg.connect(self.place) as database:
            cursor = database.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def rows(self) -> dict[Any, Any]:
        return {row[0]: row[1] for row in self.run("SELECT id, name FROM totals")}


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    pytest.importorskip("psycopg")
    if INITDB is None:
        pytest.skip(MISSING)
    with server(tmp_path_factory.mktemp("pg")) as place:
        yield place


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    if request.param == "sqlite":
        found = Database("sqlite", str(tmp_path / "shop.db"))
    else:
        found = Database("postgres", request.getfixturevalue("postgres"))
        found.run("DROP TABLE IF EXISTS totals")
        found.run("DROP TABLE IF EXISTS asyncstate_batches")
    found.run(TABLE)
    return found


def changes(upserts: list[tuple[Any, ...]], deletes: list[int] | None = None) -> Changes:
    rows = [dict(zip(SCHEMA.names, row, strict=True)) for row in upserts]
    gone = pa.table({"id": pa.array(deletes or [], pa.int64())})
    return Changes(pa.Table.from_pylist(rows, SCHEMA), gone, ("id",))


def test_rows_come_are_replaced_and_go(database: Database) -> None:
    target = database.target()
    target.check(SCHEMA, ("id",))
    assert target.write("w", 0, changes([(1, 'a, "b"\nc', Decimal("1.50")), (2, "", None), (3, None, None)]))
    assert target.write("w", 1, changes([(2, "two", Decimal("-0.01"))], [1, 9]))
    found = database.run("SELECT id, name, total FROM totals ORDER BY id")
    assert [(row[0], row[1], None if row[2] is None else float(row[2])) for row in found] == [
        (2, "two", -0.01),
        (3, None, None),
    ]


def test_a_repeated_micro_batch_is_written_once(database: Database) -> None:
    target = database.target()
    assert target.write("w", 4, changes([(1, "first", None)]))
    assert not target.write("w", 4, changes([(1, "other", None)]))
    assert target.write("another", 2, changes([(2, "theirs", None)]))
    assert database.rows() == {1: "first", 2: "theirs"}
    with pytest.raises(
        JobError, match="has micro-batch 4 of writer 'w', and now comes 3: the job was rolled back"
    ):
        target.write("w", 3, changes([(1, "old", None)]))
    assert database.rows() == {1: "first", 2: "theirs"}


NUMBERS = itertools.count()
OPERATIONS = st.lists(
    st.dictionaries(st.integers(0, 5), st.none() | st.text("ab,\"'\\\n", max_size=3), max_size=4), max_size=5
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(OPERATIONS)
def test_as_a_dict_would(database: Database, batches: list[dict[int, str | None]]) -> None:
    """A name is an upsert, None takes the row away; each micro-batch comes twice."""
    database.run("DELETE FROM totals")
    writer = f"writer {next(NUMBERS)}"
    model: dict[int, str] = {}
    for number, batch in enumerate(batches):
        given = changes(
            [(key, name, None) for key, name in batch.items() if name is not None],
            [key for key, name in batch.items() if name is None],
        )
        assert [database.target().write(writer, number, given) for _ in range(2)] == [True, False]
        for key, name in batch.items():
            model.pop(key, None) if name is None else model.update({key: name})
    assert database.rows() == model


KILLED = """
import os, signal, sys
from tests.sinks.test_targets import Database, changes
import asyncstate.spark.sinks.{kind} as module
target = Database("{kind}", {place!r}).target()
number = [0]
def killing(*arguments, statements=module.statements):
    made = statements(*arguments)
    return made._replace(**{{{at!r}: Killer(getattr(made, {at!r}))}})
class Killer(str):
    pass
if {kind!r} == "sqlite":
    import sqlite3
    class Connection(sqlite3.Connection):
        def execute(self, sql, *more):
            if isinstance(sql, Killer):
                os.kill(os.getpid(), signal.SIGKILL)
            return super().execute(sql, *more)
    connect = sqlite3.connect
    module.sqlite3.connect = lambda *a, **k: connect(*a, factory=Connection, **k)
else:
    import psycopg
    execute = psycopg.Cursor.execute
    def patched(self, sql, *more, **k):
        if isinstance(sql, Killer):
            os.kill(os.getpid(), signal.SIGKILL)
        return execute(self, sql, *more, **k)
    psycopg.Cursor.execute = patched
module.statements = killing
target.write("w", 1, changes([(2, "two", None), (3, "three", None)], [1]))
"""


@pytest.mark.parametrize("at", ["delete", "upsert"])
def test_killed_between_writing_and_committing(database: Database, at: str) -> None:
    target = database.target()
    target.write("w", 0, changes([(1, "one", None), (2, "old", None)]))
    code = KILLED.format(kind=database.kind, place=database.place, at=at)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert database.rows() == {1: "one", 2: "old"}
    assert target.write("w", 1, changes([(2, "two", None), (3, "three", None)], [1]))
    assert database.rows() == {2: "two", 3: "three"}


def test_what_does_not_fit_is_refused_before_anything_is_written(database: Database) -> None:
    target = database.target()
    cases: list[tuple[pa.Schema, tuple[str, ...], str]] = [
        (SCHEMA, ("nope",), "key column 'nope' is none of the rows' columns"),
        (SCHEMA, (), "key column '' is none"),
        (SCHEMA, ("name",), r"no primary key or unique index over \(name\)"),
        (
            SCHEMA.append(pa.field("more", pa.int64())),
            ("id",),
            "no column 'more'; its columns are id, name, total",
        ),
        (
            pa.schema([("id", pa.int64()), ("name", pa.list_(pa.string()))]),
            ("id",),
            "type list<item: string>",
        ),
    ]
    for schema, keys, message in cases:
        with pytest.raises(SchemaError, match=message):
            target.check(schema, keys)
    with pytest.raises(SchemaError, match="does not exist; create it with a primary key"):
        database.target("missing").check(SCHEMA, ("id",))
    database.run("CREATE UNIQUE INDEX both_of ON totals (name, total)")
    target.check(SCHEMA, ("total", "name"))
    last = pa.table({"id": pa.array([1, None], pa.int64()), "row_kind": ["+U", "-D"]})
    with pytest.raises(OperatorError, match="key column 'id' is null in 1 rows"):
        changes_of(last, ("id",))


def test_errors_of_the_database_name_the_table(database: Database) -> None:
    database.run("INSERT INTO totals VALUES (7, 'there', NULL)")
    database.run("CREATE UNIQUE INDEX names ON totals (name)")
    with pytest.raises(StoreError, match=r"totals.*(UNIQUE|duplicate)[\s\S]*nothing was written"):
        database.target().write("w", 0, changes([(1, "first", None), (2, "there", None)]))
    assert database.rows() == {7: "there"}
    database.run("DROP INDEX names")
    assert database.target().write("w", 0, changes([(2, "there", None)]))


VALUES: list[tuple[str, pa.DataType, Any, Callable[[Any], Any]]] = [
    ("boolean", pa.bool_(), True, bool),
    ("double precision", pa.float64(), 1.5e300, float),
    ("date", pa.date32(), datetime.date(2026, 2, 28), str),
    ("bytea", pa.binary(), b'\x00\\,"x', bytes),
    ("smallint", pa.int16(), -3, int),
]


@pytest.mark.parametrize(("declared", "kind", "value", "read"), VALUES)
def test_values_of_all_types_come_back(
    database: Database, declared: str, kind: Any, value: Any, read: Any
) -> None:
    database.run(f"ALTER TABLE totals ADD COLUMN extra {declared}")
    rows = pa.table({"id": pa.array([1, 2]), "extra": pa.array([value, None], kind)})
    database.target().write("w", 0, Changes(rows, rows.select(["id"]).slice(0, 0), ("id",)))
    found = dict(database.run("SELECT id, extra FROM totals"))
    assert found[2] is None
    assert read(found[1]) == read(value)
