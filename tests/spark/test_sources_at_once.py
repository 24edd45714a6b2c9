"""Rows of all sources that one Spark job brings to the driver: every node gets what it gets if each input is read by
itself, as in the first micro-batch of a job."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StructField, StructType
from pyspark.testing.objects import ExamplePoint, ExamplePointUDT

from asyncstate.dataflow import Stream
from asyncstate.driver import executor_choice
from asyncstate.spark import StreamingJob
from asyncstate.spark.local_frame import LocalFrame
from asyncstate.spark.sources import json_rows
from asyncstate.spark.spark_executor import SparkExecutor
from asyncstate.testing import net
from operators import GroupAggregate, Join, count, sum_
from tests.spark.conftest import IN_DRIVER, PLACES

pytestmark = pytest.mark.spark

MakeJob = Callable[..., StreamingJob]
Build = Callable[[Stream], Stream]


@pytest.fixture
def brought(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each time that a job tries to bring the rows of all sources, whether they came."""
    found: list[bool] = []
    own = SparkExecutor.brought

    def noted(self: SparkExecutor, rows: DataFrame) -> LocalFrame | None:
        made = own(self, rows)
        found.append(made is not None)
        return made

    monkeypatch.setattr(SparkExecutor, "brought", noted)
    return found


def counted(rows: Stream, uid: str, into: list[Any], key: str = "k") -> None:
    """The numbers of rows by ``key``, in the rows that each micro-batch emits."""
    out = rows.apply(GroupAggregate([count().alias("n")]), key=key, uid=uid)
    out.to(lambda df, _: into.append(sorted(map(tuple, df.collect()), key=str)), name=uid)


def two_micro_batches(
    session: SparkSession, job: StreamingJob, columns: Sequence[str], build: Build
) -> list[Any]:
    """What ``build`` makes of equal rows in two micro-batches, of which the second one brings them."""
    columns = ["value as k", *columns]
    rows = job.source("rows", session.readStream.format("rate").load().selectExpr(*columns))
    counted(rows.select("k"), "n", [])
    seen: list[Any] = []
    build(rows).to(lambda df, _: seen.append(list(map(tuple, df.collect()))), name="seen")
    _, on_batch = job._started()
    for number in range(2):
        given = session.range(4).selectExpr("id as value", "timestamp_seconds(id) as timestamp")
        on_batch(given.selectExpr(*columns), number)
    return seen


def in_driver(make_job: MakeJob, session: SparkSession) -> StreamingJob:
    return make_job(session, options={"async-state.executor": "local", "async-state.parallelism": 2})


COLLATED = "collate(if(value = 1, 'ABC', 'x'), 'UTF8_LCASE') as c"
CASES: Mapping[str, tuple[Sequence[str], Build, Sequence[tuple[Any, ...]]]] = {
    "a collation": ([COLLATED], lambda rows: rows.where("c = 'abc'").select("k"), [(1,)]),
    "a renamed column with a collation": (
        [COLLATED],
        lambda rows: rows.select("k", "c as d").select("k", "d = 'abc' as same"),
        [(0, False), (1, True), (2, False), (3, False)],
    ),
    "a variant": (
        ["parse_json(string(value)) as v"],
        lambda rows: rows.where("k > 1").select("k", "variant_get(v, '$', 'int') as v"),
        [(2, 2), (3, 3)],
    ),
    "renamed lengths of time": (
        ["make_dt_interval(int(value)) as d", "interval '2' hour as h"],
        lambda rows: (
            rows.where("k = 1").select("h as d", "d as h").select("string(d) as d", "string(h) as h")
        ),
        [("INTERVAL '02' HOUR", "INTERVAL '1 00:00:00' DAY TO SECOND")],
    ),
    "no type": (["null as n"], lambda rows: rows.select("k", "n"), [(k, None) for k in range(4)]),
    "structs and maps": (
        ["named_struct('a', value, 'b', named_struct('at', timestamp)) as s", "map('x', timestamp) as m"],
        lambda rows: rows.select(
            "k", "unix_seconds(s.b.at) as at", "unix_seconds(m['x']) as x", "s as t"
        ).select("k", "t.a", "x", "at"),
        [(k, k, k, k) for k in range(4)],
    ),
    "nulls in a column that has none": (
        ["1L as one"],
        lambda rows: rows.with_columns(one=lambda batch: pa.nulls(batch.num_rows, pa.int64())).where(
            "coalesce(one, k) = 2"
        ),
        [(2, None)],
    ),
}


