"""Bounded frames in order of time: the rows that later frames may need.

Owns: ``RecentRows`` and ``RecentRange``.
Invariant: a later frame may need each stored row: an idle key keeps no more than its last rows, and with a range
nothing.
Must not import anything of ``asyncstate`` but ``codec``, ``futures``, ``operator`` and ``state``.

Source: Flink's ``RowTimeRowsBoundedPrecedingFunction`` and ``RowTimeRangeBoundedPrecedingFunction``; unlike in Flink,
the cleanup of a key's rows does not wait for further rows of the key.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from asyncstate.codec import KeyBatch
from asyncstate.codec.sorting import rows_by
from asyncstate.futures import StateFuture
from asyncstate.operator import MIN_WATERMARK, Bundle, BundleContext, OperatorContext
from asyncstate.state.columnar.list_blocks import ListHeads
from asyncstate.state.columnar.list_columns import ListColumns, ListColumnStateDescriptor

from ..aggregate.aggregate_calls import Aggregate, columns_of
from ..aggregate.user.user_function import Frames
from ..core.arrays import Int64Array, concat_rows, places_of, take_rows
from ..core.operator_checks import TimeDomain
from .frames import Frame, Ordered, first_in_range, first_in_rows
from .over_functions import Places
from .over_plan import OverPlan, Values
from .unbounded import changes_of, with_places

_TIME = pa.field("over:time", pa.int64(), nullable=False)


class _Recent:
    """The common base: the columns to keep, and the evaluation of new rows after stored ones."""

    def __init__(self, plan: OverPlan, aggregates: Sequence[Aggregate], context: OperatorContext) -> None:
        schema = context.inputs[0].schema
        self._plan = plan
        names = columns_of(aggregates)
        self._names = [name for name in schema.names if name in names]
        self._fields = [schema.field(name).with_nullable(True) for name in self._names]

    def _async_emit(
        self,
        bundle: Bundle,
        rows: Ordered,
        new: Int64Array,
        first: Int64Array,
        last: Int64Array,
        ctx: BundleContext,
    ) -> StateFuture[None]:
        """Emit the rows of a bundle, which are those at ``new`` (n, in their order) among ``rows``; ``first`` and
        ``last``: the frame of each of ``rows``."""
        asked = np.sort(new)
        owners = rows.owners
        frames = Frames(first[asked], last[asked], owners[asked])
        old = self._plan.nothing(len(rows.starts) - 1)

        def emit(values: Values) -> None:
            none = np.zeros(len(rows.starts) - 1, np.int64)
            places = Places(rows, asked, none, none, frames.first, frames.last)
            columns = with_places(values, self._plan, places)
            indices = pa.array(np.searchsorted(asked, new))
            ctx.emit([*bundle.batch.columns, *(column.take(indices) for column in columns)])

        return self._plan.async_values(rows, frames, old, ctx).then_accept(emit)

    def _kept(self, bundle: Bundle) -> list[pa.Array]:
        return [bundle.batch.column(name) for name in self._names]

    def _batch(self, columns: Sequence[pa.Array], count: int) -> pa.RecordBatch:
        if not self._names:  # only rows are counted
            return pa.RecordBatch.from_arrays([pa.nulls(count)], ["over:rows"])
        return pa.RecordBatch.from_arrays(list(columns), schema=pa.schema(self._fields))


class RecentRows(_Recent):
    """State ``recent``: the last rows of each key, as many as a frame has before its row."""

    def __init__(
        self, plan: OverPlan, frame: Frame, aggregates: Sequence[Aggregate], context: OperatorContext
    ) -> None:
        super().__init__(plan, aggregates, context)
        assert frame.before is not None  # it is bounded
        self._before = frame.before
        self._state = context.get_state(
            ListColumnStateDescriptor(
                "recent",
                pa.schema([_TIME, *self._fields]),
                fixed_fields=True,
                belongs_to=("frame", frame.text),
            )
        )

    def process(self, bundle: Bundle, ctx: BundleContext) -> StateFuture[None]:
        """Emit each row of the bundle with the aggregates of its frame."""
        return self._state.async_read(bundle.keys).then_compose(lambda read: self._ingest(bundle, *read, ctx))

    def _ingest(
        self, bundle: Bundle, heads: ListHeads, stored: ListColumns, ctx: BundleContext
    ) -> StateFuture[None]:
        columns = concat_rows(stored.columns[1:], self._kept(bundle))
        owners = np.concatenate([stored.key_index, bundle.keys.inverse]).astype(np.int64)
        order = rows_by(owners)
        starts = np.searchsorted(owners[order], np.arange(len(bundle.keys) + 1))
        columns = take_rows(columns, order)
        self._store(bundle.keys, heads, columns, starts)
        rows = Ordered(
            self._batch(columns, len(order)), starts, np.ones(len(order), np.bool_), bundle.keys.columns
        )
        first, last = first_in_rows(starts, self._before), np.arange(len(order))
        return self._async_emit(bundle, rows, places_of(order)[stored.num_rows :], first, last, ctx)

    def _store(
        self, keys: KeyBatch, heads: ListHeads, columns: Sequence[pa.Array], starts: Int64Array
    ) -> None:
        owners = np.repeat(np.arange(len(keys)), np.diff(starts))
        kept = np.flatnonzero(np.arange(starts[-1]) >= starts[owners + 1] - self._before)
        times = pa.array(np.zeros(len(kept), np.int64))
        self._state.put(keys, [times, *take_rows(columns, kept)], owners[kept], heads)

    def clean_up(self, ctx: BundleContext) -> None:
        """See ``OverAggregate``: the last rows of a key are kept."""


class RecentRange(_Recent):
    """State ``recent``, time-first by cells as long as the frame: the rows of each cell, with their time."""

    def __init__(
        self,
        plan: OverPlan,
        frame: Frame,
        time: TimeDomain,
        aggregates: Sequence[Aggregate],
        context: OperatorContext,
    ) -> None:
        super().__init__(plan, aggregates, context)
        assert frame.before is not None  # it is bounded
        self._span = frame.before
        self._in_event_time = time == "event"
        self._state = context.get_state(
            ListColumnStateDescriptor(
                "recent",
                pa.schema([_TIME, *self._fields]),
                time_first=True,
                belongs_to=("frame", f"{time} {frame.text}"),
            )
        )

    def process(self, bundle: Bundle, ctx: BundleContext) -> StateFuture[None]:
        """See ``OverAggregate``: a frame covers the cell of its row and the previous cell."""
        times = self._times(bundle, ctx)
        cells = times // self._span
        owners = bundle.keys.inverse.astype(np.int64)
        pairs = bundle.keys.in_namespaces(np.concatenate([cells - 1, cells]), np.tile(owners, 2))
        owner_of_pair = np.empty(len(pairs), np.int64)
        owner_of_pair[pairs.inverse] = np.tile(owners, 2)

        def take_in(heads: ListHeads, stored: ListColumns) -> StateFuture[None]:
            kept = [pa.array(times), *self._kept(bundle)]
            mine = pairs.inverse[len(times) :]
            order = rows_by(mine)
            self._state.append(pairs, take_rows(kept, order), mine[order], heads)
            all_owners = np.concatenate([owner_of_pair[stored.key_index], owners])
            columns = concat_rows(stored.columns, kept)
            return self._async_evaluate(bundle, columns, all_owners, stored.num_rows, ctx)

        return self._state.async_read(pairs).then_compose(lambda read: take_in(*read))

    def _async_evaluate(
        self,
        bundle: Bundle,
        columns: Sequence[pa.Array],
        owners: Int64Array,
        num_stored: int,
        ctx: BundleContext,
    ) -> StateFuture[None]:
        times = columns[0].to_numpy()
        order = rows_by(owners, times)  # stored rows come before new ones
        starts = np.searchsorted(owners[order], np.arange(len(bundle.keys) + 1))
        times = times[order]
        batch = self._batch(take_rows(columns[1:], order), len(order))
        rows = Ordered(batch, starts, changes_of([times], starts), bundle.keys.columns)
        first = first_in_range(starts, times, self._span)
        # In processing time a bundle may end between peers, so a row counts only those that arrived before it.
        last = rows.last_peers if self._in_event_time else np.arange(len(order))
        return self._async_emit(bundle, rows, places_of(order)[num_stored:], first, last, ctx)

    def clean_up(self, ctx: BundleContext) -> None:
        """See ``OverAggregate``: remove cells that end before the frame of any later row begins."""
        passed = ctx.watermark if self._in_event_time else ctx.processing_time
        if passed > MIN_WATERMARK + 2 * self._span:
            self._state.remove_up_to((passed - self._span) // self._span - 1)

    def _times(self, bundle: Bundle, ctx: BundleContext) -> Int64Array:
        if self._in_event_time:
            assert bundle.times is not None  # ``bind`` requires an event time
            return bundle.times
        return np.full(bundle.num_rows, ctx.processing_time, np.int64)
