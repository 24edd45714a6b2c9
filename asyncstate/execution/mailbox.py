"""Records in flight: which of them run, which wait, and when their rows leave.

Owns: ``MailboxController``, the part of asynchronous execution that knows of records but not of reads.
Invariants: all code of the operator runs on the thread that calls ``submit`` and ``drain`` (the mailbox); records
of one key run one after the other; rows leave in arrival order.
No deadlock: a record holds only its own key, and requests made by a running chain are taken even when the
in-flight limit is reached.

Source: FLIP-425 and Flink's ``AsyncExecutionController``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from types import CoroutineType
from typing import Any, Final, NoReturn

from asyncstate.execution.accounting import KeyAccountingUnit
from asyncstate.execution.buffer import StateRequestBuffer
from asyncstate.execution.calls import OutsideCalls
from asyncstate.execution.controller import ExecutionController
from asyncstate.execution.limits import AsyncLimits
from asyncstate.execution.record import Record
from asyncstate.futures import PENDING, StateFuture, require_own
from asyncstate.storage import WriteOverlay

_RELEASE_FACTOR: Final = (
    4  # records that may have ended behind one that has not, in multiples of the in-flight limit
)
_AGE_CHECK_RECORDS: Final = 64


class MailboxController(ExecutionController):
    """Keeps the books of records that wait, and goes on with them as what they wait for arrives."""

    __slots__ = (
        "_buffer",
        "_in_flight",
        "_keys",
        "_limits",
        "_overlapping_epochs",
        "_peak_blocked",
        "_peak_in_flight",
        "_ready",
        "_submitted",
        "_unreleased",
    )

    def __init__(
        self,
        overlay: WriteOverlay,
        uid: str,
        state_names: Mapping[int, str],
        limits: AsyncLimits,
        calls: OutsideCalls | None,
    ) -> None:
        super().__init__(overlay, uid, state_names, calls)
        self._limits = limits
        self._keys = KeyAccountingUnit()
        self._buffer = StateRequestBuffer(limits.buffer_size, limits.buffer_timeout_ms)
        self._ready: deque[Record] = deque()
        self._unreleased: deque[Record] = deque()
        self._in_flight = 0
        self._overlapping_epochs = 0
        self._submitted = 0
        self._peak_in_flight = 0
        self._peak_blocked = 0

    # -- taking records ------------------------------------------------------------------------------

    def submit(self, record: Record) -> None:
        """See ``ExecutionController``; waits while too many records are in flight."""
        if self._in_flight:
            self._submit_behind(record)
            return
        # Nothing is in flight: the record may put out rows directly, and enters the books only when it first waits.
        record.out = self.outputs
        self._run(record)
        if self._in_flight:
            self._let_go(record)
            self._after_submit()
            return
        if self._unhandled:
            self.failures.raise_for(record)
        record.out = None

    def _hold(self, record: Record) -> None:
        """Keep ``record``, which is at work, from ending before something more that it waits for is done."""
        if not self._in_flight:
            self._enter(record)
            record.pending = 1  # its own code, which is running
        record.pending += 1

    def _enter(self, record: Record) -> bool:
        """Enter a record into the books; True if it may run now, False if its key is at work."""
        record.returned = record.coroutine = None
        self._unreleased.append(record)
        self._in_flight += 1
        return self._keys.occupy(record)

    def _submit_behind(self, record: Record) -> None:
        record.out = []
        record.pending = 0
        if self._enter(record):
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
            self._poll()
        if self._in_flight >= limits.in_flight or len(self._unreleased) >= _RELEASE_FACTOR * limits.in_flight:
            self._make_room()

    def _make_room(self) -> None:
        limits = self._limits
        self._note_peaks()
        while (
            self._in_flight >= limits.in_flight or len(self._unreleased) >= _RELEASE_FACTOR * limits.in_flight
        ):
            self._progress()

    # -- waiting -------------------------------------------------------------------------------------

    def drain(self) -> None:
        """See ``ExecutionController``."""
        while self._in_flight:
            self._progress()
        self._release()
        if self._unhandled:
            self.failures.raise_all()

    @property
    def may_spill(self) -> bool:
        """See ``ExecutionController``. Reads ahead of bundles look for what was spilled meanwhile."""
        return not (self._in_flight or self._buffer.requests or self._answers_are_out)

    @property
    def _answers_are_out(self) -> bool:
        """Whether a bundle waits for what it has asked."""
        return False

    def end_epoch(self) -> None:
        """See ``ExecutionController``. Serial: wait for the epoch; else its records and the next one's overlap.

        What ends a micro-batch, or a phase of it, drains in either mode, so nothing has to remember where epochs end.
        Source: Flink's modes SERIAL_BETWEEN_EPOCH and PARALLEL_BETWEEN_EPOCH.
        """
        if self._limits.serial_epochs:
            self.drain()
        elif self._in_flight:
            self._overlapping_epochs += 1

    def settle(self, future: StateFuture[Any]) -> None:
        """See ``ExecutionController``."""
        while not future.done:
            self._progress()
        self._raise_failure(future)

    @abstractmethod
    def _progress(self) -> None:
        """Do one thing that brings waiting records on; raise if there is nothing to wait for."""

    @abstractmethod
    def _poll(self) -> None:
        """Take in what has been answered meanwhile."""

    def _raise_stuck(self) -> NoReturn:
        """Nothing is outstanding, so what the records wait for will never come."""
        self.failures.raise_all()
        waiting = next((record for record in self._unreleased if record.pending > 0), None)
        if waiting is None:
            raise self._never(None, "returned")  # by bundle-grain code
        error = self.failures.misused(
            waiting,
            f"{self._in_flight} records can never end; the first waits for a future that nothing completes. Return or "
            "await only futures that come from state requests and from ctx.call",
        )
        if waiting.coroutine is not None:
            self._throw(waiting.coroutine, error)
        raise error

    # -- running and ending records --------------------------------------------------------------------

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

    def _let_go(self, record: Record) -> None:
        """One thing that the record has waited for is done."""
        record.pending -= 1
        if record.pending == 0:
            self._end(record)

    def _end(self, record: Record) -> None:
        if self._unhandled:
            self.failures.raise_for(record)
        returned = record.returned
        # Only the record's own callbacks could complete it, and none will run any more.
        if returned is not None and returned._state == PENDING:
            raise self._never(record, "returned")
        self._in_flight -= 1
        record.pending = -1
        following = self._keys.release(record)
        if following is not None:
            self._ready.append(following)
        unreleased = self._unreleased
        if unreleased and unreleased[0] is record:
            self._release()

    def _release(self) -> None:
        """Pass on the rows of all records that have ended, up to the first that has not."""
        unreleased = self._unreleased
        outputs = self.outputs
        while unreleased and unreleased[0].pending < 0:
            record = unreleased.popleft()
            if record.out and record.out is not outputs:
                outputs.extend(record.out)
            record.out = None

    # -- coroutines and returned futures ---------------------------------------------------------------

    def _suspend(
        self, record: Record, coroutine: CoroutineType[Any, Any, Any], awaited: StateFuture[Any]
    ) -> None:
        self._hold(record)
        record.coroutine = coroutine

        def resume(_: StateFuture[Any]) -> None:
            try:
                self._step(record, coroutine)
            except Exception as error:
                self.failures.raise_named(error, record)
            self._let_go(record)

        try:
            awaited.on_settled(resume)
        except Exception as error:
            self._throw(coroutine, error)

    def _await_returned(self, record: Record, returned: StateFuture[Any]) -> None:
        if returned._owner is not record:
            require_own(returned, returned._owner, "returned")
        if not self._in_flight:
            raise self._never(record, "returned")
        record.returned = returned

    def _drop_coroutines(self) -> None:
        """Close the coroutines of records in flight, so that their ``finally`` blocks run now and here."""
        for record in self._unreleased:
            if record.pending > 0 and record.coroutine is not None:
                # What a ``finally`` block raises now would only hide why the micro-batch fails.
                with suppress(Exception):
                    record.coroutine.close()

    def _note_peaks(self) -> None:
        self._peak_in_flight = max(self._peak_in_flight, self._in_flight)
        self._peak_blocked = max(self._peak_blocked, self._keys.blocked)
