"""Random queries over times: windows, rankings and joins of windows, and interval joins; in two dialects.

Owns: ``timed_tables``; ``window_query``. Invariant: a query has one answer once all rows have come: rankings are in an
order of all columns, and no row is late.
"""

from __future__ import annotations

import datetime as dt
import random
import zlib
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from asyncstate.sql import sql_pipeline
from tests.sql.tables import Change, Draws, Row, Tables, changing, kept_right

L, T = pa.int64(), pa.timestamp("us", "UTC")
SCHEMAS = {
    "l": pa.schema([("k", L), ("a", L), ("ts", T)]),
    "r": pa.schema([("k", L), ("b", L), ("ts", T)]),
    "v": pa.schema([("k", L), ("rate", L), ("since", T)]),
}
BEGIN = dt.datetime(2024, 1, 1, 8, 0, 0, tzinfo=dt.UTC)


def timed_tables(seed: int = 7, batches: int = 6, size: int = 12) -> Tables:
    """Insertions in nearly the order of their times, some without a key or a time, some twice; ``v`` has versions, each
    at a time of its own."""
    rng = random.Random(seed)
    changes: dict[str, list[list[Change]]] = {name: [[] for _ in range(batches)] for name in SCHEMAS}
    for name in SCHEMAS:
        for number in range(batches * size):
            second = 10 * number - 5 * rng.randrange(0, 6)
            if name == "v":
                at = BEGIN + dt.timedelta(seconds=10 * number + rng.randrange(10))
                changes[name][number // size].append(("+I", (rng.randrange(4), rng.randrange(9), at)))
                continue
            at = None if rng.random() < 0.08 else BEGIN + dt.timedelta(seconds=second)
            key = None if rng.random() < 0.1 else rng.randrange(3)
            row = key, rng.randrange(6), at
            changes[name][number // size] += [("+I", row)] * (2 if rng.random() < 0.1 else 1)
    times = {"l": "ts", "r": "ts", "v": "since"}
    return Tables(SCHEMAS, changes, insert_only=True, times=times, delay="1 minute")


def changing_timed_tables(seed: int) -> Tables:
    """Rows with times that come, change and go, for queries whose windows are updated."""
    rng = random.Random(seed)

    def row(_: str) -> Row:
        at = None if rng.random() < 0.08 else BEGIN + dt.timedelta(seconds=5 * rng.randrange(30))
        return None if rng.random() < 0.1 else rng.randrange(3), rng.randrange(6), at

    return changing({name: SCHEMAS[name] for name in ("l", "r")}, row, rng, batches=6, size=10)


WINDOWS = ("window_start", "window_end")
TABLES = (("l", "a"), ("r", "b"))


@dataclass(frozen=True)
class Query:
    """The same query for Spark and for DuckDB. ``numbers``: its columns of numbers; ``depth``: how many queries
    it is made of, one in another, by which new columns get names of their own."""

    spark: str
    duckdb: str
    numbers: tuple[str, ...]
    depth: int = 0


def _seconds(value: int) -> str:
    return f"INTERVAL '{value}' SECOND"


class _Random(Draws):
    # -- rows with times ------------------------------------------------------------------------------

    def timed(self) -> tuple[str, str]:
        """Rows (k, x, ts) in both dialects: a table, some of its rows, two tables, an interval join, or a join with the
        versions of the time."""
        (one, value), (other, second) = self.rng.sample(TABLES, 2)
        which = self.rng.random()
        if which < 0.45:
            text = f"SELECT k, {value} AS x, ts FROM {one}"
        elif which < 0.65:
            condition = f"{value} {self.one_of('>', '<', '<>')} {self.one_of(1, 2, 4)}"
            text = f"SELECT k, {value} AS x, ts FROM {one} WHERE {condition}"
        elif which < 0.8:
            text = f"SELECT k, {value} AS x, ts FROM {one} UNION ALL SELECT k, {second} AS x, ts FROM {other}"
        elif which < 0.9:
            low, high = self.one_of((0, 10), (5, 0), (20, 15), (15, -5), (0, 0))
            shown = f"{one}.k, {self.one_of(value, second)} AS x, {self.one_of(one, other)}.ts AS ts"
            bounds = f"{one}.ts - {_seconds(low)} AND {one}.ts + {_seconds(high)}"
            near = f"{one}.k = {other}.k AND {other}.ts BETWEEN {bounds}"
            text = f"SELECT {shown} FROM {one} JOIN {other} ON {near}"
        else:
            how, shown = self.one_of("", "LEFT"), self.one_of(value, "rate")
            begin = f"SELECT {one}.k, {shown} AS x, {one}.ts AS ts FROM {one}"
            on = f"ON {one}.k = v.k"
            return (
                f"{begin} {how} JOIN v FOR SYSTEM_TIME AS OF {one}.ts {on}",
                f"{begin} ASOF {how} JOIN v {on} AND {one}.ts >= v.since WHERE {one}.ts IS NOT NULL",
            )
        return text, text

    def windows(self, window: tuple[str, int, int]) -> Query:
        """Each row in its windows, (k, x, window_start, window_end)."""
        kind, size, step = window
        rows, in_duckdb = self.timed()
        # The rows in brackets, or by a name, also one that a table has.
        name = ("", "", "q", "l")[zlib.crc32(rows.encode()) % 4]
        begin, rows = (f"WITH {name} AS ({rows}) ", name) if name else ("", f"({rows})")
        shown = "k, x, window_start, window_end"
        given, whole = f"({in_duckdb})", _seconds(size)
        there = "WHERE ts IS NOT NULL"
        if kind == "session":
            table = f"SESSION(TABLE {rows} PARTITION BY k, DESCRIPTOR(ts), {whole})"
            begun = f"SELECT *, ts - lag(ts) OVER (PARTITION BY k ORDER BY ts) > {whole} AS o FROM {given} {there}"
            numbered = (
                f"SELECT *, count(*) FILTER (WHERE o) OVER (PARTITION BY k ORDER BY ts) AS n FROM ({begun})"
            )
            span = f"min(ts) OVER s AS window_start, max(ts) OVER s + {whole} AS window_end"
            made = f"SELECT k, x, {span} FROM ({numbered}) WINDOW s AS (PARTITION BY k, n)"
        elif kind == "tumble":
            table = f"TUMBLE(TABLE {rows}, DESCRIPTOR(ts), {whole}, {_seconds(step)})"
            moved = _seconds(step)
            made = (
                f"SELECT k, x, time_bucket({whole}, ts - {moved}) + {moved} AS window_start, window_start + {whole} AS "
                f"window_end FROM {given} {there}"
            )
        else:
            table = f"{kind.upper()}(TABLE {rows}, DESCRIPTOR(ts), {_seconds(step)}, {whole})"
            bucket = _seconds(step if kind == "hop" else size)
            start, end = (
                (f"w - i * {bucket}", f"w - i * {bucket} + {whole}")
                if kind == "hop"
                else ("w", f"w + (i + 1) * {_seconds(step)}")
            )
            made = (
                f"SELECT k, x, {start} AS window_start, {end} AS window_end FROM (SELECT *, time_bucket({bucket}, "
                f"ts) AS w FROM {given} {there}), range({size // step}) AS g(i) WHERE {end} > ts"
            )
        return Query(f"{begin}SELECT {shown} FROM {table}", made, ("k", "x"))

    def window(self) -> tuple[str, int, int]:
        """Kind, size, and step or offset, in seconds."""
        kind = self.one_of("tumble", "tumble", "hop", "cumulate", "session")
        size, step = self.one_of((10, 5), (30, 10), (20, 10), (60, 15))
        return kind, size, self.one_of(0, 0, 5) if kind == "tumble" else step

    # -- what is made of them --------------------------------------------------------------------------

    def condition(self, alias: str, numbers: tuple[str, ...]) -> str:
        return f"{alias}.{self.one_of(*numbers)} {self.one_of('<', '<>', '>=')} {self.rng.randrange(4)}"

    def over(self, given: Query, text: str, numbers: tuple[str, ...]) -> Query:
        """``text`` with the query in it."""
        return Query(
            text.replace("{q}", f"({given.spark})"),
            text.replace("{q}", f"({given.duckdb})"),
            numbers,
            given.depth + 1,
        )

    def grouped(self, given: Query, by_window: bool) -> Query:
        keys = [name for name in given.numbers[:1] if self.chance(0.6)]
        keys += WINDOWS if by_window else () if keys else (given.numbers[0],)
        forms = (
            "count(*)",
            "sum({0})",
            "min({0})",
            "max({0})",
            "count(DISTINCT {0})",
            "avg({0})",
            "bit_xor({0})",
        )
        values = []
        for _ in range(self.one_of(1, 2)):
            value = self.one_of(*forms).format(f"q.{self.one_of(*given.numbers)}")
            if self.chance(0.2):
                value += f" FILTER (WHERE {self.condition('q', given.numbers)})"
            values.append(value)
        names = [f"{chr(ord('c') + given.depth)}{at}" for at in range(len(values))]
        shown = ", ".join(
            [
                *(f"q.{key}" for key in keys),
                *(f"{value} AS {name}" for value, name in zip(values, names, strict=True)),
            ]
        )
        where = f" WHERE {self.condition('q', given.numbers)}" if self.chance(0.3) else ""
        group = ", ".join(f"q.{key}" for key in keys)
        having = " HAVING count(*) > 1" if self.chance(0.2) else ""
        numbers = (*(key for key in keys if key not in WINDOWS), *names)
        text = f"SELECT {shown} FROM {{q}} AS q{where} GROUP BY {group}{having}"
        return self.over(given, text, numbers)

    def ranked(self, given: Query) -> Query:
        first = self.one_of(*given.numbers)
        others = [name for name in given.numbers if name != first]
        order = ", ".join(
            [
                f"{first} {self.one_of('ASC NULLS FIRST', 'DESC NULLS LAST')}",
                *(f"{name} ASC NULLS FIRST" for name in others),
            ]
        )
        key = f", {given.numbers[0]}" if self.chance(0.5) and len(given.numbers) > 1 else ""
        function = self.one_of("row_number", "row_number", "rank", "dense_rank")
        number = f"{function}() OVER (PARTITION BY window_start, window_end{key} ORDER BY {order}) AS n"
        shown = ", ".join([*given.numbers, *WINDOWS, *(["n"] if self.chance(0.4) else [])])
        text = f"SELECT {shown} FROM (SELECT *, {number} FROM {{q}} AS q) AS ranked WHERE n <= {self.one_of(1, 2)}"
        return self.over(given, text, given.numbers)

    def joined(self, one: Query, two: Query) -> Query:
        on = " AND ".join(
            [*(f"q.{name} = p.{name}" for name in WINDOWS), f"q.{one.numbers[0]} = p.{two.numbers[0]}"]
            + (
                [f"q.{one.numbers[-1]} {self.one_of('<', '>=')} p.{two.numbers[-1]}"]
                if self.chance(0.3)
                else []
            )
        )
        how = self.one_of("JOIN", "JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "EXISTS", "NOT EXISTS")
        if "EXISTS" in how:
            text = f"SELECT q.* FROM {{q}} AS q WHERE {how} (SELECT 1 FROM {{p}} AS p WHERE {on})"
            made = self.over(one, text, one.numbers)
        else:
            side = "p" if how == "RIGHT JOIN" else "q"
            shown = f"q.{one.numbers[0]} AS j0, p.{two.numbers[-1]} AS j1, " + ", ".join(
                f"{side}.{name}" for name in WINDOWS
            )
            text = f"SELECT {shown} FROM {{q}} AS q {how} {{p}} AS p ON {on}"
            made = self.over(one, text, ("j0", "j1"))
        return Query(
            made.spark.replace("{p}", f"({two.spark})"),
            made.duckdb.replace("{p}", f"({two.duckdb})"),
            made.numbers,
            max(one.depth, two.depth) + 1,
        )

    def query(self) -> Query:
        if self.chance(0.15):
            rows = Query(*self.timed(), ("k", "x"))
            return self.grouped(rows, False) if self.chance(0.5) else rows
        window = self.window()
        made = self.windows(window)
        if self.chance(0.65):
            made = self.grouped(made, True)
        if self.chance(0.25):
            other = self.windows(window)
            made = self.joined(made, self.grouped(other, True) if self.chance(0.5) else other)
        if self.chance(0.3):
            made = self.ranked(made)
        if self.chance(0.25):
            made = self.grouped(made, self.chance(0.6))
        return made


def window_query(seed: int) -> tuple[str, str]:
    """A query of Spark and the same of DuckDB, over ``timed_tables``."""
    made = _Random(random.Random(seed)).query()
    return made.spark, made.duckdb


def run(spark: Any, seed: int) -> None:
    """Run the query of a seed over random rows, and check it at their end, or over random changes, and check it after
    each micro-batch. Raises AssertionError and SqlError."""
    (sql, oracle), rng = window_query(seed), random.Random(seed)
    enabled, updating = rng.random() < 0.5, rng.random() < 0.4
    if updating and "SESSION" not in sql and "SYSTEM_TIME" not in sql:
        flow = sql_pipeline(sql, spark=spark, windows="updating")
        kept_right(flow, changing_timed_tables(seed), sql, oracle, async_enabled=enabled, restarts=rng)
        return
    flow = sql_pipeline(sql, spark=spark)
    kept_right(flow, timed_tables(seed), sql, oracle, async_enabled=enabled, restarts=rng, finish=True)
