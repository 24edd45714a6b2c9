"""Operators over bounded DataFrames: all rows, then the end of the input, without a job.

Owns: ``apply_batch`` and ``BoundedRows``, which it returns.
Invariant: the rows are those of a job whose first micro-batch has all rows and whose ``finish()`` follows; nothing is
read from or written to a checkpoint.
Must not import storage.

Source: Flink's batch execution of stream operators, which ends with the last watermark.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql import DataFrame

from asyncstate.changelog import Changelog
from asyncstate.clock import SystemClock
from asyncstate.config import Config, resolve
from asyncstate.driver.micro_batch import JobFrame
from asyncstate.errors import ConfigurationError, JobError
from asyncstate.operator import Operator, OutputSpec
from asyncstate.runtime import (
    Keys,
    OrderBy,
    SequenceBy,
    check_is_operator,
    check_num_inputs,
    run_to_the_end,
)
from asyncstate.spark.compatibility import check_session, free_checkpoint, session_settings
from asyncstate.spark.exchange import SparkStage, withdraw
from asyncstate.spark.facts import known_changes, with_changes
from asyncstate.spark.session import settle_session
from asyncstate.spark.shipped_operator import shipped_copy
from asyncstate.spark.spark_executor import SparkExecutor
from asyncstate.spark.spark_micro_batch import MicroBatch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_JOB: Final = "batch"
_OF_CHECKPOINTS: Final = ("checkpoint-dir", "retained-versions", "snapshot-interval")
_NAME_MAX: Final = 100


def apply_batch(
    operator: Operator,
    *inputs: DataFrame,
    key: Keys = None,
    event_time: str | Sequence[str | None] | None = None,
    order_by: OrderBy = None,
    sequence: SequenceBy = None,
    options: Mapping[str, object] | None = None,
    changes: Changelog | Sequence[Changelog | None] | None = None,
) -> BoundedRows:
    """Run ``operator`` over all rows of ``inputs`` and to their end; its output with a ``row_kind`` column.

    First come all rows, none of them late, then the last watermark: windows and event-time timers fire, and rows
    buffered for ordering are processed. A processing-time timer fires only if it is due. The arguments are those of
    ``MicroBatch.apply``; ``options`` are ``async-state.*`` settings, which win over the session's. State is in the
    workers' memory, and beyond ``async-state.write-cache-size`` in a folder below ``async-state.local-dir``; it is
    deleted when the function returns.

    The operator has run, whole and once, when the function returns. The result can be read any number of times: Spark
    keeps its rows on the executors, as those of a local checkpoint, until ``unpersist()`` of the result frees them or
    Spark's cleaner finds that neither the result nor a DataFrame made of it is in use any more. If an executor is lost,
    so are its rows, and reading them fails. A stateless operator runs when its rows are read instead. The rows of side
    outputs are ``side_output(name)`` of the result.

    Raises SchemaError, StateDeclarationError, ConfigurationError and JobError before any row is read, OperatorError and
    StoreError from the run.
    """
    uid = _name(operator)
    check_is_operator(uid, operator)
    check_num_inputs(uid, operator, len(inputs))
    for given in inputs:
        _check_bounded(given)
    spark = inputs[0].sparkSession
    config = _config(spark, dict(options or {}))
    executor = SparkExecutor(spark, functools.partial(run_to_the_end, shipped_copy(uid, operator)))
    frame = JobFrame(_JOB, "", config, lambda _: config, executor)
    batch = MicroBatch(frame, 0, None, SystemClock().now_us(), final=False)
    with executor.texts.batch():
        rows = batch.apply(
            operator,
            *inputs,
            uid=uid,
            key=key,
            event_time=event_time,
            order_by=order_by,
            sequence=sequence,
            changes=changes,
        )
    try:
        for applied in batch.applied.values():  # checks that a job makes when it commits
            applied.stored(batch.batch_id, applied.declared)
    except BaseException:
        batch.close()
        raise
    stage = batch.applied[uid].stage if batch.applied else None
    assert stage is None or isinstance(stage, SparkStage)
    output = batch.applied[uid].output if batch.applied else None
    bounded = _bounded(rows, stage, output)
    with_changes(bounded, known_changes(rows))
    return bounded


class BoundedRows(DataFrame):
    """The rows of a stage (None: of a stateless operator), as long as they are referenced."""

    _stage: SparkStage | None
    _output: OutputSpec | None

    def side_output(self, name: str) -> DataFrame:
        """The rows of the side output ``name``, with a ``row_kind`` column; they are kept as long as the others. Raises
        JobError that lists the names for an unknown one."""
        if self._stage is None or self._output is None:
            raise JobError(f"there is no side output {name!r}: the operator is stateless and has none")
        rows = self._stage.side(name)
        return with_changes(rows, self._output.changes_of(name))

    def unpersist(self, blocking: bool = False) -> BoundedRows:
        """Free the rows' memory; they cannot be read any more, nor can a DataFrame made of them."""
        if self._stage is None:
            super().unpersist(blocking)
            return self
        reason = f"{self._stage.owner} is read after unpersist(); call apply_batch again"
        withdraw(self, reason)
        self._stage.withdraw(reason)
        free_checkpoint(self._stage.kept)
        return self


def _bounded(rows: DataFrame, stage: SparkStage | None, output: OutputSpec | None) -> BoundedRows:
    """``rows`` as BoundedRows, which are DataFrames of the same class, of a classic session or of Spark Connect."""
    kind = type(BoundedRows.__name__, (BoundedRows, type(rows)), {})
    bounded: BoundedRows = object.__new__(kind)
    bounded.__dict__.update(rows.__dict__, _stage=stage, _output=output)
    return bounded


def _name(operator: object) -> str:
    """The operator's name in errors; like any uid it can name files."""
    kind = operator if isinstance(operator, type) else type(operator)
    name = re.sub(r"^[^A-Za-z0-9]+|[^A-Za-z0-9_]", "", kind.__name__)
    return name[:_NAME_MAX] or "operator"


def _check_bounded(given: object) -> None:
    if not isinstance(given, DataFrame):
        raise JobError(f"apply_batch got {given!r} as an input; give a DataFrame")
    if given.isStreaming:
        raise JobError(
            "apply_batch got a streaming DataFrame, which has no end; apply the operator inside a StreamingJob"
        )


def _config(session: SparkSession, options: dict[str, object]) -> Config:
    for name in _OF_CHECKPOINTS:
        if f"async-state.{name}" in options:
            raise ConfigurationError(
                f"apply_batch keeps no checkpoint, so async-state.{name} has no effect; leave it out, or use a "
                "StreamingJob"
            )
    check_session(session, "apply_batch")
    settle_session(session)
    return resolve(options, session_settings(session))
