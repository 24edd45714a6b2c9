"""Reads of whole bundles: here while the store answers from memory, else side by side on the I/O threads.

Owns: ``BundleReads`` and the chunks a bundle's list get is cut into.
Invariant: the store does not change during a micro-batch, so what it answers ahead of time stays good; this batch's
writes are laid over it at the time the bundle asks.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from asyncstate.execution.buffer import ReadPacer
from asyncstate.futures import StateFuture, completed_future
from asyncstate.storage import WriteOverlay

Values = list[bytes | None]
Send = Callable[[list[bytes], Any], None]
"""Have the I/O threads read keys; the answer comes back with the ticket given."""


class BundleRead:
    """A list get of a whole bundle, cut into chunks; its future has what the store says, in key order."""

    __slots__ = ("future", "keys", "missing", "values")

    def __init__(self, keys: list[bytes]) -> None:
        self.keys = keys
        self.values: Values = [None] * len(keys)
        self.missing = 0
        self.future: StateFuture[Values] = StateFuture()


@dataclass(frozen=True, slots=True)
class BundleChunk:
    """The ticket of one chunk: where in its bundle it starts."""

    read: BundleRead
    start: int

    @property
    def first_key(self) -> bytes:
        """The first store key of the chunk, for messages."""
        return self.read.keys[self.start]

    def arrived(self, values: Values) -> None:
        """The chunk is there; the last one completes the read."""
        read = self.read
        read.values[self.start : self.start + len(values)] = values
        read.missing -= 1
        if read.missing == 0:
            read.future.complete(read.values)


class BundleReads:
    """List gets of one partition's bundles; at most one bundle is read ahead for each state."""

    def __init__(self, overlay: WriteOverlay, pacer: ReadPacer, send: Send, parallelism: int) -> None:
        self._overlay = overlay
        self._pacer = pacer
        self._send = send
        self._parallelism = parallelism
        self._ahead: dict[tuple[int, bytes, bytes], BundleRead] = {}

    def get(self, keys: list[bytes]) -> StateFuture[Values]:
        """A future of the values of ``keys`` (sorted, unique), with this batch's writes."""
        read = self._ahead.pop(_signature(keys), None)
        if read is None or read.keys != keys:
            if not self._pacer.waits_for_device:
                return self._get_here(keys)
            read = self._start(keys)
        return read.future.then_apply(lambda fetched: self._overlay.overlay_many(keys, fetched))

    def prefetch(self, keys: list[bytes]) -> None:
        """Start reading ``keys`` if that can happen beside other work."""
        if keys and self._pacer.waits_for_device:
            self._ahead[_signature(keys)] = self._start(keys)

    def _get_here(self, keys: list[bytes]) -> StateFuture[Values]:
        """Read on this thread; where nothing is known of the store yet, a few keys first to see how slow it is."""
        if self._pacer.us_per_key is not None:
            return completed_future(self._timed(keys))
        first = self._pacer.chunk_keys(len(keys), 1)
        head, rest = self._timed(keys[:first]), keys[first:]
        if not rest:
            return completed_future(head)
        return self.get(rest).then_apply(lambda tail: head + tail)

    def _timed(self, keys: list[bytes]) -> Values:
        started = time.perf_counter()
        values = self._overlay.get_many(keys)
        self._pacer.measured(len(keys), time.perf_counter() - started)
        return values

    def _start(self, keys: list[bytes]) -> BundleRead:
        """Read ``keys`` from the store on the I/O threads, whatever memory knows of them."""
        if probe := self._pacer.probe_keys():
            self._timed(keys[:probe])
        read = BundleRead(keys)
        size = self._pacer.chunk_keys(len(keys), self._parallelism)
        starts = range(0, len(keys), size)
        read.missing = len(starts)
        for start in starts:
            self._send(keys[start : start + size], BundleChunk(read, start))
        return read


def _signature(keys: list[bytes]) -> tuple[int, bytes, bytes]:
    return (len(keys), keys[0], keys[-1]) if keys else (0, b"", b"")
