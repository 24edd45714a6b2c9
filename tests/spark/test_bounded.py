"""apply_batch: what a job gives with all rows in one micro-batch and then the end, without a checkpoint."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from asyncstate.errors import ConfigurationError, JobError, OperatorError, SchemaError
from asyncstate.operator import Operator
from asyncstate.spark import MicroBatch, StreamingJob, apply_batch
from operators import (
    BroadcastProcess,
    GroupAggregate,
    Join,
    KeyedProcess,
    WindowAggregate,
    WindowTableFunction,
    avg,
    count,
    hop,
    sum_,
    tumble,
    udaf,
)
from tests.spark.function_parts import COUNTS, DISTINCT, CountDistinct, Counting, Ruled
from tests.spark.modes import ASYNC
from tests.spark.parts import RunningTotal
from tests.spark.stateless_parts import Strict

pytestmark = pytest.mark.spark


def numbers(spark: SparkSession, rows: int = 200) -> DataFrame:
    return spark.range(0, rows, 1, 2).selectExpr(
        "id", "id % 7 as k", "id % 3 as third", "timestamp_seconds(id % 60) as time"
    )


DIFFERENT = udaf(CountDistinct, result_type=pa.int64(), accumulator_type=DISTINCT)

CASES: dict[str, tuple[Callable[[], Operator], dict[str, Any]]] = {
    "aggregate": (lambda: GroupAggregate([count(), sum_("id")]), {}),
    "functions that aggregate": (
        lambda: GroupAggregate([avg("id"), DIFFERENT("third"), DIFFERENT("id").distinct().alias("all")]),
        {},
    ),
    "windows of functions": (
        lambda: WindowAggregate(hop("20 seconds", "10 seconds"), [DIFFERENT("third").alias("different")]),
        {"event_time": "time"},
    ),
    "windows": (
        lambda: WindowAggregate(hop("20 seconds", "10 seconds"), [count(), sum_("id")]),
        {"event_time": "time"},
    ),
    "timers": (lambda: RunningTotal(timers=True), {"event_time": "time"}),
    "functions": (lambda: KeyedProcess(Counting(), COUNTS), {"event_time": "time"}),
    "ordered": (RunningTotal, {"event_time": "time", "order_by": ["time", "id"]}),
    "sequenced": (lambda: GroupAggregate([count()]), {"sequence": "id"}),
}


@pytest.mark.parametrize(
    ("case", "async_enabled"), [(case, number % 2 == 1) for number, case in enumerate(CASES)]
)
def test_it_is_a_job_of_one_micro_batch_that_is_finished(
    spark: SparkSession,
    make_job: Callable[..., StreamingJob],
    async_enabled: bool,
    case: str,
    tmp_path: Path,
) -> None:
    make, declared = CASES[case]
    options = {
        "async-state.enabled": async_enabled,
        "async-state.parallelism": 3,
        "async-state.local-dir": str(tmp_path / "batch"),
    }
    rows = apply_batch(make(), numbers(spark), key="k", options=options, **declared)
    delay: dict[str, Any] = {"watermark_delay": 0} if "event_time" in declared else {}
    expected: Counter[Any] = Counter()

    def use(df: DataFrame, batch: MicroBatch) -> None:
        applied = batch.apply(make(), df, uid="same", key="k", **declared, **delay)
        expected.update(map(tuple, applied.collect()))

    job = make_job(options={"async-state.enabled": async_enabled})
    job.micro_batch(use)(numbers(spark), 0)
    job.finish()
    assert expected
    assert Counter(map(tuple, rows.collect())) == expected
    assert rows.count() == expected.total()  # once more
    assert list((tmp_path / "batch").iterdir()) == []


def test_several_inputs(spark: SparkSession, async_enabled: bool) -> None:
    options = {"async-state.enabled": async_enabled}
    left, right = numbers(spark, 20), numbers(spark, 30).select("id", sf.col("k").alias("seven"))
    joined = apply_batch(Join("left"), left, right, key=("id", "id"), options=options)
    assert joined.where("row_kind = '+I' and k = seven").count() == 20


def test_a_broadcast_input(spark: SparkSession, async_enabled: bool) -> None:
    rules = spark.range(7).selectExpr("id", "id as k")
    out = apply_batch(
        BroadcastProcess(Ruled(), COUNTS),
        numbers(spark),
        rules,
        key="k",
        options={"async-state.enabled": async_enabled},
    )
    assert {tuple(row)[1:] for row in out.collect()} == {("rules", 7, "+I")}


def test_chains_and_a_stateless_operator(spark: SparkSession) -> None:
    windows = apply_batch(WindowTableFunction(tumble("10 seconds")), numbers(spark), event_time="time")
    counted = apply_batch(GroupAggregate([count()]), windows, key=["window_start"])
    assert sorted(row[1] for row in counted.where("row_kind = '+I'").collect()) == [30, 30, 30, 30, 40, 40]
    with pytest.raises(OperatorError, match=r"operator 'Strict'.*ValueError: no 2, please"):
        apply_batch(GroupAggregate([count()]), apply_batch(Strict(2), spark.range(4)), key="id")


def test_errors_and_what_is_refused(spark: SparkSession) -> None:
    rows = spark.range(4)
    with pytest.raises(OperatorError, match=r"operator 'RunningTotal', key \(1,\): ValueError: blown fuse"):
        apply_batch(RunningTotal(1, __file__), rows.selectExpr("id", "id as k"), key="k")
    with pytest.raises(SchemaError, match="no column 'nothing'"):
        apply_batch(GroupAggregate([count()]), rows, key="nothing")
    with pytest.raises(JobError, match="takes 1 inputs but got 0"):
        apply_batch(GroupAggregate([count()]))
    with pytest.raises(
        JobError, match=r"operator 'GroupAggregate': GroupAggregate is a class; give an instance"
    ):
        apply_batch(GroupAggregate, rows)  # type: ignore[arg-type]
    with pytest.raises(JobError, match="got 'rows' as an input; give a DataFrame"):
        apply_batch(GroupAggregate([count()]), "rows")  # type: ignore[arg-type]
    with pytest.raises(JobError, match="a streaming DataFrame, which has no end"):
        apply_batch(GroupAggregate([count()]), spark.readStream.format("rate").load())
    with pytest.raises(ConfigurationError, match="checkpoint-dir has no effect"):
        apply_batch(GroupAggregate([count()]), rows, options={"async-state.checkpoint-dir": "/nowhere"})
    few = {"async-state.parallelism": 9, "async-state.max-parallelism": 8}
    with pytest.raises(ConfigurationError, match="parallelism is 9, more than"):
        apply_batch(GroupAggregate([count()]), rows, options=few)


@ASYNC
def test_state_beyond_memory(spark: SparkSession, async_enabled: bool, tmp_path: Path) -> None:
    options = {
        "async-state.enabled": async_enabled,
        "async-state.write-cache-size": "1kb",
        "async-state.cache-size": "1kb",
        "async-state.bundle-size": 1000,
        "async-state.local-dir": str(tmp_path / "local"),
    }
    rows = spark.range(0, 20_000, 1, 2).selectExpr("id % 9000 as k", "id")
    counted = apply_batch(GroupAggregate([count()]), rows, key="k", options=options)
    kept = counted.groupBy("k").agg(sf.expr("sum(if(row_kind in ('+I', '+U'), count, -count))").alias("n"))
    assert {row[0]: row[1] for row in kept.groupBy("n").count().collect()} == {2: 7000, 3: 2000}
    assert list((tmp_path / "local").iterdir()) == []


def test_rows_are_given_back(spark: SparkSession) -> None:
    persistent = spark.sparkContext._jsc.getPersistentRDDs
    before = set(persistent())
    rows = apply_batch(GroupAggregate([count()]), spark.range(10), key="id")
    assert len(set(persistent()) - before) == 1
    few = rows.where("id < 3")
    assert few.count() == 3
    assert isinstance(rows, DataFrame)
    assert rows.unpersist() is rows
    assert set(persistent()) <= before
    with pytest.raises(JobError, match="output of operator 'GroupAggregate' .* after unpersist"):
        rows.count()
    rows.unpersist()
    windows = apply_batch(WindowTableFunction(tumble("10 seconds")), numbers(spark), event_time="time")
    assert windows.unpersist().count() == 200  # nothing was kept


def test_nothing_of_ours_keeps_the_rows(spark: SparkSession) -> None:
    """So Spark's cleaner can find them."""
    rows = apply_batch(GroupAggregate([count()]), spark.range(10), key="id")
    kept = weakref.ref(rows)
    del rows
    assert kept() is None
