"""Aggregate calls, and how they are bound to an input.

Owns: ``Aggregate``; ``AggregateKind``, the kind of a call; ``InputBinding``, ``Parts`` and ``AggregateOutput``, with
which a kind declares its parts.
Invariant: aggregates that need the same part (the sum and the average of one column) share it; state columns are named
after their content, never after the user's aliases.
Must not import anything of ``asyncstate`` but ``errors`` and ``functions``.

Source: Flink SQL's aggregate calls, with FILTER and DISTINCT.
"""

from __future__ import annotations

import builtins
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import pyarrow as pa

from asyncstate.display import call_text
from asyncstate.errors import SchemaError
from asyncstate.functions import Function

from .accumulators import Count, RetractableSum, Sum, sum_type
from .aggregator import Aggregator, State
from .distinct import DistinctValues


@dataclass(frozen=True)
class Aggregate:
    """One aggregate of an operator: made by ``count``, ``sum_``, ``avg``, ``min_``, ``max_`` and so on, or from a
    user-defined function by ``udaf``."""

    kind: AggregateKind
    columns: tuple[str, ...] = ()
    condition: str | None = None
    output: str | None = None
    is_distinct: bool = False
    starts_now: bool = False

    def alias(self, name: str) -> Aggregate:
        """The same aggregate with ``name`` as its output column."""
        return replace(self, output=name)

    def where(self, condition: str) -> Aggregate:
        """The same aggregate over the rows whose boolean column ``condition`` is true (SQL's FILTER)."""
        return replace(self, condition=condition)

    def distinct(self) -> Aggregate:
        """The same aggregate over each value once, no matter how many rows have it (SQL's DISTINCT); with several
        columns, over each combination of values. Raises SchemaError without columns."""
        if not self.columns:
            raise SchemaError(
                f"{self.kind.name}() of all rows cannot be distinct; name the column whose values to count"
            )
        return replace(self, is_distinct=True)

    def starting_now(self) -> Aggregate:
        """The same aggregate, added to the stored state of a running job: over the rows from then on.

        For each key, or window, it is null until it sees a first row; the value of earlier rows is unknown. Keep the
        call as long as the state is kept. ``GroupAggregate`` and ``WindowAggregate`` support it, over insert-only
        inputs: for a retracted row it is unknown whether the aggregate has counted it. Raises SchemaError for a
        distinct aggregate.
        """
        return replace(self, starts_now=True)

    def __repr__(self) -> str:
        """The calls that make it."""
        text = call_text(self.kind.made_by, self.columns)
        text += ".distinct()" if self.is_distinct else ""
        text += f".where({self.condition!r})" if self.condition is not None else ""
        text += ".starting_now()" if self.starts_now else ""
        return text + (f".alias({self.output!r})" if self.output is not None else "")

    @property
    def text(self) -> str:
        """What it computes, without the name of its output."""
        text = call_text(self.kind.text, self.columns)
        text += ".distinct()" if self.is_distinct else ""
        return text + (f".where({self.condition!r})" if self.condition is not None else "")

    @property
    def column(self) -> str | None:
        """The first column that is aggregated; None for a count of rows."""
        return self.columns[0] if self.columns else None

    @property
    def name(self) -> str:
        """The output column: the alias, or ``sum_price`` for ``sum_("price")``, ``count`` for ``count()``."""
        parts = (self.kind.name, *(["distinct"] if self.is_distinct else []), *self.columns)
        return self.output or "_".join(parts)


class AggregateKind(ABC):
    """A kind of aggregate: its name and its parts."""

    name: str

    @property
    def made_by(self) -> str:
        """The function that makes such aggregates: with an underscore if Python or another function has that name."""
        return f"{self.name}_" if hasattr(builtins, self.name) or self.name == "rank" else self.name

    @property
    def text(self) -> str:
        """What it computes from its columns: the name and the other parameters."""
        more = [f"{name}={value!r}" for name, value in sorted(vars(self).items()) if name != "name"]
        return f"{self.name}[{', '.join(more)}]" if more else self.name

    @property
    def user_function(self) -> Function | None:
        """The user-defined function that it runs."""
        return None

    @property
    def is_bundled(self) -> bool:
        """Whether the function is a BundledAggregateFunction."""
        return False

    @property
    def makes_rows(self) -> bool:
        """Whether the function is a TableAggregateFunction."""
        return False

    @property
    def state_bytes(self) -> int:
        """Bytes of one state, if it is large from the first row on; else 0."""
        return 0

    def keeps_values(self, retract: bool) -> bool:
        """Whether its accumulator keeps a value per row; ``retract``: the input retracts rows."""
        return False

    def in_moving_frames(self, aggregate: Aggregate) -> Aggregate:
        """``aggregate``, of this kind, in the form for frames that rows leave in the order of their arrival."""
        return aggregate

    @abstractmethod
    def bind(self, binding: InputBinding) -> AggregateOutput:
        """The output over the parts that it gets from the binding. Raises SchemaError for columns that do not fit."""


