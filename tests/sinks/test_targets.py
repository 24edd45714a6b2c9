"""Targets of upserts: what is written, once, whatever happens between writing and committing."""

from __future__ import annotations

import datetime
import json
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("pyspark")

from asyncstate.errors import JobError, OperatorError, SchemaError, StoreError
from asyncstate.spark.sinks import MySqlTarget, PostgresTarget, TargetChanges
from asyncstate.spark.sinks.upserts import changes_of, write_upserts
from tests.sinks.conftest import NUMBERS, made
from tests.sinks.killed import WRITTEN
from tests.sinks.places import KINDS, SCHEMA, SQL, Place, changes, rows


def test_rows_come_are_replaced_and_go(place: Place) -> None:
    target = place.target()
    target.check(SCHEMA, ("id",))
    assert target.write("w", 0, changes([(1, 'a, "b"\nc', Decimal("1.50")), (2, "", None), (3, None, None)]))
    assert target.write("w", 1, changes([(2, "two", Decimal("-0.01"))], [1, 9]))
    assert place.table() == {2: ("two", -0.01), 3: (None, None)}


def test_a_repeated_micro_batch_is_written_once(place: Place) -> None:
    target = place.target()
    assert target.write("w", 4, changes([(1, "first", None)]))
    assert not target.write("w", 4, changes([(1, "other", None)]))
    assert target.write("another", 2, changes([(2, "theirs", None)]))
    assert place.rows() == {1: "first", 2: "theirs"}
    with pytest.raises(
        JobError, match="has micro-batch 4 of writer 'w', and the next is 3: the job was rolled back"
    ):
        target.write("w", 3, changes([(1, "old", None)]))
    assert place.rows() == {1: "first", 2: "theirs"}


