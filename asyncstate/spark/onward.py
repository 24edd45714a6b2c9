"""An operator's output on its way to the operator behind it, in the same Spark job.

Owns: ``Onward``: a task's output as rows of the next operator's exchange, routed by the task itself, and its report
beside them.
Invariant: rows have the columns, types and routes that they would have if Spark had kept and selected them.
Must not import pyspark: workers import this module.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from asyncstate.codec import key_groups
from asyncstate.spark.columns import MARKER_TAG, TAG_BITS
from asyncstate.spark.payload import cast, sent_names
from asyncstate.spark.reports import Passed, Report, pack

if TYPE_CHECKING:
    from asyncstate.operator import InputSpec


@dataclass(frozen=True)
class Onward:
    """To input ``index`` of the next operator, ``given``. ``wire``: the route, the columns that the input sends, the
    report. ``parallelism`` is that of the next operator."""

    given: InputSpec
    index: int
    wire: pa.Schema
    parallelism: int
    max_parallelism: int

    def rows(self, out: pa.RecordBatch) -> pa.RecordBatch:
        """The rows with their routes."""
        schema = self.given.row_schema
        key = [cast(out.column(name), schema.field(name).type) for name in self.given.route]
        groups = key_groups(key, self.max_parallelism, out.num_rows).astype(np.int64)
        routes = (groups * self.parallelism // self.max_parallelism << TAG_BITS) | self.index
        payload = [
            cast(out.column(name), field.type)
            for name, field in zip(sent_names(self.given), list(self.wire)[1:-1], strict=True)
        ]
        columns = [pa.array(routes.astype(np.int32)), *payload, pa.nulls(out.num_rows, pa.binary())]
        return pa.RecordBatch.from_arrays(columns, schema=self.wire)

    def reports(self, report: Report) -> pa.RecordBatch:
        """A row for each partition of the next operator, which all get the attempt's id and one of them the report."""
        passed = [
            Passed(report.stage, report.partition, report.attempt, report if own else None)
            for own in (at == report.partition % self.parallelism for at in range(self.parallelism))
        ]
        routes = pa.array([(at << TAG_BITS) | MARKER_TAG for at in range(self.parallelism)], pa.int32())
        payload = [pa.nulls(self.parallelism, field.type) for field in list(self.wire)[1:-1]]
        columns = [routes, *payload, pa.array(map(pack, passed), pa.binary())]
        return pa.RecordBatch.from_arrays(columns, schema=self.wire)
