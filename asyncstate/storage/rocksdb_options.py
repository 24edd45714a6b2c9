"""How RocksDB is opened: settings of a store, the block caches of the process, and the second opening of files.

Owns: RocksDBOptions, SharedCache, ``rocksdb_options``, ``open_database`` and ``open_range_blocks``. Must not import
anything above.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Final

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    DataBlockIndexType,
    DBCompactionStyle,
    DBCompressionType,
    Options,
    Rdict,
    UniversalCompactOptions,
)

from asyncstate.errors import StoreError

_COMPRESSIONS = {
    "none": DBCompressionType.none,
    "lz4": DBCompressionType.lz4,
    "zstd": DBCompressionType.zstd,
}
_LOG_BYTES_MAX: Final = 1 << 20
_RATE_PERIOD_US, _RATE_FAIRNESS = 100_000, 10  # RocksDB's own defaults
_OPENING_ATTEMPTS: Final = 3
_OPENING_THREADS: Final = (
    4  # RocksDB starts 16 for each opening, which is a third of its time for a small store
)


@dataclass(frozen=True, slots=True)
class RocksDBOptions:
    """Settings of one store; all sizes in bytes.

    ``block_cache_bytes``: one cache of this size is shared by all stores of the process and outlives them,
    so a store that is opened again at the next micro-batch finds its blocks cached.
    ``sorted_runs_max``: with more overlapping runs (ingested files and compaction results) than that,
    ``compact_if_due`` starts to merge them; with more than ``sorted_runs_light`` already if the largest is no larger
    than the others together. ``sorted_runs``: it ends when there are fewer than that. Above ``compact_here_bytes`` the
    store is compacted as a copy instead, from ``sorted_runs_light`` on, and in place only above ``sorted_runs_limit``.
    ``compaction_bytes_a_second``: how much compactions may write; 0 is without a bound.
    """

    block_cache_bytes: int = 128 << 20
    direct_reads: bool = False
    compression: str = "lz4"
    block_bytes: int = 8 << 10
    bloom_bits: int = 10
    sorted_runs: int = 4
    sorted_runs_light: int = 5
    sorted_runs_max: int = 8
    sorted_runs_limit: int = 24
    compact_here_bytes: int = 32 << 20
    compaction_bytes_a_second: int = 0
    file_bytes: int = 32 << 20
    background_jobs: int = 2


class SharedCache:
    """One block cache of the process, and how much of ``limit_bytes`` the filters and indexes of open stores leave it.

    Filters and indexes are in the table readers, not in the cache, yet within its bound, as far as they take no more
    than half of it. They are 1.4 bytes per entry of each run.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.capacity_bytes = limit_bytes
        self.cache = Cache(limit_bytes)
        self._readers: dict[str, int] = {}
        self._lock = threading.Lock()

    def note_readers(self, store: str, size_bytes: int) -> None:
        """Record the current memory of the table readers of the store in that folder."""
        with self._lock:
            self._readers[store] = size_bytes
            capacity = max(self.limit_bytes - sum(self._readers.values()), self.limit_bytes // 2)
            if capacity != self.capacity_bytes:
                self.capacity_bytes = capacity
                self.cache.set_capacity(capacity)

    def forget_readers(self, store: str) -> None:
        """A store has been closed. Its room stays reserved until another one opens, usually the same one again."""
        with self._lock:
            self._readers.pop(store, None)


_caches: dict[int, SharedCache] = {}
_caches_lock = threading.Lock()


def shared_cache(size_bytes: int) -> SharedCache:
    with _caches_lock:
        if size_bytes not in _caches:
            _caches[size_bytes] = SharedCache(size_bytes)
        return _caches[size_bytes]


def _table_options(options: RocksDBOptions, filters: bool) -> BlockBasedOptions:
    # 8 KiB blocks with a hash index in each: measured best for hot sorted list gets of small entries.
    table = BlockBasedOptions()
    table.set_block_cache(shared_cache(options.block_cache_bytes).cache)
    table.set_block_size(options.block_bytes)
    if filters:
        table.set_bloom_filter(options.bloom_bits, False)
    table.set_data_block_index_type(DataBlockIndexType.binary_and_hash())
    table.set_data_block_hash_ratio(0.75)
    table.set_format_version(5)
    # Index and filter blocks stay in the table readers; SharedCache counts them. In the block cache, a list get took
    # three times as long where the cache is full, and with partitioned filters a quarter longer everywhere.
    table.set_cache_index_and_filter_blocks(False)
    return table


def rocksdb_options(options: RocksDBOptions, filters: bool = True) -> Options:
    """Build the RocksDB options of a store and of the SST files written for it; ``filters`` False: see
    ``open_range_blocks``.

    Compaction is universal (tiered): every micro-batch adds one run that usually spans the whole key range;
    levelled compaction would rewrite the base for every few of them; tiering rewrites a key a logarithmic
    number of times, and snapshots upload only what was rewritten.
    """
    if options.compression not in _COMPRESSIONS:
        raise StoreError(
            f"unknown compression {options.compression!r} for the RocksDB store; use one of "
            f"{', '.join(_COMPRESSIONS)}"
        )
    universal = UniversalCompactOptions()
    universal.size_ratio = 10
    universal.min_merge_width = 2
    universal.max_merge_width = 16
    universal.max_size_amplification_percent = 200
    opts = Options(raw_mode=True)
    opts.create_if_missing(True)
    opts.set_block_based_table_factory(_table_options(options, filters))
    opts.set_compression_type(_COMPRESSIONS[options.compression]())
    opts.set_compaction_style(DBCompactionStyle.universal())
    opts.set_universal_compaction_options(universal)
    opts.set_level_zero_file_num_compaction_trigger(options.sorted_runs)
    opts.set_target_file_size_base(options.file_bytes)
    opts.set_max_background_jobs(options.background_jobs)
    opts.set_max_open_files(-1)
    opts.set_max_file_opening_threads(_OPENING_THREADS)
    opts.set_use_direct_reads(options.direct_reads)
    if options.compaction_bytes_a_second:
        opts.set_ratelimiter(options.compaction_bytes_a_second, _RATE_PERIOD_US, _RATE_FAIRNESS)
    _quieten(opts)
    return opts


def _quieten(opts: Options) -> None:
    # Stores are opened often, and stay open for long: no statistics threads, few and short old log files. A snapshot
    # copies the manifest.
    opts.set_keep_log_file_num(1)
    opts.set_max_log_file_size(_LOG_BYTES_MAX)
    opts.set_max_manifest_file_size(_LOG_BYTES_MAX)
    opts.set_stats_dump_period_sec(0)
    opts.set_stats_persist_period_sec(0)
    opts.set_skip_stats_update_on_db_open(False)
    opts.set_write_buffer_size(1 << 20)


def open_database(path: str, options: Options, access: AccessType | None = None) -> Rdict:
    """Open a folder; raises whatever rocksdict raises."""
    # Named, because otherwise the binding takes the column family's options from an existing folder, with a small block
    # cache of its own.
    families = {"default": options}
    return Rdict(path, options, column_families=families, access_type=access or AccessType.read_write())


def open_range_blocks(path: str, options: RocksDBOptions) -> Rdict:
    """Open the files of a store a second time, as they are now: to load what a scan will read by list gets.

    An iterator of rocksdict holds the interpreter lock while it waits for a device. A list get does not, but where the
    keys of a range are not known the filters of the table files let it read nothing. So these files are opened read
    only, without their filters, over the same block cache: a get of any key then reads, in each sorted run, the block
    in which the key would be, and that is where an iterator begins that seeks the key. Code that changes the content
    closes it first; a compaction changes files but no content, and the old ones stay open here.

    Raises the errors of rocksdict; an ``Exception`` if the files cannot be opened.
    """
    unfiltered = rocksdb_options(options, filters=False)
    # A compaction may delete a file between reading the list of files and opening all of them.
    for _ in range(_OPENING_ATTEMPTS - 1):
        try:
            return open_database(path, unfiltered, AccessType.read_only(False))
        except Exception:  # rocksdict raises nothing narrower
            continue
    return open_database(path, unfiltered, AccessType.read_only(False))
