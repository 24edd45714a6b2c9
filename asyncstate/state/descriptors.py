"""Declarations of the record-grain states.

Owns: the descriptors of ValueState, ListState, MapState, ReducingState and AggregatingState, and the checks of a
declaration.
Invariant: a descriptor that exists has a valid name and types that can be stored; the function that a state folds with
is never part of the checkpoint.
Must not import storage, execution or operators.
"""

from __future__ import annotations

import builtins
import functools
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypedDict, Unpack, overload

import pyarrow as pa
from typing_extensions import TypeVar

from asyncstate.codec import (
    ArrowType,
    KeyCodec,
    PickleCodec,
    TypeLike,
    ValueCodec,
    check_key_type,
    check_value_type,
    plain_key,
    read_type,
    type_from_text,
    type_to_text,
)
from asyncstate.errors import CodecError, SchemaError, StateDeclarationError
from asyncstate.functions import AggregateFunction as TableFunction
from asyncstate.operator import BelongsTo, OperatorContext, StateDescriptor
from asyncstate.state.expiring.expiry import Expiry
from asyncstate.state.expiring.ttl import StateTtl, Ttl, as_ttl, ttl_texts
from asyncstate.state.keyed.aggregating_state import (
    Accumulating,
    AggregateFunction,
    AggregatingState,
    accumulator_type_of,
)
from asyncstate.state.keyed.list_state import ListState
from asyncstate.state.keyed.map_state import MapState
from asyncstate.state.keyed.reducing_state import ReducingState
from asyncstate.state.keyed.state_context import NO_NAMESPACE, StateContext
from asyncstate.state.keyed.value_state import ValueState
from asyncstate.state.versions import PICKLED, evolved, older_values
from asyncstate.state_backend import StateBackend

S_co = TypeVar("S_co", covariant=True)
# A type checker cannot see the Python type of an Arrow type's values: Any, unless the author declares it.
T = TypeVar("T", default=Any)
K = TypeVar("K", default=Any)
V = TypeVar("V", default=Any)
IN = TypeVar("IN", default=Any)
OUT = TypeVar("OUT", default=Any)
R = TypeVar("R", default=T | None)
"""The result of reads of a ValueState."""


class _Options(TypedDict, total=False):
    """The common optional arguments of all descriptors, for type checkers."""

    namespaced: bool
    pickled: bool
    ttl: Ttl
    belongs_to: BelongsTo | None


_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


def check_state_name(name: str) -> None:
    """Raise StateDeclarationError unless ``name`` is a valid name of a state."""
    if not _NAME.fullmatch(str(name)):
        raise StateDeclarationError(
            f"state name {name!r} is not allowed; use letters, digits, '_', '.' and '-', starting with a letter or "
            "'_'"
        )


@functools.lru_cache(maxsize=1_000)  # each micro-batch asks for the same ones
def _value_codec(value_type: pa.DataType, older: tuple[str, ...], owner: str) -> ValueCodec:
    return ValueCodec(value_type, list(map(type_from_text, older)), owner=owner)


