"""Random queries over columns of many types: as keys of groups and joins, in orders, aggregates and conditions.

Owns: ``typed_tables``; ``typed_query``. Invariant: a query has one answer: numbers and limits are in an order of all
columns, and doubles are added in an order that does not matter to six digits.
"""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import sqlglot

from tests.sql.tables import Draws, Row, Tables, changing, kept_or_constant

KINDS = {
    "i": pa.int64(),
    "n": pa.int32(),
    "m": pa.decimal128(9, 2),
    "w": pa.decimal128(30, 4),
    "f": pa.float64(),
    "d": pa.date32(),
    "t": pa.timestamp("us", "UTC"),
    "b": pa.bool_(),
    "s": pa.string(),
}
"""A letter for each type that a column can have."""
SCHEMAS = {
    "x": pa.schema([(name, KINDS[name]) for name in "inmfdtbs"]),
    "y": pa.schema([(name, KINDS[name]) for name in "imwfdts"]),
    "z": pa.schema([(name, KINDS[name]) for name in "nwbds"]),
}
VALUES: Mapping[str, Sequence[Any]] = {
    "i": (0, 1, 2, 3, -4),
    "n": (0, 1, 2, -3),
    "m": tuple(map(Decimal, ("0.00", "1.00", "1.10", "-2.25", "1234567.89"))),
    "w": tuple(map(Decimal, ("0.0000", "1.1000", "-2.2500", "12345678901234567890.1234"))),
    "f": (0.0, -0.0, 1.0, 1.5, -2.25, 1e12, float("nan")),
    "d": tuple(dt.date(2024, 2, 27) + dt.timedelta(days=days) for days in (0, 1, 2, 3, 300)),
    "t": tuple(
        dt.datetime(2024, 2, 28, 23, 59, 59, 999_999, dt.UTC) + dt.timedelta(microseconds=more)
        for more in (0, 1, 1_000_000, 90_000_000_000)
    ),
    "b": (True, False),
    "s": ("", "a", "A", "a ", "é", "zz"),
}


def typed_tables(seed: int, batches: int = 5, size: int = 8) -> Tables:
    """Random rows that come, change and go."""
    rng = random.Random(seed)
    return changing(SCHEMAS, lambda table: _row(rng, table), rng, batches, size)


def _row(rng: random.Random, table: str) -> Row:
    return tuple(None if rng.random() < 0.15 else rng.choice(VALUES[name]) for name in SCHEMAS[table].names)


Columns = list[tuple[str, str]]
"""(name, kind)."""
Scope = list[tuple[str, Columns]]
NUMBERS = "inmwf"
MAPPED = {
    "i": (("{0} % 3", "i"), ("abs({0})", "i"), ("{0} + 1", "i"), ("{0} = 1", "b")),
    "n": (("{0} * 2", "i"), ("CAST({0} AS BIGINT)", "i"), ("{0} > 0", "b")),
    "m": (
        ("{0} * 2", "w"),
        ("floor({0})", "i"),
        ("-{0}", "m"),
        ("CAST({0} AS DOUBLE)", "f"),
        ("{0} < 1.05", "b"),
    ),
    "w": (("{0} + 0.5", "w"), ("abs({0})", "w"), ("{0} >= 1.1", "b")),
    "f": (("{0} * 2", "f"), ("{0} > 1", "b"), ("abs({0})", "f")),
    "d": (
        ("CAST(date_add({0}, 2) AS DATE)", "d"),
        ("month({0})", "n"),
        ("{0} > DATE'2024-02-28'", "b"),
        ("CAST(date_trunc('MONTH', {0}) AS DATE)", "d"),
    ),
    "t": (("date_trunc('DAY', {0})", "t"), ("CAST({0} AS DATE)", "d"), ("hour({0})", "n")),
    "b": (("NOT {0}", "b"), ("coalesce({0}, true)", "b"), ("CAST({0} AS INT)", "n")),
    "s": (("upper({0})", "s"), ("length({0})", "n"), ("{0} || 'b'", "s"), ("{0} LIKE '%a%'", "b")),
}
"""By kind, what is made of a column, and its kind."""


