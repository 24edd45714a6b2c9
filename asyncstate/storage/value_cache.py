"""Stored values cached as raw bytes, for states that have no cache of decoded values or columns.

Owns: ValueCache, MISSING, and the size of an entry. Invariants: entries are what lies below this micro-batch's writes
in memory, spilled writes included; if several generations have a key, the newest counts; together they keep within the
given bytes. Must not import stores, the memtable or anything of execution.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, Literal

from asyncstate.codec import STATE_ID_AT

ENTRY_OVERHEAD_BYTES: Final = 120
"""Weight of an entry in addition to the bytes of key and value: two bytes headers and a dict slot."""

_YOUNG_OF: Final = 4
_FRESH_GENERATIONS: Final = 1  # hits in them are not promoted: they will stay for a while
_JUDGED_KEYS: Final = 10_000  # for fewer the time is not worth measuring
_KEEPING_FACTOR: Final = 2  # adding and dropping entries costs about as much as looking for them
_REST_BATCHES: Final = 16

Entries = dict[bytes, bytes | None]


class Missing(enum.Enum):
    """Type of MISSING, so that type checkers can distinguish it from a value."""

    MISSING = enum.auto()


MISSING: Final = Missing.MISSING
"""The answer of ``peek`` when memory does not know: neither a value nor a known absence."""

Peeked = bytes | Literal[Missing.MISSING] | None


class ValueCache:
    """Values of one partition by store key, None for a key known to be absent.

    Recently read or written entries are ``recent``, a dict of at most a quarter of the limit. When it is full, it
    becomes a generation of ``older``, newest first, and a new one begins. An entry that is used is promoted to
    ``recent``, and the oldest generation is dropped as a whole: a least-recently-used cache in which neither a hit nor
    an eviction costs much. A micro-batch's writes are merged into the recent entries if there is room, else they become
    a generation. So two neighbours are together more than a quarter, and the generations are few.

    The cache goes from micro-batch to micro-batch as it is: ``begin`` and ``end`` enclose each. ``without``: ids of
    states that must have no entries in it. ``disabled_batches``: for how many micro-batches the cache stays disabled
    after lookups cost more than they saved.
    """

    __slots__ = (
        "_list_get_seconds",
        "_merged_bytes",
        "_older_bytes",
        "_recall_seconds",
        "_recalled",
        "_recalls",
        "bytes_peak",
        "carried",
        "disabled_batches",
        "evictions",
        "limit_bytes",
        "older",
        "recent",
        "recent_bytes",
        "recent_bytes_max",
        "was_short",
        "without",
    )

    def __init__(self) -> None:
        self.recent: Entries = {}
        self.recent_bytes = self.recent_bytes_max = 0
        self.older: list[Entries] = []
        self.without: frozenset[int] = frozenset()
        self.disabled_batches = 0
        self._older_bytes: list[int] = []
        self._merged_bytes = 0  # bytes of the recent entries that were merged in since they were counted
        self._list_get_seconds = 0.0  # what a key of a list get last cost in the store; 0 if unknown
        self.begin(0)

    @property
    def size_bytes(self) -> int:
        """Estimated memory; a key counts in each generation that has it, and recently replaced values count as well."""
        return self.recent_bytes + sum(self._older_bytes)

    def __len__(self) -> int:
        return len(self.recent) + sum(map(len, self.older))

    @property
    def worth_keeping(self) -> bool:
        """Whether the next micro-batch can make use of the cache."""
        return bool(self.recent or self.older or self.disabled_batches)

    # -- one micro-batch ----------------------------------------------------------------------------

    def begin(self, limit_bytes: int) -> None:
        """Serve a micro-batch that may cache ``limit_bytes``."""
        assert not (self.disabled_batches and len(self)), "a disabled cache is empty"
        self.limit_bytes, self.recent_bytes_max = limit_bytes, limit_bytes // _YOUNG_OF
        self.carried = len(self)
        self.was_short = False
        self.evictions = self.bytes_peak = self._recalls = self._recalled = 0
        self._recall_seconds = 0.0
        if self.recent_bytes > self.recent_bytes_max:
            self.age()
        self.evictions += self._shrink_older(limit_bytes - self.recent_bytes_max)

    def leave_out(self, state_ids: frozenset[int]) -> None:
        """Cache nothing of these states. If the set has changed, clear the cache: entries may be older than later
        writes of the states."""
        if self.without != state_ids:
            self.clear()
            self.without = state_ids

    def promote(self, key: bytes) -> Peeked:
        """Look into the older generations; a hit is promoted to the recent one."""
        for entries in self.older:
            value: Peeked = entries.get(key, MISSING)
            if value is not MISSING:
                self.remember(key, value)
                return value
        return MISSING

    def recall_many(self, keys: list[bytes], unknown: Sequence[int], answers: list[Peeked]) -> Sequence[int]:
        """Fill in the answers for the ``unknown`` positions that the cache has; return the others."""
        if not unknown or self._is_left_out(keys):
            return unknown
        started, wanted = time.perf_counter(), len(unknown)
        aged: list[int] = []
        for number, entries in enumerate((self.recent, *self.older)):
            if entries and unknown:
                asked, unknown = unknown, look_up(entries, keys, unknown, answers)
                if number > _FRESH_GENERATIONS and len(unknown) < len(asked):
                    aged += [i for i in asked if answers[i] is not MISSING]
        if aged:
            self.remember_many([keys[i] for i in aged], [answers[i] for i in aged])  # type: ignore[misc]  # none MISSING
        if self.carried:  # a new cache has no history to judge by
            self._recalls += wanted
            self._recalled += wanted - len(unknown)
            self._recall_seconds += time.perf_counter() - started
        return unknown

    def remember(self, key: bytes, value: bytes | None) -> None:
        """Cache a value that was read from the store (None: it is absent) for later reads."""
        if self.without and key[STATE_ID_AT] in self.without:
            return
        if key not in self.recent:
            self.recent_bytes += len(key) + (len(value) if value is not None else 0) + ENTRY_OVERHEAD_BYTES
        self.recent[key] = value
        if self.recent_bytes > self.recent_bytes_max:
            self.age()

    def remember_many(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        """Cache many answers of the store, unless they exceed the recent generation or the cache is disabled."""
        if self._is_left_out(keys) or (self.disabled_batches and len(keys) >= _JUDGED_KEYS):
            return
        most = self.recent_bytes_max
        if len(keys) * ENTRY_OVERHEAD_BYTES > most or (size_bytes := size_of(keys, values)) > most:
            self.was_short = True
            return
        self.recent.update(zip(keys, values, strict=True))
        self.recent_bytes += size_bytes
        if self.recent_bytes > self.recent_bytes_max:
            self.age()

    def age(self) -> None:
        """Begin a new recent generation: the present one exceeds its bound."""
        self.note_bytes()
        self._add(self.recent, self.recent_bytes)
        self._begin_recent()
        self.evictions += self._shrink_older(self.limit_bytes - self.recent_bytes_max)

    def merge_writes(self, writes: Callable[[], Entries], size_bytes: int, copied: bool) -> None:
        """Update the cache for a store with these writes in it: merge them in, or empty the cache.

        ``writes`` returns them; ``copied``: others continue to use that dict. Of a key that was written, no older value
        remains afterwards.
        """
        limit = self.limit_bytes - self.recent_bytes_max
        if self.disabled_batches or size_bytes > limit:
            self.was_short |= bool(self.limit_bytes and not self.disabled_batches)
            self.clear()
            return
        entries = writes()
        if self.without and entries:
            entries = {key: v for key, v in entries.items() if key[STATE_ID_AT] not in self.without}
            size_bytes, copied = size_of(entries, entries.values()), False
        if self.recent_bytes + size_bytes > self.recent_bytes_max:
            self._count_recent()
        if self.recent_bytes + size_bytes <= self.recent_bytes_max:
            self._merge_into_recent(entries, size_bytes)
        else:
            if not all(map(entries.__contains__, self.recent)):
                self._add(self.recent, self.recent_bytes)
            self._add(entries.copy() if copied else entries, size_bytes)
            self._begin_recent()
        self._shrink_older(limit)

    def end(self, list_get_seconds: float) -> bool:
        """End the micro-batch; return whether to merge its writes. A cache that does not pay is cleared and disabled.

        ``list_get_seconds``: what a key of a list get cost in the store, 0 if there was none.
        """
        self._list_get_seconds = list_get_seconds or self._list_get_seconds
        if not self.disabled_batches and self._recalls_pay():
            return True
        self.clear()
        self.disabled_batches = (self.disabled_batches or _REST_BATCHES) - 1
        return False

    # -- size -----------------------------------------------------------------------------------------

    def shrink(self, limit_bytes: int) -> int:
        """Drop oldest generations until the rest keeps within the limit; return the number of dropped entries."""
        dropped = self._shrink_older(limit_bytes - self.recent_bytes)
        if self.recent_bytes > limit_bytes:
            dropped += len(self.recent)
            self._begin_recent()
        return dropped

    def clear(self) -> None:
        """Forget everything."""
        self.older.clear()
        self._older_bytes.clear()
        self._begin_recent()

    def note_bytes(self) -> None:
        """Count what is cached now for the peak."""
        self.bytes_peak = max(self.bytes_peak, self.size_bytes)

    def _shrink_older(self, limit_bytes: int) -> int:
        dropped, size_bytes = 0, sum(self._older_bytes)
        while self.older and size_bytes > limit_bytes:
            size_bytes -= self._older_bytes.pop()
            dropped += len(self.older.pop())
        self.was_short |= dropped > 0
        return dropped

    def _add(self, entries: Entries, size_bytes: int) -> None:
        if entries:
            self.older.insert(0, entries)
            self._older_bytes.insert(0, size_bytes)

    def _begin_recent(self) -> None:
        self.recent, self.recent_bytes, self._merged_bytes = {}, 0, 0

    def _merge_into_recent(self, entries: Entries, size_bytes: int) -> None:
        # What they replace counts twice for a while: finding it takes longer than all the rest.
        self.recent.update(entries)
        self.recent_bytes += size_bytes
        self._merged_bytes += size_bytes
        if 2 * self._merged_bytes >= self.recent_bytes:
            self._count_recent()

    def _count_recent(self) -> None:
        self.recent_bytes, self._merged_bytes = size_of(self.recent, self.recent.values()), 0

    # -- what is not worth it -------------------------------------------------------------------------

    def _is_left_out(self, keys: Sequence[bytes]) -> bool:
        """Whether ``keys``, all of one state, belong to one that is not cached."""
        return bool(self.without and keys) and keys[0][STATE_ID_AT] in self.without

    def _recalls_pay(self) -> bool:
        """Whether looking up many keys at once, and caching them, took less time than it saved.

        Reading many sorted keys from a store in memory costs hardly more than looking them up in large dicts. A few
        keys, keys that occur in every micro-batch, and a store that waits for a device are different.
        """
        if self._recalls < _JUDGED_KEYS or not self._list_get_seconds:
            return True
        return self._recalled * self._list_get_seconds > _KEEPING_FACTOR * self._recall_seconds


def look_up(
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


def size_of(keys: Collection[bytes], values: Iterable[bytes | None]) -> int:
    """Estimated memory of entries."""
    return sum(map(len, keys)) + sum(map(len, filter(None, values))) + ENTRY_OVERHEAD_BYTES * len(keys)
