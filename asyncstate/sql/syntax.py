"""What Spark's parser does not have: each such part of a statement becomes a table, whose rows an operator makes.

Owns: ``Syntax``, which rewrites texts; ``Part``, a table that it puts into a text.
Invariant: a part that is not fully understood is refused, with its line; all else reaches Spark's parser unchanged.

Source: the SQL of Flink: window table-valued functions, temporal joins, hints of state retention.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.types import StructField, StructType, TimestampType

from asyncstate.errors import SqlError, StateDeclarationError
from asyncstate.spark.column_types import quoted
from asyncstate.sql import ir
from asyncstate.sql.catalyst import CLOCK, NOW, sql_errors
from asyncstate.sql.expressions import kind_of, type_of
from asyncstate.sql.match import MatchOf, match_table
from asyncstate.sql_words import Words, unquoted
from asyncstate.state.expiring.ttl import StateTtl

if TYPE_CHECKING:
    from asyncstate.sql.catalyst import Catalyst
    from asyncstate.sql.statements import SqlContext

_ANY: Final = re.compile(
    r"system_time|match_recognize|state_ttl|state\.ttl|with\s*\(\s*['\"]|tumble|hop|cumulate|session\s*\(|"
    r"current_timestamp|current_date|localtimestamp|(now|curdate)\s*\(",
    re.IGNORECASE,
)
_WINDOWS: Final = {
    "TUMBLE": ("DATA", "TIMECOL", "SIZE", "OFFSET"),
    "HOP": ("DATA", "TIMECOL", "SLIDE", "SIZE", "OFFSET"),
    "CUMULATE": ("DATA", "TIMECOL", "STEP", "SIZE", "OFFSET"),
    "SESSION": ("DATA", "TIMECOL", "GAP"),
}
_LENGTHS: Final = ("SIZE", "SLIDE", "STEP", "GAP", "OFFSET")  # in the order of the operators' arguments
_NOW: Final = {
    **dict.fromkeys(("NOW", "CURRENT_TIMESTAMP"), NOW),
    **dict.fromkeys(("CURDATE", "CURRENT_DATE"), f"CAST({NOW} AS DATE)"),
    "LOCALTIMESTAMP": f"CAST({NOW} AS TIMESTAMP_NTZ)",
}
"""Functions that change with time alone, and what they are of the clock's row."""
_TTL: Final = (
    "write /*+ STATE_TTL('table' = '1 day') */ after SELECT, with the name or alias of a table in its FROM"
)


@dataclass(frozen=True)
class Part:
    """The rows of ``query``, and what is made of them: "kept" for ``ttl``; "versions" of ``key`` (none: of all that the
    join compares by =) by the column ``time`` (None: the newest), for a row as of its ``at``, in lower case; a "window"
    of ``time`` and ``key``, a "match" in order of them. ``place``: for errors."""

    what: str
    query: str
    place: str
    ttl: str | None = None
    time: str | None = None
    key: tuple[str, ...] = ()
    window: tuple[str | int, ...] = ()
    match: MatchOf | None = None
    at: str = ""


