"""``process`` called by hand, in a coroutine and without; and the fixture of the pytest plugin."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from asyncstate import RecordContext, RecordOperator, Row, RowKind, Timer, ValueStateDescriptor
from asyncstate.changelog import Changelog
from asyncstate.errors import JobError
from asyncstate.operator import OutputSpec
from asyncstate.testing import FakeContext, OperatorHarness


class Chained(RecordOperator):
    def bind(self, inputs: Any) -> OutputSpec:
        return OutputSpec("account string, total long", {"large": "amount long"}, Changelog.retract())

    def open(self, context: Any) -> None:
        self.total = context.get_state(ValueStateDescriptor("total", "bigint", default=0))

    def process(self, row: Row, ctx: RecordContext) -> Any:
        return self.total.async_value().then_accept(
            lambda total: self.emit_results(row, ctx, total + row.amount)
        )

    def emit_results(self, row: Row, ctx: RecordContext, total: int) -> None:
        self.total.update(total)
        ctx.emit(account=ctx.key.account, total=total, kind=ctx.row_kind)
        ctx.timers.register_event_time(total, name="idle")
        if row.amount > 10:
            ctx.emit(row.amount, output="large")

    def on_timer(self, timer: Timer, ctx: RecordContext) -> None:
        self.total.clear()


class Awaited(Chained):
    async def look_up(self, account: str, *, factor: int) -> int:
        return len(account) * factor

    async def process(self, row: Row, ctx: RecordContext) -> None:
        more = await ctx.call(self.look_up, row.account, factor=100)
        self.emit_results(row, ctx, (await self.total.async_value() or 0) + row.amount + more)


def test_process_may_be_called_by_hand() -> None:
    operator = Chained()
    with FakeContext(operator, "account string, amount long", "account") as ctx:
        for row in (("ann", 5), ("bob", 20), ("ann", 7)):
            operator.process(ctx.row(*row, kind=RowKind.UPDATE_AFTER), ctx)
        assert ctx.emitted == [("+U", "ann", 5), ("+U", "bob", 20), ("+U", "ann", 12)]
        assert ctx.aside == {"large": [("+I", 20)]}
        assert operator.total.value() == 12
        operator.on_timer(Timer(12, "idle"), ctx)
        assert operator.total.value() == 0
        assert ctx.timers_set == [(("bob",), Timer(20, "idle")), (("ann",), Timer(12, "idle"))]
        ctx.timers.delete_event_time(name="idle")
        assert ctx.timers_set == [(("bob",), Timer(20, "idle"))]


def test_all_timers_of_a_key_go_together() -> None:
    operator = Chained()
    with FakeContext(operator, "account string, amount long", "account") as ctx:
        for row in (("ann", 5), ("bob", 20), ("ann", 7)):
            operator.process(ctx.row(*row), ctx)
            ctx.timers.register_processing_time(row[1])
        ctx.timers.delete_all()
        assert [key for key, _ in ctx.timers_set] == [("bob",), ("bob",)]


async def test_a_coroutine_may_be_awaited_in_a_test() -> None:
    operator = Awaited()
    with FakeContext(operator, "account string, amount long", "account") as ctx:
        await operator.process(ctx.row(account="ann", amount=5), ctx)
        assert ctx.emitted == [("+I", "ann", 305)]
        assert ctx.called == [(operator.look_up, ("ann",), {"factor": 100})]
        assert ctx.timers_set == [(("ann",), Timer(305, "idle"))]


async def test_calls_under_a_harness_in_a_running_loop(
    operator_harness: Callable[..., OperatorHarness],
) -> None:
    harness = operator_harness(Awaited(), "account string, amount long", "account")
    harness.push([("ann", 5), {"account": "bo", "amount": 1}])
    assert harness.end_batch() == [("+I", "ann", 305), ("+I", "bo", 201)]


def test_without_a_row_there_is_no_key() -> None:
    context = FakeContext(Chained(), "account string, amount long", "account")
    with context as ctx, pytest.raises(JobError, match="no current row"):
        ctx.emit("a", 1)


def test_the_fixture_runs_in_both_modes(
    operator_harness: Callable[..., OperatorHarness], request: Any
) -> None:
    harness = operator_harness(Chained(), "account string, amount long", "account")
    assert harness._config.enabled is ("async" in request.node.name)
    harness.push([("ann", 1)])
    assert harness.end_batch() == [("+I", "ann", 1)]


def test_the_plugin_loads_nothing_of_asyncstate() -> None:
    code = "import sys, asyncstate_pytest; assert not {'asyncstate', 'pyarrow', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
