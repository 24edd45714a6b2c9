"""Variances, and conjunctions of booleans: aggregates that need several numbers per key.

Owns: ``Moments``, ``RetractableMoments`` and ``Truths``, and the aggregates that use them.
Invariant: moments are merged as counts, means and sums of squared differences from the mean, never as sums of squares,
so that large values with a small variance keep their precision.
Must not import anything of ``asyncstate``.

Source: Chan, Golub and LeVeque, "Algorithms for computing the sample variance" (1983); SQL's names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from asyncstate.operator import BundleContext

from ..core.arrays import Int8Array, int64_values, to_floats
from ..core.segments import Groups, group_sum
from .accumulators import counted, filled, group_counts, merged_counts, sum_type
from .aggregate_calls import Aggregate, AggregateKind, AggregateOutput, InputBinding
from .aggregator import KeyedRows, MergingAggregator, State, Updated

Floats = npt.NDArray[np.float64]


def var_pop(column: str) -> Aggregate:
    """The variance of the values: float64, null without a value, NaN if one is not finite.

    Floats are rounded, as with ``sum_``.
    """
    return Aggregate(_Variance("var_pop"), (column,))


def var_samp(column: str) -> Aggregate:
    """The sample variance of the values: float64, null with fewer than two values."""
    return Aggregate(_Variance("var_samp"), (column,))


def stddev_pop(column: str) -> Aggregate:
    """The square root of ``var_pop``."""
    return Aggregate(_Variance("stddev_pop"), (column,))


def stddev_samp(column: str) -> Aggregate:
    """The square root of ``var_samp``."""
    return Aggregate(_Variance("stddev_samp"), (column,))


def bool_and(column: str) -> Aggregate:
    """Whether all values of a boolean column are true; null without a value."""
    return Aggregate(_Truth("bool_and"), (column,))


def bool_or(column: str) -> Aggregate:
    """Whether any value of a boolean column is true; null without a value."""
    return Aggregate(_Truth("bool_or"), (column,))


_beyond_floats = np.errstate(over="ignore", invalid="ignore")
"""Values that are too large, NaN or infinite give NaN, without a warning from numpy."""


class _Sample(NamedTuple):
    """The number of values, their mean, and the sum of squared differences from the mean (u each)."""

    number: Floats
    mean: Floats
    squares: Floats

    def joined(self, other: _Sample) -> _Sample:
        """With the values of ``other``."""
        count = self.number + other.number
        share = other.number / np.where(count == 0, 1, count)
        difference = other.mean - self.mean
        squares = self.squares + other.squares + difference**2 * self.number * share
        return _Sample(count, self.mean + difference * share, squares)

    def without(self, other: _Sample) -> _Sample:
        """Without the values of ``other``, which are among these."""
        count = self.number - other.number
        share = other.number / np.where(count <= 0, 1, count)
        mean = self.mean + (self.mean - other.mean) * share
        difference = other.mean - mean
        total = np.where(self.number == 0, 1, self.number)
        squares = self.squares - other.squares - difference**2 * count * other.number / total
        left = count > 0
        return _Sample(
            np.where(left, count, 0.0),
            np.where(left, mean, 0.0),
            np.where(left, np.maximum(squares, 0.0), 0.0),
        )


class Moments(MergingAggregator):
    """Count, mean and squares of a column's values, as float64."""

    column: str

    def __init__(self, owner: str, column: str, condition: str | None, distinct: bool) -> None:
        super().__init__(owner, "moments", column, condition, distinct)
        names = (self.name, f"{self.name}.mean", f"{self.name}.squares")
        self.fields = tuple(pa.field(name, pa.float64(), nullable=False) for name in names)

    def lift(self, batch: pa.RecordBatch, signs: Int8Array | None) -> State:
        """See ``MergingAggregator``; either only for added rows or only for retracted rows."""
        values, count = self._counted(batch, signs)
        values = np.where(count > 0, values, 0.0)
        return _stored(_Sample(count, values, np.where(np.isfinite(values), 0.0, np.nan)))

    def _counted(self, batch: pa.RecordBatch, signs: Int8Array | None) -> tuple[Floats, Floats]:
        """The values (n), and the weights (n): 1 for each value that counts, else 0."""
        values = to_floats(batch.column(self.column))
        return filled(values).to_numpy(), np.abs(self.weights(batch, signs)).astype(np.float64)

    @_beyond_floats
    def combine(self, state: State, groups: Groups) -> State:
        """The states (n) of each group, in its order, merged into one per group (u)."""
        count, mean, squares = _sample(state)
        total = group_sum(count, groups)
        means = group_sum(count * mean, groups) / np.where(total == 0, 1, total)
        of_row = np.empty(len(count))
        of_row[groups.order] = np.repeat(means, groups.sizes)
        return _stored(_Sample(total, means, group_sum(squares + count * (mean - of_row) ** 2, groups)))

    @_beyond_floats
    def merge(self, state: State, partial: State) -> State:
        """Two sets of states (u), that of earlier rows first, merged row by row."""
        return _stored(_sample(state).joined(_sample(partial)))

    @_beyond_floats
    def without(self, state: State, partial: State) -> State:
        """The states (u) without the rows of ``partial``, which they include."""
        return _stored(_sample(state).without(_sample(partial)))

    def prepare(self, rows: KeyedRows) -> list[State]:
        """The states of added rows and those of retracted rows, which cannot be merged with each other."""
        if rows.signs is None:
            return [super().prepare(rows)]
        added, taken = (np.where(rows.signs == sign, rows.signs, 0).astype(np.int8) for sign in (1, -1))
        return [super(Moments, self).prepare(rows._replace(signs=signs)) for signs in (added, taken)]

    def update(self, state: State, rows: KeyedRows, prepared: list[State], ctx: BundleContext) -> Updated:
        """The states (u) after the rows; ``prepared`` is the result of ``prepare``."""
        added = self.merge(state, prepared[0])
        return Updated(self.without(added, prepared[1]) if len(prepared) > 1 else added)

    def variances(self, state: State, sample: bool) -> pa.Array:
        """The variances (u) of the values, or the ``sample`` variances; null with too few values."""
        number, _, squares = _sample(state)
        divisor = number - sample
        return pa.array(squares / np.where(divisor <= 0, 1, divisor), mask=divisor <= 0)


