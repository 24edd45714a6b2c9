"""The end of a micro-batch on one partition: delta file, sometimes a snapshot, partition manifest.

Owns: commit_partition and what it writes, and deltas_together. Invariant: nothing here is visible until the driver
writes the manifest; all names are unique to the attempt. Must not write manifests.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Final

from asyncstate.storage.files import CheckpointFiles, data_checksum, file_checksum
from asyncstate.storage.keyed_store import SortedChanges
from asyncstate.storage.lease import Lease, explained
from asyncstate.storage.manifest import (
    DeltaRef,
    FileRef,
    PartitionManifest,
    delta_name,
    deltas_name,
    extend_lineage,
    snapshot_folder,
)
from asyncstate.storage.rocksdb import SmallDelta, small_bytes, sst_bytes, write_sst
from asyncstate.storage.rocksdb_options import RocksDBOptions
from asyncstate.storage.snapshot import create_snapshot

_DELTAS_MAX: Final = 10
_SMALL_DELTAS_MAX: Final = 40
_SMALL_DELTAS_BYTES_MAX: Final = 1 << 20
"""Of the deltas of a version together, for them to be small."""
_DELTAS_OF_OPERATOR_MAX: Final = 1_000
"""Small deltas of all partitions together: each task of the operator reads their list."""


class _Deltas:
    """The small deltas of one micro-batch that go to the checkpoint as one file."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size_bytes = 0
        self._name = ""
        self._files: CheckpointFiles | None = None

    def add(self, files: CheckpointFiles, batch_id: int, delta: bytes, num_entries: int) -> FileRef:
        self._files = files
        self._name = self._name or deltas_name(batch_id, uuid.uuid4().hex)
        offset = self._size_bytes
        self._parts.append(delta)
        self._size_bytes += len(delta)
        return FileRef(self._name, len(delta), data_checksum(delta), num_entries, offset)

    def upload(self) -> None:
        if self._files is not None:
            self._files.put_bytes(self._name, b"".join(self._parts))


_together: ContextVar[_Deltas | None] = ContextVar("together", default=None)


@contextmanager
def deltas_together() -> Iterator[None]:
    """A context manager at whose end the small deltas of all partitions that were committed inside it are uploaded as
    one file: a process that runs partitions one after the other waits for the checkpoint once. They are of one
    micro-batch of one job. After an error inside it nothing is uploaded. Raises CheckpointError if the upload fails."""
    deltas = _Deltas()
    before = _together.set(deltas)
    try:
        yield
    finally:
        _together.reset(before)
    deltas.upload()


def commit_partition(
    lease: Lease,
    files: CheckpointFiles,
    changes: SortedChanges,
    *,
    uid: str,
    partition: int,
    batch_id: int,
    attempt: str,
    snapshot_every_deltas: int | None = None,
    parallelism: int = 1,
) -> PartitionManifest:
    """Upload the sorted changes of batch ``batch_id`` and return the partition as it is after them.

    ``attempt`` is unique to this attempt of this task. The base version is snapshotted first when it has
    ``snapshot_every_deltas`` deltas (None: 10, or up to 40 if they are small), or when it was rescaled (its sources are
    another parallelism's files).
    """
    base = lease.base
    snapshot = None
    if base.rescaled or len(base.deltas) >= (snapshot_every_deltas or _deltas_max(base.deltas, parallelism)):
        folder = snapshot_folder(uid, partition, batch_id, attempt)
        # After a change of parallelism there are none: the sources' files hold other key groups.
        present = PartitionManifest(partition, base.snapshot, base.deltas).files()
        snapshot = create_snapshot(lease.store, base.lineage, files, folder, present)
    deltas = [] if snapshot else list(base.deltas)
    if changes:
        delta = _put_delta(lease, files, changes, batch_id, delta_name(uid, partition, batch_id, attempt))
        deltas.append(DeltaRef(batch_id, delta, extend_lineage(base.lineage, delta)))
    return PartitionManifest(partition, snapshot or base.snapshot, deltas)


def _deltas_max(deltas: Sequence[DeltaRef], parallelism: int) -> int:
    """How many deltas a version may have. In a small micro-batch, a snapshot takes as long as the rest of the commit,
    while small deltas are fetched and ingested together."""
    if sum(delta.file.size_bytes for delta in deltas) >= _SMALL_DELTAS_BYTES_MAX:
        return _DELTAS_MAX
    return min(max(_DELTAS_MAX, _DELTAS_OF_OPERATOR_MAX // parallelism), _SMALL_DELTAS_MAX)


def _put_delta(
    lease: Lease, files: CheckpointFiles, changes: SortedChanges, batch_id: int, name: str
) -> FileRef:
    """Upload the delta and leave it for the next micro-batch: a small one in memory, another as a file."""
    store, size_bytes, together = lease.store, small_bytes(changes), _together.get()
    if size_bytes is None:
        with explained(lease.kept_folder):
            lease.kept_folder.mkdir(exist_ok=True)
            local = lease.kept_folder / Path(name).name
            delta = write_delta(changes, local, name, store.options)
        files.put_file(local, name)
        return delta
    data = sst_bytes(changes, store.options)
    if together is not None:
        delta = together.add(files, batch_id, data, len(changes))
    else:
        files.put_bytes(name, data)
        delta = FileRef(name, len(data), data_checksum(data), len(changes))
    if together is None or lease.is_copied:  # a copy may outlast the delta in the checkpoint
        _keep(lease, delta, data)
    store.next_delta = SmallDelta(delta.name, changes, size_bytes)
    return delta


def _keep(lease: Lease, delta: FileRef, data: bytes) -> None:
    """Leave a copy of an uploaded delta, which saves fetching it: without one, as on a full disk, it is fetched."""
    local = Path(lease.kept_folder, delta.base_name)
    try:
        lease.kept_folder.mkdir(exist_ok=True)
        local.write_bytes(data)
    except OSError:
        with suppress(OSError):  # a part of it would pass for it, to who looks only whether it is there
            local.unlink(missing_ok=True)


def write_delta(changes: SortedChanges, local: Path, name: str, options: RocksDBOptions) -> FileRef:
    """Write sorted changes, at least one, to a local file that the checkpoint will call ``name``."""
    write_sst(local, changes, options)
    return FileRef(name, local.stat().st_size, file_checksum(local), len(changes))
