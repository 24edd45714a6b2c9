"""Stores that stay open between micro-batches: right contents, and given up at once to whoever asks."""

from __future__ import annotations

import errno
import os
import pickle
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncstate.errors import StoreError
from asyncstate.storage import (
    LocalStores,
    Manifest,
    RocksDBStore,
    StorePool,
    partition_restore_plan,
    store_pool,
)
from asyncstate.storage.slots import Slot
from tests.storage.minijob import PLENTY_BYTES, MiniJob, Writes, applied, key

A, B = key(0, "a"), key(9, "b")
EMPTY = partition_restore_plan(None, "op", 0, 1)


@pytest.fixture
def kept() -> Iterator[StorePool]:
    """What one worker keeps open."""
    stores = StorePool()
    yield stores
    stores.close()


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Notes which folders RocksDB opens."""
    paths: list[str] = []
    really = RocksDBStore._open

    def noting(store: RocksDBStore) -> object:
        paths.append(store.path)
        return really(store)

    monkeypatch.setattr(RocksDBStore, "_open", noting)
    return paths


def test_a_worker_opens_a_partition_once(tmp_path: Path, kept: StorePool, opened: list[str]) -> None:
    job = MiniJob(tmp_path, 3, open_stores=kept)
    expected: dict[bytes, bytes] = {}
    for n in range(30):  # snapshots and compactions among them
        writes: Writes = {A: b"%d" % n, key(n % 5, "x"): None if n % 3 else b"x"}
        expected = applied(expected, writes)
        manifest = job.batch(writes)
    assert job.content(manifest) == expected
    assert len(opened) == 1
    assert len(kept) == 1


@pytest.mark.parametrize("fails", ["os.pipe", "threading.Thread.start"])
def test_a_store_closes_where_no_file_or_thread_is_left_to_watch_it(
    tmp_path: Path, kept: StorePool, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    def none_left(*_: object) -> None:
        raise (
            OSError(errno.EMFILE, "too many")
            if fails == "os.pipe"
            else RuntimeError("can't start new thread")
        )

    job = MiniJob(tmp_path, open_stores=kept)
    before = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        patch.setattr(fails, none_left)
        job.batch({A: b"1"})
        assert not kept
        assert len(os.listdir("/proc/self/fd")) == before
    manifest = job.batch({B: b"2"})
    assert len(kept) == 1
    assert job.content(manifest) == {A: b"1", B: b"2"}


@pytest.mark.long
@pytest.mark.parametrize("batches", range(1, 9))
@pytest.mark.parametrize("back", [0, 1, 2])
def test_a_killed_process_loses_no_state(tmp_path: Path, kept: StorePool, batches: int, back: int) -> None:
    """What was in its memtable is in RocksDB's log."""
    writes: list[Writes] = [{key(n % 5, "x"): b"%d" % n, key(n % 3, "y"): None} for n in range(batches)]
    program = "\n".join(
        [
            "import os, pathlib, sys",
            "from asyncstate.storage import StorePool",
            "from tests.storage.minijob import MiniJob",
            "job = MiniJob(pathlib.Path(sys.argv[1]), 4, open_stores=StorePool())",
            f"for writes in {writes!r}:",
            "    job.batch(writes)",
            "os._exit(9)",
        ]
    )
    killed = subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False)
    assert killed.returncode == 9
    job = MiniJob(tmp_path, 4, open_stores=kept)
    version = max(0, batches - 1 - back)
    assert job.content(job.checkpoint.read(version)) == applied({}, *writes[: version + 1])
    if back == 0:
        assert job.ways == ["advanced"]


def test_small_deltas_take_no_table_file(tmp_path: Path, kept: StorePool) -> None:
    """Until a snapshot, or a second opening of the files."""
    job = MiniJob(tmp_path, 9, open_stores=kept)
    for n in range(5):
        job.batch({A: b"%d" % n})
    (store,) = [one.slot.store for one in kept._kept.values()]
    assert store is not None
    assert (store.unflushed, store.sorted_runs(), store.version) == (True, 0, 3)
    assert store.get(A) == b"3"
    assert store.cold([A[:2]]) == [A[:2]]  # this opens the files a second time
    assert (store.unflushed, store.sorted_runs()) == (False, 1)
    assert store.scan(A, None, 9) == [(A, b"3")]


