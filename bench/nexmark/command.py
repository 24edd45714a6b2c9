"""Runs Nexmark queries as streaming queries, times them and has their results checked: ``python -m bench nexmark``.

Invariant: every result has been compared with the oracle's on the same events, unless it is dropped. A sink folder is
named by its batch id and overwritten, so that a repeated micro-batch counts once.
"""

from __future__ import annotations

import contextlib
import math
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import duckdb
import numpy as np
import typer
from pyspark.sql import SparkSession

from asyncstate.clock import ManualClock
from asyncstate.dataflow import Stream
from asyncstate.spark import Progress, StreamingJob
from bench.frame import Cores, Figure, Report, Row, Seed, benchmark, chosen, columns, in_turns
from bench.nexmark import generator, oracle
from bench.nexmark.comparison import ComparisonResult, compare
from bench.nexmark.generator import EventFiles, GeneratorConfig, file_stream, narrow
from bench.nexmark.oracle import QUERIES
from bench.nexmark.queries import ALL_PLANS, PLANS, STATEMENTS, statement
from bench.processor_time import Spent, TreeClocks, tree_times
from bench.session import batch_seconds, changelog_writer, run_to_end, session

_WARM_UP_EVENTS, _WARM_UP_BATCHES = 10_000, 2


class RunSettings(NamedTuple):
    """What to run: ``events`` in micro-batches of so many, below ``folder``, which the caller owns. ``cores`` for
    Spark, and so partitions of the state and files a micro-batch; ``seed`` of the generator; ``sql``: queries by
    ``job.sql``, instead of operators by hand."""

    folder: Path
    events: int
    micro_batch_events: int
    cores: int = 2
    seed: int = 0
    sql: bool = False


_Run = tuple[Spent, list[float], list[Progress]]  # milliseconds of each micro-batch, and its progress


