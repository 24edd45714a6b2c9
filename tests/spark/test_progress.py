"""Progress: stable names, figures of a known micro-batch, log records, the hook, Prometheus."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql import DataFrame, SparkSession

from asyncstate.clock import ManualClock
from asyncstate.driver.micro_batch import Applied
from asyncstate.driver.progress import LOGGER, Progress, metrics_of, operator_progress
from asyncstate.errors import ConfigurationError
from asyncstate.operator import OutputSpec
from asyncstate.runtime import CommitRecord
from asyncstate.spark import MicroBatch, ProgressFormatter, PrometheusProgress, StreamingJob
from asyncstate.storage import PartitionManifest
from asyncstate.testing import Tuning
from tests.spark.parts import Echo, RunningTotal, echo

pytestmark = pytest.mark.spark

MakeJob = Callable[..., StreamingJob]

BATCH_NAMES = {
    "job", "batch_id", "started_at", "final", "watermark_us", "watermark_waits_for", "sources", "dropped",
    "total_seconds", "function_seconds", "commit_seconds", "operators",
}  # fmt: skip
OPERATOR_NAMES = {
    "uid", "operator", "parallelism", "in_driver", "rows_in", "rows_out", "keys", "reads", "cache_hits", "cache_misses",
    "column_cache_hits", "column_cache_evictions",
    "cache_hit_ratio", "store_reads", "read_batches", "read_batch_keys", "read_batch_keys_mean",
    "scans", "changes",
    "spills", "spilled_bytes", "write_cache_bytes_peak", "column_cache_bytes_peak",
    "local_rows_in", "read_ahead_keys", "read_ahead_unused", "warmed_positions",
    "calls", "call_timeouts", "change_bytes", "delta_bytes", "restore_bytes", "state_bytes", "state_entries_estimate",
    "in_flight_peak", "blocked_keys_peak", "io_threads_peak", "calls_in_flight_peak", "cache_bytes_peak",
    "worker_rss_bytes_peak", "plan_seconds", "stage_seconds", "run_seconds", "commit_seconds", "io_wait_seconds",
    "compaction_seconds",
    "call_wait_seconds", "restore_seconds", "input_seconds", "output_seconds", "read_batch_seconds", "counters",
    "rows_in_max", "rows_in_max_partition", "run_seconds_max", "run_seconds_max_partition",
    "state_bytes_max", "state_bytes_max_partition",
    "in_flight_limit", "request_buffer_limit", "buffer_timeout_ms_limit", "io_parallelism_limit", "call_limit",
    "bundle_read_bytes", "cache_carried", "cache_evictions", "cache_bytes_limit",
    "column_cache_carried", "column_cache_bytes_limit", "write_cache_bytes_limit",
    "block_cache_bytes_peak", "block_cache_bytes_limit", "table_reader_bytes_peak",
}  # fmt: skip
ONLY_TWO_PHASES = {"local_rows_in"}
ONLY_ASYNC = {
    "in_flight_peak", "blocked_keys_peak", "io_threads_peak", "io_wait_seconds",
    "read_ahead_keys", "read_ahead_unused", "warmed_positions",
}  # fmt: skip


@pytest.fixture
def rows(spark: SparkSession) -> DataFrame:
    return spark.sql("select id, id % 7 as k, timestamp_seconds(100 + id) as at from range(70)")


def totals(df: DataFrame, batch: MicroBatch) -> None:
    batch.apply(
        RunningTotal(), df, uid="totals", key="k", event_time="at", watermark_delay="0 seconds"
    ).collect()


def figures(batch_id: int = 3, **sums: float) -> Progress:
    """A micro-batch made up, for what does not need one that has run."""
    record = CommitRecord(
        partition=1,
        content=PartitionManifest(1),
        states=[],
        max_event_times=[None],
        statistics={"rows_in": 5, "reads": 8, "cache_hits": 6, "state_bytes": 100, "counter.late": 2, **sums},
        peaks={"cache_bytes_peak": 64},
    )
    applied = Applied(
        uid="o",
        operator="Operator",
        parallelism=2,
        delays=[None],
        declared={},
        waiting=None,
        route=[],
        records=[record],
        output=OutputSpec(pa.schema([])),
        plan_seconds=0.1,
        stage_seconds=0.4,
    )
    return Progress(
        job="j",
        batch_id=batch_id,
        started_at="1970-01-01T00:00:01+00:00",
        final=False,
        watermark_us=5_000_000,
        watermark_waits_for=[],
        sources=[],
        dropped={},
        total_seconds=0.75,
        function_seconds=0.5,
        commit_seconds=0.25,
        operators={"o": operator_progress(applied)},
    )


def spent_on(**measured: float) -> str:
    operator = figures()["operators"]["o"] | {"parallelism": 4, "rows_in": 2_000, "run_seconds": 10.0}
    return metrics_of({"o": operator | measured})["o"].spent_on


def test_explain_names_what_an_operator_spends_its_time_on() -> None:
    even = {"rows_in_max": 600, "run_seconds_max": 3.0}
    assert spent_on(**even) == ""
    waits = {"input_seconds": 4.0, "read_batch_seconds": 0.5, "io_wait_seconds": 1.5, "output_seconds": 0.9}
    assert spent_on(**even, **waits) == "time: input 40%, reads 20%"
    assert spent_on(**even, call_wait_seconds=6.0) == "time: calls 60%"


def test_explain_names_the_partition_that_has_twice_the_mean() -> None:
    rows = {"rows_in_max": 1_500, "rows_in_max_partition": 3, "run_seconds_max": 3.0}
    seconds = {"run_seconds_max": 9.0, "run_seconds_max_partition": 0}
    assert spent_on(**rows) == "75% of rows in partition 3 of 4"
    assert spent_on(**rows | seconds) == "75% of rows in partition 3 of 4; 90% of seconds in partition 0 of 4"
    assert spent_on(**rows | {"rows_in_max": 999}) == ""
    assert spent_on(**rows | {"rows_in": 800, "rows_in_max": 800}) == ""
    assert spent_on(**rows | {"parallelism": 1, "rows_in_max": 2_000}) == ""


@pytest.mark.executors
def test_a_known_batch_in_each_mode(make_job: MakeJob, rows: DataFrame, async_enabled: bool) -> None:
    job = make_job(options={"async-state.enabled": async_enabled}, clock=ManualClock(1_700_000_000_000_000))
    assert job.last_progress is None
    on_batch = job.micro_batch(totals)
    on_batch(rows, 0)
    on_batch(rows, 1)
    progress = job.last_progress
    assert progress is not None
    assert progress.keys() == BATCH_NAMES
    assert json.loads(json.dumps(progress)) == progress
    assert (progress["job"], progress["batch_id"], progress["final"]) == ("job", 1, False)
    assert progress["started_at"] == "2023-11-14T22:13:20+00:00"
    assert progress["watermark_us"] == 169_000_000
    assert progress["total_seconds"] >= progress["function_seconds"] + progress["commit_seconds"] > 0
    (operator,) = progress["operators"].values()
    assert operator.keys() == OPERATOR_NAMES
    assert (operator["uid"], operator["operator"], operator["parallelism"]) == ("totals", "RunningTotal", 3)
    assert (operator["rows_in"], operator["rows_out"], operator["keys"], operator["changes"]) == (
        70,
        70,
        7,
        7,
    )
    assert operator["reads"] == operator["cache_hits"] + operator["cache_misses"] >= 7
    assert operator["cache_hit_ratio"] == operator["cache_hits"] / operator["reads"]
    assert operator["read_batch_keys"] >= operator["read_batches"]
    assert operator["state_entries_estimate"] >= 7
    assert min(operator["delta_bytes"], operator["state_bytes"], operator["change_bytes"]) > 0
    assert operator["stage_seconds"] > 0
    for name in ONLY_ASYNC:
        assert (operator[name] is not None) == async_enabled, name
    assert [name for name in OPERATOR_NAMES - ONLY_ASYNC - ONLY_TWO_PHASES if operator[name] is None] in (
        [],
        ["read_batch_keys_mean"],
    )


def test_skew_and_the_size_of_new_state_show(
    make_job: MakeJob, spark: SparkSession, async_enabled: bool
) -> None:
    """All rows of a key are in one partition; the state of the first micro-batch counts, which no store has yet."""
    one_key = spark.sql("select id, 3L as k, timestamp_seconds(100 + id) as at from range(50)")
    others = spark.sql("select id, id % 7 as k, timestamp_seconds(200 + id) as at from range(7)")
    job = make_job(options={"async-state.enabled": async_enabled})
    on_batch = job.micro_batch(totals)
    seen = []
    for number, df in enumerate((one_key, one_key.union(others))):
        on_batch(df, number)
        seen.append(job.history[-1]["operators"]["totals"])
    alone, among = seen
    assert (alone["rows_in"], alone["rows_in_max"]) == (50, 50)
    assert alone["state_bytes"] == alone["state_bytes_max"] == alone["delta_bytes"] > 0
    assert alone["rows_in_max_partition"] == alone["state_bytes_max_partition"]
    assert among["rows_in"] == 57
    assert 51 <= among["rows_in_max"] < 57
    assert among["rows_in_max_partition"] == alone["rows_in_max_partition"]
    assert among["state_bytes"] > among["state_bytes_max"] > 0
    if among["in_driver"]:  # partitions that run together share their seconds
        assert among["run_seconds_max"] is among["run_seconds_max_partition"] is None
    else:
        assert 0 < among["run_seconds_max"] <= among["run_seconds"]
        assert among["run_seconds_max_partition"] in range(3)


def test_names_are_the_same_whatever_was_measured() -> None:
    operator = figures()["operators"]["o"]
    assert operator.keys() == OPERATOR_NAMES
    assert (operator["cache_hit_ratio"], operator["counters"], operator["calls"]) == (0.75, {"late": 2}, None)


def test_before_and_after_event_time_there_is_no_watermark(
    make_job: MakeJob, rows: DataFrame, run_log: str
) -> None:
    job = make_job(run=echo)
    job.micro_batch(lambda df, batch: batch.apply(Echo(run_log), df, uid="e"))(rows, 0)
    assert job.last_progress is not None
    assert job.last_progress["watermark_us"] is None
    assert job.last_progress["operators"]["e"]["rows_in"] == 70
    job.finish()
    assert (job.last_progress["final"], job.last_progress["watermark_us"]) == (True, None)


# the hook


def test_the_hook_gets_each_committed_batch_and_cannot_fail_one(
    make_job: MakeJob, rows: DataFrame, run_log: str, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Any] = []

    def hook(progress: Progress) -> None:
        seen.append(progress)
        raise ValueError("no route")

    job = make_job(run=echo, on_progress=hook)
    on_batch = job.micro_batch(lambda df, batch: batch.apply(Echo(run_log), df, uid="e"))
    with caplog.at_level(logging.WARNING, LOGGER):
        on_batch(rows, 0)
        on_batch(rows, 1)
    assert [progress["batch_id"] for progress in seen] == [0, 1]
    assert seen[-1] == job.last_progress
    assert job.last_error is None
    warned = [record for record in caplog.records if "on_progress failed" in record.getMessage()]
    assert len(warned) == 1
    assert "job 'job', batch 0: on_progress failed (ValueError: no route)" in warned[0].getMessage()


def test_a_batch_that_fails_is_not_reported(make_job: MakeJob, rows: DataFrame) -> None:
    seen: list[Any] = []
    job = make_job(run=echo, on_progress=seen.append)

    def fail(df: DataFrame, batch: MicroBatch) -> None:
        raise ValueError("the sink is down")

    with pytest.raises(ValueError, match="the sink is down"):
        job.micro_batch(fail)(rows, 0)
    assert (seen, job.last_progress) == ([], None)


# logs


def test_one_log_record_a_batch_with_the_progress(
    make_job: MakeJob, rows: DataFrame, run_log: str, caplog: pytest.LogCaptureFixture
) -> None:
    job = make_job(run=echo)
    with caplog.at_level(logging.INFO, LOGGER):
        job.micro_batch(lambda df, batch: batch.apply(Echo(run_log), df, uid="e"))(rows, 0)
    (record,) = [record for record in caplog.records if record.name == LOGGER]
    assert json.loads(record.getMessage()) == job.last_progress
    assert "\n" not in record.getMessage()
    line = json.loads(ProgressFormatter().format(record))
    assert line["progress"] == job.last_progress
    assert (line["level"], line["logger"]) == ("INFO", LOGGER)
    assert line["message"].startswith("job 'job', batch 0: 70 rows into 1 operators in ")


def test_the_formatter_takes_records_of_any_logger() -> None:
    try:
        raise ValueError("line 1\nline 2")
    except ValueError:
        record = logging.LogRecord("other", logging.ERROR, "f.py", 1, "it %s", ("broke",), sys.exc_info())
    text = ProgressFormatter().format(record)
    assert "\n" not in text
    line = json.loads(text)
    assert (line["message"], line["logger"], "progress" in line) == ("it broke", "other", False)
    assert "line 2" in line["exception"]


# Prometheus


def scraped(port: int) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_figures_are_scraped_over_http() -> None:
    metrics = PrometheusProgress(CollectorRegistry())
    metrics(figures())
    metrics(figures(4, rows_in=7, state_bytes=90))
    with metrics.serve(0) as server:
        found = scraped(server.port)
    job, operator = frozenset({("job", "j")}), frozenset({("job", "j"), ("operator", "o")})
    assert found["asyncstate_micro_batches_total", job] == 2
    assert found["asyncstate_last_batch_id", job] == 4
    assert found["asyncstate_watermark_seconds", job] == 5
    assert found["asyncstate_rows_in_total", operator] == 12
    assert found["asyncstate_cache_hits_total", operator] == 12
    assert found["asyncstate_state_bytes", operator] == 90
    assert found["asyncstate_cache_bytes_peak", operator] == 64
    assert found["asyncstate_micro_batch_total_seconds_count", job] == 2
    assert found["asyncstate_micro_batch_total_seconds_sum", job] == 1.5
    assert found["asyncstate_stage_seconds_bucket", operator | {("le", "0.5")}] == 2
    assert found["asyncstate_operator_counter_total", operator | {("counter", "late")}] == 4
    assert not [name for name, labels in found if name.startswith("asyncstate_calls") and labels == operator]


def test_two_objects_of_a_registry_report_to_the_same_metrics() -> None:
    """As two jobs of a process make them, or a notebook's cell that runs again."""
    registry = CollectorRegistry()
    for _ in range(2):
        metrics = PrometheusProgress(registry)
        metrics(figures(rows_in=3))
    assert registry.get_sample_value("asyncstate_rows_in_total", {"job": "j", "operator": "o"}) == 6
    assert PrometheusProgress(CollectorRegistry()).registry is not registry


