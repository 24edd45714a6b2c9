"""What tasks read and what the driver plans, with a client that does what a broker seldom does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("confluent_kafka")
pytest.importorskip("pyspark.sql.datasource", reason="Spark has Python data sources from 4.0 on")

import confluent_kafka
import confluent_kafka.admin
from confluent_kafka import KafkaError

from asyncstate.errors import ConfigurationError, JobError, StoreError
from asyncstate.spark.kafka import brokers
from asyncstate.spark.kafka.brokers import Brokers, read_range
from asyncstate.spark.kafka.data_source import KafkaReader, RangePartition
from asyncstate.spark.kafka.planned_offsets import Range
from asyncstate.spark.kafka.source_options import SourceOptions, source_options

SECONDS = 30


def options(**more: str) -> SourceOptions:
    given = {"kafka.bootstrap.servers": "nowhere:1", "subscribe": "a", "timeoutMs": str(SECONDS * 1000)}
    return source_options({**given, **more})


class Message:
    def __init__(self, offset: int, error: int | None = None) -> None:
        self._offset, self._error = offset, error

    def offset(self) -> int:
        return self._offset

    def error(self) -> KafkaError | None:
        return None if self._error is None else KafkaError(self._error)


class Clock:
    """``time.monotonic`` that goes on when something waits."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


class Log:
    """A partition with the offsets ``first`` to ``last``. ``before``: error codes that come before all messages."""

    def __init__(self, first: int, last: int, before: tuple[int, ...] = ()) -> None:
        self.first, self.last, self.before = first, last, list(before)
        self.clock = Clock()
        self.at: int | None = None
        self.has_told_its_end = False
        self.is_closed = False
        self.asked = 0

    def client(self, settings: dict[str, Any]) -> Log:
        self.failed = settings.get("error_cb", print)
        return self

    def assign(self, places: list[Any]) -> None:
        self.at, self.has_told_its_end = places[0].offset, False

    def get_watermark_offsets(self, place: Any, timeout: float) -> tuple[int, int]:
        return self.first, self.last

    def consume(self, count: int, timeout: float) -> list[Message]:
        self.asked += 1
        assert self.asked < 1_000, "the reader does not give up"
        assert self.at is not None
        if self.before:
            return [Message(-1, self.before.pop(0))]
        if not self.first <= self.at <= self.last:
            self.clock.now += timeout
            return [Message(-1, KafkaError._AUTO_OFFSET_RESET)]
        found = [Message(offset) for offset in range(self.at, min(self.last, self.at + count))]
        self.at += len(found)
        if found:
            return found
        if not self.has_told_its_end:
            self.has_told_its_end = True
            return [Message(self.last, KafkaError._PARTITION_EOF)]
        self.clock.now += timeout
        return []

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Reads a range of a log; returns the offsets."""

    def read(log: Log, part: Range, **more: str) -> list[int]:
        monkeypatch.setattr(confluent_kafka, "Consumer", log.client)
        monkeypatch.setattr(brokers, "time", log.clock)
        try:
            return [one.offset() or 0 for some in read_range(options(**more), part) for one in some]
        finally:
            assert log.is_closed

    return read


@pytest.mark.parametrize(
    ("log", "part", "found", "said"),
    [
        (Log(0, 2), Range("a", 0, 4, 14), [], "ends at offset 2 now, and offset 4 was to be read"),
        (Log(0, 5), Range("a", 0, 1, 14), [1, 2, 3, 4], "ends at offset 5 now, and offsets up to 14"),
        (Log(7, 14), Range("a", 0, 4, 14), [*range(7, 14)], "begins at offset 7 now, and offset 4"),
        (Log(20, 30), Range("a", 0, 4, 14), [], "begins at offset 20 now, and offset 4"),
    ],
    ids=["shorter", "ends within", "begins within", "begins later"],
)
def test_a_topic_that_lost_a_planned_range(
    read: Any, log: Log, part: Range, found: list[int], said: str
) -> None:
    """It was created again, or brokers lost messages, after the range was planned: a task ends all the same."""
    first, last = log.first, log.last
    with pytest.raises(JobError, match=said):
        read(log, part)
    assert read(Log(first, last), part, failOnDataLoss="false") == found


def test_silence_is_an_error_that_says_why(read: Any) -> None:
    log = Log(0, 20)
    log.consume = lambda count, timeout: wait(log)  # type: ignore[method-assign]

    def wait(log: Log) -> list[Message]:
        log.clock.now += 1
        log.failed(KafkaError(KafkaError._AUTHENTICATION, "wrong password"))
        return []

    with pytest.raises(
        StoreError, match=r"gave nothing within 30 s at offset 3 of 14: wrong password; check"
    ):
        read(log, Range("a", 0, 3, 14))
    assert SECONDS <= log.clock.now <= SECONDS + 5


def test_rows_may_be_processed_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time between two lists of messages is not the brokers'."""
    log = Log(0, 4)
    pauses: Iterator[bool] = iter([False, True, False, False])
    own = log.consume
    log.consume = lambda count, timeout: [] if next(pauses) else own(2, timeout)  # type: ignore[method-assign]
    monkeypatch.setattr(confluent_kafka, "Consumer", log.client)
    monkeypatch.setattr(brokers, "time", log.clock)
    found = []
    for some in read_range(options(), Range("a", 0, 0, 4)):
        found += [one.offset() for one in some]
        log.clock.now += 10 * SECONDS
    assert found == [0, 1, 2, 3]


