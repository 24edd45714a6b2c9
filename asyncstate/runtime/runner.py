"""What the two grains share: the inputs, the counts, the output of one partition in one micro-batch.

Owns: ``Runner``.
Invariant: an operator sees the rows of a partition first, then the watermark; nothing after it.
Must not import Spark.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from asyncstate.codec import KeyCodec
from asyncstate.execution import ExecutionController
from asyncstate.local_phase import local_rows
from asyncstate.runtime.context import TaskContext
from asyncstate.runtime.rows import PreparedBatch, prepare
from asyncstate.runtime.spec import InputBatch, TaskSpec


class Runner(ABC):
    """Feeds one operator on one partition."""

    def __init__(self, spec: TaskSpec, context: TaskContext, controller: ExecutionController) -> None:
        self.spec = spec
        self.context = context
        self.controller = controller
        self.rows_in = 0
        self.rows_out = 0
        self.local_rows_in = 0
        self.keys = 0
        self.max_event_times: list[int | None] = [None] * len(spec.inputs)
        self._codecs = [
            KeyCodec([field.type for field in given.key_schema], list(given.key), spec.max_parallelism)
            for given in spec.inputs
        ]

    @abstractmethod
    def run(self, batches: Iterator[InputBatch]) -> Generator[pa.RecordBatch]:
        """Run the operator over ``batches`` and the watermark; gives the output."""

    def _prepared(self, batches: Iterator[InputBatch]) -> Iterator[PreparedBatch]:
        for given in batches:
            prepared = prepare(self.spec.uid, self.spec.inputs[given.input_index], given)
            self._count(prepared)
            self._count_local(given)
            if prepared.batch.num_rows:
                yield prepared
            self.controller.flush()  # the next batch may be long in coming

    def _count(self, prepared: PreparedBatch, rows: bool = True) -> None:
        """Count the batch's rows, unless another partition counts them, and note its times."""
        if rows:
            self.rows_in += prepared.batch.num_rows + prepared.null_event_times
            if prepared.null_event_times:
                self.context.counter("null_event_times").add(prepared.null_event_times)
        index, newest = prepared.input_index, prepared.max_event_time
        known = self.max_event_times[index]
        if newest is not None:
            self.max_event_times[index] = newest if known is None else max(known, newest)

    def _count_local(self, given: InputBatch) -> None:
        """Where rows were put together before they came, count what they were made of."""
        spec = self.spec.inputs[given.input_index]
        if spec.local is None:
            return
        rows = local_rows(given.batch)
        self.local_rows_in += int(rows.sum())
        times = given.batch.column(spec.event_time) if spec.event_time is not None else None
        if times is not None and times.null_count:
            without = pc.is_null(times).to_numpy(zero_copy_only=False)
            # Each row that came was counted as one.
            self.context.counter("null_event_times").add(int((rows[without] - 1).sum()))

    def _key_columns(self, prepared: PreparedBatch) -> list[pa.Array]:
        return [prepared.batch.column(name) for name in self.spec.inputs[prepared.input_index].key]
