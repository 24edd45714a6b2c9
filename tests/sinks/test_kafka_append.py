"""Appending to topics, and Avro and Protobuf in them: written once, read back as they were."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")
pytest.importorskip("fastavro")
pytest.importorskip("confluent_kafka.schema_registry")

from asyncstate.changelog import INSERT_ONLY, RETRACT, Changelog
from asyncstate.errors import ConfigurationError, SchemaError, StoreError
from asyncstate.spark.kafka import SchemaRegistry
from asyncstate.spark.kafka.registry import Decoder
from asyncstate.spark.sinks import (
    AppendSink,
    AvroMessages,
    KafkaAppendTarget,
    KafkaTarget,
    MessageEncoding,
    ProtobufMessages,
    TargetChanges,
)
from tests.servers.kafka import KafkaBroker
from tests.servers.registry import FakeRegistry, fake_registry
from tests.sinks.conftest import NUMBERS

pytestmark = pytest.mark.long

MOMENT = dt.datetime(2026, 3, 1, 12, 30, 0, 5, tzinfo=dt.UTC)
ROW = {
    "id": 2**60,
    "small": -3,
    "name": "Ä",
    "total": Decimal("-12.50"),
    "at": MOMENT,
    "day": dt.date(2026, 3, 1),
    "ratio": 0.5,
    "is_new": True,
    "raw": b"\0\xff",
    "tags": ["a", "b"],
}
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("small", pa.int16()),
        ("name", pa.string()),
        ("total", pa.decimal128(10, 2)),
        ("at", pa.timestamp("us", "Europe/Zurich")),
        ("day", pa.date32()),
        ("ratio", pa.float64()),
        ("is_new", pa.bool_()),
        ("raw", pa.binary()),
        ("tags", pa.list_(pa.string())),
    ]
)
NULLS = {**dict.fromkeys(ROW), "id": 1, "tags": []}
READ = {**ROW, "total": "-12.50", "at": "2026-03-01T12:30:00.000005Z", "day": "2026-03-01", "raw": "AP8="}


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with fake_registry() as running:
        yield running


def encoding(kind: type[Any], registry: FakeRegistry) -> MessageEncoding:
    made: MessageEncoding = kind(SchemaRegistry(registry.url, registry.options))
    return made


def table(*rows: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), SCHEMA)


def test_rows_are_appended_once(kafka: KafkaBroker) -> None:
    topic = kafka.create(f"append-{next(NUMBERS)}", 2)
    target = KafkaAppendTarget(kafka.servers, topic)
    rows = pa.table({"id": [1, 2, 1], "name": ["a", None, "c"]})
    target.check_append(rows.schema)
    assert target.append("w", 0, rows)
    assert not target.append("w", 0, rows)
    assert target.append("w", 1, rows.slice(0, 1))
    assert target.append("other", 0, rows.slice(1, 1))
    found = sorted(message.value().decode() for message in kafka.consume(topic))
    one, two, three = '{"id":1,"name":"a"}', '{"id":2,"name":null}', '{"id":1,"name":"c"}'
    assert found == sorted([one, two, three, one, two])
    assert {message.key() for message in kafka.consume(topic)} == {None}


def test_keys_keep_the_order_of_their_rows(kafka: KafkaBroker) -> None:
    topic = kafka.create(f"append-{next(NUMBERS)}", 3, cleanup_policy="compact")
    rows = pa.table({"id": [n % 5 for n in range(50)], "n": list(range(50))})
    with pytest.raises(SchemaError, match="is compacted .*needs? keys|is compacted .*give keys="):
        KafkaAppendTarget(kafka.servers, topic).check_append(rows.schema)
    with pytest.raises(SchemaError, match="key column 'nope' is not one of the rows' columns"):
        KafkaAppendTarget(kafka.servers, topic, keys="nope").check_append(rows.schema)
    target = KafkaAppendTarget(kafka.servers, topic, keys=["id"])
    target.check_append(rows.schema)
    assert target.append("w", 0, rows)
    seen: dict[bytes, list[int]] = {}
    for message in kafka.consume(topic):
        seen.setdefault(message.key(), []).append(json.loads(message.value())["n"])
    assert seen == {f'{{"id":{key}}}'.encode(): list(range(key, 50, 5)) for key in range(5)}
    with pytest.raises(SchemaError, match="does not exist"):
        KafkaAppendTarget(kafka.servers, "nowhere").check_append(rows.schema)


def test_avro_is_read_back(kafka: KafkaBroker, registry: FakeRegistry) -> None:
    assert written_and_read(kafka, registry, AvroMessages) == [{**READ}, NULLS]


def test_protobuf_is_read_back(kafka: KafkaBroker, registry: FakeRegistry) -> None:
    """Texts of what has no number in JSON's form of Protobuf; what is null is not there."""
    assert written_and_read(kafka, registry, ProtobufMessages) == [
        {**READ, "id": str(2**60)},
        {"id": "1", "tags": []},
    ]


