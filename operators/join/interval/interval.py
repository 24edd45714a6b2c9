"""The times of an interval join: which rows are in reach of each other, and until when partners can come.

Owns: ``Interval``, the grids of cells for stored rows, and ``TimedRows``, the search by key and time.
Invariant: left row l and right row r are in reach iff l.time + lower <= r.time <= l.time + upper, for int64 times of
any size: sums that do not fit are clamped to the range.
Pure functions over numpy; must not know of state or contexts.

Source: Flink's ``TimeIntervalJoin``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from asyncstate.codec.sorting import rows_by
from asyncstate.operator import MAX_WATERMARK, MIN_WATERMARK

from ...core.arrays import Int64Array
from ..matches import Candidates

BOUND_MAX_US = 1 << 60
"""The longest bound, 36,000 years."""
FILE_US_MIN = 1_000_000
"""The shortest span of time whose rows share one list."""


@dataclass(frozen=True)
class Interval:
    """Bounds of the right row's time relative to the left row's, inclusive, and the lateness, in microseconds.

    Sides are 0 (left) and 1 (right).
    """

    lower: int
    upper: int
    lateness: int

    def partners(self, side: int, times: Int64Array) -> tuple[Int64Array, Int64Array]:
        """First and last time of the partners of rows of ``side`` with these times (n)."""
        if side == 0:
            return _shifted(times, self.lower), _shifted(times, self.upper)
        return _shifted(times, -self.upper), _shifted(times, -self.lower)

    def over(self, side: int, passed: int) -> int:
        """The latest time of rows of ``side`` whose last partner is out of time when ``passed`` is."""
        if passed in (MIN_WATERMARK, MAX_WATERMARK):
            return passed
        last_partner = self.upper if side == 0 else -self.lower
        return min(max(passed - last_partner - self.lateness, MIN_WATERMARK), MAX_WATERMARK)

    @property
    def lists(self) -> Grid:
        """The cells in which rows are stored to be found: the partners of a row are in at most two of them."""
        return Grid(max(self.upper - self.lower, FILE_US_MIN))

    @property
    def text(self) -> str:
        """The interval as it is recorded with its state."""
        return f"interval(lower={self.lower}us, upper={self.upper}us, lateness={self.lateness}us)"


@dataclass(frozen=True)
class Grid:
    """Cells of time of ``width`` microseconds, named by their first time."""

    width: int

    def cell(self, times: Int64Array) -> Int64Array:
        """The cell of each time."""
        times = np.maximum(times, MIN_WATERMARK + self.width)  # there is no cell below the first time
        return times - times % self.width

    def cell_of(self, time: int) -> int:
        """The cell of one time."""
        return max(time, MIN_WATERMARK + self.width) // self.width * self.width

    def last_before(self, time: int) -> int:
        """The last cell all of whose times are <= ``time``."""
        return time if time == MAX_WATERMARK else (time + 1) // self.width * self.width - self.width

    # ``due_parts.Ends``: a cell is read under its own name.

    def next_end(self, time: int) -> int:
        """The first cell that does not begin before ``time``."""
        return -(-time // self.width) * self.width

    def previous_end(self, time: int) -> int:
        """The last cell that does not begin after ``time``."""
        return self.cell_of(time)

    def first_slice(self, ends: int) -> int:
        """The cell itself."""
        return ends


class TimedRows:
    """Rows (m) by key and time; rows of one key and time keep their order.

    ``order`` (m) are indices of the rows, sorted so; ``first_of_equals`` (m): for each position in it, where the rows
    of that key and time begin.
    """

    def __init__(self, keys: npt.NDArray[np.integer], times: Int64Array) -> None:
        self._ticks, ranks = np.unique(times, return_inverse=True)
        codes = self._codes(keys, ranks)
        self.order: Int64Array = rows_by(codes)
        self._sorted = codes[self.order]

    @property
    def first_of_equals(self) -> Int64Array:
        """See the class."""
        return np.searchsorted(self._sorted, self._sorted, "left")

    def between(self, keys: npt.NDArray[np.integer], first: Int64Array, last: Int64Array) -> Candidates:
        """The rows with each of n keys and first <= time <= last; none for key -1."""
        begins = self._place(keys, np.searchsorted(self._ticks, first, "left"))
        ends = self._place(keys, np.searchsorted(self._ticks, last, "right"))
        return Candidates(begins, np.where(keys < 0, 0, np.maximum(ends - begins, 0)), self.order)

    def _place(self, keys: npt.NDArray[np.integer], ranks: Int64Array) -> Int64Array:
        return np.searchsorted(self._sorted, self._codes(keys, ranks), "left")

    def _codes(self, keys: npt.NDArray[np.integer], ranks: Int64Array) -> Int64Array:
        return keys.astype(np.int64) * (len(self._ticks) + 1) + ranks


def _shifted(times: Int64Array, by: int) -> Int64Array:
    """times + by, clamped to the range of times."""
    if by >= 0:
        return np.minimum(times, MAX_WATERMARK - by) + by
    return np.maximum(times, MIN_WATERMARK - by) + by
