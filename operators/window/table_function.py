"""WindowTableFunction: each row once for each of its windows, with the window's bounds.

Owns: the operator.
Invariant: it keeps nothing: what comes of a row depends on that row alone, so that a retraction gets the same windows.
Must not import anything of ``asyncstate`` but ``operator``.

Source: Flink SQL's window table-valued functions TUMBLE, HOP and CUMULATE.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from asyncstate.operator import Bundle, BundleContext, BundleOperator, InputSpec, OperatorContext
from operators.core.arrays import take_rows
from operators.core.checks import Named, TimeDomain, check_has_time, check_time_domain
from operators.window.plan import WINDOW_COLUMNS, check_window_names, window_time_type
from operators.window.time import OUT_OF_RANGE
from operators.window.windows import WINDOW_TIME_US, SlicedWindow, check_sliced


class WindowTableFunction(Named, BundleOperator):
    """The rows of the input with ``window_start``, ``window_end`` and ``window_time`` (the end - 1 ms) behind them.

    ``window``: made with ``tumble``, ``hop`` or ``cumulate``. A row comes out once for each of its windows, by their
    ends, with its own kind, in the order in which rows came. ``time``: "event", the input's event time, or
    "processing", the time at which the micro-batch started. ``WindowRank``, ``WindowDeduplicate`` and ``WindowJoin``
    take such rows, and so do aggregates with the window columns in their key.

    Rows of event times so near to the ends of int64 that a window of theirs would not fit are dropped and counted
    (``event_times_out_of_range``); rows without an event time never reach the operator.

    It is stateless: in a job it is given no key, and its rows go through no exchange. The ``watermark_delay`` stands at
    the operator behind it.

    >>> from asyncstate.testing import OperatorHarness
    >>> from operators import hop
    >>> bids = pa.schema([("item", pa.string()), ("at", pa.timestamp("us"))])
    >>> windows = WindowTableFunction(hop("10 seconds", "5 seconds"))
    >>> with OperatorHarness(windows, bids, None, event_time="at") as harness:
    ...     harness.push([("pen", 6_000_000)])
    ...     for row in harness.end_batch():
    ...         print(row)
    ('+I', 'pen', 6000000, 0, 10000000, 9999000)
    ('+I', 'pen', 6000000, 5000000, 15000000, 14999000)
    """

    stateless = True

    def __init__(self, window: SlicedWindow, *, time: TimeDomain = "event") -> None:
        check_sliced(window, self.owner)
        check_time_domain(time, self.owner)
        self.window = window
        self.time: TimeDomain = time

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        """The input's columns and those of the window."""
        spec = inputs[0]
        check_has_time(spec, self.time, self.owner)
        check_window_names(spec.schema, self.owner)
        zoned = window_time_type(spec)
        return pa.schema([*spec.schema, *(pa.field(name, zoned) for name in WINDOW_COLUMNS)])

    def open(self, context: OperatorContext) -> None:
        """Nothing to declare."""
        self._now = context.processing_time
        self._outside = context.counter(OUT_OF_RANGE)
        self._time_type = window_time_type(context.inputs[0])

    def process_bundle(self, bundle: Bundle, ctx: BundleContext) -> Any:
        """See ``BundleOperator``."""
        times = np.full(bundle.num_rows, self._now, np.int64) if self.time == "processing" else bundle.times
        assert times is not None  # ``bind`` asks for an event time
        first, last = self.window.time_span
        inside = np.flatnonzero((first <= times) & (times <= last))
        self._outside.add(bundle.num_rows - len(inside))
        if not len(inside):
            return
        places, ends = self.window.assign(times[inside])
        rows = inside[places]
        bounds = (self.window.window_start(ends), ends, ends - WINDOW_TIME_US)
        windows = [pa.array(column).view(self._time_type) for column in bounds]
        ctx.emit([*take_rows(bundle.batch.columns, rows), *windows], bundle.kinds[rows])
