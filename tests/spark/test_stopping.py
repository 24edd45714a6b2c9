"""A job that ends on request: between two micro-batches, nothing lost, nothing said; and what a failed one raises."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from asyncstate.errors import ConfigurationError, JobError
from asyncstate.operator import InputSpec, RecordContext, RecordOperator, Row
from asyncstate.operators import GroupAggregate, count, sum_
from tests.spark.files import numbers_by_key
from tests.spark.modes import ASYNC

pytest.importorskip("pyspark")

from asyncstate.spark.query_start import query_place
from asyncstate.spark.stopping import INTERRUPTED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from asyncstate.spark import StreamingJob


pytestmark = pytest.mark.spark

MakeJob = Callable[..., "StreamingJob"]
SECONDS_MAX = 60
BATCHES = 4


def source(spark: SparkSession, folder: Path) -> DataFrame:
    """A file of ten rows a micro-batch."""
    return numbers_by_key(spark, folder, BATCHES, rows=10, keys=3)


@pytest.mark.parametrize("trigger", ["soon", {"continuous": "1 second"}])
def test_a_start_that_fails_leaves_a_job_that_can_be_started(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path, trigger: Any
) -> None:
    gate = Gate()
    job = build(make_job, source(spark, tmp_path), gate)
    with pytest.raises(ConfigurationError, match="trigger"):
        job.start(trigger=trigger)
    with pytest.raises(ConfigurationError, match="cannot use nowhere://"):
        job.start(query_checkpoint="nowhere://bucket/query")
    (tmp_path / "a-file").touch()
    with pytest.raises(Exception, match="a-file"):  # Spark's own: it is no folder
        job.start(query_checkpoint=str(tmp_path / "a-file" / "query"))
    job.await_termination(job.start(trigger="availableNow"), SECONDS_MAX)
    assert gate.batches == list(range(BATCHES))


def test_a_querys_checkpoint_beside_a_place_that_spark_cannot_use_is_refused(spark: SparkSession) -> None:
    with pytest.raises(ConfigurationError, match=r"options after '\?'.*query_checkpoint="):
        query_place(spark, "s3://key:secret@bucket/job?scheme=http&endpoint_override=host", None)
    with pytest.raises(
        ConfigurationError, match="s3a://, with the package org.apache.hadoop:hadoop-aws"
    ) as refused:
        query_place(spark, "s3://key:secret@bucket/job", None)
    assert "secret" not in str(refused.value)
    assert query_place(spark, "s3://bucket/job?region=x", "/folder") == "/folder"
    assert query_place(spark, "/state/", None) == "/state-query"


class Leaves(RecordOperator):
    """Ends its process at the first row."""

    def bind(self, inputs: Sequence[InputSpec]) -> str:
        return "n bigint"

    def process(self, row: Row, ctx: RecordContext) -> None:
        sys.exit(4)


class Gate:
    """A sink that keeps totals by key, and stands still in one micro-batch until it is let on."""

    def __init__(self, stands_in: int = -1) -> None:
        self.stands_in = stands_in
        self.reached, self.let_on = threading.Event(), threading.Event()
        self.batches: list[int] = []
        self.totals: dict[int, int] = {}

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        rows = df.where("row_kind IN ('+I', '+U')").collect()
        if batch_id == self.stands_in:
            self.reached.set()
            assert self.let_on.wait(SECONDS_MAX)
        self.batches.append(batch_id)
        self.totals |= {row.k: row.total for row in rows}


def build(make_job: MakeJob, stream: DataFrame, sink: Any, async_enabled: bool = True) -> StreamingJob:
    job = make_job(options={"async-state.enabled": async_enabled, "async-state.parallelism": 2})
    totals = GroupAggregate([count().alias("n"), sum_("v").alias("total")])
    job.source("numbers", stream).apply(totals, key="k", uid="totals").to(sink, name="sums")
    return job


@ASYNC
def test_the_micro_batch_at_work_is_committed_and_the_next_start_goes_on(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path, async_enabled: bool
) -> None:
    stream, gate = source(spark, tmp_path), Gate(stands_in=1)
    job = build(make_job, stream, gate, async_enabled)
    query = job.start()
    assert gate.reached.wait(SECONDS_MAX)
    with pytest.raises(JobError, match="did not end within 0.05 s, so the query continues"):
        job.stop(timeout_seconds=0.05)
    assert query.isActive
    # Two at once: both return when it has ended.
    stoppers = [threading.Thread(target=job.stop, args=(query,), daemon=True) for _ in range(2)]
    for stopper in stoppers:
        stopper.start()
    gate.let_on.set()
    for stopper in stoppers:
        stopper.join(SECONDS_MAX)
        assert not stopper.is_alive()
    assert query.exception() is None
    assert not query.isActive
    commits = sorted(int(file.name) for file in (tmp_path / "checkpoint-query" / "commits").glob("[0-9]*"))
    assert commits == gate.batches, "Spark's commit of the last micro-batch is there, too"
    assert commits[:2] == [0, 1]
    assert len(commits) < BATCHES
    job.stop()  # once more
    rest = Gate()
    again = build(make_job, stream, rest, async_enabled)
    again.await_termination(again.start(trigger={"availableNow": True}), SECONDS_MAX)
    assert gate.batches + rest.batches == list(range(BATCHES)), "none is repeated, none left out"
    assert gate.totals | rest.totals == {k: sum(range(k, BATCHES * 10, 3)) for k in range(3)}


def test_a_job_stops_before_its_first_micro_batch_at_rest_and_without_a_query(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path
) -> None:
    stream, gate = source(spark, tmp_path), Gate()
    with build(make_job, stream, gate) as job:
        job.stop()
        query = job.start()  # the end of the block stops it, wherever it is
    assert not query.isActive
    assert query.exception() is None
    with build(make_job, stream, gate) as job:
        query = job.start()
        query.processAllAvailable()
    assert not query.isActive
    assert query.exception() is None
    assert gate.batches == list(range(BATCHES))


def test_stop_is_refused_inside_a_micro_batch(spark: SparkSession, make_job: MakeJob, tmp_path: Path) -> None:
    job: StreamingJob

    def sink(df: DataFrame, batch_id: int) -> None:
        job.stop()

    job = build(make_job, source(spark, tmp_path), sink)
    with pytest.raises(JobError, match="cannot be called inside one"):
        job.await_termination(job.start(), SECONDS_MAX)
    job.stop()  # after a failure there is nothing to stop


def test_what_fails_while_it_is_waited_for_is_raised(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path
) -> None:
    reached, job = threading.Event(), make_job()

    def sink(df: DataFrame, batch_id: int) -> None:
        reached.set()
        deadline = time.monotonic() + SECONDS_MAX
        while job._stopping._query is None and time.monotonic() < deadline:
            reached.wait(0.01)
        raise ZeroDivisionError("at last")

    job.source("numbers", source(spark, tmp_path)).to(sink, name="fails")

    def started_and_stopped() -> None:
        with job:
            job.start()
            assert reached.wait(SECONDS_MAX)

    with pytest.raises(ZeroDivisionError, match="at last"):
        started_and_stopped()


FAILING = """
import sys
import threading
from pathlib import Path
from asyncstate import RecordOperator
from asyncstate.errors import OperatorError
from asyncstate.operators import GroupAggregate, count
from asyncstate.spark import StreamingJob, build_session

