"""The counter of work d and the mean of work g for Spark's ``transformWithState``, in its two Python forms.

Owns: ``CountRows``, ``CountFrames``, ``MeanOfRows`` and ``MeanOfFrames``.
Must not import asyncstate. Importing it needs what pyspark's stateful processors need.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle


class _Count(StatefulProcessor):
    """One ValueState a key."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state."""
        self.count = handle.getValueState("n", "n bigint")

    def close(self) -> None:
        """Nothing to give up."""

    def before(self) -> int:
        """How many there were."""
        stored = self.count.get()
        return stored[0] if stored is not None else 0


class CountRows(_Count):
    """Each row with how many of its key there have been."""

    def handleInputRows(  # noqa: N802 - Spark's name
        self,
        key: Any,
        rows: Iterator[Any],
        timerValues: Any,  # noqa: N803 - Spark's name
    ) -> Iterator[Any]:
        """Count the rows of one key in one micro-batch."""
        count = self.before()
        for row in rows:
            count += 1
            yield Row(key=row.key, n=count)
        self.count.update((count,))


class CountFrames(_Count):
    """The same with a pandas DataFrame a key."""

    def handleInputRows(  # noqa: N802 - Spark's name
        self,
        key: Any,
        rows: Iterator[Any],
        timerValues: Any,  # noqa: N803 - Spark's name
    ) -> Iterator[Any]:
        """Count the rows of one key in one micro-batch."""
        import pandas as pd

        count = self.before()
        for frame in rows:
            size = len(frame)
            yield pd.DataFrame({"key": [key[0]] * size, "n": range(count + 1, count + size + 1)})
            count += size
        self.count.update((count,))


class _Mean(StatefulProcessor):
    """The sums of one key."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state."""
        self.sums = handle.getValueState("sums", "total bigint, weight bigint")

    def close(self) -> None:
        """Nothing to give up."""

    def before(self) -> tuple[int, int]:
        """The sums of earlier micro-batches."""
        stored = self.sums.get()
        return (stored[0], stored[1]) if stored is not None else (0, 0)


class MeanOfRows(_Mean):
    """The weighted mean of all values of a key so far."""

    def handleInputRows(  # noqa: N802 - Spark's name
        self,
        key: Any,
        rows: Iterator[Any],
        timerValues: Any,  # noqa: N803 - Spark's name
    ) -> Iterator[Any]:
        """Take in the rows of one key in one micro-batch."""
        total, weight = self.before()
        for row in rows:
            one = row.value % 7 + 1
            total, weight = total + row.value * one, weight + one
        self.sums.update((total, weight))
        yield Row(key=key[0], mean=total / weight)


class MeanOfFrames(_Mean):
    """The same with a pandas DataFrame a key."""

    def handleInputRows(  # noqa: N802 - Spark's name
        self,
        key: Any,
        rows: Iterator[Any],
        timerValues: Any,  # noqa: N803 - Spark's name
    ) -> Iterator[Any]:
        """Take in the rows of one key in one micro-batch."""
        import pandas as pd

        total, weight = self.before()
        for frame in rows:
            weights = frame["value"] % 7 + 1
            total += int((frame["value"] * weights).sum())
            weight += int(weights.sum())
        self.sums.update((total, weight))
        yield pd.DataFrame({"key": [key[0]], "mean": [total / weight]})
