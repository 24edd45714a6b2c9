"""What a worker process remembers of partitions from one micro-batch to the next.

Owns: WorkerCache and CacheLoan, for whatever is cached of partitions.
Invariants: what is cached is right for one content only, named by its lineage, and is given out for exactly that one,
so whatever became of the attempt that left it, it is never stale; it is with the table or with one task, never with
both; all together, lent or not, keeps within the bytes given. Must not import stores, overlay or anything of execution.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, Generic, NamedTuple, Protocol, Self, TypeVar

_SHORT_MAX: Final = 1_000


class PartitionKey(NamedTuple):
    """Whose entries: one partition of one operator of one checkpoint."""

    checkpoint: str
    job_id: str
    uid: str
    partition: int


class Cached(Protocol):
    """What is cached of one partition."""

    @property
    def size_bytes(self) -> int:
        """Estimated memory."""

    @property
    def worth_keeping(self) -> bool:
        """Whether the next micro-batch can make use of it."""

    @property
    def was_short(self) -> bool:
        """Whether entries went for want of room since the last micro-batch with it began, or did not come in."""

    def shrink(self, limit_bytes: int) -> int:
        """Keep within ``limit_bytes``; the number of entries that went."""


E = TypeVar("E", bound=Cached)


class CacheLoan(Generic[E]):
    """Entries with a task for one micro-batch; a context manager.

    The task may keep ``limit_bytes`` of them. What it does not give back by ``keep`` is gone: so a micro-batch that
    fails leaves nothing behind.
    """

    def __init__(self, table: WorkerCache[E], key: PartitionKey, entries: E, limit_bytes: int) -> None:
        self._table = table
        self._key = key
        self.entries = entries
        self.limit_bytes = limit_bytes

    def keep(self, lineage: str, entries: E) -> None:
        """Give back ``entries``, which are right for the content named ``lineage``; the task lets go of them."""
        self._table.take_back(self._key, self, lineage, entries)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._table.end(self)


class WorkerCache(Generic[E]):
    """What is cached of all partitions that this process has worked on, least recently used first. ``make`` gives what
    a partition of which nothing is known starts with."""

    def __init__(self, make: Callable[[], E]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._kept: dict[PartitionKey, tuple[str, E]] = {}
        self._lent: dict[CacheLoan[E], int] = {}
        self._short: dict[PartitionKey, bool] = {}

    def lend(
        self, key: PartitionKey, lineage: str, limit_bytes: int, known_elsewhere: E | None = None
    ) -> CacheLoan[E]:
        """Hand out what is known of the content ``lineage``; entries of another content are dropped.

        ``known_elsewhere``: what the process knows of it that had the partition before. ``limit_bytes`` bounds all that
        is kept and lent. The task gets what is free of it; one that lacked room in its last micro-batch, or had none
        yet, at least an equal share, for which others lose what they have not used for the longest time.
        """
        with self._lock:
            known, entries = self._kept.pop(key, ("", None))
            if entries is None or known != lineage:
                entries = self._make() if known_elsewhere is None else known_elsewhere
            available = max(0, limit_bytes - sum(self._lent.values()))
            share = available // (len(self._kept) + 1)
            needed = share if self._short.get(key, True) else min(share, entries.size_bytes)
            self._shrink_kept(available - needed)
            granted = available - self._kept_bytes()
            entries.shrink(granted)
            loan = CacheLoan(self, key, entries, granted)
            self._lent[loan] = granted
            return loan

    def take_back(self, key: PartitionKey, loan: CacheLoan[E], lineage: str, entries: E) -> None:
        """See ``CacheLoan.keep``."""
        with self._lock:
            granted = self._lent.pop(loan, None)
            if granted is None:
                return
            entries.shrink(granted)
            if len(self._short) >= _SHORT_MAX:
                self._short.clear()  # it is learned again
            self._short[key] = entries.was_short
            self._kept.pop(key, None)  # another attempt's
            if entries.worth_keeping:
                self._kept[key] = (lineage, entries)

    def export_cache(self, key: PartitionKey) -> tuple[str, E] | None:
        """The lineage and the entries of a partition that another process has from now on."""
        with self._lock:
            return self._kept.pop(key, None)

    def end(self, loan: CacheLoan[E]) -> None:
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
