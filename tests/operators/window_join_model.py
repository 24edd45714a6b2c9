"""What a window join must put out and drop, worked out row by row with dicts and loops.

Owns: ``WindowJoinModel``. Must not import the operator's own parts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from asyncstate.operator import MIN_WATERMARK
from tests.properties.models import joined

Row = tuple[Any, ...]
Change = tuple[int, str, Row]
"""Side, kind and row; the first column is the key."""
Windows = Callable[[Row], list[tuple[int, int]]]


@dataclass
class WindowJoinModel:
    """Whole micro-batches of changes. ``shown``: the window's columns are put out."""

    kind: str
    windows: Windows
    shown: bool
    width: int
    condition: Callable[[Row, Row], bool] = lambda left, right: True
    null_safe: bool = False
    fired: int = MIN_WATERMARK
    rows: tuple[Counter[Row], Counter[Row]] = field(default_factory=lambda: (Counter(), Counter()))
    late: int = 0
    missing: int = 0

    def run(self, changes: Sequence[Change], watermark: int) -> list[Row]:
        """The output of one micro-batch, by window end; counts what it drops in ``late`` and ``missing``."""
        net: Counter[tuple[int, Row]] = Counter()
        for side, kind, row in changes:
            if self.windows(row)[-1][1] - 1 <= self.fired:
                self.late += 1
            elif row[0] is not None or self.null_safe or self._pads(side):
                net[side, row] += 1 if kind in ("+I", "+U") else -1
        for (side, row), number in net.items():
            left = self.rows[side][row] + number
            self.missing += max(-left, 0)
            self.rows[side][row] = max(left, 0)
        spans = {span for rows in self.rows for row in +rows for span in self.windows(row)}
        due = [span for span in spans if self.fired < span[1] - 1 <= watermark]
        self.fired = watermark
        return [row for span in sorted(due, key=lambda span: span[1]) for row in self._joined(span)]

    @property
    def waits(self) -> bool:
        """Whether some window still needs a row."""
        return any(self.windows(row)[-1][1] - 1 > self.fired for rows in self.rows for row in +rows)

    def _joined(self, span: tuple[int, int]) -> list[Row]:
        tables = [Counter(row for row in rows.elements() if span in self.windows(row)) for rows in self.rows]
        keys: Any = [lambda row: row[:1]] * 2
        found = joined(self.kind, tables, keys, (self.width,) * 2, self.condition, self.null_safe).elements()
        return [(*row, *span, span[1] - 1_000) for row in found] if self.shown else list(found)

    def _pads(self, side: int) -> bool:
        return self.kind in (("left", "full", "anti"), ("right", "full"))[side]
