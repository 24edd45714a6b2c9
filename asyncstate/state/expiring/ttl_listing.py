"""ListState with a time to live.

Owns: ``TtlListState`` and the cursor of its iterations.
Invariant: each element has its own stamp, in front of its encoded value and behind its length. Renewing an element does
not change its length, so a list's chunks stay as they are; only the clean-up writes a list anew.
Must not import storage, execution or operators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from asyncstate.codec import prefix_end
from asyncstate.futures import StateFuture, StateIterator
from asyncstate.requests import Decoder
from asyncstate.state.expiring.expiry import Expiry
from asyncstate.state.keyed.binding import Binding
from asyncstate.state.keyed.chunks import COUNT_BYTES, elements, framed
from asyncstate.state.keyed.listing import ListCursor, ListState
from asyncstate.state.ranges import range_entries
from asyncstate.state.stored_lists import element_lists

T = TypeVar("T")


class TtlListState(ListState[T], Generic[T]):
    """A ListState each of whose elements expires by itself. A read renews what it loads."""

    __slots__ = ("_decode_shown", "_expiry")

    def __init__(self, binding: Binding, suffix: bytes | None) -> None:
        super().__init__(binding, suffix)
        assert binding.expiry is not None
        self._expiry = binding.expiry
        self._encode = self._expiry.stamped(binding.encode_value)
        self._decode_shown = _decode_shown(self._expiry, binding.decode_value)

    def get(self) -> Iterator[T]:
        """See ``ListState``."""
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

    def _cursor(self, prefix: bytes, head: bytes | None, blocking: bool) -> ListCursor:
        return _TtlListCursor(self._binding, self._elements, prefix, head, blocking, self._renew_chunk)

    def _elements(self, data: bytes, start: int) -> list[T]:
        found = elements(data, start, self._decode_shown, self._binding.label)
        return [element for element in found if element is not None]

    def _renewed_head(self, head: bytes | None) -> bytes | None:
        return None if head is None else self._renewed(head, COUNT_BYTES)

    def _renew_chunk(self, key: bytes, chunk: bytes) -> None:
        """Renew the elements of a chunk that was read, unless it has been written since it was asked for."""
        after = self._renewed(chunk, 0)
        if after is not chunk and self._get(key) == chunk:
            self._put(key, after)

    def _renewed(self, data: bytes, start: int) -> bytes:
        """``data`` as a read leaves it; ``data`` itself if nothing is to be renewed."""
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


class _TtlListCursor(ListCursor):
    """Renews each chunk as it arrives."""

    __slots__ = ("_renew",)

    def __init__(
        self,
        binding: Binding,
        elements_of: Callable[[bytes, int], list[Any]],
        prefix: bytes,
        head: bytes | None,
        blocking: bool,
        renew: Callable[[bytes, bytes], None],
    ) -> None:
        super().__init__(binding, elements_of, prefix, head, blocking)
        self._renew = renew

    def _reader(self, key: bytes) -> Decoder[list[Any]]:
        def read(chunk: bytes | None) -> list[Any]:
            if chunk is not None:
                self._renew(key, chunk)
            return self._decoded(chunk)

        return read


def _decode_shown(expiry: Expiry, decode: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """``decode`` of an element without its stamp; None, which no element is, for one that reads do not show."""

    def decode_shown(raw: bytes) -> Any:
        shown = expiry.shown(raw)
        return None if shown is None else decode(shown)

    return decode_shown
