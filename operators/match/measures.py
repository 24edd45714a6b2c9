"""MEASURES: the output columns of a match.

Owns: ``first``, ``last``, ``match_number``; ``Measures``, all of them bound to an input, and ``Matched``, the rows of
matches.
Invariant: every measure but the match number depends only on the rows of its match.
Must not import anything of ``asyncstate`` but ``errors``, ``futures`` and ``operator``.

Source: FIRST, LAST and logical offsets of Flink's MATCH_RECOGNIZE; aggregates as in other operators, with the variable
in ``where``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from asyncstate.errors import SchemaError
from asyncstate.futures import StateFuture
from asyncstate.operator import BundleContext, InputSpec, OperatorContext

from ..aggregate.aggregate_calls import Aggregate, columns_of
from ..aggregate.aggregate_plan import AggregatePlan, Changed
from ..aggregate.aggregator import KeyedRows, naming
from ..aggregate.distinct import first_of_values
from ..core.arrays import Int64Array
from ..core.operator_checks import check_number
from ..core.segments import Groups
from .automaton import Automaton


@dataclass(frozen=True, repr=False)
class ColumnMeasure:
    """The value of ``column`` in one row of the match: made by ``first`` and ``last``."""

    column: str
    variable: str | None
    offset: int
    backwards: bool

    def __repr__(self) -> str:
        more = [repr(self.variable)] if self.variable is not None else []
        more += [f"offset={self.offset}"] if self.offset else []
        return f"{'last' if self.backwards else 'first'}({', '.join([repr(self.column), *more])})"


@dataclass(frozen=True, repr=False)
class MatchNumber:
    """The number of matches of its key before a match, plus one."""

    def __repr__(self) -> str:
        return "match_number()"


Measure = Aggregate | ColumnMeasure | MatchNumber


def first(column: str, variable: str | None = None, offset: int = 0) -> ColumnMeasure:
    """``column`` of the first row of ``variable`` (None: of the match), or of the one ``offset`` rows of it later;
    null if there is none. SQL's ``FIRST(variable.column, offset)``."""
    return ColumnMeasure(column, variable, offset, backwards=False)


def last(column: str, variable: str | None = None, offset: int = 0) -> ColumnMeasure:
    """``column`` of the last row of ``variable`` (None: of the match), or of the one ``offset`` rows of it earlier;
    null if there is none. SQL's ``LAST(variable.column, offset)``, and ``variable.column`` alone."""
    return ColumnMeasure(column, variable, offset, backwards=True)


def match_number() -> MatchNumber:
    """The number of the match among those of its key, from 1: int64. For it the key's count of matches is stored
    forever."""
    return MatchNumber()


class Matched(NamedTuple):
    """m matches over n rows, which may share rows. ``rows`` (n): the indices of their rows, match by match; ``starts``
    (m): where each match begins among these; ``variables`` (n): the variable (index) of each."""

    rows: Int64Array
    starts: Int64Array
    variables: Int64Array

    @property
    def owners(self) -> Int64Array:
        """The match of each row (n)."""
        return np.repeat(np.arange(len(self.starts)), np.diff(self.starts, append=len(self.rows)))


