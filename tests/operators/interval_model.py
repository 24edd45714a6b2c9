"""What an interval join must put out, worked out row by row with lists and loops.

Owns: ``IntervalModel``, and random inputs. Must not import the operator's own parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from asyncstate.operator import MAX_WATERMARK, MIN_WATERMARK

SECOND = 1_000_000
LEFT = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("at", pa.timestamp("us"))])
RIGHT = pa.schema([("k", pa.int64()), ("w", pa.int64()), ("at", pa.timestamp("us"))])
KINDS: tuple[Any, ...] = ("inner", "left", "right", "full", "semi", "anti")

Row = tuple[Any, ...]
Push = tuple[int, list[Row]]  # side and rows


@dataclass
class _Stored:
    row: Row
    time: int
    matched: bool


@dataclass
class IntervalModel:
    """One row at a time. Side 0 is left; a row is (key, value, time), its time that of the clock if there is one."""

    kind: str
    lower: int
    upper: int
    lateness: int = 0
    condition: Callable[[Row, Row], bool] = lambda left, right: True
    null_safe: bool = False
    processing: bool = False
    passed: int = MIN_WATERMARK
    stored: tuple[list[_Stored], list[_Stored]] = field(default_factory=lambda: ([], []))

    def run(
        self, pushes: Sequence[Push], watermark: int, processing_time: int = 0
    ) -> tuple[list[Row], list[Row]]:
        """One micro-batch: the output of its rows, in order, and of its end, by side and time."""
        if self.processing:
            self.passed = processing_time - 1
        out: list[Row] = []
        for side, rows in pushes:
            for row in rows:
                self._arrive(side, row, processing_time if self.processing else row[2], out)
        if watermark == MAX_WATERMARK or not self.processing:
            self.passed = watermark
        return out, self._end()

    def _arrive(self, side: int, row: Row, time: int, out: list[Row]) -> None:
        partners = [
            other
            for other in sorted(self.stored[1 - side], key=lambda other: other.time)
            if self._match(side, row, time, other)
        ]
        for other in partners:
            if self.kind not in ("semi", "anti"):
                out.append(self._pair(side, row, other.row))
            elif self.kind == "semi" and side == 1 and not other.matched:
                out.append(other.row)
            other.matched = True
        if self.kind == "semi" and side == 0 and partners:
            out.append(row)
        matchable = row[0] is not None or self.null_safe
        if matchable and not self._over(side, time):
            self.stored[side].append(_Stored(row, time, bool(partners)))
        elif not partners and self._pads(side):
            out.append(self._pair(side, row, None))

    def _match(self, side: int, row: Row, time: int, other: _Stored) -> bool:
        left, right = (row, other.row) if side == 0 else (other.row, row)
        apart = other.time - time if side == 0 else time - other.time
        keys = left[0] == right[0] and (left[0] is not None or self.null_safe)
        there = keys and not self._over(1 - side, other.time)
        return there and self.lower <= apart <= self.upper and self.condition(left, right)

    def _over(self, side: int, time: int) -> bool:
        if self.passed == MIN_WATERMARK:
            return False
        return time + (self.upper if side == 0 else -self.lower) + self.lateness <= self.passed

    def _pads(self, side: int) -> bool:
        return self.kind in (("left", "full", "anti"), ("right", "full"))[side]

    def _pair(self, side: int, row: Row, other: Row | None) -> Row:
        if self.kind == "anti":
            return row
        other = (None,) * 3 if other is None else other
        return row + other if side == 0 else other + row

    def _end(self) -> list[Row]:
        out: list[Row] = []
        for side in (0, 1):
            over = [stored for stored in self.stored[side] if self._over(side, stored.time)]
            self.stored[side][:] = [stored for stored in self.stored[side] if stored not in over]
            if self._pads(side):
                alone = [stored for stored in over if not stored.matched]
                out += [self._pair(side, one.row, None) for one in sorted(alone, key=lambda one: one.time)]
        return out
