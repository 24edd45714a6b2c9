"""GroupAggregate: one row of aggregates a key, kept up to date.

Owns: the operator. When to emit what is decided in ``operators.core.row_kinds``, what the aggregates are in
``operators.aggregate.aggregates``.
Invariant: after every bundle the netted output is the aggregation of the netted input.
Must not import anything of ``asyncstate`` but ``changelog``, ``operator``, ``state``, ``futures``, ``codec``,
``errors`` and ``partial_aggregation``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from asyncstate.changelog import Changelog
from asyncstate.codec.sorting import rows_by
from asyncstate.errors import SchemaError
from asyncstate.futures import StateFuture
from asyncstate.operator import Bundle, BundleContext, InputSpec, OperatorContext, OutputSpec
from asyncstate.partial_aggregation import PartialAggregation, PartialStep
from asyncstate.state.columnar.state_columns import Columns
from asyncstate.state.expiring.ttl import Ttl

from ..core.arrays import BoolArray, Int64Array, place_in_run, row_ids
from ..core.consolidation import net_by_content
from ..core.operator_checks import KeepsKey, check_choice, check_distinct_names, keyed_changes
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

    Output: the key columns, then a column an aggregate. Once a bundle and key, in order of the key's first
    row in it, the net change: a new key +I, a changed row -U and +U (only +U with
    ``emit_update_before=False``), a key without rows left -D; nothing if the row is as before. Retractions of
    rows a key does not have are dropped and counted (``retractions_without_state``). Without key columns
    there is one row, once there is input. The rows of a bundle count as a set: a retraction may come before its row.

    ``emit="each"``: the change of every row instead of the net change of a bundle, in the order of a key's rows; a
    retraction that comes before an equal row cancels out with it. It costs a step for each row of the key that
    has most in a bundle, and there is no local phase.

    ``ttl``: a key expires when nothing has changed it for that long; it then starts anew (+I), and rows of it that are
    taken back are not there. With a ttl a row that stays as it was is put out again.

    An aggregate that is added to a running job counts from then on with ``.starting_now()``: see
    ``Aggregate.starting_now``. One that is left out goes when its states are dropped.

    State: ``accumulators``, one row a key of ``AggregatePlan.state_schema``; with a changelog input and min
    or max also a log of values a key (see ``value_log``). An insert-only DISTINCT keeps a mark a key. Of
    retractions only the number is checked against the state: each must be of a row that was added.

    With a local phase its bundles are accumulators of rows that were put together before the exchange; output, state
    and errors are the same, but over a changelog only the net change of a key's rows is checked against its state.

    Source: Flink's ``MiniBatchGroupAggFunction`` and ``MiniBatchGlobalGroupAggFunction``. Raises SchemaError for
    columns that do not fit and OperatorError for sums that do not.
    """

    takes_later = True

    def __init__(
        self,
        aggregates: Sequence[Aggregate] = (),
        emit_update_before: bool = True,
        ttl: Ttl = None,
        emit: Literal["net", "each"] = "net",
    ) -> None:
        super().__init__(aggregates, ttl)
        self.emit_update_before = emit_update_before
        check_choice(emit, ("net", "each"), "emit", self.owner)
        self.emit: Literal["net", "each"] = emit

    @property
    def row_bytes(self) -> int:
        """See ``BundleOperator``."""
        return 0

    @property
    def key_bytes(self) -> int:
        """See ``BundleOperator``: the rows of a key share its state."""
        return self.state_bytes

    @property
    def nets_output(self) -> bool:  # type: ignore[override]  # of the object: by what it emits
        """See ``Operator``."""
        return self.emit == "net"

    def bind(self, inputs: Sequence[InputSpec]) -> OutputSpec:
        """Key columns and a column an aggregate."""
        spec = inputs[0]
        if not spec.key and not self.aggregates:
            raise SchemaError(
                f"{self.owner}: there are neither key columns nor aggregates; give at least one"
            )
        fields = [*spec.key_schema, *self._plan(spec).result_fields]
        check_distinct_names([field.name for field in fields], self.owner)
        if not self.aggregates and not spec.changelog and self.ttl is None:
            return OutputSpec(pa.schema(fields), changes=Changelog.insert_only(spec.key))
        return OutputSpec(pa.schema(fields), changes=keyed_changes(spec.key, self.emit_update_before))

    def open(self, context: OperatorContext) -> None:
        """Declare the state."""
        spec = context.inputs[0]
        self._aggregation = self._plan(spec)
        self._codec = context.key_codec
        self._sequence = spec.sequence
        self._mark_only = not self.aggregates and not spec.changelog
        # One name for both layouts: a checkpoint of the other one is refused instead of started empty.
        schema = _SEEN_SCHEMA if self._mark_only else self._aggregation.state_schema
        self._open_states(self._aggregation, context, schema)
        self._local: PartialRows | None = (
            LocalLayout(self._aggregation, spec.changelog) if spec.local is not None else None
        )

    def partial_aggregation(self, inputs: Sequence[InputSpec]) -> PartialAggregation | None:
        """Rows of a key as accumulators; none for minima and maxima of a changelog, which need every value, nor for a
        changelog with a ttl: of rows that replace each other the one taken back may have expired."""
        if self.emit == "each" or (self.ttl is not None and inputs[0].changelog):
            return None
        return LocalLayout(self._plan(inputs[0]), inputs[0].changelog).phase

    def partial_step(self, given: InputSpec) -> PartialStep:
        """See ``BundleOperator``."""
        return LocalLayout(self._plan(given), given.changelog).step(given)

    def process_bundle(self, bundle: Bundle, ctx: BundleContext) -> Any:
        """See ``BundleOperator``."""
        if not bundle.num_rows:
            return None
        if self.emit == "each" and bundle.num_rows > len(bundle.keys):
            return self._steps(bundle, ctx)
        return self._async_take_in(bundle, ctx)

    def _steps(self, bundle: Bundle, ctx: BundleContext) -> Iterator[StateFuture[None]]:
        """The rows of each key one after the other; rows of different keys go together."""
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
        return changed.then_accept(lambda change: self._emit(bundle, change, ctx))

    def _emit(self, bundle: Bundle, change: AggregateChange, ctx: BundleContext) -> None:
        """Emit the net change of each key."""
        keys, old, new = bundle.keys, change.old, change.new
        with naming(keys):
            before = self._aggregation.results(old.columns, new.before)
            after = self._aggregation.results(new.states, new.after)
        if self.ttl is None:
            changed = distinct(before, after, len(keys))
        else:  # what stays the same is put out too, to keep alive what was made of it
            changed = np.ones(len(keys), np.bool_)
        order = arrival_order(keys)
        changes = net_changes(order, change.was_present, change.present, changed, self.emit_update_before)
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

    Of rows that are equal in ``content`` only those that do not cancel out, if one is taken back before it is added:
    it may not be there yet, and what a state has of other rows must not go for it.
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
    """Which rows (n) have a turn; ``ids``: equal for equal rows."""
    groups = Groups.of_ids(ids, int(ids.max()) + 1)
    change = np.cumsum(np.where(added[groups.order], 1, -1))
    before = np.append(0, change)[groups.starts]
    lowest = np.minimum.reduceat(change, groups.starts) - before
    total = np.append(change, 0)[np.append(groups.starts[1:], len(ids)) - 1] - before
    kept: BoolArray = ((lowest >= 0) | (total <= lowest))[ids]
    net = net_by_content(np.empty(0, np.int64), ids, added)
    kept[net.added] = kept[net.missing] = True
    return kept
