"""Side outputs on Spark: beside the result of ``apply``, in a job and over bounded DataFrames."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import DataFrame, SparkSession

from asyncstate.errors import JobError
from asyncstate.spark import MicroBatch, StreamingJob, apply_batch
from operators import KeyedMap
from tests.spark.function_parts import COUNTS
from tests.spark.side_parts import CountedAndOdd, SplitByParity

pytestmark = pytest.mark.spark

MakeJob = Callable[..., StreamingJob]
SIZE, KEYS = 30, 4


def numbers(spark: SparkSession, start: int = 0, stop: int = SIZE) -> DataFrame:
    return spark.range(start, stop, 1, 2).selectExpr("id", f"id % {KEYS} as k", "timestamp_seconds(id) as at")


def ids(df: DataFrame) -> Counter[int]:
    return Counter(row.id for row in df.collect())


@pytest.mark.parametrize("enabled", ["true"])
def test_a_query_reads_every_output(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path, enabled: str
) -> None:
    """Three micro-batches; the second job goes on where the first one stopped; the last file is late."""
    source = tmp_path / "source"
    seen: list[dict[str, Any]] = []

    def use(df: DataFrame, batch: MicroBatch) -> None:
        times: dict[str, Any] = {"event_time": "at", "watermark_delay": 0, "order_by": "at"}
        counted = batch.apply(CountedAndOdd("late"), df, key="k", uid="counted", **times)
        odd = batch.side_output("counted", "odd")
        # An ordinary DataFrame: to another operator, and read twice.
        split = batch.apply(SplitByParity(), odd.withColumn("k", odd.id % 3), key="k", uid="split")
        late = batch.side_output("counted", "late")
        seen.append(
            {
                "counted": Counter(row["count"] for row in counted.collect()),
                "odd": ids(odd),
                "split": split.count(),
                "split odd": ids(batch.side_output("split", "odd")),
                "late": Counter((row.row_kind, row.id, row.k) for row in late.collect()),
                "never": batch.side_output("counted", "never").count(),
            }
        )

    def query(start: int, stop: int) -> StreamingJob:
        numbers(spark, start, stop).write.mode("append").parquet(str(source))
        job = make_job(options={"async-state.enabled": enabled})
        stream = spark.readStream.schema("id long, k long, at timestamp").parquet(str(source))
        writer = stream.writeStream.foreachBatch(job.micro_batch(use)).trigger(availableNow=True)
        job.await_termination(writer.option("checkpointLocation", str(tmp_path / "query")).start())
        return job

    query(0, SIZE)
    query(SIZE, SIZE + 10)
    query(SIZE - 5, SIZE)  # behind the watermark, which is that of the row SIZE - 1
    query(SIZE + 10, SIZE + 11).finish()
    assert [figures["never"] for figures in seen] == [0] * len(seen)
    assert [len(figures["split odd"]) for figures in seen] == [len(figures["odd"]) for figures in seen]
    assert {figures["split"] for figures in seen} == {0}
    odd = sum((figures["odd"] for figures in seen), Counter[int]())
    assert odd == Counter(range(1, SIZE + 11, 2))
    late = sum((figures["late"] for figures in seen), Counter[Any]())
    assert late == Counter(("+I", id_, id_ % KEYS) for id_ in range(SIZE - 5, SIZE))
    assert sum((figures["counted"] for figures in seen), Counter[int]()) == Counter(
        id_ // KEYS + 1 for id_ in range(SIZE + 11)
    )


def test_what_is_refused(spark: SparkSession, make_job: MakeJob) -> None:
    kept: list[Any] = []

    def use(df: DataFrame, batch: MicroBatch) -> None:
        with pytest.raises(JobError, match=r"no operator 'n' .*\(applied: none\); call apply"):
            batch.side_output("n", "odd")
        batch.apply(CountedAndOdd(), df, key="k", uid="n")
        batch.apply(KeyedMap(lambda row: (row.k, "", 1), COUNTS), df, key="k", uid="plain")
        with pytest.raises(
            JobError, match=r"no side output 'late': operator 'n' in batch 0 has 'odd', 'never'"
        ):
            batch.side_output("n", "late")
        with pytest.raises(JobError, match="operator 'plain' in batch 0 has none"):
            batch.side_output("plain", "late")
        with pytest.raises(JobError, match=r"no operator 'other' .*\(applied: 'n', 'plain'\)"):
            batch.side_output("other", "odd")
        kept.extend([batch, batch.side_output("n", "odd")])

    make_job().micro_batch(use)(numbers(spark), 0)
    batch, odd = kept
    with pytest.raises(JobError, match="micro-batch 0 is over; call side_output inside"):
        batch.side_output("n", "odd")
    with pytest.raises(JobError, match=r"output of operator 'n' in batch 0 is read after"):
        odd.collect()


def test_bounded_rows_have_them_too(spark: SparkSession) -> None:
    rows = apply_batch(CountedAndOdd(), numbers(spark), key="k")
    odd = rows.side_output("odd")
    assert rows.count() == SIZE
    assert sorted((row.id, row.at.second) for row in odd.collect()) == [
        (id_, id_) for id_ in range(1, SIZE, 2)
    ]
    with pytest.raises(JobError, match="no side output 'late'"):
        rows.side_output("late")
    rows.unpersist()
    for read in (rows.count, odd.count):
        with pytest.raises(JobError, match=r"after unpersist\(\); call apply_batch again"):
            read()


def test_an_operator_with_one_output_has_the_wire_that_it_had(spark: SparkSession) -> None:
    import pyarrow as pa

    from asyncstate.operator import OutputSpec
    from asyncstate.spark.exchange import stage_schema

    schema = pa.schema([("k", pa.int64())])
    plain = stage_schema("n", schema)
    assert plain.fieldNames() == ["__asyncstate_output", "__asyncstate_commit"]
    assert stage_schema("n", OutputSpec(schema)) == plain
    assert stage_schema("n", OutputSpec(schema, {"odd": schema})).fieldNames() == [
        *plain.fieldNames(),
        "__asyncstate_side_odd",
    ]
