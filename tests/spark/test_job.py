"""The job: order of batches, commit, replay, watermark, finish; what it refuses before a row is read."""

from __future__ import annotations

import json
import logging
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark.sql import DataFrame, SparkSession

from asyncstate.clock import ManualClock
from asyncstate.errors import (
    AsyncStateError,
    CheckpointError,
    ConcurrentJobError,
    ConfigurationError,
    JobError,
    SchemaError,
    StateDeclarationError,
)
from asyncstate.operator import MAX_WATERMARK, MIN_WATERMARK
from asyncstate.spark import MicroBatch, Progress, StreamingJob
from asyncstate.spark.connect_batch import ConnectJob
from asyncstate.spark.connect_files import ConnectFiles
from asyncstate.storage.checkpoint import Checkpoint
from asyncstate.storage.files import LocalFiles
from asyncstate.storage.manifest import AppliedTimes, Manifest
from operators import GroupAggregate, WindowAggregate, count, sum_, tumble
from tests.spark.parts import Echo, RunningTotal, echo, runs

pytestmark = pytest.mark.spark

MakeJob = Callable[..., StreamingJob]
SECOND = 1_000_000


@pytest.fixture
def rows(spark: SparkSession) -> DataFrame:
    return spark.sql("select id, id % 3 as k, timestamp_seconds(100 + id) as at, 'x' as text from range(4)")


@pytest.fixture
def job(make_job: MakeJob) -> StreamingJob:
    return make_job(run=echo, options={"async-state.parallelism": 1})


def committed(tmp_path: Path) -> Manifest | None:
    return Checkpoint(LocalFiles(tmp_path / "checkpoint")).latest()


def never_called(df: DataFrame, batch: MicroBatch) -> None:
    raise AssertionError("the function must not run")


# order and commit


def test_a_batch_without_apply_counts(job: StreamingJob, rows: DataFrame, tmp_path: Path) -> None:
    on_batch = job.micro_batch(lambda df, batch: None)
    on_batch(rows, 0)
    on_batch(rows, 1)
    manifest = committed(tmp_path)
    assert manifest is not None
    assert (manifest.job_id, manifest.batch_id, manifest.base, manifest.operators) == ("job", 1, 0, {})


@pytest.mark.smoke
def test_nothing_is_committed_when_the_function_fails(
    job: StreamingJob, rows: DataFrame, tmp_path: Path, run_log: str
) -> None:
    def fail(df: DataFrame, batch: MicroBatch) -> None:
        batch.apply(Echo(run_log), df, uid="e")
        raise ValueError("the sink is down")

    with pytest.raises(ValueError, match="the sink is down"):
        job.micro_batch(fail)(rows, 0)
    assert committed(tmp_path) is None
    assert job.last_progress is None
    assert isinstance(job.last_error, ValueError)


def test_a_job_on_a_server_has_the_settings_of_the_clients_session(
    spark: SparkSession, tmp_path: Path
) -> None:
    """They are read when the client makes the job, and not again."""
    session = spark.newSession()
    session.conf.set("spark.async-state.in-flight-limit", "77")
    job = StreamingJob(session, str(tmp_path / "state"), {"async-state.buffer-size": 5}, "job")
    session.conf.set("spark.async-state.in-flight-limit", "78")
    ConnectFiles(LocalFiles(tmp_path / "state"), "run").begin()
    told = ConnectJob(job._arguments, "run", "mark", lambda df, batch: None, None, {}, {})
    on_server = StreamingJob.on_server(session, pickle.loads(pickle.dumps(told._replace(function=None))))
    assert on_server.config == job.config
    assert (on_server.config.in_flight_limit, on_server.config.buffer_size) == (77, 5)


def test_a_swallowed_apply_error_does_not_commit(
    job: StreamingJob, rows: DataFrame, tmp_path: Path, run_log: str
) -> None:
    def swallow(df: DataFrame, batch: MicroBatch) -> None:
        with pytest.raises(SchemaError):
            batch.apply(Echo(run_log), df, uid="e", key="nothing")

    with pytest.raises(JobError, match="apply failed for \\['e'\\]"):
        job.micro_batch(swallow)(rows, 0)
    assert committed(tmp_path) is None


