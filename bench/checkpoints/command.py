"""``python -m bench checkpoints``.

Invariant: every byte that goes into the checkpoint counts once, where it is written, and as what it is: a delta, a part
of a snapshot, or the driver's.
"""

from __future__ import annotations

import enum
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from asyncstate.driver import commit_log as driver
from asyncstate.runtime.partition import restore_plans as task_stores
from asyncstate.storage import RocksDBStore
from bench.checkpoints import commits, recovery
from bench.checkpoints.driven import SNAPSHOT_INTERVAL, CountedFiles, DrivenJob, instead, settings
from bench.frame import Column, Report, Row
from bench.frame.report import Seed, benchmark, mib, plain
from bench.job import batches, draws


def _kib(size_bytes: float) -> str:
    return plain(size_bytes / 1024)


BYTES = (
    Column("state MiB", "state_bytes", mib),
    Column("delta", "delta_bytes", _kib, ""),
    Column("snap- shots", "snapshot_bytes", _kib, ""),
    Column("if whole", "whole_bytes", _kib, ""),
    Column("driver", "driver_bytes", _kib),
    Column("re- writes", "rewrites"),
    Column("snap- shots", "snapshots"),
)
BYTES_NOTE = (
    "KiB a micro-batch. snapshots: what they upload, shared out over their interval; if whole: what "
    "they would take if each uploaded the whole state; rewrites: snapshots that had no table in "
    "common with the one before. At the start the state is one sorted run; in a long run each key "
    "is changed five times on average."
)


