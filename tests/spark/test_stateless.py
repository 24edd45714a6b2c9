"""Stateless operators on Spark: they run in the stage that reads their rows, and are in no manifest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark.sql import DataFrame, SparkSession

from asyncstate.errors import JobError, OperatorError, SchemaError
from asyncstate.operator import MIN_WATERMARK
from asyncstate.spark import MicroBatch, StreamingJob
from asyncstate.spark.python_task import StatelessTask
from asyncstate.testing import OperatorHarness
from operators import GroupAggregate, WindowRank, WindowTableFunction, count, desc, hop, tumble
from tests.spark.modes import ASYNC
from tests.spark.stateless_parts import Noted, Strict

pytestmark = pytest.mark.spark

MakeJob = Callable[..., StreamingJob]


def timed(spark: SparkSession, *rows: tuple[int, int | None]) -> DataFrame:
    """Rows of an id and seconds."""
    given = spark.createDataFrame(list(rows), "id long, seconds long")
    return given.selectExpr("id", "timestamp_seconds(seconds) as `at.time`")


@pytest.mark.executors  # in the driver, small deltas are one file
def test_it_runs_with_what_reads_it(spark: SparkSession, make_job: MakeJob, run_log: str) -> None:
    lines: list[int] = []
    job = make_job()

    def notes() -> int:
        return len(Path(run_log).read_text().splitlines())

    def use(df: DataFrame, batch: MicroBatch) -> None:
        noted = batch.apply(Noted(run_log), df, uid="noted")
        again = batch.apply(Noted(run_log), noted, uid="again")
        lines.append(notes())
        counted = batch.apply(GroupAggregate([count()]), again, uid="counted", key="id")
        lines.append(notes())
        assert counted.count() == 4
        lines.append(notes())
        assert sorted(map(tuple, noted.collect())) == [(number, "+I") for number in range(4)]
        lines.append(notes())

    job.micro_batch(use)(spark.range(0, 4, 1, 2), 0)
    assert lines == [0, 4, 4, 6]  # two parts, two operators; the stage of the one with state is not run again
    manifest = job._ledger.latest()
    assert manifest is not None
    assert list(manifest.operators) == ["counted"]
    assert list(job.history[-1]["operators"]) == ["counted"]
    folders = {path.name for path in Path(job._ledger.place).rglob("*")}
    assert "counted" in folders
    assert not folders & {"noted", "again"}


@pytest.mark.parametrize("zone", ["UTC", "America/Sao_Paulo"])
@ASYNC
def test_windows_and_what_ranks_them(
    spark: SparkSession, make_job: MakeJob, async_enabled: bool, zone: str
) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", zone)
    job = make_job(session, options={"async-state.enabled": async_enabled})
    found: list[Any] = []

    def use(df: DataFrame, batch: MicroBatch) -> None:
        windows = batch.apply(
            WindowTableFunction(hop("10 seconds", "5 seconds")), df, uid="windows", event_time="at.time"
        )
        ranked = batch.apply(
            WindowRank(desc("id"), 1),
            windows.drop("row_kind"),
            uid="best",
            event_time="at.time",
            watermark_delay="0 seconds",
        )
        kept = ranked.selectExpr("id", "unix_seconds(window_start)", "unix_seconds(window_end)", "row_kind")
        found.extend(map(tuple, kept.collect()))

    on_batch = job.micro_batch(use)
    on_batch(timed(session, (1, 6), (2, 9), (7, None)), 0)
    on_batch(timed(session, (3, 40)), 1)
    assert found == []
    job.finish()
    assert sorted(found) == [
        (2, 0, 10, "+I"),
        (2, 5, 15, "+I"),
        (3, 35, 45, "+I"),
        (3, 40, 50, "+I"),
    ]
    assert [len(one["operators"]) for one in job.history] == [1, 1, 1]


READS: dict[str, Callable[[DataFrame, MicroBatch], object]] = {
    "an operator": lambda rows, batch: batch.apply(GroupAggregate([count()]), rows, uid="n", key="id"),
    "an action": lambda rows, batch: rows.collect(),
    "a write": lambda rows, batch: rows.write.format("noop").mode("overwrite").save(),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS.keys())
def test_its_errors_come_from_whatever_reads_it(
    spark: SparkSession, make_job: MakeJob, async_enabled: bool, read: Any
) -> None:
    job = make_job(options={"async-state.enabled": async_enabled})
    job.micro_batch(lambda df, batch: read(batch.apply(Strict(2), df, uid="strict"), batch))
    with pytest.raises(
        OperatorError, match=r"^operator 'strict', key \(\): ValueError: no 2, please"
    ) as raised:
        job._run(spark.range(4), 0, final=False)
    assert "in the Python worker" in str(raised.value.__cause__)
    assert job.last_error is raised.value
    assert job._ledger.latest() is None


def test_a_worker_that_ends(spark: SparkSession, make_job: MakeJob) -> None:
    ended = "a Python worker ended while it ran"

    def use(df: DataFrame, batch: MicroBatch) -> None:
        strict = batch.apply(Strict(2, "exit"), df, uid="strict")
        if batch.final:
            strict.collect()
        else:
            batch.apply(GroupAggregate([count()]), strict, uid="n", key="id")

    job = make_job()
    job.micro_batch(use)
    with pytest.raises(
        JobError, match=rf"^operator 'n' .*{ended} the operator, or a stateless one \(strict\)"
    ):
        job._run(spark.range(4), 0, final=False)
    with pytest.raises(JobError, match=rf"^batch 0: {ended} code of .*, or a stateless one \(strict\)"):
        job._run(spark.range(4), 0, final=True)


def test_a_query_with_one_in_front(spark: SparkSession, make_job: MakeJob, tmp_path: Path) -> None:
    found: list[Any] = []
    job = make_job()

    @job.micro_batch
    def run(df: DataFrame, batch: MicroBatch) -> None:
        strict = batch.apply(Strict(3), df, uid="strict")
        counted = batch.apply(GroupAggregate([count()]), strict, uid="n")
        found.extend(map(tuple, counted.collect()))

    spark.range(3).write.parquet(str(tmp_path / "rows"))
    stream = spark.readStream.schema("id long").parquet(str(tmp_path / "rows"))
    started = stream.writeStream.foreachBatch(run).option("checkpointLocation", str(tmp_path / "query"))
    query = started.trigger(availableNow=True).start()
    assert job.await_termination(query, 60)
    assert found[-1] == (3, "+I")
    spark.range(3, 4).write.mode("append").parquet(str(tmp_path / "rows"))
    with pytest.raises(OperatorError, match=r"operator 'strict', key \(\): ValueError: no 3, please"):
        job.await_termination(started.start())


def test_kinds_pass_and_wrong_ones_are_told(spark: SparkSession, make_job: MakeJob) -> None:
    found: list[Any] = []

    def use(df: DataFrame, batch: MicroBatch) -> None:
        found.extend(map(tuple, batch.apply(Strict(), df, uid="strict").collect()))

    job = make_job()
    on_batch = job.micro_batch(use)
    on_batch(spark.createDataFrame([("-D", 3), ("+U", 4)], "row_kind string, id long"), 0)
    assert sorted(found) == [(3, "-D"), (4, "+U")]
    with pytest.raises(SchemaError, match="column 'row_kind' has the value 'insert'"):
        on_batch(spark.createDataFrame([("insert", 3)], "row_kind string, id long"), 1)
    job.finish()
    assert job.last_progress is not None
    assert job.last_progress["operators"] == {}


def test_what_is_refused(spark: SparkSession, make_job: MakeJob) -> None:
    given: dict[str, Any] = {"watermark_delay": "1 second"}
    windows = WindowTableFunction(tumble("1 second"))

    def use(df: DataFrame, batch: MicroBatch) -> None:
        batch.apply(windows, *inputs * [df], uid="windows", event_time="at.time", **given)

    inputs = 1
    on_batch = make_job().micro_batch(use)
    with pytest.raises(JobError, match="'windows' .* leave watermark_delay out and declare it at the next"):
        on_batch(timed(spark, (1, 1)), 0)
    given = {"key": "id"}
    with pytest.raises(JobError, match="its rows are not exchanged; leave key out"):
        on_batch(timed(spark, (1, 1)), 0)
    for inputs in (0, 2):
        with pytest.raises(JobError, match=f"takes 1 inputs but got {inputs}; give one for each"):
            on_batch(timed(spark, (1, 1)), 0)


def test_a_call_that_failed_stops_the_commit(spark: SparkSession, make_job: MakeJob) -> None:
    def use(df: DataFrame, batch: MicroBatch) -> None:
        batch.apply(Strict(), df, uid="good")
        with pytest.raises(JobError):
            batch.apply(Strict(), df, uid="bad", key="id")

    with pytest.raises(JobError, match=r"apply failed for \['bad'\]"):
        make_job().micro_batch(use)(spark.range(4), 0)


def test_a_worker_tells_once_what_was_counted(async_enabled: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Progress has no counters of it: whoever sums over runs that may be repeated gets a wrong sum."""
    schema = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", tz="UTC"))])
    windows = WindowTableFunction(tumble("1 second"))
    with OperatorHarness(
        windows, schema, None, event_time="at", changelog=False, async_enabled=async_enabled
    ) as harness:
        spec = replace(harness._spec(None, MIN_WATERMARK), uid=f"windows-{async_enabled}")
        wire = harness.output_schema.append(pa.field("row_kind", pa.string()))
        batch = pa.record_batch([[1, 2, 3], [5, None, -(2**63)]], schema=schema)
        for _ in range(2):
            (out,) = StatelessTask(spec, wire)(iter([batch]))
            assert out.num_rows == 1
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2
    assert "null_event_times is 1 in one part of batch 0" in told[0] + told[1]
    assert "event_times_out_of_range is 1 in one part" in told[0] + told[1]


