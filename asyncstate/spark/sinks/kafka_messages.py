"""The bytes of Kafka's messages: JSON, or Avro and Protobuf whose schemas are registered.

Owns: ``JsonMessages``, ``AvroMessages``, ``ProtobufMessages``.
Invariant: a type either keeps each of its values or is refused before a row is written.
Must not import pyspark.

Source: Confluent's wire format; Avro 1.12; Protobuf's language guide (proto3).
"""

from __future__ import annotations

import datetime as dt
import io
import json
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import msgspec
import pyarrow as pa
import pyarrow.types as kinds

from asyncstate.errors import SchemaError, StoreError
from asyncstate.spark.sinks.column_checks import is_bytes, is_list, is_text, no_json
from asyncstate.spark.sinks.target import extra

if TYPE_CHECKING:
    from asyncstate.spark.kafka import SchemaRegistry

Encode = Callable[[Mapping[str, Any]], bytes]
"""From a row, or the key of one, to bytes."""

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MAGIC: Final = b"\0"


class Encoders(NamedTuple):
    """How keys and values are written."""

    key: Encode
    value: Encode


class MessageEncoding(Protocol):
    """A form of messages."""

    def check(self, place: str, schema: pa.Schema) -> None:
        """Raise SchemaError for columns that this form has nothing for."""

    def encoders(self, topic: str, key: pa.Schema, value: pa.Schema) -> Encoders:
        """How rows of these schemas are written into ``topic``. Raises StoreError if a registry refuses them."""


class JsonMessages:
    """JSON objects, without a schema."""

    def check(self, place: str, schema: pa.Schema) -> None:
        """Raise SchemaError for columns that JSON cannot represent."""
        for field in schema:
            what = "intervals of months" if kinds.is_interval(field.type) else None
            if kinds.is_nested(field.type):
                what = no_json(field.type)
            if what is not None:
                raise SchemaError(
                    f"{place}: column '{field.name}' of type {field.type}: JSON cannot represent {what}; cast "
                    "it before the sink"
                )

    def encoders(self, topic: str, key: pa.Schema, value: pa.Schema) -> Encoders:
        """The same encoder for keys and values; nothing is registered."""
        encode = msgspec.json.Encoder().encode
        return Encoders(encode, encode)


def _no_key(row: Mapping[str, Any]) -> bytes:
    raise AssertionError("messages without keys have no bytes for them")


class _Registered:
    """Messages whose schemas are registered as ``<topic>-key`` and ``<topic>-value`` when they are first written."""

    _kind = ""

    def __init__(self, registry: SchemaRegistry) -> None:
        self._registry = registry
        self._known: dict[tuple[str, str], int] = {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._registry!r})"

    def encoders(self, topic: str, key: pa.Schema, value: pa.Schema) -> Encoders:
        """Register both schemas, or that of the values alone where there are no keys. Raises StoreError if the registry
        refuses one."""
        keys = self._encoder(topic, "key", key) if key.names else _no_key
        return Encoders(keys, self._encoder(topic, "value", value))

    def _encoder(self, topic: str, part: str, schema: pa.Schema) -> Encode:
        raise NotImplementedError

    def _head(self, subject: str, text: str) -> bytes:
        """Register the schema; returns the head of its messages."""
        found = self._known.get((subject, text))
        if found is None:
            with extra("kafka", type(self).__name__):
                from confluent_kafka.schema_registry import Schema
            try:
                found = self._registry.client().register_schema(subject, Schema(text, self._kind))
            except Exception as error:  # of the HTTP library too, which is none of ours
                raise StoreError(
                    self._registry.redacted(
                        f"the schema registry at {self._registry.place} does not take the schema of '{subject}': "
                        f"{error}; if it refuses a change, see its rule of compatibility. Nothing was written"
                    )
                ) from None
            self._known[subject, text] = found
        return _MAGIC + found.to_bytes(4, "big")


