"""Nothing of a closed store lives on: no file, no RocksDB object and no thread of it, however its use has ended.

Errors are kept, as ``sys.last_exc`` keeps them in a notebook: what their tracebacks hold is alive.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from asyncstate.errors import AsyncStateError, CheckpointCorruptionError, CheckpointError, StoreError
from asyncstate.storage import Manifest, RocksDBStore, StorePool, held, partition_restore_plan
from asyncstate.storage.compaction import BackgroundCompactions, copies
from asyncstate.storage.rocksdb_options import _caches
from asyncstate.storage.slots import Slot
from tests.storage.minijob import SMALL, MiniJob, Writes, key

SETTLE = RocksDBStore.settle
A = key(0, "a")
MANY: Writes = {key(n % 16, f"{n:05}"): b"value%d" % n for n in range(20_000)}


def alive(folder: Path) -> list[str]:
    """What this process has open below ``folder``."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{number}"))
        except OSError:
            continue  # the listing's own
    stores = [vars(each) for each in gc.get_objects() if RocksDBStore in type(each).__mro__]
    found += [store["path"] for store in stores if store.get("_db") or store.get("_blocks")]
    found += [path for cache in _caches.values() for path in cache._readers]
    return [path for path in found if path.startswith(str(folder))]


@pytest.fixture(autouse=True)
def nothing_lives_on(tmp_path: Path) -> Iterator[None]:
    """Looks after each test."""
    before = set(threading.enumerate())
    yield
    assert alive(tmp_path) == []
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
        assert not thread.is_alive(), thread.name


@pytest.fixture(params=[False, True], ids=["closed each time", "kept open"])
def pool(request: pytest.FixtureRequest, nothing_lives_on: None) -> Iterator[StorePool | None]:
    """What keeps stores open, until the test has ended."""
    made = StorePool() if request.param else None
    yield made
    if made is not None:
        made.close()


def failing(error: Exception) -> Callable[..., Any]:
    """A function that fails."""

    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


def store_of(lease: Any) -> RocksDBStore:
    store = lease.store
    assert isinstance(store, RocksDBStore)
    return store


def test_of_a_micro_batch(tmp_path: Path, pool: StorePool | None) -> None:
    job = MiniJob(tmp_path, 2, open_stores=pool)
    for n in range(5):  # snapshots among them
        manifest = job.batch({A: b"%d" % n})
    with job.lease(manifest, 0, 1) as lease:
        store = store_of(lease)
        assert store.cold([A[:2]]) is not None  # opens the files a second time
        lease.open_scratch().apply([(A, b"spilled")], 0)
    assert len(alive(tmp_path)) > 0 if pool else not alive(tmp_path)


@pytest.mark.parametrize("what", ["the task", "a damaged store"])
def test_of_a_failed_task(tmp_path: Path, pool: StorePool | None, what: str) -> None:
    job = MiniJob(tmp_path, open_stores=pool)
    manifest = job.batch({A: b"1"})

    def task() -> None:
        with job.lease(manifest, 0, 1) as lease:
            lease.open_scratch().apply([(A, b"spilled")], 0)
            lease.store.damaged = what != "the task"
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine") as raised:
        task()
    assert alive(tmp_path) == []
    assert raised.tb is not None


@pytest.mark.parametrize("entries", [20_000, 10], ids=["with an iterator", "with a cursor"])
def test_of_a_scan_that_meets_a_damaged_block(tmp_path: Path, entries: int) -> None:
    job = MiniJob(tmp_path, 100)
    job.batch(MANY)
    manifest = job.batch({})
    with job.lease(manifest, 0, 1) as lease:
        (table,) = Path(lease.store.path).glob("*.sst")
    damaged = bytearray(table.read_bytes())
    for position in range(0 if entries == 10 else 50_000, len(damaged) - 50_000, 1_000):
        damaged[position] ^= 0xFF
    table.write_bytes(damaged)
    job.options = replace(SMALL, block_cache_bytes=SMALL.block_cache_bytes + entries)  # an empty cache
    with pytest.raises(StoreError, match="scanned") as raised, job.lease(manifest, 0, 1) as lease:
        lease.store.scan(b"", None, entries)
    assert alive(tmp_path) == []
    assert raised.tb is not None


