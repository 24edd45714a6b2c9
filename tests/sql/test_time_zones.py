"""Statements in a time zone that has summer time, and over times without a zone."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa

from asyncstate.errors import SqlError
from asyncstate.sql import ir, sql_pipeline
from asyncstate.testing import PipelineHarness, PipelineSource, net
from tests.sql.random_changes import Program
from tests.sql.tables import NEEDS_COMPILER

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, NEEDS_COMPILER]

ZONE = "spark.sql.session.timeZone"
SCHEMA = pa.schema([("k", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("local", pa.timestamp("us"))])
TIMED = PipelineSource(SCHEMA, event_time="at", watermark_delay="1 minute")
LOCAL = PipelineSource(SCHEMA, event_time="local", watermark_delay="1 minute")


@pytest.fixture
def vienna(spark: SparkSession) -> Iterator[None]:
    """The session's time zone, in which the last Sunday of October has an hour twice."""
    before = spark.conf.get(ZONE)
    spark.conf.set(ZONE, "Europe/Vienna")
    yield
    spark.conf.set(ZONE, str(before))


FRAME = (
    "SELECT k, count(*) OVER (ORDER BY at RANGE BETWEEN INTERVAL 1 DAY PRECEDING AND CURRENT ROW) AS n FROM t"
)
SESSIONS = "SELECT k, w.end FROM (SELECT k, session_window(at, '1 day') AS w FROM t) GROUP BY k, w"


@pytest.mark.usefixtures("vienna")
def test_days_of_unequal_length_are_refused(spark: SparkSession) -> None:
    for sql in (FRAME, FRAME.replace("1 DAY", "25 HOURS"), SESSIONS):
        with pytest.raises(SqlError, match="where some days have 23 or 25 hours; give hours"):
            PipelineHarness(sql_pipeline(sql, spark=spark), {"t": TIMED})
    for sql in (
        FRAME.replace("1 DAY", "23 HOURS"),
        FRAME.replace("ORDER BY at", "ORDER BY local"),
        SESSIONS.replace("1 day", "24 hours"),
    ):
        with PipelineHarness(sql_pipeline(sql, spark=spark), {"t": TIMED}):
            pass


@pytest.mark.usefixtures("vienna")
def test_a_time_that_local_clocks_show_twice_stays_the_same(spark: SparkSession) -> None:
    """Spark's own text of such a literal is that of an hour before."""
    flow = sql_pipeline("SELECT k FROM t WHERE at < TIMESTAMP '2024-10-27 01:30:00Z'", spark=spark)
    with PipelineHarness(flow, {"t": TIMED}):
        (root,) = (plan.root for plan in flow.plans)  # type: ignore[attr-defined]
        conditions = [one for node in ir.walk(root) if isinstance(node, ir.Filter) for one in node.conditions]
        names = {name for node in ir.walk(root) if isinstance(node, ir.Scan) for name in node.names}
    times = [
        dt.datetime(2024, 10, 27, hour, minute, tzinfo=dt.UTC) for hour, minute in ((0, 45), (1, 15), (1, 45))
    ]
    rows = spark.createDataFrame(pa.table({name: pa.array(times, SCHEMA.field("at").type) for name in names}))
    assert conditions
    for condition in conditions:
        rows = rows.where(condition)
    assert rows.count() == 2


@pytest.mark.usefixtures("vienna")
def test_windows_of_times_without_a_zone_have_none(spark: SparkSession, async_enabled: bool) -> None:
    sql = "SELECT w.start AS s, w.end AS e, count(*) AS n FROM (SELECT window(local, '1 hour') AS w FROM t) GROUP BY w"
    flow = sql_pipeline(sql, spark=spark)
    with PipelineHarness(flow, {"t": LOCAL}, async_enabled=async_enabled) as harness:
        assert "WindowAggregate" in harness.explain()
        (plan,) = flow.plans  # type: ignore[attr-defined]
        assert {one.type for node in ir.walk(plan.root) for one in node.columns} == {
            "timestamp_ntz",
            "bigint",
        }
        begin = dt.datetime(2024, 6, 1, 10)
        harness.push("t", [(1, None, begin + dt.timedelta(minutes=minute)) for minute in (5, 55, 65)])
        harness.end_batch()
        harness.finish()
        first = int(begin.replace(tzinfo=dt.UTC).timestamp()) * 1_000_000
        hours = [first + hour * 3_600_000_000 for hour in range(3)]
        assert net(harness.rows("out")) == {(hours[0], hours[1], 2): 1, (hours[1], hours[2], 1): 1}


DAYS = "SELECT date(at) AS d, count(*) AS n FROM t GROUP BY date(at)"
STATEMENTS = {
    "days": DAYS,
    "above": "SELECT max(n) AS m FROM days",
    "newest": "SELECT k, max(at) AS at FROM t WHERE at IS NOT NULL GROUP BY k",
}


def test_state_by_local_dates_does_not_go_on_in_another_zone(spark: SparkSession) -> None:
    program = Program(spark)
    source = PipelineSource(SCHEMA, changelog=True)
    before = spark.conf.get(ZONE)
    try:
        with PipelineHarness(program.flow(STATEMENTS), {"t": source}) as harness:
            harness.push("t", [(1, dt.datetime(2024, 1, 1, 23, 30, tzinfo=dt.UTC), None)])
            assert net(harness.end_batch()["above"]) == {(1,): 1}
            program.ran()
            spark.conf.set(ZONE, "Europe/Vienna")
            with pytest.raises(SqlError, match=f"days.group-1: {ZONE} was UTC, is Europe/Vienna"):
                harness.restart(program.flow(STATEMENTS))
            harness.restart(program.flow(STATEMENTS, "start-anew"))
            assert program.uids == ["days.group-1-v2", "above.group-1-v2", "newest.group-1"]
    finally:
        spark.conf.set(ZONE, str(before))


@pytest.mark.usefixtures("vienna")
def test_constant_times_are_compared_with_those_of_a_source(spark: SparkSession, async_enabled: bool) -> None:
    rows = "(TIMESTAMP '2024-06-01 12:00:00', 'noon'), (TIMESTAMP '2024-06-01 18:00:00', 'evening')"
    sql = f"SELECT t.k, c.name FROM t JOIN (VALUES {rows}) AS c(at, name) ON t.at = c.at"
    flow = sql_pipeline(sql, spark=spark)
    with PipelineHarness(flow, {"t": TIMED}, async_enabled=async_enabled) as harness:
        assert "ConstantJoin" in harness.explain()
        noon = dt.datetime(2024, 6, 1, 10, tzinfo=dt.UTC)
        harness.push("t", [(n, noon + dt.timedelta(hours=n), None) for n in range(3)])
        harness.end_batch()
        assert {row[1:3] for row in harness.rows("out")} == {(0, "noon")}


def test_constant_times_are_in_utc_at_any_depth() -> None:
    local, plain = pa.timestamp("us", "Europe/Vienna"), pa.timestamp("us", "UTC")
    noon = dt.datetime(2024, 6, 1, 10, tzinfo=dt.UTC)
    rows = pa.table(
        {"s": pa.array([{"at": noon}], pa.struct([("at", local)])), "l": pa.array([[noon]], pa.list_(local))}
    )
    found = ir.Constant.of(rows, ()).table
    assert found.schema.types == [pa.struct([("at", plain)]), pa.list_(plain)]
    assert found.to_pylist() == [{"s": {"at": noon}, "l": [noon]}]
