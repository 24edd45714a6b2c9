"""Checkpoint files: an interface that object stores implement too, and the local folder.

Owns: CheckpointFiles, LocalFiles, checking a file's content, and several transfers at a time. Invariants: a file
appears under its name whole or not at all; names are relative, with "/" between parts; a listed name was written
before, and a written name is listed. Must not interpret the files.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import BinaryIO, Final, TypeVar

import xxhash

from asyncstate.errors import CheckpointCorruptionError, CheckpointError
from asyncstate.storage.manifest import FileRef, is_file_name

A = TypeVar("A")

TEMPORARY_PREFIX = ".tmp-"
TRANSFERS_MAX: Final = 8
"""Files up or down at a time: each may hold a chunk of 8 MB in memory."""
_CHUNK_BYTES: Final = 1 << 20
_MAKING_ATTEMPTS: Final = 10


class CheckpointFiles(ABC):
    """The files of one job's checkpoint.

    ``place`` is the path or URI to open it with, which may hold credentials; ``shown`` is for messages. No file is
    empty. May be used from several threads. Raises CheckpointCorruptionError when a file that should exist is missing,
    CheckpointError when the location cannot be read or written.
    """

    place: str
    shown: str

    @abstractmethod
    def put_file(self, local: str | Path, name: str) -> None:
        """Store a local file durably; the caller keeps its own name for it."""

    @abstractmethod
    def put_bytes(self, name: str, data: bytes) -> None:
        """Store bytes durably; replace an existing file of that name atomically for every reader."""

    @abstractmethod
    def get_file(self, name: str, local: str | Path) -> None:
        """Fetch a file to a local path that does not exist yet."""

    @abstractmethod
    def get_bytes(self, name: str, start: int = 0, size: int = -1) -> bytes:
        """Return a file's content, or up to ``size`` bytes of it from byte ``start`` on."""

    @abstractmethod
    def size_bytes(self, name: str) -> int | None:
        """Return a file's size, None when there is no such file."""

    @abstractmethod
    def list(self, prefix: str) -> list[str]:
        """Return the names that start with ``prefix``, sorted."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Delete a file; an absent one is allowed."""

    def put_files(self, files: Iterable[tuple[Path, str]]) -> None:
        """Store several local files, (path, name) each; after an error some may have been stored."""
        for local, name in files:
            self.put_file(local, name)

    def fetch(self, file: FileRef, local: str | Path) -> None:
        """Bring a file, or a part of one, to a local path that does not exist yet, and verify it."""
        if file.offset is None:
            self.get_file(file.name, local)
        else:
            with _explained("fetch", file.name, missing_is_damage=False):
                Path(local).write_bytes(self.get_bytes(file.name, file.offset, file.size_bytes))
        verify_file(local, file)

    def delete_files(self, names: Iterable[str]) -> None:
        """Delete several files; absent ones are allowed."""
        for name in names:
            self.delete(name)

    def sweep(self, older_than_seconds: float = 3600.0) -> int:
        """Remove remains of interrupted writes, if there are any; return how many files."""
        return 0


def checked_name(name: str) -> str:
    """Return the name; CheckpointError if it could lead out of the checkpoint."""
    if not is_file_name(name):
        raise CheckpointError(
            f"{name!r} is not a name of a checkpoint file; names are relative, without '..'"
        )
    return name


class LocalFiles(CheckpointFiles):
    """A folder. Its files share nothing with those outside it: a change in place of a local file, by a cleaner of
    temporary folders for instance, does not affect the checkpoint. A file system with reflinks copies no bytes."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root).absolute()
        self.place = self.shown = str(self.root)
        with _explained("create the folder", str(self.root), missing_is_damage=False):
            make_folder(self.root)

    def put_file(self, local: str | Path, name: str) -> None:
        """Copy a local file in; both it and its name are synced to the disk."""
        with self._written(name) as file:
            _copy(local, file.name)

    def put_bytes(self, name: str, data: bytes) -> None:
        """Write to a temporary file next to the target, sync, rename."""
        with self._written(name) as file:
            file.write(data)

    def get_file(self, name: str, local: str | Path) -> None:
        """Copy a file out."""
        with _explained("fetch", name, local=local):
            _copy(self._path(name), local)

    def get_bytes(self, name: str, start: int = 0, size: int = -1) -> bytes:
        """Read a file."""
        with _explained("read", name), self._path(name).open("rb") as file:
            file.seek(start)
            return file.read(size)

    def size_bytes(self, name: str) -> int | None:
        """Return a file's size, None when absent."""
        with _explained("look at", name):
            try:
                return self._path(name).stat().st_size
            except FileNotFoundError:
                return None

    def list(self, prefix: str) -> list[str]:
        """Walk the folder that ``prefix`` begins with."""
        start = self.root / prefix.rpartition("/")[0]
        names = []
        with _explained("list", prefix):
            for folder, _, files in os.walk(start, onerror=_unless_gone):
                relative = os.path.relpath(folder, self.root)
                for file in files:
                    name = file if relative == "." else f"{relative.replace(os.sep, '/')}/{file}"
                    if name.startswith(prefix) and not file.startswith(TEMPORARY_PREFIX):
                        names.append(name)
        return sorted(names)

    def delete(self, name: str) -> None:
        """Unlink a file, and the folders that are empty without it."""
        path = self._path(name)
        with _explained("delete", name, then="; a later commit tries again"):
            path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # usually a folder that is not empty
            for folder in path.parents:
                if folder == self.root:
                    break
                folder.rmdir()

    def sweep(self, older_than_seconds: float = 3600.0) -> int:
        """Remove temporary files of killed writers, and empty folders."""
        swept = 0
        limit = time.time() - older_than_seconds
        for folder, _, files in os.walk(self.root, topdown=False):
            stale = [Path(folder, file) for file in files if file.startswith(TEMPORARY_PREFIX)]
            for path in [*stale, Path(folder)]:
                with contextlib.suppress(OSError):  # gone already, or a folder with files in it
                    if path != self.root and path.stat().st_ctime < limit:
                        (Path.rmdir if path.is_dir() else Path.unlink)(path)
                        swept += 1
        return swept

    def _path(self, name: str) -> Path:
        return self.root.joinpath(*checked_name(name).split("/"))

    @contextlib.contextmanager
    def _written(self, name: str) -> Iterator[BinaryIO]:
        """An empty file, which gets its name when the block has written it; both are synced to the disk."""
        path = self._path(name)
        with _explained("write", name, missing_is_damage=False, then="; nothing was committed"):
            file = _new_temporary(path.parent)
            try:
                with file:
                    yield file
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(file.name, path)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(file.name)
                raise
            sync(path.parent)


