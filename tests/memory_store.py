"""A KeyedStore in memory, for tests of what lies over a store; those of the contract run it beside RocksDB.

Owns: MemoryStore. Invariant: the sorted key list is rebuilt only when a scan follows an apply.
Must not import rocksdict.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from asyncstate.errors import StoreError
from asyncstate.storage.keyed_store import EMPTY_VERSION, KeyedStore, SortedChanges, StoreStatistics


class MemoryStore(KeyedStore):
    """Dict plus a lazily sorted key list."""

    def __init__(self, entries: Iterable[tuple[bytes, bytes]] = (), version: int = EMPTY_VERSION) -> None:
        self._entries: dict[bytes, bytes] = dict(entries)
        self._sorted_keys: list[bytes] | None = None
        self._closed = False
        self.version = version

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, None when it is absent."""
        self._check_open()
        return self._entries.get(key)

    def get_many(self, keys: list[bytes], piece_keys: int = 0) -> list[bytes | None]:
        """Return the values of the keys in their order; ``piece_keys`` means nothing here."""
        self._check_open()
        return list(map(self._entries.get, keys))

    def scan(self, start: bytes, end: bytes | None, limit: int) -> list[tuple[bytes, bytes]]:
        """Return at most ``limit`` entries with start <= key < end, ascending."""
        self._check_open()
        keys = self._keys()
        first = bisect_left(keys, start)
        last = len(keys) if end is None else bisect_left(keys, end)
        entries = self._entries
        return [(key, entries[key]) for key in keys[first : min(last, first + limit)]]

    def apply(self, changes: SortedChanges, version: int) -> None:
        """Apply changes in place."""
        self._check_open()
        for key, value in changes:
            if value is None:
                self._entries.pop(key, None)
            else:
                self._entries[key] = value
        self._sorted_keys = None
        self.version = version

    def statistics(self) -> StoreStatistics:
        """Return the key count; nothing is on disk."""
        self._check_open()
        return StoreStatistics(len(self._entries), 0, 0, 0, 0, 0)

    def close(self) -> None:
        """Drop the entries."""
        self._closed = True
        self._entries = {}
        self._sorted_keys = None

    def _keys(self) -> list[bytes]:
        # A local name, because two reading threads may both find it unsorted: each then sorts for itself.
        keys = self._sorted_keys
        if keys is None:
            keys = self._sorted_keys = sorted(self._entries)
        return keys

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError("the memory store is closed")
