"""Memory and time of large states: ``python -m bench growth``, as a state grows, and ``python -m bench backfill``, of a
first micro-batch of millions of keys as its writes are bounded.

Invariant: each run has a process of its own, so that its memory is not another's; backfills that are compared have
stored the same bytes. Must not import Spark.
"""

from __future__ import annotations

import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import typer
import xxhash

from asyncstate.config import Config, Tuning, resolve
from asyncstate.operator import Operator
from asyncstate.runtime import read_state
from bench.frame import Report, Rounds, Row, WrongResult, benchmark, columns, figure, numbers, ratio, turns
from bench.job import INPUT, MODES, Job, batches, config_of, count_and_sum, sliced
from bench.micro.command import CountPerKey
from bench.processor_time import Clocks, Spent
from operators import GroupAggregate, count, max_, sum_

# Of a row of count, sum and maximum under an int64 key, in the column cache and in RocksDB's blocks.
_COLUMN_BYTES, _BLOCK_BYTES = 70, 40
_GROWTH = columns("""
    wall s: wall_median; wall max: wall_max as times; wall mean: wall_mean as times; us a row: wall_us drawn
    by first: wall_by_first as times; CPU us: cpu_us; by first: cpu_by_first as times; wait s: waited_max
    state MiB: state_bytes as mib; RSS MiB: rss_bytes as mib; peak MiB: rss_bytes_peak as mib drawn
""")
_BACKFILL = columns("""
    spills: spills; s: seconds; ratio: ratio drawn low high; spread: low high; CPU s: cpu_seconds
    CPU ratio: cpu_ratio; writes MiB: write_cache_bytes as mib; process MiB: memory_bytes as mib drawn
""")


