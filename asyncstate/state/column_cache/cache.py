"""The cached column states of one partition in a worker, within one memory bound.

Owns: ``ColumnCache`` and ``ColumnCacheStatistics``.
Invariant: between two calls all tables together stay within ``limit_bytes``; evicted rows that are not stored yet are
handed on first. The owner knows which job and partition the tables belong to: nothing here names them.
Must not import storage, execution or operators.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

import pyarrow as pa

from asyncstate.metrics import Count, Limit, MaxGauge
from asyncstate.state.column_cache.keyed_columns import KeyedColumns, RowNumbers

_SHRUNK_TO: Final = 0.6
"""Share of the bound that remains after an eviction: evicting rewrites the remaining rows, so it should be rare."""

_BYTES_A_KEY: Final = 1_000
"""Bytes that are exported to another process and read there in the time in which the store reads one key: 0.7 ns per
byte, 1 us per key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnCacheStatistics:
    """Statistics of one partition and micro-batch.

    ``column_cache_hits``: keys served from the cache, absent ones included. ``column_cache_carried``: rows left from
    the previous micro-batch. ``column_cache_evictions``: rows evicted for lack of memory. ``column_cache_bytes_peak``,
    ``column_cache_bytes_limit``: memory used, and its bound.
    """

    column_cache_hits: Count
    column_cache_carried: Count
    column_cache_evictions: Count
    column_cache_bytes_peak: MaxGauge
    column_cache_bytes_limit: Limit


class _Opened(NamedTuple):
    """A state that is cached in this micro-batch. ``is_new``: the store has no data of it."""

    schema: pa.Schema
    is_new: bool
    store_rows: Callable[[RowNumbers], None]


class ColumnCache:
    """The tables of one partition's states by state id."""

    def __init__(self) -> None:
        self.tables: dict[int, KeyedColumns] = {}
        """The table of each state, by state id."""
        self._opened: dict[int, _Opened] = {}
        self._limit_bytes = self._carried = self._evictions = self._peak_bytes = 0
        self.asked = self.hits = self.read_bytes = 0
        """Requested keys, keys served from the cache, and the bytes of their columns; the cached state counts them."""

    # -- one micro-batch --------------------------------------------------------------------------

    def begin(self, limit_bytes: int) -> None:
        """Begin a micro-batch; the tables may use ``limit_bytes``."""
        self._opened = {}
        self._limit_bytes = limit_bytes
        self._evictions = self._peak_bytes = self.asked = self.hits = self.read_bytes = 0

    def open(
        self, state_id: int, schema: pa.Schema, is_new: bool, store_rows: Callable[[RowNumbers], None]
    ) -> None:
        """Cache a state in this micro-batch: see ``_Opened``."""
        self._opened[state_id] = _Opened(schema, is_new, store_rows)

    def opened(self) -> frozenset[int]:
        """End opening states: drop tables of other states, or of other types. Returns the ids of the cached states."""
        self.tables = {
            state_id: table
            for state_id, table in self.tables.items()
            if state_id in self._opened and table.schema.equals(self._opened[state_id].schema)
        }
        self._carried = sum(map(len, self.tables.values()))
        return frozenset(self._opened)

    def table(self, state_id: int, key_types: list[pa.DataType]) -> KeyedColumns:
        """The table of an open state, for keys of these types."""
        table = self.tables.get(state_id)
        if table is not None and table.key_types != key_types:
            self.forget(state_id)
            table = None
        if table is None:
            opened = self._opened[state_id]
            self._opened[state_id] = opened._replace(is_new=False)
            table = self.tables[state_id] = KeyedColumns(key_types, opened.schema, opened.is_new)
        return table

    def dirty(self, state_id: int) -> list[RowNumbers]:
        """See ``KeyedColumns.dirty``; the caller stores these rows, and they become clean."""
        table = self.tables.get(state_id)
        if table is None:
            return []
        rows = table.dirty()
        table.clean()
        return rows

    def forget(self, state_id: int) -> None:
        """Drop a state's table; its dirty rows are handed on."""
        opened = self._opened[state_id]
        self._opened[state_id] = opened._replace(is_new=False)
        for rows in self.dirty(state_id):
            opened.store_rows(rows)
        self.tables.pop(state_id, None)

    def make_room(self) -> None:
        """Evict rows if the bound is exceeded; dirty ones are handed on."""
        size = self.size_bytes
        self._peak_bytes = max(self._peak_bytes, size)
        if size > self._limit_bytes:
            for state_id, rows in self._shrunk(int(self._limit_bytes * _SHRUNK_TO)):
                self._opened[state_id].store_rows(rows)

    def statistics(self) -> ColumnCacheStatistics:
        """The statistics of this micro-batch."""
        return ColumnCacheStatistics(
            column_cache_hits=self.hits,
            column_cache_carried=self._carried,
            column_cache_evictions=self._evictions,
            column_cache_bytes_peak=max(self._peak_bytes, self.size_bytes),
            column_cache_bytes_limit=self._limit_bytes,
        )

    # -- between micro-batches --------------------------------------------------------------------

    @property
    def size_bytes(self) -> int:
        """Memory of all tables."""
        return sum(table.nbytes for table in self.tables.values())

    @property
    def worth_keeping(self) -> bool:
        """Whether the cache has any rows."""
        return bool(self.tables)

    @property
    def was_short(self) -> bool:
        """Whether rows were evicted for lack of memory since the start of its last micro-batch."""
        return self._evictions > 0

    @property
    def worth_giving_away(self) -> bool:
        """Whether the next process of this partition gains from the cache: copying all of it takes no longer than
        reading as many keys as were requested recently."""
        return 0 < self.size_bytes <= _BYTES_A_KEY * self.asked

    def __reduce__(self) -> tuple[Callable[..., ColumnCache], tuple[dict[int, KeyedColumns]]]:
        """Pickles the tables, for another process to continue with."""
        return _with_tables, (self.tables,)

    def shrink(self, limit_bytes: int) -> int:
        """Evict rows until the tables fit into ``limit_bytes``, when all rows are stored; the number of evicted
        rows."""
        before = self._evictions
        if self.size_bytes > limit_bytes:
            handed_on = self._shrunk(limit_bytes)
            assert not handed_on, "between micro-batches nothing is dirty"
        return self._evictions - before

    def _shrunk(self, limit_bytes: int) -> list[tuple[int, RowNumbers]]:
        """Evict rows of the largest tables until all fit into ``limit_bytes``; returns the dirty ones."""
        handed_on = []
        for state_id, table in sorted(self.tables.items(), key=lambda item: item[1].nbytes, reverse=True):
            # Repeats if the remaining rows are larger than the evicted ones.
            while (excess := self.size_bytes - limit_bytes) > 0 and len(table):
                before = len(table)
                rows = table.shrink(int(before * max(0.0, 1 - excess / table.nbytes)))
                self._evictions += before - len(table)
                if rows is not None:
                    handed_on.append((state_id, rows))
        return handed_on


def _with_tables(tables: dict[int, KeyedColumns]) -> ColumnCache:
    cache = ColumnCache()
    cache.tables = tables
    return cache
