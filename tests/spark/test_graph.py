"""A job declared as a graph: the rows of the job as a function, several sources in one query, all errors at once."""

from __future__ import annotations

import datetime as dt
import os
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from asyncstate.dataflow import Stream
from asyncstate.errors import CheckpointError, JobError
from asyncstate.spark import MicroBatch, StreamingJob, read_state
from asyncstate.testing import Tuning, net
from operators import (
    Deduplicate,
    GroupAggregate,
    Join,
    Rank,
    TemporalSort,
    WindowAggregate,
    WindowRank,
    count,
    desc,
    hop,
    max_,
    sum_,
    tumble,
)

pytestmark = pytest.mark.spark

ORDERS = "id long, customer string, amount long, ts timestamp"
PAYMENTS = "order_id long, paid long"
MakeJob = Callable[..., StreamingJob]


def written(folder: Path, first: int = 0, batches: int = 3, shift: int = 20) -> tuple[str, str]:
    """Files of orders and of payments, one of each a micro-batch, each with 20 ids, ``shift`` behind the one before."""
    for number in range(first, first + batches):
        ids = range(number * shift, number * shift + 20)
        orders = [
            {"id": i, "customer": f"c{i % 3}", "amount": i % 7, "ts": dt.datetime.fromtimestamp(i, dt.UTC)}
            for i in ids
        ]
        paid = [{"order_id": i, "paid": i * 10} for i in ids if i % 4]
        for name, rows in (("orders", orders), ("payments", paid)):
            (folder / name).mkdir(exist_ok=True)
            file = folder / name / f"{number}.parquet"
            pq.write_table(pa.Table.from_pylist(rows), file)
            os.utime(file, (1_700_000_000 + number,) * 2)  # Spark reads them by their times
    return str(folder / "orders"), str(folder / "payments")


def read(spark: SparkSession, schema: str, folder: str) -> DataFrame:
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(folder)


def declared(orders: Stream, payments: Stream, into: Callable[[str], Any]) -> None:
    """The graph of the tests: a join, two branches behind it, windows beside it."""
    paid = orders.join(payments, Join("left"), key=("id", "order_id"), uid="paid")
    large = paid.where("amount > 2").with_columns(double=lambda rows: pc.multiply(rows.column("amount"), 2))
    large.to(into("large"), name="large")
    totals = paid.apply(GroupAggregate([count(), sum_("paid").alias("paid")]), key="customer", uid="totals")
    totals.select("customer", "paid", rows="count").to(into("totals"), name="totals")
    windows = orders.where(lambda rows: pc.not_equal(rows.column("customer"), "c0")).apply(
        WindowAggregate(tumble("10 seconds"), [count()]), key="customer", uid="windows"
    )
    windows.to(into("windows"), name="windows")


class Kept:
    """Sinks that keep the net rows by name, and the batches they were called for."""

    def __init__(self) -> None:
        self.rows: dict[str, Counter[Any]] = {}
        self.batches: list[tuple[str, int]] = []

    def __call__(self, name: str) -> Callable[[DataFrame, int], None]:
        def keep(df: DataFrame, batch_id: int) -> None:
            self.batches.append((name, batch_id))
            self.rows.setdefault(name, Counter()).update(net(df.collect()))

        return keep


