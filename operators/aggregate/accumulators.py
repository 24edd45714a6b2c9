"""The parts of most aggregates: counts, sums and extremes.

Owns: ``Count``, ``Sum``, ``RetractableSum`` and ``Extreme``, each with one state column except the third.
Invariant: lifting rows and combining them in any grouping and order gives the same state (floats: up to
rounding), so the same parts serve bundles, windows, shared slices and both phases of a two-phase aggregation.
Must not import anything of ``asyncstate`` but ``codec``, ``errors`` and ``partial_aggregation``.

Source: the accumulate, retract and merge functions of Flink's built-in aggregates.
"""

from __future__ import annotations

import decimal
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from asyncstate.partial_aggregation import LOW_BITS, NOT_FINITE, LocalColumn, LocalFunction

from ..core.arrays import Int8Array
from ..core.segments import (
    Groups,
    group_extreme,
    group_halves,
    group_sum,
    group_sum_decimal,
    group_sum_halves,
    narrow_decimal,
    pair_extreme,
)
from .aggregator import GroupOverflowError, KeyedRows, MergingAggregator, State, counted_rows

_LOCAL_DIGITS = 28
"""Partial aggregation does not sum decimals of more digits; ten billion of these still fit the 38 digits of a sum."""


class Count(MergingAggregator):
    """Rows, or those in which no column is null: int64."""

    def __init__(
        self,
        owner: str,
        column: str | tuple[str, ...] | None,
        condition: str | None,
        distinct: bool = False,
    ) -> None:
        label = "count" if column or condition else "count1"
        super().__init__(owner, label, column, condition, distinct)
        self.fields = (pa.field(self.name, pa.int64(), nullable=False),)

    def lift(self, batch: pa.RecordBatch, signs: Int8Array | None) -> State:
        """The states of n single rows; ``signs`` as in ``KeyedRows``."""
        return [pa.array(self.weights(batch, signs))]

    def combine(self, state: State, groups: Groups) -> State:
        """The states (n) of each group, in its order, merged into one per group (u)."""
        return [pa.array(group_sum(filled(state[0]).to_numpy(), groups))]

    def merge(self, state: State, partial: State) -> State:
        """Two sets of states (u), that of earlier rows first, merged row by row."""
        return [pc.add(filled(state[0]), filled(partial[0]))]

    def local(self) -> tuple[LocalColumn, ...] | None:
        """The columns that a partial aggregation computes for this part; None: it needs the rows themselves."""
        return None if len(self.columns) > 1 else (self._local(LocalFunction.COUNT, pa.int64()),)


