"""Ordered inputs and timers of processing time through Spark."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import DataFrame, SparkSession

from asyncstate.clock import ManualClock
from asyncstate.errors import JobError, SchemaError
from asyncstate.spark import MicroBatch, StreamingJob
from operators import GroupAggregate, WindowAggregate, count, tumble
from tests.spark.ordered_parts import Counted, Rolling

pytestmark = pytest.mark.spark

MakeJob = Callable[..., StreamingJob]
SECOND = 1_000_000
MINUTE = 60 * SECOND


def rows_at(spark: SparkSession, *rows: tuple[int, int, int]) -> DataFrame:
    """Rows of id, key and second."""
    values = ", ".join(f"({number}, {key}, timestamp_seconds({second}))" for number, key, second in rows)
    return spark.sql(f"select * from values {values} as t(id, k, at)")


@pytest.mark.smoke
def test_rows_come_in_order_and_timers_by_the_drivers_clock(
    spark: SparkSession, make_job: MakeJob, async_enabled: bool
) -> None:
    clock = ManualClock(100)
    results: list[dict[int, list[tuple[Any, ...]]]] = []

    def use(df: DataFrame, batch: MicroBatch) -> None:
        out = batch.apply(
            Counted(MINUTE),
            df,
            uid="counted",
            key="k",
            event_time="at",
            watermark_delay="0 seconds",
            order_by=["at", ("id", "desc")],
        )
        keys: dict[int, list[tuple[Any, ...]]] = defaultdict(list)
        for what, key, number, before, _ in out.collect():
            keys[key].append((what, number, before))
        results.append(dict(keys))

    def job(parallelism: int) -> tuple[StreamingJob, Callable[[DataFrame, int], None]]:
        options = {"async-state.enabled": async_enabled, "async-state.parallelism": parallelism}
        made = make_job(clock=clock, options=options)
        return made, made.micro_batch(use)

    _, on_batch = job(3)
    on_batch(rows_at(spark, (1, 1, 30), (2, 1, 10), (3, 2, 10), (4, 1, 10)), 0)
    on_batch(rows_at(spark, (5, 1, 20), (6, 2, 40)), 1)  # watermark: second 30
    clock.advance(MINUTE)
    restarted, on_batch = job(2)  # a restart, and another parallelism
    on_batch(rows_at(spark, (7, 1, 30), (8, 2, 31)), 2)  # watermark: second 40; 7 is late
    assert restarted.history[-1]["operators"]["counted"]["counters"]["late_rows_dropped"] == 1
    restarted.finish()

    due = 100 + MINUTE
    assert results == [
        {},
        {1: [("row", 4, 0), ("row", 2, 1), ("row", 5, 2), ("row", 1, 3)], 2: [("row", 3, 0)]},
        {1: [("report", due, 4)], 2: [("report", due, 1), ("row", 8, 1), ("row", 6, 2)]},
        {},  # the reports to come are due a minute later, which the end of the input does not bring nearer
    ]


def test_bundle_grain_cannot_be_ordered(spark: SparkSession, make_job: MakeJob) -> None:
    def use(df: DataFrame, batch: MicroBatch) -> None:
        batch.apply(GroupAggregate([count()]), df, uid="g", key="k", event_time="at", order_by="at")

    with pytest.raises(SchemaError, match="the input of operator 'g' has order_by, but GroupAggregate"):
        make_job().micro_batch(use)(rows_at(spark, (1, 1, 1)), 0)


def test_rows_do_not_wait_for_a_watermark_that_nothing_moves(spark: SparkSession, make_job: MakeJob) -> None:
    def use(df: DataFrame, batch: MicroBatch) -> None:
        if with_windows:
            batch.apply(WindowAggregate(tumble("1 minute"), [count()]), df, uid="w", key="k", event_time="at")
        else:
            batch.apply(Counted(MINUTE), df, uid="o", key="k", event_time="at", order_by="at")
        if moved:
            delays = {"event_time": "at", "watermark_delay": "1 second"}
            batch.apply(GroupAggregate([count()]), df, uid="g", key="k", **delays)

    moved, with_windows = False, True
    nothing_moves_it = "so its rows wait for the watermark, but no input of the job has a watermark"
    with pytest.raises(JobError, match=rf"operator 'w' \(WindowAggregate\).*{nothing_moves_it}"):
        make_job().micro_batch(use)(rows_at(spark, (1, 1, 1)), 0)
    with_windows = False
    with pytest.raises(JobError, match=f"operator 'o' has order_by, {nothing_moves_it}"):
        make_job().micro_batch(use)(rows_at(spark, (1, 1, 1)), 0)
    moved = True
    make_job().micro_batch(use)(rows_at(spark, (1, 1, 1)), 0)


@pytest.mark.parametrize("micro_batches", [1, 6])
def test_a_replay_in_one_micro_batch_gives_what_many_gave(
    spark: SparkSession, make_job: MakeJob, micro_batches: int
) -> None:
    found: dict[int, int] = {}

    def use(df: DataFrame, batch: MicroBatch) -> None:
        settings = {"key": "k", "event_time": "at", "watermark_delay": "0 seconds", "order_by": ["at", "id"]}
        found.update(batch.apply(Rolling(), df, uid="r", **settings).select("id", "rows").collect())

    job = make_job()
    on_batch = job.micro_batch(use)
    rows = [(number, number % 3, number * 7 % 5 + number) for number in range(60)]
    rows.sort(key=lambda row: row[2])
    size = len(rows) // micro_batches
    for number in range(micro_batches):
        part = spark.createDataFrame(
            rows[number * size : (number + 1) * size], "id long, k long, second long"
        )
        on_batch(part.repartition(4).selectExpr("id", "k", "timestamp_seconds(second) as at"), number)
    job.finish()
    expected = {
        number: sum(
            other_key == key and second - 10 <= other and (other, other_number) <= (second, number)
            for other_number, other_key, other in rows
        )
        for number, key, second in rows
    }
    assert found == expected
