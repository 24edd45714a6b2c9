"""Reductions of the rows of each group: sums, minima, maxima, and retractions without a matching row.

Owns: ``Groups``, the reductions over it, and the check for unmatched retractions; pure functions of numpy and
Arrow arrays.
Invariant: integer and decimal sums are exact or raise, and never wrap; a group without a value gives null;
NaN is the largest float.
Must not import anything of ``asyncstate`` but ``codec``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from asyncstate.codec import KeyBatch
from asyncstate.codec.key_batch import rank_column
from asyncstate.codec.sorting import rows_by

from .arrays import BoolArray, Int8Array, Int64Array, place_among_equals, row_ids
from .consolidation import net_by_content

_INT64_LIMIT = 1 << 63
_LOW_BITS = 0xFFFFFFFF


class Groups(NamedTuple):
    """n rows in u groups: ``order`` (n) has the rows group by group, ``starts`` (u) the beginning of each group.

    No group is empty. Within a group rows keep their order of arrival.
    """

    order: Int64Array
    starts: Int64Array

    @staticmethod
    def of(keys: KeyBatch) -> Groups:
        """The rows of each unique key."""
        return Groups(*keys.rows_sorted())

    @staticmethod
    def of_ids(ids: npt.NDArray[np.integer], count: int) -> Groups:
        """Groups from one group number in [0, count) per row; each number must occur."""
        sizes = np.bincount(ids, minlength=count)
        return Groups(rows_by(ids), np.cumsum(sizes) - sizes)

    @property
    def sizes(self) -> Int64Array:
        """Rows in each group (u)."""
        return np.diff(self.starts, append=len(self.order))

    @property
    def sorted_ids(self) -> Int64Array:
        """The group of each row in ``order`` (n)."""
        return np.repeat(np.arange(len(self.starts)), self.sizes)

    @property
    def ids(self) -> Int64Array:
        """The group of each row (n)."""
        ids = np.empty(len(self.order), np.int64)
        ids[self.order] = self.sorted_ids
        return ids

    @property
    def single(self) -> bool:
        """True when every group has one row, so that reducing is only reordering."""
        return len(self.order) == len(self.starts)


def group_sum(values: npt.NDArray[Any], groups: Groups) -> npt.NDArray[Any]:
    """Sum of ``values`` (n) per group (u). int64 raises OverflowError where a total does not fit."""
    ordered = values[groups.order]
    if groups.single:
        return ordered
    if ordered.dtype == np.int64 and _may_overflow(ordered, groups):
        return _exact_sum(ordered, groups)
    with np.errstate(over="ignore", invalid="ignore"):  # infinities may sum to NaN
        return np.asarray(np.add.reduceat(ordered, groups.starts))


def _may_overflow(values: Int64Array, groups: Groups) -> bool:
    highest = max(abs(int(values.max())), abs(int(values.min())))
    return highest * int(groups.sizes.max()) >= _INT64_LIMIT


def _exact_sum(values: Int64Array, groups: Groups) -> Int64Array:
    """Sum the two halves of each value separately: partial sums may exceed int64 as long as the total fits."""
    return _joined_halves(*_halves(values, groups, 1))


def group_halves(values: Int64Array, weights: Int64Array, groups: Groups) -> tuple[Int64Array, Int64Array]:
    """The sums, per group (u), of the high and of the low 32 bits of ``values`` (n), each value counted by its weight
    (n: -1, 0 or 1). They never wrap."""
    return _halves(values[groups.order], groups, weights[groups.order])


def _halves(ordered: Int64Array, groups: Groups, weights: Int64Array | int) -> tuple[Int64Array, Int64Array]:
    high, low = (ordered >> 32) * weights, (ordered & _LOW_BITS) * weights
    return np.add.reduceat(high, groups.starts), np.add.reduceat(low, groups.starts)


def group_sum_halves(high: Int64Array, low: Int64Array, groups: Groups) -> Int64Array:
    """Sum of ``high * 2**32 + low`` (n) per group (u); OverflowError where a total does not fit int64."""
    return _joined_halves(group_sum(high, groups), group_sum(low, groups))


def _joined_halves(high: Int64Array, low: Int64Array) -> Int64Array:
    high = high + (low >> 32)
    if bool(((high < -(1 << 31)) | (high >= 1 << 31)).any()):
        raise OverflowError("a total does not fit int64")
    return np.asarray((high << 32) | (low & _LOW_BITS), np.int64)


def group_sum_decimal(column: pa.Array, groups: Groups) -> pa.Array:
    """Sum of a decimal128(38, s) column without nulls per group; OverflowError beyond 38 digits."""
    wide = pa.decimal256(76, column.type.scale)
    table = pa.table(
        {"group": groups.sorted_ids, "value": column.take(pa.array(groups.order)).cast(wide)}
    ).group_by("group", use_threads=False)
    summed = table.aggregate([("value", "sum")]).sort_by("group").column("value_sum")
    return narrow_decimal(summed.combine_chunks(), column.type)


def narrow_decimal(column: pa.Array, decimal_type: pa.DataType) -> pa.Array:
    """``column`` as ``decimal_type``; OverflowError where a value has too many digits."""
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    try:
        return column.cast(decimal_type)
    except pa.ArrowInvalid as error:
        raise OverflowError(f"a total does not fit {decimal_type}") from error


def group_extreme(column: pa.Array, groups: Groups, largest: bool) -> pa.Array:
    """The largest (or smallest) value of each group, without nulls; null for a group of nulls only."""
    if groups.single:
        return column.take(pa.array(groups.order))
    valid = None if column.null_count == 0 else pc.is_valid(column).to_numpy(zero_copy_only=False)
    numbers = _as_numbers(column)
    codes = numbers if numbers is not None else rank_column(column)[0]
    best = _reduce_extreme(codes, valid, groups, largest)
    empty = None if valid is None else ~np.logical_or.reduceat(valid[groups.order], groups.starts)
    if numbers is None:
        rows = np.zeros(int(codes.max()) + 1, np.int64)
        rows[codes] = np.arange(len(codes))
        safe = best if empty is None else np.where(empty, 0, best)
        return column.take(pa.array(rows[safe], mask=empty))
    return _from_numbers(pa.array(best, mask=empty), column.type)


def _reduce_extreme(
    values: npt.NDArray[Any], valid: BoolArray | None, groups: Groups, largest: bool
) -> npt.NDArray[Any]:
    floating = np.issubdtype(values.dtype, np.floating)
    if valid is not None:
        values = np.where(valid, values, _neutral(values.dtype, largest))
    ordered = values[groups.order]
    if largest:
        return np.asarray(np.maximum.reduceat(ordered, groups.starts))  # propagates NaN: the largest float
    reduce = np.fmin if floating else np.minimum  # fmin ignores NaN
    return np.asarray(reduce.reduceat(ordered, groups.starts))


def _neutral(dtype: np.dtype[Any], largest: bool) -> Any:
    if np.issubdtype(dtype, np.floating):
        return dtype.type(-np.inf if largest else np.nan)
    limits = np.iinfo(dtype)
    return dtype.type(limits.min if largest else limits.max)


def _number_type(arrow_type: pa.DataType) -> pa.DataType | None:
    """The number type of the same width that sorts the same way; None for strings, binary and decimals."""
    if pa.types.is_boolean(arrow_type):
        return pa.int8()
    if pa.types.is_timestamp(arrow_type):
        return pa.int64()
    if pa.types.is_date32(arrow_type):
        return pa.int32()
    if pa.types.is_integer(arrow_type) or pa.types.is_floating(arrow_type):
        return arrow_type
    return None


def _as_number_column(column: pa.Array) -> pa.Array | None:
    number_type = _number_type(column.type)
    if number_type is None or number_type == column.type:
        return None if number_type is None else column
    return column.cast(number_type) if pa.types.is_boolean(column.type) else column.view(number_type)


def _as_numbers(column: pa.Array) -> npt.NDArray[Any] | None:
    numbers = _as_number_column(column)
    if numbers is None:
        return None
    if numbers.null_count:
        numbers = numbers.fill_null(pa.scalar(0, numbers.type))
    return np.asarray(numbers.to_numpy(zero_copy_only=False))


def _from_numbers(numbers: pa.Array, arrow_type: pa.DataType) -> pa.Array:
    if numbers.type == arrow_type:
        return numbers
    return numbers.cast(arrow_type) if pa.types.is_boolean(arrow_type) else numbers.view(arrow_type)


def _ranks(column: pa.Array) -> Int64Array:
    return np.asarray(pc.rank(column, "ascending", tiebreaker="dense").to_numpy(), np.int64)


def value_order(column: pa.Array) -> Int64Array:
    """One number per row that sorts like the values (n, no nulls): equal values share one."""
    return _ranks(column)


def pair_extreme(left: pa.Array, right: pa.Array, largest: bool) -> pa.Array:
    """The larger (or smaller) of two columns of one type, row by row; null only where both are."""
    first, second = _as_number_column(left), _as_number_column(right)
    if first is None or second is None:
        first, second = left, right
    if not largest:
        return _from_numbers(pc.min_element_wise(first, second), left.type)
    result = pc.max_element_wise(first, second)
    if pa.types.is_floating(left.type):
        nan = pc.or_(pc.fill_null(pc.is_nan(first), False), pc.fill_null(pc.is_nan(second), False))
        result = pc.if_else(nan, pa.scalar(float("nan"), left.type), result)
    return _from_numbers(result, left.type)


def content_of(batch: pa.RecordBatch, sequence: Sequence[str]) -> list[pa.Array]:
    """The columns that must be equal in a row and its retraction: all but those of the input's ``sequence``."""
    return [batch.column(name) for name in batch.schema.names if name not in sequence]


