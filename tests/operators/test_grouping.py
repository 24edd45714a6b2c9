"""The reductions over groups, each against a plain loop over rows."""

from __future__ import annotations

import datetime
import math
from collections import defaultdict
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.core.segments import (
    Groups,
    group_extreme,
    group_sum,
    group_sum_decimal,
    pair_extreme,
    without_missing,
)
from tests.operators.set_model import net_of_set

INT64 = st.one_of(st.integers(-5, 5), st.integers(-(2**63), 2**63 - 1))


def groups_of(ids: list[int]) -> tuple[Groups, list[int]]:
    """Groups of the rows, and the dense group number of each row."""
    distinct = sorted(set(ids))
    dense = [distinct.index(value) for value in ids]
    return Groups.of_ids(np.array(dense, np.int64), len(distinct)), dense


def rows_of(dense: list[int], values: list[Any]) -> list[list[Any]]:
    found: dict[int, list[Any]] = defaultdict(list)
    for group, value in zip(dense, values, strict=True):
        found[group].append(value)
    return [found[group] for group in sorted(found)]


@given(st.lists(st.tuples(st.integers(0, 4), INT64), min_size=1, max_size=30))
def test_integer_sums_are_exact_or_refused(rows: list[tuple[int, int]]) -> None:
    groups, dense = groups_of([group for group, _ in rows])
    totals = [sum(values) for values in rows_of(dense, [value for _, value in rows])]
    values = np.array([value for _, value in rows], np.int64)
    if all(-(2**63) <= total < 2**63 for total in totals):
        assert group_sum(values, groups).tolist() == totals
    else:
        with pytest.raises(OverflowError):
            group_sum(values, groups)


def test_partial_sums_may_pass_the_range_when_the_total_fits() -> None:
    groups, _ = groups_of([0, 0, 0])
    values = np.array([2**63 - 1, 2**63 - 1, -(2**63)], np.int64)
    assert group_sum(values, groups).tolist() == [2**63 - 2]


def test_decimal_sums_are_exact_or_refused() -> None:
    wide = pa.decimal128(38, 2)
    groups, _ = groups_of([1, 0, 1])
    column = pa.array([Decimal("1.25"), Decimal("-7.00"), Decimal("2.50")], wide)
    assert group_sum_decimal(column, groups).to_pylist() == [Decimal("-7.00"), Decimal("3.75")]
    high = pa.array([Decimal(9 * 10**35), Decimal(1), Decimal(9 * 10**35)], wide)
    with pytest.raises(OverflowError):
        group_sum_decimal(high, groups)


COLUMNS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int64(), INT64),
    (pa.int8(), st.integers(-128, 127)),
    (pa.bool_(), st.booleans()),
    (pa.string(), st.text("abé", max_size=3)),
    (pa.binary(), st.binary(max_size=2)),
    (pa.date32(), st.dates(datetime.date(1960, 1, 1), datetime.date(2040, 1, 1))),
    (pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(datetime.UTC))),
    (pa.decimal128(10, 2), st.integers(-999, 999).map(lambda cents: Decimal(cents) / 100)),
    (pa.float64(), st.sampled_from([math.nan, math.inf, -math.inf, 0.0, 1.5])),
]


def python_extreme(values: list[Any], largest: bool) -> Any:
    """NaN is the largest float; None is no value."""
    there = [value for value in values if value is not None]
    if not there:
        return None
    numbers = [value for value in there if value == value]
    if len(numbers) < len(there) and (largest or not numbers):
        return math.nan
    return max(numbers) if largest else min(numbers)


def same(left: Any, right: Any) -> bool:
    return left == right or (left is not None and right is not None and left != left and right != right)


@pytest.mark.parametrize(("arrow_type", "strategy"), COLUMNS, ids=lambda value: str(value)[:12])
@pytest.mark.parametrize("largest", [False, True])
def test_extremes_of_groups_and_pairs(
    arrow_type: pa.DataType, strategy: st.SearchStrategy[Any], largest: bool
) -> None:
    @given(st.lists(st.tuples(st.integers(0, 3), st.none() | strategy), min_size=1, max_size=15))
    def check(rows: list[tuple[int, Any]]) -> None:
        groups, dense = groups_of([group for group, _ in rows])
        column = pa.array([value for _, value in rows], arrow_type)
        values = column.to_pylist()
        expected = [python_extreme(found, largest) for found in rows_of(dense, values)]
        got = group_extreme(column, groups, largest)
        assert got.type == arrow_type
        assert all(map(same, got.to_pylist(), expected))

        paired = pair_extreme(column, column[::-1].cast(arrow_type), largest)
        pairs = zip(values, values[::-1], strict=True)
        assert paired.type == arrow_type
        assert all(map(same, paired.to_pylist(), [python_extreme(list(pair), largest) for pair in pairs]))

    check()


@given(
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["+I", "-U"]), st.integers(0, 2)), max_size=40),
    st.data(),
)
def test_retractions_are_missing_where_a_set_of_rows_has_none_for_them(
    rows: list[tuple[int, str, int]], data: st.DataObject
) -> None:
    groups, dense = groups_of([group for group, _, _ in rows])
    counts = data.draw(st.lists(st.integers(0, 3), min_size=len(groups.starts), max_size=len(groups.starts)))
    expected = 0
    for group, there in enumerate(counts):
        own = [(kind, (value,)) for at, (_, kind, value) in zip(dense, rows, strict=True) if at == group]
        expected += max(len(net_of_set([], own).missing) - there, 0)

    given_signs = np.array([1 if kind == "+I" else -1 for _, kind, _ in rows], np.int8)
    columns = [pa.array([value for *_, value in rows], pa.int64())]
    signs, missing = without_missing(given_signs, groups, np.array(counts, np.int64), columns)
    assert len(missing) == expected
    assert (given_signs[missing] == -1).all()
    assert np.flatnonzero(signs != given_signs).tolist() == missing.tolist()
    left = counts + np.bincount(dense, signs, len(counts)) if rows else np.array(counts)
    assert (left >= 0).all()
