"""What a commit costs: the same micro-batches with and without a checkpoint, in turns.

Owns: ``CommitResult``, ``Pair``, ``commit_cost`` and ``compared``.
Invariant: both jobs of a pair get the same rows over the same history, each once in front and once behind.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec
import pyarrow as pa

from bench.checkpoints.bare import without_checkpoint
from bench.checkpoints.driven import BATCH_ROWS, DrivenJob, aggregate, fill_keys, settings
from bench.job import Job
from bench.processor_time import Clocks, Spent, TreeClocks, TreeSpent, median_cpu
from bench.rows import INPUT, batches, draws

AIM = 0.15
WARM_UP = 2
"""Pairs that do not count."""


class CommitResult(msgspec.Struct, frozen=True, kw_only=True):
    """Medians of micro-batches, in milliseconds, and what a checkpoint adds, as a share of the time without.

    ``plain`` are micro-batches without a snapshot, ``snapshot`` those with one, ``every`` is the mean over a snapshot
    interval. ``spread`` is the least and the greatest ``plain`` share of a pair. ``cpu`` is ``plain`` in processor
    time, which says more than time on a machine with other work, but nothing of waiting; None where the system does not
    tell.
    """

    name: str
    changed_keys: int
    state_keys: int
    pairs: int
    snapshots: int
    without_ms: float
    without_cpu_ms: float | None
    plain_ms: float
    plain_cpu_ms: float | None
    snapshot_ms: float
    plain: float
    snapshot: float
    every: float
    spread: tuple[float, float]
    cpu: float | None
    aim: float | None


class Pair(NamedTuple):
    """What one micro-batch took, and whether the checkpoint got a snapshot with it."""

    without: Spent | TreeSpent
    checkpointed: Spent | TreeSpent
    snapshot: bool

    @property
    def over(self) -> float:
        """What the checkpoint added, as a share."""
        return self.checkpointed.seconds / self.without.seconds - 1

    @property
    def cpu_over(self) -> float | None:
        """The same of processor time."""
        with_it, without = self.checkpointed.cpu_seconds, self.without.cpu_seconds
        return None if with_it is None or not without else with_it / without - 1


def commit_cost(
    folder: Path, enabled: bool, state_keys: int, changed: int, rounds: int, seed: int, aim: float | None
) -> CommitResult:
    """Measure one partition, without Spark. Both jobs open their stores and give them back in each micro-batch."""
    driven = DrivenJob(folder / "with", settings(folder / "with", enabled))
    bare = Job(folder / "without", aggregate(), settings(folder / "without", enabled), INPUT)

    def run_bare(rows: Sequence[pa.RecordBatch]) -> None:
        with without_checkpoint():
            bare.run(rows)

    for keys in fill_keys(state_keys):
        rows = batches(keys, BATCH_ROWS)
        driven.run(rows)
        run_bare(rows)
    drawn = draws(state_keys, changed, seed)
    pairs = []
    for number in range(WARM_UP + rounds):
        rows = batches(next(drawn), BATCH_ROWS)
        before = driven.partition.snapshot
        with_it, without = in_turns(number, Clocks, partial(driven.run, rows), partial(run_bare, rows))
        pairs.append(Pair(without, with_it, driven.partition.snapshot != before))
    name = "async" if enabled else "sync"
    interval = settings(folder).snapshot_interval
    return compared(name, changed, state_keys, pairs[WARM_UP:], interval, aim)


def in_turns(
    number: int,
    clocks: type[Clocks] | type[TreeClocks],
    first: Callable[[], object],
    second: Callable[[], object],
) -> tuple[Spent | TreeSpent, Spent | TreeSpent]:
    """What both take, of which the second is called first in each odd turn."""
    spent = {}
    for which in (0, 1) if number % 2 == 0 else (1, 0):
        gc.collect()
        started = clocks()
        (first, second)[which]()
        spent[which] = started.spent()
    return spent[0], spent[1]


def compared(
    name: str, changed: int, state_keys: int, pairs: Sequence[Pair], interval: int, aim: float | None
) -> CommitResult:
    """The figures of the pairs; there must be some of both kinds."""
    plain = [pair for pair in pairs if not pair.snapshot]
    with_snapshot = [pair for pair in pairs if pair.snapshot]
    overs = [pair.over for pair in plain]
    cpus = [pair.cpu_over for pair in plain if pair.cpu_over is not None]
    usual, rare = statistics.median(overs), statistics.median(pair.over for pair in with_snapshot)
    return CommitResult(
        name=name,
        changed_keys=changed,
        state_keys=state_keys,
        pairs=len(pairs),
        snapshots=len(with_snapshot),
        without_ms=statistics.median(pair.without.seconds for pair in pairs) * 1e3,
        without_cpu_ms=_cpu_ms([pair.without for pair in pairs]),
        plain_ms=statistics.median(pair.checkpointed.seconds for pair in plain) * 1e3,
        plain_cpu_ms=_cpu_ms([pair.checkpointed for pair in plain]),
        snapshot_ms=statistics.median(pair.checkpointed.seconds for pair in with_snapshot) * 1e3,
        plain=usual,
        snapshot=rare,
        every=((interval - 1) * usual + rare) / interval,
        spread=(min(overs), max(overs)),
        cpu=statistics.median(cpus) if cpus else None,
        aim=aim,
    )


def _cpu_ms(spent: Sequence[Spent | TreeSpent]) -> float | None:
    cpu = median_cpu(spent)
    return None if cpu is None else cpu * 1e3
