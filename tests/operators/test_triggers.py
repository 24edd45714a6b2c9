"""Windows with triggers, evictors and assigners of one's own: what each promises, and a model that has all rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from asyncstate import ProcessWindowFunction, Trigger, TriggerResult, WindowAssigner
from asyncstate.errors import AsyncStateError, SchemaError
from asyncstate.functions import Evictor, TimedRow, TimeWindow
from asyncstate.testing import OperatorHarness
from operators import WindowApply, WindowProcess, assigners, evictors, hop, session, triggers, tumble
from tests.examples import at_most

MS = 1_000
SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64()), ("at", pa.timestamp("us"))])
OUTPUT = pa.schema([("k", pa.string()), ("start", pa.int64()), ("end", pa.int64()), ("values", pa.string())])


def told(key: Any, window: TimeWindow, rows: Sequence[Any]) -> list[Any]:
    """Key, bounds in ms, and the values as a text."""
    bounds = [max(-99, min(bound // MS, 99_999)) for bound in window]
    return [(key[0], *bounds, " ".join(str(row.v) for row in rows))]


def harness_of(async_enabled: bool, window: Any, **chosen: Any) -> OperatorHarness:
    operator = WindowApply(told, window, OUTPUT, **chosen)
    in_event_time = {"event_time": "at", "watermark_delay": 0}
    time: dict[str, Any] = {} if chosen.get("time") == "processing" else in_event_time
    return OperatorHarness(operator, SCHEMA, ["k"], changelog=False, async_enabled=async_enabled, **time)


def restarted(harness: OperatorHarness, **changes: Any) -> OperatorHarness:
    """The same operator over what it has committed."""
    saved = harness.snapshot()
    harness.close()
    return harness.restore(saved, **changes)


def step(harness: OperatorHarness, rows: Any, watermark: int | None = None) -> list[Any]:
    """A micro-batch of rows (key, value, ms); the watermark in ms at its end."""
    harness.push([(k, v, at * MS) for k, v, at in rows])
    if watermark is not None:
        harness.advance_watermark(watermark * MS)
    return [row[1:] for row in harness.end_batch()]


TEN = tumble("10 milliseconds")


def test_count(async_enabled: bool) -> None:
    with harness_of(async_enabled, TEN, trigger=triggers.count(2)) as first:
        assert step(first, [("a", 1, 1), ("a", 2, 2), ("a", 3, 3)]) == [("a", 0, 10, "1 2")]
        saved = first.snapshot()
    with first.restore(saved, parallelism=2) as harness:
        assert step(harness, [("a", 4, 4), ("b", 9, 5)]) == [("a", 0, 10, "1 2 3 4")]
        assert step(harness, [], watermark=50) == []  # the end of a window is nothing to this trigger
        assert harness.state_entries() == {}


def test_purging_forgets_the_rows_but_not_what_the_trigger_knows(async_enabled: bool) -> None:
    with harness_of(async_enabled, TEN, trigger=triggers.purging(triggers.count(2))) as harness:
        found = step(harness, [("a", n, n) for n in range(1, 6)])
        assert found == [("a", 0, 10, "1 2"), ("a", 0, 10, "3 4")]
        assert step(harness, [("a", 6, 6)]) == [("a", 0, 10, "5 6")]
        assert step(harness, [], watermark=50) == []
        assert harness.state_entries() == {}


def test_event_time_is_what_there_is_without_a_trigger(async_enabled: bool) -> None:
    found = []
    for chosen in ({}, {"trigger": triggers.event_time()}):
        with harness_of(async_enabled, TEN, allowed_lateness="5 milliseconds", **chosen) as harness:
            out = step(harness, [("a", 1, 1), ("a", 2, 12)], watermark=11)
            out += step(harness, [("a", 3, 2)], watermark=12)
            out += step(harness, [("a", 4, 3)], watermark=15)
            out += step(harness, [("a", 5, 4)], watermark=40)
            found.append((out, harness.statistics()["counter.late_rows_dropped"], harness.state_entries()))
    assert found[0] == found[1]
    assert found[0][:2] == (
        [("a", 0, 10, "1"), ("a", 0, 10, "1 3"), ("a", 0, 10, "1 3 4"), ("a", 10, 20, "2")], 1
    )  # fmt: skip


def test_continuous_event_time(async_enabled: bool) -> None:
    trigger = triggers.continuous_event_time("3 milliseconds")
    with harness_of(async_enabled, TEN, trigger=trigger) as harness:
        assert step(harness, [("a", 1, 1)], watermark=2) == []
        assert step(harness, [("a", 2, 4)], watermark=4) == [("a", 0, 10, "1 2")]
        assert step(harness, [("a", 3, 5)], watermark=5) == []
        assert step(harness, [], watermark=30) == [("a", 0, 10, "1 2 3")] * 3  # at 6, at 9, and at its end
        assert harness.state_entries() == {}


def test_continuous_event_time_goes_on_in_a_session_that_late_rows_make_longer(async_enabled: bool) -> None:
    chosen = {
        "trigger": triggers.continuous_event_time("3 milliseconds"),
        "allowed_lateness": "1 second",
    }
    with harness_of(async_enabled, session("5 milliseconds"), **chosen) as harness:
        assert step(harness, [("a", 1, 1)], watermark=8) == [("a", 1, 6, "1")] * 2  # at 3, and at its end
        assert step(harness, [("a", 2, 6)], watermark=8) == []
        assert step(harness, [], watermark=30) == [("a", 1, 11, "1 2")] * 2  # at 9, and at its end


def test_continuous_event_time_does_not_fire_behind_the_end_of_a_window_that_is_kept(
    async_enabled: bool,
) -> None:
    chosen = {"trigger": triggers.continuous_event_time("3 milliseconds"), "allowed_lateness": "1 second"}
    with harness_of(async_enabled, TEN, **chosen) as harness:
        assert step(harness, [("a", 1, 9)], watermark=50) == [("a", 0, 10, "1")]
        assert step(harness, [("a", 2, 9)], watermark=90) == [("a", 0, 10, "1 2")]


def test_continuous_event_time_in_a_global_window_ends_with_the_input(async_enabled: bool) -> None:
    chosen = {
        "assigner": assigners.global_windows(),
        "trigger": triggers.continuous_event_time("3 milliseconds"),
    }
    with harness_of(async_enabled, None, **chosen) as harness:
        assert step(harness, [("a", 1, 1), ("a", 2, 5)], watermark=6) == [("a", -99, 99_999, "1 2")] * 2
        harness.push([("b", 3, 5 * MS)])
        found = [row[1:] for row in harness.finish()]  # at the next multiple, and at the end
        assert sorted(found) == [("a", -99, 99_999, "1 2")] * 2 + [("b", -99, 99_999, "3")] * 2


def test_continuous_processing_time(async_enabled: bool) -> None:
    trigger = triggers.continuous_processing_time("1 second")
    with harness_of(async_enabled, TEN, trigger=trigger) as harness:
        harness.advance_processing_time(-harness.clock.now_us() % 1_000_000)
        assert step(harness, [("a", 1, 1)]) == []
        harness.advance_processing_time(999_999)
        assert step(harness, [("a", 2, 2)]) == []
        harness.advance_processing_time(1)
        assert step(harness, []) == [("a", 0, 10, "1 2")]
        harness.advance_processing_time(5_300_000)  # however long it was: once, then at the next multiple
        assert step(harness, []) == [("a", 0, 10, "1 2")]
        harness.advance_processing_time(700_000)
        assert step(harness, []) == [("a", 0, 10, "1 2")]
        assert step(harness, [], watermark=60) == []
        assert harness.state_entries() == {}


def test_processing_time(async_enabled: bool) -> None:
    chosen = {"time": "processing", "trigger": triggers.purging(triggers.processing_time())}
    with harness_of(async_enabled, tumble("1 second"), **chosen) as harness:
        harness.advance_processing_time(-harness.clock.now_us() % 1_000_000)
        assert step(harness, [("a", 1, 0)]) == []
        harness.advance_processing_time(1_000_000)
        assert [row[3] for row in step(harness, [("a", 2, 0)])] == ["1"]
        harness.advance_processing_time(9_000_000)
        assert [row[3] for row in step(harness, [])] == ["2"]
        assert harness.state_entries() == {}


def test_delta_and_global_windows(async_enabled: bool) -> None:
    chosen = {"assigner": assigners.global_windows(), "trigger": triggers.delta(10, lambda row: row.v)}
    with harness_of(async_enabled, None, **chosen) as harness:
        assert step(harness, [("a", 1, 1), ("a", 11, 2), ("a", 12, 3)]) == [("a", -99, 99_999, "1 11 12")]
        assert step(harness, [("a", 23, 1), ("b", 99, 1)], watermark=90) == [("a", -99, 99_999, "1 11 12 23")]


def test_delta_takes_a_measure_that_is_no_number_for_no_rise(async_enabled: bool) -> None:
    trigger = triggers.delta(10, lambda row: float("nan") if row.v == 9 else row.v)
    with harness_of(async_enabled, None, assigner=assigners.global_windows(), trigger=trigger) as harness:
        found = step(harness, [("a", v, 1) for v in (1, 9, 2, 12)])
        assert [row[3] for row in found] == ["1 9 2 12"]


def test_evictors(async_enabled: bool) -> None:
    last = {
        "assigner": assigners.global_windows(),
        "trigger": triggers.count(1),
        "evictor": evictors.count(2),
    }
    with harness_of(async_enabled, None, **last) as harness:
        found = step(harness, [("a", 1, 1), ("a", 2, 2), ("a", 3, 3)])
        assert [row[3] for row in found] == ["1", "1 2", "2 3"]
        assert len([key for key in harness.state_entries()]) == 2  # the windows and the rows of one key
    after = {**last, "evictor": evictors.count(1, after=True)}
    with harness_of(async_enabled, None, **after) as harness:
        found = step(harness, [("a", 1, 1), ("a", 2, 2), ("a", 3, 3)])
        assert [row[3] for row in found] == ["1", "1 2", "2 3"]
    recent = {**last, "evictor": evictors.time("2 milliseconds")}
    with harness_of(async_enabled, None, **recent) as harness:
        found = step(harness, [("a", 1, 1), ("a", 2, 2), ("a", 3, 4), ("a", 4, 3)])
        assert [row[3] for row in found] == ["1", "1 2", "3", "3 4"]
    near = {**last, "evictor": evictors.delta(3, lambda row: row.v)}
    with harness_of(async_enabled, None, **near) as harness:
        found = step(harness, [("a", 1, 1), ("a", 3, 2), ("a", 4, 4), ("a", 9, 3)])
        assert [row[3] for row in found] == ["1", "1 3", "3 4", "9"]


def test_a_measure_that_is_no_number_throws_no_row_out(async_enabled: bool) -> None:
    """As in Flink's DeltaEvictor; a last row of NaN took all rows of the window with it, itself too."""
    near = evictors.delta(3, lambda row: float("nan") if row.v == 9 else row.v)
    chosen = {"assigner": assigners.global_windows(), "trigger": triggers.count(1), "evictor": near}
    with harness_of(async_enabled, None, **chosen) as harness:
        found = step(harness, [("a", v, 1) for v in (1, 2, 9, 5)])
        assert [row[3] for row in found] == ["1", "1 2", "1 2 9", "9 5"]


