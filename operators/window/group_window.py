"""GroupWindowAggregate: windows of time or of rows that can also emit their aggregates early and late.

Owns: the operator. ``operators.window.emitted`` decides when a row is emitted, ``early_late`` from which state; windows
that are emitted once are those of ``WindowAggregate``; windows of rows are in ``counts``.
Invariant: the net output is one row for each key and window.
Must not import anything of ``asyncstate`` but ``changelog``, ``errors``, ``partial_aggregation``, ``operator`` and
``durations``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from asyncstate.changelog import Changelog
from asyncstate.durations import Duration
from asyncstate.errors import SchemaError
from asyncstate.growth import StateGrowth, bounded_by, rows_per_key
from asyncstate.operator import Bundle, BundleContext, InputOrder, InputSpec, OperatorContext, OutputSpec
from asyncstate.partial_aggregation import PartialAggregation

from ..aggregate.aggregate_calls import Aggregate, columns_of
from ..aggregate.aggregate_operator import AggregateOperator
from ..core.late_rows import LateRows, check_late_output, with_late_output
from ..core.operator_checks import TimeDomain, check_has_time, check_time_domain
from .counts import CountAggregation, CountWindow, count_schema
from .early_late import UpdatedSessionRows, UpdatedSessions, UpdatedSlices
from .emitted import WindowEmission
from .window_aggregate import Aggregation, WindowAggregate
from .window_plan import WINDOW_COLUMNS, WindowPlan, declare_form
from .windows import SessionWindow, Window


class GroupWindowAggregate(WindowAggregate):
    """``WindowAggregate`` that can emit a window early, and again when late rows arrive; and windows of n rows.

    Example, the bids on each auction by the hour, updated every ten seconds, with rows that arrive up to a minute
    late::

        GroupWindowAggregate(tumble("1 hour"), [count()], early="10 seconds", allowed_lateness="1 minute")

    ``window``: ``tumble``, ``hop``, ``cumulate``, ``session``, ``count_tumble(n)`` or ``count_hop(n, slide)``.

    ``early``: a change of a window is emitted this long after its arrival, in processing time, in the first micro-batch
    that starts then or later; 0: at the end of its micro-batch; None: not before the window's end. When the window is
    due it is emitted in any case. ``allowed_lateness``: how long (in event time) a window is kept after its end while
    rows for it still count; ``late``: how long their change waits, in processing time, by default 0. When a window
    expires all its changes have been emitted.

    Output: as that of ``WindowAggregate``. The first row of a window is +I; when its aggregates have changed -U and +U
    (only +U with ``emit_update_before=False``); when it has lost all its rows -D. A session that has grown is another
    row: the emitted one is retracted (-D), and the new one emitted (+I), at the end of that micro-batch. Without
    ``early`` and ``allowed_lateness`` a window emits one row, and the operator is ``WindowAggregate``. Rows for windows
    that have expired are dropped and counted (``late_rows``).

    Sessions that are emitted more than once keep their rows, and read them whenever they are emitted, where aggregates
    do not merge (distinct values, functions without ``merge`` or with views) or cannot retract rows (extremes,
    functions without ``retract``), and with ``late_output``.

    With a function of ``udtaf`` (see ``WindowAggregate``) a window that has changed emits -D for rows that are gone
    and +I for rows that are new; ``emit_update_before=False`` is then rejected.

    Count windows have the key's rows in order of event time (``time="event"``; rows that the watermark had passed are
    dropped and counted, ``late_rows_dropped``) or of arrival (``time="processing"``). A window is emitted, as +I, when
    its last row has arrived; the output has only key columns and aggregates. ``early`` and lateness do not apply to
    them, and the input must be insert-only.

    ``late_output``: as of ``WindowAggregate``, for rows of windows that have expired.

    State: as that of ``WindowAggregate``; with updates also ``emitted``, one row per window that has been emitted or is
    scheduled to be, and ``firings``; for count windows see ``CountAggregation``.

    Source: Flink's group windows, ``AggregateWindowOperator``. Raises SchemaError for what does not fit.
    """

    def __init__(
        self,
        window: Window | CountWindow,
        aggregates: Sequence[Aggregate] = (),
        *,
        time: TimeDomain = "event",
        early: Duration | None = None,
        late: Duration | None = None,
        allowed_lateness: Duration = 0,
        emit_update_before: bool = True,
        late_output: str | None = None,
    ) -> None:
        self.counts = window if isinstance(window, CountWindow) else None
        if isinstance(window, CountWindow):
            check_time_domain(time, self.owner)
            check_late_output(late_output, time, self.owner)
            AggregateOperator.__init__(self, aggregates)
            self.time, self.late_output = time, late_output
        else:
            super().__init__(window, aggregates, time=time, late_output=late_output)
        self.emission = WindowEmission.of(early, late, allowed_lateness, emit_update_before, time, self.owner)
        self.waits_for_watermark = self.counts is None and time == "event" and early is None
        rows = next((one.name for one in self.aggregates if one.kind.makes_rows), None)
        if rows is not None and not emit_update_before:
            raise SchemaError(
                f"{self.owner}: '{rows}' returns rows, which have no key to replace each other by; leave "
                "emit_update_before=False out"
            )
        if self.counts is not None and self.emission.updates:
            raise SchemaError(
                f"{self.owner}: early and allowed_lateness are not for count windows, which emit when their last row "
                "arrives; leave them out"
            )

    nets_output = True

    def bind(self, inputs: Sequence[InputSpec]) -> OutputSpec:
        """Key columns, window columns (not for count windows) and one column per aggregate."""
        if self.counts is None:
            return super().bind(inputs)
        self._check_none_later("count windows")
        check_has_time(inputs[0], self.time, self.owner)
        schema = count_schema(self.aggregates, inputs[0], self.owner)[1]
        return with_late_output(schema, self.late_output, inputs[0], Changelog.insert_only())

    def _changes(self, keys: Sequence[tuple[str, ...]], spec: InputSpec) -> Changelog:
        if not self.emission.updates:
            return super()._changes(keys, spec)
        if self.emission.update_before:
            return Changelog.retract(*keys).without_nulls_in(self._never_null(spec))
        # A session that grows is another row, so the key contains its start and its end.
        return Changelog.upsert(*spec.key, *WINDOW_COLUMNS[:2]).with_keys(keys, self._never_null(spec))

    def late_outputs(self, inputs: Sequence[InputSpec]) -> Sequence[str | None]:
        """See ``Operator``: for count windows, whose rows arrive in order; others detect late rows themselves."""
        return [self.late_output if self.counts is not None else None]

    def _plan(self, spec: InputSpec) -> WindowPlan:
        if self.shows_again:
            self._check_none_later("windows that emit more than once")
        return super()._plan(spec)

    @property
    def shows_again(self) -> bool:
        """Whether a window may be emitted more than once."""
        return self.emission.updates

    def state_growth(self, inputs: Sequence[InputSpec]) -> StateGrowth | None:
        """See ``Operator``: a window is removed when it is over."""
        return bounded_by("window") if self.counts is None else rows_per_key(self.counts.size)

    def state_meaning(self, inputs: Sequence[InputSpec]) -> Mapping[str, str]:
        """See ``Operator``: with updates also whether windows are emitted early, and how long they are kept."""
        if self.counts is not None:
            said = AggregateOperator.state_meaning(self, inputs)
            return {**said, "window": self.counts.text, "time": self.time}
        emission = self.emission
        return {
            **super().state_meaning(inputs),
            "early": "not shown" if emission.early is None else "shown",
            "allowed_lateness": f"{emission.lateness}us",
        }

    def change_refusal(
        self, name: str, was: str | None, now: str | None, inputs: Sequence[InputSpec]
    ) -> str | None:
        """See ``Operator``: windows that have been emitted may be retracted."""
        if self.emission.updates:
            return AggregateOperator.change_refusal(self, name, was, now, inputs)
        return super().change_refusal(name, was, now, inputs)

    def ordered_inputs(self, inputs: Sequence[InputSpec]) -> Sequence[InputOrder | None]:
        """Count windows have rows in order of event time."""
        return [InputOrder("event") if self.counts is not None and self.time == "event" else None]

    def open(self, context: OperatorContext) -> None:
        """Declare the state."""
        spec = context.inputs[0]
        if self.counts is not None:
            plan, _ = count_schema(self.aggregates, spec, self.owner)
            self._aggregation = CountAggregation(self.counts, plan, context)
            declare_form(context, ("window", self.counts.text))
        elif not self.shows_again or isinstance(self.window, SessionWindow):
            super().open(context)
        else:
            late = LateRows(self.late_output, context)
            self._aggregation = UpdatedSlices(self.window, self._plan(spec), self.emission, context, late)

    def _sessions(self, window: SessionWindow, plan: WindowPlan, context: OperatorContext) -> Aggregation:
        if not self.shows_again:
            return super()._sessions(window, plan, context)
        if not plan.keeps_rows:
            return UpdatedSessions(window, plan, self.emission, context)
        needed = columns_of(self.aggregates)
        return UpdatedSessionRows(
            window, self._counts(context), plan, needed, self.emission, context, self.late_output
        )

    def partial_aggregation(self, inputs: Sequence[InputSpec]) -> PartialAggregation | None:
        """As ``WindowAggregate`` where a window is emitted once; else none."""
        return (
            None if self.counts is not None or self.emission.updates else super().partial_aggregation(inputs)
        )

    def process_due(self, bundles: Sequence[Bundle | None], ctx: BundleContext) -> Any:
        """See ``BundleOperator``: rows for count windows, in order of time."""
        (bundle,) = bundles
        return None if bundle is None else self._aggregation.process(bundle, ctx)
