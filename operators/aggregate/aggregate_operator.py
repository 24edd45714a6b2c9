"""The base of operators over aggregates: their aggregates, and the life cycle of their user-defined functions.

Owns: ``AggregateOperator``, and ``KeyAggregateOperator`` for those that keep the states of all rows of a key.
Must not import anything of ``asyncstate`` but ``operator`` and ``state``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar, Final

import pyarrow as pa

from asyncstate.errors import SchemaError
from asyncstate.growth import StateGrowth, with_rows
from asyncstate.operator import Bundle, BundleOperator, InputSpec, OperatorContext
from asyncstate.state.columnar.state_columns import ColumnState, ColumnStateDescriptor
from asyncstate.state.expiring.ttl import Ttl, as_bundle_ttl

from ..core.arrays import Int64Array
from ..core.expiry_options import key_times
from ..core.operator_checks import Named
from ..core.state_meaning import meaning
from .aggregate_calls import Aggregate, check_aggregates, columns_of, functions_of, state_bytes_of
from .aggregate_plan import AggregatePlan
from .aggregate_states import AggregateStates

AGGREGATE: Final = "aggregate "
_ALL, _LATER = "of all rows", "of the rows since it was added"
_START_NOW: Final = (
    "earlier rows are gone: .starting_now() aggregates the rows from now on, over insert-only inputs"
)


class AggregateOperator(Named, BundleOperator):
    """An operator whose output has ``aggregates``. User-defined functions are opened with their plan."""

    takes_later: ClassVar[bool] = False
    """Whether aggregates may be added to stored state with ``starting_now``."""
    takes_values: ClassVar[bool] = True
    """Whether its aggregates may be values."""
    takes_tables: ClassVar[bool] = False
    """Whether its only aggregate may be one of ``udtaf``."""

    def __init__(self, aggregates: Sequence[Aggregate]) -> None:
        check_aggregates(aggregates, self.owner, self.takes_values, self.takes_tables)
        for aggregate in aggregates:
            if aggregate.starts_now and (aggregate.kind.makes_rows or not self.takes_later):
                raise SchemaError(
                    f"{self.owner}: '{aggregate.name}' has starting_now(), but only values of GroupAggregate and "
                    "WindowAggregate can be added to existing state; give the operator a new uid"
                )
        self.aggregates = tuple(aggregates)

    def state_meaning(self, inputs: Sequence[InputSpec]) -> Mapping[str, str]:
        """See ``Operator``: the aggregates, by what they compute and not by their output columns."""
        found = {f"{AGGREGATE}{one.text}": _ALL for one in self.aggregates if not one.starts_now}
        later = {f"{AGGREGATE}{one.name}: {one.text}": _LATER for one in self.aggregates if one.starts_now}
        return meaning(self) | found | later

    def change_refusal(
        self, name: str, was: str | None, now: str | None, inputs: Sequence[InputSpec]
    ) -> str | None:
        """See ``Operator``: an aggregate may be removed if its states are dropped, and added if it starts now."""
        if not name.startswith(AGGREGATE):
            return ""
        if now is None or (was is None and now == _LATER):
            return None
        return _START_NOW if was is None and self.takes_later else ""

    def state_growth(self, inputs: Sequence[InputSpec]) -> StateGrowth | None:
        """See ``Operator``: some aggregates keep a value per row."""
        changelog = inputs[0].changelog
        keeps_values = any(one.kind.keeps_values(changelog) for one in self.aggregates)
        return with_rows(changelog) if keeps_values and getattr(self, "ttl", None) is None else None

    @property
    def is_bundled(self) -> bool:
        """Whether it runs a BundledAggregateFunction, for which ``async-state.bundled-agg`` bounds its bundles."""
        return any(aggregate.kind.is_bundled for aggregate in self.aggregates)

    @property
    def row_bytes(self) -> int:
        """See ``BundleOperator``: each row may have a separate window or frame."""
        return self.state_bytes

    @property
    def state_bytes(self) -> int:
        """Bytes of a state that aggregates read and write, as far as they are known in advance."""
        return 2 * state_bytes_of(self.aggregates)

    def close(self) -> None:
        """Close the functions."""
        for function in functions_of(self.aggregates):
            function.close()

    async def open_calls(self) -> None:
        """See ``Operator``: opens the shared resources of the functions."""
        for function in functions_of(self.aggregates):
            await function.open_calls()

    async def close_calls(self) -> None:
        """Close what ``open_calls`` made; on the same event loop, when the task ends or fails."""
        for function in functions_of(self.aggregates):
            await function.close_calls()


class KeyAggregateOperator(AggregateOperator):
    """An operator with one state per key. With a ``ttl``, a key expires if nothing changes it for that long."""

    def __init__(self, aggregates: Sequence[Aggregate], ttl: Ttl = None) -> None:
        super().__init__(aggregates)
        self.ttl = as_bundle_ttl(self.owner, ttl)

    def required_columns(self, inputs: Sequence[InputSpec]) -> Sequence[Collection[str] | None]:
        """The aggregated columns and the conditions. With a ttl, whole rows are compared, because the old row of an
        update may have expired."""
        return [None if self.ttl is not None and inputs[0].changelog else columns_of(self.aggregates)]

    def prefetch(self, bundle: Bundle) -> None:
        """Hint which state the bundle will need (``state.prefetch(bundle.keys)``), while another one is processed."""
        self._states.prefetch(bundle.keys)

    def _plan(self, spec: InputSpec) -> AggregatePlan:
        return AggregatePlan(self.aggregates, spec.schema, self.owner, retract=spec.changelog)

    def _open_states(
        self, plan: AggregatePlan, context: OperatorContext, schema: pa.Schema | None = None
    ) -> None:
        """Declare ``accumulators`` with the plan's states or with another ``schema``."""
        self._state: ColumnState = context.get_state(
            ColumnStateDescriptor(
                "accumulators",
                plan.state_schema if schema is None else schema,
                fixed_fields=True,
                may_lack=plan.may_lack,
                ttl=self.ttl,
            )
        )
        self._states = AggregateStates(plan, self._state, context, ttl=self.ttl is not None, valued=True)

    def _stamps(self, bundle: Bundle) -> Int64Array | None:
        return self._state.stamps_at(key_times(bundle, self.ttl), len(bundle.keys))
