"""What a worker process keeps between micro-batches.

Owns: ``WorkerMemory`` and the one of this process.
Invariant: no result depends on it. What it caches of state is named by the content that it is valid for, so an attempt
with a different base never sees it.
Must not import Spark.
"""

from __future__ import annotations

import functools
from typing import Final

from asyncstate.execution import AdaptiveReads, Interests
from asyncstate.runtime.task_spec import TaskSpec
from asyncstate.state import AdmissionPolicies, AdmissionPolicy, ColumnCache
from asyncstate.storage import CacheLoan, GiveAway, PartitionKey, StorePool, ValueCache, WorkerCache

_INTERESTS_MAX: Final = 1_000


class WorkerMemory:
    """One worker's memory, shared by all micro-batches that it runs.

    ``pacer``: the latency of its last reads, which does not change with the batch. ``entries`` and ``columns``: what
    it has read and written. ``admissions``: for which states caching decoded values has paid off. ``stores``: open
    stores of partitions.
    """

    def __init__(self, pacer: AdaptiveReads | None = None) -> None:
        self.pacer = AdaptiveReads() if pacer is None else pacer
        self.entries = WorkerCache(ValueCache)
        self.columns = WorkerCache(ColumnCache)
        self.admissions = AdmissionPolicies()
        self.stores = StorePool()
        self._interests: dict[tuple[str, str, str], Interests] = {}

    def lend_entries(self, spec: TaskSpec, partition: int, lineage: str) -> CacheLoan[ValueCache]:
        """The cached entries of the content ``lineage``, for one micro-batch."""
        return self.entries.lend(partition_key(spec, partition), lineage, spec.config.shares.cache)

    def lend_columns(
        self, spec: TaskSpec, partition: int, lineage: str, known_elsewhere: ColumnCache | None = None
    ) -> CacheLoan[ColumnCache]:
        """The cached column states at the content ``lineage``, for one micro-batch: from here, or from another process,
        ``known_elsewhere``."""
        return self.columns.lend(
            partition_key(spec, partition), lineage, spec.config.shares.columns, known_elsewhere
        )

    def columns_of(self, spec: TaskSpec, partition: int) -> GiveAway:
        """A function that exports the cached column states to the process that takes over the partition's store."""
        key = partition_key(spec, partition)

        def export_cache() -> tuple[str, ColumnCache] | None:
            known = self.columns.export_cache(key)
            return known if known is not None and known[1].worth_giving_away else None

        return export_cache

    def policy(self, spec: TaskSpec, partition: int, state: str) -> AdmissionPolicy:
        """The admission policy of ``state``: whether caching decoded values pays off."""
        return self.admissions.of((partition_key(spec, partition), state))

    def interests(self, spec: TaskSpec) -> Interests:
        """Which states the operator's records read, learned from the previous micro-batch."""
        if len(self._interests) >= _INTERESTS_MAX:
            self._interests.clear()  # they are learned again
        return self._interests.setdefault((spec.checkpoint, spec.job_id, spec.uid), {})


def partition_key(spec: TaskSpec, partition: int) -> PartitionKey:
    """The key under which memory is kept: one partition of one operator."""
    return PartitionKey(spec.checkpoint, spec.job_id, spec.uid, partition)


@functools.cache
def worker_memory() -> WorkerMemory:
    """The memory of this process, which tasks use by default."""
    return WorkerMemory()
