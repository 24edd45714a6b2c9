"""The rows of one input of an interval join that may still find a partner.

Owns: ``IntervalSide``: how rows are stored to be found by key and time, and which of them had a partner.
Invariant: a stored row is never changed in place, and rows of one key and time keep their order.
Must not know of join types.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from asyncstate.codec import KeyBatch
from asyncstate.futures import StateFuture, completed_future, completed_void_future
from asyncstate.operator import InputSpec, OperatorContext
from asyncstate.state.columnar.list_blocks import ListHeads, empty_heads
from asyncstate.state.columnar.list_columns import ListColumns, ListColumnStateDescriptor

from ...core.arrays import BoolArray, Int64Array, take_rows
from .interval import Interval
from .interval_rows import (
    IntervalRows,
    RowForm,
    by_cell,
    free_name,
    remove_over,
)
from .unmatched import UnmatchedRows

REWRITE_ROWS: Final = 128
"""A list this long is rewritten when a read finds that most of it is no longer needed."""

_UNMATCHED: Final = -2  # instead of null: a row that has had no partner
_MATCHED: Final = -1
"""In the column ``matched``: a row that has had a partner. From 0 on: no row, the one at this index has found one."""


@dataclass(frozen=True)
class Traits:
    """What the join needs from a side.

    ``watched``: which rows have had a partner. ``padded``: those that had none when they are over. ``once``: rows that
    have had a partner are no longer needed.
    """

    watched: bool = False
    padded: bool = False
    once: bool = False


@dataclass(frozen=True)
class MatchedPairs:
    """Stored rows (r) in reach of a bundle: payload, index of the key among the bundle's, times, had a partner.

    ``cells``, their ``heads`` and ``entries`` are what was read; ``places`` (r) are the rows' indices in ``entries``.
    """

    columns: Sequence[pa.Array]
    keys: Int64Array
    times: Int64Array
    matched: BoolArray
    cells: KeyBatch
    heads: ListHeads
    entries: ListColumns
    places: Int64Array


class IntervalSide:
    """State ``name``: lists of rows by cell of time and key; if padded, also ``UnmatchedRows``.

    When a row has found a partner, a separate entry for that is appended to its list.
    """

    def __init__(
        self,
        name: str,
        spec: InputSpec,
        time_column: str | None,
        interval: Interval,
        traits: Traits,
        text: str,
        context: OperatorContext,
    ) -> None:
        self.traits = traits
        self._form = RowForm(spec.schema, time_column)
        self._grid = interval.lists
        flag = [pa.field(free_name("matched", spec.schema), pa.int64())] if traits.watched else []
        self._schema = pa.schema([*flag, *self._form.fields])
        self._lists = context.get_state(
            ListColumnStateDescriptor(name, self._schema, time_first=True, belongs_to=("join", text))
        )
        self._unmatched: UnmatchedRows | None = None
        if traits.padded:
            self._unmatched = UnmatchedRows(f"{name}_unmatched", self._form, text, context)

    # -- finding ------------------------------------------------------------------------------------

    def cells(self, keys: KeyBatch, index: Int64Array, times: Int64Array) -> KeyBatch:
        """The cells of rows with these keys (n, indices of ``keys``) and times."""
        return keys.in_namespaces(self._grid.cell(times), index)

    def prefetch(self, cells: KeyBatch) -> None:
        """Start loading what the other methods read."""
        if len(cells):
            self._lists.prefetch(cells)

    def async_heads(self, cells: KeyBatch) -> StateFuture[ListHeads]:
        """A future of the heads that ``async_add`` needs."""
        return self._lists.async_heads(cells) if len(cells) else completed_future(empty_heads([]))

    def async_find(self, cells: KeyBatch, cell_keys: Int64Array, over: int) -> StateFuture[MatchedPairs]:
        """A future of the rows in ``cells`` that are later than ``over``; ``cell_keys``: the key of each cell."""
        if not len(cells):
            columns = [pa.array([], field.type) for field in self._schema]
            nothing = ListColumns(columns, np.empty(0, np.int32), np.empty(0, np.int64))
            return completed_future(self._found(cells, cell_keys, over, empty_heads([]), nothing))
        return self._lists.async_read(cells).then_apply(
            lambda read: self._found(cells, cell_keys, over, *read)
        )

    def _found(
        self, cells: KeyBatch, cell_keys: Int64Array, over: int, heads: ListHeads, entries: ListColumns
    ) -> MatchedPairs:
        columns, times = self._form.unpack(entries.columns[int(self.traits.watched) :])
        useful = times > over
        matched = np.zeros(entries.num_rows, np.bool_)
        if self.traits.watched:
            flags = entries.columns[0].fill_null(_UNMATCHED).to_numpy()
            marks = flags >= 0
            matched = flags == _MATCHED
            matched[(entries.starts[entries.key_index] + flags)[marks]] = True
            useful &= ~marks
            if self.traits.once:
                useful &= ~matched
        places = np.flatnonzero(useful)
        return MatchedPairs(
            take_rows(columns, places),
            cell_keys[entries.key_index[places]],
            times[places],
            matched[places],
            cells,
            heads,
            entries,
            places,
        )

    # -- changing -----------------------------------------------------------------------------------

    def async_add(
        self,
        keys: KeyBatch,
        cells: KeyBatch,
        heads: ListHeads,
        rows: IntervalRows,
        waits: BoolArray,
        matched: BoolArray,
    ) -> StateFuture[None]:
        """Store the rows (n) that wait for partners; ``matched`` (n): had one. ``cells``: those of rows that wait."""
        kept = np.flatnonzero(waits)
        index, places = by_cell(cells, ~matched[kept] if self.traits.once else np.ones(len(kept), np.bool_))
        if len(index):
            taken = rows.take(kept[places])
            columns = self._entries(matched[kept[places]], taken.columns, taken.times)
            self._lists.append(cells, columns, index, heads)
        if self._unmatched is None:
            return completed_void_future()
        return self._unmatched.async_add(keys, rows, waits & ~matched)

    def async_note(self, keys: KeyBatch, found: MatchedPairs, partner: BoolArray) -> StateFuture[None]:
        """Record that rows (r) have found a partner, their first or another one; rewrite lists where it pays off."""
        first = partner & ~found.matched if self.traits.watched else np.zeros(len(partner), np.bool_)
        cell = found.entries.key_index[found.places]
        matched = found.matched | first
        useful = ~matched if self.traits.once else np.ones(len(matched), np.bool_)
        sizes = found.entries.counts + np.bincount(cell[first], minlength=len(found.cells))
        needed = np.bincount(cell[useful], minlength=len(found.cells))
        rewritten = (sizes >= REWRITE_ROWS) & (2 * needed < sizes)
        if rewritten.any():
            self._rewrite(found, rewritten, useful & rewritten[cell], matched)
        marked = first & ~rewritten[cell]
        if marked.any():
            self._mark(found, marked)
        if self._unmatched is None:
            return completed_void_future()
        return self._unmatched.async_remove(keys, found.keys, found.times, found.matched, first)

    def _rewrite(self, found: MatchedPairs, cells: BoolArray, rows: BoolArray, matched: BoolArray) -> None:
        kept = np.flatnonzero(rows)
        position = np.cumsum(cells) - 1
        columns = self._entries(matched[kept], take_rows(found.columns, kept), found.times[kept])
        index = position[found.entries.key_index[found.places[kept]]]
        self._lists.put(found.cells.select(cells), columns, index, found.heads.select(cells))

    def _mark(self, found: MatchedPairs, marked: BoolArray) -> None:
        """Append an entry for each of the rows, with its index in the list."""
        places = found.places[marked]
        index = found.entries.key_index[places]
        columns = [
            pa.array(places - found.entries.starts[index]),
            *(pa.nulls(len(places), field.type) for field in self._form.fields),
        ]
        self._lists.append(found.cells, columns, index, found.heads)

    def _entries(self, matched: BoolArray, columns: Sequence[pa.Array], times: Int64Array) -> list[pa.Array]:
        packed = self._form.pack(columns, times)
        if not self.traits.watched:
            return packed
        return [pa.array(np.full(len(times), _MATCHED), mask=~matched), *packed]

    # -- the end of rows ------------------------------------------------------------------------------

    def due(self, before: int, over: int) -> Iterator[list[pa.Array]]:
        """Payload columns of the rows with before < time <= ``over`` that had no partner; none if not padded."""
        return iter(()) if self._unmatched is None else self._unmatched.due(before, over)

    def remove_over(self, before: int, over: int) -> None:
        """Remove the rows that are over; see ``UnmatchedRows``."""
        remove_over(self._lists, self._grid, before, over)
        if self._unmatched is not None:
            self._unmatched.remove_over(before, over)
