"""How much memory a micro-batch's writes take, told without looking at most of them.

Owns: ``WriteMeter``. Invariant: a look costs some microseconds however many writes there are, on average; what it adds
is measured on some of the new entries, and on all of them once that has been far off.
Must not import stores.

Writes go into a dict by its own method, so nobody sees them one by one. What counts is looked at between slices of rows
and after bundles.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Final

from asyncstate.storage.cache import ENTRY_OVERHEAD_BYTES, Entries, size_of

_SAMPLED: Final = 64  # of the new entries; some microseconds
_RECOUNT_ROWS: Final = 16  # rows an entry after which all are counted: old keys may have got larger values
_GROWTH: Final = 1.25  # of the oldest entries, after which all are counted sooner: after a row an entry
_FAR_OFF: Final = 0.75  # of the limit: an estimate above it that turns out to be below this was a bad one
_LOOKS: Final = 16  # while the writes grow by the limit
_FIRST_ROW_BYTES: Final = (
    64 << 10
)  # what a row is taken to write before any was seen: the first look comes early


class WriteMeter:
    """Keeps an estimate of the size of ``writes``, with what a dict entry weighs beside its bytes."""

    def __init__(self, writes: Entries, limit_bytes: int) -> None:
        self._writes = writes
        self._limit_bytes = limit_bytes
        self._size_bytes = 0.0
        self._counted = 0
        self._rows = 0  # since all entries were counted
        self._oldest_bytes = 0  # of the oldest entries when they were; 0 while there are few
        self._row_bytes = float(_FIRST_ROW_BYTES)
        self._exact = False
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
        before, self._rows = self._size_bytes, self._rows + rows
        new = len(self._writes) - self._counted
        if self._recount_due():
            self._count_all()
        elif new > 0:
            self._size_bytes += _scaled(keys, values, new) if keys else self._newest(new)
            self._counted += new
        if rows:
            self._row_bytes = max((self._size_bytes - before) / rows, self._row_bytes / 2)
        if self._size_bytes > self._limit_bytes and not self._exceeded:
            self._exceeded = self._confirmed()
        return self._exceeded

    def rows_to_look(self, rows_max: int) -> int:
        """After how many rows to look again, at most ``rows_max``: fewer the more they write."""
        share = self._limit_bytes / _LOOKS
        return rows_max if share >= rows_max * self._row_bytes else max(1, int(share / self._row_bytes))

    def emptied(self) -> None:
        """The writes have been moved away."""
        self._size_bytes, self._counted, self._rows = 0.0, 0, 0
        self._oldest_bytes = 0
        self._exceeded = False

    def _recount_due(self) -> bool:
        entries = len(self._writes)
        if self._rows < entries:
            return False
        if self._rows > _RECOUNT_ROWS * entries:
            return True
        if self._oldest_bytes == 0:
            self._oldest_bytes = self._oldest()
        return self._oldest() > _GROWTH * self._oldest_bytes

    def _oldest(self) -> int:
        """The size of the oldest entries; keys in use are mostly among them."""
        if len(self._writes) < _SAMPLED:
            return 0
        keys = list(islice(self._writes, _SAMPLED))
        return size_of(keys, islice(self._writes.values(), _SAMPLED))

    def _newest(self, count: int) -> float:
        """The size of the ``count`` newest entries."""
        sampled = count if self._exact else min(count, _SAMPLED)
        keys = list(islice(reversed(self._writes), sampled))
        return size_of(keys, islice(reversed(self._writes.values()), sampled)) * count / sampled

    def _count_all(self) -> None:
        self._size_bytes = size_in_memory(self._writes)
        self._counted, self._rows, self._oldest_bytes = len(self._writes), 0, self._oldest()

    def _confirmed(self) -> bool:
        """Whether the limit is reached indeed: writes may have been replaced by smaller ones, or the samples have
        been large by chance, and spilling little costs as much as spilling more."""
        self._count_all()
        if self._size_bytes > _FAR_OFF * self._limit_bytes:
            return True
        self._exact = True
        return False


def size_in_memory(entries: Entries) -> int:
    """Estimated memory of all ``entries``; walks them."""
    values = entries.values()
    return sum(map(len, entries)) + sum(map(len, filter(None, values))) + ENTRY_OVERHEAD_BYTES * len(entries)


def _scaled(keys: Sequence[bytes], values: Sequence[bytes | None] | None, count: int) -> float:
    """The size of ``count`` entries like some of those given, taken at equal distances."""
    step = -(-len(keys) // _SAMPLED)
    sampled = keys[::step]
    return size_of(sampled, () if values is None else values[::step]) * count / len(sampled)
