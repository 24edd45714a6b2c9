"""The aggregates of an OverAggregate bound to its input, and their values for rows that are ordered by key.

Owns: ``OverPlan``.
Invariant: a value depends only on the rows of its frame and their order.
Must not import anything of ``asyncstate`` but ``futures``, ``operator`` and ``state``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from asyncstate.codec import KeyBatch
from asyncstate.futures import StateFuture, combine_all, completed_future
from asyncstate.operator import BundleContext, InputSpec, OperatorContext
from asyncstate.state.columnar.state_columns import ColumnState

from ..aggregate.aggregate_calls import Aggregate
from ..aggregate.aggregate_plan import AggregatePlan
from ..aggregate.aggregator import GroupOverflowError, KeyedRows, State, chosen_rows, naming
from ..aggregate.distinct import DistinctValues, first_of_values
from ..aggregate.user.bundled import BundledAggregator
from ..aggregate.user.user_function import Frames, UserAggregator
from ..core.arrays import Int8Array, Int64Array, count_up, row_ids, take_rows
from ..core.operator_checks import check_distinct_names
from ..core.segments import Groups
from .frames import Frame, Ordered, reduce, reduce_distinct, replaced, rows_before, scan
from .over_functions import PlaceFunction

Part = UserAggregator | BundledAggregator

_EXPANDED_ROWS: Final = 1 << 18
"""Rows per step if frames are computed one by one; a single frame may have more."""


class Values(NamedTuple):
    """One column per aggregate (m values, one per frame; None for place functions), and the states (u) after all
    rows."""

    columns: list[pa.Array | None]
    states: State


class OverPlan:
    """Evaluates built-in aggregates, user-defined functions and place functions, each kind separately."""

    def __init__(self, aggregates: Sequence[Aggregate], frame: Frame, spec: InputSpec, owner: str) -> None:
        self._frame = frame
        if frame.kind != "unbounded":
            aggregates = [one.kind.in_moving_frames(one) for one in aggregates]
        self.distincts: list[DistinctValues] = []
        """The sets of values in which each value counts once."""
        kinds = [aggregate.kind for aggregate in aggregates]
        self.places = {at: kind for at, kind in enumerate(kinds) if isinstance(kind, PlaceFunction)}
        self.place_columns = {at: aggregates[at].column for at in self.places}
        users = {at: one for at, one in enumerate(aggregates) if one.kind.user_function is not None}
        merging = [at for at in range(len(aggregates)) if at not in self.places and at not in users]
        self._merging_at = merging
        bound = partial(AggregatePlan, schema=spec.schema, owner=owner, distincts=self.distincts)
        self.merging = bound([aggregates[at] for at in merging])
        moves = frame.kind != "unbounded"
        self._plans = {at: bound([one], retract=moves) for at, one in users.items()}
        self.users: dict[int, Part] = {at: _own_part(plan) for at, plan in self._plans.items()}
        fields: list[pa.Field] = [
            self.places[at].field(one, spec.schema, owner)
            if at in self.places
            else self._plans[at].result_fields[0]
            if at in users
            else self.merging.result_fields[merging.index(at)]
            for at, one in enumerate(aggregates)
        ]
        self.result_fields = fields
        check_distinct_names([*spec.schema.names, *(field.name for field in fields)], owner)
        stored = [field for part in self.users.values() for field in part.fields]
        self.state_schema = pa.schema([*self.merging.state_schema, *stored])
        stops = np.cumsum(
            [len(self.merging.state_schema), *(len(part.fields) for part in self.users.values())]
        )
        self._slices = [slice(start, stop) for start, stop in zip([0, *stops[:-1]], stops, strict=True)]

    def open(self, context: OperatorContext, stored: bool) -> None:
        """Open the user-defined functions; ``stored``: their accumulators are kept in state."""
        for plan in self._plans.values():
            if stored:
                plan.open(context)
            else:
                plan.open_functions(context)

    def remove(self, keys: KeyBatch) -> None:
        """Remove the additional state of ``keys``."""
        for part in self.users.values():
            part.remove(keys)

    def expire_with(self, state: ColumnState) -> None:
        """Expire the additional state together with the rows of the same keys in ``state``."""
        for part in self.users.values():
            part.expire_with(state)

    def nothing(self, count: int) -> State:
        """The states of ``count`` keys without rows."""
        return [pa.nulls(count, field.type) for field in self.state_schema]

    def of_nothing(self) -> list[pa.Array | None]:
        """One value per aggregate: that of an empty frame; None for place functions."""
        built_in = self.merging.results([pa.nulls(1, field.type) for field in self.merging.state_schema])
        found = dict(zip(self._merging_at, built_in, strict=True))
        for at, plan in self._plans.items():
            (found[at],) = plan.results([pa.nulls(1, field.type) for field in plan.state_schema])
        return [found.get(at) for at in range(len(self.result_fields))]

    def async_values(
        self,
        rows: Ordered,
        frames: Frames,
        old: State,
        ctx: BundleContext,
        shown: Sequence[Sequence[Int8Array]] | None = None,
    ) -> StateFuture[Values]:
        """A future of the aggregates of the frames; ``old`` (u): the states of all earlier rows, for unbounded frames.

        ``shown``: for each of ``distincts``, and each of its conditions, the signs (n): +1 for the first row of a
        value, 0 for the others. None: there are no earlier rows.
        """
        groups = Groups(np.arange(rows.batch.num_rows), rows.starts[:-1])
        keyed = KeyedRows(rows.batch, groups, None, rows.keys)
        moves = self._frame.kind != "unbounded"
        if shown is None and not moves:
            shown = [first_of_values(one, rows.batch, rows.owners) for one in self.distincts]
        ids = [self._ids(one, rows) for one in self.distincts] if moves else []
        built_in, states = self._built_in(keyed, rows, frames, old[self._slices[0]], shown or (), ids)
        slid = []
        for (at, part), columns in zip(self.users.items(), self._slices[1:], strict=True):
            plan = self._plans[at]
            number = plan.parts.index(part)
            source = plan.value_sources[number]
            own = keyed if moves else plan.sources(keyed, shown or ())[number]
            equal = ids[source[0]] if moves and source is not None else None
            slid.append(part.async_slide(old[columns], own, frames, ctx, equal))

        def together(found: Sequence[tuple[pa.Array, State]]) -> Values:
            columns: dict[int, pa.Array] = dict(zip(self._merging_at, built_in, strict=True))
            columns |= dict(zip(self.users, (values for values, _ in found), strict=True))
            after = [*states, *(column for _, state in found for column in state)]
            return Values([columns.get(at) for at in range(len(self.result_fields))], after)

        return combine_all(slid).then_apply(together) if slid else completed_future(together([]))

    def _built_in(
        self,
        keyed: KeyedRows,
        rows: Ordered,
        frames: Frames,
        old: State,
        shown: Sequence[Sequence[Int8Array]],
        ids: Sequence[Int64Array],
    ) -> tuple[list[pa.Array], State]:
        """The built-in aggregates, and their states after all rows (u).

        An intermediate result may overflow although the results of all frames fit. The computation then continues frame
        by frame, or row by row, which also identifies the key of a result that does not fit.
        """
        try:
            return self._merged(keyed, rows, frames, old, shown, ids)
        except GroupOverflowError:
            if self._frame.kind != "unbounded":
                return self._frame_by_frame(rows, frames, ids), old
            return self._row_by_row(keyed, rows, frames, old, shown)

    def _frame_by_frame(self, rows: Ordered, frames: Frames, ids: Sequence[Int64Array]) -> list[pa.Array]:
        """The built-in aggregates of moving frames, each computed only from its rows."""
        plan = self.merging
        lifted, owners = plan.lift(rows.batch), rows.owners
        before = {
            source: rows_before(
                ids[source[0]],
                chosen_rows(rows.batch, (), self.distincts[source[0]].conditions[source[1]]),
            )
            for source in plan.value_sources
            if source is not None
        }
        sizes = frames.last - frames.first + 1
        turns = np.flatnonzero(np.diff(np.cumsum(sizes) // _EXPANDED_ROWS)) + 1
        found: list[list[pa.Array]] = []
        for chosen in np.split(np.arange(len(sizes)), turns):
            groups = Groups.of_ids(np.repeat(np.arange(len(chosen)), sizes[chosen]), len(chosen))
            at = np.repeat(frames.first[chosen], sizes[chosen]) + count_up(sizes[chosen])
            begins = np.repeat(frames.first[chosen], sizes[chosen])
            counts = [
                None if source is None else before[source][at] < begins for source in plan.value_sources
            ]
            with naming(rows.names, owners[frames.first[chosen]]):
                found.append(plan.results(plan.combine_some(take_rows(lifted, at), counts, groups)))
        return [pa.concat_arrays(column) for column in zip(*found, strict=True)]

    def _row_by_row(
        self,
        keyed: KeyedRows,
        rows: Ordered,
        frames: Frames,
        old: State,
        shown: Sequence[Sequence[Int8Array]],
    ) -> tuple[list[pa.Array], State]:
        """The built-in aggregates of frames that begin with the first row of a key, and their states (u)."""
        plan = self.merging
        lifted, state = plan.lift_sources(plan.sources(keyed, shown)), list(old)
        running = [pa.nulls(rows.batch.num_rows, column.type) for column in lifted]
        for place in range(int(rows.sizes.max(initial=0))):
            keys = np.flatnonzero(rows.sizes > place)
            at = rows.starts[keys] + place
            with naming(rows.names, keys):
                new = plan.merge(take_rows(state, keys), take_rows(lifted, at))
            state, running = replaced(state, keys, new), replaced(running, at, new)
        with naming(rows.names, rows.owners[frames.last]):
            return plan.results(take_rows(running, frames.last)), state

    def _merged(
        self,
        keyed: KeyedRows,
        rows: Ordered,
        frames: Frames,
        old: State,
        shown: Sequence[Sequence[Int8Array]],
        ids: Sequence[Int64Array],
    ) -> tuple[list[pa.Array], State]:
        """As ``_built_in``, vectorised over many rows and all keys."""
        plan = self.merging
        if self._frame.kind != "unbounded":
            lifted = plan.lift(rows.batch)
            reduced = reduce(lifted, rows.starts, frames.first, frames.last, plan.merge)
            for source in set(plan.value_sources) - {None}:
                assert source is not None
                self._reduce_distinct(source, reduced, lifted, rows, frames, ids[source[0]])
            return plan.results(reduced), old
        lifted = plan.lift_sources(plan.sources(keyed, shown))
        running = scan(lifted, rows.starts, plan.merge)
        running = plan.merge(take_rows(old, rows.owners), running)
        return plan.results(take_rows(running, frames.last)), take_rows(running, rows.starts[1:] - 1)

    def _reduce_distinct(
        self,
        source: tuple[int, int],
        reduced: State,
        lifted: State,
        rows: Ordered,
        frames: Frames,
        ids: Int64Array,
    ) -> None:
        """Write the states of the parts over the distinct values of ``source`` to ``reduced``."""
        parts = self.merging.parts_over(source)
        condition = self.distincts[source[0]].conditions[source[1]]
        before = rows_before(ids, chosen_rows(rows.batch, (), condition))
        stops = np.cumsum([len(part.fields) for part, _ in parts]).tolist()
        own = [slice(start, stop) for start, stop in zip([0, *stops[:-1]], stops, strict=True)]

        def merge(states: State, more: State) -> State:
            pairs = zip(parts, own, strict=True)
            return [column for (part, _), at in pairs for column in part.merge(states[at], more[at])]

        states = [column for _, columns in parts for column in lifted[columns]]
        found = reduce_distinct(states, before, frames.first, frames.last, merge)
        for (_, columns), at in zip(parts, own, strict=True):
            reduced[columns] = found[at]

    def _ids(self, values: DistinctValues, rows: Ordered) -> Int64Array:
        """Ids (n), equal for rows of a key with equal ``values``."""
        return row_ids([rows.batch.column(name) for name in values.columns], rows.owners)


def _own_part(plan: AggregatePlan) -> Part:
    return next(part for part in plan.parts if isinstance(part, UserAggregator | BundledAggregator))
