"""Reads OVER: window functions and aggregates over frames.

Owns: ``read_over``.
Invariant: a function or frame that no operator keeps right is refused by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from asyncstate.sql import ir
from asyncstate.sql.aggregates import Calls
from asyncstate.sql.catalyst import items
from asyncstate.sql.expressions import children, id_of, ids_in, kind_of, refusal, type_of
from asyncstate.sql.join_conditions import DAY_US, has_one_length
from asyncstate.sql.rows import Given, Needed, Read

if TYPE_CHECKING:
    from asyncstate.sql.plans import Reader

RANKS: Final = {"RowNumber": "row_number", "Rank": "rank", "DenseRank": "dense_rank"}
_OFFSETS: Final = {"Lag": "lag", "Lead": "lead"}
_WITHOUT_FRAME: Final = {
    **RANKS,
    "PercentRank": "percent_rank",
    "CumeDist": "cume_dist",
    "NTile": "ntile",
    **_OFFSETS,
}
_OF_FRAME: Final = {
    "First": "first_in_frame",
    "Last": "last_in_frame",
    "AnyValue": "first_in_frame",
    "NthValue": "nth_value",
}
_FUNCTIONS: Final = {**_WITHOUT_FRAME, **_OF_FRAME}
_PYTHON: Final = ("boolean", "int", "bigint", "double", "string")
Frame = tuple[str | int | None, ...]


def window_functions(plan: Any) -> list[Any]:
    """The functions of a Window. Spark also lists columns of an outer query, which the rows have anyway."""
    return [one for one in items(plan.windowExpressions()) if kind_of(one) == "Alias"]


def read_over(reader: Reader, plan: Any, needed: Needed) -> Read:
    """One Window: a node for each of its frames, with the input's columns and the results."""
    expressions = window_functions(plan)
    order, partition = items(plan.orderSpec()), items(plan.partitionSpec())
    below = needed
    if needed is not None:
        below = needed.union(*map(ids_in, [*expressions, *order, *partition]))
        below -= {id_of(one) for one in expressions}
    given = Given(reader, reader.plan(plan.child(), below))
    frames = [_frame(reader, one) for one in expressions]
    calls = {frame: Calls(given) for frame in dict.fromkeys(frames)}
    in_days = any(frame[0] == "range" and {*frame[1:]} - {None, 0} for frame in calls) and _is_by_date(order)
    pairs = zip(expressions, frames, strict=True)
    texts = {reader.name(one): (_call(one, calls[frame]), type_of(one)) for one, frame in pairs}
    by = given.order(order, partial(_day, given) if in_days else None)
    key, node = given.key(partition), given.node()
    for frame, one in calls.items():
        node = ir.Over(
            inputs=(node,),
            columns=(*node.columns, *one.results),
            key=key,
            order=by,
            frame=frame,
            calls=tuple(one.calls),
        )
    names = {**given.read.names, **{id_of(one): reader.name(one) for one in expressions}}
    kept = given.read.node.names
    results = [column.name for one in calls.values() for column in one.results]
    shown = Given(reader, Read(node, names).only([*kept, *results]))
    shown.added = texts
    return Read(shown.node(), names).only([*kept, *texts])


def _is_by_date(order: Sequence[Any]) -> bool:
    return [type_of(one.child()) for one in order] == ["date"]


def _day(given: Given, e: Any) -> str:
    """The column with the number of a date, which a range is measured in."""
    return given.computed("order", f"unix_date({given.text(e)})", "int")


def _call(alias: Any, calls: Calls) -> str:
    function = alias.child().windowFunction()
    kind = kind_of(function)
    if kind == "AggregateExpression":
        inner = function.aggregateFunction()
        if kind_of(inner) not in _OF_FRAME:
            return calls.aggregate(function)
        if function.filter().isDefined():
            raise refusal("FILTER of a value of the frame", "put the condition into CASE", function)
        function, kind = inner, kind_of(inner)
    columns, numbers, offset = list[Any](), list[Any](), 0
    if kind in _OF_FRAME:
        columns = [children(function)[0]]
        numbers = [int(function.offset().toString())] if kind == "NthValue" else []
    elif kind in _OFFSETS:
        offset = int((function.inputOffset() if kind == "Lag" else function.offset()).toString())
        columns, numbers = [function.input()], [abs(offset), _default(function)]
    elif kind == "NTile":
        numbers = [int(function.buckets().toString())]
    elif kind not in _FUNCTIONS:
        raise refusal(
            f"{function.prettyName()}() OVER has no operator", "use an aggregate or a ranking", function
        )
    if columns:
        numbers.append("true" in str(function.ignoreNulls()).lower())
    own = _FUNCTIONS[kind]
    if offset < 0:
        own = "lead" if kind == "Lag" else "lag"
    read = tuple(map(calls.given.argument, columns))
    return calls.call(type_of(function), ir.Call("", own, read, numbers=tuple(numbers)))


def _default(function: Any) -> Any:
    """The default of lag and lead."""
    default = function.default()
    if kind_of(default) == "Literal" and default.value() is None:
        return None
    if kind_of(default) != "Literal" or type_of(default) not in _PYTHON:
        raise refusal("lag or lead with this default", "give a number, a text or a boolean", function)
    value = default.value()
    return str(default.toString()) if type_of(default) == "string" else value


def _frame(reader: Reader, alias: Any) -> Frame:
    over = alias.child()
    if kind_of(over) != "WindowExpression":
        raise refusal(f"{over.sql()} in a window", "write it as a function OVER (...)", over)
    frame, function = over.windowSpec().frameSpecification(), over.windowFunction()
    if kind_of(function) in _WITHOUT_FRAME:
        return "rows", None, 0
    kind = "range" if frame.frameType().toString().startswith("Range") else "rows"
    order = items(over.windowSpec().orderSpec())
    unit = DAY_US if kind == "range" and _is_by_date(order) else 1
    before, after = _end(frame.lower(), over, unit), _end(frame.upper(), over, unit)
    is_by_time = kind == "range" and [type_of(one.child()) for one in order] == ["timestamp"]
    if is_by_time and not all(has_one_length(reader, end or 0, "timestamp") for end in (before, after)):
        raise refusal(
            "a frame of days in a time zone where some days have 23 or 25 hours",
            "give hours, fewer than 24, order by a date or a TIMESTAMP_NTZ, or set spark.sql.session.timeZone to UTC",
            over,
        )
    ends = None if before is None else -before, after
    return ("whole",) if ends == (None, None) else (kind, *ends)


def _end(bound: Any, over: Any, unit: int) -> int | None:
    """How far after its row a frame begins or ends, in rows or the unit of the order; None: unbounded. ``unit``: of
    intervals, in microseconds."""
    if kind_of(bound).startswith("Unbounded"):
        return None
    if kind_of(bound) == "CurrentRow":
        return 0
    kind, sign = type_of(bound), 1
    while kind_of(bound) == "UnaryMinus":
        bound, sign = bound.child(), -sign
    is_time = kind.startswith("interval") and "month" not in kind and "year" not in kind
    if kind_of(bound) != "Literal" or not (is_time or kind in ("tinyint", "smallint", "int", "bigint")):
        raise refusal("a frame of this length", "give a number, or an interval of days to seconds", over)
    length = sign * int(bound.value())
    return length // unit if is_time else length
