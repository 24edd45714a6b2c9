"""Streaming plans against the oracle, and a whole run through the streaming engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import duckdb
import pytest
from pyspark.sql import functions as F  # noqa: N812 - the name Spark code is read with

from asyncstate.errors import ConfigurationError
from bench.nexmark import runner as runner_module
from bench.nexmark.comparison import compare
from bench.nexmark.events import narrow
from bench.nexmark.oracle import QUERIES, register_events
from bench.nexmark.queries import PLANS
from bench.nexmark.runner import NexmarkRunner, RunSettings, check_queries, percentile
from bench.nexmark.sources import EventFiles, write_events

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from asyncstate.spark import MicroBatch

STATELESS = ("q0", "q1", "q2", "q10", "q14", "q21", "q22")


@pytest.fixture(scope="module")
def source(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> EventFiles:
    return write_events(spark, tmp_path_factory.mktemp("nexmark") / "events", 5_000, 2_500)


@pytest.fixture(scope="module")
def oracle(source: EventFiles) -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        register_events(connection, source.path)
        yield connection


@pytest.mark.spark
@pytest.mark.parametrize("query", STATELESS)
def test_stateless_plans_agree_with_the_oracle(
    spark: SparkSession, source: EventFiles, oracle: duckdb.DuckDBPyConnection, query: str, tmp_path: Path
) -> None:
    events = narrow(spark.read.parquet(str(source.path)), QUERIES[query])
    # A plan without state asks nothing of the micro-batch.
    changelog = PLANS[query](cast("MicroBatch", None), events)
    changelog.select(*QUERIES[query].columns, "row_kind").write.parquet(str(tmp_path / "sink"))
    found = compare(oracle, QUERIES[query].sql, tmp_path / "sink")
    assert found.problems == ()
    assert found.expected_rows > 0


@pytest.mark.spark
def test_narrowing_keeps_wide_rows_of_the_needed_kinds(spark: SparkSession, source: EventFiles) -> None:
    events = spark.read.parquet(str(source.path))
    narrowed = narrow(events, QUERIES["q3"])
    assert narrowed.schema.simpleString() == (
        "struct<event_type:int,person:struct<id:bigint,name:string,city:string,state:string>,"
        "auction:struct<id:bigint,seller:bigint,category:bigint>>"
    )
    by_kind = narrowed.groupBy("event_type").agg(F.count("person.id"), F.count("auction.id"))
    assert sorted(map(tuple, by_kind.collect())) == [(0, 100, 0), (1, 0, 300)]


def twice(batch: MicroBatch, events: DataFrame) -> DataFrame:
    right = PLANS["q2"](batch, events)
    return right.union(right)


@pytest.mark.spark
def test_a_run_is_timed_checked_and_a_wrong_result_is_kept(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    runner = NexmarkRunner(session, RunSettings(tmp_path, events=2_500, micro_batch_events=1_000))
    done: list[int] = []
    right = runner.run("q2", async_enabled=False, on_batch=done.append)
    assert right.problems == ()
    assert right.checked
    assert done == [1, 2, 3]
    assert (right.query, right.mode, right.events) == ("q2", "sync", 2_500)
    assert 0 < right.batch_ms_p50 <= right.batch_ms_p95 <= right.seconds * 1000
    assert not (tmp_path / "runs" / "q2-sync").exists()

    monkeypatch.setattr(runner_module, "PLANS", {"q2": twice})
    wrong = runner.run("q2", async_enabled=True)
    assert not wrong.checked
    assert wrong.problems[0] == f"{right.expected_rows} rows are not expected"
    assert (tmp_path / "runs" / "q2-async" / "sink").is_dir()
    runner.close()


def test_queries_without_a_plan_are_named() -> None:
    assert check_queries(["q0", "q1"]) == ("q0", "q1")
    with pytest.raises(ConfigurationError, match="no query q12, q99; choose from q0"):
        check_queries(["q0", "q12", "q99"])


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [
        ([], 50, 0.0),
        ([3.0], 95, 3.0),
        ([4.0, 1.0, 3.0, 2.0], 50, 2.0),
        ([*map(float, range(1, 101))], 95, 95.0),
    ],
)
def test_percentile_is_the_nearest_rank(values: list[float], percent: float, expected: float) -> None:
    assert percentile(values, percent) == expected


def test_every_plan_has_a_spec() -> None:
    plans: dict[str, Any] = dict(PLANS)
    assert plans.keys() <= QUERIES.keys()
