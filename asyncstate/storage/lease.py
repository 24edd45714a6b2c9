"""Local store folders: exclusive use, and the content that each of them holds.

Owns: LocalStores, Lease and which slot of ``<local_dir>/<job_id>-<checkpoint>/<uid>/<partition>/slot-<k>`` is used.
Invariants: a slot is used by one attempt at a time, across threads and processes; a slot marked dirty ("changing") is
rebuilt. Must not import the memtable or anything of execution.
"""

from __future__ import annotations

import functools
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from asyncstate.errors import StoreError
from asyncstate.storage.compaction import copies, hand_on, is_copy, pending_of
from asyncstate.storage.files import CheckpointFiles
from asyncstate.storage.manifest import DeltaRef
from asyncstate.storage.restore import Fetcher, RestoreStatistics, advance, build_store
from asyncstate.storage.restore_plan import RestorePlan
from asyncstate.storage.rocksdb import RocksDBStore
from asyncstate.storage.rocksdb_options import RocksDBOptions
from asyncstate.storage.slots import (
    Slot,
    default_local_dir,
    folder_name,
    make_owned,
    make_private,
    new_store_folder,
)
from asyncstate.storage.store_pool import GiveAway, StorePool, read_cached

_STALE_VERSIONS: Final = 16
_ABANDONED_SECONDS: Final = 7 * 24 * 3600.0
_WAIT_POLL_SECONDS: Final = 0.02
_COPY, _ON_THE_WAY, _EMPTY = range(3)
_ON: Final = ("kept", "advanced")  # ways of a slot that was not rebuilt
_NAME = re.compile(r"[A-Za-z0-9_.-]+")


class Lease:
    """Exclusive use of one local store at exactly the base version; a context manager that releases it.

    On release, ``keep_open`` is offered the store. ``cached``: what the process that released the store had cached of
    exactly this content; None if unknown.
    """

    def __init__(
        self,
        slot: Slot,
        base: RestorePlan,
        store: RocksDBStore,
        restored: RestoreStatistics,
        keep_open: Callable[[Slot, RocksDBStore], bool],
        cached: Any = None,
    ) -> None:
        self._slot = slot
        self.base = base
        self.store = store
        self.restored = restored
        self.cached = cached
        self._keep_open = keep_open
        self._given_back = False
        self._scratch: RocksDBStore | None = None

    @property
    def kept_folder(self) -> Path:
        """Where a delta file is kept under its base name, so that the next lease need not fetch it."""
        return self._slot.kept

    @property
    def scratch_folder(self) -> Path:
        """Where ``open_scratch`` creates its store, and where others may store files that go with the lease."""
        return self._slot.scratch

    def open_scratch(self) -> RocksDBStore:
        """An empty store next to the leased one, for what does not fit into memory; it goes with the lease."""
        with _explained(self._slot.scratch):
            self._slot.scratch.mkdir(exist_ok=True)
        self._scratch = RocksDBStore(new_store_folder(self._slot.scratch), self.store.options)
        return self._scratch

    def _drop_scratch(self) -> None:
        scratch, self._scratch = self._scratch, None
        if scratch is not None:
            with suppress(StoreError):  # its content is of no further use
                scratch.close()
        shutil.rmtree(self._slot.scratch, ignore_errors=True)

    def release(self, settle: bool = True) -> None:
        """Release the store; a second call is allowed. A failed store is closed, and will be rebuilt.

        ``settle``: wait for the compaction that was started, and let the store stay open; without it the work of the
        compaction is lost.
        """
        if self._given_back:
            return
        self._given_back = True
        try:
            if self.store.damaged:
                with _explained(self._slot.folder):
                    self._slot.invalidate()
            elif settle:
                self.store.settle()
        finally:
            self._give_back(settle and not self.store.damaged)

    def _give_back(self, usable: bool) -> None:
        kept = False
        try:
            self._drop_scratch()
            kept = usable and self._keep_open(self._slot, self.store)
        finally:
            if not kept:
                try:
                    self.store.close()
                finally:
                    self._slot.unlock()

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.release(settle=error is None)  # report a failure at once
        except StoreError as releasing:
            if error is None:
                raise
            # A read that hangs keeps the store from closing; the task's own error is more useful.
            error.add_note(f"releasing the local store failed as well: {releasing}")


