"""After ``state rollback`` a streaming query goes on as the page on inspecting says."""

from __future__ import annotations

from collections import defaultdict
from itertools import chain
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from typer.testing import CliRunner, Result

from asyncstate.cli.app import app
from asyncstate.errors import JobError
from asyncstate.spark import MicroBatch, StreamingJob
from operators import Join
from tests.spark.parts import RunningTotal

pytestmark = pytest.mark.spark


def rolled_back(state: Path, *more: str) -> Result:
    return CliRunner().invoke(app, ["state", "rollback", str(state), *more])


@pytest.mark.smoke
@pytest.mark.long
@pytest.mark.classic
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
    assert rolled_back(place, "0", "--yes").exit_code == 0
    spark.range(99, 100, 1, 1).selectExpr("id", "id % 2 as k").write.mode("append").parquet(str(source))
    with pytest.raises((JobError, StreamingQueryException), match="is at batch 0"):
        run()  # Spark's own checkpoint is still ahead
    found.clear()
    # The state is at version 0 already: only Spark's checkpoint is left to follow.
    assert rolled_back(place, "0", "--yes", "--spark-checkpoint", str(query)).exit_code == 0
    run()
    assert found[1] == first[1]
    assert found[2] == first[2]
    model: dict[int, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for number in [*range(30), 99]:
        rows_of, total = model[number % 2]
        model[number % 2] = rows_of + 1, total + number
    assert found[3] == [(1, *model[1])]


def test_sources_with_files_at_different_times_go_back_together(spark: SparkSession, tmp_path: Path) -> None:
    """The list of a source without new files in a batch has fewer entries than there are batches."""
    left, right, place = tmp_path / "left", tmp_path / "right", tmp_path / "state"
    joined: dict[int, list[int]] = {}

    def written(folder: Path, first: int, end: int) -> None:
        spark.range(first, end, 1, 1).write.mode("append").parquet(str(folder))

    def run() -> None:
        options = {"async-state.parallelism": 2, "async-state.local-dir": str(tmp_path / "local")}
        job = StreamingJob(spark, str(place), options)
        files = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1)
        streams = [job.source(one.name, files.parquet(str(one))) for one in (left, right)]
        both = streams[0].join(streams[1].select("id AS other"), Join(), key=("id", "other"), uid="both")
        both.to(
            lambda rows, batch_id: joined.__setitem__(batch_id, sorted(row.id for row in rows.collect())),
            name="keep",
        )
        job.await_termination(job.start(trigger={"availableNow": True}), 100)

    written(left, 0, 10)
    written(right, 0, 2)
    run()
    for number in range(1, 5):  # batches 1 to 4: of the left source only
        written(left, number * 10, number * 10 + 10)
    run()
    written(right, 2, 25)  # batch 5: of the right one only
    run()
    undisturbed = dict(joined)
    assert undisturbed[0] == [0, 1]
    assert undisturbed[5] == list(range(2, 25))

    query = f"{place}-query"
    shown = rolled_back(place, "2", "--dry-run", "--spark-checkpoint", query)
    assert shown.exit_code == 0
    first, *_, last = shown.stdout.splitlines()
    assert first == "versions 3, 4, 5 of job 'asyncstate' are to go"
    assert last == "nothing was changed"
    lines = {line.removeprefix("of Spark's checkpoint: ") for line in shown.stdout.splitlines()}
    # Batch 3 is to have the rows it had: the offsets of it stay, and so do entry 3 of the left and 0 of the right.
    assert {"commits 3, 4, 5", "offsets 4, 5", "sources/0 4", "sources/1 1"} <= lines
    assert rolled_back(place, "2", "--yes", "--spark-checkpoint", query).exit_code == 0
    written(left, 50, 51)  # while the query was stopped
    joined.clear()
    run()
    assert joined[3] == undisturbed[3]
    assert sorted(chain.from_iterable(joined.values())) == list(range(2, 25))  # nothing lost, nothing twice
