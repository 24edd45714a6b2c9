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
import heapq
from collections.abc import Callable, Iterator
from itertools import chain, count, islice
from typing import Final, NamedTuple

from asyncstate.execution import ExecutionController, Record
from asyncstate.state import DueTimer, turn_of

SLICE: Final = 2_000
"""Maximum number of rows and timers of a slice in memory."""
HELD_MAX: Final = 100_000
"""Maximum number of registered timers in memory that wait for a later slice."""


class _Turn(NamedTuple):
    """A record to run, or the timer that it is for; ``order``: the time with rows before timers, then the order among
    timers."""

    order: tuple[int, bytes]
    item: Record | DueTimer


_Turns = Iterator[_Turn]
_Slice = dict[tuple[bytes, bytes], list[_Turn]]


class EventTimeMerge:
    """The rows and timers of one partition that the watermark of this micro-batch has passed.

    ``due`` begins a round of timers that are due, and appends those that are registered for it meanwhile to a list.
    """

    def __init__(
        self,
        controller: ExecutionController,
        rows: Iterator[Record],
        due: Callable[[list[DueTimer]], Iterator[list[DueTimer]]],
        record_of: Callable[[DueTimer], Record],
        submit: Callable[[Record], None],
    ) -> None:
        self._controller = controller
        self._due = due
        self._record_of = record_of
        self._submit = submit
        self._registered: list[DueTimer] = []
        self._rows: _Turns = (_Turn((_time_of(row), b""), row) for row in rows)
        # The next turn of each source: the rows, the stored timers, and registered timers, each a source of its own.
        self._next: list[tuple[tuple[int, bytes], int, _Turn, _Turns]] = []
        self._number = count()  # no two sources are equal
        self._add(self._rows)
        self._add(self._timers())

    def run(self) -> Iterator[int]:
        """Run everything; yields the number of records after each wave, when all of them have ended."""
        while waiting := self._slice():
            while waiting:
                wave = [turns.pop(0).item for turns in waiting.values()]
                waiting = {key: turns for key, turns in waiting.items() if turns}
                for item in wave:
                    self._submit(self._record_of(item) if isinstance(item, DueTimer) else item)
                self._controller.drain()
                self._put_in_order(waiting)
                yield len(wave)
            if len(self._next) > HELD_MAX:  # all others have been claimed: read them from the store again
                self._next = [source for source in self._next if source[-1] is self._rows]
                self._add(self._timers())

    def _slice(self) -> _Slice:
        """The next rows and timers by key, in order per key."""
        by_key: _Slice = {}
        for turn in islice(self._merged(), SLICE):
            by_key.setdefault(_key_of(turn.item), []).append(turn)
        return by_key

    def _merged(self) -> _Turns:
        while self._next:
            _, _, turn, source = heapq.heappop(self._next)
            self._add(source)
            yield turn

    def _add(self, source: _Turns) -> None:
        turn = next(source, None)
        if turn is not None:
            heapq.heappush(self._next, (turn.order, next(self._number), turn, source))

    def _timers(self) -> _Turns:
        return map(_turn_of, chain.from_iterable(self._due(self._registered)))

    def _put_in_order(self, waiting: _Slice) -> None:
        """Insert newly registered timers before later records of their keys; other timers run in a later slice."""
        for timer in self._registered:
            turn = _turn_of(timer)
            turns = waiting.get(_key_of(timer))
            if turns is None or turn.order > turns[-1].order:
                self._add(iter([turn]))
            else:
                turns.insert(bisect.bisect_right(turns, turn.order, key=lambda one: one.order), turn)
        self._registered.clear()


def _key_of(item: Record | DueTimer) -> tuple[bytes, bytes]:
    return item.group, item.key if isinstance(item, DueTimer) else item.encoded_key


def _turn_of(timer: DueTimer) -> _Turn:
    return _Turn((timer.time, turn_of(timer)), timer)


def _time_of(row: Record) -> int:
    assert row.timestamp is not None, "an ordered input has an event time"
    return row.timestamp
