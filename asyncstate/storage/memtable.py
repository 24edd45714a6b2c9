"""This micro-batch's writes over the committed store, with a bounded read cache between the two.

Owns: MemTable. Invariants: writes live only in its WriteBuffer until they become a delta file; the read cache holds
what is in ``store``, spilled writes included, and no write in memory until ``spill`` or ``release`` merges it in. One
thread uses a memtable (the one that runs the operator); other threads may only call ``read_store`` and ``warm_store``.
Must not import rocksdict or anything of execution.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import filterfalse, repeat
from typing import Final, cast

from asyncstate.codec import STATE_ID_AT
from asyncstate.metrics import Bytes, Count, Elapsed, Limit, MaxGauge
from asyncstate.storage.keyed_store import KeyedStore, SortedChanges
from asyncstate.storage.spill import SpilledWrites, WriteBound, scan_over
from asyncstate.storage.value_cache import (
    ENTRY_OVERHEAD_BYTES,
    MISSING,
    Entries,
    Peeked,
    ValueCache,
    look_up,
)
from asyncstate.storage.write_buffer import WriteBuffer, WriteStatistics

LIST_GET_KEYS: Final = 128
"""Keys per store call from the operator's thread: enough to amortise the call, few enough for the L2 cache."""

_SAMPLED_OF: Final = 32
TIMED_EVERY: Final = 8
"""One in so many single gets is timed: that costs a twentieth of a hot get."""

