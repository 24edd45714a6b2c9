"""StateFuture: chains, combinations, failures, iteration; all of it without a store."""

from __future__ import annotations

import asyncio
import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstate import futures
from asyncstate.errors import FutureStateError
from asyncstate.futures import (
    StateFuture,
    StateIterator,
    as_completed,
    combine_all,
    completed_future,
    completed_void_future,
    failed_future,
    set_failure_scope,
    to_iterable,
)

Make = Callable[[Any], StateFuture[Any]]


class Later:
    """Makes futures that get their value when ``settle`` is called, or have it at once."""

    def __init__(self, deferred: bool) -> None:
        self.deferred = deferred
        self.waiting: list[tuple[StateFuture[Any], Any]] = []

    def __call__(self, value: Any) -> StateFuture[Any]:
        if not self.deferred:
            return failed_future(value) if isinstance(value, Exception) else completed_future(value)
        future: StateFuture[Any] = StateFuture()
        self.waiting.append((future, value))
        return future

    def settle(self) -> None:
        while self.waiting:
            future, value = self.waiting.pop(0)
            if isinstance(value, Exception):
                future.fail(value)
            else:
                future.complete(value)


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def later(request: pytest.FixtureRequest) -> Later:
    return Later(request.param)


def test_a_chain_passes_values_on(later: Later) -> None:
    seen: list[int] = []
    end = (
        later(20)
        .then_apply(lambda value: value + 1)
        .then_compose(lambda value: later(value * 2))
        .then_accept(seen.append)
    )
    later.settle()
    assert seen == [42]
    assert end.get() is None


def test_combine_waits_for_both(later: Later) -> None:
    both = later(1).then_combine(later("a"), lambda number, text: (number, text))
    later.settle()
    assert both.get() == (1, "a")


def test_a_future_is_not_taken_for_its_value(later: Later) -> None:
    """``if state.async_contains(key):`` without ``await`` would always be true."""
    contains = later(False)
    with pytest.raises(FutureStateError, match="is neither true nor false; await it"):
        assert not contains
    later.settle()
    with pytest.raises(FutureStateError, match="then_conditionally_"):
        assert not contains


@pytest.mark.parametrize(("value", "expected"), [(4, (True, "even")), (3, (False, "odd"))])
def test_conditional_branches(later: Later, value: int, expected: tuple[bool, str]) -> None:
    def even(number: int) -> bool:
        return number % 2 == 0

    applied = later(value).then_conditionally_apply(even, lambda _: "even", lambda _: "odd")
    composed = later(value).then_conditionally_compose(even, lambda _: later("even"), lambda _: later("odd"))
    without_else = later(value).then_conditionally_apply(even, lambda _: "even")
    calls: list[str] = []
    accepted = later(value).then_conditionally_accept(
        even, lambda _: calls.append("even"), lambda _: calls.append("odd")
    )
    later.settle()
    assert applied.get() == expected
    assert composed.get() == expected
    assert without_else.get() == (expected[0], "even" if expected[0] else None)
    assert accepted.get() is expected[0]
    assert calls == [expected[1]]


def test_a_failure_skips_functions_until_recovered(later: Later) -> None:
    called: list[str] = []
    end = (
        later(ValueError("no"))
        .then_apply(lambda _: called.append("apply"))
        .then_compose(lambda _: later(called.append("compose")))
        .finally_(lambda: called.append("finally"))
        .recover(lambda error: f"recovered from {error}")
    )
    later.settle()
    assert end.get() == "recovered from no"
    assert called == ["finally"]


