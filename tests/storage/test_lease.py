"""Leases: how a store comes to its version, who may use a folder, what a dead process leaves behind."""

from __future__ import annotations

import errno
import json
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from asyncstate.errors import CheckpointCorruptionError, StoreError
from asyncstate.storage import (
    Lease,
    LocalFiles,
    LocalStores,
    Manifest,
    RocksDBStore,
    partition_restore_plan,
)
from asyncstate.storage.manifest import batch_of
from tests.storage.minijob import SMALL, MiniJob, applied, key

A, B, C = key(0, "a"), key(0, "b"), key(0, "c")


def newest(job: MiniJob) -> Manifest:
    manifest = job.checkpoint.latest()
    assert manifest is not None
    return manifest


def test_batches_advance_the_same_folder(job: MiniJob) -> None:
    job.batch({A: b"1", B: b"1"})
    job.batch({})
    job.batch({A: None, C: b"3"})
    assert job.content(newest(job)) == {B: b"1", C: b"3"}
    assert job.ways == ["rebuilt", "advanced", "kept", "advanced"]


def test_nothing_is_fetched_twice_where_it_was_written(tmp_path: Path) -> None:
    job = MiniJob(tmp_path)
    job.batch({A: b"1"})
    with job.lease(newest(job), 0, 1) as lease:
        assert (lease.restored.method, lease.restored.deltas_applied) == ("advanced", 1)
        assert lease.restored.bytes_fetched == 0


def test_another_machine_builds_from_snapshot_and_deltas(job: MiniJob, tmp_path: Path) -> None:
    expected: dict[bytes, bytes] = {}
    for n in range(8):
        writes = {A: b"%d" % n, key(n, "x"): b"x", B: None if n % 2 else b"b"}
        expected = applied(expected, writes)
        job.batch(writes)
    partition = newest(job).operators["op"].partition(0)
    assert partition.snapshot is not None
    assert 0 < len(partition.deltas) <= 3
    elsewhere = LocalStores(tmp_path / "elsewhere", "job", job.files)
    with elsewhere.acquire("op", 0, partition_restore_plan(newest(job), "op", 0, 1)) as lease:
        assert lease.restored.method == "rebuilt"
        assert dict(lease.store.iterate()) == expected


def test_failed_batch_leaves_the_store_at_its_base(job: MiniJob) -> None:
    job.batch({A: b"1"})
    base = newest(job)
    job.attempt(base, 1, {A: b"lost", B: b"lost"})  # its manifest is never committed
    assert job.content(base) == {A: b"1"}


def test_replay_with_other_changes_is_told_from_the_first_run(job: MiniJob) -> None:
    job.batch({A: b"0"})
    base = newest(job)
    job.checkpoint.commit(job.attempt(base, 1, {A: b"first", B: b"first"}))
    assert job.content(newest(job)) == {A: b"first", B: b"first"}  # ingested into the local store
    job.checkpoint.commit(job.attempt(base, 1, {A: b"second"}))
    assert job.content(newest(job)) == {A: b"second"}
    assert job.content(base) == {A: b"0"}


def test_rollback_goes_back_and_on(job: MiniJob) -> None:
    for n in range(6):
        job.batch({A: b"%d" % n, key(n, "n"): b""})
    assert job.content(newest(job))[A] == b"5"
    job.checkpoint.rollback(2)
    assert job.content(newest(job)) == {A: b"2", key(0, "n"): b"", key(1, "n"): b"", key(2, "n"): b""}
    job.batch({A: b"again"})
    assert job.content(newest(job))[A] == b"again"
    assert key(4, "n") not in job.content(newest(job))


def test_older_versions_are_readable(job: MiniJob) -> None:
    for n in range(9):
        job.batch({A: b"%d" % n})
    for version in (8, 3, 0, 7, 1):
        assert job.content(job.checkpoint.read(version)) == {A: b"%d" % version}


def test_two_attempts_at_once_use_two_folders(job: MiniJob) -> None:
    job.batch({A: b"1"})
    with job.lease(newest(job), 0, 1) as first, job.lease(newest(job), 0, 1) as second:
        assert first.store.path != second.store.path
        assert first.store.get(A) == second.store.get(A) == b"1"


