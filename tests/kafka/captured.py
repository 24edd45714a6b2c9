"""What tests of captured tables share: a job over two of them, a sink that keeps rows, and waiting for an event."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame

from asyncstate.spark import StreamingJob, last_changes
from asyncstate.spark.kafka import Debezium
from asyncstate.spark.sources import POSITIONS
from operators import ChangelogNormalize, GroupAggregate, count, sum_
from tests.servers.kafka import KafkaBroker


class Rows:
    """A sink that keeps the last row of each key, the first column."""

    def __init__(self) -> None:
        self.rows: dict[Any, tuple[Any, ...]] = {}

    def write(self, df: DataFrame, batch_id: int) -> None:
        for row in last_changes(df, df.columns[0]).collect():
            given = row.asDict()
            kind = given.pop("row_kind")
            key, *values = given.values()
            self.rows.pop(key, None)
            if kind == "+U":
                self.rows[key] = tuple(values)


def wait_for(kafka: KafkaBroker, topic: str, key: int) -> None:
    """Read the topic until the event of the key comes."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": kafka.servers, "group.id": "waiting"})
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    try:
        while True:
            message = consumer.poll(120)
            assert message is not None, f"{topic} does not get the event of {key}"
            assert message.error() is None, message.error()
            if (
                message.key() is not None and json.loads(message.key())["id"] == key
            ):  # a truncation has no key
                return
    finally:
        consumer.close()


def keep_up_to_date(
    job: StreamingJob,
    kafka: KafkaBroker,
    prefix: str,
    tables: dict[str, Debezium],
    shown: Sequence[str],
    into: list[Rows],
) -> None:
    """Read to the end of what is there. ``tables``: how ``customers`` and ``orders`` are read; ``shown``: what is kept
    of customers in the first sink; sums of orders go into the second one."""
    found = {}
    for name, changes in tables.items():
        place = list(POSITIONS[str(changes.connector)])
        rows = job.kafka(
            name,
            kafka.servers,
            f"{prefix}.{name}",
            changes,
            starting="earliest",
            connector="python",
            sequence=place,
            drop_stale=True,
        )
        found[name] = rows.apply(ChangelogNormalize(), key="id", uid=name).drop(*place)
    found["customers"].select(*shown).to(into[0], name="into customers")
    sums = GroupAggregate([count().alias("n"), sum_("amount").alias("total")])
    orders = found["orders"].with_columns(size="length(note)")
    orders.apply(sums, key=("customer", "size"), uid="totals").select(
        "struct(customer, size) AS key", "n", "total"
    ).to(into[1], name="into totals")
    job.await_termination(job.start(trigger="availableNow"))
