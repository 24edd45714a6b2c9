"""What WindowAggregate must put out in processing time, worked out row by row with lists and loops.

Owns: ``ClockModel``. Must not import the operator's own parts, except the window to read its sizes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from operators.window.windows import SessionWindow, Window
from tests.operators.window_model import Row, WindowModel, aggregates


@dataclass
class _Open:
    key: Any
    start: int
    end: int
    rows: list[Row] = field(default_factory=list)


class ClockModel:
    """``start_batch``, then ``apply`` row by row. ``unknown`` counts the rows taken back that no window had."""

    def __init__(self, window: Window, extremes: bool) -> None:
        self._window = window
        self._extremes = extremes
        self._now = 0
        self._open: list[_Open] = []
        self.unknown = 0

    @property
    def is_empty(self) -> bool:
        """No window has a row."""
        return not any(one.rows for one in self._open)

    def start_batch(self, now: int) -> list[tuple[Any, ...]]:
        """The windows that are over (key, start, end, time, aggregates...), in no order."""
        self._now = now
        over = [one for one in self._open if one.end <= now]
        self._open = [one for one in self._open if one.end > now]
        return [
            (one.key, one.start, one.end, one.end - 1000, *aggregates(one.rows, self._extremes))
            for one in over
            if one.rows
        ]

    def is_clear(self, row: Row) -> bool:
        """Whether taking ``row`` back can take no other one: each window has it, or nothing of its key."""
        return all(row in one.rows or not one.rows for one in self._windows(row[0]))

    def apply(self, kind: str, row: Row) -> None:
        """One row of the micro-batch."""
        if kind in ("+I", "+U"):
            for one in self._taking(row[0]):
                one.rows.append(row)
            return
        having = [one for one in self._windows(row[0]) if row in one.rows]
        for one in having:
            one.rows.remove(row)
        self.unknown += not having

    def _windows(self, key: Any) -> list[_Open]:
        return [one for one in self._open if one.key == key and one.start <= self._now < one.end]

    def _taking(self, key: Any) -> list[_Open]:
        found = self._windows(key)
        if isinstance(self._window, SessionWindow):
            end = self._now + self._window.gap
            found = found or [self._add(key, self._now, end)]
            found[0].end = end
            return found
        there = {(one.start, one.end): one for one in found}
        wanted = WindowModel(self._window, extremes=False).windows(self._now)
        return [there.get(span) or self._add(key, *span) for span in wanted]

    def _add(self, key: Any, start: int, end: int) -> _Open:
        self._open.append(_Open(key, start, end))
        return self._open[-1]
