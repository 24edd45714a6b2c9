"""Clocks: the manual one moves only when told, the machine's own keeps its units."""

from __future__ import annotations

import time

import pytest

from asyncstate.clock import Clock, ManualClock, SystemClock


def test_a_manual_clock_moves_by_the_sum_of_the_parts() -> None:
    manual = ManualClock(now_us=5)
    clock: Clock = manual
    manual.advance(7, ms=2, seconds=1)
    assert clock.now_us() == 5 + 7 + 2_000 + 1_000_000


def test_a_manual_clock_does_not_go_back() -> None:
    clock = ManualClock(now_us=5)
    with pytest.raises(ValueError, match="cannot be moved back by 3 us"):
        clock.advance(-3)
    assert clock.now_us() == 5


def test_the_system_clock_reads_microseconds_of_the_day() -> None:
    clock: Clock = SystemClock()
    before, now, after = time.time(), clock.now_us(), time.time()
    assert before - 1e-3 <= now / 1e6 <= after + 1e-3
