"""The machine on which a simulated job runs: its folders, its clock, the stream that Spark would read, and its sinks.

Owns: ``World``, and ``Process``, one driver of the job with its workers, in this process.
Invariant: what a job is comes from ``asyncstate.driver``; here is only what Spark and the outside world do. Spark runs
a micro-batch again until the job has said that it is done, with the same rows.
"""

from __future__ import annotations

import datetime as dt
import gc
import os
import shutil
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from asyncstate.changelog import ROW_KIND_COLUMN
from asyncstate.config import resolve
from asyncstate.dataflow import Stream
from asyncstate.dataflow.nodes import Times as SourceTimes
from asyncstate.driver.commit_log import CommitLog
from asyncstate.driver.job_driver import JobDriver
from asyncstate.driver.job_graph import JobGraph
from asyncstate.driver.local_tasks import TOGETHER_MAX
from asyncstate.driver.micro_batch import JobFrame
from asyncstate.runtime import CommitRecord, InputBatch, TaskSpec, WorkerMemory, run_partitions
from asyncstate.spark.sinks.sqlite import SqliteTarget
from asyncstate.spark.sinks.upserts import UpsertSink
from asyncstate.testing import net
from asyncstate.testing.local_executor import LocalExecutor, LocalRows
from tests.simulation.catalogue import KINDS, SECOND, Table
from tests.simulation.faults import Steps, TaskFailure
from tests.simulation.story import Change, Program, Settings, edges_of

ROWS = pa.schema(
    [("id", pa.int64()), ("k", pa.int64()), ("v", pa.int64()), ("at", pa.timestamp("us", tz="UTC"))]
)
CHANGES = ROWS.append(pa.field(ROW_KIND_COLUMN, pa.string()))
JOB = "simulated"


class JumpingClock:
    """The driver's clock, which stands still and may be set to any time."""

    def __init__(self) -> None:
        self._now_us = 1_000_000 * SECOND

    def now_us(self) -> int:
        """See ``Clock``."""
        return self._now_us

    def move(self, seconds: int) -> None:
        """Forward, or back."""
        self._now_us += seconds * SECOND


