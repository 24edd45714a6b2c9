"""A key as written on a command line, and the rows of a state that have it.

Owns: ``WrittenKey``. Invariant: the text that `state show` prints of a key parses as that key and no other.
Must not import storage, execution, operators or Spark.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa

from asyncstate.codec import KeyCodec
from asyncstate.codec.arrow_types import is_bytes_type
from asyncstate.errors import StateDeclarationError
from asyncstate.offline.json_text import time_unit

_NULL: Final = "null"
_FINER: Final = re.compile(r"(.*[.,]\d{6})(\d{1,3})0*(\D.*)?")  # a time with more digits than microseconds
_TOO_FINE: Final = re.compile(r".*[.,]\d{9}\d*[1-9].*")


class WrittenKey:
    """The key of the state ``owner`` whose columns are written as ``texts``, in the order of ``key_type``'s fields.

    A text is what `state show` prints for the column, with or without its quotes: ``null`` is no value, ``"null"`` the
    text of these four letters. Raises StateDeclarationError for texts that are no key of the state.
    """

    def __init__(self, owner: str, key_type: pa.StructType, texts: Sequence[str]) -> None:
        columns = list(key_type)
        if len(texts) != len(columns):
            raise StateDeclarationError(
                f"{owner}: --key is given {len(texts)} times, but the key has {len(columns)} columns; give it once for "
                "each"
            )
        self._codec = KeyCodec([column.type for column in columns], [column.name for column in columns], 1)
        values = [_value(owner, column, text) for column, text in zip(columns, texts, strict=True)]
        (self._key,) = self._codec.encode(values)

    def rows_of(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of ``rows``, which a StateDecoder returned, that have the key."""
        keys = self._codec.encode(rows.column("key").flatten())
        return rows.filter(pa.array([key == self._key for key in keys], pa.bool_()))


def _value(owner: str, column: pa.Field, text: str) -> pa.Array:
    """The value of one column, an array of one."""
    if text == _NULL:
        return pa.nulls(1, column.type)
    try:
        return _read(_unquoted(text), column.type)
    except (ValueError, ArithmeticError, KeyError, pa.ArrowException):
        raise StateDeclarationError(
            f"{owner}: --key {text!r} is not a value of {column.type}, the type of key column '{column.name}'; give "
            "such a value, as `state show` prints it"
        ) from None


def _unquoted(text: str) -> str:
    if len(text) > 1 and text[0] == text[-1] == '"':
        return msgspec.json.decode(text, type=str)
    return text


def _read(text: str, kind: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return _time(text, kind)
    value: Any = text
    if pa.types.is_integer(kind):
        value = int(text)
    elif pa.types.is_boolean(kind):
        value = {"true": True, "false": False}[text]
    elif pa.types.is_floating(kind):
        value = float(text)
    elif pa.types.is_decimal(kind):
        value = decimal.Decimal(text)
    elif is_bytes_type(kind):
        value = base64.b64decode(text, validate=True)
    return pa.array([value], kind)


def _time(text: str, kind: pa.DataType) -> pa.Array:
    """A time or date in any form of ISO 8601, or as `state show` prints those beyond the years 1 to 9999."""
    is_date = pa.types.is_date(kind)
    if found := re.fullmatch(rf"(-?\d+) {time_unit(kind)}", text):
        return pa.array([int(found[1])], pa.int32() if is_date else pa.int64()).cast(kind)
    if is_date:
        return pa.array([datetime.date.fromisoformat(text)], kind)
    nanoseconds = 0
    if found := _FINER.fullmatch(text):
        text, nanoseconds = found[1] + (found[3] or ""), int(found[2].ljust(3, "0"))
    time = datetime.datetime.fromisoformat(text)  # which truncates digits beyond microseconds
    if kind.tz is not None and time.tzinfo is None:
        time = time.replace(tzinfo=datetime.UTC)
    elif (kind.tz is None and time.tzinfo is not None) or _TOO_FINE.fullmatch(text):
        raise ValueError(text)
    column = pa.array([time], pa.timestamp("us", kind.tz))
    if nanoseconds:
        whole = column.cast(pa.int64())[0].as_py() * 1000
        column = pa.array([whole + nanoseconds], pa.int64()).cast(pa.timestamp("ns", kind.tz))
    return column.cast(kind)
