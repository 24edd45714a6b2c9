"""Operators and a stand-in for ``run_partitions`` that the tests of the Spark layer share.

They stand in a module of their own, so that Python workers can import them by name.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from asyncstate.changelog import ROW_KIND_TEXTS
from asyncstate.errors import OperatorError
from asyncstate.operator import (
    Bundle,
    BundleContext,
    BundleOperator,
    InputSpec,
    OperatorContext,
    RecordContext,
    RecordOperator,
    Row,
    Timer,
)
from asyncstate.runtime import CommitRecord, InputBatch, TaskSpec
from asyncstate.state import ValueState, ValueStateDescriptor
from asyncstate.storage import PartitionManifest

ECHO_SCHEMA = pa.schema(
    [("partition", pa.int32()), ("input", pa.int32()), ("id", pa.int64()), ("pid", pa.int64())]
)


class Echo(BundleOperator):
    """With ``echo``: puts out where each row (column ``id``) was seen, and logs each run of a partition."""

    def __init__(self, log: str, num_inputs: int = 1, accepts_changelog: bool = True, fail: str = "") -> None:
        self.log = log
        self.num_inputs = num_inputs  # type: ignore[misc]
        self.accepts_changelog = accepts_changelog  # type: ignore[misc]
        self.fail = fail

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        for spec in inputs:
            spec.column("id")
        return ECHO_SCHEMA

    def process_bundle(self, bundle: Bundle, ctx: BundleContext) -> Any:
        raise AssertionError("only for the stand-in")


class RunningTotal(RecordOperator):
    """Per key: the number of rows and the sum of ``id`` so far; one output row a record, in order.

    A timer at the row's event time puts out the total when the watermark has passed it. ``fail_at`` is an
    ``id`` at which the operator fails as long as the file ``fuse`` is there.
    """

    def __init__(
        self,
        fail_at: int | None = None,
        fuse: str = "",
        timers: bool = False,
        state_type: pa.DataType | None = None,
    ) -> None:
        self.state_type = state_type
        self.fail_at = fail_at
        self.fuse = fuse
        self.timers = timers

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        inputs[0].column("id")
        return pa.schema([("k", pa.int64()), ("rows", pa.int64()), ("total", pa.int64())])

    def open(self, context: OperatorContext) -> None:
        self.total: ValueState[Any] = context.get_state(
            ValueStateDescriptor("total", self.state_type or RUNNING_TYPE)
        )

    def process(self, row: Row, ctx: RecordContext) -> Any:
        if row["id"] == self.fail_at and os.path.exists(self.fuse):
            raise ValueError("blown fuse")
        if self.timers and ctx.timestamp is not None:
            ctx.timers.register_event_time(ctx.timestamp)

        def add(before: Any) -> Any:
            rows, total = (
                (1, row["id"]) if before is None else (before["rows"] + 1, before["total"] + row["id"])
            )
            if not self.timers:
                ctx.emit(row["k"], rows, total)
            return self.total.async_update({"k": row["k"], "rows": rows, "total": total})

        return self.total.async_value().then_compose(add)

    def on_timer(self, timer: Timer, ctx: RecordContext) -> Any:
        def emit_results(found: Any) -> None:
            ctx.emit(found["k"], found["rows"], found["total"])

        return self.total.async_value().then_accept(emit_results)


class KeyTeller(RecordOperator):
    """Puts out the two columns of the key, whether it was a timer, and its time; a timer a record."""

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        timer = [pa.field("timer", pa.bool_()), pa.field("time", pa.int64())]
        return pa.schema([*inputs[0].key_schema, *timer])

    def process(self, row: Row, ctx: RecordContext) -> Any:
        assert ctx.timestamp is not None
        ctx.timers.register_event_time(ctx.timestamp)
        ctx.emit(*ctx.key, False, None)

    def on_timer(self, timer: Timer, ctx: RecordContext) -> Any:
        ctx.emit(*ctx.key, True, timer.time)


RUNNING_TYPE = pa.struct([("k", pa.int64()), ("rows", pa.int64()), ("total", pa.int64())])


def echo(
    spec: TaskSpec, partitions: range, batches: Iterator[InputBatch]
) -> Iterator[pa.RecordBatch | CommitRecord]:
    """A stand-in for ``run_partitions``: the rows as they came, kinds as they were read, no state."""
    operator, partition = spec.operator, partitions[0]
    assert isinstance(operator, Echo)
    with open(operator.log, "a") as log:
        log.writelines(f"{number}\n" for number in partitions)
    newest: list[int | None] = [None] * len(spec.inputs)
    rows = 0
    for given in batches:
        count = given.batch.num_rows
        rows += count
        if operator.fail:
            raise OperatorError(operator.fail)
        times = spec.inputs[given.input_index].event_time
        if times is not None:
            seen = max(given.batch.column(times).cast(pa.int64()).to_pylist())
            newest[given.input_index] = max(seen, newest[given.input_index] or seen)
        codes = np.zeros(count, np.int8) if given.kinds is None else given.kinds
        yield pa.RecordBatch.from_arrays(
            [
                pa.array([partition] * count, pa.int32()),
                pa.array([given.input_index] * count, pa.int32()),
                given.batch.column("id"),
                pa.array([os.getpid()] * count, pa.int64()),
                pa.array([ROW_KIND_TEXTS[code] for code in codes.tolist()]),
            ],
            names=[*ECHO_SCHEMA.names, "row_kind"],
        )
    for number in partitions:
        yield CommitRecord(
            partition=number,
            content=PartitionManifest(number),
            states=[],
            max_event_times=newest,
            statistics={"rows_in": rows if number == partition else 0},
            peaks={"in_flight_peak": number},
        )


def runs(log: str | Path) -> list[int]:
    """The partitions that ran, sorted; a partition that ran twice is there twice."""
    return sorted(int(line) for line in Path(log).read_text().split())