def test_a_store_whose_folder_is_gone_is_closed_at_once(tmp_path: Path, kept: StorePool) -> None:
    """RocksDB would try for a second to write what is in its memtable to a file there."""
    job = MiniJob(tmp_path, 9, open_stores=kept)
    for n in range(3):
        job.batch({A: b"%d" % n})
    (store,) = [one.slot.store for one in kept._kept.values()]
    assert store is not None
    assert store.unflushed
    assert store.memtable_bytes() > 0
    shutil.rmtree(tmp_path / "local")
    started = time.monotonic()
    kept.close()
    assert time.monotonic() - started < 0.9


def test_who_had_the_lease_cannot_read_on(tmp_path: Path, kept: StorePool) -> None:
    job = MiniJob(tmp_path, open_stores=kept)
    manifest = job.batch({A: b"1"})
    with job.lease(manifest, 0, 1) as lease:
        store = lease.store
    with pytest.raises(StoreError, match="take a new lease"):
        store.get(A)
    assert job.content(manifest) == {A: b"1"}
    lease.release()  # again, while another may have it
    assert len(kept) == 1


def test_a_failed_task_leaves_no_open_store(tmp_path: Path, kept: StorePool) -> None:
    job = MiniJob(tmp_path, open_stores=kept)
    manifest = job.batch({A: b"1"})
    with pytest.raises(ValueError, match="mine"), job.lease(manifest, 0, 1):
        raise ValueError("mine")
    assert len(kept) == 0
    with job.lease(manifest, 0, 1) as lease:
        lease.store.damaged = True
    assert len(kept) == 0
    assert job.content(manifest) == {A: b"1"}
    assert job.ways[-2:] == ["kept", "rebuilt"]


STEPS = st.tuples(
    st.integers(0, 1),  # the worker
    st.sampled_from(
        ["batch", "batch", "batch", "lost", "replay", "fail", "rollback", "read", "rescale", "kill"]
    ),
    st.dictionaries(
        st.builds(key, st.integers(0, 15), st.sampled_from("ab")),
        st.sampled_from([None, b"1", b"22"]),
        max_size=4,
    ),
    st.integers(0, 3),  # how many versions back
)


def kill(worker: StorePool) -> None:
    """What RocksDB does when a store is closed does not happen."""
    for name in list(worker._kept):
        path = worker._kept[name].slot.db
        shutil.copytree(path, f"{path}.files")
        slot = worker.take(Path(name))
        assert slot is not None
        slot.release()
        shutil.rmtree(path)
        Path(f"{path}.files").rename(path)


@settings(deadline=None)
@given(st.lists(STEPS, min_size=3, max_size=14))
def test_two_workers_take_turns_whatever_fails(steps: list[tuple[int, str, Writes, int]]) -> None:
    """Against a dict for each version; the workers stand for processes, which know of each other by the files alone."""
    folder = Path(tempfile.mkdtemp())
    workers = [StorePool(), StorePool()]
    jobs = [MiniJob(folder, 3, open_stores=open_stores) for open_stores in workers]
    versions: list[dict[bytes, bytes]] = []
    parallelism = 1
    try:
        for worker, what, writes, back in steps:
            job = jobs[worker]
            job.checkpoint.claim("job")
            base = job.checkpoint.latest()
            if what == "batch" or base is None:
                versions.append(applied(versions[-1] if versions else {}, writes))
                base = job.batch(writes, parallelism)
            elif what == "lost":
                job.attempt(base, base.batch_id + 1, {A: b"lost", B: b"lost"}, parallelism)
            elif what == "replay" and base.batch_id:
                before = job.checkpoint.read(base.batch_id - 1)
                versions[-1] = applied(versions[-2], writes)
                base = job.attempt(before, base.batch_id, writes, parallelism)
                job.checkpoint.commit(base)
            elif what == "fail":
                with pytest.raises(ValueError, match="mine"), job.lease(base, 0, parallelism):
                    raise ValueError("mine")
            elif what == "rollback":
                version = max(0, base.batch_id - back)
                job.checkpoint.rollback(version)
                del versions[version + 1 :]
                base = job.checkpoint.latest()
            elif what == "rescale":
                parallelism = 3 - parallelism
            elif what == "kill":
                kill(workers[worker])
            else:
                base = job.checkpoint.read(max(0, base.batch_id - back))
            assert base is not None
            assert job.content(base, parallelism) == versions[base.batch_id]
    finally:
        for open_stores in workers:
            open_stores.close()
        shutil.rmtree(folder)


