"""Snapshots upload what is new; rescaling keeps every key, at any sequence of parallelisms."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from asyncstate.errors import CheckpointError
from asyncstate.storage import Manifest, PartitionManifest, group_bounds, group_range, partition_restore_plan
from asyncstate.storage.commit import _deltas_max
from asyncstate.storage.manifest import DeltaRef, FileRef, OperatorManifest
from asyncstate.storage.restore_plan import RestorePlan
from tests.storage.minijob import MAX_PARALLELISM, MiniJob, applied, key


@given(most=st.integers(1, 300), data=st.data())
def test_group_ranges_follow_the_partition_rule(most: int, data: st.DataObject) -> None:
    parallelism = data.draw(st.integers(1, most))
    for partition in range(parallelism):
        first, end = group_range(partition, parallelism, most)
        expected = [g for g in range(most) if g * parallelism // most == partition]
        assert list(range(first, end)) == expected
        assert expected


def test_group_bounds_cover_the_last_group() -> None:
    assert group_bounds(3, 5) == (b"\x00\x03", b"\x00\x05")
    assert group_bounds(65_535, 65_536) == (b"\xff\xff", None)


@given(most=st.integers(1, 40), data=st.data())
def test_rescaled_base_takes_every_overlapping_partition(most: int, data: st.DataObject) -> None:
    old, new = data.draw(st.integers(1, most)), data.draw(st.integers(1, most))
    delta = DeltaRef(3, FileRef("delta", 1, "sum", 1), "lineage")
    operator = OperatorManifest("op", "Op", old, [PartitionManifest(p, None, [delta]) for p in range(old)])
    manifest = Manifest("job", 3, 2, most, {"op": operator})
    for partition in range(new):
        base = partition_restore_plan(manifest, "op", partition, new)
        groups = range(*group_range(partition, new, most))
        if old == new:
            assert not base.rescaled
        else:
            assert base.groups == (groups.start, groups.stop)
            assert [s.partition for s in base.sources] == sorted({g * old // most for g in groups})


def test_an_operator_that_has_kept_nothing_is_not_collected() -> None:
    """A snapshot of its empty partitions would make it one with state, which a program cannot drop unasked."""
    operator = OperatorManifest("op", "Op", 2, [PartitionManifest(0), PartitionManifest(1)])
    assert partition_restore_plan(Manifest("job", 3, 2, 8, {"op": operator}), "op", 0, 1) == RestorePlan(3)


@pytest.mark.parametrize("parallelism", [0, -1, MAX_PARALLELISM + 1])
def test_parallelism_beyond_the_maximum_is_refused(job: MiniJob, parallelism: int) -> None:
    manifest = job.batch({key(0, "a"): b"1"})
    with pytest.raises(CheckpointError, match=f"'op' cannot run with parallelism {parallelism}.*1 to 16"):
        partition_restore_plan(manifest, "op", 0, parallelism)


def test_unknown_operator_starts_empty(job: MiniJob) -> None:
    manifest = job.batch({key(0, "a"): b"1"})
    assert partition_restore_plan(manifest, "new", 0, 2) == RestorePlan(0)


def test_snapshot_uploads_new_files_only(tmp_path: Path) -> None:
    job = MiniJob(tmp_path, snapshot_every_deltas=1)
    big = {key(0, f"{n:06}"): b"%08d" % (n * 7919 % 100_003) for n in range(20_000)}
    job.batch(big)
    job.batch({key(1, "a"): b"1"})
    first = job.checkpoint.read(1).operators["op"].partition(0).snapshot
    job.batch({key(1, "b"): b"1"})
    second = job.checkpoint.read(2).operators["op"].partition(0).snapshot
    assert first is not None
    assert second is not None
    assert (first.version, second.version) == (0, 1)
    shared = {f.name for f in first.files.values()} & {f.name for f in second.files.values()}
    new_bytes = sum(f.size_bytes for f in second.files.values() if f.name not in shared)
    assert sum(f.size_bytes for f in first.files.values() if f.name.endswith(".sst")) > 100_000
    assert new_bytes < 30_000  # RocksDB's own description of the files, and one small delta


def test_a_snapshot_needs_no_room_for_what_saves_reading_next_time(job: MiniJob) -> None:
    """On a full local disk the checksums of its files are not kept."""
    job.snapshot_every_deltas = 1
    job.batch({key(0, "a"): b"1"})
    with job.lease(job.checkpoint.latest(), 0, 1) as lease:
        Path(f"{lease.store.path}.checksums.json.tmp").mkdir()
    for number in range(2):
        taken = job.batch({key(0, "a"): b"%d" % number}).operators["op"].partition(0).snapshot
        assert taken is not None
    assert job.content(job.checkpoint.latest()) == {key(0, "a"): b"1"}


@pytest.mark.parametrize(
    ("parallelism", "deltas_max"), [(1, 40), (25, 40), (40, 25), (100, 10), (32_768, 10)]
)
def test_all_partitions_together_have_a_bounded_number_of_small_deltas(
    parallelism: int, deltas_max: int
) -> None:
    one = DeltaRef(0, FileRef("a", 1_000, "", 1), "")
    assert _deltas_max([one] * 9, parallelism) == deltas_max


@pytest.mark.parametrize(("value_bytes", "deltas_max"), [(10, 40), (200_000, 10)])
def test_small_deltas_are_kept_longer(tmp_path: Path, value_bytes: int, deltas_max: int) -> None:
    job = MiniJob(tmp_path, snapshot_every_deltas=None)
    rng = np.random.default_rng(1)
    expected: dict[bytes, bytes] = {}
    for number in range(deltas_max):
        writes: dict[bytes, bytes | None] = {key(number % 4, "a"): rng.bytes(value_bytes)}
        expected = applied(expected, writes)
        partition = job.batch(writes).operators["op"].partition(0)
        assert (partition.snapshot, len(partition.deltas)) == (None, number + 1)
    fresh = MiniJob(tmp_path / "fresh", snapshot_every_deltas=None, place=str(tmp_path / "checkpoint"))
    assert fresh.content(fresh.checkpoint.latest()) == expected
    partition = fresh.batch({key(0, "b"): b"1"}).operators["op"].partition(0)
    assert partition.snapshot is not None
    assert len(partition.deltas) == 1


def test_snapshot_refers_to_deltas_that_are_not_compacted(tmp_path: Path) -> None:
    job = MiniJob(tmp_path, snapshot_every_deltas=3)
    expected: dict[bytes, bytes] = {}
    for n in range(4):
        writes: dict[bytes, bytes | None] = {key(n, "a"): b"%d" % n, key(0, "b"): None if n == 2 else b"b"}
        expected = applied(expected, writes)
        manifest = job.batch(writes)
    snapshot = manifest.operators["op"].partition(0).snapshot
    assert snapshot is not None
    tables = [file.name for local, file in snapshot.files.items() if local.endswith(".sst")]
    deltas = [file.name for file in job.checkpoint.read(2).files()]
    assert sorted(tables) == sorted(deltas)
    assert not [name for name in job.files.list("state/") if "/snap/" in name and name.endswith(".sst")]
    job.batch({})
    job.checkpoint.retain(1)  # no version has the deltas as deltas any more
    fresh = MiniJob(tmp_path / "fresh")
    fresh.stores._files = job.files
    assert fresh.content(job.checkpoint.latest()) == expected


def test_snapshot_does_not_trust_equal_names(tmp_path: Path) -> None:
    # Two local folders number their files alike; the content of equal names differs.
    left, right = MiniJob(tmp_path / "l", 1), MiniJob(tmp_path / "r", 1)
    for job, value in ((left, b"l"), (right, b"r")):
        job.batch({key(0, "a"): value})
        job.batch({})
        job.batch({})
    base = left.checkpoint.read(1)
    right.files = left.files
    right.stores._files = left.files
    manifest = right.attempt(base, 2, {})
    left.checkpoint.commit(manifest)
    assert left.content(manifest) == {key(0, "a"): b"l"}


@pytest.mark.parametrize("steps", [[1, 3, 16], [8, 5, 2, 1], [3, 2, 2, 4]])
def test_rescale_in_any_order_keeps_all_keys(job: MiniJob, steps: list[int]) -> None:
    expected: dict[bytes, bytes] = {}
    for number, parallelism in enumerate(steps):
        writes: dict[bytes, bytes | None] = {
            key(g, f"{n}"): b"%d" % number for g in range(0, 16, number + 1) for n in range(4)
        }
        writes.update({key(g, "1"): None for g in range(number, 16, 4)})
        expected = applied(expected, writes)
        manifest = job.batch(writes, parallelism)
        for read_at in (parallelism, 1 if number % 2 else 5):
            assert job.content(manifest, read_at) == expected


def test_attempts_at_a_rescale_reuse_the_first_one(job: MiniJob) -> None:
    manifest = job.batch({key(g, "a"): b"1" for g in range(16)})
    job.ways.clear()
    job.content(manifest, 2)
    job.content(manifest, 2)
    assert job.ways == ["rescaled", "rescaled", "kept", "kept"]


def test_rescaled_partitions_do_not_need_the_old_files(job: MiniJob, tmp_path: Path) -> None:
    job.batch({key(g, "a"): b"1" for g in range(16)}, 2)
    manifest = job.batch({key(0, "b"): b"1"}, 3)
    job.batch({}, 3)
    job.checkpoint.retain(1)
    fresh = MiniJob(tmp_path / "fresh")
    fresh.stores._files = job.files
    expected = {key(g, "a"): b"1" for g in range(16)} | {key(0, "b"): b"1"}
    assert fresh.content(job.checkpoint.latest(), 3) == expected
    assert all(p.snapshot is not None for p in manifest.operators["op"].partitions)


class JobMachine(RuleBasedStateMachine):
    """Commit, fail, replay, roll back, rescale, lose local folders, retain: always a plain dict's content."""

    values = st.none() | st.binary(max_size=3)
    some_writes = st.dictionaries(
        st.builds(key, st.integers(0, 15), st.sampled_from("abc")), values, max_size=8
    )
    parallelisms = st.sampled_from([1, 2, 3, 5])
    _numbers = iter(range(1_000_000))
    folder: Path

    @initialize(every=st.integers(1, 4), together=st.booleans())
    def start(self, every: int, together: bool) -> None:
        self.job = MiniJob(self.folder / f"job-{next(self._numbers)}", every, together=together)
        self.versions: dict[int, dict[bytes, bytes]] = {-1: {}}
        self.parallelism = 1

    def _newest(self) -> int:
        return max(self.versions)

    @rule(writes=some_writes)
    def commit(self, writes: dict[bytes, bytes | None]) -> None:
        before = self.versions[self._newest()]
        manifest = self.job.batch(writes, self.parallelism)
        self.versions[manifest.batch_id] = applied(before, writes)

    @rule(writes=some_writes)
    def attempt_without_commit(self, writes: dict[bytes, bytes | None]) -> None:
        self.job.attempt(self.job.checkpoint.latest(), self._newest() + 1, writes, self.parallelism)

    @precondition(lambda self: len(self.versions) > 1 and self._newest() - 1 in self.versions)
    @rule(writes=some_writes)
    def replay(self, writes: dict[bytes, bytes | None]) -> None:
        newest = self._newest()
        base = self.job.checkpoint.read(newest - 1) if newest > 0 else None
        self.job.checkpoint.commit(self.job.attempt(base, newest, writes, self.parallelism))
        self.versions[newest] = applied(self.versions[newest - 1], writes)

    @precondition(lambda self: len(self.versions) > 1)
    @rule(data=st.data())
    def roll_back(self, data: st.DataObject) -> None:
        target = data.draw(st.sampled_from([v for v in self.versions if v >= 0]))
        self.job.checkpoint.rollback(target)
        self.versions = {v: c for v, c in self.versions.items() if v <= target}

    @rule(together=st.booleans())
    def run_elsewhere(self, together: bool) -> None:
        self.job.together = together

    @rule(parallelism=parallelisms)
    def rescale(self, parallelism: int) -> None:
        self.parallelism = parallelism

    @rule()
    def lose_the_local_folder(self) -> None:
        moved = self.job.stores._root.with_name(f"local-{next(self._numbers)}")
        self.job.stores._root = moved

    @precondition(lambda self: len(self.versions) > 1)
    @rule(keep=st.integers(1, 3))
    def retain(self, keep: int) -> None:
        self.job.checkpoint.retain(keep)
        kept = sorted(v for v in self.versions if v >= 0)[-keep:]
        self.versions = {v: c for v, c in self.versions.items() if v in kept}

    @precondition(lambda self: len(self.versions) > 1)
    @rule(data=st.data())
    def read_a_version(self, data: st.DataObject) -> None:
        version = data.draw(st.sampled_from([v for v in self.versions if v >= 0]))
        manifest = self.job.checkpoint.read(version)
        assert self.job.content(manifest, self.parallelism) == self.versions[version]

    @invariant()
    def versions_are_the_models(self) -> None:
        if hasattr(self, "versions"):
            assert self.job.checkpoint.versions() == sorted(v for v in self.versions if v >= 0)


JobMachine.TestCase.settings = settings(max_examples=8, stateful_step_count=12)


class TestJobMachine(JobMachine.TestCase):  # type: ignore[misc,valid-type]  # made at run time
    """Runs the machine in a folder of its own."""

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        JobMachine.folder = tmp_path
