"""Rows of an interval join as they are stored.

Owns: ``RowForm`` and ``IntervalRows``.
Invariant: stored rows can be read with their times, whether a column of the input has these or not.
Must not know of join types.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from asyncstate.codec import KeyBatch
from asyncstate.codec.sorting import rows_by
from asyncstate.codec.times import event_times
from asyncstate.state.columnar.list_columns import ListColumnState

from ...core.arrays import BoolArray, Int64Array, take_rows
from .interval import Grid


@dataclass(frozen=True)
class IntervalRows:
    """Rows (n) of a bundle: payload columns, index of the key among the bundle's, and times."""

    columns: Sequence[pa.Array]
    keys: Int64Array
    times: Int64Array

    def take(self, chosen: Int64Array) -> IntervalRows:
        """Some of the rows."""
        return IntervalRows(take_rows(self.columns, chosen), self.keys[chosen], self.times[chosen])


class RowForm:
    """Rows as they are stored: their time if no column has it, then the input's columns."""

    def __init__(self, schema: pa.Schema, time_column: str | None) -> None:
        own = [pa.field(free_name("time", schema), pa.int64())] if time_column is None else []
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


def free_name(name: str, schema: pa.Schema) -> str:
    """``name``, or one like it that no column has."""
    while name in schema.names:
        name = f"_{name}"
    return name


def by_cell(cells: KeyBatch, chosen: BoolArray) -> tuple[Int64Array, Int64Array]:
    """Cells (ascending) and indices of the chosen rows, in their order within a cell."""
    places = np.flatnonzero(chosen)
    index = cells.inverse[places].astype(np.int64)
    if bool((index[1:] < index[:-1]).any()):
        order = rows_by(index)
        index, places = index[order], places[order]
    return index, places


def remove_over(state: ListColumnState, grid: Grid, before: int, over: int) -> None:
    """Remove the lists all of whose rows have before < time <= ``over``; those up to ``before`` are gone."""
    first, last = grid.cell_of(before + 1), grid.last_before(over)
    if first <= last:
        state.remove_up_to(last, first)
