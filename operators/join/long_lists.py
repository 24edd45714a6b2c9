"""Rows of keys that have many: an entry each, so that a change costs what it changes, however many rows the key has.

Owns: ``LongLists``, which keeps a row under its key and its digest, with how often it occurs; ``FoundRows``.
Invariant: a key's rows are here or in its list, whose head then has their number; an entry has a positive count.
Must not know of join types or row kinds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from asyncstate.codec import KeyBatch, UserKeyBatch
from asyncstate.codec.sorting import rows_by
from asyncstate.futures import StateFuture
from asyncstate.operator import OperatorContext
from asyncstate.state.columnar.column_maps import BY_ROW, ColumnMapStateDescriptor, MapEntries
from asyncstate.state.columnar.list_columns import ListColumns
from asyncstate.state.columnar.state_columns import Columns

from ..core.arrays import BoolArray, Int64Array, concat_rows, take_rows
from ..core.row_digests import row_digests

LONG: Final = 1024
"""A key that loses a row and has more than this many left has an entry a row from then on."""
_COUNT: Final = "asyncstate:count"
"""How often a row occurs. No column that is added later has this name."""
_ALL: Final = "of all columns"
_DIGEST: Final = pa.schema([pa.field(f"digest_{half}", pa.int64(), nullable=False) for half in (1, 2)])


@dataclass(frozen=True)
class FoundRows:
    """The entries of long lists that a bundle may change.

    ``pairs``: the p pairs of a key and a digest, ``counts`` (p) how many rows each has. ``row_pairs`` (n): the pair of
    each row of the bundle, -1 where its key has no long list. ``rows``: the stored rows, by key, one for each time
    that it occurs, as far as that can matter; ``own_pairs``: the pair of each.
    """

    pairs: UserKeyBatch
    counts: Int64Array
    row_pairs: Int64Array
    rows: ListColumns
    own_pairs: Int64Array


class LongLists:
    """The rows of one side's keys with many rows. ``identity``: the columns that are equal for equal rows of a key."""

    def __init__(
        self, name: str, schema: pa.Schema, identity: Sequence[str], context: OperatorContext
    ) -> None:
        counted = pa.field(_COUNT, pa.int64(), nullable=False)
        fields = pa.schema([counted, *schema])
        of = _ALL if list(identity) == schema.names else f"of {', '.join(identity)}"
        descriptor = ColumnMapStateDescriptor(f"{name}{BY_ROW}", _DIGEST, fields, computed_key=of)
        self._state = context.get_state(descriptor)
        self.more_than = LONG
        self._schema = schema
        self._identity = [schema.get_field_index(column) for column in identity]

    def async_rows(self, keys: KeyBatch, long: BoolArray) -> StateFuture[ListColumns]:
        """A future of all rows of the ``long`` keys (mask, u), indexed by all keys."""
        return self._state.async_entries(keys.select(long)).then_apply(
            lambda entries: _rows_of(entries, long)
        )

    def async_find(
        self, keys: KeyBatch, long: BoolArray, columns: Sequence[pa.Array], row_keys: Int64Array
    ) -> StateFuture[FoundRows]:
        """A future of what a bundle of rows (n), with the key of each as an index (-1: none), may change of the
        ``long`` keys (mask, u)."""
        at = np.flatnonzero(long[row_keys] & (row_keys >= 0))
        pairs = keys.with_user_keys(self._digests(take_rows(columns, at)), row_keys[at])
        row_pairs = np.full(len(row_keys), -1, np.int64)
        row_pairs[at] = pairs.inverse
        return self._state.async_get(pairs).then_apply(
            lambda found: self._found(pairs, found, row_pairs, len(keys))
        )

    def change(
        self, found: FoundRows, removed: BoolArray, columns: Sequence[pa.Array], rows: Int64Array
    ) -> Int64Array:
        """Remove the marked ones of ``found.rows``, and add the ``columns`` of ``rows`` of the bundle; returns by how
        many rows each key grows (u)."""
        pairs, size = found.pairs, len(found.pairs)
        gone, come = found.own_pairs[removed], found.row_pairs[rows]
        grown = np.bincount(come, minlength=size) - np.bincount(gone, minlength=size)
        counts = found.counts + grown
        touched = np.zeros(size, np.bool_)
        touched[gone] = touched[come] = True
        newest = np.zeros(size, np.int64)
        newest[found.own_pairs] = np.arange(len(found.own_pairs))
        newest[come] = np.arange(len(come)) + len(found.own_pairs)  # for equal pairs the last one counts
        stored = take_rows(concat_rows(found.rows.columns, columns), newest[touched])
        self._state.write(pairs.select(touched), [pa.array(counts[touched]), *stored], counts[touched] > 0)
        return np.bincount(pairs.key_index, weights=grown, minlength=len(pairs.base)).astype(np.int64)

    def put(self, keys: KeyBatch, columns: Sequence[pa.Array], key_index: Int64Array) -> None:
        """Take over the rows (m) of keys that have none here."""
        pairs = keys.with_user_keys(self._digests(columns), key_index)
        counts = np.bincount(pairs.inverse, minlength=len(pairs))
        newest = np.zeros(len(pairs), np.int64)
        newest[pairs.inverse] = np.arange(len(pairs.inverse))
        self._state.put(pairs, [pa.array(counts), *take_rows(columns, newest)])

    def _digests(self, columns: Sequence[pa.Array]) -> list[pa.Array]:
        names = [self._schema.field(at).name for at in self._identity]
        halves = row_digests([columns[at] for at in self._identity], names)
        return [pa.array(np.ascontiguousarray(half)) for half in halves.T]

    def _found(self, pairs: UserKeyBatch, found: Columns, row_pairs: Int64Array, num_keys: int) -> FoundRows:
        counts = found.numpy(0).astype(np.int64)
        # More rows than the bundle has of an equal one, it cannot remove.
        times = np.minimum(counts, np.bincount(row_pairs[row_pairs >= 0], minlength=len(pairs)))
        own = np.repeat(np.arange(len(pairs)), times)
        index = pairs.key_index[own].astype(np.int32)
        rows = ListColumns(take_rows(found.columns[1:], own), index, np.bincount(index, minlength=num_keys))
        return FoundRows(pairs, counts, row_pairs, rows, own)


def _rows_of(entries: MapEntries, long: BoolArray) -> ListColumns:
    """The rows of the entries of the ``long`` keys (mask, u), each as often as it occurs."""
    own = np.repeat(np.arange(entries.num_rows), entries.columns[0].to_numpy())
    index = np.flatnonzero(long)[entries.key_index[own]].astype(np.int32)
    return ListColumns(take_rows(entries.columns[1:], own), index, np.bincount(index, minlength=len(long)))


def together(lists: ListColumns, long: ListColumns) -> tuple[ListColumns, Int64Array]:
    """The rows of lists and of long lists, of different keys, by key; and their order."""
    index = np.concatenate([lists.key_index, long.key_index])
    order = rows_by(index)
    columns, index = take_rows(concat_rows(lists.columns, long.columns), order), index[order]
    return ListColumns(columns, index, lists.counts + long.counts), order
