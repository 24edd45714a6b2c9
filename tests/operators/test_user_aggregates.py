"""Aggregate functions of the user's own in GroupAggregate: the examples of the documents they are from, and models."""

from __future__ import annotations

import datetime as dt
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from decimal import Decimal
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncstate import ListView, MapView, RowKind, ValueView
from asyncstate.config import resolve
from asyncstate.errors import AsyncStateError, OperatorError, SchemaError
from asyncstate.functions import (
    AggregateFunction,
    BundledAggregateFunction,
    KeySegmentApplied,
    KeySegments,
    MutableRow,
    SegmentRow,
    SegmentsApplied,
    list_view,
    map_view,
    value_view,
)
from asyncstate.testing import OperatorHarness
from operators import GroupAggregate, avg, count, max_, sum_, udaf

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64()), ("w", pa.int64()), ("flag", pa.bool_())])
LONG = pa.int64()


# -- the functions of FLIP-139 --------------------------------------------------------------------------


class CountAggregateFunction(AggregateFunction):
    """FLIP-139's first example; it counts rows, whatever their values."""

    def get_value(self, accumulator: Any) -> Any:
        return accumulator[0]

    def create_accumulator(self) -> Any:
        return [0]

    def accumulate(self, accumulator: Any, *args: Any) -> None:
        accumulator[0] = accumulator[0] + 1

    def retract(self, accumulator: Any, *args: Any) -> None:
        accumulator[0] = accumulator[0] - 1

    def merge(self, accumulator: Any, accumulators: Any) -> None:
        for other_acc in accumulators:
            accumulator[0] = accumulator[0] + other_acc[0]

    def get_accumulator_type(self) -> Any:
        return pa.list_(LONG)

    def get_result_type(self) -> Any:
        return LONG


class CountDistinctAggregateFunction(AggregateFunction):
    """FLIP-139's example of a view."""

    def get_value(self, accumulator: Any) -> Any:
        return accumulator["count"]

    def create_accumulator(self) -> Any:
        return MutableRow(count=0, map=MapView())

    def accumulate(self, accumulator: Any, *args: Any) -> None:
        if args[0] in accumulator["map"]:
            accumulator["map"][args[0]] += 1
        else:
            accumulator["count"] += 1
            accumulator["map"][args[0]] = 1

    def retract(self, accumulator: Any, *args: Any) -> None:
        if args[0] in accumulator["map"]:
            accumulator["map"][args[0]] -= 1
            if accumulator["map"][args[0]] <= 0:
                del accumulator["map"][args[0]]
                accumulator["count"] -= 1

    def get_accumulator_type(self) -> Any:
        return pa.schema([pa.field("count", LONG), map_view("map", LONG, LONG)])

    def get_result_type(self) -> Any:
        return LONG


class WeightedMean(AggregateFunction):
    """Of each container that an accumulator may be."""

    def __init__(self, container: str = "list") -> None:
        self.container = container

    def create_accumulator(self) -> Any:
        return {
            "list": lambda: [0, 0],
            "tuple": lambda: (0, 0),
            "dict": lambda: {"total": 0, "weight": 0},
            "row": lambda: MutableRow(total=0, weight=0),
        }[self.container]()

    def _add(self, accumulator: Any, total: int, weight: int) -> None:
        if self.container == "list":
            accumulator[0] += total
            accumulator[1] += weight
        else:
            accumulator["total"] += total
            accumulator["weight"] += weight

    def accumulate(self, accumulator: Any, value: Any, weight: Any) -> None:
        if value is not None and weight is not None:
            self._add(accumulator, value * weight, weight)

    def retract(self, accumulator: Any, value: Any, weight: Any) -> None:
        if value is not None and weight is not None:
            self._add(accumulator, -value * weight, -weight)

    def get_value(self, accumulator: Any) -> Any:
        total, weight = accumulator.values() if isinstance(accumulator, dict) else accumulator
        return total / weight if weight else None


MEAN_TYPES: dict[str, Any] = {
    "result_type": pa.float64(),
    "accumulator_type": pa.schema([("total", LONG), ("weight", LONG)]),
}


# -- the functions of the BundledAggregateFunction document -----------------------------------------------


class MyAvg(BundledAggregateFunction):
    """The document's average, segment by segment."""

    def __init__(self) -> None:
        self.calls: list[list[tuple[Any, list[tuple[str, Any]], list[Any]]]] = []

    def supports_retracting(self) -> bool:
        return True

    def supports_merging(self) -> bool:
        return True

    def bundled_accumulate_retract(self, segments: KeySegments) -> Sequence[KeySegmentApplied]:
        self.calls.append(
            [
                (
                    one.key,
                    [(row.kind.name, row[0]) for row in one.rows],
                    [list(acc) for acc in one.accumulators],
                )
                for one in segments
            ]
        )
        updates = []
        for segment in segments:
            total = sum(acc[0] for acc in segment.accumulators)
            number = sum(acc["count"] for acc in segment.accumulators)
            previous = self.average(total, number) if segment.accumulators else None
            after_each = []
            for row in segment.rows:
                sign = 1 if row.is_accumulate else -1
                total, number = total + sign * row[0], number + sign
                if segment.updated_values_after_each_row:
                    after_each.append(self.average(total, number))
            updates.append(
                KeySegmentApplied([total, number], previous, self.average(total, number), after_each)
            )
        return updates

    @staticmethod
    def average(total: int, number: int) -> int | None:
        return total // number if number else None

    def get_accumulator_type(self) -> Any:
        return pa.schema([("sum", LONG), ("count", LONG)])

    def get_result_type(self) -> Any:
        return LONG


