"""What the window aggregations share: their plan, their state's declarations, and the rows they put out.

Owns: ``WindowPlan``, ``declare_form``; what functions over windows check alike.
Invariant: a state belongs to its window, so that a checkpoint is never read with another one.
Must not import anything of ``asyncstate`` but ``operator``, ``state``, ``errors``.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from asyncstate.errors import SchemaError
from asyncstate.operator import BelongsTo, BundleContext, InputSpec, OperatorContext
from asyncstate.state.columnar.columns import ColumnStateDescriptor

from ..aggregate.declared import Aggregate
from ..aggregate.plan import AggregatePlan
from ..core.arrays import Int64Array
from ..core.checks import TimeDomain, check_distinct_names, check_has_time
from .windows import WINDOW_TIME_US, SessionWindow, SlicedWindow, Window

WINDOW_COLUMNS = ("window_start", "window_end", "window_time")


def window_keys(key: Sequence[str], window: Window | None) -> list[tuple[str, ...]]:
    """What identifies the one row of each key and window; ``window`` None: those that rows carry."""
    start, end, time = ((*key, *(name for name in [one] if name not in key)) for one in WINDOW_COLUMNS)
    if window is None:
        return [(*start, *(name for name in end if name not in start))]
    several = isinstance(window, SlicedWindow) and window.kind == "cumulate"
    return [end, time] if several else [end, start, time]


def declare_form(context: OperatorContext, form: BelongsTo) -> None:
    """Declare ``slices`` for windows that store none, always empty: a checkpoint of windows of another form, whose rows
    would not count, is refused by it."""
    context.get_state(ColumnStateDescriptor("slices", pa.schema([]), time_first=True, belongs_to=form))


class WindowPlan:
    """Window and aggregates bound to an input; SchemaError for what does not fit.

    ``stored``: the window as it is stored; windows have rows of their own, instead of sharing slices, over a changelog
    in processing time, where slices do not make a window (of distinct values, of functions that do not merge), and
    where ``whole`` asks for it. Sessions then merge their accumulators; others ``keeps_rows`` where accumulators do not
    merge, or would have to take rows back, of which no more than a count, a sum or a mean is left.
    """

    def __init__(
        self,
        window: Window,
        aggregates: Sequence[Aggregate],
        spec: InputSpec,
        domain: TimeDomain,
        owner: str,
        whole: bool = False,
    ) -> None:
        check_has_time(spec, domain, owner)
        self.domain: TimeDomain = domain
        self.changelog = spec.changelog
        of_sessions = isinstance(window, SessionWindow)
        nets_rows = of_sessions and spec.changelog and not whole and not all(map(_is_additive, aggregates))
        retract = spec.changelog and not nets_rows
        self.aggregation = AggregatePlan(aggregates, spec.schema, owner, retract=retract)
        self.keeps_rows = of_sessions and not whole and (nets_rows or not self.aggregation.lifts)
        """Whether sessions are computed of their rows when they are over."""
        self.stored = window
        whole |= (domain == "processing" and spec.changelog) or not self.aggregation.shares_slices
        if whole and isinstance(window, SlicedWindow):
            self.stored = window.whole()
        self._spec = spec
        fields = [*spec.key_schema, *window_fields(spec), *self.aggregation.result_fields]
        _check_key_names(spec, owner)
        check_distinct_names([field.name for field in fields], owner)
        self.schema = pa.schema(fields)

    @property
    def belongs_to(self) -> BelongsTo:
        """Window and time as they are noted beside the state."""
        text = self.stored.text
        return "window", text if self.domain == "event" else f"processing time {text}"

    def emit(
        self,
        ctx: BundleContext,
        keys: Sequence[pa.Array],
        starts: Int64Array,
        ends: Int64Array,
        results: Sequence[pa.Array],
    ) -> None:
        """Emit one row for each of r keys and windows, with these ``results`` (r)."""
        ctx.emit([*keys, *window_columns(starts, ends, self._spec), *results])


def check_window_names(shown: pa.Schema, owner: str) -> None:
    """SchemaError for a column with the name of one that the window gets."""
    for name in WINDOW_COLUMNS:
        if name in shown.names:
            raise SchemaError(
                f"{owner}: column '{name}' has the name of an output column; rename it before the operator, or leave "
                "the window out if it tells the window of a row"
            )


def window_fields(spec: InputSpec) -> list[pa.Field]:
    """The ``WINDOW_COLUMNS`` of rows of ``spec``: the time zone is that of the event time, UTC without one."""
    zone = "UTC" if spec.event_time is None else spec.schema.field(spec.event_time).type.tz
    return [pa.field(name, pa.timestamp("us", zone)) for name in WINDOW_COLUMNS]


def window_columns(starts: Int64Array, ends: Int64Array, spec: InputSpec) -> list[pa.Array]:
    """The ``WINDOW_COLUMNS`` of rows of ``spec`` with these windows (n)."""
    columns = zip((starts, ends, ends - WINDOW_TIME_US), window_fields(spec), strict=True)
    return [pa.array(column).view(field.type) for column, field in columns]


def _is_additive(aggregate: Aggregate) -> bool:
    """Whether a row that is taken back is subtracted."""
    return aggregate.kind.name in ("count", "sum", "avg") and not aggregate.is_distinct


def _check_key_names(spec: InputSpec, owner: str) -> None:
    for name in WINDOW_COLUMNS:
        if name in spec.key:
            raise SchemaError(
                f"{owner}: key column '{name}' of {spec.name} has the name of an output column; rename it "
                "before the operator"
            )
