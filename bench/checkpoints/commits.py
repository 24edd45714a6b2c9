"""What a commit costs: the same micro-batches with and without a checkpoint, in turns.

Owns: ``commit_cost`` (one partition, without Spark), ``BothJobs`` and ``spark_commit_cost``; ``commit_row``.
Invariant: both jobs get the same rows over the same history. The job on Spark without a checkpoint runs all that Spark
does, and its driver keeps the few bytes of its manifests in memory.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from asyncstate.driver import commit_log as driver
from asyncstate.driver.chain import RunPartition
from asyncstate.spark import MicroBatch, StreamingJob
from bench.checkpoints.bare import memory_files, run_without_checkpoint, without_checkpoint
from bench.checkpoints.driven import BATCH_ROWS, DrivenJob, aggregate, fill_keys, settings
from bench.frame import Column, Row, turns
from bench.frame.report import ms, percent
from bench.job import Job
from bench.processor_time import Spent, TreeClocks
from bench.rows import INPUT, batches, draws
from bench.session import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

AIM = 0.15
CORES = 2
_WARM_UP = 2
_UID = "totals"
COLUMNS = (
    Column("changed keys", "changed_keys"),
    Column("without ms", "without_s", ms),
    Column("CPU ms", "without_cpu_s", ms),
    Column("with ms", "plain_s", ms),
    Column("CPU ms", "plain_cpu_s", ms),
    Column("snap ms", "snapshot_s", ms),
    Column("over plain", "plain", percent),
    Column("over snap", "snapshot", percent),
    Column("over mean", "every", percent),
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
) -> Row:
    """Measure one partition, without Spark. Both jobs open their stores and give them back in each micro-batch."""
    driven = DrivenJob(folder / "with", settings(folder / "with", enabled))
    bare = Job(folder / "without", aggregate(), settings(folder / "without", enabled), INPUT)
    snapshots: list[bool] = []

    def run_driven(rows: Sequence[pa.RecordBatch]) -> None:
        snapshots.append(driven.snapshot_with(rows))

    def run_bare(rows: Sequence[pa.RecordBatch]) -> None:
        with without_checkpoint():
            bare.run(rows)

    for keys in fill_keys(state_keys):
        driven.run(batches(keys, BATCH_ROWS))
        run_bare(batches(keys, BATCH_ROWS))
    drawn = (batches(keys, BATCH_ROWS) for keys in draws(state_keys, changed, seed))
    spent = turns({"with": run_driven, "without": run_bare}, rounds, drawn, warm_up=_WARM_UP)
    facts = {"changed_keys": changed, "state_keys": state_keys, "aim": aim}
    return commit_row(
        "async" if enabled else "sync", spent, snapshots[_WARM_UP:], facts, settings(folder).snapshot_interval
    )


def commit_row(
    name: str,
    spent: Mapping[str, list[Spent]],
    snapshots: Sequence[bool],
    facts: dict[str, Any],
    interval: int,
) -> Row:
    """``plain`` are micro-batches without a snapshot, ``snapshot`` those with one; what a checkpoint adds is a share
    of the time without, ``cpu`` the plain one of processor time."""
    pairs = list(zip(spent["with"], spent["without"], snapshots, strict=True))
    over: dict[bool, float] = {}
    for which, kind in ((False, "plain"), (True, "snapshot")):
        mine = [with_it for with_it, _, snapshot in pairs if snapshot == which]
        over[which] = statistics.median(a.seconds / b.seconds - 1 for a, b, snap in pairs if snap == which)
        facts |= {f"{kind}_s": statistics.median(each.seconds for each in mine), kind: over[which]}
        facts[f"{kind}_cpu_s"] = _median_cpu(mine)
    facts["without_s"] = statistics.median(each.seconds for each in spent["without"])
    facts["without_cpu_s"] = _median_cpu(spent["without"])
    facts["every"] = ((interval - 1) * over[False] + over[True]) / interval
    facts["snapshots"] = sum(snapshots)
    cpu = [
        a.cpu_seconds / b.cpu_seconds - 1
        for a, b, snap in pairs
        if not snap and a.cpu_seconds and b.cpu_seconds
    ]
    facts["cpu"] = statistics.median(cpu) if cpu else None
    return Row(name=name, facts=facts)


def _median_cpu(spent: Sequence[Spent]) -> float | None:
    known = [each.cpu_seconds for each in spent if each.cpu_seconds is not None]
    return statistics.median(known) if known else None


class BothJobs:
    """A job with a checkpoint and one without on Spark, which get the same micro-batches."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self._folder = folder
        self._batches = {"with": 0, "without": 0}
        self.jobs = {"with": self._job("with")}
        with patch.object(driver, "checkpoint_files", memory_files):
            self.jobs["without"] = self._job("without", run=run_without_checkpoint)
        self._functions = {name: job.micro_batch(_drop) for name, job in self.jobs.items()}

    def _job(self, name: str, run: RunPartition | None = None) -> StreamingJob:
        options = {"async-state.local-dir": str(self._folder / name / "local")}
        place = str(self._folder / name / "checkpoint")
        return StreamingJob(self._spark, place, options, name, _run=run)

    def rows(self, keys: np.ndarray) -> DataFrame:
        """A row a key, as a Parquet file."""
        path = self._folder / f"input-{self._batches['with']}.parquet"
        pq.write_table(pa.Table.from_batches(batches(keys, BATCH_ROWS)), path)
        return self._spark.read.parquet(str(path))

    def side(self, name: str) -> Callable[[DataFrame], None]:
        """A micro-batch of one of them."""

        def run(rows: DataFrame) -> None:
            self._functions[name](rows, self._batches[name])
            self._batches[name] += 1

        return run

    def has_snapshot(self, batch_id: int) -> bool:
        """Whether the checkpoint got a snapshot with this micro-batch."""
        written = self._folder.glob(f"with/checkpoint/state/*/*/snap/{batch_id:010d}-*")
        return next(written, None) is not None

    def rows_out(self, name: str) -> float:
        """Rows that the last micro-batch emitted."""
        return float(self.jobs[name].history[-1]["operators"][_UID]["rows_out"])


