"""What tests of captured tables share: a sink that keeps rows, and waiting for an event."""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql import DataFrame

from asyncstate.spark import last_changes
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
