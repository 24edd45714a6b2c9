"""The page "A materialised view of your PostgreSQL", as it is, with all of its servers and each of them killed."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("confluent_kafka")
pytest.importorskip("psycopg")
pytest.importorskip("deltalake")

import psycopg
import pyarrow as pa
from deltalake import DeltaTable

from asyncstate.testing import net
from tests.conftest import ROOT, no_server
from tests.servers import debezium
from tests.servers.kafka import KafkaBroker, free_ports, jars
from tests.sinks import postgres

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

PAGE = ROOT / "docs" / "tasks" / "materialised-view.md"
BLOCK = re.compile(r"^```([a-z]+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SECONDS_MAX = 240.0
MEASURED = 20
LAST = "Lastville"


def blocks(language: str) -> list[str]:
    """What the page says in a language."""
    return [text for name, text in BLOCK.findall(PAGE.read_text("utf-8")) if name == language]


class Program:
    """The page's program in a process of its own."""

    def __init__(self, folder: Path, servers: str, database: str) -> None:
        self.folder = folder
        (folder / "view.py").write_text(blocks("python")[0])
        search_path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
        self._environment = {
            **os.environ,
            "PYTHONPATH": search_path,
            "KAFKA": servers,
            "DATABASE": database,
            "FOLDER": str(folder),
        }
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with (self.folder / "view.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "view.py"],
                cwd=self.folder,
                env=self._environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def start_if_ended(self) -> None:
        """As whatever runs a job does; it has failed if a server was gone."""
        assert self._process is not None
        if self._process.poll() is not None:
            self.start()

    def kill(self) -> None:
        if self._process is not None:
            if self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(30)

    def log(self) -> str:
        return (self.folder / "view.log").read_text(errors="replace")[-6000:]


def change(database: Any, chance: random.Random) -> None:
    """One change of either table; also of a key."""
    customer, order, new = chance.randint(1, 220), chance.randint(1, 320), chance.randint(1_000, 10**6)
    city = f"city{chance.randint(0, 9)}"
    statements: list[tuple[str, tuple[Any, ...]]] = [
        ("INSERT INTO customers VALUES (%s, %s)", (new, city)),
        ("UPDATE customers SET city = %s WHERE id = %s", (city, customer)),
        ("UPDATE customers SET id = %s WHERE id = %s", (new, customer)),
        ("DELETE FROM customers WHERE id = %s", (customer,)),
        ("INSERT INTO orders VALUES (%s, %s, %s)", (new, customer, new / 100)),
        ("UPDATE orders SET amount = %s WHERE id = %s", (new / 100, order)),
        ("UPDATE orders SET customer = %s WHERE id = %s", (customer, order)),
        ("DELETE FROM orders WHERE id = %s", (order,)),
    ]
    database.execute(*chance.choice(statements))


def until(found: Callable[[], Any], program: Program, what: str, wait_seconds: float) -> None:
    """Ask again until something is ``found``: other processes write it, which tell nobody."""
    deadline = time.monotonic() + SECONDS_MAX
    while not found():
        assert time.monotonic() < deadline, f"{what} does not arrive: {program.log()}"
        program.start_if_ended()
        time.sleep(wait_seconds)


@contextmanager
def capture_of(folder: Path, kafka: KafkaBroker, port: int) -> Iterator[debezium.Debezium]:
    """Debezium with the page's settings, but for where this test's database is."""
    settings = json.loads(blocks("json")[0])["config"]
    settings |= {"database.hostname": "127.0.0.1", "database.port": str(port), "database.dbname": "postgres"}
    settings |= {"database.user": "tests", "name": "shop"}
    lines = "".join(f"{name}={value}\n" for name, value in settings.items())
    with debezium.debezium(folder, kafka.servers, debezium.Captured("debezium", lines)) as capture:
        yield capture


def test_the_page(kafka: KafkaBroker, tmp_path: Path) -> None:
    if not jars("debezium"):
        no_server(debezium.MISSING)
    if postgres.INITDB is None:
        no_server(postgres.MISSING)
    tables, comparison = blocks("sql")
    (port,), chance = free_ports(1), random.Random(7)
    for name in ("customers", "orders"):
        kafka.create(f"shop.public.{name}")
    folder = tmp_path / "view"
    folder.mkdir()
    with postgres.server(tmp_path / "pg", port) as place:
        with psycopg.connect(place, autocommit=True) as database:
            database.execute(tables)
            database.execute(
                "INSERT INTO cities SELECT 'city' || n, 'region' || n % 3 FROM generate_series(0, 7) n"
            )
            database.execute("INSERT INTO cities VALUES (%s, 'end'), ('Clocktown', 'time')", (LAST,))
            database.execute(
                "INSERT INTO customers SELECT n, 'city' || n % 10 FROM generate_series(1, 200) n"
            )
            database.execute(
                "INSERT INTO orders SELECT n, n % 220 + 1, n * 0.75 FROM generate_series(1, 300) n"
            )
        program = Program(folder, kafka.servers, place)
        with capture_of(tmp_path / "debezium", kafka, port) as capture:
            try:
                program.start()
                changes_and_kills(place, program, capture, kafka, tmp_path / "pg", chance)
                with psycopg.connect(place, autocommit=True) as database:
                    database.execute("INSERT INTO customers VALUES (2000000, %s)", (LAST,))
                    database.execute("INSERT INTO orders VALUES (2000000, 2000000, 1)")
                    last = "SELECT 1 FROM revenue WHERE city = %s"
                    until(lambda: database.execute(last, (LAST,)).fetchone(), program, "the last change", 0.2)
                    assert database.execute(comparison).fetchall() == []
                    view = Counter(
                        database.execute("SELECT city, region, orders, revenue FROM revenue").fetchall()
                    )
                    assert len(view) > 5
                    until(lambda: net_of(folder / "history") == view, program, "the history", 0.5)
                    seconds = latencies(database, program)
                    assert database.execute(comparison).fetchall() == []
            finally:
                program.kill()
    ordered = sorted(seconds)
    print(f"a change arrives after {statistics.median(ordered):.2f} s (median of {MEASURED}); all: {ordered}")


def changes_and_kills(
    place: str,
    program: Program,
    capture: debezium.Debezium,
    kafka: KafkaBroker,
    data: Path,
    chance: random.Random,
) -> None:
    """400 changes; on the way each process is killed and started again, the job twice."""
    written = "SELECT count(*) FROM revenue"
    with psycopg.connect(place, autocommit=True) as database:
        until(lambda: database.execute(written).fetchone() > (0,), program, "the snapshot", 0.2)
        for number in range(200):
            change(database, chance)
            if number == 50:
                program.kill()
                program.start()
            if number == 100:
                capture.kill()
                capture.start()
            if number == 150:
                kafka.kill()
                kafka.start()
    capture.kill()
    postgres.restart(data)
    capture.start()
    with psycopg.connect(place, autocommit=True) as database:
        for _ in range(200):
            change(database, chance)
    program.kill()
    program.start()


def net_of(history: Path) -> Counter[tuple[Any, ...]]:
    """The rows that the changes in a Delta table leave."""
    table = pa.table(DeltaTable(str(history)).to_pyarrow_table())
    rows = table.select(["row_kind", "city", "region", "orders", "revenue"]).to_pylist()
    return net(tuple(row.values()) for row in rows)


def latencies(database: Any, program: Program) -> list[float]:
    """The seconds from the commit of a change until the view has it, for changes that come alone."""
    database.execute("INSERT INTO customers VALUES (3000000, 'Clocktown')")
    count = "SELECT 1 FROM revenue WHERE city = 'Clocktown' AND orders = %s"
    found = []
    for number in range(1, MEASURED + 2):
        database.execute("INSERT INTO orders VALUES (%s, 3000000, 1)", (3_000_000 + number,))
        began = time.monotonic()
        until(lambda seen=number: database.execute(count, (seen,)).fetchone(), program, "a change", 0.01)
        found.append(time.monotonic() - began)
    return found[1:]
