"""Programs of a client of Spark Connect, each in a process of its own: a process has classic sessions or these."""

from __future__ import annotations

import functools
import json
import logging
import os
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from asyncstate import RecordOperator, ValueStateDescriptor
from asyncstate.errors import ConfigurationError, JobError, OperatorError, SqlError
from asyncstate.operator import InputSpec, RecordContext, Row
from asyncstate.operators import GroupAggregate, WindowAggregate, count, sum_, tumble
from asyncstate.spark import StreamingJob, apply_batch, read_state
from asyncstate.spark.sinks import SqliteTarget, UpsertSink
from asyncstate.spark.sources import json_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from asyncstate.spark import MicroBatch, Progress

ROWS, KEYS = 40, 5
SECONDS_MAX = 120


class Balance(RecordOperator):
    """The sum of each account; a negative amount is an error."""

    def bind(self, inputs: tuple[InputSpec, ...]) -> pa.Schema:
        return pa.schema([("k", pa.int64()), ("total", pa.int64())])

    def open(self, context: Any) -> None:
        self.total = context.get_state(ValueStateDescriptor("total", pa.int64(), default=0))

    async def process(self, row: Row, ctx: RecordContext) -> None:
        if row.v < 0:
            raise ValueError(f"amount {row.v} of account {row.k}")
        total = await self.total.async_value() + row.v
        await self.total.async_update(total)
        ctx.emit(row.k, total)


def main(name: str, url: str, folder: str, mode: str) -> None:
    """Run a program and print what it returns as the last line, in JSON."""
    from pyspark.sql import SparkSession

    logging.basicConfig(level=logging.WARNING)
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
    seen: list[Progress] = []
    job = _job(spark, folder, on_progress=seen.append)
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
        "keys": len(state),
    }


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

    def start(trigger: str) -> StreamingQuery:
        stream = _numbers(spark, folder, 2).writeStream.foreachBatch(on_batch).trigger(**{trigger: True})
        return stream.option("checkpointLocation", str(folder / "query")).start()

    job.await_termination(_started(start))
    rows = spark.read.parquet(place).groupBy("name").max("max(total)").collect()
    return {
        "last": {name: value for name, value in rows},
        "batches": [one["batch_id"] for one in job.history],
    }


def initial(spark: SparkSession, folder: Path) -> Any:
    """A source that starts from a table."""
    job = _job(spark, folder)
    before = spark.sql("SELECT k, 1000L AS v, timestamp_seconds(0) AS at FROM range(5) AS t(k)")
    numbers = job.source("numbers", _numbers(spark, folder, 1), initial=before)
    numbers.apply(_sums(), key="k", uid="sums").to(UpsertSink("k", _new_table(folder)))
    job.await_termination(_started(job.start))
    return dict(_table(folder))


def errors(spark: SparkSession, folder: Path) -> Any:
    """What an operator and a sink raise arrives as it was raised."""
    found = []
    for name, where in (("operator", "v - 30"), ("sink", "v")):
        job = _job(spark, folder / name)
        rows = job.source("numbers", _numbers(spark, folder, 1)).select("k", v=where)
        rows.apply(Balance(), key="k", uid="balance").to(functools.partial(_fail))
        try:
            job.await_termination(_started(job.start))
        except Exception as error:
            found.append([type(error).__name__, str(error), "\n".join(getattr(error, "__notes__", []))])
    try:
        job.sql("SELECT * FROM numbers")
    except ConfigurationError as error:
        found.append([type(error).__name__, str(error), ""])
    job = _job(spark, folder / "refused")
    rows = job.source("numbers", _numbers(spark, folder, 1))
    rows.apply(_sums(), key="k", uid="sums").to(lambda df, batch_id: print(job.name))
    try:
        job.start(trigger="availableNow")
    except JobError as error:
        found.append([type(error).__name__, str(error), ""])
    return found


def _fail(rows: DataFrame, batch_id: int) -> None:
    raise LookupError(f"no place for {rows.count()} rows")


def batch(spark: SparkSession, folder: Path) -> Any:
    """An operator over all rows of a DataFrame."""
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
        apply_batch(Balance(), rows.selectExpr("k", "v - 30 as v"), key="k")
        failed = ""
    except OperatorError as error:
        failed = str(error)
    return {"totals": totals, "ended": ended, "failed": failed}


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
    }


def _ledger_version(job: StreamingJob) -> int:
    latest = job._ledger.latest()
    return -1 if latest is None else latest.batch_id


def killed(spark: SparkSession, folder: Path) -> Any:
    """Half of a story that ends when the server is killed: prints each micro-batch that was committed."""
    job = _job(spark, folder, on_progress=lambda one: print("committed", one["batch_id"], flush=True))
    sums = job.source("numbers", _numbers(spark, folder, 10)).apply(_sums(), key="k", uid="sums")
    sums.to(UpsertSink("k", _new_table(folder)))
    job.await_termination(_started(job.start))
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
    refused = ""
    try:
        job.sql("INSERT INTO totals SELECT k, max(v) AS total FROM numbers GROUP BY k")
    except SqlError as error:
        refused = str(error)
    job.sql(STATEMENT)
    job.await_termination(_started(job.start))
    return {"table": dict(_table(folder)), "refused": refused}


PROGRAMS: dict[str, Callable[[SparkSession, Path], Any]] = {
    "graph": graph,
    "windows": windows,
    "function": function,
    "initial": initial,
    "errors": errors,
    "batch": batch,
    "stopped": stopped,
    "killed": killed,
    "statements": statements,
    "dropped": dropped,
}