class Sum(MergingAggregator):
    """The sum of a column: int64 of integers, float64 of floats, decimal128(38, s) of decimals; no wrap."""

    column: str

    def __init__(
        self, owner: str, column: str, condition: str | None, input_type: pa.DataType, distinct: bool = False
    ) -> None:
        super().__init__(owner, "sum", column, condition, distinct)
        self.type: pa.DataType = sum_type(input_type)
        self.fields = (pa.field(self.name, self.type, nullable=False),)
        self._input_type = input_type

    def lift(self, batch: pa.RecordBatch, signs: Int8Array | None) -> State:
        """The states of n single rows; ``signs`` as in ``KeyedRows``."""
        values = filled(batch.column(self.column).cast(self.type))
        mask = counted_rows(batch, (self.column,), self.condition, signs)
        if mask is not None and not mask.all():
            values = pc.if_else(pa.array(mask), values, zero(values.type))
        if signs is None or not bool((signs < 0).any()):
            return [values]
        try:
            return [pc.if_else(pa.array(signs < 0), _negated(values), values)]
        except pa.ArrowInvalid as error:
            smallest = np.flatnonzero((signs < 0) & (values.to_numpy() == np.iinfo(np.int64).min))
            if not len(smallest):  # the smallest int64 belongs to an added row
                return [pc.if_else(pa.array(signs < 0), pc.negate(values), values)]
            raise GroupOverflowError(
                self.owner,
                f"the smallest int64 of column '{self.column}' cannot be retracted; cast the column to decimal(38, "
                "0) before the operator",
                int(smallest[0]),
            ) from error

    def combine(self, state: State, groups: Groups) -> State:
        """The states (n) of each group, in its order, merged into one per group (u)."""
        sums = filled(state[0])
        try:
            if pa.types.is_decimal(sums.type):
                return [group_sum_decimal(sums, groups)]
            return [pa.array(group_sum(sums.to_numpy(), groups))]
        except OverflowError as error:
            raise self._overflow(_totals(sums, groups), error) from error

    def merge(self, state: State, partial: State) -> State:
        """Two sets of states (u), that of earlier rows first, merged row by row."""
        first, second = filled(state[0]), filled(partial[0])
        try:
            if not pa.types.is_decimal(self.type):
                return [pc.add_checked(first, second)]
            wide = pa.decimal256(38, self.type.scale)
            return [narrow_decimal(pc.add(first.cast(wide), second.cast(wide)), self.type)]
        except (OverflowError, pa.ArrowInvalid) as error:
            pairs = zip(_exact(first), _exact(second), strict=True)
            raise self._overflow([one + other for one, other in pairs], error) from error

    def local(self) -> tuple[LocalColumn, ...] | None:
        """The columns that a partial aggregation computes for this part; None: it needs the rows themselves."""
        if self._input_type == pa.int64():
            halves = (LocalFunction.SUM_HIGH, LocalFunction.SUM_LOW)
            return tuple(self._local(half, pa.int64()) for half in halves)
        if pa.types.is_decimal(self._input_type) and self._input_type.precision > _LOCAL_DIGITS:
            return None
        return (self._local(LocalFunction.SUM, self.type),)

    def partial(self, batch: pa.RecordBatch, signs: Int8Array | None, groups: Groups) -> Sequence[pa.Array]:
        """See ``MergingAggregator``: for int64 the sums of both halves, since only the total has to fit."""
        if self._input_type != pa.int64():
            return super().partial(batch, signs, groups)
        values, weights = filled(batch.column(self.column)).to_numpy(), self.weights(batch, signs)
        return [pa.array(half) for half in group_halves(values, weights, groups)]

    def gather(self, columns: Sequence[pa.Array], groups: Groups) -> State:
        """The state of each group (u) from the columns (n each) that ``local`` names."""
        if len(columns) == 1:
            return self.combine(list(columns), groups)
        high, low = (filled(column).to_numpy() for column in columns)
        try:
            return [pa.array(group_sum_halves(high, low, groups))]
        except OverflowError as error:
            sums = [(one << LOW_BITS) + other for one, other in zip(high.tolist(), low.tolist(), strict=True)]
            raise self._overflow(_totals(sums, groups), error) from error

    def _overflow(self, totals: Sequence[int], error: Exception) -> Exception:
        """The error to raise if one of the ``totals`` (u) is too large; those of decimals are integers in units of the
        last digit."""
        limit = 10**self.type.precision if pa.types.is_decimal(self.type) else 1 << 63
        lowest = 1 - limit if pa.types.is_decimal(self.type) else -limit
        at = next((at for at, total in enumerate(totals) if not lowest <= total < limit), None)
        if at is None:
            return error
        return GroupOverflowError(self.owner, f"the sum of column '{self.column}' {_beyond(self.type)}", at)

    def totals(self, state: State) -> pa.Array:
        """The sums (u)."""
        return state[0]


