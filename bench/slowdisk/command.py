"""State on devices that answer late, sync against async as the latency of a read grows: ``python -m bench slow-disk``.

Each measurement has a process of its own, so that the shim that delays reads and cold caches belong to it alone.
Invariant: sync and async of one row start from the same state and read with the same caches and latency. By hand,
nothing is done with the values: what is measured is reading alone, and no framework can gain more. Keys are long and
random, so that two keys of a micro-batch seldom share a block, and the state is larger than every cache.
"""

from __future__ import annotations

import gc
import os
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import typer

from asyncstate.config import Config, Tuning
from asyncstate.operator import InputSpec, Operator
from asyncstate.runtime.partition.restore_plans import rocksdb_options
from asyncstate.spark.python_task import settle_worker
from asyncstate.storage.rocksdb import RocksDBStore
from bench.frame import CaseError, Report, Rounds, Row, Seed, benchmark, chosen, columns, medians
from bench.job import MODES, Job, config_of, count_and_sum, last_row, sliced
from bench.paradigms import PARADIGMS, Form, Paradigm
from bench.processor_time import Spent
from bench.slowdisk import shim

_KEY_WORDS = 12
_FILL_ROWS = 100_000
INPUT = InputSpec(pa.schema([("key", pa.binary()), ("x", pa.int64()), ("y", pa.int64())]), ("key",))


class Workload(NamedTuple):
    """One line of the table: ``make(asynchronous)`` gives the operator; ``rows_a_key`` fill the state. ``by_hand``: the
    operator only makes the state, which is then read without it. ``block_cache_bytes``: RocksDB's, in both modes, where
    the state is to be on the device; pages of iterations that overlap want some blocks of it each."""

    name: str
    make: Callable[[bool], Operator]
    bundles: bool = False
    rows_a_key: int = 1
    by_hand: bool = False
    block_cache_bytes: int = 1 << 20


def _paradigm(paradigm: type[Paradigm]) -> Workload:
    return Workload(
        f"{paradigm.number} {paradigm.__name__}",
        lambda asynchronous: paradigm(Form.FUTURES if asynchronous else Form.CALLS),
        rows_a_key=2 if paradigm.number in (5, 6, 9) else 1,  # those iterate
        block_cache_bytes=(16 if paradigm.scans else 1) << 20,
    )


WORKLOADS: dict[str, Workload] = {f"p{paradigm.number}": _paradigm(paradigm) for paradigm in PARADIGMS} | {
    "by-hand": Workload("rocksdict by hand", lambda _: count_and_sum("x"), by_hand=True),
    "aggregate": Workload("GroupAggregate", lambda _: count_and_sum("x"), bundles=True),
    "deduplicate": Workload("Deduplicate", lambda _: last_row(), bundles=True),
}


def rows(keys: np.ndarray, x: int = 1) -> pa.RecordBatch:
    """A row a key number, with ``x`` and y = 2."""
    numbers = keys.astype(np.uint64)[:, None] * np.uint64(_KEY_WORDS) + np.arange(_KEY_WORDS, dtype=np.uint64)
    # Splitmix64: as good as random, the same for the same number.
    z: np.ndarray = numbers * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    words = (z ^ (z >> np.uint64(31))).astype(">u8")
    offsets = np.arange(0, words.nbytes + 1, 8 * _KEY_WORDS, dtype=np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(words.tobytes())]
    key = pa.Array.from_buffers(pa.binary(), len(keys), buffers)
    return sliced(INPUT.schema, key, np.full(len(keys), x), np.full(len(keys), 2), rows=len(keys))[0]


_BUNDLE_ROWS = 2_000  # few enough that a bundle of uniform keys meets each block once, as a single read does
_RECORD_US = 60.0  # about the cost of a record in sync mode without the added latency
_WARM_UP_SHARE = 10
_CHUNK_KEYS, _WINDOW_KEYS = 16, 2_000  # of list gets by hand
_SLOW_US = 150.0


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


class Task(msgspec.Struct, frozen=True):
    """What to measure in the state that ``fill`` has made in ``folder``."""

    workload: str
    folder: str
    state_keys: int
    records: int
    rounds: int
    seed: int
    asynchronous: bool = False
    cached: bool = False
    warm_up: int = 0

    @property
    def config(self) -> Config:
        mode = "async" if self.asynchronous else "sync"
        if self.cached:
            return config_of(mode, {"bundle-size": _BUNDLE_ROWS}, Tuning(blocks_bytes=1 << 30))
        tuning = Tuning(blocks_bytes=WORKLOADS[self.workload].block_cache_bytes, direct_reads=True)
        return config_of(mode, {"bundle-size": _BUNDLE_ROWS, "cache-size": "256kb"}, tuning)


