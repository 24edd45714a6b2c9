"""What a source asks Kafka's brokers: partitions, their ends, offsets of times; and the messages of a range.

Owns: ``Brokers``, ``read_range`` and ``ClientErrors``, what a client last failed with.
Invariant: every wait is bounded by the source's timeout; an error names the source and what to do, and shows no secret.
Must not import pyspark: workers import this module.

Source: KIP-98 (a reader of committed messages ends at the last stable offset).
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from asyncstate.errors import AsyncStateError, ConfigurationError, JobError, StoreError
from asyncstate.spark.kafka.planned_offsets import Range
from asyncstate.spark.kafka.source_options import EARLIEST, LATEST, Offsets, SourceOptions

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message
    from confluent_kafka.admin import AdminClient

MESSAGES_AT_ONCE: Final = 10_000
_STEP_SECONDS: Final = 0.1  # how long consume() may wait for a full batch
_INTERNAL: Final = frozenset({"__consumer_offsets", "__share_group_state", "__transaction_state"})
"""Kafka's own topics, which no pattern matches, as in Java's clients."""
_RESTART: Final = (
    "If those messages are not needed, set failOnDataLoss=false; retractions among them would leave rows in the state. "
    "Otherwise load the data again into a new checkpoint"
)

_log = logging.getLogger(__name__)


class Brokers:
    """Questions to the brokers of a source, over one client that lives as long as this object."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._failures = ClientErrors()
        self._client: AdminClient = self._made()

    def partitions(self) -> dict[str, list[int]]:
        """The partitions of the topics that are read. Raises JobError for a topic that is not there."""
        options = self._options
        topics = self._metadata().topics
        if options.pattern is not None:
            names = [name for name in topics.keys() - _INTERNAL if re.fullmatch(options.pattern, name)]
        else:
            names = list(options.topics or options.assigned or ())
        for name in names:
            self._check_topic(name, topics.get(name))
        found = {name: sorted(topics[name].partitions) for name in names}
        for name, wanted in (options.assigned or {}).items():
            missing = sorted(set(wanted) - set(found[name]))
            if missing:
                raise self._error(JobError, f"topic '{name}' has no partition {missing[0]}; correct assign")
            found[name] = list(wanted)
        return found

    def _check_topic(self, name: str, topic: Any) -> None:
        from confluent_kafka import KafkaError

        error = None if topic is None else topic.error
        if topic is None or (
            error is not None
            and error.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_AUTHORIZATION_FAILED)
        ):
            raise self._error(
                JobError,
                f"there is no topic '{name}', or this user may not see it; create it, or check its name and rights",
            )
        if error is not None:
            raise self._error(
                StoreError, f"topic '{name}' cannot be read now: {error.str()}; start the query again"
            )

    def ends(self, partitions: Mapping[str, list[int]]) -> Offsets:
        """The offset after the last committed message of each partition."""
        return self._offsets(partitions, _offset_spec().latest())

    def begins(self, partitions: Mapping[str, list[int]]) -> Offsets:
        """The offset of the first message that each partition still has."""
        return self._offsets(partitions, _offset_spec().earliest())

    def starting(self) -> Offsets:
        """Where a query without a checkpoint begins."""
        options, partitions = self._options, self.partitions()
        if options.starting_ms is not None:
            return self._from_time(partitions, options.starting_ms)
        if options.starting == "earliest":
            return self.begins(partitions)
        if isinstance(options.starting, str):
            return self.ends(partitions)
        return self._from_offsets(partitions, options.starting)

    def _from_offsets(self, partitions: Mapping[str, list[int]], given: Offsets) -> Offsets:
        wanted = {topic: sorted(map(int, parts)) for topic, parts in given.items()}
        if wanted != {topic: sorted(parts) for topic, parts in partitions.items()}:
            raise self._error(
                ConfigurationError,
                f"startingOffsets has {wanted}, and the topics have {dict(partitions)}; give an offset for each "
                "partition, -2 for the earliest and -1 for the latest",
            )
        named = {EARLIEST: self.begins, LATEST: self.ends}
        special = {
            mark: find(partitions)
            for mark, find in named.items()
            if any(mark in parts.values() for parts in given.values())
        }
        return {
            topic: {
                number: special[offset][topic][number] if offset in special else offset
                for number, offset in parts.items()
            }
            for topic, parts in given.items()
        }

    def _from_time(self, partitions: Mapping[str, list[int]], time_ms: int) -> Offsets:
        ends = self.ends(partitions)  # asked first: a message that comes in between is then read
        found = self._offsets(partitions, _offset_spec().for_timestamp(time_ms))
        missing = [(topic, number) for topic in found for number, at in found[topic].items() if at < 0]
        if missing and not self._options.is_latest_after:
            topic, number = missing[0]
            raise self._error(
                JobError,
                f"partition {number} of '{topic}' has no message from startingTimestamp {time_ms} on; give an earlier "
                "one, or startingOffsetsByTimestampStrategy=latest",
            )
        for topic, number in missing:
            found[topic][number] = ends[topic][number]
        return found

    def _offsets(self, partitions: Mapping[str, list[int]], spec: Any) -> Offsets:
        from confluent_kafka import IsolationLevel, KafkaException, TopicPartition

        asked = {
            TopicPartition(topic, number): spec for topic, parts in partitions.items() for number in parts
        }
        found: Offsets = {topic: {} for topic in partitions}
        if not asked:
            return found
        seconds = self._options.timeout_ms / 1000
        is_dirty = self._options.client.get("isolation.level") == "read_uncommitted"
        level = IsolationLevel.READ_UNCOMMITTED if is_dirty else IsolationLevel.READ_COMMITTED
        futures = self._client.list_offsets(asked, isolation_level=level, request_timeout=seconds)
        for place, future in futures.items():
            try:
                found[place.topic][str(place.partition)] = future.result(seconds + 5).offset
            except (KafkaException, TimeoutError) as error:
                raise self._error(
                    StoreError, f"partition {place.partition} of '{place.topic}' gave no offsets: {error}"
                ) from None
        return found

    def _metadata(self) -> Any:
        """Ask in short steps, so that a refused login ends the wait at once."""
        from confluent_kafka import KafkaError, KafkaException

        seconds = self._options.timeout_ms / 1000
        deadline = time.monotonic() + seconds
        while True:
            left = deadline - time.monotonic()
            try:
                return self._client.list_topics(timeout=max(0.001, min(1.0, left)))
            except KafkaException as error:
                self._client.poll(0)
                failure, last = self._failures.last, error.args[0]
                if failure is not None and failure.code() == KafkaError._AUTHENTICATION:
                    raise self._error(
                        ConfigurationError, f"the brokers refuse the login: {failure.str()}"
                    ) from None
                if failure is not None and failure.code() == KafkaError._SSL:
                    raise self._error(ConfigurationError, f"TLS failed: {failure.str()}") from None
                if left <= 1.0:
                    why = failure if failure is not None else last
                    raise self._error(
                        StoreError,
                        f"no broker answered within {seconds:g} s: {why.str()}; check kafka.bootstrap.servers and "
                        "kafka.security.protocol, or raise timeoutMs",
                    ) from None

    def _made(self) -> AdminClient:
        from confluent_kafka.admin import AdminClient

        made: AdminClient = client_of(self._options, AdminClient, error_cb=self._failures)
        return made

    def _error(self, kind: type[AsyncStateError], what: str) -> AsyncStateError:
        return error_of(self._options, kind, what)


