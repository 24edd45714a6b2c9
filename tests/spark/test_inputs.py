"""``job.inputs``: a micro_batch function gets several sources by name, from one query."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import DataFrame, SparkSession

from asyncstate.errors import JobError
from asyncstate.spark import MicroBatch, StreamingJob
from operators import Join

pytestmark = pytest.mark.spark

MakeJob = Callable[..., StreamingJob]


def test_sources_come_by_name_go_on_and_change(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path
) -> None:
    """Two sources; a restart with a third before them, which Spark knows by name."""
    session = spark.newSession()
    session.conf.set("spark.sql.streaming.queryEvolution.enableSourceEvolution", "true")
    found: list[tuple[int, list[int], int, int]] = []

    def written(name: str, first: int, end: int) -> None:
        session.range(first, end, 1, 1).write.mode("append").parquet(str(tmp_path / name))

    def read(name: str) -> DataFrame:
        files = session.readStream.name(name).schema("id long").option("maxFilesPerTrigger", 1)
        return files.parquet(str(tmp_path / name))

    def run(*names: str, finish: bool = False) -> None:
        job = make_job(session)
        job.inputs(**{name: read(name) for name in names})

        def on_batch(left: DataFrame, right: DataFrame, batch: MicroBatch, more: Any = None) -> None:
            other = right.withColumnRenamed("id", "other")
            both = batch.apply(Join(), left, other, key=("id", "other"), uid="both")
            further = -1 if more is None else more.count()
            found.append((batch.batch_id, sorted(r.id for r in both.collect()), left.count(), further))

        job.micro_batch(on_batch)
        job.await_termination(job.start(trigger={"availableNow": True}), 100)
        if finish:
            job.finish()

    for number in range(2):
        written("left", number * 10, number * 10 + 10)
    written("right", 5, 8)
    run("left", "right")
    assert found == [(0, [5, 6, 7], 10, -1), (1, [], 10, -1)]
    found.clear()
    written("right", 8, 12)
    written("more", 0, 3)
    run("more", "right", "left", finish=True)
    assert found == [(2, [8, 9, 10, 11], 0, 3), (3, [], 0, 0)]


def test_what_does_not_fit_is_refused_when_it_is_declared(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path
) -> None:
    spark.range(1).write.parquet(str(tmp_path / "rows"))
    stream = spark.readStream.schema("id long").parquet(str(tmp_path / "rows"))
    job = make_job()
    with pytest.raises(JobError, match="'batch' is the MicroBatch"):
        job.inputs(batch=stream)
    with pytest.raises(JobError, match="'orders' was given a DataFrame that is not streaming"):
        job.inputs(orders=spark.range(1))
    assert "form nothing declared yet, batch none yet" in repr(job)
    job.inputs(orders=stream, payments=stream)
    with pytest.raises(JobError, match="'orders' is there already"):
        job.inputs(orders=stream)
    with pytest.raises(JobError, match="has inputs, so it takes no sources"):
        job.source("more", stream)
    with pytest.raises(JobError, match="has inputs but no function"):
        job.start()
    with pytest.raises(JobError, match=r"write def run\(orders, payments, batch\)"):

        @job.micro_batch
        def run(df: DataFrame, batch: MicroBatch) -> None:
            """Takes other names."""

    job.micro_batch(lambda orders, payments, batch: None)
    assert "form function, sources orders, payments" in repr(job)
    assert "<td" in job._repr_html_()
    with pytest.raises(JobError, match="declare them before it"):
        job.inputs(more=stream)
    alone = make_job(checkpoint_dir=str(tmp_path / "alone"))
    alone.micro_batch(lambda df, batch: None)
    with pytest.raises(JobError, match="no inputs to start a query over"):
        alone.start()
    graph = make_job(checkpoint_dir=str(tmp_path / "graph"))
    graph.source("orders", stream)
    with pytest.raises(JobError, match="has sources, so it takes no inputs"):
        graph.inputs(orders=stream)
