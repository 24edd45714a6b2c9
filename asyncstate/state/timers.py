"""Timers of both time domains, stored with the state.

Owns: the store layout of timers, ``KeyedTimers`` (register and delete for the current key) and the rounds that find and
claim due timers.
Invariant: a timer fires at most once, and the timers of a round do not depend on the progress of other keys' callbacks;
so both execution modes fire the same timers in the same order.
Must not import storage, execution or operators.

Layout, after the two bytes of the key group; kind is ``00`` for event time and ``01`` for processing time:

* by time: ``[1][kind][time: 8][key][namespace: 00, or 01 and 8][name]`` -> length of the key (4 bytes)
* named, by key: ``[2][kind][key][namespace][name]`` -> its time (8 bytes)

Replacing or deleting a named timer writes its entry by key without reading it. Its previous entry by time becomes
stale; this is detected when it is due, because the entry by key has another time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from asyncstate.codec import GROUP_BYTES, STATE_PREFIX_BYTES, decode_namespace, encode_namespace, prefix_end
from asyncstate.errors import CodecError, StateAccessError
from asyncstate.flink_names import hint_for
from asyncstate.operator import TimeDomain, Timer
from asyncstate.state.ranges import Entry, pages_by_time, range_entries, up_to_time
from asyncstate.state_backend import Page, StateBackend

TIMERS_BY_TIME: Final = 1
"""Reserved state id."""
NAMED_TIMERS: Final = 2
"""Reserved state id."""

REPETITIONS_MAX: Final = 1_000
"""How often a timer may register itself for its own time in one micro-batch."""

_SCANNED: Final = 1_000  # page size when searching the timers of a key
_DUE_MAX: Final = 100_000  # due timers in memory: those of each key group come in order, so each has a page
_DUE_OF_GROUP_MIN: Final = 16
_TIME_AT: Final = STATE_PREFIX_BYTES + 1  # after group, state id and kind
_KEY_AT: Final = _TIME_AT + 8
_PLAIN: Final = b"\x00"
_NAMESPACED: Final = b"\x01"
_LENGTH_BYTES: Final = 4
_NEVER: Final = 2**63  # above every time
_NAMED: Final = bytes([NAMED_TIMERS])
_DOMAINS: Final = (TimeDomain.EVENT_TIME, TimeDomain.PROCESSING_TIME)  # by their byte in a store key
_NONE_FIRED: Final = -(2**63) - 1  # below every time


class _Kind:
    """One time domain: the prefix of its store keys, and the time up to which its timers have fired.

    ``earliest`` is the earliest time registered since the last round began.
    """

    __slots__ = ("by_name", "by_time", "domain", "earliest", "fired_until")

    def __init__(self, domain: TimeDomain, kind: bytes) -> None:
        self.domain = domain
        self.by_time = bytes([TIMERS_BY_TIME]) + kind
        self.by_name = bytes([NAMED_TIMERS]) + kind
        self.earliest = _NEVER
        self.fired_until = _NONE_FIRED


class _Round:
    """The changes to track while the timers of one domain with time <= ``until`` fire."""

    __slots__ = ("kind", "postponed", "registered", "touched", "until")

    def __init__(self, kind: _Kind, until: int, registered: list[DueTimer] | None) -> None:
        self.kind = kind
        self.until = until
        self.registered = registered  # gets the timers registered in this round if they fire in it
        self.postponed: set[bytes] = set()  # registered in this round, fires in the next
        self.touched: set[bytes] = set()  # entries (by time or by key) changed in this round


class DueTimer(NamedTuple):
    """A timer that is due. ``time`` is in microseconds, ``group`` and ``key`` as in a KeyContext."""

    time: int
    group: bytes
    key: bytes
    name: str | None
    namespace: int | None
    store_key: bytes
    domain: TimeDomain = TimeDomain.EVENT_TIME

    @property
    def timer(self) -> Timer:
        """The argument of ``on_timer``."""
        return Timer(self.time, self.name, self.namespace, self.domain)


class KeyedTimers:
    """Timers of the sink's current key; and, for the controller, the rounds in which they fire.

    A round is one pass of ``due`` over one domain; each timer it yields must be claimed under its key immediately
    before its callback, and all callbacks must have ended before the next round or ``end_rounds``. Rounds continue
    while timers ``may_be_due``. The rounds of the two domains are independent.
    """

    def __init__(self, sink: StateBackend, uid: str, handled: bool = True) -> None:
        self._sink = sink
        self._handled = handled
        self._label = f"timers of operator '{uid}'"
        self._event = _Kind(TimeDomain.EVENT_TIME, b"\x00")
        self._processing = _Kind(TimeDomain.PROCESSING_TIME, b"\x01")
        self._round: _Round | None = None  # the current one
        self._repeated: dict[bytes, int] = {}  # timers that register themselves for their own time

    # -- for operators --------------------------------------------------------------------------------

    if not TYPE_CHECKING:  # lets a checker report missing attributes

        def __getattr__(self, name):
            raise AttributeError(hint_for("ctx.timers", name))

    def register_event_time(
        self, time_us: int, name: str | None = None, namespace: int | None = None
    ) -> None:
        self._register(self._event, time_us, name, namespace)

    def delete_event_time(
        self, time_us: int | None = None, name: str | None = None, namespace: int | None = None
    ) -> None:
        self._delete(self._event, time_us, name, namespace)

    def register_processing_time(
        self, time_us: int, name: str | None = None, namespace: int | None = None
    ) -> None:
        self._register(self._processing, time_us, name, namespace)

    def delete_processing_time(
        self, time_us: int | None = None, name: str | None = None, namespace: int | None = None
    ) -> None:
        self._delete(self._processing, time_us, name, namespace)

    def delete_all(self) -> None:
        group, key = self._current()
        for kind in (self._event, self._processing):
            named = group + kind.by_name + key
            by_time = group + kind.by_time
            entries = [entry for entry, _ in self._entries(named)]
            entries += [
                entry
                for entry, length in self._entries(by_time)
                if entry[_KEY_AT : _KEY_AT + int.from_bytes(length, "big")] == key
            ]
            if self._round is not None:
                self._round.touched.update(entries)
            for entry in entries:
                self._sink.delete(entry)

    def _entries(self, prefix: bytes) -> Iterator[Entry]:
        return range_entries(self._sink, prefix, prefix_end(prefix), _SCANNED)

    def _register(self, kind: _Kind, time_us: int, name: str | None, namespace: int | None) -> None:
        group, key = self._current()
        if not self._handled:
            raise StateAccessError(
                f"{self._label}: a timer is registered, but the operator has no on_timer() method; add one"
            )
        time = self._encoded_time(time_us)
        tail = key + self._place(name, namespace)
        entry = group + kind.by_time + time + tail
        firing = getattr(self._sink.current, "item", None)
        if type(firing) is DueTimer and firing.store_key == entry:
            self._count_repetition(firing)
        named = None if name is None else group + kind.by_name + tail
        length = len(key).to_bytes(_LENGTH_BYTES, "big")
        if self._round is not None and self._round.kind is kind:
            self._note_registration(self._round, time_us, time, entry, named, length)
        if time_us < kind.earliest:
            kind.earliest = time_us
        self._sink.put(entry, length)
        if named is not None:
            self._sink.put(named, time)

    def _count_repetition(self, firing: DueTimer) -> None:
        times = self._repeated[firing.store_key] = self._repeated.get(firing.store_key, 0) + 1
        if times >= REPETITIONS_MAX:
            raise StateAccessError(
                f"{self._label}: the timer that is firing (time {firing.time}, name {firing.name!r}) was registered "
                f"again for the same time by its own on_timer() {times:,} times; register it for a later time, or it "
                "fires forever"
            )

    def _delete(self, kind: _Kind, time_us: int | None, name: str | None, namespace: int | None) -> None:
        if (time_us is None) == (name is None):
            raise StateAccessError(
                f"{self._label}: delete a {kind.domain.value} timer by its time if it is unnamed, or by its name; got "
                f"time {time_us!r} and name {name!r}; pass one of the two"
            )
        group, key = self._current()
        tail = key + self._place(name, namespace)
        if time_us is None:
            entry = group + kind.by_name + tail
        else:
            entry = group + kind.by_time + self._encoded_time(time_us) + tail
        if self._round is not None:
            self._round.touched.add(entry)  # of the other domain: never looked up
        self._sink.delete(entry)

    # -- for the controller ---------------------------------------------------------------------------

    def due(
        self,
        domain: TimeDomain,
        groups: Collection[int],
        until: int,
        page_size: int,
        registered: list[DueTimer] | None = None,
    ) -> Iterator[list[DueTimer]]:
        """One round: pages of timers of ``domain`` with time <= ``until``, by (time, group, key, namespace, name).

        Timers registered during the round fire in the next one. With ``registered``, they fire in it, too: they are
        appended to that list, and may also be in a later page, but are claimed once.
        """
        kind = self._kind(domain)
        kind.earliest, kind.fired_until = _NEVER, until
        self._round = at_hand = _Round(kind, until, registered)
        ranges = up_to_time(kind.by_time, groups, until)
        of_group = min(page_size, max(_DUE_MAX // max(len(groups), 1), _DUE_OF_GROUP_MIN))
        for page in pages_by_time(self._sink, ranges, page_size, _firing_order, of_group):
            timers = self._live([entry for entry in page if entry[0] not in at_hand.postponed])
            if timers:
                yield timers

    def may_be_due(self, domain: TimeDomain, until: int) -> bool:
        """False if no timer of ``domain`` with time <= ``until`` can exist: a round has fired them, and none was
        registered since its start."""
        kind = self._kind(domain)
        return kind.earliest <= until or kind.fired_until < until

    def end_rounds(self) -> None:
        """No timers fire until the next ``due``: registrations until then are not tracked."""
        self._round = None

    def claim(self, timer: DueTimer) -> bool:
        """Remove the timer from the store; False if it was deleted or replaced and must not fire."""
        at_hand, sink, entry = self._round, self._sink, timer.store_key
        assert at_hand is not None, "a timer is claimed in its round"
        if entry in at_hand.postponed or (entry in at_hand.touched and sink.get(entry) is None):
            return False
        sink.delete(entry)
        if timer.name is None:
            return True
        named = _named_entry(timer)
        if named in at_hand.touched and sink.get(named) != encode_namespace(timer.time):
            return False
        sink.delete(named)
        return True

    # -- the rest ---------------------------------------------------------------------------------------

    def _kind(self, domain: TimeDomain) -> _Kind:
        return self._event if domain is TimeDomain.EVENT_TIME else self._processing

    def _note_registration(
        self, at_hand: _Round, time_us: int, time: bytes, entry: bytes, named: bytes | None, length: bytes
    ) -> None:
        """Separate the timers that this round fires from those registered during it."""
        if time_us <= at_hand.until and at_hand.registered is not None:
            at_hand.touched.add(entry)
            at_hand.registered.append(_timer(entry, length))
        elif time_us <= at_hand.until:
            there = self._sink.get(entry) is not None
            if there and (named is None or self._sink.get(named) == time):
                return  # the same timer, which fires in this round or in the next
            at_hand.postponed.add(entry)
        if named is not None:
            at_hand.touched.add(named)

    def _live(self, entries: Page) -> list[DueTimer]:
        """The timers of ``entries``; deletes stale entries of named timers."""
        live = live_timers(entries, self._sink.get_many)
        if len(live) < len(entries):
            kept = {timer.store_key for timer in live}
            for key, _ in entries:
                if key not in kept:
                    self._sink.delete(key)
        return live

    def _current(self) -> tuple[bytes, bytes]:
        context = self._sink.current
        if context is None or not context.group:
            raise StateAccessError(
                f"{self._label} were used without a current key, which on_watermark() and rows of the broadcast input "
                "do not have; use them in process(), in on_timer(), or in a callback chained to a state future of the "
                "record"
            )
        return context.group, context.encoded_key

    def _encoded_time(self, time_us: int) -> bytes:
        try:
            return encode_namespace(time_us)
        except CodecError:
            raise StateAccessError(
                f"{self._label}: {time_us!r} is not a time; give int64 microseconds since the epoch"
            ) from None

    def _place(self, name: str | None, namespace: int | None) -> bytes:
        if name is not None and not isinstance(name, str):
            raise StateAccessError(
                f"{self._label}: the name {name!r} is not a string; give a str, such as name='{name}'"
            )
        if name == "":
            raise StateAccessError(f"{self._label}: a name is empty; leave it out for an unnamed timer")
        where = _PLAIN if namespace is None else _NAMESPACED + encode_namespace(namespace)
        try:
            return where if name is None else where + name.encode()
        except UnicodeEncodeError:
            raise StateAccessError(
                f"{self._label}: the name {name!a} cannot be written as UTF-8, because it has a lone surrogate; use "
                "another name"
            ) from None


def turn_of(timer: DueTimer) -> bytes:
    """Sorts as timers fire: by time, group, key, namespace and name."""
    return _firing_order((timer.store_key, b""))


def live_timers(entries: Page, get_many: Callable[[list[bytes]], list[bytes | None]]) -> list[DueTimer]:
    """The timers of stored entries by time, of both domains, without stale entries of named timers."""
    timers = [_timer(key, value) for key, value in entries]
    named = sorted({_named_entry(timer) for timer in timers if timer.name is not None})
    times = dict(zip(named, get_many(named), strict=True)) if named else {}
    return [
        timer
        for timer in timers
        if timer.name is None or times[_named_entry(timer)] == encode_namespace(timer.time)
    ]


def _firing_order(entry: Entry) -> bytes:
    key = entry[0]
    return key[_TIME_AT:_KEY_AT] + key[:GROUP_BYTES] + key[_KEY_AT:]


def _timer(entry: bytes, value: bytes) -> DueTimer:
    end = _KEY_AT + int.from_bytes(value, "big")
    namespace = None
    name_at = end + 1
    if entry[end:name_at] == _NAMESPACED:
        namespace = decode_namespace(entry, name_at)
        name_at += 8
    name = entry[name_at:].decode() or None
    time, domain = decode_namespace(entry, _TIME_AT), _DOMAINS[entry[_TIME_AT - 1]]
    return DueTimer(time, entry[:GROUP_BYTES], entry[_KEY_AT:end], name, namespace, entry, domain)


def _named_entry(timer: DueTimer) -> bytes:
    entry = timer.store_key
    return timer.group + _NAMED + entry[_TIME_AT - 1 : _TIME_AT] + entry[_KEY_AT:]
