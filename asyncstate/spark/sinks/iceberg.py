"""An Iceberg table.

Owns: ``IcebergTarget``; needs pyiceberg (``pip install 'asyncstate[iceberg]'``).
Invariant: a write is one commit to the catalog, which sets the micro-batch's id as a property of the table.
Must not import pyspark.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from asyncstate.driver.write_marks import UNKNOWN, Origin, is_written, mark_from, mark_of
from asyncstate.errors import AsyncStateError, ConfigurationError, SchemaError, StoreError
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
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.table import Table, Transaction

_ROW: Final = "__asyncstate_row"
_VERSION_MAX: Final = 2
"""The newest format version that pyiceberg writes."""


class IcebergTarget:
    """``table`` (``"db.totals"``) of a catalog: its name in pyiceberg's configuration, and properties that override it,
    such as ``{"type": "rest", "uri": "..."}``."""

    def __init__(
        self, table: str, catalog: str | None = None, properties: dict[str, str] | None = None
    ) -> None:
        self.table = check_text("IcebergTarget", "table", table)
        self.catalog = catalog
        self.properties = properties or {}

    def check(self, schema: pa.Schema, keys: tuple[str, ...]) -> None:
        """See ``Target``. Iceberg enforces no primary keys, so the caller must choose unique ``keys``. Rows must have
        all columns of the table, since a changed row is replaced."""
        check_keys(self.place, schema, keys)
        self._check(self._load(), schema, keys)

    def check_append(self, schema: pa.Schema) -> None:
        """See ``AppendTarget``. Columns that the rows lack must be optional. A table with identifier fields is refused:
        appended rows could repeat them, and Iceberg does not find out."""
        self._check(self._load(), schema, ())

    def append(self, writer: str, batch_id: int, rows: pa.Table, origin: Origin = UNKNOWN) -> bool:
        """See ``AppendTarget``. A second driver that wrote meanwhile makes it fail, with nothing written."""
        return self.write(writer, batch_id, TargetChanges.appended(rows), origin)

    def _check(self, table: Table, schema: pa.Schema, keys: tuple[str, ...]) -> None:
        known = table.schema().as_arrow()
        check_columns(self.place, schema, known.names)
        check_types(self.place, schema, known)
        self._check_format(table)
        lacking = [name for name in known.names if name not in schema.names]
        if keys and lacking:
            raise SchemaError(
                f"{self.place} has columns that the rows lack ({', '.join(lacking)}), but a row must have all "
                "columns; add them before the sink"
            )
        identifiers = table.schema().identifier_field_names()
        if identifiers and not keys:
            shown = ", ".join(sorted(identifiers))
            raise SchemaError(
                f"{self.place} has the identifier fields {shown}, which appended rows could repeat; write with "
                f"UpsertSink([{shown}], ...), or remove the identifier fields of the table"
            )
        if identifiers and identifiers != set(keys):
            raise SchemaError(
                f"{self.place} has the identifier fields {', '.join(sorted(identifiers))}, but the sink's keys are "
                f"{', '.join(keys)}; use the same"
            )
        if not table.spec().is_unpartitioned():
            with extra("iceberg", "IcebergTarget"):
                import pyiceberg_core  # noqa: F401  (pyiceberg partitions rows by it)

    def _check_format(self, table: Table) -> None:
        """Raise SchemaError for a table that pyiceberg would not write, or not as the table says."""
        from pyiceberg.transforms import UnknownTransform

        unknown = [
            field.name for field in table.spec().fields if isinstance(field.transform, UnknownTransform)
        ]
        files = table.properties.get("write.format.default", "parquet").lower()
        problem = ""
        if table.format_version > _VERSION_MAX:
            problem = f"has format version {table.format_version}, but pyiceberg writes up to {_VERSION_MAX}"
        elif files != "parquet":
            problem = f"has write.format.default = {files}, but pyiceberg writes Parquet"
        elif unknown:
            problem = f"is partitioned by a transform that pyiceberg does not know ({', '.join(unknown)})"
        if problem:
            raise SchemaError(f"{self.place} {problem}; change the table, or write into another one")

    def write(self, writer: str, batch_id: int, changes: TargetChanges, origin: Origin = UNKNOWN) -> bool:
        """See ``Target``. A second driver that wrote meanwhile makes it fail, with nothing written."""
        with extra("iceberg", "IcebergTarget"):
            from pyiceberg.exceptions import CommitFailedException, ValidationException
        table = self._load()
        name = f"asyncstate.mark.{origin.named(writer)}"
        mark = table.properties.get(name)
        if is_written(self.place, writer, batch_id, origin, None if mark is None else mark_of(mark)):
            return False
        self._check(table, changes.upserts.schema, changes.keys)
        check_no_nan(self.place, changes)
        # A commit that pyiceberg retries by itself would overwrite what another driver has written meanwhile. This is
        # its copy of the table's properties, which is not written.
        table.metadata.properties["commit.retry.num-retries"] = "0"
        try:
            with table.transaction() as transaction, warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about a key to delete that does not exist
                if changes.keys:
                    self._replace(table, transaction, changes)
                elif changes.upserts.num_rows:
                    self._append(table, transaction, changes.upserts)
                transaction.set_properties({name: mark_from(origin, batch_id).text()})
        except AsyncStateError:
            raise
        except (CommitFailedException, ValidationException) as error:
            raise StoreError(f"{self.place}: {error}; nothing was written") from error
        except Exception as error:  # as in _load, also of a commit that has come through
            raise StoreError(
                f"{self.place}: {type(error).__name__}: {error}; start the query again, which repeats the micro-batch "
                "and writes it once"
            ) from error
        return True

    def _append(self, table: Table, transaction: Transaction, rows: pa.Table) -> None:
        known = table.schema().as_arrow()
        whole = with_all_columns(cast_to(self.place, rows, known, required=True), known)
        transaction.append(whole.cast(known))

    def _replace(self, table: Table, transaction: Transaction, changes: TargetChanges) -> None:
        """Delete the rows of all changed keys, and add the new ones and the rows that stay of their files.

        The filter has the values of each key column: for a key of several columns it finds more rows than those that
        change, and the others are written again. A filter of the keys themselves takes milliseconds per key.
        """
        known = table.schema().as_arrow()
        keys = list(changes.keys)
        upserts = cast_to(self.place, changes.upserts, known, required=True).select(known.names)
        deletes = cast_to(self.place, changes.deletes, known, required=True).select(keys)
        touched = pa.concat_tables([upserts.select(keys), deletes])
        if not touched.num_rows:
            return
        found = _any_of(touched)
        rows = upserts
        if len(keys) > 1:
            stays = _without(table.scan(found).to_arrow(), touched)
            rows = pa.concat_tables([cast_to(self.place, stays, known, required=True), upserts])
        if rows.num_rows:
            transaction.overwrite(rows, found)
        else:
            transaction.delete(found)

    @property
    def place(self) -> str:
        """The table, as errors name it."""
        return f"Iceberg table {self.table}"

    def _load(self) -> Table:
        if "." not in self.table:
            raise ConfigurationError(
                f"IcebergTarget: table {self.table!r} has no namespace; give both, such as 'db.totals'"
            )
        with extra("iceberg", "IcebergTarget"):
            from pyiceberg.catalog import load_catalog
            from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
        try:
            return load_catalog(self.catalog, **self.properties).load_table(self.table)
        except (NoSuchTableError, NoSuchNamespaceError) as error:
            raise SchemaError(
                f"{self.place} does not exist; create it with the columns of the rows"
            ) from error
        except ValueError as error:
            raise ConfigurationError(
                f"{self.place}: catalog {self.catalog!r}: {error}; name a catalog of pyiceberg's configuration, or "
                "give its properties"
            ) from error
        except Exception as error:  # the errors of a catalog's own client: HTTP, SQL, Thrift, AWS
            raise StoreError(f"{self.place}: {type(error).__name__}: {error}") from error


def _any_of(keys: pa.Table) -> BooleanExpression:
    from pyiceberg.expressions import AlwaysTrue, And, In

    found: BooleanExpression = AlwaysTrue()
    for name in keys.column_names:
        values: Any = In  # its types declare the fields of its model, but not its constructor
        found = And(found, values(name, keys.column(name).unique().to_pylist()))
    return found


def _without(rows: pa.Table, keys: pa.Table) -> pa.Table:
    """The rows that have none of the keys."""
    own = rows.select(keys.column_names).cast(keys.schema)
    numbered = own.append_column(_ROW, pa.array(range(rows.num_rows), pa.int64()))
    left = numbered.join(keys, keys.column_names, join_type="left anti").column(_ROW)
    return rows.take(left.sort() if left.num_chunks else left)
