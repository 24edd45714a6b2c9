"""The store of one task: a lease at the base version, and the commit of its writes.

Owns: ``PartitionStore``, ``open_store`` and ``read_state``; ``why_no_stores`` and ``state_bytes``, by which the driver
chooses where tasks run.
Invariant: the store is at exactly the base version of the TaskSpec.
Must not import Spark.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from asyncstate.codec import BROADCAST_GROUP
from asyncstate.config import Config
from asyncstate.errors import StoreError
from asyncstate.runtime.statistics import PartitionStatistics
from asyncstate.runtime.task_spec import TaskSpec
from asyncstate.storage import (
    EMPTY_LINEAGE,
    CheckpointFiles,
    GiveAway,
    Lease,
    LocalStores,
    Manifest,
    PartitionManifest,
    RestorePlan,
    RocksDBOptions,
    SortedChanges,
    StorePool,
    WriteBound,
    checkpoint_files,
    commit_partition,
    partition_restore_plan,
)


class PartitionStore:
    """One partition's store, leased for one micro-batch."""

    def __init__(self, spec: TaskSpec, partition: int, lease: Lease, files: CheckpointFiles) -> None:
        self._spec = spec
        self._partition = partition
        self._lease = lease
        self._files = files
        self.store = lease.store
        """The store that the operator reads."""
        self.lineage = lease.base.lineage
        """Name of the content that the operator reads."""
        self.cached: Any = lease.cached
        """The cache of that content from the process that released the store, None if there is none."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing is stored for the partition."""
        return self.lineage == EMPTY_LINEAGE

    @property
    def write_bound(self) -> WriteBound:
        """How much memory the micro-batch's writes may take, and where they are spilled beyond that."""
        limit_bytes = self._spec.config.shares.writes
        return WriteBound(limit_bytes, self._lease.open_scratch, str(self._lease.scratch_folder))

    @property
    def buffer_folder(self) -> str:
        """The folder for rows of the micro-batch that do not fit into memory; it is deleted with the lease."""
        return str(self._lease.scratch_folder / "gathered")

    def commit(self, changes: SortedChanges) -> PartitionManifest:
        """Upload sorted changes; returns the resulting partition. Nothing is visible before the driver commits."""
        spec = self._spec
        return commit_partition(
            self._lease,
            self._files,
            changes,
            uid=spec.uid,
            partition=self._partition,
            batch_id=spec.batch_id,
            attempt=uuid.uuid4().hex,
            snapshot_every_deltas=spec.config.snapshot_interval,
            parallelism=spec.parallelism,
        )

    def statistics(self, content: PartitionManifest) -> PartitionStatistics:
        """Metrics after the commit; ``content``: the partition after the micro-batch."""
        lease, store = self._lease, self.store.statistics()
        new = [delta.file for delta in content.deltas if delta not in lease.base.deltas]
        delta_bytes = sum(file.size_bytes for file in new)  # the store applies it in the next micro-batch
        return PartitionStatistics(
            restore_seconds=lease.restored.seconds,
            restore_bytes=lease.restored.bytes_fetched,
            delta_bytes=delta_bytes,
            state_bytes=store.size_bytes + delta_bytes,
            state_entries_estimate=store.entries_estimate + sum(file.num_entries for file in new),
            block_cache_bytes_peak=store.block_cache_bytes,
            block_cache_bytes_limit=store.block_cache_bytes_max,
            table_reader_bytes_peak=store.table_reader_bytes,
        )

    def settle(self) -> None:
        """Wait for a background compaction that has started; closing the store would discard its work."""
        self.store.settle()


@contextmanager
def open_store(
    spec: TaskSpec, partition: int, kept: StorePool | None = None, export_cache: GiveAway | None = None
) -> Iterator[PartitionStore]:
    """Lease the store of ``partition`` at the spec's base version. At the end the lease is released; the store stays
    open in ``kept``. ``export_cache``: the cache that goes with the store to another process that requests it.

    Raises StoreError when no local folder can be used, CheckpointCorruptionError for a damaged checkpoint file.
    """
    files = checkpoint_files(spec.checkpoint)
    limit_bytes = 0 if kept is None else spec.config.shares.open_stores
    stores = LocalStores(spec.local_dir, spec.job_id, files, open_stores=kept, open_bytes_max=limit_bytes)
    base = _base(spec, partition)
    with stores.acquire(spec.uid, partition, base, rocksdb_options(spec.config), export_cache) as lease:
        yield PartitionStore(spec, partition, lease, files)


def read_state(
    spec: TaskSpec, partitions: int, kept: StorePool | None = None
) -> Iterator[tuple[bytes, bytes]]:
    """Every stored entry at the spec's base version, partition by partition, in key order; then, once, the broadcast
    state, which each partition holds. Raises StoreError if two partitions hold different broadcast state."""
    broadcast: list[tuple[bytes, bytes]] = []
    for partition in range(partitions):
        with open_store(spec, partition, kept) as opened:
            yield from opened.store.iterate(end=BROADCAST_GROUP)
            own = list(opened.store.iterate(BROADCAST_GROUP))
        if partition and own != broadcast:
            raise StoreError(
                f"operator '{spec.uid}': partitions 0 and {partition} hold different broadcast state; make "
                "process_broadcast depend on its row and on broadcast state alone, and start with a new checkpoint"
            )
        broadcast = own
    yield from broadcast


def state_bytes(spec: TaskSpec) -> int:
    """The bytes of all files that the operator's partitions are restored from."""
    partitions = () if spec.base is None else spec.base.partitions
    return sum(file.size_bytes for partition in partitions for file in partition.files())


def why_no_stores(local_dir: str | None) -> str | None:
    """Why this process cannot have stores below the configured folder; None if it can."""
    try:
        LocalStores.check(local_dir)
    except (OSError, StoreError) as error:
        return str(error)
    return None


def rocksdb_options(config: Config) -> RocksDBOptions:
    """The store's settings from the configuration."""
    return RocksDBOptions(block_cache_bytes=config.shares.blocks, direct_reads=config.tuning.direct_reads)


def _base(spec: TaskSpec, partition: int) -> RestorePlan:
    if spec.base is None:
        return RestorePlan(spec.base_version)
    manifest = Manifest(
        job_id=spec.job_id,
        batch_id=spec.base_version,
        base=spec.base_version - 1,
        max_parallelism=spec.max_parallelism,
        operators={spec.uid: spec.base},
    )
    return partition_restore_plan(manifest, spec.uid, partition, spec.parallelism)
