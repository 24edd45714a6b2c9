"""Stores that stay open between micro-batches, ready for another process to take over.

Owns: ``StorePool``, the slots that one worker keeps open, the requests for them, and the file in which a store's cache
is exported.
Invariants: every slot of the pool is in state KEPT, with the content that its record names, and this process reads the
slot's pipe for as long as it is in the pool; one thread alone has a slot that it has removed from the pool. The
file is right for the content that it names, and exists as a whole or not at all; it holds nothing that the store does
not. It is not a stable format: only the process for which it was written reads it, so a process of another version
never sees it. Must not know of checkpoints or decide what a store is used for.
"""

from __future__ import annotations

import os
import pickle
import selectors
import threading
import weakref
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import numpy as np

from asyncstate.storage.slots import Slot, held

# What an open store takes in addition to its tables and memtable; it also bounds how many files are open.
_STORE_BYTES: Final = 1 << 20

GiveAway = Callable[[], tuple[str, Any] | None]
"""Returns and gives up what this process has cached of a partition, with the lineage of the content that it is right
for; None if there is nothing, or nothing worth the transfer."""


class _Kept(NamedTuple):
    slot: Slot
    requests: int
    size_bytes: int
    export_cache: GiveAway | None


class StorePool:
    """The stores that this process keeps open, least recently used first. Calls may come from several threads.

    A process that waits for its next task cannot answer requests, so one of its threads does, asleep until a request
    arrives.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[str, _Kept] = {}
        self._requests: selectors.BaseSelector | None = None
        self._ending = -1
        held.users.add(self)

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def size_bytes(self) -> int:
        """Estimated memory, without cached blocks."""
        return sum(kept.size_bytes for kept in self._kept.values())

    def take(self, folder: Path) -> Slot | None:
        """The slot ``folder``, taken, with its store open, if the pool has it; it then belongs to the caller."""
        kept = self._removed(folder)
        if kept is None:
            return None
        if kept.slot.is_in_place():
            kept.slot.resume()
            return kept.slot
        kept.slot.drop()  # the folder was deleted, and another may be there
        return None

    def keep(self, slot: Slot, limit_bytes: int, export_cache: GiveAway | None = None) -> bool:
        """Keep the leased ``slot``; False if its store exceeds ``limit_bytes`` or cannot receive requests: the caller
        releases it then.

        ``export_cache``: supplies the cache for the process that requests the store; another thread calls it. Stores
        beyond the limit are closed, least recently used first.
        """
        assert slot.store is not None
        size_bytes = _STORE_BYTES + slot.store.tables_bytes() + slot.store.memtable_bytes()
        requests = slot.keep() if size_bytes <= limit_bytes else None
        if requests is None:
            return False
        with self._lock:
            try:
                self._watch().register(requests, selectors.EVENT_READ, str(slot.folder))
            except (OSError, RuntimeError):  # no more files or threads can be opened
                return False
            # Those of deleted folders first: nobody will request them, and their files take disk space.
            beyond = [name for name, kept in self._kept.items() if not kept.slot.is_in_place()]
            dropped = [self._remove(name) for name in beyond]
            while self.size_bytes > limit_bytes - size_bytes:
                dropped.append(self._remove(next(iter(self._kept))))
            self._kept[str(slot.folder)] = _Kept(slot, requests, size_bytes, export_cache)
        for kept in dropped:
            kept.slot.drop()
        return True

    def _removed(self, folder: Path) -> _Kept | None:
        with self._lock:
            return self._remove(str(folder)) if str(folder) in self._kept else None

    def _remove(self, folder: str) -> _Kept:
        kept = self._kept.pop(folder)
        assert self._requests is not None
        self._requests.unregister(kept.requests)
        return kept

    def close(self, below: Path | None = None) -> None:
        """Close all stores, or those below a folder; the thread ends with the last one."""
        with self._lock:
            names = [name for name in self._kept if below is None or Path(name).is_relative_to(below)]
            closing = [self._remove(name) for name in names]
            if self._requests is not None and not self._kept:
                os.close(self._ending)
                self._requests = None
        for kept in closing:
            kept.slot.drop()

    def _watch(self) -> selectors.BaseSelector:
        if self._requests is None:
            with ExitStack() as undo:
                requests = undo.enter_context(selectors.DefaultSelector())
                ended, ending = os.pipe()
                undo.callback(os.close, ended)
                undo.callback(os.close, ending)
                requests.register(ended, selectors.EVENT_READ)
                watching = threading.Thread(
                    target=_hand_over,
                    args=(weakref.ref(self), requests),
                    name="asyncstate-open-stores",
                    daemon=True,
                )
                watching.start()
                undo.pop_all()
            self._requests, self._ending = requests, ending
        return self._requests

    def transfer(self, folder: Path) -> None:
        """Give up the slot ``folder``, if the pool has it: another process has requested it, and gets the cache too."""
        kept = self._removed(folder)
        if kept is None:
            return
        # The requester can do without the cache, but must not wait for an ended thread.
        with suppress(Exception):
            known = None if kept.export_cache is None else kept.export_cache()
            if known is not None:
                write_cached(kept.slot.cached, *known)
        kept.slot.drop()

    def forget(self) -> None:
        """In a forked process: all slots are the parent's. Its thread ends only once no process has the pipe's end."""
        if self._requests is not None:
            self._requests.close()
            os.close(self._ending)
        self._lock, self._kept, self._requests = threading.Lock(), {}, None


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