@IN_DRIVER
@pytest.mark.parametrize("case", CASES)
def test_columns_of_any_type(spark: SparkSession, make_job: MakeJob, brought: list[bool], case: str) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "America/New_York")
    columns, build, expected = CASES[case]
    seen = two_micro_batches(session, in_driver(make_job, session), columns, build)
    assert brought == [True]
    assert seen == [list(expected)] * 2


@PLACES
def test_a_source_with_a_type_that_arrow_does_not_have(
    spark: SparkSession, make_job: MakeJob, brought: list[bool], executor: str
) -> None:
    job = make_job(options={"async-state.executor": executor})
    months: Build = lambda rows: rows.select("k", "string(m) as m")  # noqa: E731
    seen = two_micro_batches(spark, job, ["make_ym_interval(0, int(value)) as m"], months)
    assert brought == ([False] if executor == "local" else [])
    assert seen == [[(k, f"INTERVAL '0-{k}' YEAR TO MONTH") for k in range(4)]] * 2
    assert [one["operators"]["n"]["in_driver"] for one in job.history] == [executor == "local"] * 2


@IN_DRIVER
def test_functions_of_columns_see_the_rows_of_sources_in_utc(
    spark: SparkSession, make_job: MakeJob, brought: list[bool]
) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "America/New_York")
    hours: Build = lambda rows: rows.with_columns(hour=lambda batch: pc.hour(batch["at"])).select("k", "hour")  # noqa: E731
    seen = two_micro_batches(session, in_driver(make_job, session), ["timestamp as at"], hours)
    assert brought == [True]
    assert seen == [[(k, 0) for k in range(4)]] * 2


@IN_DRIVER
def test_rows_of_a_source_and_some_of_them_go_to_one_operator(
    spark: SparkSession, make_job: MakeJob, brought: list[bool]
) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "America/New_York")
    seen: list[Any] = []

    def build(rows: Stream) -> Stream:
        both = rows.union(rows.where("k > 1"))
        counted(both, "both", seen)
        return both

    two_micro_batches(session, in_driver(make_job, session), ["timestamp as at"], build)
    assert brought == [True]
    assert net((row[-1], *row[:-1]) for rows in seen for row in rows) == {
        (0, 2): 1,
        (1, 2): 1,
        (2, 4): 1,
        (3, 4): 1,
    }


@IN_DRIVER
@pytest.mark.parametrize("is_sensitive", [False, True])
def test_columns_that_differ_in_case_only(
    spark: SparkSession, make_job: MakeJob, brought: list[bool], is_sensitive: bool
) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.caseSensitive", str(is_sensitive))
    seen = two_micro_batches(
        session, in_driver(make_job, session), ["1 as a", "2 as A"], lambda rows: rows.drop("a")
    )
    assert brought == []
    assert seen == [[(k, 2) if is_sensitive else (k,) for k in range(4)]] * 2


@IN_DRIVER
def test_rows_of_sources_belong_to_the_session_of_the_micro_batch(
    spark: SparkSession, make_job: MakeJob, brought: list[bool]
) -> None:
    job = make_job(options={"async-state.executor": "local"})
    rows = job.source(
        "rows", spark.readStream.format("rate").load().selectExpr("value as k", "timestamp as at")
    )
    seen: list[Any] = []
    zone = "spark.sql.session.timeZone"
    counts = rows.select("k").apply(GroupAggregate([count().alias("n")]), key="k", uid="n")
    for name, stream in (("counts", counts), ("rows", rows)):
        stream.to(lambda df, _: seen.append(df.sparkSession.conf.get(zone)), name=name)
    rows.select("hour(at) as h").to(lambda df, _: seen.append([row.h for row in df.collect()]), name="hours")
    _, on_batch = job._started()
    own = spark.newSession()
    own.conf.set(zone, "Asia/Tokyo")
    for number in range(2):
        on_batch(own.sql("select id as k, timestamp'2026-01-01 07:00:00' as at from range(2)"), number)
    assert brought == [True]
    assert seen == ["Asia/Tokyo", "Asia/Tokyo", [7, 7]] * 2


