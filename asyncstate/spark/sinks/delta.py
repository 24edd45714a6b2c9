"""A Delta table.

Owns: ``DeltaTarget``; needs deltalake (``pip install 'asyncstate[delta]'``).
Invariant: a write is one commit of the table's log, which carries the micro-batch's id as the writer's transaction.
Must not import pyspark.

Source: the transaction identifiers (``txn``) of the Delta transaction log protocol.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import xxhash

from asyncstate.driver.write_marks import UNKNOWN, Mark, Origin, is_written
from asyncstate.errors import SchemaError, StoreError
from asyncstate.spark.sinks.sql import identifier
from asyncstate.spark.sinks.target import (
    TargetChanges,
    cast_to,
    check_columns,
    check_no_nan,
    check_text,
    check_types,
    extra,
)

if TYPE_CHECKING:
    from deltalake import DeltaTable

_GONE = "__asyncstate_gone"


class DeltaTarget:
    """The table at ``uri`` (a folder, ``s3://...``); ``storage_options`` as deltalake takes them."""

    def __init__(self, uri: str, storage_options: dict[str, str] | None = None) -> None:
        self.uri = check_text("DeltaTarget", "uri", uri)
        self.storage_options = storage_options

    def check(self, schema: pa.Schema, keys: tuple[str, ...]) -> None:
        """See ``Target``. Delta knows no primary keys: that ``keys`` are one is for the caller to know."""
        self._check(schema, keys, self._schema(self._table()))

    def _check(self, schema: pa.Schema, keys: tuple[str, ...], known: pa.Schema) -> None:
        check_columns(self.place, schema, keys, known.names)
        check_types(self.place, schema, known)

    def write(self, writer: str, batch_id: int, changes: TargetChanges, origin: Origin = UNKNOWN) -> bool:
        """See ``Target``. A second driver that wrote meanwhile makes it fail, with nothing written."""
        with extra("delta", "DeltaTarget"):
            from deltalake import CommitProperties, Transaction
            from deltalake.exceptions import DeltaError
        table = self._table()
        name, hashed = origin.named(writer), _hashed(origin)
        if is_written(self.place, writer, batch_id, hashed, _mark(table, name), has_gaps=True):
            return False
        known = self._schema(table)
        self._check(changes.upserts.schema, changes.keys, known)
        check_no_nan(self.place, changes)
        marks = {
            name: batch_id,
            f"{name}/checkpoint": int(hashed.checkpoint),
            f"{name}/driver": int(hashed.driver),
        }
        transactions = [Transaction(app, version) for app, version in marks.items()]
        names, keys = changes.upserts.column_names, changes.keys
        own = {identifier(name): f"s.{identifier(name)}" for name in names}
        try:
            (
                table.merge(
                    self._source(changes, known),
                    " AND ".join(f"t.{identifier(name)} = s.{identifier(name)}" for name in keys),
                    source_alias="s",
                    target_alias="t",
                    commit_properties=CommitProperties(app_transactions=transactions),
                )
                .when_matched_delete(f"s.{_GONE}")
                .when_matched_update(own, f"NOT s.{_GONE}")
                .when_not_matched_insert(own, f"NOT s.{_GONE}")
                .execute()
            )
        except DeltaError as error:
            raise StoreError(f"{self.place}: {error}; nothing was written") from error
        return True

    def _source(self, changes: TargetChanges, schema: pa.Schema) -> pa.Table:
        upserts = cast_to(self.place, changes.upserts, schema)
        deletes = cast_to(self.place, changes.deletes, schema)
        return TargetChanges(upserts, deletes, changes.keys).marked(_GONE, False, True)

    @property
    def place(self) -> str:
        """The table, as errors name it."""
        return f"Delta table {self.uri}"

    def _table(self) -> DeltaTable:
        with extra("delta", "DeltaTarget"):
            from deltalake import DeltaTable
            from deltalake.exceptions import DeltaError, TableNotFoundError
        try:
            return DeltaTable(self.uri, storage_options=self.storage_options)
        except TableNotFoundError as error:
            raise SchemaError(
                f"{self.place} does not exist; create it with the columns of the rows"
            ) from error
        except (DeltaError, OSError, ValueError) as error:
            raise StoreError(f"{self.place}: {error}") from error

    @staticmethod
    def _schema(table: DeltaTable) -> pa.Schema:
        return pa.schema(table.schema().to_arrow())


def _mark(table: DeltaTable, name: str) -> Mark | None:
    last = table.transaction_version(name)
    if last is None:
        return None
    checkpoint, driver = (
        table.transaction_version(f"{name}/{part}") or 0 for part in ("checkpoint", "driver")
    )
    return Mark(last, str(checkpoint), str(driver))


def _hashed(origin: Origin) -> Origin:
    """The origin with numbers for its ids: a transaction of Delta's log has a number and no text."""
    return origin._replace(
        checkpoint=_number(origin.checkpoint),
        driver=_number(origin.driver),
        earlier={_number(driver): last for driver, last in origin.earlier.items()},
    )


def _number(text: str) -> str:
    return str(xxhash.xxh3_64_intdigest(text.encode()) >> 1 if text else 0)
