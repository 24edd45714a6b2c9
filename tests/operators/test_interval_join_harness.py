"""IntervalJoin through the runtime: both modes, restore and rescale, SQL, and single cases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from asyncstate.changelog import RETRACT
from asyncstate.errors import AsyncStateError, SchemaError, StateDeclarationError
from asyncstate.operator import MAX_WATERMARK, MIN_WATERMARK, InputSpec
from asyncstate.testing import OperatorHarness, Tuning
from operators import IntervalJoin
from operators.join.interval.interval_pairs import REWRITE_ROWS
from tests.operators.direct import DirectRunner
from tests.operators.interval_model import KINDS, LEFT, RIGHT, SECOND, IntervalModel, Push, Row

WAITING = Tuning(batch_hot_reads=True)

SQL = {
    "inner": "select l.*, r.* from l join r on {on}",
    "left": "select l.*, r.* from l left join r on {on}",
    "right": "select l.*, r.* from l right join r on {on}",
    "full": "select l.*, r.* from l full join r on {on}",
    "semi": "select * from l where exists (select 1 from r where {on})",
    "anti": "select * from l where not exists (select 1 from r where {on})",
}


def make(kind: Any = "inner", lower: Any = 0, upper: Any = "5 seconds", **settings: Any) -> OperatorHarness:
    """A harness over the two inputs; settings of the operator are told from those of the harness by name."""
    own = {
        name: settings.pop(name)
        for name in ("condition", "null_safe", "time", "allowed_lateness", "suffixes")
        if name in settings
    }
    join = IntervalJoin(kind, lower=lower, upper=upper, **own)
    defaults = {"event_time": None if own.get("time") == "processing" else "at"}
    return OperatorHarness(join, [LEFT, RIGHT], [["k"], ["k"]], **{**defaults, **settings})


def specs() -> list[InputSpec]:
    return [
        InputSpec(schema, ("k",), "at", name=name) for schema, name in ((LEFT, "offers"), (RIGHT, "bids"))
    ]


def random_batches(seed: int, count: int, rows: int = 120) -> Iterator[list[Push]]:
    """Micro-batches of both inputs: skewed keys, nulls, times that go on but stray far back."""
    random = np.random.default_rng(seed)
    for number in range(count):
        pushes: list[Push] = []
        for side in (0, 1):
            keys = (12 * random.random(rows) ** 3).astype(int)
            values = random.integers(5, size=rows)
            times = number * 4 * SECOND + random.integers(4 * SECOND, size=rows)
            times -= np.where(random.random(rows) < 0.2, random.integers(30 * SECOND, size=rows), 0)
            known = random.random(rows) > 0.05
            columns = (keys.tolist(), known.tolist(), values.tolist(), times.tolist())
            some = [(key if is_known else None, v, t) for key, is_known, v, t in zip(*columns, strict=True)]
            pushes.append((side, some))
        yield pushes


def push(harness: OperatorHarness, pushes: list[Push]) -> list[Row]:
    for side, rows in pushes:
        harness.push(rows, input=side)
    return harness.end_batch()


def plain(output: list[Row]) -> Counter[Row]:
    assert {row[0] for row in output} <= {"+I"}
    return Counter(row[1:] for row in output)


# -- against the model and SQL ----------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_all_modes_agree_with_the_model_and_leave_nothing(kind: Any) -> None:
    conditional = kind in ("full", "anti")
    own = {"condition": pc.field("v") <= pc.field("w")} if conditional else {}
    condition = (lambda one, other: one[1] <= other[1]) if conditional else (lambda one, other: True)
    model = IntervalModel(kind, -2 * SECOND, 5 * SECOND, condition=condition)
    with ExitStack() as stack:
        harnesses = [
            stack.enter_context(
                make(
                    kind,
                    "-2 seconds",
                    "5 seconds",
                    watermark_delay=2 * SECOND,
                    async_enabled=enabled,
                    tuning=WAITING if enabled else None,
                    **own,
                )
            )
            for enabled in (False, True)
        ]
        for pushes in random_batches(KINDS.index(kind), 4):
            watermark = harnesses[0].watermark
            outputs = [push(harness, pushes) for harness in harnesses]
            assert all(output == outputs[0] for output in outputs[1:])
            arrived, ended = model.run(pushes, watermark)
            assert [row[1:] for row in outputs[0][: len(arrived)]] == arrived
            assert plain(outputs[0][len(arrived) :]) == Counter(ended)
        entries = [harness.state_entries() for harness in harnesses]
        assert entries[0]
        assert all(each == entries[0] for each in entries[1:])
        outputs = [harness.finish() for harness in harnesses]
        assert all(output == outputs[0] for output in outputs[1:])
        assert plain(outputs[0]) == Counter(model.run([], MAX_WATERMARK)[1])
        assert all(harness.state_entries() == {} for harness in harnesses)


@pytest.mark.parametrize("kind", ["full", "anti", "semi"])
def test_goes_on_after_restores_at_another_parallelism_and_mode(kind: Any) -> None:
    """Which rows had a partner is not forgotten: each is put out once."""
    model = IntervalModel(kind, -3 * SECOND, 3 * SECOND)
    batches = list(random_batches(7, 5))
    changes = (
        {"parallelism": 3, "async_enabled": True},
        {"parallelism": 2},
        {"parallelism": 1, "async_enabled": False},
    )
    with ExitStack() as stack:
        harness = stack.enter_context(make(kind, "-3 seconds", "3 seconds", watermark_delay=SECOND))
        for number, pushes in enumerate(batches):
            expected = model.run(pushes, harness.watermark)
            assert plain(push(harness, pushes)) == Counter(expected[0] + expected[1])
            if number < len(changes):
                entries = harness.state_entries()
                harness = stack.enter_context(harness.restore(harness.snapshot(), **changes[number]))
                assert harness.state_entries() == entries
        assert plain(harness.finish()) == Counter(model.run([], MAX_WATERMARK)[1])
        assert harness.state_entries() == {}


@pytest.mark.parametrize(("kind", "conditional"), [*((kind, False) for kind in KINDS), ("full", True)])
def test_rows_in_time_join_as_in_sql(kind: Any, conditional: bool) -> None:
    """Small bundles, and a watermark behind all rows: which row came when makes no difference."""
    own = {"condition": pc.field("v") <= pc.field("w")} if conditional else {}
    tables: list[list[Row]] = [[], []]
    result: Counter[Row] = Counter()
    harness = make(
        kind,
        "-1 second",
        "3 seconds",
        watermark_delay=31 * SECOND,
        parallelism=2,
        async_enabled=True,
        options={"async-state.bundle-size": "64"},
        **own,
    )
    with harness:
        for pushes in random_batches(11, 8, 60):
            for side, rows in pushes:
                tables[side] += rows
            for side in (0, 1):  # in pieces, so that bundles of both inputs take turns
                for start in range(0, 60, 20):
                    harness.push(pushes[side][1][start : start + 20], input=side)
            result += plain(harness.end_batch())
        result += plain(harness.finish())
        assert harness.state_entries() == {}
    on = "l.k = r.k and r.at between l.at - 1000000 and l.at + 3000000"
    on += " and l.v <= r.w" if conditional else ""
    with duckdb.connect() as connection:
        for name, rows, schema in zip("lr", tables, (LEFT, RIGHT), strict=True):
            columns = [pa.array([row[i] for row in rows], pa.int64()) for i in range(3)]
            connection.register(name, pa.Table.from_arrays(columns, names=schema.names))
        assert result == Counter(connection.execute(SQL[kind].format(on=on)).fetchall())


# -- late rows, ends of rows ------------------------------------------------------------------------


@pytest.mark.parametrize("async_enabled", [False, True])
def test_late_rows_join_what_is_there_and_are_padded_at_once(async_enabled: bool) -> None:
    with make("full", 0, 5 * SECOND, async_enabled=async_enabled) as harness:
        harness.push([(1, 10, 7 * SECOND), (2, 20, 7 * SECOND)], input=0)
        harness.advance_watermark(10 * SECOND)
        assert harness.end_batch() == []
        stored = harness.state_entries()
        # Behind the watermark: the first one joins, the second finds nothing. No left row of their times can come.
        harness.push([(1, 11, 8 * SECOND), (3, 31, 9 * SECOND)], input=1)
        harness.push([(4, 40, 5 * SECOND)], input=0)  # its last partner had to come at 10 seconds
        assert harness.end_batch() == [
            ("+I", 4, 40, 5 * SECOND, None, None, None),
            ("+I", 1, 10, 7 * SECOND, 1, 11, 8 * SECOND),
            ("+I", None, None, None, 3, 31, 9 * SECOND),
        ]
        assert {key[2:] for key in harness.state_entries()} <= {key[2:] for key in stored}
        harness.advance_watermark(12 * SECOND - 1)
        assert harness.end_batch() == []
        harness.advance_watermark(12 * SECOND)
        assert harness.end_batch() == [("+I", 2, 20, 7 * SECOND, None, None, None)]
        harness.push([(1, 12, 9 * SECOND), (2, 22, 9 * SECOND)], input=1)  # the left rows are over
        assert plain(harness.end_batch()) == Counter(
            [(None, None, None, 1, 12, 9 * SECOND), (None, None, None, 2, 22, 9 * SECOND)]
        )
        harness.advance_watermark(20 * SECOND)
        assert harness.end_batch() == []
        assert harness.state_entries() == {}


def test_allowed_lateness_keeps_rows_longer() -> None:
    with make("left", 0, "5 seconds", allowed_lateness="2 seconds") as harness:
        harness.push([(1, 10, 0), (2, 20, 0)], input=0)
        harness.advance_watermark(7 * SECOND - 1)
        assert harness.end_batch() == []
        harness.push([(1, 11, SECOND)], input=1)
        assert harness.end_batch() == [("+I", 1, 10, 0, 1, 11, SECOND)]
        harness.advance_watermark(7 * SECOND)
        assert harness.end_batch() == [("+I", 2, 20, 0, None, None, None)]


@pytest.mark.parametrize("kind", KINDS)
def test_rows_leave_the_store_once_their_cell_is_over(kind: Any) -> None:
    """Two rows a second; what is stored does not grow, and nothing is left of what is over."""
    join = IntervalJoin(kind, lower="-2 seconds", upper="2 seconds")
    runner = DirectRunner(join, *specs())
    sizes = []
    for second in range(40):
        bundles = [(side, [(second % 3, second, second * SECOND)], ["+I"]) for side in (0, 1)]
        runner.run_bundles(bundles, (second - 1) * SECOND)
        sizes.append(sum(map(len, runner.sink.contents().values())))
    # Rows of the last 3 seconds may find a partner, and a cell of 4 seconds goes as a whole.
    assert max(sizes) <= 8 * (sizes[0] + 40)
    runner.run_bundles([], 46 * SECOND)
    assert runner.sink.contents() == {}


def test_the_end_of_the_input_pads_everything_and_empties_the_state() -> None:
    for time in ("event", "processing"):
        with make("full", "-1 hour", "1 hour", time=time) as harness:
            harness.push([(1, 10, 5 * SECOND), (2, 20, 4 * SECOND), (None, 30, SECOND)], input=0)
            harness.push([(2, 21, 4 * SECOND), (3, 31, 3 * SECOND)], input=1)
            assert harness.end_batch() == [
                ("+I", None, 30, SECOND, None, None, None),
                ("+I", 2, 20, 4 * SECOND, 2, 21, 4 * SECOND),
            ]
            assert harness.state_entries()
            assert harness.finish() == [
                ("+I", 1, 10, 5 * SECOND, None, None, None),
                ("+I", None, None, None, 3, 31, 3 * SECOND),
            ]
            assert harness.state_entries() == {}


def test_rows_without_a_time_are_dropped_and_counted() -> None:
    with make("full") as harness:
        harness.push([(1, 10, None), (1, 11, 0)], input=0)
        harness.push([(1, 12, None)], input=1)
        harness.end_batch()
        assert harness.statistics()["counter.null_event_times"] == 2
        assert harness.finish() == [("+I", 1, 11, 0, None, None, None)]


# -- processing time ----------------------------------------------------------------------------------


@pytest.mark.parametrize("async_enabled", [False, True])
def test_processing_time_is_that_of_the_micro_batch(async_enabled: bool) -> None:
    with make("left", 0, "2 seconds", time="processing", async_enabled=async_enabled) as harness:
        harness.push([(1, 10, 90), (2, 20, None), (3, 30, 0)], input=0)
        harness.push([(3, 31, 70)], input=1)
        assert harness.end_batch() == [("+I", 3, 30, 0, 3, 31, 70)]
        harness.advance_processing_time(2 * SECOND)
        harness.push([(1, 11, 0)], input=1)
        assert harness.end_batch() == [("+I", 1, 10, 90, 1, 11, 0)]
        harness.push([(1, 12, 0)], input=1)  # in another micro-batch of the same time
        assert harness.end_batch() == [("+I", 1, 10, 90, 1, 12, 0)]
        harness.advance_processing_time(1)
        harness.push([(2, 21, 0)], input=1)
        assert harness.end_batch() == [("+I", 2, 20, None, None, None, None)]
        harness.advance_processing_time(10 * SECOND)
        assert harness.end_batch() == []
        assert harness.state_entries() == {}


# -- many rows ----------------------------------------------------------------------------------------


SEEN: list[int] = []
"""Sizes of the batches of candidates that ``is_even`` got."""


def is_even(batch: pa.RecordBatch) -> pa.Array:
    SEEN.append(batch.num_rows)
    return pc.equal(pc.bit_wise_and(batch.column("v"), 1), 0)


def test_a_hot_key_is_compared_within_the_time_range_only() -> None:
    """Each right row has the 21 left rows around it as candidates, of 3000 with its key."""
    SEEN.clear()
    count, step = 3000, 100_000
    join = IntervalJoin("left", lower="-1 second", upper="1 second", condition=is_even)
    runner = DirectRunner(join, *specs(), page_size=100)
    rows = [(1, number, number * step) for number in range(count)]
    shuffled = [rows[index] for index in np.random.default_rng(1).permutation(count).tolist()]
    halves = [
        (0, shuffled[: count // 2], ["+I"] * (count // 2)),
        (0, shuffled[count // 2 :], ["+I"] * (count // 2)),
    ]
    assert runner.run_bundles(halves, MIN_WATERMARK) == []
    right = [(1, number, number * step) for number in range(0, count, 500)]
    output = runner.run_bundles([(1, right, ["+I"] * len(right))], MIN_WATERMARK)
    assert sum(SEEN) == 11 + 21 * (len(right) - 1)
    assert [(row[2], row[5]) for row in output] == [
        (v, w) for _, w, _ in right for v in range(max(w - 10, 0), w + 11) if v % 2 == 0
    ]
    matched = {row[2] for row in output}
    rest = runner.run_bundles([], MAX_WATERMARK)
    assert [row[2] for row in rest] == [v for v in range(count) if v not in matched]
    assert runner.sink.contents() == {}


@pytest.mark.parametrize("kind", ["inner", "full"])
def test_a_list_that_is_mostly_over_is_written_anew_when_it_is_read(kind: Any) -> None:
    """Right rows of an hour lie in one list, but no left row can come for them once the watermark is there."""
    rows = 2 * REWRITE_ROWS
    with make(kind, 0, "1 hour", watermark_delay=0) as harness:
        sizes = []
        for number in range(1, 9):
            start = number * SECOND
            harness.push([(1, number, start)], input=0)
            harness.push([(1, i, start + i) for i in range(rows)], input=1)
            assert len(harness.end_batch()) == number * rows
            (right,) = (state.id for state in harness.states() if state.name == "right")
            stored = [value for key, value in harness.state_entries().items() if key[2] == right]
            sizes.append(sum(map(len, stored)))
        assert max(sizes) <= 4 * sizes[0]


# -- odd inputs ---------------------------------------------------------------------------------------


def test_times_at_the_ends_of_the_range_do_not_wrap() -> None:
    join = IntervalJoin("full", lower=-(1 << 60), upper=1 << 60)
    runner = DirectRunner(join, *specs())
    lowest, highest = MIN_WATERMARK + 1, MAX_WATERMARK
    left = [(1, 1, lowest), (1, 2, highest), (1, 3, 0)]
    right = [(1, 4, highest - 5), (1, 5, lowest + 5), (1, 6, 1 << 60)]
    bundles = [(0, left, ["+I"] * 3), (1, right, ["+I"] * 3)]
    output = runner.run_bundles(bundles, -5)
    assert [(row[2], row[5]) for row in output] == [(2, 4), (1, 5), (3, 6)]
    assert runner.run_bundles([], MAX_WATERMARK) == []
    assert runner.sink.contents() == {}


def test_without_key_columns_all_rows_meet() -> None:
    join = IntervalJoin("inner", lower=0, upper=1, condition=pc.field("v") == pc.field("w"))
    with OperatorHarness(join, [LEFT, RIGHT], [[], []], event_time="at") as harness:
        harness.push([(1, 5, 0), (2, 6, 0)], input=0)
        harness.push([(3, 6, 1), (4, 5, 2)], input=1)
        assert harness.end_batch() == [("+I", 2, 6, 0, 3, 6, 1)]
        harness.finish()
        assert harness.state_entries() == {}


def test_null_keys_match_only_when_asked_to() -> None:
    for null_safe, first, end in (
        (False, [(None, 1, 0, None, None, None), (None, None, None, None, 2, 0)], []),
        (True, [(None, 1, 0, None, 2, 0)], []),
    ):
        with make("full", null_safe=null_safe) as harness:
            harness.push([(None, 1, 0)], input=0)
            harness.push([(None, 2, 0)], input=1)
            assert [row[1:] for row in harness.end_batch()] == first
            assert harness.finish() == end


def test_columns_may_have_the_names_that_the_state_uses_and_times_any_unit() -> None:
    left = pa.schema([("matched", pa.string()), ("time", pa.timestamp("ns", tz="UTC"))])
    right = pa.schema([("matched", pa.string()), ("time", pa.timestamp("s"))])
    join = IntervalJoin("left", lower=0, upper=0)
    with OperatorHarness(join, [left, right], [["matched"], ["matched"]], event_time="time") as harness:
        harness.push([("a", 2 * 10**9 + 999), ("b", 5)], input=0)
        harness.end_batch()
        harness.push([("a", 2)], input=1)
        assert harness.end_batch() == [("+I", "a", 2 * 10**9 + 999, "a", 2)]
        assert harness.finish() == [("+I", "b", 5, None, None)]


@pytest.mark.parametrize("async_enabled", [False, True])
def test_a_column_may_be_added_and_widened_between_runs(async_enabled: bool, tmp_path: Path) -> None:
    narrow = pa.schema([("k", pa.int64()), ("v", pa.int32()), ("at", pa.timestamp("us"))])
    wide = pa.schema([*LEFT, ("note", pa.string())])
    join = IntervalJoin("full", lower=0, upper=0)

    def opened(left: pa.Schema) -> OperatorHarness:
        return OperatorHarness(
            join, [left, RIGHT], [["k"], ["k"]], event_time="at", async_enabled=async_enabled, folder=tmp_path
        )

    before = opened(narrow)
    before.push([(1, 10, 5), (2, 20, 5)], input=0)
    before.end_batch()
    after = opened(wide)
    after.push([(1, 11, 5)], input=1)
    after.push([(3, 1 << 40, 6, "new")], input=0)
    assert after.end_batch() == [("+I", 1, 10, 5, None, 1, 11, 5)]
    assert after.finish() == [
        ("+I", 2, 20, 5, None, None, None, None),
        ("+I", 3, 1 << 40, 6, "new", None, None, None),
    ]
    assert after.state_entries() == {}


# -- refusals -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "outer"}, "kind is 'outer'; choose 'inner', 'left'"),
        ({"time": "wall"}, "time is 'wall'; choose 'event' or 'processing'"),
        ({"lower": "5 seconds", "upper": "1 second"}, "lower .* is above upper"),
        ({"lower": "soon"}, "lower is 'soon', which is not a duration"),
        ({"upper": 1 << 61}, "upper is 2305843009213693952 us; give at most"),
        ({"allowed_lateness": -1}, "allowed_lateness is -1; give a duration"),
        ({"time": "processing", "allowed_lateness": 1}, "nothing is late in processing time"),
        ({"condition": "v < w"}, "condition is 'v < w'; give a pyarrow expression or a function"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(SchemaError, match=f"IntervalJoin: {message}"):
        IntervalJoin(**{"lower": 0, "upper": "1 second", **arguments})


def test_inputs_that_do_not_fit_are_refused() -> None:
    left, right = specs()
    join = IntervalJoin(lower=0, upper=0)
    assert join.bind([left, right]).schema.names == ["k", "v", "at", "k_right", "w", "at_right"]
    changelog = InputSpec(RIGHT, ("k",), "at", changes=RETRACT, name="bids")
    with pytest.raises(
        SchemaError, match="bids is a changelog, but IntervalJoin does not accept retractions"
    ):
        join.bind([left, changelog])
    with pytest.raises(SchemaError, match="bids declares none"):
        join.bind([left, InputSpec(RIGHT, ("k",), name="bids")])
    with pytest.raises(SchemaError, match="IntervalJoin: offers has the key .k., bids .k, w."):
        join.bind([left, InputSpec(RIGHT, ("k", "w"), "at", name="bids")])
    with pytest.raises(SchemaError, match="IntervalJoin: column 'k' would occur twice"):
        IntervalJoin(lower=0, upper=0, suffixes=("", "")).bind([left, right])
    with pytest.raises(SchemaError, match="IntervalJoin: the condition .* does not fit"):
        IntervalJoin(lower=0, upper=0, condition=pc.field("x") > 1).bind([left, right])
    with pytest.raises(AsyncStateError, match="changelog"):
        make().restore(make().snapshot(), changelog=True)


@pytest.mark.parametrize(
    "changed",
    [
        IntervalJoin("left", lower=0, upper="6 seconds"),
        IntervalJoin("full", lower=0, upper="5 seconds"),
        IntervalJoin("left", lower=0, upper="5 seconds", allowed_lateness=1),
    ],
)
def test_a_checkpoint_is_never_read_with_another_interval_or_kind(changed: IntervalJoin) -> None:
    with make("left") as harness:
        harness.push([(1, 1, 0)], input=0)
        harness.end_batch()
        with pytest.raises(
            StateDeclarationError,
            match="another program wrote its state: (kind was left and is full|interval was .* and is )",
        ):
            harness.restore(harness.snapshot(), operator=changed)
