"""Parquet files, one per micro-batch.

Owns: ``ParquetTarget``.
Invariant: a micro-batch's file exists whole or not at all; readers ignore files of other names.
Must not import pyspark.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from asyncstate.changelog import ROW_KIND_COLUMN
from asyncstate.driver.write_marks import UNKNOWN, Mark, Origin, is_written, mark_from, mark_of
from asyncstate.errors import ConfigurationError, SchemaError, StoreError
from asyncstate.spark.sinks.target import TargetChanges, check_columns, check_text

_FILE = "changes.parquet"
_MARK: Final = b"asyncstate.mark"
_UNFINISHED = "_changes.parquet"  # readers skip names with a leading underscore


class ParquetTarget:
    """``folder`` (a path, ``s3://...``): ``writer=<writer>/batch=<id>/changes.parquet``, with the changes of the
    micro-batch, at most one per key. ``row_kind`` is ``+U`` or ``-D``; a deleted row has only its key."""

    def __init__(self, folder: str) -> None:
        self.folder = check_text("ParquetTarget", "folder", folder)

    @property
    def place(self) -> str:
        """The folder, as errors name it."""
        return self.folder

    def check(self, schema: pa.Schema, keys: tuple[str, ...]) -> None:
        """See ``Target``; also refuses a place that cannot be reached."""
        check_columns(self.folder, schema, keys, schema.names)
        _check_types(self.folder, schema)
        files, root = self._opened()
        with self._failing():
            if files.get_file_info(root).type == fs.FileType.File:
                raise SchemaError(f"{self.folder} is a file; name a folder")

    def write(self, writer: str, batch_id: int, changes: TargetChanges, origin: Origin = UNKNOWN) -> bool:
        """See ``Target``. Types must be those of the micro-batch before. The files of another checkpoint are not taken
        over, since nothing says which of two rows of a key is newer."""
        _check_types(self.folder, changes.upserts.schema)
        files, root = self._opened()
        with self._failing():
            folder = f"{root}/writer={quote(origin.named(writer), safe='')}"
            last = _last(files, folder)
            before = (
                None if last is None else pq.read_schema(f"{folder}/batch={last}/{_FILE}", filesystem=files)
            )
            mark = None if last is None or before is None else _mark(last, before)
            if is_written(self.folder, writer, batch_id, origin, mark, takes_over=False):
                return False
            rows = changes.marked(ROW_KIND_COLUMN, "+U", "-D")
            if before is not None:
                self._check_same_types(before, rows.schema)
            here = f"{folder}/batch={batch_id}"
            files.create_dir(here)
            marked = rows.replace_schema_metadata({_MARK: mark_from(origin, batch_id).text()})
            pq.write_table(marked, f"{here}/{_UNFINISHED}", filesystem=files)
            files.move(f"{here}/{_UNFINISHED}", f"{here}/{_FILE}")
        return True

    def _opened(self) -> tuple[fs.FileSystem, str]:
        if "://" not in self.folder:
            return fs.LocalFileSystem(), self.folder
        try:
            files, root = fs.FileSystem.from_uri(self.folder)
            return files, root
        except (pa.ArrowException, OSError, ValueError) as error:
            raise ConfigurationError(
                f"ParquetTarget: pyarrow cannot use {self.folder!r} ({error}); give a path or a URI such "
                "as s3://bucket/folder"
            ) from error

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except (OSError, pa.ArrowInvalid) as error:
            raise StoreError(f"{self.folder}: {error}; the micro-batch was not written") from error

    def _check_same_types(self, before: pa.Schema, now: pa.Schema) -> None:
        for field in now:
            if field.name in before.names and before.field(field.name).type != field.type:
                was = before.field(field.name).type
                raise SchemaError(
                    f"{self.folder}: column '{field.name}' is of type {field.type}, but was {was} in the previous "
                    "micro-batch; cast it before the sink, or write into another folder"
                )


def _check_types(place: str, schema: pa.Schema) -> None:
    for field in schema:
        if _has_lengths_of_time(field.type):
            raise SchemaError(
                f"{place}: column '{field.name}' of type {field.type}: Parquet has no durations, and readers would "
                "see a bare number; cast it before the sink to a string, or to a number whose column name has the "
                "unit"
            )


def _has_lengths_of_time(kind: pa.DataType) -> bool:
    if pa.types.is_nested(kind):
        return any(_has_lengths_of_time(kind.field(i).type) for i in range(kind.num_fields))
    return bool(pa.types.is_duration(kind) or pa.types.is_interval(kind))


def _mark(last: int, schema: pa.Schema) -> Mark:
    text = (schema.metadata or {}).get(_MARK)
    return Mark(last) if text is None else mark_of(text.decode())


def _last(files: fs.FileSystem, folder: str) -> int | None:
    """The last micro-batch whose file is complete."""
    found = files.get_file_info(fs.FileSelector(folder, recursive=True, allow_not_found=True))
    whole = [info.path.split("/")[-2] for info in found if info.base_name == _FILE]
    return max((int(name.removeprefix("batch=")) for name in whole), default=None)
