"""Record grain: processes rows and timers of one partition one by one.

Owns: ``RecordRunner``.
Invariant: the phases of ``RecordRunner.run`` run one after the other in both modes, each when the previous one has
ended; within a phase the records of a key run in order.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, Final

import pyarrow as pa

from asyncstate.changelog import RowKind
from asyncstate.codec import group_prefixes
from asyncstate.execution import (
    BLOCK_ROWS,
    AnyRow,
    BatchFrame,
    BroadcastRecord,
    ExecutionController,
    GuardedRecord,
    OutputRow,
    Record,
    SideRow,
    keeping_errors,
)
from asyncstate.operator import MIN_WATERMARK, RecordOperator, Row, TimeDomain, key_type, row_type
from asyncstate.runtime.partition.broadcast_inputs import broadcast_rows, stored_keys
from asyncstate.runtime.partition.runner import Runner, clean_up
from asyncstate.runtime.partition.task_context import TaskContext
from asyncstate.runtime.rows.event_time_merge import EventTimeMerge
from asyncstate.runtime.rows.prepared_rows import (
    PreparedBatch,
    key_values,
    kinds_of,
    python_rows,
    python_values,
    rows_batch,
)
from asyncstate.runtime.task_spec import InputBatch, OutBatch, SideBatch, TaskSpec
from asyncstate.specs import ERRORS_OUTPUT
from asyncstate.state import DueTimer, KeyedTimers

_OUTPUT_ROWS: Final = 10_000
_SLICE_ROWS: Final = 2_000
_PART_ROWS: Final = 100_000  # of rows that were buffered
_TIMERS: Final = -1  # a source of records, in addition to the input numbers
_NOTIFIED_KEYS: Final = 2_000  # between two checks of the output


class RecordRunner(Runner):
    """Runs a ``RecordOperator``."""

    def __init__(
        self,
        spec: TaskSpec,
        partitions: range,
        context: TaskContext,
        controller: ExecutionController,
        operator: RecordOperator,
        scratch: str,
    ) -> None:
        super().__init__(spec, partitions, context, controller, None, scratch)
        self._operator = operator
        # Looking for timers costs a read per key group; operators without on_timer skip it.
        self._has_timers = operator.handles_timers
        self._timers = KeyedTimers(controller, spec.uid, handled=self._has_timers)
        self._fired = context.counter("timers_fired")
        self._frame = BatchFrame(
            spec.watermark,
            spec.processing_time,
            self._timers,
            context.output_schema,
            controller,
            self._side_outputs,
            key_type(context.key_schema),
        )
        self._guards = operator.errors == "output"
        self._process = keeping_errors(operator.process) if self._guards else operator.process
        self._submit_record: Callable[[Record], None] = (
            self._submit_any if self._guards else controller.submit
        )
        self._row_types: list[type[Row]] = [row_type(given.schema) for given in spec.inputs]
        self._key_values = key_values(context.key_schema.types)

    def run(self, batches: Iterator[InputBatch]) -> Generator[OutBatch]:
        """See ``Runner``. Runs the phases of a micro-batch; each starts when the previous one has ended."""
        # These were due before the rows arrived, so they run first. All partitions use the driver's time.
        if self._has_timers:
            yield from self._fire_timers(TimeDomain.PROCESSING_TIME)
        # Broadcast rows run before the other rows, so that these see their effect.
        if self._operator.broadcast_input is not None:
            yield from self._process_broadcast(self._operator.broadcast_input)
        # Rows run as they arrive, including late ones; rows of ordered inputs are buffered instead.
        yield from self._process_rows(batches)
        # Rows of ordered inputs that the watermark has passed, merged with event-time timers: nothing
        # earlier can arrive any more.
        if self.ordered and self.spec.watermark != MIN_WATERMARK:
            yield from self._deliver_ordered()
        # Timers that are due after rows without an order, and timers that these have registered.
        if self._has_timers:
            yield from self._fire_timers(TimeDomain.PROCESSING_TIME, TimeDomain.EVENT_TIME)
        # All rows before the watermark have been emitted.
        self._pass_watermark()
        # No reads follow in this micro-batch.
        clean_up(self.spec, self.context, self.controller.bound_writes)
        yield from self._outputs(1)

    def _rows_max(self, batch: pa.RecordBatch) -> int:
        """How many buffered rows like those of ``batch`` are processed together."""
        return _PART_ROWS

    def _process_broadcast(self, index: int) -> Iterator[OutBatch]:
        """Run each row of the broadcast input to the end of its notifications, before the next one starts."""
        for rows in broadcast_rows(self, index):
            if not isinstance(rows, PreparedBatch):
                yield rows
                yield from self._after_broadcast()
                continue
            for record in self._broadcast_records(rows):
                self.controller.submit(record)
                self.controller.drain()
                if self._operator.notify_stateful_sets:
                    yield from self._notify(record)

    def _broadcast_records(self, prepared: PreparedBatch) -> Iterator[BroadcastRecord]:
        index = prepared.input_index
        rows = map(self._row_types[index], python_rows(prepared.batch))
        kinds = kinds_of(prepared.kinds)
        times: list[Any] = prepared.times.tolist() if prepared.times is not None else [None] * len(kinds)
        work = self._operator.process_broadcast
        for row, kind, time in zip(rows, kinds, times, strict=True):
            yield BroadcastRecord(self._frame, work, row, index, kind, time)

    def _notify(self, broadcast: BroadcastRecord) -> Iterator[OutBatch]:
        """Notify every key with state of the row; the controller decides how many notifications overlap."""
        controller, context = self.controller, self.context
        notified = context.counter("keys_notified")
        keys = stored_keys(
            controller, context.keyed_state_ids, context.key_groups, context.key_codec, context.page_size
        )
        for number, key in enumerate(keys, 1):
            notified.add()
            controller.submit(
                Record(
                    self._frame,
                    key.group,
                    key.encoded_key,
                    self._key_values(key.values),
                    self._operator.process_notification,
                    broadcast.item,
                    broadcast.input_index,
                    broadcast.row_kind,
                    broadcast.timestamp,
                )
            )
            if number % _NOTIFIED_KEYS == 0:
                yield from self._after_broadcast()
        controller.drain()
        yield from self._after_broadcast()

    def _after_broadcast(self) -> Iterator[OutBatch]:
        self.controller.bound_writes(0)
        yield from self._outputs(_OUTPUT_ROWS)

    def _process_rows(self, batches: Iterator[InputBatch]) -> Iterator[OutBatch]:
        for prepared in chain(self._arriving(batches), self._waiting()):
            if prepared.input_index in self.ordered:
                yield from self.buffer_rows(prepared)
            else:
                yield from self._submit(self._records(prepared))
        self.controller.drain()

    def _submit(self, records: Iterator[Record]) -> Iterator[OutBatch]:
        """Submit records, each before the next one is created."""
        submit, count = self._submit_record, 1
        while count:
            count = 0
            for record in islice(records, self.controller.overlay.rows_to_look(_SLICE_ROWS)):
                submit(record)
                count += 1
            self.controller.bound_writes(count)
            yield from self._outputs(_OUTPUT_ROWS)

    def _submit_any(self, record: Record) -> None:
        if isinstance(record, GuardedRecord):
            self.controller.submit_guarded(record)
        else:
            self.controller.submit(record)

    def _deliver_ordered(self) -> Iterator[OutBatch]:
        """Without timers, rows follow each other immediately; with timers, each waits for everything earlier."""
        if not self._has_timers:
            yield from self._submit(self._due_rows())
            self.controller.drain()
            return
        merge = EventTimeMerge(
            self.controller,
            self._due_rows(),
            functools.partial(self._due_timers, TimeDomain.EVENT_TIME),
            self._timer_record,
            self._submit_record,
        )
        for count in merge.run():
            self.controller.bound_writes(count)
            yield from self._outputs(_OUTPUT_ROWS)
        self._timers.end_rounds()

    def _due_rows(self) -> Iterator[Record]:
        for turns, inputs in self.ordered.due(self.context.key_groups, _SLICE_ROWS):
            records = {prepared.input_index: self._records(prepared) for prepared in inputs}
            for index in turns:
                yield next(records[index])

    def _records(self, prepared: PreparedBatch) -> Iterator[Record]:
        """One Record per row; keys are encoded for the whole batch at once."""
        index = prepared.input_index
        keys, key_groups, values_of_keys = self._keys(prepared)
        times: list[Any] = prepared.times.tolist() if prepared.times is not None else [None] * len(keys)
        rows = map(self._row_types[index], python_rows(prepared.batch))
        frame, work = self._frame, self._process
        made_as = GuardedRecord if self._guards else Record
        self.keys += len(set(keys))
        groups_of_rows = list(map(group_prefixes(self.spec.max_parallelism).__getitem__, key_groups))
        made = zip(keys, groups_of_rows, values_of_keys, rows, kinds_of(prepared.kinds), times, strict=True)
        coming = self.controller.coming_rows(index, groups_of_rows, keys)
        try:
            for start in range(0, len(keys), BLOCK_ROWS):
                if coming is not None:
                    coming.at(start)
                for key, group, values, row, kind, time in islice(made, BLOCK_ROWS):
                    yield made_as(frame, group, key, values, work, row, index, kind, time)
        finally:
            if coming is not None:
                coming.done()

    def _keys(self, prepared: PreparedBatch) -> tuple[list[bytes], list[int], Iterable[tuple[Any, ...]]]:
        """For each row (n) its stored key, its key group and the values of its key.

        Without key columns all rows have one key. For a stateless operator each row has its own key, so that none waits
        for the calls of another.
        """
        columns, num_rows = self._key_columns(prepared), prepared.batch.num_rows
        if columns:
            codec = self._codecs[prepared.input_index]
            values = zip(
                *map(python_values, columns, self.spec.inputs[prepared.input_index].key), strict=True
            )
            return codec.encode(columns), codec.groups(columns).tolist(), values
        own = self._operator.stateless
        keys = [number.to_bytes(4, "big") if own else b"" for number in range(num_rows)]
        return keys, [0] * num_rows, [()] * num_rows

    def _fire_timers(self, *domains: TimeDomain) -> Iterator[OutBatch]:
        """Fire timers in rounds over ``domains`` until none is due: a timer may register others that are already
        due."""
        while any(map(self._may_be_due, domains)):
            for domain in filter(self._may_be_due, domains):
                yield from self._fire_round(domain)
        self._timers.end_rounds()

    def _fire_round(self, domain: TimeDomain) -> Iterator[OutBatch]:
        tick = None
        for page in self._due_timers(domain):
            groups, keys = [due.group for due in page], [due.key for due in page]
            coming = self.controller.coming_rows(_TIMERS, groups, keys)
            for number, due in enumerate(page):
                if coming is not None and number % BLOCK_ROWS == 0:
                    coming.at(number)
                if due.time != tick:
                    self.controller.drain()
                    tick = due.time
                self.controller.submit(self._timer_record(due))
            if coming is not None:
                coming.done()
            self.controller.bound_writes(len(page))
            yield from self._outputs(_OUTPUT_ROWS)
        self.controller.drain()

    def _due_timers(
        self, domain: TimeDomain, registered: list[DueTimer] | None = None
    ) -> Iterator[list[DueTimer]]:
        groups, page_size = self.context.key_groups, self.context.page_size
        return self._timers.due(domain, groups, self._time_of(domain), page_size, registered)

    def _may_be_due(self, domain: TimeDomain) -> bool:
        until = self._time_of(domain)
        return until != MIN_WATERMARK and self._timers.may_be_due(domain, until)

    def _time_of(self, domain: TimeDomain) -> int:
        return self.spec.watermark if domain is TimeDomain.EVENT_TIME else self.spec.processing_time

    def _timer_record(self, due: DueTimer) -> Record:
        values, _ = self.context.key_codec.decode_one(due.key)
        event_time = due.time if due.domain is TimeDomain.EVENT_TIME else None
        return Record(
            self._frame,
            due.group,
            due.key,
            self._key_values(values),
            self._on_timer,
            due,
            0,
            RowKind.INSERT,
            event_time,
        )

    def _on_timer(self, due: DueTimer, record: Record) -> Any:
        if not self._timers.claim(due):
            return None
        self._fired.add()
        return self._operator.on_timer(due.timer, record)

    def _pass_watermark(self) -> None:
        """Call ``on_watermark``, which has no key: state access there fails with a StateAccessError."""
        if getattr(self._operator.on_watermark, "__func__", None) is RecordOperator.on_watermark:
            return  # it does nothing
        controller = self.controller
        record = Record(self._frame, b"", b"", (), self._operator.on_watermark, self.spec.watermark)
        record.out = controller.outputs
        controller.run_without_key(record)
        record.out = None

    def _key_of(self, encoded: bytes) -> tuple[Any, ...]:
        if not encoded or not self.context.key_schema.names:  # ``on_watermark`` has no key
            return ()
        return self._key_values(self.context.key_codec.decode_one(encoded)[0])

    def _outputs(self, at_least: int) -> Iterator[OutBatch]:
        if len(self.controller.outputs) < at_least:
            return
        for name, rows in _rows_by_output(self.controller.take_outputs(), self._side_outputs):
            schema = self.context.output_schema if name is None else self._side_outputs[name]
            self.rows_out += len(rows)
            if self._guards and name == ERRORS_OUTPUT:
                self.context.counter("rows_failed").add(len(rows))
            changes = self.context.output.changes_of(name)
            batch = rows_batch(self.spec.uid, schema, rows, self._key_of, changes)
            yield batch if name is None else SideBatch(name, batch)


def _rows_by_output(
    rows: Sequence[AnyRow], names: Collection[str]
) -> Iterator[tuple[str | None, Sequence[OutputRow]]]:
    """The rows of each output that has any, the main output (None) first."""
    if not names:
        yield None, rows  # type: ignore[misc]  # there can be none for a side output
        return
    parts: dict[str | None, list[OutputRow]] = {None: [], **{name: [] for name in names}}
    for row in rows:
        parts[row.output if isinstance(row, SideRow) else None].append(row[:3])
    yield from ((name, part) for name, part in parts.items() if part)
