"""OverAggregate: each row with aggregates of the previous rows of its key.

Owns: the operator. Its form decides how rows are kept: ``unbounded``, ``bounded`` or ``retractable_over``.
Invariant: the netted output is SQL's OVER of the netted input, however the input is split into bundles.
Must not import anything of ``asyncstate`` but ``changelog``, ``errors``, ``operator`` and ``state``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa

from asyncstate.changelog import Changelog
from asyncstate.errors import SchemaError
from asyncstate.futures import StateFuture
from asyncstate.growth import StateGrowth, bounded_by, rows_per_key, with_rows
from asyncstate.operator import Bundle, BundleContext, InputOrder, InputSpec, OperatorContext, OutputSpec
from asyncstate.state.columnar.state_columns import ColumnStateDescriptor
from asyncstate.state.expiring.ttl import Ttl, as_bundle_ttl

from ..aggregate.aggregate_calls import Aggregate
from ..aggregate.aggregate_operator import AggregateOperator
from ..core.late_rows import check_late_output, with_late_output
from ..core.operator_checks import KeepsKey, TimeDomain, check_has_time, check_time_domain
from ..core.sort_orders import OrderBy, OrderColumn, check_order, order_columns
from .bounded import RecentRange, RecentRows
from .frames import Frame, check_frame, unbounded, whole
from .over_plan import OverPlan
from .retractable_over import RetractableRows
from .unbounded import RunningRows


class _Form(Protocol):
    def process(self, bundle: Bundle, ctx: BundleContext) -> StateFuture[None]:
        """Emit the rows of a bundle."""

    def clean_up(self, ctx: BundleContext) -> None:
        """Remove the state that no later row needs."""


class OverAggregate(KeepsKey, AggregateOperator):
    """SQL's ``aggregate OVER (PARTITION BY key ORDER BY ... frame)``: the input's columns, then one per aggregate.

    ``frame``: ``unbounded()`` (all rows of the key up to this one), ``whole()`` (all rows of the key), ``rows(n)``
    (this row and the n before it), ``range_("10 minutes")`` (this row and those at most that much earlier), or
    ``rows(n, m)`` and ``range_(n, m)`` (up to m after it).

    Without ``order_by`` and over an insert-only input, rows are emitted in order of time, each once, as +I. With
    ``time="event"``, they are emitted when the watermark has passed them; rows of equal times count for each other
    unless the frame counts rows. Rows that the watermark had passed before their micro-batch are counted
    (``late_rows_dropped``) and dropped, or go to the side output that ``late_output`` names.
    With ``time="processing"``, they are emitted at the end of their micro-batch, in order of arrival; later rows of a
    micro-batch do not count for earlier ones, though they have one time. Rows without a time count for each other in a
    range.

    With ``order_by`` (columns, ``asc(...)``, ``desc(...)``), over a changelog, or with a frame that ends after its row,
    rows are emitted at once and in any order, and the result is kept up to date: -U and +U for every row whose
    aggregates change. The order defaults to the event time. A bundle costs as much as all rows of the keys that it
    changes. Retractions that match no row are dropped and counted (``retractions_without_state``).

    In addition to built-in aggregates and user-defined functions: ``row_number``, ``rank_``, ``dense_rank`` and
    ``lag``; and, where all rows are kept, ``lead``, ``percent_rank``, ``cume_dist``, ``ntile`` and ``nth_value``.

    With ``distinct()``, each value counts once in a frame. A user-defined function receives a value when its first row
    enters the frame and, in a bounded frame, retracts it when its last row leaves.

    Example, the mean of each auction's last eleven bids::

        OverAggregate([avg("price")], rows(10))

    ``ttl``, for unbounded frames in order of time: a key without rows for that long starts again.

    State: for unbounded frames in order of time ``accumulators``, one row per key, plus the distinct values and the
    views of functions; for bounded frames ``recent``, the aggregated columns of rows that later frames may need, which
    are removed as the watermark passes or as rows follow; with ``order_by`` or over a changelog ``rows``, all rows of
    each key.

    Source: Flink's OVER operators in ``runtime.operators.over`` and ``NonTimeOverWindowOperator``. Raises SchemaError
    for parameters that do not fit the input.
    """

    def __init__(
        self,
        aggregates: Sequence[Aggregate],
        frame: Frame | None = None,
        *,
        order_by: OrderBy | None = None,
        time: TimeDomain = "event",
        ttl: Ttl = None,
        emit_update_before: bool = True,
        late_output: str | None = None,
    ) -> None:
        super().__init__(aggregates)
        if not self.aggregates:
            raise SchemaError(f"{self.owner}: it has no aggregates; give at least one")
        self.frame = unbounded() if frame is None else frame
        check_frame(self.frame, self.owner)
        check_time_domain(time, self.owner)
        check_late_output(late_output, time, self.owner)
        self.late_output = late_output
        self.order_by = None if order_by is None else order_columns(order_by, self.owner)
        self.time: TimeDomain = time
        self.ttl = as_bundle_ttl(self.owner, ttl)
        self.emit_update_before = emit_update_before

    def bind(self, inputs: Sequence[InputSpec]) -> OutputSpec:
        """The input's columns and one column per aggregate."""
        (spec,) = inputs
        plan = self._plan(spec)
        in_time = self._in_time(spec)
        if in_time:
            check_has_time(spec, self.time, self.owner)
            self._check_in_time()
        else:
            self._check_order(spec)
        self._check_places(plan, in_time)
        if self.ttl is not None and (not in_time or self.frame.kind != "unbounded"):
            raise SchemaError(
                f"{self.owner}: ttl is for unbounded frames in order of time; other frames drop old rows by "
                "themselves, and an own order needs all rows"
            )
        schema = pa.schema([*spec.schema, *plan.result_fields])
        return with_late_output(schema, self.late_output, spec, self._changes(spec))

    def _changes(self, spec: InputSpec) -> Changelog:
        keys = spec.changes.unique_keys
        if self._in_time(spec):
            return Changelog.insert_only(*keys)
        if self.emit_update_before:
            return Changelog.retract(*keys)
        if not keys:
            raise SchemaError(
                f"{self.owner}: with emit_update_before=False a row replaces the previous one, but no key identifies "
                f"a row of {spec.name}; give the source primary_key=, or leave emit_update_before out"
            )
        return Changelog.upsert(*spec.key, *(name for name in keys[0] if name not in spec.key))

    def late_outputs(self, inputs: Sequence[InputSpec]) -> Sequence[str | None]:
        """See ``Operator``: late rows if rows are in order of time."""
        return [self.late_output]

    def ordered_inputs(self, inputs: Sequence[InputSpec]) -> Sequence[InputOrder | None]:
        """By time, unless ``order_by`` or a changelog sets another order."""
        return [InputOrder(self.time) if self._in_time(inputs[0]) else None]

    def state_meaning(self, inputs: Sequence[InputSpec]) -> Mapping[str, str]:
        """See ``Operator``: rows in order of time have been emitted and are final, others may be retracted."""
        said = {**super().state_meaning(inputs), "frame": self.frame.text}
        if self._in_time(inputs[0]):
            return {**said, "order": f"{self.time} time"}
        order = ", ".join(one.text for one in self._order(inputs[0]))
        return {**said, "order": order, "peers": "yes" if self.frame.peers else "no"}

    def state_growth(self, inputs: Sequence[InputSpec]) -> StateGrowth | None:
        """See ``Operator``: the rows that later frames need."""
        if not self._in_time(inputs[0]):
            return with_rows(inputs[0].changelog)
        if self.frame.kind == "unbounded":
            return super().state_growth(inputs)
        if self.frame.kind == "rows":
            return rows_per_key(self.frame.before or 0)
        return bounded_by("watermark" if self.time == "event" else "the range of time")

    def open(self, context: OperatorContext) -> None:
        """Declare the state."""
        spec = context.inputs[0]
        plan = self._plan(spec)
        plan.open(context, stored=self._in_time(spec) and self.frame.kind == "unbounded")
        self._form: _Form
        if not self._in_time(spec):
            self._form = RetractableRows(
                plan, self.frame, self._order(spec), self.emit_update_before, context
            )
        elif self.frame.kind == "unbounded":
            self._form = RunningRows(plan, self.frame, self.time, self.ttl, context)
        elif self.frame.kind == "rows":
            self._form = RecentRows(plan, self.frame, self.aggregates, context)
        else:
            self._form = RecentRange(plan, self.frame, self.time, self.aggregates, context)
        if not isinstance(self._form, RunningRows):
            # Always empty. Unbounded frames store under this name: it makes a checkpoint of another form be refused.
            form = f"{self.time} {self.frame.text}" if self._in_time(spec) else "an order of its own"
            context.get_state(
                ColumnStateDescriptor("accumulators", pa.schema([]), belongs_to=("frame", form))
            )

    def process_bundle(self, bundle: Bundle, ctx: BundleContext) -> Any:
        """See ``BundleOperator``: rows in another order than time."""
        return self._form.process(bundle, ctx) if bundle.num_rows else None

    def process_due(self, bundles: Sequence[Bundle | None], ctx: BundleContext) -> Any:
        """See ``BundleOperator``: rows in order of time."""
        (bundle,) = bundles
        return None if bundle is None else self._form.process(bundle, ctx)

    def on_watermark(self, watermark: int, ctx: BundleContext) -> Any:
        """Called once per micro-batch and partition, after all bundles (also when there was none)."""
        self._form.clean_up(ctx)

    def _plan(self, spec: InputSpec) -> OverPlan:
        return OverPlan(self.aggregates, self.frame, spec, self.owner)

    def _in_time(self, spec: InputSpec) -> bool:
        return self.order_by is None and not spec.changelog and not self.frame.reaches_ahead

    def _order(self, spec: InputSpec) -> tuple[OrderColumn, ...]:
        if self.order_by is not None:
            return self.order_by
        if self.time == "processing" and not spec.changelog:
            return ()  # of arrival
        if spec.event_time is None:
            if self.frame == whole():
                return ()
            what = "is a changelog without an" if spec.changelog else "has no"
            raise SchemaError(
                f"{self.owner}: {spec.name} {what} event time, so its rows have no order; give order_by"
            )
        return (OrderColumn(spec.event_time),)

    def _check_order(self, spec: InputSpec) -> None:
        order = self._order(spec)
        check_order(order, spec, self.owner)
        if self.frame.by_value:
            (first, *more) = order or (OrderColumn(""),)
            kind = spec.column(first.column).type if first.column in spec.schema.names else pa.null()
            if more or not (pa.types.is_timestamp(kind) or pa.types.is_signed_integer(kind)):
                raise SchemaError(
                    f"{self.owner}: a range needs one column of timestamps or integers to be ordered by; use "
                    "rows(...), or order by such a column alone"
                )

    def _check_in_time(self) -> None:
        """Raise SchemaError for a frame that rows in order of time cannot have."""
        if self.frame.before is not None and self.frame.before < (1 if self.frame.unit == "range" else 0):
            raise SchemaError(
                f"{self.owner}: the frame {self.frame!r} is for rows in an order of their own; give order_by, or a "
                "frame that starts before its row"
            )

    def _check_places(self, plan: OverPlan, in_time: bool) -> None:
        for at, place in plan.places.items() if in_time else ():
            refusal = place.in_time_refusal(self.frame)
            if refusal is not None:
                raise SchemaError(f"{self.owner}: '{self.aggregates[at].name}' {refusal}")
