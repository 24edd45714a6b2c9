"""Whole columns of keys to bytes and back.

Owns: the vectorised form of the key codec over several columns. Keys of fixed width without nulls are the rows of one
byte matrix; all others are one binary column joined from the encoded fields.
Must not import anything of the project except ``asyncstate.errors`` and other modules of ``codec``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from asyncstate.codec.key_fields import (
    TERMINATOR,
    KeyField,
    corrupt_key,
    encode_fixed,
    encode_variable,
    payload_matrix,
    payload_storage,
    unescape,
)
from asyncstate.codec.value_columns import (
    LARGE_BINARY,
    BoolArray,
    ByteArray,
    ByteRows,
    Int64Array,
    as_binary,
    binary_parts,
    binary_slices,
    from_binary,
    from_storage,
    gather_bytes,
    join_binary,
    storage_dtype,
    to_storage,
    valid_mask,
)
from asyncstate.errors import CodecError

StoredKeys: TypeAlias = Sequence[bytes] | pa.LargeBinaryArray


def encode_columns(fields: Sequence[KeyField], columns: Sequence[pa.Array], num_rows: int) -> ByteRows:
    """The keys of the rows: an (n, width) byte matrix if all have one width, else a binary column."""
    if all(field.width is not None for field in fields) and not any(column.null_count for column in columns):
        blocks: list[ByteArray] = []
        marks = np.ones((num_rows, 1), np.uint8)
        for column in columns:
            blocks += (marks, payload_matrix(to_storage(column)))
        return np.concatenate(blocks, axis=1) if blocks else np.empty((num_rows, 0), np.uint8)
    parts = [
        encode_variable(column)
        if field.width is None
        else encode_fixed(payload_matrix(to_storage(column)), valid_mask(column))
        for field, column in zip(fields, columns, strict=True)
    ]
    return parts[0] if len(parts) == 1 else join_binary(parts)


def joined_keys(first: ByteRows, second: ByteRows) -> ByteRows:
    """Each key (or prefix) of ``first`` followed by that of the same row of ``second``."""
    if isinstance(first, np.ndarray) and isinstance(second, np.ndarray):
        return np.concatenate([first, second], axis=1)
    return join_binary([as_binary(first), as_binary(second)])


def decode_columns(
    fields: Sequence[KeyField], keys: StoredKeys, skip: int | Int64Array
) -> tuple[list[pa.Array], Int64Array, Int64Array]:
    """Columns of the keys that start at byte ``skip`` of each row (one number, or one per row).

    Returns the columns, the offset after each key inside its row, and the rows' lengths.
    """
    rows = keys if isinstance(keys, pa.LargeBinaryArray) else pa.array(keys, LARGE_BINARY)
    if rows.null_count:
        raise CodecError("key: None was given as a stored key; leave missing keys out")
    offsets, data = binary_parts(rows)
    cursor = _KeyCursor(data, offsets[:-1] + skip, offsets[1:])
    columns = [cursor.read(field) for field in fields]
    return columns, cursor.positions - offsets[:-1], np.diff(offsets)


class _KeyCursor:
    """Reads one field of all rows at a time; ``positions`` are absolute offsets into ``data``."""

    __slots__ = ("_data", "_ends", "_terminators", "positions")

    def __init__(self, data: ByteArray, positions: Int64Array, ends: Int64Array) -> None:
        self._data = data
        self._ends = ends
        self._terminators: Int64Array | None = None
        self.positions = positions

    def read(self, field: KeyField) -> pa.Array:
        try:
            valid = self._read_marks()
            if field.width is None:
                return self._read_variable(field, valid)
            return self._read_fixed(field, field.width, valid)
        except (ValueError, pa.ArrowInvalid) as error:
            raise corrupt_key(field.name, field.arrow_type, error) from None

    def _read_marks(self) -> BoolArray | None:
        """Skip the null/value byte of each row; returns the mask of values, None if all are values."""
        if bool((self.positions >= self._ends).any()) or bool((self.positions < 0).any()):
            raise ValueError("the bytes end too early")
        marks = self._data[self.positions]
        if bool((marks > 1).any()):
            raise ValueError("neither a null nor a value starts where one should")
        self.positions = self.positions + 1
        return None if bool(marks.all()) else marks == 1

    def _advance(self, ends: Int64Array, valid: BoolArray | None) -> None:
        ends = ends if valid is None else np.where(valid, ends, self.positions)
        if bool((ends > self._ends).any()):
            raise ValueError("the bytes end too early")
        self.positions = ends

    def _read_fixed(self, field: KeyField, width: int, valid: BoolArray | None) -> pa.Array:
        starts = self.positions
        self._advance(starts + width, valid)
        dtype = storage_dtype(field.arrow_type)
        assert dtype is not None
        if valid is None:
            payloads = gather_bytes(self._data, starts, width)
        else:
            payloads = np.zeros((len(starts), width), np.uint8)
            payloads[valid] = gather_bytes(self._data, starts[valid], width)
        return from_storage(payload_storage(payloads, dtype), field.arrow_type, valid)

    def _read_variable(self, field: KeyField, valid: BoolArray | None) -> pa.Array:
        starts = self.positions
        terminators = self._terminator_positions()
        found = np.searchsorted(terminators, starts)
        missing = found == len(terminators)
        if bool((missing if valid is None else missing & valid).any()):
            raise ValueError("the terminator is missing")
        ends = np.append(terminators, 0)[found]
        self._advance(ends + len(TERMINATOR), valid)
        ends = ends if valid is None else np.where(valid, ends, starts)
        column = from_binary(unescape(binary_slices(self._data, starts, ends)), field.arrow_type)
        if valid is None:
            return column
        return column.take(pa.array(np.arange(len(column), dtype=np.int64), mask=~valid))

    def _terminator_positions(self) -> Int64Array:
        if self._terminators is None:
            data = self._data
            self._terminators = np.flatnonzero((data[:-1] == 0) & (data[1:] == 1))
        return self._terminators
