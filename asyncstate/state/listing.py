"""ListState: elements in the order in which they were added.

Owns: ``ListState``, the operations that wait for a list's head, and the cursor of its iterations.
Invariant: operations on one list take effect in the order in which they were asked for, whether or not the
head had to be waited for; an iteration shows the list as it was when it was asked for.
Must not import storage, execution or operators.

Source: FLIP-424's ``ListState``; the layout is that of ``chunks``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Generic, TypeVar

from asyncstate.errors import CodecError, StateAccessError
from asyncstate.futures import (
    StateFuture,
    StateIterator,
    combine_all,
    completed_future,
    completed_void_future,
)
from asyncstate.state.binding import Binding, KeyedState
from asyncstate.state.chunks import (
    COUNT_BYTES,
    INDEX_BYTES,
    append_all,
    append_one,
    elements,
    framed,
    sealed_chunks,
)
from asyncstate.state.cursors import PageCursor, live_cursors

T = TypeVar("T")

_VOID: Final = completed_void_future()

# (list's store key, its head, argument) -> (the head afterwards, result)
Operation = Callable[[bytes, bytes | None, Any], tuple[bytes | None, Any]]


class ListState(KeyedState, Generic[T]):
    """Elements of the current key. A small list is one store entry, a long one is read and kept in chunks."""

    __slots__ = ("_async_get", "_delete", "_encode", "_get", "_put", "_waiting")

    def __init__(self, binding: Binding, suffix: bytes | None) -> None:
        super().__init__(binding, suffix)
        sink = binding.sink
        self._get = sink.get
        self._async_get = sink.async_get
        self._put = sink.put
        self._delete = sink.delete
        self._encode = binding.encode_value
        self._waiting: dict[bytes, _Waiting] = binding.waiting

    # -- reading ------------------------------------------------------------------------------------

    def get(self) -> Iterator[T]:
        """All elements as they are now, in order."""
        prefix = self._prefix()
        head = self._head(prefix)
        if sealed_chunks(head):
            return iter(_ListCursor(self._binding, prefix, head, blocking=True).load_now())
        return iter(self._small(head))

    def async_get(self) -> StateFuture[StateIterator[T]]:
        """A future of an iterator over all elements as they are now, in order."""
        return self._when_read(self._read, None)

    # -- writing ------------------------------------------------------------------------------------

    def add(self, element: T) -> None:
        """Append. Raises StateAccessError for None, CodecError for what is not of the declared type."""
        prefix = self._prefix()
        self._do(prefix, self._append_one, self._frame(element))

    def async_add(self, element: T) -> StateFuture[None]:
        """``add``; every operation that is asked for later sees it."""
        return self._when_read(self._append_one, self._frame(element))

    def add_all(self, elements: Iterable[T]) -> None:
        """Append all, or none if one is refused; an empty iterable changes nothing."""
        prefix = self._prefix()
        frames = [self._frame(element) for element in elements]
        if frames:
            self._do(prefix, self._append_all, frames)

    def async_add_all(self, elements: Iterable[T]) -> StateFuture[None]:
        """``add_all``; every operation that is asked for later sees it."""
        frames = [self._frame(element) for element in elements]
        return self._when_read(self._append_all, frames) if frames else _VOID

    def update(self, elements: Iterable[T] | None) -> None:
        """Replace all elements; an empty iterable (or None) clears."""
        prefix = self._prefix()
        self._do(prefix, self._replace, [self._frame(element) for element in elements or ()])

    def async_update(self, elements: Iterable[T] | None) -> StateFuture[None]:
        """``update``; every operation that is asked for later sees it."""
        return self._when_read(self._replace, [self._frame(element) for element in elements or ()])

    def clear(self) -> None:
        """Remove all elements."""
        self._do(self._prefix(), self._replace, [])

    def async_clear(self) -> StateFuture[None]:
        """``clear``; every operation that is asked for later sees it."""
        return self._when_read(self._replace, [])

    # -- operations on a head ------------------------------------------------------------------------

    def _read(
        self, prefix: bytes, head: bytes | None, _: None
    ) -> tuple[bytes | None, StateFuture[StateIterator[T]]]:
        if sealed_chunks(head):
            return head, _ListCursor(self._binding, prefix, head, blocking=False).load()
        return head, completed_future(head).then_apply(self._small)

    def _small(self, head: bytes | None) -> StateIterator[T]:
        binding = self._binding
        return StateIterator(
            [] if head is None else elements(head, COUNT_BYTES, binding.decode_value, binding.label)
        )

    def _append_one(self, prefix: bytes, head: bytes | None, frame: bytes) -> tuple[bytes | None, None]:
        return append_one(head, frame, lambda index, chunk: self._put(_chunk_key(prefix, index), chunk)), None

    def _append_all(
        self, prefix: bytes, head: bytes | None, frames: list[bytes]
    ) -> tuple[bytes | None, None]:
        return append_all(
            head, frames, lambda index, chunk: self._put(_chunk_key(prefix, index), chunk)
        ), None

    def _replace(self, prefix: bytes, head: bytes | None, frames: list[bytes]) -> tuple[bytes | None, None]:
        sealed = sealed_chunks(head)
        if sealed:
            for cursor in live_cursors(self._binding.cursors):
                cursor.preserve(prefix)
            for index in range(sealed):
                self._delete(_chunk_key(prefix, index))
        return self._append_all(prefix, None, frames)

    # -- waiting for the head -------------------------------------------------------------------------

    def _when_read(self, operation: Operation, argument: Any) -> StateFuture[Any]:
        """Run ``operation`` when the head is known, behind those asked for before; a future of its result."""
        prefix = self._prefix()
        waiting = self._waiting.get(prefix)
        if waiting is None:
            loaded = self._async_get(prefix, _as_it_is)
            if loaded.done:
                return self._run(prefix, loaded.get(), operation, argument)
            waiting = self._await_head(prefix, loaded)
        return waiting.add(operation, argument)

    def _await_head(self, prefix: bytes, loaded: StateFuture[bytes | None]) -> _Waiting:
        waiting = self._waiting[prefix] = _Waiting()

        def arrived(head: bytes | None) -> None:
            if self._waiting.get(prefix) is waiting:  # else a synchronous call was faster
                self._apply(prefix, head, waiting)
            waiting.settle()

        def failed(error: Exception) -> None:
            if self._waiting.get(prefix) is waiting:
                del self._waiting[prefix]
            waiting.fail(error)

        loaded.then_accept(arrived).recover(failed)
        return waiting

    def _run(
        self, prefix: bytes, head: bytes | None, operation: Operation, argument: Any
    ) -> StateFuture[Any]:
        after, result = operation(prefix, head, argument)
        self._write(prefix, head, after)
        return _VOID if result is None else result

    def _do(self, prefix: bytes, operation: Operation, argument: Any) -> None:
        head = self._head(prefix)
        after, _ = operation(prefix, head, argument)
        self._write(prefix, head, after)

    def _head(self, prefix: bytes) -> bytes | None:
        """The head at once; what waits for it takes effect first."""
        head = self._get(prefix)
        if self._waiting:
            waiting = self._waiting.get(prefix)
            if waiting is not None:
                return self._apply(prefix, head, waiting)
        return head

    def _apply(self, prefix: bytes, head: bytes | None, waiting: _Waiting) -> bytes | None:
        del self._waiting[prefix]
        after = head
        for operation, argument in waiting.operations:
            after, result = operation(prefix, after, argument)
            waiting.results.append(result)
        self._write(prefix, head, after)
        return after

    def _write(self, prefix: bytes, head: bytes | None, after: bytes | None) -> None:
        if after is head:
            return
        if after is None:
            self._delete(prefix)
        else:
            self._put(prefix, after)

    def _frame(self, element: T) -> bytes:
        if element is None:
            raise StateAccessError(
                f"{self._binding.label}: a list element cannot be None; leave it out, or declare a struct "
                "with a nullable field"
            )
        return framed(self._encode(element))


class _Waiting:
    """Operations on one list whose head is being read, and the futures of those who asked for them."""

    __slots__ = ("_futures", "operations", "results")

    def __init__(self) -> None:
        self.operations: list[tuple[Operation, Any]] = []
        self.results: list[Any] = []
        self._futures: list[StateFuture[Any]] = []

    def add(self, operation: Operation, argument: Any) -> StateFuture[Any]:
        future: StateFuture[Any] = StateFuture()
        self.operations.append((operation, argument))
        self._futures.append(future)
        return future

    def settle(self) -> None:
        """Give each future its result, in the order of the operations."""
        for future, result in zip(self._futures, self.results, strict=True):
            if isinstance(result, StateFuture):
                result.then_accept(future.complete).recover(future.fail)
            else:
                future.complete(result)

    def fail(self, error: Exception) -> None:
        """The head could not be read."""
        for future in self._futures:
            if not future.done:
                future.fail(error)


class _ListCursor(PageCursor[list[Any], Any]):
    """The chunks from ``_asked`` and then the tail of one list, as they were when it was asked for."""

    __slots__ = ("_asked", "_binding", "_kept", "_prefix", "_sealed", "_step", "_tail")

    def __init__(self, binding: Binding, prefix: bytes, head: bytes | None, blocking: bool) -> None:
        super().__init__(binding.cursors, blocking)
        self._binding = binding
        self._prefix = prefix
        self._sealed = sealed_chunks(head)
        self._tail = head
        self._asked = 0
        self._step = 1
        self._kept: dict[int, Any] = {}

    def preserve(self, prefix: bytes) -> None:
        """The list under ``prefix`` is about to lose its chunks: read those that have not been asked for."""
        if prefix == self._prefix:
            for index in range(self._asked, self._sealed):
                if index not in self._kept:
                    self._kept[index] = self._decoded(self._binding.sink.get(_chunk_key(prefix, index)))

    def _ask(self) -> StateFuture[list[Any]]:
        first = self._asked
        self._asked = min(first + self._step, self._sealed)
        chunks = range(first, self._asked)
        if self._kept:
            return completed_future([self._kept.pop(index) for index in chunks])
        if self._blocking:
            get = self._binding.sink.get
            return completed_future([self._decoded(get(_chunk_key(self._prefix, index))) for index in chunks])
        async_get = self._binding.sink.async_get
        return combine_all([async_get(_chunk_key(self._prefix, index), self._decoded) for index in chunks])

    def _entries(self, page: list[Any]) -> list[Any]:
        items = [element for chunk in page for element in chunk]
        if items:
            self._step = max(1, self._binding.page_size * len(page) // len(items))
        if self._asked == self._sealed and self._tail is not None:
            items += elements(self._tail, COUNT_BYTES, self._binding.decode_value, self._binding.label)
        return items

    def _decoded(self, chunk: bytes | None) -> list[Any]:
        label = self._binding.label
        if chunk is None:
            raise CodecError(
                f"{label}: a part of a stored list is missing; restore an older checkpoint version"
            )
        return elements(chunk, 0, self._binding.decode_value, label)

    @property
    def _exhausted(self) -> bool:
        return self._asked == self._sealed


def _chunk_key(prefix: bytes, index: int) -> bytes:
    return prefix + index.to_bytes(INDEX_BYTES, "big")


def _as_it_is(raw: bytes | None) -> bytes | None:
    return raw