class Syntax:
    """The rewriting of the statements of one context."""

    def __init__(self, context: SqlContext) -> None:
        self._context = context
        self.parts: dict[str, Part] = {}

    @property
    def catalyst(self) -> Catalyst:
        """Of the context."""
        return self._context.catalyst

    def parsed(self, text: str) -> Any:
        """The parsed statement. Raises SqlError."""
        return self.catalyst.parsed(self.rewritten(text), text)

    def rewritten(self, text: str) -> str:
        """The text in words that Spark's parser knows; from the end, so that inner parts come first."""
        found: str | None = text
        while found is not None and _ANY.search(found):
            text, words = found, Words(found)
            parts = partial(match_table, self), self._versions, self._windows, self._option, self._hint
            steps = *parts, self._now
            made = (step(words, at) for at in reversed(range(len(words))) for step in steps)
            found = next((one for one in made if one is not None), None)
        return text if found is None else found

    def schema_of(self, query: str) -> StructType:
        """The columns of a query."""
        return self.catalyst.rows(self.parsed(query), query).schema

    def add(self, part: Part, schema: StructType) -> str:
        """The name of the table that is the part."""
        known = next((name for name, one in self.parts.items() if one == part), None)
        name = known or f"asyncstate_part_{len(self.parts) + 1}"
        names = [one.name.lower() for one in schema]
        twice = next((one for one in names if names.count(one) > 1), None)
        if twice is not None:
            raise SqlError(
                f"{part.place}: two columns are called '{twice}'; give each a name of its own with AS"
            )
        self.parts[name] = part
        self.catalyst.add(name, schema)
        return name

    # -- joins -----------------------------------------------------------------------------------------------

    def _versions(self, words: Words, at: int) -> str | None:
        """FOR SYSTEM_TIME AS OF."""
        if not words.has(at, "FOR SYSTEM_TIME AS OF"):
            return None
        begin, is_now = words.path_before(at), words.has(at + 4, "PROCTIME ( )")
        after = at + 7 if is_now else words.path(at + 4)
        alias, end = words.alias(after)
        own, time = words.cut(begin, at), words.cut(at + 4, after)
        is_of_query = unquoted(own) in [name for name, _, _ in words.table_expressions(at)]
        table, alias = None if is_of_query else self._context.table(unquoted(own)), alias or own
        if is_now and not is_of_query and unquoted(own) in map(str.lower, self._context.lookups):
            return words.replaced((begin, end, f"{own} AS {alias}"))
        if table is None or not time or not (is_now or table.times.event_time):
            raise words.refusal(
                begin,
                end,
                "FOR SYSTEM_TIME AS OF of what is no source or view of job.view with an event time, or at what is no "
                "column",
                "write JOIN t FOR SYSTEM_TIME AS OF l.time AS t ON l.key = t.key, and declare event_time= at t",
            )
        columns = {name.lower(): name for name in table.built.schema.names}
        stop = words.condition_end(end + 1)
        part = Part(
            "versions",
            words.below(begin, f"SELECT * FROM {own}"),
            f"line {words.line(begin)}: {own}",
            key=_columns(words, end, stop, unquoted(alias), columns),
        )
        if is_now:
            name = self.add(part, self.schema_of(part.query))
            return words.replaced((begin, end, f"{name} AS {alias}"))
        part = replace(part, time=table.times.event_time, at=unquoted(words.cut(after - 1, after)))
        if words.word(end) != "ON" or stop == end + 1:
            raise words.refusal(begin, end, "a temporal join without ON", "write ON l.key = t.key after it")
        condition = (
            f"({words.cut(end + 1, stop)}) AND {time} >= {alias}.{quoted(str(table.times.event_time))}"
        )
        name = self.add(part, self.schema_of(part.query))
        return words.replaced((begin, end, f"{name} AS {alias}"), (end + 1, stop, condition))

    # -- windows ---------------------------------------------------------------------------------------------

    def _windows(self, words: Words, at: int) -> str | None:
        """TUMBLE, HOP, CUMULATE and SESSION."""
        kind = words.word(at)
        if kind not in _WINDOWS or not (words.has(at + 1, "( TABLE") or words.has(at + 1, "( DATA =>")):
            return None
        close, given = words.close(at + 1), dict[str, tuple[int, int]]()
        for number, (begin, end) in enumerate(words.split(at + 2, close)):
            is_named = words.word(begin + 1) == "=>"
            name = words.word(begin) if is_named else (*_WINDOWS[kind], "")[min(number, len(_WINDOWS[kind]))]
            given["" if name in given else name] = (begin + 2 * is_named, end)
        shown = ", ".join(_WINDOWS[kind])
        if not set(_WINDOWS[kind]) - {"OFFSET"} <= set(given) <= set(_WINDOWS[kind]):
            raise words.refusal(at, close + 1, f"{kind} with other arguments", f"give {shown}")
        query, key = self._data(words, *given["DATA"])
        begin, end = given["TIMECOL"]
        schema = self.schema_of(query)
        columns = {one.name.lower(): one for one in schema}
        time = columns.get(unquoted(words.cut(begin + 2, end - 1)))
        if (
            not words.has(begin, "DESCRIPTOR (")
            or time is None
            or "timestamp" not in time.dataType.typeName()
        ):
            raise words.refusal(begin, end, "no column of times", "give DESCRIPTOR(time) of a timestamp")
        clash = [name for name in ir.WINDOW_COLUMNS if name in columns]
        lost = [name for name in key if name not in columns]
        if clash or lost or (key and kind != "SESSION"):
            raise words.refusal(
                *(at, close + 1, f"{kind} of a table with {', '.join(clash or lost or ['PARTITION BY'])}"),
                "rename columns in a view; PARTITION BY columns of the table, of SESSION only",
            )
        lengths = [self.length(words, *given[name]) for name in _LENGTHS if name in given]
        lengths += [] if kind == "SESSION" or "OFFSET" in given else [0]
        part = Part(
            "window",
            query,
            f"line {words.line(at)}: {kind}",
            time=time.name,
            key=tuple(columns[name].name for name in key),
            window=(kind.lower(), *lengths),
        )
        made = [StructField(name, time.dataType) for name in ir.WINDOW_COLUMNS]
        name, wrapped = self.add(part, StructType([*schema, *made])), words.has(at - 2, "TABLE (")
        wrapped &= words.word(close + 1) == ")"
        return words.replaced((at - 2 * wrapped, close + 1 + wrapped, name))

    def _data(self, words: Words, begin: int, end: int) -> tuple[str, list[str]]:
        """The query of TABLE t PARTITION BY k, and the names of k."""
        at = begin + 1
        stop = words.close(at) + 1 if words.word(at) == "(" else words.path(at)
        key = [(one, two) for one, two in words.split(stop + 2, end) if words.has(stop, "PARTITION BY")]
        if words.word(begin) != "TABLE" or stop == at or (stop != end and not key):
            raise words.refusal(begin, end, "no table", "give TABLE t, or TABLE t PARTITION BY k for SESSION")
        return self.query_of(words, at, stop), [unquoted(words.cut(*one)) for one in key]

    def query_of(self, words: Words, begin: int, end: int) -> str:
        """The query of a table or a subquery in a text, with the common table expressions that it reads."""
        used, names = list[tuple[int, int]](), set(map(unquoted, words.words[begin:end]))
        for name, first, after in reversed(list(words.table_expressions(begin))):
            if name in names:  # in its own query, the name is that of a table
                used.insert(0, (first, after))
                names = (names - {name}) | set(map(unquoted, words.words[first + 1 : after]))
        if words.word(begin) == "(" and not used:
            return words.below(begin, words.cut(begin + 1, end - 1))
        text = ""
        for first, after in used:
            text = words.below(first, f"{', ' if text else 'WITH '}{words.cut(first, after)}", text)
        return words.below(begin, f"{' ' if used else ''}SELECT * FROM {words.cut(begin, end)}", text)

    def length(self, words: Words, begin: int, end: int) -> int:
        """The microseconds of an INTERVAL."""
        with sql_errors():
            found = self.catalyst.expression(words.cut(begin, end))
        kind = type_of(found) if kind_of(found) == "Literal" else ""
        if not kind.startswith("interval") or "month" in kind or "year" in kind:
            raise words.refusal(
                begin, end, "no constant length", "give an interval such as INTERVAL 10 MINUTES"
            )
        return int(found.value())

    # -- time ------------------------------------------------------------------------------------------------

    def _now(self, words: Words, at: int) -> str | None:
        """NOW() and the like."""
        word, is_call = words.word(at), words.has(at + 1, "( )")
        if word not in _NOW or words.word(at - 1) in (".", "AS", "OF") or words.word(at + 1) == ".":
            return None
        tables = self._context.tables.values()
        is_column = word.lower() in {name.lower() for one in tables for name in one.built.schema.names}
        is_column |= any(words.has(place, f"AS {word}") for place in range(len(words)))
        if not is_call and (word in ("NOW", "CURDATE") or is_column):
            return None
        self.catalyst.add(CLOCK, StructType([StructField("now", TimestampType(), nullable=False)]))
        return words.replaced((at, at + 1 + 2 * is_call, _NOW[word]))

    # -- retention -------------------------------------------------------------------------------------------

    def _option(self, words: Words, at: int) -> str | None:
        """WITH ('state.ttl' = '1 day') after a table."""
        if not words.has(at, "WITH ("):
            return None
        begin, first = words.path_before(at), words.word(at + 2)
        is_ttl = first[1:-1].lower() == "state.ttl"
        # Spark passes over options of a view, and all tables of ours are views to it.
        is_of_ours = first[:1] in ("'", '"') and self._context.is_known(unquoted(words.cut(begin, at)))
        if not is_ttl and not is_of_ours:
            return None
        close = words.close(at + 1)
        if not is_ttl or begin == at or close != at + 5 or words.word(at + 3) != "=":
            raise words.refusal(at, close + 1, "these options", "write FROM t WITH ('state.ttl' = '1 day')")
        alias, end = words.alias(close + 1)
        query = self.query_of(words, begin, at)
        name = self._kept(words, (begin, end), query, words.word(at + 4))
        return words.replaced((begin, end, f"{name} AS {alias or words.cut(at - 1, at)}"))

    def _kept(self, words: Words, place: tuple[int, int], query: str, ttl: str) -> str:
        try:
            StateTtl(ttl[1:-1])
        except StateDeclarationError as error:
            raise words.refusal(
                *place, f"the retention {ttl}: {error}", "give one such as '1 day'"
            ) from error
        said = f"line {words.line(place[0])}: {words.cut(*place)}"
        return self.add(Part("kept", query, said, ttl=ttl[1:-1]), self.schema_of(query))

    def _hint(self, words: Words, at: int) -> str | None:
        """STATE_TTL in a hint: the table that it names, and the hint without that name."""
        raw = words.word(at)
        if not raw.startswith("/*+") or "STATE_TTL" not in (inner := Words(raw[3:-2])).words:
            return None
        hint = inner.words.index("STATE_TTL")
        close = inner.close(hint + 1) if inner.word(hint + 1) == "(" else len(inner)
        pairs = list(inner.split(hint + 2, close))
        if not pairs or any(two - one != 3 or inner.word(one + 1) != "=" for one, two in pairs):
            raise words.refusal(at, at + 1, "this form of STATE_TTL", _TTL)
        (first, _), rest = pairs[0], ", ".join(inner.cut(*one) for one in pairs[1:])
        own, ttl = inner.word(first)[1:-1].lower(), inner.word(first + 2)
        left = inner.replaced((hint, close + 1, f"STATE_TTL({rest})" if rest else ""))
        found = [one for one in _relations(words, at) if unquoted(one[2].split(".")[-1]) == own]
        if len(found) != 1:
            raise words.refusal(at, at + 1, f"{len(found)} tables in this FROM have the name {own}", _TTL)
        begin, end, alias, stop = found[0]
        name = self._kept(words, (begin, end), self.query_of(words, begin, stop), ttl)
        shown = f"/*+ {left.strip(' ,')} */" if left.strip(" ,") else ""
        return words.replaced((at, at + 1, shown), (begin, end, f"{name} AS {alias.split('.')[-1]}"))


