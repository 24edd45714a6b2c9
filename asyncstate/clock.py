"""The time of day, injected: processing time is that of a Clock. Durations are measured without one.

Owns: the Clock contract, the machine's clock and a clock that a test advances. Imports nothing of the project.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """The time of day, for processing-time timers and TTL."""

    def now_us(self) -> int:
        """Time of day, microseconds since the epoch (UTC). May jump when the machine's clock is set."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now_us(self) -> int:
        return time.time_ns() // 1_000


class ManualClock:
    """A clock that does not move until it is advanced.

    >>> clock = ManualClock(now_us=1_000_000)
    >>> clock.advance(ms=250)
    >>> clock.now_us()
    1250000
    """

    def __init__(self, now_us: int = 0) -> None:
        self._now_us = now_us

    def now_us(self) -> int:
        return self._now_us

    def advance(self, us: int = 0, *, ms: int = 0, seconds: int = 0) -> None:
        """Advance by the sum of the parts. Raises ValueError on a negative sum."""
        step_us = us + ms * 1_000 + seconds * 1_000_000
        if step_us < 0:
            raise ValueError(f"a clock cannot be moved back by {-step_us} us; make a new ManualClock instead")
        self._now_us += step_us
