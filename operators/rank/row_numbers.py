"""Ranking as pure functions: which rows are left after a bundle, their order, and the number of each.

Owns: ``RankTable``, ``Outcome`` and its computation, ``rank_numbers``.
Invariant: the rows left after a bundle do not depend on the order of its rows, except for ties and for rows that
replace each other without a retraction.
Must not know of state.

Source: Flink's ``RetractableTopNFunction`` (the oldest of equal rows is retracted) and ``UpdatableTopNFunction`` (a
row that replaces one of equal order keeps its place).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa

from asyncstate.changelog import accumulates
from asyncstate.codec.sorting import rows_by

from ..core.arrays import BoolArray, Int8Array, Int64Array, place_in_run, take_rows
from ..core.consolidation import Identified, net_by_content, net_by_unique_key
from ..core.sort_orders import Codes, differs_from_last, order_levels, sorted_by

RankFunction = Literal["row_number", "rank", "dense_rank"]


@dataclass(frozen=True)
class RankTable:
    """m rows that others refer to by index: ``columns`` (the stored ones), ``key`` (m), the index of each row's key.

    ``arrival`` (m) orders rows of equal order: smaller came earlier.
    """

    columns: list[pa.Array]
    key: Int64Array
    arrival: Int64Array

    def __len__(self) -> int:
        return len(self.key)

    def joined(self, more: RankTable) -> RankTable:
        """These rows, then ``more``."""
        if not len(more):
            return self
        pairs = zip(self.columns, more.columns, strict=True)
        return RankTable(
            [pa.concat_arrays(pair) for pair in pairs],
            np.concatenate([self.key, more.key]),
            np.concatenate([self.arrival, more.arrival]),
        )

    def take(self, rows: Int64Array) -> RankTable:
        """Some rows."""
        return RankTable(take_rows(self.columns, rows), self.key[rows], self.arrival[rows])

    def sort(self, codes: Codes, rows: Int64Array) -> Int64Array:
        """``rows`` by key, order and arrival; ``codes`` are of all rows."""
        chosen, arrival = [code[rows] for code in codes], self.arrival[rows]
        # The sort is stable: rows that come in order of arrival need not be sorted by it.
        minor = [arrival] if bool((arrival[1:] < arrival[:-1]).any()) else []
        return rows[sorted_by(chosen, major=self.key[rows], minor=minor)]


@dataclass(frozen=True)
class Ranked:
    """Rows of a table in rank order, key by key, with their numbers."""

    rows: Int64Array
    numbers: Int64Array

    def chosen(self, mask: BoolArray) -> Ranked:
        """Some of the ranked rows."""
        return Ranked(self.rows[mask], self.numbers[mask])


@dataclass(frozen=True)
class Outcome:
    """The effect of a bundle on stored and new rows (m): which are ``alive``, and the ``arrival`` of each.

    ``missing`` are the bundle rows that retract a row that is not there. ``newest`` (m), for rows with a unique key:
    the row that is left under that key, or the row itself where none was added.
    """

    alive: BoolArray
    arrival: Int64Array
    missing: Int64Array
    newest: Int64Array | None = None


def rank_numbers(function: RankFunction, key: Int64Array, codes: Codes, rows: Int64Array) -> Int64Array:
    """The number, from 1 in each key, of ``rows``, which are in rank order; ``key`` and ``codes`` are of all rows."""
    places = place_in_run(key[rows])
    if function == "row_number" or not len(rows):
        return places + 1
    new_value = differs_from_last([key, *codes], rows)
    if function == "rank":
        first = np.maximum.accumulate(np.where(new_value, np.arange(len(rows)), 0))
        return places[first] + 1
    values: Int64Array = np.cumsum(new_value)
    begins = np.maximum.accumulate(np.where(places == 0, np.arange(len(rows)), 0))
    dense: Int64Array = values - values[begins] + 1
    return dense


def by_content(ids: Int64Array, kinds: Int8Array, arrival: Int64Array) -> Outcome:
    """Rows identified by their whole content: a retraction removes the oldest equal row.

    ``ids`` (m) are equal for equal rows of a key: those of stored rows, then of n bundle rows of these ``kinds`` (n).
    """
    stored = len(ids) - len(kinds)
    oldest_first = rows_by(arrival[:stored])
    net = net_by_content(ids[:stored][oldest_first], ids[stored:], accumulates(kinds), refresh=True)
    alive = np.zeros(len(ids), np.bool_)
    alive[oldest_first] = ~net.removed
    alive[stored + net.added] = True
    return Outcome(alive, arrival, net.missing)


def by_unique(
    rows: Identified,
    kinds: Int8Array,
    arrival: Int64Array,
    codes: Codes,
    only_better: bool = False,
    in_order: bool = False,
) -> Outcome:
    """Rows identified by a unique key: a row replaces the previous one, a retraction of equal content removes it.

    ``rows`` (m) are the stored ones, at most one of each unique key, then n bundle rows of these ``kinds`` (n). A row
    that directly replaces one of equal order keeps its ``arrival``; one that is removed and added again is a new one.
    ``only_better``: of the bundle's rows of a unique key the best counts, whatever their order of arrival.
    ``in_order``: see ``net_by_unique_key``.
    """
    ids, stored = rows.ids, len(rows.ids) - len(kinds)
    net = net_by_unique_key(
        rows.slice(0, stored),
        rows.slice(stored, len(ids)),
        kinds,
        refresh=True,
        newness=_from_worst_to_best(codes, stored, len(ids)) if only_better else None,
        in_order=in_order,
    )
    added = stored + net.added
    alive = np.concatenate([~net.removed, np.zeros(len(kinds), np.bool_)])
    alive[added] = True
    arrivals = arrival.copy()
    there = np.concatenate([np.ones(stored, np.bool_), accumulates(kinds)])
    arrivals[added] = _arrival_of_replaced(ids, there, arrival, codes)[added]
    newest = np.full(int(ids.max(initial=-1)) + 1, -1, np.int64)
    newest[ids[added]] = added
    return Outcome(alive, arrivals, net.missing, np.where(newest[ids] < 0, np.arange(len(ids)), newest[ids]))


def _from_worst_to_best(codes: Codes, stored: int, total: int) -> Int64Array:
    """The position of each bundle row (n) among them, the worst first; of equal ones the later one is better."""
    levels = order_levels(codes, total)[stored:]
    places = np.empty(len(levels), np.int64)
    places[rows_by(-levels)] = np.arange(len(levels))
    return places


def _arrival_of_replaced(ids: Int64Array, there: BoolArray, arrival: Int64Array, codes: Codes) -> Int64Array:
    """The ``arrival`` of each row, or that of the row that it directly replaces where both are of equal order."""
    events = rows_by(ids)
    begins = differs_from_last([ids], events)
    after_row = np.zeros(len(ids), np.bool_)
    after_row[1:] = there[events][:-1] & ~begins[1:]
    takes_place = there[events] & after_row & ~differs_from_last(codes, events)
    came = np.maximum.accumulate(np.where(takes_place, 0, np.arange(len(ids))))
    arrivals = np.empty(len(ids), np.int64)
    arrivals[events] = arrival[events[came]]
    return arrivals


def sequences_differ(old: Int64Array, new: Int64Array, key: Int64Array, num_keys: int) -> BoolArray:
    """The keys (u) whose rows are not the same ones in the same order; both are sorted by key."""
    counts = np.bincount(key[old], minlength=num_keys)
    differ: BoolArray = counts != np.bincount(key[new], minlength=num_keys)
    compared = new[~differ[key[new]]]
    differ[key[compared[compared != old[~differ[key[old]]]]]] = True
    return differ
