"""Rows for which user code raises: in the side output with their error, and nothing of them anywhere else."""

from __future__ import annotations

import operator as op
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstate import (
    KeyedProcessFunction,
    ListStateDescriptor,
    MapFunction,
    MapStateDescriptor,
    OutputSpec,
    RecordOperator,
    ReducingStateDescriptor,
    ValueStateDescriptor,
    combine_all,
)
from asyncstate.errors import OperatorError, SchemaError
from asyncstate.execution.failed_rows import _READS
from asyncstate.state import AggregatingState, ListState, MapState, ReducingState, ValueState
from asyncstate.testing import OperatorHarness
from operators import KeyedFilter, KeyedFlatMap, KeyedMap, KeyedProcess, KeyedReduce

ROWS = pa.schema([("k", pa.string()), ("v", pa.int64())])
TOTALS = pa.schema([("k", pa.string()), ("total", pa.int64())])
NO_INT = "unsupported operand type(s) for +=: 'int' and 'NoneType'"


async def echo(value: Any) -> Any:
    """A call that always waits, so that its record is in flight in async mode."""
    if value == -1:
        raise ConnectionError("gone")
    return value


class Total(MapFunction):
    """The total of each key, in one of the ways in which a function can be written."""

    def __init__(self, way: str) -> None:
        self.way = way

    def open(self, context: Any) -> None:
        self.total = context.get_state(ValueStateDescriptor("total", pa.int64(), default=0))

    def map(self, row: Any) -> Any:
        def add(total: int) -> tuple[str, int]:
            total += row.v
            self.total.update(total)
            return row.k, total

        if self.way == "plain":
            return add(self.total.value())
        if self.way == "future":
            return self.total.async_value().then_apply(add)
        return self.later(add)

    async def later(self, add: Callable[[int], Any]) -> Any:
        return add(await self.total.async_value())


GIVEN = [("a", 1), ("b", 2), ("a", None), ("c", None), ("a", 3), ("b", None), ("b", 4)]
FAILED = [("+I", key, None, "TypeError", NO_INT) for key in ("a", "c", "b")]


@pytest.mark.parametrize("way", ["plain", "future", "coroutine"])
def test_failed_rows_go_aside_and_leave_nothing(async_enabled: bool, way: str) -> None:
    mapped = KeyedMap(Total(way), TOTALS, errors="output")
    with OperatorHarness(mapped, ROWS, ["k"], async_enabled=async_enabled, changelog=False) as harness:
        harness.push(GIVEN)
        assert harness.end_batch() == [("+I", "a", 1), ("+I", "b", 2), ("+I", "a", 4), ("+I", "b", 6)]
        assert harness.side_output("errors") == FAILED
        assert harness.statistics()["counter.rows_failed"] == 3
        harness.push([("c", 7), ("a", 1)])
        assert harness.end_batch() == [("+I", "c", 7), ("+I", "a", 5)]
        assert harness.side_output("errors") == []


def test_without_errors_the_micro_batch_fails(async_enabled: bool) -> None:
    with OperatorHarness(
        KeyedMap(Total("plain"), TOTALS), ROWS, ["k"], async_enabled=async_enabled, changelog=False
    ) as harness:
        harness.push(GIVEN)
        with pytest.raises(OperatorError, match=r"key \('a',\): TypeError: unsupported"):
            harness.end_batch()


class Emits(KeyedProcessFunction):
    """Emits rows before and after a step that fails for some values, in chains of every form."""

    def open(self, context: Any) -> None:
        self.seen = context.get_state(ListStateDescriptor("seen", pa.int64()))

    def process(self, row: Any, ctx: Any) -> Any:
        ctx.emit(row.k, row.v)

        def checked(value: Any) -> Any:
            ctx.emit(row.k, value + 100)
            if value % 5 == 0:
                raise ValueError(f"not {value}")
            return value

        def kept(value: int) -> None:
            self.seen.add(value)
            ctx.emit(row.k, value + 200)

        calls = [ctx.call(echo, row.v).then_apply(checked), self.seen.async_get()]
        future = combine_all(calls).then_accept(lambda found: kept(found[0]))
        return future if row.v % 2 else None  # what is not returned ends before the row does, too


