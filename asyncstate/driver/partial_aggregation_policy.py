"""Partial aggregation policy: whether an operator's partial aggregation runs in a micro-batch.

Owns: ``choose_partial_aggregation``, the rule of ``auto``, and ``choose_partial_limit``; their counterparts for rows
from another operator's task.
Invariant: the choice depends only on the operator and the version that the micro-batch starts from, so every
attempt at a micro-batch, even after a restart, makes the same choice.
Must not import Spark.

Source: the adaptive partial aggregation of Trino, which also depends on how much previous rows were reduced.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeGuard

import pyarrow as pa

from asyncstate.errors import SchemaError
from asyncstate.operator import BundleOperator, InputSpec, Operator
from asyncstate.partial_aggregation import LocalFunction, PartialAggregation, PartialLimit
from asyncstate.runtime.statistics import TaskStatistics, statistics_before
from asyncstate.runtime.task_spec import sends_errors
from asyncstate.storage import OperatorManifest

ROWS_MIN: Final = 50_000
"""Minimum rows in the previous micro-batch: below it, the additional stage costs more than it can save."""
REDUCTION_MIN: Final = 10.0
"""Minimum input rows per output row: below it, partial aggregation costs more than it saves (decision 0038)."""
TRIAL_BATCHES: Final = 32
"""While partial aggregation is off, it runs once in so many micro-batches, to detect that the keys have changed."""


def choose_partial_aggregation(
    operator: Operator,
    inputs: Sequence[InputSpec],
    base: OperatorManifest | None,
    batch_id: int,
) -> PartialAggregation | None:
    """The partial aggregation for this micro-batch; None if rows go to the operator unchanged."""
    phase = _possible_phase(operator, inputs)
    if phase is None or _always(operator):
        return phase
    return phase if base is not None and _pays(statistics_before(base), batch_id) else None


def may_run_locally(operator: Operator, inputs: Sequence[InputSpec]) -> bool:
    """Whether rows are reduced before the exchange in at least some micro-batches."""
    limit = choose_partial_limit(operator, inputs)
    return limit is not None or _possible_phase(operator, inputs) is not None


def _possible_phase(operator: Operator, inputs: Sequence[InputSpec]) -> PartialAggregation | None:
    phase = _phase(operator, inputs)
    if phase is None or _always(operator):
        return phase
    # For a changelog, only the net change would be checked, which must not happen by default.
    return None if inputs[0].changelog or _sorts(phase) else phase


def task_partial_aggregation(operator: Operator, inputs: Sequence[InputSpec]) -> PartialAggregation | None:
    """The partial aggregation for rows from another operator's task, where it needs no additional exchange."""
    phase = _phase(operator, inputs)
    if phase is None or _always(operator):
        return phase
    # With distinct values, the result has a row per set of values, which may be more rows than the input.
    return None if inputs[0].changelog or phase.values is not None else phase


def _phase(operator: Operator, inputs: Sequence[InputSpec]) -> PartialAggregation | None:
    """The operator's partial aggregation; None for rows with a sequence, which aggregation would lose."""
    if len(inputs) != 1 or not _may_run_before(operator):
        return None
    phase = None if inputs[0].sequence else operator.partial_aggregation(inputs)
    if phase is not None and not _has_step(operator):
        name = type(operator).__name__
        raise SchemaError(
            f"{name}: has a partial_aggregation but no partial_step, which produces the same rows in Python; write "
            f"{name}.partial_step, or leave partial_aggregation out"
        )
    return phase


def _may_run_before(operator: Operator) -> TypeGuard[BundleOperator]:
    """Whether something may be done to its rows before they arrive; rows that can fail must arrive whole."""
    never = not isinstance(operator, BundleOperator) or operator.local_aggregation == "never"
    return not never and not sends_errors(operator)


def _always(operator: Operator) -> bool:
    return isinstance(operator, BundleOperator) and operator.local_aggregation == "always"


def _has_step(operator: Operator) -> bool:
    return (
        isinstance(operator, BundleOperator)
        and type(operator).partial_step is not BundleOperator.partial_step
    )


def choose_partial_limit(operator: Operator, inputs: Sequence[InputSpec]) -> PartialLimit | None:
    """Which rows suffice for the operator; None if it gets all."""
    limit = None if inputs[0].key or inputs[0].broadcast else _limit(operator, inputs)
    # Spark can take the first rows only of all rows together, and without the ties of the last number.
    return None if limit is None or limit.within or limit.function != "row_number" else limit


def task_partial_limit(operator: Operator, inputs: Sequence[InputSpec]) -> PartialLimit | None:
    """Which rows per key suffice for the operator, if they come from another operator's task; None if it gets
    all, or cannot choose them itself."""
    limit = _limit(operator, inputs)
    return limit if _has_step(operator) else None


def _limit(operator: Operator, inputs: Sequence[InputSpec]) -> PartialLimit | None:
    """Rows with an event time are all sent, since the watermark follows from them. So are rows with a sequence, which
    defines an order only within a key."""
    if len(inputs) != 1 or not _may_run_before(operator):
        return None
    given = inputs[0]
    all_travel = given.changelog or given.event_time or given.sequence or given.ordering is not None
    return None if all_travel else operator.partial_limit(inputs)


def _sorts(phase: PartialAggregation) -> bool:
    """True for MIN and MAX of values without a fixed size: Catalyst sorts the rows for them instead of hashing."""
    extremes = (LocalFunction.MIN, LocalFunction.MAX)
    return any(column.function in extremes and not _fixed(column.type) for column in phase.columns)


def _fixed(kind: pa.DataType) -> bool:
    return bool(pa.types.is_primitive(kind) or pa.types.is_boolean(kind) or pa.types.is_decimal(kind))


def _pays(before: TaskStatistics, batch_id: int) -> bool:
    """Decide by the metrics of the previous micro-batch."""
    arrived, rows = before.rows.rows_in, before.rows.local_rows_in
    if rows is not None:
        return rows >= ROWS_MIN and rows >= REDUCTION_MIN * arrived
    # A bundle reads one state per unique key (windows: per key and slice): the rows that would be left.
    left = arrived if before.controller is None else before.controller.state.reads
    return arrived >= ROWS_MIN and (arrived >= REDUCTION_MIN * left or batch_id % TRIAL_BATCHES == 0)
