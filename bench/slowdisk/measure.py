"""The measurements of the slow-disk benchmark, each in a process of its own, so that the shim and cold caches belong
to it alone.

Owns: ``DEVICES``, ``Plan``, ``Measured``, ``fill``, ``measure`` and ``compared``.
Invariant: sync and async of one row start from the same state and read with the same caches and latency.
"""

from __future__ import annotations

import gc
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa

from asyncstate.config import Config, Tuning, resolve
from asyncstate.runtime.partition.restore_plans import rocksdb_options
from asyncstate.spark.python_task import settle_worker
from bench.frame import Report, Row, isolated
from bench.frame.measure import isolated_in
from bench.job import Job, JobBase
from bench.slowdisk import shim
from bench.slowdisk.by_hand import ReadByHand, thread_counts
from bench.slowdisk.workloads import INPUT, WORKLOADS, Workload, fill_batches, rows

_BUNDLE_ROWS = 2_000  # few enough that a bundle of uniform keys meets each block once, as a single read does
_BASE = "base.json"
_PIPES = shutil.ignore_patterns("*.asked")  # by which a worker is asked for a store
_RECORD_US = 60.0  # about the cost of a record in sync mode without the added latency
_WARM_UP_SHARE = 10


class Device(msgspec.Struct, frozen=True):
    """What reads meet: memory (``cached``: a block cache larger than the state), or the local disk, read around the
    page cache and with next to no block cache, with ``latency_us`` added to each read."""

    name: str
    latency_us: int = 0
    cached: bool = False


DEVICES: Mapping[str, Device] = {
    "memory": Device("memory", cached=True),
    "disk": Device("local disk"),
    "0.2ms": Device("+ 0.2 ms", 200),
    "1ms": Device("+ 1 ms", 1_000),
    "5ms": Device("+ 5 ms", 5_000),
}
"""By the name of the command line."""


@dataclass(frozen=True)
class Plan:
    """How much to measure. Sync gets as many records as fit ``sync_seconds``, which bounds each run."""

    state_keys: int
    records: int
    records_min: int
    sync_seconds: float
    rounds: int
    seed: int

    def sync_records(self, device: Device) -> int:
        """Records of a sync micro-batch on ``device``."""
        affordable = int(self.sync_seconds * 1e6 / (device.latency_us + _RECORD_US))
        return max(self.records_min, min(self.records, affordable))


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """What to measure in the state that ``fill`` has made in ``folder``."""

    workload: str
    folder: str
    state_keys: int
    seed: int
    records: int = 0
    warm_up: int = 0
    rounds: int = 0
    asynchronous: bool = False
    cached: bool = False

    @property
    def config(self) -> Config:
        """Of the job."""
        options: dict[str, object] = {
            "async-state.enabled": self.asynchronous,
            "async-state.snapshot-interval": 1_000,
            "async-state.bundle-size": _BUNDLE_ROWS,
        }
        if self.cached:
            return resolve(options, {}, Tuning(blocks_bytes=1 << 30))
        tuning = Tuning(blocks_bytes=WORKLOADS[self.workload].block_cache_bytes, direct_reads=True)
        return resolve(options | {"async-state.cache-size": "256kb"}, {}, tuning)


class Measured(msgspec.Struct, frozen=True):
    """A record, medians over the rounds. ``reads`` are those of the device, None without the shim."""

    us: float
    cpu_us: float
    reads: float | None
    threads: int


class _Figures:
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

    def medians(self, threads: int) -> Measured:
        reads = statistics.median(self._reads) if self._reads else None
        return Measured(statistics.median(self._us), statistics.median(self._cpu_us), reads, threads)


def fill(task: Task) -> None:
    """Make the state of a workload in ``task.folder``, for any number of measurements."""
    folder, workload = Path(task.folder), WORKLOADS[task.workload]
    job = Job(folder, workload.make(False), task.config, INPUT)
    job.run(fill_batches(workload, task.state_keys))
    job.run([])  # brings the local store up to the first delta
    assert job.base is not None
    job.close()
    (folder / _BASE).write_bytes(msgspec.json.encode(JobBase(job.base, job.batch_id)))


