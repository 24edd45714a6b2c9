"""The harness inside a running event loop, as in a notebook or in an asynchronous test of the user's."""

from __future__ import annotations

import asyncio
from typing import Any

import pyarrow as pa
import pytest

from asyncstate import KeyedProcessFunction, ValueStateDescriptor
from asyncstate.testing import OperatorHarness
from operators import KeyedProcess

ROWS = pa.schema([("k", pa.int64()), ("v", pa.int64())])


async def _doubled(value: int) -> int:
    await asyncio.sleep(0)
    return 2 * value


class _Sums(KeyedProcessFunction):
    """The sum of what a call of the outside makes of each value."""

    def open(self, context: Any) -> None:
        self.sum = context.get_state(ValueStateDescriptor("sum", int, default=0))

    async def process(self, row: Any, ctx: Any) -> None:
        total = await self.sum.async_value() + await ctx.call(_doubled, row.v)
        self.sum.update(total)
        ctx.emit(row.k, total)


@pytest.mark.asyncio
async def test_a_micro_batch_runs_on_a_thread_that_has_a_loop(async_enabled: bool) -> None:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(tick())
    with OperatorHarness(KeyedProcess(_Sums(), ROWS), ROWS, ["k"], async_enabled=async_enabled) as harness:
        for values, expected in (((1, 2), 6), ((3,), 12)):
            harness.push([(7, value) for value in values])
            assert harness.end_batch()[-1] == ("+I", 7, expected)
            before = ticks
            await asyncio.sleep(0)
            assert ticks > before  # the loop that was there goes on
    other.cancel()
    assert asyncio.get_running_loop().is_running()


@pytest.mark.asyncio
async def test_micro_batches_run_beside_each_other_on_threads(async_enabled: bool) -> None:
    def run(number: int) -> list[tuple[Any, ...]]:
        with OperatorHarness(
            KeyedProcess(_Sums(), ROWS), ROWS, ["k"], async_enabled=async_enabled
        ) as harness:
            harness.push([(number, value) for value in range(20)])
            return harness.end_batch()

    found = await asyncio.gather(*(asyncio.to_thread(run, number) for number in range(3)))
    sums = [2 * sum(range(value + 1)) for value in range(20)]
    assert found == [[("+I", number, total) for total in sums] for number in range(3)]