class Measured(msgspec.Struct, frozen=True):
    """A record, medians over the rounds. ``reads`` are those of the device, None without the shim."""

    us: float
    cpu_us: float
    reads: float | None
    threads: int


def _compared(report: Report, device: Device, task: Task, least: int, library: Path | None) -> Iterator[Row]:
    """Sync and async; ``speedup`` is the time of a record in sync mode by that in async mode, ``device_us`` what the
    device alone would take for a record in async mode: its reads, shared out over the threads. Sync gets as many
    records as fit some seconds, which bounds each run."""
    least, sync_seconds = (50, 0.1) if report.tiny else (least, 3.0)
    environment = None
    if library is not None and not (report.tiny and not device.latency_us):
        environment = shim.environment(library, Path(task.folder).resolve().parent, device.latency_us)
    affordable = int(sync_seconds * 1e6 / (device.latency_us + _RECORD_US))
    found = {}
    for mode in MODES:
        records = max(least, min(task.records, affordable)) if mode == "sync" else task.records
        warm_up = task.state_keys // 4 if device.cached else max(least, records // _WARM_UP_SHARE)
        size = {"records": records, "warm_up": warm_up}
        ready = msgspec.structs.replace(task, asynchronous=mode == "async", cached=device.cached, **size)
        found[mode] = report.alone(measure, ready, environment=environment)
    facts: dict[str, object] = {"workload": task.workload, "latency_us": device.latency_us}
    for mode, each in found.items():
        facts |= {f"{mode}_us": each.us, f"{mode}_cpu_us": each.cpu_us, f"{mode}_reads": each.reads}
    mine = found["async"]
    facts |= {"speedup": found["sync"].us / mine.us, "threads": mine.threads or None}
    if device.latency_us and mine.reads is not None and mine.threads:
        facts["device_us"] = mine.reads * device.latency_us / mine.threads
    yield Row(name=device.name, group=WORKLOADS[task.workload].name, facts=facts)


def fill(task: Task) -> list[Row]:
    """Make the state of a workload in ``task.folder``, for any number of measurements; no row. Each key has
    ``rows_a_key`` rows, with an x of its own each."""
    workload, all_keys = WORKLOADS[task.workload], np.arange(task.state_keys)
    job = Job(Path(task.folder), workload.make(False), task.config, INPUT)
    parts = [all_keys[start : start + _FILL_ROWS] for start in range(0, task.state_keys, _FILL_ROWS)]
    job.run(rows(keys, x + 1) for x in range(workload.rows_a_key) for keys in parts)
    job.run([])  # brings the local store up to the first delta
    job.close()
    job.leave()
    return []


def measure(task: Task) -> Measured:
    def link_or_copy(source: str, target: str) -> None:
        """Table files never change, so a link will do; all others are copied."""
        (os.link if source.endswith(".sst") else shutil.copy2)(source, target)

    source = Path(task.folder)
    with tempfile.TemporaryDirectory(prefix="run-", dir=source.parent, ignore_cleanup_errors=True) as name:
        pipes = shutil.ignore_patterns("*.asked")  # by which a worker is asked for a store
        shutil.copytree(source, name, ignore=pipes, dirs_exist_ok=True, copy_function=link_or_copy)
        return (_by_hand if WORKLOADS[task.workload].by_hand else _by_job)(task, Path(name))


def _medians(records: int, rounds: Iterable[Callable[[], float]], threads: Callable[[], float]) -> Measured:
    """What the rounds took, of ``records`` each: each gives its seconds."""
    spent, reads = [], []
    for one in rounds:
        gc.collect()
        before, cpu = shim.reads(), time.process_time()
        spent.append(Spent(one(), time.process_time() - cpu))
        if before is not None and (after := shim.reads()) is not None:
            reads.append((after - before) / records)
    us, cpu_us = medians(spent, records)
    return Measured(us, cpu_us or 0.0, statistics.median(reads) if reads else None, int(threads()))


def _by_job(task: Task, folder: Path) -> Measured:
    workload = WORKLOADS[task.workload]
    job = Job(folder, workload.make(task.asynchronous), task.config, INPUT, resumed=True)
    random = np.random.default_rng(task.seed)

    def drawn(records: int) -> Callable[[], float]:
        """Input batches as large as a bundle at bundle grain, so that a bundle needs no copy."""
        keys = random.choice(task.state_keys, records, replace=False)
        size = _BUNDLE_ROWS if workload.bundles else len(keys)
        given = [rows(keys[start : start + size]) for start in range(0, len(keys), size)]
        return partial(job.run, given)

    drawn(task.warm_up)()
    rounds = (drawn(task.records) for _ in range(task.rounds))
    found = _medians(task.records, rounds, lambda: job.statistics.get("io_threads_peak", 0))
    job.close()
    return found


