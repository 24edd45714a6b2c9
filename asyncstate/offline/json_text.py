"""Values of state as JSON, for readers that show states of different types side by side.

Owns: ``json_texts``, ``json_text``, ``plain``, ``plain_values``, ``number`` and ``time_unit``.
Invariant: equal values give equal text, different ones of a column different text. Decimals, times, NaN and infinities
are strings, bytes are base64, maps are lists of pairs, and a time beyond the years 1 to 9999 is the stored number, with
its unit: "9223372036854775807 us".
Must not import storage, execution, operators or Spark.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import msgspec
import pyarrow as pa


def json_texts(column: pa.Array) -> pa.Array:
    """The text of each value, null where it is null."""
    texts = [None if value is None else json_text(value) for value in plain_values(column)]
    return pa.array(texts, pa.string())


def json_text(value: Any) -> str:
    """The text of one value."""
    return msgspec.json.encode(value, enc_hook=str).decode()


def plain(rows: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """The rows as dicts of such values."""
    columns = [plain_values(column) for column in rows.columns]
    for values in zip(*columns, strict=True):
        yield dict(zip(rows.schema.names, values, strict=True))


def time_unit(kind: pa.DataType) -> str:
    """The unit in which a date or timestamp is stored."""
    return "days" if pa.types.is_date(kind) else str(kind.unit)


def plain_values(column: pa.Array) -> list[Any]:
    """The values as Python values that ``json_text`` takes."""
    kind = column.type
    if pa.types.is_timestamp(kind) and kind.unit == "ns":  # Python's times have microseconds
        column, kind = column.cast(pa.string()), pa.string()
    if not _has_more_than_json(kind):
        values: list[Any] = column.to_pylist()
        return values
    if pa.types.is_nested(kind):
        valid = column.is_valid().to_pylist()
        return [value if there else None for value, there in zip(_nested(column), valid, strict=True)]
    if pa.types.is_floating(kind):
        return [number(value) for value in column.to_pylist()]
    return [_time(value) for value in column]


def _nested(column: pa.Array) -> list[Any]:
    """The structs, lists or maps; arbitrary values where there is none."""
    if pa.types.is_struct(column.type):
        rows = zip(*map(plain_values, column.flatten()), strict=True)
        return [dict(zip(column.type.names, row, strict=True)) for row in rows]
    if pa.types.is_map(column.type):
        items = list(zip(plain_values(column.keys), plain_values(column.items), strict=True))
    else:
        items = plain_values(column.values)
    return [items[start:end] for start, end in pairwise(column.offsets.to_pylist())]


@functools.lru_cache
def _has_more_than_json(kind: pa.DataType) -> bool:
    """Whether JSON, or Python, may have no form of some values."""
    if pa.types.is_nested(kind):
        return any(_has_more_than_json(kind.field(index).type) for index in range(kind.num_fields))
    return bool(pa.types.is_floating(kind) or pa.types.is_timestamp(kind) or pa.types.is_date(kind))


def number(value: float | None) -> float | str | None:
    """A float as JSON has it, or its name."""
    if value is None or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _time(value: pa.Scalar) -> Any:
    try:
        return value.as_py()
    except (OverflowError, ValueError):
        return f"{value.value} {time_unit(value.type)}"
