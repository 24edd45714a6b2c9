"""Blocks: the overflow rows of a ranking, cut by rank order into pieces that grow from the best one on.

Owns: ``Bounds``, and the pure functions that decide which block a row is in, which blocks to read, how to cut new ones,
and which rows are left of a block's log.
Invariant: all rows of a block come before those of the next one, ties included (by arrival); the best block has the
highest number, so that new blocks go on top and are used up like a stack.
Must not know of state.

Source: Paredes and Navarro, "Optimal Incremental Sorting" (2006): a stack of pivots, sorted only as far as needed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from asyncstate.codec.sorting import rows_by

from ...core.arrays import BoolArray, Int64Array, place_in_run, run_begins, take_rows
from ...core.sort_orders import differs_from_last, sorted_by
from ..rank_plan import RankPlan
from ..row_numbers import RankTable


@dataclass(frozen=True)
class BlockSizes:
    """The sizes of the best rows, of blocks and of logs; the stored form does not depend on them, so they may change.

    After the rows that are shown, the best rows of a key have at most ``spare_most`` others, and ``spare_least`` once
    rows have moved to the overflow or from it. Blocks are cut with ``block_rows`` in the best one and ``growth`` times
    as many in each next one. A log has at most ``spare_events`` more events than twice its rows.
    """

    spare_least: int = 16
    spare_most: int = 48
    block_rows: int = 256
    growth: int = 8
    spare_events: int = 64

    @property
    def boundaries(self) -> Int64Array:
        """The number of rows in the first one, two, ... blocks."""
        return np.cumsum(self.block_rows * self.growth ** np.arange(12, dtype=np.int64))


@dataclass(frozen=True)
class Bounds:
    """b blocks, by key, the best first: the first position of each, its number, and how many rows it has.

    A position is a row's order ``columns`` and its ``arrival``.
    """

    columns: list[pa.Array]
    key: Int64Array
    arrival: Int64Array
    block: Int64Array
    rows: Int64Array

    def __len__(self) -> int:
        return len(self.key)

    def select(self, chosen: BoolArray) -> Bounds:
        """Some of the blocks."""
        mask = pa.array(chosen)
        return Bounds(
            [column.filter(mask) for column in self.columns],
            self.key[chosen],
            self.arrival[chosen],
            self.block[chosen],
            self.rows[chosen],
        )

    def grown(self, changes: npt.NDArray[np.integer]) -> Bounds:
        """The bounds with ``changes`` (b) more rows."""
        return Bounds(self.columns, self.key, self.arrival, self.block, self.rows + changes)

    def joined(self, more: Bounds) -> Bounds:
        """These and ``more``, in order."""
        order = rows_by(np.concatenate([self.key, more.key]), -np.concatenate([self.block, more.block]))
        pairs = zip(self.columns, more.columns, strict=True)
        return Bounds(
            take_rows([pa.concat_arrays(pair) for pair in pairs], order),
            *(
                np.concatenate(pair)[order]
                for pair in (
                    (self.key, more.key),
                    (self.arrival, more.arrival),
                    (self.block, more.block),
                    (self.rows, more.rows),
                )
            ),
        )

    def has(self, num_keys: int) -> BoolArray:
        """The keys (u) with blocks."""
        found = np.zeros(num_keys, np.bool_)
        found[self.key] = True
        return found

    def best(self) -> BoolArray:
        """The best block of each key (b)."""
        return run_begins(self.key)


def block_of(plan: RankPlan, table: RankTable, rows: Int64Array, bounds: Bounds) -> Int64Array:
    """The index into ``bounds`` (b > 0) of the block of each of ``rows``, -1 for those before all blocks."""
    places = take_rows([table.columns[index] for index in plan.order_at], rows)
    pairs = zip(bounds.columns, places, strict=True)
    codes = plan.codes_of([pa.concat_arrays(pair) for pair in pairs])
    key = np.concatenate([bounds.key, table.key[rows]])
    arrival = np.concatenate([bounds.arrival, table.arrival[rows]])
    is_row = np.arange(len(key)) >= len(bounds)
    order = sorted_by(codes, major=key, minor=[arrival, is_row])
    last = np.cumsum(~is_row[order]) - 1
    blocks = np.empty(len(key), np.int64)
    blocks[order] = np.where((last >= 0) & (bounds.key[last] == key[order]), last, -1)
    return blocks[len(bounds) :]


def blocks_to_read(bounds: Bounds, short: BoolArray) -> BoolArray:
    """The blocks (b) to read for keys that need rows (a mask of u): the best, and all next ones no larger than those
    before them together, so that the number of blocks stays logarithmic."""
    best = bounds.best()
    total = np.cumsum(bounds.rows)
    begin = np.maximum.accumulate(np.where(best, np.arange(len(bounds)), 0))
    before = total - bounds.rows - (total - bounds.rows)[begin]
    stops = np.cumsum(~best & (bounds.rows > before))
    read: BoolArray = (stops == stops[begin]) & short[bounds.key]
    return read


def block_numbers(key: Int64Array, sizes: BlockSizes) -> Int64Array:
    """The block of each of the rows, which are in rank order; the best block is 0."""
    return np.searchsorted(sizes.boundaries, place_in_run(key), side="right")


def live_events(owner: npt.NDArray[np.integer], arrival: Int64Array, added: BoolArray) -> Int64Array:
    """One event of each row that is left in a log of ``added`` and removed rows, by (owner, arrival)."""
    order = rows_by(owner, arrival, ~added)
    begins = differs_from_last([owner, arrival], order)
    starts = np.flatnonzero(begins)
    sums = np.add.reduceat(np.where(added[order], 1, -1), starts) if len(starts) else starts
    return order[starts[sums > 0]]


def occurs_in(
    owner: npt.NDArray[np.integer],
    arrival: Int64Array,
    others: npt.NDArray[np.integer],
    other_arrival: Int64Array,
) -> BoolArray:
    """Whether each (owner, arrival) is among the others."""
    owners, arrivals = np.concatenate([owner, others]), np.concatenate([arrival, other_arrival])
    order = rows_by(owners, arrivals)
    ids = np.empty(len(order), np.int64)
    ids[order] = np.cumsum(differs_from_last([owners, arrivals], order)) - 1
    found: BoolArray = np.isin(ids[: len(owner)], ids[len(owner) :])
    return found
