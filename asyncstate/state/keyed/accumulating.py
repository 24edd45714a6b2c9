"""Aggregate functions of tables, kept by an AggregatingState.

Owns: ``Accumulating``, which lets an ``asyncstate.functions.AggregateFunction`` stand where an AggregatingState has its
own kind, and what is refused of one.
Invariant: an accumulator is stored as a value of the accumulator type, and comes back in the form in which the function
has created it.
Must not import storage, execution or operators.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from asyncstate.errors import StateDeclarationError
from asyncstate.functions import AggregateFunction as TableFunction
from asyncstate.functions import Function, MutableRow, view_of
from asyncstate.state.keyed.aggregating import AggregateFunction

__all__ = ["Accumulating", "TableFunction", "accumulator_type_of"]


def accumulator_type_of(function: TableFunction, given: Any) -> Any:
    """The accumulator type that is ``given``, else that of ``function``; a schema as a struct."""
    found = function.get_accumulator_type() if given is None else given
    return pa.struct(list(found)) if isinstance(found, pa.Schema) else found


class Accumulating(AggregateFunction[Any, Any, Any]):
    """``function`` with accumulators of ``accumulator_type``; None: of any, pickled as they are.

    A tuple that is added is the arguments of ``accumulate``, anything else its only one. Raises StateDeclarationError,
    naming ``owner``, for a function that needs more than its accumulator: views, ``open`` or ``close``.
    """

    def __init__(self, function: TableFunction, accumulator_type: pa.DataType | None, owner: str) -> None:
        self.__qualname__ = type(function).__qualname__  # how errors name it
        _check(function, accumulator_type, owner)
        self._function = function
        self._names = [field.name for field in _fields(accumulator_type)]
        self._shaped = self._shape()

    def create_accumulator(self) -> Any:
        """See ``AggregateFunction``."""
        return self._stored(self._function.create_accumulator())

    def add(self, value: Any, accumulator: Any) -> Any:
        """See ``AggregateFunction``."""
        changed = self._shaped(accumulator)
        self._function.accumulate(changed, *(value if isinstance(value, tuple) else (value,)))
        return self._stored(changed)

    def get_result(self, accumulator: Any) -> Any:
        """See ``AggregateFunction``."""
        return self._function.get_value(self._shaped(accumulator))

    def merge(self, a: Any, b: Any) -> Any:
        """See ``AggregateFunction``."""
        changed = self._shaped(a)
        self._function.merge(changed, [self._shaped(b)])
        return self._stored(changed)

    def _stored(self, accumulator: Any) -> Any:
        if not self._names or isinstance(accumulator, dict):
            return accumulator
        return dict(zip(self._names, accumulator, strict=True))

    def _shape(self) -> Callable[[Any], Any]:
        """What makes accumulators such as the function creates of stored values."""
        created, names = self._function.create_accumulator(), self._names
        if not names and isinstance(created, tuple):
            return lambda stored: MutableRow(*stored)
        if not names or isinstance(created, dict):
            return lambda stored: stored
        if isinstance(created, list) and not isinstance(created, MutableRow):
            return lambda stored: list(stored.values())
        places = {name: at for at, name in enumerate(names)}
        return lambda stored: MutableRow.of(stored.values(), places)


def _fields(accumulator_type: pa.DataType | None) -> list[pa.Field]:
    """Those of a struct."""
    return list(accumulator_type) if accumulator_type and pa.types.is_struct(accumulator_type) else []


def _check(function: TableFunction, accumulator_type: pa.DataType | None, owner: str) -> None:
    kind = type(function)
    for name in ("open", "close"):
        if getattr(kind, name) is not getattr(Function, name):
            raise StateDeclarationError(
                f"{owner}: {kind.__qualname__} has a method {name}, which nobody calls for a state; keep in the "
                "operator what the function needs, or aggregate with GroupAggregate"
            )
    if kind.get_value is TableFunction.get_value:
        raise StateDeclarationError(
            f"{owner}: {kind.__qualname__} has no method get_value; an AggregatingState shows one value"
        )
    views = [field.name for field in _fields(accumulator_type) if view_of(field)]
    if views:
        raise StateDeclarationError(
            f"{owner}: {', '.join(views)} of the accumulator of {kind.__qualname__} are views; declare a MapState or "
            "ListState for them, or aggregate with GroupAggregate"
        )
