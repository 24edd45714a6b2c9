# ruff: noqa: E501  # statements are data, one a line
"""Statements whose operators wait for the watermark, or let it end their state, against DuckDB."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("duckdb")


from asyncstate.errors import SqlError
from asyncstate.sql import sql_pipeline
from asyncstate.sql.statements import SqlContext
from asyncstate.testing import PipelineHarness
from tests.sql.random_windows import BEGIN, timed_tables
from tests.sql.tables import NEEDS_COMPILER, Tables, kept_right
from tests.sql.test_statements import pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, NEEDS_COMPILER]

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


def operators(flow: Any, tables: Tables, sql: str) -> str:
    """The graph of a pipeline."""
    with PipelineHarness(flow, tables.sources(tables.used(sql))) as harness:
        return harness.explain()


@pytest.mark.parametrize("name", INTERVALS)
def test_times_within_constants_are_an_interval_join(spark: SparkSession, name: str) -> None:
    sql, tables = INTERVALS[name], timed_tables()
    flow = sql_pipeline(sql, spark=spark)
    assert "IntervalJoin" in operators(flow, tables, sql)
    waits = name in ("left", "left-residual", "right", "full", "anti")
    begins_async = list(INTERVALS).index(name) % 2 == 1
    assert kept_right(flow, tables, sql, sql, async_enabled=begins_async, finish=waits) > 3


UNBOUNDED = {
    "one side": "SELECT l.k, a, b FROM l JOIN r ON l.k = r.k AND r.ts >= l.ts",
    "a scalar subquery": f"SELECT l.k, a, b FROM l LEFT JOIN r ON l.k = r.k AND {BETWEEN} AND a < (SELECT max(rate) FROM v)",
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


ASOF = "SELECT l.k, a, rate, l.ts FROM l {} JOIN v FOR SYSTEM_TIME AS OF l.ts AS x ON l.k = x.k"
TEMPORAL: dict[str, tuple[str, str]] = {
    "inner": (ASOF.format(""), "SELECT l.k, a, rate, ts FROM l ASOF JOIN v ON l.k = v.k AND ts >= since"),
    "left": (
        ASOF.format("LEFT"),
        "SELECT l.k, a, rate, ts FROM l ASOF LEFT JOIN v ON l.k = v.k AND ts >= since WHERE ts IS NOT NULL",
    ),
    "conditions after it": (
        "SELECT l.k, a, rate FROM l\nJOIN v FOR SYSTEM_TIME AS OF l.ts\n  ON l.k = v.k AND (rate > 3 OR a > rate) OR l.k = v.k AND false WHERE v.rate < 8 AND a + rate > 4",
        "SELECT l.k, a, rate FROM l ASOF JOIN v ON l.k = v.k AND ts >= since WHERE (rate > 3 OR a > rate) AND rate < 8 AND a + rate > 4",
    ),
    "another time before the version": (
        "SELECT l.k, a, rate FROM (SELECT *, ts - INTERVAL 40 SECONDS AS early FROM l) l JOIN v FOR SYSTEM_TIME AS OF l.ts ON l.k = v.k WHERE early >= v.since",
        "SELECT l.k, a, rate FROM l ASOF JOIN v ON l.k = v.k AND ts >= since WHERE ts - INTERVAL '40 s' >= since",
    ),
    "equal after it": (
        "SELECT l.k, a, rate FROM l JOIN v FOR SYSTEM_TIME AS OF l.ts ON l.k = v.k WHERE a + 1 = v.rate",
        "SELECT l.k, a, rate FROM l ASOF JOIN v ON l.k = v.k AND ts >= since WHERE a + 1 = rate",
    ),
    "a scalar subquery after it": (
        "SELECT l.k, a, rate FROM l JOIN v FOR SYSTEM_TIME AS OF l.ts ON l.k = v.k WHERE v.rate < (SELECT max(b) FROM r)",
        "SELECT l.k, a, rate FROM l ASOF JOIN v ON l.k = v.k AND ts >= since WHERE rate < (SELECT max(b) FROM r)",
    ),
    "in a group": (
        "WITH q AS (SELECT a, rate FROM l JOIN v FOR SYSTEM_TIME AS OF l.ts ON l.k = v.k) SELECT a, sum(rate) AS s, count(*) AS n FROM q GROUP BY a",
        "SELECT a, sum(rate) AS s, count(*) AS n FROM l ASOF JOIN v ON l.k = v.k AND ts >= since GROUP BY a",
    ),
    "quoted": (
        "select `l`.a, `for system_time as of x`.rate as `a join b` from l left join `v` for system_time as of `l`.`ts` `for system_time as of x` on `l`.k = `for system_time as of x`.k /* for system_time as of l.x */ where l.a > 0 -- for system_time",
        "SELECT a, rate FROM l ASOF LEFT JOIN v ON l.k = v.k AND ts >= since WHERE ts IS NOT NULL AND a > 0",
    ),
}


@pytest.mark.parametrize("name", TEMPORAL)
def test_rows_join_the_version_of_their_time(spark: SparkSession, name: str) -> None:
    (sql, oracle), tables = TEMPORAL[name], timed_tables()
    flow = sql_pipeline(sql, spark=spark)
    assert "TemporalJoin" in operators(flow, tables, sql)
    begins_async = list(TEMPORAL).index(name) % 2 == 1
    assert kept_right(flow, tables, sql, oracle, async_enabled=begins_async, finish=True) > 3


WINDOWS: dict[str, tuple[str, str, str]] = {
    "tumble": (
        "SELECT k, window_start, window_end, count(*) AS n, sum(a) AS s FROM TUMBLE(TABLE l, DESCRIPTOR(ts), INTERVAL '20' SECOND) GROUP BY k, window_start, window_end",
        "SELECT k, time_bucket(INTERVAL '20 s', ts) AS w, w + INTERVAL '20 s', count(*), sum(a) FROM l WHERE ts IS NOT NULL GROUP BY k, w",
        "WindowAggregate",
    ),
    "tumble in TABLE()": (
        "SELECT window_end, w.window_time, max(a) AS m, max(ts) AS t FROM TABLE(TUMBLE(TABLE l, DESCRIPTOR(`TS`), INTERVAL 20 SECONDS, INTERVAL 5 SECONDS)) AS w WHERE a > 1 GROUP BY window_start, window_end, window_time",
        "SELECT time_bucket(INTERVAL '20 s', ts - INTERVAL '5 s') + INTERVAL '25 s' AS e, e - INTERVAL '1 ms', max(a), max(ts) FROM l WHERE ts IS NOT NULL AND a > 1 GROUP BY e",
        "WindowAggregate",
    ),
    "listagg": (
        "SELECT k, window_end, listagg(a + 8, ',') WITHIN GROUP (ORDER BY a DESC) AS x FROM TUMBLE(TABLE l, DESCRIPTOR(ts), INTERVAL 20 SECONDS) GROUP BY k, window_start, window_end",
        "SELECT k, time_bucket(INTERVAL '20 s', ts) + INTERVAL '20 s' AS e, string_agg((a + 8)::varchar, ',' ORDER BY a DESC) FROM l WHERE ts IS NOT NULL GROUP BY k, e",
        "WindowAggregate",
    ),
    "two sources": (
        "SELECT k, window_start, count(*) AS n FROM TUMBLE(TABLE (SELECT k, ts FROM l WHERE a > 1 UNION ALL SELECT k, ts FROM r), DESCRIPTOR(ts), INTERVAL 20 SECONDS) GROUP BY k, window_start, window_end",
        "SELECT k, time_bucket(INTERVAL '20 s', ts) AS w, count(*) FROM (SELECT k, ts FROM l WHERE a > 1 UNION ALL SELECT k, ts FROM r) WHERE ts IS NOT NULL GROUP BY k, w",
        "WindowAggregate",
    ),
    "two sources, one at another time": (
        "SELECT k, window_start, count(*) AS n FROM TUMBLE(TABLE (SELECT k, ts FROM l UNION ALL SELECT k, ts + INTERVAL 5 SECONDS AS ts FROM r), DESCRIPTOR(ts), INTERVAL 20 SECONDS) GROUP BY k, window_start, window_end",
        "SELECT k, time_bucket(INTERVAL '20 s', ts) AS w, count(*) FROM (SELECT k, ts FROM l UNION ALL SELECT k, ts + INTERVAL '5 s' FROM r) WHERE ts IS NOT NULL GROUP BY k, w",
        "GroupAggregate",
    ),
    "hop": (
        "SELECT window_start, count(DISTINCT a) AS n FROM HOP(TABLE l, DESCRIPTOR(ts), INTERVAL 10 SECONDS, INTERVAL 30 SECONDS) GROUP BY window_start, window_end HAVING count(*) > 1",
        "SELECT time_bucket(INTERVAL '10 s', ts) - x * INTERVAL '10 s' AS w, count(DISTINCT a) FROM l, range(3) AS r(x) WHERE ts IS NOT NULL GROUP BY w HAVING count(*) > 1",
        "WindowAggregate",
    ),
    "cumulate": (
        "SELECT k, window_start, window_end, count(*) AS n FROM CUMULATE(DATA => TABLE l, TIMECOL => DESCRIPTOR(ts), STEP => INTERVAL 10 SECONDS, SIZE => INTERVAL 30 SECONDS) GROUP BY window_start, window_end, k",
        "SELECT k, w, w + (x + 1) * INTERVAL '10 s' AS e, count(*) FROM (SELECT k, ts, x, time_bucket(INTERVAL '30 s', ts) AS w FROM l, range(3) AS r(x)) WHERE w + (x + 1) * INTERVAL '10 s' > ts GROUP BY k, w, x",
        "WindowAggregate",
    ),
    "session": (
        "SELECT k, window_start, window_end, count(*) AS n FROM SESSION(TABLE l PARTITION BY k, DESCRIPTOR(ts), INTERVAL 15 SECONDS) GROUP BY k, window_start, window_end",
        "WITH s AS (SELECT k, ts, ts - lag(ts) OVER (PARTITION BY k ORDER BY ts) > INTERVAL '15 s' AS o FROM l WHERE ts IS NOT NULL), g AS (SELECT k, ts, count(*) FILTER (WHERE o) OVER (PARTITION BY k ORDER BY ts) AS n FROM s) SELECT k, min(ts), max(ts) + INTERVAL '15 s', count(*) FROM g GROUP BY k, n",
        "WindowAggregate",
    ),
    "rows of sessions": (
        "SELECT a, window_end FROM SESSION(TABLE l PARTITION BY k, DESCRIPTOR(ts), INTERVAL 15 SECONDS)",
        "WITH s AS (SELECT k, a, ts, ts - lag(ts) OVER (PARTITION BY k ORDER BY ts) > INTERVAL '15 s' AS o FROM l WHERE ts IS NOT NULL), g AS (SELECT k, a, ts, count(*) FILTER (WHERE o) OVER (PARTITION BY k ORDER BY ts) AS n FROM s) SELECT a, max(ts) OVER (PARTITION BY k, n) + INTERVAL '15 s' FROM g",
        "SessionTableFunction",
    ),
    "some rows of sessions, which stay as long": (
        "SELECT k, window_start, window_end, sum(x) AS s, count(DISTINCT x) FILTER (WHERE x > 2) AS d FROM (SELECT k, a + 1 AS x, window_start, window_end FROM SESSION(TABLE l PARTITION BY k, DESCRIPTOR(ts), INTERVAL 12 SECONDS) WHERE a < 3) WHERE x < 6 AND k >= 1 GROUP BY k, window_start, window_end",
        "WITH s AS (SELECT k, a, ts, ts - lag(ts) OVER (PARTITION BY k ORDER BY ts) > INTERVAL '12 s' AS o FROM l WHERE ts IS NOT NULL), g AS (SELECT k, a, ts, count(*) FILTER (WHERE o) OVER (PARTITION BY k ORDER BY ts) AS n FROM s), w AS (SELECT k, a, min(ts) OVER (PARTITION BY k, n) AS b, max(ts) OVER (PARTITION BY k, n) + INTERVAL '12 s' AS e FROM g) SELECT k, b, e, sum(a + 1), count(DISTINCT a + 1) FILTER (WHERE a + 1 > 2) FROM w WHERE a < 3 AND a + 1 < 6 AND k >= 1 GROUP BY k, b, e",
        "WindowAggregate",
    ),
    "sessions of some keys": (
        "SELECT k, window_end, max(a) AS m FROM SESSION(TABLE l PARTITION BY k, DESCRIPTOR(ts), INTERVAL 15 SECONDS) WHERE k > 0 GROUP BY k, window_start, window_end",
        "WITH s AS (SELECT k, a, ts, ts - lag(ts) OVER (PARTITION BY k ORDER BY ts) > INTERVAL '15 s' AS o FROM l WHERE ts IS NOT NULL), g AS (SELECT k, a, ts, count(*) FILTER (WHERE o) OVER (PARTITION BY k ORDER BY ts) AS n FROM s), w AS (SELECT k, a, min(ts) OVER (PARTITION BY k, n) AS b, max(ts) OVER (PARTITION BY k, n) + INTERVAL '15 s' AS e FROM g) SELECT k, e, max(a) FROM w WHERE k > 0 GROUP BY k, b, e",
        "WindowAggregate",
    ),
    "of windows": (
        "SELECT window_start, window_end, sum(n) AS s, count(*) AS m FROM TUMBLE(TABLE (SELECT k, count(*) AS n, window_time AS ts FROM HOP(TABLE l, DESCRIPTOR(ts), INTERVAL 5 SECONDS, INTERVAL 10 SECONDS) GROUP BY k, window_start, window_end, window_time), DESCRIPTOR(ts), INTERVAL 30 SECONDS) GROUP BY window_start, window_end",
        "SELECT time_bucket(INTERVAL '30 s', e - INTERVAL '1 ms') AS w, w + INTERVAL '30 s', sum(n), count(*) FROM (SELECT k, time_bucket(INTERVAL '5 s', ts) - x * INTERVAL '5 s' + INTERVAL '10 s' AS e, count(*) AS n FROM l, range(2) AS r(x) WHERE ts IS NOT NULL GROUP BY k, e) GROUP BY w",
        "WindowAggregate",
    ),
    "of joins by time": (
        "SELECT k, window_start, count(*) AS n, count(b) AS m FROM TUMBLE(TABLE (SELECT q.k AS k, b, q.ts AS ts FROM (SELECT l.k AS k, a, rate, l.ts AS ts FROM l LEFT JOIN v FOR SYSTEM_TIME AS OF l.ts ON l.k = v.k) AS q LEFT JOIN r ON q.k = r.k AND r.ts BETWEEN q.ts - INTERVAL 10 SECONDS AND q.ts), DESCRIPTOR(ts), INTERVAL 20 SECONDS) GROUP BY k, window_start, window_end",
        "SELECT k, time_bucket(INTERVAL '20 s', ts) AS w, count(*), count(b) FROM (SELECT q.k AS k, b, q.ts AS ts FROM (SELECT l.k AS k, a, rate, l.ts AS ts FROM l ASOF LEFT JOIN v ON l.k = v.k AND l.ts >= v.since WHERE l.ts IS NOT NULL) AS q LEFT JOIN r ON q.k = r.k AND r.ts BETWEEN q.ts - INTERVAL 10 SECONDS AND q.ts) GROUP BY k, w",
        "WindowAggregate",
    ),
    "of a time that may be late": (
        "SELECT k, window_start, count(*) AS n FROM TUMBLE(TABLE (SELECT l.k AS k, l.ts AS ts FROM l JOIN r ON l.k = r.k AND r.ts BETWEEN l.ts AND l.ts + INTERVAL 5 SECONDS), DESCRIPTOR(ts), INTERVAL 20 SECONDS) GROUP BY k, window_start, window_end",
        "SELECT l.k AS k, time_bucket(INTERVAL '20 s', l.ts) AS w, count(*) FROM l JOIN r ON l.k = r.k AND r.ts BETWEEN l.ts AND l.ts + INTERVAL '5 s' GROUP BY l.k, w",
        "GroupAggregate",
    ),
    "of a common table expression": (
        "WITH l AS (SELECT k, a + 1 AS a, ts FROM l WHERE a > 0),\n m (k, x, ts) AS (SELECT * FROM l), n AS (SELECT 1) SELECT k, window_start, sum(x) AS s FROM TUMBLE(TABLE m, DESCRIPTOR(ts), INTERVAL 20 SECONDS) GROUP BY k, window_start, window_end",
        "SELECT k, time_bucket(INTERVAL '20 s', ts) AS w, sum(a + 1) FROM l WHERE ts IS NOT NULL AND a > 0 GROUP BY k, w",
        "WindowAggregate",
    ),
    "in a common table expression": (
        "WITH q AS (SELECT k, ts FROM l WHERE a > 1), w AS (SELECT k, window_start, window_end, count(*) AS n FROM HOP(TABLE (WITH z AS (SELECT * FROM q) SELECT * FROM z), DESCRIPTOR(ts), INTERVAL 10 SECONDS, INTERVAL 30 SECONDS) GROUP BY k, window_start, window_end) SELECT window_start, max(n) AS m FROM w GROUP BY window_start, window_end",
        "SELECT w, max(n) FROM (SELECT k, time_bucket(INTERVAL '10 s', ts) - x * INTERVAL '10 s' AS w, count(*) AS n FROM l, range(3) AS r(x) WHERE ts IS NOT NULL AND a > 1 GROUP BY k, w) GROUP BY w",
        "WindowAggregate",
    ),
    "rows of windows": (
        "SELECT a, window_start FROM TUMBLE(TABLE l, DESCRIPTOR(ts), INTERVAL 20 SECONDS) WHERE window_end > timestamp'2024-01-01 08:05:00'",
        "SELECT a, time_bucket(INTERVAL '20 s', ts) AS w FROM l WHERE w + INTERVAL '20 s' > timestamptz'2024-01-01 08:05:00+00'",
        "WindowTableFunction",
    ),
    "a filter of windows": (
        "SELECT window_start, count(*) AS n FROM TUMBLE(TABLE (SELECT ts, a FROM l WHERE a > 0), DESCRIPTOR(ts), INTERVAL 20 SECONDS) WHERE window_end > timestamp'2024-01-01 08:05:00' GROUP BY window_start, window_end",
        "SELECT time_bucket(INTERVAL '20 s', ts) AS w, count(*) FROM l WHERE a > 0 AND w + INTERVAL '20 s' > timestamptz'2024-01-01 08:05:00+00' GROUP BY w",
        "GroupAggregate",
    ),
    "of a window alone": (
        "SELECT window_start, max(window_end) AS e, count(*) AS n FROM HOP(TABLE l, DESCRIPTOR(ts), INTERVAL 10 SECONDS, INTERVAL 20 SECONDS) GROUP BY window_start",
        "SELECT time_bucket(INTERVAL '10 s', ts) - x * INTERVAL '10 s' AS w, w + INTERVAL '20 s', count(*) FROM l, range(2) AS r(x) WHERE ts IS NOT NULL GROUP BY w",
        "GroupAggregate",
    ),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_window_functions_of_tables_are_windows(spark: SparkSession, name: str) -> None:
    (sql, oracle, operator), tables = WINDOWS[name], timed_tables()
    flow = sql_pipeline(sql, spark=spark)
    assert operator in operators(flow, tables, sql)
    begins_async = list(WINDOWS).index(name) % 2 == 1
    assert kept_right(flow, tables, sql, oracle, async_enabled=begins_async, finish=True) > 3


def test_explain_knows_the_words_that_spark_does_not(spark: SparkSession) -> None:
    def statements(context: SqlContext) -> Any:
        assert "WindowAggregate" in context.run(f"EXPLAIN {WINDOWS['tumble'][0]}")
        return context.run("SELECT a FROM l")

    with PipelineHarness(pipeline(spark, statements), timed_tables().sources(["l"])) as harness:
        assert "WindowAggregate" not in harness.explain()


SYNTAX_REFUSED: dict[str, tuple[str, str]] = {
    "no event time": (
        "SELECT a FROM l JOIN (SELECT * FROM v) FOR SYSTEM_TIME AS OF l.ts AS x ON l.k = x.k",
        "FOR SYSTEM_TIME AS OF of what is no source",
    ),
    "a common table expression": (
        "WITH v AS (SELECT * FROM v WHERE rate > 3) SELECT a FROM l JOIN v FOR SYSTEM_TIME AS OF l.ts ON l.k = v.k",
        "FOR SYSTEM_TIME AS OF of what is no source",
    ),
    "a line of a common table expression": (
        "WITH q AS (\nSELECT k, ts,\nlost FROM l)\nSELECT k FROM TUMBLE(TABLE q, DESCRIPTOR(ts), INTERVAL 3 SECONDS)",
        "lost.* line 3",
    ),
    "no column": ("SELECT a FROM l JOIN v FOR SYSTEM_TIME AS OF '2024' ON l.k = v.k", "at what is no column"),
    "no condition": ("SELECT a FROM l JOIN v FOR SYSTEM_TIME AS OF l.ts USING (k)", "without ON"),
    "full": ("SELECT a FROM l FULL JOIN v FOR SYSTEM_TIME AS OF l.ts ON l.k = v.k", "outside of a join"),
    "right": ("SELECT a FROM l RIGHT JOIN v FOR SYSTEM_TIME AS OF l.ts ON l.k = v.k", "outside of a join"),
    "alone": ("SELECT v.k FROM v FOR SYSTEM_TIME AS OF PROCTIME()", "outside of a join"),
    "left conditions": (
        "SELECT a FROM l LEFT JOIN v FOR SYSTEM_TIME AS OF l.ts ON l.k = v.k AND rate > 1",
        "conditions other than the key in a LEFT JOIN",
    ),
    "no key": ("SELECT a FROM l JOIN v FOR SYSTEM_TIME AS OF l.ts ON a < rate", "this condition"),
    "kept": (
        "SELECT /*+ STATE_TTL('v' = '1 day') */ a FROM l JOIN v FOR SYSTEM_TIME AS OF l.ts ON l.k = v.k",
        "outside of a join",
    ),
    "few arguments": (
        "SELECT a FROM TUMBLE(TABLE l, DESCRIPTOR(ts))",
        "TUMBLE with other arguments; give DATA",
    ),
    "an argument twice": (
        "SELECT a FROM TUMBLE(TABLE l, DESCRIPTOR(ts), INTERVAL 1 MINUTE, SIZE => INTERVAL 5 MINUTES)",
        "TUMBLE with other arguments",
    ),
    "unknown argument": (
        "SELECT a FROM TUMBLE(DATA => TABLE l, TIMECOL => DESCRIPTOR(ts), GAP => INTERVAL 1 DAY)",
        "TUMBLE with other arguments",
    ),
    "no time": (
        "SELECT a FROM\nTUMBLE(TABLE l, DESCRIPTOR(a), INTERVAL 1 DAY)",
        "line 2: .*no column of times",
    ),
    "months": ("SELECT a FROM TUMBLE(TABLE l, DESCRIPTOR(ts), INTERVAL 1 MONTH)", "no constant length"),
    "no multiple": (
        "SELECT a FROM HOP(TABLE l, DESCRIPTOR(ts), INTERVAL 2 SECONDS, INTERVAL 3 SECONDS)",
        "line 1: HOP.*not a multiple",
    ),
    "partitions": (
        "SELECT a FROM TUMBLE(TABLE l PARTITION BY k, DESCRIPTOR(ts), INTERVAL 3 SECONDS)",
        "of SESSION only",
    ),
    "windows of windows": (
        "SELECT a FROM TUMBLE(TABLE (SELECT * FROM TUMBLE(TABLE l, DESCRIPTOR(ts), INTERVAL 1 DAY)), DESCRIPTOR(ts), INTERVAL 1 DAY)",
        "TUMBLE of a table with window_start",
    ),
    "a session of another time": (
        "SELECT a FROM SESSION(TABLE (SELECT k, a, ts + INTERVAL 1 DAY AS ts FROM l), DESCRIPTOR(ts), INTERVAL 1 DAY)",
        "SESSION of rows without a watermark",
    ),
    "a command": (
        "SELECT a FROM TUMBLE(TABLE (DROP VIEW l), DESCRIPTOR(ts), INTERVAL 3 SECONDS)",
        "DropView is no statement of a stream",
    ),
    "a bracket": ("SELECT a FROM TUMBLE(TABLE l, DESCRIPTOR(ts), INTERVAL 3 SECONDS", "not closed"),
}


@pytest.mark.parametrize("name", SYNTAX_REFUSED)
def test_what_is_not_understood_is_refused(spark: SparkSession, name: str) -> None:
    sql, said = SYNTAX_REFUSED[name]
    with pytest.raises(SqlError, match=said):
        PipelineHarness(sql_pipeline(sql, spark=spark), timed_tables().sources(["l", "v"]))


def test_rows_join_the_newest_row_of_now(spark: SparkSession, async_enabled: bool) -> None:
    sql = "SELECT a, rate FROM l LEFT JOIN v FOR SYSTEM_TIME AS OF PROCTIME() AS x ON l.k = x.k"
    sources = timed_tables().sources(["l", "v"])
    with PipelineHarness(sql_pipeline(sql, spark=spark), sources, async_enabled=async_enabled) as harness:
        harness.push("v", [(1, 5, BEGIN)])
        harness.push("l", [(1, 10, BEGIN), (2, 20, None)])
        assert sorted(harness.end_batch()["out"]) == [("+I", 10, 5), ("+I", 20, None)]
        harness.push("v", [(1, 6, BEGIN)])
        harness.push("l", [(1, 11, BEGIN)])
        assert harness.end_batch()["out"] == [("+I", 11, 6)]


def test_versions_of_changed_rows_are_those_of_their_primary_key(spark: SparkSession) -> None:
    sql, tables = TEMPORAL["inner"][0], timed_tables()
    sources = tables.sources(["l"])
    tables.insert_only = False
    with pytest.raises(SqlError, match=r"line 1: v: .*nothing says is their primary key"):
        PipelineHarness(sql_pipeline(sql, spark=spark), {**sources, **tables.sources(["v"])})
    tables.keys = {"v": ["k"]}
    with PipelineHarness(sql_pipeline(sql, spark=spark), {**sources, **tables.sources(["v"])}) as harness:
        harness.push("v", [(1, 5, BEGIN)])
        harness.push("v", [(1, 5, BEGIN + dt.timedelta(seconds=9))], kind="-D")
        harness.push("l", [(1, n, BEGIN + dt.timedelta(seconds=n)) for n in (1, 8, 10)])
        rows = [row for part in (harness.end_batch(), harness.finish()) for row in part["out"]]
        assert sorted(row[2:4] for row in rows) == [(1, 5), (8, 5)]


def test_versions_whose_values_must_not_be_null(spark: SparkSession, async_enabled: bool) -> None:
    """A version with a null ends the one before it."""
    sql = "SELECT l.k, a, rate FROM l JOIN v FOR SYSTEM_TIME AS OF l.ts ON l.k = v.k WHERE rate IS NOT NULL"
    sources = timed_tables().sources(["l", "v"])
    with PipelineHarness(sql_pipeline(sql, spark=spark), sources, async_enabled=async_enabled) as harness:
        harness.push("v", [(1, 5, BEGIN), (1, None, BEGIN + dt.timedelta(seconds=5))])
        harness.push("l", [(1, at, BEGIN + dt.timedelta(seconds=at)) for at in (1, 8)])
        rows = [row for part in (harness.end_batch(), harness.finish()) for row in part["out"]]
        assert rows == [("+I", 1, 1, 5)]


def test_versions_of_changed_rows_are_compared_by_further_columns(
    spark: SparkSession, async_enabled: bool
) -> None:
    sql = (
        "SELECT l.k, a, rate FROM l LEFT JOIN v FOR SYSTEM_TIME AS OF l.ts AS x ON l.k = x.k AND l.a = x.rate"
    )
    tables = timed_tables()
    sources = tables.sources(["l"])
    tables.insert_only, tables.keys = False, {"v": ["k"]}
    sources |= tables.sources(["v"])
    with PipelineHarness(sql_pipeline(sql, spark=spark), sources, async_enabled=async_enabled) as harness:
        harness.push("v", [(1, 5, BEGIN)])
        changed = [(1, 5, BEGIN), (1, 6, BEGIN + dt.timedelta(seconds=5))]
        harness.push("v", changed, kinds=["-U", "+U"])
        harness.push("l", [(1, a, BEGIN + dt.timedelta(seconds=at)) for a, at in ((5, 1), (5, 8), (6, 9))])
        rows = [row for part in (harness.end_batch(), harness.finish()) for row in part["out"]]
        assert sorted(rows, key=str) == [("+I", 1, 5, 5), ("+I", 1, 5, None), ("+I", 1, 6, 6)]


VALUES_OF_WINDOWS: dict[str, tuple[str, str]] = {
    "another time": (
        "SELECT window.start AS s, count(*) AS n FROM l GROUP BY window(ts + INTERVAL 7 SECONDS, '20 seconds')",
        "SELECT time_bucket(INTERVAL '20 s', ts + INTERVAL '7 s') AS w, count(*) FROM l WHERE ts IS NOT NULL GROUP BY w",
    ),
    "another time of a subquery, in windows that overlap": (
        "SELECT window.start AS s, count(*) AS n FROM (SELECT ts + INTERVAL 7 SECONDS AS late FROM l) GROUP BY window(late, '20 seconds', '10 seconds')",
        "SELECT time_bucket(INTERVAL '10 s', ts + INTERVAL '7 s') - x * INTERVAL '10 s' AS w, count(*) FROM l, range(2) AS r(x) WHERE ts IS NOT NULL GROUP BY w",
    ),
    "a scalar subquery": (
        "SELECT window.start AS s, sum(a * (SELECT max(rate) FROM v)) AS x FROM l GROUP BY window(ts, '20 seconds')",
        "SELECT time_bucket(INTERVAL '20 s', ts) AS w, sum(a * (SELECT max(rate) FROM v)) FROM l WHERE ts IS NOT NULL GROUP BY w",
    ),
    "the window itself": (
        "SELECT k, window.start AS s, count(DISTINCT window.start) AS n, max(a) FILTER (WHERE window.end > timestamp'2024-01-01 08:05:00') AS m FROM l GROUP BY k, window(ts, '20 seconds')",
        "SELECT k, time_bucket(INTERVAL '20 s', ts) AS w, 1, max(a) FILTER (WHERE time_bucket(INTERVAL '20 s', ts) + INTERVAL '20 s' > timestamptz'2024-01-01 08:05:00+00') FROM l WHERE ts IS NOT NULL GROUP BY k, w",
    ),
}


@pytest.mark.parametrize("name", VALUES_OF_WINDOWS)
def test_windows_of_another_time_and_those_that_a_value_changes_or_reads_are_updated(
    spark: SparkSession, name: str
) -> None:
    sql, oracle = VALUES_OF_WINDOWS[name]
    flow, begins_async = sql_pipeline(sql, spark=spark), name == "the window itself"
    assert kept_right(flow, timed_tables(), sql, oracle, async_enabled=begins_async) > 3


def test_windows_that_update(spark: SparkSession, async_enabled: bool) -> None:
    sql = WINDOWS["tumble"][0]

    def statements(context: SqlContext) -> Any:
        with pytest.raises(SqlError, match="windows is 'open'; give .updating."):
            context.run(sql, windows="open")
        with pytest.raises(SqlError, match="windows= has no effect on CREATE VIEW"):
            context.run(f"CREATE VIEW w AS {sql}", windows="updating")
        with pytest.raises(SqlError, match="SESSION of rows without a watermark"):
            context.run(WINDOWS["session"][0], windows="updating")
        joined = context.run(INTERVALS["inner"], "joined", windows="updating")
        joined.to(print, name="joined")
        return context.run(sql, windows="updating")

    tables = timed_tables()
    flow = pipeline(spark, statements)
    with PipelineHarness(flow, tables.sources(["l", "r"]), async_enabled=async_enabled) as harness:
        said = harness.explain()
        assert "GroupAggregate" in said
        assert "WindowAggregate" not in said
        assert "IntervalJoin" not in said
        harness.push("l", [(1, 5, BEGIN)])
        (row,) = harness.end_batch()["out"]
        assert (row[0], row[1], row[-2:]) == ("+I", 1, (1, 5))


def test_a_pipeline_whose_windows_update(spark: SparkSession, async_enabled: bool) -> None:
    sql, sources = WINDOWS["tumble"][0], timed_tables().sources(["l"])
    with pytest.raises(SqlError, match="windows is 'open'; give .updating."):
        PipelineHarness(sql_pipeline(sql, spark=spark, windows="open"), sources)
    flow = sql_pipeline(sql, spark=spark, windows="updating")
    with PipelineHarness(flow, sources, async_enabled=async_enabled) as harness:
        assert "WindowAggregate" not in harness.explain()
        harness.push("l", [(1, 5, BEGIN)])
        assert [row[-2:] for row in harness.end_batch()["out"]] == [(1, 5)]
        harness.restart(async_enabled=not async_enabled)
        harness.push("l", [(1, 6, BEGIN)])
        assert [(row[0], row[-2:]) for row in harness.end_batch()["out"]] == [("-U", (1, 5)), ("+U", (2, 11))]
    plans = flow.plans  # type: ignore[attr-defined]
    with PipelineHarness(sql_pipeline(plans=plans), sources) as harness:
        assert "WindowAggregate" not in harness.explain()
    with pytest.raises(SqlError, match="plans say whether their windows are updated"):
        sql_pipeline(plans=plans, windows="updating")


def test_views_and_statements_share_what_they_say(spark: SparkSession, async_enabled: bool) -> None:
    def statements(context: SqlContext) -> Any:
        context.run("CREATE VIEW w AS SELECT * FROM TUMBLE(TABLE l, DESCRIPTOR(ts), INTERVAL 20 SECONDS)")
        return context.run(
            "SELECT x.k, x.n, y.n AS m FROM (SELECT k, window_start, count(*) AS n FROM w GROUP BY k, window_start, window_end) x "
            "JOIN (SELECT window_start, count(*) AS n FROM w GROUP BY window_start, window_end) y ON x.window_start = y.window_start"
        )

    oracle = "WITH w AS (SELECT k, time_bucket(INTERVAL '20 s', ts) AS s FROM l WHERE ts IS NOT NULL) SELECT k, n, m FROM (SELECT k, s, count(*) AS n FROM w GROUP BY k, s) JOIN (SELECT s, count(*) AS m FROM w GROUP BY s) USING (s)"
    flow = pipeline(spark, statements)
    assert kept_right(flow, timed_tables(), "l", oracle, async_enabled=async_enabled, finish=True) > 5


ASOF_ENABLED = "spark.sql.join.asofJoin.enabled"
LATEST = "SELECT l.k, a, rate, ts FROM l {} ASOF JOIN v MATCH_CONDITION (l.ts >= v.since) ON l.k = v.k"


@pytest.fixture
def asof(spark: SparkSession) -> Iterator[None]:
    spark.conf.set(ASOF_ENABLED, "true")
    yield
    spark.conf.unset(ASOF_ENABLED)


@pytest.mark.since_spark("4.3", "ASOF JOIN")
@pytest.mark.usefixtures("asof")
@pytest.mark.parametrize("how", ["", "LEFT"])
def test_asof_joins_are_those_of_batch(spark: SparkSession, how: str, async_enabled: bool) -> None:
    """Rows without a time, too, which an outer join keeps."""
    sql, tables = LATEST.format(how), timed_tables()
    oracle = f"SELECT l.k, a, rate, ts FROM l ASOF {how} JOIN v ON l.k = v.k AND ts >= since"
    flow = sql_pipeline(sql, spark=spark)
    assert "TemporalJoin" in operators(flow, tables, sql)
    assert kept_right(flow, tables, sql, oracle, async_enabled=async_enabled, finish=True) > 3


@pytest.mark.since_spark("4.3", "ASOF JOIN")
@pytest.mark.usefixtures("asof")
@pytest.mark.parametrize("what", ["changes", "another time", "no watermark"])
def test_an_asof_join_whose_rows_could_change_is_refused(spark: SparkSession, what: str) -> None:
    tables, sql = timed_tables(), LATEST.format("")
    if what == "changes":
        tables.insert_only, tables.keys = False, {"v": ["k"]}
    elif what == "another time":
        tables.times = {"l": "ts"}
    else:
        tables.delay = None
    with pytest.raises(SqlError, match="ASOF JOIN by a time that is no event time of insertions"):
        PipelineHarness(sql_pipeline(sql, spark=spark), tables.sources(["l", "v"]))
