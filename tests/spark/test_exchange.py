"""One apply: rows reach their partition once, and the stage runs once, whatever happens to its output."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from asyncstate.errors import JobError, OperatorError, SchemaError
from asyncstate.spark import MicroBatch, StreamingJob
from asyncstate.spark.exchange import input_spec
from asyncstate.spark.python_task import PartitionTask
from tests.conftest import another_session
from tests.spark.parts import Echo, echo, runs

pytestmark = [pytest.mark.spark, pytest.mark.executors]

MakeJob = Callable[..., StreamingJob]
PARTITIONS = 3
GROUPS = 128


@pytest.fixture(params=["false", "true"], ids=["aqe-off", "aqe-on"])
def session(spark: SparkSession, request: pytest.FixtureRequest) -> SparkSession:
    """The session with and without adaptive execution; coalescing pushed as far as it goes."""
    own = another_session(spark)
    own.conf.set("spark.sql.adaptive.enabled", request.param)
    own.conf.set("spark.sql.adaptive.coalescePartitions.parallelismFirst", "false")
    own.conf.set("spark.sql.adaptive.advisoryPartitionSizeInBytes", "1g")
    return own


def run_one(
    job: StreamingJob, df: DataFrame, use: Callable[[MicroBatch, DataFrame], Any], batch_id: int = 0
) -> Any:
    """Run ``use`` as the job's function and hand out what it returned."""
    results = []
    job.micro_batch(lambda rows, batch: results.append(use(batch, rows)))(df, batch_id)
    return results[0]


def numbers(session: SparkSession, count: int) -> DataFrame:
    return session.range(0, count, 1, 2).select("id", (sf.col("id") % 17).alias("k"))


@pytest.mark.smoke
def test_rows_go_once_to_the_partition_of_their_key_group(
    session: SparkSession, make_job: MakeJob, run_log: str
) -> None:
    df = numbers(session, 1000)
    expected = {
        row.id: row.hash % GROUPS * PARTITIONS // GROUPS
        for row in df.select("id", sf.xxhash64("k").alias("hash")).collect()
    }

    out = run_one(
        make_job(session, run=echo),
        df,
        lambda batch, rows: batch.apply(Echo(run_log), rows, key="k", uid="e").collect(),
    )

    assert {row.id: row.partition for row in out} == expected
    assert len(out) == len(expected)
    assert {row.row_kind for row in out} == {"+I"}
    assert runs(run_log) == [0, 1, 2]


@pytest.mark.parametrize("count", [0, 1, 7], ids=["empty", "one-row", "few-rows"])
def test_every_partition_runs_however_few_rows_there_are(
    session: SparkSession, make_job: MakeJob, run_log: str, count: int
) -> None:
    out = run_one(
        make_job(session, run=echo),
        numbers(session, count),
        lambda batch, rows: batch.apply(Echo(run_log), rows, key="k", uid="e").collect(),
    )
    assert sorted(row.id for row in out) == list(range(count))
    assert runs(run_log) == [0, 1, 2]


def never(batch: MicroBatch, out: DataFrame) -> None:
    pass


def twice(batch: MicroBatch, out: DataFrame) -> None:
    assert out.count() == 100
    assert out.agg(sf.sum("id")).collect()[0][0] == sum(range(100))


def limited(batch: MicroBatch, out: DataFrame) -> None:
    assert len(out.limit(1).collect()) == 1


def filtered(batch: MicroBatch, out: DataFrame) -> None:
    assert out.where(sf.lit(False)).collect() == []


def joined_with_nothing(batch: MicroBatch, out: DataFrame) -> None:
    assert out.join(out.where("id < 0").select("id"), "id").collect() == []


def second_in_a_union(batch: MicroBatch, out: DataFrame) -> None:
    assert out.select("id").union(out.select("id")).count() == 200


JOINED = pytest.param(
    joined_with_nothing, marks=pytest.mark.since_spark("4.0", "joins of lists of rows with themselves")
)


@pytest.mark.parametrize("use", [never, twice, limited, filtered, JOINED, second_in_a_union])
def test_the_stage_runs_once_whatever_is_done_with_its_rows(
    session: SparkSession, make_job: MakeJob, run_log: str, use: Callable[[MicroBatch, DataFrame], None]
) -> None:
    job = make_job(session, run=echo)
    run_one(
        job,
        numbers(session, 100),
        lambda batch, rows: use(batch, batch.apply(Echo(run_log), rows, key="k", uid="e")),
    )
    assert runs(run_log) == [0, 1, 2]
    figures = job.history[-1]["operators"]["e"]
    assert (figures["rows_in"], figures["in_flight_peak"]) == (100, 2)


