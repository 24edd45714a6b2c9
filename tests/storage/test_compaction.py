"""Large stores are compacted as copies: no micro-batch merges them, and none sees anything of it."""

from __future__ import annotations

import random
import shutil
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncstate.storage import LocalStores, Manifest, RocksDBStore, StorePool, partition_restore_plan
from asyncstate.storage.compaction import BackgroundCompactions, CopyRecord, copies
from asyncstate.storage.slots import Slot, new_store_folder
from tests.storage.minijob import SMALL, MiniJob, applied, key
from tests.storage.test_lease import compactions

LARGE = replace(SMALL, compact_here_bytes=0)
"""Every store is a large one."""
ENTRIES = 400


def writes_of(batch: int) -> dict[bytes, bytes | None]:
    """A fifth of the keys, all over the key range; some of them deleted."""
    chosen = range(batch % 5, ENTRIES, 5)
    return {key(n % 16, f"{n:04}"): None if n % 7 == batch % 7 else b"%d" % batch for n in chosen}


def newest(job: MiniJob) -> Manifest:
    manifest = job.checkpoint.latest()
    assert manifest is not None
    return manifest


class Watched:
    """A job of one partition with large stores; what its leases show."""

    def __init__(self, root: Path, snapshot_every_deltas: int) -> None:
        copies.join()  # those of other tests: two may run in a process, and a third is not begun
        self.root = root
        self.job = MiniJob(root, snapshot_every_deltas)
        self.job.options = LARGE
        self.expected: dict[bytes, bytes] = {}
        self.paths: list[str] = []
        self.runs: list[int] = []
        self.merges: list[str] = []
        self.fetched = 0

    def batch(self, number: int) -> None:
        """Commit a micro-batch, and look at the store that the next one would have."""
        writes = writes_of(number)
        self.expected = applied(self.expected, writes)
        self.job.batch(writes)
        with self.job.lease(newest(self.job), 0, 1) as lease:
            self.paths.append(lease.store.path)
            self.runs.append(lease.store.sorted_runs())
            self.fetched += lease.restored.bytes_fetched
            assert dict(lease.store.iterate()) == self.expected
        self.merges += compactions(Path(lease.store.path).parent)

    def finish_copies(self) -> None:
        copies.join(self.root)


@pytest.mark.long
@settings(max_examples=6)
@given(
    finished=st.lists(st.booleans(), min_size=24, max_size=30),
    snapshot_every_deltas=st.sampled_from([2, 5, 100]),
)
def test_micro_batches_merge_nothing_of_a_large_store(
    finished: Sequence[bool], snapshot_every_deltas: int
) -> None:
    """Whenever copies become ready, and however many snapshots they outlast."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        watched = Watched(root, snapshot_every_deltas)
        for number, wait in enumerate([*finished, True, False]):
            watched.batch(number)
            if wait:
                watched.finish_copies()
        watched.finish_copies()
        assert watched.merges == []
        assert watched.fetched == 0
        assert set(watched.job.ways[1:]) == {"advanced", "kept"}
        assert len(set(watched.paths)) > 1  # a copy has taken the store's place
        assert watched.runs[-1] <= LARGE.sorted_runs_light + 2


def test_runs_are_few_when_copies_are_quick(tmp_path: Path) -> None:
    watched = Watched(tmp_path, 3)
    for number in range(30):
        watched.batch(number)
        watched.finish_copies()
    assert max(watched.runs) <= LARGE.sorted_runs_light + 1
    slots = [
        slot for slot in (tmp_path / "local").glob("job-*/op/0/slot-?") if list(slot.glob("db-*/CURRENT"))
    ]
    assert len(slots) <= 2  # the store, and its copy: what a copy has replaced is gone


def test_a_copy_outlasts_snapshots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those after which the manifest does not know any more of the deltas that the copy lacks."""
    may_end = threading.Event()
    monkeypatch.setattr("asyncstate.storage.compaction._know_checksums", lambda copy: may_end.wait())
    watched = Watched(tmp_path, 2)
    try:
        for number in range(14):
            watched.batch(number)
    finally:
        may_end.set()
        watched.finish_copies()
    assert len(set(watched.paths)) == 1
    assert watched.runs[-1] == 14
    may_end.clear()  # a new copy would not have outlasted anything
    try:
        watched.batch(14)
    finally:
        may_end.set()
        watched.finish_copies()
    assert watched.paths[-1] != watched.paths[0]
    assert watched.runs[-1] < 14
    assert watched.fetched == 0


