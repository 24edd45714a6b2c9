"""WindowJoin against a model of dicts and loops, through restarts, and its single cases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncstate.errors import SchemaError, StateDeclarationError
from asyncstate.operator import MAX_WATERMARK, MIN_WATERMARK, InputSpec
from asyncstate.state.columnar import due_parts
from asyncstate.testing import OperatorHarness, Tuning
from operators import WindowAggregate, count
from operators.join import matches
from operators.window import slices
from operators.window.window_join import WindowJoin
from operators.window.windows import SlicedWindow, cumulate, hop, session, tumble
from tests.operators.direct import DirectRunner
from tests.operators.window_join_model import Change, Row, WindowJoinModel
from tests.properties.models import growing, sliding

S = 1_000_000
KINDS: tuple[Any, ...] = ("inner", "left", "right", "full", "semi", "anti")
US = pa.timestamp("us")
LEFT = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("at", US)])
RIGHT = pa.schema([("k", pa.int64()), ("w", pa.int64()), ("at", US)])
SPANS = [pa.field("window_start", US), pa.field("window_end", US)]
CARRYING = [pa.schema([*schema, *SPANS]) for schema in (LEFT, RIGHT)]
TUMBLE = tumble("10 seconds")

WINDOWS: list[tuple[SlicedWindow | None, Any]] = [
    (None, lambda row: [(row[3], row[4])]),
    (TUMBLE, lambda row: sliding(10 * S, 10 * S)(row[2])),
    (hop("9 seconds", "3 seconds"), lambda row: sliding(9 * S, 3 * S)(row[2])[::-1]),
    (cumulate("12 seconds", "4 seconds"), lambda row: growing(12 * S, 4 * S)(row[2])),
]


def make(kind: Any = "inner", window: SlicedWindow | None = TUMBLE, **settings: Any) -> OperatorHarness:
    """A harness; settings of the operator are told from those of the harness by name."""
    own = {name: settings.pop(name) for name in ("condition", "null_safe", "suffixes") if name in settings}
    inputs = [LEFT, RIGHT] if window else CARRYING
    defaults = {"event_time": ["at", "at"], "key": [["k"], ["k"]], "inputs": inputs}
    return OperatorHarness(WindowJoin(kind, window=window, **own), **{**defaults, **settings})


def push(harness: OperatorHarness, changes: Sequence[Change], watermark: int | None = None) -> list[Row]:
    """One micro-batch; its output, all of which is +I."""
    for side, kind, row in changes:
        harness.push([row], side, kinds=[kind])
    if watermark is not None:
        harness.advance_watermark(watermark)
    output = harness.finish() if watermark == MAX_WATERMARK else harness.end_batch()
    assert {row[0] for row in output} <= {"+I"}
    return [row[1:] for row in output]


def added(side: int, *rows: Row) -> list[Change]:
    return [(side, "+I", row) for row in rows]


def counted(harness: OperatorHarness, name: str) -> int:
    return int(harness.statistics().get(f"counter.{name}", 0))


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts so small that every way of cutting is walked."""
    monkeypatch.setattr(due_parts.DueReader.__init__, "__defaults__", (3, 0))
    monkeypatch.setattr(slices, "MERGE_ROWS", 2)
    monkeypatch.setattr(matches, "PAIRS", 3)


# -- against the model ------------------------------------------------------------------------------


def carrying(row: Row, size: int) -> Row:
    start = row[2] // size * size
    return (*row, start, start + size)


times = st.integers(0, 24).map(lambda second: second * S)
keys = st.sampled_from([0, 0, 1, 2, None])
rows = st.builds(carrying, st.tuples(keys, st.integers(0, 2), times), st.sampled_from([5 * S, 10 * S]))
changes = st.tuples(st.integers(0, 1), st.sampled_from(["+I", "+I", "+I", "+U", "-U", "-D"]), rows)
batches = st.lists(
    st.tuples(st.lists(changes, max_size=10), st.integers(0, 9), st.integers(1, 3)), min_size=1, max_size=4
)


