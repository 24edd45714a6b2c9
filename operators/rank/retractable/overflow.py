"""The overflow of a ranking in state: all rows after its best ones.

Owns: ``Overflow`` and its two states: ``behind``, rows by the hash of their identity, and ``order``, for each block a
log of the rows that it contains.
Invariant: every overflow row is in ``behind`` and, as an event that is not retracted, in the log of its block.
Must not import anything of ``asyncstate`` but ``operator``, ``state``, ``futures``, ``codec``, ``errors``.

A change of an overflow row costs a read and a write under its hash and an event at the end of a log, however many rows
there are. Blocks are read, the best ones first, when the best rows run short. The rows that are not needed are cut into
new blocks.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from asyncstate.codec import KeyBatch
from asyncstate.codec.sorting import rows_by
from asyncstate.errors import CodecError
from asyncstate.futures import StateFuture
from asyncstate.operator import OperatorContext
from asyncstate.state.columnar.list_blocks import ListHeads
from asyncstate.state.columnar.list_columns import ListColumns, ListColumnState, ListColumnStateDescriptor

from ...core.arrays import BoolArray, Int64Array, concat_rows, int64_values, place_in_run, take_rows
from ..rank_plan import RankPlan
from ..row_numbers import RankTable
from .blocks import (
    BlockSizes,
    Bounds,
    block_numbers,
    block_of,
    blocks_to_read,
    live_events,
    occurs_in,
)

Step = Generator[StateFuture[Any], None, Any]

ARRIVAL = pa.field("rank:arrival", pa.int64(), nullable=False)
_EVENT = [
    ARRIVAL,
    pa.field("rank:hash", pa.int64(), nullable=False),
    pa.field("rank:added", pa.bool_(), nullable=False),
]


@dataclass(frozen=True)
class OverflowRows:
    """The stored rows that have the hashes of f bundle rows.

    ``pairs`` are the (key, hash) of both: ``pair`` is the index of the pair of each stored row of ``table``,
    ``pairs.inverse`` that of each bundle row.
    """

    table: RankTable
    pair: Int64Array
    pairs: KeyBatch
    heads: ListHeads


@dataclass(frozen=True)
class _Events:
    """e events for the logs of blocks: ``columns`` of the log, and the key and block number of each event."""

    columns: list[pa.Array]
    key: Int64Array
    block: Int64Array


class Overflow:
    """The rows after the best ones. Methods are generators of futures that must be done before the next step."""

    def __init__(self, plan: RankPlan, context: OperatorContext, sizes: BlockSizes) -> None:
        self._plan = plan
        self._sizes = sizes
        self._rows: ListColumnState = context.get_state(
            ListColumnStateDescriptor(
                "behind", pa.schema([*plan.fields, ARRIVAL]), time_first=True, belongs_to=plan.belongs_to
            )
        )
        self._order: ListColumnState = context.get_state(
            ListColumnStateDescriptor(
                "order", pa.schema([*plan.order_fields, *_EVENT]), time_first=True, belongs_to=plan.belongs_to
            )
        )

    # -- rows by identity ----------------------------------------------------------------------------

    def find(self, keys: KeyBatch, rows: RankTable) -> Generator[StateFuture[Any], None, OverflowRows]:
        """The stored rows with the identities of ``rows``."""
        return (yield from self._find(keys, rows.key, self._plan.hashes(rows.columns)))

    def _find(
        self, keys: KeyBatch, key: Int64Array, hashes: Int64Array
    ) -> Generator[StateFuture[Any], None, OverflowRows]:
        pairs = keys.in_namespaces(hashes, key)
        heads, stored = yield from _read(self._rows, pairs)
        key_of = np.zeros(len(pairs), np.int64)
        key_of[pairs.inverse] = key
        *columns, arrival = stored.columns
        pair = stored.key_index.astype(np.int64)
        return OverflowRows(RankTable(columns, key_of[pair], int64_values(arrival)), pair, pairs, heads)

    def _store(self, found: OverflowRows, table: RankTable, pair: Int64Array, changed: BoolArray) -> None:
        """Replace the lists of the ``changed`` pairs by ``table``, whose rows belong to the pairs ``pair``."""
        if changed.any():
            rows = np.flatnonzero(changed[pair])
            rows = rows[rows_by(pair[rows], table.arrival[rows])]
            self._rows.put(
                found.pairs.select(changed),
                [*take_rows(table.columns, rows), pa.array(table.arrival[rows])],
                (np.cumsum(changed) - 1)[pair[rows]],
                found.heads.select(changed),
            )

    def change(
        self,
        keys: KeyBatch,
        found: OverflowRows,
        left: BoolArray,
        added: RankTable,
        added_pair: Int64Array,
        bounds: Bounds,
    ) -> Generator[StateFuture[Any], None, tuple[Bounds, BoolArray]]:
        """Keep found rows that are ``left`` and add others; return the new bounds and the keys whose blocks changed.

        A row that is added at the place of a removed one has replaced it: its block does not change.
        """
        changed = np.zeros(len(found.pairs), np.bool_)
        changed[found.pair[~left]] = True
        changed[added_pair] = True
        stays = np.flatnonzero(left)
        table = found.table.take(stays).joined(added)
        self._store(found, table, np.concatenate([found.pair[stays], added_pair]), changed)
        gone = np.flatnonzero(~left)
        new = np.arange(len(added))
        if self._plan.has_unique:
            taken = found.table.take(gone)
            new = np.flatnonzero(~occurs_in(added.key, added.arrival, taken.key, taken.arrival))
            gone = gone[~occurs_in(taken.key, taken.arrival, added.key, added.arrival)]
        hashes = found.pairs.namespaces
        assert hashes is not None
        moved = found.table.take(gone).joined(added.take(new))
        moved_hashes = hashes[np.concatenate([found.pair[gone], added_pair[new]])]
        comes = np.arange(len(moved)) >= len(gone)
        return (yield from self._log(keys, moved, moved_hashes, comes, bounds))

    # -- logs of blocks ------------------------------------------------------------------------------

    def _log(
        self, keys: KeyBatch, table: RankTable, hashes: Int64Array, added: BoolArray, bounds: Bounds
    ) -> Generator[StateFuture[Any], None, tuple[Bounds, BoolArray]]:
        """Record in the logs of their blocks which rows were ``added`` and which were removed."""
        touched = np.zeros(len(keys), np.bool_)
        if not len(table):
            return bounds, touched
        touched[table.key] = True
        blocks = block_of(self._plan, table, np.arange(len(table)), bounds)
        assert bool((blocks >= 0).all()), "rows below the best are in a block"
        bounds = bounds.grown(np.bincount(blocks, np.where(added, 1, -1), len(bounds)).astype(np.int64))
        events = _Events(self._events(table, hashes, added), table.key, bounds.block[blocks])
        lists = keys.in_namespaces(events.block, events.key)
        rows = np.zeros(len(lists), np.int64)
        rows[lists.inverse] = bounds.rows[blocks]
        yield from self._append(lists, events, rows)
        return bounds, touched

    def _events(self, table: RankTable, hashes: Int64Array, added: BoolArray) -> list[pa.Array]:
        columns = [table.columns[index] for index in self._plan.order_at]
        return [*columns, pa.array(table.arrival), pa.array(hashes), pa.array(added)]

    def _append(self, lists: KeyBatch, events: _Events, rows: Int64Array) -> Step:
        """Append to the logs; rewrite those that are long compared with the ``rows`` that are left of them."""
        heads = self._order.async_heads(lists)
        yield heads
        owners = lists.inverse.astype(np.int64)
        length = heads.get().counts + np.bincount(owners, minlength=len(lists))
        long = length > 2 * rows + self._sizes.spare_events
        short = np.flatnonzero(~long[owners])
        short = short[rows_by(owners[short])]
        if len(short):
            self._order.append(
                lists.select(~long),
                take_rows(events.columns, short),
                (np.cumsum(~long) - 1)[owners[short]],
                heads.get().select(~long),
            )
        if long.any():
            read = self._order.async_rows(heads.get().select(long))
            yield read
            mine = np.flatnonzero(long[owners])
            columns = concat_rows(read.get().columns, take_rows(events.columns, mine))
            owner = np.concatenate([read.get().key_index, (np.cumsum(long) - 1)[owners[mine]]])
            live = live_events(owner, int64_values(columns[-3]), _bool(columns[-1]))
            self._order.put(
                lists.select(long), take_rows(columns, live), owner[live], heads.get().select(long)
            )

    # -- between the best rows and the blocks ----------------------------------------------------------

    def spill(
        self, keys: KeyBatch, table: RankTable, bounds: Bounds
    ) -> Generator[StateFuture[Any], None, Bounds]:
        """Put rows (by key, in rank order) that are better than all blocks of their keys into the best block."""
        hashes = self._plan.hashes(table.columns)
        pairs = keys.in_namespaces(hashes, table.key)
        heads = self._rows.async_heads(pairs)
        yield heads
        order = rows_by(pairs.inverse, table.arrival)
        columns = [*take_rows(table.columns, order), pa.array(table.arrival[order])]
        self._rows.append(pairs, columns, pairs.inverse[order], heads.get())
        first = np.flatnonzero(place_in_run(table.key) == 0)
        widened = bounds.best() & np.isin(bounds.key, table.key)
        block, rows = np.ones(len(keys), np.int64), np.zeros(len(keys), np.int64)
        block[bounds.key[widened]] = bounds.block[widened]
        rows[bounds.key[widened]] = bounds.rows[widened]
        owners = table.key[first]
        best = Bounds(
            take_rows([table.columns[index] for index in self._plan.order_at], first),
            owners,
            table.arrival[first],
            block[owners],
            rows[owners],
        )
        bounds = bounds.select(~widened).joined(best)
        bounds, _ = yield from self._log(keys, table, hashes, np.ones(len(table), np.bool_), bounds)
        return bounds

    def refill(
        self, keys: KeyBatch, best: RankTable, bounds: Bounds, short: BoolArray, ends: Int64Array
    ) -> Generator[StateFuture[Any], None, tuple[RankTable, Bounds]]:
        """Return rows for the keys that are ``short`` (u), and the remaining bounds.

        ``best`` are the best rows of these keys. The blocks supply the rows with numbers up to ``ends`` (u) and a few
        more.
        """
        read = blocks_to_read(bounds, short)
        lists = keys.in_namespaces(bounds.block[read], bounds.key[read])
        _, log = yield from _read(self._order, lists)
        key_of = np.empty(len(lists), np.int64)
        key_of[lists.inverse] = bounds.key[read]
        live = live_events(log.key_index, int64_values(log.columns[-3]), _bool(log.columns[-1]))
        events = take_rows(log.columns, live)
        key, arrival = key_of[log.key_index[live]], int64_values(events[-3])
        needed, order = self._needed(best, events, key, arrival, ends)
        rows = yield from self._take_out(keys, key[needed], arrival[needed], int64_values(events[-2])[needed])
        stays = order[~needed[order]]
        left = yield from self._cut(
            keys, take_rows(events, stays), key[stays], bounds.select(~read), bounds.select(read)
        )
        return rows, left

    def _needed(
        self,
        best: RankTable,
        events: list[pa.Array],
        key: Int64Array,
        arrival: Int64Array,
        ends: Int64Array,
    ) -> tuple[BoolArray, Int64Array]:
        """Which of the events' rows join the ``best``, and the events in rank order."""
        columns = [best.columns[index] for index in self._plan.order_at]
        codes = self._plan.codes_of(concat_rows(columns, events[: len(columns)]))
        both = RankTable([], np.concatenate([best.key, key]), np.concatenate([best.arrival, arrival]))
        order = both.sort(codes, np.arange(len(both)))
        owners = both.key[order]
        shown = self._plan.numbers(both.key, codes, order) <= ends[owners]
        enough = np.bincount(owners[shown], minlength=len(ends)) + self._sizes.spare_least
        needed = np.zeros(len(both), np.bool_)
        needed[order] = place_in_run(owners) < enough[owners]
        spilled = order[order >= len(best)] - len(best)
        return needed[len(best) :], spilled

    def _take_out(
        self, keys: KeyBatch, key: Int64Array, arrival: Int64Array, hashes: Int64Array
    ) -> Generator[StateFuture[Any], None, RankTable]:
        """Read and remove rows. Raises CodecError if some are missing."""
        found = yield from self._find(keys, key, hashes)
        out = occurs_in(found.pair, found.table.arrival, found.pairs.inverse, arrival)
        if int(out.sum()) != len(key):
            raise CodecError(
                f"{self._plan.owner}: rows in the order of a key are missing; restore the checkpoint from an older "
                "version"
            )
        changed = np.zeros(len(found.pairs), np.bool_)
        changed[found.pair[out]] = True
        stays = np.flatnonzero(~out)
        self._store(found, found.table.take(stays), found.pair[stays], changed)
        return found.table.take(np.flatnonzero(out))

    def _cut(
        self, keys: KeyBatch, events: list[pa.Array], key: Int64Array, left: Bounds, read: Bounds
    ) -> Generator[StateFuture[Any], None, Bounds]:
        """Write the events (by key, in rank order) as new blocks on top of those that are ``left``."""
        piece = block_numbers(key, self._sizes)
        pieces, below = np.zeros(len(keys), np.int64), np.zeros(len(keys), np.int64)
        np.maximum.at(pieces, key, piece + 1)
        np.maximum.at(below, left.key, left.block)
        block = below[key] + pieces[key] - piece
        lists = keys.in_namespaces(np.concatenate([read.block, block]), np.concatenate([read.key, key]))
        heads = self._order.async_heads(lists)
        yield heads
        owners = lists.inverse[len(read) :]
        order = rows_by(owners)
        self._order.put(lists, take_rows(events, order), owners[order], heads.get())
        first = np.flatnonzero(place_in_run(owners) == 0)
        new = Bounds(
            take_rows(events[: len(left.columns)], first),
            key[first],
            int64_values(events[-3])[first],
            block[first],
            np.bincount(owners, minlength=len(lists))[owners[first]],
        )
        return left.joined(new)


def _read(
    state: ListColumnState, keys: KeyBatch
) -> Generator[StateFuture[Any], None, tuple[ListHeads, ListColumns]]:
    read = state.async_read(keys)
    yield read
    return read.get()


def _bool(column: pa.Array) -> BoolArray:
    return np.asarray(column.to_numpy(zero_copy_only=False), np.bool_)
