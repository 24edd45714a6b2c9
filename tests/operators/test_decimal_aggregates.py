"""Sums and averages of decimals: exact at any scale, of Spark's types, and errors where they do not fit."""

from __future__ import annotations

import decimal
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstate.errors import OperatorError
from asyncstate.operators import GroupAggregate, avg, median, sum_
from asyncstate.testing import OperatorHarness
from operators.core.arrays import to_floats

EXACT = decimal.Context(prec=100)
TYPES = [(9, 2), (18, 0), (19, 4), (28, 10), (38, 0), (38, 18), (38, 20), (38, 30), (38, 38), (20, 20)]


def schema_of(precision: int, scale: int) -> pa.Schema:
    return pa.schema([("k", pa.string()), ("v", pa.decimal128(precision, scale))])


def harness_of(precision: int, scale: int, async_enabled: bool, **more: Any) -> OperatorHarness:
    operator = GroupAggregate([sum_("v").alias("sum"), avg("v").alias("avg")])
    return OperatorHarness(operator, schema_of(precision, scale), ["k"], async_enabled=async_enabled, **more)


@pytest.mark.parametrize(
    ("given", "total", "mean"),
    [
        ((10, 2), (20, 2), (14, 6)),
        ((38, 0), (38, 0), (38, 4)),
        ((30, 20), (38, 20), (34, 24)),
        ((38, 20), (38, 20), (38, 24)),
        ((38, 36), (38, 36), (38, 38)),
    ],
)
def test_types_are_those_of_spark(given: Any, total: Any, mean: Any) -> None:
    """``sum``: decimal(p + 10, s); ``avg``: decimal(p + 4, s + 4); each of at most 38 digits."""
    with harness_of(*given, True) as harness:
        assert harness.output_schema.field("sum").type == pa.decimal128(*total)
        assert harness.output_schema.field("avg").type == pa.decimal128(*mean)


@given(st.data())
def test_sums_and_averages_are_exact(data: st.DataObject) -> None:
    """Of any rows that come and go; a total that is back where it was is equal to what it was."""
    precision, scale = data.draw(st.sampled_from(TYPES))
    # an average has four digits more after the point, and so fewer before it
    digits = min(precision, 33) if scale + 4 <= 38 else min(precision, 38 - 4 - (38 - scale))
    numbers = st.integers(-(10**digits) + 1, 10**digits - 1)
    values = data.draw(
        st.lists(numbers.map(lambda n: Decimal(n).scaleb(-scale, EXACT)), min_size=1, max_size=6)
    )
    gone = data.draw(st.lists(st.sampled_from(values), max_size=3, unique=True))
    cut = data.draw(st.integers(0, len(values)))
    with harness_of(precision, scale, data.draw(st.booleans())) as harness:
        shown: Any = None
        for rows in (values[:cut], values[cut:]):
            harness.push([("a", value) for value in rows])
            shown = _last(harness, shown)
        harness.push([("a", value) for value in gone], kinds=["-D"] * len(gone))
        shown = _last(harness, shown)
    left = list(values)
    for value in gone:
        left.remove(value)
    if not left:
        assert shown is None
        return
    total = _sum(left)
    step = Decimal(1).scaleb(-min(scale + 4, 38), EXACT)
    mean = EXACT.divide(total, len(left)).quantize(step, ROUND_HALF_UP, EXACT)
    assert shown == (total, mean)


def _sum(values: list[Decimal]) -> Decimal:
    total = Decimal(0)
    for value in values:
        total = EXACT.add(total, value)
    return total


def _last(harness: OperatorHarness, shown: Any) -> Any:
    for kind, *row in harness.end_batch():
        shown = None if kind == "-D" else tuple(row[1:]) if kind in ("+I", "+U") else shown
    return shown


@pytest.mark.parametrize("scale", [20, 30, 38])
def test_one_row_of_a_large_scale(async_enabled: bool, scale: int) -> None:
    value = Decimal(1).scaleb(-scale)
    with harness_of(38, scale, async_enabled) as harness:
        harness.push([("a", value), ("b", None)])
        assert harness.end_batch() == [("+I", "a", value, value), ("+I", "b", None, None)]
        harness.push([("a", value)], kinds=["-D"])
        assert harness.end_batch() == [("-D", "a", value, value)]


def test_an_overflow_names_column_type_and_key(async_enabled: bool) -> None:
    largest = Decimal(10**38 - 1)
    rows = [("x", Decimal(1)), ("y", largest), ("y", largest)]
    for chosen, text in (
        (rows[:2], r"key \('y',\): the average of column 'v' does not fit decimal128\(38, 4\); cast"),
        (rows, r"key \('y',\): the sum of column 'v' does not fit decimal128\(38, 0\); cast"),
    ):
        with harness_of(38, 0, async_enabled, changelog=False) as harness:
            harness.push(chosen)
            with pytest.raises(OperatorError, match=text):
                harness.end_batch()


def test_an_overflow_of_integers_names_the_key(async_enabled: bool) -> None:
    rows = pa.schema([("k", pa.string()), ("v", pa.int64())])
    for batches in ([[("a", 1), ("b", 2**62), ("b", 2**62)]], [[("a", 1), ("b", 2**62)], [("b", 2**62)]]):
        with OperatorHarness(
            GroupAggregate([sum_("v")]), rows, ["k"], changelog=False, async_enabled=async_enabled
        ) as harness:
            for batch in batches[:-1]:
                harness.push(batch)
                harness.end_batch()
            harness.push(batches[-1])
            with pytest.raises(
                OperatorError, match=r"key \('b',\): the sum of column 'v' does not fit int64; cast"
            ):
                harness.end_batch()


@given(st.data())
def test_a_decimal_is_the_nearest_float(data: st.DataObject) -> None:
    precision = data.draw(st.integers(1, 38))
    scale = data.draw(st.integers(0, precision))
    numbers = data.draw(st.lists(st.none() | st.integers(1 - 10**precision, 10**precision - 1), max_size=5))
    values = [None if one is None else Decimal(one).scaleb(-scale, EXACT) for one in numbers]
    found = to_floats(pa.array([None, *values], pa.decimal128(precision, scale)).slice(1))
    assert found.to_pylist() == [None if value is None else float(value) for value in values]


@pytest.mark.parametrize(("precision", "scale"), [(9, 2), (15, 14), (18, 2), (38, 20)])
def test_percentiles_of_decimals_are_those_of_the_nearest_floats(
    async_enabled: bool, precision: int, scale: int
) -> None:
    values = [Decimal(number).scaleb(-scale, EXACT) for number in (3, 7, 29, -57, 123456789)]
    operator = GroupAggregate([median("v").alias("median")])
    with OperatorHarness(
        operator, schema_of(precision, scale), ["k"], async_enabled=async_enabled
    ) as harness:
        harness.push([(str(value), value) for value in values])
        assert harness.end_batch() == [("+I", str(value), float(value)) for value in values]