class NumpyMean(BundledAggregateFunction):
    """An average with numpy."""

    def supports_retracting(self) -> bool:
        return True

    def bundled_accumulate_retract(self, segments: KeySegments) -> SegmentsApplied:
        values = (
            segments.columns[0].fill_null(0).to_numpy() * segments.signs if segments.num_rows else np.zeros(0)
        )
        known = (
            segments.signs * segments.columns[0].is_valid().to_numpy(zero_copy_only=False)
            if len(values)
            else values
        )
        owners, size = segments.segment_of_row, len(segments)
        sums = np.bincount(owners, values, size).astype(np.int64)
        counts = np.bincount(owners, known, size).astype(np.int64)
        stored = [field.fill_null(0).to_numpy() for field in segments.accumulators.flatten()]
        new = [stored[0] + sums, stored[1] + counts]
        return SegmentsApplied(
            pa.StructArray.from_arrays([pa.array(new[0]), pa.array(new[1])], ["sum", "count"]),
            self.mean(*stored),
            self.mean(*new),
        )

    @staticmethod
    def mean(sums: Any, counts: Any) -> pa.Array:
        return pa.array(sums / np.where(counts == 0, 1, counts), mask=counts == 0)

    def get_accumulator_type(self) -> Any:
        return pa.schema([("sum", LONG), ("count", LONG)])

    def get_result_type(self) -> Any:
        return pa.float64()


class CalledMean(NumpyMean):
    """The same by a call to the outside."""

    async def bundled_accumulate_retract(self, segments: KeySegments) -> SegmentsApplied:  # type: ignore[override]
        return super().bundled_accumulate_retract(segments)


# -- running --------------------------------------------------------------------------------------------


@pytest.fixture
def open_harness(async_enabled: bool) -> Iterator[Any]:
    opened: list[OperatorHarness] = []

    def open_one(aggregates: Sequence[Any], **options: Any) -> OperatorHarness:
        operator = GroupAggregate(aggregates, **options.pop("operator", {}))
        harness = OperatorHarness(operator, SCHEMA, ["k"], async_enabled=async_enabled, **options)
        opened.append(harness)
        return harness

    yield open_one
    for harness in opened:
        harness.close()


def push(harness: OperatorHarness, *rows: tuple[Any, ...]) -> None:
    """Rows as (kind, k, v), or with w and flag behind."""
    full = [(*row, *(1, True)[len(row) - 3 :]) for row in rows]
    harness.push([row[1:] for row in full], kinds=[row[0] for row in full])


def test_count_of_the_document(open_harness: Any) -> None:
    harness = open_harness([udaf(CountAggregateFunction(), name="int_count")("v").alias("n"), count()])
    push(harness, ("+I", "a", 1), ("+I", "b", None), ("+I", "a", 3))
    assert harness.end_batch() == [("+I", "a", 2, 2), ("+I", "b", 1, 1)]
    push(harness, ("-D", "a", 1), ("-D", "b", None))
    assert harness.end_batch() == [("-U", "a", 2, 2), ("+U", "a", 1, 1), ("-D", "b", 1, 1)]
    push(harness, ("+I", "a", 1), ("+I", "b", 5))
    assert harness.end_batch() == [("-U", "a", 1, 1), ("+U", "a", 2, 2), ("+I", "b", 1, 1)]


def test_count_distinct_of_the_document(open_harness: Any) -> None:
    harness = open_harness([udaf(CountDistinctAggregateFunction)("v").alias("n")])
    push(harness, ("+I", "a", 1), ("+I", "a", 1), ("+I", "a", 2), ("+I", "b", 7))
    assert harness.end_batch() == [("+I", "a", 2), ("+I", "b", 1)]
    push(harness, ("-U", "a", 1), ("+U", "a", 3), ("+I", "b", None))
    assert harness.end_batch() == [("-U", "a", 2), ("+U", "a", 3), ("-U", "b", 1), ("+U", "b", 2)]
    push(harness, ("-D", "a", 1), ("-D", "a", 2), ("-D", "a", 3), ("-D", "b", 7))
    assert harness.end_batch() == [("-D", "a", 3), ("-U", "b", 2), ("+U", "b", 1)]
    push(harness, ("-D", "b", None))
    assert harness.end_batch() == [("-D", "b", 1)]
    assert harness.state_entries() == {}


