"""A compacted topic of Kafka.

Owns: ``KafkaTarget``; needs confluent-kafka (``pip install 'asyncstate[kafka]'``).
Invariant: a write is one Kafka transaction; the micro-batch's id is committed in it as an offset of a consumer group.
Must not import pyspark.

Source: KIP-98 (transactions), upsert-kafka of Flink (a tombstone is a deletion).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from asyncstate.driver.write_marks import UNKNOWN, Mark, Origin, is_written, mark_from, mark_of
from asyncstate.errors import SchemaError, StoreError
from asyncstate.spark.sinks.column_checks import json_shape, no_json, plain
from asyncstate.spark.sinks.target import TargetChanges, check_columns, check_no_nan, check_text, extra

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Producer
    from confluent_kafka.admin import AdminClient

_SECONDS: Final = 60.0  # librdkafka's default timeout of a request

_log = logging.getLogger(__name__)


class KafkaTarget:
    """``topic`` of the brokers ``servers``: keys and values are JSON objects, deletions tombstones. Keys go to the
    partitions that Java's clients would choose. ``options``: further librdkafka options, such as security."""

    def __init__(
        self, servers: str, topic: str, options: dict[str, str | int | float | bool] | None = None
    ) -> None:
        self.topic = check_text("KafkaTarget", "topic", topic)
        self._options = {
            "bootstrap.servers": check_text("KafkaTarget", "servers", servers),
            **(options or {}),
        }

    def check(self, schema: pa.Schema, keys: tuple[str, ...]) -> None:
        """See ``Target``. The topic must be there, and be compacted: one that brokers make by themselves is not."""
        check_columns(self.place, schema, keys, schema.names)
        _check_types(self.place, schema)
        with extra("kafka", "KafkaTarget"):
            from confluent_kafka import KafkaException
            from confluent_kafka.admin import AdminClient
        client = AdminClient(self._options)
        try:
            topics = client.list_topics(timeout=_SECONDS).topics
        except KafkaException as error:
            raise StoreError(f"{self.place}: {error}") from error
        if self.topic not in topics:
            raise SchemaError(f"{self.place} does not exist; create it with cleanup.policy=compact")
        self._check_policy(client)

    def _check_policy(self, client: AdminClient) -> None:
        """Raise SchemaError for a topic that does not keep the last value of each key; warn if its settings are
        unknown."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import ConfigResource  # type: ignore[attr-defined]  # not in __all__

        asked = ConfigResource(ConfigResource.Type.TOPIC, self.topic)
        try:
            # A client that nothing refers to any more breaks off what it was asked.
            (answer,) = client.describe_configs([asked], request_timeout=_SECONDS).values()
            policy = str(answer.result()["cleanup.policy"].value)
        except (KafkaException, KeyError) as error:
            _log.warning(
                "%s: cannot determine whether it is compacted (%s); a topic whose cleanup.policy is not compact "
                "loses rows that do not change for a while",
                self.place,
                error,
            )
            return
        words = {word.strip() for word in policy.split(",")}
        if "compact" not in words:
            raise SchemaError(
                f"{self.place} has cleanup.policy={policy}: it would delete rows that do not change for a while; set "
                "cleanup.policy=compact"
            )
        if "delete" in words:
            _log.warning(
                "%s has cleanup.policy=%s: it deletes rows that do not change within its retention; set "
                "cleanup.policy=compact to keep them",
                self.place,
                policy,
            )

    def write(self, writer: str, batch_id: int, changes: TargetChanges, origin: Origin = UNKNOWN) -> bool:
        """See ``Target``. A second driver with the same writer shuts the first one out."""
        with extra("kafka", "KafkaTarget"):
            from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
        _check_types(self.place, changes.upserts.schema)
        check_no_nan(self.place, changes, is_finite=True)
        name = f"asyncstate-{origin.named(writer)}"
        outcome = "nothing was committed"
        producer = Producer({**self._options, "transactional.id": name, "partitioner": "murmur2_random"})
        consumer = Consumer({**self._options, "group.id": name})
        try:
            producer.init_transactions(
                _SECONDS
            )  # ends a transaction of a killed driver, so that its offset is known
            if is_written(self.place, writer, batch_id, origin, self._mark(consumer)):
                return False
            producer.begin_transaction()
            for key, value in _messages(changes):
                _produce(producer, self.topic, key, value)
            group = consumer.consumer_group_metadata()
            mark = mark_from(origin, batch_id).text()
            producer.send_offsets_to_transaction(
                [TopicPartition(self.topic, 0, batch_id + 1, mark)], group, _SECONDS
            )
            outcome = "whether the transaction was committed is known when the micro-batch is repeated"
            producer.commit_transaction(_SECONDS)
        except KafkaException as error:
            raise StoreError(f"{self.place}: {error}; {outcome}") from error
        finally:
            consumer.close()
        return True

    def _mark(self, consumer: Consumer) -> Mark | None:
        from confluent_kafka import TopicPartition

        (found,) = consumer.committed([TopicPartition(self.topic, 0)], _SECONDS)
        if found.offset <= 0:
            return None
        return mark_of(found.metadata) if found.metadata else Mark(found.offset - 1)

    @property
    def place(self) -> str:
        """The topic, as errors name it."""
        return f"Kafka topic {self.topic}"


def _check_types(place: str, schema: pa.Schema) -> None:
    for field in schema:
        what = "intervals of months" if pa.types.is_interval(field.type) else None
        if pa.types.is_nested(field.type):
            what = no_json(field.type)
        if what is not None:
            raise SchemaError(
                f"{place}: column '{field.name}' of type {field.type}: JSON cannot represent {what}; cast it before "
                "the sink"
            )


def _messages(changes: TargetChanges) -> Iterator[tuple[bytes, bytes | None]]:
    """Keys, and values or None. A micro-batch's rows are in memory already; its messages are generated one by one."""
    encode = msgspec.json.Encoder().encode
    for row in _rows(changes.upserts):
        yield encode({name: row[name] for name in changes.keys}), encode(row)
    for row in _rows(changes.deletes):
        yield encode({name: row[name] for name in changes.keys}), None


def _rows(table: pa.Table) -> Iterator[dict[str, Any]]:
    """Rows with times in UTC, so that a key has one text whatever the session's zone is; maps as objects."""
    table = pa.table([plain(column) for column in table.columns], table.column_names)
    shapes = {field.name: json_shape(field.type) for field in table.schema if pa.types.is_nested(field.type)}
    for batch in table.to_batches(1000):
        for row in batch.to_pylist():
            yield {**row, **{name: shape(row[name]) for name, shape in shapes.items()}} if shapes else row


def _produce(producer: Producer, topic: str, key: bytes, value: bytes | None) -> None:
    while True:
        try:
            producer.produce(topic, value, key)
            return
        except BufferError:  # librdkafka's queue is full: send its messages first
            producer.poll(1.0)
