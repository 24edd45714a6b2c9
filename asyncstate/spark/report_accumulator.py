"""Reports that come by a Spark accumulator, without a query that looks for them.

Owns: ``ReportAccumulator``.
Invariant: it returns the reports of the attempts that have kept a stage's rows, or nothing: it returns them only if
each task has reported once. The task's last row has its report, too, for the other case.
Must not import storage.

An accumulator reports all attempts at a task that Spark has noticed to succeed, and not whose rows it has kept. With
one attempt per task there is no choice, and the kept rows are checked against its id when they are read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from pyspark.accumulators import AccumulatorParam, _accumulatorRegistry

if TYPE_CHECKING:
    from pyspark import SparkContext


class ReportAccumulator:
    """Context manager for the action of a stage of ``tasks`` tasks, whose reports are added to ``reports``."""

    def __init__(self, context: SparkContext | None, tasks: int) -> None:
        self.reports = None if context is None else context.accumulator([], _Listed())
        self._tasks = tasks

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.reports is not None:
            _accumulatorRegistry.pop(
                self.reports.aid, None
            )  # pyspark keeps them as long as the process lives

    def found(self) -> list[bytes] | None:
        """The reports; None if there may be others, and over Spark Connect, which has no accumulators."""
        if self.reports is None:
            return None
        return list(self.reports.value) if len(self.reports.value) == self._tasks else None


class _Listed(AccumulatorParam[list[bytes]]):
    """Concatenates lists."""

    def zero(self, value: list[bytes]) -> list[bytes]:
        """An empty list."""
        return []

    def addInPlace(self, value1: list[bytes], value2: list[bytes]) -> list[bytes]:  # noqa: N802 - pyspark's name
        """Both lists, one after the other."""
        return value1 + value2
