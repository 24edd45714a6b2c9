"""Programs of a client of Spark Connect, each in a process of its own: a process has classic sessions or these."""

from __future__ import annotations

import functools
import json
import logging
import os
import re
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
from pyspark.sql import functions as sf

from asyncstate import RecordOperator, ValueStateDescriptor
from asyncstate.driver.commit_log import CommitLog
from asyncstate.errors import JobError, OperatorError, SchemaError
from asyncstate.operator import InputSpec, RecordContext, Row
from asyncstate.operators import (
    Deduplicate,
    GroupAggregate,
    LookupJoin,
    WindowAggregate,
    count,
    max_,
    sum_,
    tumble,
)
from asyncstate.spark import StreamingJob, apply_batch, read_state
from asyncstate.spark.connect_files import ConnectFiles
from asyncstate.spark.facts import known_changes
from asyncstate.spark.kafka import Json
from asyncstate.spark.prometheus import PrometheusProgress
from asyncstate.spark.sinks import (
    AppendSink,
    KafkaAppendTarget,
    KafkaTarget,
    ParquetTarget,
    SqliteTarget,
    UpsertSink,
)
from asyncstate.spark.sources import debezium_json, delta_change_feed, json_rows
from bench.nexmark.command import declare
from bench.nexmark.comparison import compare
from bench.nexmark.generator import file_stream, narrow, write_events
from bench.nexmark.oracle import QUERIES, register_arrival, register_events
from bench.session import changelog_writer
from tests.sinks.places import Place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from asyncstate.spark import MicroBatch, Progress

ROWS, KEYS = 40, 5
SECONDS_MAX = 120
URL = "ASYNCSTATE_TEST_URL"
PAUSED, RESUME, COMMIT = "paused", "resume", "commit"
"""Files by which a micro-batch says that it waits, is told to go on, and says what became of its commit."""


def _wait_until(wanted: Callable[[], bool]) -> None:
    never = threading.Event()
    while not wanted():
        never.wait(0.05)


def pause(folder: Path, wanted: Callable[[], bool] | None = None) -> None:
    """Wait, in a process of the server's, until the test ends it or ``wanted`` is true: by default, until the file
    RESUME is there. Only the first call in ``folder`` waits."""
    try:
        with (folder / PAUSED).open("x") as mark:
            mark.write(f"{os.getpid()}\n")
    except FileExistsError:
        return
    wanted = (folder / RESUME).exists if wanted is None else wanted
    _wait_until(wanted)
    commit = CommitLog.commit

    def watched(log: CommitLog, *given: Any) -> Any:
        try:
            found = commit(log, *given)
        except Exception as error:
            (folder / COMMIT).write_text(f"{type(error).__name__}\n")
            raise
        (folder / COMMIT).write_text("committed\n")
        return found

    CommitLog.commit = watched  # type: ignore[method-assign]


class Balance(RecordOperator):
    """The sum of each account; a negative amount is an error. ``pause_in``: a folder; the row of ``ROWS`` pauses."""

    pause_in: Path | None = None

    def bind(self, inputs: tuple[InputSpec, ...]) -> pa.Schema:
        return pa.schema([("k", pa.int64()), ("total", pa.int64())])

    def open(self, context: Any) -> None:
        self.total = context.get_state(ValueStateDescriptor("total", pa.int64(), default=0))

    async def process(self, row: Row, ctx: RecordContext) -> None:
        if row.v < 0:
            raise ValueError(f"amount {row.v} of account {row.k}")
        if row.v == ROWS and self.pause_in is not None:  # in the second micro-batch
            pause(self.pause_in)
        total = await self.total.async_value() + row.v
        await self.total.async_update(total)
        ctx.emit(row.k, total)


def main(name: str, url: str, folder: str, mode: str) -> None:
    """Run a program and print what it returns as the last line, in JSON."""
    from pyspark.sql import SparkSession

    logging.basicConfig(level=logging.WARNING)
    os.environ[URL] = url
    spark = SparkSession.builder.remote(url).getOrCreate()
    spark.conf.set("spark.async-state.enabled", str(mode == "async").lower())
    try:
        result = PROGRAMS[name](spark, Path(folder))
        print(json.dumps(result))
        code = 0
    except Exception:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # the client's own end would wait for a server that was killed


