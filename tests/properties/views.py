"""What the readers of an operator's states take from them, so that two layouts of the same can be compared.

Owns: ``View`` and the views. Each leaves out only what its operator's documents say is free: where a row stands in
a list of equals, numbers of arrival, logs that are summed up, blocks, rows that the engine holds back.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta

from tests.properties.runs import StateRow, States

Seen = dict[str, list[str]]
View = Callable[[States, int], Seen]
"""Of states and the watermark at which they were read."""

_EPOCH = datetime(1970, 1, 1)
_NEGATIVE_ZERO = re.compile(r"-0\.0(?!\d)")


def as_they_are(states: States, watermark: int) -> Seen:
    """All entries; of lists and lists of columns what is in them, in any order."""
    return {name: texts(rows) for name, rows in states.items()}


def without_waiting_rows(states: States, watermark: int) -> Seen:
    """All but the buffered rows in order: those know the micro-batch that they came in."""
    kept = {name: rows for name, rows in states.items() if not name.startswith("ordered rows")}
    return as_they_are(kept, watermark)


def texts(rows: Iterable[StateRow]) -> list[str]:
    """One for each row, sorted."""
    return sorted(repr({name: value for name, value in row.items() if name != "position"}) for row in rows)


def summed_logs(states: States, watermark: int) -> Seen:
    """The logs of minima and maxima, ``values.*``, as how often each value is there."""
    return as_they_are({name: _summed(name, rows) for name, rows in states.items()}, watermark)


def _summed(name: str, rows: list[StateRow]) -> list[StateRow]:
    if not name.startswith("values."):
        return rows
    counts: Counter[str] = Counter()
    for row in rows:
        counts[repr((row["key"], row["namespace"], row["value"]["value"]))] += row["value"]["count"]
    assert all(count >= 0 for count in counts.values())
    return [{"value": text, "count": count} for text, count in counts.items() if count]


def zeros_alike(view: View) -> View:
    """The same with 0.0 for -0.0: they are equal, and which of them is kept is free."""

    def seen(states: States, watermark: int) -> Seen:
        found = view(states, watermark)
        return {
            name: sorted(_NEGATIVE_ZERO.sub("0.0", text) for text in rows) for name, rows in found.items()
        }

    return seen


def ranked_rows(states: States, watermark: int) -> Seen:
    """The rows of each key, wherever they stand, and its limit."""
    rows = [row for row in states["top"] if row["value"].get("rank:block", 0) == 0]
    rows += states.get("behind", [])
    kept = [
        {"key": row["key"], "row": {n: v for n, v in row["value"].items() if not n.startswith("rank:")}}
        for row in rows
    ]
    others = {name: found for name, found in states.items() if name not in ("top", "behind", "order")}
    return {"rows": texts(kept), **as_they_are(others, watermark)}


def interval_rows(time_column: str, reach: dict[str, int], once: bool) -> View:
    """The rows of an interval join that can still find a partner, with whether they had one.

    A row of side ``name`` is over once the watermark is ``reach[name]`` behind its time; it may stay a while. ``once``:
    left rows that have had a partner are over, too.
    """

    def view(states: States, watermark: int) -> Seen:
        kept = dict(states)
        for name, rows in states.items():
            side = name.removesuffix("_unmatched")
            if side in reach:
                kept[name] = _in_reach(rows, time_column, watermark + reach[side], once and side == "left")
        return as_they_are(kept, watermark)

    return view


def _in_reach(rows: list[StateRow], time_column: str, over: int, once: bool) -> list[StateRow]:
    last = _EPOCH + timedelta(microseconds=over)
    lists: dict[str, list[StateRow]] = defaultdict(list)
    for row in rows:
        lists[repr((row["key"], row["namespace"]))].append(row)
    return [
        row
        for listed in lists.values()
        for row in _with_marks(listed)
        if row["value"][time_column] > last and not (once and row["value"].get("matched"))
    ]


def _with_marks(rows: list[StateRow]) -> list[StateRow]:
    """Entries that say of another one that it has found a partner, put into that one."""
    if "matched" not in rows[0]["value"]:
        return rows
    rows = sorted(rows, key=lambda row: row["position"])
    flags = [
        row["value"]["matched"] for row in rows
    ]  # None: had none, -1: had one, else the place that had one
    marked = {flag for flag in flags if flag is not None and flag >= 0}
    return [
        {**row, "value": {**row["value"], "matched": flag == -1 or at in marked}}
        for at, (row, flag) in enumerate(zip(rows, flags, strict=True))
        if flag is None or flag == -1
    ]


def waiting_rows(states: States, watermark: int) -> Seen:
    """Rows that wait in order without when they came."""

    def without_arrival(row: StateRow) -> StateRow:
        value = {name: each for name, each in row["value"].items() if name not in ("batch_id", "arrival")}
        return {**row, "value": value}

    return as_they_are(
        {
            name: [without_arrival(row) for row in rows] if name.startswith("ordered rows") else rows
            for name, rows in states.items()
        },
        watermark,
    )


def session_rows(states: States, watermark: int) -> Seen:
    """The rows of open windows. The namespace of a session is free: that of one of the sessions that it came of."""
    if "_sessions" not in states:
        return as_they_are(states, watermark)
    spans = [
        {"key": row["key"], "span": (session["start"], session["end"])}
        for row in states["_sessions"]
        for session in row["value"]
    ]
    others = {name: rows for name, rows in states.items() if name not in ("_sessions", "_rows", "@timers")}
    rows = [{**row, "namespace": None} for row in states["_rows"]]
    return {"spans": texts(spans), "rows": texts(rows), **as_they_are(others, watermark)}
