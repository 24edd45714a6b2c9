"""The rows of windows with a user-defined trigger, evictor or assigner.

Owns: ``TriggeredRows``.
Invariant: a window that has expired leaves no rows, no timers and no trigger state.
Must not import anything of ``asyncstate`` but ``errors``, ``functions``, ``futures``, ``operator`` and
``state``.

State: ``_windows``, per key its open windows with the timers and the state of their trigger; ``_rows``, one list per
window under its number, each row with its time.

Source: Flink's ``WindowOperator`` and ``EvictingWindowOperator``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from asyncstate.errors import OperatorError
from asyncstate.functions import Evictor, TimedRow, TimeWindow, Trigger, TriggerResult, WindowAssigner
from asyncstate.futures import to_iterable
from asyncstate.operator import (
    MAX_WATERMARK,
    MIN_WATERMARK,
    OperatorContext,
    RecordContext,
    Row,
    TimeDomain,
    Timer,
)
from asyncstate.state import ValueState, ValueStateDescriptor

from ...window.window_time import WindowTime
from ..process_operator import resolved
from .window_rows import WindowCallbacks, WindowRows

WINDOWS_STATE: Final = "_windows"
_TIME: Final = "window:time"
_TIMER: Final = pa.struct([("processing", pa.bool_()), ("time", pa.int64())])


@dataclass
class _Open:
    """An open window of a key; ``timers``: those of its trigger, as (is processing time, microseconds)."""

    window: TimeWindow
    namespace: int
    timers: set[tuple[bool, int]] = field(default_factory=set)
    state: Any = None

    def stored(self) -> dict[str, Any]:
        """The window in its stored form."""
        timers = [{"processing": processing, "time": time} for processing, time in sorted(self.timers)]
        start, end = self.window
        return {
            "start": start,
            "end": end,
            "namespace": self.namespace,
            "timers": timers,
            "state": self.state,
        }

    @staticmethod
    def of(stored: dict[str, Any]) -> _Open:
        """The window from its stored form."""
        timers = {(timer["processing"], timer["time"]) for timer in stored["timers"]}
        window = TimeWindow(stored["start"], stored["end"])
        return _Open(window, stored["namespace"], timers, stored["state"])


class _Context:
    """The implementation of ``functions.TriggerContext``."""

    def __init__(self, record: RecordContext, time: WindowTime, one: _Open, endless: bool = False) -> None:
        """``endless``: whether timers registered for event time would continue forever."""
        self._record = record
        self._time = time
        self._one = one
        self._endless = endless

    @property
    def state(self) -> Any:
        return self._one.state

    @state.setter
    def state(self, value: Any) -> None:
        self._one.state = value

    @property
    def watermark(self) -> int:
        return self._time.passed

    @property
    def processing_time(self) -> int:
        return self._record.processing_time

    def register_event_time(self, time: int) -> None:
        if time > self._time.passed and not self._endless:
            self._one.timers.add((False, time))
            self._record.timers.register_event_time(time, namespace=self._one.namespace)

    def register_processing_time(self, time: int) -> None:
        self._one.timers.add((True, time))
        self._record.timers.register_processing_time(time, namespace=self._one.namespace)

    def delete_event_time(self, time: int) -> None:
        self._delete(False, time)

    def delete_processing_time(self, time: int) -> None:
        self._delete(True, time)

    def take(self, processing: bool, time: int, is_due: bool) -> None:
        """Mark a timer as handled; ``is_due``: it is due now, not later."""
        if is_due:
            self._one.timers.discard((processing, time))
        else:
            self._delete(processing, time)

    def delete_all(self) -> None:
        """Delete all timers."""
        for processing, time in sorted(self._one.timers):
            self._delete(processing, time)

    def _delete(self, processing: bool, time: int) -> None:
        if (processing, time) not in self._one.timers:
            return
        self._one.timers.discard((processing, time))
        if processing == (self._time.domain == "processing") and time == self._time.expiry(
            self._one.window.end
        ):
            return  # the window's own timer has the same time
        timers, namespace = self._record.timers, self._one.namespace
        (timers.delete_processing_time if processing else timers.delete_event_time)(time, namespace=namespace)


def _is_global(window: TimeWindow) -> bool:
    """Whether the window never ends."""
    return window.end == MAX_WATERMARK


class TriggeredRows(WindowRows):
    """Calls the trigger, the evictor and the assigner."""

    def __init__(
        self,
        assigner: WindowAssigner,
        trigger: Trigger,
        evictor: Evictor | None,
        time: WindowTime,
        context: OperatorContext,
        callbacks: WindowCallbacks,
        span: tuple[int, int] = (MIN_WATERMARK, MAX_WATERMARK),
    ) -> None:
        text = f"{assigner.text} by {trigger.text}"
        super().__init__(time, context, callbacks, span, text, [pa.field(_TIME, pa.int64())])
        self._assigner, self._trigger, self._evictor = assigner, trigger, evictor
        fields = [("start", pa.int64()), ("end", pa.int64()), ("namespace", pa.int64())]
        state = trigger.state_type or pa.bool_()  # always null if the trigger has no state
        one = pa.struct([*fields, ("timers", pa.list_(_TIMER)), ("state", state)])
        self._windows: ValueState[list[dict[str, Any]]] = context.get_state(
            ValueStateDescriptor(WINDOWS_STATE, pa.list_(one))
        )

    async def _add(self, row: Row, at: int, ctx: RecordContext) -> None:
        """Store a row in each of its windows, or count it as late; fire the windows that their trigger fires."""
        open_windows = [_Open.of(stored) for stored in await self._windows.async_value() or ()]
        windows = list(self._assigner.assign(row, at))
        if any(start < MIN_WATERMARK or end > MAX_WATERMARK for start, end in windows):
            self._outside.add()
            return
        late = bool(windows)
        for window in windows:
            if window.end <= window.start:
                raise OperatorError(
                    f"the assigner returned the window {window}, which ends before it starts; check its sizes"
                )
            one = await self._opened(TimeWindow(*window), open_windows, ctx)
            if one is None:
                continue
            late = False
            self._rows.at(one.namespace).async_add({_TIME: at, **row.as_dict()})
            context = _Context(ctx, self._time, one)
            await self._act(await resolved(self._trigger.on_element(row, at, one.window, context)), one, ctx)
        if late:
            self._add_late(row, ctx)
        self._store(open_windows)

    async def on_timer(self, timer: Timer, ctx: RecordContext) -> None:
        """Call the trigger, and remove the window if it expires now."""
        open_windows = [_Open.of(stored) for stored in await self._windows.async_value() or ()]
        one = next((each for each in open_windows if each.namespace == timer.namespace), None)
        if one is None:
            return
        processing = timer.domain is TimeDomain.PROCESSING_TIME
        await self._ask(one, processing, timer.time, ctx)
        in_domain = processing == (self._time.domain == "processing")
        if in_domain and timer.time == self._time.expiry(one.window.end) and not _is_global(one.window):
            await self._forget(one, ctx)
            open_windows.remove(one)
        self._store(open_windows)

    async def _ask(self, one: _Open, processing: bool, until: int, ctx: RecordContext) -> None:
        """Call the trigger for each of its timers up to ``until``, in order: timers that it registers meanwhile would
        otherwise fire after others that are already due."""
        ends = self._time.domain == "event" and not _is_global(one.window)  # by the watermark
        endless = not ends and ctx.watermark == MAX_WATERMARK
        context = _Context(ctx, self._time, one, endless)
        asked = self._trigger.on_processing_time if processing else self._trigger.on_event_time
        while due := [time for kind, time in one.timers if kind is processing and time <= until]:
            time = min(due)
            context.take(processing, time, is_due=time == until)
            await self._act(await resolved(asked(time, one.window, context)), one, ctx)

    # -- windows ------------------------------------------------------------------------------------------

    async def _opened(self, window: TimeWindow, known: list[_Open], ctx: RecordContext) -> _Open | None:
        """The open window for a row in ``window``; None: it has expired."""
        if self._assigner.merges:
            return await self._merged(window, known, ctx)
        found = next((one for one in known if one.window == window), None)
        if found is None and not self._time.is_over(window.end):
            found = self._open(window, known, ctx)
        return found

    async def _merged(self, window: TimeWindow, known: list[_Open], ctx: RecordContext) -> _Open | None:
        touched = [one for one in known if one.window.start <= window.end and window.start <= one.window.end]
        start = min([window.start, *(one.window.start for one in touched)])
        union = TimeWindow(start, max([window.end, *(one.window.end for one in touched)]))
        if not touched:
            return None if self._time.is_over(window.end) else self._open(window, known, ctx)
        first, *others = touched
        if union == first.window and not others:
            return first
        for one in touched:
            _Context(ctx, self._time, one).delete_all()
            self._end_timer(one, ctx, register=False)
        states = [one.state for one in touched if one.state is not None]
        first.window, first.state = union, self._trigger.merge_states(states) if states else None
        self._end_timer(first, ctx, register=True)
        for one in others:
            known.remove(one)
        if others:
            await self._rows.async_merge_namespaces(first.namespace, [one.namespace for one in others])
        await resolved(self._trigger.on_merge(union, _Context(ctx, self._time, first)))
        return first

    def _open(self, window: TimeWindow, known: list[_Open], ctx: RecordContext) -> _Open:
        one = _Open(window, 1 + max((other.namespace for other in known), default=-1))
        known.append(one)
        self._end_timer(one, ctx, register=True)
        return one

    def _end_timer(self, one: _Open, ctx: RecordContext, register: bool) -> None:
        """Register or delete the timer of the window's expiry; a global window has none."""
        if not _is_global(one.window):
            act = self._time.register if register else self._time.delete
            act(ctx, self._time.expiry(one.window.end), one.namespace)

    async def _forget(self, one: _Open, ctx: RecordContext) -> None:
        context = _Context(ctx, self._time, one)
        await resolved(self._trigger.clear(one.window, context))
        context.delete_all()
        await self._rows.at(one.namespace).async_clear()
        await self._expire(ctx, one.window, one.namespace)

    def _store(self, open_windows: Sequence[_Open]) -> None:
        self._windows.update([one.stored() for one in open_windows] or None)

    # -- rows ---------------------------------------------------------------------------------------------

    async def _act(self, result: Any, one: _Open, ctx: RecordContext) -> None:
        if not isinstance(result, TriggerResult):
            raise OperatorError(
                f"the trigger {type(self._trigger).__name__} returned {result!r}; return a TriggerResult"
            )
        rows = self._rows.at(one.namespace)
        if not result.fires:
            if result.purges:
                await rows.async_clear()
            return
        stored = await to_iterable(rows.async_get())
        seen = [TimedRow(self._row(list(each.values())[1:]), each[_TIME]) for each in stored]
        left = seen if self._evictor is None else list(self._evictor.evict_before(seen, one.window))
        if left:
            await self._fire(ctx, one.window, one.namespace, [each.row for each in left])
        if result.purges:
            await rows.async_clear()
        elif self._evictor is not None:
            stay = list(self._evictor.evict_after(left, one.window))
            if len(stay) != len(stored):
                await rows.async_update([{_TIME: each.timestamp, **each.row.as_dict()} for each in stay])
