"""Stores that stay open between micro-batches, ready for another process to take.

Owns: ``StorePool``, those of one process, how it is asked for one, and the file in which what is cached of it goes
along.
Invariants: a store in here stands at the content that its slot's record names and is changed by nobody; its slot stays
locked by this process, and a named pipe beside it has this process as its reader for as long as the store may be asked
for. The file is right for the content that it names, and is there as a whole or not at all; it says nothing that the
store does not say, and is no format: it is only read by the process for which it was written, so a process of another
version never sees it. Must not know of checkpoints or decide what a store is used for.
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

# What an open store takes beside its tables; it also bounds how many files are open.
_STORE_BYTES: Final = 1 << 20

GiveAway = Callable[[], tuple[str, Any] | None]
"""Gives what this process has cached of a partition, after which it has it no longer, and the lineage of the content
that this is right for; None if there is nothing, or nothing worth the way."""


@dataclass(slots=True, eq=False)
class _Kept:
    slot: Slot
    rocks: RocksDBStore
    asked: int
    size_bytes: int
    export_cache: GiveAway | None

    def transfer(self) -> None:
        """Let another process have it that has asked for it, and what is cached of it here."""
        with suppress(Exception):  # who has asked can do without, but not wait for a thread that has ended
            known = None if self.export_cache is None else self.export_cache()
            if known is not None:
                write_cached(self.slot.cached, *known)
        self.close()

    def close(self) -> None:
        """Let others have it. What cannot be closed stays locked: nobody may open the folder beside it."""
        try:
            with suppress(StoreError):
                self.rocks.close()
                self.slot.unlock()
        finally:
            os.close(self.asked)  # last: who has asked waits for as long as somebody listens


class StorePool:
    """What this process keeps open, least recently used first. Calls may come from several threads.

    A process that waits for its next task cannot answer, so one thread of it does, asleep until it is asked.
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
        """Estimated memory, without blocks that are cached."""
        return sum(kept.size_bytes for kept in self._kept.values())

    def take(self, folder: Path) -> tuple[Slot, RocksDBStore] | None:
        """The slot ``folder``, locked, and its store, if they are kept here; from now on they are the caller's."""
        kept = self._taken(folder)
        if kept is None:
            return None
        if kept.slot.is_in_place():
            os.close(kept.asked)
            return kept.slot, kept.rocks
        kept.close()  # the folder was deleted, and another may stand there
        return None

    def keep(
        self, slot: Slot, rocks: RocksDBStore, limit_bytes: int, export_cache: GiveAway | None = None
    ) -> bool:
        """Keep ``rocks`` open and ``slot`` locked; False if they take more than ``limit_bytes`` or cannot be asked for.

        ``export_cache``: what goes with them to the process that asks for them; another thread calls it. Others are
        closed that are beyond the limit, those first that were not used for the longest time.
        """
        size_bytes = _STORE_BYTES + rocks.tables_bytes()
        asked = slot.listen() if size_bytes <= limit_bytes else None
        if asked is None:
            return False
        with self._lock:
            try:
                self._watch().register(asked, selectors.EVENT_READ, str(slot.folder))
            except (OSError, RuntimeError):  # as many files or threads as there may be
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
        """Stores whose folders have been deleted: nobody will ask for them, and their files take room as long as they
        are open."""
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
        """Close all stores, or those below a folder; with the last one ends the thread."""
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
        """Close the store of the slot ``folder``, if it is kept: nobody will ask for it."""
        if (kept := self._taken(folder)) is not None:
            kept.close()

    def transfer(self, folder: Path) -> None:
        """Give up the slot ``folder``, if it is kept: another process has asked for it."""
        if (kept := self._taken(folder)) is not None:
            kept.transfer()

    def forget(self) -> None:
        """In a process that was forked: all this is the parent's. The threads of RocksDB are not here, so that its
        stores cannot be closed."""
        _parents.extend(kept.rocks for kept in self._kept.values())
        for kept in self._kept.values():
            os.close(kept.asked)
            kept.slot.unlock(keeps_parent=True)
        self._begin()


def _hand_over(of: weakref.ref[StorePool], asked: selectors.BaseSelector) -> None:
    """Until the other end of the pipe without a slot is closed."""
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
    """What was cached of the content ``lineage``; None if that is not there."""
    try:
        with path.open("rb") as file:
            return _read(file, lineage)
    except (OSError, EOFError, ValueError, pickle.PickleError):
        return None


def _write(file: BinaryIO, lineage: str, cached: object) -> None:
    # Arrays go from their memory into the file, and from the file into memory of their own: each is copied twice.
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
