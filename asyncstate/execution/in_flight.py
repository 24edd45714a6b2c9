"""Records in flight: which of them run, which wait, and when their rows are emitted.

Owns: ``InFlightRecords``, the bookkeeping of records that wait; it knows of records but not of what they wait for.
Invariants: records of one key run one after the other, in arrival order; rows are emitted in arrival order; a record
ends once everything it has waited for is done.
No deadlock: a record holds only its own key.
Must not import storage.

Source: FLIP-425 and Flink's ``KeyAccountingUnit``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NoReturn

from asyncstate.execution.failed_rows import GuardedRecord
from asyncstate.execution.pacer import UNRELEASED_FACTOR
from asyncstate.execution.record import AnyRow, Record
from asyncstate.execution.record_failures import Failures, throw_into
from asyncstate.futures import PENDING


class InFlightRecords:
    """Accepts records, runs each when its key is free, and passes on the rows of ended records.

    ``run`` runs a record's own code to its first wait, in which it may ``hold`` the record. ``outputs`` receives the
    rows. A record that waits for nothing while no other is in flight need not be entered at all.
    """

    __slots__ = (
        "_failures",
        "_limit",
        "_outputs",
        "_ready",
        "_run",
        "_tails",
        "_unreleased",
        "blocked",
        "blocked_peak",
        "in_flight",
        "in_flight_peak",
    )

    def __init__(
        self, run: Callable[[Record], None], outputs: list[AnyRow], failures: Failures, limit: int
    ) -> None:
        self._run = run
        self._outputs = outputs
        self._failures = failures
        self._limit = limit
        self._tails: dict[
            bytes, Record
        ] = {}  # by key: the last in its queue, which is linked through ``following``
        self._ready: deque[Record] = deque()
        self._unreleased: deque[Record] = deque()
        self.in_flight = 0
        """Records that have not ended."""
        self.blocked = 0
        """Of these, those that wait for another record of their key."""
        self.in_flight_peak = self.blocked_peak = 0

    @property
    def full(self) -> bool:
        """True while no more records should be accepted."""
        limit = self._limit
        return self.in_flight >= limit or len(self._unreleased) >= UNRELEASED_FACTOR * limit

    # -- in -------------------------------------------------------------------------------------------

    def take(self, record: Record) -> None:
        """Run ``record``, now or when its key is free."""
        record.out = record.emitted = []
        record.pending = 0
        if self._enter(record):
            record.pending = 1
            self._run(record)
            self.let_go(record)
            self.run_ready()

    def hold(self, record: Record) -> None:
        """Keep ``record``, which is running, from ending before one more thing that it waits for is done."""
        if not self.in_flight:
            self._enter(record)
            record.pending = 1  # its own code, which is running
            record.out = record.emitted = []  # rows emitted so far have left
        record.pending += 1

    def _enter(self, record: Record) -> bool:
        """True if the record may run now, False if its key is in use."""
        record.returned = record.coroutine = record.following = None
        self._unreleased.append(record)
        self.in_flight += 1
        tails, key = self._tails, record.encoded_key
        before = tails.get(key)
        tails[key] = record
        if before is None:
            return True
        before.following = record
        self.blocked += 1
        return False

    def run_ready(self) -> bool:
        """Start records until none is ready; whether there was one. A loop, so that a hot key never nests calls."""
        ready = self._ready
        if not ready:
            return False
        while ready:
            record = ready.popleft()
            record.pending = 1
            self._run(record)
            self.let_go(record)
        return True

    # -- out ------------------------------------------------------------------------------------------

    def let_go(self, record: Record) -> None:
        """One thing that the record has waited for is done; after the last one it ends."""
        record.pending -= 1
        if record.pending == 0:
            self._end(record)

    def _end(self, record: Record) -> None:
        if self._failures.unhandled:
            self._failures.raise_for(record)
        returned = record.returned
        # Only the record's own callbacks could complete it, and none will run any more.
        if returned is not None and returned._state == PENDING:
            raise self._failures.never(record, "returned")
        if record.error is not None:
            assert isinstance(record, GuardedRecord)
            record.out = [self._failures.failed_row(record)]
        self.in_flight -= 1
        record.pending = -1
        following = record.following
        if following is None:
            del self._tails[record.encoded_key]
        else:
            record.following = None
            self.blocked -= 1
            self._ready.append(following)
        # The rows of all records that have ended leave, up to the first that has not.
        unreleased, outputs = self._unreleased, self._outputs
        while unreleased and unreleased[0].pending < 0:
            ended = unreleased.popleft()
            if ended.out:
                _append_rows(ended.out, outputs)
            ended.out = None

    # -- the end, and what is seen from outside ---------------------------------------------------------

    def raise_stuck(self) -> NoReturn:
        """Nothing is outstanding, so what the records or bundle-grain code wait for will never arrive."""
        failures = self._failures
        failures.raise_all()
        waiting = next(self._waiting(), None)
        if waiting is None:
            raise failures.never(None, "returned")
        error = failures.misused(
            waiting,
            f"{self.in_flight} records can never end; the first waits for a future that nothing completes. Return or "
            "await only futures that come from state requests and from ctx.call",
        )
        if waiting.coroutine is not None:
            throw_into(waiting.coroutine, error)
        raise error

    def close(self) -> None:
        """Close the coroutines of records in flight, so that their ``finally`` blocks run now and here."""
        for record in self._waiting():
            if record.coroutine is not None:
                # An error in a ``finally`` block would now only hide why the micro-batch fails.
                with suppress(Exception):
                    record.coroutine.close()

    def _waiting(self) -> Iterator[Record]:
        """Records that have begun and not ended, in arrival order."""
        return (record for record in self._unreleased if record.pending > 0)

    def note_peaks(self) -> None:
        """Record how many records there are; called when that is likely to be many."""
        self.in_flight_peak = max(self.in_flight_peak, self.in_flight)
        self.blocked_peak = max(self.blocked_peak, self.blocked)


def _append_rows(rows: list[Any], outputs: list[AnyRow]) -> None:
    """Append the rows of a record to ``outputs`` in order: a list among them holds the rows that a chain has emitted at
    that point. A loop, since chains begin in chains."""
    if list not in map(type, rows):
        outputs.extend(rows)
        return
    waiting = [iter(rows)]
    while waiting:
        for row in waiting[-1]:
            if type(row) is not list:
                outputs.append(row)
            elif row:
                waiting.append(iter(row))
                break
        else:
            waiting.pop()
