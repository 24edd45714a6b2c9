"""The paradigms against each other: calls, futures and await, with sync and with async state: ``python -m bench
paradigms``.

Owns: the command and its measurement; ``has_await``.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import numpy as np
import pyarrow as pa
import typer

from asyncstate.config import resolve
from asyncstate.operator import InputSpec
from asyncstate.spark.python_task import settle_worker
from bench.frame import Column, Figure, Report, Row, medians, ratio, turns
from bench.frame.report import Output, Rounds, Seed, Tiny, figure, times
from bench.job import Job
from bench.paradigms.base import ROWS, Form, Paradigm

_ENTRIES = 3  # rows a key in the state that the measured micro-batches find
_INPUT_ROWS = 50_000
_WAYS = {
    "calls": (Form.CALLS, False),
    "futures": (Form.FUTURES, False),
    "async": (Form.FUTURES, True),
    "await": (Form.AWAIT, True),
}
"""Form, and whether state is async."""
_COLUMNS = (
    Column("calls sync", "calls"),
    Column("futures sync", "futures"),
    Column("futures async", "async"),
    Column("await async", "await"),
    Column("sync /async", "ratio", times),
    Column("spread", "low high"),
)


def rows(keys: np.ndarray, seed: int) -> list[pa.RecordBatch]:
    """A row a key, with an x from 1 to 3 and a y from 1 to 4: nothing is cleared."""
    random = np.random.default_rng(seed)
    columns = [pa.array(keys), *(pa.array(random.integers(1, most + 1, len(keys))) for most in (3, 4))]
    whole = pa.RecordBatch.from_arrays(columns, schema=ROWS)
    return [whole.slice(start, _INPUT_ROWS) for start in range(0, len(keys), _INPUT_ROWS)]


def has_await(paradigm: type[Paradigm]) -> bool:
    """Whether the paradigm has an ``async def`` form."""
    return Form.AWAIT in vars(paradigm)


def measure(paradigm: type[Paradigm], state_keys: int, records: int, rounds: int, seed: int) -> Iterator[Row]:
    """All forms of one paradigm, each on a state of its own, in turns. A row by the clock and one of processors; the
    ratio is of futures, sync by async."""
    ways = {way: form for way, form in _WAYS.items() if way != "await" or has_await(paradigm)}

    def drawn() -> Iterator[list[pa.RecordBatch]]:
        random = np.random.default_rng(seed)
        for number in range(rounds + 1):
            yield rows(random.integers(0, state_keys, records), seed + number)

    with tempfile.TemporaryDirectory(prefix="asyncstate-paradigms-") as folder:
        jobs = {
            way: _filled(Path(folder, way), paradigm(form), enabled, state_keys, seed)
            for way, (form, enabled) in ways.items()
        }
        spent = turns({way: job.timed for way, job in jobs.items()}, rounds, drawn())
        for job in jobs.values():
            job.close()
    us = {way: medians(found, records) for way, found in spent.items()}
    group = f"{paradigm.number} {paradigm.title}"
    for cpu, name in enumerate(("clock", "CPU")):
        found = ratio(spent["futures"], spent["async"], cpu=bool(cpu))
        row = Row(
            name=name, group=group, facts={**{way: both[cpu] for way, both in us.items()}, **figure(found)}
        )
        if found is not None and not cpu:
            row.figures = {f"{group}, async by sync": Figure(*found, rate=True)}
        yield row


def _filled(folder: Path, operator: Paradigm, enabled: bool, state_keys: int, seed: int) -> Job:
    config = resolve({"async-state.enabled": enabled, "async-state.snapshot-interval": 1000}, {})
    job = Job(folder, operator, config, InputSpec(ROWS, ("key",)))
    job.run(rows(np.tile(np.arange(state_keys, dtype=np.int64), _ENTRIES), seed))
    return job


def paradigms(
    state_keys: Annotated[int, typer.Option(min=10, help="Keys in the state.")] = 50_000,
    records: Annotated[int, typer.Option(min=10, help="Records a micro-batch.")] = 50_000,
    rounds: Rounds = 5,
    tiny: Tiny = False,
    slow: Annotated[
        bool,
        typer.Option(
            "--slow/--no-slow",
            help="Also measure iteration on a device with 1 ms latency (needs Linux and a C compiler).",
        ),
    ] = True,
    seed: Seed = 1,
    output: Output = None,
) -> None:
    """Compare the nine paradigms in their forms, with sync and async state; iterations on a slow device too."""
    from bench.paradigms import PARADIGMS
    from bench.slowdisk import command
    from bench.slowdisk import measure as slowdisk

    plan = slowdisk.Plan(1_000_000, 1_000, 1_000, 3.0, 3, seed)
    if tiny:
        state_keys, records, rounds = 300, 300, 1
        plan = slowdisk.Plan(2_000, 100, 50, 0.1, 1, seed)
    settle_worker()
    with Report("paradigms", output, state_keys=state_keys, rounds=rounds, seed=seed) as report:
        title = f"us a record, {records:,} records on {state_keys:,} keys in memory, medians of {rounds}"
        report.section(title, _COLUMNS)
        for paradigm in PARADIGMS:
            size = paradigm, state_keys, records, rounds, seed
            report.case(paradigm.title, lambda: measure(*size))  # noqa: B023
        if slow and (library := command.delaying(report)) is not None:
            report.section(
                f"us a record, {plan.records:,} of {plan.state_keys:,} keys on a slow device", command.COLUMNS
            )
            slowdisk.run(report, ["p5", "p6", "p9"], ["1ms"], plan, report.folder, library)
