"""A micro-batch's changelog to what a table is to be told.

Owns: ``write_upserts`` and ``UpsertSink``.
Invariant: of a key there is one change, the last one; what the target cannot take is refused before it is written to.
Must not import runtime, storage or execution.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from asyncstate.changelog import ROW_KIND_COLUMN
from asyncstate.errors import OperatorError, SchemaError
from asyncstate.spark.changes import last_changes
from asyncstate.spark.exchange import arrow_schema_of
from asyncstate.spark.sinks.target import Changes, Target

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from asyncstate.spark.micro_batch import MicroBatch


def write_upserts(
    batch: MicroBatch | int,
    rows: DataFrame,
    keys: str | Sequence[str],
    target: Target,
    writer: str = "asyncstate",
) -> bool:
    """Write the changelog ``rows`` of a micro-batch into ``target``, by the columns ``keys``, exactly once.

    ``batch``: the micro-batch or its id. ``keys`` must be a unique key of the rows; where they are not, put
    ``UpsertMaterialize`` before. Rows without ``row_kind`` are insertions. ``writer`` names the job and sink in the
    table of micro-batches: one for each that writes into a target. The changes, one a key, are brought to the driver,
    so that ``spark.driver.maxResultSize`` bounds them. Returns False for a micro-batch that has been written before.

    Raises SchemaError for columns that the target cannot take and for a key that is null, JobError for a micro-batch
    older than what was written; nothing is written then.
    """
    names = (keys,) if isinstance(keys, str) else tuple(keys)
    target.check(arrow_schema_of(rows), names)
    if ROW_KIND_COLUMN not in rows.columns:
        rows = rows.selectExpr("*", f"'+I' as {ROW_KIND_COLUMN}")
    changes = changes_of(last_changes(rows, names).toArrow(), names)
    return target.write(writer, batch if isinstance(batch, int) else batch.batch_id, changes)


def changes_of(last: pa.Table, keys: tuple[str, ...]) -> Changes:
    """The last change of each key, with ``row_kind``, as what comes and what goes."""
    for name in keys:
        if last.column(name).null_count:
            raise OperatorError(
                f"key column '{name}' is null in {last.column(name).null_count} rows, which no primary key can be; "
                "filter them out before the sink; nothing was written"
            )
    goes = pc.equal(last.column(ROW_KIND_COLUMN), "-D")
    rows = last.drop_columns([ROW_KIND_COLUMN])
    return Changes(rows.filter(pc.invert(goes)), rows.filter(goes).select(list(keys)), keys)


class UpsertSink:
    """``write_upserts`` as a sink of a graph: ``totals.to(UpsertSink("customer", target, writer="totals"))``."""

    def __init__(self, keys: str | Sequence[str], target: Target, writer: str = "asyncstate") -> None:
        if not keys:
            raise SchemaError("UpsertSink: keys names no column; give those of the target's primary key")
        self.keys = keys
        self.target = target
        self.writer = writer

    def write(self, rows: DataFrame, batch_id: int) -> None:
        """See ``write_upserts``."""
        write_upserts(batch_id, rows, self.keys, self.target, self.writer)
