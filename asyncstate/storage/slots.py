"""Where stores are on a machine's local disk: the owner of their folders, and a slot for each store.

Owns: Slot (a folder for one local store, its lock, and the record of what it holds) and the folders above it.
Invariants: local stores are the only files without a checksum, so no other user may write to their default location:
that folder's name contains the user's number, and it is owned by and open to that user alone. A slot is used under an
advisory file lock, which ends with its process; its record names its content, and says "changing" before the content
changes. Each new store has a unique folder name, so two stores never have the same path, even when a folder above them
is deleted and made again: RocksDB identifies the stores that a process has open by their paths. Must not know leases or
checkpoints.
"""

from __future__ import annotations

import fcntl
import functools
import math
import os
import select
import shutil
import stat
import tempfile
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import xxhash

from asyncstate.errors import StoreError

RECORD_FORMAT: Final = 2
_RECORD_BYTES: Final = 512
_PRIVATE: Final = 0o700
_OTHERS: Final = 0o077
_TAKE_OVER_SECONDS_MAX: Final = (
    2.0  # closing a store takes milliseconds; a slower process hangs or was stopped
)


class SlotRecord(msgspec.Struct, frozen=True):
    """What a slot holds, in its folder ``store``. ``boot`` identifies this start of the machine: after a power cut no
    slot is trusted."""

    version: int
    lineage: str
    store: str
    changing: bool
    boot: str
    format: int = RECORD_FORMAT