class World:
    """Everything that outlives a process of the job."""

    def __init__(self) -> None:
        base = "/dev/shm" if Path("/dev/shm").is_dir() else None
        self.folder = Path(tempfile.mkdtemp(prefix="asyncstate-simulation-", dir=base))
        self.clock = JumpingClock()
        self.steps = Steps()
        self.logs: dict[str, dict[int, Table]] = {}
        """What the function of each log was given, by micro-batch: the last time counts."""
        self.database = self.folder / "tables.db"

    @property
    def local(self) -> Path:
        """The workers' folder."""
        return self.folder / "local"

    @property
    def checkpoint(self) -> Path:
        """The job's."""
        return self.folder / "checkpoint"

    def table(self, sink: str) -> Table:
        """What a sink's table has."""
        with closing(sqlite3.connect(self.database)) as database:
            rows = database.execute(f'SELECT * FROM "{sink}"').fetchall()
        return Counter((*row[:3], *map(_microseconds, row[3:])) for row in rows)

    def make_table(self, sink: str, columns: Sequence[str]) -> None:
        """A table for a sink, if there is none."""
        kinds = {"id": "INTEGER PRIMARY KEY", "at": "TEXT"}
        listed = ", ".join(f"{name} {kinds.get(name, 'INTEGER')}" for name in columns)
        with closing(sqlite3.connect(self.database)) as database:
            database.execute(f'CREATE TABLE IF NOT EXISTS "{sink}" ({listed})')
            database.commit()

    def close(self) -> None:
        """Delete everything."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _microseconds(text: str) -> int:
    """A time as SQLite has it."""
    return (dt.datetime.fromisoformat(text) - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(
        microseconds=1
    )


class Process:
    """The job as one driver runs it, from its start to its end or death."""

    def __init__(
        self, world: World, program: Program, settings: Settings, drops_unclaimed: bool = False
    ) -> None:
        self.world = world
        self.program = program
        self.batches = 0
        """How many micro-batches it has committed."""
        self._worker = WorkerMemory()
        options: dict[str, object] = {
            "async-state.checkpoint-dir": str(world.checkpoint),
            "async-state.local-dir": str(world.local),
            "async-state.parallelism": settings.parallelism,
            "async-state.enabled": settings.async_enabled,
            "async-state.bundle-size": settings.bundle_rows,
            "async-state.snapshot-interval": settings.snapshot_interval,
        }
        config = resolve(options, {})
        # The first two as in the driver of a job, the last one as on executors.
        together = 1 if settings.bundle_rows == 3 else TOGETHER_MAX
        executor = LocalExecutor(run=self._run_partitions, partitions_per_task=together)
        ledger = CommitLog(config, JOB, 0)
        self.graph: JobGraph[LocalRows] = JobGraph(executor)
        _declare(self.graph, program, world)
        frame = JobFrame(
            ledger.job_id,
            ledger.place,
            config,
            lambda own: resolve({**options, **own}, {}),
            executor,
            "drop" if drops_unclaimed else "refuse",
        )
        self._driver = JobDriver(frame, ledger, world.clock)
        with self._driver.dry_run() as batch:
            self.graph.check(batch)

    def run(self, batch_id: int, rows: dict[str, tuple[Change, ...]], final: bool = False) -> None:
        """A micro-batch. Raises what the job raises."""
        read = {
            source.name: _read(rows.get(source.name, ()), source.kind != "events")
            for source in self.program.sources
        }
        self._driver.run(lambda batch: self.graph.run(read, batch), batch_id, final, "{}")
        self.batches += 1

    def close(self) -> None:
        """Give back what the process holds; a process that died has left its files as they are."""
        self._worker.stores.close(self.world.local)

    def died(self) -> None:
        """What the system does for a process that died: its memory is gone and its locks are free."""
        gc.collect()
        self._worker.stores.close(self.world.local)
        for number in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                place = os.readlink(f"/proc/self/fd/{number}")
                if place.startswith(str(self.world.local)) and ".lock" in place:
                    os.close(int(number))

    def _run_partitions(
        self, spec: TaskSpec, partitions: range, batches: Iterator[InputBatch]
    ) -> Iterator[pa.RecordBatch | CommitRecord | Any]:
        """Spark runs a task again that fails, with the same rows."""
        rows = list(batches)
        try:
            self.world.steps.reached(f"task of {spec.uid}")
            return iter(list(run_partitions(spec, partitions, iter(rows), memory=self._worker)))
        except TaskFailure:
            return iter(list(run_partitions(spec, partitions, iter(rows), memory=self._worker)))


def _declare(graph: JobGraph[LocalRows], program: Program, world: World) -> None:
    edges = edges_of(program)
    streams: dict[str, Stream] = {}
    for source in program.sources:
        is_table = source.kind != "events"
        delay = None if source.delay_seconds is None else f"{source.delay_seconds} seconds"
        idle_after = None if source.idle_seconds is None else f"{source.idle_seconds} seconds"
        times = SourceTimes()
        if source.kind == "events":
            times = SourceTimes("at", delay, idle_after=idle_after)
        shape = LocalRows(CHANGES if is_table else ROWS)
        mode = {"events": "insert-only", "table": "retract", "upserts": "upsert"}[source.kind]
        if source.kind == "upserts":
            times = SourceTimes(sequence="at")
        streams[source.name] = graph.source(source.name, shape, times, None, None, mode, "id")
    for node in program.nodes:
        given = [streams[one] for one in node.inputs]
        known = [edges[one] for one in node.inputs]
        streams[node.uid] = KINDS[node.kind].declare(given, known, node.uid, node.number)
    for sink in program.sinks:
        columns = ["id", "k", "v", *(["at"] if edges[sink.of].has_time else [])]
        if sink.kind == "log":
            streams[sink.of].to(Log(world, sink.name, columns), name=sink.name)
        else:
            world.make_table(sink.name, columns)
            target = SqliteTarget(world.database, sink.name)
            streams[sink.of].to(UpsertSink("id", target), name=sink.name)


def _read(changes: Sequence[Change], is_table: bool) -> LocalRows:
    columns = [[row[at] for _, row in changes] for at in range(len(ROWS))]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, ROWS, strict=True)]
    if is_table:
        arrays.append(pa.array([kind for kind, _ in changes], pa.string()))
    return LocalRows.of(pa.RecordBatch.from_arrays(arrays, schema=CHANGES if is_table else ROWS))


class Log:
    """A function as a sink."""

    def __init__(self, world: World, name: str, columns: Sequence[str]) -> None:
        self._world, self._name, self._columns = world, name, columns

    def __call__(self, rows: LocalRows, batch_id: int) -> None:
        self._world.steps.reached("before a log")
        self._world.logs.setdefault(self._name, {})[batch_id] = net_of(rows, self._columns)
        self._world.steps.reached("after a log")


def net_of(rows: LocalRows, columns: Sequence[str]) -> Table:
    """How often each row comes or goes."""
    table = rows.table
    values = [column.cast(pa.int64()).to_pylist() for column in table.select(list(columns)).columns]
    kinds = (
        table.column(ROW_KIND_COLUMN).to_pylist()
        if ROW_KIND_COLUMN in table.column_names
        else ["+I"] * table.num_rows
    )
    return net(zip(kinds, *values, strict=True))
