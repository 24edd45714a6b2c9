"""Unbounded frames in order of time: one row of state per key.

Owns: ``RunningRows``; ``changes_of`` and ``with_places``, which other forms use, too.
Invariant: the stored states of a key are those of all its rows so far.
Must not import anything of ``asyncstate`` but ``codec``, ``futures``, ``operator`` and ``state``.

Source: Flink's ``RowTimeRangeUnboundedPrecedingFunction`` and ``RowTimeRowsUnboundedPrecedingFunction``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from asyncstate.codec import KeyBatch
from asyncstate.futures import StateFuture, combine_all
from asyncstate.operator import Bundle, BundleContext, OperatorContext
from asyncstate.state.columnar.state_columns import Columns, ColumnStateDescriptor
from asyncstate.state.expiring.ttl import StateTtl

from ..aggregate.distinct import ReadValues
from ..aggregate.user.user_function import Frames
from ..core.arrays import BoolArray, Int64Array, int64_values, places_of, run_begins
from ..core.expiry_options import key_times
from ..core.operator_checks import TimeDomain
from .frames import Frame, Ordered
from .over_functions import Places
from .over_plan import OverPlan, Values

_PEERS = pa.field("peer_groups", pa.int64(), nullable=False)


class RunningRows:
    """State ``accumulators``: those of all rows of a key, and the number of groups of peers among the rows."""

    def __init__(
        self, plan: OverPlan, frame: Frame, time: TimeDomain, ttl: StateTtl | None, context: OperatorContext
    ) -> None:
        self._plan = plan
        self._has_peers = time == "event"
        self._shares = frame.peers and self._has_peers
        self._ttl = ttl
        plan.merging.open(context)
        schema = pa.schema([*plan.state_schema, _PEERS])
        self._state = context.get_state(
            ColumnStateDescriptor(
                "accumulators",
                schema,
                fixed_fields=True,
                ttl=ttl,
                belongs_to=("frame", f"{time} {frame.text}"),
            )
        )
        self._distincts = [values.open(context, counted=False) for values in plan.distincts]
        plan.expire_with(self._state)
        for values in self._distincts:
            values.expire_with(self._state)

    def process(self, bundle: Bundle, ctx: BundleContext) -> StateFuture[None]:
        """Emit each row of the bundle with the aggregates of all rows up to it."""
        order, starts = bundle.keys.rows_sorted()
        starts = np.append(starts, len(order))
        batch = bundle.batch.take(pa.array(order))
        differs = np.ones(len(order), np.bool_)
        if self._has_peers and bundle.times is not None:
            differs = changes_of([bundle.times[order]], starts)
        rows = Ordered(batch, starts, differs, bundle.keys.columns, bundle.keys)
        stamps = self._state.stamps_at(key_times(bundle, self._ttl), len(bundle.keys))
        at = np.arange(len(order))
        last = rows.last_peers if self._shares else at
        frames = Frames(np.repeat(starts[:-1], rows.sizes), last, rows.owners)

        def evaluate(old: Columns, found: Sequence[ReadValues]) -> StateFuture[None]:
            if self._ttl is not None:
                found = self._without_expired(bundle.keys, ~old.present, found)
            pairs = zip(self._distincts, found, strict=True)
            shown = [values.update(read, batch, None) for values, read in pairs]
            states, before = old.columns[:-1], int64_values(old.columns[-1])
            done = self._plan.async_values(rows, frames, states, ctx, shown)
            return done.then_accept(lambda values: finish(int64_values(old.columns[0]), before, values))

        def finish(count: Int64Array, before: Int64Array, values: Values) -> None:
            groups = before + np.add.reduceat(differs.astype(np.int64), starts[:-1])
            self._state.put(bundle.keys, [*values.states, pa.array(groups)], stamps)
            columns = with_places(
                values, self._plan, Places(rows, at, count, before, frames.first, frames.last)
            )
            indices = pa.array(places_of(order))
            ctx.emit([*bundle.batch.columns, *(column.take(indices) for column in columns)])

        read = self._state.async_get(bundle.keys)
        known = combine_all(
            [values.async_read(batch, bundle.keys, rows.owners) for values in self._distincts]
        )
        return known.then_compose(lambda found: read.then_compose(lambda old: evaluate(old, found)))

    def _without_expired(
        self, keys: KeyBatch, gone: BoolArray, found: Sequence[ReadValues]
    ) -> list[ReadValues]:
        """Drop the remaining additional state of the keys that are ``gone`` (u)."""
        expired = keys.select(gone)
        self._plan.remove(expired)
        for values in self._distincts:
            values.remove(expired)
        return [read.without(gone) for read in found]

    def clean_up(self, ctx: BundleContext) -> None:
        """See ``OverAggregate``: nothing."""


def changes_of(columns: Sequence[np.ndarray], starts: Int64Array) -> BoolArray:
    """Rows (n) that differ from the previous row in one of the columns, or are the first of their key."""
    differs = run_begins(*columns) if columns else np.zeros(int(starts[-1]), np.bool_)
    differs[starts[:-1][np.diff(starts) > 0]] = True
    return differs


def with_places(values: Values, plan: OverPlan, places: Places) -> list[pa.Array]:
    """The columns of all aggregates of the asked rows of ``places`` (m), from those that are computed by frames."""
    done, batch = list(values.columns), places.rows.batch
    for at, function in plan.places.items():
        name = plan.place_columns[at]
        column = None if name is None else batch.column(name)
        done[at] = function.values(places._replace(column=column))
    return [column for column in done if column is not None]
