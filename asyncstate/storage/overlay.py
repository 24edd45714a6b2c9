"""This micro-batch's writes over the committed store, with a bounded read cache between the two.

Owns: WriteOverlay, MISSING. Invariants: writes live only here until they become a delta
file; a key, once written, stays in ``_writes`` (a delete stores None), so the dict's insertion order tells
which keys are new; the read cache holds what the store holds, never a write, until ``release`` folds the writes in.
One thread uses an overlay (the mailbox); other threads may only call the store's reads.
Must not import rocksdict or anything of execution.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final, Literal

from sortedcontainers import SortedList

from asyncstate.storage.cache import ENTRY_OVERHEAD_BYTES, CachedEntries, Entries, size_of
from asyncstate.storage.contract import Change, KeyedStore

LIST_GET_KEYS: Final = 128
"""Keys a store call from the mailbox thread: enough to amortise the call, few enough for the L2 cache."""

_SCAN_KEYS_MIN: Final = 64
_YOUNG_OF: Final = 4
_JUDGED_KEYS: Final = 10_000  # fewer take no time worth judging
_KEEPING_FACTOR: Final = 2  # taking entries in and dropping them costs about as much as looking for them
_REST_BATCHES: Final = 16
_FRESH_GENERATIONS: Final = 1  # what is found in them need not be made young: they will be here for a while


class Missing(enum.Enum):
    """Type of MISSING, so that type checkers can tell it from a value."""

    MISSING = enum.auto()


MISSING: Final = Missing.MISSING
"""``peek``'s answer when memory does not know: neither a value nor a known absence."""

Peeked = bytes | Literal[Missing.MISSING] | None


