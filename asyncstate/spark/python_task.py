"""Code that runs in Spark's Python workers: rows of one partition in, output rows and the commit record out.

Owns: ``PartitionTask``, the function given to ``mapInArrow``; ``StatelessTask``, that of a stateless operator, which
runs over the partitions that its input happens to have; and the setup of a worker process.
Invariant: a task works for the partition that its rows name, never for the one that Spark's task context names (that
one shifts when the stage is second in a union), and refuses rows of two partitions. The first and the last row that an
attempt sends name it, so that the driver can distinguish its rows from another attempt's.
Must not import pyspark; modules that are slow to import are imported when the task runs.
"""

from __future__ import annotations

import atexit
import collections
import gc
import itertools
import logging
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from asyncstate.driver.chain import REPORT, Link, RunPartitions, run_chain
from asyncstate.driver.sent_columns import cast, payload_of, sent_schema
from asyncstate.errors import JobError
from asyncstate.spark.column_types import (
    COMMIT,
    MARKER_TAG,
    OUTPUT,
    REPORTS,
    ROUTE,
    SIDE,
    TAG_BITS,
    TAG_MASK,
    slots_of,
)
from asyncstate.spark.reports import Received, Report, ShuffleWriter, pack
from asyncstate.spark.task_errors import marking, own_mark

if TYPE_CHECKING:
    from asyncstate.operator import InputSpec
    from asyncstate.runtime.rows.output_pipeline import OutputPipeline
    from asyncstate.runtime.task_spec import CommitRecord, InputBatch, OutBatch, TaskSpec

# A batch whose inputs alternate more often than this is split by input with a copy instead of by slices.
_MAX_SLICES = 16
# Rows per list of output: above some hundred there is nothing to gain, and Spark holds a list in one piece.
_LIST_ROWS = 1_000
_LIST_BYTES = 1 << 20
ROW_BYTES: Final = "arrow_row_bytes_peak"
"""A peak of a commit record: bytes of a row that came from Spark, the mean of the widest batch."""
_TELLING_ROWS, _TELLING_BYTES = 100, 1 << 20  # in a batch of fewer rows the buffers' fixed size dominates
# Collections of the youngest generation are triggered by allocations; with the default of 700 they run all the time
# under record-grain operators, whose objects live for one batch.
_GC_YOUNG_ALLOCATIONS = 50_000

_log = logging.getLogger(__name__)
_settled = False
_logged: set[tuple[str, str, str]] = set()
"""The counters of stateless operators that this worker has already reported, by job, uid and name."""


