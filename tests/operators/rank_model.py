"""A ranking kept row by row in plain Python lists: what Rank must agree with.

Owns: ``RankModel``. It shares no code with the operator but the row kinds' texts.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tests.operators.set_model import ADDED, Row, exact, net_of_set

Shown = list[tuple[Row, int]]


def compare(left: Any, right: Any, descending: bool, nulls_first: bool) -> int:
    """Below zero if ``left`` comes first; NaN is the largest number."""
    if left is None or right is None:
        return 0 if left is right else (-1 if (left is None) == nulls_first else 1)
    nan = [isinstance(value, float) and math.isnan(value) for value in (left, right)]
    sign = nan[0] - nan[1] if any(nan) else (left > right) - (left < right)
    return -sign if descending else sign


class RankModel:
    """``order``: (column, descending, nulls first); ``unique``: columns; ``n``: a number or a column.

    ``keeps_all``: a key that has lost all its rows forgets its limit.
    """

    def __init__(
        self,
        order: Sequence[tuple[int, bool, bool]],
        n: int | str,
        offset: int,
        function: str,
        unique: Sequence[int] | None,
        n_column: int,
        keeps_all: bool,
    ) -> None:
        self.order, self.n, self.offset, self.function = order, n, offset, function
        self.unique, self.n_column, self.keeps_all = unique, n_column, keeps_all
        self.rows: dict[Any, list[Row]] = {}
        self.limits: dict[Any, int] = {}
        self.counts: Counter[str] = Counter()
        self.stored: dict[Any, list[Row]] = {}
        self.events: dict[Any, list[tuple[str, Row]]] = {}

    def compare(self, left: Row, right: Row) -> int:
        for column, descending, nulls_first in self.order:
            sign = compare(left[column], right[column], descending, nulls_first)
            if sign:
                return sign
        return 0

    def apply(self, kind: str, row: Row) -> None:
        added, key = kind in ("+I", "+U"), row[0]
        if isinstance(self.n, str) and row[self.n_column] is None:
            self.counts["rows_without_limit"] += 1
            return
        rows = self.rows.setdefault(key, [])
        if key not in self.events:
            self.events[key], self.stored[key] = [], list(rows)
        self.events[key].append((kind, row))
        at = self.place(rows, row)
        if not added:
            if at is not None:
                del rows[at]
        elif at is None or self.unique is None:
            rows.append(row)
        elif self.compare(rows[at], row) == 0:
            rows[at] = row
        else:
            del rows[at]
            rows.append(row)

    def identity(self, row: Row) -> str:
        return exact(row if self.unique is None else tuple(row[column] for column in self.unique))

    def place(self, rows: list[Row], row: Row) -> int | None:
        wanted = self.identity(row)
        return next((at for at, other in enumerate(rows) if self.identity(other) == wanted), None)

    def arrival(self, stored: list[Row], events: list[tuple[str, Row]], event: int) -> int:
        """The place of an event's row among rows of equal order: its own, or that of the row it directly replaces."""
        if self.unique is None:
            return len(stored) + event
        wanted = self.identity(events[event][1])
        before = next(((at, row) for at, row in enumerate(stored) if self.identity(row) == wanted), None)
        for at, (kind, row) in enumerate(events[: event + 1]):
            if self.identity(row) != wanted:
                continue
            if kind not in ADDED:
                before = None
            elif before is not None and self.compare(before[1], row) == 0:
                before = (before[0], row)
            else:
                before = (len(stored) + at, row)
        assert before is not None
        return before[0]

    def end_bundle(self) -> None:
        """The rows of a bundle count as a set, whatever ``apply`` has made of them one by one."""
        for key, events in self.events.items():
            for at in net_of_set([], events).comes if isinstance(self.n, str) else ():
                limit = events[at][1][self.n_column]
                self.counts["rows_with_another_limit"] += self.limits.setdefault(key, limit) != limit
            stored = self.stored[key]
            net = net_of_set(stored, events, self.identity if self.unique is not None else None, refresh=True)
            placed = [(at, stored[at]) for at in net.stays]
            placed += [(self.arrival(stored, events, at), events[at][1]) for at in net.comes]
            self.rows[key] = [row for _, row in sorted(placed, key=lambda pair: pair[0])]
            self.counts["retractions_without_state"] += len(net.missing)
        self.events.clear()
        self.counts += Counter()  # drops zeros
        for key in [key for key, rows in self.rows.items() if not rows]:
            del self.rows[key]
            if self.keeps_all:
                self.limits.pop(key, None)

    def worse(self, row: Row) -> bool:
        """Whether the row is worse than the one with its unique key."""
        rows = self.rows.get(row[0], [])
        at = self.place(rows, row)
        return at is not None and self.compare(row, rows[at]) > 0

    def shown(self, key: Any) -> Shown:
        rows = sorted(self.rows.get(key, []), key=functools.cmp_to_key(self.compare))
        limit = self.limits.get(key, 0) if isinstance(self.n, str) else self.n
        numbered = list(zip(rows, self.numbers(rows), strict=True))
        return [
            (row, number) for row, number in numbered if self.offset < number <= self.offset + max(limit, 0)
        ]

    def numbers(self, rows: list[Row]) -> list[int]:
        numbers: list[int] = []
        for at, row in enumerate(rows):
            same = at > 0 and self.compare(rows[at - 1], row) == 0
            if self.function == "row_number":
                numbers.append(at + 1)
            elif same:
                numbers.append(numbers[-1])
            else:
                numbers.append(at + 1 if self.function == "rank" else (numbers[-1] if numbers else 0) + 1)
        return numbers


