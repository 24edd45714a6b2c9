"""WindowRank and WindowDeduplicate: the first rows of each key and window in an order, once the window is over.

Owns: the operators. ``rank`` decides the ranking; its best rows are kept for each window.
Invariant: the output is final: insert-only, each window once.
Must not import anything of ``asyncstate`` but ``changelog``, ``operator``, ``state``, ``futures``, ``codec``,
``errors`` and ``partial_aggregation``.

Source: Flink's ``WindowRankOperator`` and ``RowTimeWindowDeduplicateOperator``.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, cast, get_args

import numpy as np
import pyarrow as pa

from asyncstate.changelog import Changelog
from asyncstate.codec.sorting import rows_by
from asyncstate.errors import SchemaError
from asyncstate.futures import StateFuture
from asyncstate.growth import StateGrowth, bounded_by
from asyncstate.operator import (
    Bundle,
    BundleContext,
    BundleOperator,
    InputSpec,
    OperatorContext,
    OutputSpec,
)
from asyncstate.partial_aggregation import PartialLimit, PartialStep
from asyncstate.state.columnar.due_parts import DuePart, DueReader
from asyncstate.state.columnar.list_columns import ListColumnState, ListColumnStateDescriptor, ListRange

from ..core.arrays import Int64Array, take_rows
from ..core.late_rows import LateRows, check_late_output, with_late_output
from ..core.operator_checks import KeepsKey, check_choice, check_event_time, check_insert_only, check_number
from ..core.sort_orders import OrderBy, order_columns
from ..core.state_meaning import meaning
from ..rank.append_only import BestRows
from ..rank.rank_plan import RankPlan, RankRows, RankSettings, partial_top_n
from ..rank.row_numbers import RankFunction, RankTable
from .pairs import by_time, subdivided
from .window_plan import WINDOW_COLUMNS, window_columns, window_fields, window_keys
from .window_time import BundleTime
from .windows import (
    END,
    START,
    GivenWindows,
    SlicedWindow,
    check_given,
    check_sliced,
)


class WindowRank(KeepsKey, BundleOperator):
    """The rows of each key and window of event time whose number in the order is in (offset, offset + n].

    Example, the three highest bids on each auction in each ten seconds, with key=["auction"]::

        WindowRank(desc("price"), 3, window=tumble("10 seconds"), rank_column="place")

    ``order_by``, ``function`` and ``rank_column`` as in ``Rank``. ``window``: made with ``tumble``, ``hop`` or
    ``cumulate``; a row is ranked in each of its windows. Without it rows carry their window as ``window_start`` and
    ``window_end``, timestamps, as a window table function emits them: equal starts and ends are the same window. Any
    number of windows may be open at once.

    Output: the input's columns; with ``window`` also ``window_start``, ``window_end`` and ``window_time`` (the end -
    1 ms); then the number, if requested. All rows are +I, in rank order, at the end of the micro-batch whose
    watermark reaches the window's end - 1 us, by window end, then in the order of the store (key group, key), then by
    window start.

    Without ``window``, downstream of another operator of a graph, only rows arrive that can be among the first ones:
    the best of each window in each task. Late rows among the others are not counted.

    The input must be insert-only. Rows whose windows were all over before the micro-batch are counted (``late_rows``)
    and dropped, or go to the side output that ``late_output`` names. Rows without a window (``null_windows``) or with
    event times that no window can have (``event_times_out_of_range``) are also dropped and counted.

    State: ``top``, time-first lists by window end and key of the rows with numbers up to offset + n, ordered by window
    start for windows with the same end. Order and window belong to the state's declaration.

    >>> from asyncstate.testing import OperatorHarness
    >>> from asyncstate.operators import desc, tumble
    >>> bids = pa.schema([("item", pa.string()), ("price", pa.int64()), ("at", pa.timestamp("us"))])
    >>> best = WindowRank(desc("price"), 1, window=tumble("10 seconds"))
    >>> with OperatorHarness(best, bids, ["item"], event_time="at") as harness:
    ...     harness.push([("pen", 3, 1_000_000), ("pen", 4, 2_000_000), ("pen", 9, 12_000_000)])
    ...     harness.advance_watermark(10_000_000)
    ...     harness.end_batch()
    [('+I', 'pen', 4, 2000000, 0, 10000000, 9999000)]
    """

    accepts_changelog: ClassVar[bool] = False

    waits_for_watermark = True

    def __init__(
        self,
        order_by: OrderBy,
        n: int,
        *,
        window: SlicedWindow | None = None,
        offset: int = 0,
        function: RankFunction = "row_number",
        rank_column: str | None = None,
        late_output: str | None = None,
    ) -> None:
        check_late_output(late_output, "event", self.owner)
        check_choice(function, get_args(RankFunction), "function", self.owner)
        check_number(n, 1, "n", self.owner)
        check_number(offset, 0, "offset", self.owner)
        if window is not None:
            check_sliced(window, self.owner)
        self.window = window
        self.rank_column = rank_column
        self.late_output = late_output
        self.settings = RankSettings(order_columns(order_by, self.owner), n, offset, function)

    def bind(self, inputs: Sequence[InputSpec]) -> OutputSpec:
        """The input's columns, then those of the window and the number if requested."""
        spec = inputs[0]
        check_insert_only(spec, self.owner, "Rank")
        if self.window is None:
            check_given(spec, self.owner)
        else:
            check_event_time(spec, self.owner)
        self._ranking(spec)
        schema = pa.schema([*spec.schema, *self._more_fields(spec)])
        return with_late_output(schema, self.late_output, spec, self._changes(spec))

    def _changes(self, spec: InputSpec) -> Changelog:
        window = [] if self.window is None or self.window.kind == "tumble" else [END]
        keys: list[tuple[str, ...]] = [(*key, *window) for key in spec.changes.unique_keys]
        numbered = self.settings.function == "row_number"
        for key in window_keys(spec.key, self.window) if numbered else ():
            if self.settings.n == 1:
                keys.append(key)
            elif self.rank_column is not None:
                keys.append((*key, self.rank_column))
        ends = (START, END) if self.window is None else WINDOW_COLUMNS
        return Changelog.insert_only(*keys).without_nulls_in({*spec.changes.never_null, *ends})

    def _ranking(self, spec: InputSpec) -> RankPlan:
        return self._plan_of(self.settings, spec)

    def _plan_of(self, settings: RankSettings, spec: InputSpec) -> RankPlan:
        # Where the start follows from the end, the end alone identifies a window.
        separate_by = START if self.window is None and START not in spec.key else None
        return RankPlan(replace(settings, separate_by=separate_by), spec, self.owner)

    def _more_fields(self, spec: InputSpec) -> list[pa.Field]:
        fields = [] if self.window is None else window_fields(spec)
        if self.rank_column is not None:
            fields.append(pa.field(self.rank_column, pa.int64(), nullable=False))
        for field in fields:
            if field.name in spec.schema.names:
                raise SchemaError(
                    f"{self.owner}: column '{field.name}' of {spec.name} has the name of an output column; rename it "
                    "before the operator"
                )
        return fields

    def state_growth(self, inputs: Sequence[InputSpec]) -> StateGrowth | None:
        """See ``Operator``: a window is removed when it is over."""
        return bounded_by("window")

    def state_meaning(self, inputs: Sequence[InputSpec]) -> Mapping[str, str]:
        """See ``Operator``: rows that the previous ranking did not need are no longer stored."""
        return meaning(self, ranking=self._ranking(inputs[0]).text, window=self._assigned.text)

    @property
    def _assigned(self) -> SlicedWindow | GivenWindows:
        return GivenWindows() if self.window is None else self.window

    def partial_limit(self, inputs: Sequence[InputSpec]) -> PartialLimit | None:
        """The best rows of each window, where rows carry their windows; None, so all rows, with ``late_output``."""
        if self.window is not None or self.late_output is not None:
            return None
        return self._ranking(inputs[0]).settings.partial_limit((START, END))

    def partial_step(self, given: InputSpec) -> PartialStep:
        """The step that makes the rows of ``given.row_schema`` from some rows of the input, if ``given.local`` is
        what ``partial_aggregation`` returned; or selects those that ``given.limit``, what ``partial_limit`` returned,
        lets through."""
        return partial_top_n(given)

    def open(self, context: OperatorContext) -> None:
        """Declare the state."""
        spec = context.inputs[0]
        self._plan = self._ranking(spec)
        self._windows = self._assigned.whole()
        ranking = f"{self._plan.belongs_to[1]} over {self._windows.text}"
        self._top: ListColumnState = context.get_state(
            ListColumnStateDescriptor(
                "top", pa.schema(self._plan.fields), time_first=True, belongs_to=("window ranking", ranking)
            )
        )
        self._best = BestRows(self._plan, context, top=self._top)
        self._reader = DueReader(self._top, self._windows, context.key_groups)
        self._spec = spec
        self._time = BundleTime("event", self._assigned, context)
        self._late = LateRows(self.late_output, context)

    # -- rows ---------------------------------------------------------------------------------------

    def process_bundle(self, bundle: Bundle, ctx: BundleContext) -> Any:
        """Handle the rows of one input."""
        bundle, (fired, _) = self._time.in_range(bundle), self._time.due(ctx)
        window, times = self._assigned, self._time.of_rows(bundle)
        late = window.last_window(window.slice_of(times)) <= fired
        self._late.add(bundle, late, int(late.sum()), ctx)
        for rows, ends in window.assign(times):
            is_open = ends > fired
            if is_open.any():
                yield from self._rank(bundle, rows[is_open], ends[is_open])

    def _rank(
        self, bundle: Bundle, rows: Int64Array, ends: Int64Array
    ) -> Generator[StateFuture[Any], None, None]:
        keys = bundle.keys.in_namespaces(ends, bundle.keys.inverse[rows])
        columns = take_rows(self._plan.payload.of(bundle.batch), rows)
        table = RankTable(columns, keys.inverse.astype(np.int64), np.arange(len(rows)))
        last = np.full(len(keys), self.settings.offset + int(self.settings.n), np.int64)
        yield from self._best.merge(keys, RankRows(table, bundle, rows), last)

    # -- windows ------------------------------------------------------------------------------------

    def on_watermark(self, watermark: int, ctx: BundleContext) -> Iterator[None]:
        """See ``BundleOperator``; one step per part of the output."""
        for part in self._reader.parts(*self._time.due(ctx)):
            self._emit(part, ctx)
            self._top.remove_entries(part.entries.entry_keys())
            yield

    def _emit(self, part: DuePart, ctx: BundleContext) -> None:
        found = cast(ListRange, part.entries)
        lists = found.lists
        windows = subdivided(by_time(found.namespaces)[lists], self._plan.starts(found.columns))
        order = rows_by(windows)
        numbers = self._plan.numbers(windows, self._plan.codes(found.columns), order)
        shown = numbers > self.settings.offset
        rows, numbers = order[shown], numbers[shown]
        keys, stored = take_rows(found.key_columns, lists[rows]), take_rows(found.columns, rows)
        columns = self._plan.payload.row([*keys, *stored])
        if self.window is not None:
            ends = found.namespaces[lists[rows]]
            columns += window_columns(self.window.window_start(ends), ends, self._spec)
        if self.rank_column is not None:
            columns.append(pa.array(numbers))
        if len(rows):
            ctx.emit(columns)


class WindowDeduplicate(WindowRank):
    """The first or the last row of each key and window, by event time.

    ``keep``: "first" (of equal times the one that arrived first) or "last" (the one that arrived last). ``order_by``:
    a column to use instead of the input's event time. ``window``, input, output and state as in ``WindowRank``.
    """

    def __init__(
        self,
        keep: Literal["first", "last"] = "first",
        *,
        order_by: str | None = None,
        window: SlicedWindow | None = None,
        late_output: str | None = None,
    ) -> None:
        check_choice(keep, ("first", "last"), "keep", self.owner)
        self.keep = keep
        self.order_by = order_by
        super().__init__(order_by or "event time", 1, window=window, late_output=late_output)

    def _ranking(self, spec: InputSpec) -> RankPlan:
        if self.order_by is None:
            check_event_time(spec, self.owner)
        last = self.keep == "last"
        column = str(self.order_by or spec.event_time)
        order = order_columns([(column, "desc" if last else "asc")], self.owner)
        return self._plan_of(RankSettings(order, 1, 0, "row_number", newest_first=last), spec)
