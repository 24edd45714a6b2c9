"""A small job over the storage layer: what driver and tasks do around it, without Spark.

Owns: MiniJob, the model of its content. Invariant: expected contents are kept by the tests in plain dicts,
never read back from the code under test.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path

from asyncstate.storage import (
    Checkpoint,
    GiveAway,
    Lease,
    LocalStores,
    Manifest,
    MemTable,
    OperatorManifest,
    PartitionManifest,
    RocksDBOptions,
    StorePool,
    checkpoint_files,
    commit_partition,
    deltas_together,
    group_range,
    partition_restore_plan,
)

Writes = Mapping[bytes, bytes | None]
MAX_PARALLELISM = 16
PLENTY_BYTES = 1 << 30
SMALL = RocksDBOptions(block_cache_bytes=4 << 20)


def key(group: int, text: str) -> bytes:
    """A state key: two bytes of key group, then whatever."""
    return group.to_bytes(2, "big") + text.encode()


class MiniJob:
    """One operator, committing batch by batch, at any parallelism."""

    uid = "op"

    def __init__(
        self,
        root: Path,
        snapshot_every_deltas: int | None = 3,
        place: str | None = None,
        open_stores: StorePool | None = None,
        together: bool = False,
    ) -> None:
        """``together``: the small deltas of a micro-batch go to one file."""
        self.files = checkpoint_files(place or str(root / "checkpoint"))
        limit_bytes = 0 if open_stores is None else PLENTY_BYTES
        self.stores = LocalStores(
            root / "local",
            "job",
            self.files,
            wait_seconds_max=5.0,
            open_stores=open_stores,
            open_bytes_max=limit_bytes,
        )
        self.checkpoint = Checkpoint(self.files)
        self.checkpoint.claim("job")
        self.snapshot_every_deltas = snapshot_every_deltas
        self.together = together
        self.options = SMALL
        self.export_cache: GiveAway | None = None
        self.ways: list[str] = []
        self._attempts = itertools.count()

    def lease(self, manifest: Manifest | None, partition: int, parallelism: int) -> Lease:
        """A lease on one partition at the manifest's version."""
        base = partition_restore_plan(manifest, self.uid, partition, parallelism)
        lease = self.stores.acquire(self.uid, partition, base, self.options, export_cache=self.export_cache)
        self.ways.append(lease.restored.method)
        return lease

    def attempt(self, base: Manifest | None, batch_id: int, writes: Writes, parallelism: int = 1) -> Manifest:
        """Run all tasks of a batch and return the manifest that would commit it."""
        with deltas_together() if self.together else nullcontext():
            partitions = [
                self.run_partition(base, batch_id, writes, number, parallelism)
                for number in range(parallelism)
            ]
        operator = OperatorManifest(self.uid, "Op", parallelism, partitions)
        version = -1 if base is None else base.batch_id
        return Manifest("job", batch_id, version, MAX_PARALLELISM, {self.uid: operator})

    def run_partition(
        self,
        base: Manifest | None,
        batch_id: int,
        writes: Writes,
        partition: int,
        parallelism: int,
    ) -> PartitionManifest:
        """Run one task: lease, overlay, commit files."""
        first, end = group_range(partition, parallelism, MAX_PARALLELISM)
        with self.lease(base, partition, parallelism) as lease:
            overlay = MemTable(lease.store)
            for written, value in writes.items():
                if first <= int.from_bytes(written[:2], "big") < end:
                    if value is None:
                        overlay.delete(written)
                    else:
                        overlay.put(written, value)
            return commit_partition(
                lease,
                self.files,
                overlay.changes(),
                uid=self.uid,
                partition=partition,
                batch_id=batch_id,
                attempt=f"a{next(self._attempts)}",
                snapshot_every_deltas=self.snapshot_every_deltas,
            )

    def batch(self, writes: Writes, parallelism: int = 1) -> Manifest:
        """Run and commit the next batch."""
        base = self.checkpoint.latest()
        manifest = self.attempt(base, 0 if base is None else base.batch_id + 1, writes, parallelism)
        self.checkpoint.commit(manifest)
        return manifest

    def content(self, manifest: Manifest | None, parallelism: int = 1) -> dict[bytes, bytes]:
        """All entries at a version, read through leases at the given parallelism."""
        found: dict[bytes, bytes] = {}
        for partition in range(parallelism):
            with self.lease(manifest, partition, parallelism) as lease:
                entries = list(lease.store.iterate(page_entries=7))
                assert lease.store.version == (-1 if manifest is None else manifest.batch_id)
                found.update(entries)
        return found


def applied(content: Mapping[bytes, bytes], *batches: Writes) -> dict[bytes, bytes]:
    """The model: a dict after the batches."""
    result: dict[bytes, bytes | None] = dict(content)
    for writes in batches:
        result.update(writes)
    return {k: v for k, v in result.items() if v is not None}
