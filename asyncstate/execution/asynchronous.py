"""Asynchronous execution: reads of many keys wait together, records of different keys overtake each other.

Owns: ``AsyncExecutionController``.
Invariants: all code of the operator runs on the thread that calls ``submit`` and ``drain`` (the mailbox); records
of one key run one after the other; rows leave in arrival order.
No deadlock: a record holds only its own key, and requests made by a running chain are taken even when the
in-flight limit is reached.

Source: FLIP-425 and Flink's ``AsyncExecutionController``.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from asyncstate.errors import FutureStateError, StoreError
from asyncstate.execution.accounting import KeyAccountingUnit
from asyncstate.execution.buffer import ReadPacer, StateRequestBuffer
from asyncstate.execution.bundle_reads import BundleChunk, BundleReads
from asyncstate.execution.controller import ExecutionController
from asyncstate.execution.epochs import EpochManager
from asyncstate.execution.executor import Completion, IOExecutor
from asyncstate.execution.record import Record
from asyncstate.futures import StateFuture, completed_future, failed_future
from asyncstate.requests import Decoder, Page, StateRequest
from asyncstate.storage import LIST_GET_KEYS, MISSING, WriteOverlay
from asyncstate.storage.overlay import Peeked

T = TypeVar("T")

_RELEASE_FACTOR: Final = (
    4  # records that may have ended behind one that has not, in multiples of the in-flight limit
)
_AGE_CHECK_RECORDS: Final = 64
_MEASURE_EVERY: Final = 8  # of the single reads made at once: a measurement costs a twentieth of a hot read


@dataclass(frozen=True)
class AsyncLimits:
    """The bounds of an AsyncExecutionController; see the configuration keys of the same names."""

    in_flight: int = 6000
    buffer_size: int = 1000
    buffer_timeout_ms: int = 1000
    io_parallelism: int = 32
    watchdog_timeout_ms: int = 60_000
    batch_hot_reads: bool = False
    serial_epochs: bool = True


class AsyncExecutionController(ExecutionController):
    """Buffers reads, sends them off as sorted list gets, and completes futures as the answers arrive."""

    def __init__(
        self,
        overlay: WriteOverlay,
        uid: str,
        state_names: Mapping[int, str],
        limits: AsyncLimits,
        pacer: ReadPacer | None = None,
    ) -> None:
        super().__init__(overlay, uid, state_names)
        self.epochs = EpochManager()
        self._limits = limits
        self._keys = KeyAccountingUnit()
        self._buffer = StateRequestBuffer(limits.buffer_size, limits.buffer_timeout_ms)
        self._pacer = pacer if pacer is not None else ReadPacer()
        self._executor = IOExecutor(limits.io_parallelism)
        self._ready: deque[Record] = deque()
        self._unreleased: deque[Record] = deque()
        self._bundles = BundleReads(overlay, self._pacer, self._send, limits.io_parallelism)
        self._in_flight = 0
        self._epochs_done = 0
        self._submitted = 0
        self._peak_in_flight = 0
        self._peak_blocked = 0
        self._wait_seconds = 0.0
        self._peek = overlay.peek
        self._read = overlay.get
        self._reads_at_once = 0
        self._read_at_once = not limits.batch_hot_reads and not self._pacer.waits_for_device

    # -- records -----------------------------------------------------------------------------------

    def submit(self, record: Record) -> None:
        """See ``ExecutionController``; waits while too many records are in flight."""
        if self._in_flight:
            self._submit_behind(record)
            return
        # Nothing is in flight: the record may put out rows directly, and enters the books only if it waits.
        record.out = self.outputs
        record.pending = 1
        self._run(record)
        if record.pending > 1:
            self._enter(record)
            return
        record.out = None
        record.pending = -1
        if self._failures:
            self._raise_unhandled()

    def _enter(self, record: Record) -> None:
        """Enter a record that waits, as the only one, into the books."""
        record.pending -= 1
        record.epoch = self.epochs.enter()
        self._unreleased.append(record)
        self._in_flight = 1
        self._keys.occupy(record)
        self._after_submit()

    def _submit_behind(self, record: Record) -> None:
        record.out = []
        record.pending = 0
        record.epoch = self.epochs.enter()
        self._unreleased.append(record)
        self._in_flight += 1
        if self._keys.occupy(record):
            self._ready.append(record)
            self._run_ready()
        self._after_submit()

    def _after_submit(self) -> None:
        """Send off what is due and wait while the limits are reached."""
        self._submitted += 1
        limits = self._limits
        buffer = self._buffer
        if len(buffer.requests) >= limits.buffer_size:
            self.flush()
        elif self._submitted % _AGE_CHECK_RECORDS == 0:
            if buffer.overdue:
                self.flush()
            self._poll(0)
        if self._in_flight >= limits.in_flight or len(self._unreleased) >= _RELEASE_FACTOR * limits.in_flight:
            self._make_room()

    def drain(self) -> None:
        """See ``ExecutionController``."""
        while self._in_flight:
            self._progress()
        self._release()
        if self._failures:
            self._raise_unhandled()

    def end_epoch(self) -> None:
        """See ``ExecutionController``. Serial: wait for the epoch; else its records and the next one's overlap."""
        if self._limits.serial_epochs:
            self.drain()
        else:
            self.epochs.close(self._count_epoch)

    def _count_epoch(self) -> None:
        self._epochs_done += 1

    def settle(self, future: StateFuture[Any]) -> None:
        """See ``ExecutionController``."""
        while not future.done:
            self._progress()
        self._raise_unhandled()
        error = future.exception()
        if error is not None:
            raise self._operator_error(error, None) from error

    def _make_room(self) -> None:
        limits = self._limits
        self._note_peaks()
        while (
            self._in_flight >= limits.in_flight or len(self._unreleased) >= _RELEASE_FACTOR * limits.in_flight
        ):
            self._progress()

    def _run_ready(self) -> None:
        """Start records until none is ready. A loop, so that a hot key never nests calls."""
        ready = self._ready
        while ready:
            record = ready.popleft()
            record.pending = 1
            self._run(record)
            record.pending -= 1
            if record.pending == 0:
                self._end(record)

    def _end(self, record: Record) -> None:
        if self._failures:
            self._raise_unhandled()
        self._in_flight -= 1
        record.pending = -1
        following = self._keys.release(record)
        if following is not None:
            self._ready.append(following)
        unreleased = self._unreleased
        if unreleased and unreleased[0] is record:
            self._release()
        self.epochs.leave(record.epoch)

    def _release(self) -> None:
        """Pass on the rows of all records that have ended, up to the first that has not."""
        unreleased = self._unreleased
        outputs = self.outputs
        while unreleased and unreleased[0].pending < 0:
            record = unreleased.popleft()
            if record.out and record.out is not outputs:
                outputs.extend(record.out)
            record.out = None

    def _suspend(
        self, record: Record, coroutine: Coroutine[Any, None, Any], awaited: StateFuture[Any]
    ) -> None:
        record.pending += 1

        def resume(_: StateFuture[Any]) -> None:
            try:
                self._step(record, coroutine)
            except Exception as error:
                raise self._operator_error(error, record) from error
            record.pending -= 1
            if record.pending == 0:
                self._end(record)

        awaited.on_settled(resume)

    # -- the sink's calls ----------------------------------------------------------------------------

    def async_get(self, key: bytes, decode: Decoder[T]) -> StateFuture[T]:
        """See ``StateSink``: from memory at once, else with the next list get."""
        value: Peeked
        if self._read_at_once:
            self._reads_at_once += 1
            measure = self._reads_at_once % _MEASURE_EVERY == 0
            value = self._read_measured(key) if measure else self._read(key)
        else:
            value = self._peek(key)
            if value is MISSING:
                return self._read_later(key, decode)
        try:
            return completed_future(decode(value))
        except Exception as error:
            self._reading = key
            return failed_future(error)

    def _read_later(self, key: bytes, decode: Decoder[T]) -> StateFuture[T]:
        record = self.current
        assert record is not None
        future: StateFuture[T] = StateFuture()
        record.pending += 1
        self._buffer.add(StateRequest(key, decode, future, record))
        return future

    def _read_measured(self, key: bytes) -> bytes | None:
        """Read a key now, and see whether reading at once is still the thing to do."""
        value = self._peek(key)
        if value is not MISSING:
            return value
        started = time.perf_counter()
        fetched = self.overlay.fetch(key)
        self._pacer.measured_one(time.perf_counter() - started)
        self._read_at_once = not self._pacer.waits_for_device
        return fetched

    def async_scan(self, start: bytes, end: bytes, limit: int) -> StateFuture[Page]:
        """See ``StateSink``. Answered at once: a RocksDB iterator holds the GIL, so nothing could overlap."""
        return completed_future(self.overlay.scan(start, end, limit))

    def async_get_many(self, keys: list[bytes]) -> StateFuture[list[bytes | None]]:
        """See ``StateSink``: a bundle's list get, from the prefetch if there was one."""
        return self._bundles.get(keys)

    def prefetch(self, keys: list[bytes]) -> None:
        """See ``StateSink``."""
        self._bundles.prefetch(keys)

    # -- reading -------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Send off what is buffered; short of that, nothing waits."""
        if not self._buffer.requests:
            return
        self._note_peaks()
        self._read_at_once = not self._limits.batch_hot_reads and not self._pacer.waits_for_device
        requests = self._buffer.take()
        if not self._pacer.waits_for_device:
            requests = self._read_here(requests)
        elif probe := self._pacer.probe_keys():
            requests = self._read_here(requests[:probe]) + requests[probe:]
        if requests:
            size = self._pacer.chunk_keys(len(requests), self._limits.io_parallelism)
            for chunk in self._pacer.cut(requests, size):
                self._send([request.key for request in chunk], chunk)

    def _read_here(self, requests: list[StateRequest]) -> list[StateRequest]:
        """Answer requests on this thread while that is quick; returns those that should go to the threads."""
        while requests:
            size = self._pacer.chunk_keys(len(requests), 1)
            chunk, requests = requests[:size], requests[size:]
            keys = [request.key for request in chunk]
            started = time.perf_counter()
            values = self.overlay.store.get_many(keys, LIST_GET_KEYS)
            self._pacer.measured(len(keys), time.perf_counter() - started)
            self.overlay.count_list_get(len(keys))
            self._answer(chunk, values)
            if self._pacer.waits_for_device:
                break
        return requests

    def _send(self, keys: list[bytes], ticket: Any) -> None:
        store = self.overlay.store
        self.overlay.count_list_get(len(keys))
        self._executor.submit(lambda: store.get_many(keys), ticket)

    def _progress(self) -> None:
        """Do one thing that brings waiting records on; raise if there is nothing to wait for."""
        if self._buffer.requests:
            self.flush()
            return
        if self._executor.outstanding:
            self._await_completion()
            return
        if self._ready:
            self._run_ready()
            return
        waiting = next((record for record in self._unreleased if record.pending > 0), None)
        key = waiting.key if waiting is not None else "none"
        raise FutureStateError(
            f"operator '{self.uid}': {self._in_flight} records can never end; the first has key {key!r} and waits for "
            "a future that nothing completes. Return or await only futures that come from state requests"
        )

    def _await_completion(self) -> None:
        started = time.perf_counter()
        completion = self._executor.next_completion(self._limits.watchdog_timeout_ms / 1000)
        self._wait_seconds += time.perf_counter() - started
        if completion is None:
            raise StoreError(
                f"operator '{self.uid}': {self._executor.outstanding} list gets have not answered for "
                f"{self._limits.watchdog_timeout_ms} ms; check the disk under the local store, or raise "
                "async-state.watchdog-timeout"
            )
        self._complete(completion)
        self._poll(0)

    def _poll(self, timeout: float) -> None:
        while self._executor.outstanding:
            completion = self._executor.next_completion(timeout)
            if completion is None:
                return
            self._complete(completion)

    def _complete(self, completion: Completion) -> None:
        ticket = completion.ticket
        if completion.error is not None:
            self._reading = ticket.first_key if isinstance(ticket, BundleChunk) else ticket[0].key
            raise self._operator_error(completion.error, None) from completion.error
        if isinstance(ticket, BundleChunk):
            ticket.arrived(completion.values)
        else:
            self._answer(ticket, completion.values)

    def _answer(self, requests: Sequence[StateRequest], values: list[bytes | None]) -> None:
        """Complete futures in key order; each runs its record's callbacks here."""
        remember = self.overlay.remember
        for request, value in zip(requests, values, strict=True):
            remember(request.key, value)
            record = request.record
            self.current = record
            self._reading = request.key
            try:
                decoded = request.decode(value)
            except Exception as error:
                request.future.fail(error)
            else:
                request.future.complete(decoded)
            record.pending -= 1
            if record.pending == 0:
                self._end(record)
        self._reading = None
        if self._ready:
            self._run_ready()

    # -- the rest ------------------------------------------------------------------------------------

    def close(self) -> None:
        """See ``ExecutionController``."""
        self._executor.close()

    def statistics(self) -> dict[str, float]:
        """See ``ExecutionController``."""
        self._note_peaks()
        return {
            **self.overlay.statistics(),
            "io_wait_seconds": self._wait_seconds,
            "overlapping_epochs": self._epochs_done,
            "in_flight_limit": self._limits.in_flight,
            "request_buffer_limit": self._limits.buffer_size,
            "buffer_timeout_ms_limit": self._limits.buffer_timeout_ms,
            "io_parallelism_limit": self._limits.io_parallelism,
            "in_flight_peak": self._peak_in_flight,
            "blocked_keys_peak": self._peak_blocked,
        }

    def _note_peaks(self) -> None:
        self._peak_in_flight = max(self._peak_in_flight, self._in_flight)
        self._peak_blocked = max(self._peak_blocked, self._keys.blocked)
