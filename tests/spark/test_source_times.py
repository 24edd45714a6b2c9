"""Event times of a graph's sources: observed of all rows, whatever reads them; who holds the watermark."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import DataFrame, SparkSession

from asyncstate.clock import ManualClock
from asyncstate.dataflow import Stream
from asyncstate.errors import JobError
from asyncstate.lookups import TableLookup
from asyncstate.operator import MIN_WATERMARK
from asyncstate.spark import MicroBatch, StreamingJob
from asyncstate.spark.packed_inputs import Packing
from asyncstate.spark.spark_executor import SparkExecutor
from operators import (
    GroupAggregate,
    StatelessLookupJoin,
    WindowAggregate,
    WindowTableFunction,
    count,
    tumble,
)
from tests.spark.modes import ASYNC, SYNC

pytestmark = pytest.mark.spark

SECOND = 1_000_000
EVENTS = "k string, t timestamp, u timestamp"
MakeJob = Callable[..., StreamingJob]


def events(spark: SparkSession, *times: int | None, kind: str = "x") -> DataFrame:
    rows = [(kind, time, 1_000 + (time or 0)) for time in times]
    df = spark.createDataFrame(rows, "k string, t long, u long")
    return df.selectExpr("k", "timestamp_seconds(t) AS t", "timestamp_seconds(u) AS u")


def streaming(spark: SparkSession, folder: Path, schema: str = EVENTS) -> DataFrame:
    return spark.readStream.schema(schema).parquet(str(folder))


def run(job: StreamingJob, batch_id: int, **frames: DataFrame) -> None:
    """A micro-batch with these rows of the job's sources."""
    if job._graph.flow.nodes:
        job.check()
    packing = Packing()
    packing.frames = frames
    process = job._on_batch or job.micro_batch(job._run_graph)
    process(packing.packed(), batch_id)


def sources_of(job: StreamingJob) -> dict[str, int]:
    manifest = job._ledger.latest()
    assert manifest is not None
    return manifest.sources


def counted(rows: Stream, uid: str = "counts", **more: Any) -> Stream:
    return rows.apply(GroupAggregate([count()]), key="k", uid=uid, **more)


def windows(rows: Stream, uid: str = "windows") -> Stream:
    return rows.apply(WindowAggregate(tumble("10 seconds"), [count()]), key="k", uid=uid)


def first_one(df: DataFrame) -> DataFrame:
    return df.orderBy("t").limit(1)


@pytest.mark.parametrize(
    ("shape", "queries"),
    [
        (counted, 0),
        (lambda e: counted(e.drop("u")), 0),
        (lambda e: counted(e.select("t", "k")), 0),
        (lambda e: counted(e.where("k = 'none'")), 0),
        (lambda e: counted(e.where("k = 'none'").with_columns(t="t - interval 1 hour")), 0),
        (lambda e: counted(e.where("k = 'none'").union(e.where("k = 'nobody'"))), 0),
        (lambda e: counted(e, event_time="u"), 0),
        (lambda e: counted(e.apply(WindowTableFunction(tumble("1 hour")), uid="each")), 0),
        (lambda e: (counted(e.where("k = 'a'"), "a"), counted(e.where("k = 'b'"), "b")), 0),
        (lambda e: counted(e.where("false")), 1),
        (lambda e: counted(e.transform(first_one)), 1),
    ],
)
def test_all_rows_of_a_source_count(
    spark: SparkSession,
    make_job: MakeJob,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    shape: Callable[[Stream], object],
    queries: int,
) -> None:
    """Also those that a filter takes out; a query of its own reads them only where no stage reads all."""
    asked = []
    find = SparkExecutor.highest
    monkeypatch.setattr(SparkExecutor, "highest", lambda *given: asked.append(given) or find(*given))
    job = make_job()
    shape(job.source("e", streaming(spark, tmp_path), event_time="t", watermark_delay="2 seconds"))
    run(job, 0, e=events(spark, 7, 30, None, 12))
    assert sources_of(job) == {"e": 28 * SECOND}
    assert len(asked) == queries
    run(job, 1, e=events(spark, 29))
    assert (sources_of(job), job.history[-1]["watermark_us"]) == ({"e": 28 * SECOND}, 28 * SECOND)


