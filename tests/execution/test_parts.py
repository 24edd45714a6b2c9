"""The parts of the asynchronous controller, each by itself."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstate.execution import (
    BatchFrame,
    Completions,
    EpochManager,
    IOExecutor,
    KeyAccountingUnit,
    ReadPacer,
    Record,
)
from asyncstate.execution.buffer import StateRequestBuffer
from asyncstate.futures import StateFuture
from asyncstate.requests import StateRequest

_FRAME = BatchFrame(0, 0, None, [])  # type: ignore[arg-type]


def _record(key: bytes) -> Record:
    return Record(_FRAME, b"\0\0", key, (key,), lambda item, ctx: None, None)


class TestKeyAccountingUnit:
    @given(st.lists(st.tuples(st.booleans(), st.integers(0, 3)), max_size=60))
    def test_one_record_of_a_key_at_a_time_in_order(self, steps: list[tuple[bool, int]]) -> None:
        unit = KeyAccountingUnit()
        running: dict[bytes, Record] = {}
        waiting: dict[bytes, list[Record]] = {}
        for arrives, number in steps:
            key = bytes([number])
            if arrives:
                record = _record(key)
                may_run = unit.occupy(record)
                assert may_run is (key not in running)
                if may_run:
                    running[key] = record
                else:
                    waiting.setdefault(key, []).append(record)
            elif key in running:
                following = unit.release(running.pop(key))
                expected = waiting[key].pop(0) if waiting.get(key) else None
                assert following is expected
                if following is not None:
                    running[key] = following
            assert unit.blocked == sum(map(len, waiting.values()))
            assert len(unit) == len(running)


class TestEpochManager:
    def test_an_action_waits_for_its_records(self) -> None:
        manager, done = EpochManager(), []
        epoch = manager.enter()
        manager.close(lambda: done.append("first"))
        assert done == []
        manager.leave(epoch)
        assert done == ["first"]

    def test_a_later_epoch_waits_for_the_one_before(self) -> None:
        manager, done = EpochManager(), []
        first = manager.enter()
        manager.close(lambda: done.append("first"))
        second = manager.enter()
        manager.close(lambda: done.append("second"))
        manager.leave(second)
        assert done == []
        assert manager.waiting == 2
        manager.leave(first)
        assert done == ["first", "second"]
        assert manager.waiting == 0

    def test_an_empty_epoch_closes_at_once(self) -> None:
        manager, done = EpochManager(), []
        manager.close(lambda: done.append("empty"))
        assert done == ["empty"]

    def test_actions_may_start_and_end_records(self) -> None:
        manager, done = EpochManager(), []

        def action() -> None:
            manager.leave(manager.enter())
            done.append("action")

        epoch = manager.enter()
        manager.close(action)
        manager.close(lambda: done.append("next"))
        manager.leave(epoch)
        assert done == ["action", "next"]


class TestIOExecutor:
    def test_calls_run_side_by_side_and_come_back_with_their_ticket(self) -> None:
        completions = Completions()
        executor = IOExecutor(2, completions)
        both = threading.Barrier(2, timeout=30)
        try:
            for ticket in (1, 2):
                executor.submit(both.wait, ticket)
            done = [completions.next(30) for _ in range(2)]
        finally:
            executor.close()
        assert sorted(completion.ticket for completion in done if completion) == [1, 2]
        assert all(completion and completion.error is None for completion in done)
        assert len(completions) == 0

    def test_an_error_is_carried_not_raised(self) -> None:
        completions = Completions()
        executor = IOExecutor(1, completions)
        try:
            executor.submit(lambda: 1 // 0, "ticket")
            completion = completions.next(30)
        finally:
            executor.close()
        assert completion is not None
        assert isinstance(completion.error, ZeroDivisionError)

    def test_no_thread_starts_before_the_first_call(self) -> None:
        before = threading.active_count()
        completions = Completions()
        executor = IOExecutor(4, completions)
        assert completions.next(0) is None
        executor.close()
        assert threading.active_count() == before


class TestReadPacer:
    def test_it_tries_a_few_keys_before_it_knows(self) -> None:
        assert ReadPacer().chunk_keys(1000, 32) <= 32
        assert not ReadPacer().waits_for_device

    def test_memory_hits_stay_in_one_list_get(self) -> None:
        pacer = ReadPacer()
        pacer.measured(1000, 0.002)
        assert not pacer.waits_for_device
        assert pacer.chunk_keys(1000, 32) == 1000

    @pytest.mark.parametrize("us", [100, 1_000, 5_000])
    def test_device_reads_are_spread_over_the_threads(self, us: int) -> None:
        pacer = ReadPacer()
        pacer.measured(100, 100 * us / 1e6)
        assert pacer.waits_for_device
        assert pacer.chunk_keys(1000, 32) == -(-1000 // 32)

    def test_one_slow_read_is_no_slow_device(self) -> None:
        pacer = ReadPacer()
        pacer.measured_one(0.000_003)
        pacer.measured_one(0.050)
        assert not pacer.waits_for_device

    def test_slow_single_reads_are_noticed_soon(self) -> None:
        pacer = ReadPacer()
        reads = 0
        while not pacer.waits_for_device:
            pacer.measured_one(0.001)
            reads += 1
        assert reads <= 10

    def test_it_notices_when_the_device_is_no_longer_waited_for(self) -> None:
        pacer = ReadPacer()
        pacer.measured(100, 1.0)
        handed_over = 0
        while pacer.waits_for_device:
            if keys := pacer.probe_keys():
                pacer.measured(keys, keys * 2e-6)
            handed_over += 1
        assert handed_over <= 16

    @given(st.lists(st.integers(), max_size=50), st.integers(1, 60))
    def test_cut_keeps_everything_in_order(self, items: list[int], size: int) -> None:
        runs = ReadPacer.cut(items, size)
        assert [item for run in runs for item in run] == items
        assert all(1 <= len(run) <= size for run in runs)


def test_the_buffer_gives_sorted_requests_once() -> None:
    buffer = StateRequestBuffer(capacity=3, timeout_ms=0)
    futures: list[StateFuture[Any]] = [StateFuture() for _ in range(3)]
    for key, future in zip([b"c", b"a", b"b"], futures, strict=True):
        assert not buffer.full
        buffer.add(StateRequest(key, lambda value: value, future, None))
    assert buffer.full
    assert buffer.overdue
    assert [request.key for request in buffer.take()] == [b"a", b"b", b"c"]
    assert buffer.requests == []
    assert not buffer.overdue
