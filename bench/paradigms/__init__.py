"""The nine ways in which stateful operators use their state, each as an operator in a sync and an async form: those of
``docs/paradigms``, of its tests and of ``python -m bench paradigms``.

Invariant: all forms of a paradigm that are not rejected give the same rows and store the same bytes.
Must not import execution, storage or Spark.

Source: the appendix of FLIP-473.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple

import pyarrow as pa

from asyncstate import ListState, MapState, ValueState
from asyncstate.futures import StateFuture, combine_all, completed_future, completed_void_future, to_iterable
from asyncstate.operator import InputSpec, OperatorContext, RecordContext, RecordOperator, Row
from asyncstate.state import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor

ROWS = pa.schema([("key", pa.int64()), ("x", pa.int64()), ("y", pa.int64())])
"""What the paradigms read: the key and two small numbers. The key may be of any type."""


class Form(enum.StrEnum):
    """How an operator is written; each runs with sync and with async state."""

    CALLS = "with_calls"
    FUTURES = "with_futures"
    AWAIT = "with_await"


class Rejected(NamedTuple):
    """A form not to imitate: the method's name, and whether its results are right all the same."""

    method: str
    right: bool


class Paradigm(RecordOperator):
    """One way of using state, in the form that ``form`` names (a ``Form``, or the method of a rejected one).

    ``with_calls`` is the sync form, plain calls of which each waits for its answer; ``with_futures`` the async form, a
    chain of StateFutures; ``with_await`` the same as a coroutine, where there is one. ``reads``: values that a record
    asks for, iterations left out; ``scans``: iterations over entries of the store; ``output``: columns after the key.
    """

    number: ClassVar[int]
    title: ClassVar[str]
    reads: ClassVar[int]
    scans: ClassVar[int]
    rejected: ClassVar[tuple[Rejected, ...]] = ()
    output: ClassVar[tuple[tuple[str, pa.DataType], ...]]

    def __init__(self, form: str = Form.FUTURES) -> None:
        self.form = form

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        return pa.schema([inputs[0].column("key"), *self.output])

    def process(self, row: Row, ctx: RecordContext) -> Any:
        return getattr(self, self.form)(row, ctx)


START = 100


def next_count(count: int | None, x: int) -> int:
    """Halve an even count, keep an odd one, and add."""
    if count is None:
        return 0
    return count // 2 + x if count % 2 == 0 else count + 1 + x


class Sequential(Paradigm):
    """1. One state: read, decide, write."""

    number, title, reads, scans = 1, "One state, in sequence", 1, 0
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

    number, title, reads, scans = 2, "State in branches", 1, 0
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

    number, title, reads, scans = 3, "Independent states", 4, 0
    output = (("seen", pa.int64()), ("total", pa.int64()), ("same_x", pa.int64()), ("same_y", pa.int64()))
    rejected = (Rejected("one_after_the_other", right=True),)

    def open(self, context: OperatorContext) -> None:
        self.seen: ValueState[int] = context.get_state(ValueStateDescriptor("seen", pa.int64()))
        self.total: ValueState[int] = context.get_state(ValueStateDescriptor("total", pa.int64()))
        self.by_x: MapState[int, int] = context.get_state(MapStateDescriptor("by_x", pa.int64(), pa.int64()))
        self.by_y: MapState[int, int] = context.get_state(MapStateDescriptor("by_y", pa.int64(), pa.int64()))

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
        updates = [add(self.seen, 1), add(self.total, row.x)]
        updates += [count_entry(self.by_x, row.x), count_entry(self.by_y, row.y)]
        return combine_all(updates).then_accept(lambda now: ctx.emit(row.key, *now))

    def clear_all(self) -> StateFuture[list[None]]:
        """Nothing comes back from a clear; who goes on only afterwards derives from the future of them all."""
        values = self.seen.async_clear(), self.total.async_clear()
        maps = self.by_x.async_clear(), self.by_y.async_clear()
        return combine_all([*values, *maps])

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

    number, title, reads, scans = 4, "Combined states", 2, 0
    output = (("verdict", pa.string()), ("first", pa.int64()), ("second", pa.int64()))
    rejected = (Rejected("second_read_after_the_first", right=True), Rejected("gets_too_early", right=False))

    def open(self, context: OperatorContext) -> None:
        self.first: ValueState[int] = context.get_state(ValueStateDescriptor("first", pa.int64()))
        self.second: ValueState[int] = context.get_state(ValueStateDescriptor("second", pa.int64()))

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

    async def second_read_after_the_first(self, row: Row, ctx: RecordContext) -> None:
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


class Traversal(Paradigm):
    """5. All entries of a state, none of which needs another."""

    number, title, reads, scans = 5, "Traversal", 0, 1
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

    number, title, reads, scans = 6, "Dependent traversal", 2, 0
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

    number, title, reads, scans = 7, "Dependent loop", 3, 0
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

    number, title, reads, scans = 8, "Independent loop", 2, 0
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

    number, title, reads, scans = 9, "Updating traversal", 0, 1
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


PARADIGMS = tuple(Paradigm.__subclasses__())
"""By number."""
