"""The paradigms against each other: calls, futures and await, with sync and with async state: ``python -m bench
paradigms``.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Annotated

import numpy as np
import pyarrow as pa
import typer

from asyncstate.operator import InputSpec
from bench.frame import Figure, Report, Row, Side, columns, medians, ratio, turns
from bench.frame.report import Rounds, Seed, benchmark, figure
from bench.job import Job, config_of, sliced
from bench.paradigms import PARADIGMS, ROWS, Form, Paradigm

_ENTRIES = 3  # rows a key in the state that the measured micro-batches find
_WAYS = {
    "calls": (Form.CALLS, "sync"),
    "futures": (Form.FUTURES, "sync"),
    "async": (Form.FUTURES, "async"),
    "await": (Form.AWAIT, "async"),
}
"""Form, and mode of the state."""
_COLUMNS = columns("""
    calls sync: calls; futures sync: futures; futures async: async; await async: await
    sync /async: ratio as times drawn low high; spread: low high
""")


def rows(keys: np.ndarray, seed: int) -> list[pa.RecordBatch]:
    """A row a key, with an x from 1 to 3 and a y from 1 to 4: nothing is cleared."""
    random = np.random.default_rng(seed)
    x, y = (random.integers(1, most + 1, len(keys)) for most in (3, 4))
    return sliced(ROWS, keys, x, y, rows=50_000)


def has_await(paradigm: type[Paradigm]) -> bool:
    """Whether the paradigm has an ``async def`` form."""
    return Form.AWAIT in vars(paradigm)


def measure(paradigm: type[Paradigm], state_keys: int, records: int, rounds: int, seed: int) -> Iterator[Row]:
    """All forms of one paradigm, each on a state of its own, in turns. A row by the clock and one of processors; the
    ratio is of futures, sync by async."""
    with ExitStack() as opened:
        folder = opened.enter_context(tempfile.TemporaryDirectory(prefix="asyncstate-paradigms-"))

        def side(way: str, form: Form, mode: str) -> Side:
            job = Job(Path(folder, way), paradigm(form), config_of(mode), InputSpec(ROWS, ("key",)))
            opened.callback(job.close)
            job.run(rows(np.tile(np.arange(state_keys, dtype=np.int64), _ENTRIES), seed))
            return job.timed

        random = np.random.default_rng(seed)
        drawn = (rows(random.integers(0, state_keys, records), seed + number) for number in count())
        ways = {way: how for way, how in _WAYS.items() if way != "await" or has_await(paradigm)}
        spent = turns({way: side(way, *how) for way, how in ways.items()}, rounds, drawn)
    us = {way: medians(found, records) for way, found in spent.items()}
    group = f"{paradigm.number} {paradigm.title}"
    for cpu, name in enumerate(("clock", "CPU")):
        found = ratio(spent["futures"], spent["async"], cpu=bool(cpu))
        facts = {**{way: both[cpu] for way, both in us.items()}, **figure(found)}
        row = Row(name=name, group=group, facts=facts)
        if found is not None and not cpu:
            row.figures = {f"{group}, async by sync": Figure(*found, rate=True)}
        yield row


@benchmark(state_keys=300, records=300, rounds=1)
def paradigms(
    report: Report,
    state_keys: Annotated[int, typer.Option(min=10, help="Keys in the state.")] = 50_000,
    records: Annotated[int, typer.Option(min=10, help="Records a micro-batch.")] = 50_000,
    rounds: Rounds = 5,
    slow: Annotated[bool, typer.Option(help="Also iterate on a device with 1 ms latency (Linux, C).")] = True,
    seed: Seed = 1,
) -> None:
    """Compare the nine paradigms in their forms, with sync and async state; iterations on a slow device too."""
    title = f"us a record, {records:,} records on {state_keys:,} keys in memory, medians of {rounds}"
    report.section(title, _COLUMNS)
    for paradigm in PARADIGMS:
        report.case(paradigm.title, measure, paradigm, state_keys, records, rounds, seed)
    if slow:
        from bench.slowdisk import command as slowdisk

        size = (2_000, 100, 1, seed) if report.tiny else (1_000_000, 1_000, 3, seed)
        title = "us a record, {1:,} of {0:,} keys on a slow device".format(*size)
        report.section(title, slowdisk.COLUMNS)
        slowdisk.run(report, ["p5", "p6", "p9"], ["1ms"], 1_000, size)
