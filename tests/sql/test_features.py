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
from tests.sql.tables import kept_right

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("name", FEATURES)
def test_a_feature_is_kept_right(spark: SparkSession, name: str) -> None:
    sql, oracle = FEATURES[name]
    tables, pipeline = changing_tables(seed=3), sql_pipeline(sql, spark=spark)
    begins_async = list(FEATURES).index(name) % 2 == 1  # and goes on in the other mode
    assert kept_right(pipeline, tables, sql, oracle or sql, async_enabled=begins_async) > 0


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_kept_right_is_refused_with_its_place_and_a_way_out(
    spark: SparkSession, name: str
) -> None:
    sql, said = REFUSED[name]
    with pytest.raises(SqlError, match=said):
        PipelineHarness(sql_pipeline(sql, spark=spark), changing_tables(seed=3).sources(["t", "u"]))


def test_a_stored_plan_runs_without_a_session_and_says_the_same(spark: SparkSession) -> None:
    sql, _ = FEATURES["agg-join-agg"]
    tables, pipeline = changing_tables(seed=3), sql_pipeline(sql, spark=spark)
    with PipelineHarness(pipeline, tables.sources(["t", "u"])) as harness:
        compiled = harness.explain()
    stored = [Compiled.from_json(plan.to_json()) for plan in pipeline.plans]
    with PipelineHarness(sql_pipeline(plans=stored), tables.sources(["t", "u"])) as harness:
        assert harness.explain() == compiled
    assert kept_right(sql_pipeline(plans=stored), tables, sql, sql, async_enabled=True)
