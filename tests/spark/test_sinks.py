"""Upserts from real jobs: one change a key, in the table once, however often the micro-batch comes."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import DataFrame, SparkSession

from asyncstate.errors import JobError, SchemaError
from asyncstate.spark import MicroBatch, StreamingJob
from asyncstate.spark.sinks import SqliteTarget, UpsertSink, write_upserts
from operators import GroupAggregate, Rank, count, desc, sum_
from tests.spark.files import numbers_by_key

pytestmark = pytest.mark.spark

MakeJob = Callable[..., StreamingJob]
BATCHES = 4


def rows(path: Path, table: str) -> set[tuple[object, ...]]:
    with sqlite3.connect(path) as database:
        return set(database.execute(f"SELECT * FROM {table}"))


def database(folder: Path) -> Path:
    path = folder / "shop.db"
    with sqlite3.connect(path) as made:
        made.execute("CREATE TABLE totals (k bigint PRIMARY KEY, n bigint, total bigint)")
        made.execute("CREATE TABLE best (v bigint PRIMARY KEY, k bigint)")
    return path


def source(spark: SparkSession, folder: Path) -> DataFrame:
    return numbers_by_key(spark, folder, BATCHES, rows=30, keys=7)


class FailsOnce:
    """Behind the sinks of a micro-batch: what they have written is there, the micro-batch is not committed."""

    def __init__(self, batch_id: int) -> None:
        self.batch_id, self.failed = batch_id, False

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        if batch_id == self.batch_id and not self.failed:
            self.failed = True
            raise RuntimeError("behind the sinks")


def test_a_job_that_fails_behind_its_sinks_writes_once(
    spark: SparkSession, make_job: MakeJob, async_enabled: bool, tmp_path: Path
) -> None:
    path, stream, fails = database(tmp_path), source(spark, tmp_path), FailsOnce(2)

    def run() -> None:
        job = make_job(options={"async-state.enabled": async_enabled, "async-state.parallelism": 2})
        numbers = job.source("numbers", stream)
        aggregate = GroupAggregate([count().alias("n"), sum_("v").alias("total")])
        totals = numbers.where("v != 5").apply(aggregate, key="k", uid="totals")
        totals.to(UpsertSink("k", SqliteTarget(path, "totals"), "totals"), name="totals")
        best = numbers.apply(Rank(desc("v"), 2), key="k", uid="best")
        best.select("v", "k").to(UpsertSink(["v"], SqliteTarget(path, "best"), "best"), name="best")
        numbers.to(fails, name="fails")
        job.await_termination(job.start(trigger={"availableNow": True}))

    with pytest.raises(Exception, match="behind the sinks"):
        run()
    assert len(rows(path, "best")) == 14  # of all three micro-batches, of which two are committed
    run()
    given = [(v % 7, v) for v in range(30 * BATCHES)]
    totals = {k: [v for key, v in given if key == k and v != 5] for k in range(7)}
    assert rows(path, "totals") == {(k, len(values), sum(values)) for k, values in totals.items()}
    assert rows(path, "best") == {(v, k) for k, v in given if v >= 30 * BATCHES - 14}
    assert rows(path, "asyncstate_batches") == {("totals", BATCHES - 1), ("best", BATCHES - 1)}


def test_in_a_function_and_what_is_refused(spark: SparkSession, make_job: MakeJob, tmp_path: Path) -> None:
    path = database(tmp_path)
    target = SqliteTarget(path, "totals")
    job = make_job()
    written = []

    @job.micro_batch
    def run(df: DataFrame, batch: MicroBatch) -> None:
        written.append(write_upserts(batch, df.selectExpr("id AS k", "1L AS n"), "k", target))

    run(spark.range(3), 0)
    assert written == [True]
    assert rows(path, "totals") == {(k, 1, None) for k in range(3)}
    changes = spark.createDataFrame([(1, "-U"), (1, "+U"), (2, "-D")], "k long, row_kind string")
    with pytest.raises(SchemaError, match="no column 'more'"):
        write_upserts(1, changes.selectExpr("*", "1 AS more"), "k", target)
    with pytest.raises(JobError, match="has micro-batch 0 of writer 'asyncstate'"):
        write_upserts(-1, changes, "k", target)
    assert write_upserts(1, changes, "k", target)
    assert rows(path, "totals") == {(0, 1, None), (1, 1, None)}
    assert not write_upserts(1, changes, "k", target)
    with pytest.raises(SchemaError, match="keys names no column"):
        UpsertSink([], target)
