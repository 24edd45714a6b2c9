"""A compacted topic of Kafka.

Owns: ``KafkaTarget``; needs confluent-kafka (``pip install 'asyncstate[kafka]'``).
Invariant: a write is one Kafka transaction; the micro-batch's id is committed in it as an offset of a consumer group.
Must not import pyspark.

Source: KIP-98 (transactions), upsert-kafka of Flink (a tombstone is a deletion).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa

from asyncstate.errors import SchemaError, StoreError
from asyncstate.spark.sinks.target import Changes, check_columns, extra, is_written

if TYPE_CHECKING:
    from confluent_kafka import Producer

_SECONDS: Final = 60.0  # librdkafka's own time for a request


class KafkaTarget:
    """``topic`` of the brokers ``servers``: keys and values are JSON objects, deletions tombstones. Keys go to the
    partitions that Java's clients would choose. ``options``: further ones of librdkafka, such as security."""

    def __init__(
        self, servers: str, topic: str, options: dict[str, str | int | float | bool] | None = None
    ) -> None:
        self.topic = topic
        self._options = {"bootstrap.servers": servers, **(options or {})}

    def check(self, schema: pa.Schema, keys: tuple[str, ...]) -> None:
        """See ``Target``. The topic must be there: one that brokers make by themselves is not compacted."""
        check_columns(self._place, schema, keys, schema.names)
        with extra("kafka", "KafkaTarget"):
            from confluent_kafka import KafkaException
            from confluent_kafka.admin import AdminClient
        try:
            topics = AdminClient(self._options).list_topics(timeout=_SECONDS).topics
        except KafkaException as error:
            raise StoreError(f"{self._place}: {error}") from error
        if self.topic not in topics:
            raise SchemaError(f"{self._place} does not exist; create it with cleanup.policy=compact")

    def write(self, writer: str, batch_id: int, changes: Changes) -> bool:
        """See ``Target``. A second driver with the same writer shuts the first one out."""
        with extra("kafka", "KafkaTarget"):
            from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
        name = f"asyncstate-{writer}"
        producer = Producer({**self._options, "transactional.id": name, "partitioner": "murmur2_random"})
        consumer = Consumer({**self._options, "group.id": name})
        try:
            producer.init_transactions(
                _SECONDS
            )  # ends a transaction of a killed driver, so that its offset is known
            offset = consumer.committed([TopicPartition(self.topic, 0)], _SECONDS)[0].offset
            if is_written(self._place, writer, batch_id, offset - 1 if offset > 0 else None):
                return False
            producer.begin_transaction()
            for key, value in _messages(changes):
                _produce(producer, self.topic, key, value)
            group = consumer.consumer_group_metadata()
            producer.send_offsets_to_transaction(
                [TopicPartition(self.topic, 0, batch_id + 1)], group, _SECONDS
            )
            producer.commit_transaction(_SECONDS)
        except KafkaException as error:
            raise StoreError(f"{self._place}: {error}; the transaction was not committed") from error
        finally:
            consumer.close()
        return True

    @property
    def _place(self) -> str:
        return f"Kafka topic {self.topic}"


def _messages(changes: Changes) -> Iterator[tuple[bytes, bytes | None]]:
    """Keys, and values or None. A micro-batch's rows are in memory already; its messages come one by one."""
    encode = msgspec.json.Encoder().encode
    for batch in changes.upserts.to_batches(1000):
        for row in batch.to_pylist():
            yield encode({name: row[name] for name in changes.keys}), encode(row)
    for batch in changes.deletes.to_batches(1000):
        for row in batch.to_pylist():
            yield encode({name: row[name] for name in changes.keys}), None


def _produce(producer: Producer, topic: str, key: bytes, value: bytes | None) -> None:
    while True:
        try:
            producer.produce(topic, value, key)
            return
        except BufferError:  # librdkafka's queue is full: what is in it goes first
            producer.poll(1.0)
