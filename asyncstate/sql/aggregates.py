"""Reads GROUP BY: keys, aggregate functions, windows of time.

Owns: ``read_aggregate``; ``Calls``, the functions of a node.
Invariant: an aggregate that no operator keeps right is refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from asyncstate.errors import SqlError
from asyncstate.spark.column_types import quoted
from asyncstate.sql import ir
from asyncstate.sql.catalyst import items, option
from asyncstate.sql.expressions import (
    NESTED,
    children,
    conjuncts,
    from_leaves,
    id_of,
    ids_in,
    is_only_valid,
    kind_of,
    leaves,
    literal_of,
    refusal,
    type_of,
    walk,
)
from asyncstate.sql.rows import Given, Needed, Read

if TYPE_CHECKING:
    from asyncstate.sql.plans import Reader

_FUNCTIONS: Final = {
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
    "CollectList": "collect",
    "CollectSet": "collect",
    "MaxBy": "max_by",
    "MinBy": "min_by",
    "Corr": "corr",
    "CovPopulation": "covar_pop",
    "CovSample": "covar_samp",
}
_AT_FRACTIONS: Final = {
    "Percentile": "percentile",
    "PercentileDisc": "percentile_disc",
    "ApproximatePercentile": "percentile_disc",  # which is within any accuracy
}
_SAME_DISTINCT: Final = {"Min", "Max", "HyperLogLogPlusPlus"}
_KEEPS_NULLS: Final = '"ignoreNulls":false'
_MARKS: Final = ("spark.timeWindow", "spark.sessionWindow")
_LENGTH: Final = re.compile(r"\+ (\d+)\), LongType")


class Calls:
    """The functions of one node over ``given`` rows, which get their arguments as columns."""

    def __init__(self, given: Given) -> None:
        self.given = given
        self.calls: list[ir.Call] = []
        self.results: list[ir.Column] = []
        self._known: dict[ir.Call, str] = {}

    def call(self, kind: str, call: ir.Call) -> str:
        """The text of the result of a function, which is of type ``kind`` and gets a name here."""
        if call not in self._known:
            self._known[call] = name = self.given.reader.fresh("result")
            self.results.append(ir.Column(name, kind))
            self.calls.append(replace(call, name=name))
        return quoted(self._known[call])

    def aggregate(self, e: Any) -> str:
        """Declare an AggregateExpression; returns the text of its value."""
        function, distinct = e.aggregateFunction(), bool(e.isDistinct())
        kind, parts, condition = kind_of(function), children(function), option(e.filter())
        nested = [type_of(one) for one in parts if type_of(one).startswith(NESTED)]
        if nested and (distinct or kind == "CollectSet"):
            raise refusal(f"DISTINCT values of type {nested[0]}", "take to_json(...) of them", e)
        where = None
        if condition is not None:
            where = self.given.shared(f"coalesce({self.given.text(condition)}, false)", "boolean")
        if kind == "PivotFirst":
            return self._pivoted(function)
        if kind == "Count":
            counted = [self.given.argument(one) for one in parts if one.nullable() or distinct]
            return self.call("bigint", ir.Call("", "count", tuple(dict.fromkeys(counted)), distinct, where))
        if kind == "ListAgg":
            return self._text_of_all(e, distinct, where)
        if kind in _AT_FRACTIONS:
            return self._at_fractions(e, distinct, where)
        if kind not in _FUNCTIONS:
            raise _without_operator(e)
        if kind in ("CollectList", "CollectSet") and _KEEPS_NULLS in str(function.toJSON()):
            raise refusal("RESPECT NULLS of collected values", "collect struct(x), whose x may be null", e)
        columns = tuple(map(self.given.argument, parts))
        distinct = kind == "CollectSet" or (distinct and kind not in _SAME_DISTINCT)
        own = _FUNCTIONS[kind]
        if kind == "Mode" and option(function.reverseOpt()) is False:  # WITHIN GROUP (ORDER BY ... DESC)
            own += "_descending"
        found = self.call(type_of(e), ir.Call("", own, columns, distinct, where))
        return f"coalesce({found}, array())" if own == "collect" else found

    def _at_fractions(self, e: Any, distinct: bool, where: str | None) -> str:
        """A percentile, or an array of some."""
        function = e.aggregateFunction()
        kind, parts = kind_of(function), children(function)
        own, result, several = _AT_FRACTIONS[kind], type_of(e), type_of(parts[1]).startswith("array<")
        if kind != "ApproximatePercentile" and function.reverse():
            own += "_descending"
        if several:
            fractions = [float(one) for one in parts[1].value().toDoubleArray()]
            result = result.removeprefix("array<").removesuffix(">")
        else:
            fractions = [float(parts[1].toString())]
        if not fractions or (kind == "Percentile" and parts[2].toString() != "1"):  # with frequencies
            raise _without_operator(e)
        column = self.given.argument(parts[0])
        found = [self.call(result, ir.Call("", own, (column,), distinct, where, (one,))) for one in fractions]
        return f"IF({found[0]} IS NULL, NULL, array({', '.join(found)}))" if several else found[0]

    def _text_of_all(self, e: Any, distinct: bool, where: str | None) -> str:
        """LISTAGG. Bytes are kept as hexadecimal text, which has their order."""
        function, given = e.aggregateFunction(), self.given
        value, delimiter = function.child(), function.delimiter()
        text, separator = given.text(value), delimiter.value()
        if type_of(value) == "binary":
            form, back = "hex({})", "unhex({})"
            column = given.shared(form.format(text), "string")
            separator = "" if separator is None else bytes(separator).hex().upper()
        else:
            form = back = "{}"
            column = given.argument(value)
            separator = "" if separator is None else str(delimiter.toString())
        specs = items(function.orderExpressions())
        order = given.order(specs, lambda one: column if given.text(one) == text else given.argument(one))
        if not distinct or not order or order[0].column == column:
            call = ir.Call("", "string_agg", (column,), distinct, where, (separator,), order)
            return back.format(self.call("string", call))
        # Spark lets what is cast be the order of distinct values only if equal texts are of equal values.
        kept, kind = order[0].column, type_of(specs[0].child())
        call = ir.Call("", "collect", (kept,), True, where, order=order)
        values = self.call(f"array<{kind}>", call)
        one = form.format(f"CAST(x AS {type_of(value)})")
        return back.format(f"array_join(transform({values}, x -> {one}), {literal_of(separator)})")

    def _pivoted(self, function: Any) -> str:
        """The second step of a PIVOT: the one value of each column that it makes."""
        expressions = self.given.reader.catalyst.expression_classes
        column, value = function.pivotColumn(), function.valueColumn()
        name = self.given.argument(value)
        found = []
        for one in items(function.pivotColumnValues()):
            literal = expressions.Literal.create(one, column.dataType())
            text = f"{self.given.text(column)} <=> {self.given.reader.text(literal, {})}"
            where = self.given.shared(text, "boolean")
            found.append(self.call(type_of(value), ir.Call("", "first_value", (name,), where=where)))
        return f"array({', '.join(found)})"


def _without_operator(e: Any) -> SqlError:
    return refusal(
        f"{e.aggregateFunction().prettyName()}() in this form has no operator that retracts rows",
        "use another aggregate, or a UDAF of the graph",
        e,
    )


def read_aggregate(reader: Reader, plan: Any, needed: Needed) -> Read:
    """One Aggregate: its arguments before it and its results after it."""
    grouping = items(plan.groupingExpressions())
    results = [one for one in items(plan.aggregateExpressions()) if needed is None or id_of(one) in needed]
    aggregates = {
        int(one.resultId().id()): one
        for result in results
        for one in walk(result)
        if kind_of(one) == "AggregateExpression"
    }
    below = set().union(*map(ids_in, [*grouping, *results]))
    parts = (part for one in aggregates.values() for part in walk(one))
    is_changed = any(kind_of(part) == "ScalarSubquery" for part in parts)  # rows that close no window
    counted = set().union(*map(ids_in, aggregates.values()))  # a window there is a value
    others = [one for one in grouping if not ids_in(one) <= counted]
    windowed = None if is_changed else _window(reader, plan, others, below)
    if windowed is None:
        child = reader.plan(plan.child(), below)
    else:
        child, grouping = windowed.rows, [one for one in grouping if id_of(one) != windowed.attribute]
    given = reader.given(child, [*grouping, *aggregates.values()])
    calls = Calls(given)
    keys, texts = _keys(given, grouping)
    texts |= {own: calls.aggregate(one) for own, one in aggregates.items()}
    if not keys and not calls.calls:  # one row, of which nothing is read
        calls.call("bigint", ir.Call("", "count"))
    read = [name for call in calls.calls for name in call.reads]
    names = [*keys, *read, *([] if windowed is None else [windowed.time])]
    rows = Read(given.node(), {})
    rows = rows.only(list(dict.fromkeys(names)) or rows.node.names[:1])
    columns = [ir.Column(name, rows.node.type_of(name)) for name in keys]
    if windowed is not None:
        kind = rows.node.type_of(windowed.time)
        columns += [ir.Column(name, kind) for name in ir.WINDOW_COLUMNS[:2]]
        texts[windowed.attribute] = "named_struct('start', `window_start`, 'end', `window_end`)"
    common: dict[str, Any] = {
        "inputs": (rows.node,),
        "columns": (*columns, *calls.results),
        "keys": tuple(keys),
        "calls": tuple(calls.calls),
    }
    node: ir.Node = (
        ir.Aggregate(**common)
        if windowed is None
        else ir.WindowAggregate(**common, time=windowed.time, window=windowed.window)
    )
    joined, replaced = reader.subqueries(
        Read(node, {}), [one for result in results for one in _subqueries_of_results(result)]
    )
    return reader.projected(joined, results, texts | replaced)


def _subqueries_of_results(e: Any) -> list[Any]:
    """The scalar subqueries outside of aggregates."""
    if kind_of(e) == "AggregateExpression":
        return []
    own = [e] if kind_of(e) == "ScalarSubquery" else []
    return own + [found for one in children(e) for found in _subqueries_of_results(one)]


def _keys(given: Given, grouping: Sequence[Any]) -> tuple[list[str], dict[int, str]]:
    """The key columns, and the texts of the grouping expressions after the aggregation, by id. A struct, which is no
    key, becomes its leaves."""
    keys, texts = list[str](), dict[int, str]()
    for one in grouping:
        if kind_of(one) == "Literal":  # one group, whatever the constant is; a nested one can be no key
            nested = type_of(one).startswith(NESTED)
            text, kind = ("true", "boolean") if nested else (given.reader.text(one, {}), type_of(one))
            keys.append(given.computed("key", text, kind))
            continue
        name = given.read.names[id_of(one)]
        if not type_of(one).startswith("struct<"):
            keys.append(name)
            texts[id_of(one)] = quoted(name)
            continue
        parts = leaves(quoted(name), one.dataType(), bool(one.nullable()))
        columns = [given.computed("key", text, kind) for text, kind, _ in parts]
        keys += columns
        texts[id_of(one)] = from_leaves(iter(columns), one.dataType(), bool(one.nullable()))
    return list(dict.fromkeys(keys)), texts


def _window(reader: Reader, plan: Any, grouping: Sequence[Any], below: set[int]) -> _Windowed | None:
    """The window of event time that closes among the grouping expressions; None: windows are values like others."""
    for one in grouping:
        if kind_of(one) != "AttributeReference" or not type_of(one).startswith("struct<"):
            continue
        marks = [mark for mark in _MARKS if one.metadata().contains(mark)]
        windows = list[int]()
        found = _definition(plan.child(), id_of(one), windows) if marks else None
        if found is not None:
            with reader.raw_times(windows, found[1]):
                child = reader.plan(plan.child(), below)
            time = child.names[id_of(one)]
            if reader.is_final(child.node, time):
                return _Windowed(child, time, _lengths(reader, str(found[0].toString()), plan), id_of(one))
        if marks[:1] == [_MARKS[1]]:
            raise refusal(
                "session_window over rows without a watermark",
                "declare event_time= and watermark_delay= at the source, and group its rows directly",
                plan,
            )
    return None


class _Windowed(NamedTuple):
    rows: Read
    time: str
    window: tuple[str | int, ...]
    attribute: int


def _definition(plan: Any, own: int, windows: list[int]) -> tuple[Any, Any] | None:
    """The expression that makes column ``own``, a window, and the column of its time; None if that is computed, or if
    something between reads the window in another way. ``windows`` gets the ids of all columns that are it."""
    kind = kind_of(plan)
    windows.append(own)
    if kind == "Filter":
        others = [one for one in conjuncts(plan.condition()) if not is_only_valid(one, {own})]
        is_read = any(own in ids_in(one) for one in others)
        return None if is_read else _definition(plan.child(), own, windows)
    if kind == "Project":
        if any(own in ids_in(one) for one in items(plan.projectList()) if id_of(one) != own):
            return None
        found = next(one for one in items(plan.projectList()) if id_of(one) == own)
        made = found.child() if kind_of(found) == "Alias" else found
        if kind_of(made) == "AttributeReference":
            return _definition(plan.child(), id_of(made), windows)
    elif kind == "Expand":
        at = [id_of(one) for one in items(plan.output())].index(own)
        made = items(items(plan.projections())[0])[at]
    else:
        return None
    for one in walk(made):
        if kind_of(one) == "PreciseTimestampConversion" and kind_of(one.child()) == "AttributeReference":
            return made, one.child()
    return None


def _lengths(reader: Reader, text: str, plan: Any) -> tuple[str | int, ...]:
    """The window that Spark's expression is: (kind, lengths in microseconds ...)."""
    if "%" not in text:
        gap = re.search(r"\+ ([^,]*), TimestampType", text)
        if gap is None or not re.fullmatch(r"[\d.]+ \w+( [\d.]+ \w+)*", gap[1]):
            raise refusal(
                "session_window with a gap that is not constant", "give a string such as '10 minutes'", plan
            )
        if "day" in gap[1] and not reader.catalyst.is_fixed_zone:
            raise refusal(
                "session_window with a gap of days in a time zone where some days have 23 or 25 hours",
                "give hours, such as '24 hours', or set spark.sql.session.timeZone to UTC",
                plan,
            )
        return "session", gap[1]
    step = re.search(r"% (\d+)\)", text)
    sizes, offset = _LENGTH.findall(text), re.search(r"LongType\) - (-?\d+)\)", text)
    assert step is not None
    assert offset is not None
    size, slide, start = int(sizes[-1]), int(step[1]), int(offset[1])
    return ("tumble", size, start) if size == slide else ("hop", size, slide, start)
