"""The elements of stored lists, for reading all of them in the order of the store.

Owns: ``elements_of``.
Invariant: elements come in the order of the list. At most one page of chunks and one head are held.
Must not import storage, execution or operators.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

import numpy as np

from asyncstate.codec.columns import Int64Array, binary_rows
from asyncstate.state.columnar.list_blocks import read_rows
from asyncstate.state.keyed.chunks import COUNT_BYTES, elements
from asyncstate.state.stored_lists import BLOCKS, ELEMENTS, ListPiece, list_pieces

_PAGE_PIECES: Final = 256  # a chunk may have a thousand rows

Read = tuple[list[bytes], list[bytes], Int64Array, Sequence[bytes]]
"""The store key of each piece's list; then for each element that of its list, its position there, and its bytes."""


def elements_of(entries: Iterator[tuple[bytes, bytes]], blocks: bool, owner: str) -> Iterator[Read]:
    """Some pieces at a time; ``blocks`` tells list columns from lists. CodecError naming ``owner`` for damage."""
    pieces = list_pieces(entries, BLOCKS if blocks else ELEMENTS, owner)
    position = 0
    while page := list(islice(pieces, _PAGE_PIECES)):
        values, counts = _block_rows(page, owner) if blocks else _elements(page, owner)
        heads: list[bytes] = []
        positions = []
        for piece, count in zip(page, counts, strict=True):
            heads += [piece.key] * count
            positions.append(np.arange(position, position + count, dtype=np.int64))
            position = 0 if piece.is_head else position + count
        yield [piece.key for piece in page], heads, np.concatenate(positions), values


def _elements(pieces: list[ListPiece], owner: str) -> tuple[list[bytes], list[int]]:
    found = [elements(piece.data, COUNT_BYTES if piece.is_head else 0, bytes, owner) for piece in pieces]
    return [element for part in found for element in part], [len(part) for part in found]


def _block_rows(pieces: list[ListPiece], owner: str) -> tuple[list[bytes], list[int]]:
    rows, counts = read_rows([piece.data for piece in pieces], owner)
    return binary_rows(rows), counts.tolist()
