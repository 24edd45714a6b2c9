"""Spark as the executor of a job's driver.

Owns: ``SparkExecutor``.
Invariant: rows are DataFrames of one micro-batch; their schemas are Spark's.
Must not import storage.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from asyncstate.changelog import ROW_KIND_COLUMN, Changelog, Key
from asyncstate.dataflow import NodeMetrics, Transform, Union
from asyncstate.driver.executor import Feed, InitialRows, Prepared
from asyncstate.driver.executor_choice import ExecutorChoice, Setting, SourcesChoice
from asyncstate.metrics import DROPPED, Observed
from asyncstate.operator import InputSpec, Operator
from asyncstate.runtime import CommitRecord, TaskSpec, highest_event_time
from asyncstate.spark import exchange
from asyncstate.spark.column_types import quoted
from asyncstate.spark.compatibility import (
    context_of,
    default_parallelism,
    is_connect,
    is_one_machine,
    runs_locally,
)
from asyncstate.spark.facts import both, insertions, known_changes, with_changes
from asyncstate.spark.local_frame import (
    LocalFrame,
    has_arrow_types,
    local_transformed,
    without_dropped,
    without_kinds,
)
from asyncstate.spark.local_stages import LocalStage, LocalStages
from asyncstate.spark.packed_inputs import before, initial_of, nothing, static
from asyncstate.spark.python_task import StatelessTask
from asyncstate.spark.settings import ArrowBatches
from asyncstate.spark.shipped_operator import shipped_copy
from asyncstate.spark.stages import JobDescriptions, LazyStage, run_stages
from asyncstate.spark.task_errors import rows_explained, stage_explained
from asyncstate.spark.transforms import highest_time, transformed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from asyncstate.driver.chain import RunPartitions

_COUNTS: Final = (f"count({quoted(DROPPED)}) as count", f"min({quoted(DROPPED)}) as example")


class SparkExecutor:
    """See ``Executor``. ``run_partitions``: what tasks run instead of the runtime's own function."""

    def __init__(
        self, spark: SparkSession, run_partitions: RunPartitions | None = None, setting: Setting = "spark"
    ) -> None:
        self._spark = spark
        local = runs_locally(spark)
        self._sources = SourcesChoice()
        self._choice = ExecutorChoice(setting if local else "spark", not local or is_one_machine(spark))
        self._local = LocalStages(spark, run_partitions)
        self._run_partitions = run_partitions
        self._arrow = ArrowBatches(spark)
        self._observed: set[str] = set()  # the names of all requested observations
        self.texts = JobDescriptions(context_of(spark))
        """The job descriptions of the stages in Spark's UI."""

    @functools.cached_property
    def default_parallelism(self) -> int:
        """The number of partitions of an operator that does not set it."""
        return default_parallelism(self._spark)

    # -- rows ------------------------------------------------------------------------------------------

    def brings_sources(self) -> bool:
        """Whether to bring the rows of all sources of the micro-batch that begins: one Spark job does, where each input
        of a stage would take one."""
        return self._sources.begin()

    def brought(self, rows: DataFrame) -> LocalFrame | None:
        """``rows`` in this process; None if they are too many or too large."""
        if not has_arrow_types(rows.schema):
            return None
        found = self._local.collect(rows, self._choice.source_rows_max)
        fits = found is not None and found.num_rows <= self._choice.source_rows_max
        fits = fits and found is not None and found.size_bytes <= self._choice.bytes_max
        self._sources.came(fits)
        return LocalFrame(found.batches, rows.schema, self._spark) if fits and found is not None else None

    def columns(self, rows: DataFrame) -> list[str]:
        """Column names, including ``row_kind`` if there is one."""
        return rows.columns

    def schema(self, rows: DataFrame) -> pa.Schema:
        """The columns except ``row_kind``, all nullable, timestamps in UTC."""
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
        """The specification of an operator's input."""
        return exchange.input_spec(rows, key, event_time, name, broadcast, changes)

    def no_rows(self, uid: str, schema: pa.Schema) -> DataFrame:
        """An empty frame with the output columns ``schema`` and ``row_kind``."""
        return self._spark.createDataFrame([], exchange.output_rows(uid, schema))

    def no_rows_like(self, rows: DataFrame) -> DataFrame:
        """An empty frame with the columns of ``rows``."""
        if isinstance(rows, LocalFrame):
            return LocalFrame([], rows.schema, rows.sparkSession)
        return self._spark.createDataFrame([], rows.schema) if rows.isStreaming else nothing(rows)

    def transformed(
        self, node: Transform | Union, inputs: Sequence[DataFrame], kinds: bool = False
    ) -> DataFrame:
        """The output of a row-by-row node; Arrow computes it where its rows are here and its answers are Spark's."""
        found = local_transformed(node, inputs, kinds)
        return transformed(node, inputs, kinds) if found is None else found

    def observe(self, rows: DataFrame, name: str, event_time: str) -> DataFrame:
        """``rows``; the stage that reads them records the highest event time that may advance a watermark."""
        # Times of rows that are here are read when they are needed; a client does not get what a checkpoint observed.
        if isinstance(rows, LocalFrame) or is_connect(rows):
            return rows
        self._observed.add(name)
        return rows.observe(name, sf.expr(highest_time(rows, event_time)).alias("highest"))

    def highest(self, rows: DataFrame, event_time: str) -> int | None:
        """The highest event time that may advance a watermark, in microseconds; reads the rows."""
        if isinstance(rows, LocalFrame):
            return highest_event_time(rows.batch.column(event_time))
        found: int | None = rows.agg(sf.expr(highest_time(rows, event_time))).collect()[0][0]
        return found

    def kept(self, rows: DataFrame, name: str) -> DataFrame:
        """``rows`` without those that are marked as dropped; the stage that reads them counts these."""
        if DROPPED not in rows.columns:
            return rows
        if isinstance(rows, LocalFrame):
            return without_dropped(rows)
        if not is_connect(rows):
            self._observed.add(name)
            rows = rows.observe(name, *map(sf.expr, _COUNTS))
        return rows.where(f"{quoted(DROPPED)} is null").drop(DROPPED)

    def dropped(self, rows: DataFrame) -> Observed:
        """The number of rows that are marked as dropped, and one mark; reads the rows."""
        if DROPPED not in rows.columns:
            return Observed(0)
        if isinstance(rows, LocalFrame):
            marks = rows.batch.column(DROPPED).drop_null()
            return Observed(len(marks), pc.min(marks).as_py())
        return Observed(*rows.agg(*map(sf.expr, _COUNTS)).collect()[0])

    def without_kinds(self, rows: DataFrame) -> DataFrame:
        """The rows without ``row_kind``."""
        return without_kinds(rows) if isinstance(rows, LocalFrame) else rows.drop(ROW_KIND_COLUMN)

    def with_kinds(self, rows: DataFrame) -> DataFrame:
        """The rows with ``row_kind``; rows without one become insertions."""
        if isinstance(rows, LocalFrame) and ROW_KIND_COLUMN in rows.schema.names:
            return rows
        return insertions(rows)

    def with_changes(self, rows: DataFrame, changes: Changelog) -> DataFrame:
        """The rows, annotated with ``changes``, which ``input_spec`` then uses."""
        return with_changes(rows, changes)

    def concat(self, first: DataFrame, then: DataFrame, key: Key | None = None) -> DataFrame:
        """All rows of both, which have the same columns; ``key``: they are upserts by these columns, so rows of
        ``first`` that rows of ``then`` replace are left out."""
        return both(first, then, key)

    def before(self, what: str, rows: Any, like: DataFrame) -> DataFrame:
        """``rows``, to be read before those of ``like``, with the same columns."""
        return before(what, rows, like)

    def check_static(self, name: str, rows: Any) -> DataFrame:
        """``rows`` from which source or operator ``name`` starts, checked."""
        return static(name, rows)

    def initial_of(self, uid: str, given: Any, inputs: Sequence[DataFrame]) -> InitialRows:
        """What operator ``uid`` starts from, checked."""
        return initial_of(uid, given, inputs)

    # -- operators -------------------------------------------------------------------------------------

    def shipped_copy(self, uid: str, operator: Operator) -> Operator:
        """A copy of the operator."""
        return shipped_copy(uid, operator)

    @property
    def has_exchanges(self) -> bool:
        """Whether rows are exchanged, so that dropping rows that no ranking needs saves work."""
        return True

    def stateless(self, spec: TaskSpec, output: pa.Schema, rows: DataFrame) -> DataFrame:
        """The output of a stateless operator, which runs when its rows are read."""
        with stage_explained(spec.uid, spec.operator):
            schema = exchange.output_rows(spec.uid, output)
            task = StatelessTask(spec, exchange.wire_schema(schema))
            return rows.selectExpr(*exchange.plain_columns(spec.inputs[0])).mapInArrow(task, schema)

    def plan(self, chain: Sequence[Prepared], inputs: Sequence[DataFrame | Feed], done: bool) -> LazyStage:
        """A stage of ``chain`` over ``inputs``, whose plan on Spark is made if it runs there."""
        stage = LazyStage(chain, inputs, done, self._run_partitions)
        if not self._is_local(stage):
            stage.planned  # noqa: B018  # so that its seconds are those of planning
        return stage

    def _is_local(self, stage: LazyStage) -> bool:
        specs = [one.spec for each in stage.all for one in each.chain]
        return self._choice.is_local(stage.uid, max(spec.parallelism for spec in specs), specs)

    def run(
        self, planned: Any, stateless: Collection[str]
    ) -> tuple[exchange.SparkStage | LocalStage, list[tuple[Prepared, list[CommitRecord]]]]:
        """Run a stage and the stages that feed it; returns its rows, and for each operator the reports of its
        partitions."""
        if self._is_local(planned):
            local = self._local.run(planned, self._choice, self.texts, stateless, self._observed)
            if local is not None:
                self._sources.ran(here=True)
                return local
        self._sources.ran(here=False)
        stage, reports = run_stages(planned.planned, self.texts, self._arrow, stateless, self._observed)
        self._choice.ran_on_cluster(planned.uid, reports)
        return stage, reports

    def ran(self, metrics: Mapping[str, NodeMetrics]) -> None:
        """Display the metrics of operators that have run, where the engine has a place for them."""
        self.texts.ran(metrics)

    # -- micro-batches ---------------------------------------------------------------------------------

    @contextmanager
    def micro_batch(self, batch_id: int, stateless: Collection[str]) -> Iterator[None]:
        """A context around everything that a micro-batch does."""
        with self.texts.batch(), rows_explained(batch_id, stateless):
            yield

    def withdraw(self, rows: DataFrame, owner: str) -> None:
        """Invalidate the rows named ``owner``, since the micro-batch is over."""
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
        """Write the rows of a MicroBatch to the sink, which has this name in the graph."""
        write_arrow = getattr(sink, "write_arrow_micro_batch", None)  # of the sinks of this package
        write_micro_batch = getattr(sink, "write_micro_batch", None)
        if callable(write_arrow) and isinstance(rows, LocalFrame):
            write_arrow(rows.table, batch, name, known_changes(rows))
        elif callable(write_micro_batch):
            write_micro_batch(rows, batch, name)
        else:
            (sink if callable(sink) else sink.write)(rows, batch.batch_id)

    def describe(self, error: Exception) -> str:
        """One line that describes an error of the engine or of user code, raised while the graph is checked."""
        if isinstance(error, PySparkException):
            return str(error).splitlines()[0]
        return f"{type(error).__name__}: {error}"
