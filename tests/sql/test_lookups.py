# ruff: noqa: E501  # statements are data, one a line
"""Lookups and state retention in statements."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("duckdb")

from asyncstate.errors import SqlError
from asyncstate.lookups import TableLookup
from asyncstate.spark import StreamingJob
from asyncstate.sql import sql_pipeline
from asyncstate.sql.statements import SqlContext
from asyncstate.testing import PipelineHarness, PipelineSource
from tests.sql.features import changing_tables
from tests.sql.tables import NEEDS_COMPILER, kept_right
from tests.sql.test_statements import SCHEMA, pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, NEEDS_COMPILER]

DIM = [{"id": n, "name": f"n{n}", "size": n * n} for n in (0, 1, 1, 3)]
ROWS = "(VALUES (0, 'n0', 0), (1, 'n1', 1), (1, 'n1', 1), (3, 'n3', 9)) AS d(id, name, size)"
FOUND = "name string, size bigint"


def with_lookup(context: SqlContext) -> None:
    """Declare the table as a lookup."""
    context.add_lookup("Dim", TableLookup(DIM, ["id"], ["name", "size"]), "id bigint", FOUND, batch=3)


LOOKUPS: dict[str, tuple[str, str]] = {
    "inner": (
        "SELECT t.a, b, d.id, name FROM t JOIN dim d ON t.a = d.id",
        f"SELECT t.a, b, d.id, name FROM t JOIN {ROWS} ON t.a = d.id",
    ),
    "as of now": (
        "SELECT a, name FROM t LEFT JOIN dim FOR SYSTEM_TIME AS OF PROCTIME() AS d ON d.id = t.a WHERE b > 1",
        f"SELECT a, name FROM t LEFT JOIN {ROWS} ON t.a = d.id WHERE b > 1",
    ),
    "where": (
        "SELECT b, size FROM t, dim WHERE t.b % 4 = dim.id AND size > 0 AND size <> t.a",
        f"SELECT b, size FROM t JOIN {ROWS} ON t.b % 4 = d.id WHERE size > 0 AND size <> t.a",
    ),
    "the other way round": (
        "SELECT b, size FROM dim RIGHT JOIN t ON id = a",
        f"SELECT b, size FROM t LEFT JOIN {ROWS} ON id = a",
    ),
    "a condition on a column that is not shown": (
        "SELECT b FROM t JOIN dim ON t.a = dim.id WHERE size >= 1",
        f"SELECT b FROM t JOIN {ROWS} ON t.a = d.id WHERE size >= 1",
    ),
    "equal to a further column": (
        "SELECT b, name FROM t JOIN dim ON t.a = dim.id AND size = b % 2",
        f"SELECT b, name FROM t JOIN {ROWS} ON t.a = d.id AND size = b % 2",
    ),
    "a condition that Spark copies to the key": (
        "SELECT a, name FROM t LEFT JOIN dim ON t.a = dim.id WHERE a IN (0, 3)",
        f"SELECT a, name FROM t LEFT JOIN {ROWS} ON t.a = d.id WHERE a IN (0, 3)",
    ),
    "grouped": (
        "SELECT name, count(*) AS n FROM t LEFT JOIN dim ON id = a WHERE coalesce(size, 1) < 5 GROUP BY name",
        f"SELECT name, count(*) AS n FROM t LEFT JOIN {ROWS} ON id = a WHERE coalesce(size, 1) < 5 GROUP BY name",
    ),
}


@pytest.mark.parametrize("name", LOOKUPS)
def test_a_lookup_is_joined_with_changes(spark: SparkSession, name: str) -> None:
    sql, oracle = LOOKUPS[name]

    def statements(context: SqlContext) -> Any:
        with_lookup(context)
        return context.run(sql)

    begins_async = list(LOOKUPS).index(name) % 2 == 1
    tables = changing_tables(seed=3)
    assert kept_right(pipeline(spark, statements), tables, "t", oracle, async_enabled=begins_async) > 0


def test_a_plan_is_made_from_the_key_of_a_lookup_as_well(spark: SparkSession) -> None:
    made: list[Any] = []

    def statements(key: str, columns: str, context: SqlContext) -> Any:
        names = [[one.split()[0] for one in given.split(", ")] for given in (key, columns)]
        context.add_lookup("dim", TableLookup(DIM, *names), key, columns)
        found = context.run("SELECT t.id, name FROM t JOIN dim ON t.id = dim.id AND t.v = dim.size", "same")
        made.append(context.compiled["same"].made_from)
        return found

    keys = (("id bigint", "size bigint, name string"), ("id bigint, size bigint", "name string"))
    for key in keys:
        with PipelineHarness(pipeline(spark, partial(statements, *key)), {"t": PipelineSource(SCHEMA)}):
            pass
    assert made[0] != made[1]


def test_found_values_that_must_not_be_null_are_asked_for(spark: SparkSession, async_enabled: bool) -> None:
    found = TableLookup(
        [{"id": 1, "name": None, "size": 1}, {"id": 2, "name": "b", "size": 4}], ["id"], ["name", "size"]
    )

    def statements(context: SqlContext) -> Any:
        context.add_lookup("dim", found, "id bigint", FOUND)
        with pytest.raises(SqlError, match="conditions other than the key in a LEFT JOIN"):
            context.run("SELECT t.id, size FROM t LEFT JOIN dim ON t.id = dim.id AND name IS NOT NULL")
        return context.run("SELECT t.id, size FROM t JOIN dim ON t.id = dim.id WHERE name IS NOT NULL")

    source = {"t": PipelineSource(SCHEMA)}
    with PipelineHarness(pipeline(spark, statements), source, async_enabled=async_enabled) as harness:
        harness.push("t", [(1, 0, 0, 0), (2, 0, 0, 0), (3, 0, 0, 0)])
        assert harness.end_batch()["out"] == [("+I", 2, 4)]


def test_a_lookup_of_insertions_needs_no_exchange(spark: SparkSession, async_enabled: bool) -> None:
    def statements(context: SqlContext) -> Any:
        with_lookup(context)
        return context.run("SELECT t.id, name FROM t JOIN dim ON t.id = dim.id")

    source = {"t": PipelineSource(SCHEMA)}
    with PipelineHarness(pipeline(spark, statements), source, async_enabled=async_enabled) as harness:
        assert "StatelessLookupJoin" in harness.explain()
        harness.push("t", [(1, 0, 0, 0), (2, 0, 0, 0), (None, 0, 0, 0)])
        assert harness.end_batch()["out"] == [("+I", 1, "n1"), ("+I", 1, "n1")]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"lookup": TableLookup(DIM, ["id"], ["name"]), "key": "id bigint"},
            "give a dict with lookup, key, columns",
        ),
        (TableLookup(DIM, ["id"], ["name"]), "give a dict with lookup, key, columns"),
        ({"lookup": 1, "key": "id bigint", "columns": "name string"}, "lookup 'dim'"),
        (
            {
                "lookup": TableLookup(DIM, ["id"], ["name"]),
                "key": "id bigint",
                "columns": "name string",
                "sise": 3,
            },
            "lookup 'dim'.*sise",
        ),
    ],
)
def test_wrong_lookups_of_a_pipeline_are_refused(spark: SparkSession, given: Any, said: str) -> None:
    flow = sql_pipeline("SELECT t.id FROM t", spark=spark, lookups={"dim": given})
    with pytest.raises(SqlError, match=said), PipelineHarness(flow, {"t": PipelineSource(SCHEMA)}):
        pass


def test_explain_shows_a_lookup(spark: SparkSession) -> None:
    def statements(context: SqlContext) -> Any:
        with_lookup(context)
        said = context.run("EXPLAIN SELECT t.id, size FROM t JOIN dim ON t.id = dim.id")
        assert "source Dim; how inner; key id_0; columns size AS size_0" in said
        return context.run("SELECT id FROM t")

    with PipelineHarness(pipeline(spark, statements), {"t": PipelineSource(SCHEMA)}) as harness:
        assert "LookupJoin" not in harness.explain()


REFUSED: dict[str, tuple[str, str]] = {
    "alone": ("SELECT name FROM dim", "lookup 'Dim', which has no rows of its own"),
    "kept": ("SELECT name FROM t RIGHT JOIN dim ON t.id = dim.id", "no rows of its own"),
    "exists": ("SELECT id FROM t WHERE id IN (SELECT id FROM dim)", "no rows of its own"),
    "grouped": (
        "SELECT c FROM t JOIN (SELECT id, count(*) AS c FROM dim GROUP BY id) d ON t.id = d.id",
        "no rows of its own",
    ),
    "another key": ("SELECT t.id FROM t JOIN dim ON t.id = size", "a key that is not id"),
    "a computed key": ("SELECT t.id FROM t JOIN dim ON t.id = dim.id + 1", "this condition"),
    "no key": ("SELECT t.id FROM t JOIN dim ON t.id < dim.id", "this condition"),
    "null-safe": ("SELECT t.id FROM t JOIN dim ON t.id <=> dim.id", "this condition"),
    "a condition on its key": (
        "SELECT t.id FROM t LEFT JOIN dim ON t.id = dim.id AND dim.id IN (0, 3)",
        "conditions other than the key in a LEFT JOIN",
    ),
    "more conditions": (
        "SELECT t.id FROM t LEFT JOIN dim ON t.id = dim.id AND size > 3",
        "conditions other than the key in a LEFT JOIN",
    ),
    "its key": ("SELECT dim.id FROM t LEFT JOIN dim ON t.id = dim.id", "a LEFT JOIN that selects id"),
    "as of a time": (
        "SELECT t.id FROM t\nJOIN dim FOR SYSTEM_TIME AS OF t.at ON t.id = dim.id",
        "line 2: dim FOR SYSTEM_TIME AS OF t.at: not kept up to date",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_uses_of_a_lookup_are_refused(spark: SparkSession, name: str) -> None:
    sql, said = REFUSED[name]

    def statements(context: SqlContext) -> Any:
        with_lookup(context)
        nodes, parts = list(context.tables["t"].built.stream._flow.nodes), dict(context._syntax.parts)
        with pytest.raises(SqlError, match=said):
            context.run(sql)
        assert context.tables["t"].built.stream._flow.nodes == nodes
        assert context._syntax.parts == parts
        return context.run("SELECT id FROM t")

    with PipelineHarness(pipeline(spark, statements), {"t": PipelineSource(SCHEMA)}):
        pass


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("t", print, "id bigint", FOUND, {}), "there is 't' already"),
        (("d", 5, "id bigint", FOUND, {}), "lookup 'd': .*give a function"),
        (("d", print, "id nothing", FOUND, {}), "lookup 'd'"),
        (("d", print, "id bigint", FOUND, {"how": "left"}), "leave to statements what they say"),
        (("d", print, "id bigint", FOUND, {"speed": 1}), "lookup 'd': .*speed"),
        (("d", print, "size bigint", FOUND, {}), "columns of different names"),
    ],
)
def test_a_lookup_that_does_not_fit_is_refused(spark: SparkSession, given: Any, message: str) -> None:
    def statements(context: SqlContext) -> Any:
        with pytest.raises(SqlError, match=message):
            context.add_lookup(*given[:4], **given[4])
        assert context.lookups == {}
        return context.run("SELECT id FROM t")

    with PipelineHarness(pipeline(spark, statements), {"t": PipelineSource(SCHEMA)}):
        pass


def test_a_job_names_its_lookups(spark: SparkSession, tmp_path: Path) -> None:
    job = StreamingJob(spark, str(tmp_path))
    job.source("rates", spark.readStream.format("rate").load())
    job.lookup("dim", TableLookup(DIM, ["id"], ["name", "size"]), key="id bigint", columns=FOUND, batch=2)
    job.sql("SELECT value, name FROM rates JOIN dim ON value = id", name="named").to(print, name="out")
    assert "StatelessLookupJoin" in job.explain()
    with pytest.raises(SqlError, match="there is 'dim' already"):
        job.source("dim", spark.readStream.format("rate").load())


TTLS = [
    "SELECT /*+ STATE_TTL('x' = '1 hour') */ a, count(*) AS n FROM t AS x GROUP BY a",
    "SELECT a, count(*) AS n FROM t WITH ('state.ttl' = '1 hour') GROUP BY a",
    "SELECT a, n FROM (SELECT /*+ REPARTITION(2), state_ttl ( `x`='1 hour' ) */ a, f(1, 2) AS y, count(*) AS n FROM (SELECT * FROM t WHERE a > 0) X GROUP BY a)",
]


@pytest.mark.parametrize("sql", TTLS)
def test_a_statement_says_how_long_groups_are_kept(
    spark: SparkSession, sql: str, async_enabled: bool
) -> None:
    sources = changing_tables(seed=3).sources(["t"])
    counted = sql_pipeline(sql.replace("f(1, 2)", "greatest(1, 2)"), spark=spark)
    with PipelineHarness(counted, sources, async_enabled=async_enabled) as harness:
        harness.push("t", [(1, 1, "x"), (1, 2, "y")])
        assert harness.end_batch()["out"] == [("+I", 1, 2)]
        harness.advance_processing_time("2 hours")
        harness.push("t", [(1, 4, "x")])
        assert harness.end_batch()["out"] == [("+I", 1, 1)]


@pytest.mark.parametrize("how", ["JOIN", "LEFT JOIN"])
def test_each_side_of_a_join_is_kept_for_a_time_of_its_own(
    spark: SparkSession, how: str, async_enabled: bool
) -> None:
    sql = f"SELECT /*+ STATE_TTL('t' = '1 hour', 'o' = '3 hours') */ b, d FROM t {how} u o ON t.a = o.a"
    sources = changing_tables(seed=3).sources(["t", "u"])
    with PipelineHarness(sql_pipeline(sql, spark=spark), sources, async_enabled=async_enabled) as harness:
        harness.push("t", [(1, 10, "x")])
        harness.push("u", [(1, 20, "x")])
        harness.end_batch()
        harness.advance_processing_time("2 hours")
        harness.push("u", [(1, 21, "x")])
        assert harness.end_batch()["out"] == []
        harness.push("t", [(1, 11, "x")])
        assert sorted(row for row in harness.end_batch()["out"] if row[2] is not None) == [
            ("+I", 11, 20),
            ("+I", 11, 21),
        ]


TTL_REFUSED: dict[str, tuple[str, str]] = {
    "no reader": (
        "SELECT a FROM t WITH ('state.ttl' = '1 day')",
        "line 1: t WITH .* whose reader cannot forget",
    ),
    "over": (
        "SELECT /*+ STATE_TTL('t' = '1 day') */ a, sum(b) OVER (PARTITION BY a) AS s FROM t",
        "whose reader cannot forget",
    ),
    "unknown": (
        "SELECT\n /*+ STATE_TTL('z' = '1 day') */ a FROM t GROUP BY a",
        "line 2: .*0 tables .* the name z",
    ),
    "twice": ("SELECT /*+ STATE_TTL('t' = '1 day') */ x.a FROM t JOIN s.t ON true", "2 tables .* the name t"),
    "no length": ("SELECT a FROM t WITH ('state.ttl' = 'long') GROUP BY a", "the retention 'long'"),
    "no pair": ("SELECT /*+ STATE_TTL('t', '1 day') */ a FROM t GROUP BY a", "this form of STATE_TTL"),
    "more options": ("SELECT a FROM t WITH ('state.ttl' = '1 d', 'x' = 'y') GROUP BY a", "these options"),
    "another option": ("SELECT a FROM t WITH ('state.tll' = '1 day') GROUP BY a", "these options"),
    "another option before it": (
        "SELECT a FROM t WITH ('x' = 'y', 'state.ttl' = '1 day') GROUP BY a",
        "these options",
    ),
    "in another block": (
        "SELECT /*+ STATE_TTL('u' = '1 day') */ a FROM (SELECT a FROM u GROUP BY a)",
        "0 tables .* the name u",
    ),
}


@pytest.mark.parametrize("name", TTL_REFUSED)
def test_state_that_cannot_expire_is_refused(spark: SparkSession, name: str) -> None:
    sql, said = TTL_REFUSED[name]
    with pytest.raises(SqlError, match=said):
        PipelineHarness(sql_pipeline(sql, spark=spark), changing_tables(seed=3).sources(["t", "u"]))
