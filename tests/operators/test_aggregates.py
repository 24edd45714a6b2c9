"""Aggregate plans: any split of the rows gives the results of a loop over them; wrong columns are refused."""

from __future__ import annotations

import math
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstate.errors import OperatorError, SchemaError
from operators import Aggregate, avg, count, max_, min_, sum_
from operators.aggregate.aggregate_plan import AggregatePlan
from operators.core.segments import Groups

SCHEMA = pa.schema(
    [
        ("group", pa.int64()),
        ("n", pa.int32()),
        ("x", pa.float64()),
        ("d", pa.decimal128(10, 2)),
        ("s", pa.string()),
        ("flag", pa.bool_()),
        ("nested", pa.list_(pa.int64())),
    ]
)
AGGREGATES = [
    count(),
    count("n"),
    count().where("flag").alias("flagged"),
    sum_("n"),
    sum_("d").where("flag"),
    avg("n"),
    avg("d"),
    min_("s"),
    max_("s").where("flag"),
    min_("n"),
    max_("x"),
]
ROWS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.none() | st.integers(-1000, 1000),
        st.none() | st.integers(-8, 8).map(float),
        st.none() | st.integers(-99999, 99999).map(lambda cents: Decimal(cents) / 100),
        st.none() | st.text("abc", max_size=2),
        st.none() | st.booleans(),
        st.none(),
    ),
    min_size=1,
    max_size=20,
)


