"""Every kind of place to write into, with an empty table of totals; servers start once.

Where a server is not installed its tests are left out, but for CI, which installs them first.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.sinks import mysql, postgres
from tests.sinks.places import KINDS, SQL, Place

PACKAGES = {
    "postgres": "psycopg",
    "mysql": "pymysql",
    "delta": "deltalake",
    "iceberg": "pyiceberg",
    "kafka": "confluent_kafka",
}
NUMBERS = itertools.count()


def missing(what: str) -> None:
    """Leave the test out, on a machine that need not have everything."""
    if os.environ.get("CI"):
        pytest.fail(what)
    pytest.skip(what)


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if postgres.INITDB is None:
        missing(postgres.MISSING)
    with postgres.server(tmp_path_factory.mktemp("pg")) as place:
        yield place


@pytest.fixture(scope="session")
def mysql_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    if mysql.INSTALL is None:
        missing(mysql.MISSING)
    with mysql.server(tmp_path_factory.mktemp("my")) as place:
        yield place


@pytest.fixture(scope="session")
def kafka_brokers() -> Iterator[str]:
    """librdkafka's own brokers for tests, within this process."""
    from confluent_kafka import Producer

    holder = Producer({"test.mock.num.brokers": 1})
    brokers = holder.list_topics(timeout=10).brokers.values()
    yield ",".join(f"{broker.host}:{broker.port}" for broker in brokers)
    del holder


def made(kind: str, request: pytest.FixtureRequest, folder: Path) -> Place:
    if kind in PACKAGES:
        pytest.importorskip(PACKAGES[kind])
    where: Any = str(folder / "shop.db") if kind == "sqlite" else str(folder)
    if kind in ("postgres", "mysql"):
        where = request.getfixturevalue(f"{kind}_server")
    if kind == "kafka":
        where = (request.getfixturevalue("kafka_brokers"), f"totals-{next(NUMBERS)}")
    found = Place(kind, where)
    found.create()
    return found


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return made(request.param, request, tmp_path)


@pytest.fixture(params=SQL)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return made(request.param, request, tmp_path)


@pytest.fixture
def sqlite_place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return made("sqlite", request, tmp_path)


@pytest.fixture
def postgres_place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return made("postgres", request, tmp_path)


@pytest.fixture
def mysql_place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return made("mysql", request, tmp_path)


@pytest.fixture
def offsets_are_kept(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """librdkafka's brokers for tests answer to offsets within a transaction, and forget them: so they come outside."""
    if place.kind != "kafka":
        return
    import confluent_kafka

    servers, _ = place.place
    groups: list[str] = []

    class Consumer(confluent_kafka.Consumer):
        def __init__(self, options: dict[str, Any]) -> None:
            super().__init__(options)
            groups.append(options["group.id"])

    class Producer(confluent_kafka.Producer):
        def send_offsets_to_transaction(self, offsets: Any, *_: Any) -> None:
            one = confluent_kafka.Consumer({"bootstrap.servers": servers, "group.id": groups[-1]})
            one.commit(offsets=offsets, asynchronous=False)
            one.close()

    monkeypatch.setattr(confluent_kafka, "Consumer", Consumer)
    monkeypatch.setattr(confluent_kafka, "Producer", Producer)
