"""Side outputs: rows beside the main output, at both grains, and late rows of inputs in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstate import (
    Bundle,
    BundleContext,
    BundleOperator,
    InputOrder,
    InputSpec,
    OperatorContext,
    RecordContext,
    RecordOperator,
    Row,
    RowKind,
    Timer,
    ValueStateDescriptor,
)
from asyncstate.changelog import Changelog
from asyncstate.errors import AsyncStateError, OperatorError, SchemaError
from asyncstate.operator import Operator, OutputSpec
from asyncstate.testing import OperatorHarness
from tests.operators.function_runs import slow_reads

BIDS = pa.schema([("item", pa.string()), ("price", pa.int64())])
COUNTS = pa.schema([("item", pa.string()), ("count", pa.int64())])
WORDS = pa.schema([("word", pa.string())])
TIMED = pa.schema([("item", pa.string()), ("price", pa.int64()), ("at", pa.timestamp("us"))])


class Sorted(RecordOperator):
    """Numbers of bids to the main output; dear bids, with their number, and words of odd ones aside."""

    def bind(self, inputs: Sequence[InputSpec]) -> OutputSpec:
        return OutputSpec(COUNTS, {"dear": BIDS, "odd": WORDS}, side_changes={"dear": inputs[0].changes})

    def open(self, context: OperatorContext) -> None:
        assert context.output_schema == COUNTS
        self.count = context.get_state(ValueStateDescriptor("count", pa.int64(), default=0))

    async def process(self, row: Row, ctx: RecordContext) -> None:
        count = (await self.count.async_value() or 0) + 1
        await self.count.async_update(count)
        if row.price > 10:
            ctx.emit(row.item, row.price + count, kind=ctx.row_kind, output="dear")
        ctx.emit(row.item, count)
        if row.price % 2:
            ctx.emit(f"{row.item}{row.price}", output="odd")


class SortedBundles(BundleOperator):
    """The bids; dear ones aside."""

    def bind(self, inputs: Sequence[InputSpec]) -> OutputSpec:
        changes = Changelog.retract()
        sides = {"dear": changes, "prices": changes}
        return OutputSpec(BIDS, {"dear": BIDS, "prices": BIDS.remove(0)}, changes, sides)

    def process_bundle(self, bundle: Bundle, ctx: BundleContext) -> Any:
        dear = np.flatnonzero(bundle.batch.column("price").to_numpy() > 10)
        rows = bundle.batch.take(pa.array(dear))
        ctx.emit(rows.columns, bundle.kinds[dear], output="dear")
        yield
        ctx.emit(bundle.batch.columns, bundle.kinds)
        ctx.emit([rows.column("price")], RowKind.UPDATE_AFTER, output="prices")


def model(rows: Sequence[tuple[str, int]], counts: dict[str, int]) -> tuple[list[Any], list[Any], list[Any]]:
    """What ``Sorted`` puts out, by a plain loop."""
    main, dear, odd = [], [], []
    for item, price in rows:
        counts[item] = counts.get(item, 0) + 1
        main.append(("+I", item, counts[item]))
        if price > 10:
            dear.append(("+I", item, price + counts[item]))
        if price % 2:
            odd.append(("+I", f"{item}{price}"))
    return main, dear, odd


@given(
    batches=st.lists(
        st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 20)), max_size=12), min_size=1, max_size=4
    )
)
def test_rows_of_each_output_are_in_the_order_of_arrival(
    batches: list[list[tuple[str, int]]], async_enabled: bool
) -> None:
    counts: dict[str, int] = {}
    with slow_reads(), OperatorHarness(Sorted(), BIDS, ["item"], async_enabled=async_enabled) as harness:
        for rows in batches:
            harness.push(rows)
            main, dear, odd = model(rows, counts)
            assert harness.end_batch() == main
            assert harness.side_output("dear") == dear
            assert harness.side_output("odd") == odd
            assert harness.statistics()["rows_out"] == len(main) + len(dear) + len(odd)


def test_many_rows_leave_in_parts_and_in_order(async_enabled: bool) -> None:
    rows = [(f"i{number % 700}", number) for number in range(25_000)]
    with OperatorHarness(Sorted(), BIDS, ["item"], async_enabled=async_enabled, parallelism=1) as harness:
        harness.push(rows)
        main, dear, odd = model(rows, {})
        assert harness.end_batch() == main
        assert (harness.side_output("dear"), harness.side_output("odd")) == (dear, odd)


def test_rows_are_given_once_and_kept_until_they_are_asked_for(async_enabled: bool) -> None:
    with OperatorHarness(Sorted(), BIDS, ["item"], async_enabled=async_enabled) as harness:
        for price in (11, 13):
            harness.push([("pen", price)])
            harness.end_batch()
        assert harness.side_output("dear") == [("+I", "pen", 12), ("+I", "pen", 15)]
        assert harness.side_output("dear") == []
        assert harness.side_output("odd") == [("+I", "pen11"), ("+I", "pen13")]
        assert harness.output == [("+I", "pen", 1), ("+I", "pen", 2)]


def test_restart_and_rescale_change_nothing(async_enabled: bool) -> None:
    first, then = [("a", 11), ("b", 12)], [("a", 13), ("b", 14), ("c", 15)]
    with OperatorHarness(Sorted(), BIDS, ["item"], async_enabled=async_enabled) as harness:
        harness.push(first)
        harness.end_batch()
        snapshot = harness.snapshot()
    with harness.restore(snapshot, parallelism=3, async_enabled=not async_enabled) as harness:
        harness.push(then)
        harness.end_batch()
        assert sorted(harness.side_output("dear")) == [("+I", "a", 15), ("+I", "b", 16), ("+I", "c", 16)]


@pytest.mark.parametrize("size", ["1", "2", "1000"])
def test_bundles_put_rows_out_aside(async_enabled: bool, size: str) -> None:
    options = {"async-state.bundle-size": size}
    with OperatorHarness(
        SortedBundles(), BIDS, ["item"], async_enabled=async_enabled, options=options
    ) as harness:
        harness.push([("a", 11), ("b", 3)])
        harness.push([("a", 12), ("c", 13)], kinds=["-U", "+U"])
        kinds = sorted(harness.end_batch())
        assert kinds == [("+I", "a", 11), ("+I", "b", 3), ("+U", "c", 13), ("-U", "a", 12)]
        assert sorted(harness.side_output("dear")) == [("+I", "a", 11), ("+U", "c", 13), ("-U", "a", 12)]
        assert sorted(harness.side_output("prices")) == [("+U", 11), ("+U", 12), ("+U", 13)]


# -- timers, the watermark, broadcast rows -----------------------------------------------------------------


class Timed(RecordOperator):
    def bind(self, inputs: Sequence[InputSpec]) -> OutputSpec:
        return OutputSpec(WORDS, {"ends": WORDS})

    def process(self, row: Row, ctx: RecordContext) -> None:
        ctx.timers.register_event_time(row[2])

    def on_timer(self, timer: Timer, ctx: RecordContext) -> None:
        ctx.emit(f"{ctx.key[0]} {timer.time}", output="ends")

    def on_watermark(self, watermark: int, ctx: RecordContext) -> None:
        ctx.emit("passed", output="ends")


def test_timers_and_the_watermark_put_rows_out_aside(async_enabled: bool) -> None:
    with OperatorHarness(Timed(), TIMED, ["item"], event_time="at", async_enabled=async_enabled) as harness:
        harness.push([("pen", 1, 10), ("cup", 1, 20)])
        harness.advance_watermark(30)
        assert harness.end_batch() == []
        assert harness.side_output("ends") == [("+I", "pen 10"), ("+I", "cup 20"), ("+I", "passed")]


class Announced(Timed):
    num_inputs = 2
    broadcast_input = 1

    def process_broadcast(self, row: Row, ctx: RecordContext) -> None:
        ctx.emit(row.word, output="ends")


def test_broadcast_rows_put_nothing_out_aside_either(async_enabled: bool) -> None:
    with OperatorHarness(
        Announced(), [TIMED, WORDS], ["item", None], event_time=["at", None], async_enabled=async_enabled
    ) as harness:
        harness.push([("tea",)], input=1)
        with pytest.raises(OperatorError, match="every partition would emit"):
            harness.end_batch()


# -- late rows of inputs in order ----------------------------------------------------------------------------


class InOrder(BundleOperator):
    """Rows in order of time; late ones aside."""

    late: Any = "late"
    schema: Any = TIMED

    def bind(self, inputs: Sequence[InputSpec]) -> OutputSpec:
        return OutputSpec(inputs[0].schema, {"late": self.schema}, inputs[0].changes)

    def ordered_inputs(self, inputs: Sequence[InputSpec]) -> Sequence[InputOrder | None]:
        return [InputOrder("event")]

    def late_outputs(self, inputs: Sequence[InputSpec]) -> Sequence[str | None]:
        return [self.late]

    def process_bundle(self, bundle: Bundle, ctx: BundleContext) -> Any:
        raise AssertionError("all rows come in order")

    def process_due(self, bundles: Sequence[Bundle | None], ctx: BundleContext) -> Any:
        (bundle,) = bundles
        if bundle is not None:
            ctx.emit(bundle.batch.columns, bundle.kinds)


class RecordsInOrder(RecordOperator):
    def bind(self, inputs: Sequence[InputSpec]) -> OutputSpec:
        return OutputSpec(inputs[0].schema, changes=inputs[0].changes).with_late_rows("late", inputs[0])

    def late_outputs(self, inputs: Sequence[InputSpec]) -> Sequence[str | None]:
        return ["late"]

    def process(self, row: Row, ctx: RecordContext) -> None:
        ctx.emit(*row, kind=ctx.row_kind)


@given(
    batches=st.lists(
        st.tuples(
            st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9), st.integers(0, 50)), max_size=8),
            st.integers(0, 60),
        ),
        min_size=1,
        max_size=5,
    ),
    grain=st.sampled_from(["record", "bundle"]),
    size=st.sampled_from(["2", "1000"]),
)
def test_rows_come_in_order_or_late_and_none_is_lost(
    batches: list[tuple[list[tuple[str, int, int]], int]], grain: str, size: str, async_enabled: bool
) -> None:
    operator: Operator = InOrder() if grain == "bundle" else RecordsInOrder()
    order = "at" if grain == "record" else None
    options = {"async-state.bundle-size": size}
    watermark, waiting = -1, []
    with OperatorHarness(
        operator,
        TIMED,
        ["item"],
        event_time="at",
        async_enabled=async_enabled,
        options=options,
        order_by=order,
    ) as harness:
        for rows, wanted in batches:
            late = [("+I", *row) for row in rows if row[2] <= watermark]
            waiting += [("+I", *row) for row in rows if row[2] > watermark]
            watermark = max(watermark, wanted)
            harness.push(rows)
            harness.advance_watermark(watermark)
            due = [row for row in waiting if row[3] <= watermark]
            waiting = [row for row in waiting if row[3] > watermark]
            assert sorted(harness.end_batch()) == sorted(due)
            assert harness.side_output("late") == late
            assert harness.statistics().get("counter.late_rows_dropped", 0) == len(late)


def test_late_rows_keep_their_kinds(async_enabled: bool) -> None:
    with OperatorHarness(InOrder(), TIMED, ["item"], event_time="at", async_enabled=async_enabled) as harness:
        harness.advance_watermark(100)
        harness.end_batch()
        harness.push([("pen", 1, 10), ("pen", 1, 101)], kind="-D")
        harness.end_batch()
        assert harness.side_output("late") == [("-D", "pen", 1, 10)]


# -- refusals ------------------------------------------------------------------------------------------------


class Wrong(SortedBundles):
    def __init__(self, bound: Any) -> None:
        self.bound = bound

    def bind(self, inputs: Sequence[InputSpec]) -> OutputSpec:
        return self.bound  # type: ignore[no-any-return]


class WrongStateless(Wrong):
    stateless = True


@pytest.mark.parametrize(
    ("bound", "message"),
    [
        (OutputSpec(BIDS, {"2nd": BIDS}), "a side output named '2nd'; use at most 100 letters"),
        (OutputSpec(BIDS, {"late": BIDS, "Late": BIDS}), "'late' and 'Late', which differ only in case"),
        (OutputSpec(BIDS, {"late": ["item"]}), "['item'] for side output 'late'; give its columns"),
        (
            OutputSpec(BIDS, {"late": pa.schema([BIDS[0], BIDS[0]])}),
            "'late', a schema with column 'item' twice",
        ),
        (OutputSpec(BIDS, {"late": pa.schema([("row_kind", pa.string())])}), "a column 'row_kind'"),
        (OutputSpec(None, {}), "return the output's columns as a pyarrow schema"),
        (7, "bind() of Wrong returned 7"),
    ],
)
def test_outputs_that_cannot_be(bound: Any, message: str) -> None:
    with pytest.raises(SchemaError) as raised:
        OperatorHarness(Wrong(bound), BIDS, ["item"])
    assert message in str(raised.value)
    assert "operator 'operator'" in str(raised.value)


def test_columns_that_are_no_text_of_types_are_refused() -> None:
    with pytest.raises(SchemaError, match="side output 'late': the columns 'item' cannot be read"):
        OutputSpec(BIDS, {"late": "item"})


def test_a_stateless_operator_has_one_output() -> None:
    with pytest.raises(SchemaError, match="stateless: it would run once per output"):
        OperatorHarness(WrongStateless(OutputSpec(BIDS, {"late": BIDS})), BIDS, None)


class Emitting(RecordOperator):
    """Emits what it is told."""

    def __init__(self, *values: Any, output: Any, declared: dict[str, pa.Schema]) -> None:
        self.values, self.output, self.declared = values, output, declared

    def bind(self, inputs: Sequence[InputSpec]) -> OutputSpec:
        return OutputSpec(WORDS, self.declared)

    def process(self, row: Row, ctx: RecordContext) -> None:
        ctx.emit(*self.values, output=self.output)


class EmittingBundles(BundleOperator):
    def bind(self, inputs: Sequence[InputSpec]) -> OutputSpec:
        return OutputSpec(BIDS, {"dear": BIDS, "cheap": BIDS})

    def process_bundle(self, bundle: Bundle, ctx: BundleContext) -> Any:
        ctx.emit(bundle.batch.columns, output="dera")


@pytest.mark.parametrize(
    ("operator", "message"),
    [
        (
            Emitting("a", output="dera", declared={"dear": WORDS, "odd": BIDS}),
            "no side output 'dera': it has",
        ),
        (Emitting("a", output="dera", declared={"dear": WORDS, "odd": BIDS}), "it has 'dear', 'odd'"),
        (Emitting("a", output="late", declared={}), "it has none"),
        (
            Emitting("a", 1, output="dear", declared={"dear": WORDS}),
            "side output 'dear': emit() got 2 values for a row of 1 columns: word",
        ),
        (Emitting(1.5, output="dear", declared={"dear": WORDS}), "for column 'word', 1.5"),
        (EmittingBundles(), "it has 'dear', 'cheap'"),
    ],
)
def test_rows_that_cannot_be_put_out(operator: Operator, message: str, async_enabled: bool) -> None:
    with OperatorHarness(operator, BIDS, ["item"], async_enabled=async_enabled) as harness:
        harness.push([("pen", 1)])
        with pytest.raises(AsyncStateError) as raised:
            harness.end_batch()
        assert message in str(raised.value)


def test_the_output_of_late_rows_is_not_the_operators(async_enabled: bool) -> None:
    class Sharing(RecordsInOrder):
        def process(self, row: Row, ctx: RecordContext) -> None:
            ctx.emit(*row, output="late")

    with OperatorHarness(
        Sharing(), TIMED, ["item"], event_time="at", order_by="at", async_enabled=async_enabled
    ) as harness:
        harness.push([("pen", 1, 10)])
        harness.advance_watermark(10)
        with pytest.raises(OperatorError, match="Only the framework emits"):
            harness.end_batch()


def test_late_outputs_that_cannot_be() -> None:
    def message(operator: Operator, **settings: Any) -> str:
        with pytest.raises(SchemaError) as raised:
            OperatorHarness(operator, TIMED, ["item"], event_time="at", **settings)
        return str(raised.value)

    assert "it is not ordered by event time. Give it order_by (" in message(RecordsInOrder())
    undeclared, other = InOrder(), InOrder()
    undeclared.late, other.schema = "lte", WORDS
    assert "no side output 'lte': it has 'late'" in message(undeclared)
    assert "gets the late rows of input 0: declare it with the input's schema" in message(other)


def test_a_harness_knows_the_side_outputs() -> None:
    with OperatorHarness(Sorted(), BIDS, ["item"]) as harness:
        assert harness.output_schema == COUNTS
        with pytest.raises(SchemaError, match="it has 'dear', 'odd'"):
            harness.side_output("late")