@pytest.mark.smoke
@pytest.mark.long
def test_the_newest_batch_is_replayed_over_its_own_base(
    make_job: MakeJob, rows: DataFrame, tmp_path: Path, run_log: str
) -> None:
    seen: list[int] = []

    def use(df: DataFrame, batch: MicroBatch) -> None:
        seen.append(batch.watermark)
        batch.apply(Echo(run_log), df, uid="e", event_time="at", watermark_delay="1 second")

    options = {"async-state.parallelism": 1, "async-state.retained-versions": 1}
    on_batch = make_job(run=echo, options=options).micro_batch(use)
    on_batch(rows.where("id < 1"), 0)
    on_batch(rows.where("id < 2"), 1)
    on_batch(rows, 2)
    again = make_job(run=echo, options=options).micro_batch(use)
    again(rows.where("id < 3"), 2)

    assert seen == [MIN_WATERMARK, 99 * SECOND, 100 * SECOND, 100 * SECOND]
    manifest = committed(tmp_path)
    assert manifest is not None
    assert (manifest.batch_id, manifest.base) == (2, 1)
    assert list(manifest.sources.values()) == [101 * SECOND]  # of the replay, not of the batch it replaced
    with pytest.raises(ConcurrentJobError):
        on_batch(rows, 3)


@pytest.mark.parametrize("batch_id", [0, 3, 7])
def test_batches_out_of_order_are_refused(job: StreamingJob, rows: DataFrame, batch_id: int) -> None:
    on_batch = job.micro_batch(lambda df, batch: None)
    on_batch(rows, 0)
    on_batch(rows, 1)
    with pytest.raises(JobError, match=rf"runs batch {batch_id}, but the checkpoint .* is at batch 1"):
        on_batch(rows, batch_id)


def test_a_lost_checkpoint_is_noticed(make_job: MakeJob, rows: DataFrame) -> None:
    with pytest.raises(JobError, match="Was it deleted"):
        make_job(run=echo).micro_batch(never_called)(rows, 5)
    make_job(run=echo, first_batch_id=5).micro_batch(lambda df, batch: None)(rows, 5)


def test_an_operator_no_longer_applied_keeps_its_state(
    job: StreamingJob, rows: DataFrame, tmp_path: Path, run_log: str, caplog: pytest.LogCaptureFixture
) -> None:
    def use(df: DataFrame, batch: MicroBatch) -> None:
        if batch.batch_id == 0:
            batch.apply(Echo(run_log), df, uid="gone")

    on_batch = job.micro_batch(use)
    on_batch(rows, 0)
    first = committed(tmp_path)
    with caplog.at_level(logging.WARNING):
        on_batch(rows, 1)
    manifest = committed(tmp_path)
    assert first is not None
    assert manifest is not None
    times = AppliedTimes(first.watermark, first.processing_time)
    assert manifest.operators == {"gone": msgspec.structs.replace(first.operators["gone"], applied=times)}
    assert "['gone'] have state but were not applied" in caplog.text


@pytest.mark.smoke
@pytest.mark.long
def test_windows_that_ended_while_their_operator_was_left_out_still_come(
    make_job: MakeJob, spark: SparkSession, tmp_path: Path
) -> None:
    """Its own input moves no watermark; that of another operator does, in every micro-batch."""
    events = spark.range(1, 5).selectExpr("id AS k", "timestamp_seconds(10 * id) AS time")
    found: list[list[int]] = []

    def use(df: DataFrame, batch: MicroBatch) -> None:
        clock = GroupAggregate([count()])
        batch.apply(clock, df, key="k", uid="clock", event_time="time", watermark_delay="0 seconds")
        if batch.batch_id not in (1, 2):
            windows = WindowAggregate(tumble("10 seconds"), [count()])
            rows = df if batch.batch_id == 0 else df.limit(0)
            counted = batch.apply(windows, rows, key="k", uid="windows", event_time="time")
            found.append([row.k for row in counted.collect()])

    on_batch = make_job(options={"async-state.parallelism": 1}).micro_batch(use)
    for number in range(4):
        on_batch(events.where("k = 1") if number == 0 else events, number)
    assert found == [[], [1]]
    stored = committed(tmp_path)
    assert stored is not None
    assert stored.operators["windows"].applied is None


