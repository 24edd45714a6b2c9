"""Random chains of relational methods over changing tables, and the same in DuckDB's words.

Owns: ``random_chain``; ``keyed_tables``. Invariant: a chain has one answer: the first rows are in an order of all
columns. A table with a primary key is among the inputs, and selections lose and rename it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from asyncstate.dataflow import Stream
from tests.sql.tables import Change, Draws, Row, Tables

L = pa.int64()
SCHEMAS = {
    "t": pa.schema([("a", L), ("b", L)]),
    "u": pa.schema([("a", L), ("d", L)]),
    "p": pa.schema([("k", L), ("e", L), ("f", L)]),
}
NO_ROW: Row = ()


def keyed_tables(seed: int, batches: int = 5, size: int = 8) -> Tables:
    """Rows that come, change and go. Those of ``p`` have a key each; the others may be equal."""
    rng = random.Random(seed)
    changes: dict[str, list[list[Change]]] = {name: [] for name in SCHEMAS}
    there: dict[str, dict[int, Row]] = {name: {} for name in SCHEMAS}

    def number(most: int) -> int | None:
        return None if rng.random() < 0.12 else rng.randrange(most)

    for batch in range(batches):
        for name, rows in there.items():
            out: list[Change] = []
            for _ in range(0 if batch == 2 and name == "t" else size):
                place = rng.randrange(12)
                old = rows.pop(place, NO_ROW)
                if old and rng.random() < 0.4:
                    out.append(("-D", old))
                    continue
                new = (place, number(4), number(6)) if name == "p" else (number(4), number(6))
                rows[place] = new
                out += [("-U", old), ("+U", new)] if old else [("+I", new)]
            changes[name].append(out)
    return Tables(SCHEMAS, changes, keys={"p": ["k"]})


Make = Callable[[Mapping[str, Stream]], Stream]


@dataclass(frozen=True)
class Chain:
    """A stream made of those of the tables, its query, and its columns, all of numbers."""

    make: Make
    sql: str
    columns: tuple[str, ...]

    def then(self, step: Callable[[Stream], Stream], sql: str, *columns: str) -> Chain:
        """With one step more; ``sql`` has ``{q}`` for the rows before it."""
        make = self.make
        text = sql.replace("{q}", f"({self.sql}) AS q")
        return Chain(lambda tables: step(make(tables)), text, columns or self.columns)


class _Random(Draws):
    _steps = 0

    def uid(self) -> str:
        self._steps += 1
        return f"step-{self._steps}"

    def table(self) -> Chain:
        name = self.one_of(*SCHEMAS)
        return Chain(lambda tables: tables[name], f"SELECT * FROM {name}", tuple(SCHEMAS[name].names))

    def chain(self, steps: int) -> Chain:
        found = self.table()
        for _ in range(steps):
            kinds = self.where, self.selected, self.exploded, self.grouped, self.best, self.over, self.joined
            kind = self.one_of(*kinds, self.grouped, self.joined, self.joined, self.union, self.distinct)
            found = kind(found, steps)
        return found

    def where(self, given: Chain, _: int) -> Chain:
        column = self.one_of(*given.columns)
        text = self.one_of(f"{column} > 1", f"{column} IS NOT NULL", f"{column} <> 2 OR {column} IS NULL")
        return given.then(lambda rows: rows.where(text), f"SELECT * FROM {{q}} WHERE {text}")

    def selected(self, given: Chain, _: int) -> Chain:
        texts = []
        for _ in range(self.one_of(1, 2, 3)):
            column = self.one_of(*given.columns)
            text = self.one_of(column, column, f"{column} % 3", f"{column} + {self.one_of(*given.columns)}")
            texts.append((text, self.alias()))
        shown = [f"{text} AS {name}" for text, name in texts]
        return given.then(
            lambda rows: rows.select(*shown),
            f"SELECT {', '.join(shown)} FROM {{q}}",
            *(name for _, name in texts),
        )

    def exploded(self, given: Chain, _: int) -> Chain:
        kept, one, two = (self.one_of(*given.columns) for _ in range(3))
        names = self.alias(), self.alias()
        return given.then(
            lambda rows: rows.select(f"{kept} AS {names[0]}", f"explode(array({one}, {two})) AS {names[1]}"),
            f"SELECT {kept} AS {names[0]}, unnest([{one}, {two}]) AS {names[1]} FROM {{q}}",
            *names,
        )

    def distinct(self, given: Chain, _: int) -> Chain:
        uid = self.uid()
        return given.then(lambda rows: rows.distinct(uid=uid), "SELECT DISTINCT * FROM {q}")

    def grouped(self, given: Chain, _: int) -> Chain:
        keys = list(dict.fromkeys(self.one_of(*given.columns) for _ in range(self.one_of(0, 1, 1, 2))))
        forms = "count(*)", "count({0})", "sum({0})", "min({0})", "max({0})", "count(DISTINCT {0})"
        calls = {
            self.alias(): self.one_of(*forms).format(self.one_of(*given.columns))
            for _ in range(self.one_of(1, 2))
        }
        shown = [*keys, *(f"{text} AS {name}" for name, text in calls.items())]
        group = f" GROUP BY {', '.join(keys)}" if keys else ""
        uid = self.uid()
        return given.then(
            lambda rows: rows.group_by(*keys).agg(uid=uid, **calls),
            f"SELECT {', '.join(shown)} FROM {{q}}{group}",
            *keys,
            *calls,
        )

    def best(self, given: Chain, _: int) -> Chain:
        first = self.one_of(*given.columns)
        by = [first, *(one for one in given.columns if one != first)]
        order = ", ".join(f"{one} DESC NULLS LAST" for one in by)
        n, uid = self.one_of(1, 2, 4), self.uid()
        if self.chance(0.4):
            return given.then(
                lambda rows: rows.top(n, by=by, uid=uid), f"SELECT * FROM {{q}} ORDER BY {order} LIMIT {n}"
            )
        key = self.one_of(*given.columns)
        number = self.alias() if self.chance(0.4) else None
        place = f"row_number() OVER (PARTITION BY {key} ORDER BY {order})"
        if number is None:
            return given.then(
                lambda rows: rows.group_by(key).top(n, by=by, uid=uid),
                f"SELECT * FROM {{q}} QUALIFY {place} <= {n}",
            )
        return given.then(
            lambda rows: rows.group_by(key).top(n, by=by, number=number, uid=uid),
            f"SELECT *, {place} AS {number} FROM {{q}} QUALIFY {number} <= {n}",
            *given.columns,
            number,
        )

    def over(self, given: Chain, _: int) -> Chain:
        key, name, uid = self.one_of(*given.columns), self.alias(), self.uid()
        text = self.one_of("sum({0})", "count({0})", "max({0})").format(self.one_of(*given.columns))
        return given.then(
            lambda rows: rows.over(key).with_columns(uid=uid, **{name: text}),
            f"SELECT *, {text} OVER (PARTITION BY {key}) AS {name} FROM {{q}}",
            *given.columns,
            name,
        )

    def renamed(self, given: Chain, count: int | None = None) -> Chain:
        """All or some columns by new names."""
        columns = given.columns if count is None else [self.one_of(*given.columns) for _ in range(count)]
        shown = [(one, self.alias()) for one in columns]
        texts = [f"{one} AS {name}" for one, name in shown]
        return given.then(
            lambda rows: rows.select(*texts),
            f"SELECT {', '.join(texts)} FROM {{q}}",
            *(name for _, name in shown),
        )

    def joined(self, given: Chain, steps: int) -> Chain:
        other = self.renamed(self.chain(self.rng.randrange(max(steps - 1, 1))))
        on = {self.one_of(*given.columns): self.one_of(*other.columns)}
        one, two = self.one_of(*given.columns), self.one_of(*other.columns)
        if self.chance(0.3) and one not in on and two not in on.values():
            on[one] = two
        how, uid = self.one_of("inner", "inner", "left", "right", "full", "semi", "anti"), self.uid()
        met = " AND ".join(f"q.{one} = r.{two}" for one, two in on.items())
        make, others = given.make, other.make
        return Chain(
            lambda tables: make(tables).join(others(tables), on=on, how=how, uid=uid),
            f"SELECT * FROM ({given.sql}) AS q {how.upper()} JOIN ({other.sql}) AS r ON {met}",
            given.columns if how in ("semi", "anti") else (*given.columns, *other.columns),
        )

    def union(self, given: Chain, steps: int) -> Chain:
        count = self.one_of(1, 2)
        one, two = self.renamed(given, count), self.chain(self.rng.randrange(max(steps - 1, 1)))
        texts = [f"{self.one_of(*two.columns)} AS {name}" for name in one.columns]
        make, others = one.make, two.make
        return Chain(
            lambda tables: make(tables).union(others(tables).select(*texts)),
            f"{one.sql} UNION ALL SELECT {', '.join(texts)} FROM ({two.sql}) AS r",
            one.columns,
        )


def random_chain(seed: int) -> Chain:
    """The chain of a seed."""
    made = _Random(random.Random(seed))
    return made.chain(made.one_of(2, 3, 4))
