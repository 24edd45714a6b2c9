"""Blocks: many rows of one key in one stored value, and how the rows of a key are cut into blocks.

Owns: the byte layout of blocks, their vectorised reading, and the building of new ones.
Invariant: the bytes of a list depend on how it was written alone, not on the other keys of the same bundle.
Must not import storage, execution or operators.

Layout of a block, all numbers u32 little endian::

    [sealed chunks][sealed rows][rows here][width] [length of each row, if width is VARIABLE] [rows]

The first two are zero in a sealed chunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from asyncstate.errors import CodecError

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

TAIL_ROWS = 64
"""Most rows that stay in the head."""
TAIL_BYTES = 4096
"""Most bytes of rows that stay in the head."""
CHUNK_ROWS = 1024
"""Most rows of a sealed chunk."""
VARIABLE = 0xFFFFFFFF
"""The width of a block with a table of row lengths."""

_HEADER_BYTES = 16
_LENGTH = np.dtype("<u4")
_LENGTH_BYTES = 4
_NO_BLOCK = bytes(_HEADER_BYTES)


@dataclass(frozen=True)
class ListHeads:
    """What is known of u lists after one read: their sizes and their newest rows, undecoded.

    ``blocks`` (u) are the heads as stored. int64 arrays (u), zero where there is no list: ``chunks`` and
    ``sealed_rows`` count the sealed chunks and their rows, ``rows`` and ``width`` are of the head's own rows.
    """

    store_keys: list[bytes]
    blocks: list[bytes | None]
    chunks: Int64Array
    sealed_rows: Int64Array
    rows: Int64Array
    width: Int64Array

    @property
    def counts(self) -> Int64Array:
        """Rows of each key (u), sealed ones included."""
        return self.sealed_rows + self.rows

    @property
    def tail_bytes(self) -> Int64Array:
        """Bytes of the head's own rows (u), without header and table."""
        sizes = np.fromiter((len(block) if block else 0 for block in self.blocks), np.int64, len(self.blocks))
        tables = np.where(self.width == VARIABLE, self.rows * _LENGTH_BYTES, 0)
        return np.where(sizes > 0, sizes - _HEADER_BYTES - tables, 0)

    def select(self, chosen: BoolArray) -> ListHeads:
        """The heads of some keys: a mask of u."""
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


def read_heads(store_keys: list[bytes], blocks: list[bytes | None], owner: str) -> ListHeads:
    """The heads of lists; CodecError naming ``owner`` if one is cut short."""
    fields = _headers([_NO_BLOCK if block is None else block for block in blocks], owner)
    return ListHeads(store_keys, blocks, *fields)


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


def read_rows(blocks: Sequence[bytes], owner: str) -> tuple[pa.LargeBinaryArray, Int64Array]:
    """All rows of the blocks, and the number of rows a block; CodecError if a block does not add up."""
    data = b"".join(blocks)
    sizes = np.fromiter(map(len, blocks), np.int64, len(blocks))
    ends = np.cumsum(sizes)
    tables = ends - sizes + _HEADER_BYTES
    _, _, rows, width = _headers(blocks, owner)
    variable = width == VARIABLE
    bodies = tables + np.where(variable, rows * _LENGTH_BYTES, 0)
    # Checked before anything of that size is made: damaged headers may ask for gigabytes.
    if bool((bodies + np.where(variable, 0, rows * width) > ends).any()):
        raise _damaged(owner)
    lengths = _row_lengths(np.frombuffer(data, np.uint8), tables, rows, width)
    offsets = _offsets(lengths)
    last_row = np.cumsum(rows)
    before = offsets[last_row - rows]
    if bool((bodies + offsets[last_row] - before != ends).any()):
        raise _damaged(owner)
    starts = offsets[:-1] + np.repeat(bodies - before, rows)
    return _slices(data, starts, starts + lengths), rows


