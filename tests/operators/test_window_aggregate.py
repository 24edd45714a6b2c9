"""WindowAggregate: what it puts out is what a loop over the rows gives, in every mode and partitioning."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncstate.changelog import INSERT_ONLY, RETRACT
from asyncstate.codec import KeyCodec
from asyncstate.errors import SchemaError, StateDeclarationError
from asyncstate.operator import InputSpec
from asyncstate.state.columnar import due_parts
from asyncstate.testing import OperatorHarness
from operators.aggregate.aggregate_calls import Aggregate
from operators.aggregate.aggregates import avg, count, max_, min_, sum_
from operators.aggregate.collected import last_value
from operators.window import slices
from operators.window.window_aggregate import WindowAggregate
from operators.window.windows import SessionWindow, SlicedWindow, Window, cumulate, hop, session, tumble
from tests.operators.direct import DirectRunner
from tests.operators.window_model import MAX, MIN, MS, Batch, Op, Row, WindowModel, not_passed, schedules

SCHEMA = pa.schema(
    [("k", pa.int64()), ("ts", pa.timestamp("us", "UTC")), ("v", pa.int64()), ("odd", pa.bool_())]
)
BASE = [count(), sum_("v"), avg("v"), count().where("odd").alias("odd")]
EXTREMES = [*BASE, min_("v"), max_("v")]
WINDOWS: list[SlicedWindow | SessionWindow] = [
    tumble("10 milliseconds"),
    tumble("10 milliseconds", "3 milliseconds"),
    hop("20 milliseconds", "5 milliseconds"),
    hop("9 milliseconds", "3 milliseconds", "-1 millisecond"),
    cumulate("20 milliseconds", "5 milliseconds"),
    cumulate("12 milliseconds", "3 milliseconds", "2 milliseconds"),
    session("7 milliseconds"),
]


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts so small that every way of cutting is walked."""
    monkeypatch.setattr(due_parts.DueReader.__init__, "__defaults__", (3, 0))
    monkeypatch.setattr(slices, "MERGE_ROWS", 2)


def make(
    window: Window, aggregates: Sequence[Aggregate] = EXTREMES, changelog: bool = False, **settings: Any
) -> OperatorHarness:
    settings = {"key": ["k"], "event_time": "ts", "watermark_delay": None, **settings}
    return OperatorHarness(WindowAggregate(window, aggregates), SCHEMA, changelog=changelog, **settings)


def spec(changelog: bool = False, key: tuple[str, ...] = ("k",), schema: pa.Schema = SCHEMA) -> InputSpec:
    return InputSpec(schema, key, "ts", RETRACT if changelog else INSERT_ONLY)


def rows_of(ops: Sequence[Op]) -> list[tuple[Any, ...]]:
    return [(k, time * MS, v, None if v is None else v % 2 == 1) for _, (k, time, v) in ops]


def run_direct(runner: DirectRunner, batch: Batch, bundle_rows: int | None = None) -> list[tuple[Any, ...]]:
    kinds = [kind for kind, _ in batch.ops]
    return inserts(runner.run(rows_of(batch.ops), kinds, batch.watermark, bundle_rows))


def push(harness: OperatorHarness, batch: Batch) -> list[tuple[Any, ...]]:
    harness.push(rows_of(batch.ops), kinds=[kind for kind, _ in batch.ops])
    if batch.watermark == MAX:
        return inserts(harness.finish())
    if batch.watermark > MIN:
        harness.advance_watermark(batch.watermark)
    return inserts(harness.end_batch())


