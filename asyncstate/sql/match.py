"""MATCH_RECOGNIZE: a pattern of rows, taken out of the text.

Owns: ``match_table``, the text in its place; ``read_match``, its rows.
Invariant: what a measure or a condition computes of a row is a column that Spark computes; what is left are navigations
and their comparisons. A clause that the operator does not have is refused.

Source: ISO/IEC 19075-5, and Flink's MATCH_RECOGNIZE.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.types import StructField, StructType

from asyncstate import operators as ops
from asyncstate.errors import SchemaError
from asyncstate.spark.column_types import quoted
from asyncstate.sql import ir
from asyncstate.sql.build import skip_of
from asyncstate.sql.catalyst import items, sql_errors
from asyncstate.sql.expressions import id_of, ids_in, kind_of, type_of, walk
from asyncstate.sql.join_conditions import ResidualReader
from asyncstate.sql.rows import Given, Read
from asyncstate.sql_words import Words, unquoted

if TYPE_CHECKING:
    from asyncstate.sql.plans import Reader
    from asyncstate.sql.syntax import Part, Syntax

_CLAUSES: Final = (
    *("PARTITION BY", "ORDER BY", "MEASURES", "ONE ROW PER MATCH", "ALL ROWS", "AFTER MATCH", "PATTERN ("),
    *("SUBSET", "DEFINE"),
)
_AGGREGATES: Final = ("SUM", "COUNT", "MIN", "MAX", "AVG")
_TEXTS: Final = ("LISTAGG", "STRING_AGG")
_OTHERS: Final = ("NEXT", "CLASSIFIER", "MATCH_NUMBER", "MATCH_ROWTIME")
_WIDER: Final = ("tinyint", "smallint", "int", "bigint", "float", "double")


@dataclass(frozen=True)
class Value:
    """What ``function`` says of ``column``, of the rows of ``variable``; ``own``: and of the current row.
    ``separator``: of texts in one."""

    function: str
    variable: str | None = None
    column: str | None = None
    offset: int = 0
    own: bool = False
    distinct: bool = False
    separator: str | None = None


@dataclass(frozen=True)
class MatchOf:
    """The clauses. ``define``: by variable the column of its condition, or a text over columns and ``looked``;
    ``looked`` and ``measures``: with the names of their columns; ``schema``: of the columns and of both."""

    order: tuple[ir.Order, ...]
    pattern: str
    define: tuple[tuple[str, str, bool], ...]
    looked: tuple[tuple[Value, str], ...]
    measures: tuple[tuple[Value, str], ...]
    schema: StructType
    within: int | None
    after: tuple[str, ...]


@dataclass
class _Clause:
    """The reading of MEASURES or DEFINE. ``variables``: how many rows are before each at least; ``columns``: computed
    of each row, by their texts; ``values``: their names in the text; ``used``: how many there are."""

    words: Words
    time: str
    variables: Mapping[str, int]
    columns: dict[str, str]
    values: dict[Value, str] = field(default_factory=dict)
    used: int = 0

    def column(self, text: str) -> str:
        """The name of what ``text`` computes of a row."""
        return self.columns.setdefault(text, f"__column_{len(self.columns)}")

    def value(self, value: Value) -> str:
        """The text of a value."""
        self.used += 1
        return quoted(self.values.setdefault(value, f"__value_{len(self.values)}"))

    def text(self, begin: int, end: int, own: str | None = None) -> str:
        """An expression with columns in place of values; ``own``: the variable that it defines."""
        words, parts, at = self.words, list[tuple[int, int, str]](), begin
        while at < end:
            word, is_call = words.word(at), words.word(at + 1) == "("
            after = at + 1
            if word in ("FINAL", "RUNNING") and words.word(at + 2) == "(" and not (own and word == "FINAL"):
                parts.append((at, after, ""))
            elif is_call and word in ("FIRST", "LAST", "PREV", *_AGGREGATES, *_TEXTS, *_OTHERS):
                after = words.close(at + 1) + 1
                parts.append((at, after, self.value(self._called(at, after, own))))
            elif self._is_of(at):
                after = at + 3
                is_own = word == own
                shown = words.cut(at + 2, after)
                value = shown if is_own else self.value(Value("last", word, self.column(shown)))
                parts.append((at, after, value))
            at = after
        return words.within(begin, end, parts)

    def _is_of(self, at: int) -> bool:
        """Whether a column of a variable is there."""
        is_of = self.words.word(at) in self.variables and self.words.word(at + 1) == "."
        return is_of and self.words.word(at - 1) != "."

    def _called(self, at: int, end: int, own: str | None) -> Value:
        words, function = self.words, self.words.word(at).lower()
        given = list(words.split(at + 2, end - 1))
        if function in ("match_number", "match_rowtime") and own is None and not given:
            is_time = function == "match_rowtime"
            return Value("last", column=self.column(self.time)) if is_time else Value(function)
        is_distinct = words.word(at + 2) == "DISTINCT" and own is None
        if is_distinct:
            given[0] = (at + 3, given[0][1])
        places = range(*given[0]) if given else range(0)
        parts = [(n, n + 2, "") for n in places if self._is_of(n)]
        variables = {words.word(n) for n, _, _ in parts}
        inner = {words.word(n) for n in places if words.word(n + 1) == "("} | {
            words.word(n) for n in places[:1]
        }
        text = words.within(*given[0], parts).strip() if given else ""
        second = words.tokens[slice(*given[1])] if len(given) == 2 else []
        number = next((one.text for one in second if one.text.isdigit()), "")
        separator = next((one.value for one in second if one.kind in ("string", "raw")), "")
        is_aggregate, is_text = function.upper() in _AGGREGATES, function.upper() in _TEXTS
        if (
            function.upper() in _OTHERS
            or (is_text and own is not None)
            or not 1 <= len(given) <= 2
            or len(second) > 1
            or (second and (is_aggregate or not (is_text or number)))
            or (second and is_text and second[0].kind not in ("string", "raw"))
            or len(variables) > 1
            or inner & {"DISTINCT", "FIRST", "LAST", "PREV", *_AGGREGATES, *_TEXTS, *_OTHERS}
            or (function == "prev" and own is None)
            or (is_distinct and not (is_aggregate or is_text))
            or not text
            or (text == "*" and (function != "count" or is_distinct))
            or words.word(end) in ("FILTER", "OVER", "WITHIN")
        ):
            raise words.refusal(
                *(at, end, "this value of a match"),
                "use FIRST, LAST and SUM, COUNT, MIN, MAX, AVG of one variable; in DEFINE also PREV, in MEASURES also "
                "LISTAGG with a literal, and DISTINCT",
            )
        variable = next(iter(variables), None)
        column = None if text == "*" else self.column(text)
        if is_text:
            return Value("string_agg", variable, column, distinct=is_distinct, separator=separator)
        offset = int(number) if number else int(function == "prev")
        of = variable or own or ""
        if function == "prev" and self.variables[of] < offset:
            raise words.refusal(
                at, end, "a row before the match", f"let the pattern have {offset} rows before {of}"
            )
        is_own = own is not None and variable in (None, own)
        is_distinct = is_distinct and function not in ("min", "max")  # which are the same then
        return Value(function, variable, column, offset, is_own, is_distinct)


def match_table(syntax: Syntax, words: Words, at: int) -> str | None:
    """The text with a table in place of the MATCH_RECOGNIZE at a place; None if there is none."""
    from asyncstate.sql.syntax import Part

    if not words.has(at, "MATCH_RECOGNIZE ("):
        return None
    begin, close = words.relation_before(at), words.close(at + 1)
    if words.word(begin - 1) not in ("FROM", "JOIN", ",") or begin == at:
        raise words.refusal(
            begin, at + 1, "MATCH_RECOGNIZE of no table", "write FROM t MATCH_RECOGNIZE (...) AS m"
        )
    clauses = _clauses(words, at + 2, close)
    key = [unquoted(words.cut(*one)) for one in words.split(*clauses["PARTITION BY"])]
    order = [_order(words, *one) for one in words.split(*clauses["ORDER BY"])]
    start, stop = clauses["PATTERN ("]
    end, after = words.close(start - 1), tuple(words.words[slice(*clauses["AFTER MATCH"])])
    pattern, within = " ".join(words.words[start:end]), None
    if words.word(end + 1) == "WITHIN":
        within = syntax.length(words, end + 2, stop)
    elif end + 1 < stop:
        raise words.refusal(
            end + 1, stop, "this after PATTERN", "write WITHIN INTERVAL ... there, or nothing"
        )
    depths: dict[str, int] = {}
    try:
        _depth(ops.Match(pattern, within=within, after_match=skip_of(after)).pattern, 0, depths)
    except SchemaError as error:
        raise words.refusal(start - 2, stop, str(error), "write what the operator Match has") from error
    shown = _Clause(words, quoted(order[0].column), depths, {})
    define = _Clause(words, shown.time, depths, shown.columns)
    results = [
        (shown.text(one, two - 2), words.cut(two - 1, two), words.word(two - 2))
        for one, two in words.split(*clauses["MEASURES"])
    ]
    conditions = [_condition(define, *one) for one in words.split(*clauses["DEFINE"])]
    extra = "".join(f", ({text}) AS {name}" for text, name in shown.columns.items())
    given = syntax.query_of(words, begin, at)
    lines = given[: len(given) - len(given.lstrip())]
    query = f"{lines}SELECT *{extra} FROM ({given.lstrip()})"
    schema = syntax.schema_of(query)
    named = {one.name.lower(): one for one in schema}
    wrong = [one for one in (*key, *(column.column for column in order)) if one not in named]
    defined = [variable for variable, _, _ in conditions]
    wrong += [f"{one} twice in DEFINE" for one in dict.fromkeys(defined) if defined.count(one) > 1]
    if wrong or order[0].descending or any(word != "AS" or not name for _, name, word in results):
        raise words.refusal(
            *(at, close + 1, f"{', '.join(wrong) or 'a clause'} in MATCH_RECOGNIZE"),
            "give PARTITION BY k, ORDER BY time, MEASURES value AS name and one condition of each variable, over "
            "columns of the table",
        )
    for one in shown.values:
        if one.separator is not None and named[one.column or ""].dataType.typeName() != "string":
            raise words.refusal(
                at,
                close + 1,
                "LISTAGG of values that are no texts",
                "write LISTAGG(CAST(A.x AS STRING), ',')",
            )
    types = [_types(syntax, schema, one.values) for one in (shown, define)]
    match = MatchOf(
        tuple(replace(one, column=named[one.column].name) for one in order[1:]),
        pattern,
        tuple(conditions),
        tuple(define.values.items()),
        tuple(shown.values.items()),
        StructType([*schema, *types[1]]),
        within,
        after,
    )
    own, place = [named[one] for one in key], f"line {words.line(at)}: MATCH_RECOGNIZE"
    time = named[order[0].column].name
    part = Part("match", query, place, time=time, key=tuple(one.name for one in own), match=match)
    texts = [*(quoted(one.name) for one in own), *(f"{text} AS {name}" for text, name, _ in results)]
    name = syntax.add(part, StructType([*own, *types[0]]))
    return words.replaced((begin, close + 1, f"(SELECT {', '.join(texts)} FROM {name})"))


def _clauses(words: Words, begin: int, end: int) -> dict[str, tuple[int, int]]:
    """Where each clause begins and ends, after its own words."""
    found = [
        (place, one)
        for place in words.outside(begin, end)
        for one in _CLAUSES
        if words.word(place - 1) != "." and words.has(place, one)
    ]
    stops = [place for place, _ in found[1:]] + [end]
    ranges = {one: (place + len(one.split()), stop) for (place, one), stop in zip(found, stops, strict=True)}
    first, after = ranges.get("ONE ROW PER MATCH", (0, 0))
    if first < after:
        raise words.refusal(
            first, after, "this after ONE ROW PER MATCH", "write AFTER MATCH SKIP ... there, or nothing"
        )
    lacks = [one for one in ("ORDER BY", "MEASURES", "PATTERN (") if not range(*ranges.get(one, (0, 0)))]
    refused = [one for one in ("ALL ROWS", "SUBSET") if one in ranges]
    if lacks or refused or len(ranges) < len(found) or (found and found[0][0] != begin):
        what = (
            f"MATCH_RECOGNIZE with {refused[0]}" if refused else f"MATCH_RECOGNIZE without {', '.join(lacks)}"
        )
        raise words.refusal(
            *(begin, end, what),
            "give PARTITION BY, ORDER BY, MEASURES, ONE ROW PER MATCH, AFTER MATCH SKIP, PATTERN and DEFINE, once each",
        )
    return {**dict.fromkeys(_CLAUSES, (0, 0)), **ranges}


def _order(words: Words, begin: int, end: int) -> ir.Order:
    after, direction, nulls = words.ordered(begin, end)
    if after != begin + 1 or not words.is_name(begin):
        raise words.refusal(begin, end, "this order", "name columns of the table")
    descending = direction == "DESC"
    first = nulls == "FIRST" if nulls else not descending
    return ir.Order(unquoted(words.cut(begin, after)), descending, first)


def _condition(define: _Clause, begin: int, end: int) -> tuple[str, str, bool]:
    words, before = define.words, define.used
    variable = words.word(begin)
    if variable not in define.variables or words.word(begin + 1) != "AS":
        raise words.refusal(begin, end, "DEFINE of no variable of the pattern", "write VARIABLE AS condition")
    text = define.text(begin + 2, end, variable)
    if define.used == before:
        return variable, define.column(text), False
    return variable, text, True


def _depth(pattern: Any, before: int, found: dict[str, int]) -> int:
    """The least number of rows of a pattern; ``found`` gets for each variable how many are before it at least."""
    kind = type(pattern).__name__
    if kind == "Variable":
        found[pattern.name] = min(found.get(pattern.name, before), before)
        return 1
    if kind == "Quantified":
        return int(pattern.least) * _depth(pattern.part, before, found)
    if kind == "Alternation":
        return min(_depth(one, before, found) for one in pattern.parts)
    total = 0
    for one in pattern.parts:
        total += _depth(one, before + total, found)
    return total


def _types(syntax: Syntax, schema: StructType, values: Mapping[Value, str]) -> list[StructField]:
    """The columns in place of values."""
    texts = []
    for one, name in values.items():
        text = f"any_value({quoted(str(one.column))})"
        if one.function in ("count", "match_number"):
            text = "CAST(1 AS BIGINT)"
        elif one.function in ("sum", "avg", "min", "max"):
            text = f"{one.function}({quoted(str(one.column))})"
        texts.append(f"{text} AS {quoted(name)}")
    with sql_errors():
        found = syntax.catalyst.no_rows(schema).selectExpr("count(*) AS __rows", *texts).schema
    return [StructField(one.name, one.dataType) for one in found if one.name != "__rows"]


def read_match(
    reader: Reader, node: ir.Node, own: dict[str, str], part: Part, types: Mapping[str, str]
) -> ir.Node:
    """The operator over the rows of the part's query, and in ``own`` the names of its columns; ``types``: of them."""
    match, calls = part.match, dict[str, ir.Call]()
    assert match is not None
    assert part.time is not None
    rows, conditions = _looking(reader, match, node, own)
    trees = iter(conditions)
    define = tuple(
        (variable, looks, next(trees) if looks else own[text]) for variable, text, looks in match.define
    )
    for value, name in match.measures:
        column = () if value.column is None else (own[value.column],)
        literal = value.offset if value.separator is None else value.separator
        made = reader.fresh("measure")
        calls[name] = ir.Call(made, value.function, column, value.distinct, value.variable, (literal,))
    key = tuple(own[name] for name in part.key)
    columns = [ir.Column(name, rows.type_of(name)) for name in key]
    columns += [ir.Column(one.name, types[name]) for name, one in calls.items()]
    found = ir.Match(
        inputs=(rows,),
        columns=tuple(columns),
        key=key,
        time=own[part.time],
        order=tuple(replace(one, column=own[one.column]) for one in match.order),
        pattern=match.pattern,
        define=define,
        calls=tuple(calls.values()),
        within=match.within,
        after=match.after,
        sql=part.place,
    )
    own |= {name: one.name for name, one in calls.items()}
    return found