def test_beyond_the_bound_those_longest_unused_are_closed(tmp_path: Path, kept: StorePool) -> None:
    def stores(limit_bytes: int) -> LocalStores:
        return LocalStores(tmp_path / "local", "job", job.files, open_stores=kept, open_bytes_max=limit_bytes)

    job = MiniJob(tmp_path)
    with stores(PLENTY_BYTES).acquire("op", 0, EMPTY):
        pass
    one = kept.size_bytes
    for partition in (1, 2, 0, 3):
        stores(3 * one).acquire("op", partition, EMPTY).release()
    assert kept.size_bytes <= 3 * one
    held = {Path(name).parent.name for name in kept._kept}
    assert held == {"0", "2", "3"}
    stores(0).acquire("op", 0, EMPTY).release()
    assert {Path(name).parent.name for name in kept._kept} == {"2", "3"}


def test_of_stores_that_take_turns_those_that_fit_stay_open(
    tmp_path: Path, kept: StorePool, opened: list[str]
) -> None:
    """Closing the one that was not used for longest would close each of them before its turn."""
    job = MiniJob(tmp_path)
    kept_bytes = 0

    def micro_batch(partitions: Sequence[int]) -> set[str]:
        limit_bytes = 3 * kept_bytes or PLENTY_BYTES
        stores = LocalStores(
            tmp_path / "local", "job", job.files, open_stores=kept, open_bytes_max=limit_bytes
        )
        opened.clear()
        for partition in partitions:
            stores.acquire("op", partition, EMPTY).release()
        return {Path(path).parent.parent.name for path in opened}

    micro_batch([0])
    kept_bytes = kept.size_bytes
    micro_batch(range(5))
    for _ in range(3):
        assert len(micro_batch(range(5))) <= 2  # three of the five fit, whatever the order
    micro_batch([3, 4])  # the others are another worker's now
    assert micro_batch([3, 4]) <= {"3", "4"}
    for _ in range(2):
        micro_batch([3, 4])
    assert not micro_batch([3, 4])
    assert len(kept) <= 3


@pytest.mark.parametrize(
    ("files", "stores_max"),
    [(256, 16), (1024, 64), (8192, 512), (1_000_000, 512), (resource.RLIM_INFINITY, 512), (10, 1)],
)
def test_open_stores_leave_files_for_others(
    monkeypatch: pytest.MonkeyPatch, files: int, stores_max: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (files, files))
    assert store_pool._stores_max.__wrapped__() == stores_max


def test_no_more_stores_stay_open_than_there_are_files_for(
    tmp_path: Path, kept: StorePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_pool, "_stores_max", lambda: 2)
    job = MiniJob(tmp_path, open_stores=kept)
    job.batch({A: b"1", B: b"2"}, parallelism=4)
    manifest = job.batch({A: b"3"}, parallelism=4)
    assert len(kept) == 2
    assert job.content(manifest, parallelism=4) == {A: b"3", B: b"2"}


# -- what is cached goes along -----------------------------------------------------------------------------------------

CACHED = {"keys": np.arange(1_000), "texts": pa.array(["a", None, "ccc"])}


