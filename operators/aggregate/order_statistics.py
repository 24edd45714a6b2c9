"""Aggregates of values in an order: percentiles, the mode, the value of an extreme, ordered lists and maps.

Owns: ``percentile``, ``percentile_disc``, ``median``, ``mode``, ``max_by``, ``min_by`` and ``map_agg``, and the kinds
of these and of ordered ``collect`` and ``string_agg``.
Invariant: results depend on the rows only, never on their order of arrival. Where several values qualify, the rule is
part of the function.
Must not import anything of ``asyncstate`` but ``codec`` and ``errors``.

Source: Spark SQL's functions of these names.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from asyncstate.codec.key_batch import rank_column
from asyncstate.codec.sorting import rows_by
from asyncstate.errors import SchemaError

from ..core.arrays import Int64Array, run_begins, to_floats
from ..core.sort_orders import OrderColumn, order_codes
from .accumulators import sum_type
from .aggregate_calls import Aggregate, AggregateKind, AggregateOutput, InputBinding
from .bag import Bag, Contents, Keep, as_lists, of_owners


def percentile(column: str, fraction: float, *, descending: bool = False) -> Aggregate:
    """The value at ``fraction`` (0 to 1) of the ordered values, interpolated between the two nearest ones: float64,
    null without a value. SQL's PERCENTILE_CONT.

    Exact: all distinct values are stored with their counts, and read and written as a whole in each bundle. NaN is the
    largest value. ``descending``: from the largest value on. Raises SchemaError for another fraction.
    """
    return Aggregate(_Percentile(_fraction("percentile", fraction), descending), (column,))


def percentile_disc(column: str, fraction: float, *, descending: bool = False) -> Aggregate:
    """The first of the ordered values at which at least ``fraction`` of all values are reached, of the column's type;
    otherwise as ``percentile``. SQL's PERCENTILE_DISC, of any type that can be a key."""
    return Aggregate(_DiscretePercentile(_fraction("percentile_disc", fraction), descending), (column,))


def median(column: str) -> Aggregate:
    """``percentile`` of 0.5."""
    return percentile(column, 0.5)


def mode(column: str, *, descending: bool = False) -> Aggregate:
    """The most frequent value, the smallest one of several, with ``descending`` the largest; of the column's type, null
    without a value. State and cost are those of ``percentile``."""
    return Aggregate(_LargestMode() if descending else _Mode(), (column,))


def max_by(column: str, by: str) -> Aggregate:
    """The value of ``column`` in the row with the largest ``by``; of the column's type, and null if the value is.

    Rows without a ``by`` do not count. NaN is the largest number. Of several rows with the largest ``by``, the largest
    value counts, null only if there is no other. Over a changelog, all pairs of values are stored; otherwise one.
    """
    return Aggregate(_By("max_by"), (column, by))


def min_by(column: str, by: str) -> Aggregate:
    """The value of ``column`` in the row with the smallest ``by``; otherwise as ``max_by``."""
    return Aggregate(_By("min_by"), (column, by))


def map_agg(key: str, value: str) -> Aggregate:
    """A map from the values of ``key`` to those of ``value``, in the order of the keys; null without a key.

    Null is no key, but a value. Of several values of a key, the largest counts, null only if there is no other. State
    and cost are those of ``percentile``, for pairs.
    """
    return Aggregate(_Map(), (key, value))


def ordered_list(column: str, order: tuple[OrderColumn, ...], separator: str | None) -> Aggregate:
    """The values of ``column`` in an order, equal ones by value: as a list, or as a text with a ``separator``."""
    others = tuple(one.column for one in order if one.column != column)
    name: Literal["collect", "string_agg"] = "collect" if separator is None else "string_agg"
    return Aggregate(_OrderedList(name, column, order, separator or ""), (column, *others))


def _fraction(name: str, fraction: object) -> float:
    if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 <= fraction <= 1:
        raise SchemaError(f"{name}: fraction is {fraction!r}; give a number from 0 to 1")
    return float(fraction)


