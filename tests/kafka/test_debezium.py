"""From PostgreSQL through Debezium and Kafka into tables: all real, and Debezium killed on the way."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("confluent_kafka")
pytest.importorskip("psycopg")

import psycopg
from pyspark.sql import SparkSession

from asyncstate.spark import StreamingJob
from asyncstate.spark.kafka import Debezium
from tests.conftest import no_server
from tests.kafka.captured import Rows, keep_up_to_date, wait_for
from tests.servers import debezium
from tests.servers.kafka import KafkaBroker, free_ports, jars
from tests.sinks import postgres

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

SCHEMA = """
CREATE TABLE customers (id bigint PRIMARY KEY, city text, credit numeric(12, 2), born date, seen timestamp,
                        at timestamptz);
CREATE TABLE orders (id bigint PRIMARY KEY, customer bigint NOT NULL, amount numeric(10, 2), note text);
ALTER TABLE orders REPLICA IDENTITY FULL;
ALTER TABLE orders ALTER note SET STORAGE external;
INSERT INTO customers SELECT n, 'city' || n % 5, n * 1.25, date '1900-01-01' + n::int * 400,
    timestamp '1969-12-31 23:59:59.123456' + n * interval '1000 days', timestamptz '2024-02-29 12:00:00.5+02'
    FROM generate_series(1, 40) n;
INSERT INTO orders SELECT n, n % 40 + 1, n * 0.75, repeat('x', 9000) FROM generate_series(1, 300) n;
"""
CUSTOMERS = "id bigint not null, city string, credit decimal(12, 2), born date, seen timestamp, at timestamp"
ORDERS = "id bigint not null, customer bigint not null, amount decimal(10, 2), note string"
LAST = 10**9
"""The key of a row that comes after all others."""


def change(database: Any, chance: random.Random) -> None:
    """One change of either table; also of a key."""
    customer, order, new = chance.randint(1, 50), chance.randint(1, 320), chance.randint(1_000, 10**6)
    statements: list[tuple[str, tuple[Any, ...]]] = [
        ("INSERT INTO customers VALUES (%s, 'new', -0.5, '2000-01-01', NULL, now())", (new,)),
        ("UPDATE customers SET city = %s, credit = -credit WHERE id = %s", (f"city{new % 9}", customer)),
        ("UPDATE customers SET id = %s WHERE id = %s", (new, customer)),
        ("DELETE FROM customers WHERE id = %s", (customer,)),
        ("INSERT INTO orders VALUES (%s, %s, %s, NULL)", (new, customer, new / 100)),
        ("UPDATE orders SET amount = %s WHERE id = %s", (new / 100, order)),
        ("UPDATE orders SET customer = %s WHERE id = %s", (customer, order)),
        ("DELETE FROM orders WHERE id = %s", (order,)),
    ]
    database.execute(*chance.choice(statements))


def run(
    spark: SparkSession, kafka: KafkaBroker, prefix: str, checkpoint: Path, enabled: bool, into: list[Rows]
) -> None:
    """Read to the end of what is there."""
    options = {"async-state.parallelism": 2, "async-state.enabled": enabled}
    job = StreamingJob(spark, str(checkpoint), options, name="job")
    given: dict[str, Any] = {"upsert_key": "id", "connector": "postgresql", "decimals": "base64"}
    tables = {
        "customers": Debezium(CUSTOMERS, **given, timestamps={"seen": "us"}),
        "orders": Debezium(ORDERS, **given),
    }
    shown = ["id", "city", "credit", "born", "unix_micros(seen) AS seen", "unix_micros(at) AS at"]
    keep_up_to_date(job, kafka, f"{prefix}.public", tables, shown, into)


def test_tables_of_postgresql(
    spark: SparkSession, kafka: KafkaBroker, tmp_path: Path, async_enabled: bool
) -> None:
    if not jars("debezium"):
        no_server(debezium.MISSING)
    if postgres.INITDB is None:
        no_server(postgres.MISSING)
    (port,), prefix = free_ports(1), f"shop-{async_enabled}".lower()
    for name in ("customers", "orders"):
        kafka.create(f"{prefix}.public.{name}")
    found, chance = [Rows(), Rows()], random.Random(5)
    with postgres.server(tmp_path / "pg", port) as place, psycopg.connect(place, autocommit=True) as database:
        database.execute(SCHEMA)
        captured = debezium.postgresql(port, prefix, "public.customers,public.orders")
        with debezium.debezium(tmp_path / "debezium", kafka.servers, captured) as capture:
            wait_for(kafka, f"{prefix}.public.orders", 300)
            run(spark, kafka, prefix, tmp_path / "checkpoint", async_enabled, found)
            for number in range(300):
                change(database, chance)
                if number == 150:
                    capture.kill()
                    capture.start()
            for name in ("customers", "orders"):
                columns = "id" if name == "customers" else "id, customer"
                values = f"{LAST}" if name == "customers" else f"{LAST}, 1"
                database.execute(f"INSERT INTO {name} ({columns}) VALUES ({values})")
                wait_for(kafka, f"{prefix}.public.{name}", LAST)
        run(spark, kafka, prefix, tmp_path / "checkpoint", async_enabled, found)
        people = database.execute(
            "SELECT id, city, credit, born, (extract(epoch FROM seen) * 1000000)::bigint, "
            "(extract(epoch FROM at) * 1000000)::bigint FROM customers"
        )
        totals = database.execute(
            "SELECT customer, length(note), count(*), sum(amount) FROM orders GROUP BY 1, 2"
        )
        assert found[0].rows == {key: tuple(values) for key, *values in people}
        assert {tuple(key): value for key, value in found[1].rows.items()} == {
            (customer, size): (n, total) for customer, size, n, total in totals
        }
