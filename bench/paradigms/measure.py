"""The paradigms against each other: calls, futures and await, with sync and with async state, all of it in memory.

Each pair of runs goes over the same rows, in turns, after runs that do not count; the medians are reported.
"""

from __future__ import annotations

import gc
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
from rich import box
from rich.table import Table

from asyncstate.config import resolve
from asyncstate.operator import InputSpec
from asyncstate.spark.task import settle_worker
from bench.job import Job
from bench.paradigms.base import ROWS, Form, Paradigm
from bench.processor_time import Spent

_ENTRIES = 3  # rows a key in the state that the measured micro-batches find
_INPUT_ROWS = 50_000


class ParadigmResult(msgspec.Struct, frozen=True, kw_only=True):
    """One paradigm: medians in microseconds a record; ``speedup`` is futures sync by futures async, of pairs.

    ``calls_us`` and ``futures_us`` are of the two forms with sync state, ``async_us`` and ``await_us`` of futures and
    ``async def`` with async state; ``await_us`` is None where there is no such form. ``cpu`` are those of processors.
    """

    number: int
    name: str
    records: int
    calls_us: float
    futures_us: float
    async_us: float
    await_us: float | None
    calls_cpu_us: float
    futures_cpu_us: float
    async_cpu_us: float
    await_cpu_us: float | None
    speedup: float
    speedup_min: float
    speedup_max: float
    cpu_speedup: float


def rows(keys: np.ndarray, seed: int) -> list[pa.RecordBatch]:
    """A row a key, with an x from 1 to 3 and a y from 1 to 4: nothing is cleared."""
    random = np.random.default_rng(seed)
    columns = [pa.array(keys), *(pa.array(random.integers(1, most + 1, len(keys))) for most in (3, 4))]
    whole = pa.RecordBatch.from_arrays(columns, schema=ROWS)
    return [whole.slice(start, _INPUT_ROWS) for start in range(0, len(keys), _INPUT_ROWS)]


def has_await(paradigm: type[Paradigm]) -> bool:
    """Whether the paradigm has an ``async def`` form."""
    return Form.AWAIT in vars(paradigm)


def measure(
    paradigm: type[Paradigm], state_keys: int, records: int, rounds: int, seed: int
) -> ParadigmResult:
    """All forms of one paradigm, each on a state of its own, in turns."""
    ways = {"calls": (Form.CALLS, False), "futures": (Form.FUTURES, False), "async": (Form.FUTURES, True)}
    if has_await(paradigm):
        ways["await"] = (Form.AWAIT, True)
    with tempfile.TemporaryDirectory(prefix="asyncstate-paradigms-") as folder:
        jobs = {
            way: _filled(Path(folder, way), paradigm(form), enabled, state_keys, seed)
            for way, (form, enabled) in ways.items()
        }
        times: dict[str, list[Spent]] = {way: [] for way in ways}
        for number, keys in zip(range(rounds + 1), _draws(state_keys, records, seed), strict=False):
            batch = rows(keys, seed + number)
            for way in ways if number % 2 else reversed(ways):
                gc.collect()
                times[way].append(jobs[way].timed(batch))
    return _result(paradigm, records, {way: counted[1:] for way, counted in times.items()})


def _filled(folder: Path, operator: Paradigm, enabled: bool, state_keys: int, seed: int) -> Job:
    config = resolve({"async-state.enabled": enabled, "async-state.snapshot-interval": 1000}, {})
    job = Job(folder, operator, config, InputSpec(ROWS, ("key",)))
    job.run(rows(np.tile(np.arange(state_keys, dtype=np.int64), _ENTRIES), seed))
    return job


def _draws(state_keys: int, records: int, seed: int) -> Iterator[np.ndarray]:
    random = np.random.default_rng(seed)
    while True:
        yield random.integers(0, state_keys, records)


def _result(paradigm: type[Paradigm], records: int, times: dict[str, list[Spent]]) -> ParadigmResult:
    us, cpu_us = (
        {
            way: statistics.median(spent[clock] for spent in all_) / records * 1e6
            for way, all_ in times.items()
        }
        for clock in (0, 1)
    )
    pairs = list(zip(times["futures"], times["async"], strict=True))
    speedups = [sync.seconds / later.seconds for sync, later in pairs]
    return ParadigmResult(
        number=paradigm.number,
        name=paradigm.title,
        records=records,
        calls_us=us["calls"],
        futures_us=us["futures"],
        async_us=us["async"],
        await_us=us.get("await"),
        calls_cpu_us=cpu_us["calls"],
        futures_cpu_us=cpu_us["futures"],
        async_cpu_us=cpu_us["async"],
        await_cpu_us=cpu_us.get("await"),
        speedup=statistics.median(speedups),
        speedup_min=min(speedups),
        speedup_max=max(speedups),
        cpu_speedup=statistics.median(sync.cpu_seconds / later.cpu_seconds for sync, later in pairs),
    )


def run(
    paradigms: Sequence[type[Paradigm]], state_keys: int, records: int, rounds: int, seed: int = 1
) -> Iterator[ParadigmResult]:
    """A result a paradigm, in a process with the garbage collector set as in Spark's workers."""
    settle_worker()
    for paradigm in paradigms:
        yield measure(paradigm, state_keys, records, rounds, seed)


def paradigms_table(results: Sequence[ParadigmResult], title: str) -> Table:
    """The results as a table for people, within 80 characters; microseconds a record, and below those of processors."""
    table = Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False
    )
    table.add_column("\nparadigm", no_wrap=True)
    for heading in (
        "calls\nsync",
        "futures\nsync",
        "futures\nasync",
        "await\nasync",
        "async\n/sync",
        "\nspread",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    for result in results:
        table.add_row(
            f"{result.number} {result.name}",
            *_times(result.calls_us, result.futures_us, result.async_us, result.await_us),
            f"{result.speedup:.2f}x",
            f"{result.speedup_min:.2f}-{result.speedup_max:.2f}",
        )
        table.add_row(
            "  CPU",
            *_times(result.calls_cpu_us, result.futures_cpu_us, result.async_cpu_us, result.await_cpu_us),
            f"{result.cpu_speedup:.2f}x",
            "",
        )
    return table


def _times(*microseconds: float | None) -> tuple[str, ...]:
    return tuple("" if each is None else f"{each:.1f}" for each in microseconds)
