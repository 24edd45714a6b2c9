"""Upserts from real jobs: one change a key, in the table once, however often the micro-batch comes."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from asyncstate.errors import ConfigurationError, JobError, SchemaError
from asyncstate.spark import MicroBatch, StreamingJob
from asyncstate.spark.sinks import AppendSink, ParquetTarget, SqliteTarget, UpsertSink, write_upserts
from operators import GroupAggregate, KeyedFlatMap, Rank, count, desc, sum_
from tests.spark.files import numbers_by_key
from tests.spark.modes import ASYNC, SYNC

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


@ASYNC
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
    marks = {
        (writer, table, batch_id) for _, writer, table, batch_id, _, _ in rows(path, "asyncstate_batches")
    }
    assert marks == {("totals", "totals", BATCHES - 1), ("best", "best", BATCHES - 1)}


def twice_some(row: Any) -> list[Any]:
    if row.v in (5, 115):
        raise ValueError(f"not {row.v}")
    return [row, row] if row.v % 10 == 0 else [row]


@ASYNC
def test_rows_are_appended_once_and_read_by_spark(
    spark: SparkSession, make_job: MakeJob, async_enabled: bool, tmp_path: Path
) -> None:
    """Into files and a database, with rows that failed, by a job that fails behind its sinks; a changelog is refused by
    name."""
    path, stream, fails = tmp_path / "log.db", source(spark, tmp_path), FailsOnce(2)
    files, changes, dead = (str(tmp_path / name) for name in ("lake", "changes", "dead"))
    with sqlite3.connect(path) as made:
        made.execute("CREATE TABLE log (k bigint, v bigint)")

    def run() -> None:
        job = make_job(options={"async-state.enabled": async_enabled, "async-state.parallelism": 2})
        numbers = job.source("numbers", stream)
        doubled = KeyedFlatMap(twice_some, "k long, v long", errors="output")
        twice = numbers.apply(doubled, key="k", uid="twice")
        twice.to(AppendSink(ParquetTarget(files)), name="files")
        twice.to(AppendSink(SqliteTarget(path, "log")), name="log")
        twice.output("errors").to(AppendSink(ParquetTarget(dead)), name="dead")
        counted = numbers.apply(GroupAggregate([count().alias("n")]), key="k", uid="counted")
        counted.to(AppendSink(ParquetTarget(changes), changes=True), name="changes")
        numbers.to(fails, name="fails")
        job.await_termination(job.start(trigger={"availableNow": True}))

    with pytest.raises(Exception, match="behind the sinks"):
        run()
    assert spark.read.parquet(files).count() == 3 * 33 - 1
    run()
    given = [v for v in range(30 * BATCHES) if v not in (5, 115)]
    expected = sorted((v % 7, v) for v in given for _ in range(2 if v % 10 == 0 else 1))
    with sqlite3.connect(path) as database:
        assert sorted(database.execute("SELECT k, v FROM log")) == expected
    failed = sorted(map(tuple, spark.read.parquet(dead).collect()))
    assert failed == [(v % 7, v, "ValueError", f"not {v}") for v in (115, 5)]
    found = spark.read.parquet(files)
    assert found.columns == ["k", "v"]
    assert sorted(map(tuple, found.collect())) == expected
    kinds = spark.read.parquet(changes).groupBy("row_kind").count().collect()
    assert {row["row_kind"]: row["count"] for row in kinds} == {"+I": 7, "-U": 21, "+U": 21}
    job = make_job()
    counted = job.source("numbers", stream).apply(GroupAggregate([count()]), key="k", uid="counted")
    counted.to(AppendSink(ParquetTarget(files)), name="files")
    with pytest.raises(
        (JobError, SchemaError), match=r"rows are changes[\s\S]*changes=True[\s\S]*UpsertSink"
    ):
        job.check()


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
    assert write_upserts(1, changes, "k", target)
    assert rows(path, "totals") == {(0, 1, None), (1, 1, None)}
    assert not write_upserts(1, changes, "k", target)
    with pytest.raises(JobError, match="has micro-batch 1 of writer 'asyncstate', and the next is 0"):
        write_upserts(0, changes, "k", target)


def test_two_writes_of_a_micro_batch_need_two_writers(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path
) -> None:
    target = SqliteTarget(database(tmp_path), "totals")
    job = make_job()

    @job.micro_batch
    def run(df: DataFrame, batch: MicroBatch) -> None:
        write_upserts(batch, df.selectExpr("id AS k", "1L AS n"), "k", target)
        write_upserts(batch, df.selectExpr("id + 9 AS k", "1L AS n"), "k", target)

    with pytest.raises(
        JobError, match="table totals already got rows of micro-batch 0 from writer 'asyncstate'"
    ):
        run(spark.range(3), 0)


def test_what_is_no_sink_is_refused_when_it_is_made(tmp_path: Path) -> None:
    target = SqliteTarget(tmp_path / "shop.db", "totals")
    keys: list[object] = [[], "", None, ["k", ""], 7]
    for given in keys:
        with pytest.raises(SchemaError, match="keys is empty"):
            UpsertSink(given, target)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="None is not a target"):
        UpsertSink("k", None)  # type: ignore[arg-type]
    for writer in ("", " w", 256 * "w", 7):
        with pytest.raises(ConfigurationError, match="is not a name; give a string"):
            UpsertSink("k", target, writer)  # type: ignore[arg-type]


class Picky:
    """A user's own sink, which says what it takes."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def check(self, schema: StructType) -> None:
        self.asked.append(schema.simpleString())
        if "n" not in schema.names:
            raise SchemaError("there is no column n to show")

    def write(self, df: DataFrame, batch_id: int) -> None:
        raise AssertionError("nothing is written by a check")


