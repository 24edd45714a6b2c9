"""Reads of whole bundles: here while the store answers quickly, else side by side on the I/O threads.

Owns: ``BundleReads`` and the chunks a bundle's list get is cut into.
Invariant: only keys that memory does not know go to the store. Below this batch's writes nothing changes during a
micro-batch, so what is answered ahead of time stays good; the writes up to the moment at which the bundle asks, spilled
or not, are laid over it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from asyncstate.execution.pacing import ReadPacer
from asyncstate.execution.read_here import read_here
from asyncstate.execution.read_threads import ListGet
from asyncstate.futures import StateFuture, completed_future
from asyncstate.storage import WriteOverlay

Values = list[bytes | None]
_FIRST_KEYS: Final = 128  # as many as the store takes in one list get anyway
Send = Callable[[Sequence[ListGet]], None]
"""Have the I/O threads read keys; each answer comes back with the ticket given."""


class BundleRead:
    """A list get of a whole bundle; its future has the values in key order when the last one is there.

    ``wanted`` are the keys that memory did not know, ``done`` how many of them, from the first on, need not be sent
    off any more, ``missing`` how many answers are outstanding.
    """

    __slots__ = ("_overlay", "_positions", "done", "future", "keys", "missing", "spills", "values", "wanted")

    def __init__(self, overlay: WriteOverlay, keys: list[bytes]) -> None:
        self._overlay = overlay
        self.keys = keys
        self.spills = overlay.spills
        self.values, self._positions = overlay.peek_many(keys)
        known = len(self._positions) < len(keys)
        self.wanted = [keys[i] for i in self._positions] if known else keys
        self.missing = len(self.wanted)
        self.done = 0
        self.future: StateFuture[Any] = StateFuture()
        if not self.missing:
            self.future.complete(self.values)

    def fill(self, start: int, values: Values) -> None:
        """The store's answers for the wanted keys from ``start`` on."""
        stop = start + len(values)
        self._overlay.count_bundle_read(values)
        if self.spills == self._overlay.spills:
            self._overlay.remember_many(self.wanted[start:stop], values)
        if len(values) == len(self.keys):
            self.values = values  # type: ignore[assignment]  # all are known; no copy
        elif self.wanted is self.keys:
            self.values[start:stop] = values
        else:
            for position, value in zip(self._positions[start:stop], values, strict=True):
                self.values[position] = value
        self.missing -= len(values)
        if self.missing == 0:
            self.future.complete(self.values)


@dataclass(frozen=True, slots=True)
class BundleChunk:
    """The ticket of one chunk: from which of the wanted keys on."""

    read: BundleRead
    start: int

    @property
    def first_key(self) -> bytes:
        """The first store key of the chunk, for messages."""
        return self.read.wanted[self.start]

    def arrived(self, values: Values) -> None:
        """The chunk is there; the last one completes the read."""
        self.read.fill(self.start, values)


class BundleReads:
    """List gets of one partition's bundles; at most one bundle is read ahead for each state."""

    def __init__(self, overlay: WriteOverlay, pacer: ReadPacer, send: Send, parallelism: int) -> None:
        self._overlay = overlay
        self._pacer = pacer
        self._send = send
        self._parallelism = parallelism
        self._ahead: dict[tuple[int, bytes, bytes], BundleRead] = {}
        self.unanswered = 0
        """Answers that are out: until they are there nothing may be spilled."""

    def get(self, keys: list[bytes]) -> StateFuture[Values]:
        """A future of the values of ``keys`` (sorted, unique), with this batch's writes."""
        read = self._ahead.pop(_signature(keys), None)
        if read is None or read.keys != keys:
            read = BundleRead(self._overlay, keys)
            self._read_here(read)
            self._send_off(read)
            if read.future.done:
                return completed_future(read.values)  # type: ignore[arg-type]  # all are known
        # What is written from here on is not for this answer: it shows the state as it is now.
        written, spills = self._overlay.written(keys), self._overlay.spills
        self.unanswered += 1

        def answer(fetched: Values) -> Values:
            self.unanswered -= 1
            assert self._overlay.spills == spills, "nothing is spilled while an answer is out"
            return self._overlay.laid_over(keys, fetched, read.spills, written)

        return read.future.then_apply(answer)

    def prefetch(self, keys: list[bytes]) -> None:
        """Start reading ``keys`` if that can happen beside other work."""
        if keys and self._pacer.waits_for_device:
            read = self._ahead[_signature(keys)] = BundleRead(self._overlay, keys)
            self._send_off(read)

    def _read_here(self, read: BundleRead) -> None:
        """Read on this thread while that is quick: all at once, or first a few keys to see how slow the store is."""
        most = (
            _FIRST_KEYS  # a store that has become slow since is found out by some keys, not by a whole bundle
        )
        while read.done < len(read.wanted) and not self._pacer.waits_for_device:
            count = self._pacer.chunk_keys(len(read.wanted) - read.done, 1)
            self._read_some(read, min(count, most))
            most *= _FIRST_KEYS

    def _read_some(self, read: BundleRead, count: int) -> None:
        start = read.done
        whole = start == 0 and count >= len(read.wanted)
        keys = read.wanted if whole else read.wanted[start : start + count]
        values, seconds = read_here(self._overlay, self._pacer, keys)
        self._overlay.count_list_get(len(keys), seconds)
        read.done += len(keys)
        read.fill(start, values)

    def _send_off(self, read: BundleRead) -> None:
        """Have the I/O threads read what is left of ``read``, but now and then a few keys here, to measure."""
        if read.done < len(read.wanted) and (probe := self._pacer.probe_keys()):
            self._read_some(read, probe)
        left = len(read.wanted) - read.done
        if not left:
            return
        size = self._pacer.chunk_keys(left, self._pacer.threads(self._parallelism))
        starts = range(read.done, len(read.wanted), size)
        read.done = len(read.wanted)
        self._send([ListGet(read.wanted[start : start + size], BundleChunk(read, start)) for start in starts])


def _signature(keys: list[bytes]) -> tuple[int, bytes, bytes]:
    return (len(keys), keys[0], keys[-1]) if keys else (0, b"", b"")
