"""The usual evictors.

Owns: ``count``, ``time`` and ``delta``.
Invariant: rows that stay keep their order.
Must not import anything of ``asyncstate`` but ``durations``, ``errors``, ``functions``, ``operator``.

Source: ``org.apache.flink.streaming.api.windowing.evictors``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from asyncstate.durations import Duration, microseconds
from asyncstate.errors import SchemaError
from asyncstate.functions import Evictor, TimedRow, TimeWindow
from asyncstate.operator import Row

from ...core.checks import check_number

Left = Callable[[Sequence[TimedRow]], Sequence[TimedRow]]


class _Evictor(Evictor):
    """Leaves what ``left`` says, before the function runs or after it."""

    def __init__(self, left: Left, after: bool) -> None:
        self._left = left
        self._after = after

    def evict_before(self, rows: Sequence[TimedRow], window: TimeWindow) -> Sequence[TimedRow]:
        return rows if self._after else self._left(rows)

    def evict_after(self, rows: Sequence[TimedRow], window: TimeWindow) -> Sequence[TimedRow]:
        return self._left(rows) if self._after else rows


class _Last:
    def __init__(self, rows: int) -> None:
        self._rows = rows

    def __call__(self, rows: Sequence[TimedRow]) -> Sequence[TimedRow]:
        return rows[-self._rows :]


class _Recent:
    def __init__(self, length: int) -> None:
        self._length = length

    def __call__(self, rows: Sequence[TimedRow]) -> Sequence[TimedRow]:
        cut = max(row.timestamp for row in rows) - self._length if rows else 0
        return [row for row in rows if row.timestamp > cut]


class _Near:
    def __init__(self, threshold: float, measure: Callable[[Row], float]) -> None:
        self._threshold = threshold
        self._measure = measure

    def __call__(self, rows: Sequence[TimedRow]) -> Sequence[TimedRow]:
        last = self._measure(rows[-1].row) if rows else 0
        # a measure of NaN, which is neither near nor far, throws nothing out
        return [row for row in rows if not last - self._measure(row.row) >= self._threshold]


def count(rows: int, *, after: bool = False) -> Evictor:
    """The last ``rows`` rows stay."""
    check_number(rows, 1, "rows", "evictors.count")
    return _Evictor(_Last(rows), after)


def time(length: Duration, *, after: bool = False) -> Evictor:
    """Rows less than ``length`` before the latest one stay."""
    span = microseconds(length, "evictors.time", "length")
    if span < 1:
        raise SchemaError(f"evictors.time: length is {length!r}; give more than 0")
    return _Evictor(_Recent(span), after)


def delta(threshold: float, measure: Callable[[Row], float], *, after: bool = False) -> Evictor:
    """Rows stay that measure less than ``threshold`` below the last one."""
    return _Evictor(_Near(threshold, measure), after)
