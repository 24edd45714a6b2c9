"""OverAggregate gives what a loop over each key's rows gives, in every form, mode and cut."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncstate import StateTtl
from asyncstate.errors import SchemaError
from asyncstate.functions import AggregateFunction, BundledAggregateFunction, KeySegmentApplied, KeySegments
from asyncstate.testing import OperatorHarness, net
from operators import (
    OverAggregate,
    avg,
    collect,
    count,
    dense_rank,
    desc,
    first_value,
    lag,
    last_value,
    lead,
    max_,
    min_,
    range_,
    rank_,
    row_number,
    rows,
    stddev_pop,
    string_agg,
    sum_,
    udaf,
    unbounded,
)

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64()), ("flag", pa.bool_()), ("at", pa.timestamp("us"))])
LONG = pa.int64()


class OwnSum(AggregateFunction):
    def create_accumulator(self) -> Any:
        return [0, 0]

    def accumulate(self, accumulator: Any, value: Any) -> None:
        if value is not None:
            accumulator[0] += value
            accumulator[1] += 1

    def retract(self, accumulator: Any, value: Any) -> None:
        if value is not None:
            accumulator[0] -= value
            accumulator[1] -= 1

    def get_value(self, accumulator: Any) -> Any:
        return accumulator[0] if accumulator[1] else None


class OwnCount(AggregateFunction):
    def create_accumulator(self) -> Any:
        return [0]

    def accumulate(self, accumulator: Any, *values: Any) -> None:
        accumulator[0] += 1

    def get_value(self, accumulator: Any) -> Any:
        return accumulator[0]


class BundledSum(BundledAggregateFunction):
    def supports_retracting(self) -> bool:
        return True

    def bundled_accumulate_retract(self, segments: KeySegments) -> Any:
        applied = []
        for segment in segments:
            total, number = segment.accumulators[0] if segment.accumulators else (0, 0)
            before, after_each = total if number else None, []
            for row in segment.rows:
                if row[0] is not None:
                    sign = 1 if row.is_accumulate else -1
                    total, number = total + sign * row[0], number + sign
                after_each.append(total if number else None)
            applied.append(KeySegmentApplied([total, number], before, total if number else None, after_each))
        return applied


TYPES: Any = {"result_type": LONG, "accumulator_type": pa.schema([("total", LONG), ("number", LONG)])}
AGGREGATES = [
    count().alias("n"),
    sum_("v").where("flag").alias("s"),
    min_("v").alias("low"),
    max_("v").alias("high"),
    avg("v").alias("mean"),
    udaf(OwnSum, **TYPES)("v").alias("own"),
    udaf(BundledSum, **TYPES)("v").where("flag").alias("bundled"),
    count("v").distinct().alias("different"),
    sum_("v").where("flag").distinct().alias("different_sum"),
    udaf(OwnSum, **TYPES)("v").distinct().alias("own_different"),
    udaf(BundledSum, **TYPES)("v").where("flag").distinct().alias("bundled_different"),
]


def expected(frame_rows: Sequence[Any]) -> tuple[Any, ...]:
    values = [row[1] for row in frame_rows if row[1] is not None]
    chosen = [row[1] for row in frame_rows if row[1] is not None and row[2]]
    total = sum(values) if values else None
    chosen_total = sum(chosen) if chosen else None
    mean = sum(values) / len(values) if values else None
    return (
        len(frame_rows),
        chosen_total,
        min(values, default=None),
        max(values, default=None),
        mean,
        total,
        chosen_total,
        len(set(values)),
        sum(set(chosen)) if chosen else None,
        sum(set(values)) if values else None,
        sum(set(chosen)) if chosen else None,
    )


def over(ordered: Sequence[Any], in_frame: Callable[[int, int], bool]) -> list[tuple[Any, ...]]:
    """Rows of one key in their order, with the aggregates of those that ``in_frame(row, other)`` names."""
    everything = range(len(ordered))
    return [
        (*row, *expected([ordered[other] for other in everything if in_frame(at, other)]))
        for at, row in enumerate(ordered)
    ]


FRAMES = {
    "unbounded": unbounded(),
    "unbounded rows": unbounded(peers=False),
    "rows 0": rows(0),
    "rows 2": rows(2),
    "range": range_(4),
}


def model(name: str, ordered: Sequence[Any], order: Callable[[Any], Any]) -> list[tuple[Any, ...]]:
    places = [order(row) for row in ordered]

    def in_frame(at: int, other: int) -> bool:
        if name == "unbounded":
            return places[other] <= places[at]
        if name == "unbounded rows":
            return other <= at
        if name == "range":
            return ordered[at][3] - 4 <= ordered[other][3] <= ordered[at][3]
        return at - int(name.split()[1]) <= other <= at

    return over(ordered, in_frame)


VALUE = st.none() | st.integers(-5, 5)
ROW = st.tuples(st.sampled_from("abc"), VALUE, st.none() | st.booleans(), st.integers(0, 12))
CUTS = st.lists(st.integers(0, 6), max_size=4)


def cut(rows_: Sequence[Any], cuts: Sequence[int]) -> list[list[Any]]:
    found, left = [], list(rows_)
    for size in cuts:
        found.append(left[:size])
        left = left[size:]
    return [*found, left]


@settings(deadline=None)
@given(
    arrived=st.lists(ROW, max_size=14),
    cuts=CUTS,
    name=st.sampled_from(list(FRAMES)),
    parallelism=st.sampled_from([1, 3]),
    async_enabled=st.booleans(),
)
def test_event_time_is_that_of_a_loop(
    arrived: Any, cuts: Any, name: str, parallelism: int, async_enabled: bool
) -> None:
    """Rows within a key and time are told apart by when they came."""
    operator = OverAggregate(AGGREGATES, FRAMES[name])
    found: list[Any] = []
    with OperatorHarness(
        operator,
        SCHEMA,
        ["k"],
        event_time="at",
        watermark_delay=100,
        changelog=False,
        async_enabled=async_enabled,
        parallelism=parallelism,
    ) as harness:
        for number, part in enumerate(cut(arrived, cuts)):
            harness.push(part)
            late = max([row[3] for batch in cut(arrived, cuts)[: number + 1] for row in batch], default=0)
            later = [row[3] for batch in cut(arrived, cuts)[number + 1 :] for row in batch]
            harness.advance_watermark(min([late, *(time - 1 for time in later)]))
            found += harness.end_batch()
        found += harness.finish()
        assert harness.state_entries() == {} or not name.startswith("range")
    wanted: list[Any] = []
    for key in "abc":
        mine = sorted((row for row in arrived if row[0] == key), key=lambda row: row[3])
        wanted += [("+I", *row) for row in model(name, mine, lambda row: row[3])]
    assert Counter(map(repr, found)) == Counter(map(repr, wanted))


ORDERS: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "by value": ([desc("v")], lambda row: (row[1] is None, -(row[1] or 0))),
    "by time": ("at", lambda row: row[3]),
}


@settings(deadline=None)
@given(
    batches=st.lists(st.lists(ROW, max_size=6), max_size=4),
    taken=st.lists(st.integers(0, 99), max_size=6),
    name=st.sampled_from(list(FRAMES)),
    order=st.sampled_from(list(ORDERS)),
    bundle=st.sampled_from(["2", "1000"]),
    async_enabled=st.booleans(),
)
def test_any_order_over_a_changelog_is_that_of_a_loop(
    batches: Any, taken: Any, name: str, order: str, bundle: str, async_enabled: bool
) -> None:
    order_by, place = ORDERS["by time" if name == "range" else order]
    operator = OverAggregate(AGGREGATES, FRAMES[name], order_by=order_by)
    held: list[Any] = []
    options = {"async-state.bundle-size": bundle}
    with OperatorHarness(operator, SCHEMA, ["k"], async_enabled=async_enabled, options=options) as harness:
        for batch in batches:
            changes, kinds = list(batch), ["+I"] * len(batch)
            while taken and held:
                changes.append(held.pop(taken.pop() % len(held)))
                kinds.append("-D")
            held += batch
            harness.push(changes, kinds=kinds)
            harness.end_batch()
            shown = net((kind, repr(row)) for kind, *row in harness.output)
            wanted = Counter()
            for key in "abc":
                mine = sorted((row for row in held if row[0] == key), key=place)
                wanted.update((repr(list(row)),) for row in model(name, mine, place))
            if name in ("unbounded", "range"):  # rows that are equal in the order have no order of their own
                assert shown == wanted
            assert sum(shown.values()) == len(held)
            assert min(shown.values(), default=0) >= 0
        assert bool(harness.state_entries()) == bool(held)


PLACES = [row_number(), rank_(), dense_rank(), lag("v"), lead("v", 2)]


def test_places_in_an_order_of_their_own(async_enabled: bool) -> None:
    operator = OverAggregate(PLACES, order_by=desc("v"))
    with OperatorHarness(operator, SCHEMA, ["k"], async_enabled=async_enabled) as harness:
        harness.push([("a", 5, True, 0), ("a", 7, True, 1), ("a", 5, False, 2), ("a", 1, True, 3)])
        assert sorted(harness.end_batch(), key=lambda row: row[5]) == [
            ("+I", "a", 7, True, 1, 1, 1, 1, None, 5),
            ("+I", "a", 5, True, 0, 2, 2, 2, 7, 1),
            ("+I", "a", 5, False, 2, 3, 2, 2, 5, None),
            ("+I", "a", 1, True, 3, 4, 4, 3, 5, None),
        ]
        harness.push([("a", 5, True, 0)], kinds=["-D"])
        assert harness.end_batch() == [
            ("-D", "a", 5, True, 0, 2, 2, 2, 7, 1),
            ("-U", "a", 7, True, 1, 1, 1, 1, None, 5),
            ("-U", "a", 5, False, 2, 3, 2, 2, 5, None),
            ("-U", "a", 1, True, 3, 4, 4, 3, 5, None),
            ("+U", "a", 7, True, 1, 1, 1, 1, None, 1),
            ("+U", "a", 5, False, 2, 2, 2, 2, 7, None),
            ("+U", "a", 1, True, 3, 3, 3, 3, 5, None),
        ]


def test_places_in_order_of_time(async_enabled: bool) -> None:
    operator = OverAggregate([row_number(), rank_(), dense_rank(), count()])
    settings_: Any = {"event_time": "at", "watermark_delay": 0, "changelog": False}
    with OperatorHarness(operator, SCHEMA, ["k"], async_enabled=async_enabled, **settings_) as harness:
        harness.push([("a", 1, True, 1), ("a", 2, True, 2), ("a", 3, True, 1)])
        harness.advance_watermark(2)
        assert harness.end_batch() == [
            ("+I", "a", 1, True, 1, 1, 1, 1, 2),
            ("+I", "a", 3, True, 1, 2, 1, 1, 2),
            ("+I", "a", 2, True, 2, 3, 3, 2, 3),
        ]
        harness.push([("a", 4, True, 5), ("a", 9, True, 1)])
        assert harness.finish() == [("+I", "a", 4, True, 5, 4, 4, 3, 4)]


def test_values_of_rows_before(async_enabled: bool) -> None:
    operator = OverAggregate([lag("v"), lag("v", 2).alias("older")], rows(2))
    settings_: Any = {"event_time": "at", "watermark_delay": 0, "changelog": False}
    with OperatorHarness(operator, SCHEMA, ["k"], async_enabled=async_enabled, **settings_) as harness:
        harness.push([("a", 1, True, 1), ("a", 2, True, 2)])
        harness.advance_watermark(2)
        assert harness.end_batch() == [("+I", "a", 1, True, 1, None, None), ("+I", "a", 2, True, 2, 1, None)]
        harness.push([("a", 3, True, 3), ("a", 4, True, 4)])
        harness.advance_watermark(4)
        assert harness.end_batch() == [("+I", "a", 3, True, 3, 2, 1), ("+I", "a", 4, True, 4, 3, 2)]


@pytest.mark.parametrize("frame", [unbounded(), rows(1), range_(10)])
def test_processing_time(async_enabled: bool, frame: Any) -> None:
    """Rows of one micro-batch have one time; what is older than a range is not counted, and not kept."""
    operator = OverAggregate([count(), sum_("v")], frame, time="processing")
    with OperatorHarness(operator, SCHEMA, ["k"], changelog=False, async_enabled=async_enabled) as harness:
        harness.push([("a", 1, True, 9), ("a", 2, True, 1)])
        first = [row[5:] for row in harness.end_batch()]
        harness.advance_processing_time(5)
        harness.push([("a", 4, True, 0)])
        second = [row[5:] for row in harness.end_batch()]
        harness.advance_processing_time(100)
        harness.push([("a", 8, True, 0)])
        third = [row[5:] for row in harness.end_batch()]
    if frame.kind == "range":
        assert (first, second, third) == ([(1, 1), (2, 3)], [(3, 7)], [(1, 8)])
    elif frame.kind == "rows":
        assert (first, second, third) == ([(1, 1), (2, 3)], [(2, 6)], [(2, 12)])
    else:
        assert (first, second, third) == ([(1, 1), (2, 3)], [(3, 7)], [(4, 15)])


def test_floats_do_not_drift(async_enabled: bool) -> None:
    schema = pa.schema([("k", pa.string()), ("x", pa.float64()), ("at", pa.timestamp("us"))])
    operator = OverAggregate([sum_("x")], rows(3))
    settings_: Any = {"event_time": "at", "watermark_delay": 0, "changelog": False}
    with OperatorHarness(operator, schema, ["k"], async_enabled=async_enabled, **settings_) as harness:
        harness.push([("a", 1e16 if number == 5 else 0.5, number) for number in range(64)])
        assert [row[4] for row in harness.finish()[-20:]] == [2.0] * 20


def test_distinct_floats_do_not_drift(async_enabled: bool) -> None:
    schema = pa.schema([("k", pa.string()), ("x", pa.float64()), ("at", pa.timestamp("us"))])
    operator = OverAggregate([sum_("x").distinct(), stddev_pop("x").distinct()], rows(3))
    settings_: Any = {"event_time": "at", "watermark_delay": 0, "changelog": False}
    with OperatorHarness(operator, schema, ["k"], async_enabled=async_enabled, **settings_) as harness:
        harness.push([("a", 1e300 if number == 5 else 0.5 + number % 2, number) for number in range(64)])
        assert [row[4:] for row in harness.finish()[-20:]] == [(2.0, 0.5)] * 20


ONCE = [
    collect("v").distinct().alias("all"),
    string_agg("text").distinct().alias("texts"),
    first_value("v").distinct().alias("first"),
]


@pytest.mark.parametrize("name", FRAMES)
@settings(deadline=None, max_examples=max(3, settings().max_examples // 2))
@given(values=st.lists(st.sampled_from([1, 2, 3, None]), max_size=12), cuts=CUTS, async_enabled=st.booleans())
def test_collected_values_stand_where_they_came_first(
    name: str, async_enabled: bool, values: Any, cuts: Any
) -> None:
    schema = pa.schema([*SCHEMA, pa.field("text", pa.string())])
    settings_: Any = {"event_time": "at", "watermark_delay": 0, "changelog": False}
    given_rows = [("a", value, True, at, value and str(value)) for at, value in enumerate(values)]
    found: list[Any] = []
    with OperatorHarness(
        OverAggregate(ONCE, FRAMES[name]), schema, ["k"], async_enabled=async_enabled, **settings_
    ) as harness:
        for part in cut(given_rows, cuts):
            harness.push(part)
            if part:
                harness.advance_watermark(part[-1][3])
            found += harness.end_batch()
    back = {"rows 0": 0, "rows 2": 2, "range": 4}.get(name, 100)
    for at, row in enumerate(found):
        frame = [value for value in values[max(at - back, 0) : at + 1] if value is not None]
        once = list(dict.fromkeys(frame))
        texts = ",".join(map(str, once))
        assert row[6:] == ((once, texts, once[0]) if once else (None, None, None))


KEPT = StateTtl("1 hour", time="processing")
PAIRS = udaf(OwnCount, result_type=LONG, accumulator_type=pa.list_(LONG))("v", "at").distinct().alias("pairs")


def test_distinct_values_are_kept_over_restarts_and_expire(async_enabled: bool) -> None:
    """Of all rows of a key; a value that came before the key expired is new again, and none stays in the store."""
    operator = OverAggregate([count("v").distinct(), PAIRS], ttl=KEPT)
    settings_: Any = {"event_time": "at", "watermark_delay": 0, "changelog": False}
    with OperatorHarness(operator, SCHEMA, ["k"], async_enabled=async_enabled, **settings_) as harness:
        harness.push([("a", 1, True, 1), ("a", 2, True, 2), ("a", 1, True, 3)])
        harness.advance_watermark(3)
        assert [row[5:] for row in harness.end_batch()] == [(1, 1), (2, 2), (2, 3)]
        with harness.restore(harness.snapshot(), parallelism=3) as again:
            again.push([("a", 2, True, 4), ("a", 3, True, 5)])
            again.advance_watermark(5)
            assert [row[5:] for row in again.end_batch()] == [(2, 4), (3, 5)]
            again.advance_processing_time("61 minutes")
            again.push([("a", 2, True, 6)])
            again.advance_watermark(6)
            assert [row[5:] for row in again.end_batch()] == [(1, 1)]
            for _ in range(3):
                again.advance_processing_time("61 minutes")
                again.end_batch()
            assert again.state_entries() == {}


class NoRetract(AggregateFunction):
    def create_accumulator(self) -> Any:
        return [0]

    def accumulate(self, accumulator: Any, *args: Any) -> None:
        accumulator[0] += 1

    def get_value(self, accumulator: Any) -> Any:
        return accumulator[0]


OWN: Any = udaf(NoRetract, result_type=LONG, accumulator_type=pa.list_(LONG))


@pytest.mark.parametrize(
    ("make", "options", "text"),
    [
        (lambda: OverAggregate([]), {}, "it has no aggregates"),
        (lambda: OverAggregate([count()], 3), {}, "3 is not a frame"),
        (lambda: OverAggregate([count()]), {"event_time": None}, "needs an event time"),
        (lambda: OverAggregate([lead("v")]), {}, "needs later rows"),
        (lambda: OverAggregate([lag("v")]), {}, "use the frame rows"),
        (lambda: OverAggregate([lag("v", 3)], rows(2)), {}, "needs the row 3 before"),
        (lambda: OverAggregate([rank_()], rows(2)), {}, "counts all rows of a key"),
        (lambda: OverAggregate([lag("missing")], order_by="v"), {}, "needs a column 'missing'"),
        (lambda: OverAggregate([count()], order_by="missing"), {}, "order_by"),
        (
            lambda: OverAggregate([count()], range_(5), order_by="flag"),
            {},
            "a range needs one column of timestamps or integers",
        ),
        (
            lambda: OverAggregate([count()], rows(2), ttl=StateTtl("1 hour")),
            {},
            "ttl is for unbounded frames",
        ),
        (lambda: OverAggregate([count().alias("v")]), {}, "two output columns have the name 'v'"),
        (lambda: rows(-1), {}, "the frame starts 1 after its row and ends 0 after it"),
        (lambda: lag("v", -1), {}, "distance is -1"),
    ],
)
def test_what_does_not_fit_is_refused(make: Any, options: Any, text: str) -> None:
    with pytest.raises(SchemaError, match=text):
        OperatorHarness(make(), SCHEMA, ["k"], **{"event_time": "at", "changelog": False, **options})


def test_a_changelog_needs_an_order() -> None:
    with pytest.raises(SchemaError, match="is a changelog without an event time"):
        OperatorHarness(OverAggregate([count()]), SCHEMA, ["k"], changelog=True)


@pytest.mark.parametrize("apart", [False, True])
def test_an_equal_row_of_another_position_replaces_the_old_one(async_enabled: bool, apart: bool) -> None:
    """Whether both halves of the update are in one micro-batch or in two."""
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("lsn", pa.int64())])
    operator = OverAggregate([last_value("v").alias("last")], order_by="lsn")
    with OperatorHarness(operator, schema, ["k"], sequence="lsn", async_enabled=async_enabled) as harness:
        harness.push([(1, 10, 1), (1, 20, 2)])
        harness.end_batch()
        harness.push([(1, 10, 3)], kind="-U")
        if apart:
            harness.end_batch()
        harness.push([(1, 10, 3)], kind="+U")
        harness.end_batch()
        assert net(harness.output) == {(1, 20, 2, 20): 1, (1, 10, 3, 10): 1}
