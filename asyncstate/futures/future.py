"""StateFuture: the result of a state request, and how futures derive from each other.

Owns: ``StateFuture``, and futures that are settled when they are made.
Invariant: what a chain does is the same whether its source is settled already or will be later.
Must not import threads, I/O or any other part of the project except ``errors``.

Source: FLIP-424 (asynchronous state APIs) and FLIP-473 (paradigms); ``recover`` and ``finally_`` are ours.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from types import CoroutineType
from typing import Any, Final, Generic, NoReturn, TypeVar, cast

from asyncstate.errors import FutureStateError
from asyncstate.futures import settling
from asyncstate.futures.not_a_value import NotAValue
from asyncstate.futures.scopes import FutureOwner, current_owner, require_own, scopes
from asyncstate.futures.settling import (
    DONE,
    FAILED,
    FOLLOWING,
    PENDING,
    PROMISED,
    FutureCore,
    Step,
    Work,
    future_from,
    refuse_coroutine,
    refuse_unrun,
    report_failure,
    require_future,
)

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
U = TypeVar("U")
V = TypeVar("V")


class StateFuture(FutureCore, NotAValue, Generic[T_co]):
    """The result of a state request that may not be there yet.

    Derived futures (``then_*``) pass on a failure of their source without calling their function. A failure that
    reaches the end of a chain fails the micro-batch with operator, state and key named.
    """

    __slots__ = ()

    def __init__(self) -> None:
        self._state = PENDING
        self._value = None
        self._callbacks = None
        self._observed = False
        self._owner = current_owner()

    # -- reading ----------------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        """True when the future has a value or has failed."""
        return self._state != PENDING

    @property
    def failed(self) -> bool:
        """True when the future has failed."""
        return self._state == FAILED

    @property
    def failure_observed(self) -> bool:
        """True when something was derived from this future, which takes over its failure."""
        return getattr(self, "_observed", False)  # one that had its value from the start never needs it

    def get(self) -> T_co:
        """The value.

        Raises FutureStateError while the future is pending, and the failure itself if it has failed.
        """
        if self._state == DONE:
            return cast(T_co, self._value)
        if self._state == FAILED:
            self._observed = True
            raise self._value
        raise FutureStateError(
            f"get() of {self!r}: it has no value yet; chain with then_apply/then_compose, or await it in a coroutine"
        )

    def exception(self) -> BaseException | None:
        """The failure, or None while pending or when there is a value."""
        return self._value if self._state == FAILED else None

    def __await__(self) -> Generator[StateFuture[T_co], None, T_co]:
        if self._state == PENDING:
            yield self
        return self.get()

    def __repr__(self) -> str:
        if self._state == PENDING:
            of_record = "" if self._owner is None else f", of the record with key {self._owner.key!r}"
            return f"<StateFuture pending{of_record}>"
        return f"<StateFuture {'done' if self._state == DONE else 'failed'}: {self._value!r}>"

    def __bool__(self) -> NoReturn:
        raise FutureStateError(
            f"{self!r} is neither true nor false; await it, or branch on its value in then_apply or "
            "then_conditionally_apply"
        )

    def __reduce__(self) -> NoReturn:
        raise FutureStateError(
            f"{self!r} cannot be pickled or copied: it belongs to one record's request; store or pass on its value in "
            "a callback, and do not keep futures in the operator"
        )

    # -- settling ---------------------------------------------------------------------------------

    def complete(self, value: T_co) -> None:  # type: ignore[misc]  # who completes it made it, and knows T_co
        """Set the future's value and run what waits for it.

        Raises FutureStateError if it is settled, if the framework settles it, or if it belongs to another record.
        """
        settling.complete(self, DONE, value)

    def fail(self, error: BaseException) -> None:
        """Make the future fail. Raises FutureStateError as ``complete`` does."""
        settling.complete(self, FAILED, error)

    # -- deriving ---------------------------------------------------------------------------------

    def then_apply(self, fn: Callable[[T_co], U]) -> StateFuture[U]:
        """A future of ``fn(value)``."""
        if self._state == DONE:
            # as completed_future does; this is half of every chain on state that is in memory
            done = _new_future(StateFuture)
            try:
                value = done._value = fn(self._value)
                if type(value) is CoroutineType:
                    refuse_coroutine(value, fn, "then_apply")
            except Exception as error:
                return failed_future(error)
            done._state = DONE
            return done
        return self._derive(settling.apply, fn)

    def then_accept(self, fn: Callable[[T_co], object]) -> StateFuture[None]:
        """Call ``fn(value)`` for its effect; a future of None."""
        if self._state == DONE:
            try:
                result = fn(self._value)
                if result is not None:
                    refuse_unrun(result, fn, "then_accept")
            except Exception as error:
                return failed_future(error)
            return VOID
        return self._derive(settling.accept, fn)

    def then_compose(self, fn: Callable[[T_co], StateFuture[U]]) -> StateFuture[U]:
        """The future that ``fn(value)`` returns. Anything but a StateFuture from ``fn`` is a FutureStateError."""
        if self._state == DONE:
            nesting = scopes.nesting
            depth = nesting.depth
            if depth >= _NESTING_MAX:
                return _compose_later(fn, self._value)
            nesting.depth = depth + 1
            try:
                inner = fn(self._value)
                return inner if type(inner) is StateFuture else future_from(inner, fn)
            except Exception as error:
                return failed_future(error)
            finally:
                nesting.depth = depth
                if not depth and nesting.postponed:
                    _run_postponed()
        return self._derive(settling.compose, fn)

    def then_combine(self, other: StateFuture[U], fn: Callable[[T_co, U], V]) -> StateFuture[V]:
        """A future of ``fn(value, other's value)`` once both values exist."""
        if type(other) is not StateFuture:
            require_future(other, "then_combine")
        if self._state == DONE and other._state == DONE:  # no chain of two for existing values
            try:
                return completed_future(fn(self._value, other._value))
            except Exception as error:
                return failed_future(error)
        other._watch(
            settling.settled, (_passed_on, other)
        )  # if this one fails it counts for both, as in combine_all

        def with_other(mine: Any) -> StateFuture[V]:
            return other.then_apply(lambda others: fn(mine, others))

        return self.then_compose(with_other)

    def then_conditionally_apply(
        self,
        condition: Callable[[T_co], bool],
        if_true: Callable[[T_co], U],
        if_false: Callable[[T_co], V] | None = None,
    ) -> StateFuture[tuple[bool, U | V | None]]:
        """A future of ``(condition(value), result of the branch taken)``; None where there is no branch."""
        return self.then_apply(_either(condition, if_true, if_false, "then_conditionally_apply"))

    def then_conditionally_accept(
        self,
        condition: Callable[[T_co], bool],
        if_true: Callable[[T_co], object],
        if_false: Callable[[T_co], object] | None = None,
    ) -> StateFuture[bool]:
        """Call one of two consumers; a future of the condition."""
        branch = _either(condition, if_true, if_false, "then_conditionally_accept", refuse_unrun)

        def taken(value: Any) -> bool:
            return branch(value)[0]

        return self.then_apply(taken)

    def then_conditionally_compose(
        self,
        condition: Callable[[T_co], bool],
        if_true: Callable[[T_co], StateFuture[U]],
        if_false: Callable[[T_co], StateFuture[V]] | None = None,
    ) -> StateFuture[tuple[bool, U | V | None]]:
        """A future of ``(condition(value), value of the future of the branch taken)``."""

        def branch(value: Any) -> StateFuture[tuple[bool, U | V | None]]:
            if condition(value):
                taken: StateFuture[U] = future_from(if_true(value), if_true)
                return taken.then_apply(lambda result: (True, result))
            if if_false is None:
                return completed_future((False, None))
            other: StateFuture[V] = future_from(if_false(value), if_false)
            return other.then_apply(lambda result: (False, result))

        return self.then_compose(branch)

    def recover(self, fn: Callable[[Exception], U]) -> StateFuture[T_co | U]:
        """This value, or ``fn(error)`` if this future fails."""
        if self._state == DONE:
            return self
        return self._derive(settling.recover, fn)

    def finally_(self, fn: Callable[[], object]) -> StateFuture[T_co]:
        """Call ``fn()`` whether this future has a value or fails; the outcome is passed on."""
        return self._derive(settling.finally_, fn)

    def on_settled(self, fn: Callable[[StateFuture[T_co]], object]) -> None:
        """Call ``fn(self)`` once this future is settled, either way; its failure then counts as handled by ``fn``."""
        self._derive(settling.settled, (fn, self))

    def _derive(self, step: Step, fn: Any) -> StateFuture[Any]:
        if self._state == PENDING:
            owner = self._owner
            child = _new_future(StateFuture)  # as pending_future does
            child._state = PENDING
            child._value = PROMISED
            child._callbacks = None
            child._observed = False
            child._owner = owner
            place: list[Any] | None = None
            if owner is not None:
                scope = scopes.current
                if scope is None or scope.current is not owner:
                    require_own(self, owner, "derived from, awaited or returned")
                assert scope is not None
                if self._value is not PROMISED:
                    child._value = FOLLOWING  # settled by the operator, which then runs ``fn``
                if (out := owner.out) is not None and out is not scope.outputs:
                    place = []
                    out.append(place)
            callbacks = self._callbacks
            if callbacks is None:
                self._callbacks = [(step, fn, child, place)]
            else:
                callbacks.append((step, fn, child, place))
            return child
        child = pending_future(None)  # until the end of this method
        if self._state == FAILED:
            self._observed = True
        work: Work = []
        step(fn, child, self._state, self._value, work)
        settling.run(work)
        return child

    def _watch(self, step: Step, fn: Any) -> None:
        """Like ``_derive``, for the framework's own steps, which emit nothing."""
        if self._state != PENDING:
            self._derive(step, fn)
            return
        if self._owner is not None:
            require_own(self, self._owner, "derived from, awaited or returned")
        watcher = (step, fn, pending_future(self._owner), None)
        if self._callbacks is None:
            self._callbacks = [watcher]
        else:
            self._callbacks.append(watcher)

    # The names of FLIP-473's paradigms, the same objects under the FLIP's spelling.
    thenApply = then_apply  # noqa: N815
    thenAccept = then_accept  # noqa: N815
    thenCompose = then_compose  # noqa: N815
    thenCombine = then_combine  # noqa: N815


_NESTING_MAX: Final = 64
"""Functions of then_compose that may run inside each other: a chain of reads with immediate answers makes its next link
inside the last one. Deeper ones run when these have returned, so that chains of any length need no stack."""


def _either(
    condition: Any, if_true: Any, if_false: Any, where: str, refuse: Callable[..., None] = refuse_coroutine
) -> Callable[[Any], tuple[bool, Any]]:
    """A function that calls one of two functions; it returns the condition and the function's result."""

    def branch(value: Any) -> tuple[bool, Any]:
        taken, branch_of = (True, if_true) if condition(value) else (False, if_false)
        result = None if branch_of is None else branch_of(value)
        refuse(result, branch_of, where)
        return taken, result

    return branch


def _compose_later(fn: Callable[[Any], Any], value: Any) -> StateFuture[Any]:
    child = pending_future(current_owner())
    scopes.nesting.postponed.append((fn, value, child))
    return child


def _run_postponed() -> None:
    """Run postponed functions, and those that they postpone; called when no function of then_compose is running."""
    nesting = scopes.nesting
    postponed = nesting.postponed
    nesting.depth = 1
    try:
        while postponed:
            fn, value, child = postponed.popleft()
            work: Work = []
            settling.compose(fn, child, DONE, value, work)
            settling.run(work)
    finally:
        nesting.depth = 0
        postponed.clear()


def _passed_on(_: object) -> None:
    """Ignore the failure: another future has taken it over."""


# A future that is settled when it is made does not use the other slots, and so needs no ``__init__``.
_new_future: Final = StateFuture.__new__


def pending_future(owner: FutureOwner | None) -> StateFuture[Any]:
    """A future of ``owner`` that the framework settles, with ``settle``."""
    future: StateFuture[Any] = _new_future(StateFuture)
    future._state = PENDING
    future._value = PROMISED
    future._callbacks = None
    future._observed = False
    future._owner = owner
    return future


def completed_future(value: T) -> StateFuture[T]:
    """A future that already has ``value``."""
    future: StateFuture[T] = _new_future(StateFuture)
    future._state = DONE
    future._value = value
    return future


def failed_future(error: BaseException) -> StateFuture[Any]:
    """A future that has failed with ``error``; it is reported unless something is derived from it."""
    future: StateFuture[Any] = StateFuture()
    future._state = FAILED
    future._value = error
    report_failure(future)
    return future


VOID: Final[StateFuture[None]] = completed_future(None)


def completed_void_future() -> StateFuture[None]:
    """A future of None that is already settled (always the same object)."""
    return VOID