def _job(spark: SparkSession, folder: Path, **more: Any) -> StreamingJob:
    options = {"async-state.parallelism": 2, "async-state.local-dir": str(folder / "local")}
    return StreamingJob(spark, str(folder / "state"), options, "job", **more)


def _started(start: Callable[..., StreamingQuery]) -> StreamingQuery:
    """The query that ``start`` starts. Spark gives the process of the micro-batches ten seconds to import pyspark; on a
    busy machine that may take longer."""
    for _ in range(8):
        try:
            return start(trigger="availableNow")
        except Exception as error:
            if "failed to connect back" not in str(error):
                raise
    return start(trigger="availableNow")


def _numbers(spark: SparkSession, folder: Path, batches: int, name: str = "in") -> DataFrame:
    """A file of rows a micro-batch: ``k``, ``v`` and ``at``, ten seconds a file."""
    place = folder / name
    if not place.exists():
        for number in range(batches):
            rows = spark.range(number * ROWS, (number + 1) * ROWS, 1, 1).selectExpr(
                f"id % {KEYS} as k", "id as v", f"timestamp_seconds(div(id, {ROWS}) * 10 + id % 10) as at"
            )
            part = folder / "parts" / name / str(number)
            rows.write.parquet(str(part))
            (file,) = part.glob("*.parquet")
            place.mkdir(exist_ok=True)
            os.utime(file, (1_700_000_000 + number, 1_700_000_000 + number))
            file.rename(place / f"{number}.parquet")
    stream = spark.readStream.schema("k long, v long, at timestamp").option("maxFilesPerTrigger", 1)
    return stream.parquet(str(place))


def _totals(numbers: range) -> dict[str, int]:
    return {str(k): sum(v for v in numbers if v % KEYS == k) for k in range(KEYS)}


def _table(folder: Path, columns: str = "k, total") -> list[Any]:
    import sqlite3

    database = sqlite3.connect(folder / "out.db")
    try:
        return database.execute(f"SELECT {columns} FROM totals ORDER BY 1, 2").fetchall()
    finally:
        database.close()


def _new_table(folder: Path, columns: str = "k INTEGER PRIMARY KEY, total INTEGER") -> SqliteTarget:
    import sqlite3

    database = sqlite3.connect(folder / "out.db")
    database.execute(f"CREATE TABLE IF NOT EXISTS totals ({columns})")
    database.close()
    return SqliteTarget(folder / "out.db", "totals")


def _sums() -> GroupAggregate:
    return GroupAggregate([sum_("v").alias("total")])


def graph(spark: SparkSession, folder: Path) -> Any:
    """A graph with a sink of a table; progress reaches the client."""
    from prometheus_client import CollectorRegistry

    seen: list[Progress] = []
    registry = CollectorRegistry()
    metrics = PrometheusProgress(registry)

    def on_progress(progress: Progress) -> None:
        seen.append(progress)
        metrics(progress)

    job = _job(spark, folder, on_progress=on_progress)
    numbers = job.source("numbers", _numbers(spark, folder, 3))
    sums = numbers.where("v >= 0").apply(_sums(), key="k", uid="sums")
    sums.to(UpsertSink("k", _new_table(folder)))
    explained = job.explain()
    query = _started(functools.partial(job.start, progress=True))
    job.await_termination(query)
    state = {str(row["key"]["k"]): row["value"] for row in _state(spark, folder).collect() if row["value"]}
    return {
        "table": dict(_table(folder)),
        "batches": [progress["batch_id"] for progress in job.history],
        "reported": [progress["batch_id"] for progress in seen],
        "rows": sum(progress["operators"]["sums"]["rows_in"] for progress in job.history),
        "explained": "sums" in explained,
        "measured": f"{ROWS} \u2192 " in job.explain(),
        "repr": repr(job),
        "html": job._repr_html_(),
        "keys": len(state),
        "metric": registry.get_sample_value("asyncstate_micro_batches_total", {"job": "job"}),
        "bar": job._snapshot(query, None).lines,
        "left": _left(folder),
    }


def _left(folder: Path) -> list[str]:
    """What client and server have told each other, and not deleted."""
    return [path.name for path in folder.glob("state/connect/**/*") if path.is_file()]


def _state(spark: SparkSession, folder: Path) -> DataFrame:
    states = read_state(spark, str(folder / "state"), "sums")
    names = [row[0] for row in states.select("state").distinct().collect()]
    return read_state(spark, str(folder / "state"), "sums", sorted(names)[0])


