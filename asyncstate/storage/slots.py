"""A slot: a folder for one local store, what it holds, and what this process does with it.

Owns: ``Slot`` with its states and transitions, ``SlotRecord``, and ``held``, which knows all slots of this process, for
when it forks and when it ends.
Invariants: a slot is used under an advisory file lock, which ends with its process. Its record names its content, and
says "changing" before the content changes. A slot that is free has nothing open. Each new store has a unique folder
name, so two stores never have the same path, even when a folder above them is deleted and made again: RocksDB
identifies the stores that a process has open by their paths. Must not know leases or checkpoints.
"""

from __future__ import annotations

import atexit
import enum
import fcntl
import functools
import math
import os
import select
import shutil
import stat
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol
from weakref import WeakSet

import msgspec

from asyncstate.errors import StoreError
from asyncstate.storage.rocksdb import RocksDBStore
from asyncstate.storage.rocksdb_options import RocksDBOptions

RECORD_FORMAT: Final = 2
_RECORD_BYTES: Final = 512
_TAKE_OVER_SECONDS_MAX: Final = 2.0  # closing a store takes milliseconds; a slower process hangs


class SlotRecord(msgspec.Struct, frozen=True):
    """What a slot holds, in its folder ``store``. ``boot`` identifies this start of the machine: after a power cut no
    slot is trusted."""

    version: int
    lineage: str
    store: str
    changing: bool
    boot: str
    format: int = RECORD_FORMAT


class SlotState(enum.Enum):
    """What this process does with a slot. What the slot holds is in its record, for all processes."""

    FREE = "free"  # this process does not use it
    TAKEN = "taken"  # locked, to be brought to a version, filled or cleared; a kept store is still open
    LEASED = "leased"  # a task reads the open store, which is at the task's base version
    KEPT = "kept open"  # between micro-batches, unchanged; another process may request it
    COPYING = "copying"  # a copy of another slot's store is open in it, and is compacted


