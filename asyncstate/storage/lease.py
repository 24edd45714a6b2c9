"""Local stores: which slot of a partition a task uses, and how its store comes to the task's base version.

Owns: ``LocalStores`` and ``Lease``, over slots ``<local_dir>/<job_id>-<checkpoint>/<uid>/<partition>/slot-<k>``.
Invariants: a slot is used by one attempt at a time, across threads and processes; a slot marked dirty ("changing") is
rebuilt; an attempt that fails leaves nothing open. Must not import the memtable or anything of execution.
"""

from __future__ import annotations

import functools
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from asyncstate.errors import StoreError
from asyncstate.storage.compaction import copies, forward_deltas, is_copy, pending_of
from asyncstate.storage.files import CheckpointFiles
from asyncstate.storage.local_folders import (
    checked_name,
    default_local_dir,
    folder_name,
    make_owned,
    make_private,
)
from asyncstate.storage.manifest import DeltaRef
from asyncstate.storage.restore import Fetcher, RestoreStatistics, advance, build_store
from asyncstate.storage.restore_plan import RestorePlan
from asyncstate.storage.rocksdb import RocksDBStore
from asyncstate.storage.rocksdb_options import RocksDBOptions
from asyncstate.storage.slots import Slot, SlotState
from asyncstate.storage.store_pool import GiveAway, StorePool, read_cached

_STALE_VERSIONS: Final = 16
_ABANDONED_SECONDS: Final = 7 * 24 * 3600.0
_WAIT_POLL_SECONDS: Final = 0.02
_COPY, _ON_THE_WAY, _EMPTY = range(3)
_ON: Final = ("kept", "advanced")  # ways of a slot that was not rebuilt


class Lease:
    """Exclusive use of one local store at exactly the base version; a context manager that releases it.

    On release, ``keep_open`` is offered the slot. ``cached``: what the process that released the store had cached of
    exactly this content; None if unknown.
    """

    def __init__(
        self,
        slot: Slot,
        base: RestorePlan,
        restored: RestoreStatistics,
        keep_open: Callable[[Slot], bool],
        cached: Any = None,
    ) -> None:
        self._slot = slot
        self.base = base
        self.store = slot.lease()
        self.restored = restored
        self.cached = cached
        self.kept_folder = slot.kept
        """Where a delta file is kept under its base name, so that the next lease need not fetch it."""
        self.is_copied = False
        """Whether a copy of the store is being compacted, or waits to be used: it will need the delta, too."""
        self.scratch_folder = slot.scratch
        """Where ``open_scratch`` creates its store, and where others may store files that go with the lease."""
        self._keep_open = keep_open
        self._released = False

    def open_scratch(self) -> RocksDBStore:
        """An empty store next to the leased one, for what does not fit into memory; it goes with the lease."""
        with explained(self.scratch_folder):
            return self._slot.open_scratch()

    def release(self, settle: bool = True) -> None:
        """Release the store; a second call is allowed. A failed store is closed, and will be rebuilt.

        ``settle``: wait for the compaction that was started, and let the store stay open; without it the work of the
        compaction is lost.
        """
        slot = self._slot
        if self._released or slot.state is SlotState.FREE:  # free in a forked process
            return
        self._released, kept = True, False
        try:
            if settle and not self.store.damaged:
                self.store.settle()
            if self.store.damaged:
                with explained(slot.folder):
                    slot.invalidate()
            elif settle:
                kept = self._keep_open(slot)
        finally:
            if not kept:
                slot.release()

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
        self._job_id = checked_name(job_id, "job id")
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
        folder = self._root / checked_name(uid, "operator uid") / str(partition)
        with explained(folder):
            slots = [Slot(folder / f"slot-{number}") for number in range(self._slots_max)]
            used = [slot for slot in slots if slot.folder.exists()]
            slot = self._take_only(used, base) or self._take_slot(folder, slots, base)
            try:
                others = [other for other in slots if other.folder != slot.folder]
                used = [other for other in used if other.folder != slot.folder]
                was_copy = slot.compacted_marker.exists()
                if was_copy or used:
                    forward_deltas([slot, *used], base)
                lease = self._lease(slot, base, options or RocksDBOptions(), export_cache)
                if was_copy:
                    slot.compacted_marker.unlink(missing_ok=True)
                self._drop_leftovers(lease, used, is_replaced=was_copy and lease.restored.method in _ON)
                lease.is_copied = any(other.compacted_marker.exists() for other in used)
                if lease.store.wants_compacted_copy():
                    lease.is_copied |= _compact_copy(lease.store, others, base)
            except BaseException:
                slot.drop()
                raise
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
            if _is_abandoned(slot) and slot.take():
                try:
                    if _is_abandoned(slot):  # it may have been used in between
                        slot.clear()
                finally:
                    slot.release()

    def _take_only(self, used: list[Slot], base: RestorePlan) -> Slot | None:
        """Take the only slot that is used, if this process has its store open and it is on the way to ``base``: in a
        small micro-batch, looking for a better one takes as long as the rest of a lease."""
        kept = self._open_stores.kept(used[0].folder) if len(used) == 1 else None
        record = None if kept is None else kept.record()
        if record is None or base.pending_after(record.lineage) is None:
            return None
        return self._open_stores.take(used[0].folder)

    def _take_slot(self, folder: Path, slots: list[Slot], base: RestorePlan) -> Slot:
        """Take an unused slot, whose store may be open in this process."""
        self._make(folder)
        deadline = time.monotonic() + self._wait_seconds_max
        while True:
            for slot in sorted(slots, key=lambda slot: _distance(slot, base)):
                if (kept := self._open_stores.take(slot.folder)) is not None:
                    return kept
                if slot.take() or slot.take_over():
                    return slot
            if time.monotonic() > deadline:
                raise StoreError(
                    f"all {self._slots_max} local stores below {folder} are in use by other attempts of this "
                    f"partition; look for hanging tasks of the job, or give it another local directory"
                )
            time.sleep(_WAIT_POLL_SECONDS)

    def _lease(
        self, slot: Slot, base: RestorePlan, options: RocksDBOptions, export_cache: GiveAway | None
    ) -> Lease:
        """Bring the store of the taken slot to ``base``."""
        started = time.monotonic()
        fetcher = Fetcher(self._files, base.version, slot.kept)
        record = slot.record()
        pending = None if record is None else pending_of(slot, record, base)
        if slot.store is not None and (pending is None or slot.store.options != options):
            slot.close_store()
        if pending is not None and _advanced(slot, base, pending, fetcher, options):
            method, applied = ("advanced" if pending else "kept"), len(pending)
        else:
            slot.store = build_store(slot.new_store(), base, fetcher, options)
            slot.write(base.version, base.lineage, changing=False)
            method, applied = ("rescaled" if base.rescaled else "rebuilt"), len(base.deltas)
        cached = read_cached(slot.cached, base.lineage) if slot.taken_over else None
        shutil.rmtree(slot.scratch, ignore_errors=True)
        slot.drop_kept()
        restored = RestoreStatistics(method, applied, fetcher.bytes_fetched, time.monotonic() - started)
        keep = functools.partial(
            self._open_stores.keep, limit_bytes=self._open_bytes_max, export_cache=export_cache
        )
        return Lease(slot, base, restored, keep, cached)

    def _drop_leftovers(self, lease: Lease, others: list[Slot], is_replaced: bool) -> None:
        """Remove stores that will not be used, those that a process did not complete before it died, and spilled files
        of such processes. ``is_replaced``: by its compacted copy, so stores on the way to the base are removed as well;
        the process that has one open exports its cache."""
        base = lease.base

        def is_superseded(slot: Slot) -> bool:
            return is_replaced and _distance(slot, base)[0] == _ON_THE_WAY

        def is_useless(slot: Slot) -> bool:
            record = slot.record()
            is_stale = record is None or record.version < base.version - _STALE_VERSIONS
            return is_stale or is_superseded(slot)

        for slot in others:
            useless, superseded = is_useless(slot), is_superseded(slot)
            if not useless and not slot.scratch.exists():
                continue
            if useless and (kept := self._open_stores.take(slot.folder)) is not None:
                kept.drop()
            if slot.take() or (superseded and slot.take_over()):
                try:
                    if slot.taken_over:
                        lease.cached = read_cached(slot.cached, base.lineage)
                    if is_useless(slot):  # it may have been used in between
                        slot.clear()
                    shutil.rmtree(slot.scratch, ignore_errors=True)
                finally:
                    slot.release()


