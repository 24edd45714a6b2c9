"""The queries of TPC-H over tables that change, and of Nexmark over events, against DuckDB."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("duckdb")

from asyncstate.sql import sql_pipeline
from tests.sql import nexmark, tpch
from tests.sql.tables import NEEDS_COMPILER, kept_right

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, NEEDS_COMPILER]

QUICK = {"q1", "q4", "q13", "q22"}
"""Queries of TPC-H that `make test` runs, too."""
IN_SPARK = {"q10", "q13", "q14", "q15", "q16", "q17", "q21", "q22"}
"""Queries of Nexmark with functions that a harness does not have."""


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in tpch.QUERIES]
)
def test_tpch_is_kept_right(spark: SparkSession, name: str) -> None:
    sql, tables = tpch.QUERIES[name], tpch.changing_tables()
    begins_async = list(tpch.QUERIES).index(name) % 2 == 1
    kept_right(sql_pipeline(sql, spark=spark), tables, sql, sql, async_enabled=begins_async)


@pytest.mark.parametrize("name", [name for name in nexmark.QUERIES if name not in IN_SPARK])
def test_nexmark_is_kept_right(spark: SparkSession, name: str) -> None:
    sql, oracle = nexmark.QUERIES[name]
    begins_async = list(nexmark.QUERIES).index(name) % 2 == 1
    pipeline, tables = sql_pipeline(sql, spark=spark), nexmark.events()
    assert kept_right(pipeline, tables, sql, oracle or sql, async_enabled=begins_async, finish=True) > 0
