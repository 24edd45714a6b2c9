"""Two-phase aggregation: which columns a local phase makes for a plan, and the way back from them to states.

Owns: ``LocalLayout``.
Invariant: the states gathered from local rows are those of the input rows, so both ways share one state layout (sums
of floats: up to rounding). Sums of integers and decimals are exact or refused.
Must not import anything of ``asyncstate`` but ``local_phase``.

Source: Flink's ``MiniBatchLocalGroupAggFunction`` and ``MiniBatchGlobalGroupAggFunction``.
"""

from __future__ import annotations

import pyarrow as pa

from asyncstate.local_phase import LOCAL_ROWS, LocalColumn, LocalPhase, LocalSlices, local_columns

from ..core.segments import Groups
from .plan import AggregatePlan


class LocalLayout:
    """The columns of a local phase that each part of a plan takes; ``phase`` is None if a part cannot have one."""

    def __init__(self, plan: AggregatePlan, changelog: bool, slices: LocalSlices | None = None) -> None:
        self._parts = plan.parts
        columns: list[LocalColumn] = []
        self._indices: list[range] = []
        complete = not plan.distincts  # which row is the first with its value only the state can tell
        for number, part in enumerate(plan.parts):
            own = part.local()
            if own is None:
                complete = False
                break
            if number == 0 and not changelog:
                own = ()  # the number of rows, which each local row has anyway
            self._indices.append(range(len(columns), len(columns) + len(own)))
            columns += own
        self.phase = LocalPhase(tuple(columns), slices) if complete else None

    def gather(self, batch: pa.RecordBatch, groups: Groups) -> list[pa.Array]:
        """The states of each group (u) of local rows (n)."""
        return [
            column
            for part, own in zip(self._parts, self._indices, strict=True)
            for column in part.gather(
                local_columns(batch, own) if own else [batch.column(LOCAL_ROWS)], groups
            )
        ]
