"""LookupJoin in streaming jobs: with and without state, over restarts, and answers that a worker remembers."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark.sql import DataFrame, SparkSession

from asyncstate.lookups import TableLookup
from asyncstate.spark import MicroBatch, StreamingJob
from operators import LookupCache, LookupJoin, StatelessLookupJoin
from tests.spark.modes import ASYNC, SYNC

pytestmark = pytest.mark.spark

MakeJob = Callable[..., StreamingJob]
NAMES = pa.schema([("name", pa.string())])


class Place:
    """The file has the name of every key, and another one says what was asked for."""

    def __init__(self, folder: Path) -> None:
        self.name, self.log = folder / "name", folder / "asked"
        self.log.touch()

    async def __call__(self, keys: Sequence[tuple[Any, ...]]) -> list[list[tuple[str]]]:
        with self.log.open("a") as log:
            log.writelines(f"{os.getpid()} {key}\n" for (key,) in keys)
        return [[(self.name.read_text(),)] if key % 2 else [] for (key,) in keys]

    def asked(self) -> list[int]:
        return sorted(key for _, key in self.asked_by_process())

    def asked_by_process(self) -> list[tuple[int, int]]:
        return [(int(pid), int(key)) for pid, key in map(str.split, self.log.read_text().splitlines())]


def run(job: StreamingJob, join: LookupJoin, df: DataFrame, batch_id: int) -> list[tuple[Any, ...]]:
    out: list[tuple[Any, ...]] = []

    @job.micro_batch
    def step(given: DataFrame, batch: MicroBatch) -> None:
        out.extend(map(tuple, batch.apply(join, given, key="k", uid="named").collect()))

    step(df, batch_id)
    return sorted(out, key=repr)


@ASYNC
def test_a_changelog_takes_back_what_was_put_out_before_a_restart(
    spark: SparkSession, make_job: MakeJob, async_enabled: bool, tmp_path: Path
) -> None:
    place = Place(tmp_path)
    options = {"async-state.enabled": async_enabled, "async-state.parallelism": 2}
    place.name.write_text("old")
    came = spark.createDataFrame([(1, "+I"), (2, "+I"), (3, "+I")], "k long, row_kind string")
    first = run(make_job(options=options), LookupJoin(place, NAMES), came, 0)
    assert first == [(1, "old", "+I"), (2, None, "+I"), (3, "old", "+I")]
    place.name.write_text("new")
    changed = spark.createDataFrame([(1, "-D"), (2, "-D"), (5, "+I")], "k long, row_kind string")
    again = run(make_job(options=options), LookupJoin(place, NAMES), changed, 1)
    assert again == [(1, "old", "-D"), (2, None, "-D"), (5, "new", "+I")]
    assert place.asked() == [1, 2, 3, 5]


@SYNC
def test_a_worker_remembers_answers_over_micro_batches(
    spark: SparkSession, make_job: MakeJob, async_enabled: bool, tmp_path: Path
) -> None:
    place = Place(tmp_path)
    place.name.write_text("name")
    options: dict[str, object] = {"async-state.enabled": async_enabled, "async-state.parallelism": 1}
    options["async-state.executor"] = "spark"  # the driver remembers answers of its own
    join = LookupJoin(place, NAMES, cache=LookupCache(seconds=3600))
    for batch_id in range(40):  # Spark takes its idle workers in turn, those of earlier jobs too
        before = place.asked_by_process()
        keys = spark.range(1, 4, 1, 1).withColumnRenamed("id", "k")
        job = make_job(options=options)
        assert run(job, join, keys, batch_id) == [(1, "name", "+I"), (2, None, "+I"), (3, "name", "+I")]
        if place.asked_by_process() == before:
            break  # its worker remembered all three
    else:
        pytest.fail("no worker remembered an answer")
    assert len(before) == len(set(before))


def test_without_state_there_is_no_exchange(
    spark: SparkSession, make_job: MakeJob, async_enabled: bool
) -> None:
    table = TableLookup([{"k": 1, "name": "one"}], ["k"], ["name"])
    join = StatelessLookupJoin(table, NAMES, on=["k"], how="inner")
    job = make_job(options={"async-state.enabled": async_enabled})

    @job.micro_batch
    def step(given: DataFrame, batch: MicroBatch) -> None:
        assert list(map(tuple, batch.apply(join, given, uid="named").collect())) == [(1, "one", "+I")]

    step(spark.range(3).withColumnRenamed("id", "k"), 0)
    manifest = job._ledger.latest()
    assert manifest is not None
    assert list(manifest.operators) == []
