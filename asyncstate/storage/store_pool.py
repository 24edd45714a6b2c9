"""Stores that stay open between micro-batches, ready for another process to take over.

Owns: ``StorePool``, the open stores of one process, the requests for them, and the file in which a store's cache is
exported.
Invariants: a store in the pool has the content that its slot's record names, and nothing changes it; its slot stays
locked by this process, and this process reads a named pipe next to it for as long as the store may be requested. The
file is right for the content that it names, and exists as a whole or not at all; it holds nothing that the store does
not. It is not a stable format: only the process for which it was written reads it, so a process of another version
never sees it. Must not know of checkpoints or decide what a store is used for.
"""

from __future__ import annotations

import atexit
import os
import pickle
import selectors
import threading
import weakref
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np

from asyncstate.errors import StoreError
from asyncstate.storage.rocksdb import RocksDBStore
from asyncstate.storage.slots import Slot

# What an open store takes in addition to its tables and memtable; it also bounds how many files are open.
_STORE_BYTES: Final = 1 << 20

GiveAway = Callable[[], tuple[str, Any] | None]
"""Returns and gives up what this process has cached of a partition, with the lineage of the content that it is right
for; None if there is nothing, or nothing worth the transfer."""


@dataclass(slots=True, eq=False)
class _Kept:
    slot: Slot
    rocks: RocksDBStore
    asked: int
    size_bytes: int
    export_cache: GiveAway | None

    def transfer(self) -> None:
        """Release the store to the process that requested it and export its cache."""
        with suppress(
            Exception
        ):  # the requester can do without the cache, but must not wait for an ended thread
            known = None if self.export_cache is None else self.export_cache()
            if known is not None:
                write_cached(self.slot.cached, *known)
        self.close()

    def close(self) -> None:
        """Release the store. If it cannot be closed, the slot stays locked: nothing else may open the folder
        meanwhile."""
        try:
            with suppress(StoreError):
                self.rocks.close()
                self.slot.unlock()
        finally:
            os.close(self.asked)  # last: the requester waits as long as the pipe has a reader


class StorePool:
    """The stores that this process keeps open, least recently used first. Calls may come from several threads.

    A process that waits for its next task cannot answer requests, so one of its threads does, asleep until a request
    arrives.
    """

    def __init__(self) -> None:
        self._begin()
        _all.add(self)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[str, _Kept] = {}
        self._asked: selectors.BaseSelector | None = None
        self._ending = -1

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def size_bytes(self) -> int:
        """Estimated memory, without cached blocks."""
        return sum(kept.size_bytes for kept in self._kept.values())

    def take(self, folder: Path) -> tuple[Slot, RocksDBStore] | None:
        """The slot ``folder``, locked, and its store, if the pool has them; they then belong to the caller."""
        kept = self._taken(folder)
        if kept is None:
            return None
        if kept.slot.is_in_place():
            os.close(kept.asked)
            return kept.slot, kept.rocks
        kept.close()  # the folder was deleted, and another may be there
        return None

    def keep(
        self, slot: Slot, rocks: RocksDBStore, limit_bytes: int, export_cache: GiveAway | None = None
    ) -> bool:
        """Keep ``rocks`` open and ``slot`` locked; False if they exceed ``limit_bytes`` or cannot receive requests.

        ``export_cache``: supplies the cache for the process that requests them; another thread calls it. Stores beyond
        the limit are closed, least recently used first.
        """
        size_bytes = _STORE_BYTES + rocks.tables_bytes() + rocks.memtable_bytes()
        asked = slot.listen() if size_bytes <= limit_bytes else None
        if asked is None:
            return False
        with self._lock:
            try:
                self._watch().register(asked, selectors.EVENT_READ, str(slot.folder))
            except (OSError, RuntimeError):  # no more files or threads can be opened
                os.close(asked)
                return False
            beyond = [self._remove(name) for name in self._deleted()]
            while self.size_bytes > limit_bytes - size_bytes:
                beyond.append(self._remove(next(iter(self._kept))))
            self._kept[str(slot.folder)] = _Kept(slot, rocks.handed_on(), asked, size_bytes, export_cache)
        for other in beyond:
            other.close()
        return True

    def _deleted(self) -> list[str]:
        """Stores whose folders have been deleted: they will not be requested, and their files take disk space while
        they are open."""
        return [name for name, kept in self._kept.items() if not kept.slot.is_in_place()]

    def _taken(self, folder: Path) -> _Kept | None:
        with self._lock:
            return self._remove(str(folder)) if str(folder) in self._kept else None

    def _remove(self, folder: str) -> _Kept:
        kept = self._kept.pop(folder)
        assert self._asked is not None
        self._asked.unregister(kept.asked)
        return kept

    def close(self, below: Path | None = None) -> None:
        """Close all stores, or those below a folder; the thread ends with the last one."""
        with self._lock:
            names = [name for name in self._kept if below is None or Path(name).is_relative_to(below)]
            closing = [self._remove(name) for name in names]
            if self._asked is not None and not self._kept:
                os.close(self._ending)
                self._asked = None
        for kept in closing:
            kept.close()

    def _watch(self) -> selectors.BaseSelector:
        if self._asked is None:
            with ExitStack() as undo:
                asked = undo.enter_context(selectors.DefaultSelector())
                ended, ending = os.pipe()
                undo.callback(os.close, ended)
                undo.callback(os.close, ending)
                asked.register(ended, selectors.EVENT_READ)
                watching = threading.Thread(
                    target=_hand_over,
                    args=(weakref.ref(self), asked),
                    name="asyncstate-open-stores",
                    daemon=True,
                )
                watching.start()
                undo.pop_all()
            self._asked, self._ending = asked, ending
        return self._asked

    def shut(self, folder: Path) -> None:
        """Close the store of the slot ``folder``, if the pool has it: it will not be requested."""
        if (kept := self._taken(folder)) is not None:
            kept.close()

    def transfer(self, folder: Path) -> None:
        """Give up the slot ``folder``, if the pool has it: another process has requested it."""
        if (kept := self._taken(folder)) is not None:
            kept.transfer()

    def forget(self) -> None:
        """In a forked process: everything here belongs to the parent. RocksDB's threads do not exist here, so its
        stores cannot be closed."""
        _parents.extend(kept.rocks for kept in self._kept.values())
        for kept in self._kept.values():
            os.close(kept.asked)
            kept.slot.unlock(keeps_parent=True)
        self._begin()


