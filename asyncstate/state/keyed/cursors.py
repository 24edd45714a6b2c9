"""Snapshot isolation of running iterations against writes.

Owns: ``PageCursor`` and the registry of live cursors that a state's writes consult.
Invariant: an iteration returns the state as of its request, however late its pages are loaded: before a write changes
entries that no loaded page has, they are read and stored in the cursor.
Must not import storage, execution, operators or the states themselves.
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

from asyncstate.futures import StateFuture, StateIterator, completed_future

T = TypeVar("T")
R = TypeVar("R")

CursorRegistry = dict[bytes, dict[int, "weakref.ref[Any]"]]
"""Live cursors of one declared state, by the prefix of the list or map and by identity.

An abandoned iteration is removed automatically. Thousands of records may iterate, each over its own list or map.
"""


class PageCursor(ABC, Generic[R, T]):
    """Position of one iteration: ``R`` is the sink's answer for a page, ``T`` an entry."""

    __slots__ = ("__weakref__", "_blocking", "_prefix", "_registry")

    def __init__(self, registry: CursorRegistry, prefix: bytes, blocking: bool) -> None:
        self._registry = registry
        self._prefix = prefix
        self._blocking = blocking

    @abstractmethod
    def _ask(self) -> StateFuture[R]:
        """Request the next page from the sink: answered at once if ``_blocking``."""

    @abstractmethod
    def _entries(self, page: R) -> list[T]:
        """The entries that a loaded page contributes, perhaps none; moves the position past the page."""

    @property
    @abstractmethod
    def _exhausted(self) -> bool:
        """True when the last page has arrived."""

    def load(self) -> StateFuture[StateIterator[T]]:
        """A future of the iterator that begins with the next page that contributes an entry."""
        while True:
            asked = self._ask()
            if not asked.done:
                self._enlist()
                return asked.then_compose(self._arrived)
            found = asked.then_apply(self._iterator)
            if found.failed or found.get() is not None:
                return found  # type: ignore[return-value]  # it is not None

    def _arrived(self, page: R) -> StateFuture[StateIterator[T]]:
        found = self._iterator(page)
        return self.load() if found is None else completed_future(found)

    def _iterator(self, page: R) -> StateIterator[T] | None:
        """The iterator that begins with ``page``; None if the page contributes nothing and others follow."""
        items = self._entries(page)
        if self._exhausted:
            if self._prefix in self._registry:
                _leave(self._registry, self._prefix, id(self))
            return StateIterator(items)
        self._enlist()
        return StateIterator(items, self.load) if items else None

    def _enlist(self) -> None:
        registry, prefix, identity = self._registry, self._prefix, id(self)
        cursors = registry.setdefault(prefix, {})
        if identity not in cursors:
            cursors[identity] = weakref.ref(self, lambda _: _leave(registry, prefix, identity))


def _leave(registry: CursorRegistry, prefix: bytes, identity: int) -> None:
    cursors = registry.get(prefix)
    if cursors is not None and cursors.pop(identity, None) is not None and not cursors:
        del registry[prefix]


def live_cursors(registry: CursorRegistry, prefix: bytes) -> list[Any]:
    """The cursors over the list or map under ``prefix`` that are still in use."""
    references = list(registry.get(prefix, {}).values())
    return [cursor for cursor in (reference() for reference in references) if cursor is not None]
