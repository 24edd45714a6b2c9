"""Views of many keys at once: a bundle's reads are prefetched in one list get, its writes are flushed together.

Owns: ``BundleViews``, ``ListViews`` and ``ValueViews``: one view per key of a bundle, over one column state.
Invariant: within a bundle a view applies operations in order, as one in memory does; at its end all changes are in the
state. Only requested data is read, and once, as long as it is cached. A written value reads the same before and after
the bundle ends: bundle boundaries change no value.
Must not import storage, execution or operators.

Cache, per view: entries that were read or written stay in memory until the bundle ends. Writes are flushed together: a
clear before the rest. Maps have a bound (see ``bundle_maps``).

Source: the DataViews and the cache strategy of FLIP-139.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa

from asyncstate.codec import KeyBatch, plain_values
from asyncstate.codec.from_python import UnfitValueError, arrow_values
from asyncstate.codec.read_form import reads_as_given
from asyncstate.codec.times import python_values
from asyncstate.errors import OperatorError
from asyncstate.futures import StateFuture, completed_void_future
from asyncstate.operator import OperatorContext, StateDescriptor
from asyncstate.state.columnar.list_columns import ListColumnState, ListColumnStateDescriptor
from asyncstate.state.columnar.state_columns import ColumnState, ColumnStateDescriptor
from asyncstate.state.views.in_memory import MemoryList, MemoryValue
from asyncstate.state.views.turns import ended
from asyncstate.state.views.views import ListView, ValueView

B = TypeVar("B")


class BundleViews(ABC, Generic[B]):
    """One view field of an accumulator: a view per key of the current bundle."""

    state: Any

    def __init__(
        self,
        name: str,
        state_name: str,
        arrow_type: pa.DataType,
        context: OperatorContext,
        time_first: bool,
        owner: str,
    ) -> None:
        self._name = name
        self._owner = owner
        self.type = arrow_type
        # Counts of prefetched entries, single reads, cache hits and written entries.
        self.ahead, self.alone, self.kept, self.written = (
            context.counter(f"view_{name}") for name in ("reads_ahead", "reads_alone", "reads_kept", "writes")
        )
        self.state = context.get_state(self._descriptor(state_name, time_first))
        self.keys: KeyBatch | None = None
        """The keys (u) of the current bundle; None before the first one."""
        self._held: dict[int, B] = {}
        self._attached: dict[int, Any] = {}
        self._made: list[tuple[Any, list[Any]]] = []

    @abstractmethod
    def _descriptor(self, name: str, time_first: bool) -> StateDescriptor[Any]:
        """Declares the state."""

    @abstractmethod
    def _new(self, key: int) -> B:
        """A new backing object for the view of a key."""

    def _backing(self, key: int) -> B:
        backing = self._held.get(key)
        if backing is None:
            backing = self._held[key] = self._new(key)
        return backing

    def _stored(self, key: int) -> list[Any]:
        """All stored data of a key, in a read of its own."""
        self.alone.add()
        return python_values(self.state.get(self.one(key)).columns[0])

    def begin(self, keys: KeyBatch) -> None:
        """Begin the next bundle, of ``keys`` (u)."""
        ended(self._attached.values())
        self.keys = keys
        self._held = {}
        self._attached = {}
        self._made = []

    def async_read(self, columns: Sequence[pa.Array], index: np.ndarray) -> StateFuture[None]:
        """Prefetch what rows (n) with these arguments, of the keys ``index`` (n), may read."""
        return completed_void_future()

    def view(self, key: int, new: bool, given: Any) -> Any:
        """The view of a key, by its index. ``new``: it ignores all stored or cached data, and begins with ``given`` (or
        empty)."""
        view = self._attached[key] = self._view(key, new, given)
        return view

    @abstractmethod
    def _view(self, key: int, new: bool, given: Any) -> Any:
        """Create the view of a key; see ``view``."""

    def made(self, view: Any) -> None:
        """Register a view that ``create_accumulator`` has made: it must not change afterwards."""
        self._made.append((view, view._content()))

    def settle(self, views: Iterable[tuple[int, Any]]) -> None:
        """Take over views with which the function has replaced those it was given, each as (index of its key, view).

        Raises OperatorError for a replacement that is not a new view of the same kind for this key alone, and for
        writes to the view that ``create_accumulator`` made instead of the one in the accumulator.
        """
        seen: dict[int, int] = {}
        for key, view in views:
            attached = self._attached.get(key)
            if view is attached or attached is None:
                continue
            if (
                type(view) is not type(attached)
                or not view.in_memory
                or seen.setdefault(id(view), key) != key
            ):
                raise self._misused(key, f"was replaced by {view!r}", "clear() it, or assign a new view")
            self._replace(self._backing(key), view)
        if any(made._content() != content for made, content in self._made):
            raise OperatorError(
                f"{self._owner}: a view that create_accumulator made for '{self._name}' was changed later, which "
                "would be lost; take the view from the accumulator in every call"
            )

    @abstractmethod
    def _replace(self, backing: B, view: Any) -> None:
        """Replace all contents with those of ``view``."""

    def _misused(self, key: int, how: str, advice: str) -> OperatorError:
        return OperatorError(
            f"{self._owner}, key {self._key_values(key)!r}: view '{self._name}' {how}; {advice}"
        )

    def _key_values(self, key: int) -> tuple[Any, ...]:
        return tuple(python_values(column)[0] for column in self.one(key).columns)

    @abstractmethod
    def flush(self) -> None:
        """Write what the bundle has changed."""

    def remove(self, keys: KeyBatch) -> None:
        """Remove the stored data of ``keys``: keys that the bundle has finished, or has not made new views of yet."""
        self.state.remove(keys)

    def expire_with(self, state: ColumnState) -> None:
        """Remove the views when the rows of the same keys in ``state`` expire."""
        state.cascade_expiry(self.state)

    def one(self, key: int) -> KeyBatch:
        """A key batch of one key of the bundle."""
        return self.some([key])

    def some(self, keys: Sequence[int]) -> KeyBatch:
        """A key batch of some keys of the bundle, ascending."""
        assert self.keys is not None
        return self.keys.select(np.array(keys, np.int64))

    def column(self, values: Sequence[Any], arrow_type: pa.DataType, keys: Sequence[int]) -> pa.Array:
        """Values (n) of the keys with the indices ``keys`` (n), as they are stored. Raises OperatorError for a value
        that does not fit."""
        try:
            return arrow_values(values, arrow_type)
        except UnfitValueError as error:
            how = f"was given {error}"
            raise self._misused(keys[error.row], how, "convert it before you store it") from error

    def reader(self, arrow_type: pa.DataType) -> Callable[[int, Any], Any]:
        """``as_read(key, value)``: what later bundles read after ``value`` is written to the view of the key with this
        index. OperatorError for a value that does not fit."""
        exact = exact_type(arrow_type)

        def as_read(key: int, value: Any) -> Any:
            if value is None or type(value) is exact or reads_as_given([value], arrow_type):
                return value
            return python_values(self.column([value], arrow_type, [key]))[0]

        return as_read


def exact_type(arrow_type: pa.DataType) -> type | None:
    """The Python type whose values are all read exactly as written; None if there is none: float32 rounds, decimals get
    the scale of the type, and of nested values the parts count, too."""
    plain = plain_values(arrow_type)
    return plain.type if plain is not None and plain.kept else None


# -- lists ----------------------------------------------------------------------------------------------


class ListViews(BundleViews["_BundleList"]):
    """``ListView`` fields: adding reads nothing from the store."""

    state: ListColumnState

    @cached_property
    def _as_read(self) -> Callable[[int, Any], Any]:
        return self.reader(self.type.value_type)

    def _descriptor(self, name: str, time_first: bool) -> ListColumnStateDescriptor:
        schema = pa.schema([pa.field("element", self.type.value_type)])
        return ListColumnStateDescriptor(name, schema, time_first=time_first)

    def _new(self, key: int) -> _BundleList:
        return _BundleList(lambda: self._stored(key), partial(self._as_read, key))

    def _view(self, key: int, new: bool, given: Any) -> ListView[Any]:
        backing = self._backing(key)
        if new:
            backing.known()
            backing.add_all(list(given) if given is not None else ())
        return ListView(backing)

    def _replace(self, backing: _BundleList, view: ListView[Any]) -> None:
        backing.clear()
        backing.add_all(view)

    def flush(self) -> None:
        held = sorted(self._held.items())
        replaced = [(key, backing) for key, backing in held if backing.replaced]
        self._write(replaced, self.state.put)
        self._write([(key, one) for key, one in held if one.added and not one.replaced], self.state.append)
        self._held = {}

    def _write(self, held: list[tuple[int, _BundleList]], write: Callable[..., None]) -> None:
        if not held:
            return
        counts = [len(backing.added) for _, backing in held]
        self.written.add(sum(counts))
        keys = [key for key, _ in held]
        elements = self.column(
            [element for _, backing in held for element in backing.added],
            self.type.value_type,
            np.repeat(keys, counts).tolist(),
        )
        write(self.some(keys), [elements], np.repeat(np.arange(len(held)), counts))


class _BundleList(MemoryList[Any]):
    """The list of one key: added elements, and those read before them."""

    __slots__ = ("_as_read", "_load", "_read", "replaced")

    def __init__(self, load: Callable[[], list[Any]], as_read: Callable[[Any], Any]) -> None:
        super().__init__()
        self._load = load
        self._as_read = as_read
        self._read: list[Any] | None = None
        self.replaced = False
        """Whether the stored elements are to be removed."""

    @property
    def added(self) -> list[Any]:
        return self._elements

    def known(self) -> None:
        """Record that nothing is stored."""
        self._read = []

    def get(self) -> Iterator[Any]:
        if self._read is None:
            self._read = self._load()
        return iter([*self._read, *self._elements])

    def add(self, element: Any) -> None:
        super().add(self._as_read(element))

    def add_all(self, elements: Iterable[Any]) -> None:
        super().add_all(list(map(self._as_read, elements)))

    def clear(self) -> None:
        super().clear()
        self._read = []
        self.replaced = True


# -- values ---------------------------------------------------------------------------------------------


class ValueViews(BundleViews["_BundleValue"]):
    """``ValueView`` fields: read only on request."""

    state: ColumnState

    @cached_property
    def _as_read(self) -> Callable[[int, Any], Any]:
        return self.reader(self.type)

    def _descriptor(self, name: str, time_first: bool) -> ColumnStateDescriptor:
        return ColumnStateDescriptor(name, pa.schema([pa.field("value", self.type)]), time_first=time_first)

    def _new(self, key: int) -> _BundleValue:
        return _BundleValue(lambda: self._stored(key)[0], partial(self._as_read, key))

    def _view(self, key: int, new: bool, given: Any) -> ValueView[Any]:
        backing = self._backing(key)
        if new:
            backing.known(None)
            if given is not None and not given.is_empty():
                backing.update(given.value())
        return ValueView(backing)

    def _replace(self, backing: _BundleValue, view: ValueView[Any]) -> None:
        backing.update(view.value())

    def flush(self) -> None:
        written = [(key, backing.value()) for key, backing in sorted(self._held.items()) if backing.written]
        self._held = {}
        if not written:
            return
        self.written.add(len(written))
        keys, values = [key for key, _ in written], [value for _, value in written]
        there = np.array([value is not None for value in values], np.bool_)
        self.state.write(self.some(keys), [self.column(values, self.type, keys)], there)


class _BundleValue(MemoryValue[Any]):
    """The value of one key."""

    __slots__ = ("_as_read", "_load", "_read", "written")

    def __init__(self, load: Callable[[], Any], as_read: Callable[[Any], Any]) -> None:
        super().__init__()
        self._load = load
        self._as_read = as_read
        self._read = False
        self.written = False

    def known(self, value: Any) -> None:
        """Record the stored value."""
        self._value, self._read = value, True

    def value(self) -> Any:
        if not self._read:
            self.known(self._load())
        return super().value()

    def update(self, value: Any) -> None:
        self.known(self._as_read(value))
        self.written = True