# watermark and finish


@pytest.mark.smoke
def test_the_watermark_is_the_slowest_source_and_never_goes_back(
    job: StreamingJob, rows: DataFrame, run_log: str
) -> None:
    seen: list[int] = []

    def use(df: DataFrame, batch: MicroBatch) -> None:
        seen.append(batch.watermark)
        fast, slow = df, df.where("id < 2")
        batch.apply(
            Echo(run_log, num_inputs=2),
            fast,
            slow,
            uid="e",
            event_time="at",
            watermark_delay=("0 seconds", "10 seconds"),
        )

    on_batch = job.micro_batch(use)
    on_batch(rows, 0)  # up to 103 s and 101 s
    on_batch(rows.where("id >= 2"), 1)  # the slow source stands still
    on_batch(rows.where("id = 0"), 2)  # older rows
    on_batch(rows, 3)
    assert seen == [MIN_WATERMARK, 91 * SECOND, 91 * SECOND, 91 * SECOND]


def test_a_source_without_events_holds_the_watermark(
    job: StreamingJob, rows: DataFrame, run_log: str
) -> None:
    seen: list[int] = []

    def use(df: DataFrame, batch: MicroBatch) -> None:
        seen.append(batch.watermark)
        for uid, part in (("a", df), ("b", df.where("id < 0") if batch.batch_id == 0 else df)):
            batch.apply(Echo(run_log), part, uid=uid, event_time="at", watermark_delay="0 seconds")

    on_batch = job.micro_batch(use)
    for batch_id in range(3):
        on_batch(rows, batch_id)
    assert seen == [MIN_WATERMARK, MIN_WATERMARK, 103 * SECOND]


def test_finish_runs_once_with_the_final_watermark(make_job: MakeJob, rows: DataFrame, run_log: str) -> None:
    seen: list[tuple[int, int, bool, int]] = []

    def use(df: DataFrame, batch: MicroBatch) -> None:
        seen.append((batch.batch_id, batch.watermark, batch.final, df.count()))
        batch.apply(Echo(run_log), df, uid="e", key="k", event_time="at", watermark_delay="1 second")

    make_job(run=echo).micro_batch(use)(rows, 0)
    restarted = make_job(run=echo)  # has not seen a DataFrame of its own: the schema is in the checkpoint
    on_batch = restarted.micro_batch(use)
    restarted.finish()

    assert seen == [(0, MIN_WATERMARK, False, 4), (1, MAX_WATERMARK, True, 0)]
    for call in (restarted.finish, lambda: on_batch(rows, 2)):
        with pytest.raises(CheckpointError, match="was finished at batch 1"):
            call()


def test_finish_needs_a_batch(job: StreamingJob) -> None:
    with pytest.raises(JobError, match="has not run a micro-batch yet"):
        job.finish()
    job.micro_batch(never_called)
    with pytest.raises(JobError, match="has not run a micro-batch yet"):
        job.finish()


# statistics


def test_the_progress_of_the_last_batches_is_one_sequence(
    make_job: MakeJob, rows: DataFrame, run_log: str
) -> None:
    reported: list[Progress] = []
    job = make_job(run=echo, clock=ManualClock(now_us=42), on_progress=reported.append)
    assert job.last_progress is None
    assert not job.history
    times: list[int] = []

    def use(df: DataFrame, batch: MicroBatch) -> None:
        times.append(batch.processing_time)
        batch.apply(Echo(run_log), df, uid="e", key="k")

    on_batch = job.micro_batch(use)
    on_batch(rows, 0)
    on_batch(rows.where("id < 1"), 1)
    assert [(one["batch_id"], one["operators"]["e"]["rows_in"]) for one in job.history] == [(0, 4), (1, 1)]
    assert job.last_progress is job.history[-1]
    assert [*job.history] == reported
    assert json.loads(json.dumps(reported)) == reported
    assert job.history[-1]["operators"]["e"]["parallelism"] == 3
    assert job.history[-1]["total_seconds"] >= job.history[-1]["function_seconds"] > 0
    assert times == [42, 42]


