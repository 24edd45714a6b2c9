"""Where a future may be used: the scope of a thread, and the record a pending future belongs to.

Owns: ``FailureScope``, the scope of each thread, and the checks that keep a pending future with its record.
Invariant: only the code of the record under which a pending future was made derives from it or completes it, on
the thread that runs it: elsewhere its callbacks would work on the wrong key.
Must not start threads, do I/O or import any other part of the project except ``errors``.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any, Protocol

from asyncstate.errors import FutureStateError


class FutureOwner(Protocol):
    """The record a pending future belongs to."""

    out: Any
    """Receives the rows that its code emits: a list, in which a nested list marks the place of later rows."""

    emitted: Any
    """The outermost of these lists, once the record has waited for something."""

    @property
    def key(self) -> tuple[Any, ...]:
        """The values of its key columns."""


class FailureScope(Protocol):
    """Is notified of every future that fails, so that an unhandled failure cannot pass in silence."""

    @property
    def current(self) -> Any:
        """The FutureOwner whose code runs, None between two of them."""

    @property
    def outputs(self) -> list[Any]:
        """Receives the rows of a record directly, in the order in which its code runs."""

    def future_failed(self, future: Any) -> None:
        """Called when ``future`` has failed; ``future.failure_observed`` shows later whether it was handled."""


class Nesting:
    """How deep functions of then_compose are nested, and what waits for their end: (function, value, future).
    ``completing``: the operator's own code settles a future."""

    __slots__ = ("completing", "depth", "postponed")

    def __init__(self) -> None:
        self.completing = False
        self.depth = 0
        self.postponed: deque[tuple[Any, Any, Any]] = deque()


class Scopes(threading.local):
    """The scope of each thread, and how functions of then_compose are nested there."""

    current: FailureScope | None = None

    def __init__(self) -> None:
        self.nesting = Nesting()


scopes = Scopes()


def set_failure_scope(scope: FailureScope | None) -> FailureScope | None:
    """Make ``scope`` the one notified of failed futures on this thread; return the previous scope."""
    previous = scopes.current
    scopes.current = scope
    return previous


def current_scope() -> FailureScope | None:
    """The scope of this thread: None outside a micro-batch, and on threads that run none."""
    return scopes.current


def current_owner() -> FutureOwner | None:
    """The record whose code runs on this thread, None without one."""
    scope = scopes.current
    owner: FutureOwner | None = None if scope is None else scope.current
    return owner


def require_own(future: Any, owner: FutureOwner | None, use: str) -> None:
    """Raise FutureStateError unless ``owner``, to whom the pending ``future`` belongs, is running (None: anyone)."""
    if owner is None:
        return
    scope = scopes.current
    if scope is not None and scope.current is owner:
        return
    if scope is None:
        when = "after its micro-batch ended, or on another thread"
    elif scope.current is None:
        when = "while no record is being processed"
    else:
        when = (
            f"while the record with key {scope.current.key!r} is being processed; its callbacks would run under that "
            "key"
        )
    raise FutureStateError(
        f"{future!r} was {use} {when}. Keep futures in local variables of process(), not in the operator, and share "
        "values between records through state"
    )
