"""What is done to rows in the task that they leave."""

from __future__ import annotations

import math
import pickle
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark import cloudpickle

from asyncstate.operator import InputSpec
from asyncstate.partial_aggregation import LOCAL_ROWS, LimitColumn, LocalFunction, PartialLimit, local_name
from asyncstate.runtime import FilterStep, OutputPipeline, PartialAggregate, PartialTopN, ProjectStep
from operators import GroupAggregate, Rank, max_, sum_

SCHEMA = pa.schema(
    [
        ("k", pa.string()),
        ("number", pa.int64()),
        ("small", pa.int16()),
        ("text", pa.string()),
        ("real", pa.float64()),
        ("place", pa.int64()),
        ("row_kind", pa.string()),
    ]
)
PAYLOAD = pa.schema(list(SCHEMA)[:-1])
ORDERS = st.lists(
    st.builds(
        LimitColumn, st.sampled_from(["number", "small", "text", "real"]), st.booleans(), st.booleans()
    ),
    min_size=1,
    max_size=3,
    unique_by=lambda one: one.column,
)
EDGE = st.sampled_from([None, -(1 << 63), (1 << 63) - 1, -1, 0, 1, 2])
SMALL = st.sampled_from([None, -5, 0, 7])
TEXT = st.sampled_from([None, "", "a", "ab", "ä"])
REAL = st.sampled_from([None, -math.inf, -1.0, -0.0, 0.0, math.inf, math.nan])


def batch_of(rows: list[Any]) -> pa.RecordBatch:
    rows = [(*row, place, "+I") for place, row in enumerate(rows)]
    columns = list(zip(*rows, strict=True)) or [()] * len(SCHEMA)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def sort_key(row: dict[str, Any], order: list[LimitColumn]) -> list[Any]:
    """Compares as the order says; -1 and 1 say where nulls stand beside 0, the values."""
    found: list[Any] = []
    for one in order:
        value = row[one.column]
        if value is None:
            found.append((-1 if one.nulls_first else 1, 0))
        else:
            if one.column == "real":  # NaN is the largest
                value = (math.isnan(value), 0 if math.isnan(value) else value)
            found.append((0, Reversed(value) if one.descending else value))
    return [*found, row["place"]]


class Reversed:
    def __init__(self, value: Any) -> None:
        self.value = value

    def __lt__(self, other: Any) -> bool:
        return bool(other.value < self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Reversed) and bool(other.value == self.value)

    def __hash__(self) -> int:
        return hash(self.value)


@given(
    rows=st.lists(
        st.tuples(st.sampled_from(["a", "b", None]), EDGE, SMALL, TEXT, REAL), min_size=1, max_size=20
    ),
    order=ORDERS,
    limit=st.integers(1, 3),
    function=st.sampled_from(["row_number", "rank", "dense_rank"]),
    within=st.sampled_from([(), ("small",), ("small", "text")]),
)
def test_the_best_rows_of_each_key_are_left(
    rows: Any, order: list[LimitColumn], limit: int, function: Any, within: tuple[str, ...]
) -> None:
    batch = batch_of(rows)
    found = top_n(("k",), PartialLimit(tuple(order), limit, function, within))(batch)
    groups: dict[Any, list[dict[str, Any]]] = {}
    for row in batch.to_pylist():
        groups.setdefault((row["k"], *(row[name] for name in within)), []).append(row)
    expected = []
    for (_, *values), mine in groups.items():
        keys = sorted(sort_key(row, order) for row in mine)
        for row in mine:
            before = keys[: keys.index(sort_key(row, order))]
            better = [key[:-1] for key in before if key[:-1] != sort_key(row, order)[:-1]]
            numbers = {"row_number": len(before), "rank": len(better), "dense_rank": distinct_of(better)}
            if None in values or numbers[function] < limit:
                expected.append(row["place"])
    assert found.column("place").to_pylist() == sorted(expected)
    assert found.schema == SCHEMA