def test_sessions_merge_rows_timers_and_counts(async_enabled: bool) -> None:
    chosen = {"trigger": triggers.count(3)}
    with harness_of(async_enabled, session("5 milliseconds"), **chosen) as harness:
        assert step(harness, [("a", 1, 1), ("a", 2, 10)]) == []
        assert step(harness, [("a", 3, 6)]) == [("a", 1, 15, "1 2 3")]  # 1 + 1 + the row that joins them
        assert step(harness, [("a", 4, 7)], watermark=100) == []
        assert harness.state_entries() == {}
    with harness_of(async_enabled, session("5 milliseconds"), trigger=triggers.event_time()) as harness:
        assert step(harness, [("a", 1, 1), ("a", 2, 10)], watermark=5) == []
        assert step(harness, [("a", 3, 6)], watermark=14) == []
        assert step(harness, [], watermark=15) == [("a", 1, 15, "1 2 3")]
        assert harness.state_entries() == {}


def test_sessions_with_a_gap_of_each_row(async_enabled: bool) -> None:
    assigner = assigners.dynamic_session(lambda row: row.v * MS)
    with harness_of(async_enabled, None, assigner=assigner) as harness:
        found = step(harness, [("a", 3, 1), ("a", 9, 3), ("a", 1, 30)], watermark=100)
        assert sorted(found) == [("a", 1, 12, "3 9"), ("a", 30, 31, "1")]
        assert harness.state_entries() == {}


