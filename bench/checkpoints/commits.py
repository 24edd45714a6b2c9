"""What a commit costs: the same micro-batches with and without a checkpoint, in turns.

Invariant: both jobs get the same rows over the same history. The job on Spark without a checkpoint runs all that Spark
does, and its driver keeps the few bytes of its manifests in memory.
"""

from __future__ import annotations

import statistics
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from asyncstate.driver import commit_log as driver
from asyncstate.spark import MicroBatch
from bench.checkpoints.driven import (
    SNAPSHOT_INTERVAL,
    DrivenJob,
    MemoryFiles,
    fill_keys,
    instead,
    run_without_checkpoint,
    settings,
    without_checkpoint,
)
from bench.frame import Column, Report, Row, turns
from bench.frame.report import ms, percent
from bench.job import Job, batches, count_and_sum, draws
from bench.processor_time import Spent, TreeClocks
from bench.session import JobSide, session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

AIM = 0.15
CORES = 2
_WARM_UP = 2
TOTALS = "totals"
COLUMNS = (
    Column("changed keys", "changed_keys"),
    Column("without ms", "without_s", ms),
    Column("CPU ms", "without_cpu_s", ms),
    Column("with ms", "plain_s", ms),
    Column("CPU ms", "plain_cpu_s", ms),
    Column("snap ms", "snapshot_s", ms),
    Column("over plain", "plain", percent, ""),
    Column("over snap", "snapshot", percent),
    Column("over mean", "every", percent, ""),
    Column("aim", "aim", lambda aim: f"{aim:.0%}"),
)
NOTE = (
    "without: the same micro-batch, its changes written to a sorted file and ingested by the "
    "local store; no file in the checkpoint, no checksums, no sync, no snapshot, no manifest. "
    "over: what a checkpoint adds, medians of the pairs without a snapshot, of those with one, "
    "and the mean over a snapshot interval."
)


def commit_cost(
    folder: Path, enabled: bool, state_keys: int, changed: int, rounds: int, seed: int, aim: float | None
) -> list[Row]:
    """Measure one partition, without Spark. Both jobs open their stores and give them back in each micro-batch."""
    driven = DrivenJob(folder / "with", settings(folder / "with", enabled))
    bare = Job(folder / "without", count_and_sum(), settings(folder / "without", enabled))
    snapshots: list[bool] = []

    def run_bare(rows: Sequence[pa.RecordBatch]) -> None:
        with without_checkpoint():
            bare.run(rows)

    driven.fill(state_keys)
    for keys in fill_keys(state_keys):
        run_bare(batches(keys))
    sides = {"with": lambda rows: snapshots.append(driven.snapshot_with(rows)), "without": run_bare}
    spent = turns(sides, rounds, map(batches, draws(state_keys, changed, seed)), warm_up=_WARM_UP)
    facts = {"changed_keys": changed, "state_keys": state_keys, "aim": aim}
    return [commit_row("async" if enabled else "sync", spent, snapshots[_WARM_UP:], facts)]


def commit_row(
    name: str, spent: Mapping[str, list[Spent]], snapshots: Sequence[bool], facts: Mapping[str, Any]
) -> Row:
    """``plain`` are micro-batches without a snapshot, ``snapshot`` those with one; what a checkpoint adds is a share
    of the time without, ``cpu`` the plain one of processor time."""
    pairs = list(zip(spent["with"], spent["without"], snapshots, strict=True))
    found = dict(facts)

    def median(values: Sequence[float]) -> float | None:
        return statistics.median(values) if values else None

    def times(name: str, of: Sequence[Spent]) -> None:
        found[f"{name}_s"] = median([each.seconds for each in of])
        found[f"{name}_cpu_s"] = median([each.cpu_seconds for each in of if each.cpu_seconds is not None])

    times("without", spent["without"])
    for which, kind in ((False, "plain"), (True, "snapshot")):
        these = [(with_it, without) for with_it, without, snapshot in pairs if snapshot == which]
        times(kind, [with_it for with_it, _ in these])
        found[kind] = statistics.median(a.seconds / b.seconds - 1 for a, b in these)
    found["every"] = ((SNAPSHOT_INTERVAL - 1) * found["plain"] + found["snapshot"]) / SNAPSHOT_INTERVAL
    found["snapshots"] = sum(snapshots)
    cpu = [(a.cpu_seconds, b.cpu_seconds) for a, b, snapshot in pairs if not snapshot]
    found["cpu"] = median([one / other - 1 for one, other in cpu if one and other])
    return Row(name=name, facts=found)


def both_jobs(spark: SparkSession, folder: Path) -> dict[str, JobSide]:
    """A job with a checkpoint and one without."""

    def apply(rows: DataFrame, batch: MicroBatch) -> None:
        out = batch.apply(count_and_sum(), rows, key="key", uid=TOTALS)
        out.write.format("noop").mode("overwrite").save()

    with_it = JobSide(spark, folder / "with", apply)
    with instead(MemoryFiles, driver):
        return {
            "with": with_it,
            "without": JobSide(spark, folder / "without", apply, run=run_without_checkpoint),
        }


def parquet_rows(spark: SparkSession, folder: Path, keys: np.ndarray) -> DataFrame:
    """A row a key, as a new Parquet file."""
    path = folder / f"input-{uuid.uuid4()}.parquet"
    pq.write_table(pa.Table.from_batches(batches(keys)), path)
    return spark.read.parquet(str(path))


def has_snapshot(folder: Path, batch_id: int) -> bool:
    """Whether the checkpoint got a snapshot with this micro-batch."""
    written = folder.glob(f"with/checkpoint/state/*/*/snap/{batch_id:010d}-*")
    return next(written, None) is not None


def spark_commit_cost(report: Report, state_keys: int, changed: int, rounds: int, seed: int) -> Iterator[Row]:
    """Measure ``CORES`` partitions, each with ``state_keys`` of which a micro-batch changes ``changed``.

    A micro-batch is timed from the call of its function to its return; the input is a Parquet file, the sink takes
    every row and drops it.
    """
    report.tell("commits: starting Spark and filling the state")
    folder = report.folder / "spark"
    with session("asyncstate-checkpoints", folder, CORES) as spark:
        sides = both_jobs(spark, folder)
        fills = fill_keys(CORES * state_keys)
        for keys in fills:
            rows = parquet_rows(spark, folder, keys)
            for side in sides.values():
                side(rows)
        report.tell(f"commits: {rounds} micro-batches on Spark")
        drawn = draws(CORES * state_keys, CORES * changed, seed)
        given = (parquet_rows(spark, folder, keys) for keys in drawn)
        spent = turns(sides, rounds, given, warm_up=_WARM_UP, clocks=TreeClocks)
        first = len(fills) + _WARM_UP
        snapshots = [has_snapshot(folder, batch_id) for batch_id in range(first, first + rounds)]
    facts = {"changed_keys": changed, "state_keys": state_keys, "aim": AIM}
    yield commit_row(f"Spark, {CORES} tasks", spent, snapshots, facts)
