"""Operators with side outputs that the tests run on Spark; in a module of their own, for Python workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from asyncstate.operator import (
    Bundle,
    BundleContext,
    BundleOperator,
    InputSpec,
    OperatorContext,
    OutputSpec,
    RecordContext,
    RecordOperator,
    Row,
)
from asyncstate.state import ValueStateDescriptor

COUNTS = pa.schema([("k", pa.int64()), ("count", pa.int64())])
ODD = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", tz="UTC"))])


class CountedAndOdd(RecordOperator):
    """The number of each row in its key; rows with odd ids aside, and late rows if they come in order."""

    def __init__(self, late: str | None = None) -> None:
        self.late = late

    def bind(self, inputs: Sequence[InputSpec]) -> OutputSpec:
        return OutputSpec(COUNTS, {"odd": ODD, "never": COUNTS}).with_late_rows(self.late, inputs[0])

    def late_outputs(self, inputs: Sequence[InputSpec]) -> Sequence[str | None]:
        return [self.late]

    def open(self, context: OperatorContext) -> None:
        self.rows = context.get_state(ValueStateDescriptor("rows", pa.int64(), default=0))

    async def process(self, row: Row, ctx: RecordContext) -> None:
        rows = (await self.rows.async_value() or 0) + 1
        await self.rows.async_update(rows)
        ctx.emit(row.k, rows)
        if row.id % 2:
            ctx.emit(row.id, row.at, output="odd")


class SplitByParity(BundleOperator):
    """Rows with even ids; those with odd ones aside."""

    def bind(self, inputs: Sequence[InputSpec]) -> OutputSpec:
        return OutputSpec(inputs[0].schema, {"odd": inputs[0].schema})

    def process_bundle(self, bundle: Bundle, ctx: BundleContext) -> Any:
        odd = bundle.batch.column("id").to_numpy() % 2 == 1
        ctx.emit(bundle.batch.filter(pa.array(~odd)).columns)
        ctx.emit(bundle.batch.filter(pa.array(odd)).columns, output="odd")
