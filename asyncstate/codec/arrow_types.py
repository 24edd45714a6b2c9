"""Supported Arrow types, and their text form in manifests.

Owns: the list of supported key and value types and the grammar of their text form.
Invariant: ``type_from_text(type_to_text(t)) == t`` for every supported type; a written text stays readable forever.
Must not import anything of the project except ``asyncstate.errors``.

Grammar of the text form::

    type   = "bool" | "int8" | ... | "decimal128(20, 2)" | "timestamp[us, tz=UTC]" | nested
    nested = "list<" item ">" | "map<" type ", " item ">" | "struct<" fields ">"
    item   = type [" not null"]
    fields = [ json-string ": " item { ", " json-string ": " item } ]

The text of a schema is its ``fields``. ``shown_text`` is for people and is not read again.
"""

from __future__ import annotations

import json
import re

import pyarrow as pa

from asyncstate.errors import SchemaError

_FLAT_TYPES: dict[str, pa.DataType] = {
    "bool": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "string": pa.string(),
    "large_string": pa.large_string(),
    "binary": pa.binary(),
    "large_binary": pa.large_binary(),
    "date32": pa.date32(),
}
_FLAT_TEXTS: dict[pa.DataType, str] = {arrow_type: text for text, arrow_type in _FLAT_TYPES.items()}
_TIMESTAMP = re.compile(r"timestamp\[(s|ms|us|ns)(?:, tz=([^\]]+))?\]")
_DECIMAL = re.compile(r"decimal128\((\d+), (-?\d+)\)")
_WORD = re.compile(r"[a-z_0-9]+")
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
_PLAIN_NAME = re.compile(r"[^\W\d]\w*")
_NOT_NULL = " not null"

KEY_TYPES_TEXT = ", ".join([*_FLAT_TYPES, "timestamp", "decimal128"])


def is_key_type(arrow_type: pa.DataType) -> bool:
    """True for the flat types that may be key columns (and values)."""
    return (
        arrow_type in _FLAT_TEXTS or pa.types.is_timestamp(arrow_type) or pa.types.is_decimal128(arrow_type)
    )


def is_nested_type(arrow_type: pa.DataType) -> bool:
    """True for list, struct and map, which are allowed as values only."""
    return bool(pa.types.is_list(arrow_type) or pa.types.is_struct(arrow_type) or pa.types.is_map(arrow_type))


def is_string_type(arrow_type: pa.DataType) -> bool:
    """True for both widths of UTF-8 strings."""
    return bool(pa.types.is_string(arrow_type) or pa.types.is_large_string(arrow_type))


def is_bytes_type(arrow_type: pa.DataType) -> bool:
    """True for both widths of binary."""
    return bool(pa.types.is_binary(arrow_type) or pa.types.is_large_binary(arrow_type))


def check_key_type(column: str, arrow_type: pa.DataType) -> None:
    """Raise ``SchemaError`` naming ``column`` unless its type may be part of a key."""
    if not is_key_type(arrow_type):
        raise SchemaError(
            f"column {column!r} of type {arrow_type} cannot be a key: use one of {KEY_TYPES_TEXT}, "
            "or cast the column before it reaches the operator"
        )


def check_value_type(column: str, arrow_type: pa.DataType) -> None:
    """Raise ``SchemaError`` naming ``column`` (and the nested field) unless its type may be stored."""
    if is_key_type(arrow_type):
        return
    if not is_nested_type(arrow_type):
        raise SchemaError(
            f"column {column!r} of type {arrow_type} cannot be stored: use one of {KEY_TYPES_TEXT}, "
            "list, struct, map, or cast the column before it reaches the operator"
        )
    if pa.types.is_map(arrow_type):
        check_value_type(f"{column}.key", arrow_type.key_type)
        check_value_type(f"{column}.value", arrow_type.item_type)
    elif pa.types.is_list(arrow_type):
        check_value_type(f"{column}.item", arrow_type.value_type)
    else:
        for field in arrow_type:
            check_value_type(f"{column}.{field.name}", field.type)


def check_value_schema(schema: pa.Schema) -> None:
    """Raise ``SchemaError`` naming the first column that cannot be stored or whose name occurs twice."""
    for field in schema:
        check_value_type(field.name, field.type)
        if schema.names.count(field.name) > 1:
            raise SchemaError(f"column {field.name!r} occurs twice: rename one of the two")


