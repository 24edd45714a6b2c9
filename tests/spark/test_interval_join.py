"""IntervalJoin through Spark: a small stream over a restart at another parallelism, both modes with equal state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import DataFrame, SparkSession

from asyncstate.spark import MicroBatch, StreamingJob
from operators import IntervalJoin
from tests.spark.stored import Stored, stored_state

pytestmark = pytest.mark.spark

MakeJob = Callable[..., StreamingJob]
Rows = Counter[tuple[Any, ...]]

WITHIN = 2
DELAY = 3
LAST = 60


def sent(number: int) -> tuple[int, int]:
    """Key and time of a left row."""
    return number % 4, number


def answered(number: int) -> tuple[int, int]:
    """Key and time of a right row: only some keys, one second after left rows."""
    return number % 3, number + 1


def expected() -> Rows:
    """The left join of all rows."""
    rows: Rows = Counter()
    for left in range(LAST):
        key, time = sent(left)
        partners = [
            right
            for right in range(LAST)
            if answered(right)[0] == key and time <= answered(right)[1] <= time + WITHIN
        ]
        rows.update((left, right) for right in partners or [None])
    return rows


def inputs(df: DataFrame) -> tuple[DataFrame, DataFrame]:
    return (
        df.selectExpr("id as l", "id % 4 as k", "timestamp_seconds(id) as at"),
        df.selectExpr("id as r", "id % 3 as k", "timestamp_seconds(id + 1) as at"),
    )


def run(spark: SparkSession, make: Callable[[int], StreamingJob]) -> list[Rows]:
    """Two micro-batches with a restart between them, and the end."""
    results: list[Rows] = []

    def noting(job: StreamingJob) -> Callable[[DataFrame, int], None]:
        @job.micro_batch
        def on_batch(df: DataFrame, batch: MicroBatch) -> None:
            joined = batch.apply(
                IntervalJoin("left", lower=0, upper=f"{WITHIN} seconds"),
                *inputs(df),
                key=("k", "k"),
                event_time="at",
                watermark_delay=f"{DELAY} seconds",
                uid="answers",
            )
            rows = joined.select("l", "r", "row_kind").collect()
            assert {kind for *_, kind in rows} <= {"+I"}
            results.append(Counter((left, right) for left, right, _ in rows))

        return on_batch

    noting(make(2))(spark.range(0, 40, 1, 1), 0)
    job = make(3)
    noting(job)(spark.range(40, LAST, 1, 1), 1)
    job.finish()
    return results


def test_a_stream_of_two_inputs_over_a_restart(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path
) -> None:
    states: list[tuple[Stored, Stored]] = []
    for async_enabled in (False, True):
        folder = tmp_path / f"checkpoint-{async_enabled}"

        def make(
            parallelism: int, folder: Path = folder, async_enabled: bool = async_enabled
        ) -> StreamingJob:
            options = {
                "async-state.enabled": async_enabled,
                "async-state.parallelism": parallelism,
                "async-state.local-dir": str(folder / "local"),
            }
            return make_job(checkpoint_dir=str(folder), options=options)

        results = run(spark, make)
        assert sum(results, Counter()) == expected()
        # The watermark of the second micro-batch is the lower of 39 - 3 and 40 - 3.
        first, second, end = ([left for left, right in result if right is None] for result in results)
        assert not first
        assert max(second) <= 36 - WITHIN < min(end)
        states.append((stored_state(folder, 1), stored_state(folder, 2)))
    assert states[0] == states[1]
    before_the_end, after = states[0]
    assert before_the_end["answers"]
    assert after["answers"] == {}