def test_all_slots_taken_is_an_error_after_the_wait(job: MiniJob, tmp_path: Path) -> None:
    stores = LocalStores(tmp_path / "l", "job", job.files, slots_max=1, wait_seconds_max=0.05)
    base = partition_restore_plan(None, "op", 0, 1)
    with stores.acquire("op", 0, base), pytest.raises(StoreError, match="all 1 local stores.*hanging tasks"):
        stores.acquire("op", 0, base)
    stores.acquire("op", 0, base).release()


def test_waiting_attempt_gets_the_slot_that_is_given_back(job: MiniJob, tmp_path: Path) -> None:
    stores = LocalStores(tmp_path / "l", "job", job.files, slots_max=1, wait_seconds_max=30)
    base = partition_restore_plan(None, "op", 0, 1)
    first = stores.acquire("op", 0, base)
    taken: list[Lease] = []
    waiting = threading.Thread(target=lambda: taken.append(stores.acquire("op", 0, base)))
    waiting.start()
    first.release()
    first.release()
    waiting.join()
    assert taken[0].store.path == first.store.path
    taken[0].release()


def test_stale_slots_are_removed(job: MiniJob) -> None:
    job.batch({A: b"0"})
    with job.lease(newest(job), 0, 1), job.lease(newest(job), 0, 1) as second:
        stale = Path(second.store.path).parent
    for n in range(20):
        job.batch({A: b"%d" % n})
    assert not stale.exists()
    assert job.content(newest(job)) == {A: b"19"}


def test_a_store_that_a_killed_attempt_has_not_completed_is_removed(job: MiniJob) -> None:
    """It may be as large as the state, and without a record it is of no use."""
    job.batch({A: b"0"})
    with job.lease(newest(job), 0, 1), job.lease(newest(job), 0, 1) as second:
        left = Path(second.store.path).parent
        (left / "VERSION").unlink()
        job.batch({A: b"1"})
        assert left.exists()  # its attempt may be alive
        second.release()
    job.batch({A: b"2"})
    assert not left.exists()
    assert job.content(newest(job)) == {A: b"2"}


@pytest.mark.parametrize(("uid", "job_id"), [("../x", "job"), ("a/b", "job"), ("op", ".."), ("", "job")])
def test_names_that_leave_the_folder_are_refused(job: MiniJob, tmp_path: Path, uid: str, job_id: str) -> None:
    with pytest.raises(StoreError, match="cannot name a folder"):
        LocalStores(tmp_path, job_id, job.files).acquire(uid, 0, partition_restore_plan(None, "op", 0, 1))


