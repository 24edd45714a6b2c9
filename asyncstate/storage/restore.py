"""Bringing a local RocksDB folder to a base version: fetching, verifying, replaying, rescaling.

Owns: Fetcher, build_store, advance, restore_rescaled. Invariant: no file reaches a store unverified; a
function here either leaves the folder at exactly the wanted content or raises. Must not decide which folder
to use.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from asyncstate.codec import BROADCAST_GROUP
from asyncstate.errors import CheckpointCorruptionError
from asyncstate.storage.base import PartitionBase, group_bounds
from asyncstate.storage.checkpoint import Checkpoint
from asyncstate.storage.delta import verify_file
from asyncstate.storage.files import CheckpointFiles
from asyncstate.storage.manifest import DeltaRef, FileRef, PartitionManifest
from asyncstate.storage.rocksdb import RocksDBOptions, RocksDBStore, write_sst
from asyncstate.storage.snapshot import restore_snapshot


@dataclass(frozen=True, slots=True)
class RestoreStatistics:
    """How a store came to its base version. ``way``: kept, advanced, rebuilt or rescaled."""

    way: str
    deltas_applied: int
    bytes_fetched: int
    seconds: float


class Fetcher:
    """Fetches verified files; what the writing task left in ``kept`` (by base name) is not fetched again.

    ``version`` is the one being restored: a damaged file's error says which older version to go back to.
    """

    def __init__(self, files: CheckpointFiles, version: int, kept: Path | None = None) -> None:
        self._files = files
        self._version = version
        self._kept = kept
        self.bytes_fetched = 0

    def fetch(self, ref: FileRef, local: Path) -> None:
        """Bring a file to a local path that does not exist yet, verified against its reference."""
        if self._take_kept(ref, local):
            return
        try:
            self._files.get_file(ref.name, local)
            verify_file(local, ref)
        except CheckpointCorruptionError as error:
            hint = Checkpoint(self._files).way_back(self._version, damaged=ref.name)
            raise CheckpointCorruptionError(f"{error}. {hint}") from error
        self.bytes_fetched += ref.size_bytes

    def _take_kept(self, ref: FileRef, local: Path) -> bool:
        kept = None if self._kept is None else self._kept / Path(ref.name).name
        if kept is None or not kept.exists():
            return False
        try:
            verify_file(kept, ref)
        except CheckpointCorruptionError:
            return False
        kept.rename(local)
        return True


def advance(store: RocksDBStore, deltas: Iterable[DeltaRef], version: int, fetcher: Fetcher) -> None:
    """Ingest the deltas in order; all are fetched and verified before the first one touches the store."""
    folder = _scratch(store)
    try:
        fetched = []
        for number, delta in enumerate(deltas):
            local = folder / f"{number}.sst"
            fetcher.fetch(delta.file, local)
            fetched.append((local, delta.batch_id))
        for local, batch_id in fetched:
            store.ingest(local, batch_id)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    store.version = version


def build_store(path: Path, base: PartitionBase, fetcher: Fetcher, options: RocksDBOptions) -> RocksDBStore:
    """Make a new store folder with the content of ``base`` and return it open."""
    if base.rescaled:
        return restore_rescaled(path, base, fetcher, options)
    if base.snapshot is not None:
        restore_snapshot(fetcher.fetch, base.snapshot, path)
    store = RocksDBStore(path, options, base.version)
    try:
        advance(store, base.deltas, base.version, fetcher)
    except BaseException:
        store.close()
        raise
    return store


def restore_rescaled(
    path: Path, base: PartitionBase, fetcher: Fetcher, options: RocksDBOptions
) -> RocksDBStore:
    """Make a new store with the key groups that ``base`` takes from its sources, and their broadcast state."""
    assert base.groups is not None, "only a rescaled base has sources"
    store = RocksDBStore(path, options, base.version)
    folder = _scratch(store)
    try:
        entries = _entries(folder, base, fetcher, options)
        first = next(entries, None)
        if first is not None:  # RocksDB writes no empty SST file
            collected = folder / "collected.sst"
            write_sst(collected, chain([first], entries), options)
            store.ingest(collected, base.version)
    except BaseException:
        store.close()
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return store


def _entries(
    folder: Path, base: PartitionBase, fetcher: Fetcher, options: RocksDBOptions
) -> Iterator[tuple[bytes, bytes]]:
    # Old partitions hold ascending, disjoint key group ranges: their entries follow each other in key order.
    # Broadcast state is above them all and the same in each: it comes from the last one, which is still open then.
    assert base.groups is not None
    start, end = group_bounds(*base.groups)
    for source in base.sources:
        path = folder / f"source-{source.partition}"
        store = build_store(path, _as_base(source, base.version), fetcher, options)
        try:
            yield from store.iterate(start, end)
            if source is base.sources[-1]:
                yield from store.iterate(BROADCAST_GROUP)
        finally:
            store.close()
            shutil.rmtree(path, ignore_errors=True)


def _as_base(partition: PartitionManifest, version: int) -> PartitionBase:
    return PartitionBase(version, partition.snapshot, partition.deltas)


def _scratch(store: RocksDBStore) -> Path:
    folder = Path(f"{store.path}.scratch-{time.monotonic_ns():x}")
    folder.mkdir()
    return folder