def windows(spark: SparkSession, folder: Path) -> Any:
    """Windows of a graph over two sources, the last of them at the end of the input."""
    job = _job(spark, folder)
    one = job.source("one", _numbers(spark, folder, 3, "one"), event_time="at", watermark_delay="0 seconds")
    two = job.source("two", _numbers(spark, folder, 3, "two"), event_time="at", watermark_delay="0 seconds")
    counted = WindowAggregate(tumble("10 seconds"), [count().alias("total")])
    target = _new_table(
        folder,
        "k INTEGER, window_start TEXT, window_end TEXT, window_time TEXT, total INTEGER, PRIMARY KEY (k, window_start)",
    )
    one.union(two).apply(counted, key="k", uid="windows").to(UpsertSink(["k", "window_start"], target))
    job.await_termination(_started(job.start))
    before = len(_table(folder, "k, window_start, total"))
    job.finish()
    found = _table(folder, "k, window_start, total")
    return {"before": before, "after": len(found), "counts": sorted({total for _, _, total in found})}


def function(spark: SparkSession, folder: Path) -> Any:
    """A function of micro-batches, which uses a DataFrame and the session of the client."""
    job, place = _job(spark, folder), str(folder / "out")
    names = spark.createDataFrame([(k, f"name {k}") for k in range(KEYS)], "k long, name string")

    @job.micro_batch
    def on_batch(df: DataFrame, batch: MicroBatch) -> None:
        totals = batch.apply(Balance(), df, uid="balance", key="k")
        assert spark.range(1).count() == 1
        totals.groupBy("k").agg({"total": "max"}).join(names, "k").write.mode("append").parquet(place)

    writer = _numbers(spark, folder, 2).writeStream.foreachBatch(on_batch).trigger(availableNow=True)
    writer = writer.option("checkpointLocation", str(folder / "query"))

    job.await_termination(_started(lambda trigger: writer.start()))
    _numbers(spark, folder, 1, "more")
    (folder / "more" / "0.parquet").rename(folder / "in" / "2.parquet")
    job.await_termination(_started(lambda trigger: writer.start()))
    rows = spark.read.parquet(place).groupBy("name").max("max(total)").collect()
    return {
        "last": {name: value for name, value in rows},
        "batches": [one["batch_id"] for one in job.history],
    }


def initial(spark: SparkSession, folder: Path) -> Any:
    """A source that starts from a table, and a table that does not stream."""
    job = _job(spark, folder)
    before = spark.sql("SELECT k, 1000L AS v, timestamp_seconds(0) AS at FROM range(5) AS t(k)")
    numbers = job.source("numbers", _numbers(spark, folder, 1), initial=before)
    more = job.table(
        "more", spark.createDataFrame([(k, 5, None) for k in range(KEYS)], "k long, v long, at timestamp")
    )
    numbers.union(more).apply(_sums(), key="k", uid="sums").to(UpsertSink("k", _new_table(folder)))
    job.await_termination(_started(job.start))
    return dict(_table(folder))


BAD = "if(v = 0, -30L, v)"
"""One bad row only: of two, each in a task of its own, either may be the first to fail."""


def errors(spark: SparkSession, folder: Path) -> Any:
    """What an operator and a sink raise arrives as it was raised."""
    found = []
    for name, where in (("operator", BAD), ("sink", "v")):
        job = _job(spark, folder / name)
        rows = job.source("numbers", _numbers(spark, folder, 1)).select("k", v=where)
        rows.apply(Balance(), key="k", uid="balance").to(functools.partial(_fail))
        try:
            job.await_termination(_started(job.start))
        except Exception as error:
            found.append([type(error).__name__, str(error), "\n".join(getattr(error, "__notes__", []))])
    job = _job(spark, folder / "source")
    texts = _numbers(spark, folder, 1).selectExpr("concat('no ', v) as value")
    rows = job.source("numbers", debezium_json(texts.where("value = 'no 7'"), "k long"))
    rows.apply(GroupAggregate([count().alias("total")]), key="k", uid="sums").to(functools.partial(_fail))
    query = _started(job.start)
    assert job._client is not None
    assert job._client._thread is not None
    job._client._thread.join(SECONDS_MAX)  # nobody awaits the query
    last = job.last_error
    found.append([type(last).__name__, str(last), ""])
    found.append([str(query.isActive), "", "\n".join(_left(folder / "source"))])
    return found


