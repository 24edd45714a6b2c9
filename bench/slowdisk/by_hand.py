"""What plain rocksdict makes of the device: a get a key against list gets on threads. No framework can gain more.

Owns: ``ReadByHand``.
Invariant: nothing is done with the values, so that what is measured is reading alone.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from asyncstate.storage import RocksDBOptions
from asyncstate.storage.rocksdb import RocksDBStore

_CHUNK_KEYS: Final = 16
_WINDOW_KEYS: Final = 2_000
_SLOW_US: Final = 150.0


class ReadByHand:
    """The table files below ``folder`` as one store with ``options``, and its keys. Use as a context manager."""

    def __init__(self, folder: Path, options: RocksDBOptions) -> None:
        self._store = RocksDBStore(folder / "by-hand", options)
        self._store.ingest(sorted((folder / "checkpoint").rglob("*.sst")), 0)
        self._keys = list(self._store.db.keys())

    def __enter__(self) -> ReadByHand:
        return self

    def __exit__(self, *_: object) -> None:
        self._store.close()

    def drawn(self, random: np.random.Generator, count: int) -> list[bytes]:
        """Keys in no order, each once."""
        return [self._keys[index] for index in random.choice(len(self._keys), count, replace=False)]

    def one_by_one(self, keys: list[bytes]) -> float:
        """Seconds of a get a key."""
        get: Any = self._store.db.get
        started = time.perf_counter()
        for key in keys:
            get(key)
        return time.perf_counter() - started

    def on_threads(self, keys: list[bytes], threads: int) -> float:
        """Seconds of list gets of a few sorted keys each, without starting the threads."""
        get: Any = self._store.db.get
        chunks: queue.SimpleQueue[list[bytes]] = queue.SimpleQueue()
        for chunk in _chunks(keys):
            chunks.put(chunk)
        begin = threading.Barrier(threads + 1)

        def work() -> None:
            begin.wait()
            while True:
                try:
                    chunk = chunks.get_nowait()
                except queue.Empty:
                    return
                get(chunk)

        workers = [threading.Thread(target=work) for _ in range(threads)]
        for worker in workers:
            worker.start()
        begin.wait()
        started = time.perf_counter()
        for worker in workers:
            worker.join()
        return time.perf_counter() - started


def thread_counts(get_us: float) -> Sequence[int]:
    """Numbers of threads to try where a single get takes so long: one of them is about the best."""
    return (2, 4, 8, 16) if get_us < _SLOW_US else (32, 128, 256)


def _chunks(keys: list[bytes]) -> Iterator[list[bytes]]:
    for window in range(0, len(keys), _WINDOW_KEYS):
        ordered = sorted(keys[window : window + _WINDOW_KEYS])
        for start in range(0, len(ordered), _CHUNK_KEYS):
            yield ordered[start : start + _CHUNK_KEYS]
