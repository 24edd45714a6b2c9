"""State through Spark: batches, restarts, replays, rescaling, a real streaming query."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from asyncstate.errors import OperatorError
from asyncstate.spark import MicroBatch, StreamingJob
from tests.spark.parts import RunningTotal

pytestmark = pytest.mark.spark

MakeJob = Callable[..., StreamingJob]
Rows = list[tuple[int, int, int]]
KEYS = 7


def running_totals(ids: Iterable[int], totals: dict[int, tuple[int, int]]) -> Rows:
    """The model: what ``RunningTotal`` puts out for ``ids`` in order, keyed by ``id % KEYS``."""
    out = []
    for number in ids:
        rows, total = totals[number % KEYS]
        totals[number % KEYS] = (rows + 1, total + number)
        out.append((number % KEYS, rows + 1, total + number))
    return sorted(out)


def numbers(spark: SparkSession, start: int, end: int) -> DataFrame:
    """Ids in one source partition, so that arrival order is theirs; event time is the id in seconds."""
    df = spark.range(start, end, 1, 1)
    return df.selectExpr("id", f"id % {KEYS} as k", "timestamp_seconds(id) as at")


def enabled(async_enabled: bool, **more: Any) -> dict[str, Any]:
    return {"async-state.enabled": async_enabled, "async-state.parallelism": 2, **more}


def collected(
    job: StreamingJob, operator: RunningTotal, results: list[Rows], **arguments: Any
) -> Callable[..., None]:
    """A micro_batch function that applies ``operator`` and notes its sorted rows."""

    @job.micro_batch
    def on_batch(df: DataFrame, batch: MicroBatch) -> None:
        out = batch.apply(operator, df, key="k", uid="total", **arguments)
        results.append(sorted((row.k, row.rows, row.total) for row in out.collect()))

    return on_batch


@pytest.mark.smoke
def test_state_lives_on_over_batches_restarts_and_rescaling(
    spark: SparkSession, make_job: MakeJob, async_enabled: bool
) -> None:
    results: list[Rows] = []
    model: dict[int, tuple[int, int]] = defaultdict(lambda: (0, 0))
    expected = []
    # (parallelism, async): the same job is stopped and started with other settings between batches
    for batch_id, (parallelism, mode) in enumerate(
        [(2, async_enabled), (2, async_enabled), (3, not async_enabled), (1, async_enabled)]
    ):
        start, end = batch_id * 40, batch_id * 40 + 40
        job = make_job(options=enabled(mode, **{"async-state.parallelism": parallelism}))
        collected(job, RunningTotal(), results)(numbers(spark, start, end), batch_id)
        expected.append(running_totals(range(start, end), model))
    assert results == expected


@pytest.mark.smoke
def test_a_replay_starts_from_the_batch_before(
    spark: SparkSession, make_job: MakeJob, async_enabled: bool
) -> None:
    results: list[Rows] = []
    on_batch = collected(make_job(options=enabled(async_enabled)), RunningTotal(), results)
    on_batch(numbers(spark, 0, 30), 0)
    on_batch(numbers(spark, 30, 60), 1)
    on_batch(numbers(spark, 30, 60), 1)
    again = collected(make_job(options=enabled(async_enabled)), RunningTotal(), results)
    again(numbers(spark, 30, 60), 1)
    again(numbers(spark, 60, 70), 2)
    assert results[1] == results[2] == results[3]
    model: dict[int, tuple[int, int]] = defaultdict(lambda: (0, 0))
    running_totals(range(60), model)
    assert results[4] == running_totals(range(60, 70), model)


@pytest.mark.smoke
def test_a_failing_operator_names_itself_and_changes_nothing(
    spark: SparkSession, make_job: MakeJob, async_enabled: bool, tmp_path: Path
) -> None:
    fuse = tmp_path / "fuse"
    results: list[Rows] = []
    on_batch = collected(make_job(options=enabled(async_enabled)), RunningTotal(45, str(fuse)), results)
    on_batch(numbers(spark, 0, 30), 0)
    fuse.touch()
    with pytest.raises(OperatorError, match="'total'") as failure:
        on_batch(numbers(spark, 30, 60), 1)
    assert "blown fuse" in str(failure.value.__cause__)
    fuse.unlink()
    on_batch(numbers(spark, 30, 60), 1)
    model: dict[int, tuple[int, int]] = defaultdict(lambda: (0, 0))
    assert results == [running_totals(range(30), model), running_totals(range(30, 60), model)]


@pytest.mark.smoke
def test_timers_fire_at_the_watermark_and_at_the_finish(
    spark: SparkSession, make_job: MakeJob, async_enabled: bool
) -> None:
    results: list[Rows] = []
    job = make_job(options=enabled(async_enabled))
    on_batch = collected(
        job, RunningTotal(timers=True), results, event_time="at", watermark_delay="5 seconds"
    )
    on_batch(numbers(spark, 0, 20), 0)
    on_batch(numbers(spark, 20, 20), 1)
    on_batch(numbers(spark, 20, 30), 2)
    job.finish()
    assert [len(rows) for rows in results] == [0, 15, 0, 15]  # up to 19 - 5 seconds, also without rows
    assert [one["final"] for one in job.history] == [False] * 3 + [True]
    assert [one["watermark_us"] for one in job.history] == [None, 14_000_000, 14_000_000, None]


@pytest.mark.smoke
@pytest.mark.classic
def test_a_streaming_query_survives_its_restart(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path
) -> None:
    source, fuse = str(tmp_path / "source"), tmp_path / "fuse"
    for first in range(0, 60, 20):
        numbers(spark, first, first + 20).coalesce(1).write.mode("append").parquet(source)
    schema = spark.read.parquet(source).schema
    results: list[Rows] = []

    def start(async_enabled: bool) -> tuple[StreamingJob, Any]:
        job = make_job(options=enabled(async_enabled))
        on_batch = collected(job, RunningTotal(45, str(fuse)), results)
        stream = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(source)
        writer = stream.writeStream.foreachBatch(on_batch).option(
            "checkpointLocation", str(tmp_path / "query")
        )
        return job, writer.trigger(availableNow=True).start()

    fuse.touch()
    job, query = start(async_enabled=False)
    with pytest.raises(OperatorError, match="'total'"):
        job.await_termination(query)
    assert len(results) == 2

    job, query = start(async_enabled=True)
    with pytest.raises(StreamingQueryException, match="OperatorError"):
        query.awaitTermination()

    fuse.unlink()
    job, query = start(async_enabled=True)
    job.await_termination(query)
    numbers(spark, 60, 80).coalesce(1).write.mode("append").parquet(source)
    job, query = start(async_enabled=False)
    job.await_termination(query)

    model: dict[int, tuple[int, int]] = defaultdict(lambda: (0, 0))
    assert results == [running_totals(range(first, first + 20), model) for first in range(0, 80, 20)]