def refused(spark: SparkSession, folder: Path) -> Any:
    """What a job over Spark Connect does not do is refused by one sentence, before a row is read."""
    job = _job(spark, folder)
    numbers = job.source("numbers", _numbers(spark, folder, 1))
    sums = numbers.apply(_sums(), key="k", uid="sums")
    frame, lock = _numbers(spark, folder, 1), threading.Lock()

    def started(sink: Any) -> Callable[[], object]:
        other = _job(spark, folder)
        rows = other.source("numbers", _numbers(spark, folder, 1))
        rows.apply(_sums(), key="k", uid="sums").to(sink)
        return functools.partial(other.start, trigger="availableNow")

    asked: dict[str, Callable[[], object]] = {
        "sql": lambda: job.sql("SELECT * FROM numbers"),
        "show": sums.show,
        "show given": lambda: sums.show({"numbers": [(1, 2, None)]}),
        "executor": lambda: StreamingJob(
            spark, str(folder / "local"), {"async-state.executor": "local"}, "job"
        ),
        "the job": started(lambda df, batch_id: print(job.name)),
        "a stream": started(lambda df, batch_id: frame.count()),
        "a lock": started(lambda df, batch_id: print(lock)),
    }
    return {name: _refusal(call) for name, call in asked.items()}


def _refusal(call: Callable[[], object]) -> list[str]:
    try:
        call()
    except Exception as error:
        return [type(error).__name__, str(error)]
    return ["nothing", ""]


def _fail(rows: DataFrame, batch_id: int) -> None:
    raise LookupError(f"no place for {rows.count()} rows")


def batch(spark: SparkSession, folder: Path) -> Any:
    """An operator over all rows of a DataFrame, in a session that is not the active one."""
    from pyspark.sql import SparkSession

    another = SparkSession.builder.remote(os.environ[URL]).create()
    spark = spark if type(spark).active() is another else another
    assert type(spark).active() is not spark
    rows = spark.range(ROWS).selectExpr(f"id % {KEYS} as k", "id as v")
    found = apply_batch(_sums(), rows, key="k")
    totals = {str(row["k"]): row["total"] for row in found.where("row_kind = '+I'").collect()}
    found.unpersist()
    try:
        found.where("true").collect()
        ended = ""
    except JobError as error:
        ended = str(error)
    try:
        apply_batch(Balance(), rows.selectExpr("k", f"{BAD} as v"), key="k")
        failed = ""
    except OperatorError as error:
        failed = str(error)
    return {"totals": totals, "ended": ended, "failed": failed}


def modes(spark: SparkSession, folder: Path) -> Any:
    """What is known of rows that Spark has derived from the output of operators."""
    return modes_of(spark)


def modes_of(spark: SparkSession) -> dict[str, str]:
    """The same in any session."""
    sales = spark.createDataFrame([("a", 1), ("a", 2), ("b", 3)], "k string, v long")
    upserts = apply_batch(GroupAggregate([sum_("v").alias("v")], emit_update_before=False), sales, key="k")
    firsts = apply_batch(Deduplicate(time="processing"), sales, key="k")
    other = spark.createDataFrame([("c", 1, "-D")], "k string, v long, row_kind string")
    made = {
        "filtered upserts": upserts.where("v > 2"),
        "moved upserts": upserts.repartition(3),
        "upserts and others": upserts.select("k", "v", "row_kind").union(other),
        "others and upserts": other.union(upserts.select("k", "v", "row_kind")),
        "joined upserts": other.join(
            upserts.selectExpr("k AS own", "row_kind AS kind"), other.k == sf.col("own")
        ),
        "filtered insertions": firsts.where("v > 1").withColumn("w", firsts.v + 1),
        "insertions and others": firsts.select("k", "v", "row_kind").union(other),
        "others and insertions": other.union(firsts.select("k", "v", "row_kind")),
        "insertions and their own": firsts.union(firsts.withColumn("row_kind", sf.lit("-D"))),
        "insertions and upserts": firsts.select("k", "v", "row_kind").union(
            upserts.select("k", "v", "row_kind")
        ),
        "other kinds": firsts.withColumn("row_kind", firsts.k),
    }
    return {name: _mode(df) for name, df in made.items()}