def test_sessions_with_a_gap_of_each_row_in_processing_time(async_enabled: bool) -> None:
    assigner = assigners.dynamic_session(lambda row: row.v * MS)
    with harness_of(async_enabled, None, assigner=assigner, time="processing") as harness:
        assert step(harness, [("a", 3, 1), ("a", 9, 1)]) == []
        harness.advance_processing_time("9 milliseconds")
        assert [row[3] for row in step(harness, [("a", 4, 1)])] == ["3 9"]
        assert not harness.waits_for_watermark


def test_rows_whose_sessions_do_not_fit_are_dropped_and_counted(async_enabled: bool) -> None:
    assigner = assigners.dynamic_session(lambda row: row.v * MS)
    with harness_of(async_enabled, None, assigner=assigner) as harness:
        harness.push([("a", 3, 2**63 - 1), ("a", 3, 2**63 - 3 * MS), ("a", 3, 5 * MS)])
        assert harness.end_batch() == []
        assert harness.statistics()["counter.event_times_out_of_range"] == 2
        assert [row[1:] for row in harness.finish()] == [("a", 5, 8, "3")]
        assert harness.state_entries() == {}


@pytest.mark.parametrize(
    "trigger", [triggers.purging(triggers.event_time()), triggers.continuous_event_time("1 second")]
)
def test_triggers_that_wait_for_the_watermark(trigger: Trigger) -> None:
    with harness_of(False, TEN, trigger=trigger) as harness:
        assert harness.waits_for_watermark