@dataclass(frozen=True)
class PartitionTask:
    """``mapInArrow``'s function: runs ``spec`` on the partition that the rows name.

    ``after`` transforms the operator's main output into the rows that leave it. ``then``: downstream operators with the
    same partitions that run in the same task; the rows that leave are those of the last one. ``wire`` is the schema
    Spark expects back: lists of structs, with the output columns and ``row_kind``, the commit column, and such lists
    for each side output. ``onward``: send the rows and the report to the next operator in the same Spark job instead.
    ``reports``: a Spark accumulator that also gets the report, as in the commit column.
    """

    spec: TaskSpec
    wire: pa.Schema
    run: RunPartitions | None = None
    after: OutputPipeline | None = None
    then: tuple[Link, ...] = ()
    onward: ShuffleWriter | None = None
    reports: Any = None
    mark: str = field(default_factory=own_mark)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The attempt's id, output rows, then the report; the first and the last are one row each. With ``onward``, the
        rows and the report, in one row for each task that gets rows.

        Raises AsyncStateError marked for the driver.
        """
        with marking(self.mark, f"the task of operator '{self.spec.uid}'"):
            yield from self._run(batches)

    def _run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from asyncstate.runtime.task_spec import CommitRecord, pack_records

        run = self.run
        if run is None:
            from asyncstate.runtime.partition.task import run_partitions

            run = run_partitions
        settle_worker()
        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            raise JobError(f"operator '{self.spec.uid}': a task got no rows, not even its marker; {REPORT}")
        partition = int(first.column(ROUTE)[0].as_py()) >> TAG_BITS
        widths: list[float] = []
        received = Received()
        given = _measured(_received(itertools.chain([first], batches), received), widths)
        attempt = uuid.uuid4().bytes
        if self.onward is None:
            yield self._commit_row(attempt)
        records: list[CommitRecord] = []
        links = (Link(self.spec, self.after), *self.then)
        own = range(partition, partition + 1)
        for out in run_chain(links, own, split_inputs(self.spec, partition, given), run):
            if isinstance(out, CommitRecord):
                records.append(out)
            elif out.num_rows:
                yield self._sent_on(out)
        collections.deque(
            given, maxlen=0
        )  # an operator need not read all rows, but all reports among them count
        records[0].peaks[ROW_BYTES] = max(widths, default=0.0)
        report = Report(
            self.spec.uid, partition, attempt, pack_records(records), received.read, received.carried
        )
        if self.onward is not None:
            yield self.onward.reports(report)
            return
        content = attempt + pack(report)
        if self.reports is not None:
            self.reports.add([content])
        yield self._commit_row(content)

    def _sent_on(self, out: OutBatch) -> pa.RecordBatch:
        from asyncstate.runtime.task_spec import SideBatch

        if isinstance(out, SideBatch):
            assert self.onward is None  # operators with side outputs are materialized
            return self._to_wire(SIDE + out.output, out.batch)
        return self._to_wire(OUTPUT, out) if self.onward is None else self.onward.rows(out)

    def _to_wire(self, name: str, out: pa.RecordBatch) -> pa.RecordBatch:
        """Several rows per list: Spark creates, copies and keeps an object for each row that it gets."""
        kind = self.wire.field(name).type
        columns = [
            cast(column, field.type) for column, field in zip(out.columns, kind.value_type, strict=True)
        ]
        rows = pa.StructArray.from_arrays(columns, fields=list(kind.value_type))
        step = max(1, min(_LIST_ROWS, _LIST_BYTES * out.num_rows // max(1, out.nbytes)))
        offsets = pa.array([*range(0, out.num_rows, step), out.num_rows], pa.int32())
        lists = pa.ListArray.from_arrays(offsets, rows, type=kind)
        return self._sent(name, lists)

    def _commit_row(self, content: bytes) -> pa.RecordBatch:
        return self._sent(COMMIT, pa.array([content], pa.binary()))

    def _sent(self, name: str, values: pa.Array) -> pa.RecordBatch:
        """Rows with one column; the others are null."""
        columns = [values if field.name == name else pa.nulls(len(values), field.type) for field in self.wire]
        return pa.RecordBatch.from_arrays(columns, schema=self.wire)


@dataclass(frozen=True)
class StatelessTask:
    """``mapInArrow``'s function: runs ``spec`` over any rows of its input. ``wire`` has the output columns and
    ``row_kind``."""

    spec: TaskSpec
    wire: pa.Schema
    mark: str = field(default_factory=own_mark)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The output rows. Raises AsyncStateError marked for the driver."""
        with marking(self.mark, f"the task of operator '{self.spec.uid}'"):
            yield from self._run(batches)

    def _run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from asyncstate.runtime.partition.task import run_stateless
        from asyncstate.runtime.task_spec import InputBatch

        settle_worker()
        (spec,) = self.spec.inputs
        names = sent_schema(spec).names
        given = (InputBatch(*payload_of(spec, batch.rename_columns(names))) for batch in batches)
        for out in run_stateless(self.spec, given):
            if isinstance(out, pa.RecordBatch):
                columns = [
                    cast(column, field.type) for column, field in zip(out.columns, self.wire, strict=True)
                ]
                yield pa.RecordBatch.from_arrays(columns, schema=self.wire)
            else:
                _tell(self.spec, out.counters)


def _tell(spec: TaskSpec, counters: Mapping[str, int]) -> None:
    """Log the operator's counters once per worker: a sum over runs that may be repeated would be wrong."""
    for name, value in counters.items():
        counter = (spec.job_id, spec.uid, name)
        if value and counter not in _logged:
            _logged.add(counter)
            _log.warning(
                "operator '%s' keeps no state, so its counters are not in the progress: %s is %d in one part of "
                "batch %d. Each worker logs this once.",
                spec.uid,
                name,
                value,
                spec.batch_id,
            )


