"""The Spark session of a benchmark: local, quiet, everything it writes below one folder."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from asyncstate.driver.chain import RunPartitions
from asyncstate.spark import MicroBatch, StreamingJob, build_session
from bench.frame import LOG, ROOT

Conf = Mapping[str, str]


def local_conf(folder: Path, cores: int) -> dict[str, str]:
    """Settings that every benchmark shares, whatever runs in the session."""
    return {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.executorEnv.PYTHONPATH": str(ROOT),
        "spark.local.dir": str(folder / "spark"),
        "spark.log.level": "ERROR",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.shuffle.partitions": str(cores),
        "spark.sql.streaming.numRecentProgressUpdates": "100000",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
    }


@contextmanager
def session(name: str, folder: Path, cores: int, conf: Conf | None = None) -> Iterator[SparkSession]:
    """A session on ``cores`` local cores with ``local_conf`` overlaid by ``conf``, stopped at the end. What its JVM and
    its Python workers ever write to stderr, a lot on a good run, goes to ``LOG`` in ``folder``. Raises
    EnvironmentSetupError if the machine has no JDK that Spark can start."""
    folder.mkdir(parents=True, exist_ok=True)
    stderr = os.dup(2)
    with (folder / LOG).open("ab") as log:
        os.dup2(log.fileno(), 2)
    try:
        spark = build_session(name, f"local[{cores}]", local_conf(folder, cores) | dict(conf or {}))
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
    try:
        yield spark
    finally:
        spark.stop()


def changelog_writer(folder: Path | None) -> Callable[[DataFrame, int], None]:
    """A sink that writes the rows of a micro-batch into a folder named by it, or nowhere. One that is repeated counts
    once."""

    def write(changelog: DataFrame, batch_id: int) -> None:
        if folder is None:
            changelog.write.format("noop").mode("overwrite").save()
        else:
            changelog.write.mode("overwrite").parquet(str(folder / f"batch={batch_id:06d}"))

    return write


def batch_seconds(query: StreamingQuery) -> list[float]:
    """Seconds of each micro-batch of a query, from trigger to commit, in their order."""
    found = {one["batchId"]: one["durationMs"]["triggerExecution"] / 1e3 for one in query.recentProgress}
    return [found[batch_id] for batch_id in sorted(found)]


def files_stream(spark: SparkSession, folder: Path, files: int) -> DataFrame:
    """The Parquet files of a folder as a stream, so many a micro-batch."""
    reader = spark.readStream.schema(spark.read.parquet(str(folder)).schema)
    return reader.option("maxFilesPerTrigger", files).parquet(str(folder))


def run_to_end(job: StreamingJob, checkpoint: Path) -> StreamingQuery:
    """Run a job over all that its sources have; its query, which has ended."""
    query = job.start(trigger={"availableNow": True}, query_checkpoint=str(checkpoint))
    job.await_termination(query)
    return query


class JobSide:
    """A job on Spark below ``folder`` that is given micro-batch after micro-batch, for ``turns``."""

    def __init__(
        self,
        spark: SparkSession,
        folder: Path,
        apply: Callable[[DataFrame, MicroBatch], None],
        run: RunPartitions | None = None,
        options: Mapping[str, object] | None = None,
    ) -> None:
        own = {"async-state.local-dir": str(folder / "local"), **(options or {})}
        self.job = StreamingJob(spark, str(folder / "checkpoint"), own, _run=run)
        self._run, self._batches = self.job.micro_batch(apply), itertools.count()

    def __call__(self, rows: DataFrame) -> None:
        self._run(rows, next(self._batches))

    def metrics(self, uid: str) -> Any:
        """Of this operator in the last micro-batch."""
        return self.job.history[-1]["operators"][uid]
