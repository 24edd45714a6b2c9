"""Operations on stored values, in the order in which they were requested.

Owns: ``MergingState``, the base of the states whose writes depend on the stored value (lists, reductions), the
operations that wait for stored values, and merges, which are operations on several values: the contents of several
namespaces become the content of one, as when session windows merge.
Invariant: operations on one stored value take effect in the order in which they were requested, whether or not they had
to wait for the value; one that fails changes nothing and does not affect the others.
Must not import storage, execution or operators.

Only lists and reductions merge. Only the operator knows which of two values, or of two values under one user key of a
map, is to stay, so ``ValueState`` and ``MapState`` do not have the methods.

Source: Flink's ``InternalMergingState``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final, NamedTuple

from asyncstate.codec import encode_namespace
from asyncstate.errors import StateAccessError
from asyncstate.futures import (
    DONE,
    FAILED,
    StateFuture,
    combine_all,
    completed_future,
    current_owner,
    failed_future,
    pending_future,
    settle,
)
from asyncstate.futures.future import VOID
from asyncstate.state.keyed.state_context import KeyedState, StateContext

_MERGE: Final = b""  # replaces the store key of an operation that has several

# (store key, the bytes under it, argument) -> (the bytes afterwards: None removes them, result). A result may be
# a StateFuture. If "the bytes afterwards" are the same object, nothing is written.
Operation = Callable[[bytes, bytes | None, Any], tuple[bytes | None, Any]]


class PendingSource(NamedTuple):
    """A namespace that is merged into another: its store key, the stored value, and its ``_contents``."""

    prefix: bytes
    stored: bytes | None
    contents: Any


class MergingState(KeyedState):
    """A state with one entry under its store key that operations read, change and write back. Its namespaces can be
    merged."""

    __slots__ = ("_waiting",)

    def __init__(self, binding: StateContext, suffix: bytes | None) -> None:
        super().__init__(binding, suffix)
        # With their stamps, if they have any: operations write them back.
        self._get = binding.sink.get
        self._async_get = binding.sink.async_get
        self._waiting: dict[bytes, _Waiting] = binding.waiting

    # -- merging --------------------------------------------------------------------------------------

    def merge_namespaces(self, target: int, sources: Iterable[int]) -> None:
        """Combine the contents of ``sources``, in the given order and after those of ``target``, into ``target``.

        The sources are empty afterwards. Without sources, or if they hold nothing, nothing happens. It does not
        matter which namespace this object is ``at``. Raises StateAccessError if a namespace is given twice, or if the
        state is not declared with ``namespaced=True``; OperatorError if the operator's function fails.
        """
        prefixes = self._namespace_prefixes(target, list(sources))
        if len(prefixes) > 1:
            before = [self._stored(prefix) for prefix in prefixes]
            merge = _Merge(self, prefixes)
            after = merge.apply(before, merge.ask(before, blocking=True).get())
            for prefix, old, new in zip(prefixes, before, after, strict=True):
                self._write(prefix, old, new)

    def async_merge_namespaces(self, target: int, sources: Iterable[int]) -> StateFuture[None]:
        """``merge_namespaces``; every later operation on any of the namespaces sees it."""
        prefixes = self._namespace_prefixes(target, list(sources))
        return self._when_all_read(_Merge(self, prefixes)) if len(prefixes) > 1 else VOID

    def _contents(self, prefix: bytes, stored: bytes | None, blocking: bool) -> StateFuture[Any]:
        """Read, without writing, what ``_merged`` needs of a source in addition to the stored value; answered at once
        if ``blocking``."""
        return VOID

    @abstractmethod
    def _merged(self, prefix: bytes, stored: bytes | None, sources: list[PendingSource]) -> bytes | None:
        """The merged value for the target's ``prefix``; removes what sources have under other store keys."""

    def _namespace_prefixes(self, target: int, sources: list[int]) -> list[bytes]:
        label = self._binding.label
        if not self._binding.namespaced:
            raise StateAccessError(f"{label} has no namespaces to merge; declare it with namespaced=True")
        if target in sources or len(set(sources)) != len(sources):
            raise StateAccessError(
                f"{label}: namespaces {sources!r} cannot be merged into {target!r}; give each namespace once, and do "
                "not list the target among the sources"
            )
        context: Any = self._sink.current
        try:
            prefix = context.group + self._id + context.encoded_key
        except (AttributeError, TypeError):
            raise self.at(target)._misuse() from None
        return [prefix + encode_namespace(namespace) for namespace in (target, *sources)]

    # -- one value ------------------------------------------------------------------------------------

    def _when_read(
        self, operation: Operation, argument: Any, loaded: StateFuture[Any] | None = None
    ) -> StateFuture[Any]:
        """Run ``operation`` when the value is known, after those requested before; a future of its result. ``loaded``:
        the value, if it has been requested."""
        prefix = self._prefix()
        waiting = self._waiting.get(prefix)
        if waiting is None:
            if loaded is None:
                loaded = self._async_get(prefix, as_it_is)
            if loaded.done:
                return self._run(prefix, loaded.get(), operation, argument)
            waiting = _Waiting()
            self._await(waiting, prefix, loaded)
        return waiting.add(prefix, operation, argument)

    def _do(self, prefix: bytes, operation: Operation, argument: Any) -> Any:
        """Run ``operation`` at once, after those requested before; its result."""
        before = self._stored(prefix)
        after, result = operation(prefix, before, argument)
        self._write(prefix, before, after)
        return result

    def _stored(self, prefix: bytes) -> bytes | None:
        """The stored value at once; operations that wait for it take effect first."""
        if self._waiting:
            waiting = self._waiting.get(prefix)
            if waiting is not None:
                return self._overtake(prefix, waiting)
        return self._get(prefix)

    def _run(
        self, prefix: bytes, before: bytes | None, operation: Operation, argument: Any
    ) -> StateFuture[Any]:
        try:
            after, result = operation(prefix, before, argument)
        except Exception as error:
            return failed_future(error)
        self._write(prefix, before, after)
        if result is None:
            return VOID
        return result if type(result) is StateFuture else completed_future(result)

    def _write(self, prefix: bytes, before: bytes | None, after: bytes | None) -> None:
        if after is before:
            return
        if after is None:
            self._delete(prefix)
        else:
            self._put(prefix, after)

    # -- waiting --------------------------------------------------------------------------------------

    def _when_all_read(self, merge: _Merge) -> StateFuture[None]:
        """Run ``merge`` when its values are known, after operations requested before on any of them."""
        waiting = _Waiting()
        for prefix in merge.prefixes:
            other = self._waiting.get(prefix)
            if other is None:
                self._await(waiting, prefix, self._async_get(prefix, as_it_is))
            elif other is not waiting:
                waiting.absorb(other)
                for absorbed in other.prefixes:
                    self._waiting[absorbed] = waiting
        future = waiting.add(_MERGE, merge, None)
        self._go_on(waiting)
        return future

    def _await(self, waiting: _Waiting, prefix: bytes, loaded: StateFuture[bytes | None]) -> None:
        self._waiting[prefix] = waiting
        waiting.prefixes.append(prefix)
        if loaded.done:
            waiting.know(prefix, loaded.get())
            return
        waiting.outstanding += 1

        def answered(loaded: StateFuture[bytes | None]) -> None:
            latest = waiting.latest()
            latest.outstanding -= 1
            error = loaded.exception()
            if error is not None:
                self._fail(latest, error)
            else:
                latest.know(prefix, loaded.get())
            self._go_on(latest)

        loaded.on_settled(answered)

    def _go_on(self, waiting: _Waiting) -> None:
        """When no read is outstanding, apply the waiting operations, and settle their futures if all are done."""
        if not waiting.outstanding and (waiting.applied or self._apply(waiting, blocking=False)):
            waiting.settle()

    def _overtake(self, prefix: bytes, waiting: _Waiting) -> bytes | None:
        """Apply waiting operations at once; their futures are settled when the values they wait for arrive."""
        for each in waiting.prefixes:
            if each not in waiting.stored:
                waiting.know(each, self._get(each))
        self._apply(waiting, blocking=True)
        return waiting.stored[prefix]

    def _apply(self, waiting: _Waiting, blocking: bool) -> bool:
        """Apply operations in order, up to a merge that has to read more first; False if there is one."""
        stored = waiting.stored
        operations = waiting.operations
        while waiting.position < len(operations):
            prefix, operation, argument, future = operations[waiting.position]
            state = DONE
            result: Any = None
            try:
                if prefix:
                    stored[prefix], result = operation(prefix, stored[prefix], argument)
                elif not self._apply_merge(waiting, operation, blocking):
                    return False
            except Exception as error:
                state, result = FAILED, error
            waiting.position += 1
            waiting.results.append((future, state, result))
        for prefix in waiting.prefixes:
            del self._waiting[prefix]
            self._write(prefix, waiting.before[prefix], stored[prefix])
        waiting.applied = True
        return True

    def _apply_merge(self, waiting: _Waiting, merge: _Merge, blocking: bool) -> bool:
        stored = [waiting.stored[prefix] for prefix in merge.prefixes]
        contents = merge.contents
        if contents is None or (blocking and not contents.done):
            contents = merge.contents = merge.ask(stored, blocking)
            if not contents.done:
                waiting.outstanding += 1
                contents.on_settled(lambda _: self._contents_arrived(waiting.latest()))
        if not contents.done:
            return False
        waiting.stored.update(zip(merge.prefixes, merge.apply(stored, contents.get()), strict=True))
        return True

    def _contents_arrived(self, waiting: _Waiting) -> None:
        waiting.outstanding -= 1
        self._go_on(waiting)

    def _fail(self, waiting: _Waiting, error: BaseException) -> None:
        """Fail all operations that wait with a value that could not be read."""
        for prefix in waiting.prefixes:
            if self._waiting.get(prefix) is waiting:
                del self._waiting[prefix]
        waiting.fail(error)


