"""Windows over functions that make rows, and sessions that are shown again over aggregates that do not merge: beside a
loop over all rows, over insertions and changelogs, however the input is cut."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncstate import MapView
from asyncstate.errors import SchemaError
from asyncstate.functions import AggregateFunction, TableAggregateFunction, map_view
from asyncstate.testing import OperatorHarness, net
from operators import (
    GroupWindowAggregate,
    WindowAggregate,
    avg,
    count,
    count_hop,
    cumulate,
    first_value,
    hop,
    max_,
    min_,
    session,
    sum_,
    tumble,
    udaf,
    udtaf,
)
from operators.window.windows import SessionWindow
from tests.examples import at_most
from tests.operators.test_table_aggregates import Top2, Top2Incremental, top_of
from tests.operators.window_model import WindowModel

MS, GAP = 1_000, 3
LONG = pa.int64()
SCHEMA = pa.schema([("k", pa.string()), ("v", LONG), ("at", pa.timestamp("us"))])


class Row(NamedTuple):
    """A row; its time is in milliseconds."""

    key: str
    value: int
    at: int


Changes = list[tuple[str, Row]]
"""The rows of a micro-batch, with +I or -D."""


# -- the functions and what they amount to ---------------------------------------------------------------


class Highest(TableAggregateFunction):
    """The two largest values, of all values in a list."""

    def create_accumulator(self) -> Any:
        return []

    def accumulate(self, accumulator: Any, value: Any) -> None:
        accumulator.append(value)

    def retract(self, accumulator: Any, value: Any) -> None:
        accumulator.remove(value)

    def emit_value(self, accumulator: Any) -> Any:
        return top_of(Counter(accumulator))

    def get_accumulator_type(self) -> Any:
        return pa.list_(LONG)

    def get_result_type(self) -> Any:
        return pa.schema([("value", LONG), ("place", LONG)])


class HighestMerging(Highest):
    def merge(self, accumulator: Any, accumulators: Any) -> None:
        for other in accumulators:
            accumulator += other


class BigOnes(HighestMerging):
    """No row for a window of small values; it does not accept retractions by itself."""

    retract = TableAggregateFunction.retract

    def emit_value(self, accumulator: Any) -> Any:
        return [row for row in super().emit_value(accumulator) if row[0] > 0]


class Total(AggregateFunction):
    """Neither merges nor takes rows back."""

    def create_accumulator(self) -> Any:
        return [0]

    def accumulate(self, accumulator: Any, value: Any) -> None:
        accumulator[0] += value

    def get_value(self, accumulator: Any) -> Any:
        return accumulator[0]


class Different(AggregateFunction):
    """The number of distinct values, which are in a view."""

    def create_accumulator(self) -> Any:
        return [0, MapView()]

    def accumulate(self, accumulator: Any, value: Any) -> None:
        if value not in accumulator[1]:
            accumulator[0] += 1
            accumulator[1][value] = 1

    def get_value(self, accumulator: Any) -> Any:
        return accumulator[0]


VALUES = [
    count("v").distinct().alias("different"),
    sum_("v").distinct().alias("sum"),
    min_("v"),
    max_("v"),
    count().alias("due"),  # a name that the state has, too
]
FUNCTIONS = [
    *VALUES,
    udaf(Total, result_type=LONG, accumulator_type=pa.schema([("total", LONG)]))("v").alias("total"),
    udaf(
        Different, result_type=LONG, accumulator_type=pa.schema([("n", LONG), map_view("seen", LONG, LONG)])
    )("v").alias("view"),
]


def values_of(rows: Sequence[Row]) -> list[tuple[Any, ...]]:
    values = [row.value for row in rows]
    different = set(values)
    return [(len(different), sum(different), min(values), max(values), len(values))]


def functions_of(rows: Sequence[Row]) -> list[tuple[Any, ...]]:
    values = [row.value for row in rows]
    return [(*values_of(rows)[0], sum(values), len(set(values)))]


def highest_of(rows: Sequence[Row]) -> list[tuple[Any, ...]]:
    return list(top_of(Counter(row.value for row in rows)))


def big_ones_of(rows: Sequence[Row]) -> list[tuple[Any, ...]]:
    return [row for row in highest_of(rows) if row[0] > 0]


Model = Callable[[Sequence[Row]], list[tuple[Any, ...]]]
MADE: dict[str, tuple[Any, Model]] = {
    "rows": ([udtaf(Highest)("v")], highest_of),
    "rows that merge": ([udtaf(HighestMerging)("v")], highest_of),
    "rows of a view": ([udtaf(Top2)("v")], highest_of),
    "values": (VALUES, values_of),
    "functions that take nothing back": (FUNCTIONS, functions_of),
}


# -- windows ---------------------------------------------------------------------------------------------

WINDOWS = {
    "tumble": tumble("6 milliseconds"),
    "hop": hop("6 milliseconds", "2 milliseconds"),
    "cumulate": cumulate("6 milliseconds", "3 milliseconds"),
    "session": session(f"{GAP} milliseconds"),
}
EMISSIONS: dict[str, dict[str, Any]] = {
    "once": {},
    "early": {"early": 0},
    "delayed": {"early": "1 second"},
    "late": {"allowed_lateness": "100 milliseconds"},
    "both": {"early": "1 second", "allowed_lateness": "100 milliseconds", "late": "1 second"},
}


def windows_of(window: Any, batches: Iterable[Changes]) -> dict[tuple[str, int, int], list[Row]]:
    """What is left in each key and window, start and end in ms; a row that has gone still holds its session."""
    came: list[Row] = []
    left: list[Row] = []
    for batch in batches:
        came += [row for kind, row in batch if kind == "+I"]
        left += [row for kind, row in batch if kind == "+I"]
        for kind, row in batch:
            if kind == "-D":
                left.remove(row)
    found: dict[tuple[str, int, int], list[Row]] = defaultdict(list)
    for row in left:
        for start, end in bounds_of(window, row, came):
            found[row.key, start, end].append(row)
    return found


def bounds_of(window: Any, row: Row, came: Sequence[Row]) -> list[tuple[int, int]]:
    if not isinstance(window, SessionWindow):
        return [(a // MS, b // MS) for a, b in WindowModel(window, extremes=False).windows(row.at * MS)]
    start = last = row.at
    times = sorted(one.at for one in came if one.key == row.key)
    for time in reversed(times):
        start = time if time <= start <= time + GAP else start
    for time in times:
        last = time if last <= time <= last + GAP else last
    return [(start, last + GAP)]


def expected(window: Any, batches: Iterable[Changes], model: Model) -> Counter[tuple[Any, ...]]:
    found = windows_of(window, batches)
    return Counter((*bounds, *row) for bounds, rows in found.items() for row in model(rows))


def netted(rows: Iterable[tuple[Any, ...]]) -> Counter[tuple[Any, ...]]:
    """Key, start and end in ms, and what follows the time of the window."""
    given = ((kind, key, start // MS, end // MS, *results) for kind, key, start, end, _, *results in rows)
    return net(given, in_order=True)


@st.composite
def histories(draw: st.DrawFn, changelog: bool) -> list[Changes]:
    """Micro-batches of rows that come and of some that go again."""
    there: list[Row] = []
    batches = []
    for _ in range(draw(st.integers(1, 4))):
        rows = draw(
            st.lists(
                st.builds(Row, st.sampled_from("ab"), st.integers(-3, 3), st.integers(0, 25)), max_size=6
            )
        )
        there += rows
        changes: Changes = [("+I", row) for row in rows]
        for _ in range(draw(st.integers(0, 3)) if changelog else 0):
            if there:
                changes.append(("-D", there.pop(draw(st.integers(0, len(there) - 1)))))
        batches.append(changes)
    return batches


def push(harness: OperatorHarness, changes: Changes) -> None:
    harness.push(
        [(key, value, at * MS) for _, (key, value, at) in changes], kinds=[kind for kind, _ in changes]
    )


def restarted(harness: OperatorHarness, parallelism: int) -> OperatorHarness:
    with harness:
        return harness.restore(harness.snapshot(), parallelism=parallelism)


def harness_of(operator: Any, async_enabled: bool, changelog: bool = False, **more: Any) -> OperatorHarness:
    return OperatorHarness(
        operator, SCHEMA, ["k"], event_time="at", changelog=changelog, async_enabled=async_enabled, **more
    )


@pytest.mark.long
@pytest.mark.parametrize("changelog", [False, True], ids=["inserts", "changelog"])
@pytest.mark.parametrize("window", WINDOWS)
@settings(deadline=None, max_examples=at_most(25))
@given(data=st.data())
def test_the_netted_rows_are_those_of_a_loop(
    window: str, changelog: bool, async_enabled: bool, data: st.DataObject
) -> None:
    """No row is later than what is allowed, so that all rows count."""
    over = WINDOWS[window]
    emission = data.draw(st.sampled_from(list(EMISSIONS)))
    # What does not accept retractions is for sessions, which keep their rows.
    able = [name for name in MADE if window == "session" or not changelog or "nothing" not in name]
    aggregates, model = MADE[data.draw(st.sampled_from(able))]
    batches = data.draw(histories(changelog))
    options = {"async-state.bundle-size": data.draw(st.sampled_from(["1", "3", "1000"]))}
    operator = GroupWindowAggregate(over, aggregates, **EMISSIONS[emission])
    shown: list[Any] = []
    harness = harness_of(operator, async_enabled, changelog, options=options)
    for number, changes in enumerate(batches):
        push(harness, changes)
        later = [row.at for batch in batches[number + 1 :] for _, row in batch]
        passed = (
            number * 8 * MS if "allowed_lateness" in EMISSIONS[emission] else min(later, default=0) * MS - 2
        )
        harness.advance_watermark(max(passed, harness.watermark))
        shown += harness.end_batch()
        harness.advance_processing_time(700_000)
        harness = restarted(harness, 1 + number % 2)
        if emission == "early":
            assert netted(shown) == expected(over, batches[: number + 1], model)
    with harness:
        shown += harness.finish()
        assert harness.state_entries() == {}
    assert netted(shown) == expected(over, batches, model)
    if emission == "once":
        assert {row[0] for row in shown} <= {"+I"}


@settings(deadline=None, max_examples=at_most(20))
@given(
    batches=histories(True),
    bundle=st.sampled_from(["1", "3", "1000"]),
    emission=st.sampled_from(list(EMISSIONS)),
)
def test_sessions_need_no_retract_and_rows_may_be_none(
    batches: Any, bundle: str, emission: str, async_enabled: bool
) -> None:
    over = WINDOWS["session"]
    operator = GroupWindowAggregate(over, [udtaf(BigOnes)("v")], **EMISSIONS[emission])
    with harness_of(operator, async_enabled, True, options={"async-state.bundle-size": bundle}) as harness:
        for changes in batches:
            push(harness, changes)
            harness.end_batch()
            harness.advance_processing_time(700_000)
        harness.finish()
        assert harness.state_entries() == {}
        assert netted(harness.output) == expected(over, batches, big_ones_of)


@settings(deadline=None, max_examples=at_most(20))
@given(
    rows=st.lists(st.builds(Row, st.sampled_from("ab"), st.integers(-3, 3), st.just(0)), max_size=20),
    cuts=st.sets(st.integers(0, 20)),
    bundle=st.sampled_from(["1", "3", "1000"]),
    name=st.sampled_from(["rows", "rows that merge", "rows of a view"]),
)
def test_rows_of_count_windows(
    rows: Any, cuts: set[int], bundle: str, name: str, async_enabled: bool
) -> None:
    values: dict[str, list[Row]] = defaultdict(list)
    wanted: dict[str, list[Any]] = defaultdict(list)
    for row in rows:
        values[row.key].append(row)
        begins = len(values[row.key]) - 3
        if begins >= 0 and begins % 2 == 0:
            wanted[row.key] += highest_of(values[row.key][begins:])
    operator = GroupWindowAggregate(count_hop(3, 2), MADE[name][0], time="processing")
    found = []
    harness = harness_of(operator, async_enabled, options={"async-state.bundle-size": bundle})
    for at, row in enumerate(rows):
        push(harness, [("+I", row)])
        if at in cuts:
            found += harness.end_batch()
            harness = restarted(harness, 1 + at % 2)
    with harness:
        found += harness.end_batch()
    assert {row[0] for row in found} <= {"+I"}
    for key in "ab":
        assert [row[2:] for row in found if row[1] == key] == wanted[key]


# -- single cases ----------------------------------------------------------------------------------------


def short(rows: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Kind, key, start and end in ms, results."""
    return [(row[0], row[1], row[2] // MS, row[3] // MS, *row[5:]) for row in rows]


def test_rows_of_a_window_come_when_it_is_over(async_enabled: bool) -> None:
    operator = WindowAggregate(tumble("10 milliseconds"), [udtaf(Top2)("v").alias("unused")])
    with harness_of(operator, async_enabled) as harness:
        assert harness.output_schema.names == [
            "k",
            "window_start",
            "window_end",
            "window_time",
            "value",
            "place",
        ]
        push(harness, [("+I", Row("a", 1, 1)), ("+I", Row("a", 5, 2)), ("+I", Row("b", 2, 3))])
        push(harness, [("+I", Row("a", 3, 4)), ("+I", Row("a", 9, 11))])
        harness.advance_watermark(10 * MS)
        assert short(harness.end_batch()) == [
            ("+I", "a", 0, 10, 5, 1),
            ("+I", "a", 0, 10, 3, 2),
            ("+I", "b", 0, 10, 2, 1),
        ]
        assert short(harness.finish()) == [("+I", "a", 10, 20, 9, 1)]


def test_rows_that_stay_are_not_put_out_again(async_enabled: bool) -> None:
    operator = GroupWindowAggregate(session("10 milliseconds"), [udtaf(Top2)("v")], early=0)
    with harness_of(operator, async_enabled) as harness:
        push(harness, [("+I", Row("a", 1, 0)), ("+I", Row("a", 5, 2)), ("+I", Row("a", 0, 9))])
        assert short(harness.end_batch()) == [("+I", "a", 0, 19, 5, 1), ("+I", "a", 0, 19, 1, 2)]
        push(harness, [("+I", Row("a", 3, 4))])
        assert short(harness.end_batch()) == [("-D", "a", 0, 19, 1, 2), ("+I", "a", 0, 19, 3, 2)]
        push(harness, [("+I", Row("a", 0, 10))])  # a longer session has other rows
        assert Counter(short(harness.end_batch())) == Counter(
            [(kind, "a", 0, end, *row) for kind, end in (("-D", 19), ("+I", 20)) for row in ((5, 1), (3, 2))]
        )


def test_a_session_gives_back_its_extreme_and_its_distinct_value(async_enabled: bool) -> None:
    operator = GroupWindowAggregate(
        session("10 milliseconds"), [max_("v"), count("v").distinct().alias("n")], early=0
    )
    with harness_of(operator, async_enabled, changelog=True) as harness:
        push(harness, [("+I", Row("a", 1, 0)), ("+I", Row("a", 5, 2)), ("+I", Row("a", 1, 2))])
        assert short(harness.end_batch()) == [("+I", "a", 0, 12, 5, 2)]
        push(harness, [("-D", Row("a", 5, 2))])
        assert short(harness.end_batch()) == [("-U", "a", 0, 12, 5, 2), ("+U", "a", 0, 12, 1, 1)]
        push(harness, [("-D", Row("a", 7, 2)), ("-D", Row("b", 1, 2))])
        assert harness.end_batch() == []
        assert harness.statistics()["counter.retractions_without_state"] == 2
        push(harness, [("-D", Row("a", 1, 0)), ("-D", Row("a", 1, 2))])
        assert short(harness.end_batch()) == [("-D", "a", 0, 12, 1, 1)]
        assert harness.finish() == []
        assert harness.state_entries() == {}


def test_many_rows_are_read_some_keys_at_a_time(async_enabled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("operators.window.session_rows.PART_ROWS", 7)
    operator = GroupWindowAggregate(
        session("10 milliseconds"),
        [count("v").distinct().alias("n")],
        early=0,
        allowed_lateness="10 milliseconds",
    )
    keys = [f"key {number:02}" for number in range(20)]
    with harness_of(operator, async_enabled) as harness:
        push(harness, [("+I", Row(key, at % 3, at)) for key in keys for at in range(5)])
        found = short(harness.end_batch())
        assert sorted(found) == [("+I", key, 0, 14, 3) for key in keys]
        push(harness, [("+I", Row(key, 9, 4)) for key in keys[::3]])
        harness.advance_watermark(30 * MS)
        found = short(harness.end_batch())
        assert sorted(found) == sorted(
            (kind, key, 0, 14, number) for key in keys[::3] for kind, number in (("-U", 3), ("+U", 4))
        )
        assert harness.state_entries() == {}


@pytest.mark.parametrize("aggregates", [[count().alias("n")], [count("v").distinct().alias("n")]])
def test_late_rows_of_sessions_that_are_shown_again(aggregates: Any, async_enabled: bool) -> None:
    operator = GroupWindowAggregate(
        session("5 milliseconds"), aggregates, early=0, allowed_lateness="10 milliseconds", late_output="late"
    )
    with harness_of(operator, async_enabled) as harness:
        push(harness, [("+I", Row("a", 1, 10))])
        harness.advance_watermark(20 * MS)
        assert short(harness.end_batch()) == [("+I", "a", 10, 15, 1)]
        push(harness, [("+I", Row("a", 2, 12)), ("+I", Row("a", 3, 1)), ("+I", Row("b", 4, 2))])
        assert sorted(short(harness.end_batch())) == [("+I", "a", 10, 17, 2), ("-D", "a", 10, 15, 1)]
        assert sorted(harness.side_output("late")) == [("+I", "a", 3, 1 * MS), ("+I", "b", 4, 2 * MS)]
        assert harness.statistics()["counter.late_rows"] == 2
        assert harness.finish() == []
        assert harness.state_entries() == {}


def test_in_processing_time_a_session_gives_back_what_came_before(async_enabled: bool) -> None:
    """When a row came is no part of it; a session that is over gives nothing back."""
    operator = WindowAggregate(
        session("10 milliseconds"), [max_("v"), avg("v"), first_value("v")], time="processing"
    )
    with harness_of(operator, async_enabled, changelog=True) as harness:
        push(harness, [("+I", Row("a", 1, 0)), ("+I", Row("a", 5, 0)), ("+I", Row("b", 7, 0))])
        assert harness.end_batch() == []
        harness.advance_processing_time(9 * MS)
        push(harness, [("-D", Row("a", 5, 0)), ("+I", Row("a", 3, 0))])
        assert harness.end_batch() == []
        assert harness.statistics()["counter.retractions_without_state"] == 0
        harness.advance_processing_time(9 * MS)
        push(harness, [("-D", Row("b", 7, 0)), ("+I", Row("b", 2, 0))])
        assert [row[5:] for row in harness.end_batch()] == [(7, 7.0, 7)]
        assert harness.statistics()["counter.retractions_without_state"] == 1
        harness.advance_processing_time(20 * MS)
        assert sorted(row[5:] for row in harness.end_batch()) == [(2, 2.0, 2), (3, 2.0, 1)]
        assert harness.state_entries() == {}


# -- what is refused -------------------------------------------------------------------------------------


class Incremental(Top2Incremental):
    """A name of its own."""


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: WindowAggregate(tumble(MS), [udtaf(Highest)("v"), count()]),
            "it must be the only aggregate",
        ),
        (
            lambda: WindowAggregate(tumble(MS), [udtaf(Highest)("v").starting_now()]),
            "only values of GroupAggregate",
        ),
        (
            lambda: GroupWindowAggregate(
                tumble(MS), [udtaf(Highest)("v")], early=0, emit_update_before=False
            ),
            "'Highest_v' returns rows, which have no key",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(make: Any, text: str) -> None:
    with pytest.raises(SchemaError, match=f"WindowAggregate: .*{text}"):
        make()


@pytest.mark.parametrize("window", [*WINDOWS.values(), count_hop(3, 2)], ids=[*WINDOWS, "count"])
def test_windows_need_all_rows_of_a_function(window: Any) -> None:
    operator = GroupWindowAggregate(window, [udtaf(Incremental)("v")])
    with pytest.raises(SchemaError, match="Incremental lacks emit_value"):
        harness_of(operator, False)


def test_slices_of_a_changelog_need_retract() -> None:
    with pytest.raises(SchemaError, match="write its method retract"):
        harness_of(WindowAggregate(tumble(MS), [udtaf(BigOnes)("v")]), False, changelog=True)
