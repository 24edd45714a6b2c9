"""The query under test, as a program: ``python -m tests.cluster.driver SETTINGS.json``.

Owns: the generated source, the query's operators, its sink and the exit codes. A supervisor starts it again as long as
it does not exit with DONE. Whatever makes results differ from run to run (clock, order of arrival, grouping of files)
is fixed, so that every run must end with the same state, byte for byte, and the same rows.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from asyncstate import StateTtl
from asyncstate.errors import CheckpointCorruptionError
from asyncstate.operator import InputSpec, OperatorContext, RecordContext, RecordOperator, Row, Timer
from asyncstate.state import ValueStateDescriptor
from asyncstate.storage import Checkpoint, LocalFiles
from operators import GroupAggregate, Join, count, max_, sum_
from tests.cluster.class_archives import KINDS, java_options, record
from tests.cluster.points import Plan, PlannedRun, hook_driver

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from asyncstate.dataflow import Stream
    from asyncstate.spark import StreamingJob
    from asyncstate.spark.job import BatchFunction

DONE, FAILED, REGROUPED = 0, 1, 3
SINKS = ("totals", "latest", "widths")
UIDS = ("totals", "latest", "sold", "best", "spread", "widths")
PARALLELISM = 2
_SECOND = 1_000_000
_BATCH_SECONDS = 10


@dataclass(frozen=True)
class Settings:
    """One run of the query. ``story`` is its folder, ``source`` and ``classes`` are some that several stories share.

    A life of the driver starts the query up to ``queries`` times, again when it has failed. The run that
    ``leaves_classes`` fills ``classes`` with archives for the JVMs of the others.
    """

    master: str
    source: str
    classes: str
    story: str
    batches: int
    asynchronous: bool
    speculation: bool = False
    queries: int = 1
    leaves_classes: bool = False

    def folder(self, name: str) -> Path:
        return Path(self.story) / name

    def write(self) -> Path:
        path = self.folder("settings.json")
        path.write_text(json.dumps(asdict(self)))
        return path


def generate(folder: Path, batches: int, rows: int, seed: int) -> None:
    """One file a micro-batch: bids, among them new auctions; event time goes on ten seconds a file, half in order."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True)
    for batch in range(batches):
        at = (batch * _BATCH_SECONDS + rng.integers(0, 2 * _BATCH_SECONDS, rows)) * _SECOND
        table = pa.table(
            {
                "id": pa.array(np.arange(rows) + batch * rows),
                "auction": pa.array(rng.integers(0, 60, rows)),
                "bidder": pa.array(rng.integers(0, 150, rows)),
                "price": pa.array(rng.integers(1, 10_000, rows)),
                "opens": pa.array(rng.random(rows) < 0.1),
                "at": pa.array(at, pa.timestamp("us", "UTC")),
            }
        )
        path = folder / f"part-{batch:04d}.parquet"
        pq.write_table(table, path)
        os.utime(path, (1_700_000_000 + batch, 1_700_000_000 + batch))  # Spark reads the oldest first


class LastBid(RecordOperator):
    """A bidder's last bid, put out when the watermark has passed it; a count of bids that expires.

    The count lives by processing time, the bid by event time.
    """

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        return pa.schema([("bidder", pa.int64()), ("id", pa.int64()), ("bids", pa.int64())])

    def open(self, context: OperatorContext) -> None:
        bid = pa.struct([("id", pa.int64()), ("at", pa.int64())])
        self.bid: Any = context.get_state(
            ValueStateDescriptor("bid", bid, ttl=StateTtl("60 seconds", time="event"))
        )
        self.bids: Any = context.get_state(
            ValueStateDescriptor("bids", pa.int64(), ttl=StateTtl("30 seconds"))
        )

    def process(self, row: Row, ctx: RecordContext) -> Any:
        assert ctx.timestamp is not None
        at = ctx.timestamp
        ctx.timers.register_event_time(at)

        def keep(found: tuple[Any, Any]) -> Any:
            bid, bids = found
            done = self.bids.async_update((bids or 0) + 1)
            if bid is None or (bid["at"], bid["id"]) < (at, row["id"]):
                return done.then_combine(
                    self.bid.async_update({"id": row["id"], "at": at}), lambda a, b: None
                )
            return done

        return (
            self.bid.async_value()
            .then_combine(self.bids.async_value(), lambda a, b: (a, b))
            .then_compose(keep)
        )

    def on_timer(self, timer: Timer, ctx: RecordContext) -> Any:
        def emit_results(found: tuple[Any, Any]) -> None:
            bid, bids = found
            if bid is not None and bid["at"] == timer.time:
                ctx.emit(ctx.key[0], bid["id"], bids)

        return (
            self.bid.async_value()
            .then_combine(self.bids.async_value(), lambda a, b: (a, b))
            .then_accept(emit_results)
        )


