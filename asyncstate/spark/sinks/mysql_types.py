"""MySQL's and MariaDB's types: which of them preserve Arrow's values, and the values that PyMySQL gets.

Owns: ``MySqlType``, ``reason_against``, ``text_rules``, ``sent``.
Invariant: in strict mode a column that ``reason_against`` accepts stores a value unchanged or raises an error.
Must not import pyspark or pymysql.

Source: Data Types and Collation Pad Attributes of MySQL's documentation; NO PAD Collations of MariaDB's.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.types as kinds

from asyncstate.spark.sinks.column_checks import (
    digits,
    duration_texts,
    is_bytes,
    is_text,
    json_texts,
    keeps,
    no_json,
    plain,
)

_INTEGERS: Final = ("tinyint", "smallint", "mediumint", "int", "bigint")
_TEXTS: Final = ("char", "varchar", "tinytext", "text", "mediumtext", "longtext")
_BYTES: Final = ("varbinary", "tinyblob", "blob", "mediumblob", "longblob")
_EXACT_COLLATIONS: Final = ("_nopad_bin", "_0900_bin")
"""Of MariaDB and MySQL: texts are equal keys if their bytes are equal, trailing blanks included."""


class MySqlType(NamedTuple):
    """The description of a column in information_schema."""

    shown: str
    name: str
    precision: int | None
    scale: int | None
    second_digits: int | None
    characters: int | None
    bytes_max: int | None
    collation: str | None


def text_rules(column: MySqlType) -> dict[str, Any]:
    """The text rules of a ``TargetColumn``: excess trailing blanks are cut in strict mode, too."""
    return {
        "characters": column.characters if column.name in ("char", "varchar") else None,
        "bytes_max": column.bytes_max if column.name in (*_TEXTS, *_BYTES) else None,
        "no_blanks": column.name == "char",
        "is_uuid": column.name == "uuid",
    }


def reason_against(given: pa.DataType, column: MySqlType, is_key: bool) -> str | None:
    """Why the column does not preserve values of the type, with what to do; None if it does."""
    if is_text(given):
        return _reason_against_text(column, is_key)
    if kinds.is_nested(given):
        if is_key:
            return "lists, structs and maps cannot be keys here; convert them to a string before the sink"
        what = no_json(given)
        if what is not None:
            return f"JSON cannot represent {what}; cast it before the sink"
        return None if column.name in ("json", "longtext", "mediumtext") else "make it json"
    if column.name in _TEXTS and not is_key and (kinds.is_integer(given) or kinds.is_decimal(given)):
        return None
    return _reason_against_value(given, column)


def _reason_against_text(column: MySqlType, is_key: bool) -> str | None:
    if column.name == "uuid" or column.name == "varbinary":
        return None
    if is_key:
        if column.name != "varchar":
            return (
                "it may treat different strings as one key; make it varchar(n) with a binary collation without "
                "padding"
            )
        if not (column.collation or "").endswith(_EXACT_COLLATIONS):
            return (
                "its collation treats different strings as one key (a and A, or a with a trailing blank); give it "
                "utf8mb4_nopad_bin (MariaDB) or utf8mb4_0900_bin (MySQL), or make it varbinary(n)"
            )
        return None
    if column.name in _TEXTS or column.name in (*_BYTES, "json", "inet4", "inet6"):
        return None
    return "a string may become another value there; cast it before the sink, or make the column varchar"


def _reason_against_value(given: pa.DataType, column: MySqlType) -> str | None:
    name = column.name
    if kinds.is_null(given):
        return None
    if is_bytes(given):
        return None if name in _BYTES else "make it varbinary or blob"
    if kinds.is_boolean(given):
        return None if name in (*_INTEGERS, "bit") else "make it boolean"
    if kinds.is_temporal(given):
        return _reason_against_time(given, column)
    wanted = _arrow_type(column)
    if wanted is None:
        return "cast it before the sink, or change the column"
    return (
        None
        if keeps(given, wanted)
        else "digits would be lost; cast it before the sink, or change the column"
    )


def _reason_against_time(given: pa.DataType, column: MySqlType) -> str | None:
    if kinds.is_date(given):
        return None if column.name in ("date", "datetime") else "make it date"
    if kinds.is_timestamp(given):
        wanted: tuple[str, ...] = ("datetime", "timestamp")
    elif kinds.is_duration(given) or kinds.is_time(given):
        wanted = ("time",)
    else:
        return "cast it to a string before the sink"
    if column.name not in wanted:
        return f"make it {wanted[0]}(6)"
    kept = column.second_digits or 0
    return (
        None
        if kept >= digits(given)
        else f"it keeps {kept} digits of a second and rounds; make it {column.name}(6)"
    )


def _arrow_type(column: MySqlType) -> pa.DataType | None:
    """The type of a numeric column; None for others. A float of a declared scale rounds, so that it has none."""
    if column.name in _INTEGERS:
        return pa.int64()
    if column.name == "decimal":
        return pa.decimal256(min(column.precision or 0, 76), column.scale or 0)
    if column.name in ("float", "double") and column.scale is None:
        return pa.float32() if column.name == "float" else pa.float64()
    return None


def sent(name: str, column: pa.ChunkedArray) -> list[Any]:
    """The column as PyMySQL takes it: times without their zone, in UTC, durations as texts, lists, structs and maps as
    JSON."""
    kind = column.type
    if kinds.is_nested(kind):
        return list(json_texts(name, column))
    if kinds.is_duration(kind):  # PyMySQL before 1.2 writes negative ones as others
        return list(duration_texts(column))
    if kinds.is_timestamp(kind):
        column = plain(column).cast(pa.timestamp(kind.unit))
    values: list[Any] = column.to_pylist()
    return values
