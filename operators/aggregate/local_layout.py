"""Two-phase aggregation: which columns a local phase makes for a plan, and the way back from them to states.

Owns: ``LocalLayout``.
Invariant: the states gathered from local rows are those of the input rows, so both ways share one state layout (sums
of floats: up to rounding). Sums of integers and decimals are exact or refused.
Must not import anything of ``asyncstate`` but ``local_phase``.

Source: Flink's ``MiniBatchLocalGroupAggFunction`` and ``MiniBatchGlobalGroupAggFunction``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from asyncstate.local_phase import (
    CONDITIONS_MAX,
    LOCAL_MET,
    LOCAL_ROWS,
    LOCAL_SET,
    LocalColumn,
    LocalPhase,
    LocalSlices,
    LocalValues,
    local_columns,
)

from ..core.arrays import Int8Array
from ..core.segments import Groups
from .aggregator import MergingAggregator, State, of_groups
from .distinct import DistinctValues
from .plan import AggregatePlan
from .states import LocalValueRows


class LocalLayout:
    """The columns of a local phase that each part of a plan takes; ``phase`` is None if a part cannot have one.

    Parts over distinct values take none: their values have rows of their own, and each goes to the part as an input row
    if it is new to the state.
    """

    def __init__(self, plan: AggregatePlan, changelog: bool, slices: LocalSlices | None = None) -> None:
        self._plan = plan
        columns: list[LocalColumn] = []
        self._indices: list[range] = []
        self._values = _values_of(plan.distincts)
        # How often a value was added and taken back is more than a local row of it says.
        complete = not plan.distincts or (not changelog and self._values is not None)
        for number, (part, source) in enumerate(zip(plan.parts, plan.value_sources, strict=True)):
            own = part.local() if source is None else _none_if(not isinstance(part, MergingAggregator))
            if own is None:
                complete = False
                break
            if number == 0 and not changelog:
                own = ()  # the number of rows, which each local row has anyway
            self._indices.append(range(len(columns), len(columns) + len(own)))
            columns += own
        self.phase = LocalPhase(tuple(columns), slices, self._values) if complete else None

    def values(self, batch: pa.RecordBatch) -> list[LocalValueRows]:
        """See ``LocalRows``."""
        if self._values is None:
            return []
        sets, met = batch.column(LOCAL_SET).to_numpy(), batch.column(LOCAL_MET).to_numpy()
        flags = {name: pa.array((met >> bit) & 1 == 1) for bit, name in enumerate(self._values.conditions)}
        found = []
        for index, names in enumerate(self._values.sets):
            columns = {
                name: batch.column(self._values.column(index, place)) for place, name in enumerate(names)
            }
            rows = pa.RecordBatch.from_pydict({**flags, **columns})
            found.append(LocalValueRows(rows, np.flatnonzero(sets == index)))
        return found

    def gather(
        self,
        batch: pa.RecordBatch,
        groups: Groups,
        values: Sequence[tuple[pa.RecordBatch, Sequence[Int8Array]]] = (),
    ) -> State:
        """See ``LocalRows``."""
        state: State = []
        for part, own, source in zip(self._plan.parts, self._indices, self._plan.value_sources, strict=True):
            if source is None:
                columns = local_columns(batch, own) if own else [batch.column(LOCAL_ROWS)]
                state += part.gather(columns, groups)
            else:
                rows, signs = values[source[0]]
                assert isinstance(part, MergingAggregator)
                with of_groups(groups):
                    lifted = part.lift(rows, signs[source[1]])
                state += part.combine(lifted, groups)
        return state


def _none_if(refused: bool) -> tuple[LocalColumn, ...] | None:
    return None if refused else ()


def _values_of(distincts: Sequence[DistinctValues]) -> LocalValues | None:
    """All distinct values with all of their conditions; None without any, or with more conditions than fit."""
    conditions = {name for values in distincts for name in values.conditions if name is not None}
    if not distincts or len(conditions) > CONDITIONS_MAX:
        return None
    return LocalValues(tuple(values.columns for values in distincts), tuple(sorted(conditions)))
