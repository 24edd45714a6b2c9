"""Bundle grain: runs an operator over Arrow batches of one partition, with their unique keys.

Owns: ``BundleRunner``.
Invariant: a bundle starts when the previous one is done; only prefetching overlaps. What an operator emits is held
until its call, or a step of it, is done.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from asyncstate.changelog import RowKind
from asyncstate.errors import OperatorError
from asyncstate.execution import (
    CHANGED_BY_BUNDLE_HINT,
    BroadcastRecord,
    ExecutionController,
    is_of_row,
)
from asyncstate.futures import StateFuture
from asyncstate.operator import Bundle, BundleOperator, unknown_output
from asyncstate.row_shape import RowShape
from asyncstate.runtime.partition.broadcast_inputs import broadcast_rows
from asyncstate.runtime.partition.runner import Runner, clean_up
from asyncstate.runtime.partition.task_context import TaskContext
from asyncstate.runtime.rows.bundle_size import BundleSize
from asyncstate.runtime.rows.prepared_rows import PreparedBatch, joined
from asyncstate.runtime.task_spec import InputBatch, OutBatch, TaskSpec, sends_errors
from asyncstate.specs import ERRORS_OUTPUT, RowError


class BundleRunner(Runner):
    """Runs a ``BundleOperator``; it is the ``BundleContext`` of its operator."""

    def __init__(
        self,
        spec: TaskSpec,
        partitions: range,
        context: TaskContext,
        controller: ExecutionController,
        operator: BundleOperator,
        scratch: str,
    ) -> None:
        # A stateless operator processes rows one by one, so they need not wait for each other.
        unique = None if operator.stateless else operator.unique_columns(spec.inputs)
        super().__init__(spec, partitions, context, controller, unique, scratch)
        self._operator = operator
        self._size = BundleSize(spec, operator.row_bytes, operator.key_bytes)
        latency_ms = spec.config.bundled_agg_allow_latency_ms if operator.is_bundled else None
        self._patience = math.inf if latency_ms is None else latency_ms / 1000
        self._out: list[OutBatch] = []
        self._guards = sends_errors(operator)
        self._failed: list[tuple[pa.RecordBatch, RowError]] = []
        # The times of a BundleContext, in microseconds.
        self.watermark, self.previous_watermark = spec.watermark, spec.previous_watermark
        self.processing_time = spec.processing_time
        self.previous_processing_time = spec.previous_processing_time

    # -- BundleContext --------------------------------------------------------------------------------

    def emit(
        self,
        columns: Sequence[pa.Array] | dict[str, pa.Array],
        kinds: npt.NDArray[np.int8] | RowKind = RowKind.INSERT,
        output: str | None = None,
    ) -> None:
        """Emit rows: one array per column of the output schema, in their order or by name in a dict, and one kind per
        row or one for all."""
        schema = self.context.output_schema if output is None else self._side_outputs.get(output)
        if schema is None:
            raise unknown_output(str(output), self._side_outputs)
        if isinstance(columns, dict):
            what = "the output" if output is None else f"side output '{output}'"
            columns = RowShape(schema, what, emits=True).emitted((), columns)
        num_rows = len(columns[0]) if columns else (0 if isinstance(kinds, RowKind) else len(kinds))
        if num_rows:
            self._out.append(self._out_batch(output, schema, columns, kinds, num_rows))

    def call(
        self,
        function: Callable[..., Any],
        /,
        *arguments: Any,
        timeout_seconds: Any = None,
        **keywords: Any,
    ) -> StateFuture[Any]:
        """A future of ``function(*arguments, **keywords)``, a call to the outside: HTTP, a database."""
        return self.controller.call(None, function, arguments, timeout_seconds, keywords)

    # -- running --------------------------------------------------------------------------------------

    def run(self, batches: Iterator[InputBatch]) -> Generator[OutBatch]:
        """See ``Runner``; prefetches one bundle ahead if reads can overlap with other work."""
        yield from self._process_broadcast()
        waiting: Bundle | None = None
        for bundle in self._bundles(batches):
            if not isinstance(bundle, Bundle):
                yield bundle
                continue
            ahead = self.controller.reads_ahead and not self._guards
            if ahead:
                self.controller.begin_prefetch()
                self._operator.prefetch(bundle)
            if waiting is not None:
                yield from self._process(waiting)
            waiting = bundle if ahead else None
            if not ahead:
                yield from self._process(bundle)
        if waiting is not None:
            yield from self._process(waiting)
        yield from self._process_due()
        yield from self._call(lambda: self._operator.on_watermark(self.spec.watermark, self))
        # No reads follow in this micro-batch.
        clean_up(self.spec, self.context, self.controller.bound_writes)

    def _process_broadcast(self) -> Iterator[OutBatch]:
        index = self._operator.broadcast_input
        given: list[PreparedBatch] = []
        for rows in () if index is None else broadcast_rows(self, index):
            if isinstance(rows, PreparedBatch):
                given.append(rows)
            else:
                yield rows
        if given:
            bundle = self._bundle(joined(given))
            yield from self._call(lambda: self._with_broadcast(bundle))

    def _with_broadcast(self, bundle: Bundle) -> Any:
        """Call ``process_broadcast``, which may write broadcast state until it returns."""
        frame: Any = None  # the rows emit nothing by themselves
        self.controller.current = BroadcastRecord(
            frame, _nothing, bundle, bundle.input_index, RowKind.INSERT, None
        )
        try:
            return self._operator.process_broadcast(bundle, self)
        finally:
            self.controller.current = None

    def _process(self, bundle: Bundle) -> Iterator[OutBatch]:
        if not self._guards:
            return self._call(lambda: self._operator.process_bundle(bundle, self))
        return self._guarded(bundle)

    def _guarded(self, bundle: Bundle) -> Iterator[OutBatch]:
        """Process the bundle; rows for which this fails go to the side output of errors."""
        yield from self._without_failed(bundle)
        if self._failed:
            schema = self._side_outputs[ERRORS_OUTPUT]
            rows = pa.Table.from_batches([row for row, _ in self._failed]).combine_chunks()
            names = schema.names[: -len(RowError._fields)]
            columns = [rows.column(name).combine_chunks() for name in names]
            for index, field in enumerate(list(schema)[len(names) :]):
                columns.append(pa.array([error[index] for _, error in self._failed], field.type))
            self.context.counter("rows_failed").add(len(self._failed))
            self._failed.clear()
            yield self._out_batch(ERRORS_OUTPUT, schema, columns, RowKind.INSERT, rows.num_rows)

    def _without_failed(self, bundle: Bundle) -> Iterator[OutBatch]:
        """Process the bundle, or if that fails its halves, in order; keeps single rows that fail in ``_failed``.

        The limits of a bundle mean nothing to an operator, so that all is as if they had been these from the start.
        """
        error = yield from self._tried(bundle)
        if error is None:
            return
        if bundle.num_rows == 1:
            self._failed.append((bundle.batch, RowError.of(error)))
            return
        rows = PreparedBatch(bundle.batch, bundle.kinds, bundle.times, bundle.input_index, 0)
        for half in rows.cut(-(-bundle.num_rows // 2)):
            yield from self._without_failed(self._bundle(half))

    def _tried(self, bundle: Bundle) -> Generator[OutBatch, None, BaseException | None]:
        """Process the bundle; returns the exception of the operator's code, after which all is as before. Output is
        held to the end. Raises OperatorError if the code had changed state."""
        counted = {name: counter.value for name, counter in self.context.counters.items()}
        rows_out, self.controller.changed = self.rows_out, False
        try:
            out = list(self._call(lambda: self._operator.process_bundle(bundle, self)))
        except OperatorError as named:
            error = named.__cause__
            if error is None or not is_of_row(error):
                raise
        else:
            yield from out
            return None
        self.controller.abandon_bundle()
        if self.controller.changed:
            self.controller.failures.raise_named(error, None, CHANGED_BY_BUNDLE_HINT)
        self._out.clear()
        self.rows_out = rows_out
        for name, counter in self.context.counters.items():
            counter.value = counted.get(name, 0)
        return error

    def _process_due(self) -> Iterator[OutBatch]:
        """Process the rows of ordered inputs that are due; by now all rows of the micro-batch have arrived."""
        if not self.ordered:
            return
        for rows in self.ordered.due_parts(self.context.key_groups, self._size):
            bundles = [None if part is None else self._bundle(part) for part in rows]
            self.keys += sum(len(bundle.keys) for bundle in bundles if bundle is not None)
            bundles += [None] * (len(self.spec.inputs) - len(bundles))
            yield from self._call(functools.partial(self._operator.process_due, bundles, self))

    def _call(self, work: Callable[[], Any]) -> Iterator[OutBatch]:
        """Run ``work`` to its end, step by step if it is a generator; its output is emitted between the steps."""
        steps: Iterator[Any] | None = None

        def call() -> Any:
            nonlocal steps
            result = work()
            if not isinstance(result, Iterator):
                return result
            steps = result
            return None

        def step() -> Any:
            nonlocal steps
            try:
                return next(steps)  # type: ignore[arg-type]
            except StopIteration:
                steps = None

        self.controller.run_step(call)
        while steps is not None:
            self.controller.bound_writes_of_step()
            yield from self._take()
            self.controller.run_step(step)
        self.controller.end_bundle()
        self.controller.bound_writes(0)
        yield from self._take()

    def _take(self) -> Iterator[OutBatch]:
        out, self._out = self._out, []
        yield from out

    def _bundles(self, batches: Iterator[InputBatch]) -> Iterator[Bundle | OutBatch]:
        """Batches of an input joined or split, up to ``BundleSize`` rows; input 0 before input 1. Then come the rows
        that had to wait for all others of their key. Rows for a bundled function wait no longer than the allowed
        latency. Late rows of ordered inputs are emitted as they arrive."""
        held: list[list[PreparedBatch]] = [[] for _ in self.spec.inputs]
        rows, until = 0, 0.0
        for prepared in self._unordered(self._arriving(batches)):
            if not isinstance(prepared, PreparedBatch):
                yield prepared
                continue
            limit = self._rows_max(prepared.batch)
            for part in prepared.cut(limit):
                if rows and (rows + part.batch.num_rows > limit or time.monotonic() >= until):
                    yield from self._joined(held)
                    rows = 0
                if not rows:
                    until = time.monotonic() + self._patience
                held[prepared.input_index].append(part)
                rows += part.batch.num_rows
        yield from self._joined(held)
        for left in self._unordered(self._waiting()):
            if isinstance(left, PreparedBatch):
                yield from self._fitting(left)
            else:
                yield left

    def _rows_max(self, batch: pa.RecordBatch) -> int:
        """See ``Runner``: rows for a bundle with rows like those of ``batch``."""
        limit = self._size.rows(batch)
        return min(limit, self.spec.config.bundled_agg_size) if self._operator.is_bundled else limit

    def _unordered(self, rows: Iterator[PreparedBatch]) -> Iterator[PreparedBatch | OutBatch]:
        """Rows of inputs without an order; the others are buffered, except late rows that have a side output."""
        for prepared in rows:
            if prepared.input_index in self.ordered:
                yield from self.buffer_rows(prepared)
            else:
                yield prepared

    def _joined(self, held: list[list[PreparedBatch]]) -> Iterator[Bundle]:
        for parts in held:
            if parts:
                yield from self._fitting(joined(parts))
                parts.clear()

    def _fitting(self, rows: PreparedBatch) -> Iterator[Bundle]:
        """The rows as one bundle; as several bundles, in order, if the state of their keys is too large for one."""
        bundle = self._bundle(rows)
        if self._size.fits(len(bundle.keys)):
            self.keys += len(bundle.keys)
            yield bundle
            return
        for half in rows.cut(-(-bundle.num_rows // 2)):
            yield from self._fitting(half)

    def _bundle(self, rows: PreparedBatch) -> Bundle:
        codec = self._codecs[rows.input_index]
        keys = codec.group(self._key_columns(rows), num_rows=rows.batch.num_rows)
        return Bundle(rows.batch, keys, rows.kinds, rows.times, rows.input_index)


def _nothing(item: Any, record: Any) -> None:
    """What a record of broadcast rows runs: they are handled by the call itself."""
