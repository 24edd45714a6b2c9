"""The built-in aggregates.

Owns: ``count``, ``sum_``, ``avg``, ``min_``, ``max_`` and their kinds.
Must not import anything of ``asyncstate``.

Source: Flink SQL's built-in aggregates; sums and averages of decimals have Spark's types.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..core.arrays import int64_values
from .accumulators import Extreme, filled, mean_type, shown_decimals, shown_sum_type
from .aggregate_calls import Aggregate, AggregateKind, AggregateOutput, InputBinding
from .aggregator import State


def count(*columns: str) -> Aggregate:
    """The number of rows, or of rows in which no column of ``columns`` is null: int64, never null."""
    return Aggregate(_Count(), columns)


def sum_(column: str) -> Aggregate:
    """The sum of ``column``: int64 for integers, float64 for floats, decimal(p + 10, s) for decimal(p, s), with at most
    38 digits.

    Null without a value. OperatorError if it does not fit. Floats are rounded, in the order of their arrival; NaN and
    infinities that are retracted leave no trace, but rounding errors and overflows of the float range do.
    """
    return Aggregate(_Sum(), (column,))


def avg(column: str) -> Aggregate:
    """The mean of ``column``: float64, but decimal(p + 4, s + 4) for decimal(p, s), with at most 38 digits.

    Null without a value. Stored as sum and count, so the limits of ``sum_`` apply. The mean of decimals is exact, with
    half rounded away from zero.
    """
    return Aggregate(_Average(), (column,))


def min_(column: str) -> Aggregate:
    """The smallest value of ``column``, of the column's type; null without a value."""
    return Aggregate(_Extreme("min"), (column,))


def max_(column: str) -> Aggregate:
    """The largest value of ``column``, of the column's type; null without a value. NaN is the largest number."""
    return Aggregate(_Extreme("max"), (column,))


@dataclass(frozen=True)
class _Count(AggregateKind):
    name: str = "count"

    def bind(self, binding: InputBinding) -> AggregateOutput:
        for column in binding.aggregate.columns:
            binding.type_of(column)
        counter = binding.counter()
        field = pa.field(binding.aggregate.name, pa.int64(), nullable=False)
        return AggregateOutput(field, lambda states: filled(states[counter][0]))


@dataclass(frozen=True)
class _Sum(AggregateKind):
    name: str = "sum"

    def bind(self, binding: InputBinding) -> AggregateOutput:
        counter, (total, part) = binding.counter(), binding.total()
        kind, what = shown_sum_type(binding.input_type), f"the sum of column '{binding.column}'"

        def shown(sums: pa.Array) -> pa.Array:
            return sums if sums.type == kind else shown_decimals(sums, kind, binding.owner, what)

        return AggregateOutput(
            pa.field(binding.aggregate.name, kind),
            lambda states: null_where(shown(part.totals(states[total])), counts_of(states[counter]) == 0),
        )


@dataclass(frozen=True)
class _Average(AggregateKind):
    name: str = "avg"

    def bind(self, binding: InputBinding) -> AggregateOutput:
        counter, (total, part) = binding.counter(), binding.total()
        kind, what = mean_type(binding.input_type), f"the average of column '{binding.column}'"

        def means(states: Sequence[State]) -> pa.Array:
            sums, counts = part.totals(states[total]), counts_of(states[counter])
            if not pa.types.is_decimal(kind):
                return _means(sums, counts)
            return shown_decimals(_decimal_means(sums, counts, kind.scale), kind, binding.owner, what)

        return AggregateOutput(pa.field(binding.aggregate.name, kind), means)


@dataclass(frozen=True)
class _Extreme(AggregateKind):
    """Extremes of distinct values are the same as those of all values."""

    name: str

    def bind(self, binding: InputBinding) -> AggregateOutput:
        input_type = binding.input_type
        if pa.types.is_nested(input_type) or pa.types.is_null(input_type):
            raise binding.wrong_type("a number, string, binary, boolean, date or timestamp")
        binding.plain_counter()  # a log of values for the extreme needs their number
        largest = self.name == "max"
        extreme = Extreme(
            binding.owner, binding.column, binding.condition, input_type, largest, binding.retract
        )
        part = binding.plain_part(extreme)
        return AggregateOutput(pa.field(binding.aggregate.name, input_type), lambda states: states[part][0])


def counts_of(state: State) -> npt.NDArray[np.int64]:
    """The counts of a ``Count``'s states (u); 0 for null."""
    return int64_values(state[0])


def null_where(column: pa.Array, empty: npt.NDArray[np.bool_]) -> pa.Array:
    """The column (u), null where ``empty`` (u) is true."""
    return pc.if_else(pa.array(~empty), column, pa.scalar(None, column.type)) if empty.any() else column


def _decimal_means(sums: pa.Array, counts: npt.NDArray[np.int64], scale: int) -> pa.Array:
    """Exact means with ``scale`` digits after the point, half rounded away from zero; null for no values."""
    empty = counts == 0
    divisors = pa.array(np.where(empty, 1, counts)).cast(pa.decimal256(19, 0))
    # Arrow divides with twenty digits more than the sum has and truncates, which does not change rounding to fewer.
    exact = pc.divide(sums.cast(pa.decimal256(38, sums.type.scale)), divisors)
    return null_where(pc.round(exact, scale, "half_towards_infinity"), empty)


def _means(sums: pa.Array, counts: npt.NDArray[np.int64]) -> pa.Array:
    totals = filled(sums.cast(pa.float64(), safe=False))
    return pa.array(totals.to_numpy() / np.where(counts == 0, 1, counts), mask=counts == 0)
