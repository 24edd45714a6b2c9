"""Results that windows emit before they are over, and the schedule of their early and late updates.

Owns: ``WindowEmission`` and ``EmittedWindows``.
Invariant: ``firings`` has exactly one entry, under its time, for each window with a change to be emitted later;
the net output of a window is its row in ``emitted``.
Must not import anything of ``asyncstate`` but ``changelog``, ``codec``, ``errors``, ``futures``, ``operator``,
``state`` and ``durations``.

Source: the emit strategy of Flink's group windows, ``EventTimeTriggers.AfterEndOfWindowEarlyAndLate``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from asyncstate.changelog import RowKind
from asyncstate.codec import KeyBatch, KeyCodec
from asyncstate.codec.sorting import rows_by
from asyncstate.durations import Duration, microseconds
from asyncstate.errors import SchemaError
from asyncstate.futures import StateFuture, completed_void_future
from asyncstate.operator import MAX_WATERMARK, MIN_WATERMARK, BundleContext, OperatorContext
from asyncstate.state.columnar.column_maps import ColumnMapStateDescriptor
from asyncstate.state.columnar.state_columns import Columns, ColumnState, ColumnStateDescriptor

from ..aggregate.user.table_aggregate_function import RowsOfKeys, changed_rows
from ..core.arrays import BoolArray, Int64Array, places_of, take_rows
from ..core.operator_checks import TimeDomain
from ..core.row_kinds import distinct, net_changes, take_changes
from .window_plan import WindowPlan, window_columns

_DUE, _START, _RESULTS = 0, 1, 2


@dataclass(frozen=True)
class WindowEmission:
    """When a window emits its row, in microseconds of processing time after a change; None: not before its end
    (``early``), or at the end of the change's micro-batch (``late``). ``lateness``: how long it stays after its end.
    """

    early: int | None
    late: int
    lateness: int
    update_before: bool

    @classmethod
    def of(
        cls,
        early: Duration | None,
        late: Duration | None,
        lateness: Duration,
        update_before: bool,
        time: TimeDomain,
        owner: str,
    ) -> WindowEmission:
        """Raise SchemaError for values that are not durations or have no effect."""
        allowed = _duration(lateness, "allowed_lateness", owner)
        if allowed and time == "processing":
            raise SchemaError(
                f"{owner}: allowed_lateness is {lateness!r}, but in processing time no row is late; leave it out"
            )
        if late is not None and not allowed:
            raise SchemaError(
                f"{owner}: late is {late!r}, but rows after the window's end are dropped; give allowed_lateness too"
            )
        return cls(
            None if early is None else _duration(early, "early", owner),
            0 if late is None else _duration(late, "late", owner),
            allowed,
            update_before,
        )

    @property
    def updates(self) -> bool:
        """Whether a window may emit more than one row."""
        return self.early is not None or self.lateness > 0

    def expired(self, end: int) -> int:
        """The latest end of windows that have expired when those up to ``end`` are due."""
        return max(end - self.lateness, MIN_WATERMARK)

    def delays(self, ends: Int64Array, before: int) -> Int64Array:
        """How long changes of windows with these ends (n) wait; -1: until the window is due.

        ``before``: the latest end of windows that were due before this micro-batch.
        """
        early = -1 if self.early is None else self.early
        delays = np.where(ends <= before, self.late, early)
        return np.where(ends <= self.expired(before), -1, delays)


class Windows(NamedTuple):
    """The current windows (u): ``keys`` with their ends as namespaces, and ``present`` (u), which ones have rows."""

    keys: KeyBatch
    starts: Int64Array
    present: BoolArray
    results: list[pa.Array]


class EmittedWindows:
    """State: ``emitted``, time-first by window end, the emitted row of a window and when its next change is due;
    ``firings``, time-first by that time, the ends of the windows of a key."""

    def __init__(
        self, plan: WindowPlan, emission: WindowEmission, codec: KeyCodec, context: OperatorContext
    ) -> None:
        self._spec = context.inputs[0]
        self._makes_rows = plan.table is not None
        self._codec = codec
        self._emission = emission
        results = [_stored(field) for field in plan.aggregation.result_fields]
        schema = pa.schema([pa.field("due", pa.int64()), pa.field("start", pa.int64()), *results])
        self.state: ColumnState = context.get_state(
            ColumnStateDescriptor("emitted", schema, time_first=True, belongs_to=plan.belongs_to)
        )
        self._results = [field.type for field in results]
        self._firings = context.get_state(
            ColumnMapStateDescriptor(
                "firings", pa.schema([pa.field("end", pa.int64())]), pa.schema([]), time_first=True
            )
        )

    # -- changes --------------------------------------------------------------------------------------

    def async_changed(
        self, windows: KeyBatch, starts: Int64Array, before: int, ctx: BundleContext
    ) -> StateFuture[None]:
        """Schedule the emission of the windows (u), which have changed.

        A window whose start differs from the emitted one retracts that row in this micro-batch.
        """
        assert windows.namespaces is not None
        delays = self._emission.delays(windows.namespaces, before)
        waits = delays >= 0
        if not waits.any():
            return completed_void_future()
        windows, delays, starts = windows.select(waits), delays[waits], starts[waits]

        def note(emitted: Columns) -> None:
            moved = _visible(emitted) & (emitted.numpy(_START) != starts)
            self._schedule(windows, emitted, ctx.processing_time + np.where(moved, 0, delays))

        return self.state.async_get(windows).then_accept(note)

    def async_replaced(
        self, old: KeyBatch, new: KeyBatch, new_of: Int64Array, ctx: BundleContext
    ) -> StateFuture[None]:
        """Record that the windows ``old`` (u) are now part of others: ``new`` number ``new_of`` (u).

        Emitted rows are retracted, and the new windows are emitted, in this micro-batch. A change that was scheduled
        for later waits no longer than before.
        """

        def note(gone: Columns) -> StateFuture[None]:
            visible = _visible(gone)
            self._forget(old.select(~visible), _select(gone, ~visible))
            self._schedule(old.select(visible), _select(gone, visible), _now(visible, ctx))
            due = np.where(visible, ctx.processing_time, gone.numpy(_DUE, MAX_WATERMARK).astype(np.int64))
            earliest, at_once = np.full(len(new), MAX_WATERMARK), np.zeros(len(new), np.bool_)
            np.minimum.at(earliest, new_of, due)
            at_once[new_of[visible]] = True
            return self.state.async_get(new).then_accept(
                lambda emitted: self._schedule(
                    new, emitted, np.where(at_once | _pending(emitted), earliest, MAX_WATERMARK)
                )
            )

        return self.state.async_get(old).then_compose(note)

    def _schedule(self, windows: KeyBatch, emitted: Columns, due: Int64Array) -> None:
        """Schedule the windows (u) at ``due`` (u), unless they are scheduled sooner."""
        pending = emitted.numpy(_DUE, MAX_WATERMARK).astype(np.int64)
        sooner = due < pending
        if not sooner.any():
            return
        self._take_off(windows.select(sooner), pending[sooner])
        windows, due = windows.select(sooner), due[sooner]
        self._firings.put(self._at(windows, due), [])
        columns = _select(emitted, sooner).columns
        self.state.put(windows, [pa.array(due), *columns[_START:]])

    # -- emission ---------------------------------------------------------------------------------------

    def due(self, ctx: BundleContext) -> Iterator[KeyBatch]:
        """The windows with changes to be emitted in this micro-batch, some at a time."""
        for page in self._firings.up_to(ctx.processing_time):
            self._firings.remove_entries(page.store_keys)
            yield self._codec.group(page.key_columns, page.user_columns[0].to_numpy())

    def renew(self, windows: Windows, emitted: Columns, stay: bool, ctx: BundleContext) -> None:
        """Emit what has changed since the windows were last emitted; remember it for those that ``stay``."""
        keys = windows.keys
        self._emit(windows, emitted, ctx)
        self._take_off(keys, emitted.numpy(_DUE, MIN_WATERMARK).astype(np.int64))
        kept = windows.present & stay
        gone = emitted.present & ~kept
        if gone.any():
            self.state.remove(keys.select(gone))
        if kept.any():
            mask = pa.array(kept)
            starts = pa.array(windows.starts[kept])
            columns = [pa.nulls(len(starts), pa.int64()), starts, *(c.filter(mask) for c in windows.results)]
            self.state.put(keys.select(kept), columns)

    def nothing(self, rows: int) -> list[pa.Array]:
        """The columns of ``rows`` windows that have emitted nothing."""
        return [pa.nulls(rows, kind) for kind in (pa.int64(), pa.int64(), *self._results)]

    def _emit(self, windows: Windows, emitted: Columns, ctx: BundleContext) -> None:
        ends = windows.keys.namespaces
        assert ends is not None
        was_emitted = _visible(emitted)
        old_starts = emitted.numpy(_START).astype(np.int64)
        if self._makes_rows:
            self._emit_rows(windows, RowsOfKeys(emitted.columns[_RESULTS], was_emitted), old_starts, ctx)
            return
        old = [*window_columns(old_starts, ends, self._spec), *emitted.columns[_RESULTS:]]
        new = [*window_columns(windows.starts, ends, self._spec), *windows.results]
        # The bounds of its window identify a row: one with another start is another row.
        stays = was_emitted & windows.present & (old_starts == windows.starts)
        changed = distinct(old, new, len(ends))
        order = rows_by(ends)
        for before, after in ((was_emitted, stays), (stays & False, windows.present & ~stays)):
            changes = net_changes(order, before, after, changed, self._emission.update_before)
            if len(changes.keys):
                ctx.emit(take_changes(changes, windows.keys.columns, old, new), changes.kinds)

    def _emit_rows(
        self, windows: Windows, old: RowsOfKeys, old_starts: Int64Array, ctx: BundleContext
    ) -> None:
        """The same where results are lists of rows: -D for rows that are gone, +I for new ones."""
        ends = windows.keys.namespaces
        assert ends is not None
        new = RowsOfKeys(windows.results[0], windows.present)
        before, after = ([pa.array(starts)] for starts in (old_starts, windows.starts))
        rows, owners, is_new = changed_rows(old.of_keys(before), old.owners, new.of_keys(after), new.owners)
        if not len(owners):
            return
        order = rows_by(places_of(rows_by(ends))[owners], is_new)
        starts, *columns = take_rows(rows, order)
        owners = owners[order]
        times = window_columns(starts.to_numpy(), ends[owners], self._spec)
        kinds = np.where(is_new[order], RowKind.INSERT, RowKind.DELETE).astype(np.int8)
        ctx.emit([*take_rows(windows.keys.columns, owners), *times, *columns], kinds)

    def _forget(self, windows: KeyBatch, emitted: Columns) -> None:
        self._take_off(windows, emitted.numpy(_DUE, MIN_WATERMARK).astype(np.int64))
        if emitted.present.any():
            self.state.remove(windows.select(emitted.present))

    def _take_off(self, windows: KeyBatch, due: Int64Array) -> None:
        """Remove the firings at ``due`` (u); the minimum and maximum time have none."""
        known = (due != MIN_WATERMARK) & (due != MAX_WATERMARK)
        if known.any():
            self._firings.remove(self._at(windows.select(known), due[known]))

    def _at(self, windows: KeyBatch, due: Int64Array) -> KeyBatch:
        """The entries of ``firings`` of windows (u) that are due at ``due`` (u)."""
        return self._codec.group(windows.columns, due).with_user_keys([pa.array(windows.namespaces)])


def _stored(result: pa.Field) -> pa.Field:
    """A result as it is stored, under a name that no other stored column has."""
    taken = result.name in ("due", "start")
    return result.with_nullable(True).with_name(f"result:{result.name}" if taken else result.name)


def _now(chosen: BoolArray, ctx: BundleContext) -> Int64Array:
    return np.full(int(chosen.sum()), ctx.processing_time)


def _visible(emitted: Columns) -> BoolArray:
    """Which windows (u) have an emitted row that is not retracted."""
    return _has(emitted, _START)


def _pending(emitted: Columns) -> BoolArray:
    """Which windows (u) have a change to be emitted."""
    return _has(emitted, _DUE)


def _has(emitted: Columns, at: int) -> BoolArray:
    return ~np.asarray(emitted.columns[at].is_null().to_numpy(zero_copy_only=False), np.bool_)


def _select(columns: Columns, chosen: BoolArray) -> Columns:
    mask = pa.array(chosen)
    return Columns([column.filter(mask) for column in columns.columns], columns.present[chosen])


def _duration(duration: Duration, name: str, owner: str) -> int:
    length = microseconds(duration, owner, name)
    if length < 0:
        raise SchemaError(f"{owner}: {name} is {duration!r}; give a duration of at least 0")
    return length
