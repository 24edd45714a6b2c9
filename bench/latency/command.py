"""``python -m bench latency``."""

from __future__ import annotations

from typing import Annotated

import typer

from bench.frame import Column, Report
from bench.frame.report import Cores, benchmark, chosen, numbers, plain, whole
from bench.latency.engines import ENGINES
from bench.latency.measure import Plan, fixed_costs, latencies
from bench.session import session

_WARM_UP_SECONDS = 8.0
_KEY_SECONDS = 5
"""After so many each key comes again, at a steady rate."""
_CONF = {"spark.log.level": "OFF"}
"""Ending a query of Spark's interrupts its micro-batch, of which the log would be full; failures are raised."""


_STEADY = (
    Column("events /s", "rate"),
    Column("p50 ms", "p50_ms", whole, "p50_ms p95_ms"),
    Column("p95 ms", "p95_ms", whole),
    Column("max ms", "max_ms", whole),
    Column("events a batch", "batch_events", whole),
    Column("cores busy", "cpu_share", plain),
)


@benchmark(
    work="a", rows="10", engines="ours-sync,spark", batches=1, turns=1, keys=100, rate=100, seconds=0.5
)
def latency(
    report: Report,
    work: Annotated[str, typer.Option(help="a aggregates, b first rows, d a counter.")] = "all",
    rows: Annotated[str, typer.Option(help="Rows a micro-batch; or ''.")] = "10,1000,10000",
    engines: Annotated[
        str,
        typer.Option(
            help="Names separated by commas: ours-sync, ours-async, spark, spark-foreach, ...; or 'all'."
        ),
    ] = "all",
    batches: Annotated[int, typer.Option(min=1, help="Measured micro-batches per turn.")] = 8,
    turns: Annotated[int, typer.Option(min=1, help="Counted turns of each engine.")] = 2,
    keys: Annotated[int, typer.Option(min=1, help="Keys in the state.")] = 100_000,
    rate: Annotated[int, typer.Option(min=0, help="Events a second; or 0.")] = 1_000,
    seconds: Annotated[float, typer.Option(min=0.5, help="Measured seconds at that rate.")] = 15.0,
    cores: Cores = 2,
) -> None:
    """Measure small micro-batches and the latency of events, compared with Spark's own stateful operators."""
    works = chosen(work, ENGINES, "--work")
    sizes = numbers(rows, "--rows") if rows else ()
    known = dict.fromkeys(engine.name for each in ENGINES.values() for engine in each)
    names = chosen(engines, known, "--engines")
    plan = Plan(
        folder=report.folder,
        engines=names,
        keys=keys,
        steady_keys=min(keys, _KEY_SECONDS * rate),
        sizes=sizes,
        batches=batches,
        turns=turns,
        rate=rate,
        seconds=seconds,
        opening=1 if report.tiny else 2,
        warm_up=0.5 if report.tiny else _WARM_UP_SECONDS,
    )
    for each in works:
        for engine in ENGINES[each]:
            if engine.missing and engine.name in names:
                report.say(f"{each}: left out: {engine.title}: {engine.missing}")
    report.tell("starting Spark")
    with session("latency", report.folder, cores, _CONF) as spark:
        columns = []
        for size in plan.sizes:
            columns += [
                Column(f"{size:,} ms", f"ms_{size}", whole, f"low_{size} high_{size}"),
                Column(f"{size:,} spread", f"low_{size} high_{size}", whole),
                Column("CPU ms", f"cpu_ms_{size}", whole),
            ]
        report.section("A micro-batch of few rows, ms from trigger to commit; medians", columns)
        for each in works if plan.sizes else ():
            fixed_costs(spark, each, plan, report)
        report.section("From event to output, default trigger, at a steady rate", _STEADY)
        for each in works if plan.rate else ():
            latencies(spark, each, plan, report)
