"""GroupTableAggregate: rows a key, from a function that gives all of them and from one that gives what has changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncstate import MapView
from asyncstate.errors import OperatorError, SchemaError
from asyncstate.functions import TableAggregateFunction, map_view
from asyncstate.testing import OperatorHarness, net
from operators import GroupAggregate, GroupTableAggregate, count, udaf, udtaf

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64())])
LONG = pa.int64()
ROWS = pa.schema([("value", LONG), ("place", LONG)])


class Top2(TableAggregateFunction):
    """The two largest values, with how often each value is there in a view."""

    def create_accumulator(self) -> Any:
        return [0, MapView()]

    def accumulate(self, accumulator: Any, value: Any) -> None:
        accumulator[0] += 1
        accumulator[1][value] = (accumulator[1][value] or 0) + 1

    def retract(self, accumulator: Any, value: Any) -> None:
        accumulator[0] -= 1
        left = accumulator[1][value] - 1
        if left:
            accumulator[1][value] = left
        else:
            del accumulator[1][value]

    def emit_value(self, accumulator: Any) -> Any:
        return top_of(Counter(dict(accumulator[1].items())))

    def get_accumulator_type(self) -> Any:
        return pa.schema([pa.field("n", LONG), map_view("counts", LONG, LONG)])

    def get_result_type(self) -> Any:
        return ROWS


class Top2Incremental(TableAggregateFunction):
    """The same, knowing what it has shown."""

    def create_accumulator(self) -> Any:
        return {"values": [], "shown": []}

    def accumulate(self, accumulator: Any, value: Any) -> None:
        accumulator["values"] = [*accumulator["values"], value]

    def retract(self, accumulator: Any, value: Any) -> None:
        values = list(accumulator["values"])
        values.remove(value)
        accumulator["values"] = values

    def emit_update_with_retract(self, accumulator: Any, out: Any) -> None:
        shown = accumulator["shown"]
        top = [value for value, _ in top_of(Counter(accumulator["values"]))]
        for place in range(2):
            old, new = (part[place] if place < len(part) else None for part in (shown, top))
            if old != new:
                if old is not None:
                    out.retract((old, place + 1))
                if new is not None:
                    out.collect({"place": place + 1, "value": new})
        accumulator["shown"] = top

    def get_accumulator_type(self) -> Any:
        return pa.schema([("values", pa.list_(LONG)), ("shown", pa.list_(LONG))])

    def get_result_type(self) -> Any:
        return ROWS


def top_of(counts: Counter[int]) -> list[tuple[int, int]]:
    values = sorted(counts.elements(), reverse=True)[:2]
    return [(value, place + 1) for place, value in enumerate(values)]


FUNCTIONS = [Top2, Top2Incremental]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_rows_that_stay_are_not_put_out_again(function: Any, async_enabled: bool) -> None:
    operator = GroupTableAggregate(udtaf(function)("v"))
    with OperatorHarness(operator, SCHEMA, ["k"], async_enabled=async_enabled) as harness:
        harness.push([("a", 3), ("b", 1), ("a", 5)])
        assert harness.end_batch() == [("+I", "a", 5, 1), ("+I", "a", 3, 2), ("+I", "b", 1, 1)]
        harness.push([("a", 4), ("b", 0)])
        assert harness.end_batch() == [("-D", "a", 3, 2), ("+I", "a", 4, 2), ("+I", "b", 0, 2)]
        harness.push([("a", 4), ("b", 0), ("b", 1)], kinds=["-D", "-D", "-D"])
        assert harness.end_batch() == [
            ("-D", "a", 4, 2), ("+I", "a", 3, 2), ("-D", "b", 1, 1), ("-D", "b", 0, 2)
        ]  # fmt: skip
        harness.push([("b", 7)], kinds=["-D"])
        assert harness.end_batch() == []
        assert harness.statistics()["counter.retractions_without_state"] == 1
        harness.push([("a", 3), ("a", 5)], kinds=["-D", "-D"])
        assert Counter(harness.end_batch()) == Counter([("-D", "a", 5, 1), ("-D", "a", 3, 2)])
        assert harness.state_entries() == {}


@settings(deadline=None)
@given(
    batches=st.lists(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 4)), max_size=6), max_size=5),
    taken=st.lists(st.integers(0, 99), max_size=6),
    function=st.sampled_from(FUNCTIONS),
    bundle=st.sampled_from(["1", "100"]),
    async_enabled=st.booleans(),
)
def test_netted_output_is_that_of_a_loop(
    batches: Any, taken: Any, function: Any, bundle: str, async_enabled: bool
) -> None:
    operator = GroupTableAggregate(udtaf(function)("v"))
    rows: list[tuple[str, int]] = []
    options = {"async-state.bundle-size": bundle}
    with OperatorHarness(operator, SCHEMA, ["k"], async_enabled=async_enabled, options=options) as harness:
        for batch in batches:
            rows += batch
            changes, kinds = list(batch), ["+I"] * len(batch)
            while taken and rows:
                changes.append(rows.pop(taken.pop() % len(rows)))
                kinds.append("-D")
            harness.push(changes, kinds=kinds)
            assert {row[0] for row in harness.end_batch()} <= {"+I", "-D"}
            assert net(harness.output) == expected(rows)
        assert bool(harness.state_entries()) == bool(rows)


def expected(rows: Sequence[tuple[str, int]]) -> Counter[Any]:
    keys = {key for key, _ in rows}
    return Counter(
        (key, *row) for key in keys for row in top_of(Counter(value for one, value in rows if one == key))
    )


class NoRows(TableAggregateFunction):
    def create_accumulator(self) -> Any:
        return [0]

    def accumulate(self, accumulator: Any, *args: Any) -> None:
        accumulator[0] += 1


class WrongRows(NoRows):
    def emit_value(self, accumulator: Any) -> Any:
        return "text"


TYPES: dict[str, Any] = {"result_type": ROWS, "accumulator_type": pa.list_(LONG)}


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: GroupTableAggregate(count()), "'count' does not return rows"),
        (
            lambda: GroupAggregate([udtaf(NoRows, **TYPES)("v")]),
            "returns rows; use it in GroupTableAggregate",
        ),
        (lambda: udaf(NoRows, **TYPES), "returns rows; use udtaf"),
        (lambda: udtaf(count, **TYPES), "is not of type TableAggregateFunction"),
    ],
)
def test_what_does_not_belong_is_refused(make: Any, text: str) -> None:
    with pytest.raises(SchemaError, match=text):
        make()


def test_a_function_that_emits_nothing_is_refused() -> None:
    with pytest.raises(
        SchemaError, match="needs a method emit_value or emit_update_with_retract, which NoRows lacks"
    ):
        OperatorHarness(GroupTableAggregate(udtaf(NoRows, **TYPES)("v")), SCHEMA, ["k"], changelog=False)


def test_what_is_no_rows_is_an_error(async_enabled: bool) -> None:
    operator = GroupTableAggregate(udtaf(WrongRows, **TYPES)("v"))
    with OperatorHarness(operator, SCHEMA, ["k"], changelog=False, async_enabled=async_enabled) as harness:
        harness.push([("a", 1)])
        with pytest.raises(
            OperatorError, match=("emit_value returned 'text', which is not an iterable of rows")
        ):
            harness.end_batch()
