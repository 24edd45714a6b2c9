"""Late rows of operators in a side output: exactly those that are dropped otherwise, and nothing else changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncstate import KeyedProcessFunction, ProcessWindowFunction, RecordContext, Row, WindowContext
from asyncstate.errors import SchemaError, StateDeclarationError
from asyncstate.operator import Operator
from asyncstate.testing import OperatorHarness
from operators import (
    KeyedProcess,
    OverAggregate,
    TemporalJoin,
    TemporalSort,
    WindowAggregate,
    WindowApply,
    WindowDeduplicate,
    WindowJoin,
    WindowProcess,
    WindowRank,
    WindowTableFunction,
    count,
    desc,
    hop,
    max_,
    rows,
    session,
    sum_,
    tumble,
)
from tests.examples import share
from tests.operators.function_runs import slow_reads

BIDS = pa.schema(
    [("price", pa.int64()), ("item", pa.string()), ("more", pa.int64()), ("at", pa.timestamp("us"))]
)
RATES = pa.schema([("item", pa.string()), ("rate", pa.int64()), ("since", pa.timestamp("us"))])
MS = 1_000
SIZE, STEP, GAP = 20 * MS, 10 * MS, 5 * MS
DEAR = pa.schema([("price", pa.int64())])
SUMS = pa.schema([("item", pa.string()), ("sum", pa.int64())])

Bid = tuple[int, str, int, int]
Batch = tuple[list[Bid], int]
"""Rows, and the watermark of the micro-batch."""


def total(key: Any, window: Any, found: Sequence[Row]) -> Any:
    """The sum of prices of a window."""
    return [(key[0], sum(row.price for row in found))]


class Totals(ProcessWindowFunction):
    """The same; the number of rows aside."""

    def process(self, key: tuple[Any, ...], ctx: WindowContext, rows: Sequence[Row]) -> Any:
        ctx.emit(sum(row.price for row in rows))
        ctx.emit(len(rows), output="sizes")


class Forward(KeyedProcessFunction):
    """Price and item of each row; negative ones aside."""

    def process(self, row: Row, ctx: RecordContext) -> Any:
        ctx.emit(row.item, row.price)
        if row.price > 5:
            ctx.emit(row.price, output="dear")


def _of_slices(operator: Callable[[str | None], Operator]) -> tuple[Any, Any, Any]:
    """Late if the last window that has the row ended at the watermark before + 1 or earlier."""
    return operator, lambda at, before: (at // STEP + SIZE // STEP) * STEP <= before + 1, {}


def _in_order(operator: Callable[[str | None], Operator], **settings: Any) -> tuple[Any, Any, Any]:
    return operator, lambda at, before: at <= before, settings


HOP, TUMBLE = (
    hop(f"{SIZE // MS} milliseconds", f"{STEP // MS} milliseconds"),
    tumble(f"{STEP // MS} milliseconds"),
)
CASES: dict[str, tuple[Callable[[str | None], Operator], Callable[[int, int], bool], dict[str, Any]]] = {
    "aggregate": _of_slices(lambda late: WindowAggregate(HOP, [count(), max_("price")], late_output=late)),
    "distinct aggregate": _of_slices(
        lambda late: WindowAggregate(HOP, [count("price").distinct()], late_output=late)
    ),
    "rank": _of_slices(lambda late: WindowRank(desc("price"), 2, window=HOP, late_output=late)),
    "deduplicate": _of_slices(lambda late: WindowDeduplicate("last", window=HOP, late_output=late)),
    "apply": _of_slices(lambda late: WindowApply(total, HOP, SUMS, late_output=late)),
    "sort": _in_order(lambda late: TemporalSort(desc("price"), late_output=late)),
    "over": _in_order(lambda late: OverAggregate([sum_("price")], rows(2), late_output=late)),
    "process": _in_order(
        lambda late: KeyedProcess(Forward(), SUMS, side_outputs={"dear": DEAR}, late_output=late),
        order_by="at",
    ),
}

BIDS_ANY = st.tuples(
    st.integers(0, 9), st.sampled_from("ab"), st.integers(0, 3), st.integers(0, 60).map(MS.__mul__)
)
WATERMARKS = st.builds(lambda time, less: time * MS - less, st.integers(0, 70), st.integers(0, 1))
BATCHES = st.lists(st.tuples(st.lists(BIDS_ANY, max_size=6), WATERMARKS), min_size=1, max_size=5)


def run(
    operator: Operator,
    batches: Sequence[Batch],
    late: bool,
    async_enabled: bool,
    bundle: str = "1000",
    restart: int | None = None,
    **settings: Any,
) -> tuple[list[Any], list[Any], list[int]]:
    """Output, late rows and their count, an entry a micro-batch. ``restart``: behind it, with more partitions."""
    outputs, lates, counts = [], [], []
    given: dict[str, Any] = {
        "event_time": "at",
        "async_enabled": async_enabled,
        "changelog": False,
        **settings,
    }
    harness = OperatorHarness(operator, BIDS, ["item"], options={"async-state.bundle-size": bundle}, **given)
    for number, (rows_of_batch, watermark) in enumerate(batches):
        harness.push(rows_of_batch)
        harness.advance_watermark(watermark)
        outputs.append(harness.end_batch())
        lates.append(harness.side_output("late") if late else [])
        figures = harness.statistics()
        counts.append(
            int(sum(figures.get(f"counter.{name}", 0) for name in ("late_rows", "late_rows_dropped")))
        )
        if number == restart:
            snapshot = harness.snapshot()
            harness.close()
            harness = harness.restore(snapshot, parallelism=3)
    outputs.append(harness.finish())
    harness.close()
    return outputs, lates, counts


@pytest.mark.parametrize("case", CASES)
@given(batches=BATCHES, bundle=st.sampled_from(["1", "3", "1000"]), restart=st.integers(0, 5))
@settings(max_examples=share(8))
def test_late_rows_go_aside_and_nothing_else_changes(
    case: str, batches: list[Batch], bundle: str, restart: int, async_enabled: bool
) -> None:
    make, is_late, more = CASES[case]
    plain, _, counted = run(make(None), batches, False, async_enabled, **more)
    before, wanted = -(2**60), []
    for rows_of_batch, watermark in batches:
        wanted.append([("+I", *row) for row in rows_of_batch if is_late(row[3], before)])
        before = max(before, watermark)
    outputs, lates, counts = run(make("late"), batches, True, async_enabled, **more)
    assert outputs == plain
    assert lates == wanted
    assert counts == counted == [len(late) for late in wanted]
    cut = run(make("late"), batches, True, async_enabled, bundle, restart, **more)
    assert list(map(sorted, cut[1])) == list(map(sorted, wanted))
    assert [sorted(map(repr, output)) for output in cut[0]] == [sorted(map(repr, output)) for output in plain]


# -- sessions ----------------------------------------------------------------------------------------------


def sessions_model(batches: Sequence[Batch]) -> tuple[list[list[Any]], list[list[Any]]]:
    """Rows that leave in a session and late rows, an entry a micro-batch, the end included; by a plain loop."""
    kept: dict[str, list[Bid]] = {}
    out, late, before = [], [], -(2**60)
    for rows_of_batch, watermark in [*batches, ([], 2**60)]:
        watermark = max(before, watermark)
        for row in rows_of_batch:
            kept.setdefault(row[1], []).append(row)
        left, gone = [], []
        for item, rows_of_item in kept.items():
            sessions: list[list[Bid]] = []
            for row in sorted(rows_of_item, key=lambda row: row[3]):
                if sessions and row[3] <= sessions[-1][-1][3] + GAP:
                    sessions[-1].append(row)
                else:
                    sessions.append([row])
            kept[item] = []
            for one in sessions:
                end = one[-1][3] + GAP
                if end <= before + 1:
                    gone += one
                elif end <= watermark + 1:
                    left += [(*row, one[0][3], end) for row in one]
                else:
                    kept[item] += one
        out.append(sorted(left))
        late.append(sorted(("+I", *row) for row in gone))
        before = watermark
    return out, late


@given(batches=BATCHES, bundle=st.sampled_from(["1", "3", "1000"]), restart=st.integers(0, 5))
@settings(max_examples=share(8))
def test_late_rows_of_sessions(batches: list[Batch], bundle: str, restart: int, async_enabled: bool) -> None:
    gap = session(f"{GAP // MS} milliseconds")
    wanted, late = sessions_model(batches)
    table = run(WindowTableFunction(gap, late_output="late"), batches, True, async_enabled, bundle, restart)
    assert [sorted(row[1:7] for row in output) for output in table[0]] == wanted
    aggregates = [count(), sum_("price").alias("sum"), max_("more")]
    plain = run(WindowAggregate(gap, aggregates), batches, False, async_enabled)
    with_late = WindowAggregate(gap, aggregates, late_output="late")
    summed = run(with_late, batches, True, async_enabled, bundle, restart)
    assert [sorted(output) for output in summed[0]] == [sorted(output) for output in plain[0]]
    for run_of in (table, summed):
        assert list(map(sorted, run_of[1])) == late[:-1]
        assert run_of[2] == plain[2] == [len(rows_of_batch) for rows_of_batch in late[:-1]]


@pytest.mark.parametrize("window", [TUMBLE, session(f"{GAP // MS} milliseconds")], ids=["tumble", "session"])
def test_window_functions_put_late_rows_and_more_aside(window: Any, async_enabled: bool) -> None:
    operator = WindowProcess(
        Totals(),
        window,
        SUMS.remove(0),
        allowed_lateness="10 milliseconds",
        window_columns=True,
        late_output="late",
        side_outputs={"sizes": pa.schema([("size", pa.int64())])},
    )
    with (
        slow_reads(),
        OperatorHarness(operator, BIDS, ["item"], event_time="at", async_enabled=async_enabled) as harness,
    ):
        harness.push([(1, "a", 7, 0 * MS), (2, "a", 7, 1 * MS)])
        harness.advance_watermark(12 * MS)
        (fired,) = harness.end_batch()
        assert (fired[0], fired[1], *fired[5:]) == ("+I", "a", 3)
        assert harness.side_output("sizes") == [("+I", 2)]
        harness.push([(4, "a", 7, 2 * MS)])  # late, and allowed
        harness.advance_watermark(40 * MS)
        assert [row[-1] for row in harness.end_batch()] == [7]
        assert (harness.side_output("sizes"), harness.side_output("late")) == ([("+I", 3)], [])
        harness.push([(8, "a", 7, 3 * MS), (9, "a", 7, 90 * MS)])
        assert harness.end_batch() == []
        assert harness.side_output("late") == [("+I", 8, "a", 7, 3 * MS)]
        assert harness.statistics()["counter.late_rows_dropped"] == 1


# -- others ------------------------------------------------------------------------------------------------


def test_late_left_rows_of_a_temporal_join(async_enabled: bool) -> None:
    join = TemporalJoin("left", late_output="late")
    with OperatorHarness(
        join, [BIDS, RATES], [["item"], ["item"]], event_time=["at", "since"], async_enabled=async_enabled
    ) as harness:
        harness.push([("a", 100, 0)], input=1)
        harness.advance_watermark(20)
        harness.end_batch()
        harness.push([(1, "a", 7, 10)], kind="-U")
        harness.push([(1, "a", 7, 11), (2, "a", 7, 30)])
        harness.push([("a", 200, 15)], input=1)  # a late version is no late row
        harness.advance_watermark(30)
        assert harness.end_batch() == [("+I", 2, "a", 7, 30, "a", 200, 15)]
        assert harness.side_output("late") == [("-U", 1, "a", 7, 10), ("+I", 1, "a", 7, 11)]


def test_late_rows_of_a_changelog_keep_their_kinds(async_enabled: bool) -> None:
    operator = WindowAggregate(TUMBLE, [count()], late_output="late")
    with OperatorHarness(operator, BIDS, ["item"], event_time="at", async_enabled=async_enabled) as harness:
        harness.advance_watermark(25 * MS)
        harness.end_batch()
        harness.push([(1, "a", 7, 3 * MS), (1, "a", 7, 30 * MS)])
        harness.push([(1, "a", 7, 3 * MS)], kind="-D")
        harness.end_batch()
        assert harness.side_output("late") == [("+I", 1, "a", 7, 3 * MS), ("-D", 1, "a", 7, 3 * MS)]


def test_windows_of_given_columns_have_late_rows(async_enabled: bool) -> None:
    time = pa.timestamp("us")
    schema = pa.schema([("item", pa.string()), ("window_start", time), ("window_end", time)])
    operator = WindowRank(desc("item"), 1, late_output="late")
    with OperatorHarness(operator, schema, ["item"], async_enabled=async_enabled) as harness:
        harness.advance_watermark(25 * MS)
        harness.end_batch()
        harness.push([("a", 20 * MS, 30 * MS), ("a", 10 * MS, 20 * MS), ("a", None, None)])
        harness.end_batch()
        assert harness.side_output("late") == [("+I", "a", 10 * MS, 20 * MS)]
        assert harness.finish() == [("+I", "a", 20 * MS, 30 * MS)]


def test_there_is_no_local_phase_where_late_rows_are_asked_for() -> None:
    plain, late = WindowAggregate(TUMBLE, [count()]), WindowAggregate(TUMBLE, [count()], late_output="late")
    with OperatorHarness(plain, BIDS, ["item"], event_time="at") as harness:
        specs = harness._specs
    assert plain.partial_aggregation(specs) is not None
    assert late.partial_aggregation(specs) is None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: WindowAggregate(TUMBLE, [count()], late_output=7),  # type: ignore[arg-type]
            "late_output is 7; give the name of a side",
        ),
        (
            lambda: TemporalSort("price", time="processing", late_output="late"),
            "in processing time, where no row is late",
        ),
        (
            lambda: WindowApply(total, TUMBLE, SUMS, time="processing", late_output="late"),
            "in processing time",
        ),
        (lambda: WindowTableFunction(TUMBLE, late_output="late"), "is for sessions;"),
        (
            lambda: KeyedProcess(Forward(), SUMS, side_outputs="late"),  # type: ignore[arg-type]
            "give a dict of their names and schemas",
        ),
        (
            lambda: KeyedProcess(Forward(), SUMS, late_output="late"),
            "or leave the output out",
        ),
        (
            lambda: KeyedProcess(Forward(), SUMS, side_outputs={"late": SUMS}, late_output="late"),
            "'late' is both a side output of the function and the output of late rows",
        ),
        (  # with the same columns, too: the function's rows are other ones
            lambda: KeyedProcess(Forward(), SUMS, side_outputs={"late": BIDS}, late_output="late"),
            "'late' is both a side output of the function and the output of late rows",
        ),
        (
            lambda: OverAggregate([count()], order_by="price", late_output="late"),
            "or leave the output out",
        ),
    ],
)
def test_what_is_refused(make: Callable[[], Operator], message: str) -> None:
    with pytest.raises(SchemaError) as raised:
        OperatorHarness(make(), BIDS, ["item"], event_time="at", changelog=False)
    assert message in str(raised.value)


def test_sessions_of_a_changelog_have_no_late_output() -> None:
    operator = WindowAggregate(session("1 second"), [count()], late_output="late")
    with pytest.raises(SchemaError, match="or use it without late_output"):
        OperatorHarness(operator, BIDS, ["item"], event_time="at", changelog=True)


def test_late_rows_of_both_sides_of_a_window_join(async_enabled: bool) -> None:
    for late_outputs in [("left", "right"), (None, "right"), (None, None)]:
        join = WindowJoin("left", window=TUMBLE, late_outputs=late_outputs)
        with (
            slow_reads(),
            OperatorHarness(
                join,
                [BIDS, RATES],
                [["item"], ["item"]],
                event_time=["at", "since"],
                async_enabled=async_enabled,
            ) as harness,
        ):
            harness.advance_watermark(25 * MS)
            harness.end_batch()
            harness.push([(1, "a", 7, 3 * MS), (2, "a", 7, 30 * MS)])
            harness.push([("a", 100, 4 * MS), ("a", 200, 31 * MS)], input=1)
            harness.push([("a", 100, 5 * MS)], input=1, kind="-D")
            harness.end_batch()
            assert harness.statistics()["counter.late_rows"] == 3
            if late_outputs[0]:
                assert harness.side_output("left") == [("+I", 1, "a", 7, 3 * MS)]
            if late_outputs[1]:
                assert harness.side_output("right") == [("+I", "a", 100, 4 * MS), ("-D", "a", 100, 5 * MS)]
            (joined,) = harness.finish()
            assert joined[:5] == ("+I", 2, "a", 7, 30 * MS)


@pytest.mark.parametrize("late_outputs", ["late", ("late",), (7, None)])
def test_a_window_join_has_a_late_output_for_each_side(late_outputs: Any) -> None:
    with pytest.raises(SchemaError, match=r"WindowJoin: late_output.* is .*give"):
        WindowJoin(window=TUMBLE, late_outputs=late_outputs)


@pytest.mark.parametrize("case", ["aggregate", "rank", "apply", "sort", "over"])
def test_late_output_may_come_to_a_program_that_has_state(case: str, async_enabled: bool) -> None:
    make, _, more = CASES[case]
    kept = [(1, "a", 7, 100 * MS)]
    with OperatorHarness(
        make(None), BIDS, ["item"], event_time="at", changelog=False, async_enabled=async_enabled, **more
    ) as harness:
        harness.push(kept)
        harness.advance_watermark(50 * MS)
        harness.end_batch()
        snapshot = harness.snapshot()
        plain = harness.finish()
    with harness.restore(snapshot, operator=make("late")) as later:
        later.push([(2, "a", 7, 3 * MS)])
        later.end_batch()
        assert later.side_output("late") == [("+I", 2, "a", 7, 3 * MS)]
        assert later.finish() == plain


def test_sessions_keep_their_rows_for_it_so_it_cannot_come_later(async_enabled: bool) -> None:
    gap = session(f"{GAP // MS} milliseconds")
    with OperatorHarness(
        WindowAggregate(gap, [sum_("price")]), BIDS, ["item"], event_time="at", changelog=False
    ) as harness:
        harness.push([(1, "a", 7, 100 * MS)])
        harness.end_batch()
        snapshot = harness.snapshot()
    with pytest.raises(StateDeclarationError, match="sessions"):
        harness.restore(
            snapshot,
            operator=WindowAggregate(gap, [sum_("price")], late_output="late"),
            async_enabled=async_enabled,
        )
