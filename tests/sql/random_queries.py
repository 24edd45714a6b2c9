"""Random queries over the tables of ``features``, in Spark's words and in DuckDB's.

Owns: ``random_query``. Invariant: a query has one answer: numbers and limits are in an order of all columns.
"""

from __future__ import annotations

import random
from typing import Any

import sqlglot

from asyncstate.lookups import TableLookup
from tests.sql.features import SCHEMAS, changing_tables
from tests.sql.tables import Draws, kept_or_constant

Columns = list[tuple[str, str]]
"""(name, kind): n for a number, s for a text."""
Scope = list[tuple[str, Columns]]
OVER = (
    "PARTITION BY c0",
    "PARTITION BY c0 ORDER BY c1, c2",
    "ORDER BY c0, c1, c2",
    "PARTITION BY c2 ORDER BY c1 DESC, c0",
    "PARTITION BY c0 ORDER BY c1, c2 ROWS BETWEEN 2 PRECEDING AND CURRENT ROW",
    "PARTITION BY c0 ORDER BY c1, c2 ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING",
    "PARTITION BY c0 ORDER BY c1 RANGE BETWEEN 2 PRECEDING AND CURRENT ROW",
    "ORDER BY c1 DESC RANGE BETWEEN 1 PRECEDING AND 3 FOLLOWING",
)
PLACES = (
    *(
        "lag(c1)",
        "lag(c2, 2)",
        "lag(c1, 1, 7)",
        "lead(c2)",
        "lead(c1, 2)",
        "first_value(c1)",
        "nth_value(c2, 2)",
    ),
    *("ntile(3)", "percent_rank()", "cume_dist()", "row_number()"),
)
"""Functions of a row's place; those of OVER that order all columns have one answer."""
AGGREGATES = (
    *("count(*)", "count({n})", "sum({n})", "min({n})", "max({n})", "avg({n})"),
    *("count(DISTINCT {n})", "sum(DISTINCT {n})", "min({s})", "bit_xor({n})"),
    *(
        "round(var_pop({n}) + 0.00012345, 3)",  # no tie, which depends on the last bit
        "CAST(bool_and({n} < 4) AS INT)",
        "bit_or({n})",
        "median({n})",
    ),
    "listagg({s}, ',') WITHIN GROUP (ORDER BY {s})",
    "listagg(DISTINCT {s}, '') WITHIN GROUP (ORDER BY {s} DESC NULLS LAST)",
)
DIM = [{"id": number, "name": f"n{number}", "size": number * number} for number in (0, 1, 1, 3)]
"""The rows of a table that is looked up: some keys have none, one has two."""
LOOKUPS = {
    "dim": {
        "lookup": TableLookup(DIM, ["id"], ["name", "size"]),
        "key": "id bigint",
        "columns": "name string, size bigint",
        "batch": 3,
    }
}
_VALUES = ", ".join(f"({', '.join(map(repr, one.values()))})" for one in DIM)
IN_DUCKDB = f"dim AS (SELECT * FROM (VALUES {_VALUES}) AS d(id, name, size))"
THREE: Columns = [("c0", "n"), ("c1", "n"), ("c2", "n")]