def _mode(df: DataFrame) -> str:
    try:
        return known_changes(df).text
    except SchemaError:
        return "refused"


def stopped(spark: SparkSession, folder: Path) -> Any:
    """A query that is stopped in the middle and started again: no micro-batch is broken off, or missed."""
    job = _job(spark, folder)
    sums = job.source("numbers", _numbers(spark, folder, 8)).apply(_sums(), key="k", uid="sums")
    sums.to(UpsertSink("k", _new_table(folder)))
    first = threading.Event()
    ended: list[BaseException | None] = []

    def awaited() -> None:
        try:
            job.await_termination(query)
            ended.append(None)
        except Exception as error:
            ended.append(error)

    query = _started(job.start)
    waiting = threading.Thread(target=awaited)
    waiting.start()
    while not job.history:
        first.wait(0.05)
    job.stop(timeout_seconds=SECONDS_MAX)
    waiting.join(SECONDS_MAX)
    committed, last = _ledger_version(job), job.history[-1]["batch_id"]
    again = _job(spark, folder)
    sums = again.source("numbers", _numbers(spark, folder, 8)).apply(_sums(), key="k", uid="sums")
    sums.to(UpsertSink("k", _new_table(folder)))
    again.await_termination(_started(again.start))
    return {
        "ended": [str(error) for error in ended if error is not None],
        "is_active": query.isActive,
        "committed": [committed, last],
        "batches": [one["batch_id"] for one in [*job.history, *again.history]],
        "table": dict(_table(folder)),
        "left": _left(folder),
    }


def _ledger_version(job: StreamingJob) -> int:
    latest = job._ledger.latest()
    return -1 if latest is None else latest.batch_id


def lookups(spark: SparkSession, folder: Path) -> Any:
    """Calls, a side output and appended rows; checkpoint and sink have relative paths, as do the server's own."""
    os.chdir(folder)
    job = StreamingJob(spark, "state", {"async-state.parallelism": 2}, "job")
    rows = job.source("numbers", _numbers(spark, folder, 2)).select("k", "v")
    join = LookupJoin(_name, pa.schema([("name", pa.string())]), on=["k"], on_failure="output")
    named = rows.apply(join, key="k", uid="names")
    named.to(AppendSink(ParquetTarget("named")), name="named")
    named.output("errors").to(AppendSink(ParquetTarget("failed")), name="failed")
    job.await_termination(_started(job.start))
    found = spark.read.parquet(str(folder / "named")).groupBy("name").count().collect()
    failed = spark.read.parquet(str(folder / "failed")).select("k", "error_type").distinct().collect()
    return {
        "named": {name: number for name, number in found},
        "failed": [list(row) for row in failed],
        "batches": [one["batch_id"] for one in job.history],
        "query": (folder / "state-query").is_dir(),
    }


async def _name(keys: list[tuple[int]]) -> list[list[tuple[str]]]:
    if (0,) in keys:
        raise LookupError("no name")
    return [[(f"name {k}",)] for (k,) in keys]


def elsewhere(spark: SparkSession, folder: Path) -> Any:
    """At the location of the checkpoint, the server has another folder than the client."""
    job = _job(spark, folder)
    sums = job.source("numbers", _numbers(spark, folder, 1)).apply(_sums(), key="k", uid="sums")
    sums.to(UpsertSink("k", _new_table(folder)))
    begin = ConnectFiles.begin
    ConnectFiles.begin = lambda self: None  # type: ignore[method-assign]  # as if in another folder
    try:
        query = _started(job.start)
    finally:
        ConnectFiles.begin = begin  # type: ignore[method-assign]
    return [*_refusal(lambda: job.await_termination(query)), _table(folder), _ledger_version(job)]


class _Lines:
    """A screen: ``wanted`` is set when it has shown these lines."""

    def __init__(self, *starts: str) -> None:
        self.starts = starts
        self.wanted = threading.Event()

    def show(self, lines: list[str]) -> None:
        if all(any(line.startswith(start) for line in lines) for start in self.starts):
            self.wanted.set()

    def clear(self) -> None:
        pass


