"""Rankings of rows that never get worse: only the best rows of each key are kept.

Owns: ``BestRows``, ``MergedRanking`` and the interface of both layouts, ``RankState``.
Invariant: a row is kept exactly as long as its number is not above the last one shown; an evicted row
could re-enter the top N only if another one got worse or was deleted.
Must not import anything of ``asyncstate`` but ``operator``, ``state``, ``futures``, ``codec``, ``errors``.

Source: Flink's ``AppendOnlyTopNFunction`` and ``UpdatableTopNFunction``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from asyncstate.codec import KeyBatch
from asyncstate.codec.sorting import rows_by
from asyncstate.errors import OperatorError
from asyncstate.futures import StateFuture
from asyncstate.operator import OperatorContext
from asyncstate.state.columnar.list_blocks import ListHeads
from asyncstate.state.columnar.list_columns import ListColumns, ListColumnState, ListColumnStateDescriptor
from asyncstate.state.expiring.ttl import StateTtl

from ..core.arrays import BoolArray, Int64Array, index_among, last_of, take_rows
from ..core.expiry_options import concat_stamps, row_stamps
from ..core.sort_orders import Codes, order_levels
from .rank_plan import RankPlan, RankRows
from .row_numbers import Outcome, Ranked, RankTable, sequences_differ


@dataclass(frozen=True)
class MergedRanking:
    """The rankings of a bundle's keys before and after it: rows of ``table``.

    ``before`` and ``after`` include at least the rows that are shown. ``emptied`` (u): keys that had rows, before or
    within the bundle, and have none now.
    """

    table: RankTable
    before: Ranked
    after: Ranked
    emptied: BoolArray


Steps = Generator[StateFuture[Any], None, MergedRanking]
"""Futures to be done before the next step, then the result."""


def top_lists(
    plan: RankPlan, context: OperatorContext, fields: Sequence[pa.Field], ttl: StateTtl | None = None
) -> ListColumnState:
    """The state ``top``: one list per key with these columns."""
    return context.get_state(
        ListColumnStateDescriptor("top", pa.schema(fields), ttl=ttl, belongs_to=plan.belongs_to)
    )


class RankState(ABC):
    """The stored rows of a ranking, in the lists ``top``."""

    def __init__(self, plan: RankPlan, context: OperatorContext, top: ListColumnState) -> None:
        self._plan = plan
        self._missing = context.missing_rows()
        self._top = top

    def prefetch(self, keys: KeyBatch) -> None:
        """Start loading what ``merge`` will read."""
        self._top.prefetch(keys)

    def _read_top(self, keys: KeyBatch) -> Generator[StateFuture[Any], None, tuple[ListHeads, ListColumns]]:
        """The heads of the lists, which writes need, and the lists."""
        read = self._top.async_read(keys)
        yield read
        return read.get()

    @abstractmethod
    def merge(self, keys: KeyBatch, rows: RankRows, ends: Int64Array) -> Steps:
        """Merge a bundle's rows into the rankings of ``keys``; ``ends`` (u) is the last number that each shows."""

    def _settle(self, stored: RankTable, rows: RankRows) -> tuple[RankTable, Codes, Outcome]:
        """Stored rows, then the bundle's, with their current arrivals; their order codes; the outcome."""
        table = stored.joined(rows.table)
        codes = self._plan.codes(table.columns)
        outcome = self._plan.outcome(table, codes, rows.kinds)
        self._missing.add(rows.rows[outcome.missing], rows.bundle)
        return RankTable(table.columns, table.key, outcome.arrival), codes, outcome


