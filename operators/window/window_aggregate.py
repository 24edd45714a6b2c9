"""WindowAggregate: one row of aggregates for each key and window, once the window is over.

Owns: the operator. Slices and sessions are in ``operators.window.slices`` and ``operators.window.sessions``.
Invariant: the output is final: insert-only, each key and window once.
Must not import anything of ``asyncstate`` but ``changelog``, ``operator``, ``state``, ``futures``, ``codec``,
``errors`` and ``partial_aggregation``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from asyncstate.changelog import Changelog
from asyncstate.errors import SchemaError
from asyncstate.growth import StateGrowth, bounded_by
from asyncstate.operator import Bundle, BundleContext, InputSpec, OperatorContext, OutputSpec
from asyncstate.partial_aggregation import PartialAggregation, PartialStep

from ..aggregate.aggregate_calls import Aggregate, columns_of
from ..aggregate.aggregate_operator import AGGREGATE, AggregateOperator
from ..core.late_rows import LateRows, check_late_output, with_late_output
from ..core.operator_checks import KeepsKey, TimeDomain, check_insert_only, check_time_domain, never_null_key
from .session_rows import SessionValues
from .sessions import SessionAggregation
from .slices import SliceAggregation, local_layout
from .window_plan import WINDOW_COLUMNS, WindowPlan, declare_form, window_keys
from .windows import SessionWindow, Window, check_window


class Aggregation(Protocol):
    """How rows are assigned to windows and aggregated."""

    def prefetch(self, bundle: Bundle) -> None:
        """Hint which state the bundle will need (``state.prefetch(bundle.keys)``), while another one is processed."""

    def process(self, bundle: Bundle, ctx: BundleContext) -> Any:
        """Add a bundle's rows; returns what ``process_bundle`` may return."""

    def fire(self, ctx: BundleContext) -> Any:
        """Emit what is due at the end of the micro-batch; returns what ``on_watermark`` may return."""


