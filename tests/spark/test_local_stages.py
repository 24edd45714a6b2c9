"""Stages in the driver's process: the rows and the state of Spark's executors, wherever each micro-batch runs."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from asyncstate import RecordContext, RecordOperator, Row
from asyncstate.driver import executor_choice
from asyncstate.driver.executor_choice import ExecutorChoice, SourcesChoice
from asyncstate.errors import ConfigurationError, JobError, OperatorError
from asyncstate.metrics import DROPPED
from asyncstate.operator import InputSpec
from asyncstate.partial_aggregation import PartialLimit
from asyncstate.runtime import CommitRecord
from asyncstate.spark import MicroBatch, StreamingJob, local_frame, read_state
from asyncstate.spark.local_frame import Collector, LocalFrame
from asyncstate.spark.sinks import UpsertSink
from asyncstate.spark.sinks.target import TargetChanges
from asyncstate.spark.spark_executor import SparkExecutor
from asyncstate.storage import FileRef, OperatorManifest, PartitionManifest, SnapshotRef
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
from tests.spark.broadcast_parts import BadWords
from tests.spark.conftest import IN_DRIVER, PLACES

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
            f"timestamp_ntz'2026-01-01 00:00:{chosen.randrange(60):02}', {chosen.choice(RATIOS)}, "
            f"{chosen.choice(RAWS)}, {chosen.choice(DAYS)}, {chosen.choice(TIMES)}, {chosen.choice(NESTED)})"
        )
    names, kinds = zip(*(one.split(maxsplit=1) for one in COLUMNS), strict=True)
    columns = ", ".join(f"cast({name} as {kind}) as {name}" for name, kind in zip(names, kinds, strict=True))
    table = f"values {', '.join(values)} as t({', '.join(names)})"
    return spark.sql(f"select {columns} from {table}").repartition(2, "id")


COLUMNS = [
    "id long",
    "auction string",
    "price decimal(20,2)",
    "at timestamp",
    "tags array<string>",
    "ntz timestamp_ntz",
    "ratio double",
    "raw binary",
    "day date",
    "times map<string,timestamp>",
    "nested struct<a:decimal(38,10),b:array<timestamp_ntz>>",
]
RATIOS = ["double('NaN')", "double('-0.0')", "double('0.0')", "double('-inf')", "1.5", "null"]
RAWS = ["X''", "X'00ff'", "null"]
DAYS = ["date'1582-10-04'", "date'1582-10-15'", "date'9999-12-31'", "null"]
TIMES = ["map()", "map('a', timestamp'2024-03-10 02:30:00', 'b', null)", "null"]
NESTED = [
    "named_struct('a', cast('-9999999999999999999999999999.9999999999' as decimal(38, 10)), 'b', array())",
    "named_struct('a', null, 'b', array(timestamp_ntz'1582-10-04 12:00:00.000001', null))",
    "null",
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
        first.drop("price", "at"),
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


@IN_DRIVER
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
        session = spark.newSession()
        session.conf.set("spark.sql.session.timeZone", "America/New_York")
        for number, setting in enumerate(settings):
            ran.job._executor._choice = ExecutorChoice(setting)  # type: ignore[arg-type]
            ran(bids(session, number), number)
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


@IN_DRIVER
def test_the_stages_of_a_graph_go_to_the_executors_and_come_back(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path, async_enabled: bool
) -> None:
    """Operators whose first step runs in the task before theirs, over micro-batches in both places."""
    places = ["local", "spark", "local", "local", "spark"]
    job = make_job(options={"async-state.enabled": async_enabled, "async-state.parallelism": 2})
    texts = [f"select id % {number + 2} as k, id as v from range(9)" for number in range(len(places))]
    rows = job.source("rows", files(spark, tmp_path / "in", *texts))
    counted = rows.apply(GroupAggregate([count().alias("n")]), key="k", uid="counted")
    busy = counted.where("n > 1").with_columns(m="n + 0")
    histogram = busy.apply(GroupAggregate([count().alias("keys")]), key="m", uid="histogram")
    seen: list[tuple[str, str]] = []

    def sink(df: DataFrame, batch_id: int) -> None:
        seen.extend((row.row_kind, str(row[:-1])) for row in df.collect())
        if batch_id + 1 < len(places):
            job._executor._choice = ExecutorChoice(places[batch_id + 1])  # type: ignore[arg-type]

    histogram.to(sink, name="sink")
    job._executor._choice = ExecutorChoice("local")  # type: ignore[arg-type]
    job.await_termination(job.start(trigger="availableNow"))
    counts = Counter(v % (number + 2) for number in range(len(places)) for v in range(9))
    counts = Counter({key: n for key, n in counts.items() if n > 1})
    assert net(seen) == {(str(each),): 1 for each in Counter(counts.values()).items()}
    ran = [one["operators"]["histogram"]["in_driver"] for one in job.history]
    assert ran == [place == "local" for place in places]


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
        assert choice.fits("a", executor_choice.ROWS_MAX, executor_choice.BYTES_MAX)
        assert choice.is_local("a", 2)
        assert not choice.fits("a", executor_choice.ROWS_MAX + 1, 0)
        assert not choice.is_local("a", 2)
        assert choice.is_local("b", 2)
        choice.ran_on_cluster("a", self.reports(executor_choice.ROWS_MAX // 2))
        assert not choice.is_local("a", 2)
        choice.ran_on_cluster("a", self.reports(executor_choice.ROWS_MAX // 2 - 1))
        assert choice.is_local("a", 2)

    def test_a_stage_with_many_bytes_goes_to_the_executors_until_it_has_half_the_rows(self) -> None:
        choice = ExecutorChoice("auto")
        assert not choice.fits("a", 100, executor_choice.BYTES_MAX + 1)
        choice.ran_on_cluster("a", self.reports(50))
        assert not choice.is_local("a", 2)
        choice.ran_on_cluster("a", self.reports(49))
        assert choice.is_local("a", 2)
        assert ExecutorChoice("local").fits("a", 100, executor_choice.BYTES_MAX_GIVEN)
        assert not ExecutorChoice("local").fits("a", 100, executor_choice.BYTES_MAX_GIVEN + 1)

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
        choice.fits("b", executor_choice.ROWS_MAX + 1, 0)
        choice.ran_on_cluster("b", self.reports(executor_choice.ROWS_MAX, 1))
        assert not choice.is_local("b", 2)

    def test_a_stage_that_gets_the_first_rows_only_stays_on_the_executors(self) -> None:
        choice = ExecutorChoice("auto")
        choice.fits("a", executor_choice.ROWS_MAX + 1, 0)
        choice.ran_on_cluster("a", self.reports(3, limited=True))
        assert not choice.is_local("a", 2)

    def test_many_partitions_are_for_the_executors(self) -> None:
        assert ExecutorChoice("auto").is_local("a", executor_choice.PARTITIONS_MAX)
        assert not ExecutorChoice("auto").is_local("a", executor_choice.PARTITIONS_MAX + 1)
        assert ExecutorChoice("local").is_local("a", 1_000)
        assert not ExecutorChoice("spark").is_local("a", 1)


class TestAClustersDriver:
    """Its disk is not that of the executors."""

    def spec(self, folder: Path | None, size_bytes: int = 0) -> Any:
        file = FileRef("a-file", size_bytes, "0" * 32)
        partition = PartitionManifest(0, snapshot=SnapshotRef(0, "a", {"a": file}))
        base = OperatorManifest("a", "Count", 1, [partition])
        return SimpleNamespace(local_dir=None if folder is None else str(folder), base=base)

    def test_a_folder_of_the_executors_is_not_used(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        (tmp_path / "file").touch()
        choice = ExecutorChoice("auto", shares_disk=False)
        assert choice.is_local("a", 2, [self.spec(tmp_path / "own")])
        assert choice.is_local("a", 2, [self.spec(None)])
        for _ in range(2):
            assert not choice.is_local(
                "a", 2, [self.spec(tmp_path / "own"), self.spec(tmp_path / "file" / "x")]
            )
        (warning,) = [record.getMessage() for record in caplog.records]
        assert "the driver cannot have stores" in warning
        assert str(tmp_path / "file") in warning
        assert ExecutorChoice("auto").is_local("a", 2, [self.spec(tmp_path / "file" / "x")])

    def test_a_large_state_stays_on_the_executors(self) -> None:
        choice, most = ExecutorChoice("auto", shares_disk=False), executor_choice.STATE_BYTES_MAX
        assert choice.is_local("a", 2, [self.spec(None, most)])
        assert not choice.is_local("a", 2, [self.spec(None, most // 2), self.spec(None, most // 2 + 1)])
        assert ExecutorChoice("auto").is_local("a", 2, [self.spec(None, most + 1)])
        assert ExecutorChoice("local", shares_disk=False).is_local("a", 2, [self.spec(None, most + 1)])


def test_a_session_that_cannot_run_operators_here_is_told(
    spark: SparkSession, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asyncstate.spark.job.runs_locally", lambda _: False)
    with pytest.raises(ConfigurationError, match=r"async-state.executor is local, but .* Spark 4.0 or newer"):
        make_job(options={"async-state.executor": "local"})
    make_job(options={"async-state.executor": "auto"})


@IN_DRIVER
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


@IN_DRIVER
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
        seen["one column"] = sorted(row[0] for row in out.select(out["sum_v"]).collect())
        seen["twice"] = out.unionByName(out).where("k > 0").count()
        seen["kept"] = out

    on_batch(spark.range(4).selectExpr("id % 2 as k", "id as v"), 0)
    assert seen["rows"] == [(0, 2, [0, 2], "+I"), (1, 4, [1, 3], "+I")]
    assert (seen["joined"], seen["pandas"], seen["twice"]) == (2, 2, 2)
    assert seen["one column"] == [2, 4]
    assert seen["schema"] == "struct<k:bigint,sum_v:bigint,all:array<bigint>,row_kind:string>"
    with pytest.raises(JobError, match="'n' in batch 0 is read after the micro_batch function has returned"):
        seen["kept"].collect()
    with pytest.raises(JobError, match="is read after the micro_batch function has returned"):
        seen["kept"].batches  # noqa: B018


@IN_DRIVER
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


@IN_DRIVER
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


def files(spark: SparkSession, folder: Path, *texts: str) -> DataFrame:
    """A stream with a file for each micro-batch."""
    for number, text in enumerate(texts):
        spark.sql(text).coalesce(1).write.parquet(str(folder / str(number)))
    stream = spark.readStream.schema(spark.sql(texts[0]).schema).option("maxFilesPerTrigger", 1)
    return stream.parquet(str(folder / "*"))


class OwnSink:
    """A sink as a user writes one, with the method that gets the micro-batch."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []

    def write(self, df: DataFrame, batch_id: int) -> None:
        raise AssertionError("there is another method")

    def write_micro_batch(self, df: DataFrame, batch: MicroBatch, name: str) -> None:
        rows = sorted(tuple(row) for row in df.where("n > 0").collect())
        self.seen.append((batch.batch_id, name, batch.origin.job, rows))


