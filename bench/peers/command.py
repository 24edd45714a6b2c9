"""``python -m bench peers``."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from bench.report import write_json

if TYPE_CHECKING:
    from bench.peers.measure import Plan
    from bench.peers.results import Figure, Throughput

_WRONG_RESULT, _CANNOT_RUN = 1, 2
_SPARK_WORK = ("a", "b", "c", "d", "e")
_ITSELF = ("raw", "growth", "modes")
_NEXMARK = "f"
_DEFAULT = ",".join((*_SPARK_WORK, *_ITSELF))
_E_KEYS_SHARE = 5  # rows a key of a window
_GROWTH_SIZES = (100_000, 1_000_000, 5_000_000, 10_000_000, 20_000_000)


@dataclass(frozen=True)
class Amount:
    """How much of everything, as the command line says."""

    rows: int
    keys: tuple[int, ...]
    batches: int
    warm_up: int
    repeat: int
    cores: int
    seed: int
    events: int
    slow_seconds: float = 8.0
    sizes: tuple[int, ...] = _GROWTH_SIZES


@dataclass
class Report:
    """What there is so far; written after each result, so that an interrupted run keeps its figures."""

    output: Path | None
    facts: dict[str, Any]
    results: list[Throughput] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)

    def add(self, results: Sequence[Throughput] = (), figures: Sequence[Figure] = ()) -> None:
        """Take in and write down."""
        from bench.peers.results import compare_all

        self.results += results
        self.figures += figures
        if self.output is not None:
            more = {"comparisons": compare_all(self.results), "itself": self.figures}
            write_json(self.results, self.output / "peers.json", **self.facts, **more)


def peers(
    work: Annotated[
        str,
        typer.Option(
            help="a aggregates, b first rows, c join, d counter, e windows, f Nexmark beside Flink, raw, growth, "
            "modes; with commas, or 'all'."
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
    flink_python: Annotated[
        Path | None,
        typer.Option(help="Python with apache-flink; by default $ASYNCSTATE_FLINK_PYTHON, or this one."),
    ] = None,
    tiny: Annotated[bool, typer.Option("--tiny", help="Small and quick: shows that it runs.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the rows.")] = 1,
    folder: Annotated[
        Path | None, typer.Option(help="Where to put state; by default the temporary directory.")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Folder for peers.json and peers-*.png.")] = None,
) -> None:
    """Compare asyncstate with Spark's own operators, with Python code on Spark, with Flink, and with itself."""
    from bench.peers.measure import Plan
    from bench.peers.peers import PEERS
    from bench.peers.turns import PeerError
    from bench.peers.works import Scale

    console = Console()
    amount = Amount(rows, _numbers(keys), batches, warm_up, repeat, cores, seed, events)
    if tiny:
        amount = Amount(600, (500,), 1, 1, 1, cores, seed, 5_000, 0.2, (300, 900))
        work = "a,growth" if work == _DEFAULT else work
        peers = "ours-sync,spark-changelog" if peers == "all" else peers
    works = _chosen(work, (*_SPARK_WORK, _NEXMARK, *_ITSELF), "--work")
    names = _chosen(peers, (*PEERS, "flink-sql", "flink-sql-async", "pyflink"), "--peers")
    scratch = Path(tempfile.mkdtemp(prefix="asyncstate-peers-", dir=folder))
    report = Report(output, _facts(amount))
    plan = Plan(scratch, cores, amount.repeat, amount.slow_seconds)
    if tiny:
        plan = replace(plan, check=Scale(rows=300, keys=100, warm_up=0, counted=1))
    started = time.perf_counter()

    def tell(text: str) -> None:
        console.print(f"[dim]{time.perf_counter() - started:7.1f} s[/dim]  {text}", highlight=False)

    try:
        for each in works:
            _do(each, names, amount, plan, flink_python, report, tell)
    except PeerError as error:
        console.print(str(error), style="red", markup=False, highlight=False)
        raise typer.Exit(_CANNOT_RUN) from None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        _show(console, report, amount)
    _judge(console, report)


