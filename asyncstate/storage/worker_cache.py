"""A worker process's cache of partitions from one micro-batch to the next.

Owns: WorkerCache and CacheLoan, for any kind of cached data of partitions.
Invariants: cached entries are right for one content only, named by its lineage, and are lent for exactly that one, so
they are never stale, whatever the outcome of the attempt that left them; they are with the table or with one task,
never with both; all together, lent or not, keep within the given bytes. Must not import stores, the memtable or
anything of execution.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, Generic, NamedTuple, Protocol, Self, TypeVar

_SHORT_MAX: Final = 1_000


class PartitionKey(NamedTuple):
    """The owner of entries: partitions of one operator of one checkpoint that a task runs together."""

    checkpoint: str
    job_id: str
    uid: str
    partitions: range


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
        """Whether entries were evicted or refused for lack of room since the last micro-batch with it began."""

    def shrink(self, limit_bytes: int) -> int:
        """Keep within ``limit_bytes``; return the number of evicted entries."""


E = TypeVar("E", bound=Cached)


class _Kept(NamedTuple, Generic[E]):
    """Entries that are right for the content ``lineage``, and their size, which changes with a task or here alone."""

    lineage: str
    entries: E
    size_bytes: int


class CacheLoan(Generic[E]):
    """Entries with a task for one micro-batch; a context manager.

    The task may keep ``limit_bytes`` of them. Entries that it does not return by ``keep`` are dropped, so a failed
    micro-batch leaves nothing.
    """

    def __init__(self, table: WorkerCache[E], key: PartitionKey, entries: E, limit_bytes: int) -> None:
        self._table = table
        self._key = key
        self.entries = entries
        self.limit_bytes = limit_bytes

    def keep(self, lineage: str, entries: E) -> None:
        """Return ``entries``, which are right for the content named ``lineage``, to the cache; the task drops its
        own."""
        self._table.take_back(self._key, self, lineage, entries)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._table.end(self)


class WorkerCache(Generic[E]):
    """What is cached of all partitions that this process has worked on, least recently used first. ``make`` returns the
    initial entries of a partition that is not cached."""

    def __init__(self, make: Callable[[], E]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._kept: dict[PartitionKey, _Kept[E]] = {}
        self._kept_bytes = 0
        self._lent: dict[CacheLoan[E], int] = {}
        self._short: dict[PartitionKey, bool] = {}

    def lend(
        self, key: PartitionKey, lineage: str, limit_bytes: int, known_elsewhere: E | None = None
    ) -> CacheLoan[E]:
        """Lend the entries for the content ``lineage``; entries of another content are dropped.

        ``known_elsewhere``: the cache of the process that had the partition before. ``limit_bytes`` bounds all kept and
        lent entries. The task gets the free part of it. A task that lacked room in its last micro-batch, or had none
        yet, gets at least an equal share, for which others lose their least recently used entries.
        """
        with self._lock:
            kept = self._take(key)
            if kept is not None and kept.lineage == lineage:
                entries = kept.entries
            else:
                entries = self._make() if known_elsewhere is None else known_elsewhere
            available = max(0, limit_bytes - sum(self._lent.values()))
            share = available // (len(self._kept) + 1)
            needed = share if self._short.get(key, True) else min(share, entries.size_bytes)
            self._shrink_kept(available - needed)
            granted = available - self._kept_bytes
            entries.shrink(granted)
            loan = CacheLoan(self, key, entries, granted)
            self._lent[loan] = granted
            return loan

    def take_back(self, key: PartitionKey, loan: CacheLoan[E], lineage: str, entries: E) -> None:
        """Return ``entries``, which are right for the content named ``lineage``, to the cache; the task drops its
        own."""
        with self._lock:
            granted = self._lent.pop(loan, None)
            if granted is None:
                return
            entries.shrink(granted)
            if len(self._short) >= _SHORT_MAX:
                self._short.clear()  # it is learned again
            self._short[key] = entries.was_short
            self._take(key)  # of another attempt
            if entries.worth_keeping:
                self._kept[key] = kept = _Kept(lineage, entries, entries.size_bytes)
                self._kept_bytes += kept.size_bytes

    def export_cache(self, key: PartitionKey) -> tuple[str, E] | None:
        """The lineage and the entries of a partition that moves to another process."""
        with self._lock:
            kept = self._take(key)
            return None if kept is None else (kept.lineage, kept.entries)

    def end(self, loan: CacheLoan[E]) -> None:
        """The loan's task has ended."""
        with self._lock:
            self._lent.pop(loan, None)

    def clear(self) -> None:
        """Drop everything that is not lent."""
        with self._lock:
            self._kept.clear()
            self._kept_bytes = 0

    @property
    def size_bytes(self) -> int:
        """Estimated memory of what is not lent."""
        return self._kept_bytes

    def _take(self, key: PartitionKey) -> _Kept[E] | None:
        kept = self._kept.pop(key, None)
        if kept is not None:
            self._kept_bytes -= kept.size_bytes
        return kept

    def _shrink_kept(self, limit_bytes: int) -> None:
        for key in list(self._kept):
            excess = self._kept_bytes - limit_bytes
            if excess <= 0:
                return
            lineage, entries, before = self._kept[key]
            entries.shrink(max(0, before - excess))
            after = entries.size_bytes
            self._kept_bytes -= before - after
            if after:
                self._kept[key] = _Kept(lineage, entries, after)
            else:
                del self._kept[key]
