"""How futures are settled, together with the futures derived from them.

Owns: ``FutureCore``, the content of a future, the steps from a source to what is derived from it, and ``settle``.
Invariant: a future is settled at most once, and callbacks run on the thread that settles it; chains of any
length are settled with a loop, never by recursion.
Must not import threads, I/O or any other part of the project except ``errors``.
"""

from __future__ import annotations

from collections.abc import Callable
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, Final

from asyncstate.errors import FutureStateError
from asyncstate.futures.scopes import FutureOwner, require_own, scopes

PENDING: Final = 0
DONE: Final = 1
FAILED: Final = 2

PROMISED: Final = object()
"""The value of a pending future that the framework settles."""

FOLLOWING: Final = object()
"""The same of one that is derived from a future that the operator settles."""


GENERATORS: Final = frozenset({GeneratorType, AsyncGeneratorType})
"""What a generator function returns: nothing has run yet."""


class FutureCore:
    """The content of a future. While it is pending its value is PROMISED, FOLLOWING or None, and its owner is set."""

    __slots__ = ("_callbacks", "_observed", "_owner", "_state", "_value")

    _callbacks: list[tuple[Step, Any, Any, list[Any] | None]] | None
    _observed: bool
    _owner: FutureOwner | None
    _state: int
    _value: Any


Work = list[tuple[Any, int, Any]]
"""Futures to settle, with their states and values."""

Step = Callable[[Any, Any, int, Any, Work], None]
"""One settling step: (function of the user, derived future, state and value of the source, work to add to)."""


def apply(fn: Any, child: FutureCore, state: int, value: Any, work: Work) -> None:
    """``then_apply``."""
    if state == DONE:
        try:
            value = fn(value)
            if type(value) is CoroutineType:
                refuse_coroutine(value, fn, "then_apply")
        except Exception as error:
            state, value = FAILED, error
    work.append((child, state, value))


def accept(fn: Any, child: FutureCore, state: int, value: Any, work: Work) -> None:
    """``then_accept``."""
    if state == DONE:
        try:
            value = fn(value)
            if value is not None:
                refuse_unrun(value, fn, "then_accept")
                value = None
        except Exception as error:
            state, value = FAILED, error
    work.append((child, state, value))


def compose(fn: Any, child: FutureCore, state: int, value: Any, work: Work) -> None:
    """``then_compose``."""
    if state == DONE:
        try:
            inner = future_from(fn(value), fn)
        except Exception as error:
            work.append((child, FAILED, error))
            return
        if inner._state == PENDING:
            try:
                require_own(inner, inner._owner, "returned to then_compose")
            except FutureStateError as error:
                work.append((child, FAILED, error))
                return
            if inner._callbacks is None:
                inner._callbacks = [(_forward, None, child, None)]
            else:
                inner._callbacks.append((_forward, None, child, None))
            return
        if inner._state == FAILED:
            inner._observed = True
        state, value = inner._state, inner._value
    work.append((child, state, value))


def _forward(_fn: Any, child: FutureCore, state: int, value: Any, work: Work) -> None:
    work.append((child, state, value))


def recover(fn: Any, child: FutureCore, state: int, value: Any, work: Work) -> None:
    """``recover``."""
    if state == FAILED and isinstance(value, Exception):
        try:
            state, value = DONE, fn(value)
            refuse_coroutine(value, fn, "recover")
        except Exception as error:
            state, value = FAILED, error
    work.append((child, state, value))


def finally_(fn: Any, child: FutureCore, state: int, value: Any, work: Work) -> None:
    """``finally_``."""
    try:
        refuse_unrun(fn(), fn, "finally_")
    except Exception as error:
        if state == FAILED:
            error.__context__ = value
        state, value = FAILED, error
    work.append((child, state, value))


def settled(fn: Any, child: FutureCore, _state: int, _value: Any, work: Work) -> None:
    """``on_settled``."""
    callback, source = fn
    callback(source)
    work.append((child, DONE, None))


def settle(future: FutureCore, state: int, value: Any) -> None:
    """``complete`` and ``fail`` for the framework: it settles what it has promised."""
    if future._state != PENDING:
        raise FutureStateError(
            f"a future was completed twice: it is {future!r}, the second outcome is {value!r}; complete each future "
            "once, and never one that the framework returned"
        )
    run([(future, state, value)])


def complete(future: FutureCore, state: int, value: Any) -> None:
    """``complete`` and ``fail`` for the operator, which settles what it has made."""
    if future._state == PENDING:
        require_completable(future)
    nesting = scopes.nesting
    outer, nesting.completing = nesting.completing, True
    try:
        settle(future, state, value)
    finally:
        nesting.completing = outer