class RetractableMoments(Moments):
    """``Moments`` of floats that may be retracted: those of the finite values, and the count of the others, as in
    ``RetractableSum``."""

    def __init__(self, owner: str, column: str, condition: str | None, distinct: bool) -> None:
        super().__init__(owner, column, condition, distinct)
        name = f"not_finite.{self.name}"
        self.fields += (pa.field(name, pa.int64()),)
        self.may_lack = frozenset([name])

    def lift(self, batch: pa.RecordBatch, signs: Int8Array | None) -> State:
        """See ``MergingAggregator``; either only for added rows or only for retracted rows."""
        values, count = self._counted(batch, signs)
        finite = np.isfinite(values)
        number = count * finite
        values = np.where(number > 0, values, 0.0)
        others = counted((count * ~finite).astype(np.int64))
        return [*_stored(_Sample(number, values, np.zeros(len(values)))), others]

    def combine(self, state: State, groups: Groups) -> State:
        """The states (n) of each group, in its order, merged into one per group (u)."""
        return [*super().combine(state[:3], groups), group_counts(state[3], groups)]

    def merge(self, state: State, partial: State) -> State:
        """Two sets of states (u), that of earlier rows first, merged row by row."""
        return [*super().merge(state[:3], partial[:3]), merged_counts(state[3], partial[3])]

    def without(self, state: State, partial: State) -> State:
        """The states (u) without the rows of ``partial``, which they include."""
        others = merged_counts(state[3], pc.negate(partial[3]))
        return [*super().without(state[:3], partial[:3]), others]

    def variances(self, state: State, sample: bool) -> pa.Array:
        """See ``Moments``: NaN if a value is not finite."""
        others = int64_values(state[3])
        if not (others > 0).any():
            return super().variances(state[:3], sample)
        number = _sample(state[:3]).number
        return pc.if_else(
            pa.array((others > 0) & (number + others > sample)),
            pa.scalar(np.nan),
            super().variances(state[:3], sample),
        )


class Truths(MergingAggregator):
    """The numbers of true and of false values."""

    column: str

    def __init__(self, owner: str, column: str, condition: str | None, distinct: bool) -> None:
        super().__init__(owner, "truths", column, condition, distinct)
        self.fields = tuple(
            pa.field(name, pa.int64(), nullable=False) for name in (self.name, f"{self.name}.false")
        )

    def lift(self, batch: pa.RecordBatch, signs: Int8Array | None) -> State:
        """The states of n single rows; ``signs`` as in ``KeyedRows``."""
        values = batch.column(self.column)
        is_true = np.asarray(values.fill_null(False).to_numpy(zero_copy_only=False), np.bool_)
        weights = self.weights(batch, signs)
        return [pa.array(weights * is_true), pa.array(weights * ~is_true)]

    def combine(self, state: State, groups: Groups) -> State:
        """The states (n) of each group, in its order, merged into one per group (u)."""
        return [pa.array(group_sum(int64_values(column), groups)) for column in state]

    def merge(self, state: State, partial: State) -> State:
        """Two sets of states (u), that of earlier rows first, merged row by row."""
        return [
            pa.array(int64_values(first) + int64_values(second))
            for first, second in zip(state, partial, strict=True)
        ]


@dataclass(frozen=True)
class _Variance(AggregateKind):
    name: Literal["var_pop", "var_samp", "stddev_pop", "stddev_samp"]

    def bind(self, binding: InputBinding) -> AggregateOutput:
        if sum_type(binding.input_type) is None:
            raise binding.wrong_type("an integer, float or decimal")
        aggregate = binding.aggregate
        made = RetractableMoments if binding.retract and pa.types.is_floating(binding.input_type) else Moments
        moments = made(binding.owner, binding.column, binding.condition, aggregate.is_distinct)
        part = binding.part(moments)

        def values(states: Sequence[State]) -> pa.Array:
            found = moments.variances(states[part], self.name.endswith("samp"))
            return pc.sqrt(found) if self.name.startswith("stddev") else found

        return AggregateOutput(pa.field(aggregate.name, pa.float64()), values)


@dataclass(frozen=True)
class _Truth(AggregateKind):
    name: Literal["bool_and", "bool_or"]

    def bind(self, binding: InputBinding) -> AggregateOutput:
        if not pa.types.is_boolean(binding.input_type):
            raise binding.wrong_type("a boolean")
        aggregate = binding.aggregate
        part = binding.part(Truths(binding.owner, binding.column, binding.condition, aggregate.is_distinct))
        return AggregateOutput(
            pa.field(aggregate.name, pa.bool_()), lambda states: self._values(states[part])
        )

    def _values(self, state: State) -> pa.Array:
        true, false = map(int64_values, state)
        values = true > 0 if self.name == "bool_or" else false == 0
        return pa.array(values, mask=true + false == 0)


def _sample(state: State) -> _Sample:
    return _Sample(*(filled(column).to_numpy() for column in state))


def _stored(sample: _Sample) -> State:
    return [pa.array(numbers, pa.float64()) for numbers in sample]
