"""Cache of the decoded values of one declared state: the first cache level, above the bytes of the memtable.

Owns: ``DecodedCache`` and ``UNKNOWN``.
Invariants: a cached value equals the result of a read, so a write that bypasses the cache drops the key; a held write
is known to be storable, and reaches the sink before anything but its own state reads there (see
``StateBackend.attach``); only immutable values are cached. While the cache is disabled it is empty, and states that
find it disabled stop using it for the rest of the micro-batch.
Must not import storage, execution or operators.
"""

from __future__ import annotations

from collections.abc import Callable
from sys import getsizeof
from typing import Any, Final, TypeVar

from asyncstate.codec import PlainValues
from asyncstate.futures import StateFuture
from asyncstate.state.keyed.admission import AdmissionPolicy
from asyncstate.state_backend import Decoder, StateBackend, WriteBackCache

T = TypeVar("T")

UNKNOWN: Final = object()
"""Marks a cache miss. None marks a value known to be absent."""

ENTRY_BYTES: Final = 200
"""Measured overhead of an entry, in addition to its value, its key and, once written, its store key."""


class DecodedCache(WriteBackCache):
    """The cached values of one state in one micro-batch, in two generations of half of ``limit_bytes`` each.

    Keys are the state's own: they identify a store key and are cheaper to build. ``values`` is the recent generation,
    and ``held`` has the store keys of written values that the sink does not have yet: always the same dict objects,
    which the states access directly. ``old`` is the other generation, ``default`` the value that reads give for an
    absent one.
    """

    __slots__ = (
        "_bytes_max",
        "_decode",
        "_encode",
        "_entry_bytes",
        "_fixed",
        "_judged_hits",
        "_judged_misses",
        "_kept",
        "_misses",
        "_policy",
        "_room",
        "_sink",
        "default",
        "disabled",
        "fits",
        "held",
        "old",
        "type",
        "values",
    )

    def __init__(
        self,
        sink: StateBackend,
        plain: PlainValues,
        encode: Callable[[Any], bytes],
        decode: Callable[[bytes], Any],
        default: Any,
        limit_bytes: int,
        policy: AdmissionPolicy,
    ) -> None:
        super().__init__()
        self._sink = sink
        self._encode = encode
        self._decode = decode
        self.type = plain.type
        self.default = default
        self.fits = plain.fits
        self._kept = plain.kept
        self.values: dict[Any, Any] = {}
        self.held: dict[Any, bytes] = {}
        self.old: dict[Any, Any] = {}
        self._fixed = plain.fixed
        self._bytes_max = limit_bytes // 2
        self._entry_bytes = 0  # until keys are measured
        self._room = -1
        self.disabled = False
        self._policy = policy
        self._judged_misses = policy.judged_misses
        self._misses = self._judged_hits = 0
        sink.attach(self)

    # -- reading ----------------------------------------------------------------------------------------

    def look(self, key: Any) -> Any:
        """The cached value of a key, counted as a hit of a read; UNKNOWN for a miss."""
        value = self.values.get(key, UNKNOWN)
        if value is UNKNOWN:
            return self.recall(key) if self.old else UNKNOWN
        self.hits += 1
        return value

    def recall(self, key: Any) -> Any:
        """``look`` for a key that is not in the recent generation; a hit moves it there."""
        value = self.old.pop(key, UNKNOWN)
        if value is not UNKNOWN:
            self.hits += 1
            self.values[key] = value
            self._take(key, value)
        return value

    def add(self, key: Any, value: Any) -> None:
        """Cache the result of a read, for a key that missed."""
        self.values[key] = value
        self._misses += 1
        self._room -= self._entry_bytes if self._fixed else self._entry_bytes + getsizeof(value)
        if self._room < 0:
            self._turn(key, value)
        if self._misses >= self._judged_misses and not self._judge():
            self._disable()

    # -- writing ----------------------------------------------------------------------------------------

    def write(self, key: Any, store_key: bytes, value: Any) -> None:
        """Write ``value``, None to remove it. Raises CodecError, and changes nothing, if it cannot be stored."""
        if value is None or (type(value) is self.type and self.fits(value)):
            known = key in self.values
            self.values[key] = value
            self.held[key] = store_key
            if not known:
                self._entered(key, value)
        else:
            self.put(key, store_key, self._encode(value), value)

    def put(self, key: Any, store_key: bytes, raw: bytes, value: Any) -> None:
        """Write ``raw``, which the caller has encoded, to the sink at once."""
        self._sink.put(store_key, raw)
        if self.disabled:  # disabled by an earlier one of the entries that the caller writes
            return
        if type(value) is not self.type or not self._kept:
            value = self._decode(raw)
        self.held.pop(key, None)
        known = key in self.values
        self.values[key] = value
        if not known:
            self._entered(key, value)
        elif not self._fixed:
            self._take(key, value)  # counted as if the replaced value were still there

    def _entered(self, key: Any, value: Any) -> None:
        """Account for a write that has put ``key`` into the recent generation."""
        if self.old.pop(key, UNKNOWN) is UNKNOWN:
            self.add(key, value)
        else:
            self._take(key, value)

    def write_back(self) -> None:
        held = self.held
        if not held:
            return
        values, encode, put = self.values, self._encode, self._sink.put
        for key, store_key in held.items():
            value = values[key]
            if value is None:
                self._sink.delete(store_key)
            else:
                put(store_key, encode(value))
        held.clear()

    # -- where other code reads or writes the stored bytes ----------------------------------------------

    def drop(self, key: Any) -> None:
        """Drop ``key`` and its held write, if it has one."""
        self.values.pop(key, None)
        self.old.pop(key, None)
        self.held.pop(key, None)

    def get(self, key: bytes) -> bytes | None:
        """``StateBackend.get`` for states whose keys are the store keys; drops the key from the cache."""
        self._let_go(key)
        return self._sink.get(key)

    def async_get(self, key: bytes, decode: Decoder[T]) -> StateFuture[T]:
        """``StateBackend.async_get``, likewise."""
        self._let_go(key)
        return self._sink.async_get(key, decode)

    def delete(self, key: bytes) -> None:
        """``StateBackend.delete``, likewise."""
        self.drop(key)
        self._sink.delete(key)

    def _let_go(self, key: bytes) -> None:
        if key in self.held:
            value = self.values[key]
            if value is None:
                self._sink.delete(key)
            else:
                self._sink.put(key, self._encode(value))
        self.drop(key)

    # -- eviction and admission ----------------------------------------------------------------------------

    def _take(self, key: Any, value: Any) -> None:
        """Account for a value that enters the recent generation, and rotate if that is full."""
        self._room -= self._entry_bytes if self._fixed else self._entry_bytes + getsizeof(value)
        if self._room < 0:
            self._turn(key, value)

    def _turn(self, key: Any, value: Any) -> None:
        """Begin a new recent generation; the first call only measures the size of entries."""
        entry_bytes = ENTRY_BYTES + getsizeof(key) + (sum(map(getsizeof, key)) if type(key) is tuple else 0)
        if self._entry_bytes:
            self.write_back()  # so that the old generation never has held writes
            large = not self._fixed and getsizeof(value) > self._bytes_max
            self.old = {} if large else self.values.copy()
            self.values.clear()
        self._entry_bytes = entry_bytes
        self._room = self._bytes_max - entry_bytes * len(self.values)

    def _judge(self) -> bool:
        hits, misses = self.hits - self._judged_hits, self._misses
        self._judged_hits, self._misses = self.hits, 0
        return self._policy.add(hits, misses)

    def _disable(self) -> None:
        self.write_back()
        self.disabled = True
        self.values.clear()
        self.old.clear()

    def finish(self) -> None:
        self.write_back()
        if not self.disabled:
            self._judge()
        else:
            assert len(self.values) + len(self.old) == 0, "a disabled cache has entries"
