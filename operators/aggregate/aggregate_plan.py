"""Aggregates bound to an input: the parts that compute them, their state columns, and the steps over those columns.

Owns: ``AggregatePlan``.
Invariant: every step is a step of each part; the plan does not depend on the kind of a part.
Must not import anything of ``asyncstate`` but ``futures`` and ``operator``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from asyncstate.codec import KeyBatch
from asyncstate.futures import StateFuture, combine_all, completed_future
from asyncstate.operator import BundleContext, OperatorContext

from ..core.arrays import BoolArray, Int8Array
from ..core.operator_checks import check_distinct_names
from ..core.segments import Groups
from .accumulators import Count, Extreme
from .aggregate_calls import (
    Aggregate,
    AggregateOutput,
    InputBinding,
    Parts,
    Source,
    functions_of,
    state_bytes_of,
)
from .aggregates import counts_of, null_where
from .aggregator import KeyedRows, MergingAggregator, State, Updated
from .distinct import DistinctValues
from .retractable_minmax import Multiset


class Changed(NamedTuple):
    """The states (u) after rows, and the values before and after, by part index, of parts that computed them."""

    states: State
    before: Mapping[int, pa.Array]
    after: Mapping[int, pa.Array]


class AggregatePlan:
    """Aggregates bound to an input schema: state columns and the vectorised steps over them.

    ``update`` adds rows to states, ``combine`` reduces n states to one per group, ``results`` computes the aggregates.
    A set of states is one array per field of ``state_schema``; column 0, ``count1``, counts the rows. With
    ``retract``, minima and maxima stay unchanged and the caller updates them with ``multisets``, one per distinct
    (column, condition). ``distincts`` are the sets of values in which each value counts once; none if rows arrive as
    states (``gathered``). ``value_sources`` names for each part the set whose rows it receives.

    Raises SchemaError, which names ``owner`` and the column, for a column that does not fit.
    """

    def __init__(
        self,
        aggregates: Sequence[Aggregate],
        schema: pa.Schema,
        owner: str,
        retract: bool = False,
        gathered: bool = False,
        distincts: list[DistinctValues] | None = None,
    ) -> None:
        """``distincts``: those of other plans over the same rows; this plan adds its own to them."""
        parts = Parts(schema, owner, retract, distincts)
        parts.add(Count(owner, None, None))
        outputs: dict[int, AggregateOutput] = {}
        # Added state columns come after the stored ones.
        for at in sorted(range(len(aggregates)), key=lambda at: aggregates[at].starts_now):
            aggregate = aggregates[at]
            late = aggregate.starts_now
            outputs[at] = (
                _late(parts, aggregate) if late else aggregate.kind.bind(InputBinding(parts, aggregate))
            )
        self._outputs = [outputs[at] for at in range(len(aggregates))]
        self._functions = functions_of(aggregates)
        self.state_bytes = state_bytes_of(aggregates)
        """Bytes of a state, as far as they are known in advance."""
        self._retract = retract
        self.parts = parts.all
        self.value_sources = parts.sources
        self._float_sums = parts.float_sums
        self.distincts = [] if gathered else parts.distincts
        stops = np.cumsum([len(part.fields) for part in self.parts]).tolist()
        self._columns = [
            slice(stop - len(part.fields), stop) for part, stop in zip(self.parts, stops, strict=True)
        ]
        self.state_schema = pa.schema([field for part in self.parts for field in part.fields])
        self.may_lack = frozenset[str]().union(*(part.may_lack for part in self.parts))
        self.result_fields = [output.field for output in self._outputs]
        self.multisets: list[Multiset] = self._multisets(parts) if retract else []
        check_distinct_names([field.name for field in self.result_fields], owner)

    def open(self, context: OperatorContext, time_first: bool = False) -> None:
        """Open the user-defined functions and declare the additional state of the parts; ``time_first`` if keys have
        namespaces."""
        for function in self._functions:
            function.open(context)
        for part in self.parts:
            part.open(context, time_first)

    def open_functions(self, context: OperatorContext) -> None:
        """As ``open`` if no state is kept: states start empty with each call, and views are in memory."""
        for function in self._functions:
            function.open(context)
        for part in self.parts:
            part.begin_anew()

    # -- steps ---------------------------------------------------------------------------------------------

    @property
    def waits(self) -> bool:
        """Whether updates depend on additional state: of distinct values or of a changelog."""
        return self._retract or bool(self.distincts)

    @property
    def shares_slices(self) -> bool:
        """Whether the states of a window's slices can be merged into the state of the window."""
        return not self.distincts and not self.keeps_more and all(part.merges for part in self.parts)

    @property
    def lifts(self) -> bool:
        """Whether each row has a state: ``lift`` and ``merge`` are available."""
        return not self.distincts and all(isinstance(part, MergingAggregator) for part in self.parts)

    @property
    def takes_back(self) -> bool:
        """Whether rows can be retracted with the states alone; extremes also need logs of all values."""
        return all(part.retracts and not isinstance(part, Extreme) for part in self.parts)

    def sources(self, rows: KeyedRows, distinct: Sequence[Sequence[Int8Array]] = ()) -> list[KeyedRows]:
        """The rows that each part receives: ``distinct`` has the signs (n) of the rows that count, by the index of the
        distinct values and of their condition."""
        return [
            rows if source is None else rows._replace(signs=distinct[source[0]][source[1]])
            for source in self.value_sources
        ]

    def prepare(self, sources: Sequence[KeyedRows]) -> list[Any]:
        """Do the work on the rows that does not need the states of their keys; pass the result to ``async_update``."""
        return [part.prepare(rows) for part, rows in zip(self.parts, sources, strict=True)]

    def async_update(
        self, states: State, sources: Sequence[KeyedRows], prepared: Sequence[Any], ctx: BundleContext
    ) -> StateFuture[Changed]:
        """A future of the states (u) after the rows."""
        updates = [
            part.update(states[columns], rows, ready, ctx)
            for part, columns, rows, ready in zip(self.parts, self._columns, sources, prepared, strict=True)
        ]
        if not any(isinstance(update, StateFuture) for update in updates):
            return completed_future(self._changed(updates))
        return combine_all([_as_future(update) for update in updates]).then_apply(self._changed)

    def _changed(self, updates: Sequence[Any]) -> Changed:
        states = self._settled([column for update in updates for column in update.state])
        known = list(enumerate(updates))
        return Changed(
            states,
            {number: update.before for number, update in known if update.before is not None},
            {number: update.after for number, update in known if update.after is not None},
        )

    def combine(self, states: State, groups: Groups) -> State:
        """n states reduced to one per group (u)."""
        pairs = zip(self.parts, self._columns, strict=True)
        return [column for part, columns in pairs for column in part.combine(states[columns], groups)]

    def combine_some(self, states: State, counts: Sequence[BoolArray | None], groups: Groups) -> State:
        """As ``combine``; ``counts`` (n) for each part: the states that count, None: all."""
        found: State = []
        for part, columns, counted in zip(self._merging(), self._columns, counts, strict=True):
            own = states[columns]
            if counted is not None:
                own = [pc.if_else(pa.array(counted), column, pa.scalar(None, column.type)) for column in own]
            found += part.combine(own, groups)
        return self._settled(found)

    def lift(self, batch: pa.RecordBatch, signs: Int8Array | None = None) -> State:
        """The states of n single rows; ``signs`` is +1, -1 or 0 (ignored) per row, None for all +1."""
        return [column for part in self._merging() for column in part.lift(batch, signs)]

    def lift_sources(self, sources: Sequence[KeyedRows]) -> State:
        """As ``lift``, for the rows that ``sources`` has for each part."""
        pairs = zip(self._merging(), sources, strict=True)
        return [column for part, rows in pairs for column in part.lift(rows.batch, rows.signs)]

    def parts_over(self, source: Source) -> list[tuple[MergingAggregator, slice]]:
        """The parts that receive the rows of ``source``, each with the slice of its state columns."""
        parts = zip(self._merging(), self._columns, self.value_sources, strict=True)
        return [(part, columns) for part, columns, own in parts if own == source]

    def merge(self, states: State, more: State) -> State:
        """Two sets of states of the same u groups merged into one, where ``states`` are those of earlier rows; a null
        state adds nothing."""
        pairs = zip(self._merging(), self._columns, strict=True)
        merged = [part.merge(states[columns], more[columns]) for part, columns in pairs]
        return self._settled([column for columns in merged for column in columns])

    def results(
        self,
        states: Sequence[pa.Array],
        known: Mapping[int, pa.Array] | None = None,
        keys: KeyBatch | None = None,
    ) -> list[pa.Array]:
        """The aggregates' columns (u), in the order given.

        ``known`` values of parts are used as they are. ``keys`` (u): the keys of the states, needed with
        ``keeps_more`` if values are not known.
        """
        split = [list(states[columns]) for columns in self._columns]
        known = {} if known is None else known

        def column(output: AggregateOutput) -> pa.Array:
            if output.values is not None:
                return output.values(split)
            assert output.part is not None
            if output.part in known:
                return known[output.part]
            return self.parts[output.part].values(split[output.part], keys)

        return list(map(column, self._outputs))

    @property
    def keeps_more(self) -> bool:
        """Whether parts keep additional state, such as the views of functions."""
        return any(part.keeps_more for part in self.parts)

    def _merging(self) -> list[MergingAggregator]:
        parts = [part for part in self.parts if isinstance(part, MergingAggregator)]
        assert len(parts) == len(self.parts), "asked of a plan with functions of the user's own"
        return parts

    def _settled(self, states: State) -> State:
        for total, counter in self._float_sums.items():
            (place, *others), counts = self._places(total), states[self._columns[counter].start]
            empty = counts.to_numpy() == 0
            if empty.any():
                states[place] = pa.array(np.where(empty, 0.0, states[place].to_numpy()))
                for other in others:
                    states[other] = pc.if_else(pa.array(empty), pa.scalar(None, pa.int64()), states[other])
        return states

    def _places(self, part: int) -> range:
        return range(self._columns[part].start, self._columns[part].stop)

    def _multisets(self, parts: Parts) -> list[Multiset]:
        found: dict[tuple[str | None, str | None], Multiset] = {}
        for part, columns in zip(self.parts, self._columns, strict=True):
            if isinstance(part, Extreme):
                counter = self._columns[parts.add(Count(part.owner, part.column, part.condition))].start
                multiset = found.setdefault((part.column, part.condition), Multiset(part, counter))
                multiset.extremes.append((columns.start, part.largest))
        return list(found.values())


