"""Committed state: stores, this batch's writes over them, and the checkpoint that makes them durable.

``keyed_store`` defines what a store is, ``rocksdb`` is the one that keeps state; ``memtable`` holds a micro-batch's
writes, which ``spill`` keeps on disk when they are many. ``files`` and ``object_files`` define where a checkpoint is,
``manifest``, ``ownership`` and ``checkpoint`` are the driver's view of durable versions; ``lease`` gives a task a local
store at a version, ``commit`` turns the task's writes into files, ``snapshot`` and ``restore`` copy and rebuild.
rocksdict is imported below this package only.
"""

from asyncstate.storage.checkpoint import Checkpoint
from asyncstate.storage.commit import commit_partition, deltas_together
from asyncstate.storage.files import CheckpointFiles, LocalFiles
from asyncstate.storage.keyed_store import Change, EmptyStore, KeyedStore, SortedChanges, StoreStatistics
from asyncstate.storage.lease import Lease, LocalStores
from asyncstate.storage.manifest import (
    EMPTY_LINEAGE,
    AppliedTimes,
    DeltaRef,
    FileRef,
    GraphManifest,
    Manifest,
    OperatorManifest,
    PartitionManifest,
    SinkManifest,
    SnapshotRef,
    StateSpec,
)
from asyncstate.storage.memtable import LIST_GET_KEYS, MemTable, MemTableStatistics
from asyncstate.storage.object_files import ObjectFiles, Retries, checkpoint_files, existing_files
from asyncstate.storage.partitioned_store import PartitionedStore, split_changes
from asyncstate.storage.restore import Fetcher, build_store
from asyncstate.storage.restore_plan import RestorePlan, group_bounds, group_range, partition_restore_plan
from asyncstate.storage.rocksdb import RocksDBStore
from asyncstate.storage.rocksdb_options import RocksDBOptions
from asyncstate.storage.slots import held
from asyncstate.storage.spill import WriteBound, changes_from
from asyncstate.storage.store_pool import GiveAway, StorePool
from asyncstate.storage.value_cache import MISSING, ValueCache
from asyncstate.storage.worker_cache import CacheLoan, PartitionKey, WorkerCache

__all__ = [
    "EMPTY_LINEAGE",
    "LIST_GET_KEYS",
    "MISSING",
    "AppliedTimes",
    "CacheLoan",
    "Change",
    "Checkpoint",
    "CheckpointFiles",
    "DeltaRef",
    "EmptyStore",
    "Fetcher",
    "FileRef",
    "GiveAway",
    "GraphManifest",
    "KeyedStore",
    "Lease",
    "LocalFiles",
    "LocalStores",
    "Manifest",
    "MemTable",
    "MemTableStatistics",
    "ObjectFiles",
    "OperatorManifest",
    "PartitionKey",
    "PartitionManifest",
    "PartitionedStore",
    "RestorePlan",
    "Retries",
    "RocksDBOptions",
    "RocksDBStore",
    "SinkManifest",
    "SnapshotRef",
    "SortedChanges",
    "StateSpec",
    "StorePool",
    "StoreStatistics",
    "ValueCache",
    "WorkerCache",
    "WriteBound",
    "build_store",
    "changes_from",
    "checkpoint_files",
    "commit_partition",
    "deltas_together",
    "existing_files",
    "group_bounds",
    "group_range",
    "held",
    "partition_restore_plan",
    "split_changes",
]
