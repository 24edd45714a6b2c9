"""The map state that keeps decoded values.

Owns: ``DecodedMapState``.
Invariant: what it shows and stores is what the plain state shows and stores. No write is held back while an iteration
is under way: the iteration keeps what the sink has before a write.
Must not import storage, execution or operators.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Generic, TypeVar

from asyncstate.futures import DONE, StateFuture, completed_future
from asyncstate.requests import Page
from asyncstate.state.binding import Binding
from asyncstate.state.decoded import UNKNOWN
from asyncstate.state.decoded_common import level_of, own_key, plain
from asyncstate.state.mapping import MapState

K = TypeVar("K")
V = TypeVar("V")


class DecodedMapState(MapState[K, V], Generic[K, V]):
    """A MapState that knows entries it has read and written; they go by the record's key and the user key."""

    __slots__ = ()
    _plain_kind: ClassVar[type] = MapState

    def __init__(self, binding: Binding, suffix: bytes | None) -> None:
        super().__init__(binding, suffix)
        self._level = level_of(binding)
        self._known = self._level.values.get
        self._plain_key = binding.plain_key

    def get(self, key: K) -> V | None:
        """See ``MapState``."""
        context: Any = self._sink.current
        try:
            own = context.encoded_key + self._suffix
        except (AttributeError, TypeError):
            raise self._misuse() from None
        value: Any = self._known((own, key), UNKNOWN) if type(key) is self._plain_key else UNKNOWN
        if value is UNKNOWN:
            return _read(self, key)
        self._level.hits += 1
        return value  # type: ignore[no-any-return]

    def async_get(self, key: K) -> StateFuture[V | None]:
        """See ``MapState``."""
        context: Any = self._sink.current
        try:
            own = context.encoded_key + self._suffix
        except (AttributeError, TypeError):
            raise self._misuse() from None
        value: Any = self._known((own, key), UNKNOWN) if type(key) is self._plain_key else UNKNOWN
        if value is UNKNOWN:
            return _async_read(self, key)
        self._level.hits += 1
        return completed_future(value)

    def contains(self, key: K) -> bool:
        """See ``MapState``."""
        value = _look(self, key)
        return MapState.contains(self, key) if value is UNKNOWN else value is not None

    def async_contains(self, key: K) -> StateFuture[bool]:
        """See ``MapState``."""
        value = _look(self, key)
        if value is UNKNOWN:
            return MapState.async_contains(self, key)
        return completed_future(value is not None)

    def put(self, key: K, value: V) -> None:
        """See ``MapState``."""
        context: Any = self._sink.current
        try:
            own = context.encoded_key + self._suffix
        except (AttributeError, TypeError):
            raise self._misuse() from None
        level = self._level
        # While an iteration is under way nothing is held.
        if (
            type(key) is self._plain_key
            and (own, key) in level.held
            and type(value) is level.type
            and level.fits(value)
        ):
            level.values[own, key] = value
        elif level.resting:
            plain(self).put(key, value)
        else:
            _write(self, key, value)

    def put_all(self, entries: Mapping[K, V] | Iterable[tuple[K, V]]) -> None:
        """See ``MapState``."""
        level = self._level
        if level.resting:
            plain(self).put_all(entries)
            return
        encoded = []
        for key, value in entries.items() if isinstance(entries, Mapping) else entries:
            if value is None:
                self._refuse_none(key)
            encoded.append((*_keys(self, key), self._encode(value), value))
        for known_as, entry, raw, value in encoded:
            if self._cursors:
                self._preserve(entry)
            level.put(known_as, entry, raw, value)

    def remove(self, key: K) -> None:
        """See ``MapState``."""
        level = self._level
        if level.resting:
            plain(self).remove(key)
            return
        known_as, entry = _keys(self, key)
        if self._cursors:
            self._preserve(entry)
            level.drop(known_as)
            self._delete(entry)
        else:
            level.write(known_as, entry, None)

    def _removed(self, page: Page, offset: int) -> None:
        own = own_key(self)
        for key in self._binding.decode_keys([key for key, _ in page], offset):
            self._level.drop((own, key))


def _keys(state: MapState[Any, Any], key: Any) -> tuple[tuple[bytes, Any], bytes]:
    """What an entry is known as, and its store key. A key of another type that can be stored is taken as it is read."""
    entry = state._entry(key)
    if type(key) is not state._plain_key:
        (key,), _ = state._binding.decode_key(entry, len(state._prefix()))
    return (own_key(state), key), entry


def _look(state: MapState[Any, Any], key: Any) -> Any:
    level = state._level
    return UNKNOWN if level.resting else level.look(_keys(state, key)[0])


def _read(state: MapState[K, V], key: K) -> V | None:
    """Read what is not young, or was asked for by a key of another type."""
    level = state._level
    if level.resting:
        return plain(state).get(key)
    known_as, entry = _keys(state, key)
    value = level.look(known_as)
    if value is not UNKNOWN:
        return value  # type: ignore[no-any-return]
    raw = state._get(entry)
    value = None if raw is None else state._decode(raw)
    if raw is None or value is not None:
        level.add(known_as, value)
    return value  # type: ignore[no-any-return]


def _async_read(state: MapState[K, V], key: K) -> StateFuture[V | None]:
    level = state._level
    if level.resting:
        return plain(state).async_get(key)
    known_as, entry = _keys(state, key)
    value = level.look(known_as)
    if value is not UNKNOWN:
        return completed_future(value)
    future = state._async_get(entry, state._or_none)
    # An answer that comes later may be older than a write by then.
    if future._state == DONE and (value := future._value) is not None:
        level.add(known_as, value)
    return future


def _write(state: MapState[K, V], key: K, value: V) -> None:
    if value is None:
        state._entry(key)  # what is wrong with it comes first
        state._refuse_none(key)
    known_as, entry = _keys(state, key)
    if not state._cursors:
        state._level.write(known_as, entry, value)
        return
    raw = state._encode(value)
    state._preserve(entry)
    state._level.put(known_as, entry, raw, value)
