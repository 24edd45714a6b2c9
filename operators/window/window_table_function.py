"""WindowTableFunction: each row once for each of its windows, with the window's bounds.

Owns: the operator, for windows that follow from the time of a row and for sessions, which do not.
Invariant: for the former it keeps no state: the output for a row depends on that row alone, so that a retraction gets
the same windows.
Must not import anything of ``asyncstate`` but ``changelog``, ``errors`` and ``operator``.

Source: Flink SQL's window table-valued functions TUMBLE, HOP, CUMULATE and SESSION.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import pyarrow as pa

from asyncstate.changelog import Changelog
from asyncstate.errors import SchemaError
from asyncstate.growth import StateGrowth, bounded_by
from asyncstate.operator import (
    Bundle,
    BundleContext,
    BundleOperator,
    InputSpec,
    OperatorContext,
    OutputSpec,
)

from ..core.arrays import take_rows
from ..core.late_rows import check_late_output, with_late_output
from ..core.operator_checks import Named, TimeDomain, check_has_time, check_insert_only, check_time_domain
from .session_rows import SessionRows
from .window_plan import (
    WINDOW_COLUMNS,
    WindowPlan,
    check_window_names,
    window_columns,
    window_fields,
)
from .window_time import BundleTime
from .windows import SessionWindow, SlicedWindow, Window, check_sliced, check_window


class WindowTableFunction(Named, BundleOperator):
    """The rows of the input, followed by ``window_start``, ``window_end`` and ``window_time`` (the end - 1 ms).

    ``window``: made with ``tumble``, ``hop``, ``cumulate`` or ``session``. A row is emitted once for each of its
    windows, by their ends, with its own kind, in order of arrival. ``time``: "event", the input's event time, or
    "processing", the time at which the micro-batch started. ``WindowRank``, ``WindowDeduplicate`` and ``WindowJoin``
    take such rows, and so do aggregates with the window columns in their key.

    Rows with event times so close to the limits of int64 that one of their windows would not fit are dropped and
    counted (``event_times_out_of_range``); rows without an event time never reach the operator.

    Except for sessions it is stateless: in a job it has no key, and its rows go through no exchange. Set the
    ``watermark_delay`` at the operator downstream of it.

    A session belongs to a key of the input and is known only when it is over: rows are buffered until the watermark has
    passed the end of their session. They are then emitted, +I, by key, session and time. Rows whose session was over
    before their micro-batch are counted (``late_rows``) and dropped, or go to the side output that ``late_output``
    names. Until a session is over, a retraction removes a row that is equal to it in all columns but those of the
    input's ``sequence``; as in ``WindowAggregate`` that neither shortens nor splits the session. Retractions of rows
    that do not exist are counted (``retractions_without_state``). With ``time="processing"`` sessions take insert-only
    inputs. State: ``rows``, and ``sessions`` and ``session_ends`` as in ``WindowAggregate``.

    >>> from asyncstate.testing import OperatorHarness
    >>> from asyncstate.operators import hop
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

    def __new__(cls, window: Window | None = None, **_: Any) -> Self:
        """The class for sessions if ``window`` is one; pickle calls this without arguments."""
        sessions = cls is WindowTableFunction and isinstance(window, SessionWindow)
        made: Any = _SessionTableFunction if sessions else cls
        return super().__new__(made)  # type: ignore[no-any-return]

    def __init__(self, window: Window, *, time: TimeDomain = "event", late_output: str | None = None) -> None:
        check_window(window, self.owner)
        if self.stateless:  # sessions have their own subclass
            check_sliced(window, self.owner)
        check_time_domain(time, self.owner)
        check_late_output(late_output, time, self.owner)
        if late_output is not None and self.stateless:
            raise SchemaError(
                f"{self.owner}: late_output is for sessions; {window.text} drops no late rows here, only downstream "
                f"of {self.owner}: name it there"
            )
        self.window = window
        self.time: TimeDomain = time
        self.late_output = late_output

    @property
    def owner(self) -> str:
        """The same name for the class for sessions."""
        return WindowTableFunction.__name__

    def bind(self, inputs: Sequence[InputSpec]) -> OutputSpec:
        """The input's columns and those of the window."""
        spec = inputs[0]
        check_has_time(spec, self.time, self.owner)
        if self.time == "processing":  # a retraction does not say which window its row was in
            check_insert_only(spec, self.owner, "event time, in which rows can be retracted")
        check_window_names(spec.schema, self.owner)
        schema = pa.schema([*spec.schema, *window_fields(spec)])
        return with_late_output(schema, self.late_output, spec, self._changes(spec))

    def _changes(self, spec: InputSpec) -> Changelog:
        """The input's changes; in windows that share rows the window is part of the unique key."""
        assert isinstance(self.window, SlicedWindow)
        more = () if self.window.kind == "tumble" else (WINDOW_COLUMNS[1],)
        keys = [(*key, *more) for key in spec.changes.unique_keys]
        return spec.changes.with_keys(keys, {*spec.changes.never_null, *WINDOW_COLUMNS})

    def open(self, context: OperatorContext) -> None:
        """Nothing to declare."""
        self._times = BundleTime(self.time, self.window, context)
        self._spec = context.inputs[0]

    def process_bundle(self, bundle: Bundle, ctx: BundleContext) -> Any:
        """Handle the rows of one input, in parts, since a row may be in thousands of windows."""
        assert isinstance(self.window, SlicedWindow)
        bundle = self._times.in_range(bundle)
        for rows, ends in self.window.assign(self._times.of_rows(bundle)):
            windows = window_columns(self.window.window_start(ends), ends, self._spec)
            ctx.emit([*take_rows(bundle.batch.columns, rows), *windows], bundle.kinds[rows])
            yield


class _SessionTableFunction(WindowTableFunction):
    """The same operator for sessions."""

    stateless = False

    def _changes(self, spec: InputSpec) -> Changelog:
        # A row whose retraction is late is emitted again, in another session.
        more = (WINDOW_COLUMNS[1],) if spec.changelog else ()
        changes = Changelog.insert_only(*((*key, *more) for key in spec.changes.unique_keys))
        return changes.without_nulls_in({*spec.changes.never_null, *WINDOW_COLUMNS})

    def state_growth(self, inputs: Sequence[InputSpec]) -> StateGrowth | None:
        """See ``Operator``: a session is removed when it is over."""
        return bounded_by("window")

    def open(self, context: OperatorContext) -> None:
        """Declare the state."""
        assert isinstance(self.window, SessionWindow)
        plan = WindowPlan(self.window, (), context.inputs[0], self.time, self.owner)
        self._sessions = SessionRows(self.window, plan, context, late_output=self.late_output)

    def prefetch(self, bundle: Bundle) -> None:
        self._sessions.prefetch(bundle)

    def process_bundle(self, bundle: Bundle, ctx: BundleContext) -> Any:
        return self._sessions.process(bundle, ctx)

    def on_watermark(self, watermark: int, ctx: BundleContext) -> Any:
        return self._sessions.fire(ctx)
