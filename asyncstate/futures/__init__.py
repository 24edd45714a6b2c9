"""Futures for state results: chaining, combining, iterating.

Owns: what operators are written with. No I/O and no threads; callbacks run on the thread that settles a future.
Must not import any other part of the project except ``errors``.

Source: FLIP-424 (asynchronous state APIs) and FLIP-473 (paradigms); ``recover`` and ``finally_`` are ours.
"""

from asyncstate.futures.combine import combine_all, combineAll
from asyncstate.futures.future import (
    FailureScope,
    StateFuture,
    completed_future,
    completed_void_future,
    failed_future,
    set_failure_scope,
)
from asyncstate.futures.iterator import StateIterator, to_iterable

__all__ = [
    "FailureScope",
    "StateFuture",
    "StateIterator",
    "combineAll",
    "combine_all",
    "completed_future",
    "completed_void_future",
    "failed_future",
    "set_failure_scope",
    "to_iterable",
]
