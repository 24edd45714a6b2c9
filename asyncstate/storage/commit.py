"""The end of a micro-batch on one partition: delta file, sometimes a snapshot, partition manifest.

Owns: commit_partition and what it writes. Invariant: nothing here is visible until the driver writes the
manifest; all names are unique to the attempt. Must not write manifests.
"""

from __future__ import annotations

from pathlib import Path

from asyncstate.storage.files import CheckpointFiles, file_checksum
from asyncstate.storage.keyed_store import SortedChanges
from asyncstate.storage.lease import Lease
from asyncstate.storage.manifest import (
    DeltaRef,
    FileRef,
    PartitionManifest,
    delta_name,
    extend_lineage,
    snapshot_folder,
)
from asyncstate.storage.rocksdb import write_sst
from asyncstate.storage.rocksdb_options import RocksDBOptions
from asyncstate.storage.snapshot import create_snapshot

SNAPSHOT_EVERY_DELTAS = 10


def commit_partition(
    lease: Lease,
    files: CheckpointFiles,
    changes: SortedChanges,
    *,
    uid: str,
    partition: int,
    batch_id: int,
    attempt: str,
    snapshot_every_deltas: int = SNAPSHOT_EVERY_DELTAS,
) -> PartitionManifest:
    """Upload the sorted changes of batch ``batch_id`` and return the partition as it is after them.

    ``attempt`` is unique to this attempt of this task. The base version is snapshotted first when it has
    ``snapshot_every_deltas`` deltas, or when it was rescaled (its sources are another parallelism's files).
    """
    base = lease.base
    snapshot = None
    if base.rescaled or len(base.deltas) >= snapshot_every_deltas:
        folder = snapshot_folder(uid, partition, batch_id, attempt)
        # After a change of parallelism there are none: the sources' files hold other key groups.
        present = PartitionManifest(partition, base.snapshot, base.deltas).files()
        snapshot = create_snapshot(lease.store, base.lineage, files, folder, present)
    name = delta_name(uid, partition, batch_id, attempt)
    local = lease.kept_folder / Path(name).name
    delta = write_delta(changes, local, name, lease.store.options)
    deltas = [] if snapshot else list(base.deltas)
    if delta is not None:
        files.put_file(local, name)
        deltas.append(DeltaRef(batch_id, delta, extend_lineage(base.lineage, delta)))
    return PartitionManifest(partition, snapshot or base.snapshot, deltas)


def write_delta(changes: SortedChanges, local: Path, name: str, options: RocksDBOptions) -> FileRef | None:
    """Write sorted changes to a local file that the checkpoint will call ``name``; None when empty."""
    if not changes:
        return None
    write_sst(local, changes, options)
    return FileRef(name, local.stat().st_size, file_checksum(local), len(changes))