class NewBlocks:
    """The blocks of u lists that get ``added`` (u, each > 0) more ``rows``.

    ``heads`` (u) and ``chunks`` with their ``chunk_keys`` are to be written; ``chunk_counts`` (u) has the
    number of chunks of each list from now on. ``fixed``: the schema gives rows of one length, so the table of
    lengths is left out of blocks where that holds.

    A *unit* is a piece of at most CHUNK_ROWS rows of a key's new tail (its old tail, then its new rows).
    """

    def __init__(self, heads: ListHeads, added: Int64Array, rows: list[bytes], fixed: bool) -> None:
        self._old = heads
        self._data = b"".join(rows)
        self._lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        self._offsets = _offsets(self._lengths)
        totals = heads.rows + added
        sealed = (totals > TAIL_ROWS) | (heads.tail_bytes + self._added_bytes(added) > TAIL_BYTES)
        units = np.where(sealed, -(-totals // CHUNK_ROWS), 1)
        self.chunk_counts: Int64Array = heads.chunks + np.where(sealed, units, 0)
        owner, number = _pieces(units)
        sizes = np.minimum(totals[owner] - number * CHUNK_ROWS, CHUNK_ROWS)
        old_rows = np.where(number == 0, heads.rows[owner], 0)
        ends = np.cumsum(sizes - old_rows)
        starts = ends - (sizes - old_rows)
        width = self._widths(starts, old_rows, heads.width[owner]) if fixed else np.full(len(owner), VARIABLE)
        bodies = self._bodies(owner, old_rows, starts, ends, width)
        chunked = sealed[owner]
        of_head = np.where(chunked, 0, heads.chunks[owner]), np.where(chunked, 0, heads.sealed_rows[owner])
        headers = _header_bytes(*of_head, sizes, width)
        values = [header + body for header, body in zip(headers, bodies, strict=True)]
        self.heads = values
        self.chunks: list[bytes] = []
        self.chunk_keys: list[bytes] = []
        if sealed.any():
            self.heads = self._heads_with_sealed(values, sealed, units, heads.sealed_rows + totals)
            chosen = np.flatnonzero(chunked)
            self.chunks = [values[unit] for unit in chosen.tolist()]
            number = heads.chunks[owner] + number
            self.chunk_keys = _suffixed(heads.store_keys, owner[chosen], number[chosen])

    def _added_bytes(self, added: Int64Array) -> Int64Array:
        ends = np.cumsum(added)
        sizes: Int64Array = self._offsets[ends] - self._offsets[ends - added]
        return sizes

    def _widths(self, starts: Int64Array, old_rows: Int64Array, old_width: Int64Array) -> Int64Array:
        """The common length of the rows of each unit, VARIABLE if they differ (after a change of schema)."""
        lowest = np.minimum.reduceat(self._lengths, starts)
        highest = np.maximum.reduceat(self._lengths, starts)
        return np.where((lowest == highest) & ((old_rows == 0) | (old_width == lowest)), lowest, VARIABLE)

    def _bodies(
        self, owner: Int64Array, old_rows: Int64Array, starts: Int64Array, ends: Int64Array, width: Int64Array
    ) -> list[bytes]:
        """Table and rows of each unit: the one loop over keys, it only slices and joins bytes."""
        data, table, blocks = self._data, self._lengths.astype(_LENGTH).tobytes(), self._old.blocks
        old_widths = self._old.width.tolist()
        bodies: list[bytes] = []
        for key, old, start, end, low, high, common in zip(
            *(column.tolist() for column in (owner, old_rows, starts, ends)),
            *(self._offsets[bound].tolist() for bound in (starts, ends)),
            width.tolist(),
            strict=True,
        ):
            block = blocks[key] if old else None
            if block is None:
                lengths, tail = b"", b""
            elif common != VARIABLE:
                lengths, tail = b"", block[_HEADER_BYTES:]
            else:
                lengths, tail = _table_and_rows(block, old, old_widths[key])
            if common == VARIABLE:
                lengths += table[_LENGTH_BYTES * start : _LENGTH_BYTES * end]
            bodies.append(lengths + tail + data[low:high])
        return bodies

    def _heads_with_sealed(
        self, values: list[bytes], sealed: BoolArray, units: Int64Array, sealed_rows: Int64Array
    ) -> list[bytes]:
        zero = np.zeros(len(sealed), np.int64)
        bare = _header_bytes(self.chunk_counts, sealed_rows, zero, zero)
        first = (np.cumsum(units) - units).tolist()
        return [
            head if is_sealed else values[unit]
            for head, is_sealed, unit in zip(bare, sealed.tolist(), first, strict=True)
        ]


def _headers(blocks: Sequence[bytes], owner: str) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array]:
    data = b"".join([block[:_HEADER_BYTES] for block in blocks])
    if len(data) != _HEADER_BYTES * len(blocks):
        raise _damaged(owner)
    fields = np.frombuffer(data, _LENGTH).reshape(-1, 4).astype(np.int64)
    return fields[:, 0], fields[:, 1], fields[:, 2], fields[:, 3]


def _header_bytes(
    chunks: Int64Array, sealed_rows: Int64Array, rows: Int64Array, width: Int64Array
) -> list[bytes]:
    fields = np.stack([chunks, sealed_rows, rows, width], axis=1).astype(_LENGTH)
    headers: list[bytes] = fields.view(f"V{_HEADER_BYTES}").ravel().tolist()
    return headers


def _table_and_rows(block: bytes, rows: int, width: int) -> tuple[bytes, bytes]:
    """The table of lengths (made up for a block that has none) and the rows of one block."""
    if width == VARIABLE:
        start = _HEADER_BYTES + rows * _LENGTH_BYTES
        return block[_HEADER_BYTES:start], block[start:]
    return width.to_bytes(_LENGTH_BYTES, "little") * rows, block[_HEADER_BYTES:]


def _row_lengths(
    data: npt.NDArray[np.uint8], tables: Int64Array, rows: Int64Array, width: Int64Array
) -> Int64Array:
    lengths = np.repeat(width, rows)
    has_table = width == VARIABLE
    if not has_table.any():
        return lengths
    block, within = _pieces(np.where(has_table, rows, 0))
    positions = tables[block] + within * _LENGTH_BYTES
    words = np.ascontiguousarray(data[positions[:, None] + np.arange(_LENGTH_BYTES)])
    lengths[np.repeat(has_table, rows)] = words.view(_LENGTH).ravel()
    return lengths


def _slices(data: bytes, starts: Int64Array, ends: Int64Array) -> pa.LargeBinaryArray:
    """Ascending slices of ``data`` as a binary column."""
    # Rows lie one behind the other, so gaps (headers and tables) and rows alternate in one binary column.
    bounds = np.zeros(2 * len(starts) + 1, np.int64)
    bounds[1::2] = starts
    bounds[2::2] = ends
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(data)]
    pieces = pa.Array.from_buffers(pa.large_binary(), len(bounds) - 1, buffers)
    return pieces.take(pa.array(np.arange(1, len(bounds), 2, dtype=np.int64)))


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
