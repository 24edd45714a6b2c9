"""What runs in Spark's Python workers: rows of one partition in, output rows and the commit record out.

Owns: ``PartitionTask``, the function given to ``mapInArrow``, and the settling of a worker process.
Invariant: a task works for the partition its rows name, never for the one Spark's task context names (that
one shifts when the stage stands second in a union), and refuses rows of two partitions. The first and the last row
that an attempt sends name it, so that the driver can tell its rows from another attempt's.
Must not import pyspark; what is slow to import is imported when the task runs.
"""

from __future__ import annotations

import gc
import itertools
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from asyncstate.changelog import ROW_KIND_COLUMN, ROW_KIND_TEXTS
from asyncstate.errors import AsyncStateError, JobError, SchemaError
from asyncstate.spark.columns import COMMIT, MARKER_TAG, OUTPUT, ROUTE, SIDE, TAG_BITS, TAG_MASK, struct_name
from asyncstate.spark.failures import mark

if TYPE_CHECKING:
    from asyncstate.operator import InputSpec
    from asyncstate.runtime.after import After
    from asyncstate.runtime.spec import CommitRecord, InputBatch, OutBatch, TaskSpec

RunPartition = Callable[["TaskSpec", int, "Iterator[InputBatch]"], "Iterator[OutBatch | CommitRecord]"]

_KIND_TEXTS = pa.array(ROW_KIND_TEXTS, pa.string())
# A batch whose inputs alternate more often than this is split by input with a copy instead of by slices.
_MAX_SLICES = 16
# Rows a list of output: beyond some hundred there is nothing to gain, and Spark holds a list in one piece.
_LIST_ROWS = 1_000
_LIST_BYTES = 1 << 20
ROW_BYTES: Final = "arrow_row_bytes_peak"
"""Of a commit record's peaks: bytes of a row that came from Spark, the mean of the widest batch."""
_TELLING_ROWS, _TELLING_BYTES = 100, 1 << 20  # of a batch of fewer rows the buffers' own size counts
# Young collections are counted in allocations; the default of 700 makes them run all the time under
# record-grain operators, whose objects live for one batch.
_GC_YOUNG_ALLOCATIONS = 50_000

_settled = False


