"""Match: one row for each run of rows that matches a pattern.

Owns: the operator: its checks, which keys it searches, its output. ``matcher`` decides what matches; the engine orders
the rows.
Invariant: the matches of a key depend only on its rows and their order. A key of which no match may have begun has no
rows in state, and costs no Python as long as none of its rows can be a first one.
Must not import anything of ``asyncstate`` but ``changelog``, ``codec``, ``durations``, ``errors``, ``futures``,
``operator`` and ``state``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa

from asyncstate.changelog import Changelog
from asyncstate.codec import KeyBatch
from asyncstate.codec.times import python_values
from asyncstate.durations import Duration, microseconds
from asyncstate.errors import SchemaError
from asyncstate.futures import StateFuture, completed_future
from asyncstate.growth import WITH_KEYS, StateGrowth, bounded_by, most
from asyncstate.operator import (
    MAX_WATERMARK,
    Bundle,
    BundleContext,
    InputOrder,
    InputSpec,
    OperatorContext,
    OutputSpec,
    Row,
    row_type,
)
from asyncstate.state.columnar.list_blocks import ListHeads
from asyncstate.state.columnar.state_columns import Columns, ColumnStateDescriptor

from ..aggregate.aggregate_operator import AggregateOperator
from ..core.arrays import Int64Array, index_among, place_in_run
from ..core.late_rows import check_late_output, with_late_output
from ..core.operator_checks import KeepsKey, TimeDomain, check_has_time, check_number, check_time_domain
from ..core.sort_orders import OrderBy, check_order, order_columns, sort_keys
from ..core.state_meaning import meaning
from .active_matches import ArrivedRows, LiveRows, MatchRows
from .automaton import Automaton, check_end
from .define import Define, Definitions
from .matcher import NEVER, FoundMatch, KeyRows, Matcher
from .measures import Matched, MatchNumber, Measure, Measures, aggregates_of, check_measures
from .pattern import Pattern, as_pattern
from .skips import Skip, check_skip, skip_past_last

MATCH_TIME: Final = "match_time"
"""The output's event time."""
BUDGET: Final = 1_000_000


