"""Two phases of aggregation on Spark: Catalyst puts rows together, and nothing but their number changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import DataFrame, SparkSession

from asyncstate.clock import ManualClock
from asyncstate.driver import partial_aggregation_policy
from asyncstate.errors import AsyncStateError, SchemaError
from asyncstate.operator import InputSpec, Operator
from asyncstate.spark import MicroBatch, StreamingJob
from asyncstate.spark.column_types import quoted
from asyncstate.spark.exchange import input_spec
from asyncstate.spark.sql_partial_aggregation import partial_aggregate
from asyncstate.testing import net
from operators import (
    GroupAggregate,
    Rank,
    WindowAggregate,
    asc,
    avg,
    count,
    cumulate,
    desc,
    hop,
    max_,
    min_,
    sum_,
    tumble,
)
from tests.local_aggregation import in_phases
from tests.spark.modes import ASYNC, SYNC
from tests.spark.stored import stored_state

pytestmark = pytest.mark.spark

MakeJob = Callable[..., StreamingJob]
ODD = "some text"
"""A column name that SQL must quote."""

COLUMNS = f"""
    id,
    if(id % 5 = 4, null, concat('k', id % 5)) as k,
    if(id % 7 = 3, null, id * 46116860184273 - 9000000000000000) as n,
    cast(id % 100 as tinyint) as tiny,
    cast(if(id % 6 = 0, null, id % 9) as double) as x,
    if(id % 11 = 0, cast('NaN' as float), cast(id as float)) as y,
    cast(id * 1.25 as decimal(12, 2)) as d,
    cast(id as decimal(28, 3)) as wide,
    if(id % 4 = 0, null, concat('s', id % 13)) as {quoted(ODD)},
    cast(cast(id % 3 as string) as binary) as b,
    if(id % 8 = 0, null, id % 3 = 0) as flag,
    id % 50 > 40 as late,
    date_add(date'2024-02-28', cast(id % 5 as int)) as day,
    if(id % 9 = 8, null, timestamp_micros(id * 700000 - 3000000)) as at,
    timestamp_ntz'1969-12-31 23:59:57' + make_dt_interval(0, 0, 0, id * 0.7) as local_at
