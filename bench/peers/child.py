"""What runs in a peer's process.

Owns: the session, the streaming query, the turn that each micro-batch waits for.
Invariant: a micro-batch does nothing before its turn except what Spark does before ``foreachBatch``: planning and
the log of its offsets, which follow the micro-batch before.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from bench.peers.measure import Run, Timed
from bench.peers.ours import SIDE, micro_batches
from bench.peers.spark_plans import NATIVE, PYTHON, spark_conf
from bench.peers.works import PEERS, Peer
from bench.processor_time import spent_seconds, tree_times
from bench.session import batch_seconds, changelog_writer, files_stream, session


class Turns:
    """The other end of the line. ``waited`` has the seconds for which each micro-batch was held up, ``cpu`` the
    processor time when it went on."""

    def __init__(self, line: Connection | None) -> None:
        self._line = line
        self.waited: list[float] = []
        self.cpu: list[dict[int, float] | None] = []

    def wait(self) -> None:
        """Wait for the next micro-batch's turn; without a line nobody else is waiting."""
        started = time.perf_counter()
        if self._line is not None:
            self._line.send(None)
            try:
                self._line.recv()
            except EOFError:
                os._exit(1)  # the process that gives the turns has ended
        self.cpu.append(tree_times(os.getpid()))
        self.waited.append(time.perf_counter() - started)


def carry_out(spark: SparkSession, peer: Peer, work: str, run: Run, turns: Turns) -> Timed:
    """A Run, on a session with ``spark_conf`` if the peer is Spark."""
    wait: Callable[..., object]
    given = run.input
    streams = {table: files_stream(spark, given.folder / table, given.files) for table in given.tables}

    def sink(rows: DataFrame, batch_id: int) -> None:
        """Takes every row of a micro-batch; keeps them if they are to be checked."""
        changelog_writer(run.folder / "sink" if batch_id >= run.first_kept else None)(rows, batch_id)

    if peer.ours:
        # A job of asyncstate has one stream: which table a row is of is in SIDE.
        rows, *others = streams.values()
        for right in others:
            sides = (each.selectExpr("*", f"{side} AS {SIDE}") for side, each in enumerate((rows, right)))
            rows = next(sides).unionByName(next(sides), allowMissingColumns=True)
        job, process = micro_batches(spark, peer, work, run.folder, sink)
        writer, wait = rows.writeStream, job.await_termination
    else:
        plan, mode = PYTHON.get((work, peer.name)) or NATIVE[work]
        process, wait = sink, lambda query: query.awaitTermination()
        writer = plan(streams).writeStream.outputMode(mode)

    def on_batch(rows: DataFrame, batch_id: int) -> None:
        turns.wait()
        process(rows, batch_id)

    writer = writer.foreachBatch(on_batch).option("checkpointLocation", str(run.folder / "query"))
    query = writer.trigger(availableNow=True).start()
    wait(query)
    seconds = [took - waited for took, waited in zip(batch_seconds(query), turns.waited, strict=False)]
    moments = itertools.starmap(spent_seconds, itertools.pairwise(turns.cpu))
    return Timed(seconds, [spent for spent in moments if spent is not None])


def serve(line: Connection, name: str, work: str, folder: Path, cores: int) -> None:
    peer = PEERS[name]
    with session(f"peers-{name}", folder, cores, {} if peer.ours else spark_conf(peer.store)) as spark:
        while True:
            try:
                run = line.recv()
            except EOFError:
                return
            line.send(carry_out(spark, peer, work, run, Turns(line)))