class BatchClock:
    """Processing time that depends on the micro-batch alone, so that a replay sees the time of the first run."""

    def __init__(self) -> None:
        self.batch_id = 0

    def now_us(self) -> int:
        return (1_000 + self.batch_id * _BATCH_SECONDS) * _SECOND

    def monotonic_ns(self) -> int:
        return self.now_us() * 1_000


class Query:
    """The job's graph and its sinks: a folder a micro-batch, replaced as a whole by a replay.

    Two operators of their own, and a chain: "best" runs in the task of "sold", which has the same key; its rows go to
    "spread", and those of "spread" to "widths", in the same Spark job.
    """

    def __init__(self, settings: Settings, plan: Plan) -> None:
        self._settings = settings
        self._plan = plan

    def declare(self, bids: Stream) -> None:
        self._reach("before stage", bids)
        aggregate = GroupAggregate([count(), sum_("price"), max_("price")])
        totals = bids.drop("opens", "at").apply(aggregate, uid="totals", key="auction")
        latest = bids.apply(
            LastBid(), uid="latest", key="bidder", event_time="at", watermark_delay="2 seconds"
        )
        self._reach("between stages", bids)
        opened = bids.where("opens").select("auction AS of", "id AS opened_by")
        sold = bids.select("auction", "id", "price").join(opened, Join(), uid="sold", key=("auction", "of"))
        best = sold.where("price > 100").apply(
            GroupAggregate([count().alias("pairs"), max_("price").alias("most")]), uid="best", key="of"
        )
        self._reach("before sink", bids)
        totals.to(self._into("totals"), name="into totals")
        self._reach("in sink", bids)
        latest.to(self._into("latest"), name="into latest")
        self._write_chain(best)
        self._reach("after sink", bids)

    def _write_chain(self, best: Stream) -> None:
        """Rows of "best" go on in its task, so that they are not written."""
        spread = best.where("most > 500").apply(
            GroupAggregate([count().alias("auctions"), sum_("most").alias("sum")]), uid="spread", key="pairs"
        )
        widths = spread.apply(
            GroupAggregate([count().alias("spreads"), max_("pairs")]), uid="widths", key="sum"
        )
        widths.to(functools.partial(self._collect, "widths"), name="into widths")

    def _reach(self, point: str, bids: Stream) -> None:
        bids.to(lambda df, batch_id: self._plan.reached(point, batch_id), name=point)

    def _into(self, name: str) -> Callable[[DataFrame, int], None]:
        def write(df: DataFrame, batch_id: int) -> None:
            df.write.mode("overwrite").parquet(str(self._folder(name, batch_id)))

        return write

    def _collect(self, name: str, df: DataFrame, batch_id: int) -> None:
        folder = self._folder(name, batch_id)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        pq.write_table(df.toArrow(), folder / "rows.parquet")

    def _folder(self, name: str, batch_id: int) -> Path:
        return self._settings.folder("sink") / name / f"batch-{batch_id}"


def session(settings: Settings) -> SparkSession:
    from asyncstate.spark import build_session
    from tests.cluster.cluster import JAVA_OPTIONS, LOOPBACK, python_environment

    java = {kind: " ".join((*JAVA_OPTIONS, *java_options(Path(settings.classes), kind))) for kind in KINDS}
    conf = {
        "spark.cores.max": "2",
        "spark.deploy.defaultCores": "2",
        "spark.driver.bindAddress": LOOPBACK,
        "spark.driver.extraJavaOptions": java["driver"],
        "spark.driver.host": LOOPBACK,
        "spark.driver.memory": "512m",
        "spark.executor.cores": "1",
        "spark.executor.extraJavaOptions": java["executor"],
        "spark.executor.memory": "512m",
        "spark.executorEnv.PYTHONPATH": python_environment()["PYTHONPATH"],
        "spark.local.dir": str(settings.folder("spark-local")),
        "spark.log.level": "ERROR",
        "spark.shuffle.io.maxRetries": "2",
        "spark.shuffle.io.retryWait": "200ms",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.fileSource.log.compactInterval": "100000",
        "spark.sql.streaming.metricsEnabled": "false",
        "spark.task.maxFailures": "4",
        "spark.ui.enabled": "false",
        # Enough workers at once, though each has one core only.
        "spark.speculation": str(settings.speculation).lower(),
        "spark.speculation.interval": "50ms",
        "spark.speculation.minTaskRuntime": "200ms",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.quantile": "0.5",
    }
    return build_session("cluster-tests", settings.master, conf)


