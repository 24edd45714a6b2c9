"""One job with its checkpoint as in production: the task's work, then the driver's commit and retention.

Owns: ``DrivenJob``, ``aggregate`` and ``settings``.
Invariant: a DrivenJob does what a Spark job of one partition does to its checkpoint, file by file.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from asyncstate.config import Config, resolve
from asyncstate.driver.commit_log import CommitLog
from asyncstate.operator import MIN_WATERMARK, Operator
from asyncstate.runtime import SourceTimes
from asyncstate.storage import PartitionManifest
from bench.job import JOB, UID, Job
from bench.rows import INPUT, batches
from operators import GroupAggregate, count, sum_

BATCH_ROWS = 100_000
FILL_KEYS = 500_000
"""Keys of a micro-batch that fills a state: large ones, which cost least a key."""

NEVER = 1_000_000
"""A ``snapshot-interval`` that is not reached."""


def aggregate() -> Operator:
    """What all measurements run: count and sum a key, at bundle grain."""
    return GroupAggregate([count().alias("n"), sum_("value").alias("total")])


def settings(folder: Path, enabled: bool = False, snapshot_interval: int | None = None) -> Config:
    """Configuration of a job below ``folder``; all that is not given has its default."""
    options: dict[str, object] = {
        "async-state.enabled": enabled,
        "async-state.checkpoint-dir": str(folder / "checkpoint"),
    }
    if snapshot_interval is not None:
        options["async-state.snapshot-interval"] = snapshot_interval
    return resolve(options, {})


class DrivenJob:
    """Micro-batches of one partition and their commits. ``partition`` is what the last one left."""

    def __init__(self, folder: Path, config: Config) -> None:
        self._ledger = CommitLog(config, JOB, 0)
        self.job = Job(folder, aggregate(), config, INPUT)

    @property
    def partition(self) -> PartitionManifest:
        """The partition as the newest version has it."""
        assert self.job.base is not None
        return self.job.base.partition(0)

    def run(self, rows: Sequence[pa.RecordBatch]) -> None:
        """Run one micro-batch and commit it, from the driver's first look to its last."""
        batch_id = self.job.batch_id
        base = self._ledger.base_of(batch_id)
        self.job.run(rows)
        assert self.job.base is not None
        operators = {UID: self.job.base}
        self._ledger.commit(batch_id, base, MIN_WATERMARK, 0, SourceTimes({}, {}, []), operators, final=False)

    def snapshot_with(self, rows: Sequence[pa.RecordBatch]) -> bool:
        """Run one micro-batch and return whether it wrote a snapshot to the checkpoint."""
        before = self.partition.snapshot
        self.run(rows)
        return self.partition.snapshot != before

    def fill(self, state_keys: int) -> None:
        """Give each key a row."""
        for keys in fill_keys(state_keys):
            self.run(batches(keys, BATCH_ROWS))


def fill_keys(state_keys: int) -> list[np.ndarray]:
    """The keys of the micro-batches that fill a state."""
    ends = range(FILL_KEYS, state_keys + FILL_KEYS, FILL_KEYS)
    return [np.arange(end - FILL_KEYS, min(end, state_keys), dtype=np.int64) for end in ends]
