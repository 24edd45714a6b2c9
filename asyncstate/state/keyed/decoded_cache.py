"""Decoded values of states of the record grain, kept between micro-batches: the only cache level of such a state.

Owns: ``DecodedCache``, of one declared state, and ``UNKNOWN``.
Invariants: a cached value equals the result of a read, so a write that bypasses the cache drops the key; a held write
is known to be storable, and reaches the sink before anything but its own state reads there (see
``StateBackend.attach``); only immutable values are cached. Between micro-batches nothing is held: the values are those
of the content that the last one has made.
Must not import storage, execution or operators.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from operator import itemgetter
from sys import getsizeof
from typing import Any, Final

from asyncstate.codec import STATE_ID_AT, STATE_PREFIX_BYTES, PlainValues
from asyncstate.futures import StateFuture, completed_future
from asyncstate.state_backend import StateBackend, WriteBackCache

UNKNOWN: Final = object()
"""Marks a cache miss. None marks a value known to be absent."""

ENTRY_BYTES: Final = 200
"""Measured overhead of an entry, in addition to its value, its key and, once written, its store key."""

_STATE_ID: Final = slice(STATE_ID_AT, STATE_PREFIX_BYTES)  # of a store key
_STORE_KEY: Final = itemgetter(0)


class DecodedCache(WriteBackCache):
    """The cached values of one state, in two generations of half of its bound each.

    Keys are the state's own: they identify a store key and are cheaper to build. ``values`` is the recent generation,
    and ``held`` has the store keys of written values that the sink does not have yet: always the same dict objects,
    which the states access directly. ``old`` is the other generation, ``default`` the value that reads give for an
    absent one. ``asked`` is the last key that was read from the sink, ``asked_as`` its store key: a write often
    follows. ``begin`` and ``finish`` enclose each micro-batch.
    """

    __slots__ = (
        "_async_get",
        "_bytes_max",
        "_decode",
        "_encode",
        "_entry_bytes",
        "_fixed",
        "_forgotten",
        "_get",
        "_kept",
        "_old_bytes",
        "_room",
        "_sink",
        "asked",
        "asked_as",
        "bytes_peak",
        "carried",
        "default",
        "evictions",
        "fits",
        "held",
        "old",
        "state_id",
        "type",
        "types",
        "values",
    )

    # The sink's, within a micro-batch.
    _sink: Any
    _get: Any
    _async_get: Any

    def __init__(self, state_id: bytes, plain: PlainValues, types: Hashable) -> None:
        """``types``: what the entries depend on; a state with others has another cache."""
        super().__init__()
        self.state_id = state_id
        self.types = types
        self.type = plain.type
        self.fits = plain.fits
        self._kept = plain.kept
        self._fixed = plain.fixed
        self.values: dict[Any, Any] = {}
        self.old: dict[Any, Any] = {}
        self.held: dict[Any, bytes] = {}
        self._old_bytes = self._bytes_max = self.carried = self.evictions = self.bytes_peak = 0
        self._entry_bytes = 0  # until keys are measured
        self._room = -1
        self._forgotten = 0  # how often entries have left the cache
        self.asked: Any = None
        self.asked_as = b""
        self._sink = self._get = self._async_get = None

    # -- one micro-batch --------------------------------------------------------------------------------

    def begin(
        self,
        sink: StateBackend,
        encode: Callable[[Any], bytes],
        decode: Callable[[bytes], Any],
        default: Any,
    ) -> None:
        """Serve a micro-batch; ``bound`` must follow before the first read."""
        self._sink, self._get, self._async_get = sink, sink.get, sink.async_get
        self._encode, self._decode, self.default = encode, decode, default
        self.carried = len(self.values) + len(self.old)
        self.hits = self.evictions = self.bytes_peak = 0
        sink.attach(self)

    def bound(self, limit_bytes: int) -> None:
        """Keep within ``limit_bytes`` from now on."""
        recent_bytes = self._recent_bytes
        self._bytes_max = limit_bytes // 2
        self._room = self._bytes_max - recent_bytes if self._entry_bytes else -1
        self.evictions += self.shrink(limit_bytes)

    def finish(self) -> None:
        held = self.held
        if held:
            values, encode = self.values, self._encode
            changes = sorted([(store_key, values[key]) for key, store_key in held.items()], key=_STORE_KEY)
            keys = [store_key for store_key, _ in changes]
            raws = [None if value is None else encode(value) for _, value in changes]
            self._sink.append_final(keys, raws, sum(map(len, keys)) + sum(map(len, filter(None, raws))))
            held.clear()
        self.bytes_peak = max(self.bytes_peak, self.size_bytes)
        # The micro-batch's writes are not to live as long as the cache.
        self._sink = self._get = self._async_get = None

    # -- reading ----------------------------------------------------------------------------------------

    def look(self, key: Any) -> Any:
        """The cached value of a key, counted as a hit of a read; UNKNOWN for a miss."""
        value = self.values.get(key, UNKNOWN)
        if value is UNKNOWN:
            return self._recall(key) if self.old else UNKNOWN
        self.hits += 1
        return value

    def load(self, key: Any, store_key: bytes) -> Any:
        """The value of a key that ``values`` lacks, None if there is none; read from the sink if it is not known."""
        value = self._recall(key) if self.old else UNKNOWN
        if value is UNKNOWN:
            self.asked, self.asked_as = key, store_key
            raw = self._get(store_key)
            value = self.values[key] = None if raw is None else self._decode(raw)
            self._room -= self._entry_bytes if self._fixed else self._entry_bytes + getsizeof(value)
            if self._room < 0:
                self._rotate(key, value)
        return value

    def async_load(self, key: Any, store_key: bytes, default: Any = None) -> StateFuture[Any]:
        """A future of ``load``, with ``default`` for an absent value."""
        value = self._recall(key) if self.old else UNKNOWN
        if value is not UNKNOWN:
            return completed_future(default if value is None else value)
        self.asked, self.asked_as = key, store_key
        forgotten = self._forgotten

        def arrived(raw: bytes | None) -> Any:
            """Decode an answer, and cache it unless the key may have been written since the request."""
            value = None if raw is None else self._decode(raw)
            if forgotten == self._forgotten and key not in self.values:
                self.values[key] = value
                self._room -= self._entry_bytes if self._fixed else self._entry_bytes + getsizeof(value)
                if self._room < 0:
                    self._rotate(key, value)
            return default if value is None else value

        return self._async_get(store_key, arrived)  # type: ignore[no-any-return]

    def _recall(self, key: Any) -> Any:
        """``look`` for a key that is not in the recent generation; a hit moves it there."""
        value = self.old.pop(key, UNKNOWN)
        if value is not UNKNOWN:
            self.hits += 1
            self.values[key] = value
            self._take(key, value)
        return value

    def read(self, key: Any, store_key: bytes) -> Any:
        """``look``, then ``load``."""
        value = self.look(key)
        return self.load(key, store_key) if value is UNKNOWN else value

    def async_read(self, key: Any, store_key: bytes) -> StateFuture[Any]:
        """A future of ``read``."""
        value = self.look(key)
        return self.async_load(key, store_key) if value is UNKNOWN else completed_future(value)

    def knows(self, store_key: bytes) -> bool:
        """Whether reads of a state of values need not ask the sink; of a map this is not known."""
        own = store_key[STATE_PREFIX_BYTES:]
        return store_key[_STATE_ID] == self.state_id and any(
            own in entries or store_key in entries for entries in (self.values, self.old)
        )

    # -- writing ----------------------------------------------------------------------------------------

    def write(self, key: Any, store_key: bytes, value: Any) -> None:
        """Write ``value``, None to remove it. Raises CodecError, and changes nothing, if it cannot be stored."""
        if value is None or (type(value) is self.type and self.fits(value)):
            values = self.values
            count = len(values)
            values[key] = value
            self.held[key] = store_key
            if len(values) != count:
                self.old.pop(key, None)
                self._take(key, value)
        else:
            self.put(key, store_key, self._encode(value), value)

    def put(self, key: Any, store_key: bytes, raw: bytes, value: Any) -> None:
        """Write ``raw``, which the caller has encoded, to the sink at once."""
        self._sink.put(store_key, raw)
        if type(value) is not self.type or not self._kept:
            value = self._decode(raw)
        self.held.pop(key, None)
        self.old.pop(key, None)
        known = key in self.values
        self.values[key] = value
        if not (known and self._fixed):
            self._take(key, value)  # a replaced value counts as if it were still there

    def as_stored(self, value: Any) -> Any:
        """``value`` as a read will return it. Raises CodecError if it cannot be stored."""
        if type(value) is self.type and self.fits(value):
            return value
        return self._decode(self._encode(value))

    def drop(self, key: Any) -> None:
        """Drop ``key`` and its held write, if it has one: the caller writes past the cache."""
        self.values.pop(key, None)
        self.old.pop(key, None)
        self.held.pop(key, None)
        self._forgotten += 1

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

    # -- size -------------------------------------------------------------------------------------------

    @property
    def size_bytes(self) -> int:
        """Estimated memory; recently replaced values of different sizes count as well."""
        return self._recent_bytes + self._old_bytes

    @property
    def _recent_bytes(self) -> int:
        return self._bytes_max - self._room if self._entry_bytes else 0

    def shrink(self, limit_bytes: int) -> int:
        """Drop a generation, or both, until the rest keeps within the limit; return the number of dropped entries.
        Nothing is held."""
        dropped = 0
        if self.size_bytes > limit_bytes:
            dropped = len(self.old)
            self.old, self._old_bytes = {}, 0
        if self._recent_bytes > limit_bytes:
            dropped += len(self.values)
            self.values.clear()
            self._room = self._bytes_max
        return dropped

    def _take(self, key: Any, value: Any) -> None:
        """Account for a value that enters the recent generation, and rotate if that is full."""
        self._room -= self._entry_bytes if self._fixed else self._entry_bytes + getsizeof(value)
        if self._room < 0:
            self._rotate(key, value)

    def _rotate(self, key: Any, value: Any) -> None:
        """Begin a new recent generation; the first call only measures the size of entries."""
        if self._entry_bytes:
            self.write_back()  # so that the old generation never has held writes
            self.bytes_peak = max(self.bytes_peak, self.size_bytes)
            self.evictions += len(self.old)
            self._forgotten += 1
            large = not self._fixed and getsizeof(value) > self._bytes_max
            self.old, self._old_bytes = ({}, 0) if large else (self.values.copy(), self._recent_bytes)
            self.values.clear()
        parts = sum(map(getsizeof, key)) if type(key) is tuple else 0
        self._entry_bytes = ENTRY_BYTES + getsizeof(key) + parts
        self._room = self._bytes_max - self._entry_bytes * len(self.values)
