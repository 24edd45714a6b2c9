"""Background compaction: of a copy of a store, in a separate slot, by a thread of the worker.

Owns: ``BackgroundCompactions``, the process's ``copies``, and ``CopyRecord``: which deltas a copy lacks of the present
version. Invariants: the store that micro-batches read is never touched, so nothing waits for a compaction, and an
aborted one costs no state; a slot has a record only once its copy has been merged to the end. A copy whose slot is
deleted ends, and its store is closed. Must not import lease or checkpoint.
"""

from __future__ import annotations

import math
import os
import shutil
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec

from asyncstate.errors import StoreError
from asyncstate.storage.manifest import DeltaRef
from asyncstate.storage.restore_plan import RestorePlan
from asyncstate.storage.rocksdb import RocksDBStore
from asyncstate.storage.rocksdb_options import RocksDBOptions
from asyncstate.storage.slots import Slot, SlotRecord, held, replace_file
from asyncstate.storage.snapshot import ChecksumCache, hard_linked_copy

_COPIES_MAX: Final = 2
_POLL_SECONDS: Final = 0.02
_BYTES_A_SECOND_MIN: Final = 24 << 20  # half of what a core merges
_SECONDS_MAX: Final = 8  # for the whole store, if a core can do it


class CopyRecord(msgspec.Struct, frozen=True):
    """The content that was copied, and the deltas since. They are recorded with each micro-batch: a compaction may
    outlast several snapshots, and the manifest has only the deltas after the newest one."""

    lineage: str
    deltas: list[DeltaRef] = []

    @staticmethod
    def of(slot: Slot) -> CopyRecord | None:
        """The record of the slot, None if it holds no copy to use."""
        try:
            return msgspec.json.decode(slot.compacted_marker.read_bytes(), type=CopyRecord)
        except (OSError, UnicodeDecodeError, msgspec.MsgspecError):
            return None

    def write(self, slot: Slot) -> None:
        """Write the record to the slot."""
        replace_file(slot.compacted_marker, msgspec.json.encode(self))

    def followed(self, base: RestorePlan) -> CopyRecord:
        """The record extended by the further deltas of ``base``; unchanged if it is not an ancestor of ``base``."""
        new = base.pending_after(self.deltas[-1].lineage if self.deltas else self.lineage)
        return CopyRecord(self.lineage, [*self.deltas, *new]) if new else self


def pending_of(slot: Slot, record: SlotRecord, base: RestorePlan) -> list[DeltaRef] | None:
    """The deltas of ``base`` that the store of ``slot`` lacks; None if it is not an ancestor of ``base``, or a copy
    that lacks one which may be nowhere any more: the checkpoint retains those of ``base``."""
    pending = base.pending_after(record.lineage)
    copy = CopyRecord.of(slot) if pending is None else None
    if copy is None or copy.lineage != record.lineage:
        return pending
    for number, delta in enumerate(copy.deltas, 1):
        later = base.pending_after(delta.lineage)
        if later is not None:
            earlier = copy.deltas[:number]
            at_hand = all(one in base.deltas or (slot.kept / one.file.base_name).exists() for one in earlier)
            return earlier + later if at_hand else None
    return None


def forward_deltas(slots: Sequence[Slot], base: RestorePlan) -> None:
    """Add the deltas up to ``base`` to the records of copies among the ``slots``, and link local delta files to
    them."""
    for copy in slots:
        record = CopyRecord.of(copy)
        if record is None:
            continue
        followed = record.followed(base)
        with suppress(OSError):  # it has just been removed
            if followed is not record:
                followed.write(copy)
            for source in slots:
                if source is not copy and source.kept.exists():
                    _link_all(source.kept, copy.kept)


def _link_all(source: Path, target: Path) -> None:
    for file in source.iterdir():
        with suppress(OSError):  # it exists already, or is gone: then it is fetched
            os.link(file, target / file.name)


def is_copy(slot: Slot, base: RestorePlan) -> bool:
    """Whether a copy is being compacted there, or exists there and can be brought to ``base``."""
    if CopyRecord.of(slot) is None:
        return False
    record = slot.record()
    if record is not None:
        return pending_of(slot, record, base) is not None
    if not slot.take():
        return True
    slot.release()  # of a process that died
    return False