def without_missing(
    signs: Int8Array, groups: Groups, counts: Int64Array, columns: Sequence[pa.Array]
) -> tuple[Int8Array, Int64Array]:
    """Signs with 0 for retractions without a matching row, and the indices of these retractions (ascending).

    ``signs`` (n) is +1 or -1, ``counts`` (u) the rows that each group had before. The rows of a group count as a set:
    those that cancel out, being equal in ``columns`` (of n rows), need no stored row; of the rest only as many as there
    were before can be retracted. Which of them are unmatched is unknown: the last ones are assumed to be.
    """
    ordered = signs[groups.order]
    retracted = np.add.reduceat((ordered < 0).astype(np.int64), groups.starts) if len(signs) else counts
    doubtful = retracted > counts
    if not doubtful.any():
        return signs, np.empty(0, np.int64)
    ids = groups.sorted_ids
    chosen = doubtful[ids]
    rows, owners = groups.order[chosen], ids[chosen]
    content = row_ids([column.take(pa.array(rows)) for column in columns], owners)
    net = net_by_content(np.empty(0, np.int64), content, signs[rows] > 0)
    left = net.missing[rows_by(owners[net.missing])]
    missing = np.sort(rows[left[place_among_equals(owners[left]) >= counts[owners[left]]]])
    known = signs.copy()
    known[missing] = 0
    return known, missing
