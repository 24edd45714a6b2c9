"""GroupAggregate: one row of aggregates per key, kept up to date.

Owns: the operator. ``operators.core.row_kinds`` decides when to emit what; ``operators.aggregate.aggregates`` has the
aggregates.
Invariant: after every bundle the netted output is the aggregation of the netted input.
Must not import anything of ``asyncstate`` but ``changelog``, ``operator``, ``state``, ``futures``, ``codec``,
``errors`` and ``partial_aggregation``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from asyncstate.changelog import Changelog
from asyncstate.codec import KeyBatch
from asyncstate.codec.sorting import rows_by
from asyncstate.errors import SchemaError
from asyncstate.futures import StateFuture
from asyncstate.operator import Bundle, BundleContext, InputSpec, OperatorContext, OutputSpec
from asyncstate.partial_aggregation import PartialAggregation, PartialStep
from asyncstate.state.columnar.state_columns import Columns, ColumnState, ColumnStateDescriptor
from asyncstate.state.expiring.ttl import Ttl

from ..core.arrays import BoolArray, Int64Array, place_in_run, row_ids
from ..core.consolidation import net_by_content
from ..core.operator_checks import KeepsKey, check_choice, check_distinct_names, keyed_changes, never_null_key
from ..core.row_kinds import arrival_order, distinct, net_changes, take_changes
from ..core.segments import Groups, content_of
from .aggregate_calls import Aggregate
from .aggregate_operator import KeyAggregateOperator
from .aggregate_states import Addition, AggregateChange, PartialRows
from .aggregator import naming
from .local_layout import LocalLayout

_SEEN_SCHEMA = pa.schema([pa.field("seen", pa.bool_(), nullable=False)])


class GroupAggregate(KeepsKey, KeyAggregateOperator):
    """SQL's GROUP BY over the key columns, without a window; SELECT DISTINCT without aggregates.

    Example::

        GroupAggregate([count().alias("bids"), max_("price"), avg("price").where("is_big").alias("mean")])

    Output: the key columns, then one column per aggregate. Once per bundle and key, in order of the key's first
    row in it, it emits the net change: +I for a new key, -U and +U for a changed row (only +U with
    ``emit_update_before=False``), -D for a key without rows left, nothing for an unchanged row. Retractions of
    rows a key does not have are dropped and counted (``retractions_without_state``). Without key columns
    there is one row, once there is input. The rows of a bundle count as a set: a retraction may precede its row.

    ``emit="each"``: it emits the change of every row instead of the net change of a bundle, in the order of a key's
    rows; a retraction that precedes an equal row cancels out with it. This costs one step per row of the key with the
    most rows in a bundle, and rules out partial aggregation.

    ``ttl``: a key without rows for that long expires; it then starts again (+I), and retractions of its earlier rows
    match no row. With a ttl, an unchanged row is emitted again.

    An aggregate that is added to a running job counts from then on with ``.starting_now()``: see
    ``Aggregate.starting_now``. An aggregate that is left out is removed when its states are dropped.

    State: ``accumulators``, one row per key of ``AggregatePlan.state_schema``; with a changelog input and min
    or max also a log of values per key (see ``retractable_minmax``); with ``empty_row`` also ``shown``, whether the row
    was emitted. An insert-only DISTINCT keeps a mark per key. Of
    retractions only the number is checked against the state: each must be of a row that was added.

    With partial aggregation, its bundles are accumulators of rows that were aggregated before the exchange; output,
    state and errors are the same, but over a changelog only the net change of a key's rows is checked against its
    state.

    Source: Flink's ``MiniBatchGroupAggFunction`` and ``MiniBatchGlobalGroupAggFunction``. Raises SchemaError for
    columns that do not fit and OperatorError for sums that do not fit.
    """

    takes_later = True

    def __init__(
        self,
        aggregates: Sequence[Aggregate] = (),
        emit_update_before: bool = True,
        ttl: Ttl = None,
        emit: Literal["net", "each"] = "net",
        empty_row: bool = False,
    ) -> None:
        super().__init__(aggregates, ttl)
        self.emit_update_before = emit_update_before
        self.empty_row = empty_row
        if empty_row and ttl is not None:
            raise SchemaError(
                f"{self.owner}: a row that is always there cannot expire; leave out ttl or empty_row"
            )
        check_choice(emit, ("net", "each"), "emit", self.owner)
        self.emit: Literal["net", "each"] = emit

    def state_meaning(self, inputs: Sequence[InputSpec]) -> Mapping[str, str]:
        """What the stored state depends on in addition to its types, as names and texts: ``{"kind": "left"}``."""
        always = {"empty_row": "yes"} if self.empty_row else {}
        return {**super().state_meaning(inputs), **always}

    @property
    def row_bytes(self) -> int:
        """Bytes of state that each row of a bundle reads and writes, if they are many and known beforehand. 0:
        estimated from the previous micro-batch; the memory of a bundle bounds both."""
        return 0

    @property
    def key_bytes(self) -> int:
        """See ``BundleOperator``: the rows of a key share its state."""
        return self.state_bytes

    @property
    def nets_output(self) -> bool:  # type: ignore[override]  # of the object: by what it emits
        """Whether a bundle emits one net change per key."""
        return self.emit == "net"

    def bind(self, inputs: Sequence[InputSpec]) -> OutputSpec:
        """Key columns and one column per aggregate."""
        spec = inputs[0]
        if not spec.key and not self.aggregates:
            raise SchemaError(f"{self.owner}: it has neither key columns nor aggregates; give at least one")
        if spec.key and self.empty_row:
            raise SchemaError(
                f"{self.owner}: empty_row is for an input without key columns, but {spec.name} is keyed by "
                f"{', '.join(spec.key)}: a key without rows is not known; leave it out"
            )
        fields = [*spec.key_schema, *self._plan(spec).result_fields]
        check_distinct_names([field.name for field in fields], self.owner)
        if not self.aggregates and not spec.changelog and self.ttl is None:
            changes = Changelog.insert_only(spec.key).without_nulls_in(never_null_key(spec))
            return OutputSpec(pa.schema(fields), changes=changes)
        return OutputSpec(pa.schema(fields), changes=keyed_changes(spec, self.emit_update_before))

    def open(self, context: OperatorContext) -> None:
        """Declare the state."""
        spec = context.inputs[0]
        self._aggregation = self._plan(spec)
        self._codec = context.key_codec
        self._sequence = spec.sequence
        self._mark_only = not self.aggregates and not spec.changelog
        # One name for both layouts, so a checkpoint with the other one is refused instead of ignored.
        schema = _SEEN_SCHEMA if self._mark_only else self._aggregation.state_schema
        self._open_states(self._aggregation, context, schema)
        self._key_groups = context.key_groups
        if self.empty_row:
            self._shown: ColumnState = context.get_state(
                ColumnStateDescriptor("shown", _SEEN_SCHEMA, fixed_fields=True)
            )
        self._local: PartialRows | None = (
            LocalLayout(self._aggregation, spec.changelog) if spec.local is not None else None
        )

    def partial_aggregation(self, inputs: Sequence[InputSpec]) -> PartialAggregation | None:
        """Rows of a key as accumulators; not for minima and maxima of a changelog, which need every value, nor for a
        changelog with a ttl, where the retracted row of an update may have expired."""
        if self.emit == "each" or (self.ttl is not None and inputs[0].changelog):
            return None
        return LocalLayout(self._plan(inputs[0]), inputs[0].changelog).phase

    def partial_step(self, given: InputSpec) -> PartialStep:
        """The step that makes the rows of ``given.row_schema`` from some rows of the input, if ``given.local`` is
        what ``partial_aggregation`` returned; or selects those that ``given.limit``, what ``partial_limit`` returned,
        lets through."""
        return LocalLayout(self._plan(given), given.changelog).step(given)

    def process_bundle(self, bundle: Bundle, ctx: BundleContext) -> Any:
        """Handle the rows of one input."""
        if not bundle.num_rows:
            return None
        if self.emit == "each" and bundle.num_rows > len(bundle.keys):
            return self._steps(bundle, ctx)
        return self._async_take_in(bundle, ctx)

    def _steps(self, bundle: Bundle, ctx: BundleContext) -> Iterator[StateFuture[None]]:
        """Process the rows of each key one after the other, and rows of different keys together."""
        for rows in _turns(bundle, content_of(bundle.batch, self._sequence)):
            batch = bundle.batch.take(pa.array(rows))
            keys = self._codec.group([batch.column(name) for name in self._codec.names], num_rows=len(rows))
            times = None if bundle.times is None else bundle.times[rows]
            yield self._async_take_in(Bundle(batch, keys, bundle.kinds[rows], times), ctx)

    def _async_take_in(self, bundle: Bundle, ctx: BundleContext) -> StateFuture[None]:
        if self._mark_only:
            read = self._state.async_get(bundle.keys)
            return read.then_accept(lambda old: self._mark_new(bundle, old, ctx))
        stamps = self._stamps(bundle)
        if self._local is not None:
            changed = self._states.async_merge(Addition.of(bundle, stamps=stamps), self._local)
        else:
            changed = self._states.async_add(Addition.of(bundle, stamps=stamps), ctx)
        if self.empty_row:
            read = self._shown.async_get(bundle.keys)
            return changed.then_compose(
                lambda change: read.then_accept(lambda shown: self._emit_always(bundle, change, shown, ctx))
            )
        return changed.then_accept(
            lambda change: self._emit(
                bundle, *self._before_and_after(bundle.keys, change), change.was_present, change.present, ctx
            )
        )

    def _before_and_after(
        self, keys: KeyBatch, change: AggregateChange
    ) -> tuple[list[pa.Array], list[pa.Array]]:
        old, new = change.old, change.new
        with naming(keys):
            return (
                self._aggregation.results(old.columns, new.before),
                self._aggregation.results(new.states, new.after),
            )

    def _emit_always(
        self, bundle: Bundle, change: AggregateChange, shown: Columns, ctx: BundleContext
    ) -> None:
        """Emit the change of the only row, which is there from its first emission on."""
        before, after = self._before_and_after(bundle.keys, change)
        if not change.was_present.all():
            before = self._of_nothing(bundle.keys)
        if not change.present.all():
            after = self._of_nothing(bundle.keys)
        self._emit(bundle, before, after, shown.present, np.ones(1, np.bool_), ctx)
        self._mark_shown(bundle.keys, shown)

    def on_watermark(self, watermark: int, ctx: BundleContext) -> Any:
        """See ``BundleOperator``: emits the row without input, once."""
        if not self.empty_row:
            return None
        key = self._codec.group([], num_rows=1)
        if int(key.groups[0]) not in self._key_groups:
            return None
        return self._shown.async_get(key).then_accept(lambda shown: self._emit_empty(key, shown, ctx))

    def _emit_empty(self, key: KeyBatch, shown: Columns, ctx: BundleContext) -> None:
        if not shown.present.all():
            ctx.emit(self._of_nothing(key))
            self._mark_shown(key, shown)

    def _mark_shown(self, key: KeyBatch, shown: Columns) -> None:
        if not shown.present.all():
            self._shown.put(key, [pa.array([True])])

    def _of_nothing(self, key: KeyBatch) -> list[pa.Array]:
        """The aggregates of no rows."""
        states = [pa.nulls(1, field.type) for field in self._aggregation.state_schema]
        return self._aggregation.results(states, None, key)

    def _emit(
        self,
        bundle: Bundle,
        before: list[pa.Array],
        after: list[pa.Array],
        was_present: BoolArray,
        present: BoolArray,
        ctx: BundleContext,
    ) -> None:
        """Emit the net change of each key."""
        keys = bundle.keys
        if self.ttl is None:
            changed = distinct(before, after, len(keys))
        else:  # an unchanged row is emitted too, so that rows derived from it do not expire
            changed = np.ones(len(keys), np.bool_)
        order = arrival_order(keys)
        changes = net_changes(order, was_present, present, changed, self.emit_update_before)
        if len(changes.keys):
            ctx.emit(take_changes(changes, keys.columns, before, after), changes.kinds)

    def _mark_new(self, bundle: Bundle, old: Columns, ctx: BundleContext) -> None:
        keys, seen = bundle.keys, old.present
        written = ~seen if self.ttl is None else np.ones(len(keys), np.bool_)
        if not written.any():
            return
        stamps = self._stamps(bundle)
        marked = keys if written.all() else keys.select(written)
        self._state.put(
            marked, [pa.array(np.ones(len(marked), np.bool_))], None if stamps is None else stamps[written]
        )
        changes = net_changes(
            arrival_order(keys), seen, np.ones(len(keys), np.bool_), written, self.emit_update_before
        )
        ctx.emit(take_changes(changes, keys.columns, [], []), changes.kinds)


def _turns(bundle: Bundle, content: Sequence[pa.Array]) -> list[Int64Array]:
    """The first rows of all keys, then the second ones, and so on.

    If a row is retracted before it is added, rows with equal ``content`` that cancel out are left out: the retraction
    would match no row yet, and must not remove another row from the state.
    """
    order = bundle.keys.rows_sorted()[0]
    if not bundle.accumulate.all():
        order = order[_in_turn(row_ids(content, bundle.keys.inverse), bundle.accumulate)[order]]
    if not len(order):
        return []
    turn = place_in_run(bundle.keys.inverse[order])
    by_turn = rows_by(turn, order)
    return np.split(order[by_turn], np.flatnonzero(np.diff(turn[by_turn])) + 1)


def _in_turn(ids: Int64Array, added: BoolArray) -> BoolArray:
    """Which rows (n) take part; ``ids`` (n): equal for equal rows."""
    groups = Groups.of_ids(ids, int(ids.max()) + 1)
    change = np.cumsum(np.where(added[groups.order], 1, -1))
    before = np.append(0, change)[groups.starts]
    lowest = np.minimum.reduceat(change, groups.starts) - before
    total = np.append(change, 0)[np.append(groups.starts[1:], len(ids)) - 1] - before
    kept: BoolArray = ((lowest >= 0) | (total <= lowest))[ids]
    net = net_by_content(np.empty(0, np.int64), ids, added)
    kept[net.added] = kept[net.missing] = True
    return kept
