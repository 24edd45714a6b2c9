"""TemporalJoin: each left row with the version that the right table's row of its key has at the left row's time.

Owns: the operator: its checks, its reads and writes. ``right_versions`` decides which version is valid when; the
engine orders the rows.
Invariant: a left row is emitted once, and final. The state has one row per key: past versions are never needed,
because both inputs come in order of time, and the engine buffers future versions.
Must not import anything of ``asyncstate`` but ``operator``, ``state``, ``futures``, ``codec``, ``errors``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np
import pyarrow as pa

from asyncstate.changelog import RowKind, accumulates
from asyncstate.codec import KeyBatch
from asyncstate.codec.times import event_times
from asyncstate.errors import SchemaError
from asyncstate.futures import StateFuture
from asyncstate.operator import (
    MIN_WATERMARK,
    Bundle,
    BundleContext,
    InputOrder,
    InputSpec,
    OperatorContext,
    OutputSpec,
)
from asyncstate.state.columnar.state_columns import Columns, ColumnState, ColumnStateDescriptor
from asyncstate.state.expiring.ttl import Ttl, TtlTime, as_bundle_ttl

from ..core.arrays import BoolArray, Int8Array, Int64Array, concat_rows, row_ids, take_rows
from ..core.late_rows import check_late_output, with_late_output
from ..core.operator_checks import (
    TimeDomain,
    check_has_time,
    check_one_change,
    check_time_domain,
    check_whole_updates,
)
from ..core.stored_columns import StoredColumns
from .join_inputs import JoinCondition, TwoInputJoin, matching
from .right_versions import Versions, versions_of

TemporalJoinKind = Literal["inner", "left"]


class TemporalJoin(TwoInputJoin):
    """Left rows, each with the right row that its key has at the time of the left row: SQL's FOR SYSTEM_TIME AS OF.

    ``key`` of the right input is its unique key: a row (+I, +U) is the version of its key from its event time on, until
    the next one, or until a -D ends it; -U is ignored, since the row that replaces the old one follows. ``kind``:
    inner, or left, which pads left rows without a version, or whose pair does not meet ``condition`` (as in ``Join``),
    with nulls. A null in the key matches nothing, with ``null_safe`` it matches null.

    ``time="event"``: a left row is emitted when the watermark has passed it, joined with the version that is valid at
    its time, one that begins then included. Late left rows are counted (``late_rows_dropped``) and dropped, or go to
    the side output that ``late_output`` names. Late versions are counted (``late_versions``) and, if they are not older
    than the version that the key has, used for later left rows; older ones are dropped (``late_versions_dropped``).
    ``time="processing"``: a left row is emitted at once, joined with the row that its key has then; the right rows of a
    micro-batch come first. Left rows must be insertions. Later changes on the right do not change what was emitted.

    >>> from asyncstate.testing import OperatorHarness
    >>> orders = pa.schema([("currency", pa.string()), ("amount", pa.int64()), ("at", pa.timestamp("us"))])
    >>> rates = pa.schema([("currency", pa.string()), ("rate", pa.int64()), ("since", pa.timestamp("us"))])
    >>> keys, times = [["currency"], ["currency"]], ["at", "since"]
    >>> with OperatorHarness(TemporalJoin("left"), [orders, rates], keys, event_time=times) as harness:
    ...     harness.push([("EUR", 5, 10), ("EUR", 7, 30), ("USD", 1, 20)], input=0)
    ...     harness.push([("EUR", 114, 0), ("EUR", 116, 25)], input=1)
    ...     for row in sorted(harness.finish()):
    ...         print(row)
    ('+I', 'EUR', 5, 10, 'EUR', 114, 0)
    ('+I', 'EUR', 7, 30, 'EUR', 116, 25)
    ('+I', 'USD', 1, 20, None, None, None)

    Output: left columns, then right columns, with the left row's kind: by key group and time (event), or as left rows
    arrived. ``ttl``: how long a right row is kept after it was written; after that a left row finds none.

    State: ``current``: the right row of each live key, without the key; with ``time="event"`` also the rows that the
    engine buffers. Only keys of left rows, of retractions and of late versions are read.

    Source: Flink's ``TemporalRowTimeJoinOperator`` and ``TemporalProcessTimeJoinOperator``. Raises SchemaError for
    parameters that do not fit.
    """

    def __init__(
        self,
        kind: TemporalJoinKind = "inner",
        condition: JoinCondition | None = None,
        *,
        time: TimeDomain = "event",
        suffixes: tuple[str, str] = ("", "_right"),
        null_safe: bool = False,
        ttl: Ttl = None,
        late_output: str | None = None,
    ) -> None:
        super().__init__(kind, condition, suffixes, null_safe, get_args(TemporalJoinKind))
        check_time_domain(time, self.owner)
        check_late_output(late_output, time, self.owner)
        self.ttl = as_bundle_ttl(self.owner, ttl)
        if time == "processing" and self.ttl is not None and self.ttl.time is TtlTime.EVENT:
            raise SchemaError(
                f"{self.owner}: ttl is in event time, but the join is in processing time; give StateTtl(..., "
                "time=TtlTime.PROCESSING)"
            )
        self.time: TimeDomain = time
        self.late_output = late_output
        self.first_input = 1 if time == "processing" else None

    def bind(self, inputs: Sequence[InputSpec]) -> OutputSpec:
        """Left columns, then right columns."""
        for spec in inputs:
            check_has_time(spec, self.time, self.owner)
        left, right = inputs
        check_whole_updates(right, self.owner)
        if self.time == "processing" and left.changelog:
            raise SchemaError(
                f"{self.owner}: the rows of {left.changes.origin or left.name} are changes ({left.changes.text}), and "
                "a retraction would join with the current right row, not with the one of the insertion; give "
                "insertions, join with time='event', or use Join"
            )
        shown = self._output_schema(inputs)
        kept = dict(zip(left.schema.names, shown.names[: len(left.schema)], strict=True))
        keys = [tuple(kept[name] for name in key) for key in left.changes.unique_keys]
        changes = left.changes.with_keys(keys, {kept[name] for name in left.changes.never_null})
        return with_late_output(shown, self.late_output, left, changes)

    def takes_upserts(self, inputs: Sequence[InputSpec]) -> Sequence[bool]:
        """Upserts of versions, by their key."""
        return [False, inputs[1].changes.upserts_by(inputs[1].key)]

    def late_outputs(self, inputs: Sequence[InputSpec]) -> Sequence[str | None]:
        """See ``Operator``: for left rows; late versions may still be the newest ones."""
        return [self.late_output, None]

    def unique_columns(self, inputs: Sequence[InputSpec]) -> Sequence[Collection[str] | None]:
        """Changes of a right row belong together, whatever they change; the key identifies it."""
        return [None, ()]

    def ordered_inputs(self, inputs: Sequence[InputSpec]) -> Sequence[InputOrder | None]:
        """By event time; late versions may still be the newest ones."""
        if self.time == "processing":
            return [None, None]
        return [InputOrder("event"), InputOrder("event", late="deliver")]

    def state_meaning(self, inputs: Sequence[InputSpec]) -> Mapping[str, str]:
        """What the stored state depends on in addition to its types, as names and texts: ``{"kind": "left"}``."""
        return {**super().state_meaning(inputs), "time": self.time}

    def change_refusal(
        self, name: str, was: str | None, now: str | None, inputs: Sequence[InputSpec]
    ) -> str | None:
        """See ``Operator``: the output for a left row is final, unless left rows are retracted."""
        return None if name in ("kind", "condition") and not inputs[0].changelog else ""

    def open(self, context: OperatorContext) -> None:
        """Declare the state."""
        self._inputs = tuple(context.inputs)
        right = self._inputs[1]
        self._payload = StoredColumns(right, at_least_one=True)
        # The position in the log is not part of a row: a retraction has its own.
        self._content = [at for at, name in enumerate(right.schema.names) if name not in right.sequence]
        self._upserts = right.changes.is_upsert
        schema = pa.schema(self._payload.fields)
        made_for = ("time", self.time)
        self._state: ColumnState = context.get_state(
            ColumnStateDescriptor("current", schema, ttl=self.ttl, belongs_to=made_for)
        )
        self._codec = context.key_codec
        self._residual = self._condition_over(self._inputs)
        if self.time == "event":
            self._late = context.counter("late_versions")
            self._dropped = context.counter("late_versions_dropped")

    # -- rows ---------------------------------------------------------------------------------------

    def prefetch(self, bundle: Bundle) -> None:
        """Hint which state the bundle will need (``state.prefetch(bundle.keys)``), while another one is processed."""
        if bundle.input_index == 0:
            keys, _ = self._keys([bundle])
            self._state.prefetch(keys)

    def process_bundle(self, bundle: Bundle, ctx: BundleContext) -> StateFuture[None]:
        """See ``BundleOperator``: processing time."""
        return self._process([bundle], ctx)

    def process_due(self, bundles: Sequence[Bundle | None], ctx: BundleContext) -> StateFuture[None]:
        """See ``BundleOperator``: event time."""
        return self._process([bundle for bundle in bundles if bundle is not None], ctx)

    def _process(self, bundles: Sequence[Bundle], ctx: BundleContext) -> StateFuture[None]:
        keys, indices = self._keys(bundles)
        rows = [_Rows.none(spec.schema) for spec in self._inputs]
        for bundle, index in zip(bundles, indices, strict=True):
            times = bundle.times if self.time == "event" else np.zeros(bundle.num_rows, np.int64)
            assert times is not None  # ``bind`` asks for an event time
            rows[bundle.input_index] = _Rows(bundle.batch.columns, index, times, bundle.kinds)
            if bundle.input_index == 1 and self._upserts and self.time == "processing":
                self._check_one_change(bundle, index)
        left, right = rows
        right = right.take(np.flatnonzero(right.keys >= 0))
        late = self._count_late(right, ctx)
        asks = np.zeros(len(keys), np.bool_)
        asks[left.keys[left.keys >= 0]] = True
        asks[right.keys[late | ~accumulates(right.kinds)]] = True
        asked = keys.select(asks)
        read = self._state.async_get(asked)
        return read.then_accept(lambda found: self._join(keys, asks, found, left, right, ctx))

    def _check_one_change(self, bundle: Bundle, index: Int64Array) -> None:
        """Refuse upserts of which the last one is not known. In event time, their times say it."""
        rows = np.flatnonzero(index >= 0)
        columns = take_rows([bundle.batch.column(at) for at in self._content], rows)
        content = row_ids(columns, index[rows])
        check_one_change(bundle, index[rows], content, self._inputs[1], self.owner, rows)

    def _count_late(self, right: _Rows, ctx: BundleContext) -> BoolArray:
        if self.time == "processing" or ctx.previous_watermark == MIN_WATERMARK:
            return np.zeros(len(right.keys), np.bool_)
        late: BoolArray = right.times <= ctx.previous_watermark
        self._late.add(int(np.count_nonzero(late)))
        return late

    def _join(
        self, keys: KeyBatch, asks: BoolArray, found: Columns, left: _Rows, right: _Rows, ctx: BundleContext
    ) -> None:
        current = self._current(keys.select(asks), np.flatnonzero(asks), found)
        right = self._without_older(right, current, len(keys))
        both = current.then(right)
        content = [both.columns[at] for at in self._content]
        versions = versions_of(both.keys, both.times, both.kinds, content, self._upserts)
        self._store(keys, versions, both, len(current.keys))
        if len(left.keys):
            self._emit_pairs(left, both.columns, versions.at(left.keys, left.times), ctx)

    def _current(self, keys: KeyBatch, indices: Int64Array, found: Columns) -> _Rows:
        """The stored rows of those of ``keys`` (a) that have one, with the ``indices`` (a) of the keys."""
        have = np.flatnonzero(found.present)
        columns = take_rows(self._payload.row([*keys.columns, *found.columns]), have)
        times = np.zeros(len(have), np.int64)
        if self.time == "event":
            right = self._inputs[1]
            times = event_times(columns[right.schema.names.index(right.event_time)])
        return _Rows(columns, indices[have], times, np.full(len(have), RowKind.INSERT, np.int8))

    def _without_older(self, right: _Rows, current: _Rows, num_keys: int) -> _Rows:
        since = np.full(num_keys, MIN_WATERMARK, np.int64)
        since[current.keys] = current.times
        older = right.times < since[right.keys]
        if not older.any():
            return right
        self._dropped.add(int(np.count_nonzero(older)))
        return right.take(np.flatnonzero(~older))

    def _store(self, keys: KeyBatch, versions: Versions, rows: _Rows, num_current: int) -> None:
        """Write the last version of each key; the first ``num_current`` rows are stored already."""
        owners, last = versions.last()
        gone, comes = owners[last < 0], last >= num_current
        if len(gone):
            self._state.remove(keys.select(gone))
        if comes.any():
            stored = take_rows([rows.columns[index] for index in self._payload.indices], last[comes])
            self._state.put(keys.select(owners[comes]), stored, self._stamps(rows.times[last[comes]]))

    def _emit_pairs(
        self, left: _Rows, right: Sequence[pa.Array], partners: Int64Array, ctx: BundleContext
    ) -> None:
        """Emit left rows with their ``partners`` (n), indices of right rows, -1 for none."""
        pairs = np.flatnonzero(partners >= 0)
        if self._residual is not None and len(pairs):
            met = self._residual(take_rows(left.columns, pairs), take_rows(right, partners[pairs]))
            partners[pairs[~met]] = -1
        shown = np.arange(len(partners)) if self.kind == "left" else np.flatnonzero(partners >= 0)
        if len(shown):
            columns = [*take_rows(left.columns, shown), *take_rows(right, partners[shown])]
            ctx.emit(columns, left.kinds[shown])

    # -- keys and times -------------------------------------------------------------------------------

    def _keys(self, bundles: Sequence[Bundle]) -> tuple[KeyBatch, list[Int64Array]]:
        """The keys of all rows that can match, and of each bundle the index of each row's key (-1: never matches)."""
        keys = bundles[0].keys
        if len(bundles) > 1:
            left, right = (
                [one.batch.column(name) for name in spec.key]
                for one, spec in zip(bundles, self._inputs, strict=True)
            )
            keys = self._codec.group(concat_rows(left, right), num_rows=sum(one.num_rows for one in bundles))
        keys, inverse = matching(keys, self.null_safe)
        return keys, np.split(inverse, np.cumsum([bundle.num_rows for bundle in bundles])[:-1])

    def _stamps(self, times: Int64Array) -> Int64Array | None:
        return self._state.stamps_at(times if self._expires_by_event else None, len(times))

    @property
    def _expires_by_event(self) -> bool:
        return self.ttl is not None and self.ttl.time is TtlTime.EVENT


class _Rows(NamedTuple):
    """Rows (n) of one input: their columns, the index of their keys, their times and kinds."""

    columns: Sequence[pa.Array]
    keys: Int64Array
    times: Int64Array
    kinds: Int8Array

    @staticmethod
    def none(schema: pa.Schema) -> _Rows:
        """No rows."""
        columns = [pa.array([], field.type) for field in schema]
        return _Rows(columns, np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int8))

    def take(self, rows: Int64Array) -> _Rows:
        """Some of the rows."""
        if len(rows) == len(self.keys):
            return self
        return _Rows(take_rows(self.columns, rows), self.keys[rows], self.times[rows], self.kinds[rows])

    def then(self, others: _Rows) -> _Rows:
        """These rows, followed by ``others``."""
        return _Rows(
            concat_rows(self.columns, others.columns),
            np.append(self.keys, others.keys),
            np.append(self.times, others.times),
            np.append(self.kinds, others.kinds),
        )
