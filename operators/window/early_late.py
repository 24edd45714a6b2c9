"""Windows that emit a row before they are over, or after it, and retract the previous one.

Owns: ``UpdatedSlices``, ``UpdatedSessions`` and ``UpdatedSessionRows``: the windows of ``SliceAggregation``,
``SessionAggregation`` and ``SessionValues``, emitted on the schedule of ``EmittedWindows``.
Invariant: when a window has expired, the net rows that it has emitted are its aggregates, and its state is empty.
Must not import anything of ``asyncstate`` but ``codec``, ``futures``, ``operator`` and ``state``.

Source: Flink's ``AggregateWindowOperator`` with early and late firing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np
import pyarrow as pa

from asyncstate.codec import KeyBatch
from asyncstate.codec.sorting import rows_by
from asyncstate.futures import StateFuture, completed_future, completed_void_future
from asyncstate.operator import BundleContext, OperatorContext
from asyncstate.state.columnar.due_parts import DueReader
from asyncstate.state.columnar.list_columns import ListColumns
from asyncstate.state.columnar.state_columns import Columns, TimeRange

from ..aggregate.aggregate_states import Addition
from ..aggregate.aggregator import naming
from ..core.arrays import BoolArray, Int64Array, IntArray, row_ids, take_rows
from ..core.late_rows import LateRows
from .emitted import EmittedWindows, WindowEmission, Windows
from .session_core import MergedSessions, Spans, sessions_at
from .session_rows import SessionValues, parts_of
from .sessions import SessionAggregation
from .slices import SliceAggregation
from .window_plan import WindowPlan
from .windows import SessionWindow, SlicedWindow

_ACCUMULATORS = 2  # the first one of a stored session: after its start and end


class UpdatedSlices(SliceAggregation):
    """``SliceAggregation`` of whole windows, which are emitted again when they have changed."""

    def __init__(
        self,
        window: SlicedWindow,
        plan: WindowPlan,
        emission: WindowEmission,
        context: OperatorContext,
        late: LateRows,
    ) -> None:
        super().__init__(window, plan, context, late)
        self._emission = emission
        self._emitted = EmittedWindows(plan, emission, self._codec, context)
        self._both = DueReader((self._slices, self._emitted.state), self._window, context.key_groups)
        self._types = self._aggregation.state_schema.types

    def _over(self, ctx: BundleContext) -> int:
        return self._emission.expired(self._time.due(ctx)[0])

    def _ingest(self, rows: Addition, ctx: BundleContext) -> StateFuture[None] | None:
        taken = super()._ingest(rows, ctx)
        if taken is None:
            return None
        assert rows.keys.namespaces is not None
        starts, before = self._window.window_start(rows.keys.namespaces), self._time.due(ctx)[0]
        return taken.then_compose(lambda _: self._emitted.async_changed(rows.keys, starts, before, ctx))

    def fire(self, ctx: BundleContext) -> Iterator[StateFuture[None] | None]:
        """Emit the scheduled updates, then the windows that are due, then remove those that have expired."""
        before, due = self._time.due(ctx)
        for windows in self._emitted.due(ctx):
            yield self._async_renew(windows, ctx)
        if self._emission.lateness:
            yield from self._close(before, due, True, ctx)
        yield from self._close(self._emission.expired(before), self._emission.expired(due), False, ctx)

    def _async_renew(self, windows: KeyBatch, ctx: BundleContext) -> StateFuture[None]:
        return self._slices.async_get(windows).then_combine(
            self._emitted.state.async_get(windows),
            lambda states, emitted: self._emitted.renew(self._windows(windows, states), emitted, True, ctx),
        )

    def _close(self, before: int, due: int, stay: bool, ctx: BundleContext) -> Iterator[None]:
        """Emit the windows with before < end <= due as they are now."""
        for part in self._both.parts(before, due):
            stored, emitted = part.ranges
            keys, at_state, emitted_at = self._joined(stored, emitted)
            states = _columns(stored, at_state, [pa.nulls(len(keys), kind) for kind in self._types])
            seen = _columns(emitted, emitted_at, self._emitted.nothing(len(keys)))
            self._emitted.renew(self._windows(keys, states), seen, stay, ctx)
            if not stay and stored.num_rows:
                self._forget(stored, part.last)
            yield

    def _joined(self, stored: TimeRange, emitted: TimeRange) -> tuple[KeyBatch, Int64Array, Int64Array]:
        """The windows (u) of both ranges, and the index (u) of each in one and the other; -1: not in that range."""
        parts = [part for part in (stored, emitted) if part.num_rows]
        pieces = zip(*(part.key_columns for part in parts), strict=True)
        ends = np.concatenate([part.namespaces for part in parts])
        keys = self._codec.group([pa.concat_arrays(column) for column in pieces], ends)
        places = np.full((2, len(keys)), -1)
        count = stored.num_rows
        places[0, keys.inverse[:count]] = np.arange(count)
        places[1, keys.inverse[count:]] = np.arange(emitted.num_rows)
        return keys, places[0], places[1]

    def _windows(self, keys: KeyBatch, states: Columns) -> Windows:
        assert keys.namespaces is not None
        starts, present = self._window.window_start(keys.namespaces), _present(states, 0)
        with naming(keys):
            results = self._aggregation.results(states.columns, keys=keys)
        return Windows(keys, starts, present, results)


class UpdatedSessions(SessionAggregation):
    """``SessionAggregation`` whose sessions are emitted before they are over, and retracted when they grow."""

    def __init__(
        self, window: SessionWindow, plan: WindowPlan, emission: WindowEmission, context: OperatorContext
    ) -> None:
        super().__init__(window, plan, context)
        self._show(plan, emission, context)

    def _show(self, plan: WindowPlan, emission: WindowEmission, context: OperatorContext) -> None:
        self._emission = emission
        self._emitted = EmittedWindows(plan, emission, self._codec, context)

    def _async_changed(
        self, keys: KeyBatch, before: Spans, merged: MergedSessions, ctx: BundleContext
    ) -> StateFuture[None]:
        after = merged.spans
        new = keys.in_namespaces(after.ends, after.keys)
        starts = np.empty(len(new), np.int64)
        starts[new.inverse] = after.starts
        due = self._time.due(ctx)[0]
        changed = self._emitted.async_changed(new, starts, due, ctx)
        now_in = merged.session_of[: len(before.keys)]
        grown = np.flatnonzero(after.ends[now_in] != before.ends)
        if not len(grown):
            return changed
        old = keys.in_namespaces(before.ends[grown], before.keys[grown])
        new_of = np.empty(len(old), np.int64)
        new_of[old.inverse] = new.inverse[now_in[grown]]
        return changed.then_compose(lambda _: self._emitted.async_replaced(old, new, new_of, ctx))

    def fire(self, ctx: BundleContext) -> Iterator[StateFuture[None]]:
        """Emit the scheduled updates, then the sessions that are due, then remove those that have expired."""
        for windows in self._emitted.due(ctx):
            yield from self._renew(windows, True, ctx)
        before, due = self._time.due(ctx)
        if self._emission.lateness:
            yield from self._renew_ending(before, due, True, ctx)
        yield from self._renew_ending(*self._range(ctx), False, ctx)
        yield from super().fire(ctx)

    def _range(self, ctx: BundleContext) -> tuple[int, int]:
        before, due = self._time.due(ctx)
        return self._emission.expired(before), self._emission.expired(due)

    def _renew_ending(
        self, before: int, last: int, stay: bool, ctx: BundleContext
    ) -> Iterator[StateFuture[None]]:
        """Emit the sessions with before < end <= last."""
        for part in self._reader.parts(before, last):
            entries = part.entries
            windows = self._codec.group(entries.key_columns, entries.namespaces)
            yield from self._renew(windows, stay, ctx)

    def _renew(self, windows: KeyBatch, stay: bool, ctx: BundleContext) -> Iterator[StateFuture[None]]:
        """Emit the sessions with these keys and ends as they are now."""
        keys = self._codec.group(windows.columns, num_rows=len(windows))
        yield self._async_renew(windows, keys, keys.inverse, stay, ctx)

    def _async_renew(
        self, windows: KeyBatch, keys: KeyBatch, index: IntArray, stay: bool, ctx: BundleContext
    ) -> StateFuture[None]:
        """``index``: the index among ``keys`` of each window's key (u)."""
        emitted = self._emitted.state.async_get(windows)
        now = self._sessions.async_get(keys).then_compose(
            lambda stored: self._async_windows(windows, keys, _found(windows, index, stored), stored, ctx)
        )
        return now.then_combine(emitted, lambda found, seen: self._emitted.renew(found, seen, stay, ctx))

    def _async_windows(
        self, windows: KeyBatch, keys: KeyBatch, at: Int64Array, stored: ListColumns, ctx: BundleContext
    ) -> StateFuture[Windows]:
        """A future of the current windows (u): sessions ``at`` (u) of the ``stored`` ones of ``keys``, -1 for one
        that no longer exists."""
        columns = take_rows(stored.columns, at)
        known = Columns(columns, at >= 0)
        starts = known.numpy(0).astype(np.int64)
        present = _present(known, _ACCUMULATORS)
        with naming(windows):
            results = self._aggregation.results(columns[_ACCUMULATORS:])
        return completed_future(Windows(windows, starts, present, results))

    def emit_results(
        self, keys: KeyBatch, stored: ListColumns, left: BoolArray, due: Int64Array, ctx: BundleContext
    ) -> None:
        """Nothing: the sessions have been emitted."""