def _hand_over(of: weakref.ref[StorePool], asked: selectors.BaseSelector) -> None:
    """Serve requests until the other end of the pipe without a slot is closed."""
    while True:
        for key, _ in asked.select():
            if key.data is None or (stores := of()) is None:
                asked.close()
                os.close(key.fd)
                return
            stores.transfer(Path(key.data))
            del stores


def write_cached(path: Path, lineage: str, cached: object) -> None:
    """Write what is ``cached`` of the content ``lineage``; on a full disk nothing."""
    temporary = path.with_suffix(".tmp")
    try:
        path.parent.mkdir(exist_ok=True)
        with temporary.open("wb") as file:
            _write(file, lineage, cached)
        temporary.replace(path)
    except OSError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def read_cached(path: Path, lineage: str) -> Any:
    """What was cached of the content ``lineage``; None if the file does not have it."""
    try:
        with path.open("rb") as file:
            return _read(file, lineage)
    except (OSError, EOFError, ValueError, pickle.PickleError):
        return None


def _write(file: BinaryIO, lineage: str, cached: object) -> None:
    # Arrays are written from their own memory, and read into memory of their own: each is copied twice.
    buffers: list[pickle.PickleBuffer] = []
    body = pickle.dumps(cached, protocol=5, buffer_callback=buffers.append)
    parts = [buffer.raw() for buffer in buffers]
    pickle.dump((lineage, [part.nbytes for part in parts]), file)
    for part in parts:
        file.write(part)
    file.write(body)


def _read(file: BinaryIO, lineage: str) -> Any:
    of, sizes = pickle.load(file)
    if of != lineage:
        return None
    parts = [np.empty(size, np.uint8) for size in sizes]
    for part in parts:
        file.readinto(part)  # type: ignore[attr-defined]  # a file in binary mode has it
    return pickle.load(file, buffers=parts)


_all: weakref.WeakSet[StorePool] = weakref.WeakSet()
_parents: list[RocksDBStore] = []  # never dropped, because that would close them


def _forget_all() -> None:
    for stores in list(_all):
        stores.forget()


def _close_all() -> None:
    for stores in list(_all):
        stores.close()


os.register_at_fork(after_in_child=_forget_all)
atexit.register(_close_all)
