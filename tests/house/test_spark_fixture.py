"""The shared Spark session: workers are this interpreter and find the project and the test modules."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from asyncstate.config import Config

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def _describe_worker(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    rows = sum(batch.num_rows for batch in batches)
    names = ["python", "buffer_size", "rows"]
    yield pa.RecordBatch.from_pydict(
        dict(zip(names, [[sys.executable], [Config().buffer_size], [rows]], strict=True))
    )


@pytest.mark.smoke
@pytest.mark.spark
def test_workers_run_this_interpreter_and_import_the_project(spark: SparkSession) -> None:
    schema = "python string, buffer_size long, rows long"
    found = spark.range(10, numPartitions=2).mapInArrow(_describe_worker, schema).collect()
    assert {row.python for row in found} == {sys.executable}
    assert {row.buffer_size for row in found} == {1_000}
    assert sum(row.rows for row in found) == 10
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
