"""ReducingState: added values, folded into one value with a function of the operator.

Owns: ``FoldingState``, one stored value into which all added values are folded, and ``ReducingState``.
Invariant: values are folded in the order in which they are added (see ``pending_ops``); if a function fails, or gives a
value that cannot be stored, the stored value is unchanged. The functions belong to the operator: nothing of them is
stored.
Must not import storage, execution or operators.

Source: Flink's ``AppendingState`` and ``ReducingState``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from asyncstate.errors import OperatorError, StateAccessError
from asyncstate.futures import DONE, StateFuture, completed_future, failed_future
from asyncstate.futures.future import VOID
from asyncstate.state.keyed.decoded_cache import UNKNOWN, DecodedCache
from asyncstate.state.keyed.pending_ops import MergingState, PendingSource
from asyncstate.state.keyed.state_context import StateContext

T = TypeVar("T")
IN = TypeVar("IN")
OUT = TypeVar("OUT")


class FoldingState(MergingState, Generic[IN, OUT]):
    """One stored value. ``StateContext.function`` is the function that its kind folds with.

    Operations work on the value itself where it is cached, by store key, else on its bytes.
    """

    __slots__ = ("_function",)

    def __init__(self, binding: StateContext, suffix: bytes | None) -> None:
        super().__init__(binding, suffix)
        self._function = binding.function
        if binding.cache is not None:
            read, async_read = binding.cache.read, binding.cache.async_read
            self._get = lambda prefix: read(prefix, prefix)  # type: ignore[assignment]
            self._async_get = lambda prefix, _: async_read(prefix, prefix)  # type: ignore[assignment]

    def get(self) -> OUT | None:
        """The folded value; None if nothing has been added."""
        if self._expiry is not None:
            return self._do(self._prefix(), self._read, None)  # type: ignore[no-any-return]
        return self._result_of(self._stored(self._prefix()))  # type: ignore[no-any-return]

    def async_get(self) -> StateFuture[OUT | None]:
        """A future of ``get``, as it is now: later additions do not change it."""
        cache, prefix = self._cache, self._prefix()
        stored = UNKNOWN if cache is None or prefix in self._waiting else cache.look(prefix)
        if stored is UNKNOWN:
            return self._when_read(self._read, None)
        try:
            return completed_future(None if stored is None else self._result(stored))
        except Exception as error:
            return failed_future(error)

    def add(self, value: IN) -> None:
        """Fold ``value`` in.

        Raises OperatorError if the function fails, StateAccessError if it gives None, CodecError if its result is not
        of the declared type.
        """
        value = self._given(value)
        prefix = self._prefix()
        cache = self._cache
        if cache is None:
            self._do(prefix, self._add, value)
        else:
            self._fold_in(cache, prefix, self._stored(prefix), value)

    def async_add(self, value: IN) -> StateFuture[None]:
        """``add``; every later operation sees it. Do not change ``value`` afterwards."""
        value = self._given(value)
        cache = self._cache
        if cache is None:
            return self._when_read(self._add, value)
        prefix = self._prefix()
        if prefix in self._waiting:
            return self._when_read(self._add, value)
        stored = cache.look(prefix)
        if stored is UNKNOWN:
            loaded = cache.async_load(prefix, prefix)
            if loaded._state != DONE:
                return self._when_read(self._add, value, loaded)
            stored = loaded._value
        try:
            self._fold_in(cache, prefix, stored, value)
        except Exception as error:
            return failed_future(error)
        return VOID

    def clear(self) -> None:
        """Remove the folded value."""
        prefix = self._prefix()
        if prefix in self._waiting:
            self._stored(prefix)
        self._write(prefix, UNKNOWN, None)

    def async_clear(self) -> StateFuture[None]:
        """``clear``; every later operation sees it."""
        prefix = self._prefix()
        if prefix in self._waiting:
            return self._when_read(_cleared, None)
        self._write(prefix, UNKNOWN, None)
        return VOID

    def _given(self, value: Any) -> Any:
        """``value``, or an error if it cannot be added."""
        return value

    # -- the decoded cache ------------------------------------------------------------------------------------

    def _fold_in(self, cache: DecodedCache, prefix: bytes, stored: Any, value: Any) -> None:
        after = self._folded(stored, value)
        if prefix in cache.held and type(after) is cache.type and cache.fits(after):
            cache.values[prefix] = after
        elif after is None:
            self._as_stored(after)  # raises: it cannot be stored
        else:
            cache.write(prefix, prefix, after)

    def _write(self, prefix: bytes, before: Any, after: Any) -> None:
        cache = self._cache
        if cache is None:
            super()._write(prefix, before, after)
        elif after is not before:
            cache.write(prefix, prefix, after)

    # -- defined by each kind ---------------------------------------------------------------------------------

    @abstractmethod
    def _folded(self, stored: Any, value: Any) -> Any:
        """The stored value with ``value`` folded in; ``stored`` is None if there is none."""

    @abstractmethod
    def _combined(self, stored: Any, other: Any) -> Any:
        """Two stored values combined into one."""

    def _result(self, stored: Any) -> Any:
        """The result of ``get`` for the stored value."""
        return stored

    # -- operations on what is stored: the value itself where it is cached, else its bytes ---------------------

    def _read(self, prefix: bytes, raw: Any, _: None) -> tuple[Any, Any]:
        expiry = self._expiry
        after = raw if expiry is None or raw is None else expiry.renewed(raw, expiry.stamp())
        return after, self._result_of(raw)

    def _add(self, prefix: bytes, raw: Any, value: Any) -> tuple[Any, None]:
        return self._as_stored(self._folded(self._value_of(raw), value)), None

    def _merged(self, prefix: bytes, stored: Any, sources: list[PendingSource]) -> Any:
        merged = self._value_of(stored)
        others = [other for source in sources if (other := self._value_of(source.stored)) is not None]
        if not others:
            return stored
        for other in others:
            merged = other if merged is None else self._combined(merged, other)
        return self._as_stored(merged)

    def _result_of(self, raw: Any) -> Any:
        stored = self._value_of(raw)
        return None if stored is None else self._result(stored)

    def _value_of(self, raw: Any) -> Any:
        if self._expiry is not None:
            raw = self._expiry.unexpired(raw)
        return raw if raw is None or self._cache is not None else self._decode(raw)

    def _as_stored(self, value: Any) -> Any:
        if value is None:
            raise StateAccessError(
                f"{self._binding.label}: {_name(self._function)} returned None, which cannot be stored; return the "
                "combined value, or use clear() to remove it"
            )
        return self._encode(value) if self._cache is None else self._cache.as_stored(value)

    def _failed(self, method: str, error: Exception) -> OperatorError:
        """The error for a function that has raised ``error``."""
        binding = self._binding
        key = getattr(self._sink.current, "key", None)
        place = f"operator '{binding.uid}', state '{binding.name}'"
        return OperatorError(
            f"{place if key is None else f'{place}, key {key!r}'}: {_name(self._function)}{method} raised "
            f"{type(error).__name__}: {error}. The micro-batch is not committed; fix the function or the input and "
            "restart the query"
        )


class ReducingState(FoldingState[T, T], Generic[T]):
    """The values added for the current key, reduced to one of the same type; stored like a ValueState.

    The first value is stored unchanged; after that ``reduce_function(stored value, value)`` is stored. None cannot be
    added: StateAccessError.

    >>> from asyncstate import ReducingStateDescriptor
    >>> ReducingStateDescriptor("highest", max, int).kind
    'reducing'
    """

    __slots__ = ()

    def _given(self, value: Any) -> Any:
        if value is None:
            raise StateAccessError(
                f"{self._binding.label}: None cannot be added; leave it out, or use clear() to remove the value"
            )
        return value

    def _folded(self, stored: Any, value: Any) -> Any:
        return value if stored is None else self._combined(stored, value)

    def _combined(self, stored: Any, other: Any) -> Any:
        try:
            return self._function(stored, other)
        except Exception as error:
            raise self._failed("", error) from error


def _cleared(prefix: bytes, raw: bytes | None, _: None) -> tuple[None, None]:
    return None, None


def _name(function: Callable[..., Any]) -> str:
    """The name of a function, or of an object with functions, in errors."""
    return getattr(function, "__qualname__", type(function).__qualname__)
