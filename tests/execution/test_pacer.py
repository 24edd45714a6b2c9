"""The pacer: when reads go to threads, on how many, in which portions, and how it comes back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstate.execution import Pacer


class Clock:
    """Seconds that pass only when told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def _slow(clock: Clock | None = None) -> Pacer:
    pacer = Pacer(clock or Clock())
    pacer.measured(100, 1.0)
    return pacer


def _answered(pacer: Pacer, latency_us: float, gets: int = 100) -> Pacer:
    for _ in range(gets):
        pacer.answered(16, 16 * latency_us / 1e6)
    return pacer


class TestWhetherReadsWait:
    def test_it_does_not_know_at_first(self) -> None:
        assert not Pacer().waits_for_device

    def test_memory_hits_do_not(self) -> None:
        pacer = Pacer()
        pacer.measured(1000, 0.002)
        assert not pacer.waits_for_device

    @pytest.mark.parametrize("us", [100, 1_000, 5_000])
    def test_device_reads_do(self, us: int) -> None:
        pacer = Pacer()
        pacer.measured(100, 100 * us / 1e6)
        assert pacer.waits_for_device

    def test_one_slow_read_is_no_slow_device(self) -> None:
        pacer = Pacer()
        pacer.measured_one(0.000_003)
        pacer.measured_one(0.050)
        assert not pacer.waits_for_device

    def test_slow_single_reads_are_noticed_soon(self) -> None:
        pacer = Pacer()
        reads = 0
        while not pacer.waits_for_device:
            pacer.measured_one(0.001)
            reads += 1
        assert reads <= 10

    def test_one_probe_that_is_quick_ends_the_detour_over_threads(self) -> None:
        clock = Clock()
        pacer = _answered(_slow(clock), 1_000)
        assert pacer.probe_keys() == 0
        while not (keys := pacer.probe_keys()):
            clock.now += 0.1
        pacer.measured(keys, keys * 2e-6)
        assert not pacer.waits_for_device
        assert clock.now < 1

    def test_quick_answers_of_the_threads_end_it_too(self) -> None:
        pacer = _slow()
        for number in range(64):
            pacer.answered(16, 16 * 5e-6 + (0.005 if number % 3 == 0 else 0))
        assert not pacer.waits_for_device

    def test_a_few_quick_answers_of_the_threads_do_not(self) -> None:
        pacer = _slow()
        for number in range(640):
            pacer.answered(16, 16 * (5e-6 if number % 3 == 0 else 1e-3))
        assert pacer.waits_for_device


class TestThreads:
    @pytest.mark.parametrize("limit", [1, 20, 256])
    @pytest.mark.parametrize("latency_us", [1, 30, 200, 1_000, 5_000, 100_000])
    def test_enough_to_answer_a_read_every_twenty_microseconds_within_the_limit(
        self, latency_us: int, limit: int
    ) -> None:
        threads = _answered(_slow(), latency_us).threads(limit)
        assert 1 <= threads <= limit
        assert threads == limit or latency_us / threads <= 20

    def test_the_wait_for_the_interpreter_does_not_count_as_latency(self) -> None:
        pacer = _slow()
        for number in range(320):
            pacer.answered(16, 16 * 200e-6 + (0.005 if number % 10 else 0))
        assert pacer.latency_us == pytest.approx(200)

    def test_a_device_that_becomes_quicker_or_slower_is_followed(self) -> None:
        pacer = _slow()
        threads = [_answered(pacer, latency_us).threads(256) for latency_us in (200, 1_600, 200)]
        assert threads[0] == threads[2] < threads[1]


class TestPortions:
    def test_it_tries_a_few_keys_before_it_knows(self) -> None:
        assert Pacer().chunk_keys(1000, 32) <= 32

    def test_memory_hits_stay_in_one_list_get(self) -> None:
        pacer = Pacer()
        pacer.measured(1000, 0.002)
        assert pacer.chunk_keys(1000, 32) == 1000

    @given(keys=st.integers(1, 100_000), threads=st.integers(1, 256))
    def test_device_reads_are_spread_over_the_threads(self, keys: int, threads: int) -> None:
        size = _slow().chunk_keys(keys, threads)
        assert 16 <= size <= 64  # fewer are not worth a turn of a thread, more leave threads idle at the end
        assert size == 16 or (size - 1) * threads < keys
        assert size == 64 or size * threads >= keys


class TestProbes:
    @pytest.mark.parametrize("latency_us", [30, 1_000, 5_000])
    def test_they_take_a_hundredth_of_the_time(self, latency_us: int) -> None:
        clock = Clock()
        pacer = _answered(Pacer(clock), latency_us)
        probing = 0.0
        while clock.now < 100:
            clock.now += 0.001
            took = pacer.probe_keys() * latency_us / 1e6
            clock.now += took
            probing += took
        assert 0.001 < probing / clock.now < 0.011
