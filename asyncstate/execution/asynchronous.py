"""Asynchronous execution: reads of many keys wait at the same time, records of different keys overtake each other.

Owns: ``AsyncExecutionController``: when to wait for records in flight, and how their requests and outside calls are
answered.
Invariants: all code of the operator runs on the thread that calls ``submit`` and ``drain``; work handed to another
thread returns as a Completion, which the calling thread processes.
No deadlock: requests of a running chain are accepted even when the in-flight limit is reached.

Source: FLIP-425 and Flink's ``AsyncExecutionController``.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import CoroutineType
from typing import Any, Final, NoReturn, TypeVar

from asyncstate.errors import OperatorError, StoreError
from asyncstate.execution.bundle_reads import BundleReads
from asyncstate.execution.completions import Completion
from asyncstate.execution.controller import AsyncStatistics, ExecutionController
from asyncstate.execution.failed_rows import GuardedRecord
from asyncstate.execution.in_flight import InFlightRecords
from asyncstate.execution.io_policy import AdaptiveReads
from asyncstate.execution.outside_calls import OutsideCall, OutsideCalls
from asyncstate.execution.prefetch import AheadBlock, ComingRecords, ComingRows, Interests, ReadAhead
from asyncstate.execution.range_prefetch import RangeReads, RangeRequest, reads_in
from asyncstate.execution.read_threads import ReadThreads
from asyncstate.execution.reads import ListGet, Reads
from asyncstate.execution.record import Record
from asyncstate.execution.record_failures import throw_into
from asyncstate.execution.request_buffer import RecordReads
from asyncstate.futures import (
    DONE,
    FAILED,
    StateFuture,
    completed_future,
    failed_future,
    pending_future,
    require_own,
    settle,
)
from asyncstate.futures.settling import settled
from asyncstate.state_backend import Decoder, Page, StateRequest
from asyncstate.storage import MISSING, MemTable
from asyncstate.storage.memtable import TIMED_EVERY
from asyncstate.storage.value_cache import Peeked

_AGE_CHECK_RECORDS: Final = 64

T = TypeVar("T")


@dataclass(frozen=True)
class AsyncLimits:
    """The bounds of an AsyncExecutionController; see the configuration keys of the same names."""

    in_flight: int = 6000
    buffer_size: int = 1000
    buffer_timeout_ms: int = 1000
    io_parallelism: int = 32
    watchdog_timeout_ms: int = 60_000
    batch_hot_reads: bool = False


class AsyncExecutionController(ExecutionController):
    """Buffers reads, sends them as sorted list gets, and completes futures as the answers arrive."""

    __slots__ = (
        "_ahead",
        "_bundle_calls",
        "_bundles",
        "_completions",
        "_limits",
        "_mailbox",
        "_peek",
        "_ranges",
        "_reads",
        "_reads_hang",
        "_records",
        "_scans_at_once",
        "_submitted",
        "_threads",
        "_wait_seconds",
    )

    def __init__(
        self,
        overlay: MemTable,
        uid: str,
        state_names: Mapping[int, str],
        limits: AsyncLimits,
        pacer: AdaptiveReads | None = None,
        calls: OutsideCalls | None = None,
        interests: Interests | None = None,
    ) -> None:
        super().__init__(overlay, uid, state_names, calls)
        self._limits = limits
        self._mailbox = InFlightRecords(self._run, self.outputs, self.failures, limits.in_flight)
        self._completions = self.calls.completions
        self._threads = ReadThreads(overlay.read_store, limits.io_parallelism, self._completions)
        self._reads = reads = Reads(
            overlay,
            pacer if pacer is not None else AdaptiveReads(),
            self._threads.submit,
            limits.io_parallelism,
            self._read_failed,
            gather=limits.batch_hot_reads,
        )
        self._records = RecordReads(reads, self._answer, limits.buffer_size, limits.buffer_timeout_ms)
        self._bundles = BundleReads(overlay, reads)
        self._ahead = ReadAhead(overlay, reads, limits.in_flight, interests, self._caches)
        self._ranges = RangeReads(overlay, reads, self._answer_page)
        self._submitted = self._scans_at_once = self._bundle_calls = 0
        self._wait_seconds = 0.0
        self._reads_hang = False
        self._peek = overlay.peek
        overlay.time_gets(self._read_took)

    # -- accepting records ---------------------------------------------------------------------------

    def submit(self, record: Record) -> None:
        """See ``ExecutionController``; waits while too many records are in flight."""
        mailbox = self._mailbox
        if mailbox.in_flight:
            mailbox.take(record)
            self._after_submit()
            return
        # Nothing is in flight: the record may emit rows directly, and is entered only when it first waits.
        record.out = self.outputs
        self._run(record)
        if mailbox.in_flight:
            mailbox.let_go(record)
            self._after_submit()
            return
        if self._unhandled:
            self.failures.raise_for(record)
        record.out = None

    def submit_guarded(self, record: GuardedRecord) -> None:
        """See ``ExecutionController``. Its rows are kept until it has ended."""
        self._mailbox.take(record)
        self._after_submit()

    def _after_submit(self) -> None:
        """Send reads that are due and wait while the limits are reached."""
        self._submitted += 1
        if self._records.full:
            self.flush()
        elif self._submitted % _AGE_CHECK_RECORDS == 0:
            if self._records.overdue:
                self.flush()
            self._poll()
        mailbox = self._mailbox
        if mailbox.full:
            mailbox.note_peaks()
            while mailbox.full:
                self._progress()

    def drain(self) -> None:
        """Return when every record accepted so far has ended and its output is in ``outputs``."""
        mailbox = self._mailbox
        while mailbox.in_flight:
            self._progress()
        mailbox.release()
        if self._unhandled:
            self.failures.raise_all()

    @property
    def may_spill(self) -> bool:
        """See ``ExecutionController``. Reads ahead of bundles look for what was spilled meanwhile."""
        return not (self._mailbox.in_flight or self._bundles.unanswered)

    def _await_settled(self, future: StateFuture[Any]) -> None:
        while not future.done:
            self._progress()

    def _suspend(
        self, record: Record, coroutine: CoroutineType[Any, Any, Any], awaited: StateFuture[Any]
    ) -> None:
        self._mailbox.hold(record)
        record.coroutine = coroutine
        out = record.out

        def resume(_: StateFuture[Any]) -> None:
            record.out = out  # nothing else is emitted here: the coroutine continues where it was
            try:
                self._step(record, coroutine)
            except Exception as error:
                self.failures.raise_named(error, record)
            self._mailbox.let_go(record)

        try:
            awaited._watch(settled, (resume, awaited))
        except Exception as error:
            throw_into(coroutine, error)

    def _await_returned(self, record: Record, returned: StateFuture[Any]) -> None:
        if returned._owner is not record:
            require_own(returned, returned._owner, "returned")
        if not self._mailbox.in_flight:
            raise self.failures.never(record, "returned")
        record.returned = returned

    # -- the sink's calls ----------------------------------------------------------------------------

    def async_get(self, key: bytes, decode: Decoder[T]) -> StateFuture[T]:
        """See ``StateBackend``: from memory at once, else with the next list get."""
        value: Peeked
        if self._reads.at_once:
            try:
                value = self.get(key)
            except Exception as error:
                failed_future(error)  # fails the record, whatever catches it below
                raise
        else:
            value = self._peek(key)
            if value is MISSING:
                return self._read_later(key, decode)
        try:
            return completed_future(decode(value))
        except Exception as error:
            self.failures.read_failed(error, key)
            return failed_future(error)

    def _read_later(self, key: bytes, decode: Decoder[T]) -> StateFuture[T]:
        record = self.current
        assert record is not None
        future: StateFuture[T] = pending_future(record)
        self._mailbox.hold(record)
        self._records.add(StateRequest(key, decode, future, record))
        self._ahead.waited(key, record.encoded_key)
        return future

    def _read_took(self, key: bytes, value: bytes | None, seconds: float) -> None:
        """Measure one of some immediate gets of the store, and decide whether to continue that way."""
        self._reads.took(seconds)
        # An absent key is cheap: a filter in memory answers.
        if value is not None and self.current is not None:
            self._ahead.waited(key, self.current.encoded_key, TIMED_EVERY)

    def async_scan(self, start: bytes, end: bytes, limit: int) -> StateFuture[Page]:
        """See ``StateBackend``: at once while reads are quick, else when the blocks that it reads have been loaded.

        One scan in some is timed, as gets are.
        """
        if not self._reads.at_once and self.current is not None:
            return self._scan_later(start, end, limit)
        self._scans_at_once += 1
        if self._scans_at_once % TIMED_EVERY:
            return completed_future(self.scan(start, end, limit))
        started = time.perf_counter()
        page = self.scan(start, end, limit)
        self._reads.took((time.perf_counter() - started) / reads_in(page))
        return completed_future(page)

    def _scan_later(self, start: bytes, end: bytes, limit: int) -> StateFuture[Page]:
        record = self.current
        assert record is not None
        self.write_back()
        ranges, request = self._ranges, RangeRequest(start, end, limit, record)
        try:
            if ranges.begin(request, self._limits.batch_hot_reads):
                return completed_future(request.entries)
        except Exception as error:
            self.failures.read_failed(error, start)
            raise
        request.future = future = pending_future(record)
        self._mailbox.hold(record)
        if ranges.has_full_chunk:
            ranges.send()
        return future

    def async_get_many(self, keys: list[bytes]) -> StateFuture[list[bytes | None]]:
        """See ``StateBackend``: a bundle's list get, from the prefetch if there was one."""
        return self._bundles.get(keys)

    @property
    def reads_ahead(self) -> bool:
        """See ``ExecutionController``: while the store is slow."""
        return self._reads.pacer.waits_for_device

    def prefetch(self, keys: list[bytes]) -> None:
        """Start loading ``keys`` (sorted, unique) if that can happen while other work goes on; a hint only."""
        self._bundles.prefetch(keys)

    # -- reading -------------------------------------------------------------------------------------

    def coming_rows(self, kind: int, groups: Sequence[bytes], keys: Sequence[bytes]) -> ComingRows:
        """Announce the next rows, by key group (2 bytes) and encoded key: a hint for prefetching."""
        if self._limits.batch_hot_reads:
            return super().coming_rows(kind, groups, keys)
        return ComingRecords(self._ahead, self._await_block, kind, groups, keys)

    def _await_block(self, block: AheadBlock) -> None:
        while block.missing:
            self._await_completion()

    def flush(self) -> None:
        """Send what is buffered, but do not wait."""
        if self._ranges.can_send:
            self._ranges.send()
        if self._records.requests:
            self._mailbox.note_peaks()
            self._records.send()

    def _progress(self) -> None:
        """Make one step that lets waiting records continue; raise if there is nothing to wait for."""
        # While every thread has something to read, waiting fills the buffer: larger list gets, fewer thread switches.
        to_send = self._records.requests or self._ranges.can_send
        if to_send and self._reads.outstanding < self._reads.threads:
            self.flush()
        elif not self._mailbox.run_ready():
            if not self._completions:
                self._mailbox.raise_stuck()
            self._await_completion()

    def _await_completion(self) -> None:
        self._mailbox.note_peaks()
        reads = self._reads.outstanding > 0
        seconds = self._limits.watchdog_timeout_ms / 1000 if reads else self.calls.watchdog_seconds
        started = time.perf_counter()
        completion = self._completions.next(seconds)
        waited = time.perf_counter() - started
        if completion is None:
            self._raise_unanswered(reads)
        if type(completion.ticket) is OutsideCall:
            self.calls.wait_seconds += waited
        else:
            self._wait_seconds += waited
        self._complete(completion)
        self._poll()

    def _raise_unanswered(self, reads: bool) -> NoReturn:
        self._reads_hang = reads
        if self.calls.in_flight:
            self.calls.abandon()
        text = self.failures.unanswered(self._completions.outstanding())
        raise self.failures.named(StoreError(text) if reads else OperatorError(text))

    def _poll(self) -> None:
        """Process answers that have arrived meanwhile."""
        while self._completions:
            completion = self._completions.next(0)
            if completion is None:
                return
            self._complete(completion)

    def _complete(self, completion: Completion) -> None:
        if type(completion.ticket) is OutsideCall:
            self._call_ended(completion.ticket, completion)
        else:
            self._reads.answered(completion)
        self._mailbox.run_ready()

    def _read_failed(self, get: ListGet, error: BaseException) -> NoReturn:
        """Errors of the store are not for operators to recover from."""
        store_key, record = get.wanted.about(get.start)
        self.failures.read_failed(error, store_key)
        self.failures.raise_named(error, record)

    def _answer(self, requests: Sequence[StateRequest], values: list[bytes | None]) -> None:
        """Complete futures in key order; each runs its record's callbacks here."""
        remember, settle_for, let_go = self.overlay.remember, self._settle_for, self._mailbox.let_go
        failures = self.failures
        for request, value in zip(requests, values, strict=True):
            remember(request.key, value)
            record = request.record
            self.current = record
            state, decoded = DONE, None
            try:
                decoded = request.decode(value)
            except Exception as error:
                self.failures.read_failed(error, request.key)
                state, decoded = FAILED, error
            failures.answering = request.key
            settle_for(record, request.future, state, decoded)
            let_go(record)
        failures.answering = None
        self._mailbox.run_ready()

    def _answer_page(self, request: RangeRequest) -> None:
        """The blocks that the page of ``request`` waited for are loaded: read on, and complete its future at the
        end."""
        record = self.current = request.record
        try:
            if not self._ranges.go_on(request):
                return
        except Exception as error:
            self.failures.read_failed(error, request.key)
            self.failures.raise_named(error, record)
        self.failures.answering = request.key
        self._settle_for(record, request.future, DONE, request.entries)
        self.failures.answering = None
        self._mailbox.let_go(record)

    def _settle_for(self, record: Record | None, future: StateFuture[Any], state: int, outcome: Any) -> None:
        """Settle a future of ``record``, or of the bundle; errors of its callbacks are reported with its state and
        key."""
        try:
            settle(future, state, outcome)
        except Exception as error:
            self.failures.raise_named(error, record)

    # -- outside calls -------------------------------------------------------------------------------

    def _call(self, call: OutsideCall) -> StateFuture[Any]:
        record = call.record
        call.future = pending_future(record)
        self.calls.start(call)  # first: if it cannot, nothing waits
        if record is None:
            self._bundle_calls += 1
        else:
            self._mailbox.hold(record)
        return call.future

    def _await_calls(self) -> None:
        while self._bundle_calls:
            self._progress()

    def _await_reads(self) -> None:
        while not self.may_spill:
            self._progress()

    def _call_ended(self, call: OutsideCall, completion: Completion) -> None:
        self.calls.ended()
        self.current = call.record
        state, outcome = DONE, completion.values
        if completion.error is not None:
            self.failures.call_failed(completion.error, call.name)
            state, outcome = FAILED, completion.error
        self._settle_for(call.record, call.future, state, outcome)
        if call.record is None:
            self._bundle_calls -= 1
        else:
            self._mailbox.let_go(call.record)

    # -- the rest ------------------------------------------------------------------------------------

    def close(self) -> None:
        """Release threads; records in flight are dropped."""
        try:
            self.calls.close()
        finally:
            self._mailbox.close()
            self._threads.close(0.0 if self._reads_hang else self._limits.watchdog_timeout_ms / 1000)

    def _overlapped(self) -> AsyncStatistics:
        self._mailbox.note_peaks()
        return AsyncStatistics(
            read_ahead_keys=self._ahead.keys_read,
            read_ahead_unused=self._ahead.keys_unused,
            warmed_positions=self._ranges.warmed,
            io_wait_seconds=self._wait_seconds,
            in_flight_peak=self._mailbox.in_flight_peak,
            io_threads_peak=self._threads.threads_peak,
            blocked_keys_peak=self._mailbox.blocked_peak,
        )
