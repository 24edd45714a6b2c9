"""The versions of a table's rows: which row a key has from which time on.

Owns: ``Versions`` and their computation from the rows of a changelog.
Invariant: the rows of a key and time count as a set. A row that one of equal content retracts was never there, but a
-U alone removes nothing: the row that replaces the old one has its own time. Of upserts the last change of a key and
time counts.
Pure functions over numpy and Arrow; must not know of state or of operators.

Source: the versioned tables of Flink's ``TemporalRowTimeJoinOperator``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from asyncstate.changelog import RowKind, accumulates
from asyncstate.codec.sorting import rows_by

from ..core.arrays import Int8Array, Int64Array, row_ids, run_begins


@dataclass(frozen=True)
class Versions:
    """Versions (m) by key, then by the time from which on they hold: the row of each, -1 where the key has none."""

    keys: Int64Array
    times: Int64Array
    rows: Int64Array

    def at(self, keys: Int64Array, times: Int64Array) -> Int64Array:
        """The rows that ``keys`` (n) have at ``times`` (n), -1 where they have none."""
        is_asked = np.repeat([False, True], [len(self.keys), len(keys)])
        order = rows_by(np.append(self.keys, keys), np.append(self.times, times), is_asked)
        asked = order >= len(self.keys)
        before = np.maximum.accumulate(np.where(asked, -1, order)) if len(order) else order
        # Versions are in the order of ``order`` among themselves, so the highest one so far is the last one.
        found = np.empty(len(keys), np.int64)
        found[order[asked] - len(self.keys)] = before[asked]
        mine = found >= 0
        mine[mine] = self.keys[found[mine]] == keys[mine]
        rows = np.full(len(keys), -1, np.int64)
        rows[mine] = self.rows[found[mine]]
        return rows

    def last(self) -> tuple[Int64Array, Int64Array]:
        """The keys that have versions, each once, and the row of the last one of each."""
        ends = np.ones(len(self.keys), np.bool_)
        ends[:-1] = self.keys[1:] != self.keys[:-1]
        return self.keys[ends], self.rows[ends]


def versions_of(
    keys: Int64Array,
    times: Int64Array,
    kinds: Int8Array,
    content: Sequence[pa.Array],
    upserts: bool = False,
) -> Versions:
    """The versions that rows (n, in order of arrival) make; of several of a key and time the last one counts.

    ``content``: the columns in which a row and its retraction are equal. ``upserts``: only the key of a -D counts, so
    of a key and time the last change counts.
    """
    order = rows_by(keys, times)
    begins = run_begins(keys[order], times[order])
    groups = np.empty(len(keys), np.int64)
    groups[order] = np.cumsum(begins) - 1
    first = order[begins]
    added = accumulates(kinds)
    rows = np.full(len(first), -1, np.int64)
    holds = np.ones(len(first), np.bool_)
    if upserts or added.all():
        # Of repeated indices the last assignment stays.
        rows[groups] = np.where(added, np.arange(len(keys)), -1)
    else:
        ended = np.zeros(len(first), np.bool_)
        ended[groups[kinds == RowKind.DELETE]] = True
        left = _left(kinds, row_ids(content, groups))
        candidates = np.flatnonzero(added & (left > ended[groups]))
        candidates = candidates[rows_by(left[candidates])]
        rows[groups[candidates]] = candidates
        holds = (rows >= 0) | ended
    return Versions(keys[first][holds], times[first][holds], rows[holds])


def _left(kinds: Int8Array, content: Int64Array) -> Int8Array:
    """For each row: 0 if rows of its content are all retracted by -D, 1 if by -D and -U together, else 2."""
    total = int(content.max(initial=-1)) + 1
    added = np.bincount(content[accumulates(kinds)], minlength=total)
    deleted = np.bincount(content[kinds == RowKind.DELETE], minlength=total)
    replaced = np.bincount(content[kinds == RowKind.UPDATE_BEFORE], minlength=total)
    left = added - deleted
    levels: Int8Array = ((left > 0) * (1 + (left > replaced))).astype(np.int8)
    return levels[content]