@pytest.mark.parametrize("container", ["list", "tuple", "dict", "row"])
def test_containers_of_accumulators(open_harness: Any, container: str) -> None:
    mean = udaf(WeightedMean(container), **MEAN_TYPES)
    harness = open_harness([mean("v", "w").alias("m"), sum_("v"), mean("w", "w").alias("other")])
    push(harness, ("+I", "a", 1, 1, True), ("+I", "a", 4, 2, True), ("+I", "b", None, 3, True))
    assert harness.end_batch() == [("+I", "a", 3.0, 5, 5 / 3), ("+I", "b", None, None, 3.0)]
    push(harness, ("-D", "a", 1, 1, True))
    assert harness.end_batch() == [("-U", "a", 3.0, 5, 5 / 3), ("+U", "a", 4.0, 4, 2.0)]


def test_filter_and_distinct(open_harness: Any) -> None:
    number = udaf(CountAggregateFunction, name="number")
    harness = open_harness(
        [
            number("v").alias("all"),
            number("v").where("flag").alias("flagged"),
            number("v").distinct().alias("different"),
            number("v").distinct().where("flag").alias("both"),
        ]
    )
    push(harness, ("+I", "a", 1, 1, False), ("+I", "a", 1, 1, True), ("+I", "a", 2, 1, False))
    assert harness.end_batch() == [("+I", "a", 3, 1, 2, 1)]
    push(harness, ("-D", "a", 1, 1, False), ("-D", "a", 2, 1, False), ("+I", "b", 1, 1, None))
    assert harness.end_batch() == [
        ("-U", "a", 3, 1, 2, 1), ("+U", "a", 1, 1, 1, 1), ("+I", "b", 1, 0, 1, 0)
    ]  # fmt: skip


def test_the_example_of_the_bundled_document(open_harness: Any) -> None:
    function = MyAvg()
    harness = open_harness([udaf(function)("v").alias("mean")], options={"async-state.bundled-agg.size": "3"})
    push(harness, ("+I", "odd", 1), ("+I", "even", 2), ("+I", "odd", 5))
    assert harness.end_batch() == [("+I", "odd", 3), ("+I", "even", 2)]
    push(harness, ("-U", "odd", 1), ("-U", "even", 2), ("+U", "even", 6))
    assert harness.end_batch() == [("-U", "odd", 3), ("+U", "odd", 5), ("-U", "even", 2), ("+U", "even", 6)]
    push(harness, ("+U", "odd", 3))
    assert harness.end_batch() == [("-U", "odd", 5), ("+U", "odd", 4)]


def test_bundled_functions_see_the_kinds_of_rows(open_harness: Any) -> None:
    """Those of the document's example, and of rows that a filter or DISTINCT leaves."""
    RECORDED.append([])
    mean = udaf(_Forwarding(len(RECORDED) - 1), name="mean")
    harness = open_harness([mean("v").alias("a"), mean("v").where("flag").distinct().alias("b")])
    push(harness, ("+I", "odd", 1), ("+I", "even", 2), ("+I", "odd", 5))
    harness.end_batch()
    RECORDED[-1].clear()
    push(harness, ("-D", "odd", 1), ("-U", "even", 2), ("+U", "even", 6))
    harness.end_batch()
    calls = [{key: rows for key, rows, _ in call if rows} for call in RECORDED[-1]]
    seen = [call for call in calls if call]  # one more, without rows, asks for a value
    changed = {("odd",): [("DELETE", 1)], ("even",): [("UPDATE_BEFORE", 2), ("UPDATE_AFTER", 6)]}
    assert seen == [changed, changed]


def test_a_row_is_accumulated_or_retracted() -> None:
    kinds = {kind: SegmentRow.of((1,), kind) for kind in RowKind}
    assert {kind for kind, row in kinds.items() if row.is_retract} == {RowKind.UPDATE_BEFORE, RowKind.DELETE}
    assert all(row.is_accumulate != row.is_retract for row in kinds.values())


def test_bundled_functions_get_segments(open_harness: Any) -> None:
    """At most ``size`` rows at a time, with the accumulators of the call before."""
    RECORDED.append([])
    harness = open_harness(
        [udaf(_Forwarding(len(RECORDED) - 1))("v").alias("mean")],
        options={"async-state.bundled-agg.size": "2"},
    )
    push(harness, *[("+I", "a", value) for value in (2, 4, 6, 8, 10)])
    assert harness.end_batch()[-1] == ("+U", "a", 6)
    seen = RECORDED[-1]
    assert [[row for _, rows, _ in call for row in rows] for call in seen] == [
        [("INSERT", 2), ("INSERT", 4)], [("INSERT", 6), ("INSERT", 8)], [("INSERT", 10)]
    ]  # fmt: skip
    assert [held for call in seen for _, _, held in call] == [[], [[6, 2]], [[20, 4]]]