def measure(task: Task) -> Measured:
    """Run the workload's micro-batches on a copy of the state."""
    settle_worker()
    source, workload = Path(task.folder), WORKLOADS[task.workload]
    with tempfile.TemporaryDirectory(prefix="run-", dir=source.parent, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        shutil.copytree(source, folder, ignore=_PIPES, dirs_exist_ok=True, copy_function=_link_or_copy)
        return _by_hand(task, folder) if workload.by_hand else _by_job(task, workload, folder)


def _by_job(task: Task, workload: Workload, folder: Path) -> Measured:
    base = msgspec.json.decode((folder / _BASE).read_bytes(), type=JobBase)
    job = Job(folder, workload.make(task.asynchronous), task.config, INPUT, base.manifest, base.batch_id)
    random, figures = np.random.default_rng(task.seed), _Figures()
    for number in range(task.rounds + 1):
        records = task.records if number else task.warm_up
        batches = _batches(workload, random.choice(task.state_keys, records, replace=False))
        if number:
            figures.take(records, partial(job.run, batches))
        else:
            job.run(batches)
    job.close()
    return figures.medians(int(job.statistics.get("io_threads_peak", 0)))


def _by_hand(task: Task, folder: Path) -> Measured:
    """Single gets, or list gets on that number of threads that was the quickest."""
    random = np.random.default_rng(task.seed)
    with ReadByHand(folder, rocksdb_options(task.config)) as store:

        def rounds(read: Callable[[list[bytes]], float], threads: int) -> Measured:
            figures = _Figures()
            for _ in range(task.rounds):
                figures.take(task.records, partial(read, store.drawn(random, task.records)))
            return figures.medians(threads)

        get_us = store.one_by_one(store.drawn(random, task.warm_up)) / task.warm_up * 1e6
        if not task.asynchronous:
            return rounds(store.one_by_one, 0)
        runs = [rounds(partial(store.on_threads, threads=each), each) for each in thread_counts(get_us)]
    return min(runs, key=lambda measured: measured.us)


def _batches(workload: Workload, keys: np.ndarray) -> list[pa.RecordBatch]:
    """Input batches as large as a bundle at bundle grain, so that a bundle needs no copy."""
    size = _BUNDLE_ROWS if workload.bundles else len(keys)
    return [rows(keys[start : start + size]) for start in range(0, len(keys), size)]


def _link_or_copy(source: str, target: str) -> None:
    """Table files never change, so a link will do; all others are copied."""
    if source.endswith(".sst"):
        os.link(source, target)
    else:
        shutil.copy2(source, target)


def run(
    report: Report, workloads: list[str], devices: list[str], plan: Plan, folder: Path, library: Path | None
) -> None:
    """Measure each workload on each device. Without the shim's ``library`` devices with a latency are left out."""
    for workload in workloads:
        title = WORKLOADS[workload].name
        made = folder / workload
        made.mkdir()
        task = Task(workload=workload, folder=str(made), state_keys=plan.state_keys, seed=plan.seed)
        filled = report.case("filling", lambda: filled_by(task), title)  # noqa: B023
        for device in (DEVICES[name] for name in devices if filled):
            if library is not None or not device.latency_us:
                report.case(device.name, lambda: [compared(device, plan, task, library)], title)  # noqa: B023


def filled_by(task: Task) -> list[Row]:
    """No row: the state is made."""
    isolated(fill, task)
    return []


def compared(device: Device, plan: Plan, task: Task, library: Path | None) -> Row:
    """Sync and async; ``speedup`` is the time of a record in sync mode by that in async mode, ``device_us`` what the
    device alone would take for a record in async mode: its reads, shared out over the threads."""
    environment = None
    if library is not None:
        environment = shim.environment(library, Path(task.folder).resolve().parent, device.latency_us)
    found = []
    for asynchronous in (False, True):
        records = plan.records if asynchronous else plan.sync_records(device)
        cold = max(plan.records_min, records // _WARM_UP_SHARE)
        ready = msgspec.structs.replace(
            task,
            records=records,
            warm_up=plan.state_keys // 4 if device.cached else cold,
            rounds=plan.rounds,
            asynchronous=asynchronous,
            cached=device.cached,
        )
        found.append(isolated_in(environment, measure, ready))
    sync, mine = found
    facts: dict[str, object] = {"workload": task.workload, "latency_us": device.latency_us}
    for mode, each in (("sync", sync), ("async", mine)):
        facts |= {f"{mode}_us": each.us, f"{mode}_cpu_us": each.cpu_us, f"{mode}_reads": each.reads}
    facts |= {"speedup": sync.us / mine.us, "threads": mine.threads or None}
    if device.latency_us and mine.reads is not None and mine.threads:
        facts["device_us"] = mine.reads * device.latency_us / mine.threads
    return Row(name=device.name, group=WORKLOADS[task.workload].name, facts=facts)
