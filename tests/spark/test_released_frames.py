"""The output of an operator is read inside its function; behind that it says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import DataFrame, SparkSession

from asyncstate.errors import JobError
from asyncstate.spark import MicroBatch, StreamingJob
from operators import GroupAggregate, count

pytestmark = pytest.mark.spark

READS: dict[str, Callable[[DataFrame], Any]] = {
    "collect": lambda df: df.collect(),
    "count": lambda df: df.count(),
    "select": lambda df: df.select("id").show(),
    "join": lambda df: df.sparkSession.range(3).join(df, "id"),
}


def test_a_frame_that_outlives_its_function_says_so(
    spark: SparkSession, make_job: Callable[..., StreamingJob]
) -> None:
    kept: list[DataFrame] = []

    def use(df: DataFrame, batch: MicroBatch) -> None:
        kept.append(batch.apply(GroupAggregate([count()]), df, uid="n", key="id"))
        assert kept[0].count() == 3

    make_job().micro_batch(use)(spark.range(3), 0)
    for read in READS.values():
        with pytest.raises(
            JobError, match=r"output of operator 'n' in batch 0 is read after .* has returned"
        ):
            read(kept[0])
