"""List column state: many rows of typed columns a key, read and written for many keys at once.

Owns: ``ListColumnState`` and its descriptor: how the rows of a key are spread over stored values.
Invariant: every read is a list get; appending never rewrites more than one small tail a key.
Must not import storage, execution or operators.

A key has a *head* under its store key: a block with its newest rows (the tail) and the number of sealed
chunks. When the tail passes ``TAIL_ROWS`` or ``TAIL_BYTES`` it is sealed: it becomes the next chunk, a block
under ``[store key][chunk number: u32 big endian]`` that is not touched again until the list is replaced. So a
small list costs one value and one read; a long one costs a second list get, for its chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from asyncstate.codec import KeyBatch, RowCodec, schema_to_text
from asyncstate.codec.columns import storage_dtype
from asyncstate.errors import CodecError, StateAccessError
from asyncstate.futures import StateFuture, completed_future
from asyncstate.operator import OperatorContext, StateDescriptor
from asyncstate.requests import StateSink
from asyncstate.state.columns import row_codec
from asyncstate.state.list_blocks import ListHeads, NewBlocks, chunk_keys, empty_heads, read_heads, read_rows

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class ListColumns:
    """Rows of the u keys of a KeyBatch, all keys one behind the other: m rows.

    ``columns`` has an array (m) a field; ``key_index`` (m, ascending) tells the key of each row, ``counts``
    (u) the rows of each key. Rows of a key are in the order in which they were appended.
    """

    columns: list[pa.Array]
    key_index: Int32Array
    counts: Int64Array

    @property
    def num_rows(self) -> int:
        """m."""
        return len(self.key_index)

    @property
    def starts(self) -> Int64Array:
        """Index of the first row of each key (u)."""
        return np.cumsum(self.counts) - self.counts


@dataclass(frozen=True)
class ListColumnStateDescriptor(StateDescriptor["ListColumnState"]):
    """Declares a ListColumnState: ``schema`` is one row's fields; ``fixed_fields`` as in ``ColumnStateDescriptor``.

    ``time_first``: the key batches that it is used with have namespaces, which stand before the key.
    """

    name: str
    schema: pa.Schema
    fixed_fields: bool = False
    time_first: bool = False
    kind: ClassVar[str] = "list-column"

    def type_texts(self) -> dict[str, str]:
        """Schema and layout."""
        return {
            "value": schema_to_text(self.schema),
            "layout": "time-first blocks" if self.time_first else "blocks",
        }

    def bind(
        self, sink: StateSink, state_id: int, context: OperatorContext, stored: dict[str, str] | None
    ) -> ListColumnState:
        """See ``StateDescriptor``."""
        codec = row_codec(context.uid, self.name, self.schema, self.type_texts(), stored)
        return ListColumnState(sink, state_id, codec, f"state '{self.name}' of operator '{context.uid}'")


class ListColumnState:
    """Many rows a key. Keys come as a ``KeyBatch`` of u sorted unique keys.

    Rows are given as ``columns`` (an array (m) a field) and ``key_index`` (m), ascending indices of keys.
    ``append``, ``put`` and ``remove`` have to know the heads of their keys: pass those that ``heads`` gave in
    the same bundle (before any write to these keys), otherwise they are read again.
    """

    def __init__(self, sink: StateSink, state_id: int, codec: RowCodec, owner: str) -> None:
        self._fixed = all(storage_dtype(field.type) is not None for field in codec.schema)
        self._owner = owner
        self._sink = sink
        self._id = state_id
        self._codec = codec

    # -- reading ----------------------------------------------------------------------------------

    def get(self, keys: KeyBatch) -> ListColumns:
        """All rows of ``keys``."""
        return self.rows(self.heads(keys))

    def async_get(self, keys: KeyBatch) -> StateFuture[ListColumns]:
        """A future of all rows of ``keys``."""
        return self.async_heads(keys).then_compose(self.async_rows)

    def prefetch(self, keys: KeyBatch) -> None:
        """Start loading the heads of ``keys`` while other work goes on."""
        self._sink.prefetch(keys.store_keys(self._id))

    def heads(self, keys: KeyBatch) -> ListHeads:
        """The heads of ``keys``: enough for sizes and for writing."""
        store_keys = keys.store_keys(self._id)
        return self._heads(store_keys, self._sink.get_many(store_keys))

    def async_heads(self, keys: KeyBatch) -> StateFuture[ListHeads]:
        """A future of the same."""
        store_keys = keys.store_keys(self._id)
        return self._sink.async_get_many(store_keys).then_apply(
            lambda blocks: self._heads(store_keys, blocks)
        )

    def rows(self, heads: ListHeads) -> ListColumns:
        """All rows of the keys of ``heads``, as they were when the heads were read."""
        keys, owners = chunk_keys(heads)
        return self._decode(heads, owners, self._sink.get_many(keys) if keys else [])

    def async_rows(self, heads: ListHeads) -> StateFuture[ListColumns]:
        """A future of the same; no second read where nothing is sealed."""
        keys, owners = chunk_keys(heads)
        if not keys:
            return completed_future(self._decode(heads, owners, []))
        return self._sink.async_get_many(keys).then_apply(lambda chunks: self._decode(heads, owners, chunks))

    def _heads(self, store_keys: list[bytes], blocks: list[bytes | None]) -> ListHeads:
        return read_heads(store_keys, blocks, self._owner)

    def _decode(self, heads: ListHeads, chunk_owners: Int64Array, chunks: list[bytes | None]) -> ListColumns:
        if None in chunks:
            raise CodecError(
                f"{self._owner}: a chunk of a list is missing; restore the checkpoint from an older version"
            )
        stored = np.fromiter((block is not None for block in heads.blocks), np.bool_, len(heads.blocks))
        owners = np.concatenate([chunk_owners, np.flatnonzero(stored)])
        blocks = [block for block in (*chunks, *heads.blocks) if block is not None]
        if chunks:
            order = np.argsort(owners, kind="stable")  # the chunks of a key stand before its head
            owners = owners[order]
            blocks = [blocks[index] for index in order.tolist()]
        rows, per_block = read_rows(blocks, self._owner)
        columns, _ = self._codec.decode(rows)
        key_index = np.repeat(owners, per_block).astype(np.int32)
        return ListColumns(columns, key_index, np.bincount(key_index, minlength=len(heads.blocks)))

    # -- writing ----------------------------------------------------------------------------------

    def append(
        self,
        keys: KeyBatch,
        columns: Sequence[pa.Array],
        key_index: npt.NDArray[np.integer],
        heads: ListHeads | None = None,
    ) -> None:
        """Add rows behind those of their keys; keys without rows stay as they are."""
        added = self._counts(keys, key_index)
        heads = self.heads(keys) if heads is None else heads
        touched = added > 0
        self._write(heads.select(touched), added[touched], columns)

    def put(
        self,
        keys: KeyBatch,
        columns: Sequence[pa.Array],
        key_index: npt.NDArray[np.integer],
        heads: ListHeads | None = None,
    ) -> None:
        """Replace the whole list of every key in ``keys``; keys without rows are removed."""
        counts = self._counts(keys, key_index)
        heads = self.heads(keys) if heads is None else heads
        self._remove(heads.select(counts == 0))
        replaced = heads.select(counts > 0)
        chunks = self._write(empty_heads(replaced.store_keys), counts[counts > 0], columns)
        self._delete_chunks(replaced, chunks)

    def remove(self, keys: KeyBatch, heads: ListHeads | None = None) -> None:
        """Remove all rows of ``keys``."""
        self._remove(self.heads(keys) if heads is None else heads)

    def _counts(self, keys: KeyBatch, key_index: npt.NDArray[np.integer]) -> Int64Array:
        if bool((key_index[1:] < key_index[:-1]).any()):
            raise StateAccessError(
                f"{self._owner}: key_index must ascend; sort the rows by key before writing"
            )
        return np.bincount(key_index, minlength=len(keys))

    def _remove(self, heads: ListHeads) -> None:
        stored = heads.select(heads.counts > 0)
        if stored.blocks:
            self._sink.delete_many(stored.store_keys)
            self._delete_chunks(stored, np.zeros(len(stored.blocks), np.int64))

    def _delete_chunks(self, heads: ListHeads, first: Int64Array) -> None:
        """Delete the chunks of each key from number ``first`` on."""
        keys, _ = chunk_keys(heads, first)
        if keys:
            self._sink.delete_many(keys)

    def _write(self, heads: ListHeads, added: Int64Array, columns: Sequence[pa.Array]) -> Int64Array:
        """Write ``added`` (> 0) rows behind each head; returns the number of chunks of each key."""
        if len(added) == 0:
            return added
        new = NewBlocks(heads, added, self._codec.encode(columns), self._fixed)
        if new.chunk_keys:
            self._sink.put_many(new.chunk_keys, new.chunks)
        self._sink.put_many(heads.store_keys, new.heads)
        return new.chunk_counts
