"""The built-in operators through Spark: restarts, rescaling, chains, odd keys and times, one run a stage."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import DataFrame, SparkSession

from asyncstate.spark import MicroBatch, StreamingJob
from asyncstate.testing import net
from operators import Deduplicate, GroupAggregate, Join, WindowAggregate, count, sum_, tumble
from tests.spark.parts import KeyTeller
from tests.spark.stored import Stored, stored_state

pytestmark = pytest.mark.spark

MakeJob = Callable[..., StreamingJob]
Netted = Counter[tuple[Any, ...]]
SECOND = 1_000_000
WINDOW = 10
PARTNER = 25


def key_of(number: int) -> int | None:
    """Every fifth row has no key."""
    return None if number % 5 == 4 else number % 5


def time_of(number: int) -> int | None:
    """The number in seconds; every seventh row has no event time."""
    return None if number % 7 == 3 else number


def numbers(spark: SparkSession, start: int, end: int) -> DataFrame:
    """The rows of the two functions above, in order."""
    return spark.range(start, end, 1, 1).selectExpr(
        "id",
        "if(id % 5 = 4, null, id % 5) as k",
        "if(id % 7 = 3, null, timestamp_seconds(id)) as at",
    )


def aggregated(numbers_seen: Iterable[int]) -> Netted:
    """The model of a count and a sum a key."""
    groups: dict[int | None, list[int]] = defaultdict(list)
    for number in numbers_seen:
        groups[key_of(number)].append(number)
    return Counter((key, len(group), sum(group)) for key, group in groups.items())


def windows(numbers_seen: Iterable[int], first_end: int, last_end: int) -> Netted:
    """The model of a count a key and window, of the windows with these ends."""
    rows: Netted = Counter()
    for number in numbers_seen:
        if (time := time_of(number)) is not None:
            end = time // WINDOW * WINDOW + WINDOW
            if first_end <= end <= last_end:
                rows[key_of(number), end * SECOND] += 1
    return Counter((*row, times) for row, times in rows.items())


def last_rows(numbers_seen: Iterable[int]) -> Netted:
    """The model of the last row of each key."""
    latest = {key_of(number): number for number in numbers_seen if time_of(number) is not None}
    return Counter((number, key) for key, number in latest.items())


def four_operators(batch: MicroBatch, df: DataFrame) -> dict[str, DataFrame]:
    """Each bundle-grain operator on its own; the columns to be looked at."""
    totals = batch.apply(
        GroupAggregate([count().alias("rows"), sum_("id").alias("total")]), df, key="k", uid="totals"
    )
    last = batch.apply(Deduplicate("last"), df, key="k", event_time="at", uid="last")
    closed = batch.apply(
        WindowAggregate(tumble(f"{WINDOW} seconds"), [count().alias("rows")]),
        df,
        key="k",
        event_time="at",
        watermark_delay="5 seconds",
        uid="windows",
    )
    others = df.selectExpr(f"id - {PARTNER} as partner", "id as other")
    pairs = batch.apply(Join(), df.select("id"), others, key=("id", "partner"), uid="pairs")
    return {
        "totals": totals,
        "last": last.select("id", "k", "row_kind"),
        "windows": closed.selectExpr("k", "unix_micros(window_end)", "rows", "row_kind"),
        "pairs": pairs.select("id", "other", "row_kind"),
    }


def noting(job: StreamingJob, results: list[dict[str, Netted]]) -> Callable[[DataFrame, int], None]:
    """The job's function: applies ``four_operators`` and notes the net change of each."""

    @job.micro_batch
    def on_batch(df: DataFrame, batch: MicroBatch) -> None:
        results.append({uid: net(out.collect()) for uid, out in four_operators(batch, df).items()})

    return on_batch


def run_four_operators(
    spark: SparkSession, make: Callable[[int], StreamingJob]
) -> tuple[list[dict[str, Netted]], StreamingJob]:
    """Two micro-batches with a restart at another parallelism between them, an empty one, and the end."""
    results: list[dict[str, Netted]] = []
    noting(make(2), results)(numbers(spark, 0, 40), 0)
    job = make(3)
    on_batch = noting(job, results)
    on_batch(numbers(spark, 40, 70), 1)
    on_batch(numbers(spark, 70, 70), 2)
    job.finish()
    return results, job


def test_built_in_operators_over_restarts_rescaling_empty_batches_and_the_end(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path
) -> None:
    states: list[tuple[Stored, Stored]] = []
    for async_enabled in (False, True):
        folder = tmp_path / f"checkpoint-{async_enabled}"

        def make(
            parallelism: int, folder: Path = folder, async_enabled: bool = async_enabled
        ) -> StreamingJob:
            options = {
                "async-state.enabled": async_enabled,
                "async-state.parallelism": parallelism,
                "async-state.local-dir": str(folder / "local"),
            }
            return make_job(checkpoint_dir=str(folder), options=options)

        results, job = run_four_operators(spark, make)
        assert [found["windows"] for found in results] == [
            Counter(),
            windows(range(40), WINDOW, 30),  # the watermark is 39 - 5 seconds
            windows(range(70), 40, 60),
            windows(range(70), 70, 70),
        ]
        assert net_of(results, "totals") == aggregated(range(70))
        assert net_of(results, "last") == last_rows(range(70))
        assert net_of(results, "pairs") == Counter((i, i + PARTNER) for i in range(70 - PARTNER))
        assert results[2]["totals"] == results[2]["last"] == results[2]["pairs"] == Counter()
        first = job.history[0]["operators"]
        assert {uid: first[uid]["counters"].get("null_event_times", 0) for uid in first} == {
            "totals": 0,
            "last": 4,  # 45, 52, 59 and 66
            "windows": 4,
            "pairs": 0,
        }
        states.append((stored_state(folder, 2), stored_state(folder, 3)))
    assert states[0] == states[1]
    before_the_end, after = states[0]
    assert all(before_the_end.values())
    assert after["windows"] == {}