@PLACES
def test_a_sink_of_ones_own_gets_a_data_frame(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path, executor: str
) -> None:
    job, sink = make_job(options={"async-state.executor": executor}), OwnSink()
    rows = job.source("rows", files(spark, tmp_path / "in", "select id % 2 as k from range(5)"))
    rows.apply(GroupAggregate([count().alias("n")]), key="k", uid="n").to(sink, name="own")
    job.await_termination(job.start(trigger="availableNow"))
    assert sink.seen == [(0, "own", "job", [(0, 3, "+I"), (1, 2, "+I")])]
    assert job.history[-1]["operators"]["n"]["in_driver"] == (executor == "local")


class Table:
    """A target in this process."""

    place = "a table"

    def __init__(self) -> None:
        self.rows: dict[int, tuple[int, list[int]]] = {}

    def check(self, schema: pa.Schema, keys: Sequence[str]) -> None:
        assert schema.names == ["k", "n", "vs"]

    def write(self, writer: str, batch_id: int, changes: TargetChanges, origin: Any = None) -> bool:
        self.rows |= {row["k"]: (row["n"], row["vs"]) for row in changes.upserts.to_pylist()}
        return True


@PLACES
def test_a_table_gets_lists(spark: SparkSession, make_job: MakeJob, tmp_path: Path, executor: str) -> None:
    """Rows with lists are compared with what they retract."""
    job, table = make_job(options={"async-state.executor": executor}), Table()
    texts = ["select 0L as k, 5L as v union all select 1L, 6L", "select 1L as k, 7L as v"]
    rows = job.source("rows", files(spark, tmp_path / "in", *texts))
    lists = GroupAggregate([count().alias("n"), collect("v").alias("vs")])
    rows.apply(lists, key="k", uid="lists").to(UpsertSink("k", table), name="lists")
    job.await_termination(job.start(trigger="availableNow"))
    assert table.rows == {0: (1, [5]), 1: (2, [6, 7])}
    assert job.history[-1]["operators"]["lists"]["in_driver"] == (executor == "local")