@dataclass(frozen=True)
class _Descriptor(StateDescriptor[S_co], Generic[S_co]):
    """Base of the descriptors. ``_state``: the class of the state; ``_value``: the value type's field.

    ``namespaced``: the state is used through ``at(namespace)`` only. ``pickled``: values are any Python objects, stored
    as pickles; give no type then. Anyone who can write a pickled state's checkpoint can run code in the job. ``ttl``:
    values, map entries or list elements expire separately. ``belongs_to``: see ``BelongsTo``.
    """

    name: str
    namespaced: bool = field(default=False, kw_only=True)
    pickled: bool = field(default=False, kw_only=True)
    ttl: Ttl = field(default=None, kw_only=True)
    belongs_to: BelongsTo | None = field(default=None, kw_only=True)
    _state: ClassVar[Any]
    _value: ClassVar[str] = "type"

    def __post_init__(self) -> None:
        check_state_name(self.name)
        if self.ttl is not None:
            object.__setattr__(self, "ttl", as_ttl(f"state '{self.name}'", self.ttl))
        self._check()
        attribute, given = self._value, getattr(self, self._value)
        if self.pickled != (given is None):
            action = "leave the type out" if self.pickled else "give a type, or declare it with pickled=True"
            raise StateDeclarationError(
                f"state '{self.name}' is declared with {attribute}={given!r}, pickled={self.pickled}; "
                f"{action}"
            )
        if not self.pickled:
            arrow_type = self._arrow_type(attribute, given)
            check_value_type(f"{self.name}.{attribute}", arrow_type)
            object.__setattr__(self, attribute, arrow_type)

    def _check(self) -> None:
        """Check the rest of the declaration, before the type of values."""

    def _arrow_type(self, attribute: str, given: Any) -> pa.DataType:
        arrow_type = read_type(given, f"state '{self.name}', {attribute}")
        if not isinstance(arrow_type, pa.DataType):
            raise SchemaError(
                f"state '{self.name}': {attribute}={given!r} is not a type; give a pyarrow type such as "
                "pa.int64(), a string such as 'bigint', or one of int, float, str, bytes, bool"
            )
        return arrow_type

    def type_texts(self) -> dict[str, str]:
        value_type = getattr(self, self._value)
        return {
            "value": PICKLED if value_type is None else type_to_text(value_type),
            "namespaced": "yes" if self.namespaced else "no",
            **({} if self.ttl is None else ttl_texts(self.ttl)),
            **dict([self.belongs_to] if self.belongs_to else []),
        }

    def bind(
        self, sink: StateBackend, state_id: int, context: OperatorContext, stored: dict[str, str] | None
    ) -> S_co:
        binding = self._binding(sink, state_id, context, stored)
        state: S_co = self._state(binding, None if self.namespaced else NO_NAMESPACE)
        return state

    def _binding(
        self, sink: StateBackend, state_id: int, context: OperatorContext, stored: dict[str, str] | None
    ) -> StateContext:
        value_type, texts = getattr(self, self._value), self.type_texts()
        owner = f"operator '{context.uid}', state '{self.name}'"
        older: tuple[str, ...] = ()  # of earlier versions, whose values the codec also reads
        if stored is not None and stored != texts:
            older = tuple(older_values(evolved(context.uid, self.name, texts, stored)))
        codec: ValueCodec | PickleCodec = (
            PickleCodec(owner=owner) if value_type is None else _value_codec(value_type, older, owner)
        )
        own = {"plain": codec.plain, **self._own(codec, context.uid)}
        expiry, encode = None, codec.encode_one
        if isinstance(self.ttl, StateTtl):
            own["plain"] = None
            expiry = Expiry(self.ttl, context, owner, sink)
            encode = expiry.stamped(encode)
        return StateContext(
            name=self.name,
            uid=context.uid,
            sink=sink,
            state_id=bytes([state_id]),
            page_size=context.page_size,
            namespaced=self.namespaced,
            encode_value=encode,
            decode_value=codec.decode_one,
            decode_values=codec.decode_page,
            decode_packed=codec.decode_packed,
            expiry=expiry,
            **own,
        )

    def _own(self, codec: ValueCodec | PickleCodec, uid: str) -> dict[str, Any]:
        """Further fields of this kind's ``StateContext``; ``plain``: None if its values cannot be cached."""
        return {}


@dataclass(frozen=True)
class _ValueDescriptor(_Descriptor[ValueState[T, R]], Generic[T, R]):
    """A ValueStateDescriptor except for the types of its arguments. The default is not stored and may change."""

    type: TypeLike[T] = None
    default: T | None = None
    kind: ClassVar[str] = "value"
    _state = ValueState

    def _own(self, codec: ValueCodec | PickleCodec, uid: str) -> dict[str, Any]:
        if self.default is None:
            return {}
        try:
            return {"default": codec.encode_one(self.default)}
        except CodecError as error:
            raise StateDeclarationError(
                f"operator '{uid}', state '{self.name}': the default {self.default!r} is not a value of the "
                f"state: {error}"
            ) from error


class ValueStateDescriptor(_ValueDescriptor[T, R], Generic[T, R]):
    """Declares a ValueState of ``type``; reads give ``default`` where there is no value.

    To a type checker ``ValueStateDescriptor("n", int)`` declares a ``ValueState[int]``, whose reads are ``int | None``,
    and with a default one whose reads are ``int``. For a pyarrow type, or a pickled value, declare the type, as in
    ``ValueStateDescriptor[int]("n", pa.int32())``.
    """

    if TYPE_CHECKING:

        @overload
        def __new__(
            cls, name: str, type: builtins.type[T], default: None = None, **options: Unpack[_Options]
        ) -> ValueStateDescriptor[T, T | None]: ...
        @overload
        def __new__(
            cls, name: str, type: builtins.type[T], default: T, **options: Unpack[_Options]
        ) -> ValueStateDescriptor[T, T]: ...
        @overload
        def __new__(
            cls, name: str, type: ArrowType | str | None, default: T, **options: Unpack[_Options]
        ) -> ValueStateDescriptor[T, T]: ...
        @overload
        def __new__(
            cls, name: str, *, default: T, **options: Unpack[_Options]
        ) -> ValueStateDescriptor[T, T]: ...
        @overload
        def __new__(
            cls,
            name: str,
            type: ArrowType | str | None = None,
            default: None = None,
            **options: Unpack[_Options],
        ) -> ValueStateDescriptor[T, T | None]: ...
        def __new__(cls, *arguments: Any, **options: Any) -> Any: ...


