"""Micro-batches that are repeated later, after a sink has got their rows: they have the rows that the sink has."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from asyncstate.clock import ManualClock
from asyncstate.config import resolve
from asyncstate.dataflow.nodes import Times
from asyncstate.driver.commit_log import CommitLog
from asyncstate.driver.job_driver import JobDriver
from asyncstate.driver.job_graph import JobGraph
from asyncstate.driver.micro_batch import JobFrame
from asyncstate.errors import CheckpointCorruptionError, ConcurrentJobError, JobError
from asyncstate.functions import KeyedProcessFunction
from asyncstate.operator import RecordContext, Row, Timer
from asyncstate.operators import KeyedProcess
from asyncstate.spark.sinks import AppendSink, SqliteTarget
from asyncstate.testing.local_executor import LocalExecutor, LocalRows

NAMES = pa.schema([("name", pa.string())])
SECOND = 1_000_000


class Reminder(KeyedProcessFunction):
    """Each name, and once more ten seconds later."""

    def process(self, row: Row, ctx: RecordContext) -> None:
        ctx.timers.register_processing_time(ctx.processing_time + 10 * SECOND)
        ctx.emit(row.name, "came")

    def on_timer(self, timer: Timer, ctx: RecordContext) -> None:
        ctx.emit(ctx.key[0], "reminded")


class Fails:
    """A sink that fails in one micro-batch, when other sinks have had its rows."""

    def __init__(self) -> None:
        self.at: int | None = None

    def __call__(self, rows: Any, batch_id: int) -> None:
        if batch_id == self.at:
            self.at = None
            raise RuntimeError("after the other sink")


class World:
    """A checkpoint and a database, the clock, and a sink that can fail."""

    def __init__(self, folder: Path, async_enabled: bool) -> None:
        self.state, self.log = folder / "state", folder / "log.db"
        self.options = {
            "async-state.checkpoint-dir": str(self.state),
            "async-state.local-dir": str(folder / "local"),
            "async-state.parallelism": 2,
            "async-state.enabled": async_enabled,
        }
        self.clock, self.fails = ManualClock(SECOND), Fails()
        with sqlite3.connect(self.log) as database:
            database.execute("CREATE TABLE log (name text, what text)")

    def driver(
        self,
        *,
        marks: bool = True,
        clock: ManualClock | None = None,
        before: Callable[[int], None] | None = None,
    ) -> Callable[..., None]:
        """Another driver of the job: runs a micro-batch with one name, or without a name that of ``finish``. ``marks``:
        its sink takes each micro-batch once; ``before``: called before that sink has the rows, with the number."""
        config, executor = resolve(self.options, {}), LocalExecutor()
        ledger = CommitLog(config, "job", 0)
        frame = JobFrame(
            ledger.job_id, ledger.place, config, lambda own: resolve({**self.options, **own}, {}), executor
        )
        graph: JobGraph[LocalRows] = JobGraph(executor)
        names = graph.source("names", LocalRows(NAMES), Times(), None)
        said = names.apply(KeyedProcess(Reminder(), "name string, what string"), key="name", uid="reminders")
        if before is not None:
            said.to(lambda rows, batch_id: before(batch_id), name="before")
        if marks:
            said.to(AppendSink(SqliteTarget(self.log, "log")), name="log")
        said.to(self.fails, name="fails")
        made = JobDriver(frame, ledger, self.clock if clock is None else clock)
        with made.dry_run() as batch:
            graph.check(batch)

        def run(number: int, name: str = "") -> None:
            given = [{"name": name}] if name else []
            rows = LocalRows.of(pa.RecordBatch.from_pylist(given, schema=NAMES))
            made.run(lambda batch: graph.run({"names": rows}, batch), number, not name, "{}")

        return run

    def rows(self) -> list[tuple[str, str]]:
        """What the sink has, in order."""
        with sqlite3.connect(self.log) as database:
            return list(database.execute("SELECT name, what FROM log ORDER BY rowid"))

    @property
    def notes(self) -> list[str]:
        """The notes of the times of micro-batches."""
        return sorted(path.name for path in self.state.glob("writing/*"))


@pytest.fixture
def world(tmp_path: Path, async_enabled: bool) -> World:
    return World(tmp_path, async_enabled)


@pytest.mark.parametrize("committed", [False, True])
@pytest.mark.parametrize("same_driver", [False, True])
def test_no_timer_is_due_that_was_not_when_the_sink_got_the_rows(
    world: World, same_driver: bool, committed: bool
) -> None:
    """The repeated micro-batch would have fired it, and the sink, which has that micro-batch, would take no row."""
    run = world.driver()
    run(0, "ann")
    world.clock.advance(seconds=5)
    if committed:  # only Spark's own commit is missing
        run(1, "bob")
    else:
        world.fails.at = 1
        with pytest.raises(RuntimeError, match="after the other sink"):
            run(1, "bob")
    assert world.rows() == [("ann", "came"), ("bob", "came")]
    world.clock.advance(seconds=60)
    run = run if same_driver else world.driver()
    run(1, "bob")
    assert world.rows() == [("ann", "came"), ("bob", "came")]
    run(2, "eve")
    later = world.rows()[2:]
    assert sorted(later) == [("ann", "reminded"), ("bob", "reminded"), ("eve", "came")]
    assert len(world.notes) == 1


def test_without_such_a_sink_a_micro_batch_is_repeated_at_the_present_time(world: World) -> None:
    """A function gets all rows again."""
    run = world.driver(marks=False)
    run(0, "ann")
    world.fails.at = 1
    with pytest.raises(RuntimeError, match="after the other sink"):
        run(1, "bob")
    assert world.notes == []


@pytest.mark.parametrize("same_driver", [False, True])
def test_the_query_does_not_take_the_number_of_an_interrupted_finish(world: World, same_driver: bool) -> None:
    """The sink, which has a micro-batch of that number, would take none of its rows."""
    run = world.driver()
    run(0, "ann")
    world.clock.advance(seconds=20)
    world.fails.at = 1
    with pytest.raises(RuntimeError, match="after the other sink"):
        run(1)
    run = run if same_driver else world.driver()
    with pytest.raises(JobError, match=r"finish\(\) did not commit batch 1.*; call finish\(\) again"):
        run(1, "bob")
    run(1)
    assert world.rows() == [("ann", "came"), ("ann", "reminded")]


@pytest.mark.parametrize("same_driver", [False, True])
def test_finish_does_not_take_the_number_of_an_interrupted_micro_batch(
    world: World, same_driver: bool
) -> None:
    run = world.driver()
    run(0, "ann")
    world.clock.advance(seconds=5)
    world.fails.at = 1
    with pytest.raises(RuntimeError, match="after the other sink"):
        run(1, "bob")
    run = run if same_driver else world.driver()
    with pytest.raises(JobError, match=r"the query did not commit batch 1.*; start the query"):
        run(1)
    run(1, "bob")
    world.clock.advance(seconds=20)
    run(2)
    assert sorted(world.rows()) == [(name, what) for name in ("ann", "bob") for what in ("came", "reminded")]


def test_a_note_that_cannot_be_read_is_not_left_out(world: World) -> None:
    run = world.driver()
    run(0, "ann")
    (note,) = world.state.glob("writing/*")
    note.write_text("{")
    run = world.driver()
    with pytest.raises(CheckpointCorruptionError, match=r"writing/\d+\.json cannot be read"):
        run(1, "bob")
    note.unlink()
    run(1, "bob")
    assert world.rows() == [("ann", "came"), ("bob", "came")]


def test_a_driver_that_is_fenced_off_writes_no_row_of_its_own_time(world: World) -> None:
    """The other one has looked for the time of an earlier attempt already, and repeats the micro-batch at its own: the
    sink would leave out the timer that is due by then."""
    clock = ManualClock(SECOND)
    first = world.driver(clock=clock)
    first(0, "ann")
    clock.advance(seconds=5)
    world.clock.advance(seconds=60)

    def run_first(batch_id: int) -> None:
        if batch_id == 1:
            with pytest.raises(ConcurrentJobError, match="Stop this query"):
                first(1, "bob")

    second = world.driver(before=run_first)
    second(1, "bob")
    assert sorted(world.rows()) == [("ann", "came"), ("ann", "reminded"), ("bob", "came")]
    for _ in range(2):
        with pytest.raises(ConcurrentJobError, match="Stop this query"):
            first(1, "bob")
    second(2, "eve")
    assert sorted(world.rows())[3:] == [("eve", "came")]
