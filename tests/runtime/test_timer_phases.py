"""The phases of a micro-batch at record grain, and which timers fire in which of them."""

from __future__ import annotations

from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncstate import RecordContext, RecordOperator, Row, Timer, ValueStateDescriptor
from asyncstate.clock import ManualClock
from asyncstate.codec import key_group
from asyncstate.operator import MIN_WATERMARK, TimeDomain
from asyncstate.testing import OperatorHarness
from tests.examples import share
from tests.state.timer_model import ACTIONS, EVENT, PROCESSING, Action, Model, scripts_of

Mode = dict[str, Any]
KEY_GROUPS = 5
ROWS = pa.schema(
    [
        ("key", pa.int64()),
        ("register", pa.bool_()),
        ("time", pa.int64()),
        ("name", pa.string()),
        ("namespace", pa.int64()),
        ("domain", pa.string()),
    ]
)
OUTPUT = pa.schema([("key", pa.int64()), *((field.name, field.type) for field in list(ROWS)[2:])])


class Scripted(RecordOperator):
    """A row does one action; the nth timer of a key that fires does the nth list of actions of the key's script."""

    def __init__(self, scripts: dict[int, list[list[Action]]]) -> None:
        self.scripts = scripts

    def bind(self, inputs: Any) -> pa.Schema:
        return OUTPUT

    def open(self, context: Any) -> None:
        self.fired = context.get_state(ValueStateDescriptor("fired", pa.int64(), default=0))

    def process(self, row: Row, ctx: RecordContext) -> Any:
        action = Action(row.register, row["time"], row.name, row.namespace, TimeDomain(row.domain))
        action.on(ctx.timers)
        ctx.emit(row.key, -1, None, None, "row")

    def on_timer(self, timer: Timer, ctx: RecordContext) -> Any:
        (key,) = ctx.key
        assert ctx.timestamp == (timer.time if timer.domain is EVENT else None)

        def act(fired: int) -> None:
            ctx.emit(key, timer.time, timer.name, timer.namespace, timer.domain.value)
            script = self.scripts.get(key, [])
            for action in script[fired] if fired < len(script) else []:
                action.on(ctx.timers)
            self.fired.async_update(fired + 1)

        return self.fired.async_value().then_accept(act)


class Given(NamedTuple):
    """A micro-batch: rows, how far the two times go on, and the parallelism it runs at (a restart, if another)."""

    rows: list[tuple[int, Action]]
    clock_step: int
    watermark_step: int
    parallelism: int


KEYS = st.integers(0, 3)
BATCHES = st.lists(
    st.builds(
        Given,
        st.lists(st.tuples(KEYS, ACTIONS), max_size=8),
        st.integers(0, 2),
        st.integers(0, 2),
        st.sampled_from([1, 2]),
    ),
    min_size=1,
    max_size=4,
)


def group_of(key: int) -> int:
    return key_group((key,), [pa.int64()], KEY_GROUPS)


