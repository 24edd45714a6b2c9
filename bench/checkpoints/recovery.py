"""How long a new worker takes to have the state, against computing it again from the input.

Owns: ``Recovery``, ``recover`` (in a process of its own, as on a worker that has just been started: no local store, no
cached blocks; starting the interpreter and its imports are not counted) and ``recovery``. Invariant: what is recovered
answers the next micro-batch as the job does that never stopped; else an error.
"""

from __future__ import annotations

import contextlib
import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import patch

import msgspec
import numpy as np
import pyarrow as pa
import xxhash

from asyncstate.runtime.partition import restore_plans as task_stores
from asyncstate.spark.python_task import settle_worker
from asyncstate.storage import LocalFiles, PartitionManifest, Retries
from bench.checkpoints.bare import without_checkpoint
from bench.checkpoints.driven import BATCH_ROWS, NEVER, DrivenJob, aggregate, fill_keys, settings
from bench.frame import Column, Row, WrongResult, isolated
from bench.frame.report import mib, times
from bench.job import Job, JobBase
from bench.processor_time import Clocks
from bench.rows import INPUT, batches, draws

AIM = 10.0
DELTAS = 20
BASE = "base.json"
COLUMNS = (
    Column("MiB", "bytes", mib),
    Column("replay s", "replay_s"),
    Column("CPU s", "replay_cpu_s"),
    Column("read s", "open_s"),
    Column("CPU s", "open_cpu_s"),
    Column("replay /read", "open_ratio", times),
    Column("batch s", "first_batch_s"),
    Column("CPU s", "first_batch_cpu_s"),
    Column("replay /batch", "first_batch_ratio", times),
    Column("aim", "aim", times),
)
NOTE = (
    "replay, most favourable to it: the operator alone over all micro-batches that made the state, without reading "
    "the input, without Spark, without a checkpoint. Recovery: new process, no local store, files in the page cache; "
    "until a first read, and until a first micro-batch is done and the store released."
)


class Recovery(msgspec.Struct, frozen=True, kw_only=True):
    """What to recover from ``folder``. ``micro_batch``: and run a first micro-batch, else read one key.

    ``copied``: copy files out of the checkpoint as from another disk, where otherwise they are linked.
    """

    folder: str
    state_keys: int
    changed_keys: int
    seed: int
    copied: bool
    micro_batch: bool


class Recovered(msgspec.Struct, frozen=True):
    """``digest`` is of the output of the micro-batch, if there was one; ``cpu_seconds`` of all threads."""

    seconds: float
    cpu_seconds: float | None
    digest: str


