"""MemTable against a dict: points, bundles, ranges, cache, changes."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from asyncstate.metrics import to_dict
from asyncstate.storage import MISSING, KeyedStore, MemTable, ValueCache, changes_from
from tests.memory_store import MemoryStore

KEYS = st.binary(min_size=1, max_size=2) | st.sampled_from([b"a", b"ab", b"b", b"\xff", b"\xff\xff"])
VALUES = st.binary(max_size=4)


class CountingStore(MemoryStore):
    """Counts the calls that reach it."""

    def __init__(self, entries: dict[bytes, bytes]) -> None:
        super().__init__(entries.items())
        self.gets: list[bytes] = []
        self.list_gets: list[list[bytes]] = []

    def get(self, key: bytes) -> bytes | None:
        self.gets.append(key)
        return super().get(key)

    def get_many(self, keys: list[bytes], piece_keys: int = 0) -> list[bytes | None]:
        self.list_gets.append(keys)
        return super().get_many(keys, piece_keys)


def test_peek_tells_unknown_from_absent() -> None:
    overlay = MemTable(MemoryStore([(b"a", b"1")]))
    assert overlay.peek(b"a") is MISSING
    overlay.remember(b"a", b"1")
    overlay.remember(b"b", None)
    overlay.put(b"c", b"3")
    overlay.delete(b"d")
    assert [overlay.peek(k) for k in (b"a", b"b", b"c", b"d", b"e")] == [b"1", None, b"3", None, MISSING]


def test_get_asks_the_store_once() -> None:
    store = CountingStore({b"a": b"1"})
    overlay = MemTable(store)
    assert [overlay.get(b"a"), overlay.get(b"a"), overlay.get(b"x"), overlay.get(b"x")] == [
        b"1",
        b"1",
        None,
        None,
    ]
    assert store.gets == [b"a", b"x"]


def test_writes_win_over_what_is_remembered_later() -> None:
    overlay = MemTable(MemoryStore([(b"a", b"old")]))
    overlay.put(b"a", b"new")
    overlay.remember(b"a", b"old")
    overlay.remember_many([b"a"], [b"old"])
    assert overlay.get(b"a") == b"new"
    assert overlay.get_many([b"a"]) == [b"new"]
    assert overlay.apply_writes([b"a", b"b"], [b"old", b"b"], 0, overlay.written([b"a", b"b"])) == [
        b"new",
        b"b",
    ]


def test_get_many_asks_the_store_for_the_unknown_only() -> None:
    store = CountingStore({b"a": b"1", b"b": b"2", b"c": b"3"})
    overlay = MemTable(store)
    overlay.put(b"b", b"20")
    overlay.delete(b"c")
    overlay.remember(b"d", None)
    assert overlay.get_many([b"d", b"c", b"b", b"a", b"e"]) == [None, None, b"20", b"1", None]
    assert store.list_gets == [[b"a", b"e"]]
    assert overlay.get_many([b"b", b"c"]) == [b"20", None]
    assert len(store.list_gets) == 1


def test_get_many_asks_the_store_once_for_a_key() -> None:
    store = CountingStore({b"a": b"1"})
    overlay = MemTable(store)
    overlay.get_many([b"a", b"b"])
    assert overlay.get_many([b"a", b"b"]) == [b"1", None]
    assert len(store.list_gets) == 1


def test_cache_is_bounded_and_keeps_what_is_used() -> None:
    overlay = MemTable(MemoryStore(), read_cache_bytes=40_000)
    hot = b"hot"
    overlay.remember(hot, b"v")
    for n in range(2000):
        overlay.remember(b"%06d" % n, b"x" * 50)
        assert overlay.peek(hot) == b"v"
    statistics = overlay.statistics()
    assert statistics.cache_bytes_peak <= 40_000 + 200
    assert overlay.peek(b"%06d" % 0) is MISSING
    assert overlay.peek(b"%06d" % 1999) == b"x" * 50


def test_bundle_larger_than_the_cache_is_not_kept() -> None:
    overlay = MemTable(MemoryStore(), read_cache_bytes=1000)
    keys = [b"%04d" % n for n in range(100)]
    overlay.remember_many(keys, [b"v"] * 100)
    assert overlay.peek(keys[-1]) is MISSING


def test_one_bundle_of_sorted_writes_is_never_put_into_a_dict() -> None:
    overlay = MemTable(MemoryStore())
    keys = [b"%03d" % n for n in range(100)]
    values = [b"v%d" % n if n % 3 else None for n in range(100)]
    expected = list(zip(keys, values, strict=True))
    overlay.put_many(keys, values)
    assert not overlay._buffer.entries
    assert overlay.statistics().writes.changes == 100
    assert overlay.statistics().writes.change_bytes == sum(len(k) + len(v or b"") for k, v in expected)
    assert list(overlay.changes()) == expected
    assert list(changes_from(overlay.changes(), b"050")) == expected[50:]
    assert not overlay._buffer.entries


def test_what_comes_after_held_writes_counts() -> None:
    overlay = MemTable(MemoryStore([(b"a", b"0"), (b"e", b"0")]))
    overlay.put_many([b"a", b"b", b"c"], [b"1", b"1", None])
    overlay.put(b"b", b"2")
    overlay.delete(b"a")
    overlay.put(b"d", b"2")
    assert overlay.changes() == [(b"a", None), (b"b", b"2"), (b"c", None), (b"d", b"2")]
    assert overlay.get_many([b"a", b"b", b"c", b"d", b"e"]) == [None, b"2", None, b"2", b"0"]


def test_put_many_last_value_counts_and_none_deletes() -> None:
    overlay = MemTable(MemoryStore([(b"a", b"0")]))
    overlay.put_many([b"b", b"a", b"b"], [b"1", None, b"2"])
    overlay.delete_many([b"z"])
    assert overlay.changes() == [(b"a", None), (b"b", b"2"), (b"z", None)]
    statistics = overlay.statistics()
    assert (statistics.writes.changes, statistics.writes.change_bytes) == (3, 4)


def test_scan_is_complete_over_many_tombstones_and_pages() -> None:
    stored = {b"%04d" % n: b"s" for n in range(0, 3000, 2)}
    overlay = MemTable(MemoryStore(stored.items()))
    overlay.delete_many([b"%04d" % n for n in range(0, 2900, 2)])
    overlay.put_many([b"%04d" % n for n in range(1, 3000, 150)], [b"w"] * 20)
    expected = sorted([k for k in stored if k >= b"2900"] + [b"%04d" % n for n in range(1, 3000, 150)])
    assert [k for k, _ in overlay.scan(b"", None, 10_000)] == expected
    for limit in (1, 3, 64, 65):
        found, start = [], b""
        while page := overlay.scan(start, None, limit):
            found += [k for k, _ in page]
            start = page[-1][0] + b"\0"
            if len(page) < limit:
                break
        assert found == expected


def test_writing_between_pages_is_safe() -> None:
    overlay = MemTable(MemoryStore((b"%02d" % n, b"s") for n in range(0, 40, 2)))
    seen, start = [], b""
    while page := overlay.scan(start, None, 3):
        for k, _ in page:
            seen.append(k)
            overlay.delete(k)
            overlay.put(b"%02d" % (int(k) + 1), b"w") if int(k) % 4 == 0 else None
        start = page[-1][0] + b"\0"
    # A written key is met when it lies after the page that was being handled, and only then.
    assert seen == sorted(seen)
    assert len(set(seen)) == len(seen)
    assert {k for k in seen if int(k) % 2 == 0} == {b"%02d" % n for n in range(0, 40, 2)}


def test_counters() -> None:
    overlay = MemTable(MemoryStore([(b"a", b"1")]))
    overlay.put(b"w", b"1")
    overlay.get(b"a")
    overlay.get(b"a")
    overlay.get_many([b"w", b"a", b"x", b"y"])
    overlay.scan(b"", None, 5)
    found = overlay.statistics()
    expected = {
        "reads": 6,
        "cache_hits": 3,
        "cache_misses": 3,
        "store_reads": 3,
        "read_batches": 1,
        "read_batch_keys": 2,
        "scans": 1,
    }
    assert {name: to_dict(found)[name] for name in expected} == expected


def test_what_is_released_is_right_for_the_next_batch() -> None:
    store = CountingStore({b"a": b"1", b"b": b"2", b"c": b"3"})
    overlay = MemTable(store)
    overlay.get_many([b"a", b"b", b"x", b"y"])
    overlay.put(b"b", b"20")
    overlay.delete(b"a")
    overlay.put(b"x", b"30")
    overlay.put(b"new", b"40")
    store.apply(overlay.changes(), 0)
    following = MemTable(store, carried=overlay.release())
    reached = len(store.gets), len(store.list_gets)
    keys = [b"a", b"b", b"x", b"y", b"new"]
    assert [following.get(key) for key in keys] == [None, b"20", b"30", None, b"40"]
    assert following.get_many(keys) == [None, b"20", b"30", None, b"40"]
    assert (len(store.gets), len(store.list_gets)) == reached
    assert following.get(b"c") == b"3"
    assert following.statistics().cache_carried == 5
    assert following.statistics().store_reads == 1


def _released(cache_bytes: int, reads: int, writes: int) -> tuple[MemTable, MemoryStore]:
    """The overlay of a micro-batch after one that read the keys below ``reads`` and wrote those below ``writes``."""
    store = MemoryStore((b"%06d" % n, b"old") for n in range(5_000))
    overlay = MemTable(store, cache_bytes)
    for n in range(reads):
        overlay.get(b"%06d" % n)
    for n in range(writes):
        overlay.put(b"%06d" % n, b"new")
    store.apply(overlay.changes(), 0)
    return MemTable(store, cache_bytes, overlay.release()), store


@pytest.mark.parametrize("writes", [0, 1, 30, 500, 600, 4_000])
@pytest.mark.parametrize("reads", [0, 100, 700, 1_500])
def test_writes_of_any_number_replace_what_was_cached(reads: int, writes: int) -> None:
    # 100,000 bytes hold 775 entries of 129, of which a quarter are recent
    overlay, store = _released(100_000, reads, writes)
    assert overlay.statistics().cache_bytes_peak <= 100_000
    assert [overlay.get(b"%06d" % n) for n in range(4_000)] == [store.get(b"%06d" % n) for n in range(4_000)]
    assert overlay.statistics().cache_bytes_peak <= 100_000


def test_more_writes_than_the_cache_holds_leave_nothing() -> None:
    assert _released(100_000, 700, 600)[0].statistics().cache_carried == 0
    assert _released(100_000, 700, 550)[0].statistics().cache_carried == 550


def test_rewriting_the_same_keys_does_not_fill_the_cache() -> None:
    store = MemoryStore()
    overlay = MemTable(store, 1 << 20)
    sizes = []
    for number in range(50):
        for n in range(100):
            overlay.get(b"%03d" % n)
            overlay.put(b"%03d" % n, b"v" * 10)
        store.apply(overlay.changes(), number)
        released = overlay.release()
        sizes.append(released.size_bytes)
        overlay = MemTable(store, 1 << 20, released)
    assert overlay.statistics().cache_evictions == 0
    assert set(sizes) == {100 * (3 + 10 + 120)}


@pytest.mark.parametrize("writes", [1, 90, 400])
def test_generations_stay_few_however_little_each_micro_batch_writes(writes: int) -> None:
    """Two neighbours are more than a quarter of the cache, or they would be one."""
    store = MemoryStore()
    overlay = MemTable(store, 100_000)
    for number in range(200):
        for n in range(number * writes, (number + 1) * writes):
            overlay.get(b"%06d" % n)
            overlay.put(b"%06d" % n, b"v")
        store.apply(overlay.changes(), number)
        released = overlay.release()
        assert released.size_bytes <= 100_000
        assert len(released.older) <= 8
        overlay = MemTable(store, 100_000, released)
    assert overlay.get(b"%06d" % (200 * writes - 1)) == b"v"
    assert overlay.statistics().store_reads == 0


def test_what_is_laid_over_the_cache_counts_twice_for_a_while_only() -> None:
    """Most of what is cached is read alone; a little is written again in each micro-batch, and grows."""
    store = MemoryStore()
    overlay = MemTable(store, 1 << 20)
    for n in range(500):
        overlay.get(b"%03d" % n)
    for number in range(100):
        for n in range(20):
            overlay.put(b"%03d" % n, bytes(number))
        store.apply(overlay.changes(), number)
        released = overlay.release()
        assert len(released) == 500
        exact = 500 * (3 + 120) + 20 * number
        assert exact <= released.size_bytes <= 2 * exact
        overlay = MemTable(store, 1 << 20, released)


def test_bundles_keep_what_they_use_in_the_cache() -> None:
    store = CountingStore({})
    overlay = MemTable(store, 40_000)
    hot = [b"hot-%d" % n for n in range(10)]
    for n in range(100):
        overlay.get_many(hot)
        overlay.get_many([b"%03d-%02d" % (n, i) for i in range(20)])
    assert [keys for keys in store.list_gets if hot[0] in keys] == [hot]
    assert overlay.statistics().cache_evictions > 1_000


@pytest.mark.parametrize(("store_seconds", "kept"), [(1e-9, False), (1.0, True)])
def test_a_cache_that_costs_more_than_it_saves_rests(store_seconds: float, kept: bool) -> None:
    """The store's time is made up: by far less or more than looking for a key in memory."""
    store = MemoryStore((b"%06d" % n, b"v") for n in range(20_000))
    overlay = MemTable(store, 1 << 26)
    overlay.get_many(keys := [b"%06d" % n for n in range(20_000)])
    overlay = MemTable(store, 1 << 26, overlay.release())
    assert overlay.get_many(keys) == [b"v"] * 20_000
    overlay.count_list_get(100, 100 * store_seconds)
    rests = 0
    while not len(cached := overlay.release()):
        rests += 1
        overlay = MemTable(store, 1 << 26, cached)
        assert overlay.get_many(keys) == [b"v"] * 20_000
    assert rests == (0 if kept else 16)


