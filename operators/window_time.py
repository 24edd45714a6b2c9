"""When a window of rows is due, when it is forgotten, and the timer that tells.

Owns: ``WindowTime``.
Invariant: an open window has exactly one timer: the one at which it is due, afterwards the one at which it expires.
Must not import anything of ``asyncstate`` but ``operator``.

Source: the event-time and processing-time triggers of Flink's ``WindowOperator``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from asyncstate.operator import MAX_WATERMARK, MIN_WATERMARK, OperatorContext, RecordContext


@dataclass(frozen=True)
class WindowTime:
    """Windows over event or processing time; ``lateness`` in microseconds. ``passed``: timers up to it have fired.

    In event time a window is due when the watermark has reached its end - 1 us, the last time inside it. In processing
    time it is due when a micro-batch starts at its end or later: rows take the time at which their micro-batch
    started, so one that starts at end - 1 us still adds to the window.
    """

    domain: Literal["event", "processing"]
    lateness: int
    passed: int

    @classmethod
    def of(
        cls, domain: Literal["event", "processing"], lateness: int, context: OperatorContext
    ) -> WindowTime:
        """The time of this micro-batch. Nothing is late in processing time."""
        return cls(domain, lateness, context.previous_watermark if domain == "event" else MIN_WATERMARK)

    def of_row(self, ctx: RecordContext) -> int:
        """The time of the record at hand."""
        if self.domain == "processing":
            return ctx.processing_time
        assert ctx.timestamp is not None  # rows without an event time never reach an operator
        return ctx.timestamp

    def due(self, end: int) -> int:
        """When the window that ends there fires."""
        return end - 1 if self.domain == "event" else end

    def expiry(self, end: int) -> int:
        """When its rows are deleted."""
        return min(self.due(end) + self.lateness, MAX_WATERMARK)

    def is_over(self, end: int) -> bool:
        """True when it has expired: a row for it is late."""
        return self.expiry(end) <= self.passed

    def has_fired(self, end: int) -> bool:
        """True when its time has come before this micro-batch: a row for it fires it at once."""
        return self.due(end) <= self.passed

    def set_timer(self, ctx: RecordContext, end: int, namespace: int) -> None:
        """Have the key called when the window is due, or, if that has been, when it expires."""
        self._register(ctx, self.expiry(end) if self.has_fired(end) else self.due(end), namespace)

    def delete_timer(self, ctx: RecordContext, end: int, namespace: int) -> None:
        """Take back what ``set_timer`` has set, in this micro-batch or before."""
        time = self.expiry(end) if self.has_fired(end) else self.due(end)
        if self.domain == "event":
            ctx.timers.delete_event_time(time, namespace=namespace)
        else:
            ctx.timers.delete_processing_time(time, namespace=namespace)

    def set_expiry(self, ctx: RecordContext, end: int, namespace: int) -> None:
        """Have the key called when the window, which fires now, expires."""
        self._register(ctx, self.expiry(end), namespace)

    def _register(self, ctx: RecordContext, time: int, namespace: int) -> None:
        if self.domain == "event":
            ctx.timers.register_event_time(time, namespace=namespace)
        else:
            ctx.timers.register_processing_time(time, namespace=namespace)
