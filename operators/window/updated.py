"""Windows that put out a row before they are over, or more after it, and take the one before back.

Owns: ``UpdatedSlices`` and ``UpdatedSessions``: the windows of ``SliceAggregation`` and ``SessionAggregation``, shown
as ``ShownWindows`` says.
Invariant: when a window has expired, the netted rows that it has put out are its aggregates, and nothing is left of it.
Must not import anything of ``asyncstate`` but ``codec``, ``futures``, ``operator`` and ``state``.

Source: Flink's ``AggregateWindowOperator`` with early and late firing.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from asyncstate.codec import KeyBatch
from asyncstate.futures import StateFuture
from asyncstate.operator import BundleContext, OperatorContext
from asyncstate.state.columnar.columns import Columns, TimeRange
from asyncstate.state.columnar.list_columns import ListColumns

from ..aggregate.aggregator import naming
from ..aggregate.states import Addition
from ..core.arrays import BoolArray, Int64Array, IntArray, row_ids, take_rows
from ..core.due import DueReader
from ..core.late import LateRows
from .plan import WindowPlan
from .session_core import Merged, Spans
from .sessions import SessionAggregation
from .shown import Emission, ShownWindows, Windows
from .slices import SliceAggregation
from .windows import SessionWindow, SlicedWindow

_ACCUMULATORS = 2  # of a stored session: behind its start and end


class UpdatedSlices(SliceAggregation):
    """``SliceAggregation`` of whole windows, which are shown again when they have changed."""

    def __init__(
        self,
        window: SlicedWindow,
        plan: WindowPlan,
        emission: Emission,
        context: OperatorContext,
        late: LateRows,
    ) -> None:
        super().__init__(window, plan, context, late)
        self._emission = emission
        self._shown = ShownWindows(plan, emission, self._codec, context)
        self._both = DueReader((self._slices, self._shown.state), self._window, context.key_groups)
        self._types = self._aggregation.state_schema.types

    def _over(self, ctx: BundleContext) -> int:
        return self._emission.expired(self._time.due(ctx)[0])

    def _take_in(self, rows: Addition, ctx: BundleContext) -> StateFuture[None] | None:
        taken = super()._take_in(rows, ctx)
        if taken is None:
            return None
        assert rows.keys.namespaces is not None
        starts, before = self._window.window_start(rows.keys.namespaces), self._time.due(ctx)[0]
        return taken.then_compose(lambda _: self._shown.async_changed(rows.keys, starts, before, ctx))

    def fire(self, ctx: BundleContext) -> Iterator[StateFuture[None] | None]:
        """Put out what is to be shown, then the windows that have come due, then forget those that have expired."""
        before, due = self._time.due(ctx)
        for windows in self._shown.due(ctx):
            yield self._async_renew(windows, ctx)
        if self._emission.lateness:
            yield from self._close(before, due, True, ctx)
        yield from self._close(self._emission.expired(before), self._emission.expired(due), False, ctx)

    def _async_renew(self, windows: KeyBatch, ctx: BundleContext) -> StateFuture[None]:
        return self._slices.async_get(windows).then_combine(
            self._shown.state.async_get(windows),
            lambda states, shown: self._shown.renew(self._windows(windows, states), shown, True, ctx),
        )

    def _close(self, before: int, due: int, stay: bool, ctx: BundleContext) -> Iterator[None]:
        """Put out the windows with before < end <= due as they are now."""
        first, last = self._window.next_end(before + 1), self._window.previous_end(due)
        if first > last:
            return
        for part in self._both.parts(first, last):
            stored, shown = part.ranges
            keys, at_state, at_shown = self._joined(stored, shown)
            states = _columns(stored, at_state, [pa.nulls(len(keys), kind) for kind in self._types])
            seen = _columns(shown, at_shown, self._shown.nothing(len(keys)))
            self._shown.renew(self._windows(keys, states), seen, stay, ctx)
            if not stay and stored.num_rows:
                self._forget(stored, part.last)
            yield

    def _joined(self, stored: TimeRange, shown: TimeRange) -> tuple[KeyBatch, Int64Array, Int64Array]:
        """The windows (u) of both ranges, and the place (u) of each in one and the other; -1: it is not there."""
        parts = [part for part in (stored, shown) if part.num_rows]
        pieces = zip(*(part.key_columns for part in parts), strict=True)
        ends = np.concatenate([part.namespaces for part in parts])
        keys = self._codec.group([pa.concat_arrays(column) for column in pieces], ends)
        places = np.full((2, len(keys)), -1)
        count = stored.num_rows
        places[0, keys.inverse[:count]] = np.arange(count)
        places[1, keys.inverse[count:]] = np.arange(shown.num_rows)
        return keys, places[0], places[1]

    def _windows(self, keys: KeyBatch, states: Columns) -> Windows:
        assert keys.namespaces is not None
        starts, present = self._window.window_start(keys.namespaces), _present(states, 0)
        with naming(keys):
            results = self._aggregation.results(states.columns, keys=keys)
        return Windows(keys, starts, present, results)


class UpdatedSessions(SessionAggregation):
    """``SessionAggregation`` whose sessions are shown before they are over, and taken back when they grow."""

    def __init__(
        self, window: SessionWindow, plan: WindowPlan, emission: Emission, context: OperatorContext
    ) -> None:
        super().__init__(window, plan, context)
        self._emission = emission
        self._shown = ShownWindows(plan, emission, self._codec, context)
        self._over: tuple[KeyBatch, ListColumns, BoolArray] | None = None

    def _async_changed(
        self, keys: KeyBatch, before: Spans, merged: Merged, ctx: BundleContext
    ) -> StateFuture[None]:
        after = merged.spans
        new = keys.in_namespaces(after.ends, after.keys)
        starts = np.empty(len(new), np.int64)
        starts[new.inverse] = after.starts
        due = self._time.due(ctx)[0]
        changed = self._shown.async_changed(new, starts, due, ctx)
        now_in = merged.session_of[: len(before.keys)]
        grown = np.flatnonzero(after.ends[now_in] != before.ends)
        if not len(grown):
            return changed
        old = keys.in_namespaces(before.ends[grown], before.keys[grown])
        new_of = np.empty(len(old), np.int64)
        new_of[old.inverse] = new.inverse[now_in[grown]]
        return changed.then_compose(lambda _: self._shown.async_replaced(old, new, new_of, ctx))

    def fire(self, ctx: BundleContext) -> Iterator[StateFuture[None]]:
        """Put out what is to be shown, then the sessions that have come due, then forget those that have expired."""
        for windows in self._shown.due(ctx):
            yield self._async_renew(windows, ctx)
        fired, due = self._time.due(ctx)
        if self._emission.lateness and fired < due:
            for part in self._reader.parts(fired + 1, due):
                entries = part.entries
                yield self._async_renew(self._codec.group(entries.key_columns, entries.namespaces), ctx)
        yield from super().fire(ctx)

    def _range(self, ctx: BundleContext) -> tuple[int, int]:
        before, due = self._time.due(ctx)
        return self._emission.expired(before), self._emission.expired(due)

    def _async_renew(self, windows: KeyBatch, ctx: BundleContext) -> StateFuture[None]:
        keys = self._codec.group(windows.columns, num_rows=len(windows))
        return self._sessions.async_get(keys).then_combine(
            self._shown.state.async_get(windows),
            lambda stored, shown: self._shown.renew(
                self._windows(windows, keys.inverse, stored), shown, True, ctx
            ),
        )

    def _windows(self, windows: KeyBatch, index: IntArray, stored: ListColumns) -> Windows:
        """The sessions with these ends, of the keys (u) that ``index`` tells, among the ``stored`` ones of the keys."""
        assert windows.namespaces is not None
        ends = np.concatenate([windows.namespaces, stored.columns[1].to_numpy()])
        ids = row_ids([pa.array(ends)], np.concatenate([index, stored.key_index]))
        place = np.full(len(ends), -1)
        place[ids[len(windows) :]] = np.arange(stored.num_rows)
        found = place[ids[: len(windows)]]
        columns = take_rows(stored.columns, found)
        known = Columns(columns, found >= 0)
        with naming(windows):
            results = self._aggregation.results(columns[_ACCUMULATORS:])
        return Windows(windows, known.numpy(0).astype(np.int64), _present(known, _ACCUMULATORS), results)

    def put_out(
        self, keys: KeyBatch, stored: ListColumns, left: BoolArray, due: Int64Array, ctx: BundleContext
    ) -> None:
        """Note those that go: what they have shown is read next."""
        late = stored.columns[1].to_numpy() <= self._range(ctx)[0]
        self._over = keys, stored, ~left & ~late

    def put_out_rest(self, ctx: BundleContext) -> Iterator[StateFuture[None]]:
        """Show them a last time."""
        over, self._over = self._over, None
        if over is None or not over[2].any():
            return
        keys, stored, gone = over
        windows = keys.in_namespaces(stored.columns[1].to_numpy()[gone], stored.key_index[gone])
        index = np.empty(len(windows), np.int64)
        index[windows.inverse] = stored.key_index[gone]
        yield self._shown.state.async_get(windows).then_accept(
            lambda shown: self._shown.renew(self._windows(windows, index, stored), shown, False, ctx)
        )


def _columns(entries: TimeRange, places: Int64Array, nothing: list[pa.Array]) -> Columns:
    """The rows of a range at ``places`` (u), of which -1 is none."""
    columns = take_rows(entries.columns, places) if entries.num_rows else nothing
    return Columns(columns, places >= 0)


def _present(states: Columns, count: int) -> BoolArray:
    """Which states (u) have rows; ``count``: the column of their number."""
    present: BoolArray = states.numpy(count).astype(np.int64) > 0
    return present
