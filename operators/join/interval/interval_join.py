"""IntervalJoin: the join of rows of two inputs whose times are within an interval of each other.

Owns: the operator: its checks and its reads. Times are in ``interval``, the output in ``match_flags``, stored rows
in ``interval_pairs`` and ``unmatched``; keys, conditions and pairs are those of ``Join``.
Invariant: the output is final: every pair once, every row without partner once, when none can come any more.
Must not import anything of ``asyncstate`` but ``changelog``, ``operator``, ``state``, ``futures``, ``codec``,
``errors``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from asyncstate.changelog import ChangelogMode, RowKind
from asyncstate.codec import KeyBatch
from asyncstate.durations import Duration, microseconds
from asyncstate.errors import SchemaError
from asyncstate.futures import StateFuture
from asyncstate.growth import StateGrowth, bounded_by
from asyncstate.operator import (
    MAX_WATERMARK,
    MIN_WATERMARK,
    Bundle,
    BundleContext,
    InputSpec,
    OperatorContext,
    OutputSpec,
)
from asyncstate.state.columnar.list_blocks import ListHeads

from ...core.arrays import BoolArray, Int64Array
from ...core.operator_checks import (
    TimeDomain,
    check_has_time,
    check_insert_only,
    check_time_domain,
)
from ..join_inputs import JoinCondition, TwoInputJoin, joined_changes, matchable_keys
from ..matches import oriented
from ..rules import JoinKind, rules
from .interval import BOUND_MAX_US, Interval
from .interval_pairs import IntervalSide, MatchedPairs, Traits
from .interval_rows import IntervalRows
from .match_flags import IntervalMatches

_SIDES = ("left", "right")


class IntervalJoin(TwoInputJoin):
    """Left and right rows with equal keys (``key`` of the inputs) whose times are close, both insert-only.

    A left row l and a right row r are in reach when ``l.time + lower <= r.time <= l.time + upper``: the bounds say
    how much later than the left row the right one may be, both inclusive, and both may be negative. Example, the
    payments of each order, at most an hour after it, with key ``order`` / ``order``::

        IntervalJoin("left", lower=0, upper="1 hour")

    ``kind``: inner, left, right, full, semi (left rows that have a partner, once, at the first) or anti (those that
    have none). ``lower`` and ``upper``: texts ("-5 minutes"), timedeltas or int microseconds. ``condition``,
    ``suffixes`` and ``null_safe`` are as in ``Join``. ``time``: "event", the event times of the inputs, or
    "processing", where the time of a row is that of the micro-batch that it came in. ``allowed_lateness``: how
    much longer rows are kept for late partners (event time only).

    Output: left columns, then right columns (semi and anti: left columns), +I only. Rows come in order of arrival of
    the row that completes the pair, then of the other row's time. A row without partner is emitted once, padded with
    nulls (left, right, full) or as it is (anti), at the end of the micro-batch whose watermark has passed its last
    possible partner and the lateness: left rows before right rows, by time, then in the order of the store.

    Late rows are not dropped. A late row joins the stored rows; if no partner can come any more, it is
    not stored, and without one it is emitted at once. Rows with a null in the key, which match nothing unless
    ``null_safe``, are emitted at once, too. Rows without an event time never reach the operator: they are dropped
    and counted before.

    State: ``left`` and ``right``, all columns of the rows that may still find a partner: lists by key and a cell of
    time as long as the interval, at least a second. A cell is removed when all of it is over: a row at most
    the length of a cell later than its last partner could come. ``left_unmatched`` / ``right_unmatched`` (outer and
    anti): a second copy of the rows that wait to be emitted, until they find a partner. Kind, time, bounds and
    lateness belong to the state's declaration. Without a watermark rows of event time are kept forever.

    Source: Flink's ``RowTimeIntervalJoin`` and ``ProcTimeIntervalJoin``. Raises SchemaError for parameters that do not
    fit.
    """

    accepts_changelog: ClassVar[bool] = False

    def __init__(
        self,
        kind: JoinKind = "inner",
        *,
        lower: Duration,
        upper: Duration,
        condition: JoinCondition | None = None,
        time: TimeDomain = "event",
        suffixes: tuple[str, str] = ("", "_right"),
        null_safe: bool = False,
        allowed_lateness: Duration = 0,
    ) -> None:
        super().__init__(kind, condition, suffixes, null_safe)
        check_time_domain(time, self.owner)
        self.interval = _interval(lower, upper, allowed_lateness, self.owner)
        if time == "processing" and self.interval.lateness:
            raise SchemaError(f"{self.owner}: nothing is late in processing time; leave allowed_lateness out")
        self.time: TimeDomain = time

    def bind(self, inputs: Sequence[InputSpec]) -> OutputSpec:
        """Left columns, then right columns; only the left ones for semi and anti."""
        for spec in inputs:
            check_insert_only(spec, self.owner, "Join")
            check_has_time(spec, self.time, self.owner)
        shown = self._output_schema(inputs)
        return OutputSpec(shown, changes=joined_changes(ChangelogMode.INSERT_ONLY, self.kind, inputs, shown))

    def state_growth(self, inputs: Sequence[InputSpec]) -> StateGrowth | None:
        """See ``Operator``: rows are removed when no partner can come any more."""
        return bounded_by("watermark" if self.time == "event" else "the interval")

    def state_meaning(self, inputs: Sequence[InputSpec]) -> Mapping[str, str]:
        """See ``Operator``: rows that an earlier interval did not need are gone."""
        return {**super().state_meaning(inputs), "interval": f"{self.interval.text} of {self.time} time"}

    def open(self, context: OperatorContext) -> None:
        """Declare the state."""
        self._inputs = tuple(context.inputs)
        self._now = context.processing_time
        self._passed = context.previous_watermark
        if self.time == "processing":
            self._passed = self._now - 1  # later micro-batches may still have the same time
        text = f"{self.kind} {self.interval.text} of {self.time} time"
        self._sides = tuple(
            IntervalSide(
                name,
                spec,
                spec.event_time if self.time == "event" else None,
                self.interval,
                _traits(self.kind, side),
                text,
                context,
            )
            for side, (name, spec) in enumerate(zip(_SIDES, self._inputs, strict=True))
        )
        self._residual = self._condition_over(self._inputs)
        self._ahead: dict[int, _Arrival] = {}  # by id of a prefetched bundle

    # -- rows ---------------------------------------------------------------------------------------

    def prefetch(self, bundle: Bundle) -> None:
        """Hint which state the bundle will need (``state.prefetch(bundle.keys)``), while another one is processed."""
        arrival = self._ahead[id(bundle)] = self._arrival(bundle)
        self._sides[1 - bundle.input_index].prefetch(arrival.asked)
        self._sides[bundle.input_index].prefetch(arrival.cells)

    def process_bundle(self, bundle: Bundle, ctx: BundleContext) -> Any:
        """See ``BundleOperator``; one step per part of the output."""
        if not bundle.num_rows:
            return None
        arrival = self._ahead.pop(id(bundle), None) or self._arrival(bundle)
        return self._steps(bundle, arrival, ctx)

    def _arrival(self, bundle: Bundle) -> _Arrival:
        side, keys = bundle.input_index, bundle.keys
        times = bundle.times
        if self.time == "processing" or times is None:
            times = np.full(bundle.num_rows, self._now, np.int64)
        index = keys.inverse.astype(np.int64)
        matchable = matchable_keys(keys, self.null_safe)
        if matchable is not None:
            index[~matchable[index]] = -1
        first, last = self.interval.partners(side, times)
        first = np.maximum(first, min(self._over(1 - side) + 1, MAX_WATERMARK))
        asks = np.flatnonzero((index >= 0) & (first <= last))
        ends, askers = np.concatenate([first[asks], last[asks]]), np.tile(index[asks], 2)
        asked = self._sides[1 - side].cells(keys, askers, ends)
        asked_keys = np.empty(len(asked), np.int64)
        asked_keys[asked.inverse] = askers
        waits = (index >= 0) & (times > self._over(side))
        kept = np.flatnonzero(waits)
        cells = self._sides[side].cells(keys, index[kept], times[kept])
        rows = IntervalRows(bundle.batch.columns, index, times)
        return _Arrival(rows, first, last, asked, asked_keys, waits, cells)

    def _over(self, side: int) -> int:
        """The latest time of rows of ``side`` for which no partner can come, by the time that has passed already."""
        return self.interval.over(side, self._passed)

    def _steps(
        self, bundle: Bundle, arrival: _Arrival, ctx: BundleContext
    ) -> Iterator[StateFuture[Any] | None]:
        side, rows, waits = bundle.input_index, arrival.rows, arrival.waits
        own, others = self._sides[side], self._sides[1 - side]
        read: list[tuple[MatchedPairs, ListHeads]] = []
        yield (
            others.async_find(arrival.asked, arrival.asked_keys, self._over(1 - side))
            .then_combine(own.async_heads(arrival.cells), lambda found, heads: (found, heads))
            .then_accept(read.append)
        )
        found, heads = read[0]
        matches = IntervalMatches(self.kind, side, rows, waits, found.columns, found.keys, found.times)
        for probe, stored in matches.parts(arrival.first, arrival.last, oriented(self._residual, side)):
            self._emit(side, (rows.columns, probe), (found.columns, stored), RowKind.INSERT, ctx)
            yield None
        yield others.async_note(bundle.keys, found, matches.partners)
        yield own.async_add(bundle.keys, arrival.cells, heads, rows, waits, matches.matched)

    # -- time ---------------------------------------------------------------------------------------

    def on_watermark(self, watermark: int, ctx: BundleContext) -> Any:
        """Called once per micro-batch and partition, after all bundles (also when there was none)."""
        before, passed = ctx.previous_watermark, ctx.watermark
        if self.time == "processing":
            before = max(ctx.previous_processing_time - 1, MIN_WATERMARK)
            passed = MAX_WATERMARK if watermark == MAX_WATERMARK else ctx.processing_time - 1
        return self._end(before, passed, ctx) if before < passed else None

    def _end(self, before: int, passed: int, ctx: BundleContext) -> Iterator[None]:
        """Emit the rows that are over without a partner, and remove those that are over."""
        times = [[self.interval.over(side, time) for time in (before, passed)] for side in (0, 1)]
        for side, state in enumerate(self._sides):
            nulls = [pa.nulls(0, field.type) for field in self._inputs[1 - side].schema]
            for columns in state.due(*times[side]):
                rows = np.arange(len(columns[0]))
                self._emit(side, (columns, rows), (nulls, np.full(len(rows), -1)), RowKind.INSERT, ctx)
                yield None
        for side, state in enumerate(self._sides):
            state.remove_over(*times[side])


@dataclass(frozen=True)
class _Arrival:
    """A bundle's rows (n), with key -1 where they match nothing.

    ``first`` and ``last`` (n): the times of partners that may be there; ``asked``: the cells of the other side with
    these, and their keys. ``waits`` (n): a partner may still come; ``cells``: where to store those rows.
    """

    rows: IntervalRows
    first: Int64Array
    last: Int64Array
    asked: KeyBatch
    asked_keys: Int64Array
    waits: BoolArray
    cells: KeyBatch


def _traits(kind: JoinKind, side: int) -> Traits:
    return Traits(
        watched=rules(kind, 1 - side).watch,
        padded=rules(kind, side).unmatched,
        once=kind in ("semi", "anti") and side == 0,
    )


def _interval(lower: Duration, upper: Duration, lateness: Duration, owner: str) -> Interval:
    bounds = [
        microseconds(value, owner, name)
        for name, value in (("lower", lower), ("upper", upper), ("allowed_lateness", lateness))
    ]
    for name, bound in zip(("lower", "upper", "allowed_lateness"), bounds, strict=True):
        if abs(bound) > BOUND_MAX_US:
            raise SchemaError(
                f"{owner}: {name} is {bound} us; give at most {BOUND_MAX_US} us before or after"
            )
    interval = Interval(*bounds)
    if interval.lower > interval.upper:
        raise SchemaError(
            f"{owner}: lower ({lower!r}) is above upper ({upper!r}), so nothing can match; swap them"
        )
    if interval.lateness < 0:
        raise SchemaError(f"{owner}: allowed_lateness is {lateness!r}; give a duration, or 0")
    return interval
