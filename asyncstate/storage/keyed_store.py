"""The contract of committed state: what every store of one operator partition offers.

Owns: KeyedStore, EmptyStore, StoreStatistics, Changes and ChangeColumns. Invariant: a store holds exactly one committed
version; it changes only through ``apply`` (or, for RocksDB, ``ingest``) between micro-batches, never while one runs.
Must not import rocksdict, threads or anything above storage.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

EMPTY_VERSION = -1

Change = tuple[bytes, bytes | None]
"""A key and its new value; None deletes the key."""


class SortedChanges(Protocol):
    """Changes sorted by key, each key once; they can be iterated more than once. A list, or more than memory holds:
    then the length is known only after an iteration, and asking for it before that makes one."""

    def __iter__(self) -> Iterator[Change]: ...

    def __len__(self) -> int: ...


@dataclass(frozen=True, slots=True)
class ChangeColumns:
    """Changes as two sequences of one length: no tuple per change is made and kept."""

    sorted_keys: Sequence[bytes]
    values: Sequence[bytes | None]

    def __post_init__(self) -> None:
        if len(self.sorted_keys) != len(self.values):
            raise ValueError(
                f"{len(self.sorted_keys)} keys and {len(self.values)} values; give a value for each key"
            )

    def __iter__(self) -> Iterator[Change]:
        return zip(self.sorted_keys, self.values, strict=True)

    def __len__(self) -> int:
        return len(self.sorted_keys)

    def starting_at(self, start: bytes) -> Iterator[Change]:
        """The changes with key >= start."""
        first = bisect_left(self.sorted_keys, start)
        return zip(self.sorted_keys[first:], self.values[first:], strict=True)


@dataclass(frozen=True, slots=True)
class StoreStatistics:
    """Metrics of one store at one moment; ``entries_estimate`` counts overwritten entries until they are compacted.

    ``table_reader_bytes``: filters and indexes, which are outside of the block cache and within its bound.
    """

    entries_estimate: int
    size_bytes: int
    files: int
    sorted_runs: int
    block_cache_bytes: int
    block_cache_bytes_max: int
    table_reader_bytes: int = 0


class KeyedStore(ABC):
    """Committed state of one operator partition at one version.

    Reads may come from several threads at once; ``apply`` and ``close`` need exclusive access to the store.
    Raises StoreError when the store cannot be read or written, and from every call after ``close``.
    """

    version: int
    """Batch id of the last applied delta, -1 when nothing was applied."""

    @abstractmethod
    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, None when it is absent."""

    @abstractmethod
    def get_many(self, keys: list[bytes], piece_keys: int = 0) -> list[bytes | None]:
        """Return the values of the keys, in their order, None where absent. Sorted keys are read fastest.

        ``piece_keys`` above 0 splits the list into store calls of that many keys: less CPU per key (the call's working
        set stays in the processor's caches), but the GIL is acquired once per call. Use it on the one busy thread;
        leave it 0 on a thread that reads while another one is busy.
        """

    @abstractmethod
    def scan(self, start: bytes, end: bytes | None, limit: int) -> list[tuple[bytes, bytes]]:
        """Return at most ``limit`` entries with start <= key < end, ascending; end None: to the last key."""

    def cold(self, positions: list[bytes]) -> list[bytes]:
        """Those of ``positions`` (keys that are not stored) at which a scan would now wait for a device.

        None for a store that has no device. Used by the thread that scans.
        """
        return []

    def warm(self, positions: list[bytes]) -> None:
        """Load what a scan reads at ``positions`` (sorted); a hint, for threads other than the scanning one.

        Loaded positions stay cached as long as little else is read: see ``warm_positions_max``.
        """

    @property
    def warm_positions_max(self) -> int:
        """How many positions can be loaded at the same time; known once ``cold`` has been called."""
        return 1 << 16

    @property
    def block_bytes(self) -> int:
        """How many bytes one read of the device returns; 0 for a store that has none."""
        return 0

    @abstractmethod
    def apply(self, changes: SortedChanges, version: int) -> None:
        """Make sorted changes (each key once) part of the store and set its version."""

    @abstractmethod
    def statistics(self) -> StoreStatistics:
        """Return current metrics; cheap enough for once a micro-batch."""

    @abstractmethod
    def close(self) -> None:
        """Free files and memory; closing twice is allowed."""

    def iterate(
        self, start: bytes = b"", end: bytes | None = None, page_entries: int = 4096
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield all entries with start <= key < end, ascending, paged, so that no cursor stays open."""
        while True:
            page = self.scan(start, end, page_entries)
            yield from page
            if len(page) < page_entries:
                return
            start = page[-1][0] + b"\0"


class EmptyStore(KeyedStore):
    """An empty store, below writes that are never committed: they live in the memtable, and beyond its bound in its
    scratch store."""

    version = EMPTY_VERSION

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, None when it is absent."""
        return None

    def get_many(self, keys: list[bytes], piece_keys: int = 0) -> list[bytes | None]:
        """Return the values of the keys, in their order, None where absent."""
        return [None] * len(keys)

    def scan(self, start: bytes, end: bytes | None, limit: int) -> list[tuple[bytes, bytes]]:
        """Return at most ``limit`` entries with start <= key < end, ascending; end None: to the last key."""
        return []

    def apply(self, changes: SortedChanges, version: int) -> None:
        """Never called: nothing is committed to it."""
        raise AssertionError("writes over an EmptyStore are never committed")

    def statistics(self) -> StoreStatistics:
        """Return current metrics; cheap enough for once a micro-batch."""
        return StoreStatistics(0, 0, 0, 0, 0, 0)

    def close(self) -> None:
        """See ``KeyedStore``; there is nothing to free."""