def emitted(value: int) -> list[tuple[str, str, int]]:
    return [("+I", "a", value), ("+I", "a", value + 100), ("+I", "a", value + 200)]


def test_what_a_failed_row_has_emitted_is_dropped(async_enabled: bool) -> None:
    process = KeyedProcess(Emits(), TOTALS, errors="output")
    with OperatorHarness(process, ROWS, ["k"], async_enabled=async_enabled, changelog=False) as harness:
        harness.push([("a", value) for value in (1, 5, 2, -1, 10, 3)])
        assert harness.end_batch() == [*emitted(1), *emitted(2), *emitted(3)]
        assert harness.side_output("errors") == [
            ("+I", "a", 5, "ValueError", "not 5"),
            ("+I", "a", -1, "ConnectionError", "gone"),
            ("+I", "a", 10, "ValueError", "not 10"),
        ]


VALUES = st.lists(st.tuples(st.sampled_from("abc"), st.integers(-1, 12)), max_size=12)


@pytest.mark.long
@given(VALUES, VALUES)
def test_all_is_as_if_failed_rows_had_not_come(first: list[Any], second: list[Any]) -> None:
    """The same output and state as of the other rows alone, in both modes."""
    for async_enabled in (False, True):
        seen = []
        for rows in (
            [first, second],
            [[row for row in part if row[1] % 5 and row[1] >= 0] for part in (first, second)],
        ):
            process = KeyedProcess(Emits(), TOTALS, errors="output")
            with OperatorHarness(
                process, ROWS, ["k"], async_enabled=async_enabled, changelog=False
            ) as harness:
                out = []
                for part in rows:
                    harness.push(part)
                    out.append(harness.end_batch())
                seen.append((out, harness.state_entries()))
        assert seen[0] == seen[1]


# -- what cannot be undone ----------------------------------------------------------------------------------------


def _add(first: int, second: int) -> int:
    return first + second


CHANGES: dict[str, tuple[Any, Callable[[Any, Any], Any]]] = {
    "value": (ValueStateDescriptor("s", pa.int64()), lambda state, _: state.update(1)),
    "value, async": (ValueStateDescriptor("s", pa.int64()), lambda state, _: state.async_clear()),
    "list": (ListStateDescriptor("s", pa.int64()), lambda state, _: state.async_add(1)),
    "map": (MapStateDescriptor("s", pa.int64(), pa.int64()), lambda state, _: state.put(1, 1)),
    "map item": (
        MapStateDescriptor("s", pa.int64(), pa.int64()),
        lambda state, _: op.setitem(state, 1, 1),
    ),
    "reducing": (ReducingStateDescriptor("s", _add, pa.int64()), lambda state, _: state.add(1)),
    "namespace": (
        ValueStateDescriptor("s", pa.int64(), namespaced=True),
        lambda state, _: state.at(7).update(1),
    ),
    "timer": (
        ValueStateDescriptor("s", pa.int64()),
        lambda _, ctx: ctx.timers.register_processing_time(10**18),
    ),
}


class ChangesFirst(KeyedProcessFunction):
    def __init__(self, name: str, *, waits: bool) -> None:
        self.name, self.waits = name, waits

    def open(self, context: Any) -> None:
        self.state = context.get_state(CHANGES[self.name][0])

    async def process(self, row: Any, ctx: Any) -> None:
        if row.v < 0:
            raise ValueError("before")
        CHANGES[self.name][1](self.state, ctx)
        if self.waits:
            await ctx.call(echo, 1)
        if row.v == 0:
            raise ValueError("after")
        ctx.emit(row.k, row.v)

    def on_timer(self, timer: Any, ctx: Any) -> None:
        raise AssertionError("no timer is due")


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("name", CHANGES)
def test_a_row_that_has_changed_something_fails_the_micro_batch(
    async_enabled: bool, name: str, waits: bool
) -> None:
    process = KeyedProcess(ChangesFirst(name, waits=waits), TOTALS, errors="output")
    with OperatorHarness(process, ROWS, ["k"], async_enabled=async_enabled, changelog=False) as harness:
        harness.push([("a", 1), ("a", -1), ("a", 2)])
        assert harness.end_batch() == [("+I", "a", 1), ("+I", "a", 2)]
        harness.push([("a", 0)])
        with pytest.raises(
            OperatorError,
            match=r"ValueError: after\. The row cannot go to the side output 'errors', because it",
        ):
            harness.end_batch()


