"""Operations on one stored value, in the order in which they were asked for.

Owns: ``OrderedState``, the base of the states whose writes depend on what is stored (lists, reductions), and
the operations that wait for the stored value.
Invariant: operations on one stored value take effect in the order in which they were asked for, whether or
not the value had to be waited for; one that fails changes nothing and lets the others be.
Must not import storage, execution or operators.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from asyncstate.futures import StateFuture, completed_void_future, failed_future
from asyncstate.state.binding import Binding, KeyedState

_VOID: Final = completed_void_future()

# (store key, the bytes under it, argument) -> (the bytes afterwards: None removes them, result). A result may be
# a StateFuture. "The bytes afterwards" being the same object means that nothing is to be written.
Operation = Callable[[bytes, bytes | None, Any], tuple[bytes | None, Any]]


class OrderedState(KeyedState):
    """A state with one entry under its store key that operations read, change and write back."""

    __slots__ = ("_async_get", "_delete", "_get", "_put", "_waiting")

    def __init__(self, binding: Binding, suffix: bytes | None) -> None:
        super().__init__(binding, suffix)
        sink = binding.sink
        self._get = sink.get
        self._async_get = sink.async_get
        self._put = sink.put
        self._delete = sink.delete
        self._waiting: dict[bytes, _Waiting] = binding.waiting

    def _when_read(self, operation: Operation, argument: Any) -> StateFuture[Any]:
        """Run ``operation`` when the value is known, behind those asked for before; a future of its result."""
        prefix = self._prefix()
        waiting = self._waiting.get(prefix)
        if waiting is None:
            loaded = self._async_get(prefix, _as_it_is)
            if loaded.done:
                return self._run(prefix, loaded.get(), operation, argument)
            waiting = self._await_value(prefix, loaded)
        return waiting.add(operation, argument)

    def _do(self, prefix: bytes, operation: Operation, argument: Any) -> None:
        """Run ``operation`` at once, behind those asked for before."""
        before = self._stored(prefix)
        after, _ = operation(prefix, before, argument)
        self._write(prefix, before, after)

    def _stored(self, prefix: bytes) -> bytes | None:
        """The stored value at once; what waits for it takes effect first."""
        stored = self._get(prefix)
        if self._waiting:
            waiting = self._waiting.get(prefix)
            if waiting is not None:
                return self._apply(prefix, stored, waiting)
        return stored

    def _run(
        self, prefix: bytes, before: bytes | None, operation: Operation, argument: Any
    ) -> StateFuture[Any]:
        try:
            after, result = operation(prefix, before, argument)
        except Exception as error:
            return failed_future(error)
        self._write(prefix, before, after)
        return _VOID if result is None else result

    def _await_value(self, prefix: bytes, loaded: StateFuture[bytes | None]) -> _Waiting:
        waiting = self._waiting[prefix] = _Waiting()

        def arrived(stored: bytes | None) -> None:
            if self._waiting.get(prefix) is waiting:  # else a synchronous call was faster
                self._apply(prefix, stored, waiting)
            waiting.settle()

        def failed(error: Exception) -> None:
            if self._waiting.get(prefix) is waiting:
                del self._waiting[prefix]
            waiting.fail(error)

        loaded.then_accept(arrived).recover(failed)
        return waiting

    def _apply(self, prefix: bytes, before: bytes | None, waiting: _Waiting) -> bytes | None:
        del self._waiting[prefix]
        after = before
        for operation, argument in waiting.operations:
            try:
                after, result = operation(prefix, after, argument)
            except Exception as error:
                result = _Failure(error)
            waiting.results.append(result)
        self._write(prefix, before, after)
        return after

    def _write(self, prefix: bytes, before: bytes | None, after: bytes | None) -> None:
        if after is before:
            return
        if after is None:
            self._delete(prefix)
        else:
            self._put(prefix, after)


class _Failure:
    """What an operation that failed leaves for the future of whoever asked for it."""

    __slots__ = ("error",)

    def __init__(self, error: Exception) -> None:
        self.error = error


class _Waiting:
    """Operations on one value that is being read, and the futures of those who asked for them."""

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
            elif isinstance(result, _Failure):
                future.fail(result.error)
            else:
                future.complete(result)

    def fail(self, error: Exception) -> None:
        """The value could not be read."""
        for future in self._futures:
            if not future.done:
                future.fail(error)


def _as_it_is(raw: bytes | None) -> bytes | None:
    return raw
