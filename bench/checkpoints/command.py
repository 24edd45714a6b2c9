"""What checkpoints cost and what they give: the time of a commit, the time of a recovery, the bytes that are written:
``python -m bench checkpoints``.

Invariant: of commits, both jobs get the same rows over the same history, in turns; the job on Spark without a
checkpoint runs all that Spark does, and its driver keeps the few bytes of its manifests in memory. Every byte that goes
into the checkpoint counts once, where it is written, and as what it is: a delta, a part of a snapshot, or the driver's.
What is recovered, in a process of its own as on a worker that has just been started (no local store, no cached blocks;
the start of the interpreter and its imports are not counted), answers the next micro-batch as the job does that never
stopped; else an error.
"""

from __future__ import annotations

import contextlib
import functools
import shutil
import statistics
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from itertools import compress
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import typer
import xxhash
from pyspark.sql import DataFrame, SparkSession

from asyncstate.driver import commit_log as driver
from asyncstate.runtime.partition import restore_plans as task_stores
from asyncstate.spark import MicroBatch
from asyncstate.storage import RocksDBStore
from bench.checkpoints import driven
from bench.checkpoints.driven import SNAPSHOT_INTERVAL, DrivenJob, fill_keys, instead, settings
from bench.frame import Report, Row, Seed, WrongResult, benchmark, chosen, columns, medians, ratio, turns
from bench.job import MODES, Job, batches, count_and_sum, draws
from bench.processor_time import Clocks, Spent, TreeClocks
from bench.session import JobSide, session

Facts = Mapping[str, Any]

RECOVERY_AIM = 10.0
DELTAS = 20
_NEVER = 1_000_000  # A ``snapshot-interval`` that is not reached
RECOVERY = columns("""
    MiB: bytes as mib; replay s: replay_s; CPU s: replay_cpu_s; read s: open_s; CPU s: open_cpu_s
    replay /read: open_ratio as times drawn; batch s: first_batch_s; CPU s: first_batch_cpu_s
    replay /batch: first_batch_ratio as times drawn; aim: aim as times
""")
RECOVERY_NOTE = """replay, most favourable to it: the operator alone over all micro-batches that made the state,
without reading the input, without Spark, without a checkpoint. Recovery: new process, no local store, files in the page
cache; until a first read, and until a first micro-batch is done and the store released."""


class Recovered(msgspec.Struct, frozen=True):
    """``digest`` is of the output of the micro-batch, if there was one; ``cpu_seconds`` of all threads."""

    seconds: float
    cpu_seconds: float | None
    digest: str


def recover(folder: str, size: tuple[int, int, int], copied: bool, micro_batch: bool) -> Recovered:
    """Recover from ``folder``, in a folder for local stores that did not exist; ``size``: keys in the state, changed
    keys and seed. Run a first micro-batch, or else read one key. ``copied``: copy files out of the checkpoint as from
    another disk, where otherwise they are linked."""
    source = Path(folder)
    files = instead(driven.CopiedFiles) if copied else contextlib.nullcontext()
    with tempfile.TemporaryDirectory(prefix="recovered-", dir=source.parent) as local, files:
        output, config = xxhash.xxh3_128(), settings(source, snapshot_interval=_NEVER)
        job = Job(source, count_and_sum(), config, resumed=True, local=Path(local))
        job.on_output = lambda batch: output.update(batch.serialize())
        rows = _next_rows(*size)
        clocks = Clocks()
        if micro_batch:
            job.run(rows)
            return Recovered(*clocks.spent(), output.hexdigest())
        with task_stores.open_stores(job.spec(), range(1)) as opened:
            if not opened.store.scan(b"", None, 1):
                raise AssertionError("the recovered state is empty")
            return Recovered(*clocks.spent(), "")


def _next_rows(state_keys: int, changed: int, seed: int) -> list[pa.RecordBatch]:
    """Of the micro-batch after the last one that is stored."""
    return batches(next(draws(state_keys, changed, seed + 1)))


