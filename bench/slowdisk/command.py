"""``python -m bench slow-disk``."""

from __future__ import annotations

import platform
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from asyncstate.errors import AsyncStateError
from bench.options import chosen, made
from bench.report import write_json

_AIMED_AT = "by-hand,p1,p2,p3,p4,aggregate,deduplicate"
_CANNOT_RUN = 2


def slow_disk(
    workloads: Annotated[
        str,
        typer.Option(
            help="by-hand (rocksdict alone), p1 to p9 (paradigms), aggregate, deduplicate; with commas, or 'all'."
        ),
    ] = _AIMED_AT,
    devices: Annotated[
        str, typer.Option(help="memory, disk, 0.2ms, 1ms, 5ms; with commas, or 'all'.")
    ] = "all",
    state_keys: Annotated[int, typer.Option(min=1_000, help="Keys in the state, of 100 bytes.")] = 1_000_000,
    records: Annotated[
        int, typer.Option(min=100, help="Records a micro-batch; sync gets fewer on slow devices.")
    ] = 50_000,
    rounds: Annotated[int, typer.Option(min=1, help="Counted micro-batches.")] = 2,
    tiny: Annotated[bool, typer.Option("--tiny", help="Small and quick: shows that it runs.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the keys drawn.")] = 1,
    folder: Annotated[
        Path | None, typer.Option(help="Where to put the state; by default the temporary directory.")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Folder for slow-disk.json and slow-disk.png.")] = None,
) -> None:
    """Compare sync with async state as the latency of the disk grows."""
    from bench.slowdisk import shim
    from bench.slowdisk.measure import DEVICES, Plan, run
    from bench.slowdisk.report import slow_disk_table, write_slow_disk_plot
    from bench.slowdisk.workloads import WORKLOADS

    console = Console()
    plan = Plan(state_keys, records, min(300, records), 3.0, rounds, seed)
    if tiny:
        plan = Plan(2_000, 400, 50, 0.1, 1, seed)
        workloads, devices = "by-hand,p1,aggregate", "disk,1ms"
    names = chosen(workloads, list(WORKLOADS), "--workloads")
    places = chosen(devices, list(DEVICES), "--devices")
    with tempfile.TemporaryDirectory(prefix="asyncstate-slow-disk-", dir=made(folder)) as scratch:
        library = None
        try:
            library = shim.build(Path(scratch))
        except shim.ShimError as error:
            console.print(f"no rows with added latency: {error}", markup=False, highlight=False)
        with console.status("measuring") as status:
            try:
                results = list(run(names, places, plan, Path(scratch), library, status.update))
            except AsyncStateError as error:
                console.print(str(error), style="red", markup=False, highlight=False)
                raise typer.Exit(_CANNOT_RUN) from None
    title = f"{plan.records:,} records on {plan.state_keys:,} keys, medians of {plan.rounds}"
    if not results:
        raise typer.Exit(_CANNOT_RUN)
    console.print(slow_disk_table(results, title))
    if output is not None:
        facts = {"state_keys": plan.state_keys, "records": plan.records, "rounds": plan.rounds, "seed": seed}
        write_json(results, output / "slow-disk.json", **facts, machine=platform.platform())
        write_slow_disk_plot(results, output / "slow-disk.png", f"Async against sync state: {title}")
        console.print(f"written: {output / 'slow-disk.json'}, {output / 'slow-disk.png'}", highlight=False)