MERGED = {"merge_namespaces", "async_merge_namespaces"}
WRITES = {
    ValueState: {"update", "async_update", "clear", "async_clear"},
    ListState: {
        *MERGED,
        *("add", "async_add", "add_all", "async_add_all"),
        *("update", "async_update", "clear", "async_clear"),
    },
    MapState: {
        *("put", "async_put", "put_all", "async_put_all"),
        *("remove", "async_remove", "clear", "async_clear"),
    },
    ReducingState: {*MERGED, "add", "async_add", "clear", "async_clear"},
    AggregatingState: {*MERGED, "add", "async_add", "clear", "async_clear"},
}


def test_each_method_of_a_state_is_known_to_read_or_to_change() -> None:
    for kind, writes in WRITES.items():
        names = {name for name in dir(kind) if not name.startswith("_")}
        assert names - _READS - {"sweep"} == writes, kind  # which runs after all rows


def test_errors_of_the_program_fail_the_micro_batch(async_enabled: bool) -> None:
    for function, message in (
        (lambda row: (row.k, row.v, 1), "3 values"),
        (lambda row: 1 / 0, None),
    ):
        mapped = KeyedMap(function, TOTALS, errors="output")
        with OperatorHarness(mapped, ROWS, ["k"], async_enabled=async_enabled, changelog=False) as harness:
            harness.push([("a", 1)])
            if message is None:
                assert harness.end_batch() == []
                assert harness.side_output("errors") == [
                    ("+I", "a", 1, "ZeroDivisionError", "division by zero")
                ]
                continue
            with pytest.raises(OperatorError, match=message):
                harness.end_batch()


class Late(KeyedProcessFunction):
    def process(self, row: Any, ctx: Any) -> None:
        ctx.timers.register_event_time(ctx.timestamp + 10)
        ctx.emit(row.k, row.v)

    def on_timer(self, timer: Any, ctx: Any) -> None:
        raise ValueError("in the timer")


TIMED = pa.schema([("k", pa.string()), ("v", pa.int64()), ("t", pa.timestamp("us", "UTC"))])


def test_a_failing_timer_fails_the_micro_batch(async_enabled: bool) -> None:
    process = KeyedProcess(Late(), TOTALS, errors="output")
    with OperatorHarness(
        process, TIMED, ["k"], async_enabled=async_enabled, changelog=False, event_time="t"
    ) as harness:
        harness.push([("a", 1, 5)])
        harness.end_batch()
        with pytest.raises(OperatorError, match="ValueError: in the timer"):
            harness.finish()


class InOrder(KeyedProcessFunction):
    def open(self, context: Any) -> None:
        self.sum = context.get_state(ReducingStateDescriptor("sum", _add, pa.int64()))

    async def process(self, row: Any, ctx: Any) -> None:
        before = await self.sum.async_get() or 0
        ctx.emit(row.k, before + row.v)
        self.sum.add(row.v)


def test_rows_in_order_of_time_too(async_enabled: bool) -> None:
    process = KeyedProcess(InOrder(), TOTALS, errors="output")
    with OperatorHarness(
        process, TIMED, ["k"], async_enabled=async_enabled, changelog=False, event_time="t", order_by=["t"]
    ) as harness:
        harness.push([("a", 4, 30), ("a", None, 20), ("a", 1, 10)])
        harness.end_batch()
        assert harness.finish() == [("+I", "a", 1), ("+I", "a", 5)]
        assert [row[1:3] for row in harness.side_output("errors")] == [("a", None)]