def recovery(report: Report, state_keys: int, changed: int, rounds: int, seed: int) -> Iterator[Row]:
    """Make the state, replay it, and recover it ``rounds`` times in each way, after once that does not count."""
    report.tell(f"recovery: making a state of {state_keys:,} keys")
    drawn = draws(state_keys, changed, seed)
    fill, changes = fill_keys(state_keys), [next(drawn) for _ in range(DELTAS)]
    made = _make(report.folder / "made", fill, changes)
    files = [*made.snapshot_files.values(), *(delta.file for delta in made.partition.deltas)]
    size = state_keys, changed, seed
    report.tell(f"recovery: replaying {len(fill) + DELTAS} micro-batches")
    replayed = _replay(report.folder / "replayed", [*fill, *changes], _next_rows(*size))
    for name, copied in (("files linked", False), ("files copied", True)):
        report.tell(f"recovery: {name}")
        how = recover, str(report.folder / "made"), size, copied
        runs = [(report.alone(*how, False), report.alone(*how, True)) for _ in range(rounds + 1)]
        if any(one.digest != replayed.digest for _, one in runs):
            raise WrongResult(f"{name}: the recovered state gives another output than the one replayed")
        facts = {"replay_s": replayed.seconds, "replay_cpu_s": replayed.cpu_seconds, "aim": RECOVERY_AIM}
        facts |= {"bytes": sum(file.size_bytes for file in files), "deltas": DELTAS}
        facts["replayed_batches"] = len(fill) + DELTAS
        for way, found in zip(("open", "first_batch"), zip(*runs[1:], strict=True), strict=True):
            seconds = statistics.median(run.seconds for run in found)
            facts |= {f"{way}_s": seconds, f"{way}_s_max": max(run.seconds for run in found)}
            facts[f"{way}_cpu_s"] = statistics.median(run.cpu_seconds or 0.0 for run in found)
            facts[f"{way}_ratio"] = replayed.seconds / seconds
        yield Row(name=name, facts=facts)


def _make(folder: Path, fill: list[np.ndarray], changes: list[np.ndarray]) -> DrivenJob:
    job = DrivenJob(folder, settings(folder, snapshot_interval=_NEVER))
    for number, keys in enumerate([*fill, *changes]):
        job.config = settings(folder, snapshot_interval=1 if number == len(fill) else _NEVER)
        job.run(batches(keys))
    assert len(job.partition.deltas) == len(changes)
    job.leave()
    return job


def _replay(folder: Path, history: list[np.ndarray], rows: list[pa.RecordBatch]) -> Recovered:
    """What the operator takes for the history, without a checkpoint; digest of its output for the next rows. What a
    replay takes besides does not count: reading the input, Spark, the exchange."""
    output = xxhash.xxh3_128()
    job = Job(folder, count_and_sum(), settings(folder))
    with driven.without_checkpoint():
        spent = turns({"replay": job.run}, len(history), map(batches, history), warm_up=0)["replay"]
        job.on_output = lambda batch: output.update(batch.serialize())
        job.run(rows)
    seconds, cpu = sum(each.seconds for each in spent), sum(each.cpu_seconds or 0.0 for each in spent)
    return Recovered(seconds, cpu, output.hexdigest())


COMMITS_AIM = 0.15
CORES = 2
_WARM_UP = 2
TOTALS = "totals"
COMMITS = columns("""
    changed keys: changed_keys; without ms: without_s as ms; CPU ms: without_cpu_s as ms
    with ms: plain_s as ms; CPU ms: plain_cpu_s as ms; snap ms: snapshot_s as ms
    over plain: plain as percent drawn; over snap: snapshot as percent; over mean: every as percent drawn
    aim: aim as {:.0%}
""")
COMMITS_NOTE = """without: the same micro-batch, its changes written to a sorted file and ingested by the local store;
no file in the checkpoint, no checksums, no sync, no snapshot, no manifest. over: what a checkpoint adds, medians of the
pairs without a snapshot, of those with one, and the mean over a snapshot interval."""


def commit_cost(
    folder: Path, mode: str, state_keys: int, changed: int, rounds: int, seed: int, aim: float | None
) -> list[Row]:
    """Measure one partition, without Spark. Both jobs open their stores and give them back in each micro-batch."""
    whole = DrivenJob(folder / "with", settings(folder / "with", mode))
    bare = Job(folder / "without", count_and_sum(), settings(folder / "without", mode))
    run_bare, snapshots = driven.without_checkpoint()(bare.run), list[bool]()
    whole.fill(state_keys)
    for keys in fill_keys(state_keys):
        run_bare(batches(keys))
    sides = {"with": lambda rows: snapshots.append(whole.snapshot_with(rows)), "without": run_bare}
    spent = turns(sides, rounds, map(batches, draws(state_keys, changed, seed)), warm_up=_WARM_UP)
    facts = {"changed_keys": changed, "state_keys": state_keys, "aim": aim}
    return [commit_row(mode, spent, snapshots[_WARM_UP:], facts)]