def files(spark: SparkSession, folder: Path, texts: Sequence[str]) -> DataFrame:
    """A stream with a file for each micro-batch."""
    for number, text in enumerate(texts):
        spark.sql(text).coalesce(1).write.parquet(str(folder / str(number)))
    stream = spark.readStream.schema(spark.sql(texts[0]).schema).option("maxFilesPerTrigger", 1)
    return stream.parquet(str(folder / "*"))


def run(job: StreamingJob) -> None:
    job.await_termination(job.start(trigger="availableNow"))


@PLACES
@pytest.mark.parametrize("sources", [1, 2])
def test_rows_that_a_reader_drops_stay_dropped(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path, brought: list[bool], executor: str, sources: int
) -> None:
    lines = ['{"k": 1, "v": 2}', '{"k": 2, "v": 5}', '{"k": 1', '{"v": 1}']
    text = f"select explode(array({', '.join(map(repr, lines))})) as value"
    job = make_job(options={"async-state.executor": executor})
    raw = files(spark, tmp_path / "items", [text] * 3)
    items = job.source("items", json_rows(raw, "k bigint not null, v bigint", malformed="drop"))
    seen: list[Any] = []
    counted(items.select("k"), "n", seen)
    items.to(lambda df, _: seen.append(sorted(map(tuple, df.collect()))), name="items")
    if sources == 2:
        counted(job.source("other", files(spark, tmp_path / "other", ["select 1L as k"] * 3)), "other", [])
    run(job)
    assert brought == ([True, True] if executor == "local" else [])
    assert seen[1::2] == [[(1, 2), (2, 5)]] * 3
    changes = [row for rows in seen[::2] for row in rows]
    assert net((row[-1], *row[:-1]) for row in changes) == {(1, 3): 1, (2, 3): 1}
    assert [one["dropped"]["items"]["rows"] for one in job.history] == [2] * 3


@PLACES
def test_a_source_that_no_node_reads_advances_the_watermark(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path, brought: list[bool], executor: str
) -> None:
    job = make_job(options={"async-state.executor": executor})
    for name, step in (("read", 10), ("not read", 5)):
        texts = [f"select 1L as k, timestamp_seconds({number * step}) as at" for number in range(4)]
        rows = job.source(
            name, files(spark, tmp_path / name, texts), event_time="at", watermark_delay="1 second"
        )
        if name == "read":
            counted(rows, "n", [])
            rows.to(lambda *_: None, name="rows")
    run(job)
    assert brought == ([True] * 3 if executor == "local" else [])
    assert [one["watermark_us"] for one in job.history] == [None, -1_000_000, 4_000_000, 9_000_000]


@PLACES
def test_names_of_files_are_known_in_each_micro_batch(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path, brought: list[bool], executor: str
) -> None:
    job = make_job(options={"async-state.executor": executor})
    rows = job.source("rows", files(spark, tmp_path / "rows", ["select 1L as k"] * 2))
    other = job.source("other", files(spark, tmp_path / "other", ["select 1L as k"] * 2))
    counted(rows, "n", [])
    counted(other, "others", [])
    seen: list[str] = []
    named = rows.select("k", "input_file_name() as name")
    named.to(lambda df, _: seen.extend(row.name for row in df.collect()), name="named")
    run(job)
    assert brought == []
    assert [Path(name).parent.name for name in seen] == ["0", "1"]


