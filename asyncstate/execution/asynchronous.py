"""Asynchronous execution: reads of many keys wait together, records of different keys overtake each other.

Owns: ``AsyncExecutionController``: how requests and outside calls of the records in flight are answered.
Invariant: whatever is handed to another thread comes back as a Completion, which the mailbox thread takes in.

Source: FLIP-425 and Flink's ``AsyncExecutionController``.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from asyncstate.errors import OperatorError, StoreError
from asyncstate.execution.bundle_reads import BundleChunk, BundleReads
from asyncstate.execution.calls import OutsideCall, OutsideCalls
from asyncstate.execution.controller import AsyncStatistics
from asyncstate.execution.limits import AsyncLimits
from asyncstate.execution.loop import Completion
from asyncstate.execution.mailbox import MailboxController
from asyncstate.execution.pacing import ReadPacer
from asyncstate.execution.range_reads import RangeChunk, RangeReads, RangeRequest, reads_in
from asyncstate.execution.read_ahead import (
    AheadBlock,
    AheadChunk,
    ComingRecords,
    ComingRows,
    Interests,
    ReadAhead,
)
from asyncstate.execution.read_threads import ListGet, ReadThreads
from asyncstate.execution.record_reads import RecordReads
from asyncstate.execution.stalls import unanswered
from asyncstate.futures import (
    DONE,
    FAILED,
    StateFuture,
    completed_future,
    failed_future,
    pending_future,
    settle,
)
from asyncstate.requests import Decoder, Page, StateRequest
from asyncstate.storage import MISSING, WriteOverlay
from asyncstate.storage.overlay import TIMED_EVERY
from asyncstate.storage.read_cache import Peeked

T = TypeVar("T")


class AsyncExecutionController(MailboxController):
    """Buffers reads, sends them off as sorted list gets, and completes futures as the answers arrive."""

    __slots__ = (
        "_ahead",
        "_bundle_calls",
        "_bundles",
        "_completions",
        "_pacer",
        "_peek",
        "_ranges",
        "_read_at_once",
        "_reads",
        "_reads_hang",
        "_scans_at_once",
        "_threads",
        "_wait_seconds",
    )

    def __init__(
        self,
        overlay: WriteOverlay,
        uid: str,
        state_names: Mapping[int, str],
        limits: AsyncLimits,
        pacer: ReadPacer | None = None,
        calls: OutsideCalls | None = None,
        interests: Interests | None = None,
    ) -> None:
        super().__init__(overlay, uid, state_names, limits, calls)
        self._pacer = pacer if pacer is not None else ReadPacer()
        self._completions = self.calls.completions
        self._threads = ReadThreads(overlay.read_store, limits.io_parallelism, self._completions)
        self._reads = RecordReads(
            overlay, self._pacer, self._answer, self._read_failed, self._send, limits.io_parallelism
        )
        self._bundles = BundleReads(overlay, self._pacer, self._send, limits.io_parallelism)
        self._ahead = ReadAhead(
            overlay,
            self._pacer,
            self._read_failed,
            self._send,
            limits.io_parallelism,
            limits.in_flight,
            interests,
        )
        self._ranges = RangeReads(
            overlay, self._pacer, self._answer_page, self._send_ranges, limits.io_parallelism
        )
        self._scans_at_once = 0
        self._bundle_calls = 0
        self._wait_seconds = 0.0
        self._reads_hang = False
        self._peek = overlay.peek
        self._read_at_once = not limits.batch_hot_reads and not self._pacer.waits_for_device
        overlay.time_gets(self._read_took)

    # -- the sink's calls ----------------------------------------------------------------------------

    def async_get(self, key: bytes, decode: Decoder[T]) -> StateFuture[T]:
        """See ``StateSink``: from memory at once, else with the next list get."""
        value: Peeked
        if self._read_at_once:
            try:
                value = self.get(key)
            except Exception as error:
                failed_future(error)  # fails the record, whoever catches it below
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
        self._hold(record)
        self._buffer.add(StateRequest(key, decode, future, record))
        self._ahead.waited(key, record.encoded_key)
        return future

    def _read_took(self, key: bytes, value: bytes | None, seconds: float) -> None:
        """One of some gets of the store at once: see whether that is still the thing to do."""
        self._pacer.measured_one(seconds)
        # An absent key is found out by a filter in memory, for little.
        if value is not None and self.current is not None:
            self._ahead.waited(key, self.current.encoded_key, TIMED_EVERY)
        self._read_at_once = not self._limits.batch_hot_reads and not self._pacer.waits_for_device

    def async_scan(self, start: bytes, end: bytes, limit: int) -> StateFuture[Page]:
        """See ``StateSink``: at once while reads are quick, else when the blocks that it reads have been loaded.

        One scan in some is timed, as gets are.
        """
        if not self._read_at_once and self.current is not None:
            return self._scan_later(start, end, limit)
        self._scans_at_once += 1
        if self._scans_at_once % TIMED_EVERY:
            return completed_future(self.scan(start, end, limit))
        started = time.perf_counter()
        page = self.scan(start, end, limit)
        self._pacer.measured_one((time.perf_counter() - started) / reads_in(page))
        self._read_at_once = not self._limits.batch_hot_reads and not self._pacer.waits_for_device
        return completed_future(page)

    def _scan_later(self, start: bytes, end: bytes, limit: int) -> StateFuture[Page]:
        record = self.current
        assert record is not None
        for level_one in self._level_ones:
            level_one.write_back()
        ranges, request = self._ranges, RangeRequest(start, end, limit, record)
        try:
            if ranges.begin(request, self._limits.batch_hot_reads):
                return completed_future(request.entries)
        except Exception as error:
            self.failures.read_failed(error, start)
            raise
        request.future = future = pending_future(record)
        self._hold(record)
        if ranges.has_full_chunk:
            ranges.send()
        return future

    def async_get_many(self, keys: list[bytes]) -> StateFuture[list[bytes | None]]:
        """See ``StateSink``: a bundle's list get, from the prefetch if there was one."""
        try:
            return self._bundles.get(keys)
        except Exception as error:
            self.failures.read_failed(error, keys[0])
            raise

    @property
    def _answers_are_out(self) -> bool:
        return self._bundles.unanswered > 0

    @property
    def reads_ahead(self) -> bool:
        """See ``ExecutionController``: while the store is slow."""
        return self._pacer.waits_for_device

    def prefetch(self, keys: list[bytes]) -> None:
        """See ``StateSink``."""
        self._bundles.prefetch(keys)

    # -- reading -------------------------------------------------------------------------------------

    def coming_rows(self, kind: int, groups: Sequence[bytes], keys: Sequence[bytes]) -> ComingRows:
        """See ``ExecutionController``."""
        if self._limits.batch_hot_reads:
            return super().coming_rows(kind, groups, keys)
        return ComingRecords(self._ahead, self._await_block, kind, groups, keys)

    def _await_block(self, block: AheadBlock) -> None:
        while block.missing:
            self._await_completion()

    def flush(self) -> None:
        """Send off what is buffered; short of that, nothing waits."""
        if self._ranges.can_send:
            self._ranges.send()
        if not self._buffer.requests:
            return
        self._note_peaks()
        self._read_at_once = not self._limits.batch_hot_reads and not self._pacer.waits_for_device
        self._reads.read(self._buffer.take())

    def _send(self, gets: Sequence[ListGet]) -> None:
        for get in gets:
            self.overlay.count_list_get(len(get.keys))
        self._send_ranges(gets)

    def _send_ranges(self, gets: Sequence[ListGet]) -> None:
        self._threads.submit(gets, min(self._threads_wanted, self._reads_outstanding + len(gets)))

    @property
    def _threads_wanted(self) -> int:
        return self._pacer.threads(self._limits.io_parallelism)

    @property
    def _reads_outstanding(self) -> int:
        """List gets that have been sent off and not come back."""
        return len(self._completions) - self.calls.in_flight

    def _progress(self) -> None:
        """Do one thing that brings waiting records on; raise if there is nothing to wait for."""
        # While every thread has something to read, waiting fills the buffer: larger list gets, fewer turns.
        to_send = self._buffer.requests or self._ranges.can_send
        if to_send and self._reads_outstanding < self._threads_wanted:
            self.flush()
        elif self._ready:
            self._run_ready()
        elif self._completions:
            self._await_completion()
        else:
            self._raise_stuck()

    def _await_completion(self) -> None:
        self._note_peaks()
        reads = self._reads_outstanding > 0
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
        text = unanswered(self.uid, self.state_names, self._completions.outstanding())
        raise self.failures.named(StoreError(text) if reads else OperatorError(text))

    def _poll(self) -> None:
        """Take in what has been answered meanwhile."""
        while self._completions:
            completion = self._completions.next(0)
            if completion is None:
                return
            self._complete(completion)

    def _complete(self, completion: Completion) -> None:
        ticket = completion.ticket
        if type(ticket) is OutsideCall:
            self._call_ended(ticket, completion)
        elif completion.error is not None:
            self._read_failed(ticket, completion.error)
        elif isinstance(ticket, RangeChunk):
            self._pacer.answered(len(ticket.positions), completion.seconds)
            self._ranges.arrived(ticket)
            if self._ready:
                self._run_ready()
        else:
            self._pacer.answered(len(completion.values), completion.seconds)
            if isinstance(ticket, BundleChunk):
                ticket.arrived(completion.values)
            elif isinstance(ticket, AheadChunk):
                self._ahead.arrived(ticket, completion.values)
            else:
                self._answer(ticket, completion.values)

    def _read_failed(self, ticket: Any, error: BaseException) -> NoReturn:
        """Errors of the store are not for operators to recover from."""
        if isinstance(ticket, BundleChunk | AheadChunk):
            self.failures.read_failed(error, ticket.first_key)
            self.failures.raise_named(error, None)
        first = ticket.requests[0] if isinstance(ticket, RangeChunk) else ticket[0]
        self.failures.read_failed(error, first.key)
        self.failures.raise_named(error, first.record)

    def _answer(self, requests: Sequence[StateRequest], values: list[bytes | None]) -> None:
        """Complete futures in key order; each runs its record's callbacks here."""
        remember = self.overlay.remember
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
            try:
                settle(request.future, state, decoded)
            except Exception as error:
                self.failures.raise_named(error, record)
            record.pending -= 1
            if record.pending == 0:
                self._end(record)
        if self._ready:
            self._run_ready()

    def _answer_page(self, request: RangeRequest) -> None:
        """What the page of ``request`` waited for is in memory: read on, and complete its future if that was all."""
        record = self.current = request.record
        try:
            if not self._ranges.go_on(request):
                return
        except Exception as error:
            self.failures.read_failed(error, request.key)
            self.failures.raise_named(error, record)
        try:
            settle(request.future, DONE, request.entries)
        except Exception as error:
            self.failures.raise_named(error, record)
        self._let_go(record)

    # -- outside calls -------------------------------------------------------------------------------

    def _call(self, call: OutsideCall) -> StateFuture[Any]:
        record = call.record
        call.future = pending_future(record)
        self.calls.start(call)  # first: if it cannot, nothing waits
        if record is None:
            self._bundle_calls += 1
        else:
            self._hold(record)
        return call.future

    def _await_calls(self) -> None:
        while self._bundle_calls:
            self._progress()

    def _call_ended(self, call: OutsideCall, completion: Completion) -> None:
        self.calls.ended()
        self.current = call.record
        state, outcome = DONE, completion.values
        if completion.error is not None:
            self.failures.call_failed(completion.error, call.name)
            state, outcome = FAILED, completion.error
        try:
            settle(call.future, state, outcome)
        except Exception as error:
            self.failures.raise_named(error, call.record)
        if call.record is None:
            self._bundle_calls -= 1
        else:
            self._let_go(call.record)
        if self._ready:
            self._run_ready()

    # -- the rest ------------------------------------------------------------------------------------

    def close(self) -> None:
        """See ``ExecutionController``."""
        try:
            self.calls.close()
        finally:
            self._drop_coroutines()
            self._threads.close(0.0 if self._reads_hang else self._limits.watchdog_timeout_ms / 1000)

    def _overlapped(self) -> AsyncStatistics:
        self._note_peaks()
        return AsyncStatistics(
            ahead=self._ahead.statistics(),
            ranges=self._ranges.statistics(),
            io_wait_seconds=self._wait_seconds,
            overlapping_epochs=self._overlapping_epochs,
            in_flight_peak=self._peak_in_flight,
            io_threads_peak=self._threads.threads_peak,
            blocked_keys_peak=self._peak_blocked,
        )
