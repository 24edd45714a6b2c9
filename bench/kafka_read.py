"""Messages per second from one partition: the Python data source compared with Spark's own connector.

Owns: ``bench kafka-read``. Invariant: both read all columns of every message of one topic, in turns, in one session;
only the time of the micro-batch counts, not that of the query's start.
"""

from __future__ import annotations

import tempfile
import time
import uuid
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from pyspark.sql import SparkSession

from asyncstate.spark.kafka import read_kafka
from bench.frame import ROOT, Report, Rounds, Row, WrongResult, benchmark, costs, sides, turns
from bench.processor_time import Spent
from bench.session import session

_CONNECTORS = {"Spark's connector": "spark", "Python data source": "python"}


def fill(servers: str, messages: int) -> str:
    """A new topic with one partition and so many messages of about 100 bytes. Returns its name."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # not in __all__

    topic = f"bench-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": servers})
    for made in admin.create_topics([NewTopic(topic, 1, 1)]).values():
        made.result(60)
    config = {"bootstrap.servers": servers, "linger.ms": 20, "queue.buffering.max.messages": messages + 1}
    producer = Producer(config)
    note = "x" * 30
    for number in range(messages):
        value = f'{{"id":{number},"customer":"customer {number % 1000}","amount":{number % 977}.25,"note":"{note}"}}'
        producer.produce(topic, value, str(number % 1000))
    producer.flush(120)
    return topic


def seconds(spark: SparkSession, servers: str, topic: str, messages: int, connector: Any, _: object) -> Spent:
    """The time of the micro-batches of one query over the whole topic."""
    df = read_kafka(spark, servers, topic, starting="earliest", connector=connector)
    took: list[tuple[int, float]] = []

    def read(rows: Any, batch_id: int) -> None:
        began = time.perf_counter()
        found = rows.selectExpr("count(*) as n", "sum(length(value) + length(key) + offset) as s").first()
        took.append((int(found["n"]), time.perf_counter() - began))

    with tempfile.TemporaryDirectory() as folder:
        writer = df.writeStream.foreachBatch(read).option("checkpointLocation", str(Path(folder, "q")))
        writer.trigger(availableNow=True).start().awaitTermination()
    if sum(count for count, _ in took) != messages:
        raise WrongResult(f"{connector}: read {took}, and there are {messages} messages")
    return Spent(sum(spent for _, spent in took), None)


def measure(spark: SparkSession, servers: str, count: int, rounds: int, connectors: list[str]) -> list[Row]:
    given = spark, servers, fill(servers, count), count
    spent = turns({name: partial(seconds, *given, _CONNECTORS[name]) for name in connectors}, rounds)
    return sides(spent, count, connectors[0], speed=True)


@benchmark(messages=2_000, rounds=1)
def kafka_read(
    report: Report,
    servers: Annotated[str, typer.Option(help="Bootstrap servers of a Kafka to make a topic in.")],
    messages: Annotated[int, typer.Option(min=1, help="Messages in the topic.")] = 500_000,
    rounds: Rounds = 5,
) -> None:
    """Read a topic of one partition by Spark's connector and by the Python data source; the ratio is the speed by that
    of Spark's connector, or of the only reader, if its jars are not in build/servers/spark-kafka."""
    found = ",".join(map(str, sorted((ROOT / "build" / "servers" / "spark-kafka").glob("*.jar"))))
    connectors = list(_CONNECTORS)[0 if found else 1 :]
    with session("bench kafka-read", report.folder, 1, {"spark.jars": found} if found else {}) as spark:
        title = f"{messages:,} messages of some 100 bytes in one partition, medians of {rounds}"
        report.section(title, costs("us", "a message"))
        report.case("kafka-read", measure, spark, servers, messages, rounds, connectors)
