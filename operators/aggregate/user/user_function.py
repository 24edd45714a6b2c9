"""A user-defined function that takes values one by one, as an aggregator.

Owns: ``UserAggregator``; ``FunctionAggregator``, the base of all functions; the rows that they receive: ``Segments``,
those of a bundle key by key, and ``Moves``, those that enter and leave ``Frames`` from one frame to the next.
Invariant: the function sees the rows of a key in their order; accumulators are decoded and encoded once per bundle and
key. Within a key, neither end of a frame ever moves backwards.
Must not import anything of ``asyncstate`` but ``codec``, ``errors``, ``functions``, ``futures``, ``operator`` and
``state``.

Source: the general Python aggregate functions of FLIP-139.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain, pairwise, repeat
from itertools import count as count_from
from operator import call
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from asyncstate.codec import KeyBatch
from asyncstate.codec.from_python import UnfitValueError, arrow_values
from asyncstate.codec.sorting import rows_by
from asyncstate.codec.times import python_values
from asyncstate.errors import OperatorError, SchemaError
from asyncstate.functions.aggregate_functions import AggregateFunction, has_method, require_changed_in_place
from asyncstate.futures import StateFuture, combine_all, completed_future
from asyncstate.operator import BundleContext, OperatorContext
from asyncstate.state.columnar.state_columns import ColumnState
from asyncstate.state.views.turns import Turns

from ...core.arrays import BoolArray, Int8Array, Int64Array, count_up, index_among, row_ids, run_begins
from ...core.consolidation import net_by_content
from ...core.segments import Groups
from ..aggregator import Aggregator, KeyedRows, State, Updated, counted_rows, key_text
from .accumulator import AccumulatorForm


class Segments(NamedTuple):
    """Rows (m of n) that count, key by key: their indices (m), the first row of each of u keys (u + 1, the last entry
    is m), and their signs (m; None: all are added)."""

    rows: Int64Array
    starts: Int64Array
    signs: Int8Array | None

    @staticmethod
    def of(rows: KeyedRows, columns: Sequence[str], condition: str | None) -> Segments:
        """The rows that meet the condition and whose sign is not 0.

        Rows of a bundle are a set: those that are equal in ``columns`` and cancel out are left out, so that a retracted
        row was added before.
        """
        order, starts = rows.groups.order, np.append(rows.groups.starts, len(rows.groups.order))
        mask = counted_rows(rows.batch, (), condition, rows.signs)
        if mask is not None:
            order, starts = _chosen(order, starts, mask[order])
        if rows.signs is None or bool((rows.signs[order] > 0).all()):
            return Segments(order, starts, None)
        values = [rows.batch.column(name).take(pa.array(order)) for name in columns]
        ids = row_ids(values, np.repeat(np.arange(len(starts) - 1), np.diff(starts)))
        net = net_by_content(np.empty(0, np.int64), ids, rows.signs[order] > 0)
        left = np.zeros(len(order), np.bool_)
        left[net.added] = left[net.missing] = True
        order, starts = _chosen(order, starts, left)
        return Segments(order, starts, rows.signs[order])

    def columns(self, batch: pa.RecordBatch, names: Sequence[str]) -> list[pa.Array]:
        """The named columns of the rows (m)."""
        indices = pa.array(self.rows)
        return [batch.column(name).take(indices) for name in names]


def _chosen(order: Int64Array, starts: Int64Array, kept: BoolArray) -> tuple[Int64Array, Int64Array]:
    """The rows that are ``kept`` (m), and the new first row of each segment."""
    return order[kept], np.append(0, index_among(kept) + 1)[starts]


class Frames(NamedTuple):
    """m frames over rows that are ordered by key: from row ``first`` to row ``last`` (m each), of the key ``owners``
    (m, ascending)."""

    first: Int64Array
    last: Int64Array
    owners: Int64Array


class Moves(NamedTuple):
    """s moves, frame after frame: the ``rows`` (s) that move; ``signs`` (s), +1 for rows that enter and -1 for rows
    that leave; their keys, ``owners`` (s); and ``done`` (m), the number of moves until each frame is complete."""

    rows: Int64Array
    signs: Int8Array
    owners: Int64Array
    done: Int64Array

    @staticmethod
    def of(frames: Frames, counted: BoolArray | None, equal: Int64Array | None = None) -> Moves:
        """The moves of the rows (n) that are ``counted``; None: all. ``equal`` (n): of a key's rows with the same id,
        only the first one enters, and only the last one leaves."""
        first, last, owners = frames
        begins = run_begins(owners)
        newest = np.where(begins, first - 1, np.append(0, last[:-1])[: len(last)])
        oldest = np.where(begins, first, np.append(0, first[:-1])[: len(first)])
        come, leave = last - newest, first - oldest
        at = np.arange(len(first))
        rows = np.concatenate(
            [np.repeat(newest + 1, come) + count_up(come), np.repeat(oldest, leave) + count_up(leave)]
        )
        signs = np.repeat(np.array([1, -1], np.int8), [int(come.sum()), int(leave.sum())])
        moment = np.concatenate([np.repeat(at, come), np.repeat(at, leave)])
        order = rows_by(moment)
        if counted is not None:
            order = order[counted[rows[order]]]
        if equal is not None:
            order = order[_turning(equal[rows[order]], signs[order])]
        done = np.cumsum(np.bincount(moment[order], minlength=len(first)))
        return Moves(rows[order], signs[order], owners[moment[order]], done)


def _turning(ids: Int64Array, signs: Int8Array) -> BoolArray:
    """Which moves (s) are those of the first row of their id that enters, or of the last that leaves."""
    order = rows_by(ids)
    counts = np.cumsum(signs[order].astype(np.int64))
    begins = run_begins(ids[order])
    before = np.append(0, counts)[: len(counts)]
    counts -= before[np.flatnonzero(begins)][np.cumsum(begins) - 1] if len(counts) else 0
    turning = np.empty(len(ids), np.bool_)
    turning[order] = counts == (signs[order] > 0)
    return turning


def _of_key(turns: Turns, accumulators: Sequence[Any], key: int, rows: int) -> Iterator[Any]:
    """The accumulator of a key, once per row; the key's turn starts when its rows are processed."""
    if rows:
        turns.take(key)
    return repeat(accumulators[key], rows)


