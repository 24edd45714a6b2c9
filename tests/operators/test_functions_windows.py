"""Functions over the rows of windows: the windows of DuckDB and of a loop, in every style and mode."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncstate import (
    OperatorContext,
    ProcessWindowFunction,
    Row,
    TimeWindow,
    ValueStateDescriptor,
    WindowContext,
    WindowFunction,
    completed_future,
)
from asyncstate.errors import OperatorError, SchemaError, StateDeclarationError
from asyncstate.testing import OperatorHarness
from operators import WindowAggregate, WindowApply, WindowProcess, cumulate, hop, session, sum_, tumble
from operators.process.windows.assigners import global_windows
from operators.process.windows.triggers import count as trigger_count
from operators.window.windows import SessionWindow, Window
from tests.operators.function_runs import Run, Step, inserts, run, run_both, run_step, slow_reads
from tests.operators.window_model import MIN
from tests.operators.window_rows_model import MAX, Fired, Given, RowsModel, in_duckdb

MS = 1_000

SCHEMA = pa.schema([("k", pa.int64()), ("ts", pa.timestamp("us", "UTC")), ("v", pa.int64())])
CALLS = pa.schema(
    [("k", pa.int64()), ("start", pa.int64()), ("end", pa.int64()), ("values", pa.list_(pa.int64()))]
)
WINDOWS: list[Window] = [
    tumble("10 milliseconds"),
    tumble("10 milliseconds", "3 milliseconds"),
    hop("20 milliseconds", "5 milliseconds"),
    hop("9 milliseconds", "3 milliseconds", "-1 millisecond"),
    cumulate("20 milliseconds", "5 milliseconds"),
    cumulate("12 milliseconds", "3 milliseconds", "2 milliseconds"),
    session("7 milliseconds"),
]
by_window = pytest.mark.parametrize("window", WINDOWS, ids=lambda window: window.text)


def call(key: tuple[Any, ...], window: TimeWindow, rows: Sequence[Row]) -> tuple[Any, ...]:
    return key[0], window.start, window.end, [row.v for row in rows]


class PlainCalls(WindowFunction):
    def apply(self, key: tuple[Any, ...], window: TimeWindow, rows: Sequence[Row]) -> Any:
        yield call(key, window, rows)


class FutureCalls(WindowFunction):
    """Counts the windows of each key, and takes the count from what it puts out again."""

    def open(self, context: OperatorContext) -> None:
        self.fired = context.get_state(ValueStateDescriptor("fired", pa.int64(), default=0))

    def apply(self, key: tuple[Any, ...], window: TimeWindow, rows: Sequence[Row]) -> Any:
        def count(before: int) -> list[Any]:
            self.fired.async_update(before + 1)
            return [call(key, window, rows)]

        return self.fired.async_value().then_apply(count)


class AwaitCalls(FutureCalls):
    async def apply(self, key: tuple[Any, ...], window: TimeWindow, rows: Sequence[Row]) -> Any:
        await self.fired.async_update(await self.fired.async_value() + 1)
        names = dict(zip(CALLS.names, call(key, window, rows), strict=True))
        return (names for _ in range(1))


def fired(rows: Sequence[tuple[Any, ...]]) -> list[Fired]:
    return sorted(Fired(key, start, end, tuple(values)) for key, start, end, values in inserts(rows))


def rows_of(seed: int, count: int, span_ms: int, start_ms: int = 0) -> list[Given]:
    chance = random.Random(seed)
    return [
        Given(chance.randrange(4), (start_ms + chance.randrange(span_ms)) * MS, number)
        for number in range(count)
    ]


def in_order(calls: Sequence[Fired], window: Window) -> list[Fired]:
    """Sorted; the rows of sessions too, because those of merged sessions stand one behind the other."""
    merges = isinstance(window, SessionWindow)
    return sorted(one._replace(values=tuple(sorted(one.values))) if merges else one for one in calls)


# -- against DuckDB ---------------------------------------------------------------------------------------


@by_window
@pytest.mark.parametrize("function", [PlainCalls, FutureCalls, AwaitCalls])
def test_every_window_fires_once_with_all_its_rows(
    window: Window, function: Callable[[], WindowFunction]
) -> None:
    parts = [rows_of(seed, 50, 120, 100 * seed) for seed in range(3)]
    steps = []
    for seed, part in enumerate(parts):
        steps += [Step(part), Step(watermark=100 * (seed + 1) * MS - 1)]
    done = run_both(
        lambda: WindowApply(function(), window, CALLS),
        SCHEMA,
        ["k"],
        steps,
        event_time="ts",
    )
    rows = [row for part in parts for row in part]
    assert in_order(fired(done.rows), window) == in_order(in_duckdb(window, rows), window)
    assert done.counted("late_rows_dropped") == 0
    assert all(any(rows) for rows in done.outputs[1::2]), "windows fire on the way, not only at the end"
    kept = {b"fired"} if function is not PlainCalls else set()
    assert (done.stored[-1] == {}) == (not kept), "nothing of a window that is over is stored"


@settings(max_examples=settings().max_examples // 2)
@given(
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 60), st.integers(0, 9)), max_size=30),
    st.sampled_from(WINDOWS),
    st.integers(1, 4),
)
def test_any_rows_in_any_order(rows: list[tuple[int, int, int]], window: Window, batches: int) -> None:
    arrived = [Given(key, time * MS, value) for key, time, value in rows]
    steps = [Step(arrived[number::batches]) for number in range(batches)]
    done = run_both(lambda: WindowApply(call_rows, window, CALLS), SCHEMA, ["k"], steps, event_time="ts")
    seen = [row for step in steps for row in step.rows]
    assert in_order(fired(done.rows), window) == in_order(in_duckdb(window, seen), window)
    assert done.stored[-1] == {}


def call_rows(key: tuple[Any, ...], window: TimeWindow, rows: Sequence[Row]) -> list[tuple[Any, ...]]:
    return [call(key, window, rows)]


# -- late rows --------------------------------------------------------------------------------------------


@st.composite
def late_steps(draw: st.DrawFn) -> list[Step]:
    """Micro-batches of rows around a rising watermark, many of them late."""
    steps = []
    watermark = 0
    for _ in range(draw(st.integers(1, 5))):
        rows = [
            Given(
                draw(st.integers(0, 1)), watermark + draw(st.integers(-40, 40)) * MS, draw(st.integers(0, 99))
            )
            for _ in range(draw(st.integers(0, 8)))
        ]
        watermark += draw(st.integers(0, 30)) * MS + draw(st.sampled_from([-1, 0]))
        steps.append(Step(rows, watermark=watermark))
    return steps


@given(late_steps(), st.sampled_from(WINDOWS), st.sampled_from([0, 8 * MS, 40 * MS]))
def test_late_rows_fire_again_or_are_dropped(steps: list[Step], window: Window, lateness: int) -> None:
    done = run_both(
        lambda: WindowApply(AwaitCalls(), window, CALLS, allowed_lateness=lateness),
        SCHEMA,
        ["k"],
        steps,
        event_time="ts",
    )
    model = RowsModel(window, lateness)
    given_marks = [MIN if step.watermark is None else step.watermark for step in steps]
    marks = [max(given_marks[: n + 1]) for n in range(len(steps))]
    expected = [
        sorted(model.run([Given(*row) for row in step.rows], mark))
        for step, mark in zip(steps, marks, strict=True)
    ]
    expected.append(sorted(model.run([], MAX)))
    assert [fired(rows) for rows in done.outputs] == expected
    assert done.counted("late_rows_dropped") == model.late


def test_a_row_that_bridges_sessions_makes_one_of_them() -> None:
    """Also one that has fired already and one that has not, as long as the first is kept."""
    steps = [
        Step([(1, 0, 1), (1, 20 * MS, 2), (1, 40 * MS, 3)], watermark=8 * MS),
        Step([(1, 30 * MS, 4), (1, 10 * MS, 5)]),
    ]
    window = session("10 milliseconds")
    done = run_both(
        lambda: WindowApply(call_rows, window, CALLS, allowed_lateness="1 second"),
        SCHEMA,
        ["k"],
        steps,
        event_time="ts",
    )
    assert done.outputs == [[], [], [("+I", 1, 0, 50 * MS, [1, 2, 3, 4, 5])]]
    steps[0].watermark = 15 * MS
    done = run_both(
        lambda: WindowApply(call_rows, window, CALLS, allowed_lateness="1 second"),
        SCHEMA,
        ["k"],
        steps,
        event_time="ts",
    )
    assert [[row[1:] for row in rows] for rows in done.outputs] == [
        [(1, 0, 10 * MS, [1])],
        [],
        [(1, 0, 50 * MS, [1, 2, 3, 4, 5])],
    ]
    assert done.stored[-1] == {}


def test_without_lateness_a_row_behind_a_session_that_has_fired_is_late() -> None:
    steps = [Step([(1, 0, 1)], watermark=15 * MS), Step([(1, 5 * MS + 1, 2), (1, 5 * MS + 2, 3)])]
    done = run_both(
        lambda: WindowApply(call_rows, session("10 milliseconds"), CALLS),
        SCHEMA,
        ["k"],
        steps,
        event_time="ts",
    )
    assert done.outputs == [
        [("+I", 1, 0, 10 * MS, [1])],
        [],
        [("+I", 1, 5 * MS + 2, 15 * MS + 2, [3])],
    ]
    assert done.counted("late_rows_dropped") == 1


def test_long_windows_are_read_in_pages() -> None:
    """Sessions of many elements merge, chunk by chunk."""
    many = [Given(1, time, time) for time in [*range(0, 3_000), *range(10_000, 13_000)]]
    steps = [Step(many), Step([Given(1, 6_500, 7)])]
    done = run_both(
        lambda: WindowApply(call_rows, session(4_000), CALLS),
        SCHEMA,
        ["k"],
        steps,
        event_time="ts",
        options={"async-state.iterate-response-batch-size": "100"},
    )
    assert fired(done.rows) == [Fired(1, 0, 16_999, (*range(3_000), *range(10_000, 13_000), 7))]


# -- process: contexts and state --------------------------------------------------------------------------

SUMS = pa.schema(
    [
        ("k", pa.int64()),
        ("end", pa.int64()),
        ("sum", pa.int64()),
        ("firing", pa.int64()),
        ("windows", pa.int64()),
    ]
)
CLEARED: list[tuple[int, int]] = []


class _Sums(ProcessWindowFunction):
    """The sum of each window, how often it has fired, and the number of windows of the key so far."""

    def open(self, context: OperatorContext) -> None:
        self.firings = context.get_state(
            ValueStateDescriptor("firings", pa.int64(), default=0, namespaced=True)
        )
        self.windows = context.get_state(ValueStateDescriptor("windows", pa.int64(), default=0))


class PlainSums(_Sums):
    def process(self, key: tuple[Any, ...], ctx: WindowContext, rows: Sequence[Row]) -> Any:
        firings = self.firings.at(ctx.window_namespace)
        firings.update(firings.value() + 1)
        if firings.value() == 1:
            self.windows.update(self.windows.value() + 1)
        ctx.emit(key[0], ctx.window.end, sum(row.v for row in rows), firings.value(), self.windows.value())

    def clear(self, ctx: WindowContext) -> Any:
        CLEARED.append((ctx.key[0], ctx.window.end))
        self.firings.at(ctx.window_namespace).clear()


class AwaitSums(_Sums):
    async def process(self, key: tuple[Any, ...], ctx: WindowContext, rows: Sequence[Row]) -> Any:
        firings = self.firings.at(ctx.window_namespace)
        firing = await firings.async_value() + 1
        await firings.async_update(firing)
        windows = await self.windows.async_value() + (firing == 1)
        await self.windows.async_update(windows)
        ctx.emit(ctx.key[0], ctx.window.end, sum(row.v for row in rows), firing, windows)

    async def clear(self, ctx: WindowContext) -> Any:
        CLEARED.append((ctx.key[0], ctx.window.end))
        await self.firings.at(ctx.window_namespace).async_clear()


class FutureSums(_Sums):
    def process(self, key: tuple[Any, ...], ctx: WindowContext, rows: Sequence[Row]) -> Any:
        firings = self.firings.at(ctx.window_namespace)

        def tell(firing: int, windows: int) -> None:
            windows += firing == 0
            firings.async_update(firing + 1)
            self.windows.async_update(windows)
            ctx.emit(key[0], ctx.window.end, sum(row.v for row in rows), firing + 1, windows)

        return firings.async_value().then_combine(self.windows.async_value(), tell)

    def clear(self, ctx: WindowContext) -> Any:
        CLEARED.append((ctx.key[0], ctx.window.end))
        return self.firings.at(ctx.window_namespace).async_clear()


@pytest.mark.parametrize("function", [PlainSums, AwaitSums, FutureSums])
def test_state_of_the_window_and_of_the_key(function: Callable[[], ProcessWindowFunction]) -> None:
    steps = [
        Step([(1, 1, 10), (1, 2, 5), (2, 3, 1), (1, 12 * MS, 4)], watermark=10 * MS),
        Step(
            [(1, 4, 7), (1, 5, 1), (2, 13 * MS, 9)], watermark=29 * MS
        ),  # both windows within their lateness
        Step([(1, 6, 99), (1, 14 * MS, 2)], watermark=29 * MS),  # the first one is gone, the second is not
    ]
    CLEARED.clear()
    done = run_both(
        lambda: WindowProcess(
            function(), tumble("10 milliseconds"), SUMS, allowed_lateness="10 milliseconds"
        ),
        SCHEMA,
        ["k"],
        steps,
        event_time="ts",
    )
    ten, twenty = 10 * MS, 20 * MS
    assert [sorted(inserts(rows)) for rows in done.outputs] == [
        [(1, ten, 15, 1, 1), (2, ten, 1, 1, 1)],
        [(1, ten, 22, 2, 1), (1, ten, 23, 3, 1), (1, twenty, 4, 1, 2), (2, twenty, 9, 1, 2)],
        [(1, twenty, 6, 2, 2)],
        [],
    ]
    assert done.counted("late_rows_dropped") == 1
    assert sorted(CLEARED) == sorted(2 * [(1, ten), (2, ten), (1, twenty), (2, twenty)]), "in both modes"
    assert len(done.stored[-1]) == 2, "the states of the two keys are left"


class Nosy(ProcessWindowFunction):
    """Looks at everything there is."""

    def process(self, key: tuple[Any, ...], ctx: WindowContext, rows: Sequence[Row]) -> Any:
        assert ctx.key == key
        return completed_future(ctx.emit(str((key, ctx.window, ctx.watermark, ctx.processing_time, rows))))


def test_the_context_tells_the_window_and_the_times() -> None:
    steps = [Step([(1, 5, 7)], watermark=12 * MS, elapsed=3)]
    done = run_both(
        lambda: WindowProcess(Nosy(), session("10 milliseconds"), pa.schema([("seen", pa.string())])),
        SCHEMA,
        ["k"],
        steps,
        finish=False,
        event_time="ts",
    )
    assert done.rows == [
        ("+I", f"((1,), TimeWindow(start=5, end=10005), 12000, {done_at(3)}, [Row(k=1, ts=5, v=7)])")
    ]


def done_at(elapsed: int) -> int:
    """The processing time of a harness whose clock has moved by ``elapsed``."""
    from asyncstate.clock import ManualClock

    return ManualClock().now_us() + elapsed


class Uncleared(_Sums):
    """Counts the firings of a window, and leaves the count when it is over."""

    def process(self, key: tuple[Any, ...], ctx: WindowContext, rows: Sequence[Row]) -> Any:
        firings = self.firings.at(ctx.window_namespace)
        firings.update(firings.value() + 1)
        ctx.emit(key[0], ctx.window.end, sum(row.v for row in rows), firings.value(), 0)


def test_a_window_does_not_begin_with_the_state_of_another(async_enabled: bool) -> None:
    """With a trigger of one's own, numbers of windows are given again."""
    rows = [(1, 1, 5), (1, 2, 6), (1, 15 * MS, 7)]

    def fired(window: Window | None, **chosen: Any) -> list[Any]:
        operator = WindowProcess(Uncleared(), window, SUMS, **chosen)
        with OperatorHarness(
            operator, SCHEMA, ["k"], event_time="ts", async_enabled=async_enabled
        ) as harness:
            harness.push(rows)
            harness.advance_watermark(10 * MS)
            return [row[4] for row in harness.end_batch() + harness.finish()]

    assert fired(tumble("10 milliseconds")) == [1, 1]
    assert fired(None, assigner=global_windows(), trigger=trigger_count(1)) == [1, 2, 3]
    with pytest.raises(OperatorError, match="give the ProcessWindowFunction a method clear"):
        fired(tumble("10 milliseconds"), trigger=trigger_count(1))