def test_a_graph_gives_what_the_function_gives(
    spark: SparkSession, make_job: MakeJob, async_enabled: bool, tmp_path: Path
) -> None:
    orders, payments = written(tmp_path)
    kept = Kept()
    options = {"async-state.enabled": async_enabled, "async-state.parallelism": 2}

    def start(kept: Kept) -> StreamingJob:
        job = make_job(options=options)
        declared(
            job.source("orders", read(spark, ORDERS, orders), event_time="ts", watermark_delay="1 second"),
            job.source("payments", read(spark, PAYMENTS, payments)),
            kept,
        )
        query = job.start(trigger={"availableNow": True})
        job.await_termination(query)
        return job

    start(kept)
    written(tmp_path, 3, 1)  # a restart goes on with the files that are new
    job = start(kept)
    assert re.search(
        r"paid .* \([\d,]+ ms( in the driver)?, 3[\d,]* → [\d,]+ rows, [\d.]+ MiB of state(; [^)]*)?\)",
        job.explain(),
    )
    job.finish()
    assert [name for name, batch in kept.batches if batch == 0] == ["large", "totals", "windows"]

    expected, whole = Kept(), make_job(options=options, checkpoint_dir=str(tmp_path / "whole"))

    @whole.micro_batch
    def run(df: DataFrame, batch: MicroBatch) -> None:
        rows = spark.read.parquet(orders) if not batch.final else spark.createDataFrame([], ORDERS)
        pays = spark.read.parquet(payments) if not batch.final else spark.createDataFrame([], PAYMENTS)
        time: dict[str, Any] = {"event_time": ("ts", None), "watermark_delay": ("1 second", None)}
        paid = batch.apply(Join("left"), rows, pays, key=("id", "order_id"), uid="paid", **time)
        large = paid.where("amount > 2").withColumn("double", sf.col("amount") * 2)
        expected("large")(large.select(*[c for c in large.columns if c != "row_kind"], "row_kind"), 0)
        totals = batch.apply(
            GroupAggregate([count(), sum_("paid").alias("paid")]), paid, key="customer", uid="totals"
        )
        expected("totals")(totals.selectExpr("customer", "paid", "count AS rows", "row_kind"), 0)
        one = {"event_time": "ts", "watermark_delay": "1 second"}
        windows = batch.apply(
            WindowAggregate(tumble("10 seconds"), [count()]),
            rows.where("customer != 'c0'"),
            key="customer",
            uid="windows",
            **one,
        )
        expected("windows")(windows, 0)

    run(spark.range(1), 0)
    whole.finish()
    assert {name: +net for name, net in kept.rows.items()} == {
        name: +net for name, net in expected.rows.items()
    }
    assert all(expected.rows.values())


def test_a_process_that_has_not_run_the_query_finishes_the_job(
    spark: SparkSession, make_job: MakeJob, async_enabled: bool, tmp_path: Path
) -> None:
    """As after a driver that was killed in ``finish``; also with a program that has more sources and columns."""
    orders, payments = written(tmp_path, batches=1)

    def job_of(kept: Kept, schema: str, is_changed: bool) -> StreamingJob:
        job = make_job(options={"async-state.enabled": async_enabled, "async-state.parallelism": 2})
        rows = job.source("orders", read(spark, schema, orders), event_time="ts", watermark_delay="1 second")
        windows = WindowAggregate(tumble("10 seconds"), [count()])
        rows.apply(windows, key="customer", uid="windows").to(kept("windows"), name="windows")
        if is_changed:
            more = job.source("payments", read(spark, PAYMENTS, payments))
            more.apply(GroupAggregate([count()]), key="order_id", uid="more").to(kept("more"), name="more")
        return job

    started, kept = Kept(), Kept()
    job = job_of(started, ORDERS, is_changed=False)
    job.await_termination(job.start(trigger="availableNow"))
    changed = f"{ORDERS}, note string"
    job_of(kept, changed, is_changed=True).finish()
    assert (len(started.rows["windows"]), len(kept.rows["windows"])) == (0, 6)
    assert kept.rows["more"] == Counter()
    with pytest.raises(CheckpointError, match="was finished at batch 1"):
        job_of(kept, changed, is_changed=True).finish()


def test_union_drop_and_an_object_as_sink(spark: SparkSession, make_job: MakeJob, tmp_path: Path) -> None:
    orders, _ = written(tmp_path, batches=1)

    class Sums:
        total = 0

        def write(self, rows: DataFrame, batch_id: int) -> None:
            self.total += rows.agg(sf.sum("id")).collect()[0][0] or 0

    sums, job = Sums(), make_job()
    first = job.source("first", read(spark, ORDERS, orders)).drop("ts")
    second = job.source("second", read(spark, ORDERS, orders)).select("amount", "customer", "id + 100 AS id")
    first.union(second).to(sums)
    job.await_termination(job.start(trigger={"availableNow": True}))
    assert sums.total == 2 * sum(range(20)) + 20 * 100


