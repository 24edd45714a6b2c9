"""``python -m bench peers``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from bench.frame import Report
from bench.frame.report import Cores, Folder, Output, Seed, Tiny, chosen, numbers
from bench.peers import measure
from bench.peers.fairness import facts
from bench.peers.flink.nexmark import FLINK_PEERS, PYFLINK, NexmarkPlan, keyed, nexmark, share_of_good
from bench.peers.flink.queries import FLINK_QUERIES
from bench.peers.peers import PEERS
from bench.peers.results import COLUMNS, Throughput, compared, draw_throughput
from bench.peers.works import WORKS, Scale

_SPARK_WORK = ("a", "b", "c", "d", "e", "g")
_NEXMARK = "f"
_E_KEYS_SHARE = 5  # rows a key of a window
_G_ROWS_A_KEY = 10


@dataclass(frozen=True)
class _Amount:
    """How much of everything, as the command line says."""

    rows: int
    keys: tuple[int, ...]
    batches: int
    warm_up: int
    seed: int


def peers(
    work: Annotated[
        str,
        typer.Option(
            help=(
                "a aggregates, b first rows, c join, d counter, e windows, f Nexmark compared with Flink, g a "
                "user-defined function; separated by commas, or 'all'."
            )
        ),
    ] = ",".join(_SPARK_WORK),
    peers: Annotated[str, typer.Option(help="Names separated by commas, or 'all'.")] = "all",
    rows: Annotated[int, typer.Option(min=100, help="Rows a micro-batch.")] = 500_000,
    keys: Annotated[
        str, typer.Option(help="Keys of work a; work b uses the first number.")
    ] = "1000000,10000000",
    batches: Annotated[int, typer.Option(min=1, help="Counted micro-batches.")] = 5,
    warm_up: Annotated[int, typer.Option(min=0, help="Warm-up micro-batches, not measured.")] = 2,
    repeat: Annotated[
        int, typer.Option(min=1, help="Repetitions of everything, in reversed order each time.")
    ] = 1,
    cores: Cores = 2,
    events: Annotated[int, typer.Option(min=1_000, help="Nexmark events (work f).")] = 5_000_000,
    queries: Annotated[
        str, typer.Option(help="Nexmark queries of work f, separated by commas, or 'all'.")
    ] = "all",
    checked_events: Annotated[
        int | None,
        typer.Option(min=1, help="Events for which Flink's result is compared (work f); by default all."),
    ] = None,
    flink_python: Annotated[
        Path | None,
        typer.Option(
            help="Python with apache-flink 2.3 or later; by default $ASYNCSTATE_FLINK_PYTHON, or this one."
        ),
    ] = None,
    tiny: Tiny = False,
    seed: Seed = 1,
    folder: Folder = None,
    output: Output = None,
) -> None:
    """Compare asyncstate with Spark's own operators, with Python code on Spark, and with Flink."""
    works = chosen(work, (*_SPARK_WORK, _NEXMARK), "--work")
    amount = _Amount(rows, numbers(keys, "--keys"), batches, warm_up, seed)
    slow_seconds = 15.0
    if tiny:
        amount, repeat, events, slow_seconds = _Amount(600, (500,), 1, 1, seed), 1, 5_000, 0.2
        works = ["a"] if works == list(_SPARK_WORK) else works
        peers = "ours-sync,spark-changelog" if peers == "all" else peers
    names = chosen(peers, (*PEERS, *FLINK_PEERS, "pyflink"), "--peers")
    asked = tuple(chosen(queries, FLINK_QUERIES, "--queries"))
    amounts = {"rows": amount.rows, "batches": batches, "warm_up": warm_up, "repeat": repeat, "seed": seed}
    with Report("peers", output, folder, **facts(cores, **amounts)) as report:
        plan = measure.Plan(report.folder, cores, repeat, slow_seconds)
        if tiny:
            plan = replace(plan, check=Scale(rows=300, keys=100, warm_up=0, counted=1))
        flink = NexmarkPlan(
            report.folder, events, cores, repeat, seed, flink_python, asked, checked_events or events
        )
        what = f"{events:,} events" if works == [_NEXMARK] else f"{amount.rows:,} rows a micro-batch"
        title = f"asyncstate and others: {what}, {cores} cores, medians of {amount.batches * repeat}"
        report.section(title, COLUMNS)
        for each in works:
            if each == _NEXMARK:
                nexmark(names, flink, report)
                report.add(*share_of_good(report.rows))
                continue
            for label, name, number in _lines(each, amount):
                scale = Scale(amount.rows, number, amount.warm_up, amount.batches, amount.seed)

                def results() -> Iterator[Throughput]:
                    found = measure.measure(WORKS[name], scale, label, names, plan, report.tell)  # noqa: B023
                    if name in PYFLINK and "pyflink" in names:  # noqa: B023
                        found += [keyed(name, label, WORKS[name].title, scale, flink, report.tell)]  # noqa: B023
                    yield from compared(found)

                report.case(label, results)
        report.draw("peers.png", lambda path: draw_throughput(path, report.rows, title))


def _lines(work: str, amount: _Amount) -> list[tuple[str, str, int]]:
    """Label, work and keys of each line of a letter."""
    if work == "a":
        return [(f"a, {keys:,} keys", "a", keys) for keys in amount.keys]
    if work == "e":
        keys = max(1, amount.rows // _E_KEYS_SHARE)
        return [(name, name, keys) for name in ("e-tumble", "e-hop")]
    own = {"d": 2 * amount.rows, "g": max(1, amount.rows // _G_ROWS_A_KEY)}
    return [(work, work, own.get(work, amount.keys[0]))]