@PLACES
def test_functions_of_columns_see_the_rows_before_the_node_in_utc(
    spark: SparkSession, make_job: MakeJob, executor: str
) -> None:
    """Whatever the session's time zone is; new columns are in the order in which they are named."""
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "America/New_York")
    job = make_job(session, options={"async-state.executor": executor})
    rows = job.source(
        "rows", session.readStream.format("rate").load().selectExpr("timestamp as at", "value as k")
    )
    latest = rows.apply(GroupAggregate([max_("at").alias("at")]), key="k", uid="latest")
    seen: list[Any] = []

    def keep(df: DataFrame, batch_id: int) -> None:
        seen.append((df.columns, [tuple(row) for row in df.drop("at", "row_kind").collect()]))

    named = latest.with_columns(
        hour=lambda batch: pc.hour(batch["at"]), at=lambda batch: batch["at"], copy="k"
    )
    named.where(lambda batch: pc.equal(pc.hour(batch["at"]), 3)).to(keep, name="kept")
    _, on_batch = job._started()
    on_batch(session.sql("select timestamp'2026-01-01 03:00:00Z' as at, 5L as k"), 0)
    assert seen == [(["k", "at", "row_kind", "hour", "copy"], [(5, 3, 5)])]
    assert job.history[-1]["operators"]["latest"]["in_driver"] == (executor == "local")


