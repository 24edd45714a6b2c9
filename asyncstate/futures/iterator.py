"""Iterating list and map states whose entries arrive page by page.

Owns: ``StateIterator`` and ``to_iterable``.
Invariant: a page is loaded only when the one before it has been consumed; any number of pages needs no stack.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from itertools import chain
from types import CoroutineType
from typing import Any, Generic, NoReturn, TypeVar, overload

from asyncstate.errors import FutureStateError
from asyncstate.futures.combine import combine_all
from asyncstate.futures.future import VOID, StateFuture, completed_future
from asyncstate.futures.settling import refuse_unrun, require_future

T = TypeVar("T")
U = TypeVar("U")


class StateIterator(Generic[T]):
    """The entries of a list or map state, loaded page by page as they are consumed.

    ``items`` is the current page; ``load_more`` returns a future of the iterator over the rest, or is None at the end.
    Pages are snapshots: writing to the state while iterating is safe. A page is not kept once it has been passed: going
    through several pages a second time is a FutureStateError.
    """

    __slots__ = ("_items", "_load_more")

    def __init__(
        self, items: list[T], load_more: Callable[[], StateFuture[StateIterator[T]]] | None = None
    ) -> None:
        self._items = items
        self._load_more = load_more

    def _following(self) -> StateFuture[StateIterator[T]]:
        """A future of the iterator over the rest, which is there once."""
        assert self._load_more is not None
        load_more, self._load_more = self._load_more, _passed
        return load_more()  # the state's own cursor, which has no way back

    def is_empty(self) -> bool:
        """True when there is no entry at all (a page with a successor is never empty)."""
        return not self._items and self._load_more is None

    @overload
    def on_next(self, fn: Callable[[T], StateFuture[U]]) -> StateFuture[list[U]]: ...
    @overload
    def on_next(self, fn: Callable[[T], object]) -> StateFuture[Any]: ...
    def on_next(self, fn: Callable[[T], object]) -> StateFuture[Any]:
        """Call ``fn`` on every entry, in order.

        If ``fn`` returns StateFutures the result is a future of the list of their values (None for an entry
        where it returned no future), of the empty list if there is no entry; with a plain consumer it is a future of
        None.
        """
        results: list[Any] = []
        return self._each_page(
            lambda items: results.extend([fn(item) for item in items]), lambda: _results_of(results, fn)
        )

    def to_list(self) -> StateFuture[list[T]]:
        """A future of all entries."""
        entries: list[T] = []
        return self._each_page(entries.extend, lambda: completed_future(entries))

    def _each_page(
        self, take: Callable[[list[T]], object], end: Callable[[], StateFuture[U]]
    ) -> StateFuture[U]:
        """Process all pages, then return the result of ``end``; a loop while pages are available at once."""
        page: StateIterator[T] = self
        while True:
            take(page._items)
            if page._load_more is None:
                return end()
            more = page._following()
            if not more.done or more.failed:
                return more.then_compose(lambda following: following._each_page(take, end))
            page = more.get()

    def __iter__(self) -> Iterator[T]:
        """Iterate at once (sync form). Raises FutureStateError if a page is not there yet."""
        return chain.from_iterable(self._pages())  # no generator's step for each entry

    def _pages(self) -> Iterator[list[T]]:
        page: StateIterator[T] = self
        while True:
            yield page._items
            if page._load_more is None:
                return
            page = page._following().get()

    async def __aiter__(self) -> AsyncIterator[T]:
        page: StateIterator[T] = self
        while True:
            for item in page._items:
                yield item
            if page._load_more is None:
                return
            page = await page._following()


def _passed() -> NoReturn:
    raise FutureStateError(
        "an iterator over several pages of a state was used a second time, but its pages are loaded once; keep the "
        "entries in a list (await iterator.to_list()), or request them from the state again"
    )


def _results_of(results: list[Any], fn: Any) -> StateFuture[Any]:
    if not results:  # unknown what the function would have returned
        return completed_future([])
    if results.count(None) == len(results):  # a plain consumer, as most are
        return VOID
    if type(results[0]) is CoroutineType:
        for other in results[1:]:
            other.close()
    refuse_unrun(results[0], fn, "on_next")
    if not any(isinstance(result, StateFuture) for result in results):
        return VOID
    return combine_all([result if isinstance(result, StateFuture) else VOID for result in results])


def to_iterable(future: StateFuture[StateIterator[T]]) -> StateFuture[list[T]]:
    """A future of all entries of the iterator that ``future`` returns (Flink's ``toIterable``)."""
    require_future(future, "to_iterable")
    return future.then_compose(lambda iterator: iterator.to_list())
