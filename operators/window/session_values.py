"""Sessions whose aggregates are computed from their rows, once they are over.

Owns: ``SessionValues``.
Invariant: what it puts out is what ``SessionAggregation`` would put out, if its aggregates could be merged.
Must not import anything of ``asyncstate`` but ``codec``, ``futures`` and ``operator``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import pyarrow as pa

from asyncstate.futures import StateFuture
from asyncstate.operator import BundleContext, OperatorContext

from ..aggregate.aggregator import KeyedRows
from ..aggregate.distinct import first_of_values
from ..aggregate.plan import AggregatePlan
from ..core.arrays import Int64Array
from ..core.segments import Groups
from .plan import WindowPlan, window_columns
from .session_rows import SessionRows
from .windows import SessionWindow


class SessionValues(SessionRows):
    """``SessionRows`` whose rows leave as aggregates: of distinct values, and of functions of the user's own.

    State: that of ``SessionRows``, of the columns that are ``needed``. Within a session rows are in order of time,
    then of arrival.
    """

    def __init__(
        self,
        window: SessionWindow,
        plan: WindowPlan,
        aggregation: AggregatePlan,
        needed: Collection[str],
        context: OperatorContext,
        late_output: str | None = None,
    ) -> None:
        super().__init__(window, plan, context, needed, late_output)
        self._values = aggregation
        aggregation.open_functions(context)

    def put_out_rows(
        self,
        columns: Sequence[pa.Array],
        session: Int64Array,
        starts: Int64Array,
        ends: Int64Array,
        ctx: BundleContext,
    ) -> StateFuture[None]:
        """Put out a row of aggregates for each session; rows (n, of the input's columns) ascend by ``session`` (n)."""
        numbers, first = np.unique(session, return_index=True)
        groups = Groups(np.arange(len(session)), first)
        batch = pa.RecordBatch.from_arrays(list(columns), names=self._spec.schema.names)
        owners = np.repeat(np.arange(len(first)), groups.sizes)
        shown = [first_of_values(values, batch, owners) for values in self._values.distincts]
        sources = self._values.sources(KeyedRows(batch, groups, valued=True), shown)
        nothing = [pa.nulls(len(first), field.type) for field in self._values.state_schema]
        changed = self._values.async_update(nothing, sources, self._values.prepare(sources), ctx)
        rows = pa.array(first)
        key_columns = [batch.column(name).take(rows) for name in self._spec.key]
        times = window_columns(starts[numbers], ends[numbers], self._spec)
        return changed.then_accept(
            lambda done: ctx.emit([*key_columns, *times, *self._values.results(done.states, done.after)])
        )