def inserts(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    assert all(row[0] == "+I" for row in rows)
    return [row[1:] for row in rows]


def store_order(rows: list[tuple[Any, ...]], max_parallelism: int) -> list[tuple[Any, ...]]:
    """By window end, key group, key (null first)."""
    codec = KeyCodec([pa.int64()], ["k"], max_parallelism)
    groups = codec.groups([pa.array([row[0] for row in rows], pa.int64())]).tolist() if rows else []
    return [
        row
        for _, row in sorted(
            zip(groups, rows, strict=True),
            key=lambda pair: (pair[1][2], pair[0], pair[1][0] is not None, pair[1][0] or 0),
        )
    ]


def check(runner: DirectRunner, model: WindowModel, batches: Sequence[Batch]) -> None:
    """Every micro-batch gives the model's rows and counts, in order, and leaves no state at the end."""
    for batch in batches:
        late, unknown = model.late, model.unknown
        expected = store_order(model.run(batch), runner.max_parallelism)
        assert run_direct(runner, batch) == expected
        assert runner.counters["late_rows"] == model.late - late
        assert runner.counters["retractions_without_state"] == model.unknown - unknown
    assert runner.sink.contents() == {}


@pytest.mark.parametrize("window", WINDOWS, ids=lambda window: window.text)
@settings(max_examples=settings().max_examples // 2)
@given(schedules(retract=False), st.booleans())
def test_inserts_give_what_a_loop_gives(window: Window, batches: list[Batch], deferred: bool) -> None:
    runner = DirectRunner(WindowAggregate(window, EXTREMES), spec(), deferred)
    check(runner, WindowModel(window, extremes=True), batches)


@pytest.mark.parametrize("window", WINDOWS, ids=lambda window: window.text)
@settings(max_examples=settings().max_examples // 2)
@given(schedules(retract=True), st.booleans())
def test_changelogs_give_what_a_loop_gives(window: Window, batches: list[Batch], deferred: bool) -> None:
    extremes = isinstance(window, SlicedWindow)
    runner = DirectRunner(WindowAggregate(window, EXTREMES if extremes else BASE), spec(True), deferred)
    check(runner, WindowModel(window, extremes), batches)


@pytest.mark.parametrize("window", WINDOWS, ids=lambda window: window.text)
@settings(max_examples=settings().max_examples // 3)
@given(schedules(retract=False), st.integers(1, 5), st.integers(1, 4))
def test_results_do_not_depend_on_bundles_and_pages(
    window: Window, batches: list[Batch], bundle_rows: int, page_size: int
) -> None:
    whole = DirectRunner(WindowAggregate(window, EXTREMES), spec(), page_size=100)
    pieces = DirectRunner(WindowAggregate(window, EXTREMES), spec(), page_size=page_size)
    for batch in batches:
        assert run_direct(pieces, batch, bundle_rows) == run_direct(whole, batch)
        assert pieces.counters == whole.counters
        assert pieces.sink.contents() == whole.sink.contents()


@pytest.mark.parametrize("window", WINDOWS, ids=lambda window: window.text)
@settings(max_examples=settings().max_examples // 3)
@given(schedules(retract=True), st.integers(1, 5))
def test_results_over_changelogs_do_not_depend_on_bundles(
    window: Window, batches: list[Batch], bundle_rows: int
) -> None:
    """As long as what is taken back was there."""
    aggregates = EXTREMES if isinstance(window, SlicedWindow) else BASE
    whole = DirectRunner(WindowAggregate(window, aggregates), spec(True))
    pieces = DirectRunner(WindowAggregate(window, aggregates), spec(True))
    for batch in batches:
        batch.ops[:] = [(kind, row) for kind, row in batch.ops if row[0] != 77]
        assert run_direct(pieces, batch, bundle_rows) == run_direct(whole, batch)
        assert pieces.counters == whole.counters


@pytest.mark.parametrize("window", WINDOWS, ids=lambda window: window.text)
def test_no_state_is_read_when_nothing_can_be_due(window: Window) -> None:
    runner = DirectRunner(WindowAggregate(window, BASE), spec())
    runner.run(rows_of([("+I", (1, 5, 1))]), ["+I"], 4 * MS)
    scans = runner.sink.scans
    runner.run(rows_of([("+I", (1, 6, 1))]), ["+I"], 4 * MS)
    assert runner.sink.scans == scans


# -- through the runtime ---------------------------------------------------------------------------------

CHOSEN = [hop("20 milliseconds", "5 milliseconds"), session("7 milliseconds")]


def fixed_schedule(retract: bool) -> list[Batch]:
    """Three micro-batches of 60 rows, some late, some taken back; then the end."""
    chance = random.Random(11)
    batches: list[Batch] = []
    taken: list[Row] = []
    watermark = MIN
    for number in range(3):
        ops: list[Op] = []
        taken = not_passed(taken, watermark)
        for _ in range(60):
            if retract and taken and chance.random() < 0.2:
                ops.append(("-D", taken.pop(chance.randrange(len(taken)))))
                continue
            time = number * 20 + chance.randrange(-60, 30)
            row = (chance.choice([None, *range(6)]), time, chance.choice([None, *range(9)]))
            ops.append(("+I", row))
            taken += not_passed([row], watermark)
        watermark = number * 20 * MS - 1
        batches.append(Batch(ops, watermark))
    return [*batches, Batch([], MAX)]


@pytest.mark.parametrize("retract", [False, True], ids=["inserts", "changelog"])
@pytest.mark.parametrize("window", CHOSEN, ids=lambda window: window.text)
def test_modes_and_stores_agree_through_restore_and_rescale(window: Window, retract: bool) -> None:
    extremes = not retract or isinstance(window, SlicedWindow)
    model = WindowModel(window, extremes)
    expected = [store_order(model.run(batch), 128) for batch in fixed_schedule(retract)]
    assert model.late > 0
    states = set()
    for async_enabled in (False, True):
        with make(window, EXTREMES if extremes else BASE, retract, async_enabled=async_enabled) as first:
            schedule = fixed_schedule(retract)
            assert [push(first, batch) for batch in schedule[:2]] == expected[:2]
            with first.restore(first.snapshot(), parallelism=3, async_enabled=not async_enabled) as second:
                for batch, rows in zip(schedule[2:-1], expected[2:-1], strict=True):
                    assert sorted(push(second, batch), key=repr) == sorted(rows, key=repr)
                states.add(tuple(second.state_entries().items()))
                assert sorted(push(second, schedule[-1]), key=repr) == sorted(expected[-1], key=repr)
                assert second.state_entries() == {}
    assert len(states) == 1
    assert states != {()}


def test_null_event_times_are_dropped_and_counted() -> None:
    with make(tumble("10 milliseconds"), BASE) as harness:
        harness.push([(1, None, 1, True), (1, 5 * MS, 1, True)])
        assert harness.finish() == [("+I", 1, 0, 10 * MS, 9 * MS, 1, 1, 1.0, 1)]
        assert harness.statistics()["counter.null_event_times"] == 1


def test_a_changed_window_is_refused_on_the_old_state() -> None:
    with make(tumble("10 milliseconds"), BASE) as harness:
        harness.push([(1, 5 * MS, 1, True)])
        harness.end_batch()
        changed = WindowAggregate(tumble("20 milliseconds"), BASE)
        snapshot = harness.snapshot()
        with pytest.raises(
            StateDeclarationError, match="window was tumble.size=10000us.* and is tumble.size=20000us"
        ):
            harness.restore(snapshot, operator=changed)


# -- declarations and details ------------------------------------------------------------------------------


def test_output_columns_keep_the_time_zone_of_the_event_time() -> None:
    out = WindowAggregate(tumble("1 second"), [count().alias("rows")]).bind([spec()]).schema
    assert out.names == ["k", "window_start", "window_end", "window_time", "rows"]
    assert {out.field(name).type for name in out.names[1:4]} == {pa.timestamp("us", "UTC")}
    seconds = pa.schema([("k", pa.int64()), ("ts", pa.timestamp("s"))])
    out = WindowAggregate(tumble("1 second")).bind([spec(schema=seconds)]).schema
    assert out.field("window_end").type == pa.timestamp("us")


@pytest.mark.parametrize(
    ("operator", "declared", "message"),
    [
        (WindowAggregate(tumble("1 second")), InputSpec(SCHEMA, ("k",)), "time='event' needs an event time"),
        (WindowAggregate(tumble("1 second"), [sum_("nope")]), spec(), "needs a column 'nope'"),
        (WindowAggregate(tumble("1 second"), [sum_("v"), sum_("v")]), spec(), "two output columns"),
        (
            WindowAggregate(tumble("1 second"), [count().alias("window_end")]),
            spec(),
            "two output columns have the name 'window_end'",
        ),
        (
            WindowAggregate(tumble("1 second")),
            InputSpec(
                pa.schema([("window_end", pa.int64()), ("ts", pa.timestamp("us"))]), ("window_end",), "ts"
            ),
            "key column 'window_end'",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_name(
    operator: WindowAggregate, declared: InputSpec, message: str
) -> None:
    with pytest.raises(SchemaError, match=message):
        operator.bind([declared])


@pytest.mark.parametrize(("window", "aggregates"), [("1 hour", []), (tumble(MS), ["count"])])
def test_wrong_arguments_are_refused(window: Any, aggregates: Any) -> None:
    with pytest.raises(SchemaError, match="WindowAggregate: .* create one with"):
        WindowAggregate(window, aggregates)


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        (tumble(10 * MS), [(0, 10, 2), (40, 50, 1)]),
        (hop(20 * MS, 10 * MS), [(-10, 10, 2), (0, 20, 2), (30, 50, 1), (40, 60, 1)]),
        (cumulate(20 * MS, 10 * MS), [(0, 10, 2), (0, 20, 2), (40, 50, 1), (40, 60, 1)]),
        (session(10 * MS), [(1, 12, 2), (40, 50, 1)]),
    ],
    ids=["tumble", "hop", "cumulate", "session"],
)
def test_without_key_columns_there_is_one_row_a_window(
    window: Window, expected: list[tuple[int, int, int]]
) -> None:
    runner = DirectRunner(WindowAggregate(window, [count()]), spec(key=()))
    runner.run(rows_of([("+I", (1, 1, 1)), ("+I", (2, 2, 1)), ("+I", (3, 40, 1))]), ["+I"] * 3, MIN)
    rows = inserts(runner.run([], [], MAX))
    assert rows == [(start * MS, end * MS, end * MS - MS, rows) for start, end, rows in expected]


def test_a_hopping_row_counts_for_the_windows_it_is_not_late_for() -> None:
    runner = DirectRunner(WindowAggregate(hop(20 * MS, 10 * MS), [count()]), spec())
    assert runner.run([], [], 10 * MS - 1) == []
    late_for_one = rows_of([("+I", (1, 5, 1))])
    assert inserts(runner.run(late_for_one, ["+I"], 20 * MS - 1)) == [(1, 0, 20 * MS, 19 * MS, 1)]
    assert runner.counters["late_rows"] == 0
    assert runner.run(late_for_one, ["+I"], MAX) == []
    assert runner.counters["late_rows"] == 1


def test_taking_back_a_row_whose_windows_have_fired_is_late() -> None:
    runner = DirectRunner(WindowAggregate(tumble(10 * MS), [count(), max_("v")]), spec(True))
    rows = rows_of([("+I", (1, 5, 3)), ("+I", (1, 15, 8)), ("+I", (1, 16, 9))])
    assert inserts(runner.run(rows, ["+I"] * 3, 10 * MS)) == [(1, 0, 10 * MS, 9 * MS, 1, 3)]
    assert runner.run([rows[0], rows[2]], ["-D", "-U"], 10 * MS) == []
    assert runner.counters["late_rows"] == 1
    assert runner.counters["retractions_without_state"] == 0
    assert inserts(runner.run([], [], MAX)) == [(1, 10 * MS, 20 * MS, 19 * MS, 1, 8)]


def test_a_late_row_that_meets_an_open_session_joins_it() -> None:
    runner = DirectRunner(WindowAggregate(session(10 * MS), [count()]), spec())
    runner.run(rows_of([("+I", (1, 20, 1))]), ["+I"], 25 * MS)
    rows = rows_of([("+I", (1, 12, 1)), ("+I", (2, 12, 1)), ("+I", (1, 3, 1))])  # all were due at 25 - gap
    assert runner.run(rows, ["+I"] * 3, 28 * MS) == []
    assert runner.counters["late_rows"] == 1
    assert inserts(runner.run([], [], 30 * MS - 1)) == [(1, 3 * MS, 30 * MS, 29 * MS, 3)]


@pytest.mark.parametrize("bundle_rows", [1, 2, 9])
def test_a_session_whose_rows_are_all_taken_back_goes_on(bundle_rows: int) -> None:
    """However the rows are cut into bundles: it is neither shortened nor forgotten before its time."""
    runner = DirectRunner(WindowAggregate(session(10 * MS), [count(), sum_("v")]), spec(True))
    ops: list[Op] = [
        ("+I", (1, 0, 1)),
        ("-D", (1, 0, 1)),
        ("+I", (1, 5, 2)),
        ("+I", (2, 0, 3)),
        ("-D", (2, 0, 3)),
    ]
    runner.run(rows_of(ops), [kind for kind, _ in ops], MIN, bundle_rows)
    assert inserts(runner.run([], [], MAX)) == [(1, 0, 15 * MS, 14 * MS, 1, 2)]
    assert runner.counters["late_rows"] == 0
    assert runner.sink.contents() == {}


def test_many_windows_of_one_flush_come_by_window_end() -> None:
    """More windows and rows than parts hold; with few keys each window has every slice."""
    runner = DirectRunner(WindowAggregate(hop(50 * MS, 1 * MS), [count(), sum_("v")]), spec(), page_size=7)
    model = WindowModel(hop(50 * MS, 1 * MS), False)
    chance = random.Random(3)
    ops: list[Op] = [("+I", (chance.randrange(4), chance.randrange(200), 1)) for _ in range(150)]
    batch = Batch(ops, MAX)
    expected = [row[:6] for row in store_order(model.run(batch), runner.max_parallelism)]
    assert run_direct(runner, batch) == expected
    assert np.all(np.diff([row[2] for row in expected]) >= 0)
    assert runner.sink.contents() == {}


@pytest.mark.parametrize(
    "window", [hop("20 milliseconds", "5 milliseconds"), cumulate("20 milliseconds", "5 milliseconds")]
)
def test_rows_of_a_window_are_never_taken_apart(window: SlicedWindow, async_enabled: bool) -> None:
    """Within a micro-batch a row may be taken back before it comes, and values count in the order in which they came,
    also where a bundle has more rows by windows than are merged at a time."""
    aggregates = [count(), count("v").distinct().alias("values"), last_value("v").alias("last")]
    gone = [(1, 1 * MS, value, None) for value in range(10)]
    kept = [(key, time * MS, 10 - time, None) for key in (1, 2) for time in (7, 3, 11, 2)]
    rows = [*gone, *kept, *gone]
    with make(window, aggregates[:2], changelog=True, async_enabled=async_enabled) as harness:
        harness.push(rows, kinds=["-D"] * 10 + ["+I"] * (len(rows) - 10))
        found = inserts(harness.finish())
        assert harness.statistics().get("counter.retractions_without_state", 0) == 0
    with make(window, aggregates, async_enabled=async_enabled) as harness:
        harness.push(kept)
        expected = inserts(harness.finish())
    assert found == [row[:-1] for row in expected]
    for key, start, end, _, number, values, last in expected:
        mine = [(time, value) for k, time, value, _ in kept if k == key and start <= time < end]
        assert (number, values, last) == (len(mine), len(mine), mine[-1][1])
