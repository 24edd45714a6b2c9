"""One operator in three styles: with plain calls, as a chain of futures, and as a coroutine.

Run it with ``python docs/examples/three_styles.py``; its tests are in test_three_styles.py next to it.

For each reading, the operator emits how far it is from the mean of its sensor so far. The three styles give the same
results and store the same bytes, in both modes. Plain calls wait for each answer, so they gain nothing from async mode;
with the other two, rows of other sensors continue meanwhile.
"""

from __future__ import annotations

import pyarrow as pa

from asyncstate import RecordOperator, ValueStateDescriptor
from asyncstate.futures import combine_all
from asyncstate.testing import OperatorHarness

READINGS = pa.schema([("sensor", pa.string()), ("value", pa.float64())])


class Deviation(RecordOperator):
    """What the three have in common: two states, and the output."""

    def bind(self, inputs):
        return pa.schema([("sensor", pa.string()), ("value", pa.float64()), ("deviation", pa.float64())])

    def open(self, context):
        self.count = context.get_state(ValueStateDescriptor("count", pa.int64(), default=0))
        self.total = context.get_state(ValueStateDescriptor("total", pa.float64(), default=0.0))


class PlainCalls(Deviation):
    """Each call waits for its answer."""

    def process(self, row, ctx):
        count, total = self.count.value(), self.total.value()
        ctx.emit(row.sensor, row.value, row.value - total / count if count else None)
        self.count.update(count + 1)
        self.total.update(total + row.value)


class FuturesChain(Deviation):
    """Both states are asked for at once; what is to be done with the answers is said before they are there."""

    def process(self, row, ctx):
        def answered(answers):
            count, total = answers
            ctx.emit(row.sensor, row.value, row.value - total / count if count else None)
            return combine_all(
                [self.count.async_update(count + 1), self.total.async_update(total + row.value)]
            )

        return combine_all([self.count.async_value(), self.total.async_value()]).then_compose(answered)


class Coroutine(Deviation):
    """The same, to be read from top to bottom."""

    async def process(self, row, ctx):
        count, total = await combine_all([self.count.async_value(), self.total.async_value()])
        ctx.emit(row.sensor, row.value, row.value - total / count if count else None)
        await self.count.async_update(count + 1)
        await self.total.async_update(total + row.value)


STYLES = [PlainCalls, FuturesChain, Coroutine]


def main() -> None:
    """Run all three in async mode."""
    for style in STYLES:
        with OperatorHarness(style(), READINGS, ["sensor"], async_enabled=True) as harness:
            harness.push([("oven", 200.0), ("cellar", 12.0), ("oven", 210.0)])
            harness.end_batch()
            harness.push([("oven", 190.0)])
            harness.end_batch()
            print(style.__name__, *(f"{sensor} {deviation}" for _, sensor, _, deviation in harness.output))


if __name__ == "__main__":
    main()

# Prints:
# PlainCalls oven None cellar None oven 10.0 oven -15.0
# FuturesChain oven None cellar None oven 10.0 oven -15.0
# Coroutine oven None cellar None oven 10.0 oven -15.0
