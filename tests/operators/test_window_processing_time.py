"""WindowAggregate in processing time: what a loop gives, in every mode, cut and partitioning."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncstate.changelog import INSERT_ONLY, RETRACT
from asyncstate.errors import SchemaError, StateDeclarationError
from asyncstate.operator import MIN_WATERMARK, InputSpec
from asyncstate.state.columnar import due_parts
from asyncstate.testing import OperatorHarness
from operators.aggregate.aggregate_calls import Aggregate
from operators.aggregate.aggregates import avg, count, max_, min_, sum_
from operators.process.windows.process_window import WindowApply
from operators.window import slices
from operators.window.window_aggregate import WindowAggregate
from operators.window.windows import SessionWindow, Window, cumulate, hop, session, tumble
from tests.local_aggregation import in_phases
from tests.operators.direct import DirectRunner
from tests.operators.function_runs import slow_reads
from tests.operators.window_clock_model import ClockModel
from tests.operators.window_model import MS, Op, Row

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("odd", pa.bool_())])
BASE = [count(), sum_("v"), avg("v"), count().where("odd").alias("odd")]
EXTREMES = [*BASE, min_("v"), max_("v")]
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
CASES = [*((window, EXTREMES) for window in WINDOWS), (WINDOWS[-1], BASE)]
"""Over a changelog sessions keep their rows for extremes, but not for the others."""
by_case = pytest.mark.parametrize(
    ("window", "aggregates"), CASES, ids=[f"{window.text}-{len(aggregates)}" for window, aggregates in CASES]
)
by_input = pytest.mark.parametrize("retract", [False, True], ids=["inserts", "changelog"])

ELAPSED = st.sampled_from([0, 1, 2_999, 3_000, 5_000, 6_999, 7_000, 9_999, 25_000])
ACTIONS = st.tuples(st.integers(0, 3), st.none() | st.integers(0, 2), st.none() | st.integers(-5, 5))
STEPS = st.lists(st.tuples(ELAPSED, st.lists(ACTIONS, max_size=8)), min_size=1, max_size=7)
"""Micro-batches: the time since the one before, and rows: to be taken back where the first number is 0 (and the input
is a changelog), the key, the value."""


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts so small that every way of cutting is walked."""
    monkeypatch.setattr(due_parts.DueReader.__init__, "__defaults__", (3, 0))
    monkeypatch.setattr(slices, "MERGE_ROWS", 2)


def operator_for(window: Window, aggregates: list[Aggregate]) -> WindowAggregate:
    return WindowAggregate(window, aggregates, time="processing")


def rows_of(ops: Sequence[Op]) -> list[tuple[Any, ...]]:
    return [(k, v, None if v is None else v % 2 == 1) for _, (k, _, v) in ops]


