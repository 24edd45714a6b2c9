"""What both grains share: the inputs, the counters and the output of one partition in one micro-batch.

Owns: ``Runner``, and ``clean_up``: which key groups of a state with a ttl are swept in a micro-batch.
Invariant: an operator sees the rows of a partition first, then the watermark, and nothing after it.
Must not import Spark.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from asyncstate.changelog import RowKind
from asyncstate.codec import GROUP_BYTES, partitions_of
from asyncstate.execution import ExecutionController
from asyncstate.operator import MIN_WATERMARK
from asyncstate.partial_aggregation import local_rows
from asyncstate.runtime.partition.task_context import TaskContext
from asyncstate.runtime.rows.input_buffer import SpillingInputBuffer
from asyncstate.runtime.rows.last_changes import LastChanges
from asyncstate.runtime.rows.prepared_rows import PreparedBatch, output_batch, prepare
from asyncstate.runtime.rows.sorted_inputs import OrderedInputs
from asyncstate.runtime.statistics import RowStatistics, Transfers
from asyncstate.runtime.task_spec import InputBatch, OutBatch, SideBatch, TaskSpec
from asyncstate.state import StateTtl, TtlTime, time_of

_PERIOD_MIN_US: Final = 1_000


class Runner(ABC):
    """Runs one operator on one partition."""

    def __init__(
        self,
        spec: TaskSpec,
        partitions: range,
        context: TaskContext,
        controller: ExecutionController,
        unique: Sequence[Collection[str] | None] | None,
        scratch: str,
    ) -> None:
        """``unique``: for each input what identifies its rows within a key, None if an operator processes the rows of a
        changelog one by one, as they arrive. ``scratch``: a folder for rows that do not fit into memory."""
        self.spec = spec
        self.context = context
        self.controller = controller
        self.transfers = Transfers()
        self.rows_in = 0
        self.rows_of = dict.fromkeys(partitions[1:], 0)
        """How many of the rows are those of each further partition of the task."""
        self.rows_out = 0
        self.local_rows_in = 0
        self.keys = 0
        self.max_event_times: list[int | None] = [None] * len(spec.inputs)
        self._first = spec.operator.first_input
        self._late_outputs = tuple(spec.operator.late_outputs(spec.inputs))
        self._side_outputs: Mapping[str, pa.Schema] = {
            name: schema for name, schema in context.side_outputs.items() if name not in self._late_outputs
        }
        self._codecs = [given.key_codec(spec.max_parallelism) for given in spec.inputs]

        self.ordered = OrderedInputs(
            controller, spec, context.ordered, self._codecs, lambda: context.counter("late_rows_dropped")
        )
        """The buffered rows of ordered inputs."""
        self._unique = unique
        self._scratch = scratch
        self._input_buffers = {
            index: self._input_buffer(index)
            for index, given in sorted(enumerate(spec.inputs), key=lambda each: each[0] != self._first)
            if given.sequence or (not self._comes_in_order(index) and self._needs_all(index))
        }

    def output(self, batches: Iterator[InputBatch]) -> Generator[OutBatch]:
        """The output of ``run``; for upserts the last change of each key."""
        out = self.run(batches)
        if not self.context.output.changes.is_upsert:
            yield from out
            return
        last = LastChanges(self.spec, self.context.output, self._rows_max, self._scratch)
        with closing(out):
            yield from last.of(out)
        self.rows_out -= last.left_out

    @abstractmethod
    def run(self, batches: Iterator[InputBatch]) -> Generator[OutBatch]:
        """Run the operator over ``batches`` and the watermark; yields the output."""

    @abstractmethod
    def _rows_max(self, batch: pa.RecordBatch) -> int:
        """How many buffered rows like those of ``batch`` are processed together."""

    def buffer_rows(self, prepared: PreparedBatch, counts: bool = True) -> Iterator[OutBatch]:
        """Buffer rows of an ordered input; yields late rows if there is a side output for them.
        ``counts`` is False if another partition counts and emits them."""
        late, name = self.ordered.add(prepared, counts), self._late_outputs[prepared.input_index]
        self.controller.bound_writes(0)
        if late is not None and name is not None:
            schema = self.context.side_outputs[name]
            yield self._out_batch(name, schema, late.batch.columns, late.kinds, late.batch.num_rows)

    def _out_batch(
        self,
        name: str | None,
        schema: pa.Schema,
        columns: Sequence[Any],
        kinds: npt.NDArray[np.int8] | RowKind,
        num_rows: int,
    ) -> OutBatch:
        """Rows for a side output, or the main one (None); they are counted."""
        self.rows_out += num_rows
        changes = self.context.output.changes_of(name)
        batch = output_batch(self.spec.uid, schema, columns, kinds, num_rows, None, changes)
        return batch if name is None else SideBatch(name, batch)

    def _comes_in_order(self, index: int) -> bool:
        """Whether the input is broadcast or ordered, so that its rows need not be buffered here."""
        return self.spec.inputs[index].broadcast or index in self.ordered

    def _input_buffer(self, index: int) -> SpillingInputBuffer:
        given = self.spec.inputs[index]
        together = None if self._unique is None else self._unique[index]
        if given.local is not None:
            together = ()  # partially aggregated rows do not show which of them need each other
        return SpillingInputBuffer(
            given,
            index,
            together,
            waits=bool(given.sequence) or together is not None or self._follows_first_input(index),
            independent=self._unique is None or not given.changelog,
            rows_max=self._rows_max,
            memory_bytes=self.spec.config.shares.gathered // len(self.spec.inputs),
            folder=self._scratch,
            chosen=functools.partial(self._unseen, index),
        )

    def _needs_all(self, index: int) -> bool:
        """Whether rows of the input may have to wait for others of the micro-batch."""
        return (self.spec.inputs[index].changelog and self._unique is not None) or self._follows_first_input(
            index
        )

    def _follows_first_input(self, index: int) -> bool:
        """Whether this input is buffered until the first input is exhausted. Broadcast rows have been processed by
        then, and rows of ordered inputs are processed later anyway."""
        return self._first not in (None, index) and not self._comes_in_order(index)

    def _unseen(self, index: int, rows: PreparedBatch) -> PreparedBatch:
        seen = self.context.seen.get(index)
        if seen is None:
            return rows
        keys = self._codecs[index].group(self._key_columns(rows), num_rows=rows.batch.num_rows)
        return seen.newer(rows, keys, self.controller.run_bundle)

    def _arriving(self, batches: Iterator[InputBatch]) -> Iterator[PreparedBatch]:
        """The rows that need not wait for others of the micro-batch; ``_waiting`` returns the others afterwards."""
        for given in batches:
            prepared = prepare(self.spec.uid, self.spec.inputs[given.input_index], given)
            self.count(prepared)
            self._count_local(given)
            if self.rows_of:
                self._count_by_partition(prepared)
            if prepared.batch.num_rows:
                buffer = self._input_buffers.get(prepared.input_index)
                if buffer is None:
                    yield prepared
                else:
                    yield from buffer.add(prepared)
            self.controller.flush()  # the next batch may take long to arrive
        for buffer in self._input_buffers.values():
            yield from buffer.free()

    def _waiting(self) -> Iterator[PreparedBatch]:
        """The buffered rows, after all rows have arrived."""
        for buffer in self._input_buffers.values():
            try:
                yield from (part for part in buffer.parts() if part.batch.num_rows)
            finally:
                buffer.close()

    def close(self) -> None:
        """Delete spilled rows; also called when the micro-batch fails."""
        for buffer in self._input_buffers.values():
            buffer.close()

    def count(self, prepared: PreparedBatch, rows: bool = True) -> None:
        """Count the batch's rows, unless another partition counts them, and record its event times."""
        if rows:
            self.rows_in += prepared.batch.num_rows + prepared.null_event_times
            if prepared.null_event_times:
                self.context.counter("null_event_times").add(prepared.null_event_times)
        index, (newest, beyond) = prepared.input_index, prepared.highest_event_time()
        if beyond and rows:
            self.context.counter("event_times_far_ahead").add(beyond)
        known = self.max_event_times[index]
        if newest is not None:
            self.max_event_times[index] = newest if known is None else max(known, newest)

    def _count_by_partition(self, prepared: PreparedBatch) -> None:
        if not self.spec.inputs[prepared.input_index].key:
            return  # the first one has all
        groups = self._codecs[prepared.input_index].groups(self._key_columns(prepared))
        counts = np.bincount(partitions_of(groups, self.spec.parallelism, self.spec.max_parallelism))
        for partition in self.rows_of.keys() & set(np.flatnonzero(counts).tolist()):
            self.rows_of[partition] += int(counts[partition])

    def statistics(self) -> RowStatistics:
        """The row metrics of this micro-batch; ``rows_in`` without those of ``rows_of``."""
        together = any(given.local is not None for given in self.spec.inputs)
        return RowStatistics(
            rows_in=self.rows_in - sum(self.rows_of.values()),
            rows_out=self.rows_out,
            keys=self.keys,
            local_rows_in=self.local_rows_in if together else None,
            counters={name: counter.value for name, counter in self.context.counters.items()},
        )

    def _count_local(self, given: InputBatch) -> None:
        """Count the input rows of a partial aggregation, if one ran before the rows arrived."""
        spec = self.spec.inputs[given.input_index]
        if spec.local is None:
            return
        rows = local_rows(given.batch)
        self.local_rows_in += int(rows.sum())
        times = given.batch.column(spec.event_time) if spec.event_time is not None else None
        if times is not None and times.null_count:
            without = pc.is_null(times).to_numpy(zero_copy_only=False)
            # Each row that arrived was already counted as one.
            self.context.counter("null_event_times").add(int((rows[without] - 1).sum()))

    def _key_columns(self, prepared: PreparedBatch) -> list[pa.Array]:
        return [prepared.batch.column(name) for name in self.spec.inputs[prepared.input_index].key]


