"""What the rows of a bundle change in the table of one join input.

Owns: the net change of a bundle against the rows stored before: which stored rows go, which rows come, and in
which order the changes drive the join.
Invariant: applying the changes to the stored rows gives what applying the bundle row by row gives; a row that
comes and goes inside the bundle is no change.
Pure functions over numpy and Arrow; must not know of state or of the join's type.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from asyncstate.changelog import RowKind
from asyncstate.codec import RowCodec

BoolArray = npt.NDArray[np.bool_]
Int8Array = npt.NDArray[np.int8]
Int64Array = npt.NDArray[np.int64]

_CODE_LIMIT = 1 << 62


@dataclass(frozen=True)
class Changes:
    """The net change of n bundle rows against m stored rows.

    ``rows`` are the driving rows, in order: an index below n is a bundle row, n + i is stored row i (taken
    back). ``at`` is the bundle row at which each takes effect (ascending), ``kinds`` the kind of each.
    ``removed`` (m) marks the stored rows that go, ``added`` are the bundle rows that come, in arrival order.
    ``dropped`` counts the retractions of rows that are not there.
    """

    rows: Int64Array
    at: Int64Array
    kinds: Int8Array
    removed: BoolArray
    added: Int64Array
    dropped: int


def accumulates(kinds: Int8Array) -> BoolArray:
    """True for +I and +U."""
    mask: BoolArray = (kinds == RowKind.INSERT) | (kinds == RowKind.UPDATE_AFTER)
    return mask


def insertions(kinds: Int8Array, stored: int) -> Changes:
    """The changes of a bundle without retractions whose rows replace nothing."""
    rows = np.arange(len(kinds), dtype=np.int64)
    return Changes(rows, rows, kinds, np.zeros(stored, np.bool_), rows, 0)


def row_ids(columns: Sequence[pa.Array], groups: npt.NDArray[np.integer]) -> Int64Array:
    """Numbers from 0 that are equal where ``groups`` and all columns are equal (null equals null)."""
    codes, bound = groups.astype(np.int64), int(groups.max(initial=0)) + 1
    for column in columns:
        more, distinct = _column_codes(column)
        if bound * distinct >= _CODE_LIMIT:
            unique, codes = np.unique(codes, return_inverse=True)
            bound = len(unique)
        codes, bound = codes * distinct + more, bound * distinct
    ids: Int64Array = np.unique(codes, return_inverse=True)[1]
    return ids


def _column_codes(column: pa.Array) -> tuple[Int64Array, int]:
    if pa.types.is_nested(column.type):
        # The stored form stands for the value: Arrow hashes flat values only.
        rows = RowCodec(pa.schema([("value", column.type)])).encode([column])
        column = pa.array(rows, pa.large_binary())
    encoded = pc.dictionary_encode(column, null_encoding="encode")
    return encoded.indices.to_numpy().astype(np.int64), max(len(encoded.dictionary), 1)


def multiset_changes(
    stored: Int64Array, rows: Int64Array, kinds: Int8Array, refresh: bool = False
) -> Changes:
    """Changes where a row is known by its whole content: ids of m stored and n bundle rows, kinds (n).

    With ``refresh`` a stored row that is taken back and comes again is a change: it goes, and comes as a new one.
    """
    accumulate = accumulates(kinds)
    ids = int(max(stored.max(initial=-1), rows.max(initial=-1))) + 1
    segments = _Segments(rows)
    sign = np.where(accumulate, 1, -1)[segments.order]
    have = np.bincount(stored, minlength=ids)[segments.ids]
    # A count that may not fall below zero: a retraction that sets a new low below zero finds nothing to take.
    low = np.minimum(segments.running_min(have + segments.running_sum(sign)), 0)
    dropped = low < segments.previous(low, 0)
    sign[dropped] = 0
    plus, minus = (sign > 0).astype(np.int64), (sign < 0).astype(np.int64)
    coming, going = segments.total(plus), segments.total(minus)
    cancel = np.maximum(going - have, 0) if refresh else np.minimum(coming, going)
    # Of what comes the last rows stay, of what goes the first ones: steps in between cancel out.
    come = (plus > 0) & (coming - segments.running_sum(plus) < coming - cancel)
    go = (minus > 0) & (segments.running_sum(minus) <= going - cancel)
    driving = np.sort(segments.order[come | go])
    taken = np.bincount(segments.ids[go], minlength=ids)
    return Changes(
        rows=driving,
        at=driving,
        kinds=kinds[driving],
        removed=_rank(stored) < taken[stored],
        added=driving[accumulate[driving]],
        dropped=int(dropped.sum()),
    )


def unique_changes(
    stored: Int64Array,
    stored_content: Int64Array,
    rows: Int64Array,
    content: Int64Array,
    kinds: Int8Array,
    refresh: bool = False,
) -> Changes:
    """Changes where a row is known by a unique key: ids of the key and ids of the whole content.

    An accumulated row replaces the stored row of its key, whether or not a retraction came first; with ``refresh`` also
    one of the same content.
    """
    num_rows, accumulate = len(rows), accumulates(kinds)
    ids = int(max(stored.max(initial=-1), rows.max(initial=-1))) + 1
    old = np.full(ids, -1, np.int64)
    old[stored] = stored_content
    segments = _Segments(rows)
    there: BoolArray = segments.previous(accumulate[segments.order], old[segments.ids] >= 0)
    dropped = int((~accumulate[segments.order] & ~there).sum())
    first, last = segments.order[segments.starts], segments.order[segments.ends]
    key = segments.ids[segments.starts]
    stays = accumulate[last]
    differs = np.where(stays, refresh | (content[last] != old[key]), old[key] >= 0)
    replaced = np.zeros(ids, np.bool_)
    replaced[key[differs]] = True
    removed = replaced[stored]
    added = np.sort(last[differs & stays])
    # The stored row goes where its retraction stands, without one right before the row that replaces it.
    retraction = np.zeros(ids, np.int64)
    retraction[key] = np.where(accumulate[first], last, first)
    at = retraction[stored[removed]]
    kinds_of_old = np.where(accumulate[at], RowKind.UPDATE_BEFORE, kinds[at]).astype(np.int8)
    driving, at = np.concatenate([num_rows + np.flatnonzero(removed), added]), np.concatenate([at, added])
    order = np.argsort(at, kind="stable")
    all_kinds = np.concatenate([kinds_of_old, kinds[added]])
    return Changes(driving[order], at[order], all_kinds[order], removed, added, dropped)


def _rank(ids: Int64Array) -> Int64Array:
    """How many earlier elements are equal to each element."""
    segments = _Segments(ids)
    ranks = np.empty(len(ids), np.int64)
    ranks[segments.order] = np.arange(len(ids)) - segments.starts[segments.number]
    return ranks


class _Segments:
    """Runs of equal ids after a stable sort; arrays are in sorted order, ``order`` leads back."""

    def __init__(self, ids: Int64Array) -> None:
        self.order = np.argsort(ids, kind="stable")
        self.ids = ids[self.order]
        begins = np.ones(len(ids), np.bool_)
        begins[1:] = self.ids[1:] != self.ids[:-1]
        self.starts = np.flatnonzero(begins)
        self.ends = np.append(self.starts[1:], len(ids))[: len(self.starts)] - 1
        self.number = np.cumsum(begins) - 1

    def running_sum(self, values: Int64Array) -> Int64Array:
        """Sum from the start of the segment, this element included."""
        sums = np.cumsum(values)
        before = sums[self.starts] - values[self.starts]
        running: Int64Array = sums - before[self.number]
        return running

    def running_min(self, values: Int64Array) -> Int64Array:
        """Lowest value since the start of the segment."""
        if not len(values):
            return values
        # Each segment is lowered below all before it, so that one accumulation serves them all.
        shift = self.number * (int(values.max()) - int(values.min()) + 1)
        lowest: Int64Array = np.minimum.accumulate(values - shift) + shift
        return lowest

    def total(self, values: Int64Array) -> Int64Array:
        """Sum of the whole segment, for each element."""
        if not len(values):
            return values
        totals: Int64Array = np.add.reduceat(values, self.starts)[self.number]
        return totals

    def previous(self, values: npt.NDArray[Any], at_start: object) -> npt.NDArray[Any]:
        """The value before each element; ``at_start`` (a value, or one an element) where a segment starts."""
        before = np.empty_like(values)
        before[1:] = values[:-1]
        before[self.starts] = np.broadcast_to(np.asarray(at_start), values.shape)[self.starts]
        return before
