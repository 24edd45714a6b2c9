"""Parquet files, one per micro-batch: of changes, or of rows that are appended.

Owns: ``ParquetTarget``.
Invariant: a micro-batch's file exists whole or not at all; readers ignore files of other names.
Must not import pyspark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from asyncstate.changelog import ROW_KIND_COLUMN
from asyncstate.driver.write_marks import UNKNOWN, Mark, Origin, is_written, mark_from, mark_of
from asyncstate.errors import ConfigurationError, SchemaError, StoreError
from asyncstate.locations import absolute
from asyncstate.spark.sinks.column_checks import plain
from asyncstate.spark.sinks.target import TargetChanges, check_keys, check_text
from asyncstate.storage.files import make_folder, sync

_MARK: Final = b"asyncstate.mark"
_DIGITS: Final = 12
"""So that the names of files of rows are in the order of their micro-batches."""


class _Files(NamedTuple):
    """A writer's files, relative to the root: that of micro-batch N is ``before``, N with ``digits``, ``after``."""

    before: str
    after: str
    digits: int = 1

    @property
    def folder(self) -> str:
        """What they have in common; empty for the root."""
        return self.before.rpartition("/")[0]

    def name(self, batch_id: int) -> str:
        """The file of a micro-batch."""
        return f"{self.before}{batch_id:0{self.digits}d}{self.after}"

    def last(self, names: Iterable[str]) -> int | None:
        """The newest micro-batch that has a file among ``names``."""
        cut = slice(len(self.before), -len(self.after))
        numbers = [int(name[cut]) for name in names if name[cut].isdecimal() and name.startswith(self.before)]
        wanted = set(names)
        return max((number for number in numbers if self.name(number) in wanted), default=None)


class ParquetTarget:
    """``folder`` (a path, ``s3://...``), which gets one file per micro-batch.

    Upserts: ``writer=<writer>/batch=<id>/changes.parquet``, with the changes of the micro-batch, at most one per key.
    ``row_kind`` is ``+U`` or ``-D``; a deleted row has only its key. Appended rows: ``part-<writer>-<id>.parquet``, for
    readers of the whole folder; a micro-batch without rows has no file.
    """

    def __init__(self, folder: str) -> None:
        self.folder = absolute(check_text("ParquetTarget", "folder", folder))

    @property
    def place(self) -> str:
        """The folder, as errors name it."""
        return self.folder

    def check(self, schema: pa.Schema, keys: tuple[str, ...]) -> None:
        """See ``Target``; also refuses a place that cannot be reached."""
        check_keys(self.folder, schema, keys)
        self.check_append(schema)

    def check_append(self, schema: pa.Schema) -> None:
        """See ``AppendTarget``; also refuses a place that cannot be reached."""
        _check_types(self.folder, schema)
        files, root = self._opened()
        with self._failing():
            if files.get_file_info(root).type == fs.FileType.File:
                raise SchemaError(f"{self.folder} is a file; name a folder")

    def write(self, writer: str, batch_id: int, changes: TargetChanges, origin: Origin = UNKNOWN) -> bool:
        """See ``Target``. Types must be those of the micro-batch before. The files of another checkpoint are not taken
        over, since nothing says which of two rows of a key is newer."""
        before = f"writer={quote(origin.named(writer), safe='')}/batch="
        rows = changes.marked(ROW_KIND_COLUMN, "+U", "-D")
        return self._write(_Files(before, "/changes.parquet"), writer, batch_id, rows, origin)

    def append(self, writer: str, batch_id: int, rows: pa.Table, origin: Origin = UNKNOWN) -> bool:
        """See ``AppendTarget``. Types must be those of the micro-batch before. The files of another checkpoint are not
        taken over, since its micro-batches have the same numbers."""
        # Spark decodes a % in the name of a file at some places and not at others.
        name = quote(origin.named(writer), safe="").replace("~", "%7E").replace("%", "~")
        own = _Files(f"part-{name}-", ".parquet", _DIGITS)
        return self._write(own, writer, batch_id, rows, origin, is_append=True)

    def _write(
        self,
        own: _Files,
        writer: str,
        batch_id: int,
        rows: pa.Table,
        origin: Origin,
        *,
        is_append: bool = False,
    ) -> bool:
        _check_types(self.folder, rows.schema)
        rows = pa.table([plain(column) for column in rows.columns], rows.column_names)
        files, root = self._opened()
        with self._failing():
            last = own.last(_names(files, root, own.folder))
            before = None if last is None else pq.read_schema(f"{root}/{own.name(last)}", filesystem=files)
            mark = None if last is None or before is None else _mark(last, before)
            if is_written(self.folder, writer, batch_id, origin, mark, takes_over=False, has_gaps=is_append):
                return False
            if before is not None:
                self._check_same_types(before, rows.schema)
            if rows.num_rows or not is_append:
                marked = rows.replace_schema_metadata({_MARK: mark_from(origin, batch_id).text()})
                _put(files, f"{root}/{own.name(batch_id)}", marked)
        return True

    def _opened(self) -> tuple[fs.FileSystem, str]:
        if "://" not in self.folder:
            return fs.LocalFileSystem(), self.folder.rstrip("/")
        try:
            files, root = fs.FileSystem.from_uri(self.folder)
            return files, root.rstrip("/")
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


def _names(files: fs.FileSystem, root: str, folder: str) -> list[str]:
    """The files in a folder below ``root`` and, unless it is the root, in its folders; relative to ``root``."""
    place = fs.FileSelector(f"{root}/{folder}".rstrip("/"), recursive=bool(folder), allow_not_found=True)
    return [info.path.removeprefix(f"{root}/") for info in files.get_file_info(place)]


def _put(files: fs.FileSystem, path: str, rows: pa.Table) -> None:
    """Write a file that appears under its name whole. Until then readers skip it: its name begins with an underscore
    and does not end in ``.parquet``. On a local disk it is synced, as the state is that the job commits next."""
    folder, _, name = path.rpartition("/")
    is_local = isinstance(files, fs.LocalFileSystem)
    if is_local:
        make_folder(Path(folder))
    else:
        files.create_dir(folder)
    unfinished = f"{folder}/_{name}.unfinished"
    pq.write_table(rows, unfinished, filesystem=files)
    if is_local:
        sync(Path(unfinished))
    files.move(unfinished, path)
    if is_local:
        sync(Path(folder))
