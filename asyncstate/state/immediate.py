"""What values, lists and maps share: the operations of a dict, and asynchronous methods that complete at once.

Owns: ``ImmediateValue``, ``ImmediateList`` and ``ImmediateMap``, whose asynchronous methods are those of the states for
what never waits; ``ImmediateWrites``, for a map of which only the writes need not wait; ``DictProtocol``, the base of
maps that have ``get``, ``put``, ``remove``, ``contains``, ``keys`` and ``entries``.
Invariant: each operator of a dict is exactly one of those calls, so ``map[key]`` is None for a missing key; an
asynchronous method does what its synchronous twin does, at the time of the call.
Must not import storage, execution, operators or the states.

Source: Flink's Python ``MapState`` and ``MapView``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Generic, TypeVar

from asyncstate.futures import StateFuture, StateIterator, completed_future
from asyncstate.futures.future import VOID

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


class ImmediateValue(Generic[T]):
    """A value whose futures are always done."""

    __slots__ = ()

    @abstractmethod
    def value(self) -> T | None:
        """The value, or None."""

    @abstractmethod
    def update(self, value: T | None) -> None:
        """Store ``value``; None clears."""

    def is_empty(self) -> bool:
        """True when there is no value."""
        return self.value() is None

    def clear(self) -> None:
        """Remove the value."""
        self.update(None)

    def async_value(self) -> StateFuture[T | None]:
        """A future of ``value``."""
        return completed_future(self.value())

    def async_update(self, value: T | None) -> StateFuture[None]:
        """``update``; every later read sees it."""
        self.update(value)
        return VOID

    def async_is_empty(self) -> StateFuture[bool]:
        """A future of ``is_empty``."""
        return completed_future(self.is_empty())

    def async_clear(self) -> StateFuture[None]:
        """``clear``; every later read sees it."""
        self.clear()
        return VOID


class ImmediateList(Generic[T]):
    """A list whose futures are always done."""

    __slots__ = ()

    @abstractmethod
    def get(self) -> Iterator[T]:
        """All elements as they are now, in order."""

    @abstractmethod
    def add_all(self, elements: Iterable[T]) -> None:
        """Append all, or none if one is refused."""

    @abstractmethod
    def clear(self) -> None:
        """Remove all elements."""

    def add(self, element: T) -> None:
        """Append. Raises StateAccessError for None."""
        self.add_all([element])

    def async_get(self) -> StateFuture[StateIterator[T]]:
        """A future of an iterator over ``get``."""
        return completed_future(StateIterator(list(self.get())))

    def async_add(self, element: T) -> StateFuture[None]:
        """``add``; every later operation sees it."""
        self.add(element)
        return VOID

    def async_add_all(self, elements: Iterable[T]) -> StateFuture[None]:
        """``add_all``; every later operation sees it."""
        self.add_all(elements)
        return VOID

    def async_clear(self) -> StateFuture[None]:
        """``clear``; every later operation sees it."""
        self.clear()
        return VOID


class DictProtocol(Generic[K, V]):
    """``map[key]``, ``map[key] = value``, ``del map[key]``, ``key in map``, iteration over the keys, ``items()``.

    Unlike a dict's, a missing key is never a KeyError: reading gives None and deleting does nothing, as with ``get``
    and ``remove``. There is no ``len()``: it would read every entry.
    """

    __slots__ = ()

    @abstractmethod
    def get(self, key: K) -> V | None:
        """The value under ``key``, or None."""

    @abstractmethod
    def contains(self, key: K) -> bool:
        """True when there is a value under ``key``."""

    @abstractmethod
    def put(self, key: K, value: V) -> None:
        """Store ``value``."""

    @abstractmethod
    def remove(self, key: K) -> None:
        """Remove the entry of ``key``; nothing happens if there is none."""

    @abstractmethod
    def keys(self) -> Iterator[K]:
        """All keys as they are now."""

    @abstractmethod
    def entries(self) -> Iterator[tuple[K, V]]:
        """All (key, value) as they are now."""

    def items(self) -> Iterator[tuple[K, V]]:
        """``entries`` under the name it has in a dict."""
        return self.entries()

    def __getitem__(self, key: K) -> V | None:
        return self.get(key)

    def __setitem__(self, key: K, value: V) -> None:
        self.put(key, value)

    def __delitem__(self, key: K) -> None:
        self.remove(key)

    def __contains__(self, key: K) -> bool:
        return self.contains(key)

    def __iter__(self) -> Iterator[K]:
        return self.keys()


class ImmediateWrites(DictProtocol[K, V]):
    """A map whose writes take effect at the time of the call."""

    __slots__ = ()

    @abstractmethod
    def put_all(self, entries: Mapping[K, V] | Iterable[tuple[K, V]]) -> None:
        """``put`` each entry; none is stored if one is refused."""

    @abstractmethod
    def clear(self) -> None:
        """Remove all entries."""

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

    def async_clear(self) -> StateFuture[None]:
        """``clear``; every later read sees it."""
        self.clear()
        return VOID


class ImmediateMap(ImmediateWrites[K, V]):
    """A map whose futures are always done."""

    __slots__ = ()

    @abstractmethod
    def values(self) -> Iterator[V]:
        """All values as they are now."""

    @abstractmethod
    def is_empty(self) -> bool:
        """True when the map has no entry."""

    def async_get(self, key: K) -> StateFuture[V | None]:
        """A future of ``get``."""
        return completed_future(self.get(key))

    def async_contains(self, key: K) -> StateFuture[bool]:
        """A future of ``contains``."""
        return completed_future(self.contains(key))

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
