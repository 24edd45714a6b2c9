"""Tables that do not stream as sources of a graph; functions of DataFrames in the harness."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from asyncstate.errors import JobError
from asyncstate.spark import StreamingJob
from asyncstate.testing import PipelineHarness, PipelineSource, net
from operators import GroupAggregate, sum_

pytestmark = pytest.mark.spark

MakeJob = Callable[..., StreamingJob]


def test_a_table_comes_once_and_never_changes(spark: SparkSession, make_job: MakeJob, tmp_path: Path) -> None:
    orders, people = str(tmp_path / "orders"), str(tmp_path / "people")
    spark.sql("SELECT 'ann' name UNION ALL SELECT 'bob'").coalesce(1).write.parquet(people)
    seen = Counter[Any]()
    late = [False]

    def run() -> None:
        job = make_job()
        table = job.table("people", spark.read.schema("name string").parquet(people), primary_key="name")
        stream = job.source("orders", spark.readStream.schema("customer string").parquet(orders))
        names = table.union(stream.select("customer AS name"))
        if late[0]:  # a table that is added to a running job
            names = names.union(job.table("more", spark.sql("SELECT 'eve' AS name")))
        names.to(lambda df, _: seen.update(net(df.collect())), name="names")
        job.await_termination(job.start(trigger={"availableNow": True}), 300)

    def order(customer: str) -> None:
        spark.sql(f"SELECT '{customer}' customer").write.mode("append").parquet(orders)

    order("ann")
    run()
    assert seen == {("ann",): 2, ("bob",): 1}
    spark.sql("SELECT 'cat' name").write.mode("append").parquet(people)  # not seen any more
    order("bob")
    late[0] = True
    run()
    assert seen == {("ann",): 2, ("bob",): 2, ("eve",): 1}


def test_tables_alone_and_streams_as_tables_are_refused(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path
) -> None:
    job = make_job()
    with pytest.raises(JobError, match="'rates' would start from a streaming DataFrame"):
        job.table("rates", spark.readStream.format("rate").load())
    job.table("numbers", spark.range(3)).to(lambda df, _: None, name="out")
    with pytest.raises(JobError, match=r"nothing streams: there are tables only \(numbers\)"):
        job.start(trigger={"availableNow": True})


@pytest.mark.since_spark("4.0", "DataFrames of Arrow tables")
def test_functions_of_dataframes_run_in_the_harness(spark: SparkSession, async_enabled: bool) -> None:
    def doubled(one: DataFrame, other: DataFrame) -> DataFrame:
        return one.join(other, "k").select("k", (sf.col("v") * 2).alias("v"))

    def pipeline(rows: Any, factors: Any) -> None:
        totals = rows.transform(doubled, factors).apply(
            GroupAggregate([sum_("v").alias("total")]), key="k", uid="totals"
        )
        totals.to(print, name="totals")

    schema = pa.schema([("k", pa.string()), ("v", pa.int64())])
    sources = {
        "rows": PipelineSource(schema),
        "factors": PipelineSource(pa.schema([("k", pa.string())]), initial=[("a",)]),
    }
    with pytest.raises(JobError, match=r"which needs Spark; give the harness a session"):
        PipelineHarness(pipeline, sources)
    with PipelineHarness(pipeline, sources, spark=spark, async_enabled=async_enabled) as harness:
        assert harness.end_batch() == {"totals": []}
        harness.push("rows", [("a", 1), ("b", 5)])
        harness.push("factors", [("a",)])
        assert harness.end_batch() == {"totals": [("+I", "a", 2)]}
