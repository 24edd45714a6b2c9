"""Aggregation over tumbling, hopping and cumulating windows: one state row per slice and key.

Owns: ``SliceAggregation`` and how slices are merged into windows.
Invariant: each input row changes one slice, however many windows share it (whole windows: each of its windows); a
slice is removed when its last window has fired; a window fires once, for all keys that have a row in it.
Must not import anything of ``asyncstate`` but ``operator``, ``state``, ``futures``, ``codec``, ``errors`` and
``partial_aggregation``.

Source: Flink's ``SlicingWindowOperator``, ``SliceSharedWindowAggProcessor`` and, with partial aggregation, its
``GlobalWindowAggregate``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from asyncstate.codec import KeyBatch
from asyncstate.codec.sorting import rows_by
from asyncstate.futures import StateFuture
from asyncstate.operator import Bundle, BundleContext, OperatorContext
from asyncstate.partial_aggregation import LocalSlices
from asyncstate.state.columnar.due_parts import DuePart, DueReader, rows_fitting
from asyncstate.state.columnar.state_columns import ColumnState, ColumnStateDescriptor, TimeRange

from ..aggregate.aggregate_states import Addition, AggregateStates
from ..aggregate.aggregator import naming
from ..aggregate.local_layout import LocalLayout
from ..core.arrays import Int64Array, count_up, parts_of, take_rows
from ..core.late_rows import LateRows
from ..core.segments import Groups
from .window_plan import WindowPlan
from .window_time import BundleTime
from .windows import SlicedWindow

MERGE_ROWS = 1 << 18
"""Slices that are merged into windows at a time; one window may have more."""


class _Grouped(NamedTuple):
    """A bundle's rows (n) in the range of time, their slices (n), and their keys with the slices as namespaces."""

    bundle: Bundle
    slices: Int64Array
    keys: KeyBatch


