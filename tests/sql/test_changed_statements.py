"""Statements that are started with another text over the state of an earlier one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from typer.testing import CliRunner

from asyncstate.cli.app import app
from asyncstate.dataflow import Stream
from asyncstate.errors import CheckpointCorruptionError, SqlError
from asyncstate.offline.inspection import Inspection
from asyncstate.spark import StreamingJob
from asyncstate.sql import Compiled, SqlContext, ir
from asyncstate.sql.job import JobSql, view_of
from asyncstate.storage import LocalFiles
from asyncstate.testing import PipelineHarness, PipelineSource, net
from tests.sql.random_changes import Program
from tests.sql.tables import NEEDS_COMPILER

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, NEEDS_COMPILER]

SOURCES = {
    "t": PipelineSource(pa.schema([("k", pa.int64()), ("v", pa.int64())])),
    "u": PipelineSource(pa.schema([("k", pa.int64()), ("w", pa.int64())])),
}
JOINED = """
    SELECT s.k, s.total, u.w
    FROM (SELECT k, sum(v) AS total FROM t WHERE v > 0 GROUP BY k) s
    JOIN (SELECT k, max(w) AS w FROM u GROUP BY k) u ON s.k = u.k"""


@pytest.fixture
def program(spark: SparkSession) -> Program:
    return Program(spark)


def test_operators_that_are_the_same_keep_their_state(program: Program, async_enabled: bool) -> None:
    with PipelineHarness(program.flow({"a": JOINED}), SOURCES, async_enabled=async_enabled) as harness:
        harness.push("t", [(1, 5), (2, 7)])
        harness.push("u", [(1, 3)])
        assert net(harness.end_batch()["a"]) == {(1, 5, 3): 1}
        program.ran()
        text = JOINED.replace("s.k, s.total, u.w", "s.k AS key, u.w + 1 AS more, s.total")
        harness.restart(program.flow({"a": text}))
        harness.push("t", [(1, 1)])
        assert harness.end_batch()["a"] == [("-U", 1, 4, 5), ("+U", 1, 4, 6)]
        assert program.uids == ["a.group-1", "a.group-2", "a.inner-join-1"]


def test_operators_that_differ_are_named_and_start_anew_if_that_is_asked_for(
    program: Program, async_enabled: bool
) -> None:
    with PipelineHarness(program.flow({"a": JOINED}), SOURCES, async_enabled=async_enabled) as harness:
        harness.push("t", [(1, 5)])
        harness.push("u", [(1, 3)])
        harness.end_batch()
        program.ran()
        text = JOINED.replace("max(w)", "min(w)")
        with pytest.raises(SqlError) as refused:
            harness.restart(program.flow({"a": text}))
        first, *named = str(refused.value).splitlines()
        assert first.startswith("statement 'a' is not the one whose state the checkpoint has")
        assert 'changed="start-anew"' in first
        assert [one.split(":")[0].strip() for one in named] == ["a.group-2", "a.inner-join-1"]
        assert "max(" in named[0]
        assert "min(" in named[0]
        assert "line 4" in named[0]
        harness.restart(program.flow({"a": text}, "start-anew"))
        assert program.uids == ["a.group-1", "a.group-2-v2", "a.inner-join-1-v2"]
        harness.push("u", [(1, 9)])
        harness.push("t", [(1, 2)])
        # The sum went on; the minimum and the join have the rows from now on.
        assert net(harness.end_batch()["a"]) == {(1, 7, 9): 1}
        program.ran()
        harness.restart(program.flow({"a": text}))
        harness.push("u", [(1, 4)])
        assert net(harness.end_batch()["a"]) == {(1, 7, 9): -1, (1, 7, 4): 1}
        with pytest.raises(SqlError, match="a.group-2: was .*min.*, is .*max"):
            harness.restart(program.flow({"a": JOINED}))
        harness.restart(program.flow({"a": JOINED}, "start-anew"))
        assert program.uids == ["a.group-1", "a.group-2-v3", "a.inner-join-1-v3"]


LARGEST = "SELECT t.k, t.v FROM t JOIN (SELECT k, max(v) AS m FROM t GROUP BY k) g ON t.k = g.k AND t.v = g.m"


def test_a_ttl_that_is_added_makes_another_plan_of_what_needs_all_rows(
    program: Program, async_enabled: bool
) -> None:
    def restarted(harness: PipelineHarness, *arguments: str | None) -> list[str]:
        harness.restart(program.flow({"a": LARGEST}, *arguments))
        return program.uids

    with PipelineHarness(program.flow({"a": LARGEST}), SOURCES, async_enabled=async_enabled) as harness:
        harness.push("t", [(1, 5), (1, 7)])
        assert net(harness.end_batch()["a"]) == {(1, 7): 1}
        program.ran()
        assert program.uids == ["a.rank-1"]
        with pytest.raises(SqlError, match="a.rank-1: it is gone"):
            restarted(harness, None, "1 hour")
        anew = restarted(harness, "start-anew", "1 hour")
        assert anew == ["a.group-1-v2", "a.inner-join-1-v2"]
        harness.push("t", [(1, 6)])
        assert net(harness.end_batch()["a"]) == {(1, 6): 1}
        program.ran()
        assert restarted(harness, None, "1 day") == anew


def test_a_ttl_that_is_added_before_there_is_state_makes_another_plan_where_that_matters(
    program: Program,
) -> None:
    texts = {"largest": LARGEST, "joined": JOINED}
    PipelineHarness(program.flow(texts), SOURCES).close()
    before = dict(program.stored)
    PipelineHarness(program.flow(texts, None, "1 hour"), SOURCES).close()
    assert program.uids[:2] == ["largest.group-1", "largest.inner-join-1"]
    assert program.stored["joined"].to_json() == before["joined"].to_json()
    after = dict(program.stored)
    PipelineHarness(program.flow(texts), SOURCES).close()  # without it that plan is right as well
    assert {name: one.to_json() for name, one in program.stored.items()} == {
        name: one.to_json() for name, one in after.items()
    }


SUMMED = "SELECT k, sum(v) AS v FROM t GROUP BY k"
RANKED = (
    "SELECT k, v FROM (SELECT k, v, rank() OVER (PARTITION BY k ORDER BY v DESC) AS n FROM t) WHERE n <= 1"
)


def test_a_changed_text_is_made_from_its_own_ttl(program: Program) -> None:
    PipelineHarness(program.flow({"a": SUMMED}), SOURCES).close()
    PipelineHarness(program.flow({"a": RANKED}, None, "1 hour"), SOURCES).close()
    assert program.uids == ["a.rank-1"]
    PipelineHarness(program.flow({"a": SUMMED}, None, "1 hour"), SOURCES).close()
    PipelineHarness(program.flow({"a": LARGEST}), SOURCES).close()
    assert program.uids == ["a.rank-1"]
    PipelineHarness(program.flow({"a": LARGEST}, None, "1 hour"), SOURCES).close()
    assert program.uids == ["a.group-1", "a.inner-join-1"]


LISTED = "SELECT k, listagg(v, ',') WITHIN GROUP (ORDER BY v) AS x, percentile(v, 0.5) AS p FROM t GROUP BY k"


@pytest.mark.parametrize(
    ("was", "now", "said"),
    [
        ("ORDER BY v", "ORDER BY v DESC", "ORDER BY v_0 DESC"),
        ("ORDER BY v", "ORDER BY v NULLS LAST", "ORDER BY v_0 NULLS LAST"),
        ("','", "';'", "';'"),
        ("0.5", "0.9", "percentile(v_0, 0.9)"),
    ],
)
def test_what_differs_in_a_call_is_said(program: Program, was: str, now: str, said: str) -> None:
    with PipelineHarness(program.flow({"a": LISTED}), SOURCES) as harness:
        harness.push("t", [(1, 5), (1, 7)])
        assert net(harness.end_batch()["a"]) == {(1, "5,7", 6.0): 1}
        program.ran()
        with pytest.raises(SqlError) as refused:
            harness.restart(program.flow({"a": LISTED.replace(was, now)}))
    before, after = str(refused.value).split(", is ")
    assert "a.group-1: was " in before
    assert said in after
    assert said not in before


def test_a_filter_upstream_a_new_and_a_missing_operator_are_changes(program: Program) -> None:
    counted = "SELECT k, count(*) AS n FROM t WHERE v > 0 GROUP BY k"
    with PipelineHarness(program.flow({"a": counted}), SOURCES) as harness:
        harness.push("t", [(1, 5)])
        harness.end_batch()
        program.ran()
        for text, message in {
            counted.replace("v > 0", "v > 1"): r"a.group-1: was Filter: conditions .*> 0.*, is Filter: .*> 1",
            "SELECT k FROM t": "a.group-1: it is gone",
            f"SELECT max(n) AS m FROM ({counted})": "a.group-2: it is new: Aggregate: .*max",
        }.items():
            with pytest.raises(SqlError, match=message):
                harness.restart(program.flow({"a": text}))


def test_what_reads_a_view_that_changed_has_changed(program: Program) -> None:
    def statements(view: str) -> dict[str, str]:
        return {"totals": view, "above": "SELECT count(*) AS n FROM totals"}

    text = "SELECT k, sum(v) AS s FROM t GROUP BY k"
    with PipelineHarness(program.flow(statements(text)), SOURCES) as harness:
        harness.push("t", [(1, 5)])
        harness.end_batch()
        program.ran()
        with pytest.raises(SqlError, match="totals.group-1: was .*sum.*, is .*max"):
            harness.restart(program.flow(statements(text.replace("sum", "max"))))
        harness.restart(program.flow(statements(text.replace("sum", "max")), "start-anew"))
        assert program.uids == ["totals.group-1-v2", "above.group-1-v2"]


def test_a_stream_of_the_graph_that_computes_something_else_has_changed(
    spark: SparkSession, async_enabled: bool
) -> None:
    stored, uids = dict[str, Compiled](), list[str]()

    def flow(text: str) -> Callable[[Stream], None]:
        def pipeline(t: Stream) -> None:
            context = SqlContext(spark, dict(stored), uids or None)
            context.add("w", view_of(t.with_columns(v=text)))
            context.run("SELECT k, sum(v) AS s FROM w GROUP BY k", "a").to(print, name="a")
            stored.update(context.compiled)

        return pipeline

    sources = {"t": SOURCES["t"]}
    with PipelineHarness(flow("v + 1"), sources, async_enabled=async_enabled) as harness:
        harness.push("t", [(1, 5)])
        harness.end_batch()
        uids.append("a.group-1")
        with pytest.raises(SqlError, match="a.group-1: the view 'w' that it reads has changed"):
            harness.restart(flow("v + 2"))
        harness.restart(flow("v + 1"))
        harness.push("t", [(1, 1)])
        assert harness.end_batch()["a"] == [("-U", 1, 6), ("+U", 1, 8)]


def test_a_statement_that_has_no_state_yet_may_change(program: Program) -> None:
    with PipelineHarness(program.flow({"a": "SELECT count(*) AS n FROM t"}), SOURCES) as harness:
        harness.restart(program.flow({"a": "SELECT max(v) AS n FROM t"}))
        harness.push("t", [(1, 5)])
        assert net(harness.end_batch()["a"]) == {(5,): 1}


def test_a_start_anew_that_was_not_committed_does_not_return_to_the_earlier_state(program: Program) -> None:
    with PipelineHarness(program.flow({"a": "SELECT count(*) AS n FROM t"}), SOURCES) as harness:
        harness.push("t", [(1, 5)])
        harness.end_batch()
        program.ran()
        text = "SELECT count(*) AS n FROM t WHERE v > 1"
        harness.restart(program.flow({"a": text}, "start-anew"))
        harness.restart(program.flow({"a": text}))  # as after a crash before the first commit
        assert program.uids == ["a.group-1-v2"]
        harness.push("t", [(1, 5)])
        assert net(harness.end_batch()["a"]) == {(1,): 1}


def test_another_body_of_a_sql_function_is_another_plan(spark: SparkSession, program: Program) -> None:
    made = "CREATE OR REPLACE TEMPORARY FUNCTION {}(x BIGINT) RETURNS BIGINT RETURN {}"
    flow = program.flow({"a": "SELECT twice_more(k) AS y FROM t"})
    try:
        spark.sql(made.format("more", "x + 1"))
        spark.sql(made.format("twice_more", "more(more(x))"))
        with PipelineHarness(flow, SOURCES) as harness:
            harness.push("t", [(10, 0)])
            assert harness.end_batch()["a"] == [("+I", 12)]
            program.ran()
            spark.sql(made.format("more", "x + 2"))
            harness.restart(flow)
            harness.push("t", [(10, 0)])
            assert harness.end_batch()["a"] == [("+I", 14)]
    finally:
        for name in ("twice_more", "more"):
            spark.sql(f"DROP TEMPORARY FUNCTION IF EXISTS {name}")


def ran_job(
    spark: SparkSession, folder: Path, text: str, number: int | None, changed: Any = None
) -> list[tuple[Any, ...]]:
    """What a job emits of the statement ``a`` for one more row with this number; None: for no more."""
    if number is not None:
        rows = spark.createDataFrame([(1, number)], "k long, v long").coalesce(1)
        rows.write.mode("append").parquet(str(folder / "in"))
    got: list[tuple[Any, ...]] = []
    with StreamingJob(spark, str(folder / "state")) as job:
        job.source("t", spark.readStream.schema("k long, v long").parquet(str(folder / "in")))
        totals = job.sql(text, "a", changed=changed)
        totals.to(lambda out, batch_id: got.extend(map(tuple, out.collect())), name="sink")
        job.await_termination(job.start(trigger="availableNow"))
    return got


@pytest.mark.long
def test_the_state_of_a_job_goes_with_the_first_commit(spark: SparkSession, tmp_path: Path) -> None:
    ran = functools.partial(ran_job, spark, tmp_path)
    summed, highest = (f"SELECT k, {one}(v) AS x FROM t GROUP BY k" for one in ("sum", "max"))
    assert ran(summed, 5) == [(1, 5, "+I")]
    with pytest.raises(SqlError, match="a.group-1: was Aggregate"):
        ran(highest, 0)
    assert ran(highest, 3, "start-anew") == [(1, 3, "+I")]  # also of the row that the refused job left
    assert list(Inspection(str(tmp_path / "state")).manifest().operators) == ["a.group-1-v2"]
    assert ran(highest, 4) == [(1, 3, "-U"), (1, 4, "+U")]


@pytest.mark.long
def test_a_statement_returns_to_the_state_that_a_rollback_returns_to(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Its operators had started anew since; what they have stored then is gone."""
    place = str(tmp_path / "state")

    ran = functools.partial(ran_job, spark, tmp_path)
    summed, highest = (f"SELECT k, {one}(v) AS x FROM t GROUP BY k" for one in ("sum", "max"))
    assert ran(summed, 5) == [(1, 5, "+I")]
    assert ran(highest, 3, "start-anew") == [(1, 3, "+I")]
    back = ["state", "rollback", place, "0", "--yes", "--spark-checkpoint", f"{place}-query"]
    assert CliRunner().invoke(app, back).exit_code == 0
    assert ran(summed, None) == [(1, 5, "-U"), (1, 8, "+U")]
    assert list(Inspection(place).manifest().operators) == ["a.group-1"]
    assert ran(highest, 4, "start-anew") == [(1, 4, "+I")]
    assert ran(highest, 6) == [(1, 4, "-U"), (1, 6, "+U")]
    assert list(Inspection(place).manifest().operators) == ["a.group-1-v2"]


@pytest.mark.parametrize("text", ["{", "[]", '{"format": null}', "\x00"])
def test_what_is_no_plan_is_not_passed_over(tmp_path: Path, text: str) -> None:
    """Without the plan a changed statement would not be noticed. Files that no statement has are of others."""
    files = LocalFiles(tmp_path)
    files.put_bytes("sql/.notes", b"mine")
    JobSql(None, files, None, None)  # type: ignore[arg-type]  # nothing is compiled
    files.put_bytes("sql/a.json", text.replace("null", str(ir.FORMAT)).encode())
    with pytest.raises(
        CheckpointCorruptionError, match=r"sql/a\.json in the checkpoint is no compiled statement"
    ):
        JobSql(None, files, None, None)  # type: ignore[arg-type]
