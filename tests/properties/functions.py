"""Functions that the property runs: importable, since an operator travels to its tasks pickled.

Those over ordered inputs rely on the order of rows; the others give the same for any order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import pyarrow as pa

from asyncstate import (
    BroadcastStateDescriptor,
    CoFlatMapFunction,
    CoMapFunction,
    FilterFunction,
    FlatMapFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    ListView,
    MapFunction,
    MapStateDescriptor,
    MapView,
    ProcessWindowFunction,
    RecordContext,
    Row,
    Timer,
    ValueStateDescriptor,
)
from asyncstate.functions import ProcessTableFunction, SetTable, StateHint, TableHint

SECOND = 1_000_000
BUCKET = 5 * SECOND


class Doubled(MapFunction):
    accepts_changelog = True

    def map(self, row: Any) -> Any:
        return row.k, None if row.v is None else 2 * row.v


class UpTo(FlatMapFunction):
    accepts_changelog = True

    def flat_map(self, row: Any) -> Any:
        return [(row.k, number) for number in range(row.v or 0)]


class Odd(FilterFunction):
    accepts_changelog = True

    def filter(self, row: Any) -> Any:
        return bool((row.v or 0) % 2)


class Total(MapFunction):
    """The values of the key so far, as text: depends on their order."""

    def open(self, context: Any) -> None:
        self.text = context.get_state(ValueStateDescriptor("text", pa.string(), default=""))

    def map(self, row: Any) -> Any:
        def add(before: str) -> Any:
            self.text.async_update(f"{before}{row.v} ")
            return row.k, f"{before}{row.v} "

        return self.text.async_value().then_apply(add)


class Rises(FilterFunction):
    """Rows with a higher value than the row before."""

    def open(self, context: Any) -> None:
        self.last = context.get_state(ValueStateDescriptor("last", pa.int64(), default=-1))

    async def filter(self, row: Any) -> Any:
        before = await self.last.async_value()
        await self.last.async_update(row.v)
        return row.v > before


class Steps(FlatMapFunction):
    """The values from that of the row before to that of the row."""

    def open(self, context: Any) -> None:
        self.last = context.get_state(ValueStateDescriptor("last", pa.int64(), default=0))

    def flat_map(self, row: Any) -> Any:
        before = self.last.value()
        self.last.update(row.v)
        return [(row.k, value) for value in range(before, row.v)]


def larger(a: Any, b: Any) -> Any:
    return a if (a.v, a.id) >= (b.v, b.id) else b


def latest_sum(a: Any, b: Any) -> Any:
    return b.k, b.at, b.id, 3 * a.v + b.v


class Journal(KeyedProcessFunction):
    """The changes of the key so far, as text: depends on their order."""

    accepts_changelog = True

    def open(self, context: Any) -> None:
        self.text = context.get_state(ValueStateDescriptor("text", pa.string(), default=""))

    async def process(self, row: Any, ctx: Any) -> None:
        text = f"{await self.text.async_value()}{ctx.row_kind.text}{row.v} "
        await self.text.async_update(text)
        ctx.emit(row.k, text)


class CountBuckets(KeyedProcessFunction):
    """Rows a key and bucket of time, told when the bucket is over."""

    def open(self, context: Any) -> None:
        self.counts = context.get_state(MapStateDescriptor("counts", pa.int64(), pa.int64()))

    async def process(self, row: Any, ctx: Any) -> None:
        end = ctx.timestamp // BUCKET * BUCKET + BUCKET
        ctx.timers.register_event_time(end - 1)
        await self.counts.async_put(end, (await self.counts.async_get(end) or 0) + 1)

    async def on_timer(self, timer: Any, ctx: Any) -> None:
        end = timer.time + 1
        ctx.emit(ctx.key[0], end, await self.counts.async_get(end))
        await self.counts.async_remove(end)


class Latest(CoMapFunction):
    """Rows of input 0 with the newest value of input 1, and rows of input 1 with the newest of input 0."""

    def open(self, context: Any) -> None:
        self.newest = [
            context.get_state(ValueStateDescriptor(f"newest{number}", pa.int64())) for number in (0, 1)
        ]

    def map1(self, row: Any) -> Any:
        self.newest[0].async_update(row.v)
        return self.newest[1].async_value().then_apply(lambda other: (row.k, row.v, other))

    def map2(self, row: Any) -> Any:
        self.newest[1].async_update(row.w)
        return self.newest[0].async_value().then_apply(lambda other: (row.k, other, row.w))


class OverLimit(CoFlatMapFunction):
    """Values above the limit that was set last."""

    def open(self, context: Any) -> None:
        self.limit = context.get_state(ValueStateDescriptor("limit", pa.int64()))

    async def flat_map1(self, row: Any) -> Any:
        limit = await self.limit.async_value()
        return [(row.k, row.v, limit)] if limit is not None and row.v > limit else []

    def flat_map2(self, row: Any) -> Any:
        return self.limit.async_update(row.w)


class Matched(KeyedCoProcessFunction):
    """Sums of both inputs a key and bucket of time, told when the bucket is over."""

    def open(self, context: Any) -> None:
        self.sums = context.get_state(MapStateDescriptor("sums", pa.int64(), pa.list_(pa.int64())))

    async def _add(self, ctx: Any, left: int, right: int) -> None:
        end = ctx.timestamp // BUCKET * BUCKET + BUCKET
        ctx.timers.register_event_time(end - 1)
        before = await self.sums.async_get(end) or [0, 0]
        await self.sums.async_put(end, [before[0] + left, before[1] + right])

    async def process1(self, row: Any, ctx: Any) -> None:
        await self._add(ctx, row.v, 0)

    async def process2(self, row: Any, ctx: Any) -> None:
        await self._add(ctx, 0, row.w)

    async def on_timer(self, timer: Any, ctx: Any) -> None:
        left, right = await self.sums.async_get(timer.time + 1)
        await self.sums.async_remove(timer.time + 1)
        ctx.emit(ctx.key[0], left, right)


@dataclass
class Limit:
    """The limit that was set last."""

    value: int | None = None


def over_limit(limit: Limit, left: SetTable | None, right: SetTable | None) -> Any:
    """``OverLimit`` as a table function."""
    if right is not None:
        limit.value = right.w
    elif left is not None and limit.value is not None and left.v > limit.value:
        yield left.k, left.v, limit.value


class MatchedTables(ProcessTableFunction):
    """``Matched`` as a table function."""

    async def eval(
        self,
        ctx: RecordContext,
        sums: Annotated[MapView[int, list[int]], StateHint(int, pa.list_(pa.int64()))],
        left: SetTable | None,
        right: SetTable | None,
    ) -> None:
        assert ctx.timestamp is not None
        end = ctx.timestamp // BUCKET * BUCKET + BUCKET
        ctx.timers.register_event_time(end - 1)
        before = await sums.async_get(end) or [0, 0]
        more = [0 if left is None else left.v, 0 if right is None else right.w]
        await sums.async_put(end, [before[0] + more[0], before[1] + more[1]])

    def on_timer(
        self,
        timer: Timer,
        sums: Annotated[MapView[int, list[int]], StateHint(int, pa.list_(pa.int64()))],
        ctx: RecordContext,
    ) -> Any:
        yield (*ctx.key, *(sums[timer.time + 1] or ()))
        sums.remove(timer.time + 1)


def pairs(
    row: SetTable | None,
    rule: Annotated[Row | None, TableHint("broadcast", notify_stateful_sets=True)],
    rows: ListView[int] | None,
    rules: Annotated[MapView[int, bool], StateHint(broadcast=True)],
    ctx: RecordContext,
) -> Any:
    """``Pairs`` as a table function."""
    if row is not None and rows is not None:
        rows.add(row.v)
        return [(row.k, row.v, each) for each, _ in rules.items()]
    assert rule is not None
    if rows is None:
        rules[rule.rule] = True
        return None
    return [(*ctx.key, value, rule.rule) for value in rows]


class Pairs(KeyedBroadcastProcessFunction):
    """Every row with every rule, whichever comes first."""

    notify_stateful_sets = True

    def open(self, context: Any) -> None:
        self.rules = context.get_state(BroadcastStateDescriptor("rules", pa.int64(), pa.bool_()))
        self.rows = context.get_state(ListStateDescriptor("rows", pa.int64()))

    async def process(self, row: Any, ctx: Any) -> None:
        for rule, _ in self.rules.items():
            ctx.emit(row.k, row.v, rule)
        await self.rows.async_add(row.v)

    def process_broadcast(self, row: Any, ctx: Any) -> None:
        self.rules.put(row.rule, True)

    async def process_notification(self, row: Any, ctx: Any) -> None:
        async for value in await self.rows.async_get():
            ctx.emit(ctx.key[0], value, row.rule)


def all_values(key: Any, window: Any, rows: Any) -> Any:
    """The window's rows in an order of their own."""
    return [" ".join(str(value) for value in sorted(row.v for row in rows))]


class Best(ProcessWindowFunction):
    """The sum of a window, and the highest sum of the key's windows so far."""

    def open(self, context: Any) -> None:
        self.best = context.get_state(ValueStateDescriptor("best", pa.int64(), default=0))

    async def process(self, key: Any, ctx: Any, rows: Any) -> None:
        total = sum(row.v for row in rows)
        best = max(await self.best.async_value(), total)
        await self.best.async_update(best)
        ctx.emit(key[0], ctx.window.end, total, best)
