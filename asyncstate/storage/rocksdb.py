"""A KeyedStore on RocksDB: large deltas are ingested as SST files, small ones are written to RocksDB's memtable.

Owns: RocksDBStore, and writing such files. Invariants: what is in the memtable is in the write-ahead log, too, which is
not synced: it outlives the process, not the machine; code that reads the table files calls ``flush`` first; no iterator
outlives the call that made it, so ``close`` really closes. Must not import checkpoint, lease or anything above.
"""

from __future__ import annotations

import copy
import functools
import logging
import os
import re
import sys
import tempfile
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, cast

from rocksdict import (
    IngestExternalFileOptions,
    Options,
    Rdict,
    ReadOptions,
    SstFileWriter,
    WriteBatch,
)

from asyncstate.errors import StoreError
from asyncstate.storage.keyed_store import (
    EMPTY_VERSION,
    Change,
    ChangeColumns,
    KeyedStore,
    SortedChanges,
    StoreStatistics,
)
from asyncstate.storage.rocksdb_options import (
    RocksDBOptions,
    open_database,
    open_range_blocks,
    rocksdb_options,
    shared_cache,
)

_log = logging.getLogger(__name__)

_SHORT_SCAN_ENTRIES = 16
_SETTLE_POLL_SECONDS = 0.002
_STARTS_WITHIN_SECONDS = 0.02  # a due compaction starts by then, unless RocksDB's threads are busy elsewhere
_SETTLE_SECONDS_MAX = 600.0  # giving up loses all of the compaction's work
_SMALL_ENTRIES_MAX = 4096
_SMALL_BYTES_MAX = 256 << 10
_UNFLUSHED_BYTES_MAX = 512 << 10  # half of RocksDB's write buffer, which has the entries' overhead as well


class SmallDelta(NamedTuple):
    """Changes that fit into the memtable, and the name of their file in the checkpoint."""

    name: str
    changes: SortedChanges
    size_bytes: int


def small_bytes(changes: SortedChanges) -> int | None:
    """The bytes of the changes' keys and values, None if they are too many for ``apply_small``."""
    if not isinstance(changes, list | ChangeColumns) or len(changes) > _SMALL_ENTRIES_MAX:
        return None
    if isinstance(changes, list):
        changes = ChangeColumns([key for key, _ in changes], [value for _, value in changes])
    keys, values = changes.sorted_keys, changes.values
    size_bytes = sum(map(len, keys)) + sum(map(len, filter(None, values)))
    return size_bytes if size_bytes <= _SMALL_BYTES_MAX else None