class LocalStores:
    """The local store folders of one checkpoint on this machine.

    ``local_dir`` is the configured folder; without one it is the user's own in the temporary directory. Released stores
    stay open in ``open_stores`` as long as those keep within ``open_bytes_max``.
    """

    def __init__(
        self,
        local_dir: str | Path | None,
        job_id: str,
        files: CheckpointFiles,
        slots_max: int = 4,
        wait_seconds_max: float = 60.0,
        open_stores: StorePool | None = None,
        open_bytes_max: int = 0,
    ) -> None:
        self._is_default = local_dir is None
        self._all = default_local_dir() if local_dir is None else Path(local_dir)
        self._job_id = _checked(job_id, "job id")
        self._root = self._all / folder_name(job_id, files.shown)
        self._files = files
        self._slots_max = slots_max
        self._wait_seconds_max = wait_seconds_max
        self._open_stores = StorePool() if open_stores is None else open_stores
        self._open_bytes_max = open_bytes_max

    @staticmethod
    def check(local_dir: str | Path | None) -> None:
        """Raise OSError or StoreError if this process cannot write to the folder; it is made if it is not there."""
        folder = default_local_dir() if local_dir is None else Path(local_dir)
        if local_dir is None:
            make_owned(folder)
        else:
            make_private(folder)
        tempfile.TemporaryFile(dir=folder).close()

    def acquire(
        self,
        uid: str,
        partition: int,
        base: RestorePlan,
        options: RocksDBOptions | None = None,
        export_cache: GiveAway | None = None,
    ) -> Lease:
        """Acquire a slot and restore its store to ``base``.

        ``export_cache``: supplies the cache for another process that requests the store while it stays open. Raises
        CheckpointCorruptionError naming a damaged checkpoint file, StoreError when no slot can be used.
        """
        folder = self._root / _checked(uid, "operator uid") / str(partition)
        with _explained(folder):
            self._make(folder)
            slot, opened = self._take_slot(folder, base)
            others = [other for other in self._slots(folder) if other.folder != slot.folder]
            was_copy = slot.compacted_marker.exists()
            with ExitStack() as undo:
                undo.callback(slot.unlock)
                if opened is not None:
                    undo.callback(_closed, opened)
                hand_on([slot, *others], base)
                lease = self._open(slot, opened, base, options or RocksDBOptions(), export_cache, undo)
                self._drop_leftovers(lease, others, is_replaced=was_copy and lease.restored.method in _ON)
                _compact_copy(lease.store, others, base)
                undo.pop_all()  # from now on the lease releases everything
        return lease

    def _make(self, folder: Path) -> None:
        if self._is_default:
            make_owned(self._all)
        if not self._root.exists():
            self._drop_abandoned()
        make_private(folder)

    def _drop_abandoned(self) -> None:
        """Empty slots that earlier checkpoints of a job of this name have left, once no task has used them for long."""
        for folder in self._all.glob(f"{self._job_id}-{'[0-9a-f]' * 16}/*/*/slot-*[0-9]"):
            slot = Slot(folder)
            if _is_abandoned(slot) and slot.try_lock():
                try:
                    if _is_abandoned(slot):  # it may have been used in between
                        slot.clear()
                finally:
                    slot.unlock()

    def _slots(self, folder: Path) -> list[Slot]:
        return [Slot(folder / f"slot-{number}") for number in range(self._slots_max)]

    def _take_slot(self, folder: Path, base: RestorePlan) -> tuple[Slot, RocksDBStore | None]:
        """An unused slot, and its store if that is open in this process."""
        deadline = time.monotonic() + self._wait_seconds_max
        while True:
            for slot in sorted(self._slots(folder), key=lambda slot: _distance(slot, base)):
                if (kept := self._open_stores.take(slot.folder)) is not None:
                    return kept
                if slot.try_lock() or slot.try_take_over():
                    return slot, None
            if time.monotonic() > deadline:
                raise StoreError(
                    f"all {self._slots_max} local stores below {folder} are in use by other attempts of this "
                    f"partition; look for hanging tasks of the job, or give it another local directory"
                )
            time.sleep(_WAIT_POLL_SECONDS)

    def _open(
        self,
        slot: Slot,
        opened: RocksDBStore | None,
        base: RestorePlan,
        options: RocksDBOptions,
        export_cache: GiveAway | None,
        undo: ExitStack,
    ) -> Lease:
        """``undo`` closes the store if no lease is made."""
        started = time.monotonic()
        fetcher = Fetcher(self._files, base.version, slot.kept)
        record = slot.record()
        pending = None if record is None else pending_of(slot, record, base)
        if opened is not None and (pending is None or opened.options != options):
            opened.close()
            opened = None
        rocks = None if pending is None else _advanced(slot, base, pending, fetcher, options, opened)
        if rocks is not None:
            method, applied = ("advanced" if pending else "kept"), len(pending or ())
        else:
            rocks = _rebuilt(slot, base, fetcher, options)
            method, applied = ("rescaled" if base.rescaled else "rebuilt"), len(base.deltas)
        undo.callback(_closed, rocks)
        cached = read_cached(slot.cached, base.lineage) if slot.taken_over else None
        slot.taken_over = False  # from now on this process holds it
        shutil.rmtree(slot.scratch, ignore_errors=True)
        slot.drop_kept()
        slot.compacted_marker.unlink(missing_ok=True)
        restored = RestoreStatistics(method, applied, fetcher.bytes_fetched, time.monotonic() - started)
        keep = functools.partial(
            self._open_stores.keep, limit_bytes=self._open_bytes_max, export_cache=export_cache
        )
        return Lease(slot, base, rocks, restored, keep, cached)

    def _drop_leftovers(self, lease: Lease, others: list[Slot], is_replaced: bool) -> None:
        """Remove stores that will not be used, and spilled files of processes that died. ``is_replaced``: by its
        compacted copy, so stores on the way to the base are removed as well; the process that has one open exports its
        cache."""
        base = lease.base

        def is_superseded(slot: Slot) -> bool:
            return is_replaced and _distance(slot, base)[0] == _ON_THE_WAY

        def is_useless(slot: Slot) -> bool:
            return _is_stale(slot, base) or is_superseded(slot)

        for slot in others:
            useless, superseded = is_useless(slot), is_superseded(slot)
            if useless:
                self._open_stores.shut(slot.folder)
            elif not slot.scratch.exists():
                continue
            if slot.try_lock() or (superseded and slot.try_take_over()):
                try:
                    if slot.taken_over:
                        lease.cached = read_cached(slot.cached, base.lineage)
                    if is_useless(slot):  # it may have been used in between
                        slot.clear()
                    shutil.rmtree(slot.scratch, ignore_errors=True)
                finally:
                    slot.unlock()


