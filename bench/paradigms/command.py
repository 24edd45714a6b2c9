"""``python -m bench paradigms``."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bench.report import write_json


def paradigms(
    state_keys: Annotated[int, typer.Option(min=10, help="Keys in the state.")] = 50_000,
    records: Annotated[int, typer.Option(min=10, help="Records a micro-batch.")] = 50_000,
    rounds: Annotated[int, typer.Option(min=1, help="Counted runs of each form.")] = 5,
    tiny: Annotated[bool, typer.Option("--tiny", help="Small and quick: shows that it runs.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the rows drawn.")] = 1,
    output: Annotated[Path | None, typer.Option(help="Folder for paradigms.json.")] = None,
) -> None:
    """Compare the nine paradigms in their forms, with sync and async state that is in memory."""
    from bench.paradigms import PARADIGMS
    from bench.paradigms.measure import paradigms_table, run

    console = Console()
    if tiny:
        state_keys, records, rounds = 300, 300, 1
    with console.status("measuring"):
        results = list(run(PARADIGMS, state_keys, records, rounds, seed))
    title = f"us a record, {records:,} records on {state_keys:,} keys in memory, medians of {rounds}"
    console.print(paradigms_table(results, title))
    if output is not None:
        facts = {
            "state_keys": state_keys,
            "rounds": rounds,
            "seed": seed,
            "machine": platform.platform(),
        }
        write_json(results, output / "paradigms.json", **facts)
        console.print(f"written: {output / 'paradigms.json'}", highlight=False)
