"""Windows of a number of rows, and the aggregates over them.

Owns: ``CountWindow``, ``count_tumble``, ``count_hop`` and ``CountAggregation``.
Invariant: a window is emitted once, when its last row has arrived; if a key receives no more rows, the rows of its
last, incomplete windows stay.
Must not import anything of ``asyncstate`` but ``futures``, ``operator`` and ``state``.

Source: Flink's ``CountTumblingWindowAssigner`` and ``CountSlidingWindowAssigner``.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from asyncstate.futures import StateFuture
from asyncstate.operator import Bundle, BundleContext, InputSpec, OperatorContext
from asyncstate.state.columnar.state_columns import Columns, ColumnState, ColumnStateDescriptor

from ..aggregate.aggregate_calls import Aggregate
from ..aggregate.aggregate_plan import AggregatePlan
from ..aggregate.aggregate_states import Addition, AggregateChange, AggregateStates
from ..aggregate.aggregator import naming
from ..aggregate.user.table_aggregate_function import table_of
from ..core.arrays import Int64Array, IntArray, count_up, parts_of, place_among_equals, take_rows
from ..core.operator_checks import check_distinct_names, check_insert_only, check_number
from .window_plan import output_columns, output_fields
from .windows import ASSIGNED_ROWS

_COUNT = pa.schema([pa.field("rows", pa.int64(), nullable=False)])


@dataclass(frozen=True)
class CountWindow:
    """Windows of ``size`` rows of a key, one beginning each ``slide`` rows. Made by ``count_tumble``, ``count_hop``."""

    size: int
    slide: int

    @property
    def text(self) -> str:
        """The window as stored in the state's declaration."""
        return f"count(size={self.size}, slide={self.slide})"

    def __repr__(self) -> str:
        """The call that makes the window."""
        tumbles = self.size == self.slide
        return f"count_tumble({self.size})" if tumbles else f"count_hop({self.size}, {self.slide})"

    def assign(self, places: Int64Array) -> Iterator[tuple[Int64Array, Int64Array]]:
        """Rows (m) and the numbers (m) of their windows, in parts of about ``ASSIGNED_ROWS``; ``places`` (n): row
        numbers within the key, from 0."""
        first = np.maximum((places - self.size) // self.slide + 1, 0)
        counts = np.maximum(places // self.slide - first + 1, 0)
        for part in parts_of(counts, ASSIGNED_ROWS):
            rows = np.repeat(np.arange(part.start, part.stop), counts[part])
            yield rows, first[rows] + count_up(counts[part])

    def last_row(self, windows: Int64Array) -> Int64Array:
        """The number within the key of each window's last row."""
        return windows * self.slide + self.size - 1


def count_tumble(size: int) -> CountWindow:
    """Windows of ``size`` rows of a key, one after the other."""
    check_number(size, 1, "size", "count_tumble")
    return CountWindow(size, size)


def count_hop(size: int, slide: int) -> CountWindow:
    """Windows of ``size`` rows of a key, one beginning each ``slide`` rows; rows between windows are in none."""
    check_number(size, 1, "size", "count_hop")
    check_number(slide, 1, "slide", "count_hop")
    return CountWindow(size, slide)


class CountAggregation:
    """State: ``counts``, the number of rows that a key has received; ``windows``, by number and key the accumulators of
    windows that are not full yet."""

    def __init__(self, window: CountWindow, plan: AggregatePlan, context: OperatorContext) -> None:
        belongs_to = "window", window.text
        self._window = window
        self._plan = plan
        self._table = table_of(plan.parts)
        self._counts: ColumnState = context.get_state(
            ColumnStateDescriptor("counts", _COUNT, fixed_fields=True, belongs_to=belongs_to)
        )
        self._windows: ColumnState = context.get_state(
            ColumnStateDescriptor(
                "windows", plan.state_schema, time_first=True, fixed_fields=True, belongs_to=belongs_to
            )
        )
        self._states = AggregateStates(plan, self._windows, context, time_first=True, valued=True)

    def prefetch(self, bundle: Bundle) -> None:
        """Hint which state the bundle will need (``state.prefetch(bundle.keys)``), while another one is processed."""
        self._counts.prefetch(bundle.keys)

    def fire(self, ctx: BundleContext) -> None:
        """Nothing: time ends no window."""

    def process(self, bundle: Bundle, ctx: BundleContext) -> Iterator[StateFuture[None]]:
        """Add the rows, in order of arrival, to their windows, and emit the windows that are full."""
        if not bundle.num_rows:
            return
        held: list[Columns] = []
        yield self._counts.async_get(bundle.keys).then_accept(held.append)
        before, owners = held[0].numpy(0).astype(np.int64), bundle.keys.inverse
        places = before[owners] + place_among_equals(owners)
        self._counts.put(bundle.keys, [pa.array(before + np.bincount(owners, minlength=len(before)))])
        for at, windows in self._window.assign(places):
            keys = bundle.keys.in_namespaces(windows, owners[at])
            rows = Addition(bundle.batch.take(pa.array(at)), keys, bundle.accumulate[at], bundle, at)
            full = keys.inverse[places[at] == self._window.last_row(windows)]
            emit = functools.partial(self._emit, rows, full, ctx)
            yield self._states.async_add(rows, ctx).then_accept(emit)

    def _emit(self, rows: Addition, full: IntArray, ctx: BundleContext, change: AggregateChange) -> None:
        """Emit the windows ``full`` (m), in the order of the rows that complete them."""
        if not len(full):
            return
        with naming(rows.keys):
            results = self._plan.results(change.new.states, change.new.after)
        ctx.emit(output_columns(self._table, take_rows(rows.keys.columns, full), take_rows(results, full)))
        done = rows.keys.select(np.sort(full))
        self._windows.remove(done)
        self._states.remove(done)


def count_schema(
    aggregates: tuple[Aggregate, ...], spec: InputSpec, owner: str
) -> tuple[AggregatePlan, pa.Schema]:
    """The aggregates bound to the input, and the output columns; SchemaError for what does not fit."""
    check_insert_only(spec, owner, "windows of time")
    plan = AggregatePlan(aggregates, spec.schema, owner)
    table = table_of(plan.parts)
    if table is not None:
        table.check_gives_all(owner)
    fields = [*spec.key_schema, *output_fields(plan, table)]
    check_distinct_names([field.name for field in fields], owner)
    return plan, pa.schema(fields)
