"""What a state object may ask for, and the sink it asks.

Owns: the ``StateBackend`` contract between the state objects and the execution controllers, ``WriteBackCache``, what a
state object knows by itself, and ``StateRequest``, one read that waits in an asynchronous controller.
Invariant: writes are seen by every later read of the same key, whatever the mode.
Must not import storage, execution or operators.

Source: FLIP-424's ``StateRequestHandler`` and ``StateRequest``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

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


@dataclass(slots=True, eq=False)
class StateRequest:
    """One point read that waits for the store: its store key, what to make of the answer, and for whom."""

    key: bytes
    decode: Decoder[Any]
    future: StateFuture[Any]
    record: Any


class WriteBackCache(ABC):
    """Values that a state object has decoded, and writes that it holds back. ``hits`` counts the reads it answered."""

    __slots__ = ("hits",)

    def __init__(self) -> None:
        self.hits = 0

    @abstractmethod
    def write_back(self) -> None:
        """Hand what is held back to the sink."""

    @abstractmethod
    def finish(self) -> None:
        """``write_back`` at the end of the micro-batch; the state is not used any more."""


class StateBackend(ABC):
    """The calls of the state objects of one operator on one partition during one micro-batch.

    Store keys are complete: ``[group][state id][key]...``. The plain methods answer at once; their ``async_``
    twins answer with a future, at once or later as the execution mode has it.
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
        """Remove ``key``; nothing happens if it is not there."""

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
        """Write one value a key."""

    @abstractmethod
    def delete_many(self, keys: Sequence[bytes]) -> None:
        """Remove many keys."""

    @abstractmethod
    def finish_many(self, keys: Sequence[bytes], values: Sequence[bytes | None], size_bytes: int) -> None:
        """Write or remove (None) many keys (sorted, unique), in ``WriteBackCache.finish``: nobody reads them any more
        in this micro-batch. The sequences are handed over; ``size_bytes`` is that of all keys and values."""

    @abstractmethod
    def attach(self, level_one: WriteBackCache) -> None:
        """Take the writes of ``level_one`` back before every scan, and at the end of the micro-batch.

        Nobody but its own state reads its keys in any other way.
        """

    @abstractmethod
    def prefetch(self, keys: list[bytes]) -> None:
        """Start loading ``keys`` (sorted, unique) if that can happen while other work goes on; a hint only."""
