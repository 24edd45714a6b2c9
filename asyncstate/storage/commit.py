"""The end of a micro-batch on one partition: delta file, now and then a snapshot, partition manifest.

Owns: commit_partition and what it writes. Invariant: nothing here is visible until the driver writes the
manifest; all names are unique to the attempt. Must not write manifests.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from asyncstate.storage.contract import Changes
from asyncstate.storage.files import CheckpointFiles, file_checksum
from asyncstate.storage.lease import Lease
from asyncstate.storage.manifest import (
    DeltaRef,
    FileRef,
    PartitionManifest,
    SnapshotRef,
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
    changes: Changes,
    *,
    uid: str,
    partition: int,
    batch_id: int,
    attempt: str,
    snapshot_every_deltas: int = SNAPSHOT_EVERY_DELTAS,
    statistics: Mapping[str, float] | None = None,
) -> PartitionManifest:
    """Upload the sorted changes of batch ``batch_id`` and return the partition as it is after them.

    ``attempt`` is unique to this attempt of this task. The base version is snapshotted first when it has
    ``snapshot_every_deltas`` deltas, or when it was rescaled (its sources are another parallelism's files).
    """
    base = lease.base
    snapshot = snapshot_if_due(lease, files, uid, partition, batch_id, attempt, snapshot_every_deltas)
    name = delta_name(uid, partition, batch_id, attempt)
    local = lease.kept_folder / Path(name).name
    delta = write_delta(changes, local, name, lease.store.options)
    deltas = [] if snapshot else list(base.deltas)
    if delta is not None:
        files.put_file(local, name)
        deltas.append(DeltaRef(batch_id, delta, extend_lineage(base.lineage, delta)))
    return PartitionManifest(partition, snapshot or base.snapshot, deltas, dict(statistics or {}))


def snapshot_if_due(
    lease: Lease,
    files: CheckpointFiles,
    uid: str,
    partition: int,
    batch_id: int,
    attempt: str,
    snapshot_every_deltas: int = SNAPSHOT_EVERY_DELTAS,
) -> SnapshotRef | None:
    """Upload a snapshot of the base version when it is due (see ``commit_partition``), else return None."""
    base = lease.base
    if not base.rescaled and len(base.deltas) < snapshot_every_deltas:
        return None
    folder = snapshot_folder(uid, partition, batch_id, attempt)
    # After a change of parallelism there are none: the sources' files hold other key groups.
    present = PartitionManifest(partition, base.snapshot, base.deltas).files()
    return create_snapshot(lease.store, base.lineage, files, folder, present)


def write_delta(
    changes: Changes, local: str | Path, name: str, options: RocksDBOptions | None = None
) -> FileRef | None:
    """Write sorted changes to a local file that the checkpoint will call ``name``; None when empty."""
    if not changes:
        return None
    write_sst(local, changes, options or RocksDBOptions())
    return FileRef(name, os.stat(local).st_size, file_checksum(local), len(changes))
