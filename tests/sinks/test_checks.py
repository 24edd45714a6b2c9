"""What a table would change is refused by ``check``, with the column and what to do; what it keeps comes back."""

from __future__ import annotations

import datetime as dt
import re
import sqlite3
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark")

from asyncstate.errors import AsyncStateError, ConfigurationError, OperatorError, SchemaError, StoreError
from asyncstate.spark.sinks import (
    DeltaTarget,
    IcebergTarget,
    KafkaTarget,
    MySqlTarget,
    ParquetTarget,
    PostgresTarget,
    SqliteTarget,
    TargetChanges,
)
from asyncstate.spark.sinks.column_checks import duration_text, json_texts, keeps, plain
from asyncstate.spark.sinks.mysql_types import sent
from tests.sinks.conftest import made
from tests.sinks.places import SCHEMA, Place, changes

S, INT, F, D = pa.string(), pa.int64(), pa.float64(), pa.decimal128(10, 3)
T, N, L = pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.duration("us")
UTC = dt.UTC
MOMENT = dt.datetime(2024, 1, 1, 0, 0, 0, 100, tzinfo=UTC)
LIST, STRUCT, MAP = pa.list_(INT), pa.struct([("a", INT)]), pa.map_(S, F)
UUID = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"


def table_of(place: Place, key: str, value: str, more: str = "") -> Any:
    """The target of a table t with a key k, a value v and what else there is."""
    place.run("DROP TABLE IF EXISTS t")
    place.run("DROP TABLE IF EXISTS asyncstate_batches")
    place.run(f"CREATE TABLE t (k {key}, v {value}{more})")
    return place.target("t")


def rows_of(k: pa.DataType, v: pa.DataType, *rows: tuple[Any, Any]) -> TargetChanges:
    schema = pa.schema([("k", k), ("v", v)])
    table = pa.Table.from_pylist([dict(zip("kv", row, strict=True)) for row in rows], schema)
    return TargetChanges(table, table.slice(0, 0).select(["k"]), ("k",))


