"""How long a new worker takes to have the state, against computing it again from the input.

Owns: ``recover`` (in a process of its own, as on a worker that has just been started: no local store, no
cached blocks; starting the interpreter and its imports are not counted) and ``recovery``. Invariant: what is recovered
answers the next micro-batch as the job does that never stopped; else an error.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import xxhash

from asyncstate.runtime.partition import restore_plans as task_stores
from asyncstate.storage import PartitionManifest
from bench.checkpoints.driven import CopiedFiles, DrivenJob, fill_keys, instead, settings, without_checkpoint
from bench.frame import Column, Report, Row, WrongResult
from bench.frame.report import mib, times
from bench.job import Job, batches, count_and_sum, draws
from bench.processor_time import Clocks

AIM = 10.0
DELTAS = 20
_NEVER = 1_000_000
"""A ``snapshot-interval`` that is not reached."""
COLUMNS = (
    Column("MiB", "bytes", mib),
    Column("replay s", "replay_s"),
    Column("CPU s", "replay_cpu_s"),
    Column("read s", "open_s"),
    Column("CPU s", "open_cpu_s"),
    Column("replay /read", "open_ratio", times, ""),
    Column("batch s", "first_batch_s"),
    Column("CPU s", "first_batch_cpu_s"),
    Column("replay /batch", "first_batch_ratio", times, ""),
    Column("aim", "aim", times),
)
NOTE = (
    "replay, most favourable to it: the operator alone over all micro-batches that made the state, without reading "
    "the input, without Spark, without a checkpoint. Recovery: new process, no local store, files in the page cache; "
    "until a first read, and until a first micro-batch is done and the store released."
)


class Recovered(msgspec.Struct, frozen=True):
    """``digest`` is of the output of the micro-batch, if there was one; ``cpu_seconds`` of all threads."""

    seconds: float
    cpu_seconds: float | None
    digest: str


def recover(folder: str, size: tuple[int, int, int], copied: bool, micro_batch: bool) -> Recovered:
    """Recover from ``folder``, in a folder for local stores that did not exist; ``size``: keys in the state, changed
    keys and seed. Run a first micro-batch, or else read one key.

    ``copied``: copy files out of the checkpoint as from another disk, where otherwise they are linked.
    """
    source = Path(folder)
    files = instead(CopiedFiles) if copied else contextlib.nullcontext()
    with tempfile.TemporaryDirectory(prefix="recovered-", dir=source.parent) as local, files:
        output, config = xxhash.xxh3_128(), settings(source, snapshot_interval=_NEVER)
        job = Job(source, count_and_sum(), config, resumed=True, local=Path(local), on_output=_into(output))
        rows = _next_rows(*size)
        clocks = Clocks()
        if micro_batch:
            job.run(rows)
            return Recovered(*clocks.spent(), output.hexdigest())
        with task_stores.open_store(job.spec(), 0) as opened:
            if not opened.store.scan(b"", None, 1):
                raise AssertionError("the recovered state is empty")
            return Recovered(*clocks.spent(), "")


def _next_rows(state_keys: int, changed: int, seed: int) -> list[pa.RecordBatch]:
    """Of the micro-batch after the last one that is stored."""
    return batches(next(draws(state_keys, changed, seed + 1)))


def _into(digest: xxhash.xxh3_128) -> Callable[[pa.RecordBatch], None]:
    def add(batch: pa.RecordBatch) -> None:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        digest.update(sink.getvalue())

    return add


def recovery(report: Report, state_keys: int, changed: int, rounds: int, seed: int) -> Iterator[Row]:
    """Make the state, replay it, and recover it ``rounds`` times in each way, after once that does not count."""
    report.tell(f"recovery: making a state of {state_keys:,} keys")
    drawn = draws(state_keys, changed, seed)
    fill, changes = fill_keys(state_keys), [next(drawn) for _ in range(DELTAS)]
    made = _make(report.folder / "made", fill, changes)
    assert made.snapshot is not None
    files = [*made.snapshot.files.values(), *(delta.file for delta in made.deltas)]
    size = state_keys, changed, seed
    report.tell(f"recovery: replaying {len(fill) + DELTAS} micro-batches")
    replayed = _replay(report.folder / "replayed", [*fill, *changes], _next_rows(*size))
    for name, copied in (("files linked", False), ("files copied", True)):
        report.tell(f"recovery: {name}")
        how = recover, str(report.folder / "made"), size, copied
        runs = [(report.alone(*how, False), report.alone(*how, True)) for _ in range(rounds + 1)]
        if any(one.digest != replayed.digest for _, one in runs):
            raise WrongResult(f"{name}: the recovered state gives another output than the one replayed")
        facts = {"replay_s": replayed.seconds, "replay_cpu_s": replayed.cpu_seconds, "aim": AIM}
        facts |= {"bytes": sum(file.size_bytes for file in files), "deltas": len(made.deltas)}
        facts["replayed_batches"] = len(fill) + DELTAS
        for way, found in zip(("open", "first_batch"), zip(*runs[1:], strict=True), strict=True):
            seconds = statistics.median(run.seconds for run in found)
            facts |= {f"{way}_s": seconds, f"{way}_s_max": max(run.seconds for run in found)}
            facts[f"{way}_cpu_s"] = statistics.median(run.cpu_seconds or 0.0 for run in found)
            facts[f"{way}_ratio"] = replayed.seconds / seconds
        yield Row(name=name, facts=facts)


def _make(folder: Path, fill: list[np.ndarray], changes: list[np.ndarray]) -> PartitionManifest:
    driven = DrivenJob(folder, settings(folder, snapshot_interval=_NEVER))
    for number, keys in enumerate([*fill, *changes]):
        driven.config = settings(folder, snapshot_interval=1 if number == len(fill) else _NEVER)
        driven.run(batches(keys))
    assert len(driven.partition.deltas) == len(changes)
    driven.leave()
    return driven.partition


def _replay(folder: Path, history: list[np.ndarray], rows: list[pa.RecordBatch]) -> Recovered:
    """What the operator takes for the history, without a checkpoint; digest of its output for the next rows.

    What a replay takes besides does not count: reading the input, Spark, the exchange.
    """
    output = xxhash.xxh3_128()
    job = Job(folder, count_and_sum(), settings(folder))
    seconds = cpu = 0.0
    with without_checkpoint():
        for keys in history:
            replayed = batches(keys)
            clocks = Clocks()
            job.run(replayed)
            spent = clocks.spent()
            seconds, cpu = seconds + spent.seconds, cpu + (spent.cpu_seconds or 0.0)
        job.on_output = _into(output)
        job.run(rows)
    return Recovered(seconds, cpu, output.hexdigest())
