"""One peer in a process of its own: the program ``python -m bench.peers.child``.

Owns: the session, the streaming query, the turn that each micro-batch waits for.
Invariant: a micro-batch does nothing before its turn except what Spark does before ``foreachBatch``: planning and
the log of its offsets, which follow the micro-batch before.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING

import msgspec

from bench.peers.ours import SIDE, micro_batches
from bench.peers.peers import PEERS
from bench.peers.process import GO, Run, Said, Start, Timed
from bench.peers.spark_plans import NATIVE, PYTHON, spark_conf
from bench.processor_time import spent_seconds, tree_times
from bench.session import local_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

Keep = Callable[["DataFrame", int], None]


class Turns:
    """The other end of the line.

    ``waited`` has the seconds for which each micro-batch was held up, ``cpu`` the processor time when it went on.
    """

    def __init__(self, lines: IO[str], out: IO[str]) -> None:
        self._lines = lines
        self._out = out
        self.waited: dict[int, float] = {}
        self.cpu: dict[int, dict[int, float] | None] = {}

    def next_run(self) -> Run | None:
        """The next Run; None when there is none."""
        line = self._lines.readline()
        return msgspec.json.decode(line, type=Run) if line else None

    def wait(self, batch_id: int) -> None:
        """Wait for this micro-batch's turn."""
        started = time.perf_counter()
        self.say(Said(what="ready"))
        if self._lines.readline() != GO:
            os._exit(1)  # the process that gives the turns has ended
        self.cpu[batch_id] = tree_times(os.getpid())
        self.waited[batch_id] = time.perf_counter() - started

    def cpu_seconds(self) -> list[float]:
        """Processor time from each micro-batch's turn to the next one's."""
        read = [self.cpu[batch_id] for batch_id in sorted(self.cpu)]
        spent = [spent_seconds(before, after) for before, after in itertools.pairwise(read)]
        return [seconds for seconds in spent if seconds is not None]

    def clear(self) -> None:
        """Forget the micro-batches of the Run before."""
        self.waited.clear()
        self.cpu.clear()

    def say(self, said: Said) -> None:
        """One line."""
        self._out.write(msgspec.json.encode(said).decode() + "\n")
        self._out.flush()


def _streams(spark: SparkSession, run: Run) -> dict[str, DataFrame]:
    found = {}
    for table in run.input.tables:
        path = str(Path(run.input.folder) / table)
        reader = spark.readStream.schema(spark.read.parquet(path).schema)
        found[table] = reader.option("maxFilesPerTrigger", run.input.files).parquet(path)
    return found


def _one_stream(streams: dict[str, DataFrame]) -> DataFrame:
    """All tables as one stream, because a micro_batch function has one; column SIDE is the table of a row."""
    if len(streams) == 1:
        return next(iter(streams.values()))
    left, right = (
        stream.selectExpr("*", f"{number} AS {SIDE}") for number, stream in enumerate(streams.values())
    )
    return left.unionByName(right, allowMissingColumns=True)


def _sink(run: Run) -> Keep:
    """Takes every row of a micro-batch; keeps them if they are to be checked."""

    def keep(rows: DataFrame, batch_id: int) -> None:
        if batch_id >= run.first_kept:
            rows.write.mode("overwrite").parquet(str(Path(run.folder) / "sink" / f"batch={batch_id:06d}"))
        else:
            rows.write.format("noop").mode("overwrite").save()

    return keep


def run_ours(spark: SparkSession, start: Start, run: Run, turns: Turns) -> Timed:
    """A Run of asyncstate."""
    folder = Path(run.folder)
    job, process = micro_batches(spark, PEERS[start.peer], start.work, folder, _sink(run))

    def on_batch(rows: DataFrame, batch_id: int) -> None:
        turns.wait(batch_id)
        process(rows, batch_id)

    stream = _one_stream(_streams(spark, run)).writeStream.foreachBatch(on_batch)
    query = stream.option("checkpointLocation", str(folder / "query")).trigger(availableNow=True).start()
    job.await_termination(query)
    return Timed(seconds=_seconds(query, turns), cpu_seconds=turns.cpu_seconds())


def run_spark(spark: SparkSession, start: Start, run: Run, turns: Turns) -> Timed:
    """A Run of Spark, on a session with ``spark_conf``."""
    plan, mode = PYTHON.get((start.work, start.peer)) or NATIVE[start.work]
    keep = _sink(run)

    def on_batch(rows: DataFrame, batch_id: int) -> None:
        turns.wait(batch_id)
        keep(rows, batch_id)

    stream = plan(_streams(spark, run)).writeStream.foreachBatch(on_batch).outputMode(mode)
    query = stream.option("checkpointLocation", str(Path(run.folder) / "query"))
    running = query.trigger(availableNow=True).start()
    running.awaitTermination()
    return Timed(seconds=_seconds(running, turns), cpu_seconds=turns.cpu_seconds())


def _seconds(query: StreamingQuery, turns: Turns) -> list[float]:
    by_batch = {update.batchId: update.durationMs["triggerExecution"] for update in query.recentProgress}
    return [by_batch[batch_id] / 1e3 - turns.waited[batch_id] for batch_id in sorted(turns.waited)]


def serve(start: Start, turns: Turns) -> None:
    """Carry out Runs until there are no more."""
    peer = PEERS[start.peer]
    conf = {} if peer.ours else spark_conf(peer.store)
    spark = local_session(f"peers-{peer.name}", Path(start.folder), start.cores, conf)
    carry_out = run_ours if peer.ours else run_spark
    try:
        while (run := turns.next_run()) is not None:
            turns.clear()
            turns.say(Said(what="done", timed=carry_out(spark, start, run, turns)))
    finally:
        spark.stop()


def main() -> None:
    """Read a Start from the first argument, then lines from standard input."""
    # What a JVM or a library prints must not come between the lines: they get a channel of their own.
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    turns = Turns(sys.stdin, out)
    try:
        serve(msgspec.json.decode(sys.argv[1], type=Start), turns)
    except Exception as error:
        traceback.print_exc()
        turns.say(Said(what="failed", error=f"{type(error).__name__}: {error}"[:2000]))
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