def test_damaged_local_store_is_rebuilt_at_the_next_lease(
    job: MiniJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.snapshot_every_deltas = 100
    content = {key(0, f"{n:05}"): b"value%d" % n for n in range(20_000)}
    job.batch(content)
    assert job.content(newest(job)) == content
    with job.lease(newest(job), 0, 1) as lease:
        (sst,) = Path(lease.store.path).glob("*.sst")
    damaged = bytearray(sst.read_bytes())
    for position in range(1000, len(damaged) - 5000, 5000):
        damaged[position] ^= 0xFF
    sst.unlink()  # break the link to the checkpoint's file first: only the local copy is damaged
    sst.write_bytes(damaged)
    monkeypatch.setattr("asyncstate.storage.rocksdb_options._caches", {})  # it holds the blocks as they were
    with job.lease(newest(job), 0, 1) as lease, pytest.raises(StoreError, match="rebuilds the folder"):
        lease.store.get_many(list(content))
    assert job.content(newest(job)) == content
    assert job.ways[-2:] == ["kept", "rebuilt"]


@pytest.mark.parametrize("victim", ["CURRENT", "VERSION"])
def test_unusable_local_folder_is_rebuilt(job: MiniJob, victim: str) -> None:
    job.batch({A: b"1"})
    with job.lease(newest(job), 0, 1) as lease:
        folder = Path(lease.store.path)
    path = folder.parent / "VERSION" if victim == "VERSION" else folder / "CURRENT"
    path.write_bytes(b"nonsense\n")
    assert job.content(newest(job)) == {A: b"1"}
    assert job.ways[-1] == "rebuilt"


@pytest.mark.parametrize(
    "victim", ["../VERSION", "CURRENT", "MANIFEST-*", "*.sst", "IDENTITY", "OPTIONS-*", "*"]
)
def test_what_somebody_deleted_is_not_taken_for_empty(job: MiniJob, victim: str) -> None:
    """As those do who clean temporary folders of files that are some days old."""
    job.batch({A: b"1"})
    with job.lease(newest(job), 0, 1) as lease:
        folder = Path(lease.store.path)
    gone = list(folder.glob(victim)) if ".." not in victim else [folder.parent / "VERSION"]
    assert gone
    for path in gone:
        path.unlink()
    assert job.content(newest(job)) == {A: b"1"}
    job.batch({B: b"2"})
    assert job.content(newest(job)) == {A: b"1", B: b"2"}


def damage(path: Path, how: str) -> None:
    content = path.read_bytes()
    path.unlink()
    if how == "flip":
        path.write_bytes(
            content[: len(content) // 2]
            + bytes([content[len(content) // 2] ^ 1])
            + content[len(content) // 2 + 1 :]
        )
    elif how == "truncate":
        path.write_bytes(content[:-1])


@pytest.mark.parametrize("how", ["flip", "truncate", "delete"])
@pytest.mark.parametrize("what", ["delta", "snapshot", "both"])
def test_damaged_checkpoint_file_is_named_with_the_way_back(
    job: MiniJob, tmp_path: Path, how: str, what: str
) -> None:
    for n in range(6):
        job.batch({A: b"%d" % n, key(n, "n"): b"x" * 50})
    partition = newest(job).operators["op"].partition(0)
    assert partition.snapshot is not None
    if what == "delta":
        name, usable = partition.deltas[-1].file.name, 4
    elif what == "snapshot":
        name = next(file.name for file in partition.snapshot.files.values() if "/snap/" in file.name)
        # The snapshot of version 2, taken in batch 3, is part of versions 3 to 5; version 2 does without.
        usable = 2
    else:  # a delta that the snapshot refers to, since nothing has been compacted yet
        name = next(
            file.name
            for file in partition.snapshot.files.values()
            if batch_of(file.name) == 1 and "/snap/" not in file.name
        )
        usable = 0
    damage(job.files.root / name, how)
    elsewhere = LocalStores(tmp_path / "elsewhere", "job", job.files)
    with pytest.raises(CheckpointCorruptionError, match=f"{name}.*whose files are all present is {usable}"):
        elsewhere.acquire("op", 0, partition_restore_plan(newest(job), "op", 0, 1))
    job.checkpoint.rollback(usable)
    with elsewhere.acquire("op", 0, partition_restore_plan(newest(job), "op", 0, 1)) as lease:
        assert lease.store.get(A) == b"%d" % usable


def test_first_version_damaged_has_no_way_back(job: MiniJob, tmp_path: Path) -> None:
    manifest = job.batch({A: b"1"})
    damage(job.files.root / manifest.files()[0].name, "delete")
    elsewhere = LocalStores(tmp_path / "elsewhere", "job", job.files)
    with pytest.raises(CheckpointCorruptionError, match="start with a new checkpoint"):
        elsewhere.acquire("op", 0, partition_restore_plan(manifest, "op", 0, 1))


SCRIPT = """
import os, signal, sys
from pathlib import Path
from asyncstate.storage import Checkpoint, LocalFiles, LocalStores, RocksDBStore, partition_restore_plan
from asyncstate.storage import lease as leases
root = Path(sys.argv[1])
files = LocalFiles(root / "checkpoint")
stores = LocalStores(root / "local", "job", files, slots_max=int(sys.argv[2]), wait_seconds_max=60.0)
base = partition_restore_plan(Checkpoint(files).latest(), "op", 0, 1)
def die():
    os.kill(os.getpid(), signal.SIGKILL)
"""


def child(root: Path, slots: int, body: str, *arguments: str) -> subprocess.Popen[str]:
    code = SCRIPT + textwrap.dedent(body)
    return subprocess.Popen(
        [sys.executable, "-c", code, str(root), str(slots), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).resolve().parents[2],
    )


def test_two_processes_never_share_a_folder(job: MiniJob, tmp_path: Path) -> None:
    job.batch({A: b"1"})
    body = """
    for _ in range(15):
        with stores.acquire("op", 0, base) as lease:
            mark = Path(lease.store.path + ".mark")
            os.close(os.open(mark, os.O_CREAT | os.O_EXCL))  # fails if another holder is there
            assert lease.store.get(b"\\0\\0a") == b"1"
            mark.unlink()
    print("done")
    """
    children = [child(tmp_path, 1, body) for _ in range(2)]
    outputs = [process.communicate(timeout=100)[0] for process in children]
    assert outputs == ["done\n", "done\n"]


def test_killed_holder_frees_its_slot(job: MiniJob, tmp_path: Path) -> None:
    job.batch({A: b"1"})
    process = child(tmp_path, 4, "lease = stores.acquire('op', 0, base); print('held', flush=True); input()")
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with job.lease(newest(job), 0, 1) as lease:
            assert Path(lease.store.path).parent.name == "slot-1"
        process.kill()
    with job.lease(newest(job), 0, 1) as lease:
        assert Path(lease.store.path).parent.name == "slot-0"
        assert dict(lease.store.iterate()) == {A: b"1"}


def test_a_folder_made_again_is_free_of_stores_of_the_deleted_one(job: MiniJob, tmp_path: Path) -> None:
    """Somebody in this process still has one: a task that was left behind, a test or a notebook that was broken off."""
    job.batch({A: b"1"})
    left_behind = job.lease(newest(job), 0, 1)
    left_behind.open_scratch().apply([(A, b"scratch")], 0)
    shutil.rmtree(tmp_path / "local")
    job.batch({A: b"2"})
    with job.lease(newest(job), 0, 1) as lease:
        assert Path(lease.store.path).parent == Path(left_behind.store.path).parent
        lease.open_scratch().apply([(A, b"another")], 0)
        assert dict(lease.store.iterate()) == {A: b"2"}
        assert dict(left_behind.store.iterate()) == {A: b"1"}
        left_behind.release()
        assert dict(lease.store.iterate()) == {A: b"2"}


def test_a_store_whose_folder_is_gone_is_rebuilt_and_not_begun_empty(job: MiniJob, tmp_path: Path) -> None:
    """As cleaners of temporary folders may leave it: the record is there, and what it speaks of is not."""
    job.batch({A: b"1"})
    with job.lease(newest(job), 0, 1) as lease:
        db = lease.store.path
    shutil.rmtree(db)
    assert job.content(newest(job)) == {A: b"1"}
    assert job.ways[-1] == "rebuilt"


@pytest.mark.parametrize("point", ["before", "after", "unrecorded"])
def test_kill_while_deltas_are_ingested(job: MiniJob, tmp_path: Path, point: str) -> None:
    job.snapshot_every_deltas = 100
    base = job.batch({A: b"0", B: b"0"})
    assert job.content(base) == {A: b"0", B: b"0"}
    # Written elsewhere, so that the local store still stands at version 0 and has two deltas to ingest.
    other = MiniJob(tmp_path / "other", snapshot_every_deltas=100)
    other.files, other.stores = job.files, LocalStores(tmp_path / "other" / "local", "job", job.files)
    first = other.attempt(base, 1, {A: b"1"})
    job.checkpoint.commit(first)
    second = other.attempt(first, 2, {B: b"2", C: b"2"})
    job.checkpoint.commit(second)
    body = """
    point = sys.argv[3]
    ingest, write = RocksDBStore.ingest, leases.Slot.write
    def dying_ingest(self, paths, version):
        assert len(paths) == 2
        if point == "before": die()
        ingest(self, paths, version)
        if point == "after": die()
    def dying_write(self, version, lineage, changing):
        if point == "unrecorded" and not changing: die()
        write(self, version, lineage, changing)
    RocksDBStore.ingest = dying_ingest
    leases.Slot.write = dying_write
    stores.acquire("op", 0, base)
    """
    process = child(tmp_path, 4, body, point)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    # The half-advanced folder must give the base as well as the new version, in either order.
    order = [base, second, first] if point == "unrecorded" else [second, base]
    expected = {0: {A: b"0", B: b"0"}, 1: {A: b"1", B: b"0"}, 2: {A: b"1", B: b"2", C: b"2"}}
    for manifest in order:
        assert job.content(manifest) == expected[manifest.batch_id]


def test_kill_at_any_moment_of_a_running_task(job: MiniJob, tmp_path: Path) -> None:
    job.snapshot_every_deltas = 2
    body = """
    import itertools
    from asyncstate.storage import commit_partition
    for n in itertools.count():
        with stores.acquire("op", 0, base) as lease:
            changes = [(b"\\0\\0%05d" % k, b"lost") for k in range(2000)]
            commit_partition(lease, files, changes, uid="op", partition=0, batch_id=base.version + 1,
                             attempt="dead%d" % n, snapshot_every_deltas=1)
        print(n, flush=True)
    """
    expected: dict[bytes, bytes] = {}
    for round_number in range(4):
        writes = {key(0, f"{n:05}"): b"%d" % round_number for n in range(round_number, 3000, 3)}
        expected = applied(expected, writes)
        manifest = job.batch(writes)
        process = child(tmp_path, 4, body)
        with process:
            assert process.stdout is not None
            assert process.stdout.readline() == "0\n"  # from here on, wherever the kill happens to meet it
            process.kill()
        assert job.content(manifest) == expected
    job.batch({})
    job.checkpoint.retain(1)
    needed = {file.name for file in newest(job).files()}
    left = [name for name in job.files.list("state/") if "dead" in name and name not in needed]
    assert all("0000000004-" in name for name in left)
    assert 4 in job.checkpoint.versions()


def test_local_store_is_not_trusted_after_a_reboot(job: MiniJob, monkeypatch: pytest.MonkeyPatch) -> None:
    job.batch({A: b"1"})
    assert job.content(newest(job)) == {A: b"1"}
    monkeypatch.setattr("asyncstate.storage.slots._boot_id", lambda: "another start")
    assert job.content(newest(job)) == {A: b"1"}
    assert job.ways[-1] == "rebuilt"


def test_lease_of_plain_files_object(tmp_path: Path) -> None:
    stores = LocalStores(tmp_path / "local", "job", LocalFiles(tmp_path / "checkpoint"))
    with stores.acquire("op", 3, partition_restore_plan(None, "op", 3, 4)) as lease:
        assert isinstance(lease.store, RocksDBStore)
        assert lease.store.version == -1


def test_a_store_that_cannot_be_closed_does_not_hide_why_the_task_failed(
    job: MiniJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a read hangs, which keeps RocksDB from closing."""
    job.batch({A: b"1"})

    def refuse(store: RocksDBStore) -> None:
        raise StoreError("already borrowed")

    with monkeypatch.context() as patched:
        patched.setattr(RocksDBStore, "close", refuse)
        with pytest.raises(ValueError, match="mine") as raised, job.lease(newest(job), 0, 1):
            raise ValueError("mine")
        assert any("already borrowed" in note for note in raised.value.__notes__)
        with pytest.raises(StoreError, match="already borrowed"), job.lease(newest(job), 0, 1):
            pass


def test_a_damaged_store_is_rebuilt_though_nothing_can_be_written_about_it(job: MiniJob) -> None:
    """As on a full disk; a folder of that name refuses the file as well."""
    job.batch({A: b"1"})
    lease = job.lease(newest(job), 0, 1)
    blocked = Path(lease.store.path).parent / "VERSION.tmp"
    blocked.mkdir()
    lease.store.damaged = True
    lease.release(settle=False)
    blocked.rmdir()
    with job.lease(newest(job), 0, 1) as lease:
        assert lease.restored.method == "rebuilt"


def test_a_delta_of_which_no_copy_can_be_kept_here_is_committed(
    job: MiniJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk: the copy only saves fetching the delta."""
    job.batch({A: b"1"})
    tried: list[str] = []
    write = Path.write_bytes

    def full(path: Path, data: bytes) -> int:
        if path.parent.name != "kept":
            return write(path, data)
        tried.append(path.parent.name)
        with path.open("wb") as file:
            file.write(data[:10])
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(Path, "write_bytes", full)
    job.batch({A: b"2"})
    monkeypatch.undo()
    assert tried == ([] if job.together else ["kept"])
    assert job.content(newest(job)) == {A: b"2"}


def test_a_large_delta_that_cannot_be_written_here_names_the_folder(job: MiniJob) -> None:
    job.batch({A: b"1"})
    with job.lease(newest(job), 0, 1) as lease:
        kept = lease.kept_folder
        shutil.rmtree(kept, ignore_errors=True)
        kept.write_bytes(b"")
    large = {key(0, f"{n:06}"): b"x" * 100 for n in range(10_000)}
    with pytest.raises(
        StoreError, match=rf"the local store folder {kept} cannot be used.*Check the disk's space"
    ):
        job.batch(large)
    kept.unlink()
    job.batch(large)
    assert job.content(newest(job)) == {A: b"1"} | large


def compactions(folder: Path) -> list[str]:
    """How compactions of a store's last opening have begun and ended, as RocksDB logs it."""
    (log,) = folder.glob("db-*/LOG")
    events = re.findall(r"EVENT_LOG_v1 (\{.*\})", log.read_text(errors="replace"))
    named = [json.loads(event) for event in events]
    return [
        event["event"] for event in named if event["event"] in ("compaction_started", "compaction_finished")
    ]


@pytest.mark.parametrize(
    ("step", "runs"),
    [(2, SMALL.sorted_runs_light), (40, SMALL.sorted_runs_max)],
    ids=["changes weigh as much as the rest", "changes weigh little"],
)
def test_compaction_is_begun_seldom_and_never_lost(
    job: MiniJob, tmp_path: Path, step: int, runs: int
) -> None:
    job.snapshot_every_deltas = 100
    expected: dict[bytes, bytes] = {}
    merged = []
    for batch in range(2 * runs + 3):
        changed = range(batch, 20_000, step) if batch else range(20_000)
        writes = {key(n % 16, f"{n:06}"): b"%d" % batch for n in changed}
        expected = applied(expected, writes)
        job.batch(writes)
        (slot,) = (tmp_path / "local").glob("job-*/op/0/slot-0")
        events = compactions(slot)
        assert events.count("compaction_started") == events.count("compaction_finished")
        if events:
            merged.append(batch)
    # A batch ingests what the one before it has written: the first one nothing.
    assert merged[0] == runs + 1
    assert len(merged) <= 3
    with job.lease(newest(job), 0, 1) as lease:
        assert lease.store.sorted_runs() <= SMALL.sorted_runs_max
        assert dict(lease.store.iterate()) == expected


def test_a_rebuilt_store_is_not_compacted_by_its_first_task(job: MiniJob, tmp_path: Path) -> None:
    job.snapshot_every_deltas = 100
    deltas = SMALL.sorted_runs_max + 4
    for batch in range(deltas):
        job.batch({key(n, "x"): b"%d" % batch for n in range(16)})
    elsewhere = LocalStores(tmp_path / "elsewhere", "job", job.files)
    runs = []
    for _ in range(3):
        with elsewhere.acquire("op", 0, partition_restore_plan(newest(job), "op", 0, 1), SMALL) as lease:
            runs.append(lease.store.sorted_runs())
            if len(runs) == 2:
                assert lease.store.settle()
    assert runs[0] == deltas
    assert runs[2] < SMALL.sorted_runs


def test_a_failed_task_does_not_wait_for_compaction(job: MiniJob, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[str] = []
    monkeypatch.setattr(RocksDBStore, "settle", lambda store: waits.append(store.path))
    with pytest.raises(RuntimeError, match="operator"), job.lease(None, 0, 1):
        raise RuntimeError("operator")
    assert waits == []
    with job.lease(None, 0, 1):
        pass
    assert len(waits) == 1