def test_a_session_has_no_state_of_its_own(async_enabled: bool) -> None:
    operator = WindowProcess(AwaitSums(), session("10 milliseconds"), SUMS)
    with OperatorHarness(operator, SCHEMA, ["k"], event_time="ts", async_enabled=async_enabled) as harness:
        harness.push([(1, 5, 7)])
        with pytest.raises(
            OperatorError, match="a session window cannot have its own state, because it may merge"
        ):
            harness.finish()


# -- output, times ----------------------------------------------------------------------------------------


@by_window
def test_window_columns_are_those_of_window_aggregate(window: Window) -> None:
    steps = [Step(rows_of(1, 40, 60)), Step(watermark=40 * MS)]
    total = pa.schema([("sum_v", pa.int64())])
    done = run_both(
        lambda: WindowApply(
            lambda key, window, rows: [sum(row.v for row in rows)], window, total, window_columns=True
        ),
        SCHEMA,
        ["k"],
        steps,
        event_time="ts",
    )
    with OperatorHarness(WindowAggregate(window, [sum_("v")]), SCHEMA, ["k"], event_time="ts") as harness:
        aggregated = run(harness, steps)
        schema = harness.output_schema
    assert [sorted(rows) for rows in done.outputs] == [sorted(rows) for rows in aggregated.outputs]
    with OperatorHarness(
        WindowApply(PlainCalls(), window, total, window_columns=True), SCHEMA, ["k"], event_time="ts"
    ) as harness:
        assert harness.output_schema.equals(schema)


