"""Timestamps near the ends of int64, as "for ever" and "never" are written: nothing that is computed wraps around."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncstate import ProcessWindowFunction, StateTtl
from asyncstate.errors import SchemaError
from asyncstate.operator import MAX_WATERMARK, MIN_WATERMARK, InputSpec
from asyncstate.testing import OperatorHarness
from operators import (
    Deduplicate,
    GroupAggregate,
    IntervalJoin,
    WindowAggregate,
    WindowApply,
    WindowProcess,
    count,
    cumulate,
    hop,
    session,
    sum_,
    tumble,
)
from operators.window.windows import LENGTH_MAX_US, SlicedWindow, Window
from tests.local_aggregation import in_phases
from tests.operators.direct import DirectRunner
from tests.operators.window_model import MAX, MIN, MS, WindowModel

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("ts", pa.timestamp("us"))])
COUNTS = pa.schema([("rows", pa.int64())])
WINDOWS: list[Window] = [
    tumble("10 milliseconds"),
    tumble("10 milliseconds", "3 milliseconds"),
    hop("20 milliseconds", "5 milliseconds"),
    hop("9 milliseconds", "3 milliseconds", "-1 millisecond"),
    cumulate("20 milliseconds", "5 milliseconds"),
    cumulate("12 milliseconds", "3 milliseconds", "2 milliseconds"),
    session("7 milliseconds"),
    tumble(LENGTH_MAX_US),
    hop(LENGTH_MAX_US, LENGTH_MAX_US // 2, LENGTH_MAX_US // 3),
    cumulate(LENGTH_MAX_US, LENGTH_MAX_US // 2, LENGTH_MAX_US // 3),
    session(LENGTH_MAX_US),
]
by_window = pytest.mark.parametrize("window", WINDOWS, ids=lambda window: window.text)
SENTINELS = [MIN, MIN + 1, MAX - 1, MAX]


class Counting(ProcessWindowFunction):
    def process(self, key: tuple[Any, ...], ctx: Any, rows: Sequence[Any]) -> None:
        ctx.emit(len(rows))


def aggregated(window: Window) -> WindowAggregate:
    return WindowAggregate(window, [count().alias("rows")])


def applied(window: Window) -> WindowApply:
    return WindowApply(lambda key, window, rows: [len(rows)], window, COUNTS, window_columns=True)


def processed(window: Window) -> WindowProcess:
    return WindowProcess(Counting(), window, COUNTS, window_columns=True)


def run(operator: Any, rows: Sequence[tuple[int, int, int]], **settings: Any) -> tuple[list[Any], int]:
    """The rows that are put out, without kinds, and how many of the input were out of range."""
    settings = {"event_time": "ts", "changelog": False, **settings}
    with OperatorHarness(operator, SCHEMA, ["k"], **settings) as harness:
        harness.push(rows)
        out = harness.end_batch()
        figures = harness.statistics()
        assert figures.get("counter.late_rows", 0) == figures.get("counter.late_rows_dropped", 0) == 0
        out += harness.finish()
        assert harness.state_entries() == {}
        return [row[1:] for row in out], int(figures["counter.event_times_out_of_range"])


# -- windows ------------------------------------------------------------------------------------------------


@by_window
@pytest.mark.parametrize("make", [aggregated, applied, processed])
def test_rows_whose_windows_do_not_fit_are_dropped_and_counted(
    make: Callable[[Window], Any], window: Window, async_enabled: bool
) -> None:
    rows = [(1, 0, time) for time in (*SENTINELS, 5 * MS, MAX)]
    found, outside = run(make(window), rows, async_enabled=async_enabled)
    alone, none_outside = run(make(window), [(1, 0, 5 * MS)], async_enabled=async_enabled)
    assert found == alone
    assert (outside, none_outside) == (5, 0)
    assert all(start <= 5 * MS < end and at == end - MS for _, start, end, at, _ in found)


@by_window
def test_the_first_and_the_last_time_that_fit_have_whole_windows(window: Window, async_enabled: bool) -> None:
    first, last = window.time_span
    found, outside = run(
        aggregated(window),
        [(1, 0, first), (2, 0, last), (1, 0, first - 1), (2, 0, last + 1)],
        async_enabled=async_enabled,
    )
    assert outside == 2
    for key, time in ((1, first), (2, last)):
        expected = (
            set(WindowModel(window, extremes=False).windows(time))
            if isinstance(window, SlicedWindow)
            else {(time, time + window.gap)}
        )
        assert {row[1:3] for row in found if row[0] == key} == expected
        assert all(MIN < start <= time < end < MAX for start, end in expected)


@by_window
@given(st.lists(st.integers(MIN, MAX) | st.sampled_from(SENTINELS), min_size=1, max_size=9), st.booleans())
@settings(max_examples=settings().max_examples // 2)
def test_all_that_is_put_out_is_a_window_of_its_rows(
    window: Window, times: list[int], deferred: bool
) -> None:
    """Times of every size, each with a key of its own, so that each row has its windows alone."""
    runner = DirectRunner(aggregated(window), InputSpec(SCHEMA, ("k",), "ts"), deferred=deferred)
    runner.run([(key, 0, time) for key, time in enumerate(times)], ["+I"] * len(times), MIN)
    outside = runner.counters["event_times_out_of_range"]
    found = runner.run([], [], MAX)
    assert all(start <= times[key] < end for _, key, start, end, *_ in found)
    assert len({row[1] for row in found}) == len(times) - outside
    first, last = window.time_span
    assert outside == sum(not first <= time <= last for time in times)


@by_window
def test_what_is_computed_of_times_in_range_is_exact(window: Window) -> None:
    """As with ints of any size."""
    first, last = window.time_span
    times = [first, first + 1, last - 1, last]
    if not isinstance(window, SlicedWindow):
        assert all(time - window.gap > MIN and time + window.gap < MAX for time in times)
        return
    array = np.array(times, np.int64)
    slices = window.slice_of(array)
    assert slices.tolist() == [window.slice_of(time) for time in times]
    assert window.last_window(slices).tolist() == [window.last_window(one) for one in slices.tolist()]
    assert window.window_start(slices).tolist() == [window.window_start(one) for one in slices.tolist()]


def test_a_changelog_takes_back_what_was_dropped(async_enabled: bool) -> None:
    operator = WindowAggregate(hop("20 milliseconds", "10 milliseconds"), [count()])
    with OperatorHarness(operator, SCHEMA, ["k"], event_time="ts", async_enabled=async_enabled) as harness:
        harness.push([(1, 0, MAX), (1, 0, 5 * MS), (1, 0, MAX)], kinds=["+I", "+I", "-D"])
        harness.end_batch()
        figures = harness.statistics()
        assert figures["counter.event_times_out_of_range"] == 2
        assert figures["counter.retractions_without_state"] == 0
        assert [row[-1] for row in harness.finish()] == [1, 1]


@by_window
def test_two_phases_drop_and_count_the_same_rows(window: Window) -> None:
    """Rows that are put together are of one slice, all of which fits or does not."""
    first, last = window.time_span
    times = [MIN, MIN, first - 1, first, first + 1, 0, 0, last - 1, last, last + 1, MAX, MAX]
    rows = [(1, number, time) for number, time in enumerate(times)]
    operator = WindowAggregate(window, [count(), sum_("v")])
    results = [run(in_phases(operator, phase), rows) for phase in ("false", "true")]
    assert results[0] == results[1]
    assert results[0][1] == 6


@pytest.mark.parametrize(
    "make",
    [
        lambda: tumble(LENGTH_MAX_US + 1),
        lambda: hop(2 * LENGTH_MAX_US, LENGTH_MAX_US),
        lambda: cumulate("10000000000 weeks", "1 week"),
        lambda: session(LENGTH_MAX_US + 1),
    ],
)
def test_windows_that_are_too_long_are_refused(make: Callable[[], Window]) -> None:
    with pytest.raises(SchemaError, match=f"give at most {LENGTH_MAX_US} us"):
        make()


# -- joins and state that expires ---------------------------------------------------------------------------


@pytest.mark.parametrize("bound", [0, 1, 1 << 60])
def test_intervals_of_any_times_stay_in_range(bound: int, async_enabled: bool) -> None:
    """Each row finds the partners that it has with ints of any size."""
    right = pa.schema([("k", pa.int64()), ("w", pa.int64()), ("at", pa.timestamp("us"))])
    join = IntervalJoin("full", lower=-bound, upper=bound)
    times = [MIN + 1, MIN + 2, -bound, 0, bound, MAX - 1, MAX]
    with OperatorHarness(
        join, [SCHEMA, right], [["k"], ["k"]], event_time=["ts", "at"], async_enabled=async_enabled
    ) as harness:
        harness.push([(1, time, time) for time in times], input=0)
        harness.end_batch()
        harness.push([(1, time, time) for time in times], input=1)
        pairs = {(row[2], row[5]) for row in harness.end_batch()}
        assert pairs == {(one, other) for one in times for other in times if abs(one - other) <= bound}
        assert harness.finish() == []
        assert harness.state_entries() == {}


@pytest.mark.parametrize(
    "make",
    [
        lambda ttl: Deduplicate(keep="last", ttl=ttl),
        lambda ttl: GroupAggregate([count()], ttl=ttl),
    ],
)
def test_a_time_to_live_and_a_time_at_the_end_do_not_wrap(
    make: Callable[[StateTtl], Any], async_enabled: bool
) -> None:
    """What was seen far in the future lives on, what was seen far in the past is over at once."""
    operator = make(StateTtl(2**62, time="event"))
    with OperatorHarness(
        operator, SCHEMA, ["k"], event_time="ts", changelog=False, async_enabled=async_enabled
    ) as harness:
        harness.advance_watermark(0)
        harness.push([(1, 0, MAX - 1), (2, 0, 5)])
        harness.end_batch()
        harness.advance_watermark(MAX - 2**61)
        harness.push([(1, 7, MAX - 1), (2, 7, 6)])
        kinds = {(row[0], row[1]) for row in harness.end_batch()}
        assert kinds == {("-U", 1), ("+U", 1), ("+I", 2)}


def test_the_ends_of_time_are_those_of_int64() -> None:
    assert (MIN, MAX) == (MIN_WATERMARK, MAX_WATERMARK)
