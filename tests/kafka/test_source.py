"""The Python data source on a real broker."""

from __future__ import annotations

import datetime as dt
import itertools
import logging
import re
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("confluent_kafka")
pytest.importorskip("pyspark.sql.datasource", reason="Spark has Python data sources from 4.0 on")

from pyspark.sql import DataFrame, SparkSession

from asyncstate.errors import ConfigurationError, JobError
from asyncstate.spark.kafka import KafkaSource, read_kafka
from tests.kafka.streams import drained, values
from tests.servers.kafka import PASSWORD, KafkaBroker, kafka_broker

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(300)]

NUMBERS = itertools.count()


@pytest.fixture
def topic(kafka: KafkaBroker) -> str:
    return kafka.create(f"source-{next(NUMBERS)}", 2)


def numbered(first: int, count: int, partition: int | None = None) -> list[tuple[Any, ...]]:
    return [
        (f"k{n}", f"{n:05d}", n % 2 if partition is None else partition) for n in range(first, first + count)
    ]


def texts(first: int, count: int) -> list[str]:
    return [f"{n:05d}" for n in range(first, first + count)]


def read(spark: SparkSession, kafka: KafkaBroker, topic: Any, **more: Any) -> DataFrame:
    return read_kafka(spark, kafka.servers, topic, **{"connector": "python", "starting": "earliest", **more})


def test_columns_limits_and_a_restart(
    spark: SparkSession, kafka: KafkaBroker, topic: str, tmp_path: Path
) -> None:
    moment = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)
    stamp = int(moment.timestamp() * 1000)
    kafka.produce(topic, [(b"k", b"first", 0, stamp, [("h", b"1"), ("h", None)]), (None, None, 1)])
    df = read(spark, kafka, topic, headers=True, max_rows=3)
    (batch,) = drained(df, tmp_path / "q")
    one, other = sorted(batch, key=lambda row: int(row["partition"]))
    assert one == {
        "key": b"k",
        "value": b"first",
        "topic": topic,
        "partition": 0,
        "offset": 0,
        "timestamp": moment.replace(tzinfo=None),
        "timestampType": 0,
        "headers": [{"key": "h", "value": b"1"}, {"key": "h", "value": None}],
    }
    assert (other["key"], other["value"], other["headers"]) == (None, None, None)
    kafka.produce(topic, numbered(0, 20))
    batches = drained(df, tmp_path / "q")
    assert [len(batch) for batch in batches] == [3] * 6 + [2]
    assert values(batches) == texts(0, 20)
    assert drained(df, tmp_path / "q") == []


def test_where_a_query_begins(spark: SparkSession, kafka: KafkaBroker, topic: str, tmp_path: Path) -> None:
    early, late = dt.datetime(2026, 3, 1, tzinfo=dt.UTC), dt.datetime(2026, 3, 2, tzinfo=dt.UTC)
    for moment, name in ((early, "early"), (late, "late")):
        kafka.produce(topic, [("k", f"{name}{n}", n, int(moment.timestamp() * 1000)) for n in (0, 1)])
    cases: list[tuple[Any, list[str]]] = [
        ("earliest", ["early0", "early1", "late0", "late1"]),
        ("latest", []),
        (early + dt.timedelta(hours=1), ["late0", "late1"]),
        ({topic: {0: 1, 1: -2}}, ["early1", "late0", "late1"]),
    ]
    for number, (starting, expected) in enumerate(cases):
        found = values(drained(read(spark, kafka, topic, starting=starting), tmp_path / str(number)))
        assert found == sorted(expected)
    after = read(spark, kafka, topic, starting=late + dt.timedelta(days=1))
    assert drained(after, tmp_path / "after") == []
    kafka.produce(topic, numbered(0, 2))
    assert values(drained(after, tmp_path / "after")) == texts(0, 2)
    with pytest.raises(ConfigurationError, match="give an offset for each partition"):
        drained(read(spark, kafka, topic, starting={topic: {0: 1}}), tmp_path / "part")


