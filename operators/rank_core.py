"""Ranking as pure functions: which rows are left after a bundle, their order, and the number of each.

Owns: ``RankTable``, ``Outcome`` and how it comes about, ``rank_numbers``.
Invariant: what is left after a bundle, and the order of ties, is what handling its rows one by one would leave; so
it does not depend on how rows are cut into bundles.
Must not know of state.

Source: Flink's ``RetractableTopNFunction`` (the oldest of equal rows is taken back) and ``UpdatableTopNFunction`` (a
row that replaces one of equal order keeps its place).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from operators.grouping import Groups, clamp_retractions
from operators.ordering import Codes, differs_from_last, sorted_by

BoolArray = npt.NDArray[np.bool_]
Int64Array = npt.NDArray[np.int64]
RankFunction = Literal["row_number", "rank", "dense_rank"]


@dataclass(frozen=True)
class RankTable:
    """m rows, of which others tell by index: ``columns`` (those stored), ``key`` (m), the index of each row's key.

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
        return RankTable(take(self.columns, rows), self.key[rows], self.arrival[rows])

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
        """Some of them."""
        return Ranked(self.rows[mask], self.numbers[mask])


@dataclass(frozen=True)
class Outcome:
    """What a bundle makes of stored and new rows (m): which are ``alive``, and the ``arrival`` of each.

    ``dropped`` counts the retractions of rows that are not there. ``newest`` (m), of rows with a unique key: the last
    row under that key.
    """

    alive: BoolArray
    arrival: Int64Array
    dropped: int = 0
    newest: Int64Array | None = None


def take(columns: Sequence[pa.Array], rows: Int64Array) -> list[pa.Array]:
    """Rows of columns; null where the index is -1."""
    missing = rows < 0
    indices = pa.array(rows, mask=missing) if missing.any() else pa.array(rows)
    return [column.take(indices) for column in columns]


def within_runs(values: npt.NDArray[np.integer]) -> Int64Array:
    """The place of each element in its run of equal ones, from 0."""
    places = np.arange(len(values))
    begins = differs_from_last([values], places)
    return places - np.maximum.accumulate(np.where(begins, places, 0))


def rank_numbers(function: RankFunction, key: Int64Array, codes: Codes, rows: Int64Array) -> Int64Array:
    """The number, from 1 in each key, of ``rows``, which are in rank order; ``key`` and ``codes`` are of all rows."""
    places = within_runs(key[rows])
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


def by_content(ids: Int64Array, accumulate: BoolArray, arrival: Int64Array) -> Outcome:
    """Rows known by their whole content: a retraction takes back the oldest equal row.

    ``ids`` (m) are equal for equal rows of a key: those of stored rows, then of n bundle rows, of which
    ``accumulate`` (n) tells the kind.
    """
    stored, total = len(ids) - len(accumulate), int(ids.max(initial=-1)) + 1
    alive = np.concatenate([np.ones(stored, np.bool_), accumulate])
    known, owners = np.unique(ids[stored:], return_inverse=True)
    before = np.bincount(ids[:stored], minlength=total)[known]
    signs = np.where(accumulate, 1, -1).astype(np.int8)
    signs, dropped = clamp_retractions(signs, Groups.of_ids(owners, len(known)), before)
    # Each retraction that counts finds a row, and takes the oldest: in the end the first ones are gone.
    gone = np.bincount(ids[stored:][signs < 0], minlength=total)
    rows = np.flatnonzero(alive)
    rows = rows[np.lexsort((arrival[rows], ids[rows]))]
    alive[rows] = within_runs(ids[rows]) >= gone[ids[rows]]
    return Outcome(alive, arrival, dropped)


def by_unique(ids: Int64Array, accumulate: BoolArray, arrival: Int64Array, codes: Codes) -> Outcome:
    """Rows known by a unique key: a row replaces the one before it, a retraction takes it back.

    ``ids`` (m) are equal for equal unique keys: those of stored rows, at most one of each, then of n bundle rows. A
    row that directly replaces one of equal order keeps that one's ``arrival``.
    """
    stored = len(ids) - len(accumulate)
    events = np.argsort(ids, kind="stable")
    there = np.concatenate([np.ones(stored, np.bool_), accumulate])[events]
    begins = differs_from_last([ids], events)
    after_row = np.zeros(len(ids), np.bool_)
    after_row[1:] = there[:-1] & ~begins[1:]
    takes_place = there & after_row & ~differs_from_last(codes, events)
    came = np.maximum.accumulate(np.where(takes_place, 0, np.arange(len(ids))))
    ends = np.append(begins[1:], True)[: len(ids)]
    alive, arrivals = np.zeros(len(ids), np.bool_), arrival.copy()
    alive[events[ends]] = there[ends]
    arrivals[events[ends]] = arrival[events[came[ends]]]
    newest = np.empty(len(ids), np.int64)
    newest[events] = events[ends][np.cumsum(begins) - 1]
    return Outcome(alive, arrivals, int((~there & ~after_row).sum()), newest)


def sequences_differ(old: Int64Array, new: Int64Array, key: Int64Array, num_keys: int) -> BoolArray:
    """The keys (u) whose rows are not the same ones in the same order; both are sorted by key."""
    counts = np.bincount(key[old], minlength=num_keys)
    differ: BoolArray = counts != np.bincount(key[new], minlength=num_keys)
    compared = new[~differ[key[new]]]
    differ[key[compared[compared != old[~differ[key[old]]]]]] = True
    return differ
