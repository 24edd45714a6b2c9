"""PostgreSQL's types: which of them preserve Arrow's values, and how COPY reads these.

Owns: ``PostgresType``, ``reason_against``, ``text_rules``, ``copied``.
Invariant: ``copied`` writes what ``reason_against`` accepts so that PostgreSQL reads the same value.
Must not import pyspark or psycopg.

Source: Data Types of PostgreSQL's documentation; pg_type (typcategory, typtypmod).
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from asyncstate.spark.sinks.column_checks import (
    digits,
    duration_texts,
    is_bytes,
    is_list,
    is_text,
    json_texts,
    keeps,
    no_json,
    plain,
)

_NUMBERS: Final = {
    "int2": pa.int16(),
    "int4": pa.int32(),
    "int8": pa.int64(),
    "float4": pa.float32(),
    "float8": pa.float64(),
}
_ALL_FIELDS: Final = 0x7FFF  # of an interval's modifier: years to seconds
_TEXTS: Final = ("text", "varchar", "bpchar")
_ELSEWHERE: Final = "NDTBA"
"""Categories whose values are not texts: numbers, times, durations, booleans, arrays."""


class PostgresType(NamedTuple):
    """The type of a column; for a domain, its base type. ``modifier``: the encoded parameters in parentheses after the
    type name; ``element``: of an array; ``is_coarse``: its collation compares different strings as equal."""

    name: str
    modifier: int
    category: str
    element: str | None = None
    element_category: str | None = None
    is_coarse: bool = False

    @property
    def length(self) -> int | None:
        """Characters of varchar and char."""
        return self.modifier - 4 if self.name in ("varchar", "bpchar") and self.modifier >= 4 else None


def text_rules(column: PostgresType) -> dict[str, Any]:
    """The text rules of a ``TargetColumn``."""
    return {
        "characters": column.length,
        "no_blanks": column.name == "bpchar",
        "is_uuid": column.name == "uuid",
    }


def reason_against(given: pa.DataType, column: PostgresType, is_key: bool) -> str | None:
    """Why the column does not preserve values of the type, with what to do; None if it does."""
    if is_key:
        return _reason_against_key(given, column)
    if column.name in ("json", "jsonb") and kinds.is_nested(given):
        what = no_json(given)
        return None if what is None else f"JSON cannot represent {what}; cast it before the sink"
    if column.name in _TEXTS and kinds.is_nested(given):
        return "make it jsonb, or convert it to a string with to_json before the sink"
    if column.element is not None:
        return _reason_against_array(given, column)
    if kinds.is_nested(given):
        return "make it jsonb" + (" or an array" if is_list(given) else "")
    if is_text(given):
        return _reason_against_text(column)
    return _reason_against_value(given, column)


def _reason_against_key(given: pa.DataType, column: PostgresType) -> str | None:
    if kinds.is_nested(given):
        return "lists, structs and maps cannot be keys here; convert them to a string before the sink"
    if is_text(given) and column.name in ("varchar", "bpchar") and column.modifier >= 0:
        return "it trims or pads trailing blanks, so two keys may become one; make it text"
    if is_text(given) and column.is_coarse:
        return "its collation treats different strings as one key; use a deterministic collation"
    if is_text(given) and column.name not in (*_TEXTS, "uuid") and column.category != "E":
        return "it may treat different strings as one key; make it text"
    return _reason_against_text(column) if is_text(given) else _reason_against_value(given, column)


def _reason_against_array(given: pa.DataType, column: PostgresType) -> str | None:
    if not is_list(given):
        return "it is an array; cast it before the sink, or change the column"
    if kinds.is_nested(given.value_type):
        return "an array cannot contain lists, structs or maps; make it jsonb"
    element = PostgresType(column.element or "", column.modifier, column.element_category or "")
    if is_text(given.value_type) and element.name not in _TEXTS:
        return "its elements are not strings; make it text[]"
    if is_text(given.value_type) and element.modifier >= 0:
        return "its elements trim or pad trailing blanks; make it text[]"
    if kinds.is_duration(given.value_type) or is_bytes(given.value_type):
        return f"the sink cannot write arrays of {given.value_type}; convert it to a string before"
    return reason_against(given.value_type, element, is_key=False)


def _reason_against_text(column: PostgresType) -> str | None:
    if column.name in _TEXTS:
        return None
    if column.category in _ELSEWHERE or column.name in ("bytea", "name", "char", "money"):
        return "a string may become another value there; cast it before the sink, or make the column text"
    return None


def _reason_against_value(given: pa.DataType, column: PostgresType) -> str | None:
    name = column.name
    if kinds.is_null(given):
        return None
    if name in ("text", "varchar") and column.length is None:
        return (
            None
            if not (is_bytes(given) or kinds.is_duration(given))
            else "cast it to a string before the sink"
        )
    if is_bytes(given):
        return None if name == "bytea" else "make it bytea"
    if kinds.is_boolean(given):
        return None if name == "bool" else "make it boolean"
    if kinds.is_duration(given):
        return _reason_against_interval(column)
    if kinds.is_temporal(given):
        return _reason_against_time(given, column)
    if name == "numeric":
        return _reason_against_numeric(given, column.modifier)
    wanted = _NUMBERS.get(name)
    if wanted is None:
        return "cast it before the sink, or change the column"
    return (
        None
        if keeps(given, wanted)
        else "digits would be lost; cast it before the sink, or change the column"
    )


def _reason_against_interval(column: PostgresType) -> str | None:
    if column.name != "interval":
        return "make it interval"
    if column.modifier >= 0:
        fields, precision = (column.modifier >> 16) & _ALL_FIELDS, column.modifier & 0xFFFF
        if fields != _ALL_FIELDS or precision < 6:
            return "parts of it would be lost; make it a plain interval"
    return None


def _reason_against_time(given: pa.DataType, column: PostgresType) -> str | None:
    if kinds.is_date(given):
        return None if column.name in ("date", "timestamp") else "make it date"
    wanted = "time" if kinds.is_time(given) else "timestamp"
    if column.name not in ((wanted,) if wanted == "time" else ("timestamp", "timestamptz")):
        return f"make it {wanted}"
    precision = column.modifier if column.modifier >= 0 else 6
    if digits(given) > precision:
        return f"it keeps {precision} digits of a second and rounds; make it {column.name}"
    return None


def _reason_against_numeric(given: pa.DataType, modifier: int) -> str | None:
    if modifier < 0:
        return (
            None
            if kinds.is_decimal(given) or kinds.is_integer(given) or kinds.is_floating(given)
            else "cast it"
        )
    precision, scale = (modifier - 4) >> 16 & 0xFFFF, ((modifier - 4 & 0x7FF) ^ 0x400) - 0x400
    if scale < 0 or precision > 76 or not keeps(given, pa.decimal256(precision, min(scale, precision))):
        return "it rounds; make it numeric with the scale of the rows, or cast them before the sink"
    return None


def copied(name: str, column: pa.ChunkedArray, into: PostgresType) -> pa.ChunkedArray:
    """The column as PostgreSQL reads it from a CSV."""
    kind = column.type
    if is_bytes(kind):
        return _texts([None if one is None else f"\\x{one.hex()}" for one in column.to_pylist()])
    if kinds.is_duration(kind):
        return _texts(duration_texts(column))
    if is_list(kind) and into.element is not None:
        elements = PostgresType(into.element, into.modifier, into.element_category or "")
        flat = copied(name, pa.chunked_array(_values(column)), elements)
        return _texts(_array_texts(column, flat.cast(pa.string()).to_pylist()))
    if kinds.is_nested(kind):
        return _texts(json_texts(name, column))
    return plain(column).cast(pa.string()) if kinds.is_decimal(kind) else plain(column)


def _values(column: pa.ChunkedArray) -> list[pa.Array]:
    return [chunk.flatten() for chunk in column.chunks] or [pa.array([], column.type.value_type)]


def _array_texts(column: pa.ChunkedArray, elements: list[str | None]) -> list[str | None]:
    """``{"a",NULL}``: each element in quotes."""
    found: list[str | None] = []
    at = 0
    for length in pc.list_value_length(column).to_pylist():
        if length is None:
            found.append(None)
            continue
        found.append("{" + ",".join(map(_quoted, elements[at : at + length])) + "}")
        at += length
    return found


def _quoted(text: str | None) -> str:
    if text is None:
        return "NULL"
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _texts(values: list[str | None]) -> pa.ChunkedArray:
    return pa.chunked_array([pa.array(values, pa.string())])
