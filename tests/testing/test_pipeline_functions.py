"""Expressions of a pipeline in a harness that are not computed row by row: generators, and functions of DataFrames."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from asyncstate.dataflow import Stream
from asyncstate.errors import JobError
from asyncstate.testing import PipelineHarness, PipelineSource
from operators import GroupAggregate, max_

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVENTS = PipelineSource(
    pa.schema([("id", pa.int64()), ("us", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
)


def utc(second: int) -> dt.datetime:
    return dt.datetime(1970, 1, 1, 0, 0, second, tzinfo=dt.UTC)


def test_functions_inside_of_explode_are_those_of_spark() -> None:
    def exploded(events: Stream) -> None:
        events.select("id", "explode(array(timestamp_micros(us))) AS made").to(print, name="out")

    with PipelineHarness(exploded, {"events": EVENTS}) as harness:
        harness.push("events", [(1, 5_000_000, None)])
        assert harness.end_batch()["out"] == [("+I", 1, 5_000_000)]


@pytest.mark.spark
def test_times_of_a_function_of_dataframes_are_in_utc(spark: SparkSession) -> None:
    def newest(events: Stream) -> None:
        kept = events.transform(lambda rows: rows.select("id", "at"))
        kept.apply(GroupAggregate([max_("at").alias("at")]), key="id", uid="newest").to(print, name="out")

    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        with PipelineHarness(newest, {"events": EVENTS}, spark=spark) as harness:
            assert "newest" in harness.explain()
            harness.push("events", [(1, 0, utc(7))])
            assert harness.end_batch()["out"] == [("+I", 1, 7_000_000)]
            assert harness.operator("newest").output_schema.field("at").type == pa.timestamp("us", "UTC")
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)


def test_a_session_that_is_too_old_for_functions_of_dataframes_is_refused() -> None:
    class Old:
        version = "3.5.8"

    def flow(events: Stream) -> None:
        events.transform(lambda rows: rows).to(print, name="out")

    session: Any = Old()
    with pytest.raises(
        JobError, match="on Spark 4.0 or newer, and this session is of Spark 3.5.8; use SQL text"
    ):
        PipelineHarness(flow, {"events": EVENTS}, spark=session)
