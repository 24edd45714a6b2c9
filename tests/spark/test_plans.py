"""A stage is planned without adaptive execution where its exchange is the only one; unneeded columns stay behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import asyncstate.spark.stages as stages_module
from asyncstate.local_phase import LocalColumn, LocalFunction, LocalPhase
from asyncstate.operator import InputSpec
from asyncstate.spark.columns import ROUTE
from asyncstate.spark.settings import ADAPTIVE, adaptive_where_it_pays
from operators import Deduplicate, GroupAggregate, count, sum_

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from asyncstate.operator import Operator
    from asyncstate.spark import StreamingJob
    from asyncstate.spark.exchange import Tasks

Change = Callable[["DataFrame"], "DataFrame"]
SPEC = InputSpec(pa.schema([("key", pa.int64()), ("value", pa.int64())]), ("key",))
LOCAL = InputSpec(SPEC.schema, ("key",), local=LocalPhase((LocalColumn(LocalFunction.COUNT, pa.int64()),)))
CHANGES: list[tuple[Change, bool]] = [
    (lambda rows: rows, True),
    (lambda rows: rows.where("key > 3").selectExpr("key", "value + 1 as value"), True),
    (lambda rows: rows.union(rows), True),
    (lambda rows: rows.groupBy("key").agg({"value": "max"}), False),
    (lambda rows: rows.join(rows.select("key"), "key"), False),
    (lambda rows: rows.distinct(), False),
    (lambda rows: rows.dropDuplicates(["key"]), False),
    (lambda rows: rows.orderBy("value"), False),
    (lambda rows: rows.repartition("key"), False),
    (lambda rows: rows.limit(3), False),
    (lambda rows: rows.intersect(rows), False),
    (lambda rows: rows.exceptAll(rows.limit(1)), False),
    (lambda rows: rows.where("key > (select 3)"), False),
    (lambda rows: rows.selectExpr("key", "rank() over (partition by key order by value) as value"), False),
]

pytestmark = pytest.mark.spark


@pytest.fixture
def own(spark: SparkSession) -> SparkSession:
    """A session of the test's own, adaptive as Spark's default has it."""
    session = spark.newSession()
    session.conf.set(ADAPTIVE, "true")
    return session


def rows_of(session: SparkSession) -> DataFrame:
    return session.range(100).selectExpr("id % 7 as key", "id as value")


@pytest.mark.parametrize(("change", "off"), CHANGES)
def test_adaptive_execution_is_off_where_there_is_nothing_to_adapt(
    own: SparkSession, change: Change, off: bool
) -> None:
    rows = change(rows_of(own))
    with adaptive_where_it_pays([rows], [SPEC]):
        assert own.conf.get(ADAPTIVE) == ("false" if off else "true")
        one_job = (
            "AdaptiveSparkPlan" not in rows.repartition(3)._jdf.queryExecution().executedPlan().toString()
        )
        assert one_job == off
    assert own.conf.get(ADAPTIVE) == "true"


def test_inputs_count_together_but_for_the_broadcast_one(own: SparkSession) -> None:
    plain, sorted_rows = rows_of(own), rows_of(own).orderBy("value")
    broadcast = InputSpec(SPEC.schema, (), broadcast=True)
    for specs, expected in (([SPEC, SPEC], "true"), ([SPEC, broadcast], "false")):
        with adaptive_where_it_pays([plain, sorted_rows], specs):
            assert own.conf.get(ADAPTIVE) == expected


def test_the_local_phase_has_an_exchange_of_its_own(own: SparkSession) -> None:
    with adaptive_where_it_pays([rows_of(own)], [LOCAL]):
        assert own.conf.get(ADAPTIVE) == "true"


def test_the_setting_comes_back_after_an_error(own: SparkSession) -> None:
    def fail() -> None:
        with adaptive_where_it_pays([rows_of(own)], [SPEC]):
            assert own.conf.get(ADAPTIVE) == "false"
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert own.conf.get(ADAPTIVE) == "true"


def test_what_the_user_has_turned_off_stays_off(own: SparkSession) -> None:
    own.conf.set(ADAPTIVE, "false")
    with adaptive_where_it_pays([rows_of(own)], [SPEC]):
        assert own.conf.get(ADAPTIVE) == "false"
    assert own.conf.get(ADAPTIVE) == "false"


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
    own: SparkSession,
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
    wide = own.range(100).selectExpr("cast(id as string) as text", "id % 7 as key", "id as value")
    found: list[int] = []

    def process(rows: DataFrame, batch: Any) -> None:
        found.append(batch.apply(operator, rows, key="key", uid="wide").count())

    job = make_job(own, options={"async-state.enabled": str(async_enabled).lower()})
    job.micro_batch(process)(wide, 0)
    assert exchanged == [([ROUTE, *(f"c{number}" for number in range(len(travelling)))], travelling)]
    assert found == [7]
