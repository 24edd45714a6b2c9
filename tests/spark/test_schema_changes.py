"""A job's input changes between micro-batches, and rows with nested timestamps go through Spark and state."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from asyncstate.errors import SchemaError, StateDeclarationError
from asyncstate.offline.migration import CastField, migrate
from asyncstate.spark import MicroBatch, StreamingJob
from operators import Deduplicate, KeyedReduce

MakeJob = Callable[..., StreamingJob]

pytestmark = pytest.mark.spark
MOMENT = datetime(2024, 2, 29, 12, 30, 15, 123456)


def collected(
    make_job: MakeJob, operator: Any, df: DataFrame, batch_id: int, **settings: Any
) -> list[tuple[Any, ...]]:
    """The output rows of one micro-batch of a restarted job."""
    found: list[tuple[Any, ...]] = []

    def use(df: DataFrame, batch: MicroBatch) -> None:
        found.extend(tuple(row) for row in batch.apply(operator, df, uid="e", key="k", **settings).collect())

    make_job(options={"async-state.parallelism": 1}).micro_batch(use)(df, batch_id)
    return found


def test_an_input_column_is_widened_and_others_come(
    spark: SparkSession, make_job: MakeJob, tmp_path: Any
) -> None:
    operator = Deduplicate(keep="last", time="processing")
    old = spark.sql("select 1L as k, cast(5 as int) as n")
    new = spark.sql("select 1L as k, 'x' as note, 1099511627776L as n")
    assert collected(make_job, operator, old, 0) == [(1, 5, "+I")]
    assert collected(make_job, operator, new, 1) == [(1, None, 5, "-U"), (1, "x", 2**40, "+U")]
    with pytest.raises(
        StateDeclarationError, match="state 'rows': .*'note' was removed.* migrate drop-field"
    ):
        collected(make_job, operator, spark.sql("select 1L as k, 7L as n"), 2)
    with pytest.raises(StateDeclarationError, match="operator was Deduplicate and is gone"):
        collected(make_job, KeyedReduce(max), spark.sql("select 1L as k, 'y' as note, '7' as n"), 2)
    with pytest.raises(SchemaError, match=r"the key \(key0\) was \(k: int64\) and is now \(k: int32\)"):
        collected(make_job, operator, spark.sql("select cast(1 as int) as k, 'y' as note, 7L as n"), 2)


def test_a_job_goes_on_behind_a_migration(spark: SparkSession, make_job: MakeJob, tmp_path: Any) -> None:
    operator = Deduplicate(keep="last", time="processing")
    wide = spark.sql("select id as k, id as n from range(5)")
    narrow = spark.sql("select id as k, cast(id + 1 as int) as m from range(2)")
    collected(make_job, operator, wide, 0)
    collected(make_job, operator, wide.where("false"), 1)
    place = f"{tmp_path}/checkpoint"
    with pytest.raises(StateDeclarationError, match=f"'n' was removed.*drop-field {place} e rows n"):
        collected(make_job, operator, narrow, 2)
    migrate(place, "e", "rows", CastField("n", "int32"))
    renamed = narrow.withColumnRenamed("m", "n")
    assert sorted(collected(make_job, operator, renamed.where("k = 1"), 2)) == [(1, 1, "-U"), (1, 2, "+U")]


def test_nested_timestamps_come_back_as_they_went(spark: SparkSession, make_job: MakeJob) -> None:
    text = f"timestamp'{MOMENT}'"
    df = spark.sql(
        f"select 1L as k, array({text}, null) as times, map('a', struct({text} as at)) as by_name, {text} as at"
    )
    kept = KeyedReduce(
        lambda old, new: (new.k, old.times + new.times, old.by_name, max(old["at"], new["at"]))
    )
    first = (1, [MOMENT, None], {"a": (MOMENT,)}, MOMENT, "+I")
    assert collected(make_job, kept, df, 0) == [first]
    second = (1, [MOMENT, None, MOMENT, None], {"a": (MOMENT,)}, MOMENT, "+I")
    assert collected(make_job, kept, df, 1) == [second]
