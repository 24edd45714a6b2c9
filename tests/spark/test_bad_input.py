"""What Spark's side refuses, and odd names that it takes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import DataFrame, SparkSession

from asyncstate.errors import JobError, SchemaError
from asyncstate.spark import MicroBatch, StreamingJob
from operators import GroupAggregate, Join, count, sum_
from tests.spark.bad_parts import EndsItsWorker, HoldsALock

pytestmark = pytest.mark.spark

MakeJob = Callable[..., StreamingJob]


def test_columns_of_any_name(spark: SparkSession, make_job: MakeJob) -> None:
    """Dots and backquotes, as key, as value, and with two inputs."""
    rows = spark.sql("select id % 2 as `a.b`, id as `x``y`, '+I' as row_kind from range(6)")
    found: list[Any] = []

    def use(df: DataFrame, batch: MicroBatch) -> None:
        summed = batch.apply(GroupAggregate([count(), sum_("x`y").alias("s.u")]), df, uid="g", key="a.b")
        found.extend(sorted(tuple(row) for row in summed.collect()))
        joined = batch.apply(Join("inner"), df, df.drop("row_kind"), uid="j", key=("a.b", "a.b"))
        found.append(joined.count())

    make_job().micro_batch(use)(rows, 0)
    assert found == [(0, 3, 6, "+I"), (1, 3, 9, "+I"), 18]


def test_columns_that_differ_in_case_only(spark: SparkSession, make_job: MakeJob) -> None:
    sensitive = spark.newSession()
    sensitive.conf.set("spark.sql.caseSensitive", "true")
    rows = sensitive.sql("select id as k, id as V, id as v from range(3)")
    sensitive.conf.set("spark.sql.caseSensitive", "false")

    def use(df: DataFrame, batch: MicroBatch) -> None:
        batch.apply(GroupAggregate([count()]), df, uid="g", key="k")

    with pytest.raises(SchemaError, match="columns 'V' and 'v' differ only in case"):
        make_job(sensitive).micro_batch(use)(rows, 0)


@pytest.mark.since_spark("4.0", "variants")
@pytest.mark.parametrize("column", ["parse_json('1')", "array(parse_json('1'))"])
def test_variants_are_refused(spark: SparkSession, make_job: MakeJob, column: str) -> None:
    def use(df: DataFrame, batch: MicroBatch) -> None:
        batch.apply(Join("left"), df, df, uid="j", key=("k", "k"))

    with pytest.raises(
        SchemaError, match=r"column 'v' of type .*variant.* cannot be sent to Python as Arrow; cast"
    ):
        make_job().micro_batch(use)(spark.sql(f"select 1L as k, {column} as v"), 0)


@pytest.mark.parametrize("uid", [None, 3, ""])
def test_uids(spark: SparkSession, make_job: MakeJob, uid: Any) -> None:
    def use(df: DataFrame, batch: MicroBatch) -> None:
        batch.apply(GroupAggregate([count()]), df, uid=uid, key="id")

    with pytest.raises(JobError, match="uid .* cannot be used"):
        make_job().micro_batch(use)(spark.range(3), 0)
    with pytest.raises(JobError, match="job name None cannot be used"):
        make_job(name=None)


def test_an_operator_that_cannot_be_sent(spark: SparkSession, make_job: MakeJob) -> None:
    def use(df: DataFrame, batch: MicroBatch) -> None:
        batch.apply(HoldsALock(threading.Lock()), df, uid="held", key="id")

    with pytest.raises((JobError, SchemaError), match="operator 'held' .*cannot be pickled|'held'.*pickle"):
        make_job().micro_batch(use)(spark.range(3), 0)


def test_an_operator_that_ends_its_worker_is_named(spark: SparkSession, make_job: MakeJob) -> None:
    def use(df: DataFrame, batch: MicroBatch) -> None:
        batch.apply(EndsItsWorker(), df, uid="ends", key="id")

    with pytest.raises(JobError, match=r"operator 'ends' \(EndsItsWorker\): a Python worker ended"):
        make_job(options={"async-state.executor": "spark"}).micro_batch(use)(spark.range(3), 0)
