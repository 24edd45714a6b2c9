"""Stamps in the blocks of lists, and lists put together from pages of their blocks.

Owns: how stamps are changed in place, and how the clean-up gets whole lists.
Invariant: all but the stamps of a block stays as it is; a list is never in two pages.
Must not import the states, storage, execution or operators.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from asyncstate.codec.columns import binary_from, binary_parts
from asyncstate.codec.key_fields import payload_matrix
from asyncstate.requests import Page, StateSink
from asyncstate.state.columnar.list_blocks import ListHeads, heads_among
from asyncstate.state.expiring.expiry import STAMP_BYTES
from asyncstate.state.ranges import range_pages

BoolArray = npt.NDArray[np.bool_]
ByteArray = npt.NDArray[np.uint8]
Int64Array = npt.NDArray[np.int64]


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


def whole_lists(
    sink: StateSink, start: bytes, end: bytes, page_size: int, owner: str
) -> Iterator[tuple[ListHeads, list[bytes | None]]]:
    """The lists with start <= store key < end: heads, and all their chunks in order. Lists may be written meanwhile."""
    held: Page = []
    for page in range_pages(sink, start, end, page_size):
        held += page
        is_head, heads = heads_among(held, owner)
        # The last list waits for the next page: more of it may come, and chunks that are written behind the position of
        # the scan would be found by it.
        last = int(np.flatnonzero(is_head)[-1])
        if last:
            yield _with_chunks(heads.but_last(), held[:last], is_head[:last])
            held = held[last:]
    if held:
        is_head, heads = heads_among(held, owner)
        yield _with_chunks(heads, held, is_head)


def _with_chunks(heads: ListHeads, entries: Page, is_head: BoolArray) -> tuple[ListHeads, list[bytes | None]]:
    """``heads`` and the chunks among ``entries``; None for chunks that are missing at the end."""
    chunks: list[bytes | None] = [entries[index][1] for index in np.flatnonzero(~is_head).tolist()]
    return heads, chunks + [None] * (int(heads.chunks.sum()) - len(chunks))
