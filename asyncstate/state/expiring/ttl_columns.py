"""ColumnState with a time to live.

Owns: ``TtlColumnState``, a class of its own so that states without a ttl pay nothing.
Invariant: what reads show and renew is the same in both modes; a renewal never undoes a write.
Must not import storage, execution or operators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import add

import numpy as np
import pyarrow as pa

from asyncstate.codec import KeyBatch, RowCodec, prefix_end
from asyncstate.codec.columns import (
    LARGE_BINARY,
    BoolArray,
    Int64Array,
    binary_rows,
    matrix_rows,
    spread,
    valid_mask,
)
from asyncstate.futures import StateFuture
from asyncstate.operator import OperatorContext
from asyncstate.requests import Page, StateSink
from asyncstate.state.columnar.column_state import Columns, ColumnState, KeptBeside
from asyncstate.state.expiring.column_expiry import ColumnExpiry, WrittenKeys, without_stamps
from asyncstate.state.ranges import range_pages


class TtlColumnState(ColumnState):
    """A ColumnState each of whose rows expires by itself. A range read renews what it shows, too."""

    def __init__(
        self,
        sink: StateSink,
        state_id: int,
        codec: RowCodec,
        context: OperatorContext,
        expiry: ColumnExpiry,
    ) -> None:
        super().__init__(sink, state_id, codec, context)
        self._expire_by(expiry)

    def _expire_by(self, expiry: ColumnExpiry) -> None:
        self._expiry = expiry
        self._beside: list[KeptBeside] = []
        self._written = WrittenKeys()

    def stamps_at(self, times: Int64Array | None, count: int) -> Int64Array | None:
        """See ``ColumnState``."""
        return self._expiry.stamps(times, count)

    # -- reading ----------------------------------------------------------------------------------

    def get(self, keys: KeyBatch, stamps: Int64Array | None = None, renew: bool = True) -> Columns:
        """See ``ColumnState``."""
        store_keys = self._store_keys(keys)
        return self._reader(store_keys, stamps, renew)(self._sink.get_many(store_keys))

    def async_get(
        self, keys: KeyBatch, stamps: Int64Array | None = None, renew: bool = True
    ) -> StateFuture[Columns]:
        """See ``ColumnState``."""
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
        """See ``ColumnState``."""
        store_keys = self._store_keys(keys)
        rows = self._codec.encode(columns, self._expiry.prefix(stamps, len(store_keys)), len(store_keys))
        self._sink.put_many(store_keys, rows)
        self._note(store_keys)

    def remove(self, keys: KeyBatch) -> None:
        """See ``ColumnState``."""
        self.remove_entries(self._store_keys(keys))

    def remove_entries(self, store_keys: Sequence[bytes]) -> None:
        """See ``ColumnState``."""
        super().remove_entries(store_keys)
        self._note(store_keys)

    def _note(self, store_keys: Sequence[bytes]) -> None:
        if self._expiry.renews:
            self._written.note(store_keys)

    # -- the clean-up -----------------------------------------------------------------------------

    def take_along(self, beside: KeptBeside) -> None:
        """See ``ColumnState``."""
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
        removed = self._remove_expired(_chosen(keys, touched & expired))
        late = touched & untimed
        now = self._expiry.stamps(None, int(late.sum()))
        self._restamp(_chosen(keys, late), rows.filter(pa.array(late)), now)
        return removed

    def _only_stored(self, store_keys: list[bytes]) -> BoolArray:
        """Which rows of a page (n) are nowhere else, so that this is where they are swept."""
        return np.ones(len(store_keys), np.bool_)

    def _remove_expired(self, keys: list[bytes]) -> int:
        if keys:
            self._sink.delete_many(keys)
            self._remove_beside(keys)
        return len(keys)

    def _remove_beside(self, keys: list[bytes]) -> None:
        for beside in self._beside:
            beside.remove_with(keys)


def _chosen(keys: Sequence[bytes], chosen: BoolArray) -> list[bytes]:
    return [keys[index] for index in np.flatnonzero(chosen).tolist()]
