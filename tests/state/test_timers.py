"""Timers against a model: what is live, what a round fires and in which order, whatever callbacks do."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncstate.codec import encode_namespace
from asyncstate.errors import StateAccessError
from asyncstate.operator import MAX_WATERMARK, MIN_WATERMARK, TimeDomain, Timer
from asyncstate.state import DueTimer, KeyedTimers
from tests.state.fakes import FakeSink, record

GROUPS = range(4)


class Action(NamedTuple):
    """Register a timer, or delete it: by its name if it has one, else by its time."""

    register: bool
    time: int
    name: str | None
    namespace: int | None


# A small space, so that programs hit the same timers again and again.
ACTIONS = st.builds(
    Action,
    st.sampled_from([True, True, False]),
    st.integers(0, 5),
    st.sampled_from([None, "a", "a", "b"]),
    st.sampled_from([None, None, -1]),
)
KEYS = st.integers(0, 1)
SCRIPTS = st.dictionaries(KEYS, st.lists(st.lists(ACTIONS, min_size=1, max_size=4), max_size=4))
BATCHES = st.lists(
    st.tuples(st.lists(st.tuples(KEYS, ACTIONS), min_size=2, max_size=8), st.integers(2, 6)),
    min_size=1,
    max_size=3,
)

Fired = tuple[int, Timer]
Place = tuple[int, int | None, str | None]  # key, namespace, name


class Model:
    """Live timers with the number of their registration, which tells one from its successor."""

    def __init__(self, scripts: dict[int, list[list[Action]]]) -> None:
        self.live: dict[
            tuple[Place, int | None], tuple[int, int]
        ] = {}  # (place, time if unnamed) -> (time, number)
        self.fired: list[Fired] = []
        self._scripts = Scripts(scripts)
        self._numbers = 0

    def act(self, key: int, action: Action) -> None:
        place = (key, action.namespace, action.name)
        identity = (place, action.time if action.name is None else None)
        if not action.register:
            self.live.pop(identity, None)
        elif self.live.get(identity, (None, 0))[0] != action.time:
            self._numbers += 1
            self.live[identity] = (action.time, self._numbers)

    def fire(self, until: int) -> None:
        while due := [item for item in self.live.items() if item[1][0] <= until]:
            for identity, registration in sorted(due, key=_model_order):
                if self.live.get(identity) == registration:
                    del self.live[identity]
                    key, namespace, name = identity[0]
                    self.fired.append((key, Timer(registration[0], name, namespace)))
                    for action in self._scripts.next_of(key):
                        self.act(key, action)


def _model_order(item: Any) -> Any:
    ((key, namespace, name), _), (time, _) = item
    return time, key % 4, key, namespace is not None, namespace or 0, name or ""


class Scripts:
    """What the callbacks of a key do: the nth one that fires runs the nth list of actions."""

    def __init__(self, scripts: dict[int, list[list[Action]]]) -> None:
        self._left = {key: list(lists) for key, lists in scripts.items()}

    def next_of(self, key: int) -> list[Action]:
        left = self._left.get(key)
        return left.pop(0) if left else []


class Store:
    """KeyedTimers over a FakeSink, fired one by one or with the keys of a round mixed at random."""

    def __init__(
        self, scripts: dict[int, list[list[Action]]], mix: random.Random | None, page_size: int
    ) -> None:
        self.sink = FakeSink()
        self.timers = KeyedTimers(self.sink, "op")
        self.fired: list[Fired] = []
        self._scripts = Scripts(scripts)
        self._mix = mix
        self._page_size = page_size

    def act(self, key: int, action: Action) -> None:
        self.sink.current = record(key)
        if action.register:
            self.timers.register_event_time(action.time, action.name, action.namespace)
        elif action.name is None:
            self.timers.delete_event_time(action.time, namespace=action.namespace)
        else:
            self.timers.delete_event_time(name=action.name, namespace=action.namespace)

    def fire(self, until: int) -> None:
        while self._round(until):
            pass

    def _round(self, until: int) -> bool:
        found = False
        waiting: dict[bytes, list[DueTimer]] = {}
        for page in self.timers.due(TimeDomain.EVENT_TIME, GROUPS, until, self._page_size):
            found = True
            for timer in page:
                if self._mix is None:
                    self._call(timer)
                else:
                    waiting.setdefault(timer.key, []).append(timer)
            while self._mix is not None and waiting and self._mix.random() < 0.5:
                self._call_any(waiting)
        while waiting:
            self._call_any(waiting)
        return found

    def _call_any(self, waiting: dict[bytes, list[DueTimer]]) -> None:
        assert self._mix is not None
        key = self._mix.choice(sorted(waiting))
        self._call(waiting[key].pop(0))
        if not waiting[key]:
            del waiting[key]

    def _call(self, timer: DueTimer) -> None:
        key = _key_of(timer)
        self.sink.current = record(key)
        if self.timers.claim(timer):
            self.fired.append((key, timer.timer))
            for action in self._scripts.next_of(key):
                self.act(key, action)


def _key_of(timer: DueTimer) -> int:
    key = int.from_bytes(timer.key[1:], "big") - 2**63
    assert (record(key).group, record(key).encoded_key) == (timer.group, timer.key)
    return key


def _by_key(fired: Iterable[Fired]) -> dict[int, list[Timer]]:
    found: dict[int, list[Timer]] = {}
    for key, timer in fired:
        found.setdefault(key, []).append(timer)
    return found


@given(SCRIPTS, BATCHES, st.integers(0, 2**16), st.integers(1, 4))
@settings(max_examples=4 * settings().max_examples)
def test_rounds_fire_what_the_model_fires(
    scripts: dict[int, list[list[Action]]],
    batches: list[tuple[list[tuple[int, Action]], int]],
    seed: int,
    page_size: int,
) -> None:
    model = Model(scripts)
    serial = Store(scripts, None, page_size)
    mixed = Store(scripts, random.Random(seed), 3)
    for actions, watermark in batches:
        for runner in (model, serial, mixed):
            for key, action in actions:
                runner.act(key, action)
            runner.fire(watermark)
        assert serial.fired == model.fired
        assert _by_key(mixed.fired) == _by_key(model.fired)
        for store in (serial, mixed):
            store.sink.commit()
            store.timers = KeyedTimers(store.sink, "op")
        assert serial.sink.base == mixed.sink.base
    model.fire(MAX_WATERMARK)
    serial.fire(MAX_WATERMARK)
    assert serial.fired == model.fired
    assert serial.sink.contents() == {}


def set_at(time: int, name: str | None = None) -> Action:
    return Action(True, time, name, None)


@pytest.mark.parametrize("page_size", [1, 2, 10])
@pytest.mark.parametrize(
    ("before", "callback", "fired"),
    [
        # moved away and back while it waits in the round: a new timer, so it is left to the next round
        ([set_at(1), set_at(2, "a"), set_at(3)], [set_at(4, "a"), set_at(2, "a")], [1, 3, 2]),
        ([set_at(1), set_at(2, "a"), set_at(3)], [set_at(9, "a"), set_at(2, "a")], [1, 3, 2]),
        # set again to the same time: still the same timer
        ([set_at(1), set_at(2, "a"), set_at(3)], [set_at(2, "a"), set_at(3)], [1, 2, 3]),
        # set to a time at which an entry by time has been left behind
        ([set_at(3, "a"), set_at(1, "a"), set_at(4)], [set_at(3, "a")], [1, 4, 3]),
    ],
)
def test_what_a_callback_sets_while_others_wait(
    before: list[Action], callback: list[Action], fired: list[int], page_size: int
) -> None:
    store = Store({1: [callback]}, None, page_size)
    for action in before:
        store.act(1, action)
    store.fire(5)
    assert [timer.time for _, timer in store.fired] == fired
    store.fire(MAX_WATERMARK)
    assert store.sink.contents() == {}


def test_the_ends_of_time() -> None:
    store = Store({}, None, 3)
    for time in (MIN_WATERMARK, MAX_WATERMARK):
        store.act(1, Action(True, time, None, None))
    store.fire(MIN_WATERMARK)
    assert [timer.time for _, timer in store.fired] == [MIN_WATERMARK]
    store.fire(MAX_WATERMARK)
    assert [timer.time for _, timer in store.fired] == [MIN_WATERMARK, MAX_WATERMARK]


def test_the_store_layout_is_the_documented_one() -> None:
    store = Store({}, None, 3)
    store.act(1, Action(True, 7, "n", -1))
    group, key, place = record(1).group, record(1).encoded_key, b"\x01" + encode_namespace(-1) + b"n"
    assert store.sink.contents() == {
        group + b"\x01\x00" + encode_namespace(7) + key + place: len(key).to_bytes(4, "big"),
        group + b"\x02\x00" + key + place: encode_namespace(7),
    }


def test_memory_is_bounded_by_pages() -> None:
    store = Store({}, None, 3)
    for key in range(100):
        store.act(key, Action(True, key, None, None))
    store.sink.scans = 0
    pages = store.timers.due(TimeDomain.EVENT_TIME, GROUPS, MAX_WATERMARK, 10)
    assert len(next(pages)) == 10
    assert store.sink.scans <= 2 * len(GROUPS)


def test_misuse_is_named() -> None:
    sink = FakeSink()
    timers = KeyedTimers(sink, "op")
    with pytest.raises(StateAccessError, match="timers of operator 'op' were used without a current key"):
        timers.register_event_time(1)
    sink.current = record(1)
    with pytest.raises(StateAccessError, match="a name is empty"):
        timers.register_event_time(1, "")
    with pytest.raises(StateAccessError, match="is no time"):
        timers.register_event_time(2**63)
    for arguments in ({}, {"time_us": 1, "name": "a"}):
        with pytest.raises(StateAccessError, match="pass one of the two"):
            timers.delete_event_time(**arguments)  # type: ignore[arg-type]
