"""List column state: many rows of typed columns per key, read and written for many keys at once.

Owns: ``ListColumnState``: how the rows of a key are distributed over stored values; its declaration
``ListColumnStateDescriptor``.
Invariant: every read of keys is a list get; a range has whole lists; appending rewrites at most one small tail per key.
With a ttl, each row has its own stamp, before its bytes, and only the clean-up rewrites a list that the operator does
not write.
Must not import storage, execution or operators.

A key has a *head* under its store key: a block with its newest rows (the tail) and the number of sealed chunks. When
the tail exceeds ``TAIL_ROWS`` or ``TAIL_BYTES``, it is sealed: it becomes the next chunk, a block under
``[store key][chunk number: u32 big endian]`` that does not change until the list is replaced. So a small list costs
one value and one read; a long one costs a second list get, for its chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from asyncstate.codec import KeyBatch
from asyncstate.codec.value_columns import BoolArray, Int64Array, storage_dtype
from asyncstate.errors import StateAccessError
from asyncstate.futures import StateFuture, completed_future
from asyncstate.operator import MIN_WATERMARK, BelongsTo
from asyncstate.state.columnar.list_blocks import (
    ListHeads,
    NewBlocks,
    chunk_keys,
    empty_heads,
    numbers_alone,
    read_heads,
)
from asyncstate.state.columnar.results import ListColumns, ListRange
from asyncstate.state.columnar.state_columns import BundleState, ColumnsDescriptor
from asyncstate.state.expiring.expiry import Lifetime
from asyncstate.state.expiring.stamped_codec import restamped, stamps_of
from asyncstate.state.expiring.ttl import Ttl
from asyncstate.state.ranges import of_state
from asyncstate.state.stored_lists import FoundLists, StoredLists, block_lists, rows_of

__all__ = ["ListColumnState", "ListColumnStateDescriptor", "ListColumns", "ListRange"]


class ListColumnState(BundleState):
    """Many rows per key. Keys come as a ``KeyBatch`` of u sorted unique keys.

    Rows are given as ``columns`` (an array (m) per field) and ``key_index`` (m), ascending indices of keys.
    ``append``, ``put`` and ``remove`` need the heads of their keys: pass those that ``heads`` gave in the same bundle,
    before any write to these keys. Otherwise they are read again. With a ttl, each row expires separately.
    """

    def __init__(self, *bound: Any) -> None:
        """``bound``: the arguments of a BundleState."""
        super().__init__(*bound)
        self._fixed = all(storage_dtype(field.type) is not None for field in self._codec.schema)
        self._owner = self._codec.owner

    # -- reading ----------------------------------------------------------------------------------

    def get(self, keys: KeyBatch) -> ListColumns:
        """All rows of ``keys``."""
        return self.rows(self.heads(keys))

    def async_get(self, keys: KeyBatch) -> StateFuture[ListColumns]:
        """A future of the same."""
        return self.async_heads(keys).then_compose(self.async_rows)

    def async_read(self, keys: KeyBatch) -> StateFuture[tuple[ListHeads, ListColumns]]:
        """A future of the heads of ``keys``, to write with, and of all their rows."""
        return self.async_heads(keys).then_compose(
            lambda heads: self.async_rows(heads).then_apply(lambda rows: (heads, rows))
        )

    def heads(self, keys: KeyBatch) -> ListHeads:
        """The heads of ``keys``: enough for sizes and for writing."""
        store_keys = self._store_keys(keys)
        return self._heads_reader(store_keys)(self._sink.get_many(store_keys))

    def async_heads(self, keys: KeyBatch) -> StateFuture[ListHeads]:
        """A future of the same."""
        store_keys = self._store_keys(keys)
        return self._sink.async_get_many(store_keys).then_apply(self._heads_reader(store_keys))

    def rows(self, heads: ListHeads) -> ListColumns:
        """All rows of the keys of ``heads``, as of the time when the heads were read."""
        keys, owners = chunk_keys(heads)
        stored = rows_of(heads, owners, self._sink.get_many(keys) if keys else [], self._owner)
        return self._decode(heads, stored)

    def async_rows(self, heads: ListHeads) -> StateFuture[ListColumns]:
        """A future of the same; no second read where nothing is sealed."""
        return self._async_stored(heads).then_apply(lambda stored: self._decode(heads, stored))

    def async_counts(self, heads: ListHeads) -> StateFuture[Int64Array]:
        """A future of the current number of visible rows of each key (u). With a ttl it reads the chunks."""
        lifetime = self._lifetime
        if lifetime is None:
            return completed_future(heads.counts)

        def visible(stored: StoredLists) -> Int64Array:
            live = lifetime.live(stamps_of(stored.rows, self._owner))
            counts: Int64Array = np.bincount(stored.key_index[live], minlength=len(heads.blocks))
            return counts

        return self._async_stored(heads).then_apply(visible)

    def _heads_reader(self, store_keys: list[bytes]) -> Callable[[list[bytes | None]], ListHeads]:
        return lambda blocks: read_heads(store_keys, blocks, self._owner)

    def _async_stored(self, heads: ListHeads) -> StateFuture[StoredLists]:
        keys, owners = chunk_keys(heads)
        if not keys:
            return completed_future(rows_of(heads, owners, [], self._owner))
        return self._sink.async_get_many(keys).then_apply(
            lambda chunks: rows_of(heads, owners, chunks, self._owner)
        )

    def _decode(self, heads: ListHeads, stored: StoredLists) -> ListColumns:
        columns, _ = self._codec.decode(stored.rows)
        key_index, stamps = stored.key_index, None
        if self._lifetime is not None:
            stamps, columns = columns[0].to_numpy(), columns[1:]
            live = self._lifetime.live(stamps)
            if not live.all():
                mask = pa.array(live)
                columns = [column.filter(mask) for column in columns]
                key_index, stamps = key_index[live], stamps[live]
        counts = np.bincount(key_index, minlength=len(heads.blocks))
        return ListColumns(columns, key_index, counts, stamps)

    # -- writing ----------------------------------------------------------------------------------

    def append(
        self,
        keys: KeyBatch,
        columns: Sequence[pa.Array],
        key_index: npt.NDArray[np.integer],
        heads: ListHeads | None = None,
        stamps: Int64Array | None = None,
    ) -> None:
        """Append rows to those of their keys; keys without new rows do not change. ``stamps`` (m): of the rows, from
        ``stamps_at`` or from a read; None: of this micro-batch."""
        added = self._counts(keys, key_index)
        heads = self._heads_for(keys, heads)
        touched = added > 0
        self._write(heads.select(touched), added[touched], self._encode(columns, stamps))

    def put(
        self,
        keys: KeyBatch,
        columns: Sequence[pa.Array],
        key_index: npt.NDArray[np.integer],
        heads: ListHeads | None = None,
        stamps: Int64Array | None = None,
    ) -> None:
        """Replace the whole list of every key; keys without rows are removed. ``stamps`` (m): see ``append``."""
        counts = self._counts(keys, key_index)
        heads = self._heads_for(keys, heads)
        self._remove(heads.select(counts == 0))
        self._replace(heads.select(counts > 0), counts[counts > 0], self._encode(columns, stamps))

    def put_counts(self, keys: KeyBatch, counts: Int64Array, heads: ListHeads | None = None) -> None:
        """Replace the list of every key by the number of its rows (u), which another state has; 0 removes it."""
        heads = self._heads_for(keys, heads)
        self._remove(heads.select(counts == 0))
        left = heads.select(counts > 0)
        if left.store_keys:
            self._sink.put_many(left.store_keys, numbers_alone(counts[counts > 0]))
            self._delete_chunks(left)

    def remove(self, keys: KeyBatch, heads: ListHeads | None = None) -> None:
        """Remove all rows of ``keys``."""
        self._remove(self._heads_for(keys, heads))

    def remove_with(self, owners: Sequence[bytes]) -> None:
        """Remove the lists of the keys of ``owners``: ascending store keys of another state with the same keys."""
        store_keys = of_state(owners, self._id)
        self._remove(self._heads_reader(store_keys)(self._sink.get_many(store_keys)))

    def _heads_for(self, keys: KeyBatch, heads: ListHeads | None) -> ListHeads:
        """The heads to write with: ``heads`` if the caller has read them."""
        return self.heads(keys) if heads is None else heads

    def _encode(self, columns: Sequence[pa.Array], stamps: Int64Array | None) -> pa.LargeBinaryArray:
        count = len(columns[0]) if columns else 0
        return self._codec.encode_column(self._with_stamps(columns, stamps, count))

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
            self._delete_chunks(stored)

    def _delete_chunks(self, heads: ListHeads, first: Int64Array | None = None) -> None:
        """Delete the chunks of each key from number ``first`` on (None: all)."""
        keys, _ = chunk_keys(heads, first)
        if keys:
            self._sink.delete_many(keys)

    def _replace(self, heads: ListHeads, counts: Int64Array, rows: pa.LargeBinaryArray) -> None:
        """Rewrite the lists with ``counts`` (> 0) rows each."""
        chunks = self._write(empty_heads(heads.store_keys), counts, rows)
        self._delete_chunks(heads, chunks)

    def _write(self, heads: ListHeads, added: Int64Array, rows: pa.LargeBinaryArray) -> Int64Array:
        """Append ``added`` (> 0) rows to each list; returns the number of chunks of each key."""
        if len(added) == 0:
            return added
        new = NewBlocks(heads, added, rows, self._fixed)
        if new.chunk_keys:
            self._sink.put_many(new.chunk_keys, new.chunks)
        self._sink.put_many(heads.store_keys, new.heads)
        return new.chunk_counts

    # -- ranges of time -----------------------------------------------------------------------------

    def up_to(self, until: int, start: int = MIN_WATERMARK) -> Iterator[ListRange]:
        """All lists with start <= namespace <= ``until``, page by page; time-first states only.

        Nothing may be appended to the lists before the iteration ends; lists already yielded may be removed.
        """
        found = block_lists(self._time_pages(start, until, self._page_size), self._owner)
        return map(self._range, found)

    def _range(self, found: FoundLists) -> ListRange:
        heads = found.heads
        rows = self._decode(heads, rows_of(*found, self._owner))
        places = self._namespaces_and_keys(heads.store_keys)
        return ListRange(heads.store_keys, *places, rows.columns, rows.counts, heads.chunks)

    # -- the clean-up -----------------------------------------------------------------------------

    def sweep(self, group: bytes) -> int:
        """Remove the expired rows of a key group (2 bytes); their number. Only for states with a ttl."""
        assert self._lifetime is not None
        lifetime = self._lifetime
        lists = block_lists(self._stored_pages(group), self._owner)
        return sum(self._sweep_lists(found, lifetime) for found in lists)

    def _sweep_lists(self, found: FoundLists, lifetime: Lifetime) -> int:
        """Rewrite the lists that have rows to remove or to stamp, each as if one call had written it."""
        heads, stored = found.heads, rows_of(*found, self._owner)
        stamps = stamps_of(stored.rows, self._owner)
        due, live = lifetime.due(stamps), lifetime.live(stamps)
        touched = np.zeros(len(heads.blocks), np.bool_)
        touched[stored.key_index[due]] = True
        if not touched.any():
            return 0
        kept: BoolArray = live & touched[stored.key_index]
        counts = np.bincount(stored.key_index[kept], minlength=len(heads.blocks))
        self._remove(heads.select(touched & (counts == 0)))
        rows, untimed = stored.rows.filter(pa.array(kept)), due[kept]
        if untimed.any():
            rows = restamped(rows, untimed, lifetime.stamps(None, int(untimed.sum())))
        self._replace(heads.select(counts > 0), counts[counts > 0], rows)
        return int((~live).sum())


@dataclass(frozen=True)
class ListColumnStateDescriptor(ColumnsDescriptor[ListColumnState]):
    """Declares a ListColumnState: ``schema`` has the fields of a row; ``fixed_fields`` and ``may_lack`` as in
    ``ColumnStateDescriptor``.

    ``time_first``: its key batches have namespaces (int64, such as times in microseconds), which precede the key in the
    order of the store, so that all lists up to a time can be read as ranges. ``ttl``: rows expire separately.
    ``belongs_to``: see ``BelongsTo``.
    """

    name: str
    schema: pa.Schema
    fixed_fields: bool = False
    time_first: bool = False
    ttl: Ttl = None
    belongs_to: BelongsTo | None = None
    may_lack: frozenset[str] = frozenset()
    kind: ClassVar[str] = "list-column"
    _state = ListColumnState
    _layouts = "blocks", "time-first blocks"
