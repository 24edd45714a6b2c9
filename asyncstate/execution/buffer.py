"""The reads that wait to be sent off.

Owns: ``StateRequestBuffer``.
Invariant: requests leave it sorted by store key, so that a list get of neighbours walks each block once.

Source: Flink's ``StateRequestBuffer``.
"""

from __future__ import annotations

import time
from operator import attrgetter
from typing import Final

from asyncstate.requests import StateRequest

_BY_KEY: Final = attrgetter("key")


class StateRequestBuffer:
    """Requests in order of arrival, at most ``capacity`` before the controller has to send them off."""

    __slots__ = ("_timeout", "capacity", "oldest", "requests")

    def __init__(self, capacity: int, timeout_ms: int) -> None:
        self.capacity = capacity
        self._timeout = timeout_ms / 1000
        self.requests: list[StateRequest] = []
        self.oldest = 0.0

    def add(self, request: StateRequest) -> None:
        """Append; the buffer's age starts with its first request."""
        if not self.requests:
            self.oldest = time.monotonic()
        self.requests.append(request)

    @property
    def full(self) -> bool:
        """True when the requests should be sent off without waiting for more."""
        return len(self.requests) >= self.capacity

    @property
    def overdue(self) -> bool:
        """True when the first request has waited longer than the timeout."""
        return bool(self.requests) and time.monotonic() - self.oldest > self._timeout

    def take(self) -> list[StateRequest]:
        """All requests, sorted by store key."""
        requests, self.requests = self.requests, []
        requests.sort(key=_BY_KEY)
        return requests
