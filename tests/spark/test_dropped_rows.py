"""What the readers of sources drop is counted once per micro-batch, with an example, and logged as a warning."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import DataFrame, SparkSession

from asyncstate.metrics import Observed
from asyncstate.spark import StreamingJob
from asyncstate.spark.kafka import Json
from asyncstate.spark.kafka.job_source import kafka_source
from asyncstate.spark.sources import debezium_json, json_rows, operation_column
from asyncstate.spark.spark_executor import SparkExecutor
from operators import ChangelogNormalize, GroupAggregate, count, sum_
from tests.spark.conftest import PLACES

pytestmark = pytest.mark.spark

MakeJob = Callable[..., StreamingJob]
ITEMS = "k bigint not null, v bigint"
GOOD = ['{"k": 1, "v": 2}', '{"k": 1, "v": 3}', '{"k": 2, "v": 5}']
BAD = ['{"k": 1', '{"v": 1}', '{"k": 1} {"k": 2}']
BROKERS_COLUMNS = "value string, topic string, partition int, offset bigint"


def put(spark: SparkSession, folder: Path, name: str, lines: list[str], schema: str = "value string") -> None:
    rows = [
        (line,) if schema == "value string" else (line, "orders", 3, 7 + at) for at, line in enumerate(lines)
    ]
    spark.createDataFrame(rows, schema).coalesce(1).write.parquet(str(folder / name))


def read(spark: SparkSession, folder: Path, schema: str = "value string") -> DataFrame:
    return spark.readStream.schema(schema).option("recursiveFileLookup", "true").parquet(str(folder))


def run(job: StreamingJob) -> Mapping[str, Any]:
    job.await_termination(job.start(trigger="availableNow"))
    assert job.last_progress is not None
    return job.last_progress["dropped"]


def counts_again(monkeypatch: pytest.MonkeyPatch) -> list[DataFrame]:
    """The DataFrames that are read once more for the count."""
    found: list[DataFrame] = []
    own = SparkExecutor.dropped

    def dropped(self: SparkExecutor, rows: DataFrame) -> Observed:
        found.append(rows)
        return own(self, rows)

    monkeypatch.setattr(SparkExecutor, "dropped", dropped)
    return found


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if "cannot read" in one.getMessage()]


def sink(into: list[Any]) -> Callable[[DataFrame, int], None]:
    return lambda df, _: into.extend(tuple(row) for row in df.collect())


@PLACES
def test_a_stage_counts_what_it_reads(
    spark: SparkSession,
    make_job: MakeJob,
    tmp_path: Path,
    async_enabled: bool,
    executor: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    again = counts_again(monkeypatch)
    totals, twice = list[Any](), list[Any]()

    def declared() -> StreamingJob:
        options = {"async-state.enabled": async_enabled, "async-state.executor": executor}
        job = make_job(options=options)
        given = json_rows(
            read(spark, tmp_path / "in", BROKERS_COLUMNS), ITEMS, malformed="drop", keep="offset"
        )
        items = job.source("items", given)
        sums = [count().alias("n"), sum_("v").alias("total")]
        items.where("v > 0").apply(GroupAggregate(sums), key="k", uid="totals").to(
            sink(totals), name="totals"
        )
        items.where("v > 100").apply(GroupAggregate(sums), key="k", uid="more").to(sink([]), name="more")
        both = items.select("k", "v").union(items.select("k", "v"))
        both.apply(GroupAggregate([count().alias("n")]), key="k", uid="twice").to(sink(twice), name="twice")
        return job

    put(spark, tmp_path / "in", "1", [*GOOD, *BAD], BROKERS_COLUMNS)
    with caplog.at_level(logging.WARNING):
        assert run(declared()) == {
            "items": {
                "rows": 3,
                "example": "topic orders, partition 3, offset 10: not an event of this format, or more text follows it",
            }
        }
    assert len(warnings(caplog)) == 1
    assert "source 'items' dropped 3 messages" in warnings(caplog)[0]
    assert "topic orders, partition 3, offset 10" in warnings(caplog)[0]
    caplog.clear()
    assert sorted(row[:3] for row in totals) == [(1, 2, 5), (2, 1, 5)]
    assert sorted(row[:2] for row in twice) == [(1, 4), (2, 2)]
    put(spark, tmp_path / "in", "2", GOOD, BROKERS_COLUMNS)
    with caplog.at_level(logging.WARNING):
        assert run(declared()) == {"items": {"rows": 0, "example": None}}
    assert warnings(caplog) == []
    assert again == []


def test_without_a_stage_the_source_is_read_once_more(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = counts_again(monkeypatch)
    folder, rows, other = tmp_path / "in", list[Any](), list[Any]()
    put(spark, folder, "1", [*GOOD, *BAD])
    job = make_job()
    job.source("items", json_rows(read(spark, folder), ITEMS, malformed="drop")).to(sink(rows), name="rows")
    operations = operation_column(read(spark, folder), "value", {GOOD[0]: "+I"}, malformed="drop")
    job.source("other", operations.selectExpr("*"), mode="retract").to(sink(other), name="ignored")
    job.source(
        "operations",
        operation_column(
            read(spark, folder).selectExpr("value", "value as op"), "op", {GOOD[0]: "+I"}, malformed="drop"
        ),
    ).to(sink(other), name="other")
    dropped = run(job)
    assert {name: one["rows"] for name, one in dropped.items()} == {"items": 3, "operations": 5}
    assert sorted(rows) == [(1, 2), (1, 3), (2, 5)]
    assert len(again) == 2
    assert "is not one of" in str(dropped["operations"]["example"])


class OwnFormat:
    """A format of a user's own, which drops messages by itself."""

    def rows(self, df: DataFrame, malformed: Any) -> DataFrame:
        return df.where("value like '{%}'")


def test_a_format_that_does_not_count_is_named(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    given = spark.readStream.schema("value string").parquet(str(tmp_path))
    with caplog.at_level(logging.WARNING):
        kafka_source(make_job(), "own", given, OwnFormat(), None, "drop", {})
        kafka_source(make_job(), "ours", given, Json(ITEMS), None, "drop", {})
    assert [one.args[0] for one in caplog.records if "is not counted" in one.getMessage()] == ["own"]


def test_upserts_and_dataframes_that_spark_has_derived(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    events = [json.dumps({"op": "c", "before": None, "after": {"k": n, "v": n}}) for n in range(4)]
    put(spark, tmp_path / "in", "1", [*events, '{"op": "x"}'])
    given = debezium_json(read(spark, tmp_path / "in"), ITEMS, upsert_key="k", malformed="drop")
    job, found, derived = make_job(), list[Any](), list[Any]()
    job.source("items", given).apply(ChangelogNormalize(), key="k", uid="items").to(sink(found), name="found")
    with caplog.at_level(logging.WARNING):
        other = job.source("derived", given.where("k > 2"), mode="upsert", primary_key="k")
    assert any(
        "source 'derived' drops malformed rows, and they are not counted" in one.getMessage()
        for one in caplog.records
    )
    other.apply(ChangelogNormalize(), key="k", uid="derived").to(sink(derived), name="derived rows")
    assert {name: one["rows"] for name, one in run(job).items()} == {"items": 1}
    assert sorted(row[0] for row in found) == [0, 1, 2, 3]
    assert [row[0] for row in derived] == [3]