class OverlayMachine(RuleBasedStateMachine):
    """Random calls; the model is one dict."""

    written = Bundle("written")

    @initialize(stored=st.dictionaries(KEYS, VALUES, max_size=30), cache=st.sampled_from([0, 300, 1 << 20]))
    def start(self, stored: dict[bytes, bytes], cache: int) -> None:
        self.store: KeyedStore = MemoryStore(stored.items())
        self.cache = cache
        self.overlay = self.over_the_store(None)
        self.model: dict[bytes, bytes] = dict(stored)
        self.changed: dict[bytes, bytes | None] = {}

    def over_the_store(self, carried: ValueCache | None) -> MemTable:
        """The overlay of the next micro-batch."""
        return MemTable(self.store, self.cache, carried)

    def _note(self, key: bytes, value: bytes | None) -> None:
        self.changed[key] = value
        if value is None:
            self.model.pop(key, None)
        else:
            self.model[key] = value

    @rule(target=written, key=KEYS, value=VALUES)
    def put(self, key: bytes, value: bytes) -> bytes:
        self.overlay.put(key, value)
        self._note(key, value)
        return key

    @rule(key=KEYS | written)
    def delete(self, key: bytes) -> None:
        self.overlay.delete(key)
        self._note(key, None)

    @rule(writes=st.dictionaries(KEYS, st.none() | VALUES, max_size=10))
    def put_many(self, writes: dict[bytes, bytes | None]) -> None:
        self.overlay.put_many(list(writes), list(writes.values()))
        for key, value in writes.items():
            self._note(key, value)

    @rule(writes=st.dictionaries(KEYS, st.none() | VALUES, min_size=1, max_size=10))
    def put_many_sorted(self, writes: dict[bytes, bytes | None]) -> None:
        """As a bundle writes: held as it is, if it comes first."""
        self.overlay.put_many(sorted(writes), [writes[key] for key in sorted(writes)])
        for key, value in writes.items():
            self._note(key, value)

    @rule(keys=st.lists(KEYS, max_size=5))
    def delete_many(self, keys: list[bytes]) -> None:
        self.overlay.delete_many(keys)
        for key in keys:
            self._note(key, None)

    @rule(key=KEYS | written)
    def get(self, key: bytes) -> None:
        assert self.overlay.get(key) == self.model.get(key)

    @rule(key=KEYS | written)
    def peek_is_right_or_missing(self, key: bytes) -> None:
        peeked = self.overlay.peek(key)
        assert peeked is MISSING or peeked == self.model.get(key)

    @rule(key=KEYS)
    def remember_what_the_store_says(self, key: bytes) -> None:
        self.overlay.remember(key, self.overlay.store.get(key))

    @rule(keys=st.lists(KEYS | written, max_size=12))
    def get_many(self, keys: list[bytes]) -> None:
        assert self.overlay.get_many(keys) == [self.model.get(key) for key in keys]

    @rule(keys=st.lists(KEYS | written, max_size=12))
    def prefetched(self, keys: list[bytes]) -> None:
        fetched = self.overlay.read_store(keys)
        assert self.overlay.apply_writes(keys, fetched, self.overlay.spills, self.overlay.written(keys)) == [
            self.model.get(key) for key in keys
        ]

    @rule(start=KEYS | st.just(b""), end=st.none() | KEYS, limit=st.integers(0, 6))
    def scan(self, start: bytes, end: bytes | None, limit: int) -> None:
        inside = sorted((k, v) for k, v in self.model.items() if k >= start and (end is None or k < end))
        assert self.overlay.scan(start, end, limit) == inside[:limit]

    @rule()
    def commit(self) -> None:
        self.store.apply(self.overlay.changes(), self.store.version + 1)
        released = self.overlay.release()
        assert released.size_bytes <= self.cache
        self.overlay = self.over_the_store(released)
        self.changed = {}

    @invariant()
    def changes_are_sorted_and_exact(self) -> None:
        if hasattr(self, "overlay"):
            assert list(self.overlay.changes()) == sorted(self.changed.items())

    @invariant()
    def what_is_clean_is_what_lies_below(self) -> None:
        """Spilled writes, and below them the store: no key is clean with a value that was overwritten there."""
        if hasattr(self, "overlay"):
            clean: dict[bytes, bytes | None] = {}
            for entries in (
                *reversed(self.overlay._clean.older),
                self.overlay._clean.recent,
                self.overlay._early,
            ):
                clean |= entries
            assert clean == {key: self.overlay.store.get(key) for key in clean}


