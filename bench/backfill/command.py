"""``python -m bench backfill``."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bench.report import write_json

_WRONG_RESULT = 1


def backfill(
    keys: Annotated[int, typer.Option(min=1_000, help="New keys in the micro-batch.")] = 4_000_000,
    write_caches: Annotated[
        str, typer.Option(help="Values of async-state.write-cache-size, with commas.")
    ] = "256mb,64mb",
    rounds: Annotated[int, typer.Option(min=1, help="Runs of each.")] = 3,
    tiny: Annotated[bool, typer.Option("--tiny", help="Small and quick: shows that it runs.")] = False,
    output: Annotated[Path | None, typer.Option(help="Folder for backfill.json.")] = None,
) -> None:
    """Measure memory and time of a micro-batch of many new keys, with and without a bound for its writes."""
    from bench.backfill.measure import WrongResultError, backfill_table, run

    console = Console()
    if tiny:
        keys, write_caches, rounds = 120_000, "4mb", 1
    sizes = [size.strip() for size in write_caches.split(",")]
    with console.status("measuring") as status:
        try:
            results = list(run(keys, sizes, rounds, status.update))
        except WrongResultError as error:
            console.print(str(error), style="red", markup=False, highlight=False)
            raise typer.Exit(_WRONG_RESULT) from None
    console.print(backfill_table(results, f"{keys:,} new keys, medians of {rounds}"))
    if output is not None:
        write_json(results, output / "backfill.json", keys=keys, rounds=rounds, machine=platform.platform())
        console.print(f"written: {output / 'backfill.json'}", highlight=False)