def _late(parts: Parts, aggregate: Aggregate) -> AggregateOutput:
    """An aggregate with separate parts, which older states do not have; they come after a count of the rows that it has
    seen. Raises SchemaError for an aggregate that cannot start late."""
    own = Parts(parts.schema, parts.owner, parts.retract)
    own.add(Count(parts.owner, None, None))
    binding = InputBinding(own, aggregate)
    output = aggregate.kind.bind(binding)
    if parts.retract:
        raise binding.refuse(
            "has starting_now(), but the input is a changelog, and a retracted row may not have been counted; give "
            "the operator a new uid"
        )
    if own.distincts or any(part.keeps_more for part in own.all):
        raise binding.refuse(
            "has starting_now(), which neither distinct() nor a function with views supports"
        )
    at = parts.add_prefixed(own, f"{aggregate.name}:")
    read, part = output.values, output.part or 0

    def values(states: Sequence[State]) -> pa.Array:
        mine = states[at.start : at.stop]
        found = own.all[part].values(mine[part]) if read is None else read(mine)
        return null_where(found, counts_of(mine[0]) == 0)

    return AggregateOutput(output.field.with_nullable(True), values)


def _as_future(update: Updated | StateFuture[Updated]) -> StateFuture[Updated]:
    return update if isinstance(update, StateFuture) else completed_future(update)
