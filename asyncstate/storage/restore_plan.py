"""The start of a task: one partition's content at the base version, rescaled if necessary.

Owns: RestorePlan and the arithmetic of key groups. Invariant: bases with equal lineage have equal content,
so a local store of that lineage may be used as it is. Must not do I/O.
"""

from __future__ import annotations

import msgspec
import xxhash

from asyncstate.codec import GROUP_BYTES
from asyncstate.errors import CheckpointError
from asyncstate.storage.keyed_store import EMPTY_VERSION
from asyncstate.storage.manifest import (
    EMPTY_LINEAGE,
    DeltaRef,
    Manifest,
    OperatorManifest,
    PartitionManifest,
    SnapshotRef,
)


class RestorePlan(msgspec.Struct, frozen=True):
    """Where one partition of a micro-batch starts; the driver makes it and ships it to the task.

    Either snapshot and deltas, or, after a change of parallelism, ``sources`` (old partitions in ascending order) of
    which the key groups first <= g < end are taken, and the broadcast state from one of them, since it is the same in
    all.
    """

    version: int = EMPTY_VERSION
    snapshot: SnapshotRef | None = None
    deltas: list[DeltaRef] = []
    sources: list[PartitionManifest] = []
    groups: tuple[int, int] | None = None

    @property
    def rescaled(self) -> bool:
        """Whether the content has to be collected from partitions of another parallelism."""
        return self.groups is not None

    @property
    def start_lineage(self) -> str:
        """Name of the content before the deltas."""
        if self.groups is not None:
            parts = [f"rescaled|{self.groups}", *(source.lineage for source in self.sources)]
            return xxhash.xxh3_128_hexdigest("|".join(parts).encode())
        return self.snapshot.lineage if self.snapshot else EMPTY_LINEAGE

    @property
    def lineage(self) -> str:
        """Name of the content."""
        return self.deltas[-1].lineage if self.deltas else self.start_lineage

    def pending_after(self, lineage: str) -> list[DeltaRef] | None:
        """Return the deltas missing in a store of that lineage, None when the store has to be rebuilt."""
        chain = [self.start_lineage, *(delta.lineage for delta in self.deltas)]
        return self.deltas[chain.index(lineage) :] if lineage in chain else None


def group_range(partition: int, parallelism: int, max_parallelism: int) -> tuple[int, int]:
    """Return (first, end) of the key groups g with ``g * parallelism // max_parallelism == partition``."""
    first = -(-partition * max_parallelism // parallelism)
    end = -(-(partition + 1) * max_parallelism // parallelism)
    return first, end


def group_bounds(first: int, end: int) -> tuple[bytes, bytes | None]:
    """Return the key range of the key groups first <= g < end; None means to the last key."""
    top = 1 << (8 * GROUP_BYTES)
    return first.to_bytes(GROUP_BYTES, "big"), None if end >= top else end.to_bytes(GROUP_BYTES, "big")


def partition_restore_plan(
    manifest: Manifest | None, uid: str, partition: int, parallelism: int
) -> RestorePlan:
    """Derive where a partition starts from the newest manifest, at any parallelism up to the maximum."""
    if manifest is None:
        return RestorePlan()
    operator = manifest.operators.get(uid)
    if operator is None:
        return RestorePlan(manifest.batch_id)
    if operator.parallelism == parallelism:
        same = operator.partition(partition)
        return RestorePlan(manifest.batch_id, same.snapshot, same.deltas)
    return _rescaled_base(manifest, operator, partition, parallelism)


def _rescaled_base(
    manifest: Manifest, operator: OperatorManifest, partition: int, parallelism: int
) -> RestorePlan:
    most = manifest.max_parallelism
    if not 0 < parallelism <= most:
        raise CheckpointError(
            f"operator {operator.uid!r} cannot run with parallelism {parallelism}: this checkpoint supports 1 to "
            f"{most} partitions; choose a value in this range, or start with a new checkpoint folder"
        )
    first, end = group_range(partition, parallelism, most)
    old = range(first * operator.parallelism // most, (end - 1) * operator.parallelism // most + 1)
    sources = [operator.partition(number) for number in old]
    if not any(source.snapshot is not None or source.deltas for source in sources):
        return RestorePlan(manifest.batch_id)  # a snapshot of nothing would look like state that is kept
    return RestorePlan(manifest.batch_id, sources=sources, groups=(first, end))