class _OfBag(AggregateKind):
    """An aggregate of the contents of a bag."""

    keep: Keep = "all"
    """Which values the bag has over inserts."""
    by_value: bool = False
    """Whether the result is the same with and without DISTINCT."""

    def keeps_values(self, retract: bool) -> bool:
        """Whether its accumulator keeps a value per row; ``retract``: the input retracts rows."""
        return retract or self.keep == "all"

    def bind(self, binding: InputBinding) -> AggregateOutput:
        aggregate = binding.aggregate
        result = self.result(binding)
        is_distinct = aggregate.is_distinct and not self.by_value
        keep: Keep = "all" if binding.retract else self.keep
        bag = Bag(binding, self.columns(aggregate), self.needed(aggregate), keep, is_distinct)
        part = binding.part(bag) if is_distinct else binding.plain_part(bag)

        def values(states: Sequence[list[pa.Array]]) -> pa.Array:
            count, contents = len(states[part][0]), bag.contents(states[part])
            if not len(contents.owners):
                return pa.nulls(count, result)
            return self.found(contents, count).cast(result)

        return AggregateOutput(pa.field(aggregate.name, result), values)

    def columns(self, aggregate: Aggregate) -> tuple[str, ...]:
        """The columns of the bag, in its order."""
        return aggregate.columns

    def needed(self, aggregate: Aggregate) -> tuple[str, ...]:
        """The columns that must not be null."""
        return aggregate.columns

    def result(self, binding: InputBinding) -> pa.DataType:
        """The type of the result. Raises SchemaError for columns that do not fit."""
        return binding.type_of(binding.aggregate.columns[0])

    @abstractmethod
    def found(self, contents: Contents, count: int) -> pa.Array:
        """The results of ``count`` owners; null for owners without contents."""


class _AtFraction(_OfBag):
    """A value at a position among the values of an owner."""

    fraction: float
    descending: bool

    def found(self, contents: Contents, count: int) -> pa.Array:
        """The results of ``count`` owners; null for owners without contents."""
        owners, (values,), counts = contents
        starts = np.flatnonzero(run_begins(owners))
        sizes = np.add.reduceat(counts, starts)
        return of_owners(self._at(values, np.cumsum(counts), sizes), owners[starts], count)

    @abstractmethod
    def _at(self, values: pa.Array, stops: Int64Array, sizes: Int64Array) -> pa.Array:
        """The results (u); ``stops`` (m): the number of values, of all owners, up to each of ``values``; ``sizes`` (u):
        the number of values of each owner."""

    def _taken(self, values: pa.Array, stops: Int64Array, sizes: Int64Array, places: Int64Array) -> pa.Array:
        """The values (u) at the ``places`` (u) of each owner, from 0."""
        if self.descending:
            places = sizes - 1 - places
        return values.take(pa.array(np.searchsorted(stops, np.cumsum(sizes) - sizes + places, "right")))


@dataclass(frozen=True)
class _Percentile(_AtFraction):
    fraction: float
    descending: bool = False
    name: str = "percentile"

    def result(self, binding: InputBinding) -> pa.DataType:
        """The type of the result."""
        if sum_type(binding.input_type) is None:
            raise binding.wrong_type("an integer, float or decimal")
        return pa.float64()

    def _at(self, values: pa.Array, stops: Int64Array, sizes: Int64Array) -> pa.Array:
        place = (sizes - 1) * self.fraction
        low, high = (
            to_floats(self._taken(values, stops, sizes, whole.astype(np.int64))).to_numpy()
            for whole in (np.floor(place), np.ceil(place))
        )
        with np.errstate(invalid="ignore", over="ignore"):
            between = low + (high - low) * (place - np.floor(place))
        return pa.array(np.where(low == high, low, np.where(place == np.floor(place), low, between)))


@dataclass(frozen=True)
class _DiscretePercentile(_AtFraction):
    fraction: float
    descending: bool = False
    name: str = "percentile_disc"

    def _at(self, values: pa.Array, stops: Int64Array, sizes: Int64Array) -> pa.Array:
        exact = Fraction(repr(self.fraction))
        places = [max(math.ceil(exact * size) - 1, 0) for size in sizes.tolist()]
        return self._taken(values, stops, sizes, np.array(places, np.int64))


