"""Record grain: rows and timers of one partition, one by one.

Owns: ``RecordRunner``.
Invariant: rows run in arrival order per key; timers after all rows, in order of time, until none is due.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

import pyarrow as pa

from asyncstate.changelog import RowKind
from asyncstate.execution import BatchFrame, ExecutionController, Record
from asyncstate.operator import MIN_WATERMARK, RecordOperator, Row, row_type
from asyncstate.runtime.context import TaskContext
from asyncstate.runtime.rows import (
    PreparedBatch,
    kinds_of,
    output_batch,
    python_rows,
    python_values,
    rows_to_columns,
)
from asyncstate.runtime.runner import Runner
from asyncstate.runtime.spec import InputBatch, TaskSpec
from asyncstate.state import DueTimer, KeyedTimers

_OUTPUT_ROWS: Final = 10_000
_SLICE_ROWS: Final = 2_000
_GROUP_BYTES: Final = 2


class RecordRunner(Runner):
    """Runs a ``RecordOperator``."""

    def __init__(
        self, spec: TaskSpec, context: TaskContext, controller: ExecutionController, operator: RecordOperator
    ) -> None:
        super().__init__(spec, context, controller)
        self._operator = operator
        self._timers = KeyedTimers(controller, spec.uid)
        self._fired = context.counter("timers_fired")
        self._frame = BatchFrame(
            spec.watermark, spec.processing_time, self._timers, list(context.output_schema.names)
        )
        self._row_types: list[type[Row]] = [row_type(given.schema) for given in spec.inputs]

    def run(self, batches: Iterator[InputBatch]) -> Iterator[pa.RecordBatch]:
        """See ``Runner``."""
        for prepared in self._prepared(batches):
            records = self._records(prepared)
            while chunk := list(islice(records, _SLICE_ROWS)):
                for record in chunk:
                    self.controller.submit(record)
                yield from self._outputs(_OUTPUT_ROWS)
        self.controller.drain()
        yield from self._fire_timers()
        self._pass_watermark()
        yield from self._outputs(1)

    def _records(self, prepared: PreparedBatch) -> Iterator[Record]:
        """One Record a row, keys encoded for the whole batch at once."""
        index = prepared.input_index
        columns = self._key_columns(prepared)
        codec = self._codecs[index]
        keys = codec.encode(columns) if columns else [b""] * prepared.batch.num_rows
        groups = [int(group).to_bytes(_GROUP_BYTES, "big") for group in range(self.spec.max_parallelism)]
        key_groups = codec.groups(columns).tolist() if columns else [0] * prepared.batch.num_rows
        key_values = (
            zip(*map(python_values, columns), strict=True)
            if columns
            else iter([()] * prepared.batch.num_rows)
        )
        times: list[Any] = prepared.times.tolist() if prepared.times is not None else [None] * len(keys)
        rows = map(self._row_types[index], python_rows(prepared.batch))
        frame, work = self._frame, self._operator.process
        self.keys += len(set(keys))
        for key, group, values, row, kind, time in zip(
            keys, key_groups, key_values, rows, kinds_of(prepared.kinds), times, strict=True
        ):
            yield Record(frame, groups[group], key, values, work, row, index, kind, time)

    def _fire_timers(self) -> Iterator[pa.RecordBatch]:
        """Rounds of due timers, until a round finds none: a timer may register others that are due already."""
        watermark = self.spec.watermark
        tick = MIN_WATERMARK
        found = watermark != MIN_WATERMARK
        while found:
            found = False
            for page in self._timers.due(self.context.key_groups, watermark, self.context.page_size):
                found = True
                for due in page:
                    if due.time != tick:
                        self.controller.end_epoch()
                        tick = due.time
                    self.controller.submit(self._timer_record(due))
                yield from self._outputs(_OUTPUT_ROWS)
            self.controller.drain()

    def _timer_record(self, due: DueTimer) -> Record:
        values, _ = self._codecs[0].decode_one(due.key)
        return Record(
            self._frame, due.group, due.key, values, self._on_timer, due, 0, RowKind.INSERT, due.time
        )

    def _on_timer(self, due: DueTimer, record: Record) -> Any:
        if not self._timers.claim(due):
            return None
        self._fired.add()
        return self._operator.on_timer(due.timer, record)

    def _pass_watermark(self) -> None:
        """``on_watermark`` has no key: state access there fails with a StateAccessError."""
        controller = self.controller
        record = Record(self._frame, b"", b"", (), self._operator.on_watermark, self.spec.watermark)
        record.out = controller.outputs
        controller.run_without_key(record)
        record.out = None

    def _outputs(self, at_least: int) -> Iterator[pa.RecordBatch]:
        if len(self.controller.outputs) < at_least:
            return
        rows = self.controller.take_outputs()
        self.rows_out += len(rows)
        schema = self.context.output_schema
        columns, kinds = rows_to_columns(rows, len(schema))
        yield output_batch(self.spec.uid, schema, columns, kinds, len(rows))
