"""The rows of open windows, and when the windows fire.

Owns: ``WindowRows`` and two of its forms: ``AlignedRows`` (tumble, hop, cumulate) and ``ProcessSessionRows``.
Invariant: a row is stored once for each of its windows, until the window expires; then no state of it is left.
Must not import anything of ``asyncstate`` but ``codec``, ``functions``, ``futures``, ``operator``, ``state``.

State: ``_rows``, a list of rows for each namespace, which is a window's end, or for sessions the time of the row that
began it. Sessions also keep a list of the open ones, ``_sessions``.

Source: Flink's ``WindowOperator`` and ``MergingWindowSet``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa

from asyncstate.codec.times import microsecond_struct
from asyncstate.functions import TimeWindow
from asyncstate.futures import to_iterable
from asyncstate.operator import OperatorContext, RecordContext, Row, Timer, row_type
from asyncstate.state import ListState, ListStateDescriptor, ValueState, ValueStateDescriptor

from ...window.window_time import OUT_OF_RANGE, WindowTime
from ...window.windows import SessionWindow, SlicedWindow

ROWS_STATE: Final = "_rows"
SESSIONS_STATE: Final = "_sessions"
_SESSIONS_TYPE: Final = pa.list_(
    pa.struct([("start", pa.int64()), ("end", pa.int64()), ("namespace", pa.int64())])
)

Fire = Callable[[RecordContext, TimeWindow, int, Sequence[Row]], Awaitable[None]]
"""Called with the window, its namespace and its rows in order of arrival."""
Expire = Callable[[RecordContext, TimeWindow, int], Awaitable[None]]
"""Called after the window's rows have been deleted."""


class WindowCallbacks(NamedTuple):
    """The callbacks for windows, and the side output for late rows (None: they are dropped)."""

    fire: Fire
    expire: Expire
    late_output: str | None


class WindowRows(ABC):
    """Receives rows and timers; calls ``fire`` and ``expire``."""

    def __init__(
        self,
        time: WindowTime,
        context: OperatorContext,
        callbacks: WindowCallbacks,
        span: tuple[int, int],
        text: str,
        fields: Sequence[pa.Field] = (),
    ) -> None:
        """``span``: the first and the last time whose windows fit int64; ``text``: the windows as stored in the state's
        declaration; ``fields``: what is stored of a row before its columns."""
        schema = context.inputs[0].schema
        self._first_time, self._last_time = span
        self._time = time
        self._fire, self._expire, self._late_output = callbacks
        self._row = row_type(schema)
        self._late = context.counter("late_rows_dropped")
        self._outside = context.counter(OUT_OF_RANGE)
        self._rows: ListState[dict[str, Any]] = context.get_state(
            ListStateDescriptor(
                ROWS_STATE,
                pa.struct([*fields, *microsecond_struct(schema)]),
                namespaced=True,
                belongs_to=("window", f"{time.domain} time {text}"),
            )
        )

    def add(self, row: Row, ctx: RecordContext) -> Any:
        """Store a row, or count it as late or out of range; returns what ``process`` may return."""
        at = self._time.of_row(ctx)
        if self._first_time <= at <= self._last_time:
            return self._add(row, at, ctx)
        self._outside.add()
        return None

    @abstractmethod
    def _add(self, row: Row, at: int, ctx: RecordContext) -> Any:
        """Store a row with the time ``at``, or count it as late."""

    @abstractmethod
    async def on_timer(self, timer: Timer, ctx: RecordContext) -> None:
        """Fire or expire the window whose timer is due."""

    def _add_late(self, row: Row, ctx: RecordContext) -> None:
        self._late.add()
        if self._late_output is not None:
            ctx.emit(*row, kind=ctx.row_kind, output=self._late_output)

    async def _fire_rows(self, ctx: RecordContext, window: TimeWindow, namespace: int) -> None:
        stored = await to_iterable(self._rows.at(namespace).async_get())
        await self._fire(ctx, window, namespace, [self._row(values.values()) for values in stored])

    async def _come_due(self, timer: Timer, ctx: RecordContext, window: TimeWindow, namespace: int) -> bool:
        """Fire the window if the timer is for its end, expire it if the timer is for its expiry; True if it expired."""
        time = self._time
        expires = timer.time == time.expiry(window.end)
        if timer.time == time.due(window.end):
            await self._fire_rows(ctx, window, namespace)
            if not expires:
                time.register(ctx, time.expiry(window.end), namespace)
        if expires:
            await self._rows.at(namespace).async_clear()
            await self._expire(ctx, window, namespace)
        return expires


