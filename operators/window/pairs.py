"""The output of a window join for windows that are due.

Owns: ``groups_of``, which rows may match; ``Runs`` and ``Due``, in which order; and ``final_rows``, the pairs that
matched.
Invariant: each pair and each row without match is emitted once; groups are in order, and in a group the left rows with
their matches come before the right rows that have none.
Pure functions over numpy and Arrow; must not know of state or contexts.

Source: the join of a window's records in Flink's ``WindowJoinOperator``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from asyncstate.changelog import RowKind
from asyncstate.codec import KeyBatch
from asyncstate.codec.sorting import rows_by

from ..core.arrays import Int8Array, Int64Array, IntArray, count_up, places_of
from ..join.matches import JoinEmission, JoinRows, Matches, Residual, equal_keys, join
from ..join.rules import JoinKind, rules

Take: TypeAlias = Callable[[Int64Array], list[pa.Array]]
"""The columns of some rows, by their indices; null where the index is -1."""


class Runs(NamedTuple):
    """Rows of one input in runs of one window: the first row, the row count and the list of each run."""

    firsts: Int64Array
    counts: Int64Array
    lists: Int64Array

    @staticmethod
    def of(counts: Int64Array, alone: bool) -> Runs:
        """The runs of lists with ``counts`` rows each; ``alone``: each row is a run."""
        every = np.arange(len(counts))
        if not alone:
            return Runs(np.cumsum(counts) - counts, counts, every)
        lists = np.repeat(every, counts)
        return Runs(np.arange(len(lists)), np.ones(len(lists), np.int64), lists)


class Due(NamedTuple):
    """Rows of one input in the order in which they are joined: n ``rows`` of those to ``take_from``, by group."""

    take_from: Take
    rows: Int64Array
    groups: Int64Array
    ends: Int64Array

    @staticmethod
    def of(take_from: Take, runs: Runs, chosen: Int64Array, groups: Int64Array, ends: Int64Array) -> Due:
        """The rows of ``chosen`` runs (m), in this order, with the runs' groups and window ends (m)."""
        counts = runs.counts[chosen]
        rows = np.repeat(runs.firsts[chosen], counts) + count_up(counts)
        return Due(take_from, rows, np.repeat(groups, counts), np.repeat(ends, counts))

    def keyed(self, with_columns: bool) -> JoinRows:
        """The rows as input of the matching."""
        return JoinRows(self.take_from(self.rows) if with_columns else [], self.groups)

    def take(self, indices: Int64Array) -> list[pa.Array]:
        """Some of the rows; null where the index is -1."""
        chosen = np.full(len(indices), -1)
        there = indices >= 0
        chosen[there] = self.rows[indices[there]]
        return self.take_from(chosen)


def groups_of(
    keys: KeyBatch, rows: Int64Array, ends: Int64Array, starts: Int64Array | None, separate: Int8Array | None
) -> Int64Array:
    """The groups of m rows, numbered from 0 by window end, then in the order of the store.

    ``rows`` (m) are rows of ``keys``, ``ends`` (m) their windows. If given, the ``starts`` (m) of the windows must be
    equal in a group, and the numbers ``separate``, per row of ``keys`` (n), separate rows.
    """
    pairs = keys.in_namespaces(ends, keys.inverse[rows])
    assert pairs.namespaces is not None
    codes = subdivided(by_time(pairs.namespaces)[pairs.inverse], starts)
    return subdivided(codes, None if separate is None else separate[rows])


def by_time(namespaces: Int64Array) -> Int64Array:
    """The positions of u keys, given in the order of the store, by namespace, then in that order."""
    return places_of(rows_by(namespaces))


def subdivided(groups: Int64Array, values: IntArray | None) -> Int64Array:
    """The groups (n) if the rows of a group must also have equal ``values`` (n); numbered from 0 by group, then by
    value. None: the groups themselves."""
    if values is None:
        return groups
    distinct, ranks = np.unique(values, return_inverse=True)
    parts: Int64Array = np.unique(groups * len(distinct) + ranks, return_inverse=True)[1]
    return parts


def final_rows(
    kind: JoinKind, left: JoinRows, right: JoinRows, residual: Residual | None
) -> Iterator[tuple[Int64Array, Int64Array]]:
    """The output rows, in parts: indices of left and right rows, -1 for none.

    The keys of the rows are groups (ascending). None of them has been emitted before, so nothing is retracted.
    """
    last = max(left.key_index.max(initial=-1), right.key_index.max(initial=-1))
    matches = Matches(left, right, equal_keys(left, right, int(last) + 1), residual)
    inserts = np.full(len(left), RowKind.INSERT, np.int8)
    emissions = join(replace(rules(kind, 0), watch=False), inserts, matches, None)
    if not rules(kind, 1).unmatched:
        yield from ((emission.probe, emission.other) for emission in emissions)
        return
    matched = np.zeros(len(right), np.bool_)
    done = 0  # the right rows before it are emitted
    for (_, high), emission in zip(matches.chunks, emissions, strict=True):
        matched[emission.other[emission.other >= 0]] = True
        begun = (
            left.key_index[high] if high < len(left) else last + 1
        )  # its right rows may still find matches
        until = int(np.searchsorted(right.key_index, begun))
        yield _with_alone(left, right, emission, np.flatnonzero(~matched[done:until]) + done)
        done = until
    if done < len(right):
        alone = np.arange(done, len(right))  # there are no left rows
        yield np.full(len(alone), -1), alone


def _with_alone(
    left: JoinRows, right: JoinRows, emission: JoinEmission, alone: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Insert the right rows ``alone``, which have no match, each after the emission of its group."""
    groups = np.concatenate([left.key_index[emission.probe], right.key_index[alone]])
    order = rows_by(groups)
    probe = np.concatenate([emission.probe, np.full(len(alone), -1)])
    return probe[order], np.concatenate([emission.other, alone])[order]
