# ruff: noqa: E501  # statements are data, one a line
"""MATCH_RECOGNIZE against a search in plain Python, and what of it is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("duckdb")

from asyncstate.errors import SqlError
from asyncstate.sql import Compiled, sql_pipeline
from asyncstate.testing import PipelineHarness
from tests.sql.random_windows import timed_tables
from tests.sql.tables import NEEDS_COMPILER

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, NEEDS_COMPILER]

Row = tuple[Any, ...]
Taken = list[tuple[str, Row]]
Part = tuple[str, int, int]


def longest(
    rows: Sequence[Row], parts: Sequence[Part], meets: Callable[[str, Row, Taken], bool]
) -> Taken | None:
    """The preferred match that begins with the first of some rows: each part (variable, least, most) takes as many
    rows as it can."""

    def search(at: int, part: int, times: int, taken: Taken) -> Taken | None:
        if part == len(parts):
            return taken
        name, least, most = parts[part]
        if times < most and at < len(rows) and meets(name, rows[at], taken):
            found = search(at + 1, part, times + 1, [*taken, (name, rows[at])])
            if found is not None:
                return found
        return search(at, part + 1, 0, taken) if times >= least else None

    return search(0, 0, 0, [])


def matches(
    rows: Sequence[Row],
    parts: Sequence[Part],
    meets: Callable[[str, Row, Taken], bool],
    overlap: bool = False,
) -> list[Taken]:
    """All matches in the rows of a key."""
    found, at = [], 0
    while at < len(rows):
        one = longest(rows[at:], parts, meets)
        found += [] if one is None else [one]
        at += 1 if one is None or overlap else len(one)
    return found


def rates(taken: Taken, name: str | None = None) -> list[int]:
    """The rates of the rows that a variable took."""
    return [row[1] for variable, row in taken if name in (None, variable)]


def falls(name: str, row: Row, taken: Taken) -> bool:
    last = taken[-1][1][1] if taken else None
    if name == "START":
        return True
    return bool(row[1] < last if name == "DOWN" else row[1] > last)


def sums(name: str, row: Row, taken: Taken) -> bool:
    if name == "A":
        return bool(row[1] > 1)
    if name == "B":
        return bool(sum(rates(taken, "B")) + row[1] < 14 and row[1] * 2 != rates(taken, "A")[-1])
    return bool(row[1] > sum(rates(taken, "B")) / len(rates(taken, "B")))


CASES: dict[str, tuple[str, Sequence[Part], Any, bool, Callable[[Taken], Row]]] = {
    "looks at the row before": (
        """SELECT k, low, high, n, d, m FROM v MATCH_RECOGNIZE (
             PARTITION BY k ORDER BY since -- in order of time, not DEFINE
             MEASURES LAST(DOWN.rate) AS low, UP.rate AS high, COUNT(*) AS n, LAST(UP.rate) - FIRST(Start.rate) AS d, FINAL SUM(down.rate * 2) AS m
             ONE ROW PER MATCH AFTER MATCH SKIP PAST LAST ROW
             PATTERN (START DOWN+ UP)
             DEFINE down AS DOWN.rate < PREV(DOWN.rate), UP AS rate > PREV(rate, 1)
           ) AS x""",
        [("START", 1, 1), ("DOWN", 1, 99), ("UP", 1, 1)],
        falls,
        False,
        lambda t: (
            rates(t, "DOWN")[-1],
            rates(t, "UP")[-1],
            len(t),
            rates(t, "UP")[-1] - rates(t)[0],
            2 * sum(rates(t, "DOWN")),
        ),
    ),
    "rows alone, and overlaps": (
        """SELECT q.k, q.`pattern (`, q.most, q.least, q.n, q.lows FROM (SELECT k, rate AS r, since FROM v WHERE rate <> 4)
           match_recognize (partition by k order by since measures first(r) as `pattern (`, max(r) as most, min(Lo.r) as least, count(Hi.r) as n, count(Lo.*) as lows
           after match skip to next row pattern (Lo{1,2} Hi{2}) define Lo as r < 4, Hi as Hi.r >= 4 and 'DEFINE' <> '(') q""",
        [("LO", 1, 2), ("HI", 2, 2)],
        lambda name, row, taken: (row[1] < 4) == (name == "LO"),
        True,
        lambda t: (rates(t)[0], max(rates(t)), min(rates(t, "LO")), 2, len(rates(t, "LO"))),
    ),
    "looks before the row of another variable": (
        """SELECT k, a, b FROM v MATCH_RECOGNIZE (PARTITION BY k ORDER BY since MEASURES A.rate AS a, B.rate AS b
             PATTERN (S A B) DEFINE A AS rate < 7, B AS rate > PREV(A.rate))""",
        [("S", 1, 1), ("A", 1, 1), ("B", 1, 1)],
        lambda name, row, taken: (
            name == "S" or (row[1] < 7 if name == "A" else bool(row[1] > rates(taken, "S")[0]))
        ),
        False,
        lambda t: (rates(t, "A")[0], rates(t, "B")[0]),
    ),
    "lists and distinct values": (
        """SELECT k, s, c, d, l FROM v MATCH_RECOGNIZE (PARTITION BY k ORDER BY since, rate
             MEASURES ListAgg(CAST(A.rate AS STRING), '; ') AS s, COUNT(DISTINCT A.rate) AS c, SUM(DISTINCT rate) + 1 AS d,
               STRING_AGG(DISTINCT concat('r', A.rate, ')')) AS l
             PATTERN (A{4} B) DEFINE A AS A.rate < 8)""",
        [("A", 4, 4), ("B", 1, 1)],
        lambda name, row, taken: name == "B" or row[1] < 8,
        False,
        lambda t: (
            "; ".join(map(str, rates(t, "A"))),
            len(set(rates(t, "A"))),
            sum(set(rates(t))) + 1,
            "".join(f"r{one})" for one in dict.fromkeys(rates(t, "A"))),
        ),
    ),
    "sums so far": (
        """SELECT k, a, s, l, z FROM v MATCH_RECOGNIZE (PARTITION BY k ORDER BY since ASC NULLS FIRST, rate DESC
             MEASURES A.rate AS a, SUM(B.rate) AS s, LAST(B.rate, 1) AS l, rate_of(C.rate, k) AS z
             PATTERN (A B+ C) WITHIN INTERVAL 10 MINUTES
             DEFINE A AS rate > 1, B AS SUM(B.rate) < 14 AND NOT (rate * 2 = A.rate), C AS C.rate > AVG(B.rate))""".replace(
            "rate_of", "greatest"
        ),
        [("A", 1, 1), ("B", 1, 99), ("C", 1, 1)],
        sums,
        False,
        lambda t: (
            rates(t, "A")[0],
            sum(rates(t, "B")),
            rates(t, "B")[-2] if len(rates(t, "B")) > 1 else None,
            max(rates(t, "C")[0], t[0][1][0]),
        ),
    ),
}
_QUERY = "(SELECT k, rate AS r, since FROM v WHERE rate <> 4)"
_SQL, *_REST = CASES["rows alone, and overlaps"]
CASES["of a common table expression"] = (f"WITH v AS {_QUERY}\n{_SQL.replace(_QUERY, 'v')}", *_REST)


@pytest.mark.parametrize("name", CASES)
def test_matches_are_those_of_a_plain_search(spark: SparkSession, name: str, async_enabled: bool) -> None:
    sql, parts, meets, overlap, result = CASES[name]
    tables, flow = timed_tables(size=20), sql_pipeline(sql, spark=spark)
    found: Counter[Row] = Counter()
    with PipelineHarness(flow, tables.sources(["v"]), async_enabled=async_enabled) as harness:
        assert "Match" in harness.explain()
        for number, changes in enumerate(tables.changes["v"]):
            harness.push("v", [row for _, row in changes])
            found.update(row[1:] for row in harness.end_batch()["out"])
            if number == 2:
                harness.restart(async_enabled=not async_enabled)
        found.update(row[1:] for row in harness.finish()["out"])
    wanted: Counter[Row] = Counter()
    for key in range(4):
        rows = [row for changes in tables.changes["v"] for _, row in changes if row[0] == key]
        if "rate <> 4" in sql:
            rows = [row for row in rows if row[1] != 4]
        wanted.update((key, *result(one)) for one in matches(rows, parts, meets, overlap))
    assert found == wanted
    assert sum(found.values()) > 3


def test_a_stored_pattern_needs_no_session(spark: SparkSession) -> None:
    sql, tables = CASES["sums so far"][0], timed_tables()
    flow = sql_pipeline(sql, spark=spark)
    with PipelineHarness(flow, tables.sources(["v"])) as harness:
        said = harness.explain()
    stored = [Compiled.from_json(plan.to_json()) for plan in flow.plans]  # type: ignore[attr-defined]
    with PipelineHarness(sql_pipeline(plans=stored), tables.sources(["v"])) as harness:
        assert harness.explain() == said


M = "SELECT * FROM v MATCH_RECOGNIZE (PARTITION BY k ORDER BY since MEASURES {} PATTERN ({}) {})"
REFUSED: dict[str, tuple[str, str]] = {
    "all rows": (
        "SELECT * FROM v MATCH_RECOGNIZE (ORDER BY since MEASURES A.rate AS r ALL ROWS PER MATCH PATTERN (A))",
        "MATCH_RECOGNIZE with ALL ROWS",
    ),
    "a misspelt clause": (
        "SELECT * FROM v MATCH_RECOGNIZE (ORDER BY since MEASURES A.rate AS r ONE ROW PER MATCH\nAFTER MACH SKIP TO NEXT ROW PATTERN (A))",
        "line 2: AFTER MACH.*this after ONE ROW PER MATCH",
    ),
    "no measures": (
        "SELECT * FROM v\nMATCH_RECOGNIZE (ORDER BY since PATTERN (A))",
        "line 2: .*without MEASURES",
    ),
    "no order": (
        "SELECT * FROM v MATCH_RECOGNIZE (PARTITION BY k ORDER BY MEASURES A.rate AS r PATTERN (A))",
        "MATCH_RECOGNIZE without ORDER BY",
    ),
    "two conditions of a variable": (
        M.format("A.rate AS r", "A B", "DEFINE B AS rate > 1, A AS rate < 5, B AS rate < 3"),
        "B twice in DEFINE",
    ),
    "subset": (
        "SELECT * FROM v MATCH_RECOGNIZE (ORDER BY since MEASURES A.rate AS r PATTERN (A B) SUBSET U = (A, B))",
        "MATCH_RECOGNIZE with SUBSET",
    ),
    "not ascending": (
        "SELECT * FROM v MATCH_RECOGNIZE (ORDER BY since DESC MEASURES A.rate AS r PATTERN (A))",
        "ORDER BY time",
    ),
    "another time": (
        "SELECT * FROM v MATCH_RECOGNIZE (ORDER BY rate MEASURES A.rate AS r PATTERN (A))",
        "MATCH_RECOGNIZE of rows without a watermark",
    ),
    "endless": (M.format("A.rate AS r", "A B+", ""), "line 1: PATTERN .*B"),
    "anchors": (M.format("A.rate AS r", "^ A", ""), r"line 1: PATTERN"),
    "next": (
        M.format("A.rate AS r", "A B", "DEFINE A AS rate < NEXT(rate)"),
        r"NEXT\(rate\): .*this value of a match",
    ),
    "classifier": (M.format("CLASSIFIER() AS r", "A B", ""), "this value of a match"),
    "distinct in a condition": (
        M.format("A.rate AS r", "A B", "DEFINE B AS COUNT(DISTINCT A.rate) > 1"),
        "this value of a match",
    ),
    "distinct rows": (M.format("COUNT(DISTINCT *) AS r", "A B", ""), "this value of a match"),
    "first of distinct values": (M.format("FIRST(DISTINCT A.rate) AS r", "A B", ""), "this value of a match"),
    "a list in a condition": (
        M.format("A.rate AS r", "A B", "DEFINE B AS LISTAGG(A.rate) = '1'"),
        "this value of a match",
    ),
    "a list of numbers": (M.format("LISTAGG(A.rate) AS r", "A B", ""), "LISTAGG of values that are no texts"),
    "a list with a column between": (
        M.format("LISTAGG(CAST(A.rate AS STRING), A.rate) AS r", "A B", ""),
        "LISTAGG with a literal",
    ),
    "a list in an order": (
        M.format("LISTAGG(CAST(A.rate AS STRING)) WITHIN GROUP (ORDER BY A.rate) AS r", "A B", ""),
        "this value of a match",
    ),
    "nested": (M.format("SUM(PREV(A.rate)) AS r", "A B", ""), "this value of a match"),
    "two variables": (M.format("SUM(A.rate + B.rate) AS r", "A B", ""), "this value of a match"),
    "before the match": (
        M.format("A.rate AS r", "A B", "DEFINE A AS rate > PREV(rate)"),
        "a row before the match; let the pattern have 1 rows before A",
    ),
    "before another variable": (
        M.format("A.rate AS r", "A B", "DEFINE B AS rate > PREV(A.rate)"),
        "a row before the match; let the pattern have 1 rows before A",
    ),
    "two rows before": (
        M.format("A.rate AS r", "A B? C", "DEFINE C AS rate > PREV(rate, 2)"),
        "a row before the match; let the pattern have 2 rows before C",
    ),
    "no variable": (M.format("A.rate AS r", "A B", "DEFINE Z AS rate > 1"), "DEFINE of no variable"),
    "no such column": (M.format("A.nothing AS r", "A B", ""), "nothing"),
    "skip nowhere": (
        "SELECT * FROM v MATCH_RECOGNIZE (ORDER BY since MEASURES A.rate AS r AFTER MATCH SKIP A PATTERN (A))",
        "AFTER MATCH SKIP A: give",
    ),
    "a comparison of texts made of both": (
        M.format("A.rate AS r", "A B", "DEFINE B AS concat(rate, A.rate) = 'x'"),
        "reads more than the current row",
    ),
    "no table": (
        "SELECT * FROM v x MATCH_RECOGNIZE (ORDER BY since MEASURES A.rate AS r PATTERN (A))",
        "of no table",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_operator_lacks_is_refused(spark: SparkSession, name: str) -> None:
    sql, said = REFUSED[name]
    with pytest.raises(SqlError, match=said):
        PipelineHarness(sql_pipeline(sql, spark=spark), timed_tables().sources(["v"]))
