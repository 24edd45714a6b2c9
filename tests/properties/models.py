"""What the operators put out in the end, computed from whole tables in plain Python.

Owns: one function for each operator; they share no code with the operators.
"""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from tests.properties.histories import Row, Table

Condition = Callable[[Row, Row], bool | None]


def rows_of(table: Table) -> list[Row]:
    """Each row as often as it is there."""
    return list(table.elements())


def by_key(table: Table, key: Callable[[Row], Any]) -> dict[Any, list[Row]]:
    """The rows of each key."""
    found: dict[Any, list[Row]] = defaultdict(list)
    for row in table.elements():
        found[key(row)].append(row)
    return found


def grouped(
    table: Table, key: Sequence[int], aggregates: Sequence[Callable[[list[Row]], Any]], always: bool = False
) -> Table:
    """One row for each key: the key columns and each aggregate of its rows; ``always``: also for no row at all."""
    groups = by_key(table, lambda row: tuple(row[at] for at in key)) or ({(): []} if always else {})
    return Counter((*key, *(aggregate(rows) for aggregate in aggregates)) for key, rows in groups.items())


def values(rows: list[Row], column: int, condition: int | None = None) -> list[Any]:
    """What an aggregate sees: values that are not null of rows that meet the condition."""
    return [
        row[column]
        for row in rows
        if row[column] is not None and (condition is None or row[condition] is True)
    ]


def aggregate(
    function: str, column: int | None, condition: int | None = None, distinct: bool = False
) -> Callable[[list[Row]], Any]:
    """SQL's count, sum, avg, min and max."""

    def computed(rows: list[Row]) -> Any:
        if column is None:
            return sum(1 for row in rows if condition is None or row[condition] is True)
        found = values(rows, column, condition)
        found = list(set(found)) if distinct else found
        if function == "count":
            return len(found)
        if not found:
            return None
        return {"sum": sum, "avg": _mean, "min": _least, "max": _most}[function](found)

    return computed


def _least(found: list[Any]) -> Any:
    return min(found, key=_nan_last)


def _most(found: list[Any]) -> Any:
    return max(found, key=_nan_last)


def _nan_last(value: Any) -> Any:
    return value != value, value


def _mean(found: list[Any]) -> float:
    return float(sum(found)) / len(found)


def joined(
    kind: str,
    tables: Sequence[Table],
    keys: Sequence[Callable[[Row], Any]],
    widths: Sequence[int],
    condition: Condition | None = None,
    null_safe: bool = False,
    null_aware: bool = False,
) -> Table:
    """The join of two tables; keys are tuples, of which one with a null matches nothing unless ``null_safe``.

    ``null_aware``: the mark is None where no condition is true, but one is None."""

    def meets(left: Row, right: Row) -> bool | None:
        key = keys[0](left)
        if key != keys[1](right) or (not null_safe and None in key):
            return False
        return condition is None or condition(left, right)

    def mark(left: Row) -> bool | None:
        found = [meets(left, right) for right in tables[1]]
        return True if True in found else None if null_aware and None in found else False

    out: Table = Counter()
    matched_right: set[Row] = set()
    for left, times in tables[0].items():
        partners = [(right, many) for right, many in tables[1].items() if meets(left, right)]
        matched_right |= {right for right, _ in partners}
        if kind == "mark":
            out[(*left, mark(left))] += times
            continue
        if kind == "semi" or kind == "anti":
            if bool(partners) == (kind == "semi"):
                out[left] += times
            continue
        for right, many in partners:
            out[left + right] += times * many
        if not partners and kind in ("left", "full"):
            out[left + (None,) * widths[1]] += times
    if kind in ("right", "full"):
        for right, many in tables[1].items():
            if right not in matched_right:
                out[(None,) * widths[0] + right] += many
    return out


def ranked(
    table: Table,
    key: Callable[[Row], Any],
    order: Callable[[Row], Any],
    shown: Callable[[Row], tuple[int, int]],
    function: str,
    numbered: bool,
) -> Table:
    """The rows of each key whose number is above ``shown(row)[0]`` and at most ``shown(row)[1]``."""
    out: Table = Counter()
    for rows in by_key(table, key).values():
        rows.sort(key=order)
        orders = [order(row) for row in rows]
        levels = sorted(set(orders))
        for at, row in enumerate(rows):
            number = {
                "row_number": at + 1,
                "rank": orders.index(orders[at]) + 1,
                "dense_rank": levels.index(orders[at]) + 1,
            }[function]
            first, last = shown(row)
            if first < number <= last:
                out[(*row, number) if numbered else row] += 1
    return out


def chosen(table: Table, key: Callable[[Row], Any], order: Callable[[Row], Any], last: bool) -> Table:
    """The first or last row of each key."""
    pick = max if last else min
    return Counter(pick(rows, key=order) for rows in by_key(table, key).values())


Windows = Callable[[int], list[tuple[int, int]]]


def sliding(size: int, slide: int) -> Windows:
    """Windows of ``size`` that begin every ``slide``; equal ones are tumbling."""

    def windows(time: int) -> list[tuple[int, int]]:
        first = time // slide * slide
        return [(start, start + size) for start in range(first, first - size, -slide) if start + size > time]

    return windows


def growing(size: int, step: int) -> Windows:
    """Windows that begin every ``size`` and end every ``step``."""

    def windows(time: int) -> list[tuple[int, int]]:
        start = time // size * size
        return [(start, end) for end in range(start + step, start + size + 1, step) if end > time]

    return windows


def windowed(
    table: Table, key: Callable[[Row], Any], time: int, windows: Windows
) -> dict[tuple[Any, int, int], list[Row]]:
    """The rows of each key and window."""
    found: dict[tuple[Any, int, int], list[Row]] = defaultdict(list)
    for row in table.elements():
        for start, end in windows(row[time]):
            found[key(row), start, end].append(row)
    return found


def sessions(
    table: Table, key: Callable[[Row], Any], time: int, gap: int
) -> dict[tuple[Any, int, int], list[Row]]:
    """The rows of each key and session: as long as the next row comes within the gap."""
    found: dict[tuple[Any, int, int], list[Row]] = {}
    for name, rows in by_key(table, key).items():
        open_rows: list[Row] = []
        for row in sorted(rows, key=lambda row: row[time]):
            if open_rows and row[time] > open_rows[-1][time] + gap:
                found[name, open_rows[0][time], open_rows[-1][time] + gap] = open_rows
                open_rows = []
            open_rows.append(row)
        if open_rows:
            found[name, open_rows[0][time], open_rows[-1][time] + gap] = open_rows
    return found


def close_by(left_time: int, right_time: int, lower: int, upper: int) -> Condition:
    """The reach of an interval join."""
    return lambda left, right: left[left_time] + lower <= right[right_time] <= left[left_time] + upper


def folded(rows: Sequence[Row], function: Callable[[Row, Row], Row]) -> Row:
    """The rows reduced from the first on."""
    return functools.reduce(function, rows)
