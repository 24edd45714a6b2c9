"""What functions return, made into output rows.

Owns: ``RowShape`` (a returned row to the values of a row), ``deliver`` and ``emit_rows`` (results that are there,
futures and coroutines alike).
Invariant: rows leave in the order in which the function gave them.
Must not import anything of ``asyncstate`` but ``changelog``, ``errors``, ``futures``, ``functions``, ``operator``.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Iterable
from types import CoroutineType
from typing import Any

import pyarrow as pa

from asyncstate.errors import SchemaError
from asyncstate.futures import StateFuture

Emit = Callable[[Any], None]
"""Puts out one row as a function returned it."""


class RowShape:
    """Rows of ``schema`` as functions return them; ``owner`` is how errors name the operator.

    >>> shape = RowShape(pa.schema([("word", pa.string()), ("count", pa.int64())]), "KeyedMap")
    >>> shape.values(("a", 1)), shape.values({"count": 1, "word": "a"})
    (('a', 1), ('a', 1))
    >>> RowShape(pa.schema([("word", pa.string())]), "KeyedMap").values("a")
    ('a',)
    """

    __slots__ = ("_dict_is_value", "_names", "_owner", "_width")

    def __init__(self, schema: pa.Schema, owner: str) -> None:
        self._names: list[str] = list(schema.names)
        self._width = len(self._names)
        self._owner = owner
        # a struct or map alone in its row: a dict is its value, not the row
        self._dict_is_value = self._width == 1 and (
            pa.types.is_struct(schema.types[0]) or pa.types.is_map(schema.types[0])
        )

    def values(self, row: Any) -> tuple[Any, ...]:
        """A value a column; SchemaError for what is no row of the schema."""
        if isinstance(row, tuple):
            if len(row) != self._width:
                raise self._refusal(f"a tuple of {len(row)} values")
            return row
        if isinstance(row, dict) and not self._dict_is_value:
            if len(row) != self._width or not row.keys() <= set(self._names):
                raise self._refusal(f"a dict of {', '.join(map(str, row)) or 'nothing'}")
            return tuple([row[name] for name in self._names])
        if self._width == 1:
            return (row,)
        raise self._refusal(repr(row))

    def _refusal(self, found: str) -> SchemaError:
        return SchemaError(
            f"{self._owner}: the function returned {found} for a row of {self._width} columns: "
            f"{', '.join(self._names)}; return a tuple with a value a column, or a dict with these names"
        )


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