class _Random(Draws):
    def relation(self, depth: int) -> tuple[str, str, Columns]:
        """What FROM takes, its alias and its columns."""
        alias = self.alias()
        if depth <= 0 or self.chance(0.4):
            table = self.one_of(*SCHEMAS)
            return f"{table} AS {alias}", alias, [(name, name) for name in SCHEMAS[table].names]
        sql, columns = self.query(depth - 1)
        return f"({sql}) AS {alias}", alias, columns

    def column(self, scope: Scope, kinds: str = "inmwfdtbs") -> tuple[str, str] | None:
        """A column of one of these kinds; None if there is none."""
        found = [
            (f"{alias}.{name}", kind) for alias, columns in scope for name, kind in columns if kind in kinds
        ]
        return self.rng.choice(found) if found else None

    def value(self, scope: Scope) -> tuple[str, str]:
        """A column, or what is made of one."""
        found = self.column(scope) or ("1", "i")
        if self.chance(0.7):
            return found
        form, kind = self.one_of(*MAPPED[found[1]])
        return f"({form.format(found[0])})", kind

    def condition(self, scope: Scope, depth: int = 1) -> str:
        text, kind = self.value(scope)
        other = self.column(scope, kind)
        if depth > 0 and self.chance(0.25):
            return (
                f"({self.condition(scope, depth - 1)} {self.one_of('AND', 'OR')} {self.condition(scope, 0)})"
            )
        if kind == "b":
            return self.one_of("{0}", "NOT {0}", "{0} IS NOT TRUE", "{0} IS NULL").format(text)
        if depth > 0 and self.chance(0.2):
            sql, alias, columns = self.relation(0)
            if inner := self.column([(alias, columns)], kind):
                word = self.one_of("", "NOT ")
                if self.chance(0.5):
                    return f"{word}EXISTS (SELECT 1 FROM {sql} WHERE {inner[0]} = {text})"
                if kind in NUMBERS and self.chance(0.5):
                    value = f"SELECT {self.one_of('max', 'avg')}({inner[0]}) FROM {sql}"
                    return f"{text} {self.one_of('<', '>=')} ({value})"
                return f"{text} {word}IN (SELECT {inner[0]} FROM {sql})"
        if other is not None and other[0] != text:
            return f"{text} {self.one_of('<', '<=', '=', '<>', '>', '>=', '<=>')} {other[0]}"
        return f"{text} IS {self.one_of('', 'NOT ')}NULL"

    def joined(self, depth: int) -> tuple[str, Scope]:
        sql, alias, columns = self.relation(depth)
        scope: Scope = [(alias, columns)]
        for _ in range(self.one_of(0, 0, 1, 1, 2) if depth > 0 else self.one_of(0, 0, 1)):
            other, alias, columns = self.relation(depth - 1 if self.chance(0.4) else 0)
            inner: Scope = [(alias, columns)]
            kinds = {kind for _, own in scope for _, kind in own} & {kind for _, kind in columns}
            if not kinds:
                continue
            on = []
            for kind in self.rng.sample(sorted(kinds), min(len(kinds), self.one_of(1, 1, 2))):
                one, two = self.column(scope, kind), self.column(inner, kind)
                assert one is not None
                assert two is not None
                on.append(f"{one[0]} {self.one_of('=', '=', '=', '<=>')} {two[0]}")
            how = self.one_of("JOIN", "JOIN", "LEFT JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN")
            sql, scope = f"{sql} {how} {other} ON {' AND '.join(on)}", scope + inner
        return sql, scope

    def shown(self, values: Sequence[tuple[str, str]]) -> tuple[str, Columns]:
        return (
            ", ".join(f"{text} AS c{at}" for at, (text, _) in enumerate(values)),
            [(f"c{at}", kind) for at, (_, kind) in enumerate(values)],
        )

    def query(self, depth: int) -> tuple[str, Columns]:
        given, scope = self.joined(depth)
        rows = f"FROM {given}" + (f" WHERE {self.condition(scope)}" if self.chance(0.5) else "")
        which = self.rng.random()
        if which < 0.45:
            return self.grouped(rows, scope)
        values = [self.value(scope) for _ in range(self.one_of(2, 3, 4))]
        shown, columns = self.shown(values)
        inner = f"(SELECT {shown} {rows}) AS {self.alias()}"
        names = [name for name, _ in columns]
        order = ", ".join(
            f"{name}{self.one_of('', '', ' DESC', ' NULLS LAST')}"
            for name in self.rng.sample(names, len(names))
        )
        key = f"PARTITION BY {self.one_of(*names)} " if self.chance(0.7) else ""
        if which < 0.6:
            function = self.one_of("row_number", "rank", "dense_rank")
            sql = f"SELECT * FROM (SELECT *, {function}() OVER ({key}ORDER BY {order}) AS place FROM {inner})"
            return f"{sql} WHERE place <= {self.one_of(1, 2, 3)}", [*columns, ("place", "i")]
        if which < 0.7:
            name, kind = self.one_of(*columns)
            function = self.one_of(
                "min({0})", "max({0})", "count({0})", "lag({0})", "lead({0}, 2)", "first_value({0})"
            )
            made = function.format(name)
            numbered = f"{made} OVER ({key}ORDER BY {order}) AS c9"
            return f"SELECT *, {numbered} FROM {inner}", [*columns, ("c9", "i" if "count" in made else kind)]
        if which < 0.75:
            return f"SELECT * FROM {inner} ORDER BY {order} LIMIT {self.one_of(1, 3)}", columns
        if which < 0.85:
            other, two = self.joined(0)
            picked = [self.column(two, kind) for _, kind in values]
            if all(picked):
                word = self.one_of("UNION ALL", "UNION", "INTERSECT", "EXCEPT", "INTERSECT ALL", "EXCEPT ALL")
                second = ", ".join(text for text, _ in filter(None, picked))
                return f"SELECT {shown} {rows} {word} SELECT {second} FROM {other}", columns
        return f"SELECT {self.one_of('', '', 'DISTINCT ')}{shown} {rows}", columns

    def grouped(self, rows: str, scope: Scope) -> tuple[str, Columns]:
        values = [self.value(scope) for _ in range(self.one_of(0, 1, 1, 1, 2))]
        keys = [text for text, _ in values]
        for _ in range(self.one_of(1, 2, 3)):
            text, kind = self.value(scope)
            forms = [
                ("count({0})", "i"),
                ("count(DISTINCT {0})", "i"),
                ("min({0})", kind),
                ("max({0})", kind),
            ]
            if kind in NUMBERS:
                total = {"i": "i", "n": "i", "f": "f"}.get(kind, "w")
                forms += [("sum({0})", total), ("sum(DISTINCT {0})", total), ("round(avg({0}), 3)", "f")]
            if kind == "b":
                forms += [("bool_and({0})", "b"), ("bool_or({0})", "b"), ("count(*) FILTER (WHERE {0})", "i")]
            if kind == "s":
                forms += [("listagg({0}, ',') WITHIN GROUP (ORDER BY {0})", "s")]
            form, made = self.one_of(*forms)
            values.append((form.format(text), made))
        shown, columns = self.shown(values)
        group = f" GROUP BY {', '.join(keys)}" if keys else ""
        having = f" HAVING {self.one_of('count(*) > 1', 'count(*) < 4')}" if keys and self.chance(0.2) else ""
        return f"SELECT {shown} {rows}{group}{having}", columns


def typed_query(seed: int, depth: int = 2) -> tuple[str, str]:
    """A query of Spark and the same of DuckDB."""
    sql = _Random(random.Random(seed)).query(depth)[0]
    return sql, sqlglot.transpile(sql, read="spark", write="duckdb")[0]


def run(spark: Any, seed: int) -> None:
    """Keep the query of a seed up to date over random changes, and check it. Raises AssertionError and SqlError."""
    kept_or_constant(spark, *typed_query(seed), typed_tables(seed), random.Random(seed))