# -- operators ----------------------------------------------------------------------------------------------------


def test_which_functions_can(async_enabled: bool) -> None:
    def odd(row: Any) -> bool:
        return bool(row.v % 2)

    def repeated(row: Any) -> Any:
        return [(row.k, n) for n in range(row.v)]

    def larger(first: Any, second: Any) -> Any:
        return first if first.v > second.v else second

    operators: list[tuple[Any, list[Any]]] = [
        (KeyedFilter(odd, errors="output"), [("+I", "a", 1)]),
        (KeyedFlatMap(repeated, TOTALS, errors="output"), [("+I", "a", 0), ("+I", "a", 0), ("+I", "a", 1)]),
        (KeyedReduce(larger, errors="output"), [("+I", "a", 1), ("+I", "a", 2)]),
    ]
    for operator, expected in operators:
        with OperatorHarness(operator, ROWS, ["k"], async_enabled=async_enabled, changelog=False) as harness:
            harness.push([("a", 1), ("a", None), ("a", 2)])
            assert harness.end_batch() == expected
            assert [row[:3] for row in harness.side_output("errors")] == [("+I", "a", None)]


class Own(RecordOperator):
    """An operator with an output of its own beside that of errors."""

    errors = "output"

    def bind(self, inputs: Any) -> OutputSpec:
        return OutputSpec(TOTALS, {"small": "v long"})

    def required_columns(self, inputs: Any) -> Any:
        return [["v"]]

    def process(self, row: Any, ctx: Any) -> None:
        ctx.emit(row.v, output="small")
        ctx.emit(ctx.key[0], 10 // row.v)


def test_an_operator_of_your_own(async_enabled: bool) -> None:
    with OperatorHarness(
        Own(), "k string, v long, more string", ["k"], async_enabled=async_enabled, changelog=False
    ) as harness:
        harness.push([("a", 5, "x"), ("a", 0, "y")])
        assert harness.end_batch() == [("+I", "a", 2)]
        assert harness.side_output("small") == [("+I", 5)]
        failed = ("+I", "a", 0, "y", "ZeroDivisionError", "integer division or modulo by zero")
        assert harness.side_output("errors") == [failed]


def test_what_cannot_send_errors_is_refused_by_name() -> None:
    class TwoInputs(Own):
        num_inputs = 2

    class Stateless(Own):
        stateless = True

        def bind(self, inputs: Any) -> OutputSpec:
            return OutputSpec(TOTALS)

    class OwnErrors(Own):
        def bind(self, inputs: Any) -> OutputSpec:
            return OutputSpec(TOTALS, {"errors": "v long"})

    class Wrong(Own):
        errors = "drop"  # type: ignore[assignment]

    cases: list[tuple[Any, Any, Any, bool, str]] = [
        (TwoInputs(), [ROWS, ROWS], [["k"], ["k"]], False, "its 2 inputs have different columns"),
        (Stateless(), ROWS, None, False, "without state there are no side outputs"),
        (OwnErrors(), ROWS, ["k"], False, "it has a side output 'errors' of its own; rename that"),
        (Own(), ROWS, ["k"], True, "is a changelog, whose rows need each other"),
        (Wrong(), ROWS, ["k"], False, "errors is 'drop'; choose 'fail' or 'output'"),
        (Own(), "k string, v long, error_type string", ["k"], False, "the input has a column 'error_type'"),
    ]
    for operator, inputs, key, changelog, message in cases:
        with pytest.raises(SchemaError, match=message):
            OperatorHarness(operator, inputs, key, changelog=changelog)
    with pytest.raises(SchemaError, match="errors is 'ignore'; choose 'fail' or 'output'"):
        KeyedMap(len, TOTALS, errors="ignore")  # type: ignore[arg-type]