@pytest.mark.parametrize(("latency", "calls"), [("5 ms", [1, 1, 1, 1]), ("15 ms", [2, 2]), ("auto", [4])])
def test_rows_for_bundled_functions_wait_no_longer_than_allowed(
    latency: str, calls: list[int], open_harness: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that moves 10 ms whenever it is read: with each batch of rows that comes, and as a bundle begins."""
    RECORDED.append([])
    function = _Forwarding(len(RECORDED) - 1)
    options = {"async-state.bundled-agg.allow-latency": latency}
    assert (
        resolve(options, {}).bundled_agg_allow_latency_ms == {"5 ms": 5, "15 ms": 15, "auto": None}[latency]
    )
    harness = open_harness([udaf(function)("v")], options=options)
    ticks = itertools.count()
    clock = SimpleNamespace(monotonic=lambda: next(ticks) / 100)
    monkeypatch.setattr("asyncstate.runtime.partition.bundles.time", clock)
    for value in range(4):
        push(harness, ("+I", "a", value))
    harness.end_batch()
    assert [sum(len(rows) for _, rows, _ in call) for call in RECORDED[-1]] == calls


RECORDED: list[list[Any]] = []


class _Forwarding(MyAvg):
    """Tells its calls to a list of this module, since functions are pickled for each micro-batch."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def bundled_accumulate_retract(self, segments: KeySegments) -> Sequence[KeySegmentApplied]:
        result = super().bundled_accumulate_retract(segments)
        RECORDED[self.number].extend(self.calls)
        self.calls.clear()
        return result


# -- models ---------------------------------------------------------------------------------------------

VALUES = st.none() | st.integers(-3, 3)
BATCHES = st.lists(
    st.lists(st.tuples(st.sampled_from("abc"), VALUES, VALUES, st.booleans()), max_size=8), max_size=5
)


class Extremes(AggregateFunction):
    """Smallest and largest by a map of counts; the last values by a list; the first by a value."""

    def create_accumulator(self) -> Any:
        return [0, MapView(), ListView(), ValueView()]

    def accumulate(self, accumulator: Any, value: Any) -> None:
        if value is None:
            return
        accumulator[0] += 1
        accumulator[1][value] = (accumulator[1][value] or 0) + 1
        accumulator[2].add(value)
        if accumulator[3].is_empty():
            accumulator[3].update(value)

    def get_value(self, accumulator: Any) -> Any:
        if not accumulator[0]:
            return None
        keys, values = list(accumulator[1].keys()), list(accumulator[2])
        return (
            f"{min(keys)} {max(keys)} {values[-2:]} {accumulator[3].value()} {dict(accumulator[1].items())}"
        )

    def get_accumulator_type(self) -> Any:
        return pa.schema(
            [
                pa.field("seen", LONG),
                map_view("counts", LONG, LONG),
                list_view("values", LONG),
                value_view("first", LONG),
            ]
        )

    def get_result_type(self) -> Any:
        return pa.string()


class ExtremesByFutures(Extremes):
    """The same by the asynchronous half of the views, whose futures are done."""

    def get_value(self, accumulator: Any) -> Any:
        seen, counts, values, first = accumulator
        assert counts.async_is_empty().get() == (not seen)
        if not seen:
            return None
        last, keys = list(values.async_get().get())[-2:], list(counts.async_keys().get())
        found = {key: counts.async_get(key).get() for key in keys}
        return f"{min(keys)} {max(keys)} {last} {first.async_value().get()} {found}"


def extremes_of(values: Sequence[Any]) -> Any:
    known = [value for value in values if value is not None]
    if not known:
        return None
    counts = dict(sorted(Counter(known).items()))
    return f"{min(known)} {max(known)} {known[-2:]} {known[0]} {counts}"


@settings(deadline=None)
@given(
    batches=BATCHES,
    bundle=st.sampled_from([1, 2, 100]),
    function=st.sampled_from([Extremes, ExtremesByFutures]),
    async_enabled=st.booleans(),
)
def test_views_of_all_kinds_are_those_of_a_loop(
    batches: Any, bundle: int, function: Any, async_enabled: bool
) -> None:
    operator = GroupAggregate([udaf(function)("v").alias("text"), count()])
    seen: dict[str, list[Any]] = {}
    shown: dict[str, Any] = {}
    options = {"async-state.bundle-size": str(bundle)}
    with ExitStack() as opened:
        harness = opened.enter_context(
            OperatorHarness(
                operator, SCHEMA, ["k"], changelog=False, async_enabled=async_enabled, options=options
            )
        )
        for number, rows in enumerate(batches):
            if number == 2:
                harness = opened.enter_context(harness.restore(harness.snapshot(), parallelism=3))
            harness.push(rows)
            for kind, key, *values in harness.end_batch():
                if kind in ("+I", "+U"):
                    shown[key] = values
            for key, value, *_ in rows:
                seen.setdefault(key, []).append(value)
            assert shown == {key: [extremes_of(values), len(values)] for key, values in seen.items()}


@settings(deadline=None)
@given(batches=BATCHES, taken=st.lists(st.integers(0, 99), max_size=6), async_enabled=st.booleans())
def test_functions_of_all_kinds_agree_over_changelogs(batches: Any, taken: Any, async_enabled: bool) -> None:
    """One operator with built-in, plain, and bundled functions, some of them over distinct or chosen rows."""
    mean = udaf(WeightedMean, **MEAN_TYPES)
    operator = GroupAggregate(
        [
            avg("v").alias("mean"),
            udaf(NumpyMean)("v").alias("numpy"),
            udaf(CalledMean)("v").alias("called"),
            mean("v", "w").where("flag").alias("weighted"),
            count("v").distinct().alias("different"),
            udaf(CountDistinctAggregateFunction)("v").alias("by_view"),
            udaf(NumpyMean, name="chosen")("v").where("flag").distinct().alias("chosen"),
            max_("v"),
        ]
    )
    rows: list[Any] = []
    shown: dict[str, Any] = {}
    options = {"async-state.bundled-agg.size": "3"}
    with OperatorHarness(operator, SCHEMA, ["k"], async_enabled=async_enabled, options=options) as harness:
        for batch in batches:
            kinds = ["+I"] * len(batch)
            changes = list(batch)
            rows += batch
            while taken and rows:
                gone = rows.pop(taken.pop() % len(rows))
                changes.append(gone)
                kinds.append("-D")
            harness.push(changes, kinds=kinds)
            for kind, key, *values in harness.end_batch():
                if kind in ("+I", "+U"):
                    shown[key] = values
                elif kind == "-D":
                    del shown[key]
            assert shown == {
                key: expected([row for row in rows if row[0] == key]) for key in {row[0] for row in rows}
            }
        assert bool(harness.state_entries()) == bool(rows)


def expected(rows: Sequence[Any]) -> list[Any]:
    values = [value for _, value, _, _ in rows if value is not None]
    mean = sum(values) / len(values) if values else None
    pairs = [(value, weight) for _, value, weight, flag in rows if flag and None not in (value, weight)]
    weights = sum(weight for _, weight in pairs)
    chosen = {value for _, value, _, flag in rows if flag and value is not None}
    return [
        mean,
        mean,
        mean,
        sum(value * weight for value, weight in pairs) / weights if weights else None,
        len(set(values)),
        len({value for _, value, _, _ in rows}),
        sum(chosen) / len(chosen) if chosen else None,
        max(values, default=None),
    ]


# -- what is refused --------------------------------------------------------------------------------------


class NoRetract(AggregateFunction):
    def create_accumulator(self) -> Any:
        return [0]

    def accumulate(self, accumulator: Any, *args: Any) -> None:
        accumulator[0] += 1

    def get_value(self, accumulator: Any) -> Any:
        return accumulator[0]


class NoValue(NoRetract):
    get_value = AggregateFunction.get_value


TYPES: dict[str, Any] = {"result_type": LONG, "accumulator_type": pa.list_(LONG)}


@pytest.mark.parametrize(
    ("aggregate", "changelog", "text"),
    [
        (lambda: udaf(NoRetract, **TYPES)("v"), True, "NoRetract does not support: write its method retract"),
        (lambda: udaf(NoValue, **TYPES)("v"), False, "needs a method get_value, which NoValue lacks"),
        (lambda: udaf(NoRetract, result_type=LONG)("v"), False, "has no accumulator_type"),
        (lambda: udaf(NoRetract, accumulator_type=pa.list_(LONG))("v"), False, "NoRetract.get_result_type"),
        (lambda: udaf(NoRetract, **TYPES)("missing"), False, "needs a column 'missing'"),
        (lambda: udaf(NoRetract, **TYPES)("v").where("v"), False, "needs a boolean column"),
    ],
)
def test_what_a_function_lacks_is_refused(aggregate: Any, changelog: bool, text: str) -> None:
    with pytest.raises(SchemaError, match="GroupAggregate") as caught:
        OperatorHarness(GroupAggregate([aggregate()]), SCHEMA, ["k"], changelog=changelog)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: udaf(lambda value: value), "is not of type AggregateFunction or BundledAggregateFunction"),
        (lambda: udaf(NoRetract, **TYPES)(1), "1 is not a column"),
        (lambda: udaf(NoRetract, **TYPES)().distinct(), "name the column whose values to count"),
        (lambda: count().distinct(), "name the column whose values to count"),
    ],
)
def test_what_is_no_aggregate_is_refused(make: Any, text: str) -> None:
    with pytest.raises(SchemaError, match=text):
        make()