class AvroMessages(_Registered):
    """Avro, with schemas made of the columns: each may be null. ``registry``: where they are registered."""

    _kind = "AVRO"

    def check(self, place: str, schema: pa.Schema) -> None:
        """Raise SchemaError for columns that Avro cannot represent."""
        _avro_record(place, "Row", schema)

    def _encoder(self, topic: str, part: str, schema: pa.Schema) -> Encode:
        with extra("kafka", "AvroMessages"):
            import fastavro

        record = _avro_record(f"Kafka topic {topic}", part.capitalize(), schema)
        head = self._head(f"{topic}-{part}", json.dumps(record))
        parsed = fastavro.parse_schema(record)

        def encode(row: Mapping[str, Any]) -> bytes:
            stream = io.BytesIO()
            stream.write(head)
            fastavro.schemaless_writer(stream, parsed, row)
            return stream.getvalue()

        return encode


def _avro_record(place: str, name: str, schema: pa.Schema | pa.StructType) -> dict[str, Any]:
    fields = []
    for field in schema:
        if not _NAME.fullmatch(field.name):
            raise SchemaError(
                f"{place}: column '{field.name}' is no name in Avro (letters, digits, _); rename it before the sink"
            )
        kind = _avro_type(place, f"{name}.{field.name}", field.type)  # no column's name has a dot
        fields.append({"name": field.name, "type": ["null", kind], "default": None})
    return {"type": "record", "name": name, "fields": fields}


_AVRO: Final[list[tuple[Callable[[pa.DataType], bool], Any]]] = [
    (kinds.is_boolean, "boolean"),
    (lambda kind: bool(kinds.is_integer(kind)) and kind.bit_width < 64 and kind != pa.uint32(), "int"),
    (lambda kind: kind in (pa.int64(), pa.uint32()), "long"),
    (kinds.is_float32, "float"),
    (kinds.is_float64, "double"),
    (is_text, "string"),
    (is_bytes, "bytes"),
    (kinds.is_date32, {"type": "int", "logicalType": "date"}),
]


def _avro_type(place: str, name: str, kind: pa.DataType) -> Any:
    for matches, found in _AVRO:
        if matches(kind):
            return found
    if kinds.is_decimal(kind) and kind.scale >= 0:
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    if kinds.is_timestamp(kind) and kind.unit in ("s", "ms", "us"):
        return {"type": "long", "logicalType": "timestamp-micros" if kind.tz else "local-timestamp-micros"}
    if is_list(kind):
        return {"type": "array", "items": ["null", _avro_type(place, name, kind.value_type)]}
    if kinds.is_map(kind) and is_text(kind.key_type):
        return {"type": "map", "values": ["null", _avro_type(place, name, kind.item_type)]}
    if kinds.is_struct(kind):
        return _avro_record(place, name, pa.schema(list(kind)))
    raise SchemaError(
        f"{place}: '{name}' is of type {kind}, which Avro cannot represent; cast it before the sink"
    )


class ProtobufMessages(_Registered):
    """Protobuf (proto3), one message type of the columns in their order; each is ``optional``, lists are ``repeated``.

    Decimals, dates and times of day are texts. ``registry``: where the schemas are registered.
    """

    _kind = "PROTOBUF"

    def check(self, place: str, schema: pa.Schema) -> None:
        """Raise SchemaError for columns that Protobuf cannot represent."""
        _proto_fields(place, schema)

    def _encoder(self, topic: str, part: str, schema: pa.Schema) -> Encode:
        with extra("kafka", "ProtobufMessages"):
            from google.protobuf import descriptor_pool, message_factory

        fields = _proto_fields(f"Kafka topic {topic}", schema)
        name = part.capitalize()
        head = self._head(f"{topic}-{part}", _proto_text(name, fields)) + b"\0"  # the first type of the file
        pool = descriptor_pool.DescriptorPool()
        for file in _proto_files(name, fields):
            pool.Add(file)
        made: Any = message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
        converters = {field.name: field.convert for field in fields}
        repeated = {field.name for field in fields if field.is_list}

        def encode(row: Mapping[str, Any]) -> bytes:
            message = made()
            for column, given in row.items():
                if column in repeated and (given is None or None in given):
                    what = "is null" if given is None else "has a null"
                    raise SchemaError(
                        f"Kafka topic {topic}: a list in column '{column}' {what}, which Protobuf cannot represent; "
                        "replace it before the sink, with an empty list for instance; nothing was written"
                    )
                if given is None:
                    continue
                convert = converters[column]
                if column in repeated:
                    getattr(message, column).extend(map(convert, given))
                elif isinstance(given, dt.datetime):
                    getattr(message, column).FromDatetime(given)
                else:
                    setattr(message, column, convert(given))
            return head + bytes(message.SerializeToString(deterministic=True))

        return encode


