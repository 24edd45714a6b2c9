"""Reads of single records: buffered, and sent together.

Owns: ``RecordReads``, the requests that wait to be sent, and ``RecordRead``, some that were.
Invariant: requests are sent sorted by store key, so that a list get of neighbours walks each block once.

Source: Flink's ``StateRequestBuffer``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Final

from asyncstate.execution.reads import ReadRequest, Reads, Values
from asyncstate.state_backend import StateRequest

Answer = Callable[[Sequence[StateRequest], Values], None]
_BY_KEY: Final = attrgetter("key")


class RecordRead(ReadRequest):
    """Requests that are read together."""

    __slots__ = ("_answer", "_requests")

    def __init__(self, requests: list[StateRequest], answer: Answer) -> None:
        super().__init__([request.key for request in requests])
        self._requests = requests
        self._answer = answer

    def arrived(self, start: int, values: Values) -> None:
        """Take the values of the keys from position ``start`` on, which then no longer count as missing."""
        self._answer(self._requests[start : start + len(values)], values)

    def about(self, start: int) -> tuple[bytes, Any]:
        """The error context of the keys from ``start`` on: a store key, and the requesting record (or None)."""
        return self.keys[start], self._requests[start].record


class RecordReads:
    """Requests in order of arrival, at most ``capacity`` before the controller has to send them.

    ``answer`` is called with those that were read, in key order, and their values.
    """

    __slots__ = ("_answer", "_capacity", "_oldest", "_reads", "_timeout", "requests")

    def __init__(self, reads: Reads, answer: Answer, capacity: int, timeout_ms: int) -> None:
        self.requests: list[StateRequest] = []
        self._reads = reads
        self._answer = answer
        self._capacity = capacity
        self._timeout = timeout_ms / 1000
        self._oldest = 0.0

    def add(self, request: StateRequest) -> None:
        """Append a request; the age of all is that of the first."""
        if not self.requests:
            self._oldest = time.monotonic()
        self.requests.append(request)

    @property
    def full(self) -> bool:
        """True when the requests should be sent off without waiting for more."""
        return len(self.requests) >= self._capacity

    @property
    def overdue(self) -> bool:
        """True when the first request has waited longer than the timeout."""
        return bool(self.requests) and time.monotonic() - self._oldest > self._timeout

    def send(self) -> None:
        """Read all requests, by store key."""
        requests, self.requests = self.requests, []
        requests.sort(key=_BY_KEY)
        self._reads.read(RecordRead(requests, self._answer))
