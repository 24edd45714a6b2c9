"""The value state that keeps decoded values.

Owns: ``DecodedValueState``.
Invariant: what it shows and stores is what the plain state shows and stores.
Must not import storage, execution or operators.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Final, Generic, TypeVar

from asyncstate.futures import DONE, StateFuture, completed_future, completed_void_future
from asyncstate.state.binding import Binding
from asyncstate.state.decoded import UNKNOWN
from asyncstate.state.decoded_common import level_of, own_key, plain
from asyncstate.state.value import ValueState

T = TypeVar("T")

_VOID: Final = completed_void_future()


class DecodedValueState(ValueState[T], Generic[T]):
    """A ValueState that knows what it has read and written; what it knows goes by the record's key alone."""

    __slots__ = ()
    _plain_kind: ClassVar[type] = ValueState

    def __init__(self, binding: Binding, suffix: bytes | None) -> None:
        super().__init__(binding, suffix)
        self._level = level_of(binding)
        self._known = self._level.values.get
        if self._default is not None:
            self._or_default = _with_this_default(self._decode, self._level.default)

    def value(self) -> T | None:
        """See ``ValueState``."""
        context: Any = self._sink.current
        try:
            key = context.encoded_key + self._suffix
        except (AttributeError, TypeError):
            raise self._misuse() from None
        value = self._known(key, UNKNOWN)
        if value is UNKNOWN:
            return _read(self, key)
        level = self._level
        level.hits += 1
        return level.default if value is None else value  # type: ignore[no-any-return]

    def async_value(self) -> StateFuture[T | None]:
        """See ``ValueState``."""
        context: Any = self._sink.current
        try:
            key = context.encoded_key + self._suffix
        except (AttributeError, TypeError):
            raise self._misuse() from None
        value = self._known(key, UNKNOWN)
        if value is UNKNOWN:
            return _async_read(self, key)
        level = self._level
        level.hits += 1
        return completed_future(level.default if value is None else value)

    def update(self, value: T | None) -> None:
        """See ``ValueState``."""
        context: Any = self._sink.current
        try:
            key = context.encoded_key + self._suffix
        except (AttributeError, TypeError):
            raise self._misuse() from None
        level = self._level
        if key in level.held and type(value) is level.type and level.fits(value):
            level.values[key] = value
        elif level.resting:
            plain(self).update(value)
        else:
            level.write(key, context.group + self._id + key, value)

    def async_update(self, value: T | None) -> StateFuture[None]:
        """See ``ValueState``."""
        self.update(value)
        return _VOID

    def is_empty(self) -> bool:
        """See ``ValueState``."""
        value = self._level.look(own_key(self))
        return ValueState.is_empty(self) if value is UNKNOWN else value is None

    def async_is_empty(self) -> StateFuture[bool]:
        """See ``ValueState``."""
        value = self._level.look(own_key(self))
        return ValueState.async_is_empty(self) if value is UNKNOWN else completed_future(value is None)

    def clear(self) -> None:
        """See ``ValueState``."""
        self.update(None)

    def async_clear(self) -> StateFuture[None]:
        """See ``ValueState``."""
        self.update(None)
        return _VOID


def _with_this_default(decode: Callable[[bytes], Any], default: Any) -> Callable[[bytes | None], Any]:
    """``decode`` for a value that may be missing: then ``default`` itself, which nobody can change."""

    def or_default(raw: bytes | None) -> Any:
        return default if raw is None else decode(raw)

    return or_default


def _read(state: ValueState[T], key: bytes) -> T | None:
    """Read what is not young."""
    level = state._level
    if level.resting:
        return plain(state).value()
    value: Any = level.recall(key) if level.old else UNKNOWN
    if value is not UNKNOWN:
        return level.default if value is None else value  # type: ignore[no-any-return]
    raw = state._get(state._prefix())
    if raw is None:
        level.add(key, None)
        return level.default  # type: ignore[no-any-return]
    value = state._decode(raw)
    if value is not None:
        level.add(key, value)
    return value  # type: ignore[no-any-return]


def _async_read(state: ValueState[T], key: bytes) -> StateFuture[T | None]:
    level = state._level
    if level.resting:
        return plain(state).async_value()
    value: Any = level.recall(key) if level.old else UNKNOWN
    if value is not UNKNOWN:
        return completed_future(level.default if value is None else value)
    future = state._async_get(state._prefix(), state._or_default)
    # An answer that comes later may be older than a write by then. The default itself stands for an absent value.
    if future._state == DONE and (value := future._value) is not level.default and value is not None:
        level.add(key, value)
    return future
