"""Runs Nexmark queries as streaming queries, times them and has their results checked.

Owns: the session, the folders of a run, the stream from event files to a Parquet changelog, ``QueryResult``.
Invariant: every result has been compared with the oracle's on the same events, unless it is dropped. A sink folder is
named by its batch id and overwritten, so that a repeated micro-batch counts once.
"""

from __future__ import annotations

import contextlib
import math
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import duckdb

from asyncstate.clock import ManualClock
from asyncstate.dataflow import Stream
from asyncstate.spark import StreamingJob
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
from bench.nexmark.queries import ALL_PLANS, statement
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
