"""Bytes that go into the checkpoint with each micro-batch, counted where they are written.

Owns: ``SizeResult`` and ``checkpoint_bytes``.
Invariant: every byte counts once and as what it is: a delta, a part of a snapshot, or the driver's.
"""

from __future__ import annotations

import os
from pathlib import Path
from unittest.mock import patch

import msgspec

from asyncstate.driver import ledger as driver
from asyncstate.runtime import stores as task_stores
from asyncstate.storage import LocalFiles, Retries, RocksDBStore
from bench.checkpoints.driven import BATCH_ROWS, DrivenJob, settings
from bench.rows import batches, draws


class SizeResult(msgspec.Struct, frozen=True, kw_only=True):
    """Means a micro-batch, in bytes.

    ``snapshot_bytes`` is what snapshots upload, shared out over their intervals, ``state_bytes`` what the last one
    consists of, ``rewrites`` how many of them had no table in common with the one before.
    """

    series: str
    state_keys: int
    changed_keys: int
    micro_batches: int
    snapshots: int
    rewrites: int
    delta_bytes: float
    snapshot_bytes: float
    driver_bytes: float
    state_bytes: int

    @property
    def whole_bytes(self) -> float:
        """What snapshots would take if each uploaded the whole state."""
        return self.state_bytes * self.snapshots / self.micro_batches


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
    folder: Path, series: str, state_keys: int, changed: int, micro_batches: int, seed: int
) -> SizeResult:
    """Count over as many whole snapshot intervals as ``micro_batches`` need, after the first snapshot.

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
    return SizeResult(
        series=series,
        state_keys=state_keys,
        changed_keys=changed,
        micro_batches=run_batches,
        snapshots=intervals,
        rewrites=rewrites,
        delta_bytes=counts["delta"] / run_batches,
        snapshot_bytes=counts["snapshot"] / run_batches,
        driver_bytes=counts["driver"] / run_batches,
        state_bytes=sum(file.size_bytes for file in job.partition.snapshot.files.values()),
    )


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
