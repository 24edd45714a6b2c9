"""Manifests and the driver's side: encoding, commit, replay, fencing, retention, rollback."""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstate.errors import CheckpointCorruptionError, CheckpointError, ConcurrentJobError
from asyncstate.storage import Checkpoint, LocalFiles, Manifest, OperatorManifest, PartitionManifest
from asyncstate.storage.manifest import (
    FORMAT_VERSION,
    DeltaRef,
    FileRef,
    SnapshotRef,
    StateSpec,
    batch_of,
    decode_manifest,
    delta_name,
    encode_manifest,
    manifest_name,
    snapshot_folder,
)
from tests.storage.minijob import MiniJob, key


def manifest(batch_id: int, base: int | None = None, **more: object) -> Manifest:
    made = Manifest("job", batch_id, batch_id - 1 if base is None else base, 128)
    return msgspec.structs.replace(made, **more)


FULL = manifest(
    7,
    watermark=-5,
    sources={"op:0": 3, "op:1": -9},
    final=True,
    operators={
        "op": OperatorManifest(
            "op",
            "Op",
            2,
            [
                PartitionManifest(
                    0,
                    SnapshotRef(5, "s", {"000001.sst": FileRef("a", 1, "c", 3)}),
                    [DeltaRef(6, FileRef("b", 2, "d", 4), "l")],
                    {"rows": 1.5},
                ),
                PartitionManifest(1),
            ],
            {"input": "int64"},
            [StateSpec(8, "total", "value", {"value": "int64"}, {"ttl": "1 day"})],
        )
    },
)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    made = Checkpoint(LocalFiles(tmp_path))
    made.claim("job")
    return made


def test_manifest_round_trip() -> None:
    assert decode_manifest(encode_manifest(FULL), "m") == FULL
    assert [file.name for file in FULL.files()] == ["a", "b"]


