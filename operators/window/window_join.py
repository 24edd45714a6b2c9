"""WindowJoin: rows of two inputs with equal keys that are in the same window, emitted when the window is over.

Owns: the operator: its checks, the windows that rows are assigned to, and what is read and removed when they are due.
``operators.window.pairs`` decides which rows match; join types, conditions and stored sides are those of ``Join``.
Invariant: the output is final: insert-only, once for each window; rows leave the store with their last window.
Must not import anything of ``asyncstate`` but ``changelog``, ``operator``, ``state``, ``codec`` and ``errors``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from asyncstate.changelog import ChangelogMode
from asyncstate.codec import KeyBatch
from asyncstate.codec.sorting import rows_by
from asyncstate.codec.times import event_times
from asyncstate.growth import StateGrowth, bounded_by
from asyncstate.operator import (
    Bundle,
    BundleContext,
    InputSpec,
    OperatorContext,
    OutputSpec,
)
from asyncstate.state.columnar.due_parts import DuePart, DueReader
from asyncstate.state.columnar.list_columns import ListColumnState, ListColumnStateDescriptor, ListRange
from asyncstate.state.columnar.state_columns import TimeRange

from ..core.arrays import BoolArray, Int8Array, Int64Array, take_rows
from ..core.late_rows import LateRows, check_late_pair
from ..core.operator_checks import check_event_time
from ..core.stored_columns import StoredColumns
from ..join.join_inputs import JoinCondition, TwoInputJoin, joined_changes, matchable_keys
from ..join.rules import JoinKind, rules
from ..join.sides import Added, ListSide, Own
from .pairs import Due, Runs, final_rows, groups_of
from .slices import windows_of
from .window_plan import WINDOW_COLUMNS, check_window_names, window_columns, window_fields
from .window_time import BundleTime
from .windows import (
    END,
    START,
    GivenWindows,
    SlicedWindow,
    check_given,
    check_sliced,
    due_until,
)

_SIDES = ("left", "right")


class WindowJoin(TwoInputJoin):
    """Left and right rows with equal keys (``key`` of the inputs) that are in the same window of event time.

    ``kind``: inner, left, right, full, semi (left rows with a match in their window) or anti (left rows without one).
    ``window``: made with ``tumble``, ``hop`` or ``cumulate``; two rows match once in each window that they share.
    Without it rows carry their window as ``window_start`` and ``window_end``, timestamps, the way a window table
    function emits them, in both inputs: equal starts and ends are the same window. ``condition``, ``suffixes`` and
    ``null_safe`` are as in ``Join``.

    >>> import pyarrow as pa
    >>> from asyncstate.testing import OperatorHarness
    >>> from asyncstate.operators import tumble
    >>> offers = pa.schema([("item", pa.string()), ("price", pa.int64()), ("at", pa.timestamp("us"))])
    >>> bids = pa.schema([("item", pa.string()), ("bid", pa.int64()), ("at", pa.timestamp("us"))])
    >>> join = WindowJoin("left", window=tumble("10 seconds"))
    >>> with OperatorHarness(join, [offers, bids], [["item"], ["item"]], event_time=["at", "at"]) as harness:
    ...     harness.push([("pen", 3, 1_000_000), ("cup", 9, 2_000_000)], input=0)
    ...     harness.push([("pen", 2, 8_000_000), ("cup", 8, 12_000_000)], input=1)
    ...     harness.advance_watermark(10_000_000)
    ...     for row in sorted(harness.end_batch()):
    ...         print(row)
    ('+I', 'cup', 9, 2000000, None, None, None, 0, 10000000, 9999000)
    ('+I', 'pen', 3, 1000000, 'pen', 2, 8000000, 0, 10000000, 9999000)

    Output: left columns, then right columns (semi and anti: left columns), +I only; with ``window`` also
    ``window_start``, ``window_end`` and ``window_time`` (the end - 1 ms), microseconds, at the end. Rows are emitted at
    the end of the micro-batch whose watermark reaches the window's end - 1 us, by window end, then key in the order of
    the store; for each key the left rows with their matches, then the right rows without any, each by slice, then in
    order of arrival. A row without match is padded with nulls (left, right, full) or emitted as it is (anti), once per
    window.

    Inputs may be changelogs: a retraction withdraws a row of the same window that is equal to it in all columns but
    those of the input's ``sequence``, as long as the window has not been emitted. Retractions of rows that do not exist
    are dropped and counted (``retractions_without_state``). Rows whose windows were all over before the micro-batch are
    counted (``late_rows``) and dropped, or go to the side outputs that ``late_outputs`` names for the two inputs; a row
    of a hopping window that is late for some windows counts for the others. Rows whose ``window_start`` or
    ``window_end`` is null are dropped and counted (``null_windows``), as are rows with event times so close to the
    limits of int64 that one of their windows would not fit (``event_times_out_of_range``). A null in the key matches
    nothing; with ``null_safe`` it matches null. Rows whose key can match nothing are stored only if they are emitted
    without a match.

    State: ``left`` and ``right``: lists of the columns outside the key, time-first, under the end of the window; with
    hopping and cumulating windows under that of the slice, once for all windows that share it. They are read when a
    window is due, in parts of bounded size, and removed with the last window. A bundle reads rows only for keys that
    lose some. Kind and window belong to the state's declaration. Without a watermark rows are kept until the end of the
    input.

    Source: Flink's ``WindowJoinOperator``, which takes insert-only inputs. Raises SchemaError for what does not fit.
    """

    waits_for_watermark = True

    def __init__(
        self,
        kind: JoinKind = "inner",
        condition: JoinCondition | None = None,
        *,
        window: SlicedWindow | None = None,
        suffixes: tuple[str, str] = ("", "_right"),
        null_safe: bool = False,
        late_outputs: tuple[str | None, str | None] = (None, None),
    ) -> None:
        super().__init__(kind, condition, suffixes, null_safe)
        if window is not None:
            check_sliced(window, self.owner)
        check_late_pair(late_outputs, self.owner)
        self.window = window
        self.late_names = late_outputs

    def bind(self, inputs: Sequence[InputSpec]) -> OutputSpec:
        """Left columns, then right columns; only the left ones for semi and anti; then those of the window."""
        schema = self._main_schema(inputs)
        end = [] if self.window is None else [WINDOW_COLUMNS[1]]
        known = [*map(_in_own_windows, inputs)] if self.window is None else inputs
        changes = joined_changes(ChangelogMode.INSERT_ONLY, self.kind, known, schema, end)
        output = OutputSpec(schema, changes=changes)
        for name, spec in zip(self.late_names, inputs, strict=True):
            output = output.with_late_rows(name, spec)
        return output

    def _main_schema(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        for spec in inputs:
            if self.window is None:
                check_given(spec, self.owner)
            else:
                check_event_time(spec, self.owner)
        shown = self._output_schema(inputs)
        if self.window is None:
            return shown
        check_window_names(shown, self.owner)
        return pa.schema([*shown, *window_fields(inputs[0])])

    def state_growth(self, inputs: Sequence[InputSpec]) -> StateGrowth | None:
        """See ``Operator``: a window is removed when it is over."""
        return bounded_by("window")

    def state_meaning(self, inputs: Sequence[InputSpec]) -> Mapping[str, str]:
        """What the stored state depends on in addition to its types, as names and texts: ``{"kind": "left"}``."""
        return {**super().state_meaning(inputs), "window": self._windows.text}

    @property
    def _windows(self) -> SlicedWindow | GivenWindows:
        return GivenWindows() if self.window is None else self.window

    def change_refusal(
        self, name: str, was: str | None, now: str | None, inputs: Sequence[InputSpec]
    ) -> str | None:
        """See ``Operator``: pairs are emitted once, when their window is over."""
        return None if name == "condition" else ""

    def open(self, context: OperatorContext) -> None:
        """Declare the state."""
        made_for = ("window", f"{self.kind} join over {self._windows.text}")
        self._sides = tuple(
            _Side(name, spec, context, made_for) for name, spec in zip(_SIDES, context.inputs, strict=True)
        )
        states = tuple(side.state for side in self._sides)
        self._reader = DueReader(states, self._windows, context.key_groups)
        self._codec = context.key_codec
        self._residual = self._condition_over(context.inputs)
        self._left = context.inputs[0]
        self._fired = due_until(context.previous_watermark)
        self._late = [LateRows(name, context) for name in self.late_names]
        self._times = [BundleTime("event", self._windows, context, side) for side in (0, 1)]
        self._missing = context.missing_rows()
        self._ahead: dict[int, _Arrival] = {}  # by id of a prefetched bundle

    # -- rows ---------------------------------------------------------------------------------------

    def prefetch(self, bundle: Bundle) -> None:
        """Hint which state the bundle will need (``state.prefetch(bundle.keys)``), while another one is processed."""
        arrival = self._ahead[id(bundle)] = self._arrival(bundle)
        self._sides[bundle.input_index].lists.prefetch(arrival.keys)

    def process_bundle(self, bundle: Bundle, ctx: BundleContext) -> Any:
        """Handle the rows of one input."""
        arrival = self._ahead.pop(id(bundle), None) or self._arrival(bundle)
        self._late[bundle.input_index].add(arrival.bundle, arrival.late, int(arrival.late.sum()), ctx)
        if not len(arrival.rows):
            return None
        lists = self._sides[bundle.input_index].lists
        read = lists.async_own(arrival.keys, arrival.loses, counts=False)
        return read.then_accept(lambda own: self._store(arrival, own))

    def _arrival(self, bundle: Bundle) -> _Arrival:
        """The part of a bundle to be stored; rows that have no window are counted."""
        time = self._times[bundle.input_index]
        bundle = time.in_range(bundle)
        slices = self._windows.slice_of(time.of_rows(bundle))
        late = self._windows.last_window(slices) <= self._fired
        stored = ~late
        if not rules(self.kind, bundle.input_index).unmatched:
            matchable = matchable_keys(bundle.keys, self.null_safe)
            stored &= True if matchable is None else matchable[bundle.keys.inverse]
        rows = np.flatnonzero(stored)
        keys = bundle.keys.in_namespaces(slices[rows], bundle.keys.inverse[rows])
        loses = np.zeros(len(keys), np.bool_)
        loses[keys.inverse[~bundle.accumulate[rows]]] = True
        return _Arrival(bundle, rows, keys, loses, late)

    def _store(self, arrival: _Arrival, own: Own) -> None:
        side = self._sides[arrival.bundle.input_index]
        columns = take_rows(side.payload.of(arrival.bundle.batch), arrival.rows)
        removed, added = np.zeros(own.rows.num_rows, np.bool_), np.arange(len(arrival.rows))
        if arrival.loses.any():
            accumulate = arrival.bundle.accumulate[arrival.rows]
            net = side.lists.net(own, columns, arrival.keys.inverse, accumulate, side.spec.sequence)
            self._missing.add(arrival.rows[net.missing], arrival.bundle)
            removed, added = net.removed, net.added
        index = arrival.keys.inverse.astype(np.int64)[added]
        side.lists.apply(arrival.keys, own, removed, Added(take_rows(columns, added), index))

    # -- windows ------------------------------------------------------------------------------------

    def on_watermark(self, watermark: int, ctx: BundleContext) -> Iterator[None]:
        """See ``BundleOperator``; one step per part of the output. Rows that are in no other window are removed."""
        for part in self._reader.parts(*self._times[0].due(ctx)):
            yield from self._emit_pairs(part, ctx)
            over = self._windows.last_over(part.last)
            for side, found in zip(self._sides, part.ranges, strict=True):
                side.state.remove_entries(found.entry_keys(found.namespaces <= over))

    def _emit_pairs(self, part: DuePart, ctx: BundleContext) -> Iterator[None]:
        inputs = [_Read(side, found) for side, found in zip(self._sides, part.ranges, strict=True)]
        # A list's rows have one key and one slice; those that carry their window may have different window starts.
        runs = [Runs.of(one.lists.counts, alone=self.window is None) for one in inputs]
        both = zip(*(one.lists.key_columns for one in inputs), strict=True)
        sizes, num_lists = [len(of.lists) for of in runs], [len(one.lists.counts) for one in inputs]
        keys = self._codec.group([pa.concat_arrays(pair) for pair in both], num_rows=sum(num_lists))
        starts = None if self.window is not None else np.concatenate([one.starts() for one in inputs])
        separate = self._separate(keys, num_lists)
        lists = np.concatenate([runs[0].lists, runs[1].lists + num_lists[0]])
        slices = np.concatenate([one.lists.namespaces for one in inputs])[lists]
        for ends, chosen in self._in_windows(part, slices):
            groups = groups_of(
                keys, lists[chosen], ends, None if starts is None else starts[chosen], separate
            )
            order = rows_by(groups)
            chosen, groups, ends = chosen[order], groups[order], ends[order]
            is_left = chosen < sizes[0]
            left, right = (
                Due.of(one.take, of, chosen[of_side] - before, groups[of_side], ends[of_side])
                for one, of, of_side, before in zip(
                    inputs, runs, (is_left, ~is_left), (0, sizes[0]), strict=True
                )
            )
            looked_at = self._residual is not None
            for put in final_rows(self.kind, left.keyed(looked_at), right.keyed(looked_at), self._residual):
                self._emit_part(left, right, put, ctx)
                yield

    def _separate(self, keys: KeyBatch, sizes: Sequence[int]) -> Int8Array | None:
        """Separates rows with a null in the key by input (1 left, 2 right; 0: other rows). None: no such rows."""
        matchable = matchable_keys(keys, self.null_safe)
        if matchable is None:
            return None
        sides = np.repeat(np.array([1, 2], np.int8), sizes)
        return np.where(matchable[keys.inverse], 0, sides).astype(np.int8)

    def _in_windows(self, part: DuePart, slices: Int64Array) -> Iterator[tuple[Int64Array, Int64Array]]:
        """Window ends (m), and the index (m) into ``slices`` (the part's left ones, then its right ones); some windows
        at a time."""
        if self.window is None or not self.window.shares_slices:
            yield slices, np.arange(len(slices))
            return
        by_time = rows_by(slices)
        for ends, chosen in windows_of(slices[by_time], self.window, part.first, part.last):
            yield ends, by_time[chosen]

    def _emit_part(
        self, left: Due, right: Due, put: tuple[Int64Array, Int64Array], ctx: BundleContext
    ) -> None:
        """Emit left and right rows with these indices."""
        if not len(put[0]):
            return
        columns = left.take(put[0])
        if not self._left_only:
            columns += right.take(put[1])
        if self.window is not None:
            end = np.empty(len(put[0]), np.int64)
            for rows, side in zip(put, (left, right), strict=True):
                end[rows >= 0] = side.ends[rows[rows >= 0]]
            columns += window_columns(self.window.window_start(end), end, self._left)
        ctx.emit(columns)


def _in_own_windows(spec: InputSpec) -> InputSpec:
    """An input whose rows carry their windows, none of them null, with what identifies a row in the output: a row of a
    changelog whose retraction is late is joined again, in another window."""
    changes, more = spec.changes, (END,) if spec.changelog else ()
    keys = [(*key, *(name for name in more if name not in key)) for key in (spec.key, *changes.unique_keys)]
    changes = changes.with_keys(keys[1:], {*changes.never_null, START, END})
    return replace(spec, key=keys[0], changes=changes)


class _Arrival(NamedTuple):
    """The ``rows`` of a bundle that are stored, their keys with slices as namespaces, which keys may lose rows
    (``loses``), and which rows of the bundle (n) are late."""

    bundle: Bundle
    rows: Int64Array
    keys: KeyBatch
    loses: BoolArray
    late: BoolArray


class _Side:
    """The stored rows of one input: ``lists``, to change them, and ``state``, to read and remove them by time."""

    def __init__(
        self, name: str, spec: InputSpec, context: OperatorContext, made_for: tuple[str, str]
    ) -> None:
        self.spec = spec
        self.payload = StoredColumns(spec, at_least_one=True)
        schema = pa.schema(self.payload.fields)
        self.state: ListColumnState = context.get_state(
            ListColumnStateDescriptor(name, schema, time_first=True, belongs_to=made_for)
        )
        self.lists = ListSide(name, schema, context, state=self.state)

    def nothing(self) -> ListRange:
        """No lists."""
        keys, rows = (
            [pa.array([], one.type) for one in of] for of in (self.spec.key_schema, self.payload.fields)
        )
        none = np.empty(0, np.int64)
        return ListRange([], none, keys, rows, none, none)


class _Read:
    """The ``lists`` of one input that were read by time, and their rows (n)."""

    def __init__(self, side: _Side, found: TimeRange) -> None:
        self.lists = found if isinstance(found, ListRange) else side.nothing()
        self._side = side
        self._list_of = np.append(self.lists.lists, -1)  # the last entry is for row -1

    def take(self, rows: Int64Array) -> list[pa.Array]:
        """The input's columns of some rows; null where the index is -1."""
        keys = take_rows(self.lists.key_columns, self._list_of[rows])
        return self._side.payload.row([*keys, *take_rows(self.lists.columns, rows)])

    def starts(self) -> Int64Array:
        """The starts (n) of the windows that the rows carry."""
        every = self.take(np.arange(self.lists.num_rows))
        return event_times(every[self._side.spec.schema.names.index(START)])
