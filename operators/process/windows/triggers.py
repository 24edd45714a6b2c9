"""Built-in triggers.

Owns: ``event_time``, ``processing_time``, ``count``, ``continuous_event_time``, ``continuous_processing_time``,
``purging``, ``delta`` and ``never``; ``fires_by_watermark``.
Invariant: those that fire at a window's end fire once for it, and then for each row that arrives later.
Must not import anything of ``asyncstate`` but ``durations``, ``errors``, ``functions``, ``operator``.

Source: ``org.apache.flink.streaming.api.windowing.triggers``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import pyarrow as pa

from asyncstate.durations import Duration, microseconds
from asyncstate.errors import SchemaError
from asyncstate.functions import TimeWindow, Trigger, TriggerContext, TriggerResult
from asyncstate.operator import Row
from asyncstate.program_text import said

from ...core.operator_checks import check_number

_CONTINUE, _FIRE = TriggerResult.CONTINUE, TriggerResult.FIRE


class _EventTime(Trigger):
    merges = True

    def on_element(self, row: Row, timestamp: int, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        if window.end - 1 <= ctx.watermark:
            return _FIRE
        ctx.register_event_time(window.end - 1)
        return _CONTINUE

    def on_event_time(self, time: int, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        return _FIRE if time == window.end - 1 else _CONTINUE

    def on_merge(self, window: TimeWindow, ctx: TriggerContext) -> None:
        if window.end - 1 > ctx.watermark:
            ctx.register_event_time(window.end - 1)


class _ProcessingTime(Trigger):
    merges = True

    def on_element(self, row: Row, timestamp: int, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        ctx.register_processing_time(window.end)
        return _CONTINUE

    def on_processing_time(self, time: int, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        return _FIRE if time == window.end else _CONTINUE

    def on_merge(self, window: TimeWindow, ctx: TriggerContext) -> None:
        ctx.register_processing_time(window.end)


class _Count(Trigger):
    state_type = pa.int64()
    merges = True

    def __init__(self, rows: int) -> None:
        check_number(rows, 1, "rows", "triggers.count")
        self.rows = rows

    def on_element(self, row: Row, timestamp: int, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        ctx.state = (ctx.state or 0) + 1
        if ctx.state < self.rows:
            return _CONTINUE
        ctx.state = None
        return _FIRE

    def merge_states(self, states: Sequence[Any]) -> Any:
        return sum(states)

    @property
    def text(self) -> str:
        return f"count({self.rows})"


class _Continuous(Trigger):
    """Fires at multiples of ``interval``; the state is the time of the next one."""

    state_type = pa.int64()
    merges = True
    name: ClassVar[str]

    def __init__(self, interval: Duration) -> None:
        self.interval = microseconds(interval, f"triggers.{self.name}", "interval")
        if self.interval < 1:
            raise SchemaError(f"triggers.{self.name}: interval is {interval!r}; give more than 0")

    def merge_states(self, states: Sequence[Any]) -> Any:
        return min(states)

    @property
    def text(self) -> str:
        return f"{self.name}({self.interval}us)"

    def next_after(self, time: int) -> int:
        """The first multiple after ``time``."""
        return time - time % self.interval + self.interval


class _ContinuousEventTime(_Continuous):
    name = "continuous_event_time"

    def on_element(self, row: Row, timestamp: int, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        if window.end - 1 <= ctx.watermark:
            return _FIRE
        if ctx.state is None:
            ctx.state = self.next_after(max(timestamp, ctx.watermark))
        self._register(window, ctx)
        return _CONTINUE

    def on_event_time(self, time: int, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        if time == window.end - 1:
            ctx.state = None  # a row that extends the window starts again
            return _FIRE
        if time != ctx.state:
            return _CONTINUE
        ctx.state = time + self.interval
        self._register(window, ctx)
        return _FIRE

    def on_merge(self, window: TimeWindow, ctx: TriggerContext) -> None:
        self._register(window, ctx)

    def _register(self, window: TimeWindow, ctx: TriggerContext) -> None:
        end = window.end - 1
        ctx.register_event_time(end)
        if ctx.state is not None:
            ctx.register_event_time(min(ctx.state, end))


class _ContinuousProcessingTime(_Continuous):
    name = "continuous_processing_time"

    def on_element(self, row: Row, timestamp: int, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        if ctx.state is None:
            ctx.state = self.next_after(ctx.processing_time)
            ctx.register_processing_time(ctx.state)
        return _CONTINUE

    def on_processing_time(self, time: int, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        if time != ctx.state:
            return _CONTINUE
        ctx.state = self.next_after(ctx.processing_time)
        ctx.register_processing_time(ctx.state)
        return _FIRE

    def on_merge(self, window: TimeWindow, ctx: TriggerContext) -> None:
        if ctx.state is not None:
            ctx.register_processing_time(ctx.state)


class _Purging(Trigger):
    """Another trigger's results, with a purge whenever it fires."""

    def __init__(self, trigger: Trigger) -> None:
        if not isinstance(trigger, Trigger):
            raise SchemaError(
                f"triggers.purging: {trigger!r} is not a trigger; give one, such as triggers.count(10)"
            )
        self.trigger = trigger
        self.state_type, self.merges = trigger.state_type, trigger.merges

    async def on_element(
        self, row: Row, timestamp: int, window: TimeWindow, ctx: TriggerContext
    ) -> TriggerResult:
        return await _purged(self.trigger.on_element(row, timestamp, window, ctx))

    async def on_event_time(self, time: int, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        return await _purged(self.trigger.on_event_time(time, window, ctx))

    async def on_processing_time(self, time: int, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        return await _purged(self.trigger.on_processing_time(time, window, ctx))

    def merge_states(self, states: Sequence[Any]) -> Any:
        return self.trigger.merge_states(states)

    def on_merge(self, window: TimeWindow, ctx: TriggerContext) -> Any:
        return self.trigger.on_merge(window, ctx)

    def clear(self, window: TimeWindow, ctx: TriggerContext) -> Any:
        return self.trigger.clear(window, ctx)

    @property
    def text(self) -> str:
        return f"purging({self.trigger.text})"


async def _purged(result: Any) -> TriggerResult:
    found = result if isinstance(result, TriggerResult) else await result
    return TriggerResult.FIRE_AND_PURGE if found.fires else found


class _Delta(Trigger):
    """The state is the measure of the row that fired last, or of the first row."""

    state_type = pa.float64()

    def __init__(self, threshold: float, measure: Callable[[Row], float]) -> None:
        self.threshold = threshold
        self.measure = measure

    def on_element(self, row: Row, timestamp: int, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        measured = float(self.measure(row))
        if ctx.state is None:
            ctx.state = measured
            return _CONTINUE
        if measured - ctx.state > self.threshold:  # false for NaN
            ctx.state = measured
            return _FIRE
        return _CONTINUE

    @property
    def text(self) -> str:
        return f"delta({self.threshold}, {said(self.measure)})"


class _Never(Trigger):
    merges = True

    def on_element(self, row: Row, timestamp: int, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        return _CONTINUE


def fires_by_watermark(trigger: Trigger) -> bool:
    """Whether the trigger is built-in and fires no window before the watermark has advanced."""
    if isinstance(trigger, _Purging):
        return fires_by_watermark(trigger.trigger)
    return isinstance(trigger, _EventTime | _ContinuousEventTime)


def event_time() -> Trigger:
    """Fires when the watermark passes the window's end; then at once for each row within the allowed lateness."""
    return _EventTime()


def processing_time() -> Trigger:
    """Fires in the first micro-batch that starts at the window's end or later."""
    return _ProcessingTime()


def count(rows: int) -> Trigger:
    """Fires whenever ``rows`` rows have arrived since it last fired."""
    return _Count(rows)


def continuous_event_time(interval: Duration) -> Trigger:
    """Fires whenever the watermark passes a multiple of ``interval``, and at the window's end."""
    return _ContinuousEventTime(interval)


def continuous_processing_time(interval: Duration) -> Trigger:
    """Fires in the first micro-batch at or after each multiple of ``interval`` of processing time."""
    return _ContinuousProcessingTime(interval)


def purging(trigger: Trigger) -> Trigger:
    """Fires as ``trigger``, and deletes the window's rows whenever it fires."""
    return _Purging(trigger)


def delta(threshold: float, measure: Callable[[Row], float]) -> Trigger:
    """Fires when a row measures more than ``threshold`` above the one that fired last (at first: the first row)."""
    return _Delta(threshold, measure)


def never() -> Trigger:
    """Never fires: the default of global windows, which need another trigger to fire."""
    return _Never()
