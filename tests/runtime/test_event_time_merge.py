"""Rows of ordered inputs and timers of event time run in the order of their times, however the input is cut."""

from __future__ import annotations

from collections import defaultdict, deque
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncstate import ListStateDescriptor, RecordOperator, ValueStateDescriptor
from asyncstate.errors import OperatorError
from asyncstate.runtime.rows import event_time_merge
from asyncstate.testing import OperatorHarness, Tuning

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("at", pa.timestamp("us"))])
HOUR = 3_600


class RollingSum(RecordOperator):
    """The sum of a key's values in the last hour, after each row: timers take back what has left it."""

    def bind(self, inputs: Any) -> pa.Schema:
        return pa.schema([("k", pa.int64()), ("at", pa.int64()), ("total", pa.int64())])

    def open(self, context: Any) -> None:
        self.total = context.get_state(ValueStateDescriptor("total", pa.int64(), default=0))
        self.values = context.get_state(ListStateDescriptor("values", pa.list_(pa.int64())))

    def process(self, row: Any, ctx: Any) -> Any:
        ctx.timers.register_event_time(ctx.timestamp + HOUR)
        self.values.add([ctx.timestamp, row.v])

        def add(before: int) -> Any:
            ctx.emit(row.k, ctx.timestamp, before + row.v)
            return self.total.async_update(before + row.v)

        return self.total.async_value().then_compose(add)

    def on_timer(self, timer: Any, ctx: Any) -> Any:
        values = list(self.values.get())
        left = [pair for pair in values if pair[0] + HOUR > timer.time]
        self.values.update(left)
        self.total.update(sum(value for _, value in left) if left else None)


def rolling(rows: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """The model: of rows in order of time; a row that is exactly an hour old still counts, its timer comes behind."""
    found = []
    window: dict[int, deque[tuple[int, int]]] = defaultdict(deque)
    for k, v, at in sorted(rows, key=lambda row: (row[2], row[1])):
        mine = window[k]
        while mine and mine[0][0] + HOUR < at:
            mine.popleft()
        mine.append((at, v))
        found.append((k, at, sum(value for _, value in mine)))
    return sorted(found)


def run(
    operator: Any, rows: list[tuple[int, int, int]], cuts: int, seed: int = 0, **settings: Any
) -> tuple[list[Any], dict[bytes, bytes]]:
    """All output and what is stored before the end; rows in order of time, shuffled within each micro-batch."""
    random = Random(seed)
    size = max(-(-len(rows) // cuts), 1)
    settings = {"event_time": "at", "order_by": ["at", "v"], **settings}
    with OperatorHarness(operator, SCHEMA, ["k"], **settings) as harness:
        for start in range(0, len(rows), size):
            part = rows[start : start + size]
            random.shuffle(part)
            harness.push(part)
            harness.advance_watermark(max(row[2] for row in part) - 1)
            harness.end_batch()
        stored = harness.state_entries()
        harness.finish()
        assert harness.state_entries() == {} or not isinstance(operator, RollingSum)
        return [row[1:] for row in harness.output], stored


def history(count: int) -> list[tuple[int, int, int]]:
    random = Random(5)
    return sorted(
        ((random.randrange(8), random.randrange(100), random.randrange(20 * HOUR)) for _ in range(count)),
        key=lambda row: row[2],
    )


@pytest.mark.parametrize("cuts", [1, 4, 80])
def test_a_rolling_sum_is_the_same_in_any_number_of_micro_batches(mode: dict[str, Any], cuts: int) -> None:
    rows = history(800)
    output, _ = run(RollingSum(), rows, cuts, parallelism=2, **mode)
    assert sorted(output) == rolling(rows)


def test_a_micro_batch_a_row_gives_the_same(async_enabled: bool) -> None:
    rows = history(150)
    output, _ = run(RollingSum(), rows, len(rows), async_enabled=async_enabled)
    assert sorted(output) == rolling(rows)


histories = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9), st.integers(0, 5 * HOUR)), max_size=30)