class Counted(ProcessWindowFunction):
    """Tells when it is asked to clear up."""

    def process(self, key: Any, ctx: Any, rows: Any) -> None:
        ctx.emit(*told(key, ctx.window, rows)[0])

    def clear(self, ctx: Any) -> None:
        ctx.emit(*told(ctx.key, ctx.window, [])[0])


class Own(Trigger):
    """Fires at every second row and at a time of its own; asynchronous; says when it is cleared."""

    state_type = pa.struct([("rows", pa.int64())])
    cleared: ClassVar[list[TimeWindow]] = []

    async def on_element(self, row: Any, timestamp: int, window: TimeWindow, ctx: Any) -> TriggerResult:
        ctx.register_event_time(7 * MS)
        ctx.register_event_time(8 * MS)
        ctx.delete_event_time(8 * MS)
        ctx.state = {"rows": (ctx.state or {"rows": 0})["rows"] + 1}
        return TriggerResult.FIRE if ctx.state["rows"] % 2 == 0 else TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: TimeWindow, ctx: Any) -> TriggerResult:
        assert time == 7 * MS
        return TriggerResult.FIRE_AND_PURGE

    def clear(self, window: TimeWindow, ctx: Any) -> None:
        self.cleared.append(window)


def test_a_trigger_of_ones_own_and_clearing_up(async_enabled: bool) -> None:
    operator = WindowProcess(Counted(), TEN, OUTPUT, trigger=Own())
    time: dict[str, Any] = {"event_time": "at", "watermark_delay": 0, "changelog": False}
    with OperatorHarness(operator, SCHEMA, ["k"], async_enabled=async_enabled, **time) as harness:
        assert step(harness, [("a", 1, 1), ("a", 2, 2), ("a", 3, 3)]) == [("a", 0, 10, "1 2")]
        assert step(harness, [], watermark=8) == [("a", 0, 10, "1 2 3")]
        assert step(harness, [], watermark=9) == []
        assert step(harness, [("a", 4, 4)], watermark=20) == [("a", 0, 10, "4"), ("a", 0, 10, "")]
        assert Own.cleared.pop() == TimeWindow(0, 10 * MS)
        assert harness.state_entries() == {}


class Yielding(WindowAssigner):
    """Two windows, one by one."""

    def assign(self, row: Any, timestamp: int) -> Iterator[TimeWindow]:
        yield TimeWindow(0, 10 * MS)
        yield TimeWindow(0, 20 * MS)

    def default_trigger(self) -> Trigger:
        return triggers.event_time()


def test_an_assigner_may_be_a_generator(async_enabled: bool) -> None:
    harness = harness_of(async_enabled, None, assigner=Yielding())
    assert step(harness, [("a", 1, 1), ("a", 2, 2)], watermark=30) == [
        ("a", 0, 10, "1 2"),
        ("a", 0, 20, "1 2"),
    ]
    assert not harness.statistics().get("counter.late_rows_dropped")
    harness.close()


# -- a model ---------------------------------------------------------------------------------------------


ROWS = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 9), st.integers(0, 25)), max_size=8)


