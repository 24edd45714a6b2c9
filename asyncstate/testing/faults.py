"""Components that fail on purpose.

Owns: ``FaultyStore``.
Invariant: unless a fault is set, everything is as in the wrapped store.
"""

from __future__ import annotations

import threading
import time

from asyncstate.errors import StoreError
from asyncstate.storage import KeyedStore, SortedChanges, StoreStatistics


class FaultyStore(KeyedStore):
    """A store whose reads can be made to fail, to return damaged bytes, to be slow, or to hang; each call is one read.
    To use it under an operator: ``OperatorHarness(..., wrap_store=...)`` with a function that makes one.

    >>> from asyncstate.storage import EmptyStore
    >>> store = FaultyStore(EmptyStore())
    >>> store.corrupt(b"key", b"?")
    >>> store.get(b"key")
    b'?'
    """

    def __init__(self, store: KeyedStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._failing: dict[int, Exception] = {}
        self._corrupt: dict[bytes, bytes | None] = {}
        self._gate = threading.Event()
        self._gate.set()
        self._delay_seconds = self._delay_seconds_a_key = 0.0
        self.version = store.version
        self.reads = 0
        """Calls of ``get``, ``get_many``, ``scan`` and ``warm`` so far."""
        self.waiting = threading.Semaphore(0)
        """Released once by each read that hangs."""

    # -- faults -----------------------------------------------------------------------------------------

    def fail_read(self, nth: int, error: Exception | None = None) -> None:
        """Make the ``nth`` read from now (1: the next one) raise ``error``, by default a StoreError."""
        self._failing[self.reads + nth] = error or StoreError("the disk is gone")

    def corrupt(self, key: bytes, value: bytes | None) -> None:
        """Return ``value`` wherever ``key`` is read; None: as if it had been lost."""
        self._corrupt[key] = value

    def delay(self, seconds: float, seconds_a_key: float = 0.0) -> None:
        """Make each read from now on take ``seconds`` longer, and ``seconds_a_key`` more per key; 0: no longer."""
        self._delay_seconds, self._delay_seconds_a_key = seconds, seconds_a_key

    def hang(self) -> None:
        """Make reads wait for ``release``."""
        self._gate.clear()

    def release(self) -> None:
        """Let reads continue."""
        self._gate.set()

    # -- KeyedStore -------------------------------------------------------------------------------------

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, None when it is absent."""
        self._read(1)
        return self._corrupt[key] if key in self._corrupt else self._store.get(key)

    def get_many(self, keys: list[bytes], piece_keys: int = 0) -> list[bytes | None]:
        """Return the values of the keys, in their order, None where absent."""
        self._read(len(keys))
        values = self._store.get_many(keys, piece_keys)
        return [self._corrupt.get(key, value) for key, value in zip(keys, values, strict=True)]

    def scan(self, start: bytes, end: bytes | None, limit: int) -> list[tuple[bytes, bytes]]:
        """Return at most ``limit`` entries with start <= key < end, ascending; end None: to the last key."""
        self._read(1)
        entries: list[tuple[bytes, bytes]] = []
        for key, value in self._store.iterate(start, end):
            shown = self._corrupt.get(key, value)
            if len(entries) == limit:
                break
            if shown is not None:
                entries.append((key, shown))
        return entries

    def cold(self, positions: list[bytes]) -> list[bytes]:
        """See ``KeyedStore``; asks no device."""
        return self._store.cold(positions)

    def warm(self, positions: list[bytes]) -> None:
        """Load what a scan reads at ``positions`` (sorted); a hint, for threads other than the scanning one."""
        self._read(len(positions))
        self._store.warm(positions)

    @property
    def warm_positions_max(self) -> int:
        """How many positions can be loaded at the same time; known once ``cold`` has been called."""
        return self._store.warm_positions_max

    @property
    def block_bytes(self) -> int:
        """How many bytes one read of the device returns; 0 for a store that has none."""
        return self._store.block_bytes

    def apply(self, changes: SortedChanges, version: int) -> None:
        """Make sorted changes (each key once) part of the store and set its version."""
        self._store.apply(changes, version)
        self.version = version

    def statistics(self) -> StoreStatistics:
        """Return current metrics; cheap enough for once a micro-batch."""
        return self._store.statistics()

    def close(self) -> None:
        """See ``KeyedStore``; reads that hang go on."""
        self.release()
        self._store.close()

    def _read(self, keys: int) -> None:
        with self._lock:
            self.reads += 1
            error = self._failing.pop(self.reads, None)
        if not self._gate.is_set():
            self.waiting.release()
            self._gate.wait()
        if seconds := self._delay_seconds + keys * self._delay_seconds_a_key:
            time.sleep(seconds)
        if error is not None:
            raise error