def top_n(key: tuple[str, ...], limit: PartialLimit) -> PartialTopN:
    return PartialTopN(Rank("number", 1), InputSpec(PAYLOAD, key, limit=limit))


def distinct_of(keys: list[Any]) -> int:
    """How many different ones there are among sorted keys."""
    return sum(at == 0 or key != keys[at - 1] for at, key in enumerate(keys))


def test_steps_that_have_run_here_can_be_sent() -> None:
    """As of a stage that ran in the driver, whose next micro-batch is for the executors."""
    operator, spec = GroupAggregate([sum_("number"), max_("text")]), InputSpec(PAYLOAD, ("k",))
    local = replace(spec, local=operator.partial_aggregation([spec]))
    best = top_n(("k",), PartialLimit((LimitColumn("number", False, True),), 1))
    rows = batch_of([("a", 2, 1, "x", None), ("a", 1, 1, "y", None), ("b", 3, 1, "z", None)])
    for step in (PartialAggregate(operator, local), best, ProjectStep((("number", "n"),))):
        found = step(rows)
        sent = pickle.loads(cloudpickle.dumps(step))
        assert sent(rows).equals(found)
        assert pickle.loads(cloudpickle.dumps(sent))(rows).equals(found)


def test_without_a_key_the_best_of_all() -> None:
    batch = batch_of([("a", 2, 1, "", None), ("b", 1, 1, "", None), ("c", 3, 1, "", None)])
    best = top_n((), PartialLimit((LimitColumn("number", False, True),), 2))
    assert best(batch).column("place").to_pylist() == [0, 1]


def test_steps_follow_each_other() -> None:
    def large(rows: pa.RecordBatch) -> pa.Array:
        return pa.array([number is not None and number > 1 for number in rows.column("n").to_pylist()])

    renamed = ProjectStep((("number", "n"), ("k", "k")))
    after = OutputPipeline((renamed, FilterStep(large)), pa.schema([("n", pa.int64()), ("k", pa.string())]))
    found = after(batch_of([("a", 1, 1, "", 0.5), ("b", 2, 1, "", 0.5), ("c", None, 1, "", 0.5)]))
    assert found.to_pylist() == [{"n": 2, "k": "b", "row_kind": "+I"}]
    nothing = batch_of([])
    assert after(nothing).num_rows == 0


@pytest.mark.parametrize("number", [0, 1, 5])
def test_keeping_all_rows_copies_none(number: int) -> None:
    batch = batch_of([("a", 1, 1, "", 0.5)] * number)
    assert FilterStep(lambda rows: pa.array([True] * rows.num_rows, pa.bool_()))(batch) is batch


@pytest.mark.parametrize("keys", [200, 20_000])
def test_rows_of_many_keys_are_aggregated_by_the_operator_that_gets_them(keys: int) -> None:
    numbers = [(place * place * 7_919 + place) % keys for place in range(2 * keys)]
    rows = batch_of([(f"key {number}", -place, 1, None, None) for place, number in enumerate(numbers)])
    operator = GroupAggregate([sum_("number"), max_("number")])
    spec = InputSpec(PAYLOAD, ("k",))
    phase = operator.partial_aggregation([spec])
    assert phase is not None
    made = PartialAggregate(operator, replace(spec, local=phase))(rows).to_pydict()
    expected: dict[str, tuple[int, int, int]] = {}
    for place, number in enumerate(numbers):
        count, total, most = expected.get(f"key {number}", (0, 0, -place))
        expected[f"key {number}"] = (count + 1, total - place, most)
    assert made["k"] == list(expected)
    by = {column.function: made[local_name(at)] for at, column in enumerate(phase.columns)}
    halves = zip(by[LocalFunction.SUM_HIGH], by[LocalFunction.SUM_LOW], strict=True)
    totals = [(high << 32) + low for high, low in halves]
    found = zip(made[LOCAL_ROWS], totals, by[LocalFunction.MAX], strict=True)
    assert list(found) == list(expected.values())
    assert set(made["row_kind"]) == {"+I"}
