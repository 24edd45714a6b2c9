"""Runs the code of an operator for one micro-batch: records, bundles, coroutines; its failures and its statistics.

Owns: ``OperatorCode``, the base of ``ExecutionController``, and the state accesses that never wait.
Invariant: an exception of the operator's code, and a failed future that nobody has handled, ends the micro-batch.
Must not import runtime or operators.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import CoroutineType, TracebackType
from typing import Any, Self

from asyncstate.durations import Seconds
from asyncstate.errors import FutureStateError, StateAccessError
from asyncstate.execution.outside_calls import CallStatistics, OutsideCall, OutsideCalls
from asyncstate.execution.record import AnyRow, Record
from asyncstate.execution.record_failures import AWAIT_HINT, Failures, throw_into
from asyncstate.execution.thread_affinity import ThreadBound, guarded, unwatch, watch
from asyncstate.futures import (
    PENDING,
    FailureScope,
    StateFuture,
    current_scope,
    set_failure_scope,
)
from asyncstate.futures.settling import GENERATORS
from asyncstate.metrics import Count, Elapsed, MaxGauge
from asyncstate.state_backend import Page, StateBackend, WriteBackCache
from asyncstate.storage import MemTable, MemTableStatistics


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncStatistics:
    """Statistics of async mode only.

    ``read_ahead_keys``: keys that were prefetched; ``read_ahead_unused``: those of them that no record read.
    ``warmed_positions``: positions in ranges whose blocks were loaded before a scan reached them.
    ``io_wait_seconds``: time in which the task could only wait for reads. ``in_flight_peak``: records in flight at
    once. ``io_threads_peak``: threads that read at once. ``blocked_keys_peak``: records that waited for an earlier one
    of their key.
    """

    read_ahead_keys: Count
    read_ahead_unused: Count
    warmed_positions: Count
    io_wait_seconds: Elapsed
    in_flight_peak: MaxGauge
    io_threads_peak: MaxGauge
    blocked_keys_peak: MaxGauge


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerStatistics:
    """One micro-batch of a partition.

    ``reads`` and ``cache_hits`` of ``state`` include those that state objects answered. ``overlapped`` is None in sync
    mode.
    """

    state: MemTableStatistics
    calls: CallStatistics
    overlapped: AsyncStatistics | None


class OperatorCode(StateBackend):
    """The code of one operator on one partition in one micro-batch, and what it may use: state and outside calls.

    How a record or a bundle waits is left to ``ExecutionController``.
    """

    # CPython 3.11 looks up attributes more slowly from the thirtieth of an object on: 60 ns per record. Slots have no
    # such limit.
    __slots__ = (
        "_bundle_at_work",
        "_caches",
        "_outer_scope",
        "_unhandled",
        "calls",
        "changed",
        "current",
        "delete",
        "failures",
        "get",
        "outputs",
        "overlay",
        "put",
        "uid",
    )

    current: Record | None
    get: Callable[[bytes], bytes | None]  # type: ignore[assignment]  # the overlay's own, without a frame in between
    put: Callable[[bytes, bytes], None]  # type: ignore[assignment]
    delete: Callable[[bytes], None]  # type: ignore[assignment]

    def __init__(
        self,
        overlay: MemTable,
        uid: str,
        state_names: Mapping[int, str],
        calls: OutsideCalls | None = None,
    ) -> None:
        self.overlay = overlay
        self.uid = uid
        self.calls = calls if calls is not None else OutsideCalls(uid)
        self.outputs: list[AnyRow] = []
        self.failures = Failures(uid, state_names)
        self._unhandled = self.failures.unhandled
        self._outer_scope: FailureScope | None = None
        self._caches: list[WriteBackCache] = []
        self._bundle_at_work = False
        self.current = None
        self.changed = False
        """Whether the bundle has changed state, where ``note_changes`` lets its states say so."""
        self.get = overlay.get
        self.put = overlay.put
        self.delete = overlay.delete

    def __enter__(self) -> Self:
        self._outer_scope = set_failure_scope(self)
        watch(self.guard)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.current = None
        try:
            self.close()
        except Exception as closing:
            if error is None:
                raise
            error.add_note(f"ending the micro-batch failed as well: {closing}")
        finally:
            unwatch(self.guard)
            set_failure_scope(self._outer_scope)
            self.put = self.overlay.put  # the old method refers to the micro-batch's writes
        self.failures.raise_if_of_store(error)

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Active while foreign code runs on this thread, whose failures are not of this micro-batch."""
        set_failure_scope(self._outer_scope)
        try:
            yield
        finally:
            self._outer_scope = set_failure_scope(self)

    # -- bundles ----------------------------------------------------------------------------------

    @abstractmethod
    def _await_settled(self, future: StateFuture[Any]) -> None:
        """Return when ``future``, made by a bundle operator, is settled."""

    def run_bundle(self, work: Callable[[], Any]) -> None:
        """Run bundle-grain code to its end: ``run_step`` and ``end_bundle``."""
        self.run_step(work)
        self.end_bundle()

    def run_step(self, work: Callable[[], Any]) -> None:
        """Run bundle-grain code, with the future it returns; its exceptions become OperatorErrors. Failures of other
        futures are not judged before ``end_bundle``: a later step may handle them."""
        with self._at_work():
            self.current = None
            try:
                result = work()
            except Exception as error:
                self.failures.raise_named(error, None)
            if type(result) is CoroutineType:
                result.close()
                raise FutureStateError(
                    f"operator '{self.uid}': bundle-grain methods cannot be coroutines; return a StateFuture instead"
                )
            if isinstance(result, StateFuture):
                self._await_settled(result)
                failure = result.exception()
                if failure is not None:
                    self.failures.raise_all()
                    self.failures.raise_named(failure, None)

    def end_bundle(self) -> None:
        """Return when all calls of the bundle have ended, returned or not; raise the first unhandled failure."""
        with self._at_work():
            self._await_calls()
        if self._unhandled:
            self.failures.raise_all()

    def abandon_bundle(self) -> None:
        """Return when nothing of a bundle that has failed is in flight; its other failures are dropped."""
        with self._at_work():
            self._await_calls()
            self._await_reads()
        self._unhandled.clear()

    @abstractmethod
    def _await_reads(self) -> None:
        """Wait for the reads of the current bundle."""

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """Active while the code of a bundle may run, which may make outside calls."""
        self._bundle_at_work = True
        try:
            yield
        finally:
            self._bundle_at_work = False

    @abstractmethod
    def _await_calls(self) -> None:
        """Wait for the outside calls of the current bundle."""

    def run_without_key(self, record: Record) -> None:
        """Run a record that belongs to no key, such as a watermark: state access in it is an error."""
        self.current = None
        try:
            result = record.work(record.item, record)
        except Exception as error:
            self.failures.raise_named(error, None)
        if type(result) is CoroutineType:
            result.close()
            raise FutureStateError(
                f"operator '{self.uid}': on_watermark has no key and cannot be a coroutine"
            )
        if type(result) in GENERATORS:
            raise self._is_generator(None, result)
        if self._unhandled:
            self.failures.raise_all()
        if isinstance(result, StateFuture) and not result.done:
            raise self.failures.never(None, "returned")

    def bound_writes(self, rows: int) -> None:
        """To be called after ``rows`` rows have been passed on: spills the writes if they exceed their bound.

        Waits for records in flight: a running read has to be answered as of when it was made.
        """
        if self.overlay.exceeds(rows):
            self.drain()
            if self.may_spill:
                self.overlay.spill()

    def bound_writes_of_step(self) -> None:
        """Like ``bound_writes``, between the steps of a bundle: its failures are judged at its end."""
        if self.overlay.exceeds(0) and self.may_spill:
            self.overlay.spill()

    @abstractmethod
    def drain(self) -> None:
        """Return when every record accepted so far has ended and its output is in ``outputs``."""

    @property
    @abstractmethod
    def may_spill(self) -> bool:
        """True while no record waits for an answer, so that writes may be spilled in the middle of one."""

    @abstractmethod
    def close(self) -> None:
        """End outside calls and release threads; records in flight are dropped."""

    def take_outputs(self) -> list[AnyRow]:
        """The rows emitted since the last call, in arrival order of their records."""
        outputs = self.outputs.copy()
        self.outputs.clear()  # in place: a record at the head of the queue writes into this very list
        return outputs

    def statistics(self) -> ControllerStatistics:
        """The statistics of this micro-batch."""
        state = self.overlay.statistics()
        answered = sum(cache.hits for cache in self._caches)
        return ControllerStatistics(
            state=replace(state, reads=state.reads + answered, cache_hits=state.cache_hits + answered),
            calls=self.calls.statistics(),
            overlapped=self._overlapped(),
        )

    @abstractmethod
    def _overlapped(self) -> AsyncStatistics | None:
        """Statistics of async mode only."""

    # -- the caches of the states ---------------------------------------------------------------------

    def attach(self, cache: WriteBackCache) -> None:
        """Collect the buffered writes of ``cache`` before every scan, and at the end of the micro-batch."""
        self._caches.append(cache)

    def write_back(self) -> None:
        """Write what state objects have buffered, for others to read."""
        for cache in self._caches:
            cache.write_back()

    def finish_states(self) -> None:
        """Called when all operator code has run: writes what state objects have buffered. It is not read any more."""
        for cache in self._caches:
            cache.finish()

    # -- the sink's calls that never wait ------------------------------------------------------------

    def scan(self, start: bytes, end: bytes, limit: int) -> Page:
        """At most ``limit`` entries with start <= key < end, ascending."""
        self.write_back()
        try:
            return self.overlay.scan(start, end, limit)
        except Exception as error:
            self.failures.read_failed(error, start)
            raise

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """Values for ``keys`` (sorted, unique), None where there is none."""
        try:
            return self.overlay.get_many(keys)
        except Exception as error:
            self.failures.read_failed(error, keys[0])
            raise

    def put_many(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Write one value per key."""
        self.overlay.put_many(keys, values)
        if self.overlay.exceeds(len(keys), keys, values) and self.may_spill:
            self.overlay.spill()

    def delete_many(self, keys: Sequence[bytes]) -> None:
        """Remove many keys."""
        self.overlay.delete_many(keys)
        if self.overlay.exceeds(len(keys), keys) and self.may_spill:
            self.overlay.spill()

    def append_final(self, keys: Sequence[bytes], values: Sequence[bytes | None], size_bytes: int) -> None:
        """Write or remove (None) many keys (sorted, unique), in ``WriteBackCache.finish``: they are not read any more
        in this micro-batch."""
        if not self.overlay.append_final(keys, values, size_bytes):
            self.overlay.put_many(keys, values)
            if self.overlay.exceeds(len(keys), keys, values):
                self.overlay.spill()

    # -- outside calls ------------------------------------------------------------------------------

    def call(
        self,
        record: Record | None,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        timeout_seconds: Seconds | None = None,
        keywords: Mapping[str, Any] = {},
    ) -> StateFuture[Any]:
        """See ``RecordContext.call`` and, where there is no ``record``, ``BundleContext.call``."""
        call = self.calls.prepared(record, function, arguments, timeout_seconds, keywords)
        if current_scope() is not self or not (
            self._bundle_at_work if record is None else self.current is record
        ):
            raise StateAccessError(self._not_at_work(call))
        self.guard()
        return self._call(call)

    def _not_at_work(self, call: OutsideCall) -> str:
        if call.record is None:
            return (
                f"operator '{self.uid}': ctx.call({call.name}) was used while no bundle is being processed; use it in "
                "process_bundle(), process_due() or on_watermark(), or in a callback chained to a future of the "
                "bundle"
            )
        return (
            f"ctx.call({call.name}) of the record with key {call.record.key!r} was used while that record is not "
            "being processed; use it in process(), in on_timer(), or in a callback chained to a future of the record "
            "(on_watermark() has no key)"
        )

    def guard(self) -> None:
        """From now on refuse state access on other threads: some of them run code of the operator."""
        if not isinstance(self, ThreadBound):
            self.__class__ = guarded(type(self), OperatorCode.__dict__["current"])

    @abstractmethod
    def _call(self, call: OutsideCall) -> StateFuture[Any]:
        """Start ``call`` for the current record or bundle; return its future."""

    # -- failures -----------------------------------------------------------------------------------

    def future_failed(self, future: StateFuture[Any]) -> None:
        """See ``FailureScope``: remembered until the record ends, by then somebody may have handled it."""
        self.failures.failed(future, self.current)

    # -- the operator's code --------------------------------------------------------------------------

    def _run(self, record: Record) -> None:
        """Run the record's own code up to its first wait; exceptions of the user become OperatorErrors."""
        self.current = record
        try:
            result = record.work(record.item, record)
            # by type and slot: isinstance and a property would cost every hot record
            if result is not None and not (type(result) is StateFuture and result._state != PENDING):
                self._go_on(record, result)
        except Exception as error:
            self.failures.raise_named(error, record)

    def _go_on(self, record: Record, result: Any) -> None:
        """Continue with what the record's own code has returned: not None, nor a settled future."""
        if type(result) is StateFuture:
            self._await_returned(record, result)
        elif type(result) is CoroutineType:
            self._step(record, result)
        else:
            raise self._is_no_answer(record, result)

    def _step(self, record: Record, coroutine: CoroutineType[Any, Any, Any]) -> None:
        """Run a coroutine operator until it awaits a pending future or ends."""
        self.current = record
        try:
            awaited = coroutine.send(None)
        except StopIteration as end:
            result = end.value
            if type(result) is StateFuture:
                if not result.done:
                    self._await_returned(record, result)
            elif result is not None:
                raise self._is_no_answer(record, result) from None
            return
        if type(awaited) is not StateFuture:
            throw_into(coroutine, self.failures.misused(record, f"{AWAIT_HINT}. It awaits {awaited!r}"))
        self._suspend(record, coroutine, awaited)

    def _is_no_answer(self, record: Record, result: Any) -> FutureStateError:
        if type(result) in GENERATORS:
            return self._is_generator(record, result)
        return self.failures.misused(
            record,
            f"the operator returned {result!r}, which is ignored; emit rows with ctx.emit(...), and return None or a "
            "StateFuture (combine_all combines several)",
        )

    def _is_generator(self, record: Record | None, result: Any) -> FutureStateError:
        return self.failures.misused(record, f"{result!r} is a generator; use await instead of yield")

    @abstractmethod
    def _suspend(
        self, record: Record, coroutine: CoroutineType[Any, Any, Any], awaited: StateFuture[Any]
    ) -> None:
        """Continue ``coroutine`` when ``awaited``, which is pending, is settled."""

    @abstractmethod
    def _await_returned(self, record: Record, returned: StateFuture[Any]) -> None:
        """Keep ``record`` from ending before ``returned``, which is pending, is settled."""
