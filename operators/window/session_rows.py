"""The rows of sessions, buffered until their session is over.

Owns: ``SessionRows``: the rows of each key's open sessions, in addition to the sessions themselves; ``SessionValues``,
which emits them as aggregates.
Invariant: a stored row is in exactly one stored session of its key. ``SessionValues`` emits what
``SessionAggregation`` would emit if its aggregates could be merged.
Must not import anything of ``asyncstate`` but ``operator``, ``state``, ``futures``, ``codec``.

Source: Flink's ``UnalignedWindowTableFunctionOperator``.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from asyncstate.codec import KeyBatch
from asyncstate.codec.sorting import rows_by
from asyncstate.futures import StateFuture, completed_void_future
from asyncstate.operator import Bundle, BundleContext, OperatorContext
from asyncstate.state.columnar.due_parts import PART_ROWS
from asyncstate.state.columnar.list_columns import ListColumns, ListColumnState, ListColumnStateDescriptor

from ..aggregate.aggregate_plan import Changed
from ..aggregate.aggregator import KeyedRows, naming
from ..aggregate.distinct import first_of_values
from ..core.arrays import BoolArray, Int64Array, IntArray, take_rows
from ..core.segments import Groups
from ..core.stored_columns import StoredColumns
from ..join.sides import Added, ListSide, Own
from .session_core import Spans, sessions_at
from .sessions import SessionAggregation
from .window_plan import WindowPlan, window_columns
from .windows import SessionWindow


class SessionRows(SessionAggregation):
    """``SessionAggregation`` of counts that also stores all rows in ``rows``, a list per key: their time and their
    columns outside the key. A bundle appends to the list and reads only the rows of keys that lose some; the rows of a
    session are read when it is over."""

    def __init__(
        self,
        window: SessionWindow,
        plan: WindowPlan,
        context: OperatorContext,
        needed: Collection[str] | None = None,
        late_output: str | None = None,
    ) -> None:
        """``needed``: the columns to store in addition to key and event time; None: all. ``late_output``: the side
        output of late rows, for which all columns are stored; None: late rows are dropped."""
        super().__init__(window, plan, context)
        self._late_output = late_output
        (spec,) = context.inputs
        if needed is not None and late_output is None:
            names = {*spec.key, spec.event_time, *needed}
            spec = replace(spec, schema=pa.schema([field for field in spec.schema if field.name in names]))
        self._spec = spec
        self._payload = StoredColumns(spec)
        schema = pa.schema([pa.field("session:time", pa.int64()), *self._payload.fields])
        self._rows: ListColumnState = context.get_state(
            ListColumnStateDescriptor("rows", schema, belongs_to=plan.belongs_to)
        )
        self._lists = ListSide("rows", schema, context, state=self._rows)
        self._over: _Over | None = None

    def prefetch(self, bundle: Bundle) -> None:
        """Hint which state the bundle will need (``state.prefetch(bundle.keys)``), while another one is processed."""
        super().prefetch(bundle)
        self._rows.prefetch(bundle.keys)

    def process(self, bundle: Bundle, ctx: BundleContext) -> StateFuture[None] | None:
        """Store the rows and merge them with the sessions of their keys."""
        bundle = self._time.in_range(bundle)
        if not bundle.num_rows:
            return None
        loses = np.zeros(len(bundle.keys), np.bool_)
        loses[bundle.keys.inverse[~bundle.accumulate]] = True
        stored = self._lists.async_own(bundle.keys, loses, counts=False)
        if loses.any():
            if not self._time.processing:
                return stored.then_compose(lambda own: self._take_back(bundle, own, None, ctx))
            sessions = self._sessions.async_get(bundle.keys)
            both = stored.then_combine(sessions, lambda own, known: (own, known))
            return both.then_compose(lambda found: self._take_back(bundle, found[0], found[1], ctx))
        merged = super().process(bundle, ctx)
        assert merged is not None
        none, every = np.zeros(0, np.bool_), np.arange(bundle.num_rows)
        added = stored.then_accept(lambda own: self._store(bundle, own, none, every))
        return merged.then_combine(added, lambda *_: None)

    def _take_back(
        self, bundle: Bundle, own: Own, sessions: ListColumns | None, ctx: BundleContext
    ) -> StateFuture[None]:
        """Store the net rows of the bundle; retractions of rows that are stored also change the sessions.

        ``sessions``: in processing time the sessions of the keys. The arrival time of a row is then not part of its
        content, but only sessions that are not over yet can lose rows.
        """
        index, accumulate = bundle.keys.inverse, bundle.accumulate
        columns, known = self._columns(bundle), own.rows.columns
        if sessions is not None:
            columns[0] = pa.array(np.zeros(bundle.num_rows, np.int64))
            known = [pa.array(self._is_over(own.rows, sessions, ctx)), *known[1:]]
        compared = replace(own, rows=replace(own.rows, columns=known))
        net = self._lists.net(compared, columns, index, accumulate, self._spec.sequence)
        self._missing.add(net.missing, bundle)
        self._store(bundle, own, net.removed, net.added)
        found = np.ones(bundle.num_rows, np.bool_)
        found[net.missing] = False
        # The rows of a bundle count as a set, and so do those of its sessions: all additions go first.
        rows = np.concatenate([np.flatnonzero(accumulate), np.flatnonzero(found & ~accumulate)])
        merged = super().process(self._time.part(bundle, rows), ctx)
        return completed_void_future() if merged is None else merged

    def _is_over(self, rows: ListColumns, sessions: ListColumns, ctx: BundleContext) -> Int64Array:
        """1 for the rows (n) in sessions that are over but not emitted yet; else 0."""
        starts, ends, _ = (column.to_numpy() for column in sessions.columns)
        spans = Spans(sessions.key_index, starts, ends)
        at = sessions_at(spans, rows.key_index, rows.columns[0].to_numpy(), self._gap)
        over = ends[at] <= ctx.processing_time if len(ends) else np.zeros(0, np.bool_)
        return np.asarray(over, np.int64)

    def _store(self, bundle: Bundle, own: Own, removed: BoolArray, added: Int64Array) -> None:
        index = bundle.keys.inverse[added].astype(np.int64)
        self._lists.apply(bundle.keys, own, removed, Added(take_rows(self._columns(bundle), added), index))

    def _columns(self, bundle: Bundle) -> list[pa.Array]:
        """The stored columns of the rows."""
        kept = bundle.batch.select(self._spec.schema.names)
        return [pa.array(self._time.of_rows(bundle)), *self._payload.of(kept)]

    def emit_results(
        self, keys: KeyBatch, stored: ListColumns, left: BoolArray, due: Int64Array, ctx: BundleContext
    ) -> None:
        """Note the sessions: their rows are read some at a time."""
        is_due = np.zeros(len(left), np.bool_)
        is_due[due] = True
        self._over = _Over(keys, stored, left, is_due)

    def emit_rest(self, ctx: BundleContext) -> Iterator[StateFuture[None]]:
        """Emit the rows of the sessions that are over, some keys at a time."""
        over, self._over = self._over, None
        if over is None:
            return
        counts = over.stored.columns[2].to_numpy()
        for chosen in parts_of(counts, over.stored.key_index, len(over.keys)):
            part = over.select(chosen)
            yield self._rows.async_get(part.keys).then_compose(functools.partial(self._close, part, ctx))

    def _close(self, over: _Over, ctx: BundleContext, found: ListColumns) -> StateFuture[None]:
        """Emit the rows of sessions that are due, keep those of sessions that stay."""
        starts, ends, _ = (column.to_numpy() for column in over.stored.columns)
        spans = Spans(over.stored.key_index, starts, ends)
        times = found.columns[0].to_numpy()
        session = sessions_at(spans, found.key_index, times, self._gap)
        stays = over.left[session]
        kept = pa.array(stays)
        self._rows.put(over.keys, [column.filter(kept) for column in found.columns], found.key_index[stays])
        due = np.flatnonzero(over.due[session])
        if self._late_output is not None:
            late = np.flatnonzero(~stays & ~over.due[session])
            ctx.emit(self._whole_rows(over.keys, found, late), output=self._late_output)
        if not len(due):
            return completed_void_future()
        due = due[rows_by(session[due], times[due])]  # sessions ascend by key and start
        return self.emit_session_rows(
            self._whole_rows(over.keys, found, due), session[due], starts, ends, ctx
        )

    def _whole_rows(self, keys: KeyBatch, found: ListColumns, rows: Int64Array) -> list[pa.Array]:
        """The input's columns of some stored rows of ``keys``."""
        key_columns = take_rows(keys.columns, found.key_index[rows].astype(np.int64))
        return self._payload.row([*key_columns, *take_rows(found.columns[1:], rows)])

    def emit_session_rows(
        self,
        columns: Sequence[pa.Array],
        session: Int64Array,
        starts: Int64Array,
        ends: Int64Array,
        ctx: BundleContext,
    ) -> StateFuture[None]:
        """Emit rows (n) with the windows of their ``session`` (n, ascending): indices of ``starts`` and ``ends``."""
        ctx.emit([*columns, *window_columns(starts[session], ends[session], self._spec)])
        return completed_void_future()


