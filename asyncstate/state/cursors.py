"""Iterations that are under way, and how writes leave them undisturbed.

Owns: ``PageCursor`` and the registry of live cursors that a state's writes consult.
Invariant: an iteration shows the state as it was when it was asked for, however late its pages are loaded:
what a write is about to change beyond the pages already loaded is read first and kept with the cursor.
Must not import storage, execution, operators or the states themselves.
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

from asyncstate.futures import StateFuture, StateIterator, completed_future

T = TypeVar("T")
R = TypeVar("R")

CursorRegistry = dict[int, "weakref.ref[Any]"]
"""Live cursors of one declared state, by identity; an abandoned iteration leaves by itself."""


class PageCursor(ABC, Generic[R, T]):
    """Position of one iteration: ``R`` is what the sink answers for a page, ``T`` an entry."""

    __slots__ = ("__weakref__", "_blocking", "_registry")

    def __init__(self, registry: CursorRegistry, blocking: bool) -> None:
        self._registry = registry
        self._blocking = blocking

    @abstractmethod
    def _ask(self) -> StateFuture[R]:
        """Request the next page from the sink: answered at once if ``_blocking``."""

    @abstractmethod
    def _entries(self, page: R) -> list[T]:
        """The entries of a page that has arrived; moves the position behind it."""

    @property
    @abstractmethod
    def _exhausted(self) -> bool:
        """True when the last page has arrived."""

    def load(self) -> StateFuture[StateIterator[T]]:
        """A future of the iterator that begins with the next page."""
        asked = self._ask()
        if not asked.done:
            self._enlist()
        return asked.then_apply(self._arrived)

    def load_now(self) -> StateIterator[T]:
        """The iterator that begins with the next page, for a blocking cursor."""
        return self._arrived(self._ask().get())

    def _arrived(self, page: R) -> StateIterator[T]:
        items = self._entries(page)
        if self._exhausted:
            self._registry.pop(id(self), None)
            return StateIterator(items)
        self._enlist()
        return StateIterator(items, self._load_now_future if self._blocking else self.load)

    def _load_now_future(self) -> StateFuture[StateIterator[T]]:
        return completed_future(self.load_now())

    def _enlist(self) -> None:
        registry, identity = self._registry, id(self)
        if identity not in registry:
            registry[identity] = weakref.ref(self, lambda _: registry.pop(identity, None))


def live_cursors(registry: CursorRegistry) -> list[Any]:
    """The cursors that are still in use."""
    return [cursor for cursor in (reference() for reference in list(registry.values())) if cursor is not None]
