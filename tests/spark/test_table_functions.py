"""A process table function through Spark: three inputs, a broadcast one among them, in a job and bounded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import DataFrame, SparkSession

from asyncstate.spark import MicroBatch, StreamingJob, apply_batch
from operators.process.process_table_function import TableFunction
from tests.spark.table_function_parts import Watched

pytestmark = pytest.mark.spark

KEYS = 3


def numbers(spark: SparkSession, start: int, stop: int) -> DataFrame:
    return spark.range(start, stop, 1, 2).selectExpr("id", f"id % {KEYS} as k", "timestamp_seconds(id) as at")


@pytest.mark.parametrize("enabled", ["false", "true"])
def test_tables_states_and_timers_in_a_job(
    spark: SparkSession, make_job: Callable[..., StreamingJob], enabled: str
) -> None:
    seen: list[tuple[Counter[Any], Counter[Any]]] = []

    def use(df: DataFrame, batch: MicroBatch) -> None:
        main = batch.apply(
            TableFunction(Watched()),
            df.where("id % 2 = 0"),
            df.where("id % 10 = 3"),
            df.where("id % 2 = 1"),
            key=("k", None, "k"),
            event_time=("at", None, "at"),
            watermark_delay=(0, None, 0),
            uid="watched",
        )
        both = (main, batch.side_output("watched", "right"))
        left, right = (Counter(tuple(row) for row in rows.drop("row_kind").collect()) for rows in both)
        seen.append((left, right))

    def run(batch_id: int, start: int, stop: int) -> None:
        job = make_job(options={"async-state.enabled": enabled})
        job.micro_batch(use)(numbers(spark, start, stop), batch_id)
        if stop == start:
            job.finish()

    run(0, 0, 12)  # of each key two rows of either table; the rule 3
    run(1, 12, 24)  # the rules 13 and 23
    (left, right), (later, later_right) = seen
    assert sum(left.values()) == sum(right.values()) == 6
    assert {row[0] for row in left} == set(range(KEYS))
    # The numbers of a set go over both tables, in one sequence.
    for key in range(KEYS):
        counts = [row[2] for row in (left + right).elements() if row[0] == key]
        assert sorted(counts) == [1, 2, 3, 4]
        counts = [row[2] for row in (later + later_right).elements() if row[0] == key and row[1] != "rules"]
        assert sorted(counts) == [5, 6, 7, 8]
    assert {row: n for row, n in later.items() if row[1] == "rules"} == {
        (k, "rules", 3): 1 for k in range(KEYS)
    }


def test_a_function_over_bounded_tables(spark: SparkSession) -> None:
    df = numbers(spark, 0, 12)
    rows = apply_batch(
        TableFunction(Watched()),
        df.where("id < 6"),
        df.where("id = 3"),
        df.where("id >= 6"),
        key=("k", None, "k"),
        event_time=("at", None, "at"),
    )
    kinds = Counter(row.what for row in rows.collect())
    assert kinds == {"left": 6, "rules": KEYS}
    assert rows.side_output("right").count() == 6
