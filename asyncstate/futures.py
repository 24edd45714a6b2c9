"""Futures for state results: chaining, combining, iterating.

Owns: ``StateFuture``, ``StateIterator`` and the functions that combine futures.
Invariant: a future is settled at most once, and callbacks run on the thread that settles it; chains of any
length are settled with a loop, never by recursion.
Must not import threads, I/O or any other part of the project except ``errors``.

Source: FLIP-424 (asynchronous state APIs) and FLIP-473 (paradigms); ``recover`` and ``finally_`` are ours.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator
from typing import Any, Final, Generic, Protocol, TypeVar, cast

from asyncstate.errors import FutureStateError

T = TypeVar("T")
U = TypeVar("U")
V = TypeVar("V")

_PENDING: Final = 0
_DONE: Final = 1
_FAILED: Final = 2

# One settling step: (function of the user, derived future, state and value of the source) -> None.
_Step = Callable[[Any, "StateFuture[Any]", int, Any, list[tuple["StateFuture[Any]", int, Any]]], None]


class FailureScope(Protocol):
    """Told of every future that fails, so that a failure nobody handles cannot pass in silence."""

    def future_failed(self, future: StateFuture[Any]) -> None:
        """Called when ``future`` has failed; ``future.failure_observed`` tells later whether it was handled."""


class _Scopes(threading.local):
    current: FailureScope | None = None


_scopes = _Scopes()


def set_failure_scope(scope: FailureScope | None) -> FailureScope | None:
    """Make ``scope`` the one told of failed futures on this thread; returns the scope before it."""
    previous = _scopes.current
    _scopes.current = scope
    return previous


class StateFuture(Generic[T]):
    """The result of a state request that may not be there yet.

    Derived futures (``then_*``) carry a failure of their source on without calling their function. A failure
    that reaches the end of a chain fails the micro-batch with operator, state and key named.
    """

    __slots__ = ("_callbacks", "_observed", "_state", "_value")

    def __init__(self) -> None:
        self._state: int = _PENDING
        self._value: Any = None
        self._callbacks: list[tuple[_Step, Any, StateFuture[Any]]] | None = None
        self._observed = False

    # -- reading ----------------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        """True when the future has a value or has failed."""
        return self._state != _PENDING

    @property
    def failed(self) -> bool:
        """True when the future has failed."""
        return self._state == _FAILED

    @property
    def failure_observed(self) -> bool:
        """True when something was derived from this future, so that its failure went on to there."""
        return self._observed

    def get(self) -> T:
        """The value.

        Raises FutureStateError while the future is pending, and the failure itself if it has failed.
        """
        if self._state == _DONE:
            return cast(T, self._value)
        if self._state == _FAILED:
            self._observed = True
            raise self._value
        raise FutureStateError("the future has no value yet; use then_apply/then_compose or await it")

    def exception(self) -> BaseException | None:
        """The failure, or None while pending or when there is a value."""
        return self._value if self._state == _FAILED else None

    def __await__(self) -> Generator[StateFuture[T], None, T]:
        if self._state == _PENDING:
            yield self
        return self.get()

    def __repr__(self) -> str:
        state = ("pending", "done", "failed")[self._state]
        return (
            f"<StateFuture {state}>" if self._state == _PENDING else f"<StateFuture {state}: {self._value!r}>"
        )

    # -- settling ---------------------------------------------------------------------------------

    def complete(self, value: T) -> None:
        """Give the future its value and run what waits for it. Raises FutureStateError if it is settled."""
        _settle(self, _DONE, value)

    def fail(self, error: BaseException) -> None:
        """Let the future fail. Raises FutureStateError if it is settled already."""
        _settle(self, _FAILED, error)

    # -- deriving ---------------------------------------------------------------------------------

    def then_apply(self, fn: Callable[[T], U]) -> StateFuture[U]:
        """A future of ``fn(value)``."""
        if self._state == _DONE:
            # as completed_future does; this is half of every chain on state that is in memory
            done = _new_future(StateFuture)
            try:
                done._value = fn(self._value)
            except Exception as error:
                return failed_future(error)
            done._state = _DONE
            return done
        return self._derive(_apply, fn)

    def then_accept(self, fn: Callable[[T], object]) -> StateFuture[None]:
        """Call ``fn(value)`` for its effect; a future of None."""
        if self._state == _DONE:
            try:
                fn(self._value)
            except Exception as error:
                return failed_future(error)
            return _VOID
        return self._derive(_accept, fn)

    def then_compose(self, fn: Callable[[T], StateFuture[U]]) -> StateFuture[U]:
        """The future that ``fn(value)`` returns. Anything but a StateFuture from ``fn`` is a FutureStateError."""
        if self._state == _DONE:
            try:
                inner = fn(self._value)
                return inner if type(inner) is StateFuture else _future_from(inner, fn)
            except Exception as error:
                return failed_future(error)
        return self._derive(_compose, fn)

    def then_combine(self, other: StateFuture[U], fn: Callable[[T, U], V]) -> StateFuture[V]:
        """A future of ``fn(value, other's value)`` once both are there."""
        _require_future(other, "then_combine")
        return self.then_compose(lambda mine: other.then_apply(lambda others: fn(mine, others)))

    def then_conditionally_apply(
        self,
        condition: Callable[[T], bool],
        if_true: Callable[[T], U],
        if_false: Callable[[T], V] | None = None,
    ) -> StateFuture[tuple[bool, U | V | None]]:
        """A future of ``(condition(value), result of the branch taken)``; None where there is no branch."""

        def branch(value: T) -> tuple[bool, U | V | None]:
            if condition(value):
                return True, if_true(value)
            return False, if_false(value) if if_false is not None else None

        return self.then_apply(branch)

    def then_conditionally_accept(
        self,
        condition: Callable[[T], bool],
        if_true: Callable[[T], object],
        if_false: Callable[[T], object] | None = None,
    ) -> StateFuture[bool]:
        """Call one of two consumers; a future of the condition."""

        def branch(value: T) -> bool:
            if condition(value):
                if_true(value)
                return True
            if if_false is not None:
                if_false(value)
            return False

        return self.then_apply(branch)

    def then_conditionally_compose(
        self,
        condition: Callable[[T], bool],
        if_true: Callable[[T], StateFuture[U]],
        if_false: Callable[[T], StateFuture[V]] | None = None,
    ) -> StateFuture[tuple[bool, U | V | None]]:
        """A future of ``(condition(value), value of the future of the branch taken)``."""

        def branch(value: T) -> StateFuture[tuple[bool, U | V | None]]:
            if condition(value):
                return _future_from(if_true(value), if_true).then_apply(lambda result: (True, result))
            if if_false is None:
                return completed_future((False, None))
            return _future_from(if_false(value), if_false).then_apply(lambda result: (False, result))

        return self.then_compose(branch)

    def recover(self, fn: Callable[[Exception], T]) -> StateFuture[T]:
        """This value, or ``fn(error)`` where this future fails."""
        if self._state == _DONE:
            return self
        return self._derive(_recover, fn)

    def finally_(self, fn: Callable[[], object]) -> StateFuture[T]:
        """Call ``fn()`` whether this future has a value or fails; the outcome is passed on."""
        return self._derive(_finally, fn)

    def on_settled(self, fn: Callable[[StateFuture[T]], object]) -> None:
        """Call ``fn(self)`` once this future is settled, either way; its failure counts as handled by ``fn``."""
        self._derive(_settled, (fn, self))

    def _derive(self, step: _Step, fn: Any) -> StateFuture[Any]:
        child: StateFuture[Any] = StateFuture()
        if self._state == _PENDING:
            callbacks = self._callbacks
            if callbacks is None:
                self._callbacks = [(step, fn, child)]
            else:
                callbacks.append((step, fn, child))
            return child
        if self._state == _FAILED:
            self._observed = True
        work: list[tuple[StateFuture[Any], int, Any]] = []
        step(fn, child, self._state, self._value, work)
        _run(work)
        return child

    # The names of FLIP-473's paradigms, the same objects under the FLIP's spelling.
    thenApply = then_apply  # noqa: N815
    thenAccept = then_accept  # noqa: N815
    thenCompose = then_compose  # noqa: N815
    thenCombine = then_combine  # noqa: N815


# -- steps: how a derived future is settled from its source ----------------------------------------------

_Work = list[tuple[StateFuture[Any], int, Any]]


def _apply(fn: Any, child: StateFuture[Any], state: int, value: Any, work: _Work) -> None:
    if state == _DONE:
        try:
            value = fn(value)
        except Exception as error:
            state, value = _FAILED, error
    work.append((child, state, value))


def _accept(fn: Any, child: StateFuture[Any], state: int, value: Any, work: _Work) -> None:
    if state == _DONE:
        try:
            fn(value)
            value = None
        except Exception as error:
            state, value = _FAILED, error
    work.append((child, state, value))


def _compose(fn: Any, child: StateFuture[Any], state: int, value: Any, work: _Work) -> None:
    if state == _DONE:
        try:
            inner = _future_from(fn(value), fn)
        except Exception as error:
            work.append((child, _FAILED, error))
            return
        if inner._state == _PENDING:
            if inner._callbacks is None:
                inner._callbacks = [(_forward, None, child)]
            else:
                inner._callbacks.append((_forward, None, child))
            return
        if inner._state == _FAILED:
            inner._observed = True
        state, value = inner._state, inner._value
    work.append((child, state, value))


def _forward(_fn: Any, child: StateFuture[Any], state: int, value: Any, work: _Work) -> None:
    work.append((child, state, value))


def _recover(fn: Any, child: StateFuture[Any], state: int, value: Any, work: _Work) -> None:
    if state == _FAILED and isinstance(value, Exception):
        try:
            state, value = _DONE, fn(value)
        except Exception as error:
            state, value = _FAILED, error
    work.append((child, state, value))


def _finally(fn: Any, child: StateFuture[Any], state: int, value: Any, work: _Work) -> None:
    try:
        fn()
    except Exception as error:
        if state == _FAILED:
            error.__context__ = value
        state, value = _FAILED, error
    work.append((child, state, value))


def _settled(fn: Any, child: StateFuture[Any], _state: int, _value: Any, work: _Work) -> None:
    callback, source = fn
    callback(source)
    work.append((child, _DONE, None))


def _settle(future: StateFuture[Any], state: int, value: Any) -> None:
    if future._state != _PENDING:
        raise FutureStateError(
            f"a future was completed twice: it is {future!r}, the second outcome is {value!r}; "
            "complete each future once, and never one that the framework gave you"
        )
    _run([(future, state, value)])


def _run(work: _Work) -> None:
    """Settle every future in ``work`` and what derives from it, in the order of derivation."""
    while work:
        future, state, value = work.pop()
        future._state = state
        future._value = value
        callbacks = future._callbacks
        if callbacks is None:
            if state == _FAILED:
                _report_failure(future)
            continue
        future._callbacks = None
        future._observed = True
        if len(callbacks) == 1:
            step, fn, child = callbacks[0]
            step(fn, child, state, value, work)
            continue
        derived: _Work = []
        for step, fn, child in callbacks:
            step(fn, child, state, value, derived)
        derived.reverse()
        work.extend(derived)


def _report_failure(future: StateFuture[Any]) -> None:
    scope = _scopes.current
    if scope is not None:
        scope.future_failed(future)


def _future_from(result: Any, fn: Any) -> StateFuture[Any]:
    if isinstance(result, StateFuture):
        return result
    name = getattr(fn, "__qualname__", repr(fn))
    raise FutureStateError(
        f"{name} must return a StateFuture but returned {result!r}; "
        "use then_apply for a plain value, or return completed_future(value)"
    )


def _require_future(future: object, where: str) -> None:
    if not isinstance(future, StateFuture):
        raise FutureStateError(
            f"{where} needs StateFutures, got {future!r}; wrap a value in completed_future(...)"
        )


# -- making and combining ----------------------------------------------------------------------------------


# A future that is settled when it is made has no use for the other slots, and so none for ``__init__``.
_new_future: Final = StateFuture.__new__


def completed_future(value: T) -> StateFuture[T]:
    """A future that has ``value`` already."""
    future: StateFuture[T] = _new_future(StateFuture)
    future._state = _DONE
    future._value = value
    return future


def failed_future(error: BaseException) -> StateFuture[Any]:
    """A future that has failed with ``error``; it is reported unless something is derived from it."""
    future: StateFuture[Any] = StateFuture()
    future._state = _FAILED
    future._value = error
    _report_failure(future)
    return future


_VOID: Final[StateFuture[None]] = completed_future(None)


def completed_void_future() -> StateFuture[None]:
    """A future of None that is there already (always the same object)."""
    return _VOID


def combine_all(futures: Iterable[StateFuture[T]]) -> StateFuture[list[T]]:
    """A future of all values, in the order given; it fails as soon as one of them fails.

    Raises FutureStateError when something among ``futures`` (None, say) is no StateFuture.
    """
    sources = list(futures)
    for future in sources:
        _require_future(future, "combine_all")
    values: list[Any] = [None] * len(sources)
    combined: StateFuture[list[T]] = StateFuture()
    missing = 1  # one for the loop below, so that completion happens once and at its end

    def arrived(index: int, value: Any) -> None:
        nonlocal missing
        values[index] = value
        missing -= 1
        if missing == 0 and not combined.done:
            combined.complete(values)

    def failed(error: Exception) -> None:
        if not combined.done:
            combined.fail(error)

    for index, future in enumerate(sources):
        if future._state == _DONE:
            values[index] = future._value
            continue
        missing += 1
        future._derive(_watch, (index, arrived, failed))
    missing -= 1
    if missing == 0 and not combined.done:
        combined.complete(values)
    return combined


def _watch(fn: Any, child: StateFuture[Any], state: int, value: Any, work: _Work) -> None:
    index, arrived, failed = fn
    if state == _DONE:
        arrived(index, value)
    else:
        failed(value)
    # the failure went on to the combined future, so the watcher itself ends well
    work.append((child, _DONE, None))


combineAll = combine_all  # noqa: N816 - the FLIP's spelling, the same object


class StateIterator(Generic[T]):
    """The entries of a list or map state, loaded page by page as they are consumed.

    ``items`` is the page at hand; ``load_more`` gives a future of the iterator over the rest, or is None at the
    end. Pages are snapshots: writing to the state while iterating is safe.
    """

    __slots__ = ("_items", "_load_more")

    def __init__(
        self, items: list[T], load_more: Callable[[], StateFuture[StateIterator[T]]] | None = None
    ) -> None:
        self._items = items
        self._load_more = load_more

    def is_empty(self) -> bool:
        """True when there is no entry at all (a page with a successor is never empty)."""
        return not self._items and self._load_more is None

    def on_next(self, fn: Callable[[T], StateFuture[U] | None]) -> StateFuture[Any]:
        """Call ``fn`` on every entry, in order.

        If ``fn`` returns StateFutures the result is a future of the list of their values (None for an entry
        where it returned no future); with a plain consumer it is a future of None.
        """
        return self._on_next(fn, [])

    def _on_next(self, fn: Callable[[T], Any], results: list[Any]) -> StateFuture[Any]:
        page: StateIterator[T] = self
        while True:
            for item in page._items:
                results.append(fn(item))
            if page._load_more is None:
                return _results_of(results)
            more = page._load_more()
            if not more.done or more.failed:
                return more.then_compose(lambda following: following._on_next(fn, results))
            page = more.get()

    def __iter__(self) -> Iterator[T]:
        """Iterate at once (sync form). Raises FutureStateError if a page is not there yet."""
        page: StateIterator[T] = self
        while True:
            yield from page._items
            if page._load_more is None:
                return
            page = page._load_more().get()

    async def __aiter__(self) -> AsyncIterator[T]:
        page: StateIterator[T] = self
        while True:
            for item in page._items:
                yield item
            if page._load_more is None:
                return
            page = await page._load_more()

    def to_list(self) -> StateFuture[list[T]]:
        """A future of all entries."""
        entries: list[T] = []
        return self.on_next(entries.append).then_apply(lambda _: entries)


def _results_of(results: list[Any]) -> StateFuture[Any]:
    if not any(isinstance(result, StateFuture) for result in results):
        return _VOID
    return combine_all([result if isinstance(result, StateFuture) else _VOID for result in results])


def to_iterable(future: StateFuture[StateIterator[T]]) -> StateFuture[list[T]]:
    """A future of all entries of the iterator that ``future`` gives (Flink's ``toIterable``)."""
    _require_future(future, "to_iterable")
    return future.then_compose(lambda iterator: iterator.to_list())
