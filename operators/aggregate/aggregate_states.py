"""The states of aggregates per key: read, updated by a bundle and written, with all additional state of aggregates.

Owns: ``AggregateStates`` and ``Addition``, the rows of a bundle that change states.
Invariant: a key (or key and namespace) whose count of rows is 0 has no state and no additional state: no log of values,
no distinct values, no views.
Must not import anything of ``asyncstate`` but ``codec``, ``futures``, ``operator`` and ``state``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from asyncstate.codec import KeyBatch
from asyncstate.futures import StateFuture, combine_all
from asyncstate.operator import Bundle, BundleContext, OperatorContext
from asyncstate.state.columnar.list_blocks import ListHeads
from asyncstate.state.columnar.state_columns import Columns, ColumnState

from ..core.arrays import BoolArray, Int8Array, Int64Array
from ..core.segments import Groups, content_of, without_missing
from .aggregate_plan import AggregatePlan, Changed
from .aggregator import KeyedRows, State, naming
from .distinct import DistinctState, ReadValues
from .retractable_minmax import MultisetState


class Addition(NamedTuple):
    """Rows (n) to add to, or retract from, the states of ``keys`` (u), and their positions ``at`` (n) in ``bundle``.

    ``counted`` (n): which rows the metric of unmatched retractions includes if they match no row; None: all.
    ``stamps`` (u): those of states with a ttl.
    """

    batch: pa.RecordBatch
    keys: KeyBatch
    accumulate: BoolArray
    bundle: Bundle
    at: Int64Array
    counted: BoolArray | None = None
    stamps: Int64Array | None = None

    @staticmethod
    def of(bundle: Bundle, keys: KeyBatch | None = None, stamps: Int64Array | None = None) -> Addition:
        """All rows of a bundle; ``keys``: the keys with namespaces, if there are any."""
        keys = bundle.keys if keys is None else keys
        at = np.arange(bundle.num_rows)
        return Addition(bundle.batch, keys, bundle.accumulate, bundle, at, None, stamps)


class AggregateChange(NamedTuple):
    """The states of the keys (u) before the rows, and after them as they are written.

    ``prepared``: the result of ``prepare`` of each part.
    """

    old: Columns
    new: Changed
    prepared: Sequence[Any] = ()

    @property
    def was_present(self) -> BoolArray:
        """Which keys (u) had rows before: not those for which earlier bundles had only distinct values."""
        present: BoolArray = self.old.numpy(0).astype(np.int64) > 0
        return present

    @property
    def present(self) -> BoolArray:
        """Which keys (u) have rows now."""
        present: BoolArray = self.new.states[0].to_numpy() > 0
        return present


class LocalValueRows(NamedTuple):
    """Partially aggregated rows (n) as input rows with distinct values; ``at`` (m): the rows that have any."""

    batch: pa.RecordBatch
    at: Int64Array


class PartialRows(Protocol):
    """Reads rows that a partial aggregation, or another operator, has aggregated."""

    def values(self, batch: pa.RecordBatch) -> Sequence[LocalValueRows]:
        """The rows (n) of each set of distinct values."""

    def gather(
        self,
        batch: pa.RecordBatch,
        groups: Groups,
        values: Sequence[tuple[pa.RecordBatch, Sequence[Int8Array]]] = (),
    ) -> State:
        """The state of each group (u); ``values``: the rows of each set of distinct values, and for each condition the
        signs (n) of the rows, 0 for those that do not count."""


class _DependentState(Protocol):
    """Additional state with the same keys as the states."""

    def remove(self, keys: KeyBatch) -> None:
        """Remove all of ``keys``."""

    def expire_with(self, state: ColumnState) -> None:
        """Expire it together with the rows of the same keys in ``state``."""


class AggregateStates:
    """The states of ``plan`` in ``state``; ``time_first`` if its keys have namespaces, ``ttl`` if they expire,
    ``valued`` if the caller needs the aggregates before and after each bundle."""

    def __init__(
        self,
        plan: AggregatePlan,
        state: ColumnState,
        context: OperatorContext,
        time_first: bool = False,
        ttl: bool = False,
        valued: bool = False,
    ) -> None:
        spec = context.inputs[0]
        self._plan = plan
        self._state = state
        self._ttl = ttl
        self._valued = valued
        self._sequence = spec.sequence
        self._missing = context.missing_rows()
        self._multisets: list[MultisetState] = [part.open(context, time_first) for part in plan.multisets]
        self._distincts: list[DistinctState] = [
            values.open(context, spec.changelog, time_first) for values in plan.distincts
        ]
        plan.open(context, time_first)
        self._dependents: list[_DependentState] = [*self._distincts, *plan.parts]
        for dependents in (*self._multisets, *self._dependents):
            dependents.expire_with(state)

    def prefetch(self, keys: KeyBatch) -> None:
        """Start to load the stored state for the keys of a later bundle."""
        self._state.prefetch(keys)
        for multiset in self._multisets:
            multiset.prefetch(keys)

    def async_add(self, rows: Addition, ctx: BundleContext) -> StateFuture[AggregateChange]:
        """A future of the change that the rows make; it completes when the change is written."""
        groups = Groups.of(rows.keys)
        read = self._state.async_get(rows.keys)
        known = self._async_known(rows, self._keyed(rows, groups))
        if known is None and rows.accumulate.all():
            sources = self._plan.sources(self._keyed(rows, groups))
            prepared = self._plan.prepare(sources)  # while the read is in progress
            return read.then_compose(lambda old: self._async_update(rows, old, sources, prepared, ctx))
        if known is None:
            return read.then_compose(
                lambda old: self._async_change(rows, groups, old, _DependentReads(), ctx)
            )
        return known.then_compose(
            lambda dependents: read.then_compose(
                lambda old: self._async_change(rows, groups, old, dependents, ctx)
            )
        )

    def async_merge(self, rows: Addition, local: PartialRows) -> StateFuture[AggregateChange]:
        """As ``async_add``, for partially aggregated rows: of unmatched retractions only the number is known.

        A key's values and its other rows may be in different bundles: until both arrive, its count of rows may be 0.
        """
        groups = Groups.of(rows.keys)
        read = self._state.async_get(rows.keys)
        if not self._distincts:
            with naming(rows.keys):
                partial = local.gather(rows.batch, groups)  # while the read is in progress
            return read.then_apply(lambda old: self._merged(rows, old, partial))
        values = local.values(rows.batch)
        own = [batch.take(pa.array(at)) for batch, at in values]
        parts = list(zip(self._distincts, values, own, strict=True))
        known = combine_all(
            [state.async_read(batch, rows.keys, rows.keys.inverse[at]) for state, (_, at), batch in parts]
        )

        def merge(found: Sequence[ReadValues], old: Columns) -> AggregateChange:
            found = self._without_expired(rows.keys, old, _DependentReads((), found)).values
            shown = []
            for (state, (batch, at), chosen), read in zip(parts, found, strict=True):
                signs = state.update(read, chosen, None)
                shown.append((batch, [_spread(one, at, batch.num_rows) for one in signs]))
            with naming(rows.keys):
                partial = local.gather(rows.batch, groups, shown)
            return self._merged(rows, old, partial)

        return known.then_compose(lambda found: read.then_apply(lambda old: merge(found, old)))

    def _merged(self, rows: Addition, old: Columns, partial: State) -> AggregateChange:
        with naming(rows.keys):
            change = AggregateChange(old, Changed(self._plan.merge(old.columns, partial), {}, {}))
        self._missing.count(rows_missing(change.new.states))
        there = np.ones(len(rows.keys), np.bool_) if self._distincts else change.present
        self._write(rows, change, there)
        return change

    @property
    def keeps_more(self) -> bool:
        """Whether there is any additional state."""
        return bool(self._multisets or self._distincts or self._plan.keeps_more)

    def remove(self, keys: KeyBatch) -> None:
        """Remove the additional state of ``keys``."""
        for dependents in (*self._multisets, *self._dependents):
            dependents.remove(keys)

    # -- a bundle --------------------------------------------------------------------------------------

    def _async_known(self, rows: Addition, keyed: KeyedRows) -> StateFuture[_DependentReads] | None:
        """A future of the additional state; None if the rows need none."""
        ahead = [read for part in self._plan.parts if (read := part.async_read(keyed)) is not None]
        if not (self._multisets or self._distincts or ahead):
            return None
        heads: StateFuture[Any] = combine_all([state.async_heads(rows.keys) for state in self._multisets])
        values: StateFuture[Any] = combine_all(
            [state.async_read(rows.batch, rows.keys) for state in self._distincts]
        )
        return combine_all([heads, values, *ahead]).then_apply(
            lambda found: _DependentReads(found[0], found[1])
        )

    def _async_change(
        self, rows: Addition, groups: Groups, old: Columns, dependents: _DependentReads, ctx: BundleContext
    ) -> StateFuture[AggregateChange]:
        signs = self._signs(rows, groups, old)
        dependents = self._without_expired(rows.keys, old, dependents)
        shown = [
            state.update(read, rows.batch, signs)
            for state, read in zip(self._distincts, dependents.values, strict=True)
        ]
        sources = self._plan.sources(self._keyed(rows, groups, signs), shown)
        prepared = self._plan.prepare(sources)
        if not self._multisets:
            return self._async_update(rows, old, sources, prepared, ctx)
        changed = self._plan.async_update(old.columns, sources, prepared, ctx)
        return changed.then_compose(lambda new: self._async_extremes(rows, signs, old, new, dependents.heads))

    def _async_update(
        self,
        rows: Addition,
        old: Columns,
        sources: Sequence[KeyedRows],
        prepared: Sequence[Any],
        ctx: BundleContext,
    ) -> StateFuture[AggregateChange]:
        changed = self._plan.async_update(old.columns, sources, prepared, ctx)
        return changed.then_apply(lambda new: self._written(rows, AggregateChange(old, new, prepared)))

    def _async_extremes(
        self,
        rows: Addition,
        signs: Int8Array | None,
        old: Columns,
        new: Changed,
        heads: Sequence[ListHeads],
    ) -> StateFuture[AggregateChange]:
        """Update retractable extremes from the logs of their values."""
        signs = np.ones(rows.batch.num_rows, np.int8) if signs is None else signs
        updates = [
            state.update(rows.keys, sizes, state.multiset.changes(rows.batch, rows.keys, signs), new.states)
            for state, sizes in zip(self._multisets, heads, strict=True)
        ]
        return combine_all(updates).then_apply(lambda _: self._written(rows, AggregateChange(old, new)))

    def _keyed(self, rows: Addition, groups: Groups, signs: Int8Array | None = None) -> KeyedRows:
        kinds = rows.bundle.kinds[rows.at]
        return KeyedRows(rows.batch, groups, signs, rows.keys, self._valued, kinds)

    def _signs(self, rows: Addition, groups: Groups, old: Columns) -> Int8Array | None:
        if rows.accumulate.all():
            return None
        signs = np.where(rows.accumulate, 1, -1).astype(np.int8)
        counts = old.numpy(0).astype(np.int64)
        signs, missing = without_missing(signs, groups, counts, content_of(rows.batch, self._sequence))
        if rows.counted is not None:
            missing = missing[rows.counted[missing]]
        self._missing.add(rows.at[missing], rows.bundle)
        return signs

    def _without_expired(self, keys: KeyBatch, old: Columns, dependents: _DependentReads) -> _DependentReads:
        """Drop the remaining additional state of expired keys."""
        if not self._ttl or old.present.all():
            return dependents
        gone = ~old.present
        for state in self._dependents:
            state.remove(keys.select(gone))
        pairs = zip(self._multisets, dependents.heads, strict=True)
        heads = [state.forget(keys, sizes, gone) for state, sizes in pairs]
        return _DependentReads(heads, [read.without(gone) for read in dependents.values])

    # -- writes ----------------------------------------------------------------------------------------

    def _written(self, rows: Addition, change: AggregateChange) -> AggregateChange:
        self._write(rows, change, change.present)
        return change

    def _write(self, rows: Addition, change: AggregateChange, after: BoolArray) -> None:
        """Write the states of the keys that are present ``after`` (u) and remove the others."""
        keys, stamps, before, states = rows.keys, rows.stamps, change.old.present, change.new.states
        if not after.all():
            dead = keys.select(~after)
            for dependents in self._dependents:
                dependents.remove(dead)
        known = before | after  # a key that appears and disappears within the bundle needs no write
        if not known.all():
            mask = pa.array(known)
            keys, after, states = keys.select(known), after[known], [column.filter(mask) for column in states]
            stamps = None if stamps is None else stamps[known]
        self._state.write(keys, states, after, stamps)


class _DependentReads(NamedTuple):
    """Additional state that was read: of each log of values, and of each set of distinct values."""

    heads: Sequence[ListHeads] = ()
    values: Sequence[ReadValues] = ()


def _spread(signs: Int8Array, at: Int64Array, size: int) -> Int8Array:
    """The signs (n) of all rows: those of the rows ``at`` (m), and 0 for the others."""
    spread = np.zeros(size, np.int8)
    spread[at] = signs
    return spread


def rows_missing(states: State) -> int:
    """The number of rows retracted in excess of the rows present, over all states (u).

    Partially aggregated rows are net, so the individual unmatched retractions are unknown.
    """
    return -int(np.minimum(states[0].to_numpy(), 0).sum())
