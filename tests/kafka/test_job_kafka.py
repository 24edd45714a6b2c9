"""Jobs that read topics: formats, dead letters, watermarks, schemas that change while the job runs."""

from __future__ import annotations

import datetime as dt
import itertools
import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("fastavro")
pytest.importorskip("confluent_kafka.schema_registry")

from pyspark.sql import DataFrame, SparkSession

from asyncstate.errors import ConfigurationError, JobError, SchemaError
from asyncstate.spark import StreamingJob
from asyncstate.spark.kafka import Debezium, Json, SchemaRegistry
from asyncstate.spark.spark_executor import SparkExecutor
from operators import ChangelogNormalize, GroupAggregate, count, sum_
from tests.kafka.messages import ORDER, avro
from tests.servers.kafka import KafkaBroker
from tests.servers.registry import FakeRegistry

pytestmark = [
    pytest.mark.spark,
    pytest.mark.since_spark("4.0", "Python data sources"),
    pytest.mark.long,
    pytest.mark.timeout(300),
]

MakeJob = Callable[..., StreamingJob]
NUMBERS = itertools.count()
MOMENT = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)


class Table:
    """A sink that keeps the last row of each key."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.rows: dict[Any, tuple[Any, ...]] = {}

    def write(self, df: DataFrame, batch_id: int) -> None:
        for row in df.collect():
            given = row.asDict()
            kind = given.pop("row_kind", "+I")
            key = given.pop(self.key)
            if kind in ("-U", "-D"):
                self.rows.pop(key, None)
        for row in df.collect():
            given = row.asDict()
            kind, key = given.pop("row_kind", "+I"), given.pop(self.key)
            if kind in ("+I", "+U"):
                self.rows[key] = tuple(given.values())


def run(job: StreamingJob) -> None:
    job.await_termination(job.start(trigger="availableNow"))


def test_json_with_dead_letters_and_a_watermark(
    spark: SparkSession,
    kafka: KafkaBroker,
    make_job: MakeJob,
    async_enabled: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def again(*given: Any) -> None:
        raise AssertionError("the topic is read once more for its event times")

    monkeypatch.setattr(SparkExecutor, "highest", again)
    topic = kafka.create(f"job-{next(NUMBERS)}", 2)
    totals, dead, counted = Table("k"), Table("value"), Table("partition")

    def declared() -> StreamingJob:
        job = make_job(**{"async-state.enabled": async_enabled})
        orders = job.kafka(
            "orders",
            kafka.servers,
            topic,
            Json("k bigint not null, v decimal(10, 2), at timestamp", keep=["partition"]),
            malformed="output",
            starting="earliest",
            event_time="at",
            watermark_delay="10 seconds",
        )
        sums = [count().alias("n"), sum_("v").alias("total")]
        orders.apply(GroupAggregate(sums), key="k", uid="totals").to(totals, name="totals")
        orders.output("malformed").select("value", "partition", "malformed").to(dead, name="dead")
        bad = orders.output("malformed").apply(
            GroupAggregate([count().alias("n")]), key="partition", uid="bad"
        )
        bad.to(counted, name="counted")  # these rows have no column "at"
        with pytest.raises(JobError, match="has no side output 'other'"):
            orders.output("other")
        return job

    def message(k: object, v: object, second: int) -> tuple[Any, ...]:
        at = (MOMENT + dt.timedelta(seconds=second)).isoformat()
        return (b"x", json.dumps({"k": k, "v": v, "at": at, "more": 1}), second % 2)

    kafka.produce(topic, [message(1, "1.50", 0), message(2, 2, 1), message(1, "3.25", 30), (b"x", None, 0)])
    bad = ['{"k": 1', '{"v": 1}', '{"k": "one", "at": "2030-01-01T00:00:00Z"}', '{"k": 1} {"k": 2}']
    kafka.produce(topic, [(b"x", text, 1) for text in bad])
    job = declared()
    run(job)
    assert totals.rows == {1: (2, Decimal("4.75")), 2: (1, Decimal("2.00"))}
    assert {bytes(value).decode() for value in dead.rows} == set(bad)
    assert counted.rows == {1: (4,)}
    reasons = {bytes(value).decode(): reason for value, (_, reason) in dead.rows.items()}
    assert reasons['{"v": 1}'] == "column 'k' has no value"
    assert reasons['{"k": "one", "at": "2030-01-01T00:00:00Z"}'].startswith(
        "column 'k': 'one' is not of type bigint"
    )
    assert job.last_progress is not None
    expected = int((MOMENT + dt.timedelta(seconds=20)).timestamp() * 1_000_000)
    assert job.last_progress["sources"] == [{"name": "orders", "watermark_us": expected, "idle": False}]
    kafka.produce(topic, [message(2, "0.25", 31)])
    later = declared()
    run(later)
    assert later.last_progress is not None
    later_expected = expected + 1_000_000
    assert later.last_progress["sources"] == [
        {"name": "orders", "watermark_us": later_expected, "idle": False}
    ]
    assert totals.rows == {1: (2, Decimal("4.75")), 2: (2, Decimal("2.25"))}
    assert len(dead.rows) == len(bad)


def test_operators_over_dead_letters(
    spark: SparkSession, kafka: KafkaBroker, make_job: MakeJob, async_enabled: bool
) -> None:
    """They have none of the columns that the source declares as times and order."""
    topic = kafka.create(f"job-{next(NUMBERS)}")
    job, counts = make_job(**{"async-state.enabled": async_enabled}), Table("malformed")
    orders = job.kafka(
        "orders",
        kafka.servers,
        topic,
        Json("k bigint not null, at timestamp, n int"),
        malformed="output",
        starting="earliest",
        event_time="at",
        watermark_delay="10 seconds",
        sequence=["n"],
    )
    orders.to(Table("k"), name="orders")
    dead = orders.output("malformed")
    dead.apply(GroupAggregate([count().alias("n")]), key="malformed", uid="dead").to(counts, name="dead")
    messages = ['{"n": 1}', '{"at": "2026-01-01T00:00:00Z"}', '{"k": 1, "at": "2027-01-01T00:00:00Z"}']
    kafka.produce(topic, [(b"x", text) for text in messages])
    run(job)
    assert counts.rows == {"column 'k' has no value": (2,)}


def test_avro_whose_schema_changes(
    spark: SparkSession, kafka: KafkaBroker, registry: FakeRegistry, make_job: MakeJob
) -> None:
    """A writer adds a field that the job knows, then drops one; another program writes too."""
    topic = kafka.create(f"job-{next(NUMBERS)}")
    known, dead, notes = Table("id"), Table("offset"), Table("note")
    first = registry.add("orders-value", ORDER)
    fields = [*ORDER["fields"], {"name": "note", "type": "string", "default": "-"}]
    wider = {**ORDER, "fields": fields}
    narrower = {**ORDER, "fields": [field for field in fields if field["name"] != "total"]}

    def read() -> None:
        job = make_job()
        given = SchemaRegistry(registry.url, registry.options)
        schema = Json("id bigint not null, name string, total decimal(10, 2), note string")
        rows = job.kafka(
            "orders", kafka.servers, topic, schema, registry=given, malformed="output", starting="earliest"
        )
        rows.to(known, name="known")
        job.sql("SELECT note, count(*) AS n FROM orders GROUP BY note", name="notes").to(notes, name="notes")
        rows.output("malformed").select("offset", "malformed").to(dead, name="dead")
        run(job)

    value = {"id": 1, "name": None, "total": Decimal("1.50"), "at": MOMENT}
    kafka.produce(topic, [(b"k", avro(first, ORDER, value))])
    read()
    second = registry.add("orders-value", wider)
    third = registry.add("orders-value", narrower)
    kafka.produce(
        topic,
        [
            (b"k", avro(second, wider, {**value, "id": 2, "name": "x", "note": "new"})),
            (b"k", avro(third, narrower, {**value, "id": 3, "note": "less"})),
            (b"k", b"plain text"),
        ],
    )
    read()
    assert known.rows == {
        1: (None, Decimal("1.50"), None),
        2: ("x", Decimal("1.50"), "new"),
        3: (None, None, "less"),
    }
    assert notes.rows == {None: (1,), "new": (1,), "less": (1,)}
    assert list(dead.rows) == [3]
    assert "does not begin with a zero byte" in dead.rows[3][0]


def test_debezium_in_avro(
    spark: SparkSession, kafka: KafkaBroker, registry: FakeRegistry, make_job: MakeJob, async_enabled: bool
) -> None:
    topic = kafka.create(f"job-{next(NUMBERS)}")
    amount = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}
    row = {
        "type": "record",
        "name": "Value",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "amount", "type": ["null", amount]},
            {"name": "placed", "type": {"type": "long", "connect.name": "io.debezium.time.MicroTimestamp"}},
        ],
    }
    place = {"type": "record", "name": "Source", "fields": [{"name": "lsn", "type": ["null", "long"]}]}
    envelope = {
        "type": "record",
        "name": "Envelope",
        "fields": [
            {"name": "before", "type": ["null", row]},
            {"name": "after", "type": ["null", "Value"]},
            {"name": "source", "type": place},
            {"name": "op", "type": "string"},
        ],
    }
    number = registry.add("shop-value", envelope)

    def event(op: str, key: int, cents: int | None, lsn: int) -> tuple[Any, ...]:
        after = None if cents is None else {"id": key, "amount": Decimal(cents) / 100, "placed": 1_000_000}
        before = {"id": key, "amount": None, "placed": 0} if op == "d" else None
        value = {"before": before, "after": after, "source": {"lsn": lsn}, "op": op}
        return (b"k", avro(number, envelope, value))

    kafka.produce(
        topic, [event("r", 1, 150, 1), event("c", 2, 200, 2), event("u", 1, 175, 3), event("d", 2, None, 4)]
    )
    job, found = make_job(**{"async-state.enabled": async_enabled}), Table("id")
    schema = "id bigint not null, amount decimal(10, 2), placed timestamp"
    changes = Debezium(schema, upsert_key="id", connector="postgresql", decimals="text", timestamps="us")
    orders = job.kafka(
        "orders",
        kafka.servers,
        topic,
        changes,
        registry=SchemaRegistry(registry.url, registry.options),
        malformed="output",
        starting="earliest",
        sequence=["source_phase", "source_lsn"],
        drop_stale=True,
    )
    rows = orders.apply(ChangelogNormalize(), key="id", uid="orders")
    rows.select("id", "amount", "placed").to(found, name="found")
    orders.output("malformed").to(Table("offset"), name="dead")
    run(job)
    assert found.rows == {1: (Decimal("1.75"), dt.datetime(1970, 1, 1, 0, 0, 1))}


def test_decimals_of_avro_that_are_declared_as_bytes(
    spark: SparkSession, kafka: KafkaBroker, registry: FakeRegistry, make_job: MakeJob
) -> None:
    topic = kafka.create(f"job-{next(NUMBERS)}")
    total = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 0}
    row = {"type": "record", "name": "Value", "fields": [{"name": "total", "type": total}]}
    fields = [{"name": "after", "type": row}, {"name": "op", "type": "string"}]
    envelope = {"type": "record", "name": "Envelope", "fields": fields}
    number = registry.add("shop-value", envelope)
    kafka.produce(topic, [(b"k", avro(number, envelope, {"after": {"total": Decimal(1250)}, "op": "c"}))])
    job = make_job()
    given, changes = (
        SchemaRegistry(registry.url, registry.options),
        Debezium("total decimal(10)", decimals="base64"),
    )
    orders = job.kafka("orders", kafka.servers, topic, changes, registry=given, starting="earliest")
    orders.to(Table("total"), name="found")
    with pytest.raises(SchemaError, match="has decimals of Avro, which become texts; give decimals='text'"):
        run(job)


def test_what_is_refused(spark: SparkSession, make_job: MakeJob, registry: FakeRegistry) -> None:
    job, servers = make_job(), "127.0.0.1:1"
    given = SchemaRegistry(registry.url, registry.options)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"malformed": "output"}, "say how messages are read; give the format"),
        ({"registry": given}, "say how messages are read; give the format"),
        ({"format": "json"}, "format is 'json'; give Json"),
        ({"format": Json("id bigint"), "malformed": "ignore"}, "none of 'fail', 'drop' and 'output'"),
    ]
    for more, message in wrong:
        with pytest.raises(ConfigurationError, match=message):
            job.kafka("orders", servers, "orders", **more)
    with pytest.raises(SchemaError, match="the schema has no columns"):
        job.kafka("orders", servers, "orders", Json(""))
    assert not registry.asked