"""
SUMS = [
    count().alias("c"),
    count(ODD).where("flag").alias("texts"),
    sum_("n").alias("total"),
    sum_("n").where("flag").alias("flagged"),
    sum_("tiny").alias("tinies"),
    sum_("x").alias("xs"),
    sum_("d").alias("ds"),
    sum_("wide").alias("wides"),
    avg("n").alias("mean"),
    avg("d").where("flag").alias("d_mean"),
]
EXTREMES = [
    *(function(name) for function in (min_, max_) for name in ("tiny", "x", "d", "b", "flag", "day", "at")),
    min_(ODD).alias("first"),
    max_(ODD).where("flag").alias("last"),
    min_("y").alias("least"),
    max_("y").alias("most"),
]
DISTINCTS = [
    *(
        count(name).distinct().alias(f"{name}_values")
        for name in ("tiny", "x", "y", "d", "b", "day", "local_at")
    ),
    count(ODD).distinct().where("flag").alias("some_texts"),
    count(ODD).distinct().where("late").alias("late_texts"),
    sum_("tiny").distinct().alias("sum_of_tinies"),
    avg("wide").distinct().where("flag").alias("mean_of_wides"),
]


def rows(spark: SparkSession, start: int, end: int, parts: int = 3) -> DataFrame:
    """Rows of every type, with nulls, over several tasks."""
    return spark.range(start, end, 1, parts).selectExpr(*_split(COLUMNS))


def _split(columns: str) -> list[str]:
    return [line.strip().rstrip(",") for line in columns.strip().splitlines()]


def changelog_of(df: DataFrame, end: int) -> DataFrame:
    """``df`` with every third row taken back again, in another part of the DataFrame."""
    kinds = df.selectExpr("*", "if(id % 2 = 0, '+I', '+U') as row_kind")
    gone = df.where(f"id % 3 = 0 and id < {end}").selectExpr("*", "if(id % 2 = 0, '-D', '-U') as row_kind")
    return kinds.union(gone)


class Run:
    """One job over some micro-batches; what each put out, and the figures of the operator."""

    def __init__(self, job: StreamingJob, operator: Operator, **settings: Any) -> None:
        self.job = job
        self.results: list[Counter[tuple[str]]] = []

        @job.micro_batch
        def on_batch(df: DataFrame, batch: MicroBatch) -> None:
            out = batch.apply(operator, df, uid="op", **settings).collect()
            self.results.append(net((row.row_kind, str(list(row[:-1]))) for row in out))  # -0.0 is not 0.0

        self._on_batch = on_batch

    def __call__(self, df: DataFrame, batch_id: int) -> dict[str, float]:
        self._on_batch(df, batch_id)
        figures = self.job.history[-1]["operators"]["op"]
        counters = {f"counter.{name}": count for name, count in figures["counters"].items()}
        return counters | {name: value for name, value in figures.items() if isinstance(value, int | float)}


def runs(
    make_job: MakeJob, tmp_path: Path, operator: Operator, async_enabled: bool = False, **settings: Any
) -> tuple[Run, Run]:
    """The same operator in one phase and in two, each with its checkpoint."""
    mode = {"async-state.enabled": async_enabled}
    return (
        Run(job_at(make_job, tmp_path / "one", **mode), in_phases(operator, False), **settings),
        Run(job_at(make_job, tmp_path / "two", **mode), in_phases(operator, True), **settings),
    )


def job_at(make_job: MakeJob, folder: Path, **options: Any) -> StreamingJob:
    settings = {
        "async-state.parallelism": 2,
        "async-state.local-dir": f"{folder}/local",
        **options,
    }
    return make_job(checkpoint_dir=str(folder), options=settings)


def net_of(results: Iterable[Counter[tuple[str]]]) -> Counter[tuple[str]]:
    total: Counter[tuple[str]] = Counter()
    for result in results:
        total.update(result)
    return Counter({row: times for row, times in total.items() if times})


def test_distinct_values_of_all_types_and_a_change_of_phases_at_a_restart(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path
) -> None:
    operator = GroupAggregate([*SUMS, max_("tiny").alias("most"), *DISTINCTS])
    mode = {"async-state.enabled": True}
    one = Run(job_at(make_job, tmp_path / "one", **mode), in_phases(operator, False), key="k")
    for batch_id, two in enumerate((True, False, True)):
        run = Run(job_at(make_job, tmp_path / "two", **mode), in_phases(operator, two), key="k")
        df = rows(spark, 150 * batch_id, 150 * batch_id + 200)
        expected, found = one(df, batch_id), run(df, batch_id)
        assert run.results[-1] == one.results[-1]
        if two:
            assert found["local_rows_in"] == expected["rows_in"] == 200
            values = [("tiny",), ("x",), ("y",), ("d",), ("b",), ("day",), ("local_at",), (ODD,), ("wide",)]
            assert found["rows_in"] == sum(
                df.selectExpr("k", *map(quoted, names)).distinct().count() for names in values
            )
    assert stored_state(tmp_path / "one") == stored_state(tmp_path / "two")


def test_distinct_values_of_a_window_and_of_one_column_without_a_key(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path
) -> None:
    """One set of values needs no rows of its own for the rest."""
    aggregates = [count().alias("c"), sum_("n").alias("total"), count(ODD).distinct().alias("texts")]
    time = {"event_time": "at", "watermark_delay": "1 second"}
    window = WindowAggregate(hop("6 seconds", "2 seconds"), aggregates)
    for operator, settings in ((GroupAggregate(aggregates), {"key": None}), (window, {"key": "k", **time})):
        folder = tmp_path / type(operator).__name__
        one, two = runs(make_job, folder, operator, **settings)
        for batch_id, (start, end) in enumerate([(0, 0), (0, 60), (30, 90)]):
            df = rows(spark, start, end)
            expected, found = one(df, batch_id), two(df, batch_id)
            assert two.results[-1] == one.results[-1]
            assert found["local_rows_in"] == expected["rows_in"] == end - start
            assert found.get("counter.late_rows", 0) == expected.get("counter.late_rows", 0)
        one.job.finish()
        two.job.finish()
        assert two.results[-1] == one.results[-1]
        assert sum(map(Counter.total, two.results)) > 0
        assert stored_state(folder / "one") == stored_state(folder / "two")


@pytest.mark.parametrize(
    ("changelog", "async_enabled"), [(False, True), (True, False)], ids=["inserts-async", "changelog-sync"]
)
def test_all_aggregates_over_all_types_and_a_change_of_phases_at_a_restart(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path, changelog: bool, async_enabled: bool
) -> None:
    operator = GroupAggregate(SUMS if changelog else SUMS + EXTREMES)
    mode = {"async-state.enabled": async_enabled}
    one = Run(job_at(make_job, tmp_path / "one", **mode), in_phases(operator, False), key=["k", "day"])
    turns = [
        Run(job_at(make_job, tmp_path / "two", **mode), in_phases(operator, two), key=["k", "day"])
        for two in (True, False, True)
    ]
    for batch_id, two in enumerate(turns):
        df = rows(spark, 200 * batch_id, 200 * (batch_id + 1))
        df = changelog_of(df, 200 * batch_id + 150) if changelog else df
        expected, found = one(df, batch_id), two(df, batch_id)
        assert two.results[-1] == one.results[-1]
        assert ("local_rows_in" in found) == (batch_id != 1)
        if "local_rows_in" in found:
            assert found["local_rows_in"] == expected["rows_in"]
            assert found["rows_in"] == df.select("k", "day").distinct().count()
    assert stored_state(tmp_path / "one") == stored_state(tmp_path / "two")


def test_rows_are_put_together_before_the_exchange(spark: SparkSession) -> None:
    operator = GroupAggregate([count(), max_("tiny"), sum_("n")])
    df = rows(spark, 0, 100)
    given = spec_of(df, operator, ("k",))
    plan = partial_aggregate(df, given, 2)._jdf.queryExecution().executedPlan().toString()
    partial, exchange = plan.index("partial_count"), plan.index("Exchange hashpartitioning")
    assert exchange < partial  # a plan is written from its end to its beginning
    assert "SortAggregate" not in plan
    assert partial_aggregate(df, given, 2).count() == 5


def spec_of(df: DataFrame, operator: Operator, key: tuple[str, ...]) -> InputSpec:
    given = input_spec(df, key, None, "the input")
    return replace(given, local=operator.partial_aggregation([given]))


@pytest.mark.parametrize(
    ("window", "time", "async_enabled"),
    [
        (tumble("3 seconds", "1 second"), "at", True),
        (hop("4 seconds", "2 seconds", "-1 second"), "local_at", False),
        (cumulate("6 seconds", "2 seconds", "3 seconds"), "local_at", True),
    ],
    ids=["tumble", "hop", "cumulate"],
)
def test_windows_with_late_rows(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path, window: Any, time: str, async_enabled: bool
) -> None:
    """Before and behind 1970, with and without a time zone, in a session of another one."""
    away = spark.newSession()
    away.conf.set("spark.sql.session.timeZone", "America/St_Johns")
    operator = WindowAggregate(window, [*SUMS, max_("tiny")])
    settings = {"key": "k", "event_time": time, "watermark_delay": "1 second"}
    one, two = runs(make_job, tmp_path, operator, async_enabled, **settings)
    counted: list[tuple[float, ...]] = []
    for batch_id, (start, end) in enumerate([(0, 40), (20, 60), (0, 90), (90, 90)]):
        df = rows(away, start, end)
        expected, found = one(df, batch_id), two(df, batch_id)
        assert two.results[-1] == one.results[-1]
        names = ("counter.late_rows", "counter.null_event_times")
        counted.append(tuple(found.get(name, 0) for name in names))
        assert counted[-1] == tuple(expected.get(name, 0) for name in names)
        assert found["local_rows_in"] == expected["rows_in"] == end - start
        assert found["rows_in"] <= expected["rows_in"]
        assert stored_state(tmp_path / "one") == stored_state(tmp_path / "two")
    assert counted[2][0] > 0
    one.job.finish()
    two.job.finish()
    assert two.results[-1] == one.results[-1] != Counter()
    assert stored_state(tmp_path / "two")["op"] == {}


@SYNC
def test_windows_in_processing_time(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path, async_enabled: bool
) -> None:
    """By the driver's clock: all rows of a micro-batch are of one slice, and what is over fires, at the end too."""
    clock = ManualClock()
    operator = WindowAggregate(hop("4 seconds", "2 seconds"), [*SUMS, max_("tiny")], time="processing")
    one, two = runs(partial(make_job, clock=clock), tmp_path, operator, async_enabled, key="k")
    for batch_id, end in enumerate([40, 90, 0]):
        df = rows(spark, 0, end)
        expected, found = one(df, batch_id), two(df, batch_id)
        assert two.results[-1] == one.results[-1]
        assert found["rows_in"] == min(end, 5)
        assert expected["rows_in"] == end
        assert stored_state(tmp_path / "one") == stored_state(tmp_path / "two")
        clock.advance(ms=1_500)
    fired = [sum(result.values()) for result in one.results]
    assert fired == [0, 0, 5], "the window that ends at 2 seconds"
    one.job.finish()
    two.job.finish()
    assert two.results[-1] == one.results[-1]
    assert sum(one.results[-1].values()) == 5, "the one that ends at 4 seconds"
    assert stored_state(tmp_path / "two")["op"] == {}