def watched(spark: SparkSession, folder: Path) -> Any:
    """A micro-batch that waits: the bar shows it, ``stop`` gives up after its timeout, and the query goes on."""
    from asyncstate.spark import job as module

    screen = _Lines("job: batch 1, ", "last: batch 0, 40 rows in ")
    module.screen_of_this_process = lambda: screen  # type: ignore[attr-defined]
    job = _job(spark, folder)
    operator = Balance()
    operator.pause_in = folder
    numbers = job.source("numbers", _numbers(spark, folder, 3)).select("k", "v")
    numbers.apply(operator, key="k", uid="balance").to(_Nothing())
    query = _started(functools.partial(job.start, progress=True))
    shown = screen.wanted.wait(SECONDS_MAX)
    # The bar shows a micro-batch before its first row.
    _wait_until(lambda: (folder / PAUSED).exists() or not query.isActive)
    late = _refusal(lambda: job.stop(timeout_seconds=0.5))
    active = query.isActive
    (folder / RESUME).touch()
    job.await_termination(query)
    return {
        "shown": shown,
        "late": late,
        "active": active,
        "batches": [one["batch_id"] for one in job.history],
        "left": _left(folder),
    }


class _Nothing:
    """A sink that keeps nothing."""

    def write(self, rows: DataFrame, batch_id: int) -> None:
        rows.count()


def stopped_failing(spark: SparkSession, folder: Path) -> Any:
    """``stop`` raises the error of the micro-batch that it waits for."""
    job = _job(spark, folder)
    numbers = job.source("numbers", _numbers(spark, folder, 2))
    numbers.apply(_sums(), key="k", uid="sums").to(functools.partial(_fail_when_stopped, folder))
    _started(job.start)
    _wait_until((folder / PAUSED).exists)
    found = _refusal(job.stop)
    return {
        "error": found,
        "last": [type(job.last_error).__name__, str(job.last_error)],
        "left": _left(folder),
    }


def _fail_when_stopped(folder: Path, rows: DataFrame, batch_id: int) -> None:
    pause(folder, lambda: any(folder.glob("state/connect/*/stop")))
    raise LookupError(f"no place for {rows.count()} rows")


class PausingTarget(SqliteTarget):
    """Pauses after its second write, when the rows are in the table and the micro-batch is not committed."""

    def __init__(self, path: str, table: str, folder: Path | None) -> None:
        super().__init__(path, table)
        self.folder = folder

    def write(self, writer: str, batch_id: int, *given: Any) -> bool:
        written = super().write(writer, batch_id, *given)
        if batch_id == 1 and self.folder is not None:
            pause(self.folder)
        return written


def _pausing(spark: SparkSession, folder: Path, where: str) -> StreamingJob:
    """A job whose second micro-batch pauses in the operator or in the sink."""
    job = _job(spark, folder)
    operator = Balance()
    operator.pause_in = folder if where == "operator" else None
    balances = job.source("numbers", _numbers(spark, folder, 4)).select("k", "v")
    target = PausingTarget(_new_table(folder).path, "totals", folder if where == "sink" else None)
    balances = balances.apply(operator, key="k", uid="balance")
    last = balances.apply(GroupAggregate([max_("total").alias("total")]), key="k", uid="last")
    last.to(UpsertSink("k", target))
    return job


def _run_pausing(where: str, spark: SparkSession, folder: Path) -> Any:
    """A job whose server is killed in the middle of its second micro-batch: returns what it was told."""
    job = _pausing(spark, folder, where)
    query = _started(job.start)
    error = _refusal(lambda: job.await_termination(query))
    return {
        "error": error,
        "last": type(job.last_error).__name__,
        "batches": [o["batch_id"] for o in job.history],
    }


def resumed(spark: SparkSession, folder: Path) -> Any:
    """The same job, started again to its end."""
    job = _pausing(spark, folder, "nowhere")
    job.await_termination(_started(job.start))
    return {
        "table": dict(_table(folder)),
        "version": _ledger_version(job),
        "batches": [one["batch_id"] for one in job.history],
        "left": _left(folder),
    }


def after(spark: SparkSession, folder: Path) -> Any:
    """What is there when all processes have ended."""
    job = _pausing(spark, folder, "nowhere")
    return {"table": dict(_table(folder)), "version": _ledger_version(job)}


