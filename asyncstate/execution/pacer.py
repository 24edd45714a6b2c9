"""Policy of execution: how many records are in flight, how many keys a list get has, and on which thread it runs.

Owns: ``AsyncLimits``, what the configuration bounds; ``Pacer``, which decides from measured reads.
Invariant: decisions follow from measured reads, never from configuration alone; while reads run on threads, some are
still made on the calling thread, so that a device that has become quick is noticed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

_FIRST_KEYS: Final = 32
_SLOW_US: Final = (
    20.0  # a hot sorted list get costs 1-5 us per key, a read that waits for a device 100 us and more
)
_WEIGHT: Final = 0.3  # of the newest list get
_EXPECTED_US: Final = 5.0  # of a single get, before any was measured
_SINGLE_WEIGHT: Final = 0.1  # of the newest single get
_LIMIT_US: Final = 5 * _SLOW_US  # one measurement counts for at most this: the scheduler may have caused it

_THREADS_MIN: Final = 8
_THREADS_FIRST: Final = 32  # until the latency is known
_US_A_READ: Final = 16.0  # between two answers of the device; in all, an operator takes longer over a record
_LATENCY_GETS: Final = 32  # list gets of which the quickest gives the latency
_CHUNK_KEYS_MIN: Final = (
    16  # a list get on a thread costs two switches of the interpreter: as much as some reads
)
_CHUNK_KEYS_MAX: Final = 64  # longer ones leave threads idle at the end
_PROBE_KEYS: Final = 4
_PROBE_SHARE: Final = 0.01  # share of the time spent on probes


AGE_CHECK_RECORDS: Final = 64
"""Accepted records between two looks at the age of buffered reads and at answers."""
UNRELEASED_FACTOR: Final = 4
"""Ended records that may be queued after one that has not, in multiples of the limit of records in flight."""


@dataclass(frozen=True)
class AsyncLimits:
    """The bounds of asynchronous execution; see the configuration keys of the same names.

    ``batch_hot_reads``: reads are buffered even if they are quick; for tests.
    """

    in_flight: int = 6000
    buffer_size: int = 1000
    buffer_timeout_ms: int = 1000
    io_parallelism: int = 32
    watchdog_timeout_ms: int = 60_000
    batch_hot_reads: bool = False


class Pacer:
    """Decides how the next reads run, by how slow the last ones were.

    Memory hits run on the calling thread: handing them to another costs more than it gains, and Spark already runs one
    worker per core. At record grain they are not even buffered: a hot single get costs about 2 us more than its share
    of a list get, and a record that waits costs more than that. Reads that wait for a device are split into list gets
    that wait in parallel, on as many threads as the device's latency requires.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.us_per_key: float | None = None
        """Of a read, as far as is known; a few times ``_SLOW_US`` represents anything slower."""
        self.latency_us: float | None = None
        """Of a read on the threads, None before there were enough of them."""
        self._clock = clock
        self._answers_us: list[float] = []
        self._next_probe: float | None = None

    # -- measurements --------------------------------------------------------------------------------

    def measured(self, keys: int, seconds: float) -> None:
        """Record that a list get of ``keys`` keys took ``seconds`` on the calling thread.

        Only there: measurements of another thread include its wait for the interpreter, which can be a hundred times
        the read.
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
        """Record a single get. The scheduler may cause one slow read, so it counts only up to a limit."""
        us = min(seconds * 1e6, _LIMIT_US)
        known = _EXPECTED_US if self.us_per_key is None else self.us_per_key
        self.us_per_key = known + _SINGLE_WEIGHT * (us - known)

    def answered(self, keys: int, seconds: float) -> None:
        """Record that a list get took ``seconds`` on one of the threads.

        The wait for the interpreter only ever adds. So the quickest of some list gets gives the device's latency, and
        if half of them were quick, reads do not wait for a device.
        """
        answers_us = self._answers_us
        answers_us.append(seconds * 1e6 / keys)
        if len(answers_us) < _LATENCY_GETS:
            return
        answers_us.sort()
        self.latency_us = answers_us[0]
        if answers_us[_LATENCY_GETS // 2] < _SLOW_US:
            self.us_per_key = answers_us[_LATENCY_GETS // 2]
        answers_us.clear()

    # -- decisions -----------------------------------------------------------------------------------

    @property
    def waits_for_device(self) -> bool:
        """True when reads gain from running in parallel."""
        return self.us_per_key is not None and self.us_per_key > _SLOW_US

    def threads(self, limit: int) -> int:
        """Threads to read on, at most ``limit``: by Little's law, as many as answer one read every few microseconds."""
        if self.latency_us is None:
            return min(limit, _THREADS_FIRST)
        return min(limit, max(_THREADS_MIN, round(self.latency_us / _US_A_READ)))

    def chunk_keys(self, keys: int, threads: int) -> int:
        """Keys per list get for ``keys`` keys on ``threads`` threads."""
        if self.us_per_key is None:
            return min(keys, _FIRST_KEYS)
        if not self.waits_for_device:
            return keys
        return min(max(_CHUNK_KEYS_MIN, -(-keys // threads)), _CHUNK_KEYS_MAX)

    def chunk_positions(self, positions: int, loaded_max: int, threads: int) -> int:
        """Positions per list get that loads their blocks: as many as for keys, but all ``threads`` should share those
        that can be loaded at once."""
        return max(1, min(loaded_max // threads, self.chunk_keys(positions, threads)))

    def probe_keys(self) -> int:
        """Keys to read on the calling thread for a measurement, while reads run on others: usually none."""
        now, due = self._clock(), self._next_probe
        if due is not None and now < due:
            return 0
        latency_us = self.latency_us if self.latency_us is not None else _LIMIT_US
        self._next_probe = now + _PROBE_KEYS * latency_us / 1e6 / _PROBE_SHARE
        return _PROBE_KEYS if due is not None else 0  # the device has only just been found slow
