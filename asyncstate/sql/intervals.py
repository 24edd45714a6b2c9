"""Reads joins whose condition bounds how far the event times of both sides are apart.

Owns: ``interval_of``, which finds the bounds; ``interval_join``, the nodes of such a join.
Invariant: a bound is exact in microseconds; where it depends on a time zone there is none.

Source: Flink's ``IntervalJoinUtil``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from asyncstate.spark.column_types import quoted
from asyncstate.sql import ir
from asyncstate.sql.catalyst import items, option
from asyncstate.sql.conditions import FLIPPED
from asyncstate.sql.expressions import COMPARISONS, children, conjuncts, id_of, kind_of, type_of

if TYPE_CHECKING:
    from asyncstate.sql.plans import Reader
    from asyncstate.sql.rows import Read

_DAY_US: Final = 86_400_000_000
_KEPT: Final = {"left": (0,), "anti": (0,), "right": (1,), "full": (0, 1)}


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
    joined = ir.IntervalJoin(
        inputs=tuple(inputs),
        columns=node.columns,
        how=node.how,
        left_key=node.left_key,
        right_key=node.right_key,
        null_safe=node.null_safe,
        condition=node.condition,
        times=interval.times,
        bounds=(interval.lower, interval.upper),
        sql=node.sql,
    )
    return ir.Union(inputs=(joined, *around), columns=node.columns) if around else joined


def by_time(given: ir.Node, column: str, shown: Sequence[ir.Column]) -> tuple[ir.Node, ir.Node]:
    """The rows with a time, and those without one as they come out of an outer join with the columns ``shown``: an
    operator that waits for the watermark has no place in time for these."""
    time = quoted(column)
    timed = ir.Filter(inputs=(given,), columns=given.columns, conditions=(f"{time} IS NOT NULL",))
    made = {one: quoted(one.name) if one in given.columns else f"CAST(NULL AS {one.type})" for one in shown}
    return timed, ir.Project.of(replace(timed, conditions=(f"{time} IS NULL",)), made)


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
        found = _time(reader, start), _length(reader, length, type_of(start), _DAY_US)
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


def has_one_length(reader: Reader, microseconds: int, time: str, whole: int = _DAY_US) -> bool:
    """Whether an interval is as long after each ``time``, which is a type: to Spark its days are those of the session's
    time zone, which may have 23 or 25 hours. ``whole``: from which length on it has days."""
    return time != "timestamp" or abs(microseconds) < whole or reader.catalyst.is_fixed_zone