class SliceAggregation:
    """State: ``slices``, time-first by slice end; with a changelog and min or max also logs of values.

    A changelog in processing time has whole windows in place of slices: a row may be retracted in a later slice than
    that in which it arrived, in windows that contain it and in others that do not. Aggregates for which a window is not
    the sum of its slices have them, too: a value that is in two slices is one distinct value.
    """

    def __init__(
        self, window: SlicedWindow, plan: WindowPlan, context: OperatorContext, late: LateRows
    ) -> None:
        assert isinstance(plan.stored, SlicedWindow)
        self._assigned = window
        self._window = plan.stored
        self._plan = plan
        self._aggregation = plan.aggregation
        schema = self._aggregation.state_schema
        self._slices: ColumnState = context.get_state(
            ColumnStateDescriptor(
                "slices",
                schema,
                time_first=True,
                fixed_fields=True,
                may_lack=self._aggregation.may_lack,
                belongs_to=plan.belongs_to,
            )
        )
        self._states = AggregateStates(self._aggregation, self._slices, context, time_first=True)
        local = context.inputs[0].local is not None
        self._local = local_layout(plan, window) if local else None
        self._reader = DueReader(self._slices, self._window, context.key_groups)
        self._codec = context.key_codec
        self._time = BundleTime(plan.domain, window, context)
        self._late = late
        self._ahead: dict[int, _Grouped] = {}  # by id of a prefetched bundle

    # -- rows ---------------------------------------------------------------------------------------

    def prefetch(self, bundle: Bundle) -> None:
        """See ``BundleOperator``; whole windows, of which a row has many, are not prefetched."""
        if self._window is not self._assigned:
            return
        grouped = self._ahead[id(bundle)] = self._grouped(bundle)
        if len(grouped.keys):
            self._states.prefetch(grouped.keys)

    def process(self, bundle: Bundle, ctx: BundleContext) -> Any:
        """Add the rows to their slices; for whole windows one step per part of the windows."""
        if self._window is not self._assigned:
            return self._steps(bundle, ctx)
        grouped = self._ahead.pop(id(bundle), None) or self._grouped(bundle)
        return self._ingest(self._on_time(grouped, self._over(ctx), ctx), ctx)

    def _steps(self, bundle: Bundle, ctx: BundleContext) -> Iterator[StateFuture[None] | None]:
        """Add each row to each of its windows, some windows at a time. The rows of a window, which may depend on each
        other, are never split."""
        bundle, fired = self._time.in_range(bundle), self._over(ctx)
        slices = self._assigned.slice_of(self._time.of_rows(bundle))
        last = self._assigned.last_window(slices)
        late = last <= fired
        self._late.add(bundle, late, self._time.rows(bundle, late), ctx)
        if late.all():
            return
        first, by_time = self._assigned.next_end(fired + 1), rows_by(slices)
        rows_max = rows_fitting(self._aggregation.state_bytes, MERGE_ROWS)
        for ends, rows in windows_of(slices[by_time], self._assigned, first, int(last.max()), rows_max):
            yield self._ingest(self._in_windows(bundle, slices, by_time[rows], ends), ctx)

    def _in_windows(self, bundle: Bundle, slices: Int64Array, at: Int64Array, ends: Int64Array) -> Addition:
        """Rows ``at`` (m) of a bundle, with these slices, each in the window with one of ``ends`` (m)."""
        order = rows_by(at, ends)  # in order of arrival
        at, ends = at[order], ends[order]
        # A retraction without a row in the window that ends first, whose start is the earliest, has none in the others.
        is_first = ends == slices[at]
        keys = bundle.keys.in_namespaces(ends, bundle.keys.inverse[at])
        return Addition(bundle.batch.take(pa.array(at)), keys, bundle.accumulate[at], bundle, at, is_first)

    def _over(self, ctx: BundleContext) -> int:
        """The latest end of windows that accept no more rows."""
        return self._time.due(ctx)[0]

    def _ingest(self, rows: Addition, ctx: BundleContext) -> StateFuture[None] | None:
        if not rows.batch.num_rows:
            return None
        if self._local is not None:
            changed = self._states.async_merge(rows, self._local)
        else:
            changed = self._states.async_add(rows, ctx)
        return changed.then_accept(lambda _: None)

    def _grouped(self, bundle: Bundle) -> _Grouped:
        bundle = self._time.in_range(bundle)
        slices = self._window.slice_of(self._time.of_rows(bundle))
        return _Grouped(bundle, slices, bundle.keys.in_namespaces(slices))

    def _on_time(self, grouped: _Grouped, fired: int, ctx: BundleContext) -> Addition:
        """The rows with a window that ends after ``fired``."""
        bundle, slices, keys = grouped
        late = self._window.last_window(slices) <= fired
        if not late.any():
            return Addition.of(bundle, keys)
        self._late.add(bundle, late, self._time.rows(bundle, late), ctx)
        rows = np.flatnonzero(~late)
        return Addition(
            bundle.batch.take(pa.array(rows)),
            bundle.keys.in_namespaces(slices[rows], bundle.keys.inverse[rows]),
            bundle.accumulate[rows],
            bundle,
            rows,
        )

    # -- windows --------------------------------------------------------------------------------------

    def fire(self, ctx: BundleContext) -> Iterator[StateFuture[None] | None]:
        """Emit the windows that are due, by window end, then in the order of the store; one step per part."""
        for part in self._reader.parts(*self._time.due(ctx)):
            self._emit(part, ctx)
            self._forget(part.entries, part.last)
            yield None

    def _emit(self, part: DuePart, ctx: BundleContext) -> None:
        entries = part.entries
        by_time = rows_by(entries.namespaces)
        if not self._window.shares_slices:
            results = self._results(entries)
            self._emit_windows(entries.key_columns, entries.namespaces, results, by_time, ctx)
            return
        keys = self._codec.group(entries.key_columns, num_rows=entries.num_rows)
        slices = entries.namespaces[by_time]
        rows_max = rows_fitting(entries.row_bytes, MERGE_ROWS)
        for ends, rows in windows_of(slices, self._window, part.first, part.last, rows_max):
            taken = by_time[rows]
            merged = keys.in_namespaces(ends, keys.inverse[taken])
            assert merged.namespaces is not None
            indices = pa.array(taken)
            states = [column.take(indices) for column in entries.columns]
            order = rows_by(merged.namespaces)
            with naming(merged):
                results = self._aggregation.results(self._aggregation.combine(states, Groups.of(merged)))
            self._emit_windows(merged.columns, merged.namespaces, results, order, ctx)

    def _results(self, entries: TimeRange) -> list[pa.Array]:
        """The aggregates of whole windows (m)."""
        if not self._aggregation.keeps_more:
            with naming(entries.key_columns):
                return self._aggregation.results(entries.columns)
        keys = self._codec.group(entries.key_columns, entries.namespaces)
        states = take_rows(entries.columns, keys.first_rows())
        with naming(keys):
            results = self._aggregation.results(states, keys=keys)
        return take_rows(results, keys.inverse)

    def _emit_windows(
        self,
        keys: list[pa.Array],
        ends: Int64Array,
        results: list[pa.Array],
        order: Int64Array,
        ctx: BundleContext,
    ) -> None:
        indices = pa.array(order)
        ends = ends[order]
        self._plan.emit(
            ctx,
            [column.take(indices) for column in keys],
            self._window.window_start(ends),
            ends,
            [column.take(indices) for column in results],
        )

    def _forget(self, entries: TimeRange, last: int) -> None:
        """Remove the slices that are in no window with an end after ``last``."""
        done = self._window.last_window(entries.namespaces) <= last
        self._slices.remove_entries(entries.entry_keys(done))
        if self._states.keeps_more and done.any():
            mask = pa.array(done)
            columns = [column.filter(mask) for column in entries.key_columns]
            self._states.remove(self._codec.group(columns, entries.namespaces[done]))


def local_layout(plan: WindowPlan, window: SlicedWindow) -> LocalLayout:
    """The partial aggregation of a plan: rows of a key and slice are merged; in processing time all have one slice."""
    slices = LocalSlices(window.step, window.offset) if plan.domain == "event" else None
    return LocalLayout(plan.aggregation, plan.changelog, slices)


def windows_of(
    slices: Int64Array, window: SlicedWindow, first: int, last: int, rows_max: int = MERGE_ROWS
) -> Iterator[tuple[Int64Array, Int64Array]]:
    """Ends (m) of windows in [first, last] and the rows (m) of ``slices`` (ascending) that they contain, in parts of
    about ``rows_max``; a single window may have more."""
    ends = window_ends(np.unique(slices), window, first, last)
    begins = np.searchsorted(slices, window.first_slice(ends), "left")
    sizes = np.searchsorted(slices, ends, "right") - begins
    for part in parts_of(sizes, rows_max):
        counts = sizes[part]
        yield np.repeat(ends[part], counts), np.repeat(begins[part], counts) + count_up(counts)


def window_ends(slices: Int64Array, window: SlicedWindow, first: int, last: int) -> Int64Array:
    """The ends in [first, last] of windows that contain one of ``slices`` (ascending, distinct), ascending."""
    begins = np.maximum(slices, first)
    stops = np.minimum(window.last_window(slices), last)
    begins[1:] = np.maximum(begins[1:], stops[:-1] + window.step)  # skip the ends of the previous slice
    counts = np.maximum((stops - begins) // window.step + 1, 0)
    return np.repeat(begins, counts) + window.step * count_up(counts)