def expected(scripts: dict[int, list[list[Action]]], batches: list[Given]) -> list[list[tuple[Any, ...]]]:
    """The rows of each micro-batch, partition by partition."""
    model = Model(scripts, group_of)
    now = watermark = 0
    found = []
    for batch in batches:
        now += batch.clock_step
        watermark += batch.watermark_step
        events: list[tuple[Any, ...]] = []
        _fire(model, {PROCESSING: now}, events)
        for key, action in batch.rows:
            model.act(key, action)
            events.append((key, -1, None, None, "row"))
        _fire(model, {PROCESSING: now, EVENT: watermark}, events)
        owner = [group_of(event[0]) * batch.parallelism // KEY_GROUPS for event in events]
        found.append(
            [
                ("+I", *event)
                for partition in range(batch.parallelism)
                for event, own in zip(events, owner, strict=True)
                if own == partition
            ]
        )
    return found


def _fire(model: Model, until: dict[TimeDomain, int], events: list[tuple[Any, ...]]) -> None:
    before = len(model.fired)
    model.fire(until)
    for key, timer in model.fired[before:]:
        events.append((key, timer.time, timer.name, timer.namespace, timer.domain.value))


def run(
    scripts: dict[int, list[list[Action]]], batches: list[Given], mode: Mode
) -> tuple[list[list[tuple[Any, ...]]], dict[bytes, bytes]]:
    """The output of each micro-batch, and what is stored in the end."""
    found = []
    clock = ManualClock()
    harness = OperatorHarness(
        Scripted(scripts),
        ROWS,
        ["key"],
        parallelism=batches[0].parallelism,
        max_parallelism=KEY_GROUPS,
        clock=clock,
        **mode,
    )
    watermark = 0
    for batch in batches:
        if batch.parallelism != harness.parallelism:
            with harness as before:
                harness = before.restore(before.snapshot(), parallelism=batch.parallelism, **mode)
        clock.advance(batch.clock_step)
        watermark += batch.watermark_step
        harness.advance_watermark(watermark)
        harness.push([(key, *action[:4], action.domain.value) for key, action in batch.rows])
        found.append(harness.end_batch())
    with harness:
        return found, harness.state_entries()


@given(scripts_of(KEYS), BATCHES)
@settings(max_examples=share(8))
def test_the_order_is_the_models(
    mode: Mode, scripts: dict[int, list[list[Action]]], batches: list[Given]
) -> None:
    found, stored = run(scripts, batches, mode)
    assert found == expected(scripts, batches)
    assert stored == run(scripts, batches, {"async_enabled": False})[1]


class WindowCallbacks(RecordOperator):
    """Sets the timers that a row tells of; puts out what is called, and the timers that ``again`` sets then."""

    def __init__(self, again: Action | None = None) -> None:
        self.again = again

    def bind(self, inputs: Any) -> pa.Schema:
        return pa.schema([("call", pa.string()), ("time", pa.int64())])

    def process(self, row: Row, ctx: RecordContext) -> Any:
        Action(True, row["time"], row.name, row.namespace, TimeDomain(row.domain)).on(ctx.timers)
        ctx.emit("row", row["time"])

    def on_timer(self, timer: Timer, ctx: RecordContext) -> Any:
        ctx.emit(timer.domain.value, timer.time)
        if self.again is not None:
            self.again.on(ctx.timers)
            self.again = None

    def on_watermark(self, watermark: int, ctx: RecordContext) -> Any:
        ctx.emit("watermark", watermark)


def told(harness: OperatorHarness, *timers: tuple[TimeDomain, int]) -> list[tuple[str, int]]:
    """The calls of a micro-batch with a row a timer, without row kinds."""
    harness.push([(1, True, time, None, None, domain.value) for domain, time in timers])
    return [(call, time) for _, call, time in harness.end_batch()]


def test_the_phases_of_a_micro_batch(mode: Mode) -> None:
    with OperatorHarness(WindowCallbacks(), ROWS, ["key"], **mode) as harness:
        harness.advance_processing_time(10)
        harness.advance_watermark(5)
        told(harness, (PROCESSING, 20), (PROCESSING, 30), (EVENT, 6))
        harness.advance_processing_time(10)
        harness.advance_watermark(6)
        assert told(harness, (EVENT, 4), (PROCESSING, 15), (PROCESSING, 21)) == [
            ("processing time", 20),  # due before the rows came
            ("row", 4),
            ("row", 15),
            ("row", 21),
            ("processing time", 15),  # made due by a row, behind all rows
            ("event time", 4),
            ("event time", 6),
            ("watermark", 6),
        ]


@pytest.mark.parametrize("again", TimeDomain)
@pytest.mark.parametrize("first", TimeDomain)
def test_a_timer_in_the_past_fires_at_once(mode: Mode, first: TimeDomain, again: TimeDomain) -> None:
    operator = WindowCallbacks(Action(True, 1, None, None, again))
    with OperatorHarness(operator, ROWS, ["key"], **mode) as harness:
        harness.advance_processing_time(10)
        harness.advance_watermark(10)
        calls = [("row", 5), (first.value, 5), (again.value, 1), ("watermark", 10)]
        assert told(harness, (first, 5)) == calls
        assert told(harness) == [("watermark", 10)]
        assert harness.state_entries() == {}


def test_no_event_timer_fires_before_there_is_a_watermark(mode: Mode) -> None:
    with OperatorHarness(WindowCallbacks(), ROWS, ["key"], **mode) as harness:
        assert told(harness, (EVENT, MIN_WATERMARK)) == [("row", MIN_WATERMARK), ("watermark", MIN_WATERMARK)]
        harness.advance_watermark(0)
        assert told(harness) == [("event time", MIN_WATERMARK), ("watermark", 0)]


def test_the_end_of_the_input_is_no_reason_for_processing_time_to_pass(mode: Mode) -> None:
    with OperatorHarness(WindowCallbacks(), ROWS, ["key"], **mode) as harness:
        told(harness, (PROCESSING, 5), (PROCESSING, 6), (EVENT, 7))
        harness.advance_processing_time(5)
        calls = [call for _, *call in harness.finish()]
        assert calls[:-1] == [["processing time", 5], ["event time", 7]]
        assert harness.statistics()["counter.timers_fired"] == 2


def test_processing_time_never_goes_back(mode: Mode) -> None:
    with OperatorHarness(WindowCallbacks(), ROWS, ["key"], clock=ManualClock(100), **mode) as harness:
        told(harness)
        with harness.restore(harness.snapshot(), clock=ManualClock(50)) as restored:
            assert ("processing time", 100) in told(restored, (PROCESSING, 100))
            assert ("processing time", 101) not in told(restored, (PROCESSING, 101))
