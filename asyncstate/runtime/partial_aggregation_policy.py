"""Whether an operator's local phase runs in a micro-batch.

Owns: ``choose_partial_aggregation``, the rule of ``auto``, and ``choose_partial_limit``; the same for rows from another
operator's task.
Invariant: the choice follows from the configuration and the version that the micro-batch starts from, so every attempt
at a micro-batch, also after a restart, makes the same one.
Must not import Spark.

Source: the adaptive partial aggregation of Trino, which also goes by how much the rows before were reduced.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from asyncstate.config import Config
from asyncstate.errors import SchemaError
from asyncstate.operator import BundleOperator, InputSpec, Operator
from asyncstate.partial_aggregation import LocalFunction, PartialAggregation, PartialLimit
from asyncstate.runtime.statistics import TaskStatistics, statistics_before
from asyncstate.storage import OperatorManifest

ROWS_MIN: Final = 50_000
"""Fewer rows in the micro-batch before: what a further stage costs is more than it can save."""
REDUCTION_MIN: Final = 10.0
"""Fewer rows put into one, and the local phase costs more than it saves (decision 0038)."""
TRIAL_BATCHES: Final = 32
"""Without the local phase every so many micro-batches one has it, to see whether the keys have changed."""


def choose_partial_aggregation(
    operator: Operator,
    inputs: Sequence[InputSpec],
    config: Config,
    base: OperatorManifest | None,
    batch_id: int,
) -> PartialAggregation | None:
    """The local phase for this micro-batch; None where rows go to the operator as they are."""
    phase = _possible_phase(operator, inputs, config)
    if phase is None or config.local_aggregation == "true":
        return phase
    return phase if base is not None and _pays(statistics_before(base), batch_id) else None


def may_run_locally(operator: Operator, inputs: Sequence[InputSpec], config: Config) -> bool:
    """Whether there are micro-batches in which something is done to the rows before they are exchanged."""
    limit = choose_partial_limit(operator, inputs, config)
    return limit is not None or _possible_phase(operator, inputs, config) is not None


def _possible_phase(
    operator: Operator, inputs: Sequence[InputSpec], config: Config
) -> PartialAggregation | None:
    phase = _phase(operator, inputs, config)
    if phase is None or config.local_aggregation == "true":
        return phase
    # Of a changelog's rows only the net change would be checked, which nobody should get unasked.
    return None if inputs[0].changelog or _sorts(phase) else phase


def task_partial_aggregation(
    operator: Operator, inputs: Sequence[InputSpec], config: Config
) -> PartialAggregation | None:
    """The local phase where rows come from the task of another operator, in which it needs no further exchange."""
    phase = _phase(operator, inputs, config)
    if phase is None or config.local_aggregation == "true":
        return phase
    # Values that do not repeat would be more rows than came: a row for each set of them.
    return None if inputs[0].changelog or phase.values is not None else phase


def _phase(operator: Operator, inputs: Sequence[InputSpec], config: Config) -> PartialAggregation | None:
    """What the operator lets be done to rows; not to those with a sequence: put together they have none any more."""
    if config.local_aggregation == "false" or len(inputs) != 1 or not isinstance(operator, BundleOperator):
        return None
    phase = None if inputs[0].sequence else operator.partial_aggregation(inputs)
    if phase is not None and not _has_step(operator):
        name = type(operator).__name__
        raise SchemaError(
            f"{name}: has a partial_aggregation but no partial_step, which makes the same rows in Python; write "
            f"{name}.partial_step, or leave partial_aggregation out"
        )
    return phase


def _has_step(operator: Operator) -> bool:
    return (
        isinstance(operator, BundleOperator)
        and type(operator).partial_step is not BundleOperator.partial_step
    )


def choose_partial_limit(
    operator: Operator, inputs: Sequence[InputSpec], config: Config
) -> PartialLimit | None:
    """Which rows are enough for the operator; None where it gets all."""
    limit = None if inputs[0].key or inputs[0].broadcast else _limit(operator, inputs, config)
    # Spark takes first rows of all rows alone, and not all of those that share the last number.
    return None if limit is None or limit.within or limit.function != "row_number" else limit


def task_partial_limit(
    operator: Operator, inputs: Sequence[InputSpec], config: Config
) -> PartialLimit | None:
    """Which rows of each key are enough for the operator, where they come from the task of another one; None where it
    gets all, or cannot choose them itself."""
    limit = _limit(operator, inputs, config)
    return limit if _has_step(operator) else None


def _limit(operator: Operator, inputs: Sequence[InputSpec], config: Config) -> PartialLimit | None:
    """Rows with an event time all travel: the watermark follows from them. So do those with a sequence, whose order is
    told within a key only."""
    if config.local_aggregation == "false" or len(inputs) != 1 or not isinstance(operator, BundleOperator):
        return None
    given = inputs[0]
    all_travel = given.changelog or given.event_time or given.sequence or given.ordering is not None
    return None if all_travel else operator.partial_limit(inputs)


def _sorts(phase: PartialAggregation) -> bool:
    """True for extremes of values without a fixed size: Catalyst sorts the rows for them instead of hashing."""
    extremes = (LocalFunction.MIN, LocalFunction.MAX)
    return any(column.function in extremes and not _fixed(column.type) for column in phase.columns)


def _fixed(kind: pa.DataType) -> bool:
    return bool(pa.types.is_primitive(kind) or pa.types.is_boolean(kind) or pa.types.is_decimal(kind))


def _pays(before: TaskStatistics, batch_id: int) -> bool:
    """By the metrics of the micro-batch before."""
    arrived, rows = before.rows.rows_in, before.rows.local_rows_in
    if rows is not None:
        return rows >= ROWS_MIN and rows >= REDUCTION_MIN * arrived
    # One state a unique key of a bundle is asked for, of windows one a key and slice: the rows that would be left.
    left = arrived if before.controller is None else before.controller.state.reads
    return arrived >= ROWS_MIN and (arrived >= REDUCTION_MIN * left or batch_id % TRIAL_BATCHES == 0)
