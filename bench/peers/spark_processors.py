"""The counter of work d and the mean of work g for Spark's ``transformWithState``, in its two Python forms.

Must not import asyncstate. Importing it needs what pyspark's stateful processors need.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from bench.peers.spark_plans import count_frames, mean_of_frames


class _Sums(StatefulProcessor):
    """Some numbers a key in one ValueState; ``take`` adds rows to them and gives what to emit."""

    columns = "n bigint"

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.state = handle.getValueState("sums", self.columns)

    def close(self) -> None:
        """Nothing to give up."""

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        stored = self.state.get()
        sums = [0] * (self.columns.count(",") + 1) if stored is None else list(stored)
        yield from self.take(key[0], rows, sums)
        self.state.update(tuple(sums))

    def take(self, key: int, rows: Iterator[Any], sums: list[int]) -> Iterator[Any]:
        raise NotImplementedError


class CountRows(_Sums):
    """Each row with how many of its key there have been."""

    def take(self, key: int, rows: Iterator[Any], sums: list[int]) -> Iterator[Any]:
        for row in rows:
            sums[0] += 1
            yield Row(key=row.key, n=sums[0])


class CountFrames(_Sums):
    """The same with pandas DataFrames."""

    take = staticmethod(count_frames)


class MeanOfRows(_Sums):
    """The weighted mean of all values of a key so far."""

    columns = "total bigint, weight bigint"

    def take(self, key: int, rows: Iterator[Any], sums: list[int]) -> Iterator[Any]:
        for row in rows:
            weight = row.value % 7 + 1
            sums[0] += row.value * weight
            sums[1] += weight
        yield Row(key=key, mean=sums[0] / sums[1])


class MeanOfFrames(MeanOfRows):
    """The same with pandas DataFrames."""

    take = staticmethod(mean_of_frames)