@PLACES
def test_columns_are_computed_from_those_before_the_node(
    spark: SparkSession, make_job: MakeJob, executor: str
) -> None:
    job = make_job(options={"async-state.executor": executor})
    rows = job.source("rows", spark.readStream.format("rate").load().selectExpr("value as k", "value as v"))
    seen: list[Any] = []
    summed = rows.apply(GroupAggregate([sum_("v").alias("v")]), key="k", uid="sums")
    changed = summed.with_columns(v="k", sum=lambda batch: pc.negate(batch["v"]))
    changed.to(lambda df, _: seen.extend([df.columns, *map(tuple, df.collect())]), name="seen")
    _, on_batch = job._started()
    on_batch(spark.sql("select 1L as k, 7L as v"), 0)
    assert seen == [["k", "v", "row_kind", "sum"], (1, 1, "+I", -7)]


@PLACES
def test_a_function_of_columns_has_the_type_that_it_has_of_no_rows(
    spark: SparkSession, make_job: MakeJob, executor: str
) -> None:
    """Or a sink would get other columns from the driver's process than from Spark."""
    job = make_job(options={"async-state.executor": executor})
    rows = job.source("rows", spark.readStream.format("rate").load().selectExpr("value as k"))
    counted = rows.apply(GroupAggregate([count().alias("n")]), key="k", uid="n")
    halved = counted.with_columns(
        half=lambda batch: batch["n"].cast(pa.float64() if batch.num_rows else pa.int64())
    )
    halved.to(lambda df, _: df.collect(), name="halved")
    _, on_batch = job._started()
    with pytest.raises(Exception, match="half' returned double, but int64 was expected"):
        on_batch(spark.sql("select 1L as k"), 0)


