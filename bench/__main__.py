"""The benchmarks' command line: ``python -m bench``.

Owns: options, progress display, exit codes: 0 good, 1 a result is wrong, 2 it could not be run.
"""

from __future__ import annotations

import enum
import platform
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from asyncstate.errors import AsyncStateError
from bench.aggregates import aggregates
from bench.backfill.command import backfill
from bench.checkpoints.command import checkpoints
from bench.compare.command import compare_command
from bench.growth import growth
from bench.latency.command import latency
from bench.lookup import lookup
from bench.paradigms.command import paradigms
from bench.peers.command import peers
from bench.report import QueryResult, results_table, write_json, write_plot
from bench.sinks import sinks
from bench.slowdisk.command import slow_disk
from bench.sparing.command import sparing
from bench.twophase.command import two_phase

if TYPE_CHECKING:
    from bench.nexmark.runner import NexmarkRunner, RunSettings

WRONG_RESULT, CANNOT_RUN = 1, 2
_BATCHES = 10

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
console = Console()


class Enabled(enum.StrEnum):
    """Values of ``--async-state.enabled``."""

    FALSE = "false"
    TRUE = "true"
    BOTH = "both"

    @property
    def modes(self) -> tuple[bool, ...]:
        """The modes to run, sync first."""
        return {Enabled.FALSE: (False,), Enabled.TRUE: (True,), Enabled.BOTH: (False, True)}[self]


@app.callback()
def main() -> None:
    """Benchmarks of asyncstate."""


