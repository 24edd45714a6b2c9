"""Reads OVER: window functions and aggregates over frames.

Owns: ``OverReader``.
Invariant: a function or frame that no operator keeps right is refused by name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from asyncstate.sql import ir
from asyncstate.sql.aggregates import Calls
from asyncstate.sql.catalyst import items
from asyncstate.sql.expressions import children, id_of, ids_in, kind_of, refusal, type_of

if TYPE_CHECKING:
    from asyncstate.sql.plans import Needed, Read, Reader

_NUMBERS: Final = {
    "RowNumber": "row_number",
    "Rank": "rank",
    "DenseRank": "dense_rank",
    "PercentRank": "percent_rank",
    "CumeDist": "cume_dist",
}
_OFFSETS: Final = ("Lag", "Lead")
_PLACES: Final = {"First": "first_in_frame", "Last": "last_in_frame", "AnyValue": "first_in_frame"}
_NULLS: Final = (*_PLACES, *_OFFSETS, "NthValue")
_PYTHON: Final = ("boolean", "int", "bigint", "double", "string")
Frame = tuple[str | int | None, ...]


class OverReader:
    """Reads one Window: a node for each of its frames."""

    def __init__(self, reader: Reader, plan: Any, needed: Needed) -> None:
        self._reader, self._plan, self._needed = reader, plan, needed

    def read(self) -> Read:
        """The input's columns and the results."""
        from asyncstate.sql.plans import Read

        reader, plan = self._reader, self._plan
        listed = items(plan.windowExpressions())
        # Spark also lists columns of the outer query, which the rows have anyway.
        expressions = [one for one in listed if kind_of(one) == "Alias"]
        order, partition = items(plan.orderSpec()), items(plan.partitionSpec())
        below = None
        if self._needed is not None:
            below = self._needed.union(*map(ids_in, [*expressions, *order, *partition]))
            below -= {id_of(one) for one in expressions}
        child = reader.plan(plan.child(), below)
        calls = {frame: Calls(reader, child, {}) for frame in dict.fromkeys(map(self._frame, expressions))}
        texts = {id_of(one): self._call(one, calls[self._frame(one)]) for one in expressions}
        added = {name: text for one in calls.values() for name, text in one.added.items()}
        by = reader.order(order, child.names, added)
        key = reader.key_columns(partition, child.names, added)
        node = reader.project(child, added)
        for frame, one in calls.items():
            node = ir.Over(
                inputs=(node,),
                columns=(*node.columns, *one.results),
                key=tuple(key),
                order=by,
                frame=frame,
                calls=tuple(one.calls),
            )
        names = dict(child.names)
        texts_by_name = {}
        for one in expressions:
            names[id_of(one)] = reader.name(one)
            texts_by_name[reader.name(one)] = texts[id_of(one)], type_of(one)
        kept = reader.only(
            node, [*child.node.names, *(c.name for one in calls.values() for c in one.results)]
        )
        whole = reader.project(Read(kept, {}), texts_by_name)
        return Read(reader.only(whole, [*child.node.names, *texts_by_name]), names)

    def _call(self, alias: Any, calls: Calls) -> str:
        function = alias.child().windowFunction()
        kind = kind_of(function)
        if kind == "AggregateExpression":
            inner = function.aggregateFunction()
            if kind_of(inner) not in _PLACES and kind_of(inner) != "NthValue":
                return calls.aggregate(function)
            if function.filter().isDefined():
                raise refusal("FILTER of a value of the frame", "put the condition into CASE", function)
            function, kind = inner, kind_of(inner)
        column, ignore = calls.column, kind in _NULLS and "true" in str(function.ignoreNulls()).lower()
        if kind in _PLACES:
            return calls.call(
                _PLACES[kind], type_of(function), column(children(function)[0]), numbers=(ignore,)
            )
        if kind == "NthValue":
            given = column(children(function)[0]), int(function.offset().toString())
            return calls.call("nth_value", type_of(function), given[0], numbers=(given[1], ignore))
        if kind in _NUMBERS:
            return calls.call(_NUMBERS[kind], type_of(function))
        if kind == "NTile":
            return calls.call("ntile", type_of(function), numbers=(int(function.buckets().toString()),))
        if kind in _OFFSETS:
            offset = int((function.inputOffset() if kind == "Lag" else function.offset()).toString())
            name = "lag" if (kind == "Lag") == (offset >= 0) else "lead"
            numbers = abs(offset), self._default(function), ignore
            return calls.call(name, type_of(function), column(function.input()), numbers=numbers)
        raise refusal(
            f"{function.prettyName()}() OVER has no operator", "use an aggregate or a ranking", function
        )

    def _default(self, function: Any) -> Any:
        """The default of lag and lead."""
        default = function.default()
        if kind_of(default) == "Literal" and default.value() is None:
            return None
        if kind_of(default) != "Literal" or type_of(default) not in _PYTHON:
            raise refusal("lag or lead with this default", "give a number, a text or a boolean", function)
        value = default.value()
        return str(default.toString()) if type_of(default) == "string" else value

    def _frame(self, alias: Any) -> Frame:
        over = alias.child()
        if kind_of(over) != "WindowExpression":
            raise refusal(f"{over.sql()} in a window", "write it as a function OVER (...)", over)
        frame, function = over.windowSpec().frameSpecification(), over.windowFunction()
        if kind_of(function) in (*_NUMBERS, *_OFFSETS, "NTile"):
            return "rows", None, 0
        kind = "range" if frame.frameType().toString().startswith("Range") else "rows"
        before, after = _end(frame.lower(), over), _end(frame.upper(), over)
        ends = None if before is None else -before, after
        return ("whole",) if ends == (None, None) else (kind, *ends)


def _end(bound: Any, over: Any) -> int | None:
    """How far after its row a frame begins or ends, in rows, microseconds or the unit of the order; None: unbounded."""
    if kind_of(bound).startswith("Unbounded"):
        return None
    if kind_of(bound) == "CurrentRow":
        return 0
    kind, sign = type_of(bound), 1
    while kind_of(bound) == "UnaryMinus":
        bound, sign = bound.child(), -sign
    if kind_of(bound) != "Literal" or not (
        kind in ("tinyint", "smallint", "int", "bigint") or "day" in kind or "second" in kind
    ):
        raise refusal("a frame of this length", "give a number, or an interval of days to seconds", over)
    return sign * int(bound.value())