@PLACES
def test_rows_belong_to_the_session_of_the_micro_batch(
    spark: SparkSession, make_job: MakeJob, executor: str
) -> None:
    """A query has a session of its own, with its temporary views and settings."""
    job = make_job(options={"async-state.executor": executor})
    seen: list[Any] = []

    @job.micro_batch
    def on_batch(df: DataFrame, batch: MicroBatch) -> None:
        out = batch.apply(GroupAggregate([count().alias("n")]), df, uid="n", key="k")
        again = batch.apply(GroupAggregate([count().alias("m")]), out.select("n"), uid="m", key="n")
        out.createOrReplaceTempView("counted")
        seen.extend(map(tuple, df.sparkSession.sql("select sum(n) from counted").collect()))
        seen.extend(frame.sparkSession.conf.get("spark.sql.session.timeZone") for frame in (out, again))

    own = spark.newSession()
    own.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    on_batch(own.sql("select id % 2 as k from range(5)"), 0)
    assert seen == [(5,), "Asia/Tokyo", "Asia/Tokyo"]
    assert "counted" not in [table.name for table in spark.catalog.listTables()]


@IN_DRIVER
def test_a_stage_that_emits_too_much_runs_on_the_executors_once_and_completely(
    spark: SparkSession, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch, async_enabled: bool
) -> None:
    monkeypatch.setattr(executor_choice, "BYTES_MAX", 16_000)
    monkeypatch.setattr(executor_choice, "SECONDS_MAX", float("inf"))
    options = {"async-state.executor": "auto", "async-state.parallelism": 2}
    job = make_job(options={**options, "async-state.enabled": async_enabled})
    pairs: list[tuple[Any, ...]] = []

    @job.micro_batch
    def on_batch(df: DataFrame, batch: MicroBatch) -> None:
        ones, others = df.selectExpr("k", "id as a"), df.selectExpr("k", "id as b")
        out = batch.apply(Join("inner"), ones, others, uid="pairs", key=("k", "k"))
        pairs.extend((row.a, row.b) for row in out.collect())

    places, rows = [], 0
    for number, more in enumerate((2, 30, 2, 2)):
        on_batch(spark.range(rows, rows + more).selectExpr("0 as k", "id"), number)
        rows += more
        places.append(job.history[-1]["operators"]["pairs"]["in_driver"])
        assert sorted(pairs) == [(a, b) for a in range(rows) for b in range(rows)]
    assert places == [True, False, False, True]


