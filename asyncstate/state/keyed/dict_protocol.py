"""What makes a map usable like a dict.

Owns: ``DictProtocol``, the base of maps that have ``get``, ``put``, ``remove``, ``contains``, ``keys`` and ``entries``.
Invariant: each operator is one of those calls and nothing more, so ``map[key]`` is None for a key that is not there.
Must not import anything of the project.

Source: Flink's Python ``MapState`` and ``MapView``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class DictProtocol(Generic[K, V]):
    """``map[key]``, ``map[key] = value``, ``del map[key]``, ``key in map``, iteration over the keys, ``items()``.

    Unlike a dict's, a missing key is never a KeyError: reading gives None and deleting does nothing, as with ``get``
    and ``remove``. There is no length: it would read every entry.
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
