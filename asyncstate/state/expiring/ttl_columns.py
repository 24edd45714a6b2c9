"""Column states with a time to live.

Owns: ``TtlColumnState`` and ``TtlListColumnState``, separate classes, so that states without a ttl have no overhead.
Invariant: reads return the same in both modes. Each row of a list has its own stamp, before its bytes. Only the
clean-up rewrites a list that the operator does not write.
Must not import storage, execution or operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import add
from typing import Any

import numpy as np
import pyarrow as pa

from asyncstate.codec import KeyBatch, prefix_end
from asyncstate.codec.value_columns import (
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
from asyncstate.futures import StateFuture
from asyncstate.state.columnar.column_state import BundleState, Columns, ColumnState, DependentState
from asyncstate.state.columnar.list_blocks import ListHeads
from asyncstate.state.columnar.list_column_state import ListColumns, ListColumnState
from asyncstate.state.expiring.expiry import STAMP_BYTES, ColumnExpiry, without_stamps
from asyncstate.state.ranges import range_pages
from asyncstate.state.stored_lists import FoundLists, StoredLists, block_lists, rows_of
from asyncstate.state_backend import Page


class _Stamped(BundleState):
    """A state whose rows expire separately."""

    def __init__(self, expiry: ColumnExpiry, *bound: Any) -> None:
        """``bound``: the arguments of the state without a ttl."""
        super().__init__(*bound)
        self._expiry = expiry

    def stamps_at(self, times: Int64Array | None, count: int) -> Int64Array | None:
        return self._expiry.stamps(times, count)


class TtlColumnState(_Stamped, ColumnState):
    """A ColumnState whose rows expire separately."""

    def __init__(self, expiry: ColumnExpiry, *bound: Any) -> None:
        super().__init__(expiry, *bound)
        self._dependents: list[DependentState] = []

    # -- reading ----------------------------------------------------------------------------------

    def _decode(self, values: Sequence[bytes | None]) -> Columns:
        rows = pa.array(values, LARGE_BINARY)
        valid = valid_mask(rows)
        rows = rows if valid is None else rows.drop_null()
        present = np.ones(len(values), np.bool_) if valid is None else valid.copy()
        live = self._expiry.live(self._expiry.read(rows))
        if not live.all():
            rows = rows.filter(pa.array(live))
            present[present] = live
        columns, _ = self._codec.decode(without_stamps(rows))
        return Columns(columns if present.all() else spread(columns, present), present)

    def _restamp(self, keys: list[bytes], rows: pa.LargeBinaryArray, stamps: Int64Array) -> None:
        if keys:
            prefixes = matrix_rows(self._expiry.prefix(stamps, len(keys)))
            self._sink.put_many(keys, list(map(add, prefixes, binary_rows(without_stamps(rows)))))

    def _unexpired(self, entries: Page) -> tuple[Page, BoolArray]:
        rows = pa.array([value for _, value in entries], LARGE_BINARY)
        live = self._expiry.live(self._expiry.read(rows))
        if not live.all():
            rows = rows.filter(pa.array(live))
        bare = binary_rows(without_stamps(rows))
        return list(zip((entries[i][0] for i in np.flatnonzero(live)), bare, strict=True)), live

    # -- writing ----------------------------------------------------------------------------------

    def put(self, keys: KeyBatch, columns: Sequence[pa.Array], stamps: Int64Array | None = None) -> None:
        store_keys = self._store_keys(keys)
        rows = self._codec.encode(columns, self._expiry.prefix(stamps, len(store_keys)), len(store_keys))
        self._sink.put_many(store_keys, rows)

    # -- the clean-up -----------------------------------------------------------------------------

    def cascade_expiry(self, dependent: DependentState) -> None:
        self._dependents.append(dependent)

    def sweep(self, group: bytes) -> int:
        """Remove the expired rows of a key group, and their dependent lists; the number of rows."""
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
            self._remove_dependents(over)
        late = touched & untimed
        now = self._expiry.stamps(None, int(late.sum()))
        self._restamp(_chosen(keys, late), rows.filter(pa.array(late)), now)
        return len(over)

    def _only_stored(self, store_keys: list[bytes]) -> BoolArray:
        """Which rows of a page (n) are only in the store, so that they are swept here."""
        return np.ones(len(store_keys), np.bool_)

    def _remove_dependents(self, keys: list[bytes]) -> None:
        for dependent in self._dependents:
            dependent.remove_with(keys)


class TtlListColumnState(_Stamped, ListColumnState):
    """A ListColumnState whose rows expire separately."""

    # -- reading ----------------------------------------------------------------------------------

    def async_counts(self, heads: ListHeads) -> StateFuture[Int64Array]:
        """See ``ListColumnState``; reads the chunks."""

        def unexpired(stored: StoredLists) -> Int64Array:
            there = self._expiry.live(self._expiry.read(stored.rows))
            counts: Int64Array = np.bincount(stored.key_index[there], minlength=len(heads.blocks))
            return counts

        return self._async_stored(heads).then_apply(unexpired)

    def _decode(self, heads: ListHeads, stored: StoredLists) -> ListColumns:
        rows, key_index = stored.rows, stored.key_index
        stamps = self._expiry.read(rows)
        live = self._expiry.live(stamps)
        if not live.all():
            rows, key_index, stamps = rows.filter(pa.array(live)), key_index[live], stamps[live]
        columns, _ = self._codec.decode(without_stamps(rows))
        counts = np.bincount(key_index, minlength=len(heads.blocks))
        return ListColumns(columns, key_index, counts, stamps)

    # -- writing ----------------------------------------------------------------------------------

    def _encode(self, columns: Sequence[pa.Array], stamps: Int64Array | None) -> pa.LargeBinaryArray:
        count = len(columns[0]) if columns else 0
        return self._codec.encode_column(columns, self._expiry.prefix(stamps, count))

    # -- the clean-up -----------------------------------------------------------------------------

    def sweep(self, group: bytes) -> int:
        """Remove the expired rows of a key group; their number."""
        state = group + bytes([self._id])
        pages = range_pages(self._sink, state, prefix_end(state), self._page_size)
        return sum(map(self._sweep_lists, block_lists(pages, self._owner)))

    def _sweep_lists(self, found: FoundLists) -> int:
        """Rewrite the lists that have expired rows or rows without a time, each as if one call had written it."""
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


def _restamped_rows(rows: pa.LargeBinaryArray, chosen: BoolArray, prefix: ByteArray) -> pa.LargeBinaryArray:
    """``rows`` (n), with the stamps in ``prefix`` (k, 8) for the k that are ``chosen`` (mask, n)."""
    offsets, read_only = binary_parts(rows)
    data = read_only.copy()
    data[offsets[:-1][chosen][:, None] + np.arange(STAMP_BYTES)] = prefix
    return binary_from(offsets, pa.py_buffer(data))
