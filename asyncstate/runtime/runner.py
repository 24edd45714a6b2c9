"""What the two grains share: the inputs, the counts, the output of one partition in one micro-batch.

Owns: ``Runner``.
Invariant: an operator sees the rows of a partition first, then the watermark; nothing after it.
Must not import Spark.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator

import pyarrow as pa

from asyncstate.codec import KeyCodec
from asyncstate.execution import ExecutionController
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

    def _key_columns(self, prepared: PreparedBatch) -> list[pa.Array]:
        return [prepared.batch.column(name) for name in self.spec.inputs[prepared.input_index].key]
