"""Arrays of rows: selection, concatenation, equality, and positions.

Owns: the aliases of arrays, ``take_rows``, ``concat_rows``, ``row_ids``, ``to_floats`` and the positions.
Invariant: no function changes its arguments.
Pure functions over numpy and Arrow; must not know of keys, kinds or operators.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from asyncstate.codec import RowCodec
from asyncstate.codec.hashing import canonical_floats
from asyncstate.codec.sorting import rows_by
from asyncstate.codec.value_columns import to_storage

BoolArray: TypeAlias = npt.NDArray[np.bool_]
Int8Array: TypeAlias = npt.NDArray[np.int8]
Int64Array: TypeAlias = npt.NDArray[np.int64]
IntArray: TypeAlias = npt.NDArray[np.integer]

_CODE_LIMIT = 1 << 62
_EXACT_DIGITS = 15
"""Integers of so many digits, and as high powers of ten, are exact floats: their quotient is rounded once."""


def take_rows(columns: Sequence[pa.Array], rows: IntArray) -> list[pa.Array]:
    """Rows of the columns; null where the index is -1."""
    length = len(columns[0]) if columns else 0
    if len(rows) == length and bool((rows == np.arange(length)).all()):
        return list(columns)
    missing = rows < 0
    indices = pa.array(rows, mask=missing) if missing.any() else pa.array(rows)
    return [column.take(indices) for column in columns]


def int64_values(column: pa.Array) -> Int64Array:
    """The values (n) of a column of integers; 0 for null."""
    return np.asarray((column.fill_null(0) if column.null_count else column).to_numpy(), np.int64)


def to_floats(column: pa.Array) -> pa.Array:
    """The numbers of a column as float64, each the nearest one; Arrow rounds decimals twice."""
    kind = column.type
    if not pa.types.is_decimal(kind):
        return column.cast(pa.float64(), safe=False)
    if not (pa.types.is_decimal128(kind) and 0 <= kind.scale <= kind.precision <= _EXACT_DIGITS):
        return column.cast(pa.string()).cast(pa.float64())
    units = to_storage(column)[:, 0]
    return pa.array(units / 10.0**kind.scale, mask=column.is_null().to_numpy(zero_copy_only=False))


def valid_rows(columns: Sequence[pa.Array]) -> BoolArray | None:
    """The rows (n) that have a value in all columns; None: all rows do."""
    valid: BoolArray | None = None
    for column in columns:
        if column.null_count:
            there = column.is_valid().to_numpy(zero_copy_only=False)
            valid = there if valid is None else valid & there
    return valid


def concat_rows(columns: Sequence[pa.Array], more: Sequence[pa.Array]) -> list[pa.Array]:
    """The rows of ``columns``, then those of ``more``."""
    return [pa.concat_arrays(pair) for pair in zip(columns, more, strict=True)]


def row_ids(columns: Sequence[pa.Array], groups: IntArray) -> Int64Array:
    """Numbers from 0 that are equal where ``groups`` and all columns are equal (null equals null)."""
    codes, bound = groups.astype(np.int64), int(groups.max(initial=0)) + 1
    for column in columns:
        more, distinct = _column_codes(column)
        if bound * distinct >= _CODE_LIMIT:
            unique, codes = np.unique(codes, return_inverse=True)
            bound = len(unique)
        codes, bound = codes * distinct + more, bound * distinct
    ids: Int64Array = np.unique(codes, return_inverse=True)[1]
    return ids


def _column_codes(column: pa.Array) -> tuple[Int64Array, int]:
    if pa.types.is_nested(column.type):
        # Encode nested values: Arrow hashes flat values only.
        rows = RowCodec(pa.schema([("value", column.type)])).encode([column])
        column = pa.array(rows, pa.large_binary())
    if pa.types.is_floating(column.type):
        # Arrow hashes bits, but -0.0 equals 0.0 and all NaN are equal, as in keys.
        values, is_null = canonical_floats(to_storage(column)), column.is_null().to_numpy(False)
        column = pa.array(values, column.type, mask=is_null)
    encoded = pc.dictionary_encode(column, null_encoding="encode")
    return encoded.indices.to_numpy().astype(np.int64), max(len(encoded.dictionary), 1)


def place_among_equals(ids: IntArray) -> Int64Array:
    """How many earlier elements equal each one."""
    order = rows_by(ids)
    places = np.empty(len(ids), np.int64)
    places[order] = place_in_run(ids[order])
    return places


def place_in_run(values: IntArray) -> Int64Array:
    """The position of each element in its run of equal ones, from 0."""
    at = np.arange(len(values))
    places: Int64Array = at - np.maximum.accumulate(np.where(run_begins(values), at, 0))
    return places


def run_begins(*arrays: npt.NDArray[Any]) -> BoolArray:
    """Where a run of rows that are equal in all of ``arrays`` (n each, at least one) begins."""
    begins = np.zeros(len(arrays[0]), np.bool_)
    begins[:1] = True
    for values in arrays:
        begins[1:] |= values[1:] != values[:-1]
    return begins


def places_of(order: Int64Array) -> Int64Array:
    """The position of each of n rows in ``order`` (n), a permutation."""
    places = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order))
    return places


def last_of(owners: IntArray, rows: IntArray, count: int) -> Int64Array:
    """The last of ``rows`` (m) of each of ``count`` owners, -1 where there is none."""
    last = np.full(count, -1, np.int64)
    last[owners] = rows  # for repeated indices the last assignment wins
    return last


def count_up(counts: Int64Array) -> Int64Array:
    """0, 1, ... count - 1 for each of ``counts``, concatenated."""
    ends = np.cumsum(counts)
    return np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - counts, counts)


def parts_of(sizes: Int64Array, total_max: int) -> Iterator[slice]:
    """Runs of elements (at least one) whose ``sizes`` add up to about ``total_max``; one element may have more."""
    turns = np.flatnonzero(np.diff((np.cumsum(sizes) - 1) // total_max)) + 1
    for begin, end in itertools.pairwise([0, *turns.tolist(), len(sizes)]):
        if end > begin:
            yield slice(begin, end)


def index_among(chosen: BoolArray) -> Int64Array:
    """The index of each chosen element among the chosen ones; undefined for the others."""
    return np.cumsum(chosen) - 1