def test_a_first_micro_batch_that_fails(
    spark: SparkSession, kafka: KafkaBroker, topic: str, tmp_path: Path
) -> None:
    """Spark asks again where a query begins, and "latest" is later by then. The topic's history is not read, and no
    message is lost that came after the query had begun."""

    def failing(rows: DataFrame, batch_id: int) -> None:
        raise RuntimeError("as planned")

    kafka.produce(topic, numbered(0, 6))
    df = read(spark, kafka, topic, starting="latest")
    writer = df.writeStream.foreachBatch(failing).option("checkpointLocation", str(tmp_path / "q"))
    query = writer.trigger(availableNow=True).start()
    with pytest.raises(Exception, match="as planned"):
        query.awaitTermination()
    kafka.produce(topic, numbered(6, 4))
    assert values(drained(df, tmp_path / "q")) == texts(6, 4)


def test_new_partitions_and_new_topics_are_read(
    spark: SparkSession, kafka: KafkaBroker, topic: str, tmp_path: Path
) -> None:
    kafka.produce(topic, numbered(0, 4))
    df = read(spark, kafka, re.compile(f"{topic}.*"))
    assert values(drained(df, tmp_path / "q")) == texts(0, 4)
    kafka.add_partitions(topic, 3)
    kafka.produce(topic, numbered(4, 3, partition=2))
    kafka.create(f"{topic}-more")
    kafka.produce(f"{topic}-more", numbered(7, 2, partition=0))
    assert values(drained(df, tmp_path / "q")) == texts(4, 5)


def test_transactions(spark: SparkSession, kafka: KafkaBroker, topic: str, tmp_path: Path) -> None:
    """Marks and aborted messages are gaps in the offsets; an open transaction holds later messages back."""
    from confluent_kafka import Producer

    df = read(spark, kafka, topic, max_rows=5)
    producer = Producer({"bootstrap.servers": kafka.servers, "transactional.id": topic})
    producer.init_transactions(60)
    for number, commits in enumerate([True, False, True, False]):
        producer.begin_transaction()
        for one in range(3):
            producer.produce(topic, f"{number * 3 + one:05d}", "k", one % 2)
        producer.flush(60)
        if commits:
            producer.commit_transaction(60)
        else:
            producer.abort_transaction(60)
    assert values(drained(df, tmp_path / "q")) == [*texts(0, 3), *texts(6, 3)]
    producer.begin_transaction()
    producer.produce(topic, "00100", "k", 0)
    producer.flush(60)
    kafka.produce(topic, numbered(200, 1, partition=0))
    assert drained(df, tmp_path / "q") == []
    producer.commit_transaction(60)
    assert values(drained(df, tmp_path / "q")) == ["00100", "00200"]
    dirty = read(spark, kafka, topic, options={"isolation.level": "read_uncommitted"})
    assert values(drained(dirty, tmp_path / "dirty")) == [*texts(0, 12), "00100", "00200"]


def test_offsets_that_are_gone(spark: SparkSession, kafka: KafkaBroker, topic: str, tmp_path: Path) -> None:
    """Retention deletes messages that were not read; then the topic is deleted and made anew."""
    kafka.produce(topic, numbered(0, 4))
    strict, loose = read(spark, kafka, topic), read(spark, kafka, topic, fail_on_data_loss=False)
    for df, name in ((strict, "strict"), (loose, "loose")):
        assert values(drained(df, tmp_path / name)) == texts(0, 4)
    kafka.produce(topic, numbered(4, 10))
    kafka.delete_before(topic, 0, 5)
    with pytest.raises(
        JobError, match="partition 0 of .* begins at offset 5 now, and offset 2 was to be read"
    ):
        drained(strict, tmp_path / "strict")
    there = [text for text in texts(4, 10) if text not in ("00004", "00006", "00008")]
    assert values(drained(loose, tmp_path / "loose")) == there
    kafka.delete(topic)
    with pytest.raises(JobError, match="there is no topic"):
        drained(loose, tmp_path / "loose")
    kafka.create(topic, 2)
    kafka.produce(topic, numbered(50, 4))
    with pytest.raises(JobError, match="ends at offset 2, and was read up to 7"):
        drained(read(spark, kafka, topic), tmp_path / "loose")
    assert values(drained(loose, tmp_path / "loose")) == texts(50, 4)