class BackgroundCompactions:
    """The compactions of this process, each a thread and a slot in state COPYING; at most two at once."""

    def __init__(self) -> None:
        self.forget()
        held.users.add(self)

    def forget(self) -> None:
        """Begin with none, also in a forked process."""
        self._lock = threading.Lock()
        self._running: dict[Path, tuple[threading.Thread, threading.Event]] = {}

    def begin(self, store: RocksDBStore, slot: Slot, lineage: str) -> bool:
        """Copy ``store`` (by hard links) into the taken ``slot`` and compact the copy in the background.

        ``lineage`` names the store's content. The slot is released at the end. False, with the slot released and
        nothing done, if enough compactions are running or the copy cannot be made; the next micro-batch asks again.
        """
        with self._lock:
            self._running = {folder: run for folder, run in self._running.items() if run[0].is_alive()}
            if len(self._running) < _COPIES_MAX and _copied(store, slot, lineage):
                stop = threading.Event()
                thread = threading.Thread(
                    target=_compact, args=(slot, lineage, stop), name="asyncstate-compaction", daemon=True
                )
                with suppress(RuntimeError):  # no more threads can be started
                    thread.start()
                    self._running[slot.folder] = thread, stop
                    return True
        slot.drop()
        return False

    def join(self, below: Path | None = None) -> None:
        """Wait for the running compactions, or for those of slots below a folder."""
        for thread, _ in self._all(below):
            thread.join()

    def close(self, below: Path | None = None) -> None:
        """Stop the running compactions, or those of slots below a folder. At the end of the process, because closing
        RocksDB under a running one is not safe."""
        for _, stop in self._all(below):
            stop.set()
        self.join(below)

    def _all(self, below: Path | None) -> list[tuple[threading.Thread, threading.Event]]:
        with self._lock:
            return [run for at, run in self._running.items() if below is None or at.is_relative_to(below)]


def _compact(slot: Slot, lineage: str, stop: threading.Event) -> None:
    copy = slot.store
    assert copy is not None
    try:
        with suppress(StoreError, OSError):  # a slot without a record is rebuilt
            copy.compact()
            # All copies of the process share a thread of RocksDB, so one may wait for another; no micro-batch does.
            merged = copy.settle(
                starts_within_seconds=math.inf,
                poll_seconds=_POLL_SECONDS,
                stopped=lambda: stop.is_set() or not slot.is_in_place(),
            )
            if merged:
                _know_checksums(copy)
                slot.close_store()
                slot.write(copy.version, lineage, changing=False)
            else:
                copy.db.cancel_all_background(True)
    finally:
        slot.drop()


def _copied(store: RocksDBStore, slot: Slot, lineage: str) -> bool:
    """Make a copy of ``store`` in the taken ``slot`` and open it; False, with an empty slot, if that fails."""
    try:
        path = slot.new_store()
        CopyRecord(lineage).write(slot)
        slot.kept.mkdir()
        hard_linked_copy(store, path)
        checksums = ChecksumCache.path_of(store.path)
        if checksums.exists():
            shutil.copyfile(checksums, ChecksumCache.path_of(path))
        slot.copy(_slowed(store), store.version)
    except (StoreError, OSError):  # usually a full disk: micro-batches go on with more runs meanwhile
        shutil.rmtree(slot.folder, ignore_errors=True)
        return False
    return True


def _slowed(store: RocksDBStore) -> RocksDBOptions:
    """Options that spread the work: at full speed it would take a core from tasks that need all of them."""
    rate = max(_BYTES_A_SECOND_MIN, store.statistics().size_bytes // _SECONDS_MAX)
    return replace(store.options, compaction_bytes_a_second=rate)


def _know_checksums(copy: RocksDBStore) -> None:
    """Compute the checksums of the merged files here, so that the next snapshot need not."""
    checksums, names = ChecksumCache(copy.path), set(copy.file_sizes())
    # A file may have been merged and deleted meanwhile: a snapshot computes what is missing.
    with suppress(FileNotFoundError):
        for name in names:
            checksums.checksum(Path(copy.path, name))
    checksums.save(names)


copies = BackgroundCompactions()
