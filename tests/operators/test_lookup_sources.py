"""The places that a lookup join asks: a table, an HTTP server, SQLite, PostgreSQL."""

from __future__ import annotations

import datetime as dt
import json
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from asyncstate.errors import OperatorError, SchemaError
from asyncstate.lookups import DatabaseLookup, HttpLookup, Lookup, PostgresLookup, TableLookup
from asyncstate.testing import OperatorHarness
from operators.join.lookup.lookup_join import LookupJoin
from tests.quiet_server import QuietServer
from tests.sinks import postgres as postgres_server

ROWS = pa.schema([("k", pa.int64()), ("id", pa.int64())])
FOUND = pa.schema([("name", pa.string())])
TABLE = [{"id": 1, "name": "a"}, {"id": 1, "name": "b"}, {"id": 3, "name": "c"}]
GIVEN = [(1, 0), (2, 1), (3, 2), (1, 3)]
WANTED = [
    ("+I", 1, 0, "a"),
    ("+I", 1, 0, "b"),
    ("+I", 2, 1, None),
    ("+I", 3, 2, "c"),
    ("+I", 1, 3, "a"),
    ("+I", 1, 3, "b"),
]


def joined(lookup: Lookup, async_enabled: bool, batch: int = 1, changelog: bool = False) -> list[Any]:
    join = LookupJoin(lookup, FOUND, batch=batch)
    with OperatorHarness(join, ROWS, ["k"], async_enabled=async_enabled, changelog=changelog) as harness:
        harness.push(GIVEN)
        return harness.end_batch()


class Handler(BaseHTTPRequestHandler):
    """Answers /items/<id> from TABLE; /items/broken is an error of the server."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    asked: Counter[str]

    def do_GET(self) -> None:
        self.asked[self.path] += 1
        item = self.path.rpartition("/")[2]
        rows = [{"name": row["name"]} for row in TABLE if str(row["id"]) == item]
        body = json.dumps(rows).encode()
        self.send_response(500 if "broken" in self.path else 200 if rows else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the output of tests is their own."""


@pytest.fixture
def http() -> Iterator[tuple[str, Counter[str]]]:
    """The address of a server, and how often each path was asked for."""
    asked: Counter[str] = Counter()
    server = QuietServer(("127.0.0.1", 0), type("Counting", (Handler,), {"asked": asked}))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()
    thread.join()
    server.server_close()


def test_http_is_asked_once_a_key(async_enabled: bool, http: tuple[str, Counter[str]]) -> None:
    address, asked = http
    assert joined(HttpLookup(address + "/items/{0}"), async_enabled) == WANTED
    assert asked == {"/items/1": 1, "/items/2": 1, "/items/3": 1}


def test_an_error_of_the_server_fails_the_batch(async_enabled: bool, http: tuple[str, Counter[str]]) -> None:
    with pytest.raises(OperatorError, match="the service answers with status 500"):
        joined(HttpLookup(http[0] + "/broken/{0}"), async_enabled)


def test_values_in_an_address_are_quoted(async_enabled: bool, http: tuple[str, Counter[str]]) -> None:
    address, asked = http
    join = LookupJoin(HttpLookup(address + "/{0}/{1}"), FOUND)
    rows = pa.schema([("place", pa.string()), ("id", pa.int64())])
    with OperatorHarness(join, rows, ["place", "id"], async_enabled=async_enabled) as harness:
        harness.push([("a/b c", 1)])
        assert harness.end_batch() == [("+I", "a/b c", 1, "a"), ("+I", "a/b c", 1, "b")]
    assert asked == {"/a%2Fb%20c/1": 1}


@pytest.mark.parametrize("table", [TABLE, pa.Table.from_pylist(TABLE), pd.DataFrame(TABLE)])
@pytest.mark.parametrize("changelog", [False, True])
def test_tables_in_memory(async_enabled: bool, table: Any, changelog: bool) -> None:
    assert joined(TableLookup(table, ["id"], ["name"]), async_enabled, changelog=changelog) == WANTED


