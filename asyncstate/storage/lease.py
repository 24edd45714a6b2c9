"""Local store folders: exclusive use, and knowing which content each of them holds.

Owns: LocalStores, Lease and the slots ``<local_dir>/<job_id>/<uid>/<partition>/slot-<k>``. Invariants: a
slot is used by one attempt at a time, across threads and processes (an advisory file lock, which dies with
its process); a slot's record names its content, and says "changing" before the content changes: a slot found
like that is rebuilt. Must not import the overlay or anything of execution.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final

import msgspec

from asyncstate.errors import StoreError
from asyncstate.storage.base import PartitionBase
from asyncstate.storage.contract import KeyedStore
from asyncstate.storage.files import CheckpointFiles
from asyncstate.storage.manifest import DeltaRef
from asyncstate.storage.memory import MemoryStore
from asyncstate.storage.restore import Fetcher, RestoreStatistics, advance, build_store
from asyncstate.storage.rocksdb import RocksDBOptions, RocksDBStore

_RECORD_FORMAT: Final = 1
_STALE_VERSIONS: Final = 16
_WAIT_POLL_SECONDS: Final = 0.02
_NAME = re.compile(r"[A-Za-z0-9_.-]+")


class SlotRecord(msgspec.Struct, frozen=True):
    """What a slot holds. ``boot`` is this start of the machine: after a power cut no slot is trusted."""

    version: int
    lineage: str
    changing: bool
    boot: str
    format: int = _RECORD_FORMAT


@dataclass(slots=True)
class _Slot:
    folder: Path
    lock: int | None = None

    @property
    def db(self) -> Path:
        return self.folder / "db"

    @property
    def scratch(self) -> Path:
        return self.folder / "spilled"

    def record(self) -> SlotRecord | None:
        """Return what the slot holds, None when that is nothing or in doubt."""
        try:
            record = msgspec.json.decode((self.folder / "VERSION").read_bytes(), type=SlotRecord)
        except (OSError, msgspec.MsgspecError):
            return None
        doubtful = record.changing or record.boot != _boot_id() or record.format != _RECORD_FORMAT
        return None if doubtful else record

    def write(self, version: int, lineage: str, changing: bool) -> None:
        temporary = self.folder / "VERSION.tmp"
        temporary.write_bytes(msgspec.json.encode(SlotRecord(version, lineage, changing, _boot_id())))
        temporary.replace(self.folder / "VERSION")

    def distrust(self) -> None:
        """Take the record away, which needs no space on the disk: the store will be rebuilt."""
        (self.folder / "VERSION").unlink(missing_ok=True)

    def clear(self) -> None:
        # The record goes first: what a crash leaves behind is then a slot without one.
        self.distrust()
        shutil.rmtree(self.folder)

    def try_lock(self) -> bool:
        lock = os.open(f"{self.folder}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return False
        self.lock = lock
        return True

    def unlock(self) -> None:
        lock, self.lock = self.lock, None
        if lock is not None:
            fcntl.flock(lock, fcntl.LOCK_UN)
            os.close(lock)


class Lease:
    """Exclusive use of one local store at exactly the base version; a context manager that gives it back.

    ``store`` is what the operator reads. ``rocks`` is the RocksDB store behind it, of which snapshots are
    made.
    """

    def __init__(
        self,
        slot: _Slot,
        base: PartitionBase,
        rocks: RocksDBStore,
        store: KeyedStore,
        restored: RestoreStatistics,
    ) -> None:
        self._slot = slot
        self.base = base
        self.rocks = rocks
        self.store = store
        self.restored = restored
        self._scratch: RocksDBStore | None = None

    @property
    def kept_folder(self) -> Path:
        """Where a delta file is left under its base name, so that the next lease need not fetch it."""
        return self._slot.folder / "kept"

    @property
    def scratch_folder(self) -> Path:
        """Where ``open_scratch`` puts its store, and where others may put what goes with the lease."""
        return self._slot.scratch

    def open_scratch(self) -> RocksDBStore:
        """An empty store beside the leased one, for what does not fit into memory; it goes with the lease."""
        with _explained(self._slot.scratch):
            self._slot.scratch.mkdir(exist_ok=True)
        self._scratch = RocksDBStore(self._slot.scratch / "db", self.rocks.options)
        return self._scratch

    def _drop_scratch(self) -> None:
        scratch, self._scratch = self._scratch, None
        if scratch is not None:
            with suppress(StoreError):  # nothing in it is of use any more
                scratch.close()
        if self._slot.scratch.exists():
            shutil.rmtree(self._slot.scratch, ignore_errors=True)

    def release(self, settle: bool = True) -> None:
        """Close the store and free the slot; twice is allowed. A failed store will be rebuilt.

        ``settle``: wait for the compaction that was started; without it its work is lost.
        """
        if self._slot.lock is None:
            return
        try:
            if self.rocks.damaged:
                with _explained(self._slot.folder):
                    self._slot.distrust()
            elif settle:
                self.rocks.settle()
        finally:
            try:
                self._drop_scratch()
                self.store.close()
                self.rocks.close()
            finally:
                self._slot.unlock()

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.release(settle=error is None)  # a failure should be told at once
        except StoreError as releasing:
            if error is None:
                raise
            # A read that hangs keeps the store from closing; what the task failed for says more.
            error.add_note(f"giving the local store back failed as well: {releasing}")


class LocalStores:
    """The local store folders of one job on this machine."""

    def __init__(
        self,
        local_dir: str | Path,
        job_id: str,
        files: CheckpointFiles,
        slots_max: int = 4,
        wait_seconds_max: float = 60.0,
    ) -> None:
        self._root = Path(local_dir) / _checked(job_id, "job id")
        self._files = files
        self._slots_max = slots_max
        self._wait_seconds_max = wait_seconds_max

    def acquire(
        self,
        uid: str,
        partition: int,
        base: PartitionBase,
        options: RocksDBOptions | None = None,
        in_memory: bool = False,
    ) -> Lease:
        """Take a slot and bring its store to ``base``.

        ``in_memory`` loads the content into a MemoryStore, O(state) a lease; the checkpoint files are the
        same. Raises CheckpointCorruptionError naming a damaged checkpoint file, StoreError when no slot can
        be used.
        """
        folder = self._root / _checked(uid, "operator uid") / str(partition)
        with _explained(folder):
            folder.mkdir(parents=True, exist_ok=True)
            slot = self._take_slot(folder, base)
            try:
                lease = self._open(slot, base, options or RocksDBOptions(), in_memory)
                self._drop_leftovers(folder, base)
            except BaseException:
                slot.unlock()
                raise
        return lease

    def _slots(self, folder: Path) -> list[_Slot]:
        return [_Slot(folder / f"slot-{number}") for number in range(self._slots_max)]

    def _take_slot(self, folder: Path, base: PartitionBase) -> _Slot:
        deadline = time.monotonic() + self._wait_seconds_max
        while True:
            for slot in sorted(self._slots(folder), key=lambda slot: _distance(slot.record(), base)):
                if slot.try_lock():
                    return slot
            if time.monotonic() > deadline:
                raise StoreError(
                    f"all {self._slots_max} local stores below {folder} are in use by other attempts of this "
                    f"partition; look for hanging tasks of the job, or give it another local directory"
                )
            time.sleep(_WAIT_POLL_SECONDS)

    def _open(self, slot: _Slot, base: PartitionBase, options: RocksDBOptions, in_memory: bool) -> Lease:
        started = time.monotonic()
        fetcher = Fetcher(self._files, base.version, slot.folder / "kept")
        record = slot.record()
        pending = None if record is None else base.pending_after(record.lineage)
        rocks = None if pending is None else _advanced(slot, base, pending, fetcher, options)
        if rocks is not None:
            way, applied = ("advanced" if pending else "kept"), len(pending or ())
        else:
            rocks = _rebuilt(slot, base, fetcher, options)
            way, applied = ("rescaled" if base.rescaled else "rebuilt"), len(base.deltas)
        shutil.rmtree(slot.scratch, ignore_errors=True)
        shutil.rmtree(slot.folder / "kept", ignore_errors=True)
        (slot.folder / "kept").mkdir()
        restored = RestoreStatistics(way, applied, fetcher.bytes_fetched, time.monotonic() - started)
        store = MemoryStore(rocks.iterate(), base.version) if in_memory else rocks
        return Lease(slot, base, rocks, store, restored)

    def _drop_leftovers(self, folder: Path, base: PartitionBase) -> None:
        """Remove stores that nobody will use, and what processes that died had spilled."""
        for slot in self._slots(folder):
            if (_is_stale(slot, base) or slot.scratch.exists()) and slot.try_lock():
                try:
                    if _is_stale(slot, base):  # it may have been used between the two
                        slot.clear()
                    shutil.rmtree(slot.scratch, ignore_errors=True)
                finally:
                    slot.unlock()


def _advanced(
    slot: _Slot, base: PartitionBase, pending: list[DeltaRef], fetcher: Fetcher, options: RocksDBOptions
) -> RocksDBStore | None:
    """Open the slot's store and ingest what it lacks; None when the folder turns out to be unusable."""
    rocks = None
    try:
        rocks = RocksDBStore(slot.db, options, base.version)
        if pending:
            slot.write(base.version, base.lineage, changing=True)
            advance(rocks, pending, base.version, fetcher)
        slot.write(base.version, base.lineage, changing=False)
        rocks.compact_if_due()
    except StoreError:
        # The local folder is only a copy: rebuild it, and let that fail if the disk is to blame.
        if rocks is not None:
            with suppress(StoreError):
                rocks.close()
        return None
    except BaseException:
        if rocks is not None:
            rocks.close()
        raise
    return rocks


