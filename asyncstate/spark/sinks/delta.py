"""A Delta table.

Owns: ``DeltaTarget``; needs deltalake (``pip install 'asyncstate[delta]'``).
Invariant: a write is one commit of the table's log, which carries the micro-batch's id as the writer's transaction.
Must not import pyspark.

Source: the transaction identifiers (``txn``) of the Delta transaction log protocol.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from asyncstate.errors import SchemaError, StoreError
from asyncstate.spark.sinks.sql import identifier
from asyncstate.spark.sinks.target import Changes, cast_to, check_columns, extra, is_written

if TYPE_CHECKING:
    from deltalake import DeltaTable

_GONE = "__asyncstate_gone"


class DeltaTarget:
    """The table at ``uri`` (a folder, ``s3://...``); ``storage_options`` as deltalake takes them."""

    def __init__(self, uri: str, storage_options: dict[str, str] | None = None) -> None:
        self.uri = uri
        self.storage_options = storage_options

    def check(self, schema: pa.Schema, keys: tuple[str, ...]) -> None:
        """See ``Target``. Delta knows no primary keys: that ``keys`` are one is for the caller to know."""
        known = self._schema(self._table())
        check_columns(self._place, schema, keys, known.names)
        cast_to(self._place, schema.empty_table(), known)

    def write(self, writer: str, batch_id: int, changes: Changes) -> bool:
        """See ``Target``. A second driver that wrote meanwhile makes it fail, with nothing written."""
        with extra("delta", "DeltaTarget"):
            from deltalake import CommitProperties, Transaction
            from deltalake.exceptions import DeltaError
        table = self._table()
        if is_written(self._place, writer, batch_id, table.transaction_version(writer)):
            return False
        names, keys = changes.upserts.column_names, changes.keys
        own = {identifier(name): f"s.{identifier(name)}" for name in names}
        try:
            (
                table.merge(
                    self._source(changes, self._schema(table)),
                    " AND ".join(f"t.{identifier(name)} = s.{identifier(name)}" for name in keys),
                    source_alias="s",
                    target_alias="t",
                    commit_properties=CommitProperties(app_transactions=[Transaction(writer, batch_id)]),
                )
                .when_matched_delete(f"s.{_GONE}")
                .when_matched_update(own, f"NOT s.{_GONE}")
                .when_not_matched_insert(own, f"NOT s.{_GONE}")
                .execute()
            )
        except DeltaError as error:
            raise StoreError(f"{self._place}: {error}; nothing was written") from error
        return True

    def _source(self, changes: Changes, schema: pa.Schema) -> pa.Table:
        upserts = cast_to(self._place, changes.upserts, schema)
        deletes = cast_to(self._place, changes.deletes, schema)
        return Changes(upserts, deletes, changes.keys).marked(_GONE, False, True)

    @property
    def _place(self) -> str:
        return f"Delta table {self.uri}"

    def _table(self) -> DeltaTable:
        with extra("delta", "DeltaTarget"):
            from deltalake import DeltaTable
            from deltalake.exceptions import DeltaError, TableNotFoundError
        try:
            return DeltaTable(self.uri, storage_options=self.storage_options)
        except TableNotFoundError as error:
            raise SchemaError(f"{self._place} does not exist; create it with the rows' columns") from error
        except DeltaError as error:
            raise StoreError(f"{self._place}: {error}") from error

    @staticmethod
    def _schema(table: DeltaTable) -> pa.Schema:
        return pa.schema(table.schema().to_arrow())