# refusals


def test_settings_are_frozen_when_the_job_is_made(spark: SparkSession, make_job: MakeJob) -> None:
    session = spark.newSession()
    session.conf.set("spark.async-state.enabled", "true")
    session.conf.set("async-state.in-flight-limit", "77")
    job = make_job(session, options={"async-state.in-flight-limit": 88})
    session.conf.set("spark.async-state.enabled", "false")
    assert (job.config.enabled, job.config.in_flight_limit) == (True, 88)


def test_unknown_settings_are_refused(spark: SparkSession, make_job: MakeJob) -> None:
    with pytest.raises(ConfigurationError, match="async-state.enable"):
        make_job(options={"async-state.enable": "true"})
    session = spark.newSession()
    session.conf.set("spark.async-state.nonsense", "1")
    with pytest.raises(ConfigurationError, match="nonsense"):
        make_job(session)
    with pytest.raises(ConfigurationError, match=r"async-state.buffer-size: 'many' does not fit"):
        make_job(options={"async-state.buffer-size": "many"})
    session = spark.newSession()
    session.conf.set("spark.async-state.enabled", "true")
    session.conf.set("async-state.enabled", "false")
    with pytest.raises(ConfigurationError, match="set one of them, or both to the same value"):
        make_job(session)
    with pytest.raises(ConfigurationError, match="no checkpoint folder"):
        StreamingJob(spark)


def test_another_jobs_checkpoint_is_refused(make_job: MakeJob, rows: DataFrame) -> None:
    make_job(run=echo).micro_batch(lambda df, batch: None)(rows, 0)
    with pytest.raises(CheckpointError, match="belongs to job 'job', not to 'other'"):
        make_job(name="other")


def test_the_number_of_key_groups_is_fixed(make_job: MakeJob, rows: DataFrame) -> None:
    make_job(run=echo).micro_batch(lambda df, batch: None)(rows, 0)
    with pytest.raises(
        ConfigurationError, match=r"has 128 key groups, but async-state.max-parallelism is 64"
    ):
        make_job(options={"async-state.max-parallelism": 64})


def test_one_function_a_job_and_used_rightly(job: StreamingJob, rows: DataFrame, spark: SparkSession) -> None:
    with pytest.raises(JobError, match="decorates a function"):
        job.micro_batch("on_batch")  # type: ignore[arg-type]
    on_batch = job.micro_batch(never_called)
    with pytest.raises(JobError, match="already has a micro_batch function"):
        job.micro_batch(never_called)
    with pytest.raises(JobError, match="foreachBatch"):
        on_batch(rows, "0")  # type: ignore[arg-type]
    with pytest.raises(JobError, match="streaming DataFrame"):
        on_batch(spark.readStream.format("rate").load(), 0)


def test_apply_belongs_into_the_function(job: StreamingJob, rows: DataFrame, run_log: str) -> None:
    kept: list[MicroBatch] = []
    on_batch = job.micro_batch(lambda df, batch: kept.append(batch))
    on_batch(rows, 0)
    with pytest.raises(JobError, match="micro-batch 0 is over"):
        kept[0].apply(Echo(run_log), rows, uid="e")


def test_a_job_is_not_entered_twice(job: StreamingJob, rows: DataFrame) -> None:
    def again(df: DataFrame, batch: MicroBatch) -> None:
        on_batch(df, 1)

    on_batch = job.micro_batch(again)
    with pytest.raises(JobError, match="already runs a micro-batch"):
        on_batch(rows, 0)


Apply = Callable[[MicroBatch, DataFrame, str], Any]

