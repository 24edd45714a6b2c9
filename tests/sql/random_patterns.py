"""Random MATCH_RECOGNIZE queries, against trying every way through the pattern.

Owns: ``PatternQuery``, the text and the search for what it finds. Invariant: rows have one order, none is late, and
what a text computes is computed here by its meaning: of all rows that the match has so far, in three-valued logic.
"""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from asyncstate.errors import SchemaError
from asyncstate.sql import sql_pipeline
from operators import Match
from operators.match.pattern import as_pattern
from operators.match.skips import Skip
from tests.operators.match_model import matches
from tests.sql.random_windows import timed_tables
from tests.sql.tables import Draws, Row, kept_right

ROWS = "SELECT k, nullif(a, 4) AS x, a % 3 AS y, concat('s', a % 2) AS s, ts AS at FROM l"
X, Y, S, AT = range(1, 5)
VARIABLES = "ABC"
SECOND = 1_000_000

Taken = Sequence[tuple[str, Row]]
"""The rows of a match so far, in order, each with its variable; in a condition the last one is the current row."""


class Value(NamedTuple):
    """A text, and what it is of the rows of a match."""

    text: str
    of: Callable[[Taken], Any]


def _known(function: Callable[..., Any], *values: Value) -> Callable[[Taken], Any]:
    """``function`` of values, null if one of them is."""

    def of(taken: Taken) -> Any:
        found = [value.of(taken) for value in values]
        return None if None in found else function(*found)

    return of


def _total(values: list[Any]) -> Any:
    return sum(values) if values else None


def _mean(values: list[Any]) -> Any:
    return sum(values) / len(values) if values else None


AGGREGATES: Mapping[str, Callable[[list[Any]], Any]] = {
    "SUM": _total,
    "COUNT": len,
    "MIN": lambda values: min(values, default=None),
    "MAX": lambda values: max(values, default=None),
    "AVG": _mean,
}
COMPARED: Mapping[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    "=": operator.eq,
    "<>": operator.ne,
    ">": operator.gt,
}
COMPUTED: Mapping[str, Callable[[Any, Any], Any]] = {"+": operator.add, "-": operator.sub, "*": operator.mul}


def _and(one: bool | None, two: bool | None) -> bool | None:
    return False if one is False or two is False else None if one is None or two is None else True


