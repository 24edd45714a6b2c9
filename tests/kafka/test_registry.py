"""Avro, Protobuf and JSON with a schema registry: what is decoded, what is malformed, what is an error."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("fastavro")
pytest.importorskip("confluent_kafka.schema_registry")

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

from asyncstate.errors import ConfigurationError, StoreError
from asyncstate.spark.kafka.registry import Decoder, SchemaRegistry
from tests.kafka.messages import ORDER, avro, proto_file
from tests.servers.registry import PASSWORD, FakeRegistry

MOMENT = dt.datetime(2026, 3, 1, 12, 30, tzinfo=dt.UTC)


FLOAT = {"type": "record", "name": "F", "fields": [{"name": "f", "type": "double"}]}


def decoder(registry: FakeRegistry) -> Decoder:
    return Decoder(SchemaRegistry(registry.url, registry.options))


def decoded(registry: FakeRegistry, message: bytes) -> Any:
    text, reason = decoder(registry).text_or_reason(message)
    assert reason is None
    assert text is not None
    return json.loads(text)


def test_avro(registry: FakeRegistry) -> None:
    number = registry.add("orders-value", ORDER)
    value = {"id": 2**60, "name": None, "total": Decimal("-12.50"), "at": MOMENT}
    expected = {"id": 2**60, "name": None, "total": "-12.50", "at": "2026-03-01T12:30:00Z"}
    one = decoder(registry)
    message = avro(number, ORDER, value)
    for _ in range(3):
        text, reason = one.text_or_reason(message)
        assert (json.loads(text or ""), reason) == (expected, None)
    assert len(registry.asked) == 1
    assert one.text_or_reason(None) == (None, None)


def test_avro_floats_bytes_and_nested_values(registry: FakeRegistry) -> None:
    fields = [
        {"name": "f", "type": {"type": "array", "items": "double"}},
        {"name": "b", "type": "bytes"},
        {"name": "m", "type": {"type": "map", "values": "float"}},
        {"name": "d", "type": {"type": "int", "logicalType": "date"}},
    ]
    schema = {"type": "record", "name": "R", "fields": fields}
    value = {
        "f": [1.5, float("nan"), float("-inf")],
        "b": b"\0x",
        "m": {"k": float("inf")},
        "d": dt.date(2026, 3, 1),
    }
    found = decoded(registry, avro(registry.add("r", schema), schema, value))
    assert found == {"f": [1.5, "NaN", "-Infinity"], "b": "AHg=", "m": {"k": "Infinity"}, "d": "2026-03-01"}


def test_avro_schemas_that_refer_to_others(registry: FakeRegistry) -> None:
    city = {"type": "record", "name": "shop.City", "fields": [{"name": "name", "type": "string"}]}
    buyer = {"type": "record", "name": "shop.Buyer", "fields": [{"name": "city", "type": "shop.City"}]}
    order = {"type": "record", "name": "shop.Order", "fields": [{"name": "buyer", "type": "shop.Buyer"}]}
    registry.add("city", city)
    registry.add("buyer", buyer, references=[{"name": "shop.City", "subject": "city", "version": 1}])
    number = registry.add(
        "order", order, references=[{"name": "shop.Buyer", "subject": "buyer", "version": 1}]
    )
    import fastavro

    named: dict[str, Any] = {}
    for other in (city, buyer):
        fastavro.parse_schema(other, named_schemas=named)
    value = {"buyer": {"city": {"name": "Bern"}}}
    assert decoded(registry, avro(number, order, value, named)) == value


def protobuf_schema(registry: FakeRegistry) -> tuple[int, Any]:
    """Outer.Inner of a file that imports another one and one of Protobuf's own."""
    text, message = (
        descriptor_pb2.FieldDescriptorProto.TYPE_STRING,
        descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE,
    )
    city = descriptor_pb2.FileDescriptorProto(package="shop", syntax="proto3")
    city.message_type.add(name="City").field.add(name="name", number=1, type=text, label=1)
    registry.add("city", proto_file("city.proto", city), "PROTOBUF")
    order = descriptor_pb2.FileDescriptorProto(package="shop", syntax="proto3")
    order.dependency.extend(["city.proto", "google/protobuf/timestamp.proto"])
    outer = order.message_type.add(name="Outer")
    outer.nested_type.add(name="Other")
    inner = outer.nested_type.add(name="Inner")
    inner.field.add(name="id", number=1, type=descriptor_pb2.FieldDescriptorProto.TYPE_INT64, label=1)
    inner.field.add(name="city", number=2, type=message, type_name=".shop.City", label=1)
    inner.field.add(name="at", number=3, type=message, type_name=".google.protobuf.Timestamp", label=1)
    inner.field.add(name="some_text", number=4, type=text, label=1)
    references = [{"name": "city.proto", "subject": "city", "version": 1}]
    number = registry.add("order", proto_file("order.proto", order), "PROTOBUF", references)
    pool = descriptor_pool.DescriptorPool()
    known = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(known)
    for file in (known, city, order):
        pool.Add(file)
    return number, message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Outer.Inner"))