@pytest.fixture
def others() -> Iterator[StorePool]:
    """What another worker keeps open."""
    stores = StorePool()
    yield stores
    stores.close()


@dataclass
class Handed:
    """Two workers over one checkpoint, the second one not begun; ``cached`` is what the first one has."""

    first: MiniJob
    second: MiniJob
    manifest: Manifest
    cached: tuple[str, Any] | None

    def taken(self) -> Any:
        """What comes along when the second worker takes the store."""
        self.first.export_cache = lambda: self.cached
        with self.first.lease(self.manifest, 0, 1):
            pass
        with self.second.lease(self.manifest, 0, 1) as lease:
            assert dict(lease.store.iterate()) == {A: b"1"}
            assert lease.restored.method == "kept"
            return lease.cached


@pytest.fixture
def handed(tmp_path: Path, kept: StorePool, others: StorePool) -> Handed:
    first = MiniJob(tmp_path, open_stores=kept)
    manifest = first.batch({A: b"1"})
    second = MiniJob(tmp_path, open_stores=others)
    return Handed(first, second, manifest, (partition_restore_plan(manifest, "op", 0, 1).lineage, CACHED))


def test_what_is_cached_goes_with_the_store(handed: Handed, tmp_path: Path) -> None:
    taken = handed.taken()
    assert taken["texts"].equals(CACHED["texts"])
    assert (taken["keys"] == CACHED["keys"]).all()
    taken["keys"][0] = 7  # memory of its own
    assert not list(tmp_path.rglob("cached*"))


def test_what_is_cached_of_another_content_stays_behind(handed: Handed, tmp_path: Path) -> None:
    handed.cached = "another", CACHED
    assert handed.taken() is None
    handed.cached = None
    assert handed.taken() is None
    assert not list(tmp_path.rglob("cached*"))


