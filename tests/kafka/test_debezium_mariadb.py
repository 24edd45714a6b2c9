"""From MariaDB through Debezium and Kafka into tables: all real. Primary keys change, tables are altered and truncated,
Debezium is killed, and loses its place, so that it takes another snapshot."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("confluent_kafka")
pytest.importorskip("pymysql")

import pymysql
from pyspark.sql import SparkSession

from asyncstate.errors import SchemaError
from asyncstate.spark import StreamingJob
from asyncstate.spark.kafka import Debezium
from tests.conftest import no_server
from tests.kafka.captured import Rows, keep_up_to_date, wait_for
from tests.servers import debezium
from tests.servers.kafka import KafkaBroker, free_ports, jars
from tests.sinks import mysql

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

SCHEMA = [
    "CREATE TABLE customers (id BIGINT PRIMARY KEY, city VARCHAR(40), credit DECIMAL(12, 2), born DATE, "
    "seen DATETIME(6), old INT)",
    "CREATE TABLE orders (id BIGINT PRIMARY KEY, customer BIGINT NOT NULL, amount DECIMAL(10, 2), note TEXT)",
    "INSERT INTO customers SELECT seq, CONCAT('city', seq % 5), seq * 1.25, '1900-01-01' + INTERVAL seq * 400 DAY, "
    "'1969-12-31 23:59:59.123456' + INTERVAL seq * 1000 DAY, seq FROM seq_1_to_40",
    "INSERT INTO orders SELECT seq, seq % 40 + 1, seq * 0.75, REPEAT('x', 9000) FROM seq_1_to_300",
]
ALTERATIONS = [
    "ALTER TABLE customers DROP COLUMN old, ADD COLUMN nick VARCHAR(9) DEFAULT 'n', MODIFY city VARCHAR(99) AFTER id",
    "ALTER TABLE orders MODIFY amount DECIMAL(14, 2), ADD INDEX (customer)",
]
CUSTOMERS = "id bigint not null, city string, credit decimal(12, 2), born date, seen timestamp, old int"
ORDERS = "id bigint not null, customer bigint not null, amount decimal(10, 2), note string"
LAST = 10**9
"""The key of a row that comes after all others; the next one is one higher."""


def change(database: Any, chance: random.Random, *, deletes: bool = True) -> None:
    """One change of either table; also of a key. ``deletes``: also one that removes a key."""
    customer, order, new = chance.randint(1, 50), chance.randint(1, 320), chance.randint(1_000, 10**6)
    statements: list[tuple[str, tuple[Any, ...]]] = [
        (
            "INSERT IGNORE INTO customers (id, city, credit, born) VALUES (%s, 'new', -0.5, '2000-01-01')",
            (new,),
        ),
        ("UPDATE customers SET city = %s, credit = -credit WHERE id = %s", (f"city{new % 9}", customer)),
        ("INSERT IGNORE INTO orders VALUES (%s, %s, %s, NULL)", (new, customer, new / 100)),
        ("UPDATE orders SET amount = %s WHERE id = %s", (new / 100, order)),
        ("UPDATE orders SET customer = %s WHERE id = %s", (customer, order)),
    ]
    if deletes:
        statements += [
            ("UPDATE IGNORE customers SET id = %s WHERE id = %s", (new, customer)),
            ("DELETE FROM customers WHERE id = %s", (customer,)),
            ("DELETE FROM orders WHERE id = %s", (order,)),
        ]
    database.execute(*chance.choice(statements))


def add_last(database: Any, kafka: KafkaBroker, prefix: str, last: int) -> None:
    """Add a row to each table, and wait for its event."""
    database.execute("INSERT INTO customers (id) VALUES (%s)", (last,))
    database.execute("INSERT INTO orders (id, customer) VALUES (%s, 1)", (last,))
    for name in ("customers", "orders"):
        wait_for(kafka, f"{prefix}.tests.{name}", last)


def run(
    spark: SparkSession, kafka: KafkaBroker, prefix: str, checkpoint: Path, enabled: bool, into: list[Rows]
) -> None:
    """Read to the end of what is there."""
    options = {"async-state.parallelism": 2, "async-state.enabled": enabled}
    job = StreamingJob(spark, str(checkpoint), options, name="job")
    given: dict[str, Any] = {"upsert_key": "id", "connector": "mysql", "decimals": "base64"}
    tables = {
        "customers": Debezium(CUSTOMERS, **given, timestamps="us"),
        "orders": Debezium(ORDERS, **given, timestamps="us"),
    }
    shown = ["id", "city", "credit", "born", "unix_micros(seen) AS seen"]
    keep_up_to_date(job, kafka, f"{prefix}.tests", tables, shown, into)


def check(database: Any, found: list[Rows]) -> None:
    """What the job keeps is what the database would answer."""
    database.execute(
        "SELECT id, city, credit, born, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', seen) FROM customers"
    )
    assert found[0].rows == {key: tuple(values) for key, *values in database.fetchall()}
    database.execute("SELECT customer, LENGTH(note), COUNT(*), SUM(amount) FROM orders GROUP BY 1, 2")
    totals = {(customer, size): (n, total) for customer, size, n, total in database.fetchall()}
    assert {tuple(key): value for key, value in found[1].rows.items()} == totals


def test_tables_of_mariadb(
    spark: SparkSession, kafka: KafkaBroker, tmp_path: Path, async_enabled: bool
) -> None:
    if not jars("debezium-mariadb"):
        no_server(debezium.MISSING)
    if mysql.MARIADBD is None:
        no_server(mysql.MISSING)
    (port,), prefix = free_ports(1), f"store-{async_enabled}".lower()
    for name in ("customers", "orders"):
        kafka.create(f"{prefix}.tests.{name}")
    found, chance, checkpoint = [Rows(), Rows()], random.Random(6), tmp_path / "checkpoint"
    folder = tmp_path / "maria"
    folder.mkdir()
    with (
        mysql.server(folder, port) as place,
        pymysql.connect(**place, autocommit=True) as connection,
        connection.cursor() as database,
    ):
        for statement in SCHEMA:
            database.execute(statement)
        captured = debezium.mariadb(port, prefix, "tests.customers,tests.orders")
        with debezium.debezium(tmp_path / "debezium", kafka.servers, captured) as capture:
            wait_for(kafka, f"{prefix}.tests.orders", 300)
            run(spark, kafka, prefix, checkpoint, async_enabled, found)
            check(database, found)
            for number in range(300):
                change(database, chance)
                if number == 100:
                    for statement in ALTERATIONS:
                        database.execute(statement)
                if number == 200:
                    capture.kill()
                    capture.start()
            add_last(database, kafka, prefix, LAST)
            run(spark, kafka, prefix, checkpoint, async_enabled, found)
            check(database, found)
            capture.kill()
            for _ in range(
                60
            ):  # its log has no changes of these, and rows that are gone have no event in a snapshot
                change(database, chance, deletes=False)
            capture.forget()
            capture.start()
            add_last(database, kafka, prefix, LAST + 1)
            run(spark, kafka, prefix, checkpoint, async_enabled, found)
            check(database, found)
            database.execute("TRUNCATE TABLE orders")
            add_last(database, kafka, prefix, LAST + 2)
            with pytest.raises(SchemaError, match="operation 't' is not a change of a row"):
                run(spark, kafka, prefix, checkpoint, async_enabled, found)
