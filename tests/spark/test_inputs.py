"""Several sources of a job: one query gives each its rows by name, and a restart may add to them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import DataFrame, SparkSession

from asyncstate.errors import JobError
from asyncstate.spark import StreamingJob
from operators import Join

pytestmark = pytest.mark.spark

MakeJob = Callable[..., StreamingJob]


class Kept:
    """A sink that remembers, by micro-batch, the ids that it was given."""

    def __init__(self) -> None:
        self.found: dict[int, list[int]] = {}

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        self.found[batch_id] = sorted(row.id for row in df.collect())


@pytest.mark.since_spark("4.2", "names of sources")
def test_sources_come_by_name_go_on_and_change(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path
) -> None:
    """Two sources; a restart with a third before them, which Spark knows by name."""
    session = spark.newSession()
    session.conf.set("spark.sql.streaming.queryEvolution.enableSourceEvolution", "true")

    def written(name: str, first: int, end: int) -> None:
        session.range(first, end, 1, 1).write.mode("append").parquet(str(tmp_path / name))

    def run(*names: str, finish: bool = False) -> tuple[Kept, Kept]:
        job, both, more = make_job(session), Kept(), Kept()
        streams = {}
        for name in names:
            files = session.readStream.name(name).schema("id long").option("maxFilesPerTrigger", 1)
            streams[name] = job.source(name, files.parquet(str(tmp_path / name)))
        right = streams["right"].select("id as other")
        streams["left"].join(right, Join(), key=("id", "other"), uid="both").to(both, "both")
        if "more" in streams:
            streams["more"].to(more, "more")
        job.await_termination(job.start(trigger={"availableNow": True}), 100)
        if finish:
            job.finish()
        return both, more

    for number in range(2):
        written("left", number * 10, number * 10 + 10)
    written("right", 5, 8)
    both, _ = run("left", "right")
    assert both.found == {0: [5, 6, 7], 1: []}
    written("right", 8, 12)
    written("more", 0, 3)
    both, more = run("more", "right", "left", finish=True)
    assert both.found == {2: [8, 9, 10, 11], 3: []}
    assert more.found == {2: [0, 1, 2], 3: []}


def test_sources_keep_their_order(spark: SparkSession, make_job: MakeJob, tmp_path: Path) -> None:
    """Spark would read each with the offsets of the other."""

    def run(*names: str, tables: int = 0) -> Kept:
        job, kept = make_job(), Kept()
        for name in names:
            rows = job.source(name, spark.readStream.schema("id long").parquet(str(tmp_path / name)))
            rows.to(kept if name == "left" else Kept(), name)
        for number in range(tables):
            job.table(f"table{number}", spark.range(1)).to(Kept(), f"table{number}")
        job.await_termination(job.start(trigger={"availableNow": True}), 100)
        return kept

    for name, first in (("left", 0), ("right", 10), ("other", 20)):
        spark.range(first, first + 2, 1, 1).write.parquet(str(tmp_path / name))
    assert run("left", "right").found == {0: [0, 1]}
    with pytest.raises(
        JobError, match=r"sources were \(left, right\) and are \(right, left\)\. Spark knows them by"
    ):
        run("right", "left")
    with pytest.raises(JobError, match=r"would read 'right' with the offsets of another one"):
        run("right", "other")
    spark.range(2, 4, 1, 1).write.mode("append").parquet(str(tmp_path / "left"))
    assert run("left", "right", tables=1).found == {1: [2, 3]}
    assert run("left", "right", tables=1).found == {}


def test_a_table_has_no_place_among_the_sources(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path
) -> None:
    spark.range(1).write.parquet(str(tmp_path / "rows"))

    def declared(*names: str) -> StreamingJob:
        job = make_job()
        for name in names:
            if name == "table":
                rows = job.table(name, spark.range(1))
            else:
                rows = job.source(name, spark.readStream.schema("id long").parquet(str(tmp_path / "rows")))
            rows.to(Kept(), name)
        return job

    job = declared("rows", "table")
    job.await_termination(job.start(trigger={"availableNow": True}), 100)
    declared("table", "rows").check()


def test_a_job_has_a_function_or_sources(spark: SparkSession, make_job: MakeJob, tmp_path: Path) -> None:
    spark.range(1).write.parquet(str(tmp_path / "rows"))
    stream = spark.readStream.schema("id long").parquet(str(tmp_path / "rows"))
    job = make_job()
    with pytest.raises(JobError, match="'orders' got a DataFrame that is not streaming"):
        job.source("orders", spark.range(1))
    assert "form nothing declared yet, batch none yet" in repr(job)
    job.micro_batch(lambda df, batch: None)
    assert "form function" in repr(job)
    with pytest.raises(JobError, match="has a micro_batch function, so it cannot also have sources"):
        job.source("orders", stream)
    with pytest.raises(JobError, match=r"give it to df.writeStream.foreachBatch"):
        job.start()
