"""What the readers of an operator's states take from them, so that two layouts of the same can be compared.

Owns: ``View`` and the views. Each leaves out only what its operator's documents say is free: where a row stands in a list
of equals, numbers of arrival, logs that are summed up, blocks.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from tests.properties.runs import StateRow, States

View = Callable[[States], dict[str, list[str]]]


def as_they_are(states: States) -> dict[str, list[str]]:
    """All entries; of lists and lists of columns what is in them, in any order."""
    return {name: texts(rows) for name, rows in states.items()}


def texts(rows: Iterable[StateRow]) -> list[str]:
    """One for each row, sorted."""
    return sorted(repr({name: value for name, value in row.items() if name != "position"}) for row in rows)


def summed_logs(states: States) -> dict[str, list[str]]:
    """The logs of minima and maxima, ``values.*``, as how often each value is there."""
    return as_they_are({name: _summed(name, rows) for name, rows in states.items()})


def _summed(name: str, rows: list[StateRow]) -> list[StateRow]:
    if not name.startswith("values."):
        return rows
    counts: Counter[str] = Counter()
    for row in rows:
        counts[repr((row["key"], row["namespace"], row["value"]["value"]))] += row["value"]["count"]
    assert all(count >= 0 for count in counts.values())
    return [{"value": text, "count": count} for text, count in counts.items() if count]


def ranked_rows(states: States) -> dict[str, list[str]]:
    """The rows of each key, wherever they stand, and its limit."""
    rows = [row for row in states["top"] if row["value"].get("rank:block", 0) == 0]
    rows += states.get("behind", [])
    kept = [
        {"key": row["key"], "row": {n: v for n, v in row["value"].items() if not n.startswith("rank:")}}
        for row in rows
    ]
    others = {name: found for name, found in states.items() if name not in ("top", "behind", "order")}
    return {"rows": texts(kept), **as_they_are(others)}


def interval_rows(time_columns: dict[str, str], over: dict[str, int]) -> View:
    """The rows of an interval join that can still find a partner, with whether they had one; rows of ``name`` are over
    up to ``over[name]``."""

    def view(states: States) -> dict[str, list[str]]:
        kept: States = {name: rows for name, rows in states.items() if name not in over}
        for name, last in over.items():
            lists: dict[str, list[StateRow]] = defaultdict(list)
            for row in states[name]:
                lists[repr((row["key"], row["namespace"]))].append(row)
            kept[name] = [
                row
                for rows in lists.values()
                for row in _with_marks(rows)
                if row["value"][time_columns[name]] > last
            ]
        return as_they_are(kept)

    return view


def _with_marks(rows: list[StateRow]) -> list[StateRow]:
    """Entries that say of another one that it has found a partner, put into that one."""
    rows = sorted(rows, key=lambda row: row["position"])
    if not rows or "matched" not in rows[0]["value"]:
        return rows
    marks = {row["value"]["matched"] for row in rows if (row["value"]["matched"] or -1) >= 0}
    marks |= {0} if any(row["value"]["matched"] == 0 for row in rows) else set()
    return [
        {**row, "value": {**row["value"], "matched": row["value"]["matched"] == -1 or at in marks}}
        for at, row in enumerate(rows)
        if row["value"]["matched"] in (None, -1)
    ]


def waiting_rows(states: States) -> dict[str, list[str]]:
    """Rows that wait in order without when they came."""

    def without_arrival(row: StateRow) -> StateRow:
        value = {name: each for name, each in row["value"].items() if name not in ("batch_id", "arrival")}
        return {**row, "value": value}

    return as_they_are(
        {
            name: [without_arrival(row) for row in rows] if name.startswith("ordered rows") else rows
            for name, rows in states.items()
        }
    )


def without(*names: str) -> Callable[[Any], Any]:
    """A value without some of its fields."""
    return lambda value: {name: each for name, each in value.items() if name not in names}