class SessionValues(SessionRows):
    """``SessionRows`` whose rows are emitted as the aggregates of ``values``: of distinct values, of user-defined
    functions, and of the net rows of a changelog.

    State: that of ``SessionRows``, with the columns that are ``needed``. Within a session rows are in order of time,
    then of arrival.
    """

    def __init__(
        self,
        window: SessionWindow,
        counts: WindowPlan,
        values: WindowPlan,
        needed: Collection[str],
        context: OperatorContext,
        late_output: str | None = None,
    ) -> None:
        """``counts``: the plan of the same windows without aggregates."""
        super().__init__(window, counts, context, needed, late_output)
        self._values = values
        values.aggregation.open_functions(context)

    def emit_session_rows(
        self,
        columns: Sequence[pa.Array],
        session: Int64Array,
        starts: Int64Array,
        ends: Int64Array,
        ctx: BundleContext,
    ) -> StateFuture[None]:
        """Emit a row of aggregates for each session; rows (n, of the input's columns) ascend by ``session`` (n)."""
        numbers, first = np.unique(session, return_index=True)
        batch = pa.RecordBatch.from_arrays(list(columns), names=self._spec.schema.names)
        key_columns = self.keys_of(batch, first)

        def emit_results(results: list[pa.Array]) -> None:
            order = rows_by(ends[numbers])
            mine, columns = numbers[order], take_rows(key_columns, order)
            self._values.emit(ctx, columns, starts[mine], ends[mine], take_rows(results, order))

        return self.async_results(batch, first, key_columns, ctx).then_accept(emit_results)

    def keys_of(self, batch: pa.RecordBatch, first: Int64Array) -> list[pa.Array]:
        """The key columns (s) of the sessions whose rows begin at ``first`` (s)."""
        rows = pa.array(first)
        return [batch.column(name).take(rows) for name in self._spec.key]

    def async_results(
        self, batch: pa.RecordBatch, first: Int64Array, key_columns: list[pa.Array], ctx: BundleContext
    ) -> StateFuture[list[pa.Array]]:
        """A future of the aggregates of s sessions, whose rows are contiguous and begin at ``first`` (s), and whose
        keys are ``key_columns`` (s)."""
        plan = self._values.aggregation
        groups = Groups(np.arange(batch.num_rows), first)
        owners = groups.sorted_ids
        shown = [first_of_values(values, batch, owners) for values in plan.distincts]
        sources = plan.sources(KeyedRows(batch, groups, valued=True), shown)
        nothing = [pa.nulls(len(first), field.type) for field in plan.state_schema]
        with naming(key_columns):
            changed = plan.async_update(nothing, sources, plan.prepare(sources), ctx)

        def results(done: Changed) -> list[pa.Array]:
            with naming(key_columns):
                return plan.results(done.states, done.after)

        return changed.then_apply(results)


def parts_of(counts: Int64Array, key_index: IntArray, keys: int) -> list[Int64Array]:
    """Indices of ``keys`` keys, in parts, so that the sessions of a part, with ``counts`` (m) rows each, have about
    ``PART_ROWS`` rows in total."""
    rows = np.cumsum(np.bincount(key_index, counts, keys))
    return np.split(np.arange(keys), np.flatnonzero(np.diff(rows // PART_ROWS)) + 1)


class _Over(NamedTuple):
    """The sessions (m) of keys of which some are over: which stay (``left``), and which are ``due``."""

    keys: KeyBatch
    stored: ListColumns
    left: BoolArray
    due: BoolArray

    def select(self, chosen: Int64Array) -> _Over:
        """The sessions of some keys, ascending."""
        if len(chosen) == len(self.keys):
            return self
        place = np.full(len(self.keys), -1, np.int64)
        place[chosen] = np.arange(len(chosen))
        index = place[self.stored.key_index]
        rows = np.flatnonzero(index >= 0)
        columns = take_rows(self.stored.columns, rows)
        stored = ListColumns(columns, index[rows].astype(np.int32), self.stored.counts[chosen])
        return _Over(self.keys.select(chosen), stored, self.left[rows], self.due[rows])
