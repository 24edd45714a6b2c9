"""The nine ways in which operators use state, each written once with plain calls and once with futures.

Source: the paradigms of FLIP-473. Each pair must print the same lines and store the same bytes, whether
futures are there at once or later and in any order across keys.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstate.futures import StateFuture, StateIterator, combine_all, completed_future
from asyncstate.state import (
    ListState,
    ListStateDescriptor,
    MapState,
    MapStateDescriptor,
    ValueState,
    ValueStateDescriptor,
)
from tests.state.fakes import FakeContext, FakeSink, record, run_records


class Row(NamedTuple):
    """One row of the input: a key and two numbers."""

    key: int
    x: int
    y: int


class States:
    """What the paradigms work on, and what they print, by key."""

    def __init__(self, sink: FakeSink, printed: dict[bytes, list[Any]]) -> None:
        self._sink = sink
        self._printed = printed
        context = FakeContext(sink, page_size=2)
        self.value1: ValueState[int] = context.get_state(ValueStateDescriptor("value1", int))
        self.value2: ValueState[int] = context.get_state(ValueStateDescriptor("value2", int, default=0))
        self.map1: MapState[int, int] = context.get_state(MapStateDescriptor("map1", int, int))
        self.map2: MapState[int, int] = context.get_state(MapStateDescriptor("map2", int, int))
        self.list1: ListState[int] = context.get_state(ListStateDescriptor("list1", int))

    def print(self, *values: Any) -> None:
        assert self._sink.current is not None
        self._printed.setdefault(self._sink.current.encoded_key, []).append(values)


Paradigm = Callable[[States, Row], object]


# -- 1. sequential access to one state -------------------------------------------------------------


def next_count(count: int | None, x: int) -> int:
    if count is None:
        return 0
    return count // 2 + x if count % 2 == 0 else count + 1 + x


def sequential_sync(s: States, row: Row) -> None:
    s.value1.update(next_count(s.value1.value(), row.x))


def sequential_async(s: States, row: Row) -> object:
    return (
        s.value1.async_value()
        .then_apply(lambda count: next_count(count, row.x))
        .then_accept(s.value1.async_update)
    )


# -- 2. access in branches -------------------------------------------------------------------------


def branches_sync(s: States, row: Row) -> None:
    value = s.map1.get(row.x)
    if value is None:
        s.map1.put(row.x, 3)
    elif value > 1:
        s.map1.put(row.x, value - 1)
    else:
        s.map1.remove(row.x)


def branches_async(s: States, row: Row) -> object:
    def branch(value: int | None) -> None:
        if value is None:
            s.map1.async_put(row.x, 3)
        elif value > 1:
            s.map1.async_put(row.x, value - 1)
        else:
            s.map1.async_remove(row.x)

    return s.map1.async_get(row.x).then_accept(branch)


# -- 3. several independent states -----------------------------------------------------------------


def independent_sync(s: States, row: Row) -> None:
    if row.x == 0:
        s.map1.clear()
        s.map2.clear()
        s.value1.clear()
        s.list1.clear()
        s.print("cleared", list(s.map1.entries()), s.value1.value(), list(s.list1.get()))
    else:
        s.map1.put(row.x, row.y)
        s.map2.put(row.y, row.x)
        s.value1.update(row.x)
        s.list1.add(row.x)


def independent_async(s: States, row: Row) -> object:
    if row.x == 0:
        cleared = combine_all(
            [s.map1.async_clear(), s.map2.async_clear(), s.value1.async_clear(), s.list1.async_clear()]
        )
        return cleared.then_compose(lambda _: read_all(s)).then_accept(
            lambda all_read: s.print("cleared", *all_read)
        )
    s.map1.async_put(row.x, row.y)
    s.map2.async_put(row.y, row.x)
    s.value1.async_update(row.x)
    s.list1.async_add(row.x)
    return None


def read_all(s: States) -> StateFuture[list[Any]]:
    entries: StateFuture[Any] = s.map1.async_entries().then_compose(lambda iterator: iterator.to_list())
    elements: StateFuture[Any] = s.list1.async_get().then_compose(lambda iterator: iterator.to_list())
    value: StateFuture[Any] = s.value1.async_value()
    return combine_all([entries, value, elements])


# -- 4. a calculation over several states ----------------------------------------------------------


def combined_sync(s: States, row: Row) -> None:
    first = (s.value1.value() or 0) + row.x
    second = (s.value2.value() or 0) + row.y
    s.print("equal" if first == second else "not equal", first, second)
    s.value1.update(first)
    s.value2.update(second)


def combined_async(s: States, row: Row) -> object:
    def sums(first: int | None, second: int | None) -> tuple[int, int]:
        return (first or 0) + row.x, (second or 0) + row.y

    def finish(pair: tuple[int, int]) -> StateFuture[Any]:
        first, second = pair
        s.print("equal" if first == second else "not equal", first, second)
        return combine_all([s.value1.async_update(first), s.value2.async_update(second)])

    return s.value1.async_value().then_combine(s.value2.async_value(), sums).then_compose(finish)


# -- 5. iteration without dependencies -------------------------------------------------------------


def iteration_sync(s: States, row: Row) -> None:
    total = 0
    for key, _ in s.map1.entries():
        total += key
    s.print(total)
    s.map1.put(row.x, row.y)


def iteration_async(s: States, row: Row) -> object:
    total = [0]

    def add(entry: tuple[int, int]) -> None:
        total[0] += entry[0]

    def finish(_: object) -> None:
        s.map1.async_put(row.x, row.y)
        s.print(total[0])

    return s.map1.async_entries().then_compose(lambda entries: entries.on_next(add)).then_accept(finish)


# -- 6. iteration of a list with dependencies ------------------------------------------------------


def step(before: int, element: int) -> int:
    return before // 2 + element if before % 2 == 0 else before * 2 + element


def dependent_list_sync(s: States, row: Row) -> None:
    value = row.x
    for element in s.list1.get():
        value = step(value, element)
    s.print(value)
    s.list1.add(value % 100)


def dependent_list_async(s: States, row: Row) -> object:
    value = [row.x]

    def advance(element: int) -> None:
        value[0] = step(value[0], element)

    def finish(_: object) -> None:
        s.list1.async_add(value[0] % 100)
        s.print(value[0])

    return s.list1.async_get().then_compose(lambda elements: elements.on_next(advance)).then_accept(finish)


# -- 7. a loop over data with dependent access -----------------------------------------------------


def data_of(row: Row) -> list[int]:
    return [row.x, row.y, row.x]  # the same key twice: the order matters


def dependent_loop_sync(s: States, row: Row) -> None:
    value = 0
    for data in data_of(row):
        value = value + data // 2 if value % 2 == 0 else value + data
        s.map1.put(data, value)
    s.print(value)


def dependent_loop_async(s: States, row: Row) -> object:
    value: StateFuture[int] = completed_future(0)
    for data in data_of(row):

        def go_on(before: int, data: int = data) -> StateFuture[int]:
            now = before + data // 2 if before % 2 == 0 else before + data
            return s.map1.async_put(data, now).then_apply(lambda _: now)

        value = value.then_compose(go_on)
    return value.then_accept(s.print)


# -- 8. a loop over data without dependencies ------------------------------------------------------


def independent_loop_sync(s: States, row: Row) -> None:
    for key, value in {row.x: row.y, row.y: row.x}.items():
        s.print(key, s.map2.get(key))
        s.map2.put(key, value)


def independent_loop_async(s: States, row: Row) -> object:
    def exchange(key: int, value: int) -> StateFuture[tuple[int, int | None]]:
        def stored(before: int | None) -> tuple[int, int | None]:
            s.map2.async_put(key, value)
            return key, before

        return s.map2.async_get(key).then_apply(stored)

    def show(lines: list[tuple[int, int | None]]) -> None:
        for line in lines:
            s.print(*line)

    # the reads may be answered in any order, what is printed keeps that of the data
    return combine_all([exchange(*item) for item in {row.x: row.y, row.y: row.x}.items()]).then_accept(show)


# -- 9. iteration that updates and removes ---------------------------------------------------------


def updating_sync(s: States, row: Row) -> None:
    s.map1.put(row.x, row.y)
    for key, value in s.map1.entries():
        if value % 2 == 0:
            s.map1.remove(key)
        else:
            s.map1.put(key, value + row.x)


def updating_async(s: States, row: Row) -> object:
    def each(entry: tuple[int, int]) -> StateFuture[None]:
        key, value = entry
        return s.map1.async_remove(key) if value % 2 == 0 else s.map1.async_put(key, value + row.x)

    def all_of(entries: StateIterator[tuple[int, int]]) -> StateFuture[Any]:
        return entries.on_next(each)

    return s.map1.async_put(row.x, row.y).then_compose(lambda _: s.map1.async_entries()).then_compose(all_of)


PAIRS: list[tuple[Paradigm, Paradigm]] = [
    (sequential_sync, sequential_async),
    (branches_sync, branches_async),
    (independent_sync, independent_async),
    (combined_sync, combined_async),
    (iteration_sync, iteration_async),
    (dependent_list_sync, dependent_list_async),
    (dependent_loop_sync, dependent_loop_async),
    (independent_loop_sync, independent_loop_async),
    (updating_sync, updating_async),
]


Outcome = tuple[dict[bytes, list[Any]], dict[bytes, bytes]]


def run(paradigm: Paradigm, rows: list[Row], deferred: bool, seed: int = 0) -> Outcome:
    """What was printed by key, and the bytes stored; the rows come in two micro-batches."""
    sink = FakeSink(deferred, seed)
    printed: dict[bytes, list[Any]] = {}
    for part in (rows[: len(rows) // 2], rows[len(rows) // 2 :]):
        states = States(sink, printed)
        run_records(sink, [record(row.key, partial(paradigm, states, row)) for row in part])
        sink.commit()
    return printed, sink.base


@pytest.mark.parametrize("pair", PAIRS, ids=[sync.__name__.removesuffix("_sync") for sync, _ in PAIRS])
@given(
    rows=st.lists(st.builds(Row, st.integers(0, 3), st.integers(0, 4), st.integers(0, 4)), max_size=30),
    seed=st.integers(0, 2**16),
)
def test_the_two_forms_print_and_store_the_same(
    pair: tuple[Paradigm, Paradigm], rows: list[Row], seed: int
) -> None:
    with_calls, with_futures = pair
    plain = run(with_calls, rows, deferred=False)
    assert run(with_futures, rows, deferred=False) == plain
    assert run(with_futures, rows, deferred=True, seed=seed) == plain
