"""Manifests and the driver's side, in every kind of place: encoding, commit, replay, fencing, retention, rollback."""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec
import pytest
import xxhash
from hypothesis import example, given
from hypothesis import strategies as st

from asyncstate.errors import CheckpointCorruptionError, CheckpointError, ConcurrentJobError
from asyncstate.storage import (
    Checkpoint,
    CheckpointFiles,
    Manifest,
    OperatorManifest,
    PartitionManifest,
    checkpoint_files,
)
from asyncstate.storage.checkpoint import LISTED_EVERY
from asyncstate.storage.manifest import (
    FORMAT_VERSION,
    DeltaRef,
    EpochStart,
    FileRef,
    SnapshotRef,
    StateSpec,
    batch_of,
    decode_manifest,
    delta_name,
    deltas_name,
    encode_manifest,
    encode_start,
    manifest_key,
    manifest_name,
    snapshot_folder,
)
from asyncstate.storage.ownership import Epochs
from tests.s3_server import S3Server
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
def checkpoint(place: str) -> Checkpoint:
    made = Checkpoint(checkpoint_files(place))
    made.claim("job")
    return made


def stored_name(files: CheckpointFiles, batch_id: int) -> str:
    """The newest manifest file of a batch."""
    return files.list(f"manifests/{batch_id:010d}.")[-1]


def test_manifest_round_trip() -> None:
    assert decode_manifest(encode_manifest(FULL), "m") == FULL
    assert [file.name for file in FULL.files()] == ["a", "b"]


@given(position=st.integers(0, 10_000), bit=st.integers(0, 7))
@example(position=13, bit=7)  # no UTF-8 any more
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


def sealed(payload: bytes) -> bytes:
    """An envelope with the right checksum, as somebody who forges a manifest would write it."""
    return msgspec.json.encode(
        {"checksum": xxhash.xxh3_128_hexdigest(payload), "manifest": msgspec.Raw(payload)}
    )


@pytest.mark.parametrize(
    "payload",
    [b"[1]", b'{"format_version": "two"}', b"3", b"[" * 1_000_000 + b"]" * 1_000_000],
    ids=["list", "text", "number", "deep"],
)
def test_forged_manifests_and_starts_are_named(payload: bytes, checkpoint: Checkpoint) -> None:
    with pytest.raises(CheckpointCorruptionError, match=r"m\.json"):
        decode_manifest(sealed(payload), "m.json")
    checkpoint.commit(manifest(0))
    checkpoint.commit(manifest(1))
    name = stored_name(checkpoint.files, 1)
    checkpoint.files.put_bytes(name, sealed(payload))
    with pytest.raises(CheckpointCorruptionError, match=f"{name} .*roll back to it"):
        Checkpoint(checkpoint.files).latest()


def with_partition(partition: PartitionManifest, **more: object) -> Manifest:
    operator = OperatorManifest("op", "Op", 1, [partition])
    return manifest(1, operators={"op": msgspec.structs.replace(operator, **more)})


GOOD = FileRef("state/op/0/a.sst", 1, "c")


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (
            with_partition(PartitionManifest(0, SnapshotRef(0, "s", {local: GOOD}))),
            "not the name of a RocksDB file",
        )
        for local in ("/etc/motd", "../../../x", "a/b", "..", "", "a\0", ".hidden")
    ]
    + [
        (
            with_partition(
                PartitionManifest(0, None, [DeltaRef(0, msgspec.structs.replace(GOOD, name=n), "l")])
            ),
            "may be outside",
        )
        for n in ("/etc/motd", "state/../../x", "a\0b", "")
    ]
    + [
        (with_partition(PartitionManifest(0), parallelism=10**12), "has 1000000000000 as parallelism.*32768"),
        (with_partition(PartitionManifest(0), parallelism=0), "has 0 as parallelism"),
        (manifest(1, max_parallelism=32_769), "has 32769 as max_parallelism"),
        (
            with_partition(
                PartitionManifest(0), states=[StateSpec(8, "s", "value", {"value": "list<" * 5000})]
            ),
            "nested deeper",
        ),
        (with_partition(PartitionManifest(0), states=[StateSpec(8, "s", "value")]), "no types of state 's'"),
    ]
    + [
        (
            with_partition(
                PartitionManifest(0, None, [DeltaRef(0, msgspec.structs.replace(GOOD, size_bytes=size), "l")])
            ),
            f"{size} bytes",
        )
        for size in (-1, 10**30)
    ]
    + [
        (
            with_partition(
                PartitionManifest(0, None, [DeltaRef(0, msgspec.structs.replace(GOOD, offset=offset), "l")])
            ),
            f"begin at byte {offset}",
        )
        for offset in (-1, 10**30)
    ],
)
def test_what_no_manifest_says_is_refused_before_anything_is_fetched(made: Manifest, words: str) -> None:
    with pytest.raises(CheckpointCorruptionError, match=rf"m\.json .*{words}"):
        decode_manifest(encode_manifest(made), "m.json")


