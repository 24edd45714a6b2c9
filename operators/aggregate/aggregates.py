"""Built-in aggregates: what the user asks for, and the plan that computes it over columns.

Owns: ``Aggregate`` with ``count``, ``sum_``, ``avg``, ``min_``, ``max_``, and ``AggregatePlan``.
Invariant: aggregates that need the same thing (the sum and the average of one column) share its state column;
state columns are named for what they hold, never for the user's aliases.
Must not import anything of ``asyncstate`` but ``codec`` and ``errors``.

Source: Flink SQL's built-in aggregates; sums of decimals are decimal(38, s) as there, averages are float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from asyncstate.errors import SchemaError
from operators.aggregate.accumulators import Accumulator, Count, Extreme, Sum, sum_type
from operators.aggregate.value_log import Multiset
from operators.core.arrays import Int8Array
from operators.core.checks import check_distinct_names
from operators.core.segments import Groups

Function = Literal["count", "sum", "avg", "min", "max"]

_NUMBERS = "an integer, float or decimal"
_ORDERED = "a number, string, binary, boolean, date or timestamp"


@dataclass(frozen=True)
class Aggregate:
    """One aggregate of an operator: made by ``count``, ``sum_``, ``avg``, ``min_`` or ``max_``."""

    function: Function
    column: str | None = None
    condition: str | None = None
    output: str | None = None

    def alias(self, name: str) -> Aggregate:
        """The same aggregate with ``name`` as its output column."""
        return replace(self, output=name)

    def where(self, condition: str) -> Aggregate:
        """The same aggregate over the rows whose boolean column ``condition`` is true (SQL's FILTER)."""
        return replace(self, condition=condition)

    @property
    def name(self) -> str:
        """The output column: the alias, or ``sum_price`` for ``sum_("price")``, ``count`` for ``count()``."""
        return self.output or "_".join(part for part in (self.function, self.column) if part)


def count(column: str | None = None) -> Aggregate:
    """The number of rows, or of values of ``column`` that are not null: int64, never null."""
    return Aggregate("count", column)


def sum_(column: str) -> Aggregate:
    """The sum of ``column``: int64 for integers, float64 for floats, decimal(38, s) for decimals.

    Null without a value. OperatorError where it does not fit.
    """
    return Aggregate("sum", column)


def avg(column: str) -> Aggregate:
    """The mean of ``column``: float64, null without a value; kept as sum and count."""
    return Aggregate("avg", column)


def min_(column: str) -> Aggregate:
    """The smallest value of ``column``, of its own type; null without a value."""
    return Aggregate("min", column)


def max_(column: str) -> Aggregate:
    """The largest value of ``column``, of its own type; null without a value. NaN is the largest number."""
    return Aggregate("max", column)


def check_aggregates(aggregates: Sequence[object], owner: str) -> None:
    """SchemaError for what is no aggregate."""
    for aggregate in aggregates:
        if not isinstance(aggregate, Aggregate):
            raise SchemaError(
                f"{owner}: {aggregate!r} is no aggregate; make one with count, sum_, avg, min_ or max_"
            )


def columns_of(aggregates: Sequence[Aggregate]) -> set[str]:
    """The columns that ``aggregates`` look at."""
    named = (name for aggregate in aggregates for name in (aggregate.column, aggregate.condition))
    return {name for name in named if name is not None}


@dataclass(frozen=True)
class _Output:
    """How one result column follows from state columns: indices of the main one and of its count."""

    function: Function
    field: pa.Field
    state: int
    count: int


class AggregatePlan:
    """Aggregates bound to an input schema: state columns and the vectorised steps over them.

    ``lift`` turns n rows into n states, ``combine`` n states into one a group, ``merge`` adds two sets of
    states, ``results`` reads the aggregates off. A set of states is one array a field of ``state_schema``;
    column 0, ``count1``, counts the rows. With ``retract``, ``merge`` leaves minima and maxima as they were
    and the caller brings them up to date with ``multisets``, one a distinct (column, condition).

    Raises SchemaError naming ``owner`` and the column for what does not fit.
    """

    def __init__(
        self, aggregates: Sequence[Aggregate], schema: pa.Schema, owner: str, retract: bool = False
    ) -> None:
        self._owner = owner
        self._schema = schema
        self._retract = retract
        self.parts: list[Accumulator] = []
        self._part_of: dict[str, int] = {}
        self._part(Count(owner, None, None))
        self._outputs = [self._compile(aggregate) for aggregate in aggregates]
        self.state_schema = pa.schema([part.field for part in self.parts])
        self.result_fields = [output.field for output in self._outputs]
        self.multisets: list[Multiset] = self._multisets() if retract else []
        check_distinct_names([field.name for field in self.result_fields], owner)

    def lift(self, batch: pa.RecordBatch, signs: Int8Array | None = None) -> list[pa.Array]:
        """The states of n rows, one by one; ``signs`` is +1, -1 or 0 (ignored) a row, None for all +1."""
        return [part.lift(batch, signs) for part in self.parts]

    def combine(self, states: Sequence[pa.Array], groups: Groups) -> list[pa.Array]:
        """n states reduced to one a group (u)."""
        return [part.combine(column, groups) for part, column in zip(self.parts, states, strict=True)]

    def partial(
        self, batch: pa.RecordBatch, groups: Groups, signs: Int8Array | None = None
    ) -> list[pa.Array]:
        """The states of the rows of each group (u): lift and combine. With ``retract`` extremes stay null."""
        kept = [bool(self.multisets) and isinstance(part, Extreme) for part in self.parts]
        return [
            pa.nulls(len(groups.starts), part.field.type)
            if by_multiset
            else part.combine(part.lift(batch, signs), groups)
            for part, by_multiset in zip(self.parts, kept, strict=True)
        ]

    def merge(self, state: Sequence[pa.Array], partial: Sequence[pa.Array]) -> list[pa.Array]:
        """Two sets of states of the same u groups as one; a null state adds nothing."""
        pairs = zip(self.parts, state, partial, strict=True)
        return self._settled([part.merge(first, second) for part, first, second in pairs])

    def results(self, states: Sequence[pa.Array]) -> list[pa.Array]:
        """The aggregates' columns (u), in the order given."""
        return [_result(output, states) for output in self._outputs]

    def _settled(self, states: list[pa.Array]) -> list[pa.Array]:
        """Float sums over no value are zero again, so that rounding does not outlive the rows it is from."""
        for output in self._outputs:
            column = states[output.state]
            if output.function in ("sum", "avg") and pa.types.is_floating(column.type):
                empty = states[output.count].to_numpy() == 0
                if empty.any():
                    states[output.state] = pa.array(np.where(empty, 0.0, column.to_numpy()))
        return states

    def _compile(self, aggregate: Aggregate) -> _Output:
        column, condition = aggregate.column, aggregate.condition
        self._check_condition(aggregate)
        input_type = None if column is None else self._column_type(aggregate, column)
        counter = self._part(Count(self._owner, column, condition))
        if column is None or input_type is None or aggregate.function == "count":
            field = pa.field(aggregate.name, pa.int64(), nullable=False)
            return _Output("count", field, counter, counter)
        if aggregate.function in ("sum", "avg"):
            total = sum_type(input_type)
            if total is None:
                raise self._wrong_type(aggregate, input_type, _NUMBERS)
            state = self._part(Sum(self._owner, column, condition, input_type))
            result_type = total if aggregate.function == "sum" else pa.float64()
            return _Output(aggregate.function, pa.field(aggregate.name, result_type), state, counter)
        if pa.types.is_nested(input_type) or pa.types.is_null(input_type):
            raise self._wrong_type(aggregate, input_type, _ORDERED)
        largest = aggregate.function == "max"
        part = Extreme(self._owner, column, condition, input_type, largest, self._retract)
        return _Output(aggregate.function, pa.field(aggregate.name, input_type), self._part(part), counter)

    def _part(self, part: Accumulator) -> int:
        """The index of the state column that holds what ``part`` does; a new one if there is none."""
        index = self._part_of.setdefault(part.field.name, len(self.parts))
        if index == len(self.parts):
            self.parts.append(part)
        return index

    def _multisets(self) -> list[Multiset]:
        found: dict[tuple[str | None, str | None], Multiset] = {}
        for index, part in enumerate(self.parts):
            if isinstance(part, Extreme):
                multiset = found.setdefault(
                    (part.column, part.condition), Multiset(part, self._counter_of(part))
                )
                multiset.extremes.append((index, part.largest))
        return list(found.values())

    def _counter_of(self, part: Extreme) -> int:
        return self._part(Count(self._owner, part.column, part.condition))

    def _column_type(self, aggregate: Aggregate, name: str) -> pa.DataType:
        index = self._schema.get_field_index(name)
        if index < 0:
            raise SchemaError(
                f"{self._owner}: aggregate '{aggregate.name}' needs a column '{name}', which the input "
                f"does not have; its columns are: {', '.join(self._schema.names)}"
            )
        return self._schema.field(index).type

    def _check_condition(self, aggregate: Aggregate) -> None:
        if aggregate.condition is not None:
            condition_type = self._column_type(aggregate, aggregate.condition)
            if not pa.types.is_boolean(condition_type):
                raise SchemaError(
                    f"{self._owner}: where('{aggregate.condition}') of aggregate '{aggregate.name}' needs "
                    f"a boolean column, not {condition_type}; compute the condition before the operator"
                )

    def _wrong_type(self, aggregate: Aggregate, found: pa.DataType, needed: str) -> SchemaError:
        return SchemaError(
            f"{self._owner}: aggregate '{aggregate.name}' needs {needed} but column '{aggregate.column}' is "
            f"of type {found}; cast it before the operator"
        )


def _result(output: _Output, states: Sequence[pa.Array]) -> pa.Array:
    column = states[output.state]
    if output.function == "count":
        return column.fill_null(0) if column.null_count else column
    if output.function in ("min", "max"):
        return column
    counts = states[output.count]
    count_values = (counts.fill_null(0) if counts.null_count else counts).to_numpy()
    empty = count_values == 0
    if output.function == "avg":
        return pa.array(_means(column, count_values), mask=empty)
    return column if not empty.any() else _masked(column, empty)


def _means(sums: pa.Array, counts: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    totals = sums.cast(pa.float64(), safe=False)
    totals = totals.fill_null(0.0) if totals.null_count else totals
    return np.asarray(totals.to_numpy() / np.where(counts == 0, 1, counts))


def _masked(column: pa.Array, empty: npt.NDArray[np.bool_]) -> pa.Array:
    return pc.if_else(pa.array(~empty), column, pa.scalar(None, column.type))
