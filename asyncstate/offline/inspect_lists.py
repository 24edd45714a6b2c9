"""Lists put together from their stored heads and chunks, for reading all of them in the order of the store.

Owns: ``ListPieces``.
Invariant: elements come in the order of the list, its chunks before its head, though the head stands first in the
store; a missing chunk is an error. At most one page of entries and one head are held.
Must not import storage, execution or operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from asyncstate.codec.columns import Int64Array, binary_rows
from asyncstate.errors import CodecError
from asyncstate.requests import Page
from asyncstate.state.columnar.list_blocks import read_heads, read_rows
from asyncstate.state.keyed.chunks import COUNT_BYTES, INDEX_BYTES, elements, sealed_chunks

_BLOCK_INDEX_BYTES: Final = 4

Read = tuple[list[bytes], Int64Array, Sequence[bytes]]
"""For each element: the store key of its list's head, its position in the list, and its bytes."""


class _Piece(NamedTuple):
    head: bytes
    data: bytes
    is_head: bool


class ListPieces:
    """Takes the entries of one state, page by page; ``blocks`` tells list columns from lists."""

    def __init__(self, blocks: bool, owner: str) -> None:
        self._blocks = blocks
        self._owner = owner
        self._index_bytes = _BLOCK_INDEX_BYTES if blocks else INDEX_BYTES
        self._open: tuple[bytes, bytes] | None = None  # the head whose chunks are coming
        self._chunks = 0
        self._position = 0

    def add(self, page: Page, ends: Int64Array) -> Read:
        """The elements that are complete with ``page``; ``ends`` (n): where the key of each entry's list ends."""
        pieces: list[_Piece] = []
        for (key, data), end in zip(page, ends.tolist(), strict=True):
            if len(key) == end:
                pieces += self._closed()
                self._open = key, data
            else:
                pieces.append(self._chunk(key, data, end))
        return self._read(pieces)

    def end(self) -> Read:
        """The rest."""
        return self._read(self._closed())

    def _chunk(self, key: bytes, data: bytes, end: int) -> _Piece:
        index = int.from_bytes(key[end:], "big")
        if (
            self._open is None
            or key[:end] != self._open[0]
            or len(key) != end + self._index_bytes
            or index != self._chunks
        ):
            raise self._damaged()
        self._chunks += 1
        return _Piece(self._open[0], data, False)

    def _closed(self) -> list[_Piece]:
        if self._open is None:
            return []
        key, data = self._open
        if self._blocks:
            sealed = int(read_heads([key], [data], self._owner).chunks[0])
        else:
            sealed = sealed_chunks(data)
        if sealed != self._chunks:
            raise self._damaged()
        self._open, self._chunks = None, 0
        return [_Piece(key, data, True)]

    def _read(self, pieces: list[_Piece]) -> Read:
        values, counts = self._block_rows(pieces) if self._blocks else self._elements(pieces)
        heads: list[bytes] = []
        positions = []
        for piece, count in zip(pieces, counts, strict=True):
            heads += [piece.head] * count
            positions.append(np.arange(self._position, self._position + count, dtype=np.int64))
            self._position = 0 if piece.is_head else self._position + count
        return heads, np.concatenate(positions) if positions else np.empty(0, np.int64), values

    def _elements(self, pieces: list[_Piece]) -> tuple[list[bytes], list[int]]:
        found = [
            elements(piece.data, COUNT_BYTES if piece.is_head else 0, bytes, self._owner) for piece in pieces
        ]
        return [element for part in found for element in part], [len(part) for part in found]

    def _block_rows(self, pieces: list[_Piece]) -> tuple[list[bytes], list[int]]:
        if not pieces:
            return [], []
        rows, counts = read_rows([piece.data for piece in pieces], self._owner)
        return binary_rows(rows), counts.tolist()

    def _damaged(self) -> CodecError:
        return CodecError(
            f"{self._owner}: the parts of a stored list do not fit together; read an older checkpoint version"
        )