class _Random(Draws):
    shared: Columns | None = None
    """The columns of the common table expression ``w``, if there is one."""

    def relation(self, depth: int) -> tuple[str, str, Columns]:
        """What FROM takes, its alias and its columns."""
        alias = self.alias()
        if self.shared is not None and self.chance(0.4):
            return f"w AS {alias}", alias, self.shared
        if depth > 0 and self.chance(0.08):
            return self.looked_up(depth - 1)
        if depth <= 0 or self.chance(0.45):
            table = self.one_of(*SCHEMAS)
            kinds: Columns = [(one.name, "s" if str(one.type) == "string" else "n") for one in SCHEMAS[table]]
            return f"{table} AS {alias}", alias, kinds
        sql, columns = self.query(depth - 1)
        return f"({sql}) AS {alias}", alias, columns

    def looked_up(self, depth: int) -> tuple[str, str, Columns]:
        """A relation with what a lookup finds for a number of it."""
        sql, of, columns = self.relation(depth)
        alias, found = self.alias(), self.alias()
        names = [f"{of}.{name} AS l{at}" for at, (name, _) in enumerate(columns)]
        own: Columns = [(f"l{at}", kind) for at, (_, kind) in enumerate(columns)]
        shown = [*names, f"{found}.name AS f0", f"{found}.size AS f1"]
        join = f"{self.one_of('', 'LEFT ')}JOIN dim AS {found} ON {self.column([(of, columns)], 'n')} = {found}.id"
        return (
            f"(SELECT {', '.join(shown)} FROM {sql} {join}) AS {alias}",
            alias,
            [*own, ("f0", "s"), ("f1", "n")],
        )

    def column(self, scope: Scope, kind: str) -> str:
        found = [f"{alias}.{name}" for alias, columns in scope for name, own in columns if own == kind]
        return str(self.one_of(*found)) if found else ("1" if kind == "n" else "'x'")

    def number(self, scope: Scope, depth: int = 1) -> str:
        which = self.rng.random()
        if which < 0.55 or depth <= 0:
            return self.column(scope, "n")
        if which < 0.65:
            return str(self.rng.randrange(6))
        if which < 0.8:
            return f"({self.number(scope, depth - 1)} {self.one_of('+', '-', '*')} {self.number(scope, depth - 1)})"
        if which < 0.85:
            return f"coalesce({self.number(scope, depth - 1)}, {self.rng.randrange(4)})"
        if which < 0.92:
            one, two = self.number(scope, depth - 1), self.number(scope, 0)
            form = self.one_of(
                "abs({0} - {1})", "greatest({0}, {1})", "least({0}, {1}, 3)", "nullif({0}, {1})", "{0} % 3"
            )
            return f"({form.format(one, two)})"
        condition = self.condition(scope, depth - 1)
        return f"CASE WHEN {condition} THEN {self.number(scope, depth - 1)} ELSE {self.rng.randrange(5)} END"

    def text(self, scope: Scope) -> str:
        found = self.column(scope, "s")
        if self.chance(0.7):
            return found
        form = self.one_of(
            "coalesce({0}, 'n')", "upper({0})", "{0} || '-' || {1}", "concat(substring({0}, 1, 1), 'k')"
        )
        return f"({form.format(found, self.column(scope, 's'))})"

    def condition(self, scope: Scope, depth: int = 1) -> str:
        which, kinds = self.rng.random(), {kind for _, columns in scope for _, kind in columns}
        if "n" not in kinds:
            return f"{self.column(scope, 's')} IS NOT NULL"
        if which < 0.45 or (which < 0.55 and "s" not in kinds):
            one, two = self.number(scope, depth - 1), self.number(scope, depth - 1)
            two = str(self.rng.randrange(6)) if one == two else two
            return f"{one} {self.one_of('<', '<=', '=', '<>', '>', '>=')} {two}"
        if which < 0.55:
            return f"{self.text(scope)} {self.one_of('=', '<>', '<')} '{self.one_of('x', 'y', 'z', 'w')}'"
        if which < 0.65:
            return f"{self.column(scope, self.one_of('n', 's'))} IS {self.one_of('', 'NOT ')}NULL"
        if which < 0.75:
            return f"{self.column(scope, 'n')} IN ({self.rng.randrange(3)}, {self.rng.randrange(3, 7)})"
        if depth > 0 and which < 0.88:
            word = self.one_of("AND", "OR")
            return f"({self.condition(scope, depth - 1)} {word} {self.condition(scope, depth - 1)})"
        if depth > 1:
            return self.subquery(scope)
        return f"NOT ({self.condition(scope, 0)})" if depth > 0 else f"{self.column(scope, 'n')} > 1"

    def subquery(self, scope: Scope) -> str:
        sql, alias, columns = self.relation(0)
        inner: Scope = [(alias, columns)]
        tied = f"{self.column(inner, 'n')} = {self.column(scope, 'n')}"
        more = f" AND {self.condition(inner, 0)}" if self.chance(0.4) else ""
        which, outer, function = (
            self.rng.random(),
            self.column(scope, "n"),
            self.one_of("max", "min", "count", "sum"),
        )
        if which < 0.3:
            return f"{self.one_of('', 'NOT ')}EXISTS (SELECT 1 FROM {sql} WHERE {tied}{more})"
        if which < 0.55:
            where = self.condition(inner, 0)
            return f"{outer} {self.one_of('', 'NOT ')}IN (SELECT {self.column(inner, 'n')} FROM {sql} WHERE {where})"
        where = tied if which < 0.8 else self.condition(inner, 0)
        value = f"SELECT {function}({self.column(inner, 'n')}) FROM {sql} WHERE {where}"
        return f"{outer} {self.one_of('<', '>=', '=')} ({value})"

    def joined(self, depth: int) -> tuple[str, Scope]:
        sql, alias, columns = self.relation(depth)
        scope: Scope = [(alias, columns)]
        for _ in range(self.one_of(0, 0, 0, 1, 1, 2) if depth > 0 else self.one_of(0, 1)):
            other, alias, columns = self.relation(depth - 1 if self.chance(0.5) else 0)
            inner: Scope = [(alias, columns)]
            how = self.one_of("JOIN", "JOIN", "LEFT JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN")
            on = f"{self.column(scope, 'n')} {self.one_of('=', '=', '=', '<=>')} {self.column(inner, 'n')}"
            if self.chance(0.3):
                on += (
                    f" AND {self.column(scope, 'n')} {self.one_of('<', '<>', '>=')} {self.column(inner, 'n')}"
                )
            sql, scope = f"{sql} {how} {other} ON {on}", scope + inner
        return sql, scope

    def picked(self, scope: Scope, count: int) -> str:
        return ", ".join(f"{self.column(scope, 'n')} AS c{at}" for at in range(count))

    def query(self, depth: int) -> tuple[str, Columns]:
        if self.chance(0.12):
            word = self.one_of("UNION ALL", "UNION", "INTERSECT", "EXCEPT", "INTERSECT ALL", "EXCEPT ALL")
            (one, first), (two, second) = self.joined(max(depth - 1, 0)), self.joined(0)
            sql = (
                f"SELECT {self.picked(first, 2)} FROM {one} {word} SELECT {self.picked(second, 2)} FROM {two}"
            )
            return sql, THREE[:2]
        given, scope = self.joined(depth)
        rows = f"FROM {given}" + (f" WHERE {self.condition(scope, 2)}" if self.chance(0.6) else "")
        which = self.rng.random()
        if which < 0.4:
            return self.grouped(rows, scope)
        inner = f"(SELECT {self.picked(scope, 3)} {rows}) AS {self.alias()}"
        if which < 0.53:
            key = f"PARTITION BY c{self.one_of(0, 2)} " if self.chance(0.7) else ""
            function = self.one_of("row_number", "row_number", "rank", "dense_rank")
            number = f"{function}() OVER ({key}ORDER BY c1{self.one_of('', ' DESC')}, c0, c2) AS c3"
            shown = "c0, c1, c2, c3" if self.chance(0.4) else "c0, c1, c2"
            limit = self.one_of(1, 2, 3)
            columns = [*THREE, ("c3", "n")] if "c3" in shown else THREE
            return f"SELECT {shown} FROM (SELECT *, {number} FROM {inner}) WHERE c3 <= {limit}", columns
        if which < 0.63:
            over = self.one_of(*OVER)
            ranks = ("rank()", "dense_rank()") if "ORDER" in over and "BETWEEN" not in over else ()
            numbered = ("BETWEEN" not in over and all(name in over for name in ("c0", "c1", "c2"))) * PLACES
            function, other = (
                self.one_of("sum(c1)", "count(*)", "max(c2)", "min(c1)", "avg(c2)", *ranks, *numbered)
                for _ in range(2)
            )
            shown = f"c0, c1, c2, {function} OVER ({over}) AS c3"
            if self.chance(0.4):
                shown += f", {other} OVER ({over}) AS c4"
            return f"SELECT {shown} FROM {inner}", [*THREE, ("c3", "n")]
        if which < 0.7:
            return (
                f"SELECT c0, c1, c2 FROM {inner} ORDER BY c1 DESC, c0, c2 LIMIT {self.one_of(1, 3, 5)}",
                THREE,
            )
        kinds = [self.one_of("n", "n", "n", "s") for _ in range(self.one_of(1, 2, 3))]
        values = [self.number(scope) if kind == "n" else self.text(scope) for kind in kinds]
        shown = ", ".join(f"{value} AS c{at}" for at, value in enumerate(values))
        columns = [(f"c{at}", kind) for at, kind in enumerate(kinds)]
        return f"SELECT {self.one_of('', '', '', '', 'DISTINCT ')}{shown} {rows}", columns

    def grouped(self, rows: str, scope: Scope) -> tuple[str, Columns]:
        number, text = self.column(scope, "n"), self.column(scope, "s")
        keys = list(
            dict.fromkeys(
                self.one_of(number, number, text, f"{number} % 3") for _ in range(self.one_of(0, 1, 1, 2))
            )
        )
        columns: Columns = [(f"c{at}", "s" if key == text else "n") for at, key in enumerate(keys)]
        values = list(keys)
        for _ in range(self.one_of(1, 2, 3)):
            form = self.one_of(*AGGREGATES)
            one = self.column(scope, "s")
            one = f"lower({one})" if one == "'x'" else one  # DuckDB refuses to order by a literal
            made = form.format(n=self.number(scope), s=one)
            if not form.startswith(("round", "CAST")) and self.chance(0.2):
                made += f" FILTER (WHERE {number} {self.one_of('<', '>', '=')} {self.rng.randrange(6)})"
            columns.append((f"c{len(values)}", "s" if "{s}" in form else "n"))
            values.append(made)
        shown = ", ".join(f"{value} AS c{at}" for at, value in enumerate(values))
        group = f" GROUP BY {', '.join(keys)}" if keys else ""
        conditions = []
        if len(keys) == 2 and self.chance(0.2):
            one, two = keys
            sets = self.one_of(
                "ROLLUP({0}, {1})", "CUBE({0}, {1})", "GROUPING SETS (({0}), ({1}), ({0}, {1}))"
            )
            group = f" GROUP BY {sets.format(one, two)}"
            conditions = ["count(*) > 0"]  # of no rows, DuckDB has a total and Spark has not
        condition = self.one_of("count(*) > 1", "count(*) < 4", f"sum({number}) > 3")
        if keys and self.chance(0.3):
            conditions.append(condition)
        having = f" HAVING {' AND '.join(conditions)}" if conditions else ""
        return f"SELECT {shown} {rows}{group}{having}", columns


def random_query(seed: int, depth: int = 2) -> tuple[str, str]:
    """A query of Spark and the same of DuckDB."""
    made = _Random(random.Random(seed))
    prefix = ""
    if made.chance(0.15):
        shared, columns = made.query(depth - 1)
        prefix, made.shared = f"WITH w AS ({shared}) ", columns
    sql = prefix + made.query(depth)[0]
    return sql, in_duckdb(sql)


def in_duckdb(sql: str) -> str:
    """The query in DuckDB's words."""
    oracle = sqlglot.transpile(sql, read="spark", write="duckdb")[0]
    if "JOIN dim" in sql:
        with_dim = f"WITH {IN_DUCKDB}"
        return (
            f"{with_dim}, {oracle.removeprefix('WITH ')}"
            if oracle.startswith("WITH ")
            else f"{with_dim} {oracle}"
        )
    return oracle


def run(spark: Any, seed: int) -> None:
    """Keep the query of a seed up to date over random changes, and check it. Raises AssertionError and SqlError."""
    kept_or_constant(spark, *random_query(seed), changing_tables(seed, size=8), random.Random(seed), LOOKUPS)
