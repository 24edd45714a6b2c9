"""What WindowAggregate must put out, worked out row by row with lists and loops.

Owns: ``WindowModel`` and the random schedules that tests run through it and the operator alike.
Must not import the operator's own parts, except the window to read its sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from operators.window.windows import SessionWindow, SlicedWindow

MS = 1_000
MIN, MAX = -(2**63), 2**63 - 1

Row = tuple[int | None, int, int | None]  # key, time (ms), value
Op = tuple[str, Row]  # kind, row


@dataclass
class Batch:
    """The rows of a micro-batch, in order of arrival, and its watermark (us)."""

    ops: list[Op]
    watermark: int


@dataclass
class Session:
    start: int
    end: int
    rows: list[Row] = field(default_factory=list)


def aggregates(rows: Sequence[Row], extremes: bool) -> tuple[Any, ...]:
    """count, sum, avg of the values, number of odd ones (and min, max)."""
    values = [value for _, _, value in rows if value is not None]
    odd = sum(1 for value in values if value % 2)
    figures: tuple[Any, ...] = (
        len(rows),
        sum(values) if values else None,
        sum(values) / len(values) if values else None,
        odd,
    )
    return (*figures, min(values, default=None), max(values, default=None)) if extremes else figures


class WindowModel:
    """Runs micro-batches; ``late`` and ``unknown`` count the rows dropped so far."""

    def __init__(self, window: SlicedWindow | SessionWindow, extremes: bool) -> None:
        self.window = window
        self.extremes = extremes
        self.late = self.unknown = 0
        self.watermark = MIN
        self._slices: dict[tuple[Any, int], list[Row]] = {}
        self._sessions: dict[Any, list[Session]] = {}

    def run(self, batch: Batch) -> list[tuple[Any, ...]]:
        """Output rows (key, start, end, time, aggregates...), times in us, in no order."""
        step = self._run_sessions if isinstance(self.window, SessionWindow) else self._run_slices
        out = step(batch)
        self.watermark = batch.watermark
        return out

    def _result(self, key: Any, start: int, end: int, rows: list[Row]) -> tuple[Any, ...]:
        return key, start, end, end - 1000, *aggregates(rows, self.extremes)

    # -- tumble, hop, cumulate --------------------------------------------------------------------------

    def windows(self, time: int) -> list[tuple[int, int]]:
        window = self.window
        assert isinstance(window, SlicedWindow)
        if window.kind == "cumulate":
            start = (time - window.offset) // window.size * window.size + window.offset
            ends = range(start + window.step, start + window.size + 1, window.step)
            return [(start, end) for end in ends if time < end]
        newest = (time - window.offset) // window.step * window.step + window.offset
        starts = range(newest, newest - window.size, -window.step)
        return [(start, start + window.size) for start in starts if start <= time < start + window.size]

    def _run_slices(self, batch: Batch) -> list[tuple[Any, ...]]:
        for kind, row in batch.ops:
            windows = self.windows(row[1] * MS)
            if all(end - 1 <= self.watermark for _, end in windows):
                self.late += 1
                continue
            rows = self._slices.setdefault((row[0], min(end for _, end in windows)), [])
            if kind in ("+I", "+U"):
                rows.append(row)
            elif rows:
                rows.remove(row)
            else:
                self.unknown += 1
        results: dict[tuple[Any, int, int], list[Row]] = {}
        for (key, _), rows in self._slices.items():
            for row in rows:
                for start, end in self.windows(row[1] * MS):
                    if self.watermark < end - 1 <= batch.watermark:
                        results.setdefault((key, start, end), []).append(row)
        return [self._result(*window, rows) for window, rows in results.items()]

    # -- sessions ---------------------------------------------------------------------------------------

    def _run_sessions(self, batch: Batch) -> list[tuple[Any, ...]]:
        assert isinstance(self.window, SessionWindow)
        gap = self.window.gap
        for key in {row[0] for _, row in batch.ops}:
            ops = [(kind, row) for kind, row in batch.ops if row[0] == key]
            self._sessions[key] = self._merge(self._sessions.get(key, []), ops, gap)
            for kind, row in ops:
                self._apply(kind, row, self._sessions[key], gap)
        out = []
        for key, sessions in self._sessions.items():
            for session in sessions:
                if not session.rows or session.end - 1 > batch.watermark:
                    continue
                if session.end - 1 <= self.watermark:
                    self.late += len(session.rows)
                else:
                    out.append(self._result(key, session.start, session.end, session.rows))
            sessions[:] = [s for s in sessions if s.end - 1 > batch.watermark]
        return out

    def _merge(self, sessions: list[Session], ops: list[Op], gap: int) -> list[Session]:
        added = [Session(row[1] * MS, row[1] * MS + gap) for kind, row in ops if kind in ("+I", "+U")]
        merged: list[Session] = []
        for session in sorted(sessions + added, key=lambda one: one.start):
            if merged and session.start <= merged[-1].end:
                merged[-1].end = max(merged[-1].end, session.end)
                merged[-1].rows += session.rows
            else:
                merged.append(session)
        return merged

    def _apply(self, kind: str, row: Row, sessions: list[Session], gap: int) -> None:
        for session in sessions:
            if session.start <= row[1] * MS <= session.end - gap:
                if kind in ("+I", "+U"):
                    session.rows.append(row)
                    return
                if session.rows:
                    session.rows.remove(row)
                    return
        self.unknown += 1


# -- schedules --------------------------------------------------------------------------------------------


@st.composite
def schedules(draw: st.DrawFn, retract: bool, span_ms: int = 60) -> list[Batch]:
    """Micro-batches of rows around a rising watermark: out of order, early, late; null keys and values.

    Rows are taken back only after they came, at most once; and some that never came, for keys that have none.
    """
    batches: list[Batch] = []
    taken: list[Row] = []
    watermark = MIN
    now = 0
    for _ in range(draw(st.integers(1, 4))):
        ops: list[Op] = []
        taken = not_passed(taken, watermark)
        for _ in range(draw(st.integers(0, 8))):
            action = draw(st.integers(0, 9)) if retract else 9
            if action <= 2 and taken:
                gone = taken.pop(draw(st.integers(0, len(taken) - 1)))
                ops.append((draw(st.sampled_from(["-D", "-U"])), gone))
                continue
            time = now + draw(st.integers(-span_ms // 2, span_ms))
            if action == 3:
                ops.append(("-D", (77, time, 1)))
                continue
            row = (draw(st.none() | st.integers(0, 2)), time, draw(st.none() | st.integers(-5, 5)))
            ops.append((draw(st.sampled_from(["+I", "+U"])) if retract else "+I", row))
            taken += not_passed([row], watermark)
        now += draw(st.integers(0, span_ms // 2))
        if draw(st.integers(0, 4)):
            watermark = max(watermark, now * MS + draw(st.sampled_from([-1, 0, -7 * MS])))
        batches.append(Batch(ops, watermark))
    batches.append(Batch([], MAX))
    return batches


def not_passed(rows: list[Row], watermark: int) -> list[Row]:
    """Rows that the watermark has not passed, so that they are surely in state.

    Taking back a row that was dropped, or whose session has fired, would take from another session that has
    grown over its time: nobody can tell these apart.
    """
    return [row for row in rows if row[1] * MS > watermark]