class _Field(NamedTuple):
    name: str
    type: str
    is_list: bool
    convert: Callable[[Any], Any]


_TIMESTAMP: Final = "google.protobuf.Timestamp"
_PROTO: Final[list[tuple[Callable[[pa.DataType], bool], str, Callable[[Any], Any]]]] = [
    (kinds.is_boolean, "bool", bool),
    (lambda kind: bool(kinds.is_integer(kind)) and kind.bit_width < 64 and kind != pa.uint32(), "int32", int),
    (lambda kind: kind in (pa.int64(), pa.uint32()), "int64", int),
    (kinds.is_float32, "float", float),
    (kinds.is_float64, "double", float),
    (is_text, "string", str),
    (is_bytes, "bytes", bytes),
    (kinds.is_decimal, "string", lambda value: format(Decimal(value), "f")),
    (kinds.is_date32, "string", str),
    (
        lambda kind: bool(kinds.is_timestamp(kind)) and kind.tz is not None and kind.unit != "ns",
        _TIMESTAMP,
        lambda value: value,
    ),
]


def _proto_fields(place: str, schema: pa.Schema) -> list[_Field]:
    found = []
    for field in schema:
        if not _NAME.fullmatch(field.name):
            raise SchemaError(
                f"{place}: column '{field.name}' is no name in Protobuf (letters, digits, _); rename it before the sink"
            )
        repeated = is_list(field.type)
        inner = field.type.value_type if repeated else field.type
        matched = next(((name, convert) for is_it, name, convert in _PROTO if is_it(inner)), None)
        if matched is None or (repeated and matched[0] == _TIMESTAMP):
            raise SchemaError(
                f"{place}: column '{field.name}' of type {field.type}: Protobuf cannot represent it here; cast it "
                "before the sink, nested values to JSON text"
            )
        found.append(_Field(field.name, matched[0], repeated, matched[1]))
    return found


def _proto_text(name: str, fields: list[_Field]) -> str:
    imports = (
        'import "google/protobuf/timestamp.proto";\n' if any(f.type == _TIMESTAMP for f in fields) else ""
    )
    lines = [
        f"  {'repeated' if field.is_list else 'optional'} {field.type} {field.name} = {number};"
        for number, field in enumerate(fields, 1)
    ]
    return f'syntax = "proto3";\n{imports}\nmessage {name} {{\n' + "\n".join(lines) + "\n}\n"


def _proto_files(name: str, fields: list[_Field]) -> list[Any]:
    from google.protobuf import descriptor_pb2, timestamp_pb2

    kind = descriptor_pb2.FieldDescriptorProto
    times = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(times)
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{name}.proto", syntax="proto3", dependency=["google/protobuf/timestamp.proto"]
    )
    message = file.message_type.add(name=name)
    for number, field in enumerate(fields, 1):
        one = message.field.add(name=field.name, number=number)
        one.label = kind.LABEL_REPEATED if field.is_list else kind.LABEL_OPTIONAL
        if field.type == _TIMESTAMP:
            one.type, one.type_name = kind.TYPE_MESSAGE, f".{_TIMESTAMP}"
        else:
            one.type = kind.Type.Value(f"TYPE_{field.type.upper()}")
        if not field.is_list:
            one.proto3_optional = True
            one.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{field.name}")
    return [times, file]
