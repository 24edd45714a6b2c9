"""The common parts of window aggregations: their plan, the declarations of their state, and their output rows.

Owns: ``WindowPlan``, ``declare_form``; the checks that all functions over windows share.
Invariant: a state declares its window, so that a checkpoint is never read with another one.
Must not import anything of ``asyncstate`` but ``operator``, ``state``, ``errors``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from asyncstate.errors import SchemaError
from asyncstate.operator import BelongsTo, BundleContext, InputSpec, OperatorContext
from asyncstate.state.columnar.state_columns import ColumnStateDescriptor

from ..aggregate.aggregate_calls import Aggregate
from ..aggregate.aggregate_plan import AggregatePlan
from ..aggregate.user.table_aggregate_function import RowsOfKeys, TableAggregator, table_of
from ..core.arrays import Int64Array
from ..core.operator_checks import TimeDomain, check_distinct_names, check_has_time
from .windows import WINDOW_TIME_US, SessionWindow, SlicedWindow, Window

WINDOW_COLUMNS = ("window_start", "window_end", "window_time")


def window_keys(key: Sequence[str], window: Window | None) -> list[tuple[str, ...]]:
    """The unique keys of a result that has one row per key and window; ``window`` None: rows carry their window."""
    start, end, time = ((*key, *(name for name in [one] if name not in key)) for one in WINDOW_COLUMNS)
    if window is None:
        return [(*start, *(name for name in end if name not in start))]
    several = isinstance(window, SlicedWindow) and window.kind == "cumulate"
    return [end, time] if several else [end, start, time]


def declare_form(context: OperatorContext, form: BelongsTo) -> None:
    """Declare ``slices`` for windows that have none, always empty: it rejects a checkpoint of windows of another form,
    whose rows would be ignored."""
    context.get_state(ColumnStateDescriptor("slices", pa.schema([]), time_first=True, belongs_to=form))


class WindowPlan:
    """Window and aggregates bound to an input; SchemaError for what does not fit.

    ``stored``: the window as it is stored. Windows have their own rows, instead of sharing slices, over a changelog in
    processing time, where a window is not the sum of its slices (distinct values, functions that do not merge), and
    where they are ``emits_again``.

    ``keeps_rows``: whether sessions keep their rows, from which they are computed whenever they are emitted. They do
    where ``late_rows`` asks for whole rows, where accumulators do not merge, and where they cannot retract rows. For
    sessions that are emitted once, user-defined functions keep rows, too, and over a changelog all aggregates but
    count, sum and mean.

    ``table``: the part whose rows are emitted, where a function returns rows; None: values are emitted.
    """

    def __init__(
        self,
        window: Window,
        aggregates: Sequence[Aggregate],
        spec: InputSpec,
        domain: TimeDomain,
        owner: str,
        emits_again: bool = False,
        late_rows: bool = False,
    ) -> None:
        check_has_time(spec, domain, owner)
        self.domain: TimeDomain = domain
        self.changelog = spec.changelog
        self.keeps_rows = isinstance(window, SessionWindow) and (
            late_rows or not _states_make_sessions(aggregates, spec, owner, emits_again)
        )
        retract = spec.changelog and not self.keeps_rows
        self.aggregation = AggregatePlan(aggregates, spec.schema, owner, retract=retract)
        self.table = table_of(self.aggregation.parts)
        if self.table is not None:
            self.table.check_gives_all(owner)
        self.stored = window
        whole = emits_again or (domain == "processing" and spec.changelog)
        if isinstance(window, SlicedWindow) and (whole or not self.aggregation.shares_slices):
            self.stored = window.whole()
        self._spec = spec
        fields = [*spec.key_schema, *window_fields(spec), *output_fields(self.aggregation, self.table)]
        _check_key_names(spec, owner)
        check_distinct_names([field.name for field in fields], owner)
        self.schema = pa.schema(fields)

    @property
    def belongs_to(self) -> BelongsTo:
        """Window and time as stored in the state's declaration, and whether the state keeps rows."""
        text = self.stored.text if self.domain == "event" else f"processing time {self.stored.text}"
        return "window", f"{text} with its rows" if self.keeps_rows else text

    def emit(
        self,
        ctx: BundleContext,
        keys: Sequence[pa.Array],
        starts: Int64Array,
        ends: Int64Array,
        results: Sequence[pa.Array],
    ) -> None:
        """Emit a row for each of r keys and windows, with these ``results`` (r), or the rows that they contain."""
        columns = [*keys, *window_columns(starts, ends, self._spec)]
        ctx.emit(output_columns(self.table, columns, results))


def check_window_names(shown: pa.Schema, owner: str) -> None:
    """SchemaError for a column with the name of a window column of the output."""
    for name in WINDOW_COLUMNS:
        if name in shown.names:
            raise SchemaError(
                f"{owner}: column '{name}' has the name of an output column; rename it before the operator, or leave "
                "window out if the column is the window of a row"
            )


def window_fields(spec: InputSpec) -> list[pa.Field]:
    """The ``WINDOW_COLUMNS`` of rows of ``spec``: the time zone is that of the event time, UTC without one."""
    zone = "UTC" if spec.event_time is None else spec.schema.field(spec.event_time).type.tz
    return [pa.field(name, pa.timestamp("us", zone)) for name in WINDOW_COLUMNS]


def window_columns(starts: Int64Array, ends: Int64Array, spec: InputSpec) -> list[pa.Array]:
    """The ``WINDOW_COLUMNS`` of rows of ``spec`` with these starts and ends (n)."""
    columns = zip((starts, ends, ends - WINDOW_TIME_US), window_fields(spec), strict=True)
    return [pa.array(column).view(field.type) for column, field in columns]


def output_fields(aggregation: AggregatePlan, table: TableAggregator | None) -> list[pa.Field]:
    """The columns of the aggregates, or of the rows of ``table``."""
    return aggregation.result_fields if table is None else list(table.row_schema)


def output_columns(
    table: TableAggregator | None, columns: Sequence[pa.Array], results: Sequence[pa.Array]
) -> list[pa.Array]:
    """The ``columns`` (r) of windows with their ``results`` (r), or for ``table`` with each of the rows in these."""
    if table is None:
        return [*columns, *results]
    (lists,) = results
    return RowsOfKeys(lists, np.ones(len(lists), np.bool_)).of_keys(columns)


def _states_make_sessions(
    aggregates: Sequence[Aggregate], spec: InputSpec, owner: str, emits_again: bool
) -> bool:
    """Whether the merged states of rows are those of sessions, and rows can be retracted from them."""
    plan = AggregatePlan(aggregates, spec.schema, owner)
    if emits_again:  # all rows are read each time, so more functions use states
        return plan.shares_slices and (plan.takes_back or not spec.changelog)
    return plan.lifts and (all(map(_is_additive, aggregates)) or not spec.changelog)


def _is_additive(aggregate: Aggregate) -> bool:
    """Whether a retracted row is subtracted."""
    return aggregate.kind.name in ("count", "sum", "avg") and not aggregate.is_distinct


def _check_key_names(spec: InputSpec, owner: str) -> None:
    for name in WINDOW_COLUMNS:
        if name in spec.key:
            raise SchemaError(
                f"{owner}: key column '{name}' of {spec.name} has the name of an output column; rename it "
                "before the operator"
            )
