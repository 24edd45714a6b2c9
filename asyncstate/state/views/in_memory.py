"""In-memory backing of views without state: a value, a list and a map.

Owns: ``MemoryValue``, ``MemoryList`` and ``MemoryMap``, with the state methods that views use.
Invariant: they behave as the states do: None is not a valid element or map value, iterations return the contents as of
their request, a map iterates in the order of its keys. They are pickled with their accumulator.
Must not import storage, execution, operators or the states.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar

from asyncstate.errors import StateAccessError
from asyncstate.state.immediate import ImmediateList, ImmediateMap, ImmediateValue

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

_NAN: Final = float("nan")


class MemoryValue(ImmediateValue[T]):
    """A ``ValueState`` of one key in memory."""

    __slots__ = ("_value",)

    def __init__(self) -> None:
        self._value: T | None = None

    def value(self) -> T | None:
        return self._value

    def update(self, value: T | None) -> None:
        self._value = value


class MemoryList(ImmediateList[T]):
    """A ``ListState`` of one key in memory."""

    __slots__ = ("_elements",)

    def __init__(self) -> None:
        self._elements: list[T] = []

    def get(self) -> Iterator[T]:
        return iter(self._elements.copy())

    def add(self, element: T) -> None:
        self._elements.append(_element(element))

    def add_all(self, elements: Iterable[T]) -> None:
        self._elements += [_element(element) for element in elements]

    def clear(self) -> None:
        self._elements = []


class MemoryMap(ImmediateMap[K, V]):
    """A ``MapState`` of one key in memory."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: dict[Any, V] = {}

    def get(self, key: K) -> V | None:
        return self._entries.get(user_key(key))

    def contains(self, key: K) -> bool:
        return user_key(key) in self._entries

    def put(self, key: K, value: V) -> None:
        self._entries[user_key(key)] = _map_value(key, value)

    def put_all(self, entries: Mapping[K, V] | Iterable[tuple[K, V]]) -> None:
        pairs = entries.items() if isinstance(entries, Mapping) else entries
        self._entries |= {user_key(key): _map_value(key, value) for key, value in pairs}

    def remove(self, key: K) -> None:
        self._entries.pop(user_key(key), None)

    def entries(self) -> Iterator[tuple[K, V]]:
        return iter(sorted(self._entries.items(), key=_rank))

    def keys(self) -> Iterator[K]:
        return (key for key, _ in self.entries())

    def values(self) -> Iterator[V]:
        return (value for _, value in self.entries())

    def is_empty(self) -> bool:
        return not self._entries

    def clear(self) -> None:
        self._entries = {}

    def __getstate__(self) -> dict[Any, V]:
        return self._entries

    def __setstate__(self, entries: dict[Any, V]) -> None:
        self._entries = {user_key(key): value for key, value in entries.items()}


def _element(element: T) -> T:
    if element is None:
        raise StateAccessError("a ListView: a list element cannot be None; leave it out")
    return element


def _map_value(key: object, value: V) -> V:
    if value is None:
        raise StateAccessError(
            f"a MapView: a map value cannot be None (user key {key!r}); use remove() to delete the entry, or skip "
            "put()"
        )
    return value


def user_key(key: Any) -> Any:
    """``key``, with all NaNs mapped to one key and -0.0 to 0.0, as in the store."""
    if type(key) is float:
        return key + 0.0 if key == key else _NAN
    return _NAN if key != key else key


def _rank(entry: tuple[Any, Any]) -> tuple[int, Any]:
    """Sorts as encoded keys do: None first, NaN last."""
    key = entry[0]
    if key is None:
        return 0, 0
    return (2, 0) if key != key else (1, key)
