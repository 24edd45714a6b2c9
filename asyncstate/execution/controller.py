"""The four steps of a request: a record arrives, is admitted, reads, and completes.

Owns: ``ExecutionController``: when to wait for records in flight, and how their requests and outside calls are
answered.
Invariants: records of one key run one after the other, to the end of their chains; all code of the operator runs on the
thread that calls ``submit`` and ``drain``; work handed to another thread returns as a Completion, which the calling
thread processes.
No deadlock: requests of a running chain are accepted even when the in-flight limit is reached.

1. Arrive: ``submit`` takes a record. Its code requests state: ``async_get``, ``async_scan``, ``async_get_many``.
2. Admit: it runs at once if its key is free, else after the records of its key before it (``InFlightRecords``).
3. Read: what memory knows is answered at once, and so is everything while reads are quick. Else ``Reads`` buffers the
   request, and sends it to a thread as a part of a sorted list get. In sync mode there are no ``Reads``.
4. Complete: ``_progress`` waits for an answer, which settles its future and so runs the callbacks. When all that a
   record has waited for is done, it ends: its rows leave, and the next record of its key is admitted.

How many records are in flight, how large a list get is and on which thread it runs: see ``pacer``.

Source: FLIP-425 and Flink's ``AsyncExecutionController``.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import CoroutineType
from typing import Any, Final, NoReturn, TypeVar

from asyncstate.errors import OperatorError, StoreError
from asyncstate.execution.bundle_reads import BundleReads
from asyncstate.execution.completions import Completion
from asyncstate.execution.failed_rows import GuardedRecord
from asyncstate.execution.in_flight import InFlightRecords
from asyncstate.execution.operator_code import AsyncStatistics, OperatorCode
from asyncstate.execution.outside_calls import OutsideCall, OutsideCalls
from asyncstate.execution.pacer import AGE_CHECK_RECORDS, AsyncLimits, Pacer
from asyncstate.execution.prefetch import (
    PREFETCH_ROWS_MIN,
    AccessPatterns,
    AheadBlock,
    ReadAhead,
    UpcomingRows,
)
from asyncstate.execution.range_prefetch import RangeReads, RangeRequest, reads_in
from asyncstate.execution.read_threads import ReadThreads
from asyncstate.execution.reads import ListGet, Reads, StateRequest
from asyncstate.execution.record import Record
from asyncstate.execution.record_failures import throw_into
from asyncstate.futures import (
    DONE,
    FAILED,
    PENDING,
    StateFuture,
    completed_future,
    failed_future,
    pending_future,
    require_own,
    settle,
)
from asyncstate.futures.settling import settled
from asyncstate.state_backend import Decoder, Page
from asyncstate.storage import MISSING, MemTable
from asyncstate.storage.memtable import TIMED_EVERY
from asyncstate.storage.value_cache import Peeked

_ONE: Final = AsyncLimits(in_flight=1)

T = TypeVar("T")


class ExecutionController(OperatorCode):
    """Runs records and bundles of one operator on one partition for one micro-batch. Used by one thread, as a context
    manager.

    Without ``limits`` execution is synchronous: reads are made and outside calls waited for when they are requested, so
    a record has ended when ``submit`` returns. With them, reads of many keys wait at the same time, and records of
    different keys overtake each other.
    """

    __slots__ = (
        "_access_patterns",
        "_ahead",
        "_bundle_calls",
        "_bundles",
        "_flight",
        "_limits",
        "_peek",
        "_ranges",
        "_reads",
        "_reads_hang",
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
        limits: AsyncLimits | None = None,
        pacer: Pacer | None = None,
        calls: OutsideCalls | None = None,
        access_patterns: AccessPatterns | None = None,
    ) -> None:
        super().__init__(overlay, uid, state_names, calls)
        self._peek = overlay.peek
        self._access_patterns = access_patterns
        self._submitted = self._scans_at_once = self._bundle_calls = 0
        self._wait_seconds = 0.0
        self._reads_hang = False
        # Made when they are needed first, which in a small micro-batch is never.
        self._bundles: BundleReads | None = None
        self._ahead: ReadAhead | None = None
        self._ranges: RangeReads | None = None
        self._threads: ReadThreads | None = None
        self._reads: Reads | None = None
        self._limits = _ONE if limits is None else limits
        self._flight = InFlightRecords(self._run, self.outputs, self.failures, self._limits.in_flight)
        if limits is not None:
            pacer = Pacer() if pacer is None else pacer
            self._reads = Reads(overlay, pacer, limits, self._send, self._answer, self._read_failed)
            overlay.time_gets(self._read_took)

    # -- 1. a record arrives, 2. it is admitted -------------------------------------------------------

    def submit(self, record: Record) -> None:
        """Accept a record; it runs now or when its key is free. Waits while too many records are in flight. Raises
        OperatorError if any record failed."""
        flight = self._flight
        if flight.in_flight:
            flight.take(record)
            self._after_submit()
            return
        # Nothing is in flight: the record may emit rows directly, and is entered only when it first waits.
        record.out = self.outputs
        self.current = record
        try:  # as in ``_run``, without a call for every hot record
            result = record.work(record.item, record)
            if result is not None and not (type(result) is StateFuture and result._state != PENDING):
                self._go_on(record, result)
        except Exception as error:
            self.failures.raise_named(error, record)
        if flight.in_flight:
            flight.let_go(record)
            self._after_submit()
            return
        if self._unhandled:
            self.failures.raise_for(record)
        record.out = None

    def submit_guarded(self, record: GuardedRecord) -> None:
        """Like ``submit``; if the record fails, its row goes to the side output of errors instead of its output: its
        rows are kept until it has ended. Raises OperatorError if it has changed state before."""
        self._flight.take(record)
        self._after_submit()

    def _after_submit(self) -> None:
        """Send reads that are due and wait while the limits are reached."""
        reads = self._reads
        if reads is None:
            return
        self._submitted += 1
        if reads.full:
            self.flush()
        elif self._submitted % AGE_CHECK_RECORDS == 0:
            if reads.overdue:
                self.flush()
            self._poll()
        flight = self._flight
        if flight.full:
            flight.note_peaks()
            while flight.full:
                self._progress()

    def drain(self) -> None:
        """Return when every record accepted so far has ended and its output is in ``outputs``."""
        while self._flight.in_flight:
            self._progress()
        if self._unhandled:
            self.failures.raise_all()

    @property
    def may_spill(self) -> bool:
        """See ``OperatorCode``. Reads ahead of bundles look for what was spilled meanwhile."""
        return not (self._flight.in_flight or (self._bundles is not None and self._bundles.unanswered))

    def _suspend(
        self, record: Record, coroutine: CoroutineType[Any, Any, Any], awaited: StateFuture[Any]
    ) -> None:
        if self._reads is None:
            throw_into(coroutine, self.failures.never(record, "awaits"))
        self._flight.hold(record)
        record.coroutine = coroutine
        out = record.out

        def resume(_: StateFuture[Any]) -> None:
            before, record.out = record.out, out  # the coroutine continues where it was
            try:
                self._step(record, coroutine)
            except Exception as error:
                self.failures.raise_named(error, record)
            record.out = before  # of the callback that has completed the future, if it was the operator's own
            self._flight.let_go(record)

        try:
            awaited._watch(settled, (resume, awaited))
        except Exception as error:
            throw_into(coroutine, error)

    def _await_returned(self, record: Record, returned: StateFuture[Any]) -> None:
        if returned._owner is not record:
            require_own(returned, returned._owner, "returned")
        if not self._flight.in_flight:
            raise self.failures.never(record, "returned")
        record.returned = returned

    # -- 3. it reads ----------------------------------------------------------------------------------

    def async_get(self, key: bytes, decode: Decoder[T]) -> StateFuture[T]:
        """See ``StateBackend``: from memory at once, else with the next list get."""
        value: Peeked
        reads = self._reads
        if reads is None or reads.at_once:
            try:
                value = self.get(key)
            except Exception as error:
                failed_future(error)  # fails the record, whatever catches it below
                raise
        else:
            value = self._peek(key)
            if value is MISSING:
                record = self.current
                assert record is not None
                future: StateFuture[T] = pending_future(record)
                self._flight.hold(record)
                reads.add((key, decode, future, record))
                if self._ahead is not None:
                    self._ahead.waited(key, record.encoded_key)
                return future
        try:
            return completed_future(decode(value))
        except Exception as error:
            self.failures.read_failed(error, key)
            return failed_future(error)

    def _read_took(self, key: bytes, value: bytes | None, seconds: float) -> None:
        """Measure one of some immediate gets of the store, and decide whether to continue that way."""
        assert self._reads is not None
        self._reads.took(seconds)
        # An absent key is cheap: a filter in memory answers.
        if value is not None and self.current is not None and self._ahead is not None:
            self._ahead.waited(key, self.current.encoded_key, TIMED_EVERY)

    def async_scan(self, start: bytes, end: bytes, limit: int) -> StateFuture[Page]:
        """See ``StateBackend``: at once while reads are quick, else when the blocks that it reads have been loaded.

        One scan in some is timed, as gets are.
        """
        reads = self._reads
        if reads is None:
            return completed_future(self.scan(start, end, limit))
        if not reads.at_once and self.current is not None:
            return self._scan_later(reads, start, end, limit)
        self._scans_at_once += 1
        if self._scans_at_once % TIMED_EVERY:
            return completed_future(self.scan(start, end, limit))
        started = time.perf_counter()
        page = self.scan(start, end, limit)
        reads.took((time.perf_counter() - started) / reads_in(page))
        return completed_future(page)

    def _scan_later(self, reads: Reads, start: bytes, end: bytes, limit: int) -> StateFuture[Page]:
        record = self.current
        assert record is not None
        self.write_back()
        if self._ranges is None:
            self._ranges = RangeReads(self.overlay, reads, self._answer_page)
        ranges, request = self._ranges, RangeRequest(start, end, limit, record)
        try:
            if ranges.begin(request, self._limits.batch_hot_reads):
                return completed_future(request.entries)
        except Exception as error:
            self.failures.read_failed(error, start)
            raise
        request.future = future = pending_future(record)
        self._flight.hold(record)
        if ranges.has_full_chunk:
            ranges.send()
        return future

    def async_get_many(self, keys: list[bytes]) -> StateFuture[list[bytes | None]]:
        """See ``StateBackend``: a bundle's list get, from the prefetch if there was one."""
        if self._reads is None:
            return completed_future(self.get_many(keys))
        if self._bundles is None:
            self._bundles = BundleReads(self.overlay, self._reads)
        return self._bundles.get(keys)

    def begin_prefetch(self) -> None:
        """The prefetches of the next bundle but one follow: at most one bundle is processed before it."""
        if self._bundles is not None:
            self._bundles.begin_prefetch()

    def prefetch(self, keys: list[bytes]) -> None:
        """Start loading ``keys`` (sorted, unique) if that can happen while other work goes on; a hint only."""
        if self.reads_ahead:
            assert self._reads is not None
            if self._bundles is None:
                self._bundles = BundleReads(self.overlay, self._reads)
            self._bundles.prefetch(keys)

    @property
    def reads_ahead(self) -> bool:
        """Whether prefetching runs in parallel with other work, which it does while the store is slow; else a bundle is
        best read when it is processed."""
        return self._reads is not None and self._reads.pacer.waits_for_device

    def coming_rows(self, kind: int, groups: Sequence[bytes], keys: Sequence[bytes]) -> UpcomingRows | None:
        """Announce the next rows, by key group (2 bytes) and encoded key; None if nothing is to be prefetched.

        Rows of one ``kind`` are assumed to read alike: those of an input (its number), or timers. While reads are
        quick, a few rows are not worth it.
        """
        reads, limits = self._reads, self._limits
        if reads is None or limits.batch_hot_reads or (reads.at_once and len(keys) < PREFETCH_ROWS_MIN):
            return None
        if self._ahead is None:
            self._ahead = ReadAhead(
                self.overlay, reads, limits.in_flight, self._access_patterns, self._caches
            )
        return UpcomingRows(self._ahead, self._await_block, kind, groups, keys)

    def _await_block(self, block: AheadBlock) -> None:
        while block.missing:
            self._await_completion()

    def flush(self) -> None:
        """Send buffered reads, but do not wait; called before the caller may block on its input."""
        if self._ranges is not None and self._ranges.can_send:
            self._ranges.send()
        if self._reads is not None and self._reads.requests:
            self._flight.note_peaks()
            self._reads.send_requests()

    def _send(self, gets: Sequence[ListGet], threads: int) -> None:
        """Have ``gets`` made by at least ``threads`` threads."""
        if self._threads is None:
            read, most = self.overlay.read_store, self._limits.io_parallelism
            self._threads = ReadThreads(read, most, self.calls.completions)
        self._threads.submit(gets, threads)

    # -- 4. it completes ------------------------------------------------------------------------------

    def _progress(self) -> None:
        """Make one step that lets waiting records continue; raise if there is nothing to wait for."""
        # While every thread has something to read, waiting fills the buffer: larger list gets, fewer thread switches.
        reads, ranges = self._reads, self._ranges
        if (
            reads is not None
            and (reads.requests or (ranges is not None and ranges.can_send))
            and reads.outstanding < reads.threads
        ):
            self.flush()
        elif not self._flight.run_ready():
            if not self.calls.completions:
                self._flight.raise_stuck()
            self._await_completion()

    def _await_completion(self) -> None:
        self._flight.note_peaks()
        self._complete(self._next_completion(self._reads is not None and self._reads.outstanding > 0))
        self._poll()

    def _next_completion(self, of_reads: bool) -> Completion:
        """Wait for an answer; ``of_reads``: a read is under way, which is answered before any call's timeout."""
        seconds = self._limits.watchdog_timeout_ms / 1000 if of_reads else self.calls.watchdog_seconds
        started = time.perf_counter()
        completion = self.calls.completions.next(seconds)
        waited = time.perf_counter() - started
        if completion is None:
            self._raise_unanswered(of_reads)
        if type(completion.ticket) is OutsideCall:
            self.calls.wait_seconds += waited
        else:
            self._wait_seconds += waited
        return completion

    def _raise_unanswered(self, reads: bool) -> NoReturn:
        self._reads_hang = reads
        if self.calls.in_flight:
            self.calls.abandon()
        text = self.failures.unanswered(self.calls.completions.outstanding())
        raise self.failures.named(StoreError(text) if reads else OperatorError(text))

    def _poll(self) -> None:
        """Process answers that have arrived meanwhile."""
        while self.calls.completions:
            completion = self.calls.completions.next(0)
            if completion is None:
                return
            self._complete(completion)

    def _complete(self, completion: Completion) -> None:
        if type(completion.ticket) is OutsideCall:
            self._call_ended(completion.ticket, completion)
        else:
            assert self._reads is not None
            self._reads.answered(completion)
        self._flight.run_ready()

    def _read_failed(self, get: ListGet, error: BaseException) -> NoReturn:
        """Errors of the store are not for operators to recover from."""
        store_key, record = get.wanted.about(get.start)
        self.failures.read_failed(error, store_key)
        self.failures.raise_named(error, record)

    def _answer(self, requests: Sequence[StateRequest], values: list[bytes | None]) -> None:
        """Complete futures in key order; each runs its record's callbacks here."""
        remember, let_go, failures = self.overlay.remember, self._flight.let_go, self.failures
        for (key, decode, future, record), value in zip(requests, values, strict=True):
            remember(key, value)
            self.current = record
            state, decoded = DONE, None
            try:
                decoded = decode(value)
            except Exception as error:
                failures.read_failed(error, key)
                state, decoded = FAILED, error
            failures.answering = key
            try:
                settle(future, state, decoded)
            except Exception as error:
                failures.raise_named(error, record)
            let_go(record)
        failures.answering = None
        self._flight.run_ready()

    def _answer_page(self, request: RangeRequest) -> None:
        """The blocks that the page of ``request`` waited for are loaded: read on, and complete its future at the
        end."""
        record = self.current = request.record
        try:
            assert self._ranges is not None
            if not self._ranges.go_on(request):
                return
        except Exception as error:
            self.failures.read_failed(error, request.key)
            self.failures.raise_named(error, record)
        self.failures.answering = request.key
        self._settle_for(record, request.future, DONE, request.entries)
        self.failures.answering = None
        self._flight.let_go(record)

    def _settle_for(self, record: Record | None, future: StateFuture[Any], state: int, outcome: Any) -> None:
        """Settle a future of ``record``, or of the bundle; errors of its callbacks are reported with its state and
        key."""
        try:
            settle(future, state, outcome)
        except Exception as error:
            self.failures.raise_named(error, record)

    # -- outside calls -------------------------------------------------------------------------------

    def _call(self, call: OutsideCall) -> StateFuture[Any]:
        if self._reads is None:
            self.calls.start(call)
            return self._outcome(call)
        record = call.record
        call.future = pending_future(record)
        self.calls.start(call)  # first: if it cannot, nothing waits
        if record is None:
            self._bundle_calls += 1
        else:
            self._flight.hold(record)
        return call.future

    def _outcome(self, call: OutsideCall) -> StateFuture[Any]:
        """In sync mode, where nothing else is in flight."""
        completion = self._next_completion(False)
        self.calls.ended()
        if completion.error is None:
            return completed_future(completion.values)
        self.failures.call_failed(completion.error, call.name)
        return failed_future(completion.error)

    def _await_settled(self, future: StateFuture[Any]) -> None:
        while not future.done:
            self._progress()

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
            self._flight.let_go(call.record)

    # -- the end -------------------------------------------------------------------------------------

    def close(self) -> None:
        """End outside calls and release threads; records in flight are dropped."""
        try:
            self.calls.close()
        finally:
            if self._flight.in_flight:
                self._flight.close()
            if self._threads is not None:
                self._threads.close(0.0 if self._reads_hang else self._limits.watchdog_timeout_ms / 1000)

    def _overlapped(self) -> AsyncStatistics | None:
        if self._reads is None:
            return None
        flight, ahead = self._flight, self._ahead
        flight.note_peaks()
        return AsyncStatistics(
            read_ahead_keys=0 if ahead is None else ahead.keys_read,
            read_ahead_unused=0 if ahead is None else ahead.keys_unused,
            warmed_positions=0 if self._ranges is None else self._ranges.warmed,
            io_wait_seconds=self._wait_seconds,
            in_flight_peak=flight.in_flight_peak,
            io_threads_peak=0 if self._threads is None else self._threads.threads_peak,
            blocked_keys_peak=flight.blocked_peak,
        )
