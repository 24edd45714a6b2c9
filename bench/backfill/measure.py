"""The same backfill with and without room for all of its writes, alternating.

Owns: ``BackfillResult``, ``run`` and the table.
Invariant: what is compared has stored the same bytes; otherwise WrongResultError.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence

import msgspec
from rich.box import SIMPLE_HEAD
from rich.table import Table

from bench.backfill.child import GRAINS, Backfill, Measured

UNBOUNDED = "512gb"
_MIB = 1 << 20


class WrongResultError(Exception):
    """Two write caches have not led to the same state."""


class BackfillResult(msgspec.Struct, frozen=True, kw_only=True):
    """Medians of one write cache; ``ratio`` is the median of its times by those without a bound, pair by pair, and
    ``cpu_ratio`` the same of processor time."""

    grain: str
    mode: str
    write_cache: str
    seconds: float
    cpu_seconds: float
    commit_seconds: float
    memory_bytes: float
    write_cache_bytes: float
    spills: int
    ratio: float
    ratio_min: float
    ratio_max: float
    cpu_ratio: float


def run(
    keys: int, write_caches: Sequence[str], rounds: int, tell: Callable[[str], None]
) -> Iterator[BackfillResult]:
    """Measure both grains in both modes with each write cache, the unbounded one first."""
    sizes = [UNBOUNDED, *write_caches]
    for grain in GRAINS:
        for enabled in (False, True):
            mode = "async" if enabled else "sync"
            runs: dict[str, list[Measured]] = {size: [] for size in sizes}
            for number in range(rounds):
                for size in sizes if number % 2 == 0 else sizes[::-1]:
                    tell(f"{grain} grain, {mode}, write cache {size}, round {number + 1}")
                    runs[size].append(
                        _measured(Backfill(grain=grain, enabled=enabled, keys=keys, write_cache=size))
                    )
            contents = {measured.content for measureds in runs.values() for measured in measureds}
            if len(contents) > 1:
                raise WrongResultError(
                    f"{grain} grain, {mode}: other bytes were stored when writes were spilled"
                )
            for size in sizes:
                yield _result(grain, mode, size, runs[size], runs[UNBOUNDED])


def _measured(task: Backfill) -> Measured:
    command = [sys.executable, "-m", "bench.backfill.child", msgspec.json.encode(task).decode()]
    ended = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    return msgspec.json.decode(ended.stdout, type=Measured)


def _result(
    grain: str, mode: str, size: str, mine: Sequence[Measured], unbounded: Sequence[Measured]
) -> BackfillResult:
    ratios = [one.seconds / other.seconds for one, other in zip(mine, unbounded, strict=True)]
    return BackfillResult(
        grain=grain,
        mode=mode,
        write_cache=size,
        seconds=statistics.median(one.seconds for one in mine),
        cpu_seconds=statistics.median(one.cpu_seconds for one in mine),
        commit_seconds=statistics.median(one.commit_seconds for one in mine),
        memory_bytes=statistics.median(one.memory_bytes for one in mine),
        write_cache_bytes=statistics.median(one.write_cache_bytes for one in mine),
        spills=mine[0].spills,
        ratio=statistics.median(ratios),
        ratio_min=min(ratios),
        ratio_max=max(ratios),
        cpu_ratio=statistics.median(
            one.cpu_seconds / other.cpu_seconds for one, other in zip(mine, unbounded, strict=True)
        ),
    )


def backfill_table(results: Sequence[BackfillResult], title: str) -> Table:
    """A row a grain, mode and write cache; fits 80 characters."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for name in ("\ngrain, mode", "\ncache"):
        table.add_column(name, no_wrap=True)
    for name in (
        "\nspills",
        "\ns",
        "\nratio",
        "\nspread",
        "CPU\ns",
        "CPU\nratio",
        "writes\nMiB",
        "process\nMiB",
    ):
        table.add_column(name, justify="right", no_wrap=True)
    for result in results:
        table.add_row(
            f"{result.grain}, {result.mode}",
            "none" if result.write_cache == UNBOUNDED else result.write_cache,
            str(result.spills),
            f"{result.seconds:.1f}",
            f"{result.ratio:.2f}",
            f"{result.ratio_min:.2f}-{result.ratio_max:.2f}",
            f"{result.cpu_seconds:.1f}",
            f"{result.cpu_ratio:.2f}",
            f"{result.write_cache_bytes / _MIB:.0f}",
            f"{result.memory_bytes / _MIB:.0f}",
        )
    return table
