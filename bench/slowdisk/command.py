"""``python -m bench slow-disk``: its options and table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bench.frame import Column, Report
from bench.frame.report import CANNOT_RUN, Rounds, Seed, benchmark, chosen, times
from bench.slowdisk import shim
from bench.slowdisk.measure import DEVICES, Plan, run
from bench.slowdisk.workloads import WORKLOADS

_AIMED_AT = "by-hand,p1,p2,p3,p4,aggregate,deduplicate"
COLUMNS = (
    Column("sync us", "sync_us"),
    Column("CPU us", "sync_cpu_us"),
    Column("async us", "async_us"),
    Column("CPU us", "async_cpu_us"),
    Column("sync /async", "speedup", times, ""),
    Column("reads /record", "async_reads"),
    Column("threads", "threads"),
    Column("device us", "device_us"),
)


@benchmark(workloads="by-hand,p1,aggregate", devices="disk,1ms")
def slow_disk(
    report: Report,
    workloads: Annotated[
        str,
        typer.Option(help="by-hand (rocksdict alone), p1 to p9, aggregate, deduplicate; commas, or 'all'."),
    ] = _AIMED_AT,
    devices: Annotated[str, typer.Option(help="memory, disk, 0.2ms, 1ms, 5ms; or 'all'.")] = "all",
    state_keys: Annotated[int, typer.Option(min=1_000, help="Keys in the state, of 100 bytes.")] = 1_000_000,
    records: Annotated[int, typer.Option(min=100, help="Records a micro-batch; of sync fewer.")] = 50_000,
    rounds: Rounds = 2,
    seed: Seed = 1,
) -> None:
    """Compare sync with async state as the latency of the disk grows."""
    plan = Plan(state_keys, records, min(300, records), 3.0, rounds, seed)
    if report.tiny:
        plan = Plan(2_000, 400, 50, 0.1, 1, seed)
    names, places = chosen(workloads, WORKLOADS, "--workloads"), chosen(devices, DEVICES, "--devices")
    title = f"{plan.records:,} records on {plan.state_keys:,} keys, medians of {plan.rounds}"
    report.section(title, COLUMNS)
    run(report, names, places, plan, delaying(report))
    if not report.rows:
        raise typer.Exit(CANNOT_RUN)


def delaying(report: Report) -> Path | None:
    """The shim; None, and says why, where there can be none."""
    try:
        return shim.build(report.folder)
    except shim.ShimError as error:
        report.say(f"no rows with added latency: {error}")
        return None
