"""What a driver needs from the engine that holds the rows of a micro-batch and runs operators over them.

Owns: ``Executor``, ``Stage`` and ``Planned``, the interfaces of such an engine; ``Prepared``, an operator that is
checked and ready to run; ``Feed``, planned rows as an input; ``InitialRows``, what an operator starts from.
Invariant: ``Executor.run`` runs a stage once and completely; afterwards its rows are only read. Executors never commit.
Must not import Spark.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import pyarrow as pa

from asyncstate.changelog import Changelog, Key
from asyncstate.dataflow import NodeMetrics, Transform, Union
from asyncstate.driver.operator_manifests import Fingerprint
from asyncstate.metrics import Observed
from asyncstate.operator import InputSpec, Operator, OutputSpec
from asyncstate.runtime import CommitRecord, OutputPipeline, TaskSpec

R = TypeVar("R")
"""The rows of a micro-batch as the executor holds them: a DataFrame on Spark."""
R_co = TypeVar("R_co", covariant=True)


@dataclass(frozen=True)
class Prepared:
    """An operator that is checked and ready to run.

    ``after`` is applied to its main output in its task; ``sent``: the columns that leave the task; ``output``: its
    declaration. ``delays``: for each input the watermark delay in microseconds, or None; ``declared``: what the
    manifest stores of its declaration."""

    spec: TaskSpec
    after: OutputPipeline | None
    sent: OutputSpec
    delays: Sequence[int | None]
    declared: Fingerprint
    output: OutputSpec


class Planned(Protocol):
    """A stage that has not run yet: ``chain`` has its operators, which run one after the other in a task."""

    @property
    def chain(self) -> Sequence[Prepared]:
        """Its operators."""

    @property
    def plan_seconds(self) -> float:
        """The seconds that planning took."""

    @property
    def all(self) -> Sequence[Planned]:
        """The stages that run with it, in order; it is the last one."""


class Feed(NamedTuple):
    """The rows of a planned stage as an input of another stage; ``shape`` has their columns and no rows."""

    stage: Any
    shape: Any


class Stage(Protocol[R_co]):
    """The rows of a stage that has run."""

    @property
    def rows(self) -> R_co:
        """The rows of the main output."""

    @property
    def in_driver(self) -> bool:
        """Whether its tasks ran in the driver's process."""

    @property
    def observed(self) -> Mapping[str, Observed]:
        """The result of each ``Executor.observe`` and ``Executor.kept`` whose rows the stage has read, by name."""

    def side(self, name: str) -> R_co:
        """The rows of a side output. Raises JobError for an undeclared name."""

    def preceded_by(self, first: Any, key: Key | None = None) -> Any:
        """This stage with the rows of ``first`` before its own; ``key``: of the main output, see ``concat``."""

    def release(self) -> None:
        """Release the rows: they cannot be read any more."""


class InitialRows(NamedTuple):
    """What an operator starts from: ``rows``, one entry per input, or ``values`` by state name."""

    rows: Sequence[Any] = ()
    values: Mapping[str, Any] = {}


