"""What a worker process keeps between micro-batches.

Owns: ``WorkerMemory``, the one of this process; ``CachedValues`` and ``CachedColumns``, of the partitions of one task.
Invariant: no result depends on it. What it caches of state is named by the content that it is valid for, so an attempt
with a different base never sees it.
Must not import Spark.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from typing import Final, Self

from asyncstate.codec import PlainValues
from asyncstate.execution import AccessPatterns, Pacer
from asyncstate.runtime.task_spec import TaskSpec
from asyncstate.state import ColumnCache, ColumnCacheStatistics, DecodedCache
from asyncstate.storage import CacheLoan, GiveAway, PartitionKey, StorePool, ValueCache, WorkerCache

_INTERESTS_MAX: Final = 1_000
_NO_COLUMNS: Final = ColumnCache().statistics()


class CachedValues:
    """What is cached of one partition's keys: ``decoded`` values of each state that can have them, and the ``stored``
    bytes of all others but column states. Together they may take ``limit_bytes``."""

    def __init__(self, limit_bytes: int = 0) -> None:
        self.limit_bytes = limit_bytes
        self.stored = ValueCache()
        self.decoded: list[DecodedCache] = []
        self._carried: dict[bytes, DecodedCache] = {}

    def begin(self) -> None:
        """Begin a micro-batch: its states are opened next. What is known of others is dropped."""
        self._carried = {cache.state_id: cache for cache in self.decoded}
        self.decoded = []

    def open(self, state_id: bytes, plain: PlainValues, types: Hashable) -> DecodedCache:
        """The cache of a state, with what is known of it if its ``types`` are the same as before."""
        cache = self._carried.get(state_id)
        if cache is None or cache.types != types:
            cache = DecodedCache(state_id, plain, types)
        self.decoded.append(cache)
        return cache

    def share_out(self, state_bytes: int, others: bool) -> int:
        """Bound the decoded values of each open state to an equal share, at most ``state_bytes``; all ``others``
        together have one, too, if there are any. Returns the bytes that are left for them."""
        self._carried = {}
        share = min(self.limit_bytes // max(1, len(self.decoded) + others), state_bytes)
        for cache in self.decoded:
            cache.bound(share)
        return self.limit_bytes - share * len(self.decoded) if others else 0

    @property
    def size_bytes(self) -> int:
        """Estimated memory."""
        return self.stored.size_bytes + sum(cache.size_bytes for cache in self.decoded)

    @property
    def worth_keeping(self) -> bool:
        """Whether the next micro-batch can make use of it."""
        return self.stored.worth_keeping or self.size_bytes > 0

    @property
    def was_short(self) -> bool:
        """Whether entries were evicted or refused for lack of room since the last micro-batch with it began."""
        return self.stored.was_short or any(cache.evictions for cache in self.decoded)

    def shrink(self, limit_bytes: int) -> int:
        """Keep within ``limit_bytes``, stored bytes first; return the number of evicted entries."""
        dropped = self.stored.shrink(max(0, limit_bytes - self.size_bytes + self.stored.size_bytes))
        for cache in self.decoded:
            dropped += cache.shrink(max(0, limit_bytes - self.size_bytes + cache.size_bytes))
        return dropped


class CachedColumns:
    """The cached column states of a partition, for one micro-batch; a context manager.

    They are lent when the first column state is opened: many operators have none. ``is_empty``: nothing is stored for
    the partition.
    """

    def __init__(self, lend: Callable[[], CacheLoan[ColumnCache]], is_empty: bool) -> None:
        self.is_empty = is_empty
        self._lend = lend
        self._loan: CacheLoan[ColumnCache] | None = None

    def open(self) -> ColumnCache | None:
        """The cache, None if it may take no memory."""
        if self._loan is None:
            self._loan = self._lend()
            self._loan.entries.begin(self._loan.limit_bytes)
        return self._loan.entries if self._loan.limit_bytes else None

    def opened(self) -> frozenset[int]:
        """End opening states; the ids of those that are cached."""
        return frozenset() if self._loan is None else self._loan.entries.opened()

    def keep(self, lineage: str) -> None:
        """Return the cache, which is now right for the content named ``lineage``."""
        if self._loan is not None:
            self._loan.keep(lineage, self._loan.entries)

    @property
    def read_bytes(self) -> int:
        """Bytes of the columns that were read."""
        return 0 if self._loan is None else self._loan.entries.read_bytes

    def statistics(self) -> ColumnCacheStatistics:
        """The statistics of this micro-batch."""
        return _NO_COLUMNS if self._loan is None else self._loan.entries.statistics()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._loan is not None:
            self._loan.__exit__()


class WorkerMemory:
    """One worker's memory, shared by all micro-batches that it runs.

    ``pacer``: the latency of its last reads, which does not change with the batch. ``entries`` and ``columns``: what
    it has read and written. ``stores``: open stores of partitions.
    """

    def __init__(self, pacer: Pacer | None = None) -> None:
        self.pacer = Pacer() if pacer is None else pacer
        self.entries = WorkerCache(CachedValues)
        self.columns = WorkerCache(ColumnCache)
        self.stores = StorePool()
        self._access_patterns: dict[tuple[str, str, str], AccessPatterns] = {}

    def columns_of(self, key: PartitionKey) -> GiveAway | None:
        """A function that exports the cached column states to the process that takes over the partition's store; None
        for those of several partitions, since their stores may go to several processes."""
        if len(key.partitions) > 1:
            return None

        def export_cache() -> tuple[str, ColumnCache] | None:
            known = self.columns.export_cache(key)
            return known if known is not None and known[1].worth_giving_away else None

        return export_cache

    def access_patterns(self, spec: TaskSpec) -> AccessPatterns:
        """Which states the operator's records read, learned from the previous micro-batch."""
        if len(self._access_patterns) >= _INTERESTS_MAX:
            self._access_patterns.clear()  # they are learned again
        return self._access_patterns.setdefault((spec.checkpoint, spec.job_id, spec.uid), {})


def partition_key(spec: TaskSpec, partitions: range) -> PartitionKey:
    """The key under which memory is kept: the partitions of an operator that a task runs together."""
    return PartitionKey(spec.checkpoint, spec.job_id, spec.uid, partitions)


@functools.cache
def worker_memory() -> WorkerMemory:
    """The memory of this process, which tasks use by default."""
    return WorkerMemory()
