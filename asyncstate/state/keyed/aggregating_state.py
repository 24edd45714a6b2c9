"""AggregatingState: added values, folded into an accumulator by an aggregate function of the operator.

Owns: ``AggregateFunction`` and ``AggregatingState``; ``Accumulating``, which adapts an
``asyncstate.functions.AggregateFunction`` to an AggregatingState, and the checks of which functions it refuses.
Invariant: that of ``FoldingState``; only accumulators are stored, and they are read in the form in which the function
created them.
Must not import storage, execution or operators.

Source: Flink's ``AggregatingState`` and the DataStream API's ``AggregateFunction``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import pyarrow as pa

from asyncstate.errors import StateDeclarationError
from asyncstate.functions import AggregateFunction as TableFunction
from asyncstate.functions import Function, MutableRow, view_of
from asyncstate.functions.aggregate_functions import require_changed_in_place
from asyncstate.state.keyed.reducing_state import FoldingState

IN = TypeVar("IN")
ACC = TypeVar("ACC")
OUT = TypeVar("OUT")


class AggregateFunction(ABC, Generic[IN, ACC, OUT]):
    """Folds values of type ``IN`` into an accumulator ``ACC`` with the result ``OUT``.

    The object belongs to the operator and is pickled with it. An accumulator is never None. ``add`` and ``merge`` may
    change the accumulators they are given, which are not used again, and return one of them.
    """

    @abstractmethod
    def create_accumulator(self) -> ACC:
        """An accumulator to which nothing has been added."""

    @abstractmethod
    def add(self, value: IN, accumulator: ACC) -> ACC:
        """The accumulator with ``value`` added."""

    @abstractmethod
    def get_result(self, accumulator: ACC) -> OUT:
        """The result of the accumulator."""

    @abstractmethod
    def merge(self, a: ACC, b: ACC) -> ACC:
        """One accumulator with the values of both. Needed where namespaces are merged."""


class AggregatingState(FoldingState[IN, OUT], Generic[IN, OUT]):
    """The values added for the current key, in one accumulator; ``get`` gives its result.

    The function decides how to handle None. If it raises, or gives an accumulator that is None or not of the declared
    type, ``add`` raises.
    """

    __slots__ = ()

    def _folded(self, stored: Any, value: Any) -> Any:
        function: AggregateFunction[Any, Any, Any] = self._function
        try:
            return function.add(value, function.create_accumulator() if stored is None else stored)
        except Exception as error:
            raise self._failed(".add", error) from error

    def _combined(self, stored: Any, other: Any) -> Any:
        try:
            return self._function.merge(stored, other)
        except Exception as error:
            raise self._failed(".merge", error) from error

    def _result(self, stored: Any) -> Any:
        try:
            return self._function.get_result(stored)
        except Exception as error:
            raise self._failed(".get_result", error) from error


def accumulator_type_of(function: TableFunction, given: Any) -> Any:
    """The accumulator type ``given``, or else that of ``function``; a schema becomes a struct."""
    found = function.get_accumulator_type() if given is None else given
    return pa.struct(list(found)) if isinstance(found, pa.Schema) else found


class Accumulating(AggregateFunction[Any, Any, Any]):
    """``function`` with accumulators of ``accumulator_type``; None: of any type, pickled.

    An added tuple is passed as the arguments of ``accumulate``, any other value as its only one. Raises
    StateDeclarationError, naming ``owner``, for a function that needs more than its accumulator: views, ``open`` or
    ``close``.
    """

    def __init__(self, function: TableFunction, accumulator_type: pa.DataType | None, owner: str) -> None:
        self.__qualname__ = type(function).__qualname__  # how errors name it
        _check(function, accumulator_type, owner)
        self._function = function
        self._names = [field.name for field in _fields(accumulator_type)]
        self._shaped = self._shape()

    def create_accumulator(self) -> Any:
        return self._stored(self._function.create_accumulator())

    def add(self, value: Any, accumulator: Any) -> Any:
        changed = self._shaped(accumulator)
        given = value if isinstance(value, tuple) else (value,)
        require_changed_in_place(
            f"{self.__qualname__}.accumulate", changed, self._function.accumulate(changed, *given)
        )
        return self._stored(changed)

    def get_result(self, accumulator: Any) -> Any:
        return self._function.get_value(self._shaped(accumulator))

    def merge(self, a: Any, b: Any) -> Any:
        changed = self._shaped(a)
        merged = self._function.merge(changed, [self._shaped(b)])  # type: ignore[func-returns-value]
        require_changed_in_place(f"{self.__qualname__}.merge", changed, merged)
        return self._stored(changed)

    def _stored(self, accumulator: Any) -> Any:
        if not self._names or isinstance(accumulator, dict):
            return accumulator
        return dict(zip(self._names, accumulator, strict=True))

    def _shape(self) -> Callable[[Any], Any]:
        """The function that turns stored values into accumulators of the form that the function creates."""
        created, names = self._function.create_accumulator(), self._names
        if isinstance(created, list | dict) and created is self._function.create_accumulator():
            raise StateDeclarationError(
                f"{self.__qualname__}.create_accumulator returns the same {type(created).__name__} each time, so all "
                "keys would share it; make a new one in each call"
            )
        if not names and isinstance(created, tuple):
            return lambda stored: MutableRow(*stored)
        if not names or isinstance(created, dict):
            return lambda stored: stored
        if isinstance(created, list) and not isinstance(created, MutableRow):
            return lambda stored: list(stored.values())
        places = {name: at for at, name in enumerate(names)}
        return lambda stored: MutableRow.of(stored.values(), places)


def _fields(accumulator_type: pa.DataType | None) -> list[pa.Field]:
    """The fields of a struct."""
    return list(accumulator_type) if accumulator_type and pa.types.is_struct(accumulator_type) else []


def _check(function: TableFunction, accumulator_type: pa.DataType | None, owner: str) -> None:
    kind = type(function)
    for name in ("open", "close"):
        if getattr(kind, name) is not getattr(Function, name):
            raise StateDeclarationError(
                f"{owner}: {kind.__qualname__} has a method {name}, which is never called for a state; keep what the "
                "function needs in the operator, or aggregate with GroupAggregate"
            )
    if kind.get_value is TableFunction.get_value:
        raise StateDeclarationError(
            f"{owner}: {kind.__qualname__} has no method get_value; an AggregatingState returns one value"
        )
    views = [field.name for field in _fields(accumulator_type) if view_of(field)]
    if views:
        raise StateDeclarationError(
            f"{owner}: {', '.join(views)} of the accumulator of {kind.__qualname__} are views; declare a MapState or "
            "ListState for them, or aggregate with GroupAggregate"
        )
