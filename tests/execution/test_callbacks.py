"""An exception of a callback or a timer tells of which state's answer, which step and which timer, in every mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from asyncstate import (
    ListStateDescriptor,
    MapStateDescriptor,
    RecordContext,
    RecordOperator,
    Row,
    Timer,
    ValueStateDescriptor,
    ValueView,
)
from asyncstate.errors import OperatorError
from asyncstate.futures import combine_all, completed_future
from asyncstate.testing import OperatorHarness, Tuning
from tests.operators.function_runs import slow_reads

ROWS = pa.schema([("k", pa.string()), ("v", pa.int64()), ("at", pa.timestamp("us"))])
MODES: dict[str, dict[str, Any]] = {
    "sync": {"async_enabled": False},
    "async": {"async_enabled": True},
    "answered later": {
        "async_enabled": True,
        "options": {"async-state.cache-size": "0b"},
        "tuning": Tuning(batch_hot_reads=True),
    },
}


def fail(*_: object) -> Any:
    raise ValueError("mine")


class Chains(RecordOperator):
    """Runs ``chain`` for each row, of the states ``total``, ``seen`` and ``prices``."""

    def __init__(self, chain: Callable[[Any], Any]) -> None:
        self.chain = chain

    def bind(self, inputs: Any) -> pa.Schema:
        return ROWS

    def open(self, context: Any) -> None:
        self.total = context.get_state(ValueStateDescriptor("total", int))
        self.seen = context.get_state(ListStateDescriptor("seen", int))
        self.prices = context.get_state(MapStateDescriptor("prices", str, int))
        self.view = ValueView(self.total)

    def process(self, row: Row, ctx: RecordContext) -> Any:
        return self.chain(self)


def several_lines(op: Any) -> Any:
    future = (
        op.total.async_value()
        .then_apply(lambda value: value)
        .then_apply(fail)
    )  # fmt: skip
    return future


def behind_another(op: Any) -> Any:
    """The state whose answer came last."""
    return op.total.async_value().then_compose(lambda _: op.prices.async_get("a").then_accept(fail))


CHAINS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "then_apply": (
        lambda op: op.total.async_value().then_apply(fail),
        "state 'total', callback of then_apply",
    ),
    "then_accept": (
        lambda op: op.prices.async_get("a").then_accept(fail),
        "state 'prices', callback of then_accept",
    ),
    "then_compose": (
        lambda op: op.total.async_value().then_compose(fail),
        "state 'total', callback of then_compose",
    ),
    "a list": (lambda op: op.seen.async_get().then_accept(fail), "state 'seen', callback of then_accept"),
    "a view": (lambda op: op.view.async_value().then_apply(fail), "state 'total', callback of then_apply"),
    "several lines": (several_lines, "state 'total', callback of then_apply"),
    "behind another": (behind_another, "state 'prices', callback of then_accept"),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CHAINS)
def test_a_callback_names_the_state_and_the_step(name: str, mode: str) -> None:
    chain, place = CHAINS[name]
    if name == "a list" and mode != "sync":
        place = "callback of then_accept"  # pages of a range do not say whose they are
    with slow_reads(), OperatorHarness(Chains(chain), ROWS, ["k"], changelog=False, **MODES[mode]) as harness:
        harness.push([("a", 1, 1)])
        with pytest.raises(OperatorError) as raised:
            harness.end_batch()
    assert str(raised.value).startswith(f"operator 'operator', {place}, key ('a',): ValueError: mine. ")
    assert isinstance(raised.value.__cause__, ValueError)


WITHOUT: dict[str, Callable[[Any], Any]] = {
    "a future of the operator": lambda op: completed_future(1).then_apply(fail),
    "several futures": lambda op: combine_all([completed_future(1)]).then_apply(fail),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", WITHOUT)
def test_a_callback_over_no_state_names_the_step(name: str, mode: str) -> None:
    with OperatorHarness(Chains(WITHOUT[name]), ROWS, ["k"], changelog=False, **MODES[mode]) as harness:
        harness.push([("a", 1, 1)])
        with pytest.raises(
            OperatorError, match=r"operator 'operator', callback of then_apply, key \('a',\): V"
        ):
            harness.end_batch()


@pytest.mark.parametrize("mode", MODES)
def test_code_that_is_no_callback_is_named_as_before(mode: str) -> None:
    async def awaiting(op: Any) -> None:
        await op.total.async_value()
        fail()

    for chain in (fail, awaiting):
        with OperatorHarness(Chains(chain), ROWS, ["k"], changelog=False, **MODES[mode]) as harness:
            harness.push([("a", 1, 1)])
            with pytest.raises(OperatorError, match=r"operator 'operator', key \('a',\): ValueError: mine"):
                harness.end_batch()


@pytest.mark.parametrize("mode", MODES)
def test_a_failure_that_was_recovered_from_is_not_told_of_another(mode: str) -> None:
    def chain(op: Any) -> Any:
        op.prices.async_get("a").then_apply(fail).recover(lambda _: None)
        return op.total.async_value().then_apply(lambda _: fail())

    with OperatorHarness(Chains(chain), ROWS, ["k"], changelog=False, **MODES[mode]) as harness:
        harness.push([("a", 1, 1)])
        with pytest.raises(OperatorError, match="'operator', state 'total', callback of then_apply, key"):
            harness.end_batch()


class Reminder(Chains):
    """Fails in a timer, in a callback or not."""

    def process(self, row: Row, ctx: RecordContext) -> None:
        assert ctx.timestamp is not None
        ctx.timers.register_event_time(ctx.timestamp + 5, name="due" if row.v else None)

    def on_timer(self, timer: Timer, ctx: RecordContext) -> Any:
        return self.chain(self)


@pytest.mark.parametrize("mode", MODES)
def test_a_timer_is_named(mode: str) -> None:
    chains = [(fail, ""), (CHAINS["then_apply"][0], "state 'total', callback of then_apply, ")]
    for chain, place in chains:
        for named, text in ((1, "timer 'due' at 12"), (0, "timer at 12")):
            with OperatorHarness(
                Reminder(chain), ROWS, ["k"], event_time="at", changelog=False, **MODES[mode]
            ) as harness:
                harness.push([("a", named, 7)])
                harness.end_batch()
                harness.advance_watermark(20)
                with pytest.raises(OperatorError) as raised:
                    harness.end_batch()
            assert str(raised.value).startswith(
                f"operator 'operator', {place}key ('a',), {text}: ValueError: mine"
            )
