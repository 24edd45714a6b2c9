"""Calls to the outside at bundle grain and a first input, through Spark: partitions, restarts, rescaling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import DataFrame, SparkSession

from asyncstate.errors import JobError
from asyncstate.spark import MicroBatch, StreamingJob
from tests.spark.calling_parts import Rated
from tests.spark.modes import ASYNC

MakeJob = Callable[..., StreamingJob]


@pytest.mark.spark
@ASYNC
def test_rows_are_rated_by_factors_of_the_same_micro_batch(
    spark: SparkSession, make_job: MakeJob, async_enabled: bool
) -> None:
    def run(batch_id: int, parallelism: int, *rows: tuple[int, int, int]) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = []
        job = make_job(
            options={
                "async-state.enabled": async_enabled,
                "async-state.parallelism": parallelism,
                "async-state.bundle-size": 7,
            }
        )

        @job.micro_batch
        def rate(df: DataFrame, batch: MicroBatch) -> None:
            sides = [df.where(f"side = {side}").select("k", "v") for side in range(2)]
            rated = batch.apply(Rated(1), *sides, key=("k", "k"), uid="rated").drop("row_kind")
            found.extend(map(tuple, rated.collect()))

        rate(spark.createDataFrame(rows, "side int, k long, v long"), batch_id)
        return sorted(found)

    left = [(0, k, v) for k in range(20) for v in range(2)]
    assert run(0, 3, *left, *((1, k, k) for k in range(20))) == [(k, v, k * (10 + k)) for _, k, v in left]
    again = run(1, 2, *left, *((1, k, 1) for k in range(10)))
    assert again == [(k, v, (1 if k < 10 else k) * (10 + k)) for _, k, v in left]


@pytest.mark.spark
def test_a_first_input_that_is_not_there_is_refused(spark: SparkSession, make_job: MakeJob) -> None:
    rows = spark.createDataFrame([(1, 1)], "k long, v long")

    def use(df: DataFrame, batch: MicroBatch) -> None:
        batch.apply(Rated(2), df, df, key=("k", "k"), uid="rated")

    with pytest.raises(JobError, match=r"operator 'rated' \(Rated\): first_input is 2 with num_inputs 2"):
        make_job().micro_batch(use)(rows, 0)
