# ruff: noqa: E501  # statements are data, one a line
"""Statements whose operators wait for the watermark, or let it end their state, against DuckDB."""

from __future__ import annotations

import datetime as dt
import random
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("duckdb")

import pyarrow as pa

from asyncstate.sql import sql_pipeline
from asyncstate.testing import PipelineHarness
from tests.sql.tables import Change, Tables, kept_right

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

L, S, T = pa.int64(), pa.string(), pa.timestamp("us", "UTC")
SCHEMAS = {
    "l": pa.schema([("k", L), ("a", L), ("ts", T)]),
    "r": pa.schema([("k", L), ("b", L), ("ts", T)]),
}
BEGIN = dt.datetime(2024, 1, 1, 8, 0, 0, tzinfo=dt.UTC)


def timed_tables(seed: int = 7, batches: int = 6, size: int = 12) -> Tables:
    """Insertions in nearly the order of their times, some without a key or a time, some twice."""
    rng = random.Random(seed)
    changes: dict[str, list[list[Change]]] = {name: [[] for _ in range(batches)] for name in SCHEMAS}
    for name in SCHEMAS:
        for number in range(batches * size):
            second = 10 * number - 5 * rng.randrange(0, 6)
            at = None if rng.random() < 0.08 else BEGIN + dt.timedelta(seconds=second)
            key = None if rng.random() < 0.1 else rng.randrange(3)
            row = key, rng.randrange(6), at
            changes[name][number // size] += [("+I", row)] * (2 if rng.random() < 0.1 else 1)
    return Tables(SCHEMAS, changes, insert_only=True, times=dict.fromkeys(SCHEMAS, "ts"), delay="1 minute")


BETWEEN = "r.ts BETWEEN l.ts - INTERVAL 20 SECONDS AND l.ts + INTERVAL 10 SECONDS"
INTERVALS: dict[str, str] = {
    "inner": f"SELECT l.k, a, b, l.ts, r.ts AS then FROM l JOIN r ON l.k = r.k AND {BETWEEN}",
    "where": f"SELECT l.k, a, b FROM l, r WHERE l.k = r.k AND {BETWEEN} AND a < b",
    "strict": "SELECT l.k, a, b FROM l JOIN r ON l.k = r.k AND l.ts < r.ts AND l.ts + INTERVAL 15 SECONDS > r.ts",
    "subtracted": "SELECT l.k, a, b FROM l JOIN r ON l.k = r.k AND r.ts - l.ts <= INTERVAL 15 SECONDS AND INTERVAL '-5' SECOND <= r.ts - l.ts",
    "equal": "SELECT l.k, a, b FROM l JOIN r ON l.k = r.k AND l.ts = r.ts",
    "keyless": f"SELECT l.k, a, b FROM l JOIN r ON {BETWEEN} AND a = 1",
    "left": f"SELECT l.k, a, b, l.ts FROM l LEFT JOIN r ON l.k = r.k AND {BETWEEN}",
    "left-residual": f"SELECT l.k, a, b, l.ts FROM l LEFT JOIN r ON l.k = r.k AND {BETWEEN} AND a < b",
    "right": f"SELECT l.k, a, b, r.ts FROM l RIGHT JOIN r ON l.k = r.k AND {BETWEEN}",
    "full": f"SELECT l.k, a, r.k AS rk, b FROM l FULL JOIN r ON l.k = r.k AND {BETWEEN}",
    "semi": f"SELECT k, a, ts FROM l WHERE EXISTS (SELECT 1 FROM r WHERE l.k = r.k AND {BETWEEN})",
    "anti": f"SELECT k, a, ts FROM l WHERE NOT EXISTS (SELECT 1 FROM r WHERE l.k = r.k AND {BETWEEN})",
    "renamed": "SELECT x.k, t, u FROM (SELECT k, ts AS t FROM l WHERE a > 1) x JOIN (SELECT k AS j, ts AS u FROM r) y ON k = j AND u >= t AND u <= t + INTERVAL 10 SECONDS",
}


def operators(pipeline: Any, tables: Tables, sql: str) -> str:
    """The graph of a pipeline."""
    with PipelineHarness(pipeline, tables.sources(tables.used(sql))) as harness:
        return harness.explain()


@pytest.mark.parametrize("name", INTERVALS)
def test_times_within_constants_are_an_interval_join(spark: SparkSession, name: str) -> None:
    sql, tables = INTERVALS[name], timed_tables()
    pipeline = sql_pipeline(sql, spark=spark)
    assert "IntervalJoin" in operators(pipeline, tables, sql)
    waits = name in ("left", "left-residual", "right", "full", "anti")
    begins_async = list(INTERVALS).index(name) % 2 == 1
    assert kept_right(pipeline, tables, sql, sql, async_enabled=begins_async, finish=waits) > 3


UNBOUNDED = {
    "one side": "SELECT l.k, a, b FROM l JOIN r ON l.k = r.k AND r.ts >= l.ts",
    "months": "SELECT l.k, a, b FROM l JOIN r ON l.k = r.k AND r.ts BETWEEN l.ts AND l.ts + INTERVAL 1 MONTH",
    "a column": "SELECT l.k, a, b FROM l JOIN r ON l.k = r.k AND r.ts >= l.ts AND r.ts <= CASE WHEN a > 1 THEN l.ts + INTERVAL 9 SECONDS ELSE l.ts END",
    "empty": "SELECT l.k, a, b FROM l LEFT JOIN r ON l.k = r.k AND r.ts BETWEEN l.ts + INTERVAL 1 SECOND AND l.ts",
    "computed": "SELECT l.k, a FROM l JOIN (SELECT k, CAST(ts AS DATE) + INTERVAL 1 SECOND AS ts FROM r) r ON l.k = r.k AND r.ts BETWEEN l.ts AND l.ts + INTERVAL 1 DAY",
}


@pytest.mark.parametrize("name", UNBOUNDED)
def test_other_conditions_on_times_keep_all_rows(spark: SparkSession, name: str) -> None:
    sql, tables = UNBOUNDED[name], timed_tables()
    assert "IntervalJoin" not in operators(sql_pipeline(sql, spark=spark), tables, sql)


def test_changes_and_days_of_unequal_length_keep_all_rows(spark: SparkSession) -> None:
    sql, tables = INTERVALS["inner"], timed_tables()
    tables.insert_only = False
    assert "IntervalJoin" not in operators(sql_pipeline(sql, spark=spark), tables, sql)
    tables.insert_only, tables.delay = True, None
    assert "IntervalJoin" not in operators(sql_pipeline(sql, spark=spark), tables, sql)
    days, tables = sql.replace("10 SECONDS", "2 DAYS"), timed_tables()
    assert "IntervalJoin" in operators(sql_pipeline(days, spark=spark), tables, sql)
    zone = spark.conf.get("spark.sql.session.timeZone")
    assert zone is not None
    spark.conf.set("spark.sql.session.timeZone", "Europe/Vienna")
    try:
        assert "IntervalJoin" not in operators(sql_pipeline(days, spark=spark), tables, sql)
        assert "IntervalJoin" in operators(sql_pipeline(sql, spark=spark), tables, sql)
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
