"""Bytes that go into the checkpoint with each micro-batch, counted where they are written.

Owns: ``checkpoint_bytes``.
Invariant: every byte counts once and as what it is: a delta, a part of a snapshot, or the driver's.
"""

from __future__ import annotations

import os
from pathlib import Path
from unittest.mock import patch

from asyncstate.driver import commit_log as driver
from asyncstate.runtime.partition import restore_plans as task_stores
from asyncstate.storage import LocalFiles, Retries, RocksDBStore
from bench.checkpoints.driven import BATCH_ROWS, DrivenJob, settings
from bench.frame import Column
from bench.frame.report import mib, plain
from bench.rows import batches, draws


def _kib(size_bytes: float) -> str:
    return plain(size_bytes / 1024)


COLUMNS = (
    Column("state MiB", "state_bytes", mib),
    Column("delta", "delta_bytes", _kib),
    Column("snap- shots", "snapshot_bytes", _kib),
    Column("if whole", "whole_bytes", _kib),
    Column("driver", "driver_bytes", _kib),
    Column("re- writes", "rewrites"),
    Column("snap- shots", "snapshots"),
)
NOTE = (
    "KiB a micro-batch. snapshots: what they upload, shared out over their interval; if whole: what "
    "they would take if each uploaded the whole state; rewrites: snapshots that had no table in "
    "common with the one before. At the start the state is one sorted run; in a long run each key "
    "is changed five times on average."
)


class CountedFiles(LocalFiles):
    """A folder that counts what is written to it, deltas, snapshots and the driver's files apart."""

    def __init__(self, root: str | Path, counts: dict[str, int]) -> None:
        super().__init__(root)
        self._counts = counts

    def put_file(self, local: str | Path, name: str) -> None:
        """Count a task's file."""
        super().put_file(local, name)
        self._add("snapshot" if "/snap/" in name else "delta", os.stat(local).st_size)

    def put_bytes(self, name: str, data: bytes) -> None:
        """Count a file of the driver."""
        super().put_bytes(name, data)
        self._add("driver", len(data))

    def _add(self, what: str, size_bytes: int) -> None:
        self._counts[what] = self._counts.get(what, 0) + size_bytes


def checkpoint_bytes(
    folder: Path, state_keys: int, changed: int, micro_batches: int, seed: int
) -> dict[str, float]:
    """Means a micro-batch, in bytes, over as many whole snapshot intervals as ``micro_batches`` need, after the first
    snapshot.

    Filling leaves some large runs, whose merging has nothing to do with what is measured: the state is made one run,
    and the snapshot that uploads it is not counted.
    """
    counts: dict[str, int] = {}

    def counted(place: str, retries: Retries | None = None) -> CountedFiles:
        return CountedFiles(place, counts)

    with (
        patch.object(task_stores, "checkpoint_files", counted),
        patch.object(driver, "checkpoint_files", counted),
    ):
        job = DrivenJob(folder, settings(folder))
        job.fill(state_keys)
        job.job.close()
        _compact(folder)
        drawn = draws(state_keys, changed, seed)
        while not job.snapshot_with(batches(next(drawn), BATCH_ROWS)):
            pass
        counts.clear()
        interval = job.job.config.snapshot_interval
        intervals = -(-micro_batches // interval)
        rewrites, before = 0, _tables(job)
        for _ in range(intervals):
            taken = [job.snapshot_with(batches(next(drawn), BATCH_ROWS)) for _ in range(interval)]
            assert taken == [False] * (interval - 1) + [True]
            rewrites += before.isdisjoint(_tables(job))
            before = _tables(job)
    assert job.partition.snapshot is not None
    run_batches = intervals * interval
    state_bytes = sum(file.size_bytes for file in job.partition.snapshot.files.values())
    return {
        "state_keys": state_keys,
        "changed_keys": changed,
        "micro_batches": run_batches,
        "snapshots": intervals,
        "rewrites": rewrites,
        **{f"{what}_bytes": counts[what] / run_batches for what in ("delta", "snapshot", "driver")},
        "state_bytes": state_bytes,
        "whole_bytes": state_bytes * intervals / run_batches,
    }


def _compact(folder: Path) -> None:
    """Make the local store one sorted run; its content stays what it is."""
    (db,) = (folder / "local").glob("*/*/*/slot-*/db-????????????")
    store = RocksDBStore(db)
    store.db.compact_range(None, None)
    store.close()


def _tables(job: DrivenJob) -> set[str]:
    """Names of the files of the newest snapshot that hold state."""
    snapshot = job.partition.snapshot
    assert snapshot is not None
    return {file.name for local, file in snapshot.files.items() if local.endswith(".sst")}