def test_two_functions_of_one_name_are_refused() -> None:
    first, second = udaf(NoRetract, **TYPES, name="n"), udaf(CountAggregateFunction, **TYPES, name="n")
    with pytest.raises(SchemaError, match="has the name and columns of another function's"):
        OperatorHarness(
            GroupAggregate([first("v").alias("a"), second("v").alias("b")]), SCHEMA, ["k"], changelog=False
        )


class Wrong(NoRetract):
    def get_value(self, accumulator: Any) -> Any:
        return "text"


class Forgetful(MyAvg):
    def bundled_accumulate_retract(self, segments: KeySegments) -> Sequence[KeySegmentApplied]:
        return []


class Failing(NoRetract):
    def accumulate(self, accumulator: Any, *args: Any) -> None:
        raise ZeroDivisionError("no")


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (udaf(Wrong, **TYPES), "which does not fit its type int64"),
        (udaf(Forgetful), "returned 0 results for 1 segments"),
        (udaf(Failing, **TYPES), "no"),
    ],
)
def test_what_does_not_fit_is_an_error(open_harness: Any, function: Any, text: str) -> None:
    harness = open_harness([function("v")], changelog=False)
    harness.push([("a", 1, 1, True)])
    with pytest.raises((AsyncStateError, ZeroDivisionError), match=text):
        harness.end_batch()


