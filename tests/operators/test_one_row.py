"""DynamicFilter and OneRowJoin: what a change of the one row emits, and what is refused."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from asyncstate.errors import OperatorError, SchemaError, StateAccessError
from asyncstate.operator import Bundle, BundleContext, BundleOperator, InputSpec, OperatorContext
from asyncstate.state.broadcast_state import BroadcastStateDescriptor
from asyncstate.testing import OperatorHarness, net
from operators import DynamicFilter, OneRowJoin

PRODUCTS = pa.schema([("product", pa.string()), ("total", pa.int64())])
LIMIT = pa.schema([("limit", pa.int64())])
ROWS = [("a", 1), ("b", 5), ("c", 9), ("d", None)]


def harness(operator: Any, **more: Any) -> OperatorHarness:
    return OperatorHarness(operator, [PRODUCTS, LIMIT], [["product"], None], **more)


@pytest.mark.parametrize("parallelism", [1, 3])
def test_only_rows_between_the_bounds_change(async_enabled: bool, parallelism: int) -> None:
    made = harness(DynamicFilter("total", ">", "limit"), async_enabled=async_enabled, parallelism=parallelism)
    with made as first:
        first.push(ROWS, input=0)
        assert first.end_batch() == []
        first.push([(4,)], input=1)
        assert sorted(first.end_batch()) == [("+I", "b", 5), ("+I", "c", 9)]
        snapshot = first.snapshot()
    with first.restore(snapshot, parallelism=2) as second:
        second.push([(4,), (8,)], kinds=["-U", "+U"], input=1)
        assert second.end_batch() == [("-D", "b", 5)]
        second.push([(8,), (0,)], kinds=["-U", "+U"], input=1)
        second.push([("e", 0), ("f", 3)], input=0)
        assert sorted(second.end_batch()) == [("+I", "a", 1), ("+I", "b", 5), ("+I", "f", 3)]
        second.push([("c", 9), ("c", 0)], kinds=["-U", "+U"], input=0)
        assert second.end_batch() == [("-D", "c", 9)]
        second.push([(0,)], kinds=["-D"], input=1)
        assert sorted(second.end_batch()) == [("-D", "a", 1), ("-D", "b", 5), ("-D", "f", 3)]


def test_rows_outside_of_the_bounds_are_not_read(async_enabled: bool) -> None:
    rows = [(f"p{number}", number) for number in range(1_000)]
    with harness(DynamicFilter("total", "<=", "limit"), async_enabled=async_enabled) as made:
        made.push(rows, input=0)
        made.push([(500,)], input=1)
        assert len(made.end_batch()) == 501
        made.push([(500,), (502,)], kinds=["-U", "+U"], input=1)
        assert sorted(made.end_batch()) == [("+I", "p501", 501), ("+I", "p502", 502)]


TIMES = pa.schema([("product", pa.string()), ("at", pa.timestamp("us", "UTC"))])
UNTIL = pa.schema([("limit", pa.timestamp("us", "UTC"))])
MINUTE = 60_000_000


def clocked(comparison: Any, falls_max: Any, **more: Any) -> OperatorHarness:
    operator = DynamicFilter("at", comparison, "limit", falls_max)
    return OperatorHarness(operator, [TIMES, UNTIL], [["product"], None], **more)


def products(rows: Any) -> list[tuple[str, str]]:
    return sorted((kind, product) for kind, product, _ in rows)


@pytest.mark.parametrize("parallelism", [1, 3])
def test_rows_that_a_rising_bound_has_passed_are_gone_for_good(async_enabled: bool, parallelism: int) -> None:
    with clocked(">", "1 minute", async_enabled=async_enabled, parallelism=parallelism) as first:
        first.push([(f"p{minute}", minute * MINUTE) for minute in range(10)], input=0)
        first.push([(0,)], input=1)
        assert len(first.end_batch()) == 9
        kept = len(first.state_entries())
        first.push([(0,), (5 * MINUTE,)], kinds=["-U", "+U"], input=1)
        first.push([("q3", 3 * MINUTE), ("q4", 4 * MINUTE), ("q6", 6 * MINUTE)], input=0)
        gone = [("-D", f"p{minute}") for minute in range(1, 6)]
        assert products(first.end_batch()) == [("+I", "q6"), *gone]
        assert len(first.state_entries()) == kept - 4 + 2  # p0 to p3 are not kept any more, q4 and q6 are
        snapshot = first.snapshot()
    with first.restore(snapshot, parallelism=2, async_enabled=not async_enabled) as second:
        second.push([("p2", 2 * MINUTE), ("p7", 7 * MINUTE)], kind="-D", input=0)
        second.push([(5 * MINUTE,), (9 * MINUTE // 2,)], kinds=["-U", "+U"], input=1)
        assert products(second.end_batch()) == [("+I", "p5"), ("-D", "p7")]
        assert second.statistics().get("counter.retractions_without_state", 0) == 0
        second.push([(9 * MINUTE // 2,), (4 * MINUTE - 1,)], kinds=["-U", "+U"], input=1)
        with pytest.raises(OperatorError, match="'limit' has fallen by more than falls_max, '1 minute'"):
            second.end_batch()


def test_rows_that_a_rising_bound_has_passed_pass_for_good(async_enabled: bool) -> None:
    with clocked("<=", 0, async_enabled=async_enabled) as made:
        made.push([(f"p{minute}", minute * MINUTE) for minute in range(10)], input=0)
        made.push([(0,)], input=1)
        assert products(made.end_batch()) == [("+I", "p0")]
        kept = len(made.state_entries())
        made.push([(0,), (5 * MINUTE,)], kinds=["-U", "+U"], input=1)
        made.push([("q3", 3 * MINUTE), ("q6", 6 * MINUTE)], input=0)
        come = [("+I", f"p{minute}") for minute in range(1, 6)]
        assert products(made.end_batch()) == [*come, ("+I", "q3")]
        assert len(made.state_entries()) == kept - 5 + 1
        made.push([("q3", 3 * MINUTE), ("p5", 5 * MINUTE), ("p7", 7 * MINUTE)], kind="-D", input=0)
        assert products(made.end_batch()) == [("-D", "p5"), ("-D", "q3")]
        assert made.statistics().get("counter.retractions_without_state", 0) == 0
        made.push([(5 * MINUTE,)], kinds=["-D"], input=1)
        with pytest.raises(OperatorError, match="falls_max, 0, or is gone"):
            made.end_batch()


def test_dates_fall_by_whole_days(async_enabled: bool) -> None:
    days = pa.schema([("product", pa.string()), ("at", pa.date32())])
    operator = DynamicFilter("at", ">=", "limit", "1 hour")
    inputs = [days, pa.schema([("limit", pa.date32())])]
    with OperatorHarness(operator, inputs, [["product"], None], async_enabled=async_enabled) as made:
        made.push([("a", 1), ("b", 2), ("c", 3)], input=0)
        made.push([(3,)], input=1)
        assert products(made.end_batch()) == [("+I", "c")]
        made.push([(3,), (2,)], kinds=["-U", "+U"], input=1)
        assert products(made.end_batch()) == [("+I", "b")]
        made.push([(2,), (1,)], kinds=["-U", "+U"], input=1)
        with pytest.raises(OperatorError, match="has fallen by more than falls_max"):
            made.end_batch()


def test_a_new_row_replaces_the_columns_of_the_old_one(async_enabled: bool) -> None:
    with harness(OneRowJoin(), async_enabled=async_enabled) as made:
        made.push([("a", 1)], input=0)
        assert made.end_batch() == [("+I", "a", 1, None)]
        made.push([(4,)], input=1)
        made.push([("b", 2)], input=0)
        assert made.end_batch() == [("-D", "a", 1, None), ("+I", "a", 1, 4), ("+I", "b", 2, 4)]


def test_several_rows_are_an_error(async_enabled: bool) -> None:
    for operator in (DynamicFilter("total", ">", "limit"), OneRowJoin()):
        with harness(operator, async_enabled=async_enabled) as made:
            made.push([(4,)], input=1)
            made.end_batch()
            made.push([(4,)], input=1)
            with pytest.raises(OperatorError, match="the second input has 2 rows, but may have one"):
                made.end_batch()


def test_retractions_of_nothing_are_counted(async_enabled: bool) -> None:
    with harness(OneRowJoin(), async_enabled=async_enabled) as made:
        made.push([("a", 1)], kinds=["-D"], input=0)
        assert made.end_batch() == []
        assert made.statistics()["counter.retractions_without_state"] == 1


@pytest.mark.parametrize("operator", [DynamicFilter("total", ">", "limit"), OneRowJoin()])
@pytest.mark.parametrize("parallelism", [1, 3])
def test_retractions_of_another_one_row_are_counted_once(
    async_enabled: bool, operator: Any, parallelism: int
) -> None:
    """Though every partition gets them."""
    with harness(operator, async_enabled=async_enabled, parallelism=parallelism) as made:
        for rows, kinds in (([(4,), (5,)], ["+I", "-D"]), ([(4,), (4,)], ["-D", "-D"]), ([(4,)], ["-U"])):
            made.push(rows, kinds=kinds, input=1)
            made.end_batch()
            assert made.statistics()["counter.retractions_without_state"] == 1
    options = {"async-state.on-missing-row": "fail"}
    with harness(operator, async_enabled=async_enabled, parallelism=parallelism, options=options) as made:
        made.push([(4,)], kinds=["-D"], input=1)
        with pytest.raises(
            OperatorError, match=r"a retraction finds no matching row, for example -D \(limit=4\)"
        ):
            made.end_batch()


@pytest.mark.parametrize("operator", [DynamicFilter("total", ">", "limit"), OneRowJoin()])
@pytest.mark.parametrize("apart", [False, True])
def test_an_equal_row_of_another_position_replaces_the_old_one(
    async_enabled: bool, operator: Any, apart: bool
) -> None:
    """Whether both halves of the update are in one micro-batch or in two."""
    logged = PRODUCTS.append(pa.field("lsn", pa.int64()))
    with OperatorHarness(
        operator,
        [logged, LIMIT],
        [["product"], None],
        sequence=["lsn", None],
        async_enabled=async_enabled,
    ) as made:
        made.push([(4,)], input=1)
        made.push([("a", 5, 1)])
        made.end_batch()
        made.push([("a", 5, 2)], kind="-U")
        if apart:
            made.end_batch()
        made.push([("a", 5, 2)], kind="+U")
        made.end_batch()
        tail = (4,) if isinstance(operator, OneRowJoin) else ()
        assert net(made.output) == {("a", 5, 2, *tail): 1}


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(SchemaError, match="comparison is '!='"):
        DynamicFilter("total", "!=", "limit")  # type: ignore[arg-type]
    with pytest.raises(SchemaError, match="falls_max is '1 day' and comparison '='; give a duration"):
        DynamicFilter("total", "=", "limit", "1 day")
    with pytest.raises(
        SchemaError, match="'total' of .* is int64, and falls_max is for timestamps and dates"
    ):
        harness(DynamicFilter("total", ">", "limit", "1 day"))
    with pytest.raises(SchemaError, match="kind is 'full'"):
        OneRowJoin("full")  # type: ignore[arg-type]
    with pytest.raises(SchemaError, match="'product' of .* is string but 'limit' of .* is int64; cast one"):
        harness(DynamicFilter("product", ">", "limit"))
    with pytest.raises(SchemaError, match="has no column 'nothing'"):
        harness(DynamicFilter("nothing", ">", "limit"))


class _Late(BundleOperator):
    """Writes broadcast state where it must not."""

    num_inputs = 2
    broadcast_input = 1

    def bind(self, inputs: Any) -> pa.Schema:
        spec: InputSpec = inputs[0]
        return spec.schema

    def open(self, context: OperatorContext) -> None:
        self._state = context.get_state(BroadcastStateDescriptor("kept", pa.int64(), pa.int64()))

    def process_broadcast(self, rows: Bundle, ctx: BundleContext) -> Any:
        self._state.put(0, rows.num_rows)
        return None

    def process_bundle(self, bundle: Bundle, ctx: BundleContext) -> Any:
        self._state.put(0, 1)


class _Without(_Late):
    process_broadcast = BundleOperator.process_broadcast


def test_bundle_operators_write_broadcast_state_where_it_is_allowed(async_enabled: bool) -> None:
    with harness(_Late(), async_enabled=async_enabled) as made:
        made.push([(4,)], input=1)
        made.end_batch()
        made.push([("a", 1)], input=0)
        with pytest.raises((OperatorError, StateAccessError), match="in process_broadcast"):
            made.end_batch()
    with pytest.raises(SchemaError, match="has a broadcast input but no process_broadcast method"):
        harness(_Without())
