"""Bytes that go into the checkpoint with each micro-batch, counted where they are written.

Owns: ``checkpoint_bytes``.
Invariant: every byte counts once and as what it is: a delta, a part of a snapshot, or the driver's.
"""

from __future__ import annotations

from pathlib import Path

from asyncstate.driver import commit_log as driver
from asyncstate.runtime.partition import restore_plans as task_stores
from asyncstate.storage import RocksDBStore
from bench.checkpoints.driven import SNAPSHOT_INTERVAL, CountedFiles, DrivenJob, instead, settings
from bench.frame import Column
from bench.frame.report import mib, plain
from bench.job import batches, draws


def _kib(size_bytes: float) -> str:
    return plain(size_bytes / 1024)


COLUMNS = (
    Column("state MiB", "state_bytes", mib),
    Column("delta", "delta_bytes", _kib, ""),
    Column("snap- shots", "snapshot_bytes", _kib, ""),
    Column("if whole", "whole_bytes", _kib, ""),
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


def checkpoint_bytes(
    folder: Path, state_keys: int, changed: int, micro_batches: int, seed: int
) -> dict[str, float]:
    """Means a micro-batch, in bytes, over as many whole snapshot intervals as ``micro_batches`` need, after the first
    snapshot.

    Filling leaves some large runs, whose merging has nothing to do with what is measured: the state is made one run,
    and the snapshot that uploads it is not counted.
    """
    counts: dict[str, int] = {}
    with instead(lambda place: CountedFiles(place, counts), task_stores, driver):
        job = DrivenJob(folder, settings(folder))
        job.fill(state_keys)
        job.close()
        (db,) = (folder / "local").glob("*/*/*/slot-*/db-????????????")
        store = RocksDBStore(db)
        store.db.compact_range(None, None)  # one sorted run; the content stays what it is
        store.close()
        drawn = map(batches, draws(state_keys, changed, seed))
        while not job.snapshot_with(next(drawn)):
            pass
        counts.clear()
        interval = SNAPSHOT_INTERVAL
        intervals = -(-micro_batches // interval)
        rewrites, before = 0, _tables(job)
        for _ in range(intervals):
            taken = [job.snapshot_with(next(drawn)) for _ in range(interval)]
            assert taken == [False] * (interval - 1) + [True]
            rewrites += before.isdisjoint(_tables(job))
            before = _tables(job)
    assert job.partition.snapshot is not None
    state_bytes = sum(file.size_bytes for file in job.partition.snapshot.files.values())
    run_batches = intervals * interval
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


def _tables(job: DrivenJob) -> set[str]:
    snapshot = job.partition.snapshot
    assert snapshot is not None
    return {file.name for local, file in snapshot.files.items() if local.endswith(".sst")}