def test_all_problems_are_told_at_once_with_their_places(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path
) -> None:
    orders, payments = written(tmp_path, batches=1)
    job = make_job()
    one = job.source("orders", read(spark, ORDERS, orders), changelog=True)
    two = job.source("payments", read(spark, PAYMENTS, payments), event_time="when")
    three = job.source("more", read(spark, ORDERS, orders))
    one.apply(GroupAggregate([count()]), key="customer", uid="behind a problem")
    three.where("amont > 3").apply(GroupAggregate([count()]), key="customer", uid="never reached")
    three.apply(GroupAggregate([sum_("customer")]), key="customer", uid="sums")
    three.apply(GroupAggregate([count()]), key="nobody", uid="keys")
    three.apply(TemporalSort(), key="customer", event_time="ts", uid="waits")
    three.with_columns(far=lambda rows: rows.column("missing"))
    job.source("capitals", read(spark, f"{ORDERS}, ROW_KIND string", orders))
    assert two.node.name == "payments"
    with pytest.raises(JobError) as raised:
        job.start()
    head, *problems = str(raised.value).splitlines()
    assert head == "the job's graph has 8 problems; nothing was read:"
    assert all(problem.strip().startswith("test_graph.py:") for problem in problems)
    for place, words in enumerate(
        [
            "source 'orders': it is declared as a changelog",
            "source 'payments': there is no column 'when'",
            "where amont > 3: ",
            "operator 'sums': ",
            "operator 'keys': ",
            "with_columns",
            "source 'capitals': column 'ROW_KIND' differs only in case from 'row_kind'",
            "operator 'waits': its rows wait for the watermark",
        ]
    ):
        assert words in problems[place]


def test_what_is_refused_when_it_is_declared(spark: SparkSession, make_job: MakeJob, tmp_path: Path) -> None:
    orders, _ = written(tmp_path, batches=1)
    job, other = make_job(), make_job(checkpoint_dir=str(tmp_path / "other"))
    stream = job.source("orders", read(spark, ORDERS, orders))
    with pytest.raises(JobError, match=r"test_graph.py:\d+: there is a source 'orders' already"):
        job.source("orders", read(spark, ORDERS, orders))
    with pytest.raises(JobError, match="not streaming"):
        job.source("static", spark.range(3))
    with pytest.raises(JobError, match="is not a stream of this job"):
        stream.union(other.source("orders", read(spark, ORDERS, orders)))
    with pytest.raises(JobError, match="is not a sink"):
        stream.to("folder")
    with pytest.raises(JobError, match="write name=function"):
        stream.select(lambda rows: rows.column(0))
    with pytest.raises(JobError, match="cannot also have a micro_batch function"):
        job.micro_batch(lambda df, batch: None)
    with pytest.raises(JobError, match="has no operator and no sink"):
        job.check()


def best_payments(orders: Stream, payments: Stream, into: Callable[[str], Any]) -> None:
    """Behind the join a filter, a projection and the first step of what follows run in its task."""
    paid = orders.join(payments, Join("inner"), key=("id", "order_id"), uid="paid")
    kept = paid.where("amount BETWEEN 1 AND 5 AND customer != 'c9'").select(
        "customer", "paid AS sum", "id", "amount"
    )
    best = kept.drop("row_kind").apply(Rank([desc("sum"), "id"], 2), key="customer", uid="best")
    best.to(into("best"), name="best")


def best_of_windows(orders: Stream, payments: Stream, into: Callable[[str], Any]) -> None:
    """Of each window those that share the first two numbers."""
    window = WindowAggregate(hop("6 seconds", "2 seconds"), [sum_("amount").alias("total")])
    totals = orders.apply(window, key="customer", event_time="ts", watermark_delay="2 seconds", uid="totals")
    best = WindowRank(desc("total"), 2, function="dense_rank", rank_column="place")
    totals.drop("row_kind").apply(best, uid="best").to(into("best"), name="best")


def sums_of_payments(orders: Stream, payments: Stream, into: Callable[[str], Any]) -> None:
    """Rows of a key are put together there."""
    paid = orders.join(payments, Join("inner"), key=("id", "order_id"), uid="paid").drop("row_kind")
    large = paid.where("amount > 0 OR customer = 'c0'").where(
        lambda rows: pc.greater(rows.column("paid"), 10)
    )
    aggregates = [count(), sum_("paid").alias("sum"), max_("amount").alias("most")]
    large.apply(GroupAggregate(aggregates), key="customer", uid="sums").to(into("sums"), name="sums")


def chain_of_payments(orders: Stream, payments: Stream, into: Callable[[str], Any]) -> None:
    """Three operators with one key, whose column has another name behind the join."""
    paid = orders.join(payments, Join("left"), key=("id", "order_id"), uid="paid").where("customer != 'c9'")
    totals = paid.select("id AS number", "amount", "paid").apply(
        GroupAggregate([count().alias("n"), sum_("paid").alias("sum")]), key="number", uid="totals"
    )
    many = totals.where("n > 0").apply(GroupAggregate([max_("sum")]), key="number", uid="chained")
    many.to(into("chained"), name="chained")


