"""The broadcast input: rows that every partition handles, before its own rows of the micro-batch.

Owns: the form in which those rows travel in a ``TaskSpec``, and ``BroadcastRows``, which runs them.
Invariants: every partition runs the same rows in the same order; a row has ended, with all its notifications,
before the next one starts.
Must not import Spark.

Source: Flink's ``BroadcastProcessFunction`` and ``applyToKeyedState``; the notifications are FLIP's
``NOTIFY_STATEFUL_SETS``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa

from asyncstate.changelog import ROW_KIND_COLUMN
from asyncstate.codec import KeyCodec
from asyncstate.errors import JobError
from asyncstate.execution import BatchFrame, BroadcastRecord, ExecutionController, Record
from asyncstate.operator import InputSpec, RecordOperator, row_type
from asyncstate.runtime.context import TaskContext
from asyncstate.runtime.rows import PreparedBatch, key_values, kinds_of, prepare, python_rows
from asyncstate.runtime.spec import InputBatch, TaskSpec
from asyncstate.runtime.stored_keys import stored_keys

_NOTIFIED_KEYS: Final = 2_000  # between two looks at the output


def pack_broadcast(
    uid: str, spec: InputSpec, batches: Iterable[InputBatch], limit_bytes: int
) -> bytes | None:
    """The rows of the broadcast input ``spec`` as ``TaskSpec.broadcast`` has them; None if there are none.

    An Arrow stream: the payload columns, then the kinds as int8 codes in the column ``row_kind``. Raises JobError
    if it becomes longer than ``limit_bytes``.
    """
    schema = spec.schema.append(pa.field(ROW_KIND_COLUMN, pa.int8()))
    sink = pa.BufferOutputStream()
    rows = 0
    with pa.ipc.new_stream(sink, schema) as stream:
        for given in batches:
            rows += given.batch.num_rows
            kinds = given.kinds if given.kinds is not None else np.zeros(given.batch.num_rows, np.int8)
            columns = [*given.batch.columns, pa.array(kinds, pa.int8())]
            stream.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
            if sink.tell() > limit_bytes:
                raise JobError(
                    f"operator '{uid}': {rows} rows of {spec.name} have {sink.tell()} bytes, more than "
                    f"async-state.broadcast-size-limit ({limit_bytes}), and every task gets all of them. Send fewer "
                    "rows or columns in a micro-batch, raise the limit, or join them as an ordinary input with a key"
                )
    return sink.getvalue().to_pybytes() if rows else None


def unpack_broadcast(packed: bytes, input_index: int) -> Iterator[InputBatch]:
    """The inverse of ``pack_broadcast``."""
    with pa.ipc.open_stream(packed) as stream:
        for batch in stream:
            kinds = batch.column(ROW_KIND_COLUMN).to_numpy()
            yield InputBatch(batch.select(batch.schema.names[:-1]), kinds, input_index)


class BroadcastRows:
    """The broadcast rows of one partition in one micro-batch, as records."""

    def __init__(
        self,
        spec: TaskSpec,
        context: TaskContext,
        controller: ExecutionController,
        operator: RecordOperator,
        frame: BatchFrame,
    ) -> None:
        self._spec = spec
        self._context = context
        self._controller = controller
        self._operator = operator
        self._frame = frame

    def run(self, count: Callable[[PreparedBatch, bool], None]) -> Iterator[None]:
        """Run all rows. Stops where output may be taken.

        ``count`` gets each batch and whether this partition is the one to count its rows: the sums over the
        partitions are then those of the input.
        """
        packed, index = self._spec.broadcast, self._operator.broadcast_input
        if packed is None or index is None:
            return
        first = self._context.key_groups.start == 0
        for given in unpack_broadcast(packed, index):
            prepared = prepare(self._spec.uid, self._spec.inputs[index], given)
            count(prepared, first)
            for record in self._records(prepared):
                self._controller.submit(record)
                self._controller.drain()
                if self._operator.notify_stateful_sets:
                    yield from self._notify(record)

    def _records(self, prepared: PreparedBatch) -> Iterator[BroadcastRecord]:
        index = prepared.input_index
        rows = map(row_type(self._spec.inputs[index].schema), python_rows(prepared.batch))
        kinds = kinds_of(prepared.kinds)
        times: list[Any] = prepared.times.tolist() if prepared.times is not None else [None] * len(kinds)
        work = self._operator.process_broadcast
        for row, kind, time in zip(rows, kinds, times, strict=True):
            yield BroadcastRecord(self._frame, work, row, index, kind, time)

    def _notify(self, broadcast: BroadcastRecord) -> Iterator[None]:
        """Show the row to every key with state, many at once as far as the controller lets them overlap."""
        controller, context = self._controller, self._context
        notified = context.counter("keys_notified")
        work = self._operator.process_notification
        seen = key_values(context.key_schema.types)
        keys = stored_keys(
            controller, context.keyed_state_ids, context.key_groups, self._key_codec(), context.page_size
        )
        for number, key in enumerate(keys, 1):
            notified.add()
            controller.submit(
                Record(
                    self._frame,
                    key.group,
                    key.encoded_key,
                    seen(key.values),
                    work,
                    broadcast.item,
                    broadcast.input_index,
                    broadcast.row_kind,
                    broadcast.timestamp,
                )
            )
            if number % _NOTIFIED_KEYS == 0:
                yield
        controller.drain()
        yield

    def _key_codec(self) -> KeyCodec:
        schema = self._context.key_schema
        return KeyCodec(list(schema.types), list(schema.names), self._spec.max_parallelism)
