"""An operator with a first input that makes calls, for the tests of the Spark layer; importable by Python workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio.lowlevel
import numpy as np
import pyarrow as pa

from asyncstate import (
    Bundle,
    BundleContext,
    BundleOperator,
    ColumnStateDescriptor,
    InputSpec,
    OperatorContext,
    combine_all,
)


class Rated(BundleOperator):
    """Each row of input 0 with the newest factor of its key, from the other input, times what a service says of it."""

    num_inputs = 2

    def __init__(self, first: int) -> None:
        self.first_input = first

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        return pa.schema([("k", pa.int64()), ("v", pa.int64()), ("rated", pa.int64())])

    def open(self, context: OperatorContext) -> None:
        self.factors: Any = context.get_state(ColumnStateDescriptor("f", pa.schema([("f", pa.int64())])))

    async def open_calls(self) -> None:
        self.base = 10

    async def rate(self, key: int) -> int:
        await anyio.lowlevel.checkpoint()
        return self.base + key

    def process_bundle(self, bundle: Bundle, ctx: BundleContext) -> Any:
        values = bundle.batch.column("v")
        if bundle.input_index == 1:
            self.factors.put(bundle.keys, [values.take(pa.array(bundle.keys.last_rows()))])
            return None

        def emit_results(factors: Any, rates: list[int]) -> None:
            rated = (factors.numpy(0) * np.array(rates))[bundle.keys.inverse]
            keys = bundle.keys.columns[0].take(pa.array(bundle.keys.inverse))
            ctx.emit([keys, values, pa.array(rated.astype(np.int64))])

        rates = combine_all([ctx.call(self.rate, key) for key in bundle.keys.columns[0].to_pylist()])
        return self.factors.async_get(bundle.keys).then_combine(rates, emit_results)
