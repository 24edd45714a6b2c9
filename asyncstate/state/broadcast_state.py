"""BroadcastState: a small map that is the same in every partition, written by the rows of the broadcast input.

Owns: ``BroadcastState``, its descriptor, and ``BroadcastValue`` and ``BroadcastList``, which are stored in one.
Invariants: entries live under ``BROADCAST_GROUP`` in every partition, with equal bytes; only a record that may
write broadcast state changes them, and every partition runs the same such records in the same order. A read gives a
copy to the caller: changing it changes no state.
Must not import storage, execution or operators.

Source: Flink's ``BroadcastState`` and FLIP's ``StateKind.BROADCAST``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic

import pyarrow as pa
from typing_extensions import TypeVar

from asyncstate.codec import BROADCAST_GROUP, prefix_end
from asyncstate.errors import StateAccessError, StateDeclarationError
from asyncstate.operator import OperatorContext
from asyncstate.state.descriptors import MapDescriptor
from asyncstate.state.immediate import ImmediateList, ImmediateMap, ImmediateValue
from asyncstate.state.keyed.state_context import StateContext
from asyncstate.state.ranges import range_entries
from asyncstate.state_backend import StateBackend

K = TypeVar("K", default=Any)
V = TypeVar("V", default=Any)

_Entry = tuple[Any, Any]
"""A user key as it is stored, and its value: decoded if it is immutable, or else its bytes."""


class BroadcastState(ImmediateMap[K, V]):
    """Entries by user key; readable anywhere, also without a current key, writable in ``process_broadcast`` only.

    The whole map is loaded at its first use in a micro-batch, so it must be small; afterwards reads are dict lookups
    and every future is done at once. Raises StateAccessError for a write elsewhere and for a value of None, CodecError
    for a key or value that is not of the declared types.
    """

    __slots__ = ("_binding", "_by_bytes", "_hold", "_in_order", "_prefix", "_take")

    def __init__(self, binding: StateContext, shared: bool) -> None:
        self._binding = binding
        self._prefix = BROADCAST_GROUP + binding.state_id
        decode = binding.decode_value
        # A mutable value (such as a list) is decoded again for each read.
        self._hold: Callable[[bytes], Any] = decode if shared else _same
        self._take: Callable[[Any], Any] = _same if shared else decode
        self._by_bytes: dict[bytes, _Entry] | None = None
        self._in_order = True

    @property
    def name(self) -> str:
        """The declared name."""
        return self._binding.name

    def __repr__(self) -> str:
        return f"<BroadcastState '{self._binding.name}' of '{self._binding.uid}'>"

    # -- reading ------------------------------------------------------------------------------------

    def get(self, key: K) -> V | None:
        """The value under ``key``, or None."""
        found = self._loaded().get(self._binding.encode_key((key,)))
        return None if found is None else self._take(found[1])

    def contains(self, key: K) -> bool:
        """True when there is a value under ``key``."""
        return self._binding.encode_key((key,)) in self._loaded()

    def entries(self) -> Iterator[tuple[K, V]]:
        """All (key, value) as they are now, by encoded key."""
        take = self._take
        return iter([(key, take(held)) for key, held in self._sorted()])

    def keys(self) -> Iterator[K]:
        """All keys as they are now, by encoded key."""
        return iter([key for key, _ in self._sorted()])

    def values(self) -> Iterator[V]:
        """All values as they are now, by encoded key."""
        take = self._take
        return iter([take(held) for _, held in self._sorted()])

    def is_empty(self) -> bool:
        """True when the map has no entry."""
        return not self._loaded()

    # -- writing ------------------------------------------------------------------------------------

    def put(self, key: K, value: V) -> None:
        """Store ``value``."""
        self._check_writable()
        self._put(*self._encoded(key, value))

    def put_all(self, entries: Mapping[K, V] | Iterable[tuple[K, V]]) -> None:
        """``put`` each entry; none is stored if one is refused."""
        self._check_writable()
        pairs = entries.items() if isinstance(entries, Mapping) else entries
        for raw_key, raw in [self._encoded(key, value) for key, value in pairs]:
            self._put(raw_key, raw)

    def remove(self, key: K) -> None:
        """Remove the entry of ``key``; nothing happens if there is none."""
        self._check_writable()
        self._remove(self._binding.encode_key((key,)))

    def clear(self) -> None:
        """Remove all entries."""
        self._check_writable()
        for raw_key in list(self._loaded()):
            self._remove(raw_key)

    def __len__(self) -> int:
        return len(self._loaded())

    # -- the rest -----------------------------------------------------------------------------------

    def encoded(self, value: V) -> bytes:
        """``value`` as it is stored."""
        return self._binding.encode_value(value)  # type: ignore[no-any-return]

    def decoded(self, raw: bytes) -> V:
        """What a read gives for ``raw``."""
        return self._binding.decode_value(raw)  # type: ignore[no-any-return]

    def _loaded(self) -> dict[bytes, _Entry]:
        """All entries by encoded key, read from the sink at the first use."""
        if self._by_bytes is None:
            binding, skip = self._binding, len(self._prefix)
            stored = range_entries(binding.sink, self._prefix, prefix_end(self._prefix), binding.page_size)
            self._by_bytes = {
                store_key[skip:]: (binding.decode_key(store_key, skip)[0][0], self._hold(raw))
                for store_key, raw in stored
            }
        return self._by_bytes

    def _sorted(self) -> list[_Entry]:
        entries = self._loaded()
        if not self._in_order:
            entries = self._by_bytes = dict(sorted(entries.items()))
            self._in_order = True
        return list(entries.values())

    def _encoded(self, key: K, value: V) -> tuple[bytes, bytes]:
        if value is None:
            raise StateAccessError(
                f"{self._binding.label}: a value cannot be None (user key {key!r}); use remove() to delete the entry, "
                "or skip put()"
            )
        return self._binding.encode_key((key,)), self._binding.encode_value(value)

    def _put(self, raw_key: bytes, raw: bytes) -> None:
        entries = self._loaded()
        if raw_key not in entries:
            self._in_order = False
        # as it is read later: 1 put into a float map is 1.0, before and after the commit
        entries[raw_key] = self._binding.decode_key(raw_key)[0][0], self._hold(raw)
        self._binding.sink.put(self._prefix + raw_key, raw)

    def _remove(self, raw_key: bytes) -> None:
        if self._loaded().pop(raw_key, None) is not None:
            self._binding.sink.delete(self._prefix + raw_key)

    def _check_writable(self) -> None:
        context = self._binding.sink.current
        if context is None or not context.may_write_broadcast:
            raise StateAccessError(
                f"{self._binding.label} can be written only in process_broadcast(), which runs the same in every "
                "partition; send the change as a row of the broadcast input, or use a keyed state"
            )


class BroadcastValue(ImmediateValue[V]):
    """One value that is the same in every partition, stored under the key 0 of ``state``; see ``ValueView``."""

    __slots__ = ("_default", "_state")

    def __init__(self, state: BroadcastState[int, V], default: V | None = None) -> None:
        """Raises CodecError for a default that is not of the declared type."""
        self._state = state
        self._default = None if default is None else state.encoded(default)

    def value(self) -> V | None:
        """The value; without one the default."""
        found = self._state.get(0)
        if found is None and self._default is not None:
            return self._state.decoded(self._default)
        return found

    def update(self, value: V | None) -> None:
        """Store ``value``; None clears. Raises StateAccessError as ``BroadcastState.put`` does."""
        if value is None:
            self._state.clear()
        else:
            self._state.put(0, value)

    def is_empty(self) -> bool:
        """True when there is no value."""
        return self._state.is_empty()

    def __repr__(self) -> str:
        return f"<value in {self._state!r}>"


class BroadcastList(ImmediateList[V]):
    """Elements that are the same in every partition, stored under the keys 0, 1, ... of ``state``; see ``ListView``."""

    __slots__ = ("_state",)

    def __init__(self, state: BroadcastState[int, V]) -> None:
        self._state = state

    def get(self) -> Iterator[V]:
        """All elements as they are now, in order."""
        return self._state.values()

    def add_all(self, elements: Iterable[V]) -> None:
        """Append all, or none if one is refused. Raises StateAccessError as ``BroadcastState.put`` does."""
        self._state.put_all(enumerate(elements, len(self._state)))

    def clear(self) -> None:
        """Remove all elements."""
        self._state.clear()

    def __repr__(self) -> str:
        return f"<list in {self._state!r}>"


@dataclass(frozen=True)
class BroadcastStateDescriptor(MapDescriptor[BroadcastState[K, V], K, V], Generic[K, V]):
    """Declares a BroadcastState from ``key_type`` (a flat type, never pickled) to ``value_type``.

    Only for operators with a broadcast input; it has no namespaces and no time to live.
    """

    kind: ClassVar[str] = "broadcast"

    def _check(self) -> None:
        for option in ("namespaced", "ttl"):
            if getattr(self, option, None):
                raise StateDeclarationError(
                    f"state '{self.name}': broadcast state does not support {option}; leave it out, or use a keyed "
                    "state"
                )
        super()._check()

    def type_texts(self) -> dict[str, str]:
        texts = super().type_texts()
        return {part: texts[part] for part in ("key", "value")}

    def bind(
        self, sink: StateBackend, state_id: int, context: OperatorContext, stored: dict[str, str] | None
    ) -> BroadcastState[K, V]:
        """See ``StateDescriptor``; StateDeclarationError without a broadcast input."""
        if not any(spec.broadcast for spec in context.inputs):
            raise StateDeclarationError(
                f"operator '{context.uid}': broadcast state '{self.name}' is declared, but no input is broadcast; "
                "set broadcast_input on the operator's class, or use a keyed state"
            )
        shared = not self.pickled and not pa.types.is_nested(self.value_type)
        return BroadcastState(self._binding(sink, state_id, context, stored), shared)


def _same(value: Any) -> Any:
    return value
