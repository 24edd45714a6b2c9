# ruff: noqa: E501  # statements are data, one a line
"""``now()`` in conditions: rows come and go as time passes, as if the statement were asked anew in each micro-batch."""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
import pyarrow.parquet as pq

from asyncstate.clock import ManualClock
from asyncstate.errors import SqlError
from asyncstate.spark import StreamingJob
from asyncstate.sql import Compiled, sql_pipeline
from asyncstate.testing import PipelineHarness, PipelineSource, net
from tests.sql.tables import NEEDS_COMPILER

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, NEEDS_COMPILER]

Row = tuple[Any, ...]
Answer = Callable[[Sequence[Row], dt.datetime], Counter[Row]]

SCHEMA = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("v", pa.int64())])
BEGIN = dt.datetime(2024, 1, 1, 23, 0, tzinfo=dt.UTC)
MINUTES = {number: dt.timedelta(minutes=number) for number in (30, 60, 90, 120)}


def chosen(passes: Callable[[dt.datetime, dt.datetime, int], bool]) -> Answer:
    """The answer whose rows, (id, v), have a time that passes."""
    return lambda rows, now: Counter((own, v) for own, at, v in rows if at is not None and passes(at, now, v))


def counted(rows: Sequence[Row], now: dt.datetime) -> Counter[Row]:
    return Counter(Counter(v for _, at, v in rows if at is not None and at > now - MINUTES[60]).items())


STATEMENTS: dict[str, tuple[str, str, Answer]] = {
    "newer": (
        "SELECT id, v FROM t WHERE at > now() - INTERVAL 1 HOUR",
        "TemporalFilter",
        chosen(lambda at, now, v: at > now - MINUTES[60]),
    ),
    "older": (
        "SELECT id, v FROM t WHERE at <= current_timestamp",
        "TemporalFilter",
        chosen(lambda at, now, v: at <= now),
    ),
    "between": (
        "SELECT id, v FROM t WHERE v > 1 AND at BETWEEN now() - INTERVAL '2' HOUR AND CURRENT_TIMESTAMP() - INTERVAL 30 MINUTES",
        "TemporalFilter",
        chosen(lambda at, now, v: v > 1 and now - MINUTES[120] <= at <= now - MINUTES[30]),
    ),
    "computed": (
        "SELECT id, v FROM (SELECT *, at + INTERVAL 90 MINUTES AS until FROM t) WHERE now() < until",
        "TemporalFilter",
        chosen(lambda at, now, v: at + MINUTES[90] > now),
    ),
    "from a day on": (
        "SELECT id, v FROM t WHERE CAST(at AS DATE) >= current_date() - 0",
        "TemporalFilter",
        chosen(lambda at, now, v: at.date() >= now.date()),
    ),
    "of a day": (
        "SELECT id, v FROM t WHERE CAST(at AS DATE) = current_date",
        "DynamicFilter",
        chosen(lambda at, now, v: at.date() == now.date()),
    ),
    "of an hour of the day": (
        "SELECT id, v FROM t WHERE at IS NOT NULL AND v * 6 > hour(now())",
        "DynamicFilter",
        chosen(lambda at, now, v: v * 6 > now.hour),
    ),
    "or by a row alone": (
        "SELECT id, v FROM t WHERE v = 3 OR at > now() - INTERVAL 1 HOUR OR (id + v) % 7 = 0",
        "TemporalFilter",
        lambda rows, now: Counter(
            (own, v)
            for own, at, v in rows
            if v == 3 or (own + v) % 7 == 0 or (at is not None and at > now - MINUTES[60])
        ),
    ),
    "or within a time, of some rows": (
        "SELECT id, v FROM t WHERE id % 2 = 0 AND (CASE WHEN v = 0 THEN NULL ELSE v > 3 END OR (v < 3 AND at <= now() AND at > now() - INTERVAL 2 HOUR))",
        "TemporalFilter",
        lambda rows, now: Counter(
            (own, v)
            for own, at, v in rows
            if own % 2 == 0 and (v > 3 or (v < 3 and at is not None and now - MINUTES[120] < at <= now))
        ),
    ),
    "in a group": (
        "WITH recent AS (SELECT * FROM t WHERE at > now() - INTERVAL 1 HOUR) SELECT v, count(*) AS n FROM recent GROUP BY v",
        "TemporalFilter",
        counted,
    ),
}


@pytest.mark.parametrize("insert_only", [False, True], ids=["changes", "insertions"])
@pytest.mark.parametrize("name", STATEMENTS)
def test_rows_come_and_go_as_time_passes(
    spark: SparkSession, name: str, insert_only: bool, async_enabled: bool
) -> None:
    sql, node, answer = STATEMENTS[name]
    rng, clock, flow = random.Random(name), ManualClock(), sql_pipeline(sql, spark=spark)
    clock.advance(int(BEGIN.timestamp()) * 1_000_000)
    rows: list[Row] = []
    given = {"t": PipelineSource(SCHEMA, changelog=not insert_only)}
    found: Counter[Row] = Counter()
    sizes = set()
    with PipelineHarness(flow, given, clock=clock, async_enabled=async_enabled) as harness:
        (plan,) = (one for one in flow.plans if one.root is not None)  # type: ignore[attr-defined]
        assert f'"{node}"' in plan.to_json()
        assert "Clock" in harness.explain()
        for batch in range(8):
            clock.advance(seconds=60 * rng.choice([0, 5, 31, 70]))
            now = dt.datetime.fromtimestamp(clock.now_us() / 1e6, dt.UTC)
            new = [
                (
                    10 * batch + number,
                    None if rng.random() < 0.1 else now + dt.timedelta(minutes=rng.randrange(-150, 90)),
                    rng.randrange(5),
                )
                for number in range(6)
            ]
            old = [] if insert_only else [one for one in rows if rng.random() < 0.2]
            rows = [one for one in rows if one not in old] + new
            harness.push("t", new)
            if old:
                harness.push("t", old, kind="-D")
            found.update(net(harness.end_batch()["out"]))
            assert +found == answer(rows, now), f"batch {batch}"
            assert min(found.values(), default=0) >= 0
            sizes.add(len(+found))
            harness.restart(parallelism=rng.randrange(1, 4), async_enabled=rng.random() < 0.5)
    assert len(sizes) > 1