def test_without_a_key_and_without_rows(spark: SparkSession, make_job: MakeJob, tmp_path: Path) -> None:
    one, two = runs(make_job, tmp_path, GroupAggregate([count().alias("c"), max_("id")]))
    for batch_id, df in enumerate([rows(spark, 0, 0), rows(spark, 0, 50), rows(spark, 0, 0)]):
        one(df, batch_id)
        figures = two(df, batch_id)
        assert two.results[-1] == one.results[-1]
        assert figures["rows_in"] == min(df.count(), 1)
    assert net_of(two.results) == Counter({("[50, 49]",): 1})


@pytest.mark.parametrize(
    ("order", "rank_column"),
    [
        ([desc("y"), "id"], "place"),  # NaN is the largest
        ([asc("n", nulls="last"), desc("id")], None),
        ([desc(ODD, nulls="first"), "id"], None),
        (["b", desc("d")], "place"),
    ],
)
@pytest.mark.executors
@ASYNC
def test_a_global_ranking_gets_the_first_rows_only(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path, async_enabled: bool, order: Any, rank_column: Any
) -> None:
    one, two = runs(
        make_job, tmp_path, Rank(order, 5, offset=2, rank_column=rank_column), async_enabled, key=None
    )
    for batch_id, (start, end) in enumerate([(0, 60), (60, 90), (90, 90), (90, 200)]):
        df = rows(spark, start, end)
        expected, found = one(df, batch_id), two(df, batch_id)
        assert two.results[-1] == one.results[-1]
        assert expected["rows_in"] == end - start
        assert found["rows_in"] == min(end - start, 7)
    assert sum(net_of(two.results).values()) == 5