class NexmarkRunner:
    """Runs queries on one set of events in one session. The events are written, and the expected results computed, when
    they are first needed."""

    def __init__(self, spark: SparkSession, settings: RunSettings) -> None:
        self._spark, self._settings = spark, settings
        self._config = GeneratorConfig(seed=settings.seed)
        temporary = str(settings.folder / "duckdb")
        self._duckdb = duckdb.connect(config={"threads": settings.cores, "temp_directory": temporary})
        self._source: EventFiles | None = None
        self._warm_up: EventFiles | None = None

    def prepare(self) -> EventFiles:
        if self._source is None:
            self._source = self._write("events", self._settings.events, self._settings.micro_batch_events)
            oracle.register_events(self._duckdb, self._source.path)
            oracle.register_arrival(self._duckdb, self._source.path, self._source.files_per_micro_batch)
        return self._source

    def warm_up(self, query: str, async_enabled: bool) -> None:
        """Run the query on a few events, so that neither mode pays for compilers and imports."""
        if self._warm_up is None:
            self._warm_up = self._write("warm-up", _WARM_UP_EVENTS * _WARM_UP_BATCHES, _WARM_UP_EVENTS)
        folder = self._settings.folder / "runs" / "warm-up"
        self._stream(query, async_enabled, self._warm_up, folder, folder / "sink")
        shutil.rmtree(folder)

    def run(self, query: str, async_enabled: bool) -> Row:
        """Run one query in one mode from nothing, and check its result. Raises whatever the streaming query fails with.
        A wrong result does not raise: the row says what is wrong, and the folder of the run is kept."""
        source = self.prepare()
        mode = "async" if async_enabled else "sync"
        folder = self._settings.folder / "runs" / f"{query}-{mode}"
        _reset_worker_peaks(self._spark)
        (seconds, cpu), batch_ms, told = self._stream(query, async_enabled, source, folder, folder / "sink")
        found = self._compare(query, folder / "sink")
        if found.ok:
            shutil.rmtree(folder)
        facts: dict[str, Any] = {"events": source.events, "seconds": seconds}
        facts |= {"events_per_second": source.events / seconds, "expected_rows": found.expected_rows}
        for share in (50, 95):
            facts[f"batch_ms_p{share}"] = float(np.percentile(batch_ms, share, method="inverted_cdf"))
        facts["cpu_us"] = None if cpu is None else cpu / source.events * 1e6
        facts["changelog_rows"] = found.changelog_rows
        batches = [list(progress["operators"].values()) for progress in told]
        each_time: list[Any] = [each for operators in batches for each in operators]
        for name in ("reads", "store_reads", "read_batches", "cache_hits"):  # of all micro-batches
            fact = "state_reads" if name == "reads" else name
            facts[fact] = sum(int(each[name] or 0) for each in each_time)
        last: list[Any] = batches[-1] if batches else []
        for name in ("state_bytes", "state_entries_estimate"):  # what there is at the end
            facts[name] = sum(int(each[name] or 0) for each in last)
        peaks = [int(each["worker_rss_bytes_peak"] or 0) for each in each_time]
        facts["worker_peak_rss_bytes"] = max(peaks, default=0)
        return row_of(query, mode, facts, found.wrong)

    def dropped(self, query: str, async_enabled: bool) -> tuple[list[float], float | None]:
        """Milliseconds of each micro-batch of a run whose output is dropped, unchecked, and processor seconds of all
        of it."""
        folder = self._settings.folder / "runs" / "dropped"
        spent, batch_ms, _ = self._stream(query, async_enabled, self.prepare(), folder, None)
        shutil.rmtree(folder)
        return batch_ms, spent.cpu_seconds

    def close(self) -> None:
        """Give up the batch engine; the session is the caller's."""
        self._duckdb.close()

    def _write(self, name: str, events: int, batch_events: int) -> EventFiles:
        place, files = self._settings.folder / name, math.gcd(self._settings.cores, batch_events)
        return generator.write_events(self._spark, place, events, batch_events, self._config, files)

    def _stream(self, query: str, mode: bool, files: EventFiles, folder: Path, sink: Path | None) -> _Run:
        """Every micro-batch and the final flush, async with ``mode``, into ``sink``; None drops them."""
        shutil.rmtree(folder, ignore_errors=True)
        own = {"async-state.enabled": mode, "async-state.local-dir": str(folder / "local")}
        figures: list[Progress] = []
        clock = ManualClock(oracle.PROCESSING_START_US) if query == "q12" else None

        def keep(progress: Progress) -> None:
            figures.append(progress)
            if clock is not None:
                clock.advance(ms=oracle.PROCESSING_STEP_US // 1_000)

        name = f"nexmark-{query}"
        job = StreamingJob(self._spark, str(folder / "state"), own, name, _clock=clock, on_progress=keep)
        self._declare(job, query, files).to(changelog_writer(sink), name="result")
        clocks = TreeClocks()
        stream = run_to_end(job, folder / "checkpoint")
        job.finish()
        spent = clocks.spent()
        return spent, [1e3 * one for one in batch_seconds(stream)], figures

    def _declare(self, job: StreamingJob, query: str, source: EventFiles) -> Stream:
        events = file_stream(self._spark, source)
        if self._settings.sql:
            return statement(job, query, events).select(*QUERIES[query].columns)
        return declare(query, job.source("events", narrow(events, QUERIES[query])))

    def _compare(self, query: str, sink: Path) -> ComparisonResult:
        self._duckdb.execute(f"CREATE TEMP TABLE IF NOT EXISTS expected_{query} AS {QUERIES[query].sql}")
        return compare(self._duckdb, f"SELECT * FROM expected_{query}", sink)


@contextlib.contextmanager
def started(settings: RunSettings) -> Iterator[NexmarkRunner]:
    """A runner in a session of its own. Raises EnvironmentSetupError if the machine has no JDK that Spark can start."""
    with (
        session("asyncstate-nexmark", settings.folder, settings.cores, generator.CODEGEN_SETTINGS) as spark,
        contextlib.closing(NexmarkRunner(spark, settings)) as runner,
    ):
        yield runner


def declare(query: str, events: Stream) -> Stream:
    """The query's changelog, with its columns in their order."""
    return ALL_PLANS[query](events).select(*QUERIES[query].columns)


def _reset_worker_peaks(spark: SparkSession) -> None:
    """Start the highest memory of Spark's Python workers from what they use now, so that a run is not charged with
    what ran before it. Without /proc a reading is the highest since the worker started."""
    process = getattr(spark.sparkContext._gateway, "proc", None)
    for pid in tree_times(process.pid) or () if process is not None else ():
        with contextlib.suppress(OSError):
            # Clears the highest resident size, which getrusage follows; see proc(5).
            Path(f"/proc/{pid}/clear_refs").write_text("5")


_BATCHES = 10
_COLUMNS = columns("""
    events /s: events_per_second as short drawn; CPU us: cpu_us
    batch p50: batch_ms_p50 as whole drawn batch_ms_p50 batch_ms_p95; batch p95: batch_ms_p95 as whole
    state reads: state_reads as short; list gets: read_batches as short; cache hits: cache_hits as short
    state MiB: state_bytes as mib; async /sync: speedup as times; result: result
""")
_NOTE = "batch: ms of a micro-batch; CPU: us of processor time an event, all processes"


@benchmark(events=20_000)
def nexmark(
    report: Report,
    queries: Annotated[str, typer.Option(help="Names separated by commas, or 'all'.")] = "q4,q18",
    events: Annotated[int, typer.Option(min=1, help="Events to generate.")] = 1_000_000,
    enabled: Annotated[str, typer.Option("--async-state.enabled", help="true, false or both.")] = "both",
    micro_batch_events: Annotated[int | None, typer.Option(min=1, help="By default a tenth.")] = None,
    cores: Cores = 2,
    seed: Seed = 0,
    repeat: Annotated[int, typer.Option(min=1, help="Runs, alternating; shown is the median one.")] = 1,
    sql: Annotated[bool, typer.Option("--sql", help="The queries by job.sql; q12 has none.")] = False,
) -> None:
    """Run Nexmark queries on Spark, check each result with DuckDB, and compare sync with async."""
    how = "one run each, sync first" if repeat == 1 else f"median of {repeat} alternating runs"
    title = f"Nexmark{' by SQL' if sql else ''}, {events:,} events, {cores} cores, {how}"
    every, known = (STATEMENTS, STATEMENTS) if sql else (PLANS, ALL_PLANS)
    asked = chosen(",".join(every) if queries == "all" else queries, known, "--queries")
    batch = micro_batch_events or -(-events // _BATCHES)
    settings = RunSettings(report.folder, events, batch, cores, seed, sql)
    wanted = chosen("all" if enabled == "both" else enabled, ("false", "true"), "--async-state.enabled")
    modes = [mode == "true" for mode in wanted]
    report.tell("starting Spark")
    with started(settings) as runner:
        report.tell(f"generating {events:,} events")
        runner.prepare()
        report.section(title, _COLUMNS, _NOTE)
        for query in asked:
            run_modes(report, runner, query, modes, repeat)


def run_modes(report: Report, runner: NexmarkRunner, query: str, modes: Sequence[bool], repeat: int) -> None:
    """A row a mode, of the run of median duration, a wrong one before all others. A JVM is quicker at what it did
    before, so the order turns. What a mode fails with is in its row."""
    names = {"async" if mode else "sync": mode for mode in modes}
    runs: dict[str, list[Row]] = {name: [] for name in names}

    def run(name: str, number: int) -> None:
        report.tell(f"{query}, {name}, run {number + 1} of {repeat}")
        runner.warm_up(query, names[name])
        runs[name].append(runner.run(query, names[name]))

    failed = in_turns(list(names), repeat, run)
    rows = {name: Row(name=name, group=query) for name in names}
    for name, found in runs.items():
        if ordered := sorted(found, key=lambda each: (not each.wrong, each.facts["seconds"])):
            rows[name] = ordered[0 if ordered[0].wrong else (len(ordered) - 1) // 2]
        rows[name].failed = failed.get(name, "")
    if len(rows) > 1 and all(row.facts for row in rows.values()):
        sync, mine = (rows[name].facts["events_per_second"] for name in ("sync", "async"))
        rows["async"].facts["speedup"] = mine / sync
    report.add(*rows.values())


def row_of(query: str, name: str, facts: dict[str, Any], wrong: Sequence[str]) -> Row:
    """One query in one mode. In ``facts``: ``seconds`` from the start of the streaming query to the end of the final
    flush, ``batch_ms_*`` from the trigger of a micro-batch to its commit, ``cpu_us`` of processors an event, in driver,
    JVM and Python workers; ``state_reads`` counts values asked for, of which ``cache_hits`` came from memory,
    ``store_reads`` keys read from the store, ``read_batches`` the list gets that read several at once."""
    row = Row(name=name, group=query, facts=facts | {"result": "WRONG" if wrong else "right"})
    if wrong:
        row.wrong = ["it differs from DuckDB's result for the same events:", *wrong]
    else:
        rate = facts["events_per_second"]
        row.figures = {f"{query} {name}, events/s": Figure(rate, rate, rate, rate=True, absolute=True)}
    return row