@dataclass(frozen=True)
class ListStateDescriptor(_Descriptor[ListState[T]], Generic[T]):
    """Declares a ListState of elements of ``element_type``."""

    element_type: TypeLike[T] = None
    kind: ClassVar[str] = "list"
    _state = ListState
    _value = "element_type"

    def _own(self, codec: ValueCodec | PickleCodec, uid: str) -> dict[str, Any]:
        return {"plain": None}


@dataclass(frozen=True)
class MapDescriptor(_Descriptor[S_co], Generic[S_co, K, V]):
    """A declaration of user keys and values."""

    key_type: TypeLike[K] = None
    value_type: TypeLike[V] = None
    _value = "value_type"

    def _check(self) -> None:
        key_type = self._arrow_type("key_type", self.key_type)
        check_key_type(f"{self.name}.key_type", key_type)
        object.__setattr__(self, "key_type", key_type)

    def type_texts(self) -> dict[str, str]:
        return {"key": type_to_text(self.key_type), **super().type_texts()}

    def _own(self, codec: ValueCodec | PickleCodec, uid: str) -> dict[str, Any]:
        user_keys = KeyCodec([self.key_type], [f"{self.name}.key"], 1)
        plain = plain_key(self.key_type)
        return {
            "encode_key": user_keys.encode_one,
            "decode_key": user_keys.decode_one,
            "decode_keys": user_keys.decode_page,
            "plain": codec.plain if plain else None,
            "plain_key": plain,
        }


@dataclass(frozen=True)
class MapStateDescriptor(MapDescriptor[MapState[K, V], K, V], Generic[K, V]):
    """Declares a MapState from ``key_type`` (a flat type, never pickled) to ``value_type``."""

    kind: ClassVar[str] = "map"
    _state = MapState


@dataclass(frozen=True)
class ReducingStateDescriptor(_Descriptor[ReducingState[T]], Generic[T]):
    """Declares a ReducingState of ``type``. ``reduce_function(stored, added)`` gives the value to store."""

    reduce_function: Callable[[T, T], T]
    type: TypeLike[T] = None
    kind: ClassVar[str] = "reducing"
    _state = ReducingState

    def _check(self) -> None:
        if not callable(self.reduce_function):
            raise StateDeclarationError(
                f"state '{self.name}': reduce_function={self.reduce_function!r} cannot be called; give a "
                "function of the stored and the added value, such as max"
            )

    def _own(self, codec: ValueCodec | PickleCodec, uid: str) -> dict[str, Any]:
        return {"function": self.reduce_function}


@dataclass(frozen=True)
class AggregatingStateDescriptor(_Descriptor[AggregatingState[IN, OUT]], Generic[IN, OUT]):
    """Declares an AggregatingState whose accumulators are of ``accumulator_type``.

    ``aggregate_function`` may also be one of ``asyncstate.functions``: an added tuple is passed as the arguments of its
    ``accumulate``, and its ``get_accumulator_type`` applies where no type is given.
    """

    aggregate_function: AggregateFunction[IN, Any, OUT] | TableFunction
    accumulator_type: TypeLike[Any] = None
    kind: ClassVar[str] = "aggregating"
    _state = AggregatingState
    _value = "accumulator_type"

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.aggregate_function, TableFunction):
            adapted = Accumulating(self.aggregate_function, self.accumulator_type, f"state '{self.name}'")
            object.__setattr__(self, "aggregate_function", adapted)

    def _check(self) -> None:
        function = self.aggregate_function
        if isinstance(function, TableFunction):
            if not self.pickled:
                found = accumulator_type_of(function, self.accumulator_type)
                object.__setattr__(self, "accumulator_type", found)
        elif not isinstance(function, AggregateFunction):
            raise StateDeclarationError(
                f"state '{self.name}': aggregate_function={function!r} is not an AggregateFunction; give an instance "
                "of a subclass"
            )

    def _own(self, codec: ValueCodec | PickleCodec, uid: str) -> dict[str, Any]:
        return {"function": self.aggregate_function}