def test_distinct_and_event_times_that_are_null(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path
) -> None:
    one, two = runs(
        make_job, tmp_path, GroupAggregate(), key=["k", ODD], event_time="at", watermark_delay="0 seconds"
    )
    for batch_id, end in enumerate([60, 120]):
        df = rows(spark, 0, end)
        expected, found = one(df, batch_id), two(df, batch_id)
        assert two.results[-1] == one.results[-1]
        assert found["counter.null_event_times"] == expected["counter.null_event_times"] > 0
    assert two.job.history[-1]["watermark_us"] == one.job.history[-1]["watermark_us"] is not None


@pytest.mark.parametrize("ansi", ["true", "false"])
def test_sums_whose_parts_would_overflow(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path, ansi: str
) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.ansi.enabled", ansi)
    numbers = session.sql("values (1, 9223372036854775807L), (1, 9223372036854775807L), (1, -9223372036854775808L), "
                          "(1, -9223372036854775807L), (1, 5L) as t(k, n)").coalesce(1)  # fmt: skip
    run = Run(job_at(make_job, tmp_path), in_phases(GroupAggregate([sum_("n")]), True), key="k")
    run(numbers, 0)
    assert run.results == [Counter({("[1, 4]",): 1})]
    with pytest.raises(AsyncStateError, match="the sum of column 'n' does not fit int64"):
        run(session.sql("values (1, 9223372036854775807L) as t(k, n)"), 1)


