"""Columns of rows to bytes and back: the bundle grain of the row codec.

Owns: the vectorised reading and writing of one layout; a loop over rows only for nested types.
Must not import anything of the project except ``asyncstate.errors`` and other modules of ``codec``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from asyncstate.codec.arrow_types import is_nested_type
from asyncstate.codec.nested import nested_from_binary, nested_to_binary
from asyncstate.codec.row_layout import RowLayout
from asyncstate.codec.scalars import CONVERSION_ERRORS
from asyncstate.codec.value_columns import (
    EMPTY,
    Array,
    BoolArray,
    ByteArray,
    ByteRows,
    Int64Array,
    binary_from,
    binary_parts,
    binary_rows,
    from_binary,
    from_storage,
    gather_bytes,
    join_binary,
    matrix_binary,
    to_binary,
    to_storage,
    valid_mask,
)
from asyncstate.errors import CodecError

_MAX_VARIABLE_BYTES = (1 << 32) - 1


def encode_rows(
    layout: RowLayout, columns: Sequence[pa.Array], num_rows: int, prefix: ByteArray | None = None
) -> ByteRows:
    """The bytes of each row, after those of ``prefix`` (num_rows, width)."""
    header: Array = np.zeros(num_rows, layout.dtype)
    header["version"] = layout.version
    for index, column in enumerate(columns):
        valid = valid_mask(column)
        if valid is not None:
            if not layout.schema.field(index).nullable:
                raise layout.missing(index)
            header["nulls"][:, index // 8] |= (~valid).astype(np.uint8) << np.uint8(index % 8)
    for index in layout.fixed:
        header[f"f{index}"] = to_storage(columns[index])
    blobs = [_blobs(columns[index]) for index in layout.variable]
    for at, column in enumerate(blobs):
        lengths = np.diff(binary_parts(column)[0])
        if bool((lengths > _MAX_VARIABLE_BYTES).any()):
            name = layout.schema.field(layout.variable[at]).name
            raise CodecError(f"{layout.owner}: a value of field {name!r} is larger than 4 GiB; split it")
        header["lengths"][:, at] = lengths
    matrix = header.view(np.uint8).reshape(num_rows, layout.dtype.itemsize)
    if prefix is not None:
        matrix = np.concatenate([prefix, matrix], axis=1)
    return join_binary([matrix_binary(matrix), *blobs]) if blobs else matrix


def _blobs(column: pa.Array) -> pa.LargeBinaryArray:
    """Bytes of a variable field, empty for null."""
    blobs = nested_to_binary(column) if is_nested_type(column.type) else to_binary(column)
    return blobs.fill_null(EMPTY) if blobs.null_count else blobs


def decode_rows(layout: RowLayout, rows: pa.LargeBinaryArray) -> list[pa.Array]:
    """The columns of rows of this layout; ``rows`` has no nulls and at least one row."""
    offsets, data = binary_parts(rows)
    header = _read_header(layout, offsets, data)
    nulls = header["nulls"]
    any_null = bool(nulls.any())
    pieces = _variable_pieces(layout, header, offsets, data) if layout.variable else None
    columns = []
    for index, field in enumerate(layout.schema):
        null = (nulls[:, index // 8] >> np.uint8(index % 8)) & 1 == 1 if any_null else None
        valid = None if null is None or not bool(null.any()) else ~null
        if index in layout.fixed:
            columns.append(from_storage(header[f"f{index}"], field.type, valid))
        else:
            columns.append(_variable_column(layout, index, pieces, valid))
    return columns


def _read_header(layout: RowLayout, offsets: Int64Array, data: ByteArray) -> Array:
    size = layout.dtype.itemsize
    lengths = np.diff(offsets)
    wrong = np.flatnonzero(lengths < size if layout.variable else lengths != size)
    if len(wrong):
        raise layout.corrupt(f"{lengths[wrong[0]]} bytes where {size} are expected")
    if layout.variable:
        return gather_bytes(data, offsets[:-1], size).view(layout.dtype).reshape(-1)
    # Rows of one length are contiguous already.
    return data[offsets[0] : offsets[-1]].view(layout.dtype)


def _variable_pieces(
    layout: RowLayout, header: Array, offsets: Int64Array, data: ByteArray
) -> pa.LargeBinaryArray:
    """All variable bytes as one binary column: for each row its header (to be skipped), then its k fields."""
    lengths = header["lengths"].astype(np.int64)
    starts = offsets[:-1] + layout.dtype.itemsize
    ends = starts[:, None] + np.cumsum(lengths, axis=1)
    wrong = np.flatnonzero(ends[:, -1] != offsets[1:])
    if len(wrong):
        row = int(wrong[0])
        found, expected = offsets[row + 1] - offsets[row], ends[row, -1] - offsets[row]
        raise layout.corrupt(f"{found} bytes where {expected} are expected")
    bounds = np.empty((len(starts), lengths.shape[1] + 1), np.int64)
    bounds[:, 0] = offsets[:-1]
    bounds[:, 1] = starts
    bounds[:, 2:] = ends[:, :-1]
    return binary_from(np.append(bounds.ravel(), offsets[-1]), pa.py_buffer(data))


def _variable_column(
    layout: RowLayout, index: int, pieces: pa.LargeBinaryArray, valid: BoolArray | None
) -> pa.Array:
    step = len(layout.variable) + 1
    wanted = np.arange(1 + layout.variable.index(index), len(pieces), step)
    blobs = pieces.take(pa.array(wanted, mask=None if valid is None else ~valid))
    field = layout.schema.field(index)
    try:
        if is_nested_type(field.type):
            return nested_from_binary(binary_rows(blobs), field.type)
        return from_binary(blobs, field.type)
    except (*CONVERSION_ERRORS, pa.ArrowException) as error:
        raise layout.corrupt(f"field {field.name!r}: {error}") from None
