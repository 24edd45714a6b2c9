"""The time of rows and windows: when a window is due, when it expires, and which times are out of range.

Owns: ``WindowTime``, at record grain, which sets the timers, and ``BundleTime``.
Invariant: an open window has exactly one timer: the one at which it is due, afterwards the one at which it expires.
Must not import anything of ``asyncstate`` but ``codec``, ``partial_aggregation`` and ``operator``.

Source: the event-time and processing-time triggers of Flink's ``WindowOperator``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from asyncstate.codec.times import event_times
from asyncstate.operator import (
    MAX_WATERMARK,
    MIN_WATERMARK,
    Bundle,
    BundleContext,
    OperatorContext,
    RecordContext,
)
from asyncstate.partial_aggregation import local_rows

from ..core.arrays import BoolArray, Int64Array, valid_rows
from ..core.operator_checks import TimeDomain
from .windows import END, START, GivenWindows, Window, due_until

NULL_WINDOWS: Final = "null_windows"
"""The counter of rows that are dropped because they should carry their window, but its start or end is null."""

OUT_OF_RANGE: Final = "event_times_out_of_range"
"""The counter of rows that are dropped because one of their windows would begin or end outside int64 microseconds."""


@dataclass(frozen=True)
class WindowTime:
    """Windows over event or processing time; ``lateness`` in microseconds. ``passed``: timers up to it have fired.

    In event time a window is due when the watermark has reached its end - 1 us, the last time inside it. In processing
    time it is due when a micro-batch starts at its end or later: rows take the time at which their micro-batch
    started, so one that starts at end - 1 us still adds to the window.
    """

    domain: TimeDomain
    lateness: int
    passed: int

    @classmethod
    def of(cls, domain: TimeDomain, lateness: int, context: OperatorContext) -> WindowTime:
        """The time of this micro-batch. In processing time nothing is late."""
        return cls(domain, lateness, context.previous_watermark if domain == "event" else MIN_WATERMARK)

    def of_row(self, ctx: RecordContext) -> int:
        """The time of the current record."""
        if self.domain == "processing":
            return ctx.processing_time
        assert ctx.timestamp is not None  # rows without an event time never reach an operator
        return ctx.timestamp

    def due(self, end: int) -> int:
        """When the window that ends at ``end`` fires."""
        return end - 1 if self.domain == "event" else end

    def expiry(self, end: int) -> int:
        """When the rows of the window that ends at ``end`` are deleted."""
        return min(self.due(end) + self.lateness, MAX_WATERMARK)

    def is_over(self, end: int) -> bool:
        """True when the window has expired: a row for it is late."""
        return self.expiry(end) <= self.passed

    def has_fired(self, end: int) -> bool:
        """True when the window was due before this micro-batch: a row for it fires it at once."""
        return self.due(end) <= self.passed

    def set_timer(self, ctx: RecordContext, end: int, namespace: int) -> None:
        """Set the key's timer to when the window is due, or, if it has fired, to when it expires."""
        self.register(ctx, self.expiry(end) if self.has_fired(end) else self.due(end), namespace)

    def delete_timer(self, ctx: RecordContext, end: int, namespace: int) -> None:
        """Delete the timer of ``set_timer``, from this micro-batch or an earlier one."""
        self.delete(ctx, self.expiry(end) if self.has_fired(end) else self.due(end), namespace)

    def register(self, ctx: RecordContext, time: int, namespace: int) -> None:
        """Set a timer of the key at ``time``."""
        if self.domain == "event":
            ctx.timers.register_event_time(time, namespace=namespace)
        else:
            ctx.timers.register_processing_time(time, namespace=namespace)

    def delete(self, ctx: RecordContext, time: int, namespace: int) -> None:
        """Delete the timer of ``register``."""
        if self.domain == "event":
            ctx.timers.delete_event_time(time, namespace=namespace)
        else:
            ctx.timers.delete_processing_time(time, namespace=namespace)


class BundleTime:
    """The times of the rows of one input, in event or processing time, and which windows are due in a micro-batch.

    In processing time all rows have the time at which the micro-batch started, so none is late. Rows that carry their
    windows have the ends of these.
    """

    def __init__(
        self,
        domain: TimeDomain,
        window: Window | GivenWindows,
        context: OperatorContext,
        input_index: int = 0,
    ) -> None:
        spec = context.inputs[input_index]
        self.processing = domain == "processing"
        self._now = context.processing_time
        self._span = None if isinstance(window, GivenWindows) else window.time_span
        self._codec = context.key_codec
        self._key = spec.key
        self._is_local = spec.local is not None
        self._outside = context.counter(NULL_WINDOWS if self._span is None else OUT_OF_RANGE)

    def in_range(self, bundle: Bundle) -> Bundle:
        """The bundle without the rows that have no window, or one that is out of range; these are counted."""
        inside = self._inside(bundle)
        if inside is None:
            return bundle
        self._outside.add(self.rows(bundle, ~inside))
        return self.part(bundle, np.flatnonzero(inside))

    def _inside(self, bundle: Bundle) -> BoolArray | None:
        """Which rows (n) have a window in range; None: all."""
        if self._span is None:
            return valid_rows([bundle.batch.column(START), bundle.batch.column(END)])
        times, (first, last) = bundle.times, self._span
        if self.processing or times is None or not len(times):
            return None
        if first <= int(times.min()) and int(times.max()) <= last:
            return None
        return (first <= times) & (times <= last)

    def part(self, bundle: Bundle, rows: Int64Array) -> Bundle:
        """Some rows of a bundle."""
        batch = bundle.batch.take(pa.array(rows))
        keys = self._codec.group([batch.column(name) for name in self._key], num_rows=len(rows))
        times = None if bundle.times is None else bundle.times[rows]
        return Bundle(batch, keys, bundle.kinds[rows], times, bundle.input_index)

    def of_rows(self, bundle: Bundle) -> Int64Array:
        """The time of each row (n)."""
        if self._span is None:
            return event_times(bundle.batch.column(END))
        if self.processing:
            return np.full(bundle.num_rows, self._now, np.int64)
        assert bundle.times is not None  # WindowPlan requires an event time
        return bundle.times

    def rows(self, bundle: Bundle, chosen: npt.NDArray[np.bool_]) -> int:
        """The number of input rows that the chosen rows (n) of a bundle represent."""
        return int(local_rows(bundle.batch)[chosen].sum() if self._is_local else chosen.sum())

    def due(self, ctx: BundleContext) -> tuple[int, int]:
        """The latest end of windows that were due before this micro-batch, and of those that are due at its end."""
        if self.processing:
            return ctx.previous_processing_time, ctx.processing_time
        return due_until(ctx.previous_watermark), due_until(ctx.watermark)