class ClientErrors:
    """The last failure of a client, which goes on trying by itself; pass it as ``error_cb``."""

    def __init__(self) -> None:
        self.last: Any = None

    def __call__(self, error: Any) -> None:
        from confluent_kafka import KafkaError

        if self.last is None or error.code() != KafkaError._ALL_BROKERS_DOWN:
            self.last = error


def _offset_spec() -> Any:
    from confluent_kafka import admin

    return admin.OffsetSpec  # type: ignore[attr-defined]  # not in __all__


def error_of(options: SourceOptions, kind: type[AsyncStateError], what: str) -> AsyncStateError:
    """An error that names the source and shows no secret."""
    return kind(options.redacted(f"{options.place}: {what}"))


def client_of(options: SourceOptions, make: Callable[[dict[str, Any]], Any], **more: Any) -> Any:
    """A client with the source's options. Raises ConfigurationError for those that librdkafka does not take."""
    from confluent_kafka import KafkaException

    try:
        return make({**options.client, "logger": _log, **more})
    except (KafkaException, TypeError, ValueError) as error:
        told = error.args[0] if error.args else error
        text = told.str() if hasattr(told, "str") else str(told)
        raise error_of(
            options,
            ConfigurationError,
            f"{text}; the options kafka.* are those of librdkafka (CONFIGURATION.md)",
        ) from None


def read_range(options: SourceOptions, part: Range) -> Iterator[list[Message]]:
    """The messages of the range, in lists of up to ``MESSAGES_AT_ONCE``.

    Raises JobError for offsets that the topic has lost, if the source fails on loss; StoreError where nothing comes
    within the timeout.
    """
    reader = _RangeReader(options, part)
    try:
        yield from reader.messages()
    finally:
        reader.close()