@pytest.mark.parametrize("together", [False, True], ids=["own files", "one file"])
@pytest.mark.parametrize("is_kept", [True, False], ids=["kept here", "gone"])
def test_a_copy_outlasts_what_the_checkpoint_retains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, together: bool, is_kept: bool
) -> None:
    """Deltas that the copy lacks are no longer in the checkpoint: it takes those of this machine, or is not used."""
    may_end = threading.Event()
    monkeypatch.setattr("asyncstate.storage.compaction._know_checksums", lambda copy: may_end.wait())
    watched, pool = Watched(tmp_path, 2), StorePool()
    watched.job = MiniJob(
        tmp_path, 2, open_stores=pool, together=together
    )  # small deltas leave no file in a store
    watched.job.options = LARGE
    try:
        for number in range(26):
            watched.batch(number)
            watched.job.checkpoint.retain(2)
    finally:
        may_end.set()
        watched.finish_copies()
    assert len(set(watched.paths)) == 1
    if not is_kept:
        for file in tmp_path.glob("local/*/op/0/slot-?/kept/*"):
            file.unlink()
    may_end.clear()  # a new copy would not have outlasted anything
    try:
        watched.batch(26)  # compares the content
    finally:
        may_end.set()
        watched.finish_copies()
    assert (watched.paths[-1] != watched.paths[0]) is is_kept
    assert set(watched.job.ways[1:]) == {"advanced", "kept"}
    pool.close()


def test_without_a_free_slot_the_store_is_merged_itself_above_the_limit(job: MiniJob, tmp_path: Path) -> None:
    job.options = replace(LARGE, sorted_runs_limit=8)
    job.stores = LocalStores(tmp_path / "local", "job", job.files, slots_max=1)
    runs = []
    for number in range(12):
        job.batch(writes_of(number))
        with job.lease(newest(job), 0, 1) as lease:
            runs.append(lease.store.sorted_runs())
    assert runs[:8] == [*range(1, 9)]
    assert max(runs) <= 9
    assert runs[-1] < 9


def test_what_a_dead_process_has_begun_is_begun_again(tmp_path: Path) -> None:
    watched = Watched(tmp_path, 100)
    watched.batch(0)
    dead = Slot(Path(watched.paths[0]).parent.with_name("slot-1"))
    dead.folder.mkdir()
    CopyRecord("some content").write(dead)
    new_store_folder(dead.folder).write_bytes(b"")
    for number in range(1, 16):
        watched.batch(number)
        watched.finish_copies()
    assert dead.folder in {Path(path).parent for path in watched.paths}


def test_a_copy_takes_along_what_is_cached_of_the_store_that_it_replaces(tmp_path: Path) -> None:
    """That one is open in another worker, which gives it up."""
    workers = [StorePool(), StorePool()]
    first = MiniJob(tmp_path, 100, open_stores=workers[0])
    first.options = LARGE
    number = 0
    while not list(tmp_path.rglob("COPY")):
        first.batch(writes_of(number))
        copies.join(tmp_path)
        number += 1
    second = MiniJob(tmp_path, 100, open_stores=workers[1])
    second.options = LARGE
    base = partition_restore_plan(newest(first), "op", 0, 1)
    ((held, kept),) = workers[0]._kept.items()
    workers[0]._kept[held] = kept._replace(export_cache=lambda: (base.lineage, "cached"))
    with second.lease(newest(second), 0, 1) as lease:
        assert str(Path(lease.store.path).parent) != held
        assert lease.cached == "cached"
        assert not Path(held).exists()
    for stores in workers:
        stores.close()


def test_a_copy_of_what_was_rolled_back_is_not_used(tmp_path: Path) -> None:
    watched = Watched(tmp_path, 100)
    for number in range(8):
        watched.batch(number)
    watched.finish_copies()
    watched.job.checkpoint.rollback(2)
    watched.expected = {}
    for number in range(3):
        watched.expected = applied(watched.expected, writes_of(number))
    for number in range(20, 34):
        watched.batch(number)  # compares the content
        watched.finish_copies()


