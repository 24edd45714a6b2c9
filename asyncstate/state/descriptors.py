"""Declarations of the record-grain states.

Owns: the descriptors of ValueState, ListState and MapState, and what a declaration must satisfy.
Invariant: a descriptor that exists has a valid name and types that can be stored.
Must not import storage, execution or operators.
"""

from __future__ import annotations

import builtins
import re
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
from asyncstate.operator import BelongsTo, OperatorContext, StateDescriptor
from asyncstate.requests import StateSink
from asyncstate.state.expiring.expiry import expiry_of
from asyncstate.state.expiring.ttl import Ttl, as_ttl, ttl_texts
from asyncstate.state.expiring.ttl_listing import TtlListState
from asyncstate.state.expiring.ttl_states import TtlMapState, TtlValueState
from asyncstate.state.keyed.binding import NO_NAMESPACE, Binding
from asyncstate.state.keyed.listing import ListState
from asyncstate.state.keyed.mapping import MapState
from asyncstate.state.keyed.value import ValueState
from asyncstate.state.versions import PICKLED, evolved, older_values

S_co = TypeVar("S_co", covariant=True)
# What an Arrow type's values are in Python is not to be seen by a type checker: Any, unless the author says it.
T = TypeVar("T", default=Any)
K = TypeVar("K", default=Any)
V = TypeVar("V", default=Any)
R = TypeVar("R", default=T | None)
"""What reads of a ValueState give."""


class _Options(TypedDict, total=False):
    """The further arguments of all descriptors, for type checkers."""

    namespaced: bool
    pickled: bool
    ttl: Ttl
    belongs_to: BelongsTo | None


_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


def check_state_name(name: str) -> None:
    """Raise StateDeclarationError unless a state may be called ``name``."""
    if not _NAME.fullmatch(str(name)):
        raise StateDeclarationError(
            f"state name {name!r} is not allowed; use letters, digits, '_', '.' and '-', with a "
            "letter or '_' in front"
        )


@dataclass(frozen=True)
class _Descriptor(StateDescriptor[S_co], Generic[S_co]):
    """What the three have in common.

    ``namespaced``: the state is used through ``at(namespace)`` only. ``pickled``: values are any Python
    objects, stored as pickles; give no type then. Who can write a pickled state's checkpoint can run code
    in the job. ``ttl``: values, map entries or list elements expire, each by itself. ``belongs_to``: see ``BelongsTo``.
    """

    name: str
    namespaced: bool = field(default=False, kw_only=True)
    pickled: bool = field(default=False, kw_only=True)
    ttl: Ttl = field(default=None, kw_only=True)
    belongs_to: BelongsTo | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        check_state_name(self.name)
        object.__setattr__(self, "ttl", as_ttl(f"state '{self.name}'", self.ttl))

    def _value_field(self, attribute: str) -> None:
        """Check the value type in ``attribute`` and spell shorthands out."""
        given = getattr(self, attribute)
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

    def _arrow_type(self, attribute: str, given: Any) -> pa.DataType:
        arrow_type = read_type(given, f"state '{self.name}', {attribute}")
        if not isinstance(arrow_type, pa.DataType):
            raise SchemaError(
                f"state '{self.name}': {attribute}={given!r} is no type; give a pyarrow type such as "
                "pa.int64(), a text such as 'bigint', or one of int, float, str, bytes, bool"
            )
        return arrow_type

    def _texts(self, value_type: pa.DataType | None) -> dict[str, str]:
        return {
            "value": PICKLED if value_type is None else type_to_text(value_type),
            "namespaced": "yes" if self.namespaced else "no",
            **ttl_texts(self.ttl),
            **dict([self.belongs_to] if self.belongs_to else []),
        }

    def _codec(
        self, value_type: pa.DataType | None, uid: str, stored: dict[str, str] | None
    ) -> ValueCodec | PickleCodec:
        """The codec of values; reads those of all versions before, too."""
        owner = f"operator '{uid}', state '{self.name}'"
        texts = self.type_texts()
        kept = texts if stored is None else evolved(uid, self.name, texts, stored)
        if value_type is None:
            return PickleCodec(owner=owner)
        return ValueCodec(value_type, [type_from_text(text) for text in older_values(kept)], owner=owner)

    def _binding(
        self,
        sink: StateSink,
        state_id: int,
        context: OperatorContext,
        codec: ValueCodec | PickleCodec,
        **more: Any,
    ) -> Binding:
        expiry, ttl = None, as_ttl("state", self.ttl)
        if ttl is not None:
            expiry = expiry_of(ttl, sink, context, f"operator '{context.uid}', state '{self.name}'")
        return Binding(
            name=self.name,
            uid=context.uid,
            sink=sink,
            state_id=bytes([state_id]),
            page_size=context.page_size,
            namespaced=self.namespaced,
            encode_value=codec.encode_one,
            decode_value=codec.decode_one,
            decode_values=codec.decode_page,
            decode_packed=codec.decode_packed,
            plain=codec.plain,
            expiry=expiry,
            **more,
        )

    @property
    def _root_suffix(self) -> bytes | None:
        return None if self.namespaced else NO_NAMESPACE


