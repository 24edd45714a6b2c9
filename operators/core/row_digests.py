"""Digests of rows: 128 bits that are equal for equal rows, in every process and version.

Owns: ``row_digests``, and ``has_digest``, the types that can be part of one.
Invariant: rows that are equal in ``row_ids`` have equal digests, also after a column became wider or a nullable column
was added, which stored rows have as null.
Pure functions over numpy and Arrow; must not know of keys, state or operators.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from asyncstate.codec.arrow_types import is_bytes_type, is_key_type, is_string_type
from asyncstate.codec.hashing import canonical_floats
from asyncstate.codec.value_columns import (
    LARGE_BINARY,
    binary_rows,
    join_binary,
    matrix_binary,
    to_storage,
    valid_mask,
)

from .arrays import Int64Array

_BYTES: Final = 16


def has_digest(kind: pa.DataType) -> bool:
    """Whether columns of this type can be part of a digest."""
    return is_key_type(kind)


def row_digests(columns: Sequence[pa.Array], names: Sequence[str]) -> Int64Array:
    """The digest of each of n rows with columns of these names, in two halves (n, 2)."""
    parts = [_named(_canonical(column), name) for column, name in zip(columns, names, strict=True)]
    if not parts or not len(parts[0]):
        return np.zeros((len(columns[0]) if columns else 0, 2), np.int64)
    rows = binary_rows(join_binary(parts))
    digests = b"".join(blake2b(row, digest_size=_BYTES).digest() for row in rows)
    return np.frombuffer(digests, "<i8").reshape(-1, 2)


def _named(values: pa.LargeBinaryArray, name: str) -> pa.LargeBinaryArray:
    """Each value after the name of its column and its length; nothing for null."""
    tag = pa.scalar(zlib.crc32(name.encode()).to_bytes(4, "little"), LARGE_BINARY)
    lengths = _of_longs(pc.binary_length(values).fill_null(0).to_numpy())
    return join_binary([tag, lengths, values]).fill_null(b"")


def _canonical(column: pa.Array) -> pa.LargeBinaryArray:
    """The bytes of each value, equal for equal ones of all widths of a type."""
    if is_string_type(column.type) or is_bytes_type(column.type):
        return column.cast(LARGE_BINARY)
    values = to_storage(column)  # of decimals, whose scale never changes, two words each
    if values.dtype.kind == "f":
        values = canonical_floats(values.astype(np.float64))
    found = _of_longs(values)
    valid = valid_mask(column)
    return found if valid is None else pc.if_else(pa.array(valid), found, pa.scalar(None, LARGE_BINARY))


def _of_longs(values: npt.NDArray[Any]) -> pa.LargeBinaryArray:
    """The bytes of each number (n), or of each one's words (n, 2)."""
    wide = np.ascontiguousarray(values if values.dtype.itemsize == 8 else values.astype("<i8"))
    return matrix_binary(wide.view(np.uint8).reshape(len(values), -1))