class Match(KeepsKey, AggregateOperator):
    """SQL's MATCH_RECOGNIZE: one row for each run of a key's rows, in order of time, that matches ``pattern``.

    ``pattern``: a string such as ``"A B{2,5}? C+ (D | E)"``, or the same made with ``variable``. Each variable takes
    one row that meets its conditions in ``define``; without any it takes every row. A condition is a pyarrow expression
    over the columns or a function of a batch of rows, evaluated for all rows at once; a function of two arguments, the
    current row and the match so far (``MatchSoFar``), looks back; in a list of conditions all must be met.

    Of the matches that begin with a row the preferred one counts: by quantifiers, which are greedy or reluctant (``?``
    after them), and by the order of alternatives. ``within``: the last row of a match is less than this much later than
    its first row. ``after_match``: where the next match may begin: ``skip_past_last()``, ``skip_to_next()``,
    ``skip_to_first("B")`` or ``skip_to_last("B")``. A match that has no such row, or has it first, would be found
    forever: it is dropped and counted (``matches_dropped``), and the next one may begin with its second row.

    ``measures``: ``first``, ``last``, ``match_number`` or any aggregate, by the name of its output column;
    ``.where("B")`` limits an aggregate to the rows of a variable.

    >>> from asyncstate.testing import OperatorHarness
    >>> from operators import last, sum_
    >>> import pyarrow.compute as pc
    >>> prices = pa.schema([("share", pa.string()), ("price", pa.int64()), ("at", pa.timestamp("us"))])
    >>> dips = Match(
    ...     "HIGH LOW+ HIGH",
    ...     define={"HIGH": pc.field("price") >= 10, "LOW": pc.field("price") < 10},
    ...     measures={"low": sum_("price").where("LOW"), "back": last("price")},
    ... )
    >>> with OperatorHarness(dips, prices, ["share"], event_time="at") as harness:
    ...     harness.push([("a", 12, 1), ("a", 9, 2), ("a", 7, 3), ("a", 11, 4)])
    ...     harness.finish()
    [('+I', 'a', 4, 16, 11)]

    Output, only +I: the key columns, ``match_time``, the measures. ``match_time`` (with ``time="event"``) is the time
    at which the match was certain: that of its last row, or, where a preferred match could still have come, of the row
    or the end of ``within`` that ruled it out. So no row is late for a downstream operator.

    Rows are processed when the watermark has passed them, in order of event time and then of ``then``; late rows are
    counted (``late_rows_dropped``) and dropped, or go to the side output ``late_output``. With
    ``time="processing"`` rows have the time of their micro-batch, and are processed in order of ``then`` or of arrival.

    ``budget``: how often, for one match, rows may be tried as variables where conditions look back; more raise
    OperatorError.

    State: ``rows``, of each key those from the first one on with which a match may have begun, and ``due``, their
    deadlines; ``matches``, one count per key, only for ``match_number``.

    Source: Flink's MATCH_RECOGNIZE and ISO/IEC 19075-5. Raises SchemaError for parameters that do not fit.
    """

    accepts_changelog: ClassVar[bool] = False

    def __init__(
        self,
        pattern: str | Pattern,
        define: Define | None = None,
        measures: Mapping[str, Measure] | None = None,
        *,
        within: Duration | None = None,
        after_match: Skip | None = None,
        then: OrderBy | None = None,
        time: TimeDomain = "event",
        late_output: str | None = None,
        budget: int = BUDGET,
    ) -> None:
        self.measures: dict[str, Measure] = {} if measures is None else measures  # type: ignore[assignment]
        check_measures(self.measures, self.owner)
        self.measures = dict(self.measures)
        super().__init__(aggregates_of(self.measures))
        check_time_domain(time, self.owner)
        check_late_output(late_output, time, self.owner)
        check_number(budget, 1, "budget", self.owner)
        self.pattern = as_pattern(pattern)
        self.define: Define = {} if define is None else define
        self.within = None if within is None else microseconds(within, self.owner, "within")
        self.after_match = skip_past_last() if after_match is None else after_match
        self.then = () if then is None else order_columns(then, self.owner)
        self.time: TimeDomain = time
        self.late_output = late_output
        self.budget = budget
        automaton = Automaton(self.pattern, self.owner)
        Definitions(self.define, automaton, self.owner)
        check_end(automaton, self.within, self.owner)
        check_skip(self.after_match, automaton, self.owner)

    def bind(self, inputs: Sequence[InputSpec]) -> OutputSpec:
        """Key columns, ``match_time``, measures."""
        (spec,) = inputs
        check_has_time(spec, self.time, self.owner)
        check_order(self.then, spec, self.owner)
        automaton = Automaton(self.pattern, self.owner)
        Definitions(self.define, automaton, self.owner).bind(spec.schema)
        measures = Measures(self.measures, automaton, spec, self.owner)
        event_time = self._event_time(spec)
        time = [] if event_time is None else [pa.field(MATCH_TIME, spec.column(event_time).type)]
        fields = [*spec.key_schema, *time, *measures.fields]
        names = [field.name for field in fields]
        for name in names:
            if names.count(name) > 1:
                raise SchemaError(
                    f"{self.owner}: two output columns have the name '{name}'; rename the measure, or the key column "
                    "before the operator"
                )
        return with_late_output(pa.schema(fields), self.late_output, spec, Changelog.insert_only())

    def late_outputs(self, inputs: Sequence[InputSpec]) -> Sequence[str | None]:
        """For each input in order of event time, the side output for rows that are too late for it; None: dropped."""
        return [self.late_output]

    def ordered_inputs(self, inputs: Sequence[InputSpec]) -> Sequence[InputOrder | None]:
        """By time, then by the other columns."""
        return [InputOrder(self.time, sort_keys(self.then))]

    def state_meaning(self, inputs: Sequence[InputSpec]) -> Mapping[str, str]:
        """See ``Operator``: stored rows record which variables they can be; measures are those of whole matches."""
        counts = any(isinstance(one, MatchNumber) for one in self.measures.values())
        return meaning(
            self,
            pattern=self.pattern.text,
            define=self.define,
            within=None if self.within is None else f"{self.within}us",
            after_match=self.after_match,
            then=self.then,
            time=self.time,
            match_number="counted" if counts else "not counted",
        )

    def state_growth(self, inputs: Sequence[InputSpec]) -> StateGrowth | None:
        """See ``Operator``: rows of matches that may have begun."""
        counts = any(isinstance(one, MatchNumber) for one in self.measures.values())
        rows = (
            StateGrowth("grows with the rows of unfinished matches")
            if self.within is None
            else bounded_by("within")
        )
        return most([rows, *([WITH_KEYS] if counts else [])])

    def change_refusal(
        self, name: str, was: str | None, now: str | None, inputs: Sequence[InputSpec]
    ) -> str | None:
        """See ``Operator``: the count of matches may be given up."""
        return None if name == "match_number" and now == "not counted" else ""

    def open(self, context: OperatorContext) -> None:
        """Declare the state."""
        spec = context.inputs[0]
        automaton = Automaton(self.pattern, self.owner)
        definitions = Definitions(self.define, automaton, self.owner)
        self._spec = spec
        self._masks = definitions.bind(spec.schema)
        self._measures = Measures(self.measures, automaton, spec, self.owner)
        self._measures.open(context)
        self._matcher = Matcher(
            automaton, self.after_match, self.within, definitions.looking, self.budget, self.owner
        )
        self._dropped = context.counter("matches_dropped")
        self._begins = self._matcher.start_mask
        self._row: type[Row] | None = row_type(spec.schema) if definitions.looking else None
        self._stored = self._stored_columns(spec)
        made_for = ("pattern", self._made_for)
        fields = [spec.column(name).with_nullable(True) for name in self._stored]
        self._live = LiveRows(fields, made_for, self._deadlines, context)
        self._counts = None
        if self._measures.counts_matches:
            count = pa.schema([pa.field("count", pa.int64(), nullable=False)])
            self._counts = context.get_state(ColumnStateDescriptor("matches", count, belongs_to=made_for))

    # -- rows ------------------------------------------------------------------------------------------------

    def process_bundle(self, bundle: Bundle, ctx: BundleContext) -> Any:
        """Never called: all rows come in order."""

    def process_due(self, bundles: Sequence[Bundle | None], ctx: BundleContext) -> Any:
        """See ``BundleOperator``; rows of the same key may still come in this micro-batch."""
        (bundle,) = bundles
        if bundle is None:
            return None
        masks = self._masks(bundle.batch)
        return self._live.async_heads(bundle.keys).then_compose(
            lambda heads: self._ingest(bundle, masks, heads, ctx)
        )

    def _ingest(
        self, bundle: Bundle, masks: Int64Array, heads: ListHeads, ctx: BundleContext
    ) -> StateFuture[None]:
        """Take keys with stored rows, and of the others those with a row that can be a first one, from that row on."""
        order, starts = bundle.keys.rows_sorted()
        owners = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(order)))
        live = heads.counts > 0
        begins = (masks & self._begins)[order] != 0
        if not (begins.any() or live.any()):
            return completed_future(None)
        begun = np.cumsum(begins)
        needed = live[owners] | (begun > (begun - begins)[starts][owners])
        chosen = live.copy()
        chosen[owners[needed]] = True
        rows = order[needed]
        times = self._times(bundle, ctx)[rows]
        payload = [bundle.batch.column(name).take(pa.array(rows)) for name in self._stored]
        new = ArrivedRows(index_among(chosen)[owners[needed]], masks[rows], times, payload)
        read = self._live.async_read(bundle.keys.select(chosen), heads.select(chosen), new)
        return read.then_compose(lambda kept: self._match(kept, -NEVER, ctx))

    def on_watermark(self, watermark: int, ctx: BundleContext) -> Iterator[Any]:
        """See ``BundleOperator``: all rows up to the watermark have come."""
        horizon = NEVER if watermark == MAX_WATERMARK else watermark + 1
        if self.time == "processing" and watermark != MAX_WATERMARK:
            horizon = ctx.processing_time
        for keys in self._live.due(horizon) if self.within is not None or horizon == NEVER else ():
            yield self._time_out(keys, horizon, ctx)

    def _time_out(self, keys: KeyBatch, horizon: int, ctx: BundleContext) -> StateFuture[None]:
        return self._live.async_heads(keys).then_compose(
            lambda heads: self._live.async_read(keys, heads, None).then_compose(
                lambda kept: self._match(kept, horizon, ctx)
            )
        )

    def _match(self, kept: MatchRows, horizon: int, ctx: BundleContext) -> StateFuture[None]:
        batch = self._batch(kept)
        given = KeyRows(kept.masks.tolist(), kept.times.tolist(), self._rows(batch))
        starts = kept.starts.tolist()
        found: list[FoundMatch] = []
        counts, first = [], []
        for start, stop in pairwise(starts):
            before = len(found)
            first.append(self._matcher.run(given, start, stop, horizon, found))
            counts.append(len(found) - before)
        self._live.write(kept, np.array(first, np.int64))
        self._dropped.add(self._matcher.dropped)
        self._matcher.dropped = 0
        if not found:
            return completed_future(None)
        owners = np.repeat(np.arange(len(counts)), counts)
        return self._async_numbers(kept.keys, owners).then_compose(
            lambda numbers: self._emit(kept.keys, owners, batch, found, numbers, ctx)
        )

    # -- matches -----------------------------------------------------------------------------------------------

    def _emit(
        self,
        keys: KeyBatch,
        owners: Int64Array,
        batch: pa.RecordBatch,
        found: Sequence[FoundMatch],
        numbers: Int64Array | None,
        ctx: BundleContext,
    ) -> StateFuture[None]:
        """Emit a row for each match (m); ``owners`` (m) are the indices of their keys."""
        sizes = np.array([len(one.variables) for one in found], np.int64)
        starts = np.cumsum(sizes) - sizes
        place = np.arange(sizes.sum()) - np.repeat(starts, sizes)
        rows = np.repeat(np.array([one.first for one in found], np.int64), sizes) + place
        variables = np.array([variable for one in found for variable in one.variables], np.int64)
        key_columns = [column.take(pa.array(owners)) for column in keys.columns]
        columns = list(key_columns)
        if self._event_time(self._spec):
            columns.append(self._match_times([one.decided for one in found]))
        values = self._measures.async_values(
            batch, Matched(rows, starts, variables), numbers, key_columns, ctx
        )
        return values.then_accept(lambda measures: ctx.emit([*columns, *measures]))

    def _match_times(self, decided: Sequence[int]) -> pa.Array:
        """The times in the unit of the event time; finer digits are cut off."""
        wanted = self._spec.column(self._event_time(self._spec) or "").type
        times = np.array(decided, np.int64)
        if wanted.unit == "ns":
            times = np.clip(times, -NEVER // 1000, NEVER // 1000)
        return pa.array(times).cast(pa.timestamp("us", wanted.tz)).cast(wanted, safe=False)

    def _async_numbers(self, keys: KeyBatch, owners: Int64Array) -> StateFuture[Int64Array | None]:
        """A future of the number of each match (m), after raising the counts; None if no measure needs it."""
        counts = self._counts
        if counts is None:
            return completed_future(None)
        chosen = np.zeros(len(keys), np.bool_)
        chosen[owners] = True
        asked, more = keys.select(chosen), np.bincount(owners, minlength=len(keys))[chosen]

        def count_on(stored: Columns) -> Int64Array:
            before = stored.numpy(0).astype(np.int64)
            counts.put(asked, [pa.array(before + more)])
            return before[index_among(chosen)[owners]] + place_in_run(owners) + 1

        return counts.async_get(asked).then_apply(count_on)

    # -- columns and times ---------------------------------------------------------------------------------------

    def _stored_columns(self, spec: InputSpec) -> list[str]:
        """The columns that measures need, all where conditions look back; not those of the key."""
        asked = set(spec.schema.names) if self._row is not None else self._measures.columns
        return [name for name in spec.schema.names if name in asked and name not in spec.key]

    def _batch(self, kept: MatchRows) -> pa.RecordBatch:
        """The rows with the stored columns and the key columns, in the input's order."""
        stored = dict(zip(self._stored, kept.payload, strict=True))
        owners = pa.array(kept.owners)
        key = {
            name: column.take(owners) for name, column in zip(self._spec.key, kept.keys.columns, strict=True)
        }
        columns = {
            name: (stored | key)[name] for name in self._spec.schema.names if name in stored or name in key
        }
        if not columns:  # measures count only rows
            columns = {"match:rows": pa.nulls(len(owners))}
        return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))

    def _rows(self, batch: pa.RecordBatch) -> Sequence[Row]:
        """The rows that conditions read where they look back, else none."""
        if self._row is None:
            return ()
        return list(map(self._row, zip(*map(python_values, batch.columns, batch.schema.names), strict=True)))

    def _times(self, bundle: Bundle, ctx: BundleContext) -> Int64Array:
        if self.time == "processing":
            return np.full(bundle.num_rows, ctx.processing_time, np.int64)
        assert bundle.times is not None  # ``bind`` asks for an event time
        return bundle.times

    def _deadlines(self, times: Int64Array) -> Int64Array:
        if self.within is None:
            return np.full(len(times), NEVER, np.int64)
        return np.minimum(times, NEVER - self.within) + self.within

    @property
    def _made_for(self) -> str:
        """What stored rows depend on: the bits of their variables, and their deadlines."""
        within = "" if self.within is None else f" within {self.within} microseconds"
        return f"{self.pattern.text}{within} in {self.time} time"

    def _event_time(self, spec: InputSpec) -> str | None:
        return spec.event_time if self.time == "event" else None
