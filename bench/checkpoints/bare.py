"""The same work without a checkpoint, to compare with: nothing in the product can be switched off like this.

Owns: ``without_checkpoint``, ``run_without_checkpoint`` and ``MemoryFiles``.
Invariant: what a store needs to go on is as always: this micro-batch's changes become a sorted file in the local
store's folder, and the next micro-batch makes it part of the store. What goes are the links or copies in the
checkpoint, waiting for the disk, checksums (when a file is written and when it is taken in), snapshots and manifests.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa

from asyncstate.runtime import CommitRecord, InputBatch, TaskSpec, run_partition
from asyncstate.runtime.partition import restore_plans as task_stores
from asyncstate.storage import CheckpointFiles, Retries
from asyncstate.storage import commit as task_commit
from asyncstate.storage import files as task_files


class MemoryFiles(CheckpointFiles):
    """Forgets the files that are put in. The driver's few bytes stay in memory, since it reads them again."""

    def __init__(self, place: str) -> None:
        self.place = self.shown = place
        self._bytes: dict[str, bytes] = {}

    def put_file(self, local: str | Path, name: str) -> None:
        """Nothing."""

    def put_bytes(self, name: str, data: bytes) -> None:
        """Keep in memory."""
        self._bytes[name] = data

    def get_file(self, name: str, local: str | Path) -> None:
        """There are no files: a job without a checkpoint cannot lose its local store."""
        raise AssertionError(f"{name} was requested, but was never stored")

    def get_bytes(self, name: str) -> bytes:
        """What was put."""
        return self._bytes[name]

    def size_bytes(self, name: str) -> int | None:
        """Size of what was put."""
        return len(self._bytes[name]) if name in self._bytes else None

    def list(self, prefix: str) -> list[str]:
        """Names of what was put."""
        return sorted(name for name in self._bytes if name.startswith(prefix))

    def delete(self, name: str) -> None:
        """Forget."""
        self._bytes.pop(name, None)


def memory_files(place: str, retries: Retries | None = None) -> CheckpointFiles:
    """In place of ``checkpoint_files``."""
    return MemoryFiles(place)


@contextlib.contextmanager
def without_checkpoint() -> Iterator[None]:
    """Micro-batches inside the block have no checkpoint. It patches this process, so run no others at the same time."""
    with (
        patch.object(task_stores, "checkpoint_files", memory_files),
        patch.object(task_commit, "create_snapshot", lambda *_: None),
        patch.object(task_commit, "file_checksum", lambda _: ""),
        patch.object(task_files, "file_checksum", lambda _: ""),
    ):
        yield


def run_without_checkpoint(
    spec: TaskSpec, partition: int, batches: Iterator[InputBatch]
) -> Iterator[pa.RecordBatch | CommitRecord]:
    """``run_partition`` without a checkpoint, for ``StreamingJob(_run=...)``."""
    with without_checkpoint():
        yield from run_partition(spec, partition, batches)
