"""Merges due rows and due timers in the order of their times.

Owns: ``EventTimeMerge``.
Invariant: per key, everything runs in the order of its times, rows before timers of the same time, including timers
that were registered meanwhile: nothing starts before everything earlier of its key has ended.
Must not import Spark or storage.

Rows and timers are taken one slice at a time, in order, and run in waves: each wave has the next record of every
key that has one left, so that in async mode the reads of a wave's keys overlap. Between waves the merge looks for
timers that were registered for an earlier time.

Source: the timer service of Flink's temporal sort, whose watermark advances row by row.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final, NamedTuple

from asyncstate.execution import ExecutionController, Record
from asyncstate.state import DueTimer, TimersBetweenRows, turn_of

SLICE: Final = 2_000
"""Maximum number of rows and timers in memory."""


class _Turn(NamedTuple):
    """One record to run: ``order`` is the time with rows before timers, then the order among timers."""

    order: tuple[int, bytes]
    record: Record


class EventTimeMerge:
    """The rows and timers of one partition that the watermark of this micro-batch has passed."""

    def __init__(
        self,
        controller: ExecutionController,
        rows: Iterator[Record],
        timers: TimersBetweenRows,
        record_of: Callable[[DueTimer], Record],
        submit: Callable[[Record], None],
    ) -> None:
        self._controller = controller
        self._timers = timers
        self._record_of = record_of
        self._submit = submit
        self._rows = rows
        self._row = next(rows, None)

    def run(self) -> Iterator[int]:
        """Run everything; yields the number of records after each wave, when all of them have ended."""
        while waiting := self._slice():
            while waiting:
                wave = [turns.pop(0).record for turns in waiting.values()]
                waiting = {key: turns for key, turns in waiting.items() if turns}
                for record in wave:
                    self._submit(record)
                self._controller.drain()
                self._put_in_order(waiting)
                yield len(wave)
            self._timers.settle()

    def _slice(self) -> dict[tuple[bytes, bytes], list[_Turn]]:
        """The next rows and timers by key, in order per key."""
        by_key: dict[tuple[bytes, bytes], list[_Turn]] = {}
        for turn in islice(self._merged(), SLICE):
            by_key.setdefault((turn.record.group, turn.record.encoded_key), []).append(turn)
        return by_key

    def _merged(self) -> Iterator[_Turn]:
        while True:
            timer, row = self._timers.first(), self._row
            if row is not None and (timer is None or _time_of(row) <= timer.time):
                self._row = next(self._rows, None)
                yield _Turn((_time_of(row), b""), row)
            elif timer is not None:
                yield self._turn_of(self._timers.pop())
            else:
                return

    def _put_in_order(self, waiting: dict[tuple[bytes, bytes], list[_Turn]]) -> None:
        """Insert newly registered timers before later records of their keys; other timers run in a later slice."""
        for timer in self._timers.take_registered():
            turns = waiting.get((timer.group, timer.key))
            turn = self._turn_of(timer)
            if turns is None or turn.order > turns[-1].order:
                self._timers.add(timer)
            else:
                turns.insert(bisect.bisect_right(turns, turn.order, key=lambda one: one.order), turn)

    def _turn_of(self, timer: DueTimer) -> _Turn:
        return _Turn((timer.time, turn_of(timer)), self._record_of(timer))


def _time_of(row: Record) -> int:
    assert row.timestamp is not None, "an ordered input has an event time"
    return row.timestamp