def test_a_stage_second_in_a_union_before_the_exchange_keeps_its_partitions(
    session: SparkSession, make_job: MakeJob, run_log: str
) -> None:
    def chained(batch: MicroBatch, rows: DataFrame) -> Any:
        first = batch.apply(Echo(run_log), rows, key="k", uid="a").select("id", "partition")
        more = rows.select("id", sf.lit(0).alias("partition")).union(first)
        return batch.apply(Echo(run_log), more, key="partition", uid="b").collect()

    assert len(run_one(make_job(session, run=echo), numbers(session, 50), chained)) == 100
    assert runs(run_log) == [0, 0, 1, 1, 2, 2]


def test_rows_are_given_back_and_cut_from_their_plan(
    spark: SparkSession, make_job: MakeJob, run_log: str
) -> None:
    def use(batch: MicroBatch, rows: DataFrame) -> DataFrame:
        out = batch.apply(Echo(run_log), rows, key="k", uid="e")
        plan = out._jdf.queryExecution().optimizedPlan().toString()
        assert "MapInArrow" not in plan
        return out

    before = spark.sparkContext._jsc.getPersistentRDDs().size()
    run_one(make_job(run=echo), numbers(spark, 10), use)
    assert spark.sparkContext._jsc.getPersistentRDDs().size() == before


def test_two_inputs_come_apart_again(session: SparkSession, make_job: MakeJob, run_log: str) -> None:
    def use(batch: MicroBatch, rows: DataFrame) -> Any:
        left = rows.select(sf.col("id"), sf.col("k").alias("a b.c`d"), sf.lit("x").alias("text"))
        right = rows.select((sf.col("id") + 1000).alias("id"), sf.col("k"))
        return batch.apply(Echo(run_log, num_inputs=2), left, right, key=("a b.c`d", "k"), uid="e").collect()

    out = run_one(make_job(session, run=echo), numbers(session, 100), use)
    assert sorted((row.input, row.id) for row in out) == [(0, i) for i in range(100)] + [
        (1, 1000 + i) for i in range(100)
    ]
    partition = {(row.input, row.id): row.partition for row in out}
    assert all(partition[0, i] == partition[1, 1000 + i] for i in range(100))


def test_arrival_order_is_kept_within_a_source_partition(
    session: SparkSession, make_job: MakeJob, run_log: str
) -> None:
    df = session.range(0, 5000, 1, 1).select("id", (sf.col("id") % 5).alias("k"))
    out = run_one(
        make_job(session, run=echo),
        df,
        lambda batch, rows: batch.apply(Echo(run_log), rows, key="k", uid="e").collect(),
    )
    for partition in range(PARTITIONS):
        ids = [row.id for row in out if row.partition == partition]
        assert ids == sorted(ids)


@pytest.mark.smoke
@pytest.mark.long
def test_kinds_are_read_and_written(spark: SparkSession, make_job: MakeJob, run_log: str) -> None:
    kinds = ["+I", "-U", "+U", "-D"]
    df = spark.createDataFrame([(i, kinds[i % 4]) for i in range(20)], "id long, row_kind string")
    out = run_one(
        make_job(run=echo), df, lambda batch, rows: batch.apply(Echo(run_log), rows, uid="e").collect()
    )
    assert {row.id: row.row_kind for row in out} == {i: kinds[i % 4] for i in range(20)}
    assert {row.partition for row in out} == {0}  # no key: one global group


@pytest.mark.parametrize("kind", ["+X", None])
def test_an_unknown_kind_is_named(
    spark: SparkSession, make_job: MakeJob, run_log: str, kind: str | None
) -> None:
    df = spark.createDataFrame([(1, kind)], "id long, row_kind string")
    with pytest.raises(
        SchemaError, match=r"input of operator 'e'.*row_kind.*" + repr(kind).replace("+", r"\+")
    ):
        run_one(make_job(run=echo), df, lambda batch, rows: batch.apply(Echo(run_log), rows, uid="e"))


def test_timestamps_are_utc_microseconds_in_any_session_zone(
    spark: SparkSession, make_job: MakeJob, run_log: str
) -> None:
    own = spark.newSession()
    own.conf.set("spark.sql.session.timeZone", "America/New_York")
    df = own.sql("select 1L as id, timestamp_micros(1700000000123456) as at")
    job = make_job(own, run=echo)
    on_batch = job.micro_batch(
        lambda rows, batch: batch.apply(
            Echo(run_log), rows, uid="e", event_time="at", watermark_delay=datetime.timedelta(seconds=1)
        )
    )
    on_batch(df, 0)
    on_batch(df, 1)
    assert job.history[-1]["watermark_us"] == 1700000000123456 - 1_000_000


@pytest.mark.smoke
def test_an_error_in_a_worker_comes_as_itself(spark: SparkSession, make_job: MakeJob, run_log: str) -> None:
    message = "operator 'e', state 'x', key (1,): it's broken\nsecond line [with] signs é"
    job = make_job(run=echo)
    with pytest.raises(OperatorError) as failure:
        run_one(
            job,
            numbers(spark, 3),
            lambda b, rows: b.apply(Echo(run_log, fail=message), rows, key="k", uid="e"),
        )
    assert str(failure.value) == message
    assert "in the Python worker" in str(failure.value.__cause__)
    assert "parts.py" in str(failure.value.__cause__)
    assert "at org.apache" not in str(failure.value.__cause__)
    assert job.last_error is failure.value


