"""A user-defined function that takes many rows of many keys in one call, as an aggregator.

Owns: ``BundledAggregator``.
Invariant: the function receives the rows of a bundle, whose number ``async-state.bundled-agg.size`` limits; its result
has one entry per segment, in their order.
Must not import anything of ``asyncstate`` but ``codec``, ``errors``, ``functions``, ``futures`` and ``operator``.

Source: Flink's proposal of a BundledAggregateFunction.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from asyncstate.codec import KeyBatch
from asyncstate.codec.from_python import UnfitValueError, arrow_values
from asyncstate.codec.times import python_values
from asyncstate.errors import OperatorError
from asyncstate.functions.aggregate_functions import (
    BundledAggregateFunction,
    KeySegmentApplied,
    KeySegments,
    SegmentsApplied,
)
from asyncstate.futures import StateFuture, completed_future
from asyncstate.operator import BundleContext

from ...core.arrays import Int64Array, take_rows
from ...core.segments import Groups
from ..aggregator import KeyedRows, State, Updated, counted_rows
from .user_function import Frames, FunctionAggregator, Moves, Segments


class BundledAggregator(FunctionAggregator):
    """The aggregator of a function that takes rows of many keys at once."""

    function: BundledAggregateFunction

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        function = self.function
        self.retracts = function.supports_retracting()
        self.merges = function.supports_merging()
        self._is_async = inspect.iscoroutinefunction(function.bundled_accumulate_retract)

    def prepare(self, rows: KeyedRows) -> tuple[Segments, list[pa.Array]]:
        """The rows that count, segment by segment."""
        segments = Segments.of(rows, self.columns, self.condition)
        return segments, segments.columns(rows.batch, self.columns)

    def update(
        self, state: State, rows: KeyedRows, prepared: tuple[Segments, list[pa.Array]], ctx: BundleContext
    ) -> Updated | StateFuture[Updated]:
        """See ``Aggregator``; a future if the function is an ``async def``."""
        segments, columns = prepared
        state = [state[0].fill_null(False), *state[1:]]
        touched = np.flatnonzero(np.diff(segments.starts) > 0)
        given = KeySegments(
            columns,
            np.append(segments.starts[touched], len(segments.rows)),
            np.ones(len(segments.rows), np.int8) if segments.signs is None else segments.signs,
            [] if rows.keys is None else take_rows(rows.keys.columns, touched),
            self.stored(take_rows(state, touched)),
            self.form.type,
            kinds=None if rows.kinds is None else rows.kinds[segments.rows],
        )
        applied = self.apply(given, ctx)
        updated = applied.then_apply(lambda found: self._updated(state, touched, found, rows.valued))
        return updated.get() if updated.done else updated

    def _updated(self, state: State, touched: Int64Array, applied: SegmentsApplied, valued: bool) -> Updated:
        """The states (u), with new ones for the keys that are ``touched`` by rows."""
        rows = np.full(len(state[0]), -1, np.int64)
        rows[touched] = np.arange(len(touched))
        changed = self.columns_of(applied.accumulators)
        states = [_replaced(old, new, rows) for old, new in zip(state, changed, strict=True)]
        if not valued:
            return Updated(states)
        starting, final = applied.starting_values, applied.final_values
        if len(touched) == len(rows) and self.condition is None:
            return Updated(states, starting, final)
        # A key that had rows, but none that count, was emitted with the value of an empty accumulator.
        same = self.values(state)
        known = np.where(_missing(state[0]), -1, rows)
        return Updated(states, _replaced(same, starting, known), _replaced(same, final, rows))

    def async_slide(
        self,
        state: State,
        rows: KeyedRows,
        frames: Frames,
        ctx: BundleContext,
        equal: Int64Array | None = None,
    ) -> StateFuture[tuple[pa.Array, State]]:
        """See ``UserAggregator``: in one call, with the values after each row that enters or leaves."""
        state = [state[0].fill_null(False), *state[1:]]
        moves = Moves.of(frames, counted_rows(rows.batch, (), self.condition, rows.signs), equal)
        given = KeySegments(
            [rows.batch.column(name).take(pa.array(moves.rows)) for name in self.columns],
            np.searchsorted(moves.owners, np.arange(len(state[0]) + 1)),
            moves.signs,
            [] if rows.keys is None else rows.keys.columns,
            self.stored(state),
            self.form.type,
            updated_values_after_each_row=True,
        )

        def slid(applied: SegmentsApplied) -> tuple[pa.Array, State]:
            each = applied.updated_values_after_each_row
            assert each is not None  # ``_checked`` requires it
            untouched = moves.done == given.starts[frames.owners]  # no row of the key has moved yet
            same = self.values(state).take(pa.array(frames.owners))
            values = _replaced(same, each, np.where(untouched, -1, moves.done - 1))
            return values, self.columns_of(applied.accumulators)

        return self.apply(given, ctx).then_apply(slid)

    def combine(self, state: State, groups: Groups) -> State:
        """See ``Aggregator``; only called for functions that merge."""
        known = ~_missing(state[0])[groups.order]
        ends = np.append(0, np.cumsum(known))[np.append(groups.starts, len(known))]
        accumulators = self.stored(take_rows(state, groups.order[known]))
        several = pa.ListArray.from_arrays(pa.array(ends.astype(np.int32)), accumulators)
        return self.columns_of(self.apply_now(self.empty(len(groups.starts), several)).accumulators)

    def values(self, state: State, keys: KeyBatch | None = None) -> pa.Array:
        """See ``Aggregator``: the final values of segments without rows."""
        return self.apply_now(self.empty(len(state[0]), self.stored(state))).final_values

    # -- calls -------------------------------------------------------------------------------------------

    def apply(self, segments: KeySegments, ctx: BundleContext) -> StateFuture[SegmentsApplied]:
        """A future of the function's result for the segments."""
        function = self.function.bundled_accumulate_retract
        if self._is_async:
            return ctx.call(function, segments).then_apply(lambda given: self._checked(given, segments))
        return completed_future(self._checked(function(segments), segments))

    def apply_now(self, segments: KeySegments) -> SegmentsApplied:
        """As ``apply``, for segments without rows: an ``async def`` runs to its end and may not wait for anything."""
        given = self.function.bundled_accumulate_retract(segments)
        if inspect.iscoroutine(given):
            given = _run(given, self.form.owner)
        return self._checked(given, segments)

    def empty(self, count: int, accumulators: pa.Array) -> KeySegments:
        """Segments (``count``) without rows."""
        nothing = np.zeros(count + 1, np.int64)
        return KeySegments([], nothing, np.empty(0, np.int8), [], accumulators, self.form.type)

    def _checked(self, given: Any, segments: KeySegments) -> SegmentsApplied:
        applied = given if isinstance(given, SegmentsApplied) else self._as_lists(given, segments)
        each = applied.updated_values_after_each_row
        if each is None and segments.updated_values_after_each_row:
            raise self._wrong("returned no values after each row, although they were requested")
        row_owners = segments.segment_of_row if each is not None else None
        return SegmentsApplied(
            self._column("accumulators", applied.accumulators, self.form.type, segments),
            self._column("starting values", applied.starting_values, self.result_type, segments),
            self._column("final values", applied.final_values, self.result_type, segments),
            None
            if each is None
            else self._column("values after each row", each, self.result_type, segments, row_owners),
        )

    def _as_lists(self, given: Any, segments: KeySegments) -> SegmentsApplied:
        if not isinstance(given, Sequence) or not all(isinstance(one, KeySegmentApplied) for one in given):
            raise self._wrong(
                f"returned {given!r}; return a SegmentsApplied, or a KeySegmentApplied for each segment"
            )
        if len(given) != len(segments):
            raise self._wrong(
                f"returned {len(given)} results for {len(segments)} segments; return one for each"
            )
        each = None
        if segments.updated_values_after_each_row:
            each = [value for one in given for value in one.updated_values_after_each_row or ()]
        return SegmentsApplied(
            [self._plain(one.accumulator) for one in given],
            [one.starting_value for one in given],
            [one.final_value for one in given],
            each,
        )

    def _plain(self, accumulator: Any) -> Any:
        """The accumulator, with a struct's values by name."""
        if pa.types.is_struct(self.form.type) and isinstance(accumulator, list | tuple):
            return dict(zip((field.name for field in self.form.type), accumulator, strict=True))
        return accumulator

    def _column(
        self,
        what: str,
        values: Any,
        arrow_type: pa.DataType,
        segments: KeySegments,
        owners: Int64Array | None = None,
    ) -> pa.Array:
        """``values`` (n) as a column; ``owners`` (n): the segment of each, by default one value per segment."""
        wanted = len(segments) if owners is None else len(owners)
        if len(values) != wanted:
            raise self._wrong(
                f"returned {len(values)} {what} for {wanted}; return one for each, in the same order"
            )
        if isinstance(values, pa.ChunkedArray):
            values = values.combine_chunks()
        try:
            return arrow_values(values, arrow_type)
        except UnfitValueError as error:
            at = error.row if owners is None else int(owners[error.row])
            key = tuple(python_values(column.slice(at, 1))[0] for column in segments.keys)
            raise self._wrong(
                f"returned, among the {what}, {error}; return values of the declared type, or declare another type",
                f", key {key!r}" if segments.keys else "",
            ) from error

    def _wrong(self, what: str, key: str = "") -> OperatorError:
        return OperatorError(f"{self.form.owner}{key}: bundled_accumulate_retract {what}")

    # -- states ------------------------------------------------------------------------------------------

    def stored(self, state: State) -> pa.Array:
        """Stored columns as one column of accumulators (u), null if there is none."""
        missing = _missing(state[0])
        if pa.types.is_struct(self.form.type):
            return pa.StructArray.from_arrays(state[1:], fields=list(self.form.type), mask=pa.array(missing))
        return state[1]

    def columns_of(self, accumulators: pa.Array) -> State:
        """Stored columns of accumulators (u)."""
        present = accumulators.is_valid()
        if pa.types.is_struct(self.form.type):
            return [present, *accumulators.flatten()]
        return [present, accumulators]


def _replaced(old: pa.Array, new: pa.Array, rows: Int64Array) -> pa.Array:
    """``old`` (u), where row ``rows[i]`` of ``new`` replaces row i unless ``rows[i]`` is -1."""
    places = np.where(rows >= 0, rows + len(old), np.arange(len(old)))
    return pa.concat_arrays([old, new]).take(pa.array(places))


def _missing(present: pa.Array) -> np.ndarray:
    known = present.fill_null(False) if present.null_count else present
    return ~np.asarray(known.to_numpy(zero_copy_only=False), np.bool_)


def _run(coroutine: Any, owner: str) -> Any:
    """The result of a coroutine that does not wait for anything."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    coroutine.close()
    raise OperatorError(
        f"{owner}: bundled_accumulate_retract waits for a call although it got no rows; return immediately when "
        "segments.num_rows is 0"
    )
