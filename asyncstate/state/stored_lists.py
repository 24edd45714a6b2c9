"""Assembles lists from their store entries: a head, directly followed by its chunks by number.

Owns: assembling lists from entries in store order, piece by piece in either layout (``chunks``, ``list_blocks``), or as
blocks of many lists at a time.
Invariant: each list is yielded completely and once, its chunks before its head, in the order of its rows; a chunk that
is missing or belongs to no head is an error. Yielded lists may be written or removed while the others are read.
Must not import storage, execution or operators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from asyncstate.codec.key_batch import Int32Array
from asyncstate.codec.value_columns import BoolArray, Int64Array
from asyncstate.errors import CodecError
from asyncstate.state.columnar.list_blocks import ListHeads, chunk_keys, read_heads, read_rows
from asyncstate.state.keyed.chunks import chunk_key, sealed_chunks
from asyncstate.state_backend import Page

_TOGETHER_BYTES: Final = 1 << 20
"""Pages are concatenated up to about this many bytes of blocks: a call for a few lists costs more than the lists."""


class ListLayout(NamedTuple):
    """How to read the number of chunks from a head (with its owner for errors), and the store keys of chunks."""

    sealed: Callable[[bytes, str], int]
    chunk_key: Callable[[bytes, int], bytes]


class ListPiece(NamedTuple):
    """A head or a chunk of the list under ``key``."""

    key: bytes
    data: bytes
    is_head: bool


def block_key(key: bytes, index: int) -> bytes:
    """The store key of chunk ``index`` of the rows under ``key``."""
    return key + index.to_bytes(4, "big")


ELEMENTS: Final = ListLayout(lambda head, _: sealed_chunks(head), chunk_key)
"""The layout of ``ListState``."""
BLOCKS: Final = ListLayout(lambda head, owner: int(read_heads([b""], [head], owner).chunks[0]), block_key)
"""The layout of list columns."""


def list_pieces(
    entries: Iterable[tuple[bytes, bytes]], layout: ListLayout, owner: str
) -> Iterator[ListPiece]:
    """The pieces of lists in the order of their elements. Only one head is in memory, no matter how long a list is."""
    stored = iter(entries)
    for key, head in stored:
        for index in range(layout.sealed(head, owner)):
            name, chunk = next(stored, (b"", b""))
            if name != layout.chunk_key(key, index):
                raise _damaged(owner)
            yield ListPiece(key, chunk, False)
        yield ListPiece(key, head, True)


def element_lists(
    entries: Iterable[tuple[bytes, bytes]], owner: str
) -> Iterator[tuple[bytes, bytes, list[bytes]]]:
    """Yield the store key, head and chunks of each list of ``ListState``."""
    chunks: list[bytes] = []
    for key, data, is_head in list_pieces(entries, ELEMENTS, owner):
        if is_head:
            yield key, data, chunks
            chunks = []
        else:
            chunks.append(data)


class FoundLists(NamedTuple):
    """u lists of rows: their ``heads``, and the blocks and list indices of all their chunks."""

    heads: ListHeads
    owners: Int64Array
    chunks: list[bytes]


class StoredLists(NamedTuple):
    """The stored rows (m) of u lists, in the order of ``ListColumns``, and the index of each row's list (m)."""

    rows: pa.LargeBinaryArray
    key_index: Int32Array


def block_lists(pages: Iterable[Page], owner: str) -> Iterator[FoundLists]:
    """The lists of rows in ``pages``, many at a time."""
    held: Page = []
    held_bytes = 0
    for page in pages:
        held += page
        held_bytes += sum(len(block) for _, block in page)
        if held_bytes < _TOGETHER_BYTES:
            continue
        held_bytes = 0
        is_head, heads = _heads_among(held, owner)
        # The last list waits for the next page: it may continue there, and the scan would find chunks that are written
        # after its position.
        last = int(np.flatnonzero(is_head)[-1])
        if last:
            yield _found(
                heads.select(np.arange(len(heads.blocks)) < len(heads.blocks) - 1),
                held[:last],
                is_head[:last],
                owner,
            )
            held = held[last:]
    if held:
        is_head, heads = _heads_among(held, owner)
        yield _found(heads, held, is_head, owner)


def _heads_among(entries: Page, owner: str) -> tuple[BoolArray, ListHeads]:
    """Which entries are heads, and the heads; the first entry is one. Each head is followed by its number of chunks."""
    every = read_heads([key for key, _ in entries], [value for _, value in entries], owner)
    if not every.chunks.any():
        return np.ones(len(entries), np.bool_), every
    reach = np.maximum.accumulate(np.arange(len(entries)) + every.chunks)  # for a chunk that number is 0
    is_head = np.ones(len(entries), np.bool_)
    is_head[1:] = reach[:-1] < np.arange(1, len(entries))
    return is_head, every.select(is_head)


def _found(heads: ListHeads, entries: Page, is_head: BoolArray, owner: str) -> FoundLists:
    keys, owners = chunk_keys(heads)
    chunks = [entries[index] for index in np.flatnonzero(~is_head).tolist()]
    if keys != [key for key, _ in chunks]:
        raise _damaged(owner)
    return FoundLists(heads, owners, [block for _, block in chunks])


def rows_of(heads: ListHeads, owners: Int64Array, chunks: Sequence[bytes | None], owner: str) -> StoredLists:
    """The rows of ``heads`` and of ``chunks``, which belong to the lists ``owners``."""
    if None in chunks:
        raise _damaged(owner)
    there = [index for index, block in enumerate(heads.blocks) if block is not None]
    owners = np.concatenate([owners, np.array(there, np.int64)])
    blocks = [block for block in (*chunks, *heads.blocks) if block is not None]
    if chunks:
        order = np.argsort(owners, kind="stable")  # the chunks of a key come before its head
        owners = owners[order]
        blocks = [blocks[index] for index in order.tolist()]
    rows, per_block = read_rows(blocks, owner)
    return StoredLists(rows, np.repeat(owners, per_block).astype(np.int32))


def _damaged(owner: str) -> CodecError:
    return CodecError(
        f"{owner}: a chunk of a list is missing, or is not of its head; restore the checkpoint from an older version"
    )
