"""One job with its checkpoint as in production, and the checkpoints that take its place.

Nothing in the product can be switched off as ``without_checkpoint`` does it.
Invariant: a DrivenJob does what a Spark job of one partition does to its checkpoint, file by file. Without a
checkpoint, what a store needs to go on is as always: a micro-batch's changes become a sorted file in the local store's
folder, and the next one makes it part of the store. What goes are the links or copies in the checkpoint, waiting for
the disk, checksums (when a file is written and when it is taken in), snapshots and manifests.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import numpy as np
import pyarrow as pa

from asyncstate.config import Config
from asyncstate.driver.commit_log import CommitLog
from asyncstate.operator import MIN_WATERMARK
from asyncstate.runtime import InputBatch, SourceTimes, TaskSpec, run_partitions
from asyncstate.runtime.partition import restore_plans as task_stores
from asyncstate.storage import CheckpointFiles, LocalFiles, PartitionManifest
from asyncstate.storage import commit as task_commit
from asyncstate.storage import files as task_files
from asyncstate.storage.manifest import FileRef
from bench.job import JOB, UID, Job, batches, config_of, count_and_sum

FILL_KEYS = 500_000  # keys of a micro-batch that fills a state: large ones, which cost least a key
SNAPSHOT_INTERVAL: Final = 10
"""The default of micro-batches that change much: it is fixed here, so that those of any size can be compared."""


def settings(folder: Path, mode: str = "sync", snapshot_interval: int = SNAPSHOT_INTERVAL) -> Config:
    """Configuration of a job below ``folder``; all that cannot be given here has its default."""
    own = {"checkpoint-dir": str(folder / "checkpoint"), "snapshot-interval": snapshot_interval}
    return config_of(mode, own)


def fill_keys(state_keys: int) -> list[np.ndarray]:
    starts = range(0, state_keys, FILL_KEYS)
    return [np.arange(start, min(start + FILL_KEYS, state_keys), dtype=np.int64) for start in starts]


class DrivenJob(Job):
    """Micro-batches of one partition and their commits. ``partition`` is what the last one left."""

    def __init__(self, folder: Path, config: Config) -> None:
        super().__init__(folder, count_and_sum(), config)
        self._ledger = CommitLog(config, JOB, 0)

    @property
    def partition(self) -> PartitionManifest:
        assert self.base is not None
        return self.base.partition(0)

    @property
    def snapshot_files(self) -> dict[str, FileRef]:
        """The files of its snapshot, which there is, by local name."""
        assert self.partition.snapshot is not None
        return self.partition.snapshot.files

    def run(self, batches: Iterable[pa.RecordBatch | InputBatch]) -> float:
        """Run one micro-batch and commit it, from the driver's first look to its last."""
        batch_id, times = self.batch_id, SourceTimes({}, {}, [])
        base = self._ledger.base_of(batch_id)
        seconds = super().run(batches)
        assert self.base is not None
        self._ledger.commit(batch_id, base, MIN_WATERMARK, 0, times, {UID: self.base}, final=False)
        return seconds

    def snapshot_with(self, rows: Iterable[pa.RecordBatch]) -> bool:
        """Run one micro-batch and return whether it wrote a snapshot to the checkpoint."""
        before = self.partition.snapshot
        self.run(rows)
        return self.partition.snapshot != before

    def fill(self, state_keys: int) -> None:
        for keys in fill_keys(state_keys):
            self.run(batches(keys))


class MemoryFiles(CheckpointFiles):
    """Forgets the files that are put in. The driver's few bytes stay in memory, since it reads them again."""

    def __init__(self, place: str) -> None:
        self.place = self.shown = place
        self._bytes: dict[str, bytes] = {}

    def put_file(self, local: str | Path, name: str) -> None:
        """Nothing."""

    def put_bytes(self, name: str, data: bytes) -> None:
        if not name.startswith("state/"):
            self._bytes[name] = data

    def get_file(self, name: str, local: str | Path) -> None:
        raise AssertionError(f"{name} was asked for: a job without a checkpoint cannot lose its local store")

    def get_bytes(self, name: str, start: int = 0, size: int = -1) -> bytes:
        return self._bytes[name][start : None if size < 0 else start + size]

    def size_bytes(self, name: str) -> int | None:
        return len(self._bytes[name]) if name in self._bytes else None

    def list(self, prefix: str) -> list[str]:
        return sorted(name for name in self._bytes if name.startswith(prefix))

    def delete(self, name: str) -> None:
        self._bytes.pop(name, None)


class CopiedFiles(LocalFiles):
    def get_file(self, name: str, local: str | Path) -> None:
        # Not shutil.copyfile, which lets some file systems share the blocks.
        with open(self.root / name, "rb") as source, open(local, "wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)


class CountedFiles(LocalFiles):
    """A folder that counts what is written to it, deltas, snapshots and the driver's files apart."""

    def __init__(self, root: str | Path, counts: dict[str, int]) -> None:
        super().__init__(root)
        self._counts = counts

    def put_file(self, local: str | Path, name: str) -> None:
        super().put_file(local, name)
        self._add(name, os.stat(local).st_size)

    def put_bytes(self, name: str, data: bytes) -> None:
        super().put_bytes(name, data)
        self._add(name, len(data))

    def _add(self, name: str, size_bytes: int) -> None:
        what = "snapshot" if "/snap/" in name else "delta" if name.startswith("state/") else "driver"
        self._counts[what] = self._counts.get(what, 0) + size_bytes


@contextmanager
def instead(files: Callable[[str], CheckpointFiles], *owners: object) -> Iterator[None]:
    """Inside, ``files`` makes the checkpoint's files for the modules ``owners``, by default for tasks."""
    with ExitStack() as patched:
        for owner in owners or (task_stores,):
            patched.enter_context(patch.object(owner, "checkpoint_files", lambda place, *_: files(place)))
        yield


@contextmanager
def without_checkpoint() -> Iterator[None]:
    """Micro-batches inside the block have no checkpoint. It patches this process, so run no others at the same time."""
    with (
        instead(MemoryFiles),
        patch.object(task_commit, "create_snapshot", lambda *_: None),
        patch.object(task_commit, "data_checksum", lambda _: ""),
        patch.object(task_commit, "file_checksum", lambda _: ""),
        patch.object(task_files, "file_checksum", lambda _: ""),
    ):
        yield


def run_without_checkpoint(spec: TaskSpec, partitions: range, batches: Iterator[InputBatch]) -> Iterator[Any]:
    """``run_partitions`` without a checkpoint, for ``StreamingJob(_run=...)``."""
    with without_checkpoint():
        yield from run_partitions(spec, partitions, batches)
