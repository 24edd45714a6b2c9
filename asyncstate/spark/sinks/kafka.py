"""Topics of Kafka: a compacted one as a table, any other as a log of rows.

Owns: ``KafkaTarget``, ``KafkaAppendTarget``; needs confluent-kafka (``pip install 'asyncstate[kafka]'``).
Invariant: a write is one Kafka transaction; the micro-batch's id is committed in it as an offset of a consumer group.
Must not import pyspark.

Source: KIP-98 (transactions), upsert-kafka of Flink (a tombstone is a deletion).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa

from asyncstate.driver.write_marks import UNKNOWN, Mark, Origin, is_written, mark_from, mark_of
from asyncstate.errors import ConfigurationError, SchemaError, StoreError
from asyncstate.spark.kafka.client_options import Redaction
from asyncstate.spark.sinks.column_checks import json_shape, plain
from asyncstate.spark.sinks.kafka_messages import JsonMessages, MessageEncoding
from asyncstate.spark.sinks.target import TargetChanges, check_keys, check_no_nan, check_text, extra

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Producer

Options = Mapping[str, str | int | float | bool]
"""Of librdkafka."""
Message = tuple[bytes | None, bytes | None]
"""Key and value."""

_T = TypeVar("_T")
_SECONDS: Final = 60.0  # librdkafka's default timeout of a request
_RETRY_SECONDS: Final = 0.2
_ABORT_SECONDS: Final = 15.0
_NOT_BEGUN: Final = "nothing was committed"
_OPEN: Final = "the transaction was not committed"
_COMMITTING: Final = "whether the transaction was committed is known when the micro-batch is repeated"
_OURS: Final = {
    "bootstrap.servers": "give servers",
    "group.id": "the sink's mark is in a group of its own",
    "metadata.broker.list": "give servers",
    "partitioner": "keys go where Java's clients would send them",
    "transactional.id": "it names the job and the sink",
}

_log = logging.getLogger(__name__)


class KafkaTarget:
    """``topic`` of the brokers ``servers``: keys and values are JSON objects, deletions tombstones. Keys go to the
    partitions that Java's clients would choose. ``options``: further librdkafka options, such as security.
    ``encoding``: ``AvroMessages(registry)`` or ``ProtobufMessages(registry)`` instead of JSON."""

    def __init__(
        self,
        servers: str,
        topic: str,
        options: Options | None = None,
        *,
        encoding: MessageEncoding | None = None,
    ) -> None:
        self.topic = check_text("KafkaTarget", "topic", topic)
        self._options = _options("KafkaTarget", servers, options)
        self._encoding = encoding or JsonMessages()

    def check(self, schema: pa.Schema, keys: tuple[str, ...]) -> None:
        """See ``Target``. The topic must be there, and be compacted: one that brokers make by themselves is not."""
        check_keys(self.place, schema, keys)
        self._encoding.check(self.place, schema)
        policy = _policy(self.place, self._options, self.topic)
        words = {word.strip() for word in (policy or "compact").split(",")}
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
        self._encoding.check(self.place, changes.upserts.schema)
        check_no_nan(self.place, changes, is_finite=True)
        key = pa.schema([changes.upserts.schema.field(name) for name in changes.keys])

        def messages() -> Iterator[Message]:
            encode = self._encoding.encoders(self.topic, key, changes.upserts.schema)
            for row in _rows(changes.upserts):
                yield encode.key({name: row[name] for name in changes.keys}), encode.value(row)
            for row in _rows(changes.deletes):
                yield encode.key({name: row[name] for name in changes.keys}), None

        return write_once(self.place, self._options, self.topic, writer, batch_id, origin, messages)

    @property
    def place(self) -> str:
        """The topic, as errors name it."""
        return f"Kafka topic {self.topic}"


class KafkaAppendTarget:
    """``topic`` of the brokers ``servers``, to which ``AppendSink`` appends each row as a message, once.

    ``keys``: the columns of the messages' keys, which choose the partition and keep the order of their rows; without
    them messages have no key. ``encoding``: JSON by default. ``options``: further librdkafka options.
    """

    def __init__(
        self,
        servers: str,
        topic: str,
        options: Options | None = None,
        *,
        keys: str | Sequence[str] = (),
        encoding: MessageEncoding | None = None,
    ) -> None:
        self.topic = check_text("KafkaAppendTarget", "topic", topic)
        self.keys = (keys,) if isinstance(keys, str) else tuple(keys)
        self._options = _options("KafkaAppendTarget", servers, options)
        self._encoding = encoding or JsonMessages()

    @property
    def place(self) -> str:
        """The topic, as errors name it."""
        return f"Kafka topic {self.topic}"

    def check_append(self, schema: pa.Schema) -> None:
        """See ``AppendTarget``. The topic must be there; a compacted one needs ``keys``."""
        for name in self.keys:
            if name not in schema.names:
                raise SchemaError(
                    f"{self.place}: key column '{name}' is not one of the rows' columns ({', '.join(schema.names)})"
                )
        self._encoding.check(self.place, schema)
        policy = _policy(self.place, self._options, self.topic)
        if policy is not None and "compact" in policy and not self.keys:
            raise SchemaError(
                f"{self.place} is compacted (cleanup.policy={policy}), so its messages need keys; give keys="
            )

    def append(self, writer: str, batch_id: int, rows: pa.Table, origin: Origin = UNKNOWN) -> bool:
        """See ``AppendTarget``. A second driver with the same writer shuts the first one out."""
        self._encoding.check(self.place, rows.schema)
        key = pa.schema([rows.schema.field(name) for name in self.keys])

        def messages() -> Iterator[Message]:
            encode = self._encoding.encoders(self.topic, key, rows.schema)
            for row in _rows(rows):
                yield (
                    encode.key({name: row[name] for name in self.keys}) if self.keys else None,
                    encode.value(row),
                )

        return write_once(self.place, self._options, self.topic, writer, batch_id, origin, messages)


def write_once(
    place: str,
    options: Mapping[str, Any],
    topic: str,
    writer: str,
    batch_id: int,
    origin: Origin,
    messages: Callable[[], Iterator[Message]],
) -> bool:
    """Write messages and the mark of their micro-batch in one transaction; False if it was written before.

    ``messages`` is not called then. Raises StoreError if the brokers fail, JobError as ``is_written``.
    """
    with extra("kafka", "a sink of Kafka"):
        from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
    name = f"asyncstate-{origin.named(writer)}"
    # Two topics do not share it: a producer that begins a transaction ends the open one of this id.
    own = {"transactional.id": f"{name}/{topic}", "partitioner": "murmur2_random"}
    producer = _client(place, Producer, {**options, **own})
    consumer = _client(place, Consumer, {**options, "group.id": name})
    state = _NOT_BEGUN
    try:
        # This ends a transaction of a killed driver, so that its offset is known.
        _retried(producer.init_transactions)
        if is_written(place, writer, batch_id, origin, _mark(consumer, topic)):
            return False
        producer.begin_transaction()
        state = _OPEN
        for key, value in messages():
            _produce(producer, topic, key, value)
        group = consumer.consumer_group_metadata()
        mark = mark_from(origin, batch_id).text()
        marks = [TopicPartition(topic, 0, batch_id + 1, mark)]
        _retried(lambda seconds: producer.send_offsets_to_transaction(marks, group, seconds))
        state = _COMMITTING
        _retried(producer.commit_transaction)
    except KafkaException as error:
        failure = error.args[0]
        if state == _OPEN or (state == _COMMITTING and failure.txn_requires_abort()):
            state = _OPEN
            _abort(place, producer)
        text = Redaction(_texts(options))(f"{place}: {error}; {state}")
        raise StoreError(text) from None
    except BaseException:
        if state == _OPEN:
            _abort(place, producer)
        raise
    finally:
        consumer.close()
    return True


def _retried(step: Callable[[float], _T]) -> _T:
    """Call ``step`` with the seconds it may take until it does not fail for a while only.

    Brokers that start, stop or elect a coordinator answer so, and librdkafka leaves it to its caller to ask again.
    Raises KafkaException: any other failure at once, one that passes after ``_SECONDS``.
    """
    from confluent_kafka import KafkaError, KafkaException

    passing = (
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
        KafkaError._TRANSPORT,
        KafkaError._WAIT_COORD,
    )
    deadline = time.monotonic() + _SECONDS
    while True:
        try:
            return step(max(0.001, deadline - time.monotonic()))
        except KafkaException as error:
            failure = error.args[0]
            passes = failure.retriable() or failure.code() in passing
            ended = failure.fatal() or failure.txn_requires_abort()
            if ended or not passes or time.monotonic() + _RETRY_SECONDS >= deadline:
                raise
            time.sleep(_RETRY_SECONDS)


def _abort(place: str, producer: Producer) -> None:
    """End the transaction, for which readers would otherwise wait until the brokers do. The first failure counts."""
    from confluent_kafka import KafkaException

    try:
        producer.abort_transaction(_ABORT_SECONDS)
    except KafkaException as error:
        _log.warning("%s: the transaction could not be aborted (%s); the brokers end it later", place, error)


def _client(place: str, make: Callable[[dict[str, Any]], Any], options: Mapping[str, Any]) -> Any:
    """A client. Raises ConfigurationError for options that librdkafka does not take."""
    from confluent_kafka import KafkaException

    try:
        return make(dict(options))
    except (KafkaException, TypeError, ValueError) as error:
        given = error.args[0] if error.args else error
        text = given.str() if hasattr(given, "str") else str(given)
        raise ConfigurationError(
            Redaction(_texts(options))(
                f"{place}: {text}; its options are those of librdkafka (CONFIGURATION.md)"
            )
        ) from None


def _options(owner: str, servers: str, options: Options | None) -> dict[str, Any]:
    """The options of all clients. Raises ConfigurationError for those that the sink sets."""
    for name, value in (options or {}).items():
        if name in _OURS:
            raise ConfigurationError(f"{owner}: leave out the option {name}: {_OURS[name]}")
        if value is None:  # of an environment that does not have it
            raise ConfigurationError(f"{owner}: option {name} is None; give a value, or leave it out")
    return {"bootstrap.servers": check_text(owner, "servers", servers), **(options or {})}


def _texts(options: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in options.items()}


def _mark(consumer: Consumer, topic: str) -> Mark | None:
    from confluent_kafka import KafkaException, TopicPartition

    def asked(seconds: float) -> TopicPartition:
        (found,) = consumer.committed([TopicPartition(topic, 0)], seconds)
        if found.error is not None:  # not the same as no mark
            raise KafkaException(found.error)
        return found

    found = _retried(asked)
    if found.offset <= 0:
        return None
    return mark_of(found.metadata) if found.metadata else Mark(found.offset - 1)


def _policy(place: str, options: Mapping[str, Any], topic: str) -> str | None:
    """The topic's ``cleanup.policy``, None (and a warning) where this user may not see it.

    Raises SchemaError if there is no such topic, StoreError if the brokers do not answer.
    """
    with extra("kafka", "a sink of Kafka"):
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient, ConfigResource  # type: ignore[attr-defined]  # not in __all__
    client = _client(place, AdminClient, options)
    try:
        topics = client.list_topics(timeout=_SECONDS).topics
    except KafkaException as error:
        raise StoreError(Redaction(_texts(options))(f"{place}: {error}")) from None
    if topic not in topics:
        raise SchemaError(f"{place} does not exist; create it (for upserts with cleanup.policy=compact)")
    asked = ConfigResource(ConfigResource.Type.TOPIC, topic)
    try:
        # A client that nothing refers to any more breaks off what it was asked.
        (answer,) = client.describe_configs([asked], request_timeout=_SECONDS).values()
        return str(answer.result(_SECONDS + 5)["cleanup.policy"].value)
    except (KafkaException, KeyError, TimeoutError) as error:
        _log.warning(
            "%s: cannot determine whether it is compacted (%s); a topic whose cleanup.policy is not compact loses "
            "rows that do not change for a while",
            place,
            error,
        )
        return None


def _rows(table: pa.Table) -> Iterator[dict[str, Any]]:
    """Rows with times in UTC, so that a key has one text whatever the session's zone is; maps as objects."""
    table = pa.table([plain(column) for column in table.columns], table.column_names)
    shapes = {field.name: json_shape(field.type) for field in table.schema if pa.types.is_nested(field.type)}
    for batch in table.to_batches(1000):
        for row in batch.to_pylist():
            yield {**row, **{name: shape(row[name]) for name, shape in shapes.items()}} if shapes else row


def _produce(producer: Producer, topic: str, key: bytes | None, value: bytes | None) -> None:
    while True:
        try:
            producer.produce(topic, value, key)
            return
        except BufferError:  # librdkafka's queue is full: send its messages first
            producer.poll(1.0)
