"""The rows of one join input, stored by join key.

Owns: ``Added``, ``SideState`` and its two layouts: a list of rows per key (for keys with many, ``long_lists``), or one
row per key where that is unique.
Invariant: both layouts return the same form, so the join does not know which one it reads.
Must not know of join types or row kinds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from asyncstate.codec import KeyBatch
from asyncstate.codec.sorting import rows_by
from asyncstate.errors import StateDeclarationError
from asyncstate.futures import StateFuture, completed_future
from asyncstate.operator import Bundle, OperatorContext
from asyncstate.state.columnar.list_blocks import ListHeads
from asyncstate.state.columnar.list_columns import ListColumns, ListColumnState, ListColumnStateDescriptor
from asyncstate.state.columnar.state_columns import Columns, ColumnState, ColumnStateDescriptor
from asyncstate.state.expiring.ttl import StateTtl

from ..core.arrays import BoolArray, Int64Array, concat_rows, index_among, last_of, row_ids, take_rows
from ..core.consolidation import ConsolidatedRows, net_by_content
from ..core.expiry_options import concat_stamps, row_stamps
from .long_lists import FoundRows, LongLists, together


@dataclass(frozen=True)
class Own:
    """The stored rows of the u keys of a bundle on its own side.

    ``rows``: the rows of the keys that were requested in full, none for the others; ``key_index`` is into all
    u keys. ``counts`` (u): rows of every key, or None if not requested. ``found``: of keys with long lists, whose
    rows are in ``rows`` as far as the bundle may change them; ``of_long`` marks these.
    """

    rows: ListColumns
    counts: Int64Array | None = None
    heads: ListHeads | None = None
    found: FoundRows | None = None
    of_long: BoolArray | None = None


@dataclass(frozen=True)
class Rows:
    """The rows of a bundle: their columns, and the index of the key of each (-1: none)."""

    columns: Sequence[pa.Array]
    key_index: Int64Array


@dataclass(frozen=True)
class Added:
    """Rows (n) to add: their columns, the index of the key of each, if they expire, the stamp of each, and for long
    lists the row of the bundle that each is.

    In order of arrival, or by key, then in order of arrival.
    """

    columns: Sequence[pa.Array]
    key_index: Int64Array
    stamps: Int64Array | None = None
    at: Int64Array | None = None

    def take(self, rows: Int64Array) -> Added:
        """Some of them, or all in another order."""
        stamps, at = (None if given is None else given[rows] for given in (self.stamps, self.at))
        return Added(take_rows(self.columns, rows), self.key_index[rows], stamps, at)

    def of_keys(self, chosen: BoolArray) -> Added:
        """The rows of the ``chosen`` keys, indexed among these."""
        some = self.take(np.flatnonzero(chosen[self.key_index]))
        return Added(some.columns, index_among(chosen)[some.key_index], some.stamps, some.at)

    def by_key(self) -> Added:
        """The rows by key, in their order within a key."""
        if not bool((self.key_index[1:] < self.key_index[:-1]).any()):
            return self
        return self.take(rows_by(self.key_index))


class SideState(ABC):
    """Rows of one input by join key. Keys come as a KeyBatch of u keys."""

    _state: ColumnState | ListColumnState

    def __init__(self, schema: pa.Schema, ttl: StateTtl | None) -> None:
        self._schema = schema
        self.ttl = ttl

    def prefetch(self, keys: KeyBatch) -> None:
        """Start loading what the other methods will read."""
        self._state.prefetch(keys)

    @abstractmethod
    def async_rows(self, keys: KeyBatch) -> StateFuture[ListColumns]:
        """A future of all rows of ``keys``, for rows of the other input to match."""

    @abstractmethod
    def async_own(
        self, keys: KeyBatch, full: BoolArray, counts: bool, rows: Rows | None = None
    ) -> StateFuture[Own]:
        """A future of the rows of the keys in the mask ``full`` (u), and of the counts of all if requested; ``rows``:
        those of the bundle, with which of a long list only those that they may change are read."""

    def stamps_of(self, bundle: Bundle, rows: Int64Array) -> Int64Array | None:
        """The stamps of ``rows`` (m) of a bundle; None if they do not expire."""
        return row_stamps(self._state, bundle, self.ttl, rows)

    @abstractmethod
    def apply(self, keys: KeyBatch, own: Own, removed: BoolArray, added: Added) -> None:
        """Remove the marked rows of ``own.rows`` and add new ones, in order of arrival."""

    def _none(self, num_keys: int) -> ListColumns:
        columns = [pa.array([], field.type) for field in self._schema]
        return ListColumns(columns, np.empty(0, np.int32), np.zeros(num_keys, np.int64))


class ListSide(SideState):
    """A list of rows per key; a new row is appended without decoding the previous rows.

    ``state``: the lists to use instead of separate ones for this side; then without a ttl.
    """

    _state: ListColumnState
    _long: LongLists | None = None

    def __init__(
        self,
        name: str,
        schema: pa.Schema,
        context: OperatorContext,
        ttl: StateTtl | None = None,
        state: ListColumnState | None = None,
    ) -> None:
        super().__init__(schema, ttl)
        self._owner = f"operator '{context.uid}', state '{name}'"
        if state is None:
            state = context.get_state(ListColumnStateDescriptor(name, schema, ttl=ttl))
        self._state = state

    def use_long_lists(self, long: LongLists) -> None:
        """Keep the rows of a key there once it has many and loses some."""
        self._long = long

    def async_rows(self, keys: KeyBatch) -> StateFuture[ListColumns]:
        """A future of all rows of ``keys``, for rows of the other input to match."""
        if not len(keys):
            return completed_future(self._none(0))
        return self._state.async_heads(keys).then_compose(lambda heads: self._all_rows(keys, heads))

    def _all_rows(self, keys: KeyBatch, heads: ListHeads) -> StateFuture[ListColumns]:
        is_long = heads.elsewhere
        if not is_long.any():
            return self._state.async_rows(heads)
        others = self._kept_apart.async_rows(keys, is_long)
        return self._state.async_rows(heads).then_combine(others, lambda some, more: together(some, more)[0])

    def async_own(
        self, keys: KeyBatch, full: BoolArray, counts: bool, rows: Rows | None = None
    ) -> StateFuture[Own]:
        """See ``SideState``; heads are read for all keys, since appending needs them."""
        if not len(keys):
            return completed_future(Own(self._none(0), np.zeros(0, np.int64)))
        heads = self._state.async_heads(keys)
        if counts and self.ttl is not None:  # the heads count rows that have expired, too
            return heads.then_compose(lambda found: self._own_live(found, full))
        return heads.then_compose(lambda found: self._with_long(keys, found, full, rows))

    def _with_long(
        self, keys: KeyBatch, heads: ListHeads, full: BoolArray, rows: Rows | None
    ) -> StateFuture[Own]:
        is_long = heads.elsewhere
        if not is_long.any():
            return self._own(heads, full, heads.counts)
        long, own = self._kept_apart, self._own(heads, full, heads.counts)
        if rows is None:
            return own
        return own.then_combine(long.async_find(keys, is_long, rows.columns, rows.key_index), _with_found)

    @property
    def _kept_apart(self) -> LongLists:
        """The rows of keys with many. Raises StateDeclarationError if the side has none, though an earlier program had:
        what it stored there would be missing."""
        if self._long is None:
            raise StateDeclarationError(
                f"{self._owner}: an earlier program has stored the rows of a key with many rows one by one (in the "
                "state that ends with _by_row), and the changed one reads lists alone; undo the change of the input "
                "(its changelog, sequence or columns) or of the join, and roll the checkpoint back to a version before "
                "it; or give the operator a new uid and replay its rows"
            )
        return self._long

    def _own_live(self, heads: ListHeads, full: BoolArray) -> StateFuture[Own]:
        return self._state.async_counts(heads).then_compose(lambda counts: self._own(heads, full, counts))

    def _own(self, heads: ListHeads, full: BoolArray, counts: Int64Array) -> StateFuture[Own]:
        if not full.any():
            return completed_future(Own(self._none(len(full)), counts, heads))
        return self._state.async_rows(heads.select(full)).then_apply(
            lambda rows: Own(_spread(rows, full), counts, heads)
        )

    def net(
        self,
        own: Own,
        columns: Sequence[pa.Array],
        key_index: npt.NDArray[np.integer],
        accumulate: BoolArray,
        sequence: Collection[str],
    ) -> ConsolidatedRows:
        """The net change of rows (n) to the lists of their keys, where all columns but those of ``sequence`` identify
        a row; ``own`` has all rows of keys that may lose some."""
        content = row_ids(
            [
                pa.concat_arrays([old, new])
                for old, new, field in zip(own.rows.columns, columns, self._schema, strict=True)
                if field.name not in sequence
            ],
            np.concatenate([own.rows.key_index, key_index]),
        )
        size = own.rows.num_rows
        # The sequence is part of the row, so one that comes again replaces its equal, however bundles are cut.
        return net_by_content(content[:size], content[size:], accumulate, refresh=bool(sequence))

    def apply(self, keys: KeyBatch, own: Own, removed: BoolArray, added: Added) -> None:
        """See ``SideState``; only keys that lose rows are written as a whole."""
        added = added.by_key()
        if own.found is not None:
            removed, added = self._apply_long(keys, own, removed, added)
        if not removed.any():
            if len(added.key_index):
                self._state.append(keys, added.columns, added.key_index, own.heads, added.stamps)
            return
        loses = np.zeros(len(keys), np.bool_)
        loses[own.rows.key_index[removed]] = True
        self._replace(keys, own, removed, added, loses)
        gains = np.zeros(len(keys), np.bool_)
        gains[added.key_index] = True
        gains &= ~loses
        if gains.any():
            assert own.heads is not None
            some = added.of_keys(gains)
            self._state.append(
                keys.select(gains), some.columns, some.key_index, own.heads.select(gains), some.stamps
            )

    def _apply_long(
        self, keys: KeyBatch, own: Own, removed: BoolArray, added: Added
    ) -> tuple[BoolArray, Added]:
        """Change the long lists; returns what is left to remove and to add."""
        assert self._long is not None
        assert own.found is not None
        assert own.of_long is not None
        assert own.heads is not None
        of_long = own.heads.elsewhere[added.key_index]
        come = added.take(np.flatnonzero(of_long))
        assert come.at is not None
        grown = self._long.change(own.found, removed[own.of_long], come.columns, come.at)
        changed = grown != 0
        counts = (own.heads.counts + grown)[changed]
        self._state.put_counts(keys.select(changed), counts, own.heads.select(changed))
        return removed & ~own.of_long, added.take(np.flatnonzero(~of_long))

    def _replace(self, keys: KeyBatch, own: Own, removed: BoolArray, added: Added, chosen: BoolArray) -> None:
        """Rewrite the lists of the ``chosen`` keys: the rows that stay, then the added ones."""
        assert own.heads is not None
        old = Added(own.rows.columns, own.rows.key_index.astype(np.int64), own.rows.stamps)
        stay = old.take(np.flatnonzero(~removed)).of_keys(chosen)
        come = added.of_keys(chosen)
        rows = Added(
            concat_rows(stay.columns, come.columns),
            np.concatenate([stay.key_index, come.key_index]),
            concat_stamps(stay.stamps, come.stamps),  # rows that stay keep their time
        ).by_key()
        keys, heads = keys.select(chosen), own.heads.select(chosen)
        if self._long is not None:
            counts = np.bincount(rows.key_index, minlength=len(keys))
            is_long = counts > self._long.more_than
            if is_long.any():
                many = rows.of_keys(is_long)
                self._long.put(keys.select(is_long), many.columns, many.key_index)
                self._state.put_counts(keys.select(is_long), counts[is_long], heads.select(is_long))
                keys, heads, rows = keys.select(~is_long), heads.select(~is_long), rows.of_keys(~is_long)
        self._state.put(keys, rows.columns, rows.key_index, heads, rows.stamps)


class UniqueSide(SideState):
    """One row per key: the newest."""

    _state: ColumnState

    def __init__(
        self, name: str, schema: pa.Schema, context: OperatorContext, ttl: StateTtl | None = None
    ) -> None:
        super().__init__(schema, ttl)
        self._state = context.get_state(ColumnStateDescriptor(name, schema, ttl=ttl))

    def async_rows(self, keys: KeyBatch) -> StateFuture[ListColumns]:
        """A future of all rows of ``keys``, for rows of the other input to match."""
        if not len(keys):
            return completed_future(self._none(0))
        return self._state.async_get(keys).then_apply(_present)

    def async_own(
        self, keys: KeyBatch, full: BoolArray, counts: bool, rows: Rows | None = None
    ) -> StateFuture[Own]:
        """See ``SideState``; nothing is read when nothing is requested."""
        if not len(keys) or not (counts or full.any()):
            return completed_future(Own(self._none(len(keys)), np.zeros(len(keys), np.int64)))
        if counts or full.all():
            return self.async_rows(keys).then_apply(lambda rows: Own(rows, rows.counts))
        return self.async_rows(keys.select(full)).then_apply(lambda rows: Own(_spread(rows, full)))

    def apply(self, keys: KeyBatch, own: Own, removed: BoolArray, added: Added) -> None:
        """Remove the marked rows of ``own.rows`` and add new ones, in order of arrival."""
        newest = last_of(added.key_index, np.arange(len(added.key_index)), len(keys))
        gains = newest >= 0
        loses = np.zeros(len(keys), np.bool_)
        loses[own.rows.key_index[removed]] = True
        loses &= ~gains
        if gains.any():
            some = added.take(newest[gains])
            self._state.put(keys.select(gains), some.columns, some.stamps)
        if loses.any():
            self._state.remove(keys.select(loses))


def _with_found(own: Own, found: FoundRows) -> Own:
    """What was read of all keys, and of those with long lists."""
    rows, order = together(own.rows, found.rows)
    return replace(own, rows=rows, found=found, of_long=order >= own.rows.num_rows)


def _present(found: Columns) -> ListColumns:
    index = np.flatnonzero(found.present).astype(np.int32)
    columns = found.columns
    if len(index) < len(found.present):
        columns = [column.take(pa.array(index)) for column in columns]
    return ListColumns(columns, index, found.present.astype(np.int64))


def _spread(rows: ListColumns, chosen: BoolArray) -> ListColumns:
    """Rows read for the ``chosen`` keys, indexed by all keys."""
    if chosen.all():
        return rows
    counts = np.zeros(len(chosen), np.int64)
    counts[chosen] = rows.counts
    key_index = np.flatnonzero(chosen)[rows.key_index].astype(np.int32)
    return ListColumns(rows.columns, key_index, counts, rows.stamps)
