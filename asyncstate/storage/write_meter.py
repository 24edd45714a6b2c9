"""How much memory a micro-batch's writes take, told without looking at most of them.

Owns: ``WriteMeter``. Invariant: the limit counts as reached only by a count of all entries; new ones are estimated by
some of them until then, old ones that may have got larger values are counted again once they may all have.
Must not import stores.

Writes go into a dict by its own method, so nobody sees them one by one. What counts is looked at between slices of rows
and after bundles; a look costs some microseconds on average, however many writes there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Final

from asyncstate.storage.read_cache import Entries, size_of

_SAMPLED: Final = 64  # of the new entries; some microseconds
_RECOUNT_ROWS: Final = 2  # rows an entry after which all are counted: old keys may have got larger values
_LOOKS: Final = 16  # while the writes grow by the limit
_FIRST_ROW_BYTES: Final = (
    64 << 10
)  # what a row is taken to write before any was seen: the first look is early


class WriteMeter:
    """Keeps an estimate of the size of ``writes``, with what a dict entry weighs beside its bytes."""

    def __init__(self, writes: Entries, limit_bytes: int) -> None:
        self.size_bytes = 0.0
        """As of the last look."""
        self._writes = writes
        self._limit_bytes = limit_bytes
        self._row_bytes = float(_FIRST_ROW_BYTES)
        self.emptied()

    def emptied(self) -> None:
        """The writes have been moved away."""
        self.size_bytes, self._entries, self._rows = 0.0, 0, 0
        self._exceeded = False

    def look(
        self,
        rows: int,
        keys: Sequence[bytes] | None = None,
        values: Sequence[bytes | None] | None = None,
    ) -> bool:
        """Take in what ``rows`` rows have written; True when all writes together exceed the limit.

        ``keys`` and ``values``: what they have written, where that is known; without values they were deletes.
        """
        before, self._rows = self.size_bytes, self._rows + rows
        new = len(self._writes) - self._entries
        if new > 0:
            self.size_bytes += _scaled(keys, values, new) if keys else self._newest(new)
            self._entries += new
        if self._rows > _RECOUNT_ROWS * self._entries or self.size_bytes > self._limit_bytes:
            self._count_all()
        if rows:
            self._row_bytes = max((self.size_bytes - before) / rows, self._row_bytes / 2)
        return self._exceeded

    def rows_to_look(self, rows_max: int) -> int:
        """After how many rows to look again, at most ``rows_max``: fewer the more they write."""
        share = self._limit_bytes / _LOOKS
        return rows_max if share >= rows_max * self._row_bytes else max(1, int(share / self._row_bytes))

    def _count_all(self) -> None:
        if self._exceeded:
            return  # until they are moved away
        self.size_bytes, self._rows = size_in_memory(self._writes), 0
        self._exceeded = self.size_bytes > self._limit_bytes

    def _newest(self, count: int) -> float:
        """The size of the ``count`` newest entries."""
        sampled = min(count, _SAMPLED)
        keys = list(islice(reversed(self._writes), sampled))
        return size_of(keys, islice(reversed(self._writes.values()), sampled)) * count / sampled


def size_in_memory(entries: Entries) -> int:
    """Estimated memory of all ``entries``; walks them."""
    return size_of(entries, entries.values())


def _scaled(keys: Sequence[bytes], values: Sequence[bytes | None] | None, count: int) -> float:
    """The size of ``count`` entries like some of those given, taken at equal distances."""
    step = -(-len(keys) // _SAMPLED)
    sampled = keys[::step]
    return size_of(sampled, () if values is None else values[::step]) * count / len(sampled)
