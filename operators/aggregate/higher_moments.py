"""Covariances, correlations, skewness and kurtosis.

Owns: ``CoMoments`` and ``HigherMoments`` and the aggregates that use them.
Invariant: sums are of differences from the mean, and the mean of equal values is exactly that value: what does not vary
has a variance of exactly 0, however its rows are grouped. Over a changelog nothing is subtracted: the values are kept.
Must not import anything of ``asyncstate``.

Source: Pébay, "Formulas for robust, one-pass parallel computation of covariances and arbitrary-order statistical
moments" (2008); the results for few or equal values are Spark's.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..core.arrays import Int64Array, to_floats
from ..core.segments import Groups
from .accumulators import filled, sum_type
from .aggregate_calls import Aggregate, AggregateKind, AggregateOutput, InputBinding
from .aggregator import State
from .bag import Counted, retractable

Floats = npt.NDArray[np.float64]
CoFunction = Literal["corr", "covar_pop", "covar_samp"]
HigherFunction = Literal["skewness", "kurtosis"]


def corr(first: str, second: str) -> Aggregate:
    """The correlation of two columns, over the rows in which both have a value: float64, null with fewer than two such
    rows or if the values of a column are all equal.

    Over a changelog, all values are stored. Floats are rounded, as with ``sum_``; NaN if a value is not finite.
    """
    return Aggregate(_Covariance("corr"), (first, second))


def covar_pop(first: str, second: str) -> Aggregate:
    """The covariance of two columns: null without a row in which both have a value; otherwise as ``corr``."""
    return Aggregate(_Covariance("covar_pop"), (first, second))


def covar_samp(first: str, second: str) -> Aggregate:
    """The sample covariance of two columns: null with fewer than two rows in which both have a value; otherwise as
    ``corr``."""
    return Aggregate(_Covariance("covar_samp"), (first, second))


def skewness(column: str) -> Aggregate:
    """The skewness of the values: float64, null without a value or if all values are equal. Otherwise as ``corr``."""
    return Aggregate(_Higher("skewness"), (column,))


def kurtosis(column: str) -> Aggregate:
    """The kurtosis of the values, minus that of a normal distribution; otherwise as ``skewness``."""
    return Aggregate(_Higher("kurtosis"), (column,))


_beyond_floats = np.errstate(over="ignore", invalid="ignore", divide="ignore")
"""Values that are too large, NaN or infinite give NaN, without a warning from numpy."""


class _Moments(Counted):
    """Float64 columns: the number of values, the mean of each column, and sums of products of differences from it."""

    def __init__(
        self,
        owner: str,
        label: str,
        names: Sequence[str],
        columns: tuple[str, ...],
        condition: str | None,
        distinct: bool,
    ) -> None:
        super().__init__(owner, label, columns, condition, distinct)
        fields = [self.name, *(f"{self.name}.{name}" for name in names)]
        self.fields = tuple(pa.field(name, pa.float64()) for name in fields)
        self.retracts = False

    def of_counts(self, columns: Sequence[pa.Array], counts: Int64Array) -> State:
        """The states of n values that occur ``counts`` (n) times each; 0: no value."""
        number = counts.astype(np.float64)
        values = [filled(to_floats(column)).to_numpy() for column in columns]
        values = [np.where(number > 0, column, 0.0) for column in values]
        finite = np.logical_and.reduce([np.isfinite(column) for column in values])
        sums = np.where(finite, 0.0, np.nan)
        return _stored([number, *values, *[sums] * (len(self.fields) - 1 - len(values))])

    @_beyond_floats
    def combine(self, state: State, groups: Groups) -> State:
        """The states (n) of each group, in its order, merged into one per group (u)."""
        numbers = [filled(column).to_numpy()[groups.order] for column in state]
        count, means = numbers[0], numbers[1 : 1 + len(self.columns)]
        total = np.add.reduceat(count, groups.starts)
        differences, joined = [], []
        for mean in means:
            # Differences from one of the means are exactly 0 if all are equal, which sums of means are not.
            base = np.maximum.reduceat(np.where(count > 0, mean, -np.inf), groups.starts)
            base = np.where(total > 0, base, 0.0)
            apart = np.where(count > 0, mean - np.repeat(base, groups.sizes), 0.0)
            shift = np.add.reduceat(count * apart, groups.starts) / np.where(total > 0, total, 1)
            differences.append(apart - np.repeat(shift, groups.sizes))
            joined.append(base + shift)
        sums = self.shifted(count, differences, numbers[1 + len(means) :])
        return _stored([total, *joined, *(np.add.reduceat(column, groups.starts) for column in sums)])

    def merge(self, state: State, partial: State) -> State:
        """Two sets of states (u), that of earlier rows first, merged row by row."""
        count = len(state[0])
        pairs = Groups(np.arange(2 * count).reshape(2, count).T.ravel(), np.arange(0, 2 * count, 2))
        both = [pa.concat_arrays(pair) for pair in zip(state, partial, strict=True)]
        return self.combine(both, pairs) if count else both

    @abstractmethod
    def shifted(self, count: Floats, apart: Sequence[Floats], sums: Sequence[Floats]) -> list[Floats]:
        """The sums (n) of ``count`` values around other means, ``apart`` (n per column) from their own."""


class CoMoments(_Moments):
    """Of two columns: the squares of each, and the products of both."""

    def __init__(
        self, owner: str, columns: tuple[str, ...], condition: str | None, distinct: bool = False
    ) -> None:
        names = ("mean", "other_mean", "squares", "other_squares", "products")
        super().__init__(owner, "comoments", names, columns, condition, distinct)

    def shifted(self, count: Floats, apart: Sequence[Floats], sums: Sequence[Floats]) -> list[Floats]:
        """The sums (n) of ``count`` values around other means, ``apart`` (n per column) from their own."""
        (x, y), (xx, yy, xy) = apart, sums
        return [xx + count * x * x, yy + count * y * y, xy + count * x * y]


class HigherMoments(_Moments):
    """Of one column: the sums of the second, third and fourth powers."""

    def __init__(
        self, owner: str, columns: tuple[str, ...], condition: str | None, distinct: bool = False
    ) -> None:
        super().__init__(
            owner, "higher_moments", ("mean", "squares", "cubes", "fourths"), columns, condition, distinct
        )

    def shifted(self, count: Floats, apart: Sequence[Floats], sums: Sequence[Floats]) -> list[Floats]:
        """The sums (n) of ``count`` values around other means, ``apart`` (n per column) from their own."""
        (d,), (second, third, fourth) = apart, sums
        return [
            second + count * d**2,
            third + 3 * d * second + count * d**3,
            fourth + 4 * d * third + 6 * d**2 * second + count * d**4,
        ]


class _OfMoments(AggregateKind):
    """An aggregate of numeric columns."""

    part: type[CoMoments] | type[HigherMoments]

    def keeps_values(self, retract: bool) -> bool:
        """Whether its accumulator keeps a value per row; ``retract``: the input retracts rows."""
        return retract

    def bind(self, binding: InputBinding) -> AggregateOutput:
        aggregate = binding.aggregate
        for name in aggregate.columns:
            if sum_type(binding.type_of(name)) is None:
                raise binding.wrong_type("an integer, float or decimal", name)
        part = self.part(binding.owner, aggregate.columns, binding.condition, aggregate.is_distinct)
        read = retractable(binding, part, distinct=True)

        @_beyond_floats
        def values(states: Sequence[State]) -> pa.Array:
            found, missing = self.found([filled(column).to_numpy() for column in read(states)])
            return pa.array(found, pa.float64(), mask=missing)

        return AggregateOutput(pa.field(aggregate.name, pa.float64()), values)

    @abstractmethod
    def found(self, numbers: Sequence[Floats]) -> tuple[Floats, npt.NDArray[np.bool_]]:
        """The results (u) from the columns of states (u), and which are null."""


@dataclass(frozen=True)
class _Covariance(_OfMoments):
    name: CoFunction
    part = CoMoments

    def found(self, numbers: Sequence[Floats]) -> tuple[Floats, npt.NDArray[np.bool_]]:
        """The results (u) from the columns of states (u), and which are null."""
        count, _, _, xx, yy, xy = numbers
        if self.name == "covar_pop":
            return xy / np.maximum(count, 1), count == 0
        if self.name == "covar_samp":
            return xy / np.maximum(count - 1, 1), count < 2
        return xy / np.sqrt(xx * yy), (count < 2) | (xx == 0) | (yy == 0)


@dataclass(frozen=True)
class _Higher(_OfMoments):
    name: HigherFunction
    part = HigherMoments

    def found(self, numbers: Sequence[Floats]) -> tuple[Floats, npt.NDArray[np.bool_]]:
        """The results (u) from the columns of states (u), and which are null."""
        count, _, second, third, fourth = numbers
        missing = (count == 0) | (second == 0)
        if self.name == "skewness":
            return np.sqrt(count) * third / np.sqrt(second**3), missing
        return count * fourth / second**2 - 3, missing


def _stored(numbers: Sequence[Floats]) -> State:
    return [pa.array(column, pa.float64()) for column in numbers]
