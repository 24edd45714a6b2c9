"""The stores of one task: leases at the base version, and the commit of its writes.

Owns: ``TaskStores``, ``open_stores`` and ``read_state``; ``why_no_stores`` and ``state_bytes``, by which the driver
chooses where tasks run.
Invariant: the stores are at exactly the base version of the TaskSpec.
Must not import Spark.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import xxhash

from asyncstate.codec import BROADCAST_GROUP
from asyncstate.config import Config
from asyncstate.errors import StoreError
from asyncstate.runtime.statistics import PartitionStatistics
from asyncstate.runtime.task_spec import TaskSpec
from asyncstate.storage import (
    EMPTY_LINEAGE,
    CheckpointFiles,
    GiveAway,
    KeyedStore,
    Lease,
    LocalStores,
    Manifest,
    PartitionedStore,
    PartitionManifest,
    RestorePlan,
    RocksDBOptions,
    SortedChanges,
    StorePool,
    WriteBound,
    checkpoint_files,
    commit_partition,
    group_bounds,
    group_range,
    partition_restore_plan,
    split_changes,
)


class TaskStores:
    """The stores of a task's partitions, leased for one micro-batch; to the operator they are one store."""

    def __init__(
        self, spec: TaskSpec, partitions: range, leases: Sequence[Lease], files: CheckpointFiles
    ) -> None:
        self._spec = spec
        self._partitions = partitions
        self._leases = leases
        self._files = files
        bounds = (group_range(number, spec.parallelism, spec.max_parallelism) for number in partitions)
        self._starts = [group_bounds(*groups)[0] for groups in bounds]
        stores = [lease.store for lease in leases]
        self.store: KeyedStore = stores[0] if len(stores) == 1 else PartitionedStore(stores, self._starts)
        """The store that the operator reads."""
        self.lineage = lineage_of([lease.base.lineage for lease in leases])
        """Name of the content that the operator reads."""
        self.is_empty = self.lineage == EMPTY_LINEAGE
        """Whether nothing is stored for the partitions."""
        self.cached: Any = leases[0].cached if len(leases) == 1 else None
        """The cache of that content from the process that released the store, None if there is none."""
        scratch = leases[0].scratch_folder
        self.write_bound = WriteBound(spec.config.shares.writes, leases[0].open_scratch, str(scratch))
        """How much memory the micro-batch's writes may take, and where they are spilled beyond that."""
        self.buffer_folder = str(scratch / "gathered")
        """The folder for rows of the micro-batch that do not fit into memory; it is deleted with the lease."""

    def commit(self, changes: SortedChanges) -> list[PartitionManifest]:
        """Upload sorted changes; returns the resulting partitions. Nothing is visible before the driver commits."""
        spec = self._spec
        parts = [changes] if len(self._leases) == 1 else split_changes(changes, self._starts)
        return [
            commit_partition(
                lease,
                self._files,
                part,
                uid=spec.uid,
                partition=partition,
                batch_id=spec.batch_id,
                attempt=uuid.uuid4().hex,
                snapshot_every_deltas=spec.config.snapshot_interval,
                parallelism=spec.parallelism,
            )
            for partition, lease, part in zip(self._partitions, self._leases, parts, strict=True)
        ]

    def statistics(self, contents: Sequence[PartitionManifest]) -> list[PartitionStatistics]:
        """Metrics of each partition after the commit; ``contents``: the partitions after the micro-batch."""
        return [_statistics(lease, content) for lease, content in zip(self._leases, contents, strict=True)]

    def settle(self) -> None:
        """Wait for background compactions that have started; closing a store would discard the work."""
        for lease in self._leases:
            lease.store.settle()


def _statistics(lease: Lease, content: PartitionManifest) -> PartitionStatistics:
    store = lease.store.statistics()
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


def lineage_of(lineages: Sequence[str]) -> str:
    """The name of the content of several partitions together."""
    if len(lineages) == 1 or not any(lineages):
        return lineages[0]
    return xxhash.xxh3_128_hexdigest("|".join(lineages).encode())


@contextmanager
def open_stores(
    spec: TaskSpec, partitions: range, kept: StorePool | None = None, export_cache: GiveAway | None = None
) -> Iterator[TaskStores]:
    """Lease the stores of ``partitions`` at the spec's base version. At the end the leases are released; the stores
    stay open in ``kept``. ``export_cache``: the cache that goes with a store to another process that requests it.

    Raises StoreError when no local folder can be used, CheckpointCorruptionError for a damaged checkpoint file.
    """
    files = checkpoint_files(spec.checkpoint)
    limit_bytes = 0 if kept is None else spec.config.shares.open_stores
    stores = LocalStores(spec.local_dir, spec.job_id, files, open_stores=kept, open_bytes_max=limit_bytes)
    options = rocksdb_options(spec.config)
    with ExitStack() as used:
        leases = [
            used.enter_context(stores.acquire(spec.uid, number, _base(spec, number), options, export_cache))
            for number in partitions
        ]
        yield TaskStores(spec, partitions, leases, files)


def read_state(
    spec: TaskSpec, partitions: int, kept: StorePool | None = None
) -> Iterator[tuple[bytes, bytes]]:
    """Every stored entry at the spec's base version, partition by partition, in key order; then, once, the broadcast
    state, which each partition holds. Raises StoreError if two partitions hold different broadcast state."""
    broadcast: list[tuple[bytes, bytes]] = []
    for partition in range(partitions):
        with open_stores(spec, range(partition, partition + 1), kept) as opened:
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
