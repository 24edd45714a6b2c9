"""Map views of many keys at once: entries are prefetched in one list get, and a bundle's writes are flushed together.

Owns: ``MapViews``: one map per key of a bundle, over one column map state.
Invariant: that of ``bundle_views``. Beyond ``HELD_ENTRIES`` of a bundle, writes are flushed early and read entries are
evicted, for the keys that were used first before others; never during an iteration, which returns the entries as of its
start.
Must not import storage, execution or operators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa

from asyncstate.codec import KeyBatch
from asyncstate.codec.times import python_values
from asyncstate.futures import StateFuture, completed_void_future
from asyncstate.state.columnar.column_maps import ColumnMapState, ColumnMapStateDescriptor
from asyncstate.state.views.bundle_views import BundleViews, exact_type
from asyncstate.state.views.in_memory import MemoryMap, user_key
from asyncstate.state.views.views import MapView

HELD_ENTRIES: Final = 1 << 20
"""Maximum entries of a map view in memory, over all keys of a bundle, before eviction."""

_ABSENT: Final = object()


class MapViews(BundleViews["_BundleMap"]):
    """``MapView`` fields: entries by key and user key."""

    state: ColumnMapState
    iterations = 0
    _entries = 0  # read or written in this bundle

    def _descriptor(self, name: str, time_first: bool) -> ColumnMapStateDescriptor:
        key = pa.schema([pa.field("key", self.type.key_type)])
        return ColumnMapStateDescriptor(
            name, key, pa.schema([pa.field("value", self.type.item_type)]), time_first=time_first
        )

    def _new(self, key: int) -> _BundleMap:
        return _BundleMap(self, key)

    @cached_property
    def key_type(self) -> type | None:
        """The Python type whose values are the same user key exactly if they are equal; None if there is none."""
        exact = exact_type(self.type.key_type)
        return None if exact is float else exact

    @cached_property
    def value_type(self) -> type | None:
        """The Python type whose values are read exactly as written; None if there is none."""
        return exact_type(self.type.item_type)

    @cached_property
    def key_as_read(self) -> Callable[[int, Any], Any]:
        """See ``reader``, for user keys."""
        return self.reader(self.type.key_type)

    @cached_property
    def value_as_read(self) -> Callable[[int, Any], Any]:
        """See ``reader``, for values."""
        return self.reader(self.type.item_type)

    def begin(self, keys: KeyBatch) -> None:
        super().begin(keys)
        self._entries = 0

    def async_read(self, columns: Sequence[pa.Array], index: np.ndarray) -> StateFuture[None]:
        """Prefetch the entries whose user keys are arguments of the views' key type: one list get per such column."""
        named = [column for column in columns if column.type == self.type.key_type]
        if not named or self.keys is None:
            return completed_void_future()
        pairs = self.keys.with_user_keys(
            [pa.concat_arrays(named) if len(named) > 1 else named[0]], np.tile(index, len(named))
        )

        def keep(stored: Any) -> None:
            self.ahead.add(len(pairs))
            users, values = python_values(pairs.user_columns[0]), python_values(stored.columns[0])
            rows = zip(pairs.key_index.tolist(), users, values, stored.present.tolist(), strict=True)
            for key, user, value, present in rows:
                self._backing(key).keep(user, value if present else _ABSENT)

        return self.state.async_get(pairs).then_accept(keep)

    def _view(self, key: int, new: bool, given: Any) -> MapView[Any, Any]:
        backing = self._backing(key)
        if new:
            self._entries -= backing.forget()  # prefetched entries may belong to an expired key
            backing.whole = True
            for name, value in given.entries() if given is not None else ():
                backing.put(name, value)
        return MapView(backing)

    def _replace(self, backing: _BundleMap, view: MapView[Any, Any]) -> None:
        backing.clear()
        backing.put_all(view.entries())

    def read(self, key: int, user: Any) -> Any:
        """Read one entry; ``_ABSENT`` if there is none."""
        self.alone.add()
        pair = self.one(key).with_user_keys(
            [self.column([user], self.type.key_type, [key])], np.zeros(1, np.int64)
        )
        found = self.state.get(pair)
        return python_values(found.columns[0])[0] if found.present[0] else _ABSENT

    def pages(self, key: int) -> Iterator[list[tuple[Any, Any]]]:
        """All stored entries of a key, in the order of their user keys."""
        for page in self.state.entries(self.one(key)):
            self.alone.add()
            users, values = python_values(page.user_columns[0]), python_values(page.columns[0])
            yield list(zip(users, values, strict=True))

    def grown(self, backing: _BundleMap) -> None:
        """Count one more entry in memory; evict beyond the bound, but not during an iteration."""
        self._entries += 1
        if self._entries <= HELD_ENTRIES or self.iterations:
            return
        self.flush()
        for other in self._held.values():  # the first used are evicted first, this one last
            if other is not backing and self._entries > HELD_ENTRIES // 2:
                self._entries -= other.forget()
        if self._entries > HELD_ENTRIES:
            self._entries -= backing.forget()

    def flush(self) -> None:
        """See ``BundleViews``: clears first, then all entries in one write."""
        held = sorted(self._held.items())
        cleared = [key for key, backing in held if backing.cleared]
        if cleared:
            self.state.remove_all(self.some(cleared))
        written = [(key, *entry) for key, backing in held for entry in backing.taken()]
        if not written:
            return
        self.written.add(len(written))
        keys = [key for key, _, _ in written]
        users = self.column([user for _, user, _ in written], self.type.key_type, keys)
        assert self.keys is not None
        pairs = self.keys.with_user_keys([users], np.array(keys, np.int64))
        place = np.empty(len(written), np.int64)
        place[pairs.inverse] = np.arange(len(written))  # each pair is written once
        values = [written[at][2] for at in place.tolist()]
        there = np.array([value is not _ABSENT for value in values], np.bool_)
        given = [None if value is _ABSENT else value for value in values]
        column = self.column(given, self.type.item_type, [keys[at] for at in place.tolist()])
        self.state.write(pairs, [column], there)

    def remove(self, keys: KeyBatch) -> None:
        self.state.remove_all(keys)


