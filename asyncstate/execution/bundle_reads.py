"""Reads of whole bundles.

Owns: ``BundleReads`` and ``BundleRead``.
Invariant: only keys that memory does not know go to the store. Below this batch's writes nothing changes during a
micro-batch, so a prefetched answer stays valid; the writes up to the moment at which the bundle requests the keys,
spilled or not, are applied over it.
"""

from __future__ import annotations

from typing import Any

from asyncstate.execution.reads import ReadRequest, Reads, Values
from asyncstate.futures import StateFuture, completed_future
from asyncstate.storage import MemTable


class BundleRead(ReadRequest):
    """A list get of a whole bundle; its future has the values of ``asked`` in key order once all have arrived.

    ``keys`` are those that memory did not know.
    """

    __slots__ = ("_overlay", "_positions", "asked", "future", "spills", "values")

    def __init__(self, overlay: MemTable, asked: list[bytes]) -> None:
        self._overlay = overlay
        self.asked = asked
        self.spills = overlay.spills
        self.values, self._positions = overlay.peek_many(asked)
        known = len(self._positions) < len(asked)
        super().__init__([asked[i] for i in self._positions] if known else asked)
        self.future: StateFuture[Any] = StateFuture()
        if not self.missing:
            self.future.complete(self.values)

    def arrived(self, start: int, values: Values) -> None:
        """See ``ReadRequest``; the last one completes the read."""
        stop = start + len(values)
        self._overlay.count_bundle_read(values)
        if self.spills == self._overlay.spills:
            self._overlay.remember_many(self.keys[start:stop], values)
        if len(values) == len(self.asked):
            self.values = values  # type: ignore[assignment]  # all are known; no copy
        elif self.keys is self.asked:
            self.values[start:stop] = values
        else:
            for position, value in zip(self._positions[start:stop], values, strict=True):
                self.values[position] = value
        if not self.missing:
            self.future.complete(self.values)


class BundleReads:
    """List gets of one partition's bundles. Prefetched answers that nobody requests, since a cache got to know the keys
    meanwhile, are kept for the next bundle and no longer."""

    def __init__(self, overlay: MemTable, reads: Reads) -> None:
        self._overlay = overlay
        self._reads = reads
        self._ahead: dict[tuple[int, bytes, bytes], BundleRead] = {}
        self._ahead_before: dict[tuple[int, bytes, bytes], BundleRead] = {}
        self.unanswered = 0
        """Outstanding answers: until they arrive nothing may be spilled."""

    def get(self, keys: list[bytes]) -> StateFuture[Values]:
        """A future of the values of ``keys`` (sorted, unique), with this batch's writes."""
        signature = _signature(keys)
        read = self._ahead_before.pop(signature, None) or self._ahead.pop(signature, None)
        if read is None or read.asked != keys:
            read = self._read(keys)
            if read.future.done:
                return completed_future(read.values)  # type: ignore[arg-type]  # all are known
            self.unanswered += 1
            return read.future.then_apply(self._answered)
        # Later writes do not belong in this answer: it shows the state as it is now.
        written, spills = self._overlay.written(keys), self._overlay.spills
        self.unanswered += 1

        def answer(fetched: Values) -> Values:
            assert self._overlay.spills == spills, "nothing is spilled while a read is in flight"
            return self._overlay.apply_writes(keys, self._answered(fetched), read.spills, written)

        return read.future.then_apply(answer)

    def _answered(self, values: Values) -> Values:
        self.unanswered -= 1
        return values

    def begin_prefetch(self) -> None:
        """The prefetches of a bundle follow; the one before it is processed next, earlier ones have been."""
        self._ahead_before, self._ahead = self._ahead, {}

    def prefetch(self, keys: list[bytes]) -> None:
        """Start reading ``keys`` if that can happen in parallel with other work."""
        if keys and self._reads.pacer.waits_for_device:
            self._ahead[_signature(keys)] = self._read(keys)

    def _read(self, keys: list[bytes]) -> BundleRead:
        read = BundleRead(self._overlay, keys)
        self._reads.read(read)
        return read


def _signature(keys: list[bytes]) -> tuple[int, bytes, bytes]:
    return (len(keys), keys[0], keys[-1]) if keys else (0, b"", b"")
