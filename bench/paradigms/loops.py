"""Paradigms 5 to 9: loops over what a state holds, and over data with state access in the loop.

Owns: ``Traversal``, ``DependentTraversal``, ``DependentLoop``, ``IndependentLoop`` and ``UpdatingTraversal``.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pyarrow as pa

from asyncstate.futures import StateFuture, combine_all, completed_future, to_iterable
from asyncstate.operator import OperatorContext, RecordContext, Row
from asyncstate.state import ListState, ListStateDescriptor, MapState, MapStateDescriptor
from bench.paradigms.base import Paradigm, Rejected


class Traversal(Paradigm):
    """5. All entries of a state, none of which needs another."""

    number, title = 5, "Traversal"
    reads, scans = 0, 1
    output = (("sum", pa.int64()),)
    rejected = (Rejected("does_not_wait_for_the_pages", right=False),)

    def open(self, context: OperatorContext) -> None:
        self.seen: MapState[int, int] = context.get_state(MapStateDescriptor("seen", pa.int64(), pa.int64()))

    def with_calls(self, row: Row, ctx: RecordContext) -> None:
        total = 0
        for x, _ in self.seen.entries():
            total += x
        self.seen.put(row.x, row.y)
        ctx.emit(row.key, total)

    def with_futures(self, row: Row, ctx: RecordContext) -> Any:
        total = 0

        def add(entry: tuple[int, int]) -> None:
            nonlocal total
            total += entry[0]

        def finish(_: Any) -> None:
            self.seen.async_put(row.x, row.y)
            ctx.emit(row.key, total)

        entries = self.seen.async_entries()
        return entries.then_compose(lambda found: found.on_next(add)).then_accept(finish)

    async def with_await(self, row: Row, ctx: RecordContext) -> None:
        total = 0
        async for x, _ in await self.seen.async_entries():
            total += x
        await self.seen.async_put(row.x, row.y)
        ctx.emit(row.key, total)

    def does_not_wait_for_the_pages(self, row: Row, ctx: RecordContext) -> Any:
        """Wrong: then_accept does not wait for what its function started, here for the pages after the first."""
        total = 0

        def add(entry: tuple[int, int]) -> None:
            nonlocal total
            total += entry[0]

        def finish(_: Any) -> None:
            self.seen.async_put(row.x, row.y)
            ctx.emit(row.key, total)

        return self.seen.async_entries().then_accept(lambda entries: entries.on_next(add)).then_accept(finish)


def step(value: int, element: int) -> int:
    """The next value depends on the one before, so the order of the elements matters."""
    return value // 2 + element if value % 2 == 0 else (value * 2 + element) % 1_000_003


class DependentTraversal(Paradigm):
    """6. All elements of a list, each of which needs what came out at the one before."""

    number, title = 6, "Dependent traversal"
    reads, scans = 2, 0
    output = (("value", pa.int64()),)
    rejected = (Rejected("holds_the_whole_list", right=True),)

    def open(self, context: OperatorContext) -> None:
        self.steps: ListState[int] = context.get_state(ListStateDescriptor("steps", pa.int64()))

    def with_calls(self, row: Row, ctx: RecordContext) -> None:
        value = row.x
        for element in self.steps.get():
            value = step(value, element)
        self.steps.add(value % 100)
        ctx.emit(row.key, value)

    def with_futures(self, row: Row, ctx: RecordContext) -> Any:
        value = row.x

        def advance(element: int) -> None:
            nonlocal value
            value = step(value, element)

        def finish(_: Any) -> None:
            self.steps.async_add(value % 100)
            ctx.emit(row.key, value)

        return self.steps.async_get().then_compose(lambda steps: steps.on_next(advance)).then_accept(finish)

    async def with_await(self, row: Row, ctx: RecordContext) -> None:
        value = row.x
        async for element in await self.steps.async_get():
            value = step(value, element)
        await self.steps.async_add(value % 100)
        ctx.emit(row.key, value)

    async def holds_the_whole_list(self, row: Row, ctx: RecordContext) -> None:
        """Right, but holds every element of every record in flight, where a page would do."""
        value = row.x
        for element in await to_iterable(self.steps.async_get()):
            value = step(value, element)
        await self.steps.async_add(value % 100)
        ctx.emit(row.key, value)


class DependentLoop(Paradigm):
    """7. A loop over data with state access, each turn of which needs the one before."""

    number, title = 7, "Dependent loop"
    reads, scans = 3, 0
    output = (("value", pa.int64()),)
    rejected = (Rejected("reads_all_first", right=False),)

    def open(self, context: OperatorContext) -> None:
        self.last: MapState[int, int] = context.get_state(MapStateDescriptor("last", pa.int64(), pa.int64()))

    @staticmethod
    def data(row: Row) -> list[int]:
        """What the loop goes over; an element may come twice, so the order matters."""
        return [row.x, row.y, row.x]

    @staticmethod
    def next_value(value: int, element: int, last: int | None) -> int:
        """The value after a turn, from the one before and what the state holds for the element."""
        return (value + element // 2 if value % 2 == 0 else value + element) + (last or 0) % 10

    def with_calls(self, row: Row, ctx: RecordContext) -> None:
        value = 0
        for element in self.data(row):
            value = self.next_value(value, element, self.last.get(element))
            self.last.put(element, value)
        ctx.emit(row.key, value)

    def with_futures(self, row: Row, ctx: RecordContext) -> Any:
        def turn(element: int, value: int) -> StateFuture[int]:
            def store(last: int | None) -> int:
                now = self.next_value(value, element, last)
                self.last.async_put(element, now)
                return now

            return self.last.async_get(element).then_apply(store)

        future = completed_future(0)
        for element in self.data(row):
            future = future.then_compose(partial(turn, element))
        return future.then_accept(lambda value: ctx.emit(row.key, value))

    async def with_await(self, row: Row, ctx: RecordContext) -> None:
        value = 0
        for element in self.data(row):
            value = self.next_value(value, element, await self.last.async_get(element))
            await self.last.async_put(element, value)
        ctx.emit(row.key, value)

    async def reads_all_first(self, row: Row, ctx: RecordContext) -> None:
        """Wrong: an element that comes twice is read twice before it is written once."""
        data = self.data(row)
        value = 0
        before = await combine_all([self.last.async_get(element) for element in data])
        for element, last in zip(data, before, strict=True):
            value = self.next_value(value, element, last)
            await self.last.async_put(element, value)
        ctx.emit(row.key, value)


class IndependentLoop(Paradigm):
    """8. A loop over data with state access, no turn of which needs another."""

    number, title = 8, "Independent loop"
    reads, scans = 2, 0
    output = (("before", pa.list_(pa.int64())),)
    rejected = (Rejected("waits_in_the_loop", right=True), Rejected("closes_over_the_loop", right=False))

    def open(self, context: OperatorContext) -> None:
        self.last: MapState[int, int] = context.get_state(MapStateDescriptor("last", pa.int64(), pa.int64()))

    @staticmethod
    def data(row: Row) -> dict[int, int]:
        """What the loop goes over: each key once, so the turns do not meet."""
        return {row.x: row.y, row.y: row.x}

    def with_calls(self, row: Row, ctx: RecordContext) -> None:
        before = []
        for key, value in self.data(row).items():
            before.append(self.last.get(key))
            self.last.put(key, value)
        ctx.emit(row.key, before)

    def with_futures(self, row: Row, ctx: RecordContext) -> Any:
        def exchange(key: int, value: int) -> StateFuture[int | None]:
            def store(before: int | None) -> int | None:
                self.last.async_put(key, value)
                return before

            return self.last.async_get(key).then_apply(store)

        exchanges = [exchange(key, value) for key, value in self.data(row).items()]
        return combine_all(exchanges).then_accept(lambda before: ctx.emit(row.key, before))

    async def with_await(self, row: Row, ctx: RecordContext) -> None:
        data = self.data(row)
        before = await combine_all([self.last.async_get(key) for key in data])
        await self.last.async_put_all(data)
        ctx.emit(row.key, before)

    async def waits_in_the_loop(self, row: Row, ctx: RecordContext) -> None:
        """Right, but each read starts when the turn before is done."""
        before = []
        for key, value in self.data(row).items():
            before.append(await self.last.async_get(key))
            await self.last.async_put(key, value)
        ctx.emit(row.key, before)

    def closes_over_the_loop(self, row: Row, ctx: RecordContext) -> Any:
        """Wrong: the lambdas look key and value up when they run, and by then the loop is at its end."""
        before: list[int | None] = []
        done = []
        for key, value in self.data(row).items():
            read = self.last.async_get(key).then_apply(before.append)
            done.append(read.then_compose(lambda _: self.last.async_put(key, value)))  # noqa: B023
        return combine_all(done).then_accept(lambda _: ctx.emit(row.key, before))


class UpdatingTraversal(Paradigm):
    """9. All entries of a state, updated and removed on the way."""

    number, title = 9, "Updating traversal"
    reads, scans = 0, 1
    output = (("removed", pa.int64()), ("kept", pa.int64()))
    rejected = (Rejected("writes_everything_anew", right=True),)

    def open(self, context: OperatorContext) -> None:
        self.open_: MapState[int, int] = context.get_state(MapStateDescriptor("open", pa.int64(), pa.int64()))

    def with_calls(self, row: Row, ctx: RecordContext) -> None:
        self.open_.put(row.x, row.y)
        removed = kept = 0
        for key, value in self.open_.entries():
            if value % 2 == 0:
                self.open_.remove(key)
                removed += 1
            else:
                self.open_.put(key, value + row.x)
                kept += 1
        ctx.emit(row.key, removed, kept)

    def with_futures(self, row: Row, ctx: RecordContext) -> Any:
        removed = kept = 0

        def visit(entry: tuple[int, int]) -> None:
            nonlocal removed, kept
            key, value = entry
            if value % 2 == 0:
                self.open_.async_remove(key)
                removed += 1
            else:
                self.open_.async_put(key, value + row.x)
                kept += 1

        return (
            self.open_.async_put(row.x, row.y)
            .then_compose(lambda _: self.open_.async_entries())
            .then_compose(lambda entries: entries.on_next(visit))
            .then_accept(lambda _: ctx.emit(row.key, removed, kept))
        )

    async def with_await(self, row: Row, ctx: RecordContext) -> None:
        await self.open_.async_put(row.x, row.y)
        removed = kept = 0
        async for key, value in await self.open_.async_entries():
            if value % 2 == 0:
                await self.open_.async_remove(key)
                removed += 1
            else:
                await self.open_.async_put(key, value + row.x)
                kept += 1
        ctx.emit(row.key, removed, kept)

    async def writes_everything_anew(self, row: Row, ctx: RecordContext) -> None:
        """Right, but holds the map in memory, scans it a second time to clear it, and writes it as a whole."""
        entries = dict(await to_iterable(self.open_.async_entries()))
        entries[row.x] = row.y
        stays = {key: value + row.x for key, value in entries.items() if value % 2}
        await self.open_.async_clear()
        await self.open_.async_put_all(stays)
        ctx.emit(row.key, len(entries) - len(stays), len(stays))
