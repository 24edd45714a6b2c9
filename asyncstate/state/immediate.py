"""Asynchronous methods of values and lists whose calls complete at once.

Owns: ``ImmediateValue`` and ``ImmediateList``; for maps, see ``asyncstate.state.map_mixins.ImmediateMap``.
Invariant: an asynchronous method does what its synchronous twin does, at the time of the call.
Must not import storage, execution, operators or the states.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from asyncstate.futures import StateFuture, StateIterator, completed_future
from asyncstate.futures.future import VOID

T = TypeVar("T")


class ImmediateValue(Generic[T]):
    """A value whose futures are always done."""

    __slots__ = ()

    @abstractmethod
    def value(self) -> T | None:
        """The value, or None."""

    @abstractmethod
    def update(self, value: T | None) -> None:
        """Store ``value``; None clears."""

    @abstractmethod
    def is_empty(self) -> bool:
        """True when there is no value."""

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