@pytest.mark.executors
def test_a_job_reports_to_prometheus(make_job: MakeJob, rows: DataFrame) -> None:
    metrics = PrometheusProgress(CollectorRegistry())
    options = {"async-state.enabled": True, "async-state.in-flight-limit": 50}
    job = make_job(options=options, on_progress=metrics, tuning=Tuning(batch_hot_reads=True))
    job.micro_batch(totals)(rows, 0)
    with metrics.serve(0) as server:
        found = scraped(server.port)
    of_totals = frozenset({("job", "job"), ("operator", "totals")})
    assert found["asyncstate_rows_in_total", of_totals] == 70
    assert found["asyncstate_keys_total", of_totals] == 7
    assert 1 < found["asyncstate_in_flight_peak", of_totals] <= 50
    assert found["asyncstate_blocked_keys_peak", of_totals] > 0
    assert found["asyncstate_read_batch_keys_total", of_totals] >= 7


def test_without_its_package_the_exporter_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['prometheus_client'] = None\n"
        "from asyncstate.spark import PrometheusProgress\n"
        "try: PrometheusProgress()\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(ConfigurationError.__name__)
    assert "install asyncstate[prometheus]" in done.stdout


@pytest.mark.executors
def test_spark_s_jobs_say_which_operator_runs_and_what_was_left(
    make_job: MakeJob, spark: SparkSession, rows: DataFrame
) -> None:
    job, context = make_job(), spark.sparkContext

    @job.micro_batch
    def run(df: DataFrame, batch: MicroBatch) -> None:
        out = batch.apply(RunningTotal(), df, key="k", uid="totals")
        assert out.count() == 70

    context.setJobDescription("what was there")
    try:
        run(rows, 0)
        assert context.getLocalProperty("spark.job.description") == "what was there"
    finally:
        context.setLocalProperty("spark.job.description", None)  # type: ignore[arg-type]
    jobs = context._jsc.sc().statusStore().jobsList(None)
    texts = [jobs.apply(number).description().getOrElse(None) or "" for number in range(min(jobs.size(), 9))]
    assert "what was there\noperator 'totals' (RunningTotal)" in texts
    assert any(
        re.fullmatch(r"what was there\ntotals: [\d,]+ ms, 70 → 70 rows, \d\.\d MiB of state", text)
        for text in texts
    )
