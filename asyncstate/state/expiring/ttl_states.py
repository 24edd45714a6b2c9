"""The states of a declaration with a time to live.

Owns: the value, map, reducing and aggregating state with a ttl; the list's is in ``ttl_listing``. They are classes of
their own so that states without a ttl pay nothing.
Invariant: what reads show and renew is the same in both forms of a call and in both modes; a renewal never
undoes a write.
Must not import storage, execution or operators.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from asyncstate.futures import StateFuture
from asyncstate.requests import Page
from asyncstate.state.keyed.aggregating import AggregatingState
from asyncstate.state.keyed.binding import Binding
from asyncstate.state.keyed.mapping import MapState, is_there
from asyncstate.state.keyed.reducing import FoldingState, ReducingState
from asyncstate.state.keyed.value import R_co, ValueState

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
IN = TypeVar("IN")
OUT = TypeVar("OUT")


class TtlValueState(ValueState[T, R_co], Generic[T, R_co]):
    """A ValueState whose value expires."""

    __slots__ = ("_expiry",)

    def __init__(self, binding: Binding, suffix: bytes | None) -> None:
        super().__init__(binding, suffix)
        assert binding.expiry is not None
        self._expiry = binding.expiry
        self._encode = self._expiry.stamped(binding.encode_value)

    def value(self) -> R_co:
        """See ``ValueState``."""
        key = self._prefix()
        return self._expiry.reader(key, self._or_default)(self._get(key))  # type: ignore[no-any-return]

    def async_value(self) -> StateFuture[R_co]:
        """See ``ValueState``."""
        key = self._prefix()
        return self._async_get(key, self._expiry.reader(key, self._or_default))

    def is_empty(self) -> bool:
        """See ``ValueState``; renews nothing."""
        return self._expiry.shown(self._get(self._prefix())) is None

    def async_is_empty(self) -> StateFuture[bool]:
        """See ``ValueState``; renews nothing."""
        return self._async_get(self._prefix(), lambda raw: self._expiry.shown(raw) is None)

    def sweep(self, group: bytes) -> int:
        """Remove the expired values of a key group; their number."""
        return self._expiry.sweep_entries(group + self._id, self._binding.page_size)


class TtlMapState(MapState[K, V], Generic[K, V]):
    """A MapState each of whose entries expires by itself."""

    __slots__ = ("_expiry",)

    def __init__(self, binding: Binding, suffix: bytes | None) -> None:
        super().__init__(binding, suffix)
        assert binding.expiry is not None
        self._expiry = binding.expiry
        self._encode = self._expiry.stamped(binding.encode_value)

    def get(self, key: K) -> V | None:
        """See ``MapState``."""
        entry = self._entry(key)
        return self._expiry.reader(entry, self._or_none)(self._get(entry))  # type: ignore[no-any-return]

    def async_get(self, key: K) -> StateFuture[V | None]:
        """See ``MapState``."""
        entry = self._entry(key)
        return self._async_get(entry, self._expiry.reader(entry, self._or_none))

    def contains(self, key: K) -> bool:
        """See ``MapState``; a read like any other."""
        entry = self._entry(key)
        return self._expiry.reader(entry, is_there)(self._get(entry))  # type: ignore[no-any-return]

    def async_contains(self, key: K) -> StateFuture[bool]:
        """See ``MapState``; a read like any other."""
        entry = self._entry(key)
        return self._async_get(entry, self._expiry.reader(entry, is_there))

    def is_empty(self) -> bool:
        """See ``MapState``; renews nothing."""
        return next(self._iterate(self._shown_only), None) is None

    def async_is_empty(self) -> StateFuture[bool]:
        """See ``MapState``; renews nothing."""
        return self._async_iterate(self._shown_only).then_apply(lambda found: found.is_empty())

    def sweep(self, group: bytes) -> int:
        """Remove the expired entries of a key group; their number."""
        return self._expiry.sweep_entries(group + self._id, self._binding.page_size)

    def _decode_entries(self, page: Page, offset: int) -> list[tuple[K, V]]:
        return super()._decode_entries(self._expiry.shown_page(page), offset)

    def _decode_keys(self, page: Page, offset: int) -> list[K]:
        return super()._decode_keys(self._expiry.shown_page(page), offset)

    def _decode_values(self, page: Page, offset: int) -> list[V]:
        return super()._decode_values(self._expiry.shown_page(page), offset)

    def _shown_only(self, page: Page, _: int) -> list[bytes]:
        shows = self._expiry.shows
        return [key for key, raw in page if shows(raw)]


class _TtlFoldingState(FoldingState[IN, OUT], Generic[IN, OUT]):
    """A folded value that expires as a whole; adding to it, and merging into it, writes it."""

    __slots__ = ("_expiry",)

    def __init__(self, binding: Binding, suffix: bytes | None) -> None:
        super().__init__(binding, suffix)
        assert binding.expiry is not None
        self._expiry = binding.expiry
        self._encode = self._expiry.stamped(binding.encode_value)

    def get(self) -> Any:
        """See ``FoldingState``."""
        prefix = self._prefix()
        raw = self._stored(prefix)
        after, result = self._read(prefix, raw, None)
        self._write(prefix, raw, after)
        return result

    def sweep(self, group: bytes) -> int:
        """Remove the expired values of a key group; their number."""
        return self._expiry.sweep_entries(group + self._id, self._binding.page_size)

    def _read(self, prefix: bytes, raw: bytes | None, _: None) -> tuple[bytes | None, Any]:
        expiry = self._expiry
        after = None if raw is None else expiry.renewed(raw, expiry.stamp())
        return after, self._result_of(raw)

    def _value_of(self, raw: bytes | None) -> Any:
        return super()._value_of(self._expiry.shown(raw))


class TtlReducingState(_TtlFoldingState[T, T], ReducingState[T], Generic[T]):
    """A ReducingState that expires."""

    __slots__ = ()


class TtlAggregatingState(_TtlFoldingState[IN, OUT], AggregatingState[IN, OUT], Generic[IN, OUT]):
    """An AggregatingState that expires."""

    __slots__ = ()
