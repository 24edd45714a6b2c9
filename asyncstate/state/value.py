"""ValueState: one value a key.

Owns: ``ValueState``.
Invariant: a value that is there is never None; ``update(None)`` removes it.
Must not import storage, execution or operators.

Source: FLIP-424's ``ValueState``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

from asyncstate.futures import StateFuture, completed_void_future
from asyncstate.state.binding import Binding, KeyedState
from asyncstate.state.decoded import DecodedValues

T = TypeVar("T")

_VOID: Final = completed_void_future()


class ValueState(KeyedState, Generic[T]):
    """One value for the current key. Without a value, reads give the declared default (None)."""

    __slots__ = (
        "_async_get",
        "_decode",
        "_default",
        "_delete",
        "_encode",
        "_get",
        "_known",  # of DecodedValueState, as the next one
        "_level",
        "_or_default",
        "_put",
    )

    _known: Callable[[Any, Any], Any]
    _level: DecodedValues

    # The methods repeat the store key's expression: a call in between costs a fifth of the whole request.

    def __init__(self, binding: Binding, suffix: bytes | None) -> None:
        super().__init__(binding, suffix)
        sink = binding.sink
        self._get = sink.get
        self._async_get = sink.async_get
        self._put = sink.put
        self._delete = sink.delete
        self._encode = binding.encode_value
        self._decode = binding.decode_value
        self._default = binding.default
        self._or_default = _with_default(binding.decode_value, binding.default)

    def value(self) -> T | None:
        """The value, or the default."""
        context: Any = self._sink.current
        try:
            key = context.group + self._id + context.encoded_key + self._suffix
        except (AttributeError, TypeError):
            raise self._misuse() from None
        raw = self._get(key)
        if raw is None:
            raw = self._default
            if raw is None:
                return None
        return self._decode(raw)  # type: ignore[no-any-return]

    def async_value(self) -> StateFuture[T | None]:
        """A future of the value, or of the default, as they are now: later writes do not change it."""
        context: Any = self._sink.current
        try:
            key = context.group + self._id + context.encoded_key + self._suffix
        except (AttributeError, TypeError):
            raise self._misuse() from None
        return self._async_get(key, self._or_default)

    def update(self, value: T | None) -> None:
        """Store ``value``; None clears. Raises CodecError for a value that is not of the declared type."""
        context: Any = self._sink.current
        try:
            key = context.group + self._id + context.encoded_key + self._suffix
        except (AttributeError, TypeError):
            raise self._misuse() from None
        if value is None:
            self._delete(key)
        else:
            self._put(key, self._encode(value))

    def async_update(self, value: T | None) -> StateFuture[None]:
        """``update``; every read that is asked for later sees it."""
        context: Any = self._sink.current
        try:
            key = context.group + self._id + context.encoded_key + self._suffix
        except (AttributeError, TypeError):
            raise self._misuse() from None
        if value is None:
            self._delete(key)
        else:
            self._put(key, self._encode(value))
        return _VOID

    def is_empty(self) -> bool:
        """True when no value is stored, whatever the default; decodes nothing."""
        return self._get(self._prefix()) is None

    def async_is_empty(self) -> StateFuture[bool]:
        """A future of ``is_empty``, as it is now."""
        return self._async_get(self._prefix(), _is_absent)

    def clear(self) -> None:
        """Remove the value."""
        self._delete(self._prefix())

    def async_clear(self) -> StateFuture[None]:
        """``clear``; every read that is asked for later sees it."""
        self._delete(self._prefix())
        return _VOID


def _is_absent(raw: bytes | None) -> bool:
    return raw is None


def _with_default(decode: Callable[[bytes], Any], default: bytes | None) -> Callable[[bytes | None], Any]:
    """``decode`` for a value that may be missing. The default is decoded each time: it may be a list."""

    def or_none(raw: bytes | None) -> Any:
        return None if raw is None else decode(raw)

    def or_default(raw: bytes | None) -> Any:
        return decode(default if raw is None else raw)  # type: ignore[arg-type]

    return or_none if default is None else or_default
