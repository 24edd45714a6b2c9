"""The output of a ranking: the net change of the rows that are shown, from before a bundle to after it.

Owns: ``OutputChanges``: the changelog rows from one ranking to the other, and their order.
Invariant: applied to the rows shown before, the changes give the rows shown now; a row that is shown as before is not
among them. Pure functions of numpy and Arrow; must not know of state.

What identifies a shown row decides where -U and +U are used:

* by number (row_number that is emitted): the row at each number of a key;
* by unique key, where one is declared;
* by nothing: rows enter (+I) and leave (-D).

Source: ``collectInsert``, ``collectDelete`` and the update pairs of Flink's ``AbstractTopNFunction``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from asyncstate.changelog import accumulates
from asyncstate.codec.sorting import rows_by

from ..core.arrays import BoolArray, Int64Array, place_among_equals, row_ids, take_rows
from ..core.row_kinds import distinct_rows, net_changes, take_changes
from .row_numbers import Ranked, RankTable

Identity = Literal["number", "unique", "nothing"]


@dataclass(frozen=True)
class OutputChanges:
    """c changelog rows: their stored columns, the index of their key, their number, their kind."""

    columns: list[pa.Array]
    key: Int64Array
    numbers: Int64Array
    kinds: npt.NDArray[np.int8]


@dataclass(frozen=True)
class _Slots:
    """s slots for shown rows: the row in each before and after (-1: none), with the number of both."""

    before: Int64Array
    after: Int64Array
    number_before: Int64Array
    number_after: Int64Array

    def select(self, chosen: BoolArray) -> _Slots:
        return _Slots(
            self.before[chosen], self.after[chosen], self.number_before[chosen], self.number_after[chosen]
        )


def output_changes(
    table: RankTable,
    before: Ranked,
    after: Ranked,
    identity: Identity,
    unique: list[int],
    with_number: bool,
    key_order: Int64Array,
    emit_update_before: bool,
    renewed: bool = False,
) -> OutputChanges:
    """The changes from the rows shown ``before`` to those shown ``after``.

    ``unique`` are columns of the table; ``with_number``: a row with another number is another row. ``key_order`` (u)
    is the position of each key's changes. Within a key all retractions come before all additions, so that a reader with
    another key never retracts a row that was just added; both are in rank order or, where changes are by number, in
    order of the numbers. ``renewed``: a row that replaces an equal one is a change, too.
    """
    numbered = with_number or identity == "number"
    gone, come = _candidates(before, after, numbered)
    if identity == "number":
        slots = _by_ids(gone, come, _number_ids(table, gone, come))
    elif identity == "unique":
        columns = [table.columns[index] for index in unique]
        slots = _by_ids(gone, come, _content_ids(table, columns, gone, come, False))
    else:
        slots = _by_content(gone, come, _content_ids(table, table.columns, gone, come, with_number))
    old, new = take_rows(table.columns, slots.before), take_rows(table.columns, slots.after)
    both = (slots.before >= 0) & (slots.after >= 0)
    changed = both.copy()
    if not renewed:
        changed[both] = distinct_rows(old, new, both)
    if with_number:
        changed |= both & (slots.number_before != slots.number_after)
    order = _order(table, slots, key_order, by_number=identity == "number")
    changes = net_changes(order, slots.before >= 0, slots.after >= 0, changed, emit_update_before)
    keys = table.key[np.maximum(slots.before, slots.after)]
    changes = changes.select(rows_by(key_order[keys[changes.keys]], accumulates(changes.kinds)))
    numbers = np.where(changes.new, slots.number_after[changes.keys], slots.number_before[changes.keys])
    return OutputChanges(take_changes(changes, [], old, new), keys[changes.keys], numbers, changes.kinds)


def _candidates(before: Ranked, after: Ranked, with_number: bool) -> tuple[Ranked, Ranked]:
    """The rows that the other ranking does not show as well, ``with_number`` under the same number."""
    numbers = np.full(int(max(before.rows.max(initial=-1), after.rows.max(initial=-1))) + 1, -1, np.int64)
    numbers[after.rows] = after.numbers
    stays = numbers[before.rows]
    gone = (stays != before.numbers) if with_number else (stays < 0)
    numbers[:] = -1
    numbers[before.rows] = before.numbers
    was = numbers[after.rows]
    come = (was != after.numbers) if with_number else (was < 0)
    return before.chosen(gone), after.chosen(come)


def _number_ids(table: RankTable, gone: Ranked, come: Ranked) -> Int64Array:
    keys = table.key[np.concatenate([gone.rows, come.rows])]
    numbers = np.concatenate([gone.numbers, come.numbers])
    codes = keys * (int(numbers.max(initial=0)) + 1) + numbers
    return np.asarray(np.unique(codes, return_inverse=True)[1], np.int64)


def _content_ids(
    table: RankTable, columns: list[pa.Array], gone: Ranked, come: Ranked, with_number: bool
) -> Int64Array:
    rows = np.concatenate([gone.rows, come.rows])
    columns = take_rows(columns, rows)
    if with_number:
        columns.append(pa.array(np.concatenate([gone.numbers, come.numbers])))
    return row_ids(columns, table.key[rows])


def _by_ids(gone: Ranked, come: Ranked, ids: Int64Array) -> _Slots:
    """Slots of ids that occur at most once on each side."""
    size = int(ids.max(initial=-1)) + 1
    slots = _Slots(*(np.full(size, -1, np.int64) for _ in range(4)))
    old, new = ids[: len(gone.rows)], ids[len(gone.rows) :]
    slots.before[old], slots.number_before[old] = gone.rows, gone.numbers
    slots.after[new], slots.number_after[new] = come.rows, come.numbers
    return slots


def _by_content(gone: Ranked, come: Ranked, ids: Int64Array) -> _Slots:
    """One slot per row; rows that leave and enter with equal content cancel, the first ones of each."""
    size = int(ids.max(initial=-1)) + 1
    old, new = ids[: len(gone.rows)], ids[len(gone.rows) :]
    both = np.minimum(np.bincount(old, minlength=size), np.bincount(new, minlength=size))
    gone, come = (
        gone.chosen(place_among_equals(old) >= both[old]),
        come.chosen(place_among_equals(new) >= both[new]),
    )
    left, right = np.full(len(gone.rows), -1), np.full(len(come.rows), -1)
    return _Slots(
        np.concatenate([gone.rows, right]),
        np.concatenate([left, come.rows]),
        np.concatenate([gone.numbers, right]),
        np.concatenate([left, come.numbers]),
    )


def _order(table: RankTable, slots: _Slots, key_order: Int64Array, by_number: bool) -> Int64Array:
    stays = slots.after >= 0
    key = key_order[table.key[np.maximum(slots.before, slots.after)]]
    number = np.where(stays, slots.number_after, slots.number_before)
    if by_number:
        return rows_by(key, number)
    # Of equal numbers (ties) the earlier one first.
    arrival = table.arrival[np.where(stays, slots.after, slots.before)]
    return rows_by(key, stays, number, arrival)