TestOverlayMachine = OverlayMachine.TestCase


@pytest.mark.parametrize("count", [0, 1, 5])
def test_counts_of_written_keys(count: int) -> None:
    overlay = MemTable(MemoryStore())
    overlay.put_many([b"%d" % n for n in range(count)], [b"v"] * count)
    assert overlay.statistics().writes.changes == count


def test_final_values_are_newer_than_what_their_state_has_written_before() -> None:
    keys = [b"\0\0\x08a", b"\0\0\x08b", b"\0\0\x08c"]
    others = [b"\0\0\x09a"]
    overlay = MemTable(MemoryStore([]))
    overlay.put_many(keys, [b"1", b"1", b"1"])
    assert overlay.append_final(others, [b"3"], 5)
    assert overlay.append_final(keys[1:], [b"2", None], 9)
    assert list(overlay.changes()) == [(keys[0], b"1"), (keys[1], b"2"), (keys[2], None), (others[0], b"3")]
    assert overlay.statistics().writes.changes == 4


def test_what_the_store_lacks_is_asked_for_once() -> None:
    """A seek in RocksDB passes over everything that was deleted there, so one for each page of deletes is too many."""
    asked: list[bytes] = []

    class Counted(MemoryStore):
        def scan(self, start: bytes, end: bytes | None, limit: int) -> list[tuple[bytes, bytes]]:
            asked.append(start)
            return super().scan(start, end, limit)

    overlay = MemTable(Counted())
    for number in range(10_000):
        overlay.delete(b"%05d" % number)
    overlay.put(b"90000", b"kept")
    asked.clear()
    assert overlay.scan(b"", None, 1) == [(b"90000", b"kept")]
    assert overlay.scan(b"", None, 5) == [(b"90000", b"kept")]
    assert len(asked) == 2
