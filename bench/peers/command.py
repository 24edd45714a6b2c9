"""``python -m bench peers``."""

from __future__ import annotations

import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from bench.options import chosen, made, numbers
from bench.peers.outcome import CANNOT_RUN, Amount, Report, facts

if TYPE_CHECKING:
    from bench.peers.flink.nexmark import NexmarkPlan
    from bench.peers.measure import Plan

_SPARK_WORK = ("a", "b", "c", "d", "e", "g")
_ITSELF = ("raw", "growth", "modes")
_NEXMARK = "f"
_DEFAULT = ",".join((*_SPARK_WORK, *_ITSELF))
_FILE_WIDTH = 110
_ROWS_ALONE = 200_000  # of raw and modes: a micro-batch on one core
_E_KEYS_SHARE = 5  # rows a key of a window
_G_ROWS_A_KEY = 10


def peers(
    work: Annotated[
        str,
        typer.Option(
            help="a aggregates, b first rows, c join, d counter, e windows, f Nexmark beside Flink, g a function of "
            "the user's own, raw, growth, modes; with commas, or 'all'."
        ),
    ] = _DEFAULT,
    peers: Annotated[str, typer.Option(help="Names with commas between them, or 'all'.")] = "all",
    rows: Annotated[int, typer.Option(min=100, help="Rows a micro-batch.")] = 500_000,
    keys: Annotated[
        str, typer.Option(help="Keys of work a; the first number is that of b.")
    ] = "1000000,10000000",
    batches: Annotated[int, typer.Option(min=1, help="Counted micro-batches.")] = 5,
    warm_up: Annotated[int, typer.Option(min=0, help="Micro-batches that do not count.")] = 2,
    repeat: Annotated[int, typer.Option(min=1, help="Times to do it all, order reversed each time.")] = 1,
    cores: Annotated[int, typer.Option(min=1, help="Cores for each engine, and partitions.")] = 2,
    events: Annotated[int, typer.Option(min=1_000, help="Nexmark events (work f).")] = 5_000_000,
    queries: Annotated[str, typer.Option(help="Nexmark queries of work f, with commas, or 'all'.")] = "all",
    checked_events: Annotated[
        int | None,
        typer.Option(min=1, help="Events on which Flink's result is compared (work f); by default all."),
    ] = None,
    flink_python: Annotated[
        Path | None,
        typer.Option(
            help="Python with apache-flink 2.3 or later; by default $ASYNCSTATE_FLINK_PYTHON, or this one."
        ),
    ] = None,
    tiny: Annotated[bool, typer.Option("--tiny", help="Small and quick: shows that it runs.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the rows.")] = 1,
    folder: Annotated[
        Path | None, typer.Option(help="Where to put state; by default the temporary directory.")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Folder for peers.json and peers-*.png.")] = None,
) -> None:
    """Compare asyncstate with Spark's own operators, with Python code on Spark, with Flink, and with itself."""
    from bench.peers.flink.nexmark import FLINK_PEERS, NexmarkPlan
    from bench.peers.flink.queries import FLINK_QUERIES
    from bench.peers.measure import Plan
    from bench.peers.peers import PEERS
    from bench.peers.turns import PeerError
    from bench.peers.works import Scale

    console = Console()
    if not console.is_terminal:
        console = Console(width=_FILE_WIDTH)  # a file has no width of its own
    amount = Amount(rows, numbers(keys, "--keys"), batches, warm_up, repeat, cores, seed, events)
    if tiny:
        amount = Amount(600, (500,), 1, 1, 1, cores, seed, 5_000, 0.2, (300, 900))
        work = "a,growth" if work == _DEFAULT else work
        peers = "ours-sync,spark-changelog" if peers == "all" else peers
    works = chosen(work, (*_SPARK_WORK, _NEXMARK, *_ITSELF), "--work")
    names = chosen(peers, (*PEERS, *FLINK_PEERS, "pyflink"), "--peers")
    scratch = Path(tempfile.mkdtemp(prefix="asyncstate-peers-", dir=made(folder)))
    asked = tuple(chosen(queries, tuple(FLINK_QUERIES), "--queries"))
    report = Report(output, facts(amount))
    plan = Plan(scratch, cores, amount.repeat, amount.slow_seconds)
    if tiny:
        plan = replace(plan, check=Scale(rows=300, keys=100, warm_up=0, counted=1))
    flink = NexmarkPlan(
        scratch, amount.events, cores, amount.repeat, seed, flink_python, asked, checked_events
    )
    started = time.perf_counter()

    def tell(text: str) -> None:
        console.print(f"[dim]{time.perf_counter() - started:7.1f} s[/dim]  {text}", highlight=False)

    try:
        for each in works:
            _do(each, names, amount, plan, flink, report, tell)
    except PeerError as error:
        console.print(str(error), style="red", markup=False, highlight=False)
        raise typer.Exit(CANNOT_RUN) from None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        report.show(console, amount)
    if code := report.judge(console):
        raise typer.Exit(code)


def _do(
    work: str,
    names: list[str],
    amount: Amount,
    plan: Plan,
    flink: NexmarkPlan,
    report: Report,
    tell: Any,
) -> None:
    from bench.peers.flink.nexmark import PYFLINK, keyed, nexmark, share_of_good
    from bench.peers.itself import Task, measure_itself
    from bench.peers.measure import measure
    from bench.peers.works import WORKS, Scale

    if work == _NEXMARK:
        for results in nexmark(names, flink, tell):
            report.add(results)
        report.add(figures=share_of_good(report.results))
        return
    if work in _ITSELF:
        tell(f"{work}: measuring")
        task = Task(
            measurement=work,
            folder=str(plan.folder),
            rows=amount.rows if work == "growth" else min(amount.rows, _ROWS_ALONE),
            state_keys=amount.keys[0],
            pairs=amount.batches,
            sizes=amount.sizes,
            seed=amount.seed,
        )
        report.add(figures=measure_itself(task))
        return
    for label, name, keys in _scales(work, amount):
        scale = Scale(amount.rows, keys, amount.warm_up, amount.batches, amount.seed)
        report.add(measure(WORKS[name], scale, label, names, plan, tell))
        if name in PYFLINK and "pyflink" in names:
            report.add([keyed(name, label, WORKS[name].title, keys, amount.rows, flink, tell)])


def _scales(work: str, amount: Amount) -> list[tuple[str, str, int]]:
    """Label, work and keys of each line that a letter stands for."""
    if work == "a":
        return [(f"a, {keys:,} keys", "a", keys) for keys in amount.keys]
    if work == "d":
        return [("d", "d", 2 * amount.rows)]
    if work == "g":
        return [("g", "g", max(1, amount.rows // _G_ROWS_A_KEY))]
    if work == "e":
        return [(name, name, max(1, amount.rows // _E_KEYS_SHARE)) for name in ("e-tumble", "e-hop")]
    return [(work, work, amount.keys[0])]
