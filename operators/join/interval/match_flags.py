"""The output of an interval join when rows of one input arrive.

Owns: ``IntervalMatches``.
Invariant: pairs are in reach of each other; a row is emitted alone only if no partner can come any more.
Pure functions over numpy and Arrow; must not know of state or contexts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from asyncstate.codec.sorting import rows_by

from ...core.arrays import BoolArray, Int64Array
from ..matches import JoinRows, Matches, Residual
from ..rules import JoinKind, rules
from .interval import TimedRows
from .interval_rows import IntervalRows


class IntervalMatches:
    """Rows (n) of ``side`` that arrive, and stored rows (r) of the other one: columns, keys and times of these.

    ``waits`` (n): a partner may still come. After an iteration over ``parts``, ``matched`` (n) and ``partners`` (r)
    mark the rows that are in a pair.
    """

    def __init__(
        self,
        kind: JoinKind,
        side: int,
        rows: IntervalRows,
        waits: BoolArray,
        columns: Sequence[pa.Array],
        keys: Int64Array,
        times: Int64Array,
    ) -> None:
        self._kind = kind
        self._rule = rules(kind, side)
        self._rows = JoinRows(rows.columns, rows.keys)
        self._waits = waits
        self._stored = JoinRows(columns, keys)
        self._times = times
        self.matched = np.zeros(len(waits), np.bool_)
        self.partners = np.zeros(len(times), np.bool_)

    def parts(
        self, first: Int64Array, last: Int64Array, residual: Residual | None
    ) -> Iterator[tuple[Int64Array, Int64Array]]:
        """The output: indices of arriving and of stored rows, -1 for none, by arriving row, then by time.

        ``first`` and ``last`` (n): the times of the partners.
        """
        candidates = TimedRows(self._stored.key_index, self._times).between(self._rows.key_index, first, last)
        matches = Matches(self._rows, self._stored, candidates, residual)
        for low, high in matches.chunks:
            arriving, stored = matches.pairs((low, high))
            self.matched[arriving] = True
            yield self._emit(low, high, arriving, stored)
            self.partners[stored] = True

    def _emit(
        self, low: int, high: int, arriving: Int64Array, stored: Int64Array
    ) -> tuple[Int64Array, Int64Array]:
        rule = self._rule
        if rule.unmatched or rule.matched:
            matched = self.matched[low:high]
            alone = matched if rule.matched else ~(matched | self._waits[low:high])
            return _with_alone(arriving, stored, np.flatnonzero(alone) + low, rule.pairs)
        if rule.pairs:
            return arriving, stored
        stored = stored[_first_pairs(stored, self.partners)] if self._kind == "semi" else stored[:0]
        return np.full(len(stored), -1), stored


def _first_pairs(stored: Int64Array, partner: BoolArray) -> Int64Array:
    """The pairs in which a stored row that is not a ``partner`` yet occurs for the first time, ascending."""
    pairs = np.flatnonzero(~partner[stored])
    return pairs[np.sort(np.unique(stored[pairs], return_index=True)[1])]


def _with_alone(
    probe: Int64Array, stored: Int64Array, alone: Int64Array, pairs: bool
) -> tuple[Int64Array, Int64Array]:
    """The rows emitted ``alone``, among the pairs if these are emitted."""
    if not pairs:
        return alone, np.full(len(alone), -1)
    if not len(alone):
        return probe, stored
    rows = np.concatenate([probe, alone])
    order = rows_by(rows)
    return rows[order], np.concatenate([stored, np.full(len(alone), -1)])[order]
