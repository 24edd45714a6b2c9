"""A broker that dies and comes back while it is read."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("confluent_kafka")

from pyspark.sql import SparkSession

from asyncstate.spark import StreamingJob
from asyncstate.spark.kafka import Json
from asyncstate.spark.kafka.brokers import Brokers, read_range
from asyncstate.spark.kafka.planned_offsets import Range
from asyncstate.spark.kafka.source_options import source_options
from asyncstate.spark.sinks import KafkaTarget, UpsertSink
from operators import GroupAggregate, count, sum_
from tests.conftest import no_server
from tests.servers.kafka import MISSING, KafkaBroker, jars, kafka_broker

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


@pytest.fixture
def broker(tmp_path: Path) -> Any:
    """A broker of the test's own, to be killed."""
    if not jars("kafka"):
        no_server(MISSING)
    (tmp_path / "broker").mkdir()
    with kafka_broker(tmp_path / "broker") as running:
        yield running


def restart(broker: KafkaBroker) -> threading.Thread:
    """Kill it, and start it anew meanwhile."""
    broker.kill()
    starting = threading.Thread(target=broker.start)
    starting.start()
    return starting


def test_a_broker_that_dies_while_a_range_is_read(broker: KafkaBroker) -> None:
    """Task and driver wait for it, and each message comes once."""
    many = 40_000
    topic = broker.create("orders")
    broker.produce(topic, [(None, f"{n:0100d}") for n in range(many)])
    few = {"kafka.queued.max.messages.kbytes": "500", "kafka.fetch.message.max.bytes": "100000"}
    options = source_options({"kafka.bootstrap.servers": broker.servers, "subscribe": topic, **few})
    asked = Brokers(options)
    assert asked.ends(asked.partitions()) == {topic: {"0": many}}
    reading = read_range(options, Range(topic, 0, 0, many))
    found = list(next(reading))
    starting = restart(broker)
    assert asked.ends(asked.partitions()) == {topic: {"0": many}}
    found += [message for some in reading for message in some]
    starting.join()
    assert [message.offset() for message in found] == list(range(many))


@pytest.mark.spark
@pytest.mark.slow
def test_a_broker_that_dies_in_the_middle_of_a_job(
    spark: SparkSession, broker: KafkaBroker, tmp_path: Path, async_enabled: bool
) -> None:
    """From topic to topic: the query goes on by itself, and each message counts once."""
    topic, target = broker.create("orders", 2), broker.create("totals", cleanup_policy="compact")
    options = {"async-state.parallelism": 2, "async-state.enabled": async_enabled}
    job = StreamingJob(spark, str(tmp_path / "checkpoint"), options, name="job")
    rows = job.kafka(
        "orders",
        broker.servers,
        topic,
        Json("k bigint not null, v bigint not null"),
        starting="earliest",
        connector="python",
    )
    sums = [count().alias("n"), sum_("v").alias("total")]
    totals = rows.apply(GroupAggregate(sums), key="k", uid="totals")
    totals.to(UpsertSink("k", KafkaTarget(broker.servers, target)), name="totals")

    def produce(first: int, more: int) -> None:
        messages = [(b"x", json.dumps({"k": n % 7, "v": n}), n % 2) for n in range(first, first + more)]
        broker.produce(topic, messages)

    produce(0, 1_000)
    query = job.start(trigger="100 milliseconds")
    query.processAllAvailable()
    restart(broker).join()
    produce(1_000, 1_000)
    query.processAllAvailable()
    assert query.isActive
    last = {json.loads(one.key())["k"]: json.loads(one.value()) for one in broker.consume(target)}
    expected = {k: [n for n in range(2_000) if n % 7 == k] for k in range(7)}
    assert {k: (one["n"], one["total"]) for k, one in last.items()} == {
        k: (len(given), sum(given)) for k, given in expected.items()
    }
    job.stop()
