"""Timers against a model: what is live, what a round fires and in which order, whatever callbacks do."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncstate.codec import encode_namespace
from asyncstate.errors import StateAccessError
from asyncstate.operator import MAX_WATERMARK, MIN_WATERMARK, TimeDomain, Timer
from asyncstate.state import DueTimer, KeyedTimers
from asyncstate.state_backend import Page
from tests.state.fakes import FakeRecord, FakeSink, record
from tests.state.timer_model import ACTIONS, EVENT, PROCESSING, Action, Fired, Model, Scripts, scripts_of

GROUPS = range(4)
KEYS = st.integers(0, 1)
BATCHES = st.lists(
    st.tuples(
        st.lists(st.tuples(KEYS, ACTIONS), min_size=2, max_size=8), st.integers(2, 6), st.integers(2, 6)
    ),
    min_size=1,
    max_size=3,
)
END = dict.fromkeys((PROCESSING, EVENT), MAX_WATERMARK)


def group_of(key: int) -> int:
    return int.from_bytes(record(key).group, "big")


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
        action.on(self.timers)

    def fire(self, until: dict[TimeDomain, int]) -> None:
        while any(self.timers.may_be_due(domain, time) for domain, time in until.items()):
            for domain, time in until.items():
                if self.timers.may_be_due(domain, time):
                    self._round(domain, time)
        self.timers.end_rounds()

    def _round(self, domain: TimeDomain, until: int) -> None:
        waiting: dict[bytes, list[DueTimer]] = {}
        for page in self.timers.due(domain, GROUPS, until, self._page_size):
            for timer in page:
                if self._mix is None:
                    self._call(timer)
                else:
                    waiting.setdefault(timer.key, []).append(timer)
            while self._mix is not None and waiting and self._mix.random() < 0.5:
                self._call_any(waiting)
        while waiting:
            self._call_any(waiting)

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


@given(scripts_of(KEYS), BATCHES, st.integers(0, 2**16), st.integers(1, 4))
@settings(max_examples=4 * settings().max_examples)
def test_rounds_fire_what_the_model_fires(
    scripts: dict[int, list[list[Action]]],
    batches: list[tuple[list[tuple[int, Action]], int, int]],
    seed: int,
    page_size: int,
) -> None:
    model = Model(scripts, group_of)
    serial = Store(scripts, None, page_size)
    mixed = Store(scripts, random.Random(seed), 3)
    for actions, now, watermark in batches:
        for runner in (model, serial, mixed):
            runner.fire({PROCESSING: now})
            for key, action in actions:
                runner.act(key, action)
            runner.fire({PROCESSING: now, EVENT: watermark})
        assert serial.fired == model.fired
        assert _by_key(mixed.fired) == _by_key(model.fired)
        for store in (serial, mixed):
            store.sink.commit()
            store.timers = KeyedTimers(store.sink, "op")
        assert serial.sink.base == mixed.sink.base
    model.fire(END)
    serial.fire(END)
    assert serial.fired == model.fired
    assert serial.sink.contents() == {}


def set_at(time: int, name: str | None = None) -> Action:
    return Action(True, time, name, None)


@pytest.fixture(params=TimeDomain, ids=lambda domain: domain.value)
def domain(request: pytest.FixtureRequest) -> TimeDomain:
    """Runs the test with timers of each domain."""
    found: TimeDomain = request.param
    return found


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
    before: list[Action], callback: list[Action], fired: list[int], page_size: int, domain: TimeDomain
) -> None:
    store = Store({1: [[action._replace(domain=domain) for action in callback]]}, None, page_size)
    for action in before:
        store.act(1, action._replace(domain=domain))
    store.fire({domain: 5})
    assert [timer.time for _, timer in store.fired] == fired
    store.fire(END)
    assert store.sink.contents() == {}


def test_the_domains_take_turns() -> None:
    """Each round fires what was due when it began; processing time begins."""
    past = {domain: Action(True, 1, None, None, domain) for domain in TimeDomain}
    store = Store({1: [[past[EVENT]], [], [past[PROCESSING]]]}, None, 3)
    store.act(1, Action(True, 2, None, None, PROCESSING))
    store.act(1, Action(True, 3, None, None, EVENT))
    store.fire({PROCESSING: 5, EVENT: 5})
    fired = [(timer.domain, timer.time) for _, timer in store.fired]
    assert fired == [(PROCESSING, 2), (EVENT, 1), (EVENT, 3), (PROCESSING, 1)]
    assert store.sink.contents() == {}


def test_the_domains_have_names_of_their_own() -> None:
    store = Store({}, None, 3)
    for domain, time in ((EVENT, 3), (PROCESSING, 4)):
        store.act(1, Action(True, time, "n", None, domain))
    store.act(1, Action(False, 0, "n", None, PROCESSING))
    store.fire(END)
    assert store.fired == [(1, Timer(3, "n", None, EVENT))]


@pytest.mark.parametrize("registered", [False, True])
def test_a_domain_is_searched_again_only_for_what_was_registered(
    registered: bool, domain: TimeDomain
) -> None:
    """Records that register nothing cost no scan of the timers behind them."""
    store = Store({}, None, 3)
    store.fire({domain: 5})
    if registered:
        store.act(1, Action(True, 5, None, None, domain))
    store.act(1, Action(True, 6, None, None, domain))
    store.sink.scans = 0
    store.fire({domain: 5})
    assert bool(store.sink.scans) == registered
    assert len(store.fired) == registered


def test_the_ends_of_time(domain: TimeDomain) -> None:
    store = Store({}, None, 3)
    for time in (MIN_WATERMARK, MAX_WATERMARK):
        store.act(1, Action(True, time, None, None, domain))
    store.fire({domain: MIN_WATERMARK})
    assert [timer.time for _, timer in store.fired] == [MIN_WATERMARK]
    store.fire({domain: MAX_WATERMARK})
    assert [timer.time for _, timer in store.fired] == [MIN_WATERMARK, MAX_WATERMARK]


@pytest.mark.parametrize(("domain", "kind"), [(EVENT, b"\x00"), (PROCESSING, b"\x01")])
def test_the_store_layout_is_the_documented_one(domain: TimeDomain, kind: bytes) -> None:
    store = Store({}, None, 3)
    store.act(1, Action(True, 7, "n", -1, domain))
    group, key, place = record(1).group, record(1).encoded_key, b"\x01" + encode_namespace(-1) + b"n"
    assert store.sink.contents() == {
        group + b"\x01" + kind + encode_namespace(7) + key + place: len(key).to_bytes(4, "big"),
        group + b"\x02" + kind + key + place: encode_namespace(7),
    }


def test_memory_is_bounded_by_pages(domain: TimeDomain) -> None:
    store = Store({}, None, 3)
    for key in range(100):
        store.act(key, Action(True, key, None, None, domain))
    store.sink.scans = 0
    pages = store.timers.due(domain, GROUPS, MAX_WATERMARK, 10)
    assert len(next(pages)) == 10
    assert store.sink.scans <= 2 * len(GROUPS)


@pytest.mark.parametrize(("groups", "most"), [(4, 1_000), (1_000, 100), (32_768, 16)])
def test_the_more_key_groups_the_fewer_timers_of_each_are_in_memory(
    domain: TimeDomain, groups: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store({}, None, 3)
    limits: list[int] = []
    store.act(0, Action(True, 1, None, None, domain))
    scan = store.sink.scan

    def noted(start: bytes, end: bytes, limit: int) -> Page:
        limits.append(limit)
        return scan(start, end, limit)

    monkeypatch.setattr(store.sink, "scan", noted)
    assert len(list(store.timers.due(domain, range(groups), MAX_WATERMARK, 1_000))) == 1
    assert max(limits) == most


@pytest.mark.parametrize("page_size", [1, 10])
def test_timers_registered_for_the_current_round_are_claimed_once(domain: TimeDomain, page_size: int) -> None:
    """They are in the list, and a later page may have them as well."""
    store = Store({}, None, page_size)
    for time in (1, 3, 5):
        store.act(0, Action(True, time, None, None, domain))
    store.act(0, Action(True, 6, "moved", None, domain))
    registered: list[DueTimer] = []
    pages = store.timers.due(domain, GROUPS, 7, page_size, registered)
    waiting = next(pages)
    assert store.timers.claim(waiting.pop(0))
    for time, name in ((3, None), (4, None), (2, "moved"), (8, None)):
        store.act(0, Action(True, time, name, None, domain))
    store.act(0, Action(False, 5, None, None, domain))
    assert [(timer.time, timer.name) for timer in registered] == [(3, None), (4, None), (2, "moved")]
    waiting += [*registered, *(timer for page in pages for timer in page)]
    claimed = [
        (timer.time, timer.name)
        for timer in sorted(waiting, key=lambda timer: timer.time)
        if store.timers.claim(timer)
    ]
    assert claimed == [(2, "moved"), (3, None), (4, None)]
    store.timers.end_rounds()
    assert [timer.time for page in store.timers.due(domain, GROUPS, 9, 10) for timer in page] == [8]


def test_misuse_is_named() -> None:
    sink = FakeSink()
    timers = KeyedTimers(sink, "op")
    for nobody in (None, FakeRecord(b"", b"")):
        sink.current = nobody
        for register in (timers.register_event_time, timers.register_processing_time):
            with pytest.raises(
                StateAccessError, match="timers of operator 'op' were used without a current key"
            ):
                register(1)
    sink.current = record(1)
    with pytest.raises(StateAccessError, match="a name is empty"):
        timers.register_event_time(1, "")
    with pytest.raises(StateAccessError, match="is not a time"):
        timers.register_event_time(2**63)
    for what, delete in (
        ("event time", timers.delete_event_time),
        ("processing time", timers.delete_processing_time),
    ):
        for arguments in ({}, {"time_us": 1, "name": "a"}):
            with pytest.raises(StateAccessError, match=f"a {what} timer .*; pass one of the two"):
                delete(**arguments)  # type: ignore[arg-type]
