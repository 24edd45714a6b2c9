"""A buffer for the rows of one input until the micro-batch has all of them; it then returns them grouped by key.

Owns: ``SpillingInputBuffer``: which rows are buffered, where, and how they are split into parts.
Invariant: rows whose changes need each other are in the same part. The rows of a key are in one part; a key is split
only if it alone exceeds the part size: with a sequence in its order, otherwise in order of arrival, except that rows
and their retractions stay together. In files, a key of more than ``memory_bytes`` is split by what identifies its rows,
in no order. Rows that need no others and only wait for an earlier input are returned as they arrived.
Must not import Spark or storage.

A micro-batch that fits into one part is returned as it came. Beyond ``memory_bytes``, rows are spilled to files by the
hash of their key; one file is read at a time. Rows that need no others are in a single file, which is read piece by
piece.

Source: the partitions of a grace hash join.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from asyncstate.changelog import accumulates
from asyncstate.codec import check_key_type, hash_columns
from asyncstate.codec.sorting import rows_by
from asyncstate.codec.times import event_times
from asyncstate.errors import SchemaError, StoreError
from asyncstate.operator import InputSpec
from asyncstate.runtime.rows.prepared_rows import PreparedBatch, joined

RowsMax = Callable[[pa.RecordBatch], int]
"""The maximum rows of a part, estimated from some of its rows."""
Filter = Callable[[PreparedBatch], PreparedBatch]

_FILES: Final = 64
_KIND: Final = "kind"
_Hashes = npt.NDArray[np.uint64]


class SpillingInputBuffer:
    """The buffered rows of one input and partition in one micro-batch.

    ``together``: the columns that identify a row within a key, None if its content does. ``waits``: all rows wait;
    without it, at most one part of rows is buffered until there is a row that is not +I, since insertions need no
    others. ``chosen``: reduces all rows of some keys to those needed, in order of the sequence if there is one.
    ``independent``: rows need no others, whatever their kinds.
    """

    def __init__(
        self,
        spec: InputSpec,
        index: int,
        together: Collection[str] | None,
        waits: bool,
        rows_max: RowsMax,
        memory_bytes: int,
        folder: str,
        chosen: Filter,
        independent: bool = False,
    ) -> None:
        self._spec = spec
        self._index = index
        self._schema = spec.row_schema
        self._by_content = together is None
        self._identity = _hashable(self._schema) if together is None else list(together)
        self._waits = waits
        self._rows_max = rows_max
        self._memory_bytes = memory_bytes
        self._folder = folder
        self._chosen = chosen
        self._always_independent = independent and not spec.sequence
        self._independent = self._always_independent or (
            together is None and not spec.sequence
        )  # no row has needed another one so far
        self._parts: list[PreparedBatch] = []
        self._rows = 0
        self._bytes = 0
        self._files: _Files | None = None

    def add(self, prepared: PreparedBatch) -> Iterator[PreparedBatch]:
        """Buffer rows; yields rows that need not wait any longer."""
        retracts = bool(prepared.kinds.any())
        self._waits = self._waits or retracts
        self._independent = self._independent and (self._always_independent or not retracts)
        if not self._waits and self._rows + prepared.batch.num_rows > self._rows_max(prepared.batch):
            yield from self.free()
        self._parts.append(prepared)
        self._rows += prepared.batch.num_rows
        self._bytes += prepared.batch.nbytes
        if self._bytes > self._memory_bytes:
            self._to_files()

    def free(self) -> Iterator[PreparedBatch]:
        """The rows that need no others, in order of arrival: all rows while each is a +I, unless all rows wait."""
        if not self._waits:
            yield from self._parts
            self._parts, self._bytes, self._rows = [], 0, 0

    def parts(self) -> Iterator[PreparedBatch]:
        """The remaining rows; each key's rows in one part, in order of the sequence, otherwise of arrival."""
        if self._files is None:
            if self._parts:
                yield from self._cut(self._taken())
            return
        if self._parts:
            self._to_files()
        for number in self._files.filled():
            yield from self._cut_file(self._files, number)

    def close(self) -> None:
        """Delete the files; the remaining rows are lost."""
        if self._files is not None:
            self._files.close()

    def _taken(self) -> PreparedBatch:
        parts, self._parts, self._bytes, self._rows = self._parts, [], 0, 0
        return joined(parts)

    # -- parts -----------------------------------------------------------------------------------------

    def _cut(self, rows: PreparedBatch) -> Iterator[PreparedBatch]:
        limit = self._rows_max(rows.batch)
        if rows.batch.num_rows <= limit:
            yield self._chosen(self._sorted(rows))
            return
        if self._independent:
            yield from rows.cut(limit)
            return
        for part in _by_hash(rows, self._key_hashes(rows.batch), limit):
            yield from self._cut_key(self._chosen(self._sorted(part)), limit)

    def _cut_key(self, rows: PreparedBatch, limit: int) -> Iterator[PreparedBatch]:
        """Split rows of a few keys, or of one key with many rows and of keys that share its hash part."""
        if rows.batch.num_rows <= 2 * limit:
            yield rows
            return
        hashes = self._key_hashes(rows.batch)
        long = _occur(hashes, _Counts().add(hashes).above(limit))
        if not long.all():
            yield from _by_hash(rows.filter(~long), hashes[~long], limit)
        if not long.any():
            return
        rows = rows.filter(long)
        if self._spec.sequence:
            yield from rows.cut(limit)
        else:
            yield from _by_arrival(rows, self._identity_hashes(rows.batch), self._by_content, limit)

    def _sorted(self, rows: PreparedBatch) -> PreparedBatch:
        """In order of the sequence; retractions before insertions with the same sequence."""
        if not self._spec.sequence:
            return rows
        columns: list[pa.Array] = []
        for name in self._spec.sequence:  # nulls first
            column = rows.batch.column(name)
            columns += [pc.is_valid(column).cast(pa.int8()), column]
        added = accumulates(rows.kinds)
        table = pa.table([*columns, pa.array(added.astype(np.int8))], list(map(str, range(len(columns) + 1))))
        order = pc.sort_indices(table, sort_keys=[(name, "ascending") for name in table.column_names])
        return rows.take(order.to_numpy().astype(np.int64))

    def _key_hashes(self, batch: pa.RecordBatch) -> _Hashes:
        if self._always_independent or not self._spec.key:
            return np.zeros(batch.num_rows, np.uint64)
        return hash_columns([batch.column(name) for name in self._spec.key])

    def _identity_hashes(self, batch: pa.RecordBatch) -> _Hashes:
        names = [*self._spec.key, *self._identity]
        return hash_columns([batch.column(name) for name in names]) if names else self._key_hashes(batch)

    # -- files -----------------------------------------------------------------------------------------

    def _to_files(self) -> None:
        if self._files is None:
            self._files = _Files(self._folder, self._spec.name)
        rows = self._taken()
        self._files.write(rows, self._key_hashes(rows.batch))

    def _cut_file(self, files: _Files, number: int) -> Iterator[PreparedBatch]:
        if self._independent:
            for table in files.read_some(number):
                yield from self._cut(self._prepared(table))
            return
        if files.bytes[number] <= self._memory_bytes or self._spec.sequence:
            yield from self._cut(self._prepared(files.read(number)))
            return
        # Rows of long keys, and all rows without a key, are split by what identifies them; other keys stay together.
        finer = _Files(self._folder, self._spec.name)
        try:
            long = self._long_keys(files, number)
            for table in files.read_some(number):
                rows = self._prepared(table)
                hashes = self._key_hashes(rows.batch)
                split = _occur(hashes, long)
                finer.write(rows, np.where(split, self._identity_hashes(rows.batch), _other_bits(hashes)))
            for each in finer.filled():
                yield from self._cut(self._prepared(finer.read(each)))
        finally:
            finer.close()

    def _long_keys(self, files: _Files, number: int) -> _Hashes:
        """The hashes of the keys with more rows in a file than a part may have."""
        counts, limit = _Counts(), 0
        for table in files.read_some(number):
            batch = self._prepared(table).batch
            counts.add(self._key_hashes(batch))
            limit = max(limit, self._rows_max(batch))
        return counts.above(limit)

    def _prepared(self, table: pa.Table) -> PreparedBatch:
        (batch,) = table.combine_chunks().to_batches()
        kinds = batch.column(batch.num_columns - 1).to_numpy()
        rows = pa.RecordBatch.from_arrays(batch.columns[:-1], schema=self._schema)
        time = self._spec.event_time
        return PreparedBatch(
            rows, kinds, None if time is None else event_times(rows.column(time)), self._index, 0
        )


