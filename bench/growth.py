"""How long micro-batches take, and what memory a worker takes, as the state grows: ``python -m bench growth``.

Owns: the job that is filled and then updated. Invariant: each size runs in a process of its own, so that one size's
memory is not another's. Must not import Spark.
"""

from __future__ import annotations

import os
import resource
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import typer

from asyncstate.config import Tuning, resolve
from bench.frame import Column, Report, Row, isolated
from bench.frame.report import Folder, Output, Tiny, mib, numbers, times
from bench.job import Job
from bench.processor_time import Clocks
from bench.rows import INPUT, batches
from operators import GroupAggregate, count, max_, sum_

_MIB = 1 << 20
# Of a row of count, sum and maximum under an int64 key, in the column cache and in RocksDB's blocks.
_COLUMN_BYTES, _BLOCK_BYTES = 70, 40
_COLUMNS = (
    Column("wall s", "wall_median"),
    Column("wall max", "wall_max", times),
    Column("wall mean", "wall_mean", times),
    Column("us a row", "wall_us"),
    Column("by first", "wall_by_first", times),
    Column("CPU us", "cpu_us"),
    Column("by first", "cpu_by_first", times),
    Column("wait s", "waited_max"),
    Column("state MiB", "state_bytes", mib),
    Column("RSS MiB", "rss_bytes", mib),
    Column("peak MiB", "rss_bytes_peak", mib),
)


class Growth(msgspec.Struct, frozen=True):
    """What a state took: seconds and processor seconds of each counted micro-batch, and the seconds that it waited for
    a compaction; bytes of memory at the end (``parts`` of it by owner), and the highest one."""

    seconds: list[float]
    processor_seconds: list[float]
    waited_seconds: list[float]
    rss_bytes: int
    rss_bytes_peak: int
    state_bytes: int
    parts: dict[str, float]


def grown(folder: str, keys: int, rows: int, micro_batches: int, cache_share: float | None) -> Growth:
    """Fill ``keys`` keys by micro-batches of ``rows``, then count ``micro_batches`` of them with uniform keys.

    ``cache_share`` is the part of the rows that the caches have room for; None: as configured by default.
    """
    operator = GroupAggregate([count(), sum_("value"), max_("value")])
    job = Job(Path(folder), operator, resolve({}, {}, _caches(keys, cache_share)), INPUT)
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
    return Growth(
        [each.seconds for each in spent],
        [each.cpu_seconds or 0.0 for each in spent],
        waited,
        int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"),
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        int(job.statistics["state_bytes"]),
        {name: value for name, value in job.statistics.items() if "bytes" in name},
    )


def _caches(keys: int, share: float | None) -> Tuning:
    """Room for a part of the rows, as columns and as blocks."""
    if share is None:
        return Tuning()
    return Tuning(
        columns_bytes=int(share * keys * _COLUMN_BYTES),
        blocks_bytes=max(_MIB, int(share * keys * _BLOCK_BYTES)),
    )


def facts(found: Growth, rows: int) -> dict[str, Any]:
    """The median micro-batch, and the slowest and the mean by it; what a row costs."""
    shown: dict[str, Any] = {"waited_max": max(found.waited_seconds)}
    for clock, seconds in (("wall", found.seconds), ("cpu", found.processor_seconds)):
        median = statistics.median(seconds)
        shown |= {f"{clock}_median": median, f"{clock}_us": median / rows * 1e6}
        shown |= {f"{clock}_max": max(seconds) / median, f"{clock}_mean": statistics.mean(seconds) / median}
    return {**shown, **msgspec.to_builtins(found)}


def growth(
    keys: Annotated[
        str, typer.Option(help="Keys in the state; sizes separated by commas.")
    ] = "1000000,10000000",
    rows: Annotated[int, typer.Option(min=1, help="Rows of a measured micro-batch.")] = 250_000,
    micro_batches: Annotated[int, typer.Option(min=2, help="Counted micro-batches.")] = 36,
    cache_share: Annotated[
        float | None,
        typer.Option(
            min=0, max=1, help="Fraction of the rows that fits into the caches; by default as configured."
        ),
    ] = None,
    tiny: Tiny = False,
    folder: Folder = None,
    output: Output = None,
) -> None:
    """Fill a state, then update keys of it at random: a row's cost, the slowest micro-batch, and memory, by size."""
    if tiny:
        keys, rows, micro_batches = "2000", 500, 3
    with Report("growth", output, folder, rows=rows, cache_share=cache_share) as report:
        report.section(f"Micro-batches of {rows:,} rows, by keys in the state", _COLUMNS)

        def measure(size: int) -> Iterator[Row]:
            place = report.folder / str(size)
            place.mkdir()
            found = facts(isolated(grown, str(place), size, rows, micro_batches, cache_share), rows)
            first = next((row.facts for row in report.rows if row.facts), found)
            by_first = {
                f"{clock}_by_first": found[f"{clock}_us"] / first[f"{clock}_us"] for clock in ("wall", "cpu")
            }
            yield Row(name=f"{size:,} keys", facts={"keys": size, **found, **by_first})

        for size in numbers(keys, "--keys"):
            report.case(f"{size:,} keys", lambda: measure(size))  # noqa: B023