def _relations(words: Words, at: int) -> Sequence[tuple[int, int, str, int]]:
    """The tables and subqueries in FROM of the query block around a place: where each begins and ends, its name, and
    where its alias begins."""
    found, is_from = [], False
    for place in words.outside(at, len(words)):
        word = words.words[place]
        if word in ("UNION", "INTERSECT", "EXCEPT", "MINUS"):
            break
        begins = word in ("FROM", "JOIN") and words.word(place - 1) != "DISTINCT"  # IS DISTINCT FROM
        is_from = (is_from or begins) and word not in ("WHERE", "GROUP", "HAVING")
        if not (begins or (word == "," and is_from)):
            continue
        begin = place + 1
        stop = words.close(begin) + 1 if words.word(begin) == "(" else words.path(begin)
        alias, end = words.alias(stop)
        if stop > begin and words.word(end) != "(":
            found.append((begin, end, alias or words.cut(begin, stop), stop))
    return found


def _columns(words: Words, at: int, end: int, own: str, names: Mapping[str, str]) -> tuple[str, ...]:
    """The columns of the joined table ``own`` that the ON or USING at a place reads; ``names``: of all, by those in
    lower case."""
    found = dict[str, None]()
    for place in range(at + 1, end) if words.word(at) in ("ON", "USING") else ():
        of = unquoted(words.word(place - 2)) if words.word(place - 1) == "." else own
        name = names.get(unquoted(words.word(place)))
        if name is not None and of == own and words.word(place + 1) not in (".", "("):
            found[name] = None
    return tuple(found)
