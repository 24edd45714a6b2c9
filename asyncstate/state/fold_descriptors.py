"""Declarations of the record-grain states that fold what is added.

Owns: the descriptors of ReducingState and AggregatingState.
Invariant: that of ``descriptors``; the function is never part of what the checkpoint knows of a state.
Must not import storage, execution or operators.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Generic

from typing_extensions import TypeVar

from asyncstate.codec import TypeLike
from asyncstate.errors import StateDeclarationError
from asyncstate.operator import OperatorContext
from asyncstate.requests import StateSink
from asyncstate.state.descriptors import _Descriptor
from asyncstate.state.expiring.ttl_states import TtlAggregatingState, TtlReducingState
from asyncstate.state.keyed.accumulating import Accumulating, TableFunction, accumulator_type_of
from asyncstate.state.keyed.aggregating import AggregateFunction, AggregatingState
from asyncstate.state.keyed.reducing import ReducingState

T = TypeVar("T", default=Any)
IN = TypeVar("IN", default=Any)
OUT = TypeVar("OUT", default=Any)


@dataclass(frozen=True)
class ReducingStateDescriptor(_Descriptor[ReducingState[T]], Generic[T]):
    """Declares a ReducingState of ``type``. ``reduce_function(stored, added)`` gives the value to store."""

    reduce_function: Callable[[T, T], T]
    type: TypeLike[T] = None
    kind: ClassVar[str] = "reducing"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not callable(self.reduce_function):
            raise StateDeclarationError(
                f"state '{self.name}': reduce_function={self.reduce_function!r} cannot be called; give a "
                "function of the stored and the added value, such as max"
            )
        self._value_field("type")

    def type_texts(self) -> dict[str, str]:
        """See ``StateDescriptor``."""
        return self._texts(self.type)

    def bind(
        self, sink: StateSink, state_id: int, context: OperatorContext, stored: dict[str, str] | None
    ) -> ReducingState[T]:
        """See ``StateDescriptor``."""
        codec = self._codec(self.type, context.uid, stored)
        binding = self._binding(sink, state_id, context, codec, function=self.reduce_function)
        state = ReducingState if self.ttl is None else TtlReducingState
        return state(binding, self._root_suffix)


@dataclass(frozen=True)
class AggregatingStateDescriptor(_Descriptor[AggregatingState[IN, OUT]], Generic[IN, OUT]):
    """Declares an AggregatingState whose accumulators are of ``accumulator_type``.

    ``aggregate_function`` may also be one of ``asyncstate.functions``: a tuple that is added is the arguments of its
    ``accumulate``, and its ``get_accumulator_type`` counts where no type is given.
    """

    aggregate_function: AggregateFunction[IN, Any, OUT] | TableFunction
    accumulator_type: TypeLike[Any] = None
    kind: ClassVar[str] = "aggregating"

    def __post_init__(self) -> None:
        super().__post_init__()
        function = self.aggregate_function
        if isinstance(function, TableFunction):
            accumulator_type = (
                self.accumulator_type
                if self.pickled
                else accumulator_type_of(function, self.accumulator_type)
            )
            object.__setattr__(self, "accumulator_type", accumulator_type)
            self._value_field("accumulator_type")
            adapted = Accumulating(function, self.accumulator_type, f"state '{self.name}'")
            object.__setattr__(self, "aggregate_function", adapted)
            return
        if not isinstance(function, AggregateFunction):
            raise StateDeclarationError(
                f"state '{self.name}': aggregate_function={function!r} is no AggregateFunction; "
                "give an object of a class that derives from it"
            )
        self._value_field("accumulator_type")

    def type_texts(self) -> dict[str, str]:
        """See ``StateDescriptor``."""
        return self._texts(self.accumulator_type)

    def bind(
        self, sink: StateSink, state_id: int, context: OperatorContext, stored: dict[str, str] | None
    ) -> AggregatingState[IN, OUT]:
        """See ``StateDescriptor``."""
        codec = self._codec(self.accumulator_type, context.uid, stored)
        binding = self._binding(sink, state_id, context, codec, function=self.aggregate_function)
        state = AggregatingState if self.ttl is None else TtlAggregatingState
        return state(binding, self._root_suffix)