def _rebuilt(slot: _Slot, base: PartitionBase, fetcher: Fetcher, options: RocksDBOptions) -> RocksDBStore:
    if slot.folder.exists():
        slot.clear()
    slot.folder.mkdir(parents=True)
    rocks = build_store(slot.db, base, fetcher, options)
    slot.write(base.version, base.lineage, changing=False)
    return rocks


def _distance(record: SlotRecord | None, base: PartitionBase) -> tuple[int, int]:
    """Order slots: on the base's lineage with few deltas missing, then empty, then to be rebuilt."""
    if record is None:
        return 1, 0
    pending = base.pending_after(record.lineage)
    return (2, record.version) if pending is None else (0, len(pending))


def _is_stale(slot: _Slot, base: PartitionBase) -> bool:
    record = slot.record()
    return record is not None and record.version < base.version - _STALE_VERSIONS


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""  # no such thing on this system; a power cut is then not told from a restart


def _checked(name: str, what: str) -> str:
    if not _NAME.fullmatch(name) or set(name) == {"."}:
        raise StoreError(f"{what} {name!r} cannot name a folder; use letters, digits, '_', '.' and '-'")
    return name


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"the local store folder {folder} cannot be used: {error}. Check the disk's space and "
            f"permissions, or choose another local directory"
        ) from error
