"""Reads conditions of joins: how far the event times of both sides are apart, and what the join itself checks.

Owns: ``interval_of``, which finds bounds of times; ``interval_join``, the nodes of such a join; ``ResidualReader``,
which writes conditions over rows of both sides as ``conditions`` has them; ``equalities``.
Invariant: a bound is exact in microseconds; where it depends on a time zone there is none. What reads one side only is
a column that Spark computes before the join; what is left compares columns.

Source: Flink's ``IntervalJoinUtil``.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from asyncstate.spark.column_types import quoted
from asyncstate.sql import ir
from asyncstate.sql.catalyst import items, option
from asyncstate.sql.conditions import FLIPPED
from asyncstate.sql.expressions import (
    COMPARISONS,
    NESTED,
    children,
    conjuncts,
    id_of,
    ids_in,
    kind_of,
    refusal,
    type_of,
)

if TYPE_CHECKING:
    from asyncstate.sql.plans import Reader
    from asyncstate.sql.rows import Given, Read

DAY_US: Final = 86_400_000_000
_KEPT: Final = {"left": (0,), "anti": (0,), "right": (1,), "full": (0, 1)}
_COUNTED: Final = {"Add": "+", "Subtract": "-", "Multiply": "*"}
_FLOATS: Final = ("float", "double")


class TimeBounds(NamedTuple):
    """A right row's time is between the left row's plus ``lower`` and plus ``upper``, in microseconds; ``times``: the
    columns; ``nullable``: whether there are rows without it; ``used``: the conditions that say so."""

    times: tuple[str, str]
    nullable: list[bool]
    lower: int
    upper: int
    used: list[Any]


def interval_of(
    reader: Reader, plan: Any, sides: Sequence[Read], outputs: Sequence[set[int]]
) -> TimeBounds | None:
    """The bounds that a join's condition sets to the event times of both sides; None if it does not, or if a side has
    changes or no watermark."""
    bounds: dict[tuple[int, int], tuple[list[int], list[int], list[Any]]] = {}
    for condition in conjuncts(option(plan.condition())):
        for (left, right), sign, offset in _difference(reader, condition, outputs):
            lows, highs, used = bounds.setdefault((left, right), ([], [], []))
            strict = COMPARISONS[kind_of(condition)] in ("<", ">")
            if sign >= 0:
                lows.append(offset + strict)
            if sign <= 0:
                highs.append(offset - strict)
            used.append(condition)
    for (left, right), (lows, highs, used) in bounds.items():
        times = sides[0].names[left], sides[1].names[right]
        ids = {id_of(one): one for side in (plan.left(), plan.right()) for one in items(side.output())}
        final = [reader.is_final(side.node, time) for side, time in zip(sides, times, strict=True)]
        if lows and highs and max(lows) <= min(highs) and all(final):
            nullable = [bool(ids[one].nullable()) for one in (left, right)]
            return TimeBounds(times, nullable, max(lows), min(highs), used)
    return None


def interval_join(node: ir.Join, interval: TimeBounds) -> ir.Node:
    """The nodes of a join. A row that is kept although it has no partner goes around it if it has no time."""
    inputs, around = list(node.inputs), list[ir.Node]()
    for side in _KEPT.get(node.how, ()):
        if interval.nullable[side]:
            inputs[side], others = by_time(node.inputs[side], interval.times[side], node.columns)
            around.append(others)
    bounds = {"times": interval.times, "bounds": (interval.lower, interval.upper)}
    joined = ir.IntervalJoin(**{**vars(node), **bounds, "inputs": tuple(inputs)})
    return ir.Union(inputs=(joined, *around), columns=node.columns) if around else joined


def by_time(given: ir.Node, column: str, shown: Sequence[ir.Column]) -> tuple[ir.Node, ir.Node]:
    """The rows with a time, and those without one as they come out of an outer join with the columns ``shown``: an
    operator that waits for the watermark has no place in time for these."""
    made = {one: quoted(one.name) if one in given.columns else f"CAST(NULL AS {one.type})" for one in shown}
    timed, others = (given.where([f"{quoted(column)} IS {what}"]) for what in ("NOT NULL", "NULL"))
    return timed, ir.Project.of(others, made)


def _difference(
    reader: Reader, condition: Any, outputs: Sequence[set[int]]
) -> list[tuple[tuple[int, int], int, int]]:
    """What a comparison says of (left, right) times: the sign 1 that the right one minus the left one is at least the
    offset, -1 that it is at most, 0 that it is the offset. Empty if it is another condition."""
    compared = COMPARISONS.get(kind_of(condition))
    if compared not in FLIPPED:
        return []
    one, two = condition.left(), condition.right()
    sign = 0 if compared == "=" else 1 if compared[0] == ">" else -1
    for a, b, way in ((one, two, sign), (two, one, -sign)):
        if kind_of(a) == "SubtractTimestamps" and _length(reader, b, type_of(children(a)[0]), 0) is not None:
            later, earlier = (_time(reader, part) for part in children(a))
            added = int(b.value())
        else:
            later, earlier, added = _time(reader, a), _time(reader, b), 0
        if later is None or earlier is None:
            continue
        (x, p), (y, q) = later, (earlier[0], earlier[1] + added)
        if x in outputs[1] and y in outputs[0]:
            return [((y, x), way, q - p)]
        if x in outputs[0] and y in outputs[1]:
            return [((x, y), -way, p - q)]
    return []


def _time(reader: Reader, e: Any) -> tuple[int, int] | None:
    """A column of times plus a constant, in microseconds."""
    if kind_of(e) == "AttributeReference" and type_of(e).startswith("timestamp"):
        return id_of(e), 0
    if kind_of(e) in ("TimeAdd", "TimestampAddInterval"):
        start, length = children(e)
        found = _time(reader, start), _length(reader, length, type_of(start), DAY_US)
        if found[0] is not None and found[1] is not None:
            return found[0][0], found[0][1] + found[1]
    return None


def _length(reader: Reader, e: Any, time: str, whole: int) -> int | None:
    """The microseconds of a literal; None if a time zone has days of other lengths and it is not below ``whole``."""
    kind = type_of(e)
    if kind_of(e) != "Literal" or not kind.startswith("interval") or "month" in kind or "year" in kind:
        return None
    if e.value() is None or not has_one_length(reader, int(e.value()), time, whole):
        return None
    return int(e.value())


def has_one_length(reader: Reader, microseconds: int, time: str, whole: int = DAY_US) -> bool:
    """Whether an interval is as long after each ``time``, which is a type: to Spark its days are those of the session's
    time zone, which may have 23 or 25 hours. ``whole``: from which length on it has days."""
    return time != "timestamp" or abs(microseconds) < whole or reader.catalyst.is_fixed_zone


class ResidualReader:
    """Reads the conditions of a join of two sides."""

    refused = (
        "reads both sides of a join that keeps or leaves out rows without a partner",
        "compute it of one side, or compare columns of both",
    )

    def __init__(self, sides: Sequence[Given], outputs: Sequence[set[int]]) -> None:
        self._sides, self._outputs = sides, outputs

    def read(self, conditions: Sequence[Any]) -> Any:
        """The conditions, all of which must be true."""
        return functools.reduce(lambda one, two: ("and", one, two), map(self._condition, conditions))

    def _condition(self, e: Any) -> Any:
        read_by, kind = ids_in(e), kind_of(e)
        for side, own in zip(self._sides, self._outputs, strict=True):
            if read_by and read_by <= own:
                return "field", side.column("condition", e), type_of(e)
        parts = [self._condition(one) for one in children(e)]
        if kind in ("And", "Or"):
            return kind.lower(), *parts
        if kind in ("Not", "IsNull", "IsNotNull"):
            return {"Not": "not", "IsNull": "null", "IsNotNull": "valid"}[kind], *parts
        if kind in COMPARISONS and not type_of(children(e)[0]).startswith(NESTED):
            kinds = {type_of(one) for one in children(e)}
            if len(kinds) == 1:
                return COMPARISONS[kind], *parts, kinds.pop() in _FLOATS
        if kind in _COUNTED and type_of(e) in ("int", "bigint", "double"):
            return _COUNTED[kind], *parts
        if not read_by:
            side = self._sides[0]
            return "field", side.computed("condition", side.text(e), type_of(e)), type_of(e)
        raise refusal(f"{e.sql()} {self.refused[0]}", self.refused[1], e)


def equalities(
    conditions: Sequence[Any], outputs: Sequence[Iterable[int]]
) -> tuple[list[tuple[Any, Any, bool]], list[Any]]:
    """The equalities of the left and the right side, (left, right, null-safe), and the other conditions."""
    pairs, rest = [], []
    for one in conditions:
        found = None
        if kind_of(one) in ("EqualTo", "EqualNullSafe"):
            both = one.left(), one.right()
            for a, b in (both, both[::-1]):
                of_a, of_b = ids_in(a), ids_in(b)
                if found is None and of_a and of_b and of_a <= {*outputs[0]} and of_b <= {*outputs[1]}:
                    found = a, b, kind_of(one) == "EqualNullSafe"
        if found is None:
            rest.append(one)
        else:
            pairs.append(found)
    return pairs, rest