def checkpoint_bytes(
    folder: Path, state_keys: int, changed: int, micro_batches: int, seed: int
) -> dict[str, float]:
    """What goes into the checkpoint: means a micro-batch, in bytes, over as many whole snapshot intervals as
    ``micro_batches`` need, after the first snapshot.

    Filling leaves some large runs, whose merging has nothing to do with what is measured: the state is made one run,
    and the snapshot that uploads it is not counted.
    """
    counts: dict[str, int] = {}
    with instead(lambda place: CountedFiles(place, counts), task_stores, driver):
        job = DrivenJob(folder, settings(folder))
        job.fill(state_keys)
        job.close()
        (db,) = (folder / "local").glob("*/*/*/slot-*/db-????????????")
        store = RocksDBStore(db)
        store.db.compact_range(None, None)  # one sorted run; the content stays what it is
        store.close()
        drawn = map(batches, draws(state_keys, changed, seed))
        while not job.snapshot_with(next(drawn)):
            pass
        counts.clear()
        interval = SNAPSHOT_INTERVAL
        intervals = -(-micro_batches // interval)
        rewrites, before = 0, _tables(job)
        for _ in range(intervals):
            taken = [job.snapshot_with(next(drawn)) for _ in range(interval)]
            assert taken == [False] * (interval - 1) + [True]
            rewrites += before.isdisjoint(_tables(job))
            before = _tables(job)
    assert job.partition.snapshot is not None
    state_bytes = sum(file.size_bytes for file in job.partition.snapshot.files.values())
    run_batches = intervals * interval
    return {
        "state_keys": state_keys,
        "changed_keys": changed,
        "micro_batches": run_batches,
        "snapshots": intervals,
        "rewrites": rewrites,
        **{f"{what}_bytes": counts[what] / run_batches for what in ("delta", "snapshot", "driver")},
        "state_bytes": state_bytes,
        "whole_bytes": state_bytes * intervals / run_batches,
    }


def _tables(job: DrivenJob) -> set[str]:
    snapshot = job.partition.snapshot
    assert snapshot is not None
    return {file.name for local, file in snapshot.files.items() if local.endswith(".sst")}


CHANGED, STATE, WHOLE = "changed keys", "state", "long run"
"""Series of sizes: what grows, or that the run is long enough for the whole state to be rewritten."""
_LONG_RUN = 5
"""How often a long run changes each key, on average."""


class Part(enum.StrEnum):
    ALL = "all"
    COMMITS = "commits"
    RECOVERY = "recovery"
    BYTES = "bytes"


@dataclass(frozen=True)
class Sizes:
    """How much to measure; keys a partition. ``commit_changed``: the first number has an aim.

    ``long_states`` are run with ``long_changed`` keys until each key has been changed ``_LONG_RUN`` times on average.
    """

    commit_state: int = 1_000_000
    commit_changed: tuple[int, ...] = (100_000, 10_000)
    commit_rounds: int = 30
    recovery_state: int = 5_000_000
    recovery_changed: int = 100_000
    recovery_rounds: int = 3
    bytes_state: int = 1_000_000
    bytes_changed: tuple[int, ...] = (1_000, 10_000, 100_000)
    bytes_states: tuple[int, ...] = (100_000, 1_000_000, 5_000_000)
    bytes_batches: int = 60
    long_states: tuple[int, ...] = (10_000, 100_000, 300_000)
    long_changed: int = 1_000

    def planned(self) -> Iterator[tuple[str, int, int, int]]:
        """Series, keys in the state, changed keys and micro-batches of each count of bytes."""
        middle = self.bytes_changed[len(self.bytes_changed) // 2]
        for changed in self.bytes_changed:
            yield CHANGED, self.bytes_state, changed, self.bytes_batches
        for state in self.bytes_states:
            yield STATE, state, middle, self.bytes_batches
        for state in self.long_states:
            batches = max(_LONG_RUN * state // self.long_changed, self.bytes_batches)
            yield WHOLE, state, self.long_changed, batches


TINY = Sizes(2_000, (500,), 10, 3_000, 200, 1, 1_000, (10, 100), (1_000, 4_000), 10, (500,), 100)


@benchmark()
def checkpoints(
    report: Report,
    part: Annotated[Part, typer.Option(help="What to measure.")] = Part.ALL,
    spark: Annotated[bool, typer.Option("--spark", help="Measure commits through Spark as well.")] = False,
    rounds: Annotated[
        int | None,
        typer.Option(min=20, help="Pairs of micro-batches for commits; two snapshot intervals at least."),
    ] = None,
    seed: Seed = 1,
) -> None:
    """Measure what checkpoints cost, how fast they bring state back, and the bytes that they take."""
    much = TINY if report.tiny else Sizes(commit_rounds=rounds or Sizes.commit_rounds)
    if part in (Part.ALL, Part.COMMITS):
        report.section(f"Commits, {much.commit_state:,} keys a partition", commits.COLUMNS, commits.NOTE)
        for number, changed in enumerate(much.commit_changed):
            for mode, enabled in (("sync", False), ("async", True)):
                place = report.folder / f"commits-{changed}-{mode}"
                size = much.commit_state, changed, much.commit_rounds, seed
                report.case(mode, commits.commit_cost, place, enabled, *size, None if number else commits.AIM)
                shutil.rmtree(place, ignore_errors=True)
        if spark:
            size = much.commit_state, much.commit_changed[0], much.commit_rounds, seed
            report.case("on Spark", commits.spark_commit_cost, report, *size)
    if part in (Part.ALL, Part.RECOVERY):
        title = f"Recovery of {much.recovery_state:,} keys: a snapshot and {recovery.DELTAS} deltas of "
        report.section(f"{title}{much.recovery_changed:,} keys", recovery.COLUMNS, recovery.NOTE)
        size = much.recovery_state, much.recovery_changed, much.recovery_rounds, seed
        report.case("recovery", recovery.recovery, report, *size)
    if part in (Part.ALL, Part.BYTES):
        report.section("Bytes in the checkpoint", BYTES, BYTES_NOTE)
        known: dict[tuple[int, int, int], dict[str, float]] = {}

        def bytes_of(series: str, name: str, size: tuple[int, int, int]) -> Iterator[Row]:
            if size not in known:
                known[size] = checkpoint_bytes(report.folder / "bytes", *size, seed)
                shutil.rmtree(report.folder / "bytes")
            yield Row(name=name, group=series, facts=known[size])

        for series, state, changed, micro_batches in much.planned():
            name = f"{changed:,} of {state:,} keys, {micro_batches} times"
            report.case(name, bytes_of, series, name, (state, changed, micro_batches), group=series)
