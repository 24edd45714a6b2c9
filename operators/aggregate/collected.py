"""Aggregates that keep values: the first, the last, all of them as a list or as a text.

Owns: ``first_value``, ``last_value``, ``collect`` and ``string_agg``, and their functions.
Invariant: null is no value. Over inserts, only the first or last value of a key is kept; over retractions, all values
are kept in order.
Must not import anything of ``asyncstate`` but ``codec``, ``errors``, ``functions`` and ``state``.

Source: Flink SQL's FIRST_VALUE, LAST_VALUE, COLLECT and LISTAGG.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import pyarrow as pa

from asyncstate.codec import check_key_type
from asyncstate.errors import SchemaError
from asyncstate.functions.aggregate_functions import AggregateFunction
from asyncstate.state.views.in_memory import user_key

from ..core.sort_orders import ARRIVAL, OrderBy, order_columns
from .aggregate_calls import Aggregate, AggregateKind, AggregateOutput, InputBinding
from .order_statistics import ordered_list
from .user.udaf import UserAggregate


def first_value(column: str) -> Aggregate:
    """The first value by arrival, of the column's type; null without a value.

    Over a changelog, all values are kept, and the result is the first of the remaining ones. Which of several equal
    values a retraction removes is not guaranteed: those added and retracted in one micro-batch cancel out, else the
    oldest is removed.
    """
    return Aggregate(_Kept("first_value"), (column,))


def last_value(column: str) -> Aggregate:
    """The last value by arrival; otherwise as ``first_value``."""
    return Aggregate(_Kept("last_value"), (column,))


def collect(column: str, order_by: OrderBy = ARRIVAL) -> Aggregate:
    """A list of the values in order of arrival; null without a value. State and cost are those of the whole list, in
    every bundle.

    ``order_by`` (columns, ``asc(...)``, ``desc(...)``): in this order instead, equal ones by value. With
    ``distinct()``, only the column itself can be the order."""
    order = order_columns(order_by, "collect")
    return ordered_list(column, order, None) if order else Aggregate(_Kept("collect"), (column,))


def string_agg(column: str, separator: str = ",", order_by: OrderBy = ARRIVAL) -> Aggregate:
    """The texts of a column in order of arrival, with ``separator`` between them; null without a value. State, cost and
    ``order_by`` are those of ``collect``."""
    if not isinstance(separator, str):
        raise SchemaError(f"string_agg: separator is {separator!r}; give a string")
    order = order_columns(order_by, "string_agg")
    return (
        ordered_list(column, order, separator)
        if order
        else Aggregate(_Kept("string_agg", separator), (column,))
    )


@dataclass(frozen=True)
class _Values(AggregateFunction):
    """All values, in a list."""

    show: Literal["first_value", "last_value", "collect", "string_agg"]
    separator: str = ","
    once: bool = False
    """Whether a repeated value appears once, at its first position."""

    def create_accumulator(self) -> list[list[Any]]:
        return [[]]

    def accumulate(self, accumulator: list[list[Any]], *args: Any) -> None:
        if args[0] is not None:
            accumulator[0].append(args[0])

    def retract(self, accumulator: list[list[Any]], *args: Any) -> None:
        """See ``AggregateFunction``: removes the first equal value, if there is one."""
        place = _place_of(args[0], accumulator[0])
        if place is not None:
            del accumulator[0][place]

    def merge(self, accumulator: list[list[Any]], accumulators: Any) -> None:
        for other in accumulators:
            accumulator[0] += other[0]

    def get_value(self, accumulator: list[list[Any]]) -> Any:
        values = accumulator[0]
        if not values:
            return None
        if self.once:
            values = list(dict.fromkeys(map(user_key, values)))
        if self.show == "collect":
            return list(values)
        if self.show == "string_agg":
            return self.separator.join(values)
        return values[0 if self.show == "first_value" else -1]


def _place_of(gone: Any, values: list[Any]) -> int | None:
    """The position of the first of ``values`` that equals ``gone``, None without one. NaN equals NaN here, as in keys;
    floats inside of other values are compared by their bits, as in rows."""
    if isinstance(gone, list | dict | tuple):
        text = repr(gone)
        return next((at for at, value in enumerate(values) if repr(value) == text), None)
    if gone != gone:
        return next((at for at, value in enumerate(values) if value != value), None)
    return values.index(gone) if gone in values else None


@dataclass(frozen=True)
class _Newest(_Values):
    """Only the first or the last value: rows are never retracted."""

    def accumulate(self, accumulator: list[list[Any]], *args: Any) -> None:
        if args[0] is not None and (self.show == "last_value" or not accumulator[0]):
            accumulator[0] = [args[0]]

    def merge(self, accumulator: list[list[Any]], accumulators: Any) -> None:
        for other in accumulators:
            for value in other[0]:
                self.accumulate(accumulator, value)


@dataclass(frozen=True)
class _Kept(AggregateKind):
    name: Literal["first_value", "last_value", "collect", "string_agg"]
    separator: str = ","
    once: bool = False

    @property
    def user_function(self) -> AggregateFunction:
        return _Values(self.name, self.separator)

    def keeps_values(self, retract: bool) -> bool:
        """See ``AggregateKind``: over inserts, first and last keep a single value."""
        return retract or self.name in ("collect", "string_agg")

    def in_moving_frames(self, aggregate: Aggregate) -> Aggregate:
        """Keep all values, so that a value has the position of its first remaining occurrence."""
        if not aggregate.is_distinct:
            return aggregate
        return replace(aggregate, kind=replace(self, once=True), is_distinct=False, output=aggregate.name)

    def bind(self, binding: InputBinding) -> AggregateOutput:
        input_type = binding.input_type
        if self.name == "string_agg" and not pa.types.is_string(input_type):
            raise binding.wrong_type("a string")
        if self.once:
            check_key_type(binding.column, input_type)
        alone = self.name in ("first_value", "last_value") and not binding.retract
        made = _Newest if alone else _Values
        function = made(self.name, self.separator, self.once)
        result = pa.list_(input_type) if self.name == "collect" else input_type
        values = pa.struct([pa.field("values", pa.list_(input_type))])
        name = f"{self.name}({self.separator})" if self.name == "string_agg" else self.name
        name += ".once" if self.once else ""
        return UserAggregate(function, result, values, name).bind(binding)