class Slot:
    """The folder ``folder`` for one store. Each method says from which state it leads to which one; from another state
    it raises AssertionError. Not for use by several threads at once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = SlotState.FREE
        self.store: RocksDBStore | None = None
        """The open store."""
        self.taken_over = False
        """Whether another process has just released the slot to this one."""
        self._lock: int | None = None
        self._requests: int | None = None
        self._scratch: RocksDBStore | None = None
        self._name: str | None = None
        self._written: SlotRecord | None = None
        """The record, once this process has written it: until the slot is free, no other process does."""

    @property
    def db(self) -> Path:
        """The path of the store that was last found in the record, or made."""
        assert self._name is not None
        return self.folder / self._name

    @property
    def scratch(self) -> Path:
        """The folder for files that go with a lease."""
        return self.folder / "spilled"

    @property
    def kept(self) -> Path:
        """The folder of delta files, under their base names, that a store of this slot need not fetch."""
        return self.folder / "kept"

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
        record = self._written
        if record is None:
            try:
                record = msgspec.json.decode((self.folder / "VERSION").read_bytes(), type=SlotRecord)
            except (OSError, UnicodeDecodeError, msgspec.MsgspecError):
                return None
        doubtful = record.changing or record.boot != _boot_id() or record.format != RECORD_FORMAT
        # A store whose folder is gone does not exist, whatever the record says: RocksDB would make an empty one.
        if doubtful or not (self.folder / record.store).is_dir():
            return None
        self._name = record.store
        return record

    def used_at(self) -> float:
        """When a store of this slot was last brought to a version, seconds since the epoch; infinity if it is gone."""
        for path in (self.folder / "VERSION", self.folder):
            with suppress(OSError):
                return path.stat().st_mtime
        return math.inf

    def take(self) -> bool:
        """FREE to TAKEN, if nobody else uses the slot."""
        self._require(SlotState.FREE)
        lock = os.open(f"{self.folder}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return False
        self._lock, self.state = lock, SlotState.TAKEN
        held.slots.add(self)
        return True

    def take_over(self) -> bool:
        """FREE to TAKEN, if the holder only keeps the store open, and releases it when it is requested."""
        self._require(SlotState.FREE)
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
        self.taken_over = self.take()
        return self.taken_over

    def close_store(self) -> None:
        """Close what is open, and keep the lock: any state but FREE to TAKEN."""
        self._require(SlotState.TAKEN, SlotState.LEASED, SlotState.KEPT, SlotState.COPYING)
        self._close_scratch()
        store, self.store, self.state = self.store, None, SlotState.TAKEN
        if store is not None:
            store.close()

    def release(self) -> None:
        """Close what is open, and give the lock back: any state but FREE to FREE.

        Raises StoreError if the store cannot be closed. The slot is free all the same: RocksDB's own lock keeps others
        from opening that store, so the next holder makes another one.
        """
        try:
            self.close_store()
        finally:
            if self._lock is not None:
                fcntl.flock(self._lock, fcntl.LOCK_UN)  # also for a process that was forked a moment ago
            self._let_go()

    def drop(self) -> None:
        """``release`` a slot whose store need not be usable afterwards."""
        with suppress(StoreError):
            self.release()

    def disown(self) -> list[RocksDBStore]:
        """Any state to FREE, in a forked process: lock and stores are the parent's. Returns the stores, which must not
        be closed here, not even by being deleted: RocksDB's threads do not exist in this process."""
        stores = [store for store in (self.store, self._scratch) if store is not None]
        self.store = self._scratch = None
        self._let_go()
        return stores

    def _let_go(self) -> None:
        # The pipe comes last: a requester waits as long as it has a reader.
        for file in (self._lock, self._requests):
            if file is not None:
                os.close(file)
        self._lock = self._requests = self._written = None
        self.state, self.taken_over = SlotState.FREE, False
        held.slots.discard(self)

    def is_in_place(self) -> bool:
        """Whether the held lock is still that of the slot: its folder may have been deleted meanwhile."""
        assert self._lock is not None
        try:
            return os.path.samestat(os.stat(f"{self.folder}.lock"), os.fstat(self._lock))
        except OSError:
            return False

    def open(self, options: RocksDBOptions) -> RocksDBStore:
        """Open the store that the record names, unless it is open. TAKEN."""
        self._require(SlotState.TAKEN)
        if self.store is None:
            self.store = RocksDBStore(self.db, options)
        return self.store

    def write(self, version: int, lineage: str, changing: bool) -> None:
        """Record what the slot holds. TAKEN."""
        self._require(SlotState.TAKEN)
        self._written = None  # it is in doubt if the disk is full
        record = SlotRecord(version, lineage, self.db.name, changing, _boot_id())
        _overwrite(self.folder / "VERSION", msgspec.json.encode(record))
        self._written = record

    def invalidate(self) -> None:
        """Remove the record, which needs no space on the disk: the store will be rebuilt. TAKEN or LEASED."""
        self._require(SlotState.TAKEN, SlotState.LEASED)
        self._written = None
        (self.folder / "VERSION").unlink(missing_ok=True)

    def clear(self) -> None:
        """Delete the closed store and everything next to it except the lock. TAKEN."""
        self._require(SlotState.TAKEN)
        assert self.store is None
        # The record goes first: a crash then leaves a slot without one.
        self.invalidate()
        shutil.rmtree(self.folder)
        self._name = None

    def new_store(self) -> Path:
        """Clear the slot and return the path of a new store in it, which does not exist yet. TAKEN."""
        self._require(SlotState.TAKEN)
        if self.folder.exists():
            self.clear()
        self.folder.mkdir(parents=True)
        made = new_store_folder(self.folder)
        self._name = made.name
        return made

    def drop_kept(self) -> None:
        """Delete the files of ``kept``. The folder stays: making and removing one costs more than its files."""
        with suppress(OSError), os.scandir(self.kept) as files:
            for file in files:
                os.unlink(file)

    def lease(self) -> RocksDBStore:
        """TAKEN to LEASED. Returns the open store."""
        self._require(SlotState.TAKEN)
        assert self.store is not None
        self.state, self.taken_over = SlotState.LEASED, False
        return self.store

    def open_scratch(self) -> RocksDBStore:
        """An empty store next to the leased one; it ends with the lease. LEASED."""
        self._require(SlotState.LEASED)
        assert self.store is not None
        assert self._scratch is None
        self.scratch.mkdir(exist_ok=True)
        self._scratch = RocksDBStore(new_store_folder(self.scratch), self.store.options)
        return self._scratch

    def keep(self) -> int | None:
        """LEASED to KEPT, and the previous holder of the lease cannot read on. Returns where requests for the store
        arrive, a file descriptor; None, and the slot stays LEASED, on systems without named pipes, where nobody could
        request it."""
        self._require(SlotState.LEASED)
        assert self.store is not None
        self._close_scratch()
        self._requests = self._listen()
        if self._requests is not None:
            self.store, self.state = self.store.handed_on(), SlotState.KEPT
        return self._requests

    def resume(self) -> None:
        """KEPT to TAKEN, with the store open."""
        self._require(SlotState.KEPT)
        assert self._requests is not None
        os.close(self._requests)
        self._requests, self.state = None, SlotState.TAKEN

    def copy(self, options: RocksDBOptions, version: int) -> None:
        """TAKEN to COPYING: open the copy of a store that has been made in the slot."""
        self.open(options).version = version
        self.state = SlotState.COPYING

    def _require(self, *states: SlotState) -> None:
        if self.state not in states:
            allowed = " or ".join(f"'{state.value}'" for state in states)
            raise AssertionError(f"the slot {self.folder} is '{self.state.value}', not {allowed}")

    def _close_scratch(self) -> None:
        scratch, self._scratch = self._scratch, None
        if scratch is not None:
            with suppress(StoreError):  # its content is of no further use
                scratch.close()
        if self.state is SlotState.LEASED:
            shutil.rmtree(self.scratch, ignore_errors=True)

    def _listen(self) -> int | None:
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

    @property
    def _asking(self) -> str:
        """The pipe whose reader keeps the store open."""
        return f"{self.folder}.asked"


class SlotUser(Protocol):
    """Who has slots for longer than a lease: open stores and background compactions."""

    def forget(self) -> None:
        """Begin again with nothing, in a forked process."""

    def close(self, below: Path | None = None) -> None:
        """Close all stores, or those of slots below a folder, and end their threads."""


class HeldSlots:
    """The slots that this process has, in whatever state, and who uses them."""

    def __init__(self) -> None:
        self.slots: WeakSet[Slot] = WeakSet()
        self.users: WeakSet[SlotUser] = WeakSet()
        self._of_parent: list[RocksDBStore] = []

    def forked(self) -> None:
        """This process is a child: everything here belongs to its parent."""
        for slot in list(self.slots):
            self._of_parent += slot.disown()
        for user in list(self.users):
            user.forget()

    def close(self, below: Path | None = None) -> None:
        """Close the stores that no task uses, or those below a folder, at the end of the process or of the folder."""
        for user in list(self.users):
            user.close(below)


held: Final = HeldSlots()
os.register_at_fork(after_in_child=held.forked)
atexit.register(held.close)


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