def run(work: Work) -> None:
    """Settle every future in ``work`` and what derives from it, in the order of derivation.

    Rows that a function emits are placed where they would be if the framework had settled its futures from the start:
    where the function was passed, or where the operator has completed the future, whichever is later in its code.
    """
    while work:
        future, state, value = work.pop()
        future._state = state
        future._value = value
        callbacks = future._callbacks
        if callbacks is None:
            if state == FAILED:
                report_failure(future)
            continue
        future._callbacks = None
        future._observed = True
        if len(callbacks) == 1:
            step, fn, child, place = callbacks[0]
            if place is None:
                step(fn, child, state, value, work)
            else:
                _step_in_place(step, fn, child, state, value, work, place)
            continue
        derived: Work = []
        for step, fn, child, place in callbacks:
            if place is None:
                step(fn, child, state, value, derived)
            else:
                _step_in_place(step, fn, child, state, value, derived, place)
        derived.reverse()
        work.extend(derived)


def _step_in_place(
    step: Step, fn: Any, child: FutureCore, state: int, value: Any, work: Work, place: list[Any]
) -> None:
    owner: Any = child._owner
    by_operator = scopes.nesting.completing or child._value is FOLLOWING
    if by_operator and not _comes_after(owner.emitted, owner.out, place):
        step(fn, child, state, value, work)
        return
    before, owner.out = owner.out, place
    try:
        step(fn, child, state, value, work)
    finally:
        if owner.out is not None:  # else the record has ended
            owner.out = before


def _comes_after(emitted: list[Any], end_of: list[Any], place: list[Any]) -> bool:
    """Whether ``place`` stands after the end of the list ``end_of``; both are ``emitted`` or somewhere in it."""
    if end_of is emitted:
        return False
    passing = [(emitted, iter(emitted))]
    while passing:
        rows, left = passing[-1]
        inner = next((row for row in left if type(row) is list), None)
        if inner is place:
            return False
        if inner is not None:
            passing.append((inner, iter(inner)))
        elif rows is end_of:
            return True
        else:
            passing.pop()
    return False


def require_completable(future: FutureCore) -> None:
    """Raise FutureStateError unless the running record may complete ``future``, which is pending."""
    if future._value is not None:
        raise FutureStateError(
            f"{future!r} was completed by the operator, but its request or source future completes it; complete only "
            "a StateFuture() that you created"
        )
    require_own(future, future._owner, "completed")


def report_failure(future: FutureCore) -> None:
    """Notify the scope that ``future`` has failed and nothing is derived from it."""
    scope = scopes.current
    if scope is not None:
        scope.future_failed(future)


def future_from(result: Any, fn: Any) -> Any:
    """``result``, which ``fn`` returned; FutureStateError unless it is a StateFuture."""
    if isinstance(result, FutureCore):
        return result
    if isinstance(result, CoroutineType):
        result.close()  # else Python also warns that it was never awaited
    name = getattr(fn, "__qualname__", repr(fn))
    raise FutureStateError(
        f"{name} must return a StateFuture but returned {result!r}; "
        "use then_apply for a plain value, or return completed_future(value)"
    )


def refuse_coroutine(result: Any, fn: Any, where: str) -> None:
    """Raise FutureStateError if ``fn``, a callback, has returned a coroutine: nothing would run it."""
    if type(result) is not CoroutineType:
        return
    result.close()  # else Python also warns that it was never awaited
    name = getattr(fn, "__qualname__", repr(fn))
    raise FutureStateError(
        f"{where} got the coroutine function {name}, which would never run; write process() itself as `async def` and "
        "await there, or give a plain function (then_compose, if it makes a further future)"
    )


def refuse_unrun(result: Any, fn: Any, where: str) -> None:
    """Raise FutureStateError if ``fn``, a callback whose result is ignored, has returned a coroutine or a generator."""
    if type(result) in GENERATORS:
        name = getattr(fn, "__qualname__", repr(fn))
        raise FutureStateError(
            f"{where} got the generator function {name}, which would never run; call ctx.emit(...) instead of yield"
        )
    refuse_coroutine(result, fn, where)


def require_future(future: object, where: str) -> None:
    """Raise FutureStateError unless ``future`` is a StateFuture."""
    if not isinstance(future, FutureCore):
        raise FutureStateError(
            f"{where} needs StateFutures, got {future!r}; wrap a value in completed_future(...)"
        )