def type_to_text(arrow_type: pa.DataType) -> str:
    """The stable text of a supported type, as stored in manifests; ``SchemaError`` for any other type."""
    check_value_type("value", arrow_type)
    if arrow_type in _FLAT_TEXTS:
        return _FLAT_TEXTS[arrow_type]
    if pa.types.is_timestamp(arrow_type):
        zone = f", tz={arrow_type.tz}" if arrow_type.tz else ""
        return f"timestamp[{arrow_type.unit}{zone}]"
    if pa.types.is_decimal128(arrow_type):
        return f"decimal128({arrow_type.precision}, {arrow_type.scale})"
    if pa.types.is_list(arrow_type):
        return f"list<{field_to_text(arrow_type.value_field)}>"
    if pa.types.is_map(arrow_type):
        return f"map<{type_to_text(arrow_type.key_type)}, {field_to_text(arrow_type.item_field)}>"
    return f"struct<{_fields_to_text(list(arrow_type))}>"


def schema_to_text(schema: pa.Schema) -> str:
    """The stable text of a schema of supported types; metadata is left out."""
    check_value_schema(schema)
    return _fields_to_text(list(schema))


def field_to_text(field: pa.Field) -> str:
    """The text of a field without its name: its type, and whether it may be null."""
    return type_to_text(field.type) + ("" if field.nullable else _NOT_NULL)


def _fields_to_text(fields: list[pa.Field]) -> str:
    return ", ".join(f"{json.dumps(field.name)}: {field_to_text(field)}" for field in fields)


def shown_text(text: str) -> str:
    """The text of a type, or of a schema as a struct; names as in Spark SQL, in backquotes if they are not words.

    >>> shown_text('struct<"count": int64>'), shown_text('"k": string, "at last": list<string>')
    ('struct<count: int64>', 'struct<k: string, `at last`: list<string>>')
    """
    if text == "" or text.startswith('"'):
        text = f"struct<{text}>"
    return _QUOTED.sub(lambda quoted: _shown_name(json.loads(quoted.group())), text)


def _shown_name(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) else "`" + name.replace("`", "``") + "`"


def type_from_text(text: str) -> pa.DataType:
    """The type written by ``type_to_text``; ``SchemaError`` if the text is not one."""
    reader = _TypeReader(text)
    arrow_type = reader.read_type()
    reader.finish()
    return arrow_type


def schema_from_text(text: str) -> pa.Schema:
    """The schema written by ``schema_to_text``; ``SchemaError`` if the text is not one."""
    reader = _TypeReader(text)
    fields = reader.read_fields()
    reader.finish()
    return pa.schema(fields)


def field_from_text(name: str, text: str) -> pa.Field:
    """The field ``name`` of a text by ``field_to_text``; ``SchemaError`` if the text is not one."""
    reader = _TypeReader(text)
    field = reader.read_item(name)
    reader.finish()
    return field


class _TypeReader:
    """Recursive descent over one text."""

    __slots__ = ("_position", "_text")

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0

    def finish(self) -> None:
        if self._position != len(self._text):
            raise self._error()

    def read_type(self) -> pa.DataType:
        try:
            return self._read_type()
        except RecursionError:
            raise self._error() from None

    def _read_type(self) -> pa.DataType:
        if self._accept("list<"):
            item = self.read_item("item")
            self._expect(">")
            return pa.list_(item)
        if self._accept("map<"):
            key_type = self.read_type()
            self._expect(", ")
            item = self.read_item("value")
            self._expect(">")
            return pa.map_(pa.field("key", key_type, nullable=False), item)
        if self._accept("struct<"):
            fields = self.read_fields()
            self._expect(">")
            return pa.struct(fields)
        return self._read_flat()

    def read_fields(self) -> list[pa.Field]:
        fields: list[pa.Field] = []
        while self._text.startswith('"', self._position):
            try:
                name, end = json.JSONDecoder().raw_decode(self._text, self._position)
            except json.JSONDecodeError:
                raise self._error() from None
            self._position = end
            self._expect(": ")
            fields.append(self.read_item(name))
            if not self._accept(", "):
                break
        return fields

    def read_item(self, name: str) -> pa.Field:
        arrow_type = self.read_type()
        return pa.field(name, arrow_type, nullable=not self._accept(_NOT_NULL))

    def _read_flat(self) -> pa.DataType:
        if match := _TIMESTAMP.match(self._text, self._position):
            self._position = match.end()
            return pa.timestamp(match[1], match[2])
        if match := _DECIMAL.match(self._text, self._position):
            self._position = match.end()
            return pa.decimal128(int(match[1]), int(match[2]))
        match = _WORD.match(self._text, self._position)
        if match is None or match[0] not in _FLAT_TYPES:
            raise self._error()
        self._position = match.end()
        return _FLAT_TYPES[match[0]]

    def _accept(self, token: str) -> bool:
        found = self._text.startswith(token, self._position)
        if found:
            self._position += len(token)
        return found

    def _expect(self, token: str) -> None:
        if not self._accept(token):
            raise self._error()

    def _error(self) -> SchemaError:
        return SchemaError(
            f"type text {self._text!r} cannot be read at position {self._position}: it was written by a "
            "newer version of asyncstate, or the manifest was edited; use the version that wrote it"
        )
