"""``python -m bench sparing``."""

from __future__ import annotations

import platform
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from asyncstate.errors import AsyncStateError
from bench.report import write_json

if TYPE_CHECKING:
    from bench.sparing.measure import SparingResult

_WRONG_RESULT, _CANNOT_RUN = 1, 2


def sparing(
    cases: Annotated[str, typer.Option(help="windows, chain, batch; with commas, or 'all'.")] = "all",
    rows: Annotated[int, typer.Option(min=100, help="Rows of the input.")] = 500_000,
    rounds: Annotated[int, typer.Option(min=1, help="Counted pairs of runs.")] = 5,
    cores: Annotated[int, typer.Option(min=1, help="Cores for Spark, and partitions of the state.")] = 2,
    tiny: Annotated[bool, typer.Option("--tiny", help="Small and quick: shows that it runs.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the keys drawn.")] = 1,
    output: Annotated[Path | None, typer.Option(help="Folder for sparing.json.")] = None,
) -> None:
    """Compare stateless operators and apply_batch with the exchange and the job that they spare."""
    from bench.session import local_session
    from bench.sparing.measure import Plan, WrongResultError, run
    from bench.sparing.workloads import CASES

    console = Console()
    if tiny:
        rows, rounds = 2_000, 1
    chosen = list(CASES) if cases == "all" else [name.strip() for name in cases.split(",")]
    if unknown := set(chosen) - set(CASES):
        raise typer.BadParameter(
            f"{', '.join(sorted(unknown))}: choose from {', '.join(CASES)}", param_hint="--cases"
        )
    with tempfile.TemporaryDirectory(prefix="asyncstate-sparing-") as scratch:
        try:
            with console.status("starting Spark") as status:
                spark = local_session("asyncstate-sparing", Path(scratch), cores)
                try:
                    plan = Plan(rows, rounds, cores, seed)
                    results = list(run(spark, chosen, plan, Path(scratch), status.update))
                finally:
                    spark.stop()
        except (AsyncStateError, WrongResultError) as error:
            console.print(str(error), style="red", markup=False, highlight=False)
            raise typer.Exit(_WRONG_RESULT if isinstance(error, WrongResultError) else _CANNOT_RUN) from None
    console.print(_table(results, f"{rows:,} rows, {cores} cores, medians of {rounds}"))
    if output is not None:
        facts = {"rows": rows, "rounds": rounds, "cores": cores, "seed": seed, "machine": platform.platform()}
        write_json(results, output / "sparing.json", **facts)
        console.print(f"written: {output / 'sparing.json'}", highlight=False)


def _table(results: Sequence[SparingResult], title: str) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False)
    table.add_column("case", no_wrap=True)
    for heading in ("usual ms", "CPU ms", "sparing ms", "CPU ms", "ratio"):
        table.add_column(heading, justify="right", no_wrap=True)
    for result in results:
        seconds = (
            result.usual_seconds,
            result.usual_cpu_seconds,
            result.sparing_seconds,
            result.sparing_cpu_seconds,
        )
        milliseconds = ("" if one is None else f"{1_000 * one:,.0f}" for one in seconds)
        table.add_row(result.title, *milliseconds, f"{result.ratio:.2f}x")
    return table
