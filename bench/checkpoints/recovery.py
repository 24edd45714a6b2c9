"""How long a new worker takes to have the state, against computing it again from the input.

Owns: ``RecoveryResult`` and ``recovery``.
Invariant: what is recovered answers the next micro-batch as the job does that never stopped; else an error.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa

from asyncstate.errors import AsyncStateError
from asyncstate.storage import PartitionManifest
from bench.checkpoints.bare import without_checkpoint
from bench.checkpoints.child import BASE, Digest, Recovered, Recovery, next_rows
from bench.checkpoints.driven import BATCH_ROWS, NEVER, DrivenJob, aggregate, fill_keys, settings
from bench.job import Job, JobBase
from bench.processor_time import Clocks, Spent
from bench.rows import INPUT, batches, draws

AIM = 10.0
DELTAS = 20
_ROOT = Path(__file__).resolve().parents[2]


class RecoveryResult(msgspec.Struct, frozen=True, kw_only=True):
    """Medians in seconds. ``open_s`` ends with the first value read, ``first_batch_s`` with the first micro-batch of
    ``changed_keys``; both start with no local store. ``open_ratio`` and ``first_batch_ratio`` are ``replay_s`` by
    them. ``cpu`` are seconds of processors."""

    name: str
    state_keys: int
    changed_keys: int
    deltas: int
    replayed_batches: int
    snapshot_bytes: int
    delta_bytes: int
    replay_s: float
    replay_cpu_s: float
    open_s: float
    open_s_max: float
    open_cpu_s: float
    first_batch_s: float
    first_batch_s_max: float
    first_batch_cpu_s: float
    open_ratio: float
    first_batch_ratio: float
    aim: float


class RecoveryError(AsyncStateError):
    """A recovery failed, or what it gave was wrong."""


def recovery(
    folder: Path, state_keys: int, changed: int, rounds: int, seed: int, tell: Callable[[str], None]
) -> list[RecoveryResult]:
    """Make the state, replay it, and recover it ``rounds`` times in each way, after once that does not count."""
    tell(f"recovery: making a state of {state_keys:,} keys")
    drawn = draws(state_keys, changed, seed)
    fill, changes = fill_keys(state_keys), [next(drawn) for _ in range(DELTAS)]
    made = _make(folder / "made", fill, changes)
    tell(f"recovery: replaying {len(fill) + DELTAS} micro-batches")
    replayed, expected = _replay(folder / "replayed", [*fill, *changes], next_rows(state_keys, changed, seed))
    results = []
    for name, copied in (("files linked", False), ("files copied", True)):
        tell(f"recovery: {name}")
        task = Recovery(
            folder=str(folder / "made"),
            state_keys=state_keys,
            changed_keys=changed,
            seed=seed,
            copied=copied,
            micro_batch=False,
        )
        with_batch = msgspec.structs.replace(task, micro_batch=True)
        runs = [(start(task), start(with_batch)) for _ in range(rounds + 1)]
        if any(first_batch.digest != expected for _, first_batch in runs):
            raise RecoveryError(f"{name}: the recovered state gives another output than the one replayed")
        results.append(_result(name, task, made, len(fill) + DELTAS, replayed, runs[1:]))
    return results


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


def _replay(folder: Path, history: list[np.ndarray], rows: list[pa.RecordBatch]) -> tuple[Spent, str]:
    """What the operator takes for the history, without a checkpoint; digest of its output for the next rows.

    What a replay takes besides does not count: reading the input, Spark, the exchange.
    """
    output = Digest()
    job = Job(folder, aggregate(), settings(folder), INPUT)
    spent: list[Spent] = []
    with without_checkpoint():
        for keys in history:
            replayed = batches(keys, BATCH_ROWS)
            clocks = Clocks()
            job.run(replayed)
            spent.append(clocks.spent())
        job.on_output = output.add
        job.run(rows)
    return Spent(*map(sum, zip(*spent, strict=True))), output.hexdigest()


def start(task: Recovery) -> Recovered:
    """Recover in a process of its own. Raises RecoveryError with its last words if it fails."""
    command = [sys.executable, "-m", "bench.checkpoints.child", msgspec.json.encode(task).decode()]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RecoveryError(
            f"a recovery failed with exit code {done.returncode}; the end of what it said:\n{done.stderr[-2000:]}"
        )
    return msgspec.json.decode(done.stdout, type=Recovered)


def _result(
    name: str,
    task: Recovery,
    made: PartitionManifest,
    replayed_batches: int,
    replayed: Spent,
    runs: list[tuple[Recovered, Recovered]],
) -> RecoveryResult:
    opens, first_batches = zip(*runs, strict=True)
    open_s, first_batch_s = (statistics.median(run.seconds for run in way) for way in (opens, first_batches))
    assert made.snapshot is not None
    return RecoveryResult(
        name=name,
        state_keys=task.state_keys,
        changed_keys=task.changed_keys,
        deltas=len(made.deltas),
        replayed_batches=replayed_batches,
        snapshot_bytes=sum(file.size_bytes for file in made.snapshot.files.values()),
        delta_bytes=sum(delta.file.size_bytes for delta in made.deltas),
        replay_s=replayed.seconds,
        replay_cpu_s=replayed.cpu_seconds,
        open_s=open_s,
        open_s_max=max(run.seconds for run in opens),
        open_cpu_s=statistics.median(run.cpu_seconds for run in opens),
        first_batch_s=first_batch_s,
        first_batch_s_max=max(run.seconds for run in first_batches),
        first_batch_cpu_s=statistics.median(run.cpu_seconds for run in first_batches),
        open_ratio=replayed.seconds / open_s,
        first_batch_ratio=replayed.seconds / first_batch_s,
        aim=AIM,
    )