def grown(folder: str, keys: int, rows: int, micro_batches: int, cache_share: float | None) -> dict[str, Any]:
    """Fill ``keys`` keys by micro-batches of ``rows``, then count ``micro_batches`` of them with uniform keys.
    ``cache_share`` is the part of the rows that the caches have room for; None: as configured by default. The facts:
    seconds and processor seconds of each counted micro-batch, and the seconds that it waited for a compaction; bytes of
    memory at the end (``parts`` of it by owner), and the highest one."""
    tuning = Tuning()
    if cache_share is not None:
        blocks = max(1 << 20, int(cache_share * keys * _BLOCK_BYTES))
        tuning = Tuning(columns_bytes=int(cache_share * keys * _COLUMN_BYTES), blocks_bytes=blocks)
    operator = GroupAggregate([count(), sum_("value"), max_("value")])
    job = Job(Path(folder), operator, resolve({}, {}, tuning))
    random = np.random.default_rng(1)
    for part in np.array_split(random.permutation(keys), max(1, keys // rows)):
        job.run(batches(part, len(part)))
    spent, waited = [], []
    for _ in range(micro_batches):
        drawn = batches(random.integers(0, keys, rows), rows)
        clocks = Clocks()
        job.run(drawn)
        spent.append(clocks.spent())
        waited.append(job.statistics["compaction_seconds"])
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    facts = {"keys": keys, **batch_costs(spent, rows), "waited_seconds": waited, "waited_max": max(waited)}
    facts |= {"rss_bytes": pages * os.sysconf("SC_PAGE_SIZE"), "rss_bytes_peak": _memory()}
    parts = {name: value for name, value in job.statistics.items() if "bytes" in name}
    return facts | {"state_bytes": int(job.statistics["state_bytes"]), "parts": parts}


def _memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def batch_costs(spent: list[Spent], rows: int) -> dict[str, Any]:
    """The median micro-batch, and the slowest and the mean by it; what a row costs."""
    shown: dict[str, Any] = {}
    clocks = {"wall": [each.seconds for each in spent], "cpu": [each.cpu_seconds or 0.0 for each in spent]}
    for clock, seconds in clocks.items():
        name = "seconds" if clock == "wall" else "processor_seconds"
        median = statistics.median(seconds)
        shown |= {name: seconds, f"{clock}_median": median, f"{clock}_us": median / rows * 1e6}
        shown |= {f"{clock}_max": max(seconds) / median, f"{clock}_mean": statistics.mean(seconds) / median}
    return shown


@benchmark(keys="2000", rows=500, micro_batches=3)
def growth(
    report: Report,
    keys: Annotated[str, typer.Option(help="Keys in the state, with commas.")] = "1000000,10000000",
    rows: Annotated[int, typer.Option(min=1, help="Rows of a measured micro-batch.")] = 250_000,
    micro_batches: Annotated[int, typer.Option(min=2, help="Counted micro-batches.")] = 36,
    cache_share: Annotated[float | None, typer.Option(min=0, max=1, help="Share of rows in caches.")] = None,
) -> None:
    """Fill a state, then update keys of it at random: a row's cost, the slowest micro-batch, and memory, by size."""
    report.section(f"Micro-batches of {rows:,} rows, by keys in the state", _GROWTH)

    def measure(size: int) -> Iterator[Row]:
        place = report.folder / str(size)
        place.mkdir()
        found = report.alone(grown, str(place), size, rows, micro_batches, cache_share)
        first = next((row.facts for row in report.rows if row.facts), found)
        for clock in ("wall", "cpu"):
            found[f"{clock}_by_first"] = found[f"{clock}_us"] / first[f"{clock}_us"]
        yield Row(name=f"{size:,} keys", facts=found)

    for size in numbers(keys, "--keys"):
        report.case(f"{size:,} keys", measure, size)


GRAINS: dict[str, Callable[[], Operator]] = {"bundle": count_and_sum, "record": CountPerKey}
UNBOUNDED = "512gb"
_USUAL = Config().shares
_NAMES = ("columns", "blocks", "open_stores", "gathered", "bundle")
_TUNING = Tuning(**{f"{name}_bytes": getattr(_USUAL, name) for name in _NAMES})
"""Everything but the writes has what it usually has."""
_BATCH_ROWS = 10_000  # what Spark sends at a time
_SCATTERED = 2_654_435_761  # prime, so that its multiples meet each key once, far from the one before


def backfilled(grain: str, mode: str, keys: int, write_cache: str) -> dict[str, Any]:
    """The backfill as the first micro-batch of a job: ``keys`` new keys, a row each. ``memory_bytes`` is by how much
    the process has grown at most, ``content`` names all that was stored."""
    own = {"memory": "1024gb", "cache-size": _USUAL.cache, "read-cache-size": _USUAL.decoded}
    config = config_of(mode, {**own, "write-cache-size": write_cache}, _TUNING)

    def rows() -> Iterator[pa.RecordBatch]:
        for start in range(0, keys, _BATCH_ROWS):
            numbers = np.arange(start, min(start + _BATCH_ROWS, keys), dtype=np.int64)
            yield from sliced(INPUT.schema, numbers * _SCATTERED % keys, numbers)

    with tempfile.TemporaryDirectory(prefix="asyncstate-backfill-") as folder:
        job = Job(Path(folder), GRAINS[grain](), config)
        memory, cpu = _memory(), time.process_time()
        seconds = job.run(rows())
        memory, cpu = _memory() - memory, time.process_time() - cpu
        found = job.statistics
        digest = xxhash.xxh3_128()
        for key, value in read_state(job.spec(), 1):
            digest.update(b"%d %d " % (len(key), len(value)) + key + value)
    facts = {"seconds": seconds, "cpu_seconds": cpu, "memory_bytes": memory, "content": digest.hexdigest()}
    return facts | {"write_cache_bytes": found["write_cache_bytes_peak"], "spills": int(found["spills"])}


def _sizes(report: Report, grain: str, mode: str, keys: int, sizes: list[str], rounds: int) -> Iterator[Row]:
    runs: dict[str, list[dict[str, Any]]] = {size: [] for size in sizes}

    def run(size: str, _: object) -> Spent:
        runs[size].append(found := report.alone(backfilled, grain, mode, keys, size))
        return Spent(found["seconds"], found["cpu_seconds"])

    spent = turns({size: partial(run, size) for size in sizes}, rounds, warm_up=0)
    if len({run["content"] for found in runs.values() for run in found}) > 1:
        raise WrongResult("spilled writes stored different bytes")
    for size, found in runs.items():
        cpu = ratio(spent[size], spent[UNBOUNDED], cpu=True)
        facts: dict[str, Any] = {"spills": found[0]["spills"], "cpu_ratio": cpu and cpu.value}
        for fact in ("seconds", "cpu_seconds", "write_cache_bytes", "memory_bytes"):
            facts[fact] = statistics.median(run[fact] for run in found)
        facts |= figure(ratio(spent[size], spent[UNBOUNDED]))
        name = "no bound" if size == UNBOUNDED else size
        yield Row(name=name, group=f"{grain} grain, {mode}", facts=facts)


@benchmark(keys=120_000, write_caches="4mb", rounds=1)
def backfill(
    report: Report,
    keys: Annotated[int, typer.Option(min=1_000, help="New keys in the micro-batch.")] = 4_000_000,
    write_caches: Annotated[str, typer.Option(help="Values of write-cache-size.")] = "256mb,64mb",
    rounds: Rounds = 3,
) -> None:
    """Measure memory and time of a micro-batch of many new keys, with and without a bound for its writes."""
    sizes = [UNBOUNDED, *(size.strip() for size in write_caches.split(","))]
    report.section(f"{keys:,} new keys by write cache, medians of {rounds}", _BACKFILL)
    for grain in GRAINS:
        for mode in MODES:
            report.case(f"{grain} grain, {mode}", _sizes, report, grain, mode, keys, sizes, rounds)
