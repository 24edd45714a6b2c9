"""How long a task waits for rows to come and for its output to be taken.

Owns: ``Transfers``.
Invariant: a clock is read twice a batch, never for a row.
Must not import Spark.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from asyncstate.runtime.spec import InputBatch, OutBatch


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

    def statistics(self) -> dict[str, float]:
        """Seconds by the name of the figure."""
        return {"input_seconds": self._input_seconds, "output_seconds": self._output_seconds}
