"""Each feature of SQL, kept up to date in a harness, against DuckDB after every micro-batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("duckdb")

from asyncstate.errors import SqlError
from asyncstate.sql import Compiled, sql_pipeline
from asyncstate.testing import PipelineHarness
from tests.sql.features import FEATURES, REFUSED, changing_tables
from tests.sql.random_types import typed_tables
from tests.sql.tables import NEEDS_COMPILER, Row, kept_right

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, NEEDS_COMPILER]


@pytest.mark.parametrize("name", FEATURES)
def test_a_feature_is_kept_right(spark: SparkSession, name: str) -> None:
    sql, oracle = FEATURES[name]
    tables, pipeline = changing_tables(seed=3), sql_pipeline(sql, spark=spark)
    begins_async = list(FEATURES).index(name) % 2 == 1  # and goes on in the other mode
    assert kept_right(pipeline, tables, sql, oracle or sql, async_enabled=begins_async) > 0


@pytest.mark.since_spark("4.2", "LISTAGG of distinct numbers in their order")
def test_distinct_numbers_are_listed_in_their_own_order(spark: SparkSession, async_enabled: bool) -> None:
    sql = """
        SELECT a, listagg(DISTINCT b * 3, '\\'') WITHIN GROUP (ORDER BY b * 3 DESC) AS x,
            hex(listagg(DISTINCT CAST(c AS BINARY), X'FF') WITHIN GROUP (ORDER BY c)) AS y
        FROM t GROUP BY a"""
    oracle = """
        SELECT a, array_to_string(list_reverse_sort(list(DISTINCT b * 3) FILTER (WHERE b IS NOT NULL)), ''''),
            string_agg(DISTINCT hex(c), 'FF' ORDER BY hex(c))
        FROM t GROUP BY a"""
    pipeline, tables = sql_pipeline(sql, spark=spark), changing_tables(seed=3)
    assert kept_right(pipeline, tables, sql, oracle, async_enabled=async_enabled) > 0


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_kept_right_is_refused_with_its_place_and_a_way_out(
    spark: SparkSession, name: str
) -> None:
    sql, said = REFUSED[name]
    with pytest.raises(SqlError, match=said):
        PipelineHarness(sql_pipeline(sql, spark=spark), changing_tables(seed=3).sources(["t", "u"]))


@pytest.mark.parametrize("name", ["agg-join-agg", "listagg"])
def test_a_stored_plan_runs_without_a_session_and_says_the_same(spark: SparkSession, name: str) -> None:
    sql, oracle = FEATURES[name]
    tables, pipeline = changing_tables(seed=3), sql_pipeline(sql, spark=spark)
    sources = tables.sources(tables.used(sql))
    with PipelineHarness(pipeline, sources) as harness:
        compiled = harness.explain()
    stored = [Compiled.from_json(plan.to_json()) for plan in pipeline.plans]
    with PipelineHarness(sql_pipeline(plans=stored), sources) as harness:
        assert harness.explain() == compiled
    assert kept_right(sql_pipeline(plans=stored), tables, sql, oracle or sql, async_enabled=True)


def test_state_that_expires_is_that_of_groups_and_joins(spark: SparkSession, async_enabled: bool) -> None:
    sources = changing_tables(seed=3).sources(["t"])
    counted = sql_pipeline("SELECT a, count(*) AS n FROM t GROUP BY a", spark=spark, state_ttl="1 hour")
    with PipelineHarness(counted, sources, async_enabled=async_enabled) as harness:
        harness.push("t", [(1, 1, "x"), (1, 2, "y")])
        assert harness.end_batch()["out"] == [("+I", 1, 2)]
        harness.advance_processing_time("30 minutes")
        harness.push("t", [(1, 3, "x")])
        assert harness.end_batch()["out"] == [("-U", 1, 2), ("+U", 1, 3)]
        harness.advance_processing_time("2 hours")
        harness.push("t", [(1, 4, "x")])
        assert harness.end_batch()["out"] == [("+I", 1, 1)]
    over = sql_pipeline("SELECT a, sum(b) OVER (PARTITION BY a) AS s FROM t", spark=spark, state_ttl="1 hour")
    with pytest.raises(SqlError, match="OVER needs all rows, so state_ttl would make it wrong; leave"):
        PipelineHarness(over, sources)


def _largest_modes(contents: Mapping[str, list[Row]]) -> list[Row]:
    found = []
    for key in {row[0] for row in contents["t"]}:
        counts = Counter(b for a, b, _ in contents["t"] if a == key and b is not None)
        most = max(counts.values(), default=0)
        found.append((key, max((b for b, count in counts.items() if count == most), default=None)))
    return found


def test_the_order_of_a_mode_decides_between_equally_frequent_values(
    spark: SparkSession, async_enabled: bool
) -> None:
    sql = "SELECT a, mode() WITHIN GROUP (ORDER BY b DESC) AS m FROM t GROUP BY a"
    pipeline, tables = sql_pipeline(sql, spark=spark), changing_tables(seed=3)
    assert kept_right(pipeline, tables, sql, _largest_modes, async_enabled=async_enabled) > 0


@pytest.mark.since_spark("4.3", "RESPECT NULLS of collected values")
@pytest.mark.parametrize("function", ["collect_list", "array_agg", "collect_set"])
def test_collected_values_that_keep_nulls_are_refused(spark: SparkSession, function: str) -> None:
    sql = f"SELECT a, {function}(b) RESPECT NULLS AS x FROM t GROUP BY a"
    with pytest.raises(SqlError, match="RESPECT NULLS of collected values; collect struct"):
        PipelineHarness(sql_pipeline(sql, spark=spark), changing_tables(seed=3).sources(["t"]))


def test_an_offset_in_a_subquery_is_in_its_order(spark: SparkSession, async_enabled: bool) -> None:
    sql = "SELECT a, (SELECT d FROM u ORDER BY d {}, e, a LIMIT 1 OFFSET 1) AS x FROM t"
    pipeline, tables = sql_pipeline(sql.format(""), spark=spark), changing_tables(seed=5)
    oracle = sql.format("NULLS FIRST").replace("e, a", "e NULLS FIRST, a NULLS FIRST")
    assert kept_right(pipeline, tables, sql, oracle, async_enabled=async_enabled) > 0


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT i, m FROM x WHERE m > (SELECT avg(m) FROM y)",
        "SELECT i, (SELECT sum(CAST(z.n AS DECIMAL(5, 0))) FROM z WHERE z.s = x.s) AS n FROM x",
        """SELECT * FROM x WHERE i IN (
            SELECT i FROM (SELECT i, rank() OVER (PARTITION BY s ORDER BY i NULLS FIRST) AS r FROM y) WHERE r <= 2)""",
    ],
)
def test_rules_that_are_left_out_do_not_change_subqueries(spark: SparkSession, sql: str) -> None:
    """Spark has a rule that optimizes subqueries by all rules."""
    assert kept_right(sql_pipeline(sql, spark=spark), typed_tables(seed=3), sql, sql, async_enabled=True) > 0
