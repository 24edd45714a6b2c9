"""What a commit costs on Spark: two jobs with the same micro-batches, one of them without a checkpoint.

Owns: ``spark_commit_cost`` and ``BothJobs``.
Invariant: as in ``commits``; the job without a checkpoint runs all that Spark does, and its driver keeps the
few bytes of its manifests in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from asyncstate.driver import ledger as driver
from asyncstate.driver.chain import RunPartition
from asyncstate.spark import MicroBatch, StreamingJob
from bench.checkpoints.bare import memory_files, run_without_checkpoint
from bench.checkpoints.commits import AIM, WARM_UP, CommitResult, Pair, compared, in_turns
from bench.checkpoints.driven import BATCH_ROWS, aggregate, fill_keys, settings
from bench.processor_time import TreeClocks
from bench.rows import batches, draws
from bench.session import local_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CORES = 2
_UID = "totals"


def spark_commit_cost(
    folder: Path, state_keys: int, changed: int, rounds: int, seed: int, tell: Callable[[str], None]
) -> CommitResult:
    """Measure ``CORES`` partitions, each with ``state_keys`` of which a micro-batch changes ``changed``.

    A micro-batch is timed from the call of its function to its return; the input is a Parquet file, the sink takes
    every row and drops it.
    """
    tell("commits: starting Spark")
    spark = local_session("asyncstate-checkpoints", folder, CORES)
    try:
        both = BothJobs(spark, folder)
        tell("commits: filling the state on Spark")
        for keys in fill_keys(CORES * state_keys):
            both.run(keys)
        drawn = draws(CORES * state_keys, CORES * changed, seed)
        pairs = []
        for number in range(WARM_UP + rounds):
            tell(f"commits: on Spark, {number + 1} of {WARM_UP + rounds}")
            pairs.append(both.run(next(drawn)))
    finally:
        spark.stop()
    interval = settings(folder).snapshot_interval
    return compared(f"Spark, {CORES} tasks", changed, state_keys, pairs[WARM_UP:], interval, AIM)


class BothJobs:
    """A job with a checkpoint and one without, which get the same micro-batches in turns."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self._folder = folder
        self._batch_id = 0
        checkpointed = self._job("with")
        with patch.object(driver, "checkpoint_files", memory_files):
            bare = self._job("without", run=run_without_checkpoint)
        self._jobs = (checkpointed, bare)
        self._functions = [job.micro_batch(_drop) for job in self._jobs]

    def _job(self, name: str, run: RunPartition | None = None) -> StreamingJob:
        options = {"async-state.local-dir": str(self._folder / name / "local")}
        place = str(self._folder / name / "checkpoint")
        return StreamingJob(self._spark, place, options, name, run=run)

    def run(self, keys: np.ndarray) -> Pair:
        """A micro-batch with a row a key."""
        path = self._folder / f"input-{self._batch_id}.parquet"
        pq.write_table(pa.Table.from_batches(batches(keys, BATCH_ROWS)), path)
        rows = self._spark.read.parquet(str(path))
        calls = (partial(function, rows, self._batch_id) for function in self._functions)
        with_it, without = in_turns(self._batch_id, TreeClocks, *calls)
        self._batch_id += 1
        path.unlink()
        return Pair(without, with_it, self._has_snapshot())

    @property
    def rows_out(self) -> list[float]:
        """Rows that the last micro-batch put out, with a checkpoint and without."""
        return [job.history[-1]["operators"][_UID]["rows_out"] for job in self._jobs]

    def _has_snapshot(self) -> bool:
        written = self._folder.glob(f"with/checkpoint/state/*/*/snap/{self._batch_id - 1:010d}-*")
        return next(written, None) is not None


def _drop(rows: DataFrame, batch: MicroBatch) -> None:
    out = batch.apply(aggregate(), rows, key="key", uid=_UID)
    out.write.format("noop").mode("overwrite").save()