@contextmanager
def spilling(what: str, place: str) -> Iterator[None]:
    """Raise a StoreError for an OSError while ``what`` is written to files in the folder ``place``."""
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"{what} could not be spilled to {place}: {error}. Free space on that disk, put async-state.local-dir on a "
            "larger one, or raise async-state.memory if there is more"
        ) from error


class _Files:
    """Rows in files by a hash; each file is in order of arrival. ``rows``: what they are, in errors."""

    def __init__(self, folder: str, rows: str) -> None:
        self._place, self._what = folder, f"rows of {rows}"
        with spilling(self._what, folder):
            Path(folder).mkdir(parents=True, exist_ok=True)
            self._folder = Path(tempfile.mkdtemp(prefix="gathered-", dir=folder))
        self._writers: dict[int, pa.ipc.RecordBatchStreamWriter] = {}
        self.bytes = [0] * _FILES

    def write(self, rows: PreparedBatch, hashes: _Hashes) -> None:
        batch = rows.batch.append_column(_KIND, pa.array(rows.kinds, pa.int8()))
        with spilling(self._what, self._place):
            self._write(batch, hashes)

    def _write(self, batch: pa.RecordBatch, hashes: _Hashes) -> None:
        for number, places in _divided(hashes, _FILES):
            chosen = batch.take(pa.array(places))
            if number not in self._writers:
                self._writers[number] = pa.ipc.new_stream(str(self._path(number)), batch.schema)
            self._writers[number].write_batch(chosen)
            self.bytes[number] += chosen.nbytes

    def filled(self) -> list[int]:
        """The files that have rows; ends writing."""
        with spilling(self._what, self._place):
            for writer in self._writers.values():
                writer.close()
        return sorted(self._writers)

    def read(self, number: int) -> pa.Table:
        with pa.OSFile(str(self._path(number))) as source:
            return pa.ipc.open_stream(source).read_all()

    def read_some(self, number: int) -> Iterator[pa.Table]:
        with pa.OSFile(str(self._path(number))) as source:
            for batch in pa.ipc.open_stream(source):
                yield pa.Table.from_batches([batch])

    def close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def _path(self, number: int) -> Path:
        return self._folder / f"{number}.arrow"


