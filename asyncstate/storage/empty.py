"""A KeyedStore that has nothing: below writes that are never committed.

Owns: EmptyStore. Invariant: it stays empty; what is written over it lives in the overlay, and beyond that one's bound
in its scratch store.
Must not import rocksdict.
"""

from __future__ import annotations

from asyncstate.storage.contract import EMPTY_VERSION, Changes, KeyedStore, StoreStatistics


class EmptyStore(KeyedStore):
    """See the module."""

    version = EMPTY_VERSION

    def get(self, key: bytes) -> bytes | None:
        """See ``KeyedStore``."""
        return None

    def get_many(self, keys: list[bytes], piece_keys: int = 0) -> list[bytes | None]:
        """See ``KeyedStore``."""
        return [None] * len(keys)

    def scan(self, start: bytes, end: bytes | None, limit: int) -> list[tuple[bytes, bytes]]:
        """See ``KeyedStore``."""
        return []

    def apply(self, changes: Changes, version: int) -> None:
        """Nobody commits to it."""
        raise AssertionError("what is written over an EmptyStore is not committed")

    def statistics(self) -> StoreStatistics:
        """See ``KeyedStore``."""
        return StoreStatistics(0, 0, 0, 0, 0, 0)

    def close(self) -> None:
        """See ``KeyedStore``; there is nothing to free."""