REFUSED: dict[str, tuple[Apply, type[AsyncStateError], str]] = {
    "no operator": (lambda b, d, f: b.apply("sum", d, uid="e"), JobError, "not an Operator"),  # type: ignore[arg-type]
    "odd uid": (lambda b, d, f: b.apply(Echo(f), d, uid="../e"), JobError, r"uid '../e' cannot be used"),
    "one input missing": (
        lambda b, d, f: b.apply(Echo(f, 2), d, uid="e"),
        JobError,
        "takes 2 inputs but got 1",
    ),
    "one input too many": (
        lambda b, d, f: b.apply(Echo(f), d, d, uid="e"),
        JobError,
        "takes 1 inputs but got 2",
    ),
    "unknown key": (lambda b, d, f: b.apply(Echo(f), d, uid="e", key="kk"), SchemaError, "no column 'kk'"),
    "key twice": (lambda b, d, f: b.apply(Echo(f), d, uid="e", key=["k", "k"]), JobError, "twice"),
    "one key for two": (
        lambda b, d, f: b.apply(Echo(f, 2), d, d, uid="e", key="k"),
        JobError,
        "one entry for each",
    ),
    "key types differ": (
        lambda b, d, f: b.apply(Echo(f, 2), d, d, uid="e", key=("k", "text")),
        SchemaError,
        r"'e'.*int64.*string",
    ),
    "nested key": (
        lambda b, d, f: b.apply(Echo(f), d.selectExpr("id", "array(k) as ks"), uid="e", key="ks"),
        SchemaError,
        "'e', the input of operator 'e': .*'ks'",
    ),
    "unknown time": (
        lambda b, d, f: b.apply(Echo(f), d, uid="e", event_time="then"),
        SchemaError,
        "no column 'then'",
    ),
    "time of another type": (
        lambda b, d, f: b.apply(Echo(f), d, uid="e", event_time="text"),
        SchemaError,
        "'text' is of type string",
    ),
    "delay without time": (
        lambda b, d, f: b.apply(Echo(f), d, uid="e", watermark_delay="1 second"),
        JobError,
        "without event_time",
    ),
    "unknown column of an aggregate": (
        lambda b, d, f: b.apply(GroupAggregate([sum_("price")]), d, uid="e", key="k"),
        SchemaError,
        "operator 'e': .*'price'.*its columns are: id, k, at, text",
    ),
    "aggregate of a type it cannot take": (
        lambda b, d, f: b.apply(GroupAggregate([sum_("text")]), d, uid="e", key="k"),
        SchemaError,
        "operator 'e': .*'sum_text'.*string",
    ),
    "odd delay": (
        lambda b, d, f: b.apply(Echo(f), d, uid="e", event_time="at", watermark_delay="soon"),
        ConfigurationError,
        "'soon'",
    ),
    "double column": (
        lambda b, d, f: b.apply(Echo(f), d.selectExpr("id", "k as id"), uid="e"),
        SchemaError,
        "more than one column named 'id'",
    ),
    "column that does not travel": (
        lambda b, d, f: b.apply(Echo(f), d.selectExpr("id", "make_interval(1) as i"), uid="e"),
        SchemaError,
        "'i'",
    ),
    "kind of another type": (
        lambda b, d, f: b.apply(Echo(f), d.selectExpr("id", "1 as row_kind"), uid="e"),
        SchemaError,
        "'row_kind' is of type int",
    ),
    "changelog not accepted": (
        lambda b, d, f: b.apply(
            Echo(f, accepts_changelog=False), d.selectExpr("id", "'+I' as row_kind"), uid="e"
        ),
        SchemaError,
        "does not accept retractions",
    ),
    "option of the job": (
        lambda b, d, f: b.apply(Echo(f), d, uid="e", options={"async-state.max-parallelism": 8}),
        ConfigurationError,
        "applies to the whole job",
    ),
    "unknown option": (
        lambda b, d, f: b.apply(Echo(f), d, uid="e", options={"async-state.fast": 8}),
        ConfigurationError,
        "async-state.fast",
    ),
    "too many partitions": (
        lambda b, d, f: b.apply(Echo(f), d, uid="e", options={"async-state.parallelism": 200}),
        ConfigurationError,
        "parallelism is 200",
    ),
}


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=pytest.mark.since_spark("4.0", "a name for intervals of months and days"))
        if case == "column that does not travel"
        else case
        for case in REFUSED
    ],
)
def test_refused_before_any_row_is_read(
    job: StreamingJob, rows: DataFrame, run_log: str, tmp_path: Path, case: str
) -> None:
    apply, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        job.micro_batch(lambda df, batch: apply(batch, df, run_log))(rows, 0)
    assert runs(run_log) == []
    assert committed(tmp_path) is None


