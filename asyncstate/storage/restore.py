"""Bringing a local RocksDB folder to a base version: fetching, verifying, replaying, rescaling.

Owns: Fetcher, build_store, advance, restore_rescaled. Invariant: no file reaches a store unverified; a
function here either leaves the folder at exactly the wanted content or raises. Must not decide which folder
to use.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from asyncstate.codec import BROADCAST_GROUP
from asyncstate.errors import CheckpointCorruptionError
from asyncstate.storage.base import PartitionBase, group_bounds
from asyncstate.storage.checkpoint import Checkpoint
from asyncstate.storage.files import TRANSFERS_MAX, CheckpointFiles, at_once, verify_file
from asyncstate.storage.manifest import DeltaRef, FileRef, PartitionManifest, SnapshotRef
from asyncstate.storage.rocksdb import RocksDBOptions, RocksDBStore, write_sst
from asyncstate.storage.snapshot import snapshot_files, unlink_metadata


@dataclass(frozen=True, slots=True)
class RestoreStatistics:
    """How a store came to its base version. ``way``: kept, advanced, rebuilt or rescaled."""

    way: str
    deltas_applied: int
    bytes_fetched: int
    seconds: float


class Fetcher:
    """Fetches verified files, several at a time; what the writing task left in ``kept`` (by base name) is not fetched
    again.

    ``version`` is the one being restored: a damaged file's error says which older version to go back to.
    """

    def __init__(self, files: CheckpointFiles, version: int, kept: Path | None = None) -> None:
        self._files = files
        self._version = version
        self._kept = kept
        self.bytes_fetched = 0

    def fetch(self, files: Iterable[tuple[FileRef, Path]]) -> None:
        """Bring each file to its local path, which does not exist yet, verified against its reference."""
        missing = [(ref, local) for ref, local in files if not self._take_kept(ref, local)]
        at_once(TRANSFERS_MAX, lambda file: self._fetch(*file), missing)
        self.bytes_fetched += sum(ref.size_bytes for ref, _ in missing)

    def _fetch(self, ref: FileRef, local: Path) -> None:
        try:
            self._files.get_file(ref.name, local)
            verify_file(local, ref)
        except CheckpointCorruptionError as error:
            hint = Checkpoint(self._files).way_back(self._version, damaged=ref.name)
            raise CheckpointCorruptionError(f"{error}. {hint}") from error

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


def advance(store: RocksDBStore, deltas: Sequence[DeltaRef], version: int, fetcher: Fetcher) -> None:
    """Ingest the deltas; all are fetched and verified before the first one touches the store."""
    with _scratch(store.path) as folder:
        files = _numbered(folder, deltas)
        fetcher.fetch(files)
        if files:
            store.ingest([local for _, local in files], version)
    store.version = version


def build_store(path: Path, base: PartitionBase, fetcher: Fetcher, options: RocksDBOptions) -> RocksDBStore:
    """Make a new store folder with the content of ``base`` and return it open."""
    if base.rescaled:
        return restore_rescaled(path, base, fetcher, options)
    with _scratch(path) as folder:
        deltas = _numbered(folder, base.deltas)
        _fetch_all(fetcher, base.snapshot, path, deltas)
        store = RocksDBStore(path, options, base.version)
        try:
            if deltas:
                store.ingest([local for _, local in deltas], base.version)
        except BaseException:
            store.close()
            raise
    return store


def _fetch_all(
    fetcher: Fetcher, snapshot: SnapshotRef | None, path: Path, deltas: list[tuple[FileRef, Path]]
) -> None:
    # All in one go: the deltas come while a large file of the snapshot is on its way.
    if snapshot is None:
        fetcher.fetch(deltas)
        return
    path.mkdir(parents=True)
    fetcher.fetch([*snapshot_files(snapshot, path), *deltas])
    unlink_metadata(path)


def restore_rescaled(
    path: Path, base: PartitionBase, fetcher: Fetcher, options: RocksDBOptions
) -> RocksDBStore:
    """Make a new store with the key groups that ``base`` takes from its sources, and their broadcast state."""
    assert base.groups is not None, "only a rescaled base has sources"
    store = RocksDBStore(path, options, base.version)
    try:
        with _scratch(path) as folder:
            entries = _entries(folder, base, fetcher, options)
            first = next(entries, None)
            if first is not None:  # RocksDB writes no empty SST file
                collected = folder / "collected.sst"
                write_sst(collected, chain([first], entries), options)
                store.ingest([collected], base.version)
    except BaseException:
        store.close()
        raise
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


def _numbered(folder: Path, deltas: Sequence[DeltaRef]) -> list[tuple[FileRef, Path]]:
    return [(delta.file, folder / f"{number}.sst") for number, delta in enumerate(deltas)]


@contextmanager
def _scratch(path: str | Path) -> Iterator[Path]:
    folder = Path(f"{path}.scratch-{time.monotonic_ns():x}")
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