class RetractableSum(Sum):
    """The sum of floats that may be retracted: the sum of the finite ones, and the counts of the others.

    NaN and infinities cannot be subtracted, so each of them is counted; without any, the count is null and takes one
    bit.
    """

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        names = [f"{kind}.{self.name}" for kind in ("nan", "infinity", "negative_infinity")]
        self.fields += tuple(pa.field(name, pa.int64()) for name in names)
        self.may_lack = frozenset(names)

    def lift(self, batch: pa.RecordBatch, signs: Int8Array | None) -> State:
        """The states of n single rows; ``signs`` as in ``KeyedRows``."""
        values = batch.column(self.column)
        is_finite = pc.is_finite(values)
        if pc.all(is_finite).as_py() is not False:
            return [
                *super().lift(batch, signs),
                *(pa.nulls(batch.num_rows, pa.int64()) for _ in self.may_lack),
            ]
        finite = pc.if_else(is_finite, values, pa.scalar(0, values.type))
        place = batch.schema.get_field_index(self.column)
        (sums,) = super().lift(batch.set_column(place, batch.schema.field(place), finite), signs)
        weights = self.weights(batch, signs)
        numbers = filled(values).to_numpy()
        kinds = (np.isnan(numbers), numbers == np.inf, numbers == -np.inf)
        return [sums, *(counted(weights * kind) for kind in kinds)]

    def combine(self, state: State, groups: Groups) -> State:
        """The states (n) of each group, in its order, merged into one per group (u)."""
        return [*super().combine(state[:1], groups), *(group_counts(column, groups) for column in state[1:])]

    def merge(self, state: State, partial: State) -> State:
        """Two sets of states (u), that of earlier rows first, merged row by row."""
        pairs = zip(state[1:], partial[1:], strict=True)
        return [*super().merge(state[:1], partial[:1]), *(merged_counts(*pair) for pair in pairs)]

    def local(self) -> tuple[LocalColumn, ...]:
        """The columns that a partial aggregation computes for this part; None: it needs the rows themselves."""
        counts = (self._local(function, pa.int64()) for function in NOT_FINITE)
        return (self._local(LocalFunction.SUM_FINITE, self.type), *counts)

    def gather(self, columns: Sequence[pa.Array], groups: Groups) -> State:
        """The state of each group (u) from the columns (n each) that ``local`` names."""
        return self.combine(list(columns), groups)

    def totals(self, state: State) -> pa.Array:
        """The sums (u)."""
        if all(column.null_count == len(column) for column in state[1:]):
            return state[0]
        nan, positive, negative = (filled(column).to_numpy() > 0 for column in state[1:])
        sums = np.select(
            [nan | (positive & negative), positive, negative],
            [np.nan, np.inf, -np.inf],
            filled(state[0]).to_numpy(),
        )
        return pa.array(sums)


class Extreme(MergingAggregator):
    """The smallest or largest value of a column, of any type that can be a key; NaN is the largest float.

    It cannot retract values: retracted rows do not change it (see ``operators.aggregate.retractable_minmax``)."""

    column: str

    def __init__(
        self,
        owner: str,
        column: str,
        condition: str | None,
        input_type: pa.DataType,
        largest: bool,
        retract: bool = False,
    ) -> None:
        # Another name if a log of values is kept too: a state without that log cannot retract values.
        label = ("current_" if retract else "") + ("max" if largest else "min")
        super().__init__(owner, label, column, condition)
        # Only an extreme can be null once there is a row; an aggregate that is added later, to a state without the
        # earlier rows, must not be mistaken for one that may be null.
        self.fields = (pa.field(self.name, input_type),)
        self.type = input_type
        self.largest = largest
        self._retract = retract

    def prepare(self, rows: KeyedRows) -> State:
        """Null if a log of values is kept: the extreme is then computed from the log."""
        if self._retract:
            return [pa.nulls(len(rows.groups.starts), self.type)]
        return super().prepare(rows)

    def lift(self, batch: pa.RecordBatch, signs: Int8Array | None) -> State:
        """The states of n single rows; ``signs`` as in ``KeyedRows``."""
        values = batch.column(self.column)
        mask: npt.NDArray[Any] | None = None if self.condition is None else self.chosen(batch)
        if signs is not None:
            mask = signs > 0 if mask is None else mask & (signs > 0)
        if mask is None or mask.all():
            return [values]
        return [pc.if_else(pa.array(mask), values, pa.scalar(None, values.type))]

    def combine(self, state: State, groups: Groups) -> State:
        """The states (n) of each group, in its order, merged into one per group (u)."""
        return [group_extreme(state[0], groups, self.largest)]

    def merge(self, state: State, partial: State) -> State:
        """Two sets of states (u), that of earlier rows first, merged row by row."""
        return [pair_extreme(state[0], partial[0], self.largest)]

    def local(self) -> tuple[LocalColumn, ...] | None:
        """The columns that a partial aggregation computes for this part; None: it needs the rows themselves."""
        if self._retract:
            return None
        return (self._local(LocalFunction.MAX if self.largest else LocalFunction.MIN, self.type),)