def dropped(spark: SparkSession, folder: Path) -> Any:
    """A reader drops every fifth message; the client gets their number."""
    job = _job(spark, folder)
    given = _numbers(spark, folder, 2)
    texts = given.selectExpr("if(k = 0, 'no', to_json(struct(k, v))) AS value")
    numbers = job.source("numbers", json_rows(texts, "k bigint not null, v bigint", malformed="drop"))
    numbers.apply(_sums(), key="k", uid="sums").to(UpsertSink("k", _new_table(folder)))
    job.await_termination(_started(job.start))
    return {"table": dict(_table(folder)), "dropped": [progress["dropped"] for progress in job.history]}


STATEMENT = "INSERT INTO totals SELECT k, sum(v) AS total FROM numbers WHERE v >= 0 GROUP BY k"


def statements(spark: SparkSession, folder: Path) -> Any:
    """A statement that a classic session has compiled, and one that it has not."""
    job = _job(spark, folder)
    numbers = _numbers(spark, folder, 2)
    job.source("numbers", numbers)
    job.load_plans((folder / "plan.json").read_text())
    job.sink("totals", UpsertSink("k", _new_table(folder)))
    unknown = "INSERT INTO totals SELECT k, max(v) AS total FROM numbers GROUP BY k"
    refused = [_refusal(functools.partial(job.sql, text)) for text in (unknown, f"EXPLAIN {STATEMENT}")]
    job.sql(STATEMENT)
    job.await_termination(_started(job.start))
    return {"table": dict(_table(folder)), "refused": refused}


def topics(spark: SparkSession, folder: Path) -> Any:
    """From a topic into a table and a log of a topic; one message cannot be read."""
    given = json.loads((folder / "kafka.json").read_text())
    servers = given["servers"]
    job = _job(spark, folder)
    messages = job.kafka(
        "numbers",
        servers,
        given["source"],
        Json("k bigint not null, v bigint"),
        malformed="output",
        starting="earliest",
        connector=given["connector"],
    )
    sums = messages.apply(_sums(), key="k", uid="sums")
    sums.to(UpsertSink("k", KafkaTarget(servers, given["totals"])), name="totals")
    log = KafkaAppendTarget(servers, given["log"], keys="offset")
    messages.output("malformed").select("offset", "malformed").to(AppendSink(log), name="malformed")
    job.await_termination(_started(job.start))
    return [one["batch_id"] for one in job.history]


def lakes(spark: SparkSession, folder: Path) -> Any:
    """Into tables of Delta and Iceberg."""
    job = _job(spark, folder)
    numbers = job.source("numbers", _numbers(spark, folder, 2))
    typed = numbers.select(id="k", name="concat('name ', v)", total="CAST(v AS decimal(10, 2))")
    last = typed.apply(
        GroupAggregate([max_("name").alias("name"), sum_("total").alias("total")]), key="id", uid="sums"
    )
    for kind in ("delta", "iceberg"):
        place = Place(kind, str(folder / kind))
        sums = last.select("id", "name", total="CAST(total AS decimal(10, 2))")
        sums.to(UpsertSink("id", place.target()), name=kind)
        log = Place(kind, str(folder / f"{kind}-log"))
        typed.to(AppendSink(log.append_target()), name=f"{kind} log")
    job.await_termination(_started(job.start))
    return [one["batch_id"] for one in job.history]


def lake_sources(spark: SparkSession, folder: Path) -> Any:
    """From the change feed of a table of Delta and the rows that are appended to one of Iceberg, which Spark made: for
    each of two runs, the sums of what is in the tables, as the sinks have them."""
    changed, added = f"delta.`{folder}/delta/changed`", "lake.shop.added"
    if not (folder / "delta" / "changed").exists():
        feed = "USING delta TBLPROPERTIES (delta.enableChangeDataFeed = true)"
        spark.sql(f"CREATE TABLE {changed} (id bigint, k bigint, v decimal(10, 2)) {feed}")
        spark.sql(f"CREATE TABLE {added} (k bigint, v decimal(10, 2)) USING iceberg")
        for table, columns in ((changed, "id, id % 3, id"), (added, "id % 2, id")):
            spark.sql(f"INSERT INTO {table} SELECT {columns} FROM range(1, 10)")
        spark.sql(f"UPDATE {changed} SET v = v + 0.5 WHERE id < 4")
    else:
        spark.sql(f"DELETE FROM {changed} WHERE k = 0")
        spark.sql(f"UPDATE {changed} SET k = 2 WHERE id = 1")
        spark.sql(f"INSERT INTO {added} VALUES (1, -1), (5, 5)")
    job = _job(spark, folder)
    read = spark.readStream.format("delta").option("readChangeFeed", "true").option("startingVersion", 0)
    feed_of = delta_change_feed(read.load(f"{folder}/delta/changed"))
    rows = job.source("changed", feed_of, sequence="_commit_version", changelog=True)
    log = job.source("added", spark.readStream.format("iceberg").load(added))
    for kind, stream in (("delta", rows), ("iceberg", log)):
        sums = stream.apply(_sums(), key="k", uid=f"{kind}-sums")
        table = sums.select(id="k", name="CAST(k AS string)", total="CAST(total AS decimal(10, 2))")
        table.to(UpsertSink("id", Place(kind, str(folder / kind)).target()), name=kind)
    job.await_termination(_started(job.start))
    tables = {kind: Place(kind, str(folder / kind)).table() for kind in ("delta", "iceberg")}
    return {kind: dict(table.values()) for kind, table in tables.items()}


