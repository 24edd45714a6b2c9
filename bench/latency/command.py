"""``python -m bench latency``."""

from __future__ import annotations

from typing import Annotated

import typer

from bench.frame import Column, Report
from bench.frame.report import Cores, Output, Tiny, chosen, numbers, plain
from bench.latency.engines import ENGINES
from bench.latency.fixed import FixedPlan, fixed_costs
from bench.latency.steady import SteadyPlan, latencies
from bench.session import session

_WARM_UP_SECONDS = 8.0
_KEY_SECONDS = 5
"""After so many each key comes again, at a steady rate."""
_CONF = {"spark.log.level": "OFF"}
"""Ending a query of Spark's interrupts its micro-batch, of which the log would be full; failures are raised."""


def _whole(value: float) -> str:
    return f"{value:,.0f}"


_STEADY = (
    Column("events /s", "rate"),
    Column("p50 ms", "p50_ms", _whole),
    Column("p95 ms", "p95_ms", _whole),
    Column("max ms", "max_ms", _whole),
    Column("events a batch", "batch_events", _whole),
    Column("cores busy", "cpu_share", plain),
)


def latency(
    work: Annotated[
        str, typer.Option(help="a aggregates, b first rows, d a counter in Python; separated by commas.")
    ] = "all",
    rows: Annotated[
        str, typer.Option(help="Rows per micro-batch, sizes separated by commas; '' for none.")
    ] = "10,1000,10000",
    engines: Annotated[
        str,
        typer.Option(
            help="Names separated by commas: ours-sync, ours-async, spark, spark-foreach, ...; or 'all'."
        ),
    ] = "all",
    batches: Annotated[int, typer.Option(min=1, help="Measured micro-batches per turn.")] = 8,
    turns: Annotated[
        int, typer.Option(min=1, help="Measured turns of each engine, after one that is not measured.")
    ] = 2,
    keys: Annotated[int, typer.Option(min=1, help="Keys in the state.")] = 100_000,
    rate: Annotated[
        int, typer.Option(min=0, help="Events per second for the latency; 0 to skip it.")
    ] = 1_000,
    seconds: Annotated[float, typer.Option(min=0.5, help="Measured seconds at that rate.")] = 15.0,
    cores: Cores = 2,
    tiny: Tiny = False,
    output: Output = None,
) -> None:
    """Measure small micro-batches and the latency of events, compared with Spark's own stateful operators."""
    works = chosen(work, ENGINES, "--work")
    sizes = numbers(rows, "--rows") if rows else ()
    known = dict.fromkeys(engine.name for each in ENGINES.values() for engine in each)
    names = chosen(engines, known, "--engines")
    with Report("latency", output, cores=cores, keys=keys) as report:
        fixed = FixedPlan(report.folder, sizes, batches, turns, keys, names)
        steady = SteadyPlan(
            report.folder, rate, seconds, _WARM_UP_SECONDS, min(keys, _KEY_SECONDS * rate), names
        )
        if tiny:
            works, names = ["a"], ["ours-sync", "spark"]
            fixed = FixedPlan(report.folder, (10,), 1, 1, 100, names, opening=1)
            steady = SteadyPlan(report.folder, 100, 0.5, 0.5, 100, names)
        for each in works:
            for engine in ENGINES[each]:
                if engine.missing and engine.name in names:
                    report.say(f"{each}: left out: {engine.title}: {engine.missing}")
        report.tell("starting Spark")
        with session("latency", report.folder, cores, _CONF) as spark:
            headings = (("ms", "ms_{}"), ("spread", "low_{} high_{}"), ("CPU ms", "cpu_ms_{}"))
            columns = [
                Column(
                    f"{size:,} {heading}" if heading != "CPU ms" else heading, fact.format(size, size), _whole
                )
                for size in fixed.sizes
                for heading, fact in headings
            ]
            report.section("A micro-batch of few rows, ms from trigger to commit; medians", columns)
            for each in works if fixed.sizes else ():
                fixed_costs(spark, each, fixed, report)
            report.section("From event to output, default trigger, at a steady rate", _STEADY)
            for each in works if steady.rate else ():
                latencies(spark, each, steady, report)
