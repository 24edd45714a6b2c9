"""Reads OVER: window functions and aggregates over frames.

Owns: ``OverReader``.
Invariant: a function or frame that no operator keeps right is refused by name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from asyncstate.sql import ir
from asyncstate.sql.aggregates import Calls
from asyncstate.sql.catalyst import items
from asyncstate.sql.expressions import id_of, ids_in, kind_of, refusal, type_of

if TYPE_CHECKING:
    from asyncstate.sql.plans import Needed, Read, Reader

_NUMBERS: Final = {"RowNumber": "row_number", "Rank": "rank", "DenseRank": "dense_rank"}
_OFFSETS: Final = {"Lag": "lag", "Lead": "lead"}
Frame = tuple[str | int | None, ...]


class OverReader:
    """Reads one Window: a node for each of its frames."""

    def __init__(self, reader: Reader, plan: Any, needed: Needed) -> None:
        self._reader, self._plan, self._needed = reader, plan, needed

    def read(self) -> Read:
        """The input's columns and the results."""
        from asyncstate.sql.plans import Read

        reader, plan = self._reader, self._plan
        expressions = items(plan.windowExpressions())
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
            return calls.aggregate(function)
        if kind in _NUMBERS:
            return calls.call(_NUMBERS[kind], type_of(function))
        if kind in _OFFSETS:
            default = function.default()
            if kind_of(default) != "Literal" or default.toString() != "null":
                raise refusal(f"{kind.lower()} with a default", "use coalesce", function)
            if "true" in str(function.ignoreNulls()):
                raise refusal(
                    f"{kind.lower()} IGNORE NULLS", "leave rows with null out in a subquery", function
                )
            offset = abs(int((function.inputOffset() if kind == "Lag" else function.offset()).toString()))
            return calls.call(
                _OFFSETS[kind], type_of(function), calls.column(function.input()), numbers=(offset,)
            )
        raise refusal(
            f"{function.prettyName()}() OVER has no operator",
            "use row_number, rank, lag, lead or an aggregate",
            function,
        )

    def _frame(self, alias: Any) -> Frame:
        over = alias.child()
        if kind_of(over) != "WindowExpression":
            raise refusal(f"{over.sql()} in a window", "write it as a function OVER (...)", over)
        frame, function = over.windowSpec().frameSpecification(), over.windowFunction()
        if kind_of(function) in (*_NUMBERS, *_OFFSETS):
            return ("unbounded",)
        lower, upper = frame.lower(), frame.upper()
        ranges = frame.frameType().toString().startswith("Range")
        ends = kind_of(lower), kind_of(upper)
        if ends == ("UnboundedPreceding", "UnboundedFollowing"):
            return ("partition",)
        if ends == ("UnboundedPreceding", "CurrentRow"):
            return ("peers",) if ranges else ("unbounded",)
        if ends[1] == "CurrentRow" and not ranges:
            return "rows", abs(_literal(lower))
        if (
            ends[1] == "CurrentRow"
            and ranges
            and "interval" in type_of(lower)
            and "month" not in type_of(lower)
        ):
            return "range", abs(_literal(lower))
        raise refusal(
            f"the frame {frame.sql()} needs rows that follow",
            "end the frame at CURRENT ROW, or use the whole partition",
            over,
        )


def _literal(bound: Any) -> int:
    """The number of rows or microseconds of a bound."""
    value = bound if kind_of(bound) == "Literal" else bound.child()
    number = int(value.value())
    return -number if kind_of(bound) == "UnaryMinus" else number