def net_of(results: list[dict[str, Netted]], uid: str) -> Netted:
    """The sum of the net changes."""
    total: Netted = Counter()
    for found in results:
        total.update(found[uid])
    return Counter({row: times for row, times in total.items() if times})


@pytest.mark.smoke
@pytest.mark.long
def test_chained_operators_and_two_inputs_share_a_batch(
    spark: SparkSession, make_job: MakeJob, async_enabled: bool
) -> None:
    """A changelog of counts joined with the rows counted: every key's rows with its newest count."""
    shown: list[Any] = []
    job = make_job(options={"async-state.enabled": async_enabled, "async-state.parallelism": 2})

    @job.micro_batch
    def on_batch(df: DataFrame, batch: MicroBatch) -> None:
        counts = batch.apply(GroupAggregate([count().alias("rows")]), df, key="k", uid="counts")
        rows = df.selectExpr("id", "k as of")
        pairs = batch.apply(Join(), counts, rows, key=("k", "of"), uid="pairs")
        shown.extend(pairs.select("id", "rows", "row_kind").collect())

    on_batch(numbers(spark, 0, 20), 0)
    on_batch(numbers(spark, 20, 26), 1)
    times = Counter(map(key_of, range(26)))
    expected = {(i, times[key_of(i)]): 1 for i in range(26) if key_of(i) is not None}
    assert net(shown) == expected
    assert job.history[-1]["operators"]["pairs"]["rows_in"] == 6 + 2 * 5


@pytest.mark.executors  # in the driver, small deltas are one file
def test_an_output_used_twice_or_never_runs_its_stage_once(
    spark: SparkSession, make_job: MakeJob, async_enabled: bool, tmp_path: Path
) -> None:
    seen: list[tuple[Netted, Netted, int]] = []
    job = make_job(options={"async-state.enabled": async_enabled, "async-state.parallelism": 2})

    @job.micro_batch
    def on_batch(df: DataFrame, batch: MicroBatch) -> None:
        aggregates = [count().alias("rows"), sum_("id").alias("total")]
        batch.apply(GroupAggregate(aggregates), df, key="k", uid="never")
        twice = batch.apply(GroupAggregate(aggregates), df, key="k", uid="twice")
        numbers_of = twice.select("rows", "row_kind")
        whole = batch.apply(GroupAggregate([sum_("rows").alias("all")]), numbers_of, uid="whole")
        seen.append((net(twice.collect()), net(whole.collect()), twice.count()))

    on_batch(numbers(spark, 0, 20), 0)
    on_batch(numbers(spark, 20, 30), 1)

    assert seen[0] == (aggregated(range(20)), Counter({(20,): 1}), 5)
    first, second = aggregated(range(20)), aggregated(range(30))
    second.subtract(first)
    assert seen[1] == (second, Counter({(30,): 1, (20,): -1}), 10)
    fed = [{uid: each["rows_in"] for uid, each in past["operators"].items()} for past in job.history]
    assert fed == [{"never": 20, "twice": 20, "whole": 5}, {"never": 10, "twice": 10, "whole": 10}]
    state = stored_state(tmp_path / "checkpoint")
    assert state["never"] == state["twice"]
    deltas = Counter(
        (path.parent, path.name.split("-")[1]) for path in (tmp_path / "checkpoint").rglob("delta-*.sst")
    )
    assert set(deltas.values()) == {1}, "one delta a partition and batch"


def test_the_key_of_a_record_and_of_a_timer_is_the_tuple_of_its_columns(
    spark: SparkSession, make_job: MakeJob, async_enabled: bool
) -> None:
    results: list[list[tuple[Any, ...]]] = []
    job = make_job(options={"async-state.enabled": async_enabled, "async-state.parallelism": 2})

    @job.micro_batch
    def on_batch(df: DataFrame, batch: MicroBatch) -> None:
        named = df.selectExpr("*", "if(id % 3 = 0, null, concat('n', id % 3)) as name")
        out = batch.apply(KeyTeller(), named, key=["name", "k"], event_time="at", uid="keys")
        results.append([tuple(row)[:-1] for row in out.collect()])

    on_batch(numbers(spark, 0, 20), 0)
    job.finish()
    keys = [
        (f"n{i % 3}" if i % 3 else None, key_of(i), time)
        for i in range(20)
        if (time := time_of(i)) is not None
    ]
    assert Counter(results[0]) == Counter((name, key, False, None) for name, key, _ in keys)
    assert Counter(results[1]) == Counter((name, key, True, time * SECOND) for name, key, time in keys)