class AlignedRows(WindowRows):
    """Windows that are the same for all keys: their namespace is their end."""

    def __init__(
        self, window: SlicedWindow, time: WindowTime, context: OperatorContext, callbacks: WindowCallbacks
    ) -> None:
        super().__init__(time, context, callbacks, window.time_span, window.text)
        self._window = window

    def _add(self, row: Row, at: int, ctx: RecordContext) -> Any:
        """See ``WindowRows``; a row of several windows is late if it is late for all of them."""
        time, window = self._time, self._window
        first = window.slice_of(at)
        ends = range(first, window.last_window(first) + 1, window.step)
        open_ends = [end for end in ends if not time.is_over(end)]
        if not open_ends:
            self._add_late(row, ctx)
            return None
        values = row.as_dict()
        for end in open_ends:
            self._rows.at(end).async_add(values)
            time.set_timer(ctx, end, end)
        fired = [end for end in open_ends if time.has_fired(end)]
        return self._fire_again(fired, ctx) if fired else None

    async def on_timer(self, timer: Timer, ctx: RecordContext) -> None:
        """Fire or expire the window whose timer is due."""
        assert timer.namespace is not None
        await self._come_due(timer, ctx, self._spanned(timer.namespace), timer.namespace)

    async def _fire_again(self, ends: Sequence[int], ctx: RecordContext) -> None:
        for end in ends:
            await self._fire_rows(ctx, self._spanned(end), end)

    def _spanned(self, end: int) -> TimeWindow:
        return TimeWindow(self._window.window_start(end), end)


class Session(NamedTuple):
    """An open session of a key and the namespace of its rows; times in microseconds."""

    start: int
    end: int
    namespace: int


class ProcessSessionRows(WindowRows):
    """Windows that grow and merge. Those of a key are disjoint and do not touch: two that touch are one."""

    def __init__(
        self, window: SessionWindow, time: WindowTime, context: OperatorContext, callbacks: WindowCallbacks
    ) -> None:
        super().__init__(time, context, callbacks, window.time_span, window.text)
        self._gap = window.gap
        # One value, not a map: it is read for every row, and a key has few sessions open at once.
        self._sessions: ValueState[list[dict[str, int]]] = context.get_state(
            ValueStateDescriptor(SESSIONS_STATE, _SESSIONS_TYPE)
        )

    async def _add(self, row: Row, at: int, ctx: RecordContext) -> None:
        """See ``WindowRows``; a row that touches an open session belongs to it and is not late."""
        sessions = await self._open_sessions()
        touched = [one for one in sessions if one.start <= at + self._gap and at <= one.end]
        merged = _union(touched, Session(at, at + self._gap, at))
        if not touched and self._time.is_over(merged.end):
            self._add_late(row, ctx)
            return
        if touched != [merged]:
            others = [one for one in sessions if one not in touched]
            self._store(sorted([*others, merged]))
            await self._merge(touched, merged, ctx)
        adding = self._rows.at(merged.namespace).async_add(row.as_dict())
        if self._time.has_fired(merged.end):
            await self._fire_rows(ctx, TimeWindow(merged.start, merged.end), merged.namespace)
        await adding

    async def on_timer(self, timer: Timer, ctx: RecordContext) -> None:
        """Fire or expire the window whose timer is due."""
        sessions = await self._open_sessions()
        due = next(one for one in sessions if one.namespace == timer.namespace)
        if await self._come_due(timer, ctx, TimeWindow(due.start, due.end), due.namespace):
            self._store([one for one in sessions if one is not due])

    async def _merge(self, touched: Sequence[Session], merged: Session, ctx: RecordContext) -> None:
        """Keep one timer and one list of rows for sessions that have become one."""
        sources = [one.namespace for one in touched if one.namespace != merged.namespace]
        kept = False
        for one in touched:
            if (one.end, one.namespace) == (merged.end, merged.namespace):
                kept = True
            else:
                self._time.delete_timer(ctx, one.end, one.namespace)
        if not kept:
            self._time.set_timer(ctx, merged.end, merged.namespace)
        if sources:
            await self._rows.async_merge_namespaces(merged.namespace, sources)

    async def _open_sessions(self) -> list[Session]:
        return [Session(**stored) for stored in await self._sessions.async_value() or ()]

    def _store(self, sessions: Sequence[Session]) -> None:
        self._sessions.update([one._asdict() for one in sessions] or None)


def _union(touched: Sequence[Session], alone: Session) -> Session:
    """``touched`` (ascending) and a row's own session as one; its rows are stored with those of the first."""
    if not touched:
        return alone
    start = min(touched[0].start, alone.start)
    return Session(start, max(touched[-1].end, alone.end), touched[0].namespace)
