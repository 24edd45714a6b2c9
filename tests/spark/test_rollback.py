"""After ``state rollback`` a streaming query goes on as the page on inspecting says."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from typer.testing import CliRunner

from asyncstate.cli.app import app
from asyncstate.errors import JobError
from asyncstate.spark import MicroBatch, StreamingJob
from tests.spark.parts import RunningTotal

pytestmark = pytest.mark.spark


@pytest.mark.smoke
def test_a_query_goes_on_from_the_version_it_was_rolled_back_to(spark: SparkSession, tmp_path: Path) -> None:
    source, query, place = tmp_path / "source", tmp_path / "query", tmp_path / "checkpoint"
    for number in range(3):
        rows = spark.range(number * 10, number * 10 + 10, 1, 1).selectExpr("id", "id % 2 as k")
        rows.write.mode("append").parquet(str(source))
    found: dict[int, list[tuple[int, int, int]]] = {}

    def run() -> None:
        options = {"async-state.parallelism": 2, "async-state.local-dir": str(tmp_path / "local")}
        job = StreamingJob(spark, str(place), options)

        @job.micro_batch
        def on_batch(df: DataFrame, batch: MicroBatch) -> None:
            out = batch.apply(RunningTotal(), df, key="k", uid="total")
            found[batch.batch_id] = sorted((row.k, row.rows, row.total) for row in out.collect())

        stream = spark.readStream.schema("id long, k long").option("maxFilesPerTrigger", 1)
        writer = stream.parquet(str(source)).writeStream.foreachBatch(on_batch)
        writer = writer.option("checkpointLocation", str(query)).trigger(availableNow=True)
        job.await_termination(writer.start(), 100)

    run()
    first = dict(found)
    assert list(first) == [0, 1, 2]
    found.clear()
    assert CliRunner().invoke(app, ["state", "rollback", str(place), "0", "--yes"]).exit_code == 0
    spark.range(99, 100, 1, 1).selectExpr("id", "id % 2 as k").write.mode("append").parquet(str(source))
    with pytest.raises((JobError, StreamingQueryException), match="stands at batch 0"):
        run()  # Spark's own checkpoint is still ahead
    found.clear()
    for folder in (query / "offsets", query / "commits", *(query / "sources").iterdir()):
        for file in folder.iterdir():
            if int(file.name.strip(".").removesuffix(".crc")) > 0:
                file.unlink()
    run()
    assert found[1] == first[1]
    assert found[2] == first[2]
    model: dict[int, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for number in [*range(30), 99]:
        rows_of, total = model[number % 2]
        model[number % 2] = rows_of + 1, total + number
    assert found[3] == [(1, *model[1])]
