"""The rows that later matches may still need.

Owns: ``LiveRows`` and ``MatchRows``; the states ``rows``, per key the rows from the first one on that a match may begin
with, and ``due``, by the deadline of that row and key.
Invariant: a key has rows exactly if it has one entry in ``due``, and neither if no match may have begun.
Must not import anything of ``asyncstate`` but ``codec``, ``futures``, ``operator`` and ``state``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from asyncstate.codec import KeyBatch
from asyncstate.codec.sorting import rows_by
from asyncstate.futures import StateFuture
from asyncstate.operator import BelongsTo, OperatorContext
from asyncstate.state.columnar.list_blocks import ListHeads
from asyncstate.state.columnar.list_columns import ListColumns, ListColumnStateDescriptor
from asyncstate.state.columnar.state_columns import ColumnStateDescriptor

from ..core.arrays import BoolArray, Int64Array, concat_rows, take_rows

_PART_KEYS = 20_000
_OWN = [
    pa.field("match:variables", pa.int64(), nullable=False),
    pa.field("match:time", pa.int64(), nullable=False),
]
_DUE = pa.schema([pa.field("live", pa.bool_(), nullable=False)])


class MatchRows(NamedTuple):
    """n rows of u keys, key by key, those of a key in order: stored ones, then new ones.

    ``starts`` (u + 1): where the rows of each key begin, and n; ``stored`` (u): how many of them are stored. ``masks``
    and ``times`` (n): see ``KeyRows``. ``payload``: one array (n) per stored column.
    """

    keys: KeyBatch
    heads: ListHeads
    starts: Int64Array
    stored: Int64Array
    masks: Int64Array
    times: Int64Array
    payload: list[pa.Array]

    @property
    def owners(self) -> Int64Array:
        """The key of each row (n)."""
        return np.repeat(np.arange(len(self.keys)), np.diff(self.starts))


class ArrivedRows(NamedTuple):
    """n rows, key by key, those of a key in order: the key of each (n), and the same arrays as in ``MatchRows``."""

    owners: Int64Array
    masks: Int64Array
    times: Int64Array
    payload: list[pa.Array]


class LiveRows:
    """Both states. ``fields``: the stored columns of the rows; ``deadline`` (u to u): from the times of the first rows
    to their deadlines."""

    def __init__(
        self,
        fields: Sequence[pa.Field],
        made_for: BelongsTo,
        deadline: Callable[[Int64Array], Int64Array],
        context: OperatorContext,
    ) -> None:
        schema = pa.schema([*_OWN, *fields])
        self._rows = context.get_state(
            ListColumnStateDescriptor("rows", schema, fixed_fields=True, belongs_to=made_for)
        )
        self._due = context.get_state(
            ColumnStateDescriptor("due", _DUE, time_first=True, fixed_fields=True, belongs_to=made_for)
        )
        self._deadline = deadline
        self._codec = context.key_codec

    def async_heads(self, keys: KeyBatch) -> StateFuture[ListHeads]:
        """A future of the heads of the rows of ``keys`` (u), after one list get: their counts."""
        return self._rows.async_heads(keys)

    def async_read(self, keys: KeyBatch, heads: ListHeads, new: ArrivedRows | None) -> StateFuture[MatchRows]:
        """A future of the stored rows of ``keys``, followed by the ``new`` ones."""
        return self._rows.async_rows(heads).then_apply(lambda stored: _appended(keys, heads, stored, new))

    def due(self, horizon: int) -> Iterator[KeyBatch]:
        """The keys whose first row is out of time at ``horizon``, in parts; they may be written in between."""
        for entries in self._due.up_to(horizon, page_size=_PART_KEYS):
            yield self._codec.group(entries.key_columns, num_rows=entries.num_rows)

    def write(self, kept: MatchRows, first: Int64Array) -> None:
        """Store the rows of each key from ``first`` (u) on, which is where its rows end if none is needed."""
        begins, ends = kept.starts[:-1], kept.starts[1:]
        was, stays = kept.stored > 0, first < ends
        grows = was & (first == begins)
        from_here = np.where(grows, begins + kept.stored, first)
        written = np.arange(kept.starts[-1]) >= np.repeat(from_here, np.diff(kept.starts))
        for chosen, write in ((grows, self._rows.append), (~grows & (was | stays), self._rows.put)):
            if chosen.any():
                rows = np.flatnonzero(written & np.repeat(chosen, np.diff(kept.starts)))
                columns = [
                    pa.array(kept.masks[rows]),
                    pa.array(kept.times[rows]),
                    *take_rows(kept.payload, rows),
                ]
                index = (np.cumsum(chosen) - 1)[kept.owners[rows]]
                write(kept.keys.select(chosen), columns, index, kept.heads.select(chosen))
        self._move_due(kept, first, was, stays)

    def _move_due(self, kept: MatchRows, first: Int64Array, was: BoolArray, stays: BoolArray) -> None:
        before = np.zeros(len(kept.keys), np.int64)
        after = before.copy()
        before[was] = self._deadline(kept.times[kept.starts[:-1][was]])
        after[stays] = self._deadline(kept.times[first[stays]])
        moved = (was != stays) | (before != after)
        gone, new = np.flatnonzero(moved & was), np.flatnonzero(moved & stays)
        if len(gone):
            self._due.remove(kept.keys.in_namespaces(before[gone], gone))
        if len(new):
            self._due.put(kept.keys.in_namespaces(after[new], new), [pa.array(np.ones(len(new), np.bool_))])


def _appended(keys: KeyBatch, heads: ListHeads, stored: ListColumns, new: ArrivedRows | None) -> MatchRows:
    """The stored rows of each key, followed by its new ones."""
    owners = stored.key_index.astype(np.int64)
    masks, times = (column.to_numpy() for column in stored.columns[:2])
    payload = stored.columns[2:]
    if new is not None and not stored.num_rows:
        owners, masks, times, payload = new
    elif new is not None:
        owners = np.concatenate([owners, new.owners])
        order = rows_by(owners)
        owners = owners[order]
        masks = np.concatenate([masks, new.masks])[order]
        times = np.concatenate([times, new.times])[order]
        payload = take_rows(concat_rows(payload, new.payload), order)
    starts = np.searchsorted(owners, np.arange(len(keys) + 1))
    return MatchRows(keys, heads, starts, stored.counts, masks, times, payload)