class _BundleMap(MemoryMap[Any, Any]):
    """The map of one key: cached entries in memory, the rest in state."""

    __slots__ = ("_absent", "_key", "_key_type", "_value_type", "_views", "_written", "cleared", "whole")

    def __init__(self, views: MapViews, key: int) -> None:
        super().__init__()
        self._views = views
        self._key = key
        self._key_type = views.key_type
        self._value_type = views.value_type
        self._absent: set[Any] = set()
        self._written: set[Any] = set()
        self.cleared = False
        self.whole = False
        """Whether all entries are in memory."""

    def keep(self, key: Any, value: Any) -> None:
        """Cache an entry that was read."""
        key = user_key(key)
        if value is _ABSENT:
            self._absent.add(key)
        else:
            self._entries[key] = value
        self._views.grown(self)

    def _user_key(self, key: Any) -> Any:
        """``key`` in the form that reads give."""
        if type(key) is self._key_type:
            return key
        return user_key(self._views.key_as_read(self._key, key))

    def get(self, key: Any) -> Any:
        key = self._user_key(key)
        value = self._entries.get(key)
        if value is not None or self.whole or key in self._absent:
            self._views.kept.add()
            return value
        found = self._views.read(self._key, key)
        self.keep(key, found)
        return None if found is _ABSENT else found

    def contains(self, key: Any) -> bool:
        return self.get(key) is not None

    def put(self, key: Any, value: Any) -> None:
        key = self._user_key(key)
        known = key in self._entries
        if type(value) is not self._value_type:
            value = self._views.value_as_read(self._key, value)
        super().put(key, value)
        self._absent.discard(key)
        self._written.add(key)
        if not known:
            self._views.grown(self)

    def put_all(self, entries: Any) -> None:
        pairs = list(entries.items() if hasattr(entries, "items") else entries)
        MemoryMap().put_all(pairs)  # raises for an invalid entry before any is put
        for key, value in pairs:
            self.put(key, value)

    def remove(self, key: Any) -> None:
        key = self._user_key(key)
        self._entries.pop(key, None)
        self._absent.add(key)
        self._written.add(key)

    def clear(self) -> None:
        super().clear()
        self._absent.clear()
        self._written.clear()
        self.cleared = self.whole = True

    def is_empty(self) -> bool:
        if self._entries or self.whole:
            return not self._entries
        return next(iter(self.entries()), None) is None

    def entries(self) -> Iterator[Any]:
        if self.whole:
            return super().entries()
        if self._views.iterations:  # until those end nothing may be written
            return iter(self._merged())
        self._views.flush()
        return _Iteration(self._views, self._views.pages(self._key))

    def _merged(self) -> list[tuple[Any, Any]]:
        """All entries: the stored ones, changed as those in memory are."""
        found: MemoryMap[Any, Any] = MemoryMap()
        found.__setstate__(dict(entry for page in self._views.pages(self._key) for entry in page))
        for key in self._written:
            if (value := self._entries.get(key)) is None:
                found.remove(key)
            else:
                found.put(key, value)
        return list(found.entries())

    def taken(self) -> list[tuple[Any, Any]]:
        """The entries to write; they then count as stored."""
        written = [(key, self._entries.get(key, _ABSENT)) for key in self._written]
        self._written.clear()
        self.cleared = False
        return written

    def forget(self) -> int:
        """Evict the stored entries; the number of them."""
        count = len(self._entries) + len(self._absent)
        self._entries, self._absent, self.whole = {}, set(), False
        return count


class _Iteration(Iterator[Any]):
    """An iteration over stored pages; while it is open nothing is written to the state."""

    def __init__(self, views: MapViews, pages: Iterator[list[tuple[Any, Any]]]) -> None:
        self._views: MapViews | None = views
        self._entries = (entry for page in pages for entry in page)
        views.iterations += 1

    def __next__(self) -> Any:
        try:
            return next(self._entries)
        except StopIteration:
            self._end()
            raise

    def _end(self) -> None:
        if self._views is not None:
            self._views.iterations -= 1
            self._views = None

    def __del__(self) -> None:
        self._end()