def test_text_arrives_unchanged_whatever_the_encoding_of_the_session(
    postgres_place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """libpq takes it from the connection, from the environment, or from the database."""
    import psycopg

    with psycopg.connect(postgres_place.place, autocommit=True) as server:
        server.execute("CREATE DATABASE texts ENCODING 'UTF8' TEMPLATE template0")
    place = Place("postgres", postgres_place.place.replace("dbname=postgres", "dbname=texts"))
    place.create()
    target = PostgresTarget(f"{place.place} client_encoding=LATIN1", "totals")
    assert target.write("w", 0, changes([(1, "Zoë", None)]))
    with monkeypatch.context() as patch:
        patch.setenv("PGCLIENTENCODING", "LATIN1")
        assert place.target().append("a", 0, rows((2, "Zoë €", None)))
    assert place.rows() == {1: "Zoë", 2: "Zoë €"}
    place.run("CREATE TABLE lists (names text[])")
    given = pa.table({"names": [["a", None, "NULL"]]})
    assert PostgresTarget(f"{place.place} options='-c array_nulls=off'", "lists").append("l", 0, given)
    assert place.run("SELECT names FROM lists") == [(["a", None, "NULL"],)]


@pytest.mark.parametrize("autocommit", [True, None], ids=["on", "as the server has it"])
def test_a_connection_that_commits_each_statement_is_one_transaction_here(
    mysql_place: Place, monkeypatch: pytest.MonkeyPatch, autocommit: bool | None
) -> None:
    target = MySqlTarget({**mysql_place.place, "autocommit": autocommit}, "totals")
    with monkeypatch.context() as patch:
        patch.setattr("asyncstate.spark.sinks.mysql.row_of_mark", _killed)
        with pytest.raises(KeyboardInterrupt):
            target.append("w", 0, rows((1, "one", None)))
    assert mysql_place.rows() == {}
    assert target.append("w", 0, rows((1, "one", None)))
    assert mysql_place.rows() == {1: "one"}


def _killed(*_: object) -> NoReturn:
    """After the rows were written, and before their mark was."""
    raise KeyboardInterrupt


def test_a_zero_does_not_ask_for_the_next_number(mysql_place: Place) -> None:
    """As MySQL takes it in a column with AUTO_INCREMENT: each update would be a row of its own."""
    mysql_place.run("DROP TABLE IF EXISTS numbered")
    mysql_place.run(
        "CREATE TABLE numbered (id bigint PRIMARY KEY AUTO_INCREMENT, name varchar(40), total numeric(10, 2))"
    )
    target = mysql_place.target("numbered")
    for number in range(2):
        assert target.write("w", number, changes([(0, f"round {number}", None)]))
    assert mysql_place.run("SELECT id, name FROM numbered") == [(0, "round 1")]


def test_a_null_does_not_ask_for_the_next_number(sqlite_place: Place) -> None:
    """As SQLite takes it in INTEGER PRIMARY KEY, which it describes as a column that may be null."""
    sqlite_place.run("CREATE TABLE numbered (id INTEGER PRIMARY KEY, name text, total text)")
    target = sqlite_place.target("numbered")
    with pytest.raises(OperatorError, match="column 'id' is NOT NULL, but null in 1 rows"):
        target.append("w", 0, rows((None, "one", None)))
    assert target.append("w", 0, rows((1, "one", None)).drop(["id"]))  # where it is left out, it is wanted
    assert sqlite_place.run("SELECT id, name FROM numbered") == [(1, "one")]


OPERATIONS = st.lists(
    st.dictionaries(st.integers(0, 5), st.none() | st.text("ab,\"'\\\n", max_size=3), max_size=4), max_size=5
)


OTHERS = [kind for kind in KINDS if kind != "kafka"]
FEW = [HealthCheck.function_scoped_fixture]


@pytest.mark.parametrize("place", OTHERS, indirect=True)
@settings(max_examples=10, suppress_health_check=FEW)
@given(OPERATIONS)
def test_as_a_dict_would(place: Place, batches: list[dict[int, str | None]]) -> None:
    as_a_dict_would(place, batches)


@pytest.mark.parametrize("place", ["kafka"], indirect=True)
@settings(max_examples=3, suppress_health_check=FEW)  # a write finds its coordinators anew, in 0.3 s
@given(OPERATIONS)
def test_as_a_dict_would_in_kafka(place: Place, batches: list[dict[int, str | None]]) -> None:
    as_a_dict_would(place, batches)


def as_a_dict_would(place: Place, batches: list[dict[int, str | None]]) -> None:
    """A name is an upsert, None takes the row away; each micro-batch comes twice. Then all goes."""
    writer = f"writer {next(NUMBERS)}"
    model: dict[int, str] = {}
    for number, batch in enumerate([*batches, dict.fromkeys(range(6))]):
        given = changes(
            [(key, name, None) for key, name in batch.items() if name is not None],
            [key for key, name in batch.items() if name is None],
        )
        assert place.target().write(writer, number, given)
        if given.upserts.num_rows or place.kind != "delta":  # where nothing changes, Delta has no commit
            assert not place.target().write(writer, number, given)
        for key, name in batch.items():
            model.pop(key, None) if name is None else model.update({key: name})
        if number == len(batches) - 1:
            assert place.rows() == model
    assert place.rows() == {}


def test_killed_between_writing_and_committing(place: Place) -> None:
    target = place.target()
    target.write("w", 0, changes([(1, "one", None), (2, "old", None)]))
    command = [sys.executable, "-m", "tests.sinks.killed", place.kind, json.dumps(place.place)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    committed = place.rows() == {2: "two", 3: "three"}
    assert place.kind == "delta" if committed else place.rows() == {1: "one", 2: "old"}
    assert target.write("w", 1, changes(*WRITTEN)) is not committed
    assert place.rows() == {2: "two", 3: "three"}


def test_what_does_not_fit_is_refused_before_anything_is_written(database: Place) -> None:
    target = database.target()
    cases: list[tuple[pa.Schema, tuple[str, ...], str]] = [
        (SCHEMA, ("nope",), "key column 'nope' is not one of the rows' columns"),
        (SCHEMA, (), "key column '' is not one"),
        (SCHEMA, ("name",), r"no primary key or unique index over \(name\)"),
        (
            SCHEMA.append(pa.field("more", pa.int64())),
            ("id",),
            "no column 'more'; its columns are id, name, total",
        ),
        (
            pa.schema([("id", pa.int64()), ("name", pa.list_(pa.binary()))]),
            ("id",),
            "column 'name' of type list<item: binary> does not fit",
        ),
    ]
    for schema, keys, message in cases:
        with pytest.raises(SchemaError, match=message):
            target.check(schema, keys)
    with pytest.raises(SchemaError, match="does not exist; create it with a primary key"):
        database.target("missing").check(SCHEMA, ("id",))
    database.run("CREATE UNIQUE INDEX other ON totals (total)")
    if database.kind == "mysql":
        with pytest.raises(
            SchemaError, match=r"has a second unique key \(PRIMARY\), by which MySQL's upserts"
        ):
            target.check(SCHEMA, ("total",))
        database.run("DROP INDEX other ON totals")
        database.run("ALTER TABLE totals ENGINE = MyISAM")
        with pytest.raises(SchemaError, match="uses the engine MyISAM, which has no transactions"):
            target.check(SCHEMA, ("id",))
    else:
        target.check(SCHEMA, ("total",))


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_zero_is_one_key(kind: pa.DataType) -> None:
    """As text -0.0 would be another one, and in Delta it is."""
    zeros = pa.array([-0.0, -0.0], kind)
    last = pa.table({"k": zeros, "v": zeros, "row_kind": ["+U", "-D"]})
    found = changes_of(last, ("k",))
    assert str(found.upserts.to_pylist()) == "[{'k': 0.0, 'v': -0.0}]"
    assert str(found.deletes.to_pylist()) == "[{'k': 0.0}]"
    assert found.upserts.schema == pa.schema([("k", kind), ("v", kind)])


def test_a_changed_row_of_zero_is_one_change() -> None:
    """Arrow compares the bits of floats, Spark their values."""

    class Kept:
        def check(self, schema: pa.Schema, keys: tuple[str, ...]) -> None:
            pass

        def write(self, writer: str, batch_id: int, changes: TargetChanges, origin: Any = None) -> bool:
            written.append(changes)
            return True

    written: list[TargetChanges] = []
    table = pa.table({"k": [0.0, -0.0], "v": [1, 2], "row_kind": ["-U", "+U"]})
    assert write_upserts(0, table, "k", Kept())
    (found,) = written
    assert found.upserts.to_pylist() == [{"k": 0.0, "v": 2}]
    assert found.deletes.num_rows == 0


def test_null_keys_are_refused() -> None:
    last = pa.table({"id": pa.array([1, None], pa.int64()), "row_kind": ["+U", "-D"]})
    with pytest.raises(OperatorError, match="key column 'id' is null in 1 rows"):
        changes_of(last, ("id",))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in SQL])
