"""What a driver needs of the engine that holds the rows of a micro-batch and runs operators over them.

Owns: ``Executor``, ``Stage`` and ``Planned``, the interfaces of such an engine; ``Prepared``, an operator that is
checked and can run; ``Feed``, planned rows as an input; ``InitialRows``, what an operator starts from.
Invariant: a stage runs once, whole, in ``Executor.run``; afterwards its rows are only read. Executors commit nothing.
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
from asyncstate.operator import InputSpec, Operator, OutputSpec
from asyncstate.runtime import CommitRecord, Fingerprint, OutputPipeline, TaskSpec

R = TypeVar("R")
"""The rows of a micro-batch as the executor holds them: a DataFrame on Spark."""
R_co = TypeVar("R_co", covariant=True)


@dataclass(frozen=True)
class Prepared:
    """An operator that is checked and can run. ``after`` is done to its main output in its task, ``sent`` are the
    columns that leave the task; ``output``: what it declares. ``delays``: of each input the watermark delay in
    microseconds, or None; ``declared``: what the manifest keeps of its declaration."""

    spec: TaskSpec
    after: OutputPipeline | None
    sent: OutputSpec
    delays: Sequence[int | None]
    declared: Fingerprint
    output: OutputSpec


class Planned(Protocol):
    """A stage that has not run: ``chain`` has its operators, one after the other in a task."""

    @property
    def chain(self) -> Sequence[Prepared]:
        """Its operators."""

    @property
    def plan_seconds(self) -> float:
        """What planning it took."""

    @property
    def all(self) -> Sequence[Planned]:
        """The stages that run with it, in their order; it is the last."""


class Feed(NamedTuple):
    """The rows of a planned stage as input of another one; ``shape`` has their columns and no rows."""

    stage: Any
    shape: Any


class Stage(Protocol[R_co]):
    """The rows of a stage that has run."""

    @property
    def rows(self) -> R_co:
        """Those of the main output."""

    @property
    def observed(self) -> Mapping[str, int | None]:
        """What ``Executor.observe`` was asked for and the stage has read, by name; None without any time."""

    def side(self, name: str) -> R_co:
        """Those of a side output. Raises JobError for a name that is not declared."""

    def behind(self, first: Any, key: Key | None = None) -> Any:
        """This stage with the rows of ``first`` before its own; ``key``: of the main output, as of ``concat``."""

    def release(self) -> None:
        """Give the rows back: they cannot be read any more."""


class InitialRows(NamedTuple):
    """What an operator starts from: ``rows``, one entry per input, or ``values`` by name of state."""

    rows: Sequence[Any] = ()
    values: Mapping[str, Any] = {}


class Executor(Protocol[R]):
    """Holds rows, transforms them row by row, and runs planned stages."""

    @property
    def default_parallelism(self) -> int:
        """Partitions of an operator that says nothing else."""

    # -- rows ------------------------------------------------------------------------------------------

    def columns(self, rows: R) -> list[str]:
        """Names, ``row_kind`` among them if there is one."""

    def schema(self, rows: R) -> pa.Schema:
        """The columns but ``row_kind``, all nullable, timestamps in UTC."""

    def input_spec(
        self,
        rows: R,
        key: tuple[str, ...],
        event_time: str | None,
        name: str,
        broadcast: bool,
        changes: Changelog | None = None,
    ) -> InputSpec:
        """What an operator is told of an input. ``changes``: what its rows are said to be; None: what is known of them.
        Raises SchemaError for columns that it cannot have, and for upserts of which too little is known."""

    def no_rows(self, uid: str, schema: pa.Schema) -> R:
        """No rows, with the output columns ``schema`` and ``row_kind``. Raises SchemaError for unsupported columns."""

    def no_rows_like(self, rows: R) -> R:
        """No rows, with the columns of ``rows``."""

    def transformed(self, node: Transform | Union, inputs: Sequence[R], kinds: bool = False) -> R:
        """The rows of a node that looks at one row at a time; ``kinds``: a selection keeps ``row_kind`` unasked."""

    def observe(self, rows: R, name: str, event_time: str) -> R:
        """``rows``; the stage that reads them knows the highest of their event times that may move a watermark."""

    def highest(self, rows: R, event_time: str) -> int | None:
        """The highest of their event times that may move a watermark, microseconds; reads the rows."""

    def without_kinds(self, rows: R) -> R:
        """The rows without ``row_kind``."""

    def with_kinds(self, rows: R) -> R:
        """The rows with ``row_kind``: those that have none are insertions."""

    def with_changes(self, rows: R, changes: Changelog) -> R:
        """The rows, of which ``changes`` is known: what ``input_spec`` says of them."""

    def concat(self, first: R, then: R, key: Key | None = None) -> R:
        """All rows of both, which have the same columns; ``key``: they are upserts by these columns, so that rows of
        ``first`` which others of ``then`` replace are left out."""

    def before(self, what: str, rows: Any, like: R) -> R:
        """``rows``, which are to come before those of ``like``, with its columns. Raises SchemaError for others."""

    def check_static(self, name: str, rows: Any) -> R:
        """``rows``, from which source or operator ``name`` starts. Raises JobError for what is none."""

    def initial_of(self, uid: str, given: Any, inputs: Sequence[R]) -> InitialRows:
        """What operator ``uid`` is to start from, checked. Raises JobError and SchemaError."""

    # -- operators -------------------------------------------------------------------------------------

    def shipped_copy(self, uid: str, operator: Operator) -> Operator:
        """A copy of the operator. Raises JobError for what cannot be sent to tasks."""

    @property
    def has_exchanges(self) -> bool:
        """Whether rows are exchanged, so that leaving out those that no ranking needs spares something."""

    def stateless(self, spec: TaskSpec, output: pa.Schema, rows: R) -> R:
        """The output of a stateless operator, which runs when its rows are read."""

    def plan(self, chain: Sequence[Prepared], inputs: Sequence[R | Feed], done: bool) -> Planned:
        """A stage of ``chain`` over ``inputs``; ``done``: the first step of its first operator has been done in the
        task that its rows come from."""

    def run(
        self, planned: Planned, stateless: Collection[str]
    ) -> tuple[Stage[R], list[tuple[Prepared, list[CommitRecord]]]]:
        """Run a stage and what feeds it: its rows, and of each operator what its partitions report. ``stateless``:
        uids of operators that may run with it."""

    def ran(self, metrics: Mapping[str, NodeMetrics]) -> None:
        """Operators have run: show it where the engine shows such things."""

    # -- micro-batches ---------------------------------------------------------------------------------

    def micro_batch(self, batch_id: int, stateless: Collection[str]) -> AbstractContextManager[Any]:
        """Around all that a micro-batch does."""

    def withdraw(self, rows: R, owner: str) -> None:
        """Rows called ``owner`` cannot be read any more: the micro-batch is over."""

    def check_sink(self, sink: Any, rows: R) -> None:
        """Ask a sink that can say so whether it takes rows with these columns; it raises what is wrong."""

    def write(self, sink: Any, name: str, rows: R, batch: Any) -> None:
        """Give the rows of a MicroBatch to the sink that has this name in the graph."""

    def describe(self, error: Exception) -> str:
        """An error of the engine or of user code, found while the graph is checked, in a line."""