def test_rows_of_two_partitions_in_one_task_are_refused(run_log: str) -> None:
    import pyarrow as pa

    from asyncstate.spark.column_types import ROUTE
    from asyncstate.spark.python_task import split_inputs

    class Spec:
        uid = "e"
        inputs = ()

    batch = pa.RecordBatch.from_pydict({ROUTE: pa.array([1 * 4 + 3, 2 * 4 + 3], pa.int32())})
    with pytest.raises(JobError, match=r"'e'.*partitions \[1, 2\]"):
        list(split_inputs(Spec(), 1, iter([batch])))  # type: ignore[arg-type]


def test_a_task_without_rows_is_refused(run_log: str) -> None:
    class Spec:
        uid = "e"

    with pytest.raises(JobError, match="not even its marker"):
        list(PartitionTask(Spec(), None, echo)(iter([])))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("texts", "lists"),
    [
        (["short"] * 2_500, [1_000, 1_000, 500]),
        (["x" * 700_000] * 3, [1, 1, 1]),
        (["a", None, "c"], [3]),
        ([], []),
    ],
    ids=["by rows", "by bytes", "few", "none"],
)
def test_output_leaves_in_lists_of_bounded_length(texts: list[str | None], lists: list[int]) -> None:
    import pyarrow as pa

    from asyncstate.runtime import CommitRecord
    from asyncstate.spark.column_types import COMMIT, MARKER_TAG, OUTPUT, ROUTE, TAG_BITS
    from asyncstate.spark.exchange import stage_schema, wire_schema
    from asyncstate.storage import PartitionManifest

    class Spec:
        uid = "e"
        inputs = ()

    def run(_spec: Any, _partition: int, _batches: Any) -> Any:
        whole = pa.RecordBatch.from_pydict(
            {"text": pa.array(["before", *texts], pa.string()), "row_kind": ["+I"] * (len(texts) + 1)}
        )
        yield whole.slice(1)
        yield CommitRecord(partition=0, content=PartitionManifest(0, None, []), states=[], max_event_times=[])

    wire = wire_schema(stage_schema("e", pa.schema([("text", pa.string())])))
    marker = pa.RecordBatch.from_pydict({ROUTE: pa.array([MARKER_TAG + (0 << TAG_BITS)], pa.int32())})
    out = pa.Table.from_batches(PartitionTask(Spec(), wire, run)(iter([marker])), wire)  # type: ignore[arg-type]
    found = [rows for rows in out[OUTPUT].to_pylist() if rows is not None]
    assert [len(rows) for rows in found] == lists
    assert [row["text"] for rows in found for row in rows] == texts
    assert [row is None for row in out[COMMIT].to_pylist()] == [False, *[True] * len(lists), False]


def test_worker_imports_stay_small() -> None:
    """A worker must be able to unpickle a task without the driver's modules."""
    import subprocess
    import sys

    code = (
        "import sys, asyncstate.spark.python_task; "
        "print([m for m in sys.modules if m.split('.')[0] in ('pyspark', 'anyio', 'rocksdict')])"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    assert done.stdout.strip() == "[]"


def test_the_column_of_kinds_in_other_letters_is_refused(spark: SparkSession) -> None:
    df = spark.range(1).selectExpr("id", "'+I' as ROW_KIND")
    with pytest.raises(SchemaError, match="input 0: column 'ROW_KIND' differs only in case from 'row_kind'"):
        input_spec(df, ("id",), None, "input 0")


@pytest.mark.since_spark("4.0", "collations")
@pytest.mark.parametrize("collation", ["UTF8_LCASE", "UNICODE_CI", "UTF8_BINARY_RTRIM"])
def test_columns_of_another_collation_are_refused(spark: SparkSession, collation: str) -> None:
    """Spark takes 'a' and 'A' as equal there; operators tell them apart by their bytes, in keys and everywhere else."""
    df = spark.range(1).selectExpr(f"'a' collate {collation} as k", "id")
    with pytest.raises(
        SchemaError, match=f"input 0: key column 'k' has the collation {collation}.*lower\\(k\\)"
    ):
        input_spec(df, ("k",), None, "input 0")
    for more in ("k", "array(k) as k", "map(id, k) as k", "struct(id, array(k) as x) as k"):
        with pytest.raises(
            SchemaError,
            match=f"input 0: column 'k' has the collation {collation}.*min_ and max_, DISTINCT, orders",
        ):
            input_spec(df.selectExpr("id", more), ("id",), None, "input 0")
    plain = df.selectExpr("lower(k) collate UTF8_BINARY as k")
    assert input_spec(plain, ("k",), None, "input 0").key == ("k",)