def model(window: str, n: int, purges: bool, last: int | None, rows: Any) -> list[Any]:
    """What a count trigger puts out, row by row, of windows of 10 ms (hopping by 5) or one window."""
    kept: dict[Any, list[int]] = defaultdict(list)
    counts: dict[Any, int] = defaultdict(int)
    out = []
    for key, value, at in rows:
        starts = {"hop": [at // 5 * 5 - 5, at // 5 * 5], "tumble": [at // 10 * 10], "global": [-99]}[window]
        for start in starts:
            end = 99_999 if window == "global" else start + 10
            kept[key, start].append(value)
            counts[key, start] += 1
            if counts[key, start] == n:
                counts[key, start] = 0
                if last is not None:
                    kept[key, start] = kept[key, start][-last:]
                out.append((key, start, end, " ".join(map(str, kept[key, start]))))
                if purges:
                    kept[key, start] = []
    return out


@pytest.mark.parametrize("window", ["hop", "tumble", "global"])
@settings(max_examples=at_most(12))
@given(
    batches=st.lists(ROWS, min_size=1, max_size=3),
    n=st.integers(1, 3),
    purges=st.booleans(),
    last=st.sampled_from([None, 1, 2]),
)
def test_count_triggers_in_any_cut(
    window: str, batches: Any, n: int, purges: bool, last: int | None, async_enabled: bool
) -> None:
    trigger = triggers.purging(triggers.count(n)) if purges else triggers.count(n)
    chosen: dict[str, Any] = {"trigger": trigger, "evictor": None if last is None else evictors.count(last)}
    windows: dict[str, Any] = {"hop": hop("10 milliseconds", "5 milliseconds"), "tumble": TEN, "global": None}
    if window == "global":
        chosen["assigner"] = assigners.global_windows()
    found: list[Any] = []
    # Rows may be a second late, so that none is.
    harness = harness_of(async_enabled, windows[window], allowed_lateness="1 second", **chosen)
    for number, batch in enumerate(batches):
        found += step(harness, batch)
        harness = restarted(harness, async_enabled=async_enabled is bool(number % 2))
    if window != "global":
        assert step(harness, [], watermark=10_000) == []
        assert harness.state_entries() == {}
    harness.close()
    assert found == model(window, n, purges, last, [row for batch in batches for row in batch])


@dataclass
class Kept:
    """A window of the model, in ms; ``next``: the multiple of 3 ms at which it fires next, None if at none."""

    start: int
    end: int
    values: list[int]
    next: int | None


class EventTimeModel:
    """Tumbling windows of 10 ms, or sessions with a gap of 5 ms, a row at a time.

    They fire at their end, then for each row that comes later; with ``every`` at multiples of 3 ms before it, too.
    """

    def __init__(self, merges: bool, every: bool, purges: bool, lateness: int) -> None:
        self.merges, self.every, self.purges, self.lateness = merges, every, purges, lateness
        self.passed = self.late = 0
        self.kept: dict[str, list[Kept]] = defaultdict(list)
        self.fired: list[Any] = []

    def add(self, key: str, value: int, at: int) -> None:
        start = at if self.merges else at // 10 * 10
        end = start + (5 if self.merges else 10)
        mine = [
            one
            for one in self.kept[key]
            if one.start == start or (self.merges and one.start <= end and start <= one.end)
        ]
        if not mine and end + self.lateness <= self.passed:
            self.late += 1
            return
        whole = Kept(
            min([start, *(one.start for one in mine)]),
            max([end, *(one.end for one in mine)]),
            [*(old for one in mine for old in one.values), value],
            min((one.next for one in mine if one.next is not None), default=None),
        )
        self.kept[key] = [one for one in self.kept[key] if one not in mine] + [whole]
        if whole.end <= self.passed:
            self.fire(key, whole)
        elif self.every and whole.next is None:
            whole.next = max(at, self.passed) // 3 * 3 + 3

    def advance(self, watermark: int) -> None:
        for key, windows in self.kept.items():
            for one in windows:
                while one.next is not None and one.next < one.end and one.next <= watermark:
                    self.fire(key, one)
                    one.next += 3
                if self.passed < one.end <= watermark:
                    self.fire(key, one)
                    one.next = None
            self.kept[key] = [one for one in windows if one.end + self.lateness > watermark]
        self.passed = watermark

    def fire(self, key: str, one: Kept) -> None:
        if one.values:
            self.fired.append((key, one.start, one.end, " ".join(map(str, sorted(one.values)))))
        if self.purges:
            one.values = []


@pytest.mark.long
@settings(max_examples=at_most(15))
@given(
    batches=st.lists(st.tuples(ROWS, st.integers(0, 15)), min_size=1, max_size=4),
    merges=st.booleans(),
    every=st.booleans(),
    purges=st.booleans(),
    lateness=st.sampled_from([0, 6, 30]),
)
@example(batches=[([("a", 1, 9)], 15)], merges=False, every=True, purges=False, lateness=6)
@example(batches=[([("a", 1, 1)], 8), ([("a", 2, 6)], 0)], merges=True, every=True, purges=False, lateness=30)
def test_triggers_of_event_time_and_late_rows_in_any_cut(
    batches: Any, merges: bool, every: bool, purges: bool, lateness: int, async_enabled: bool
) -> None:
    trigger = triggers.continuous_event_time("3 milliseconds") if every else triggers.event_time()
    chosen = {"trigger": triggers.purging(trigger) if purges else trigger}
    window = session("5 milliseconds") if merges else TEN
    model = EventTimeModel(merges, every, purges, lateness)
    harness = harness_of(async_enabled, window, allowed_lateness=lateness * MS, **chosen)
    latest = late = 0
    for number, (rows, forward) in enumerate([*batches, ([], 100)]):
        for row in rows:
            model.add(*row)
        model.advance(max(model.passed + forward, latest))
        latest = max([latest, *(at for _, _, at in rows)])
        found = step(harness, rows, watermark=model.passed)
        told_in_order = [(*row[:3], " ".join(sorted(row[3].split()))) for row in found]
        assert sorted(told_in_order) == sorted(model.fired)
        model.fired.clear()
        late += int(harness.statistics().get("counter.late_rows_dropped", 0))
        assert late == model.late
        harness = restarted(harness, parallelism=1 + number % 2)
    assert harness.state_entries() == {}
    harness.close()


# -- what is refused -------------------------------------------------------------------------------------


class Backwards(WindowAssigner):
    def assign(self, row: Any, timestamp: int) -> Sequence[TimeWindow]:
        return [TimeWindow(5, 5)]

    def default_trigger(self) -> Trigger:
        return triggers.never()


class Silent(Trigger):
    def on_element(self, row: Any, timestamp: int, window: TimeWindow, ctx: Any) -> Any:
        return None


@pytest.mark.parametrize(
    ("window", "chosen", "message"),
    [
        (None, {}, "give either a window or an assigner"),
        (TEN, {"assigner": assigners.global_windows()}, "give either a window or an assigner"),
        (TEN, {"trigger": "count"}, "trigger is 'count'; give a Trigger"),
        (TEN, {"evictor": 3}, "evictor is 3; give a Evictor"),
        (session("1 second"), {"trigger": Silent()}, "does not support merging windows"),
        (session("1 second"), {"trigger": triggers.delta(1, len)}, "does not support merging windows"),
    ],
)
def test_what_is_refused(window: Any, chosen: Any, message: str) -> None:
    with pytest.raises(SchemaError, match=f"WindowApply: .*{message}"):
        WindowApply(told, window, OUTPUT, **chosen)


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"assigner": Backwards()}, "ends before it starts"),
        (
            {"assigner": assigners.global_windows(), "trigger": Silent()},
            "returned None; return a TriggerResult",
        ),
    ],
)
def test_what_fails_with_a_row(chosen: Any, message: str, async_enabled: bool) -> None:
    with harness_of(async_enabled, None, **chosen) as harness, pytest.raises(AsyncStateError, match=message):
        step(harness, [("a", 1, 1)])


@pytest.mark.parametrize(
    "make",
    [
        lambda: triggers.count(0),
        lambda: triggers.continuous_event_time(0),
        lambda: triggers.purging(3),  # type: ignore[arg-type]
        lambda: evictors.count(0),
        lambda: evictors.time("0 seconds"),
    ],
)
def test_what_no_trigger_or_evictor_can_be(make: Any) -> None:
    with pytest.raises(SchemaError, match=r"(triggers|evictors)\."):
        make()


def test_an_evictor_does_nothing_by_itself() -> None:
    rows: list[TimedRow] = []
    assert Evictor().evict_before(rows, TimeWindow(0, 1)) is rows
    assert Evictor().evict_after(rows, TimeWindow(0, 1)) is rows