@dataclass(frozen=True)
class _Mode(_OfBag):
    name: str = "mode"

    def found(self, contents: Contents, count: int) -> pa.Array:
        """The results of ``count`` owners; null for owners without contents."""
        owners, (values,), counts = contents
        order = rows_by(owners, -counts, self.places(len(owners)))
        first = order[run_begins(owners[order])]
        return of_owners(values.take(pa.array(first)), owners[first], count)

    def places(self, count: int) -> Int64Array:
        """Which of equally frequent values (m, ascending) comes first."""
        return np.arange(count)


@dataclass(frozen=True)
class _LargestMode(_Mode):
    @property
    def text(self) -> str:
        """What it computes from its columns: the name and the other parameters."""
        return "mode[descending=True]"

    def places(self, count: int) -> Int64Array:
        """Which of equally frequent values (m, ascending) comes first."""
        return -np.arange(count)


@dataclass(frozen=True)
class _By(_OfBag):
    name: Literal["max_by", "min_by"]
    by_value = True

    @property
    def keep(self) -> Keep:  # type: ignore[override]
        return "last" if self.name == "max_by" else "first"

    def columns(self, aggregate: Aggregate) -> tuple[str, ...]:
        """The columns of the bag, in its order."""
        return aggregate.columns[::-1]

    def needed(self, aggregate: Aggregate) -> tuple[str, ...]:
        """The columns that must not be null."""
        return aggregate.columns[1:]

    def found(self, contents: Contents, count: int) -> pa.Array:
        """The results of ``count`` owners; null for owners without contents."""
        owners, columns, _ = contents.extremes(self.keep)
        return of_owners(columns[1], owners, count)


@dataclass(frozen=True)
class _Map(_OfBag):
    name: str = "map_agg"
    by_value = True

    def needed(self, aggregate: Aggregate) -> tuple[str, ...]:
        """The columns that must not be null."""
        return aggregate.columns[:1]

    def result(self, binding: InputBinding) -> pa.DataType:
        """The type of the result."""
        return pa.map_(*map(binding.type_of, binding.aggregate.columns))

    def found(self, contents: Contents, count: int) -> pa.Array:
        """The results of ``count`` owners; null for owners without contents."""
        begins = run_begins(contents.owners, rank_column(contents.columns[0])[0])
        owners, (keys, values), _ = contents.chosen(np.append(begins[1:], True))
        (places,) = as_lists([pa.array(np.arange(len(keys)))], owners, count)
        empty = pc.equal(pc.list_value_length(places), 0).to_numpy(zero_copy_only=False)
        offsets = places.offsets.to_numpy()
        maps = pa.MapArray.from_arrays(pa.array(offsets, mask=np.append(empty, False)), keys, values)
        return maps.cast(pa.map_(keys.type, values.type))


@dataclass(frozen=True)
class _OrderedList(_OfBag):
    name: Literal["collect", "string_agg"]
    value: str
    order: tuple[OrderColumn, ...]
    separator: str = ""

    def needed(self, aggregate: Aggregate) -> tuple[str, ...]:
        """The columns that must not be null."""
        return aggregate.columns[:1]

    def result(self, binding: InputBinding) -> pa.DataType:
        """The type of the result."""
        aggregate = binding.aggregate
        kind = binding.type_of(aggregate.columns[0])
        if aggregate.is_distinct and len(aggregate.columns) > 1:
            raise binding.refuse(
                f"is distinct, so only '{aggregate.column}' itself can order it: which row of a value gives the other "
                "columns is not known"
            )
        if self.name == "collect":
            return pa.list_(kind)
        if not pa.types.is_string(kind):
            raise binding.wrong_type("a string", aggregate.columns[0])
        return kind

    def found(self, contents: Contents, count: int) -> pa.Array:
        """The results of ``count`` owners; null for owners without contents."""
        owners, columns, counts = contents
        names = [self.value, *(one.column for one in self.order if one.column != self.value)]
        codes = order_codes([columns[names.index(one.column)] for one in self.order], self.order)
        order = rows_by(owners, *codes, rank_column(columns[0])[0])
        order = np.repeat(order, counts[order])
        (lists,) = as_lists([columns[0].take(pa.array(order))], owners[order], count)
        lists = pc.if_else(pc.equal(pc.list_value_length(lists), 0), pa.scalar(None, lists.type), lists)
        return pc.binary_join(lists, self.separator) if self.name == "string_agg" else lists