REFUSED = {
    "sqlite": [
        ("text COLLATE NOCASE PRIMARY KEY", "text", S, S, "key column 'k' of type string.*COLLATE NOCASE"),
        ("text COLLATE RTRIM PRIMARY KEY", "text", S, S, "COLLATE RTRIM"),
        ("bigint PRIMARY KEY", "text", S, S, "key column 'k'.*become numbers"),
        ("text PRIMARY KEY", "numeric(10, 2)", S, D, "column 'v'.*become floats there; declare it text"),
        ("text PRIMARY KEY", "string", S, S, "'007' is 7"),
        ("text PRIMARY KEY", "double", S, INT, "large integers become floats"),
        ("text PRIMARY KEY", "text", S, F, "floats lose digits as text"),
        ("text PRIMARY KEY", "text", S, pa.map_(INT, INT), "JSON cannot represent keys of type int64"),
        ("text", "text", S, S, r"no primary key or unique index over \(k\)"),
    ],
    "postgres": [
        ("numeric(10, 2) PRIMARY KEY", "text", D, S, "key column 'k'.*it rounds"),
        ("timestamptz(0) PRIMARY KEY", "text", T, S, "keeps 0 digits of a second"),
        ("date PRIMARY KEY", "text", T, S, "make it timestamp"),
        ("char(3) PRIMARY KEY", "text", S, S, "two keys may become one; make it text"),
        ("varchar(3) PRIMARY KEY", "text", S, S, "two keys may become one; make it text"),
        ("jsonb PRIMARY KEY", "text", S, S, "may treat different strings as one key"),
        ("text PRIMARY KEY", "int", S, F, "column 'v'.*digits would be lost"),
        ("text PRIMARY KEY", "real", S, F, "digits would be lost"),
        ("text PRIMARY KEY", "double precision", S, INT, "digits would be lost"),
        ("text PRIMARY KEY", "bigint", S, S, "a string may become another value"),
        ("text PRIMARY KEY", "bytea", S, S, "a string may become another value"),
        ("text PRIMARY KEY", "interval(0)", S, L, "parts of it would be lost"),
        ("text PRIMARY KEY", "bigint", S, L, "make it interval"),
        ("text PRIMARY KEY", "text", S, LIST, "make it jsonb"),
        ("text PRIMARY KEY", "text[]", S, LIST, None),
        ("text PRIMARY KEY", "int[]", S, pa.list_(F), "digits would be lost"),
        ("text PRIMARY KEY", "int[]", S, pa.list_(LIST), "make it jsonb"),
        ("text PRIMARY KEY", "jsonb", S, pa.list_(pa.binary()), "JSON cannot represent bytes"),
        ("bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY", "text", INT, S, "computed by the database"),
    ],
    "mysql": [
        ("varchar(20) PRIMARY KEY", "text", S, S, "key column 'k'.*treats different strings as one key"),
        ("varchar(20) COLLATE utf8mb4_bin PRIMARY KEY", "text", S, S, "utf8mb4_nopad_bin"),
        ("char(20) COLLATE utf8mb4_nopad_bin PRIMARY KEY", "text", S, S, "make it varchar"),
        ("decimal(10, 2) PRIMARY KEY", "text", D, S, "digits would be lost"),
        ("datetime PRIMARY KEY", "text", T, S, "keeps 0 digits of a second"),
        ("bigint PRIMARY KEY", "text", S, S, "make it varchar"),
        ("bigint PRIMARY KEY", "float", INT, F, "digits would be lost"),
        ("bigint PRIMARY KEY", "double(10, 2)", INT, F, "change the column"),
        ("bigint PRIMARY KEY", "int", INT, F, "digits would be lost"),
        ("bigint PRIMARY KEY", "time", INT, L, r"make it time\(6\)"),
        ("bigint PRIMARY KEY", "enum('a', 'b')", INT, S, "a string may become another value"),
        ("bigint PRIMARY KEY", "varchar(20)", INT, LIST, "make it json"),
    ],
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_a_column_would_change_is_refused_by_name(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    place = made(kind, request, tmp_path)
    for key, value, k, v, message in REFUSED[kind]:
        target = table_of(place, key, value)
        schema = pa.schema([("k", k), ("v", v)])
        if message is None:
            target.check(schema, ("k",))
            continue
        with pytest.raises(SchemaError, match=message):
            target.check(schema, ("k",))


KEPT: dict[str, list[tuple[str, pa.DataType, Any, Any]]] = {
    "sqlite": [
        ("text", D, Decimal("1.005"), "1.005"),
        ("interval", L, dt.timedelta(hours=-26, microseconds=-1), "-26:00:00.000001"),
        ("timestamp", T, MOMENT, "2024-01-01 00:00:00.000100Z"),
        ("text", LIST, [1, None], "[1,null]"),
        ("text", STRUCT, {"a": 1}, '{"a":1}'),
        ("text", MAP, [("x", 1.5)], '{"x":1.5}'),
        ("", S, "007", "007"),
    ],
    "postgres": [
        ("numeric", D, Decimal("1.005"), Decimal("1.005")),
        ("interval", L, dt.timedelta(hours=26, microseconds=1), dt.timedelta(hours=26, microseconds=1)),
        ("interval", L, -dt.timedelta(hours=1), -dt.timedelta(hours=1)),
        ("timestamptz", T, MOMENT, MOMENT),
        ("timestamp", T, MOMENT, MOMENT.replace(tzinfo=None)),
        ("int[]", LIST, [1, None, 3], [1, None, 3]),
        ("int[]", LIST, [], []),
        (
            "text[]",
            pa.list_(S),
            ["", 'a"b\\c', "NULL", None, "{,}", "\n"],
            ["", 'a"b\\c', "NULL", None, "{,}", "\n"],
        ),
        ("numeric[]", pa.list_(D), [Decimal("1.005")], [Decimal("1.005")]),
        ("timestamptz[]", pa.list_(T), [MOMENT, None], [MOMENT, None]),
        ("jsonb", STRUCT, {"a": 1}, {"a": 1}),
        ("json", pa.list_(STRUCT), [{"a": None}], [{"a": None}]),
        ("jsonb", MAP, [("x", 1.5)], {"x": 1.5}),
        ("uuid", S, UUID, UUID),
        ("char(3)", S, "EUR", "EUR"),
    ],
    "mysql": [
        ("decimal(10, 3)", D, Decimal("1.005"), Decimal("1.005")),
        ("time(6)", L, dt.timedelta(hours=26, microseconds=1), dt.timedelta(hours=26, microseconds=1)),
        ("time(6)", L, -dt.timedelta(hours=26, microseconds=1), -dt.timedelta(hours=26, microseconds=1)),
        ("datetime(6)", T, MOMENT, MOMENT.replace(tzinfo=None)),
        ("json", LIST, [1, None], "[1,null]"),
        ("longtext", STRUCT, {"a": 1}, '{"a":1}'),
        ("char(3)", S, "EUR", "EUR"),
    ],
}


@pytest.mark.parametrize("kind", KEPT)
def test_what_a_column_keeps_comes_back(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    place = made(kind, request, tmp_path)
    for declared, v, value, expected in KEPT[kind]:
        target = table_of(place, "bigint PRIMARY KEY", declared)
        written = rows_of(INT, v, (1, value), (2, None))
        target.check(written.upserts.schema, ("k",))
        assert target.write("w", 0, written)
        found = dict(place.run("SELECT k, v FROM t"))
        shown = str(found[1]) if declared == "uuid" else found[1]
        assert (declared, shown, found[2]) == (declared, expected, None)


EXACT = {
    "sqlite": "text PRIMARY KEY",
    "postgres": "text PRIMARY KEY",
    "mysql": "varchar(20) COLLATE utf8mb4_nopad_bin PRIMARY KEY",
}
KEYS = ["Anna", "anna", "Ánna", "bob", "bob ", " bob", "\U0001f600", "\U0001f601", "007", "7", "ß", "ss"]


def test_keys_that_differ_stay_apart(database: Place) -> None:
    target = table_of(database, EXACT[database.kind], "bigint")
    written = rows_of(S, INT, *((key, number) for number, key in enumerate(KEYS)))
    target.check(written.upserts.schema, ("k",))
    assert target.write("w", 0, written)
    gone = written.upserts.select(["k"]).filter(pa.array([key == "bob " for key in KEYS]))
    assert target.write("w", 1, TargetChanges(written.upserts.slice(0, 0), gone, ("k",)))
    assert set(database.run("SELECT k FROM t")) == {(key,) for key in KEYS if key != "bob "}


def test_an_index_that_is_exact_serves_over_a_column_that_is_not(sqlite_place: Place) -> None:
    target = table_of(sqlite_place, "text COLLATE NOCASE", "bigint")
    sqlite_place.run("CREATE UNIQUE INDEX exact ON t (k COLLATE BINARY)")
    written = rows_of(S, INT, ("a", 1), ("A", 2))
    target.check(written.upserts.schema, ("k",))
    assert target.write("w", 0, written)
    assert target.write(
        "w", 1, TargetChanges(written.upserts.slice(1), written.upserts.slice(0, 1).select(["k"]), ("k",))
    )
    assert sqlite_place.run("SELECT k, v FROM t") == [("A", 2)]


INDEXES = [
    ("UNIQUE (k) INCLUDE (v)", None),
    ("UNIQUE (k) WHERE v > 0", "it is partial"),
    ("UNIQUE (k, lower(v::text))", "it is on an expression"),
]


@pytest.mark.parametrize(("index", "wrong"), INDEXES)
def test_which_indexes_of_postgres_serve(postgres_place: Place, index: str, wrong: str | None) -> None:
    target = table_of(postgres_place, "text", "bigint")
    postgres_place.run("CREATE UNIQUE INDEX one ON t " + index.removeprefix("UNIQUE "))
    written = rows_of(S, INT, ("a", 1))
    if wrong is None:
        target.check(written.upserts.schema, ("k",))
        assert target.write("w", 0, written)
        return
    with pytest.raises(SchemaError, match=rf"over \(k\).*one is none, since {wrong}"):
        target.check(written.upserts.schema, ("k",))


def test_deferrable_keys_and_loose_collations_of_postgres_do_not_serve(postgres_place: Place) -> None:
    schema = rows_of(S, INT).upserts.schema
    with pytest.raises(SchemaError, match="it is deferrable"):
        table_of(postgres_place, "text PRIMARY KEY DEFERRABLE", "bigint").check(schema, ("k",))
    postgres_place.run(
        "CREATE COLLATION IF NOT EXISTS ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
    )
    with pytest.raises(SchemaError, match="its collation treats different strings as one key"):
        table_of(postgres_place, "text COLLATE ci PRIMARY KEY", "bigint").check(schema, ("k",))


def test_prefix_keys_of_mysql_do_not_serve(mysql_place: Place) -> None:
    exact = "varchar(40) COLLATE utf8mb4_nopad_bin"
    target = table_of(mysql_place, exact, "bigint", ", PRIMARY KEY (k(3))")
    with pytest.raises(SchemaError, match=r"covers only a prefix \(k\(3\)\)"):
        target.check(rows_of(S, INT).upserts.schema, ("k",))


def test_columns_that_have_to_be_there(database: Place) -> None:
    target = table_of(database, "bigint PRIMARY KEY", "bigint", ", n bigint NOT NULL")
    with pytest.raises(SchemaError, match="column 'n' is NOT NULL without a default"):
        target.check(rows_of(INT, INT).upserts.schema, ("k",))
    target = table_of(database, "bigint PRIMARY KEY", "bigint NOT NULL", ", n bigint NOT NULL DEFAULT 3")
    with pytest.raises(OperatorError, match="column 'v' is NOT NULL, but null in 1 rows"):
        target.write("w", 0, rows_of(INT, INT, (1, None)))
    assert database.run("SELECT * FROM t") == []
    assert target.write("w", 0, rows_of(INT, INT, (1, 2)))


def test_texts_that_would_be_cut_are_named(postgres_place: Place, mysql_place: Place) -> None:
    for place in (postgres_place, mysql_place):
        for declared, value, message in (
            ("varchar(3)", "abc ", "'abc ' is too long for it"),
            ("char(3)", "a ", "'a ' ends with a blank"),
        ):
            target = table_of(place, "bigint PRIMARY KEY", declared)
            with pytest.raises(OperatorError, match=f"column 'v' is .*{message}"):
                target.write("w", 0, rows_of(INT, S, (1, "ab"), (2, value)))
            assert place.run("SELECT * FROM t") == []
    target = table_of(postgres_place, "bigint PRIMARY KEY", "uuid")
    with pytest.raises(OperatorError, match="is not a UUID in lower case"):
        target.write("w", 0, rows_of(INT, S, (1, UUID.upper())))


def test_mysql_is_strict_whatever_the_session_says(mysql_place: Place) -> None:
    table_of(mysql_place, "bigint PRIMARY KEY", "tinyint")
    target = MySqlTarget({**mysql_place.place, "sql_mode": ""}, "t")
    with pytest.raises(StoreError, match="Out of range value"):
        target.write("w", 0, rows_of(INT, INT, (1, 1000)))
    assert mysql_place.run("SELECT * FROM t") == []


def test_rows_that_the_database_drops_are_noticed(sqlite_place: Place, postgres_place: Place) -> None:
    table_of(sqlite_place, "bigint PRIMARY KEY", "bigint")
    table_of(postgres_place, "bigint PRIMARY KEY", "bigint")
    sqlite_place.run("CREATE TRIGGER drops BEFORE INSERT ON t WHEN new.v = 0 BEGIN SELECT RAISE(IGNORE); END")
    sqlite_place.run("CREATE TRIGGER keeps BEFORE DELETE ON t BEGIN SELECT RAISE(IGNORE); END")
    for name, event, body in (
        ("drops", "INSERT", "IF new.v = 0 THEN RETURN NULL; END IF; RETURN new;"),
        ("keeps", "DELETE", "RETURN NULL;"),
    ):
        postgres_place.run(f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN {body} END'")
        postgres_place.run(
            f"CREATE TRIGGER {name} BEFORE {event} ON t FOR EACH ROW EXECUTE FUNCTION {name}()"
        )
    for place in (sqlite_place, postgres_place):
        target = place.target("t")
        with pytest.raises(StoreError, match="wrote 1 of 2 rows: a trigger, a rule or a conflict clause"):
            target.write("w", 0, rows_of(INT, INT, (1, 0), (2, 1)))
        assert place.run("SELECT * FROM t") == []
        good = rows_of(INT, INT, (2, 1))
        assert target.write("w", 0, good)
        with pytest.raises(StoreError, match="1 rows still exist after they were deleted"):
            target.write("w", 1, TargetChanges(good.upserts.slice(0, 0), good.upserts.select(["k"]), ("k",)))
        assert place.run("SELECT * FROM t") == [(2, 1)]


def test_deleted_rows_that_a_policy_or_a_partition_keeps_are_noticed(postgres_place: Place) -> None:
    postgres_place.run("DROP ROLE IF EXISTS tenant")
    postgres_place.run("CREATE ROLE tenant LOGIN")
    postgres_place.run("GRANT CREATE ON SCHEMA public TO tenant")
    table_of(postgres_place, "bigint PRIMARY KEY", "bigint")
    postgres_place.run("GRANT SELECT, INSERT, UPDATE, DELETE ON t TO tenant")
    postgres_place.run("ALTER TABLE t ENABLE ROW LEVEL SECURITY")
    for name, rule in (
        ("sees", "SELECT USING (true)"),
        ("adds", "INSERT WITH CHECK (true)"),
        ("changes", "UPDATE USING (true)"),
        ("deletes", "DELETE USING (v > 1)"),
    ):
        postgres_place.run(f"CREATE POLICY {name} ON t FOR {rule}")
    target = PostgresTarget(postgres_place.place.replace("user=tests", "user=tenant"), "t")
    check_kept(postgres_place, target)
    postgres_place.run("DROP OWNED BY tenant")
    postgres_place.run("DROP ROLE tenant")

    postgres_place.run("DROP TABLE t")
    postgres_place.run("CREATE TABLE t (k bigint PRIMARY KEY, v bigint) PARTITION BY RANGE (k)")
    postgres_place.run("CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM (0) TO (9)")
    body = "BEGIN IF old.v > 1 THEN RETURN old; END IF; RETURN NULL; END"
    postgres_place.run(f"CREATE FUNCTION keeps_one() RETURNS trigger LANGUAGE plpgsql AS '{body}'")
    postgres_place.run("CREATE TRIGGER keeps BEFORE DELETE ON t_1 FOR EACH ROW EXECUTE FUNCTION keeps_one()")
    check_kept(postgres_place, postgres_place.target("t"))


def check_kept(place: Place, target: Any) -> None:
    """Of rows that are deleted, one with v = 1 stays and nobody else says so."""
    good = rows_of(INT, INT, (1, 1), (2, 2))
    target.check(good.upserts.schema, ("k",))
    assert target.write("w", 0, good)
    keys = good.upserts.select(["k"])
    with pytest.raises(
        StoreError, match="1 rows still exist after they were deleted: .* row security policy"
    ):
        target.write("w", 1, TargetChanges(good.upserts.slice(0, 0), keys, ("k",)))
    assert place.run("SELECT * FROM t ORDER BY k") == [(1, 1), (2, 2)]
    assert target.write("w", 1, TargetChanges(good.upserts.slice(0, 0), keys.slice(1), ("k",)))
    assert place.run("SELECT * FROM t") == [(1, 1)]


def test_conflict_clauses_of_sqlite_drop_nothing(sqlite_place: Place) -> None:
    target = table_of(sqlite_place, "bigint PRIMARY KEY", "bigint UNIQUE ON CONFLICT REPLACE")
    assert target.write("w", 0, rows_of(INT, INT, (1, 5)))
    with pytest.raises(StoreError, match="UNIQUE constraint failed: t.v; nothing was written"):
        target.write("w", 1, rows_of(INT, INT, (2, 5)))
    assert sqlite_place.run("SELECT * FROM t") == [(1, 5)]


def test_what_is_no_table_is_refused(database: Place) -> None:
    database.run("DROP VIEW IF EXISTS seen")
    database.run("CREATE VIEW seen AS SELECT id, name, total FROM totals")
    with pytest.raises(SchemaError, match="name a table"):
        database.target("seen").check(SCHEMA, ("id",))
    database.run("DROP VIEW seen")


def test_a_user_without_rights_is_told_so_by_the_check(postgres_place: Place) -> None:
    postgres_place.run("DROP ROLE IF EXISTS reader")
    postgres_place.run("CREATE ROLE reader LOGIN")
    postgres_place.run("GRANT SELECT, INSERT ON totals TO reader")
    target = PostgresTarget(postgres_place.place.replace("user=tests", "user=reader"), "totals")
    with pytest.raises(StoreError, match="the user lacks the privilege to UPDATE, DELETE; grant it"):
        target.check(SCHEMA, ("id",))
    postgres_place.run("GRANT UPDATE, DELETE ON totals TO reader")
    with pytest.raises(StoreError, match="cannot create the table asyncstate_batches"):
        target.check(SCHEMA, ("id",))
    postgres_place.run("DROP OWNED BY reader")
    postgres_place.run("DROP ROLE reader")


PASSWORDS = [
    "host=127.0.0.1 port=1 user=u password=left secret right",
    "postgresql://u:p@secret@127.0.0.1:1/db",
    "postgresql://u:secret/x@127.0.0.1:1/db",
    "postgresql://u:secret?x@127.0.0.1:1/db",
    "postgresql://u:secret%zz@127.0.0.1:1/db",
    "host=127.0.0.1 port=1 user=u dbname=x password='secret'",
    "host=127.0.0.1 port=secret user=u",
]


@pytest.mark.parametrize("conninfo", PASSWORDS)
def test_no_part_of_a_password_is_shown(conninfo: str) -> None:
    pytest.importorskip("psycopg")
    with pytest.raises((ConfigurationError, StoreError)) as caught:
        PostgresTarget(conninfo, "totals").check(SCHEMA, ("id",))
    assert "secret" not in f"{caught.value} {caught.value.__cause__}"


def test_a_file_that_is_no_database_is_told(tmp_path: Path) -> None:
    missing = tmp_path / "no" / "such.db"
    with pytest.raises(StoreError, match="such.db: there is no such file"):
        SqliteTarget(missing, "totals").check(SCHEMA, ("id",))
    assert not missing.parent.exists()
    text = tmp_path / "text"
    text.write_text("no database " * 100)
    with pytest.raises(StoreError, match="text, table totals: file is not a database"):
        SqliteTarget(text, "totals").check(SCHEMA, ("id",))


def test_a_locked_database_is_told(sqlite_place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *given, **named: connect(*given, **named, timeout=0))
    holder = connect(sqlite_place.place, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="database is locked"):
        sqlite_place.target().check(SCHEMA, ("id",))
    holder.close()


def test_targets_of_nothing_are_refused_when_they_are_made() -> None:
    wrong: list[tuple[Any, ...]] = [
        (SqliteTarget, "", "t"),
        (SqliteTarget, None, "t"),
        (SqliteTarget, "x.db", ""),
        (PostgresTarget, None, "t"),
        (PostgresTarget, "dbname=x", None),
        (MySqlTarget, None, "t"),
        (MySqlTarget, {}, "a\0b"),
        (ParquetTarget, ""),
        (ParquetTarget, "a\0b"),
        (DeltaTarget, ""),
        (IcebergTarget, None),
        (KafkaTarget, "", "t"),
        (KafkaTarget, "127.0.0.1:1", None),
    ]
    for make, *arguments in wrong:
        with pytest.raises(ConfigurationError, match=make.__name__):
            make(*arguments)


def test_an_iceberg_table_needs_its_namespace() -> None:
    with pytest.raises(ConfigurationError, match="IcebergTarget: table 'totals' has no namespace"):
        IcebergTarget("totals").check(SCHEMA, ("id",))


def test_mysql_says_what_its_connection_lacks() -> None:
    pytest.importorskip("pymysql")
    with pytest.raises(ConfigurationError, match="PyMySQL does not accept the connection"):
        MySqlTarget({"hostt": "db"}, "t").check(SCHEMA, ("id",))
    with pytest.raises(StoreError, match="table t: .*nothing was written"):
        MySqlTarget({"host": "127.0.0.1", "port": 1, "user": "u"}, "t").check(SCHEMA, ("id",))


def test_places_of_parquet_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="pyarrow cannot use"):
        ParquetTarget("nope://bucket/x").check(SCHEMA, ("id",))
    lengths = pa.schema([("id", INT), ("length", pa.struct([("of", L)]))])
    with pytest.raises(SchemaError, match="column 'length'.*Parquet has no durations"):
        ParquetTarget(str(tmp_path)).check(lengths, ("id",))
    target = ParquetTarget(str(tmp_path / "totals"))
    assert target.write("w", 0, changes([(1, "one", None)]))
    (tmp_path / "totals/writer=w/batch=0/changes.parquet").write_bytes(b"damaged")
    with pytest.raises(StoreError, match="the micro-batch was not written"):
        target.write("w", 1, changes([(1, "one", None)]))
    with pytest.raises(SchemaError, match="is a file; name a folder"):
        ParquetTarget(str(tmp_path / "totals/writer=w/batch=0/changes.parquet")).check(SCHEMA, ("id",))


def test_catalogs_of_iceberg_that_are_not_there(tmp_path: Path) -> None:
    pytest.importorskip("pyiceberg")
    with pytest.raises(ConfigurationError, match="Iceberg table db.t: catalog 'no such catalog'"):
        IcebergTarget("db.t", "no such catalog").check(SCHEMA, ("id",))
    given = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}"}
    with pytest.raises(SchemaError, match="does not exist; create it"):
        IcebergTarget("no_namespace.t", "tests", given).check(SCHEMA, ("id",))
    with pytest.raises(StoreError, match="Iceberg table db.t: .*unable to open"):
        IcebergTarget("db.t", "tests", {**given, "uri": f"sqlite:///{tmp_path}/no/c.db"}).check(
            SCHEMA, ("id",)
        )


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_lakes_refuse_what_they_would_change(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    target = made(kind, request, tmp_path).target()
    for name, kind_of, message in (
        ("total", pa.decimal128(12, 3), "column 'total' of type decimal128"),
        ("total", F, "does not fit decimal"),
        ("id", F, "column 'id' of type double does not fit int64"),
        ("name", INT, "column 'name' of type int64"),
        ("total", L, "column 'total' of type duration"),
    ):
        schema = SCHEMA.set(SCHEMA.get_field_index(name), pa.field(name, kind_of))
        with pytest.raises(SchemaError, match=re.escape(message)):
            target.check(schema, ("id",))
    nan = pa.table({"id": pa.array([float("nan")])})
    with pytest.raises(AsyncStateError, match="column 'id'|key column 'id'"):
        target.write("w", 0, TargetChanges(nan, nan.slice(0, 0), ("id",)))


def test_iceberg_by_several_columns_replaces_those_rows_alone(tmp_path: Path) -> None:
    pytest.importorskip("pyiceberg")
    from pyiceberg.catalog import load_catalog

    given = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}"}
    catalog = load_catalog("tests", **given)
    catalog.create_namespace("db")
    schema = pa.schema([("a", INT), ("b", S), ("v", pa.list_(INT))])
    catalog.create_table("db.t", schema)
    target = IcebergTarget("db.t", "tests", given)
    everything = [{"a": a, "b": b, "v": [0]} for a in (1, 2, 3) for b in ("x", "y")]
    none = schema.empty_table().select(["a", "b"])
    assert target.write("w", 0, TargetChanges(pa.Table.from_pylist(everything, schema), none, ("a", "b")))
    changed = pa.Table.from_pylist([{"a": 1, "b": "x", "v": [1]}, {"a": 4, "b": "y", "v": None}], schema)
    gone = pa.table({"a": [2, 9], "b": ["y", "x"]}, none.schema)
    assert target.write("w", 1, TargetChanges(changed, gone, ("a", "b")))
    found = {
        (row["a"], row["b"]): row["v"] for row in catalog.load_table("db.t").scan().to_arrow().to_pylist()
    }
    assert found == {
        (1, "x"): [1],
        (1, "y"): [0],
        (2, "x"): [0],
        (3, "x"): [0],
        (3, "y"): [0],
        (4, "y"): None,
    }
    assert target.write(
        "w", 2, TargetChanges(changed.slice(0, 0), pa.table({"a": [1], "b": ["x"]}), ("a", "b"))
    )
    assert len(catalog.load_table("db.t").scan().to_arrow()) == 5


def test_of_drivers_of_iceberg_at_once_one_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place("iceberg", str(tmp_path))
    place.create()
    target, other = place.target(), place.target()
    replace = IcebergTarget._replace

    def meanwhile(self: IcebergTarget, *given: Any) -> None:
        monkeypatch.setattr(IcebergTarget, "_replace", replace)
        assert other.write("w", 0, changes([(1, "of the other", None)]))
        replace(self, *given)

    monkeypatch.setattr(IcebergTarget, "_replace", meanwhile)
    with pytest.raises(StoreError, match="nothing was written"):
        target.write("w", 0, changes([(1, "mine", None)]))
    assert place.rows() == {1: "of the other"}
    assert not target.write("w", 0, changes([(1, "mine", None)]))


def test_iceberg_with_identifier_fields_and_partitions(tmp_path: Path) -> None:
    pytest.importorskip("pyiceberg_core")
    from pyiceberg.catalog import load_catalog
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.transforms import BucketTransform
    from pyiceberg.types import LongType, NestedField, StringType

    given = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}"}
    catalog = load_catalog("tests", **given)
    catalog.create_namespace("db")
    fields = NestedField(1, "k", StringType(), required=True), NestedField(2, "v", LongType(), required=False)
    parts = PartitionSpec(
        PartitionField(source_id=1, field_id=1000, transform=BucketTransform(4), name="part")
    )
    catalog.create_table("db.t", Schema(*fields, identifier_field_ids=[1]), partition_spec=parts)
    target = IcebergTarget("db.t", "tests", given)
    target.check(rows_of(S, INT).upserts.schema, ("k",))
    with pytest.raises(SchemaError, match="has the identifier fields k, but the sink's keys are v"):
        target.check(rows_of(S, INT).upserts.schema, ("v",))
    assert target.write("w", 0, rows_of(S, INT, ("a", 1), ("b", 2)))
    assert target.write("w", 1, rows_of(S, INT, ("a", 3)))
    rows = catalog.load_table("db.t").scan().to_arrow().to_pylist()
    assert {row["k"]: row["v"] for row in rows} == {"a": 3, "b": 2}


@pytest.mark.long
def test_keys_of_kafka_have_one_text(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    target = made("kafka", request, tmp_path).target()
    with pytest.raises(OperatorError, match="key column 'k' is inf, which lookups by key would never find"):
        target.write("w", 0, rows_of(F, INT, (float("inf"), 1)))
    with pytest.raises(SchemaError, match="column 'v'.*JSON cannot represent keys of type int64"):
        target.check(rows_of(S, pa.map_(INT, INT)).upserts.schema, ("k",))


def test_mysql_gets_lengths_of_time_as_texts() -> None:
    lengths = pa.chunked_array(
        [pa.array([-dt.timedelta(seconds=1), None, dt.timedelta(hours=26, microseconds=1)], L)]
    )
    assert sent("v", lengths) == ["-00:00:01", None, "26:00:00.000001"]


@given(st.timedeltas(dt.timedelta(days=-10_000), dt.timedelta(days=10_000)))
def test_lengths_of_time_are_texts_that_say_their_length(length: dt.timedelta) -> None:
    text = duration_text(length // dt.timedelta(microseconds=1))
    sign, hours, minutes, seconds = re.fullmatch(r"(-?)(\d\d+):(\d\d):([\d.]+)", text).groups()  # type: ignore[union-attr]
    read = Decimal(hours) * 3600 + Decimal(minutes) * 60 + Decimal(seconds)
    assert (-read if sign else read) * 1_000_000 == length // dt.timedelta(microseconds=1)


NUMBERS = [pa.int8(), pa.int16(), pa.int32(), INT, pa.float32(), F, pa.decimal128(5, 2), pa.decimal128(38, 0)]


@given(st.sampled_from(NUMBERS), st.sampled_from(NUMBERS), st.integers(-(2**63), 2**63 - 1))
def test_what_keeps_a_type_keeps_each_value_or_refuses_it(
    given_type: pa.DataType, column: pa.DataType, number: int
) -> None:
    try:
        value = pa.array([number]).cast(pa.decimal128(38, 2)).cast(given_type, safe=False)
        if not keeps(given_type, column):
            return
        there = value.cast(column)
    except pa.ArrowInvalid:
        return  # too large for one of them
    assert there.cast(given_type, safe=False).equals(value)


def test_times_are_in_utc_at_any_depth() -> None:
    """A key of Kafka has one text whatever the session's zone is."""
    there = pa.timestamp("us", "Asia/Kolkata")
    for nested, value, text in (
        (pa.list_(there), [MOMENT, None], '["2024-01-01T00:00:00.000100Z",null]'),
        (pa.struct([("at", pa.list_(there))]), {"at": [MOMENT]}, '{"at":["2024-01-01T00:00:00.000100Z"]}'),
        (pa.map_(S, there), [("at", MOMENT)], '{"at":"2024-01-01T00:00:00.000100Z"}'),
    ):
        assert json_texts("v", pa.chunked_array([pa.array([value, None], nested)])) == [text, None]
    same = pa.chunked_array([pa.array([[MOMENT]], pa.list_(T))])
    assert plain(same) is same


def test_json_has_no_nan() -> None:
    assert json_texts("v", pa.chunked_array([pa.array([[1.5], None], pa.list_(F))])) == ["[1.5]", None]
    with pytest.raises(OperatorError, match="column 'v' has .*JSON has neither NaN"):
        json_texts("v", pa.chunked_array([pa.array([[float("nan")]], pa.list_(F))]))
