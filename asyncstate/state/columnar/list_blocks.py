"""Blocks: many rows of one key in one stored value, and how the rows of a key are split into blocks.

Owns: the byte layout of blocks, and reading and building them without a loop over rows.
Invariant: the bytes of a list depend only on its own writes, not on the other keys of the same bundle.
Must not import storage, execution or operators.

Layout of a block, all numbers u32 little endian::

    [sealed chunks][sealed rows][rows here][width] [length of each row, if width is VARIABLE] [rows]

The first two are zero in a sealed chunk. A head of sealed rows without sealed chunks has only the number of the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from asyncstate.codec.value_columns import (
    LARGE_BINARY,
    BoolArray,
    ByteArray,
    Int64Array,
    binary_from,
    binary_parts,
    binary_rows,
    binary_slices,
    gather_bytes,
    join_binary,
    matrix_binary,
    matrix_rows,
    valid_mask,
)
from asyncstate.errors import CodecError

TAIL_ROWS = 64
"""Maximum rows in the head."""
TAIL_BYTES = 4096
"""Maximum bytes of rows in the head."""
CHUNK_ROWS = 1024
"""Maximum rows of a sealed chunk."""
VARIABLE = 0xFFFFFFFF
"""The width of a block with a table of row lengths."""

_HEADER_BYTES = 16
_LENGTH = np.dtype("<u4")
_LENGTH_BYTES = 4

_Headers: TypeAlias = tuple[Int64Array, Int64Array, Int64Array, Int64Array]


@dataclass(frozen=True)
class ListHeads:
    """The heads of u lists after one read: their sizes and their newest rows, not decoded.

    ``blocks`` (u) are the heads as stored. int64 arrays (u), zero where there is no list: ``chunks`` and
    ``sealed_rows`` count the sealed chunks and their rows, ``rows`` and ``width`` describe the head's own rows.
    """

    store_keys: list[bytes]
    blocks: list[bytes | None]
    chunks: Int64Array
    sealed_rows: Int64Array
    rows: Int64Array
    width: Int64Array

    @property
    def counts(self) -> Int64Array:
        """Rows of each key (u), including sealed rows and expired rows that are still stored."""
        return self.sealed_rows + self.rows

    @property
    def elsewhere(self) -> BoolArray:
        """The keys (u) whose rows another state has: only their number is stored here."""
        found: BoolArray = (self.chunks == 0) & (self.sealed_rows > 0)
        return found

    def select(self, chosen: BoolArray) -> ListHeads:
        """The heads of the ``chosen`` keys (mask, u)."""
        if bool(chosen.all()):
            return self
        indices = np.flatnonzero(chosen)
        positions = indices.tolist()
        return ListHeads(
            [self.store_keys[index] for index in positions],
            [self.blocks[index] for index in positions],
            self.chunks[indices],
            self.sealed_rows[indices],
            self.rows[indices],
            self.width[indices],
        )

    def without(self, gone: BoolArray) -> ListHeads:
        """The heads of all keys after the lists of the ``gone`` keys (mask, u) are removed."""
        kept = np.where(gone, 0, 1)
        blocks = [
            None if is_gone else block for is_gone, block in zip(gone.tolist(), self.blocks, strict=True)
        ]
        numbers = (self.chunks * kept, self.sealed_rows * kept, self.rows * kept, self.width * kept)
        return ListHeads(self.store_keys, blocks, *numbers)


def read_heads(store_keys: list[bytes], blocks: list[bytes | None], owner: str) -> ListHeads:
    """The heads of lists; CodecError naming ``owner`` if one is truncated."""
    stored = pa.array(blocks, LARGE_BINARY)
    there = valid_mask(stored)
    if there is None:
        return ListHeads(store_keys, blocks, *_headers_of(stored, owner))
    numbers = np.zeros((4, len(blocks)), np.int64)
    if there.any():
        numbers[:, there] = _headers_of(stored.drop_null(), owner)
    chunks, sealed_rows, rows, width = numbers
    return ListHeads(store_keys, blocks, chunks, sealed_rows, rows, width)


def numbers_alone(counts: Int64Array) -> list[bytes]:
    """The heads of lists of ``counts`` (u) rows each, which another state has."""
    zero = np.zeros(len(counts), np.int64)
    return matrix_rows(_header_matrix(zero, counts, zero, zero))


def empty_heads(store_keys: list[bytes]) -> ListHeads:
    """Heads of lists that have no rows."""
    zero = np.zeros(len(store_keys), np.int64)
    return ListHeads(store_keys, [None] * len(store_keys), zero, zero, zero, zero)


def chunk_keys(heads: ListHeads, first: Int64Array | None = None) -> tuple[list[bytes], Int64Array]:
    """Store keys of the sealed chunks from number ``first`` on, ascending, with the indices of their keys."""
    if not heads.chunks.any():
        return [], np.empty(0, np.int64)
    first = np.zeros(len(heads.chunks), np.int64) if first is None else first
    counts = np.maximum(heads.chunks - first, 0)
    owner, number = _pieces(counts)
    return _suffixed(heads.store_keys, owner, number + first[owner]), owner


def numbered_keys(store_keys: list[bytes], chunks: Int64Array) -> list[bytes]:
    """Store keys of all sealed chunks of lists, which have ``chunks`` (u) chunks each."""
    owner, number = _pieces(chunks)
    return _suffixed(store_keys, owner, number)


def read_rows(blocks: Sequence[bytes], owner: str) -> tuple[pa.LargeBinaryArray, Int64Array]:
    """All rows of the blocks, and the number of rows per block; CodecError if a block is inconsistent."""
    stored = pa.array(blocks, LARGE_BINARY)
    offsets, data = binary_parts(stored)
    _, _, rows, width = _headers_of(stored, owner)
    tables, ends = offsets[:-1] + _HEADER_BYTES, offsets[1:]
    variable = width == VARIABLE
    bodies = tables + np.where(variable, rows * _LENGTH_BYTES, 0)
    # Checked before anything of that size is allocated: damaged headers may request gigabytes.
    if bool((bodies + np.where(variable, 0, rows * width) > ends).any()):
        raise _damaged(owner)
    lengths = _row_lengths(data, tables, rows, width)
    row_offsets = _offsets(lengths)
    last_row = np.cumsum(rows)
    before = row_offsets[last_row - rows]
    if bool((bodies + row_offsets[last_row] - before != ends).any()):
        raise _damaged(owner)
    # The rows of a block are contiguous, and so are all rows once headers and tables are left out.
    _, joined = binary_parts(binary_slices(data, bodies, ends))
    return binary_from(row_offsets, pa.py_buffer(joined)), rows


class NewBlocks:
    """The blocks of u lists after appending ``added`` (u, each > 0) of ``rows``.

    ``heads`` (u) and ``chunks`` with their ``chunk_keys`` are to be written; ``chunk_counts`` (u) has the new number of
    chunks of each list. ``fixed``: the schema has rows of one length, so blocks whose rows have it omit the table of
    lengths.

    A *unit* is a piece of at most CHUNK_ROWS rows of a key's new tail (its old tail, then its new rows).
    """

    def __init__(self, heads: ListHeads, added: Int64Array, rows: pa.LargeBinaryArray, fixed: bool) -> None:
        self._offsets, self._data = binary_parts(rows)
        self._lengths = np.diff(self._offsets)
        old = _OldTails(heads)
        totals = heads.rows + added
        last = np.cumsum(added)
        added_bytes = self._offsets[last] - self._offsets[last - added]
        sealed = (totals > TAIL_ROWS) | (old.data_bytes + added_bytes > TAIL_BYTES)
        units = np.where(sealed, -(-totals // CHUNK_ROWS), 1)
        self.chunk_counts: Int64Array = heads.chunks + np.where(sealed, units, 0)
        owner, number = _pieces(units)
        sizes = np.minimum(totals[owner] - number * CHUNK_ROWS, CHUNK_ROWS)
        old_rows = np.where(number == 0, heads.rows[owner], 0)
        ends = np.cumsum(sizes - old_rows)
        starts = ends - (sizes - old_rows)
        width = self._widths(starts, old_rows, heads.width[owner]) if fixed else np.full(len(owner), VARIABLE)
        chunked = sealed[owner]
        of_head = np.where(chunked, 0, heads.chunks[owner]), np.where(chunked, 0, heads.sealed_rows[owner])
        table, data = self._new_parts(starts, ends, width)
        old_table, old_data = old.parts(owner, number, width)
        headers = matrix_binary(_header_matrix(*of_head, sizes, width))
        values = binary_rows(join_binary([headers, *old_table, *table, *old_data, data]))
        self.heads = values
        self.chunks: list[bytes] = []
        self.chunk_keys: list[bytes] = []
        if sealed.any():
            self.heads = self._heads_with_sealed(values, sealed, units, heads.sealed_rows + totals)
            chosen = np.flatnonzero(chunked)
            self.chunks = [values[unit] for unit in chosen.tolist()]
            number = heads.chunks[owner] + number
            self.chunk_keys = _suffixed(heads.store_keys, owner[chosen], number[chosen])

    def _widths(self, starts: Int64Array, old_rows: Int64Array, old_width: Int64Array) -> Int64Array:
        """The common length of the rows of each unit, VARIABLE if they differ (after a change of schema)."""
        alike = len(self._lengths) and self._lengths.min() == self._lengths.max()
        if alike and bool(((old_rows == 0) | (old_width == self._lengths[0])).all()):
            return np.full(len(starts), self._lengths[0])
        lowest = np.minimum.reduceat(self._lengths, starts)
        highest = np.maximum.reduceat(self._lengths, starts)
        return np.where((lowest == highest) & ((old_rows == 0) | (old_width == lowest)), lowest, VARIABLE)

    def _new_parts(
        self, starts: Int64Array, ends: Int64Array, width: Int64Array
    ) -> tuple[list[pa.LargeBinaryArray], pa.LargeBinaryArray]:
        """Tables (none if no unit has one) and rows that are added to each unit."""
        data = binary_from(self._offsets[np.append(0, ends)], pa.py_buffer(self._data))
        variable = width == VARIABLE
        if not variable.any():
            return [], data
        table = self._lengths.astype(_LENGTH).tobytes()
        return [
            binary_slices(table, starts * _LENGTH_BYTES, np.where(variable, ends, starts) * _LENGTH_BYTES)
        ], data

    def _heads_with_sealed(
        self, values: list[bytes], sealed: BoolArray, units: Int64Array, sealed_rows: Int64Array
    ) -> list[bytes]:
        zero = np.zeros(len(sealed), np.int64)
        bare = matrix_rows(_header_matrix(self.chunk_counts, sealed_rows, zero, zero))
        first = (np.cumsum(units) - units).tolist()
        return [
            head if is_sealed else values[unit]
            for head, is_sealed, unit in zip(bare, sealed.tolist(), first, strict=True)
        ]


class _OldTails:
    """The rows in the heads of u lists, as pieces of one buffer."""

    def __init__(self, heads: ListHeads) -> None:
        self._heads = heads
        self._blocks, sizes = b"", np.zeros(len(heads.blocks), np.int64)
        if heads.rows.any():  # most lists of a window are new
            blocks = [block or b"" for block in heads.blocks]
            self._blocks, sizes = b"".join(blocks), np.fromiter(map(len, blocks), np.int64, len(blocks))
        self._ends = np.cumsum(sizes)
        self._tables = self._ends - sizes + np.minimum(sizes, _HEADER_BYTES)
        self._bodies = self._tables + np.where(heads.width == VARIABLE, heads.rows * _LENGTH_BYTES, 0)
        self.data_bytes: Int64Array = self._ends - self._bodies
        """Bytes of the rows of each list (u)."""

    def parts(
        self, owner: Int64Array, number: Int64Array, width: Int64Array
    ) -> tuple[list[pa.LargeBinaryArray], list[pa.LargeBinaryArray]]:
        """Tables and rows for units of lists; only unit 0 has any. Empty if no list has rows."""
        if not self._heads.rows.any():
            return [], []
        ends = self._ends[owner]
        tables, bodies = (np.where(number == 0, at[owner], ends) for at in (self._tables, self._bodies))
        data = binary_slices(self._blocks, bodies, ends)
        if not (width == VARIABLE).any():
            return [], [data]
        table = binary_slices(self._blocks, tables, bodies)
        old_width, old_rows = self._heads.width[owner], self._heads.rows[owner]
        bare = (width == VARIABLE) & (number == 0) & (old_rows > 0) & (old_width != VARIABLE)
        if bare.any():
            table = _with_made_up_tables(table, np.flatnonzero(bare), old_rows, old_width)
        return [table], [data]


def _with_made_up_tables(
    tables: pa.LargeBinaryArray, units: Int64Array, rows: Int64Array, width: Int64Array
) -> pa.LargeBinaryArray:
    """Tables for blocks that had none, when rows of another length are added (after a change of schema)."""
    made = binary_rows(tables)
    for unit in units.tolist():
        made[unit] = int(width[unit]).to_bytes(_LENGTH_BYTES, "little") * int(rows[unit])
    return pa.array(made, LARGE_BINARY)


def _headers_of(blocks: pa.LargeBinaryArray, owner: str) -> _Headers:
    offsets, data = binary_parts(blocks)
    if bool((np.diff(offsets) < _HEADER_BYTES).any()):
        raise _damaged(owner)
    fields = gather_bytes(data, offsets[:-1], _HEADER_BYTES).view(_LENGTH).astype(np.int64)
    return fields[:, 0], fields[:, 1], fields[:, 2], fields[:, 3]


def _header_matrix(
    chunks: Int64Array, sealed_rows: Int64Array, rows: Int64Array, width: Int64Array
) -> ByteArray:
    fields = np.stack([chunks, sealed_rows, rows, width], axis=1).astype(_LENGTH)
    return fields.view(np.uint8).reshape(-1, _HEADER_BYTES)


def _row_lengths(data: ByteArray, tables: Int64Array, rows: Int64Array, width: Int64Array) -> Int64Array:
    lengths = np.repeat(width, rows)
    has_table = width == VARIABLE
    if not has_table.any():
        return lengths
    block, within = _pieces(np.where(has_table, rows, 0))
    positions = tables[block] + within * _LENGTH_BYTES
    words = np.ascontiguousarray(data[positions[:, None] + np.arange(_LENGTH_BYTES)])
    lengths[np.repeat(has_table, rows)] = words.view(_LENGTH).ravel()
    return lengths


def _pieces(counts: Int64Array) -> tuple[Int64Array, Int64Array]:
    """``counts[i]`` pieces for each i: the i of each piece, and its number within i."""
    owner = np.repeat(np.arange(len(counts)), counts)
    return owner, np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)


def _offsets(lengths: Int64Array) -> Int64Array:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _suffixed(store_keys: list[bytes], owner: Int64Array, number: Int64Array) -> list[bytes]:
    suffixes: list[bytes] = number.astype(">u4").view("V4").tolist()
    return [store_keys[key] + suffix for key, suffix in zip(owner.tolist(), suffixes, strict=True)]


def _damaged(owner: str) -> CodecError:
    return CodecError(
        f"{owner}: a stored list of rows is damaged (its lengths do not add up); "
        "restore the checkpoint from an older version"
    )