spark = build_session("fails", "local[1]", {"spark.ui.enabled": "false"})
spark.range(3).selectExpr("id AS k").write.parquet("source")
print("begins", file=sys.stderr, flush=True)
stream = spark.readStream.schema("k long").parquet("source")

def broken(df, batch_id):
    if batch_id == 0:
        raise ZeroDivisionError("the sink has failed")

with StreamingJob(spark, "state", {"async-state.local-dir": "local"}, name="fails") as job:
    job.source("rows", stream).apply(GroupAggregate([count().alias("n")]), key="k", uid="n").to(broken, name="target")
    try:
        job.await_termination(job.start())
    except ZeroDivisionError as error:
        import traceback
        traceback.print_exception(error)
with StreamingJob(spark, "other", {"async-state.local-dir": "local"}, name="goes-on") as job:
    job.source("rows", stream).apply(GroupAggregate([count().alias("n")]), key="k", uid="n").to(lambda df, i: None)
    job.start().processAllAvailable()
print("ends", file=sys.stderr, flush=True)

class Broken(RecordOperator):
    def bind(self, inputs):
        return "n bigint"
    def process(self, row, ctx):
        if row.k == 2:
            raise ValueError("the operator has failed")

job = StreamingJob(spark, "third", {"async-state.local-dir": "local"}, name="broken")
job.source("rows", stream).apply(Broken(), key="k", uid="b").to(lambda df, i: df.count())
try:
    job.await_termination(job.start())
