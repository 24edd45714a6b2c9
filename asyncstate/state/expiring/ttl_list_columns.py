"""ListColumnState with a time to live.

Owns: ``TtlListColumnState``, a class of its own so that states without a ttl pay nothing.
Invariant: each row has its own stamp, in front of its bytes. Renewing a row does not change its length, so blocks stay
as they are; only the clean-up writes a list anew without being asked to.
Must not import storage, execution or operators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from asyncstate.codec import KeyBatch, RowCodec, prefix_end
from asyncstate.codec.columns import BoolArray, Int64Array
from asyncstate.futures import StateFuture
from asyncstate.requests import StateSink
from asyncstate.state.columnar.list_blocks import ListHeads, read_heads
from asyncstate.state.columnar.list_column_state import ListColumns, ListColumnState
from asyncstate.state.expiring.column_expiry import ColumnExpiry, WrittenKeys, without_stamps
from asyncstate.state.expiring.ttl_blocks import restamped_blocks, restamped_rows
from asyncstate.state.ranges import range_pages
from asyncstate.state.stored_lists import FoundLists, StoredLists, block_lists


class TtlListColumnState(ListColumnState):
    """A ListColumnState each of whose rows expires by itself. Heads alone renew nothing."""

    def __init__(
        self,
        sink: StateSink,
        state_id: int,
        codec: RowCodec,
        owner: str,
        expiry: ColumnExpiry,
        page_size: int,
    ) -> None:
        super().__init__(sink, state_id, codec, owner)
        self._expiry = expiry
        self._page_size = page_size
        self._written = WrittenKeys()

    def stamps_at(self, times: Int64Array | None, count: int) -> Int64Array | None:
        """See ``ListColumnState``."""
        return self._expiry.stamps(times, count)

    # -- reading ----------------------------------------------------------------------------------

    def async_counts(self, heads: ListHeads) -> StateFuture[Int64Array]:
        """See ``ListColumnState``; reads the chunks."""

        def shown(stored: StoredLists) -> Int64Array:
            there = self._expiry.shown(self._expiry.read(stored.rows))
            counts: Int64Array = np.bincount(stored.key_index[there], minlength=len(heads.blocks))
            return counts

        return self._async_stored(heads).then_apply(shown)

    def _heads_reader(self, store_keys: list[bytes]) -> Callable[[list[bytes | None]], ListHeads]:
        moment = self._written.moment
        return lambda blocks: read_heads(store_keys, blocks, self._owner, moment)

    def _decode(
        self, heads: ListHeads, stored: StoredLists, stamps: Int64Array | None, renew: bool
    ) -> ListColumns:
        expiry, rows, key_index = self._expiry, stored.rows, stored.key_index
        found = expiry.read(rows)
        if renew and expiry.renews:
            at = expiry.stamps(None, len(heads.blocks)) if stamps is None else stamps
            found = self._renew(heads, stored, found, at[key_index])
        shown = expiry.shown(found)
        if not shown.all():
            rows, key_index, found = rows.filter(pa.array(shown)), key_index[shown], found[shown]
        columns, _ = self._codec.decode(without_stamps(rows))
        counts = np.bincount(key_index, minlength=len(heads.blocks))
        return ListColumns(columns, key_index, counts, found)

    def _renew(self, heads: ListHeads, stored: StoredLists, found: Int64Array, at: Int64Array) -> Int64Array:
        """Give the rows that are due the stamps ``at`` (m), unless their list has been written since; all stamps."""
        due = self._expiry.due(found, at)
        if not due.any():
            return found
        renewed = np.where(due, at, found)
        due &= ~self._written.since(heads.store_keys, heads.moment)[stored.key_index]
        self._put_stamps(heads, stored, due, renewed)
        return renewed

    def _put_stamps(self, heads: ListHeads, stored: StoredLists, due: BoolArray, stamps: Int64Array) -> None:
        if not due.any():
            return
        changed, blocks = restamped_blocks(stored, due, stamps)
        keys = self._block_keys(heads, stored)
        self._sink.put_many([keys[index] for index in changed.tolist()], blocks)
        owners = np.unique(stored.key_index[due]).tolist()
        self._written.note([heads.store_keys[index] for index in owners])

    @staticmethod
    def _block_keys(heads: ListHeads, stored: StoredLists) -> list[bytes]:
        """The store key of each block."""
        own = [key for key, block in zip(heads.store_keys, heads.blocks, strict=True) if block is not None]
        keys = [*stored.chunk_keys, *own]
        return keys if stored.order is None else [keys[index] for index in stored.order.tolist()]

    # -- writing ----------------------------------------------------------------------------------

    def _heads_for(self, keys: KeyBatch, heads: ListHeads | None) -> ListHeads:
        # A read behind that of the heads may have renewed rows in them.
        if heads is not None and self._written.since(heads.store_keys, heads.moment).any():
            heads = None
        return super()._heads_for(keys, heads)

    def _encode(self, columns: Sequence[pa.Array], stamps: Int64Array | None) -> pa.LargeBinaryArray:
        count = len(columns[0]) if columns else 0
        return self._codec.encode_column(columns, self._expiry.prefix(stamps, count))

    def _write(self, heads: ListHeads, added: Int64Array, rows: pa.LargeBinaryArray) -> Int64Array:
        self._note(heads)
        return super()._write(heads, added, rows)

    def _remove(self, heads: ListHeads) -> None:
        self._note(heads)
        super()._remove(heads)

    def _note(self, heads: ListHeads) -> None:
        if self._expiry.renews:
            self._written.note(heads.store_keys)

    # -- the clean-up -----------------------------------------------------------------------------

    def sweep(self, group: bytes) -> int:
        """Remove the expired rows of a key group; their number."""
        state = group + bytes([self._id])
        pages = range_pages(self._sink, state, prefix_end(state), self._page_size)
        return sum(map(self._sweep_lists, block_lists(pages, self._owner)))

    def _sweep_lists(self, found: FoundLists) -> int:
        """Write those of the lists anew, as if written at once, that have expired rows or rows without a time."""
        expiry, heads, stored = self._expiry, found.heads, self._stored(*found)
        stamps = expiry.read(stored.rows)
        expired, untimed = expiry.expired(stamps), expiry.untimed(stamps)
        touched = np.zeros(len(heads.blocks), np.bool_)
        touched[stored.key_index[expired | untimed]] = True
        if not touched.any():
            return 0
        kept = ~expired & touched[stored.key_index]
        counts = np.bincount(stored.key_index[kept], minlength=len(heads.blocks))
        self._remove(heads.select(touched & (counts == 0)))
        rows = stored.rows.filter(pa.array(kept))
        untimed = untimed[kept]
        if untimed.any():
            rows = restamped_rows(rows, untimed, expiry.prefix(None, int(untimed.sum())))
        self._replace(heads.select(counts > 0), counts[counts > 0], rows)
        return int(expired.sum())
