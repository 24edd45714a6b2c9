"""Transfers at a time: they overlap, stop at an error, and none outlives the call."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from asyncstate.errors import CheckpointCorruptionError, CheckpointError
from asyncstate.storage import LocalFiles, LocalStores, StorePool, deltas_together, partition_restore_plan
from asyncstate.storage.files import TRANSFERS_MAX, at_once
from tests.storage.minijob import MAX_PARALLELISM, MiniJob, applied, key

_DEADLINE_SECONDS = 20.0


class MeetingFiles(LocalFiles):
    """A place that gives a file when as many as there are transfers at a time have been asked for."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._meeting = threading.Barrier(TRANSFERS_MAX)

    def get_file(self, name: str, local: str | Path) -> None:
        self._meeting.wait(_DEADLINE_SECONDS)
        super().get_file(name, local)


@pytest.fixture
def job(tmp_path: Path) -> MiniJob:
    """A job with as many deltas as there are transfers at a time."""
    made = MiniJob(tmp_path, snapshot_every_deltas=100)
    for n in range(TRANSFERS_MAX):
        made.batch({key(n, "a"): b"%d" % n, key(0, "last"): b"%d" % n})
    return made


def test_files_of_a_store_are_fetched_at_the_same_time(job: MiniJob, tmp_path: Path) -> None:
    stores = LocalStores(tmp_path / "elsewhere", "job", MeetingFiles(job.files.root))
    with stores.acquire("op", 0, partition_restore_plan(job.checkpoint.latest(), "op", 0, 1)) as lease:
        found = dict(lease.store.iterate())
        restored = lease.restored
    newest = TRANSFERS_MAX - 1
    expected = {key(n, "a"): b"%d" % n for n in range(TRANSFERS_MAX)} | {key(0, "last"): b"%d" % newest}
    assert found == expected
    stored = sum(job.files.size_bytes(name) or 0 for name in job.files.list("state/"))
    assert (restored.deltas_applied, restored.bytes_fetched) == (TRANSFERS_MAX, stored)


def test_of_several_damaged_files_the_oldest_is_named(job: MiniJob, tmp_path: Path) -> None:
    manifest = job.checkpoint.read(TRANSFERS_MAX - 1)
    names = [file.name for file in manifest.files()]
    for name in names[3], names[5]:
        (job.files.root / name).unlink()
    stores = LocalStores(tmp_path / "elsewhere", "job", MeetingFiles(job.files.root))
    with pytest.raises(CheckpointCorruptionError, match=f"{names[3]}.*all present is 2: roll back"):
        stores.acquire("op", 0, partition_restore_plan(manifest, "op", 0, 1))
    left = [path for path in (tmp_path / "elsewhere").rglob("*") if path.suffix == ".sst"]
    assert left == []


def test_after_an_error_nothing_is_begun_and_nothing_goes_on() -> None:
    begun: list[int] = []
    ended: list[int] = []
    failed = threading.Event()

    def act(number: int) -> None:
        begun.append(number)
        if number == 1:
            failed.set()
            raise ValueError(number)
        assert failed.wait(_DEADLINE_SECONDS)
        ended.append(number)

    with pytest.raises(ValueError, match="1"):
        at_once(2, act, range(100))
    assert len(begun) < 100  # those that were waiting for a thread when it failed were left
    assert sorted([*ended, 1]) == sorted(begun)


@pytest.mark.parametrize("items", [[], [7], [7, 8, 9]])
def test_all_items_are_done(items: list[int]) -> None:
    done: list[int] = []
    at_once(2, done.append, items)
    assert sorted(done) == items


def test_small_deltas_of_all_partitions_are_one_file(tmp_path: Path) -> None:
    kept = StorePool()
    job, model = MiniJob(tmp_path, open_stores=kept, together=True), dict[bytes, bytes]()
    for n in range(7):  # snapshots among them, which are files of their own
        before = {name for name in job.files.list("state/") if "/snap/" not in name}
        writes = {key(group, "a"): b"%d" % n for group in range(MAX_PARALLELISM)}
        manifest = job.batch(writes, parallelism=8)
        model = applied(model, writes)
        assert job.content(manifest, 8) == model
        (new,) = {name for name in job.files.list("state/") if "/snap/" not in name} - before
        own = [file for file in manifest.files() if file.name == new]
        assert len(own) == 8
        assert sum(file.size_bytes for file in own) == job.files.size_bytes(new)
        assert job.checkpoint.problems(n) == []
    kept.close()
    elsewhere = MiniJob(tmp_path / "elsewhere", place=job.files.place)
    assert elsewhere.content(manifest, 8) == model
    assert elsewhere.content(manifest, 3) == model


def test_large_deltas_are_files_of_their_own(tmp_path: Path) -> None:
    job = MiniJob(tmp_path, together=True)
    manifest = job.batch({key(0, "a"): b"x" * 300_000, key(15, "a"): b"1"}, parallelism=2)
    assert [file.offset for file in manifest.files()] == [None, 0]
    elsewhere = MiniJob(tmp_path / "elsewhere", place=job.files.place)
    assert elsewhere.content(manifest, 2) == {key(0, "a"): b"x" * 300_000, key(15, "a"): b"1"}


@pytest.mark.parametrize("how", ["cut", "changed", "gone"])
def test_a_damaged_part_of_a_file_is_found(tmp_path: Path, how: str) -> None:
    job = MiniJob(tmp_path, together=True)
    manifest = job.batch({key(0, "a"): b"1", key(15, "a"): b"2"}, parallelism=2)
    first, second = manifest.files()
    path = job.files.root / first.name
    data = path.read_bytes()
    if how == "gone":
        path.unlink()
    else:
        path.write_bytes(data[:-1] if how == "cut" else data[:-1] + bytes([data[-1] ^ 1]))
    elsewhere = MiniJob(tmp_path / "elsewhere", place=job.files.place)
    if how != "gone":
        with elsewhere.lease(manifest, 0, 2) as lease:
            assert dict(lease.store.iterate()) == {key(0, "a"): b"1"}
    with pytest.raises(CheckpointCorruptionError, match=f"{second.name} is (missing|damaged)"):
        elsewhere.lease(manifest, 1, 2)
    assert len(job.checkpoint.problems(0)) == {"gone": 2, "cut": 1, "changed": 0}[how]


def test_after_an_error_nothing_goes_up(tmp_path: Path) -> None:
    def fail() -> None:
        with deltas_together():
            job.attempt(None, 0, {key(0, "a"): b"1"}, 2)
            raise ZeroDivisionError

    job = MiniJob(tmp_path)
    with pytest.raises(ZeroDivisionError):
        fail()
    assert job.files.list("state/") == []
    assert job.content(job.batch({key(0, "b"): b"2"})) == {key(0, "b"): b"2"}


def test_an_upload_that_fails_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise CheckpointError("the disk is full")

    job = MiniJob(tmp_path)
    monkeypatch.setattr(LocalFiles, "put_bytes", full)
    with pytest.raises(CheckpointError, match="full"), deltas_together():
        job.attempt(None, 0, {key(0, "a"): b"1", key(9, "a"): b"1"}, 2)
