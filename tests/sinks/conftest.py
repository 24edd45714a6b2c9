"""Every kind of place to write into, with an empty table of totals; servers start once.

Where a server is not installed its tests are left out, but for CI, which installs them first.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import no_server
from tests.servers.kafka import KafkaBroker
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


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if postgres.INITDB is None:
        no_server(postgres.MISSING)
    with postgres.server(tmp_path_factory.mktemp("pg")) as place:
        yield place


@pytest.fixture(scope="session")
def mysql_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    if mysql.INSTALL is None:
        no_server(mysql.MISSING)
    with mysql.server(tmp_path_factory.mktemp("my")) as place:
        yield place


def made(kind: str, request: pytest.FixtureRequest, folder: Path) -> Place:
    if kind in PACKAGES:
        pytest.importorskip(PACKAGES[kind])
    where: Any = str(folder / "shop.db") if kind == "sqlite" else str(folder)
    if kind in ("postgres", "mysql"):
        where = request.getfixturevalue(f"{kind}_server")
    if kind == "kafka":
        broker: KafkaBroker = request.getfixturevalue("kafka")
        where = (broker.servers, f"totals-{next(NUMBERS)}")
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
