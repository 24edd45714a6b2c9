"""Per-key order: which record of a key runs, and which wait behind it.

Owns: ``KeyAccountingUnit``.
Invariant: at most one record of a key is running; the others wait in arrival order.

Source: Flink's ``KeyAccountingUnit``.
"""

from __future__ import annotations

from asyncstate.execution.record import Record


class KeyAccountingUnit:
    """Keeps the last record in line for each key that is at work; the line itself is linked through ``following``."""

    __slots__ = ("_last", "blocked")

    def __init__(self) -> None:
        self._last: dict[bytes, Record] = {}
        self.blocked = 0
        """Records that wait for another record of their key."""

    def occupy(self, record: Record) -> bool:
        """True if the record may run now; else it waits in line."""
        last = self._last
        key = record.encoded_key
        before = last.get(key)
        last[key] = record
        record.following = None
        if before is None:
            return True
        before.following = record
        self.blocked += 1
        return False

    def release(self, record: Record) -> Record | None:
        """The record has ended; returns the next of its key, which may run now."""
        following = record.following
        if following is None:
            del self._last[record.encoded_key]
            return None
        record.following = None
        self.blocked -= 1
        return following

    def __len__(self) -> int:
        return len(self._last)
