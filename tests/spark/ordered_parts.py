"""An operator with timers of processing time over ordered rows, in a module that Python workers can import."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from asyncstate.operator import InputSpec, OperatorContext, RecordContext, RecordOperator, Row, Timer
from asyncstate.state import ValueStateDescriptor


class Counted(RecordOperator):
    """Each row with how many of its key came before it, and whenever ``every`` has passed the number of rows."""

    def __init__(self, every: int) -> None:
        self.every = every

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        return pa.schema(
            [("what", pa.string()), ("k", pa.int64()), ("id", pa.int64()), ("before", pa.int64())]
        )

    def open(self, context: OperatorContext) -> None:
        self.rows = context.get_state(ValueStateDescriptor("rows", pa.int64(), default=0))

    def process(self, row: Row, ctx: RecordContext) -> Any:
        ctx.timers.register_processing_time(ctx.processing_time + self.every, name="report")

        def count(before: int) -> None:
            ctx.emit("row", row.k, row.id, before)
            self.rows.async_update(before + 1)

        return self.rows.async_value().then_accept(count)

    def on_timer(self, timer: Timer, ctx: RecordContext) -> Any:
        def report(rows: int) -> None:
            ctx.emit("report", ctx.key[0], timer.time, rows)

        return self.rows.async_value().then_accept(report)


class Rolling(RecordOperator):
    """How many rows a key had in the last ten seconds, after each row; timers take back what has left."""

    def bind(self, inputs: Any) -> pa.Schema:
        return pa.schema([("id", pa.int64()), ("rows", pa.int64())])

    def open(self, context: Any) -> None:
        self.rows = context.get_state(ValueStateDescriptor("rows", pa.int64(), default=0))

    def process(self, row: Any, ctx: Any) -> Any:
        ctx.timers.register_event_time(ctx.timestamp + 10_000_000, name=str(row.id))

        def emit_results(before: int) -> Any:
            ctx.emit(row.id, before + 1)
            return self.rows.async_update(before + 1)

        return self.rows.async_value().then_compose(emit_results)

    def on_timer(self, timer: Any, ctx: Any) -> Any:
        return self.rows.async_value().then_compose(lambda rows: self.rows.async_update(rows - 1 or None))