class FunctionAggregator(Aggregator):
    """``function`` over ``columns`` of the rows whose ``condition`` column is true."""

    def __init__(
        self,
        owner: str,
        prefix: str,
        function: Any,
        columns: tuple[str, ...],
        condition: str | None,
        accumulator_type: pa.DataType,
        result_type: pa.DataType,
    ) -> None:
        self.owner = owner
        self.function = function
        self.columns = columns
        self.condition = condition
        self.form = AccumulatorForm(accumulator_type, prefix, f"{owner}, {type(function).__name__}")
        self.fields = self.form.fields
        self.result_type = result_type


class UserAggregator(FunctionAggregator):
    """The aggregator of a function that takes values one by one."""

    function: AggregateFunction

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        function = self.function
        self.keeps_more = self.form.has_views
        self.get_value: Callable[[Any], Any] = function.get_value
        self.retracts = has_method(function, "retract")
        self.merges = has_method(function, "merge") and not self.keeps_more

    # -- the life cycle ----------------------------------------------------------------------------------

    def open(self, context: OperatorContext, time_first: bool = False) -> None:
        """See ``Aggregator``; the function is already open."""
        self.form.open(context, time_first)
        self.begin_anew()

    def begin_anew(self) -> None:
        """Replaces ``open`` if no state is kept."""
        create = self.function.create_accumulator
        created = create()
        if isinstance(created, list | dict) and created is create():
            raise SchemaError(
                f"{self.form.owner}: create_accumulator returns the same {type(created).__name__} each time, so all "
                "keys would share it; make a new one in each call"
            )
        self.form.like(created)

    def async_read(self, rows: KeyedRows) -> StateFuture[Any] | None:
        """Prefetch the entries of map views that the rows name."""
        if rows.keys is None or not self.form.views:
            return None
        self.form.begin(rows.keys)
        columns = [rows.batch.column(name) for name in self.columns]
        index = rows.groups.ids
        return combine_all([views.async_read(columns, index) for views in self.form.views.values()])

    def remove(self, keys: KeyBatch) -> None:
        """Remove the additional state of ``keys``."""
        self.form.remove(keys)

    def expire_with(self, state: ColumnState) -> None:
        """Expire the additional state together with the rows of the same keys in ``state``."""
        self.form.expire_with(state)

    # -- rows --------------------------------------------------------------------------------------------

    def prepare(self, rows: KeyedRows) -> tuple[Segments, list[list[Any]]]:
        """The rows' values as Python objects."""
        segments = Segments.of(rows, self.columns, self.condition)
        columns = segments.columns(rows.batch, self.columns)
        return segments, list(map(python_values, columns, self.columns))

    def update(
        self, state: State, rows: KeyedRows, prepared: tuple[Segments, list[list[Any]]], ctx: BundleContext
    ) -> Updated:
        """The states (u) after the rows; ``prepared`` is the result of ``prepare``."""
        segments, columns = prepared
        accumulators, new = self.begin(state, rows.keys, segments)
        before = self._column(accumulators, rows.keys, new) if rows.valued else None
        self.apply(accumulators, segments, columns)
        self.form.as_stored(accumulators, rows.keys)
        after = self._column(accumulators, rows.keys) if rows.valued else None
        return self.end(accumulators, rows.keys, before, after)

    def begin(self, state: State, keys: KeyBatch | None, segments: Segments) -> tuple[list[Any], BoolArray]:
        """The accumulators (u), with new ones for keys that have rows; and which keys (u) had none before."""
        accumulators = self.form.decode(state, keys)
        new = np.array([one is None for one in accumulators], np.bool_)
        create, form = self.function.create_accumulator, self.form
        for key in np.flatnonzero(new & (np.diff(segments.starts) > 0)).tolist():
            accumulators[key] = form.fresh(create())
            if keys is not None:
                form.attach(accumulators[key], key, new=True)
        return accumulators, new

    def end(
        self,
        accumulators: list[Any],
        keys: KeyBatch | None,
        before: pa.Array | None,
        after: pa.Array | None,
    ) -> Updated:
        """Write the changes of the views; return the states of the accumulators."""
        self.form.flush(accumulators)
        return Updated(self.form.encode(accumulators, keys), before, after)

    def apply(self, accumulators: list[Any], segments: Segments, columns: list[list[Any]]) -> None:
        """Call the function once per row; the loop is in C, since only the calls need Python."""
        counts = np.diff(segments.starts).tolist()
        accumulate, retract = self.function.accumulate, self.function.retract
        method = "accumulate" if segments.signs is None else "accumulate or retract"
        with self.named(method), self.form.turns(accumulators) as turns:
            owners = chain.from_iterable(map(repeat, accumulators, counts))
            if self.form.views:
                owners = chain.from_iterable(
                    map(partial(_of_key, turns, accumulators), count_from(0), counts)
                )
            calls = map(accumulate, owners, *columns)
            if segments.signs is not None:
                methods = [accumulate if sign > 0 else retract for sign in segments.signs.tolist()]
                calls = map(call, methods, owners, *columns)
            returned = self._all(method, calls, len(segments.rows))
        if returned.count(None) != len(returned):
            owners = chain.from_iterable(map(repeat, accumulators, counts))
            for accumulator, result in zip(owners, returned, strict=True):
                self.returned(method, accumulator, result)

    def _all(self, method: str, calls: Iterator[Any], count: int) -> list[Any]:
        """The ``count`` results of ``calls``, which a StopIteration of the method would end."""
        results = list(calls)
        if len(results) < count:
            raise OperatorError(
                f"{self.form.owner}: {method} raised StopIteration, as next() does at the end of an iterator; give "
                "next() a default"
            )
        return results

    def returned(self, method: str, accumulator: Any, result: Any) -> None:
        """Raise OperatorError for the result of a method that should change the accumulator in place."""
        require_changed_in_place(f"{self.form.owner}: {method}", accumulator, result)

    def async_slide(
        self,
        state: State,
        rows: KeyedRows,
        frames: Frames,
        ctx: BundleContext,
        equal: Int64Array | None = None,
    ) -> StateFuture[tuple[pa.Array, State]]:
        """A future of the value (m) of each frame, and the states (u) at the end; rows that leave a frame are
        retracted. ``state`` (u): that of all earlier rows. ``equal``: see ``Moves``."""
        starts = np.searchsorted(frames.owners, np.arange(len(state[0]) + 1))

        def slide(_: Any = None) -> tuple[pa.Array, State]:
            accumulators, _new = self.begin(state, rows.keys, Segments(np.empty(0, np.int64), starts, None))
            values = self._slide(accumulators, rows, frames, equal)
            found = self.result(values, rows.keys, frames.owners)
            return found, self.end(accumulators, rows.keys, None, None).state

        ahead = self.async_read(rows)
        return completed_future(slide()) if ahead is None else ahead.then_apply(slide)

    def _slide(
        self, accumulators: list[Any], rows: KeyedRows, frames: Frames, equal: Int64Array | None
    ) -> list[Any]:
        accumulate, retract, get_value = self.function.accumulate, self.function.retract, self.get_value
        batch = rows.batch
        moves = Moves.of(frames, counted_rows(batch, (), self.condition, rows.signs), equal)
        columns = [
            python_values(batch.column(name).take(pa.array(moves.rows)), name) for name in self.columns
        ]
        steps = list(zip(moves.signs.tolist(), self._rows(columns, len(moves.rows)), strict=True))
        values, start = [], 0
        with self.named("accumulate, retract or get_value"), self.form.turns(accumulators) as turns:
            for stop, owner in zip(moves.done.tolist(), frames.owners.tolist(), strict=True):
                accumulator = accumulators[owner]
                turns.take(owner)
                for sign, row in steps[start:stop]:
                    result = (accumulate if sign > 0 else retract)(accumulator, *row)
                    if result is not None:
                        self.returned("accumulate or retract", accumulator, result)
                values.append(get_value(accumulator))
                start = stop
        return values

    def _rows(self, columns: list[list[Any]], count: int) -> list[tuple[Any, ...]]:
        return list(zip(*columns, strict=True)) if columns else [()] * count

    # -- states ------------------------------------------------------------------------------------------

    def combine(self, state: State, groups: Groups) -> State:
        """See ``Aggregator``; only called for functions that merge."""
        if groups.single:
            indices = pa.array(groups.order)
            return [column.take(indices) for column in state]
        accumulators = self.form.decode(state)
        ordered = [accumulators[row] for row in groups.order.tolist()]
        starts = [*groups.starts.tolist(), len(ordered)]
        with self.named("merge"):
            return self.form.encode([self.merged(ordered[start:stop]) for start, stop in pairwise(starts)])

    def merged(self, accumulators: Sequence[Any]) -> Any:
        """The accumulators of one key merged into one."""
        there = [one for one in accumulators if one is not None]
        if len(there) < 2:
            return there[0] if there else None
        first, *others = there
        self.returned("merge", first, self.function.merge(first, others))  # type: ignore[func-returns-value]
        return first

    def values(self, state: State, keys: KeyBatch | None = None) -> pa.Array:
        """See ``Aggregator``; without an accumulator, the value of an empty one."""
        return self._column(self.form.decode(state, keys), keys)

    def _column(
        self, accumulators: Sequence[Any], keys: KeyBatch | None = None, empty: BoolArray | None = None
    ) -> pa.Array:
        """The values of accumulators (u) of ``keys`` (u), of which some are ``empty`` (u)."""
        get_value = self.get_value
        if empty is None:
            empty = np.array([one is None for one in accumulators], np.bool_)
        nothing = self._value_of_nothing() if empty.any() else None
        with self.named("get_value"), self.form.turns(accumulators) as turns:
            if not empty.any() and not self.form.views:
                values = self._all("get_value", map(get_value, accumulators), len(accumulators))
                return self.result(values, keys)
            values = []
            for key, (one, is_empty) in enumerate(zip(accumulators, empty.tolist(), strict=True)):
                turns.take(key)
                values.append(nothing if is_empty else get_value(one))
            return self.result(values, keys)

    def _value_of_nothing(self) -> Any:
        """The value of an empty accumulator; None if the function fails for it, as a mean often does."""
        try:
            return self.get_value(self.form.fresh(self.function.create_accumulator()))
        except Exception:
            return None

    def result(
        self, values: Sequence[Any], keys: KeyBatch | None = None, owners: Int64Array | None = None
    ) -> pa.Array:
        """Values (n) as a column; ``owners`` (n): the index in ``keys`` of each, by default its position.

        Raises OperatorError for values that do not fit the result type."""
        try:
            return arrow_values(values, self.result_type)
        except UnfitValueError as error:
            at = error.row if owners is None else int(owners[error.row])
            raise OperatorError(
                f"{self.form.owner}{key_text(keys, at)}: the function returned {error}; return values of the result "
                "type, or declare another type"
            ) from error

    @contextmanager
    def named(self, method: str) -> Iterator[None]:
        """Add the method and the function's name to errors of the function."""
        try:
            yield
        except Exception as error:
            error.add_note(f"in {method} of {self.form.owner}")
            raise
