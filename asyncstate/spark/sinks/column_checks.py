"""Which values of a column another type preserves, and their text and JSON forms in tables.

Owns: ``keeps``, ``plain``, ``duration_texts``, ``json_texts``.
Invariant: where ``keeps`` is true, different values stay different and are read back as they were; a value that is too
large for the other type is an error there and never another value.
Must not import pyspark.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.types as kinds

from asyncstate.codec.times import in_utc
from asyncstate.errors import OperatorError

_INTEGER_DIGITS: Final = {8: 3, 16: 5, 32: 10, 64: 19}
_UNITS: Final = {"s": 0, "ms": 3, "us": 6, "ns": 9}
_EXACT_BITS: Final = {16: 11, 32: 24, 64: 53}
"""The width of the integers that a float of so many bits represents exactly."""


def is_text(kind: pa.DataType) -> bool:
    """Whether the type is text, in any of Arrow's layouts."""
    return bool(kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_string_view(kind))


def is_bytes(kind: pa.DataType) -> bool:
    """Whether the type is bytes, in any of Arrow's layouts."""
    return bool(
        kinds.is_binary(kind)
        or kinds.is_large_binary(kind)
        or kinds.is_fixed_size_binary(kind)
        or kinds.is_binary_view(kind)
    )


def is_list(kind: pa.DataType) -> bool:
    """Whether the type is a list, in any of Arrow's layouts."""
    return bool(kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind))


def digits(kind: pa.DataType) -> int:
    """The decimal places of a second in a time of this type."""
    return _UNITS.get(getattr(kind, "unit", "s"), 0)


def integer_in_float(integer: pa.DataType, bits: int) -> bool:
    """Whether a float of so many bits represents every integer of the type exactly."""
    return bool(integer.bit_width - int(kinds.is_signed_integer(integer)) <= _EXACT_BITS[bits])


def keeps(given: pa.DataType, column: pa.DataType) -> bool:
    """Whether a column of type ``column`` preserves every value of type ``given``, or raises an error for values too
    large."""
    if given.equals(column) or any(alike(given) and alike(column) for alike in (is_text, is_bytes)):
        return True
    if kinds.is_integer(given):
        if kinds.is_floating(column):
            return integer_in_float(given, column.bit_width)
        return bool(kinds.is_integer(column) or kinds.is_decimal(column))
    if kinds.is_floating(given):
        return bool(kinds.is_floating(column) and column.bit_width >= given.bit_width)
    if kinds.is_decimal(given):
        if kinds.is_integer(column):
            return bool(given.scale <= 0)
        return bool(kinds.is_decimal(column) and column.scale >= given.scale)
    if kinds.is_timestamp(given) and kinds.is_timestamp(column):
        return digits(column) >= digits(given) and (given.tz is None) == (column.tz is None)
    if is_list(given) and is_list(column):
        return keeps(given.value_type, column.value_type)
    if kinds.is_map(given) and kinds.is_map(column):
        return keeps(given.key_type, column.key_type) and keeps(given.item_type, column.item_type)
    if kinds.is_struct(given) and kinds.is_struct(column):
        named = {column.field(i).name: column.field(i).type for i in range(column.num_fields)}
        fields = [given.field(i) for i in range(given.num_fields)]
        return [one.name for one in fields] == list(named) and all(
            keeps(one.type, named[one.name]) for one in fields
        )
    return False


def plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The column with times in UTC, at any depth, whatever the session's zone is; other columns as they are."""
    kind = in_utc(column.type)
    return column if kind == column.type else column.cast(kind)


def duration_text(microseconds: int) -> str:
    """``-26:03:04.500000``: hours, minutes, seconds and, where there are any, microseconds."""
    seconds, micros = divmod(abs(microseconds), 1_000_000)
    text = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    sign = "-" if microseconds < 0 else ""
    return f"{sign}{text}.{micros:06d}" if micros else sign + text


def duration_texts(column: pa.ChunkedArray, text: Callable[[int], str] = duration_text) -> list[str | None]:
    """Durations as texts. ``text`` gets microseconds."""
    micros = column.cast(pa.duration("us")).cast(pa.int64()).to_pylist()
    return [None if one is None else text(one) for one in micros]


def no_json(kind: pa.DataType) -> str | None:
    """The part of the type that JSON cannot represent; None if it can represent all."""
    if kinds.is_map(kind):
        return no_json(kind.item_type) if is_text(kind.key_type) else f"keys of type {kind.key_type}"
    if is_list(kind):
        return no_json(kind.value_type)
    if kinds.is_struct(kind):
        names = [kind.field(i).name for i in range(kind.num_fields)]
        if len(set(names)) < len(names):
            return "two fields of one name"
        return next((found for i in range(kind.num_fields) if (found := no_json(kind.field(i).type))), None)
    return "bytes" if is_bytes(kind) else None


def json_texts(name: str, column: pa.ChunkedArray) -> list[str | None]:
    """Lists, structs and maps as JSON: decimals as texts, times in ISO 8601.

    Raises OperatorError for NaN and infinities, which JSON does not have.
    """
    encode = msgspec.json.Encoder().encode
    shape = json_shape(column.type)
    found: list[str | None] = []
    for value in plain(column).to_pylist():
        if value is not None and _has_no_number(value):
            raise OperatorError(
                f"column '{name}' has {value!r}, and JSON has neither NaN nor infinity; replace it before the sink; "
                "nothing was written"
            )
        found.append(None if value is None else encode(shape(value)).decode())
    return found


def json_shape(kind: pa.DataType) -> Callable[[Any], Any]:
    """A function that converts a Python value of the type to the value to encode: maps, which Arrow gives as pairs,
    become objects."""
    if kinds.is_map(kind):
        inner = json_shape(kind.item_type)
        return lambda value: None if value is None else {key: inner(item) for key, item in value}
    if is_list(kind):
        inner = json_shape(kind.value_type)
        return lambda value: None if value is None else [inner(one) for one in value]
    if kinds.is_struct(kind):
        parts = {kind.field(i).name: json_shape(kind.field(i).type) for i in range(kind.num_fields)}
        return lambda value: None if value is None else {name: parts[name](value[name]) for name in parts}
    return lambda value: value


def _has_no_number(value: Any) -> bool:
    if isinstance(value, float):
        return value != value or value in (float("inf"), float("-inf"))
    if isinstance(value, dict):
        return any(map(_has_no_number, value.values()))
    return isinstance(value, list | tuple) and any(map(_has_no_number, value))
