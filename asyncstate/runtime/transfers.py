"""How long a task waits for rows to come and for its output to be taken.

Owns: ``Transfers``.
Invariant: a clock is read twice a batch, never for a row.
Must not import Spark.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from asyncstate.figures import Elapsed
from asyncstate.runtime.spec import InputBatch, OutBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferStatistics:
    """Of a task's run: ``input_seconds`` it waited for rows, ``output_seconds`` until rows put out were taken."""

    input_seconds: Elapsed
    output_seconds: Elapsed


class Transfers:
    """The time of one task outside the operator and the store: Spark's exchange and the Arrow streams."""

    def __init__(self) -> None:
        self._input_seconds = self._output_seconds = 0.0

    def awaited(self, batches: Iterator[InputBatch]) -> Iterator[InputBatch]:
        """The same batches, timed while they are awaited."""
        while True:
            started = time.perf_counter()
            batch = next(batches, None)
            self._input_seconds += time.perf_counter() - started
            if batch is None:
                return
            yield batch

    def taken(self, out: OutBatch) -> Iterator[OutBatch]:
        """The one batch, timed until the next one is asked for."""
        started = time.perf_counter()
        yield out
        self._output_seconds += time.perf_counter() - started

    def statistics(self) -> TransferStatistics:
        """So far."""
        return TransferStatistics(input_seconds=self._input_seconds, output_seconds=self._output_seconds)