@contextlib.contextmanager
def _explained(
    action: str, name: str, missing_is_damage: bool = True, then: str = "", local: str | Path | None = None
) -> Iterator[None]:
    """Errors of the disk as those of a checkpoint; ``then``: what becomes of a commit; ``local``: a file elsewhere,
    whose folder may be gone."""
    try:
        yield
    except OSError as error:
        is_missing = isinstance(error, FileNotFoundError) and str(error.filename) != str(local)
        if missing_is_damage and is_missing:
            raise CheckpointCorruptionError(
                f"checkpoint file {name} is missing ({error.filename})"
            ) from error
        raise CheckpointError(
            f"could not {action} {name} in the checkpoint: {error}. Check the disk's space and permissions{then}"
        ) from error


def _new_temporary(folder: Path) -> BinaryIO:
    """A new file in ``folder``, which is created if missing and stays as long as the file exists."""
    temporary = folder / f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}"
    for _ in range(_MAKING_ATTEMPTS - 1):
        with contextlib.suppress(
            FileNotFoundError
        ):  # another has deleted the folder's last file, and the folder
            make_folder(folder)
            return open(temporary, "xb")
    make_folder(folder)
    return open(temporary, "xb")


def _unless_gone(error: OSError) -> None:
    """A missing folder has no files: it was never made, or was swept. One that cannot be read may have."""
    if not isinstance(error, FileNotFoundError):
        raise error


def make_folder(folder: Path) -> None:
    """Make a folder and its missing parents durably: a file in it survives only if they do."""
    if not folder.is_dir():
        make_folder(folder.parent)
        # Not exist_ok: pathlib then looks for the folder, and fails where another has deleted it since.
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
        sync(folder.parent)


def _copy(source: str | Path, target: str | Path) -> None:
    if sys.platform == "linux":
        try:
            return _copy_range(source, target)
        except FileNotFoundError:
            raise
        except OSError:  # usually another file system
            pass
    shutil.copyfile(source, target)


def _copy_range(source: str | Path, target: str | Path) -> None:
    """Copy within the file system, which shares the blocks, if it can, until one of the two is changed."""
    with open(source, "rb", buffering=0) as given, open(target, "wb", buffering=0) as made:
        left = os.fstat(given.fileno()).st_size
        while left:
            copied = os.copy_file_range(given.fileno(), made.fileno(), left)
            if not copied:
                raise OSError(f"{source} became shorter while it was copied")
            left -= copied


def sync(path: Path) -> None:
    """Return when the disk has a file, or the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def data_checksum(data: bytes) -> str:
    """Return the checksum of a file with this content."""
    return xxhash.xxh3_128_hexdigest(data)


def file_checksum(path: str | Path) -> str:
    """Return the xxh3-128 of a file's content in hex."""
    digest = xxhash.xxh3_128()
    with open(path, "rb", buffering=0) as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def verify_file(local: str | Path, ref: FileRef) -> None:
    """Check a fetched file; CheckpointCorruptionError names the checkpoint file and what is wrong with it."""
    size_bytes = os.stat(local).st_size
    if size_bytes != ref.size_bytes:
        raise CheckpointCorruptionError(
            f"checkpoint file {ref.name} is damaged: it has {size_bytes} bytes, its manifest says "
            f"{ref.size_bytes}"
        )
    if file_checksum(local) != ref.checksum:
        raise CheckpointCorruptionError(
            f"checkpoint file {ref.name} is damaged: its content does not match the checksum in its manifest"
        )


def at_once(threads: int, action: Callable[[A], None], items: Iterable[A]) -> None:
    """Run the action on all items; after an error no other is begun, and the first item's error is raised.

    When it returns or raises, none of its threads is running, so the caller may remove what they worked on.
    """
    work = list(items)
    if len(work) < 2:
        for item in work:
            action(item)
        return
    with ThreadPoolExecutor(min(threads, len(work)), "checkpoint") as pool:
        running = [pool.submit(action, item) for item in work]
        try:
            wait(running, return_when=FIRST_EXCEPTION)
        finally:
            pool.shutdown(cancel_futures=True)
        for done in running:
            if not done.cancelled():
                done.result()