class Narrow(AggregateFunction):
    """A sum of tenths in 32 bits: as a field, or in a view."""

    def __init__(self, in_view: bool) -> None:
        self.in_view = in_view

    def create_accumulator(self) -> Any:
        return MutableRow(total=MapView() if self.in_view else 0.0)

    def accumulate(self, accumulator: Any, *args: Any) -> None:
        if self.in_view:
            accumulator["total"]["a"] = (accumulator["total"].get("a") or 0.0) + args[0] / 10
        else:
            accumulator["total"] += args[0] / 10

    def get_value(self, accumulator: Any) -> Any:
        return accumulator["total"]["a"] if self.in_view else accumulator["total"]


@pytest.mark.parametrize("in_view", [False, True])
def test_what_32_bits_round_is_taken_back_as_it_was_emitted(open_harness: Any, in_view: bool) -> None:
    narrow = pa.float32()
    field = map_view("total", pa.string(), narrow) if in_view else pa.field("total", narrow)
    made = udaf(Narrow(in_view), result_type="double", accumulator_type=pa.schema([field]))
    harness = open_harness([made("v")], changelog=False)
    harness.push([("a", 1, 0, True)])
    ((_, _, first),) = harness.end_batch()
    harness.push([("a", 2, 0, True)])
    taken_back, added = harness.end_batch()
    assert taken_back == ("-U", "a", first)
    assert first == float(np.float32(0.1))
    assert added[2] == float(np.float32(first + 0.2))


FORMS: dict[str, tuple[pa.DataType, Any, Any]] = {
    "decimal": (pa.decimal128(10, 2), Decimal("1"), Decimal("1.00")),
    "decimals": (pa.list_(pa.decimal128(10, 2)), [Decimal("1")], [Decimal("1.00")]),
    "whole float": (pa.float64(), 1, 1.0),
    "tuple": (pa.list_(LONG), (1, 2), [1, 2]),
    "struct": (pa.struct([("a", pa.float64()), ("b", LONG)]), {"b": 1, "a": 2}, {"a": 2.0, "b": 1}),
    "struct of a tuple": (pa.struct([("a", pa.float64())]), (1.0,), {"a": 1.0}),
    "map": (pa.map_(pa.string(), LONG), {"a": 1}, [("a", 1)]),
    "maps": (pa.list_(pa.map_(pa.string(), LONG)), [{"a": 1}], [[("a", 1)]]),
    "bytes": (pa.binary(), bytearray(b"a"), b"a"),
    "as it is": (pa.struct([("a", pa.list_(pa.date32()))]), *[{"a": [dt.date(2020, 1, 1)]}] * 2),
}


class Shown(AggregateFunction):
    """How often it was called, and the text of a value that the first call has stored in the given place."""

    MAKES: ClassVar[dict[str, Any]] = {
        "field": lambda: None,
        "value": ValueView,
        "list": ListView,
        "map": MapView,
    }

    def __init__(self, place: str, arrow_type: pa.DataType, value: Any) -> None:
        self.place, self.type, self.value = place, arrow_type, value

    def create_accumulator(self) -> Any:
        return [0, self.MAKES[self.place]()]

    def accumulate(self, accumulator: Any, *args: Any) -> None:
        accumulator[0] += 1
        if accumulator[0] > 1:
            return
        if self.place == "field":
            accumulator[1] = self.value
        elif self.place == "value":
            accumulator[1].update(self.value)
        elif self.place == "list":
            accumulator[1].add(self.value)
        else:
            accumulator[1]["x"] = self.value

    def retract(self, accumulator: Any, *args: Any) -> None:
        raise AssertionError("never called")

    def get_value(self, accumulator: Any) -> str:
        number, kept = accumulator
        if self.place == "map":
            kept = kept["x"]
        elif self.place == "list":
            (kept,) = kept
        elif self.place == "value":
            kept = kept.value()
        return f"{number} {kept!r}"

    def get_accumulator_type(self) -> pa.Schema:
        kept = {
            "field": lambda: pa.field("kept", self.type),
            "value": lambda: value_view("kept", self.type),
            "list": lambda: list_view("kept", self.type),
            "map": lambda: map_view("kept", pa.string(), self.type),
        }[self.place]()
        return pa.schema([pa.field("n", LONG), kept])


