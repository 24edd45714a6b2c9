"""Reads of what memory does not know: here while the store answers quickly, else in parallel on other threads.

Owns: ``Reads``, the only path from keys to list gets, and its buffer of the reads that records wait for;
``ReadRequest``, keys that are read together; and ``ListGet``.
Invariants: every requested key is answered once, here or by the list get in which it was sent, unless a read fails,
which ends the micro-batch. Reads of records are sent sorted by store key, so that a list get of neighbors walks each
block once. Only this module reports reads to the pacer and reads its decisions.
Must not import the controller.

Source: Flink's ``StateRequestBuffer`` and FLIP-424's ``StateRequest``.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, ClassVar, Final, NamedTuple, NoReturn

from asyncstate.execution.completions import Completion
from asyncstate.execution.pacer import AsyncLimits, Pacer
from asyncstate.futures import StateFuture
from asyncstate.state_backend import Decoder
from asyncstate.storage import LIST_GET_KEYS, MemTable

Values = list[bytes | None]
StateRequest = tuple[bytes, Decoder[Any], StateFuture[Any], Any]
"""A read that a record waits for: its store key, the decoder of the answer, its future, and the record."""
_KEY: Final = itemgetter(0)


class ReadRequest(ABC):
    """Store keys (sorted) that are read together, and the handling of their values. ``missing`` have not arrived."""

    __slots__ = ("keys", "missing")

    growth: ClassVar[int] = LIST_GET_KEYS
    """By what factor each list get made here may be longer than the one before."""

    def __init__(self, keys: list[bytes]) -> None:
        self.keys = keys
        self.missing = len(keys)

    @abstractmethod
    def arrived(self, start: int, values: Values) -> None:
        """Take the values of the keys from position ``start`` on, which then no longer count as missing."""

    def enough(self, values: Values) -> bool:
        """Called after each list get here, while the store is quick: whether its ``values`` show that the keys after
        them are not worth reading."""
        return False

    def about(self, start: int) -> tuple[bytes, Any]:
        """The error context of the keys from ``start`` on: a store key, and the requesting record (or None)."""
        return self.keys[start], None


class ListGet(NamedTuple):
    """Keys to read together: those of ``wanted`` from ``start`` on. It is the ticket of its Completion.

    ``read``: how to read them, if not for their values.
    """

    keys: list[bytes]
    wanted: ReadRequest
    start: int = 0
    read: Callable[[list[bytes]], Any] | None = None


class RecordRead(ReadRequest):
    """Reads of records, made together."""

    __slots__ = ("_answer", "_requests")

    def __init__(self, requests: list[StateRequest], answer: Answer) -> None:
        super().__init__(list(map(_KEY, requests)))
        self._requests = requests
        self._answer = answer

    def arrived(self, start: int, values: Values) -> None:
        """Answer the requests whose values these are."""
        self._answer(self._requests[start : start + len(values)], values)

    def about(self, start: int) -> tuple[bytes, Any]:
        """The store key and the record of the request at ``start``."""
        return self.keys[start], self._requests[start][3]


Answer = Callable[[Sequence[StateRequest], Values], None]
"""Answer requests, in key order, with their values."""
Submit = Callable[[Sequence[ListGet], int], None]
"""Read list gets on at least so many threads; each returns as a Completion."""
Fail = Callable[[ListGet, BaseException], NoReturn]


class Reads:
    """List gets of one partition's store, run as the pacer decides.

    ``at_once`` is the pacer's decision for single gets: whether they should be made immediately. It is updated whenever
    the pacer has learned something. ``requests`` are the reads that records wait for and that are not sent yet, in
    order of arrival; ``answer`` is called with those that were read.
    """

    __slots__ = (
        "_answer",
        "_fail",
        "_limits",
        "_oldest",
        "_overlay",
        "_submit",
        "at_once",
        "outstanding",
        "pacer",
        "requests",
    )

    def __init__(
        self, overlay: MemTable, pacer: Pacer, limits: AsyncLimits, submit: Submit, answer: Answer, fail: Fail
    ) -> None:
        self.pacer = pacer
        self.outstanding = 0
        """List gets that have been sent and not returned."""
        self.requests: list[StateRequest] = []
        self._oldest = 0.0  # when the first of them arrived
        self._overlay = overlay
        self._limits = limits
        self._submit = submit
        self._answer = answer
        self._fail = fail
        self._look()

    @property
    def threads(self) -> int:
        """Threads that should read now."""
        return self.pacer.threads(self._limits.io_parallelism)

    # -- reads that records wait for --------------------------------------------------------------------

    def add(self, request: StateRequest) -> None:
        """Buffer a request; the age of all is that of the first."""
        if not self.requests:
            self._oldest = time.monotonic()
        self.requests.append(request)

    @property
    def full(self) -> bool:
        """True when the requests should be sent off without waiting for more."""
        return len(self.requests) >= self._limits.buffer_size

    @property
    def overdue(self) -> bool:
        """True when the first request has waited longer than the timeout."""
        waited_ms = (time.monotonic() - self._oldest) * 1000
        return bool(self.requests) and waited_ms > self._limits.buffer_timeout_ms

    def send_requests(self) -> None:
        """Read all buffered requests, by store key."""
        requests, self.requests = self.requests, []
        requests.sort(key=_KEY)
        self.read(RecordRead(requests, self._answer))

    # -- keys that are read together --------------------------------------------------------------------

    def read(self, wanted: ReadRequest, together: int = 1) -> None:
        """Read here while that is quick; the rest, ``wanted.missing`` keys, is sent to threads.

        Now and then a few of these are read here nevertheless, to measure. List gets that are sent may be as long as if
        there were ``together`` times as many keys.
        """
        start = self._read_while_quick(wanted)
        left = len(wanted.keys) - start
        if left and (probe := self.pacer.probe_keys()):
            start += len(self._read_here(wanted, start, probe))
            left = len(wanted.keys) - start
        if left:
            self._send_off(wanted, start, self.pacer.chunk_keys(left * together, self.threads))

    def _read_while_quick(self, wanted: ReadRequest) -> int:
        """The position in the keys at which the rest begins."""
        start, end = 0, len(wanted.keys)
        most = LIST_GET_KEYS  # some keys, not all, must show that a store has become slow
        while start < end and not self.pacer.waits_for_device:
            values = self._read_here(wanted, start, min(most, self.pacer.chunk_keys(end - start, 1)))
            start += len(values)
            if wanted.enough(values):
                end = start
                wanted.keys, wanted.missing = wanted.keys[:end], 0
            most *= wanted.growth
        return start

    def _read_here(self, wanted: ReadRequest, start: int, count: int) -> Values:
        """A list get on this thread; the pacer learns the store's speed from these gets alone."""
        keys = wanted.keys[start : start + count]
        started = time.perf_counter()
        try:
            values = self._overlay.store.get_many(keys, LIST_GET_KEYS)
        except Exception as error:
            self._fail(ListGet(keys, wanted, start), error)
        seconds = time.perf_counter() - started
        self.pacer.measured(len(keys), seconds)
        self._look()
        self._overlay.count_list_get(len(keys), seconds)
        wanted.missing -= len(keys)
        wanted.arrived(start, values)
        return values

    def _send_off(self, wanted: ReadRequest, start: int, size: int) -> None:
        keys = wanted.keys
        gets = [ListGet(keys[at : at + size], wanted, at) for at in range(start, len(keys), size)]
        for get in gets:
            self._overlay.count_list_get(len(get.keys))
        self.send(gets)

    def send(self, gets: Sequence[ListGet]) -> None:
        """Have other threads make ``gets``."""
        self.outstanding += len(gets)
        self._submit(gets, min(self.threads, self.outstanding))

    def answered(self, completion: Completion) -> None:
        """A list get has returned."""
        get: ListGet = completion.ticket
        self.outstanding -= 1
        if completion.error is not None:
            self._fail(get, completion.error)
        self.pacer.answered(len(get.keys), completion.seconds)
        self._look()
        get.wanted.missing -= len(get.keys)
        get.wanted.arrived(get.start, completion.values)

    def took(self, seconds: float) -> None:
        """Record the duration of a read of one key, made elsewhere on the calling thread."""
        self.pacer.measured_one(seconds)
        self._look()

    def _look(self) -> None:
        self.at_once = not (self._limits.batch_hot_reads or self.pacer.waits_for_device)
