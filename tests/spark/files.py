"""Streams over files that are written beforehand."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def numbers_by_key(spark: SparkSession, folder: Path, batches: int, rows: int, keys: int) -> DataFrame:
    """A stream of the numbers ``v`` from 0 on, with ``k`` their rest by ``keys``; a file of ``rows`` a micro-batch."""
    for number in range(batches):
        made = spark.range(number * rows, (number + 1) * rows, 1, 1).selectExpr(
            f"id % {keys} AS k", "id AS v"
        )
        made.write.mode("append").parquet(str(folder / "source"))
    return (
        spark.readStream.schema("k long, v long")
        .option("maxFilesPerTrigger", 1)
        .parquet(str(folder / "source"))
    )
