"""What a task says of the time it waited for rows and for its output to be taken."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from asyncstate.runtime import statistics
from asyncstate.runtime.statistics import Transfers, TransferStatistics
from asyncstate.runtime.task_spec import InputBatch

_ROWS = pa.RecordBatch.from_pydict({"k": [1]})


class Clock:
    """Stands still unless told to go on."""

    now = 100.0

    def perf_counter(self) -> float:
        return self.now


def test_waiting_for_rows_and_for_their_taking_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, timed = Clock(), Transfers()
    monkeypatch.setattr(statistics, "time", clock)

    def source() -> Iterator[InputBatch]:
        for _ in range(2):
            clock.now += 3.0
            yield InputBatch(_ROWS)
        clock.now += 0.5  # the end is waited for, too

    for given in timed.awaited(source()):
        clock.now += 20.0  # the operator's work
        for out in timed.taken(given.batch):
            assert out is _ROWS
            clock.now += 7.0  # Spark takes it
    assert timed.statistics() == TransferStatistics(input_seconds=6.5, output_seconds=14.0)
