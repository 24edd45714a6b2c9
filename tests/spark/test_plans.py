"""Columns that an operator does not need are not exchanged."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

import asyncstate.spark.stages as stages_module
from asyncstate.spark.column_types import ROUTE
from operators import Deduplicate, GroupAggregate, count, sum_

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from asyncstate.operator import Operator
    from asyncstate.spark import StreamingJob
    from asyncstate.spark.exchange import Tasks

pytestmark = pytest.mark.spark


@pytest.mark.executors
@pytest.mark.parametrize("async_enabled", [False, True])
@pytest.mark.parametrize(
    ("operator", "travelling"),
    [
        (GroupAggregate([count().alias("n")], emit_update_before=False), ["key"]),
        (GroupAggregate([sum_("value").alias("n")], emit_update_before=False), ["key", "value"]),
        (Deduplicate(keep="first", time="processing"), ["text", "key", "value"]),
    ],
)
def test_columns_that_nobody_needs_stay_behind(
    spark: SparkSession,
    make_job: Callable[..., StreamingJob],
    monkeypatch: pytest.MonkeyPatch,
    operator: Operator,
    travelling: list[str],
    async_enabled: bool,
) -> None:
    exchanged: list[tuple[list[str], list[str]]] = []
    run_stage = stages_module.run_stage

    def noting(tasks: Tasks, *others: Any) -> Any:
        exchanged.append((tasks.exchanged.columns, tasks.task.spec.inputs[0].row_schema.names))
        return run_stage(tasks, *others)

    monkeypatch.setattr(stages_module, "run_stage", noting)
    wide = spark.range(100).selectExpr("cast(id as string) as text", "id % 7 as key", "id as value")
    found: list[int] = []

    def process(rows: DataFrame, batch: Any) -> None:
        found.append(batch.apply(operator, rows, key="key", uid="wide").count())

    job = make_job(options={"async-state.enabled": str(async_enabled).lower()})
    job.micro_batch(process)(wide, 0)
    assert exchanged == [([ROUTE, *(f"c{number}" for number in range(len(travelling)))], travelling)]
    assert found == [7]
