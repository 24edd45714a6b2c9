"""Chains of a job on Spark: what they give, and what is known and shown of them before it starts."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from asyncstate.dataflow import Stream
from asyncstate.errors import JobError
from asyncstate.operators import avg, count, lag, tumble
from asyncstate.runtime.partition.worker_memory import worker_memory
from asyncstate.spark import StreamingJob
from asyncstate.testing import PipelineHarness, PipelineSource, net

pytestmark = pytest.mark.spark

BIDS = "item string, bidder bigint, price decimal(10, 2), at timestamp"
ITEMS = "item string, kind string, row_kind string"
START = dt.datetime(2026, 1, 1)
ROWS = [
    ("pen", 1, "1.50", 0),
    ("cup", 2, "4.00", 3),
    ("pen", 2, "2.50", 5),
    ("hat", 3, "9.00", 11),
    ("cup", 1, "4.50", 12),
    ("pen", 3, "3.00", 14),
    ("hat", 1, "9.50", 25),
]


def write(spark: SparkSession, folder: Path) -> None:
    """The rows of the sources: bids in two files, one a micro-batch."""
    for part in (ROWS[:4], ROWS[4:]):
        rows = [(item, bidder, price, START + dt.timedelta(seconds=at)) for item, bidder, price, at in part]
        df = spark.createDataFrame(rows, "item string, bidder bigint, price string, at timestamp")
        typed = df.selectExpr("item", "bidder", "CAST(price AS decimal(10, 2)) AS price", "at")
        typed.coalesce(1).write.mode("append").parquet(str(folder / "bids"))
    items = [("pen", "office", "+I"), ("cup", "home", "+I"), ("hat", "wear", "+I"), ("hat", "wear", "-D")]
    spark.createDataFrame(items, ITEMS).coalesce(1).write.parquet(str(folder / "items"))


def declared(bids: Stream, items: Stream) -> dict[str, Stream]:
    """Streams by the name of their sink."""
    windows = bids.group_by("upper(item)").window(tumble("10 seconds")).agg(n=count(), s="sum(price * 1.5)")
    places = bids.over("bidder % 2", order_by="at").with_columns(
        place="row_number()", before=lag("price"), share="price / sum(price)"
    )
    kinds = bids.join(items, on="item", how="left").group_by(kind="coalesce(kind, 'none')")
    return {
        "windows": windows.select("`upper(item)` AS item", "window_start", "n", "s"),
        "places": places.drop("item"),
        "kinds": kinds.agg(avg("price").alias("mean"), bidders="count(DISTINCT bidder)"),
        "best": kinds.top(1, by=["price * -1", "item ASC"], number="r").select("kind", "item", "r"),
    }


ANSWERS = {
    "windows": "select upper(item), window(at, '10 seconds').start, count(*), sum(price * 1.5) from bids group by "
    "upper(item), window(at, '10 seconds')",
    "places": "select bidder, price, at, row_number() over w, lag(price) over w, price / sum(price) over w from bids "
    "window w as (partition by bidder % 2 order by at)",
    "kinds": "select coalesce(kind, 'none'), avg(price), count(distinct bidder) from bids left join items using (item) "
    "group by 1",
    "best": "select k, item, r from (select coalesce(kind, 'none') as k, item, row_number() over (partition by "
    "coalesce(kind, 'none') order by price, item) as r from bids left join items using (item)) where r = 1",
}


def job_of(spark: SparkSession, folder: Path) -> tuple[StreamingJob, dict[str, Stream]]:
    """The job and its streams; whatever Spark has read it may delete."""
    job = StreamingJob(spark, str(folder / "checkpoint"), {"async-state.parallelism": 2})
    reader = spark.readStream.option("maxFilesPerTrigger", 1).option("cleanSource", "delete")
    bids = job.source(
        "bids",
        reader.schema(BIDS).parquet(str(folder / "bids")),
        event_time="at",
        watermark_delay="2 seconds",
    )
    items = job.source("items", spark.readStream.schema(ITEMS).parquet(str(folder / "items")), changelog=True)
    return job, declared(bids, items)


def test_a_job_gives_what_spark_answers_in_batch(spark: SparkSession, tmp_path: Path) -> None:
    write(spark, tmp_path)
    for name in ("bids", "items"):
        spark.read.parquet(str(tmp_path / name)).createOrReplaceTempView(name)
    spark.sql("select * from items where item <> 'hat'").createOrReplaceTempView("items")
    answers = {name: Counter(map(tuple, spark.sql(sql).collect())) for name, sql in ANSWERS.items()}
    job, streams = job_of(spark, tmp_path)
    got: dict[str, Counter[Any]] = {}
    for name, stream in streams.items():
        table = got[name] = Counter()

        def write_rows(rows: DataFrame, batch_id: int, table: Counter[Any] = table) -> None:
            table.update(net(rows.collect()))

        stream.to(write_rows, name=name)
    streams["kinds"].show()  # reads nothing away
    job.await_termination(job.start(trigger="availableNow"))
    job.finish()
    assert {name: +table for name, table in got.items()} == answers
    assert all(count >= 0 for table in got.values() for count in table.values())


def test_columns_are_the_same_in_a_job_and_in_a_harness(spark: SparkSession, tmp_path: Path) -> None:
    write(spark, tmp_path)
    _, streams = job_of(spark, tmp_path)
    in_job = {name: dict(stream.columns) for name, stream in streams.items()}
    in_harness: dict[str, dict[str, pa.DataType]] = {}

    def pipeline(bids: Stream, items: Stream) -> None:
        for name, stream in declared(bids, items).items():
            in_harness[name] = dict(stream.columns)
            stream.to(print, name=name)

    sources = {
        "bids": PipelineSource(pa.schema(BIDS_TYPES), event_time="at", watermark_delay="2 seconds"),
        "items": PipelineSource("item string, kind string", changelog=True),
    }
    PipelineHarness(pipeline, sources).close()
    assert in_harness.keys() == in_job.keys()
    for name in ("places", "best"):
        assert list(in_harness[name]) == list(in_job[name])
    assert in_job["kinds"] == {"kind": pa.string(), "mean": pa.decimal128(14, 6), "bidders": pa.int64()}
    assert in_job["kinds"] == in_harness["kinds"]
    assert in_job["windows"]["window_start"] == in_harness["windows"]["window_start"]


BIDS_TYPES = [
    ("item", pa.string()),
    ("bidder", pa.int64()),
    ("price", pa.decimal128(10, 2)),
    ("at", pa.timestamp("us", "UTC")),
]


def test_show_reads_some_rows_and_leaves_everything_as_it_is(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(spark, tmp_path)
    _, streams = job_of(spark, tmp_path)

    def files() -> list[Path]:
        return sorted(path for path in tmp_path.rglob("*") if path.is_file())

    def shown(name: str, *given: Any, **settings: Any) -> list[str]:
        streams[name].show(*given, **settings)
        return capsys.readouterr().out.splitlines()

    before, stores = files(), len(worker_memory().stores)
    line, head, _, *rows, _, end = shown("kinds")
    assert line == "+--------+----------+---------+"
    assert head == "|   kind |     mean | bidders |"
    assert sorted(rows) == [
        "|   home | 4.000000 |       1 |",
        "|   none | 9.000000 |       1 |",
        "| office | 2.000000 |       2 |",
    ]
    assert end == "3 rows; rows read: 4 of bids, 4 of items"
    assert len(shown("windows", 2)) == 4 + 2 + 2
    given = {"bids": [("pen", 7, None, START)], "items": spark.read.parquet(str(tmp_path / "items"))}
    *_, row, _, end = shown("kinds", given)
    assert row == "| office | NULL |       1 |"
    assert end == "1 rows; rows read: 1 of bids, 4 of items"
    _, head, *_, end = shown("best", changes=True, sample=1)
    assert head.startswith("| row_kind | ")
    assert end.endswith("rows read: 1 of bids (more were not read), 1 of items (more were not read)")
    assert files() == before
    assert len(worker_memory().stores) == stores
    with pytest.raises(JobError, match=r"show: there is no source 'nothing' here; there are bids, items"):
        streams["kinds"].show({"nothing": []})


@pytest.mark.executors
def test_show_where_no_operator_runs_in_the_driver(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(spark, tmp_path)
    for module in ("asyncstate.spark.job", "asyncstate.spark.sample"):
        monkeypatch.setattr(f"{module}.runs_locally", lambda _: False)  # as before Spark 4.0
    _, streams = job_of(spark, tmp_path)
    streams["kinds"].show()
    assert capsys.readouterr().out.endswith("3 rows; rows read: 4 of bids, 4 of items\n")
    monkeypatch.setattr("asyncstate.spark.sample.is_one_machine", lambda _: False)
    with pytest.raises(JobError, match=r"show: before Spark 4\.0 its operators run on the executors"):
        streams["kinds"].show()
