"""ValueState: one value per key.

Owns: ``ValueState``.
Invariant: a value that is there is never None; ``update(None)`` removes it.
Must not import storage, execution or operators.

Source: FLIP-424's ``ValueState``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic

from typing_extensions import TypeVar

from asyncstate.futures import DONE, StateFuture, completed_future
from asyncstate.futures.future import VOID
from asyncstate.state.keyed.decoded_cache import UNKNOWN
from asyncstate.state.keyed.state_context import KeyedState, StateContext, with_default

T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True, default=T | None)
"""The result of reads: with a declared default always a value."""


class ValueState(KeyedState, Generic[T, R_co]):
    """One value for the current key. Without a value, reads give the declared default (None).

    ``ValueState[int]`` is one without a default, whose reads may be None; with one it is ``ValueState[int, int]``.
    """

    __slots__ = ("_default", "_known", "_or_default")

    # A value is cached by the record's key and the namespace. None where ``_level`` is.
    _known: Callable[[Any, Any], Any] | None

    # The methods repeat the store key's expression: a helper call costs a fifth of the whole request.

    def __init__(self, binding: StateContext, suffix: bytes | None) -> None:
        super().__init__(binding, suffix)
        self._default = binding.default
        self._or_default = with_default(binding.decode_value, binding.default)
        level = binding.known
        self._known = None if level is None else level.values.get
        if level is not None and binding.default is not None:
            self._or_default = _with_this_default(binding.decode_value, level.default)

    def value(self) -> R_co:
        """The value, or the default."""
        context: Any = self._sink.current
        try:
            own = context.encoded_key + self._suffix
        except (AttributeError, TypeError):
            raise self._misuse() from None
        known = self._known
        if known is None:
            raw = self._get(context.group + self._id + own)
            if raw is None:
                raw = self._default
                if raw is None:
                    return None  # type: ignore[return-value]  # no default: None is one of R_co
            return self._decode(raw)  # type: ignore[no-any-return]
        value = known(own, UNKNOWN)
        if value is UNKNOWN:
            return self._value(own)
        level: Any = self._level
        level.hits += 1
        return level.default if value is None else value  # type: ignore[no-any-return]

    def async_value(self) -> StateFuture[R_co]:
        """A future of the current value, or of the default: later writes do not change it."""
        context: Any = self._sink.current
        try:
            own = context.encoded_key + self._suffix
        except (AttributeError, TypeError):
            raise self._misuse() from None
        known = self._known
        if known is None:
            return self._async_get(context.group + self._id + own, self._or_default)
        value = known(own, UNKNOWN)
        if value is UNKNOWN:
            return self._async_value(own)
        level: Any = self._level
        level.hits += 1
        return completed_future(level.default if value is None else value)

    def update(self, value: T | None) -> None:
        """Store ``value``; None clears. Raises CodecError for a value that is not of the declared type."""
        context: Any = self._sink.current
        try:
            own = context.encoded_key + self._suffix
        except (AttributeError, TypeError):
            raise self._misuse() from None
        level = self._level
        if level is not None:
            if own in level.held and type(value) is level.type and level.fits(value):
                level.values[own] = value
                return
            if not level.disabled:
                level.write(own, context.group + self._id + own, value)
                return
            self._level = self._known = None
        if value is None:
            self._delete(context.group + self._id + own)
        else:
            self._put(context.group + self._id + own, self._encode(value))

    def async_update(self, value: T | None) -> StateFuture[None]:
        """``update``; every later read sees it."""
        self.update(value)
        return VOID

    def is_empty(self) -> bool:
        """True when no value is stored, whatever the default; decodes nothing."""
        value = self._look()
        return self._get(self._prefix()) is None if value is UNKNOWN else value is None

    def async_is_empty(self) -> StateFuture[bool]:
        """A future of ``is_empty``, as it is now."""
        value = self._look()
        if value is UNKNOWN:
            return self._async_get(self._prefix(), _is_absent)
        return completed_future(value is None)

    def clear(self) -> None:
        """Remove the value."""
        self.update(None)

    def async_clear(self) -> StateFuture[None]:
        """``clear``; every later read sees it."""
        self.update(None)
        return VOID

    # -- the decoded cache ------------------------------------------------------------------------------------

    def _look(self) -> Any:
        """The cached value, None for an absent value; UNKNOWN for a miss."""
        return UNKNOWN if self._level is None else self._level.look(self._own_key())

    def _value(self, own: bytes) -> R_co:
        """Read a value that is not in the recent generation."""
        level = self._level
        assert level is not None
        if level.disabled:
            self._level = self._known = None
            return self.value()
        value: Any = level.recall(own) if level.old else UNKNOWN
        if value is not UNKNOWN:
            return level.default if value is None else value  # type: ignore[no-any-return]
        raw = self._get(self._prefix())
        if raw is None:
            level.add(own, None)
            return level.default  # type: ignore[no-any-return]
        value = self._decode(raw)
        if value is not None:
            level.add(own, value)
        return value  # type: ignore[no-any-return]

    def _async_value(self, own: bytes) -> StateFuture[R_co]:
        level = self._level
        assert level is not None
        if level.disabled:
            self._level = self._known = None
            return self.async_value()
        value: Any = level.recall(own) if level.old else UNKNOWN
        if value is not UNKNOWN:
            return completed_future(level.default if value is None else value)
        future = self._async_get(self._prefix(), self._or_default)
        # An answer that arrives later may be older than a write. The default object itself represents an absent value.
        if future._state == DONE and (value := future._value) is not level.default and value is not None:
            level.add(own, value)
        return future


def _is_absent(raw: bytes | None) -> bool:
    return raw is None


def _with_this_default(decode: Callable[[bytes], Any], default: Any) -> Callable[[bytes | None], Any]:
    """``with_default`` for an immutable default: reads give the object itself, so that it can be recognized."""

    def or_default(raw: bytes | None) -> Any:
        return default if raw is None else decode(raw)

    return or_default