def test_what_does_not_fit_elsewhere(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    place = made(kind, request, tmp_path)
    target = place.target()
    target.check(SCHEMA, ("id",))
    with pytest.raises(SchemaError, match="key column 'nope' is not one of the rows' columns"):
        target.check(SCHEMA, ("nope",))
    if kind == "parquet":
        assert target.write("w", 0, changes([(1, "one", None)]))
        rows = pa.table({"id": ["a"]})
        with pytest.raises(SchemaError, match="column 'id' is of type string, but was int64"):
            target.write("w", 1, TargetChanges(rows, rows.slice(1), ("id",)))
        assert place.rows() == {1: "one"}
        return
    with pytest.raises(SchemaError, match="does not exist; create it"):
        place.target("missing").check(SCHEMA, ("id",))
    if kind == "kafka":
        return
    with pytest.raises(SchemaError, match="no column 'more'; its columns are id, name, total"):
        target.check(SCHEMA.append(pa.field("more", pa.int64())), ("id",))
    with pytest.raises(SchemaError, match="column 'name' of type list<item: string> does not fit"):
        target.check(SCHEMA.set(1, pa.field("name", pa.list_(pa.string()))), ("id",))
    if kind == "iceberg":
        with pytest.raises(SchemaError, match=r"columns that the rows lack \(total\)"):
            target.check(SCHEMA.remove(2), ("id",))


def test_errors_of_the_database_name_the_table(database: Place) -> None:
    database.run("INSERT INTO totals VALUES (7, 'there', NULL)")
    # MySQL's upserts know no conflict but the target's own, so that there a check fails.
    rule, undo = "CREATE UNIQUE INDEX names ON totals (name)", "DROP INDEX names"
    if database.kind == "mysql":
        rule = "ALTER TABLE totals ADD CONSTRAINT names CHECK (name <> 'there' OR id = 7)"
        undo = "ALTER TABLE totals DROP CONSTRAINT names"
    database.run(rule)
    with pytest.raises(StoreError, match=r"totals.*(UNIQUE|duplicate|CONSTRAINT)[\s\S]*nothing was written"):
        database.target().write("w", 0, changes([(1, "first", None), (2, "there", None)]))
    assert database.rows() == {7: "there"}
    database.run(undo)
    assert database.target().write("w", 0, changes([(2, "there", None)]))


def test_a_full_disk_names_the_iceberg_table(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    place = made("iceberg", request, tmp_path)
    target = place.target()
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
    try:
        with pytest.raises(StoreError, match=r"Iceberg table .*totals: .*large.*repeats the micro-batch"):
            target.write("w", 0, changes([(1, "one", None)]))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert target.write("w", 0, changes([(1, "one", None)]))
    assert place.rows() == {1: "one"}


VALUES: list[tuple[str, pa.DataType, Any, Callable[[Any], Any]]] = [
    ("boolean", pa.bool_(), True, bool),
    ("double precision", pa.float64(), 1.5e300, float),
    ("date", pa.date32(), datetime.date(2026, 2, 28), str),
    ("bytea", pa.binary(), b'\x00\\,"x', bytes),
    ("smallint", pa.int16(), -3, int),
]


@pytest.mark.parametrize(("declared", "kind", "value", "read"), VALUES)
def test_values_of_all_types_come_back(
    database: Place, declared: str, kind: Any, value: Any, read: Any
) -> None:
    declared = "blob" if declared == "bytea" and database.kind == "mysql" else declared
    database.run(f"ALTER TABLE totals ADD COLUMN extra {declared}")
    rows = pa.table({"id": pa.array([1, 2]), "extra": pa.array([value, None], kind)})
    database.target().write("w", 0, TargetChanges(rows, rows.select(["id"]).slice(0, 0), ("id",)))
    found = dict(database.run("SELECT id, extra FROM totals"))
    assert found[2] is None
    assert read(found[1]) == read(value)
