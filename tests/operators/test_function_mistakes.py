"""What a function of the user's own does that no state can follow: it works, or it is an error; it is never ignored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

from asyncstate import AsyncStateError, ListView, MapView, ValueView
from asyncstate.errors import OperatorError, SchemaError
from asyncstate.functions import AggregateFunction, MutableRow, TableAggregateFunction
from asyncstate.functions.aggregate_functions import list_view, map_view, value_view
from asyncstate.operators import GroupAggregate, GroupTableAggregate, udaf, udtaf
from asyncstate.testing import OperatorHarness

LONG = pa.int64()
ROWS = pa.schema([("k", LONG), ("v", LONG)])
TOTAL = pa.schema([("total", LONG)])
OPTIONS = {"async-state.bundle-size": "64"}
SEEN = pa.schema([map_view("seen", LONG, LONG)])


class Sum(AggregateFunction):
    def create_accumulator(self) -> Any:
        return [0]

    def accumulate(self, accumulator: Any, *args: Any) -> Any:
        accumulator[0] += args[0]

    def get_value(self, accumulator: Any) -> Any:
        return accumulator[0]


class AsyncAccumulate(Sum):
    async def accumulate(self, accumulator: Any, *args: Any) -> None:  # type: ignore[override]
        accumulator[0] += args[0]


class GeneratorAccumulate(Sum):
    def accumulate(self, accumulator: Any, *args: Any) -> Iterator[None]:
        accumulator[0] += args[0]
        yield


class AsyncValue(Sum):
    async def get_value(self, accumulator: Any) -> Any:
        return accumulator[0]


class AsyncCreate(Sum):
    async def create_accumulator(self) -> Any:
        return [0]


class GeneratorMerge(Sum):
    def merge(self, accumulator: Any, accumulators: Any) -> Iterator[None]:  # type: ignore[override]
        yield


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (AsyncAccumulate, "accumulate as an async def, which nothing awaits"),
        (GeneratorAccumulate, "accumulate as a generator, whose body would never run"),
        (AsyncValue, "get_value as an async def"),
        (AsyncCreate, "create_accumulator as an async def"),
        (GeneratorMerge, "merge as a generator"),
    ],
)
def test_methods_that_would_never_run_are_refused(function: type[Sum], text: str) -> None:
    made = udaf(function, result_type="bigint", accumulator_type=TOTAL)
    with pytest.raises(SchemaError, match=text):
        OperatorHarness(GroupAggregate([made("v")]), ROWS, ["k"], changelog=False)


class Top(TableAggregateFunction):
    def create_accumulator(self) -> Any:
        return [0]

    def accumulate(self, accumulator: Any, *args: Any) -> None:
        accumulator[0] = max(accumulator[0], args[0])

    def emit_value(self, accumulator: Any) -> Any:
        yield (accumulator[0],)


class ReturnsRows(Top):
    emit_value = None  # type: ignore[assignment]

    def emit_update_with_retract(self, accumulator: Any, out: Any) -> Any:
        return [(accumulator[0],)]


def test_rows_may_come_from_a_generator_but_are_not_returned_where_they_are_collected(
    async_enabled: bool,
) -> None:
    types: Any = {"result_type": pa.schema([("n", LONG)]), "accumulator_type": TOTAL}
    with _harness(GroupTableAggregate(udtaf(Top, **types)("v")), async_enabled) as harness:
        harness.push([(1, 5), (1, 3)])
        assert harness.end_batch() == [("+I", 1, 5)]
    with _harness(GroupTableAggregate(udtaf(ReturnsRows, **types)("v")), async_enabled) as harness:
        harness.push([(1, 5)])
        with pytest.raises(
            OperatorError, match=r"emit_update_with_retract returned \[\(5,\)\], which would be"
        ):
            harness.end_batch()


class ReturnsAnother(Sum):
    def accumulate(self, accumulator: Any, *args: Any) -> Any:
        return [accumulator[0] + args[0]]


class ReturnsTheSame(Sum):
    def accumulate(self, accumulator: Any, *args: Any) -> Any:
        accumulator[0] += args[0]
        return accumulator


def test_a_new_accumulator_that_is_returned_is_an_error(async_enabled: bool) -> None:
    with _harness(_sums(ReturnsAnother), async_enabled) as harness:
        harness.push([(1, 5), (1, 8)])
        with pytest.raises(
            OperatorError, match=r"ReturnsAnother: accumulate returned \[5\], which would be ignored"
        ):
            harness.end_batch()
    with _harness(_sums(ReturnsTheSame), async_enabled) as harness:
        harness.push([(1, 5), (1, 8)])
        assert harness.end_batch() == [("+I", 1, 13)]


class Counts(AggregateFunction):
    """Values that are different; 0 lets the view be replaced by a new one."""

    def create_accumulator(self) -> Any:
        return MutableRow(seen=MapView())

    def accumulate(self, accumulator: Any, *args: Any) -> None:
        if args[0] == 0:
            accumulator["seen"] = MapView()
        else:
            accumulator["seen"][args[0]] = 1

    def get_value(self, accumulator: Any) -> Any:
        return len(list(accumulator["seen"].keys()))


class Lists(Counts):
    def create_accumulator(self) -> Any:
        return MutableRow(seen=ListView())

    def accumulate(self, accumulator: Any, *args: Any) -> None:
        if args[0] == 0:
            accumulator["seen"] = ListView()
        else:
            accumulator["seen"].add(args[0])

    def get_value(self, accumulator: Any) -> Any:
        return len(list(accumulator["seen"]))


class Values(Counts):
    """The sum of what came since the last 0."""

    def create_accumulator(self) -> Any:
        return MutableRow(seen=ValueView())

    def accumulate(self, accumulator: Any, *args: Any) -> None:
        if args[0] == 0:
            accumulator["seen"] = ValueView()
        else:
            accumulator["seen"].update((accumulator["seen"].value() or 0) + 1)

    def get_value(self, accumulator: Any) -> Any:
        return accumulator["seen"].value() or 0


@pytest.mark.parametrize("together", [1, 2, 6])
@pytest.mark.parametrize(
    ("function", "field"),
    [
        (Counts, map_view("seen", LONG, LONG)),
        (Lists, list_view("seen", LONG)),
        (Values, value_view("seen", LONG)),
    ],
)
def test_a_view_may_be_replaced_by_a_new_one(
    async_enabled: bool, function: type[Counts], field: pa.Field, together: int
) -> None:
    """A new view has what it has, and nothing from before; with any number of rows in a micro-batch."""
    values, expected = [5, 6, 0, 7, 0, 8, 9], [1, 2, 0, 1, 0, 1, 2]
    with _harness(_sums(function, pa.schema([field])), async_enabled) as harness:
        for start in range(0, len(values), together):
            rows = values[start : start + together]
            harness.push([(key, value) for value in rows for key in (1, 2)])
            shown = {row[1]: row[2] for row in harness.end_batch() if row[0] in ("+I", "+U")}
            count = expected[start + len(rows) - 1]
            assert all(shown.get(key, count) == count for key in (1, 2))
            assert shown or start
        with harness.restore(harness.snapshot()) as restored:
            restored.push([(1, 100)])
            assert restored.end_batch()[-1] == ("+U", 1, 3)


class Remembers(Counts):
    """Keeps the view that it was given first."""

    def __init__(self) -> None:
        self.view: Any = None

    def accumulate(self, accumulator: Any, *args: Any) -> None:
        self.view = accumulator["seen"] if self.view is None else self.view
        self.view.put(args[0], 1)


class Shares(Counts):
    """Puts one view into the accumulators of all keys."""

    def __init__(self) -> None:
        self.view = MapView[int, int]()

    def accumulate(self, accumulator: Any, *args: Any) -> None:
        accumulator["seen"] = self.view


class Swaps(Remembers):
    def accumulate(self, accumulator: Any, *args: Any) -> None:
        self.view = accumulator["seen"] if self.view is None else self.view
        accumulator["seen"] = self.view


class KeepsCreated(Remembers):
    def create_accumulator(self) -> Any:
        self.view = MapView()
        return MutableRow(seen=self.view)


class Forgets(Counts):
    def accumulate(self, accumulator: Any, *args: Any) -> None:
        accumulator["seen"] = None

    def get_value(self, accumulator: Any) -> Any:
        return 0


KEYS = [(1, 5), (2, 6)]
BUNDLES = [(1, number) for number in range(1, 200)]


@pytest.mark.parametrize(
    ("function", "rows", "text"),
    [
        (Remembers, KEYS, "belongs to another key"),
        (Remembers, BUNDLES, "belongs to an earlier bundle"),
        (Swaps, KEYS, r"key \(2,\): view 'seen' was replaced by MapView"),
        (Shares, KEYS, r"key \(2,\): view 'seen' was replaced by MapView"),
        (
            KeepsCreated,
            [(1, 5)],
            "that create_accumulator made for 'seen' was changed later",
        ),
        (Forgets, [(1, 5)], r"key \(1,\): view 'seen' was replaced by None"),
    ],
)
def test_views_of_other_keys_are_refused(
    async_enabled: bool, function: type[Counts], rows: Sequence[Any], text: str
) -> None:
    with _harness(_sums(function, SEEN), async_enabled) as harness:
        harness.push(rows)
        with pytest.raises(AsyncStateError, match=text):
            harness.end_batch()


class Prototype(Counts):
    """Every accumulator begins with the same view, which is never written."""

    empty = MapView[int, int]()

    def create_accumulator(self) -> Any:
        return MutableRow(seen=self.empty)


def test_accumulators_may_begin_with_the_same_view(async_enabled: bool) -> None:
    with _harness(_sums(Prototype, SEEN), async_enabled) as harness:
        harness.push([(1, 5), (2, 6), (1, 7)])
        assert harness.end_batch() == [("+I", 1, 2), ("+I", 2, 1)]


def _sums(function: type[AggregateFunction], accumulator: pa.Schema = TOTAL) -> GroupAggregate:
    return GroupAggregate([udaf(function, result_type="bigint", accumulator_type=accumulator)("v")])


def _harness(operator: Any, async_enabled: bool) -> OperatorHarness:
    return OperatorHarness(
        operator, ROWS, ["k"], changelog=False, async_enabled=async_enabled, options=OPTIONS
    )
