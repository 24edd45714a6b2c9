"""Timers, kept with the state.

Owns: the store layout of timers, ``KeyedTimers`` (register and delete for the current key) and the rounds in
which due timers are found and claimed.
Invariant: a timer fires at most once, and which timers a round fires does not depend on how far the callbacks
of other keys have come; so both execution modes fire the same timers in the same order.
Must not import storage, execution or operators.

Layout, behind the two bytes of the key group:

* by time: ``[1][kind][time: 8][key][namespace: 00, or 01 and 8][name]`` -> length of the key (4 bytes)
* named, by key: ``[2][kind][key][namespace][name]`` -> its time (8 bytes)

Replacing or deleting a named timer writes its entry by key without reading it. The entry by time that it had
goes stale; it is recognised when it comes due, because the entry by key does not have that time.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final, NamedTuple

from asyncstate.codec import decode_namespace, encode_namespace, prefix_end
from asyncstate.errors import CodecError, StateAccessError
from asyncstate.operator import MAX_WATERMARK, Timer
from asyncstate.requests import Page, StateSink

TIMERS_BY_TIME: Final = 1
"""Reserved state id."""
NAMED_TIMERS: Final = 2
"""Reserved state id."""

_GROUP_BYTES: Final = 2
_TIME_AT: Final = _GROUP_BYTES + 2  # behind group, state id and kind
_KEY_AT: Final = _TIME_AT + 8
_EVENT_TIME: Final = b"\x00"
_BY_TIME: Final = bytes([TIMERS_BY_TIME]) + _EVENT_TIME
_BY_NAME: Final = bytes([NAMED_TIMERS]) + _EVENT_TIME
_PLAIN: Final = b"\x00"
_NAMESPACED: Final = b"\x01"
_AFTER: Final = b"\x00"
_LENGTH_BYTES: Final = 4
_NONE_DUE: Final = -(2**63) - 1


class DueTimer(NamedTuple):
    """A timer whose time has come. ``time`` is in microseconds, ``group`` and ``key`` as in a KeyContext."""

    time: int
    group: bytes
    key: bytes
    name: str | None
    namespace: int | None
    store_key: bytes

    @property
    def timer(self) -> Timer:
        """What ``on_timer`` gets."""
        return Timer(self.time, self.name, self.namespace)


class KeyedTimers:
    """Timers of the sink's current key; and, for the controller, the rounds in which they fire.

    A round is one pass of ``due``; each timer it gives must be claimed under its key right before its
    callback, and all callbacks must have ended before the next round. Rounds go on until one is empty.
    """

    def __init__(self, sink: StateSink, uid: str | None = None) -> None:
        self._sink = sink
        self._label = "timers" if uid is None else f"timers of operator '{uid}'"
        self._until = _NONE_DUE  # of the round at hand
        self._postponed: set[bytes] = set()  # registered in this round, due in the next
        self._touched: set[bytes] = set()  # entries (by time or by key) deleted or replaced in this round

    # -- for operators --------------------------------------------------------------------------------

    def register_event_time(
        self, time_us: int, name: str | None = None, namespace: int | None = None
    ) -> None:
        """See ``operator.Timers``."""
        group, key = self._current()
        time = self._encoded_time(time_us)
        tail = key + self._place(name, namespace)
        entry = group + _BY_TIME + time + tail
        named = None if name is None else group + _BY_NAME + tail
        if self._until != _NONE_DUE:
            self._note_registration(time_us, time, entry, named)
        self._sink.put(entry, len(key).to_bytes(_LENGTH_BYTES, "big"))
        if named is not None:
            self._sink.put(named, time)

    def delete_event_time(
        self, time_us: int | None = None, name: str | None = None, namespace: int | None = None
    ) -> None:
        """See ``operator.Timers``."""
        if (time_us is None) == (name is None):
            raise StateAccessError(
                f"{self._label}: delete_event_time takes the time of an unnamed timer or the name of a named "
                f"one, got time {time_us!r} and name {name!r}; pass one of the two"
            )
        group, key = self._current()
        tail = key + self._place(name, namespace)
        if time_us is None:
            entry = group + _BY_NAME + tail
        else:
            entry = group + _BY_TIME + self._encoded_time(time_us) + tail
        if self._until != _NONE_DUE:
            self._touched.add(entry)
        self._sink.delete(entry)

    # -- for the controller ---------------------------------------------------------------------------

    def due(self, groups: Iterable[int], until: int, page_size: int) -> Iterator[list[DueTimer]]:
        """One round: pages of timers with time <= ``until``, by (time, group, key, namespace, name).

        Timers registered while the round is under way are left to the next one.
        """
        self._until = until
        self._postponed.clear()
        self._touched.clear()
        for page in _pages(_due_entries(self._sink, groups, until, page_size), page_size):
            timers = _live(self._sink, [entry for entry in page if entry[0] not in self._postponed])
            if timers:
                yield timers

    def claim(self, timer: DueTimer) -> bool:
        """Take the timer out of the store; False if it was deleted or replaced since and must not fire."""
        entry = timer.store_key
        sink = self._sink
        if timer.name is None:
            if entry in self._touched:
                return False
            sink.delete(entry)
            return True
        named = _named_entry(timer)
        if entry in self._postponed:
            return False  # deleted or moved, and registered again for the next round
        sink.delete(entry)
        if named in self._touched and sink.get(named) != encode_namespace(timer.time):
            return False
        sink.delete(named)
        return True

    # -- the rest ---------------------------------------------------------------------------------------

    def _note_registration(self, time_us: int, time: bytes, entry: bytes, named: bytes | None) -> None:
        """Keep apart what this round has to fire and what is registered while it is under way."""
        if time_us <= self._until:
            there = self._sink.get(entry) is not None
            if there and (named is None or self._sink.get(named) == time):
                return  # the same timer, still to fire in this round or in the next
            self._postponed.add(entry)
        if named is not None:
            self._touched.add(named)

    def _current(self) -> tuple[bytes, bytes]:
        context = self._sink.current
        if context is None:
            raise StateAccessError(
                f"{self._label} were used without a current key; use them in process(), in on_timer(), or in "
                "a callback chained to a state future of the record"
            )
        return context.group, context.encoded_key

    def _encoded_time(self, time_us: int) -> bytes:
        try:
            return encode_namespace(time_us)
        except (CodecError, TypeError):
            raise StateAccessError(
                f"{self._label}: {time_us!r} is no time; give int64 microseconds since the epoch"
            ) from None

    def _place(self, name: str | None, namespace: int | None) -> bytes:
        if name == "":
            raise StateAccessError(f"{self._label}: a name is empty; leave it out for an unnamed timer")
        where = _PLAIN if namespace is None else _NAMESPACED + encode_namespace(namespace)
        return where if name is None else where + name.encode()


def _live(sink: StateSink, entries: Page) -> list[DueTimer]:
    """The timers of ``entries``; entries that a named timer has left behind are deleted."""
    timers = [_timer(key, value) for key, value in entries]
    named = sorted({_named_entry(timer) for timer in timers if timer.name is not None})
    times = dict(zip(named, sink.get_many(named), strict=True)) if named else {}
    live = []
    for timer in timers:
        if timer.name is None or times[_named_entry(timer)] == encode_namespace(timer.time):
            live.append(timer)
        else:
            sink.delete(timer.store_key)
    return live


def _due_entries(
    sink: StateSink, groups: Iterable[int], until: int, page_size: int
) -> Iterator[tuple[bytes, bytes]]:
    """Entries by time with time <= ``until`` of all ``groups``, in order, stale ones among them.

    Holds one page a group. Entries may be written and deleted meanwhile; those written behind the position
    of their group are not found.
    """
    scans = [_group_entries(sink, group.to_bytes(_GROUP_BYTES, "big"), until, page_size) for group in groups]
    return heapq.merge(*scans, key=_firing_order)


def _group_entries(
    sink: StateSink, group: bytes, until: int, page_size: int
) -> Iterator[tuple[bytes, bytes]]:
    start = group + _BY_TIME
    end = prefix_end(start) if until >= MAX_WATERMARK else start + encode_namespace(until + 1)
    while True:
        page = sink.scan(start, end, page_size)
        yield from page
        if len(page) < page_size:
            return
        start = page[-1][0] + _AFTER


def _firing_order(entry: tuple[bytes, bytes]) -> bytes:
    key = entry[0]
    return key[_TIME_AT:_KEY_AT] + key[:_GROUP_BYTES] + key[_KEY_AT:]


def _pages(entries: Iterator[tuple[bytes, bytes]], page_size: int) -> Iterator[Page]:
    while page := list(islice(entries, page_size)):
        yield page


def _timer(entry: bytes, value: bytes) -> DueTimer:
    end = _KEY_AT + int.from_bytes(value, "big")
    namespace = None
    name_at = end + 1
    if entry[end:name_at] == _NAMESPACED:
        namespace = decode_namespace(entry, name_at)
        name_at += 8
    name = entry[name_at:].decode() or None
    return DueTimer(
        decode_namespace(entry, _TIME_AT), entry[:_GROUP_BYTES], entry[_KEY_AT:end], name, namespace, entry
    )


def _named_entry(timer: DueTimer) -> bytes:
    return timer.group + _BY_NAME + timer.store_key[_KEY_AT:]