def _drop(rows: DataFrame, batch: MicroBatch) -> None:
    out = batch.apply(aggregate(), rows, key="key", uid=_UID)
    out.write.format("noop").mode("overwrite").save()


def spark_commit_cost(
    folder: Path, state_keys: int, changed: int, rounds: int, seed: int, tell: Callable[[str], None]
) -> Row:
    """Measure ``CORES`` partitions, each with ``state_keys`` of which a micro-batch changes ``changed``.

    A micro-batch is timed from the call of its function to its return; the input is a Parquet file, the sink takes
    every row and drops it.
    """
    tell("commits: starting Spark and filling the state")
    with session("asyncstate-checkpoints", folder, CORES) as spark:
        both = BothJobs(spark, folder)
        sides = {name: both.side(name) for name in both.jobs}
        fills = fill_keys(CORES * state_keys)
        for keys in fills:
            rows = both.rows(keys)
            for side in sides.values():
                side(rows)
        tell(f"commits: {rounds} micro-batches on Spark")
        drawn = map(both.rows, draws(CORES * state_keys, CORES * changed, seed))
        spent = turns(sides, rounds, islice(drawn, _WARM_UP + rounds), warm_up=_WARM_UP, clocks=TreeClocks)
        first = len(fills) + _WARM_UP
        snapshots = [both.has_snapshot(batch_id) for batch_id in range(first, first + rounds)]
    facts = {"changed_keys": changed, "state_keys": state_keys, "aim": AIM}
    return commit_row(f"Spark, {CORES} tasks", spent, snapshots, facts, settings(folder).snapshot_interval)
