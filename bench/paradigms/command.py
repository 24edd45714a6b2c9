"""``python -m bench paradigms``."""

from __future__ import annotations

import platform
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Console

from bench.report import write_json

if TYPE_CHECKING:
    from bench.slowdisk.measure import SlowDiskResult

_SLOW_KEYS = 1_000
_SLOW_STATE_KEYS = 1_000_000


def paradigms(
    state_keys: Annotated[int, typer.Option(min=10, help="Keys in the state.")] = 50_000,
    records: Annotated[int, typer.Option(min=10, help="Records a micro-batch.")] = 50_000,
    rounds: Annotated[int, typer.Option(min=1, help="Counted runs of each form.")] = 5,
    tiny: Annotated[bool, typer.Option("--tiny", help="Small and quick: shows that it runs.")] = False,
    slow: Annotated[
        bool,
        typer.Option(
            "--slow/--no-slow", help="Also the iterating ones on a device of 1 ms (Linux, a C compiler)."
        ),
    ] = True,
    seed: Annotated[int, typer.Option(help="Seed of the rows drawn.")] = 1,
    output: Annotated[Path | None, typer.Option(help="Folder for paradigms.json.")] = None,
) -> None:
    """Compare the nine paradigms in their forms, with sync and async state; iterations on a slow device too."""
    from bench.paradigms import PARADIGMS
    from bench.paradigms.measure import paradigms_table, run

    console = Console()
    if tiny:
        state_keys, records, rounds = 300, 300, 1
    with console.status("measuring"):
        results = list(run(PARADIGMS, state_keys, records, rounds, seed))
    title = f"us a record, {records:,} records on {state_keys:,} keys in memory, medians of {rounds}"
    console.print(paradigms_table(results, title))
    slow_results = _on_a_slow_device(console, tiny, seed) if slow else []
    if output is not None:
        facts = {
            "state_keys": state_keys,
            "rounds": rounds,
            "seed": seed,
            "machine": platform.platform(),
            "slow_device": msgspec.to_builtins(slow_results),
        }
        write_json(results, output / "paradigms.json", **facts)
        console.print(f"written: {output / 'paradigms.json'}", highlight=False)


def _on_a_slow_device(console: Console, tiny: bool, seed: int) -> list[SlowDiskResult]:
    """Maps and lists of 1,000 keys a micro-batch, of a state that is not in memory, each read of which takes 1 ms."""
    from bench.slowdisk import shim
    from bench.slowdisk.measure import Plan, run
    from bench.slowdisk.report import slow_disk_table

    plan = Plan(_SLOW_STATE_KEYS, _SLOW_KEYS, _SLOW_KEYS, 3.0, 3, seed)
    if tiny:
        plan = Plan(2_000, 100, 50, 0.1, 1, seed)
    with tempfile.TemporaryDirectory(prefix="asyncstate-paradigms-") as scratch:
        try:
            library = shim.build(Path(scratch))
        except shim.ShimError as error:
            console.print(f"no slow device: {error}", markup=False, highlight=False)
            return []
        with console.status("measuring on a slow device"):
            results = list(run(["p5", "p6", "p9"], ["1ms"], plan, Path(scratch), library, lambda _: None))
    console.print(slow_disk_table(results, f"{plan.records:,} keys a micro-batch, of {plan.state_keys:,}"))
    return results
