"""Stamps in the blocks of lists.

Owns: how stamps are changed in place.
Invariant: all but the stamps of a block stays as it is.
Must not import the states, storage, execution or operators.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import pyarrow as pa

from asyncstate.codec.columns import BoolArray, ByteArray, Int64Array, binary_from, binary_parts
from asyncstate.codec.key_fields import payload_matrix
from asyncstate.state.expiring.expiry import STAMP_BYTES


class Blocks(Protocol):
    """n blocks and their m rows, as ``read_rows`` gave them."""

    @property
    def blocks(self) -> list[bytes]: ...
    @property
    def rows(self) -> pa.LargeBinaryArray: ...
    @property
    def per_block(self) -> Int64Array: ...


def restamped_blocks(stored: Blocks, due: BoolArray, stamps: Int64Array) -> tuple[Int64Array, list[bytes]]:
    """Where rows are ``due`` (m) they get the one of ``stamps`` (m) that is theirs: the indices of the blocks that
    change, and these blocks."""
    data = np.frombuffer(b"".join(stored.blocks), np.uint8).copy()
    ends = np.cumsum(np.fromiter(map(len, stored.blocks), np.int64, len(stored.blocks)))
    offsets, _ = binary_parts(stored.rows)
    # Rows stand at the end of their block, one behind the other.
    shift = ends - offsets[np.cumsum(stored.per_block)]
    starts = (offsets[:-1] + np.repeat(shift, stored.per_block))[due]
    data[starts[:, None] + np.arange(STAMP_BYTES)] = payload_matrix(stamps[due])
    changed = np.unique(np.repeat(np.arange(len(ends)), stored.per_block)[due])
    whole = data.tobytes()
    before = np.append(0, ends)
    return changed, [whole[before[index] : before[index + 1]] for index in changed.tolist()]


def restamped_rows(rows: pa.LargeBinaryArray, chosen: BoolArray, prefix: ByteArray) -> pa.LargeBinaryArray:
    """``rows`` (n), those that are ``chosen`` (n) with the stamps in ``prefix`` (k, 8)."""
    offsets, read_only = binary_parts(rows)
    data = read_only.copy()
    data[offsets[:-1][chosen][:, None] + np.arange(STAMP_BYTES)] = prefix
    return binary_from(offsets, pa.py_buffer(data))