def columns_read(match: MatchOf) -> set[str]:
    """The columns of the query that the clauses read."""
    texts = [text for _, text, looks in match.define if looks]
    words = {unquoted(word) for text in texts for word in Words(text).words}
    found = {one.name for one in match.schema if one.name.lower() in words}
    found |= {value.column for value, _ in (*match.looked, *match.measures) if value.column is not None}
    return (
        found | {one.column for one in match.order} | {text for _, text, looks in match.define if not looks}
    )


def _looking(reader: Reader, match: MatchOf, node: ir.Node, own: dict[str, str]) -> tuple[ir.Node, list[Any]]:
    """The rows with what the conditions that look back need, and these conditions, as nested tuples."""
    texts = [f"({text}) AS c{n}" for n, (_, text, looks) in enumerate(match.define) if looks]
    if not texts:
        return node, []
    catalyst = reader.catalyst
    with sql_errors():
        made = catalyst.no_rows(match.schema).selectExpr(*texts)
    plan = catalyst.optimized(made._jdf.queryExecution().analyzed())
    found = [one.child() if kind_of(one) == "Alias" else one for one in items(plan.projectList())]
    values = {name: value for value, name in match.looked}
    read = [part for e in found for part in walk(e) if kind_of(part) == "AttributeReference"]
    names = {id_of(one): own[str(one.name())] for one in read if str(one.name()) not in values}
    given = Given(reader, Read(node, names))
    looking = _Looking([given], [set(names)])
    looking.values, looking.own = values, own
    conditions = [looking.read([e]) for e in found]
    return given.node(), conditions


class _Looking(ResidualReader):
    """Conditions over columns of the current row and ``values``; ``own``: the names of columns."""

    values: Mapping[str, Value]
    own: Mapping[str, str]
    refused = "reads more than the current row", "compare it, or compute it of one row: PREV(a * 2)"

    def _condition(self, e: Any) -> Any:
        kind, type_ = kind_of(e), type_of(e)
        if kind == "AttributeReference" and str(e.name()) in self.values:
            one = self.values[str(e.name())]
            column = None if one.column is None else self.own[one.column]
            return "of", one.function, one.variable, column, one.offset, one.own
        if kind == "Literal" and type_ in ("int", "bigint", "double", "boolean", "string"):
            return "literal", str(e.toString()) if type_ == "string" else e.value()
        if kind == "Cast" and not ids_in(e) <= self._outputs[0]:
            was = type_of(e.child())
            if was in _WIDER and type_ in _WIDER[_WIDER.index(was) :] and type_ != "float":
                return "cast", self._condition(e.child()), type_
        return super()._condition(e)
