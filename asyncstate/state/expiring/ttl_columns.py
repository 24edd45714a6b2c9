"""Column states with a time to live.

Owns: ``TtlColumnState`` and ``TtlListColumnState``, classes of their own so that states without a ttl pay nothing.
Invariant: what reads show and renew is the same in both modes; a renewal never undoes a write. Each row of a list has
its own stamp, in front of its bytes. Renewing a row does not change its length, so blocks stay as they are; only the
clean-up writes a list anew without being asked to.
Must not import storage, execution or operators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import add
from typing import Any

import numpy as np
import pyarrow as pa

from asyncstate.codec import KeyBatch, prefix_end
from asyncstate.codec.columns import (
    LARGE_BINARY,
    BoolArray,
    ByteArray,
    Int64Array,
    binary_from,
    binary_parts,
    binary_rows,
    matrix_rows,
    spread,
    valid_mask,
)
from asyncstate.codec.key_fields import payload_matrix
from asyncstate.futures import StateFuture
from asyncstate.requests import Page
from asyncstate.state.columnar.column_state import BundleState, Columns, ColumnState, KeptBeside
from asyncstate.state.columnar.list_blocks import ListHeads, read_heads
from asyncstate.state.columnar.list_column_state import ListColumns, ListColumnState
from asyncstate.state.expiring.expiry import STAMP_BYTES, ColumnExpiry, WrittenKeys, without_stamps
from asyncstate.state.ranges import range_pages
from asyncstate.state.stored_lists import FoundLists, StoredLists, block_lists, rows_of


class _Stamped(BundleState):
    """A state whose rows expire, each by itself."""

    def __init__(self, expiry: ColumnExpiry, *bound: Any) -> None:
        """``bound``: as of the state without a ttl."""
        super().__init__(*bound)
        self._expiry = expiry
        self._written = WrittenKeys()

    def stamps_at(self, times: Int64Array | None, count: int) -> Int64Array | None:
        return self._expiry.stamps(times, count)

    def _note(self, store_keys: Sequence[bytes]) -> None:
        if self._expiry.renews:
            self._written.note(store_keys)


class TtlColumnState(_Stamped, ColumnState):
    """A ColumnState each of whose rows expires by itself. A range read renews what it shows, too."""

    def __init__(self, expiry: ColumnExpiry, *bound: Any) -> None:
        super().__init__(expiry, *bound)
        self._beside: list[KeptBeside] = []

    # -- reading ----------------------------------------------------------------------------------

    def get(self, keys: KeyBatch, stamps: Int64Array | None = None, renew: bool = True) -> Columns:
        store_keys = self._store_keys(keys)
        return self._reader(store_keys, stamps, renew)(self._sink.get_many(store_keys))

    def async_get(
        self, keys: KeyBatch, stamps: Int64Array | None = None, renew: bool = True
    ) -> StateFuture[Columns]:
        store_keys = self._store_keys(keys)
        return self._sink.async_get_many(store_keys).then_apply(self._reader(store_keys, stamps, renew))

    def _reader(
        self, store_keys: list[bytes], stamps: Int64Array | None, renew: bool
    ) -> Callable[[list[bytes | None]], Columns]:
        moment = self._written.moment

        def read(values: list[bytes | None]) -> Columns:
            rows = pa.array(values, LARGE_BINARY)
            valid = valid_mask(rows)
            rows = rows if valid is None else rows.drop_null()
            present = np.ones(len(values), np.bool_) if valid is None else valid.copy()
            found = self._expiry.read(rows)
            if renew and self._expiry.renews:
                at = self._expiry.stamps(None, len(values)) if stamps is None else stamps
                keys = store_keys if valid is None else _chosen(store_keys, present)
                self._renew(keys, rows, found, at[present], moment)
            shown = self._expiry.shown(found)
            if not shown.all():
                rows = rows.filter(pa.array(shown))
                present[present] = shown
            columns, _ = self._codec.decode(without_stamps(rows))
            return Columns(columns if present.all() else spread(columns, present), present)

        return read

    def _renew(
        self, keys: list[bytes], rows: pa.LargeBinaryArray, found: Int64Array, at: Int64Array, moment: int
    ) -> None:
        """Give what is due of the rows (n) under ``keys`` (n) its new stamp; not what was written since ``moment``."""
        due = self._expiry.due(found, at)
        if due.any():
            due[due] = ~self._written.since(_chosen(keys, due), moment)
            self._restamp(_chosen(keys, due), rows.filter(pa.array(due)), at[due])

    def _restamp(self, keys: list[bytes], rows: pa.LargeBinaryArray, stamps: Int64Array) -> None:
        if keys:
            prefixes = matrix_rows(self._expiry.prefix(stamps, len(keys)))
            self._sink.put_many(keys, list(map(add, prefixes, binary_rows(without_stamps(rows)))))
            self._written.note(keys)

    def _shown(self, entries: Page) -> tuple[Page, BoolArray]:
        rows = pa.array([value for _, value in entries], LARGE_BINARY)
        found = self._expiry.read(rows)
        if self._expiry.renews:
            keys = [key for key, _ in entries]
            self._renew(keys, rows, found, self._expiry.stamps(None, len(keys)), self._written.moment)
        shown = self._expiry.shown(found)
        if not shown.all():
            rows = rows.filter(pa.array(shown))
        bare = binary_rows(without_stamps(rows))
        return list(zip((entries[i][0] for i in np.flatnonzero(shown)), bare, strict=True)), shown

    # -- writing ----------------------------------------------------------------------------------

    def put(self, keys: KeyBatch, columns: Sequence[pa.Array], stamps: Int64Array | None = None) -> None:
        store_keys = self._store_keys(keys)
        rows = self._codec.encode(columns, self._expiry.prefix(stamps, len(store_keys)), len(store_keys))
        self._sink.put_many(store_keys, rows)
        self._note(store_keys)

    def remove(self, keys: KeyBatch) -> None:
        self.remove_entries(self._store_keys(keys))

    def remove_entries(self, store_keys: Sequence[bytes]) -> None:
        super().remove_entries(store_keys)
        self._note(store_keys)

    # -- the clean-up -----------------------------------------------------------------------------

    def take_along(self, beside: KeptBeside) -> None:
        self._beside.append(beside)

    def sweep(self, group: bytes) -> int:
        """Remove the expired rows of a key group, and the lists that they take along; the number of rows."""
        state = group + bytes([self._id])
        return sum(map(self._sweep_page, range_pages(self._sink, state, prefix_end(state), self._page_size)))

    def _sweep_page(self, page: Page) -> int:
        rows = pa.array([value for _, value in page], LARGE_BINARY)
        stamps = self._expiry.read(rows)
        expired, untimed = self._expiry.expired(stamps), self._expiry.untimed(stamps)
        touched = expired | untimed
        if not touched.any():
            return 0
        keys = [key for key, _ in page]
        touched[touched] = self._only_stored(_chosen(keys, touched))
        over = _chosen(keys, touched & expired)
        if over:
            self._sink.delete_many(over)
            self._remove_beside(over)
        late = touched & untimed
        now = self._expiry.stamps(None, int(late.sum()))
        self._restamp(_chosen(keys, late), rows.filter(pa.array(late)), now)
        return len(over)

    def _only_stored(self, store_keys: list[bytes]) -> BoolArray:
        """Which rows of a page (n) are nowhere else, so that this is where they are swept."""
        return np.ones(len(store_keys), np.bool_)

    def _remove_beside(self, keys: list[bytes]) -> None:
        for beside in self._beside:
            beside.remove_with(keys)


class TtlListColumnState(_Stamped, ListColumnState):
    """A ListColumnState each of whose rows expires by itself. Heads alone renew nothing."""

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
        changed, blocks = _restamped_blocks(stored, due, stamps)
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
        self._note(heads.store_keys)
        return super()._write(heads, added, rows)

    def _remove(self, heads: ListHeads) -> None:
        self._note(heads.store_keys)
        super()._remove(heads)

    # -- the clean-up -----------------------------------------------------------------------------

    def sweep(self, group: bytes) -> int:
        """Remove the expired rows of a key group; their number."""
        state = group + bytes([self._id])
        pages = range_pages(self._sink, state, prefix_end(state), self._page_size)
        return sum(map(self._sweep_lists, block_lists(pages, self._owner)))

    def _sweep_lists(self, found: FoundLists) -> int:
        """Write those of the lists anew, as if written at once, that have expired rows or rows without a time."""
        expiry, heads, stored = self._expiry, found.heads, rows_of(*found, self._owner)
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
            rows = _restamped_rows(rows, untimed, expiry.prefix(None, int(untimed.sum())))
        self._replace(heads.select(counts > 0), counts[counts > 0], rows)
        return int(expired.sum())


def _chosen(keys: Sequence[bytes], chosen: BoolArray) -> list[bytes]:
    return [keys[index] for index in np.flatnonzero(chosen).tolist()]


def _restamped_blocks(
    stored: StoredLists, due: BoolArray, stamps: Int64Array
) -> tuple[Int64Array, list[bytes]]:
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


def _restamped_rows(rows: pa.LargeBinaryArray, chosen: BoolArray, prefix: ByteArray) -> pa.LargeBinaryArray:
    """``rows`` (n), those that are ``chosen`` (n) with the stamps in ``prefix`` (k, 8)."""
    offsets, read_only = binary_parts(rows)
    data = read_only.copy()
    data[offsets[:-1][chosen][:, None] + np.arange(STAMP_BYTES)] = prefix
    return binary_from(offsets, pa.py_buffer(data))