def chain_with_more_key_columns(orders: Stream, payments: Stream, into: Callable[[str], Any]) -> None:
    """Behind the join operators by its key and another column, by both in another order, and by its key again."""
    paid = orders.join(payments, Join(), key=("id", "order_id"), uid="paid")
    sums = paid.drop("row_kind").apply(
        GroupAggregate([sum_("paid").alias("sum")]), key=("customer", "order_id"), uid="sums"
    )
    again = sums.select("order_id AS o", "customer AS c", "sum").apply(
        GroupAggregate([max_("sum").alias("most")]), key=["o", "c"], uid="again"
    )
    last = again.apply(GroupAggregate([count(), sum_("most")]), key="o", uid="last")
    last.to(into("last"), name="last")


def chain_into_another_key(orders: Stream, payments: Stream, into: Callable[[str], Any]) -> None:
    """Behind a chain the rows of another key are put together in its task."""
    once = (
        orders.join(payments, Join(), key=("id", "order_id"), uid="paid")
        .drop("row_kind")
        .apply(Deduplicate(time="processing"), key="order_id", uid="once")
    )
    sums = once.drop("row_kind").apply(
        GroupAggregate([sum_("paid").alias("sum")]), key="customer", uid="sums"
    )
    sums.to(into("sums"), name="sums")


def stages_of_three_keys(orders: Stream, payments: Stream, into: Callable[[str], Any]) -> None:
    """Behind the join two more keys, of rows that are taken back, too: a text and a time, and a number."""
    paid = orders.join(payments, Join("left"), key=("id", "order_id"), uid="paid").where("amount >= 0")
    totals = paid.apply(
        GroupAggregate([count().alias("n"), sum_("paid").alias("sum"), max_("ts").alias("newest")]),
        key="customer",
        uid="totals",
    )
    newest = totals.where("n > 1").apply(
        GroupAggregate([count().alias("customers"), sum_("sum").alias("all")]), key="newest", uid="newest"
    )
    sizes = newest.apply(GroupAggregate([max_("all"), count()]), key="customers", uid="sizes")
    sizes.to(into("sizes"), name="sizes")


def stages_into_a_join(orders: Stream, payments: Stream, into: Callable[[str], Any]) -> None:
    """Both inputs of a join from stages of their own, one of them behind two; and of another one a stage and a
    source."""
    best = orders.apply(GroupAggregate([max_("id").alias("last")]), key="customer", uid="best")
    three = {"async-state.parallelism": 3}  # others have two partitions
    last = best.apply(GroupAggregate([count().alias("n")]), key="last", uid="last", options=three)
    sums = payments.apply(GroupAggregate([sum_("paid").alias("sum")]), key="order_id", uid="sums")
    both = last.join(sums, Join("left"), key=("last", "order_id"), uid="both")
    once = orders.transform(
        lambda rows: rows.distinct()
    )  # an exchange of Spark's own, for adaptive execution
    more = both.select("n", "sum").join(once, Join("left"), key=("n", "amount"), uid="more")
    more.drop("ts").to(into("more"), name="more")