@pytest.mark.parametrize("what", ["a full disk", "what cannot be pickled"])
def test_the_store_comes_without_what_cannot_be_written(
    handed: Handed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    assert handed.cached is not None
    if what == "a full disk":
        monkeypatch.setattr("asyncstate.storage.store_pool._write", full)
    else:
        handed.cached = handed.cached[0], lambda: None
    for _ in range(2):  # the thread that hands over lives on
        assert handed.taken() is None
        handed.first, handed.second = handed.second, handed.first
    assert not list(tmp_path.rglob("cached"))


def test_what_was_left_for_another_is_not_read(handed: Handed, tmp_path: Path) -> None:
    """It asked, and died before it read: what it was given may be of another version of the code."""
    assert handed.cached is not None
    left = next(Slot(path.parent).cached for path in tmp_path.rglob("VERSION"))
    for _ in ("asked for", "its own"):
        left.parent.mkdir()
        left.write_bytes(pickle.dumps((handed.cached[0], [])) + pickle.dumps("old"))
        with handed.second.lease(handed.manifest, 0, 1) as lease:
            assert lease.cached is None
        assert not left.exists()


# -- several processes -------------------------------------------------------------------------------------------------

WORKER = """
import os, signal, sys
from pathlib import Path
from asyncstate.storage import Checkpoint, LocalFiles, LocalStores, StorePool, RocksDBStore, partition_restore_plan
from asyncstate.storage import lease as leases
root = Path(sys.argv[1])
files = LocalFiles(root / "checkpoint")
kept = StorePool()
stores = LocalStores(root / "local", "job", files, open_stores=kept, open_bytes_max=1 << 30)
def run():
    base = partition_restore_plan(Checkpoint(files).latest(), "op", 0, 1)
    with stores.acquire("op", 0, base) as lease:
        return lease.restored.method, dict(lease.store.iterate()), Path(lease.store.path).parent.name
def die():
    os.kill(os.getpid(), signal.SIGKILL)
for line in sys.stdin:  # as a worker of Spark's: the main thread waits for its next task
    exec(line)
    print("done", flush=True)
"""


class Worker:
    """Another process, which runs lines of code."""

    def __init__(self, root: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(WORKER), str(root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).resolve().parents[2],
        )

    def do(self, line: str) -> str:
        """What it prints; empty if it has died."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        said = []
        while (got := self.process.stdout.readline()) not in ("done\n", ""):
            said.append(got)
        return "".join(said) if got else ""

    def forked(self) -> int:
        """The number of a process that it has forked, which does nothing until it is killed."""
        lives_on = "os.fork() or (os.write(says, b'.'), signal.pause(), os._exit(0))"
        return int(self.do(f"forked, says = os.pipe(); child = {lives_on}; os.read(forked, 1); print(child)"))

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    started = Worker(tmp_path)
    yield started
    started.end()


def test_processes_alternate_over_one_folder(tmp_path: Path, kept: StorePool, worker: Worker) -> None:
    job = MiniJob(tmp_path, 100, open_stores=kept)
    for n in range(6):
        job.batch({A: b"%d" % n})  # takes the store that the other process keeps open
        assert worker.do("print(run(), len(kept))") == f"{('advanced', {A: b'%d' % n}, 'slot-0')} 1\n"
        assert len(kept) == 0
    assert set(job.ways[1:]) == {"kept"}


def test_a_deleted_folder_is_not_used_any_more(tmp_path: Path, kept: StorePool, worker: Worker) -> None:
    """Another process has made it anew, and has a store of its own there."""
    job = MiniJob(tmp_path, open_stores=kept)
    manifest = job.batch({A: b"1"})
    shutil.rmtree(tmp_path / "local")
    worker.do(
        "lease = stores.acquire('op', 0, partition_restore_plan(Checkpoint(files).latest(), 'op', 0, 1))"
    )
    with job.lease(manifest, 0, 1) as lease:
        assert Path(lease.store.path).parent.name == "slot-1"
        assert dict(lease.store.iterate()) == {A: b"1"}


def test_stores_of_a_folder_that_is_deleted_for_good_are_closed(tmp_path: Path, kept: StorePool) -> None:
    """Their files would take room on the disk for as long as the worker lives."""
    deleted, other = (MiniJob(tmp_path / name, open_stores=kept) for name in ("deleted", "other"))
    deleted.batch({A: b"1"}, parallelism=2)
    assert len(kept) == 2
    shutil.rmtree(tmp_path / "deleted")
    other.batch({A: b"1"})
    assert len(kept) == 1


@pytest.mark.parametrize("point", ["between", "before ingesting", "after ingesting", "in the micro-batch"])
def test_a_killed_holder_leaves_what_another_can_take(
    tmp_path: Path, kept: StorePool, worker: Worker, point: str
) -> None:
    job = MiniJob(tmp_path, 100, open_stores=kept)
    first = job.batch({A: b"0"})
    worker.do("run()")
    elsewhere = MiniJob(tmp_path / "other")  # so that the open store has something to ingest
    elsewhere.files, elsewhere.stores = job.files, LocalStores(tmp_path / "other", "job", job.files)
    second = elsewhere.attempt(first, 1, {A: b"1", B: b"1"})
    job.checkpoint.commit(second)
    if point == "before ingesting":
        worker.do("RocksDBStore.ingest = lambda *given: die()")
    elif point == "after ingesting":
        worker.do(
            "ingest = RocksDBStore.ingest; RocksDBStore.ingest = lambda *given: (ingest(*given), die())"
        )
    elif point == "in the micro-batch":
        worker.do("leases.Lease.release = lambda *given, **named: die()")
    if point == "between":
        worker.process.send_signal(signal.SIGKILL)
        worker.process.wait()
    else:
        assert worker.do("run()") == ""
    with job.lease(second, 0, 1) as lease:
        assert Path(lease.store.path).parent.name == "slot-0"
    for manifest, content in ((first, {A: b"0"}), (second, {A: b"1", B: b"1"}), (first, {A: b"0"})):
        assert job.content(manifest) == content


def test_a_holder_that_hangs_is_left_alone(
    tmp_path: Path, kept: StorePool, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asyncstate.storage.slots._TAKE_OVER_SECONDS_MAX", 0.05)
    job = MiniJob(tmp_path, open_stores=kept)
    manifest = job.batch({A: b"1"})
    worker.do("run()")
    worker.process.send_signal(signal.SIGSTOP)
    try:
        with job.lease(manifest, 0, 1) as lease:
            assert Path(lease.store.path).parent.name == "slot-1"
            assert dict(lease.store.iterate()) == {A: b"1"}
    finally:
        worker.process.send_signal(signal.SIGCONT)


def test_a_forked_process_has_nothing_of_it(tmp_path: Path, worker: Worker) -> None:
    job = MiniJob(tmp_path)
    job.batch({A: b"1"})
    worker.do("run()")
    forked = "child = os.fork() or os._exit(len(kept) + 7)"
    assert (
        worker.do(f"{forked}; print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), len(kept))")
        == "7 1\n"
    )
    assert worker.do("print(run()[0])") == "kept\n"
    child = worker.forked()
    try:
        worker.process.kill()
        worker.process.wait()
        with job.lease(job.checkpoint.latest(), 0, 1) as lease:
            assert Path(lease.store.path).parent.name == "slot-0"
    finally:
        os.kill(child, signal.SIGKILL)


LEASED = "lease = stores.acquire('op', 0, partition_restore_plan(Checkpoint(files).latest(), 'op', 0, 1))"
COPYING = """
import threading
from asyncstate.storage.compaction import copies
from asyncstate.storage.slots import Slot
RocksDBStore.settle = lambda *_, **__: threading.Event().wait()
slot = Slot(Path(lease.store.path).parent.with_name('slot-1'))
assert slot.take() and copies.begin(lease.store, slot, 'some content')
"""


@pytest.mark.parametrize("use", ["leased", "copying"])
def test_a_forked_process_holds_no_slot_in_use(tmp_path: Path, worker: Worker, use: str) -> None:
    """Its parent's tasks and compactions are not its own: it does not end them, and does not outlive them in a slot."""
    job = MiniJob(tmp_path)
    job.batch({A: b"1"})
    worker.do(LEASED)
    if use == "copying":
        worker.do(f"exec({COPYING!r})")
    ends = "child = os.fork() or (lease.release(), os._exit(7))"
    assert (
        worker.do(
            f"{ends}; print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), dict(lease.store.iterate()))"
        )
        == f"7 { {A: b'1'} }\n"
    )
    child = worker.forked()
    try:
        worker.process.kill()
        worker.process.wait()
        for number in (0, 1):
            (folder,) = (tmp_path / "local").glob("job-*/op/0")
            slot = Slot(folder / f"slot-{number}")
            assert slot.take()
            slot.release()
    finally:
        os.kill(child, signal.SIGKILL)


def test_the_thread_of_open_stores_ends_though_a_forked_process_lives(tmp_path: Path, worker: Worker) -> None:
    job = MiniJob(tmp_path)
    job.batch({A: b"1"})
    worker.do("run()")
    worker.do(
        "import threading; (thread,) = [t for t in threading.enumerate() if t.name == 'asyncstate-open-stores']"
    )
    child = worker.forked()
    try:
        assert worker.do("kept.close(); thread.join(10); print(thread.is_alive())") == "False\n"
    finally:
        os.kill(child, signal.SIGKILL)


def test_all_is_closed_at_the_end_of_a_process(tmp_path: Path, worker: Worker) -> None:
    job = MiniJob(tmp_path)
    job.batch({A: b"1"})
    worker.do("run()")
    worker.do("close = RocksDBStore.close")
    worker.do("RocksDBStore.close = lambda store: (close(store), Path(store.path + '.ended').touch())")
    assert worker.process.stdin is not None
    worker.process.stdin.close()
    assert worker.process.wait() == 0
    assert len(list((tmp_path / "local").glob("job-*/op/0/slot-0/db-*.ended"))) == 1
