"""This process as the executor of a job's driver: rows are Arrow batches, partitions run one after the other.

Owns: ``LocalRows`` and ``LocalExecutor``.
Invariant: a partition gets the rows that Spark would send it, in their order; its task is the one that Spark runs.
Must not import Spark.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from asyncstate.changelog import INSERT_ONLY, RETRACT, ROW_KIND_COLUMN, Changelog, Key, has_kinds
from asyncstate.dataflow import NodeMetrics, Transform, Union
from asyncstate.dataflow.arrow_rows import no_rows
from asyncstate.driver.chain import RunPartitions
from asyncstate.driver.executor import Feed, InitialRows, Prepared
from asyncstate.driver.local_tasks import TOGETHER_MAX, TaskPlan, run_locally, with_copy
from asyncstate.driver.sent_columns import payload_of
from asyncstate.errors import JobError, SchemaError
from asyncstate.metrics import DROPPED, Observed
from asyncstate.operator import InputSpec, Operator
from asyncstate.runtime import (
    CommitRecord,
    InputBatch,
    TaskSpec,
    check_columns,
    highest_event_time,
    run_partitions,
    run_stateless,
)
from asyncstate.runtime.rows.prepared_rows import output_schema
from asyncstate.testing.expressions import transformed
from asyncstate.testing.harness_rows import not_replaced
from asyncstate.testing.local_exchange import copies_of

_KIND = pa.field(ROW_KIND_COLUMN, pa.string())


@dataclass(frozen=True)
class LocalRows:
    """Rows in order of arrival, of a changelog with their kinds as text in the column ``row_kind``."""

    schema: pa.Schema
    batches: tuple[pa.RecordBatch, ...] = ()
    changes: Changelog | None = None
    """The changelog facts of the rows."""

    @staticmethod
    def of(batch: pa.RecordBatch) -> LocalRows:
        """The rows of one batch."""
        return LocalRows(batch.schema, (batch,) if batch.num_rows else ())

    @property
    def table(self) -> pa.Table:
        """All rows."""
        return pa.Table.from_batches(self.batches, self.schema)

    @property
    def batch(self) -> pa.RecordBatch:
        """All rows."""
        if not self.batches:
            return no_rows(self.schema)
        return self.batches[0] if len(self.batches) == 1 else pa.concat_batches(self.batches)


@dataclass(frozen=True)
class _Stage:
    rows: LocalRows
    sides: Mapping[str, LocalRows]
    observed: Mapping[str, Observed]
    in_driver: ClassVar[bool] = True

    def side(self, name: str) -> LocalRows:
        if name not in self.sides:
            raise JobError(f"there is no side output {name!r}; there are {', '.join(self.sides) or 'none'}")
        return self.sides[name]

    def preceded_by(self, first: _Stage, key: Key | None = None) -> _Stage:
        sides = {name: _joined(first.sides[name], rows) for name, rows in self.sides.items()}
        older = LocalRows(first.rows.schema, tuple(not_replaced(first.rows.batches, self.rows.batches, key)))
        return _Stage(_joined(older, self.rows), sides, self.observed)

    def release(self) -> None:
        pass


class LocalExecutor:
    """See ``Executor``. ``run``: what tasks run instead of ``run_partitions``; ``partitions_per_task``: how many
    partitions run together."""

    def __init__(
        self,
        default_parallelism: int = 1,
        run: RunPartitions | None = None,
        partitions_per_task: int = TOGETHER_MAX,
    ) -> None:
        self.default_parallelism = default_parallelism
        self._run_partitions: RunPartitions = run_partitions if run is None else run
        self._together = partitions_per_task
        self._observed: dict[str, Observed] = {}

    # -- rows ------------------------------------------------------------------------------------------

    def columns(self, rows: LocalRows) -> list[str]:
        """Column names, including ``row_kind`` if there is one."""
        return list(rows.schema.names)

    def schema(self, rows: LocalRows) -> pa.Schema:
        """The columns except ``row_kind``, all nullable, timestamps in UTC."""
        return pa.schema([pa.field(one.name, one.type) for one in rows.schema if one.name != ROW_KIND_COLUMN])

    def input_spec(
        self,
        rows: LocalRows,
        key: tuple[str, ...],
        event_time: str | None,
        name: str,
        broadcast: bool,
        changes: Changelog | None = None,
    ) -> InputSpec:
        """The specification of an operator's input."""
        unknown = RETRACT if has_kinds(rows.schema.names, name) else INSERT_ONLY
        known = unknown if rows.changes is None else rows.changes
        changes = known if changes is None else changes
        return InputSpec(self.schema(rows), key, event_time, changes, name, broadcast)

    def no_rows(self, uid: str, schema: pa.Schema) -> LocalRows:
        """An empty frame with the output columns ``schema`` and ``row_kind``."""
        if ROW_KIND_COLUMN in schema.names:
            raise SchemaError(
                f"operator '{uid}': its output has a column '{ROW_KIND_COLUMN}', a reserved name; rename it"
            )
        return LocalRows(output_schema(schema))

    def no_rows_like(self, rows: LocalRows) -> LocalRows:
        """An empty frame with the columns of ``rows``."""
        return LocalRows(rows.schema)

    def transformed(
        self, node: Transform | Union, inputs: Sequence[LocalRows], kinds: bool = False
    ) -> LocalRows:
        """The output of a row-by-row node; ``kinds``: a selection keeps ``row_kind`` even if it does not list it."""
        if isinstance(node, Union):
            if any(ROW_KIND_COLUMN in one.schema.names for one in inputs):
                inputs = [self.with_kinds(one) for one in inputs]
            return functools.reduce(_by_name, inputs)
        (rows,) = inputs
        return LocalRows.of(transformed(node, rows.batch))

    def observe(self, rows: LocalRows, name: str, event_time: str) -> LocalRows:
        """See ``Executor``: here all rows are read at once."""
        self._observed[name] = Observed(self.highest(rows, event_time))
        return rows

    def highest(self, rows: LocalRows, event_time: str) -> int | None:
        """The highest event time that may advance a watermark, in microseconds; reads the rows."""
        return highest_event_time(rows.batch.column(event_time))

    def kept(self, rows: LocalRows, name: str) -> LocalRows:
        """``rows`` without those that are marked as dropped; counts these."""
        if DROPPED not in rows.schema.names:
            return rows
        self._observed[name] = self.dropped(rows)
        good = LocalRows.of(rows.batch.filter(pc.is_null(rows.batch.column(DROPPED))))
        return _selected(good, [column for column in rows.schema.names if column != DROPPED])

    def dropped(self, rows: LocalRows) -> Observed:
        """The number of rows that are marked as dropped, and one mark."""
        marks = pc.drop_null(rows.batch.column(DROPPED))
        return Observed(len(marks), pc.min(marks).as_py())

    def without_kinds(self, rows: LocalRows) -> LocalRows:
        """The rows without ``row_kind``."""
        if ROW_KIND_COLUMN not in rows.schema.names:
            return rows
        return _selected(rows, [name for name in rows.schema.names if name != ROW_KIND_COLUMN])

    def with_kinds(self, rows: LocalRows) -> LocalRows:
        """The rows with ``row_kind``; rows without one become insertions."""
        if ROW_KIND_COLUMN in rows.schema.names:
            return rows
        kinds = (pa.array(["+I"] * one.num_rows, pa.string()) for one in rows.batches)
        batches = (one.append_column(_KIND, kind) for one, kind in zip(rows.batches, kinds, strict=True))
        return LocalRows(rows.schema.append(_KIND), tuple(batches))

    def with_changes(self, rows: LocalRows, changes: Changelog) -> LocalRows:
        """The rows, annotated with ``changes``, which ``input_spec`` then uses."""
        return replace(rows, changes=changes)

    def concat(self, first: LocalRows, then: LocalRows, key: Key | None = None) -> LocalRows:
        """All rows of both, which have the same columns; ``key``: they are upserts by these columns, so rows of
        ``first`` that rows of ``then`` replace are left out."""
        older = tuple(not_replaced(first.batches, then.batches, key))
        return _joined(LocalRows(first.schema, older), then)

    def before(self, what: str, rows: Any, like: LocalRows) -> LocalRows:
        """``rows``, to be read before those of ``like``, with the same columns."""
        given = self.check_static(what, rows)
        if ROW_KIND_COLUMN in like.schema.names and ROW_KIND_COLUMN not in given.schema.names:
            batch = given.batch
            kinds = pa.array(["+I"] * batch.num_rows, pa.string())
            given = LocalRows.of(batch.append_column(_KIND, kinds))
        check_columns(what, _types(given.schema), _types(like.schema))
        return _selected(given, like.schema.names)

    def check_static(self, name: str, rows: Any) -> LocalRows:
        """``rows`` from which source or operator ``name`` starts, checked."""
        if isinstance(rows, pa.RecordBatch):
            return LocalRows.of(rows)
        if not isinstance(rows, LocalRows):
            raise JobError(f"'{name}' would start from {rows!r}; give a RecordBatch")
        return rows

    def initial_of(self, uid: str, given: Any, inputs: Sequence[LocalRows]) -> InitialRows:
        """What operator ``uid`` starts from, checked."""
        if isinstance(given, Mapping):
            return InitialRows(
                values={str(name): self.check_static(uid, rows) for name, rows in given.items()}
            )
        each = list(given) if isinstance(given, list | tuple) else [given]
        if len(each) != len(inputs) or not any(one is not None for one in each):
            raise JobError(
                f"operator '{uid}' has {len(inputs)} inputs, and initial_state is {given!r}; give for each of them "
                "rows or None, or {name of a state: rows of its values}"
            )
        rows = [
            self.no_rows_like(own) if one is None else self.before(f"operator '{uid}'", one, own)
            for one, own in zip(each, inputs, strict=True)
        ]
        return InitialRows(rows=rows)

    # -- operators -------------------------------------------------------------------------------------

    def shipped_copy(self, uid: str, operator: Operator) -> Operator:
        """A copy of the operator."""
        return copies_of(operator)()

    @property
    def has_exchanges(self) -> bool:
        """Whether rows are exchanged, so that dropping rows that no ranking needs saves work."""
        return False

    def stateless(self, spec: TaskSpec, output: pa.Schema, rows: LocalRows) -> LocalRows:
        """The output of a stateless operator, which runs when its rows are read."""
        (given,) = spec.inputs
        parts = [InputBatch(*payload_of(given, batch)) for batch in rows.batches]
        out = run_stateless(with_copy(spec, copies_of(spec.operator)), iter(parts))
        made = tuple(one for one in out if isinstance(one, pa.RecordBatch) and one.num_rows)
        return LocalRows(output_schema(output), made)

    def plan(self, chain: Sequence[Prepared], inputs: Sequence[LocalRows | Feed], done: bool) -> TaskPlan:
        """A stage of ``chain`` over ``inputs``; ``done``: the first step of its first operator has run in the
        upstream task."""
        return TaskPlan(chain, inputs, done)

    def run(
        self, planned: Any, stateless: Collection[str]
    ) -> tuple[_Stage, list[tuple[Prepared, list[CommitRecord]]]]:
        """Run a stage and the stages that feed it; returns its rows, and for each operator the reports of its
        partitions."""
        made = run_locally(
            planned, lambda rows: rows.batches, self._run_partitions, copies_of, together=self._together
        )
        sent = planned.chain[-1].sent
        stage = _Stage(
            LocalRows(output_schema(sent.schema), tuple(made.rows)),
            {
                name: LocalRows(output_schema(sent.side_outputs[name]), tuple(batches))
                for name, batches in made.sides.items()
            },
            dict(self._observed),
        )
        return stage, made.reports

    def ran(self, metrics: Mapping[str, NodeMetrics]) -> None:
        """Display the metrics of operators that have run, where the engine has a place for them."""

    # -- micro-batches ---------------------------------------------------------------------------------

    def micro_batch(self, batch_id: int, stateless: Collection[str]) -> AbstractContextManager[Any]:
        """A context around everything that a micro-batch does."""
        self._observed = {}
        return nullcontext()

    def withdraw(self, rows: LocalRows, owner: str) -> None:
        """Invalidate the rows named ``owner``, since the micro-batch is over."""

    def check_sink(self, sink: Any, rows: LocalRows) -> None:
        """See ``Executor``: a sink of ours may have the methods ``check_changes`` and ``check``."""
        check_changes, check = getattr(sink, "check_changes", None), getattr(sink, "check", None)
        if callable(check_changes) and rows.changes is not None:
            check_changes(rows.changes)
        if callable(check):
            check(rows.schema)

    def write(self, sink: Any, name: str, rows: LocalRows, batch: Any) -> None:
        """See ``Executor``: a sink of ours gets an Arrow table, a function the rows as they are."""
        write_arrow = getattr(sink, "write_arrow_micro_batch", None)
        if callable(write_arrow):
            write_arrow(rows.table, batch, name, rows.changes)
        else:
            (sink if callable(sink) else sink.write)(rows, batch.batch_id)

    def describe(self, error: Exception) -> str:
        """One line that describes an error of the engine or of user code, raised while the graph is checked."""
        return f"{type(error).__name__}: {error}"


def _selected(rows: LocalRows, names: Sequence[str]) -> LocalRows:
    schema = pa.schema([rows.schema.field(name) for name in names])
    return LocalRows(schema, tuple(batch.select(list(names)) for batch in rows.batches))


def _by_name(first: LocalRows, then: LocalRows) -> LocalRows:
    if sorted(first.schema.names) != sorted(then.schema.names):
        raise SchemaError(
            f"the inputs have other columns: ({', '.join(first.schema.names)}) and ({', '.join(then.schema.names)})"
        )
    return _joined(first, _selected(then, first.schema.names))


def _joined(first: LocalRows, then: LocalRows) -> LocalRows:
    later = tuple(
        pa.RecordBatch.from_arrays(
            [column.cast(field.type) for column, field in zip(batch.columns, first.schema, strict=True)],
            schema=first.schema,
        )
        for batch in then.batches
    )
    return LocalRows(first.schema, first.batches + later)


def _types(schema: pa.Schema) -> dict[str, str]:
    return {field.name: str(field.type) for field in schema}