@dataclass(frozen=True)
class _ValueDescriptor(_Descriptor[ValueState[T, R]], Generic[T, R]):
    """All of a ValueStateDescriptor but the types of its arguments."""

    type: TypeLike[T] = None
    default: T | None = None
    kind: ClassVar[str] = "value"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._value_field("type")

    def type_texts(self) -> dict[str, str]:
        """See ``StateDescriptor``; the default is not stored and may change."""
        return self._texts(self.type)

    def bind(
        self, sink: StateSink, state_id: int, context: OperatorContext, stored: dict[str, str] | None
    ) -> ValueState[T, R]:
        """See ``StateDescriptor``."""
        codec = self._codec(self.type, context.uid, stored)
        default = self._encoded_default(codec, context.uid)
        state: builtins.type[ValueState[T, R]] = ValueState if self.ttl is None else TtlValueState
        return state(self._binding(sink, state_id, context, codec, default=default), self._root_suffix)

    def _encoded_default(self, codec: ValueCodec | PickleCodec, uid: str) -> bytes | None:
        if self.default is None:
            return None
        try:
            return codec.encode_one(self.default)
        except CodecError as error:
            raise StateDeclarationError(
                f"operator '{uid}', state '{self.name}': the default {self.default!r} is no value of the state: {error}"
            ) from error


class ValueStateDescriptor(_ValueDescriptor[T, R], Generic[T, R]):
    """Declares a ValueState of ``type``; reads give ``default`` where there is no value.

    To a type checker ``ValueStateDescriptor("n", int)`` declares a ``ValueState[int]``, whose reads are ``int | None``,
    and with a default one whose reads are ``int``. Of a pyarrow type, or a pickled value, it knows nothing: say it, as
    in ``ValueStateDescriptor[int]("n", pa.int32())``.
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

    def __post_init__(self) -> None:
        super().__post_init__()
        self._value_field("element_type")

    def type_texts(self) -> dict[str, str]:
        """See ``StateDescriptor``."""
        return self._texts(self.element_type)

    def bind(
        self, sink: StateSink, state_id: int, context: OperatorContext, stored: dict[str, str] | None
    ) -> ListState[T]:
        """See ``StateDescriptor``."""
        codec = self._codec(self.element_type, context.uid, stored)
        state = ListState if self.ttl is None else TtlListState
        return state(self._binding(sink, state_id, context, codec), self._root_suffix)


@dataclass(frozen=True)
class MapStateDescriptor(_Descriptor[MapState[K, V]], Generic[K, V]):
    """Declares a MapState from ``key_type`` (a flat type, never pickled) to ``value_type``."""

    key_type: TypeLike[K] = None
    value_type: TypeLike[V] = None
    kind: ClassVar[str] = "map"

    def __post_init__(self) -> None:
        super().__post_init__()
        key_type = self._arrow_type("key_type", self.key_type)
        check_key_type(f"{self.name}.key_type", key_type)
        object.__setattr__(self, "key_type", key_type)
        self._value_field("value_type")

    def type_texts(self) -> dict[str, str]:
        """See ``StateDescriptor``."""
        return {"key": type_to_text(self.key_type), **self._texts(self.value_type)}

    def bind(
        self, sink: StateSink, state_id: int, context: OperatorContext, stored: dict[str, str] | None
    ) -> MapState[K, V]:
        """See ``StateDescriptor``."""
        codec = self._codec(self.value_type, context.uid, stored)
        user_keys = KeyCodec([self.key_type], [f"{self.name}.key"], 1)
        keys = {
            "encode_key": user_keys.encode_one,
            "decode_key": user_keys.decode_one,
            "decode_keys": user_keys.decode_page,
            "plain_key": plain_key(self.key_type),
        }
        state = MapState if self.ttl is None else TtlMapState
        return state(self._binding(sink, state_id, context, codec, **keys), self._root_suffix)
