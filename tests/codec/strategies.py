"""Values of every type as hypothesis strategies, Arrow columns of them, and the order they should have.

Owns: what the codec tests share. The order is told here with Python's own comparison, apart from the code
under test.
"""

from __future__ import annotations

import datetime
import decimal
import math
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

INTEGER_BITS = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64}
TIMESTAMPS = [pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.timestamp("s"), pa.timestamp("ns", "UTC")]
DECIMALS = [pa.decimal128(9, 2), pa.decimal128(18, 0), pa.decimal128(19, 4), pa.decimal128(38, 10)]
TEXTS = [pa.string(), pa.large_string()]
BLOBS = [pa.binary(), pa.large_binary()]
FLAT_TYPES: list[pa.DataType] = [
    pa.bool_(),
    *INTEGER_BITS,
    pa.float32(),
    pa.float64(),
    *TEXTS,
    *BLOBS,
    pa.date32(),
    *TIMESTAMPS,
    *DECIMALS,
]

flat_types = st.sampled_from(FLAT_TYPES)


def values_of(arrow_type: pa.DataType) -> st.SearchStrategy[Any]:
    """Python values of a type as the record grain gives them, without None; edge values are frequent."""
    if arrow_type in INTEGER_BITS or pa.types.is_timestamp(arrow_type):
        high = (1 << INTEGER_BITS.get(arrow_type, 64) - 1) - 1
        return st.integers(-high - 1, high) | st.sampled_from([0, 1, -1, high, -high - 1])
    if pa.types.is_floating(arrow_type):
        return st.floats(width=32 if arrow_type == pa.float32() else 64)
    if pa.types.is_decimal128(arrow_type):
        limit = 10**arrow_type.precision - 1
        unscaled = st.integers(-limit, limit) | st.sampled_from([0, -1, limit, -limit, 127, 128, -128, -129])
        return unscaled.map(lambda number: exact_decimal(number, arrow_type.scale))
    if arrow_type in TEXTS:
        return st.text(max_size=40) | st.text("\x00\x01a", max_size=6)
    if arrow_type in BLOBS:
        return st.binary(max_size=40) | st.lists(st.sampled_from([0, 1, 255]), max_size=6).map(bytes)
    if arrow_type == pa.date32():
        return st.dates()
    assert arrow_type == pa.bool_()
    return st.booleans()


def exact_decimal(unscaled: int, scale: int) -> decimal.Decimal:
    """``unscaled / 10**scale`` with no rounding by the thread's context."""
    sign, digits = (0, unscaled) if unscaled >= 0 else (1, -unscaled)
    return decimal.Decimal((sign, tuple(map(int, str(digits))), -scale))


def nested_types(leaf: st.SearchStrategy[pa.DataType] = flat_types) -> st.SearchStrategy[pa.DataType]:
    """Lists, structs and maps of flat and nested types; map keys are flat and have an exact equality."""
    hashable = [one for one in FLAT_TYPES if not pa.types.is_floating(one)]

    def extend(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
        return st.one_of(
            inner.map(pa.list_),
            st.lists(inner, min_size=1, max_size=3).map(
                lambda types: pa.struct([(f"f{i}", one) for i, one in enumerate(types)])
            ),
            st.tuples(st.sampled_from(hashable), inner).map(lambda pair: pa.map_(*pair)),
        )

    return extend(leaf) | extend(extend(leaf))


def nested_values(arrow_type: pa.DataType) -> st.SearchStrategy[Any]:
    """Python values of any supported type, with None inside of nested ones."""
    if pa.types.is_list(arrow_type):
        return st.lists(st.none() | nested_values(arrow_type.value_type), max_size=3)
    if pa.types.is_map(arrow_type):
        items = st.none() | nested_values(arrow_type.item_type)
        return st.dictionaries(values_of(arrow_type.key_type), items, max_size=3)
    if pa.types.is_struct(arrow_type):
        names = [field.name for field in arrow_type]
        fields = st.tuples(*(st.none() | nested_values(field.type) for field in arrow_type))
        return fields.map(lambda values: dict(zip(names, values, strict=True)))
    return values_of(arrow_type)


def column(values: Sequence[Any], arrow_type: pa.DataType) -> pa.Array:
    """The Arrow column of flat record-grain values."""
    if pa.types.is_timestamp(arrow_type):
        return pa.array(values, pa.int64()).cast(arrow_type)
    return pa.array(values, arrow_type)


def columns(rows: Sequence[tuple[Any, ...]], types: Sequence[pa.DataType]) -> list[pa.Array]:
    """The Arrow columns of tuples."""
    return [column([row[i] for row in rows], one) for i, one in enumerate(types)]


def record_values(array: pa.Array) -> list[Any]:
    """The record-grain values of a flat column: the inverse of ``column``."""
    if pa.types.is_timestamp(array.type):
        return list(array.cast(pa.int64()).to_pylist())
    return list(array.to_pylist())


@st.composite
def key_rows(
    draw: st.DrawFn, max_columns: int = 3, max_rows: int = 12
) -> tuple[list[pa.DataType], list[tuple[Any, ...]]]:
    """Some key types and rows of them with nulls and repetitions."""
    types = draw(st.lists(flat_types, min_size=1, max_size=max_columns))
    pools = [draw(st.lists(st.none() | values_of(one), min_size=1, max_size=5)) for one in types]
    row = st.tuples(*map(st.sampled_from, pools))
    return types, draw(st.lists(row, max_size=max_rows))


def order_of(row: Sequence[Any]) -> tuple[Any, ...]:
    """A tuple that Python compares as keys should compare: null, then values by size, NaN last."""
    return tuple(map(_order_of_value, row))


def _order_of_value(value: Any) -> tuple[Any, ...]:
    if value is None:
        return (0,)
    if isinstance(value, float):
        return (2,) if math.isnan(value) else (1, value)
    return (1, value.encode() if isinstance(value, str) else value)


def same(left: Any, right: Any) -> bool:
    """Equality in which NaN equals NaN and 0.0 equals -0.0."""
    return repr(_plain(left)) == repr(_plain(right))


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value + 0.0 if value == value else math.nan
    if isinstance(value, dict):
        return [(_plain(key), _plain(item)) for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


EDGES: dict[pa.DataType, list[Any]] = {
    pa.bool_(): [True, False],
    pa.float64(): [0.0, -0.0, math.nan, -math.nan, math.inf, -math.inf, 5e-324, -1.5],
    pa.float32(): [0.0, -0.0, math.nan, -math.nan, math.inf, -math.inf, 1.5, -1.5],
    pa.date32(): [datetime.date(1970, 1, 1), datetime.date(1, 1, 1), datetime.date(9999, 12, 31)],
    pa.string(): ["", "a", "a\x00", "\x00\x01", "é", "日本", "x" * 31, "x" * 32, "x" * 33, "x" * 200],
    pa.binary(): [b"", b"\x00", b"\x00\xff", b"\xff" * 7, bytes(range(64)), b"\x01" * 100],
}
