"""ListState: elements in the order in which they were added.

Owns: ``ListState`` and the cursor of its iterations.
Invariant: operations on one list take effect in the order in which they were requested (see ``pending_ops``); an
iteration returns the list as of its request.
Must not import storage, execution or operators.

With a ttl each element has its own stamp, after its length: renewing it does not change the length, so a list's chunks
keep their layout, and only the clean-up rewrites a list.

Source: FLIP-424's ``ListState``; the layout is that of ``chunks``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from asyncstate.codec import prefix_end
from asyncstate.errors import StateAccessError
from asyncstate.futures import (
    StateFuture,
    StateIterator,
    combine_all,
    completed_future,
)
from asyncstate.futures.future import VOID
from asyncstate.state.keyed.chunks import (
    COUNT_BYTES,
    append_all,
    append_one,
    chunk_key,
    elements,
    elements_of_one_type,
    framed,
    sealed_chunks,
    whole,
)
from asyncstate.state.keyed.cursors import PageCursor, live_cursors
from asyncstate.state.keyed.pending_ops import MergingState, PendingSource, as_it_is
from asyncstate.state.ranges import range_entries
from asyncstate.state.stored_lists import element_lists
from asyncstate.state_backend import Decoder

T = TypeVar("T")


class ListState(MergingState, Generic[T]):
    """Elements of the current key. A small list is one store entry; a long one is stored and read in chunks. With a ttl
    its elements expire separately; a read renews those that it loads."""

    __slots__ = ()

    # -- reading ------------------------------------------------------------------------------------

    def get(self) -> Iterator[T]:
        """All elements as they are now, in order."""
        prefix = self._prefix()
        head = self._stored(prefix)
        sealed = sealed_chunks(head)
        found = ListCursor(self, prefix, head, blocking=True).load().get() if sealed else self._small(head)
        if self._expiry is not None:
            self._write(prefix, head, self._renewed(head, COUNT_BYTES))
        return iter(found)

    def async_get(self) -> StateFuture[StateIterator[T]]:
        """A future of an iterator over all elements as they are now, in order."""
        return self._when_read(self._read, None)

    def __iter__(self) -> Iterator[T]:
        return self.get()

    # -- writing ------------------------------------------------------------------------------------

    def add(self, element: T) -> None:
        """Append. Raises StateAccessError for None, CodecError for what is not of the declared type."""
        prefix = self._prefix()
        self._do(prefix, self._append_one, self._frame(element))

    def async_add(self, element: T) -> StateFuture[None]:
        """``add``; every later operation sees it."""
        return self._when_read(self._append_one, self._frame(element))

    def add_all(self, elements: Iterable[T]) -> None:
        """Append all, or none if one is refused; an empty iterable changes nothing."""
        prefix = self._prefix()
        frames = [self._frame(element) for element in elements]
        if frames:
            self._do(prefix, self._append_all, frames)

    def async_add_all(self, elements: Iterable[T]) -> StateFuture[None]:
        """``add_all``; every later operation sees it."""
        frames = [self._frame(element) for element in elements]
        return self._when_read(self._append_all, frames) if frames else VOID

    def update(self, elements: Iterable[T] | None) -> None:
        """Replace all elements; an empty iterable (or None) clears."""
        prefix = self._prefix()
        self._do(prefix, self._replace, [self._frame(element) for element in elements or ()])

    def async_update(self, elements: Iterable[T] | None) -> StateFuture[None]:
        """``update``; every later operation sees it."""
        return self._when_read(self._replace, [self._frame(element) for element in elements or ()])

    def clear(self) -> None:
        """Remove all elements."""
        self._do(self._prefix(), self._replace, [])

    def async_clear(self) -> StateFuture[None]:
        """``clear``; every later operation sees it."""
        return self._when_read(self._replace, [])

    # -- operations on a head ------------------------------------------------------------------------

    def _read(
        self, prefix: bytes, head: bytes | None, _: None
    ) -> tuple[bytes | None, StateFuture[StateIterator[T]]]:
        after = head if self._expiry is None else self._renewed(head, COUNT_BYTES)
        if sealed_chunks(head):
            return after, ListCursor(self, prefix, head, blocking=False).load()
        return after, completed_future(head).then_apply(self._small)

    def _small(self, head: bytes | None) -> StateIterator[T]:
        return StateIterator([] if head is None else self._elements(head, COUNT_BYTES))

    def _append_one(self, prefix: bytes, head: bytes | None, frame: bytes) -> tuple[bytes | None, None]:
        return append_one(head, frame, lambda index, chunk: self._put(chunk_key(prefix, index), chunk)), None

    def _append_all(
        self, prefix: bytes, head: bytes | None, frames: list[bytes]
    ) -> tuple[bytes | None, None]:
        return append_all(head, frames, lambda index, chunk: self._put(chunk_key(prefix, index), chunk)), None

    def _replace(self, prefix: bytes, head: bytes | None, frames: list[bytes]) -> tuple[bytes | None, None]:
        sealed = sealed_chunks(head)
        if sealed:
            for cursor in live_cursors(self._binding.cursors, prefix):
                cursor.preserve()
            for index in range(sealed):
                self._delete(chunk_key(prefix, index))
        return self._append_all(prefix, None, frames)

    # -- merging ---------------------------------------------------------------------------------------

    def _contents(self, prefix: bytes, stored: bytes | None, blocking: bool) -> StateFuture[list[bytes]]:
        """See ``MergingState``: the elements, framed."""
        keys = [chunk_key(prefix, index) for index in range(sealed_chunks(stored))]
        if blocking:
            chunks = completed_future([self._get(key) for key in keys])
        else:
            chunks = combine_all([self._async_get(key, as_it_is) for key in keys])
        return chunks.then_apply(lambda known: self._frames(known, stored))

    def _frames(
        self, sealed: Sequence[bytes | None], head: bytes | None, of: Callable[[bytes], bytes] = framed
    ) -> list[bytes]:
        """``of`` each element of a list."""
        label = self._binding.label
        frames: list[bytes] = []
        for chunk in sealed:
            frames += elements(whole(chunk, label), 0, of, label)
        return frames if head is None else frames + elements(head, COUNT_BYTES, of, label)

    def _merged(self, prefix: bytes, stored: bytes | None, sources: list[PendingSource]) -> bytes | None:
        frames: list[bytes] = []
        for source in sources:
            self._replace(source.prefix, source.stored, [])
            frames += source.contents
        return self._append_all(prefix, stored, frames)[0] if frames else stored

    # -- elements as bytes -----------------------------------------------------------------------------

    def _elements(self, data: bytes, start: int) -> list[T]:
        """The elements of a chunk, or of a head after its count."""
        binding, expiry = self._binding, self._expiry
        if expiry is not None:
            stored = elements(data, start, bytes, binding.label)
            shown = [value for raw in stored if (value := expiry.unexpired(raw)) is not None]
            return binding.decode_values(shown)  # type: ignore[no-any-return]
        return elements_of_one_type(data, start, binding.decode_values, binding.decode_packed, binding.label)

    def _chunk(self, chunk: bytes | None) -> list[T]:
        return self._elements(whole(chunk, self._binding.label), 0)

    def _chunk_reader(self, key: bytes) -> Decoder[list[T]]:
        """The decoder of the chunk under a store key, which also renews it."""
        if self._expiry is None:
            return self._chunk

        def read(chunk: bytes | None) -> list[T]:
            found = self._chunk(chunk)
            after = self._renewed(chunk, 0)
            if after and after != chunk == self._get(key):  # not written since the request
                self._put(key, after)
            return found

        return read

    def _frame(self, element: T) -> bytes:
        if element is None:
            raise StateAccessError(
                f"{self._binding.label}: a list element cannot be None; leave it out, or declare a struct "
                "with a nullable field"
            )
        return framed(self._encode(element))

    # -- time to live ----------------------------------------------------------------------------------

    def _renewed(self, data: bytes | None, start: int) -> bytes | None:
        """A chunk, or a head, after a read; ``data`` itself if nothing is to be renewed."""
        expiry = self._expiry
        if data is None or not expiry.renews:
            return data
        stamp = expiry.stamp()
        before = elements(data, start, bytes, self._binding.label)
        after = [expiry.renewed(raw, stamp) for raw in before]
        return data if after == before else data[:start] + b"".join(map(framed, after))

    def sweep(self, group: bytes) -> int:
        """Remove the expired elements of a key group; their number."""
        binding = self._binding
        state = group + self._id
        entries = range_entries(binding.sink, state, prefix_end(state), binding.page_size)
        return sum(self._sweep_list(*found) for found in element_lists(entries, binding.label))

    def _sweep_list(self, prefix: bytes, head: bytes, chunks: list[bytes]) -> int:
        expiry = self._expiry
        stored = self._frames(chunks, head, bytes)
        kept = [expiry.restamped(raw) for raw in stored if not expiry.expired(raw)]
        if kept != stored:
            self._write(prefix, head, self._replace(prefix, head, list(map(framed, kept)))[0])
        return len(stored) - len(kept)


class ListCursor(PageCursor[list[Any], Any]):
    """Iterates over the chunks from ``_asked``, then the tail of one list, as of the request."""

    __slots__ = ("_asked", "_binding", "_kept", "_sealed", "_state", "_step", "_tail")

    def __init__(self, state: ListState[Any], prefix: bytes, head: bytes | None, blocking: bool) -> None:
        super().__init__(state._binding.cursors, prefix, blocking)
        self._state = state
        self._binding = state._binding
        self._sealed = sealed_chunks(head)
        self._tail = head
        self._asked = 0
        self._step = 1
        self._kept: dict[int, Any] = {}

    def preserve(self) -> None:
        """Before the list loses its chunks, read those that are not requested yet."""
        for index in range(self._asked, self._sealed):
            if index not in self._kept:
                self._kept[index] = self._state._chunk(self._binding.sink.get(chunk_key(self._prefix, index)))

    def _ask(self) -> StateFuture[list[Any]]:
        first = self._asked
        self._asked = min(first + self._step, self._sealed)
        chunks = range(first, self._asked)
        if self._kept:
            return completed_future([self._kept.pop(index) for index in chunks])
        keys = [chunk_key(self._prefix, index) for index in chunks]
        sink, reader = self._binding.sink, self._state._chunk_reader
        if self._blocking:
            return completed_future([reader(key)(sink.get(key)) for key in keys])
        return combine_all([sink.async_get(key, reader(key)) for key in keys])

    def _entries(self, page: list[Any]) -> list[Any]:
        items = [element for chunk in page for element in chunk]
        if items:
            self._step = max(1, self._binding.page_size * len(page) // len(items))
        if self._asked == self._sealed and self._tail is not None:
            items += self._state._elements(self._tail, COUNT_BYTES)
        return items

    @property
    def _exhausted(self) -> bool:
        return self._asked == self._sealed
