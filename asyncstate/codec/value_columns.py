"""Conversion between Arrow columns and numpy arrays, without a loop over rows.

Owns: the *storage form* of every fixed-width type (little endian numpy, nulls as zeros, decimal128 as two int64 words
low/high) and the binary form of variable-width types (always ``large_binary``, so that a batch may exceed 2 GiB).
Must not import anything of the project except ``asyncstate.errors`` and ``codec.arrow_types``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from asyncstate.errors import CodecError

Array = npt.NDArray[Any]
BoolArray = npt.NDArray[np.bool_]
ByteArray = npt.NDArray[np.uint8]
Int64Array = npt.NDArray[np.int64]
ByteRows: TypeAlias = ByteArray | pa.LargeBinaryArray
"""Byte strings (n): the rows of a matrix (n, width) if all have one width, or else a binary column."""

LARGE_BINARY = pa.large_binary()
EMPTY = pa.scalar(b"", LARGE_BINARY)

_DTYPES: dict[pa.DataType, np.dtype[Any]] = {
    pa.bool_(): np.dtype(np.bool_),
    pa.int8(): np.dtype("<i1"),
    pa.int16(): np.dtype("<i2"),
    pa.int32(): np.dtype("<i4"),
    pa.int64(): np.dtype("<i8"),
    pa.float32(): np.dtype("<f4"),
    pa.float64(): np.dtype("<f8"),
    pa.date32(): np.dtype("<i4"),
}
DECIMAL_DTYPE: np.dtype[Any] = np.dtype(("<i8", (2,)))


def storage_dtype(arrow_type: pa.DataType) -> np.dtype[Any] | None:
    """The numpy type of one stored value; None for variable-width and nested types."""
    if pa.types.is_timestamp(arrow_type):
        return np.dtype("<i8")
    if pa.types.is_decimal128(arrow_type):
        return DECIMAL_DTYPE
    return _DTYPES.get(arrow_type)


def plain_column(
    column: pa.Array | pa.ChunkedArray, arrow_type: pa.DataType, name: str, owner: str
) -> pa.Array:
    """The column as one array; ``CodecError`` unless it has exactly the declared type."""
    if column.type != arrow_type:
        raise CodecError(
            f"{owner}: column {name!r} has type {column.type} but {arrow_type} is declared; cast the column"
        )
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
        if isinstance(column, pa.ChunkedArray):
            raise CodecError(
                f"{owner}: column {name!r} is larger than one Arrow array can be; use smaller batches"
            )
    return column


def plain_columns(
    columns: Sequence[pa.Array], types: Sequence[pa.DataType], names: Sequence[str], owner: str
) -> list[pa.Array]:
    """All columns through ``plain_column``, checked for their number and for equal lengths."""
    if len(columns) != len(types):
        raise CodecError(f"{owner}: {len(columns)} columns given, {len(types)} declared ({', '.join(names)})")
    plain = [plain_column(*item, owner) for item in zip(columns, types, names, strict=True)]
    if len({len(column) for column in plain}) > 1:
        lengths = dict(zip(names, map(len, plain), strict=True))
        raise CodecError(f"{owner}: the columns have different lengths {lengths}; give columns of one batch")
    return plain


def valid_mask(column: pa.Array) -> BoolArray | None:
    """True where a row is not null; None if no row is null."""
    if column.null_count == 0:
        return None
    mask: BoolArray = pc.is_valid(column).to_numpy(zero_copy_only=False)
    return mask


def spread(columns: Sequence[pa.Array], present: BoolArray) -> list[pa.Array]:
    """Spread ``columns``, which have only the ``present`` rows (mask, n), to columns of n rows; the others are null."""
    indices = pa.array(np.cumsum(present) - 1, mask=~present)
    return [column.take(indices) for column in columns]


def to_storage(column: pa.Array) -> Array:
    """Values of a fixed-width column, (n,) or (n, 2) for decimal128; nulls are zero; may be read-only."""
    valid = valid_mask(column)
    values: Array
    if pa.types.is_boolean(column.type):
        values = (column if valid is None else column.fill_null(False)).to_numpy(zero_copy_only=False)
        return values
    dtype = storage_dtype(column.type)
    assert dtype is not None, column.type
    if len(column) == 0:
        return np.empty(0, dtype)
    words = 2 if dtype == DECIMAL_DTYPE else 1
    first = column.offset * words
    buffer = column.buffers()[1]
    values = np.frombuffer(buffer, dtype.base, len(column) * words, first * dtype.base.itemsize)
    values = values.reshape(-1, 2) if words == 2 else values
    if valid is not None:
        values = values.copy()
        values[~valid] = 0
    return values


def from_storage(values: Array, arrow_type: pa.DataType, valid: BoolArray | None) -> pa.Array:
    """The Arrow column of storage values; rows that are not ``valid`` become null."""
    if pa.types.is_boolean(arrow_type):
        return pa.array(values.astype(np.bool_, copy=False), mask=None if valid is None else ~valid)
    data = pa.py_buffer(np.ascontiguousarray(values))
    bitmap = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(arrow_type, len(values), [bitmap, data])


def to_binary(column: pa.Array) -> pa.LargeBinaryArray:
    """The bytes of a string or binary column; nulls stay null."""
    return column.cast(LARGE_BINARY)


def from_binary(column: pa.LargeBinaryArray, arrow_type: pa.DataType) -> pa.Array:
    """The string or binary column of bytes; ``pa.ArrowInvalid`` if a string is not UTF-8."""
    # Strings go through the checked cast: stored bytes are not trusted to be UTF-8.
    return column.cast(arrow_type) if arrow_type != LARGE_BINARY else column


def matrix_rows(matrix: ByteArray) -> list[bytes]:
    """The rows of an (n, width) matrix as bytes objects."""
    width = matrix.shape[1]
    if width == 0:
        return [b""] * len(matrix)
    rows: list[bytes] = np.ascontiguousarray(matrix).view(f"V{width}").ravel().tolist()
    return rows


def matrix_binary(matrix: ByteArray) -> pa.LargeBinaryArray:
    """The rows of an (n, width) matrix as a binary column."""
    rows, width = matrix.shape
    offsets = np.arange(rows + 1, dtype=np.int64) * width
    return binary_from(offsets, pa.py_buffer(np.ascontiguousarray(matrix)))


def binary_from(offsets: Int64Array, data: pa.Buffer | None) -> pa.LargeBinaryArray:
    """A binary column over ``data`` from n + 1 ascending offsets."""
    return pa.Array.from_buffers(LARGE_BINARY, len(offsets) - 1, [None, pa.py_buffer(offsets), data])


def binary_slices(
    data: bytes | pa.Buffer | ByteArray, starts: Int64Array, ends: Int64Array
) -> pa.LargeBinaryArray:
    """Slices of ``data`` as a binary column; each starts where the previous one ends, or later."""
    # Gaps and slices alternate, so they form one binary column.
    bounds = np.zeros(2 * len(starts) + 1, np.int64)
    bounds[1::2] = starts
    bounds[2::2] = ends
    pieces = binary_from(bounds, pa.py_buffer(data))
    return pieces.take(pa.array(np.arange(1, len(bounds), 2, dtype=np.int64)))


def without_prefix(rows: pa.LargeBinaryArray, width: int) -> pa.LargeBinaryArray:
    """Binary values (n, no nulls, none shorter than ``width``) without their first ``width`` bytes."""
    offsets, data = binary_parts(rows)
    return binary_slices(pa.py_buffer(data), offsets[:-1] + width, offsets[1:])


def binary_rows(column: pa.LargeBinaryArray) -> list[Any]:
    """The bytes objects of a binary column, None for null."""
    rows: list[Any] = column.to_numpy(zero_copy_only=False).tolist()
    return rows


def as_binary(rows: ByteRows) -> pa.LargeBinaryArray:
    """Byte strings as a binary column."""
    return matrix_binary(rows) if isinstance(rows, np.ndarray) else rows


def as_rows(rows: ByteRows) -> list[bytes]:
    """Byte strings as bytes objects."""
    return matrix_rows(rows) if isinstance(rows, np.ndarray) else binary_rows(rows)


def binary_parts(column: pa.LargeBinaryArray) -> tuple[Int64Array, ByteArray]:
    """Offsets (n + 1, absolute) and the data buffer they point into, both zero-copy."""
    _, offset_buffer, data_buffer = column.buffers()
    if offset_buffer is None or len(column) == 0:
        return np.zeros(1, np.int64), np.empty(0, np.uint8)
    offsets = np.frombuffer(offset_buffer, np.int64, len(column) + 1, column.offset * 8)
    data = np.empty(0, np.uint8) if data_buffer is None else np.frombuffer(data_buffer, np.uint8)
    return offsets, data


def join_binary(parts: Sequence[Any]) -> pa.LargeBinaryArray:
    """Row-wise concatenation of binary columns and scalars; a null part makes the row null."""
    return pc.binary_join_element_wise(*parts, EMPTY)


def contains_zero(column: pa.LargeBinaryArray) -> bool:
    """True if a zero byte occurs in the data of the rows."""
    offsets, data = binary_parts(column)
    return bool((data[offsets[0] : offsets[-1]] == 0).any())


def gather_bytes(data: ByteArray, starts: Int64Array, width: int) -> ByteArray:
    """An (n, width) matrix of the ``width`` bytes at each start; the caller has checked the bounds."""
    if width == 0 or len(starts) == 0:
        return np.empty((len(starts), width), np.uint8)
    # Overlapping windows of the buffer as void items: one index and one memcpy per row.
    windows: Array = np.ndarray((len(data) - width + 1,), f"V{width}", data.data, strides=(1,))
    return windows[starts].view(np.uint8).reshape(-1, width)