def test_no_right_to_a_group_is_needed(read: Any) -> None:
    log = Log(0, 3, before=(KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError._TRANSPORT))
    assert read(log, Range("a", 0, 0, 3)) == [0, 1, 2]
    with pytest.raises(StoreError, match="partition 0 of 'a': "):
        read(Log(0, 3, before=(KafkaError.TOPIC_AUTHORIZATION_FAILED,)), Range("a", 0, 0, 3))


class Topic:
    def __init__(self, partitions: int, error: int | None = None) -> None:
        self.partitions = dict.fromkeys(range(partitions))
        self.error = None if error is None else KafkaError(error, "as planned")


class Answer:
    def __init__(self, offset: int) -> None:
        self.offset = offset

    def result(self, timeout: float) -> Answer:
        return self


class Admin:
    """Brokers whose partitions get a message each time that offsets are asked for."""

    def __init__(self, **topics: Topic) -> None:
        self.topics, self.end = topics, 5

    def client(self, settings: dict[str, Any]) -> Admin:
        return self

    def list_topics(self, timeout: float) -> Admin:
        return self

    def list_offsets(self, asked: dict[Any, Any], **more: Any) -> dict[Any, Answer]:
        self.end += 1
        found = {}
        for place, spec in asked.items():
            is_time = type(spec).__name__ == "TimestampSpec"
            found[place] = Answer(-1 if is_time else self.end)
        return found


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Any:
    """``Brokers`` that ask an ``Admin``."""

    def asked(admin: Admin, **more: str) -> Brokers:
        monkeypatch.setattr(confluent_kafka.admin, "AdminClient", admin.client)
        return Brokers(options(**more))

    return asked


def test_a_pattern_does_not_match_kafkas_own_topics(asked: Any) -> None:
    topics = {
        "__consumer_offsets": Topic(2),
        "__transaction_state": Topic(1),
        "__mine": Topic(1),
        "a": Topic(2),
    }
    given = source_options({"kafka.bootstrap.servers": "nowhere:1", "subscribePattern": ".*"})
    found = asked(Admin(**topics))
    found._options = given
    assert found.partitions() == {"__mine": [0], "a": [0, 1]}


def test_a_topic_without_a_leader_is_not_a_missing_one(asked: Any) -> None:
    with pytest.raises(StoreError, match="topic 'a' cannot be read now: as planned; start the query again"):
        asked(Admin(a=Topic(1, KafkaError.LEADER_NOT_AVAILABLE))).partitions()
    for code in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_AUTHORIZATION_FAILED):
        with pytest.raises(JobError, match="there is no topic 'a'"):
            asked(Admin(a=Topic(1, code))).partitions()