except OperatorError as error:
    assert "key (2,): ValueError: the operator has failed" in str(error)
print("operator ends", file=sys.stderr, flush=True)

at_work = threading.Event()

def endless(df, batch_id):
    at_work.set()
    while True:
        df.count()

job = StreamingJob(spark, "fourth", {"async-state.local-dir": "local"}, name="broken-off")
job.source("rows", stream).apply(GroupAggregate([count().alias("n")]), key="k", uid="n").to(endless)
query = job.start()
assert at_work.wait(60)
query.stop()
assert query.exception() is None
print("stop ends", file=sys.stderr, flush=True)
"""


def test_a_failing_sink_is_shown_once_and_a_stop_not_at_all(tmp_path: Path) -> None:
    """In a process of its own, as a user sees it: nothing is printed between but the traceback of the sink; of what
    fails in a task a line of Spark's, and of a micro-batch that ``query.stop()`` breaks off nothing."""
    (tmp_path / "fails.py").write_text(FAILING)
    done = subprocess.run(
        [sys.executable, "fails.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    said = done.stderr.split("begins\n")[1].split("ends\n")[0]
    assert said.count("ZeroDivisionError: the sink has failed") == 1
    assert "in sink 'target'" in said
    assert "in micro-batch 0 of job 'fails'" in said
    files = [line.split('"')[1] for line in said.splitlines() if line.startswith("  File")]
    assert [Path(file).name for file in files] == ["fails.py", "job.py", "fails.py"], said
    assert not re.search(r"at org\.apache|ERROR|WARN|Py4J", said), said
    failed, stopped = done.stderr.split("\nends\n")[1].split("stop ends\n")[0].split("operator ends\n")
    assert re.fullmatch(r"(?:.* Task \d in stage \d+\.0 failed 1 times; aborting job\n)?", failed), failed
    assert stopped == ""


@pytest.mark.parametrize("leaving", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()], ids=repr)
@pytest.mark.parametrize("async_enabled", [False, True])
def test_what_would_end_the_process_in_a_sink_ends_the_query(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path, leaving: BaseException, async_enabled: bool
) -> None:
    def sink(df: DataFrame, batch_id: int) -> None:
        raise leaving

    job = build(make_job, source(spark, tmp_path), sink, async_enabled)
    query = job.start()
    with pytest.raises(JobError, match=re.escape(repr(leaving))) as raised:
        job.await_termination(query, SECONDS_MAX)
    assert raised.value.__cause__ is leaving
    assert not query.isActive
    job.stop()


@pytest.mark.parametrize("async_enabled", [False, True])
def test_sys_exit_in_an_operator_is_an_error_of_its_task(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path, async_enabled: bool
) -> None:
    job = make_job(options={"async-state.enabled": async_enabled})
    job.source("numbers", source(spark, tmp_path)).apply(Leaves(), key="k", uid="leaves").to(print)
    with pytest.raises(JobError, match=r"operator 'leaves' raised SystemExit\(4\).*Raise an error instead"):
        job.await_termination(job.start(), SECONDS_MAX)


@pytest.mark.parametrize(
    "between", [r".+(\r\n|\r|\n): (", r"((.|\r\n|\r|\n)*)("], ids=["3.5", "4.0 and newer"]
)
def test_spark_recognizes_the_interruption(between: str) -> None:
    """The patterns of its `StreamExecution`."""
    begins = "py4j.protocol.Py4JJavaError: An error occurred while calling"
    assert re.search(f"{begins}{between}java.lang.InterruptedException)", f"Traceback\n{INTERRUPTED}\n")
