"""Stored rows with stamps.

Owns: ``StampedCodec``, whose rows have their stamp as the first column; reading and replacing stored stamps.
Invariant: the bytes of a row are ``[stamp: 8 bytes][row without a ttl]``.
Must not import the states, storage, execution or operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from asyncstate.codec import RowCodec
from asyncstate.codec.key_fields import payload_matrix, payload_storage
from asyncstate.codec.value_columns import (
    BoolArray,
    ByteArray,
    ByteRows,
    Int64Array,
    binary_from,
    binary_parts,
    gather_bytes,
    without_prefix,
)
from asyncstate.errors import CodecError
from asyncstate.state.expiring.expiry import STAMP_BYTES

_STAMP: Final = pa.field("stamp", pa.int64(), nullable=False)


class StampedCodec(RowCodec):
    """Rows of ``rows`` after their stamps: int64 microseconds, the first column here.

    Only for many rows at once: it has no ``encode_one`` and ``decode_one``. CodecError for a stored row that is too
    short for a stamp.
    """

    __slots__ = ("_rows",)

    def __init__(self, rows: RowCodec) -> None:
        self._rows = rows
        self.owner = rows.owner
        self.schema = pa.schema([_STAMP, *rows.schema])

    @property
    def width(self) -> int | None:
        return None if self._rows.width is None else STAMP_BYTES + self._rows.width

    def checked(self, columns: Sequence[pa.Array]) -> list[pa.Array]:
        return [columns[0], *self._rows.checked(columns[1:])]

    def _encoded(self, columns: Sequence[pa.Array], prefix: ByteArray | None, num_rows: int = 0) -> ByteRows:
        assert prefix is None, "the prefix of a row is its stamp"
        return self._rows._encoded(columns[1:], payload_matrix(columns[0].to_numpy()), len(columns[0]))

    def _decode_present(self, rows: pa.LargeBinaryArray) -> list[pa.Array]:
        stamps = pa.array(stamps_of(rows, self.owner))
        return [stamps, *self._rows._decode_present(without_prefix(rows, STAMP_BYTES))]


def stamps_of(rows: pa.LargeBinaryArray, owner: str) -> Int64Array:
    """The stamps of stored rows (n, no nulls); CodecError naming ``owner`` if one is shorter than a stamp."""
    offsets, data = binary_parts(rows)
    if bool((np.diff(offsets) < STAMP_BYTES).any()):
        raise CodecError(
            f"{owner}: a stored row has no time stamp; restore the checkpoint from an older version"
        )
    return payload_storage(gather_bytes(data, offsets[:-1], STAMP_BYTES), np.dtype(np.int64))


def restamped(rows: pa.LargeBinaryArray, chosen: BoolArray, stamps: Int64Array) -> pa.LargeBinaryArray:
    """Stored rows (n, no nulls), where the k ``chosen`` ones (mask, n) have the new ``stamps`` (k)."""
    offsets, read_only = binary_parts(rows)
    data = read_only.copy()
    data[offsets[:-1][chosen][:, None] + np.arange(STAMP_BYTES)] = payload_matrix(stamps)
    return binary_from(offsets, pa.py_buffer(data))
