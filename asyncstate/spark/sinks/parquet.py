"""Parquet files, one a micro-batch.

Owns: ``ParquetTarget``.
Invariant: a micro-batch's file is there whole or not at all; files of other names are none of a reader's.
Must not import pyspark.
"""

from __future__ import annotations

from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from asyncstate.changelog import ROW_KIND_COLUMN
from asyncstate.errors import SchemaError, StoreError
from asyncstate.spark.sinks.target import Changes, check_columns, is_written

_FILE = "changes.parquet"
_UNFINISHED = "_changes.parquet"  # readers pass over names with an underscore


class ParquetTarget:
    """``folder`` (a path, ``s3://...``): ``writer=<writer>/batch=<id>/changes.parquet``, with the changes of the
    micro-batch, at most one a key. ``row_kind`` is ``+U`` or ``-D``; of what goes only the key is set."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def check(self, schema: pa.Schema, keys: tuple[str, ...]) -> None:
        """See ``Target``."""
        check_columns(self.folder, schema, keys, schema.names)

    def write(self, writer: str, batch_id: int, changes: Changes) -> bool:
        """See ``Target``. Types must be those of the micro-batch before."""
        try:
            files, root = (
                fs.FileSystem.from_uri(self.folder)
                if "://" in self.folder
                else (fs.LocalFileSystem(), self.folder)
            )
            folder = f"{root}/writer={quote(writer, safe='')}"
            last = _last(files, folder)
            if is_written(self.folder, writer, batch_id, last):
                return False
            rows = changes.marked(ROW_KIND_COLUMN, "+U", "-D")
            if last is not None:
                self._check_types(
                    pq.read_schema(f"{folder}/batch={last}/{_FILE}", filesystem=files), rows.schema
                )
            here = f"{folder}/batch={batch_id}"
            files.create_dir(here)
            pq.write_table(rows, f"{here}/{_UNFINISHED}", filesystem=files)
            files.move(f"{here}/{_UNFINISHED}", f"{here}/{_FILE}")
        except OSError as error:
            raise StoreError(f"{self.folder}: {error}; the micro-batch was not written") from error
        return True

    def _check_types(self, before: pa.Schema, now: pa.Schema) -> None:
        for field in now:
            if field.name in before.names and before.field(field.name).type != field.type:
                was = before.field(field.name).type
                raise SchemaError(
                    f"{self.folder}: column '{field.name}' is of type {field.type}, and was {was} in the micro-batch "
                    "before; cast it before the sink, or write into another folder"
                )


def _last(files: fs.FileSystem, folder: str) -> int | None:
    """The last micro-batch whose file is whole."""
    found = files.get_file_info(fs.FileSelector(folder, recursive=True, allow_not_found=True))
    whole = [info.path.split("/")[-2] for info in found if info.base_name == _FILE]
    return max((int(name.removeprefix("batch=")) for name in whole), default=None)
