"""Which values are read in the form in which they were written: never one that is read in another."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstate.codec.from_python import arrow_values
from asyncstate.codec.read_form import reads_as_given
from asyncstate.codec.times import python_values
from asyncstate.errors import CodecError
from tests.codec.any_values import any_values_of
from tests.codec.strategies import nested_types, nested_values


@given(data=st.data(), kind=nested_types())
def test_what_is_said_to_be_read_as_given_is(data: st.DataObject, kind: pa.DataType) -> None:
    values = data.draw(st.lists(any_values_of(kind) | nested_values(kind) | st.none(), max_size=3))
    if not reads_as_given(values, kind):
        return
    try:
        column = arrow_values(values, kind)
    except CodecError:  # beyond the type's range
        return
    assert repr(python_values(column)) == repr(values)


@given(data=st.data(), kind=nested_types())
def test_what_was_read_is_read_as_given(data: st.DataObject, kind: pa.DataType) -> None:
    values = data.draw(st.lists(nested_values(kind) | st.none(), max_size=3))
    try:
        read = python_values(arrow_values(values, kind))
    except CodecError:  # numbers of a coarser unit than microseconds
        return
    assert reads_as_given(read, kind) or "float" in str(kind)  # float32, which rounds


@pytest.mark.parametrize(
    ("kind", "value", "same"),
    [
        (pa.int64(), 1, True),
        (pa.int64(), True, False),
        (pa.float64(), 1, False),
        (pa.decimal128(10, 2), Decimal("1.00"), True),
        (pa.decimal128(10, 2), Decimal("1.0"), False),
        (pa.list_(pa.int64()), [1, None], True),
        (pa.list_(pa.int64()), (1,), False),
        (pa.map_(pa.string(), pa.int64()), [("a", 1)], True),
        (pa.map_(pa.string(), pa.int64()), {"a": 1}, False),
        (pa.struct([("a", pa.int64()), ("b", pa.int64())]), {"b": 1, "a": 1}, False),
    ],
)
def test_examples(kind: pa.DataType, value: Any, same: bool) -> None:
    assert reads_as_given([value, None], kind) == same