class RocksDBStore(KeyedStore):
    """One RocksDB folder. Hold its lease before opening it.

    ``damaged`` turns True when RocksDB reported an error: the folder should be rebuilt from the checkpoint.
    ``next_delta``: the small delta that the last micro-batch has written, for the next one.
    """

    def __init__(
        self,
        path: str | Path,
        options: RocksDBOptions | None = None,
        version: int = EMPTY_VERSION,
    ) -> None:
        self.path = str(path)
        self.version = version
        self.damaged = False
        self.options = options or RocksDBOptions()
        self._cache = shared_cache(self.options.block_cache_bytes)
        self._raw_options = rocksdb_options(self.options)
        # Stores may be closed after any micro-batch, which aborts a running merge: only a caller that will wait for the
        # end may start one.
        self._raw_options.set_disable_auto_compactions(True)
        # Without CURRENT, which a cleaner of temporary folders may have deleted, RocksDB would begin an empty one.
        self._raw_options.create_if_missing(not Path(path).exists())
        self.next_delta: SmallDelta | None = None
        self._unflushed_bytes = self._unflushed_entries = 0
        self._compacts = False
        self._errors_before = 0
        self._blocks: Rdict | None = None
        self._no_blocks = False
        self._positions_max = 1
        self._db: Rdict | None = self._open()
        self._get: Callable[[bytes], bytes | None] = self._db.get
        self._note_readers()

    def _note_readers(self) -> None:
        self._cache.note_readers(self.path, self.tables_bytes())

    def _open(self) -> Rdict:
        try:
            return open_database(self.path, self._raw_options)
        except Exception as error:
            raise self.failed("opened", error) from error

    @property
    def db(self) -> Rdict:
        """The open database; StoreError after ``close``."""
        if self._db is None:
            raise StoreError(
                f"the RocksDB store {self.path} is closed; take a new lease before reading state"
            )
        return self._db

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key; holds the GIL while a device is read."""
        try:
            return self._get(key)
        except StoreError:
            raise
        except Exception as error:
            raise self.failed("read", error) from error

    def _get_closed(self, key: bytes) -> bytes | None:
        return self.db.get(key)  # raises

    def get_many(self, keys: list[bytes], piece_keys: int = 0) -> list[bytes | None]:
        """Return the values of the keys by list gets, each of which releases the GIL once."""
        if not keys:
            return []
        get = cast(Callable[[list[bytes]], list[bytes | None]], self.db.get)
        try:
            if not 0 < piece_keys < len(keys):
                return get(keys)
            values: list[bytes | None] = []
            for first in range(0, len(keys), piece_keys):
                values += get(keys[first : first + piece_keys])
            return values
        except Exception as error:
            raise self.failed("read", error) from error

    def scan(self, start: bytes, end: bytes | None, limit: int) -> list[tuple[bytes, bytes]]:
        """Return at most ``limit`` entries with start <= key < end, ascending."""
        if limit <= 0 or (end is not None and start >= end):
            return []
        # Loaded blocks belong to the files that were opened for them; a compaction may have replaced those by now.
        db = self.db if self._blocks is None else self._blocks
        try:
            page = _scan_short(db, start, end, min(limit, _SHORT_SCAN_ENTRIES))
            if len(page) == _SHORT_SCAN_ENTRIES < limit:
                page += self._scan_long(db, page[-1][0] + b"\0", end, limit - len(page))
        except StoreError:
            raise
        except Exception as error:
            raise self.failed("scanned", error) from error
        return page

    def _scan_long(self, db: Rdict, start: bytes, end: bytes | None, limit: int) -> list[tuple[bytes, bytes]]:
        """Read with the binding's entry iterator: cheapest per entry, but silent at a damaged block.

        A cursor that starts where it stopped meets the same block and raises.
        """
        options = _range_options(end)
        entries = cast(Iterator[tuple[bytes, bytes]], db.items(from_key=start, read_opt=options))
        try:
            page = list(islice(entries, limit))
        finally:
            del entries  # as in _scan_short
        if len(page) < limit and _scan_short(db, page[-1][0] + b"\0" if page else start, end, 1):
            raise self.failed("scanned", "the scan stopped before its end")
        return page

    # -- ranges whose blocks are loaded before they are scanned --------------------------------------

    def cold(self, positions: list[bytes]) -> list[bytes]:
        """See ``KeyedStore``. The first call opens the store's files a second time."""
        blocks = self._range_blocks()
        # Without a filter only blocks can show that the key does not exist; none is read for the answer.
        return [] if blocks is None else list(filter(blocks.key_may_exist, positions))

    def warm(self, positions: list[bytes]) -> None:
        """Load what a scan reads at ``positions`` (sorted); a hint, for threads other than the scanning one."""
        blocks = self._blocks
        if blocks is None:
            return
        try:
            cast(Any, blocks.get)(positions)  # releases the interpreter lock while it reads
        except Exception as error:
            raise self.failed("read", error) from error

    @property
    def warm_positions_max(self) -> int:
        """How many positions can be loaded at the same time; known once ``cold`` has been called."""
        return self._positions_max

    @property
    def block_bytes(self) -> int:
        """How many bytes one read of the device returns; 0 for a store that has none."""
        return self.options.block_bytes

    def _range_blocks(self) -> Rdict | None:
        """None if the files cannot be opened a second time: scans then wait for the device themselves."""
        if self._blocks is None and not self._no_blocks:
            self.flush()  # the second opening has the files alone
            try:
                self._blocks = open_range_blocks(self.path, self.options)
            except (
                Exception
            ):  # rocksdict raises nothing narrower; reads of the store itself report its errors
                self._no_blocks = True
                return None
            self._cache.note_readers(self._blocks_name, _tables_bytes(self._blocks))
            # Half of the cache: it holds more than what was loaded last.
            position_bytes = 2 * max(1, self.sorted_runs()) * self.options.block_bytes
            self._positions_max = max(1, self._cache.capacity_bytes // position_bytes)
        return self._blocks

    def _drop_range_blocks(self) -> None:
        blocks, self._blocks, self._no_blocks = self._blocks, None, False
        if blocks is not None:
            self._cache.forget_readers(self._blocks_name)
            try:
                blocks.close()
            finally:
                del blocks  # as in close

    @property
    def _blocks_name(self) -> str:
        return f"{self.path}, opened twice"

    # -- changing ------------------------------------------------------------------------------------

    def apply(self, changes: SortedChanges, version: int) -> None:
        """Write the sorted changes as an SST file and ingest it; ``compact_if_due``."""
        if changes:
            temporary = f"{self.path}.apply-{uuid.uuid4().hex}.sst"
            try:
                write_sst(temporary, changes, self.options)
                self.ingest([temporary], version)
                self.compact_if_due()
            finally:
                Path(temporary).unlink(missing_ok=True)
        self.version = version

    def ingest(self, sst_paths: Sequence[str | Path], version: int) -> None:
        """Make SST files part of the store, all or none; hard-linked if the file system can, else copied.

        If several have a key, the last one's entry counts.
        """
        db = self.db
        self._drop_range_blocks()
        # RocksDB unlinks moved files: they get names of their own, so that the caller's names stay.
        spares = [f"{path}.{uuid.uuid4().hex}.ingest" for path in sst_paths]
        try:
            linked = all(map(_hard_link, sst_paths, spares))
            ingestion = IngestExternalFileOptions()
            ingestion.set_move_files(linked)
            # In one call, so that compaction starts from all of them and not from the first few.
            db.ingest_external_file(spares if linked else [str(path) for path in sst_paths], ingestion)
        except Exception as error:
            raise self.failed(f"extended by {', '.join(map(str, sst_paths))}", error) from error
        finally:
            for spare in spares:
                Path(spare).unlink(missing_ok=True)
        self._note_readers()
        self.version = version

    @property
    def unflushed(self) -> bool:
        """Whether a part of the content is in no table file."""
        return self._unflushed_bytes > 0

    def apply_small(self, delta: SmallDelta, version: int) -> None:
        """Write a small delta to the memtable, which takes no sync of a file: ``unflushed`` until it is full.

        With RocksDB's log: without it, closing a store whose folder is gone waits a second for a flush that fails.
        """
        db = self.db
        self._drop_range_blocks()
        batch = WriteBatch(raw_mode=True)
        try:
            _write_each(batch, delta.changes)
            db.write(batch)
        except Exception as error:
            raise self.failed(f"extended by {delta.name}", error) from error
        self._unflushed_bytes += delta.size_bytes
        self._unflushed_entries += sum(-1 if value is None else 1 for _, value in delta.changes)
        self.version = version
        if self._unflushed_bytes > _UNFLUSHED_BYTES_MAX:
            self.flush()

    def flush(self) -> None:
        """Write what is in no table file to one."""
        if self.unflushed:
            try:
                self.db.flush()
            except StoreError:
                raise
            except Exception as error:
                raise self.failed("flushed", error) from error
            self._unflushed_bytes = self._unflushed_entries = 0
            self._note_readers()

    def sorted_runs(self) -> int:
        """Number of overlapping runs in which a lookup may have to search."""
        return len(_run_bytes(self.db.live_files()))

    def compact_if_due(self) -> None:
        """Start merging runs in the background if there are too many; call ``settle`` before ``close``."""
        if not self._compacts and self._too_many(_run_bytes(self.db.live_files())):
            self.compact()

    def wants_compacted_copy(self) -> bool:
        """Whether there are many runs of more bytes than a micro-batch should merge."""
        run_bytes = _run_bytes(self.db.live_files())
        return len(run_bytes) > self.options.sorted_runs_light and not self._merges_here(run_bytes)

    def _merges_here(self, run_bytes: Sequence[int]) -> bool:
        return sum(run_bytes) <= self.options.compact_here_bytes

    def compact(self) -> None:
        """Start merging runs, until there are few enough; call ``settle`` before ``close``."""
        if not self._compacts:
            self._errors_before = self._number("background-errors")
        self._let_compact(True)

    def _let_compact(self, may: bool) -> None:
        try:
            self.db.set_options({"disable_auto_compactions": str(not may).lower()})
        except Exception as error:
            raise self.failed("compacted" if may else "kept from compaction", error) from error
        self._compacts = may

    def _too_many(self, run_bytes: Sequence[int]) -> bool:
        if len(run_bytes) <= self.options.sorted_runs_light:
            return False
        if not self._merges_here(run_bytes):
            return len(run_bytes) > self.options.sorted_runs_limit
        # A small merge ends soon, and then only half as many blocks need to stay in the cache.
        light = 2 * max(run_bytes) <= sum(run_bytes)
        return light or len(run_bytes) > self.options.sorted_runs_max

    def settle(
        self,
        timeout_seconds: float = _SETTLE_SECONDS_MAX,
        poll_seconds: float = _SETTLE_POLL_SECONDS,
        starts_within_seconds: float = _STARTS_WITHIN_SECONDS,
        stopped: Callable[[], bool] = bool,
    ) -> bool:
        """Wait for the compaction that was started; return whether it has ended. True if none was started.

        Closing aborts a running compaction and loses its work, and the next one starts from the beginning. One that
        fails, usually because the disk is full, is retried by RocksDB every second: it is left to the next micro-batch.
        The same holds for one that does not start within ``starts_within_seconds``, because RocksDB's threads, which
        all stores of the process share, are busy. ``stopped`` ends the waiting, not the compaction.
        """
        if not self._compacts:
            return True
        started = idle_since = time.monotonic()
        # The number of runs shows the end, not what RocksDB reports as running and pending: it reports the two one
        # after the other, and a compaction may start or end in between.
        while not stopped():
            runs = self.sorted_runs()
            if runs < self.options.sorted_runs:
                return True
            if self._number("background-errors") > self._errors_before:
                self._give_up_compaction(runs)
                return False
            now = time.monotonic()
            if self._number("num-running-compactions"):
                idle_since = now
            elif runs == self.options.sorted_runs:  # the last step may be one that does not pay
                starts_within_seconds = min(starts_within_seconds, _STARTS_WITHIN_SECONDS)
            if now - idle_since > starts_within_seconds or now - started > timeout_seconds:
                return runs == self.options.sorted_runs
            time.sleep(poll_seconds)
        return False

    def _give_up_compaction(self, runs: int) -> None:
        self._let_compact(False)
        _log.warning(
            "the RocksDB store %s cannot merge its %d sorted runs, so reads become slower: %s; the next micro-batch "
            "retries",
            self.path,
            runs,
            self._compaction_error(),
        )

    def _compaction_error(self) -> str:
        """The last failed compaction according to RocksDB's log."""
        try:
            log = Path(self.path, "LOG").read_text(errors="replace")
        except OSError as error:
            return str(error)
        said = re.findall("Compaction error: (.*)", log)
        return said[-1] if said else "see its LOG file"

    def _number(self, name: str) -> int:
        return self.db.property_int_value(f"rocksdb.{name}") or 0

    def statistics(self) -> StoreStatistics:
        """Return metrics from RocksDB's properties and its list of live files."""
        live = self.db.live_files()
        return StoreStatistics(
            entries_estimate=max(
                0, sum(f["num_entries"] - 2 * f["num_deletions"] for f in live) + self._unflushed_entries
            ),
            size_bytes=sum(f["size"] for f in live) + self._unflushed_bytes,
            files=len(live),
            sorted_runs=len(_run_bytes(live)),
            block_cache_bytes=self._number("block-cache-usage"),
            block_cache_bytes_max=self._cache.capacity_bytes,
            table_reader_bytes=self.tables_bytes(),
        )

    def file_sizes(self) -> dict[str, int]:
        """The size in bytes of each table file, as RocksDB has written it, by the file's name."""
        return {file["name"].lstrip("/"): file["size"] for file in self.db.live_files()}

    def tables_bytes(self) -> int:
        """Memory of the open tables' indexes and filters, which an open store holds in addition to the block cache."""
        return _tables_bytes(self.db)

    def memtable_bytes(self) -> int:
        """Memory of what is not flushed yet."""
        return self._number("cur-size-all-mem-tables")

    def handed_on(self) -> RocksDBStore:
        """The open database as another object; for holders of this one the store is closed."""
        if self._compacts:
            self._let_compact(False)
        assert self._db is not None
        other = copy.copy(self)
        self._db, self._get, self._blocks = None, self._get_closed, None
        return other

    def close(self) -> None:
        """Close the database and release RocksDB's own lock on the folder.

        Raises StoreError while another thread reads: the database closes when that read has ended.
        """
        db, self._db = self._db, None
        if db is None:
            return
        self._get = self._get_closed
        self._cache.forget_readers(self.path)
        try:
            try:
                self._drop_range_blocks()
            finally:
                db.close()
        except Exception as error:
            raise self.failed("closed", error) from error
        finally:
            del db  # the error's traceback would hold it beyond the end of the read

    def failed(self, done: str, error: object) -> StoreError:
        """The error to raise when this cannot be done because of ``error``; from now on the store is ``damaged``."""
        self.damaged = True
        return StoreError(
            f"the RocksDB store {self.path} could not be {done}: {error}. Check the disk's space and "
            f"permissions; the next attempt rebuilds the folder from the checkpoint"
        )


def _tables_bytes(db: Rdict) -> int:
    return db.property_int_value("rocksdb.estimate-table-readers-mem") or 0


def _run_bytes(live_files: Iterable[Mapping[str, Any]]) -> list[int]:
    """The size of each sorted run that the files make up."""
    sizes: Counter[object] = Counter()
    for file in live_files:
        sizes[file["level"] or file["name"]] += file["size"]
    return list(sizes.values())


def _hard_link(source: str | Path, target: str) -> bool:
    try:
        os.link(source, target)
    except OSError:
        return False
    return True


def _scan_short(db: Rdict, start: bytes, end: bytes | None, limit: int) -> list[tuple[bytes, bytes]]:
    """Read with a cursor: cheapest per scan; raises when a damaged block ends it."""
    cursor = db.iter(_range_options(end))
    try:
        cursor.seek(start)
        page: list[tuple[bytes, bytes]] = []
        while cursor.valid():
            page.append((cursor.key(), cursor.value()))
            if len(page) == limit:
                return page
            cursor.next()
        cursor.status()
        return page
    finally:
        del cursor  # an error's traceback would hold it, and an open iterator keeps the database from closing


def _range_options(end: bytes | None) -> ReadOptions:
    """Options for keys below ``end``, to which RocksDB keeps a pointer: the caller holds it while it reads."""
    options = ReadOptions()
    if end is not None:
        options.set_iterate_upper_bound(end)
    return options


def _write_each(writer: SstFileWriter | WriteBatch, changes: Iterable[Change]) -> None:
    put, delete = writer.__setitem__, writer.__delitem__
    if isinstance(changes, ChangeColumns) and None not in changes.values:
        # One call into rocksdict for each, and nothing else.
        deque(map(put, changes.sorted_keys, changes.values), maxlen=0)
        return
    for key, value in changes:
        if value is None:
            delete(key)
        else:
            put(key, value)


@functools.lru_cache(maxsize=8)
def _writer_options(options: RocksDBOptions) -> Options:
    return rocksdb_options(options)


def write_sst(path: str | Path, changes: Iterable[Change], options: RocksDBOptions) -> None:
    """Write sorted changes (each key once, None deletes) as one SST file; StoreError when that fails."""
    try:
        writer = SstFileWriter(_writer_options(options))
        writer.open(str(path))
        _write_each(writer, changes)
        writer.finish()
    except StoreError:
        raise
    except Exception as error:
        raise StoreError(
            f"the file {path} could not be written: {error}. Check the disk's space and permissions, then "
            f"retry"
        ) from error


def sst_bytes(changes: SortedChanges, options: RocksDBOptions) -> bytes:
    """The bytes of the SST file of small changes."""
    if sys.platform == "linux":  # in memory: RocksDB syncs each file that it writes
        with open(os.memfd_create("asyncstate-delta"), "rb") as memory:
            write_sst(f"/proc/self/fd/{memory.fileno()}", changes, options)
            return memory.read()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "delta.sst")
        write_sst(path, changes, options)
        return path.read_bytes()
