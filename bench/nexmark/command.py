"""Runs Nexmark queries as streaming queries, times them and has their results checked: ``python -m bench nexmark``.

Invariant: every result has been compared with the oracle's on the same events, unless it is dropped. A sink folder is
named by its batch id and overwritten, so that a repeated micro-batch counts once.
"""

from __future__ import annotations

import contextlib
import enum
import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import duckdb
import typer

from asyncstate.clock import ManualClock
from asyncstate.dataflow import Stream
from asyncstate.spark import StreamingJob
from bench.frame import Column, Figure, Report, Row
from bench.frame.measure import in_turns
from bench.frame.report import Cores, Seed, benchmark, chosen, mib, short, times, whole
from bench.nexmark.comparison import ComparisonResult, compare
from bench.nexmark.generator import (
    CODEGEN_SETTINGS,
    EventFiles,
    GeneratorConfig,
    file_stream,
    narrow,
    write_events,
)
from bench.nexmark.oracle import (
    PROCESSING_START_US,
    PROCESSING_STEP_US,
    QUERIES,
    register_arrival,
    register_events,
)
from bench.nexmark.queries import ALL_PLANS, PLANS, STATEMENTS, statement
from bench.processor_time import Spent, TreeClocks, tree_times
from bench.session import batch_seconds, changelog_writer, local_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from asyncstate.spark import Progress

_WARM_UP_EVENTS = 10_000
_WARM_UP_BATCHES = 2
_TOTALS = {
    "state_reads": "reads",
    "store_reads": "store_reads",
    "read_batches": "read_batches",
    "cache_hits": "cache_hits",
    "state_bytes": "state_bytes",
    "state_entries_estimate": "state_entries_estimate",
}
"""Facts that are sums over operators: of all micro-batches, or, of state, what there is at the end."""


@dataclass(frozen=True)
class RunSettings:
    """What to run: ``events`` in micro-batches of so many, below ``folder``, which the caller owns.

    ``cores`` for Spark, and so partitions of the state and files a micro-batch; ``seed`` of the generator; ``sql``:
    queries by ``job.sql``, instead of operators by hand.
    """

    folder: Path
    events: int
    micro_batch_events: int
    cores: int = 2
    seed: int = 0
    sql: bool = False


@dataclass(frozen=True, kw_only=True)
class QueryResult:
    """One query in one mode. ``problems`` says what was wrong with the result.

    In ``facts``: ``seconds`` from the start of the streaming query to the end of the final flush, ``batch_ms_*`` from
    the trigger of a micro-batch to its commit, ``cpu_us`` of processors an event, in driver, JVM and Python workers;
    ``state_reads`` counts values asked for, of which ``cache_hits`` came from memory, ``store_reads`` keys read from
    the store, ``read_batches`` the list gets that read several at once.
    """

    seconds: float
    expected_rows: int
    problems: tuple[str, ...]
    facts: dict[str, Any]

    @property
    def checked(self) -> bool:
        return not self.problems


def start_session(settings: RunSettings) -> SparkSession:
    """A session for benchmarks on ``settings.cores`` local cores.

    Raises EnvironmentSetupError if the machine has no JDK that Spark can start.
    """
    return local_session("asyncstate-nexmark", settings.folder, settings.cores, CODEGEN_SETTINGS)