class Measures:
    """``measures`` by the names of their output columns. Raises SchemaError naming ``owner`` if one does not fit."""

    def __init__(
        self, measures: Mapping[str, Measure], automaton: Automaton, spec: InputSpec, owner: str
    ) -> None:
        self._owner = owner
        self._automaton = automaton
        self._input = spec
        self._columns = {name: one for name, one in measures.items() if isinstance(one, ColumnMeasure)}
        self._numbers = [name for name, one in measures.items() if isinstance(one, MatchNumber)]
        aggregates = aggregates_of(measures)
        for name, one in self._columns.items():
            self._check_column(name, one)
        conditions = {one.condition for one in aggregates if one.condition is not None}
        self._flags = [name for name in automaton.variables if name in conditions]
        for name in sorted(conditions):
            self._check_condition(name)
        fields = [*spec.schema, *(pa.field(name, pa.bool_(), nullable=False) for name in self._flags)]
        self._plan = AggregatePlan(aggregates, pa.schema(fields), owner)
        self.columns = {one.column for one in self._columns.values()} | (
            columns_of(aggregates) - set(self._flags)
        )
        """The columns of the input that measures read."""
        self.fields = [self._field(name, one) for name, one in measures.items()]

    @property
    def counts_matches(self) -> bool:
        """Whether a measure needs the number of a match."""
        return bool(self._numbers)

    def open(self, context: OperatorContext) -> None:
        """Open user-defined functions."""
        self._plan.open_functions(context)

    def async_values(
        self,
        batch: pa.RecordBatch,
        matched: Matched,
        numbers: Int64Array | None,
        keys: Sequence[pa.Array],
        ctx: BundleContext,
    ) -> StateFuture[list[pa.Array]]:
        """A future of one column (m) per measure. ``batch`` has ``columns``, of the rows whose indices ``matched`` has;
        ``numbers`` (m): those of the matches; ``keys`` (m each): their key columns."""
        taken = batch.take(pa.array(matched.rows))
        found = {name: self._column(one, taken, matched) for name, one in self._columns.items()}
        for name in self._numbers:
            assert numbers is not None, "the caller counts matches where it is asked to"
            found[name] = pa.array(numbers)
        return self._async_aggregates(taken, matched, keys, ctx).then_apply(
            lambda aggregates: [(found | aggregates)[field.name] for field in self.fields]
        )

    def _column(self, measure: ColumnMeasure, taken: pa.RecordBatch, matched: Matched) -> pa.Array:
        at = np.arange(len(matched.rows))
        if measure.variable is not None:
            at = np.flatnonzero(matched.variables == self._automaton.variables.index(measure.variable))
        counts = np.bincount(matched.owners[at], minlength=len(matched.starts))
        ends = np.cumsum(counts)
        wanted = ends - 1 - measure.offset if measure.backwards else ends - counts + measure.offset
        there = measure.offset < counts
        if not there.any():
            return pa.nulls(len(counts), taken.column(measure.column).type)
        rows = at[np.where(there, wanted, 0)]
        return taken.column(measure.column).take(pa.array(rows, mask=~there))

    def _async_aggregates(
        self, taken: pa.RecordBatch, matched: Matched, keys: Sequence[pa.Array], ctx: BundleContext
    ) -> StateFuture[dict[str, pa.Array]]:
        plan = self._plan
        for name in self._flags:
            flag = matched.variables == self._automaton.variables.index(name)
            taken = taken.append_column(pa.field(name, pa.bool_(), nullable=False), pa.array(flag))
        rows = KeyedRows(taken, Groups(np.arange(len(matched.rows)), matched.starts), valued=True)
        sources = plan.sources(rows, [first_of_values(one, taken, matched.owners) for one in plan.distincts])
        nothing = [pa.nulls(len(matched.starts), field.type) for field in plan.state_schema]
        names = [field.name for field in plan.result_fields]
        with naming(keys):
            changed = plan.async_update(nothing, sources, plan.prepare(sources), ctx)

        def results(done: Changed) -> dict[str, pa.Array]:
            with naming(keys):
                return dict(zip(names, plan.results(done.states, done.after), strict=True))

        return changed.then_apply(results)

    # -- checks ----------------------------------------------------------------------------------------------

    def _field(self, name: str, measure: Measure) -> pa.Field:
        if isinstance(measure, ColumnMeasure):
            return pa.field(name, self._input.column(measure.column).type)
        if isinstance(measure, MatchNumber):
            return pa.field(name, pa.int64(), nullable=False)
        return next(field for field in self._plan.result_fields if field.name == name)

    def _check_column(self, name: str, measure: ColumnMeasure) -> None:
        owner = f"{self._owner}, measure '{name}'"
        check_number(measure.offset, 0, "offset", owner)
        if measure.column not in self._input.schema.names:
            raise SchemaError(
                f"{owner}: {self._input.name} has no column '{measure.column}'; its columns are: "
                f"{', '.join(self._input.schema.names)}"
            )
        if measure.variable is not None and measure.variable not in self._automaton.variables:
            raise SchemaError(
                f"{owner}: pattern '{self._automaton.pattern}' has no variable '{measure.variable}'; its variables "
                f"are: {', '.join(self._automaton.variables)}"
            )

    def _check_condition(self, name: str) -> None:
        is_column = name in self._input.schema.names
        if name in self._flags and is_column:
            raise SchemaError(
                f"{self._owner}: where('{name}') is ambiguous: both a column and a variable have that name; rename "
                "one of them"
            )
        if name not in self._flags and not is_column:
            raise SchemaError(
                f"{self._owner}: where('{name}'): there is no such boolean column, and pattern "
                f"'{self._automaton.pattern}' has no variable '{name}'; its variables are: "
                f"{', '.join(self._automaton.variables)}"
            )


def check_measures(measures: object, owner: str) -> None:
    """Raise SchemaError for anything but a mapping of names to measures."""
    if not isinstance(measures, Mapping):
        raise SchemaError(
            f"{owner}: measures is {measures!r}; give a dict of measures by the names of their columns"
        )
    for name, measure in measures.items():
        if not isinstance(name, str) or not isinstance(measure, Measure):
            raise SchemaError(
                f"{owner}: measure {name!r} is {measure!r}; give first(...), last(...), match_number() or an "
                "aggregate such as sum_('price').where('A')"
            )


def aggregates_of(measures: Mapping[str, Measure]) -> list[Aggregate]:
    """The aggregates among ``measures``, with the same names."""
    return [one.alias(name) for name, one in measures.items() if isinstance(one, Aggregate)]
