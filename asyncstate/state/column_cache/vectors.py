"""Columns whose values are written and read by row number.

Owns: ``FixedColumn`` for values of fixed width, ``VariableColumn`` for all others, and ``stored_column``.
Invariant: ``take`` gives the value that was last ``put`` at a row. A row that was never put may give anything.
Must not import storage, execution or operators.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from asyncstate.codec.value_columns import (
    Array,
    BoolArray,
    Int64Array,
    from_storage,
    storage_dtype,
    to_storage,
    valid_mask,
)

_CHUNK_BYTES_MAX: Final = 1 << 30  # the offsets of Arrow's strings have 32 bits
_GARBAGE_MIN: Final = 1 << 10


class ColumnVector(ABC):
    """Values of one Arrow type by row number."""

    def __init__(self, arrow_type: pa.DataType) -> None:
        self.type = arrow_type

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes in memory."""

    @abstractmethod
    def resize(self, capacity: int, count: int) -> None:
        """Make room for ``capacity`` rows, of which ``count`` exist."""

    @abstractmethod
    def put(self, rows: Int64Array, column: pa.Array, count: int) -> None:
        """Write ``column`` (n) at ``rows`` (n, each once); ``count`` rows exist afterwards."""

    @abstractmethod
    def take(self, rows: Int64Array, present: BoolArray | None) -> pa.Array:
        """The values at ``rows`` (n), null where not ``present``."""

    @abstractmethod
    def keep(self, rows: Int64Array, capacity: int) -> None:
        """Drop all rows but ``rows``, renumber these 0, 1, 2, ..., and make room for ``capacity``."""

    @abstractmethod
    def equal(self, rows: Int64Array, column: pa.Array, positions: Int64Array) -> BoolArray:
        """Whether the value at each of ``rows`` equals that at ``positions`` of ``column``; null equals null."""


class FixedColumn(ColumnVector):
    """Storage values (see ``codec.value_columns``) in one numpy array, and a null mask once there is a null."""

    def __init__(self, arrow_type: pa.DataType, dtype: np.dtype[Any]) -> None:
        super().__init__(arrow_type)
        self._values: Array = np.zeros(0, dtype)
        self._nulls: BoolArray | None = None

    @property
    def nbytes(self) -> int:
        return self._values.nbytes + (0 if self._nulls is None else self._nulls.nbytes)

    def resize(self, capacity: int, count: int) -> None:
        self._values = resized(self._values, capacity, count)
        if self._nulls is not None:
            self._nulls = resized(self._nulls, capacity, count)

    def put(self, rows: Int64Array, column: pa.Array, count: int) -> None:
        self._values[rows] = to_storage(column)
        valid = valid_mask(column)
        if valid is not None and self._nulls is None:
            self._nulls = np.zeros(len(self._values), np.bool_)
        if self._nulls is not None:
            self._nulls[rows] = False if valid is None else ~valid

    def take(self, rows: Int64Array, present: BoolArray | None) -> pa.Array:
        valid = present
        if self._nulls is not None:
            nulls = self._nulls.take(rows)
            if nulls.any():
                valid = ~nulls if valid is None else valid & ~nulls
        return from_storage(self._values.take(rows, axis=0), self.type, valid)

    def keep(self, rows: Int64Array, capacity: int) -> None:
        self._values = kept_values(self._values, rows, capacity)
        if self._nulls is not None:
            self._nulls = kept_values(self._nulls, rows, capacity)

    def equal(self, rows: Int64Array, column: pa.Array, positions: Int64Array) -> BoolArray:
        stored, given = self._values.take(rows, axis=0), to_storage(column).take(positions, axis=0)
        if stored.dtype.kind == "f":  # compares bits: NaN is a key
            stored, given = (values.view(f"<i{values.dtype.itemsize}") for values in (stored, given))
        same: BoolArray = stored == given if stored.ndim == 1 else (stored == given).all(axis=1)
        valid = valid_mask(column)
        if self._nulls is not None or valid is not None:
            nulls = np.zeros(len(rows), np.bool_) if self._nulls is None else self._nulls.take(rows)
            same &= nulls == (False if valid is None else ~valid.take(positions))
        return same


