"""What is known of the values of one declared state: the first level of the state cache, above the overlay's bytes.

Owns: ``DecodedCache`` and ``UNKNOWN``.
Invariants: what is known of a key is what a read of it has to show, so whoever writes past it drops the key; a held
write is known to be storable, and reaches the sink before anything but its own state looks there (see
``StateBackend.attach``); only values that nobody can change are kept. While it rests nothing is known, and the states
that find it resting let go of it for the rest of the micro-batch.
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
"""Stands for a value where there is none, which None does not: that is an absent one."""

ENTRY_BYTES: Final = 200
"""What an entry weighs beside its value, its key and, once it was written, its store key: measured."""


class DecodedCache(WriteBackCache):
    """What is known of the values of one state in one micro-batch, in two generations of half of ``limit_bytes`` each.

    Keys are the state's own: what names a store key and is quicker to have. ``values`` is the young generation and
    ``held`` has the store keys of those that were written and of which the sink does not know: always the same dicts,
    for the states to work on. ``old`` is the other generation, ``default`` what is shown for an absent value.
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
        "_room",
        "_sink",
        "_trial",
        "default",
        "fits",
        "held",
        "old",
        "resting",
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
        trial: AdmissionPolicy,
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
        self._entry_bytes = 0  # before anything is known of keys
        self._room = -1
        self.resting = False
        self._trial = trial
        self._judged_misses = trial.judged_misses
        self._misses = self._judged_hits = 0
        sink.attach(self)

    # -- reading ----------------------------------------------------------------------------------------

    def look(self, key: Any) -> Any:
        """What is known of a key, for a read that it answers."""
        value = self.values.get(key, UNKNOWN)
        if value is UNKNOWN:
            return self.recall(key) if self.old else UNKNOWN
        self.hits += 1
        return value

    def recall(self, key: Any) -> Any:
        """``look`` for a key that is not young; it is from now on."""
        value = self.old.pop(key, UNKNOWN)
        if value is not UNKNOWN:
            self.hits += 1
            self.values[key] = value
            self._take(key, value)
        return value

    def add(self, key: Any, value: Any) -> None:
        """Keep what a read has shown, for a key of which nothing was known."""
        self.values[key] = value
        self._misses += 1
        self._room -= self._entry_bytes if self._fixed else self._entry_bytes + getsizeof(value)
        if self._room < 0:
            self._turn(key, value)
        if self._misses >= self._judged_misses and not self._judge():
            self._rest()

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
        if self.resting:  # since an earlier one of the entries that the caller writes
            return
        if type(value) is not self.type or not self._kept:
            value = self._decode(raw)
        self.held.pop(key, None)
        known = key in self.values
        self.values[key] = value
        if not known:
            self._entered(key, value)
        elif not self._fixed:
            self._take(key, value)  # as if what it replaces were still there

    def _entered(self, key: Any, value: Any) -> None:
        """A write has made ``key`` young."""
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

    # -- where the stored bytes are asked for or written by others ----------------------------------------------

    def drop(self, key: Any) -> None:
        """Forget ``key``, with its held write if there is one."""
        self.values.pop(key, None)
        self.old.pop(key, None)
        self.held.pop(key, None)

    def get(self, key: bytes) -> bytes | None:
        """``StateBackend.get`` for states whose keys are the store keys; nothing is known of the key from now on."""
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

    # -- room, and whether it pays ----------------------------------------------------------------------------

    def _take(self, key: Any, value: Any) -> None:
        """Make room for a value that has become young."""
        self._room -= self._entry_bytes if self._fixed else self._entry_bytes + getsizeof(value)
        if self._room < 0:
            self._turn(key, value)

    def _turn(self, key: Any, value: Any) -> None:
        """Begin a new young generation; the first time only find out how large entries are."""
        entry_bytes = ENTRY_BYTES + getsizeof(key) + (sum(map(getsizeof, key)) if type(key) is tuple else 0)
        if self._entry_bytes:
            self.write_back()  # so that nothing old is ever held
            large = not self._fixed and getsizeof(value) > self._bytes_max
            self.old = {} if large else self.values.copy()
            self.values.clear()
        self._entry_bytes = entry_bytes
        self._room = self._bytes_max - entry_bytes * len(self.values)

    def _judge(self) -> bool:
        hits, misses = self.hits - self._judged_hits, self._misses
        self._judged_hits, self._misses = self.hits, 0
        return self._trial.add(hits, misses)

    def _rest(self) -> None:
        self.write_back()
        self.resting = True
        self.values.clear()
        self.old.clear()

    def finish(self) -> None:
        self.write_back()
        if not self.resting:
            self._judge()
        else:
            assert len(self.values) + len(self.old) == 0, "something is known though it rests"