@pytest.mark.parametrize("form", list(FORMS))
@pytest.mark.parametrize("place", list(Shown.MAKES))
def test_a_value_has_one_form_before_and_after_it_is_stored(open_harness: Any, place: str, form: str) -> None:
    arrow_type, given, read = FORMS[form]
    made = udaf(Shown(place, arrow_type, given), result_type="string", name="shown")
    harness = open_harness([made("v")], changelog=False)
    harness.push([("a", 1, 0, True)])
    assert harness.end_batch() == [("+I", "a", f"1 {read!r}")]
    harness.push([("a", 2, 0, True)])
    assert harness.end_batch() == [("-U", "a", f"1 {read!r}"), ("+U", "a", f"2 {read!r}")]


@pytest.mark.parametrize("at_once", [False, True])
def test_the_key_of_a_map_view_has_one_zero(open_harness: Any, at_once: bool) -> None:
    harness = open_harness([udaf(Zeros(), result_type="string", name="zeros")("v")], changelog=False)
    harness.push([("a", 1, 0, True)])
    if not at_once:
        assert harness.end_batch()[-1][-1] == "[(0.0, 1)]"
    harness.push([("a", 2, 0, True)])
    assert harness.end_batch()[-1][-1] == "[(0.0, 2)]"


class Zeros(AggregateFunction):
    """The entries of a view in which both zeros are counted."""

    def create_accumulator(self) -> Any:
        return [MapView()]

    def accumulate(self, accumulator: Any, *args: Any) -> None:
        zero = -0.0 if args[0] == 1 else 0.0
        accumulator[0][zero] = (accumulator[0][zero] or 0) + 1

    def retract(self, accumulator: Any, *args: Any) -> None:
        raise AssertionError("never called")

    def get_value(self, accumulator: Any) -> str:
        return repr(list(accumulator[0].entries()))

    def get_accumulator_type(self) -> pa.Schema:
        return pa.schema([map_view("zeros", pa.float64(), LONG)])


class Days(AggregateFunction):
    """How many keys a view has to which the day, and midnight of the day, are added."""

    def create_accumulator(self) -> Any:
        return MutableRow(days=MapView())

    def accumulate(self, accumulator: Any, *args: Any) -> None:
        days = accumulator["days"]
        days.put(dt.date(2020, 1, 1), 1)
        days.put(dt.datetime(2020, 1, 1), (days.get(dt.datetime(2020, 1, 1)) or 0) + 1)

    def get_value(self, accumulator: Any) -> Any:
        return [(str(day), count) for day, count in accumulator["days"].entries()]


def test_a_user_key_is_the_same_however_it_is_written(open_harness: Any) -> None:
    days = pa.schema([map_view("days", pa.date32(), LONG)])
    made = udaf(Days(), result_type=pa.map_(pa.string(), LONG), accumulator_type=days)
    harness = open_harness([made("v")], changelog=False)
    harness.push([("a", 1, 0, True)])
    assert harness.end_batch() == [("+I", "a", [("2020-01-01", 2)])]
    harness.push([("a", 1, 0, True)])
    assert harness.end_batch() == []  # the stored entry is the same


class TextMean(NumpyMean):
    @staticmethod
    def mean(sums: Any, counts: Any) -> pa.Array:
        return NumpyMean.mean(sums, counts).cast(pa.string())


def test_columns_of_a_bundled_function_have_to_be_of_its_types(open_harness: Any) -> None:
    harness = open_harness([udaf(TextMean())("v")], changelog=False)
    harness.push([("a", 1, 1, True)])
    with pytest.raises(
        OperatorError,
        match=r"key \('a',\): bundled_accumulate_retract returned, among the .* values, .*type double",
    ):
        harness.end_batch()


class Keeps(AggregateFunction):
    """An accumulator that ``created`` makes, in which ``added``, a name or place, counts rows."""

    def __init__(self, created: Any, added: Any) -> None:
        self.created, self.added = created, added

    def create_accumulator(self) -> Any:
        return self.created()

    def accumulate(self, accumulator: Any, *values: Any) -> None:
        before = accumulator.get(self.added, 0) if isinstance(accumulator, dict) else accumulator[self.added]
        accumulator[self.added] = before + 1

    def get_value(self, accumulator: Any) -> Any:
        return accumulator[self.added]