def _do(
    work: str,
    names: list[str],
    amount: Amount,
    plan: Plan,
    flink_python: Path | None,
    report: Report,
    tell: Any,
) -> None:
    from bench.peers.itself import Task, measure_itself
    from bench.peers.measure import measure
    from bench.peers.works import WORKS, Scale

    if work in _ITSELF:
        tell(f"{work}: measuring")
        task = Task(
            measurement=work,
            folder=str(plan.folder),
            rows=min(amount.rows, 200_000),
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


def _scales(work: str, amount: Amount) -> list[tuple[str, str, int]]:
    """Label, work and keys of each line that a letter stands for."""
    if work == "a":
        return [(f"a, {keys:,} keys", "a", keys) for keys in amount.keys]
    if work == "d":
        return [("d", "d", 2 * amount.rows)]
    if work == "e":
        return [(name, name, max(1, amount.rows // _E_KEYS_SHARE)) for name in ("e-tumble", "e-hop")]
    return [(work, work, amount.keys[0])]


def _facts(amount: Amount) -> dict[str, Any]:
    """What was held equal, what was not, and where."""
    import pyspark

    from asyncstate import __version__
    from bench.peers.spark_plans import NATIVE, PYTHON, spark_conf
    from bench.session import local_conf

    scratch = Path("FOLDER")
    return {
        "rows": amount.rows,
        "batches": amount.batches,
        "warm_up": amount.warm_up,
        "repeat": amount.repeat,
        "seed": amount.seed,
        "machine": platform.platform(),
        "cores_of_machine": os.cpu_count(),
        "load_at_start": os.getloadavg()[0],
        "versions": {
            "asyncstate": __version__,
            "python": platform.python_version(),
            "spark": pyspark.__version__,
        },
        "fairness": {
            "turns": "a process each, a micro-batch each by turns; seconds from trigger to commit, less the wait",
            "partitions": amount.cores,
            "cores": amount.cores,
            "input": f"the same Parquet files, {amount.cores} a micro-batch and table",
            "trigger": "availableNow, maxFilesPerTrigger",
            "sink": "foreachBatch, format noop; the last micro-batch, untimed, to Parquet and compared with DuckDB",
            "output_mode": {name: mode for name, (_, mode) in (*NATIVE.items(), *PYTHON.items())},
            "conf_of_all": local_conf(scratch, amount.cores),
            "conf_of_spark": {"changelog": spark_conf(True), "snapshots": spark_conf(False)},
            "conf_of_asyncstate": "defaults; async-state.enabled as the peer says",
            "slow_peers": "fewer rows a micro-batch and as many fewer keys, so the same rows a key and smaller state",
        },
    }


def _show(console: Console, report: Report, amount: Amount) -> None:
    from bench.peers.report import itself_table, peers_table, write_plots

    title = (
        f"{amount.rows:,} rows a micro-batch, {amount.cores} cores, "
        f"medians of {amount.batches * amount.repeat}"
    )
    if report.results:
        console.print(peers_table(report.results, f"asyncstate and others: {title}"))
    if report.figures:
        console.print(itself_table(report.figures, "asyncstate itself, one core, without Spark"))
    for result in report.results:
        if result.skipped:
            console.print(f"left out, {result.work}: {result.peer_title}: {result.skipped}", highlight=False)
    if report.output is not None and (report.results or report.figures):
        written = [report.output / "peers.json"]
        written += write_plots(report.results, report.figures, report.output, title)
        console.print(f"written: {', '.join(map(str, written))}", highlight=False, soft_wrap=True)


def _judge(console: Console, report: Report) -> None:
    """Exit 1 if a result is wrong, 2 if somebody failed."""
    for result in report.results:
        if result.wrong:
            text = "\n  ".join(
                (
                    f"{result.work}, {result.peer_title}: WRONG result, compared with DuckDB's:",
                    *result.problems,
                )
            )
            console.print(text, style="red", markup=False, highlight=False, soft_wrap=True)
        elif result.failed:
            text = f"{result.work}, {result.peer_title}: {result.failed}"
            console.print(text, style="red", markup=False, highlight=False, soft_wrap=True)
    if any(result.wrong for result in report.results):
        raise typer.Exit(_WRONG_RESULT)
    if any(result.failed for result in report.results):
        raise typer.Exit(_CANNOT_RUN)


def _numbers(text: str) -> tuple[int, ...]:
    try:
        numbers = tuple(int(part.replace("_", "")) for part in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or min(numbers) < 1:
        raise typer.BadParameter(f"'{text}': give numbers from 1 on, with commas", param_hint="--keys")
    return numbers


def _chosen(names: str, known: Sequence[str], option: str) -> list[str]:
    wanted = set(known) if names == "all" else {name.strip() for name in names.split(",")}
    if unknown := wanted - set(known):
        raise typer.BadParameter(
            f"{', '.join(sorted(unknown))}: choose from {', '.join(known)}", param_hint=option
        )
    return [name for name in known if name in wanted]