@given(position=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_any_flipped_bit_of_a_manifest_is_found(position: int, bit: int) -> None:
    data = bytearray(encode_manifest(FULL))
    data[position % len(data)] ^= 1 << bit
    with pytest.raises(CheckpointError, match=r"manifests/7\.json"):
        decode_manifest(bytes(data), "manifests/7.json")


@given(length=st.integers(0, 10_000))
def test_any_truncation_of_a_manifest_is_found(length: int) -> None:
    data = encode_manifest(FULL)
    with pytest.raises(CheckpointCorruptionError, match="m.json"):
        decode_manifest(data[: length % len(data)], "m.json")


def test_manifest_of_another_format_names_both() -> None:
    other = msgspec.structs.replace(FULL, format_version=FORMAT_VERSION + 1)
    with pytest.raises(CheckpointError, match=f"format {FORMAT_VERSION + 1}.*reads format {FORMAT_VERSION}"):
        decode_manifest(encode_manifest(other), "m.json")


def test_names_carry_their_batch() -> None:
    assert manifest_name(12) == "manifests/0000000012.json"
    assert batch_of(delta_name("my-op.1", 3, 12, "ab-cd")) == 12
    assert batch_of(snapshot_folder("delta-1-x", 3, 12, "ab") + "/000008.sst") == 12
    assert batch_of("state/op/0/other") is None
    assert batch_of("manifests/0000000012.json") is None


def test_commits_are_listed_and_read(checkpoint: Checkpoint) -> None:
    assert checkpoint.latest() is None
    for batch_id in range(3):
        checkpoint.commit(manifest(batch_id))
    latest = checkpoint.latest()
    assert latest is not None
    assert (latest.batch_id, latest.epoch) == (2, 1)
    assert checkpoint.versions() == [0, 1, 2]
    assert checkpoint.read(1).batch_id == 1


def test_replay_replaces_the_version(checkpoint: Checkpoint) -> None:
    checkpoint.commit(manifest(0))
    checkpoint.commit(manifest(1, watermark=1))
    checkpoint.commit(manifest(1, watermark=2))
    assert checkpoint.read(1).watermark == 2
    assert checkpoint.versions() == [0, 1]


def test_commit_that_does_not_follow_is_refused(checkpoint: Checkpoint) -> None:
    checkpoint.commit(manifest(0))
    checkpoint.commit(manifest(1))
    for wrong, message in (
        (manifest(1, base=1), "not older"),
        (manifest(5, base=3), r"version 3, which the checkpoint does not hold; versions are \[0, 1\]"),
        (manifest(2, base=0), r"already holds \[1\]; roll it back to version 0"),
        (manifest(0), r"already holds \[1\]"),
    ):
        with pytest.raises(CheckpointError, match=message):
            checkpoint.commit(wrong)
    assert checkpoint.versions() == [0, 1]


def test_unclaimed_checkpoint_reads_but_does_not_write(checkpoint: Checkpoint, tmp_path: Path) -> None:
    checkpoint.commit(manifest(0))
    reader = Checkpoint(LocalFiles(tmp_path))
    assert reader.read(0).batch_id == 0
    for write in (lambda: reader.commit(manifest(1)), lambda: reader.retain(1), lambda: reader.rollback(-1)):
        with pytest.raises(CheckpointError, match="claim"):
            write()


def test_second_claim_fences_the_first_off(checkpoint: Checkpoint, tmp_path: Path) -> None:
    checkpoint.commit(manifest(0))
    second = Checkpoint(LocalFiles(tmp_path))
    assert second.claim("other-job") == 2
    for write in (
        lambda: checkpoint.commit(manifest(1)),
        lambda: checkpoint.retain(1),
        lambda: checkpoint.rollback(-1),
    ):
        with pytest.raises(ConcurrentJobError, match="'other-job'.*Stop this query"):
            write()
    second.commit(manifest(1))
    assert second.read(1).epoch == 2


def test_commit_that_loses_the_race_is_refused(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = Checkpoint(LocalFiles(tmp_path))

    def between(*_: object) -> None:
        monkeypatch.undo()
        second.claim("other")
        second.commit(manifest(0, watermark=2))

    monkeypatch.setattr(Checkpoint, "_check_order", between)
    with pytest.raises(ConcurrentJobError):
        checkpoint.commit(manifest(0, watermark=1))
    assert second.read(0).watermark == 2


def test_claims_at_once_get_different_epochs(tmp_path: Path) -> None:
    start = threading.Barrier(6)
    epochs: list[int] = []

    def claim() -> None:
        checkpoint = Checkpoint(LocalFiles(tmp_path))
        start.wait()
        epochs.append(checkpoint.claim("job"))

    threads = [threading.Thread(target=claim) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(epochs) == [1, 2, 3, 4, 5, 6]


def test_rollback_forgets_newer_versions(checkpoint: Checkpoint) -> None:
    for batch_id in range(4):
        checkpoint.commit(manifest(batch_id))
    with pytest.raises(CheckpointError, match=r"version 9: the checkpoint holds \[0, 1, 2, 3\]"):
        checkpoint.rollback(9)
    assert checkpoint.rollback(1) == [3, 2]
    checkpoint.commit(manifest(2))
    assert checkpoint.versions() == [0, 1, 2]


def test_damaged_newest_manifest_names_the_way_back(checkpoint: Checkpoint, tmp_path: Path) -> None:
    for batch_id in range(3):
        checkpoint.commit(manifest(batch_id))
    for damaged in (2, 1):
        path = tmp_path / manifest_name(damaged)
        path.write_bytes(path.read_bytes().replace(b'"job"', b'"jab"'))
    with pytest.raises(CheckpointCorruptionError, match=r"0000000002.json.*whose files are all present is 0"):
        checkpoint.latest()
    checkpoint.rollback(0)
    latest = checkpoint.latest()
    assert latest is not None
    assert latest.batch_id == 0


def test_replay_repairs_its_own_damaged_manifest(checkpoint: Checkpoint, tmp_path: Path) -> None:
    checkpoint.commit(manifest(0))
    (tmp_path / manifest_name(0)).write_bytes(b"")
    checkpoint.commit(manifest(0))
    assert checkpoint.read(0).batch_id == 0


def test_retention_keeps_every_needed_file_and_no_other(tmp_path: Path) -> None:
    job = MiniJob(tmp_path, snapshot_every_deltas=2)
    orphan = "state/op/0/delta-0000000003-orphan.sst"
    running = "state/op/0/delta-0000000010-running.sst"
    for batch_id in range(10):
        job.batch({key(batch_id % 16, f"{n}"): b"%d" % batch_id for n in range(5)}, parallelism=2)
    for name in (orphan, running):
        job.files.put_bytes(name, b"x")
    contents = {version: job.content(job.checkpoint.read(version), 2) for version in (7, 8, 9)}
    assert job.checkpoint.retain(3) > 0
    assert job.checkpoint.versions() == [7, 8, 9]
    needed = {file.name for version in (7, 8, 9) for file in job.checkpoint.read(version).files()}
    left = set(job.files.list("state/"))
    assert needed <= left
    assert orphan not in left
    assert running in left
    assert {name for name in left - needed if (batch_of(name) or 0) < 9} == set()
    for version, content in contents.items():
        assert job.checkpoint.problems(version) == []
        fresh = MiniJob(tmp_path / f"fresh-{version}")
        fresh.stores._files = job.files
        assert fresh.content(job.checkpoint.read(version), 2) == content


def test_retention_stops_at_an_unreadable_manifest(tmp_path: Path) -> None:
    job = MiniJob(tmp_path)
    for n in range(4):
        job.batch({key(0, "a"): b"%d" % n})
    before = job.files.list("state/")
    (tmp_path / "checkpoint" / manifest_name(2)).write_bytes(b"{}")
    fresh = Checkpoint(job.files)
    fresh.claim("job")
    with pytest.raises(CheckpointCorruptionError, match="0000000002.json"):
        fresh.retain(2)
    assert job.files.list("state/") == before


def test_retain_needs_a_version(checkpoint: Checkpoint) -> None:
    assert checkpoint.retain(1) == 0
    with pytest.raises(CheckpointError, match="at least 1"):
        checkpoint.retain(0)