@IN_DRIVER
def test_strings_with_a_length_and_types_of_users(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path, brought: list[bool]
) -> None:
    """Spark compares a CHAR with a padded text; of a user's type pyspark sends no Arrow column."""
    schema = StructType([StructField("k", LongType()), StructField("point", ExamplePointUDT())])
    point: Any = ExamplePoint
    rows = [(number, point(float(number), 1.0)) for number in range(2)]
    for row in rows:
        spark.createDataFrame([row], schema).coalesce(1).write.parquet(str(tmp_path / "points" / str(row[0])))
    spark.sql(f"create table chars (k long, c char(5)) using parquet location '{tmp_path / 'chars'}'")
    try:
        for number in range(3):
            spark.sql(f"insert into chars select {number}L, 'a'")
        job = make_job(options={"async-state.executor": "local"})
        stream = spark.readStream.option("maxFilesPerTrigger", 1)
        chars = job.source("chars", stream.table("chars"))
        counted(chars, "n", [])
        seen: list[Any] = []
        chars.where("c = 'a'").to(lambda df, _: seen.extend(map(tuple, df.collect())), name="chars")
        run(job)
    finally:
        spark.sql("drop table chars")
    assert brought == [True, True]
    assert sorted(seen) == [(number, "a    ") for number in range(3)]
    job = make_job(checkpoint_dir=str(tmp_path / "other"), options={"async-state.executor": "local"})
    points = job.source("points", stream.schema(schema).parquet(str(tmp_path / "points" / "*")))
    counted(points.select("k"), "n", [])
    seen.clear()
    points.to(lambda df, _: seen.extend(map(tuple, df.collect())), name="points")
    run(job)
    assert brought == [True, True, False]
    assert sorted(seen) == rows


@PLACES
def test_sources_with_too_many_rows_are_read_by_each_input(
    spark: SparkSession,
    make_job: MakeJob,
    tmp_path: Path,
    brought: list[bool],
    executor: str,
    async_enabled: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is too much at once may be little enough for each stage, or too much there, too."""
    monkeypatch.setattr(executor_choice, "ROWS_MAX_GIVEN", 10)
    options = {"async-state.executor": executor, "async-state.enabled": async_enabled}
    job = make_job(options=options)
    sizes = [8, 8, 60, 8, 8, 8, 100, 8]
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    texts = [
        f"select id % 3 as k, id as v from range({start}, {start + size})"
        for start, size in zip(starts, sizes, strict=True)
    ]
    numbers = job.source("numbers", files(spark, tmp_path / "numbers", texts))
    names = job.source(
        "names", files(spark, tmp_path / "names", [f"select {n}L as k" for n in range(len(sizes))])
    )
    sums, pairs = list[Any](), list[Any]()
    some = (
        numbers.where("v % 10 = 0")
        .select("k", "v")
        .apply(GroupAggregate([sum_("v").alias("s")]), key="k", uid="s")
    )
    some.to(lambda df, _: sums.extend(map(tuple, df.collect())), name="sums")
    joined = numbers.apply(Join(), names, key=["k", "k"], uid="joined")
    joined.to(lambda df, _: pairs.extend(map(tuple, df.collect())), name="joined")
    numbers.to(lambda df, _: pairs.append(("rows", df.count())), name="numbers")
    run(job)
    total = sum(sizes)
    assert net((row[-1], *row[:-1]) for row in sums) == {
        (k, sum(v for v in range(0, total, 10) if v % 3 == k)): 1 for k in range(3)
    }
    rows = [row for row in pairs if row[0] != "rows"]
    assert sorted(row[:2] for row in rows) == sorted((v % 3, v) for v in range(total))
    assert [row[1] for row in pairs if row[0] == "rows"] == sizes
    places = [{uid: one["in_driver"] for uid, one in batch["operators"].items()} for batch in job.history]
    if executor == "spark":
        assert brought == []
        assert not any(any(one.values()) for one in places)
        return
    # After a stage on the executors the job does not try; after the first failure it leaves out one more.
    assert brought == [True, False, True, False]
    assert [one["joined"] for one in places] == [size <= 10 for size in sizes]
    assert all(one["s"] for one in places)


@IN_DRIVER
def test_columns_that_a_pattern_selects_are_brought(
    spark: SparkSession, make_job: MakeJob, brought: list[bool]
) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.parser.quotedRegexColumnNames", "true")
    first, second = two_micro_batches(
        session, in_driver(make_job, session), ["value + 1 as more"], lambda rows: rows.select("`k|m.re`")
    )
    assert brought == [True]
    assert sorted(first) == sorted(second) == [(n, n + 1) for n in range(4)]