class BestRows(RankState):
    """State ``top``, or lists ``top`` of another owner: the best rows of a key, in rank order. With a ``ttl`` each row
    expires independently."""

    def __init__(
        self,
        plan: RankPlan,
        context: OperatorContext,
        ttl: StateTtl | None = None,
        top: ListColumnState | None = None,
    ) -> None:
        super().__init__(plan, context, top or top_lists(plan, context, plan.fields, ttl))
        self._ttl = ttl

    def merge(self, keys: KeyBatch, rows: RankRows, ends: Int64Array) -> Steps:
        """Merge a bundle's rows into the rankings of ``keys``; ``ends`` (u) is the last number that each shows."""
        heads, found = yield from self._read_top(keys)
        stored, rows, owners = self._ranked_separately(found, rows, len(keys))
        ends = ends[owners]
        if not self._plan.has_unique:
            stored, rows = self._in_reach(stored, rows, ends, owners)
        had = None if found.stamps is None else found.stamps[stored.arrival]
        stamps = concat_stamps(had, row_stamps(self._top, rows.bundle, self._ttl, rows.rows))
        table, codes, outcome = self._settle(stored, rows)
        old = np.arange(len(stored))
        before = Ranked(old, self._plan.numbers(table.key, codes, old))
        order = table.sort(codes, np.flatnonzero(outcome.alive))
        numbers = self._plan.numbers(table.key, codes, order)
        kept = numbers <= ends[table.key[order]]
        after = Ranked(order[kept], numbers[kept])
        if self._plan.has_unique:
            self._check_better(codes, outcome, len(stored))
        self._write(keys, heads, table, before, after, stamps, owners)
        return MergedRanking(table, before, after, np.zeros(len(keys), np.bool_))

    def _ranked_separately(
        self, found: ListColumns, rows: RankRows, num_keys: int
    ) -> tuple[RankTable, RankRows, Int64Array]:
        """Stored and new rows with the index of their ranking instead of that of their key, and each ranking's key."""
        # Stored rows are in rank order, so their positions show which of equal rows came first.
        stored = RankTable(found.columns, found.key_index.astype(np.int64), np.arange(found.num_rows))
        arrival = len(stored) + rows.table.arrival
        if self._plan.settings.newest_first:
            arrival = -arrival  # before all stored ones, which are in that order already
        new = RankTable(rows.table.columns, rows.table.key, arrival)
        if self._plan.settings.separate_by is None:
            return stored, rows.with_table(new), np.arange(num_keys)
        rankings, owners = self._plan.rankings(stored.joined(new), num_keys)
        stored = replace(stored, key=rankings[: len(stored)])
        # Older versions wrote lists in which the rankings of a key are mixed.
        stored = stored.take(rows_by(stored.key))
        return stored, rows.with_table(replace(new, key=rankings[len(stored) :])), owners

    def _in_reach(
        self, stored: RankTable, rows: RankRows, ends: Int64Array, owners: Int64Array
    ) -> tuple[RankTable, RankRows]:
        """The rows that the stored ones do not rule out at once, and the stored rows of their keys.

        Most rows of a long stream are never among the best; they, and keys without other rows, skip the sort.
        """
        if not len(stored):
            return stored, rows
        last = last_of(stored.key, np.arange(len(stored)), len(ends))
        outside = self._plan.next_number(stored, last, len(ends)) > ends
        rivals = np.flatnonzero((last >= 0) & outside)
        rival_of = np.full(len(ends), -1, np.int64)
        rival_of[rivals] = len(rows.table) + np.arange(len(rivals))
        rival = rival_of[rows.table.key]
        columns = [
            pa.concat_arrays([rows.table.columns[at], stored.columns[at].take(pa.array(last[rivals]))])
            for at in self._plan.order_at
        ]
        worse, equal = np.zeros(len(rival), np.bool_), rival >= 0
        for code in self._plan.codes_of(columns):
            mine, other = code[: len(rival)], code[rival]
            worse |= equal & (mine > other)
            equal &= mine == other
        ranks_after_equals = (
            self._plan.settings.function == "row_number" and not self._plan.settings.newest_first
        )
        out = worse | equal if ranks_after_equals else worse
        if not out.any():
            return stored, rows
        chosen = np.flatnonzero(~out)
        rows = rows.take(chosen)
        touched = np.zeros(int(owners.max(initial=-1)) + 1, np.bool_)
        touched[owners[rows.table.key]] = True  # a list is written as a whole
        return stored.take(np.flatnonzero(touched[owners[stored.key]])), rows

    def _write(
        self,
        keys: KeyBatch,
        heads: ListHeads,
        table: RankTable,
        before: Ranked,
        after: Ranked,
        stamps: Int64Array | None,
        owners: Int64Array,
    ) -> None:
        differ = sequences_differ(before.rows, after.rows, table.key, len(owners))
        if differ.any():
            changed = np.zeros(len(keys), np.bool_)
            changed[owners[differ]] = True
            of_row = owners[table.key[after.rows]]
            written = after.rows[changed[of_row]]
            self._top.put(
                keys.select(changed),
                take_rows(table.columns, written),
                index_among(changed)[of_row[changed[of_row]]],
                heads.select(changed),
                None if stamps is None else stamps[written],
            )

    def _check_better(self, codes: Codes, outcome: Outcome, stored: int) -> None:
        """Refuse a row that replaces a stored one and is worse: the rows that would move up are gone."""
        assert outcome.newest is not None
        newest = outcome.newest[:stored]
        replaced = newest != np.arange(stored)
        if not replaced.any():
            return
        levels = order_levels(codes, len(outcome.alive))
        if bool((levels[newest] > levels[:stored])[replaced].any()):
            raise OperatorError(
                f"{self._plan.owner}: a row is worse than the previous one with the same unique key, but "
                "monotonic=True promises that rows only get better; leave monotonic out, which keeps all rows, and "
                "use a new uid"
            )
