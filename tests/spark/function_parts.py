"""Functions that the tests run on Spark; in a module of their own, so that Python workers can import them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from asyncstate import (
    BroadcastStateDescriptor,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    MapView,
    OperatorContext,
    ProcessWindowFunction,
    RecordContext,
    Row,
    Timer,
    ValueStateDescriptor,
    WindowContext,
)
from asyncstate.functions import AggregateFunction, map_view

DISTINCT = pa.schema([("number", pa.int64()), map_view("seen", pa.int64(), pa.bool_())])


class CountDistinct(AggregateFunction):
    """The number of different values, with a view; a method merge, so that windows can use it."""

    def create_accumulator(self) -> Any:
        return [0, MapView()]

    def accumulate(self, accumulator: Any, value: Any) -> None:
        if value not in accumulator[1]:
            accumulator[0] += 1
            accumulator[1][value] = True

    def get_value(self, accumulator: Any) -> Any:
        return accumulator[0]


COUNTS = pa.schema([("k", pa.int64()), ("what", pa.string()), ("count", pa.int64())])


class Counting(KeyedProcessFunction):
    """The number of each row in its key; the time of each row once the watermark has passed it."""

    def open(self, context: OperatorContext) -> None:
        self.rows = context.get_state(ValueStateDescriptor("rows", pa.int64(), default=0))

    async def process(self, row: Row, ctx: RecordContext) -> Any:
        assert ctx.timestamp is not None
        ctx.timers.register_event_time(ctx.timestamp)
        rows = await self.rows.async_value()
        assert rows is not None
        await self.rows.async_update(rows + 1)
        ctx.emit(row.k, "row", rows + 1)

    async def on_timer(self, timer: Timer, ctx: RecordContext) -> Any:
        ctx.emit(ctx.key[0], "passed", timer.time)


class Sides(KeyedCoProcessFunction):
    """The number of each row among those of its input, and of both once the watermark has passed it."""

    def open(self, context: OperatorContext) -> None:
        names = ("left", "right")
        self.rows = [context.get_state(ValueStateDescriptor(name, pa.int64(), default=0)) for name in names]

    def process1(self, row: Row, ctx: RecordContext) -> Any:
        return self._count(0, "left", ctx)

    def process2(self, row: Row, ctx: RecordContext) -> Any:
        return self._count(1, "right", ctx)

    def on_timer(self, timer: Timer, ctx: RecordContext) -> Any:
        left, right = self.rows
        both = left.async_value().then_combine(right.async_value(), lambda a, b: (a or 0) + (b or 0))
        return both.then_accept(lambda rows: ctx.emit(ctx.key[0], "both", rows))

    def _count(self, side: int, name: str, ctx: RecordContext) -> Any:
        ctx.timers.register_event_time(0)

        def count(rows: int | None) -> None:
            assert rows is not None
            self.rows[side].async_update(rows + 1)
            ctx.emit(ctx.key[0], name, rows + 1)

        return self.rows[side].async_value().then_accept(count)


class WindowSums(ProcessWindowFunction):
    """The sum of each window, and of all windows of the key so far."""

    def open(self, context: OperatorContext) -> None:
        self.total = context.get_state(ValueStateDescriptor("total", pa.int64(), default=0))
        self.own = context.get_state(ValueStateDescriptor("own", pa.int64(), namespaced=True))

    async def process(self, key: tuple[Any, ...], ctx: WindowContext, rows: Sequence[Row]) -> Any:
        own = sum(row.id for row in rows)
        await self.own.at(ctx.window_namespace).async_update(own)
        total = await self.total.async_value() + own  # type: ignore[operator]
        await self.total.async_update(total)
        ctx.emit(own, total)

    async def clear(self, ctx: WindowContext) -> Any:
        assert await self.own.at(ctx.window_namespace).async_value() is not None
        await self.own.at(ctx.window_namespace).async_clear()


class Ruled(KeyedBroadcastProcessFunction):
    """Each row with the number of rules there are."""

    def open(self, context: OperatorContext) -> None:
        self.rules = context.get_state(BroadcastStateDescriptor("rules", pa.int64(), pa.int64()))

    def process(self, row: Row, ctx: RecordContext) -> Any:
        ctx.emit(row.k, "rules", len(list(self.rules.keys())))

    def process_broadcast(self, row: Row, ctx: RecordContext) -> Any:
        self.rules.put(row.id, row.k)
