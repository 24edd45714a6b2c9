"""``python -m bench nexmark``."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Annotated

import typer

from bench.frame import Column, Figure, Report, Row
from bench.frame.measure import in_turns
from bench.frame.report import Cores, Seed, benchmark, chosen, mib, short, times, whole
from bench.nexmark.queries import ALL_PLANS, PLANS, STATEMENTS
from bench.nexmark.runner import NexmarkRunner, QueryResult, RunSettings, start_session

_BATCHES = 10


_COLUMNS = (
    Column("events /s", "events_per_second", short, ""),
    Column("CPU us", "cpu_us"),
    Column("batch p50", "batch_ms_p50", whole, "batch_ms_p50 batch_ms_p95"),
    Column("batch p95", "batch_ms_p95", whole),
    Column("state reads", "state_reads", short),
    Column("list gets", "read_batches", short),
    Column("cache hits", "cache_hits", short),
    Column("state MiB", "state_bytes", mib),
    Column("async /sync", "speedup", times),
    Column("result", "result"),
)
_NOTE = "batch: ms of a micro-batch; CPU: us of processor time an event, all processes"


class Enabled(enum.StrEnum):
    FALSE = "false"
    TRUE = "true"
    BOTH = "both"

    @property
    def modes(self) -> tuple[bool, ...]:
        return {Enabled.FALSE: (False,), Enabled.TRUE: (True,), Enabled.BOTH: (False, True)}[self]


@benchmark(events=20_000)
def nexmark(
    report: Report,
    queries: Annotated[str, typer.Option(help="Names separated by commas, or 'all'.")] = "q4,q18",
    events: Annotated[int, typer.Option(min=1, help="Events to generate.")] = 1_000_000,
    enabled: Annotated[
        Enabled, typer.Option("--async-state.enabled", help="Run with sync or async state, or both.")
    ] = Enabled.BOTH,
    micro_batch_events: Annotated[
        int | None, typer.Option(min=1, help="Events a micro-batch; a tenth of all.")
    ] = None,
    cores: Cores = 2,
    seed: Seed = 0,
    repeat: Annotated[
        int,
        typer.Option(min=1, help="Runs of each query and mode, alternating; the table shows the median one."),
    ] = 1,
    sql: Annotated[
        bool, typer.Option("--sql", help="The queries by SQL, compiled by job.sql; q12 has none.")
    ] = False,
    explain: Annotated[str | None, typer.Option(help="Show the plan of this query and exit.")] = None,
) -> None:
    """Run Nexmark queries on Spark, check each result with DuckDB, and compare sync with async."""
    how = "one run each, sync first" if repeat == 1 else f"median of {repeat} alternating runs"
    title = f"Nexmark{' by SQL' if sql else ''}, {events:,} events, {cores} cores, {how}"
    names = queries if explain is None else explain
    known = STATEMENTS if sql else ALL_PLANS
    asked = chosen(",".join(STATEMENTS if sql else PLANS) if names == "all" else names, known, "--queries")
    batch = micro_batch_events or -(-events // _BATCHES)
    settings = RunSettings(report.folder, events, batch, cores, seed, sql)
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
        for query in asked:
            run_modes(report, runner, query, enabled.modes, repeat)
    finally:
        runner.close()
        spark.stop()


def run_modes(report: Report, runner: NexmarkRunner, query: str, modes: Sequence[bool], repeat: int) -> None:
    """A row a mode, of the run of median duration, a wrong one before all others. A JVM is quicker at what it did
    before, so the order turns. What a mode fails with is in its row."""
    names = {"async" if mode else "sync": mode for mode in modes}
    runs: dict[str, list[QueryResult]] = {name: [] for name in names}

    def run(name: str, number: int) -> None:
        report.tell(f"{query}, {name}, run {number + 1} of {repeat}")
        runner.warm_up(query, names[name])
        runs[name].append(runner.run(query, names[name]))

    failed = in_turns(list(names), repeat, run)
    rows = {name: Row(name=name, group=query, failed=failed.get(name, "")) for name in names}
    for name, row in rows.items():
        ordered = sorted(runs[name], key=lambda each: (each.checked, each.seconds))
        if ordered:
            wrong = not ordered[0].checked
            _fill(row, ordered[0] if wrong else ordered[(len(ordered) - 1) // 2])
    if len(rows) > 1 and all(row.facts for row in rows.values()):
        sync, mine = (rows[name].facts["events_per_second"] for name in ("sync", "async"))
        rows["async"].facts["speedup"] = mine / sync
    report.add(*rows.values())


def _fill(row: Row, run: QueryResult) -> None:
    row.facts = run.facts | {"result": "right" if run.checked else "WRONG"}
    row.wrong = (
        ["it differs from DuckDB's result for the same events:", *run.problems] if run.problems else []
    )
    rate = run.facts["events_per_second"]
    if run.checked:
        figure = Figure(rate, rate, rate, rate=True, absolute=True)
        row.figures = {f"{row.group} {row.name}, events/s": figure}
