"""The reads that wait to be sent off, and how they are cut into list gets.

Owns: ``StateRequestBuffer`` and ``ReadPacer``.
Invariant: a chunk holds its keys sorted, so that one list get walks each block once.

Source: Flink's ``StateRequestBuffer``; the pacing is ours.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from operator import attrgetter
from typing import Final, TypeVar

from asyncstate.requests import StateRequest

T = TypeVar("T")

_BY_KEY = attrgetter("key")
_FIRST_KEYS: Final = 32
_PROBE_KEYS: Final = 8
_PROBE_EVERY: Final = 8
_SLOW_US: Final = (
    20.0  # a hot sorted list get costs 1-5 us a key, a read that waits for a device 100 us and more
)
_CHUNK_KEYS_MIN: Final = 4  # handing a chunk to a thread costs about as much as a few reads of a fast device
_WEIGHT: Final = 0.3  # of the newest list get
_EXPECTED_US: Final = 5.0  # of a single get, before any was measured
_SINGLE_WEIGHT: Final = 0.1  # of the newest single get
_LIMIT_US: Final = 5 * _SLOW_US  # one measurement counts for at most this: it may be the scheduler's doing


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


class ReadPacer:
    """Decides how the next reads run, by how slow the last ones were.

    Memory hits run on the calling thread: handing them over costs more than it gains, and Spark already runs
    one worker a core. At record grain they are not even buffered: a hot single get costs about 2 us more than
    its share of a list get, and a record that waits costs more than that. Reads that wait for a device are cut
    into many small list gets that wait side by side.
    """

    def __init__(self) -> None:
        self.us_per_key: float | None = None
        self._handed_over = 0

    def measured(self, keys: int, seconds: float) -> None:
        """Take in that a list get of ``keys`` keys took ``seconds`` on the calling thread.

        Only there: what another thread measures has its wait for the interpreter in it, which can be a hundred
        times the read.
        """
        if keys == 0:
            return
        us = min(seconds * 1e6 / keys, _LIMIT_US)
        known = self.us_per_key
        if known is None or (known > _SLOW_US > us):
            # A few quick reads end the detour over threads at once: if they were luck, as few slow ones resume it.
            self.us_per_key = us
        else:
            self.us_per_key = known + _WEIGHT * (us - known)

    def measured_one(self, seconds: float) -> None:
        """Take in a single get. One slow read can be the scheduler's doing, so it counts only up to a limit."""
        us = min(seconds * 1e6, _LIMIT_US)
        known = _EXPECTED_US if self.us_per_key is None else self.us_per_key
        self.us_per_key = known + _SINGLE_WEIGHT * (us - known)

    @property
    def waits_for_device(self) -> bool:
        """True when reads gain from running side by side."""
        return self.us_per_key is not None and self.us_per_key > _SLOW_US

    def chunk_keys(self, keys: int, parallelism: int) -> int:
        """Keys a list get for ``keys`` keys on ``parallelism`` threads."""
        if self.us_per_key is None:
            return min(keys, _FIRST_KEYS)
        if not self.waits_for_device:
            return keys
        return max(_CHUNK_KEYS_MIN, -(-keys // parallelism))

    def probe_keys(self) -> int:
        """Keys to read on the calling thread for a measurement, while reads run on others: mostly none."""
        self._handed_over += 1
        return _PROBE_KEYS if self._handed_over % _PROBE_EVERY == 0 else 0

    @staticmethod
    def cut(items: Sequence[T], size: int) -> list[Sequence[T]]:
        """``items`` in runs of ``size``."""
        return [items[start : start + size] for start in range(0, len(items), size)]