class VariableColumn(ColumnVector):
    """A sequence of Arrow arrays, and the position in them of each row's value.

    Values are only added: taking many values from Arrow's own layout is faster than numpy on offsets and bytes.
    Overwritten values are dropped when they outnumber the current ones.
    """

    def __init__(self, arrow_type: pa.DataType) -> None:
        super().__init__(arrow_type)
        self._at: Int64Array = np.zeros(0, np.int64)
        self._chunks: list[pa.Array] = []
        self._starts: list[int] = []
        self._total = 0
        self._chunk_bytes = 0

    @property
    def nbytes(self) -> int:
        return self._at.nbytes + self._chunk_bytes

    def resize(self, capacity: int, count: int) -> None:
        self._at = resized(self._at, capacity, count)

    def put(self, rows: Int64Array, column: pa.Array, count: int) -> None:
        if not len(rows):
            return
        self._at[rows] = np.arange(self._total, self._total + len(rows))
        self._append(_own(column))
        if self._total > 2 * count + _GARBAGE_MIN:
            self.keep(np.arange(count), len(self._at))

    def _append(self, column: pa.Array) -> None:
        """Add a chunk, and merge it with preceding chunks that are not much longer, so that there are few."""
        while self._chunks and len(self._chunks[-1]) < 2 * len(column):
            last = self._chunks[-1]
            if last.nbytes + column.nbytes > _CHUNK_BYTES_MAX:
                break
            column = pa.concat_arrays([last, column])
            self._chunks.pop()
            self._total = self._starts.pop()
        self._starts.append(self._total)
        self._chunks.append(column)
        self._total += len(column)
        self._chunk_bytes = sum(chunk.nbytes for chunk in self._chunks)

    def take(self, rows: Int64Array, present: BoolArray | None) -> pa.Array:
        at = self._at.take(rows)
        if not self._chunks:
            return pa.nulls(len(rows), self.type)
        if len(self._chunks) == 1:
            return self._chunks[0].take(pa.array(at, mask=None if present is None else ~present))
        number = np.searchsorted(self._starts, at, side="right") - 1
        order = np.argsort(number, kind="stable")
        bounds = np.searchsorted(number[order], np.arange(len(self._chunks) + 1))
        pieces = [
            chunk.take(pa.array(at[order[first:end]] - start))
            for chunk, start, first, end in zip(
                self._chunks, self._starts, bounds[:-1], bounds[1:], strict=True
            )
            if first < end
        ]
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        together = pa.concat_arrays(pieces) if pieces else pa.nulls(0, self.type)
        return together.take(pa.array(back, mask=None if present is None else ~present))

    def keep(self, rows: Int64Array, capacity: int) -> None:
        step = max(1, int(len(rows) * _CHUNK_BYTES_MAX / max(self._chunk_bytes, 1)))
        kept = [self.take(rows[start : start + step], None) for start in range(0, len(rows), step)]
        self._chunks, self._starts, self._total, self._chunk_bytes = [], [], 0, 0
        for column in kept:
            self._append(column)
        self._at = np.zeros(capacity, np.int64)
        self._at[: len(rows)] = np.arange(len(rows))

    def equal(self, rows: Int64Array, column: pa.Array, positions: Int64Array) -> BoolArray:
        stored, given = self.take(rows, None), column.take(pa.array(positions))
        same = pc.equal(stored, given)
        if same.null_count:
            same = pc.or_(same.fill_null(False), pc.and_(stored.is_null(), given.is_null()))
        found: BoolArray = same.to_numpy(zero_copy_only=False)
        return found


def stored_column(arrow_type: pa.DataType) -> ColumnVector:
    """An empty column of ``arrow_type``."""
    dtype = storage_dtype(arrow_type)
    return VariableColumn(arrow_type) if dtype is None else FixedColumn(arrow_type, dtype)


def resized(values: Array, capacity: int, count: int) -> Array:
    """The first ``count`` of ``values``, with room for ``capacity``."""
    after = np.zeros((capacity, *values.shape[1:]), values.dtype)
    after[:count] = values[:count]
    return after


def kept_values(values: Array, rows: Int64Array, capacity: int) -> Array:
    """Those of ``values`` at ``rows``, with room for ``capacity``."""
    kept = np.zeros((capacity, *values.shape[1:]), values.dtype)
    kept[: len(rows)] = values.take(rows, axis=0)
    return kept


def _own(column: pa.Array) -> pa.Array:
    """``column`` without the rest of a larger array that it is a slice of."""
    if column.get_total_buffer_size() <= 2 * column.nbytes + _GARBAGE_MIN:
        return column
    return column.take(pa.array(np.arange(len(column))))
