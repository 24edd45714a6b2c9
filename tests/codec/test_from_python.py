"""Python values as Arrow columns: what fits is unchanged, what does not is refused by its place, at any depth."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstate.codec.from_python import UnfitValueError, arrow_column, arrow_values
from asyncstate.codec.times import integers
from tests.codec.any_values import any_values_of, is_same
from tests.codec.strategies import flat_types, nested_types, values_of

LONG = pa.int64()
TIME = pa.timestamp("us")
PAIR = pa.struct([("a", LONG), ("b", pa.string())])


def valid_values(kind: pa.DataType) -> st.SearchStrategy[Any]:
    """Values that fit ``kind``."""
    if pa.types.is_list(kind):
        return st.lists(valid_values(kind.value_type) | st.none(), max_size=3)
    if pa.types.is_map(kind):
        return st.dictionaries(valid_values(kind.key_type), valid_values(kind.item_type), max_size=3).map(
            lambda found: list(found.items())
        )
    if pa.types.is_struct(kind):
        return st.fixed_dictionaries({field.name: valid_values(field.type) | st.none() for field in kind})
    return values_of(kind)


any_types = st.one_of(flat_types, nested_types())


@given(st.data())
def test_a_value_is_stored_as_it_is_or_refused(data: st.DataObject) -> None:
    kind = data.draw(any_types)
    values = data.draw(st.lists(any_values_of(kind) | st.none(), max_size=4))
    column = _made(values, kind)
    if isinstance(column, UnfitValueError):
        assert column.value is values[column.row]
        assert f"which does not fit its type {kind}: " in str(column)
        assert isinstance(_made([column.value], kind), UnfitValueError)
        return
    column.validate(full=True)
    assert column.type == kind
    try:
        found = _python(column)
    except OverflowError:
        return  # a number of days for which Python has no date
    assert all(is_same(*pair, kind) for pair in zip(values, found, strict=True)), column


@given(st.data())
def test_what_fits_is_taken(data: st.DataObject) -> None:
    kind = data.draw(any_types)
    values = data.draw(st.lists(valid_values(kind) | st.none(), max_size=5))
    found = _python(arrow_column(values, kind))
    assert all(is_same(*pair, kind) for pair in zip(values, found, strict=True))


def _made(values: list[Any], kind: pa.DataType) -> pa.Array | UnfitValueError:
    try:
        return arrow_column(values, kind)
    except UnfitValueError as error:
        return error


def _python(column: pa.Array) -> list[Any]:
    found: list[Any] = integers(column).to_pylist()
    return found


@pytest.mark.parametrize("row", [0, 5, 1000, 1999])
def test_the_first_value_that_does_not_fit_is_named(row: int) -> None:
    values: list[Any] = list(range(2000))
    values[row] = 3.7
    values[1999] = "x" if row != 1999 else 3.7
    with pytest.raises(
        UnfitValueError, match=r"^3\.7 \(float\), which does not fit its type int64: a whole"
    ) as refused:
        arrow_values(values, LONG)
    assert (refused.value.row, refused.value.value) == (row, 3.7)


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (3.7, LONG, "a whole number from"),
        (Decimal("3.7"), pa.int32(), "a whole number from -2147483648 to 2147483647"),
        (2**31, pa.int32(), "2147483648 (int)"),
        (3.7, TIME, "a whole number of us"),
        (pd.NaT, TIME, "NaT"),
        (pd.NaT, pa.date32(), "a datetime.date"),
        (pd.Timestamp(1500), TIME, "not finer"),
        (dt.datetime(2020, 1, 1, 12), pa.date32(), "a datetime.date"),
        (
            "\ud800",
            pa.string(),
            "'\\ud800' (str), which does not fit its type string: a str that UTF-8 can encode",
        ),
        (b"a", pa.string(), "a str"),
        ("a", pa.binary(), "bytes"),
        (1e300, pa.float32(), "a float"),
        (2**53 + 1, pa.float64(), "that a float holds exactly"),
        (Decimal("1.234"), pa.decimal128(10, 2), "at most 10 digits, 2 of them after the point"),
        (1.5, pa.decimal128(10, 2), "a finite Decimal"),
        (dt.timedelta(microseconds=1), pa.duration("ms"), "not finer"),
        (dt.time(1, 2, 3, 4), pa.time32("s"), "not finer"),
        ([1, 3.7], pa.list_(LONG), "in 'item' a whole number from"),
        ("abc", pa.list_(pa.string()), "a list is expected"),
        ({1}, pa.list_(LONG), "a list is expected"),
        ({"a": 1}, PAIR, "the fields a, b is expected (None for null), but it is one without b"),
        ({"a": 1, "b": "x", "c": 1}, PAIR, "but it is one with c"),
        ({"a": 3.7, "b": "x"}, PAIR, "in 'a' a whole number"),
        ((1,), PAIR, "a dict with the fields a, b"),
        ({"k": 3.7}, pa.map_(pa.string(), LONG), "in 'value' a whole number"),
        ({3.7: 1}, pa.map_(LONG, LONG), "in 'key' a whole number"),
        ({None: 1}, pa.map_(pa.string(), LONG), "'key', which is not nullable"),
        ([None], pa.list_(pa.field("item", LONG, nullable=False)), "'item', which is not nullable"),
        (
            [[{"a": [3.7], "b": ""}]],
            pa.list_(pa.list_(pa.struct([("a", pa.list_(LONG)), ("b", pa.string())]))),
            "3.7",
        ),
        ([3.7], pa.list_(LONG, 1), "in 'item' a whole number"),
        (3.7, pa.dictionary(pa.int32(), LONG), "a whole number"),
    ],
)
def test_what_does_not_fit_says_why(value: Any, kind: pa.DataType, text: str) -> None:
    for values in ([value], [None, value]):
        with pytest.raises(UnfitValueError) as refused:
            arrow_values(values, kind)
        assert text in str(refused.value)
        assert refused.value.row == len(values) - 1


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        ([3.0, Decimal(4), np.float32(5), np.int8(6), None], LONG, [3, 4, 5, 6, None]),
        ([np.int64(7), 8.0, dt.datetime(1970, 1, 1, 0, 0, 1)], TIME, [7, 8, 1_000_000]),
        (
            [dt.datetime(1970, 1, 1, 2, tzinfo=dt.timezone(dt.timedelta(hours=2)))],
            pa.timestamp("us", "UTC"),
            [0],
        ),
        ([pd.Timestamp(2000)], TIME, [2]),
        ([dt.datetime(2020, 1, 2), dt.date(2020, 1, 2)], pa.date32(), [dt.date(2020, 1, 2)] * 2),
        ([np.array([1, 2]), (3,), range(2), None], pa.list_(LONG), [[1, 2], [3], [0, 1], None]),
        ([(1, "x"), {"b": "y", "a": 2}, None], PAIR, [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}, None]),
        ([{}, None], pa.struct([]), [{}, None]),
        ([{"a": 1}, [("b", 2)], None], pa.map_(pa.string(), LONG), [[("a", 1)], [("b", 2)], None]),
        (["a", "b", "a", None], pa.dictionary(pa.int8(), pa.string()), ["a", "b", "a", None]),
        ([None, {"a": 1}], pa.struct([pa.field("a", LONG, nullable=False)]), [None, {"a": 1}]),
        (np.array([3.0, 4.0]), LONG, [3, 4]),
        (pd.Series([1.5, None]), pa.float64(), [1.5, None]),
        (pd.Series(["a", None]), pa.string(), ["a", None]),
        (pd.Series(["a", "b"], dtype="category"), pa.string(), ["a", "b"]),
        (pa.array([[1, None]], pa.list_(pa.int8())), pa.list_(LONG), [[1, None]]),
        (pa.array([Decimal("1.50")]), pa.decimal128(10, 1), [Decimal("1.5")]),
        ((number for number in (1, 2)), pa.int16(), [1, 2]),
    ],
)
def test_what_fits_in_another_form_is_taken(values: Any, kind: pa.DataType, expected: list[Any]) -> None:
    assert integers(arrow_values(values, kind)).to_pylist() == expected


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (np.array([3.7]), LONG),
        (np.array([2]), pa.bool_()),
        (np.array([1e300]), pa.float32()),
        (np.array([3.7], object), LONG),
        (np.array(["2020-01-01T12:00"], "M8[us]"), pa.date32()),
        (np.array([b"a"]), pa.string()),
        (pd.Series([3.7], dtype=object), LONG),
        (pa.array([3.7]), LONG),
        (pa.array([2]), pa.bool_()),
        (pa.array([dt.datetime(2020, 1, 1, 12)]), pa.date32()),
        (pa.array(["3"]), LONG),
        (pa.array([3]), pa.string()),
        (pa.array([1.5]), pa.decimal128(10, 2)),
        (pa.array([[3.5]]), pa.list_(pa.string())),
        (pa.array([{"a": 1}]), PAIR),
        (pa.array([dt.datetime(2020, 1, 1, 12)]), pa.time64("us")),
    ],
)
def test_arrays_are_not_cut_either(values: Any, kind: pa.DataType) -> None:
    with pytest.raises(UnfitValueError) as refused:
        arrow_values(values, kind)
    assert refused.value.row == 0


def test_integers_of_timestamps_are_microseconds_or_of_their_unit() -> None:
    seconds = pa.timestamp("s")
    assert arrow_values([2_000_000], seconds).cast(LONG).to_pylist() == [2]
    assert arrow_column([2], seconds).cast(LONG).to_pylist() == [2]
    assert arrow_values([[2_000_000]], pa.list_(seconds)).cast(pa.list_(LONG)).to_pylist() == [[2]]
    for kind, value in ((seconds, 1_500_000), (pa.list_(seconds), [1_500_000])):
        with pytest.raises(UnfitValueError, match="would lose data") as refused:
            arrow_values([value, value], kind)
        assert refused.value.row == 0
