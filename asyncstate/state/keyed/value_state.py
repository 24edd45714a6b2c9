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

from asyncstate.futures import StateFuture, completed_future
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

    # A value is cached by the record's key and the namespace. None where ``_cache`` is.
    _known: Callable[[Any, Any], Any] | None

    # The methods repeat the store key's expression: a helper call costs a fifth of the whole request.

    def __init__(self, binding: StateContext, suffix: bytes | None) -> None:
        super().__init__(binding, suffix)
        self._default = binding.default
        self._or_default = with_default(binding.decode_value, binding.default)
        self._known = None if binding.cache is None else binding.cache.values.get

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
        cache: Any = self._cache
        if value is UNKNOWN:
            value = cache.load(own, context.group + self._id + own)
        else:
            cache.hits += 1
        return cache.default if value is None else value  # type: ignore[no-any-return]

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
        cache: Any = self._cache
        if value is UNKNOWN:
            return cache.async_load(own, context.group + self._id + own, cache.default)  # type: ignore[no-any-return]
        cache.hits += 1
        return completed_future(cache.default if value is None else value)

    def update(self, value: T | None) -> None:
        """Store ``value``; None clears. Raises CodecError for a value that is not of the declared type."""
        context: Any = self._sink.current
        try:
            own = context.encoded_key + self._suffix
        except (AttributeError, TypeError):
            raise self._misuse() from None
        cache = self._cache
        if cache is not None:
            if own in cache.held and type(value) is cache.type and cache.fits(value):
                cache.values[own] = value
            else:
                cache.write(own, context.group + self._id + own, value)
        elif value is None:
            self._delete(context.group + self._id + own)
        else:
            self._put(context.group + self._id + own, self._encode(value))

    def async_update(self, value: T | None) -> StateFuture[None]:
        """``update``; every later read sees it."""
        self.update(value)
        return VOID

    def is_empty(self) -> bool:
        """True when there is no value, whatever the default. Renews nothing."""
        key, cache = self._prefix(), self._cache
        if cache is None:
            return self._unexpired(self._sink.get(key)) is None
        return cache.read(self._own_key(), key) is None

    def async_is_empty(self) -> StateFuture[bool]:
        """A future of ``is_empty``, as it is now."""
        key, cache = self._prefix(), self._cache
        if cache is None:
            return self._sink.async_get(key, lambda raw: self._unexpired(raw) is None)
        return cache.async_read(self._own_key(), key).then_apply(_is_absent)

    def clear(self) -> None:
        """Remove the value."""
        self.update(None)

    def async_clear(self) -> StateFuture[None]:
        """``clear``; every later read sees it."""
        self.update(None)
        return VOID


def _is_absent(value: Any) -> bool:
    return value is None
