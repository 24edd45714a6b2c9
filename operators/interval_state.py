"""The rows of one input of an interval join that may still find a partner.

Owns: ``IntervalSide``: how rows are stored to be found by key and time, which of them had a partner, and those that
are to be put out alone when their time is over.
Invariant: of the rows of one key and time, those that are marked as unmatched in the lists, and those in the lists
of unmatched rows, are the same, in the same order.
Must not know of join types.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from asyncstate.codec import KeyBatch
from asyncstate.codec.times import event_times
from asyncstate.futures import StateFuture, completed_future, completed_void_future
from asyncstate.operator import InputSpec, OperatorContext
from asyncstate.state.list_blocks import ListHeads, empty_heads
from asyncstate.state.list_columns import ListColumns
from asyncstate.state.time_first_lists import TimeFirstListDescriptor, TimeFirstListState
from operators.due_entries import DueReader
from operators.interval_core import FILE_US_MIN, Grid, Interval, TimedRows
from operators.join_inputs import take_rows

BoolArray = npt.NDArray[np.bool_]
Int64Array = npt.NDArray[np.int64]

REWRITE_ROWS: Final = 128
"""A list this long is written anew when a read finds that most of it is of no more use."""

_UNMATCHED: Final = -2  # stands for null: a row that has had no partner
_MATCHED: Final = -1
"""In the column ``matched``: a row that has had a partner. From 0 on: no row, the one at this place has found one."""


@dataclass(frozen=True)
class Traits:
    """What the join wants of a side.

    ``watched``: to know which rows have had a partner. ``padded``: to get those that had none when they are over.
    ``once``: rows that have had a partner are of no more use.
    """

    watched: bool = False
    padded: bool = False
    once: bool = False


@dataclass(frozen=True)
class IntervalStateDescriptor(TimeFirstListDescriptor):
    """A state of one kind of join and interval."""

    join: str = ""

    def type_texts(self) -> dict[str, str]:
        """Schema, layout, kind of join and interval."""
        return {**super().type_texts(), "join": self.join}


@dataclass(frozen=True)
class NewRows:
    """Rows (n) of a bundle: payload columns, index of the key among the bundle's, and times."""

    columns: Sequence[pa.Array]
    keys: Int64Array
    times: Int64Array

    def take(self, chosen: Int64Array) -> NewRows:
        """Some of the rows."""
        return NewRows(take_rows(self.columns, chosen), self.keys[chosen], self.times[chosen])


