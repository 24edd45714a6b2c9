"""Reads GROUP BY: keys, aggregate functions, windows of time.

Owns: ``AggregateReader``; ``aggregate_call``, which declares one function.
Invariant: an aggregate that no operator keeps right is refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from asyncstate.spark.column_types import quoted
from asyncstate.sql import ir
from asyncstate.sql.catalyst import items, option
from asyncstate.sql.expressions import (
    children,
    conjuncts,
    from_leaves,
    id_of,
    ids_in,
    is_only_valid,
    kind_of,
    leaves,
    refusal,
    type_of,
    walk,
)

if TYPE_CHECKING:
    from asyncstate.sql.plans import Needed, Read, Reader

_PLAIN: Final = {
    "Sum": "sum",
    "Average": "avg",
    "Min": "min",
    "Max": "max",
    "StddevSamp": "stddev_samp",
    "StddevPop": "stddev_pop",
    "VarianceSamp": "var_samp",
    "VariancePop": "var_pop",
    "First": "first_value",
    "Last": "last_value",
    "AnyValue": "first_value",
    "HyperLogLogPlusPlus": "approx_count_distinct",
    "BitAndAgg": "bit_and",
    "BitOrAgg": "bit_or",
    "BitXorAgg": "bit_xor",
    "Mode": "mode",
    "Skewness": "skewness",
    "Kurtosis": "kurtosis",
}
_OF_TWO: Final = {
    "MaxBy": "max_by",
    "MinBy": "min_by",
    "Corr": "corr",
    "CovPopulation": "covar_pop",
    "CovSample": "covar_samp",
}
_PERCENTILES: Final = {"Percentile": "percentile", "PercentileDisc": "percentile_disc"}
_SAME_DISTINCT: Final = {"Min", "Max", "CollectSet", "HyperLogLogPlusPlus"}
_MARKS: Final = ("spark.timeWindow", "spark.sessionWindow")
_LENGTH: Final = re.compile(r"\+ (\d+)\), LongType")


class Calls:
    """The functions of one node: their arguments are columns ``added`` to its input."""

    def __init__(self, reader: Reader, child: Read, replaced: dict[int, str]) -> None:
        self.reader, self._child, self._replaced = reader, child, replaced
        self.added: dict[str, tuple[str, str]] = {}
        self.calls: list[ir.Call] = []
        self.results: list[ir.Column] = []
        self._columns: dict[str, str] = {}
        self._known: dict[tuple[Any, ...], str] = {}

    def column(self, expression: Any) -> str:
        """The column of an argument."""
        if kind_of(expression) == "AttributeReference":
            return self._child.names[id_of(expression)]
        text = self.reader.text(expression, self._child.names, self._replaced)
        return self.computed(text, type_of(expression))

    def computed(self, text: str, kind: str) -> str:
        """The column of a text."""
        if text not in self._columns:
            self._columns[text] = self.reader.fresh("argument")
            self.added[self._columns[text]] = text, kind
        return self._columns[text]

    def call(
        self,
        function: str,
        kind: str,
        *columns: str,
        distinct: bool = False,
        where: str | None = None,
        numbers: tuple[Any, ...] = (),
    ) -> str:
        """The text of the result of a function, which is of type ``kind``."""
        spec = function, columns, distinct, where, numbers
        if spec not in self._known:
            self._known[spec] = self.reader.fresh("result")
            self.results.append(ir.Column(self._known[spec], kind))
            self.calls.append(ir.Call(self._known[spec], function, columns, distinct, where, numbers))
        return quoted(self._known[spec])

    def aggregate(self, e: Any) -> str:
        """Declare an AggregateExpression; returns the text of its value."""
        function, distinct = e.aggregateFunction(), bool(e.isDistinct())
        kind, parts, condition = kind_of(function), children(function), option(e.filter())
        where = None
        if condition is not None:
            text = self.reader.text(condition, self._child.names, self._replaced)
            where = self.computed(f"coalesce({text}, false)", "boolean")
        if kind == "Count":
            return self._count(parts, distinct, where)
        if kind in _SAME_DISTINCT:
            distinct = False
        if kind in _PLAIN:
            return self.call(_PLAIN[kind], type_of(e), self.column(parts[0]), distinct=distinct, where=where)
        if kind in ("CollectList", "CollectSet"):
            found = self.call(
                "collect",
                type_of(e),
                self.column(parts[0]),
                distinct=distinct or kind == "CollectSet",
                where=where,
            )
            return f"coalesce({found}, array())"
        if kind in _OF_TWO:
            columns = [self.column(one) for one in parts[:2]]
            return self.call(_OF_TWO[kind], type_of(e), *columns, distinct=distinct, where=where)
        if kind in _PERCENTILES and kind_of(parts[1]) == "Literal" and type_of(parts[1]) == "double":
            is_plain = kind == "PercentileDisc" or parts[2].toString() == "1"
            if is_plain and not function.reverse():
                fraction = (float(parts[1].toString()),)
                return self.call(
                    _PERCENTILES[kind],
                    type_of(e),
                    self.column(parts[0]),
                    where=where,
                    distinct=distinct,
                    numbers=fraction,
                )
        if kind == "PivotFirst":
            return self._pivoted(function)
        raise refusal(
            f"{function.prettyName()}() in this form has no operator that takes rows back",
            "use another aggregate, or a UDAF of the graph",
            e,
        )

    def _count(self, parts: list[Any], distinct: bool, where: str | None) -> str:
        nullable = [one for one in parts if one.nullable() or distinct]
        columns = [self.column(one) for one in nullable]
        return self.call("count", "bigint", *dict.fromkeys(columns), distinct=distinct, where=where)

    def _pivoted(self, function: Any) -> str:
        """The second step of a PIVOT: the one value of each column that it makes."""
        expressions = self.reader.catalyst.jvm.org.apache.spark.sql.catalyst.expressions
        column, value = function.pivotColumn(), function.valueColumn()
        name = self.column(value)
        found = []
        for one in items(function.pivotColumnValues()):
            literal = expressions.Literal.create(one, column.dataType())
            text = self.reader.text(column, self._child.names, self._replaced)
            where = self.computed(f"{text} <=> {self.reader.text(literal, {})}", "boolean")
            found.append(self.call("first_value", type_of(value), name, where=where))
        return f"array({', '.join(found)})"


class AggregateReader:
    """Reads one Aggregate. ``final``: whether windows over a column of a node close."""

    def __init__(
        self, reader: Reader, plan: Any, needed: Needed, final: Callable[[ir.Node, str], bool]
    ) -> None:
        self._reader, self._plan, self._final = reader, plan, final
        self._grouping = items(plan.groupingExpressions())
        results = items(plan.aggregateExpressions())
        self._results = [one for one in results if needed is None or id_of(one) in needed]

    def read(self) -> Read:
        """The aggregate, its arguments before it and its results after it."""
        from asyncstate.sql.plans import Read

        aggregates = {
            int(one.resultId().id()): one
            for result in self._results
            for one in walk(result)
            if kind_of(one) == "AggregateExpression"
        }
        windowed = self._window()
        if windowed is None:
            below = set().union(*map(ids_in, [*self._grouping, *self._results]))
            child, grouping = self._reader.plan(self._plan.child(), below), self._grouping
        else:
            child, grouping = (
                windowed.rows,
                [one for one in self._grouping if id_of(one) != windowed.attribute],
            )
        child, replaced = self._reader._subqueries(child, [*grouping, *aggregates.values()])
        calls = Calls(self._reader, child, replaced)
        keys, texts = self._keys(grouping, child, replaced, calls.added)
        texts |= {own: calls.aggregate(one) for own, one in aggregates.items()}
        if not keys and not calls.calls:  # one row, of which nothing is read
            calls.call("count", "bigint")
        names = [
            *keys,
            *(one for call in calls.calls for one in (*call.columns, *([call.where] if call.where else []))),
        ]
        names += [windowed.time] if windowed is not None else []
        given = self._reader.project(child, calls.added)
        given = self._reader.only(given, list(dict.fromkeys(names)) or list(given.names)[:1])
        columns = [ir.Column(name, given.type_of(name)) for name in keys]
        if windowed is None:
            columns += calls.results
            node: ir.Node = ir.Aggregate(
                inputs=(given,), columns=tuple(columns), keys=tuple(keys), calls=tuple(calls.calls)
            )
        else:
            columns += [ir.Column(name, "timestamp") for name in ("window_start", "window_end")]
            columns += calls.results
            texts[windowed.attribute] = "named_struct('start', `window_start`, 'end', `window_end`)"
            node = ir.WindowAggregate(
                inputs=(given,),
                columns=tuple(columns),
                keys=tuple(keys),
                calls=tuple(calls.calls),
                time=windowed.time,
                window=windowed.window,
            )
        found = self._reader.projected(Read(node, {}), self._results, texts)
        return found

    def _keys(
        self, grouping: list[Any], child: Read, replaced: dict[int, str], added: dict[str, tuple[str, str]]
    ) -> tuple[list[str], dict[int, str]]:
        """The key columns, and the texts of the grouping expressions after the aggregation, by id. A struct, which is
        no key, becomes its leaves."""
        keys, texts = [], {}
        for one in grouping:
            if kind_of(one) == "Literal":
                column = self._reader.fresh("key")
                added[column] = self._reader.text(one, {}), type_of(one)
                keys.append(column)
                continue
            if kind_of(one) != "AttributeReference":
                raise refusal(
                    "a grouping expression that is not a column", "group by a column of a subquery", one
                )
            name = child.names[id_of(one)]
            if not type_of(one).startswith("struct<"):
                keys.append(name)
                texts[id_of(one)] = quoted(name)
                continue
            columns = []
            for text, kind in leaves(quoted(name), one.dataType(), bool(one.nullable())):
                columns.append(self._reader.fresh("key"))
                added[columns[-1]] = text, "boolean" if kind is None else str(kind.catalogString())
            keys += columns
            texts[id_of(one)] = from_leaves(iter(columns), one.dataType(), bool(one.nullable()))
        return list(dict.fromkeys(keys)), texts

    def _window(self) -> _Windowed | None:
        """The window of event time that closes among the grouping expressions; None: windows are values like others."""
        reader = self._reader
        for one in self._grouping:
            marks = [
                mark
                for mark in _MARKS
                if kind_of(one) == "AttributeReference" and one.metadata().contains(mark)
            ]
            if not marks or not type_of(one).startswith("struct<"):
                continue
            found = _definition(self._plan.child(), id_of(one))
            is_session = marks[0] == _MARKS[1]
            if found is not None:
                made, times = found, items(found.references().toSeq())
                if len(times) != 1:
                    raise refusal(
                        "a window of several columns of time",
                        "compute the time in a subquery first",
                        self._plan,
                    )
                below = set().union(*map(ids_in, [*self._grouping, *self._results]))
                with reader.raw_times({id_of(one): times[0]}, self._plan.child()):
                    child = reader.plan(self._plan.child(), below)
                time = child.names[id_of(one)]
                if self._final(child.node, time):
                    return _Windowed(child, time, _lengths(str(made.toString()), self._plan), id_of(one))
            if is_session:
                raise refusal(
                    "session_window over rows without a watermark",
                    "declare event_time= and watermark_delay= at the source, and group its rows directly",
                    self._plan,
                )
        return None


class _Windowed(NamedTuple):
    rows: Read
    time: str
    window: tuple[str | int, ...]
    attribute: int


def _definition(plan: Any, own: int) -> Any:
    """The expression that makes column ``own``, a window; None if something between reads it in another way."""
    kind = kind_of(plan)
    if kind == "Filter":
        others = [one for one in conjuncts(plan.condition()) if not is_only_valid(one, {own})]
        return None if any(own in ids_in(one) for one in others) else _definition(plan.child(), own)
    if kind == "Project":
        found = None
        for one in items(plan.projectList()):
            if id_of(one) == own:
                found = one
            elif own in ids_in(one):
                return None
        if found is None:
            return None
        bare = found.child() if kind_of(found) == "Alias" else found
        if kind_of(bare) == "AttributeReference":
            return _definition(plan.child(), id_of(bare))
        return bare if "precisetimestampconversion" in bare.toString() else None
    if kind == "Expand":
        at = [id_of(one) for one in items(plan.output())].index(own)
        made = items(items(plan.projections())[0])[at]
        return made if "precisetimestampconversion" in made.toString() else None
    return None


def _lengths(text: str, plan: Any) -> tuple[str | int, ...]:
    """The window that Spark's expression is: (kind, lengths in microseconds ...)."""
    if "%" not in text:
        gap = re.search(r"\+ ([^,]*), TimestampType", text)
        if gap is None or not re.fullmatch(r"[\d.]+ \w+( [\d.]+ \w+)*", gap[1]):
            raise refusal(
                "session_window with a gap that is not constant", "give a string such as '10 minutes'", plan
            )
        return "session", gap[1]
    step = re.search(r"% (\d+)\)", text)
    sizes, offset = _LENGTH.findall(text), re.search(r"LongType\) - (-?\d+)\)", text)
    assert step is not None
    assert offset is not None
    size, slide, start = int(sizes[-1]), int(step[1]), int(offset[1])
    return ("tumble", size, start) if size == slide else ("hop", size, slide, start)
