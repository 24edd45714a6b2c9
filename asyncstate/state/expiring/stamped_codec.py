"""Rows with their stamp as a first column.

Owns: ``StampedCodec``.
Invariant: the bytes are those of ``expiry``: ``[stamp: 8 bytes][encoded row]``.
Must not import the states, storage, execution or operators.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from asyncstate.codec import RowCodec
from asyncstate.codec.columns import LARGE_BINARY, BoolArray, ByteArray, spread, valid_mask
from asyncstate.codec.key_fields import payload_matrix
from asyncstate.state.expiring.column_expiry import ColumnExpiry, without_stamps
from asyncstate.state.expiring.expiry import STAMP_BYTES

_STAMP = pa.field("stamp", pa.int64(), nullable=False)


class StampedCodec(RowCodec):
    """The rows of ``rows`` behind the stamps that ``expiry`` reads, int64 microseconds; both are columns here.

    For many rows at once only: it has no ``encode_one`` and ``decode_one``.
    """

    __slots__ = ("_expiry", "_rows")

    def __init__(self, rows: RowCodec, expiry: ColumnExpiry) -> None:
        self._rows = rows
        self._expiry = expiry
        self.schema = pa.schema([_STAMP, *rows.schema])

    @property
    def width(self) -> int | None:
        """See ``RowCodec``."""
        return None if self._rows.width is None else STAMP_BYTES + self._rows.width

    def encode(
        self, columns: Sequence[pa.Array], prefix: ByteArray | None = None, num_rows: int = 0
    ) -> list[bytes]:
        """See ``RowCodec``."""
        assert prefix is None, "the stamp is the first thing"
        return self._rows.encode(columns[1:], payload_matrix(columns[0].to_numpy()), len(columns[0]))

    def checked(self, columns: Sequence[pa.Array]) -> list[pa.Array]:
        """See ``RowCodec``."""
        return [columns[0], *self._rows.checked(columns[1:])]

    def decode(self, values: Sequence[bytes | None]) -> tuple[list[pa.Array], BoolArray]:
        """See ``RowCodec``; ``CodecError``, too, for a row without a stamp."""
        rows = pa.array(values, LARGE_BINARY)
        present = valid_mask(rows)
        rows = rows if present is None else rows.drop_null()
        columns = [pa.array(self._expiry.read(rows)), *self._rows.decode(without_stamps(rows))[0]]
        if present is None:
            return columns, np.ones(len(rows), np.bool_)
        return spread(columns, present), present