@IN_DRIVER
def test_a_broadcast_input_may_have_more_rows(
    spark: SparkSession, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver collects it wherever the stage runs."""
    monkeypatch.setattr(executor_choice, "ROWS_MAX", 20)
    monkeypatch.setattr(executor_choice, "SECONDS_MAX", float("inf"))
    job = make_job(options={"async-state.executor": "auto"})
    seen: list[Any] = []

    @job.micro_batch
    def on_batch(df: DataFrame, batch: MicroBatch) -> None:
        words = spark.range(30).selectExpr("concat('bad', id) as word", "cast(id as double) as score")
        out = batch.apply(BadWords(), df, words, uid="words", key=("sentence", None))
        seen.extend(row.sentence for row in out.collect())

    on_batch(spark.sql("select explode(array('good', 'bad29')) as sentence"), 0)
    assert seen == ["good"]
    assert job.history[-1]["operators"]["words"]["in_driver"]


MEETING = threading.Barrier(2)
MET: list[bool] = []


class Meets(RecordOperator):
    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        return pa.schema([("k", pa.int64())])

    def process(self, row: Row, ctx: RecordContext) -> None:
        try:
            MEETING.wait(2)
            MET.append(True)
        except threading.BrokenBarrierError:
            MET.append(False)


@IN_DRIVER
def test_jobs_of_one_driver_take_turns(spark: SparkSession, make_job: MakeJob, tmp_path: Path) -> None:
    """They share what one worker keeps in memory."""
    functions = []
    for name in ("one", "other"):
        job = make_job(checkpoint_dir=str(tmp_path / name), options={"async-state.executor": "local"})
        functions.append(
            job.micro_batch(lambda df, batch: batch.apply(Meets(), df, uid="meets", key="k") and None)
        )
    threads = [threading.Thread(target=one, args=(spark.sql("select 1L as k"), 0)) for one in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert MET == [False, False]


@IN_DRIVER
def test_columns_that_no_operator_reads_do_not_come_here(
    spark: SparkSession, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor_choice, "BYTES_MAX", 10_000)
    monkeypatch.setattr(executor_choice, "SECONDS_MAX", float("inf"))
    job = make_job(options={"async-state.executor": "auto"})
    seen: list[Any] = []

    @job.micro_batch
    def on_batch(df: DataFrame, batch: MicroBatch) -> None:
        sums = batch.apply(GroupAggregate([sum_("v").alias("v")]), df, uid="sums", key="k.k")
        counts = batch.apply(GroupAggregate([count().alias("n")]), df.drop("v"), uid="counts", key="k.k")
        every = batch.apply(GroupAggregate([count().alias("n")]), df.select("w", "wide"), uid="every")
        seen.extend([tuple(row) for row in frame.collect()] for frame in (sums, counts, every))

    on_batch(spark.range(9).selectExpr("1L as `k.k`", "repeat('x', 10000) as wide", "id as v", "id as w"), 0)
    assert seen == [[(1, 36, "+I")], [(1, 9, "+I")], [(9, "+I")]]
    assert all(one["in_driver"] for one in job.history[-1]["operators"].values())


@IN_DRIVER
@pytest.mark.parametrize("bound", ["0", "-1", "3"])
def test_any_bound_of_arrow_batches_will_do(spark: SparkSession, make_job: MakeJob, bound: str) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", bound)
    job, seen = make_job(session, options={"async-state.executor": "local"}), list[Any]()

    @job.micro_batch
    def on_batch(df: DataFrame, batch: MicroBatch) -> None:
        out = batch.apply(GroupAggregate([count().alias("n")]), df, uid="n", key="k")
        seen.extend(sorted(tuple(row) for row in out.selectExpr("k", "n + 1").collect()))

    on_batch(session.sql("select id % 4 as k from range(9)"), 0)
    assert seen == [(0, 4), (1, 3), (2, 3), (3, 3)]
    assert session.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch") == bound


@IN_DRIVER
def test_rows_that_are_too_wide_run_on_the_executors(
    spark: SparkSession, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor_choice, "BYTES_MAX", 100_000)
    monkeypatch.setattr(executor_choice, "SECONDS_MAX", float("inf"))
    job = make_job(options={"async-state.executor": "auto", "async-state.parallelism": 2})
    totals = []

    @job.micro_batch
    def on_batch(df: DataFrame, batch: MicroBatch) -> None:
        out = batch.apply(GroupAggregate([count("v").alias("n")]), df, uid="n", key="k")
        totals.append([row.n for row in out.where("row_kind in ('+I', '+U')").collect()])

    settings: Any = spark.sparkContext._jsc.sc().conf()
    places = []
    before = settings.get("spark.driver.maxResultSize", "1g")
    for number, (width, rows, result_size) in enumerate(
        [
            (10, 8, "1g"),
            (50_000, 8, "1g"),
            (10, 3, "1g"),
            (10, 8, "1g"),
            (50_000, 8, "100k"),
            (10, 1, "1g"),
            (10, 0, "1g"),
        ]
    ):
        settings.set("spark.driver.maxResultSize", result_size)
        try:
            on_batch(spark.range(rows).selectExpr("0 as k", f"repeat(chr(65 + id), {width}) as v"), number)
        finally:
            settings.set("spark.driver.maxResultSize", before)
        places.append(job.history[-1]["operators"]["n"]["in_driver"])
    assert totals == [[8], [16], [19], [27], [35], [36], []]
    assert places == [True, False, False, True, False, False, False]
    on_batch(spark.range(1).selectExpr("0 as k", "'z' as v"), 7)
    assert job.history[-1]["operators"]["n"]["in_driver"]


def _several_sources(spark: SparkSession, make_job: MakeJob, folder: Path, executor: str) -> tuple[Any, Any]:
    """A job whose sources are read by several operators and a sink; what it emitted, and its metrics."""
    job = make_job(checkpoint_dir=str(folder / "state"), options={"async-state.executor": executor})
    at = "timestamp'2026-01-01' + make_interval(0, 0, 0, 0, 0, 0, id * 10 + {n}) as at"
    bids_of = [
        f"select id % 3 as k, id * {n + 1} as v, 'w' as wide, {at.format(n=n * 30)} from range(8)"
        for n in range(4)
    ]
    kinds = ["+I", "+I", "-D"]  # the last one of a row that is not there
    names_of = [
        f"select {n % 3}L as k, named_struct('a', {n // 3}) as name, '{kinds[n]}' as row_kind"
        for n in range(3)
    ]
    names_of.append("select 0L as k, named_struct('a', 7) as name, '+I' as row_kind")
    bids_ = job.source(
        "bids", files(spark, folder / "bids", *bids_of), event_time="at", watermark_delay="5 seconds"
    )
    names = job.source("names", files(spark, folder / "names", *names_of), changelog=True)
    job.source("not read", files(spark, folder / "other", *(f"select {n} as x" for n in range(4))))
    counted = job.source(
        "counted", files(spark, folder / "counted", *(f"select id from range({n})" for n in range(1, 5)))
    )
    words = job.table("words", spark.sql("select 1L as k, 'one' as word"))
    seen: dict[str, list[Any]] = {}

    def sink(name: str) -> Any:
        return lambda df, number: seen.setdefault(name, []).extend(
            (number, tuple(row)) for row in sorted(df.drop("wide").collect(), key=str)
        )

    windows = WindowAggregate(tumble("10 seconds"), [count().alias("n")])
    bids_.select("k", "at").apply(windows, key="k", uid="windows").to(sink("windows"), name="windows")
    bids_.where("v % 2 = 0").select("k", "v").apply(
        GroupAggregate([sum_("v").alias("s")]), key="k", uid="sums"
    ).to(sink("sums"), name="sums")
    joined = bids_.select("k", "v").apply(Join(), names, key=["k", "k"], uid="joined")
    joined.to(sink("joined"), name="joined")
    bids_.to(sink("bids"), name="bids")
    ones = counted.select("1 as one").apply(GroupAggregate([count().alias("n")]), key="one", uid="ones")
    ones.to(sink("ones"), name="ones")
    named = bids_.select("k", "v").apply(Join(), words, key=["k", "k"], uid="named")
    named.to(sink("named"), name="named")
    return job, seen


def test_one_job_of_spark_brings_the_rows_of_all_sources(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    brought: list[Any] = []
    collect = Collector.collect

    def counted(self: Collector, df: DataFrame, *more: Any) -> Any:
        brought.append(None if isinstance(df, LocalFrame) else df.columns)
        return collect(self, df, *more)

    monkeypatch.setattr(Collector, "collect", counted)
    found = {}
    for executor in ("spark", "local"):
        job, seen = _several_sources(spark, make_job, tmp_path / executor, executor)
        job.await_termination(job.start(trigger="availableNow"))
        times = [(one["sources"], one["watermark_us"], one["dropped"]) for one in job.history]
        found[executor] = seen, times
    assert found["local"] == found["spark"]
    rows = found["local"][0]
    values = [(id_ % 3, id_ * n) for n in range(1, 5) for id_ in range(8)]
    sums = {(k, sum(v for key, v in values if key == k and v % 2 == 0)): 1 for k in range(3)}
    assert net((row[-1], *row[:-1]) for _, row in rows["sums"]) == sums
    names = {0: [(0,), (7,)], 1: [(0,)], 2: []}
    expected = Counter((*one, name) for one in values for name in names[one[0]])
    assert net((row[-1], row[0], row[1], row[3]) for _, row in rows["joined"]) == expected
    assert len(rows["bids"]) == len(values)
    assert rows["windows"]
    assert net((row[-1], *row[:-1]) for _, row in rows["ones"]) == {(1, 10): 1}
    assert net((row[-1], *row[:-1]) for _, row in rows["named"]) == Counter(
        (*one, 1, "one") for one in values if one[0] == 1
    )
    by_spark = [columns for columns in brought if columns is not None]
    # The first micro-batch does not know yet; of the others, one condition is Spark's.
    later = [["asyncstate:source", "asyncstate:0", "asyncstate:1", "asyncstate:3"], ["k", "v"]]
    assert by_spark[-6:] == later * 3
    assert later[0] not in by_spark[:-6]


@IN_DRIVER
@pytest.mark.parametrize("executor", ["spark", "local"])
def test_conditions_over_a_collation_are_sparks(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path, executor: str
) -> None:
    job = make_job(options={"async-state.executor": executor})
    texts = [f"select {n} as n, '{name}' as name" for n, name in enumerate(["ann", "Ann", "ben"])]
    named = files(spark, tmp_path / "in", *texts).selectExpr("n", "name collate UTF8_LCASE as name")
    people = job.source("people", named)
    seen: list[Any] = []
    for uid, condition in (
        ("equal", "name = 'ANN'"),
        ("cased", "CASE WHEN name > 'BEN' THEN true END IS NULL"),
    ):
        counted = (
            people.where(condition)
            .select("1 as one")
            .apply(GroupAggregate([count().alias("n")]), key="one", uid=uid)
        )
        counted.to(
            lambda df, _, uid=uid: seen.extend((uid, row.n) for row in df.collect() if row.row_kind != "-U")
        )
    job.await_termination(job.start(trigger="availableNow"))
    assert sorted(seen) == [("cased", 1), ("cased", 2), ("cased", 3), ("equal", 1), ("equal", 2)]


def test_sources_with_too_many_rows_are_tried_less_and_less_often() -> None:
    choice, tries = SourcesChoice(), []
    for _ in range(40):
        tries.append(choice.begin())
        if tries[-1]:
            choice.came(fitted=False)
        choice.ran(here=True)
    assert [number for number, tried in enumerate(tries) if tried] == [1, 3, 6, 11, 20, 37]
    choice.came(fitted=True)
    assert choice.begin()
    choice.ran(here=True)
    choice.ran(here=False)
    assert not choice.begin()
    assert not choice.begin()  # no stage has run


def test_rows_that_are_marked_as_dropped_are_counted_here_as_in_spark(spark: SparkSession) -> None:
    executor = SparkExecutor(spark)
    rows = spark.createDataFrame([(1, None), (2, "b"), (3, "a")], f"v long, `{DROPPED}` string")
    here = LocalFrame(rows.toArrow().to_batches(), rows.schema, spark)
    for frame in (rows, here):
        assert executor.dropped(frame) == (2, "a")
        assert [tuple(row) for row in executor.kept(frame, "n").collect()] == [(1,)]
    none = LocalFrame([], rows.schema, spark)
    assert executor.dropped(none) == (0, None)
    times = spark.sql(
        "select timestamp_micros(v) as t from values (1L), (2L), (5000000000000000000L), (null) as x(v)"
    )
    here = LocalFrame(times.toArrow().to_batches(), times.schema, spark)
    assert executor.highest(times, "t") == executor.highest(here, "t") == 2
    assert executor.highest(LocalFrame([], times.schema, spark), "t") is None


@IN_DRIVER
def test_why_rows_cannot_be_sent_to_spark_is_said(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: Any) -> None:
        raise AttributeError("no serializer of points")

    monkeypatch.setattr(local_frame, "_created", refuses)
    rows = spark.range(3)
    here = LocalFrame(rows.toArrow().to_batches(), rows.schema, spark)
    with pytest.raises(JobError, match=r"cannot be sent to Spark: no serializer of points"):
        here.where("id > 1")
