"""Snapshots: a full copy of one store in the checkpoint, uploading only files that the checkpoint lacks.

Owns: creating snapshots of a RocksDBStore. Invariants: a snapshot is RocksDB's own consistent set of files, each of the
length that RocksDB has written; a file of the checkpoint is reused only when its content is the same, by checksum.
Must not import checkpoint or lease.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from rocksdict import Checkpoint as RocksDBCheckpoint

from asyncstate.errors import StoreError
from asyncstate.storage.files import CheckpointFiles, file_checksum
from asyncstate.storage.manifest import FileRef, SnapshotRef
from asyncstate.storage.rocksdb import RocksDBStore
from asyncstate.storage.slots import replace_file

_META_PREFIXES = ("CURRENT", "MANIFEST-", "OPTIONS-")


class _Known(msgspec.Struct):
    size_bytes: int
    modified_ns: int
    inode: int
    checksum: str


class ChecksumCache:
    """Checksums of a store's immutable SST files, kept next to it, so that a snapshot reads only new files."""

    @staticmethod
    def path_of(store: str | Path) -> Path:
        """The path of the checksums of the store in that folder."""
        return Path(f"{store}.checksums.json")

    def __init__(self, store: str | Path) -> None:
        self._path = self.path_of(store)
        try:
            self._known = msgspec.json.decode(self._path.read_bytes(), type=dict[str, _Known])
        except (OSError, UnicodeDecodeError, msgspec.MsgspecError):
            self._known = {}

    def checksum(self, file: Path) -> str:
        """Return the file's checksum, reading the file only when it is not the one seen before."""
        stat = file.stat()
        known = self._known.get(file.name)
        if known is None or (known.size_bytes, known.modified_ns, known.inode) != (
            stat.st_size,
            stat.st_mtime_ns,
            stat.st_ino,
        ):
            known = _Known(stat.st_size, stat.st_mtime_ns, stat.st_ino, file_checksum(file))
            self._known[file.name] = known
        return known.checksum

    def save(self, names: set[str]) -> None:
        """Keep the entries of the named files for the next snapshot; on a full disk that one reads the files again."""
        self._known = {name: known for name, known in self._known.items() if name in names}
        with suppress(OSError):
            replace_file(self._path, msgspec.json.encode(self._known))


def create_snapshot(
    store: RocksDBStore,
    lineage: str,
    files: CheckpointFiles,
    folder: str,
    present: Iterable[FileRef] = (),
) -> SnapshotRef:
    """Copy the store's present version to the checkpoint under ``folder`` (unique to the attempt).

    Files with the content of one in ``present``, which the checkpoint has and the snapshot may refer to, are not
    uploaded again: files of the previous snapshot that were not compacted since, and deltas not yet compacted.
    """
    shared = {(file.checksum, file.size_bytes): file for file in present}
    checksums = ChecksumCache(store.path)
    refs: dict[str, FileRef] = {}
    new: list[tuple[Path, str]] = []
    with sibling_scratch(store.path) as scratch:
        frozen = Path(scratch) / "frozen"
        hard_linked_copy(store, frozen)
        sizes = store.file_sizes()
        for path in sorted(frozen.iterdir()):
            if path.suffix != ".sst" and not path.name.startswith(_META_PREFIXES):
                continue  # the write-ahead log is flushed, and the binding writes its own settings at each open
            size_bytes = path.stat().st_size
            if path.suffix != ".sst":
                checksum = file_checksum(path)
            elif sizes.get(path.name, size_bytes) == size_bytes:
                checksum = checksums.checksum(path)
            else:
                raise store.failed(
                    "kept as a snapshot", f"{path.name} has {size_bytes} bytes, not {sizes[path.name]}"
                )
            ref = shared.get((checksum, size_bytes))
            if ref is None:
                ref = FileRef(f"{folder}/{path.name}", size_bytes, checksum)
                new.append((path, ref.name))
            refs[path.name] = ref
        files.put_files(new)
    checksums.save(set(refs))
    return SnapshotRef(store.version, lineage, refs)


def sibling_scratch(path: str | Path) -> TemporaryDirectory[str]:
    """A new folder on the file system of ``path``, for a ``with`` block."""
    path = Path(path)
    return TemporaryDirectory(prefix=f"{path.name}.scratch-", dir=path.parent, ignore_cleanup_errors=True)


def hard_linked_copy(store: RocksDBStore, folder: Path) -> None:
    """Make ``folder``, which does not exist yet, a store of the same content; table files are linked, not copied."""
    try:
        store.flush()  # the log is left out
        RocksDBCheckpoint(store.db).create_checkpoint(str(folder))
    except (StoreError, OSError):
        raise
    except Exception as error:
        raise StoreError(
            f"cannot take a snapshot of the RocksDB store {store.path}: {error}. Check the disk's space and "
            "permissions, then retry"
        ) from error
