"""WorkerCache: entries go to whoever asks for their content, within the bytes given."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstate.storage import PartitionKey, ValueCache, WorkerCache

_LIMIT = 10_000


def _key(partition: int = 0, checkpoint: str = "/here") -> PartitionKey:
    return PartitionKey(checkpoint, "job", "operator", range(partition, partition + 1))


def _entries(count: int, mark: bytes = b"v") -> ValueCache:
    return _generations({b"%03d" % n: mark for n in range(count)})


def _generations(*newest_first: dict[bytes, bytes | None]) -> ValueCache:
    cached = ValueCache()
    cached.begin(1 << 20)
    for entries in reversed(newest_first):
        cached.remember_many(list(entries), list(entries.values()))
        cached.age()
    return cached


def _contents(cached: ValueCache) -> list[dict[bytes, bytes | None]]:
    return [entries for entries in (cached.recent, *cached.older) if entries]


def _leave(cache: WorkerCache, key: PartitionKey, lineage: str, entries: ValueCache) -> None:
    with cache.lend(key, "", _LIMIT) as loan:
        loan.keep(lineage, entries)


def _found(cache: WorkerCache, key: PartitionKey, lineage: str) -> int:
    """The number of entries for that content; they are lost by it."""
    with cache.lend(key, lineage, _LIMIT) as loan:
        return len(loan.entries)


def test_entries_go_to_the_same_content_only() -> None:
    cache = WorkerCache(ValueCache)
    _leave(cache, _key(), "a", _entries(3))
    assert _found(cache, _key(partition=1), "a") == 0
    assert _found(cache, _key(checkpoint="/there"), "a") == 0
    with cache.lend(_key(), "a", _LIMIT) as loan:
        assert _contents(loan.entries) == [{b"000": b"v", b"001": b"v", b"002": b"v"}]


def test_entries_of_another_content_are_dropped() -> None:
    cache = WorkerCache(ValueCache)
    _leave(cache, _key(), "a", _entries(3))
    with cache.lend(_key(), "b", _LIMIT) as loan:
        assert len(loan.entries) == 0
    assert _found(cache, _key(), "a") == 0
    assert cache.size_bytes == 0


def test_a_task_that_fails_leaves_nothing() -> None:
    cache = WorkerCache(ValueCache)
    _leave(cache, _key(), "a", _entries(3))
    with pytest.raises(RuntimeError), cache.lend(_key(), "a", _LIMIT):
        raise RuntimeError
    assert _found(cache, _key(), "a") == 0


def test_two_attempts_never_share_entries() -> None:
    cache = WorkerCache(ValueCache)
    _leave(cache, _key(), "a", _entries(3))
    first, second = cache.lend(_key(), "a", _LIMIT), cache.lend(_key(), "a", _LIMIT)
    assert (len(first.entries), len(second.entries)) == (3, 0)
    first.keep("b1", _entries(3, b"1"))
    second.keep("b2", _generations({b"k": b"2"}))
    assert _found(cache, _key(), "b1") == 0


def test_a_second_keep_of_the_same_loan_does_nothing() -> None:
    cache = WorkerCache(ValueCache)
    loan = cache.lend(_key(), "a", _LIMIT)
    loan.keep("b", _entries(2))
    loan.keep("c", _entries(3))
    assert _found(cache, _key(), "b") == 2


def test_a_new_partition_gets_its_share_and_the_longest_unused_lose() -> None:
    cache = WorkerCache(ValueCache)
    for partition in range(3):
        _leave(cache, _key(partition), "a", _entries(25))
    assert cache.size_bytes == 75 * 124 <= _LIMIT
    with cache.lend(_key(9), "a", _LIMIT) as loan:
        assert loan.limit_bytes >= _LIMIT // 4
    assert [_found(cache, _key(partition), "a") for partition in range(3)] == [0, 25, 25]


def test_who_does_not_lack_room_takes_none_from_others() -> None:
    cache = WorkerCache(ValueCache)
    small, large = _key(0), _key(1)
    _leave(cache, small, "a", _entries(2))
    _leave(cache, large, "b", _entries(70))
    before = cache.size_bytes
    with cache.lend(small, "a", _LIMIT) as loan:
        assert (len(loan.entries), loan.limit_bytes) == (2, _LIMIT - (before - loan.entries.size_bytes))
        loan.keep("b", _entries(2))
    assert cache.size_bytes == before


def test_who_lacked_room_gets_its_share_next_time() -> None:
    cache = WorkerCache(ValueCache)
    with cache.lend(_key(0), "", _LIMIT) as loan:
        loan.keep("a", ValueCache())  # nothing was to be kept
    _leave(cache, _key(1), "a", _entries(80))
    with cache.lend(_key(0), "a", _LIMIT) as loan:
        assert loan.limit_bytes == _LIMIT - 80 * 124
        loan.entries.begin(loan.limit_bytes)
        loan.entries.remember_many([b"%03d" % n for n in range(80)], [b"v"] * 80)
        loan.keep("b", loan.entries)
    with cache.lend(_key(0), "b", _LIMIT) as loan:
        assert loan.limit_bytes >= _LIMIT // 2


def test_the_oldest_generation_goes_first() -> None:
    entries = _generations({b"a": b"1"}, {b"b": b"2"}, {b"a": b"0", b"c": b"3"})
    assert (entries.size_bytes, len(entries)) == (4 * 122, 4)
    assert entries.shrink(4 * 122) == 0
    assert entries.shrink(4 * 122 - 1) == 2
    assert _contents(entries) == [{b"a": b"1"}, {b"b": b"2"}]
    assert entries.shrink(0) == 2
    assert (entries.size_bytes, len(entries)) == (0, 0)


def test_an_empty_generation_is_not_kept() -> None:
    assert _contents(_generations({}, {b"a": None}, {})) == [{b"a": None}]


def test_young_entries_go_last_and_stay_young_while_there_is_room() -> None:
    entries = _generations({b"b": b"2", b"c": b"3"})
    entries.remember(b"a", b"1")
    assert entries.shrink(122) == 2
    assert (entries.recent, entries.older) == ({b"a": b"1"}, [])
    entries.begin(4 * 122)
    assert (entries.recent, entries.carried) == ({b"a": b"1"}, 1)
    entries.begin(4 * 122 - 1)
    assert (entries.recent, entries.older) == ({}, [{b"a": b"1"}])
    assert entries.shrink(121) == 1
    assert (entries.size_bytes, len(entries)) == (0, 0)


def test_of_states_left_out_nothing_is_kept() -> None:
    """Nor is anything that was kept while others were left out: they may have written past the cache since."""
    entries = ValueCache()
    entries.begin(1 << 20)
    kept, out = b"\0\0\1key", b"\0\0\2key"
    entries.leave_out(frozenset({2}))
    entries.remember_many([out], [b"1"])
    entries.merge_writes(lambda: {kept: b"1", out: b"2"}, 1000, copied=True)
    assert entries.recent == {kept: b"1"}
    entries.leave_out(frozenset({2}))
    assert len(entries) == 1
    entries.leave_out(frozenset())
    assert len(entries) == 0


def test_what_a_task_took_beyond_its_loan_is_cut() -> None:
    cache = WorkerCache(ValueCache)
    _leave(cache, _key(), "a", _entries(1_000))
    assert cache.size_bytes == 0


@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.integers(0, 3), st.integers(0, 120), st.booleans(), st.booleans()),
        max_size=40,
    ),
    st.sampled_from([0, 1_000, _LIMIT]),
)
def test_everything_together_stays_within_the_limit(
    steps: list[tuple[int, int, int, bool, bool]], limit: int
) -> None:
    cache = WorkerCache(ValueCache)
    truth: dict[tuple[int, int], int] = {}
    open_loans = []
    for partition, lineage, count, keep, close in steps:
        loan = cache.lend(_key(partition), str(lineage), limit)
        assert len(loan.entries) in (0, truth.get((partition, lineage), 0))
        assert loan.entries.size_bytes <= loan.limit_bytes
        open_loans.append(loan)
        if keep:
            loan.keep(str(lineage), _entries(count))
            truth[partition, lineage] = count
        if keep or close:
            open_loans.pop().__exit__(None, None, None)
        assert cache.size_bytes + sum(loan.limit_bytes for loan in open_loans) <= limit