def test_processing_time_windows_take_the_time_of_the_micro_batch() -> None:
    plain = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    start = done_at(0)
    assert start % (10 * MS) == 0, "the harness's clock starts at a window's start"

    def calls(window: Window) -> Run:
        steps = [
            Step([(1, 1), (2, 2)]),
            Step([(1, 3)], elapsed=10 * MS - 1),
            Step([(1, 4)]),  # the last microsecond of the first window again: it is not over yet
            Step([(1, 5)], elapsed=1),
            Step(elapsed=30 * MS),
        ]
        return run_both(
            lambda: WindowApply(call_rows, window, CALLS, time="processing"),
            plain,
            ["k"],
            steps,
            finish=False,
        )

    tumbled = calls(tumble("10 milliseconds"))
    assert [fired(rows) for rows in tumbled.outputs] == [
        [],
        [],
        [],
        [Fired(1, start, start + 10 * MS, (1, 3, 4)), Fired(2, start, start + 10 * MS, (2,))],
        [Fired(1, start + 10 * MS, start + 20 * MS, (5,))],
    ]
    assert tumbled.stored[-1] == {}
    sessions = calls(session("10 milliseconds"))
    assert [fired(rows) for rows in sessions.outputs] == [
        [],
        [],
        [],
        [Fired(2, start, start + 10 * MS, (2,))],
        [Fired(1, start, start + 20 * MS, (1, 3, 4, 5))],
    ]
    assert sessions.stored[-1] == {}


