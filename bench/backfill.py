"""What a first micro-batch of millions of keys takes in memory and time as its writes are bounded.

Owns: ``bench backfill``. Invariant: what is compared has stored the same bytes; each run has a process of its own,
whose highest memory is then that of the backfill.
"""

from __future__ import annotations

import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import pyarrow as pa
import typer
import xxhash

from asyncstate.config import Config, Tuning, resolve
from asyncstate.operator import Operator
from asyncstate.runtime import read_state
from asyncstate.spark.python_task import settle_worker
from bench.frame import Column, Report, Row, WrongResult, isolated, ratio
from bench.frame.report import Output, Rounds, Tiny, figure, mib
from bench.job import Job
from bench.micro.operators import CountPerKey
from bench.processor_time import Spent
from bench.rows import INPUT
from operators import GroupAggregate, count, sum_

GRAINS: dict[str, Callable[[], Operator]] = {
    "bundle": lambda: GroupAggregate([count().alias("n"), sum_("value").alias("total")]),
    "record": CountPerKey,
}
UNBOUNDED = "512gb"
_USUAL = Config().shares
_TUNING = Tuning(
    columns_bytes=_USUAL.columns,
    blocks_bytes=_USUAL.blocks,
    open_stores_bytes=_USUAL.open_stores,
    gathered_bytes=_USUAL.gathered,
    bundle_bytes=_USUAL.bundle,
)
"""Everything but the writes has what it usually has."""
_BATCH_ROWS = 10_000  # what Spark sends at a time
_SCATTERED = 2_654_435_761  # prime, so that its multiples meet each key once, far from the one before
_COLUMNS = (
    Column("spills", "spills"),
    Column("s", "s"),
    Column("ratio", "ratio"),
    Column("spread", "low high"),
    Column("CPU s", "cpu_s"),
    Column("CPU ratio", "cpu_ratio"),
    Column("writes MiB", "write_cache_bytes", mib),
    Column("process MiB", "memory_bytes", mib),
)


class Backfill(msgspec.Struct):
    """One run; ``memory_bytes`` is by how much the process has grown at most, ``content`` names all that was stored."""

    seconds: float
    cpu_seconds: float
    memory_bytes: int
    write_cache_bytes: int
    spills: int
    content: str


def backfill_once(grain: str, enabled: bool, keys: int, write_cache: str) -> Backfill:
    """The backfill as the first micro-batch of a job: ``keys`` new keys, a row each."""
    settle_worker()
    options = {
        "async-state.enabled": enabled,
        "async-state.memory": "1024gb",
        "async-state.cache-size": _USUAL.cache,
        "async-state.read-cache-size": _USUAL.decoded,
        "async-state.write-cache-size": write_cache,
    }
    with tempfile.TemporaryDirectory(prefix="asyncstate-backfill-") as folder:
        job = Job(Path(folder), GRAINS[grain](), resolve(options, {}, _TUNING), INPUT)
        memory, cpu = _memory(), time.process_time()
        seconds = job.run(_batches(keys))
        memory, cpu = _memory() - memory, time.process_time() - cpu
        found = job.statistics
        digest = xxhash.xxh3_128()
        for key, value in read_state(job.spec(), 1):
            digest.update(b"%d %d " % (len(key), len(value)) + key + value)
    written, spills = int(found["write_cache_bytes_peak"]), int(found["spills"])
    return Backfill(seconds, cpu, memory, written, spills, digest.hexdigest())


def _batches(keys: int) -> Iterator[pa.RecordBatch]:
    for start in range(0, keys, _BATCH_ROWS):
        numbers = np.arange(start, min(start + _BATCH_ROWS, keys), dtype=np.int64)
        key = numbers * _SCATTERED % keys
        yield pa.RecordBatch.from_arrays([pa.array(key), pa.array(numbers)], schema=INPUT.schema)


def _memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def measure(grain: str, enabled: bool, keys: int, sizes: list[str], rounds: int) -> Iterator[Row]:
    """Each write cache by turns, the unbounded one first."""
    runs: dict[str, list[Backfill]] = {size: [] for size in sizes}
    for number in range(rounds):
        for size in sizes[:: -1 if number % 2 else 1]:
            runs[size].append(isolated(backfill_once, grain, enabled, keys, size))
    if len({run.content for found in runs.values() for run in found}) > 1:
        raise WrongResult("spilled writes stored different bytes")
    spent = {size: [Spent(run.seconds, run.cpu_seconds) for run in found] for size, found in runs.items()}
    for size, found in runs.items():
        cpu = ratio(spent[size], spent[UNBOUNDED], cpu=True)
        facts = {
            "spills": found[0].spills,
            "s": statistics.median(run.seconds for run in found),
            "cpu_s": statistics.median(run.cpu_seconds for run in found),
            "write_cache_bytes": statistics.median(run.write_cache_bytes for run in found),
            "memory_bytes": statistics.median(run.memory_bytes for run in found),
            **figure(ratio(spent[size], spent[UNBOUNDED])),
            "cpu_ratio": cpu and cpu.value,
        }
        name = "no bound" if size == UNBOUNDED else size
        yield Row(name=name, group=f"{grain} grain, {'async' if enabled else 'sync'}", facts=facts)


def backfill(
    keys: Annotated[int, typer.Option(min=1_000, help="New keys in the micro-batch.")] = 4_000_000,
    write_caches: Annotated[
        str, typer.Option(help="Values of async-state.write-cache-size, separated by commas.")
    ] = "256mb,64mb",
    rounds: Rounds = 3,
    tiny: Tiny = False,
    output: Output = None,
) -> None:
    """Measure memory and time of a micro-batch of many new keys, with and without a bound for its writes."""
    if tiny:
        keys, write_caches, rounds = 120_000, "4mb", 1
    sizes = [UNBOUNDED, *(size.strip() for size in write_caches.split(","))]
    with Report("backfill", output, keys=keys, rounds=rounds) as report:
        report.section(f"{keys:,} new keys by write cache, medians of {rounds}", _COLUMNS)
        for grain in GRAINS:
            for enabled in (False, True):
                mode = f"{grain} grain, {'async' if enabled else 'sync'}"
                report.case(mode, lambda: measure(grain, enabled, keys, sizes, rounds))  # noqa: B023
