"""An Iceberg table.

Owns: ``IcebergTarget``; needs pyiceberg (``pip install 'asyncstate[iceberg]'``).
Invariant: a write is one commit to the catalog, which sets the micro-batch's id as a property of the table.
Must not import pyspark.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import pyarrow as pa

from asyncstate.errors import SchemaError, StoreError
from asyncstate.spark.sinks.target import Changes, cast_to, check_columns, extra, is_written

if TYPE_CHECKING:
    from pyiceberg.table import Table


class IcebergTarget:
    """``table`` (``"db.totals"``) of a catalog: its name in pyiceberg's configuration, and properties that come on top,
    such as ``{"type": "rest", "uri": "..."}``."""

    def __init__(
        self, table: str, catalog: str | None = None, properties: dict[str, str] | None = None
    ) -> None:
        self.table = table
        self.catalog = catalog
        self.properties = properties or {}

    def check(self, schema: pa.Schema, keys: tuple[str, ...]) -> None:
        """See ``Target``. Iceberg enforces no primary keys: that ``keys`` are one is for the caller to know. Rows must
        have all columns of the table, since a changed row is written anew."""
        known = self._load().schema().as_arrow()
        check_columns(self._place, schema, keys, known.names)
        cast_to(self._place, schema.empty_table(), known)
        lacking = [name for name in known.names if name not in schema.names]
        if lacking:
            raise SchemaError(
                f"{self._place} has columns that the rows lack ({', '.join(lacking)}), and a row is written "
                "whole; add them before the sink"
            )

    def write(self, writer: str, batch_id: int, changes: Changes) -> bool:
        """See ``Target``. A second driver that wrote meanwhile makes it fail, with nothing written."""
        with extra("iceberg", "IcebergTarget"):
            from pyiceberg.exceptions import CommitFailedException
            from pyiceberg.table.upsert_util import create_match_filter
        table = self._load()
        name = f"asyncstate.batch-id.{writer}"
        last = table.properties.get(name)
        if is_written(self._place, writer, batch_id, None if last is None else int(last)):
            return False
        known = table.schema().as_arrow()
        keys, deletes = list(changes.keys), cast_to(self._place, changes.deletes, known)
        upserts = cast_to(self._place, changes.upserts, known).select(known.names)
        try:
            with table.transaction() as transaction, warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that a key to delete is not there
                if deletes.num_rows:
                    transaction.delete(create_match_filter(deletes, keys))
                if upserts.num_rows:
                    transaction.upsert(upserts, keys)
                transaction.set_properties({name: str(batch_id)})
        except CommitFailedException as error:
            raise StoreError(f"{self._place}: {error}; nothing was written") from error
        return True

    @property
    def _place(self) -> str:
        return f"Iceberg table {self.table}"

    def _load(self) -> Table:
        with extra("iceberg", "IcebergTarget"):
            from pyiceberg.catalog import load_catalog
            from pyiceberg.exceptions import NoSuchTableError
        try:
            return load_catalog(self.catalog, **self.properties).load_table(self.table)
        except NoSuchTableError as error:
            raise SchemaError(f"{self._place} does not exist; create it with the rows' columns") from error
