"""Upserts as they leave a task: for each upsert key the last change of the micro-batch.

Owns: ``LastChanges``.
Invariant: per upsert key one row leaves the task, the last one emitted; the consumer of the rows needs no order.
All rows of a key come from one task, since the upsert key contains the columns that route the operator.
Must not import Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from asyncstate.changelog import ROW_KIND_COLUMN
from asyncstate.operator import InputSpec, OutputSpec
from asyncstate.runtime.rows.input_buffer import SpillingInputBuffer
from asyncstate.runtime.rows.prepared_rows import PreparedBatch, kind_codes, output_batch
from asyncstate.runtime.task_spec import OutBatch, SideBatch, TaskSpec


class LastChanges:
    """The output of one operator and partition; ``rows_max``: how many rows like those of a batch are processed
    together. ``folder``: where rows that exceed memory are spilled."""

    def __init__(
        self, spec: TaskSpec, output: OutputSpec, rows_max: Callable[[pa.RecordBatch], int], folder: str
    ) -> None:
        self._spec = spec
        self._schema = output.schema
        self._changes = output.changes
        schema = pa.schema([field.with_nullable(True) for field in output.schema])
        self._rows = InputSpec(schema, output.changes.upsert_key or (), name="the output")
        self._codec = self._rows.key_codec(spec.max_parallelism)
        self._rows_max = rows_max
        self._folder = folder
        self.left_out = 0
        """Number of rows that another row of their key has replaced."""

    def of(self, out: Iterator[OutBatch]) -> Iterator[OutBatch]:
        """The last change of each key, after all of ``out`` has arrived; rows of side outputs as they arrive."""
        first: pa.RecordBatch | None = None
        buffer: SpillingInputBuffer | None = None
        try:
            for batch in out:
                if isinstance(batch, SideBatch):
                    yield batch
                elif first is None and buffer is None:
                    first = batch
                else:
                    if buffer is None and first is not None:
                        buffer = self._input_buffer()
                        self._add(buffer, first)
                        first = None
                    assert buffer is not None
                    self._add(buffer, batch)
            if buffer is not None:
                yield from map(self._last, buffer.parts())
            elif first is not None:
                yield first if self._spec.operator.nets_output else self._last(self._prepared(first))
        finally:
            if buffer is not None:
                buffer.close()

    def _input_buffer(self) -> SpillingInputBuffer:
        return SpillingInputBuffer(
            self._rows,
            0,
            (),
            waits=True,
            rows_max=self._rows_max,
            memory_bytes=self._spec.config.shares.gathered,
            folder=self._folder,
            chosen=lambda rows: rows,
        )

    def _add(self, buffer: SpillingInputBuffer, batch: pa.RecordBatch) -> None:
        for _ in buffer.add(self._prepared(batch)):
            raise AssertionError("buffered rows stay until all rows of their key have arrived")

    def _prepared(self, batch: pa.RecordBatch) -> PreparedBatch:
        payload = pa.RecordBatch.from_arrays(batch.columns[:-1], schema=self._rows.schema)
        return PreparedBatch(payload, kind_codes(batch.column(ROW_KIND_COLUMN)), None, 0, 0)

    def _last(self, rows: PreparedBatch) -> pa.RecordBatch:
        columns = [rows.batch.column(name) for name in self._rows.key]
        keys = self._codec.group(columns, num_rows=rows.batch.num_rows)
        last = np.sort(keys.last_rows())
        self.left_out += rows.batch.num_rows - len(last)
        chosen = rows.take(last)
        return output_batch(
            self._spec.uid, self._schema, chosen.batch.columns, chosen.kinds, len(last), None, self._changes
        )
