"""Messages per second from one partition: the Python data source compared with Spark's own connector.

``python -m bench.kafka_read --servers 127.0.0.1:9092 --jars a.jar,b.jar`` fills a topic of one partition; then each
reader reads it in turns, in one Spark session. Without ``--jars`` there is the Python one alone. The rows are counted
and their values summed, so that both read all columns. Exit code 1 if a reader does not read every message.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Annotated, Any

import typer

from asyncstate.spark import build_session
from asyncstate.spark.kafka import read_kafka

_QUIET = {"spark.ui.enabled": "false", "spark.log.level": "ERROR", "spark.ui.showConsoleProgress": "false"}


def fill(servers: str, messages: int) -> str:
    """A new topic with one partition and so many messages of about 100 bytes. Returns its name."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # not in __all__

    topic = f"bench-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": servers})
    for made in admin.create_topics([NewTopic(topic, 1, 1)]).values():
        made.result(60)
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 20})
    note = "x" * 30
    for number in range(messages):
        value = f'{{"id":{number},"customer":"customer {number % 1000}","amount":{number % 977}.25,"note":"{note}"}}'
        while True:
            try:
                producer.produce(topic, value, str(number % 1000))
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush(120)
    return topic


def seconds(spark: Any, servers: str, topic: str, connector: Any, messages: int) -> float:
    """The time of one query over the whole topic, without its start: that of its micro-batch."""
    df = read_kafka(spark, servers, topic, starting="earliest", connector=connector)
    took = []

    def read(rows: Any, batch_id: int) -> None:
        began = time.perf_counter()
        found = rows.selectExpr("count(*) as n", "sum(length(value) + length(key) + offset) as s").first()
        took.append((int(found["n"]), time.perf_counter() - began))

    with tempfile.TemporaryDirectory() as folder:
        writer = df.writeStream.foreachBatch(read).option("checkpointLocation", str(Path(folder, "q")))
        writer.trigger(availableNow=True).start().awaitTermination()
    if sum(count for count, _ in took) != messages:
        sys.exit(f"{connector}: read {took}, and there are {messages} messages")
    return sum(spent for _, spent in took)


def main(
    servers: Annotated[str, typer.Option(help="bootstrap servers")],
    jars: Annotated[str, typer.Option(help="of Spark's own connector, with commas")] = "",
    messages: Annotated[int, typer.Option(min=1)] = 500_000,
    rounds: Annotated[int, typer.Option(min=1)] = 3,
) -> None:
    """Compare the readers of Kafka."""
    spark = build_session("bench-kafka", "local[1]", {**_QUIET, **({"spark.jars": jars} if jars else {})})
    topic = fill(servers, messages)
    connectors = ["python", *(["spark"] if jars else [])]
    found: dict[str, list[float]] = {name: [] for name in connectors}
    for turn in range(rounds + 1):  # the first one warms up
        for name in connectors:
            spent = seconds(spark, servers, topic, name, messages)
            if turn:
                found[name].append(messages / spent)
    for name, rates in found.items():
        print(
            f"{name:8} {statistics.median(rates):12,.0f} messages/s   {', '.join(f'{rate:,.0f}' for rate in rates)}"
        )
    if jars:
        pairs = [mine / theirs for mine, theirs in zip(found["python"], found["spark"], strict=True)]
        print(f"ratio    {statistics.median(pairs):12.2f}")
    spark.stop()


if __name__ == "__main__":
    typer.run(main)
