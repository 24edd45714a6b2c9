"""Where stores lie on a machine's own disk: whose folders those are, and a slot for each store.

Owns: Slot (a folder for one local store, its lock, and the record of what it holds) and the folders above it.
Invariants: local stores are the one thing without a checksum, so nobody else may write where they lie by default: that
folder carries the user's number, is theirs, and open to them alone. A slot is used under an advisory file lock, which
dies with its process; its record names its content, and says "changing" before the content changes. Each store that is
made has a folder name of its own, so two stores never have one path, also when a folder above them is deleted and made
again: RocksDB knows the stores that a process has open by their paths. Must not know leases or checkpoints.
"""

from __future__ import annotations

import fcntl
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
_PRIVATE: Final = 0o700
_OTHERS: Final = 0o077
_TAKE_OVER_SECONDS_MAX: Final = (
    2.0  # closing a store takes milliseconds; who takes longer hangs or was stopped
)


class SlotRecord(msgspec.Struct, frozen=True):
    """What a slot holds, in its folder ``store``. ``boot`` is this start of the machine: after a power cut no slot is
    trusted."""

    version: int
    lineage: str
    store: str
    changing: bool
    boot: str
    format: int = RECORD_FORMAT


@dataclass(slots=True)
class Slot:
    """The folder ``folder``; ``lock`` is the open lock file while this process uses it. ``taken_over``: another process
    has just given it up to this one."""

    folder: Path
    lock: int | None = None
    taken_over: bool = False
    _store: str | None = None

    @property
    def db(self) -> Path:
        """Where the store lies. Raises StoreError if the slot holds none."""
        if self._store is None:
            record = self.record()
            if record is None:
                raise StoreError(f"the local store folder {self.folder} holds no store")
            self._store = record.store
        return self.folder / self._store

    def new_db(self) -> Path:
        """Where a store is to be made, in a folder that does not exist yet."""
        made = new_store_folder(self.folder)
        self._store = made.name
        return made

    @property
    def scratch(self) -> Path:
        """Where what goes with a lease lies."""
        return self.folder / "spilled"

    @property
    def kept(self) -> Path:
        """Where delta files lie under their base names that a store of this slot need not fetch."""
        return self.folder / "kept"

    @property
    def cached(self) -> Path:
        """What its holder had cached of the store, for the one to whom it gave the slot up. It goes with the lease."""
        return self.scratch / "cached"

    @property
    def compacted_marker(self) -> Path:
        """What there is to know of the compacted copy that the slot holds or will hold, until a task has used it."""
        return self.folder / "COPY"

    def record(self) -> SlotRecord | None:
        """Return what the slot holds, None when that is nothing or in doubt."""
        try:
            record = msgspec.json.decode((self.folder / "VERSION").read_bytes(), type=SlotRecord)
        except (OSError, UnicodeDecodeError, msgspec.MsgspecError):
            return None
        doubtful = record.changing or record.boot != _boot_id() or record.format != RECORD_FORMAT
        # A store whose folder is gone is not there, whatever the record says: RocksDB would make an empty one.
        return None if doubtful or not (self.folder / record.store).is_dir() else record

    def used_at(self) -> float:
        """When a store of this slot was last brought to a version, seconds since the epoch; infinity if it is gone."""
        for path in (self.folder / "VERSION", self.folder):
            with suppress(OSError):
                return path.stat().st_mtime
        return math.inf

    def write(self, version: int, lineage: str, changing: bool) -> None:
        """Say what the slot holds."""
        record = SlotRecord(version, lineage, self.db.name, changing, _boot_id())
        replace_file(self.folder / "VERSION", msgspec.json.encode(record))

    def invalidate(self) -> None:
        """Take the record away, which needs no space on the disk: the store will be rebuilt."""
        (self.folder / "VERSION").unlink(missing_ok=True)

    def clear(self) -> None:
        """Delete the store and all beside it but the lock."""
        # The record goes first: what a crash leaves behind is then a slot without one.
        self.invalidate()
        shutil.rmtree(self.folder)
        self._store = None

    def try_lock(self) -> bool:
        """Take the slot if nobody has it."""
        lock = os.open(f"{self.folder}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return False
        self.lock = lock
        return True

    def is_in_place(self) -> bool:
        """Whether the lock that is held is that of the slot: its folder may have been deleted meanwhile."""
        assert self.lock is not None
        try:
            return os.path.samestat(os.stat(f"{self.folder}.lock"), os.fstat(self.lock))
        except OSError:
            return False

    def listen(self) -> int | None:
        """Where requests for the locked slot arrive, a file descriptor; None where there are no named pipes."""
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
        """Take the slot if who has it only keeps its store open and gives it up."""
        try:
            asking = os.open(self._asking, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return False  # nobody listens
        try:
            self.cached.unlink(missing_ok=True)  # what is there is for somebody else, who died
            with suppress(OSError):  # of those who ask at once, one is enough
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
        """Give the slot back; twice is allowed. ``keeps_parent``: the lock is the parent's, which keeps it."""
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


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""  # no such thing on this system; a power cut is then not told from a restart


def default_local_dir() -> Path:
    """The folder of this user in the temporary directory of this machine."""
    return Path(tempfile.gettempdir()) / f"asyncstate-{os.geteuid()}"


def folder_name(job_id: str, place: str) -> str:
    """The folder of a job's stores; jobs of one name over different checkpoints have different ones."""
    return f"{job_id}-{xxhash.xxh3_64_hexdigest(place.encode())}"


def make_private(folder: Path) -> None:
    """Make a folder, and those above it, open to this user alone; one that is there already stays as it is."""
    if not folder.is_dir():
        make_private(folder.parent)
        folder.mkdir(_PRIVATE, exist_ok=True)


def make_owned(folder: Path) -> None:
    """Make ``folder``, or check that it is this user's alone. Raises StoreError if it is not."""
    folder.mkdir(_PRIVATE, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise _not_ours(folder, "is no folder of its own but a link")
    if found.st_uid != os.geteuid():
        raise _not_ours(folder, f"belongs to the user with the number {found.st_uid}, not {os.geteuid()}")
    if found.st_mode & _OTHERS:
        raise _not_ours(folder, f"is open to other users (mode {stat.S_IMODE(found.st_mode):o})")


def _not_ours(folder: Path, what: str) -> StoreError:
    return StoreError(
        f"the local store folder {folder} {what}, so what lies in it may be somebody else's. Delete it, or set "
        "async-state.local-dir to a folder that only this user can write to"
    )