@settings(max_examples=settings().max_examples // 3)
@given(
    rows=histories.map(lambda rows: sorted(rows, key=lambda row: row[2])),
    cuts=st.integers(1, 6),
    seed=st.integers(0, 99),
    parallelism=st.integers(1, 3),
    small=st.booleans(),
)
def test_any_cut_and_order_of_arrival(
    rows: list[tuple[int, int, int]], cuts: int, seed: int, parallelism: int, small: bool
) -> None:
    """Also in slices of three, with timers that do not fit into memory."""
    with pytest.MonkeyPatch.context() as patch:
        if small:
            patch.setattr(event_time_merge, "SLICE", 3)
            patch.setattr(event_time_merge, "HELD_MAX", 1)
        found = [
            run(RollingSum(), list(rows), cuts, seed, parallelism=parallelism, async_enabled=enabled)
            for enabled in (False, True)
        ]
    assert found[0] == found[1]
    assert sorted(found[0][0]) == rolling(rows)


class Script(RecordOperator):
    """What a row's value says about timers; everything is put out as it happens."""

    def bind(self, inputs: Any) -> pa.Schema:
        return pa.schema([("what", pa.string()), ("at", pa.int64())])

    def open(self, context: Any) -> None:
        self.seen = context.get_state(ValueStateDescriptor("seen", pa.int64(), default=0))

    def process(self, row: Any, ctx: Any) -> Any:
        timers, at = ctx.timers, ctx.timestamp
        if row.v == 1:
            timers.register_event_time(at + 5)
        elif row.v == 2:
            timers.register_event_time(at + 5, name="moved")
        elif row.v == 3:
            timers.delete_event_time(name="moved")
        elif row.v == 4:
            timers.register_event_time(at - 100)  # in the past: fires before the next row
        elif row.v == 5:
            timers.delete_event_time(at + 5)
        elif row.v == 6:
            timers.register_event_time(at + 3, name="again")
        return self.seen.async_value().then_apply(lambda _: ctx.emit(f"row {row.v}", at))

    def on_timer(self, timer: Any, ctx: Any) -> Any:
        ctx.emit(f"timer {timer.name}", timer.time)
        if timer.name == "again":
            ctx.timers.register_event_time(timer.time + 3, name="last")


def told(rows: list[tuple[int, int, int]], mode: dict[str, Any], cuts: int = 1) -> list[tuple[str, int]]:
    return [tuple(row) for row in run(Script(), rows, cuts, **mode)[0]]


@pytest.mark.parametrize("cuts", [1, 2, 4])
def test_timers_take_their_turn_between_rows(mode: dict[str, Any], cuts: int) -> None:
    rows = [(0, 1, 100), (0, 0, 104), (0, 9, 105), (0, 0, 106)]
    assert told(rows, mode, cuts) == [
        ("row 1", 100), ("row 0", 104), ("row 9", 105), ("timer None", 105), ("row 0", 106)
    ]  # fmt: skip


@pytest.mark.parametrize("cuts", [1, 2, 5])
def test_timers_that_rows_replace_or_delete_do_not_fire(mode: dict[str, Any], cuts: int) -> None:
    rows = [(0, 2, 100), (0, 2, 103), (0, 3, 107), (0, 1, 110), (0, 5, 110), (0, 2, 120)]
    assert told(rows, mode, cuts) == [
        ("row 2", 100), ("row 2", 103), ("row 3", 107), ("row 1", 110), ("row 5", 110), ("row 2", 120),
        ("timer moved", 125),
    ]  # fmt: skip


@pytest.mark.parametrize("cuts", [1, 2, 3])
def test_timers_of_the_past_and_of_timers(mode: dict[str, Any], cuts: int) -> None:
    rows = [(0, 6, 100), (0, 4, 101), (0, 0, 105), (0, 0, 200)]
    assert told(rows, mode, cuts) == [
        ("row 6", 100), ("row 4", 101), ("timer None", 1), ("timer again", 103), ("row 0", 105),
        ("timer last", 106), ("row 0", 200),
    ]  # fmt: skip


def test_keys_of_a_wave_read_together() -> None:
    """In async mode over a slow store the reads of many keys wait together, in spite of the order of each key."""
    keys, turns = 200, 3
    rows = [(key, 1, 1_000 * turn + key) for turn in range(turns) for key in range(keys)]
    with OperatorHarness(
        Script(),
        SCHEMA,
        ["k"],
        event_time="at",
        order_by="at",
        async_enabled=True,
        tuning=Tuning(batch_hot_reads=True),
    ) as harness:
        harness.push(rows)
        harness.end_batch()
        harness.finish()
        figures = harness.statistics()
    assert figures["rows_out"] == 2 * len(rows)
    assert figures["read_batches"] <= 20 * turns


def test_a_timer_that_registers_itself_for_its_own_time_is_refused(async_enabled: bool) -> None:
    class Endless(Script):
        def on_timer(self, timer: Any, ctx: Any) -> Any:
            ctx.timers.register_event_time(timer.time, name=timer.name)

    for ordered in ("at", None):
        with OperatorHarness(
            Endless(), SCHEMA, ["k"], event_time="at", order_by=ordered, async_enabled=async_enabled
        ) as harness:
            harness.push([(7, 1, 100)])
            with pytest.raises(
                OperatorError,
                match="time 105, name None.*was registered again for the same time.*1,000 times",
            ):
                harness.finish()