def sum_type(input_type: pa.DataType) -> pa.DataType | None:
    """The type of a sum over ``input_type``; None if there is none."""
    if pa.types.is_signed_integer(input_type):
        return pa.int64()
    if input_type in (pa.float32(), pa.float64()):
        return pa.float64()
    return pa.decimal128(38, input_type.scale) if pa.types.is_decimal128(input_type) else None


def shown_sum_type(input_type: pa.DataType) -> pa.DataType:
    """The type of an emitted sum: for decimal(p, s) it is decimal(p + 10, s), of at most 38 digits."""
    if not pa.types.is_decimal(input_type):
        return sum_type(input_type)
    return pa.decimal128(min(input_type.precision + 10, 38), input_type.scale)


def mean_type(input_type: pa.DataType) -> pa.DataType:
    """The type of an average: for decimal(p, s) it is decimal(p + 4, s + 4), each at most 38; else float64."""
    if not pa.types.is_decimal(input_type):
        return pa.float64()
    return pa.decimal128(min(input_type.precision + 4, 38), min(input_type.scale + 4, 38))


def shown_decimals(column: pa.Array, kind: pa.DataType, owner: str, what: str) -> pa.Array:
    """Decimals (u) in the emitted type ``kind``. Raises GroupOverflowError, which names them as ``what``, for one that
    does not fit."""
    try:
        return narrow_decimal(column, kind)
    except OverflowError as error:
        limit, step = 10**kind.precision, decimal.Context(prec=90)
        values = enumerate(column.to_pylist())
        at = next(
            (i for i, one in values if one is not None and abs(one.scaleb(kind.scale, step)) >= limit), 0
        )
        raise GroupOverflowError(owner, f"{what} {_beyond(kind)}", at) from error


def counted(counts: npt.NDArray[np.int64]) -> pa.Array:
    """Counts of rare values: null for 0."""
    return pa.array(counts, mask=counts == 0)


def group_counts(column: pa.Array, groups: Groups) -> pa.Array:
    """The sums of such counts (n) per group (u)."""
    if column.null_count == len(column):
        return pa.nulls(len(groups.starts), pa.int64())
    return counted(group_sum(filled(column).to_numpy(), groups))


def merged_counts(first: pa.Array, second: pa.Array) -> pa.Array:
    """The sums of two columns of such counts (u), row by row."""
    if second.null_count == len(second):
        return first
    return counted(filled(first).to_numpy() + filled(second).to_numpy())


def filled(column: pa.Array) -> pa.Array:
    """The column with 0 for null."""
    if not column.null_count:
        return column
    return column.fill_null(zero(column.type))


def zero(kind: pa.DataType) -> pa.Scalar:
    """0 of a numeric type."""
    return pa.scalar(decimal.Decimal(0) if pa.types.is_decimal(kind) else 0, kind)


def _exact(column: pa.Array) -> list[int]:
    """Numbers without nulls as Python integers; decimals in units of their last digit."""
    if not pa.types.is_decimal(column.type):
        return column.to_pylist()  # type: ignore[no-any-return]
    exact = decimal.Context(prec=90)
    return [int(value.scaleb(column.type.scale, exact)) for value in column.to_pylist()]


def _totals(sums: Any, groups: Groups) -> list[int]:
    """The totals (u) of each group's numbers (n), of any size."""
    values = _exact(sums) if isinstance(sums, pa.Array) else sums
    ordered = [values[row] for row in groups.order.tolist()]
    bounds = [*groups.starts.tolist(), len(ordered)]
    return [sum(ordered[start:stop]) for start, stop in pairwise(bounds)]


def _beyond(kind: pa.DataType) -> str:
    wider = "a smaller scale or double" if pa.types.is_decimal(kind) else "decimal(38, 0) or double"
    return f"does not fit {kind}; cast the column to {wider} before the operator, or filter out wrong values"


def _negated(values: pa.Array) -> pa.Array:
    return pc.negate(values) if pa.types.is_decimal(values.type) else pc.negate_checked(values)