def test_nested_names_do_not_collide(registry: FakeRegistry) -> None:
    """The struct of column a_b, and that of field b of column a."""
    inner = pa.struct([("n", pa.int64())])
    schema = pa.schema([("a", pa.struct([("b", inner)])), ("a_b", inner)])
    value = {"a": {"b": {"n": 1}}, "a_b": {"n": 2}}
    encode = encoding(AvroMessages, registry).encoders("t", schema, schema).value
    decoder = Decoder(SchemaRegistry(registry.url, registry.options))
    assert json.loads(decoder.text_or_reason(encode(value))[0] or "") == value


@pytest.mark.parametrize(("value", "what"), [(["a", None], "has a null"), (None, "is null")])
def test_protobuf_has_no_null_in_place_of_a_list(registry: FakeRegistry, value: Any, what: str) -> None:
    schema = pa.schema([("tags", pa.list_(pa.string())), ("n", pa.int64())])
    encode = encoding(ProtobufMessages, registry).encoders("t", schema, schema).value
    assert encode({"tags": [], "n": None}) != encode({"tags": ["a"], "n": None})
    with pytest.raises(SchemaError, match=f"a list in column 'tags' {what}, which Protobuf cannot represent"):
        encode({"tags": value, "n": 1})


def written_and_read(kafka: KafkaBroker, registry: FakeRegistry, kind: type[Any]) -> list[Any]:
    topic = kafka.create(f"append-{next(NUMBERS)}")
    target = KafkaAppendTarget(kafka.servers, topic, encoding=encoding(kind, registry))
    target.check_append(SCHEMA)
    assert not registry.asked
    assert target.append("w", 0, table(ROW))
    assert target.append("w", 1, table(NULLS))
    assert set(registry.subjects) == {f"{topic}-value"}
    decoder = Decoder(SchemaRegistry(registry.url, registry.options))
    found = [decoder.text_or_reason(message.value()) for message in kafka.consume(topic)]
    assert [reason for _, reason in found] == [None, None]
    return [json.loads(text or "") for text, _ in found]


@pytest.mark.parametrize("kind", [AvroMessages, ProtobufMessages])
def test_upserts_in_them(kafka: KafkaBroker, registry: FakeRegistry, kind: type[Any]) -> None:
    topic = kafka.create(f"append-{next(NUMBERS)}", cleanup_policy="compact")
    target = KafkaTarget(kafka.servers, topic, encoding=encoding(kind, registry))
    target.check(SCHEMA, ("id",))
    assert target.write("w", 0, TargetChanges(table(ROW), table().select(["id"]), ("id",)))
    gone = pa.table({"id": pa.array([2**60], pa.int64())})
    assert target.write("w", 1, TargetChanges(table(), gone, ("id",)))
    first, second = kafka.consume(topic)
    assert first.key() == second.key()
    assert second.value() is None
    decoder = Decoder(SchemaRegistry(registry.url, registry.options))
    key, _ = decoder.text_or_reason(first.key())
    assert int(json.loads(key or "")["id"]) == 2**60


def test_types_and_names_that_have_no_form_are_refused(kafka: KafkaBroker, registry: FakeRegistry) -> None:
    avro, proto = encoding(AvroMessages, registry), encoding(ProtobufMessages, registry)
    cases: list[tuple[MessageEncoding, pa.DataType, str]] = [
        (avro, pa.duration("us"), "which Avro cannot represent"),
        (avro, pa.map_(pa.int64(), pa.string()), "which Avro cannot represent"),
        (proto, pa.struct([("a", pa.int64())]), "Protobuf cannot represent it"),
        (proto, pa.timestamp("us"), "Protobuf cannot represent it"),
    ]
    for one, kind, message in cases:
        with pytest.raises(SchemaError, match=f"'?.*v'.*{message}"):
            one.check("topic", pa.schema([("v", kind)]))
    for one in (avro, proto):
        with pytest.raises(SchemaError, match="column 'a b' is no name in"):
            one.check("topic", pa.schema([("a b", pa.int64())]))
    topic = kafka.create(f"append-{next(NUMBERS)}")
    rows = pa.table({"v": pa.array([["a", None]], pa.list_(pa.string()))})
    with pytest.raises(SchemaError, match="a list in column 'v' has a null"):
        KafkaAppendTarget(kafka.servers, topic, encoding=proto).append("w", 0, rows)
    registry.status = 409
    fresh = KafkaAppendTarget(kafka.servers, topic, encoding=encoding(AvroMessages, registry))
    with pytest.raises(StoreError, match="does not take the schema of .*as planned"):
        fresh.append("w", 0, rows)
    assert kafka.consume(topic) == []


def test_changes_are_appended_as_changes_or_not_at_all() -> None:
    target = KafkaAppendTarget("127.0.0.1:1", "t")
    AppendSink(target).check_changes(INSERT_ONLY)
    for changes in (RETRACT, Changelog.upsert("k")):
        with pytest.raises(SchemaError, match="the rows are changes"):
            AppendSink(target).check_changes(changes)
        AppendSink(target, changes=True).check_changes(changes)
    with pytest.raises(ConfigurationError, match="cannot append"):
        AppendSink(object())  # type: ignore[arg-type]