@app.command()
def nexmark(
    queries: Annotated[str, typer.Option(help="Names with commas between them, or 'all'.")] = "q4,q18",
    events: Annotated[int, typer.Option(min=1, help="Events to generate.")] = 1_000_000,
    enabled: Annotated[
        Enabled, typer.Option("--async-state.enabled", help="Run with sync or async state, or both.")
    ] = Enabled.BOTH,
    micro_batch_events: Annotated[
        int | None, typer.Option(min=1, help="Events a micro-batch; by default a tenth of all.")
    ] = None,
    cores: Annotated[int, typer.Option(min=1, help="Cores for Spark.")] = 2,
    seed: Annotated[int, typer.Option(help="Seed of the generator.")] = 0,
    repeat: Annotated[
        int, typer.Option(min=1, help="Runs of each query and mode, alternating; the median one is shown.")
    ] = 1,
    output: Annotated[Path | None, typer.Option(help="Folder for nexmark.json and nexmark.png.")] = None,
    explain: Annotated[
        str | None, typer.Option(help="Show how this query would run, and run nothing.")
    ] = None,
) -> None:
    """Run Nexmark queries on Spark, check each result with DuckDB, and compare sync with async."""
    from bench.nexmark.runner import RunSettings

    folder = Path(tempfile.mkdtemp(prefix="asyncstate-nexmark-"))
    settings = RunSettings(folder, events, micro_batch_events or -(-events // _BATCHES), cores, seed)
    try:
        if explain is not None:
            console.print(_explained(explain, settings), markup=False, highlight=False, soft_wrap=True)
            shutil.rmtree(folder, ignore_errors=True)
            return
        results = _run(queries, enabled, settings, repeat)
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if not isinstance(error, AsyncStateError):
            raise
        _stop(f"{type(error).__name__}: {error}", CANNOT_RUN)
    title = f"Nexmark, {events:,} events, {cores} cores, " + _described(repeat)
    console.print(results_table(results, title))
    if output is not None:
        facts = {"events": events, "cores": cores, "seed": seed, "machine": platform.platform()}
        write_json(results, output / "nexmark.json", **facts)
        write_plot(results, output / "nexmark.png", title)
        console.print(f"written: {output / 'nexmark.json'}, {output / 'nexmark.png'}", highlight=False)
    wrong = [result for result in results if not result.checked]
    if wrong:
        _stop(
            "\n".join(map(_explain, wrong)) + f"\nthe wrong results are kept in {folder / 'runs'}",
            WRONG_RESULT,
        )
    shutil.rmtree(folder, ignore_errors=True)


@app.command()
def micro(
    state_keys: Annotated[int, typer.Option(min=100, help="Keys in the state.")] = 1_000_000,
    unique_keys: Annotated[int, typer.Option(min=10, help="Unique keys (records) a micro-batch.")] = 100_000,
    rounds: Annotated[int, typer.Option(min=1, help="Counted pairs of runs.")] = 9,
    tiny: Annotated[bool, typer.Option("--tiny", help="Small and quick: shows that it runs.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the keys drawn.")] = 1,
    output: Annotated[Path | None, typer.Option(help="Folder for micro.json.")] = None,
) -> None:
    """Compare bundle and record grain with hand-written rocksdict code, on one core."""
    from bench.micro import micro_table, run

    if tiny:
        state_keys, unique_keys, rounds = 2_000, 500, 1
    with console.status("measuring"):
        results = run(state_keys, unique_keys, rounds, seed, apart=not tiny)
    console.print(micro_table(results, f"{unique_keys:,} of {state_keys:,} keys, medians of {rounds} pairs"))
    if output is not None:
        facts = {"state_keys": state_keys, "rounds": rounds, "seed": seed, "machine": platform.platform()}
        write_json(results, output / "micro.json", **facts)
        console.print(f"written: {output / 'micro.json'}", highlight=False)


app.command()(aggregates)
app.command()(backfill)
app.command()(checkpoints)
app.command("compare")(compare_command)
app.command()(growth)
app.command()(latency)
app.command()(lookup)
app.command()(paradigms)
app.command()(sinks)
app.command()(slow_disk)
app.command()(sparing)
app.command()(two_phase)
app.command()(peers)


def _described(repeat: int) -> str:
    return "one run each, sync first" if repeat == 1 else f"median of {repeat} alternating runs"


def _explained(query: str, settings: RunSettings) -> str:
    """The graph of one query."""
    from bench.nexmark.runner import NexmarkRunner, check_queries, start_session

    check_queries([query])
    spark = start_session(settings)
    runner = NexmarkRunner(spark, settings)
    try:
        return runner.explain(query)
    finally:
        runner.close()
        spark.stop()


def _run(queries: str, enabled: Enabled, settings: RunSettings, repeat: int) -> list[QueryResult]:
    from bench.nexmark.queries import PLANS
    from bench.nexmark.runner import NexmarkRunner, check_queries, start_session

    chosen = check_queries(PLANS if queries == "all" else [name.strip() for name in queries.split(",")])
    with console.status("starting Spark"):
        spark = start_session(settings)
    runner = NexmarkRunner(spark, settings)
    try:
        with console.status(f"generating {settings.events:,} events"):
            runner.prepare()
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("micro-batches"),
        )
        results = []
        with Progress(
            *columns, TimeElapsedColumn(), TextColumn("{task.fields[outcome]}"), console=console
        ) as bars:
            for query in chosen:
                results += _run_modes(runner, bars, query, enabled.modes, repeat)
        return results
    finally:
        runner.close()
        spark.stop()


def _run_modes(
    runner: NexmarkRunner, bars: Progress, query: str, modes: tuple[bool, ...], repeat: int
) -> list[QueryResult]:
    """The median run of each mode. The order turns round each time: a JVM is quicker at what it did before."""
    runs: dict[bool, list[QueryResult]] = {mode: [] for mode in modes}
    for number in range(repeat):
        for mode in modes if number % 2 == 0 else modes[::-1]:
            runs[mode].append(_run_one(runner, bars, query, mode))
    return [_median_run(runs[mode]) for mode in modes]


def _median_run(runs: list[QueryResult]) -> QueryResult:
    """The run of median duration; a wrong one before all others."""
    wrong = [run for run in runs if not run.checked]
    return wrong[0] if wrong else sorted(runs, key=lambda run: run.seconds)[(len(runs) - 1) // 2]


def _run_one(runner: NexmarkRunner, bars: Progress, query: str, async_enabled: bool) -> QueryResult:
    mode = "async" if async_enabled else "sync"
    task = bars.add_task(f"{query} {mode}", total=runner.micro_batches, outcome="warming up")
    runner.warm_up(query, async_enabled)
    bars.reset(task, outcome="")
    result = runner.run(query, async_enabled, lambda done: bars.update(task, completed=done))
    rate = f"{result.events_per_second:,.0f} events/s"
    bars.update(task, outcome=f"{rate}, result {'right' if result.checked else 'WRONG'}")
    return result


def _explain(result: QueryResult) -> str:
    head = f"{result.query} {result.mode}: the result differs from DuckDB's on the same events:"
    return "\n  ".join((head, *result.problems))


def _stop(message: str, code: int) -> NoReturn:
    console.print(message, style="red", markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(code)


if __name__ == "__main__":
    app()
