"""Bringing a local RocksDB folder to a base version: fetching, verifying, replaying, rescaling.

Owns: Fetcher, build_store and advance. Invariant: no file reaches a store unverified; a function here either leaves the
folder at exactly the required content or raises. Must not decide which folder to use.
"""

from __future__ import annotations

import shutil
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from asyncstate.codec import BROADCAST_GROUP
from asyncstate.errors import CheckpointCorruptionError
from asyncstate.storage.checkpoint import Checkpoint
from asyncstate.storage.files import TRANSFERS_MAX, CheckpointFiles, at_once, verify_file
from asyncstate.storage.manifest import DeltaRef, FileRef
from asyncstate.storage.restore_plan import RestorePlan, group_bounds
from asyncstate.storage.rocksdb import RocksDBStore, write_sst
from asyncstate.storage.rocksdb_options import RocksDBOptions
from asyncstate.storage.snapshot import sibling_scratch


@dataclass(frozen=True, slots=True)
class RestoreStatistics:
    """How a store came to its base version. ``method``: kept, advanced, rebuilt or rescaled."""

    method: str
    deltas_applied: int
    bytes_fetched: int
    seconds: float


class Fetcher:
    """Fetches verified files, several at a time; files that the writing task left in ``kept`` (by base name) are not
    fetched again.

    ``version`` is the one being restored: a damaged file's error names an older version to go back to.
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
            self._files.fetch(ref, local)
        except CheckpointCorruptionError as error:
            hint = Checkpoint(self._files).recovery_hint(self._version, damaged=ref.name)
            raise CheckpointCorruptionError(f"{error}. {hint}") from error

    def _take_kept(self, ref: FileRef, local: Path) -> bool:
        kept = None if self._kept is None else self._kept / ref.base_name
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
    with sibling_scratch(store.path) as folder:
        files = _numbered(Path(folder), deltas)
        fetcher.fetch(files)
        if files:
            store.ingest([local for _, local in files], version)
    store.version = version


def build_store(path: Path, base: RestorePlan, fetcher: Fetcher, options: RocksDBOptions) -> RocksDBStore:
    """Make a new store folder with the content of ``base`` and return it open."""
    with sibling_scratch(path) as scratch:
        folder = Path(scratch)
        if base.rescaled:
            sst_files = _collected(folder, base, fetcher, options)
        else:
            sst_files = _fetched(folder, path, base, fetcher)
        store = RocksDBStore(path, options, base.version)
        try:
            if sst_files:
                store.ingest(sst_files, base.version)
        except BaseException:
            store.close()
            raise
    return store


def _fetched(folder: Path, path: Path, base: RestorePlan, fetcher: Fetcher) -> list[Path]:
    """The deltas of ``base``, in ``folder``; its snapshot goes to ``path``."""
    deltas = _numbered(folder, base.deltas)
    if base.snapshot is None:
        fetcher.fetch(deltas)
    else:
        path.mkdir(parents=True)
        snapshot = [(ref, path / local_name) for local_name, ref in base.snapshot.files.items()]
        # All together: the deltas arrive while a large file of the snapshot is being transferred.
        fetcher.fetch([*snapshot, *deltas])
    return [local for _, local in deltas]


def _collected(folder: Path, base: RestorePlan, fetcher: Fetcher, options: RocksDBOptions) -> list[Path]:
    """The key groups that ``base`` takes from its sources, and their broadcast state, as a file in ``folder``."""
    collected = folder / "collected.sst"
    with closing(_entries(folder, base, fetcher, options)) as entries:  # it closes a source, whatever fails
        first = next(entries, None)
        if first is None:  # RocksDB writes no empty SST file
            return []
        write_sst(collected, chain([first], entries), options)
    return [collected]


def _entries(
    folder: Path, base: RestorePlan, fetcher: Fetcher, options: RocksDBOptions
) -> Generator[tuple[bytes, bytes]]:
    # Old partitions hold ascending, disjoint key group ranges: their entries follow each other in key order. Broadcast
    # state comes after them all and is the same in each: it is read from the last one, which is still open then.
    assert base.groups is not None
    start, end = group_bounds(*base.groups)
    for source in base.sources:
        path = folder / f"source-{source.partition}"
        as_base = RestorePlan(base.version, source.snapshot, source.deltas)
        store = build_store(path, as_base, fetcher, options)
        try:
            yield from store.iterate(start, end)
            if source is base.sources[-1]:
                yield from store.iterate(BROADCAST_GROUP)
        finally:
            store.close()
            shutil.rmtree(path, ignore_errors=True)


def _numbered(folder: Path, deltas: Sequence[DeltaRef]) -> list[tuple[FileRef, Path]]:
    return [(delta.file, folder / f"{number}.sst") for number, delta in enumerate(deltas)]
