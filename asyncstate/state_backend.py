"""The requests of a state object, and the backend that answers them.

Owns: the ``StateBackend`` contract between the state objects and the execution controller, and ``WriteBackCache``, the
values that a state object holds itself.
Invariant: writes are seen by every later read of the same key, whatever the mode.
Must not import storage, execution or operators.

Source: FLIP-424's ``StateRequestHandler``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from asyncstate.futures import StateFuture

T = TypeVar("T")

Decoder = Callable[[bytes | None], T]
Page = list[tuple[bytes, bytes]]


class KeyContext(Protocol):
    """The key a state object works for: set by the controller before any code of the operator runs."""

    group: bytes  # 2 bytes, big endian key group
    encoded_key: bytes
    timestamp: int | None  # event time, microseconds

    @property
    def may_write_broadcast(self) -> bool:
        """True while a row of the broadcast input is handled."""


class WriteBackCache(ABC):
    """Decoded values of a state object, and writes that it buffers. ``hits`` counts the reads it answered."""

    __slots__ = ("hits",)

    def __init__(self) -> None:
        self.hits = 0

    @abstractmethod
    def write_back(self) -> None:
        """Pass the buffered writes to the backend."""

    def knows(self, store_key: bytes) -> bool:
        """Whether a read of ``store_key`` needs no answer of the backend: a hint, for prefetching."""
        return False

    @abstractmethod
    def finish(self) -> None:
        """``write_back`` at the end of the micro-batch; the state is not used any more."""


class StateBackend(ABC):
    """The calls of the state objects of one operator on one partition during one micro-batch.

    Store keys are complete: ``[group][state id][key]...``. The plain methods answer at once; their ``async_`` twins
    return a future, settled at once or later depending on the execution mode.
    """

    __slots__ = ()

    current: KeyContext | None

    @abstractmethod
    def get(self, key: bytes) -> bytes | None:
        """The value under ``key``, or None."""

    @abstractmethod
    def async_get(self, key: bytes, decode: Decoder[T]) -> StateFuture[T]:
        """A future of ``decode(value or None)``."""

    @abstractmethod
    def put(self, key: bytes, value: bytes) -> None:
        """Write; seen by later reads at once, by others when the micro-batch commits."""

    @abstractmethod
    def delete(self, key: bytes) -> None:
        """Remove ``key``; no effect if it does not exist."""

    @abstractmethod
    def scan(self, start: bytes, end: bytes, limit: int) -> Page:
        """At most ``limit`` entries with start <= key < end, ascending."""

    @abstractmethod
    def async_scan(self, start: bytes, end: bytes, limit: int) -> StateFuture[Page]:
        """A future of the same."""

    @abstractmethod
    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """Values for ``keys`` (sorted, unique), None where there is none."""

    @abstractmethod
    def async_get_many(self, keys: list[bytes]) -> StateFuture[list[bytes | None]]:
        """A future of the same."""

    @abstractmethod
    def put_many(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Write one value per key."""

    @abstractmethod
    def delete_many(self, keys: Sequence[bytes]) -> None:
        """Remove many keys."""

    @abstractmethod
    def append_final(self, keys: Sequence[bytes], values: Sequence[bytes | None], size_bytes: int) -> None:
        """Write or remove (None) many keys (sorted, unique), in ``WriteBackCache.finish``: they are not read any more
        in this micro-batch. The caller gives up the sequences; ``size_bytes`` is that of all keys and values."""

    @abstractmethod
    def attach(self, cache: WriteBackCache) -> None:
        """Collect the buffered writes of ``cache`` before every scan, and at the end of the micro-batch.

        No other code reads the keys of its state.
        """

    @abstractmethod
    def prefetch(self, keys: list[bytes]) -> None:
        """Start loading ``keys`` (sorted, unique) if that can happen while other work goes on; a hint only."""
