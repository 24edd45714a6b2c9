"""Functions and states that are declared wrongly are refused in plain words, before any row is read."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from asyncstate import (
    AsyncStateError,
    ListState,
    MapState,
    RecordOperator,
    ReducingState,
    ValueState,
    ValueStateDescriptor,
)
from asyncstate.errors import OperatorError, SchemaError, StateDeclarationError
from asyncstate.functions import AggregateFunction, BundledAggregateFunction
from asyncstate.operators import GroupAggregate, udaf
from asyncstate.testing import OperatorHarness

ROWS = pa.schema([("k", pa.int64()), ("v", pa.int64())])


class Sum(AggregateFunction):
    def create_accumulator(self) -> Any:
        return [0]

    def accumulate(self, accumulator: Any, value: Any) -> None:  # type: ignore[override]
        accumulator[0] += value

    def get_value(self, accumulator: Any) -> Any:
        return accumulator[0]


def harness(operator: Any, async_enabled: bool = True) -> OperatorHarness:
    return OperatorHarness(operator, ROWS, ["k"], changelog=False, async_enabled=async_enabled)


@pytest.mark.parametrize("argument", ["result_type", "accumulator_type"])
@pytest.mark.parametrize("given", [7, dict, "bigin", "s bigin"])
def test_what_is_no_type_is_refused(argument: str, given: Any) -> None:
    types: dict[str, Any] = {"result_type": "bigint", "accumulator_type": "s bigint", argument: given}
    with pytest.raises(SchemaError, match=f"udaf: {argument}"):
        udaf(Sum, **types)


@pytest.mark.parametrize(
    "accumulator", ["s bigint", "s bigint not null", "struct<s: bigint>", "array<bigint>"]
)
def test_an_accumulator_may_be_the_text_of_a_schema_or_type(async_enabled: bool, accumulator: str) -> None:
    made = udaf(Sum, result_type="bigint", accumulator_type=accumulator)
    with harness(GroupAggregate([made("v")]), async_enabled) as opened:
        opened.push([(1, 5), (1, 8)])
        assert opened.end_batch() == [("+I", 1, 13)]


@pytest.mark.parametrize("columns", [(), ("v", "k")])
def test_columns_that_accumulate_does_not_take_are_refused(columns: tuple[str, ...]) -> None:
    made = udaf(Sum, result_type="bigint", accumulator_type="s bigint")
    with pytest.raises(
        SchemaError, match=rf"over {len(columns)} columns .* Sum\.accumulate takes accumulate"
    ):
        harness(GroupAggregate([made(*columns)]))


@pytest.mark.parametrize("result", [[7], 7, None, "ab"])
def test_what_is_no_result_of_segments_is_named(async_enabled: bool, result: Any) -> None:
    class Bundled(BundledAggregateFunction):
        def bundled_accumulate_retract(self, segments: Any) -> Any:
            return result

    made = udaf(Bundled, result_type="bigint", accumulator_type="s bigint")
    with harness(GroupAggregate([made("v")]), async_enabled) as opened:
        opened.push([(1, 5)])
        with pytest.raises(
            OperatorError, match="bundled_accumulate_retract returned .*; return a SegmentsApplied"
        ):
            opened.end_batch()


@pytest.mark.parametrize("state", [ValueState, ListState, MapState, ReducingState])
def test_a_state_is_not_made_by_hand(state: Any) -> None:
    with pytest.raises(StateDeclarationError, match=rf"get_state\({state.__name__}Descriptor\('x'"):
        state("x", int)


class Does(RecordOperator):
    def __init__(self, work: Any) -> None:
        self.work = work

    def bind(self, inputs: Any) -> str:
        return "n bigint"

    def open(self, context: Any) -> None:
        self.state = context.get_state(ValueStateDescriptor("n", int))

    def process(self, row: Any, ctx: Any) -> None:
        self.work(self.state, ctx)

    def on_timer(self, timer: Any, ctx: Any) -> None:
        """Never due here."""


@pytest.mark.parametrize(
    ("work", "text"),
    [
        (
            lambda state, ctx: ctx.emit(state.async_value() + 1),
            "is the future of a value, not the value; await it",
        ),
        (
            lambda state, ctx: ctx.emit(1 - state.async_value()),
            "is the future of a value, not the value; await it",
        ),
        (
            lambda state, ctx: ctx.emit(state.async_value() > 1),
            "is the future of a value, not the value; await it",
        ),
        (
            lambda state, ctx: ctx.emit(state.async_value()[0]),
            "is the future of a value, not the value; await it",
        ),
        (
            lambda state, ctx: ctx.emit(state.async_value()),
            r"key \(1,\).*column 'n'.*not a value yet: await it",
        ),
        (
            lambda state, ctx: ctx.timers.register_event_time(5, name=7),
            ("the name 7 is not a string; give a str"),
        ),
        (lambda state, ctx: ctx.timers.delete_event_time(name=7), "the name 7 is not a string; give a str"),
        (lambda state, ctx: ctx.timers.register_event_time(5, name="\ud800"), "cannot be written as UTF-8"),
    ],
)
def test_futures_and_names_that_are_none_are_named(async_enabled: bool, work: Any, text: str) -> None:
    with harness(Does(work), async_enabled) as opened:
        opened.push([(1, 5)])
        with pytest.raises(AsyncStateError, match=text):
            opened.end_batch()
