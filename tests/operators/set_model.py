"""What a set of changelog rows makes of a table, in plain Python: what every operator over changelogs must agree with.

Owns: ``net_of_set``. It shares no code with the operators.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

Row = tuple[Any, ...]
Event = tuple[str, Row]
ADDED = ("+I", "+U")


class Outcome(NamedTuple):
    """``stays``: places of the stored rows that stay; ``comes``: places of the events whose rows come; ``missing``:
    the retracted rows that are not there."""

    stays: list[int]
    comes: list[int]
    missing: list[Row]


def exact(row: Row) -> str:
    """Equal for rows that are equal, NaN to NaN."""
    return repr(row)


def net_of_set(
    stored: Sequence[Row],
    events: Sequence[Event],
    unique: Callable[[Row], Any] | None = None,
    refresh: bool = False,
) -> Outcome:
    """What ``events`` make of the ``stored`` rows (oldest first); with ``refresh`` a row that goes and comes is new."""
    if unique is None:
        return _by_content(stored, events, refresh)
    total = Outcome([], [], [])
    for key in {unique(row) for row in [*stored, *(row for _, row in events)]}:
        own = [at for at, row in enumerate(stored) if unique(row) == key]
        mine = [at for at, (_, row) in enumerate(events) if unique(row) == key]
        part = _by_unique_key([stored[at] for at in own], [events[at] for at in mine], refresh)
        total.stays.extend(own[at] for at in part.stays)
        total.comes.extend(mine[at] for at in part.comes)
        total.missing.extend(part.missing)
    return Outcome(sorted(total.stays), sorted(total.comes), total.missing)


def _by_content(stored: Sequence[Row], events: Sequence[Event], refresh: bool) -> Outcome:
    taken = Counter(exact(row) for kind, row in events if kind not in ADDED)
    rows = {exact(row): row for _, row in events}
    places = [("stored", at, row) for at, row in enumerate(stored)]
    arrived = [("event", at, row) for at, (kind, row) in enumerate(events) if kind in ADDED]
    stays, comes = [], []
    for where, at, row in [*places, *arrived] if refresh else [*arrived, *places]:
        if taken[exact(row)]:
            taken[exact(row)] -= 1
        else:
            (stays if where == "stored" else comes).append(at)
    return Outcome(stays, comes, [rows[text] for text in taken.elements()])


def _by_unique_key(stored: Sequence[Row], events: Sequence[Event], refresh: bool) -> Outcome:
    """Of one unique key: at most one row before and after."""
    if not events:
        return Outcome(list(range(len(stored))), [], [])
    had = Counter(map(exact, stored))
    came = Counter(exact(row) for kind, row in events if kind in ADDED)
    went = Counter(exact(row) for kind, row in events if kind not in ADDED)
    rows = {exact(row): row for _, row in events}
    missing = [rows[text] for text in (went - came - had).elements()]
    winner, ended = _winner(stored, events, came, went - had if refresh else went)
    if winner is not None:
        if exact(events[winner][1]) in had and not refresh:
            return Outcome([0], [], missing)
        return Outcome([], [winner], missing)
    stays = [at for at, row in enumerate(stored) if not ended and went[exact(row)] <= came[exact(row)]]
    return Outcome(stays, [], missing)


def _in_order(stored: Sequence[Row], events: Sequence[Event]) -> bool:
    """Whether each retraction is of the row that there is when it comes."""
    there = exact(stored[0]) if stored else None
    for kind, row in events:
        if kind not in ADDED and there != exact(row):
            return False
        there = exact(row) if kind in ADDED else None
    return True


def _winner(
    stored: Sequence[Row], events: Sequence[Event], came: Counter[str], went: Counter[str]
) -> tuple[int | None, bool]:
    """The event whose row is there in the end, if there is one; whether the key has been ended."""
    kinds = {kind for kind, _ in events}
    added = [at for at, (kind, _) in enumerate(events) if kind in ADDED]
    if (
        "+U" in kinds and "-U" not in kinds and _in_order(stored, events)
    ):  # rows replace each other, in their order
        last = added[-1]
        ended = any(exact(row) == exact(events[last][1]) for _, row in events[last + 1 :])
        return (None, True) if ended else (last, False)
    left = [at for at in added if came[exact(events[at][1])] > went[exact(events[at][1])]]
    return (left[-1] if left else None), False