class Executor(Protocol[R]):
    """Holds rows, transforms them row by row, and runs planned stages."""

    @property
    def default_parallelism(self) -> int:
        """The number of partitions of an operator that does not set it."""

    # -- rows ------------------------------------------------------------------------------------------

    def columns(self, rows: R) -> list[str]:
        """Column names, including ``row_kind`` if there is one."""

    def schema(self, rows: R) -> pa.Schema:
        """The columns except ``row_kind``, all nullable, timestamps in UTC."""

    def input_spec(
        self,
        rows: R,
        key: tuple[str, ...],
        event_time: str | None,
        name: str,
        broadcast: bool,
        changes: Changelog | None = None,
    ) -> InputSpec:
        """The specification of an operator's input. ``changes``: its declared changelog properties; None: those known
        for the rows. Raises SchemaError for unsupported columns, and for upserts of which too little is known."""

    def no_rows(self, uid: str, schema: pa.Schema) -> R:
        """An empty frame with the output columns ``schema`` and ``row_kind``. Raises SchemaError for unsupported
        columns."""

    def no_rows_like(self, rows: R) -> R:
        """An empty frame with the columns of ``rows``."""

    def transformed(self, node: Transform | Union, inputs: Sequence[R], kinds: bool = False) -> R:
        """The output of a row-by-row node; ``kinds``: a selection keeps ``row_kind`` even if it does not list it."""

    def observe(self, rows: R, name: str, event_time: str) -> R:
        """``rows``; the stage that reads them records the highest event time that may advance a watermark."""

    def highest(self, rows: R, event_time: str) -> int | None:
        """The highest event time that may advance a watermark, in microseconds; reads the rows."""

    def kept(self, rows: R, name: str) -> R:
        """``rows`` without those that ``DROPPED`` marks, and without this column; the stage that reads them records the
        number of marked rows and one mark. Rows without the column are unchanged."""

    def dropped(self, rows: R) -> Observed:
        """The number of rows that ``DROPPED`` marks, and one mark; reads the rows."""

    def without_kinds(self, rows: R) -> R:
        """The rows without ``row_kind``."""

    def with_kinds(self, rows: R) -> R:
        """The rows with ``row_kind``; rows without one become insertions."""

    def with_changes(self, rows: R, changes: Changelog) -> R:
        """The rows, annotated with ``changes``, which ``input_spec`` then uses."""

    def concat(self, first: R, then: R, key: Key | None = None) -> R:
        """All rows of both, which have the same columns; ``key``: they are upserts by these columns, so rows of
        ``first`` that rows of ``then`` replace are left out."""

    def before(self, what: str, rows: Any, like: R) -> R:
        """``rows``, to be read before those of ``like``, with the same columns. Raises SchemaError if they differ."""

    def check_static(self, name: str, rows: Any) -> R:
        """``rows`` from which source or operator ``name`` starts, checked. Raises JobError if they are not static
        rows."""

    def initial_of(self, uid: str, given: Any, inputs: Sequence[R]) -> InitialRows:
        """What operator ``uid`` starts from, checked. Raises JobError and SchemaError."""

    # -- operators -------------------------------------------------------------------------------------

    def shipped_copy(self, uid: str, operator: Operator) -> Operator:
        """A copy of the operator. Raises JobError if it cannot be sent to tasks."""

    @property
    def has_exchanges(self) -> bool:
        """Whether rows are exchanged, so that dropping rows that no ranking needs saves work."""

    def stateless(self, spec: TaskSpec, output: pa.Schema, rows: R) -> R:
        """The output of a stateless operator, which runs when its rows are read."""

    def plan(self, chain: Sequence[Prepared], inputs: Sequence[R | Feed], done: bool) -> Planned:
        """A stage of ``chain`` over ``inputs``; ``done``: the first step of its first operator has run in the upstream
        task."""

    def run(
        self, planned: Planned, stateless: Collection[str]
    ) -> tuple[Stage[R], list[tuple[Prepared, list[CommitRecord]]]]:
        """Run a stage and the stages that feed it; returns its rows, and for each operator the reports of its
        partitions. ``stateless``: uids of operators that may run with it."""

    def ran(self, metrics: Mapping[str, NodeMetrics]) -> None:
        """Display the metrics of operators that have run, where the engine has a place for them."""

    # -- micro-batches ---------------------------------------------------------------------------------

    def micro_batch(self, batch_id: int, stateless: Collection[str]) -> AbstractContextManager[Any]:
        """A context around everything that a micro-batch does."""

    def withdraw(self, rows: R, owner: str) -> None:
        """Invalidate the rows named ``owner``, since the micro-batch is over."""

    def check_sink(self, sink: Any, rows: R) -> None:
        """Check that a sink accepts rows with these columns, if the sink supports the check; raises the sink's
        error."""

    def write(self, sink: Any, name: str, rows: R, batch: Any) -> None:
        """Write the rows of a MicroBatch to the sink, which has this name in the graph."""

    def describe(self, error: Exception) -> str:
        """One line that describes an error of the engine or of user code, raised while the graph is checked."""