def changed_logs(spark: SparkSession, folder: Path) -> Any:
    """For each way in which Spark can change a table of Iceberg that a job has read: the snapshot at which the next run
    ends, or None, and then the sums that the sink has. One row comes after the change."""
    changes = {
        "deleted": "DELETE FROM lake.shop.{} WHERE v > 0",
        "updated": "UPDATE lake.shop.{} SET v = 0 WHERE v = 3",
        "compacted": "CALL lake.system.rewrite_data_files(table => 'shop.{}', options => map('rewrite-all', 'true'))",
    }
    found = {}
    for name, change in changes.items():
        table, place = f"{folder.name}_{name}", folder / name
        place.mkdir(parents=True)
        spark.sql(f"CREATE TABLE lake.shop.{table} (k bigint, v bigint) USING iceberg")

        def run(table: str = table, place: Path = place) -> str | None:
            job = _job(spark, place)
            log = job.source("log", spark.readStream.format("iceberg").load(f"lake.shop.{table}"))
            log.apply(_sums(), key="k", uid="sums").to(UpsertSink("k", _new_table(place)), name="sums")
            try:
                job.await_termination(_started(job.start))
            except Exception as error:
                ended = re.search(r"Cannot process (\w+) snapshot", str(error))
                if ended is None:
                    raise
                return ended[1]
            return None

        spark.sql(f"INSERT INTO lake.shop.{table} SELECT id % 2, id FROM range(1, 10)")
        assert run() is None
        spark.sql(change.format(table))
        spark.sql(f"INSERT INTO lake.shop.{table} VALUES (1, 100)")
        found[name] = [run(), *map(list, _table(place))]
    return found


def nexmark(spark: SparkSession, folder: Path) -> Any:
    """Three of Nexmark's queries: what is wrong with their results, as DuckDB says."""
    events = write_events(spark, folder / "events", 20_000, 5_000)
    wrong: dict[str, list[str]] = {}
    with duckdb.connect() as oracle:
        register_events(oracle, events.path)
        register_arrival(oracle, events.path, events.files_per_micro_batch)
        for query in ("q4", "q9", "q18"):
            job = _job(spark, folder / query)
            read = job.source("events", narrow(file_stream(spark, events), QUERIES[query]))
            declare(query, read).to(changelog_writer(folder / query / "out"), name="result")
            job.await_termination(_started(job.start))
            job.finish()
            oracle.execute(f"CREATE TABLE expected_{query} AS {QUERIES[query].sql}")
            wrong[query] = compare(oracle, f"SELECT * FROM expected_{query}", folder / query / "out").wrong
    return wrong


PROGRAMS: dict[str, Callable[[SparkSession, Path], Any]] = {
    "graph": graph,
    "windows": windows,
    "function": function,
    "initial": initial,
    "errors": errors,
    "refused": refused,
    "batch": batch,
    "modes": modes,
    "lookups": lookups,
    "elsewhere": elsewhere,
    "watched": watched,
    "stopped": stopped,
    "stopped failing": stopped_failing,
    "operator": functools.partial(_run_pausing, "operator"),
    "sink": functools.partial(_run_pausing, "sink"),
    "resumed": resumed,
    "after": after,
    "statements": statements,
    "dropped": dropped,
    "topics": topics,
    "lakes": lakes,
    "lake sources": lake_sources,
    "changed logs": changed_logs,
    "nexmark": nexmark,
}