def test_its_rows_are_not_read_later(spark: SparkSession, make_job: MakeJob) -> None:
    kept: list[DataFrame] = []
    make_job().micro_batch(lambda df, batch: kept.append(batch.apply(Strict(), df, uid="strict")))(
        spark.range(4), 0
    )
    with pytest.raises(JobError, match="output of operator 'strict' in batch 0 is read after"):
        kept[0].count()


def test_one_that_becomes_stateless_leaves_the_manifest(
    spark: SparkSession, make_job: MakeJob, run_log: str
) -> None:
    """It also moves no watermark any more, which would stand still for ever."""
    stateless = False

    def use(df: DataFrame, batch: MicroBatch) -> None:
        delay = None if stateless else "1 second"
        rows = batch.apply(
            Noted(run_log, stateless), df, uid="noted", event_time="at.time", watermark_delay=delay
        )
        counted = GroupAggregate([count()])
        batch.apply(
            counted, rows, uid="counted", key="id", event_time="at.time", watermark_delay="1 second"
        ).count()

    job = make_job()
    on_batch = job.micro_batch(use)
    for number in range(4):
        stateless = number >= 2
        on_batch(timed(spark, (1, 10 * number)), number)
    manifest = job._ledger.latest()
    assert manifest is not None
    assert list(manifest.operators) == ["counted"]
    assert manifest.sources == {"counted:0": 29_000_000}
    watermarks = [one["watermark_us"] for one in job.history]
    assert watermarks == [None, -1_000_000, 9_000_000, 19_000_000]
