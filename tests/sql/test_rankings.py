# ruff: noqa: E501  # statements are data, one a line
"""Joins of rows with the best of their own group, which are rankings, against DuckDB."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("duckdb")

from asyncstate.errors import SqlError
from asyncstate.sql import sql_pipeline
from asyncstate.testing import PipelineHarness
from tests.sql import nexmark
from tests.sql.features import changing_tables
from tests.sql.random_windows import timed_tables
from tests.sql.tables import NEEDS_COMPILER, Tables, kept_right
from tests.sql.test_event_time import operators

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, NEEDS_COMPILER]

BEST = "(SELECT a, max(b) AS m FROM t GROUP BY a)"
COUNTED = "(SELECT a, c, count(*) AS n, min(b) AS lo FROM t WHERE b > 1 GROUP BY a, c)"
RANKINGS: dict[str, str] = {
    "equal": f"SELECT t.*, m FROM t JOIN {BEST} g ON t.a = g.a AND t.b = g.m",
    "at least": f"SELECT t.a, b, c, g.a AS k FROM t JOIN {BEST} g ON t.a = g.a AND t.b >= g.m",
    "the other way round": f"SELECT b, c, m + 1 AS m FROM {BEST} g JOIN t ON g.a = t.a AND g.m <= t.b",
    "smallest text": "SELECT t.b, t.c FROM t, (SELECT b, min(c) AS m FROM t GROUP BY b) g WHERE t.b = g.b AND t.c <= m",
    "equal nulls": f"SELECT t.a, b, m FROM t JOIN {BEST} g ON t.a <=> g.a AND t.b >= m",
    "in": "SELECT a, c, b FROM t WHERE (a, b) IN (SELECT a, max(b) FROM t GROUP BY a)",
    "correlated": "SELECT a, c, b FROM t AS x WHERE b = (SELECT max(b) FROM t WHERE t.a = x.a)",
    "of computed values": "SELECT x.k, x.v, c FROM (SELECT a % 2 AS k, b * a AS v, c FROM t) x JOIN (SELECT a % 2 AS k, max(b * a) AS m FROM t GROUP BY a % 2) g ON x.k = g.k AND v = m",
    "groups": f"SELECT x.a, x.c, x.n FROM {COUNTED} x JOIN (SELECT a, max(n) AS m FROM {COUNTED} GROUP BY a) g ON x.a = g.a AND x.n = m",
    "groups with another value": f"SELECT x.a, x.lo, x.n FROM {COUNTED} x JOIN (SELECT c, min(lo) AS m FROM {COUNTED} GROUP BY c) g ON x.c = g.c AND x.lo = m",
}
OTHERS: dict[str, str] = {
    "chosen rows": f"SELECT t.a, b, c FROM t JOIN {BEST} g ON t.a = g.a AND t.b = g.m WHERE c <> 'x'",
    "other rows": "SELECT t.* FROM t JOIN (SELECT a, max(b) AS m FROM t WHERE c > 'x' GROUP BY a) g ON t.a = g.a AND t.b = m",
    "another table": "SELECT t.* FROM t JOIN (SELECT a, max(d) AS m FROM u GROUP BY a) g ON t.a = g.a AND t.b = m",
    "another value": "SELECT t.* FROM t JOIN (SELECT a, max(greatest(b, 3)) AS m FROM t GROUP BY a) g ON t.a = g.a AND t.b = m",
    "another key": "SELECT t.* FROM t JOIN (SELECT b, max(a) AS m FROM t GROUP BY b) g ON t.a = g.b AND t.b = m",
    "the key's own": "SELECT t.* FROM t JOIN (SELECT b, max(b) AS m FROM t GROUP BY b) g ON t.a = g.b AND t.b >= m",
    "a part of the key": "SELECT t.* FROM t JOIN (SELECT a, c, max(b) AS m FROM t GROUP BY a, c) g ON t.a = g.a AND t.b = m",
    "not the best": f"SELECT t.* FROM t JOIN {BEST} g ON t.a = g.a AND t.b <= m",
    "only some": "SELECT t.* FROM t JOIN (SELECT a, max(b) FILTER (WHERE c = 'x') AS m FROM t GROUP BY a) g ON t.a = g.a AND t.b = m",
    "more values": "SELECT t.*, n FROM t JOIN (SELECT a, max(b) AS m, count(*) AS n FROM t GROUP BY a) g ON t.a = g.a AND t.b = m",
    "groups that are chosen": "SELECT t.* FROM t JOIN (SELECT a, max(b) AS m FROM t GROUP BY a HAVING count(c) > 1) g ON t.a = g.a AND t.b = m",
    "a number of groups": "WITH x AS (SELECT a, b, count(*) AS n FROM t GROUP BY a, b) SELECT x.* FROM x JOIN (SELECT n, count(*) AS k, max(a) AS m FROM x GROUP BY n) g ON x.n = g.k AND x.a = m",
    "rows of a join": "WITH j AS (SELECT t.a, b, d FROM t JOIN u ON t.a = u.a) SELECT j.a, b, d FROM j JOIN (SELECT a, max(b) AS m FROM j GROUP BY a) g ON j.a = g.a AND b = m",
    "kept rows": f"SELECT t.* FROM t LEFT JOIN {BEST} g ON t.a = g.a AND t.b = m",
}


@pytest.mark.parametrize("name", RANKINGS)
def test_rows_with_the_best_value_of_their_group_are_a_ranking(spark: SparkSession, name: str) -> None:
    sql, tables = RANKINGS[name], changing_tables(seed=3)
    flow = sql_pipeline(sql, spark=spark)
    assert " Rank" in operators(flow, tables, sql)
    assert "Join" not in operators(flow, tables, sql)
    begins_async = list(RANKINGS).index(name) % 2 == 1
    oracle = sql.replace("<=>", "IS NOT DISTINCT FROM")
    assert kept_right(flow, tables, sql, oracle, async_enabled=begins_async) > 0


@pytest.mark.parametrize("name", OTHERS)
def test_other_joins_with_groups_stay_joins(spark: SparkSession, name: str) -> None:
    sql, tables = OTHERS[name], changing_tables(seed=3)
    flow = sql_pipeline(sql, spark=spark)
    assert " Rank" not in operators(flow, tables, sql)
    assert kept_right(flow, tables, sql, sql, async_enabled=len(name) % 2 == 1) > 0


W = "window(ts, '20 seconds', '10 seconds')"
COUNTS = f"(SELECT k, count(*) AS n, w.start AS s, w.end AS e FROM (SELECT k, {W} AS w FROM l) GROUP BY k, w)"
HOP = "HOP(TABLE l, DESCRIPTOR(ts), INTERVAL 10 SECONDS, INTERVAL 20 SECONDS)"
TABLED = f"(SELECT k, window_start AS s, window_end AS e, count(*) AS n FROM {HOP} GROUP BY k, window_start, window_end)"
IN_DUCKDB = "SELECT k, time_bucket(INTERVAL '10 s', ts) - x * INTERVAL '10 s' AS s, count(*) AS n FROM l, range(2) AS r(x) WHERE ts IS NOT NULL GROUP BY k, s"
OF_WINDOWS: dict[str, tuple[str, str]] = {
    "the most": (
        f"SELECT x.k, x.n, x.s FROM {COUNTS} x JOIN (SELECT max(n) AS m, s, e FROM {COUNTS} GROUP BY s, e) y ON x.s = y.s AND x.e = y.e AND x.n >= y.m",
        f"SELECT k, n, s FROM ({IN_DUCKDB}) QUALIFY n = max(n) OVER (PARTITION BY s)",
    ),
    "the least by a function of tables": (
        f"SELECT x.k, x.n, x.s FROM {TABLED} x JOIN (SELECT min(n) AS m, s, e FROM {TABLED} GROUP BY s, e) y ON x.s = y.s AND x.e = y.e AND x.n = y.m",
        f"SELECT k, n, s FROM ({IN_DUCKDB}) QUALIFY n = min(n) OVER (PARTITION BY s)",
    ),
    "numbers": (
        f"SELECT k, n, s, p FROM (SELECT *, row_number() OVER (PARTITION BY s, e ORDER BY n DESC, k) AS p FROM {COUNTS}) WHERE p <= 2 AND n < 4",
        f"SELECT k, n, s, row_number() OVER (PARTITION BY s ORDER BY n DESC, k NULLS FIRST) AS p FROM ({IN_DUCKDB}) QUALIFY p <= 2 AND n < 4",
    ),
    "by one number twice": (
        f"SELECT k, n, s FROM (SELECT *, row_number() OVER (PARTITION BY s, e, k, j ORDER BY n DESC, k, m) AS p FROM (SELECT *, n AS m, k AS j FROM {COUNTS})) WHERE p = 1",
        f"SELECT k, n, s FROM ({IN_DUCKDB})",
    ),
    "of keys": (
        f"SELECT k, n, s FROM (SELECT *, rank() OVER (PARTITION BY k, e, s ORDER BY n) AS p FROM {COUNTS}) WHERE p = 1",
        f"SELECT k, n, s FROM ({IN_DUCKDB})",
    ),
}


@pytest.mark.parametrize("name", OF_WINDOWS)
def test_rankings_of_windows_that_close_wait_for_them(spark: SparkSession, name: str) -> None:
    (sql, oracle), tables = OF_WINDOWS[name], timed_tables()
    flow = sql_pipeline(sql, spark=spark)
    shown = operators(flow, tables, sql)
    assert "WindowRank" in shown
    assert "Join" not in shown
    begins_async = list(OF_WINDOWS).index(name) % 2 == 1
    assert kept_right(flow, tables, "l", oracle, async_enabled=begins_async, finish=True) > 3
    tables.insert_only = False  # nothing closes, so the windows are groups
    flow = sql_pipeline(sql, spark=spark)
    assert "WindowRank" not in operators(flow, tables, sql)
    assert kept_right(flow, tables, "l", oracle, async_enabled=not begins_async, finish=False) > 3


def test_state_that_expires_keeps_the_join(spark: SparkSession) -> None:
    tables: Tables = changing_tables(seed=3)
    flow = sql_pipeline(RANKINGS["equal"], spark=spark, state_ttl="1 hour")
    with PipelineHarness(flow, tables.sources(["t"])) as harness:
        assert "Join" in harness.explain()


def test_a_plan_of_all_rows_is_not_run_with_state_that_expires(spark: SparkSession) -> None:
    sources = changing_tables(seed=3).sources(["t"])
    flow = sql_pipeline(RANKINGS["equal"], spark=spark)
    PipelineHarness(flow, sources).close()
    with pytest.raises(SqlError, match="may have a ranking in place of a join.*; compile it with state_ttl="):
        PipelineHarness(sql_pipeline(plans=flow.plans, state_ttl="1 hour"), sources)  # type: ignore[attr-defined]


def test_the_auctions_with_the_most_bids_are_a_ranking_of_windows(spark: SparkSession) -> None:
    sql, tables = nexmark.QUERIES["q5"][0], nexmark.events()
    shown = operators(sql_pipeline(sql, spark=spark), tables, sql)
    assert shown.count("WindowAggregate") == shown.count("WindowRank") == 1
