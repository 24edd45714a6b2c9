"""What a window join puts out for windows that have come due.

Owns: ``groups_of``, which rows may meet, ``Runs`` and ``Due``, in which order they do, and ``final_rows``, who met
whom.
Invariant: each pair and each row without partner stands once; groups come in their order, and in a group the left rows
with their partners, then the right rows that have none.
Pure functions over numpy and Arrow; must not know of state or contexts.

Source: the join of a window's records in Flink's ``WindowJoinOperator``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from asyncstate.changelog import RowKind
from asyncstate.codec import KeyBatch

from ..core.arrays import BoolArray, Int8Array, Int64Array, count_up, take_rows
from ..join.matches import Emission, Matches, Residual, Rows, equal_keys, join
from ..join.rules import JoinKind, rules


class Runs(NamedTuple):
    """Rows of one input in runs of one key and slice: the first row of each run, and how many it has."""

    firsts: Int64Array
    counts: Int64Array

    @staticmethod
    def of(begins: BoolArray) -> Runs:
        """Of rows (n), of which those in the mask ``begins`` are the first ones of their runs."""
        firsts = np.flatnonzero(begins)
        return Runs(firsts, np.diff(firsts, append=len(begins)))

    def first(self, columns: Sequence[pa.Array]) -> list[pa.Array]:
        """The first rows of all runs."""
        return take_rows(columns, self.firsts)


class Due(NamedTuple):
    """Rows of one input in the order in which they meet others: n rows of ``columns``, by group."""

    columns: Sequence[pa.Array]
    rows: Int64Array
    groups: Int64Array
    ends: Int64Array

    @staticmethod
    def of(
        columns: Sequence[pa.Array], runs: Runs, chosen: Int64Array, groups: Int64Array, ends: Int64Array
    ) -> Due:
        """The rows of ``chosen`` runs (m), in this order, with the groups and the windows' ends (m) of these."""
        counts = runs.counts[chosen]
        rows = np.repeat(runs.firsts[chosen], counts) + count_up(counts)
        return Due(columns, rows, np.repeat(groups, counts), np.repeat(ends, counts))

    def keyed(self, with_columns: bool) -> Rows:
        """As what is to be matched."""
        return Rows(take_rows(self.columns, self.rows) if with_columns else [], self.groups)

    def take(self, indices: Int64Array) -> list[pa.Array]:
        """Some of the rows; null where the index is -1."""
        chosen = np.full(len(indices), -1)
        there = indices >= 0
        chosen[there] = self.rows[indices[there]]
        return take_rows(self.columns, chosen)


def groups_of(
    keys: KeyBatch, rows: Int64Array, ends: Int64Array, starts: Int64Array | None, apart: Int8Array | None
) -> Int64Array:
    """The groups of m rows, numbered from 0 by window end, then in the order of the store.

    ``rows`` (m) are rows of ``keys``, ``ends`` (m) their windows. Per row of ``keys`` (n) there may be the ``starts``
    of the windows, which must be equal in a group, and numbers below 3 that keep rows ``apart``.
    """
    pairs = keys.in_namespaces(ends, keys.inverse[rows])
    assert pairs.namespaces is not None
    place = np.empty(len(pairs), np.int64)
    place[np.argsort(pairs.namespaces, kind="stable")] = np.arange(len(pairs))
    codes = place[pairs.inverse]
    if starts is None and apart is None:
        return codes
    if starts is not None:
        ticks, ranks = np.unique(starts, return_inverse=True)
        codes = codes * len(ticks) + ranks[rows]
    if apart is not None:
        codes = codes * 3 + apart[rows]
    groups: Int64Array = np.unique(codes, return_inverse=True)[1]
    return groups


def final_rows(
    kind: JoinKind, left: Rows, right: Rows, residual: Residual | None
) -> Iterator[tuple[Int64Array, Int64Array]]:
    """The rows that are put out, in parts: indices of left and right rows, -1 for none.

    Rows have groups (ascending) as their keys. None of them has been put out before, so that nothing is taken back.
    """
    last = max(left.key_index.max(initial=-1), right.key_index.max(initial=-1))
    matches = Matches(left, right, equal_keys(left, right, int(last) + 1), residual)
    inserts = np.full(len(left), RowKind.INSERT, np.int8)
    emissions = join(replace(rules(kind, 0), watch=False), inserts, matches, None)
    if not rules(kind, 1).unmatched:
        yield from ((emission.driving, emission.other) for emission in emissions)
        return
    matched = np.zeros(len(right), np.bool_)
    done = 0  # the right rows before are put out
    for (_, high), emission in zip(matches.chunks, emissions, strict=True):
        matched[emission.other[emission.other >= 0]] = True
        begun = (
            left.key_index[high] if high < len(left) else last + 1
        )  # its right rows may still find partners
        until = int(np.searchsorted(right.key_index, begun))
        yield _with_alone(left, right, emission, np.flatnonzero(~matched[done:until]) + done)
        done = until
    if done < len(right):
        alone = np.arange(done, len(right))  # there are no left rows
        yield np.full(len(alone), -1), alone


def _with_alone(
    left: Rows, right: Rows, emission: Emission, alone: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """The right rows that stand ``alone``, each behind what its group has put out."""
    groups = np.concatenate([left.key_index[emission.driving], right.key_index[alone]])
    order = np.argsort(groups, kind="stable")
    driving = np.concatenate([emission.driving, np.full(len(alone), -1)])
    return driving[order], np.concatenate([emission.other, alone])[order]