def source_offset(query: Path, batch_id: int) -> int:
    """The source's offset at the end of a micro-batch: with one file a micro-batch, its number."""
    lines = (query / "offsets" / str(batch_id)).read_text().splitlines()
    return int(json.loads(lines[-1])["logOffset"])


def run(settings: Settings) -> int:
    """A life of the driver."""
    if is_done(settings):
        return DONE
    plan = Plan(Path(settings.story))
    spark = session(settings)
    settings.folder("application").write_text(spark.sparkContext.applicationId or "")
    os.environ["CLUSTER_STORY"] = settings.story
    hook_driver(plan)
    for number in range(1, settings.queries + 1):
        try:
            run_query(spark, settings, plan)
            break
        except CheckpointCorruptionError:
            raise  # that takes more than another start
        except Exception as error:
            if number == settings.queries:
                raise
            print(f"start {number} of the query has failed: {error}"[:2000], file=sys.stderr)
    if settings.leaves_classes:
        record(spark, Path(settings.classes))
    return DONE


def is_done(settings: Settings) -> bool:
    """Whether ``finish()`` has been committed."""
    latest = Checkpoint(LocalFiles(settings.folder("checkpoint"))).latest()
    return latest is not None and latest.final


def run_query(spark: SparkSession, settings: Settings, plan: Plan) -> None:
    """Start the query where it stands, run it to its end and finish the job."""
    if is_done(settings):
        return
    clock = BatchClock()
    options = {
        "async-state.enabled": settings.asynchronous,
        "async-state.parallelism": PARALLELISM,
        "async-state.executor": "spark",  # so that executors have something to lose
        "async-state.local-dir": str(settings.folder("local")),
        "async-state.snapshot-interval": 3,
        "async-state.retained-versions": 3,
    }
    checkpoint = str(settings.folder("checkpoint"))
    run = PlannedRun(settings.story)
    job = watched(settings, plan, clock)(spark, checkpoint, options, name="cluster", _clock=clock, _run=run)
    schema = spark.read.parquet(settings.source).schema
    stream = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(settings.source)
    Query(settings, plan).declare(job.source("bids", stream))
    for place in (
        "in the task of 'sold', which",
        "in the Spark job of 'best',",
        "in the Spark job of 'spread',",
    ):
        assert place in job.explain()
    query = job.start(trigger={"availableNow": True}, query_checkpoint=str(settings.folder("query")))
    job.await_termination(query)
    clock.batch_id = settings.batches
    job.finish()


def watched(settings: Settings, plan: Plan, clock: BatchClock) -> type[StreamingJob]:
    """A job that sets the clock before a micro-batch, and reaches a point behind it."""
    from asyncstate.spark import StreamingJob

    class WatchedJob(StreamingJob):
        def micro_batch(self, function: BatchFunction) -> Callable[[DataFrame, int], None]:
            apply = super().micro_batch(function)

            def on_batch(df: DataFrame, batch_id: int) -> None:
                if source_offset(settings.folder("query"), batch_id) != batch_id:
                    # Killed between two of its own logs, Spark groups the files anew: right, but not comparable.
                    os._exit(REGROUPED)
                clock.batch_id = batch_id
                apply(df, batch_id)
                plan.reached("after batch", batch_id)

            return on_batch

    return WatchedJob


def main(arguments: Sequence[str]) -> int:
    settings = Settings(**json.loads(Path(arguments[0]).read_text()))
    try:
        code = run(settings)
    except Exception as error:
        failure = {"type": type(error).__name__, "message": str(error)}
        settings.folder("failure.json").write_text(json.dumps(failure))
        print(f"{failure['type']}: {failure['message'][:2000]}", file=sys.stderr)
        code = FAILED
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # Spark's own good-bye takes seconds, and the supervisor kills what is left


if __name__ == "__main__":
    main(sys.argv[1:])