def test_a_message_that_comes_while_a_time_is_looked_up_is_read(asked: Any) -> None:
    """A partition without messages since then begins at the end that it had before it was asked."""
    later = {"startingTimestamp": "1000", "startingOffsetsByTimestampStrategy": "latest"}
    assert asked(Admin(a=Topic(1)), **later).starting() == {"a": {"0": 6}}
    with pytest.raises(JobError, match="has no message from startingTimestamp 1000 on"):
        asked(Admin(a=Topic(1)), startingTimestamp="1000").starting()


def reader(**more: str) -> KafkaReader:
    return KafkaReader(options(**more), None)  # type: ignore[arg-type]


def test_loss_is_found_where_spark_plans_without_limits() -> None:
    """Before Spark 4.2 the source does not know the start when it is asked for the end."""
    start, made_anew, gone = {"a": {"0": 5, "1": 3}}, {"a": {"0": 2, "1": 3}}, {"a": {"0": 5}}
    for end, said in (
        (made_anew, "ends at offset 2, and was read up to 5"),
        (gone, "partition 1 of 'a' is gone"),
    ):
        with pytest.raises(JobError, match=said):
            reader().partitions(start, end)
    assert reader(failOnDataLoss="false").partitions(start, made_anew) == [
        RangePartition(Range("a", 0, 0, 2, is_reset=True))
    ]
    assert reader(failOnDataLoss="false").partitions(start, gone) == []


def test_a_first_micro_batch_that_is_repeated_reads_no_history(asked: Any) -> None:
    """Spark has stored its end, and asks for "latest" again, which is later now."""
    one = reader()
    one._brokers = asked(Admin(a=Topic(2)))
    start = one.initialOffset()
    assert start == {"a": {"0": 6, "1": 6}}
    for _ in range(2):  # Spark may plan it twice
        assert one.partitions(start, {"a": {"0": 3, "1": 8}}) == [RangePartition(Range("a", 1, 6, 8))]
    with pytest.raises(JobError, match="ends at offset 2"):
        one.partitions(start, {"a": {"0": 2, "1": 8}})


@pytest.mark.parametrize("starting", ["latest", '{"a": {"0": 2, "1": -1}}'])
def test_a_query_that_begins_at_an_end_begins_with_an_empty_micro_batch(asked: Any, starting: str) -> None:
    """Spark stores the end of the first micro-batch, and asks for its start again: it would have other messages."""
    for is_available_now in (False, True):
        one = reader(startingOffsets=starting)
        one._brokers = asked(Admin(a=Topic(2)))
        if is_available_now:
            one.prepareForTriggerAvailableNow()
        start = one.initialOffset()
        assert one.latestOffset(start) == start
        last = one.latestOffset(start)
        assert last["a"]["1"] == start["a"]["1"] + (not is_available_now)
        assert last["a"]["0"] >= start["a"]["0"]
        later = reader(startingOffsets=starting)  # the query has a checkpoint now
        later._brokers = one._brokers
        assert later.latestOffset(start) != start


def test_a_query_that_begins_at_a_time_begins_with_an_empty_micro_batch(asked: Any) -> None:
    """A partition without messages since then begins at its end, where older ones may have come when it is asked
    again."""
    more = {"startingTimestamp": "1000", "startingOffsetsByTimestampStrategy": "latest"}
    one = reader(**more)
    one._brokers = asked(Admin(a=Topic(1)), **more)
    start = one.initialOffset()
    assert one.latestOffset(start) == start
    assert one.latestOffset(start) != start
    assert not options(startingTimestamp="1000").begins_at_end  # each partition has a message then


def test_a_query_that_begins_elsewhere_reads_at_once(asked: Any) -> None:
    for more in ({"startingOffsets": "earliest"}, {"startingOffsets": '{"a": {"0": 2}}'}):
        one = reader(**more)
        one._brokers = asked(Admin(a=Topic(1)))
        start = one.initialOffset()
        assert one.latestOffset(start) != start


@pytest.mark.parametrize("name", ["auto.offset.reset", "enable.auto.commit", "enable.partition.eof"])
def test_the_client_does_not_decide_what_is_read(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"leave out the client's option {name}"):
        options(**{f"kafka.{name}": "earliest"})
