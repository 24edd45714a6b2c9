"""``python -m bench nexmark``."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from bench.frame import Column, Figure, Report, Row
from bench.frame.picture import Panel, Series, draw
from bench.frame.report import Cores, Output, Seed, mib, reason, short, times
from bench.nexmark.queries import PLANS
from bench.nexmark.runner import NexmarkRunner, QueryResult, RunSettings, check_queries, start_session

_BATCHES = 10
_COLUMNS = (
    Column("events /s", "events_per_second", short),
    Column("CPU us", "cpu_us"),
    Column("batch p50", "batch_ms_p50", lambda value: f"{value:,.0f}"),
    Column("batch p95", "batch_ms_p95", lambda value: f"{value:,.0f}"),
    Column("state reads", "state_reads", short),
    Column("list gets", "read_batches", short),
    Column("cache hits", "cache_hits", short),
    Column("state MiB", "state_bytes", mib),
    Column("async /sync", "speedup", times),
    Column("result", "result"),
)
_NOTE = "batch: ms of a micro-batch; CPU: us of processor time an event, all processes"


class Enabled(enum.StrEnum):
    """Values of ``--async-state.enabled``."""

    FALSE = "false"
    TRUE = "true"
    BOTH = "both"

    @property
    def modes(self) -> tuple[bool, ...]:
        """The modes to run, sync first."""
        return {Enabled.FALSE: (False,), Enabled.TRUE: (True,), Enabled.BOTH: (False, True)}[self]


def nexmark(
    queries: Annotated[str, typer.Option(help="Names separated by commas, or 'all'.")] = "q4,q18",
    events: Annotated[int, typer.Option(min=1, help="Events to generate.")] = 1_000_000,
    enabled: Annotated[
        Enabled, typer.Option("--async-state.enabled", help="Run with sync or async state, or both.")
    ] = Enabled.BOTH,
    micro_batch_events: Annotated[
        int | None, typer.Option(min=1, help="Events per micro-batch; by default a tenth of all.")
    ] = None,
    cores: Cores = 2,
    seed: Seed = 0,
    repeat: Annotated[
        int,
        typer.Option(min=1, help="Runs of each query and mode, alternating; the table shows the median one."),
    ] = 1,
    output: Output = None,
    explain: Annotated[str | None, typer.Option(help="Show the plan of this query and exit.")] = None,
) -> None:
    """Run Nexmark queries on Spark, check each result with DuckDB, and compare sync with async."""
    how = "one run each, sync first" if repeat == 1 else f"median of {repeat} alternating runs"
    title = f"Nexmark, {events:,} events, {cores} cores, {how}"
    with Report("nexmark", output, events=events, cores=cores, seed=seed) as report:
        names = PLANS if queries == "all" else [name.strip() for name in queries.split(",")]
        chosen = check_queries(names if explain is None else [explain])
        settings = RunSettings(
            report.folder, events, micro_batch_events or -(-events // _BATCHES), cores, seed
        )
        report.tell("starting Spark")
        spark = start_session(settings)
        runner = NexmarkRunner(spark, settings)
        try:
            if explain is not None:
                report.say(runner.explain(explain))
                return
            report.tell(f"generating {events:,} events")
            runner.prepare()
            report.section(title, _COLUMNS, _NOTE)
            for query in chosen:
                run_modes(report, runner, query, enabled.modes, repeat)
        finally:
            runner.close()
            spark.stop()
        report.draw("nexmark.png", lambda path: draw_results(path, report.rows, title))


def run_modes(report: Report, runner: NexmarkRunner, query: str, modes: Sequence[bool], repeat: int) -> None:
    """One row per mode, of the run of median duration; a wrong run takes precedence. The order alternates: a
    JVM is faster at repeated work. The error of a mode is in its row."""
    runs: dict[bool, list[QueryResult]] = {mode: [] for mode in modes}
    rows = {mode: Row(name="async" if mode else "sync", group=query) for mode in modes}
    for number in range(repeat):
        for mode in modes[:: -1 if number % 2 else 1]:
            report.tell(f"{query}, {rows[mode].name}, run {number + 1} of {repeat}")
            try:
                if not rows[mode].failed:
                    runner.warm_up(query, mode)
                    runs[mode].append(runner.run(query, mode))
            except Exception as error:
                rows[mode].failed = reason(error)
    for mode, row in rows.items():
        if runs[mode]:
            _fill(row, _median_run(runs[mode]))
    if len(rows) > 1 and all("events_per_second" in row.facts for row in rows.values()):
        rates = {mode: row.facts["events_per_second"] for mode, row in rows.items()}
        rows[True].facts["speedup"] = rates[True] / rates[False]
    report.add(*rows.values())


def _median_run(runs: Sequence[QueryResult]) -> QueryResult:
    wrong = [run for run in runs if not run.checked]
    return wrong[0] if wrong else sorted(runs, key=lambda run: run.seconds)[(len(runs) - 1) // 2]


def _fill(row: Row, run: QueryResult) -> None:
    row.facts = run.facts | {"result": "right" if run.checked else "WRONG"}
    row.wrong = (
        ["it differs from DuckDB's result for the same events:", *run.problems] if run.problems else []
    )
    rate = run.events_per_second
    if run.checked:
        row.figures = {
            f"{run.query} {run.mode}, events/s": Figure(rate, rate, rate, rate=True, absolute=True)
        }


def draw_results(path: Path, rows: Sequence[Row], title: str) -> None:
    """Measure throughput and micro-batch time of each query, sync and async."""
    modes = {mode: [row for row in rows if row.name == mode and row.facts] for mode in ("sync", "async")}
    rates, batches = [], []
    for mode, found in modes.items():
        places = [row.group for row in found]
        rates.append(Series(mode, places, [row.facts["events_per_second"] for row in found]))
        ends = [(row.facts["batch_ms_p50"], row.facts["batch_ms_p95"]) for row in found]
        batches.append(Series(mode, places, [low for low, _ in ends], ends))
    panels = [
        Panel("", rates, "events a second", bars=True),
        Panel("", batches, "ms a micro-batch: median, and up to the 95th percentile", bars=True),
    ]
    draw(path, title, panels)
