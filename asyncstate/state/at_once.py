"""Futures of what is answered at once: by a map that is in memory as a whole.

Owns: ``MapAtOnce``, the asynchronous half of ``MapState``'s methods over the other half.
Invariant: an asynchronous method does what its twin does when it is asked for, and nothing more.
Must not import storage, execution or operators.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, TypeVar

from asyncstate.futures import StateFuture, StateIterator, completed_future, completed_void_future
from asyncstate.state.keyed.dict_protocol import DictProtocol

K = TypeVar("K")
V = TypeVar("V")

VOID: Final = completed_void_future()
"""What a write gives that has been done."""


class MapAtOnce(DictProtocol[K, V]):
    """A map whose every future is done."""

    __slots__ = ()

    @abstractmethod
    def put_all(self, entries: Mapping[K, V] | Iterable[tuple[K, V]]) -> None:
        """``put`` each entry; none is stored if one is refused."""

    @abstractmethod
    def values(self) -> Iterator[V]:
        """All values as they are now."""

    @abstractmethod
    def is_empty(self) -> bool:
        """True when the map has no entry."""

    @abstractmethod
    def clear(self) -> None:
        """Remove all entries."""

    def async_get(self, key: K) -> StateFuture[V | None]:
        """A future of ``get``."""
        return completed_future(self.get(key))

    def async_contains(self, key: K) -> StateFuture[bool]:
        """A future of ``contains``."""
        return completed_future(self.contains(key))

    def async_put(self, key: K, value: V) -> StateFuture[None]:
        """``put``; every later read sees it."""
        self.put(key, value)
        return VOID

    def async_put_all(self, entries: Mapping[K, V] | Iterable[tuple[K, V]]) -> StateFuture[None]:
        """``put_all``; every later read sees it."""
        self.put_all(entries)
        return VOID

    def async_remove(self, key: K) -> StateFuture[None]:
        """``remove``; every later read sees it."""
        self.remove(key)
        return VOID

    def async_entries(self) -> StateFuture[StateIterator[tuple[K, V]]]:
        """A future of an iterator over ``entries`` as they are now."""
        return completed_future(StateIterator(list(self.entries())))

    def async_keys(self) -> StateFuture[StateIterator[K]]:
        """A future of an iterator over ``keys`` as they are now."""
        return completed_future(StateIterator(list(self.keys())))

    def async_values(self) -> StateFuture[StateIterator[V]]:
        """A future of an iterator over ``values`` as they are now."""
        return completed_future(StateIterator(list(self.values())))

    def async_is_empty(self) -> StateFuture[bool]:
        """A future of ``is_empty``."""
        return completed_future(self.is_empty())

    def async_clear(self) -> StateFuture[None]:
        """``clear``; every later read sees it."""
        self.clear()
        return VOID