class _Counts:
    """Counts how often each hash occurs."""

    def __init__(self) -> None:
        self._hashes: _Hashes = np.empty(0, np.uint64)
        self._counts: npt.NDArray[np.int64] = np.empty(0, np.int64)

    def add(self, hashes: _Hashes) -> _Counts:
        """Count more hashes."""
        new, counts = np.unique(hashes, return_counts=True)
        self._hashes, places = np.unique(np.concatenate([self._hashes, new]), return_inverse=True)
        before, self._counts = self._counts, np.zeros(len(self._hashes), np.int64)
        np.add.at(self._counts, places, np.concatenate([before, counts]))
        return self

    def above(self, limit: int) -> _Hashes:
        """The hashes that occur more than ``limit`` times, ascending."""
        return self._hashes[self._counts > limit]


def _occur(hashes: _Hashes, among: _Hashes) -> npt.NDArray[np.bool_]:
    """Which of the hashes (n) occur in ``among``, which is ascending."""
    if not len(among):
        return np.zeros(len(hashes), np.bool_)
    places = np.minimum(np.searchsorted(among, hashes), len(among) - 1)
    found: npt.NDArray[np.bool_] = among[places] == hashes
    return found


def _other_bits(hashes: _Hashes) -> _Hashes:
    """Rehash the hashes: those that share some bits, as in a partition and a file, differ in them afterwards."""
    return hashes * np.uint64(0x9E3779B97F4A7C15)


def _by_hash(rows: PreparedBatch, hashes: _Hashes, limit: int) -> Iterator[PreparedBatch]:
    """The rows in parts of about ``limit``; rows of equal hash stay together, in order."""
    parts = -(-rows.batch.num_rows // limit)
    for _, places in _divided(_other_bits(hashes), parts):
        yield rows.take(places)


def _divided(hashes: _Hashes, parts: int) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """The part numbers that get some of the rows (n), and the indices of these rows, in order."""
    numbers = (hashes >> np.uint64(32)) % np.uint64(parts)
    order = np.argsort(numbers, kind="stable")
    bounds = np.searchsorted(numbers[order], np.arange(parts + 1))
    for number in np.flatnonzero(np.diff(bounds)).tolist():
        yield number, order[bounds[number] : bounds[number + 1]]


def _by_arrival(
    rows: PreparedBatch, hashes: _Hashes, by_content: bool, limit: int
) -> Iterator[PreparedBatch]:
    """The rows in parts of ``limit``, in order; rows of equal hash stay together, at the last one that is added.

    ``by_content``: only if one of them is a retraction, since rows that are only added do not need each other.
    """
    size = rows.batch.num_rows
    ids = np.unique(hashes, return_inverse=True)[1]
    added, places = accumulates(rows.kinds), np.arange(size)
    last = np.zeros(int(ids.max()) + 1, np.int64)
    last[ids[added]] = places[added]  # for repeated indices the last assignment wins
    alone = np.full(len(last), by_content)
    alone[ids[~added]] = False
    places = np.where(alone[ids], places, last[ids])
    order = rows_by(places)
    ends = np.append(np.flatnonzero(np.diff(places[order])) + 1, size)
    start = 0
    while start < size:
        first, end_group = np.searchsorted(ends, [start, start + limit], "right").tolist()
        end = int(ends[max(first, end_group - 1)])  # at least one group, however many rows it has
        yield rows.take(np.sort(order[start:end]))
        start = end


def _hashable(schema: pa.Schema) -> list[str]:
    """The columns that can be hashed: equal rows are equal in these."""
    names = []
    for field in schema:
        try:
            check_key_type(field.name, field.type)
        except SchemaError:
            continue
        names.append(field.name)
    return names
