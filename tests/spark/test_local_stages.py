"""Stages in the driver's process: the rows and the state of Spark's executors, wherever each micro-batch runs."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from asyncstate import RecordContext, RecordOperator, Row
from asyncstate.driver import executor_choice
from asyncstate.driver.executor_choice import ExecutorChoice
from asyncstate.errors import ConfigurationError, JobError, OperatorError
from asyncstate.operator import InputSpec
from asyncstate.partial_aggregation import PartialLimit
from asyncstate.runtime import CommitRecord
from asyncstate.spark import MicroBatch, StreamingJob, read_state
from asyncstate.spark.local_frame import LocalFrame
from asyncstate.storage import PartitionManifest
from asyncstate.testing import net
from operators import (
    Deduplicate,
    GroupAggregate,
    Join,
    Rank,
    WindowAggregate,
    collect,
    count,
    desc,
    max_,
    sum_,
    tumble,
)

pytestmark = pytest.mark.spark

MakeJob = Callable[..., StreamingJob]


def bids(spark: SparkSession, number: int, rows: int = 40) -> DataFrame:
    """Rows of many types, with nulls, over two partitions."""
    chosen = random.Random(number)
    values = []
    for i in range(rows):
        auction = chosen.choice(["a", "b", "c", "", None])
        values.append(
            f"({number * rows + i}, {_text(auction)}, {chosen.choice([1, 2.5, 'null'])}, "
            f"timestamp'2026-01-01 00:{number:02}:{chosen.randrange(60):02}', array({_text(auction)}, 'x'), "
            f"timestamp_ntz'2026-01-01 00:00:{chosen.randrange(60):02}')"
        )
    columns = ", ".join(f"cast({one.split()[0]} as {one.split()[1]}) as {one.split()[0]}" for one in COLUMNS)
    table = f"values {', '.join(values)} as t({', '.join(one.split()[0] for one in COLUMNS)})"
    return spark.sql(f"select {columns} from {table}").repartition(2, "id")


COLUMNS = [
    "id long",
    "auction string",
    "price decimal(20,2)",
    "at timestamp",
    "tags array<string>",
    "ntz timestamp_ntz",
]


def _text(value: str | None) -> str:
    return "null" if value is None else f"'{value}'"


class Run:
    """A job of several operators over micro-batches; what each emitted, and whether it ran in the driver."""

    def __init__(self, job: StreamingJob) -> None:
        self.job = job
        self.rows: list[dict[str, dict[Any, int]]] = []
        self.places: list[set[bool]] = []

        @job.micro_batch
        def on_batch(df: DataFrame, batch: MicroBatch) -> None:
            self.rows.append({name: _net(rows) for name, rows in _applied(df, batch).items()})

        self._on_batch = on_batch

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        self._on_batch(df, batch_id)
        self.places.append({one["in_driver"] for one in self.job.history[-1]["operators"].values()})

    @property
    def state(self) -> Counter[str]:
        place = str(self.job.config.checkpoint_dir)
        rows = read_state(self.job._spark, place).drop("version").collect()
        return Counter(map(str, rows))


def _net(rows: DataFrame) -> dict[Any, int]:
    return net([(row.row_kind, str(row[:-1])) for row in rows.collect()])


def _applied(df: DataFrame, batch: MicroBatch) -> dict[str, DataFrame]:
    sums = batch.apply(
        GroupAggregate(
            [count().alias("n"), sum_("price"), max_("at").alias("last"), max_("ntz").alias("ntz")]
        ),
        df,
        uid="sums",
        key="auction",
    )
    best = batch.apply(Rank(desc("n"), 2), sums.where("n > 1"), uid="best")
    windows = batch.apply(
        WindowAggregate(tumble("10 seconds"), [count().alias("n")], late_output="late"),
        df,
        uid="windows",
        key="auction",
        event_time="at",
        watermark_delay="5 seconds",
    )
    first = batch.apply(Deduplicate(time="processing"), df.drop("tags"), uid="first", key=["auction", "id"])
    joined = batch.apply(
        Join("left"),
        first.select("auction", "id", "row_kind"),
        sums,
        uid="joined",
        key=["auction", "auction"],
    )
    return {
        "sums": sums,
        "best": best,
        "windows": windows,
        "late": batch.side_output("windows", "late"),
        "joined": joined,
    }


def test_rows_and_state_are_the_same_wherever_a_micro_batch_runs(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path, async_enabled: bool
) -> None:
    def run(name: str, settings: list[str]) -> Run:
        ran = Run(
            make_job(
                checkpoint_dir=str(tmp_path / name),
                options={"async-state.enabled": async_enabled, "async-state.parallelism": 2},
            )
        )
        for number, setting in enumerate(settings):
            ran.job._executor._choice = ExecutorChoice(setting)  # type: ignore[arg-type]
            ran(bids(spark, number), number)
            assert ran.places[-1] == {setting == "local"}
        return ran

    on_executors = run("spark", ["spark"] * 3)
    for name, settings in (
        ("local", ["local"] * 3),
        ("mixed", ["local", "spark", "local"]),
    ):
        other = run(name, settings)
        assert other.rows == on_executors.rows
        assert other.state == on_executors.state


class TestChoice:
    def reports(self, *rows: int, limited: bool = False) -> Any:
        """One operator for each number of rows; the first one feeds the others."""
        limit = PartialLimit((), 3) if limited else None
        spec = InputSpec(pa.schema([("k", pa.int64())]), (), limit=limit)
        return [
            (
                SimpleNamespace(spec=SimpleNamespace(inputs=(spec,))),
                [
                    CommitRecord(
                        partition=0,
                        content=PartitionManifest(0),
                        states=[],
                        max_event_times=[],
                        statistics={"rows_in": float(number)},
                    )
                ],
            )
            for number in rows
        ]

    def test_a_stage_with_many_rows_goes_to_the_executors_and_comes_back(self) -> None:
        choice = ExecutorChoice("auto")
        assert choice.is_local("a", 2)
        choice.too_many("a")
        assert not choice.is_local("a", 2)
        assert choice.is_local("b", 2)
        choice.ran_on_cluster("a", self.reports(executor_choice.ROWS_MAX // 2))
        assert not choice.is_local("a", 2)
        choice.ran_on_cluster("a", self.reports(executor_choice.ROWS_MAX // 2 - 1))
        assert choice.is_local("a", 2)

    def test_a_slow_stage_goes_to_the_executors_until_it_has_half_the_rows(self) -> None:
        choice = ExecutorChoice("auto")
        choice.ran_locally("a", self.reports(100), executor_choice.SECONDS_MAX)
        assert choice.is_local("a", 2)
        choice.ran_locally("a", self.reports(100), executor_choice.SECONDS_MAX * 1.1)
        assert not choice.is_local("a", 2)
        choice.ran_on_cluster("a", self.reports(50))
        assert not choice.is_local("a", 2)
        choice.ran_on_cluster("a", self.reports(49))
        assert choice.is_local("a", 2)

    def test_a_slow_stage_without_rows_comes_back_with_the_next_empty_micro_batch(self) -> None:
        choice = ExecutorChoice("auto")
        choice.ran_locally("a", self.reports(0), executor_choice.SECONDS_MAX * 1.1)
        choice.ran_on_cluster("a", self.reports(1))
        assert not choice.is_local("a", 2)
        choice.ran_on_cluster("a", self.reports(0))
        assert choice.is_local("a", 2)

    def test_the_rows_of_what_feeds_a_stage_count(self) -> None:
        choice = ExecutorChoice("auto")
        choice.too_many("b")
        choice.ran_on_cluster("b", self.reports(executor_choice.ROWS_MAX, 1))
        assert not choice.is_local("b", 2)

    def test_a_stage_that_gets_the_first_rows_only_stays_on_the_executors(self) -> None:
        choice = ExecutorChoice("auto")
        choice.too_many("a")
        choice.ran_on_cluster("a", self.reports(3, limited=True))
        assert not choice.is_local("a", 2)

    def test_many_partitions_are_for_the_executors(self) -> None:
        assert ExecutorChoice("auto").is_local("a", executor_choice.PARTITIONS_MAX)
        assert not ExecutorChoice("auto").is_local("a", executor_choice.PARTITIONS_MAX + 1)
        assert ExecutorChoice("local").is_local("a", 1_000)
        assert not ExecutorChoice("spark").is_local("a", 1)


def test_a_session_that_cannot_run_operators_here_is_told(
    spark: SparkSession, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asyncstate.spark.job.runs_locally", lambda _: False)
    with pytest.raises(ConfigurationError, match=r"async-state.executor is local, but .* Spark 4.0 or newer"):
        make_job(options={"async-state.executor": "local"})
    make_job(options={"async-state.executor": "auto"})


def test_too_many_rows_run_on_the_executors_once_and_completely(
    spark: SparkSession, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor_choice, "ROWS_MAX", 20)
    monkeypatch.setattr(executor_choice, "SECONDS_MAX", float("inf"))  # whatever else the machine does
    job = make_job(options={"async-state.executor": "auto", "async-state.parallelism": 2})
    found: list[Counter[str]] = []

    @job.micro_batch
    def on_batch(df: DataFrame, batch: MicroBatch) -> None:
        out = batch.apply(GroupAggregate([count().alias("n")]), df, uid="n", key="k")
        found.append(Counter(str(tuple(row)) for row in out.collect()))

    places = []
    for number, rows in enumerate((10, 30, 30, 15, 9, 5)):
        on_batch(spark.range(rows).selectExpr("0 as k"), number)
        places.append(job.history[-1]["operators"]["n"]["in_driver"])
    assert places == [True, False, False, False, False, True]
    totals = [10, 40, 70, 85, 94, 99]
    assert found == [
        Counter({f"(0, {now}, '+I')": 1})
        if before is None
        else Counter({f"(0, {before}, '-U')": 1, f"(0, {now}, '+U')": 1})
        for before, now in zip([None, *totals], totals, strict=False)
    ]


def test_a_frame_of_local_rows_is_a_data_frame(spark: SparkSession, make_job: MakeJob) -> None:
    job = make_job(options={"async-state.executor": "local", "async-state.parallelism": 2})
    seen: dict[str, Any] = {}

    @job.micro_batch
    def on_batch(df: DataFrame, batch: MicroBatch) -> None:
        out = batch.apply(GroupAggregate([sum_("v"), collect("v").alias("all")]), df, uid="n", key="k")
        assert isinstance(out, LocalFrame)
        assert isinstance(out, DataFrame)
        seen["rows"] = sorted(tuple(row) for row in out.collect())
        seen["joined"] = out.join(df.groupBy("k").count(), "k").count()
        seen["schema"], seen["columns"] = out.schema.simpleString(), out.columns
        seen["pandas"] = len(out.toPandas())
        seen["twice"] = out.unionByName(out).where("k > 0").count()
        seen["kept"] = out

    on_batch(spark.range(4).selectExpr("id % 2 as k", "id as v"), 0)
    assert seen["rows"] == [(0, 2, [0, 2], "+I"), (1, 4, [1, 3], "+I")]
    assert (seen["joined"], seen["pandas"], seen["twice"]) == (2, 2, 2)
    assert seen["schema"] == "struct<k:bigint,sum_v:bigint,all:array<bigint>,row_kind:string>"
    with pytest.raises(JobError, match="'n' in batch 0 is read after the micro_batch function has returned"):
        seen["kept"].collect()
    with pytest.raises(JobError, match="is read after the micro_batch function has returned"):
        seen["kept"].batches  # noqa: B018


def test_a_failing_operator_commits_nothing_and_runs_again(
    spark: SparkSession, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job(options={"async-state.executor": "local", "async-state.parallelism": 2})
    totals: list[list[tuple[Any, ...]]] = []

    @job.micro_batch
    def on_batch(df: DataFrame, batch: MicroBatch) -> None:
        out = batch.apply(GroupAggregate([sum_("v")]), df, uid="n", key="k")
        totals.append(sorted(tuple(row) for row in out.collect()))

    on_batch(spark.sql("select 1 as k, 9223372036854775807L as v"), 0)
    with pytest.raises(OperatorError, match="does not fit int64"):
        on_batch(spark.sql("select 1 as k, 1L as v"), 1)
    on_batch(spark.sql("select 1 as k, -7L as v"), 1)
    assert totals == [
        [(1, 9223372036854775807, "+I")],
        [(1, 9223372036854775800, "+U"), (1, 9223372036854775807, "-U")],
    ]


class Leaves(RecordOperator):
    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        return pa.schema([("k", pa.int64())])

    def process(self, row: Row, ctx: RecordContext) -> None:
        raise SystemExit(4)


def test_an_operator_that_would_end_the_driver_is_named(
    spark: SparkSession, make_job: MakeJob, async_enabled: bool
) -> None:
    options = {"async-state.executor": "local", "async-state.enabled": async_enabled}
    job = make_job(options=options)

    @job.micro_batch
    def on_batch(df: DataFrame, batch: MicroBatch) -> None:
        batch.apply(Leaves(), df, uid="leaves", key="k")

    with pytest.raises(JobError, match=r"operator 'leaves' raised SystemExit\(4\).*Raise an error instead"):
        on_batch(spark.range(1).selectExpr("id as k"), 0)
    assert job.last_progress is None