@pytest.mark.parametrize("what", ["fetching", "opening", "ingesting", "recording"])
def test_of_a_restore_that_fails(
    tmp_path: Path, pool: StorePool | None, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    job = MiniJob(tmp_path, 100, open_stores=pool)
    job.batch(MANY)
    manifest = job.batch({A: b"2"} | {key(1, f"{n}"): b"" for n in range(5_000)})
    if what == "fetching":
        for delta in manifest.operators["op"].partition(0).deltas:
            job.files.delete(delta.file.name)
        for local in tmp_path.glob("local/job-*/op/0/slot-?/kept/*"):
            local.unlink()
    with monkeypatch.context() as patched:
        full = failing(StoreError("no space"))
        if what == "opening":
            patched.setattr(RocksDBStore, "_open", full)
        elif what == "ingesting":
            patched.setattr(RocksDBStore, "ingest", full)
        elif what == "recording":
            patched.setattr("asyncstate.storage.slots.Slot.write", failing(OSError("no space")))
        if pool is not None and what == "opening":
            pool.close()
        with pytest.raises(AsyncStateError) as raised:
            job.lease(manifest, 0, 1)
    assert alive(tmp_path) == []
    assert isinstance(raised.value, CheckpointCorruptionError if what == "fetching" else StoreError)


@pytest.mark.parametrize("what", ["reading", "writing"])
def test_of_partitions_that_cannot_be_collected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """After a change of parallelism; the store of an old partition is open meanwhile."""
    job = MiniJob(tmp_path, 100)
    manifest = job.batch(MANY)
    with monkeypatch.context() as patched:
        full = failing(StoreError("no space"))
        if what == "reading":
            patched.setattr(RocksDBStore, "scan", full)
        else:
            patched.setattr("asyncstate.storage.restore.write_sst", full)
        with pytest.raises(StoreError, match="no space") as raised:
            job.lease(manifest, 1, 2)
        assert alive(tmp_path) == []
    assert raised.tb is not None


@pytest.mark.parametrize("what", ["put_bytes", "put_file", "put_files"])
def test_of_a_commit_that_fails(
    tmp_path: Path, pool: StorePool | None, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    job = MiniJob(tmp_path, 1, open_stores=pool)
    manifest = job.batch({A: b"1"})
    writes = MANY if what == "put_file" else {A: b"2"}
    if what == "put_file":
        job.snapshot_every_deltas = 100
    with monkeypatch.context() as patched:
        patched.setattr(type(job.files), what, failing(CheckpointError("mine")))
        with pytest.raises(CheckpointError, match="mine") as raised:
            job.attempt(manifest, 1, writes)
    assert alive(tmp_path) == []
    assert raised.tb is not None


def newest(job: MiniJob) -> Manifest:
    manifest = job.checkpoint.latest()
    assert manifest is not None
    return manifest


def test_of_a_store_that_is_being_compacted(tmp_path: Path, pool: StorePool | None) -> None:
    """By RocksDB's threads, in the store itself."""
    job = MiniJob(tmp_path, 100, open_stores=pool)
    for n in range(6):
        job.batch({**MANY, A: b"%d" % n})

    def task() -> None:
        with job.lease(newest(job), 0, 1) as lease:
            lease.store.compact()
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine") as raised:
        task()
    assert alive(tmp_path) == []
    assert raised.tb is not None
    with job.lease(newest(job), 0, 1) as lease:
        assert lease.restored.method == "kept"
        assert lease.store.get(A) == b"5"


@pytest.mark.parametrize("of", ["the store", "the blocks of ranges"])
def test_of_a_store_that_cannot_be_closed_while_it_is_read(tmp_path: Path, of: str) -> None:
    """It is closed once the read has ended; what else the store has open is closed at once."""
    job = MiniJob(tmp_path, 100)
    manifest = job.batch(MANY)
    keys, began = sorted(MANY) * 20, threading.Event()

    def read(store: RocksDBStore) -> None:
        began.set()
        if of == "the store":
            store.get_many(keys)
        else:
            store.warm(keys)

    lease = job.lease(manifest, 0, 1)
    lease.store.cold([A[:2]])  # opens the files a second time
    reading = threading.Thread(target=read, args=[store_of(lease)])
    before = sys.getswitchinterval()
    sys.setswitchinterval(60)  # the reader goes on until RocksDB reads
    try:
        reading.start()
        began.wait()
        with pytest.raises(StoreError, match="could not be closed") as raised:
            lease.release()
    finally:
        sys.setswitchinterval(before)
    reading.join()
    assert alive(tmp_path) == []
    assert raised.tb is not None


def settled_while_files_are_deleted(store: RocksDBStore, **how: Any) -> bool:
    """As ``settle``; RocksDB deletes the files that it has merged some time after that: one is just being deleted."""
    ended = SETTLE(store, **how)
    Path(store.path, "000001.sst").symlink_to("deleted")
    return ended


@pytest.mark.parametrize(
    "how", ["merged", "files are still deleted", "given up", "its folder is deleted", "it cannot be opened"]
)
def test_of_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """By a thread of the process, in another slot."""
    store = RocksDBStore(tmp_path / "store", SMALL)
    for n in range(8):
        store.apply(sorted({**MANY, A: b"%d" % n}.items()), n)
    slot, compactions = Slot(tmp_path / "slot-0"), BackgroundCompactions()
    assert slot.take()
    if how == "it cannot be opened":
        monkeypatch.setattr(RocksDBStore, "_open", failing(StoreError("no space")))
    elif how == "its folder is deleted":
        monkeypatch.setattr(Slot, "is_in_place", lambda _: False)
    elif how == "files are still deleted":
        monkeypatch.setattr(RocksDBStore, "settle", settled_while_files_are_deleted)
    elif how == "given up":
        monkeypatch.setattr(RocksDBStore, "sorted_runs", lambda _: 99)  # it never ends by itself
    assert compactions.begin(store, slot, "lineage") == (how != "it cannot be opened")
    if how == "given up":
        compactions.close()
    else:
        compactions.join()
    assert alive(slot.folder) == []
    assert (slot.record() is not None) == (how in {"merged", "files are still deleted"})
    assert slot.take()
    slot.release()
    store.close()


def test_of_a_folder_that_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By all workers of the process, and by compactions that would never end; what is elsewhere stays."""
    workers, elsewhere = [StorePool(), StorePool()], StorePool()
    jobs = [MiniJob(tmp_path / "closed", open_stores=pool) for pool in workers]
    other = MiniJob(tmp_path / "other", open_stores=elsewhere)
    other.batch({A: b"1"})
    jobs[1].batch({A: b"1"})  # it has claimed the checkpoint
    manifest = jobs[1].batch({A: b"2"})
    monkeypatch.setattr(RocksDBStore, "sorted_runs", lambda _: 99)
    with jobs[0].lease(manifest, 0, 1) as first, jobs[1].lease(manifest, 0, 1) as second:
        slot = Slot(Path(first.store.path).parent.with_name("slot-3"))
        assert slot.take()
        assert copies.begin(second.store, slot, "lineage")
    assert [len(pool) for pool in workers] == [1, 1]
    held.close(tmp_path / "closed")
    assert alive(tmp_path / "closed") == []
    assert len(elsewhere) == 1
    elsewhere.close()


def test_of_a_closed_folder_another_store_can_be_opened(tmp_path: Path) -> None:
    """RocksDB refuses a folder that this process still has open."""
    job = MiniJob(tmp_path)
    job.batch({A: b"1"})
    base = partition_restore_plan(newest(job), "op", 0, 1)
    with job.stores.acquire("op", 0, base, SMALL) as lease:
        folder = lease.store.path
    again = RocksDBStore(folder, SMALL)
    assert again.get(A) == b"1"
    again.close()
