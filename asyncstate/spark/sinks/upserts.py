"""From a micro-batch's changelog to the changes that a table gets.

Owns: ``write_upserts`` and ``UpsertSink``.
Invariant: a key has one change, the last one; rows that the target cannot take are refused before it is written to.
Must not import runtime, storage or execution.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Final

import pyarrow as pa
import pyarrow.compute as pc

from asyncstate.changelog import RETRACT, ROW_KIND_COLUMN, Changelog
from asyncstate.driver import arrow_changes
from asyncstate.errors import ConfigurationError, JobError, OperatorError, SchemaError
from asyncstate.spark.compatibility import arrow_table
from asyncstate.spark.exchange import arrow_schema_of
from asyncstate.spark.facts import insertions, known_changes
from asyncstate.spark.net_changes import check_table_key, last_changes
from asyncstate.spark.sinks.target import Target, TargetChanges

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from asyncstate.spark.spark_micro_batch import MicroBatch

WRITER_CHARACTERS_MAX: Final = 255


def write_upserts(
    batch: MicroBatch | int,
    rows: DataFrame | pa.Table,
    keys: str | Sequence[str],
    target: Target,
    writer: str = "asyncstate",
    changes: Changelog | None = None,
) -> bool:
    """Write the changelog ``rows`` of a micro-batch into ``target``, by the columns ``keys``, exactly once.

    ``batch``: the micro-batch; or its id, outside a StreamingJob. ``keys`` must be a unique key of the rows; where they
    are not, put ``UpsertMaterialize`` upstream. Rows without ``row_kind`` are insertions. ``changes``: the changelog
    mode of the rows, where it is not known from ``apply``, as in ``last_changes``. ``writer`` distinguishes writes of
    one job into one table: use one for each call of a micro-batch. The changes, one per key, are collected on the
    driver, so that ``spark.driver.maxResultSize`` bounds them. Returns False for a micro-batch that
    has been written before.

    Raises SchemaError for columns that the target cannot take and for a key that is null, JobError for a micro-batch
    that does not follow what was written; nothing is written then.
    """
    names = _checked_keys("write_upserts", keys)
    _check_target("write_upserts", target)
    check_writer("write_upserts", writer)
    last = changes_of(_last_changes(rows, names, target, changes), names)
    if isinstance(batch, int):
        return target.write(writer, batch, last)
    check_first_write(batch, target, writer)
    return target.write(writer, batch.batch_id, last, batch.origin)


def _last_changes(
    rows: DataFrame | pa.Table, names: tuple[str, ...], target: Target, changes: Changelog | None
) -> pa.Table:
    """The last change of each key; rows that are in this process come as an Arrow table."""
    if isinstance(rows, pa.Table):
        target.check(_without_kinds(rows.schema), names)
        check_table_key("write_upserts", changes or RETRACT, names)
        return arrow_changes.last_changes(_with_one_zero(rows, names), names, changes or RETRACT)
    target.check(arrow_schema_of(rows), names)
    known = known_changes(rows) if changes is None else changes
    check_table_key("write_upserts", known, names)
    return arrow_table(last_changes(insertions(rows), names, known))


def _without_kinds(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field for field in schema if field.name != ROW_KIND_COLUMN])


def check_first_write(batch: MicroBatch, target: object, writer: str) -> None:
    """Raise JobError for two writes of a micro-batch with the same mark: the second would be skipped as a repeated
    one."""
    place = destination(target, writer)
    if place in batch.written:
        raise JobError(
            f"{place[0]} already got rows of micro-batch {batch.batch_id} from writer '{writer}'; give each call of "
            "write_upserts its own writer; these rows were not written"
        )
    batch.before_writing()
    batch.written.add(place)


def destination(target: object, writer: str) -> tuple[str, str]:
    """The target and writer name of a sink."""
    place = getattr(target, "place", None)
    return place if isinstance(place, str) else f"target {id(target):x}", writer


def _checked_keys(owner: str, keys: object) -> tuple[str, ...]:
    names = (keys,) if isinstance(keys, str) else tuple(keys) if isinstance(keys, list | tuple) else ()
    if not names or not all(isinstance(name, str) and name for name in names):
        raise SchemaError(f"{owner}: keys is empty ({keys!r}); give the columns of the target's primary key")
    return names


def _check_target(owner: str, target: object) -> None:
    if not all(callable(getattr(target, name, None)) for name in ("check", "write")):
        raise ConfigurationError(
            f"{owner}: {target!r} is not a target; give one such as PostgresTarget(...), or an object with "
            "the methods check and write of asyncstate.spark.sinks.Target"
        )


def check_writer(owner: str, writer: object) -> None:
    good = isinstance(writer, str) and writer and writer == writer.strip() and "\0" not in writer
    if not good or len(str(writer)) > WRITER_CHARACTERS_MAX:
        raise ConfigurationError(
            f"{owner}: writer {writer!r} is not a name; give a string of 1 to {WRITER_CHARACTERS_MAX} characters that "
            "never changes for this sink"
        )


def changes_of(last: pa.Table, keys: tuple[str, ...]) -> TargetChanges:
    """The last change of each key, with ``row_kind``, split into upserts and deletes."""
    for name in keys:
        if last.column(name).null_count:
            raise OperatorError(
                f"key column '{name}' is null in {last.column(name).null_count} rows, which a primary key cannot be; "
                "filter them out before the sink; nothing was written"
            )
    goes = pc.equal(last.column(ROW_KIND_COLUMN), "-D")
    rows = _with_one_zero(last.drop_columns([ROW_KIND_COLUMN]), keys)
    return TargetChanges(rows.filter(pc.invert(goes)), rows.filter(goes).select(list(keys)), keys)


def _with_one_zero(rows: pa.Table, keys: tuple[str, ...]) -> pa.Table:
    """``rows`` with 0.0 in place of -0.0 in keys: they are one key here, but not where keys are texts, nor in Delta."""
    for at, field in enumerate(rows.schema):
        if field.name in keys and pa.types.is_floating(field.type):
            rows = rows.set_column(at, field, pc.add(rows.column(at), pa.scalar(0.0, field.type)))
    return rows


class UpsertSink:
    """``write_upserts`` as a sink of a graph: ``totals.to(UpsertSink("customer", target), name="totals")``.

    The graph's ``check`` asks the target whether it can be written to. ``writer`` is by default the name that the sink
    has in the graph; to rename a sink in the graph without losing its position in the target, set ``writer`` to the old
    name.
    """

    keeps_table: ClassVar[bool] = True
    """The target has the table that the rows describe: a graph that would write other rows to it is refused."""

    def __init__(self, keys: str | Sequence[str], target: Target, writer: str | None = None) -> None:
        self.keys = _checked_keys("UpsertSink", keys)
        _check_target("UpsertSink", target)
        if writer is not None:
            check_writer("UpsertSink", writer)
        self.target = target
        self.writer = writer

    def check(self, schema: StructType | pa.Schema) -> None:
        """Raise the errors of ``write`` about the table, its types and its server; nothing is written."""
        own = _without_kinds(schema) if isinstance(schema, pa.Schema) else arrow_schema_of(schema)
        self.target.check(own, self.keys)

    def check_changes(self, changes: Changelog) -> None:
        """Raise SchemaError for rows that are upserts by another key; the graph calls it before a row is read."""
        check_table_key("UpsertSink", changes, self.keys)

    def destination(self, name: str) -> tuple[str, str]:
        """The target and writer name: two sinks of a graph must not share them. ``name``: the sink's name in the
        graph."""
        return destination(self.target, self.writer or name)

    def write_micro_batch(self, rows: DataFrame, batch: MicroBatch, name: str) -> None:
        """See ``write_upserts``; the graph calls it with the name of the sink."""
        write_upserts(batch, rows, self.keys, self.target, self.writer or name)

    def write_arrow_micro_batch(
        self, rows: pa.Table, batch: MicroBatch, name: str, changes: Changelog | None
    ) -> None:
        """``write_micro_batch`` with rows that are in this process."""
        write_upserts(batch, rows, self.keys, self.target, self.writer or name, changes)

    def write(self, rows: DataFrame, batch_id: int) -> None:
        """``write_upserts`` without a job, whose micro-batches are identified by their number alone."""
        write_upserts(batch_id, rows, self.keys, self.target, self.writer or "asyncstate")