# -- restart, mistakes --------------------------------------------------------------------------------------


@by_window
def test_goes_on_after_a_restore_at_another_parallelism_and_mode(window: Window, async_enabled: bool) -> None:
    steps = [
        Step(rows_of(seed, 30, 80, 20 * seed), watermark=(20 * seed + 60) * MS if seed else None)
        for seed in range(4)
    ]

    def make() -> WindowApply:
        return WindowApply(AwaitCalls(), window, CALLS, allowed_lateness="10 milliseconds")

    with OperatorHarness(make(), SCHEMA, ["k"], event_time="ts") as harness:
        whole = run(harness, steps)
    with (
        slow_reads(),
        OperatorHarness(
            make(), SCHEMA, ["k"], event_time="ts", async_enabled=async_enabled, parallelism=2
        ) as harness,
    ):
        outputs = [run_step(harness, step) for step in steps[:2]]
        with harness.restore(harness.snapshot(), parallelism=3, async_enabled=not async_enabled) as restored:
            rest = run(restored, steps[2:])
    assert [fired(rows) for rows in [*outputs, *rest.outputs]] == [fired(rows) for rows in whole.outputs]
    assert rest.stored[-1] == whole.stored[-1]
    assert whole.counted("late_rows_dropped") > 0


def test_a_checkpoint_is_not_read_with_another_window() -> None:
    def make(window: Window) -> WindowApply:
        return WindowApply(PlainCalls(), window, CALLS)

    with OperatorHarness(make(tumble("10 milliseconds")), SCHEMA, ["k"], event_time="ts") as harness:
        harness.push([(1, 5, 7)])
        harness.end_batch()
        with pytest.raises(StateDeclarationError, match=r"window was tumble\(size=10000us.* and is hop\("):
            harness.restore(harness.snapshot(), operator=make(hop("10 milliseconds", "5 milliseconds")))


