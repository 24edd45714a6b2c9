"""From old and new rows of keys to changelog rows: the net change of a bundle.

Owns: ``net_changes``, ``take_changes``, ``distinct`` and ``distinct_rows``; pure functions of numpy and Arrow arrays.
Invariant: at most one change per key; -U comes directly before its +U; keys are in order of first appearance.
Must not import anything of ``asyncstate`` but ``codec``, ``changelog`` and ``errors``.

Source: the emission rules of Flink's ``MiniBatchGroupAggFunction``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from asyncstate.changelog import RowKind
from asyncstate.codec import KeyBatch, RowCodec
from asyncstate.errors import SchemaError

from .arrays import BoolArray, Int64Array


class NetChanges(NamedTuple):
    """r changelog rows: the key of each, whether it has the new row (else the old one), and its kind."""

    keys: Int64Array
    new: BoolArray
    kinds: npt.NDArray[np.int8]

    def select(self, rows: Int64Array) -> NetChanges:
        """Some of the rows, or all in another order."""
        return NetChanges(self.keys[rows], self.new[rows], self.kinds[rows])


def arrival_order(keys: KeyBatch) -> Int64Array:
    """The unique keys (u) in order of their first row in the bundle."""
    first = keys.first_rows()
    at_row = np.full(keys.num_rows, -1, np.int64)
    at_row[first] = np.arange(len(first))
    return at_row[at_row >= 0]


def net_changes(
    order: Int64Array,
    before: BoolArray,
    after: BoolArray,
    changed: BoolArray,
    emit_update_before: bool = True,
) -> NetChanges:
    """The changes of u keys, in ``order``.

    ``before`` and ``after`` mark the keys that have a row, ``changed`` those whose old and new rows differ (read only
    where a key has both). New: +I; gone: -D; changed: -U and +U, or only +U.
    """
    update = before & after & changed
    emitted = update | (before != after)
    keys = order[emitted[order]]
    kinds = np.full(len(keys), RowKind.INSERT, np.int8)
    kinds[update[keys]] = RowKind.UPDATE_AFTER
    new = after[keys]
    kinds[~new] = RowKind.DELETE
    if not emit_update_before or not update.any():
        return NetChanges(keys, new, kinds)
    pairs = update[keys]
    repeats = 1 + pairs
    retracted = (np.cumsum(repeats) - repeats)[pairs]
    keys, new, kinds = np.repeat(keys, repeats), np.repeat(new, repeats), np.repeat(kinds, repeats)
    new[retracted] = False
    kinds[retracted] = RowKind.UPDATE_BEFORE
    return NetChanges(keys, new, kinds)


def take_changes(
    changes: NetChanges, key_columns: Sequence[pa.Array], old: Sequence[pa.Array], new: Sequence[pa.Array]
) -> list[pa.Array]:
    """The columns of the changelog rows: key columns, then those of the old or new rows (u rows each)."""
    keys = pa.array(changes.keys)
    columns = [column.take(keys) for column in key_columns]
    if changes.new.all():
        return columns + [column.take(keys) for column in new]
    total = len(new[0]) if new else 0
    rows = pa.array(changes.keys + np.where(changes.new, total, 0))
    return columns + [pa.concat_arrays(pair).take(rows) for pair in zip(old, new, strict=True)]


def distinct(left: Sequence[pa.Array], right: Sequence[pa.Array], rows: int) -> BoolArray:
    """Where the rows (u) of two sets of columns differ.

    Null equals null, NaN equals NaN and -0.0 equals 0.0, but floats inside of other values are compared by their
    bits, as in rows.
    """
    differ = np.zeros(rows, np.bool_)
    for first, second in zip(left, right, strict=True):
        differ |= _distinct_column(first, second)
    return differ


def distinct_rows(old: Sequence[pa.Array], new: Sequence[pa.Array], candidates: BoolArray) -> BoolArray:
    """Whether old and new rows differ, only for the rows that are ``candidates``; the result has as many elements."""
    count = int(candidates.sum())
    if count == len(candidates):
        return distinct(old, new, count)
    mask = pa.array(candidates)
    return distinct([column.filter(mask) for column in old], [column.filter(mask) for column in new], count)


def _distinct_column(left: pa.Array, right: pa.Array) -> BoolArray:
    if pa.types.is_nested(left.type):  # Arrow does not compare nested values
        return _distinct_nested(left, right)
    unequal = pc.not_equal(left, right)
    if pa.types.is_floating(left.type):
        unequal = pc.and_not(unequal, pc.and_(pc.is_nan(left), pc.is_nan(right)))
    if unequal.null_count:
        one_null = pc.xor(pc.is_null(left), pc.is_null(right))
        unequal = pc.if_else(pc.is_null(unequal), one_null, unequal)
    return np.asarray(unequal.to_numpy(zero_copy_only=False), np.bool_)


def _distinct_nested(left: pa.Array, right: pa.Array) -> BoolArray:
    try:
        codec = RowCodec(pa.schema([("value", left.type)]))
    except SchemaError:  # a type that no state can have, such as a large list
        pairs = zip(left.to_pylist(), right.to_pylist(), strict=True)
        return np.fromiter((first != second for first, second in pairs), np.bool_, len(left))
    unequal = pc.not_equal(codec.encode_column([left]), codec.encode_column([right]))
    return np.asarray(unequal.to_numpy(zero_copy_only=False), np.bool_)
