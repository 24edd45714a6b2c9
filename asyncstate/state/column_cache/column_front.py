"""The rows of a column state in memory, before the store.

Owns: ``ColumnFront``.
Invariant: a read returns the writes made before its request, whenever it is answered.
Must not import storage, execution or operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from asyncstate.codec import STATE_PREFIX_BYTES, KeyBatch, KeyCodec, RowCodec
from asyncstate.codec.hashing import UInt64Array
from asyncstate.codec.value_columns import LARGE_BINARY, BoolArray, Int64Array
from asyncstate.futures import StateFuture, completed_future
from asyncstate.state.column_cache.cache import ColumnCache
from asyncstate.state.column_cache.keyed_columns import KeyedColumns, RowNumbers, UInt16Array
from asyncstate.state.columnar.results import Columns
from asyncstate.state.expiring.expiry import Lifetime
from asyncstate.state_backend import StateBackend, WriteBackCache


class _Asked(NamedTuple):
    """A read at the time of its request: the cached rows of its keys (u), and which keys are ``unknown`` (u).

    ``wanted`` (m, ascending): the keys to read, which include the unknown ones.
    """

    keys: KeyBatch
    known: Columns
    unknown: BoolArray
    wanted: Int64Array
    version: int
    drops: int

    @property
    def wanted_keys(self) -> KeyBatch:
        return self.keys if len(self.wanted) == len(self.keys) else self.keys.select(self.wanted)


class ColumnFront(WriteBackCache):
    """Cached rows are served from memory; the others are read, and cached from then on. Writes stay in the cache until
    the end of the micro-batch, or until they are evicted.

    Keys have the key columns alone. Rows have the columns of the codec: with a ttl, the stamp first. Expired rows are
    rows like others here, until ``sweep`` removes them.
    """

    def __init__(
        self,
        sink: StateBackend,
        state_id: int,
        codec: RowCodec,
        key_codec: KeyCodec,
        cache: ColumnCache,
        is_new: bool,
    ) -> None:
        """``is_new``: the store has no data of the state."""
        super().__init__()
        self._sink = sink
        self._id = state_id
        self._codec = codec
        self._key_codec = key_codec
        self._cache = cache
        self._ahead: tuple[UInt64Array, Int64Array] | None = None
        self._due: _DueRows | None = None
        sink.attach(self)
        cache.open(state_id, codec.schema, is_new, self.store_rows)

    # -- reading ----------------------------------------------------------------------------------

    def get(self, keys: KeyBatch) -> Columns:
        """The rows of ``keys``, expired ones included."""
        table = self._table(keys)
        asked = self._asked(table, keys)
        if not len(asked.wanted):
            return asked.known
        values = self._sink.get_many(asked.wanted_keys.store_keys(self._id))
        return self._answered(table, asked, values)

    def async_get(self, keys: KeyBatch) -> StateFuture[Columns]:
        """A future of the same."""
        table = self._table(keys)
        asked = self._asked(table, keys)
        if not len(asked.wanted):
            return completed_future(asked.known)
        read = self._sink.async_get_many(asked.wanted_keys.store_keys(self._id))
        return read.then_apply(lambda values: self._answered(table, asked, values))

    def prefetch(self, keys: KeyBatch) -> None:
        """Start loading the rows of ``keys`` that are not in memory."""
        table = self._table(keys)
        if table.whole:
            return
        wanted = np.flatnonzero(table.find(keys) < 0)
        if len(wanted):
            self._ahead = keys.hashes, wanted
            self._sink.prefetch(keys.select(wanted).store_keys(self._id))

    def _asked(self, table: KeyedColumns, keys: KeyBatch) -> _Asked:
        rows = table.find(keys)
        unknown = rows < 0
        known = table.take(rows)
        wanted = np.zeros(0, np.int64) if table.whole else np.flatnonzero(unknown)
        self.hits += len(keys) - len(wanted)
        self._cache.asked += len(keys)
        self._cache.hits += len(keys) - len(wanted)
        self._cache.read_bytes += sum(column.nbytes for column in known.columns)
        if len(wanted):
            wanted = self._read_ahead(keys, wanted)
        return _Asked(keys, known, unknown, wanted, table.version, table.drops)

    def _read_ahead(self, keys: KeyBatch, wanted: Int64Array) -> Int64Array:
        """The keys of the prefetch of these same keys, to request them unchanged: some may have been cached since."""
        ahead = self._ahead
        if ahead is None or not np.array_equal(ahead[0], keys.hashes):
            return wanted
        self._ahead = None
        return ahead[1] if np.isin(wanted, ahead[1], assume_unique=True).all() else wanted

    def _answered(self, table: KeyedColumns, asked: _Asked, values: list[bytes | None]) -> Columns:
        read = Columns(*self._codec.decode(values))
        new = asked.unknown[asked.wanted] & read.present
        self._learn(table, asked, new, read)
        if asked.unknown.all():
            return read
        at = np.arange(len(asked.keys))
        at[asked.wanted] = np.where(
            asked.unknown[asked.wanted], len(at) + np.arange(len(asked.wanted)), asked.wanted
        )
        taken = pa.array(at)
        columns = [
            pa.concat_arrays(pair).take(taken) for pair in zip(asked.known.columns, read.columns, strict=True)
        ]
        return Columns(columns, np.concatenate([asked.known.present, read.present])[at])

    def _learn(self, table: KeyedColumns, asked: _Asked, new: BoolArray, read: Columns) -> None:
        """Cache the rows that were read, unless newer ones were evicted since the request."""
        if not new.any() or table.drops != asked.drops:
            return
        keys = asked.wanted_keys
        if table.version != asked.version:
            new &= table.find(keys) < 0  # written since, or cached by another read
        if new.all():
            table.learn(keys, read.columns)
        elif new.any():
            mask = pa.array(new)
            table.learn(keys.select(new), [column.filter(mask) for column in read.columns])
        self._cache.make_room()

    # -- writing ----------------------------------------------------------------------------------

    def put(self, keys: KeyBatch, columns: Sequence[pa.Array]) -> None:
        """Write one row per key."""
        self._write(keys, self._codec.checked(columns))

    def remove(self, keys: KeyBatch) -> None:
        """Remove the rows of ``keys``."""
        self._write(keys, None)

    def _write(self, keys: KeyBatch, columns: Sequence[pa.Array] | None) -> None:
        table = self._table(keys)
        if len(keys):
            table.write(keys, columns)
            self._cache.make_room()

    def keys_of(self, store_keys: Sequence[bytes]) -> KeyBatch:
        """The keys of ascending store keys, of this state or of another one."""
        columns = self._key_codec.decode(pa.array(store_keys, LARGE_BINARY), STATE_PREFIX_BYTES)
        return self._key_codec.group(columns, num_rows=len(store_keys))

    def forget(self) -> None:
        """Drop all rows from memory, before the store is written past them; unstored ones are stored."""
        self._cache.forget(self._id)

    def _table(self, keys: KeyBatch) -> KeyedColumns:
        _ = self._sink.current  # raises on any thread but that of the micro-batch
        return self._cache.table(self._id, [column.type for column in keys.columns])

    # -- the clean-up -----------------------------------------------------------------------------

    @property
    def whole(self) -> bool:
        """Whether the store has no key that is not in memory."""
        table = self._known
        return table is not None and table.whole

    def unknown(self, store_keys: list[bytes]) -> BoolArray:
        """Which of the ascending ``store_keys`` (n) have no row in memory; a row in memory is newer than a stored
        one."""
        table = self._known
        if table is None:
            return np.ones(len(store_keys), np.bool_)
        return table.find(self.keys_of(store_keys)) < 0

    def sweep(self, group: int, lifetime: Lifetime) -> KeyBatch | None:
        """Remove the expired rows in memory of a key group, and stamp rows that were written when no time was known.
        Returns the keys of the expired rows, None if there are none."""
        table = self._known
        if table is None:
            return None
        if self._due is None or self._due.drops != table.drops:
            self._due = _DueRows.of(table, lifetime)
        rows = self._due.rows_of(group)
        if not len(rows):  # in most key groups
            return None
        live = lifetime.live(table.values(0, rows).to_numpy())
        # Row numbers are valid until the next write.
        expired = None if live.all() else self._keys_at(table, rows[~live])
        if live.any():
            self._stamp(table, rows[live], lifetime)
        if expired is not None:
            self.remove(expired)
        return expired

    def _stamp(self, table: KeyedColumns, rows: Int64Array, lifetime: Lifetime) -> None:
        keys = self._keys_at(table, rows)
        order = pa.array(keys.last_rows())
        columns = [table.values(at, rows).take(order) for at in range(1, len(table.schema))]
        self.put(keys, [pa.array(lifetime.stamps(None, len(keys))), *columns])

    def _keys_at(self, table: KeyedColumns, rows: Int64Array) -> KeyBatch:
        return self._key_codec.group(table.keys_of(rows), num_rows=len(rows))

    @property
    def _known(self) -> KeyedColumns | None:
        """The table of cached rows; None while there are none."""
        return self._cache.tables.get(self._id)

    # -- eviction and write-back --------------------------------------------------------------------

    def store_rows(self, rows: RowNumbers) -> None:
        """Write evicted rows to the store."""
        keys, values = self._stored(rows)
        if rows.present.all():
            self._sink.put_many(keys, values)  # type: ignore[arg-type]  # none is None
            return
        there = [pair for pair in zip(keys, values, strict=True) if pair[1] is not None]
        if there:
            self._sink.put_many(*zip(*there, strict=True))
        self._sink.delete_many([key for key, value in zip(keys, values, strict=True) if value is None])

    def write_back(self) -> None:
        """Does nothing: these states have no range reads."""

    def finish(self) -> None:
        """Write all dirty rows: each is encoded once, however often it was written."""
        for rows in self._cache.dirty(self._id):
            keys, values = self._stored(rows)
            self._sink.append_final(keys, values, rows.keys.store_key_bytes + self._size_of(rows, values))

    def _stored(self, rows: RowNumbers) -> tuple[list[bytes], list[bytes | None]]:
        """Store keys and values of rows, None for those that are removed."""
        keys = rows.keys.store_keys(self._id)
        if rows.present.all():
            values: list[bytes | None] = []
            values += self._codec.encode(rows.columns, num_rows=len(keys))
            return keys, values
        mask, at = pa.array(rows.present), np.flatnonzero(rows.present)
        encoded = self._codec.encode([column.filter(mask) for column in rows.columns], num_rows=len(at))
        values = [None] * len(keys)
        for index, value in zip(at.tolist(), encoded, strict=True):
            values[index] = value
        return keys, values

    def _size_of(self, rows: RowNumbers, values: list[bytes | None]) -> int:
        width = self._codec.width
        return sum(map(len, filter(None, values))) if width is None else width * int(rows.present.sum())


class _DueRows(NamedTuple):
    """The rows of a table that the clean-up changes, by key group: found once for all key groups, when the clean-up
    begins. Valid until rows are dropped (``drops``)."""

    rows: Int64Array
    groups: UInt16Array
    drops: int

    @staticmethod
    def of(table: KeyedColumns, lifetime: Lifetime) -> _DueRows:
        rows, groups = table.present_rows()
        due = np.flatnonzero(lifetime.due(table.values(0, rows).to_numpy()))
        due = due[np.argsort(groups[due], kind="stable")]
        return _DueRows(rows[due], groups[due], table.drops)

    def rows_of(self, group: int) -> Int64Array:
        """The rows of one key group."""
        start, end = np.searchsorted(self.groups, [group, group + 1])
        return self.rows[start:end]