def test_protobuf(registry: FakeRegistry) -> None:
    number, kind = protobuf_schema(registry)
    value = kind(id=2**60, city={"name": "Bern"}, at={"seconds": int(MOMENT.timestamp())})
    head = b"\0" + number.to_bytes(4, "big")
    path = bytes([4, 0, 2])  # zigzag: two steps, the first type and in it the second one
    found = decoded(registry, head + path + value.SerializeToString())
    city = {"name": "Bern"}
    assert found == {"id": str(2**60), "city": city, "at": "2026-03-01T12:30:00Z", "some_text": ""}


def test_protobuf_with_files_that_every_registry_knows(registry: FakeRegistry) -> None:
    """Converters of Connect write decimals so, and refer to no schema for them."""
    from confluent_kafka.schema_registry.confluent.type import decimal_pb2

    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(package="shop", syntax="proto3")
    file.dependency.extend(["confluent/meta.proto", "confluent/type/decimal.proto"])
    order = file.message_type.add(name="Order")
    order.field.add(
        name="total", number=1, type=field.TYPE_MESSAGE, type_name=".confluent.type.Decimal", label=1
    )
    number = registry.add("order", proto_file("order.proto", file), "PROTOBUF")
    total = decimal_pb2.Decimal(value=b"\x04\xe2", precision=10, scale=2).SerializeToString()
    message = b"\0" + number.to_bytes(4, "big") + b"\0" + b"\x0a" + bytes([len(total)]) + total
    assert decoded(registry, message) == {"total": {"value": "BOI=", "precision": 10, "scale": 2}}


def test_json_with_a_schema(registry: FakeRegistry) -> None:
    number = registry.add("r", {"type": "object"}, "JSON")
    assert decoded(registry, b"\0" + number.to_bytes(4, "big") + b'{"a": 1}') == {"a": 1}


def test_what_does_not_fit_has_a_reason(registry: FakeRegistry) -> None:
    number = registry.add("orders-value", ORDER)
    good = avro(number, ORDER, {"id": 1, "name": "x", "total": Decimal(1), "at": MOMENT})
    broken = registry.add("broken", '{"type": "nothing"}')
    strange = registry.add("strange", "{}", "THRIFT")
    cases = [
        (b"", "does not begin with a zero byte"),
        (b'{"id": 1}', "does not begin with a zero byte"),
        (good[:-1], f"does not fit schema {number}: "),
        (good + b"x", f"does not fit schema {number}: ValueError: 1 bytes follow"),
        (b"\0\0\0\0\x63abc", f"schema 99 is not in the registry at {registry.url}"),
        (b"\0" + broken.to_bytes(4, "big"), f"schema {broken} (AVRO) cannot be read"),
        (b"\0" + strange.to_bytes(4, "big"), f"schema {strange} is of type THRIFT"),
    ]
    head = protobuf_schema(registry)[0].to_bytes(4, "big")
    cases.append((b"\0" + head + bytes([2, 1]), "the path of the message's type has -1"))
    one = decoder(registry)
    for message, expected in cases:
        text, reason = one.text_or_reason(message)
        assert text is None
        assert expected in (reason or "")