def test_a_table_without_the_column_is_refused() -> None:
    with pytest.raises(SchemaError, match="no column 'title'; its columns are: id, name"):
        TableLookup(TABLE, ["id"], ["title"])


TEXTS = pa.table({"id": ["1"], "name": ["a"]})


@pytest.mark.parametrize(
    ("lookup", "said"),
    [
        (TableLookup(TEXTS, ["id"], ["name"]), "'id' is of type string and can never equal a value of 'k'"),
        (TableLookup(TABLE, ["id", "name"], ["name"]), "names 2 columns, but the join has 1: k"),
        (TableLookup(TABLE, ["id"], ["id", "name"]), "names 2 columns, but the join has 1: name"),
    ],
)
def test_a_table_that_cannot_be_asked_is_refused(lookup: Lookup, said: str) -> None:
    with pytest.raises(SchemaError, match=said):
        OperatorHarness(LookupJoin(lookup, FOUND), ROWS, ["k"])


def test_a_float_does_not_find_a_decimal() -> None:
    """In Python 0.1 is not Decimal("0.1"): rows found nothing."""
    decimals, floats = pa.array([Decimal("0.1")], pa.decimal128(3, 1)), pa.array([0.1], pa.float64())
    for own, sent in ((decimals, floats), (floats, decimals)):
        lookup = TableLookup(pa.table({"id": own, "name": ["a"]}), ["id"], ["name"])
        with pytest.raises(SchemaError, match="0.1 as a float is not the decimal 0.1"):
            OperatorHarness(LookupJoin(lookup, FOUND), pa.schema([("k", sent.type)]), ["k"])


def test_rows_of_another_key_are_not_lost(async_enabled: bool) -> None:
    query = "select cast(k as text), 'a' from (select 1 k) where k in ({keys})"
    with pytest.raises(OperatorError, match=r"a row of key \('1',\) was returned but not requested"):
        joined(DatabaseLookup(partial(sqlite3.connect, ":memory:"), query), async_enabled)


@pytest.mark.parametrize("batch", [1, 100])
def test_a_database_through_its_driver(async_enabled: bool, batch: int, tmp_path: Path) -> None:
    file = tmp_path / "items.db"
    connection = sqlite3.connect(file)
    connection.execute("create table items (id integer, name text)")
    connection.executemany("insert into items values (:id, :name)", TABLE)
    connection.commit()
    connection.close()
    query = "select id, name from items where id in ({keys}) order by name"
    lookup = DatabaseLookup(partial(sqlite3.connect, file), query)
    assert joined(lookup, async_enabled, batch) == WANTED


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a PostgreSQL with the table."""
    if postgres_server.INITDB is None:
        pytest.skip(postgres_server.MISSING)
    psycopg = pytest.importorskip("psycopg")
    folder = tmp_path_factory.mktemp("pg")
    with postgres_server.server(folder) as place:
        with psycopg.connect(place) as database:
            database.execute("create table items (id bigint, name text)")
            database.cursor().executemany("insert into items values (%(id)s, %(name)s)", TABLE)
        yield f"postgresql://tests@/postgres?host={folder / 's'}"


@pytest.mark.parametrize("batch", [1, 100])
def test_postgres(async_enabled: bool, batch: int, postgres: str) -> None:
    query = "select id, name from items where id = any($1) order by name"
    assert joined(PostgresLookup(postgres, query), async_enabled, batch) == WANTED


def test_rows_of_a_table_are_kept_as_they_are_given() -> None:
    rows = [{"id": 1}, {"id": 2, "name": "b"}]
    assert TableLookup(rows, ["id"], ["name"]).lookup([(1,), (2,)]) == [[(None,)], [("b",)]]
    times = [{"id": 1, "at": dt.date(2020, 1, 1)}, {"id": 2, "at": dt.datetime(2020, 1, 1, 12)}]
    with pytest.raises(
        SchemaError, match=r"row 1 has, in column 'at', datetime\.datetime\(2020, 1, 1, 12, 0\)"
    ):
        TableLookup(times, ["id"], ["at"])
