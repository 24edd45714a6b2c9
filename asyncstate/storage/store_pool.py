"""Stores that stay open between micro-batches, ready for another process to take over.

Owns: ``StorePool``, the slots that one worker keeps open, the requests for them, and the file in which a store's cache
is exported.
Invariants: every slot of the pool is in state KEPT, with the content that its record names, and this process reads the
slot's pipe for as long as it is in the pool; a slot that was removed from the pool belongs to its remover alone. The
file is right for the content that it names, and exists as a whole or not at all; it holds nothing that the store does
not. It is not a stable format: only the process for which it was written reads it, so a process of another version
never sees it. Must not know of checkpoints or decide what a store is used for.
"""

from __future__ import annotations

import functools
import itertools
import os
import pickle
import resource
import selectors
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import numpy as np

from asyncstate.storage.slots import Slot, held

_STORE_BYTES: Final = 256 << 10
"""What an open store takes in addition to its tables and memtable: 210 to 240 KiB were measured."""
_STORE_FILES: Final = 12
"""How many files are open for a small store and its slot: 11, and its tables."""
_FILES_MAX: Final = 8192
"""The limit of open files that counts, even if the process has a higher one or none."""
_RETURNS_MAX: Final = 10_000
"""How many stores' returns are remembered."""
_CHECKED: Final = 2
"""How many of the stores that were not used for longest are looked at each time: their folders may be gone."""

GiveAway = Callable[[], tuple[str, Any] | None]
"""Returns and gives up what this process has cached of a partition, with the lineage of the content that it is right
for; None if there is nothing, or nothing worth the transfer."""


class _Kept(NamedTuple):
    slot: Slot
    requests: int
    size_bytes: int
    export_cache: GiveAway | None
    returned: float


class StorePool:
    """The stores that this process keeps open, least recently used first. Calls may come from several threads.

    Each micro-batch uses the same partitions one after the other. If they do not all fit, closing the one that was not
    used for longest would close each of them before its turn: a store gives way only if it was not used for twice the
    time since the new one was last here.

    A process that waits for its next task cannot answer requests, so one of its threads does, asleep until a request
    arrives.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[str, _Kept] = {}
        self._size_bytes = 0
        self._returns: dict[str, float] = {}
        """When a store was last returned, also one that was closed then; in this order."""
        self._requests: selectors.BaseSelector | None = None
        self._ending = -1
        held.users.add(self)

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def size_bytes(self) -> int:
        """Estimated memory, without cached blocks."""
        return self._size_bytes

    def kept(self, folder: Path) -> Slot | None:
        """The slot ``folder``, if the pool has it, to look at its record."""
        kept = self._kept.get(str(folder))
        return None if kept is None else kept.slot

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
        """Keep the leased ``slot``; False if its store does not fit into ``limit_bytes`` or cannot receive requests:
        the caller releases it then.

        ``export_cache``: supplies the cache for the process that requests the store; another thread calls it. A store
        gives way to it, least recently used first, if it was not used for long.
        """
        assert slot.store is not None
        size_bytes = _STORE_BYTES + slot.store.tables_bytes() + slot.store.memtable_bytes()
        requests = slot.keep() if size_bytes <= limit_bytes else None
        if requests is None:
            return False
        with self._lock:
            returned = time.monotonic()
            absent = self._absence(str(slot.folder), returned)
            # Those of deleted folders first: nobody will request them, and their files take disk space.
            oldest = list(itertools.islice(self._kept.items(), _CHECKED))
            dropped = [self._remove(name) for name, kept in oldest if not kept.slot.is_in_place()]
            superseded = self._superseded(limit_bytes - size_bytes, returned - 2 * absent)
            is_kept = superseded is not None and self._is_watched(requests, slot)
            if is_kept:
                dropped += map(self._remove, superseded or ())
                self._kept[str(slot.folder)] = _Kept(slot, requests, size_bytes, export_cache, returned)
                self._size_bytes += size_bytes
        for kept in dropped:
            kept.slot.drop()
        return is_kept

    def _is_watched(self, requests: int, slot: Slot) -> bool:
        try:
            self._watch().register(requests, selectors.EVENT_READ, str(slot.folder))
        except (OSError, RuntimeError):  # no more files or threads can be opened
            return False
        return True

    def _absence(self, folder: str, returned: float) -> float:
        """The seconds since a store was returned before; 0 if that is not known."""
        before = self._returns.pop(folder, returned)
        if len(self._returns) >= _RETURNS_MAX:
            del self._returns[next(iter(self._returns))]
        self._returns[folder] = returned
        return returned - before

    def _superseded(self, limit_bytes: int, unused_since: float) -> list[str] | None:
        """The stores to close so that one more may be open and all others fit into ``limit_bytes``; None if one of
        them was used after ``unused_since``."""
        names: list[str] = []
        left, left_bytes = len(self._kept), self._size_bytes
        for name, kept in self._kept.items():
            if left < _stores_max() and left_bytes <= limit_bytes:
                break
            if kept.returned > unused_since:
                return None
            names.append(name)
            left, left_bytes = left - 1, left_bytes - kept.size_bytes
        return names

    def _removed(self, folder: Path) -> _Kept | None:
        with self._lock:
            return self._remove(str(folder)) if str(folder) in self._kept else None

    def _remove(self, folder: str) -> _Kept:
        kept = self._kept.pop(folder)
        self._size_bytes -= kept.size_bytes
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
        self._size_bytes, self._returns = 0, {}


@functools.cache
def _stores_max() -> int:
    """How many stores may be open: three quarters of the files that this process may open are for them."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = _FILES_MAX if limit == resource.RLIM_INFINITY else min(limit, _FILES_MAX)
    return max(files * 3 // 4 // _STORE_FILES, 1)


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