def test_bytes_of_a_manifest_that_are_no_utf_8_are_damage() -> None:
    made = encode_manifest(manifest(1))
    payload = made[made.index(b'"manifest":') + len(b'"manifest":') : -1].replace(b'"job', b'"\xff')
    sealed = b'{"checksum":"%s","manifest":%s}' % (xxhash.xxh3_128_hexdigest(payload).encode(), payload)
    with pytest.raises(CheckpointCorruptionError, match=r"m\.json"):
        decode_manifest(sealed, "m.json")


def test_names_carry_their_batch() -> None:
    assert manifest_name(12, 3, 4) == "manifests/0000000012.e3.4.json"
    assert manifest_key("manifests/0000000012.e3.4.json") == (12, 3, 4)
    assert manifest_key("manifests/notes.txt") is None
    assert batch_of(delta_name("my-op.1", 3, 12, "ab-cd")) == 12
    assert batch_of(snapshot_folder("delta-1-x", 3, 12, "ab") + "/000008.sst") == 12
    assert batch_of(deltas_name(12, "ab-cd")) == 12
    assert batch_of("state/op/0/other") is None
    assert batch_of("state/deltas-x") is None
    assert batch_of("manifests/0000000012.e3.4.json") is None


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


def test_unclaimed_checkpoint_reads_but_does_not_write(checkpoint: Checkpoint, place: str) -> None:
    checkpoint.commit(manifest(0))
    reader = Checkpoint(checkpoint_files(place))
    assert reader.read(0).batch_id == 0
    for write in (lambda: reader.commit(manifest(1)), lambda: reader.retain(1), lambda: reader.rollback(-1)):
        with pytest.raises(CheckpointError, match="claim"):
            write()


def test_second_claim_fences_the_first_off(checkpoint: Checkpoint, place: str) -> None:
    checkpoint.commit(manifest(0))
    second = Checkpoint(checkpoint_files(place))
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
    checkpoint: Checkpoint, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = Checkpoint(checkpoint_files(place))

    def between(*_: object) -> None:
        monkeypatch.undo()
        second.claim("other")
        second.commit(manifest(0, watermark=2))

    monkeypatch.setattr(Checkpoint, "_check_order", between)
    with pytest.raises(ConcurrentJobError):
        checkpoint.commit(manifest(0, watermark=1))
    assert second.read(0).watermark == 2