def _advanced(
    slot: Slot,
    base: RestorePlan,
    pending: list[DeltaRef],
    fetcher: Fetcher,
    options: RocksDBOptions,
    opened: RocksDBStore | None,
) -> RocksDBStore | None:
    """Open the slot's store if it is closed, and apply what it lacks; None when the folder turns out to be
    unusable."""
    rocks = opened
    try:
        if rocks is None:
            rocks = RocksDBStore(slot.db, options)
        small, rocks.next_delta = rocks.next_delta, None
        if pending:
            slot.write(base.version, base.lineage, changing=True)
            if small is not None and [delta.file.name for delta in pending] == [small.name]:
                rocks.apply_small(small, base.version)
            else:
                advance(rocks, pending, base.version, fetcher)
        rocks.version = base.version
        slot.write(base.version, base.lineage, changing=False)
        rocks.compact_if_due()
    except BaseException as error:
        if rocks is not None:
            _closed(rocks)
        if isinstance(error, StoreError):
            # The local folder is only a copy: rebuild it; that fails if the disk is the cause.
            return None
        raise
    return rocks


def _rebuilt(slot: Slot, base: RestorePlan, fetcher: Fetcher, options: RocksDBOptions) -> RocksDBStore:
    if slot.folder.exists():
        slot.clear()
    slot.folder.mkdir(parents=True)
    rocks = build_store(slot.new_db(), base, fetcher, options)
    try:
        slot.write(base.version, base.lineage, changing=False)
    except BaseException:
        _closed(rocks)
        raise
    return rocks


def _closed(rocks: RocksDBStore) -> None:
    with suppress(StoreError):
        rocks.close()


def _distance(slot: Slot, base: RestorePlan) -> tuple[int, int]:
    """Order slots: on the base's lineage (compacted copies first) with few deltas missing, then empty, then others."""
    record = slot.record()
    if record is None:
        return _EMPTY, 0
    pending = pending_of(slot, record, base)
    if pending is None:
        return _EMPTY + 1, record.version
    return (_COPY if slot.compacted_marker.exists() else _ON_THE_WAY), len(pending)


def _compact_copy(rocks: RocksDBStore, others: list[Slot], base: RestorePlan) -> None:
    """Start a background compaction of a copy of the store, unless one is running or waits to be used."""
    if not rocks.wants_compacted_copy() or any(is_copy(slot, base) for slot in others):
        return
    for slot in sorted(others, key=lambda slot: _distance(slot, base)[0] != _EMPTY):
        if slot.try_lock():
            copies.begin(rocks, slot, base.lineage)
            return


def _is_stale(slot: Slot, base: RestorePlan) -> bool:
    record = slot.record()
    return record is not None and record.version < base.version - _STALE_VERSIONS


def _is_abandoned(slot: Slot) -> bool:
    return time.time() - slot.used_at() > _ABANDONED_SECONDS


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
