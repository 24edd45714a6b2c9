"""Writes that go to disk before the end of a micro-batch: reads, scans, answers on the way, changes, errors, litter."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from asyncstate.codec import BROADCAST_GROUP
from asyncstate.errors import StoreError
from asyncstate.runtime.partition.broadcast_inputs import broadcast_digest
from asyncstate.storage import (
    MISSING,
    KeyedStore,
    MemTable,
    RocksDBStore,
    SortedChanges,
    ValueCache,
    WriteBound,
    changes_from,
)
from asyncstate.storage.commit import write_delta
from asyncstate.storage.value_cache import ENTRY_OVERHEAD_BYTES
from asyncstate.storage.write_buffer import SizeEstimator, size_in_memory
from asyncstate.testing import FaultyStore
from tests.memory_store import MemoryStore
from tests.storage.minijob import SMALL, MiniJob, key
from tests.storage.test_lease import child
from tests.storage.test_memtable import KEYS, VALUES, OverlayMachine

KEY_LISTS = st.lists(KEYS, max_size=8)


def bound(scratch: Callable[[], KeyedStore] = MemoryStore, limit_bytes: int = 1000) -> WriteBound:
    return WriteBound(limit_bytes, scratch, "the scratch folder")


@pytest.fixture
def open_scratch(tmp_path: Path) -> Iterator[Callable[[], KeyedStore]]:
    """Opens a scratch store, as a lease does; closed at the end."""
    opened: list[KeyedStore] = []

    def open_one() -> KeyedStore:
        folder = tmp_path / f"scratch-{len(opened)}"
        opened.append(RocksDBStore(folder, SMALL))
        return opened[-1]

    yield open_one
    for made in opened:
        made.close()


# -- against a dict ---------------------------------------------------------------------------------------


class SpillingMachine(OverlayMachine):
    """The calls of OverlayMachine with spills and slow answers among them; the model is still one dict."""

    scratch_stores: list[KeyedStore]

    @initialize(
        stored=st.dictionaries(KEYS, VALUES, max_size=30),
        cache=st.sampled_from([0, 300, 3000, 1 << 20]),
        on_disk=st.booleans(),
    )
    def start(self, stored: dict[bytes, bytes], cache: int, on_disk: bool) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="spilling-"))
        self.opened: list[KeyedStore] = []
        self.on_disk = on_disk
        self.under_way: list[tuple[list[bytes], list[bytes | None], int]] = []
        super().start(stored, cache)

    def over_the_store(self, carried: ValueCache | None) -> MemTable:
        self.under_way = []
        return MemTable(self.store, self.cache, carried, bound(self._open_scratch))

    def _open_scratch(self) -> KeyedStore:
        made = RocksDBStore(self.folder / str(len(self.opened)), SMALL) if self.on_disk else MemoryStore()
        self.opened.append(made)
        return made

    @precondition(lambda self: hasattr(self, "overlay"))
    @rule()
    def spill(self) -> None:
        before = dict(self.changed)
        self.overlay.spill()
        if before:
            assert self.overlay.statistics().writes.write_cache_bytes_peak > 0
        assert self.overlay.peek(b"never written or read") is MISSING

    @rule(keys=KEY_LISTS)
    def ask(self, keys: list[bytes]) -> None:
        """As a bundle that is read ahead: what memory knows now, else what the store says now."""
        known, unknown = self.overlay.peek_many(keys)
        answers = [None if value is MISSING else value for value in known]
        for index, value in zip(unknown, self.overlay.read_store([keys[i] for i in unknown]), strict=True):
            answers[index] = value
        self.under_way.append((keys, answers, self.overlay.spills))

    @precondition(lambda self: bool(getattr(self, "under_way", None)))
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        keys, answers, spills = self.under_way.pop(data.draw(st.integers(0, len(self.under_way) - 1)))
        if spills == self.overlay.spills:
            self.overlay.remember_many(keys, self.overlay.read_store(keys))
        assert self.overlay.apply_writes(keys, answers, spills, self.overlay.written(keys)) == [
            self.model.get(key) for key in keys
        ]

    @rule(start=KEYS)
    def changes_behind_a_key(self, start: bytes) -> None:
        expected = sorted(change for change in self.changed.items() if change[0] >= start)
        assert list(changes_from(self.overlay.changes(), start)) == expected

    @rule()
    def count(self) -> None:
        self.overlay.changes()
        found = self.overlay.statistics()
        assert found.writes.changes == len(self.changed)
        sizes = (len(key) + len(value or b"") for key, value in self.changed.items())
        assert found.writes.change_bytes == sum(sizes)

    def teardown(self) -> None:
        for made in getattr(self, "opened", []):
            made.close()
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder)


TestSpillingMachine = SpillingMachine.TestCase
TestSpillingMachine.settings = settings(stateful_step_count=40)


def test_spilled_writes_are_read_from_disk_and_deletes_stay(
    store: KeyedStore, open_scratch: Callable[[], KeyedStore]
) -> None:
    store.apply([(b"a", b"1"), (b"b", b"2"), (b"c", b"3")], 0)
    overlay = MemTable(store, 0, None, bound(open_scratch))
    overlay.put(b"a", b"")
    overlay.delete(b"b")
    overlay.spill()
    overlay.put(b"d", b"4")
    overlay.spill()
    overlay.put(b"a", b"10")
    assert [overlay.peek(k) for k in (b"a", b"b", b"d")] == [b"10", MISSING, MISSING]
    assert [overlay.get(k) for k in (b"a", b"b", b"c", b"d", b"e")] == [b"10", None, b"3", b"4", None]
    assert overlay.get_many([b"a", b"b", b"c", b"d"]) == [b"10", None, b"3", b"4"]
    assert overlay.scan(b"", None, 10) == [(b"a", b"10"), (b"c", b"3"), (b"d", b"4")]
    assert list(overlay.changes()) == [(b"a", b"10"), (b"b", None), (b"d", b"4")]
    assert dict(store.iterate()) == {b"a": b"1", b"b": b"2", b"c": b"3"}


def test_the_write_method_that_others_hold_stays_good() -> None:
    overlay = MemTable(MemoryStore(), bound=bound())
    put = overlay.put
    put(b"a", b"1")
    overlay.spill()
    put(b"b", b"2")
    assert overlay.scan(b"", None, 10) == [(b"a", b"1"), (b"b", b"2")]


def test_every_eighth_get_of_the_store_is_timed_also_after_a_spill() -> None:
    overlay = MemTable(MemoryStore([(b"a", b"1"), (b"c", b"3")]), bound=bound())
    took: list[tuple[bytes, bytes | None, float]] = []
    overlay.time_gets(lambda *given: took.append(given))
    assert [overlay.get(b"a") for _ in range(20)] == [b"1"] * 20  # but for the first from memory
    assert [overlay.get(b"%d" % n) for n in range(15)] == [None] * 15
    assert len(took) == 2
    overlay.put(b"b", b"2")
    overlay.spill()
    assert [overlay.get(key) for key in (b"b", b"c")] == [b"2", b"3"]
    assert [overlay.get(b"x%d" % n) for n in range(8)] == [None] * 8
    assert [key for key, *_ in took] == [b"6", b"14", b"x6"], "b is known since it was spilled"
    assert all(value is None and seconds >= 0 for _, value, seconds in took)


def test_writes_above_the_bound_are_not_held(open_scratch: Callable[[], KeyedStore]) -> None:
    overlay = MemTable(MemoryStore(), bound=bound(open_scratch))
    keys = [b"%03d" % n for n in range(100)]
    overlay.put_many(keys, [b"v"] * 100)
    assert overlay.exceeds(100, keys, [b"v"] * 100)
    overlay.spill()
    overlay.put_many(keys[:2], [b"w", None])
    assert list(overlay.changes()) == [(b"000", b"w"), (b"001", None), *((key, b"v") for key in keys[2:])]


def test_what_is_finished_counts_for_the_bound(open_scratch: Callable[[], KeyedStore]) -> None:
    """Together with other writes: when all do not fit, all are spilled."""
    overlay = MemTable(MemoryStore(), bound=bound(open_scratch, 10_000))
    expected: dict[bytes, bytes] = {}

    def write(count: int, prefix: bytes, *, finished: bool) -> bool:
        keys = [b"%s%03d" % (prefix, n) for n in range(count)]
        expected.update((key, b"v") for key in keys)
        size_bytes = count * (len(keys[0]) + 1)
        if finished and overlay.append_final(keys, [b"v"] * count, size_bytes):
            return False
        overlay.put_many(keys, [b"v"] * count)
        return overlay.exceeds(count, keys, [b"v"] * count)

    assert not write(30, b"c", finished=False)
    assert not write(25, b"b", finished=True)
    assert not write(20, b"d", finished=True)
    assert write(20, b"a", finished=True)
    overlay.spill()
    assert not write(20, b"e", finished=True)
    assert list(overlay.changes()) == sorted(expected.items())
    figures = overlay.statistics().writes
    assert (figures.changes, figures.spills) == (len(expected), 1)
    assert figures.write_cache_bytes_peak == 95 * (ENTRY_OVERHEAD_BYTES + 5)


def test_without_a_bound_nothing_is_spilled() -> None:
    overlay = MemTable(MemoryStore())
    overlay.put(b"a", b"1" * 10_000)
    assert not overlay.exceeds(1)
    overlay.spill()
    assert overlay.peek(b"a") is not MISSING
    assert overlay.statistics().writes.spills == 0


@pytest.mark.parametrize("limit", [1, 3, 64, 65, 1000])
def test_scans_are_complete_over_many_runs(limit: int, open_scratch: Callable[[], KeyedStore]) -> None:
    """Each key lies in another layer; every seventh is deleted in a later one."""
    content = {b"%04d" % n: b"s" for n in range(0, 600, 5)}
    overlay = MemTable(MemoryStore(content.items()), bound=bound(open_scratch))
    for layer in range(1, 5):
        written = {b"%04d" % n: b"%d" % layer for n in range(layer, 600, 5)}
        overlay.put_many(list(written), list(written.values()))
        content |= written
        for gone in list(content)[layer::7]:
            overlay.delete(gone)
            del content[gone]
        if layer < 4:
            overlay.spill()
    found: list[tuple[bytes, bytes]] = []
    while page := overlay.scan(found[-1][0] + b"\0" if found else b"", None, limit):
        found += page
    assert found == sorted(content.items())


# -- answers that are under way while writes are spilled ---------------------------------------------------


def test_an_answer_from_before_a_spill_gets_what_was_spilled(open_scratch: Callable[[], KeyedStore]) -> None:
    faulty = FaultyStore(MemoryStore([(b"a", b"old"), (b"b", b"old"), (b"c", b"old")]))
    overlay = MemTable(faulty, bound=bound(open_scratch))
    faulty.hang()
    with ThreadPoolExecutor(1) as threads:
        asked = overlay.spills
        reading = threads.submit(overlay.read_store, [b"a", b"b", b"c"])
        faulty.waiting.acquire()  # it is in the store
        overlay.put(b"a", b"new")
        overlay.delete(b"b")
        overlay.spill()
        faulty.release()
        answers = reading.result()
    assert answers == [b"old", b"old", b"old"]
    assert overlay.apply_writes([b"a", b"b", b"c"], answers, asked, overlay.written([b"a", b"b", b"c"])) == [
        b"new",
        None,
        b"old",
    ]


@pytest.mark.parametrize("seed", range(4))
def test_threads_read_while_the_mailbox_writes_and_spills(
    seed: int, store: KeyedStore, open_scratch: Callable[[], KeyedStore]
) -> None:
    """Whatever the interleaving: an answer with the writes over it is what the model says when it is taken in."""
    chance = random.Random(seed)
    keys = [b"%03d" % n for n in range(60)]
    model: dict[bytes, bytes] = {k: b"stored" for k in keys[::2]}
    store.apply(sorted(model.items()), 0)
    overlay = MemTable(store, 4000, None, bound(open_scratch))
    under_way: list[tuple[list[bytes], int, Future[list[bytes | None]]]] = []
    with ThreadPoolExecutor(4) as threads:
        for step in range(600):
            what = chance.random()
            chosen = sorted(chance.sample(keys, 8))
            if what < 0.35:
                for k in chosen[:3]:
                    overlay.put(k, b"%d" % step)
                    model[k] = b"%d" % step
            elif what < 0.45:
                overlay.delete_many(chosen[:2])
                for k in chosen[:2]:
                    model.pop(k, None)
            elif what < 0.5:
                overlay.spill()
            elif what < 0.8:
                under_way.append((chosen, overlay.spills, threads.submit(overlay.read_store, chosen)))
            elif under_way:
                asked, spills, answer = under_way.pop(chance.randrange(len(under_way)))
                values = answer.result()
                if spills == overlay.spills:
                    overlay.remember_many(asked, values)
                assert overlay.apply_writes(asked, values, spills, overlay.written(asked)) == [
                    model.get(k) for k in asked
                ]
            assert overlay.get_many(chosen) == [model.get(k) for k in chosen]
    assert overlay.statistics().writes.spills > 5
    assert overlay.scan(b"", None, 100) == sorted(model.items())


# -- what is committed -------------------------------------------------------------------------------------

WRITES = st.lists(st.tuples(KEYS, st.none() | VALUES), max_size=40)


def overlays(writes: list[tuple[bytes, bytes | None]], spill_every: int) -> tuple[MemTable, MemTable]:
    """The same writes in memory, and spilled now and then."""
    plain, spilling = MemTable(MemoryStore()), MemTable(MemoryStore(), bound=bound())
    for number, (written, value) in enumerate(writes):
        for overlay in (plain, spilling):
            overlay.put_many([written], [value])
        if number % spill_every == 0:
            spilling.spill()
    return plain, spilling


@given(WRITES, st.integers(1, 9))
@settings(max_examples=settings().max_examples // 2)
def test_the_delta_has_the_same_content(writes: list[tuple[bytes, bytes | None]], spill_every: int) -> None:
    plain, spilling = overlays(writes, spill_every)
    deltas: list[tuple[int, list[tuple[bytes, bytes]]] | None] = []
    for overlay in (plain, spilling):
        with tempfile.TemporaryDirectory() as folder:
            changes = overlay.changes()
            if not changes:
                deltas.append(None)
                continue
            ref = write_delta(changes, Path(folder, "delta.sst"), "delta.sst", SMALL)
            store = RocksDBStore(Path(folder, "db"), SMALL)
            # Deletes show only over something.
            store.apply([(written, b"below") for written in sorted({w for w, _ in writes})], 0)
            store.ingest([Path(folder, "delta.sst")], 1)
            deltas.append((ref.num_entries, list(store.iterate())))
            store.close()
    assert deltas[0] == deltas[1]


@given(WRITES, st.integers(1, 9))
def test_the_digest_of_broadcast_state_is_the_same(
    writes: list[tuple[bytes, bytes | None]], spill_every: int
) -> None:
    prefixed = [(BROADCAST_GROUP + b"\x08" + w if len(w) % 2 else b"\x00" + w, value) for w, value in writes]
    plain, spilling = overlays(prefixed, spill_every)
    expected = broadcast_digest(plain.changes(), [])
    assert broadcast_digest(spilling.changes(), []) == expected
    assert bool(expected) == any(w.startswith(BROADCAST_GROUP) for w, _ in prefixed)


def test_changes_can_be_gone_through_again_and_are_counted_on_the_way() -> None:
    _, spilling = overlays([(b"%04d" % (n % 700), b"v") for n in range(10_000)], 1000)
    changes: SortedChanges = spilling.changes()
    assert changes
    first = list(changes)
    assert first == list(changes) == [(b"%04d" % n, b"v") for n in range(700)]
    assert len(changes) == 700
    assert spilling.statistics().writes.changes == 700


def test_a_batch_after_one_that_spilled_finds_its_cache_right(store: KeyedStore) -> None:
    store.apply([(b"%03d" % n, b"old") for n in range(100)], 0)
    overlay = MemTable(store, 1 << 20, None, bound())
    for n in range(100):
        overlay.get(b"%03d" % n)
    for n in range(0, 60, 2):
        overlay.put(b"%03d" % n, b"new")
    overlay.spill()
    for n in range(0, 30, 3):
        overlay.delete(b"%03d" % n)
    store.apply(overlay.changes(), 1)
    expected = [store.get(b"%03d" % n) for n in range(100)]
    following = MemTable(store, 1 << 20, overlay.release())
    assert [following.get(b"%03d" % n) for n in range(100)] == expected
    assert following.statistics().store_reads == 0


@pytest.mark.parametrize("cache_bytes", [0, 4_000, 16_000, 1 << 20])
def test_what_was_read_before_a_spill_does_not_hide_it(cache_bytes: int) -> None:
    """The writes do not fit into the cache, lie beside what was read, or are merged with it."""
    keys = [b"%03d" % n for n in range(60)]
    overlay = MemTable(MemoryStore((k, b"old") for k in keys), cache_bytes, None, bound())
    for round_ in range(3):
        for k in keys[:30]:
            overlay.get(k)
        ahead = overlay.unknown(keys)
        overlay.keep_read_ahead(ahead, overlay.read_store(ahead))
        overlay.put_many(keys, [b"%d" % round_] * 60)
        overlay.spill()
        assert overlay.get_many(keys) == [b"%d" % round_] * 60
        assert [overlay.get(k) for k in keys] == [b"%d" % round_] * 60


# -- when to spill -----------------------------------------------------------------------------------------


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 5_000)), max_size=60), max_size=20),
    st.integers(1_000, 200_000),
)
def test_looks_at_few_new_writes_are_exact(slices: list[list[tuple[int, int]]], limit: int) -> None:
    """Up to 64 new entries are all measured. Values written again are not, until all are counted."""
    entries: dict[bytes, bytes | None] = {}
    meter = SizeEstimator(entries, limit)
    for written in slices:
        new = {b"%d" % number: b"x" * length for number, length in written if b"%d" % number not in entries}
        entries.update(new)
        exceeded = meter.look(len(written))
        size_bytes = size_in_memory(entries)
        assert not exceeded or size_bytes > limit / 2
        assert exceeded or size_bytes <= limit
        if exceeded:
            entries.clear()
            meter.emptied()


def test_old_keys_with_growing_values_are_noticed() -> None:
    entries: dict[bytes, bytes | None] = {b"%d" % n: b"" for n in range(50)}
    meter = SizeEstimator(entries, 1 << 20)
    meter.look(50)
    looks = 0
    while not meter.look(100):
        looks += 1
        for written in entries:
            entries[written] = b"x" * (looks * 1000)
    assert size_in_memory(entries) < 2 << 20


def test_writes_that_became_small_again_are_not_spilled() -> None:
    entries: dict[bytes, bytes | None] = {}
    meter = SizeEstimator(entries, 1 << 20)
    for n in range(5_000):
        entries[b"%d" % n] = b"x" * 1000
        entries[b"%d" % n] = None
        assert n % 50 or not meter.look(50)


def test_rows_that_write_much_are_looked_at_sooner() -> None:
    entries: dict[bytes, bytes | None] = {}
    meter = SizeEstimator(entries, 1 << 30)
    assert meter.rows_to_look(2_000) == 1024  # 64 kb a row are taken for granted at first
    for n in range(2_000):
        entries[b"%d" % n] = b"x"
    meter.look(2_000)
    assert meter.rows_to_look(2_000) == 2_000
    entries[b"large"] = bytes(100 << 20)
    meter.look(1)
    assert meter.rows_to_look(2_000) == 1


# -- errors and litter -------------------------------------------------------------------------------------


def test_a_scratch_folder_that_cannot_be_made_is_named(job: MiniJob) -> None:
    with job.lease(None, 0, 1) as lease:
        lease.scratch_folder.write_bytes(b"in the way")
        overlay = MemTable(lease.store, bound=WriteBound(1000, lease.open_scratch, str(lease.scratch_folder)))
        overlay.put(key(0, "a"), b"1")
        with pytest.raises(StoreError, match=r"spilled to .*slot-0/spilled.*async-state\.write-cache-size"):
            overlay.spill()
        assert overlay.get(key(0, "a")) == b"1"
        assert list(overlay.changes()) == [(key(0, "a"), b"1")]


class FullStore(MemoryStore):
    """Takes a few changes, then the disk is full."""

    def apply(self, changes: SortedChanges, version: int) -> None:
        if version == 1:
            raise StoreError("No space left on device")
        super().apply(changes, version)


def test_a_full_disk_loses_nothing_and_says_what_to_do() -> None:
    overlay = MemTable(MemoryStore([(b"a", b"0")]), bound=bound(FullStore))
    overlay.put(b"a", b"1")
    overlay.spill()
    overlay.put(b"a", b"2")
    overlay.put(b"b", b"2")
    with pytest.raises(StoreError, match="the scratch folder: No space left on device. Free space"):
        overlay.spill()
    assert overlay.get_many([b"a", b"b"]) == [b"2", b"2"]
    assert list(overlay.changes()) == [(b"a", b"2"), (b"b", b"2")]
    assert overlay.statistics().writes.spills == 1


def test_what_was_spilled_goes_with_the_lease(job: MiniJob) -> None:
    with job.lease(None, 0, 1) as lease:
        overlay = MemTable(lease.store, bound=WriteBound(1, lease.open_scratch, "x"))
        overlay.put(key(0, "a"), b"1")
        overlay.spill()
        assert lease.scratch_folder.exists()
    assert not lease.scratch_folder.exists()
    assert job.content(None) == {}


DYING = """
    with stores.acquire("op", 0, base) as lease:
        from asyncstate.storage import WriteBound, MemTable
        overlay = MemTable(lease.store, bound=WriteBound(1, lease.open_scratch, "x"))
        overlay.put(b"\\0\\0a", b"lost")
        overlay.spill()
        overlay.put(b"\\0\\0b", b"lost")
        print(lease.scratch_folder, flush=True)
        die()
"""


@pytest.mark.parametrize("others", [0, 1])
def test_what_a_killed_process_spilled_is_gone_at_the_next_lease(
    job: MiniJob, tmp_path: Path, others: int
) -> None:
    """Also when the next lease takes another slot, as after an attempt that ran beside the killed one."""
    manifest = job.batch({key(0, "a"): b"1"})
    held = [job.lease(manifest, 0, 1) for _ in range(others)]
    process = child(tmp_path, 4, DYING)
    printed, _ = process.communicate(timeout=60)
    scratch = Path(printed.strip())
    assert process.returncode == -9
    assert scratch.exists()
    for lease in held:
        lease.release()
    with job.lease(manifest, 0, 1) as lease:
        assert (lease.scratch_folder == scratch) is (others == 0)
        assert not scratch.exists()
        assert dict(lease.store.iterate()) == {key(0, "a"): b"1"}
