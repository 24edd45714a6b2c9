"""What statements are compiled to: a change shows as a difference to the stored plans."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

from tests.sql import golden
from tests.sql.tables import NEEDS_COMPILER

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.long,
    pytest.mark.timeout(300),
    NEEDS_COMPILER,
]


@pytest.mark.parametrize("suite", golden.SUITES)
def test_plans_are_the_stored_ones(spark: SparkSession, suite: str) -> None:
    changed = golden.difference(golden.stored_plans(spark, suite), golden.compiled_plans(spark, suite))
    assert not changed, f"if this is intended, run `make plans` and look at the difference:\n{changed}"