@pytest.mark.parametrize("column", ["double", "float"])
def test_floats_that_are_taken_back_leave_no_trace(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path, column: str
) -> None:
    run = Run(
        job_at(make_job, tmp_path),
        in_phases(
            GroupAggregate([sum_("x"), sum_("x").where("odd").alias("odd"), avg("x").alias("mean")]), True
        ),
        key="k",
    )

    def changes(*rows: str) -> DataFrame:
        texts = ", ".join(f"({row})" for row in rows)
        named = spark.sql(f"select * from values {texts} as t(k, text, odd, row_kind)")
        return named.selectExpr("k", f"cast(text as {column}) as x", "odd", "row_kind")

    run(
        changes(
            "1, 'NaN', true, '+I'", "1, '2.5', true, '+I'", "1, 'NaN', true, '-D'", "1, '0.5', false, '+I'"
        ),
        0,
    )
    run(changes("1, 'Infinity', false, '+I'", "1, '-Infinity', true, '+I'"), 1)
    run(changes("1, '-Infinity', true, '-D'"), 2)
    run(changes("1, 'Infinity', false, '-D'", "1, null, false, '+I'"), 3)
    finite, mixed, infinite = ("[1, 3.0, 2.5, 1.5]",), ("[1, nan, -inf, nan]",), ("[1, inf, 2.5, inf]",)
    steps = [finite, mixed, infinite, finite]
    assert run.results == [
        Counter({finite: 1}),
        *(Counter({before: -1, after: 1}) for before, after in pairwise(steps)),
    ]


def test_a_kind_that_is_none_is_refused(spark: SparkSession, make_job: MakeJob, tmp_path: Path) -> None:
    for value in ("'+X'", "cast(null as string)"):
        run = Run(job_at(make_job, tmp_path), in_phases(GroupAggregate([count()]), True), key="k")
        with pytest.raises(SchemaError, match="row_kind.*; write one of"):
            run(rows(spark, 0, 3).selectExpr("k", f"{value} as row_kind"), 0)


def test_auto_goes_by_the_micro_batch_before(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few keys turn the local phase on, many turn it off; a restart decides alike."""
    monkeypatch.setattr(partial_aggregation_policy, "ROWS_MIN", 100)
    operator = GroupAggregate([count().alias("c"), sum_("id")])
    local: list[bool] = []
    for batch_id, key in enumerate(["id % 3", "id % 3", "id", "id", "id % 3", "id % 3"]):
        run = Run(job_at(make_job, tmp_path), in_phases(operator, "auto"), key="k")  # a new driver each time
        figures = run(
            spark.range(batch_id * 200, batch_id * 200 + 200, 1, 2).selectExpr("id", f"{key} as k"), batch_id
        )
        local.append("local_rows_in" in figures)
    assert local == [False, True, True, False, False, True]
