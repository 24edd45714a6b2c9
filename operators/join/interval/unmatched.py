"""The rows of one input of an interval join that are emitted alone unless they find a partner.

Owns: ``UnmatchedRows``: they wait in lists by second of time and key, separate from the lists that are searched.
Invariant: these lists and the others have the same rows of one key and time that had no partner, in the same order; so
the rank among them identifies a row here.
Must not know of join types.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from asyncstate.codec import KeyBatch
from asyncstate.codec.sorting import rows_by
from asyncstate.futures import StateFuture, completed_void_future
from asyncstate.operator import OperatorContext
from asyncstate.state.columnar.due_parts import DueReader
from asyncstate.state.columnar.list_blocks import ListHeads
from asyncstate.state.columnar.list_columns import ListColumns, ListColumnStateDescriptor

from ...core.arrays import BoolArray, Int64Array, take_rows
from .interval import FILE_US_MIN, Grid, TimedRows
from .interval_rows import IntervalRows, RowForm, by_cell, remove_over


class UnmatchedRows:
    """State ``name``: whole rows. Each is written once, removed with its first partner or when it is over."""

    def __init__(self, name: str, form: RowForm, text: str, context: OperatorContext) -> None:
        self._form = form
        self._grid = Grid(FILE_US_MIN)
        self._lists = context.get_state(
            ListColumnStateDescriptor(
                name, pa.schema(form.fields), time_first=True, belongs_to=("join", text)
            )
        )
        self._groups = context.key_groups

    def async_add(self, keys: KeyBatch, rows: IntervalRows, chosen: BoolArray) -> StateFuture[None]:
        """Store the ``chosen`` rows of ``rows`` (n)."""
        places = np.flatnonzero(chosen)
        if not len(places):
            return completed_void_future()
        taken = rows.take(places)
        cells = keys.in_namespaces(self._grid.cell(taken.times), taken.keys)
        index, order = by_cell(cells, np.ones(len(places), np.bool_))
        taken = taken.take(order)
        columns = self._form.pack(taken.columns, taken.times)
        return self._lists.async_heads(cells).then_accept(
            lambda heads: self._lists.append(cells, columns, index, heads)
        )

    def async_remove(
        self, keys: KeyBatch, key_index: Int64Array, times: Int64Array, matched: BoolArray, first: BoolArray
    ) -> StateFuture[None]:
        """Remove the rows that have found their ``first`` partner.

        All rows (r) of their keys and times are given, as the other lists have them: index of the key, time, whether it
        was ``matched`` before.
        """
        gone = np.flatnonzero(first)
        if not len(gone):
            return completed_void_future()
        ranks = _ranks(TimedRows(key_index, times), ~matched)[gone]
        gone_times = times[gone]
        cells = keys.in_namespaces(self._grid.cell(gone_times), key_index[gone])

        def remove(heads: ListHeads, waiting: ListColumns) -> None:
            timed = TimedRows(waiting.key_index, self._form.unpack(waiting.columns)[1])
            at = timed.between(cells.inverse, gone_times, gone_times).first + ranks
            stays = np.ones(waiting.num_rows, np.bool_)
            stays[timed.order[at]] = False
            left = [column.filter(pa.array(stays)) for column in waiting.columns]
            self._lists.put(cells, left, waiting.key_index[stays], heads)

        return self._lists.async_read(cells).then_accept(lambda read: remove(*read))

    def due(self, before: int, over: int) -> Iterator[list[pa.Array]]:
        """Payload columns of the rows with before < time <= ``over``, by time, then as stored; in parts."""
        reader = DueReader(self._lists, self._grid, self._groups)
        for part in reader.parts(self._grid.cell_of(before + 1) - 1, over):
            columns, times = self._form.unpack(part.entries.columns)
            order = rows_by(times)
            begin, end = np.searchsorted(times[order], [before, over], "right")
            if begin < end:
                yield list(take_rows(columns, order[begin:end]))

    def remove_over(self, before: int, over: int) -> None:
        """Remove the lists all of whose rows have before < time <= ``over``; those up to ``before`` are gone."""
        remove_over(self._lists, self._grid, before, over)


def _ranks(timed: TimedRows, chosen: BoolArray) -> Int64Array:
    """How many ``chosen`` rows of its key and time come before each row."""
    before = np.zeros(len(chosen) + 1, np.int64)
    np.cumsum(chosen[timed.order], out=before[1:])
    ranks = np.empty(len(chosen), np.int64)
    ranks[timed.order] = before[:-1] - before[timed.first_of_equals]
    return ranks
