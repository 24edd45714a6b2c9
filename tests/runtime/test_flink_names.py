"""Flink's names lead to errors that say what the thing is called here."""

from __future__ import annotations

from typing import Any

import pytest

from asyncstate import RecordContext, RecordOperator, Row
from asyncstate.errors import OperatorError
from asyncstate.functions import KeyedProcessFunction
from asyncstate.testing import OperatorHarness


class Using(RecordOperator):
    def __init__(self, use: Any, opening: bool = False) -> None:
        self.use = use
        self.opening = opening

    def bind(self, inputs: Any) -> str:
        return "n long"

    def open(self, context: Any) -> None:
        if self.opening:
            self.use(context)

    def process(self, row: Row, ctx: RecordContext) -> None:
        self.use(ctx)

    def on_timer(self, timer: Any, ctx: RecordContext) -> None:
        pass


@pytest.mark.parametrize(
    ("use", "text"),
    [
        (lambda ctx: ctx.timer_service(), r"ctx has no 'timer_service'; use ctx\.timers"),
        (lambda ctx: ctx.collect(1), r"ctx has no 'collect'; use ctx\.emit"),
        (lambda ctx: ctx.get_current_key(), r"use ctx\.key"),
        (
            lambda ctx: ctx.timers.register_event_time_timer(1),
            r"ctx\.timers has no .* use ctx\.timers\.register_ev",
        ),
        (lambda ctx: ctx.emitt(1), r"ctx has no 'emitt'\."),
    ],
)
@pytest.mark.parametrize("async_enabled", [False, True])
def test_contexts(use: Any, text: str, async_enabled: bool) -> None:
    with OperatorHarness(Using(use), "n long", "n", async_enabled=async_enabled) as harness:
        harness.push([(1,)])
        with pytest.raises(OperatorError, match=f"AttributeError: .*{text}"):
            harness.end_batch()


def test_open() -> None:
    with pytest.raises(AttributeError, match=r"open\(\) has no 'get_map_state'; use context\.get_state"):
        OperatorHarness(Using(lambda context: context.get_map_state(1), opening=True), "n long", "n")


@pytest.mark.parametrize("base", [RecordOperator, KeyedProcessFunction])
def test_classes(base: Any) -> None:
    class OfFlink(base):  # type: ignore[misc]
        def process_element(self, value: Any, ctx: Any) -> None:
            pass

    with pytest.raises(TypeError, match="abstract") as raised:
        OfFlink()
    assert raised.value.__notes__ == [
        "OfFlink.process_element is Flink's name; here the method is process(row, ctx)"
    ]
