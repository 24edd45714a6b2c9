"""Paradigms 1 to 4: reads and writes of single values and entries.

Owns: ``Sequential``, ``Branches``, ``Independent`` and ``Combined``.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from asyncstate.futures import StateFuture, combine_all, completed_void_future
from asyncstate.operator import OperatorContext, RecordContext, Row
from asyncstate.state import MapState, MapStateDescriptor, ValueState, ValueStateDescriptor
from bench.paradigms.base import Paradigm, Rejected

START = 100


def next_count(count: int | None, x: int) -> int:
    """Halve an even count, keep an odd one, and add."""
    if count is None:
        return 0
    return count // 2 + x if count % 2 == 0 else count + 1 + x


class Sequential(Paradigm):
    """1. One state: read, decide, write."""

    number, title = 1, "One state, in sequence"
    reads, scans = 1, 0
    output = (("count", pa.int64()),)
    rejected = (Rejected("repeats_the_write", right=True),)

    def open(self, context: OperatorContext) -> None:
        self.count: ValueState[int] = context.get_state(ValueStateDescriptor("count", pa.int64()))

    def with_calls(self, row: Row, ctx: RecordContext) -> None:
        count = next_count(self.count.value(), row.x)
        self.count.update(count)
        ctx.emit(row.key, count)

    def with_futures(self, row: Row, ctx: RecordContext) -> Any:
        def store(count: int) -> None:
            self.count.async_update(count)
            ctx.emit(row.key, count)

        return self.count.async_value().then_apply(lambda count: next_count(count, row.x)).then_accept(store)

    async def with_await(self, row: Row, ctx: RecordContext) -> None:
        count = next_count(await self.count.async_value(), row.x)
        await self.count.async_update(count)
        ctx.emit(row.key, count)

    def repeats_the_write(self, row: Row, ctx: RecordContext) -> Any:
        """Correct, but every branch repeats the write and the output."""

        def decide(count: int | None) -> None:
            if count is None:
                self.count.async_update(0)
                ctx.emit(row.key, 0)
            elif count % 2 == 0:
                self.count.async_update(count // 2 + row.x)
                ctx.emit(row.key, count // 2 + row.x)
            else:
                self.count.async_update(count + 1 + row.x)
                ctx.emit(row.key, count + 1 + row.x)

        return self.count.async_value().then_accept(decide)


class Branches(Paradigm):
    """2. What is done with a state depends on what is in it."""

    number, title = 2, "State in branches"
    reads, scans = 1, 0
    output = (("x", pa.int64()), ("left", pa.int64()))
    rejected = (Rejected("reads_twice", right=True), Rejected("asks_the_future", right=False))

    def open(self, context: OperatorContext) -> None:
        self.left: MapState[int, int] = context.get_state(MapStateDescriptor("left", pa.int64(), pa.int64()))

    def with_calls(self, row: Row, ctx: RecordContext) -> None:
        left = self.left.get(row.x)
        if left is None:
            self.left.put(row.x, START)
        elif left > 1:
            self.left.put(row.x, left - 1)
        else:
            self.left.remove(row.x)
        ctx.emit(row.key, row.x, left)

    def with_futures(self, row: Row, ctx: RecordContext) -> Any:
        def take_one(left: int | None) -> None:
            if left is None:
                self.left.async_put(row.x, START)
            elif left > 1:
                self.left.async_put(row.x, left - 1)
            else:
                self.left.async_remove(row.x)
            ctx.emit(row.key, row.x, left)

        return self.left.async_get(row.x).then_accept(take_one)

    async def with_await(self, row: Row, ctx: RecordContext) -> None:
        left = await self.left.async_get(row.x)
        if left is None:
            await self.left.async_put(row.x, START)
        elif left > 1:
            await self.left.async_put(row.x, left - 1)
        else:
            await self.left.async_remove(row.x)
        ctx.emit(row.key, row.x, left)

    def reads_twice(self, row: Row, ctx: RecordContext) -> Any:
        """Right, but asks whether the entry is there and then for the entry: the second read says both."""

        def look(there: bool) -> StateFuture[Any]:
            if there:
                return self.left.async_get(row.x).then_accept(count_down)
            self.left.async_put(row.x, START)
            ctx.emit(row.key, row.x, None)
            return completed_void_future()

        def count_down(left: int | None) -> None:
            assert left is not None
            if left > 1:
                self.left.async_put(row.x, left - 1)
            else:
                self.left.async_remove(row.x)
            ctx.emit(row.key, row.x, left)

        return self.left.async_contains(row.x).then_compose(look)

    def asks_the_future(self, row: Row, ctx: RecordContext) -> Any:
        """Wrong: what a future will say is not there yet; it is neither true nor false, and the record fails."""
        if self.left.async_contains(row.x):

            def count_down(left: int | None) -> None:
                self.left.async_put(row.x, (left or 0) - 1)
                ctx.emit(row.key, row.x, left)

            return self.left.async_get(row.x).then_accept(count_down)
        self.left.async_put(row.x, START)
        ctx.emit(row.key, row.x, None)
        return None


class Independent(Paradigm):
    """3. Several states that do not need each other: start all, wait once. A row with y = 0 clears them."""

    number, title = 3, "Independent states"
    reads, scans = 4, 0
    output = (("seen", pa.int64()), ("total", pa.int64()), ("same_x", pa.int64()), ("same_y", pa.int64()))
    rejected = (Rejected("one_after_the_other", right=True),)

    def open(self, context: OperatorContext) -> None:
        number = pa.int64()
        self.seen: ValueState[int] = context.get_state(ValueStateDescriptor("seen", number))
        self.total: ValueState[int] = context.get_state(ValueStateDescriptor("total", number))
        self.by_x: MapState[int, int] = context.get_state(MapStateDescriptor("by_x", number, number))
        self.by_y: MapState[int, int] = context.get_state(MapStateDescriptor("by_y", number, number))

    def with_calls(self, row: Row, ctx: RecordContext) -> None:
        if row.y == 0:
            self.seen.clear()
            self.total.clear()
            self.by_x.clear()
            self.by_y.clear()
            ctx.emit(row.key, 0, 0, 0, 0)
            return
        seen = (self.seen.value() or 0) + 1
        total = (self.total.value() or 0) + row.x
        same_x = (self.by_x.get(row.x) or 0) + 1
        same_y = (self.by_y.get(row.y) or 0) + 1
        self.seen.update(seen)
        self.total.update(total)
        self.by_x.put(row.x, same_x)
        self.by_y.put(row.y, same_y)
        ctx.emit(row.key, seen, total, same_x, same_y)

    def with_futures(self, row: Row, ctx: RecordContext) -> Any:
        if row.y == 0:
            self.clear_all()
            ctx.emit(row.key, 0, 0, 0, 0)
            return None
        updates = [
            add(self.seen, 1),
            add(self.total, row.x),
            count_entry(self.by_x, row.x),
            count_entry(self.by_y, row.y),
        ]
        return combine_all(updates).then_accept(lambda now: ctx.emit(row.key, *now))

    def clear_all(self) -> StateFuture[list[None]]:
        """Nothing comes back from a clear; who goes on only afterwards derives from the future of them all."""
        return combine_all(
            [
                self.seen.async_clear(),
                self.total.async_clear(),
                self.by_x.async_clear(),
                self.by_y.async_clear(),
            ]
        )

    def one_after_the_other(self, row: Row, ctx: RecordContext) -> Any:
        """Right, but each read starts when the one before is there: four waits instead of one."""
        if row.y == 0:
            return (
                completed_void_future()
                .then_accept(lambda _: self.seen.async_clear())
                .then_accept(lambda _: self.total.async_clear())
                .then_accept(lambda _: self.by_x.async_clear())
                .then_accept(lambda _: self.by_y.async_clear())
                .then_accept(lambda _: ctx.emit(row.key, 0, 0, 0, 0))
            )
        now: list[int] = []
        return (
            add(self.seen, 1)
            .then_accept(now.append)
            .then_compose(lambda _: add(self.total, row.x))
            .then_accept(now.append)
            .then_compose(lambda _: count_entry(self.by_x, row.x))
            .then_accept(now.append)
            .then_compose(lambda _: count_entry(self.by_y, row.y))
            .then_accept(lambda same_y: ctx.emit(row.key, *now, same_y))
        )


def add(state: ValueState[int], amount: int) -> StateFuture[int]:
    """Add to a number; a future of the sum."""

    def store(before: int | None) -> int:
        state.async_update((before or 0) + amount)
        return (before or 0) + amount

    return state.async_value().then_apply(store)


def count_entry(state: MapState[int, int], key: int) -> StateFuture[int]:
    """Count an entry; a future of the count."""

    def store(before: int | None) -> int:
        state.async_put(key, (before or 0) + 1)
        return (before or 0) + 1

    return state.async_get(key).then_apply(store)


class Combined(Paradigm):
    """4. Several states and a calculation over all of them."""

    number, title = 4, "Combined states"
    reads, scans = 2, 0
    output = (("verdict", pa.string()), ("first", pa.int64()), ("second", pa.int64()))
    rejected = (Rejected("second_read_behind_the_first", right=True), Rejected("gets_too_early", right=False))

    def open(self, context: OperatorContext) -> None:
        number = pa.int64()
        self.first: ValueState[int] = context.get_state(ValueStateDescriptor("first", number))
        self.second: ValueState[int] = context.get_state(ValueStateDescriptor("second", number))

    def with_calls(self, row: Row, ctx: RecordContext) -> None:
        first = (self.first.value() or 0) + row.x
        second = (self.second.value() or 0) + row.y
        self.first.update(first)
        self.second.update(second)
        ctx.emit(row.key, "equal" if first == second else "not equal", first, second)

    def with_futures(self, row: Row, ctx: RecordContext) -> Any:
        def compare(first: int | None, second: int | None) -> None:
            first, second = (first or 0) + row.x, (second or 0) + row.y
            self.first.async_update(first)
            self.second.async_update(second)
            ctx.emit(row.key, "equal" if first == second else "not equal", first, second)

        return self.first.async_value().then_combine(self.second.async_value(), compare)

    async def with_await(self, row: Row, ctx: RecordContext) -> None:
        first, second = await combine_all([self.first.async_value(), self.second.async_value()])
        first, second = (first or 0) + row.x, (second or 0) + row.y
        await combine_all([self.first.async_update(first), self.second.async_update(second)])
        ctx.emit(row.key, "equal" if first == second else "not equal", first, second)

    async def second_read_behind_the_first(self, row: Row, ctx: RecordContext) -> None:
        """Right, but the second read starts when the first is there: two waits instead of one."""
        first = (await self.first.async_value() or 0) + row.x
        second = (await self.second.async_value() or 0) + row.y
        await self.first.async_update(first)
        await self.second.async_update(second)
        ctx.emit(row.key, "equal" if first == second else "not equal", first, second)

    def gets_too_early(self, row: Row, ctx: RecordContext) -> None:
        """Wrong: works while reads are answered from memory, and fails at the first that waits."""
        first = (self.first.async_value().get() or 0) + row.x
        second = (self.second.async_value().get() or 0) + row.y
        self.first.async_update(first)
        self.second.async_update(second)
        ctx.emit(row.key, "equal" if first == second else "not equal", first, second)
