"""Where the row of a key is: open addressing over 64-bit hashes of keys.

Owns: ``KeyIndex``.
Invariant: a slot is 0, or has 32 bits of a key's hash and its row number + 1; a key lies in the first slot behind its
home that was free when it came. Nothing is ever taken out: whoever drops rows makes a new index.
Must not import anything of the project.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

BoolArray = npt.NDArray[np.bool_]
Int64Array = npt.NDArray[np.int64]
UInt64Array = npt.NDArray[np.uint64]

Same = Callable[[Int64Array, Int64Array], BoolArray]
"""``same(rows, positions)``: whether row ``rows[i]`` has the key at ``positions[i]`` of those that are looked for."""

ROWS_MAX: Final = (1 << 32) - 2
_SLOTS_A_ROW: Final = 2
_HALF: Final = np.uint64(32)
_ONE: Final = np.uint64(1)
_ROW_BITS: Final = np.uint64((1 << 32) - 1)


class KeyIndex:
    """Row numbers by key, for up to ``capacity`` rows."""

    __slots__ = ("_slots",)

    def __init__(self, capacity: int) -> None:
        self._slots: UInt64Array = np.zeros(_SLOTS_A_ROW * max(capacity, 1), np.uint64)

    @property
    def nbytes(self) -> int:
        """Bytes of the slots; of an index without capacity 0."""
        return self._slots.nbytes if len(self._slots) > _SLOTS_A_ROW else 0

    def find(self, hashes: UInt64Array, same: Same) -> Int64Array:
        """The row of each key (u), by its hash; -1 where there is none."""
        rows = np.full(len(hashes), -1, np.int64)
        at, tags = self._homes(hashes), hashes << _HALF
        positions: Int64Array | None = None  # None: all
        while True:
            slots = self._slots.take(at)
            matching = np.flatnonzero(((slots ^ tags) - _ONE) < _ROW_BITS)
            found = ((slots[matching] & _ROW_BITS) - _ONE).astype(np.int64)
            asked = matching if positions is None else positions[matching]
            right = same(found, asked)
            left = slots != 0
            if right.all():
                rows[asked] = found
                left[matching] = False
            else:
                rows[asked[right]] = found[right]
                left[matching[right]] = False
            going_on = np.flatnonzero(left)
            if not len(going_on):
                return rows
            positions = going_on if positions is None else positions[going_on]
            at, tags = self._next(at[going_on]), tags[going_on]

    def insert(self, hashes: UInt64Array, rows: Int64Array) -> None:
        """Add keys (n) that are not there, each once."""
        at = self._homes(hashes)
        entries = (hashes << _HALF) | (rows.astype(np.uint64) + _ONE)
        while len(at):
            free = np.flatnonzero(self._slots.take(at) == 0)
            taken = at[free]
            self._slots[taken] = entries[free]  # of several for one slot the last one gets it
            left = np.ones(len(at), np.bool_)
            left[free] = self._slots.take(taken) != entries[free]
            at, entries = self._next(at[left]), entries[left]

    def _homes(self, hashes: UInt64Array) -> Int64Array:
        return (((hashes >> _HALF) * np.uint64(len(self._slots))) >> _HALF).astype(np.int64)

    def _next(self, at: Int64Array) -> Int64Array:
        following = at + 1
        following[following == len(self._slots)] = 0
        return following
