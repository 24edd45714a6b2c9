"""Futures for state results: chaining, combining, iterating.

Owns: the futures with which operators are written. No I/O and no threads; callbacks run on the thread that settles a
future.
Must not import any other part of the project except ``errors``.

Source: FLIP-424 (asynchronous state APIs) and FLIP-473 (paradigms); ``recover`` and ``finally_`` are ours.
"""

from asyncstate.futures.combine import as_completed, combine_all, combineAll
from asyncstate.futures.future import (
    StateFuture,
    completed_future,
    completed_void_future,
    failed_future,
    pending_future,
)
from asyncstate.futures.iterator import StateIterator, to_iterable
from asyncstate.futures.scopes import (
    FailureScope,
    FutureOwner,
    current_owner,
    current_scope,
    require_own,
    set_failure_scope,
)
from asyncstate.futures.settling import DONE, FAILED, PENDING, settle

__all__ = [
    "DONE",
    "FAILED",
    "PENDING",
    "FailureScope",
    "FutureOwner",
    "StateFuture",
    "StateIterator",
    "as_completed",
    "combineAll",
    "combine_all",
    "completed_future",
    "completed_void_future",
    "current_owner",
    "current_scope",
    "failed_future",
    "pending_future",
    "require_own",
    "set_failure_scope",
    "settle",
    "to_iterable",
]
