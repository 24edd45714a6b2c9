"""MapState: entries by user key, one store entry each.

Owns: ``MapState`` and the cursor of its iterations.
Invariant: entries are in the order of the encoded user keys, and an iteration returns the map as of its request; a
value is never None.
Must not import storage, execution or operators.

Source: FLIP-424's ``MapState``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NoReturn, TypeVar

from asyncstate.codec import prefix_end
from asyncstate.errors import StateAccessError
from asyncstate.futures import StateFuture, StateIterator, completed_future
from asyncstate.state.immediate import ImmediateWrites
from asyncstate.state.keyed.cursors import PageCursor, live_cursors
from asyncstate.state.keyed.decoded_cache import UNKNOWN, DecodedCache
from asyncstate.state.keyed.state_context import KeyedState, StateContext, with_default
from asyncstate.state.ranges import range_pages
from asyncstate.state_backend import Page

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")

_AFTER: Final = b"\x00"  # appended to a key: the smallest key after it

DecodePage = Callable[[Page, int], list[Any]]


class MapState(KeyedState, ImmediateWrites[K, V]):
    """Entries of the current key; also usable like a dict.

    Iterations load ``page_size`` entries at a time; writing during one is safe.
    """

    __slots__ = ("_cursors", "_encode_key", "_known", "_or_none", "_plain_key")

    # An entry is cached by the record's key and the user key. None where ``_cache`` is.
    _known: Callable[[Any, Any], Any] | None

    def __init__(self, binding: StateContext, suffix: bytes | None) -> None:
        super().__init__(binding, suffix)
        self._encode_key = binding.encode_key
        self._cursors = binding.cursors
        self._or_none = with_default(binding.decode_value, None)
        self._plain_key: Any = binding.plain_key
        self._known = None if binding.cache is None else binding.cache.values.get

    # -- one entry ----------------------------------------------------------------------------------

    def get(self, key: K) -> V | None:
        """The value under ``key``, or None."""
        known = self._known
        if known is None:
            raw = self._get(self._entry(key))
            return None if raw is None else self._decode(raw)
        known_as = self._known_as(key)
        value: Any = known(known_as, UNKNOWN)
        cache: Any = self._cache
        if value is UNKNOWN:
            return cache.load(known_as, self._entry(key))  # type: ignore[no-any-return]
        cache.hits += 1
        return value  # type: ignore[no-any-return]

    def async_get(self, key: K) -> StateFuture[V | None]:
        """A future of the value under ``key`` as it is now, or of None."""
        known = self._known
        if known is None:
            return self._async_get(self._entry(key), self._or_none)
        known_as = self._known_as(key)
        value: Any = known(known_as, UNKNOWN)
        cache: Any = self._cache
        if value is UNKNOWN:
            return cache.async_load(known_as, self._entry(key))  # type: ignore[no-any-return]
        cache.hits += 1
        return completed_future(value)

    def contains(self, key: K) -> bool:
        """True when there is a value under ``key``."""
        return (self._get(self._entry(key)) if self._cache is None else self.get(key)) is not None

    def async_contains(self, key: K) -> StateFuture[bool]:
        """A future of ``contains``, as it is now."""
        if self._cache is None:
            return self._async_get(self._entry(key), is_there)
        return self.async_get(key).then_apply(is_there)

    def put(self, key: K, value: V) -> None:
        """Store ``value``. StateAccessError for None, CodecError for what is not of the declared types."""
        cache = self._cache
        if cache is not None:
            known_as = self._known_as(key)
            # During an iteration no write is held.
            if known_as in cache.held and type(value) is cache.type and cache.fits(value):
                cache.values[known_as] = value
                return
            self._write(cache, known_as, key, value)
            return
        entry = self._entry(key)
        if value is None:
            self._refuse_none(key)
        encoded = self._encode(value)
        if self._cursors:
            self._preserve(entry)
        self._put(entry, encoded)

    def put_all(self, entries: Mapping[K, V] | Iterable[tuple[K, V]]) -> None:
        """``put`` each entry; none is stored if one is refused."""
        cache = self._cache
        encoded = []
        for key, value in entries.items() if isinstance(entries, Mapping) else entries:
            if value is None:
                self._refuse_none(key)
            encoded.append((key, self._entry(key), self._encode(value), value))
        for key, entry, raw, value in encoded:
            if self._cursors:
                self._preserve(entry)
            if cache is None:
                self._put(entry, raw)
            else:
                cache.put(self._known_as(key), entry, raw, value)

    def remove(self, key: K) -> None:
        """Remove the entry of ``key``; nothing happens if there is none."""
        cache = self._cache
        entry = self._entry(key)
        if self._cursors:
            self._preserve(entry)
        if cache is None:
            self._delete(entry)
        elif self._cursors:
            cache.drop(self._known_as(key))
            self._delete(entry)
        else:
            cache.write(self._known_as(key), entry, None)

    # -- all entries --------------------------------------------------------------------------------

    def entries(self) -> Iterator[tuple[K, V]]:
        """All (key, value) as they are now, by encoded key."""
        return self._iterate(self._decode_entries)

    def keys(self) -> Iterator[K]:
        """All keys as they are now, by encoded key."""
        return self._iterate(self._decode_keys)

    def values(self) -> Iterator[V]:
        """All values as they are now, by encoded key."""
        return self._iterate(self._decode_values)

    def async_entries(self) -> StateFuture[StateIterator[tuple[K, V]]]:
        """A future of an iterator over all (key, value) as they are now, by encoded key."""
        return self._async_iterate(self._decode_entries)

    def async_items(self) -> StateFuture[StateIterator[tuple[K, V]]]:
        """``async_entries`` under the name it has in a dict."""
        return self.async_entries()

    def async_keys(self) -> StateFuture[StateIterator[K]]:
        """A future of an iterator over all keys as they are now, by encoded key."""
        return self._async_iterate(self._decode_keys)

    def async_values(self) -> StateFuture[StateIterator[V]]:
        """A future of an iterator over all values as they are now, by encoded key."""
        return self._async_iterate(self._decode_values)

    def is_empty(self) -> bool:
        """True when the map has no entry. Renews nothing."""
        if self._expiry is not None:
            return next(self._iterate(self._shown), None) is None
        prefix = self._prefix()
        return not self._sink.scan(prefix, prefix_end(prefix), 1)

    def async_is_empty(self) -> StateFuture[bool]:
        """A future of ``is_empty``, as it is now."""
        binding = self._binding
        size = 1 if self._expiry is None else binding.page_size
        first = _MapCursor(binding, self._prefix(), self._shown, blocking=False, page_size=size)
        return first.load().then_apply(StateIterator.is_empty)

    def clear(self) -> None:
        """Remove all entries."""
        # The entries to delete must be determined before the record's next write, so ``async_clear`` cannot wait.
        prefix = self._prefix()
        for page in range_pages(self._sink, prefix, prefix_end(prefix), self._binding.page_size):
            for entry, raw in page:
                if self._cursors:
                    self._preserve(entry, raw)
                self._delete(entry)
            self._removed(page, len(prefix))

    # -- the rest -----------------------------------------------------------------------------------

    def _entry(self, key: K) -> bytes:
        context: Any = self._sink.current
        try:
            prefix = context.group + self._id + context.encoded_key + self._suffix
        except (AttributeError, TypeError):
            raise self._misuse() from None
        return prefix + self._encode_key((key,))  # type: ignore[no-any-return]

    def _iterate(self, decode: DecodePage) -> Iterator[Any]:
        prefix = self._prefix()
        binding = self._binding
        page = self._sink.scan(prefix, prefix_end(prefix), binding.page_size)
        if len(page) < binding.page_size:
            return iter(decode(page, len(prefix)))
        cursor = _MapCursor(binding, prefix, decode, blocking=True, page_size=binding.page_size)
        return iter(cursor._arrived(page).get())

    def _async_iterate(self, decode: DecodePage) -> StateFuture[StateIterator[Any]]:
        binding = self._binding
        return _MapCursor(binding, self._prefix(), decode, blocking=False, page_size=binding.page_size).load()

    def _decode_entries(self, page: Page, offset: int) -> list[tuple[K, V]]:
        binding = self._binding
        page = self._read(page)
        keys = binding.decode_keys([key for key, _ in page], offset)
        return list(zip(keys, binding.decode_values([value for _, value in page]), strict=True))

    def _decode_keys(self, page: Page, offset: int) -> list[K]:
        return self._binding.decode_keys([key for key, _ in self._read(page)], offset)  # type: ignore[no-any-return]

    def _decode_values(self, page: Page, offset: int) -> list[V]:
        return self._binding.decode_values([value for _, value in self._read(page)])  # type: ignore[no-any-return]

    def _read(self, page: Page) -> Page:
        """The entries of a stored page that reads return, without stamps."""
        return page if self._expiry is None else self._expiry.unexpired_page(page)

    def _shown(self, page: Page, _: int) -> Page:
        """The same as they are stored."""
        return page if self._expiry is None else [entry for entry in page if self._expiry.shows(entry[1])]

    # -- the decoded cache ------------------------------------------------------------------------------

    def _known_as(self, key: Any) -> tuple[bytes, Any]:
        """The cache key of an entry. A user key of another type that can be stored is used in the form that a read
        gives."""
        context: Any = self._sink.current
        try:
            own = context.encoded_key + self._suffix
        except (AttributeError, TypeError):
            raise self._misuse() from None
        if type(key) is self._plain_key:
            return own, key
        (decoded,), _ = self._binding.decode_key(self._entry(key), len(self._prefix()))
        return own, decoded

    def _write(self, cache: DecodedCache, known_as: tuple[bytes, Any], key: K, value: V) -> None:
        if cache.asked == known_as:
            known_as, entry = cache.asked, cache.asked_as  # the same objects as in the cache take less memory
        else:
            entry = self._entry(key)  # errors of the key come first
        if value is None:
            self._refuse_none(key)
        if not self._cursors:
            cache.write(known_as, entry, value)
            return
        raw = self._encode(value)
        self._preserve(entry)
        cache.put(known_as, entry, raw, value)

    def _removed(self, page: Page, offset: int) -> None:
        """Drop the removed entries of ``page`` from the cache."""
        cache = self._cache
        if cache is not None:
            own = self._own_key()
            for key in self._binding.decode_keys([key for key, _ in page], offset):
                cache.drop((own, key))

    def _preserve(self, entry: bytes, raw: bytes | None = None) -> None:
        """Preserve the stored value of ``entry`` for the iterations that have not reached it."""
        own = live_cursors(self._cursors, self._prefix())
        cursors = [cursor for cursor in own if cursor.awaits(entry)]
        if cursors:
            before = self._sink.get(entry) if raw is None else raw
            for cursor in cursors:
                cursor.preserved[entry] = before

    def _refuse_none(self, key: K) -> NoReturn:
        raise StateAccessError(
            f"{self._binding.label}: a map value cannot be None (user key {key!r}); use remove() to delete the entry, "
            "or skip put()"
        )


class _MapCursor(PageCursor[Page, Any]):
    """Entries after ``position``; ``preserved`` has the earlier values of those that were written since."""

    __slots__ = (
        "_binding",
        "_decode",
        "_end",
        "_full",
        "_offset",
        "_page_size",
        "_position",
        "preserved",
    )

    def __init__(
        self, binding: StateContext, prefix: bytes, decode: DecodePage, blocking: bool, page_size: int
    ) -> None:
        super().__init__(binding.cursors, prefix, blocking)
        self._binding = binding
        self._offset = len(prefix)
        self._end = prefix_end(prefix)
        self._decode = decode
        self._page_size = page_size
        self._position = prefix
        self._full = True
        self.preserved: dict[bytes, bytes | None] = {}

    def awaits(self, entry: bytes) -> bool:
        """True when the iteration has not reached ``entry`` and has not preserved it."""
        return entry >= self._position and entry < self._end and entry not in self.preserved

    def _ask(self) -> StateFuture[Page]:
        sink, limit = self._binding.sink, self._page_size
        if self._blocking:
            return completed_future(sink.scan(self._position, self._end, limit))
        return sink.async_scan(self._position, self._end, limit)

    def _entries(self, page: Page) -> list[Any]:
        self._full = len(page) == self._page_size
        beyond = page[-1][0] + _AFTER if self._full else self._end
        if self.preserved:
            page = self._as_it_was(page, beyond)
        self._position = beyond
        return self._decode(page, self._offset)

    def _as_it_was(self, page: Page, beyond: bytes) -> Page:
        entries: dict[bytes, bytes | None] = dict(page)
        for key in [key for key in self.preserved if key < beyond]:
            entries[key] = self.preserved.pop(key)
        return [(key, entries[key]) for key in sorted(entries) if entries[key] is not None]  # type: ignore[misc]

    @property
    def _exhausted(self) -> bool:
        return not self._full


def is_there(value: Any) -> bool:
    return value is not None