@dataclass(frozen=True)
class AggregateOutput:
    """How to compute one result column (u) from the states of all parts; or the ``part`` whose values it is."""

    field: pa.Field
    values: Callable[[Sequence[State]], pa.Array] | None = None
    part: int | None = None


Source: TypeAlias = tuple[int, int] | None
"""The rows that a part receives: None for all; else those that count, as the index of the distinct values and the
index of their condition."""


class Parts:
    """The parts of all aggregates of an operator, each once, with the rows that each receives."""

    def __init__(
        self,
        schema: pa.Schema,
        owner: str,
        retract: bool,
        distincts: list[DistinctValues] | None = None,
    ) -> None:
        self.schema = schema
        self.owner = owner
        self.retract = retract
        self.all: list[Aggregator] = []
        self.sources: list[Source] = []
        self.distincts: list[DistinctValues] = [] if distincts is None else distincts
        self.float_sums: dict[int, int] = {}
        """Float sums (part index) to reset to zero when a count (part index) is zero, which clears rounding errors."""
        self._index: dict[str, int] = {}

    def add(self, part: Aggregator, source: Source = None) -> int:
        """The index of the part that has the state columns of ``part``; adds ``part`` if there is none."""
        index = self._index.setdefault(part.fields[0].name, len(self.all))
        if index == len(self.all):
            self.all.append(part)
            self.sources.append(source)
        return index

    def add_prefixed(self, parts: Parts, prefix: str) -> range:
        """Add parts that are not shared; return their indices. Their state columns start with ``prefix`` and are
        nullable: null if nothing has been counted."""
        added = range(len(self.all), len(self.all) + len(parts.all))
        for part in parts.all:
            part.prefix_fields(prefix)
            self.add(part)
        self.float_sums |= {added[total]: added[counter] for total, counter in parts.float_sums.items()}
        return added

    def distinct(self, columns: tuple[str, ...], condition: str | None) -> Source:
        """The source of rows with each value of the columns once."""
        found = next((values for values in self.distincts if values.columns == columns), None)
        if found is None:
            found = DistinctValues(columns, self.schema)
            self.distincts.append(found)
        return self.distincts.index(found), found.under(condition)