def test_finally_passes_the_value_and_its_own_failure(later: Later) -> None:
    kept = later(7).finally_(lambda: None)
    broken = later(7).finally_(lambda: 1 // 0)
    later.settle()
    assert kept.get() == 7
    with pytest.raises(ZeroDivisionError):
        broken.get()


def test_compose_must_return_a_future(later: Later) -> None:
    end = later(1).then_compose(lambda value: value)
    later.settle()
    with pytest.raises(FutureStateError, match="must return a StateFuture"):
        end.get()


def test_completing_twice_is_an_error() -> None:
    future: StateFuture[int] = StateFuture()
    future.complete(1)
    with pytest.raises(FutureStateError, match="completed twice"):
        future.complete(2)
    with pytest.raises(FutureStateError, match="completed twice"):
        future.fail(ValueError())


def test_get_of_a_pending_future_is_an_error() -> None:
    with pytest.raises(FutureStateError, match="no value yet; chain with then_apply"):
        StateFuture().get()


@pytest.mark.parametrize("copy_of", [pickle.dumps, copy.copy, copy.deepcopy])
def test_futures_cannot_be_pickled_or_copied(later: Later, copy_of: Callable[[Any], Any]) -> None:
    with pytest.raises(FutureStateError, match="cannot be pickled or copied.*value"):
        copy_of(later(1))


def test_a_derived_future_is_completed_by_its_source_only() -> None:
    source: StateFuture[int] = StateFuture()
    derived = source.then_apply(lambda value: value + 1)
    with pytest.raises(FutureStateError, match="its request or source future completes it"):
        derived.complete(5)
    with pytest.raises(FutureStateError, match="its request or source future completes it"):
        combine_all([derived]).fail(ValueError())
    source.complete(1)
    assert derived.get() == 2


def test_a_coroutine_function_is_no_function_for_then_compose(later: Later) -> None:
    async def mine(value: int) -> int:
        return value

    end = later(1).then_compose(mine)
    later.settle()
    with pytest.raises(FutureStateError, match=r"mine must return a StateFuture but returned <coroutine"):
        end.get()


def test_a_chain_of_any_length_needs_no_stack() -> None:
    first: StateFuture[int] = StateFuture()
    end = first
    for _ in range(50_000):
        end = end.then_compose(lambda value: completed_future(value + 1))
    first.complete(0)
    assert end.get() == 50_000


@pytest.mark.parametrize("fails", [False, True])
def test_combinations_of_combinations_need_no_stack(fails: bool) -> None:
    sources: list[StateFuture[int]] = [StateFuture() for _ in range(5_000)]
    total: StateFuture[Any] = completed_future(0)
    for source in sources:
        total = as_completed([combine_all(total, source).then_apply(sum)])[0]
    for source in reversed(sources):
        if fails and source is sources[0]:
            source.fail(ValueError("the first"))
        else:
            source.complete(1)
    if fails:
        assert str(total.exception()) == "the first"
    else:
        assert total.get() == 5_000


def test_callbacks_of_one_future_run_in_order_of_attachment() -> None:
    source: StateFuture[int] = StateFuture()
    order: list[str] = []
    source.then_accept(lambda _: order.append("a")).then_accept(lambda _: order.append("a2"))
    source.then_accept(lambda _: order.append("b")).then_accept(lambda _: order.append("b2"))
    source.complete(0)
    assert order == ["a", "b", "a2", "b2"]


@given(st.lists(st.integers(), max_size=20), st.permutations(range(20)))
def test_combine_all_keeps_the_order_given(values: list[int], order: list[int]) -> None:
    sources: list[StateFuture[int]] = [StateFuture() for _ in values]
    combined = combine_all(sources)
    for index in order:
        if index < len(values):
            assert not combined.done
            sources[index].complete(values[index])
    assert combined.get() == values


@pytest.mark.parametrize("settled", [0, 1, 2, 3])
def test_combine_all_of_futures_one_by_one_has_a_tuple(settled: int) -> None:
    sources: list[StateFuture[int]] = [StateFuture() for _ in range(3)]
    for number in range(settled):
        sources[number].complete(number)
    combined, one = combine_all(*sources), combine_all(sources[2])
    for number in range(settled, 3):
        assert not combined.done
        sources[number].complete(number)
    assert combined.get() == (0, 1, 2)
    assert one.get() == (2,)
    assert combine_all().get() == ()


@given(st.permutations(range(5)), st.sets(st.integers(0, 4)))
def test_as_completed_is_in_the_order_of_settling(order: list[int], fails: set[int]) -> None:
    sources: list[StateFuture[int]] = [StateFuture() for _ in order]
    settled = as_completed(sources)
    for place, index in enumerate(order):
        assert [future.done or future.failed for future in settled] == [at < place for at in range(5)]
        if index in fails:
            sources[index].fail(ValueError(str(index)))
            assert str(settled[place].exception()) == str(index)
        else:
            sources[index].complete(index)
            assert settled[place].get() == index


def test_as_completed_of_what_is_settled(later: Later) -> None:
    ordered = as_completed([later(1), later(ValueError("second")), completed_future(3)])
    later.settle()
    assert sorted(future.get() for future in ordered if not future.failed) == [1, 3]
    assert [str(future.exception()) for future in ordered if future.failed] == ["second"]
    assert as_completed([]) == []


def test_combine_all_fails_once_with_the_first_failure(later: Later) -> None:
    combined = combine_all([later(1), later(ValueError("first")), later(ValueError("second"))])
    later.settle()
    with pytest.raises(ValueError, match="first"):
        combined.get()


@pytest.mark.parametrize("wrong", [None, 3])
def test_combine_refuses_what_is_no_future(wrong: Any) -> None:
    with pytest.raises(FutureStateError, match="completed_future"):
        combine_all([completed_future(1), wrong])
    with pytest.raises(FutureStateError, match="completed_future"):
        combine_all(completed_future(1), wrong)
    with pytest.raises(FutureStateError, match="completed_future"):
        completed_future(1).then_combine(wrong, lambda a, b: a)


def test_the_names_of_the_flip_are_the_same_objects() -> None:
    for snake, camel in [
        ("then_apply", "thenApply"),
        ("then_accept", "thenAccept"),
        ("then_compose", "thenCompose"),
        ("then_combine", "thenCombine"),
    ]:
        assert getattr(StateFuture, snake) is getattr(StateFuture, camel)
    assert futures.combineAll is futures.combine_all


def test_the_void_future_is_one_object() -> None:
    assert completed_void_future() is completed_void_future()
    assert completed_void_future().get() is None


class _Key:
    def __init__(self, key: int) -> None:
        self.key = (key,)
        self.out: list[Any] = []
        self.emitted = self.out


class _Scope:
    current: _Key | None = None

    def __init__(self) -> None:
        self.failed: list[StateFuture[Any]] = []
        self.outputs: list[Any] = []

    def future_failed(self, future: StateFuture[Any]) -> None:
        self.failed.append(future)


def test_only_failures_that_nothing_took_on_are_left(later: Later) -> None:
    scope = _Scope()
    before = set_failure_scope(scope)
    try:
        later(1).then_apply(lambda _: 1 // 0)
        later(1).then_apply(lambda _: 1 // 0).recover(lambda _: 0)
        later.settle()
    finally:
        set_failure_scope(before)
    assert len([future for future in scope.failed if not future.failure_observed]) == 1


def _paged(items: list[int], size: int, later: Later) -> StateIterator[int]:
    rest = items[size:]
    return StateIterator(items[:size], (lambda: later(_paged(rest, size, later))) if rest else None)


@pytest.mark.parametrize("count", [0, 1, 5, 12])
def test_iterators_load_page_by_page(later: Later, count: int) -> None:
    items = list(range(count))
    seen: list[int] = []
    consumed = _paged(items, 5, later).on_next(seen.append)
    doubled = _paged(items, 5, later).on_next(lambda item: later(item * 2))
    listed = to_iterable(completed_future(_paged(items, 5, later)))
    later.settle()
    assert seen == items
    assert consumed.get() == (None if count else [])  # nobody can tell a consumer that was never called
    assert doubled.get() == [item * 2 for item in items]
    assert listed.get() == items
    assert _paged(items, 5, later).is_empty() is (count == 0)


@pytest.mark.parametrize("first", ["to_list", "on_next", "async for", "for"])
@pytest.mark.parametrize("second", ["to_list", "on_next", "async for", "for"])
def test_pages_are_loaded_once_and_one_page_may_be_used_again(first: str, second: str) -> None:
    async def listed(entries: StateIterator[int]) -> list[int]:
        return [entry async for entry in entries]

    def used(entries: StateIterator[int], how: str) -> list[int]:
        seen: list[int] = []
        if how == "to_list":
            return entries.to_list().get()
        if how == "on_next":
            entries.on_next(seen.append)
            return seen
        return asyncio.run(listed(entries)) if how == "async for" else list(entries)

    one = _paged([1, 2], 2, Later(False))
    assert used(one, first) == used(one, second) == [1, 2]
    several = _paged([1, 2, 3, 4, 5], 2, Later(False))
    assert next(iter(several)) == 1, "nothing is passed"
    assert used(several, first) == [1, 2, 3, 4, 5]
    with pytest.raises(FutureStateError, match=r"several pages .* keep the entries in a list"):
        used(several, second)


def test_on_next_may_return_futures_for_some_entries(later: Later) -> None:
    end = _paged([1, 2, 3], 2, later).on_next(lambda item: later(item) if item % 2 else None)
    later.settle()
    assert end.get() == [1, None, 3]


def test_many_pages_need_no_stack(later: Later) -> None:
    total: list[int] = []
    _paged(list(range(5_000)), 1, Later(False)).on_next(total.append)
    assert len(total) == 5_000


def test_iterators_work_in_coroutines() -> None:
    async def collect() -> list[int]:
        first = await completed_future(1)
        return [first, *[item async for item in _paged([2, 3, 4], 2, Later(False))]]

    assert asyncio.run(collect()) == [1, 2, 3, 4]


@pytest.fixture
def scope() -> Iterator[_Scope]:
    scope = _Scope()
    before = set_failure_scope(scope)
    yield scope
    set_failure_scope(before)


USES: dict[str, Callable[[StateFuture[Any]], Any]] = {
    "then_apply": lambda future: future.then_apply(str),
    "then_compose": lambda future: future.then_compose(completed_future),
    "then_combine": lambda future: future.then_combine(completed_future(1), max),
    "recover": lambda future: future.recover(str),
    "finally_": lambda future: future.finally_(lambda: None),
    "combine_all": lambda future: combine_all([future]),
    "complete": lambda future: future.complete(1),
    "fail": lambda future: future.fail(ValueError()),
}


class TestOwnership:
    @pytest.mark.parametrize("use", USES)
    def test_a_pending_future_is_for_the_record_that_made_it(self, scope: _Scope, use: str) -> None:
        scope.current = _Key(1)
        future: StateFuture[int] = StateFuture()
        scope.current = _Key(2)
        with pytest.raises(FutureStateError, match=r"key \(1,\)> was .* key \(2,\) is being processed"):
            USES[use](future)
        scope.current = None
        with pytest.raises(FutureStateError, match=r"key \(1,\)> was .* while no record is being processed"):
            USES[use](future)
        set_failure_scope(None)
        with pytest.raises(FutureStateError, match=r"key \(1,\)> was .* after its micro-batch ended"):
            USES[use](future)

    @pytest.mark.parametrize("use", USES)
    def test_that_record_may_use_it(self, scope: _Scope, use: str) -> None:
        scope.current = _Key(1)
        USES[use](StateFuture())

    def test_what_is_derived_belongs_to_the_same_record(self, scope: _Scope) -> None:
        scope.current = _Key(1)
        derived = combine_all([StateFuture().then_apply(str)])
        scope.current = _Key(2)
        with pytest.raises(FutureStateError, match=r"key \(1,\)"):
            derived.then_apply(str)

    def test_a_foreign_future_is_no_answer_for_then_compose(self, scope: _Scope) -> None:
        scope.current = _Key(1)
        foreign: StateFuture[int] = StateFuture()
        scope.current = _Key(2)
        source: StateFuture[int] = StateFuture()
        end = source.then_compose(lambda _: foreign)
        source.complete(1)
        with pytest.raises(FutureStateError, match=r"key \(1,\)> was returned to then_compose"):
            end.get()

    def test_a_future_that_has_its_value_is_for_everybody(self, scope: _Scope) -> None:
        scope.current = _Key(1)
        future: StateFuture[int] = StateFuture()
        future.complete(1)
        scope.current = _Key(2)
        assert future.then_apply(lambda value: value + 1).get() == 2