def test_errors_are_clear_and_bounded(
    spark: SparkSession, kafka: KafkaBroker, topic: str, tmp_path: Path
) -> None:
    with pytest.raises(JobError, match="there is no topic 'nowhere', or this user may not see it"):
        drained(read(spark, kafka, "nowhere"), tmp_path / "0")
    spark.dataSource.register(KafkaSource)
    plain = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": topic, "timeoutMs": "2000"}
    began = time.monotonic()
    with pytest.raises(Exception, match="no broker answered within 2 s.*Connection refused"):
        drained(spark.readStream.format("asyncstate-kafka").options(**plain).load(), tmp_path / "1")
    assert time.monotonic() - began < 60
    with pytest.raises(ConfigurationError, match="No such configuration property"):
        drained(read(spark, kafka, topic, options={"no.such": "x"}), tmp_path / "2")
    wrong: list[dict[str, Any]] = [
        {"starting": "soon"},
        {"starting": dt.datetime(2026, 1, 1)},
        {"max_rows": 0},
        {"options": {"kafka.retries": "1"}},
        {"connector": "mine"},
    ]
    for one in wrong:
        with pytest.raises(ConfigurationError, match="read_kafka: "):
            read(spark, kafka, topic, **one)
    with pytest.raises(ConfigurationError, match="topics is"):
        read(spark, kafka, [])
    with pytest.raises(ConfigurationError, match="Spark's own connector is not there; add its jar"):
        read(spark, kafka, topic, connector="spark")


def test_sasl_and_tls_and_no_secret_is_shown(
    spark: SparkSession,
    kafka: KafkaBroker,
    topic: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    kafka.produce(topic, numbered(0, 2))
    caplog.set_level(logging.DEBUG, logger="asyncstate")  # py4j's own log has every call into the JVM
    shown: list[str] = []
    changes: list[dict[str, str]] = [{}, {"sasl.username": "nobody"}, {"ssl.ca.location": "/none"}]
    for number, more in enumerate(changes):
        options = {**kafka.secure_options(), **more}
        df = read_kafka(
            spark, kafka.secure_servers, topic, starting="earliest", options=options, connector="python"
        )
        df.explain(True)
        shown += [repr(df), str(df.schema)]
        if not more:
            assert values(drained(df, tmp_path / str(number))) == texts(0, 2)
            continue
        with pytest.raises(
            ConfigurationError, match="the brokers refuse the login|ssl.ca.location"
        ) as failed:
            drained(df, tmp_path / str(number))
        shown += [str(failed.value), str(failed.value.__cause__)]
    printed = capfd.readouterr()
    assert "asyncstate-kafka" in printed.out
    assert PASSWORD not in "\n".join([*shown, printed.out, printed.err, caplog.text])


def test_a_broker_that_is_away_and_comes_back(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "broker").mkdir()
    with kafka_broker(tmp_path / "broker") as broker:
        broker.create("orders")
        broker.produce("orders", numbered(0, 5, partition=0))
        spark.dataSource.register(KafkaSource)
        options = {"kafka.bootstrap.servers": broker.servers, "subscribe": "orders", "timeoutMs": "3000"}
        reader = spark.readStream.format("asyncstate-kafka").options(startingOffsets="earliest", **options)
        assert values(drained(reader.load(), tmp_path / "q")) == texts(0, 5)
        broker.kill()
        with pytest.raises(Exception, match="no broker answered within 3 s"):
            drained(reader.load(), tmp_path / "q")
        broker.start()
        broker.produce("orders", numbered(5, 5, partition=0))
        assert values(drained(reader.load(), tmp_path / "q")) == texts(5, 5)
