"""Many futures as one, or in the order in which they are settled.

Owns: ``combine_all``, ``as_completed``.
Invariant: each future made here is settled once, whatever the order in which its sources are, and without recursion.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar, overload

from asyncstate.futures.future import StateFuture, completed_future, pending_future
from asyncstate.futures.scopes import current_owner
from asyncstate.futures.settling import (
    DONE,
    FAILED,
    FOLLOWING,
    PENDING,
    PROMISED,
    Work,
    require_future,
    settle,
)

T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
E = TypeVar("E")


@overload
def combine_all(futures: Iterable[StateFuture[T]], /) -> StateFuture[list[T]]: ...
@overload
def combine_all(a: StateFuture[A], b: StateFuture[B], /) -> StateFuture[tuple[A, B]]: ...
@overload
def combine_all(
    a: StateFuture[A], b: StateFuture[B], c: StateFuture[C], /
) -> StateFuture[tuple[A, B, C]]: ...
@overload
def combine_all(
    a: StateFuture[A], b: StateFuture[B], c: StateFuture[C], d: StateFuture[D], /
) -> StateFuture[tuple[A, B, C, D]]: ...
@overload
def combine_all(
    a: StateFuture[A], b: StateFuture[B], c: StateFuture[C], d: StateFuture[D], e: StateFuture[E], /
) -> StateFuture[tuple[A, B, C, D, E]]: ...
@overload
def combine_all(*futures: StateFuture[T]) -> StateFuture[tuple[T, ...]]: ...
def combine_all(*futures: Any) -> StateFuture[Any]:
    """A future of all values, in the order given; it fails as soon as one of them fails.

    ``combine_all(a, b)`` has a tuple of the values, of known length and types; ``combine_all(futures)``, of any
    iterable of futures, has a list. Raises FutureStateError when one of them (None, say) is no StateFuture.
    """
    if len(futures) == 1 and type(futures[0]) is not StateFuture:
        return _combined(list(futures[0]))
    return _combined(futures).then_apply(tuple)


def _combined(sources: Sequence[StateFuture[T]]) -> StateFuture[list[T]]:
    there = 0
    for future in sources:
        if type(future) is not StateFuture:
            require_future(future, "combine_all")
        there += future._state == DONE
    if there == len(sources):
        return completed_future([future._value for future in sources])
    values: list[Any] = [None] * len(sources)
    combined: StateFuture[list[T]] = pending_future(current_owner())
    missing = 1  # one for the loop below, so that completion happens once and at its end
    ended = False

    def arrived(index: int, child: StateFuture[Any], state: int, value: Any, work: Work) -> None:
        nonlocal missing, ended
        if state == DONE:
            values[index] = value
            missing -= 1
            value = values
        # The combined future takes over a failure, so the watcher ends well.
        work.append((child, DONE, None))
        if not ended and (state == FAILED or missing == 0):
            ended = True
            work.append((combined, state, value))

    for index, future in enumerate(sources):
        if future._state == DONE:
            values[index] = future._value
            continue
        missing += 1
        if future._state == PENDING and future._value is not PROMISED and combined._state == PENDING:
            combined._value = FOLLOWING
        future._watch(arrived, index)
    missing -= 1
    if missing == 0 and not ended:
        settle(combined, DONE, values)
    return combined


def as_completed(futures: Iterable[StateFuture[T]]) -> list[StateFuture[T]]:
    """As many futures: the first is settled when the first of ``futures`` is, with its outcome, and so on.

    Source: ``asyncio.as_completed``.
    """
    sources = list(futures)
    ordered: list[StateFuture[T]] = [pending_future(current_owner()) for _ in sources]
    waiting = iter(ordered)

    def settled(_: None, child: StateFuture[Any], state: int, value: Any, work: Work) -> None:
        work.append((child, DONE, None))  # the failure is passed on, as in combine_all
        work.append((next(waiting), state, value))

    for future in sources:
        if future._state == DONE:
            settle(next(waiting), DONE, future._value)
        else:
            future._watch(settled, None)
    return ordered


combineAll = combine_all  # noqa: N816 - the FLIP's spelling, the same object
