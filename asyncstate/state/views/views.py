"""Views: values, lists and maps for accumulators and functions, independent of where the data is.

Owns: ``ValueView``, ``ListView``, ``MapView`` and ``is_view``.
Invariant: a view behaves the same over state and in memory, and caches no state itself: data that is not requested is
neither read nor decoded, data that is not written is not encoded.
Must not import storage, execution or operators.

Source: Flink's ``ListView`` and ``MapView`` (FLIP-139) and ``ValueView``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Generic

from typing_extensions import TypeVar

from asyncstate.errors import StateAccessError
from asyncstate.futures import StateFuture, StateIterator
from asyncstate.state.broadcast_state import BroadcastList, BroadcastState, BroadcastValue
from asyncstate.state.immediate import DictProtocol
from asyncstate.state.keyed.list_state import ListState
from asyncstate.state.keyed.map_state import MapState
from asyncstate.state.keyed.value_state import ValueState
from asyncstate.state.views.in_memory import MemoryList, MemoryMap, MemoryValue

T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True, default=T | None)
K = TypeVar("K")
V = TypeVar("V")


class _View:
    """Base of the three views."""

    __slots__ = ("_state",)

    _state: Any

    @property
    def in_memory(self) -> bool:
        """Whether its contents are in memory only, not in state."""
        return type(self._state) in (MemoryValue, MemoryList, MemoryMap)

    def clear(self) -> None:
        """Remove all contents."""
        self._state.clear()

    def async_clear(self) -> StateFuture[None]:
        """``clear``; every later operation sees it."""
        cleared: StateFuture[None] = self._state.async_clear()
        return cleared

    @abstractmethod
    def _content(self) -> list[Any]:
        """All contents, for comparison."""

    def _as_text(self) -> str:
        return repr(self._content())

    def __eq__(self, other: object) -> bool:
        return self._content() == other._content() if isinstance(other, type(self)) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self._content()))

    def __repr__(self) -> str:
        # The repr of a view over state names its state: it reads nothing.
        in_memory = isinstance(self._state, MemoryValue | MemoryList | MemoryMap)
        return f"{type(self).__name__}({self._as_text() if in_memory else repr(self._state)})"


def is_view(value: object) -> bool:
    """Whether a value is a view of any kind."""
    return isinstance(value, _View)


class ValueView(_View, Generic[T, R_co]):
    """One value, in ``state`` or in memory.

    Prefer it to a plain value where state is rarely read or written. Two views are equal if their values are. Replace
    the value with ``update``; do not change it in place. ``ValueView[int]`` is one whose values may be None; over a
    state with a default, or as a parameter with ``StateHint(default=0)``, it is ``ValueView[int, int]``.

    >>> view = ValueView()
    >>> view.update(7)
    >>> view.value(), view.is_empty()
    (7, False)
    """

    __slots__ = ()

    def __init__(
        self,
        state: ValueState[T, R_co]
        | BroadcastValue[T]
        | BroadcastState[int, T]
        | MemoryValue[T]
        | None = None,
    ) -> None:
        """``state``: the state with the value (for namespaced state, ``state.at(namespace)``; a BroadcastState with
        keys of ``int`` stores it under 0); None: in memory."""
        if isinstance(state, BroadcastState):
            state = BroadcastValue(state)
        # or one of the other backings, which have the same methods
        self._state: ValueState[T, R_co] = _backing(
            self, state, (ValueState, BroadcastValue, MemoryValue), MemoryValue
        )

    def value(self) -> R_co:
        """The value; without one the state's default, or None."""
        return self._state.value()

    def async_value(self) -> StateFuture[R_co]:
        """A future of ``value``, as it is now."""
        return self._state.async_value()

    def update(self, value: T | None) -> None:
        """Store ``value``; None clears."""
        self._state.update(value)

    def async_update(self, value: T | None) -> StateFuture[None]:
        """``update``; every later read sees it."""
        return self._state.async_update(value)

    def is_empty(self) -> bool:
        """True when there is no value; decodes nothing."""
        return self._state.is_empty()

    def async_is_empty(self) -> StateFuture[bool]:
        """A future of ``is_empty``, as it is now."""
        return self._state.async_is_empty()

    def _content(self) -> list[Any]:
        return [self.value()]

    def _as_text(self) -> str:
        return repr(self.value())


class ListView(_View, Generic[T]):
    """Elements in the order in which they were added, in ``state`` or in memory.

    There is no ``remove``: it would read and rewrite the whole list. Two views are equal if their elements are, which
    reads all of them.

    >>> view = ListView()
    >>> view.add_all(["a", "b"])
    >>> list(view)
    ['a', 'b']
    """

    __slots__ = ()

    def __init__(
        self, state: ListState[T] | BroadcastList[T] | BroadcastState[int, T] | MemoryList[T] | None = None
    ) -> None:
        """``state``: the state with the elements (for namespaced state, ``state.at(namespace)``; a BroadcastState with
        keys of ``int`` stores them by index); None: in memory."""
        if isinstance(state, BroadcastState):
            state = BroadcastList(state)
        self._state: ListState[T] | BroadcastList[T] | MemoryList[T] = _backing(
            self, state, (ListState, BroadcastList, MemoryList), MemoryList
        )

    def get(self) -> Iterator[T]:
        """All elements as they are now, in order."""
        return self._state.get()

    def async_get(self) -> StateFuture[StateIterator[T]]:
        """A future of an iterator over all elements as they are now, in order."""
        return self._state.async_get()

    def add(self, element: T) -> None:
        """Append. Raises StateAccessError for None."""
        self._state.add(element)

    def async_add(self, element: T) -> StateFuture[None]:
        """``add``; every later operation sees it."""
        return self._state.async_add(element)

    def add_all(self, elements: Iterable[T]) -> None:
        """Append all, or none if one is refused."""
        self._state.add_all(elements)

    def async_add_all(self, elements: Iterable[T]) -> StateFuture[None]:
        """``add_all``; every later operation sees it."""
        return self._state.async_add_all(elements)

    def __iter__(self) -> Iterator[T]:
        return self.get()

    def _content(self) -> list[Any]:
        return list(self)