def clean_up(spec: TaskSpec, context: TaskContext, removing: Callable[[int], None]) -> None:
    """Remove expired entries that are due; the last step before the commit, when no record is in flight.

    Two sweeps of a key group are less than half the ttl plus one micro-batch apart, so an entry is removed at most that
    long after it has expired. Which groups are due depends only on the times of this and the previous micro-batch: it
    is the same in both modes, for every attempt and with any parallelism, and nothing is stored for it. ``removing`` is
    called with the number of removed entries of each key group.
    """
    if not context.expiring or spec.base is None:  # without a base nothing is older than this micro-batch
        return
    removed = context.counter("ttl_expired")
    for ttl, state in context.expiring:
        for group in _due_groups(spec, context, ttl):
            expired = state.sweep(group.to_bytes(GROUP_BYTES, "big"))
            removed.add(expired)
            removing(expired)


def _due_groups(spec: TaskSpec, context: TaskContext, ttl: StateTtl) -> Iterator[int]:
    """The key groups that are due since the previous micro-batch: each is due once in every half ttl."""
    now = time_of(ttl, context)
    event_time = ttl.time is TtlTime.EVENT
    before = spec.previous_watermark if event_time else spec.previous_processing_time
    if now == MIN_WATERMARK:
        return
    period = max(ttl.duration_us // 2, _PERIOD_MIN_US)
    for group in context.key_groups:
        turn = group * period // spec.max_parallelism  # spreads the groups over the period
        if before == MIN_WATERMARK or (now - turn) // period != (before - turn) // period:
            yield group
