"""One measurement in a process of its own, so that the shim and cold caches belong to it alone.

Owns: ``Task``, ``Measured``, and the program ``python -m bench.slowdisk.child``: a Task as JSON in, Measured out.
"""

from __future__ import annotations

import gc
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa

from asyncstate.config import Config, Tuning, resolve
from asyncstate.runtime.stores import rocksdb_options
from asyncstate.spark.task import settle_worker
from bench.job import Job, JobBase
from bench.slowdisk import shim
from bench.slowdisk.by_hand import ReadByHand, thread_counts
from bench.slowdisk.workloads import INPUT, WORKLOADS, Workload, fill_batches, rows

_BUNDLE_ROWS = 2_000  # few enough that a bundle of uniform keys meets each block once, as a single read does
_BASE = "base.json"
_PIPES = shutil.ignore_patterns("*.asked")  # by which a worker is asked for a store


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """What to measure. ``folder`` is where ``fill`` made the state; ``records`` is 0 for ``fill`` itself.

    ``cached``: with a block cache larger than the state; else with next to none, read around the page cache.
    """

    workload: str
    folder: str
    state_keys: int
    seed: int
    records: int = 0
    warm_up: int = 0
    rounds: int = 0
    asynchronous: bool = False
    cached: bool = False


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """Medians over the rounds. ``reads_per_record`` are reads of the device, None without the shim."""

    us_per_record: float
    us_per_record_min: float
    us_per_record_max: float
    cpu_us_per_record: float
    reads_per_record: float | None
    threads: int
    state_bytes: int


class Figures:
    """What the rounds took, for each record."""

    def __init__(self) -> None:
        self._us: list[float] = []
        self._cpu_us: list[float] = []
        self._reads: list[float] = []

    def take(self, records: int, run: Callable[[], float]) -> None:
        """One round: ``run`` does ``records`` records and gives its seconds."""
        gc.collect()
        reads, cpu = shim.reads(), time.process_time()
        self._us.append(run() / records * 1e6)
        self._cpu_us.append((time.process_time() - cpu) / records * 1e6)
        after = shim.reads()
        if after is not None and reads is not None:
            self._reads.append((after - reads) / records)

    def medians(self, threads: int, state_bytes: int) -> Measured:
        """Over the rounds."""
        return Measured(
            us_per_record=statistics.median(self._us),
            us_per_record_min=min(self._us),
            us_per_record_max=max(self._us),
            cpu_us_per_record=statistics.median(self._cpu_us),
            reads_per_record=statistics.median(self._reads) if self._reads else None,
            threads=threads,
            state_bytes=state_bytes,
        )


def fill(task: Task) -> None:
    """Make the state of a workload in ``task.folder``, for any number of measurements."""
    folder = Path(task.folder)
    workload = WORKLOADS[task.workload]
    job = Job(folder, workload.make(False), _config(task), INPUT)
    job.run(fill_batches(workload, task.state_keys))
    job.run([])  # brings the local store up to the first delta
    assert job.base is not None
    job.close()
    (folder / _BASE).write_bytes(msgspec.json.encode(JobBase(job.base, job.batch_id)))


def measure(task: Task) -> Measured:
    """Run the workload's micro-batches on a copy of the state."""
    settle_worker()
    source = Path(task.folder)
    base = msgspec.json.decode((source / _BASE).read_bytes(), type=JobBase)
    workload = WORKLOADS[task.workload]
    folder = Path(tempfile.mkdtemp(prefix="run-", dir=source.parent))
    try:
        shutil.copytree(source, folder, ignore=_PIPES, dirs_exist_ok=True, copy_function=_link_or_copy)
        if workload.by_hand:
            return _measure_by_hand(task, folder)
        job = Job(
            folder, workload.make(task.asynchronous), _config(task), INPUT, base.manifest, base.batch_id
        )
        try:
            return _measure(task, workload, job)
        finally:
            job.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _measure(task: Task, workload: Workload, job: Job) -> Measured:
    random = np.random.default_rng(task.seed)
    figures = Figures()
    for number in range(task.rounds + 1):
        records = task.records if number else task.warm_up
        batches = _batches(workload, random.choice(task.state_keys, records, replace=False))
        if number:
            figures.take(records, partial(job.run, batches))
        else:
            job.run(batches)
    threads = int(job.statistics.get("io_threads_peak", 0))
    return figures.medians(threads, int(job.statistics["state_bytes"]))


def _measure_by_hand(task: Task, folder: Path) -> Measured:
    """Single gets, or list gets on that number of threads that was the quickest."""
    random = np.random.default_rng(task.seed)
    with ReadByHand(folder, rocksdb_options(_config(task))) as store:
        get_us = store.one_by_one(store.drawn(random, task.warm_up)) / task.warm_up * 1e6
        if not task.asynchronous:
            read: Callable[[list[bytes]], float] = store.one_by_one
            return _rounds(task, store, random, read, 0)
        runs = [
            _rounds(task, store, random, partial(store.on_threads, threads=threads), threads)
            for threads in thread_counts(get_us)
        ]
    return min(runs, key=lambda measured: measured.us_per_record)


def _rounds(
    task: Task,
    store: ReadByHand,
    random: np.random.Generator,
    read: Callable[[list[bytes]], float],
    threads: int,
) -> Measured:
    figures = Figures()
    for _ in range(task.rounds):
        figures.take(task.records, partial(read, store.drawn(random, task.records)))
    return figures.medians(threads, store.size_bytes)


def _batches(workload: Workload, keys: np.ndarray) -> list[pa.RecordBatch]:
    """Input batches as large as a bundle at bundle grain, so that a bundle needs no copy."""
    size = _BUNDLE_ROWS if workload.bundles else len(keys)
    return [rows(keys[start : start + size]) for start in range(0, len(keys), size)]


def _config(task: Task) -> Config:
    options: dict[str, object] = {
        "async-state.enabled": task.asynchronous,
        "async-state.snapshot-interval": 1_000,
        "async-state.bundle-size": _BUNDLE_ROWS,
    }
    if task.cached:
        return resolve(options, {}, Tuning(blocks_bytes=1 << 30))
    options["async-state.cache-size"] = "256kb"
    tuning = Tuning(blocks_bytes=WORKLOADS[task.workload].block_cache_bytes, direct_reads=True)
    return resolve(options, {}, tuning)


def _link_or_copy(source: str, target: str) -> None:
    """Table files never change, so a link will do; all others are copied."""
    if source.endswith(".sst"):
        os.link(source, target)
    else:
        shutil.copy2(source, target)


def main() -> None:
    """Read a Task from the first argument; print what was measured as JSON."""
    task = msgspec.json.decode(sys.argv[1], type=Task)
    if task.records:
        print(msgspec.json.encode(measure(task)).decode())
    else:
        fill(task)


if __name__ == "__main__":
    main()
