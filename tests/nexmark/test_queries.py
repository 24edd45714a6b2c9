"""Streaming plans against the oracle, and a whole run through the streaming engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F  # noqa: N812 - the name Spark code is read with

from asyncstate.dataflow import Stream
from asyncstate.testing import net
from bench.nexmark import command as runner_module
from bench.nexmark.command import NexmarkRunner, RunSettings
from bench.nexmark.comparison import ComparisonResult
from bench.nexmark.generator import GeneratorConfig, narrow
from bench.nexmark.oracle import QUERIES
from bench.nexmark.queries import ALL_PLANS, PLANS, STATEMENTS
from tests.spark.stored import Stored, stored_state
from tests.sql.tables import NEEDS_COMPILER

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


STATELESS = {"q0", "q1", "q2", "q10", "q13", "q14", "q21", "q22"}
BEHIND_WINDOWS = {("q5", "most")}  # operators that have no rows before the first windows end
FIRES_BEFORE_THE_END = {"q5", "q7", "q8", "q11", "q12", "window_rank"}
EVENTS, MICRO_BATCH_EVENTS, MICRO_BATCHES = 2_000, 1_001, 2
# 80 seconds of event time: windows of 10 seconds and sessions end in the second micro-batch and at the end.
EVENTS_PER_SECOND = 25

Netted = dict[str, Counter[tuple[Any, ...]]]


class LookingRunner(NexmarkRunner):
    """A NexmarkRunner that notes what a run has left before the folder of a right result goes."""

    def __init__(self, spark: SparkSession, settings: RunSettings) -> None:
        super().__init__(spark, settings)
        self._config = GeneratorConfig(first_event_rate=EVENTS_PER_SECOND)
        self.outputs: list[Netted] = []
        self.states: list[list[Stored]] = []

    def _compare(self, query: str, sink: Path) -> ComparisonResult:
        self.outputs.append({folder.name: netted(folder) for folder in sorted(sink.iterdir())})
        versions = (MICRO_BATCHES - 1, MICRO_BATCHES)  # before and after the final flush
        self.states.append([stored_state(sink.parent / "state", version) for version in versions])
        return super()._compare(query, sink)


def netted(folder: Path) -> Counter[tuple[Any, ...]]:
    """The net of the changelog in a sink's folder."""
    rows: list[tuple[Any, ...]] = []
    for path in folder.glob("*.parquet"):
        table = pq.ParquetFile(path).read()
        columns = [table.column("row_kind"), *table.drop_columns("row_kind").columns]
        rows += zip(*(column.to_pylist() for column in columns), strict=True)
    return net(rows)


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> SparkSession:
    own = spark.newSession()
    own.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    return own


@pytest.fixture(scope="module")
def runner(session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LookingRunner]:
    settings = RunSettings(tmp_path_factory.mktemp("nexmark"), EVENTS, MICRO_BATCH_EVENTS)
    runner = LookingRunner(session, settings)
    yield runner
    runner.close()


@pytest.mark.spark
@pytest.mark.parametrize("query", ALL_PLANS)
def test_both_modes_agree_with_the_oracle_and_store_the_same_bytes(runner: LookingRunner, query: str) -> None:
    modes = (True,) if query in STATELESS else (False, True)  # without state there is nothing to wait for
    for async_enabled in modes:
        result = runner.run(query, async_enabled)
        assert result.wrong == []
        assert result.facts["expected_rows"] > 0
    sync_output, *async_output = runner.outputs[-len(modes) :]
    assert len(sync_output) == MICRO_BATCHES + 1
    sync_states, *async_states = runner.states[-len(modes) :]
    if query in STATELESS:
        assert sync_states == [{}, {}]
        return
    assert [sync_output] == async_output
    assert [sync_states] == async_states
    assert all(
        bool(entries) is ((query, uid) not in BEHIND_WINDOWS) for uid, entries in sync_states[0].items()
    )
    if query in FIRES_BEFORE_THE_END:
        assert list(map(bool, sync_output.values())) == [False, True, True]
        assert sync_states[0] != sync_states[1]


SQL_IN_SHORT_RUNS = {"q3", "q5", "q9"}


@pytest.mark.spark
@NEEDS_COMPILER
@pytest.mark.parametrize(
    "query",
    [one if one in SQL_IN_SHORT_RUNS else pytest.param(one, marks=pytest.mark.slow) for one in STATEMENTS],
)
def test_statements_agree_with_the_oracle(
    session: SparkSession, tmp_path: Path, query: str, async_enabled: bool
) -> None:
    settings = RunSettings(tmp_path, EVENTS, MICRO_BATCH_EVENTS, sql=True)
    runner = LookingRunner(session, settings)
    result = runner.run(query, async_enabled)
    runner.close()
    assert result.wrong == []
    assert result.facts["expected_rows"] > 0


@pytest.mark.spark
def test_narrowing_keeps_wide_rows_of_the_needed_kinds(spark: SparkSession, runner: LookingRunner) -> None:
    events = spark.read.parquet(str(runner.prepare().path))
    narrowed = narrow(events, QUERIES["q3"])
    assert narrowed.schema.simpleString() == (
        "struct<event_type:int,person:struct<id:bigint,name:string,city:string,state:string>,"
        "auction:struct<id:bigint,seller:bigint,category:bigint>>"
    )
    by_kind = narrowed.groupBy("event_type").agg(F.count("person.id"), F.count("auction.id"))
    assert sorted(map(tuple, by_kind.collect())) == [(0, 40, 0), (1, 0, 120)]


def twice(events: Stream) -> Stream:
    right = PLANS["q2"](events)
    return right.union(right)


@pytest.mark.spark
def test_a_run_is_timed_checked_and_a_wrong_result_is_kept(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    runner = NexmarkRunner(session, RunSettings(tmp_path, events=2_500, micro_batch_events=1_000))
    right = runner.run("q2", async_enabled=False)
    assert right.wrong == []
    p50, p95 = (right.facts[f"batch_ms_p{share}"] for share in (50, 95))
    assert right.facts["events"] == 2_500
    assert 0 < p50 <= p95 <= right.facts["seconds"] * 1000
    dropped, _ = runner.dropped("q2", async_enabled=True)
    assert len(dropped) == 3
    assert min(dropped) > 0
    assert not any((tmp_path / "runs").iterdir())

    monkeypatch.setattr(runner_module, "ALL_PLANS", {"q2": twice})
    wrong = runner.run("q2", async_enabled=True)
    assert wrong.wrong[1] == f"{right.facts['expected_rows']} rows are not expected"
    assert (tmp_path / "runs" / "q2-async" / "sink").is_dir()
    runner.close()


def test_every_plan_has_a_spec() -> None:
    plans: dict[str, Any] = dict(ALL_PLANS)
    assert plans.keys() <= QUERIES.keys()
