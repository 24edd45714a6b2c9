"""Operators and a stand-in for ``run_partition`` that the tests of the Spark layer share.

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
from asyncstate.operator import Bundle, BundleContext, BundleOperator, InputSpec
from asyncstate.runtime import CommitRecord, InputBatch, TaskSpec
from asyncstate.storage import PartitionManifest

ECHO_SCHEMA = pa.schema([("partition", pa.int32()), ("input", pa.int32()), ("id", pa.int64()), ("pid", pa.int64())])


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


def echo(spec: TaskSpec, partition: int, batches: Iterator[InputBatch]) -> Iterator[pa.RecordBatch | CommitRecord]:
    """A stand-in for ``run_partition``: the rows as they came, kinds as they were read, no state."""
    operator = spec.operator
    assert isinstance(operator, Echo)
    with open(operator.log, "a") as log:
        log.write(f"{partition}\n")
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
    yield CommitRecord(
        partition=partition,
        content=PartitionManifest(partition),
        states=[],
        max_event_times=newest,
        statistics={"rows_in": rows},
        peaks={"partition_peak": partition},
    )


def runs(log: str | Path) -> list[int]:
    """The partitions that ran, sorted; a partition that ran twice is there twice."""
    return sorted(int(line) for line in Path(log).read_text().split())
