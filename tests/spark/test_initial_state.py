"""What an operator starts from: existing rows and values of states, once, before all rows of the stream."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from asyncstate import (
    InputSpec,
    ListStateDescriptor,
    MapStateDescriptor,
    OperatorContext,
    OutputSpec,
    RecordContext,
    RecordOperator,
    ReducingStateDescriptor,
    Row,
    ValueStateDescriptor,
)
from asyncstate.errors import AsyncStateError, JobError
from asyncstate.spark import MicroBatch, StreamingJob, read_state
from asyncstate.testing import net
from operators import GroupAggregate, Join, KeyedMap, count, sum_
from tests.spark.broadcast_parts import BadWords
from tests.spark.conftest import PLACES
from tests.spark.modes import ASYNC, SYNC

pytestmark = pytest.mark.spark

MakeJob = Callable[..., StreamingJob]
ID = pa.schema([("id", pa.int64())])
ORDERS = "id long, customer string, amount long"


class Numbered(RecordOperator):
    """Each row with its number among those of its key: it tells in what order they came."""

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        return pa.schema([("k", pa.int64()), ("v", pa.int64()), ("number", pa.int64())])

    def open(self, context: OperatorContext) -> None:
        self.count = context.get_state(ValueStateDescriptor("count", pa.int64(), default=0))

    def process(self, row: Row, ctx: RecordContext) -> None:
        number = self.count.value() or 0
        self.count.update(number + 1)
        ctx.emit(row["k"], row["v"], number)


class Same(RecordOperator):
    """Keeps nothing."""

    stateless = True

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        return inputs[0].schema

    def process(self, row: Row, ctx: RecordContext) -> None:
        ctx.emit(*row)


class Split(RecordOperator):
    """Rows of even seconds go to a side output."""

    def bind(self, inputs: Sequence[InputSpec]) -> OutputSpec:
        return OutputSpec(inputs[0].schema, {"even": inputs[0].schema})

    def process(self, row: Row, ctx: RecordContext) -> None:
        ctx.emit(*row, output=None if row["ts"] // 1_000_000 % 2 else "even")


class Holder(RecordOperator):
    """Shows what its states hold when a row comes."""

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        self.columns = inputs[0].schema.names
        fields = [("k", pa.string()), ("one", pa.float64()), ("many", pa.string())]
        return pa.schema([*fields, ("names", pa.string()), ("best", pa.int64())])

    def open(self, context: OperatorContext) -> None:
        assert context.inputs[0].schema.names == self.columns  # also where values are written
        self.one = context.get_state(ValueStateDescriptor("one", pa.float64()))
        self.many = context.get_state(ListStateDescriptor("many", pa.int64()))
        self.names = context.get_state(MapStateDescriptor("names", pa.string(), pa.int32()))
        self.best = context.get_state(ReducingStateDescriptor("best", max, pa.int64()))

    def process(self, row: Row, ctx: RecordContext) -> None:
        self.best.add(row["v"])
        names = dict(sorted(self.names.items()))
        ctx.emit(row["k"], self.one.value(), str(list(self.many)), str(names), self.best.get())


@ASYNC
@PLACES
def test_a_graph_starts_from_a_table_once(
    spark: SparkSession, make_job: MakeJob, async_enabled: bool, executor: str, tmp_path: Path
) -> None:
    """A join and an aggregation behind it, the first micro-batch failing once behind its operators."""
    orders, payments = str(tmp_path / "orders"), str(tmp_path / "payments")
    spark.sql("SELECT 0L id, 'ann' customer, 5L amount UNION ALL SELECT 1L, 'bob', 7L").write.parquet(orders)
    table = spark.read.schema(ORDERS).parquet(orders).localCheckpoint()
    rows, seen = Counter[tuple[Any, ...]](), Counter[tuple[Any, ...]]()
    failing = [True]

    def arrive(id_: int, customer: str) -> None:
        spark.sql(f"SELECT {id_}L id, '{customer}' customer, 1L amount").write.mode("append").parquet(orders)
        spark.range(id_ - 2, id_, 1, 1).selectExpr("id AS order_id").write.mode("append").parquet(payments)

    def keep(df: DataFrame, batch_id: int) -> None:
        if failing and failing.pop():
            raise RuntimeError("the sink is not there")
        rows.update(net(df.collect()))

    def run() -> None:
        modes = {"async-state.enabled": async_enabled, "async-state.executor": executor}
        job = make_job(options={**modes, "async-state.parallelism": 2})
        changes = (
            spark.readStream.schema(ORDERS).parquet(orders).where("amount = 1")
        )  # what came after the table had been read
        paid = job.source("orders", changes, initial=table).where("customer != 'nobody'")
        paid.to(lambda df, _: seen.update(net(df.collect())), name="orders")
        pays = job.source("payments", spark.readStream.schema("order_id long").parquet(payments))
        paid = paid.join(pays, Join(), key=("id", "order_id"), uid="paid")
        totals = paid.apply(GroupAggregate([count(), sum_("amount")]), key="customer", uid="totals")
        totals.to(keep, name="totals")
        job.await_termination(job.start(trigger={"availableNow": True}), 100)

    arrive(2, "ann")
    with pytest.raises(Exception, match="the sink is not there"):
        run()
    seen.clear()
    run()
    assert +rows == {("ann", 1, 5): 1, ("bob", 1, 7): 1}  # orders 0 and 1 are of the table, and paid
    arrive(4, "ann")
    run()
    assert +rows == {("ann", 2, 6): 1, ("bob", 1, 7): 1}  # order 2 is paid, order 3 is none
    assert seen == {(0, "ann", 5): 1, (1, "bob", 7): 1, (2, "ann", 1): 1, (4, "ann", 1): 1}


@SYNC
def test_initial_rows_come_first_whatever_the_order_and_later_ones_start_alone(
    spark: SparkSession, make_job: MakeJob, async_enabled: bool
) -> None:
    job = make_job(options={"async-state.enabled": async_enabled})
    rows = Counter[tuple[Any, ...]]()
    table = spark.range(100).selectExpr("id % 3 AS k", "id AS v", "timestamp_seconds(1) AS ts")

    @job.micro_batch
    def run(df: DataFrame, batch: MicroBatch) -> None:
        arguments: dict[str, Any] = {"key": "k", "initial_state": table}
        out = batch.apply(Numbered(), df, uid="numbered", **arguments)
        rows.update(net(out.selectExpr("k", "v", "number", "'plain' AS how").collect()))
        ordered: dict[str, Any] = {"event_time": "ts", "watermark_delay": 0, "order_by": "ts"}
        out = batch.apply(Numbered(), df, uid="ordered", **ordered, **arguments)
        rows.update(net(out.selectExpr("k", "v", "number", "'ordered' AS how").collect()))
        if batch.batch_id:  # an operator that is new in a job that runs
            batch.apply(Numbered(), df, uid="later", **arguments)

    for batch_id in range(2):
        values = spark.range(batch_id * 3 + 1000, batch_id * 3 + 1003)
        run(values.selectExpr("id % 3 AS k", "id AS v", "timestamp_seconds(1) AS ts"), batch_id)
    job.finish()
    numbers: dict[tuple[str, int], list[int]] = {}
    for k, v, number, how in sorted(rows, key=lambda row: row[2]):
        numbers.setdefault((how, k), []).append(v)
        assert number == len(numbers[how, k]) - 1
    for (_, k), found in numbers.items():
        assert sorted(found[:-2]) == [v for v in range(100) if v % 3 == k]
        assert found[-2:] == [v for v in range(1000, 1006) if v % 3 == k]
    assert len(numbers) == 6
    later = read_state(spark, str(job.config.checkpoint_dir), "later", "count")
    assert sorted(row[0] for row in later.select("value").collect()) == [34, 34, 35]


def test_states_start_from_values(spark: SparkSession, make_job: MakeJob, async_enabled: bool) -> None:
    job = make_job(options={"async-state.enabled": async_enabled})
    values = {
        "one": spark.sql("SELECT 'a' k, 1.5D value UNION ALL SELECT 'b', 2.5D"),
        "many": spark.sql("SELECT 'a' k, array(3L, 1L, 2L) value"),
        "names": spark.sql("SELECT 'a' k, 'x' user_key, 1 value UNION ALL SELECT 'a', 'y', 2"),
        "best": spark.sql("SELECT 'a' k, 7L value"),
    }
    found: list[tuple[Any, ...]] = []

    @job.micro_batch
    def run(df: DataFrame, batch: MicroBatch) -> None:
        out = batch.apply(Holder(), df, key="k", uid="holder", initial_state=values)
        found.extend(sorted(tuple(row)[:-1] for row in out.collect()))

    run(spark.sql("SELECT 'a' k, 5L v UNION ALL SELECT 'b', 5L UNION ALL SELECT 'c', 5L"), 0)
    a = ("a", 1.5, "[3, 1, 2]", "{'x': 1, 'y': 2}", 7)
    assert found == [a, ("b", 2.5, "[]", "{}", 5), ("c", None, "[]", "{}", 5)]
    found.clear()
    run(spark.sql("SELECT 'a' k, 9L v"), 1)
    assert found == [(*a[:-1], 9)]


def test_a_broadcast_input_and_a_side_output_have_initial_rows_too(
    spark: SparkSession, make_job: MakeJob
) -> None:
    job, seen, aside = make_job(), [], Counter[tuple[Any, ...]]()
    rules = spark.sql("SELECT 'bad' word, 1.0D score")
    late = spark.sql("SELECT 1L k, timestamp_seconds(5) ts UNION ALL SELECT 1L, timestamp_seconds(6)")

    @job.micro_batch
    def run(df: DataFrame, batch: MicroBatch) -> None:
        words = spark.createDataFrame([], rules.schema)
        key: Any = ("sentence", None)
        kept = batch.apply(BadWords(), df, words, key=key, uid="words", initial_state=(None, rules))
        seen.append(sorted(row.sentence for row in kept.collect()))
        odd = df.selectExpr("1L AS k", "timestamp_seconds(1) AS ts")
        batch.apply(Split(), odd, key="k", uid="split", initial_state=late)
        aside.update(net(batch.side_output("split", "even").collect()))

    for batch_id in range(2):
        run(spark.sql("SELECT 'a bad word' sentence UNION ALL SELECT 'a good one'"), batch_id)
    assert seen == [["a good one"]] * 2
    assert sum(aside.values()) == 1  # of the seconds 5 and 6, and 1 and 1 in each micro-batch, one is even


def test_what_cannot_be_started_from_is_said_before_a_row_is_read(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path
) -> None:
    spark.range(1).write.parquet(str(tmp_path / "rows"))
    stream = spark.readStream.schema("id long").parquet(str(tmp_path / "rows"))
    table = spark.range(3)
    job = make_job()
    rows = job.source("rows", stream, initial=table)
    wrong: list[tuple[Any, Any, str]] = [
        (GroupAggregate([count()]), spark.range(1).selectExpr("'a' AS id"), "id bigint"),
        (GroupAggregate([count()]), stream, "would start from a streaming DataFrame"),
        (GroupAggregate([count()]), [table, table], "has 1 inputs"),
        (
            GroupAggregate([count()]),
            {"accumulators": table.selectExpr("id", "1L value")},
            "does not accept initial values",
        ),
        (KeyedMap(lambda row: row, ID), {"none": table.selectExpr("id", "1L value")}, "it has none"),
        (
            KeyedMap(lambda row: row, ID),
            {"none": table},
            "give those of the key and the value: id, value",
        ),
        (KeyedMap(lambda row: row, ID), {"none": table.selectExpr("1 id", "1 value")}, "it is int64"),
        (Same(), table, "is stateless"),
    ]
    free = job.source("free", stream)
    for number, (operator, given, _) in enumerate(wrong):
        key = None if operator.stateless else "id"
        free.apply(operator, uid=f"wrong{number}", key=key, initial_state=given)
    rows.where("id > 1").apply(GroupAggregate([count()]), uid="twice", key="id", initial_state=table)
    job.source("text", stream, initial=spark.range(1).selectExpr("'a' AS id"))
    with pytest.raises(JobError) as found:
        job.check()
    messages = str(found.value).splitlines()[1:]
    for number, (_, _, text) in enumerate(wrong):
        assert any(f"'wrong{number}'" in line and text in line for line in messages), (number, messages)
    assert any("'twice'" in line and "give one of them" in line for line in messages)
    assert any("source 'text'" in line and "id string" in line for line in messages)
    assert len(messages) == len(wrong) + 2
    assert isinstance(found.value, AsyncStateError)


@ASYNC
def test_upserts_of_initial_rows_are_replaced_in_the_first_micro_batch(
    spark: SparkSession, make_job: MakeJob, async_enabled: bool, tmp_path: Path
) -> None:
    """A micro-batch has one change of each key, though the operator has run twice."""
    orders, found = str(tmp_path / "orders"), list[Any]()
    spark.sql("SELECT 3L id, 'ann' customer, 1L amount").write.parquet(orders)
    table = spark.sql("SELECT 0L id, 'ann' customer, 5L amount UNION ALL SELECT 1L, 'bob', 7L")
    job = make_job(options={"async-state.enabled": async_enabled, "async-state.parallelism": 2})
    source = job.source("orders", spark.readStream.schema(ORDERS).parquet(orders), initial=table)
    totals = GroupAggregate([sum_("amount").alias("total")], emit_update_before=False)
    upserts = source.apply(totals, key="customer", uid="totals")
    upserts.to(lambda df, _: found.extend((row.customer, row.total) for row in df.collect()), name="out")
    job.await_termination(job.start(trigger={"availableNow": True}), 100)
    assert sorted(found) == [("ann", 6), ("bob", 7)]