class NexmarkRunner:
    """Runs queries on one set of events in one session.

    The events are written, and the expected results computed, when they are first needed.
    """

    def __init__(self, spark: SparkSession, settings: RunSettings) -> None:
        self._spark = spark
        self._settings = settings
        self._config = GeneratorConfig(seed=settings.seed)
        self._duckdb = duckdb.connect(
            config={"threads": settings.cores, "temp_directory": str(settings.folder / "duckdb")}
        )
        self._expected: set[str] = set()
        self._source: EventFiles | None = None
        self._warm_up: EventFiles | None = None

    def prepare(self) -> EventFiles:
        if self._source is None:
            self._source = self._write("events", self._settings.events, self._settings.micro_batch_events)
            register_events(self._duckdb, self._source.path)
            register_arrival(self._duckdb, self._source.path, self._source.files_per_micro_batch)
        return self._source

    def warm_up(self, query: str, async_enabled: bool) -> None:
        """Run the query on a few events, so that neither mode pays for compilers and imports."""
        if self._warm_up is None:
            self._warm_up = self._write("warm-up", _WARM_UP_EVENTS * _WARM_UP_BATCHES, _WARM_UP_EVENTS)
        folder = self._settings.folder / "runs" / "warm-up"
        self._stream(query, async_enabled, self._warm_up, folder, folder / "sink")
        shutil.rmtree(folder)

    def run(self, query: str, async_enabled: bool) -> QueryResult:
        """Run one query in one mode from nothing, and check its result.

        Raises whatever the streaming query fails with. A wrong result does not raise:
        ``QueryResult.problems`` says what is wrong, and the folder of the run is kept.
        """
        source = self.prepare()
        folder = self._settings.folder / "runs" / f"{query}-{'async' if async_enabled else 'sync'}"
        _reset_worker_peaks(self._spark)
        run = self._stream(query, async_enabled, source, folder, folder / "sink")
        comparison = self._compare(query, folder / "sink")
        if comparison.ok:
            shutil.rmtree(folder)
        seconds, cpu = run.spent
        facts: dict[str, Any] = {"events": source.events, "seconds": seconds}
        facts |= {"events_per_second": source.events / seconds, "expected_rows": comparison.expected_rows}
        facts |= {f"batch_ms_p{share}": percentile(run.batch_ms, share) for share in (50, 95)}
        facts["cpu_us"] = None if cpu is None else cpu / source.events * 1e6
        facts["changelog_rows"] = comparison.changelog_rows
        operators = [each for figures in run.figures for each in figures["operators"].values()]
        last: list[Any] = list(run.figures[-1]["operators"].values()) if run.figures else []
        for fact, name in _TOTALS.items():
            remaining = name.startswith("state_")
            facts[fact] = sum(int(each[name] or 0) for each in (last if remaining else operators))
        peaks = [int(each["worker_rss_bytes_peak"] or 0) for each in operators]
        facts["worker_peak_rss_bytes"] = max(peaks, default=0)
        problems = tuple(comparison.wrong)
        return QueryResult(
            seconds=seconds, expected_rows=comparison.expected_rows, problems=problems, facts=facts
        )

    def dropped(self, query: str, async_enabled: bool) -> tuple[list[float], float | None]:
        """Milliseconds of each micro-batch of a run whose output is dropped, unchecked, and processor seconds of all
        of it."""
        source = self.prepare()
        folder = self._settings.folder / "runs" / "dropped"
        run = self._stream(query, async_enabled, source, folder, None)
        shutil.rmtree(folder)
        return run.batch_ms, run.spent.cpu_seconds

    def explain(self, query: str) -> str:
        few = self._write("few", _WARM_UP_BATCHES, 1)
        job = StreamingJob(self._spark, str(self._settings.folder / "unused"))
        self._declare(job, query, few).to(changelog_writer(None), name="result")
        return job.explain()

    def close(self) -> None:
        """Give up the batch engine; the session is the caller's."""
        self._duckdb.close()

    def _write(self, name: str, events: int, micro_batch_events: int) -> EventFiles:
        files = math.gcd(self._settings.cores, micro_batch_events)
        return write_events(
            self._spark, self._settings.folder / name, events, micro_batch_events, self._config, files
        )

    def _stream(
        self, query: str, async_enabled: bool, source: EventFiles, folder: Path, sink: Path | None
    ) -> _Run:
        """Every micro-batch and the final flush, into ``sink``; None drops them."""
        shutil.rmtree(folder, ignore_errors=True)
        own = {"async-state.enabled": async_enabled, "async-state.local-dir": str(folder / "local")}
        figures: list[Progress] = []
        clock = ManualClock(PROCESSING_START_US) if query == "q12" else None

        def keep(progress: Progress) -> None:
            figures.append(progress)
            if clock is not None:
                clock.advance(ms=PROCESSING_STEP_US // 1_000)

        job = StreamingJob(
            self._spark, str(folder / "state"), own, f"nexmark-{query}", _clock=clock, on_progress=keep
        )
        self._declare(job, query, source).to(changelog_writer(sink), name="result")
        clocks = TreeClocks()
        stream = job.start(trigger={"availableNow": True}, query_checkpoint=str(folder / "checkpoint"))
        job.await_termination(stream)
        job.finish()
        spent = clocks.spent()
        return _Run(spent, [1e3 * one for one in batch_seconds(stream)], figures)

    def _declare(self, job: StreamingJob, query: str, source: EventFiles) -> Stream:
        events = file_stream(self._spark, source)
        if self._settings.sql:
            return statement(job, query, events).select(*QUERIES[query].columns)
        return declare(query, job.source("events", narrow(events, QUERIES[query])))

    def _compare(self, query: str, sink: Path) -> ComparisonResult:
        table = f"expected_{query}"
        if query not in self._expected:
            self._duckdb.execute(f"CREATE OR REPLACE TEMP TABLE {table} AS {QUERIES[query].sql}")
            self._expected.add(query)
        return compare(self._duckdb, f"SELECT * FROM {table}", sink)


class _Run(NamedTuple):
    spent: Spent
    batch_ms: list[float]
    figures: list[Progress]


def declare(query: str, events: Stream) -> Stream:
    """The query's changelog, with its columns in their order."""
    return ALL_PLANS[query](events).select(*QUERIES[query].columns)


def _reset_worker_peaks(spark: SparkSession) -> None:
    """Start the highest memory of Spark's Python workers from what they use now, so that a run is not charged with
    what ran before it. Without /proc a reading is the highest since the worker started."""
    process = getattr(spark.sparkContext._gateway, "proc", None)
    for pid in tree_times(process.pid) or () if process is not None else ():
        with contextlib.suppress(
            OSError
        ):  # "5" clears the highest resident size, which getrusage follows; see proc(5)
            Path(f"/proc/{pid}/clear_refs").write_text("5")


def percentile(values: list[float], percent: float) -> float:
    """The smallest value that at least ``percent`` of all do not exceed; 0 for none."""
    ordered = sorted(values)
    return ordered[max(math.ceil(len(ordered) * percent / 100) - 1, 0)] if ordered else 0.0


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