def test_a_compaction_that_is_given_up_leaves_a_slot_to_be_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = RocksDBStore(tmp_path / "store", LARGE)
    for number in range(8):
        store.apply(sorted(writes_of(number).items()), number)
    before = dict(store.iterate())
    slot = Slot(tmp_path / "slot-1")
    assert slot.take()
    given_up = BackgroundCompactions()
    monkeypatch.setattr(RocksDBStore, "sorted_runs", lambda _: 99)  # it never ends by itself
    assert given_up.begin(store, slot, "lineage")
    given_up.close()
    assert slot.record() is None
    assert slot.take()
    slot.release()
    assert dict(store.iterate()) == before
    store.close()


@pytest.mark.long
def test_copies_wait_for_each_other_and_are_merged_all_the_same(tmp_path: Path) -> None:
    """RocksDB merges one at a time: the second one begins when the first, which is slow, has ended."""
    under_way, stores = BackgroundCompactions(), []
    slots = [Slot(tmp_path / f"slot-{number}") for number in range(2)]
    for slot in slots:
        store = RocksDBStore(f"{slot.folder}-store", LARGE)
        for number in range(8):  # 60 MB, of which a copy may write 24 MiB a second
            store.apply([(key(n, f"{number}"), random.randbytes(1 << 20)) for n in range(8)], number)
        stores.append(store)
        assert slot.take()
        assert under_way.begin(store, slot, "lineage")
    under_way.join()
    for slot, store in zip(slots, stores, strict=True):
        assert slot.record() is not None
        merged = RocksDBStore(slot.db, LARGE)
        assert merged.sorted_runs() <= LARGE.sorted_runs
        merged.close()
        store.close()


def test_a_copy_of_a_deleted_folder_ends_and_is_in_nobodys_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The folder is made again at the same path, and its slots are taken, while the copy is open."""
    goes_on = threading.Event()
    settle = RocksDBStore.settle

    def held_up(store: RocksDBStore, **how: Any) -> bool:
        if threading.current_thread().name == "asyncstate-compaction":
            goes_on.wait()
        return settle(store, **how)

    monkeypatch.setattr(RocksDBStore, "settle", held_up)
    watched = Watched(tmp_path, 100)
    try:
        for number in range(8):
            watched.batch(number)
        copy_of = Path(watched.paths[0]).parent.with_name("slot-1")
        assert (copy_of / "COPY").exists()
        shutil.rmtree(tmp_path / "local")
        watched.job.options = replace(LARGE, sorted_runs_light=100)  # no further copy
        manifest = newest(watched.job)
        with watched.job.lease(manifest, 0, 1), watched.job.lease(manifest, 0, 1) as second:
            assert Path(second.store.path).parent == copy_of
            assert dict(second.store.iterate()) == watched.expected
            goes_on.set()
            watched.finish_copies()
            assert dict(second.store.iterate()) == watched.expected
    finally:
        goes_on.set()
        watched.finish_copies()
    assert "cannot merge" not in caplog.text


def test_a_copy_waits_for_a_thread_to_be_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    watched = Watched(tmp_path, 100)
    with monkeypatch.context() as patch:
        patch.setattr("threading.Thread.start", none_left)
        for number in range(8):
            watched.batch(number)
    assert watched.runs == list(range(1, 9))
    watched.batch(8)
    watched.finish_copies()
    watched.batch(9)
    assert watched.runs[-1] < 9


@pytest.mark.parametrize("entries", [60_000, 2_000])
def test_filters_and_indexes_are_within_the_bound_of_the_block_cache(tmp_path: Path, entries: int) -> None:
    options = replace(SMALL, block_cache_bytes=1 << 20, sorted_runs_max=100)
    store = RocksDBStore(tmp_path / "store", options)
    keys = [key(n % 16, f"{n:08}") for n in range(entries)]
    for version in range(4):
        store.apply(sorted((each, b"%032d" % version) for each in keys), version)
    assert None not in store.get_many(sorted(keys))
    found = store.statistics()
    assert found.table_reader_bytes > entries
    assert found.block_cache_bytes + found.table_reader_bytes <= options.block_cache_bytes
    if entries == 60_000:
        assert found.block_cache_bytes > options.block_cache_bytes // 2  # the rest of the room is used
    store.close()
