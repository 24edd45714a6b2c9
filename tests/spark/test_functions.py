"""Functions through Spark: one streaming query that applies a function of each kind that has a context."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark.sql import DataFrame, SparkSession

from asyncstate.spark import MicroBatch, StreamingJob
from operators import BroadcastProcess, CoProcess, KeyedMap, KeyedProcess, WindowProcess, tumble
from tests.spark.function_parts import COUNTS, Counting, Ruled, Sides, WindowSums
from tests.spark.stored import stored_state

pytestmark = pytest.mark.spark

MakeJob = Callable[..., StreamingJob]
Rows = Counter[tuple[Any, ...]]
SECOND = 1_000_000
FILES, SIZE, KEYS, WINDOW, RULE = 2, 40, 5, 10, 16


def write_files(spark: SparkSession, folder: Path) -> None:
    """Files, each of which becomes a micro-batch; the event time is the id in seconds."""
    for number in range(FILES):
        ids = spark.range(number * SIZE, (number + 1) * SIZE, 1, 1)
        rows = ids.selectExpr("id", f"id % {KEYS} as k", "timestamp_seconds(id) as at")
        rows.write.mode("append").parquet(str(folder))


def applied(df: DataFrame, batch: MicroBatch) -> dict[str, DataFrame]:
    """The functions on this micro-batch; the columns to be looked at."""
    times = {"event_time": "at", "watermark_delay": 0}
    counted = batch.apply(KeyedProcess(Counting(), COUNTS), df, key="k", uid="counted", **times)
    named = batch.apply(
        KeyedMap(lambda row: (row.k, row.what.upper(), row.count_), COUNTS),
        counted.withColumnRenamed("count", "count_").drop("row_kind"),
        key="k",
        uid="named",
    )
    sides = batch.apply(
        CoProcess(Sides(), COUNTS),
        df.where("id % 2 = 0"),
        df.where("id % 2 = 1"),
        key=("k", "k"),
        uid="sides",
        event_time=("at", "at"),
    )
    sums = pa.schema([("sum", pa.int64()), ("total", pa.int64())])
    windows = batch.apply(
        WindowProcess(WindowSums(), tumble(f"{WINDOW} seconds"), sums, window_columns=True),
        df,
        key="k",
        uid="windows",
        event_time="at",
    )
    ruled = batch.apply(
        BroadcastProcess(Ruled(), COUNTS), df, df.where(f"id % {RULE} = 0"), key=("k", None), uid="ruled"
    )
    return {
        "named": named.drop("row_kind"),
        "sides": sides.drop("row_kind"),
        "windows": windows.selectExpr("k", "unix_micros(window_end)", "sum", "total"),
        "ruled": ruled.drop("row_kind"),
    }


def run_query(spark: SparkSession, job: StreamingJob, source: Path, folder: Path) -> list[dict[str, Rows]]:
    """The rows of each micro-batch, and of the end of the input."""
    results: list[dict[str, Rows]] = []

    @job.micro_batch
    def on_batch(df: DataFrame, batch: MicroBatch) -> None:
        results.append(
            {uid: Counter(tuple(row) for row in out.collect()) for uid, out in applied(df, batch).items()}
        )

    stream = spark.readStream.schema("id long, k long, at timestamp").option("maxFilesPerTrigger", 1)
    writer = stream.parquet(str(source)).writeStream.foreachBatch(on_batch).trigger(availableNow=True)
    job.await_termination(writer.option("checkpointLocation", str(folder / "query")).start())
    job.finish()
    return results


def place(number: int, among: Iterable[int]) -> int:
    """The number of a row among those of its key."""
    return sum(1 for other in among if other <= number and other % KEYS == number % KEYS)


def model() -> list[dict[str, Rows]]:
    """What each micro-batch must put out; the watermark is the highest time of the one before."""
    results: list[dict[str, Rows]] = []
    totals = dict.fromkeys(range(KEYS), 0)
    for batch in range(FILES + 1):
        ids = range(batch * SIZE, (batch + 1) * SIZE) if batch < FILES else range(0)
        # the final micro-batch passes everything, the first one nothing
        passed = range(max(0, (batch - 1) * SIZE), batch * SIZE)
        named = Counter((i % KEYS, "ROW", place(i, range(i + 1))) for i in ids)
        named += Counter((i % KEYS, "PASSED", i * SECOND) for i in passed)
        sides: Rows = Counter()
        for i in ids:
            sides[i % KEYS, ("left", "right")[i % 2], place(i, range(i % 2, i + 1, 2))] += 1
        if (
            batch
        ):  # the timer at 0 is due in every micro-batch with rows of the key, and in the one after the first
            seen = range(min(batch + 1, FILES) * SIZE)
            registered = batch == 1 or len(ids)
            sides += Counter(
                (k, "both", place(len(seen) - KEYS + k, seen)) for k in range(KEYS) if registered
            )
        windows: Rows = Counter()
        for end in range(WINDOW, FILES * SIZE + 1, WINDOW):
            # over when the watermark, the highest time so far, has reached its last microsecond
            fires_in = min(FILES, (end + SIZE) // SIZE if end % SIZE else end // SIZE + 1)
            if fires_in == batch:
                for k in range(KEYS):
                    own = sum(i for i in range(end - WINDOW, end) if i % KEYS == k)
                    totals[k] += own
                    windows[k, end * SECOND, own, totals[k]] += 1
        rules = sum(1 for i in range((batch + 1) * SIZE) if i % RULE == 0)
        ruled: Rows = Counter((i % KEYS, "rules", rules) for i in ids)
        results.append({"named": named, "sides": sides, "windows": windows, "ruled": ruled})
    return results


@pytest.mark.timeout(300)  # two queries of five operators each
def test_a_streaming_query_of_functions_in_both_modes(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    write_files(spark, source)
    expected = model()
    stored = []
    for async_enabled in (False, True):
        folder = tmp_path / f"async-{async_enabled}"
        options = {
            "async-state.enabled": async_enabled,
            "async-state.parallelism": 2,
            "async-state.local-dir": str(folder / "local"),
        }
        job = make_job(checkpoint_dir=str(folder / "checkpoint"), options=options)
        results = run_query(spark, job, source, folder)
        assert len(results) == len(expected)
        for batch, (found, wanted) in enumerate(zip(results, expected, strict=True)):
            for uid, rows in wanted.items():
                assert found[uid] == rows, f"async {async_enabled}, micro-batch {batch}, {uid}"
        stored.append(stored_state(folder / "checkpoint"))
    assert stored[0] == stored[1]
    assert len(stored[0]["windows"]) == KEYS, "the totals of the keys, nothing of windows"
