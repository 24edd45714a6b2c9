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

from asyncstate.codec import KeyCodec
from asyncstate.operator import (
    MAX_WATERMARK,
    MIN_WATERMARK,
    Bundle,
    BundleContext,
    OperatorContext,
    RecordContext,
)
from asyncstate.partial_aggregation import local_rows

from ..core.arrays import Int64Array
from ..core.operator_checks import TimeDomain
from .windows import Window, due_until

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
        self._register(ctx, self.expiry(end) if self.has_fired(end) else self.due(end), namespace)

    def delete_timer(self, ctx: RecordContext, end: int, namespace: int) -> None:
        """Delete the timer of ``set_timer``, from this micro-batch or an earlier one."""
        time = self.expiry(end) if self.has_fired(end) else self.due(end)
        if self.domain == "event":
            ctx.timers.delete_event_time(time, namespace=namespace)
        else:
            ctx.timers.delete_processing_time(time, namespace=namespace)

    def set_expiry(self, ctx: RecordContext, end: int, namespace: int) -> None:
        """Set the key's timer to when the window, which fires now, expires."""
        self._register(ctx, self.expiry(end), namespace)

    def _register(self, ctx: RecordContext, time: int, namespace: int) -> None:
        if self.domain == "event":
            ctx.timers.register_event_time(time, namespace=namespace)
        else:
            ctx.timers.register_processing_time(time, namespace=namespace)


class BundleTime:
    """The times of a micro-batch's bundles, in event or processing time, and which windows are due in it.

    In processing time all rows have the time at which the micro-batch started, so none is late.
    """

    def __init__(self, domain: TimeDomain, window: Window, codec: KeyCodec, context: OperatorContext) -> None:
        self.processing = domain == "processing"
        self._now = context.processing_time
        self._span = window.time_span
        self._codec = codec
        self._key = context.inputs[0].key
        self._is_local = context.inputs[0].local is not None
        self._outside = context.counter(OUT_OF_RANGE)

    def in_range(self, bundle: Bundle) -> Bundle:
        """The bundle without the rows whose windows are out of range, which are counted."""
        first, last = self._span
        times = bundle.times
        if self.processing or times is None or not len(times):
            return bundle
        if first <= int(times.min()) and int(times.max()) <= last:
            return bundle
        fits = (first <= times) & (times <= last)
        self._outside.add(self.rows(bundle, ~fits))
        kept = pa.array(fits)
        batch = bundle.batch.filter(kept)
        keys = self._codec.group([batch.column(name) for name in self._key], num_rows=batch.num_rows)
        return Bundle(batch, keys, bundle.kinds[fits], times[fits], bundle.input_index)

    def of_rows(self, bundle: Bundle) -> Int64Array:
        """The time of each row (n)."""
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
