"""The context that all state objects of one declared state share, and the error for misusing one.

Owns: ``StateContext``, ``KeyedState`` (the base of the record-grain kinds), ``with_default``, ``with_decoded_cache``,
and the bytes that follow the key.
Invariant: a store key is ``[key group][state id][key][namespace: 8 bytes, if declared][user key or index]``.
Must not import storage, execution or operators.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self, TypeVar

from asyncstate.codec import PlainValues, encode_namespace
from asyncstate.errors import StateAccessError, StateDeclarationError
from asyncstate.state.expiring.expiry import Expiry
from asyncstate.state.keyed.cursors import CursorRegistry
from asyncstate.state.keyed.decoded_cache import DecodedCache
from asyncstate.state_backend import StateBackend

S = TypeVar("S")

NO_NAMESPACE: Final = b""


@dataclass(frozen=True, slots=True)
class StateContext:
    """One declared state of one operator, bound to the sink of a partition.

    ``encode_value`` and ``decode_value`` are for the value, element or map value, the other two for a map's user key:
    ``decode_key(data, offset)`` gives the key tuple and the next offset. ``decode_values``, ``decode_packed`` and
    ``decode_keys`` convert many at once (see ``ValueCodec`` and ``KeyCodec``). ``expiry`` is None without a ttl; with
    one, ``encode_value`` prepends the stamp, and the others handle the bytes after it. ``function`` is the function of
    a state that folds added values. ``plain`` says whether values may be cached as Python objects, ``plain_key`` which
    type a map's user keys then have; ``cache`` caches them if so.
    """

    name: str
    uid: str
    sink: StateBackend
    state_id: bytes
    page_size: int
    namespaced: bool
    encode_value: Any
    decode_value: Any
    decode_values: Any
    decode_packed: Any
    encode_key: Any = None
    decode_key: Any = None
    decode_keys: Any = None
    default: bytes | None = None
    expiry: Expiry | None = None
    function: Any = None
    plain: PlainValues | None = None
    plain_key: type | None = None
    cache: DecodedCache | None = None
    cursors: CursorRegistry = field(default_factory=dict)
    waiting: dict[bytes, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The name of the state in errors."""
        return f"state '{self.name}' of operator '{self.uid}'"


class KeyedState:
    """A state of the sink's current key, and of one namespace if it is declared with namespaces.

    ``_cache`` is None where no decoded values are cached.
    """

    __slots__ = (
        "_async_get",
        "_binding",
        "_cache",
        "_decode",
        "_delete",
        "_encode",
        "_expiry",
        "_get",
        "_id",
        "_put",
        "_sink",
        "_suffix",
    )

    def __init__(self, binding: StateContext, suffix: bytes | None) -> None:
        if not isinstance(binding, StateContext):
            kind = type(self).__name__
            raise StateDeclarationError(
                f"{kind}({binding!r}, ...) is not declared; declare it in open(), as "
                f"context.get_state({kind}Descriptor({binding!r}, ...))"
            )
        self._binding = binding
        self._sink = sink = binding.sink
        self._id = binding.state_id
        entries: StateBackend | Expiry = sink if binding.expiry is None else binding.expiry
        self._get = entries.get
        self._async_get = entries.async_get
        self._put = sink.put
        self._delete = sink.delete
        self._encode = binding.encode_value
        self._decode = binding.decode_value
        self._expiry: Any = binding.expiry
        self._cache = binding.cache
        # None makes the concatenation of the store key fail: a namespaced state without its namespace
        self._suffix: Any = suffix

    @property
    def name(self) -> str:
        """The declared name."""
        return self._binding.name

    def at(self, namespace: int) -> Self:
        """The same state in ``namespace`` (int64, such as a window's end); keep the object where it is used often.

        Raises StateAccessError unless the state is declared with ``namespaced=True``.
        """
        binding = self._binding
        if not binding.namespaced:
            raise StateAccessError(
                f"{binding.label} has no namespaces; declare it with namespaced=True, or use it without at()"
            )
        return type(self)(binding, encode_namespace(namespace))

    def sweep(self, group: bytes) -> int:
        """Remove the expired entries of a key group (2 bytes); their number. Only for states with a ttl."""
        removed: int = self._expiry.sweep_entries(group + self._id, self._binding.page_size)
        return removed

    def __repr__(self) -> str:
        return f"<{type(self).__name__} '{self._binding.name}' of '{self._binding.uid}'>"

    def _prefix(self) -> bytes:
        context: Any = self._sink.current
        try:
            prefix: bytes = context.group + self._id + context.encoded_key + self._suffix
        except (AttributeError, TypeError):
            raise self._misuse() from None
        return prefix

    def _own_key(self) -> bytes:
        """The cache key of the record's key and the namespace in ``DecodedCache``."""
        context: Any = self._sink.current
        try:
            return context.encoded_key + self._suffix  # type: ignore[no-any-return]
        except (AttributeError, TypeError):
            raise self._misuse() from None

    def _unexpired(self, raw: bytes | None) -> bytes | None:
        """The encoded value in ``raw``, None if reads do not return it; renews nothing."""
        return raw if self._expiry is None else self._expiry.unexpired(raw)

    def _misuse(self) -> StateAccessError:
        """The error for a store key that could not be built."""
        label = self._binding.label
        if self._suffix is None:
            return StateAccessError(f"{label} is declared with namespaced=True; use at(namespace) first")
        if self._sink.current is not None and self._sink.current.may_write_broadcast:
            return StateAccessError(
                f"{label} was used by a row of the broadcast input, which has no key; use a BroadcastState, or set "
                "notify_stateful_sets and use it in process_notification()"
            )
        return StateAccessError(
            f"{label} was used without a current key; use it in process(), in on_timer(), or in a callback "
            "chained to a state future of the record"
        )


def with_default(decode: Callable[[bytes], Any], default: bytes | None) -> Callable[[bytes | None], Any]:
    """``decode`` for a value that may be missing. The default is decoded each time: it may be a list."""

    def or_none(raw: bytes | None) -> Any:
        return None if raw is None else decode(raw)

    def or_default(raw: bytes | None) -> Any:
        return decode(default if raw is None else raw)  # type: ignore[arg-type]

    return or_none if default is None else or_default


def with_decoded_cache(
    state: S, open_cache: Callable[[bytes, PlainValues, Hashable], DecodedCache], types: Hashable
) -> S:
    """``state`` with the cache that ``open_cache`` gives for its id, values and types; unchanged if its values may not
    be cached. ``types``: what the decoded values depend on."""
    if not isinstance(state, KeyedState):
        return state
    binding = state._binding
    plain = binding.plain
    if plain is None:
        return state
    default = None if binding.default is None else binding.decode_value(binding.default)
    cache = open_cache(binding.state_id, plain, (type(state), types))
    cache.begin(binding.sink, binding.encode_value, binding.decode_value, default)
    return type(state)(replace(binding, cache=cache), state._suffix)