def commit_row(name: str, spent: Mapping[str, list[Spent]], snapshots: Sequence[bool], facts: Facts) -> Row:
    """``plain`` are micro-batches without a snapshot, ``snapshot`` those with one; what a checkpoint adds is a share
    of the time without, ``cpu`` the plain one of processor time."""
    found = dict(facts)
    found["without_s"], found["without_cpu_s"] = medians(spent["without"], scale=1)
    for which, kind in ((False, "plain"), (True, "snapshot")):
        these = [snapshot == which for snapshot in snapshots]
        mine, others = (list(compress(spent[side], these)) for side in ("with", "without"))
        found[f"{kind}_s"], found[f"{kind}_cpu_s"] = medians(mine, scale=1)
        by, cpu = ratio(mine, others), ratio(mine, others, cpu=True)
        found[kind] = by and by.value - 1
        found.setdefault("cpu", cpu and cpu.value - 1)  # of the plain ones, which come first
    found["every"] = ((SNAPSHOT_INTERVAL - 1) * found["plain"] + found["snapshot"]) / SNAPSHOT_INTERVAL
    found["snapshots"] = sum(snapshots)
    return Row(name=name, facts=found)


def both_jobs(spark: SparkSession, folder: Path) -> dict[str, JobSide]:
    """A job with a checkpoint and one without."""

    def apply(rows: DataFrame, batch: MicroBatch) -> None:
        out = batch.apply(count_and_sum(), rows, key="key", uid=TOTALS)
        out.write.format("noop").mode("overwrite").save()

    options = {"async-state.snapshot-interval": SNAPSHOT_INTERVAL}
    with_it = JobSide(spark, folder / "with", apply, options=options)
    with instead(driven.MemoryFiles, driver):
        run = driven.run_without_checkpoint
        without = JobSide(spark, folder / "without", apply, run, options)
    return {"with": with_it, "without": without}


def parquet_rows(spark: SparkSession, folder: Path, keys: np.ndarray) -> DataFrame:
    """A row a key, as a new Parquet file."""
    path = folder / f"input-{uuid.uuid4()}.parquet"
    pq.write_table(pa.Table.from_batches(batches(keys)), path)
    return spark.read.parquet(str(path))


def has_snapshot(folder: Path, batch_id: int) -> bool:
    """Whether the checkpoint got a snapshot with this micro-batch."""
    return any(folder.glob(f"with/checkpoint/state/*/*/snap/{batch_id:010d}-*"))


def spark_commit_cost(report: Report, state_keys: int, changed: int, rounds: int, seed: int) -> Iterator[Row]:
    """Measure ``CORES`` partitions, each with ``state_keys`` of which a micro-batch changes ``changed``. A micro-batch
    is timed from the call of its function to its return; the input is a Parquet file, the sink takes every row and
    drops it."""
    report.tell("commits: starting Spark and filling the state")
    folder = report.folder / "spark"
    with session("asyncstate-checkpoints", folder, CORES) as spark:
        sides = both_jobs(spark, folder)
        fills = fill_keys(CORES * state_keys)
        for keys in fills:
            rows = parquet_rows(spark, folder, keys)
            for side in sides.values():
                side(rows)
        report.tell(f"commits: {rounds} micro-batches on Spark")
        drawn = draws(CORES * state_keys, CORES * changed, seed)
        given = (parquet_rows(spark, folder, keys) for keys in drawn)
        spent = turns(sides, rounds, given, warm_up=_WARM_UP, clocks=TreeClocks)
        first = len(fills) + _WARM_UP
        snapshots = [has_snapshot(folder, batch_id) for batch_id in range(first, first + rounds)]
    facts = {"changed_keys": changed, "state_keys": state_keys, "aim": COMMITS_AIM}
    yield commit_row(f"Spark, {CORES} tasks", spent, snapshots, facts)


BYTES = columns("""
    state MiB: state_bytes as mib; delta: delta_bytes as kib drawn; snap- shots: snapshot_bytes as kib drawn
    if whole: whole_bytes as kib drawn; driver: driver_bytes as kib; re- writes: rewrites
    snap- shots: snapshots
""")
BYTES_NOTE = """KiB a micro-batch. snapshots: what they upload, shared out over their interval; if whole: what they
would take if each uploaded the whole state; rewrites: snapshots that had no table in common with the one before. At the
start the state is one sorted run; in a long run each key is changed five times on average."""


