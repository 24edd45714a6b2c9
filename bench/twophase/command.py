"""``python -m bench two-phase``."""

from __future__ import annotations

import platform
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from asyncstate.errors import AsyncStateError
from bench.options import chosen
from bench.report import write_json

_WRONG_RESULT, _CANNOT_RUN = 1, 2


def two_phase(
    cases: Annotated[
        str,
        typer.Option(
            help="few, hot, many, unique, values, one-key, spread-values, windows; with commas, or 'all'."
        ),
    ] = "all",
    rows: Annotated[int, typer.Option(min=100, help="Rows a micro-batch.")] = 500_000,
    rounds: Annotated[int, typer.Option(min=1, help="Counted micro-batches a case and mode.")] = 7,
    cores: Annotated[int, typer.Option(min=1, help="Cores for Spark, and partitions of the state.")] = 2,
    tiny: Annotated[bool, typer.Option("--tiny", help="Small and quick: shows that it runs.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the keys drawn.")] = 1,
    output: Annotated[Path | None, typer.Option(help="Folder for two-phase.json.")] = None,
) -> None:
    """Compare one-phase with two-phase aggregation on Spark, and what `auto` makes of it."""
    from bench.session import local_session
    from bench.twophase.measure import Plan, WrongResultError, run
    from bench.twophase.report import two_phase_table
    from bench.twophase.workloads import CASES

    console = Console()
    if tiny:
        cases, rows, rounds = "few,windows", 2_000, 1
    names = chosen(cases, list(CASES), "--cases")
    plan = Plan(rows, rounds, cores, seed)
    with tempfile.TemporaryDirectory(prefix="asyncstate-two-phase-") as scratch:
        try:
            with console.status("starting Spark") as status:
                spark = local_session("asyncstate-two-phase", Path(scratch), cores)
                try:
                    results = list(run(spark, names, plan, Path(scratch), status.update))
                finally:
                    spark.stop()
        except WrongResultError as error:
            console.print(str(error), style="red", markup=False, highlight=False)
            raise typer.Exit(_WRONG_RESULT) from None
        except AsyncStateError as error:
            console.print(str(error), style="red", markup=False, highlight=False)
            raise typer.Exit(_CANNOT_RUN) from None
    console.print(
        two_phase_table(results, f"{rows:,} rows a micro-batch, {cores} cores, medians of {rounds}")
    )
    if output is not None:
        facts = {"rows": rows, "rounds": rounds, "cores": cores, "seed": seed, "machine": platform.platform()}
        write_json(results, output / "two-phase.json", **facts)
        console.print(f"written: {output / 'two-phase.json'}", highlight=False)
