"""What a call to the outside costs beside the wait for its answer, at both grains, and what waiting for an input costs.

Owns: the operators that call and that have two inputs, and the same calls by hand.
Invariant: the function that is called returns at once, so the whole time is that of making calls and taking answers in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from asyncstate.futures import combine_all
from asyncstate.operator import (
    Bundle,
    BundleContext,
    BundleOperator,
    InputSpec,
    OperatorContext,
    RecordContext,
    RecordOperator,
    Row,
)
from asyncstate.runtime import InputBatch
from asyncstate.state import Columns, ColumnStateDescriptor
from bench.processor_time import Clocks, Spent
from bench.rows import batches

_ARROW_ROWS = 1_000
_COUNT = pa.schema([("count", pa.int64())])


async def _answer(key: int) -> int:
    return key


class CallARecord(RecordOperator):
    """A call a record."""

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        """See ``Operator``."""
        return _COUNT

    def process(self, row: Row, ctx: RecordContext) -> Any:
        """Nothing is put out."""
        return ctx.call(_answer, row.key)


class CallAKey(BundleOperator):
    """A call for each key of a bundle, all under way together."""

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        """See ``Operator``."""
        return _COUNT

    def process_bundle(self, bundle: Bundle, ctx: BundleContext) -> Any:
        """Nothing is put out."""
        return combine_all([ctx.call(_answer, key) for key in bundle.keys.columns[0].to_pylist()])


def calls_by_hand(keys: np.ndarray, at_once: int) -> Spent:
    """The same calls on an event loop, ``at_once`` of them under way, as a user would write it."""

    async def gathered() -> None:
        slots = asyncio.Semaphore(at_once)

        async def one(key: int) -> int:
            async with slots:
                return await asyncio.wait_for(_answer(key), 60)

        await asyncio.gather(*map(one, keys.tolist()))

    clocks = Clocks()
    asyncio.run(gathered())
    return clocks.spent()


class CountBoth(BundleOperator):
    """The number of rows of each key over two inputs; ``first``: which one comes first."""

    num_inputs = 2

    def __init__(self, first: int | None) -> None:
        self.first_input = first

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        """See ``Operator``."""
        return _COUNT

    def open(self, context: OperatorContext) -> None:
        """See ``Operator``."""
        self.counts = context.get_state(ColumnStateDescriptor("counts", _COUNT))

    def process_bundle(self, bundle: Bundle, ctx: BundleContext) -> Any:
        """Count the rows; nothing is put out."""
        rows = np.bincount(bundle.keys.inverse, minlength=len(bundle.keys))

        def add(before: Columns) -> None:
            self.counts.put(bundle.keys, [pa.array(before.numpy(0).astype(np.int64) + rows)])

        return self.counts.async_get(bundle.keys).then_accept(add)


def both_inputs(keys: np.ndarray) -> list[InputBatch]:
    """A row a key, of the two inputs in turn."""
    return [
        InputBatch(batch, input_index=number % 2) for number, batch in enumerate(batches(keys, _ARROW_ROWS))
    ]
