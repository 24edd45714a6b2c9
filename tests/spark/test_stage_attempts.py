"""Rows and state of one micro-batch come from the same attempt, or the micro-batch fails.

Of two attempts at a partition Spark may keep the rows of one and give us the report of the other, as with speculation;
the tests have the accumulator say so. And rows may be lost before the stage's action has ended: partition 1 waits until
the rows of partition 0, whose report the driver has, were thrown away.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark.sql import DataFrame, SparkSession

from asyncstate.errors import JobError
from asyncstate.runtime import CommitRecord, InputBatch, TaskSpec
from asyncstate.spark import MicroBatch, StreamingJob
from asyncstate.spark.column_types import ATTEMPT_BYTES
from asyncstate.spark.report_accumulator import ReportAccumulator
from asyncstate.spark.reports import Report, pack
from asyncstate.storage import Checkpoint, LocalFiles
from tests.spark.parts import Echo, echo, runs

pytestmark = [pytest.mark.spark, pytest.mark.executors]

MakeJob = Callable[..., StreamingJob]
Read = Callable[[DataFrame], Any]
Found = Callable[[ReportAccumulator], list[bytes] | None]
DEADLINE_S = 60.0


def until(holds: Callable[[], bool]) -> None:
    """Poll with a bound."""
    deadline = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.01)


def gated_echo(
    spec: TaskSpec, partitions: range, batches: Iterator[InputBatch]
) -> Iterator[pa.RecordBatch | CommitRecord]:
    """``echo``, but partition 1 waits for the file that stands beside the log."""
    yield from echo(spec, partitions, batches)
    assert isinstance(spec.operator, Echo)
    if 1 in partitions:
        until(Path(f"{spec.operator.log}.gate").exists)


class Dropping(threading.Thread):
    """Throws the rows of partition 0 away as soon as they are kept, as the loss of an executor does."""

    def __init__(self, spark: SparkSession, gate: Path) -> None:
        super().__init__(daemon=True)
        self._context: Any = spark.sparkContext
        self._gate = gate
        self._before = self._stored()

    def run(self) -> None:
        until(lambda: bool(self._stored() - self._before))
        for rdd in self._stored() - self._before:
            self._drop(rdd)
        until(lambda: not self._stored() - self._before)
        self._gate.touch()

    def _stored(self) -> set[int]:
        """The RDDs of which Spark keeps a partition."""
        infos = self._context._jsc.sc().getRDDStorageInfo()
        return {info.id() for info in infos if info.numCachedPartitions()}

    def _drop(self, rdd: int) -> None:
        """``SparkEnv.get.blockManager.master.removeBlock``; py4j cannot look at these classes as a whole."""
        jvm = self._context._jvm
        handles = jvm.java.lang.invoke.MethodHandles.publicLookup()
        method_type = jvm.java.lang.invoke.MethodType.methodType

        def named(name: str) -> Any:
            return jvm.java.lang.Class.forName(f"org.apache.spark.{name}")

        env, manager = named("SparkEnv"), named("storage.BlockManager")
        master, block = named("storage.BlockManagerMaster"), named("storage.BlockId")
        found = handles.findStatic(env, "get", method_type(env)).invokeWithArguments([])
        found = handles.findVirtual(env, "blockManager", method_type(manager)).invokeWithArguments([found])
        found = handles.findVirtual(manager, "master", method_type(master)).invokeWithArguments([found])
        remove = handles.findVirtual(master, "removeBlock", method_type(jvm.java.lang.Void.TYPE, block))
        remove.invokeWithArguments([found, jvm.org.apache.spark.storage.RDDBlockId(rdd, 0)])


READS: dict[str, Read] = {
    "all": lambda df: df.collect(),
    "count": lambda df: df.count(),
    "first row": lambda df: df.where("partition = 0").limit(1).collect(),
    "filtered": lambda df: df.where("id > 1000000").collect(),
    "one column": lambda df: df.select("id").distinct().collect(),
    "no null": lambda df: df.dropna().selectExpr("id + 1 as next").where("next > 1000000").collect(),
}


def run(spark: SparkSession, job: StreamingJob, log: str, read: Read, drop: bool) -> None:
    @job.micro_batch
    def on_batch(df: DataFrame, batch: MicroBatch) -> None:
        read(batch.apply(Echo(log), df, uid="e", key="id"))

    gate = Path(f"{log}.gate")
    dropping = Dropping(spark, gate)
    if drop:
        dropping.start()
    else:
        gate.touch()
    on_batch(spark.range(0, 40, 1, 1), 0)


def reported_by_others(found: Found) -> Found:
    """As if other attempts than those whose rows are kept had reported, one a partition."""

    def other(told: ReportAccumulator) -> list[bytes] | None:
        reports = []
        for packed in found(told) or []:
            report = msgspec.msgpack.decode(packed[ATTEMPT_BYTES:], type=Report)
            attempt = bytes(reversed(report.attempt))
            reports.append(attempt + pack(msgspec.structs.replace(report, attempt=attempt)))
        return reports

    return other


@pytest.mark.parametrize("name", READS)
def test_rows_of_another_attempt_are_not_given_out(
    spark: SparkSession,
    make_job: MakeJob,
    tmp_path: Path,
    run_log: str,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    monkeypatch.setattr(ReportAccumulator, "found", reported_by_others(ReportAccumulator.found))
    options = {"async-state.parallelism": 2}
    with pytest.raises(JobError, match="operator 'e', batch 0: .*restart the query"):
        run(spark, make_job(run=gated_echo, options=options), run_log, READS[name], drop=False)
    assert runs(run_log) == [0, 1]
    assert Checkpoint(LocalFiles(tmp_path / "checkpoint")).latest() is None


@pytest.mark.parametrize("attempts", ["two at each", "none that reported"])
def test_reports_are_those_of_the_rows_kept_where_attempts_are_not_one_a_partition(
    spark: SparkSession,
    make_job: MakeJob,
    tmp_path: Path,
    run_log: str,
    monkeypatch: pytest.MonkeyPatch,
    attempts: str,
) -> None:
    found, others = ReportAccumulator.found, reported_by_others(ReportAccumulator.found)

    def told_otherwise(told: ReportAccumulator) -> list[bytes] | None:
        mine = list(told.reports.value)
        told.reports.value = [*mine, *(others(told) or [])] if attempts.startswith("two") else []
        return found(told)

    monkeypatch.setattr(ReportAccumulator, "found", told_otherwise)
    seen: list[int] = []
    job = make_job(run=gated_echo, options={"async-state.parallelism": 2})
    run(spark, job, run_log, lambda df: seen.extend(row.id for row in df.collect()), drop=False)
    assert sorted(seen) == list(range(40))
    assert Checkpoint(LocalFiles(tmp_path / "checkpoint")).versions() == [0]


@pytest.mark.smoke
@pytest.mark.long
@pytest.mark.classic
def test_the_replay_is_good(spark: SparkSession, make_job: MakeJob, tmp_path: Path, run_log: str) -> None:
    job = make_job(run=gated_echo, options={"async-state.parallelism": 2})
    with pytest.raises(JobError, match="replay the batch"):
        run(spark, job, run_log, READS["all"], drop=True)
    Path(f"{run_log}.gate").unlink()
    seen: list[int] = []
    again = make_job(run=gated_echo, options={"async-state.parallelism": 2})
    run(spark, again, run_log, lambda df: seen.extend(row.id for row in df.collect()), drop=False)
    assert sorted(seen) == list(range(40))
    assert Checkpoint(LocalFiles(tmp_path / "checkpoint")).versions() == [0]


def test_rows_that_spark_has_lost_say_what_to_do(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path, run_log: str
) -> None:
    def read(df: DataFrame) -> None:
        dropping = Dropping(spark, Path(f"{run_log}.gate"))
        for rdd in dropping._stored():
            dropping._drop(rdd)
        df.collect()

    job = make_job(run=gated_echo, options={"async-state.parallelism": 2})
    with pytest.raises(JobError, match="batch 0: an executor was lost.*restart the query"):
        run(spark, job, run_log, read, drop=False)
    assert runs(run_log) == [0, 1]
    assert Checkpoint(LocalFiles(tmp_path / "checkpoint")).versions() == []


def test_without_a_loss_every_row_is_given_out(spark: SparkSession, make_job: MakeJob, run_log: str) -> None:
    counts: list[int] = []
    job = make_job(run=gated_echo, options={"async-state.parallelism": 2})
    run(spark, job, run_log, lambda df: counts.extend([df.count(), len(df.collect())]), drop=False)
    assert counts == [40, 40]
