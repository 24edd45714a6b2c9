"""Each feature of SQL, kept up to date in a harness, against DuckDB after every micro-batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("duckdb")

from asyncstate.errors import SqlError
from asyncstate.sql import Compiled, sql_pipeline
from asyncstate.testing import PipelineHarness
from tests.sql.features import FEATURES, REFUSED, changing_tables
from tests.sql.tables import NEEDS_COMPILER, kept_right

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