@dataclass(slots=True)
class Slot:
    """The folder ``folder``; ``lock`` is the open lock file while this process uses it. ``taken_over``: another process
    has just released it to this one."""

    folder: Path
    lock: int | None = None
    taken_over: bool = False
    _store: str | None = None

    @property
    def db(self) -> Path:
        """The path of the store. Raises StoreError if the slot holds none."""
        if self._store is None:
            record = self.record()
            if record is None:
                raise StoreError(f"the local store folder {self.folder} holds no store")
            self._store = record.store
        return self.folder / self._store

    def new_db(self) -> Path:
        """The path of a new store, in a folder that does not exist yet."""
        made = new_store_folder(self.folder)
        self._store = made.name
        return made

    @property
    def scratch(self) -> Path:
        """The folder for files that go with a lease."""
        return self.folder / "spilled"

    @property
    def kept(self) -> Path:
        """The folder of delta files, under their base names, that a store of this slot need not fetch."""
        return self.folder / "kept"

    def drop_kept(self) -> None:
        """Delete the files of ``kept``. The folder stays: making and removing one costs more than its files."""
        with suppress(OSError), os.scandir(self.kept) as files:
            for file in files:
                os.unlink(file)

    @property
    def cached(self) -> Path:
        """What the previous holder had cached of the store, for the process that took over the slot. It goes with the
        lease."""
        return self.scratch / "cached"

    @property
    def compacted_marker(self) -> Path:
        """The record of the compacted copy that the slot holds or will hold, until a task has used it."""
        return self.folder / "COPY"

    def record(self) -> SlotRecord | None:
        """Return what the slot holds, None when that is nothing or in doubt."""
        try:
            record = msgspec.json.decode((self.folder / "VERSION").read_bytes(), type=SlotRecord)
        except (OSError, UnicodeDecodeError, msgspec.MsgspecError):
            return None
        doubtful = record.changing or record.boot != _boot_id() or record.format != RECORD_FORMAT
        # A store whose folder is gone does not exist, whatever the record says: RocksDB would make an empty one.
        return None if doubtful or not (self.folder / record.store).is_dir() else record

    def used_at(self) -> float:
        """When a store of this slot was last brought to a version, seconds since the epoch; infinity if it is gone."""
        for path in (self.folder / "VERSION", self.folder):
            with suppress(OSError):
                return path.stat().st_mtime
        return math.inf

    def write(self, version: int, lineage: str, changing: bool) -> None:
        """Record what the slot holds."""
        record = SlotRecord(version, lineage, self.db.name, changing, _boot_id())
        _overwrite(self.folder / "VERSION", msgspec.json.encode(record))

    def invalidate(self) -> None:
        """Remove the record, which needs no space on the disk: the store will be rebuilt."""
        (self.folder / "VERSION").unlink(missing_ok=True)

    def clear(self) -> None:
        """Delete the store and everything next to it except the lock."""
        # The record goes first: a crash then leaves a slot without one.
        self.invalidate()
        shutil.rmtree(self.folder)
        self._store = None

    def try_lock(self) -> bool:
        """Take the slot if it is free."""
        lock = os.open(f"{self.folder}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return False
        self.lock = lock
        return True

    def is_in_place(self) -> bool:
        """Whether the held lock is still that of the slot: its folder may have been deleted meanwhile."""
        assert self.lock is not None
        try:
            return os.path.samestat(os.stat(f"{self.folder}.lock"), os.fstat(self.lock))
        except OSError:
            return False

    def listen(self) -> int | None:
        """Where requests for the locked slot arrive, a file descriptor; None on systems without named pipes."""
        try:
            with suppress(FileExistsError):
                os.mkfifo(self._asking, 0o600)
            asked = os.open(self._asking, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        if stat.S_ISFIFO(os.fstat(asked).st_mode):
            return asked
        os.close(asked)
        return None

    def try_take_over(self) -> bool:
        """Take the slot if its holder only keeps its store open, and releases it."""
        try:
            asking = os.open(self._asking, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return False  # there is no reader
        try:
            self.cached.unlink(missing_ok=True)  # its addressee was another process, which died
            with suppress(OSError):  # of simultaneous requests, one is enough
                os.write(asking, b"?")
            closed = select.poll()
            closed.register(asking, 0)  # errors alone: there is no reader any more
            closed.poll(_TAKE_OVER_SECONDS_MAX * 1_000)
        finally:
            os.close(asking)
        self.taken_over = self.try_lock()
        return self.taken_over

    @property
    def _asking(self) -> str:
        """The pipe whose reader keeps the store open."""
        return f"{self.folder}.asked"

    def unlock(self, keeps_parent: bool = False) -> None:
        """Release the slot; a second call is allowed. ``keeps_parent``: the lock is the parent's, which keeps it."""
        lock, self.lock = self.lock, None
        if lock is not None:
            if not keeps_parent:
                fcntl.flock(lock, fcntl.LOCK_UN)
            os.close(lock)


def new_store_folder(within: Path) -> Path:
    """A path for a store in the folder ``within`` that no other store has or had."""
    return within / f"db-{uuid.uuid4().hex[:12]}"


def replace_file(path: Path, data: bytes) -> None:
    """Write a small file, which readers see as a whole or not at all; not synced."""
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.write_bytes(data)
    temporary.replace(path)


def _overwrite(path: Path, data: bytes) -> None:
    """Write a record in place, where there is one: replacing a file makes some file systems write the new one to the
    disk. A record that a reader sees half written is in doubt, as is one that a crash has cut off."""
    padded = data.ljust(_RECORD_BYTES)
    try:
        file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return replace_file(path, padded)
    try:
        os.pwrite(file, padded, 0)
    finally:
        os.close(file)


@functools.cache
def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""  # not available on this system; a power cut then looks like a restart


def default_local_dir() -> Path:
    """The folder of this user in the temporary directory of this machine."""
    return Path(tempfile.gettempdir()) / f"asyncstate-{os.geteuid()}"


def folder_name(job_id: str, place: str) -> str:
    """The folder of a job's stores; jobs of one name over different checkpoints have different ones."""
    return f"{job_id}-{xxhash.xxh3_64_hexdigest(place.encode())}"


def make_private(folder: Path) -> None:
    """Make a folder and its parents, open to this user alone; an existing one stays as it is."""
    if not folder.is_dir():
        make_private(folder.parent)
        folder.mkdir(_PRIVATE, exist_ok=True)


def make_owned(folder: Path) -> None:
    """Make ``folder``, or check that only this user can access it. Raises StoreError if not."""
    folder.mkdir(_PRIVATE, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise _not_ours(folder, "is a link, not a folder")
    if found.st_uid != os.geteuid():
        raise _not_ours(folder, f"belongs to the user with the number {found.st_uid}, not {os.geteuid()}")
    if found.st_mode & _OTHERS:
        raise _not_ours(folder, f"is open to other users (mode {stat.S_IMODE(found.st_mode):o})")


def _not_ours(folder: Path, what: str) -> StoreError:
    return StoreError(
        f"the local store folder {folder} {what}, so its content may be somebody else's. Delete it, or set "
        "async-state.local-dir to a folder that only this user can write to"
    )