def test_a_compiled_filter_needs_no_session(spark: SparkSession) -> None:
    flow, sources = sql_pipeline(STATEMENTS["newer"][0], spark=spark), {"t": PipelineSource(SCHEMA)}
    with PipelineHarness(flow, sources) as harness:
        said = harness.explain()
    stored = [Compiled.from_json(plan.to_json()) for plan in flow.plans]  # type: ignore[attr-defined]
    with PipelineHarness(sql_pipeline(plans=stored), sources) as harness:
        assert harness.explain() == said
        assert "rows ahead of the bound" in said


ELSEWHERE = "not kept up to date: the current time outside of a comparison in a condition"
REFUSED: dict[str, tuple[str, str]] = {
    "selected": ("SELECT id,\n now() AS at FROM t", f"line 2: now\\(\\): {ELSEWHERE}"),
    "one of two times": (
        "SELECT id FROM t WHERE at > current_date OR at < now() - INTERVAL 1 DAY",
        ELSEWHERE,
    ),
    "or by chance": ("SELECT id FROM t WHERE at > current_date OR rand() > 0.5", "rand|" + ELSEWHERE),
    "with a column": ("SELECT id FROM t WHERE now() - at < INTERVAL 1 HOUR", ELSEWHERE),
    "of an aggregate": ("SELECT count_if(at > now()) AS n FROM t", ELSEWHERE),
    "another function": ("SELECT id FROM t WHERE v > unix_timestamp()", "changes without a row"),
    "a date by name": (
        "SELECT id FROM t\nWHERE at > DATE 'Today'",
        "line 2: DATE 'Today': .*a time that changes without a row",
    ),
    "a time by name": ("SELECT id FROM t WHERE at > timestamp ' now '", "a time that changes without a row"),
    "a text as a date": (
        "SELECT id FROM t WHERE at > CAST('yesterday' AS DATE)",
        "yesterday changes without a row",
    ),
    "a text that is compared": ("SELECT id FROM t WHERE at < 'now'", "now changes without a row"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_uses_are_refused(spark: SparkSession, name: str) -> None:
    sql, said = REFUSED[name]
    with pytest.raises(SqlError, match=said):
        PipelineHarness(sql_pipeline(sql, spark=spark), {"t": PipelineSource(SCHEMA)})


def test_columns_and_names_that_are_called_so(spark: SparkSession, async_enabled: bool) -> None:
    schema = pa.schema([("now", pa.int64()), ("current_date", pa.int64())])
    sql = "SELECT now, x.current_date AS current_timestamp FROM t AS x WHERE current_date > 3 AND now < 9"
    flow = sql_pipeline(sql, spark=spark)
    with PipelineHarness(flow, {"t": PipelineSource(schema)}, async_enabled=async_enabled) as harness:
        assert "Clock" not in harness.explain()
        harness.push("t", [(1, 4), (2, 3), (9, 5)])
        assert harness.end_batch()["out"] == [("+I", 1, 4)]


@pytest.mark.parametrize("executor", ["local", "spark"])
def test_a_job_on_spark(spark: SparkSession, tmp_path: Path, executor: str, async_enabled: bool) -> None:
    times = [dt.datetime(year, 1, 1, tzinfo=dt.UTC) for year in (2020, 2200)]
    table = pa.table([[1, 2], times, [0, 0]], schema=SCHEMA)
    (tmp_path / "in").mkdir()
    pq.write_table(table, tmp_path / "in" / "1.parquet")
    got: list[tuple[str, int]] = []
    options = {"async-state.executor": executor, "async-state.enabled": async_enabled}
    job = StreamingJob(spark, str(tmp_path / "checkpoint"), options)
    read = spark.readStream.schema("id long, at timestamp, v long").parquet(str(tmp_path / "in"))
    job.source("t", read)
    for name, condition in (("past", "at <= now()"), ("coming", "at > now()")):
        rows = job.sql(f"SELECT id FROM t WHERE {condition}", name=name)
        rows.to(lambda rows, _, name=name: got.extend((name, row["id"]) for row in rows.collect()), name=name)
    with job:
        job.await_termination(job.start(trigger="availableNow"))
    assert sorted(got) == [("coming", 2), ("past", 1)]


def test_texts_and_the_epoch_do_not_change(spark: SparkSession) -> None:
    sql = "SELECT id, 'now' AS now FROM t WHERE at > DATE 'epoch' AND at > CAST('epoch' AS TIMESTAMP) AND 'today' <> 'now'"
    with PipelineHarness(sql_pipeline(sql, spark=spark), {"t": PipelineSource(SCHEMA)}) as harness:
        harness.push("t", [(1, BEGIN, 0)])
        assert harness.end_batch()["out"] == [("+I", 1, "now")]


def test_a_column_of_a_subquery_that_is_called_so(spark: SparkSession) -> None:
    sql = "SELECT id FROM (SELECT id, v AS current_date FROM t) WHERE current_date > 3"
    with PipelineHarness(sql_pipeline(sql, spark=spark), {"t": PipelineSource(SCHEMA)}) as harness:
        harness.push("t", [(1, BEGIN, 3), (2, BEGIN, 4)])
        assert harness.end_batch()["out"] == [("+I", 2)]
