"""Rows that are appended, once: those of insert-only streams, or every change.

Owns: ``AppendSink``.
Invariant: a changelog is appended with its kinds, or refused: changes without kinds would all be insertions.
Must not import runtime, storage or execution.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from asyncstate.changelog import ROW_KIND_COLUMN, Changelog, RowKind
from asyncstate.errors import ConfigurationError, SchemaError
from asyncstate.spark.compatibility import arrow_table
from asyncstate.spark.exchange import arrow_schema_of
from asyncstate.spark.facts import insertions
from asyncstate.spark.sinks.target import AppendTarget
from asyncstate.spark.sinks.upserts import check_first_write, check_writer, destination

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from asyncstate.spark.spark_micro_batch import MicroBatch


class AppendSink:
    """Append each row to ``target``, exactly once: ``alerts.to(AppendSink(ParquetTarget("lake/alerts")))``.

    The rows must be insert-only. With ``changes=True`` each change of a changelog is one row, with its ``row_kind``, in
    the order within the key that the operator emitted. ``writer``: see ``UpsertSink``. The rows of a micro-batch are
    collected on the driver, so that ``spark.driver.maxResultSize`` bounds them.
    """

    keeps_table: ClassVar[bool] = False

    def __init__(self, target: AppendTarget, *, changes: bool = False, writer: str | None = None) -> None:
        if not all(callable(getattr(target, name, None)) for name in ("check_append", "append")):
            raise ConfigurationError(
                f"AppendSink: {target!r} cannot append; give one such as ParquetTarget(...), PostgresTarget(...) or "
                "KafkaAppendTarget(...), or an object with the methods check_append and append of "
                "asyncstate.spark.sinks.AppendTarget"
            )
        if writer is not None:
            check_writer("AppendSink", writer)
        self.target, self.changes, self.writer = target, changes, writer

    def check(self, schema: StructType | pa.Schema) -> None:
        """Raise the errors of ``append`` about the target and the columns; nothing is written."""
        own = schema if isinstance(schema, pa.Schema) else arrow_schema_of(schema)
        fields = [field for field in own if field.name != ROW_KIND_COLUMN]
        kinds = [pa.field(ROW_KIND_COLUMN, pa.string())] if self.changes else []
        self.target.check_append(pa.schema([*fields, *kinds]))

    def check_changes(self, changes: Changelog) -> None:
        """Raise SchemaError for changes, unless they are to be appended as such; the graph calls it before a row is
        read."""
        if not changes.is_insert_only and not self.changes:
            raise SchemaError(
                f"AppendSink: the rows are changes ({changes.text}), and without their kinds all would be insertions; "
                "give AppendSink(..., changes=True) for each change with its row_kind, or keep the table with "
                "UpsertSink"
            )

    def destination(self, name: str) -> tuple[str, str]:
        """The target and the writer, which no other sink of the graph may have; ``name``: the sink's in the graph."""
        return destination(self.target, self.writer or name)

    def write_micro_batch(self, rows: DataFrame, batch: MicroBatch, name: str) -> None:
        """Append the rows of a micro-batch; the graph calls it with the name of the sink."""
        self._append(rows, batch, name)

    def write_arrow_micro_batch(
        self, rows: pa.Table, batch: MicroBatch, name: str, changes: Changelog | None
    ) -> None:
        """``write_micro_batch`` with rows that are in this process."""
        if changes is not None:
            self.check_changes(changes)
        self._append(rows, batch, name)

    def _append(self, rows: DataFrame | pa.Table, batch: MicroBatch, name: str) -> None:
        writer = self.writer or name
        check_first_write(batch, self.target, writer)
        self.target.append(writer, batch.batch_id, self._table(rows), batch.origin)

    def write(self, rows: DataFrame, batch_id: int) -> None:
        """Append without a job, whose micro-batches are identified by their number alone."""
        self.target.append(self.writer or "asyncstate", batch_id, self._table(rows))

    def _table(self, rows: DataFrame | pa.Table) -> pa.Table:
        if not isinstance(rows, pa.Table):
            rows = arrow_table(insertions(rows) if self.changes else rows)
        names = [name for name in rows.column_names if name != ROW_KIND_COLUMN]
        if not self.changes:
            _check_insertions(rows)
            return rows.select(names)
        if ROW_KIND_COLUMN not in rows.column_names:
            rows = rows.append_column(ROW_KIND_COLUMN, pa.repeat("+I", rows.num_rows))
        return rows.select([*names, ROW_KIND_COLUMN])


def _check_insertions(rows: pa.Table) -> None:
    """Raise SchemaError for a row that is not an insertion: a graph checks its changes beforehand, others cannot."""
    if ROW_KIND_COLUMN not in rows.column_names:
        return
    kinds = rows.column(ROW_KIND_COLUMN)
    other = kinds.filter(pc.fill_null(pc.not_equal(kinds, RowKind.INSERT.text), True))
    if len(other):
        raise SchemaError(
            f"AppendSink: a row has the kind {other[0].as_py()!r}, and without their kinds all rows would be "
            "insertions; give AppendSink(..., changes=True) for each change with its row_kind, or keep the table with "
            "UpsertSink; nothing was written"
        )
