"""GroupTableAggregate: several rows per key, kept up to date.

Owns: the operator.
Invariant: after every bundle the netted output is the function's result for the netted input.
Must not import anything of ``asyncstate`` but ``changelog``, ``operator`` and ``state``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from asyncstate.changelog import Changelog, RowKind
from asyncstate.codec.sorting import rows_by
from asyncstate.operator import Bundle, BundleContext, InputSpec, OperatorContext, OutputSpec
from asyncstate.state.expiring.ttl import Ttl

from ..core.arrays import places_of, take_rows
from ..core.operator_checks import KeepsKey, check_distinct_names
from ..core.row_kinds import arrival_order
from .aggregate_calls import Aggregate
from .aggregate_operator import KeyAggregateOperator
from .aggregate_plan import AggregatePlan
from .aggregate_states import Addition, AggregateChange
from .user.table_aggregate_function import RowChanges, RowsOfKeys, TableAggregator, changed_rows, table_of


class GroupTableAggregate(KeepsKey, KeyAggregateOperator):
    """A TableAggregateFunction over the rows of each key: a top N, for instance.

    Example::

        GroupTableAggregate(udtaf(Top2(), result_type=..., accumulator_type=...)("price"))

    Output: the key columns, then those of the function's rows. Once per bundle and key, in order of the key's first row
    in it, -D for removed rows and +I for new rows; unchanged rows are not emitted again. A function with
    ``emit_update_with_retract`` decides itself which rows are removed and which are new. A key without rows left
    retracts its output. Retractions of rows a key does not have are dropped and counted
    (``retractions_without_state``).

    ``ttl``: a key expires if nothing changes it for that long; the rows that it has emitted are then not retracted, and
    it starts again.

    State: ``accumulators``, and the views of the function.

    Source: Flink's ``GroupTableAggFunction``. Raises SchemaError for anything but a TableAggregateFunction and for
    missing methods, OperatorError for rows that are not of its result type.
    """

    takes_values = False
    takes_tables = True

    def __init__(self, aggregate: Aggregate, ttl: Ttl = None) -> None:
        super().__init__([aggregate], ttl)

    def bind(self, inputs: Sequence[InputSpec]) -> OutputSpec:
        """Key columns and the columns of the function's rows."""
        part = self._part(self._plan(inputs[0]))
        fields = [*inputs[0].key_schema, *part.row_schema]
        check_distinct_names([field.name for field in fields], self.owner)
        return OutputSpec(pa.schema(fields), changes=Changelog.retract())

    def open(self, context: OperatorContext) -> None:
        """Declare the state."""
        plan = self._plan(context.inputs[0])
        part = self._part(plan)
        part.give_changes()
        self._number = plan.parts.index(part)
        self._incremental = part.incremental
        self._open_states(plan, context)

    def process_bundle(self, bundle: Bundle, ctx: BundleContext) -> Any:
        """Handle the rows of one input."""
        if not bundle.num_rows:
            return None
        changed = self._states.async_add(Addition.of(bundle, stamps=self._stamps(bundle)), ctx)
        return changed.then_accept(lambda change: self._emit(bundle, change, ctx))

    def _part(self, plan: AggregatePlan) -> TableAggregator:
        part = table_of(plan.parts)
        assert part is not None  # ``takes_tables``
        return part

    def _emit(self, bundle: Bundle, change: AggregateChange, ctx: BundleContext) -> None:
        after = change.new.after[self._number]
        if self._incremental:
            shown = RowsOfKeys(after, np.ones(len(bundle.keys), np.bool_))
            *columns, added = shown.columns
            is_added = np.asarray(added.to_numpy(zero_copy_only=False), np.bool_)
            rows, owners, is_new = RowChanges(columns, shown.owners, is_added)
        else:
            old = RowsOfKeys(change.new.before[self._number], change.old.present)
            new = RowsOfKeys(after, change.present)
            rows, owners, is_new = changed_rows(old.columns, old.owners, new.columns, new.owners)
        if not len(owners):
            return
        order = rows_by(places_of(arrival_order(bundle.keys))[owners], is_new)
        kinds = np.where(is_new[order], RowKind.INSERT, RowKind.DELETE).astype(np.int8)
        keys = pa.array(owners[order])
        ctx.emit([*(column.take(keys) for column in bundle.keys.columns), *take_rows(rows, order)], kinds)
