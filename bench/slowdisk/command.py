"""``python -m bench slow-disk``: its options, table and picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from bench.frame import Column, Report, Row
from bench.frame.picture import Panel, Series, draw
from bench.frame.report import CANNOT_RUN, Folder, Output, Rounds, Seed, Tiny, chosen, times
from bench.slowdisk import shim
from bench.slowdisk.measure import DEVICES, Plan, run
from bench.slowdisk.workloads import WORKLOADS

_AIMED_AT = "by-hand,p1,p2,p3,p4,aggregate,deduplicate"
COLUMNS = (
    Column("sync us", "sync_us"),
    Column("CPU us", "sync_cpu_us"),
    Column("async us", "async_us"),
    Column("CPU us", "async_cpu_us"),
    Column("sync /async", "speedup", times),
    Column("reads /record", "async_reads"),
    Column("threads", "threads"),
    Column("device us", "device_us"),
)


def slow_disk(
    workloads: Annotated[
        str,
        typer.Option(
            help=(
                "by-hand (rocksdict alone), p1 to p9 (paradigms), aggregate, deduplicate; separated by commas, or "
                "'all'."
            )
        ),
    ] = _AIMED_AT,
    devices: Annotated[
        str, typer.Option(help="memory, disk, 0.2ms, 1ms, 5ms; separated by commas, or 'all'.")
    ] = "all",
    state_keys: Annotated[int, typer.Option(min=1_000, help="Keys in the state, of 100 bytes.")] = 1_000_000,
    records: Annotated[
        int, typer.Option(min=100, help="Records a micro-batch; sync gets fewer on slow devices.")
    ] = 50_000,
    rounds: Rounds = 2,
    tiny: Tiny = False,
    seed: Seed = 1,
    folder: Folder = None,
    output: Output = None,
) -> None:
    """Compare sync with async state as the latency of the disk grows."""
    plan = Plan(state_keys, records, min(300, records), 3.0, rounds, seed)
    if tiny:
        plan = Plan(2_000, 400, 50, 0.1, 1, seed)
        workloads, devices = "by-hand,p1,aggregate", "disk,1ms"
    names, places = chosen(workloads, WORKLOADS, "--workloads"), chosen(devices, DEVICES, "--devices")
    title = f"{plan.records:,} records on {plan.state_keys:,} keys, medians of {plan.rounds}"
    with Report("slow-disk", output, folder, records=plan.records, state_keys=plan.state_keys) as report:
        report.section(title, COLUMNS)
        run(report, names, places, plan, report.folder, delaying(report))
        report.draw("slow-disk.png", lambda path: _draw(path, report.rows, title))
    if not report.rows:
        raise typer.Exit(CANNOT_RUN)


def delaying(report: Report) -> Path | None:
    """The shim; None, and says why, where there can be none."""
    try:
        return shim.build(report.folder)
    except shim.ShimError as error:
        report.say(f"no rows with added latency: {error}")
        return None


def _draw(path: Path, rows: Sequence[Row], title: str) -> None:
    """How many times as fast async is, a line a workload over the devices."""
    lines: dict[str, list[Row]] = {}
    for row in rows:
        if row.facts:
            lines.setdefault(row.group, []).append(row)
    series = [
        Series(name, [row.name for row in found], [row.facts["speedup"] for row in found])
        for name, found in lines.items()
    ]
    panel = Panel(
        "1: as fast as sync", series, "where a read goes", "time of a record, sync / async", log=True
    )
    draw(path, f"Async against sync state: {title}", [panel])