@dataclass(frozen=True)
class PartitionTask:
    """``mapInArrow``'s function: runs ``spec`` on the partition that the rows name.

    ``after`` makes of the operator's main output the rows that leave. ``wire`` is the schema Spark expects back: lists
    of structs, with the output columns and ``row_kind``, the commit column, and such lists for each side output.
    """

    spec: TaskSpec
    wire: pa.Schema
    run: RunPartition | None = None
    after: After | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The attempt's id, output rows, then the CommitRecord; the first and the last are one row each.

        Raises AsyncStateError marked for the driver.
        """
        try:
            yield from self._run(batches)
        except AsyncStateError as error:
            mark(error)
            raise

    def _run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from asyncstate.runtime.spec import CommitRecord, SideBatch

        run = self.run or _run_partition()
        settle_worker()
        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            raise JobError(f"operator '{self.spec.uid}': a task got no row, not even its marker; {_REPORT}")
        partition = int(first.column(ROUTE)[0].as_py()) >> TAG_BITS
        widths: list[float] = []
        rows = split_inputs(self.spec, partition, _measured(itertools.chain([first], batches), widths))
        attempt = uuid.uuid4().bytes
        yield self._commit_row(attempt)
        record: CommitRecord | None = None
        for out in run(self.spec, partition, rows):
            if isinstance(out, CommitRecord):
                record = out
                record.peaks[ROW_BYTES] = max(widths, default=0.0)
            elif isinstance(out, SideBatch):
                if out.num_rows:
                    yield self._to_wire(SIDE + out.output, out.batch)
            else:
                left = out if self.after is None else self.after(out)
                if left.num_rows:
                    yield self._to_wire(OUTPUT, left)
        if record is None:
            raise JobError(f"operator '{self.spec.uid}', partition {partition}: no commit record; {_REPORT}")
        yield self._commit_row(attempt + record.to_bytes())

    def _to_wire(self, name: str, out: pa.RecordBatch) -> pa.RecordBatch:
        """Some rows to a list: Spark makes, copies and keeps an object for each row that it gets."""
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


_REPORT = "nothing was committed; start the query again, and report this if it comes back"


def _measured(batches: Iterator[pa.RecordBatch], widths: list[float]) -> Iterator[pa.RecordBatch]:
    """The batches; ``widths`` gets the mean bytes of a row of each that is large enough to tell."""
    for batch in batches:
        size = batch.nbytes
        if batch.num_rows >= _TELLING_ROWS or size >= _TELLING_BYTES:
            widths.append(size / batch.num_rows)
        yield batch


def settle_worker() -> None:
    """Once a process: take everything imported so far out of the garbage collector's sight.

    Spark's worker runs a full collection after every task; over the modules' objects it costs more than the
    rest of a small task together.
    """
    global _settled
    if not _settled:
        _settled = True
        gc.set_threshold(_GC_YOUNG_ALLOCATIONS)
        gc.freeze()


def split_inputs(spec: TaskSpec, partition: int, batches: Iterator[pa.RecordBatch]) -> Iterator[InputBatch]:
    """The rows as batches of one input each, in arrival order, without markers and technical columns."""
    from asyncstate.runtime.spec import InputBatch

    regular = regular_inputs(spec.inputs)
    for batch in batches:
        route = batch.column(ROUTE).to_numpy()
        if (route >> TAG_BITS != partition).any():
            raise JobError(
                f"operator '{spec.uid}': a task got rows of partitions "
                f"{sorted(set((route >> TAG_BITS).tolist()))}, each task must have one; {_REPORT}"
            )
        for index, rows in _runs(route & TAG_MASK, batch, regular):
            if len(regular) > 1:
                rows = pa.RecordBatch.from_struct_array(rows.column(struct_name(index)))
            else:
                rows = rows.select(range(1, rows.num_columns)).rename_columns(sent_names(spec.inputs[index]))
            payload, kinds = payload_of(spec.inputs[index], rows)
            yield InputBatch(payload, kinds, index)


def sent_names(spec: InputSpec) -> list[str]:
    """The columns that an input sends, in their order."""
    return [*spec.row_schema.names, *([ROW_KIND_COLUMN] if spec.changelog and spec.local is None else [])]


def regular_inputs(inputs: Sequence[InputSpec]) -> list[int]:
    """The inputs whose rows go through the exchange: all but the broadcast one. A single one sends plain columns,
    several send a struct each."""
    return [index for index, spec in enumerate(inputs) if not spec.broadcast]


def _runs(
    tags: npt.NDArray[np.int32], batch: pa.RecordBatch, inputs: Sequence[int]
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Pairs of input index and its rows; slices where inputs alternate seldom: whole arrival order."""
    starts = np.flatnonzero(np.diff(tags, prepend=-1)).tolist()
    if len(starts) > _MAX_SLICES:
        for index in inputs:
            yield index, batch.filter(pa.array(tags == index))
        return
    for start, end in itertools.pairwise([*starts, len(tags)]):
        if tags[start] != MARKER_TAG:
            yield int(tags[start]), batch.slice(start, end - start)


def payload_of(spec: InputSpec, rows: pa.RecordBatch) -> tuple[pa.RecordBatch, npt.NDArray[np.int8] | None]:
    """The payload columns with the declared types, and the kinds (None where no row can be taken back)."""
    named = dict(zip(rows.schema.names, rows.columns, strict=True))
    schema = spec.row_schema
    columns = [cast(named[field.name], field.type) for field in schema]
    payload = (
        pa.RecordBatch.from_arrays(columns, schema=schema)
        if columns
        else pa.RecordBatch.from_struct_array(pa.array([{}] * rows.num_rows, pa.struct([])))
    )
    with_kinds = spec.changelog and spec.local is None
    return payload, _kinds(spec, named[ROW_KIND_COLUMN]) if with_kinds else None


def _kinds(spec: InputSpec, texts: pa.Array) -> npt.NDArray[np.int8]:
    codes = pc.index_in(texts, value_set=_KIND_TEXTS)
    if codes.null_count:
        wrong = texts.filter(pc.is_null(codes))[0].as_py()
        raise SchemaError(
            f"{spec.name}: column '{ROW_KIND_COLUMN}' has the value {wrong!r}; "
            f"write one of {', '.join(ROW_KIND_TEXTS)}, or drop the column if every row is an insert"
        )
    kinds: npt.NDArray[np.int8] = codes.to_numpy().astype(np.int8)
    return kinds


def cast(column: Any, wanted: pa.DataType) -> Any:
    """``column`` as ``wanted``; Spark sends timestamps in the session's zone, for us they are always UTC."""
    return column if column.type.equals(wanted) else column.cast(wanted)


def _run_partition() -> RunPartition:
    from asyncstate.runtime.task import run_partition

    return run_partition