@ASYNC
def test_of_several_sources_each_is_observed_for_itself(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path, async_enabled: bool
) -> None:
    """A union of sources with different delays, a source that only a sink reads, one without rows."""
    job = make_job(options={"async-state.enabled": async_enabled})
    first, second, third, last = (
        job.source(name, streaming(spark, tmp_path), event_time="t", watermark_delay=delay * SECOND)
        for delay, name in enumerate(("first", "second", "third", "last"))
    )
    windows(first.union(second)).to(lambda df, batch: df.collect(), name="windows")
    third.to(lambda df, batch: df.limit(1).collect(), name="third")
    counted(last.where("k = 'x'"), "lasts")
    none = events(spark, 0).where("k = 'none'")
    times = {"first": events(spark, 50), "second": events(spark, 70, 60), "third": events(spark, 10, 90)}
    run(job, 0, **times, last=none)
    assert sources_of(job) == {
        "first": 50 * SECOND, "second": 69 * SECOND, "third": 88 * SECOND, "last": MIN_WATERMARK
    }  # fmt: skip
    assert job.last_progress is not None
    assert job.last_progress["watermark_waits_for"] == ["last"]
    assert "the watermark waits for source 'last', which has had no events yet" in job.explain()


def test_initial_rows_and_times_without_a_zone(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path
) -> None:
    """Times that mean "for ever" move nothing."""
    schema = "k string, t timestamp_ntz"
    job = make_job()
    initial = spark.sql("SELECT 'a' AS k, timestamp_ntz'1970-01-01 00:01:00' AS t")
    stream = job.source(
        "e", streaming(spark, tmp_path, schema), event_time="t", watermark_delay=0, initial=initial
    )
    counted(stream.where("k = 'none'"))
    rows = spark.sql(
        "SELECT k, cast(t AS timestamp_ntz) AS t FROM VALUES "
        "('a', '1969-12-31 23:59:59'), ('b', '+294246-01-01') AS v(k, t)"
    )
    run(job, 0, e=rows)
    assert sources_of(job) == {"e": 60 * SECOND}
    run(job, 1, e=spark.sql("SELECT 'a' AS k, timestamp_ntz'1970-01-01 00:02:00.000001' AS t"))
    assert sources_of(job) == {"e": 120 * SECOND + 1}


@pytest.mark.parametrize(("is_graph", "async_enabled"), [(True, False), (False, True)])
def test_a_source_that_is_gone_leaves_at_the_restart(
    spark: SparkSession,
    make_job: MakeJob,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    async_enabled: bool,
    is_graph: bool,
) -> None:
    """In both forms, when its name is another one: it is said once, and windows fire again."""
    fired: list[int] = []

    def start(name: str) -> StreamingJob:
        job = make_job(options={"async-state.enabled": async_enabled}, unclaimed_state="keep")
        if is_graph:
            rows = windows(
                job.source(name, streaming(spark, tmp_path), event_time="t", watermark_delay=0), name
            )
            rows.to(lambda df, batch: fired.append(df.count()), name="fired")
            return job

        @job.micro_batch
        def use(df: DataFrame, batch: MicroBatch) -> None:
            of_windows = WindowAggregate(tumble("10 seconds"), [count()])
            found = batch.apply(of_windows, df, key="k", uid=name, event_time="t", watermark_delay=0)
            fired.append(found.count())

        return job

    run(start("old"), 0, **{"old": events(spark, 1)})
    again = start("new")
    with caplog.at_level(logging.WARNING):
        for number, time in enumerate((20, 40, 60, 80), 1):
            run(again, number, **{"new": events(spark, time)})
    suffix = "" if is_graph else ":0"
    assert sources_of(again) == {f"new{suffix}": 80 * SECOND}
    assert fired == [0, 0, 0, 1, 1]  # a window is over in the micro-batch behind the event that ends it
    assert caplog.text.count("no longer waits for") == 1
    assert f"['old{suffix}']" in caplog.text