@pytest.mark.parametrize(
    ("created", "added"),
    [
        (lambda: {"total": 0, "n": 0, "other": 0}, "other"),
        (lambda: [0, 0, 0], 2),
        (lambda: [0], 0),
        (lambda: (0, 0, 0), 2),
        (lambda: MutableRow(total=0, other=0), "other"),
        (
            lambda: MutableRow(n=0, total=0),
            "n",
        ),  # stored in the order of the type, it would come back as the total
        (lambda: MutableRow(0, 0, 0), 2),
    ],
)
def test_a_created_accumulator_of_other_fields_is_refused(created: Any, added: Any) -> None:
    function = udaf(
        Keeps(created, added), result_type=LONG, accumulator_type="struct<total: bigint, n: bigint>"
    )
    with pytest.raises(
        SchemaError, match=r"accumulator of type .* is one of the fields total, n, in this order"
    ):
        OperatorHarness(GroupAggregate([function("v")]), SCHEMA, ["k"], changelog=False)


def test_what_an_accumulator_would_not_store_is_an_error(open_harness: Any) -> None:
    """Its value was right within a bundle and forgotten behind it."""
    types = {"result_type": LONG, "accumulator_type": "struct<total: bigint, n: bigint>"}
    later = udaf(Keeps(dict, "n"), **types)
    harness = open_harness([later("v")], changelog=False)
    harness.push([("a", 1, 1, True)])
    with pytest.raises(AsyncStateError, match="an accumulator has no field 'total'"):
        harness.end_batch()
    more = udaf(Keeps(lambda: {"total": 0, "n": 0}, "other"), **types)
    harness = open_harness([more("v")], changelog=False)
    harness.push([("a", 1, 1, True)])
    with pytest.raises(
        AsyncStateError, match="more than the fields total, n of its type, but only those are stored"
    ):
        harness.end_batch()


class PlainMean(AggregateFunction):
    """Divides without asking whether there is anything."""

    def create_accumulator(self) -> Any:
        return [0, 0]

    def accumulate(self, accumulator: Any, value: Any) -> None:
        accumulator[0] += value
        accumulator[1] += 1

    def get_value(self, accumulator: Any) -> Any:
        return accumulator[0] / accumulator[1]

    def get_result_type(self) -> Any:
        return pa.float64()

    def get_accumulator_type(self) -> Any:
        return pa.list_(LONG)


def test_a_function_without_a_value_of_nothing(open_harness: Any) -> None:
    """It is not asked of keys that are new, and null where no row of a key counts."""
    mean = udaf(PlainMean)
    harness = open_harness(
        [mean("v").alias("all"), mean("v").where("flag").alias("flagged")], changelog=False
    )
    push(harness, ("+I", "a", 1, 1, False), ("+I", "b", 3, 1, True))
    assert harness.end_batch() == [("+I", "a", 1.0, None), ("+I", "b", 3.0, 3.0)]
    push(harness, ("+I", "a", 2, 1, True))
    assert harness.end_batch() == [("-U", "a", 1.0, None), ("+U", "a", 1.5, 2.0)]


class Shared(PlainMean):
    """All keys would get the same list."""

    def __init__(self) -> None:
        self.nothing = [0, 0]

    def create_accumulator(self) -> Any:
        return self.nothing


def test_an_accumulator_that_keys_would_share_is_refused(open_harness: Any) -> None:
    with pytest.raises(SchemaError, match="Shared: create_accumulator returns the same list each time"):
        open_harness([udaf(Shared())("v")], changelog=False)


class Ending(PlainMean):
    """Its ``method`` looks for a value that is not there."""

    def __init__(self, method: str) -> None:
        self.method = method

    def accumulate(self, accumulator: Any, value: Any) -> None:
        if self.method == "accumulate":
            next(known for known in (1, 2) if known == value)
        super().accumulate(accumulator, value)

    def get_value(self, accumulator: Any) -> Any:
        if self.method == "get_value":
            next(known for known in (1, 2) if known == accumulator[0])
        return super().get_value(accumulator)


@pytest.mark.parametrize("method", ["accumulate", "get_value"])
def test_next_without_a_default_leaves_out_no_rows(open_harness: Any, method: str) -> None:
    """StopIteration ends a loop over calls: the rows after it would not be aggregated."""
    harness = open_harness([udaf(Ending(method))("v")], changelog=False)
    push(harness, ("+I", "a", 1), ("+I", "b", 3), ("+I", "c", 2))
    with pytest.raises(OperatorError, match=f"Ending: {method} raised StopIteration.*give next.. a default"):
        harness.end_batch()


def test_a_date_that_python_has_not_is_named(async_enabled: bool) -> None:
    """As in rows: functions get Python values, and Spark's dates go beyond the year 9999."""
    days = pa.array([2_932_897], pa.int32()).cast(pa.date32())
    rows = pa.RecordBatch.from_arrays([pa.array(["a"]), days], names=["k", "day"])
    operator = GroupAggregate([udaf(CountAggregateFunction(), name="day_count")("day").alias("n")])
    with OperatorHarness(operator, rows.schema, ["k"], async_enabled=async_enabled) as harness:
        harness.push(rows)
        with pytest.raises(OperatorError, match="'day' has a date outside the years 1 to 9999"):
            harness.end_batch()
