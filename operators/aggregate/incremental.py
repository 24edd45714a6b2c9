"""IncrementalGroupAggregate: an aggregation in two steps, so that several partitions share a hot key's distinct values.

Owns: ``IncrementalGroupAggregate``, the first step, by key and bucket; ``final`` returns the second.
Invariant: the second step emits what GroupAggregate emits over the same rows.
Must not import anything of ``asyncstate`` but ``codec``, ``errors``, ``operator`` and ``state``.

Source: Flink's split of distinct aggregates and its ``MiniBatchIncrementalGroupAggFunction``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pyarrow as pa

from asyncstate.codec import KeyCodec
from asyncstate.errors import SchemaError
from asyncstate.operator import Bundle, BundleContext, InputSpec, OperatorContext

from ..core.arrays import Int8Array
from ..core.segments import Groups
from .accumulators import Count, Extreme, Sum
from .aggregate_calls import Aggregate, columns_of
from .aggregate_operator import KeyAggregateOperator
from .aggregate_plan import AggregatePlan
from .aggregate_states import Addition, AggregateChange, LocalValueRows
from .aggregator import State, naming
from .group_aggregate import GroupAggregate


class IncrementalGroupAggregate(KeyAggregateOperator):
    """The first step of an aggregation that is split by ``bucket``, one of the key columns.

    Without it, one partition processes all rows and distinct values of a hot key. Compute the bucket from the distinct
    value, so that equal values are in the same bucket::

        split = IncrementalGroupAggregate([count("user").distinct().alias("users"), sum_("n")], bucket="bucket")
        rows = bids.withColumn("bucket", F.pmod(F.xxhash64("user"), F.lit(64)))
        parts = batch.apply(split, rows, key=["page", "bucket"], uid="parts")
        totals = batch.apply(split.final(), parts, key="page", uid="totals")

    Output: the key columns without ``bucket``, then the change that a bundle makes to each part of the aggregates; all
    rows are +I, one per key and bundle. Only ``final()`` reads them. Aggregates: count, sum and avg, also distinct;
    min and max over insert-only inputs. All distinct aggregates must be of the values that determine the bucket, which
    is not checked. Do not change the number of buckets of a job: values would move to other buckets.

    State: ``accumulators`` by key and bucket, and the distinct values.

    Raises SchemaError for aggregates whose parts cannot be merged, and if ``bucket`` is not a key column.
    """

    takes_later = False

    def __init__(self, aggregates: Sequence[Aggregate], bucket: str) -> None:
        super().__init__(aggregates)
        self.bucket = bucket

    def final(self, emit_update_before: bool = True) -> GroupAggregate:
        """The second step, keyed by the other key columns; its output is that of GroupAggregate."""
        return _FinalGroupAggregate(self.aggregates, emit_update_before)

    def state_meaning(self, inputs: Sequence[InputSpec]) -> Mapping[str, str]:
        """What the stored state depends on in addition to its types, as names and texts: ``{"kind": "left"}``."""
        return {**super().state_meaning(inputs), "bucket": self.bucket}

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        """Key columns without the bucket, and one column per part."""
        spec = inputs[0]
        if self.bucket not in spec.key:
            raise SchemaError(
                f"{self.owner}: bucket column '{self.bucket}' is not a key column of {spec.name}; use the columns of "
                "the group and the bucket as its key"
            )
        plan = self._plan(spec)
        self._check_parts(AggregatePlan(self.aggregates, spec.schema, self.owner), spec)
        fields = [field.with_name(_column_of(field.name)) for field in plan.state_schema]
        return pa.schema([*(field for field in spec.key_schema if field.name != self.bucket), *fields])

    def open(self, context: OperatorContext) -> None:
        """Declare the state."""
        self._aggregation = self._plan(context.inputs[0])
        self._open_states(self._aggregation, context)
        self._shown = [at for at, name in enumerate(context.key_schema.names) if name != self.bucket]
        fields = [context.key_schema.field(at) for at in self._shown]
        names = [field.name for field in fields]
        self._codec = KeyCodec([field.type for field in fields], names, context.max_parallelism)

    def process_bundle(self, bundle: Bundle, ctx: BundleContext) -> Any:
        """Handle the rows of one input."""
        if not bundle.num_rows:
            return None
        changed = self._states.async_add(Addition.of(bundle), ctx)
        return changed.then_accept(lambda change: self._emit(bundle, change, ctx))

    def _check_parts(self, plan: AggregatePlan, spec: InputSpec) -> None:
        for part in plan.parts:
            additive = isinstance(part, Count | Sum) or (isinstance(part, Extreme) and not spec.changelog)
            if not additive:
                raise SchemaError(
                    f"{self.owner}: '{part.fields[0].name}' cannot be split by buckets"
                    f"{' over a changelog' if isinstance(part, Extreme) else ''}; use GroupAggregate for it"
                )

    def _emit(self, bundle: Bundle, change: AggregateChange, ctx: BundleContext) -> None:
        """Emit the change that the bundle's rows make, merged by the key without the bucket."""
        columns = [bundle.keys.columns[at] for at in self._shown]
        keys = self._codec.group(columns, num_rows=len(bundle.keys))
        added: State = [column for state in change.prepared for column in state]
        with naming(keys):
            parts = self._aggregation.combine(added, Groups.of(keys))
        ctx.emit([*keys.columns, *parts])