class CopiedFiles(LocalFiles):
    """A folder whose files are copied out."""

    def get_file(self, name: str, local: str | Path) -> None:
        """Copy a file, reading and writing its bytes."""
        # Not shutil.copyfile, which lets some file systems share the blocks.
        with open(self.root / name, "rb") as source, open(local, "wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)


def copied_files(place: str, retries: Retries | None = None) -> CopiedFiles:
    """In place of ``checkpoint_files``."""
    return CopiedFiles(place)


def recover(task: Recovery) -> Recovered:
    """Do what ``task`` says, in a folder for local stores that did not exist."""
    settle_worker()
    source = Path(task.folder)
    base = msgspec.json.decode((source / BASE).read_bytes(), type=JobBase)
    files = (
        patch.object(task_stores, "checkpoint_files", copied_files)
        if task.copied
        else contextlib.nullcontext()
    )
    with tempfile.TemporaryDirectory(prefix="recovered-", dir=source.parent) as local, files:
        output = Digest()
        job = Job(
            source,
            aggregate(),
            settings(source, snapshot_interval=NEVER),
            INPUT,
            base.manifest,
            base.batch_id,
            local=Path(local),
            on_output=output.add,
        )
        rows = next_rows(task.state_keys, task.changed_keys, task.seed)
        clocks = Clocks()
        if task.micro_batch:
            job.run(rows)
            return Recovered(*clocks.spent(), output.hexdigest())
        with task_stores.open_store(job.spec(), 0) as opened:
            if not opened.store.scan(b"", None, 1):
                raise AssertionError("the recovered state is empty")
            return Recovered(*clocks.spent(), "")


def next_rows(state_keys: int, changed_keys: int, seed: int) -> list[pa.RecordBatch]:
    """The rows of the micro-batch after the last one that is stored."""
    return batches(next(draws(state_keys, changed_keys, seed + 1)), BATCH_ROWS)


class Digest:
    """A checksum over output."""

    def __init__(self) -> None:
        self._digest = xxhash.xxh3_128()

    def add(self, batch: pa.RecordBatch) -> None:
        """Take in a batch of output."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        self._digest.update(sink.getvalue())

    def hexdigest(self) -> str:
        """Of all output so far."""
        return self._digest.hexdigest()


def recovery(
    folder: Path, state_keys: int, changed: int, rounds: int, seed: int, tell: Callable[[str], None]
) -> Iterator[Row]:
    """Make the state, replay it, and recover it ``rounds`` times in each way, after once that does not count."""
    tell(f"recovery: making a state of {state_keys:,} keys")
    drawn = draws(state_keys, changed, seed)
    fill, changes = fill_keys(state_keys), [next(drawn) for _ in range(DELTAS)]
    made = _make(folder / "made", fill, changes)
    tell(f"recovery: replaying {len(fill) + DELTAS} micro-batches")
    replayed, cpu, expected = _replay(
        folder / "replayed", [*fill, *changes], next_rows(state_keys, changed, seed)
    )
    for name, copied in (("files linked", False), ("files copied", True)):
        tell(f"recovery: {name}")
        read = Recovery(
            folder=str(folder / "made"),
            state_keys=state_keys,
            changed_keys=changed,
            seed=seed,
            copied=copied,
            micro_batch=False,
        )
        first = msgspec.structs.replace(read, micro_batch=True)
        runs = [(isolated(recover, read), isolated(recover, first)) for _ in range(rounds + 1)]
        if any(one.digest != expected for _, one in runs):
            raise WrongResult(f"{name}: the recovered state gives another output than the one replayed")
        assert made.snapshot is not None
        files = [*made.snapshot.files.values(), *(delta.file for delta in made.deltas)]
        facts = {"replay_s": replayed, "replay_cpu_s": cpu, "deltas": len(made.deltas), "aim": AIM}
        facts |= {"bytes": sum(file.size_bytes for file in files), "replayed_batches": len(fill) + DELTAS}
        for way, found in zip(("open", "first_batch"), zip(*runs[1:], strict=True), strict=True):
            seconds = statistics.median(run.seconds for run in found)
            facts |= {f"{way}_s": seconds, f"{way}_s_max": max(run.seconds for run in found)}
            facts[f"{way}_cpu_s"] = statistics.median(run.cpu_seconds or 0.0 for run in found)
            facts[f"{way}_ratio"] = replayed / seconds
        yield Row(name=name, facts=facts)


def _make(folder: Path, fill: list[np.ndarray], changes: list[np.ndarray]) -> PartitionManifest:
    """Fill a state, take a snapshot of it, and lay deltas over it."""
    driven = DrivenJob(folder, settings(folder, snapshot_interval=NEVER))
    for keys in fill:
        driven.run(batches(keys, BATCH_ROWS))
    for number, keys in enumerate(changes):
        driven.job.config = settings(folder, snapshot_interval=NEVER if number else 1)
        driven.run(batches(keys, BATCH_ROWS))
    assert driven.job.base is not None
    assert len(driven.partition.deltas) == len(changes)
    (folder / BASE).write_bytes(msgspec.json.encode(JobBase(driven.job.base, driven.job.batch_id)))
    return driven.partition


def _replay(folder: Path, history: list[np.ndarray], rows: list[pa.RecordBatch]) -> tuple[float, float, str]:
    """What the operator takes for the history, without a checkpoint; digest of its output for the next rows.

    What a replay takes besides does not count: reading the input, Spark, the exchange.
    """
    output = Digest()
    job = Job(folder, aggregate(), settings(folder), INPUT)
    seconds = cpu = 0.0
    with without_checkpoint():
        for keys in history:
            replayed = batches(keys, BATCH_ROWS)
            clocks = Clocks()
            job.run(replayed)
            spent = clocks.spent()
            seconds, cpu = seconds + spent.seconds, cpu + (spent.cpu_seconds or 0.0)
        job.on_output = output.add
        job.run(rows)
    return seconds, cpu, output.hexdigest()