def test_decimals_that_were_declared_as_bytes_are_not_read_as_such(registry: FakeRegistry) -> None:
    """Debezium's precise mode: bytes in JSON, but texts once Avro is read. The text "1250" is valid base64."""
    total = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 0}
    schema = {"type": "record", "name": "R", "fields": [{"name": "total", "type": total}]}
    message = avro(registry.add("r", schema), schema, {"total": Decimal(1250)})
    given = SchemaRegistry(registry.url, registry.options)
    assert Decoder(given).text_or_reason(message) == ('{"total":"1250"}', None)
    reason = "schema 1 has decimals of Avro, which become texts; give decimals='text'"
    assert Decoder(given, no_decimals=True).text_or_reason(message) == (None, reason)
    plain = avro(registry.add("f", FLOAT), FLOAT, {"f": 1.5})
    assert Decoder(given, no_decimals=True).text_or_reason(plain) == ('{"f":1.5}', None)


def test_a_registry_that_does_not_answer_is_an_error(registry: FakeRegistry) -> None:
    message = avro(registry.add("r", ORDER), ORDER, {"id": 1, "name": "x", "total": Decimal(1), "at": MOMENT})
    registry.status = 503
    one = decoder(registry)
    with pytest.raises(StoreError, match=f"the schema registry at {registry.url} answers 503"):
        one.text_or_reason(message)
    registry.status = 0
    assert one.text_or_reason(message)[1] is None
    wrong = Decoder(
        SchemaRegistry(registry.url, {**registry.options, "basic.auth.user.info": f"me:{PASSWORD}"})
    )
    with pytest.raises(StoreError, match="answers 401") as refused:
        wrong.text_or_reason(message)
    nowhere = Decoder(SchemaRegistry("http://me:hush-hush@127.0.0.1:1", {"max.retries": 0}))
    with pytest.raises(StoreError, match="at http://127.0.0.1:1 does not answer") as away:
        nowhere.text_or_reason(message)
    assert PASSWORD not in str(refused.value)
    assert "hush" not in str(away.value)


def test_a_schema_that_comes_later_is_found(registry: FakeRegistry) -> None:
    """A registry may get it from another one; until then each task asks once."""
    message = avro(1, ORDER, {"id": 1, "name": "x", "total": Decimal(1), "at": MOMENT})
    one = decoder(registry)
    for _ in range(3):
        assert "is not in the registry" in (one.text_or_reason(message)[1] or "")
    assert len(registry.asked) == 1
    registry.add("r", ORDER)
    one.forget_reasons()
    assert one.text_or_reason(message)[1] is None


def test_what_is_no_registry_is_an_error(registry: FakeRegistry) -> None:
    """A wrong path answers 404 too; its messages must not count as malformed, which may be dropped."""
    message = avro(registry.add("r", ORDER), ORDER, {"id": 1, "name": "x", "total": Decimal(1), "at": MOMENT})
    registry.status = 404
    with pytest.raises(StoreError, match="answers 404: as planned; check its address and rights"):
        decoder(registry).text_or_reason(message)


def test_a_registry_shows_no_secret(registry: FakeRegistry) -> None:
    one = SchemaRegistry("https://me:hush-hush@registry:8081", {"basic.auth.user.info": "me:hush-hush"})
    assert repr(one) == "SchemaRegistry('https://registry:8081')"
    assert one.redacted("refused me:hush-hush, with hush-hush") == "refused *****, with *****"
    with pytest.raises(ConfigurationError, match="does not begin with http"):
        SchemaRegistry("registry:8081")
    with pytest.raises(ConfigurationError, match="SchemaRegistry") as unknown:
        SchemaRegistry(registry.url, {"no.such": 1, "basic.auth.user.info": "me:hush-hush"}).client()
    assert "hush" not in str(unknown.value)