class _FinalGroupAggregate(GroupAggregate):
    """GroupAggregate over the output of IncrementalGroupAggregate."""

    takes_later = False

    @property
    def owner(self) -> str:
        return "IncrementalGroupAggregate.final()"

    def required_columns(self, inputs: Sequence[InputSpec]) -> Sequence[Collection[str] | None]:
        """All."""
        return [None]

    def partial_aggregation(self, inputs: Sequence[InputSpec]) -> None:
        """None: rows are already aggregated."""

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        self._local = _Parts(self._aggregation)

    def _plan(self, spec: InputSpec) -> AggregatePlan:
        if spec.changelog:
            raise SchemaError(
                f"{self.owner}: {spec.name} is a changelog; give it the output of the first part"
            )
        columns = columns_of(self.aggregates)
        schema = pa.schema([pa.field(name, self._type_of(name, spec)) for name in sorted(columns)])
        # Over a changelog the first step emits more columns, so the columns show which kind of input it had.
        plan, retracting = (
            AggregatePlan(self.aggregates, schema, self.owner, retract, gathered=True)
            for retract in (False, True)
        )
        if {_column_of(name) for name in retracting.state_schema.names} <= {*spec.schema.names}:
            return retracting
        missing = [
            _column_of(name) for name in plan.state_schema.names if _column_of(name) not in spec.schema.names
        ]
        if missing:
            raise SchemaError(
                f"{self.owner}: {spec.name} has no column '{missing[0]}'; give it the output of an "
                "IncrementalGroupAggregate of the same aggregates"
            )
        return plan

    def _type_of(self, column: str, spec: InputSpec) -> pa.DataType:
        """A type that the column may have had, derived from the columns of its parts. Those of sums may be wider."""
        if any(aggregate.condition == column for aggregate in self.aggregates):
            return pa.bool_()
        found: dict[str, pa.DataType] = {}
        own = _column_of(column)
        for field in spec.schema:
            function, _, rest = field.name.partition(":")
            if rest == own or rest.startswith(f"{own}:"):
                found.setdefault(function, field.type)
        known = (found[function] for function in ("min", "max", "sum") if function in found)
        return next(known, pa.int64())


class _Parts:
    """The states that the first step has emitted."""

    def __init__(self, plan: AggregatePlan) -> None:
        self._plan = plan

    def values(self, batch: pa.RecordBatch) -> Sequence[LocalValueRows]:
        """None: the first step already counts each value once."""
        return ()

    def gather(
        self,
        batch: pa.RecordBatch,
        groups: Groups,
        values: Sequence[tuple[pa.RecordBatch, Sequence[Int8Array]]] = (),
    ) -> State:
        """The state of each group (u)."""
        return self._plan.combine(
            [batch.column(_column_of(name)) for name in self._plan.state_schema.names], groups
        )


def _column_of(state_field: str) -> str:
    """The column of a part, without dots: Spark reads a dot as access to a struct field."""
    return state_field.replace(".", ":")