class _RangeReader:
    """Reads a range with a consumer of its own."""

    def __init__(self, options: SourceOptions, part: Range) -> None:
        from confluent_kafka import Consumer

        settings = {
            "group.id": "asyncstate-source",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 10,  # the range is there; after marks of transactions only its end is waited for
        }
        self._options, self._part = options, part
        self._failures = ClientErrors()
        self._consumer: Consumer = client_of(
            options, lambda given: Consumer({**settings, **given}), error_cb=self._failures
        )

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()

    def messages(self) -> Iterator[list[Message]]:
        """The messages, as ``read_range`` returns them."""
        part = self._part
        wanted = self._bounds()[0] if part.is_reset else part.start
        if wanted < part.end:
            self._assign(wanted)
        deadline = self._deadline()
        while wanted < part.end:
            before, kept = wanted, []
            for message in self._consumer.consume(min(MESSAGES_AT_ONCE, part.end - wanted), _STEP_SECONDS):
                if message.error() is not None:
                    wanted = self._after(message, wanted)
                    continue
                offset = message.offset()
                assert offset is not None
                wanted = offset + 1
                if offset >= part.end:
                    break
                kept.append(message)
            if kept:
                yield kept  # which may take any time
            if wanted > before:
                deadline = self._deadline()
            elif time.monotonic() > deadline:
                wanted = self._after_silence(wanted)

    def _deadline(self) -> float:
        return time.monotonic() + self._options.timeout_ms / 1000

    def _assign(self, offset: int) -> None:
        from confluent_kafka import TopicPartition

        self._consumer.assign([TopicPartition(self._part.topic, self._part.partition, offset)])

    def _after(self, message: Message, wanted: int) -> int:
        """The next offset to read after an error, ``wanted`` before it. Raises StoreError where it cannot go on."""
        from confluent_kafka import KafkaError

        error: Any = message.error()
        code = error.code()
        if code == KafkaError._PARTITION_EOF:  # what lies before it are marks of transactions
            return max(wanted, message.offset() or 0)
        if code == KafkaError._AUTO_OFFSET_RESET:
            return self._after_reset(wanted)
        goes_on = (
            KafkaError._ALL_BROKERS_DOWN,
            KafkaError._RESOLVE,
            KafkaError._TIMED_OUT,
            KafkaError._TRANSPORT,
            KafkaError.GROUP_AUTHORIZATION_FAILED,  # offsets are Spark's: no group is needed
            KafkaError.LEADER_NOT_AVAILABLE,
            KafkaError.NOT_LEADER_FOR_PARTITION,
        )
        if error.fatal() or code not in goes_on:
            raise error_of(self._options, StoreError, f"{self._place}: {error.str()}")
        self._failures(error)
        return wanted

    def _after_reset(self, wanted: int) -> int:
        """The next offset to read where the log does not have ``wanted``."""
        first, last = self._bounds()
        end = self._part.end
        if first > wanted:
            self._lose(f"begins at offset {first} now, and offset {wanted} was to be read")
        elif last < wanted:
            self._lose(f"ends at offset {last} now, and offset {wanted} was to be read")
            return end
        wanted = max(wanted, first)
        if wanted < end:
            self._assign(wanted)
        return wanted

    def _after_silence(self, wanted: int) -> int:
        """The next offset to read where nothing came within the timeout: the end, where the log is shorter now."""
        end, seconds = self._part.end, self._options.timeout_ms / 1000
        _, last = self._bounds()
        if last < end:
            self._lose(f"ends at offset {last} now, and offsets up to {end} were to be read")
            return end
        failure = self._failures.last
        raise error_of(
            self._options,
            StoreError,
            f"{self._place} gave nothing within {seconds:g} s at offset {wanted} of {end}"
            f"{'' if failure is None else f': {failure.str()}'}; check the brokers, or raise timeoutMs. The "
            "micro-batch can be repeated",
        )

    def _bounds(self) -> tuple[int, int]:
        """The first offset that the partition has, and the next one that it gets."""
        from confluent_kafka import KafkaException, TopicPartition

        try:
            place = TopicPartition(self._part.topic, self._part.partition)
            first, last = self._consumer.get_watermark_offsets(place, self._options.timeout_ms / 1000)
        except KafkaException as error:
            what = f"{self._place} gave no offsets: {error.args[0].str()}"
            raise error_of(self._options, StoreError, what) from None
        return int(first), int(last)

    @property
    def _place(self) -> str:
        return f"partition {self._part.partition} of '{self._part.topic}'"

    def _lose(self, what: str) -> None:
        why = "its retention has deleted messages, or the topic was created again"
        report_loss(self._options, f"{self._place} {what}: {why}")


def report_loss(options: SourceOptions, what: str) -> None:
    """Raise JobError for lost messages, or log them where the source does not fail on loss."""
    if options.fails_on_loss:
        raise error_of(options, JobError, f"{what}. {_RESTART}")
    _log.warning("%s: %s; it goes on with what is there", options.place, what)
