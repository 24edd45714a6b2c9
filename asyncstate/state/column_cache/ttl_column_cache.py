"""A column state with a time to live served from the column cache, and the choice of cached states.

Owns: ``CachedTtlColumnState``; ``StampedCodec``, whose rows have their stamp as a first column; ``with_column_cache``.
Invariant: reads, the clean-up and the stored data have the same results as without the cache.
Must not import storage, execution or operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeVar, cast

import numpy as np
import pyarrow as pa

from asyncstate.codec import KeyBatch, RowCodec
from asyncstate.codec.key_fields import payload_matrix
from asyncstate.codec.value_columns import LARGE_BINARY, BoolArray, ByteArray, Int64Array, spread, valid_mask
from asyncstate.futures import StateFuture
from asyncstate.operator import OperatorContext, StateDescriptor
from asyncstate.state.column_cache.cache import ColumnCache
from asyncstate.state.column_cache.cached_column_state import CachedColumnState
from asyncstate.state.column_cache.keyed_columns import KeyedColumns, UInt16Array
from asyncstate.state.columnar.column_state import Columns, ColumnState
from asyncstate.state.expiring.expiry import STAMP_BYTES, ColumnExpiry, without_stamps
from asyncstate.state.expiring.ttl_columns import TtlColumnState
from asyncstate.state.ranges import STATE_PREFIX_BYTES

S = TypeVar("S")

_STAMP: Final = pa.field("stamp", pa.int64(), nullable=False)


class StampedCodec(RowCodec):
    """Rows of ``rows`` after the stamps that ``expiry`` reads, int64 microseconds; both are columns here.

    Only for many rows at once: it has no ``encode_one`` and ``decode_one``.
    """

    __slots__ = ("_expiry", "_rows")

    def __init__(self, rows: RowCodec, expiry: ColumnExpiry) -> None:
        self._rows = rows
        self._expiry = expiry
        self.schema = pa.schema([_STAMP, *rows.schema])

    @property
    def width(self) -> int | None:
        return None if self._rows.width is None else STAMP_BYTES + self._rows.width

    def encode(
        self, columns: Sequence[pa.Array], prefix: ByteArray | None = None, num_rows: int = 0
    ) -> list[bytes]:
        assert prefix is None, "the stamp is the first thing"
        return self._rows.encode(columns[1:], payload_matrix(columns[0].to_numpy()), len(columns[0]))

    def checked(self, columns: Sequence[pa.Array]) -> list[pa.Array]:
        return [columns[0], *self._rows.checked(columns[1:])]

    def decode(self, values: Sequence[bytes | None]) -> tuple[list[pa.Array], BoolArray]:
        """See ``RowCodec``; also CodecError for a row without a stamp."""
        rows = pa.array(values, LARGE_BINARY)
        present = valid_mask(rows)
        rows = rows if present is None else rows.drop_null()
        columns = [pa.array(self._expiry.read(rows)), *self._rows.decode(without_stamps(rows))[0]]
        if present is None:
            return columns, np.ones(len(rows), np.bool_)
        return spread(columns, present), present


class CachedTtlColumnState(TtlColumnState):
    """A TtlColumnState whose rows are cached, each with its stamp as the first column."""

    def __init__(
        self, state: TtlColumnState, context: OperatorContext, cache: ColumnCache, is_new: bool
    ) -> None:
        """``state``, cached from now on. ``is_new``: the store has no data of it."""
        super().__init__(state._expiry, state._sink, state._id, state._codec, context)
        stamped = ColumnState(state._sink, state._id, StampedCodec(state._codec, state._expiry), context)
        self._rows = CachedColumnState(stamped, context, cache, is_new)
        self._ended: _Ended | None = None

    # -- reading ----------------------------------------------------------------------------------

    def get(self, keys: KeyBatch) -> Columns:
        return self._live(self._rows.get(keys))

    def async_get(self, keys: KeyBatch) -> StateFuture[Columns]:
        return self._rows.async_get(keys).then_apply(self._live)

    def prefetch(self, keys: KeyBatch) -> None:
        self._rows.prefetch(keys)

    def _live(self, found: Columns) -> Columns:
        stored = found.numpy(0).astype(np.int64, copy=False)
        return _only(found.present & self._expiry.live(stored), found)

    # -- writing ----------------------------------------------------------------------------------

    def put(self, keys: KeyBatch, columns: Sequence[pa.Array], stamps: Int64Array | None = None) -> None:
        at = self._expiry.stamps(None, len(keys)) if stamps is None else stamps
        self._rows.put(keys, [pa.array(at), *columns])

    def remove(self, keys: KeyBatch) -> None:
        self._rows.remove(keys)

    def remove_entries(self, store_keys: Sequence[bytes]) -> None:
        self._rows.remove_entries(store_keys)

    # -- the clean-up -----------------------------------------------------------------------------

    def sweep(self, group: bytes) -> int:
        table = self._rows.known
        removed = 0 if table is not None and table.whole else super().sweep(group)
        return removed if table is None else removed + self._sweep_known(int.from_bytes(group, "big"), table)

    def _sweep_known(self, group: int, table: KeyedColumns) -> int:
        """Remove the expired rows in memory of a key group; the number of rows."""
        if self._ended is None or self._ended.drops != table.drops:
            self._ended = _Ended.of(table, self._expiry)
        rows = self._ended.rows_of(group)
        if not len(rows):
            return 0
        expired = self._expiry.expired(table.values(0, rows).to_numpy())
        # Row numbers are valid until the next write.
        over, late = table.keys_of(rows[expired]), table.keys_of(rows[~expired])
        columns = [table.values(at, rows[~expired]) for at in range(1, len(table.schema))]
        count = int(expired.sum())
        if count < len(rows):
            self._write_late(late, columns, len(rows) - count)
        if count:
            keys = self._key_codec.group(over, num_rows=count)
            self._rows.remove(keys)
            self._remove_dependents(keys.store_keys(self._id))
        return count

    def _write_late(self, key_columns: list[pa.Array], columns: list[pa.Array], count: int) -> None:
        """Stamp ``count`` rows, written when no time was known, with the current time."""
        keys = self._key_codec.group(key_columns, num_rows=count)
        order = pa.array(keys.last_rows())
        stamps = pa.array(self._expiry.stamps(None, count))
        self._rows.put(keys, [stamps, *(column.take(order) for column in columns)])

    def _only_stored(self, store_keys: list[bytes]) -> BoolArray:
        """See ``TtlColumnState``: rows in memory are newer, and swept there."""
        table = self._rows.known
        if table is None:
            return super()._only_stored(store_keys)
        columns = self._key_codec.decode(pa.array(store_keys, LARGE_BINARY), STATE_PREFIX_BYTES)
        return table.find(self._key_codec.group(columns, num_rows=len(store_keys))) < 0


class _Ended(NamedTuple):
    """The rows of a table that are expired or have no time yet, by key group: found once for all key groups, when the
    clean-up begins. Valid until rows are dropped (``drops``)."""

    rows: Int64Array
    groups: UInt16Array
    drops: int

    @staticmethod
    def of(table: KeyedColumns, expiry: ColumnExpiry) -> _Ended:
        rows, groups = table.present_rows()
        stamps = table.values(0, rows).to_numpy()
        ended = np.flatnonzero(expiry.expired(stamps) | expiry.untimed(stamps))
        ended = ended[np.argsort(groups[ended], kind="stable")]
        return _Ended(rows[ended], groups[ended], table.drops)

    def rows_of(self, group: int) -> Int64Array:
        """The rows of one key group."""
        start, end = np.searchsorted(self.groups, [group, group + 1])
        return self.rows[start:end]


def _only(unexpired: BoolArray, found: Columns) -> Columns:
    """The rows that are ``unexpired`` (u), without their stamps."""
    columns = found.columns[1:]
    if not np.array_equal(unexpired, found.present):
        at = pa.array(np.arange(len(unexpired)), mask=~unexpired)
        columns = [column.take(at) for column in columns]
    return Columns(columns, unexpired)


def with_column_cache(
    state: S, descriptor: StateDescriptor[S], context: OperatorContext, cache: ColumnCache, is_new: bool
) -> S:
    """``state`` served from ``cache``, if it can be cached: one row per key, without namespaces. All other states have
    range reads in the store's order. ``is_new``: the store has no data of it."""
    kinds: dict[type, Any] = {ColumnState: CachedColumnState, TtlColumnState: CachedTtlColumnState}
    cached = None if getattr(descriptor, "time_first", True) else kinds.get(type(state))
    return state if cached is None else cast(S, cached(state, context, cache, is_new))