class MapView(_View, DictProtocol[K, V]):
    """Entries by key, in ``state`` or in memory; usable like a dict (see ``DictProtocol``).

    In memory, too, entries are in the order of their keys, which must be comparable with each other. Two views are
    equal if their entries are, which reads all of them.

    >>> view = MapView()
    >>> view["b"] = 1
    >>> view.put_all({"a": 2})
    >>> list(view.items()), view["c"], "c" in view
    ([('a', 2), ('b', 1)], None, False)
    """

    __slots__ = ()

    def __init__(self, state: MapState[K, V] | BroadcastState[K, V] | MemoryMap[K, V] | None = None) -> None:
        """``state``: the state with the entries (for namespaced state, ``state.at(namespace)``); None: in memory."""
        self._state: MapState[K, V] | BroadcastState[K, V] | MemoryMap[K, V] = _backing(
            self, state, (MapState, BroadcastState, MemoryMap), MemoryMap
        )

    def get(self, key: K) -> V | None:
        """The value under ``key``, or None."""
        return self._state.get(key)

    def async_get(self, key: K) -> StateFuture[V | None]:
        """A future of ``get``, as it is now."""
        return self._state.async_get(key)

    def contains(self, key: K) -> bool:
        """True when there is a value under ``key``."""
        return self._state.contains(key)

    def async_contains(self, key: K) -> StateFuture[bool]:
        """A future of ``contains``, as it is now."""
        return self._state.async_contains(key)

    def put(self, key: K, value: V) -> None:
        """Store ``value``. Raises StateAccessError for None."""
        self._state.put(key, value)

    def async_put(self, key: K, value: V) -> StateFuture[None]:
        """``put``; every later read sees it."""
        return self._state.async_put(key, value)

    def put_all(self, entries: Mapping[K, V] | DictProtocol[K, V] | Iterable[tuple[K, V]]) -> None:
        """``put`` each entry; none is stored if one is refused."""
        self._state.put_all(_pairs(entries))

    def async_put_all(
        self, entries: Mapping[K, V] | DictProtocol[K, V] | Iterable[tuple[K, V]]
    ) -> StateFuture[None]:
        """``put_all``; every later read sees it."""
        return self._state.async_put_all(_pairs(entries))

    def remove(self, key: K) -> None:
        """Remove the entry of ``key``; nothing happens if there is none."""
        self._state.remove(key)

    def async_remove(self, key: K) -> StateFuture[None]:
        """``remove``; every later read sees it."""
        return self._state.async_remove(key)

    def entries(self) -> Iterator[tuple[K, V]]:
        """All (key, value) as they are now, in the order of the keys."""
        return self._state.entries()

    def async_entries(self) -> StateFuture[StateIterator[tuple[K, V]]]:
        """A future of an iterator over ``entries``."""
        return self._state.async_entries()

    def async_items(self) -> StateFuture[StateIterator[tuple[K, V]]]:
        """A future of an iterator over ``items``."""
        return self._state.async_entries()

    def keys(self) -> Iterator[K]:
        """All keys as they are now, in order."""
        return self._state.keys()

    def async_keys(self) -> StateFuture[StateIterator[K]]:
        """A future of an iterator over ``keys``."""
        return self._state.async_keys()

    def values(self) -> Iterator[V]:
        """All values as they are now, in the order of their keys."""
        return self._state.values()

    def async_values(self) -> StateFuture[StateIterator[V]]:
        """A future of an iterator over ``values``."""
        return self._state.async_values()

    def is_empty(self) -> bool:
        """True when there is no entry."""
        return self._state.is_empty()

    def async_is_empty(self) -> StateFuture[bool]:
        """A future of ``is_empty``, as it is now."""
        return self._state.async_is_empty()

    def _content(self) -> list[Any]:
        return list(self.entries())

    def _as_text(self) -> str:
        return repr(dict(self.entries()))


def _backing(view: object, state: Any, kinds: tuple[type, ...], in_memory: type) -> Any:
    if state is None:
        return in_memory()
    if not isinstance(state, kinds):
        names = " or ".join(kind.__name__ for kind in kinds if kind is not in_memory)
        raise StateAccessError(
            f"a {type(view).__name__} wraps a {names}, not {state!r}; leave the argument out for a view in memory"
        )
    return state


def _pairs(entries: Any) -> Any:
    return entries.items() if isinstance(entries, DictProtocol) else entries