def expected_changes(
    before: Shown, after: Shown, identity: str, unique: Sequence[int], numbered: bool
) -> list[Row]:
    """The changelog of one key, as (kind, *row, number if ``numbered``): first all that is taken back."""
    changes = _expected_changes(before, after, identity, unique, numbered)
    return [row for row in changes if row[0] not in ADDED] + [row for row in changes if row[0] in ADDED]


def _expected_changes(
    before: Shown, after: Shown, identity: str, unique: Sequence[int], numbered: bool
) -> list[Row]:

    def out(kind: str, row: Row, number: int) -> Row:
        return (kind, *row, number) if numbered else (kind, *row)

    def content(row: Row, number: int) -> str:
        return exact(out("", row, number))

    if identity == "number":
        old, new = ({number: row for row, number in shown} for shown in (before, after))
        changes = []
        for number in sorted({*old, *new}):
            changes += _pair(
                old.get(number), new.get(number), lambda kind, row, at=number: out(kind, row, at)
            )
        return changes
    if identity == "unique":
        by_key = [
            {exact(tuple(row[c] for c in unique)): (row, at) for row, at in shown}
            for shown in (before, after)
        ]
        changes = [out("-D", *shown) for key, shown in by_key[0].items() if key not in by_key[1]]
        for key, shown in by_key[1].items():
            if key not in by_key[0]:
                changes.append(out("+I", *shown))
            elif content(*by_key[0][key]) != content(*shown):
                changes += [out("-U", *by_key[0][key]), out("+U", *shown)]
        return changes
    had, has = (Counter(content(*one) for one in shown) for shown in (before, after))
    rows = {content(*one): one for one in (*before, *after)}
    changes = [out("-D", *rows[text]) for text, times in had.items() for _ in range(times - has[text])]
    return changes + [out("+I", *rows[text]) for text, times in has.items() for _ in range(times - had[text])]


def _pair(old: Row | None, new: Row | None, out: Any) -> list[Row]:
    if old is None or new is None:
        return [out("+I", new)] if old is None else [out("-D", old)]
    return [] if exact(old) == exact(new) else [out("-U", old), out("+U", new)]
