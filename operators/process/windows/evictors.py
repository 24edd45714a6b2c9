"""Built-in evictors.

Owns: ``count``, ``time`` and ``delta``.
Invariant: rows that stay keep their order.
Must not import anything of ``asyncstate`` but ``durations``, ``errors``, ``functions``, ``operator``.

Source: ``org.apache.flink.streaming.api.windowing.evictors``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from asyncstate.durations import Duration, microseconds
from asyncstate.errors import SchemaError
from asyncstate.functions import Evictor, TimedRow, TimeWindow
from asyncstate.operator import Row
from asyncstate.program_text import said

from ...core.operator_checks import check_number

Left = Callable[[Sequence[TimedRow]], Sequence[TimedRow]]


class _Evictor(Evictor):
    """Keeps the rows that ``left`` returns, before the function runs or after it."""

    def __init__(self, left: Left, after: bool) -> None:
        self._left = left
        self._after = after

    def evict_before(self, rows: Sequence[TimedRow], window: TimeWindow) -> Sequence[TimedRow]:
        return rows if self._after else self._left(rows)

    def evict_after(self, rows: Sequence[TimedRow], window: TimeWindow) -> Sequence[TimedRow]:
        return self._left(rows) if self._after else rows

    @property
    def text(self) -> str:
        return f"{said(self._left)} {'after' if self._after else 'before'}"


def _last(rows: Sequence[TimedRow], count: int) -> Sequence[TimedRow]:
    return rows[-count:]


def _recent(rows: Sequence[TimedRow], length: int) -> Sequence[TimedRow]:
    cut = max(row.timestamp for row in rows) - length if rows else 0
    return [row for row in rows if row.timestamp > cut]


def _near(rows: Sequence[TimedRow], threshold: float, measure: Callable[[Row], float]) -> Sequence[TimedRow]:
    last = measure(rows[-1].row) if rows else 0
    # a row with a measure of NaN, which is neither near nor far, is not evicted
    return [row for row in rows if not last - measure(row.row) >= threshold]


def count(rows: int, *, after: bool = False) -> Evictor:
    """Keep the last ``rows`` rows."""
    check_number(rows, 1, "rows", "evictors.count")
    return _Evictor(partial(_last, count=rows), after)


def time(length: Duration, *, after: bool = False) -> Evictor:
    """Keep rows less than ``length`` before the latest one."""
    span = microseconds(length, "evictors.time", "length")
    if span < 1:
        raise SchemaError(f"evictors.time: length is {length!r}; give more than 0")
    return _Evictor(partial(_recent, length=span), after)


def delta(threshold: float, measure: Callable[[Row], float], *, after: bool = False) -> Evictor:
    """Keep rows that measure less than ``threshold`` below the last one."""
    return _Evictor(partial(_near, threshold=threshold, measure=measure), after)