def test_a_check_opens_every_sink_of_the_graph(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path
) -> None:
    path = database(tmp_path)
    job = make_job()
    numbers = job.source("numbers", source(spark, tmp_path))
    totals = numbers.apply(GroupAggregate([count().alias("n")]), key="k", uid="totals")
    picky = Picky()
    totals.to(picky, name="shown")
    totals.to(UpsertSink("k", SqliteTarget(path, "totals")), name="good")
    totals.to(UpsertSink("k", SqliteTarget(path, "totals"), writer="good"), name="same writer")
    totals.to(UpsertSink("k", SqliteTarget(path, "missing")), name="no table")
    totals.to(UpsertSink("k", SqliteTarget(tmp_path / "no.db", "totals")), name="no file")
    numbers.to(picky, name="not shown")
    with pytest.raises(JobError, match="the job's graph has 4 problems; nothing was read") as caught:
        job.start()
    text = str(caught.value)
    assert "sink 'no table': " in text
    assert "table missing does not exist; create it with a primary key (k)" in text
    assert "sink 'no file': " in text
    assert "no.db: there is no such file" in text
    assert "sink 'not shown': there is no column n to show" in text
    assert (
        "sink 'same writer': it writes where sink 'good' does, by the same writer (table totals, good)"
        in text
    )
    assert picky.asked[0] == "struct<k:bigint,n:bigint,row_kind:string>"
    assert not (tmp_path / "no.db").exists()


@SYNC
def test_a_new_checkpoint_writes_its_first_micro_batch(
    spark: SparkSession,
    make_job: MakeJob,
    async_enabled: bool,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = database(tmp_path)

    def run(folder: str, names: int) -> None:
        (tmp_path / folder).mkdir()
        stream = numbers_by_key(spark, tmp_path / folder, 1, rows=10 * names, keys=names)
        options = {"async-state.enabled": async_enabled}
        job = make_job(checkpoint_dir=str(tmp_path / folder / "state"), options=options)
        counted = job.source("numbers", stream).apply(GroupAggregate([count().alias("n")]), key="k", uid="n")
        counted.to(UpsertSink("k", SqliteTarget(path, "totals")), name="totals")
        job.await_termination(job.start(trigger={"availableNow": True}))

    run("first", 3)
    assert not [one for one in caplog.records if "takes over" in one.message]
    run("second", 2)
    assert rows(path, "totals") == {(k, 10, None) for k in range(3)}
    assert [one for one in caplog.records if "takes over" in one.message]
