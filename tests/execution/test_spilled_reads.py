"""Bundles whose keys were read ahead, and then written and spilled before the answer came."""

from __future__ import annotations

from itertools import permutations
from typing import NoReturn

import pytest

from asyncstate.execution import AsyncLimits, Completion, ListGet, Pacer
from asyncstate.execution.bundle_reads import BundleReads
from asyncstate.execution.reads import Reads, Values
from asyncstate.storage import MemTable, WriteBound
from tests.memory_store import MemoryStore


class AlwaysSlow(Pacer):
    """Sends every read off."""

    @property
    def waits_for_device(self) -> bool:
        return True

    def probe_keys(self) -> int:
        return 0


class Bench:
    """BundleReads whose list gets wait in ``sent`` until the test answers them."""

    def __init__(self, overlay: MemTable) -> None:
        self.sent: list[ListGet] = []
        self._reads = Reads(
            overlay,
            AlwaysSlow(),
            AsyncLimits(),
            lambda gets, threads: self.sent.extend(gets),
            print,
            self._fail,
        )
        self.bundles = BundleReads(overlay, self._reads)

    def _fail(self, get: ListGet, error: BaseException) -> NoReturn:
        raise error

    def answer(self, get: ListGet, values: Values) -> None:
        self._reads.answered(Completion(get, values, None))


KEYS = [b"%03d" % n for n in range(100)]
STEPS = ("write", "spill", "answer")


@pytest.mark.parametrize("order", list(permutations(STEPS)), ids="-".join)
@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
def test_a_bundle_read_ahead_sees_what_was_spilled_meanwhile(
    order: tuple[str, ...], cache_bytes: int
) -> None:
    """In whatever order; and so does the bundle after it, which finds in the cache what that one has read."""
    store = MemoryStore((key, b"old") for key in KEYS)
    overlay = MemTable(store, cache_bytes, None, WriteBound(1, MemoryStore, "memory"))
    bench = Bench(overlay)
    reads, sent = bench.bundles, bench.sent
    overlay.put(b"900", b"makes a run")
    overlay.spill()
    reads.prefetch(KEYS)
    answers = [(get, store.get_many(get.keys)) for get in sent]  # what the threads find
    expected: list[bytes | None] = [b"old"] * 100
    for step in order:
        if step == "write":
            overlay.put_many(KEYS[:60], [b"new"] * 60)
            overlay.delete_many(KEYS[60:80])
            expected[:80] = [b"new"] * 60 + [None] * 20
        elif step == "spill":
            overlay.spill()
        else:
            for get, values in answers:
                bench.answer(get, values)
    assert reads.get(KEYS).get() == expected
    sent.clear()
    following = reads.get(KEYS[::2])
    for get in sent:
        bench.answer(get, overlay.read_store(get.keys))
    assert following.get() == expected[::2]
    assert [overlay.get(key) for key in KEYS] == expected


def test_a_spill_between_reading_ahead_and_the_bundle() -> None:
    """The bundle sees what was written before it asked, in memory or not, and nothing that is written later."""
    store = MemoryStore((key, b"old") for key in KEYS)
    overlay = MemTable(store, 0, None, WriteBound(1, MemoryStore, "memory"))
    bench = Bench(overlay)
    reads, sent = bench.bundles, bench.sent
    reads.prefetch(KEYS)
    overlay.put(KEYS[0], b"new")
    for get in sent[:-1]:
        bench.answer(get, store.get_many(get.keys))
    overlay.spill()
    overlay.put(KEYS[1], b"newer")
    waiting = reads.get(KEYS)
    assert reads.unanswered == 1  # nothing may be spilled now
    overlay.put(KEYS[2], b"too late")
    bench.answer(sent[-1], store.get_many(sent[-1].keys))
    assert waiting.get() == [b"new", b"newer"] + [b"old"] * 98
    assert reads.unanswered == 0


def test_what_was_prefetched_and_not_requested_is_kept_for_one_more_bundle_only() -> None:
    store = MemoryStore((key, b"old") for key in KEYS)
    bench = Bench(MemTable(store, 0))
    reads, sent = bench.bundles, bench.sent
    for first in range(0, 100, 10):
        reads.begin_prefetch()
        reads.prefetch(KEYS[first : first + 10])
        assert len(reads._ahead) + len(reads._ahead_before) <= 2
    for get in sent:
        bench.answer(get, store.get_many(get.keys))
    sent.clear()
    assert reads.get(KEYS[80:90]).get() == [b"old"] * 10, "of the bundle that is processed next"
    assert reads.get(KEYS[90:]).get() == [b"old"] * 10
    assert not sent, "both were prefetched"
    assert not [*reads._ahead, *reads._ahead_before]