@dataclass(frozen=True)
class Found:
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
    """State ``<name>``: lists of rows by cell of time and key, and, if padded, ``<name>_unmatched`` likewise.

    A row is never changed where it lies; that it found a partner is appended to its list as an entry of its own.
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
        self._form = _RowForm(spec.schema, time_column)
        self._grid = interval.lists
        self._fine = Grid(FILE_US_MIN)
        flag = [pa.field(_free_name("matched", spec.schema), pa.int64())] if traits.watched else []
        self._schema = pa.schema([*flag, *self._form.fields])
        self._lists = context.get_state(IntervalStateDescriptor(name, self._schema, join=text))
        self._unmatched: TimeFirstListState | None = None
        if traits.padded:
            self._unmatched = context.get_state(
                IntervalStateDescriptor(f"{name}_unmatched", pa.schema(self._form.fields), join=text)
            )
        self._groups = context.key_groups

    # -- finding ------------------------------------------------------------------------------------

    def cells(self, keys: KeyBatch, index: Int64Array, times: Int64Array) -> KeyBatch:
        """Where rows with these keys (n, indices of ``keys``) and times lie."""
        return keys.in_namespaces(self._grid.cell(times), index)

    def prefetch(self, cells: KeyBatch) -> None:
        """Start loading what the other methods read."""
        if len(cells):
            self._lists.prefetch(cells)

    def async_heads(self, cells: KeyBatch) -> StateFuture[ListHeads]:
        """A future of what ``add`` has to know."""
        return self._lists.async_heads(cells) if len(cells) else completed_future(empty_heads([]))

    def async_find(self, cells: KeyBatch, cell_keys: Int64Array, over: int) -> StateFuture[Found]:
        """A future of the rows in ``cells`` that are later than ``over``; ``cell_keys``: the key of each cell."""
        if not len(cells):
            columns = [pa.array([], field.type) for field in self._schema]
            nothing = ListColumns(columns, np.empty(0, np.int32), np.empty(0, np.int64))
            return completed_future(self._found(cells, cell_keys, over, empty_heads([]), nothing))
        return self._lists.async_heads(cells).then_compose(
            lambda heads: self._lists.async_rows(heads).then_apply(
                lambda entries: self._found(cells, cell_keys, over, heads, entries)
            )
        )

    def _found(
        self, cells: KeyBatch, cell_keys: Int64Array, over: int, heads: ListHeads, entries: ListColumns
    ) -> Found:
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
        return Found(
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

    def add(
        self, cells: KeyBatch, heads: ListHeads, rows: NewRows, chosen: BoolArray, matched: BoolArray
    ) -> None:
        """Store the ``chosen`` ones of the rows (n) that ``cells`` was made of; ``matched`` (n): had a partner."""
        index, places = _by_cell(cells, chosen)
        if not len(index):
            return
        taken = rows.take(places)
        columns = self._entries(matched[places], taken.columns, taken.times)
        self._lists.append(cells, columns, index, heads)

    def async_add_unmatched(self, keys: KeyBatch, rows: NewRows, chosen: BoolArray) -> StateFuture[None]:
        """Store the ``chosen`` ones of the rows (n) to be put out when they are over; nothing if not padded."""
        state = self._unmatched
        places = np.flatnonzero(chosen)
        if state is None or not len(places):
            return completed_void_future()
        taken = rows.take(places)
        cells = keys.in_namespaces(self._fine.cell(taken.times), taken.keys)
        index, order = _by_cell(cells, np.ones(len(places), np.bool_))
        taken = taken.take(order)
        columns = self._form.pack(taken.columns, taken.times)
        return state.async_heads(cells).then_accept(lambda heads: state.append(cells, columns, index, heads))

    def async_note(self, keys: KeyBatch, found: Found, partner: BoolArray) -> StateFuture[None]:
        """Note that rows (r) have found a partner, their first or another one; write lists anew where it pays."""
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
        return self._async_forget(keys, found, first)

    def _rewrite(self, found: Found, cells: BoolArray, rows: BoolArray, matched: BoolArray) -> None:
        kept = np.flatnonzero(rows)
        position = np.cumsum(cells) - 1
        columns = self._entries(matched[kept], take_rows(found.columns, kept), found.times[kept])
        index = position[found.entries.key_index[found.places[kept]]]
        self._lists.put(found.cells.select(cells), columns, index, found.heads.select(cells))

    def _mark(self, found: Found, marked: BoolArray) -> None:
        """Append an entry for each of the rows that tells its place in the list."""
        places = found.places[marked]
        index = found.entries.key_index[places]
        columns = [
            pa.array(places - found.entries.starts[index]),
            *(pa.nulls(len(places), field.type) for field in self._form.fields),
        ]
        self._lists.append(found.cells, columns, index, found.heads)

    def _async_forget(self, keys: KeyBatch, found: Found, first: BoolArray) -> StateFuture[None]:
        """Take rows that have found a partner out of those that wait to be put out."""
        state = self._unmatched
        gone = np.flatnonzero(first)
        if state is None or not len(gone):
            return completed_void_future()
        ranks = _ranks(TimedRows(found.keys, found.times), ~found.matched)[gone]
        times = found.times[gone]
        cells = keys.in_namespaces(self._fine.cell(times), found.keys[gone])

        def remove(heads: ListHeads, waiting: ListColumns) -> None:
            timed = TimedRows(waiting.key_index, self._form.unpack(waiting.columns)[1])
            at = timed.between(cells.inverse, times, times).first + ranks
            stays = np.ones(waiting.num_rows, np.bool_)
            stays[timed.order[at]] = False
            mask = pa.array(stays)
            left = [column.filter(mask) for column in waiting.columns]
            state.put(cells, left, waiting.key_index[stays], heads)

        return state.async_heads(cells).then_compose(
            lambda heads: state.async_rows(heads).then_accept(lambda waiting: remove(heads, waiting))
        )

    def _entries(self, matched: BoolArray, columns: Sequence[pa.Array], times: Int64Array) -> list[pa.Array]:
        packed = self._form.pack(columns, times)
        if not self.traits.watched:
            return packed
        return [pa.array(np.full(len(times), _MATCHED), mask=~matched), *packed]

    # -- the end of rows ------------------------------------------------------------------------------

    def unmatched(self, before: int, over: int) -> Iterator[list[pa.Array]]:
        """Payload columns of the unmatched rows with before < time <= ``over``, by time, then as stored; in parts."""
        if self._unmatched is None:
            return
        first = self._fine.cell_of(before + 1)
        for part in DueReader(self._unmatched, self._fine, self._groups).parts(
            first, self._fine.cell_of(over)
        ):
            columns, times = self._form.unpack(part.entries.columns)
            order = np.argsort(times, kind="stable")
            ordered = times[order]
            begin, end = np.searchsorted(ordered, [before, over], "right")
            if begin < end:
                yield list(take_rows(columns, order[begin:end]))

    def remove_over(self, before: int, over: int) -> None:
        """Remove the lists all of whose rows have before < time <= ``over``, those up to ``before`` being gone."""
        for state, grid in ((self._lists, self._grid), (self._unmatched, self._fine)):
            first, last = grid.cell_of(before + 1), grid.last_before(over)
            if state is not None and first <= last:
                state.remove_up_to(last, first)


class _RowForm:
    """Rows as they are stored: the input's columns, behind their time if no column has it."""

    def __init__(self, schema: pa.Schema, time_column: str | None) -> None:
        own = [pa.field(_free_name("time", schema), pa.int64())] if time_column is None else []
        self.fields = [*own, *(field.with_nullable(True) for field in schema)]
        self._first = len(own)
        self._time = 0 if time_column is None else schema.names.index(time_column)

    def pack(self, columns: Sequence[pa.Array], times: Int64Array) -> list[pa.Array]:
        """The stored columns."""
        return [pa.array(times), *columns] if self._first else list(columns)

    def unpack(self, stored: Sequence[pa.Array]) -> tuple[list[pa.Array], Int64Array]:
        """The input's columns and the times, 0 for null."""
        if not self._first:
            return list(stored), event_times(stored[self._time])
        return list(stored[1:]), stored[0].fill_null(0).to_numpy()


def _free_name(name: str, schema: pa.Schema) -> str:
    while name in schema.names:
        name = f"_{name}"
    return name


def _by_cell(cells: KeyBatch, chosen: BoolArray) -> tuple[Int64Array, Int64Array]:
    """Cells (ascending) and indices of the chosen rows, in their order within a cell."""
    places = np.flatnonzero(chosen)
    index = cells.inverse[places].astype(np.int64)
    if bool((index[1:] < index[:-1]).any()):
        order = np.argsort(index, kind="stable")
        index, places = index[order], places[order]
    return index, places


def _ranks(timed: TimedRows, chosen: BoolArray) -> Int64Array:
    """How many ``chosen`` rows of its key and time stand before each row."""
    before = np.zeros(len(chosen) + 1, np.int64)
    np.cumsum(chosen[timed.order], out=before[1:])
    ranks = np.empty(len(chosen), np.int64)
    ranks[timed.order] = before[:-1] - before[timed.first_of_equals]
    return ranks
