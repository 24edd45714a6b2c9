"""What functions over the rows of windows must be called with, worked out with lists and loops.

Owns: ``RowsModel``, one row at a time as Flink's window operator sees them, and ``in_duckdb``, complete windows in SQL.
Must not import the operator's own parts, except the window to read its sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import duckdb

from operators.window.windows import SessionWindow, SlicedWindow
from tests.operators.window_model import MIN, WindowModel

MAX = 2**63 - 1


class Given(NamedTuple):
    """A row: key, time in microseconds, value."""

    key: int
    time: int
    value: int


class Fired(NamedTuple):
    """A call: key, window, the values in the order in which the function gets them."""

    key: int
    start: int
    end: int
    values: tuple[int, ...]


class OpenWindow:
    """A window of a key with its rows."""

    def __init__(self, start: int, end: int, values: Sequence[int] = ()) -> None:
        self.start = start
        self.end = end
        self.values = list(values)


class RowsModel:
    """Runs micro-batches; ``late`` counts the rows dropped so far."""

    def __init__(self, window: SlicedWindow | SessionWindow, lateness: int = 0) -> None:
        self.window = window
        self.lateness = lateness
        self.watermark = MIN
        self.late = 0
        self._open: dict[int, list[OpenWindow]] = {}

    def run(self, rows: Sequence[Given], watermark: int) -> list[Fired]:
        """The calls of a micro-batch, in no order."""
        calls: list[Fired] = []
        for row in rows:
            calls += self._add(row)
        for key, windows in self._open.items():
            calls += [
                Fired(key, one.start, one.end, tuple(one.values))
                for one in windows
                if self.watermark < one.end - 1 <= watermark
            ]
            windows[:] = [one for one in windows if one.end - 1 + self.lateness > watermark]
        self.watermark = watermark
        return calls

    def _gone(self, end: int) -> bool:
        return end - 1 + self.lateness <= self.watermark

    def _add(self, row: Given) -> list[Fired]:
        windows = self._open.setdefault(row.key, [])
        mine = (
            self._session(row, windows)
            if isinstance(self.window, SessionWindow)
            else self._aligned(row, windows)
        )
        self.late += not mine
        calls = []
        for window in mine:
            window.values.append(row.value)
            if window.end - 1 <= self.watermark:
                calls.append(Fired(row.key, window.start, window.end, tuple(window.values)))
        return calls

    def _aligned(self, row: Given, windows: list[OpenWindow]) -> list[OpenWindow]:
        mine = []
        for start, end in WindowModel(self.window, extremes=False).windows(row.time):
            if not self._gone(end):
                found = next((one for one in windows if (one.start, one.end) == (start, end)), None)
                if found is None:
                    found = OpenWindow(start, end)
                    windows.append(found)
                mine.append(found)
        return mine

    def _session(self, row: Given, windows: list[OpenWindow]) -> list[OpenWindow]:
        assert isinstance(self.window, SessionWindow)
        start, end = row.time, row.time + self.window.gap
        met = sorted(
            (one for one in windows if one.start <= end and start <= one.end), key=lambda one: one.start
        )
        if not met and self._gone(end):
            return []
        values = [value for one in met for value in one.values]
        merged = OpenWindow(
            min([start, *(one.start for one in met)]), max([end, *(one.end for one in met)]), values
        )
        windows[:] = [one for one in windows if one not in met] + [merged]
        return [merged]


_SLICED = """
    SELECT k, e - size AS s, e, list(v ORDER BY n) FROM (
        SELECT *, unnest(range(first, first + size, step)) AS e FROM (
            SELECT *, t + $step - ((t - $offset) % $step + $step) % $step AS first, $size AS size, $step AS step
            FROM given))
    GROUP BY ALL
"""
_CUMULATED = """
    SELECT k, s, e, list(v ORDER BY n) FROM (
        SELECT *, unnest(range(s + $step, s + $size + 1, $step)) AS e FROM (
            SELECT *, t - ((t - $offset) % $size + $size) % $size AS s FROM given))
    WHERE t < e
    GROUP BY ALL
"""
_SESSIONS = """
    SELECT k, min(t), max(t) + $size, list(v ORDER BY n) FROM (
        SELECT *, sum(begins) OVER (PARTITION BY k ORDER BY t, n) AS session FROM (
            SELECT *, CASE WHEN t - lag(t) OVER (PARTITION BY k ORDER BY t, n) <= $size THEN 0 ELSE 1 END AS begins
            FROM given))
    GROUP BY k, session
"""


def in_duckdb(window: SlicedWindow | SessionWindow, rows: Sequence[Given]) -> list[Fired]:
    """Every window of ``rows`` as DuckDB makes them, none of them late; values in order of arrival."""
    if isinstance(window, SessionWindow):
        query, figures = _SESSIONS, {"size": window.gap}
    else:
        query = _CUMULATED if window.kind == "cumulate" else _SLICED
        figures = {"size": window.size, "step": window.step, "offset": window.offset}
    with duckdb.connect() as database:
        database.execute("CREATE TABLE given (n BIGINT, k BIGINT, t BIGINT, v BIGINT)")
        if rows:
            numbered: list[tuple[Any, ...]] = [(n, *row) for n, row in enumerate(rows)]
            database.executemany("INSERT INTO given VALUES (?, ?, ?, ?)", numbered)
        found = database.execute(query, figures).fetchall()
    return [Fired(key, start, end, tuple(values)) for key, start, end, values in found]