class _Merge:
    """Merges the values under ``prefixes``, the first of which is the target; ``contents`` of the others is requested
    once their stored values are known."""

    __slots__ = ("_state", "contents", "prefixes")

    def __init__(self, state: MergingState, prefixes: list[bytes]) -> None:
        self._state = state
        self.prefixes = prefixes
        self.contents: StateFuture[list[Any]] | None = None

    def ask(self, stored: list[bytes | None], blocking: bool) -> StateFuture[list[Any]]:
        """The contents of all sources."""
        contents = self._state._contents
        sources = zip(self.prefixes[1:], stored[1:], strict=True)
        return combine_all([contents(prefix, value, blocking) for prefix, value in sources])

    def apply(self, stored: list[bytes | None], contents: list[Any]) -> list[bytes | None]:
        """The values afterwards."""
        sources = list(map(PendingSource, self.prefixes[1:], stored[1:], contents))
        target = self._state._merged(self.prefixes[0], stored[0], sources)
        return [target, *(None for _ in sources)]


class _Waiting:
    """Operations on values that are being read, and the futures of their callers.

    Mostly on one value. A merge unites the operations that wait for any of its values, so that later operations on them
    wait for the merge.
    """

    __slots__ = (
        "_successor",
        "applied",
        "before",
        "operations",
        "outstanding",
        "position",
        "prefixes",
        "results",
        "stored",
    )

    def __init__(self) -> None:
        self.prefixes: list[bytes] = []
        self.outstanding = 0  # reads that have not been answered
        self.before: dict[bytes, bytes | None] = {}
        self.stored: dict[bytes, bytes | None] = {}  # after the operations up to ``position``
        self.operations: list[tuple[bytes, Any, Any, StateFuture[Any]]] = []
        self.position = 0
        self.results: list[tuple[StateFuture[Any], int, Any]] = []  # futures, their states and values
        self.applied = False
        self._successor: _Waiting | None = None

    def latest(self) -> _Waiting:
        """This object, or the one that has absorbed it."""
        waiting = self
        while waiting._successor is not None:
            waiting = waiting._successor
        return waiting

    def know(self, prefix: bytes, stored: bytes | None) -> None:
        """Record the value that was read under ``prefix``; nothing happens if a synchronous call was faster."""
        if prefix not in self.stored:
            self.stored[prefix] = self.before[prefix] = stored

    def add(self, prefix: bytes, operation: Operation | _Merge, argument: Any) -> StateFuture[Any]:
        future: StateFuture[Any] = pending_future(current_owner())
        self.operations.append((prefix, operation, argument, future))
        return future

    def absorb(self, other: _Waiting) -> None:
        """Take over the operations that wait for other values; so far the two do not depend on each other."""
        other._successor = self
        self.prefixes += other.prefixes
        self.outstanding += other.outstanding
        self.before.update(other.before)
        self.stored.update(other.stored)
        self.operations += other.operations[other.position :]
        self.results += other.results

    def settle(self) -> None:
        """Give each future its result, in the order of the operations."""
        results, self.results = self.results, []
        for future, state, result in results:
            if isinstance(result, StateFuture):
                result.on_settled(partial(_pass_on, future))
            else:
                settle(future, state, result)

    def fail(self, error: BaseException) -> None:
        """Fail all futures, since a value could not be read."""
        asked = [
            *(future for future, _, _ in self.results),
            *(entry[3] for entry in self.operations[self.position :]),
        ]
        self.position, self.results, self.applied = len(self.operations), [], True
        for future in asked:
            if not future.done:
                settle(future, FAILED, error)


def _pass_on(future: StateFuture[Any], source: StateFuture[Any]) -> None:
    """Settle ``future`` with the result or error of ``source``."""
    error = source.exception()
    if error is not None:
        settle(future, FAILED, error)
    else:
        settle(future, DONE, source.get())


def as_it_is(raw: bytes | None) -> bytes | None:
    """The raw bytes of a read, not decoded."""
    return raw
