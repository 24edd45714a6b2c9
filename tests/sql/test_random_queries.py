"""Random statements over random changes, cut, restarted and rescaled at random, against DuckDB, and patterns against a
search in plain Python."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("duckdb")

from tests.sql import random_changes, random_nested, random_patterns, random_types, random_windows
from tests.sql.random_queries import run
from tests.sql.tables import NEEDS_COMPILER

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, NEEDS_COMPILER]


@pytest.mark.parametrize("seed", range(30))
def test_a_random_query_is_kept_right(spark: SparkSession, seed: int) -> None:
    run(spark, seed)


@pytest.mark.parametrize("seed", range(12))
def test_a_random_query_over_times_is_kept_right(spark: SparkSession, seed: int) -> None:
    random_windows.run(spark, seed)


@pytest.mark.parametrize("seed", range(12))
def test_a_random_query_over_types_is_kept_right(spark: SparkSession, seed: int) -> None:
    random_types.run(spark, seed)


@pytest.mark.parametrize("seed", range(12, 24))
def test_a_random_query_over_arrays_and_structs_is_kept_right(spark: SparkSession, seed: int) -> None:
    random_nested.run(spark, seed)


@pytest.mark.parametrize("seed", range(12))
def test_the_matches_of_a_random_pattern_are_all_found(spark: SparkSession, seed: int) -> None:
    random_patterns.run(spark, seed)


@pytest.mark.parametrize("seed", range(12))
def test_a_random_change_of_a_statement_is_right_or_refused(spark: SparkSession, seed: int) -> None:
    random_changes.run(spark, seed)