class InputBinding:
    """One aggregate, and the parts to which it adds its own."""

    def __init__(self, parts: Parts, aggregate: Aggregate) -> None:
        self._parts = parts
        self.aggregate = aggregate
        self.owner = parts.owner
        self.retract = parts.retract
        self.condition = aggregate.condition
        self._check_condition()

    @property
    def column(self) -> str:
        """The only column that is aggregated."""
        (column,) = self.aggregate.columns
        return column

    @property
    def input_type(self) -> pa.DataType:
        """The type of ``column``; SchemaError if there is no such column."""
        return self.type_of(self.column)

    def type_of(self, name: str) -> pa.DataType:
        """The type of an input column."""
        schema = self._parts.schema
        index = schema.get_field_index(name)
        if index < 0:
            raise SchemaError(
                f"{self.owner}: aggregate '{self.aggregate.name}' needs a column '{name}', which the input "
                f"does not have; its columns are: {', '.join(schema.names)}"
            )
        return schema.field(index).type

    def part(self, part: Aggregator) -> int:
        """The index of a part that receives the aggregate's rows."""
        return self._parts.add(part, self._source())

    def part_at(self, index: int) -> Aggregator:
        """The part with an index that ``part`` returned."""
        return self._parts.all[index]

    def plain_part(self, part: Aggregator) -> int:
        """The index of a part that receives all rows, for results that are the same with and without DISTINCT."""
        return self._parts.add(part)

    def counter(self) -> int:
        """The index of the count of the aggregate's values, of all rows if it has no column."""
        return self.part(self._count(self.aggregate.is_distinct))

    def plain_counter(self) -> int:
        """As ``counter``, of all values including repeated ones."""
        return self.plain_part(self._count(distinct=False))

    def total(self) -> tuple[int, Sum]:
        """The index and the part of the sum of the aggregate's values."""
        input_type = self.input_type
        kind = sum_type(input_type)
        if kind is None:
            raise self.wrong_type("an integer, float or decimal")
        is_float = pa.types.is_floating(kind)
        made = RetractableSum if is_float and self.retract else Sum
        part = made(self.owner, self.column, self.condition, input_type, self.aggregate.is_distinct)
        index = self.part(part)
        if is_float:
            self._parts.float_sums[index] = self.counter()
        return index, part

    def _count(self, distinct: bool) -> Count:
        return Count(self.owner, self.aggregate.columns, self.condition, distinct)

    def wrong_type(self, needed: str, column: str | None = None) -> SchemaError:
        """The error to raise if ``column`` (None: the only one) is not of a type ``needed``."""
        column = self.column if column is None else column
        return SchemaError(
            f"{self.owner}: aggregate '{self.aggregate.name}' needs {needed} but column '{column}' is "
            f"of type {self.type_of(column)}; cast it before the operator"
        )

    def refuse(self, what: str) -> SchemaError:
        """The error to raise for an aggregate that does not fit, with ``what`` after its name."""
        return SchemaError(f"{self.owner}: aggregate '{self.aggregate.name}' {what}")

    def _source(self) -> Source:
        if not self.aggregate.is_distinct:
            return None
        return self._parts.distinct(self.aggregate.columns, self.condition)

    def _check_condition(self) -> None:
        if self.condition is not None:
            condition_type = self.type_of(self.condition)
            if not pa.types.is_boolean(condition_type):
                raise SchemaError(
                    f"{self.owner}: where('{self.condition}') of aggregate '{self.aggregate.name}' needs "
                    f"a boolean column, not {condition_type}; compute the condition before the operator"
                )


def check_aggregates(aggregates: object, owner: str, values: bool = True, tables: bool = False) -> None:
    """Raise SchemaError unless ``aggregates`` is a list of aggregates of the allowed kinds: ``values``, or a single
    function that makes rows (``tables``)."""
    if not isinstance(aggregates, Sequence) or isinstance(aggregates, str):
        raise SchemaError(f"{owner}: aggregates is {aggregates!r}; give a list, even for a single aggregate")
    for aggregate in aggregates:
        if not isinstance(aggregate, Aggregate):
            raise SchemaError(
                f"{owner}: {aggregate!r} is not an aggregate; create one with count, sum_ and so on, or with udaf"
                if values
                else f"{owner}: {aggregate!r} is not an aggregate; create one with udtaf"
            )
        if not (tables if aggregate.kind.makes_rows else values):
            raise SchemaError(
                f"{owner}: '{aggregate.name}' returns rows; use it in GroupTableAggregate or in windows"
                if aggregate.kind.makes_rows
                else (
                    f"{owner}: '{aggregate.name}' does not return rows; give a function of udtaf, or use "
                    "GroupAggregate"
                )
            )
        if aggregate.kind.makes_rows and len(aggregates) > 1:
            raise SchemaError(
                f"{owner}: '{aggregate.name}' returns rows, so it must be the only aggregate; give the others to a "
                "second operator"
            )


def columns_of(aggregates: Sequence[Aggregate]) -> set[str]:
    """The columns that ``aggregates`` read."""
    conditions = {aggregate.condition for aggregate in aggregates if aggregate.condition is not None}
    return conditions | {name for aggregate in aggregates for name in aggregate.columns}


def state_bytes_of(aggregates: Sequence[Aggregate]) -> int:
    """Bytes of a state of ``aggregates``, as far as they are known in advance."""
    return sum(aggregate.kind.state_bytes for aggregate in aggregates)


def functions_of(aggregates: Sequence[Aggregate]) -> list[Function]:
    """The user-defined functions that ``aggregates`` run, each once."""
    functions = [one.kind.user_function for one in aggregates]
    return list({id(function): function for function in functions if function is not None}.values())