def batch_of(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = [pa.array([row[i] for row in rows], field.type) for i, field in enumerate(SCHEMA)]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def python_aggregate(aggregate: Aggregate, rows: list[tuple[Any, ...]]) -> Any:
    names = SCHEMA.names
    if aggregate.condition is not None:
        rows = [row for row in rows if row[names.index(aggregate.condition)]]
    if aggregate.column is None:
        return len(rows)
    values = [row[names.index(aggregate.column)] for row in rows]
    values = [value for value in values if value is not None]
    if aggregate.kind.name == "count":
        return len(values)
    if not values:
        return None
    functions: dict[str, Any] = {
        "sum": sum,
        "min": min,
        "max": max,
        "avg": _mean,
    }
    return functions[aggregate.kind.name](values)


def _mean(values: list[Any]) -> Any:
    if not isinstance(values[0], Decimal):
        return float(sum(values)) / len(values)
    return (sum(values, Decimal(0)) / len(values)).quantize(Decimal("0.000001"), ROUND_HALF_UP)


def grouped(rows: list[tuple[Any, ...]]) -> Groups:
    return Groups.of_ids(np.array([row[0] for row in rows], np.int64), 3)


@given(ROWS, st.data())
def test_any_split_gives_the_same_results(rows: list[tuple[Any, ...]], data: st.DataObject) -> None:
    every = [(group, None, None, None, None, None, None) for group in range(3)]  # no group is empty
    rows = every + rows
    cut = data.draw(st.integers(1, len(rows)))
    first, second = rows[:cut] + every, every + rows[cut:]
    plan = AggregatePlan(AGGREGATES, SCHEMA, "test")

    merged = plan.merge(
        plan.combine(plan.lift(batch_of(first)), grouped(first)),
        plan.combine(plan.lift(batch_of(second)), grouped(second)),
    )
    # The second phase of a two-phase aggregation: partial states as rows, combined once more.
    halves = [plan.lift(batch_of(part)) for part in (first, second)]
    together = [pa.concat_arrays(pair) for pair in zip(*halves, strict=True)]
    combined = plan.combine(together, grouped(first + second))

    for states in (merged, combined):
        assert [column.type for column in states] == [field.type for field in plan.state_schema]
        results = plan.results(states)
        assert [column.type for column in results] == [field.type for field in plan.result_fields]
        for aggregate, column in zip(AGGREGATES, results, strict=True):
            for group, value in enumerate(column.to_pylist()):
                expected = python_aggregate(aggregate, [row for row in first + second if row[0] == group])
                near = isinstance(value, float) and expected is not None and math.isclose(value, expected)
                assert value == expected or near, (aggregate, group)


@given(ROWS)
def test_retracting_every_row_leaves_nothing(rows: list[tuple[Any, ...]]) -> None:
    every = [(group, None, None, None, None, None, None) for group in range(3)]
    rows = every + rows
    plan = AggregatePlan([count(), sum_("n"), sum_("x"), sum_("d"), avg("n")], SCHEMA, "test", retract=True)
    added = plan.combine(plan.lift(batch_of(rows)), grouped(rows))
    taken = plan.combine(plan.lift(batch_of(rows), np.full(len(rows), -1, np.int8)), grouped(rows))
    results = plan.results(plan.merge(added, taken))
    assert [column.to_pylist() for column in results] == [[0] * 3] + [[None] * 3] * 4


def test_rounding_does_not_outlive_the_rows_it_is_from() -> None:
    schema = pa.schema([("x", pa.float64())])
    plan = AggregatePlan([sum_("x")], schema, "test", retract=True)
    groups = Groups.of_ids(np.array([0, 0, 0]), 1)
    added = plan.combine(plan.lift(pa.RecordBatch.from_pydict({"x": [0.1, 0.2, 0.3]}, schema=schema)), groups)
    signs = np.full(3, -1, np.int8)
    taken = plan.combine(
        plan.lift(pa.RecordBatch.from_pydict({"x": [0.3, 0.2, 0.1]}, schema=schema), signs), groups
    )
    assert added[2].to_pylist() != [-value for value in taken[2].to_pylist()]
    assert plan.merge(added, taken)[2].to_pylist() == [0.0]


def test_aggregates_share_what_they_have_in_common() -> None:
    plan = AggregatePlan(
        [count(), sum_("n"), avg("n"), count("n"), avg("n").where("flag").alias("m")], SCHEMA, "test"
    )
    assert plan.state_schema.names == ["count1", "count.n", "sum.n", "count.n.where.flag", "sum.n.where.flag"]
    assert [field.name for field in plan.result_fields] == ["count", "sum_n", "avg_n", "count_n", "m"]


def test_minimum_and_maximum_of_a_changelog_share_their_values() -> None:
    plan = AggregatePlan(
        [min_("n"), max_("n"), max_("n").where("flag").alias("m")], SCHEMA, "test", retract=True
    )
    assert [multiset.state_name for multiset in plan.multisets] == ["values.n", "values.n.where.flag"]


def test_result_types() -> None:
    plan = AggregatePlan([sum_("n"), sum_("x"), sum_("d"), avg("d"), max_("d")], SCHEMA, "test")
    assert [field.type for field in plan.result_fields] == [
        pa.int64(),
        pa.float64(),
        pa.decimal128(20, 2),
        pa.decimal128(14, 6),
        pa.decimal128(10, 2),
    ]


def test_a_sum_that_does_not_fit_is_refused() -> None:
    schema = pa.schema([("n", pa.int64())])
    plan = AggregatePlan([sum_("n")], schema, "GroupAggregate")
    one = pa.RecordBatch.from_pydict({"n": [2**62, 2**62]}, schema=schema)
    both = Groups.of_ids(np.array([0, 0]), 1)
    with pytest.raises(
        OperatorError, match=r"GroupAggregate: the sum of column 'n' does not fit int64; cast"
    ):
        plan.combine(plan.lift(one), both)
    state = plan.combine(plan.lift(one.slice(1)), Groups.of_ids(np.array([0]), 1))
    with pytest.raises(OperatorError, match="does not fit int64"):
        plan.merge(state, state)


@pytest.mark.parametrize(
    ("aggregates", "message"),
    [
        ([sum_("nope")], "needs a column 'nope', which the input does not have; its columns are: group, n"),
        (
            [sum_("s")],
            "aggregate 'sum_s' needs an integer, float or decimal but column 's' is of type string",
        ),
        ([avg("flag")], "column 'flag' is of type bool"),
        ([max_("nested")], "aggregate 'max_nested' needs a number, string"),
        ([count().where("n")], r"where\('n'\) of aggregate 'count' needs a boolean column, not int32"),
        ([count().where("nope")], "needs a column 'nope'"),
        (
            [sum_("n"), sum_("n").where("flag")],
            r"two output columns have the name 'sum_n'; rename .* with .alias",
        ),
    ],
)
def test_wrong_columns_are_refused(aggregates: list[Aggregate], message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        AggregatePlan(aggregates, SCHEMA, "GroupAggregate")