def test_a_uid_is_applied_once(job: StreamingJob, rows: DataFrame, run_log: str, tmp_path: Path) -> None:
    def use(df: DataFrame, batch: MicroBatch) -> None:
        batch.apply(Echo(run_log), df, uid="e")
        batch.apply(Echo(run_log), df, uid="e")

    with pytest.raises(JobError, match="uid 'e' is applied twice.*give each operator its own uid"):
        job.micro_batch(use)(rows, 0)
    assert runs(run_log) == [0], "the second one has not run"
    assert committed(tmp_path) is None


CHANGED: dict[str, tuple[Callable[[DataFrame], DataFrame], str, str]] = {
    "column of another type": (
        lambda df: df.selectExpr("id", "k", "1 as text"),
        "k",
        "'text' was string and is int32",
    ),
    "another key": (lambda df: df, "id", r"the key \(key0\) was \(k: int64\) and is now \(id: int64\)"),
}


@pytest.mark.parametrize("case", CHANGED)
def test_changed_schemas_are_refused(make_job: MakeJob, rows: DataFrame, run_log: str, case: str) -> None:
    change, key, message = CHANGED[case]
    df = rows.select("id", "k", "text")
    make_job(run=echo).micro_batch(lambda df, b: b.apply(Echo(run_log), df, uid="e", key="k"))(df, 0)
    Path(run_log).write_text("")
    with pytest.raises(SchemaError, match=message):
        make_job(run=echo).micro_batch(lambda df, b: b.apply(Echo(run_log), df, uid="e", key=key))(
            change(df), 1
        )
    assert runs(run_log) == []


def test_a_changed_state_type_is_refused(make_job: MakeJob, rows: DataFrame, tmp_path: Path) -> None:
    def apply(operator: RunningTotal) -> Callable[[DataFrame, MicroBatch], Any]:
        return lambda df, batch: batch.apply(operator, df, uid="e", key="k")

    make_job().micro_batch(apply(RunningTotal()))(rows, 0)
    before = committed(tmp_path)
    on_batch = make_job().micro_batch(apply(RunningTotal(state_type=pa.int32())))
    with pytest.raises(
        StateDeclarationError,
        match=r"'e', state 'total': .*'value' changed from struct.* to int32.*new name.*to start.*"
        rf"migrate drop-state {tmp_path}/checkpoint e total",
    ):
        on_batch(rows, 1)
    assert committed(tmp_path) == before


def test_a_new_column_is_let_through(make_job: MakeJob, rows: DataFrame, run_log: str) -> None:
    on_batch = make_job(run=echo).micro_batch(lambda df, b: b.apply(Echo(run_log), df, uid="e", key="k"))
    on_batch(rows.select("id", "k"), 0)
    on_batch(rows, 1)


def test_parallelism_is_what_is_stored_unless_given(make_job: MakeJob, rows: DataFrame, run_log: str) -> None:
    def parallelism(option: object, batch_id: int) -> object:
        job = make_job(run=echo, options={"async-state.parallelism": option})
        job.micro_batch(lambda df, b: b.apply(Echo(run_log), df, uid="e", key="k"))(rows, batch_id)
        return job.history[-1]["operators"]["e"]["parallelism"]

    assert parallelism("auto", 0) == 2  # the cores of the test session
    assert parallelism(5, 1) == 5
    assert parallelism("auto", 2) == 5
