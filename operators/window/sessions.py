"""Aggregation over session windows.

Owns: ``SessionAggregation``: a key's open sessions and the index of those that are due.
Invariant: the index has exactly one entry, under its end, for each stored session.
Must not import anything of ``asyncstate`` but ``operator``, ``state``, ``futures``, ``codec``, ``errors``.

Source: the merging windows of Flink's ``UnsliceWindowAggProcessor`` and ``MergingWindowSet``.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from asyncstate.codec import KeyBatch
from asyncstate.codec.sorting import rows_by
from asyncstate.futures import StateFuture, completed_future, completed_void_future
from asyncstate.operator import MAX_WATERMARK, Bundle, BundleContext, OperatorContext
from asyncstate.state.columnar.due_parts import DuePart, DueReader
from asyncstate.state.columnar.list_blocks import ListHeads
from asyncstate.state.columnar.list_columns import ListColumns, ListColumnState, ListColumnStateDescriptor
from asyncstate.state.columnar.state_columns import ColumnState, ColumnStateDescriptor

from ..aggregate.aggregator import KeyedRows, naming
from ..core.arrays import BoolArray, Int64Array, take_rows
from ..core.late_rows import LATE_ROWS
from ..core.segments import Groups, content_of, without_missing
from .session_core import MergedSessions, Spans, merge_sessions, sessions_at
from .window_plan import WindowPlan
from .window_time import BundleTime
from .windows import SessionWindow

_SPAN = [pa.field("start", pa.int64()), pa.field("end", pa.int64())]
_INDEX = pa.schema([pa.field("open", pa.bool_())])


class SessionAggregation:
    """State: ``sessions``, a list of (start, end, accumulators) per key; ``session_ends``, time-first by end.

    A row is late if, when the micro-batch ends, its session is one that was due before the micro-batch began. Rows that
    another row of the same micro-batch connects to an open session are kept. In processing time no row is late, and a
    retraction applies to the session that is open at that time.
    """

    def __init__(self, window: SessionWindow, plan: WindowPlan, context: OperatorContext) -> None:
        self._gap = window.gap
        self._plan = plan
        self._aggregation = plan.aggregation
        schema = pa.schema([*_SPAN, *self._aggregation.state_schema])
        self._sessions: ListColumnState = context.get_state(
            ListColumnStateDescriptor(
                "sessions",
                schema,
                fixed_fields=True,
                may_lack=self._aggregation.may_lack,
                belongs_to=plan.belongs_to,
            )
        )
        self._aggregation.open(context)
        self._ends: ColumnState = context.get_state(
            ColumnStateDescriptor("session_ends", _INDEX, time_first=True, belongs_to=plan.belongs_to)
        )
        self._reader = DueReader(
            self._ends, window, context.key_groups, row_bytes=self._aggregation.state_bytes
        )
        self._codec = context.key_codec
        self._time = BundleTime(plan.domain, window, context)
        # In processing time a session is over when a micro-batch starts at its end; retractions arrive at any time.
        self._reach = 1 if self._time.processing else window.gap
        self._late = context.counter(LATE_ROWS)
        self._missing = context.missing_rows()
        self._sequence = context.inputs[0].sequence
        self._earliest_end = MAX_WATERMARK  # of the sessions written in this micro-batch

    # -- rows ---------------------------------------------------------------------------------------

    def prefetch(self, bundle: Bundle) -> None:
        """Hint which state the bundle will need (``state.prefetch(bundle.keys)``), while another one is processed."""
        self._sessions.prefetch(bundle.keys)

    def process(self, bundle: Bundle, ctx: BundleContext) -> StateFuture[None] | None:
        """Merge the rows with the sessions of their keys."""
        bundle = self._time.in_range(bundle)
        if not bundle.num_rows:
            return None
        return self._sessions.async_read(bundle.keys).then_compose(
            lambda read: self._merge(bundle, *read, ctx)
        )

    def _merge(
        self, bundle: Bundle, heads: ListHeads, stored: ListColumns, ctx: BundleContext
    ) -> StateFuture[None]:
        spans = Spans(stored.key_index, stored.columns[0].to_numpy(), stored.columns[1].to_numpy())
        keys, times = bundle.keys.inverse, self._time.of_rows(bundle)
        added = bundle.accumulate
        if not (added.any() or stored.num_rows):
            self._missing.add(np.arange(bundle.num_rows), bundle)
            return completed_void_future()
        merged = self._merged(spans, keys[added], times[added])

        def write(new: list[pa.Array]) -> StateFuture[None]:
            self._write(bundle.keys, heads, spans, merged, new)
            return self._async_changed(bundle.keys, spans, merged, ctx)

        if not self._aggregation.lifts:
            return self._async_update(bundle, times, stored, merged, ctx).then_compose(write)
        if added.all():
            states = self._states(stored, self._aggregation.lift(bundle.batch))
            with naming(bundle.keys, merged.spans.keys):
                states = self._aggregation.combine(states, Groups(merged.order, merged.firsts))
            return write(states)
        return write(self._change(bundle, times, stored, merged))

    def _async_changed(
        self, keys: KeyBatch, before: Spans, merged: MergedSessions, ctx: BundleContext
    ) -> StateFuture[None]:
        """A future of the follow-up work after the sessions ``before`` of ``keys`` have become the ``merged`` ones."""
        return completed_void_future()

    def _merged(
        self, spans: Spans, row_keys: npt.NDArray[np.integer], row_times: Int64Array
    ) -> MergedSessions:
        return merge_sessions(spans, row_keys, row_times, self._gap, touching=not self._time.processing)

    def _states(self, stored: ListColumns, rows: list[pa.Array]) -> list[pa.Array]:
        """States of the items: stored sessions, then rows."""
        pairs = zip(stored.columns[len(_SPAN) :], rows, strict=True)
        return [pa.concat_arrays([old, lifted]) for old, lifted in pairs]

    def _change(
        self, bundle: Bundle, times: Int64Array, stored: ListColumns, merged: MergedSessions
    ) -> list[pa.Array]:
        """The states (s, one per merged session) after rows were added and retracted, in order of arrival.

        A retraction neither creates nor extends a session, nor does it split one. A session that has lost all its rows
        stays open until it is due, so that it is the same session however the rows are split into bundles.
        """
        spans = merged.spans
        known, session_of = self._sessions_of(bundle, times, stored, merged)
        items = np.concatenate([merged.session_of[: stored.num_rows], session_of])
        signs = self._signs(bundle, known, session_of, stored, merged)
        with naming(bundle.keys, bundle.keys.inverse[known]):
            lifted = self._aggregation.lift(bundle.batch.take(pa.array(known)), signs)
        groups = Groups.of_ids(items, len(spans.keys))
        with naming(bundle.keys, spans.keys):
            combined = self._aggregation.combine(self._states(stored, lifted), groups)
        nothing = [pa.nulls(len(spans.keys), field.type) for field in self._aggregation.state_schema]
        return self._aggregation.merge(combined, nothing)  # clears the residue of float sums

    def _sessions_of(
        self, bundle: Bundle, times: Int64Array, stored: ListColumns, merged: MergedSessions
    ) -> tuple[Int64Array, Int64Array]:
        """The rows (k) of a bundle that have a session, and their sessions (k); retractions without one are counted."""
        added = bundle.accumulate
        session_of = np.empty(bundle.num_rows, np.int64)
        session_of[added] = merged.session_of[stored.num_rows :]
        if not added.all():
            keys = bundle.keys.inverse[~added]
            session_of[~added] = sessions_at(merged.spans, keys, times[~added], self._reach)
            self._missing.add(np.flatnonzero(session_of < 0), bundle)
        known = np.flatnonzero(session_of >= 0)
        return known, session_of[known]

    def _async_update(
        self,
        bundle: Bundle,
        times: Int64Array,
        stored: ListColumns,
        merged: MergedSessions,
        ctx: BundleContext,
    ) -> StateFuture[list[pa.Array]]:
        """A future of the states (s) of the merged sessions where single rows have no states, as for user-defined
        functions: sessions that became one are merged, then rows are added and retracted, in order of arrival.
        """
        plan, owners = self._aggregation, merged.spans.keys
        count = len(owners)
        known, session_of = self._sessions_of(bundle, times, stored, merged)
        signs = None
        if not bundle.accumulate.all():
            signs = self._signs(bundle, known, session_of, stored, merged)
        states = [pa.nulls(count, field.type) for field in plan.state_schema]
        if stored.num_rows:
            of_stored, ids = np.unique(merged.session_of[: stored.num_rows], return_inverse=True)
            with naming(bundle.keys, owners[of_stored]):
                before = plan.combine(stored.columns[len(_SPAN) :], Groups.of_ids(ids, len(of_stored)))
            place = np.full(count, -1)
            place[of_stored] = np.arange(len(of_stored))
            states = take_rows(before, place)
        if not len(known):
            return completed_future(states)
        touched, ids = np.unique(session_of, return_inverse=True)
        groups = Groups.of_ids(ids, len(touched))
        batch, kinds = bundle.batch.take(pa.array(known)), bundle.kinds[known]
        sources = plan.sources(KeyedRows(batch, groups, signs, kinds=kinds))
        with naming(bundle.keys, owners[touched]):
            changed = plan.async_update(take_rows(states, touched), sources, plan.prepare(sources), ctx)
        place = np.arange(count)
        place[touched] = count + np.arange(len(touched))
        return changed.then_apply(
            lambda new: take_rows(
                [pa.concat_arrays(pair) for pair in zip(states, new.states, strict=True)], place
            )
        )

    def _signs(
        self,
        bundle: Bundle,
        rows: Int64Array,
        session_of: Int64Array,
        stored: ListColumns,
        merged: MergedSessions,
    ) -> npt.NDArray[np.int8]:
        """The signs (k) of the ``rows`` (k): +1 for added, -1 for retracted rows; unmatched retractions are counted."""
        counts = np.zeros(len(merged.spans.keys), np.int64)
        np.add.at(counts, merged.session_of[: stored.num_rows], stored.columns[len(_SPAN)].to_numpy())
        touched, ids = np.unique(session_of, return_inverse=True)
        signs = np.where(bundle.accumulate[rows], 1, -1).astype(np.int8)
        columns = content_of(bundle.batch.take(pa.array(rows)), self._sequence)
        signs, missing = without_missing(signs, Groups.of_ids(ids, len(touched)), counts[touched], columns)
        self._missing.add(rows[missing], bundle)
        return signs

    def _write(
        self, keys: KeyBatch, heads: ListHeads, stored: Spans, merged: MergedSessions, new: list[pa.Array]
    ) -> None:
        """Write the sessions, including those without rows, and update the index."""
        spans = merged.spans
        of_stored = merged.session_of[: len(stored.keys)]
        same = spans.ends[of_stored] == stored.ends
        if not same.all():
            self._ends.remove(keys.in_namespaces(stored.ends[~same], stored.keys[~same]))
        indexed = np.zeros(len(spans.keys), np.bool_)
        indexed[of_stored[same]] = True
        if not indexed.all():
            ends = spans.ends[~indexed]
            entries = keys.in_namespaces(ends, spans.keys[~indexed])
            self._ends.put(entries, [pa.array(np.ones(len(entries), np.bool_))])
            self._earliest_end = min(self._earliest_end, int(ends.min()))
        self._sessions.put(keys, [pa.array(spans.starts), pa.array(spans.ends), *new], spans.keys, heads)

    # -- windows --------------------------------------------------------------------------------------

    def fire(self, ctx: BundleContext) -> Iterator[StateFuture[None]]:
        """Emit the sessions that are due, by end, then in the order of the store; one step per part."""
        fired, last = self._range(ctx)
        for part in self._reader.parts(min(fired, self._earliest_end - 1), last):
            yield self._fire(part, fired, ctx)
            yield from self.emit_rest(ctx)

    def _range(self, ctx: BundleContext) -> tuple[int, int]:
        """The latest end of sessions that were over before this micro-batch, and of those that are over at its end."""
        return self._time.due(ctx)

    def _fire(self, part: DuePart, fired: int, ctx: BundleContext) -> StateFuture[None]:
        self._ends.remove_entries(part.entries.store_keys)
        keys = self._codec.group(part.entries.key_columns, num_rows=part.entries.num_rows)
        return self._sessions.async_read(keys).then_accept(
            lambda read: self._split(keys, *read, part.last, fired, ctx)
        )

    def _split(
        self,
        keys: KeyBatch,
        heads: ListHeads,
        stored: ListColumns,
        last: int,
        fired: int,
        ctx: BundleContext,
    ) -> None:
        """Emit the sessions with end <= ``last``, keep the others; those that were due before were late."""
        ends = stored.columns[1].to_numpy()
        left = ends > last
        kept = pa.array(left)
        self._sessions.put(
            keys, [column.filter(kept) for column in stored.columns], stored.key_index[left], heads
        )
        counts = stored.columns[len(_SPAN)].to_numpy()
        late = ends <= min(fired, last)
        self._late.add(int(counts[late].sum()))
        self.emit_results(keys, stored, left, np.flatnonzero(~left & ~late & (counts > 0)), ctx)

    def emit_results(
        self, keys: KeyBatch, stored: ListColumns, left: BoolArray, due: Int64Array, ctx: BundleContext
    ) -> None:
        """Emit the ``due`` ones of the ``stored`` sessions (m) of ``keys``; ``left`` (m) marks those that stay."""
        if not len(due):
            return
        due = due[rows_by(stored.columns[1].to_numpy()[due])]
        rows, owners = pa.array(due), pa.array(stored.key_index[due])
        starts, stops, *states = [column.take(rows) for column in stored.columns]
        key_columns = [column.take(owners) for column in keys.columns]
        with naming(key_columns):
            results = self._aggregation.results(states)
        self._plan.emit(ctx, key_columns, starts.to_numpy(), stops.to_numpy(), results)

    def emit_rest(self, ctx: BundleContext) -> Iterator[StateFuture[None]]:
        """The output that ``emit_results`` leaves to further steps."""
        return iter(())
