"""A Delta table.

Owns: ``DeltaTarget``; needs deltalake (``pip install 'asyncstate[delta]'``).
Invariant: a write is one commit of the table's log, which carries the micro-batch's id as the writer's transaction.
Must not import pyspark.

Source: the transaction identifiers (``txn``) of the Delta transaction log protocol.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
import xxhash

from asyncstate.driver.write_marks import UNKNOWN, Mark, Origin, is_written
from asyncstate.errors import SchemaError, StoreError
from asyncstate.locations import absolute
from asyncstate.spark.sinks.sql import identifier
from asyncstate.spark.sinks.target import (
    TargetChanges,
    cast_to,
    check_columns,
    check_keys,
    check_no_nan,
    check_text,
    check_types,
    extra,
    with_all_columns,
)

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable

_GONE = "__asyncstate_gone"
_FEATURES: Final = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "columnMapping",
        "deletionVectors",
        "generatedColumns",
        "invariants",
        "timestampNtz",
        "v2Checkpoint",
        "variantType",
    }
)
"""Writer features with which deltalake commits; ``columnMapping`` only while its mode is none."""
_IDENTITY_VERSION: Final = 6
"""The writer version, before features, that has identity columns."""


class DeltaTarget:
    """The table at ``uri`` (a folder, ``s3://...``); ``storage_options`` as deltalake takes them."""

    def __init__(self, uri: str, storage_options: dict[str, str] | None = None) -> None:
        self.uri = absolute(check_text("DeltaTarget", "uri", uri))
        self.storage_options = storage_options

    def check(self, schema: pa.Schema, keys: tuple[str, ...]) -> None:
        """See ``Target``. Delta knows no primary keys: that ``keys`` are one is for the caller to know."""
        check_keys(self.place, schema, keys)
        self._check(self._table(), schema, keys)

    def check_append(self, schema: pa.Schema) -> None:
        """See ``AppendTarget``. Columns that the rows lack must be nullable."""
        self._check(self._table(), schema, ())

    def append(self, writer: str, batch_id: int, rows: pa.Table, origin: Origin = UNKNOWN) -> bool:
        """See ``AppendTarget``. A second driver that wrote meanwhile makes it fail, with nothing written."""
        return self.write(writer, batch_id, TargetChanges.appended(rows), origin)

    def _check(self, table: DeltaTable, schema: pa.Schema, keys: tuple[str, ...]) -> None:
        known = self._schema(table)
        check_columns(self.place, schema, known.names)
        check_types(self.place, schema, known)
        self._check_features(table)
        for field in table.schema().fields:
            if "delta.generationExpression" in field.metadata and field.name not in schema.names:
                raise SchemaError(
                    f"{self.place}: column '{field.name}' is computed from other columns, which deltalake does not do; "
                    "add it before the sink"
                )
        if keys and table.metadata().configuration.get("delta.appendOnly") == "true":
            raise SchemaError(
                f"{self.place} is append-only (delta.appendOnly): its rows cannot be changed; write insert-only rows "
                "with AppendSink, or remove this property of the table"
            )

    def _check_features(self, table: DeltaTable) -> None:
        """Raise SchemaError for a table that deltalake would refuse at the commit, or write so that readers find
        nothing in its columns."""
        mode = table.metadata().configuration.get("delta.columnMapping.mode", "none")
        if mode != "none":
            raise SchemaError(
                f"{self.place} maps its columns to other names in files (delta.columnMapping.mode = {mode}), which "
                "deltalake does not: readers would find nulls. Write into a table without column mapping"
            )
        protocol = table.protocol()
        unknown = sorted(set(protocol.writer_features or ()) - _FEATURES)
        if protocol.min_writer_version == _IDENTITY_VERSION:
            unknown = ["identityColumns"]
        if unknown:
            raise SchemaError(
                f"{self.place} has the table features {', '.join(unknown)}, with which deltalake does not write; drop "
                "them from the table, or write into another one"
            )

    def write(self, writer: str, batch_id: int, changes: TargetChanges, origin: Origin = UNKNOWN) -> bool:
        """See ``Target``. A second driver that wrote meanwhile makes it fail, with nothing written."""
        with extra("delta", "DeltaTarget"):
            from deltalake import CommitProperties, Transaction
            from deltalake.exceptions import DeltaError
        table = self._table()
        name, hashed = origin.named(writer), _hashed(origin)
        if is_written(self.place, writer, batch_id, hashed, _mark(table, name), has_gaps=True):
            return False
        self._check(table, changes.upserts.schema, changes.keys)
        check_no_nan(self.place, changes)
        marks = {
            name: batch_id,
            f"{name}/checkpoint": int(hashed.checkpoint),
            f"{name}/driver": int(hashed.driver),
        }
        transactions = [Transaction(app, version) for app, version in marks.items()]
        commit = CommitProperties(app_transactions=transactions)
        try:
            if changes.keys:
                self._merge(table, changes, commit)
            elif changes.upserts.num_rows:
                self._append(table, changes.upserts, commit)
        except DeltaError as error:
            raise StoreError(f"{self.place}: {error}; nothing was written") from error
        return True

    def _append(self, table: DeltaTable, rows: pa.Table, commit: CommitProperties) -> None:
        from deltalake import write_deltalake

        known = self._schema(table)
        whole = with_all_columns(cast_to(self.place, rows, known), known)
        write_deltalake(table, whole, mode="append", commit_properties=commit)

    def _merge(self, table: DeltaTable, changes: TargetChanges, commit: CommitProperties) -> None:
        own = {identifier(name): f"s.{identifier(name)}" for name in changes.upserts.column_names}
        (
            table.merge(
                self._source(changes, self._schema(table)),
                " AND ".join(f"t.{identifier(name)} = s.{identifier(name)}" for name in changes.keys),
                source_alias="s",
                target_alias="t",
                commit_properties=commit,
            )
            .when_matched_delete(f"s.{_GONE}")
            .when_matched_update(own, f"NOT s.{_GONE}")
            .when_not_matched_insert(own, f"NOT s.{_GONE}")
            .execute()
        )

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