def test_a_driver_that_is_overtaken_before_it_has_begun_is_refused(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (Checkpoint(checkpoint_files(place)) for _ in range(2))
    begin = Epochs.begin

    def overtaken(epochs: Epochs, start: EpochStart) -> None:
        monkeypatch.undo()
        second.claim("other")
        begin(epochs, start)

    monkeypatch.setattr(Epochs, "begin", overtaken)
    with pytest.raises(ConcurrentJobError, match=r"epoch 1\).*'other'"):
        first.claim("job")
    second.commit(manifest(0))  # whose targets know the checkpoint by its id
    third = Checkpoint(checkpoint_files(place))
    third.claim("job")
    assert third.start.checkpoint_id == second.start.checkpoint_id


def test_of_claims_at_once_the_last_one_holds(place: str) -> None:
    start = threading.Barrier(6)
    epochs: list[int] = []
    refused: list[ConcurrentJobError] = []

    def claim() -> None:
        checkpoint = Checkpoint(checkpoint_files(place))
        start.wait()
        try:
            epochs.append(checkpoint.claim("job"))
        except ConcurrentJobError as error:
            refused.append(error)

    threads = [threading.Thread(target=claim) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(epochs)) == len(epochs) >= 1
    assert len(epochs) + len(refused) == 6
    newest = Checkpoint(checkpoint_files(place))
    assert newest.claim("job") > max(epochs)
    assert newest.start.earlier  # it knows the one that held


def test_rollback_forgets_newer_versions(checkpoint: Checkpoint) -> None:
    for batch_id in range(4):
        checkpoint.commit(manifest(batch_id))
    with pytest.raises(CheckpointError, match=r"version 9: the checkpoint holds \[0, 1, 2, 3\]"):
        checkpoint.rollback(9)
    assert checkpoint.rollback(1) == [3, 2]
    checkpoint.commit(manifest(2))
    assert checkpoint.versions() == [0, 1, 2]


def test_a_checkpoint_keeps_its_id_and_knows_its_drivers(checkpoint: Checkpoint, place: str) -> None:
    with pytest.raises(CheckpointError, match="not claimed"):
        _ = Checkpoint(checkpoint_files(place)).start
    first = checkpoint.start
    assert first.checkpoint_id
    assert first.earlier == {}
    for batch_id in range(3):
        checkpoint.commit(manifest(batch_id))
    second = Checkpoint(checkpoint_files(place))
    second.claim()
    assert second.start.checkpoint_id == first.checkpoint_id
    assert second.start.driver != first.driver
    assert second.start.earlier == {
        first.driver: 3
    }  # it may have written that one, and died before its commit
    second.rollback(0)
    assert second.start.checkpoint_id == first.checkpoint_id
    assert second.start.earlier == {first.driver: 0, second_driver(second): 0}


def second_driver(checkpoint: Checkpoint) -> str:
    """The driver of the epoch before the newest."""
    return list(checkpoint.start.earlier)[-1]


def test_the_first_driver_of_an_empty_checkpoint_may_have_written_any_micro_batch(place: str) -> None:
    first, second = (Checkpoint(checkpoint_files(place)) for _ in range(2))
    first.claim()
    second.claim()
    assert second.start.earlier[first.start.driver] > 1_000_000
    second.commit(manifest(0))
    second.rollback(-1)
    assert set(second.start.earlier.values()) == {-1}


def test_drivers_of_long_ago_are_forgotten(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncstate.storage.checkpoint._EARLIER_MAX", 5)
    claims = [Checkpoint(checkpoint_files(place)) for _ in range(8)]
    for one in claims:
        one.claim()
    assert list(claims[-1].start.earlier) == [one.start.driver for one in claims[2:-1]]


def test_a_driver_is_known_after_months_of_restarts(checkpoint: Checkpoint, place: str) -> None:
    """A sink that had no rows meanwhile still has its mark."""
    checkpoint.commit(manifest(0))
    known = {f"{number:032x}": 0 for number in range(5_000)}
    start = msgspec.structs.replace(checkpoint.start, earlier=known)
    name = f"owners/{start.epoch:010d}.start.json"
    assert name in checkpoint.files.list("owners/")
    checkpoint.files.put_bytes(name, encode_start(start))
    newest = Checkpoint(checkpoint_files(place))
    newest.claim()
    assert newest.start.earlier == {**known, start.driver: 1}


def test_damaged_newest_manifest_names_the_way_back(checkpoint: Checkpoint) -> None:
    for batch_id in range(3):
        checkpoint.commit(manifest(batch_id))
    for damaged in (2, 1):
        name = stored_name(checkpoint.files, damaged)
        content = checkpoint.files.get_bytes(name).replace(b'"job"', b'"jab"')
        checkpoint.files.put_bytes(name, content)
    with pytest.raises(
        CheckpointCorruptionError, match=r"0000000002.e1.2.json.*whose files are all present is 0"
    ):
        checkpoint.latest()
    checkpoint.rollback(0)
    latest = checkpoint.latest()
    assert latest is not None
    assert latest.batch_id == 0


def test_a_version_that_is_no_longer_kept_is_no_reason_to_start_anew(checkpoint: Checkpoint) -> None:
    """A reader meets this beside a running job: its version was given up meanwhile."""
    for batch_id in range(4):
        checkpoint.commit(manifest(batch_id))
    checkpoint.retain(2)
    with pytest.raises(CheckpointCorruptionError) as gone:
        checkpoint.read(1)
    assert str(gone.value) == "the checkpoint holds no version 1; versions are [2, 3]: read one of these"
    assert checkpoint.recovery_hint(1, "state/o/0/x") == (
        "Version 1 was dropped with its files; versions are [2, 3]: read one of these"
    )


def test_replay_repairs_its_own_damaged_manifest(checkpoint: Checkpoint) -> None:
    checkpoint.commit(manifest(0))
    checkpoint.files.put_bytes(stored_name(checkpoint.files, 0), b"{}")
    checkpoint.commit(manifest(0))
    assert checkpoint.read(0).batch_id == 0


@pytest.mark.parametrize("together", [False, True])
def test_retention_keeps_every_needed_file_and_no_other(tmp_path: Path, place: str, together: bool) -> None:
    job = MiniJob(tmp_path, snapshot_every_deltas=2, place=place, together=together)
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


@pytest.mark.long
def test_retention_lists_all_files_once_in_many_commits(
    tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a commit deletes was named by the versions that go; what nobody named goes with the next list."""
    job = MiniJob(tmp_path, snapshot_every_deltas=2, place=place)
    listed: list[str] = []
    real = job.files.list

    def counted(prefix: str) -> list[str]:
        listed.append(prefix)
        return real(prefix)

    monkeypatch.setattr(job.files, "list", counted)
    orphan = "state/op/0/delta-0000000003-orphan.sst"
    for batch_id in range(LISTED_EVERY + 1):
        job.batch({key(batch_id % 16, "a"): b"%d" % batch_id})
        job.checkpoint.retain(2)
        versions = [job.checkpoint.read(version) for version in job.checkpoint.versions()]
        needed = {file.name for manifest in versions for file in manifest.files()}
        old = {name for name in real("state/") if (batch_of(name) or 0) < batch_id} - {orphan}
        assert old <= needed
        if batch_id == 4:
            job.files.put_bytes(orphan, b"x")
        assert (orphan in real("state/")) == (4 <= batch_id < LISTED_EVERY)
    assert listed.count("state/") == 2


def test_retention_stops_at_an_unreadable_manifest(tmp_path: Path, place: str) -> None:
    job = MiniJob(tmp_path, place=place)
    for n in range(4):
        job.batch({key(0, "a"): b"%d" % n})
    before = job.files.list("state/")
    job.files.put_bytes(stored_name(job.files, 2), b"{}")
    fresh = Checkpoint(job.files)
    fresh.claim("job")
    with pytest.raises(CheckpointCorruptionError, match=r"0000000002\.e1\.2\.json"):
        fresh.retain(2)
    assert job.files.list("state/") == before


def test_retain_needs_a_version(checkpoint: Checkpoint) -> None:
    assert checkpoint.retain(1) == 0
    with pytest.raises(CheckpointError, match="at least 1"):
        checkpoint.retain(0)


def test_files_of_format_1_are_refused(place: str) -> None:
    for name in ("manifests/0000000012.json", "owners/epoch-0000000001.json"):
        files = checkpoint_files(place)
        files.put_bytes(name, b"{}")
        for look in (Checkpoint(files).latest, Checkpoint(files).claim):
            with pytest.raises(CheckpointError, match=rf"{name} has checkpoint format 1.*reads format 2"):
                look()
        files.delete(name)


def test_manifests_without_owners_are_refused(checkpoint: Checkpoint) -> None:
    checkpoint.commit(manifest(0))
    checkpoint.files.delete_files(checkpoint.files.list("owners/"))
    with pytest.raises(CheckpointCorruptionError, match="no owners/.*copy the whole checkpoint"):
        Checkpoint(checkpoint.files).latest()


def test_claim_that_somebody_has_deleted_is_no_other_driver(checkpoint: Checkpoint) -> None:
    checkpoint.commit(manifest(0))
    checkpoint.files.delete_files(checkpoint.files.list("owners/"))
    with pytest.raises(
        CheckpointCorruptionError, match="no longer has the claim of this driver.*from a copy"
    ):
        checkpoint.commit(manifest(1))


def test_damaged_start_of_an_epoch_is_named(checkpoint: Checkpoint) -> None:
    checkpoint.commit(manifest(0))
    (name,) = [name for name in checkpoint.files.list("owners/") if name.endswith(".start.json")]
    for damaged in (checkpoint.files.get_bytes(name)[:-7], sealed(b"[]"), b"x"):
        checkpoint.files.put_bytes(name, damaged)
        with pytest.raises(CheckpointCorruptionError, match=f"{name} .*restore it from a copy"):
            Checkpoint(checkpoint.files).latest()


def test_late_write_of_a_fenced_driver_is_never_seen(
    checkpoint: Checkpoint, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its upload of a newer batch, of the same and of an older one come through after the takeover."""
    for batch_id in range(3):
        checkpoint.commit(manifest(batch_id, watermark=batch_id))
    second = Checkpoint(checkpoint_files(place))
    put_bytes = checkpoint.files.put_bytes

    def held_up(name: str, data: bytes) -> None:
        monkeypatch.undo()
        if not second.epoch:
            second.claim("other")
            second.commit(manifest(2, watermark=22))  # Spark replays the newest batch
        put_bytes(name, data)

    for late in (manifest(3, watermark=30), manifest(2, watermark=20)):
        monkeypatch.setattr(checkpoint.files, "put_bytes", held_up)
        with pytest.raises(ConcurrentJobError):
            checkpoint.commit(late)
    for reader in (second, Checkpoint(checkpoint_files(place))):
        assert reader.versions() == [0, 1, 2]
        assert [reader.read(version).watermark for version in range(3)] == [0, 1, 22]
    second.retain(3)
    assert len(second.files.list("manifests/")) == 3


def test_old_claims_are_forgotten(place: str) -> None:
    for _ in range(8):
        newest = Checkpoint(checkpoint_files(place))
        newest.claim("job")
    assert newest.epoch == 8
    epochs = {int(name.split("/")[1].split(".")[0]) for name in newest.files.list("owners/")}
    assert epochs == {6, 7, 8}


def test_a_checkpoint_may_be_copied_to_another_place(tmp_path: Path, s3: S3Server) -> None:
    job = MiniJob(tmp_path, snapshot_every_deltas=2)
    for batch_id in range(5):
        job.batch({key(n, "a"): b"%d" % batch_id for n in range(4)}, parallelism=2)
    manifest_before = job.checkpoint.latest()
    assert manifest_before is not None
    copy = MiniJob(tmp_path / "copy", place=s3.place())
    for name in job.files.list(""):
        copy.files.put_bytes(name, job.files.get_bytes(name))
    copy.checkpoint.claim("job")
    assert copy.checkpoint.latest() == manifest_before
    assert copy.content(manifest_before, 2) == job.content(manifest_before, 2)


def test_a_version_that_was_written_again_is_no_reason_to_roll_back(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader meets this next to a running job: the version that it reads was replaced, and its files deleted."""
    for batch_id in range(3):
        checkpoint.commit(manifest(batch_id))
    reader = Checkpoint(checkpoint.files)
    before = stored_name(checkpoint.files, 2)
    read = type(checkpoint.files).get_bytes

    def replaced(files: CheckpointFiles, name: str, *part: int) -> bytes:
        if name == before and before in checkpoint.files.list("manifests/"):
            checkpoint.commit(manifest(2))
            checkpoint.files.delete(before)
        return read(files, name, *part)

    monkeypatch.setattr(type(checkpoint.files), "get_bytes", replaced)
    latest = reader.latest()
    assert latest is not None
    assert latest.batch_id == 2
    assert reader.recovery_hint(2, "state/op/0/delta-0000000002-a.sst") == (
        "Version 2 was written again meanwhile, without this file: read it again"
    )