def test_a_function_that_leaves_operators_out_keeps_their_sources(
    spark: SparkSession, make_job: MakeJob
) -> None:
    """As long as the driver has had them; one that has applied nothing yet says nothing about them."""
    apply: list[str] = ["a", "b"]

    def start() -> StreamingJob:
        job = make_job(unclaimed_state="keep")

        @job.micro_batch
        def use(df: DataFrame, batch: MicroBatch) -> None:
            for uid in apply:
                counts = GroupAggregate([count()])
                batch.apply(counts, df, key="k", uid=uid, event_time="t", watermark_delay=0)

        return job

    def after(job: StreamingJob, number: int) -> list[str]:
        run(job, number, e=events(spark, 10 * number))
        return list(sources_of(job))

    job = start()
    assert after(job, 0) == ["a:0", "b:0"]
    apply = ["b"]
    assert after(job, 1) == ["a:0", "b:0"]
    apply = []
    job = start()
    assert after(job, 2) == ["a:0", "b:0"]
    apply = ["b"]
    assert after(job, 3) == ["b:0"]


def test_an_idle_source_over_a_restart(spark: SparkSession, make_job: MakeJob, tmp_path: Path) -> None:
    """The clock goes on while no driver runs; what was silent for so long is idle from the second micro-batch on."""
    clock = ManualClock(0)

    def start() -> StreamingJob:
        job = make_job(clock=clock)
        for name in ("fast", "slow"):
            stream = job.source(
                name,
                streaming(spark, tmp_path),
                event_time="t",
                watermark_delay=0,
                idle_after="1 minute",
            )
            counted(stream, name)
        return job

    def after(job: StreamingJob, number: int, *slow: int) -> list[str]:
        rows = {
            "fast": events(spark, 100 + number),
            "slow": events(spark, *slow, 0).where("unix_seconds(t) > 0"),
        }
        run(job, number, **rows)
        manifest = job._ledger.latest()
        assert manifest is not None
        return manifest.idle

    job = start()
    assert after(job, 0, 5) == []
    clock.advance(59 * SECOND)
    assert after(job, 1) == []
    clock.advance(3_600 * SECOND)
    job = start()
    assert after(job, 2) == []
    assert after(job, 3) == ["slow"]
    assert after(job, 4) == ["slow"]
    assert job.history[-1]["watermark_us"] == 103 * SECOND
    assert job.last_progress is not None
    assert job.last_progress["sources"][1] == {"name": "slow", "watermark_us": 5 * SECOND, "idle": True}
    clock = ManualClock(0)  # a clock that was set back
    job = start()
    assert after(job, 5, 6) == []
    assert job.history[-1]["watermark_us"] == 104 * SECOND
    after(job, 6)
    assert job.history[-1]["watermark_us"] == 104 * SECOND
    assert job.last_progress is not None
    assert job.last_progress["watermark_waits_for"] == ["slow"]


@SYNC
def test_stateless_operators_behind_a_source_with_a_watermark(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path, async_enabled: bool
) -> None:
    """They let its time through: the windows behind them know when they are over."""
    job, fired = make_job(options={"async-state.enabled": async_enabled}), list[Any]()
    stream = job.source(
        "e", streaming(spark, tmp_path), event_time="t", watermark_delay=0, sequence="u", drop_stale=True
    )
    found = stream.apply(
        StatelessLookupJoin(TableLookup([{"k": "x", "n": 1}], ["k"], ["n"]), "n long", on=["k"]), uid="looked"
    )
    summed = found.drop("row_kind").apply(
        WindowAggregate(tumble("10 seconds"), [count()]), key="n", uid="windows", event_time="t"
    )
    summed.to(lambda df, batch: fired.extend((row.n, row["count"]) for row in df.collect()), name="fired")
    for number, times in enumerate(((1, 2), (15,), (16,))):
        run(job, number, e=events(spark, *times))
    assert fired == [(1, 2)]


def test_what_is_refused(spark: SparkSession, make_job: MakeJob, tmp_path: Path) -> None:
    def refused(message: str, name: str = "e", **times: Any) -> None:
        job = make_job()
        counted(job.source(name, streaming(spark, tmp_path), **times), watermark_delay=own, event_time=time)
        with pytest.raises(JobError, match=message):
            job.check()

    own, time = None, None
    refused("idle_after without watermark_delay", event_time="t", idle_after="1 minute")
    refused("watermark_delay without event_time", watermark_delay="1 minute")
    refused("event time column 'k' is of type string", event_time="k", watermark_delay=0)
    for wrong in (0, "-1 second", "soon"):
        refused("idle_after is", event_time="t", watermark_delay=0, idle_after=wrong)
    own, time = "1 second", "t"
    refused("'counts:0' is a source and an input", "counts:0", event_time="t", watermark_delay=0)
