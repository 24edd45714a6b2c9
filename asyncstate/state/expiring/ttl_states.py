"""States of the current record's key with a time to live.

Owns: the value, list, map, reducing and aggregating state with a ttl. They are separate classes, so that states without
a ttl have no overhead.
Invariant: reads return and renew the same in both forms of a call and in both modes; a renewal never undoes a write.
Each element of a list has its own stamp, after its length: renewing it does not change the length, so a list's chunks
keep their layout, and only the clean-up rewrites a list.
Must not import storage, execution or operators.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, TypeVar

from asyncstate.codec import prefix_end
from asyncstate.futures import StateFuture, StateIterator
from asyncstate.state.keyed.aggregating_state import AggregatingState
from asyncstate.state.keyed.chunks import COUNT_BYTES, elements, framed
from asyncstate.state.keyed.list_state import ListState
from asyncstate.state.keyed.map_state import MapState, is_there
from asyncstate.state.keyed.reducing_state import FoldingState, ReducingState
from asyncstate.state.keyed.state_context import KeyedState
from asyncstate.state.keyed.value_state import R_co, ValueState
from asyncstate.state.ranges import range_entries
from asyncstate.state.stored_lists import element_lists
from asyncstate.state_backend import Decoder, Page

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
IN = TypeVar("IN")
OUT = TypeVar("OUT")


class _StampedEntries(KeyedState):
    """A state with one stamp per store entry."""

    __slots__ = ()

    def sweep(self, group: bytes) -> int:
        """Remove the expired entries of a key group; their number."""
        removed: int = self._expiry.sweep_entries(group + self._id, self._binding.page_size)
        return removed


class TtlValueState(_StampedEntries, ValueState[T, R_co], Generic[T, R_co]):
    """A ValueState whose value expires."""

    __slots__ = ()

    def value(self) -> R_co:
        key = self._prefix()
        return self._expiry.reader(key, self._or_default)(self._get(key))  # type: ignore[no-any-return]

    def async_value(self) -> StateFuture[R_co]:
        key = self._prefix()
        return self._async_get(key, self._expiry.reader(key, self._or_default))

    def is_empty(self) -> bool:
        """See ``ValueState``; renews nothing."""
        return self._expiry.unexpired(self._get(self._prefix())) is None

    def async_is_empty(self) -> StateFuture[bool]:
        """See ``ValueState``; renews nothing."""
        return self._async_get(self._prefix(), lambda raw: self._expiry.unexpired(raw) is None)


class TtlMapState(_StampedEntries, MapState[K, V], Generic[K, V]):
    """A MapState whose entries expire separately."""

    __slots__ = ()

    def get(self, key: K) -> V | None:
        entry = self._entry(key)
        return self._expiry.reader(entry, self._or_none)(self._get(entry))  # type: ignore[no-any-return]

    def async_get(self, key: K) -> StateFuture[V | None]:
        entry = self._entry(key)
        return self._async_get(entry, self._expiry.reader(entry, self._or_none))

    def contains(self, key: K) -> bool:
        """See ``MapState``; renews as other reads do."""
        entry = self._entry(key)
        return self._expiry.reader(entry, is_there)(self._get(entry))  # type: ignore[no-any-return]

    def async_contains(self, key: K) -> StateFuture[bool]:
        """See ``MapState``; renews as other reads do."""
        entry = self._entry(key)
        return self._async_get(entry, self._expiry.reader(entry, is_there))

    def is_empty(self) -> bool:
        """See ``MapState``; renews nothing."""
        return next(self._iterate(self._unexpired_only), None) is None

    def async_is_empty(self) -> StateFuture[bool]:
        """See ``MapState``; renews nothing."""
        return self._async_iterate(self._unexpired_only).then_apply(lambda found: found.is_empty())

    def _decode_entries(self, page: Page, offset: int) -> list[tuple[K, V]]:
        return super()._decode_entries(self._expiry.unexpired_page(page), offset)

    def _decode_keys(self, page: Page, offset: int) -> list[K]:
        return super()._decode_keys(self._expiry.unexpired_page(page), offset)

    def _decode_values(self, page: Page, offset: int) -> list[V]:
        return super()._decode_values(self._expiry.unexpired_page(page), offset)

    def _unexpired_only(self, page: Page, _: int) -> list[bytes]:
        shows = self._expiry.shows
        return [key for key, raw in page if shows(raw)]


class _TtlFoldingState(_StampedEntries, FoldingState[IN, OUT], Generic[IN, OUT]):
    """A folded value that expires as a whole; adding to it, and merging into it, writes it."""

    __slots__ = ()

    def get(self) -> Any:
        prefix = self._prefix()
        raw = self._stored(prefix)
        after, result = self._read(prefix, raw, None)
        self._write(prefix, raw, after)
        return result

    def _read(self, prefix: bytes, raw: bytes | None, _: None) -> tuple[bytes | None, Any]:
        expiry = self._expiry
        after = None if raw is None else expiry.renewed(raw, expiry.stamp())
        return after, self._result_of(raw)

    def _value_of(self, raw: bytes | None) -> Any:
        return super()._value_of(self._expiry.unexpired(raw))


class TtlReducingState(_TtlFoldingState[T, T], ReducingState[T], Generic[T]):
    """A ReducingState that expires."""

    __slots__ = ()


class TtlAggregatingState(_TtlFoldingState[IN, OUT], AggregatingState[IN, OUT], Generic[IN, OUT]):
    """An AggregatingState that expires."""

    __slots__ = ()


class TtlListState(ListState[T], Generic[T]):
    """A ListState whose elements expire separately. A read renews the elements it loads."""

    __slots__ = ()

    def get(self) -> Iterator[T]:
        prefix = self._prefix()
        head = self._stored(prefix)
        found = super().get()
        self._write(prefix, head, self._renewed_head(head))
        return found

    def sweep(self, group: bytes) -> int:
        """Remove the expired elements of a key group; their number."""
        binding = self._binding
        state = group + self._id
        entries = range_entries(binding.sink, state, prefix_end(state), binding.page_size)
        return sum(self._sweep_list(*found) for found in element_lists(entries, binding.label))

    def _sweep_list(self, prefix: bytes, head: bytes, chunks: list[bytes]) -> int:
        expiry = self._expiry
        stored = [raw for chunk in chunks for raw in self._raw(chunk, 0)] + self._raw(head, COUNT_BYTES)
        kept = [expiry.restamped(raw) for raw in stored if not expiry.expired(raw)]
        if kept != stored:
            self._write(prefix, head, self._replace(prefix, head, [framed(raw) for raw in kept])[0])
        return len(stored) - len(kept)

    def _read(
        self, prefix: bytes, head: bytes | None, argument: None
    ) -> tuple[bytes | None, StateFuture[StateIterator[T]]]:
        _, found = super()._read(prefix, head, argument)
        return self._renewed_head(head), found

    def _elements(self, data: bytes, start: int) -> list[T]:
        unexpired, decode = self._expiry.unexpired, self._decode
        return [decode(value) for raw in self._raw(data, start) if (value := unexpired(raw)) is not None]

    def _chunk_reader(self, key: bytes) -> Decoder[list[T]]:
        def read(chunk: bytes | None) -> list[T]:
            if chunk is not None:
                self._renew_chunk(key, chunk)
            return self._chunk(chunk)

        return read

    def _renewed_head(self, head: bytes | None) -> bytes | None:
        return None if head is None else self._renewed(head, COUNT_BYTES)

    def _renew_chunk(self, key: bytes, chunk: bytes) -> None:
        """Renew the elements of a chunk that was read, unless it was written since the request."""
        after = self._renewed(chunk, 0)
        if after is not chunk and self._get(key) == chunk:
            self._put(key, after)

    def _renewed(self, data: bytes, start: int) -> bytes:
        """``data`` after a read; ``data`` itself if nothing is to be renewed."""
        expiry = self._expiry
        if not expiry.renews:
            return data
        stamp = expiry.stamp()
        before = self._raw(data, start)
        after = [expiry.renewed(raw, stamp) for raw in before]
        return data if after == before else data[:start] + b"".join(map(framed, after))

    def _raw(self, data: bytes, start: int) -> list[bytes]:
        """The elements with their stamps."""
        return elements(data, start, bytes, self._binding.label)
