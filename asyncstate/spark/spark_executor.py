"""Spark as the executor of a job's driver.

Owns: ``SparkExecutor``.
Invariant: rows are DataFrames of one micro-batch; their schemas are Spark's.
Must not import storage.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from asyncstate.changelog import ROW_KIND_COLUMN, Changelog, Key
from asyncstate.dataflow import NodeMetrics, Transform, Union
from asyncstate.driver.executor import Feed, InitialRows, Prepared
from asyncstate.operator import InputSpec, Operator
from asyncstate.runtime import CommitRecord, TaskSpec
from asyncstate.spark import exchange
from asyncstate.spark.compatibility import context_of, default_parallelism, is_connect
from asyncstate.spark.facts import both, insertions, known_changes, with_changes
from asyncstate.spark.packed_inputs import before, initial_of, nothing, static
from asyncstate.spark.python_task import StatelessTask
from asyncstate.spark.settings import ArrowBatches
from asyncstate.spark.shipped_operator import shipped_copy
from asyncstate.spark.stages import JobDescriptions, PlannedStage, plan_stage, run_stages
from asyncstate.spark.task_errors import rows_explained, stage_explained
from asyncstate.spark.transforms import highest_time, transformed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from asyncstate.driver.chain import RunPartition


class SparkExecutor:
    """See ``Executor``. ``run_partition``: what tasks run instead of the runtime's own function."""

    def __init__(self, spark: SparkSession, run_partition: RunPartition | None = None) -> None:
        self._spark = spark
        self._run_partition = run_partition
        self._arrow = ArrowBatches(spark)
        self._observed: set[str] = set()  # the names of all requested observations
        self.texts = JobDescriptions(context_of(spark))
        """The job descriptions of the stages in Spark's UI."""

    @functools.cached_property
    def default_parallelism(self) -> int:
        """See ``Executor``."""
        return default_parallelism(self._spark)

    # -- rows ------------------------------------------------------------------------------------------

    def columns(self, rows: DataFrame) -> list[str]:
        """See ``Executor``."""
        return rows.columns

    def schema(self, rows: DataFrame) -> pa.Schema:
        """See ``Executor``."""
        return exchange.arrow_schema_of(rows)

    def input_spec(
        self,
        rows: DataFrame,
        key: tuple[str, ...],
        event_time: str | None,
        name: str,
        broadcast: bool,
        changes: Changelog | None = None,
    ) -> InputSpec:
        """See ``Executor``."""
        return exchange.input_spec(rows, key, event_time, name, broadcast, changes)

    def no_rows(self, uid: str, schema: pa.Schema) -> DataFrame:
        """See ``Executor``."""
        return self._spark.createDataFrame([], exchange.output_rows(uid, schema))

    def no_rows_like(self, rows: DataFrame) -> DataFrame:
        """See ``Executor``."""
        return self._spark.createDataFrame([], rows.schema) if rows.isStreaming else nothing(rows)

    def transformed(
        self, node: Transform | Union, inputs: Sequence[DataFrame], kinds: bool = False
    ) -> DataFrame:
        """See ``Executor``."""
        return transformed(node, inputs, kinds)

    def observe(self, rows: DataFrame, name: str, event_time: str) -> DataFrame:
        """See ``Executor``."""
        if is_connect(rows):  # its client does not get what a local checkpoint has observed
            return rows
        self._observed.add(name)
        return rows.observe(name, sf.expr(highest_time(rows, event_time)).alias("highest"))

    def highest(self, rows: DataFrame, event_time: str) -> int | None:
        """See ``Executor``."""
        found: int | None = rows.agg(sf.expr(highest_time(rows, event_time))).collect()[0][0]
        return found

    def without_kinds(self, rows: DataFrame) -> DataFrame:
        """See ``Executor``."""
        return rows.drop(ROW_KIND_COLUMN)

    def with_kinds(self, rows: DataFrame) -> DataFrame:
        """See ``Executor``."""
        return insertions(rows)

    def with_changes(self, rows: DataFrame, changes: Changelog) -> DataFrame:
        """See ``Executor``."""
        return with_changes(rows, changes)

    def concat(self, first: DataFrame, then: DataFrame, key: Key | None = None) -> DataFrame:
        """See ``Executor``."""
        return both(first, then, key)

    def before(self, what: str, rows: Any, like: DataFrame) -> DataFrame:
        """See ``Executor``."""
        return before(what, rows, like)

    def check_static(self, name: str, rows: Any) -> DataFrame:
        """See ``Executor``."""
        return static(name, rows)

    def initial_of(self, uid: str, given: Any, inputs: Sequence[DataFrame]) -> InitialRows:
        """See ``Executor``."""
        return initial_of(uid, given, inputs)

    # -- operators -------------------------------------------------------------------------------------

    def shipped_copy(self, uid: str, operator: Operator) -> Operator:
        """See ``Executor``."""
        return shipped_copy(uid, operator)

    @property
    def has_exchanges(self) -> bool:
        """See ``Executor``."""
        return True

    def stateless(self, spec: TaskSpec, output: pa.Schema, rows: DataFrame) -> DataFrame:
        """See ``Executor``."""
        with stage_explained(spec.uid, spec.operator):
            schema = exchange.output_rows(spec.uid, output)
            task = StatelessTask(spec, exchange.wire_schema(schema))
            return rows.selectExpr(*exchange.plain_columns(spec.inputs[0])).mapInArrow(task, schema)

    def plan(self, chain: Sequence[Prepared], inputs: Sequence[DataFrame | Feed], done: bool) -> PlannedStage:
        """See ``Executor``."""
        return plan_stage(chain, inputs, done, self._run_partition)

    def run(
        self, planned: Any, stateless: Collection[str]
    ) -> tuple[exchange.Stage, list[tuple[Prepared, list[CommitRecord]]]]:
        """See ``Executor``."""
        return run_stages(planned, self.texts, self._arrow, stateless, self._observed)

    def ran(self, metrics: Mapping[str, NodeMetrics]) -> None:
        """See ``Executor``."""
        self.texts.ran(metrics)

    # -- micro-batches ---------------------------------------------------------------------------------

    @contextmanager
    def micro_batch(self, batch_id: int, stateless: Collection[str]) -> Iterator[None]:
        """See ``Executor``."""
        with self.texts.batch(), rows_explained(batch_id, stateless):
            yield

    def withdraw(self, rows: DataFrame, owner: str) -> None:
        """See ``Executor``."""
        exchange.withdraw(rows, exchange.over(owner))

    def check_sink(self, sink: Any, rows: DataFrame) -> None:
        """See ``Executor``: sinks may have a method ``check(schema)``, and one ``check_changes(changelog)``."""
        check_changes = getattr(sink, "check_changes", None)
        if callable(check_changes):
            check_changes(known_changes(rows))
        check = getattr(sink, "check", None)
        if callable(check):
            check(rows.schema)

    def write(self, sink: Any, name: str, rows: DataFrame, batch: Any) -> None:
        """See ``Executor``."""
        write_micro_batch = getattr(sink, "write_micro_batch", None)
        if callable(write_micro_batch):
            write_micro_batch(rows, batch, name)
        else:
            (sink if callable(sink) else sink.write)(rows, batch.batch_id)

    def describe(self, error: Exception) -> str:
        """See ``Executor``."""
        if isinstance(error, PySparkException):
            return str(error).splitlines()[0]
        return f"{type(error).__name__}: {error}"