def inserts(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """The rows without their kinds, in one order: that of partitions tells nothing."""
    assert all(row[0] == "+I" for row in rows)
    return sorted((row[1:] for row in rows), key=repr)


def ops_of(actions: Sequence[tuple[int, Any, Any]], live: list[Row], model: ClockModel) -> list[Op]:
    """The rows of a micro-batch, which the model gets; some of the ``live`` ones are taken back.

    None that is taken back is equal to one that comes: together they would be no change, whatever their windows.
    """
    ops: list[Op] = []
    before = list(live)
    for action, key, value in actions:
        gone = next((row for row in live if row[0] == key), None)
        adds = action or gone is None
        other = ("-D", "+I")[not adds]
        mine = (key, value) if adds or gone is None else (key, gone[2])
        if any(
            kind == other and (row[0], row[2]) == mine and (not adds or row in before) for kind, row in ops
        ):
            continue
        if action or gone is None:
            ops.append(("+I", (key, len(live), value)))
            live.append(ops[-1][1])
        elif model.is_clear(gone):
            ops.append(("-D", gone))
            live.remove(gone)
        else:
            continue
        model.apply(*ops[-1])
    return ops


def bundles_of(ops: Sequence[Op], size: int) -> list[tuple[int, Any, list[str]]]:
    parts = [ops[start : start + size] for start in range(0, len(ops), size)]
    return [(0, rows_of(part), [kind for kind, _ in part]) for part in parts]


@by_input
@by_case
@settings(max_examples=settings().max_examples // 2)
@given(STEPS, st.booleans(), st.integers(1, 8), st.integers(1, 4))
def test_every_window_fires_once_when_it_is_over(
    window: Window,
    aggregates: list[Aggregate],
    retract: bool,
    steps: list[tuple[int, list[tuple[int, Any, Any]]]],
    deferred: bool,
    bundle_rows: int,
    page_size: int,
) -> None:
    """Whatever the bundles are, of whatever times the rows that are taken back."""
    runner = DirectRunner(
        operator_for(window, aggregates),
        InputSpec(SCHEMA, ("k",), changes=RETRACT if retract else INSERT_ONLY),
        deferred=deferred,
        page_size=page_size,
    )
    model = ClockModel(window, aggregates is EXTREMES)
    now, live = 0, []  # type: tuple[int, list[Row]]
    for elapsed, actions in [*steps, (40 * MS, [])]:
        now += elapsed
        unknown = model.unknown
        expected = model.start_batch(now)
        ops = ops_of(actions if retract else [(1, *rest) for _, *rest in actions], live, model)
        rows = runner.run_bundles(bundles_of(ops, bundle_rows), MIN_WATERMARK, now)
        assert [row[3] for row in rows] == sorted(row[3] for row in rows)
        assert inserts(rows) == sorted(expected, key=repr)
        assert runner.counters["retractions_without_state"] == model.unknown - unknown
        assert runner.counters["late_rows"] == 0
    assert model.is_empty
    assert runner.sink.contents() == {}


# -- through the runtime ---------------------------------------------------------------------------------


def make(operator: WindowAggregate, retract: bool = False, **settings: Any) -> OperatorHarness:
    return OperatorHarness(operator, SCHEMA, changelog=retract, **{"key": ["k"], **settings})


def schedule(retract: bool) -> list[tuple[int, list[tuple[int, Any, Any]]]]:
    """Seven micro-batches of 40 rows, some of them soon one behind the other, some late."""
    chance = random.Random(5)
    return [
        (
            elapsed,
            [
                (
                    chance.randrange(5 if retract else 1, 6),
                    chance.choice([None, *range(9)]),
                    chance.randrange(9),
                )
                for _ in range(40)
            ],
        )
        for elapsed in (3_000, 0, 4_000, 5_000, 1, 3_000, 6_000)
    ]


def push(harness: OperatorHarness, elapsed: int, ops: Sequence[Op]) -> list[tuple[Any, ...]]:
    harness.advance_processing_time(elapsed)
    harness.push(rows_of(ops), kinds=[kind for kind, _ in ops])
    return inserts(harness.end_batch())


@pytest.mark.long
@by_input
@by_case
def test_modes_agree_through_restart_and_rescale(
    window: Window, aggregates: list[Aggregate], retract: bool
) -> None:
    model, live, now = ClockModel(window, aggregates is EXTREMES), [], 0
    batches, expected = [], []
    for elapsed, actions in [*schedule(retract), (40 * MS, [])]:
        now += elapsed
        expected.append(sorted(model.start_batch(now), key=repr))
        batches.append((elapsed, ops_of(actions, live, model)))
    states: list[dict[bytes, bytes]] = []
    parallelism = 2 if retract else 1  # of both modes: logs of values are cut as the bundles are
    for async_enabled in (False, True):
        with (
            slow_reads(),
            make(
                operator_for(window, aggregates),
                retract,
                async_enabled=async_enabled,
                parallelism=parallelism,
                options={"async-state.bundle-size": "16"},
            ) as first,
        ):
            assert [push(first, *batch) for batch in batches[:3]] == expected[:3]
            with first.restore(
                first.snapshot(), parallelism=3, async_enabled=not async_enabled, clock=first.clock
            ) as second:
                outputs = [push(second, *batch) for batch in batches[3:-1]]
                assert outputs == expected[3:-1]
                states.append(second.state_entries())
                assert push(second, *batches[-1]) == expected[-1]
                assert second.state_entries() == {}
    assert states[0] == states[1] != {}


@by_window
def test_windows_are_those_of_functions_over_rows(window: Window, async_enabled: bool) -> None:
    """The same rows in the same micro-batches as in ``WindowApply``, also where a session ends as one starts."""
    total = pa.schema([("sum_v", pa.int64())])
    applied = WindowApply(
        lambda key, window, rows: [sum(row.v for row in rows)],
        window,
        total,
        time="processing",
        window_columns=True,
    )
    outputs: list[list[list[tuple[Any, ...]]]] = []
    for operator in (WindowAggregate(window, [sum_("v")], time="processing"), applied):
        with OperatorHarness(
            operator, SCHEMA, ["k"], changelog=False, async_enabled=async_enabled
        ) as harness:
            batches = [
                push(harness, elapsed, [("+I", (key % 3, 0, 10 * number + key)) for key in range(number % 4)])
                for number, elapsed in enumerate([1_000, 7_000, 6_999, 7_000, 0, 1, 10_000, 25_000])
            ]
            outputs.append([*batches, inserts(harness.finish())])
    assert outputs[0] == outputs[1]
    assert any(outputs[0])


# -- single cases ----------------------------------------------------------------------------------------


def test_a_window_fires_in_the_first_micro_batch_that_starts_at_its_end(async_enabled: bool) -> None:
    with make(
        WindowAggregate(tumble("10 milliseconds"), [count()], time="processing"), async_enabled=async_enabled
    ) as harness:
        assert push(harness, 0, [("+I", (1, 0, 5))]) == []
        assert push(harness, 9_999, [("+I", (1, 0, 5)), ("+I", (2, 0, 5))]) == []
        assert push(harness, 0, [("+I", (1, 0, 5))]) == []  # the last microsecond again
        first = [(1, 0, 10 * MS, 9 * MS, 3), (2, 0, 10 * MS, 9 * MS, 1)]
        assert push(harness, 1, [("+I", (1, 0, 5))]) == first
        assert push(harness, 25 * MS, []) == [(1, 10 * MS, 20 * MS, 19 * MS, 1)]
        assert harness.state_entries() == {}


def test_the_end_of_the_input_is_no_reason_for_time_to_pass(async_enabled: bool) -> None:
    """As for timers of processing time: what is not over by the clock goes with the checkpoint."""
    operator = WindowAggregate(hop("20 milliseconds", "10 milliseconds"), [count()], time="processing")
    with make(operator, async_enabled=async_enabled) as harness:
        push(harness, 5 * MS, [("+I", (1, 0, 5))])
        harness.advance_processing_time(5 * MS)
        assert inserts(harness.finish()) == [(1, -10 * MS, 10 * MS, 9 * MS, 1)]


def test_the_watermark_does_not_count(async_enabled: bool) -> None:
    """Nor do event times, but as the time zone of the windows; rows without one are dropped as everywhere."""
    schema = pa.schema([("k", pa.int64()), ("ts", pa.timestamp("us", "Asia/Tokyo"))])
    operator = WindowAggregate(tumble("10 milliseconds"), [count()], time="processing")
    with OperatorHarness(
        operator, schema, ["k"], event_time="ts", changelog=False, async_enabled=async_enabled
    ) as harness:
        assert harness.output_schema.field("window_end").type == pa.timestamp("us", "Asia/Tokyo")
        harness.push([(1, 2**63 - 1), (1, -(2**63)), (1, None), (1, 5)])
        harness.advance_watermark(40 * MS)
        assert harness.end_batch() == []
        assert harness.statistics()["counter.null_event_times"] == 1
        harness.advance_processing_time(10 * MS)
        assert harness.end_batch() == [("+I", 1, 0, 10 * MS, 9 * MS, 3)]


def test_without_an_event_time_windows_are_in_utc() -> None:
    out = WindowAggregate(tumble(MS), time="processing").bind([InputSpec(SCHEMA, ("k",))]).schema
    assert {out.field(name).type for name in out.names[1:4]} == {pa.timestamp("us", "UTC")}


def test_a_session_is_over_at_its_end(async_enabled: bool) -> None:
    """Its timer would have fired before the rows of that micro-batch; a microsecond earlier they still belong to it."""
    with make(
        WindowAggregate(session("10 milliseconds"), [count()], time="processing"), async_enabled=async_enabled
    ) as harness:
        push(harness, 0, [("+I", (1, 0, 5)), ("+I", (2, 0, 5))])
        assert push(harness, 9_999, [("+I", (1, 0, 5))]) == []
        assert push(harness, 1, [("+I", (1, 0, 5)), ("+I", (2, 0, 5))]) == [(2, 0, 10_000, 9_000, 1)]
        assert push(harness, 20_000, []) == [(1, 0, 20_000, 19_000, 3), (2, 10_000, 20_000, 19_000, 1)]
        assert harness.state_entries() == {}


# -- rows that are taken back ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        (tumble(20 * MS), [(0, 20, 1, 7), (20, 40, 1, 4)]),
        (hop(20 * MS, 10 * MS), [(-10, 10, 1, 5), (0, 20, 1, 7), (10, 30, 1, 4), (20, 40, 1, 4)]),
        (cumulate(20 * MS, 10 * MS), [(0, 10, 1, 5), (0, 20, 1, 7), (20, 30, 1, 4), (20, 40, 1, 4)]),
        (session(15 * MS), [(0, 37, 1, 4)]),
    ],
    ids=["tumble", "hop", "cumulate", "session"],
)
def test_a_row_that_replaces_another_counts_alone(
    window: Window, expected: list[tuple[int, int, int, int]], async_enabled: bool
) -> None:
    """Also in windows that began between the two, and in those that have the one in an earlier slice."""
    operator = WindowAggregate(window, [count(), max_("v")], time="processing")
    with make(operator, True, async_enabled=async_enabled) as harness:
        outputs = push(harness, 0, [("+I", (1, 0, 5))])
        outputs += push(harness, 12 * MS, [("-U", (1, 0, 5)), ("+U", (1, 0, 7))])
        outputs += push(harness, 10 * MS, [("-U", (1, 0, 7)), ("+U", (1, 0, 4))])
        assert harness.statistics()["counter.retractions_without_state"] == (
            1 if window in (tumble(20 * MS), cumulate(20 * MS, 10 * MS)) else 0
        )
        outputs += push(harness, 60 * MS, [])
        assert [(row[1] // MS, row[2] // MS, *row[4:]) for row in outputs] == expected
        assert harness.state_entries() == {}


def test_a_row_that_a_window_does_not_have_takes_another_of_its_key(async_enabled: bool) -> None:
    """Of a key's rows only their number is known, as everywhere."""
    operator = WindowAggregate(tumble(10 * MS), [count(), sum_("v"), max_("v")], time="processing")
    with make(operator, True, async_enabled=async_enabled) as harness:
        push(harness, 0, [("+I", (1, 0, 5))])
        push(harness, 10 * MS, [("+I", (1, 0, 1)), ("+I", (1, 0, 2))])
        push(harness, 1 * MS, [("-D", (1, 0, 5))])
        assert push(harness, 10 * MS, []) == [(1, 10 * MS, 20 * MS, 19 * MS, 1, -2, 2)]


# -- two phases --------------------------------------------------------------------------------------------


@by_window
def test_two_phases_give_the_same_rows_and_bytes(window: Window, async_enabled: bool) -> None:
    outputs, stored = [], []
    for phase in ("false", "true"):
        with make(in_phases(operator_for(window, EXTREMES), phase), async_enabled=async_enabled) as harness:
            batches = []
            for number, elapsed in enumerate((1_000, 0, 6_000, 9_000, 40_000)):
                batches.append(
                    push(harness, elapsed, [("+I", (key % 3, 0, key * number)) for key in range(9)])
                )
                stored.append(harness.state_entries())
            is_local = phase == "true" and not isinstance(window, SessionWindow)
            assert harness.statistics()["rows_in"] == (3 if is_local else 9)
            outputs.append(batches)
    assert outputs[0] == outputs[1]
    assert stored[:5] == stored[5:]


def test_a_changelog_has_one_phase() -> None:
    """Of rows put together a window may have some and not the others."""
    operator = WindowAggregate(tumble("1 second"), [count()], time="processing")
    assert operator.partial_aggregation([InputSpec(SCHEMA, ("k",))]) is not None
    assert operator.partial_aggregation([InputSpec(SCHEMA, ("k",), changes=RETRACT)]) is None


# -- refusals ----------------------------------------------------------------------------------------------


def test_another_time_is_refused_by_name() -> None:
    with pytest.raises(SchemaError, match="WindowAggregate: time is 'wall'; choose 'event' or 'processing'"):
        WindowAggregate(tumble("1 second"), time="wall")  # type: ignore[arg-type]
    with pytest.raises(
        SchemaError, match="declares none; name its event time column, or use time='processing'"
    ):
        WindowAggregate(tumble("1 second")).bind([InputSpec(SCHEMA, ("k",))])


@pytest.mark.parametrize("window", [hop(20 * MS, 10 * MS), session(10 * MS)], ids=["hop", "session"])
def test_a_checkpoint_is_not_read_with_another_time(window: Window) -> None:
    schema = SCHEMA.append(pa.field("ts", pa.timestamp("us")))
    with OperatorHarness(
        WindowAggregate(window, BASE, time="processing"), schema, ["k"], event_time="ts"
    ) as harness:
        harness.push([(1, 1, True, 5)])
        harness.end_batch()
        with pytest.raises(StateDeclarationError, match="time was processing and is event"):
            harness.restore(harness.snapshot(), operator=WindowAggregate(window, BASE))