class WriteOverlay:
    """Reads see this batch's writes, then the read cache, then the store.

    ``read_cache_bytes`` bounds the read cache: what was read lately, in a young generation of a quarter of it at
    most, and what was read or written before (see ``CachedEntries``). ``carried`` is the cache that an earlier
    micro-batch left for the store's very content; the overlay owns it from then on. Scans go by the cache: a page is
    the iteration's own, whatever the cache drops meanwhile.
    """

    __slots__ = (
        "_cache_bytes_max",
        "_cache_bytes_peak",
        "_cached",
        "_carried",
        "_evictions",
        "_indexed",
        "_list_get_keys",
        "_list_gets",
        "_misses",
        "_older",
        "_reads",
        "_recall_seconds",
        "_recalls",
        "_recalls_failed",
        "_scans",
        "_sorted",
        "_store_get",
        "_store_reads",
        "_timed_keys",
        "_timed_seconds",
        "_writes",
        "_young",
        "_young_bytes",
        "_young_bytes_max",
        "put",
        "store",
    )

    put: Callable[[bytes, bytes], None]
    """Write a value: ``put(key, value)``. It is the dict's own method, so that a write costs one C call."""

    def __init__(
        self, store: KeyedStore, read_cache_bytes: int = 16 << 20, carried: CachedEntries | None = None
    ) -> None:
        self.store = store
        self._store_get = store.get
        self._writes: Entries = {}
        self._cached = CachedEntries() if carried is None else carried
        self._carried = len(self._cached)
        self._cache_bytes_max = read_cache_bytes
        self._young_bytes_max = read_cache_bytes // _YOUNG_OF
        self._cache_bytes_peak = 0
        self._evictions = self._cached.shrink(read_cache_bytes - self._young_bytes_max)
        self._young: Entries = {}
        self._young_bytes = 0
        self._older = [generation.entries for generation in self._cached.generations]
        self._sorted: SortedList = SortedList()
        self._indexed = 0
        self._reads = self._misses = self._store_reads = self._list_gets = self._list_get_keys = 0
        self._recalls = self._recalls_failed = self._timed_keys = self._scans = 0
        self._recall_seconds = self._timed_seconds = 0.0
        self.put = self._writes.__setitem__

    def peek(self, key: bytes) -> Peeked:
        """Return the value if memory knows it, None if memory knows it absent, else MISSING."""
        self._reads += 1
        value: Peeked = self._writes.get(key, MISSING)
        if value is MISSING:
            value = self._young.get(key, MISSING)
            if value is MISSING:
                value = self._recall(key)
                if value is MISSING:
                    self._misses += 1
        return value

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, None when absent; asks the store when memory cannot tell."""
        # ``peek`` and ``fetch`` in one: this is called for every record
        self._reads += 1
        value: Peeked = self._writes.get(key, MISSING)
        if value is MISSING:
            value = self._young.get(key, MISSING)
            if value is MISSING:
                value = self._recall(key)
                if value is MISSING:
                    self._misses += 1
                    return self.fetch(key)
        return value

    def _recall(self, key: bytes) -> Peeked:
        """Look into the older generations; what is found there is young again."""
        for entries in self._older:
            value: Peeked = entries.get(key, MISSING)
            if value is not MISSING:
                self.remember(key, value)
                return value
        return MISSING

    def fetch(self, key: bytes) -> bytes | None:
        """Ask the store, for a key that ``peek`` did not know, and remember the answer."""
        self._store_reads += 1
        value = self._young[key] = self._store_get(key)
        self._young_bytes += len(key) + (len(value) if value is not None else 0) + ENTRY_OVERHEAD_BYTES
        if self._young_bytes > self._young_bytes_max:
            self._age()
        return value

    def remember(self, key: bytes, value: bytes | None) -> None:
        """Keep a value that was read from the store (None: it is absent) for later reads."""
        if key not in self._young:
            self._young_bytes += len(key) + (len(value) if value is not None else 0) + ENTRY_OVERHEAD_BYTES
        self._young[key] = value
        if self._young_bytes > self._young_bytes_max:
            self._age()

    def delete(self, key: bytes) -> None:
        """Delete a key; deleting an absent one is allowed."""
        self._writes[key] = None

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """Return the values of the keys in their order; what memory lacks is read in one store call and remembered."""
        answers, unknown = self.peek_many(keys)
        if not unknown:
            return answers  # type: ignore[return-value]  # no MISSING is left in it
        wanted = keys if len(unknown) == len(keys) else [keys[i] for i in unknown]
        started = time.perf_counter()
        fetched = self.store.get_many(wanted, LIST_GET_KEYS)
        self.count_list_get(len(wanted), time.perf_counter() - started)
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
        if self._writes:
            unknown = _look_up(self._writes, keys, unknown, answers)
        if self._young and unknown:
            unknown = _look_up(self._young, keys, unknown, answers)
        if self._older and unknown:
            unknown = self._recall_many(keys, unknown, answers)
        self._misses += len(unknown)
        return answers, unknown

    def _recall_many(self, keys: list[bytes], unknown: Sequence[int], answers: list[Peeked]) -> Sequence[int]:
        """``_look_up`` in the older generations; what is found in the oldest of them is young again."""
        started = time.perf_counter()
        self._recalls += len(unknown)
        aged: list[int] = []
        for number, entries in enumerate(self._older):
            asked, unknown = unknown, _look_up(entries, keys, unknown, answers)
            if number >= _FRESH_GENERATIONS and len(unknown) < len(asked):
                aged += [i for i in asked if answers[i] is not MISSING]
            if not unknown:
                break
        self._recalls_failed += len(unknown)
        if aged:
            self.remember_many([keys[i] for i in aged], [answers[i] for i in aged])  # type: ignore[misc]  # none MISSING
        self._recall_seconds += time.perf_counter() - started
        return unknown

    def overlay_many(self, keys: list[bytes], fetched: Sequence[bytes | None]) -> list[bytes | None]:
        """Lay this batch's writes over answers that the store gave earlier for the same keys."""
        if not self._writes:
            return list(fetched)
        return list(map(self._writes.get, keys, fetched))

    def remember_many(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        """Keep many answers of the store, unless they are more than the young generation holds or the cache rests."""
        if self._cached.resting and len(keys) >= _JUDGED_KEYS:
            return
        size = size_of(keys, values)
        if size > self._young_bytes_max:
            return
        self._young.update(zip(keys, values, strict=True))
        self._young_bytes += size
        if self._young_bytes > self._young_bytes_max:
            self._age()

    def put_many(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        """Write many values (None deletes); of a repeated key the last value counts."""
        self._writes.update(zip(keys, values, strict=True))

    def delete_many(self, keys: Sequence[bytes]) -> None:
        """Delete many keys."""
        self._writes.update(dict.fromkeys(keys))

    def scan(self, start: bytes, end: bytes | None, limit: int) -> list[tuple[bytes, bytes]]:
        """Return at most ``limit`` entries with start <= key < end, ascending, writes laid over the store.

        For the next page pass the last key + b"\\0" as ``start``; writing and deleting between pages is safe.
        A page shorter than ``limit`` was the last.
        """
        self._scans += 1
        if end is not None and start >= end:
            return []
        if not self._writes:
            return self.store.scan(start, end, limit)
        self._index_new_keys()
        found: list[tuple[bytes, bytes]] = []
        while len(found) < limit:
            wanted = limit - len(found)
            page = self.store.scan(start, end, wanted)
            mine = self._written_keys(start, end, max(wanted, _SCAN_KEYS_MIN))
            merged, reached = self._merge(page, len(page) == wanted, mine, wanted)
            found += merged
            if reached is None:
                break
            start = reached + b"\0"
        return found[:limit]

    def _written_keys(self, start: bytes, end: bytes | None, count: int) -> list[bytes]:
        return list(islice(self._sorted.irange(start, end, inclusive=(True, False)), count))

    def _merge(
        self, page: list[tuple[bytes, bytes]], page_full: bool, mine: list[bytes], wanted: int
    ) -> tuple[list[tuple[bytes, bytes]], bytes | None]:
        """Merge a store page with written keys; also tell up to which key both are complete, None for all."""
        mine_full = len(mine) >= max(wanted, _SCAN_KEYS_MIN)
        if not mine:
            return page, page[-1][0] if page_full else None
        ends = ([page[-1][0]] if page_full else []) + ([mine[-1]] if mine_full else [])
        reached = min(ends) if ends else None
        writes = self._writes
        merged: dict[bytes, bytes | None] = dict(page)
        merged.update((key, writes[key]) for key in mine)
        live = sorted((key, value) for key, value in merged.items() if value is not None)
        if reached is not None:
            live = [entry for entry in live if entry[0] <= reached]
        return live, reached

    def _index_new_keys(self) -> None:
        # Keys never leave the dict, so the ones written since the last scan are its last ones: point-only
        # states keep no list of them, and a scan after few writes looks at few.
        new = len(self._writes) - self._indexed
        if new:
            self._sorted.update(islice(reversed(self._writes), new))
            self._indexed = len(self._writes)

    def changes(self) -> list[Change]:
        """Return this batch's writes sorted by key; None marks a delete."""
        writes = self._writes
        keys = self._sorted if self._indexed == len(writes) else sorted(writes)
        return list(zip(keys, map(writes.__getitem__, keys), strict=True))

    def release(self) -> CachedEntries:
        """End of the micro-batch: the cache as it is right for the store with this batch's writes in it.

        The overlay must not be used any more. Writes that do not fit leave the cache empty, since it would
        contradict them, and so does a cache that did not pay, for a while.
        """
        cached = self._cached
        if self._timed_keys:
            cached.list_get_seconds = self._timed_seconds / self._timed_keys
        if cached.resting or not self._recalls_pay():
            return CachedEntries((cached.resting or _REST_BATCHES) - 1, cached.list_get_seconds)
        writes, limit = self._writes, self._cache_bytes_max - self._young_bytes_max
        written = self.bytes_written + ENTRY_OVERHEAD_BYTES * len(writes)
        if written > limit:
            return CachedEntries()
        if not all(map(writes.__contains__, self._young)):
            cached.add(self._young, self._young_bytes)
        cached.add(writes, written)
        cached.shrink(limit)
        cached.merge(self._young_bytes_max)
        return cached

    def _recalls_pay(self) -> bool:
        """Whether looking into older generations, and keeping them, took less time than it saved.

        Reading many sorted keys from a store in memory costs hardly more than looking for them in large dicts. A few
        keys, keys that come in every micro-batch, and a store that waits for a device are another matter.
        """
        seconds = self._cached.list_get_seconds
        if self._recalls < _JUDGED_KEYS or not seconds:
            return True
        saved = (self._recalls - self._recalls_failed) * seconds
        return saved > _KEEPING_FACTOR * self._recall_seconds

    @property
    def num_changes(self) -> int:
        """Number of keys written or deleted in this batch."""
        return len(self._writes)

    @property
    def bytes_written(self) -> int:
        """Bytes of keys and values that the delta will hold, before compression; walks all writes."""
        return sum(map(len, self._writes)) + sum(map(len, filter(None, self._writes.values())))

    def count_list_get(self, num_keys: int, seconds: float | None = None) -> None:
        """Count a list get made on the store for this overlay, possibly by another thread's hand.

        ``seconds``: how long it took, if it was this thread that waited.
        """
        if seconds is not None:
            self._timed_keys += num_keys
            self._timed_seconds += seconds
        self._list_gets += 1
        self._list_get_keys += num_keys
        self._store_reads += num_keys

    def statistics(self) -> dict[str, float]:
        """Return the counters; ``reads`` = ``hits`` (from memory) + ``misses``.

        ``cache_carried``: entries that an earlier micro-batch left; ``cache_evictions``: entries dropped for want
        of room; ``store_reads``: keys that reached the store, by single and by list gets;
        ``list_get_seconds``: what the task's own thread spent in list gets.
        """
        self._note_cache_bytes()
        return {
            "reads": self._reads,
            "hits": self._reads - self._misses,
            "misses": self._misses,
            "store_reads": self._store_reads,
            "list_gets": self._list_gets,
            "list_get_keys": self._list_get_keys,
            "list_get_seconds": self._timed_seconds,
            "scans": self._scans,
            "changes": len(self._writes),
            "change_bytes": self.bytes_written,
            "cache_carried": self._carried,
            "cache_evictions": self._evictions,
            "cache_bytes_peak": self._cache_bytes_peak,
            "cache_bytes_limit": self._cache_bytes_max,
        }

    def _age(self) -> None:
        """Begin a new young generation."""
        self._note_cache_bytes()
        self._cached.add(self._young, self._young_bytes)
        self._young, self._young_bytes = {}, 0
        self._evictions += self._cached.shrink(self._cache_bytes_max - self._young_bytes_max)
        self._older = [generation.entries for generation in self._cached.generations]

    def _note_cache_bytes(self) -> None:
        self._cache_bytes_peak = max(self._cache_bytes_peak, self._cached.size_bytes + self._young_bytes)


def _look_up(
    known: Entries, keys: list[bytes], unknown: Sequence[int], answers: list[Peeked]
) -> Sequence[int]:
    """Fill in the answers for the ``unknown`` positions that ``known`` has; return the others."""
    get = known.get
    left = []
    for index in unknown:
        value: Peeked = get(keys[index], MISSING)
        if value is MISSING:
            left.append(index)
        else:
            answers[index] = value
    return left