def checkpoint_bytes(folder: Path, keys: int, changed: int, batches_min: int, seed: int) -> dict[str, float]:
    """What goes into the checkpoint: means a micro-batch, in bytes, over as many whole snapshot intervals as
    ``batches_min`` need, after the first snapshot. Filling leaves some large runs, whose merging has nothing to do with
    what is measured: the state is made one run, and the snapshot that uploads it is not counted."""
    counts: dict[str, int] = {}
    with instead(lambda place: driven.CountedFiles(place, counts), task_stores, driver):
        job = DrivenJob(folder, settings(folder))
        job.fill(keys)
        job.close()
        (db,) = (folder / "local").glob("*/*/*/slot-*/db-????????????")
        store = RocksDBStore(db)
        store.db.compact_range(None, None)  # one sorted run; the content stays what it is
        store.close()
        drawn = map(batches, draws(keys, changed, seed))
        while not job.snapshot_with(next(drawn)):
            pass
        counts.clear()
        intervals = -(-batches_min // SNAPSHOT_INTERVAL)
        rewrites, before = 0, _tables(job)
        for _ in range(intervals):
            taken = [job.snapshot_with(next(drawn)) for _ in range(SNAPSHOT_INTERVAL)]
            assert taken == [False] * (SNAPSHOT_INTERVAL - 1) + [True]
            rewrites += before.isdisjoint(_tables(job))
            before = _tables(job)
    state_bytes = sum(file.size_bytes for file in job.snapshot_files.values())
    run_batches = intervals * SNAPSHOT_INTERVAL
    facts = {"state_keys": keys, "changed_keys": changed, "micro_batches": run_batches}
    facts |= {"snapshots": intervals, "rewrites": rewrites, "state_bytes": state_bytes}
    written = {**counts, "whole": state_bytes * intervals}
    return facts | {f"{what}_bytes": each / run_batches for what, each in written.items()}


def _tables(job: DrivenJob) -> set[str]:
    return {file.name for local, file in job.snapshot_files.items() if local.endswith(".sst")}


# Of bytes, by what grows: keys in the state, changed keys and micro-batches of each count. In a long run each key
# changes five times on average, so that the whole state is rewritten.
SERIES = {
    "changed keys": [(1_000_000, 1_000, 60), (1_000_000, 10_000, 60), (1_000_000, 100_000, 60)],
    "state": [(100_000, 10_000, 60), (1_000_000, 10_000, 60), (5_000_000, 10_000, 60)],
    "long run": [(10_000, 1_000, 60), (100_000, 1_000, 500), (300_000, 1_000, 1_500)],
}
TINY_SERIES = {
    "changed keys": [(1_000, 10, 10), (1_000, 100, 10)],
    "state": [(1_000, 100, 10), (4_000, 100, 10)],
    "long run": [(500, 100, 25)],
}


@benchmark()
def checkpoints(
    report: Report,
    part: Annotated[str, typer.Option(help="commits, recovery, bytes; with commas, or 'all'.")] = "all",
    spark: Annotated[bool, typer.Option("--spark", help="Measure commits through Spark as well.")] = False,
    rounds: Annotated[int | None, typer.Option(min=20, help="Pairs of micro-batches for commits.")] = None,
    seed: Seed = 1,
) -> None:
    """Measure what checkpoints cost, how fast they bring state back, and the bytes that they take."""
    parts = chosen(part, ("commits", "recovery", "bytes"), "--part")
    if "commits" in parts:
        state, changes = (2_000, (500,)) if report.tiny else (1_000_000, (100_000, 10_000))
        pairs = 10 if report.tiny else rounds or 30
        report.section(f"Commits, {state:,} keys a partition", COMMITS, COMMITS_NOTE)
        for changed, aim in zip(changes, (COMMITS_AIM, None), strict=False):
            for mode in MODES:
                place = report.folder / f"commits-{changed}-{mode}"
                report.case(mode, commit_cost, place, mode, state, changed, pairs, seed, aim)
                shutil.rmtree(place, ignore_errors=True)
        if spark:
            report.case("on Spark", spark_commit_cost, report, state, changes[0], pairs, seed)
    if "recovery" in parts:
        size = (3_000, 200, 1) if report.tiny else (5_000_000, 100_000, 3)
        title = f"Recovery of {size[0]:,} keys: a snapshot and {DELTAS} deltas of {size[1]:,} keys"
        report.section(title, RECOVERY, RECOVERY_NOTE)
        report.case("recovery", recovery, report, *size, seed)
    if "bytes" in parts:
        report.section("Bytes in the checkpoint", BYTES, BYTES_NOTE)

        @functools.cache  # two series have one size in common
        def counted(state: int, changed: int, times: int) -> dict[str, float]:
            with tempfile.TemporaryDirectory(dir=report.folder) as place:
                return checkpoint_bytes(Path(place), state, changed, times, seed)

        def bytes_of(series: str, name: str, size: tuple[int, int, int]) -> list[Row]:
            return [Row(name=name, group=series, facts=counted(*size))]

        for series, sizes in (TINY_SERIES if report.tiny else SERIES).items():
            for each in sizes:
                name = "{1:,} of {0:,} keys, {2} times".format(*each)
                report.case(name, bytes_of, series, name, each, group=series)
