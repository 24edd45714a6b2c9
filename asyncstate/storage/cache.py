"""What a worker process remembers of stored values from one micro-batch to the next.

Owns: WorkerCache and CacheLoan, for whatever is cached of partitions; CachedEntries, the second level of the state
cache: raw bytes.
Invariants: entries are right for one content only, named by its lineage, and are given out for exactly that one,
so whatever became of the attempt that left them, they are never stale; entries are with the table or with one task,
never with both; all together, lent or not, keep within the bytes given. Must not import stores, overlay or
anything of execution.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable
from types import TracebackType
from typing import Final, Generic, NamedTuple, Protocol, Self, TypeVar

ENTRY_OVERHEAD_BYTES: Final = 120
"""What an entry weighs beside the bytes of key and value: two bytes headers and a dict slot."""

Entries = dict[bytes, bytes | None]


class CachedEntries:
    """Values of one partition by store key, None for a key known to be absent.

    They lie in generations, the newest first; of a key that several have, the newest counts. The oldest is dropped
    whole: a least-recently-used cache of which neither a hit nor an eviction costs much. Whoever adds a generation has
    filled the one before up to a share of the room, so there are few.

    ``without``: ids of states of which nothing is in it, nor may be. ``resting`` is for how many micro-batches nothing
    shall be kept, after a cache that did not pay; ``list_get_seconds`` what a key of a list get last took the store, 0
    if unknown.
    """

    def __init__(
        self, resting: int = 0, list_get_seconds: float = 0.0, without: frozenset[int] = frozenset()
    ) -> None:
        self.generations: list[Entries] = []
        self.without = without
        self.resting = resting
        self.list_get_seconds = list_get_seconds
        self.laid_over_bytes = 0
        """Of the size of the newest generation, what was laid over it since it was counted: it may count twice."""
        self._sizes: list[int] = []

    @property
    def size_bytes(self) -> int:
        """Estimated memory; a key counts in each generation that has it."""
        return sum(self._sizes)

    def __len__(self) -> int:
        return sum(map(len, self.generations))

    @property
    def worth_keeping(self) -> bool:
        """Whether there is anything to know of it in the next micro-batch."""
        return bool(self.generations or self.resting)

    def add(self, entries: Entries, size_bytes: int) -> None:
        """Take in a newest generation; the caller lets go of it."""
        if entries:
            self.generations.insert(0, entries)
            self._sizes.insert(0, size_bytes)

    def take_newest(self, size_bytes_max: int) -> tuple[Entries, int]:
        """Give the newest generation and its size away, to be filled up; an empty one if it is too large."""
        if not self._sizes or self._sizes[0] > size_bytes_max:
            return {}, 0
        return self.generations.pop(0), self._sizes.pop(0)

    def shrink(self, limit_bytes: int) -> int:
        """Drop oldest generations until the rest keeps within the limit; returns how many entries went."""
        before, size_bytes = len(self), self.size_bytes
        while self._sizes and size_bytes > limit_bytes:
            size_bytes -= self._sizes.pop()
            self.generations.pop()
        return before - len(self)

    def clear(self) -> None:
        """Drop all generations."""
        self.generations.clear()
        self._sizes.clear()


def size_of(keys: Collection[bytes], values: Iterable[bytes | None]) -> int:
    """Estimated memory of entries."""
    return sum(map(len, keys)) + sum(map(len, filter(None, values))) + ENTRY_OVERHEAD_BYTES * len(keys)


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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._table.end(self)


class WorkerCache(Generic[E]):
    """What is cached of all partitions that this process has worked on, least recently used first. ``make`` gives what
    a partition of which nothing is known starts with."""

    def __init__(self, make: Callable[[], E]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._kept: dict[PartitionKey, tuple[str, E]] = {}
        self._lent: dict[CacheLoan[E], int] = {}

    def lend(self, key: PartitionKey, lineage: str, limit_bytes: int) -> CacheLoan[E]:
        """Hand out what is known of the content ``lineage``; entries of another content are dropped.

        ``limit_bytes`` bounds all that is kept and lent. The task gets what is free of it, but at least an equal
        share, for which others lose what they have not used for the longest time.
        """
        with self._lock:
            known, entries = self._kept.pop(key, ("", None))
            if entries is None or known != lineage:
                entries = self._make()
            available = max(0, limit_bytes - sum(self._lent.values()))
            share = available // (len(self._kept) + 1)
            self._shrink_kept(available - share)
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
            self._kept.pop(key, None)  # another attempt's
            if entries.worth_keeping:
                self._kept[key] = (lineage, entries)

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
