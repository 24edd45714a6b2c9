"""Any Python value for any type, and whether what was made of it is what was given.

Owns: ``odd_values``, ``any_values_of`` and ``is_same``, which tells by Python's own comparison.
"""

from __future__ import annotations

import datetime as dt
import math
import struct
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from hypothesis import strategies as st

from tests.codec.strategies import values_of

_EPOCH = dt.datetime(1970, 1, 1)
_UNITS_US = {"s": 1_000_000, "ms": 1000, "us": 1}


class IsWhole:
    """Has no value of its own but ``int``, as a UUID has."""

    def __int__(self) -> int:
        return 3


odd_values: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from(
        [
            *(3.7, 3.0, -0.0, math.nan, math.inf, 1e300, 2**53 + 1, 2**63, True, np.True_, 2**24 + 1),
            *(Decimal("3.7"), Decimal("3.0"), Decimal("NaN"), Decimal("1e40"), Fraction(7, 2), Fraction(3)),
            *(np.float64(3.7), np.float32(0.1), np.int64(-3), np.uint64(2**63), np.int8(3)),
            *("3", "", "\ud800", b"3", b"\xff", bytearray(b"a"), memoryview(b"a"), np.str_("x")),
            *(
                pd.NaT,
                pd.NA,
                pd.Timestamp(1500),
                pd.Timestamp(2000),
                np.datetime64("NaT", "us"),
                np.timedelta64(1, "us"),
            ),
            *(dt.date(2020, 1, 2), dt.datetime(2020, 1, 2), dt.datetime(2020, 1, 2, 3, 4, 5, 6)),
            *(dt.datetime(2020, 1, 2, tzinfo=dt.UTC), dt.time(1, 2, 3, 4), dt.timedelta(microseconds=1500)),
            *([3.7], (3.7,), {3}, [b"a"], ["\ud800"], range(3), np.array([1.5]), np.array([1, 2])),
            *({"f0": 3.7}, {"f0": 3, "other": 1}, {"other": 1}, {}, [], (), {"a": 1.5}, {1.5: 1}, {None: 1}),
            *([("a", 1)], [("a",)], "abc", [[3.7]], [{"f0": 3.7}], object(), IsWhole(), 1j, pa.scalar(3.7)),
        ]
    ),
    st.floats(),
    st.decimals(allow_nan=True),
    st.integers(-(2**70), 2**70),
    st.datetimes(),
)


def any_values_of(kind: pa.DataType) -> st.SearchStrategy[Any]:
    """Values that fit, values that are close to it, at any depth, and others."""
    return st.one_of(_close_values(kind), odd_values)


def _close_values(kind: pa.DataType) -> st.SearchStrategy[Any]:
    if pa.types.is_list(kind):
        return st.lists(any_values_of(kind.value_type) | st.none(), max_size=3)
    if pa.types.is_map(kind):
        pair = st.tuples(any_values_of(kind.key_type), any_values_of(kind.item_type))
        return st.lists(pair, max_size=2)
    if pa.types.is_struct(kind):
        return st.fixed_dictionaries({field.name: any_values_of(field.type) | st.none() for field in kind})
    return values_of(kind)


def is_same(given: Any, found: Any, kind: pa.DataType) -> bool:
    """Whether ``found``, with integers of their unit for times and pairs for maps, is the value that was given."""
    types = pa.types
    given = given.as_py() if isinstance(given, pa.Scalar) else given
    if given is None or found is None:
        return given is found
    if types.is_list(kind):
        given = list(given)
        return len(given) == len(found) and all(
            is_same(*pair, kind.value_type) for pair in zip(given, found, strict=True)
        )
    if types.is_map(kind):
        pairs = list(given.items() if isinstance(given, Mapping) else given)
        return len(pairs) == len(found) and all(
            is_same(one[0], other[0], kind.key_type) and is_same(one[1], other[1], kind.item_type)
            for one, other in zip(pairs, found, strict=True)
        )
    if types.is_struct(kind):
        names = [field.name for field in kind]
        fields = dict(zip(names, given, strict=True)) if isinstance(given, tuple) else dict(given)
        return set(fields) == set(names) and all(is_same(fields[f.name], found[f.name], f.type) for f in kind)
    if types.is_timestamp(kind) and isinstance(given, dt.datetime):
        plain = pd.Timestamp(given).tz_convert("UTC").tz_localize(None) if given.tzinfo else given
        nanoseconds = (plain - _EPOCH) // dt.timedelta(microseconds=1) * 1000 + getattr(
            plain, "nanosecond", 0
        )
        return bool(nanoseconds == found * (1 if kind.unit == "ns" else _UNITS_US[kind.unit] * 1000))
    if types.is_date(kind):
        if isinstance(given, dt.datetime):
            return bool(given == dt.datetime.combine(found, dt.time()))
        return (
            bool((found - dt.date(1970, 1, 1)).days == given)
            if not isinstance(given, dt.date)
            else given == found
        )
    if types.is_float32(kind):
        return _bits(float(given)) == _bits(found)
    if types.is_float64(kind):
        return _bits(float(given), "d") == _bits(found, "d") and (given != given or given == found)
    alike = (str,) if types.is_string(kind) or types.is_large_string(kind) else ()
    alike = (bytes, bytearray, memoryview) if types.is_binary(kind) or types.is_large_binary(kind) else alike
    return bool(given == found) and (not alike or isinstance(given, alike))


def _bits(number: float, code: str = "f") -> bytes:
    return struct.pack(code, math.nan if math.isnan(number) else number)
