"""What an attempt at a task reports, how it gets to the driver, and whether attempts fit together.

Owns: ``Report``; ``AttemptMarker``, which accompanies the attempt's rows to the tasks that get them; ``ShuffleWriter``,
which routes both; ``reports_of``, which accepts only reports that fit together.
Invariant: an attempt's report lies in the same block of Spark's exchange as its rows, so a task that has the rows has
the report; an attempt is committed only if every downstream task consumed its rows.
Rows for the next operator have the columns, types and routes that they would have if Spark had kept and selected them.
Must not import pyspark: workers import this module.

Spark recomputes tasks whose rows it has lost with an executor, even if some downstream tasks have already read these
rows, and of two speculative attempts it takes the first that ends. An accumulator would report all attempts, and not
whose rows were used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from asyncstate.codec import key_groups, partitions_of
from asyncstate.driver.sent_columns import cast, sent_schema
from asyncstate.errors import JobError
from asyncstate.spark.column_types import MARKER_TAG, TAG_BITS

if TYPE_CHECKING:
    from asyncstate.operator import InputSpec


class Report(msgspec.Struct, frozen=True, array_like=True):
    """``attempt`` at the task of ``partition`` of ``stage``, which is named after its first operator.

    ``records``: the packed commit records of its operators. ``read``: the attempts whose rows it got, as (stage,
    partition, attempt). ``carried``: the upstream reports that it received.
    """

    stage: str
    partition: int
    attempt: bytes
    records: bytes
    read: list[tuple[str, int, bytes]] = []
    carried: list[Report] = []


class AttemptMarker(msgspec.Struct, frozen=True, array_like=True):
    """The marker that each task gets that may have rows of an attempt. One of them gets the ``report``."""

    stage: str
    partition: int
    attempt: bytes
    report: Report | None = None


class Received:
    """The attempts that a task has read rows of, and the reports that came with them."""

    def __init__(self) -> None:
        self.read: list[tuple[str, int, bytes]] = []
        self.carried: list[Report] = []

    def add(self, packed: Iterable[bytes]) -> None:
        """The values of ``REPORTS`` in some rows, without nulls."""
        for one in packed:
            passed = msgspec.msgpack.decode(one, type=AttemptMarker)
            self.read.append((passed.stage, passed.partition, passed.attempt))
            if passed.report is not None:
                self.carried.append(passed.report)


def pack(message: Report | AttemptMarker) -> bytes:
    """The message as bytes."""
    return msgspec.msgpack.encode(message)


@dataclass(frozen=True)
class ShuffleWriter:
    """Writes to input ``index`` of the next operator, ``given``. ``wire``: the route, the columns that the input sends,
    the report. ``parallelism`` is that of the next operator."""

    given: InputSpec
    index: int
    wire: pa.Schema
    parallelism: int
    max_parallelism: int

    def rows(self, out: pa.RecordBatch) -> pa.RecordBatch:
        """The rows with their routes."""
        schema = self.given.row_schema
        key = [cast(out.column(name), schema.field(name).type) for name in self.given.route]
        groups = key_groups(key, self.max_parallelism, out.num_rows)
        routes = (partitions_of(groups, self.parallelism, self.max_parallelism) << TAG_BITS) | self.index
        payload = [
            cast(out.column(name), field.type)
            for name, field in zip(sent_schema(self.given).names, list(self.wire)[1:-1], strict=True)
        ]
        columns = [pa.array(routes.astype(np.int32)), *payload, pa.nulls(out.num_rows, pa.binary())]
        return pa.RecordBatch.from_arrays(columns, schema=self.wire)

    def reports(self, report: Report) -> pa.RecordBatch:
        """A row for each partition of the next operator; all have the attempt's id and one of them the report."""
        passed = [
            AttemptMarker(report.stage, report.partition, report.attempt, report if own else None)
            for own in (at == report.partition % self.parallelism for at in range(self.parallelism))
        ]
        routes = pa.array([(at << TAG_BITS) | MARKER_TAG for at in range(self.parallelism)], pa.int32())
        payload = [pa.nulls(self.parallelism, field.type) for field in list(self.wire)[1:-1]]
        columns = [routes, *payload, pa.array(map(pack, passed), pa.binary())]
        return pa.RecordBatch.from_arrays(columns, schema=self.wire)


def reports_of(
    packed: Sequence[bytes], batch_id: int, parallelism: Mapping[str, int], feeds: Mapping[str, Sequence[str]]
) -> dict[str, list[Report]]:
    """The reports of each stage, collected from those of the last stage's tasks.

    ``parallelism`` of each stage; ``feeds``: the upstream stages in the same Spark job. Raises JobError if not every
    partition of each has reported once, and if tasks have read rows of an attempt other than the one whose report came.
    """
    found: dict[str, dict[int, Report]] = {stage: {} for stage in parallelism}
    reported: dict[str, list[int]] = {stage: [] for stage in parallelism}
    waiting = [msgspec.msgpack.decode(one, type=Report) for one in packed]
    while waiting:
        report = waiting.pop()
        found[report.stage][report.partition] = report
        reported[report.stage].append(report.partition)
        waiting += report.carried
    for stage, partitions in reported.items():
        if sorted(partitions) != list(range(parallelism[stage])):
            raise JobError(
                f"operator '{stage}': partitions {sorted(partitions)} reported, expected each of "
                f"0..{parallelism[stage] - 1} once; nothing was committed, restart the query"
            )
    for stage, reports in found.items():
        expected = {
            (feed, partition): report.attempt
            for feed in feeds.get(stage, ())
            for partition, report in found[feed].items()
        }
        for report in reports.values():
            _check_read(report, expected, batch_id)
    return {stage: [reports[at] for at in sorted(reports)] for stage, reports in found.items()}


def _check_read(report: Report, expected: Mapping[tuple[str, int], bytes], batch_id: int) -> None:
    read: dict[Any, bytes] = {(stage, partition): attempt for stage, partition, attempt in report.read}
    if read == expected and len(report.read) == len(read):
        return
    other = sorted({stage for stage, at in expected if read.get((stage, at)) != expected[stage, at]})
    raise JobError(
        f"operator '{report.stage}', batch {batch_id}: an executor was lost or tasks ran twice, and partition "
        f"{report.partition} got output rows of operator {other} from a different attempt than the one whose state "
        "would be committed; nothing was committed, restart the query to replay the batch"
    )