@pytest.mark.long
@pytest.mark.parametrize("window", WINDOWS, ids=["carried", "tumble", "hop", "cumulate"])
@settings(max_examples=settings().max_examples // 2)
@given(data=st.data())
def test_agrees_with_a_model_in_any_order_and_through_restarts(
    window: tuple[SlicedWindow | None, Any], data: st.DataObject, small_parts: None, async_enabled: bool
) -> None:
    """Late rows, retractions before their rows and of rows that are not there, another parallelism each time."""
    kind, conditional = data.draw(st.sampled_from(KINDS)), data.draw(st.booleans())
    null_safe, bundle_size = data.draw(st.booleans()), data.draw(st.sampled_from([1, 3, 500_000]))
    width = 3 if window[0] else 5
    model = WindowJoinModel(
        kind,
        window[1],
        window[0] is not None,
        width,
        (lambda left, right: left[1] <= right[1]) if conditional else (lambda left, right: True),
        null_safe,
    )
    late = missing = 0
    with ExitStack() as stack:
        harness = stack.enter_context(
            make(
                kind,
                window[0],
                condition=pc.field("v") <= pc.field("w") if conditional else None,
                null_safe=null_safe,
                async_enabled=async_enabled,
                options={"async-state.bundle-size": str(bundle_size)},
            )
        )
        watermark = MIN_WATERMARK
        for some, step, parallelism in data.draw(batches):
            some = [(side, kind, row[:width]) for side, kind, row in some]
            watermark = max(watermark, -S) + step * S if step else watermark
            output = push(harness, some, watermark if step else None)
            late, missing = (
                late + counted(harness, "late_rows"),
                missing + counted(harness, "retractions_without_state"),
            )
            assert Counter(output) == Counter(model.run(some, watermark))
            assert (late, missing) == (model.late, model.missing)
            harness = stack.enter_context(harness.restore(harness.snapshot(), parallelism=parallelism))
        output = push(harness, [], MAX_WATERMARK)
        assert Counter(output) == Counter(model.run([], MAX_WATERMARK))
        assert harness.state_entries() == {}


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=settings().max_examples // 2)
@given(
    batches,
    st.sampled_from([1, 3, None]),
    st.sampled_from([1, 3, 100]),
    st.sampled_from(WINDOWS[:3]),
    st.booleans(),
)
def test_insertions_agree_with_the_model_by_hand(
    kind: Any, given_batches: Any, bundle_rows: int | None, page: int, window: Any, deferred: bool
) -> None:
    """Pages of the store of any size, and reads that come later."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(due_parts.DueReader.__init__, "__defaults__", (3, 0))
        patch.setattr(matches, "PAIRS", 2)
        width = 3 if window[0] else 5
        model = WindowJoinModel(kind, window[1], window[0] is not None, width)
        specs = specs_of([LEFT, RIGHT] if window[0] else CARRYING)
        runner = DirectRunner(WindowJoin(kind, window=window[0]), *specs, deferred=deferred, page_size=page)
        watermark, late = MIN_WATERMARK, 0
        for some, step, _ in given_batches:
            some = [(side, "+I", row[:width]) for side, _, row in sorted(some, key=lambda one: one[0])]
            watermark = max(watermark, -S) + step * S if step else watermark
            output = runner.run_bundles(bundled(some, bundle_rows), watermark)
            assert Counter(row[1:] for row in output) == Counter(model.run(some, watermark))
            late += runner.counters["late_rows"]
            assert late == model.late
            ends = [row[-2] for row in output] if window[0] else []
            assert ends == sorted(ends)
            assert bool(runner.sink.contents()) == model.waits
        runner.run_bundles([], MAX_WATERMARK)
        assert runner.sink.contents() == {}


def specs_of(schemas: Sequence[pa.Schema]) -> list[InputSpec]:
    return [
        InputSpec(schema, ("k",), "at", name=name)
        for schema, name in zip(schemas, ("offers", "bids"), strict=True)
    ]


def bundled(some: Sequence[Change], size: int | None) -> list[Any]:
    found = []
    for side in (0, 1):
        mine = [row for input, _, row in some if input == side]
        for start in range(0, len(mine), size or max(len(mine), 1)):
            chunk = mine[start : start + (size or len(mine))]
            found.append((side, chunk, ["+I"] * len(chunk)))
    return found


# -- single cases -----------------------------------------------------------------------------------


def test_a_window_is_due_at_its_end_less_a_microsecond(async_enabled: bool) -> None:
    with make(async_enabled=async_enabled) as harness:
        some = added(0, (1, 10, 0)) + added(1, (1, 20, 10 * S - 1), (1, 21, 10 * S))
        assert push(harness, some, 10 * S - 2) == []
        assert push(harness, [], 10 * S - 1) == [(1, 10, 0, 1, 20, 10 * S - 1, 0, 10 * S, 9_999_000)]
        assert push(harness, [], 20 * S) == []  # a right row without partner
        assert harness.state_entries() == {}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("side", [0, 1])
def test_both_sides_are_removed_though_one_is_empty(kind: Any, side: int, async_enabled: bool) -> None:
    with make(kind, async_enabled=async_enabled, changelog=False) as harness:
        found = push(harness, added(side, (1, 10, 0), (None, 11, 0)), 10 * S)
        assert len(found) == (2 if kind in (("left", "full", "anti"), ("right", "full"))[side] else 0)
        assert harness.state_entries() == {}


def test_rows_of_a_window_come_by_key_with_the_right_rows_alone_behind(small_parts: None) -> None:
    """Also where a key has more pairs than are looked at together."""
    right = [(1, w, 0) for w in range(4)] + [(None, 9, 0)]
    with make("full", condition=pc.field("v") < pc.field("w"), max_parallelism=1) as harness:
        found = push(harness, added(0, (1, 1, 0), (1, 2, 0), (1, 5, 0), (0, 5, 0)) + added(1, *right), 10 * S)
    pad = (None, None, None)
    assert [row[:-3] for row in found] == [
        (*pad, None, 9, 0),
        (0, 5, 0, *pad),
        (1, 1, 0, 1, 2, 0),
        (1, 1, 0, 1, 3, 0),
        (1, 2, 0, 1, 3, 0),
        (1, 5, 0, *pad),
        (*pad, 1, 0, 0),
        (*pad, 1, 1, 0),
    ]


def test_late_rows_are_dropped_unless_a_window_of_theirs_is_open(async_enabled: bool) -> None:
    window = hop("20 seconds", "10 seconds")
    with make("inner", window, async_enabled=async_enabled) as harness:
        assert push(harness, added(0, (1, 10, 5 * S)), 10 * S) == []
        assert (
            push(harness, added(1, (1, 20, 5 * S), (1, 21, -S)), 10 * S) == []
        )  # one window of the first is open
        assert counted(harness, "late_rows") == 1
        assert [row[:6] for row in push(harness, [], 20 * S)] == [(1, 10, 5 * S, 1, 20, 5 * S)]
        assert harness.state_entries() == {}


def test_a_row_is_stored_once_and_leaves_with_its_last_window() -> None:
    with make("left", hop("30 seconds", "10 seconds")) as harness:
        for watermark, windows in ((0, 0), (10 * S, 1), (20 * S, 1), (30 * S, 1)):
            some = added(0, (1, 10, S)) if not watermark else []
            assert len(push(harness, some, watermark)) == windows
            assert len(harness.state_entries()) == (watermark < 30 * S)


def test_retractions_take_back_rows_in_time_and_others_are_counted(async_enabled: bool) -> None:
    with make("full", async_enabled=async_enabled) as harness:
        push(harness, added(0, (1, 10, 0), (1, 10, 0), (1, 11, 0)))
        push(
            harness,
            [(0, "-D", (1, 10, 0)), (0, "-U", (1, 11, 0)), (0, "+U", (1, 12, S)), (0, "-D", (7, 7, 0))],
        )
        assert counted(harness, "retractions_without_state") == 1
        push(harness, [(1, "-D", (1, 20, 0)), (1, "+I", (1, 20, 0))])
        assert counted(harness, "retractions_without_state") == 0
        pad = (None, None, None)
        assert sorted(row[:6] for row in push(harness, [], 10 * S)) == [(1, 10, 0, *pad), (1, 12, S, *pad)]
        push(harness, [(0, "-D", (1, 10, 0))])
        assert counted(harness, "late_rows") == 1


def test_what_is_taken_back_leaves_nothing(async_enabled: bool) -> None:
    with make("full", async_enabled=async_enabled) as harness:
        many = [(1, number, 0) for number in range(100)]
        push(harness, added(0, *many))
        push(harness, [(0, "-D", row) for row in many])
        assert harness.state_entries() == {}


def test_a_retraction_may_have_another_sequence() -> None:
    schema = LEFT.append(pa.field("lsn", pa.int64()))
    settings: dict[str, Any] = {"inputs": [schema, RIGHT], "sequence": ["lsn", None]}
    with make("left", **settings) as harness:
        push(harness, added(0, (1, 10, 0, 1), (1, 11, 0, 2)))
        push(harness, [(0, "-U", (1, 10, 0, 3)), (0, "+U", (1, 10, 0, 3)), (0, "-D", (1, 11, 0, 4))])
        assert counted(harness, "retractions_without_state") == 0
        assert [row[:4] for row in push(harness, [], 10 * S)] == [(1, 10, 0, 3)]


def test_windows_that_rows_carry_are_equal_if_both_ends_are(async_enabled: bool) -> None:
    zoned = pa.schema([*RIGHT, *(pa.field(field.name, pa.timestamp("ms", "Asia/Tokyo")) for field in SPANS)])
    settings: dict[str, Any] = {"inputs": [CARRYING[0], zoned], "event_time": [None, None]}
    with make("full", None, async_enabled=async_enabled, **settings) as harness:
        left = added(0, (1, 10, 0, 0, 10 * S), (1, 11, 0, None, 10 * S), (2, 12, 0, 5 * S, 10 * S))
        right = added(
            1, (1, 20, 0, 0, 10_000), (1, 21, 0, 5_000, 10_000), (2, 22, 0, 0, None)
        )  # milliseconds
        found = push(harness, left + right, 10 * S)
        assert counted(harness, "null_windows") == 2
        assert sorted((row[1], row[6]) for row in found if None not in row) == [(10, 20)]
        assert {row[1] for row in found} == {10, 12, None}
        assert {row[6] for row in found} == {20, 21, None}
        assert harness.state_entries() == {}


def test_windows_of_one_end_and_other_starts_stand_beside_each_other() -> None:
    with make("inner", None, event_time=[None, None]) as harness:
        spans = [(start * S, 10 * S) for start in (5, 0, 5)]
        found = push(harness, [(side, "+I", (1, 1, 0, *span)) for side in (0, 1) for span in spans], 10 * S)
    assert [row[3] for row in found] == [0] + [5 * S] * 4


def test_meets_windows_that_close_in_the_same_micro_batch() -> None:
    """What a window aggregation puts out at a watermark is not late for a join that stands behind it."""
    counts = WindowAggregate(TUMBLE, [count().alias("n")])
    with OperatorHarness(counts, LEFT, ["k"], event_time="at") as first:
        first.push([(1, 10, 0), (1, 11, S)])
        first.advance_watermark(10 * S)
        out = [row[1:] for row in first.end_batch()]
    counted_rows = pa.schema([("k", pa.int64()), *SPANS, ("window_time", US), ("n", pa.int64())])
    settings: dict[str, Any] = {"inputs": [counted_rows] * 2, "event_time": ["window_time"] * 2}
    with make("inner", None, **settings) as harness:
        found = push(harness, added(0, *out) + added(1, *out), 10 * S)
        assert found == [(1, 0, 10 * S, 9_999_000, 2) * 2]
        assert harness.state_entries() == {}


def test_rows_of_key_columns_alone_and_of_no_key() -> None:
    keyed: dict[str, Any] = {"key": [["k", "v", "at"], ["k", "w", "at"]]}
    with make("semi", **keyed) as harness:
        some = added(0, (1, 2, 0), (1, 2, 0), (1, 3, 0)) + added(1, (1, 2, 0))
        assert push(harness, some, 10 * S) == [(1, 2, 0, 0, 10 * S, 9_999_000)] * 2
        assert harness.state_entries() == {}
    with make("left", key=[[], []]) as harness:
        found = push(harness, added(0, (1, 2, 0), (5, 6, 10 * S)) + added(1, (3, 4, 0)), 20 * S)
        assert [row[:6] for row in found] == [(1, 2, 0, 3, 4, 0), (5, 6, 10 * S, None, None, None)]
        assert harness.state_entries() == {}


def test_times_whose_windows_do_not_fit_are_counted() -> None:
    window = hop("20 seconds", "10 seconds")
    runner = DirectRunner(WindowJoin("full", window=window), *specs_of([LEFT, RIGHT]))
    far = [
        (1, 1, MIN_WATERMARK),
        (1, 1, MAX_WATERMARK),
        (1, 1, window.time_span[0]),
        (1, 1, window.time_span[1]),
    ]
    found = runner.run_bundles([(0, far, ["+I"] * 4)], MAX_WATERMARK)
    assert runner.counters["event_times_out_of_range"] == 2
    assert len(found) == 4  # each in two windows
    assert runner.sink.contents() == {}


def test_windows_that_rows_carry_may_end_anywhere() -> None:
    runner = DirectRunner(WindowJoin("left"), *specs_of(CARRYING))
    ends = [MAX_WATERMARK, MAX_WATERMARK - 1, MIN_WATERMARK + 2]
    rows = [(1, 1, 0, 0, end) for end in ends]
    found = runner.run_bundles([(side, rows, ["+I"] * 3) for side in (0, 1)], 0)
    found += runner.run_bundles([], MAX_WATERMARK)
    assert [row[5] for row in found] == ends[::-1]
    assert runner.sink.contents() == {}


def test_sync_and_async_store_the_same_bytes() -> None:
    waiting = Tuning(batch_hot_reads=True)
    with make("full") as sync, make("full", async_enabled=True, tuning=waiting) as other:
        for number in range(4):
            some = added(0, *((key, number, S * (3 * number + key)) for key in range(20)))
            some += [(1, "+I" if number % 2 else "-D", (key, 0, 0)) for key in range(3)]
            assert push(sync, some, 3 * number * S) == push(other, some, 3 * number * S)
            assert sync.state_entries() == other.state_entries() != {}


# -- what is refused --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: WindowJoin("outer"), "WindowJoin: kind is 'outer'"),  # type: ignore[arg-type]
        (lambda: WindowJoin(window=session("1 second")), "WindowJoin: window is session"),  # type: ignore[arg-type]
        (lambda: WindowJoin(condition=1), "WindowJoin: condition is 1"),  # type: ignore[arg-type]
        (
            lambda: make("inner", None, inputs=[LEFT, CARRYING[1]]),
            "no column 'window_start'; put a window table",
        ),
        (
            lambda: make(
                "inner", None, inputs=[CARRYING[0], CARRYING[1].set(4, pa.field("window_end", pa.int64()))]
            ),
            "WindowJoin: column 'window_end' of .* is int64; cast it",
        ),
        (
            lambda: make(event_time=["at", None]),
            "WindowJoin needs an event time but .* declares none; name its event time column$",
        ),
        (lambda: make(inputs=CARRYING), "WindowJoin: column 'window_start' has the name of an output column"),
        (lambda: make(suffixes=("", "")), "WindowJoin: column 'k' would occur twice"),
        (lambda: make(condition=pc.field("x") > 1), "WindowJoin: the condition .* does not fit"),
    ],
)
def test_bad_input_is_refused_by_name(build: Any, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        build()


@pytest.mark.parametrize(("kind", "window"), [("left", TUMBLE), ("inner", tumble("5 seconds"))])
def test_a_checkpoint_of_another_window_or_kind_is_refused(kind: Any, window: SlicedWindow) -> None:
    with make() as harness:
        push(harness, added(0, (1, 10, 0)))
        snapshot = harness.snapshot()
        with pytest.raises(
            StateDeclarationError, match=r"(kind was inner and is left|window was tumble.* is tumble)"
        ):
            harness.restore(snapshot, operator=WindowJoin(kind, window=window))
