"""Deduplicate: the first or last row of each key, by event time or in order of arrival.

Owns: the operator: which row of a bundle counts, and when it replaces the stored one. ``operators.upsert.newest_row``
stores the rows and emits the changes.
Invariant: after every bundle the netted output is the first (last) row of each key seen so far.
Must not import anything of ``asyncstate`` but ``changelog``, ``operator``, ``state``, ``futures``, ``codec``,
``errors``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa

from asyncstate.changelog import Changelog
from asyncstate.codec.times import event_times
from asyncstate.operator import Bundle, BundleContext, BundleOperator, InputSpec, OperatorContext, OutputSpec
from asyncstate.state.columnar.state_columns import Columns
from asyncstate.state.expiring.ttl import Ttl, as_bundle_ttl

from ..core.arrays import BoolArray, Int64Array
from ..core.operator_checks import (
    KeepsKey,
    TimeDomain,
    check_choice,
    check_has_time,
    check_insert_only,
    check_time_domain,
    keyed_changes,
)
from ..core.row_kinds import arrival_order
from ..core.segments import Groups
from ..core.state_meaning import meaning
from .newest_row import ChosenRows, LatestRows


class Deduplicate(KeepsKey, BundleOperator):
    """One row per key: ``keep`` the "first" or the "last" by ``time`` "event" or "processing" (arrival).

    Example, the last bid of each bidder on each auction, with key=["bidder", "auction"]::

        Deduplicate(keep="last", time="event")

    Output: the input's columns. First by arrival: +I once per key. All others: +I for a new key, and when
    another row replaces it -U and +U (only +U with ``emit_update_before=False``): the net change of a
    bundle, in order of the keys' first rows in it; nothing if the new row equals the old. Of equal event
    times "first" keeps the earlier arrival, "last" the later one. Rows without an event time never reach the
    operator: they are dropped and counted upstream.

    ``ttl``: an expired key counts as unseen. With a ttl, a row that replaces an equal one is stored and emitted, too,
    so that it and the rows derived from it do not expire.

    State: ``rows``, the non-key columns (the key has the others); first by arrival keeps only a mark per key.
    The input must be insert-only.

    Source: Flink's ``RowTimeDeduplicateFunction``, ``ProcTimeDeduplicateKeepFirstRowFunction`` and
    ``ProcTimeDeduplicateKeepLastRowFunction``.
    """

    accepts_changelog: ClassVar[bool] = False
    nets_output = True

    def __init__(
        self,
        keep: Literal["first", "last"] = "first",
        time: TimeDomain = "event",
        emit_update_before: bool = True,
        ttl: Ttl = None,
    ) -> None:
        check_choice(keep, ("first", "last"), "keep", self.owner)
        check_time_domain(time, self.owner)
        self.keep = keep
        self.time: TimeDomain = time
        self.emit_update_before = emit_update_before
        self.ttl = as_bundle_ttl(self.owner, ttl)

    def bind(self, inputs: Sequence[InputSpec]) -> OutputSpec:
        """The input's columns."""
        spec = inputs[0]
        check_insert_only(spec, self.owner, "Rank or GroupAggregate")
        check_has_time(spec, self.time, self.owner)
        return OutputSpec(spec.schema, changes=self._changes(spec))

    def _changes(self, spec: InputSpec) -> Changelog:
        if not self._keeps_marks(spec):
            return keyed_changes(spec, self.emit_update_before)
        # An expired key starts again, and its row is not retracted.
        changes = Changelog.insert_only(spec.key) if self.ttl is None else Changelog.insert_only()
        return changes.without_nulls_in(spec.changes.never_null)

    def _keeps_marks(self, spec: InputSpec) -> bool:
        """Whether a mark per key is sufficient: its row never changes, or all rows of a key are equal and newer ones do
        not have to extend its time to live."""
        first = self.keep == "first"
        is_all_key = set(spec.schema.names) == set(spec.key)
        return (first and self.time == "processing") or (is_all_key and (first or self.ttl is None))

    def state_meaning(self, inputs: Sequence[InputSpec]) -> Mapping[str, str]:
        """What the stored state depends on in addition to its types, as names and texts: ``{"kind": "left"}``."""
        return meaning(self, keep=self.keep, time=self.time)

    def open(self, context: OperatorContext) -> None:
        """Declare the state."""
        spec = context.inputs[0]
        marks_only = self.keep == "first" and self.time == "processing"
        kept = f"{self.keep} by {'event time' if self.time == 'event' else 'arrival'}"
        self._latest = LatestRows(spec, context, self.ttl, kept, marks_only)
        self._payload = self._latest.payload
        is_timed = self.time == "event" and spec.event_time is not None
        self._time = spec.schema.names.index(spec.event_time) if is_timed else None
        self._marks_only = self._keeps_marks(spec)

    def prefetch(self, bundle: Bundle) -> None:
        """Hint which state the bundle will need (``state.prefetch(bundle.keys)``), while another one is processed."""
        self._latest.prefetch(bundle.keys)

    def process_bundle(self, bundle: Bundle, ctx: BundleContext) -> Any:
        """Handle the rows of one input."""
        if not bundle.num_rows:
            return None
        read = self._latest.async_read(bundle)
        chosen = self._choose(bundle)  # while the read is in progress
        if self._marks_only:
            return read.then_accept(lambda old: self._mark_new(bundle, chosen, old, ctx))
        return read.then_accept(lambda old: self._replace(bundle, chosen, old, ctx))

    def _choose(self, bundle: Bundle) -> Int64Array:
        """The row of the bundle that counts for each key (u)."""
        if self._time is None:
            return bundle.keys.first_rows() if self.keep == "first" else bundle.keys.last_rows()
        assert bundle.times is not None
        return extreme_rows(bundle.times, Groups.of(bundle.keys), last=self.keep == "last")

    def _mark_new(self, bundle: Bundle, chosen: Int64Array, old: Columns, ctx: BundleContext) -> None:
        unseen = ~old.present
        if not unseen.any():
            return
        self._latest.mark(bundle, chosen, unseen)
        order = arrival_order(bundle.keys)
        rows = pa.array(chosen[order[unseen[order]]])
        ctx.emit([column.take(rows) for column in bundle.batch.columns])

    def _replace(self, bundle: Bundle, rows: Int64Array, old: Columns, ctx: BundleContext) -> None:
        comes = ~old.present | self._takes_place(bundle, rows, old)
        chosen = ChosenRows(rows, comes, np.zeros(len(rows), np.bool_))
        self._latest.change(bundle, chosen, old, ctx, self.emit_update_before)

    def _takes_place(self, bundle: Bundle, chosen: Int64Array, old: Columns) -> BoolArray:
        """Whether the bundle's row replaces the stored one (u); false if none is stored."""
        if self._time is None or self._time not in self._payload.indices:
            # By arrival the newest row wins; with the time in the key all rows of a key have the same time.
            return old.present & (self.keep == "last")
        assert bundle.times is not None
        stored = event_times(old.columns[self._payload.indices.index(self._time)])
        new = bundle.times[chosen]
        return old.present & (stored <= new if self.keep == "last" else new < stored)


def extreme_rows(times: Int64Array, groups: Groups, last: bool) -> Int64Array:
    """The row with the smallest time of each group (u), the first of equal ones; ``last``: largest, last."""
    ordered = times[groups.order]
    if groups.single:
        return groups.order
    reduce = np.maximum if last else np.minimum
    best = reduce.reduceat(ordered, groups.starts)
    hits = np.flatnonzero(ordered == np.repeat(best, groups.sizes))
    if last:
        ends = groups.starts + groups.sizes
        return groups.order[hits[np.searchsorted(hits, ends) - 1]]
    return groups.order[hits[np.searchsorted(hits, groups.starts)]]