@pytest.mark.parametrize(
    ("declare", "words"),
    [
        (chain_of_payments, ["in the task of 'totals', which has the same key; no exchange, state"]),
        (
            chain_with_more_key_columns,
            [
                "in the task of 'paid', routed by order_id as it is; no exchange, state",
                "in the task of 'sums', routed by o as it is; no exchange, state",
                "in the task of 'again', which has the same key; no exchange, state",
            ],
        ),
        (
            chain_into_another_key,
            [
                "rows partially aggregated by key in the task of 'once'; an exchange in the Spark job of 'once', one "
                "task"
            ],
        ),
        (
            stages_of_three_keys,
            [
                "[an exchange in the Spark job of 'paid', one task per partition",
                "[an exchange in the Spark job of 'totals', one task per partition",
                "[an exchange in the Spark job of 'newest', one task per partition",
            ],
        ),
        (
            stages_into_a_join,
            [
                "[an exchange in the Spark job of 'best', one task per partition",
                "[an exchange in the Spark job of 'last' and 'sums', one task per partition",
                "[an exchange in the Spark job of 'both', one task per partition",
            ],
        ),
        (best_payments, ["the best rows of each key in the task of 'paid'"]),
        (best_of_windows, ["the best rows of each key in the task of 'totals'"]),
        (sums_of_payments, ["rows partially aggregated by key in the task of 'paid'"]),
    ],
)
def test_what_runs_in_the_task_before_changes_nothing(
    declare: Any, words: list[str], spark: SparkSession, make_job: MakeJob, tmp_path: Path
) -> None:
    """With adaptive execution, too, where Spark plans exchanges of its own."""
    orders, payments = written(tmp_path, batches=2)
    found, states = [], []
    adaptive = spark.newSession()
    adaptive.conf.set("spark.sql.adaptive.enabled", "true")
    adaptive.conf.set("spark.sql.adaptive.coalescePartitions.parallelismFirst", "false")
    for fusion, session in ((True, adaptive), (False, spark)):
        kept, options = Kept(), {"async-state.parallelism": 2}
        place = str(tmp_path / f"checkpoint-{fusion}")
        job = make_job(session, options=options, checkpoint_dir=place, tuning=Tuning(fusion=fusion))
        declare(
            job.source("orders", read(session, ORDERS, orders)),
            job.source("payments", read(session, PAYMENTS, payments)),
            kept,
        )
        told = job.explain()
        assert [text in told for text in words] == [fusion] * len(words)
        job.await_termination(job.start(trigger={"availableNow": True}))
        found.append({name: +net for name, net in kept.rows.items()})
        states.append(state_of(spark, Path(place)))
    assert found[0] == found[1]
    assert all(found[0].values())
    assert states[0] == states[1]
    assert states[0]


@pytest.mark.parametrize(
    ("declare", "first"),
    [(chain_of_payments, True), (chain_with_more_key_columns, False), (stages_of_three_keys, True)],
)
def test_a_checkpoint_opens_in_both_forms(
    declare: Any, first: bool, spark: SparkSession, make_job: MakeJob, tmp_path: Path
) -> None:
    """And in another mode and with another parallelism each time."""
    orders, payments = written(tmp_path, batches=1)
    kept, expected = Kept(), Kept()

    def run(fusion: bool, kept: Kept, place: str, parallelism: int) -> StreamingJob:
        options = {"async-state.enabled": parallelism == 2, "async-state.parallelism": parallelism}
        job = make_job(options=options, checkpoint_dir=str(tmp_path / place), tuning=Tuning(fusion=fusion))
        sources = read(spark, ORDERS, orders), read(spark, PAYMENTS, payments)
        declare(job.source("orders", sources[0]), job.source("payments", sources[1]), kept)
        job.await_termination(job.start(trigger={"availableNow": True}))
        return job

    run(first, kept, "changing", 2)
    for number, fusion in enumerate([not first, first], 1):
        written(tmp_path, number, 1, shift=7)
        job = run(fusion, kept, "changing", 3 - number)
    run(True, expected, "whole", 2)
    (name,) = kept.rows
    assert +kept.rows[name] == +expected.rows[name]
    assert kept.rows[name]
    assert state_of(spark, tmp_path / "changing") == state_of(spark, tmp_path / "whole")
    stages = [one["stage_seconds"] > 0 for one in job.history[-1]["operators"].values()]
    fused = first
    assert stages == [*[not fused] * (len(stages) - 1), True]


def state_of(spark: SparkSession, place: Path) -> Counter[str]:
    return Counter(map(str, read_state(spark, str(place)).drop("version", "partition").collect()))


def test_a_filter_by_a_column_whose_value_varies_is_refused_over_changes(
    spark: SparkSession, make_job: MakeJob
) -> None:
    """As the same text is: a row could pass it, and its retraction not."""
    job = make_job()
    rows = job.source(
        "rows", spark.readStream.format("rate").load().selectExpr("value as k", "timestamp as at")
    )
    counted = rows.apply(GroupAggregate([count().alias("n"), max_("at").alias("at")]), key="k", uid="n")
    varying = [sf.rand() < 0.5, sf.col("at") > sf.now(), sf.expr("at > current_timestamp()")]
    varying += [sf.input_file_name() == "a", sf.col("n") > sf.spark_partition_id()]
    for number, condition in enumerate([*varying, "input_file_name() = 'a'", sf.col("n") > 1]):
        counted.where(condition).to(lambda *_: None, name=str(number))
        rows.where(condition if number < 4 else "k > 1").to(lambda *_: None, name=f"insertions {number}")
    with pytest.raises(JobError, match="the job's graph has 6 problems") as refused:
        job.check()
    assert str(refused.value).count("its retraction not") == 6
