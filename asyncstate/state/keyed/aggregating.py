"""AggregatingState: what was added, in an accumulator that an aggregate function of the operator keeps.

Owns: ``AggregateFunction`` and ``AggregatingState``.
Invariant: that of ``FoldingState``; only accumulators are stored.
Must not import storage, execution or operators.

Source: Flink's ``AggregatingState`` and the DataStream API's ``AggregateFunction``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

from asyncstate.state.keyed.reducing import FoldingState

IN = TypeVar("IN")
ACC = TypeVar("ACC")
OUT = TypeVar("OUT")


class AggregateFunction(ABC, Generic[IN, ACC, OUT]):
    """Values of type ``IN`` into an accumulator ``ACC``, and its result ``OUT``.

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
        """What the accumulator amounts to."""

    @abstractmethod
    def merge(self, a: ACC, b: ACC) -> ACC:
        """One accumulator with what was added to both. Needed where namespaces are merged."""


class AggregatingState(FoldingState[IN, OUT], Generic[IN, OUT]):
    """The values added for the current key, in one accumulator; ``get`` gives its result.

    The function decides what it makes of None. What it fails with, and an accumulator that is None or not of the
    declared type, is an error of ``add``.
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

    def _shown(self, stored: Any) -> Any:
        try:
            return self._function.get_result(stored)
        except Exception as error:
            raise self._failed(".get_result", error) from error
