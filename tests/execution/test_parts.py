"""The parts of the asynchronous controller, each by itself."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from asyncstate.execution import (
    BatchFrame,
    KeyAccountingUnit,
    Record,
)
from asyncstate.execution.buffer import StateRequestBuffer
from asyncstate.futures import StateFuture
from asyncstate.requests import StateRequest

_FRAME = BatchFrame(0, 0, None, pa.schema([]))  # type: ignore[arg-type]


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
