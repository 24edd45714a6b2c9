"""Rankings of rows that can be retracted or get worse: all rows are stored.

Owns: ``AllRows``: which rows stay among the best rows of a key and which ones move to the overflow.
Invariant: the best rows of a key include all rows that are shown and, unless there are no others, at least one more;
all overflow rows come later in the order.
Must not import anything of ``asyncstate`` but ``operator``, ``state``, ``futures``, ``codec``, ``errors``.

A bundle reads one list of at most ``within + spare_most`` rows per key, where ``within`` is the number of rows up to
the last one shown. It reads overflow rows by identity. It reads blocks only after the best rows have lost
``spare_least`` rows more than they have gained (see ``BlockSizes``).

Source: the data state and tree map of Flink's ``RetractableTopNFunction``.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from asyncstate.codec import KeyBatch
from asyncstate.codec.sorting import rows_by
from asyncstate.futures import StateFuture
from asyncstate.operator import OperatorContext
from asyncstate.state.columnar.list_blocks import ListHeads
from asyncstate.state.columnar.list_columns import ListColumns

from ...core.arrays import BoolArray, Int64Array, concat_rows, place_in_run, take_rows
from ..append_only import MergedRanking, RankState, Steps, top_lists
from ..rank_plan import RankPlan, RankRows
from ..row_numbers import Outcome, Ranked, RankTable, sequences_differ
from .blocks import BlockSizes, Bounds, block_of
from .overflow import ARRIVAL, Overflow, OverflowRows

SIZES = BlockSizes()

_ROW, _COUNTER = 0, -1
BOOKKEEPING = (
    ARRIVAL,
    pa.field("rank:block", pa.int64(), nullable=False),
    pa.field("rank:rows", pa.int64(), nullable=False),
)
"""The columns of an entry after the stored columns."""


@dataclass(frozen=True)
class _Best:
    """The stored best rows of u keys, the ``bounds`` of their blocks, and the ``next_arrival`` (u) of each key."""

    table: RankTable
    bounds: Bounds
    next_arrival: Int64Array


@dataclass(frozen=True)
class _Ranking:
    """Rankings in progress: ``ranked`` rows of ``table``, bounds, and the keys (u) whose blocks have changed."""

    table: RankTable
    ranked: Ranked
    bounds: Bounds
    changed: BoolArray


class AllRows(RankState):
    """State ``top``, one list per key, and the states of ``Overflow``.

    An entry of ``top`` is a row, the bound of a block (its order columns and arrival) or, if there are bounds, the
    arrival number of the next row. Entries come in this order, rows and bounds in rank order.
    """

    def __init__(self, plan: RankPlan, context: OperatorContext) -> None:
        super().__init__(plan, context, top_lists(plan, context, [*plan.fields, *BOOKKEEPING]))
        self._sizes = SIZES
        self._overflow = Overflow(plan, context, SIZES)

    def merge(self, keys: KeyBatch, rows: RankRows, ends: Int64Array) -> Steps:
        """Merge a bundle's rows into the rankings of ``keys``; ``ends`` (u) is the last number that each shows."""
        heads, entries = yield from self._read_top(keys)
        stored = self._unpack(entries, len(keys))
        rows = rows.with_table(_arrived(rows.table, stored.next_arrival))
        before, ranking = yield from self._change(keys, stored, rows)
        ranking = yield from self._refill(keys, ranking, ends)
        ranking = yield from self._spill(keys, ranking, ends)
        next_arrival = stored.next_arrival + np.bincount(rows.table.key, minlength=len(keys))
        self._write(keys, heads, before, ranking, next_arrival)
        had = _has_rows(stored.table.key, stored.bounds, len(keys))
        had[rows.table.key[rows.accumulate]] = True
        has = _has_rows(ranking.table.key[ranking.ranked.rows], ranking.bounds, len(keys))
        return MergedRanking(ranking.table, before, ranking.ranked, had & ~has)

    # -- the bundle's changes ------------------------------------------------------------------------

    def _change(
        self, keys: KeyBatch, stored: _Best, rows: RankRows
    ) -> Generator[StateFuture[Any], None, tuple[Ranked, _Ranking]]:
        """The previous best rows, and the rankings with the bundle's rows, which may be too short or too long."""
        far = np.flatnonzero(stored.bounds.has(len(keys))[rows.table.key])
        found: OverflowRows | None = None
        known = stored.table
        if len(far):
            found = yield from self._overflow.find(keys, rows.table.take(far))
            known = known.joined(found.table)
        table, codes, outcome = self._settle(known, rows)
        places = np.arange(len(stored.table))
        before = Ranked(places, self._plan.numbers(table.key, codes, places))
        alive = np.flatnonzero(outcome.alive)
        bounds, changed = stored.bounds, np.zeros(len(keys), np.bool_)
        if found is not None:
            in_overflow = np.zeros(len(table), np.bool_)
            in_overflow[len(stored.table) : len(known)] = True
            new = alive[alive >= len(known)]
            in_overflow[new] = block_of(self._plan, table, new, bounds) >= 0
            bounds, changed = yield from self._change_overflow(
                keys, found, far, len(known), table, outcome, in_overflow, bounds
            )
            alive = alive[~in_overflow[alive]]
        order = table.sort(codes, alive)
        ranked = Ranked(order, self._plan.numbers(table.key, codes, order))
        return before, _Ranking(table, ranked, bounds, changed)

    def _change_overflow(
        self,
        keys: KeyBatch,
        found: OverflowRows,
        far: Int64Array,
        known: int,
        table: RankTable,
        outcome: Outcome,
        in_overflow: BoolArray,
        bounds: Bounds,
    ) -> Generator[StateFuture[Any], None, tuple[Bounds, BoolArray]]:
        left = outcome.alive[known - len(found.table) : known]
        added = np.flatnonzero(in_overflow & outcome.alive)
        added = added[added >= known]
        pair_of = np.full(len(table), -1, np.int64)
        pair_of[known + far] = found.pairs.inverse
        return (
            yield from self._overflow.change(keys, found, left, table.take(added), pair_of[added], bounds)
        )

    # -- between the best rows and the overflow -----------------------------------------------------

    def _refill(
        self, keys: KeyBatch, ranking: _Ranking, ends: Int64Array
    ) -> Generator[StateFuture[Any], None, _Ranking]:
        """Read blocks until each key has a row after those that are shown, or has no more blocks."""
        while True:
            table, ranked = ranking.table, ranking.ranked
            last = np.zeros(len(keys), np.int64)
            last[table.key[ranked.rows]] = ranked.numbers  # ascending: the last one stays
            short = ranking.bounds.has(len(keys)) & (ends > 0) & (last <= ends)
            if not short.any():
                return ranking
            best = table.take(ranked.rows[short[table.key[ranked.rows]]])
            more, bounds = yield from self._overflow.refill(keys, best, ranking.bounds, short, ends)
            rows = np.concatenate([ranked.rows, len(table) + np.arange(len(more))])
            table = table.joined(more)
            codes = self._plan.codes(table.columns)
            order = table.sort(codes, rows)
            numbers = self._plan.numbers(table.key, codes, order)
            ranking = _Ranking(table, Ranked(order, numbers), bounds, ranking.changed | short)

    def _spill(
        self, keys: KeyBatch, ranking: _Ranking, ends: Int64Array
    ) -> Generator[StateFuture[Any], None, _Ranking]:
        """Move the last of the best rows to the overflow where there are too many."""
        rows, numbers = ranking.ranked.rows, ranking.ranked.numbers
        owners = ranking.table.key[rows]
        within = np.bincount(owners[numbers <= ends[owners]], minlength=len(keys))
        long = np.bincount(owners, minlength=len(keys)) > within + self._sizes.spare_most
        out = long[owners] & (place_in_run(owners) >= within[owners] + self._sizes.spare_least)
        if not out.any():
            return ranking
        bounds = yield from self._overflow.spill(keys, ranking.table.take(rows[out]), ranking.bounds)
        return _Ranking(ranking.table, ranking.ranked.chosen(~out), bounds, ranking.changed | long)

    # -- entries -------------------------------------------------------------------------------------

    def _unpack(self, entries: ListColumns, num_keys: int) -> _Best:
        columns = entries.columns[: len(self._plan.fields)]
        arrival, block, count = (
            np.asarray(column.to_numpy(), np.int64) for column in entries.columns[len(columns) :]
        )
        key = entries.key_index.astype(np.int64)
        rows, bounds, counters = (
            np.flatnonzero(mask) for mask in (block == _ROW, block > 0, block == _COUNTER)
        )
        table = RankTable(columns, key, arrival).take(rows)
        next_arrival = np.zeros(num_keys, np.int64)
        np.maximum.at(next_arrival, table.key, table.arrival + 1)
        next_arrival[key[counters]] = count[counters]
        places = take_rows([columns[index] for index in self._plan.order_at], bounds)
        found = Bounds(places, key[bounds], arrival[bounds], block[bounds], count[bounds])
        return _Best(table, found, next_arrival)

    def _write(
        self, keys: KeyBatch, heads: ListHeads, before: Ranked, ranking: _Ranking, next_arrival: Int64Array
    ) -> None:
        """Write the entries of the keys that have changed."""
        table, rows = ranking.table, ranking.ranked.rows
        changed = ranking.changed | sequences_differ(before.rows, rows, table.key, len(keys))
        if not changed.any():
            return
        rows = rows[changed[table.key[rows]]]
        bounds = ranking.bounds.select(changed[ranking.bounds.key])
        counters = np.flatnonzero(bounds.has(len(keys)))
        key = np.concatenate([table.key[rows], bounds.key, counters])
        order = rows_by(key)
        columns = [
            *concat_rows(take_rows(table.columns, rows), self._places(bounds, len(counters))),
            pa.array(np.concatenate([table.arrival[rows], bounds.arrival, 0 * counters])),
            pa.array(
                np.concatenate([np.full(len(rows), _ROW), bounds.block, np.full(len(counters), _COUNTER)])
            ),
            pa.array(np.concatenate([np.zeros(len(rows), np.int64), bounds.rows, next_arrival[counters]])),
        ]
        owners = (np.cumsum(changed) - 1)[key[order]]
        self._top.put(keys.select(changed), take_rows(columns, order), owners, heads.select(changed))

    def _places(self, bounds: Bounds, counters: int) -> list[pa.Array]:
        """The stored columns of bounds, then of counters: null except for the order columns."""
        columns = [pa.nulls(len(bounds) + counters, field.type) for field in self._plan.fields]
        for index, column in zip(self._plan.order_at, bounds.columns, strict=True):
            columns[index] = pa.concat_arrays([column, pa.nulls(counters, column.type)])
        return columns


def _arrived(rows: RankTable, next_arrival: Int64Array) -> RankTable:
    """The rows of a bundle; their arrival numbers continue those of their keys."""
    order = rows_by(rows.key)
    arrival = np.empty(len(rows), np.int64)
    arrival[order] = next_arrival[rows.key[order]] + place_in_run(rows.key[order])
    return RankTable(rows.columns, rows.key, arrival)


def _has_rows(best: Int64Array, bounds: Bounds, num_keys: int) -> BoolArray:
    """The keys (u) with rows; ``best`` contains the key of each of the best rows."""
    has = np.zeros(num_keys, np.bool_)
    has[best] = True
    has[bounds.key[bounds.rows > 0]] = True
    return has
