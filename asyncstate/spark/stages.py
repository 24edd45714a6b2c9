"""Stages of a micro-batch, from the checked operators to the collected reports.

Owns: ``PlannedStage``; ``plan_stage`` and ``run_stages``; ``JobDescriptions``, the job descriptions in the Spark UI.
Invariant: a planned stage runs in the one Spark action of the stage that keeps its rows: its own, or that of a
downstream stage, which gets its rows in the same Spark job. All partitions get the same broadcast rows in the same
order, that of the DataFrame. Job descriptions cannot make a micro-batch fail.
Must not import storage.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from asyncstate.driver.chain import Link
from asyncstate.driver.executor import Feed, Prepared
from asyncstate.driver.local_tasks import TaskPlan
from asyncstate.driver.sent_columns import payload_of
from asyncstate.runtime import CommitRecord, InputBatch, TaskSpec, pack_broadcast, unpack_records
from asyncstate.spark.compatibility import arrow_table
from asyncstate.spark.exchange import (
    SparkStage,
    Tasks,
    exchange,
    has_reports,
    run_stage,
    stage_schema,
    wire_schema,
)
from asyncstate.spark.local_frame import LocalFrame
from asyncstate.spark.python_task import ROW_BYTES, PartitionTask
from asyncstate.spark.reports import reports_of
from asyncstate.spark.task_errors import stage_explained

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import SparkContext
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from asyncstate.dataflow import NodeMetrics
    from asyncstate.driver.chain import RunPartitions
    from asyncstate.spark.settings import ArrowBatches

_DESCRIPTION: Final = "spark.job.description"
_LINES_MAX: Final = 8  # of operators; a page shows a description in full


@dataclass(frozen=True)
class PlannedStage:
    """A stage that is planned and has not run. ``chain``: its operators, fused into one task; ``schema``: the columns
    that leave the task. ``feeds``: the upstream stages in the same Spark job."""

    chain: Sequence[Prepared]
    schema: StructType
    tasks: Tasks
    feeds: Sequence[PlannedStage]
    plan_seconds: float

    @property
    def uid(self) -> str:
        """The uid of its first operator, which names the stage."""
        return self.chain[0].spec.uid

    @property
    def all(self) -> list[PlannedStage]:
        """The stages that run in its Spark job, in execution order."""
        return [*itertools.chain.from_iterable(feed.all for feed in self.feeds), self]


@dataclass(frozen=True)
class LazyStage(TaskPlan):
    """A stage whose plan on Spark is made when it is needed: none is, where its tasks run in the driver's process.
    ``done``: the rows were aggregated in the task that they come from."""

    run: RunPartitions | None

    @functools.cached_property
    def planned(self) -> PlannedStage:
        """Its plan on Spark."""
        inputs = [Feed(one.stage.planned, one.shape) if isinstance(one, Feed) else one for one in self.inputs]
        return plan_stage(self.chain, inputs, self.done, self.run)

    @property
    def plan_seconds(self) -> float:
        """The seconds that planning has taken."""
        return self.planned.plan_seconds if "planned" in self.__dict__ else 0.0


def plan_stage(
    chain: Sequence[Prepared],
    inputs: Sequence[DataFrame | Feed],
    done: bool,
    run: RunPartitions | None,
) -> PlannedStage:
    """A stage of ``chain`` over ``inputs``. ``done``: the rows were aggregated in the task that they come from."""
    started = time.perf_counter()
    first = chain[0].spec
    with explained(chain, ()):
        last = chain[-1]
        schema = stage_schema(last.spec.uid, last.sent, last.output.changes)
        given = [one.stage.tasks if isinstance(one, Feed) else one for one in inputs]
        rows = exchange(given, first.inputs, first.parallelism, first.max_parallelism, done)
        links = tuple(Link(one.spec, one.after) for one in chain[1:])
        task = PartitionTask(first, wire_schema(schema), run, chain[0].after, links)
        frames = {index: one for index, one in enumerate(inputs) if not isinstance(one, Feed)}
        if first.operator.broadcast_input is not None:
            broadcast = _collected(first, frames[first.operator.broadcast_input])
            task = replace(task, spec=replace(first, broadcast=broadcast))
    feeds = [one.stage for one in inputs if isinstance(one, Feed)]
    read = [one for index, one in frames.items() if not first.inputs[index].broadcast]
    read += [one for feed in feeds for one in feed.tasks.read]
    tasks = Tasks(rows, task, has_reports(given), read)
    return PlannedStage(chain, schema, tasks, feeds, time.perf_counter() - started)


def _collected(spec: TaskSpec, df: DataFrame) -> bytes | None:
    """The rows of the broadcast input, which is ``df``; runs its plan. Raises JobError if they exceed their share of
    ``async-state.memory``."""
    index = spec.operator.broadcast_input
    assert index is not None
    declared = spec.inputs[index]
    batches = (InputBatch(*payload_of(declared, batch), index) for batch in broadcast_rows(df))
    return pack_broadcast(spec.uid, declared, batches, spec.config.shares.broadcast)


def broadcast_rows(df: DataFrame) -> list[pa.RecordBatch]:
    """The rows of a broadcast input. Collecting keeps their order, partition by partition; a shuffle would not."""
    if isinstance(df, LocalFrame):
        return list(df.batches)
    return [batch for batch in arrow_table(df).to_batches() if batch.num_rows]


def run_stages(
    planned: PlannedStage,
    texts: JobDescriptions,
    arrow: ArrowBatches,
    stateless: Collection[str],
    watched: Collection[str],
) -> tuple[SparkStage, list[tuple[Prepared, list[CommitRecord]]]]:
    """Run ``planned`` and what feeds it in one action. Returns its rows, and for each operator the records of its
    partitions. ``stateless``: uids of operators that may run with it; ``watched``: names of the metrics that Spark may
    observe meanwhile."""
    every = planned.all
    operators = [one for stage in every for one in stage.chain]
    sent = [(stage.uid, stage.chain[0].spec.inputs) for stage in every]
    with (
        explained(operators, stateless),
        texts.stage(uids_of(operators), names_of(operators)),
        arrow.stage(planned.tasks.read, sent),
    ):
        kept = run_stage(planned.tasks, planned.schema, watched)
    try:
        found = list(_records(planned, kept.reports))
    except BaseException:
        kept.release()
        raise
    for stage in every:
        records = next(records for one, records in found if one is stage.chain[0])
        arrow.saw(stage.uid, max(record.peaks.get(ROW_BYTES, 0.0) for record in records))
    return kept, found


def _records(planned: PlannedStage, packed: Sequence[bytes]) -> Iterator[tuple[Prepared, list[CommitRecord]]]:
    """The records of the partitions of each operator, of attempts that fit together."""
    every = planned.all
    last = planned.chain[-1].spec
    reports = reports_of(
        packed,
        last.batch_id,
        {stage.uid: stage.chain[0].spec.parallelism for stage in every},
        {stage.uid: [feed.uid for feed in stage.feeds] for stage in every},
    )
    for stage in every:
        tasks = [unpack_records(report.records) for report in reports[stage.uid]]
        for number, one in enumerate(stage.chain):
            yield one, [task[number] for task in tasks]


def names_of(chain: Sequence[Prepared]) -> str:
    """The classes of operators."""
    return ", ".join(type(one.spec.operator).__name__ for one in chain)


def uids_of(chain: Sequence[Prepared]) -> str:
    """The uids of operators, for a text in quotes."""
    return "' or '".join(one.spec.uid for one in chain)


def explained(chain: Sequence[Prepared], stateless: Collection[str]) -> AbstractContextManager[None]:
    """``stage_explained`` for operators that run together."""
    return stage_explained(uids_of(chain), chain[-1].spec.operator, stateless)


class JobDescriptions:
    """The description of Spark's jobs, which the tabs "Jobs" and "SQL / DataFrame" show: Spark's own text of the
    micro-batch, and a line for each operator that has run. Each change is a call into the JVM, which takes at most a
    millisecond. Without a SparkContext it does nothing."""

    def __init__(self, context: SparkContext | None) -> None:
        self._context: Any = context
        self._before: str | None = None
        self._lines: list[str] = []
        self.running: str | None = None
        """The operator that runs."""

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Context manager for a micro-batch."""
        self._lines, self._before = [], None
        with suppress(Exception):
            self._before = self._context.getLocalProperty(_DESCRIPTION)
        try:
            yield
        finally:
            self.running = None
            with suppress(Exception):
                self._context.setLocalProperty(_DESCRIPTION, self._before)  # None: take it out

    @contextmanager
    def stage(self, uids: str, operator: str) -> Iterator[None]:
        """Context manager for the stage of an operator, or of several in one task."""
        self.running = uids
        self._set(f"operator '{uids}' ({operator})")
        try:
            yield
        finally:
            self.running = None

    def ran(self, metrics: Mapping[str, NodeMetrics]) -> None:
        """Add what operators have done to the descriptions of the following jobs."""
        self._lines += [f"{uid}: {one.text}, {one.state_text}" for uid, one in metrics.items()]
        self._set(*self._lines[-_LINES_MAX:])

    def _set(self, *lines: str) -> None:
        with suppress(Exception):
            self._context.setJobDescription("\n".join([*filter(None, [self._before]), *lines]))
