"""What a worker process remembers of stored values from one micro-batch to the next.

Owns: CachedEntries, WorkerCache and CacheLoan: the second level of the state cache (raw bytes; the first level
is the state objects'). Invariants: entries are right for one content only, named by its lineage, and are given out
for exactly that one, so whatever became of the attempt that left them, they are never stale; entries are with the
table or with one task, never with both; all together, lent or not, keep within the bytes given. Must not import
stores, overlay or anything of execution.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, NamedTuple, Self

ENTRY_OVERHEAD_BYTES: Final = 120
"""What an entry weighs beside the bytes of key and value: two bytes headers and a dict slot."""

Entries = dict[bytes, bytes | None]


@dataclass(slots=True)
class CachedEntries:
    """Values of one partition by store key, None for a key known to be absent, in two generations.

    What was used lately is in ``young``, and counts where both have a key. The older generation is dropped
    whole: the cost of a hit is one dict lookup, and of an eviction next to nothing.
    """

    young: Entries = field(default_factory=dict)
    old: Entries = field(default_factory=dict)
    young_bytes: int = 0
    old_bytes: int = 0

    @property
    def size_bytes(self) -> int:
        """Estimated memory of both generations."""
        return self.young_bytes + self.old_bytes

    def __len__(self) -> int:
        return len(self.young) + len(self.old)

    def shrink(self, limit_bytes: int) -> int:
        """Drop generations, the older one first, until the rest keeps within the limit; entries dropped."""
        before = len(self)
        if self.size_bytes > limit_bytes:
            self.old, self.old_bytes = {}, 0
        if self.young_bytes > limit_bytes:
            self.young, self.young_bytes = {}, 0
        return before - len(self)


class PartitionKey(NamedTuple):
    """Whose entries: one partition of one operator of one checkpoint."""

    checkpoint: str
    job_id: str
    uid: str
    partition: int


class CacheLoan:
    """Entries with a task for one micro-batch; a context manager.

    The task may keep ``limit_bytes`` of them. What it does not give back by ``keep`` is gone: so a micro-batch that
    fails leaves nothing behind.
    """

    def __init__(
        self, table: WorkerCache, key: PartitionKey, entries: CachedEntries, limit_bytes: int
    ) -> None:
        self._table = table
        self._key = key
        self.entries = entries
        self.limit_bytes = limit_bytes

    def keep(self, lineage: str, entries: CachedEntries) -> None:
        """Give back ``entries``, which are right for the content named ``lineage``; the task lets go of them."""
        self._table.take_back(self._key, self, lineage, entries)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._table.end(self)


class WorkerCache:
    """The cached entries of all partitions that this process has worked on, least recently used first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[PartitionKey, tuple[str, CachedEntries]] = {}
        self._lent: dict[CacheLoan, int] = {}

    def lend(self, key: PartitionKey, lineage: str, limit_bytes: int) -> CacheLoan:
        """Hand out what is known of the content ``lineage``; entries of another content are dropped.

        ``limit_bytes`` bounds all that is kept and lent. The task gets what is free of it, but at least an equal
        share, for which others lose what they have not used for the longest time.
        """
        with self._lock:
            known, entries = self._kept.pop(key, ("", CachedEntries()))
            if known != lineage:
                entries = CachedEntries()
            available = max(0, limit_bytes - sum(self._lent.values()))
            share = available // (len(self._kept) + 1)
            self._shrink_kept(available - share)
            granted = available - self._kept_bytes()
            entries.shrink(granted)
            loan = CacheLoan(self, key, entries, granted)
            self._lent[loan] = granted
            return loan

    def take_back(self, key: PartitionKey, loan: CacheLoan, lineage: str, entries: CachedEntries) -> None:
        """See ``CacheLoan.keep``."""
        with self._lock:
            granted = self._lent.pop(loan, None)
            if granted is None:
                return
            entries.shrink(granted)
            self._kept.pop(key, None)  # another attempt's
            if entries.size_bytes:
                self._kept[key] = (lineage, entries)

    def end(self, loan: CacheLoan) -> None:
        """The loan's task has ended."""
        with self._lock:
            self._lent.pop(loan, None)

    def clear(self) -> None:
        """Forget everything that is not lent."""
        with self._lock:
            self._kept.clear()

    @property
    def size_bytes(self) -> int:
        """Estimated memory of what is not lent."""
        with self._lock:
            return self._kept_bytes()

    def _kept_bytes(self) -> int:
        return sum(entries.size_bytes for _, entries in self._kept.values())

    def _shrink_kept(self, limit_bytes: int) -> None:
        excess = self._kept_bytes() - limit_bytes
        for key in list(self._kept):
            if excess <= 0:
                return
            _, entries = self._kept[key]
            before = entries.size_bytes
            entries.shrink(max(0, before - excess))
            excess -= before - entries.size_bytes
            if not entries.size_bytes:
                del self._kept[key]
