"""Stages whose tasks run in the driver's process, for micro-batches so small that an exchange costs more than the work.

Owns: ``LocalStages``, which runs them, and ``LocalStage``, their rows.
Invariant: the tasks are those that Spark would run, over the same partitions; a stage runs here completely or
not at all.
"""

from __future__ import annotations

import collections
import functools
import pickle
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Final

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.types import ArrayType, BinaryType, MapType, StringType, StructType

from asyncstate.changelog import ROW_KIND_COLUMN
from asyncstate.driver.executor import Feed, Prepared
from asyncstate.driver.executor_choice import ExecutorChoice
from asyncstate.driver.local_tasks import LocalOutput, TaskPlan, TooLargeError, run_locally
from asyncstate.driver.sent_columns import sent_schema
from asyncstate.metrics import Observed
from asyncstate.operator import Operator
from asyncstate.runtime import CommitRecord, run_partitions
from asyncstate.spark.column_types import quoted
from asyncstate.spark.exchange import StageRows, output_rows
from asyncstate.spark.local_frame import Collected, Collector, LocalFrame
from asyncstate.spark.python_task import regular_inputs
from asyncstate.spark.stages import (
    JobDescriptions,
    LazyStage,
    broadcast_rows,
    explained,
    names_of,
    uids_of,
)
from asyncstate.spark.task_errors import left

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from asyncstate.driver.chain import RunPartitions


_turns: Final = threading.Lock()
"""Operators of two threads take turns, those of one job's function and those of several jobs: the process has the
memory of one worker."""


_WIDE: Final = (StringType, BinaryType, ArrayType, MapType, StructType)


class LocalStage(StageRows):
    """A stage that has run in this process."""

    in_driver: ClassVar[bool] = True


class LocalStages:
    """Runs stages here. ``run``: what tasks run instead of the runtime's own function."""

    def __init__(self, spark: SparkSession, run: RunPartitions | None) -> None:
        self._spark = spark
        self._run: RunPartitions = run_partitions if run is None else run

    @functools.cached_property
    def _collector(self) -> Collector:
        return Collector(self._spark)

    def collect(self, rows: DataFrame, rows_max: int) -> Collected | None:
        """The rows of a DataFrame, in one Spark job; None if Spark refuses their size. See ``Collector``."""
        return self._collector.collect(rows, rows_max, ())

    def run(
        self,
        planned: LazyStage,
        choice: ExecutorChoice,
        texts: JobDescriptions,
        stateless: Collection[str],
        watched: Collection[str],
    ) -> tuple[LocalStage, list[tuple[Prepared, list[CommitRecord]]]] | None:
        """Run ``planned`` and what feeds it; None if its rows, or those that it emits, are too many or too large: it
        has left nothing then."""
        operators = [one for stage in planned.all for one in stage.chain]
        with explained(operators, stateless), texts.stage(uids_of(operators), names_of(operators)):
            given = self._given(planned, choice, watched)
            if given is None:
                return None
            try:
                with _turns:
                    started = time.perf_counter()
                    rows_of: Callable[[Any], list[pa.RecordBatch]] = lambda one: given[id(one)].batches  # noqa: E731
                    made = run_locally(planned, rows_of, self._run, _copies_of, choice.bytes_max)
                    seconds = time.perf_counter() - started
            except TooLargeError:
                choice.too_large(planned.uid, sum(one.num_rows for one in given.values()))
                return None
            except SystemExit as leaving:
                raise left(f"the task of operator '{planned.uid}'", leaving) from leaving
            choice.ran_locally(planned.uid, made.reports, seconds)
        observed = {name: value for one in given.values() for name, value in one.observed.items()}
        return self._stage(planned, made, observed), made.reports

    def _given(
        self, planned: LazyStage, choice: ExecutorChoice, watched: Collection[str]
    ) -> dict[int, Collected] | None:
        """The rows of all inputs, by their ``id``; None if they are too many or too large."""
        given: dict[int, Collected] = {}
        read = _read_columns(planned)
        for stage in planned.all:
            for one, spec in zip(stage.inputs, stage.chain[0].spec.inputs, strict=True):
                if isinstance(one, Feed) or id(one) in given:
                    continue
                if spec.broadcast:  # the driver gets its rows wherever the stage runs
                    given[id(one)] = Collected(broadcast_rows(one), {})
                    continue
                found = self._collector.collect(_without_rest(one, read[id(one)]), choice.rows_max, watched)
                if found is None:
                    choice.too_large(planned.uid, 0)
                    return None
                if not choice.fits(planned.uid, found.num_rows, found.size_bytes):
                    return None
                given[id(one)] = found
        return given

    def _stage(self, planned: LazyStage, made: LocalOutput, observed: Mapping[str, Observed]) -> LocalStage:
        last = planned.chain[-1]
        spec, sent = last.spec, last.sent
        session = _session_of(planned)
        frame: Callable[..., LocalFrame] = lambda batches, schema, changes: LocalFrame(  # noqa: E731
            batches, output_rows(spec.uid, schema, changes), session
        )
        sides = {
            name: frame(made.sides[name], schema, sent.changes_of(name))
            for name, schema in sent.side_outputs.items()
        }
        owner = f"the output of operator '{spec.uid}' in batch {spec.batch_id}"
        rows = frame(made.rows, sent.schema, last.output.changes)
        return LocalStage(rows=rows, owner=owner, sides=sides, observed=observed)


def _read_columns(planned: LazyStage) -> dict[int, set[str]]:
    """For each input by its ``id``, the columns that operators read; those of the rows before a partial aggregation,
    unless it has run upstream."""
    read = collections.defaultdict[int, set[str]](set)
    for stage in planned.all:
        for one, spec in zip(stage.inputs, stage.chain[0].spec.inputs, strict=True):
            sent = spec if stage.done else replace(spec, local=None)
            read[id(one)].update(sent_schema(sent).names)
    return read


def _without_rest(df: DataFrame, read: Collection[str]) -> DataFrame:
    """``df`` without the columns that no operator reads, if some of them may be wide: to leave them out, Spark has to
    plan once more."""
    if isinstance(df, LocalFrame):
        return df
    narrow = {*read, ROW_KIND_COLUMN}
    if not any(isinstance(field.dataType, _WIDE) for field in df.schema if field.name not in narrow):
        return df
    kept = [name for name in df.schema.names if name in read]
    return df.selectExpr(*map(quoted, kept or df.schema.names[:1]))  # rows without columns have no number


def _session_of(planned: TaskPlan) -> SparkSession:
    """The session of the rows, as on the executors: that of the first regular input. In a query it is the query's own,
    with its settings and its temporary views, and not the one that the job was made with."""
    first = planned.inputs[regular_inputs(planned.chain[0].spec.inputs)[0]]
    session: SparkSession = _session_of(first.stage) if isinstance(first, Feed) else first.sparkSession
    return session


def _copies_of(operator: Operator) -> Callable[[], Operator]:
    pickled = cloudpickle.dumps(operator)  # type: ignore[no-untyped-call]
    return lambda: pickle.loads(pickled)