class Yielding(ProcessWindowFunction):
    def process(self, key: tuple[Any, ...], ctx: WindowContext, rows: Sequence[Row]) -> Iterator[Any]:
        yield key


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: WindowApply(PlainCalls(), 10, CALLS), "10 is not a window; create one with tumble"),
        (lambda: WindowApply(PlainSums(), WINDOWS[0], CALLS), "give a WindowFunction or a plain function"),
        (lambda: WindowProcess(PlainCalls(), WINDOWS[0], CALLS), "give a ProcessWindowFunction$"),
        (lambda: WindowProcess(Yielding(), WINDOWS[0], CALLS), "is a generator"),
        (lambda: WindowApply(PlainCalls(), WINDOWS[0], CALLS, time="wall"), "time is 'wall'; choose 'event'"),
        (
            lambda: WindowApply(PlainCalls(), WINDOWS[0], CALLS, allowed_lateness=-1),
            "allowed_lateness is negative",
        ),
        (
            lambda: WindowApply(PlainCalls(), WINDOWS[0], CALLS, allowed_lateness=1, time="processing"),
            "no effect in processing time",
        ),
    ],
)
def test_mistakes_are_refused_when_the_operator_is_made(make: Callable[[], Any], complaint: str) -> None:
    with pytest.raises(SchemaError, match=complaint):
        make()


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({}, "time='event' needs an event time but input 0 declares none"),
        ({"event_time": "ts", "changelog": True}, "does not accept retractions"),
        ({"event_time": "ts", "window_columns": True}, "two output columns have the name 'k'"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(settings: dict[str, Any], complaint: str) -> None:
    columns = settings.pop("window_columns", False)
    with pytest.raises(SchemaError, match=complaint):
        OperatorHarness(
            WindowApply(PlainCalls(), WINDOWS[0], CALLS, window_columns=columns), SCHEMA, ["k"], **settings
        )
