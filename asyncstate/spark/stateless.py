"""Stateless operators in Spark: a lazy map over the partitions that their input happens to have.

Owns: ``mapped`` and ``StatelessTask``, what runs in Spark's Python workers for it.
Invariant: nothing runs here and nothing is kept; Spark runs the operator as part of whatever reads its rows, as often
as that needs.
Must not import storage.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from asyncstate.errors import AsyncStateError
from asyncstate.spark.failures import mark
from asyncstate.spark.payload import cast, payload_of, sent_names
from asyncstate.spark.task import settle_worker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from asyncstate.runtime.spec import InputBatch, TaskSpec

_log = logging.getLogger(__name__)
_told: set[tuple[str, str, str]] = set()
"""The counters of which this worker has told, by job, uid and name."""


@dataclass(frozen=True)
class StatelessTask:
    """``mapInArrow``'s function: runs ``spec`` over any rows of its input. ``wire`` has the output columns and
    ``row_kind``."""

    spec: TaskSpec
    wire: pa.Schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The output rows. Raises AsyncStateError marked for the driver."""
        try:
            yield from self._run(batches)
        except AsyncStateError as error:
            mark(error)
            raise

    def _run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from asyncstate.runtime.task import run_stateless

        settle_worker()
        for out in run_stateless(self.spec, self._given(batches)):
            if isinstance(out, pa.RecordBatch):
                columns = [
                    cast(column, field.type) for column, field in zip(out.columns, self.wire, strict=True)
                ]
                yield pa.RecordBatch.from_arrays(columns, schema=self.wire)
            else:
                _tell(self.spec, out.counters)

    def _given(self, batches: Iterator[pa.RecordBatch]) -> Iterator[InputBatch]:
        from asyncstate.runtime.spec import InputBatch

        (spec,) = self.spec.inputs
        names = sent_names(spec)
        for batch in batches:
            yield InputBatch(*payload_of(spec, batch.rename_columns(names)))


def mapped(df: DataFrame, spec: TaskSpec, output: pa.Schema) -> DataFrame:
    """The rows that ``spec``'s operator makes of those of ``df``, with a ``row_kind`` column; nothing runs yet.

    ``output`` is what the operator's ``bind`` returned. Raises SchemaError for types that Spark does not know.
    """
    from asyncstate.spark.exchange import output_rows, plain_columns, wire_schema

    rows = output_rows(spec.uid, output)
    return df.selectExpr(*plain_columns(spec.inputs[0])).mapInArrow(
        StatelessTask(spec, wire_schema(rows)), rows
    )


def _tell(spec: TaskSpec, counters: Mapping[str, int]) -> None:
    """Say once a worker what the operator counts: a sum over runs that may be repeated would be wrong."""
    for name, value in counters.items():
        told = (spec.job_id, spec.uid, name)
        if value and told not in _told:
            _told.add(told)
            _log.warning(
                "operator '%s' keeps no state, so no progress has its counters: %s is %d in one part of batch %d. "
                "Said once for each worker.",
                spec.uid,
                name,
                value,
                spec.batch_id,
            )