def _advanced(
    slot: Slot, base: RestorePlan, pending: list[DeltaRef], fetcher: Fetcher, options: RocksDBOptions
) -> bool:
    """Open the slot's store if it is closed, and apply what it lacks; False when the folder turns out to be
    unusable."""
    try:
        store = slot.open(options)
        small, store.next_delta = store.next_delta, None
        if pending:
            slot.write(base.version, base.lineage, changing=True)
            if small is not None and [delta.file.name for delta in pending] == [small.name]:
                store.apply_small(small, base.version)
            else:
                advance(store, pending, base.version, fetcher)
        store.version = base.version
        slot.write(base.version, base.lineage, changing=False)
        store.compact_if_due()
    except StoreError:  # the local folder is only a copy: it is rebuilt, which fails if the disk is the cause
        with suppress(StoreError):
            slot.close_store()
        return False
    return True


def _distance(slot: Slot, base: RestorePlan) -> tuple[int, int]:
    """Order slots: on the base's lineage (compacted copies first) with few deltas missing, then empty, then others."""
    record = slot.record()
    if record is None:
        return _EMPTY, 0
    pending = pending_of(slot, record, base)
    if pending is None:
        return _EMPTY + 1, record.version
    return (_COPY if slot.compacted_marker.exists() else _ON_THE_WAY), len(pending)


def _compact_copy(rocks: RocksDBStore, others: list[Slot], base: RestorePlan) -> bool:
    """Start a background compaction of a copy of the store, unless one is running or waits to be used; whether there
    is one now."""
    if any(is_copy(slot, base) for slot in others):
        return True
    for slot in sorted(others, key=lambda slot: _distance(slot, base)[0] != _EMPTY):
        if slot.take():
            return copies.begin(rocks, slot, base.lineage)
    return False


def _is_abandoned(slot: Slot) -> bool:
    return time.time() - slot.used_at() > _ABANDONED_SECONDS


@contextmanager
def explained(folder: Path) -> Iterator[None]:
    """Raise a StoreError for an OSError of the local store folder."""
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"the local store folder {folder} cannot be used: {error}. Check the disk's space and "
            f"permissions, or choose another local directory"
        ) from error
