"""What functions return, given to whom it is for.

Owns: ``deliver`` and ``emit_rows``: results that are there, futures and coroutines alike.
Invariant: rows leave in the order in which the function gave them.
Must not import anything of ``asyncstate`` but ``changelog``, ``errors``, ``futures``, ``functions``, ``operator``.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Iterable
from types import CoroutineType
from typing import Any

from asyncstate.errors import SchemaError
from asyncstate.futures import StateFuture

Emit = Callable[[Any], None]
"""Puts out one row as a function returned it."""


def deliver(result: Any, take: Callable[[Any], object]) -> Any:
    """Call ``take`` with what ``result`` stands for, now or when it is there; what ``process`` may return."""
    if isinstance(result, StateFuture):
        return result.then_accept(take)
    if type(result) is CoroutineType:
        return _deliver_later(result, take)
    take(result)
    return None


async def _deliver_later(coroutine: Any, take: Callable[[Any], object]) -> None:
    take(await coroutine)


async def resolved(result: Any) -> Any:
    """What ``result`` stands for: itself, or what a future or coroutine gives."""
    if isinstance(result, StateFuture) or type(result) is CoroutineType:
        return await result
    return result


def emit_rows(result: Any, emit: Emit, owner: str) -> Any:
    """Put out the rows of an iterable (or a future of one, or None); what ``process`` may return."""
    if result is None:
        return None
    if isinstance(result, Iterable) and not isinstance(result, AsyncIterable):
        _emit_all(result, emit, owner)
        return None
    return _emit_later(result, emit, owner)


async def _emit_later(result: Any, emit: Emit, owner: str) -> None:
    rows = await resolved(result)
    if isinstance(rows, AsyncIterable):  # a StateIterator or an asynchronous generator: page by page
        async for row in rows:
            emit(row)
    elif rows is not None:
        _emit_all(rows, emit, owner)


def _emit_all(rows: Any, emit: Emit, owner: str) -> None:
    if isinstance(rows, str | bytes | dict) or not isinstance(rows, Iterable):
        raise SchemaError(
            f"{owner}: the function returned {rows!r}, which is no iterable of rows; return a list of rows, also of "
            "a single one, or None for no row"
        )
    for row in rows:
        emit(row)