def _by_hand(task: Task, folder: Path) -> Measured:
    """Plain rocksdict over the same table files: single gets, or list gets on that number of threads that was the
    quickest."""
    settle_worker()
    random = np.random.default_rng(task.seed)
    store = RocksDBStore(folder / "by-hand", rocksdb_options(task.config))
    store.ingest(sorted((folder / "checkpoint").rglob("*.sst")), 0)
    known, get = list(store.db.keys()), store.db.get

    def drawn(count: int) -> list[bytes]:
        return [known[index] for index in random.choice(len(known), count, replace=False)]

    def one_by_one(keys: list[bytes]) -> float:
        started = time.perf_counter()
        for key in keys:
            get(key)
        return time.perf_counter() - started

    def rounds(read: Callable[[list[bytes]], float], threads: int) -> Measured:
        given = (partial(read, drawn(task.records)) for _ in range(task.rounds))
        return _medians(task.records, given, lambda: threads)

    get_us = one_by_one(drawn(task.warm_up)) / task.warm_up * 1e6
    if not task.asynchronous:
        found = rounds(one_by_one, 0)
    else:  # one of these counts is about the best
        counts = (2, 4, 8, 16) if get_us < _SLOW_US else (32, 128, 256)
        runs = [rounds(partial(_on_threads, get, each), each) for each in counts]
        found = min(runs, key=lambda measured: measured.us)
    store.close()
    return found


def _on_threads(get: Callable[[Any], object], threads: int, keys: list[bytes]) -> float:
    """Seconds of list gets of a few sorted keys each, without starting the threads."""
    windows = (sorted(keys[at : at + _WINDOW_KEYS]) for at in range(0, len(keys), _WINDOW_KEYS))
    chunks = [each[at : at + _CHUNK_KEYS] for each in windows for at in range(0, len(each), _CHUNK_KEYS)]
    begin, shared = threading.Barrier(threads + 1), iter(chunks)

    def work() -> None:
        begin.wait()
        for chunk in shared:  # the iterator of a list gives each to one thread
            get(chunk)

    with ThreadPoolExecutor(threads) as pool:
        working = [pool.submit(work) for _ in range(threads)]
        begin.wait()
        started = time.perf_counter()
        for one in working:
            one.result()
        return time.perf_counter() - started


_AIMED_AT = "by-hand,p1,p2,p3,p4,aggregate,deduplicate"
COLUMNS = columns("""
    sync us: sync_us; CPU us: sync_cpu_us; async us: async_us; CPU us: async_cpu_us
    sync /async: speedup as times drawn; reads /record: async_reads; threads: threads; device us: device_us
""")


@benchmark(workloads="by-hand,p1,aggregate", devices="disk,1ms", state_keys=2_000, records=400, rounds=1)
def slow_disk(
    report: Report,
    workloads: Annotated[str, typer.Option(help=f"{', '.join(WORKLOADS)}; or 'all'.")] = _AIMED_AT,
    devices: Annotated[str, typer.Option(help=f"{', '.join(DEVICES)}; or 'all'.")] = "all",
    state_keys: Annotated[int, typer.Option(min=1_000, help="Keys in the state, of 100 bytes.")] = 1_000_000,
    records: Annotated[int, typer.Option(min=100, help="Records a micro-batch; of sync fewer.")] = 50_000,
    rounds: Rounds = 2,
    seed: Seed = 1,
) -> None:
    """Compare sync with async state as the latency of the disk grows."""
    names, places = chosen(workloads, WORKLOADS, "--workloads"), chosen(devices, DEVICES, "--devices")
    report.section(f"{records:,} records on {state_keys:,} keys, medians of {rounds}", COLUMNS)
    run(report, names, places, min(300, records), (state_keys, records, rounds, seed))
    if not report.rows:
        raise CaseError("nothing could be measured on these devices")


def run(
    report: Report, workloads: list[str], names: list[str], least: int, size: tuple[int, int, int, int]
) -> None:
    """Measure each workload on the devices of these names, ``least`` records at least; ``size``: keys, records, rounds
    and seed. Devices with a latency are left out where reads cannot be delayed."""
    library = None
    try:
        library = shim.build(report.folder)
    except CaseError as error:
        report.say(f"no rows with added latency: {error}")
    devices = [DEVICES[name] for name in names if library is not None or not DEVICES[name].latency_us]
    for workload in workloads if devices else ():
        title, made = WORKLOADS[workload].name, report.folder / workload
        made.mkdir()
        task = Task(workload, str(made), *size)
        filled = report.case("filling", fill, task, group=title, alone=True)
        for device in devices if filled else ():
            report.case(device.name, _compared, report, device, task, least, library, group=title)
