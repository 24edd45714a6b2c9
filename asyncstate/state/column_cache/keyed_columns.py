"""In-memory rows of one column state: by key, as columns, including rows that are not stored yet.

Owns: ``KeyedColumns``; ``RowNumbers``, the rows taken out of it; ``KeyIndex``, which maps keys to row numbers.
Invariant: a row here is the current state of its key, present or removed; if the table is ``whole``, a key without a
row has no state at all. Dirty rows are stored nowhere else.
A slot of the index is 0, or has 32 bits of a key's hash and its row number + 1; a key is in the first slot from its
home on that was free when it was inserted. Nothing is ever removed: dropping rows builds a new index.
Must not import storage, execution or operators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from asyncstate.codec import KeyBatch
from asyncstate.codec.hashing import UInt64Array
from asyncstate.codec.value_columns import BoolArray, Int64Array
from asyncstate.state.column_cache.vectors import ColumnVector, kept_values, resized, stored_column
from asyncstate.state.columnar.results import Columns

Hashes = Callable[[KeyBatch], UInt64Array]
UInt16Array = npt.NDArray[np.uint16]
Same = Callable[[Int64Array, Int64Array], BoolArray]
"""``same(rows, positions)``: whether row ``rows[i]`` has the key at ``positions[i]`` of the searched ones."""

_SLOTS_A_ROW: Final = 2
_HALF: Final = np.uint64(32)
_ONE: Final = np.uint64(1)
_ROW_BITS: Final = np.uint64((1 << 32) - 1)

_CAPACITY_MIN: Final = 64
_GROWTH: Final = 1.5
_PRESENT: Final = np.uint8(1)
_DIRTY: Final = np.uint8(2)
_ARRAYS: Final = ("_hashes", "_groups", "_used", "_marks")  # of a KeyedColumns, by row


class RowNumbers(NamedTuple):
    """Rows (n) taken out of the table: their keys, an array per field (n), and which rows are present (n); the others
    are removed."""

    keys: KeyBatch
    columns: list[pa.Array]
    present: BoolArray


class KeyedColumns:
    """The rows of keys of ``key_types``, with ``schema``. ``whole``: the store has no key that is not here."""

    def __init__(
        self,
        key_types: Sequence[pa.DataType],
        schema: pa.Schema,
        whole: bool,
        hashes: Hashes = attrgetter("hashes"),
    ) -> None:
        self.key_types = list(key_types)
        self.schema = schema
        self.whole = whole
        self.drops = 0
        """How often rows have been dropped: row numbers are valid only until the next drop."""
        self.version = 0
        """Changes whenever keys are added or dropped."""
        self._hashes_of = hashes
        self._like: KeyBatch | None = None
        self._keys = [stored_column(arrow_type) for arrow_type in key_types]
        self._values = [stored_column(field.type) for field in schema]
        self._count = self._tick = 0
        self._hashes: UInt64Array = np.zeros(0, np.uint64)
        self._groups = np.zeros(0, np.uint16)
        self._used = np.zeros(0, np.uint32)
        self._marks = np.zeros(0, np.uint8)
        self._index = KeyIndex(0)
        self._written: list[Int64Array] = []
        self._last: tuple[KeyBatch, int, Int64Array] | None = None

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        arrays = (self._hashes, self._groups, self._used, self._marks, self._index)
        return sum(array.nbytes for array in arrays) + sum(column.nbytes for column in self._columns)

    @property
    def _columns(self) -> list[ColumnVector]:
        return self._keys + self._values

    # -- reading ----------------------------------------------------------------------------------

    def find(self, keys: KeyBatch) -> Int64Array:
        """The row of each key (u), -1 where there is none; marks the rows as used. The caller must not change the
        array."""
        if self._last is not None and self._last[0] is keys and self._last[1] == self.version:
            return self._last[2]  # a write often follows a read of the same keys
        self._tick += 1
        rows = self._index.find(self._hashes_of(keys), lambda rows, at: self._same(keys, rows, at))
        self._last = keys, self.version, rows
        self._used[rows if self._count and rows.min(initial=0) >= 0 else rows[rows >= 0]] = self._tick
        return rows

    def _same(self, keys: KeyBatch, rows: Int64Array, positions: Int64Array) -> BoolArray:
        same = np.ones(len(rows), np.bool_)
        for stored, column in zip(self._keys, keys.columns, strict=True):
            same &= stored.equal(rows, column, positions)
        return same

    def take(self, rows: Int64Array) -> Columns:
        """The contents of ``rows`` (u, -1: no row)."""
        if not self._count:
            missing = [pa.nulls(len(rows), field.type) for field in self.schema]
            return Columns(missing, np.zeros(len(rows), np.bool_))
        at = np.maximum(rows, 0)
        present = ((self._marks.take(at) & _PRESENT) != 0) & (rows >= 0)
        unexpired = None if present.all() else present
        return Columns([column.take(at, unexpired) for column in self._values], present)

    def present_rows(self) -> tuple[Int64Array, UInt16Array]:
        """All present rows (n), and their key groups (n)."""
        rows = np.flatnonzero(self._marks[: self._count] & _PRESENT)
        return rows, self._groups[rows]

    def keys_of(self, rows: Int64Array) -> list[pa.Array]:
        """The key columns of ``rows`` (n)."""
        return [column.take(rows, None) for column in self._keys]

    def values(self, index: int, rows: Int64Array) -> pa.Array:
        """Field ``index`` of ``rows`` (n), all of which are present."""
        return self._values[index].take(rows, None)

    # -- writing ----------------------------------------------------------------------------------

    def learn(self, keys: KeyBatch, columns: Sequence[pa.Array]) -> None:
        """Add the stored rows of ``keys`` (u), none of which has a row here."""
        self._set(keys, self._added(keys), columns, _PRESENT)

    def write(self, keys: KeyBatch, columns: Sequence[pa.Array] | None) -> None:
        """Set the rows of ``keys`` (u) to ``columns`` (None: remove them); they are dirty until ``clean``."""
        self._like = keys.with_columns([], keys.groups[:0])
        rows = self.find(keys)
        new = rows < 0
        if new.any():
            rows = rows.copy()
            rows[new] = self._added(keys if new.all() else keys.select(new))
        self._written.append(rows)
        self._set(keys, rows, columns, _DIRTY if columns is None else _DIRTY | _PRESENT)

    def _set(
        self, keys: KeyBatch, rows: Int64Array, columns: Sequence[pa.Array] | None, marks: np.uint8
    ) -> None:
        self._marks[rows] = marks
        for stored, column in zip(self._values, columns or (), strict=columns is not None):
            stored.put(rows, column, self._count)

    def _added(self, keys: KeyBatch) -> Int64Array:
        """Add rows for ``keys`` (u), which have none."""
        rows = np.arange(self._count, self._count + len(keys))
        if rows.size and self._count + len(keys) > len(self._marks):
            self._resize(max(int(_GROWTH * len(self._marks)), self._count + len(keys), _CAPACITY_MIN))
        self._count += len(keys)
        self.version += 1
        hashes = self._hashes_of(keys)
        self._hashes[rows], self._groups[rows], self._used[rows] = hashes, keys.groups, self._tick
        for stored, column in zip(self._keys, keys.columns, strict=True):
            stored.put(rows, column, self._count)
        self._index.insert(hashes, rows)
        return rows

    def _resize(self, capacity: int) -> None:
        for column in self._columns:
            column.resize(capacity, self._count)
        count = self._count
        for name in _ARRAYS:
            setattr(self, name, resized(getattr(self, name), capacity, count))
        self._index = KeyIndex(capacity)
        self._index.insert(self._hashes[:count], np.arange(count))

    # -- dirty rows ----------------------------------------------------------------------------

    def dirty(self) -> list[RowNumbers]:
        """The rows that are not stored: each piece ascends as its keys were written, and no key is in two of them."""
        return [self._out(rows) for rows in self._dirty_rows()]

    def clean(self) -> None:
        """Mark all rows as stored, or as handed on to be stored; the table can be pickled afterwards."""
        self._written = []
        self._last = self._like = None
        self._marks[: self._count] &= ~_DIRTY

    def _dirty_rows(self) -> list[Int64Array]:
        if len(self._written) == 1:
            return self._written
        pieces, seen = [], np.zeros(self._count, np.bool_)
        for rows in self._written:
            new = rows[~seen[rows]]
            seen[new] = True
            pieces.append(new)
        return [rows for rows in pieces if len(rows)]

    def _out(self, rows: Int64Array) -> RowNumbers:
        assert self._like is not None, "only rows that were written are dirty"
        keys = self._like.with_columns([column.take(rows, None) for column in self._keys], self._groups[rows])
        columns, present = self.take(rows).columns, (self._marks[rows] & _PRESENT) != 0
        return RowNumbers(keys, columns, present)

    # -- eviction -------------------------------------------------------------------------------------

    def shrink(self, count: int) -> RowNumbers | None:
        """Evict all but the ``count`` most recently used rows; returns the evicted dirty rows, to be stored."""
        marks = self._marks[: self._count]
        worth = np.flatnonzero(marks) if self.whole else np.arange(self._count)
        dropped = np.zeros(0, np.int64)
        if len(worth) > count:
            order = (
                np.argpartition(self._used[worth], len(worth) - count - 1) if count else np.arange(len(worth))
            )
            dropped, worth = worth[order[: len(worth) - count]], np.sort(worth[order[len(worth) - count :]])
            self.whole = False
        victims = dropped[(marks[dropped] & _DIRTY) != 0]
        handed_on = self._out(victims) if len(victims) else None
        self._keep(worth)
        return handed_on

    def _keep(self, rows: Int64Array) -> None:
        capacity = len(rows)
        renumbered = np.full(self._count, -1, np.int64)
        renumbered[rows] = np.arange(len(rows))
        written = (renumbered[before] for before in self._written)
        self._written = [after for before in written if len(after := before[before >= 0])]
        for column in self._columns:
            column.keep(rows, capacity)
        for name in _ARRAYS:
            setattr(self, name, kept_values(getattr(self, name), rows, capacity))
        self._count = len(rows)
        self._index = KeyIndex(capacity)
        self._index.insert(self._hashes[: self._count], np.arange(self._count))
        self.drops += 1
        self.version += 1


class KeyIndex:
    """Row numbers by key, for up to ``capacity`` rows: open addressing over 64-bit hashes of keys."""

    __slots__ = ("_slots",)

    def __init__(self, capacity: int) -> None:
        self._slots: UInt64Array = np.zeros(_SLOTS_A_ROW * max(capacity, 1), np.uint64)

    @property
    def nbytes(self) -> int:
        """Bytes of the slots; 0 for an index without capacity."""
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
        """Add keys (n) that are not in the index, each once."""
        at = self._homes(hashes)
        entries = (hashes << _HALF) | (rows.astype(np.uint64) + _ONE)
        while len(at):
            free = np.flatnonzero(self._slots.take(at) == 0)
            taken = at[free]
            self._slots[taken] = entries[free]  # if several claim one slot, the last one gets it
            left = np.ones(len(at), np.bool_)
            left[free] = self._slots.take(taken) != entries[free]
            at, entries = self._next(at[left]), entries[left]

    def _homes(self, hashes: UInt64Array) -> Int64Array:
        return (((hashes >> _HALF) * np.uint64(len(self._slots))) >> _HALF).astype(np.int64)

    def _next(self, at: Int64Array) -> Int64Array:
        following = at + 1
        following[following == len(self._slots)] = 0
        return following