TimedGet = Callable[[bytes, bytes | None, float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemTableStatistics:
    """Reads and writes of a micro-batch; ``reads`` = ``cache_hits`` (from memory) + ``cache_misses``.

    ``store_reads``: keys that reached the store, by single and by list gets; ``read_batches``, ``read_batch_keys``: the
    latter and the keys in them; ``read_batch_seconds``: what the task's own thread spent in them.
    ``bundle_read_bytes``: values that the store returned to bundles, estimated. ``scans``: range reads.
    ``cache_carried``: entries that an earlier micro-batch left; ``cache_evictions``: entries evicted because the cache
    was full; ``cache_bytes_peak``, ``cache_bytes_limit``: memory of cached values, and its bound.
    """

    reads: Count
    cache_hits: Count
    cache_misses: Count
    store_reads: Count
    read_batches: Count
    read_batch_keys: Count
    read_batch_seconds: Elapsed
    bundle_read_bytes: Bytes
    scans: Count
    writes: WriteStatistics
    cache_carried: Count
    cache_evictions: Count
    cache_bytes_peak: MaxGauge
    cache_bytes_limit: Limit


class MemTable:
    """Reads see this batch's writes in memory, then the read cache, then spilled writes, then the store.

    ``read_cache_bytes`` bounds the read cache: recently read entries, in a recent generation of at most a quarter of
    it, and entries read or written before (see ``ValueCache``). ``carried`` is the cache that an earlier micro-batch
    left for exactly the store's content; the memtable owns it from then on. Scans bypass the cache: a page belongs to
    the iteration, whatever the cache drops meanwhile.

    ``bound`` sets how much memory writes may take and where to spill them; without it they all stay in memory. Writes
    are spilled only by a call of ``spill``, never by a write: values that were read before and are not answered yet
    must be known to be safe (see ``spills``).
    """

    __slots__ = (
        "_buffer",
        "_bundle_read_bytes",
        "_clean",
        "_early",
        "_holds",
        "_list_get_keys",
        "_list_gets",
        "_misses",
        "_reads",
        "_scans",
        "_store_get",
        "_store_reads",
        "_timed_get",
        "_timed_keys",
        "_timed_seconds",
        "_writes",
        "exceeds",
        "put",
        "rows_to_look",
        "spills",
        "store",
    )

    put: Callable[[bytes, bytes], None]
    """Write a value: ``put(key, value)``. It is the dict's own method, so that a write costs one C call."""
    store: KeyedStore | SpilledWrites
    """What lies below memory: the committed store, under spilled writes if there are any."""
    exceeds: Callable[..., bool]
    """True when the writes in memory exceed their bound: spill them when that is safe. See ``SizeEstimator.look``."""
    rows_to_look: Callable[[int], int]
    """After how many rows to check ``exceeds`` again: ``SizeEstimator.rows_to_look``."""
    spills: int
    """How often writes have been moved to disk. What ``store`` returned at another number is right only with newer
    writes applied to it (``apply_writes``), and must not be cached."""

    def __init__(
        self,
        store: KeyedStore,
        read_cache_bytes: int = 16 << 20,
        carried: ValueCache | None = None,
        bound: WriteBound | None = None,
    ) -> None:
        self.store = store
        self._store_get = store.get
        self._timed_get: TimedGet | None = None
        self._write_into(WriteBuffer(store, bound))
        self._holds = False  # some writes are buffered columns, which ``_settled`` moves to ``_writes``
        self.spills = 0
        self._clean = ValueCache() if carried is None else carried
        self._clean.begin(read_cache_bytes)
        self._early: Entries = {}
        self._reads = self._misses = self._store_reads = self._list_gets = self._list_get_keys = 0
        self._timed_keys = self._scans = 0
        self._timed_seconds = self._bundle_read_bytes = 0.0

    def _write_into(self, buffer: WriteBuffer) -> None:
        self._buffer = buffer
        self._writes: Entries = buffer.entries
        self.put = buffer.entries.__setitem__
        self.exceeds = buffer.meter.look
        self.rows_to_look = buffer.meter.rows_to_look

    def leave_out(self, state_ids: frozenset[int], limit_bytes: int) -> None:
        """Keep nothing of these states in the read cache: they have their own, which takes all memory but
        ``limit_bytes``. Call it before anything is read."""
        self._clean.leave_out(state_ids)
        self._clean.begin(limit_bytes)

    def peek(self, key: bytes) -> Peeked:
        """Return the value if memory knows it, None if memory knows it absent, else MISSING."""
        if self._holds:
            self._settled()
        self._reads += 1
        value: Peeked = self._writes.get(key, MISSING)
        if value is MISSING:
            value = self._clean.recent.get(key, MISSING)
            if value is MISSING:
                value = self._recall(key)
                if value is MISSING:
                    self._misses += 1
        return value

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, None when absent; reads the store when memory does not know the key."""
        # ``peek`` and ``fetch`` in one: this is called for every record
        if self._holds:
            self._settled()
        self._reads += 1
        value: Peeked = self._writes.get(key, MISSING)
        if value is MISSING:
            value = self._clean.recent.get(key, MISSING)
            if value is MISSING:
                value = self._recall(key)
                if value is MISSING:
                    self._misses += 1
                    return self.fetch(key)
        return value

    def _recall(self, key: bytes) -> Peeked:
        """Look into prefetched values and the older generations; a hit in the latter is promoted to the recent one."""
        if self._early:
            value: Peeked = self._early.pop(key, MISSING)
            if value is not MISSING:
                # A store read, only made earlier. The same as ``remember`` of a key that is not recent, inlined: most
                # records of a micro-batch take this branch.
                self._misses += 1
                clean = self._clean
                if key[STATE_ID_AT] in clean.without:
                    return value
                clean.recent[key] = value
                clean.recent_bytes += len(key) + ENTRY_OVERHEAD_BYTES + (0 if value is None else len(value))
                if clean.recent_bytes > clean.recent_bytes_max:
                    clean.age()
                return value
        return self._clean.promote(key)

    def fetch(self, key: bytes) -> bytes | None:
        """Read a key that ``peek`` did not know from the store, and cache the answer."""
        self._store_reads += 1
        clean = self._clean
        value = self._store_get(key)
        if clean.without and key[STATE_ID_AT] in clean.without:
            return value
        clean.recent[key] = value
        clean.recent_bytes += len(key) + (len(value) if value is not None else 0) + ENTRY_OVERHEAD_BYTES
        if clean.recent_bytes > clean.recent_bytes_max:
            clean.age()
        return value

    def time_gets(self, timed: TimedGet) -> None:
        """Time every eighth single get of the store: ``timed`` is called with its key, its answer and its seconds."""
        self._timed_get = timed
        get, counted = self.store.get, 0

        def get_and_time(key: bytes) -> bytes | None:
            nonlocal counted
            counted += 1
            if counted % TIMED_EVERY:
                return get(key)
            started = time.perf_counter()
            value = get(key)
            timed(key, value, time.perf_counter() - started)
            return value

        self._store_get = get_and_time

    def remember(self, key: bytes, value: bytes | None) -> None:
        """Cache a value that was read from the store (None: it is absent) for later reads."""
        self._clean.remember(key, value)

    def delete(self, key: bytes) -> None:
        """Delete a key; deleting an absent one is allowed."""
        self._writes[key] = None

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """Return the values of the keys in their order; what memory lacks is read in one store call and cached."""
        answers, unknown = self.peek_many(keys)
        if not unknown:
            return answers  # type: ignore[return-value]  # no MISSING is left in it
        wanted = keys if len(unknown) == len(keys) else [keys[i] for i in unknown]
        started = time.perf_counter()
        fetched = self.store.get_many(wanted, LIST_GET_KEYS)
        self.count_list_get(len(wanted), time.perf_counter() - started)
        self.count_bundle_read(fetched)
        self.remember_many(wanted, fetched)
        if wanted is keys:
            return fetched
        for index, value in zip(unknown, fetched, strict=True):
            answers[index] = value
        return answers  # type: ignore[return-value]  # every MISSING has been replaced

    def peek_many(self, keys: list[bytes]) -> tuple[list[Peeked], Sequence[int]]:
        """Return what memory knows of the keys, and the positions at which it answered MISSING."""
        self._reads += len(keys)
        answers: list[Peeked] = [MISSING] * len(keys)
        unknown: Sequence[int] = range(len(keys))
        if writes := self._settled():
            unknown = look_up(writes, keys, unknown, answers)
        unknown = self._clean.recall_many(keys, unknown, answers)
        self._misses += len(unknown)
        return answers, unknown

    # -- prefetched values ---------------------------------------------------------------------------

    def unknown(self, keys: Iterable[bytes]) -> list[bytes]:
        """Those of ``keys`` that memory does not know, in their order; does not count as a read."""
        left: Iterable[bytes] = keys
        for entries in (self._settled(), self._clean.recent, *self._clean.older, self._early):
            left = filterfalse(entries.__contains__, left)
        return list(left)

    def keep_read_ahead(self, keys: Iterable[bytes], values: Iterable[bytes | None]) -> None:
        """Hold values of ``store`` until they are read or dropped: outside the cache, so that they are not evicted."""
        self._early.update(zip(keys, values, strict=True))

    def drop_read_ahead(self, keys: Iterable[bytes]) -> int:
        """Drop prefetched values that were not read; return how many of ``keys`` those were."""
        before = len(self._early)
        for key in filter(self._early.__contains__, keys):
            del self._early[key]
        return before - len(self._early)

    def read_store(self, keys: list[bytes]) -> list[bytes | None]:
        """A list get below memory, in one call; for other threads, like ``warm_store``."""
        return self.store.get_many(keys)

    def warm_store(self, positions: list[bytes]) -> None:
        """``KeyedStore.warm`` below memory."""
        self.store.warm(positions)

    def written(self, keys: list[bytes]) -> list[Peeked] | None:
        """This batch's writes in memory for ``keys``, MISSING where there is none; None if there are none at all."""
        writes = self._settled()
        return list(map(writes.get, keys, repeat(MISSING))) if writes else None

    def apply_writes(
        self,
        keys: list[bytes],
        fetched: Sequence[bytes | None],
        spills: int,
        written: Sequence[Peeked] | None,
    ) -> list[bytes | None]:
        """Apply this batch's writes to answers for the same keys that memory and store gave earlier.

        ``spills``: the value of ``self.spills`` at the time of the request. ``written``: the writes in memory as they
        were when the answers were requested; nothing may have been spilled since.
        """
        if spills != self.spills:
            assert isinstance(self.store, SpilledWrites)
            fetched = self.store.apply_writes(keys, fetched, LIST_GET_KEYS)
        if written is None:
            return list(fetched)
        pairs = zip(written, fetched, strict=True)
        return [old if new is MISSING else new for new, old in pairs]

    def remember_many(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        """Cache many answers of the store, unless they are too many or the cache is disabled."""
        self._clean.remember_many(keys, values)

    def put_many(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        """Write many values (None deletes); of a repeated key the last value counts. The caller gives up the
        sequences."""
        if self._buffer.hold(keys, values):
            self._holds = True
        else:
            self._settled().update(zip(keys, values, strict=True))

    def append_final(self, keys: Sequence[bytes], values: Sequence[bytes | None], size_bytes: int) -> bool:
        """Write the final values of a state (sorted, each key once, None deletes), which are not read any more; for
        states that are left out of the cache. ``size_bytes``: of all keys and values. False if the caller must use
        ``put_many`` instead. The caller gives up the sequences."""
        return not keys or self._buffer.finish(keys, values, size_bytes)

    def _settled(self) -> Entries:
        """Return all of this batch's writes in memory, materializing buffered columns first."""
        if self._holds:
            self._holds = False
            self._buffer.settle()
        return self._writes

    def delete_many(self, keys: Sequence[bytes]) -> None:
        """Delete many keys."""
        self._settled().update(dict.fromkeys(keys))

    def scan(self, start: bytes, end: bytes | None, limit: int) -> list[tuple[bytes, bytes]]:
        """Return at most ``limit`` entries with start <= key < end, ascending, with writes applied over the store.

        For the next page pass the last key + b"\\0" as ``start``; writing and deleting between pages is safe.
        A page shorter than ``limit`` was the last.
        """
        self._scans += 1
        if end is not None and start >= end:
            return []
        if not self._settled():
            return self.store.scan(start, end, limit)
        return scan_over(self._buffer.scan, self.store.scan, start, end, limit)

    def scan_on(self, start: bytes, end: bytes | None, limit: int) -> list[tuple[bytes, bytes]]:
        """Continue a page that ``scan`` has begun: the two count as one scan."""
        self._scans -= 1
        return self.scan(start, end, limit)

    def spill(self) -> None:
        """Move the writes to disk. Reads still see them; the memory is free.

        After this, no earlier answer of ``store`` may be cached, nor returned without ``apply_writes``: check
        ``spills``. Raises StoreError with nothing lost when the disk cannot be written.
        """
        self._settled()
        spilled = self._buffer.spill()
        if spilled is None:
            return
        self.store, self._store_get = spilled, spilled.get
        if self._timed_get is not None:
            self.time_gets(self._timed_get)
        self.spills += 1
        self._clean.merge_writes(self._settled, self._buffer.readable_bytes(), copied=True)
        self._early.clear()
        self._buffer.clear()

    def changes(self) -> SortedChanges:
        """Return this batch's writes sorted by key; None marks a delete. A list, unless writes have been spilled."""
        return self._buffer.changes()

    def release(self) -> ValueCache:
        """End the micro-batch; return the cache as it is right for the store with this batch's writes in it.

        The memtable must not be used any more. The cache is empty if the writes do not fit, since it would contradict
        them, and for a while if lookups cost more than they saved.
        """
        cached = self._clean
        if cached.limit_bytes and cached.end(
            self._timed_seconds / self._timed_keys if self._timed_keys else 0.0
        ):
            cached.merge_writes(self._settled, self._buffer.readable_bytes(), copied=False)
        self._let_go()
        return cached

    def _let_go(self) -> None:
        # State objects refer to the memtable and are in cycles of references: without this, a micro-batch's writes
        # would stay until the garbage collector searches for such cycles, which a few large objects do not trigger.
        self._write_into(WriteBuffer(cast(KeyedStore, self.store), None))
        self._clean, self._early = ValueCache(), {}

    def count_list_get(self, num_keys: int, seconds: float | None = None) -> None:
        """Count a list get made on the store for this memtable, possibly by another thread.

        ``seconds``: how long it took, if it was this thread that waited.
        """
        if seconds is not None:
            self._timed_keys += num_keys
            self._timed_seconds += seconds
        self._list_gets += 1
        self._list_get_keys += num_keys
        self._store_reads += num_keys

    def count_bundle_read(self, values: Sequence[bytes | None]) -> None:
        """Count the bytes that the store returned to a bundle, estimated from a sample."""
        sampled = values[::_SAMPLED_OF]
        if sampled:
            self._bundle_read_bytes += sum(map(len, filter(None, sampled))) * (len(values) / len(sampled))

    def statistics(self) -> MemTableStatistics:
        """The statistics of this micro-batch."""
        self._clean.note_bytes()
        return MemTableStatistics(
            reads=self._reads,
            cache_hits=self._reads - self._misses,
            cache_misses=self._misses,
            store_reads=self._store_reads,
            read_batches=self._list_gets,
            read_batch_keys=self._list_get_keys,
            read_batch_seconds=self._timed_seconds,
            bundle_read_bytes=int(self._bundle_read_bytes),
            scans=self._scans,
            writes=self._buffer.statistics(),
            cache_carried=self._clean.carried,
            cache_evictions=self._clean.evictions,
            cache_bytes_peak=self._clean.bytes_peak,
            cache_bytes_limit=self._clean.limit_bytes,
        )