def _measured(batches: Iterator[pa.RecordBatch], widths: list[float]) -> Iterator[pa.RecordBatch]:
    """The batches; appends to ``widths`` the mean bytes per row of each batch that is large enough to measure."""
    for batch in batches:
        size = batch.nbytes
        if batch.num_rows >= _TELLING_ROWS or size >= _TELLING_BYTES:
            widths.append(size / batch.num_rows)
        yield batch


def _received(batches: Iterator[pa.RecordBatch], received: Received) -> Iterator[pa.RecordBatch]:
    """The batches; adds to ``received`` the reports and the attempt ids that come with their rows."""
    for batch in batches:
        if batch.schema.names[-1] == REPORTS:
            received.add(batch.column(batch.num_columns - 1).drop_null().to_pylist())
        yield batch


def settle_worker() -> None:
    """Once per process: move everything imported so far out of the garbage collector's reach.

    Spark's worker runs a full collection after every task; over the modules' objects it costs more than the rest of a
    small task. When the process ends they are collectable again: otherwise modules would not be deleted, and native
    ones would report what is left as leaks.
    """
    global _settled
    if not _settled:
        _settled = True
        gc.set_threshold(_GC_YOUNG_ALLOCATIONS)
        gc.freeze()
        atexit.register(gc.unfreeze)
        quiet_end(sys.modules["__main__"])


def quiet_end(daemon: ModuleType) -> None:
    """In a worker of ``daemon``, if that is PySpark's: suppress the trace of an answer that nobody waits for.

    Spark closes the connection of a worker that was idle for a minute, of all workers when it stops, and of a worker
    whose rows are no longer needed. PySpark treats that as a failed task, and prints that it could not report it.
    """
    if getattr(daemon.__spec__, "name", None) == "pyspark.daemon":
        daemon.print = _printed_unless_gone  # type: ignore[attr-defined]  # before the built-in one


def _printed_unless_gone(*values: object, **how: Any) -> None:
    if not isinstance(sys.exc_info()[1], ConnectionError):
        print(*values, **how)


def split_inputs(spec: TaskSpec, partition: int, batches: Iterator[pa.RecordBatch]) -> Iterator[InputBatch]:
    """The rows as batches of one input each, in arrival order, without markers and technical columns."""
    from asyncstate.runtime.task_spec import InputBatch

    regular = regular_inputs(spec.inputs)
    slots = dict(zip(regular, slots_of([spec.inputs[index] for index in regular]), strict=True))
    for batch in batches:
        route = batch.column(ROUTE).to_numpy()
        if (route >> TAG_BITS != partition).any():
            raise JobError(
                f"operator '{spec.uid}': a task got rows of partitions {sorted(set((route >> TAG_BITS).tolist()))}, "
                f"each task must have exactly one; {REPORT}"
            )
        for index, rows in _runs(route & TAG_MASK, batch, regular):
            given = spec.inputs[index]
            rows = rows.select([1 + slot for slot in slots[index]]).rename_columns(sent_schema(given).names)
            payload, kinds = payload_of(given, rows)
            yield InputBatch(payload, kinds, index)


def regular_inputs(inputs: Sequence[InputSpec]) -> list[int]:
    """The inputs whose rows go through the exchange: all but the broadcast one."""
    return [index for index, spec in enumerate(inputs) if not spec.broadcast]


def _runs(
    tags: npt.NDArray[np.int32], batch: pa.RecordBatch, inputs: Sequence[int]
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Pairs of input index and its rows; slices where inputs alternate seldom: the arrival order is kept."""
    starts = np.flatnonzero(np.diff(tags, prepend=-1)).tolist()
    if len(starts) > _MAX_SLICES:
        for index in inputs:
            yield index, batch.filter(pa.array(tags == index))
        return
    for start, end in itertools.pairwise([*starts, len(tags)]):
        if tags[start] != MARKER_TAG:
            yield int(tags[start]), batch.slice(start, end - start)
