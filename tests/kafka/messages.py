"""Messages as programs with a schema registry write them."""

from __future__ import annotations

import base64
import io
from typing import Any

import fastavro
from google.protobuf import descriptor_pb2

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": ["null", "string"]},
        {"name": "total", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}


def avro(number: int, schema: Any, value: Any, named: dict[str, Any] | None = None) -> bytes:
    """A message in the registry's wire format."""
    stream = io.BytesIO()
    parsed = fastavro.parse_schema(schema, named_schemas={} if named is None else named)
    fastavro.schemaless_writer(stream, parsed, value)
    return b"\0" + number.to_bytes(4, "big") + stream.getvalue()


def proto_file(name: str, text: descriptor_pb2.FileDescriptorProto) -> str:
    """A file's schema as the registry answers it with ``format=serialized``."""
    text.name = name
    return base64.b64encode(text.SerializeToString()).decode()
