"""What a worker process keeps from one micro-batch to the next.

Owns: ``WorkerMemory`` and the one of this process.
Invariant: nothing in it is needed for a right result; what it knows of state is named by the content that it is right
for, so an attempt whose base is another content never sees it.
Must not import Spark.
"""

from __future__ import annotations

import functools
from typing import Final

from asyncstate.execution import AdaptiveReads, Interests
from asyncstate.runtime.spec import TaskSpec
from asyncstate.state import AdmissionPolicies, AdmissionPolicy, ColumnCache
from asyncstate.storage import CacheLoan, GiveAway, PartitionKey, StorePool, ValueCache, WorkerCache

_INTERESTS_MAX: Final = 1_000


class WorkerMemory:
    """One worker's memory, given to every micro-batch that it runs.

    ``pacer``: how slow its last reads were; the disk does not change with the batch. ``entries`` and ``columns``: what
    it has read and written. ``trials``: for which states keeping decoded values has paid. ``stores``: partitions'
    stores that are open.
    """

    def __init__(self, pacer: AdaptiveReads | None = None) -> None:
        self.pacer = AdaptiveReads() if pacer is None else pacer
        self.entries = WorkerCache(ValueCache)
        self.columns = WorkerCache(ColumnCache)
        self.trials = AdmissionPolicies()
        self.stores = StorePool()
        self._interests: dict[tuple[str, str, str], Interests] = {}

    def lend_entries(self, spec: TaskSpec, partition: int, lineage: str) -> CacheLoan[ValueCache]:
        """What is cached of the content ``lineage``, for one micro-batch."""
        return self.entries.lend(partition_key(spec, partition), lineage, spec.config.shares.cache)

    def lend_columns(
        self, spec: TaskSpec, partition: int, lineage: str, known_elsewhere: ColumnCache | None = None
    ) -> CacheLoan[ColumnCache]:
        """What is cached of column states at the content ``lineage``, for one micro-batch: here, or by another process,
        ``known_elsewhere``."""
        return self.columns.lend(
            partition_key(spec, partition), lineage, spec.config.shares.columns, known_elsewhere
        )

    def columns_of(self, spec: TaskSpec, partition: int) -> GiveAway:
        """Gives away what is cached of column states, for the process that takes the partition's store."""
        key = partition_key(spec, partition)

        def export_cache() -> tuple[str, ColumnCache] | None:
            known = self.columns.export_cache(key)
            return known if known is not None and known[1].worth_giving_away else None

        return export_cache

    def trial(self, spec: TaskSpec, partition: int, state: str) -> AdmissionPolicy:
        """Whether keeping decoded values of ``state`` pays."""
        return self.trials.of((partition_key(spec, partition), state))

    def interests(self, spec: TaskSpec) -> Interests:
        """Which states the operator's records read: what they did in the micro-batch before."""
        if len(self._interests) >= _INTERESTS_MAX:
            self._interests.clear()  # they are learned again
        return self._interests.setdefault((spec.checkpoint, spec.job_id, spec.uid), {})


def partition_key(spec: TaskSpec, partition: int) -> PartitionKey:
    """Whose memory: one partition of one operator."""
    return PartitionKey(spec.checkpoint, spec.job_id, spec.uid, partition)


@functools.cache
def worker_memory() -> WorkerMemory:
    """The memory of this process: of every task that is given no other."""
    return WorkerMemory()
