"""What statements refuse, that a refused one changes nothing, and what they read of a source besides its rows."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa

from asyncstate.dataflow import Dataflow
from asyncstate.dataflow.nodes import Times
from asyncstate.errors import SqlError
from asyncstate.sql import plans
from asyncstate.sql.job import table_of
from asyncstate.sql.statements import SqlContext
from asyncstate.testing import PipelineHarness, PipelineSource, net
from tests.sql.tables import NEEDS_COMPILER

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, NEEDS_COMPILER]

SCHEMA = pa.schema(
    [("id", pa.int64()), ("v", pa.int64()), ("n", pa.int64()), ("at", pa.timestamp("us", "UTC"))]
)
INSERTIONS = PipelineSource(SCHEMA, event_time="at", watermark_delay="1 second")
UPSERTS = PipelineSource(SCHEMA, mode="upsert", primary_key="id", sequence="n")


def pipeline(spark: SparkSession, statements: Callable[[SqlContext], Any]) -> Callable[..., None]:
    """The result of ``statements``, a stream, goes to the sink ``out``."""

    def flow(**streams: Any) -> None:
        context = SqlContext(spark)
        for name, stream in streams.items():
            context.add(name, table_of(stream))
        statements(context).to(print, name="out")

    return flow


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        ("INSERT INTO kept (v) SELECT id, v FROM t", {}, "Spark says of the statement: .*ARITY_MISMATCH"),
        ("INSERT INTO kept (v, V) SELECT id, v FROM t", {}, r"sink 'kept': .* \(v, V\) has a name twice"),
        ("INSERT OVERWRITE kept SELECT id, v FROM t", {}, "INSERT INTO with OVERWRITE"),
        ("INSERT INTO kept PARTITION (v = 1) SELECT id FROM t", {}, "INSERT INTO with PARTITION"),
        (
            "CREATE VIEW w (b, a, c) AS SELECT id, v FROM t",
            {},
            "Spark says of the statement: .*ARITY_MISMATCH",
        ),
        ("CREATE VIEW view AS SELECT id FROM t", {}, "there is 'view' already"),
        ("CREATE VIEW T AS SELECT id FROM t", {}, "there is 'T' already"),
        ("CREATE VIEW w AS SELECT id FROM t", {"name": "w"}, "name= has no effect on CREATE VIEW"),
        (
            "CREATE VIEW w AS SELECT id FROM t",
            {"state_ttl": "1 day"},
            "state_ttl= has no effect on CREATE VIEW",
        ),
        ("TRUNCATE TABLE t", {}, "TruncateTable is no statement of a stream"),
        ("CACHE TABLE w AS SELECT 1 AS id", {}, "CacheTableAsSelect is no statement of a stream"),
        ("EXPLAIN DROP TABLE t", {}, "DropTable is no statement of a stream"),
        ("EXPLAIN INSERT OVERWRITE kept SELECT id, v FROM t", {}, "INSERT INTO with OVERWRITE"),
        (
            "WITH w AS (SELECT id, v FROM t) INSERT OVERWRITE kept SELECT * FROM w",
            {},
            "INSERT INTO with OVERWRITE",
        ),
        (
            "FROM t INSERT INTO kept SELECT id INSERT INTO kept SELECT v",
            {},
            "InsertIntoStatement is no statement of a stream",
        ),
        ("SELECT id FROM t", {"name": "Kept"}, "there is 'Kept' already"),
        ("SELECT id FROM t", {"name": "../a/b"}, "called '../a/b', which begins the names of its operators"),
        ("CREATE MATERIALIZED VIEW `a b` AS SELECT id FROM t", {}, "called 'a b', which begins the names"),
        ("SELECT v, sum(id) OVER (PARTITION BY v) FROM t", {"state_ttl": "1 day"}, "OVER needs all rows"),
        (
            "SELECT "
            + ", ".join(f"id + {n} AS c{n}" for n in range(40))
            + ", unix_timestamp() AS now FROM t",
            {},
            "changes without a row",
        ),
    ],
)
def test_a_refused_statement_changes_nothing(
    spark: SparkSession, text: str, arguments: dict[str, Any], message: str
) -> None:
    def statements(context: SqlContext) -> Any:
        context.add_sink("kept", print)
        context.run("CREATE VIEW view AS SELECT id, v FROM t")
        flow = context.tables["t"].built.stream._flow
        nodes, tables = list(flow.nodes), dict(context.tables)
        with pytest.raises(SqlError, match=message):
            context.run(text, **arguments)
        assert flow.nodes == nodes
        assert context.tables == tables
        context.run("CREATE OR REPLACE VIEW view AS SELECT v AS id, id AS v FROM t")
        return context.run("SELECT id, v FROM view", "kept-again")

    with PipelineHarness(pipeline(spark, statements), {"t": INSERTIONS}) as harness:
        harness.push("t", [(1, 7, 0, 0)])
        assert net(harness.end_batch()["out"]) == {(7, 1): 1}


@pytest.mark.parametrize("by_name", [False, True], ids=["columns", "by name"])
def test_a_list_of_columns_names_them_in_order(
    spark: SparkSession, by_name: bool, async_enabled: bool
) -> None:
    query = "WITH w AS (SELECT * FROM view WHERE `the sum` > 1) SELECT k, `the sum` FROM w ORDER BY k LIMIT 2"
    names: list[str] = []

    def statements(context: SqlContext) -> Any:
        context.run("CREATE VIEW view (`k`, `the sum`) AS SELECT v, sum(id) FROM t GROUP BY v")
        context.add_sink("kept", print)
        found = context.run(f"INSERT INTO kept {'BY NAME' if by_name else '(total, key)'} {query}")
        root = context.compiled["kept"].root
        names[:] = [] if root is None else root.names
        return found

    with PipelineHarness(pipeline(spark, statements), {"t": UPSERTS}, async_enabled=async_enabled) as harness:
        harness.push("t", [(3, 7, 1, 0), (2, 7, 1, 0), (1, 8, 1, 0), (4, 9, 1, 0), (5, 10, 1, 0)])
        harness.end_batch()
        assert net(harness.rows("kept")) == {(7, 5): 1, (9, 4): 1}
        assert names == (["k", "the sum"] if by_name else ["total", "key"])


@pytest.mark.parametrize(
    "text",
    [
        "EXPLAIN INSERT OVERWRITE files SELECT id FROM t",
        "WITH w AS (SELECT id FROM t) INSERT OVERWRITE files SELECT id FROM w",
        "FROM t INSERT OVERWRITE files SELECT id INSERT INTO files SELECT id",
    ],
)
def test_a_table_of_the_session_is_never_written(spark: SparkSession, tmp_path: Path, text: str) -> None:
    """Spark runs a command as soon as it is analyzed."""
    place = str(tmp_path / "files")
    spark.range(3).write.parquet(place)
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW files (id LONG) USING parquet OPTIONS (path '{place}')")

    def statements(context: SqlContext) -> Any:
        with pytest.raises(SqlError):
            context.run(text)
        return context.run("SELECT id FROM t")

    try:
        with PipelineHarness(pipeline(spark, statements), {"t": INSERTIONS}):
            assert spark.read.parquet(place).count() == 3
    finally:
        spark.catalog.dropTempView("files")


def test_common_table_expressions_may_stand_before_insert(spark: SparkSession, async_enabled: bool) -> None:
    text = "WITH w AS (SELECT v, sum(id) AS s FROM t GROUP BY v) INSERT INTO kept (total, key) SELECT s, v FROM w"

    def statements(context: SqlContext) -> Any:
        context.add_sink("kept", print)
        assert "Aggregate" in context.run(f"EXPLAIN {text}")
        return context.run(text)

    with PipelineHarness(pipeline(spark, statements), {"t": UPSERTS}, async_enabled=async_enabled) as harness:
        harness.push("t", [(1, 7, 1, 0), (2, 7, 1, 0), (3, 8, 1, 0)])
        harness.end_batch()
        assert net(harness.rows("kept")) == {(3, 7): 1, (3, 8): 1}


def test_a_sink_that_is_none_is_refused(spark: SparkSession) -> None:
    with pytest.raises(SqlError, match="sink 'kept' is 5; give a function"):
        SqlContext(spark).add_sink("kept", 5)


def test_upserts_in_sequence_are_read_by_any_number_of_statements(
    spark: SparkSession, async_enabled: bool
) -> None:
    def statements(context: SqlContext) -> Any:
        first = context.run("SELECT sum(v) AS s FROM t", "first")
        first.to(print, name="first")
        return context.run("SELECT max(a.v) AS m FROM t a JOIN t b ON a.id = b.id", "second")

    with PipelineHarness(pipeline(spark, statements), {"t": UPSERTS}, async_enabled=async_enabled) as harness:
        harness.push("t", [(1, 7, 2, 0), (1, 5, 1, 0)])
        rows = harness.end_batch()
        assert (net(rows["first"]), net(rows["out"])) == ({(7,): 1}, {(7,): 1})
        harness.push("t", [(1, 3, 3, 0)])
        harness.end_batch()
        assert (net(harness.rows("first")), net(harness.rows("out"))) == ({(3,): 1}, {(3,): 1})


def test_stale_upserts_of_a_source_are_dropped(spark: SparkSession, async_enabled: bool) -> None:
    source = replace(UPSERTS, drop_stale=True)
    flow = pipeline(spark, lambda context: context.run("SELECT id, v FROM t"))
    with PipelineHarness(flow, {"t": source}, async_enabled=async_enabled) as harness:
        harness.push("t", [(1, 7, 2, 0), (2, 8, 1, 0)])
        harness.end_batch()
        harness.push("t", [(1, 5, 1, 0), (2, 9, 2, 0)])
        harness.end_batch()
        assert net(harness.rows("out")) == {(1, 7): 1, (2, 9): 1}


def test_upserts_without_a_time_are_rows(spark: SparkSession, async_enabled: bool) -> None:
    source = replace(UPSERTS, event_time="at", watermark_delay="1 second")
    flow = pipeline(spark, lambda context: context.run("SELECT id, v FROM t"))
    with PipelineHarness(flow, {"t": source}, async_enabled=async_enabled) as harness:
        harness.push("t", [(1, 7, 1, None), (2, 8, 1, 0)])
        harness.end_batch()
        assert net(harness.rows("out")) == {(1, 7): 1, (2, 8): 1}
        harness.push("t", [(2, None, 2, None)], kind="-D")
        harness.end_batch()
        assert net(harness.rows("out")) == {(1, 7): 1}


@pytest.mark.parametrize("async_enabled", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("sets", ["ROLLUP(id)", "CUBE(id)", "GROUPING SETS((id), ())"])
def test_a_total_of_no_rows_is_sparks(spark: SparkSession, sets: str, async_enabled: bool) -> None:
    """With all grouping sets in one query Spark has none, unlike a global aggregate and unlike other engines."""
    text = f"SELECT id, sum(v) AS s FROM t WHERE v > 0 GROUP BY {sets}"
    nothing = spark.createDataFrame([], "id long, v long")
    assert spark.sql(text.replace("FROM t", "FROM {t}"), t=nothing).collect() == []
    flow = pipeline(spark, lambda context: context.run(text))
    with PipelineHarness(flow, {"t": UPSERTS}, async_enabled=async_enabled) as harness:
        harness.end_batch()
        assert net(harness.rows("out")) == {}
        harness.push("t", [(1, 7, 1, 0)])
        harness.end_batch()
        assert net(harness.rows("out")) == {(1, 7): 1, (None, 7): 1}
        harness.push("t", [(1, -7, 2, 0)])
        harness.end_batch()
        assert net(harness.rows("out")) == {}


def test_a_plan_is_made_from_times_and_modes_as_well(spark: SparkSession) -> None:
    made: dict[str, str] = {}

    def named(name: str) -> Callable[[SqlContext], Any]:
        def statements(context: SqlContext) -> Any:
            stream = context.run("SELECT id, v FROM t WHERE v > 1", "same")
            made[name] = json.dumps(context.compiled["same"].made_from)
            return stream

        return statements

    sources = {
        "event time": INSERTIONS,
        "no delay": PipelineSource(SCHEMA, event_time="at"),
        "no time": PipelineSource(SCHEMA),
        "changes": PipelineSource(SCHEMA, changelog=True),
        "again": INSERTIONS,
    }
    for name, source in sources.items():
        with PipelineHarness(pipeline(spark, named(name)), {"t": source}):
            pass
    assert made["again"] == made["event time"]
    assert len(set(made.values())) == 4


def test_a_plan_is_made_from_views_that_were_replaced_as_well(spark: SparkSession) -> None:
    made: dict[str, str] = {}

    def named(condition: str) -> Callable[[SqlContext], Any]:
        def statements(context: SqlContext) -> Any:
            context.run(f"CREATE VIEW one AS SELECT id FROM t WHERE {condition}")
            context.run("CREATE VIEW two AS SELECT id FROM one")
            context.run("CREATE OR REPLACE VIEW one AS SELECT v AS id FROM t")
            stream = context.run("SELECT id FROM two", "same")
            made[condition] = json.dumps(context.compiled["same"].made_from)
            return stream

        return statements

    for condition, ids in (("v > 1", {(3,): 1}), ("v < 1", {(4,): 1})):
        with PipelineHarness(pipeline(spark, named(condition)), {"t": INSERTIONS}) as harness:
            harness.push("t", [(3, 7, 0, 0), (4, 0, 0, 0)])
            assert net(harness.end_batch()["out"]) == ids
    assert len(set(made.values())) == 2


def test_the_users_session_stays_the_active_one(spark: SparkSession) -> None:
    from pyspark.sql import SparkSession

    before = SparkSession.getActiveSession()
    with PipelineHarness(pipeline(spark, lambda context: context.run("SELECT id FROM t")), {"t": INSERTIONS}):
        after = SparkSession.getActiveSession()
    assert before is not None
    assert after is not None
    assert after._jsparkSession.equals(before._jsparkSession)


def test_functions_and_views_of_the_session_are_known_as_they_are_by_then(spark: SparkSession) -> None:
    def statements(context: SqlContext) -> Any:
        context.run("EXPLAIN SELECT id, v FROM t")
        spark.udf.register("named_later", lambda one: one + 1, "long")
        spark.createDataFrame([(7, "x")], "v long, text string").createOrReplaceTempView("made_later")
        spark.createDataFrame([(0,)], "other long").createOrReplaceTempView("t")  # hidden by the source
        assert "named_later" in context.run("EXPLAIN SELECT named_later(id) AS n FROM t")
        return context.run("SELECT t.id, m.text FROM t JOIN made_later m ON t.v = m.v")

    try:
        with PipelineHarness(pipeline(spark, statements), {"t": INSERTIONS}) as harness:
            harness.push("t", [(1, 7, 0, 0)])
            assert net(harness.end_batch()["out"]) == {(1, "x"): 1}
    finally:
        spark.catalog.dropTempView("made_later")
        spark.catalog.dropTempView("t")


def test_generators_that_make_rows_of_every_row_are_the_same_with_outer(spark: SparkSession) -> None:
    context = SqlContext(spark)
    context.add("t", table_of(Dataflow().add_source("t", Times(), None, SCHEMA)))
    said = context.run("EXPLAIN SELECT id, x FROM t LATERAL VIEW OUTER stack(2, id, v) AS x")
    assert "text stack(2" in said


def test_explain_shows_the_plan_for_a_state_ttl(spark: SparkSession) -> None:
    best = "SELECT id, max(v) AS m FROM t GROUP BY id"
    text = f"EXPLAIN SELECT t.id, t.v FROM t JOIN ({best}) q ON t.id = q.id AND t.v = q.m"
    context = SqlContext(spark)
    context.add("t", table_of(Dataflow().add_source("t", Times(), None, SCHEMA)))
    assert "Rank" in context.run(text)
    assert "Rank" not in context.run(text, state_ttl="1 day")


def test_each_node_of_a_plan_is_asked_once_whether_it_reads_a_source(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = SqlContext(spark)
    flow = Dataflow()
    context.add("t", table_of(flow.add_source("t", Times(), None, SCHEMA)))
    asked: list[str] = []
    whole = plans.kind_of

    def counted(node: Any) -> str:
        asked.append(whole(node))
        return asked[-1]

    monkeypatch.setattr(plans, "kind_of", counted)
    joined = " JOIN ".join(f"t t{n} ON t{n - 1}.v = t{n}.id" for n in range(1, 9))
    context.run(f"EXPLAIN SELECT t0.n + t8.n AS x FROM t t0 JOIN {joined}")
    assert asked.count("LogicalRDD") <= 3 * 9


def test_a_changed_scalar_emits_only_the_rows_between_the_bounds(
    spark: SparkSession, async_enabled: bool
) -> None:
    text = "SELECT id FROM t WHERE v > (SELECT 10 * count(*) FROM u) AND v + 1 <= (SELECT max(v) FROM t) * 2"
    sources = {"t": INSERTIONS, "u": INSERTIONS}
    made = pipeline(spark, lambda context: context.run(text))
    with PipelineHarness(made, sources, async_enabled=async_enabled) as harness:
        harness.push("t", [(n, n, 0, 0) for n in range(1_000)])
        assert len(harness.end_batch()["out"]) == 999
        harness.push("u", [(1, 1, 0, 0), (2, 1, 0, 0)])
        assert sorted(harness.end_batch()["out"]) == [("-D", n) for n in range(1, 21)]
        assert "DynamicFilter" in harness.explain()


def test_a_ranking_with_a_scalar_subquery_beside_its_bound(spark: SparkSession) -> None:
    text = """
        SELECT id FROM (SELECT id, v, row_number() OVER (PARTITION BY n ORDER BY id) AS r FROM t)
        WHERE r <= 2 AND v > (SELECT min(v) FROM t)"""
    with PipelineHarness(pipeline(spark, lambda context: context.run(text)), {"t": INSERTIONS}) as harness:
        harness.push("t", [(1, 5, 0, 0), (2, 7, 0, 0), (3, 8, 0, 0)])
        assert net(harness.end_batch()["out"]) == {(2,): 1}


def test_a_job_of_compiled_plans_says_that_it_explains_nothing() -> None:
    context = SqlContext(None)
    context.give({})
    with pytest.raises(SqlError, match="EXPLAIN compiles a statement, .* leave it out"):
        context.run("  explain SELECT 1")
    with pytest.raises(SqlError, match="the compiled plans do not have this statement"):
        context.run("SELECT 1")


def test_what_a_rule_refuses_is_said(spark: SparkSession) -> None:
    spark.conf.set("spark.sql.crossJoin.enabled", "false")
    try:
        text = "SELECT a.id FROM t a JOIN t b"
        with pytest.raises(SqlError, match="cartesian product") as failed:
            PipelineHarness(pipeline(spark, lambda context: context.run(text)), {"t": INSERTIONS})
    finally:
        spark.conf.unset("spark.sql.crossJoin.enabled")
    assert str(failed.value).startswith("Spark says of the statement:")


def test_pyspark_does_not_print_what_is_refused(spark: SparkSession) -> None:
    from pyspark.errors import AnalysisException
    from pyspark.logger import PySparkLogger

    log, printed = PySparkLogger.getLogger("SQLQueryContextLogger"), list[logging.LogRecord]()
    handler = logging.Handler()
    handler.emit = printed.append  # type: ignore[method-assign]
    log.addHandler(handler)
    try:
        with pytest.raises(SqlError, match="b5"):
            SqlContext(spark).run("SELECT b5 FROM range(3)")
        assert not printed
        with pytest.raises(AnalysisException):
            spark.sql("SELECT b5 FROM range(3)")
        assert printed  # errors of the user's own calls are printed as ever
    finally:
        log.removeHandler(handler)


def test_a_random_value_that_is_shown_twice_is_one(spark: SparkSession, async_enabled: bool) -> None:
    text = "SELECT r AS x, r AS y FROM (SELECT rand() AS r FROM t)"
    made = pipeline(spark, lambda context: context.run(text))
    with PipelineHarness(made, {"t": INSERTIONS}, async_enabled=async_enabled) as harness:
        harness.push("t", [(n, n, 0, 0) for n in range(9)])
        assert all(x == y for _, x, y in harness.end_batch()["out"])


def test_a_subplan_that_runs_once_may_be_read_for_its_number_of_rows(
    spark: SparkSession, async_enabled: bool
) -> None:
    sql = (
        "WITH w AS (SELECT a.id, 3 AS three FROM t AS a JOIN t AS b ON a.v = b.id WHERE a.n > b.n) SELECT x.id, "
        "w.three FROM t AS x JOIN w ON x.v = w.three UNION ALL SELECT w.three, w.three FROM w"
    )
    flow = pipeline(spark, lambda context: context.run(sql, "w_and_t"))
    with PipelineHarness(flow, {"t": UPSERTS}, async_enabled=async_enabled) as harness:
        harness.push("t", [(1, 2, 9, None), (2, 3, 1, None), (4, 2, 5, None)])
        found = harness.end_batch()["out"]
    assert net(found) == {(3, 3): 2, (2, 3): 2}