class PatternQuery(Draws):
    """A query and its answer."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.within = self.one_of(None, 30, 60, 120)
        self.before = self.one_of(0, 0, 1, 2)
        """Rows before any variable that has a condition."""
        self.pattern, self.skip = self._accepted()
        self.variables = sorted(set(as_pattern(self.pattern).variables()))
        own = [name for name in self.variables if name in VARIABLES]
        self.defined = {name: self.condition(name, 1) for name in own if self.chance(0.9)}
        self.measures = [self.measure() for _ in range(self.one_of(1, 2, 3))]
        self.keyed = self.chance(0.8)
        self.filtered = self.chance(0.3)

    def _accepted(self) -> tuple[str, Skip]:
        """A pattern whose matches have rows and an end, and where the search goes on after one."""
        within = None if self.within is None else self.within * SECOND
        while True:
            text = f"{'S ' if self.before == 1 else 'S{2} ' if self.before else ''}{self.part(2)}"
            name = self.one_of(*as_pattern(text).variables())
            skip = self.one_of(
                Skip("past last row"), Skip("next row"), Skip("first", name), Skip("last", name)
            )
            try:
                Match(text, within=within, after_match=skip)
            except SchemaError:
                continue
            return text, skip

    def part(self, depth: int) -> str:
        which = self.rng.random()
        if depth == 0 or which < 0.2:
            return str(self.one_of(*VARIABLES))
        if which < 0.6:
            return " ".join(self.part(depth - 1) for _ in range(self.one_of(2, 3)))
        if which < 0.7:
            return f"({self.part(depth - 1)} | {self.part(depth - 1)})"
        part = self.part(depth - 1)
        times = self.one_of("?", "*", "+", "+", "{2}", "{1,3}", "{,2}", "{2,}")
        return f"{part if len(part) == 1 else f'({part})'}{times}{'?' if self.chance(0.25) else ''}"

    # -- values ----------------------------------------------------------------------------------------

    def of_row(self, prefix: str = "") -> tuple[str, Callable[[Row], Any]]:
        """A text of one row, and what it is."""
        which = self.rng.random()
        if which < 0.75:
            column = self.one_of(X, X, Y)
            return f"{prefix}{'xy'[column - 1]}", lambda row: row[column]
        word, number = self.one_of(*COMPUTED), self.rng.randrange(1, 4)
        function = COMPUTED[word]
        if which < 0.9:
            return (
                f"{prefix}x {word} {number}",
                lambda row: None if row[X] is None else function(row[X], number),
            )
        return f"{prefix}x {word} {prefix}y", lambda row: None if row[X] is None else function(row[X], row[Y])

    def value(self, own: str | None) -> Value:
        """``own``: the variable whose condition it is in."""
        which, name = self.rng.random(), self.one_of(*self.variables, None)
        if own is not None and which < 0.35:
            text, of = self.of_row(self.one_of("", f"{own}."))
            return Value(text, lambda taken: of(taken[-1][1]))
        if own is not None and self.before and which < 0.5:
            of_name = self.one_of(None, own, *(one for one in self.variables if one in VARIABLES))
            text, of = self.of_row("" if of_name is None else f"{of_name}.")
            back = self.rng.randrange(1, self.before + 1)
            written = f"PREV({text})" if back == 1 and self.chance(0.5) else f"PREV({text}, {back})"
            return Value(written, self._before(of_name or own, of, back))
        prefix = "" if name is None else f"{name}."
        if name is not None and which < 0.65:
            column = self.one_of(X, Y)
            return Value(f"{prefix}{'xy'[column - 1]}", self._nth(name, lambda row: row[column], -1))
        text, of = self.of_row(prefix)
        if which < 0.8:
            at, word = self.one_of(0, 0, 1), self.one_of("FIRST", "LAST")
            given = f", {at}" if at else ""
            return Value(f"{word}({text}{given})", self._nth(name, of, at if word == "FIRST" else -1 - at))
        if which < 0.85:
            return Value(f"COUNT({prefix}*)", lambda taken: len(self._rows(taken, name)))
        word = self.one_of(*AGGREGATES)
        function = AGGREGATES[word]

        def all_of(taken: Taken) -> Any:
            found = [of(row) for row in self._rows(taken, name)]
            return function([one for one in found if one is not None])

        return Value(f"{word}({text})", all_of)

    @staticmethod
    def _rows(taken: Taken, name: str | None) -> list[Row]:
        return [row for variable, row in taken if name in (None, variable)]

    @staticmethod
    def _before(name: str, of: Callable[[Row], Any], back: int) -> Callable[[Taken], Any]:
        """Of the row that is ``back`` rows before the last one of a variable."""

        def value(taken: Taken) -> Any:
            last = max((at for at, (variable, _) in enumerate(taken) if variable == name), default=None)
            return None if last is None else of(taken[last - back][1])

        return value

    def _nth(self, name: str | None, of: Callable[[Row], Any], at: int) -> Callable[[Taken], Any]:
        def value(taken: Taken) -> Any:
            rows = self._rows(taken, name)
            return of(rows[at]) if -len(rows) <= at < len(rows) else None

        return value

    def condition(self, own: str, depth: int) -> Value:
        which = self.rng.random()
        if depth and which < 0.3:
            one, two = self.condition(own, depth - 1), self.condition(own, depth - 1)
            if self.chance(0.5):
                return Value(f"{one.text} AND {two.text}", lambda taken: _and(one.of(taken), two.of(taken)))

            def either(taken: Taken) -> bool | None:
                no = _and(*(None if one is None else not one for one in (one.of(taken), two.of(taken))))
                return None if no is None else not no

            return Value(f"({one.text} OR {two.text})", either)
        value = self.value(own)
        if which < 0.38:
            return Value(f"{value.text} IS NULL", lambda taken: value.of(taken) is None)
        if depth and which < 0.46:
            inner = self.condition(own, 0)
            return Value(f"NOT ({inner.text})", _known(operator.not_, inner))
        word, number = self.one_of(*COMPARED), self.rng.randrange(6)
        other = self.value(own) if self.chance(0.45) else Value(str(number), lambda _: number)
        if self.chance(0.2):
            more, counted = self.rng.randrange(1, 4), self.one_of(*COMPUTED)
            other = Value(
                f"{other.text} {counted} {more}", _known(lambda v: COMPUTED[counted](v, more), other)
            )
        return Value(f"{value.text} {word} {other.text}", _known(COMPARED[word], value, other))

    def gathered(self) -> Value:
        """An aggregate that only MEASURES has."""
        name, word = self.one_of(*self.variables, None), self.one_of("SUM", "COUNT", "AVG", "MAX", "LISTAGG")
        text, of = self.of_row("" if name is None else f"{name}.")
        is_text, distinct = word == "LISTAGG", self.chance(0.6)
        between = self.one_of("", "-", ", ")
        literal = f", '{between}'" if between else ""
        shown = f"CAST({text} AS STRING){literal}" if is_text else text
        function = (
            (lambda found: between.join(map(str, found)) if found else None) if is_text else AGGREGATES[word]
        )

        def all_of(taken: Taken) -> Any:
            found = [one for row in self._rows(taken, name) if (one := of(row)) is not None]
            return function(list(dict.fromkeys(found)) if distinct else found)

        return Value(f"{word}({'DISTINCT ' if distinct else ''}{shown})", all_of)

    def measure(self) -> Value:
        if self.chance(0.2):
            return self.gathered()
        which, value = self.rng.random(), self.value(None)
        if which < 0.1:
            return Value("MATCH_ROWTIME()", lambda taken: taken[-1][1][AT])
        if which < 0.2:
            return Value("FIRST(s)", lambda taken: taken[0][1][S])
        if which < 0.3:
            other = self.value(None)
            return Value(f"{value.text} - {other.text}", _known(operator.sub, value, other))
        if which < 0.4:
            return Value(
                f"coalesce({value.text}, 7)", lambda taken: 7 if (v := value.of(taken)) is None else v
            )
        return Value(self.one_of("", "FINAL ") + value.text, value.of) if "(" in value.text else value

    # -- the query -------------------------------------------------------------------------------------

    @property
    def sql(self) -> str:
        measures = [f"{one.text} AS m{at}" for at, one in enumerate(self.measures)]
        define = [f"{name} AS {one.text}" for name, one in self.defined.items()]
        clauses = [
            "PARTITION BY k" if self.keyed else "",
            "ORDER BY at, x NULLS FIRST, k NULLS FIRST",
            f"MEASURES MATCH_NUMBER() AS n, {', '.join(measures)}",
            f"ONE ROW PER MATCH AFTER MATCH {self.skip.text}",
            f"PATTERN ({self.pattern})" + (f" WITHIN INTERVAL {self.within} SECONDS" if self.within else ""),
            f"DEFINE {', '.join(define)}" if define else "",
        ]
        rows = f"({ROWS}{' WHERE a <> 2' if self.filtered else ''})"
        return f"SELECT * FROM {rows} MATCH_RECOGNIZE ({' '.join(filter(None, clauses))}) AS m"

    def answer(self, contents: Mapping[str, list[Row]]) -> list[Row]:
        """All matches: their key, their number and their measures."""
        keys: dict[Any, list[Row]] = {}
        for key, a, at in contents["l"]:
            if at is not None and not (self.filtered and a == 2):
                row = key, None if a == 4 else a, a % 3, f"s{a % 2}", at
                keys.setdefault(key if self.keyed else (), []).append(row)
        found = []
        for key, rows in keys.items():
            rows.sort(key=lambda row: (row[AT], *((one is not None, one or 0) for one in (row[X], row[0]))))
            times = [int(row[AT].timestamp() * SECOND) for row in rows]
            within = None if self.within is None else self.within * SECOND

            def meets(name: str, row: int, start: int, labels: Any, rows: list[Row] = rows) -> bool:
                taken = list(zip((*labels, name), rows[start : row + 1], strict=True))
                return name not in self.defined or self.defined[name].of(taken) is True

            for number, (start, labels) in enumerate(
                matches(as_pattern(self.pattern), times, meets, self.skip, within), start=1
            ):
                taken = list(zip(labels, rows[start : start + len(labels)], strict=True))
                own = (key,) if self.keyed else ()
                found.append((*own, number, *(one.of(taken) for one in self.measures)))
        return found


def run(spark: Any, seed: int) -> None:
    """Run the query of a seed over random rows, and check it at their end. Raises AssertionError and SqlError."""
    rng, tables = random.Random(seed), timed_tables(seed)
    query, rows = PatternQuery(rng), tables.contents(tables.batches - 1)
    while not query.answer(rows) and rng.random() < 0.9:  # half of all conditions are never met
        query = PatternQuery(rng)
    enabled, flow = rng.random() < 0.5, sql_pipeline(query.sql, spark=spark)
    kept_right(flow, tables, query.sql, query.answer, async_enabled=enabled, restarts=rng, finish=True)
