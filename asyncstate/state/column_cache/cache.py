"""What a worker keeps of the column states of one partition, within one bound.

Owns: ``ColumnCache`` and ``ColumnCacheStatistics``.
Invariant: between two calls all tables together keep within ``limit_bytes``; what is dropped to that end is handed on
first if it is not stored yet. Whose content the tables show is for the owner to know: nothing here names it.
Must not import storage, execution or operators.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import pyarrow as pa

from asyncstate.metrics import Count, Limit, MaxGauge
from asyncstate.state.column_cache.keyed_columns import KeyedColumns, RowNumbers

_SHRUNK_TO: Final = 0.6
"""Of the bound, when it is passed: dropping rewrites what is left, so it should not happen for every few rows."""

_BYTES_A_KEY: Final = 1_000
"""What is written for another process and read by it while the store reads a key: 0.7 ns a byte, 1 us a key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnCacheStatistics:
    """One partition and micro-batch.

    ``column_cache_hits``: keys that were answered from here, absent ones included. ``column_cache_carried``: rows that
    the micro-batch before left. ``column_cache_evictions``: rows dropped for want of room. ``column_cache_bytes_peak``,
    ``column_cache_bytes_limit``: memory taken, and its bound.
    """

    column_cache_hits: Count
    column_cache_carried: Count
    column_cache_evictions: Count
    column_cache_bytes_peak: MaxGauge
    column_cache_bytes_limit: Limit


class _Opened(NamedTuple):
    """A state that is cached in this micro-batch. ``is_new``: nothing is stored of it; ``hand_on`` stores rows."""

    schema: pa.Schema
    is_new: bool
    hand_on: Callable[[RowNumbers], None]


class ColumnCache:
    """The tables of one partition's states by state id."""

    def __init__(self) -> None:
        self._tables: dict[int, KeyedColumns] = {}
        self._opened: dict[int, _Opened] = {}
        self._limit_bytes = self._carried = self._evictions = self._peak_bytes = 0
        self.asked = self.hits = self.read_bytes = 0
        """Keys that were asked for, those that were answered from here, and the bytes of the columns that were; whoever
        answers them counts."""

    # -- one micro-batch --------------------------------------------------------------------------

    def begin(self, limit_bytes: int) -> None:
        """A micro-batch begins; the tables may take ``limit_bytes``."""
        self._opened = {}
        self._limit_bytes = limit_bytes
        self._evictions = self._peak_bytes = self.asked = self.hits = self.read_bytes = 0

    def open(
        self, state_id: int, schema: pa.Schema, is_new: bool, hand_on: Callable[[RowNumbers], None]
    ) -> None:
        """A state is cached in this micro-batch: see ``_Opened``."""
        self._opened[state_id] = _Opened(schema, is_new, hand_on)

    def opened(self) -> frozenset[int]:
        """All states are; tables of others, or of other types, are dropped. Gives the ids of those that are cached."""
        self._tables = {
            state_id: table
            for state_id, table in self._tables.items()
            if state_id in self._opened and table.schema.equals(self._opened[state_id].schema)
        }
        self._carried = sum(map(len, self._tables.values()))
        return frozenset(self._opened)

    def table(self, state_id: int, key_types: list[pa.DataType]) -> KeyedColumns:
        """The table of a state that is open, for keys of these types."""
        table = self._tables.get(state_id)
        if table is not None and table.key_types != key_types:
            self.forget(state_id)
            table = None
        if table is None:
            opened = self._opened[state_id]
            self._opened[state_id] = opened._replace(is_new=False)
            table = self._tables[state_id] = KeyedColumns(key_types, opened.schema, opened.is_new)
        return table

    def dirty(self, state_id: int) -> list[RowNumbers]:
        """See ``KeyedColumns.dirty``; the caller stores them, and they are clean."""
        table = self._tables.get(state_id)
        if table is None:
            return []
        rows = table.dirty()
        table.clean()
        return rows

    def forget(self, state_id: int) -> None:
        """Drop a state's table; what is dirty is handed on."""
        opened = self._opened[state_id]
        self._opened[state_id] = opened._replace(is_new=False)
        for rows in self.dirty(state_id):
            opened.hand_on(rows)
        self._tables.pop(state_id, None)

    def make_room(self) -> None:
        """Drop rows if the bound is passed; what is dirty of them is handed on."""
        size = self.size_bytes
        self._peak_bytes = max(self._peak_bytes, size)
        if size > self._limit_bytes:
            for state_id, rows in self._shrunk(int(self._limit_bytes * _SHRUNK_TO)):
                self._opened[state_id].hand_on(rows)

    def statistics(self) -> ColumnCacheStatistics:
        """Of the micro-batch at hand."""
        return ColumnCacheStatistics(
            column_cache_hits=self.hits,
            column_cache_carried=self._carried,
            column_cache_evictions=self._evictions,
            column_cache_bytes_peak=max(self._peak_bytes, self.size_bytes),
            column_cache_bytes_limit=self._limit_bytes,
        )

    @property
    def tables(self) -> Mapping[int, KeyedColumns]:
        """What is known of each state, by state id."""
        return self._tables

    # -- between micro-batches --------------------------------------------------------------------

    @property
    def size_bytes(self) -> int:
        """Memory of all tables."""
        return sum(table.nbytes for table in self._tables.values())

    @property
    def worth_keeping(self) -> bool:
        """Whether there is anything in it."""
        return bool(self._tables)

    @property
    def was_short(self) -> bool:
        """Whether rows went for want of room since the last micro-batch with it began."""
        return self._evictions > 0

    @property
    def worth_giving_away(self) -> bool:
        """Whether the process that works on the partition next is better off with it than with reading: a copy of all
        takes no longer than reading as many keys as were asked for lately."""
        return 0 < self.size_bytes <= _BYTES_A_KEY * self.asked

    def __reduce__(self) -> tuple[Callable[..., ColumnCache], tuple[dict[int, KeyedColumns]]]:
        """The tables, with which another process goes on."""
        return _with_tables, (self._tables,)

    def shrink(self, limit_bytes: int) -> int:
        """Keep within ``limit_bytes``, when all is stored; the number of rows that went."""
        before = self._evictions
        if self.size_bytes > limit_bytes:
            handed_on = self._shrunk(limit_bytes)
            assert not handed_on, "between micro-batches nothing is dirty"
        return self._evictions - before

    def _shrunk(self, limit_bytes: int) -> list[tuple[int, RowNumbers]]:
        """Have the largest tables drop rows until all keep within ``limit_bytes``; what was dirty of them."""
        handed_on = []
        for state_id, table in sorted(self._tables.items(), key=lambda item: item[1].nbytes, reverse=True):
            # More than once where the rows that stay are larger than those that went.
            while (excess := self.size_bytes - limit_bytes) > 0 and len(table):
                before = len(table)
                rows = table.shrink(int(before * max(0.0, 1 - excess / table.nbytes)))
                self._evictions += before - len(table)
                if rows is not None:
                    handed_on.append((state_id, rows))
        return handed_on


def _with_tables(tables: dict[int, KeyedColumns]) -> ColumnCache:
    cache = ColumnCache()
    cache._tables = tables
    return cache
