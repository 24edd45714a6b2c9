"""What is known of rows in a function's micro-batch: what Spark's transformations keep of it, and what is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession

from asyncstate.changelog import Changelog
from asyncstate.errors import AsyncStateError, SchemaError
from asyncstate.spark import StreamingJob, apply_batch, last_changes
from asyncstate.spark.facts import known_changes
from operators import ChangelogNormalize, Deduplicate, GroupAggregate, count, sum_

pytestmark = pytest.mark.spark


def run(spark: SparkSession, folder: Path, function: Any) -> None:
    job = StreamingJob(spark, str(folder / "state"), options={"async-state.parallelism": "1"})
    sales = spark.createDataFrame([("a", 1), ("a", 2), ("b", 3)], "k string, v long")
    job.micro_batch(function)(sales, 0)


def test_upserts_are_never_taken_for_a_changelog_that_takes_rows_back(
    spark: SparkSession, tmp_path: Path
) -> None:
    refused, taken = [], []

    def totals(df: Any, batch: Any) -> None:
        upserts = batch.apply(
            GroupAggregate([sum_("v").alias("total")], emit_update_before=False), df, key="k", uid="totals"
        )
        other = spark.createDataFrame([("c", 1, "+I")], "k string, total long, row_kind string")
        plain = upserts.where("total > 2"), upserts.select("total", "k", "row_kind"), upserts.repartition(3)
        for number, made in enumerate([*plain, upserts.union(other), other.union(upserts)]):
            with pytest.raises(
                SchemaError, match=r"derived these rows from others that are upsert by \(k\)"
            ) as error:
                batch.apply(GroupAggregate([count()]), made, key="k", uid=f"wrong{number}")
            refused.append(error.value)
            with pytest.raises(SchemaError, match="declare it with changes="):
                last_changes(made, "k")
        made = upserts.where("k = 'a'")
        out = batch.apply(
            ChangelogNormalize(), made, key="k", uid="normal", changes=Changelog.upsert("k")
        ).collect()
        taken.extend((row.k, row.total, row.row_kind) for row in out)
        taken.extend(tuple(row) for row in last_changes(made, "k", Changelog.upsert("k")).collect())
        batch.apply(GroupAggregate([count()]), upserts.groupBy("k").count(), key="k", uid="counts")
        own = upserts.selectExpr("k", "'+I' as row_kind")
        assert known_changes(own).text == "retract"

    def applying(df: Any, batch: Any) -> None:
        totals(df, _Trying(batch))

    run(spark, tmp_path, applying)
    assert len(refused) == 5
    assert taken == [("a", 3, "+I"), ("a", 3, "+U")]


class _Trying:
    """A micro-batch in which a refused operator is none that failed."""

    def __init__(self, batch: Any) -> None:
        self._batch = batch

    def apply(self, operator: Any, *inputs: Any, uid: str, **more: Any) -> Any:
        try:
            return self._batch.apply(operator, *inputs, uid=uid, **more)
        except SchemaError:
            self._batch._uids.remove(uid)
            raise


def test_insertions_of_an_operator_stay_insertions_whatever_spark_makes_of_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    found = []

    def first(df: Any, batch: Any) -> None:
        firsts = batch.apply(Deduplicate(time="processing"), df, key="k", uid="firsts")
        counts = batch.apply(GroupAggregate([count().alias("v")]), df, key="k", uid="counts")
        changes = spark.createDataFrame([("c", 1, "-D")], "k string, v long, row_kind string")
        for made in (
            firsts.where("v > 1").withColumn("w", firsts.v + 1),
            firsts.union(changes),
            changes.union(firsts),
            firsts.withColumn("row_kind", firsts.k),
            firsts.select("k", "v", "row_kind").union(counts),
            counts.where("v > 0"),
        ):
            found.append(known_changes(made).text)

    run(spark, tmp_path, first)
    assert found == ["insert-only", *["retract"] * 5]


def test_a_reader_s_upserts_are_asked_for_behind_a_transformation(
    spark: SparkSession, tmp_path: Path
) -> None:
    from asyncstate.spark.sources import debezium_json

    events = spark.readStream.format("rate").load().selectExpr("'{}' as value")
    read = debezium_json(events, "k string, v long", upsert_key="k")
    job = StreamingJob(spark, str(tmp_path / "graph"))
    made = read.where("v > 1")
    with pytest.raises(
        AsyncStateError, match=r"source 'rows'.*derived its rows from others that are upsert by \(k\)"
    ):
        job.source("rows", made)
    job.source("rows", read).to(lambda rows, batch: None, name="out")
    job.source("others", made, mode="upsert", primary_key="k").to(lambda rows, batch: None, name="others")
    job.check()


def test_the_mode_of_a_reader_reaches_the_function_of_a_query(spark: SparkSession, tmp_path: Path) -> None:
    from asyncstate.spark.sources import debezium_json

    text = '{"op": "c", "before": null, "after": {"k": "a", "v": 1}}'
    spark.createDataFrame([(text,)], "value string").write.parquet(str(tmp_path / "in"))
    found = []

    def function(*given: Any) -> None:
        try:
            found.append(known_changes(given[0]).text)
        except SchemaError as error:
            found.append(str(error))

    def read() -> Any:
        events = spark.readStream.schema("value string").parquet(str(tmp_path / "in"))
        return debezium_json(events, "k string, v long", upsert_key="k")

    plain = StreamingJob(spark, str(tmp_path / "plain"))
    query = read().writeStream.foreachBatch(plain.micro_batch(function)).trigger(availableNow=True)
    query.option("checkpointLocation", str(tmp_path / "plain-query")).start().awaitTermination()
    assert "derived these rows from others that are upsert by (k)" in found.pop()


def test_what_apply_batch_returns_is_known(spark: SparkSession) -> None:
    sales = spark.createDataFrame([("a", 1), ("a", 2)], "k string, v long")
    firsts = apply_batch(Deduplicate(time="processing"), sales, key="k")
    assert known_changes(firsts).text == "insert-only, unique (k)"
    totals = apply_batch(GroupAggregate([sum_("v").alias("v")], emit_update_before=False), sales, key="k")
    assert known_changes(totals).text == "upsert by (k)"
    with pytest.raises(SchemaError, match="needs the row before each change"):
        apply_batch(GroupAggregate([count()]), totals, key="k")
    with pytest.raises(SchemaError, match="declare it with changes="):
        apply_batch(ChangelogNormalize(), totals.where("true"), key="k")
    out = apply_batch(ChangelogNormalize(), totals.where("true"), key="k", changes=Changelog.upsert("k"))
    assert [(row.k, row.v, row.row_kind) for row in out.collect()] == [("a", 3, "+I")]