class WindowAggregate(KeepsKey, AggregateOperator):
    """SQL's GROUP BY over the key columns and a window of time.

    Example, the bids on each auction in the last hour, once a minute, with key=["auction"]::

        WindowAggregate(hop("1 hour", "1 minute"), [count().alias("bids"), max_("price")])

    Output: the key columns, ``window_start``, ``window_end`` and ``window_time`` (the end - 1 ms, the event
    time of the row for downstream operators), microseconds, then one column per aggregate. All rows are +I. A window
    fires at the end of the micro-batch whose watermark reaches its end - 1 us, by window end, then in the
    order of the store (key group, key). Windows without rows emit none; without key columns there is one row
    per window. Rows for windows that have all fired before the micro-batch are dropped and counted
    (``late_rows``), as are retractions of rows that do not exist (``retractions_without_state``); a row of a
    hopping window that is late for some windows counts for the others. For sessions see
    ``SessionAggregation``.

    With partial aggregation its bundles are accumulators of rows of one slice, aggregated before the exchange; output,
    state and errors are the same, but over a changelog only the net change of a slice's rows is checked.

    A changelog input may retract rows as long as their windows have not fired.

    Where a window is not the sum of its slices (``distinct()``; functions that do not merge, or have views) hopping and
    cumulating windows keep one state per window and each row changes all of its windows. Sessions then keep their rows;
    over a changelog they keep them for all aggregates but count, sum and avg.

    The only aggregate may be one of ``udtaf``: its columns then follow those of the window. There is one row for each
    that ``emit_value`` emits for the window's rows, so a window may have several rows, or none.

    With ``time="processing"`` the time of a row is that at which its micro-batch started. A window fires in the first
    micro-batch that starts at its end or later, without the rows of that one; no row is late. At the end of the input
    only windows fire that are over by the clock. A retracted row is removed from the windows, or the session, of the
    time at which it is retracted, as one of the key's rows there; from sessions that keep their rows, an equal row is
    removed.

    Rows with event times so close to the limits of int64 that one of their windows would not fit are dropped and
    counted (``event_times_out_of_range``).

    With ``late_output`` late rows go to the side output of that name, with the input's columns and their kinds, and are
    still counted. There is then no partial aggregation, which would merge them before it is known that they are late;
    sessions, of insert-only inputs, keep all columns of their rows.

    State: see ``SliceAggregation`` and ``SessionAggregation``; window and time belong to the state's declaration.

    Source: Flink SQL's window aggregation over window table-valued functions, in one phase and in two. Raises
    SchemaError for columns that do not fit and OperatorError for sums that do not.
    """

    takes_later = True
    takes_tables = True

    def __init__(
        self,
        window: Window,
        aggregates: Sequence[Aggregate] = (),
        *,
        time: TimeDomain = "event",
        late_output: str | None = None,
    ) -> None:
        check_window(window, self.owner)
        check_time_domain(time, self.owner)
        check_late_output(late_output, time, self.owner)
        super().__init__(aggregates)
        self.window = window
        self.time: TimeDomain = time
        self.waits_for_watermark = time == "event"
        self.late_output = late_output

    def bind(self, inputs: Sequence[InputSpec]) -> OutputSpec:
        """Key columns, window columns and one column per aggregate, or those of a function's rows."""
        if self.late_output is not None and isinstance(self.window, SessionWindow):
            check_insert_only(inputs[0], self.owner, "it without late_output")
        plan = self._plan(inputs[0])
        keys = window_keys(inputs[0].key, self.window) if plan.table is None else ()
        return with_late_output(plan.schema, self.late_output, inputs[0], self._changes(keys, inputs[0]))

    def _changes(self, keys: Sequence[tuple[str, ...]], spec: InputSpec) -> Changelog:
        return Changelog.insert_only(*keys).without_nulls_in(self._never_null(spec))

    def _never_null(self, spec: InputSpec) -> set[str]:
        """The columns of the key and the window that are known to have no nulls."""
        return {*WINDOW_COLUMNS, *never_null_key(spec)}

    def _plan(self, spec: InputSpec) -> WindowPlan:
        late_rows = self.late_output is not None
        plan = WindowPlan(
            self.window, self.aggregates, spec, self.time, self.owner, self.shows_again, late_rows
        )
        if plan.keeps_rows:
            self._check_none_later("sessions that keep their rows")
        return plan

    @property
    def shows_again(self) -> bool:
        """Whether a window may be emitted more than once."""
        return False

    def _check_none_later(self, what: str) -> None:
        later = next((one.name for one in self.aggregates if one.starts_now), None)
        if later is not None:
            raise SchemaError(
                f"{self.owner}: '{later}' has starting_now(), which {what} do not support; give the operator a new "
                "uid"
            )

    def required_columns(self, inputs: Sequence[InputSpec]) -> Sequence[Collection[str] | None]:
        """The aggregated columns, and those of conditions; if rows may be late, all columns."""
        return [columns_of(self.aggregates) if self.late_output is None else None]

    def state_growth(self, inputs: Sequence[InputSpec]) -> StateGrowth | None:
        """See ``Operator``: a window is removed when it is over."""
        return bounded_by("window")

    def state_meaning(self, inputs: Sequence[InputSpec]) -> Mapping[str, str]:
        """What the stored state depends on in addition to its types, as names and texts: ``{"kind": "left"}``."""
        window, time = self._plan(inputs[0]).stored.text, self.time
        return {**super().state_meaning(inputs), "window": window, "time": time}

    def change_refusal(
        self, name: str, was: str | None, now: str | None, inputs: Sequence[InputSpec]
    ) -> str | None:
        """See ``Operator``: a window is emitted once, so only its states count."""
        return None if name.startswith(AGGREGATE) else ""

    def open(self, context: OperatorContext) -> None:
        """Declare the state."""
        plan = self._plan(context.inputs[0])
        self._aggregation: Aggregation
        if not isinstance(self.window, SessionWindow):
            late = LateRows(self.late_output, context)
            self._aggregation = SliceAggregation(self.window, plan, context, late)
        else:
            self._aggregation = self._sessions(self.window, plan, context)
            declare_form(context, plan.belongs_to)

    def _sessions(self, window: SessionWindow, plan: WindowPlan, context: OperatorContext) -> Aggregation:
        if not plan.keeps_rows:
            return SessionAggregation(window, plan, context)
        needed = columns_of(self.aggregates)
        return SessionValues(window, self._counts(context), plan, needed, context, self.late_output)

    def _counts(self, context: OperatorContext) -> WindowPlan:
        """The plan of the same windows without aggregates."""
        return WindowPlan(self.window, (), context.inputs[0], self.time, self.owner)

    def partial_aggregation(self, inputs: Sequence[InputSpec]) -> PartialAggregation | None:
        """Rows of a key and slice as accumulators; none for sessions, nor for minima and maxima of a changelog, nor
        with ``late_output``.

        In processing time none for any changelog: a window may contain only some of the rows that would be aggregated
        together.
        """
        if isinstance(self.window, SessionWindow) or self.late_output is not None:
            return None
        if self.time == "processing" and inputs[0].changelog:
            return None
        return local_layout(self._plan(inputs[0]), self.window).phase

    def partial_step(self, given: InputSpec) -> PartialStep:
        """The step that makes the rows of ``given.row_schema`` from some rows of the input, if ``given.local`` is
        what ``partial_aggregation`` returned; or selects those that ``given.limit``, what ``partial_limit`` returned,
        lets through."""
        assert not isinstance(self.window, SessionWindow)
        return local_layout(self._plan(given), self.window).step(given)

    def prefetch(self, bundle: Bundle) -> None:
        """Hint which state the bundle will need (``state.prefetch(bundle.keys)``), while another one is processed."""
        self._aggregation.prefetch(bundle)

    def process_bundle(self, bundle: Bundle, ctx: BundleContext) -> Any:
        """Handle the rows of one input."""
        return self._aggregation.process(bundle, ctx)

    def on_watermark(self, watermark: int, ctx: BundleContext) -> Any:
        """Called once per micro-batch and partition, after all bundles (also when there was none)."""
        return self._aggregation.fire(ctx)
