# ruff: noqa: E501  # forms are data, one a line
"""Random queries over arrays and structs: made, collected, exploded, joined and grouped by; in two dialects.

Owns: ``nested_tables``; ``nested_query``. Invariant: a query has one answer: arrays of several rows are sorted, and
rankings are in an order of unique rows.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tests.sql.tables import Draws, Row, Tables, changing, kept_or_constant

L = pa.int64()
SCHEMAS = {
    "g": pa.schema(
        [
            ("k", L),
            ("s", pa.string()),
            ("a", pa.list_(L)),
            ("r", pa.struct([("p", L), ("q", pa.string())])),
        ]
    ),
    "h": pa.schema([("k", L), ("n", L), ("s", pa.string())]),
}
KINDS = {"k": "i", "n": "i", "s": "s", "a": "a", "r": "r"}


def nested_tables(seed: int, batches: int = 6, size: int = 8) -> Tables:
    """Random rows that come, change and go, with nulls in every place."""
    rng = random.Random(seed)

    def some(value: Any) -> Any:
        return None if rng.random() < 0.15 else value

    def row(table: str) -> Row:
        k, s = some(rng.randrange(4)), some(rng.choice("xyz"))
        if table == "h":
            return k, some(rng.randrange(5)), s
        a = tuple(some(rng.randrange(4)) for _ in range(rng.randrange(4)))
        return k, s, some(a), some((some(rng.randrange(3)), some(rng.choice("xy"))))

    return changing(SCHEMAS, row, rng, batches, size)


@dataclass(frozen=True)
class Value:
    """An expression or a query in Spark's words and in DuckDB's. ``kind``: i a number, s a text, a an array of numbers,
    r a struct of a number and a text, b a condition."""

    spark: str
    duckdb: str
    kind: str = ""


Columns = list[tuple[str, str]]
"""(name, kind)."""
Scope = list[tuple[str, Columns]]
Form = tuple[str, str]
MADE: dict[str, tuple[tuple[str, Form], ...]] = {
    "i": (
        ("i", ("({0} + {1})", "({0} + {1})")),
        ("i", ("({0} % 3)", "({0} % 3)")),
        ("i", ("try_mod({0}, {1})", "TRY({0} % {1})")),
        ("s", ("try_cast({0} AS BIGINT)", "try_cast({0} AS BIGINT)")),
        ("i", ("coalesce(nullif({0}, 2), {1}, 7)",) * 2),
        ("a", ("array_size({0})", "len({0})")),
        ("a", ("array_max({0})", "list_max({0})")),
        ("a", ("array_min({0})", "list_min({0})")),
        ("a", ("try_element_at({0}, 2)", "({0})[2]")),
        ("a", ("get({0}, 0)", "({0})[1]")),
        ("r", ("({0}).p", "({0}).p")),
        ("s", ("length({0})", "length({0})")),
    ),
    "s": (
        ("s", ("upper({0})", "upper({0})")),
        ("s", ("coalesce({0}, {1}, 'n')",) * 2),
        ("s", ("({0} || {1})",) * 2),
        ("r", ("({0}).q", "({0}).q")),
        ("i", ("CASE WHEN {0} > 2 THEN 'x' WHEN {0} = 1 THEN 'y' END",) * 2),
        ("i", ("CASE {0} WHEN 0 THEN 'x' WHEN 1 THEN 'z' ELSE 'w' END",) * 2),
    ),
    "a": (
        ("i", ("array({0}, {1})", "[{0}, {1}]")),
        ("a", ("sort_array({0})", "list_sort({0}, 'ASC', 'NULLS FIRST')")),
        ("a", ("sort_array({0}, false)", "list_sort({0}, 'DESC', 'NULLS LAST')")),
        ("a", ("coalesce({0}, array(1L, null))", "coalesce({0}, [1, NULL])")),
        ("a", ("coalesce({0}, array())", "coalesce({0}, [])")),
        ("a", ("transform({0}, x -> x + 1)", "list_transform({0}, lambda x: x + 1)")),
        ("a", ("filter({0}, x -> x > 1)", "list_filter({0}, lambda x: x > 1)")),
        ("a", ("slice({0}, 1, 2)", "({0})[1:2]")),
        ("a", ("concat({0}, {1})", "CASE WHEN {0} IS NOT NULL AND {1} IS NOT NULL THEN {0} || {1} END")),
    ),
    "r": (
        ("is", ("named_struct('p', {0}, 'q', {1})", "struct_pack(p := {0}, q := {1})")),
        ("r", ("coalesce({0}, named_struct('p', 1L, 'q', 'x'))", "coalesce({0}, {{'p': 1, 'q': 'x'}})")),
        (
            "r",
            (
                "CASE WHEN ({0}).p > 0 THEN {0} ELSE {1} END",
                "CASE WHEN ({0}).p > 0 THEN {0} ELSE {1} END",
            ),
        ),
    ),
    "b": (
        ("i", ("{0} = {1}",) * 2),
        ("i", ("{0} > 1",) * 2),
        ("i", ("{0} IN (0, 2, 3)",) * 2),
        ("i", ("{0} NOT IN (1, {1})",) * 2),
        ("s", ("{0} <> 'x'",) * 2),
        ("s", ("{0} IS NULL",) * 2),
        ("r", ("({0}).p = 1",) * 2),
        ("a", ("{0} IS NOT NULL",) * 2),
        ("a", ("array_size(filter({0}, x -> x = 2)) > 0", "len(list_filter({0}, lambda x: x = 2)) > 0")),
        ("a", ("array_size({0}) > 1", "len({0}) > 1")),
        ("i", ("{0} <=> {1}", "{0} IS NOT DISTINCT FROM {1}")),
        ("r", ("{0} <=> {1}", "{0} IS NOT DISTINCT FROM {1}")),
    ),
}
"""By kind, what it is made of and how. The arguments are all of one kind, or of the kinds of the letters."""
COLLECTED = (
    ("i", "a", "sort_array(collect_list({0}){f})", "list_sort(coalesce(list({0}) FILTER (WHERE {0} IS NOT NULL{and_}), []))"),
    ("i", "a", "sort_array(collect_set({0}){f})", "list_sort(coalesce(list(DISTINCT {0}) FILTER (WHERE {0} IS NOT NULL{and_}), []))"),
    ("s", "i", "array_size(collect_list({0}){f})", "count({0}){f}"),
    ("i", "i", "count(DISTINCT {0}){f}", "count(DISTINCT {0}){f}"),
    ("i", "i", "sum(DISTINCT {0}){f}", "sum(DISTINCT {0}){f}"),
    ("i", "i", "sum({0}){f}", "sum({0}){f}"),
    ("i", "i", "max({0}){f}", "max({0}){f}"),
    ("a", "i", "sum(array_size({0})){f}", "sum(len({0})){f}"),
    ("a", "i", "count({0}){f}", "count({0}){f}"),
    ("s", "s", "min({0}){f}", "min({0}){f}"),
    ("r", "i", "max(({0}).p){f}", "max(({0}).p){f}"),
    ("r", "s", "min(({0}).q){f}", "min(({0}).q){f}"),
)  # fmt: skip
"""(kind of the argument, of the result, in Spark, in DuckDB); {f} is a FILTER, {and_} its condition."""


class _Random(Draws):
    def column(self, scope: Scope, kind: str) -> Value | None:
        """A column of a kind; None if there is none."""
        found = [f"{alias}.{name}" for alias, columns in scope for name, own in columns if own == kind]
        text = self.rng.choice(found) if found else None
        return None if text is None else Value(text, text, kind)

    def value(self, scope: Scope, kind: str, depth: int = 1) -> Value:
        """A column, or what is made of some."""
        column = None if kind == "b" else self.column(scope, kind)
        if column is not None and (depth <= 0 or self.chance(0.6)):
            return column
        if depth < 0:
            found = {
                "i": Value("2L", "2", "i"),
                "s": Value("'x'", "'x'", "s"),
                "a": Value("array(1L, 2L)", "[1, 2]", "a"),
                "r": Value("named_struct('p', 1L, 'q', 'x')", "{'p': 1, 'q': 'x'}", "r"),
            }
            return found[kind]
        kinds, (spark, duckdb) = self.one_of(*MADE[kind])
        kinds = kinds if len(kinds) > 1 else kinds * 2
        given = [self.value(scope, one, depth - 1) for one in kinds]
        return Value(
            spark.format(*(one.spark for one in given)), duckdb.format(*(one.duckdb for one in given)), kind
        )

    def condition(self, scope: Scope, depth: int = 1) -> Value:
        if depth > 0 and self.chance(0.25):
            one, two, word = self.condition(scope, 0), self.condition(scope, 0), self.one_of("AND", "OR")
            return Value(f"({one.spark} {word} {two.spark})", f"({one.duckdb} {word} {two.duckdb})", "b")
        if depth > 0 and self.chance(0.3):
            return self.subquery(scope)
        return self.value(scope, "b")

    def subquery(self, scope: Scope) -> Value:
        given, inner = self.relation(0)
        kind = self.one_of("i", "i", "s")
        outer, own = self.value(scope, kind, 0), self.value(inner, kind, 0)
        more = self.value(inner, "b", 0)
        form = self.one_of(
            "{word}EXISTS (SELECT 1 FROM {given} WHERE {own} = {outer} AND {more})",
            "{outer} {word}IN (SELECT {own} FROM {given})",
            "{outer} {word}IN (SELECT {own} FROM {given} WHERE {more})",
            "{outer} {word}IN (SELECT {own} FROM {given} WHERE {tied} = {key})",
            "(SELECT count({own}) FROM {given} WHERE {tied} = {key}) > 1",
            "{outer} >= (SELECT min({own}) FROM {given} WHERE {tied} = {key})",
            "{outer} < (SELECT max({own}) FROM {given} WHERE {more})",
        )
        parts = {
            "given": given,
            "own": own,
            "outer": outer,
            "more": more,
            "tied": self.value(inner, "i", 0),
            "key": self.value(scope, "i", 0),
        }
        word = self.one_of("", "NOT ")
        return Value(
            form.format(word=word, **{name: one.spark for name, one in parts.items()}),
            form.format(word=word, **{name: one.duckdb for name, one in parts.items()}),
            "b",
        )

    def relation(self, depth: int) -> tuple[Value, Scope]:
        """What FROM takes, and its columns."""
        alias = self.alias()
        if depth <= 0 or self.chance(0.45):
            table = self.one_of("g", "g", "h")
            columns = [(name, KINDS[name]) for name in SCHEMAS[table].names]
            return Value(f"{table} AS {alias}", f"{table} AS {alias}"), [(alias, columns)]
        query, columns = self.query(depth - 1)
        return Value(f"({query.spark}) AS {alias}", f"({query.duckdb}) AS {alias}"), [(alias, columns)]

    def joined(self, depth: int) -> tuple[Value, Scope]:
        given, scope = self.relation(depth)
        for _ in range(self.one_of(0, 0, 1, 1, 2) if depth > 0 else self.one_of(0, 1)):
            other, inner = self.relation(depth - 1 if self.chance(0.4) else 0)
            kind = self.one_of("i", "i", "s", "r")
            one, two = self.value(scope, kind, 0), self.value(inner, kind, 0)
            how = self.one_of("JOIN", "JOIN", "LEFT JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN")
            given = Value(
                f"{given.spark} {how} {other.spark} ON {one.spark} = {two.spark}",
                f"{given.duckdb} {how} {other.duckdb} ON {one.duckdb} = {two.duckdb}",
            )
            scope = scope + inner
        if self.chance(0.35):
            return self.exploded(given, scope)
        return given, scope

    def exploded(self, given: Value, scope: Scope) -> tuple[Value, Scope]:
        """A row for each element of an array, with its place or not, or one with nulls if there is none."""
        array, alias = self.value(scope, "a"), self.alias()
        outer, numbered = self.chance(0.3), self.chance(0.3)
        parts = [(f"range(len({array.duckdb}))", "at"), (array.duckdb, "x")][not numbered :]
        if outer:
            some = f"CASE WHEN len({array.duckdb}) > 0 THEN {{}} ELSE [NULL] END"
            parts = [(some.format(part), name) for part, name in parts]
        shown = ", ".join(f"unnest({part}) AS {name}" for part, name in parts)
        columns = [(name, "i") for _, name in parts]
        names, word = ", ".join(name for name, _ in columns), "posexplode" if numbered else "explode"
        return Value(
            f"{given.spark} LATERAL VIEW {'OUTER ' * outer}{word}({array.spark}) {alias} AS {names}",
            f"{given.duckdb} CROSS JOIN LATERAL (SELECT {shown}) AS {alias}",
        ), [*scope, (alias, columns)]

    def rows(self, depth: int) -> tuple[Value, Scope]:
        """FROM and WHERE."""
        given, scope = self.joined(depth)
        if self.chance(0.5):
            where = self.condition(scope)
            return Value(
                f"FROM {given.spark} WHERE {where.spark}", f"FROM {given.duckdb} WHERE {where.duckdb}"
            ), scope
        return Value(f"FROM {given.spark}", f"FROM {given.duckdb}"), scope

    def select(
        self, values: list[Value], rows: Value, rest: str = "", word: str = ""
    ) -> tuple[Value, Columns]:
        shown = [(one.spark, one.duckdb, f"c{at}") for at, one in enumerate(values)]
        spark = ", ".join(f"{text} AS {name}" for text, _, name in shown)
        duckdb = ", ".join(f"{text} AS {name}" for _, text, name in shown)
        return Value(
            f"SELECT {word}{spark} {rows.spark}{rest}", f"SELECT {word}{duckdb} {rows.duckdb}{rest}"
        ), [(f"c{at}", one.kind) for at, one in enumerate(values)]

    def query(self, depth: int) -> tuple[Value, Columns]:
        rows, scope = self.rows(depth)
        which = self.rng.random()
        if which < 0.5:
            return self.grouped(rows, scope)
        if which < 0.62:
            kinds = [self.one_of("i", "s", "i") for _ in range(self.one_of(1, 2))]
            one, columns = self.select([self.value(scope, kind) for kind in kinds], rows)
            other, inner = self.rows(0)
            two, _ = self.select([self.value(inner, kind) for kind in kinds], other)
            word = self.one_of("INTERSECT ALL", "EXCEPT ALL", "UNION ALL", "UNION", "INTERSECT", "EXCEPT")
            return Value(f"{one.spark} {word} {two.spark}", f"{one.duckdb} {word} {two.duckdb}"), columns
        kinds = [self.one_of("i", "s", "a", "r") for _ in range(self.one_of(2, 3))]
        if which < 0.7:
            kinds = [kind.replace("a", "i") for kind in kinds]
            return self.select([self.value(scope, kind) for kind in kinds], rows, word="DISTINCT ")
        if which < 0.8:
            return self.ranked(*self.grouped(rows, scope, keys=1))
        return self.select([self.value(scope, kind) for kind in kinds], rows)

    def ranked(self, given: Value, columns: Columns) -> tuple[Value, Columns]:
        """The first groups, by a number and their key."""
        number = next((name for name, kind in columns[1:] if kind == "i"), "c0")
        order = f"{number} {self.one_of('ASC NULLS FIRST', 'DESC NULLS LAST')}, c0 ASC NULLS FIRST"
        function = self.one_of("row_number", "rank", "dense_rank")
        text = f"SELECT * FROM (SELECT *, {function}() OVER (ORDER BY {order}) AS place FROM ({{0}}) AS {self.alias()})"
        text += f" AS {self.alias()} WHERE place <= {self.one_of(1, 2, 4)}"
        return Value(text.format(given.spark), text.format(given.duckdb)), [*columns, ("place", "i")]

    def grouped(self, rows: Value, scope: Scope, keys: int | None = None) -> tuple[Value, Columns]:
        kinds = [
            self.one_of("i", "i", "s", "r")
            for _ in range(self.one_of(0, 1, 1, 2, 2) if keys is None else keys)
        ]
        kinds = [kind if keys is None else kind.replace("r", "s") for kind in kinds]
        by = [self.value(scope, kind) for kind in kinds]
        sets = None
        if len({one.spark for one in by}) == 2 and self.chance(0.4):
            by = [self.value(scope, one.kind, 0) for one in by]
            sets = self.one_of("ROLLUP({0}, {1})", "CUBE({0}, {1})", "GROUPING SETS (({0}, {1}), ({1}))")
            if by[0].spark == by[1].spark or any("." not in one.spark or "(" in one.spark for one in by):
                sets = None
        values = list(by)
        for _ in range(self.one_of(1, 2, 3)):
            kind, made, spark, duckdb = self.one_of(*COLLECTED)
            given = self.value(scope, kind)
            where = self.value(scope, "b", 0) if self.chance(0.25) else None
            in_spark = "" if where is None else f" FILTER (WHERE {where.spark})"
            in_duckdb = "" if where is None else f" FILTER (WHERE {where.duckdb})"
            values.append(
                Value(
                    spark.format(given.spark, f=in_spark),
                    duckdb.format(
                        given.duckdb, f=in_duckdb, and_="" if where is None else f" AND ({where.duckdb})"
                    ),
                    made,
                )
            )
        made, columns = self.select(values, rows)
        having = [f"count(*) {self.one_of('> 1', '< 4')}"] if by and self.chance(0.25) else []
        if sets is not None:
            having.append("count(*) > 0")  # of no rows, DuckDB has a total and Spark has not
        rest = f" HAVING {' AND '.join(having)}" if having else ""
        group = " GROUP BY " if by else ""
        texts = [
            group + (sets.format(*names) if sets is not None else ", ".join(names)) + rest
            for names in ([one.spark for one in by], [one.duckdb for one in by])
        ]
        return Value(made.spark + texts[0], made.duckdb + texts[1]), columns


def nested_query(seed: int, depth: int = 2) -> tuple[str, str]:
    """A query of Spark and the same of DuckDB, over ``nested_tables``."""
    made, _ = _Random(random.Random(seed)).query(depth)
    return made.spark, made.duckdb


def run(spark: Any, seed: int) -> None:
    """Keep the query of a seed up to date over random changes, and check it. Raises AssertionError and SqlError."""
    kept_or_constant(spark, *nested_query(seed), nested_tables(seed), random.Random(seed))
