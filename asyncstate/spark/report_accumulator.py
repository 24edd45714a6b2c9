"""Reports that come by an accumulator of Spark's, without a query that looks for them.

Owns: ``ReportAccumulator``.
Invariant: what it has found are the reports of the attempts that have kept a stage's rows, or nothing: it says so only
where each task has reported once. The task's last row has its report, too, for where it does not.
Must not import storage.

An accumulator tells of all attempts at a task that Spark has noticed to succeed, and not whose rows it has kept. With
one attempt a task there is no choice, and the rows kept are checked against its id when they are read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from pyspark.accumulators import AccumulatorParam, _accumulatorRegistry

if TYPE_CHECKING:
    from pyspark import SparkContext


class ReportAccumulator:
    """Around the action of a stage of ``tasks`` tasks, whose reports are added to ``reports``."""

    def __init__(self, context: SparkContext, tasks: int) -> None:
        self.reports = context.accumulator([], _Listed())
        self._tasks = tasks

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        _accumulatorRegistry.pop(self.reports.aid, None)  # pyspark keeps them as long as the process lives

    def found(self) -> list[bytes] | None:
        """The reports; None if there may be others."""
        return list(self.reports.value) if len(self.reports.value) == self._tasks else None


class _Listed(AccumulatorParam[list[bytes]]):
    """One after the other."""

    def zero(self, value: list[bytes]) -> list[bytes]:
        """See ``AccumulatorParam``."""
        return []

    def addInPlace(self, value1: list[bytes], value2: list[bytes]) -> list[bytes]:  # noqa: N802 - pyspark's name
        """See ``AccumulatorParam``."""
        return value1 + value2