class UpdatedSessionRows(UpdatedSessions, SessionValues):
    """``UpdatedSessions`` that are computed from their rows whenever they are emitted: ``SessionValues``."""

    def __init__(
        self,
        window: SessionWindow,
        counts: WindowPlan,
        values: WindowPlan,
        needed: Collection[str],
        emission: WindowEmission,
        context: OperatorContext,
        late_output: str | None,
    ) -> None:
        SessionValues.__init__(self, window, counts, values, needed, context, late_output)
        self._show(values, emission, context)

    def _renew(self, windows: KeyBatch, stay: bool, ctx: BundleContext) -> Iterator[StateFuture[None]]:
        """The same, some keys at a time, so that only the rows of few keys are in memory."""
        keys = self._codec.group(windows.columns, num_rows=len(windows))
        held: list[ListColumns] = []
        yield self._sessions.async_get(keys).then_accept(held.append)
        (stored,) = held
        counts = stored.columns[_ACCUMULATORS].to_numpy()
        for chosen in parts_of(counts, stored.key_index, len(keys)):
            place = np.full(len(keys), -1)
            place[chosen] = np.arange(len(chosen))
            index = place[keys.inverse]
            mine = index >= 0
            yield self._async_renew(windows.select(mine), keys.select(chosen), index[mine], stay, ctx)

    def _async_windows(
        self, windows: KeyBatch, keys: KeyBatch, at: Int64Array, stored: ListColumns, ctx: BundleContext
    ) -> StateFuture[Windows]:
        return self._rows.async_get(keys).then_compose(
            lambda rows: self._of_rows(windows, keys, at, stored, rows, ctx)
        )

    def _of_rows(
        self,
        windows: KeyBatch,
        keys: KeyBatch,
        at: Int64Array,
        stored: ListColumns,
        rows: ListColumns,
        ctx: BundleContext,
    ) -> StateFuture[Windows]:
        """A future of the windows (u) of sessions ``at`` (u), with these ``rows`` of their keys."""
        starts, ends, _ = (column.to_numpy() for column in stored.columns)
        times = rows.columns[0].to_numpy()
        session = sessions_at(Spans(stored.key_index, starts, ends), rows.key_index, times, self._gap)
        wanted = np.zeros(len(starts), np.bool_)
        wanted[at[at >= 0]] = True
        chosen = np.flatnonzero(wanted[session]) if len(session) else np.zeros(0, np.int64)
        chosen = chosen[rows_by(session[chosen], times[chosen])]
        numbers, first = np.unique(session[chosen], return_index=True)
        place = np.full(len(starts) + 1, -1)  # the last entry is for -1
        place[numbers] = np.arange(len(numbers))
        of_window = place[at]
        emitted_starts = np.append(starts, 0)[at]

        def as_windows(results: list[pa.Array]) -> Windows:
            return Windows(windows, emitted_starts, of_window >= 0, take_rows(results, of_window))

        if not len(numbers):
            nothing = [pa.nulls(0, field.type) for field in self._values.aggregation.result_fields]
            return completed_future(as_windows(nothing))
        batch = pa.RecordBatch.from_arrays(
            self._whole_rows(keys, rows, chosen), names=self._spec.schema.names
        )
        return self.async_results(batch, first, self.keys_of(batch, first), ctx).then_apply(as_windows)

    def emit_results(
        self, keys: KeyBatch, stored: ListColumns, left: BoolArray, due: Int64Array, ctx: BundleContext
    ) -> None:
        """Note the sessions, so that their rows are removed."""
        SessionValues.emit_results(self, keys, stored, left, due, ctx)

    def emit_session_rows(
        self,
        columns: Sequence[pa.Array],
        session: Int64Array,
        starts: Int64Array,
        ends: Int64Array,
        ctx: BundleContext,
    ) -> StateFuture[None]:
        """Nothing: the rows have been emitted."""
        return completed_void_future()


def _found(windows: KeyBatch, index: IntArray, stored: ListColumns) -> Int64Array:
    """The indices (u) of the ``stored`` sessions with the ends of ``windows`` and keys ``index`` (u); -1: none."""
    assert windows.namespaces is not None
    ends = np.concatenate([windows.namespaces, stored.columns[1].to_numpy()])
    ids = row_ids([pa.array(ends)], np.concatenate([index, stored.key_index]))
    place = np.full(len(ends), -1)
    place[ids[len(windows) :]] = np.arange(stored.num_rows)
    return place[ids[: len(windows)]]


def _columns(entries: TimeRange, places: Int64Array, nothing: list[pa.Array]) -> Columns:
    """The rows of a range at ``places`` (u); -1: no row."""
    columns = take_rows(entries.columns, places) if entries.num_rows else nothing
    return Columns(columns, places >= 0)


def _present(states: Columns, count: int) -> BoolArray:
    """Which states (u) have rows; ``count``: the index of the column of row counts."""
    present: BoolArray = states.numpy(count).astype(np.int64) > 0
    return present
